/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start-time fair queueing over a heap, and rates.
 *
 * Called on data paths, by the thread that owns the queue; rates by any thread.
 *
 * Invariant: no member of the queue has a smaller virtual time than its parent in the heap. Virtual
 * time wraps around: two times are compared by their difference. A member that is in the queue is
 * never FAIR_LEAD_MAX ahead of it, so one that seems to be was idle for half of the numbers.
 */
#include "base/fair.h"

#include <stddef.h>

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

/* ---- the queue ------------------------------------------------------------------------------ */

static bool fair_is_next(struct heap_link *a, struct heap_link *b)
{
    return fair_before(container_of(a, struct fair_member, link)->start,
                       container_of(b, struct fair_member, link)->start);
}

void fair_push(struct fair *fair, struct fair_member *member)
{
    fair_catch_up(fair, member);
    heap_push(&fair->heap, &member->link, fair_is_next);
}

void fair_remove(struct fair *fair, struct fair_member *member)
{
    heap_remove(&fair->heap, &member->link, fair_is_next);
}

void fair_charge(struct fair *fair, struct fair_member *member, uint64_t bytes)
{
    uint64_t pages = bytes / FAIR_PAGE_BYTES + (bytes % FAIR_PAGE_BYTES != 0 || bytes == 0);
    bool queued = member->link.queued;
    const struct fair_member *first;

    fair_remove(fair, member);
    fair_catch_up(fair, member);
    first = fair_first(fair);
    if (first == NULL || !fair_before(first->start, member->start))
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
