/* list: intrusive, doubly linked, counted.
 *
 * Why: an object is on exactly one list of a kind, named by its state; moving it never allocates,
 * so it cannot fail. The count lives in the head, and each node knows its head: removing a node
 * from a list that it is not on is caught instead of corrupting two counts. Invariant: node->head
 * == NULL means "on no list". A zeroed node is on no list.
 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/check.h"

#define CONTAINER_OF(pointer, type, member)                                                        \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

struct list;

struct list_node {
    struct list_node *prev;
    struct list_node *next;
    struct list *head;
};

struct list {
    struct list_node *first;
    struct list_node *last;
    size_t count;
};

static inline bool list_has(const struct list *list, const struct list_node *node)
{
    return node->head == list;
}

/* Inserts node before `before`; NULL means at the end. */
static inline void list_insert(struct list *list, struct list_node *node, struct list_node *before)
{
    CHECK(node->head == NULL);
    CHECK(before == NULL || before->head == list);
    node->head = list;
    node->next = before;
    node->prev = before != NULL ? before->prev : list->last;
    if (node->prev != NULL)
        node->prev->next = node;
    else
        list->first = node;
    if (node->next != NULL)
        node->next->prev = node;
    else
        list->last = node;
    list->count++;
}

static inline void list_push_back(struct list *list, struct list_node *node)
{
    list_insert(list, node, NULL);
}

static inline void list_push_front(struct list *list, struct list_node *node)
{
    list_insert(list, node, list->first);
}

static inline void list_remove(struct list *list, struct list_node *node)
{
    CHECK(node->head == list);
    if (node->prev != NULL)
        node->prev->next = node->next;
    else
        list->first = node->next;
    if (node->next != NULL)
        node->next->prev = node->prev;
    else
        list->last = node->prev;
    *node = (struct list_node){NULL, NULL, NULL};
    list->count--;
}

/* Takes the first node off, or returns NULL. */
static inline struct list_node *list_pop_front(struct list *list)
{
    struct list_node *node = list->first;
    if (node != NULL)
        list_remove(list, node);
    return node;
}

#endif
