/* err: the one error type of the proxy, passed by value or filled through a pointer.
 *
 * What: a canonical code (numbered as in awa.proto and gRPC), whether the same request may succeed
 * later, the SQLSTATE where Postgres was involved, and one sentence for a person.
 * Why: errors are values here. A function that can fail returns enum code, must be checked, and
 * fills the struct err its caller owns. The text is written where the cause is known and never
 * parsed. Invariant: code == CODE_OK means that the other members are zero. Not here: whether a
 * failed transaction was done or not; that is outcome.h.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdbool.h>

enum code {
    CODE_OK = 0,
    CODE_CANCELLED = 1,
    CODE_UNKNOWN = 2,
    CODE_INVALID_ARGUMENT = 3,
    CODE_DEADLINE_EXCEEDED = 4, /* not known yet: resending the receipt or key gives the answer */
    CODE_NOT_FOUND = 5,
    CODE_ALREADY_EXISTS = 6,
    CODE_PERMISSION_DENIED = 7,
    CODE_RESOURCE_EXHAUSTED = 8,
    CODE_FAILED_PRECONDITION = 9,
    CODE_ABORTED = 10,
    CODE_OUT_OF_RANGE = 11,
    CODE_UNIMPLEMENTED = 12,
    CODE_INTERNAL = 13,
    CODE_UNAVAILABLE = 14, /* surely not done: retry */
    CODE_DATA_LOSS = 15,
    CODE_UNAUTHENTICATED = 16,
};

enum { SQLSTATE_LEN = 5, ERR_MESSAGE_BYTES = 200 };

/* The one SQLSTATE of our own, raised by the storage: the schema is not the one that the connection
 * began with. Nothing was done. */
#define SQLSTATE_OTHER_SCHEMA "JQ001"

struct err {
    enum code code;
    bool retryable;
    char sqlstate[SQLSTATE_LEN + 1];
    char message[ERR_MESSAGE_BYTES];
};

#define MUST_CHECK                      __attribute__((warn_unused_result))
#define PRINTF_LIKE(format_at, args_at) __attribute__((format(printf, format_at, args_at)))

/* Fills *err and returns its code, so that `return err_set(...)` reads well. The SQLSTATE is
 * cleared. The message is cut to fit, and is UTF-8 whatever it was made of: clients are told it. */
enum code err_set(struct err *err, enum code code, const char *format, ...) PRINTF_LIKE(3, 4);

/* Keeps what err_set wrote and adds the SQLSTATE (five characters; NULL or shorter is ignored). */
void err_set_sqlstate(struct err *err, const char *sqlstate);

/* "INVALID_ARGUMENT" and so on, for logs and messages. */
const char *code_name(enum code code);

/* What the code itself says about trying the same request again. */
bool code_retryable(enum code code);

#endif
