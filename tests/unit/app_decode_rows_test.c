/* decode_rows: rows of claim() with jobs that make no sense among good ones, and rows that are none
 * of ours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "app/decode_rows.h"
#include "pg/params.h"

enum { COLUMNS = 15, JOBS = 3, NOTHING = INT32_MIN, ARENA_BYTES = 1024 * 1024 };

/* One claim batch of three good jobs; a test spoils the one in the middle. */
struct claimed {
    int64_t job_ids[JOBS], run_leases[JOBS], attempts[JOBS], max_attempts[JOBS], created_ats[JOBS];
    const char *kinds[JOBS], *args[JOBS], *traceparents[JOBS];
    int64_t places[JOBS];
};

static struct claimed good_jobs(void)
{
    return (struct claimed){.job_ids = {11, 12, 13},
                            .run_leases = {1, 2, 1},
                            .attempts = {1, 2, 1},
                            .max_attempts = {25, 25, 1},
                            .created_ats = {0, -5, 5},
                            .kinds = {"a", "b", "c"},
                            .args = {"{}", "{}", "{}"},
                            .places = {3, 1, 2}};
}

static void put_numbers(struct params *params, enum pg_type type, size_t width,
                        const int64_t *numbers)
{
    params_array_open(params, type, JOBS);
    for (size_t i = 0; i < JOBS; i++)
        if (numbers[i] == NOTHING)
            params_item_bytes(params, (struct bytes){NULL, 0});
        else
            params_item_int(params, numbers[i], width);
    params_array_close(params);
}

static void put_texts(struct params *params, enum pg_type type, const char *const *texts)
{
    params_array_open(params, type, JOBS);
    for (size_t i = 0; i < JOBS; i++)
        params_item_bytes(params,
                          texts[i] != NULL ? bytes_of_text(texts[i]) : (struct bytes){NULL, 0});
    params_array_close(params);
}

static void put_batch(struct params *params, const struct claimed *jobs)
{
    params_int(params, 1, 2); /* status */
    params_text(params, bytes_of_text("q"));
    params_int(params, 2, 2); /* priority */
    params_int(params, 7, 2); /* claim slot */
    params_int(params, 99, 8);
    put_numbers(params, PG_INT8, 8, jobs->job_ids);
    put_numbers(params, PG_INT4, 4, jobs->run_leases);
    put_numbers(params, PG_INT2, 2, jobs->attempts);
    put_numbers(params, PG_INT2, 2, jobs->max_attempts);
    put_numbers(params, PG_TIMESTAMPTZ, 8, jobs->created_ats);
    put_texts(params, PG_TEXT, jobs->kinds);
    put_texts(params, PG_JSON, jobs->args);
    params_null(params); /* metadata */
    put_texts(params, PG_TEXT, jobs->traceparents);
    put_numbers(params, PG_INT4, 4, jobs->places);
}

static PGresult *rows_of(const struct claimed *jobs)
{
    const char *values[PARAMS_MAX];
    int lens[PARAMS_MAX];
    int formats[PARAMS_MAX];
    char name[] = "c";
    PGresAttDesc columns[COLUMNS];
    PGresult *rows = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK);
    struct params params;

    for (int i = 0; i < COLUMNS; i++)
        columns[i] = (PGresAttDesc){.name = name, .format = 1};
    assert_true(PQsetResultAttrs(rows, COLUMNS, columns));
    params_init(&params);
    params_reset(&params);
    put_batch(&params, jobs);
    assert_int_equal(params.count, COLUMNS);
    params_values(&params, values, lens, formats);
    for (int i = 0; i < COLUMNS; i++)
        assert_true(
            PQsetvalue(rows, 0, i, (char *)(uintptr_t)values[i], values[i] != NULL ? lens[i] : -1));
    params_free(&params);
    return rows;
}

struct decoded {
    bool understood;
    size_t count;
    uint64_t ids[JOBS];
    size_t unreadable_count;
    struct receipt receipt; /* of the unreadable one */
    char why[128];
};

static struct decoded decode_as(enum db_op op, const struct claimed *jobs, uint32_t limit)
{
    struct db_call call = {.op = op, .args.claim = {.nonce = 77, .limit = limit}};
    struct db_reply reply = {.outcome = OUTCOME_DONE};
    struct decoded out = {.count = 0};
    PGresult *rows = rows_of(jobs);
    struct arena arena;

    arena_init(&arena, ARENA_BYTES);
    out.understood = decode_rows(&call, rows, &arena, &reply);
    if (out.understood) {
        out.count = reply.rows.claim.count;
        for (size_t i = 0; i < out.count; i++)
            out.ids[i] = reply.rows.claim.jobs[i].receipt.job_id;
        out.unreadable_count = reply.rows.claim.unreadable_count;
    }
    if (out.unreadable_count > 0) {
        const struct unreadable_job *first = reply.rows.claim.unreadable;
        assert_true(bytes_equal(first->queue, bytes_of_text("q")));
        out.receipt = first->receipt;
        strncpy(out.why, first->why, sizeof out.why - 1);
    }
    arena_free(&arena);
    PQclear(rows);
    return out;
}

static struct decoded decode(const struct claimed *jobs)
{
    return decode_as(DB_CLAIM, jobs, 10);
}

static void good_jobs_come_in_the_order_of_their_places(void **state)
{
    (void)state;
    struct claimed jobs = good_jobs();
    struct decoded out = decode(&jobs);

    assert_true(out.understood);
    assert_int_equal(out.unreadable_count, 0);
    assert_int_equal(out.count, 3);
    assert_int_equal(out.ids[0], 12);
    assert_int_equal(out.ids[1], 13);
    assert_int_equal(out.ids[2], 11);
}

/* The middle one is set apart, for this reason, with the receipt that ends it. */
static void assert_set_apart(const struct claimed *jobs, const char *why)
{
    enum db_op ops[] = {DB_CLAIM, DB_CLAIM_RESULT};

    for (size_t i = 0; i < 2; i++) {
        struct decoded out = decode_as(ops[i], jobs, JOBS);
        assert_true(out.understood);
        assert_int_equal(out.count, 2);
        assert_int_equal(out.ids[0], 13);
        assert_int_equal(out.ids[1], 11);
        assert_int_equal(out.unreadable_count, 1);
        assert_non_null(strstr(out.why, why));
        struct receipt expected = {.batch_id = 99,
                                   .nonce = 77,
                                   .job_id = 12,
                                   .run_lease = (uint32_t)jobs->run_leases[1],
                                   .index = 2,
                                   .claim_slot = 7};
        assert_true(receipt_equal(&out.receipt, &expected));
    }
}

#define ASSERT_SPOILED_BY(member, value, why)                                                      \
    do {                                                                                           \
        struct claimed jobs = good_jobs();                                                         \
        jobs.member[1] = (value);                                                                  \
        assert_set_apart(&jobs, why);                                                              \
    } while (0)

static void a_job_that_makes_no_sense_is_set_apart(void **state)
{
    (void)state;
    ASSERT_SPOILED_BY(kinds, NULL, "body cannot be read");
    ASSERT_SPOILED_BY(args, NULL, "no args");
    ASSERT_SPOILED_BY(kinds, "\xff", "not UTF-8");
    ASSERT_SPOILED_BY(traceparents, "\xc0\x80", "not UTF-8");
    ASSERT_SPOILED_BY(run_leases, -1, "run lease");
    ASSERT_SPOILED_BY(attempts, 0, "attempt");
    ASSERT_SPOILED_BY(attempts, -1, "attempt");
    ASSERT_SPOILED_BY(attempts, NOTHING, "attempt");
    ASSERT_SPOILED_BY(max_attempts, 0, "max_attempts");
    ASSERT_SPOILED_BY(max_attempts, NOTHING, "max_attempts");
    ASSERT_SPOILED_BY(created_ats, INT64_MAX, "not finite");
    ASSERT_SPOILED_BY(created_ats, INT64_MIN, "not finite");
    ASSERT_SPOILED_BY(created_ats, NOTHING, "not finite");
}

static void all_of_a_batch_may_make_no_sense(void **state)
{
    (void)state;
    struct claimed jobs = good_jobs();

    for (size_t i = 0; i < JOBS; i++)
        jobs.kinds[i] = NULL;
    struct decoded out = decode_as(DB_CLAIM, &jobs, JOBS);
    assert_true(out.understood);
    assert_int_equal(out.count, 0);
    assert_int_equal(out.unreadable_count, JOBS);
}

static void without_receipts_the_reply_is_malformed(void **state)
{
    (void)state;
    struct claimed jobs = good_jobs();

    jobs.job_ids[1] = 0;
    assert_false(decode(&jobs).understood);
    jobs.job_ids[1] = NOTHING;
    assert_false(decode(&jobs).understood);
    jobs = good_jobs();
    jobs.run_leases[1] = NOTHING;
    assert_false(decode(&jobs).understood);
    jobs = good_jobs();
    jobs.kinds[1] = NULL; /* counts as one of those that were asked for */
    assert_false(decode_as(DB_CLAIM, &jobs, JOBS - 1).understood);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_jobs_come_in_the_order_of_their_places),
        cmocka_unit_test(a_job_that_makes_no_sense_is_set_apart),
        cmocka_unit_test(all_of_a_batch_may_make_no_sense),
        cmocka_unit_test(without_receipts_the_reply_is_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
