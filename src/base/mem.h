/* mem: allocation that does not fail.
 *
 * Why: every size that a peer can influence is checked against limits.h (or an arena's budget)
 * before it is asked for, so running out here means that the machine is out of memory. The proxy
 * then stops at once with one line: it holds no state that Postgres does not have, and nothing
 * acknowledged is lost. Not here: budgets (arena.h).
 */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

void *mem_alloc(size_t size_bytes) __attribute__((malloc, returns_nonnull));
void *mem_zalloc(size_t size_bytes) __attribute__((malloc, returns_nonnull));
void *mem_realloc(void *old, size_t size_bytes) __attribute__((returns_nonnull));
void *mem_copy(const void *data, size_t size_bytes) __attribute__((returns_nonnull));
void mem_free(void *memory);

#endif
