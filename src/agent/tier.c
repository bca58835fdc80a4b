/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/tier.c: the own drive under the arena, beside the pod. tier.h has the contract.
 *
 * Called by op.c (loads, removes, writers), slot.c (evictions), match.c and req.c (what it has) and
 * shard.c (volumes), on reactor 0's loop.
 *
 * Life of a load here: agent_tier_ask -> tier_read, or first in line for a buffer -> the store ->
 * tier_read_done -> op->answered; or tier_late, which answers for it: the read goes on for nobody,
 * in its buffer. Of an eviction: agent_tier_evicted -> tier_write -> tier_write_done.
 *
 * Invariants: a buffer is the store's until done, whatever timed out, and no read or write of the
 * store touches an arena. An operation is in one read, in line, in one deletion, or not here
 * (at_tier). No load finds a key whose record is being deleted.
 */
#include "agent/agent_int.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/crc.h"
#include "base/fault.h"
#include "policy/tier.h"
#include "wire/sealed.h"

static void tier_state_set(struct agent_tier *tier, enum agent_tier_state state)
{
    atomic_store_explicit(&tier->state, state, memory_order_relaxed);
}

static void tier_text(struct agent_tier *tier, const char *text)
{
    pthread_mutex_lock(&tier->text_lock);
    (void)snprintf(tier->text, sizeof(tier->text), "%s", text);
    pthread_mutex_unlock(&tier->text_lock);
}

static void tier_down(struct agent_tier *tier, const char *text)
{
    if (agent_tier_health(tier) == AGENT_TIER_DOWN)
        return;
    tier_text(tier, text);
    loop_timer_stop(tier->reactor->loop, &tier->timer);
    tier_state_set(tier, AGENT_TIER_DOWN);
    agent_events_drive_lost(tier->agent);
}

/* ---- buffers -------------------------------------------------------------------------------- */

static struct agent_tier_io *tier_io_take(struct agent_tier *tier, struct agent_shard *shard,
                                          const struct key *key)
{
    struct agent_tier_io *io = container_of(list_pop(&tier->free), struct agent_tier_io, link);

    list_push(&tier->busy, &io->link);
    io->op = NULL;
    io->shard = shard;
    io->volume = agent_tier_number(tier, shard);
    io->key = *key;
    io->copy = NULL;
    io->is_write = false;
    io->is_copy = false;
    return io;
}

static void tier_answer(struct agent_op *op, icms_err err, enum icms_miss reason);
static bool tier_read(struct agent_tier *tier, struct agent_op *op);
static void tier_forget_bad(struct agent_tier *tier, const struct agent_shard *shard,
                            const struct store_read *read);

static void tier_io_give(struct agent_tier_io *io)
{
    struct agent_tier *tier = io->tier;
    struct list *link;
    uint32_t share;

    tier->writes -= io->is_write;
    list_remove(&io->link);
    list_push(&tier->free, &io->link);
    while (!list_empty(&tier->free) && (link = line_pop(&tier->waiting, &share)) != NULL) {
        struct agent_op *next = container_of(link, struct agent_op, link);

        line_charge(&tier->waiting, share, next->space);
        if (!tier_read(tier, next))
            tier_answer(next, ICMS_DRIVE_DOWN, ICMS_MISS_DRIVE_DOWN);
    }
}

/* ---- slow ----------------------------------------------------------------------------------- */

static void tier_probe_arm(struct agent_tier *tier)
{
    uint64_t probe_ns = (uint64_t)tier->agent->opts.probe_ms * 1000000;

    loop_timer_start(tier->reactor->loop, &tier->timer,
                     reactor_now_ns(tier->reactor) + tier->hold * probe_ns);
}

static void tier_slow_begins(struct agent_tier *tier)
{
    char text[LIMIT_REASON_BYTES];
    uint64_t now_ns = reactor_now_ns(tier->reactor);

    (void)snprintf(text, sizeof(text), "%d reads in a row took longer than a load may wait for it",
                   AGENT_TIER_LATE_MAX);
    tier_text(tier, text);
    if (tier->recovered_ns != 0 && now_ns - tier->recovered_ns < AGENT_TIER_AGAIN_NS)
        tier->hold = (uint32_t)u64_min(2 * (uint64_t)tier->hold, AGENT_TIER_HOLD_MAX);
    else
        tier->hold = 1;
    counter_add(&tier->slow_total, 1);
    tier_state_set(tier, AGENT_TIER_SLOW);
    tier_probe_arm(tier);
}

static void tier_probe_done(struct store_probe *probe)
{
    struct agent_tier *tier = container_of(probe, struct agent_tier, probe);
    uint64_t now_ns = reactor_now_ns(tier->reactor);

    tier->is_probing = false;
    if (agent_tier_health(tier) != AGENT_TIER_SLOW)
        return;
    if (probe->err == ICMS_OK && now_ns - tier->probe_ns < AGENT_TIER_WAIT_NS) {
        tier->late = 0;
        tier->recovered_ns = now_ns;
        estimate_forget(&tier->estimate);
        tier_state_set(tier, AGENT_TIER_UP);
    } else {
        tier_probe_arm(tier);
    }
}

static void tier_probe(struct loop_timer *timer)
{
    struct agent_tier *tier = container_of(timer, struct agent_tier, timer);

    check(!tier->is_probing);
    tier->probe_ns = reactor_now_ns(tier->reactor);
    tier->probe.done = tier_probe_done;
    tier->is_probing = store_probe(tier->store, &tier->probe) == ICMS_OK;
    if (!tier->is_probing)
        tier_down(tier, "the drive failed");
}

/* A read was not over in its time. */
static void tier_was_late(struct agent_tier *tier, uint64_t begun_ns)
{
    if (agent_reactor_stalled(tier->reactor, begun_ns) || agent_tier_health(tier) != AGENT_TIER_UP)
        return;
    if (++tier->late >= AGENT_TIER_LATE_MAX)
        tier_slow_begins(tier);
}

/* ---- loads ---------------------------------------------------------------------------------- */

static void tier_answer(struct agent_op *op, icms_err err, enum icms_miss reason)
{
    loop_timer_stop(op->shard->reactor->loop, &op->timer);
    op->own = NULL;
    op->err = err;
    op->reason = reason;
    op->answered(op);
}

/* Copies what was read into the slot, or the memory of a request, and verifies the trailer in that
 * pass. */
static icms_err tier_deliver(struct agent_op *op, const struct store_read *read)
{
    struct agent_shard *shard = op->shard;
    const struct sealed_place place = agent_shard_sealed_place(shard, &op->key);
    uint64_t plain = read->value_bytes - (shard->spec.sealed ? LIMIT_TRAILER_BYTES : 0);
    uint8_t *to;
    uint32_t crc;

    op->value_bytes = read->value_bytes;
    if (op->direct != NULL)
        return agent_direct_deliver(op, read);
    if (read->value_bytes > op->space)
        return ICMS_VALUE_SIZE;
    to = agent_shard_memory(shard, op->slot);
    if (!shard->spec.sealed) {
        memcpy(to, read->value, read->value_bytes);
        return ICMS_OK;
    }
    if (read->value_bytes <= LIMIT_TRAILER_BYTES)
        return ICMS_CORRUPT;
    crc = crc32c_copy(0, to, read->value, plain);
    memcpy(to + plain, read->value + plain, LIMIT_TRAILER_BYTES);
    if (fault_hit("agent.tier"))
        crc++;
    return sealed_trailer_check(&place, (uint32_t)plain, crc, to + plain) == ICMS_CORRUPT
               ? ICMS_CORRUPT
               : ICMS_OK; /* of another version: who asked decides */
}

static void tier_read_done(struct store_read *read)
{
    struct agent_tier_io *io = container_of(read, struct agent_tier_io, u.read);
    struct agent_tier *tier = io->tier;
    struct agent_op *op = io->op;
    icms_err err = read->err;
    uint64_t error;

    error = estimate_ended(&tier->estimate, &io->load,
                           err == ICMS_OK ? ESTIMATE_CAME : ESTIMATE_NOTHING, read->value_bytes,
                           reactor_now_ns(tier->reactor));
    if (error != ESTIMATE_UNKNOWN)
        hist_add(&tier->estimate_error, error);
    if (op == NULL) { /* late */
        agent_reading_end(&io->reading, read, ICMS_DEADLINE);
        tier_io_give(io);
        return;
    }
    tier->late = 0;
    if (err == ICMS_OK)
        err = tier_deliver(op, read);
    agent_reading_end(&io->reading, read, err);
    if (err == ICMS_OK) {
        counter_add(&tier->promoted, 1);
        counter_add(&tier->promoted_bytes, read->value_bytes);
    } else if (err != ICMS_VALUE_SIZE) {
        counter_add(&tier->failed_reads, 1);
    }
    if (err == ICMS_CORRUPT) {
        counter_add(&op->shard->checksum_errors, 1);
        tier_forget_bad(tier, op->shard, read);
    }
    tier_io_give(io);
    tier_answer(op, err, ICMS_MISS_NONE);
}

/* How long the drive may take for a load: part of the time that is left, when the pod can be asked
 * after that. */
static uint64_t tier_wait_until(const struct agent_tier *tier, const struct agent_op *op)
{
    uint64_t now_ns = reactor_now_ns(tier->reactor), part_ns;

    if (!agent_tier_is_spare(op->shard, &op->key) || op->deadline_ns <= now_ns)
        return op->deadline_ns;
    part_ns = (op->deadline_ns - now_ns) / AGENT_TIER_SHARE;
    return now_ns + u64_min(part_ns, AGENT_TIER_WAIT_NS);
}

/* A read by another way took too long: the loop reads, in a time of its own, and the drive is not
 * to blame. */
static bool tier_read_left(const struct agent_tier *tier, struct agent_op *op)
{
    uint64_t now_ns = reactor_now_ns(tier->reactor);

    if (!agent_reading_leave(&op->own->reading) || now_ns >= op->deadline_ns)
        return false;
    op->own->begun_ns = now_ns;
    loop_timer_start(tier->reactor->loop, &op->timer, tier_wait_until(tier, op));
    return true;
}

/* It took too long, for a buffer or for the drive. */
static void tier_late(struct loop_timer *timer)
{
    struct agent_op *op = container_of(timer, struct agent_op, timer);
    struct agent_tier *tier = op->shard->agent->tier;

    if (op->kind == AGENT_OP_STORE) {
        op->own->op = NULL;
        op->left_tier = true;
        tier_answer(op, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
        return;
    }
    if (op->kind == AGENT_OP_DELETE || op->kind == AGENT_OP_FLUSH) {
        op->forget->op = NULL;
        op->forget = NULL;
        tier_answer(op, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
        return;
    }
    if (op->own == NULL) {
        line_leave(&tier->waiting, agent_share(op->shard, op->user), &op->link);
    } else {
        if (tier_read_left(tier, op))
            return;
        tier_was_late(tier, op->own->begun_ns);
        if (reactor_now_ns(tier->reactor) < op->deadline_ns &&
            !agent_tier_is_spare(op->shard, &op->key)) {
            loop_timer_start(tier->reactor->loop, timer, op->deadline_ns);
            return;
        }
        op->own->op = NULL;
    }
    counter_add(&tier->given_up, 1);
    tier_answer(op, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
}

static bool tier_instead(struct store_read *read, int fd, uint64_t offset, uint32_t bytes)
{
    struct agent_tier_io *io = container_of(read, struct agent_tier_io, u.read);

    return agent_reading_begin(&io->reading, io->op->direct, read, fd, offset, bytes);
}

/* There is a buffer. False: the drive refused. */
static bool tier_read(struct agent_tier *tier, struct agent_op *op)
{
    struct agent_tier_io *io = tier_io_take(tier, op->shard, &op->key);

    io->begun_ns = reactor_now_ns(tier->reactor);
    io->u.read = (struct store_read){.volume = io->volume,
                                     .key = op->key,
                                     .memory = io->buffer,
                                     .memory_bytes = tier->buffer_bytes,
                                     .done = tier_read_done};
    io->op = op;
    if (op->direct != NULL)
        io->u.read.instead = tier_instead;
    if (io->volume == AGENT_TIER_NO_NUMBER || store_read(tier->store, &io->u.read) != ICMS_OK) {
        list_remove(&io->link);
        list_push(&tier->free, &io->link);
        return false;
    }
    estimate_begun(&tier->estimate, &io->load, agent_tier_bytes(op->shard, &op->key), io->begun_ns);
    op->own = io;
    loop_timer_stop(tier->reactor->loop, &op->timer);
    loop_timer_start(tier->reactor->loop, &op->timer, tier_wait_until(tier, op));
    return true;
}

static bool tier_ask_load(struct agent_tier *tier, struct agent_op *op)
{
    if (!agent_tier_has(op->shard, &op->key))
        return false;
    if (list_empty(&tier->free) && agent_tier_is_spare(op->shard, &op->key)) {
        counter_add(&tier->passed, 1);
        return false;
    }
    loop_timer_init(&op->timer, tier_late);
    if (!list_empty(&tier->free))
        return tier_read(tier, op);
    line_push(&tier->waiting, agent_share(op->shard, op->user), &op->link);
    loop_timer_start(tier->reactor->loop, &op->timer, op->deadline_ns);
    return true;
}

/* ---- evictions ------------------------------------------------------------------------------ */

/* Half of its time, for what has the pod after that. */
static uint64_t tier_half_of(const struct agent_tier *tier, const struct agent_op *op)
{
    uint64_t now_ns = reactor_now_ns(tier->reactor);

    return op->deadline_ns > now_ns ? now_ns + (op->deadline_ns - now_ns) / 2 : now_ns;
}

/* A hint's write is over. */
static void tier_copied(struct agent_tier_io *io, icms_err err)
{
    struct agent_tier *tier = io->tier;
    struct agent_tier_copy *copy = io->copy;

    if (err == ICMS_OK) {
        counter_add(&tier->prestaged, 1);
        counter_add(&tier->prestaged_bytes, io->bytes);
    }
    tier_io_give(io);
    if (copy == NULL)
        return;
    copy->io = NULL;
    copy->done(copy, err);
}

static void tier_write_done(struct store_write *write)
{
    struct agent_tier_io *io = container_of(write, struct agent_tier_io, u.write);
    struct agent_tier *tier = io->tier;
    struct agent_op *op = io->op;
    icms_err err = write->err;

    if (io->is_copy) {
        tier_copied(io, err);
        return;
    }
    if (op != NULL && err == ICMS_OK) {
        counter_add(&tier->stored, 1);
        counter_add(&tier->stored_bytes, io->bytes);
    } else if (err == ICMS_OK) {
        counter_add(&tier->demoted, 1);
        counter_add(&tier->demoted_bytes, io->bytes);
    } else if (err == ICMS_BUSY) {
        counter_add(&tier->refused, 1);
    } else if (err == ICMS_EXISTS) {
        counter_add(&tier->kept, 1);
    } else {
        counter_add(&tier->failed_writes, 1);
    }
    tier_io_give(io); /* it may be a read now */
    if (op != NULL)
        tier_answer(op, err, ICMS_MISS_NONE);
}

/* Whether there is a buffer for one more: loads come first. */
static bool tier_may_write(const struct agent_tier *tier)
{
    return tier->writes < tier->io_count / 2 && !list_empty(&tier->free) &&
           line_first(&tier->waiting) == NULL;
}

/* Writes what is in a slot, of a store (op) or of what is evicted (NULL). NULL: the drive refused.
 */
static struct agent_tier_io *tier_write(struct agent_tier *tier, struct agent_shard *shard,
                                        uint32_t slot, const struct key *key, uint32_t stored_bytes,
                                        struct agent_op *op)
{
    struct agent_tier_io *io = tier_io_take(tier, shard, key);
    bool if_absent = op == NULL || op->if_absent;

    io->bytes = stored_bytes;
    memcpy(io->buffer + STORE_HEADER_BYTES, agent_shard_memory(shard, slot), io->bytes);
    io->u.write = (struct store_write){.volume = io->volume,
                                       .key = *key,
                                       .memory = io->buffer,
                                       .value_bytes = io->bytes,
                                       .if_absent = if_absent,
                                       .done = tier_write_done};
    if (store_write(tier->store, &io->u.write) != ICMS_OK) {
        counter_add(&tier->failed_writes, 1);
        list_remove(&io->link);
        list_push(&tier->free, &io->link);
        return NULL;
    }
    io->is_write = true;
    tier->writes++;
    io->op = op;
    return io;
}

static bool tier_ask_store(struct agent_tier *tier, struct agent_op *op)
{
    if (op->moves || !agent_tier_takes(op->shard, &op->key) || !tier_may_write(tier))
        return false;
    op->own = tier_write(tier, op->shard, op->slot, &op->key, op->stored_bytes, op);
    if (op->own == NULL)
        return false;
    loop_timer_init(&op->timer, tier_late);
    loop_timer_start(tier->reactor->loop, &op->timer, tier_half_of(tier, op));
    return true;
}

void agent_tier_evicted(struct agent_shard *shard, uint32_t slot)
{
    struct agent_tier *tier = shard->agent->tier;
    const struct agent_slot *meta = &shard->meta[slot];
    enum policy_evicted what;
    uint32_t volume;
    bool is_there;

    /* with an odd identity the block is of the UUID that goes */
    if (tier == NULL || agent_tier_health(tier) != AGENT_TIER_UP || shard->identity % 2 != 0)
        return;
    volume = agent_tier_number(tier, shard);
    if (volume == AGENT_TIER_NO_NUMBER)
        return;
    is_there = store_exists(tier->store, volume, &meta->key, NULL);
    what = policy_evicted_to(meta->was_read && !meta->once, is_there, tier->share > 0);
    if (what == POLICY_EVICTED_TOUCH)
        store_touch(tier->store, volume, &meta->key);
    if (is_there) {
        counter_add(&tier->kept, 1);
    } else if (what == POLICY_EVICTED_LEAVE) {
        counter_add(&tier->unread, 1);
    } else if (!tier_may_write(tier)) {
        counter_add(&tier->shed, 1);
    } else {
        (void)tier_write(tier, shard, slot, &meta->key,
                         meta->value_bytes + (shard->spec.sealed ? LIMIT_TRAILER_BYTES : 0), NULL);
    }
}

/* ---- hints ---------------------------------------------------------------------------------- */

bool agent_tier_is_up(const struct agent_shard *shard)
{
    const struct agent_tier *tier = shard->agent->tier;

    return tier != NULL && agent_tier_health(tier) == AGENT_TIER_UP &&
           agent_tier_number(tier, shard) != AGENT_TIER_NO_NUMBER;
}

uint64_t agent_tier_bytes_max(const struct agent_tier *tier)
{
    struct store_stats store = {0};

    if (tier->store != NULL)
        store_stats(tier->store, &store);
    return store.capacity_bytes;
}

uint32_t agent_tier_copies_left(const struct agent_tier *tier)
{
    return tier_may_write(tier) ? tier->io_count / 2 - tier->writes : 0;
}

icms_err agent_tier_copy(struct agent_shard *shard, uint32_t slot, struct agent_tier_copy *copy)
{
    struct agent_tier *tier = shard->agent->tier;
    const struct agent_slot *meta = &shard->meta[slot];
    uint32_t stored_bytes = meta->value_bytes + (shard->spec.sealed ? LIMIT_TRAILER_BYTES : 0);

    check(meta->state == AGENT_SLOT_LIVE && copy->io == NULL);
    if (!agent_tier_is_up(shard))
        return ICMS_DRIVE_DOWN;
    if (!tier_may_write(tier))
        return ICMS_BUSY;
    copy->io = tier_write(tier, shard, slot, &meta->key, stored_bytes, NULL);
    if (copy->io == NULL)
        return ICMS_DRIVE_DOWN;
    copy->io->is_copy = true;
    copy->io->copy = copy;
    return ICMS_OK;
}

void agent_tier_copy_leave(struct agent_tier_copy *copy)
{
    if (copy->io != NULL)
        copy->io->copy = NULL;
    copy->io = NULL;
}

void agent_tier_touch(const struct agent_shard *shard, const struct key *key)
{
    struct agent_tier *tier = shard->agent->tier;

    store_touch(tier->store, agent_tier_number(tier, shard), key);
}

/* ---- writers -------------------------------------------------------------------------------- */

static void tier_end_go_on(struct agent_tier *tier);

/* Stores may have to wait for an entry, and none came back for a long time. */
static void tier_forgets_stuck(struct loop_timer *timer)
{
    struct agent_tier *tier = container_of(timer, struct agent_tier, forgets_timer);

    tier_down(tier, "it does not answer deletions, so it could return what was replaced");
    agent_reactor_wake(tier->reactor);
}

static void tier_forgets_watch(struct agent_tier *tier)
{
    if (tier->forgets_left <= AGENT_OPS_OTHERS && !loop_timer_armed(&tier->forgets_timer))
        loop_timer_start(tier->reactor->loop, &tier->forgets_timer,
                         reactor_now_ns(tier->reactor) + AGENT_TIER_FORGET_NS);
}

static struct agent_tier_forget *tier_forget_take(struct agent_tier *tier)
{
    struct list *link = list_pop(&tier->forgets_free);

    check(link != NULL && tier->forgets_left > 0); /* agent_tier_may_begin */
    tier->forgets_left--;
    tier_forgets_watch(tier);
    return container_of(link, struct agent_tier_forget, link);
}

static void tier_forget_put(struct agent_tier_forget *forget)
{
    list_push(&forget->tier->forgets_free, &forget->link);
    forget->tier->forgets_left++;
}

/* It is over, however that went. */
static void tier_forget_give(struct agent_tier_forget *forget, icms_err err)
{
    struct agent_op *op = forget->op;

    forget->op = NULL;
    list_remove(&forget->link);
    tier_forget_put(forget);
    loop_timer_stop(forget->tier->reactor->loop, &forget->tier->forgets_timer);
    tier_forgets_watch(forget->tier);
    agent_reactor_wake(forget->tier->reactor);
    if (op != NULL) {
        op->forget = NULL;
        tier_answer(op, err, err == ICMS_MISS ? ICMS_MISS_ABSENT : ICMS_MISS_NONE);
    }
    tier_end_go_on(forget->tier);
}

static void tier_forget_done(struct store_delete *delete)
{
    struct agent_tier_forget *forget = container_of(delete, struct agent_tier_forget, delete);

    if (delete->err == ICMS_OK)
        counter_add(&forget->tier->forgotten, 1);
    else if (delete->err != ICMS_MISS)
        tier_down(forget->tier, "it did not delete a block, so it could return what was replaced");
    tier_forget_give(forget, delete->err);
}

/* Whether a record of the key may be there, or come there, apart from what its health is. */
static bool tier_may_hold(const struct agent_tier *tier, uint32_t volume, const struct key *key)
{
    if (volume == AGENT_TIER_NO_NUMBER)
        return false;
    if (store_record_now(tier->store, volume, key) != 0) /* also a damaged one */
        return true;
    list_for_each (link, &tier->busy) {
        const struct agent_tier_io *io = container_of(link, struct agent_tier_io, link);

        if (io->is_write && io->volume == volume && key_equal(&io->key, key))
            return true;
    }
    return false;
}

/* Deletes its record, or only this one unless 0, if there can be one: false, there is none. */
static bool tier_forget(struct agent_tier *tier, const struct agent_shard *shard,
                        const struct key *key, uint64_t record, struct agent_op *op)
{
    uint32_t volume = agent_tier_number(tier, shard);
    struct agent_tier_forget *forget;

    if (agent_tier_health(tier) == AGENT_TIER_DOWN || !tier_may_hold(tier, volume, key))
        return false;
    forget = tier_forget_take(tier);
    forget->op = op;
    forget->delete = (struct store_delete){
        .volume = volume, .key = *key, .only_record = record, .done = tier_forget_done};
    if (store_delete(tier->store, &forget->delete) != ICMS_OK) {
        tier_forget_put(forget);
        tier_down(tier, "the drive failed");
        return false;
    }
    list_push(&tier->forgets_busy, &forget->link);
    if (op != NULL)
        op->forget = forget;
    return true;
}

void agent_tier_forget(struct agent_shard *shard, const struct key *key)
{
    if (shard->agent->tier != NULL)
        (void)tier_forget(shard->agent->tier, shard, key, 0, NULL);
}

/* A record that was found bad, and no other one of its key. It is none of those that stores and
 * removes are sure of; without one it is found again. */
static void tier_forget_bad(struct agent_tier *tier, const struct agent_shard *shard,
                            const struct store_read *read)
{
    if (tier->forgets_left > tier->reactor->ops_used[IO_CLASS_STORE])
        (void)tier_forget(tier, shard, &read->key, read->record, NULL);
}

static bool tier_ask_delete(struct agent_tier *tier, struct agent_op *op)
{
    if (op->record != 0 || !tier_forget(tier, op->shard, &op->key, 0, op))
        return false;
    loop_timer_init(&op->timer, tier_late);
    loop_timer_start(tier->reactor->loop, &op->timer, tier_half_of(tier, op));
    return true;
}

static void tier_flush_done(struct store_flush *flush)
{
    tier_forget_give(container_of(flush, struct agent_tier_forget, flush), flush->err);
}

static void tier_flush_failed(struct loop_msg *msg)
{
    tier_answer(container_of(msg, struct agent_op, msg), ICMS_DRIVE_DOWN, ICMS_MISS_DRIVE_DOWN);
}

/* What was stored here and not in the pod is flushed here. What a drive has that failed is lost,
 * which the flush says. */
static bool tier_ask_flush(struct agent_tier *tier, struct agent_op *op)
{
    struct agent_tier_forget *forget;

    if (!op->own_dirty)
        return false;
    loop_timer_init(&op->timer, tier_late);
    if (agent_tier_health(tier) == AGENT_TIER_DOWN) {
        loop_send(tier->reactor->loop, &op->msg, tier_flush_failed);
        return true;
    }
    forget = tier_forget_take(tier);
    forget->delete = (struct store_delete){.volume = AGENT_TIER_NO_NUMBER};
    forget->flush = (struct store_flush){.done = tier_flush_done};
    if (store_flush(tier->store, &forget->flush) != ICMS_OK) {
        tier_forget_put(forget);
        loop_send(tier->reactor->loop, &op->msg, tier_flush_failed);
        return true;
    }
    forget->op = op;
    op->forget = forget;
    list_push(&tier->forgets_busy, &forget->link);
    loop_timer_start(tier->reactor->loop, &op->timer, tier_half_of(tier, op));
    return true;
}

bool agent_tier_ask(struct agent_op *op)
{
    struct agent_tier *tier = op->shard->agent->tier;

    if (tier == NULL || agent_op_is_stale(op))
        return false;
    op->at_tier = (op->kind == AGENT_OP_LOAD && tier_ask_load(tier, op)) ||
                  (op->kind == AGENT_OP_STORE && tier_ask_store(tier, op)) ||
                  (op->kind == AGENT_OP_DELETE && tier_ask_delete(tier, op)) ||
                  (op->kind == AGENT_OP_FLUSH && tier_ask_flush(tier, op));
    return op->at_tier;
}

/* ---- volumes -------------------------------------------------------------------------------- */

/* The number of a UUID in the store, which has it from now on; NONE, with a sentence. */
static uint32_t tier_volume_begin(struct agent_tier *tier, const struct volume_spec *spec,
                                  struct err_why *why)
{
    uint32_t number = 0;

    while (number < tier->uuid_count && !uuid_equal(&tier->uuids[number], &spec->uuid))
        number++;
    if (number == AGENT_TIER_VOLUMES) {
        (void)err_set(why, ICMS_LIMIT, "volumes had %d UUIDs since the start: restart the agent",
                      AGENT_TIER_VOLUMES);
        return AGENT_TIER_NO_NUMBER;
    }
    if (store_volume_begin(tier->store, number, &spec->uuid, why) != ICMS_OK ||
        store_volume_limit(tier->store, number, spec->quota_bytes, NULL, why) != ICMS_OK)
        return AGENT_TIER_NO_NUMBER;
    tier->uuids[number] = spec->uuid;
    if (number == tier->uuid_count)
        tier->uuid_count++;
    return number;
}

/* Whether another volume has the number by now: their UUIDs changed places. */
static bool tier_number_is_used(const struct agent_tier *tier, uint32_t number, uint32_t but)
{
    for (uint32_t i = 0; i < tier->agent->volume_count; i++)
        if (i != but && atomic_load_explicit(&tier->numbers[i], memory_order_relaxed) == number)
            return true;
    return false;
}

void agent_tier_volume_set(struct agent_shard *shard)
{
    struct agent_tier *tier = shard->agent->tier;
    struct err_why why = {""};
    uint32_t number;

    if (tier == NULL || tier->store == NULL)
        return;
    number = agent_tier_number(tier, shard);
    if (number != AGENT_TIER_NO_NUMBER && !tier_number_is_used(tier, number, shard->number))
        store_volume_retire(tier->store, number);
    number = uuid_is_nil(&shard->spec.uuid) ? AGENT_TIER_NO_NUMBER
                                            : tier_volume_begin(tier, &shard->spec, &why);
    atomic_store_explicit(&tier->numbers[shard->number], number, memory_order_relaxed);
    if (why.text[0] == '\0')
        return;
    tier->missed = true;
    tier_text(tier, why.text);
}

/* ---- the end -------------------------------------------------------------------------------- */

static void tier_ended(struct agent_tier *tier)
{
    atomic_store_explicit(&tier->ended, true, memory_order_release);
}

static void tier_end_noted(struct store_note *note)
{
    tier_ended(container_of(note, struct agent_tier, end_note));
}

static void tier_end_flushed(struct store_flush *flush)
{
    struct agent_tier *tier = container_of(flush, struct agent_tier, end_flush);

    tier->note.state = le64_of(AGENT_TIER_NOTE_CLEAN);
    tier->end_note = (struct store_note){.bytes = &tier->note, .done = tier_end_noted};
    if (flush->err != ICMS_OK || tier->missed || agent_tier_health(tier) == AGENT_TIER_DOWN ||
        store_note_put(tier->store, &tier->end_note) != ICMS_OK)
        tier_ended(tier);
}

static void tier_end_go_on(struct agent_tier *tier)
{
    if (!tier->ending || !list_empty(&tier->forgets_busy))
        return;
    tier->ending = false;
    tier->end_flush = (struct store_flush){.done = tier_end_flushed};
    if (agent_tier_health(tier) == AGENT_TIER_DOWN ||
        store_flush(tier->store, &tier->end_flush) != ICMS_OK)
        tier_ended(tier);
}

static void tier_end_run(struct loop_msg *msg)
{
    struct agent_tier *tier = container_of(msg, struct agent_tier, end);

    /* A request that was taken before agent_drain said that none is taken any more. */
    if (!agent_is_quiet(tier->agent)) {
        atomic_store_explicit(&tier->end_sent, false, memory_order_release);
        return;
    }
    tier->ending = true;
    tier_end_go_on(tier);
}

bool agent_tier_end(struct agent_tier *tier)
{
    if (tier == NULL || tier->store == NULL)
        return true;
    if (!atomic_exchange(&tier->end_sent, true))
        loop_send(tier->reactor->loop, &tier->end, tier_end_run);
    return atomic_load_explicit(&tier->ended, memory_order_acquire);
}

/* ---- life ----------------------------------------------------------------------------------- */

static void tier_store_down(void *arg)
{
    tier_down(arg, "the drive failed");
}

static icms_err tier_buffers(struct agent_tier *tier, struct err_why *why)
{
    uint64_t bytes = tier->io_count * tier->buffer_bytes + LIMIT_DISK_ALIGN;
    icms_err err = loop_region_new(tier->agent->env, "icms-tier", bytes, false, why, &tier->region);
    uint8_t *base;

    if (err != ICMS_OK)
        return err;
    /* Without locked pages it works unpinned. */
    (void)!loop_region_register(tier->reactor->loop, tier->region, NULL);
    base = loop_region_base(tier->region);
    for (uint32_t i = 0; i < tier->io_count; i++) {
        tier->ios[i].tier = tier;
        tier->ios[i].buffer = base + i * tier->buffer_bytes;
        list_push(&tier->free, &tier->ios[i].link);
    }
    tier->probe.memory = base + tier->io_count * tier->buffer_bytes;
    return ICMS_OK;
}

static void tier_init(struct agent_tier *tier, struct agent *agent, const struct agent_opts *opts)
{
    tier->agent = agent;
    tier->reactor = &agent->reactors[0];
    tier->share = opts->local_share;
    tier_state_set(tier, AGENT_TIER_DOWN);
    check(pthread_mutex_init(&tier->text_lock, NULL) == 0);
    list_init(&tier->free);
    list_init(&tier->busy);
    list_init(&tier->forgets_free);
    list_init(&tier->forgets_busy);
    loop_timer_init(&tier->timer, tier_probe);
    loop_timer_init(&tier->forgets_timer, tier_forgets_stuck);
    for (uint32_t i = 0; i < AGENT_TIER_FORGETS; i++) {
        tier->forgets[i].tier = tier;
        tier_forget_put(&tier->forgets[i]);
    }
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        bool is_there = !uuid_is_nil(&opts->volumes[i].uuid);

        atomic_store_explicit(&tier->numbers[i], is_there ? tier->uuid_count : AGENT_TIER_NO_NUMBER,
                              memory_order_relaxed);
        if (is_there)
            tier->uuids[tier->uuid_count++] = opts->volumes[i].uuid;
    }
}

icms_err agent_tier_new(struct agent *agent, const struct agent_opts *opts, struct err_why *why)
{
    struct agent_tier *tier = calloc(1, sizeof(*tier));
    struct store_opts store;
    icms_err err;

    if (tier == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the drive %s", opts->local_path);
    agent->tier = tier;
    tier_init(tier, agent, opts);
    agent_local_store_opts(opts, &store);
    tier->buffer_bytes = store_record_bytes(store.value_bytes_max);
    tier->io_count = (uint32_t)u64_max(
        u64_min(AGENT_TIER_IOS_BYTES / tier->buffer_bytes, AGENT_TIER_IOS), AGENT_TIER_IOS_MIN);
    tier->line_memory = malloc(line_bytes(agent->volume_count, AGENT_MEMBERS));
    if (tier->line_memory == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the users of the drive %s",
                       opts->local_path);
    line_init(&tier->waiting, tier->line_memory, agent->volume_count, AGENT_MEMBERS,
              agent->weights);
    err = tier_buffers(tier, why);
    if (err != ICMS_OK)
        return err;
    err = agent_tier_open(tier, opts, tier_store_down, why);
    if (err == ICMS_NO_MEMORY)
        return err;
    if (err != ICMS_OK) {
        tier_text(tier, why->text);
        return ICMS_OK;
    }
    tier_state_set(tier, AGENT_TIER_UP);
    return ICMS_OK;
}

void agent_tier_begin(struct agent_tier *tier)
{
    struct err_why why = {""};

    if (agent_tier_health(tier) != AGENT_TIER_UP)
        return;
    tier->note.state = le64_of(AGENT_TIER_NOTE_IN_USE);
    if (store_note_put_now(tier->store, 0, &tier->note, &why) == ICMS_OK)
        return;
    tier_text(tier, why.text);
    tier_state_set(tier, AGENT_TIER_DOWN);
}

void agent_tier_stop(struct agent_tier *tier)
{
    for (uint32_t i = 0; i < tier->io_count; i++)
        agent_reading_stop(&tier->ios[i].reading);
}

void agent_tier_free(struct agent_tier **tier_)
{
    struct agent_tier *tier = *tier_;

    *tier_ = NULL;
    if (tier == NULL)
        return;
    store_close(&tier->store);
    loop_region_free(&tier->region);
    pthread_mutex_destroy(&tier->text_lock);
    free(tier->line_memory);
    free(tier);
}
