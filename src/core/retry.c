/* retry: see retry.h. */
#include "core/retry.h"

#include <string.h>

#include "base/clock.h"

enum {
    ABORT_DELAY_US = 10 * US_PER_MS, /* doubled each time */
    ABORT_REPEATS_MAX = 3,
    LOST_DELAY_US = 20 * US_PER_MS,
    LOST_DOUBLINGS_MAX = 6,
};

static bool class_is(const struct err *err, const char *prefix)
{
    return strncmp(err->sqlstate, prefix, strlen(prefix)) == 0;
}

enum trouble retry_trouble(const struct err *err)
{
    if (class_is(err, "40P01") || class_is(err, "40001") || class_is(err, "55P03"))
        return TROUBLE_ABORTED;
    if (class_is(err, "22") || class_is(err, "23") || class_is(err, "54") || class_is(err, "XX"))
        return TROUBLE_ITEM;
    if (class_is(err, "53200"))
        return TROUBLE_CROWDED;
    if (err->sqlstate[0] == '\0' || class_is(err, "08") || class_is(err, "57P") ||
        class_is(err, "25006") || class_is(err, "26000") || class_is(err, "0A000") ||
        class_is(err, SQLSTATE_OTHER_SCHEMA))
        return TROUBLE_CONNECTION;
    return TROUBLE_REFUSED;
}

static struct retry_plan after_abort(const struct retry_case *failed)
{
    if (failed->repeats < ABORT_REPEATS_MAX)
        return (struct retry_plan){RETRY_SAME, (uint64_t)ABORT_DELAY_US << failed->repeats};
    return (struct retry_plan){failed->items > 1 ? RETRY_SINGLY : RETRY_GIVE_UP, 0};
}

static struct retry_plan after_loss(const struct retry_case *failed)
{
    unsigned doublings =
        failed->repeats < LOST_DOUBLINGS_MAX ? failed->repeats : LOST_DOUBLINGS_MAX;
    uint64_t delay_us = (uint64_t)LOST_DELAY_US << doublings;

    if (failed->outcome == OUTCOME_UNKNOWN && !failed->idempotent)
        return (struct retry_plan){RETRY_GIVE_UP, 0};
    return (struct retry_plan){RETRY_SAME, delay_us / 2 + failed->random % delay_us};
}

/* Among others: alone, it is answered. */
static bool has_bad_item(const struct retry_case *failed)
{
    return failed->outcome == OUTCOME_NOT_DONE && failed->items > 1 &&
           retry_trouble(failed->err) == TROUBLE_ITEM;
}

struct retry_plan retry_decide(const struct retry_case *failed)
{
    if (has_bad_item(failed)) /* however late: its neighbours must not be answered with its error */
        return (struct retry_plan){RETRY_HALVES, 0};
    if (failed->overdue)
        return (struct retry_plan){RETRY_GIVE_UP, 0};
    if (failed->outcome == OUTCOME_UNKNOWN)
        return after_loss(failed);
    switch (retry_trouble(failed->err)) {
    case TROUBLE_ABORTED: return after_abort(failed);
    case TROUBLE_CROWDED:
        return failed->items > 1 ? (struct retry_plan){RETRY_HALVES, 0} : after_loss(failed);
    case TROUBLE_CONNECTION: return after_loss(failed);
    case TROUBLE_ITEM:
    case TROUBLE_REFUSED: break;
    }
    return (struct retry_plan){RETRY_GIVE_UP, 0};
}

static enum code final_code(const struct err *cause)
{
    switch (retry_trouble(cause)) {
    case TROUBLE_ABORTED: return CODE_ABORTED;
    case TROUBLE_ITEM: return class_is(cause, "XX") ? CODE_INTERNAL : CODE_INVALID_ARGUMENT;
    case TROUBLE_CROWDED:
    case TROUBLE_CONNECTION: return CODE_UNAVAILABLE;
    case TROUBLE_REFUSED: break;
    }
    if (class_is(cause, "42501"))
        return CODE_PERMISSION_DENIED;
    return class_is(cause, "42") ? CODE_FAILED_PRECONDITION : CODE_UNAVAILABLE;
}

void retry_final_err(const struct err *cause, enum outcome outcome, bool uncertain, struct err *out)
{
    bool unknown = outcome == OUTCOME_UNKNOWN || uncertain;
    char sqlstate[SQLSTATE_LEN + 1];

    memcpy(sqlstate, cause->sqlstate, sizeof sqlstate);
    err_set(out, unknown ? CODE_DEADLINE_EXCEEDED : final_code(cause), "%.*s",
            ERR_MESSAGE_BYTES - 1,
            cause->message[0] != '\0' ? cause->message : "the database did not answer");
    err_set_sqlstate(out, sqlstate);
}
