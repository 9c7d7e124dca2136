/* scan: see scan.h. Driven by protobuf-c's descriptors, so that a new field of awa.proto needs no
 * line here. Recursion is as deep as the message types nest, which is fixed: none of them is
 * recursive. */
#include "wire/scan.h"

#include <string.h>

#include "awa/v1/awa.pb-c.h"
#include "base/check.h"
#include "base/utf8.h"

enum {
    /* All fields of a frame together; bounds the time of a scan. A full Enqueue has 9 a job. */
    FIELDS_MAX = 32 * SCAN_ITEMS_MAX,
    KEY_BYTES_MAX = 5,
    LENGTH_BYTES_MAX = 5,
    VARINT_BYTES_MAX = 10,
    WIRE_TYPE_BITS = 3,
    REQUEST_ID_FIELD = 1,
};

/* How deep in the frame a message lies. */
enum level { LEVEL_FRAME, LEVEL_REQUEST, LEVEL_ITEM, LEVEL_OUTCOME, LEVEL_COUNT };

struct field {
    uint32_t number;
    unsigned wire_type;
    uint64_t value;       /* of a varint */
    struct bytes content; /* of a length-prefixed one */
};

struct scan {
    struct scan_result *result;
    struct err *why;
    size_t fields;
    size_t items; /* elements seen of the request's repeated field */
};

static uint64_t read_varint(struct cursor *c, size_t bytes_max)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes_max; i++) {
        uint8_t byte = cursor_u8(c);
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80)
            return value;
    }
    c->failed = true;
    return 0;
}

/* False when the bytes are no field. */
static bool read_field(struct cursor *c, struct field *field)
{
    uint64_t key = read_varint(c, KEY_BYTES_MAX);

    *field = (struct field){.number = (uint32_t)(key >> WIRE_TYPE_BITS), .wire_type = key & 7};
    if (key > UINT32_MAX || field->number == 0)
        return false;
    switch (field->wire_type) {
    case PROTOBUF_C_WIRE_TYPE_VARINT: field->value = read_varint(c, VARINT_BYTES_MAX); break;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        field->content = cursor_take(c, (size_t)read_varint(c, LENGTH_BYTES_MAX));
        break;
    case PROTOBUF_C_WIRE_TYPE_32BIT: cursor_take(c, sizeof(uint32_t)); break;
    case PROTOBUF_C_WIRE_TYPE_64BIT: cursor_take(c, sizeof(uint64_t)); break;
    default: return false; /* groups, and numbers that mean nothing */
    }
    return !c->failed;
}

static unsigned wire_type_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE: return PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_FLOAT: return PROTOBUF_C_WIRE_TYPE_32BIT;
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_DOUBLE: return PROTOBUF_C_WIRE_TYPE_64BIT;
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
    case PROTOBUF_C_TYPE_UINT32:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_BOOL:
    case PROTOBUF_C_TYPE_ENUM: break;
    }
    return PROTOBUF_C_WIRE_TYPE_VARINT;
}

static enum scan_verdict broken(struct scan *s, const char *what)
{
    err_set(s->why, CODE_INVALID_ARGUMENT, "the frame is no awa.v1.ClientFrame: %s", what);
    return SCAN_BROKEN;
}

/* A string that is no text: the fault of its item, or of the request when it lies outside any. */
static enum scan_verdict note_bad_text(struct scan *s, const ProtobufCMessageDescriptor *type,
                                       const char *field, enum level level)
{
    if (level >= LEVEL_ITEM) {
        size_t item = s->items - 1;
        s->result->faults.bits[item / CHAR_BIT] |= (uint8_t)(1U << item % CHAR_BIT);
        s->result->faults.fields[item] = field;
        return SCAN_OK;
    }
    err_set(s->why, CODE_INVALID_ARGUMENT, "%s.%s is not UTF-8, or holds a NUL", type->short_name,
            field);
    return SCAN_REFUSED;
}

/* What Hello lists holds no strings, so that it needs no bits and may be longer. */
static enum scan_verdict count_item(struct scan *s, const ProtobufCMessageDescriptor *type,
                                    const char *field)
{
    int most = type == &awa__v1__held__descriptor ? (int)HELD_RECEIPTS_MAX : (int)SCAN_ITEMS_MAX;

    if (++s->items <= (size_t)most)
        return SCAN_OK;
    err_set(s->why, CODE_INVALID_ARGUMENT, "%s.%s: more than %d", type->short_name, field, most);
    return SCAN_REFUSED;
}

static enum scan_verdict scan_message(struct scan *s, const ProtobufCMessageDescriptor *type,
                                      struct bytes body, enum level level);

static enum scan_verdict scan_field(struct scan *s, const ProtobufCMessageDescriptor *type,
                                    const struct field *field, enum level level)
{
    const ProtobufCFieldDescriptor *known =
        protobuf_c_message_descriptor_get_field(type, field->number);
    if (known == NULL)
        return SCAN_OK; /* from a newer client */
    if (field->wire_type != wire_type_of(known->type))
        return broken(s, "a field has the wrong wire type");
    if (known->label == PROTOBUF_C_LABEL_REPEATED) {
        enum scan_verdict verdict = count_item(s, type, known->name);
        if (verdict != SCAN_OK)
            return verdict;
    }
    if (known->type == PROTOBUF_C_TYPE_STRING && !utf8_valid(field->content))
        return note_bad_text(s, type, known->name, level);
    if (known->type == PROTOBUF_C_TYPE_MESSAGE)
        return scan_message(s, known->descriptor, field->content, level + 1);
    return SCAN_OK;
}

static enum scan_verdict scan_message(struct scan *s, const ProtobufCMessageDescriptor *type,
                                      struct bytes body, enum level level)
{
    struct cursor c = cursor_of(body);
    struct field field;
    enum scan_verdict verdict = SCAN_OK;

    CHECK(level < LEVEL_COUNT);
    while (verdict == SCAN_OK && cursor_left(&c) > 0) {
        if (!read_field(&c, &field))
            return broken(s, "a field is cut off or malformed");
        if (++s->fields > FIELDS_MAX) {
            err_set(s->why, CODE_INVALID_ARGUMENT, "the frame has more than %d fields", FIELDS_MAX);
            return SCAN_REFUSED;
        }
        verdict = scan_field(s, type, &field, level);
    }
    return verdict;
}

/* What the frame's own level says. */
struct outline {
    uint64_t request_id;
    struct field request;     /* number 0: none that this proxy knows */
    uint32_t unknown_request; /* 0: none */
    size_t fields;
};

static enum scan_verdict read_outline(struct scan *s, struct bytes body, struct outline *outline)
{
    const ProtobufCMessageDescriptor *type = &awa__v1__client_frame__descriptor;
    struct cursor c = cursor_of(body);
    struct field field;

    while (cursor_left(&c) > 0) {
        if (!read_field(&c, &field) || ++outline->fields > FIELDS_MAX)
            return broken(s, "a field is cut off or malformed, or there are too many");
        const ProtobufCFieldDescriptor *known =
            protobuf_c_message_descriptor_get_field(type, field.number);
        if (field.number == REQUEST_ID_FIELD) {
            if (field.wire_type != PROTOBUF_C_WIRE_TYPE_VARINT)
                return broken(s, "request_id is no number");
            outline->request_id = field.value;
        } else if (known == NULL) {
            outline->unknown_request = field.number;
        } else if (outline->request.number != 0) {
            return broken(s, "it holds two requests");
        } else {
            outline->request = field;
        }
    }
    return outline->request_id != 0 ? SCAN_OK : broken(s, "request_id is missing or 0");
}

enum scan_verdict scan_frame(struct bytes body, struct scan_result *result, struct err *why)
{
    struct scan s = {.result = result, .why = why};
    struct outline outline = {.request_id = 0};

    result->request_id = 0;
    memset(result->faults.bits, 0, sizeof result->faults.bits);
    enum scan_verdict verdict = read_outline(&s, body, &outline);
    if (verdict != SCAN_OK)
        return verdict;
    result->request_id = outline.request_id;
    if (outline.request.number != 0)
        return scan_field(&s, &awa__v1__client_frame__descriptor, &outline.request, LEVEL_FRAME);
    if (outline.unknown_request != 0)
        err_set(why, CODE_UNIMPLEMENTED, "this proxy does not know request %u of ClientFrame",
                outline.unknown_request);
    else
        err_set(why, CODE_INVALID_ARGUMENT, "the frame holds no request");
    return SCAN_REFUSED;
}
