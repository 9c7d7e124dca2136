/* hash: see hash.h. */
#include "base/hash.h"

#include "base/check.h"
#include "base/mem.h"

enum { HASH_FIRST_BUCKETS = 64 };

void hash_init(struct hash *table, uint64_t seed)
{
    *table = (struct hash){.buckets = NULL, .seed = seed};
}

void hash_free(struct hash *table)
{
    mem_free(table->buckets);
    table->buckets = NULL;
    table->bucket_count = 0;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    x ^= x >> 32;
    return x;
}

uint64_t hash_of_u64(const struct hash *table, uint64_t a, uint64_t b)
{
    return mix(mix(a ^ table->seed) + b);
}

uint64_t hash_of_bytes(const struct hash *table, struct bytes key)
{
    uint64_t h = table->seed ^ key.len;
    size_t at = 0;

    for (; at + sizeof h <= key.len; at += sizeof h) {
        uint64_t word;
        memcpy(&word, key.data + at, sizeof word);
        h = mix(h + word);
    }
    for (; at < key.len; at++)
        h = mix(h + key.data[at] + 1);
    return h;
}

static struct hash_node **bucket_of(const struct hash *table, uint64_t hash)
{
    return &table->buckets[hash & (table->bucket_count - 1)];
}

static void grow(struct hash *table)
{
    struct hash old = *table;

    table->bucket_count = old.bucket_count > 0 ? old.bucket_count * 2 : HASH_FIRST_BUCKETS;
    table->buckets = mem_zalloc(table->bucket_count * sizeof(struct hash_node *));
    for (size_t i = 0; i < old.bucket_count; i++) {
        struct hash_node *node = old.buckets[i];
        while (node != NULL) {
            struct hash_node *next = node->next;
            struct hash_node **bucket = bucket_of(table, node->hash);
            node->next = *bucket;
            *bucket = node;
            node = next;
        }
    }
    mem_free(old.buckets);
}

void hash_add(struct hash *table, struct hash_node *node, uint64_t hash)
{
    if (table->count >= table->bucket_count)
        grow(table);
    struct hash_node **bucket = bucket_of(table, hash);
    node->hash = hash;
    node->next = *bucket;
    *bucket = node;
    table->count++;
}

void hash_remove(struct hash *table, struct hash_node *node)
{
    CHECK(table->count > 0);
    struct hash_node **link = bucket_of(table, node->hash);
    while (*link != node) {
        CHECK(*link != NULL);
        link = &(*link)->next;
    }
    *link = node->next;
    node->next = NULL;
    table->count--;
}

static struct hash_node *same_hash(struct hash_node *node, uint64_t hash)
{
    while (node != NULL && node->hash != hash)
        node = node->next;
    return node;
}

struct hash_node *hash_first(const struct hash *table, uint64_t hash)
{
    if (table->bucket_count == 0)
        return NULL;
    return same_hash(*bucket_of(table, hash), hash);
}

struct hash_node *hash_next(const struct hash_node *node)
{
    return same_hash(node->next, node->hash);
}
