/* err: see err.h. The two tables of what a code is called and whether it is worth a retry. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

const char *code_name(enum code code)
{
    switch (code) {
    case CODE_OK: return "OK";
    case CODE_CANCELLED: return "CANCELLED";
    case CODE_UNKNOWN: return "UNKNOWN";
    case CODE_INVALID_ARGUMENT: return "INVALID_ARGUMENT";
    case CODE_DEADLINE_EXCEEDED: return "DEADLINE_EXCEEDED";
    case CODE_NOT_FOUND: return "NOT_FOUND";
    case CODE_ALREADY_EXISTS: return "ALREADY_EXISTS";
    case CODE_PERMISSION_DENIED: return "PERMISSION_DENIED";
    case CODE_RESOURCE_EXHAUSTED: return "RESOURCE_EXHAUSTED";
    case CODE_FAILED_PRECONDITION: return "FAILED_PRECONDITION";
    case CODE_ABORTED: return "ABORTED";
    case CODE_OUT_OF_RANGE: return "OUT_OF_RANGE";
    case CODE_UNIMPLEMENTED: return "UNIMPLEMENTED";
    case CODE_INTERNAL: return "INTERNAL";
    case CODE_UNAVAILABLE: return "UNAVAILABLE";
    case CODE_DATA_LOSS: return "DATA_LOSS";
    case CODE_UNAUTHENTICATED: return "UNAUTHENTICATED";
    }
    return "?";
}

bool code_retryable(enum code code)
{
    return code == CODE_UNAVAILABLE || code == CODE_ABORTED || code == CODE_RESOURCE_EXHAUSTED ||
           code == CODE_DEADLINE_EXCEEDED;
}

enum code err_set(struct err *err, enum code code, const char *format, ...)
{
    va_list args;

    err->code = code;
    err->retryable = code_retryable(code);
    err->sqlstate[0] = '\0';
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    utf8_mend(err->message);
    return code;
}

void err_set_sqlstate(struct err *err, const char *sqlstate)
{
    if (sqlstate == NULL || strlen(sqlstate) != SQLSTATE_LEN)
        return;
    memcpy(err->sqlstate, sqlstate, SQLSTATE_LEN + 1);
}
