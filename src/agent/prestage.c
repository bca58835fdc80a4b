/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/prestage.c: hints that blocks will be asked for soon: see prestage.h.
 *
 * Called by req.c and prestage_many.c on the reactor's loop, and by slot.c through the shard's
 * hint_read and hint_gone.
 *
 * Life of a hint: FREE -> agent_hint_take -> QUEUED -> prestage_run -> LOADING, with an operation
 * of its own or another's -> hint_wake -> READY -> hint_end -> FREE. A block that is in the arena
 * makes it READY at once; a get that comes first makes it LOADING with the load of the get. With
 * tier LOCAL: LOADING -> hint_write -> WRITING -> hint_written -> READY; what is in memory is not
 * loaded, and what the drive has is READY. What ends it earlier: its deadline (hint_timer),
 * agent_hint_cancel, and misses. A pin (pin.c) stays READY when it is read, and is QUEUED again
 * when its block goes. What keeps a hint from its block for a while makes it rest, QUEUED and out
 * of the line (hint_rest).
 *
 * Whose turn it is: each user of a volume (struct hint_share) has a heap of its hints, and waits in
 * the line with one link while the heap is not empty. One that cannot go on is held until the retry
 * timer or until something that it keeps is given back.
 *
 * Invariants: what was taken is in one state, and ends once: taken = sum of ended + queued +
 * loading + waiting. A slot's chain of hints (meta.hint, hint.also) has those that are READY with
 * it; it is kept while one of them keeps bytes.
 */
#include "agent/agent_int.h"

#include <stdlib.h>
#include <string.h>

#include "agent/prestage_int.h"

/* Hints that are looked at before others have their turn. */
#define HINT_RUN_MAX 32

/* How long hints rest whose server has to answer loads of others first. */
#define HINT_REST_NS ((uint64_t)500 * 1000 * 1000)

/* How soon it is looked again for what hints wait for. */
#define HINT_RETRY_NS ((uint64_t)2 * 1000 * 1000)

/* Nothing is brought to the drive for so long after its write budget refused a block. */
#define HINT_BUDGET_NS ((uint64_t)100 * 1000 * 1000)

/* ---- turns ---------------------------------------------------------------------------------- */

static void prestage_run(struct loop_msg *msg);

static void prestage_run_send(struct agent_prestage *prestage)
{
    if (prestage->run_sent || (line_first(&prestage->lines[ICMS_TIER_DRAM]) == NULL &&
                               line_first(&prestage->lines[ICMS_TIER_LOCAL]) == NULL))
        return;
    prestage->run_sent = true;
    loop_send(prestage->reactor->loop, &prestage->run, prestage_run);
}

static void prestage_retry_arm(struct agent_prestage *prestage)
{
    if (!loop_timer_armed(&prestage->retry))
        loop_timer_start(prestage->reactor->loop, &prestage->retry,
                         reactor_now_ns(prestage->reactor) + HINT_RETRY_NS);
}

static void share_hold(struct agent_prestage *prestage, struct hint_share *share)
{
    line_hold(&prestage->lines[share->tier], share->number);
    list_push(&prestage->held, &share->held_link);
    prestage_retry_arm(prestage);
}

static void share_release(struct agent_prestage *prestage, struct hint_share *share)
{
    if (list_empty(&share->held_link))
        return;
    list_remove(&share->held_link);
    line_release(&prestage->lines[share->tier], share->number);
}

static void prestage_retry(struct loop_timer *timer)
{
    struct agent_prestage *prestage = container_of(timer, struct agent_prestage, retry);
    struct list *link;

    while ((link = list_first(&prestage->held)) != NULL)
        share_release(prestage, container_of(link, struct hint_share, held_link));
    prestage_run_send(prestage);
}

/* ---- finding -------------------------------------------------------------------------------- */

static struct list *hint_key_list(const struct agent_shard *shard, const struct key *key)
{
    return &shard->reactor->prestage->keys[shm_arena_head(shard->secret, HINT_KEY_LISTS, key)];
}

static bool hint_is_for(const struct agent_hint *hint, const struct agent_shard *shard,
                        const struct key *key)
{
    return hint->shard == shard && hint->identity == shard->identity && key_equal(&hint->key, key);
}

static struct agent_hint *hint_find(const struct agent_shard *shard, const struct hint_share *share,
                                    const struct key *key)
{
    list_for_each (link, hint_key_list(shard, key)) {
        struct agent_hint *hint = container_of(link, struct agent_hint, link);

        if (hint->share == share && hint_is_for(hint, shard, key) &&
            hint->user_number == atomic_load(&hint->user->number))
            return hint;
    }
    return NULL;
}

/* ---- states --------------------------------------------------------------------------------- */

static uint64_t *hint_state_count(struct agent_hint *hint)
{
    struct agent_prestage_stats *stats = &hint->shard->prestage;

    return hint->state == HINT_QUEUED  ? &stats->queued
           : hint->state == HINT_READY ? &stats->waiting
                                       : &stats->loading;
}

static void hint_state_set(struct agent_hint *hint, enum hint_state state)
{
    if (hint->state != HINT_FREE)
        counter_add(hint_state_count(hint), -(uint64_t)1);
    hint->state = state;
    if (state != HINT_FREE)
        counter_add(hint_state_count(hint), 1);
}

static void hint_queue(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct hint_share *share = hint->share;

    hint_state_set(hint, HINT_QUEUED);
    hint->due.rank = hint->rank;
    hint->due.at_ns = hint->first_ns;
    due_push(&share->queue, &hint->due);
    if (list_empty(&share->link))
        line_push(&prestage->lines[share->tier], share->number, &share->link);
    loop_timer_start(prestage->reactor->loop, &hint->timer, hint_until_ns(hint));
    prestage_run_send(prestage);
}

static void hint_dequeue(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct hint_share *share = hint->share;

    if (hint->state != HINT_QUEUED)
        return;
    loop_timer_stop(prestage->reactor->loop, &hint->timer);
    if (!hint->due.link.queued) /* it rests */
        return;
    due_remove(&share->queue, &hint->due);
    if (due_first(&share->queue) != NULL)
        return;
    share_release(prestage, share);
    line_leave(&prestage->lines[share->tier], share->number, &share->link);
}

/* What it kept is for others of its share. */
static void hint_give_place(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;

    if (hint->kept_bytes == 0)
        return;
    agent_hint_keep_no_more(hint);
    share_release(prestage, hint->share);
    prestage_run_send(prestage);
}

/* Takes it out of its slot's chain. */
static void hint_leave_slot(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct agent_slot *meta;
    struct agent_hint *first, **from = &first;

    check(hint->state == HINT_READY || hint->state == HINT_WRITING);
    hint_give_place(hint);
    if (hint->slot == SHM_SLOT_NONE)
        return;
    meta = &hint->shard->meta[hint->slot];
    check(meta->hint != 0);
    first = &prestage->hints[meta->hint - 1];
    while (*from != hint)
        from = &(*from)->also;
    *from = hint->also;
    meta->hint = first == NULL ? 0 : (uint32_t)(first - prestage->hints) + 1;
    agent_hint_slot_set(hint->shard, hint->slot);
    hint->slot = SHM_SLOT_NONE;
}

static void hint_enter_slot(struct agent_hint *hint, uint32_t slot)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct agent_slot *meta = &hint->shard->meta[slot];

    check(hint->slot == SHM_SLOT_NONE && meta->state == AGENT_SLOT_LIVE);
    hint->slot = slot;
    hint->also = meta->hint == 0 ? NULL : &prestage->hints[meta->hint - 1];
    meta->hint = (uint32_t)(hint - prestage->hints) + 1;
}

static void hint_end(struct agent_hint *hint, enum agent_hint_end end)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct agent_shard *shard = hint->shard;

    agent_pin_give(hint);
    if (hint->state == HINT_QUEUED)
        hint_dequeue(hint);
    else if (hint->state != HINT_LOADING)
        hint_leave_slot(hint);
    loop_timer_stop(prestage->reactor->loop, &hint->timer);
    check(hint->copy.io == NULL && hint->kept_bytes == 0 && list_empty(&hint->waiter.link));
    counter_add(&shard->prestage.ended[end], 1);
    hint_state_set(hint, HINT_FREE);
    hint->share->count--;
    prestage->user_counts[hint->share->number % AGENT_MEMBERS]--;
    shard->hint_users -= hint->share->tier == ICMS_TIER_DRAM && hint->share->count == 0;
    list_remove(&hint->link);
    list_push(&prestage->free, &hint->link);
    prestage->used--;
}

static void hint_end_late(struct agent_hint *hint, uint64_t late_ns)
{
    hist_add(&hint->shard->prestage.late_ns, late_ns);
    hint_end(hint, AGENT_HINT_LATE);
}

/* It was read. */
static void hint_end_read(struct agent_hint *hint)
{
    if (hint->late_ns != 0)
        hint_end_late(hint, hint->late_ns);
    else
        hint_end(hint, AGENT_HINT_IN_TIME);
}

/* Its block will not be read in time, though it was brought for it; a pin's may have been. */
static void hint_end_wasted(struct agent_hint *hint, enum agent_hint_end end)
{
    if (hint->was_read) {
        hint_end_read(hint);
        return;
    }
    if (hint->state == HINT_READY)
        counter_add(&hint->shard->prestage.unused_bytes, hint->brought_bytes);
    hint_end(hint, end);
}

/* It has its turn again after that time. */
static void hint_rest(struct agent_hint *hint, uint64_t rest_ns)
{
    struct agent_reactor *reactor = hint->shard->reactor;

    check(hint->slot == SHM_SLOT_NONE && hint->kept_bytes == 0);
    hint_dequeue(hint);
    hint_state_set(hint, HINT_QUEUED);
    loop_timer_start(reactor->loop, &hint->timer,
                     u64_min(hint_until_ns(hint), reactor_now_ns(reactor) + rest_ns));
}

/* Its block cannot be brought now: a pin has its turn again in a while. Otherwise, and when a pin
 * is over, that is the end. */
static void hint_rest_or_end(struct agent_hint *hint, enum agent_hint_end end)
{
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor);

    if (hint->pin_ns == 0 || hint->wanted == 0 || hint->identity != hint->shard->identity ||
        agent_pin_is_over(hint, now_ns))
        hint_end_wasted(hint, end);
    else
        hint_rest(hint, AGENT_PIN_LOOK_NS);
}

/* READY: its block is asked for. A pin stays. */
static void hint_read(struct agent_hint *hint)
{
    if (hint->pin_ns == 0)
        hint_end_read(hint);
    else
        hint->was_read = true;
}

/* READY: its block is not there any more. */
static void hint_again(struct agent_hint *hint)
{
    counter_add(&hint->shard->prestage.pins_again, hint->pin_ns != 0);
    if (!hint->was_read)
        counter_add(&hint->shard->prestage.unused_bytes, hint->brought_bytes);
    hint_leave_slot(hint);
    loop_timer_stop(hint->shard->reactor->loop, &hint->timer);
    hint_queue(hint);
}

/* READY: until when its block is kept, or, a pin, is looked for. */
static void hint_keep_arm(struct agent_hint *hint)
{
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor);
    uint64_t until_ns = u64_max(hint->need_ns, now_ns) + AGENT_HINT_GRACE_NS;

    if (hint->pin_ns != 0)
        until_ns = u64_min(u64_max(hint->pin_ns, now_ns), now_ns + AGENT_PIN_LOOK_NS);
    loop_timer_start(hint->shard->reactor->loop, &hint->timer, until_ns);
}

/* It is pinned in memory, or keeps its block there as a hint, if it may. */
static void hint_keep_slot(struct agent_hint *hint)
{
    struct agent_shard *shard = hint->shard;
    uint64_t bytes = agent_shard_slot_bytes(shard, hint->slot);

    agent_pin_settle(hint, bytes);
    if (hint->pin_ns == 0 && agent_hint_may_keep(hint, bytes)) {
        agent_hint_keep(hint, bytes);
        agent_hint_kept_push(hint);
    }
    agent_hint_slot_set(shard, hint->slot);
}

/* The block is where it was to be: in this slot, or on the drive and in this slot, unless NONE. So
 * many bytes of it were brought for this hint. */
static void hint_ready(struct agent_hint *hint, uint32_t slot, uint64_t brought_bytes)
{
    struct agent_shard *shard = hint->shard;
    uint64_t now_ns = reactor_now_ns(shard->reactor);
    uint64_t asked_ns = hint->asked_ns;

    if (asked_ns != 0 && hint->pin_ns == 0 && !hint->was_read) {
        hint_end_late(hint, now_ns - asked_ns);
        return;
    }
    hint_state_set(hint, HINT_READY);
    hint->brought_bytes = brought_bytes;
    if (!hint->was_read)
        hint->late_ns = asked_ns != 0            ? u64_max(now_ns - asked_ns, 1)
                        : now_ns > hint->need_ns ? now_ns - hint->need_ns
                                                 : 0;
    hint->was_read |= asked_ns != 0;
    hint->asked_ns = 0;
    if (slot != SHM_SLOT_NONE)
        hint_enter_slot(hint, slot);
    if (hint->share->tier == ICMS_TIER_DRAM)
        hint_keep_slot(hint);
    else
        agent_pin_settle(hint, agent_pin_bytes(shard, hint->share, &hint->key, slot));
    hint_keep_arm(hint);
    if (hint->wanted == 0)
        hint_end_wasted(hint, AGENT_HINT_CANCELED);
}

static void hint_leave_write(struct agent_hint *hint)
{
    agent_tier_copy_leave(&hint->copy);
    hint->shard->reactor->prestage->drive_writes--;
}

/* A pin that is READY looks for its block. */
static void hint_look(struct agent_hint *hint)
{
    const struct agent_shard *shard = hint->shard;

    if (hint->identity != shard->identity) { /* a block of its key is another one */
        hint_end_wasted(hint, AGENT_HINT_FAILED);
        return;
    }
    if (hint->share->tier == ICMS_TIER_LOCAL && !agent_tier_has(shard, &hint->key)) {
        hint_again(hint);
        return;
    }
    if (hint->share->tier == ICMS_TIER_LOCAL)
        agent_tier_touch(shard, &hint->key);
    hint_keep_arm(hint);
}

/* LOADING: it is overdue. QUEUED, WRITING: too late, or it has rested. READY: nobody asked for it,
 * or a pin looks for its block, or is over. */
static void hint_timer(struct loop_timer *timer)
{
    struct agent_hint *hint = container_of(timer, struct agent_hint, timer);
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor);
    bool is_pin = hint->pin_ns != 0 && !agent_pin_is_over(hint, now_ns);

    if (hint->state == HINT_LOADING) {
        agent_hint_load_overdue(hint);
        prestage_run_send(hint->shard->reactor->prestage);
        return;
    }
    if (hint->state == HINT_WRITING)
        hint_leave_write(hint);
    if (hint->state == HINT_QUEUED && now_ns < hint_until_ns(hint))
        hint_queue(hint);
    else if (hint->state != HINT_READY)
        hint_end_wasted(hint, AGENT_HINT_DROPPED);
    else if (is_pin)
        hint_look(hint);
    else
        hint_end_wasted(hint, AGENT_HINT_UNUSED);
}

static void shard_hint_read(struct agent_shard *shard, uint32_t slot)
{
    uint32_t first = shard->meta[slot].hint;
    struct agent_hint *hint = first == 0 ? NULL : &shard->reactor->prestage->hints[first - 1];

    for (struct agent_hint *also; hint != NULL; hint = also) {
        also = hint->also;
        if (hint->state == HINT_READY) {
            hint_read(hint);
        } else { /* before it was on the drive */
            hint->asked_ns = reactor_now_ns(shard->reactor);
            hint_leave_slot(hint);
        }
    }
}

/* A block that was kept went for a load. One for which there was no place is loaded when there is
 * one, and kept then; so is that of a pin. */
static void shard_hint_gone(struct agent_shard *shard, uint32_t slot)
{
    struct agent_prestage *prestage = shard->reactor->prestage;
    uint64_t now_ns = reactor_now_ns(shard->reactor);

    while (shard->meta[slot].hint != 0) {
        struct agent_hint *hint = &prestage->hints[shard->meta[slot].hint - 1];

        if (hint->share->tier == ICMS_TIER_LOCAL) {
            hint_leave_slot(hint);
        } else if (hint->kept_bytes != 0 ||
                   now_ns + agent_hint_load_ns(hint) >= hint_until_ns(hint)) {
            hint_end_wasted(hint, AGENT_HINT_UNUSED);
        } else {
            hint_again(hint);
        }
    }
}

/* ---- the drive ------------------------------------------------------------------------------ */

bool agent_hint_has_tier(const struct agent *agent, uint32_t tier)
{
    return tier == ICMS_TIER_DRAM || (tier == ICMS_TIER_LOCAL && agent->tier != NULL);
}

/* The copy is over. */
static void hint_written(struct agent_tier_copy *copy, icms_err err)
{
    struct agent_hint *hint = container_of(copy, struct agent_hint, copy);
    struct agent_shard *shard = hint->shard;
    struct agent_prestage *prestage = shard->reactor->prestage;
    uint64_t brought_bytes = err == ICMS_OK ? hint->brought_bytes : 0;

    check(hint->state == HINT_WRITING);
    prestage->drive_writes--;
    prestage->drive_refused = err == ICMS_BUSY;
    if (err == ICMS_BUSY)
        prestage->drive_from_ns = reactor_now_ns(shard->reactor) + HINT_BUDGET_NS;
    loop_timer_stop(shard->reactor->loop, &hint->timer);
    hint_leave_slot(hint);
    if (hint->identity != shard->identity || (err != ICMS_OK && err != ICMS_EXISTS))
        hint_rest_or_end(hint, err == ICMS_BUSY ? AGENT_HINT_OVER_BUDGET : AGENT_HINT_FAILED);
    else
        hint_ready(hint, agent_shard_find(shard, &hint->key), brought_bytes);
    prestage_run_send(prestage);
}

/* The block is in memory: it is copied to the drive, or will be when that has a buffer. */
static void hint_write(struct agent_hint *hint, uint32_t slot)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    bool is_charged = hint->state != HINT_QUEUED; /* for its load */
    icms_err err = ICMS_OK;

    if (hint->asked_ns != 0 && hint->pin_ns == 0) {
        hint_end_late(hint, reactor_now_ns(prestage->reactor) - hint->asked_ns);
        return;
    }
    if (hint->wanted == 0) {
        hint_end_wasted(hint, AGENT_HINT_CANCELED);
        return;
    }
    hint->copy.done = hint_written;
    err = agent_tier_copy(hint->shard, slot, &hint->copy);
    if (err == ICMS_OK) {
        hint_dequeue(hint);
        hint_state_set(hint, HINT_WRITING);
        hint->brought_bytes = hint->shard->meta[slot].value_bytes;
        hint_enter_slot(hint, slot);
        prestage->drive_writes++;
        prestage->copied_bytes += hint->brought_bytes;
        line_charge(&prestage->lines[ICMS_TIER_LOCAL], hint->share->number,
                    is_charged ? 0 : hint->brought_bytes);
        loop_timer_start(prestage->reactor->loop, &hint->timer,
                         hint_until_ns(hint) + AGENT_HINT_GRACE_NS);
    } else if (err != ICMS_BUSY) {
        hint_rest_or_end(hint, AGENT_HINT_FAILED);
    } else if (hint->state != HINT_QUEUED) {
        hint_queue(hint); /* its turn finds it in memory, and the drive without a buffer */
    }
}

/* Whether one more may be begun: the drive has a buffer that no load in flight is for. */
static bool prestage_drive_takes(const struct agent_prestage *prestage)
{
    if (prestage->drive_refused && (prestage->drive_loads + prestage->drive_writes > 0 ||
                                    reactor_now_ns(prestage->reactor) < prestage->drive_from_ns))
        return false;
    return agent_tier_copies_left(prestage->reactor->agent->tier) > prestage->drive_loads;
}

/* The turn of a hint for the drive; its block is in this slot, unless NONE. False: there is a load
 * to wait for, or to begin. */
static bool hint_run_drive(struct agent_prestage *prestage, struct agent_hint *hint, uint32_t slot)
{
    struct agent_shard *shard = hint->shard;

    if (!agent_tier_is_up(shard)) {
        hint_rest_or_end(hint, AGENT_HINT_FAILED);
    } else if (agent_tier_has(shard, &hint->key)) {
        agent_tier_touch(shard, &hint->key);
        hint_dequeue(hint);
        hint_ready(hint, slot, 0);
    } else if (!prestage_drive_takes(prestage)) {
        share_hold(prestage, hint->share);
    } else if (slot != SHM_SLOT_NONE) {
        hint_write(hint, slot);
    } else {
        return false;
    }
    return true;
}

/* The block is asked for, and is not in memory: of those that are on the drive it is known now
 * whether that was of use. */
static void hint_drive_read(const struct agent_shard *shard, const struct key *key)
{
    list_for_each_safe (link, hint_key_list(shard, key)) {
        struct agent_hint *hint = container_of(link, struct agent_hint, link);

        if (hint->state != HINT_READY || hint->slot != SHM_SLOT_NONE ||
            !hint_is_for(hint, shard, key))
            continue;
        if (agent_tier_has(shard, key))
            hint_read(hint);
        else if (hint->pin_ns != 0)
            hint_again(hint);
        else
            hint_end_wasted(hint, AGENT_HINT_UNUSED);
    }
}

/* ---- loading -------------------------------------------------------------------------------- */

/* Waits for a load. */
static void hint_wait(struct agent_hint *hint, struct agent_op *op, bool is_own)
{
    hint_dequeue(hint);
    hint_state_set(hint, HINT_LOADING);
    hint->is_own = is_own;
    list_push(&op->waiters, &hint->waiter.link);
}

/* The load did not bring the block. */
static void hint_missed(struct agent_hint *hint, const struct agent_op *op)
{
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor);
    bool is_again = op->too_small || op->drop ||
                    (op->reason == ICMS_MISS_DEADLINE && op->deadline_ns < hint_until_ns(hint));

    if (hint->wanted == 0)
        hint_end_wasted(hint, AGENT_HINT_CANCELED);
    else if (is_again && now_ns < hint_until_ns(hint) && !agent_op_is_stale(op))
        hint_queue(hint);
    else if (is_again || op->reason == ICMS_MISS_DEADLINE)
        hint_end_wasted(hint, AGENT_HINT_DROPPED);
    else if (op->reason == ICMS_MISS_ABSENT || op->reason == ICMS_MISS_EVICTED)
        hint_end_wasted(hint, AGENT_HINT_ABSENT);
    else
        hint_rest_or_end(hint, AGENT_HINT_FAILED);
}

/* A load is over. */
static uint64_t hint_wake(struct agent_waiter *waiter, struct agent_op *op)
{
    struct agent_hint *hint = container_of(waiter, struct agent_hint, waiter);
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct agent_shard *shard = hint->shard;

    check(hint->state == HINT_LOADING && op != NULL);
    hint_give_place(hint);
    if (hint->is_own) {
        agent_hint_load_ended(hint, op);
        if (op->err == ICMS_OK)
            counter_add(&shard->prestage.load_bytes, op->value_bytes);
    }
    if (op->too_small)
        hint->space = op->space;
    if (op->err == ICMS_OK && !op->drop && op->slot != SHM_SLOT_NONE) {
        check(shard->meta[op->slot].state == AGENT_SLOT_LIVE);
        if (hint->share->tier == ICMS_TIER_LOCAL) {
            hint_write(hint, op->slot);
        } else {
            if (!hint->once) /* and who began the load may have said something else */
                agent_shard_once_end(shard, op->slot);
            hint_ready(hint, op->slot, hint->is_own ? op->value_bytes : 0);
        }
    } else {
        hint_missed(hint, op);
    }
    prestage_run_send(prestage);
    return 0;
}

/* Begins a load for a hint. False: there is nothing to do it with now. */
static bool hint_load(struct agent_prestage *prestage, struct agent_hint *hint)
{
    struct agent_shard *shard = hint->shard;
    bool is_for_drive = hint->share->tier == ICMS_TIER_LOCAL;
    bool is_kept = !is_for_drive && hint->pin_ns == 0;
    uint64_t space = hint->space != 0 ? hint->space : agent_shard_load_bytes(shard, &hint->key);
    uint64_t bytes = agent_shard_extent_bytes(shard, space);
    enum hint_credit credit = agent_hint_credit(hint, bytes);
    struct agent_op *op;
    uint32_t slot = SHM_SLOT_NONE;

    if (credit == HINT_CREDIT_NONE)
        return false;
    if (credit == HINT_CREDIT_OVERDUE) {
        hint_rest(hint, HINT_REST_NS);
        return true;
    }
    if (credit == HINT_CREDIT_OTHERS) {
        share_hold(prestage, hint->share);
        return true;
    }
    if (line_first(&shard->wait_slot) == NULL && (!is_kept || agent_hint_may_keep(hint, bytes)))
        slot = agent_shard_slot_take_hint(shard, space);
    if (slot == SHM_SLOT_NONE) {
        share_hold(prestage, hint->share);
        return true;
    }
    op = agent_op_new(shard, hint->user, AGENT_OP_LOAD, &hint->key, IO_CLASS_PRESTAGE);
    if (op == NULL) {
        agent_shard_slot_give(shard, slot);
        return false;
    }
    op->slot = slot;
    op->space = space;
    op->is_reload = hint->space != 0;
    op->once = hint->once;
    hint_wait(hint, op, true);
    /* a get that joins it has a timer of its own */
    op->deadline_ns = agent_hint_load_begun(hint, hint_until_ns(hint), bytes);
    if (is_kept)
        agent_hint_keep(hint, agent_shard_slot_bytes(shard, slot));
    if (!is_for_drive)
        hint_drive_read(shard, &hint->key);
    line_charge(&prestage->lines[hint->share->tier], hint->share->number, bytes);
    agent_op_start(op);
    return true;
}

/* The next hint of a share. False: none can go on now. */
static bool share_run(struct agent_prestage *prestage, struct hint_share *share)
{
    struct agent_hint *hint = container_of(due_first(&share->queue), struct agent_hint, due);
    struct agent_shard *shard = hint->shard;
    uint32_t slot;
    struct agent_op *op;

    if (hint->identity != shard->identity || !agent_shard_is_there(shard) ||
        hint->user_number != atomic_load(&hint->user->number)) {
        hint_end_wasted(hint, AGENT_HINT_FAILED);
        return true;
    }
    if (hint->pin_ns != 0 && agent_pin_is_over(hint, reactor_now_ns(shard->reactor))) {
        hint_end_wasted(hint, AGENT_HINT_DROPPED);
        return true;
    }
    if (agent_op_find(shard, &hint->key, AGENT_OP_DELETE) != NULL) {
        hint_end_wasted(hint, AGENT_HINT_ABSENT);
        return true;
    }
    slot = agent_shard_find(shard, &hint->key);
    if (share->tier == ICMS_TIER_LOCAL) {
        if (hint_run_drive(prestage, hint, slot))
            return true;
    } else if (slot != SHM_SLOT_NONE) {
        hint_dequeue(hint);
        hint_ready(hint, slot, 0);
        return true;
    }
    op = agent_op_find(shard, &hint->key, AGENT_OP_LOAD);
    if (op != NULL) {
        hint_wait(hint, op, false);
        return true;
    }
    if (reactor_now_ns(shard->reactor) + agent_hint_load_ns(hint) >= hint_until_ns(hint)) {
        hint_end_wasted(hint, AGENT_HINT_DROPPED);
        return true;
    }
    return hint_load(prestage, hint);
}

static void prestage_run(struct loop_msg *msg)
{
    struct agent_prestage *prestage = container_of(msg, struct agent_prestage, run);
    struct list *link;

    prestage->run_sent = false;
    prestage->copied_bytes = 0;
    for (int tier = 0; tier < HINT_TIERS; tier++)
        for (int i = 0; i < HINT_RUN_MAX && prestage->copied_bytes < AGENT_TAKE_BYTES &&
                        (link = line_first(&prestage->lines[tier])) != NULL;
             i++)
            if (!share_run(prestage, container_of(link, struct hint_share, link))) {
                prestage_retry_arm(prestage);
                return;
            }
    prestage_run_send(prestage);
}

/* ---- taking --------------------------------------------------------------------------------- */

static struct agent_hint *hint_new(struct agent_prestage *prestage)
{
    struct list *link = list_pop(&prestage->free);

    prestage->used++;
    if (link != NULL)
        return container_of(link, struct agent_hint, link);
    check(prestage->made < AGENT_HINTS);
    return &prestage->hints[prestage->made++];
}

/* It is pinned, or longer than before. */
static void hint_pin(struct agent_hint *hint, uint64_t until_ns, uint64_t bytes)
{
    if (hint->pin_ns != 0) {
        hint->pin_ns = u64_max(hint->pin_ns, until_ns);
        return;
    }
    agent_pin_take(hint, until_ns, bytes);
    if (hint->state != HINT_READY)
        return;
    hint_give_place(hint);
    if (hint->slot != SHM_SLOT_NONE)
        agent_hint_slot_set(hint->shard, hint->slot);
}

/* Somebody wants what there is a hint for already. If nobody did who gave a proof, it is his. */
static void hint_join(struct agent_hint *hint, uint64_t need_ns, uint32_t rank)
{
    if (hint->rank == HINT_RANK_GUEST && rank != HINT_RANK_GUEST) {
        hint->wanted = 0;
        hint->first_ns = hint->need_ns = need_ns;
    }
    hint->wanted += hint->pin_ns == 0 || hint->wanted == 0;
    hint->first_ns = u64_min(hint->first_ns, need_ns);
    hint->need_ns = u64_max(hint->need_ns, need_ns);
    hint->rank = rank < hint->rank ? rank : hint->rank;
    if (hint->state == HINT_READY)
        hint_keep_arm(hint);
    if (hint->state == HINT_WRITING)
        loop_timer_start(hint->shard->reactor->loop, &hint->timer,
                         hint_until_ns(hint) + AGENT_HINT_GRACE_NS);
    if (hint->state == HINT_READY || hint->state == HINT_WRITING) {
        if (hint->kept_bytes == 0)
            return;
        due_remove(&hint->share->kept, &hint->due);
        agent_hint_kept_push(hint);
    }
    if (hint->state != HINT_QUEUED)
        return;
    hint_dequeue(hint);
    hint_queue(hint);
}

static struct hint_share *hint_share_of(const struct agent_shard *shard,
                                        const struct agent_user_share *user, uint32_t tier)
{
    struct agent_prestage *prestage = shard->reactor->prestage;

    return &prestage->shares[tier * prestage->share_count + agent_share(shard, user)];
}

/* Why a hint is refused; NONE: it is not. hint: the one that there is, or NULL; pin_bytes: of a
 * pin, else 0. */
static enum icms_miss hint_refused(struct agent_shard *shard, const struct hint_share *share,
                                   const struct agent_hint *hint, const struct agent_wish *wish,
                                   uint64_t pin_bytes)
{
    const struct agent_prestage *prestage = shard->reactor->prestage;
    uint32_t user_count = prestage->user_counts[share->number % AGENT_MEMBERS];
    uint32_t left = AGENT_HINTS - prestage->used;
    uint32_t most = wish->guest && left > AGENT_HINTS_GUEST ? AGENT_HINTS_GUEST : left;

    if (wish->need_ns <= reactor_now_ns(shard->reactor)) {
        counter_add(&shard->prestage.passed, 1);
        return ICMS_MISS_DEADLINE;
    }
    if (hint == NULL && user_count >= most) {
        counter_add(&shard->prestage.full, 1);
        return ICMS_MISS_SHED;
    }
    if (pin_bytes != 0 && (hint == NULL || hint->pin_ns == 0) &&
        !agent_pin_fits(shard, share, pin_bytes)) {
        counter_add(&shard->prestage.pins_refused, 1);
        return ICMS_MISS_QUOTA;
    }
    return ICMS_MISS_NONE;
}

/* One that holds nothing yet. */
static struct agent_hint *hint_make(struct agent_shard *shard, struct agent_user_share *user,
                                    struct hint_share *share, const struct key *key,
                                    uint64_t need_ns, uint32_t rank)
{
    struct agent_prestage *prestage = shard->reactor->prestage;
    struct agent_hint *hint = hint_new(prestage);

    *hint = (struct agent_hint){.shard = shard,
                                .user = user,
                                .user_number = atomic_load(&user->number),
                                .share = share,
                                .key = *key,
                                .identity = shard->identity,
                                .wanted = 1,
                                .slot = SHM_SLOT_NONE,
                                .need_ns = need_ns,
                                .first_ns = need_ns,
                                .rank = rank,
                                .waiter = {.wake = hint_wake}};
    list_init(&hint->waiter.link);
    list_init(&hint->link);
    list_push(hint_key_list(shard, key), &hint->link);
    loop_timer_init(&hint->timer, hint_timer);
    shard->hint_users += share->tier == ICMS_TIER_DRAM && share->count == 0;
    share->count++;
    prestage->user_counts[share->number % AGENT_MEMBERS]++;
    return hint;
}

enum icms_miss agent_hint_take(struct agent_shard *shard, struct agent_user_share *user,
                               const struct key *key, const struct agent_wish *wish)
{
    struct hint_share *share = hint_share_of(shard, user, wish->tier);
    struct agent_hint *hint = hint_find(shard, share, key);
    uint32_t slot = agent_shard_find(shard, key);
    uint32_t rank = wish->guest ? HINT_RANK_GUEST : ICMS_PRIORITY_MAX - wish->priority;
    uint64_t now_ns = reactor_now_ns(shard->reactor), need_ns = wish->need_ns;
    uint64_t pin_bytes = wish->pin_ns == 0 ? 0 : agent_pin_bytes(shard, share, key, slot);
    enum icms_miss refused;

    check(wish->priority <= ICMS_PRIORITY_MAX && agent_hint_has_tier(shard->agent, wish->tier));
    refused = hint_refused(shard, share, hint, wish, pin_bytes);
    if (refused != ICMS_MISS_NONE)
        return refused;
    need_ns = u64_min(need_ns, now_ns + AGENT_DEADLINE_MAX_NS);
    counter_add(&shard->prestage.taken, 1);
    counter_add(&shard->prestage.ended[AGENT_HINT_JOINED], hint != NULL);
    if (hint != NULL && wish->guest && hint->rank != HINT_RANK_GUEST)
        return ICMS_MISS_NONE; /* and changes nothing of others */
    if (!wish->once && slot != SHM_SLOT_NONE && shard->meta[slot].hint != 0)
        agent_shard_once_end(shard, slot); /* others wait for it, too */
    if (hint != NULL) {
        hint->once &= wish->once;
        if (wish->pin_ns != 0)
            hint_pin(hint, now_ns + wish->pin_ns, pin_bytes);
        hint_join(hint, need_ns, rank); /* as what it is now */
        return ICMS_MISS_NONE;
    }
    hint = hint_make(shard, user, share, key, need_ns, rank);
    hint->once = wish->once;
    if (wish->pin_ns != 0)
        hint_pin(hint, now_ns + wish->pin_ns, pin_bytes);
    if (wish->tier == ICMS_TIER_DRAM && slot != SHM_SLOT_NONE)
        hint_ready(hint, slot, 0);
    else
        hint_queue(hint);
    return ICMS_MISS_NONE;
}

enum icms_miss agent_hint_cancel(struct agent_shard *shard, const struct agent_user_share *user,
                                 const struct key *key)
{
    enum icms_miss reason = ICMS_MISS_ABSENT;

    for (uint32_t tier = 0; tier < HINT_TIERS; tier++) {
        struct agent_hint *hint = hint_find(shard, hint_share_of(shard, user, tier), key);

        if (hint == NULL || hint->wanted == 0)
            continue;
        reason = ICMS_MISS_NONE;
        hint->wanted = hint->pin_ns != 0 ? 0 : hint->wanted - 1;
        if (hint->wanted == 0 && (hint->state == HINT_QUEUED || hint->state == HINT_READY))
            hint_end_wasted(hint, AGENT_HINT_CANCELED);
        else if (hint->wanted == 0)
            agent_pin_give(hint);
    }
    return reason;
}

void agent_hint_asked(struct agent_shard *shard, const struct key *key, struct agent_op *op)
{
    if (shard->reactor->prestage->used == 0)
        return;
    hint_drive_read(shard, key);
    list_for_each (link, hint_key_list(shard, key)) {
        struct agent_hint *hint = container_of(link, struct agent_hint, link);

        if (!hint_is_for(hint, shard, key))
            continue;
        if (hint->state == HINT_QUEUED)
            hint_wait(hint, op, false);
        if (hint->state == HINT_LOADING && hint->asked_ns == 0)
            hint->asked_ns = reactor_now_ns(shard->reactor);
    }
}

bool agent_hint_waits(const struct agent_shard *shard, const struct key *key)
{
    if (shard->reactor->prestage->used == 0)
        return false;
    list_for_each (link, hint_key_list(shard, key)) {
        const struct agent_hint *hint = container_of(link, struct agent_hint, link);

        if (hint->state == HINT_QUEUED && hint_is_for(hint, shard, key))
            return true;
    }
    return false;
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err agent_prestage_init(struct agent_reactor *reactor)
{
    const struct agent *agent = reactor->agent;
    uint32_t share_count = agent->volume_count * AGENT_MEMBERS;
    struct agent_prestage *prestage = calloc(1, sizeof(*prestage));

    reactor->prestage = prestage;
    if (prestage == NULL)
        return ICMS_NO_MEMORY;
    prestage->reactor = reactor;
    prestage->hints = calloc(AGENT_HINTS, sizeof(prestage->hints[0]));
    prestage->shares = calloc((size_t)HINT_TIERS * share_count, sizeof(prestage->shares[0]));
    prestage->share_count = share_count;
    if (prestage->hints == NULL || prestage->shares == NULL)
        return ICMS_NO_MEMORY;
    for (int tier = 0; tier < HINT_TIERS; tier++) {
        void *memory = malloc(line_bytes(agent->volume_count, AGENT_MEMBERS));

        if (memory == NULL)
            return ICMS_NO_MEMORY;
        prestage->line_memory[tier] = memory;
        line_init(&prestage->lines[tier], memory, agent->volume_count, AGENT_MEMBERS,
                  agent->weights);
    }
    list_init(&prestage->free);
    list_init(&prestage->held);
    for (int i = 0; i < HINT_KEY_LISTS; i++)
        list_init(&prestage->keys[i]);
    for (uint32_t i = 0; i < HINT_TIERS * share_count; i++)
        hint_share_init(&prestage->shares[i], i / share_count, i % share_count);
    loop_timer_init(&prestage->retry, prestage_retry);
    for (uint32_t i = 0; i < agent->volume_count; i++) {
        reactor->shards[i].hint_read = shard_hint_read;
        reactor->shards[i].hint_gone = shard_hint_gone;
        reactor->shards[i].pins_fit = agent_pins_fit;
    }
    return ICMS_OK;
}

void agent_prestage_fini(struct agent_reactor *reactor)
{
    struct agent_prestage *prestage = reactor->prestage;

    if (prestage == NULL)
        return;
    free(prestage->hints);
    free(prestage->shares);
    for (int tier = 0; tier < HINT_TIERS; tier++)
        free(prestage->line_memory[tier]);
    free(prestage);
    reactor->prestage = NULL;
}
