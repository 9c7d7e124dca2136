/* Any bytes as a ClientFrame. Besides not crashing: the budget holds, what the scan lets through
 * unpacks when the budget is large, and every item can be judged. */
#include <stdlib.h>

#include "base/check.h"
#include "base/limits.h"
#include "wire/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void judge_items(const struct message *message)
{
    struct err why;
    const Awa__V1__ClientFrame *frame = message->frame;

    if (frame->request_case == AWA__V1__CLIENT_FRAME__REQUEST_ENQUEUE) {
        for (size_t i = 0; i < frame->enqueue->n_jobs; i++)
            CHECK(message_check_job(message, i, &why) <= CODE_INVALID_ARGUMENT);
    }
    if (frame->request_case == AWA__V1__CLIENT_FRAME__REQUEST_FINISH) {
        for (size_t i = 0; i < frame->finish->n_items; i++)
            CHECK(message_check_item(message, i, &why) <= CODE_INVALID_ARGUMENT);
    }
}

static enum message_verdict decode(struct bytes body, size_t budget_bytes)
{
    struct arena arena;
    struct message message;
    struct err why;

    arena_init(&arena, budget_bytes);
    enum message_verdict verdict = message_decode(&arena, body, &message, &why);
    CHECK(arena.used_bytes <= budget_bytes);
    CHECK((message.frame != NULL) == (verdict == MESSAGE_OK));
    CHECK(verdict == MESSAGE_BROKEN || message.request_id != 0);
    if (verdict == MESSAGE_OK)
        judge_items(&message);
    arena_free(&arena);
    return verdict;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct bytes body = bytes_of(data, size);
    struct scan_result scanned;
    struct err why;

    decode(body, UNPACK_BYTES_MAX);
    decode(body, size * 4);
    if (scan_frame(body, &scanned, &why) == SCAN_OK) {
        Awa__V1__ClientFrame *frame = awa__v1__client_frame__unpack(NULL, size, data);
        CHECK(frame != NULL);
        CHECK(frame->request_id == scanned.request_id);
        awa__v1__client_frame__free_unpacked(frame, NULL);
    }
    return 0;
}
