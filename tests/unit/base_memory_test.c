/* arena, buf, slots, list, hash, timers: the containers everything else stands on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/slots.h"
#include "base/timers.h"

static void arena_keeps_to_its_budget(void **state)
{
    (void)state;
    struct arena arena;

    arena_init(&arena, 100000);
    assert_null(arena_alloc(&arena, 100001));
    assert_null(arena_alloc(&arena, SIZE_MAX));
    uint8_t *first = arena_alloc(&arena, 50000);
    memset(first, 7, 50000);
    for (int i = 0; i < 40; i++) {
        uint8_t *more = arena_alloc(&arena, 1001);
        assert_non_null(more);
        assert_int_equal((uintptr_t)more % 16, 0);
        memset(more, i, 1001);
    }
    assert_int_equal(first[49999], 7);
    assert_null(arena_alloc(&arena, 20000));
    assert_true(arena.used_bytes <= arena.limit_bytes);
    arena_reset(&arena);
    assert_non_null(arena_alloc(&arena, 99000));
    arena_free(&arena);
}

static void arena_may_hold_itself(void **state)
{
    (void)state;
    struct arena outside;

    arena_init(&outside, 10000);
    struct arena *inside = arena_alloc(&outside, sizeof *inside);
    *inside = outside;
    assert_non_null(arena_alloc(inside, 5000)); /* a second chunk */
    struct arena copy = *inside;
    arena_free(&copy); /* leak checkers see whether both went */
}

static void buf_moves_and_patches(void **state)
{
    (void)state;
    struct buf buf;
    uint8_t block[300];

    memset(block, 0xab, sizeof block);
    buf_init(&buf);
    for (int i = 0; i < 50; i++) {
        buf_add(&buf, block, sizeof block);
        buf_drain(&buf, 200);
    }
    assert_int_equal(buf_len(&buf), 50 * 100);
    buf_drain(&buf, buf_len(&buf) - 1);
    buf_add_be(&buf, 0x0102, 2);
    buf_add_be(&buf, 0, 4);
    buf_patch_be32(&buf, 3, 0xa1b2c3d4);
    assert_memory_equal(buf_data(&buf), "\xab\x01\x02\xa1\xb2\xc3\xd4", 7);
    buf_clear(&buf, 0);
    assert_null(buf.memory);
    buf_free(&buf);
}

static void a_handle_outlives_its_object_harmlessly(void **state)
{
    (void)state;
    struct slots slots;
    int a = 1, b = 2;

    slots_init(&slots, 2);
    handle first = slots_add(&slots, &a);
    assert_ptr_equal(slots_get(&slots, first), &a);
    slots_remove(&slots, first);
    assert_null(slots_get(&slots, first));
    handle second = slots_add(&slots, &b);
    assert_int_equal((uint32_t)second, (uint32_t)first); /* the same place */
    assert_null(slots_get(&slots, first));
    assert_ptr_equal(slots_get(&slots, second), &b);
    assert_int_not_equal(slots_add(&slots, &a), HANDLE_NONE);
    assert_int_equal(slots_add(&slots, &a), HANDLE_NONE); /* the bound */
    assert_null(slots_get(&slots, HANDLE_NONE));
    assert_null(slots_get(&slots, 0xffffffffu));
    slots_free(&slots);
}

static void list_counts(void **state)
{
    (void)state;
    struct list list = {NULL, NULL, 0};
    struct list_node nodes[3] = {{NULL, NULL, NULL}};

    list_push_back(&list, &nodes[0]);
    list_push_front(&list, &nodes[1]);
    list_insert(&list, &nodes[2], &nodes[0]);
    assert_int_equal(list.count, 3);
    assert_ptr_equal(list.first, &nodes[1]);
    assert_ptr_equal(list.first->next, &nodes[2]);
    assert_ptr_equal(list.last, &nodes[0]);
    list_remove(&list, &nodes[2]);
    assert_false(list_has(&list, &nodes[2]));
    assert_ptr_equal(list_pop_front(&list), &nodes[1]);
    assert_ptr_equal(list_pop_front(&list), &nodes[0]);
    assert_null(list_pop_front(&list));
    assert_int_equal(list.count, 0);
}

struct entry {
    struct hash_node node;
    uint64_t key;
};

static struct entry *find(const struct hash *table, uint64_t key)
{
    for (struct hash_node *node = hash_first(table, hash_of_u64(table, key, 0)); node != NULL;
         node = hash_next(node)) {
        struct entry *entry = CONTAINER_OF(node, struct entry, node);
        if (entry->key == key)
            return entry;
    }
    return NULL;
}

static void hash_finds_what_is_in_it(void **state)
{
    (void)state;
    enum { COUNT = 5000 };
    struct entry *entries = calloc(COUNT, sizeof *entries);
    struct hash table;

    hash_init(&table, 42);
    assert_null(find(&table, 1));
    for (uint64_t i = 0; i < COUNT; i++) {
        entries[i].key = i;
        hash_add(&table, &entries[i].node, hash_of_u64(&table, i, 0));
    }
    for (uint64_t i = 0; i < COUNT; i += 2)
        hash_remove(&table, &entries[i].node);
    for (uint64_t i = 0; i < COUNT; i++)
        assert_ptr_equal(find(&table, i), i % 2 == 0 ? NULL : &entries[i]);
    assert_int_equal(table.count, COUNT / 2);
    hash_free(&table);
    free(entries);
}

struct alarm {
    struct timer timer;
    uint64_t fired_at_us;
};

static void ring(struct timer *timer, uint64_t now_us)
{
    CONTAINER_OF(timer, struct alarm, timer)->fired_at_us = now_us;
}

static void timers_fire_when_due_and_not_when_stopped(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    struct alarm *alarms = calloc(COUNT, sizeof *alarms);
    struct timers timers;

    timers_init(&timers);
    for (uint64_t i = 0; i < COUNT; i++) {
        alarms[i].timer.fire = ring;
        timer_set(&timers, &alarms[i].timer, 1 + i * 7919 % COUNT);
    }
    for (size_t i = 0; i < COUNT; i += 3)
        timer_stop(&timers, &alarms[i].timer);
    timer_set(&timers, &alarms[1].timer, 5000); /* moved */
    for (uint64_t now_us = 0; timers_next_us(&timers) != TIMER_NEVER; now_us++) {
        assert_true(timers_next_us(&timers) >= now_us);
        timers_run(&timers, now_us);
    }
    for (uint64_t i = 0; i < COUNT; i++) {
        uint64_t expected = i % 3 == 0 ? 0 : i == 1 ? 5000 : 1 + i * 7919 % COUNT;
        assert_int_equal(alarms[i].fired_at_us, expected);
        assert_false(timer_is_set(&alarms[i].timer));
    }
    timers_free(&timers);
    free(alarms);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_keeps_to_its_budget),
        cmocka_unit_test(arena_may_hold_itself),
        cmocka_unit_test(buf_moves_and_patches),
        cmocka_unit_test(a_handle_outlives_its_object_harmlessly),
        cmocka_unit_test(list_counts),
        cmocka_unit_test(hash_finds_what_is_in_it),
        cmocka_unit_test(timers_fire_when_due_and_not_when_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
