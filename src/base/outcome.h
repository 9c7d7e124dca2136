/* outcome: what is known about a transaction that was sent to Postgres. Three values, never two.
 *
 * DONE: its commit was confirmed. NOT_DONE: it surely did not commit. UNKNOWN: the connection was
 * lost after the commit had been sent. UNKNOWN is never turned into a plain error: it is resolved
 * by replaying an idempotent call, or reaches the client as DEADLINE_EXCEEDED ("not known yet").
 */
#ifndef BASE_OUTCOME_H
#define BASE_OUTCOME_H

enum outcome { OUTCOME_DONE, OUTCOME_NOT_DONE, OUTCOME_UNKNOWN };

#endif
