// error.c: error values and the names of their codes.
#include "internal.h"

#include <stdarg.h>
#include <stdio.h>

const char *awa_code_name(enum awa_code code)
{
    const ProtobufCEnumValue *value =
        protobuf_c_enum_descriptor_get_value(&awa__v1__code__descriptor, (int)code);
    return value != NULL ? value->name : "UNKNOWN";
}

enum awa_code awai_fail(struct awa_error *error, enum awa_code code, const char *format, ...)
{
    if (error == NULL)
        return code;
    *error = (struct awa_error){
        .code = code,
        .retryable = code == AWA_UNAVAILABLE || code == AWA_DEADLINE_EXCEEDED,
    };
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    return code;
}

enum awa_code awai_fail_from_wire(struct awa_error *error, const Awa__V1__Error *wire)
{
    // A code this library does not know, or OK on an error, still is an error.
    bool known = wire->code > AWA__V1__CODE__OK && wire->code <= AWA__V1__CODE__UNAUTHENTICATED;
    enum awa_code code = known ? (enum awa_code)wire->code : AWA_UNKNOWN;
    awai_fail(error, code, "%s", wire->message);
    if (error != NULL) {
        error->retryable = wire->retryable != 0;
        snprintf(error->sqlstate, sizeof error->sqlstate, "%s", wire->sqlstate);
    }
    return code;
}

enum awa_code awai_out_of_memory(struct awa_error *error)
{
    return awai_fail(error, AWA_RESOURCE_EXHAUSTED, "out of memory");
}

enum awa_code awai_not_asked_for(struct awa_error *error)
{
    return awai_fail(error, AWA_INTERNAL, "the proxy sent an answer that was not asked for");
}
