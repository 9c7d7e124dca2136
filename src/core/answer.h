/* answer: what core tells a client, as plain structs. No code.
 *
 * Everything pointed to is borrowed and valid only during env->send.
 */
#ifndef CORE_ANSWER_H
#define CORE_ANSWER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/limits.h"
#include "core/job.h"

enum answer_kind {
    ANSWER_HELLO,
    ANSWER_PONG,
    ANSWER_GOODBYE,
    ANSWER_ENQUEUE,
    ANSWER_CLAIM,
    ANSWER_FINISH,
    ANSWER_RELEASE,
    ANSWER_COUNTS,
    ANSWER_HEARTBEAT,
    ANSWER_CANCEL,
    ANSWER_NOTICE,
    ANSWER_ERROR,
};

/* Numbered as in awa.proto. */
enum notice_kind { NOTICE_DRAINING = 1, NOTICE_ATTEMPT_LOST = 2 };

struct enqueue_result {
    int64_t job_id; /* 0: see err */
    const struct err *err;
};

struct finish_result {
    enum finish_status status;
    const struct err *err; /* with FINISH_INVALID and FINISH_ABORTED */
};

struct answer {
    enum answer_kind kind;
    union {
        struct {
            const uint8_t *session_id; /* SESSION_ID_BYTES */
            bool resumed;
            uint32_t grace_ms;
        } hello;
        uint32_t released;
        struct {
            const struct enqueue_result *results;
            size_t count;
        } enqueue;
        struct {
            const struct claimed_job *first; /* linked by next */
            size_t count;
        } claim;
        struct {
            const struct finish_result *results;
            size_t count;
        } finish; /* and release */
        const struct queue_counts *counts;
        struct {
            const enum heartbeat_status *statuses;
            size_t count;
        } heartbeat;
        bool cancelled;
        struct {
            enum notice_kind kind;
            struct bytes receipt; /* with NOTICE_ATTEMPT_LOST */
        } notice;
        const struct err *err;
    } of;
};

#endif
