/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/req.c: one request of a client, on the reactor of its key.
 *
 * Called by qpair.c (begin, cancel), op.c (its operation is over), shard.c (a slot may be free) and
 * by timers.
 *
 * Life: qpair.c takes the entry (NEW) -> req_new -> a waiting state, and again -> req_answer ->
 * req->done. Each waiting state has one list, whose owner wakes it.
 *
 * The deadline answers at once: nothing of a request is touched by the network or a drive. What is
 * (a slot that is being filled or stored) belongs to an operation, which outlives the request and
 * keeps the slot pinned until that is proven over. The one exception is a load from the pod into
 * the memory of a client in this process (direct): its operation has the deadline and answers when
 * nothing writes there any more. From a drive of the agent's own such memory is filled by a copy,
 * which is made only while the request waits.
 *
 * When a put is visible. Accepted: at once, in the arena; stored in the background; if that fails
 * the block stays in the arena until it is evicted, is counted (store_failures), and fails the
 * client's next flush. On flash, or if absent: when the enclosure has answered for it.
 */
#include "agent/agent_int.h"

#include "base/crc.h"
#include "base/fault.h"
#include "wire/sealed.h"

enum step {
    STEP_NEXT, /* the state changed: go on                */
    STEP_WAIT, /* somebody wakes it                       */
    STEP_OVER, /* answered, or as good: not ours any more */
};

/* ---- the answer ----------------------------------------------------------------------------- */

/* It waits no more, whatever it waited for. */
static void req_waited(struct agent_req *req)
{
    if (req->wait_since_ns != 0)
        req->wait_ns += reactor_now_ns(req->shard->reactor) - req->wait_since_ns;
    req->wait_since_ns = 0;
    agent_waiter_leave(&req->waiter);
    req->waits = NULL;
}

static enum step req_answer(struct agent_req *req, icms_err status, enum icms_miss reason)
{
    struct agent_shard *shard = req->shard;

    loop_timer_stop(shard->reactor->loop, &req->timer);
    req_waited(req);
    if (req->match != NULL)
        agent_match_leave(req->match);
    req->match = NULL;
    req->answer.tag = req->tag;
    req->answer.status = status;
    req->answer.reason = (uint8_t)reason;
    if (status == ICMS_MISS && req->op == SHM_OP_GET)
        counter_add(&shard->misses[reason], 1);
    if (reason == ICMS_MISS_DEADLINE)
        counter_add(&shard->deadline_misses, 1);
    if (reason == ICMS_MISS_SHED)
        counter_add(&shard->sheds, 1);
    agent_req_state_set(req, AGENT_REQ_ANSWER);
    req->done(req);
    return STEP_OVER;
}

/* A block that is not available is a miss for a get, and its own error for all else. */
static enum step req_answer_reason(struct agent_req *req, icms_err err, enum icms_miss reason)
{
    bool reads = req->op == SHM_OP_GET || req->op == SHM_OP_EXISTS || req->op == SHM_OP_EXISTS_MANY;

    if (reads && reason != ICMS_MISS_NONE)
        err = ICMS_MISS;
    return req_answer(req, err, reason);
}

/* ---- waiting -------------------------------------------------------------------------------- */

static enum step req_wait(struct agent_req *req, enum agent_req_state state, struct list *list)
{
    agent_req_state_set(req, state);
    list_push(list, &req->waiter.link);
    return STEP_WAIT;
}

/* For an operation that was started, or that is in flight for the key. */
static enum step req_wait_op(struct agent_req *req, struct agent_op *op)
{
    bool local = req->shard->agent->local != NULL || op->at_tier;

    req->waits = op;
    return req_wait(req, local ? AGENT_REQ_LOCAL : AGENT_REQ_POD, &op->waiters);
}

static enum step req_wait_key(struct agent_req *req, struct agent_op *op)
{
    req->waits = op;
    return req_wait(req, AGENT_REQ_WAIT_KEY, &op->blocked);
}

/* Of a turn in a line: what it takes there. */
static uint64_t req_bytes(const struct agent_req *req)
{
    switch (req->op) {
    case SHM_OP_PUT:
        return req->bytes;
    case SHM_OP_GET:
        return req->space != 0 ? req->space : agent_shard_load_bytes(req->shard, &req->key);
    case SHM_OP_EXISTS_MANY:
        return (uint64_t)req->bytes * AGENT_KEY_COST_BYTES;
    default:
        return 0;
    }
}

static enum step req_wait_line(struct agent_req *req, enum agent_req_state state, struct line *line,
                               uint32_t share)
{
    agent_req_state_set(req, state);
    req->wait_since_ns = reactor_now_ns(req->shard->reactor);
    agent_line_wait(&req->waiter, line, share);
    return STEP_WAIT;
}

static enum step req_wait_pool(struct agent_req *req, enum io_class io_class)
{
    return req_wait_line(req, AGENT_REQ_WAIT_OP, &req->shard->reactor->wait_op[io_class],
                         agent_share(req->shard, req->qpair->client->user));
}

static enum step req_wait_space(struct agent_req *req, struct line *line)
{
    return req_wait_line(req, AGENT_REQ_WAIT_SLOT, line,
                         agent_member(req->shard->agent, req->qpair->client->user));
}

/* Whether another user waits for space of the shard already. */
static bool req_is_behind(const struct agent_req *req, const struct line *line)
{
    const struct agent_shard *shard = req->shard;

    return !shard->waking &&
           line_has_others(line, agent_member(shard->agent, req->qpair->client->user));
}

/* ---- get ------------------------------------------------------------------------------------ */

/* The block is in the arena: leases it and answers. */
static enum step req_get_hit(struct agent_req *req, uint32_t slot, enum icms_source source)
{
    struct agent_shard *shard = req->shard;

    agent_shard_touch(shard, slot, (req->flags & SHM_FLAG_ONCE) != 0);
    if (req->lease != SHM_SLOT_NONE)
        agent_shard_lease(shard, slot, &req->qpair->ring, req->lease);
    req->answer.slot = slot;
    req->answer.version = atomic_load_explicit(&shard->slots[slot].version, memory_order_relaxed);
    req->answer.value_bytes = shard->meta[slot].value_bytes;
    req->answer.source = (uint8_t)source;
    counter_add(source == ICMS_SOURCE_DRAM    ? &shard->hits_dram
                : source == ICMS_SOURCE_LOCAL ? &shard->hits_local
                                              : &shard->hits_pod,
                1);
    counter_add(&shard->get_bytes, shard->meta[slot].value_bytes);
    return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
}

/* Past the arena, into the memory of who asks: a block that is met for the first time in a while,
 * or is read once at most. A request that finds no operation has noted the key of the former, and
 * takes the arena when it looks again. */
static enum step req_get_direct(struct agent_req *req, enum io_class io_class)
{
    struct agent_op *op =
        agent_op_new(req->shard, req->qpair->client->user, AGENT_OP_LOAD, &req->key, io_class);

    if (op == NULL)
        return req_wait_pool(req, io_class);
    op->direct = req;
    op->deadline_ns = req->deadline_ns;
    if (req->shard->agent->local == NULL) {
        req->direct = true;
        loop_timer_stop(req->shard->reactor->loop,
                        &req->timer); /* the operation has the deadline */
    }
    agent_op_start(op);
    return req_wait_op(req, op);
}

/* What was received in the memory of the request. */
static enum step req_direct_done(struct agent_req *req, const struct agent_op *op)
{
    struct agent_shard *shard = req->shard;
    bool own = shard->agent->local != NULL || op->from_tier;

    req->direct = false;
    req->answer.slot = SHM_SLOT_NONE;
    req->answer.value_bytes = op->value_bytes;
    if (op->err == ICMS_VALUE_SIZE && op->value_bytes > LIMIT_TRAILER_BYTES)
        req->answer.value_bytes -= LIMIT_TRAILER_BYTES; /* how much space it wants */
    if (op->err != ICMS_OK)
        return req_answer_reason(req, op->err, op->reason);
    req->answer.version = op->arrival;
    req->answer.source = own ? ICMS_SOURCE_LOCAL : ICMS_SOURCE_POD;
    req->answer.checked = own && !op->is_unknown;
    counter_add(own ? &shard->hits_local : &shard->hits_pod, 1);
    counter_add(&shard->get_bytes, op->value_bytes);
    return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
}

/* For a load into the arena. Unless this is a hint itself, hints of the block learn that it is
 * asked for now, and the load of one goes on as any other. */
static enum step req_wait_load(struct agent_req *req, struct agent_op *op)
{
    if ((req->flags & SHM_FLAG_PRESTAGE) == 0) {
        agent_hint_asked(req->shard, &req->key, op);
        agent_op_expedite(op);
    }
    return req_wait_op(req, op);
}

/* What the own drive has comes by the arena, unless it can be read to where the request wants it.
 */
static bool req_tier_lets(const struct agent_req *req)
{
    const struct block_reader *reader = req->shard->agent->opts.reader;

    return !agent_tier_has(req->shard, &req->key) ||
           (reader != NULL && reader->would_read((const void *)(uintptr_t)req->offset));
}

static enum step req_new_get(struct agent_req *req)
{
    struct agent_shard *shard = req->shard;
    enum io_class io_class =
        (req->flags & SHM_FLAG_PRESTAGE) != 0 ? IO_CLASS_PRESTAGE : IO_CLASS_LOAD;
    uint32_t slot = agent_shard_find(shard, &req->key);
    struct agent_op *op;
    uint64_t space;

    if (slot != SHM_SLOT_NONE)
        return req_get_hit(req, slot, ICMS_SOURCE_DRAM);
    op = agent_op_find(shard, &req->key, AGENT_OP_DELETE);
    if (op != NULL)
        return req_wait_key(req, op);
    op = agent_op_find(shard, &req->key, AGENT_OP_LOAD);
    if (op != NULL)
        return req_wait_load(req, op);
    if ((req->flags & SHM_FLAG_DIRECT) != 0 && shard->spec.sealed && req_tier_lets(req) &&
        !agent_op_may_move(shard, &req->key) && !agent_hint_waits(shard, &req->key) &&
        ((req->flags & SHM_FLAG_ONCE) != 0 || !agent_shard_admits(shard, &req->key)))
        return req_get_direct(req, io_class);
    space = req_bytes(req);
    slot =
        req_is_behind(req, &shard->wait_slot) ? SHM_SLOT_NONE : agent_shard_slot_take(shard, space);
    if (slot == SHM_SLOT_NONE)
        return req_wait_space(req, &shard->wait_slot);
    op = agent_op_new(shard, req->qpair->client->user, AGENT_OP_LOAD, &req->key, io_class);
    if (op == NULL) {
        agent_shard_slot_give(shard, slot);
        return req_wait_pool(req, io_class);
    }
    op->slot = slot;
    op->space = space;
    op->is_reload = req->space != 0;
    op->once = (req->flags & SHM_FLAG_ONCE) != 0;
    op->deadline_ns = req->deadline_ns;
    agent_op_start(op);
    return req_wait_load(req, op);
}

/* ---- put ------------------------------------------------------------------------------------ */

/* The value of a client in this process, which leaves it alone until the answer: it is read here
 * and never again, copied and summed in one pass. */
static void req_put_copy_direct(const struct agent_req *req, uint8_t *to)
{
    const struct volume_spec *spec = &req->shard->spec;
    const uint8_t *from = (const uint8_t *)(uintptr_t)req->offset;
    const uint8_t *digest = (const uint8_t *)(uintptr_t)req->aside;

    if (spec->sealed)
        sealed_trailer_make(&spec->uuid, &req->key, digest, req->bytes,
                            crc32c_copy_steady(0, to, from, req->bytes), to + req->bytes);
    else
        memcpy(to, from, req->bytes);
}

/* Copies value and trailer out of the client's memory, which it may write meanwhile: what counts is
 * what arrived in the slot. */
static icms_err req_put_copy(struct agent_req *req, uint32_t slot)
{
    struct agent_shard *shard = req->shard;
    const struct sealed_place place = agent_shard_sealed_place(shard, &req->key);
    uint8_t *to = agent_shard_memory(shard, slot);
    const uint8_t *from = req->qpair->ring.staging + req->offset;
    uint32_t crc;

    if (fault_hit("agent.put"))
        return ICMS_CORRUPT;
    if ((req->flags & SHM_FLAG_DIRECT) != 0) {
        req_put_copy_direct(req, to);
        return ICMS_OK;
    }
    if (!shard->spec.sealed) {
        memcpy(to, from, req->bytes);
        return ICMS_OK;
    }
    if (atomic_load_explicit(&req->qpair->client->trusted, memory_order_relaxed)) {
        memcpy(to, from, req->bytes + LIMIT_TRAILER_BYTES); /* made by this process just now */
        return ICMS_OK;
    }
    crc = crc32c_copy(0, to, from, req->bytes);
    memcpy(to + req->bytes, from + req->bytes, LIMIT_TRAILER_BYTES);
    return sealed_trailer_check(&place, req->bytes, crc, to + req->bytes);
}

/* Everything is reserved: copy, publish when it is accepted, store. */
static enum step req_put_start(struct agent_req *req, struct agent_op *op, uint32_t slot)
{
    struct agent_shard *shard = req->shard;
    bool accepted = (req->flags & (SHM_FLAG_ON_FLASH | SHM_FLAG_IF_ABSENT)) == 0;
    uint64_t background_ns = (uint64_t)shard->agent->opts.store_deadline_ms * 1000000;
    uint32_t stored_bytes = req->bytes + (shard->spec.sealed ? LIMIT_TRAILER_BYTES : 0);
    icms_err err = req_put_copy(req, slot);

    if (err != ICMS_OK) {
        agent_backlog_give(shard->agent, req->qpair->client->user, shard->number, stored_bytes);
        agent_shard_slot_give(shard, slot);
        agent_op_free(op);
        counter_add(&shard->checksum_errors, err == ICMS_CORRUPT);
        return req_answer(req, err, err == ICMS_VERSION ? ICMS_MISS_VERSION : ICMS_MISS_CHECKSUM);
    }
    op->slot = slot;
    op->value_bytes = req->bytes;
    op->stored_bytes = stored_bytes;
    op->client = req->qpair->client->number;
    op->if_absent = (req->flags & SHM_FLAG_IF_ABSENT) != 0;
    op->once = (req->flags & SHM_FLAG_ONCE) != 0;
    op->published = accepted;
    op->deadline_ns =
        accepted ? u64_max(req->deadline_ns, reactor_now_ns(shard->reactor) + background_ns)
                 : req->deadline_ns;
    shard->store_bytes += agent_shard_slot_bytes(shard, slot);
    agent_shard_size_seen(shard, stored_bytes);
    agent_op_drop_loads(shard, &req->key);
    if (accepted) {
        agent_tier_forget(shard, &req->key);
        agent_shard_publish(shard, slot, &req->key, req->bytes, op->once);
    }
    counter_add(&shard->puts, 1);
    counter_add(&shard->put_bytes, req->bytes);
    agent_op_start(op);
    return accepted ? req_answer(req, ICMS_OK, ICMS_MISS_NONE) : req_wait_op(req, op);
}

/* Whether the value lies in memory that the client may name. */
static bool req_put_is_inside(const struct agent_req *req, uint64_t stored_bytes)
{
    uint64_t staging_bytes = req->qpair->ring.staging_bytes;

    if ((req->flags & SHM_FLAG_DIRECT) != 0)
        return true; /* only this process may say so */
    return stored_bytes <= staging_bytes && req->offset <= staging_bytes - stored_bytes;
}

static enum step req_new_put(struct agent_req *req)
{
    struct agent_shard *shard = req->shard;
    struct agent *agent = shard->agent;
    struct agent_user_share *user = req->qpair->client->user;
    uint64_t stored_bytes = req->bytes + (shard->spec.sealed ? LIMIT_TRAILER_BYTES : 0);
    uint32_t slot;
    struct agent_op *op;
    icms_err err;

    if (req->bytes == 0 || req->bytes > volume_carried_bytes_max(&shard->spec))
        return req_answer(req, ICMS_VALUE_SIZE, ICMS_MISS_NONE);
    if (shard->spec.encrypted && (req->flags & SHM_FLAG_DIRECT) != 0)
        return req_answer(req, ICMS_INVALID, ICMS_MISS_NONE); /* its trailer would be a plain one */
    if (!req_put_is_inside(req, stored_bytes))
        return req_answer(req, ICMS_INVALID, ICMS_MISS_NONE);
    op = agent_op_writer(shard, &req->key);
    if (op != NULL)
        return req_wait_key(req, op);
    if ((req->flags & SHM_FLAG_IF_ABSENT) != 0 &&
        (agent_shard_find(shard, &req->key) != SHM_SLOT_NONE ||
         (agent_tier_takes(shard, &req->key) && agent_tier_has(shard, &req->key))))
        return req_answer(req, ICMS_EXISTS, ICMS_MISS_NONE);
    if (agent_backlog_full(agent, user, shard->number, stored_bytes))
        return req_answer(req, ICMS_BUSY, ICMS_MISS_SHED);
    err = agent->local != NULL ? ICMS_OK : agent_op_target(shard, &req->key);
    if (err != ICMS_OK)
        return req_answer(req, err,
                          err == ICMS_NO_VOLUME ? ICMS_MISS_NONE : ICMS_MISS_ENCLOSURE_DOWN);
    if (req_is_behind(req, &shard->wait_share) || !agent_shard_stores_more(shard, stored_bytes))
        return req_wait_space(req, &shard->wait_share);
    slot = req_is_behind(req, &shard->wait_slot) ? SHM_SLOT_NONE
                                                 : agent_shard_slot_take(shard, stored_bytes);
    if (slot == SHM_SLOT_NONE)
        return req_wait_space(req, &shard->wait_slot);
    op = agent_op_new(shard, req->qpair->client->user, AGENT_OP_STORE, &req->key, IO_CLASS_STORE);
    if (op == NULL) {
        agent_shard_slot_give(shard, slot);
        return req_wait_pool(req, IO_CLASS_STORE);
    }
    if (!agent_backlog_take(agent, user, shard->number, stored_bytes)) {
        agent_shard_slot_give(shard, slot);
        agent_op_free(op);
        return req_answer(req, ICMS_BUSY, ICMS_MISS_SHED);
    }
    return req_put_start(req, op, slot);
}

/* ---- exists, remove, flush ------------------------------------------------------------------ */

static enum step req_new_exists(struct agent_req *req)
{
    struct agent_shard *shard = req->shard;
    uint32_t slot = agent_shard_find(shard, &req->key);
    struct agent_op *op;

    if (slot != SHM_SLOT_NONE) {
        req->answer.value_bytes = shard->meta[slot].value_bytes;
        req->answer.source = ICMS_SOURCE_DRAM;
        return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
    }
    if (agent_tier_has(shard, &req->key)) {
        req->answer.value_bytes = (uint32_t)volume_carried_bytes_max(&shard->spec);
        req->answer.source = ICMS_SOURCE_LOCAL;
        return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
    }
    op = agent_op_new(shard, req->qpair->client->user, AGENT_OP_EXIST, &req->key, IO_CLASS_LOAD);
    if (op == NULL)
        return req_wait_pool(req, IO_CLASS_LOAD);
    op->deadline_ns = req->deadline_ns;
    agent_op_start(op);
    return req_wait_op(req, op);
}

/* Copies key i out of the client's memory, which it may write meanwhile; false: it is none. */
static bool req_match_key(const struct agent_req *req, uint32_t i, struct key *out_key)
{
    struct shm_key copy;

    memcpy(&copy, req->qpair->ring.staging + req->offset + i * sizeof(copy), sizeof(copy));
    if (copy.length < 1 || copy.length > LIMIT_KEY_BYTES)
        return false;
    *out_key = (struct key){.length = copy.length};
    memcpy(out_key->bytes, copy.bytes, copy.length);
    return true;
}

/* Where the answers lie, a byte a key. */
static uint8_t *req_match_out(const struct agent_req *req)
{
    return req->qpair->ring.staging + req->offset + req->bytes * sizeof(struct shm_key);
}

/* Behind that, what it takes to have them. */
static void req_match_estimate(const struct agent_req *req)
{
    agent_match_estimate(req->match, req_match_out(req) + req->bytes);
}

/* Copies the keys of this reactor; false: one is none. */
static bool req_match_copy(const struct agent_req *req, struct agent_match *match)
{
    match->count = 0;
    for (uint32_t i = 0; i < req->bytes; i++) {
        struct key *key = &match->keys[match->count];

        if (!req_match_key(req, i, key))
            return false;
        match->at[match->count] = (uint16_t)i;
        match->count += agent_shard_owns(req->shard, key);
    }
    return true;
}

/* No batch was free in time: of this reactor's keys nothing is known, others answer for theirs. */
static enum step req_match_none(struct agent_req *req, enum icms_miss reason)
{
    uint8_t *out = req_match_out(req);

    for (uint32_t i = 0; i < req->bytes; i++) {
        struct key key;

        if (!req_match_key(req, i, &key))
            return req_answer(req, ICMS_KEY_SIZE, ICMS_MISS_NONE);
        if (agent_shard_owns(req->shard, &key))
            out[i] = (uint8_t)reason;
    }
    return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
}

/* Tells what is known; of the other keys: this. */
static enum step req_match_answer(struct agent_req *req, enum icms_miss unknown)
{
    const struct agent_match *match = req->match;
    uint8_t *out = req_match_out(req);
    bool missing = false;

    for (uint32_t i = 0; i < match->count; i++) {
        uint8_t reason = match->state[i] == MATCH_KNOWN ? match->reason[i] : (uint8_t)unknown;

        out[match->at[i]] = reason;
        missing = missing || reason == ICMS_MISS_NO_VOLUME;
    }
    if (match->left > 0)
        counter_add(&req->shard->deadline_misses, 1);
    if ((req->flags & SHM_FLAG_ESTIMATE) != 0)
        req_match_estimate(req);
    if (missing && agent_shard_volume_is_missing(req->shard))
        return req_answer(req, ICMS_NO_VOLUME, ICMS_MISS_NONE);
    return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
}

static void req_match_done(struct agent_match *match)
{
    (void)req_match_answer(match->req, ICMS_MISS_NONE);
}

static enum step req_new_exists_many(struct agent_req *req)
{
    struct agent_shard *shard = req->shard;
    struct agent_match *match = agent_match_new(shard, req->qpair->client->user);

    if (match == NULL)
        return req_wait_line(req, AGENT_REQ_WAIT_OP, &shard->reactor->wait_match,
                             agent_share(shard, req->qpair->client->user));
    if (!req_match_copy(req, match)) {
        agent_match_leave(match);
        return req_answer(req, ICMS_KEY_SIZE, ICMS_MISS_NONE);
    }
    agent_req_state_set(req, shard->agent->local != NULL ? AGENT_REQ_LOCAL : AGENT_REQ_POD);
    req->match = match;
    match->req = req;
    match->done = req_match_done;
    agent_match_start(match, req->deadline_ns);
    return STEP_OVER; /* it may have been answered in there */
}

static enum step req_new_remove(struct agent_req *req)
{
    struct agent_shard *shard = req->shard;
    struct agent_op *op = agent_op_writer(shard, &req->key);
    uint32_t slot;

    if (op != NULL)
        return req_wait_key(req, op);
    op = agent_op_new(shard, req->qpair->client->user, AGENT_OP_DELETE, &req->key, IO_CLASS_STORE);
    if (op == NULL)
        return req_wait_pool(req, IO_CLASS_STORE);
    agent_op_drop_loads(shard, &req->key);
    slot = agent_shard_find(shard, &req->key);
    if (slot != SHM_SLOT_NONE) {
        req->was_cached = true;
        agent_shard_unpublish(shard, slot);
    }
    op->deadline_ns = req->deadline_ns;
    agent_op_start(op);
    return req_wait_op(req, op);
}

static enum step req_new_flush(struct agent_req *req)
{
    struct agent_shard *shard = req->shard;
    struct agent_share *share = &shard->shares[req->qpair->client->number];
    struct list *oldest = list_first(&share->stores);
    struct agent_op *op;

    if (!req->flushed) {
        req->flushed = true;
        req->flush_seq = shard->store_seq;
    }
    if (oldest != NULL && container_of(oldest, struct agent_op, client_link)->seq < req->flush_seq)
        return req_wait(req, AGENT_REQ_WAIT_STORES, &share->flushes);
    if (share->failed > 0) {
        share->failed = 0; /* told once */
        return req_answer(req, ICMS_IO, ICMS_MISS_NONE);
    }
    if (share->flush != NULL) /* what it flushes may be ours: only its end tells */
        return req_wait_key(req, share->flush);
    op = agent_op_new(shard, req->qpair->client->user, AGENT_OP_FLUSH, NULL, IO_CLASS_STORE);
    if (op == NULL)
        return req_wait_pool(req, IO_CLASS_STORE);
    op->client = req->qpair->client->number;
    op->deadline_ns = req->deadline_ns;
    agent_op_start(op);
    return req_wait_op(req, op);
}

/* A client used a block without us. Nobody waits for an answer. */
static enum step req_new_touch(struct agent_req *req)
{
    uint32_t slot = agent_shard_find(req->shard, &req->key);

    if (slot != SHM_SLOT_NONE)
        agent_shard_touch(req->shard, slot, /* the client has counted the hit */
                          (req->flags & SHM_FLAG_ONCE) != 0);
    return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
}

/* A client found a block damaged, or says so: we look ourselves, in the arena and where it is
 * stored. Nobody waits for an answer, but the request is kept until then, and has its user's share
 * and its deadline, so that one client cannot cause more of this than of gets. */
static enum step req_new_suspect(struct agent_req *req)
{
    struct agent_shard *shard = req->shard;
    uint32_t slot = agent_shard_find(shard, &req->key);
    struct agent_op *op;

    if (slot != SHM_SLOT_NONE && agent_shard_verify(shard, slot))
        return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
    if (slot != SHM_SLOT_NONE)
        counter_add(&shard->checksum_errors, 1);
    op = agent_op_suspect(shard, req->qpair->client->user, &req->key, slot != SHM_SLOT_NONE, 0,
                          req->deadline_ns);
    return op != NULL ? req_wait_op(req, op) : req_answer(req, ICMS_OK, ICMS_MISS_NONE);
}

/* ---- hints ---------------------------------------------------------------------------------- */

/* What becomes of one key. */
static enum icms_miss req_hint(const struct agent_req *req, const struct key *key)
{
    struct agent_user_share *user = req->qpair->client->user;
    const struct agent_wish wish = {.need_ns = req->aside,
                                    .pin_ns = shm_hint_pin_s(req->lease) * 1000000000,
                                    .priority = shm_hint_priority(req->lease),
                                    .tier = shm_hint_tier(req->lease),
                                    .once = (req->flags & SHM_FLAG_ONCE) != 0};

    return (req->flags & SHM_FLAG_FORGET) != 0 ? agent_hint_cancel(req->shard, user, key)
                                               : agent_hint_take(req->shard, user, key, &wish);
}

/* Hints are remembered, or not, and answered at once. */
static enum step req_new_prestage(struct agent_req *req)
{
    uint8_t *out = req_match_out(req);

    if (!agent_hint_has_tier(req->shard->agent, shm_hint_tier(req->lease)))
        return req_answer(req, ICMS_UNSUPPORTED, ICMS_MISS_NONE);
    if (shm_hint_priority(req->lease) > ICMS_PRIORITY_MAX ||
        shm_hint_pin_s(req->lease) > ICMS_PIN_SECONDS_MAX)
        return req_answer(req, ICMS_INVALID, ICMS_MISS_NONE);
    if ((req->flags & SHM_FLAG_ONCE) != 0 &&
        (shm_hint_tier(req->lease) != ICMS_TIER_DRAM || shm_hint_pin_s(req->lease) != 0))
        return req_answer(req, ICMS_INVALID, ICMS_MISS_NONE);
    for (uint32_t i = 0; i < req->bytes; i++) {
        struct key key;

        if (!req_match_key(req, i, &key))
            return req_answer(req, ICMS_KEY_SIZE, ICMS_MISS_NONE);
        if (agent_shard_owns(req->shard, &key))
            out[i] = (uint8_t)req_hint(req, &key);
    }
    return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
}

/* ---- the state machine ---------------------------------------------------------------------- */

/* The pod has no such volume now, or the client knows it by another identity: that it learns before
 * its next request. */
static enum step req_no_volume(struct agent_req *req)
{
    return req->op == SHM_OP_EXISTS_MANY
               ? req_match_none(req, ICMS_MISS_NO_VOLUME)
               : req_answer_reason(req, ICMS_NO_VOLUME, ICMS_MISS_NO_VOLUME);
}

static enum step req_new(struct agent_req *req)
{
    if (reactor_now_ns(req->shard->reactor) >= req->deadline_ns)
        return req->op == SHM_OP_EXISTS_MANY
                   ? req_match_none(req, ICMS_MISS_DEADLINE)
                   : req_answer_reason(req, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
    if (!agent_shard_is_there(req->shard) || req->identity != (uint8_t)req->shard->identity)
        return req_no_volume(req);
    switch (req->op) {
    case SHM_OP_GET:
        return req_new_get(req);
    case SHM_OP_PUT:
        return req_new_put(req);
    case SHM_OP_EXISTS:
        return req_new_exists(req);
    case SHM_OP_EXISTS_MANY:
        return req_new_exists_many(req);
    case SHM_OP_REMOVE:
        return req_new_remove(req);
    case SHM_OP_FLUSH:
        return req_new_flush(req);
    case SHM_OP_TOUCH:
        return req_new_touch(req);
    case SHM_OP_SUSPECT:
        return req_new_suspect(req);
    case SHM_OP_PRESTAGE:
        return req_new_prestage(req);
    default:
        return req_answer(req, ICMS_INVALID, ICMS_MISS_NONE);
    }
}

/* Returns whether it does not have to wait any more for what there is not enough of. */
static bool req_retry(struct agent_req *req)
{
    req_waited(req);
    agent_req_state_set(req, AGENT_REQ_NEW);
    return req_new(req) == STEP_OVER || req->state == AGENT_REQ_LOCAL ||
           req->state == AGENT_REQ_POD;
}

static void req_deadline(struct loop_timer *timer)
{
    struct agent_req *req = container_of(timer, struct agent_req, timer);
    enum icms_miss reason = req->state == AGENT_REQ_WAIT_SLOT ? ICMS_MISS_SHED : ICMS_MISS_DEADLINE;

    if (req->match != NULL)
        (void)req_match_answer(req, reason);
    else if (req->op == SHM_OP_EXISTS_MANY)
        (void)req_match_none(req, reason);
    else
        (void)req_answer_reason(req, ICMS_DEADLINE, reason);
}

/* A remove is done when each place where the block may be has forgotten it. */
static enum step req_over_remove(struct agent_req *req, const struct agent_op *op)
{
    if (op->err != ICMS_OK && op->err != ICMS_MISS)
        return req_answer(req, op->err, op->reason);
    if (op->search.owner_down)
        return req_answer(req, ICMS_PEER_DOWN, ICMS_MISS_ENCLOSURE_DOWN);
    if (op->found || req->was_cached)
        return req_answer(req, ICMS_OK, ICMS_MISS_NONE);
    return req_answer(req, ICMS_MISS, ICMS_MISS_ABSENT);
}

static void req_op_done(struct agent_req *req, const struct agent_op *op)
{
    struct agent_shard *shard = req->shard;
    bool local = shard->agent->local != NULL;

    req_waited(req);
    req->asked = op->enclosure != NULL ? op->enclosure->number : TRACE_NOWHERE;
    if (req->op == SHM_OP_SUSPECT) {
        (void)req_answer(req, ICMS_OK, ICMS_MISS_NONE);
        return;
    }
    switch (op->kind) {
    case AGENT_OP_LOAD:
        if (op->direct != NULL && op->drop) { /* written meanwhile */
            req->direct = false;
            loop_timer_start(shard->reactor->loop, &req->timer, req->deadline_ns);
            (void)req_retry(req);
        } else if (op->direct != NULL) {
            (void)req_direct_done(req, op);
        } else if (op->too_small) {
            req->space = op->space; /* what it needs */
            (void)req_retry(req);
        } else if (op->drop ||
                   (op->reason == ICMS_MISS_DEADLINE && op->deadline_ns < req->deadline_ns)) {
            (void)req_retry(req); /* written meanwhile, or this request has more time */
        } else if (op->err == ICMS_OK) {
            (void)req_get_hit(req, op->slot,
                              local || op->from_tier ? ICMS_SOURCE_LOCAL : ICMS_SOURCE_POD);
        } else {
            (void)req_answer_reason(req, op->err, op->reason);
        }
        break;
    case AGENT_OP_EXIST:
        if (op->err == ICMS_OK) {
            req->answer.value_bytes = (uint32_t)volume_carried_bytes_max(&shard->spec);
            req->answer.source = local ? ICMS_SOURCE_LOCAL : ICMS_SOURCE_POD;
        }
        (void)req_answer_reason(req, op->err, op->reason);
        break;
    case AGENT_OP_DELETE:
        (void)req_over_remove(req, op);
        break;
    case AGENT_OP_STORE:
    case AGENT_OP_FLUSH:
        (void)req_answer(req, op->err, op->err == ICMS_OK ? ICMS_MISS_NONE : op->reason);
        break;
    }
}

/* What it waited for came, or may have. */
static uint64_t req_wake(struct agent_waiter *waiter, struct agent_op *op)
{
    struct agent_req *req = container_of(waiter, struct agent_req, waiter);
    uint64_t bytes;

    if (op != NULL) {
        req_op_done(req, op);
        return 0;
    }
    bytes = req_bytes(req);
    return req_retry(req) ? bytes : 0;
}

/* The first bytes of the value that it waits for are in the slot of the load, or in its memory. */
static void req_came(struct agent_waiter *waiter, const struct agent_op *op)
{
    struct agent_req *req = container_of(waiter, struct agent_req, waiter);
    const struct shm_complete part = {
        .tag = req->tag,
        .version = op->arrival,
        .slot = op->slot,
        .value_bytes = op->arrived_bytes,
        .part = 1,
    };

    if ((req->flags & SHM_FLAG_PARTS) != 0 && op->arrived_bytes != 0)
        req->part(req, &part);
}

void agent_req_begin(struct agent_req *req)
{
    check(req->state == AGENT_REQ_NEW);
    req->waits = NULL;
    req->match = NULL;
    req->direct = false;
    req->space = 0;
    req->wait_since_ns = req->wait_ns = 0;
    req->flushed = req->was_cached = false;
    list_init(&req->waiter.link);
    req->waiter.wake = req_wake;
    req->waiter.came = req_came;
    loop_timer_init(&req->timer, req_deadline);
    loop_timer_start(req->shard->reactor->loop, &req->timer, req->deadline_ns);
    (void)req_new(req);
}

void agent_req_cancel(struct agent_req *req, icms_err err)
{
    if (req->state >= AGENT_REQ_NEW && req->state < AGENT_REQ_ANSWER && !req->direct)
        (void)req_answer(req, err, ICMS_MISS_NONE);
}
