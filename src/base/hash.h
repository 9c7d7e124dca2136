/* hash: an intrusive hash table; the caller hashes and compares.
 *
 * What: buckets of singly linked nodes, doubled when the load passes one. Nodes live inside the
 * caller's objects, so that adding never fails and removing never frees. Use: for (node =
 * hash_first(t, h); node; node = hash_next(node)) compare the object around node. Invariant: a node
 * is in at most one table; node->hash is what it was added with.
 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

struct hash_node {
    struct hash_node *next;
    uint64_t hash;
};

struct hash {
    struct hash_node **buckets;
    size_t bucket_count; /* a power of two, or 0 before the first add */
    size_t count;
    uint64_t seed; /* so that a peer cannot choose keys that collide */
};

void hash_init(struct hash *table, uint64_t seed);
void hash_free(struct hash *table);

uint64_t hash_of_u64(const struct hash *table, uint64_t a, uint64_t b);
uint64_t hash_of_bytes(const struct hash *table, struct bytes key);

void hash_add(struct hash *table, struct hash_node *node, uint64_t hash);
void hash_remove(struct hash *table, struct hash_node *node);

/* The first node with exactly this hash, and the next one with the same. */
struct hash_node *hash_first(const struct hash *table, uint64_t hash);
struct hash_node *hash_next(const struct hash_node *node);

#endif
