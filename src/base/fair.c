/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start-time fair queueing over a pairing heap, and rates.
 *
 * Called on data paths, by the thread that owns the queue; rates by any thread.
 *
 * Invariant: no member of the queue has a smaller virtual time than its parent in the heap. Virtual
 * time wraps around: two times are compared by their difference. A member that is in the queue is
 * never FAIR_LEAD_MAX ahead of it, so one that seems to be was idle for half of the numbers.
 */
#include "base/fair.h"

#include <stddef.h>

#include "base/check.h"

/* Virtual time that a page of a member of weight 1 takes. */
#define FAIR_SCALE ((uint64_t)65536)

/* 64 GiB of a member of weight 1. */
#define FAIR_LEAD_MAX ((uint64_t)1 << 40)

#define RATE_SECOND_NS ((uint64_t)1000 * 1000 * 1000)

void fair_init(struct fair *fair)
{
    *fair = (struct fair){0};
}

void fair_member_init(struct fair_member *member, uint32_t weight)
{
    check(weight >= 1 && weight <= FAIR_WEIGHT_MAX);
    *member = (struct fair_member){.weight = weight};
}

static bool fair_before(uint64_t a, uint64_t b)
{
    return a - b > UINT64_MAX / 2;
}

/* A member that was idle begins now. */
static void fair_catch_up(const struct fair *fair, struct fair_member *member)
{
    if (member->start - fair->now > FAIR_LEAD_MAX)
        member->start = fair->now;
}

/* ---- the heap ------------------------------------------------------------------------------- */

/* Joins two heaps, each without siblings; the one that was first stays in front of an equal. */
static struct fair_member *heap_join(struct fair_member *a, struct fair_member *b)
{
    struct fair_member *top = a;
    struct fair_member *below = b;

    if (a == NULL || b == NULL)
        return a == NULL ? b : a;
    if (fair_before(b->start, a->start)) {
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

static void heap_alone(struct fair_member *member)
{
    member->next = member->prev = NULL;
}

/* Joins siblings: in pairs from the left, then the pairs from the right. */
static struct fair_member *heap_join_all(struct fair_member *first)
{
    struct fair_member *pairs = NULL;
    struct fair_member *root = NULL;

    while (first != NULL) {
        struct fair_member *a = first;
        struct fair_member *b = a->next;

        first = b == NULL ? NULL : b->next;
        heap_alone(a);
        if (b != NULL)
            heap_alone(b);
        a = heap_join(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs != NULL) {
        struct fair_member *pair = pairs;

        pairs = pair->next;
        heap_alone(pair);
        root = heap_join(root, pair);
    }
    return root;
}

/* ---- the queue ------------------------------------------------------------------------------ */

void fair_push(struct fair *fair, struct fair_member *member)
{
    check(!member->queued && member->child == NULL);
    fair_catch_up(fair, member);
    member->queued = true;
    heap_alone(member);
    fair->root = heap_join(fair->root, member);
}

void fair_remove(struct fair *fair, struct fair_member *member)
{
    struct fair_member *below;

    if (!member->queued)
        return;
    below = heap_join_all(member->child);
    if (fair->root == member) {
        fair->root = below;
    } else {
        if (member->prev->child == member)
            member->prev->child = member->next;
        else
            member->prev->next = member->next;
        if (member->next != NULL)
            member->next->prev = member->prev;
        fair->root = heap_join(fair->root, below);
    }
    member->queued = false;
    member->child = NULL;
    heap_alone(member);
}

void fair_charge(struct fair *fair, struct fair_member *member, uint64_t bytes)
{
    uint64_t pages = bytes / FAIR_PAGE_BYTES + (bytes % FAIR_PAGE_BYTES != 0 || bytes == 0);
    bool queued = member->queued;

    fair_remove(fair, member);
    fair_catch_up(fair, member);
    if (fair->root == NULL || !fair_before(fair->root->start, member->start))
        fair->now = member->start; /* else it went before its turn */
    member->start += pages * FAIR_SCALE / member->weight;
    if (queued)
        fair_push(fair, member);
}

/* ---- rates ---------------------------------------------------------------------------------- */

uint64_t fair_rate_ready_ns(const struct fair_rate *rate)
{
    uint64_t at_ns = atomic_load_explicit(&rate->at_ns, memory_order_relaxed);

    return atomic_load_explicit(&rate->per_s, memory_order_relaxed) == 0 || at_ns < FAIR_BURST_NS
               ? 0
               : at_ns - FAIR_BURST_NS;
}

/* Units take their time in whole nanoseconds; what is lost by rounding is one in each command. */
void fair_rate_charge(struct fair_rate *rate, uint64_t units, uint64_t now_ns)
{
    uint64_t at_ns = atomic_load_explicit(&rate->at_ns, memory_order_relaxed);
    uint64_t per_s = atomic_load_explicit(&rate->per_s, memory_order_relaxed); /* it may change */
    uint64_t cost_ns, next_ns;

    if (per_s == 0)
        return;
    cost_ns = units / per_s * RATE_SECOND_NS + (units % per_s * RATE_SECOND_NS) / per_s;
    do
        next_ns = (at_ns < now_ns ? now_ns : at_ns) + cost_ns;
    while (!atomic_compare_exchange_weak_explicit(&rate->at_ns, &at_ns, next_ns,
                                                  memory_order_relaxed, memory_order_relaxed));
}
