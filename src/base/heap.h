/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/heap.h: a pairing heap of links in its members: no memory is taken.
 *
 * Its owner says which of two members comes first; of those that are equal the one that was pushed
 * first need not. Not thread-safe.
 */
#ifndef BASE_HEAP_H
#define BASE_HEAP_H

#include <stdbool.h>

/* Embedded by a member. Zeroed: in no heap. */
struct heap_link {
    struct heap_link *child; /* its first child                          */
    struct heap_link *next;  /* its next sibling                         */
    struct heap_link *prev;  /* its previous sibling, or its parent      */
    bool queued;             /* in the heap                              */
};

/* Zeroed: empty. */
struct heap {
    struct heap_link *root; /* the first; NULL: there is none */
};

typedef bool heap_before_fn(struct heap_link *a, struct heap_link *b);

/* It must not be in the heap. before is the same in all calls for a heap. */
void heap_push(struct heap *heap, struct heap_link *link, heap_before_fn *before);

/* Harmless when it is not in the heap. */
void heap_remove(struct heap *heap, struct heap_link *link, heap_before_fn *before);

#endif
