/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers of one loop: a pairing heap whose links are inside the timers, so arming takes no memory
 * and cannot fail. Start is O(1); taking the first or any other is O(log n), amortized.
 *
 * Called on the loop's thread by both back ends. Invariants: the root has no sister and no prev; a
 * timer's (at_ns, order) is never before its parent's; armed says whether it is in the heap.
 */
#include "base/check.h"
#include "loop/loop_int.h"

static bool timer_before(const struct loop_timer *a, const struct loop_timer *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

/* Joins two heaps; the later root becomes the first child of the earlier one. */
static struct loop_timer *timer_meld(struct loop_timer *a, struct loop_timer *b)
{
    if (a == NULL)
        return b;
    if (b == NULL)
        return a;
    if (timer_before(b, a)) {
        struct loop_timer *swap = a;

        a = b;
        b = swap;
    }
    b->prev = a;
    b->next = a->child;
    if (b->next != NULL)
        b->next->prev = b;
    a->child = b;
    return a;
}

/* Makes one heap of a list of sisters: melds pairs from the left, then the pairs from the right. */
static struct loop_timer *timer_meld_sisters(struct loop_timer *first)
{
    struct loop_timer *pairs = NULL;
    struct loop_timer *root = NULL;

    while (first != NULL) {
        struct loop_timer *a = first;
        struct loop_timer *b = a->next;

        first = b != NULL ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b != NULL)
            b->next = b->prev = NULL;
        a = timer_meld(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs != NULL) {
        struct loop_timer *next = pairs->next;

        pairs->next = NULL;
        root = timer_meld(root, pairs);
        pairs = next;
    }
    return root;
}

void loop_heap_insert(struct loop_timer **root, struct loop_timer *timer)
{
    check(!timer->armed);
    timer->child = timer->next = timer->prev = NULL;
    timer->armed = true;
    *root = timer_meld(*root, timer);
}

void loop_heap_remove(struct loop_timer **root, struct loop_timer *timer)
{
    struct loop_timer *rest = timer_meld_sisters(timer->child);

    check(timer->armed);
    if (timer == *root) {
        *root = rest;
    } else {
        if (timer->prev->child == timer)
            timer->prev->child = timer->next;
        else
            timer->prev->next = timer->next;
        if (timer->next != NULL)
            timer->next->prev = timer->prev;
        *root = timer_meld(*root, rest);
    }
    timer->child = timer->next = timer->prev = NULL;
    timer->armed = false;
}

void loop_timer_init(struct loop_timer *timer, void (*fire)(struct loop_timer *timer))
{
    *timer = (struct loop_timer){.fire = fire};
}

void loop_timer_start(struct loop *loop, struct loop_timer *timer, uint64_t at_ns)
{
    uint64_t now_ns = loop_now_ns(loop);

    check(loop_is_mine(loop));
    check(timer->fire != NULL);
    if (timer->armed)
        loop_heap_remove(&loop->timers, timer);
    timer->at_ns = at_ns > now_ns ? at_ns : now_ns + 1;
    timer->order = loop->timer_order++;
    loop_heap_insert(&loop->timers, timer);
    if (loop->timers == timer)
        loop_ops(loop)->timer_first(loop);
}

void loop_timer_stop(struct loop *loop, struct loop_timer *timer)
{
    check(loop_is_mine(loop));
    if (timer->armed)
        loop_heap_remove(&loop->timers, timer);
}

void loop_timers_run(struct loop *loop)
{
    while (loop->timers != NULL && loop->timers->at_ns <= loop->now_ns && !loop_stopping(loop)) {
        struct loop_timer *timer = loop->timers;

        loop_heap_remove(&loop->timers, timer);
        timer->fire(timer);
    }
}
