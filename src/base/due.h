/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/due.h: what is due first.
 *
 * A heap: the member with the smallest rank is first; of those with the same rank the one with the
 * smallest time; of these any. Not thread-safe.
 */
#ifndef BASE_DUE_H
#define BASE_DUE_H

#include <stddef.h>
#include <stdint.h>

#include "base/check.h"
#include "base/heap.h"

/* A member. Embedded by its owner. */
struct due_member {
    struct heap_link link; /* in the heap                                      */
    uint64_t at_ns;        /* when it is due; set by the owner before due_push */
    uint32_t rank;         /* before that; likewise                            */
};

/* Zeroed: empty. */
struct due {
    struct heap heap; /* of due_member.link */
};

static inline bool due_before(struct heap_link *a, struct heap_link *b)
{
    const struct due_member *x = container_of(a, struct due_member, link);
    const struct due_member *y = container_of(b, struct due_member, link);

    return x->rank != y->rank ? x->rank < y->rank : x->at_ns < y->at_ns;
}

/* It must not be in the heap. */
static inline void due_push(struct due *due, struct due_member *member)
{
    heap_push(&due->heap, &member->link, due_before);
}

/* Harmless when it is not in the heap. */
static inline void due_remove(struct due *due, struct due_member *member)
{
    heap_remove(&due->heap, &member->link, due_before);
}

/* The first member, which stays; NULL: there is none. */
static inline struct due_member *due_first(const struct due *due)
{
    return due->heap.root == NULL ? NULL : container_of(due->heap.root, struct due_member, link);
}

#endif
