/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pairing heap of what is due.
 *
 * Called on data paths, by the thread that owns the heap.
 *
 * Invariant: no member is due before its parent.
 */
#include "base/due.h"

#include <stddef.h>

#include "base/check.h"

static bool due_before(const struct due_member *a, const struct due_member *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at_ns < b->at_ns;
}

/* Joins two heaps, each without siblings. */
static struct due_member *due_join(struct due_member *a, struct due_member *b)
{
    struct due_member *top = a, *below = b;

    if (a == NULL || b == NULL)
        return a == NULL ? b : a;
    if (due_before(b, a)) {
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

static void due_alone(struct due_member *member)
{
    member->next = member->prev = NULL;
}

/* Joins siblings: in pairs from the left, then the pairs from the right. */
static struct due_member *due_join_all(struct due_member *first)
{
    struct due_member *pairs = NULL, *root = NULL;

    while (first != NULL) {
        struct due_member *a = first, *b = a->next;

        first = b == NULL ? NULL : b->next;
        due_alone(a);
        if (b != NULL)
            due_alone(b);
        a = due_join(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs != NULL) {
        struct due_member *pair = pairs;

        pairs = pair->next;
        due_alone(pair);
        root = due_join(root, pair);
    }
    return root;
}

void due_push(struct due *due, struct due_member *member)
{
    check(!member->queued);
    member->queued = true;
    member->child = NULL;
    due_alone(member);
    due->root = due_join(due->root, member);
}

void due_remove(struct due *due, struct due_member *member)
{
    struct due_member *below;

    if (!member->queued)
        return;
    below = due_join_all(member->child);
    if (due->root == member) {
        due->root = below;
    } else {
        if (member->prev->child == member)
            member->prev->child = member->next;
        else
            member->prev->next = member->next;
        if (member->next != NULL)
            member->next->prev = member->prev;
        due->root = due_join(due->root, below);
    }
    member->queued = false;
    member->child = NULL;
    due_alone(member);
}
