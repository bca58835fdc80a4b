/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pairing heap. Called on data paths, by the thread that owns the heap.
 *
 * Invariant: no member comes before its parent.
 */
#include "base/heap.h"

#include <stddef.h>

#include "base/check.h"

/* Joins two heaps, each without siblings; the first stays in front of an equal. */
static struct heap_link *heap_join(struct heap_link *a, struct heap_link *b, heap_before_fn *before)
{
    struct heap_link *top = a, *below = b;

    if (a == NULL || b == NULL)
        return a == NULL ? b : a;
    if (before(b, a)) {
        top = b;
        below = a;
    }
    below->prev = top;
    below->next = top->child;
    if (below->next != NULL)
        below->next->prev = below;
    top->child = below;
    return top;
}

static void heap_alone(struct heap_link *link)
{
    link->next = link->prev = NULL;
}

/* Joins siblings: in pairs from the left, then the pairs from the right. */
static struct heap_link *heap_join_all(struct heap_link *first, heap_before_fn *before)
{
    struct heap_link *pairs = NULL, *root = NULL;

    while (first != NULL) {
        struct heap_link *a = first, *b = a->next;

        first = b == NULL ? NULL : b->next;
        heap_alone(a);
        if (b != NULL)
            heap_alone(b);
        a = heap_join(a, b, before);
        a->next = pairs;
        pairs = a;
    }
    while (pairs != NULL) {
        struct heap_link *pair = pairs;

        pairs = pair->next;
        heap_alone(pair);
        root = heap_join(root, pair, before);
    }
    return root;
}

void heap_push(struct heap *heap, struct heap_link *link, heap_before_fn *before)
{
    check(!link->queued);
    link->queued = true;
    link->child = NULL;
    heap_alone(link);
    heap->root = heap_join(heap->root, link, before);
}

void heap_remove(struct heap *heap, struct heap_link *link, heap_before_fn *before)
{
    struct heap_link *below;

    if (!link->queued)
        return;
    below = heap_join_all(link->child, before);
    if (heap->root == link) {
        heap->root = below;
    } else {
        if (link->prev->child == link)
            link->prev->child = link->next;
        else
            link->prev->next = link->next;
        if (link->next != NULL)
            link->next->prev = link->prev;
        heap->root = heap_join(heap->root, below, before);
    }
    link->queued = false;
    link->child = NULL;
    heap_alone(link);
}
