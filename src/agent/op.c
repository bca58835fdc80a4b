/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/op.c: one piece of work for the pod or the own drive: who is asked, in which order, and
 * what their answers mean together.
 *
 * Called by req.c on the reactor's loop; answers come back there by op->answered.
 *
 * Life: agent_op_new -> agent_op_start -> op_ask (once or several times) -> op_answered ->
 * op_done -> agent_op_free. Requests that wait for it are told in op_done; it goes on without them
 * when they ended earlier.
 *
 * Whom: the first in the key's rendezvous order that is not excluded. A slow one is excluded from
 * loads and stores; it is connected, so deletions and flushes, which it alone can do, go there. A
 * connection that ends under an operation excludes its enclosure, so the next one is asked. A block
 * that an enclosure misses which was away lately may be with the one that took over: that one is
 * asked too, once. While the owner is excluded, "absent" elsewhere means that the owner is down. An
 * enclosure that lacks the volume is passed over in the same way, and "absent" elsewhere then is
 * "no_volume"; that nobody has it is an error.
 *
 * Repair. A block whose trailer fails may be bad where it is stored, and a put that does not
 * replace would find it there for ever. So it is loaded again (suspect), checked here whoever says
 * that it is bad, and a bad record is deleted where it was read, unless another one has replaced
 * it. Who writes the key waits for both.
 *
 * Invariant: one operation of a kind is in flight for a key, and none besides a STORE or a DELETE
 * but loads that will publish nothing (drop). Loads into the memory of a request (direct) are
 * besides that: they publish nothing, nobody joins them, and nobody but op_done ends their request.
 */
#include "agent/agent_int.h"

#include "base/fault.h"

/* ---- pool ----------------------------------------------------------------------------------- */

void agent_reactor_ops_init(struct agent_reactor *reactor)
{
    list_init(&reactor->free_ops);
    for (int i = 0; i < AGENT_OPS; i++)
        list_push(&reactor->free_ops, &reactor->ops[i].link);
}

static void op_answered(struct agent_op *op);

struct agent_op *agent_op_new(struct agent_shard *shard, struct agent_user_share *user,
                              enum agent_op_kind kind, const struct key *key,
                              enum io_class io_class)
{
    struct agent_reactor *reactor = shard->reactor;
    struct agent_op *op;

    if (!agent_reactor_has_op(reactor, io_class) ||
        (!reactor->waking &&
         line_has_others(&reactor->wait_op[io_class], agent_share(shard, user))))
        return NULL;
    op = container_of(list_pop(&reactor->free_ops), struct agent_op, link);
    reactor->ops_used[io_class]++;
    *op = (struct agent_op){
        .kind = kind,
        .shard = shard,
        .user = user,
        .io_class = io_class,
        .slot = SHM_SLOT_NONE,
        .answered = op_answered,
    };
    if (key != NULL)
        op->key = *key;
    list_init(&op->waiters);
    list_init(&op->blocked);
    list_init(&op->key_link);
    list_init(&op->client_link);
    list_init(&op->link);
    return op;
}

void agent_op_free(struct agent_op *op)
{
    struct agent_reactor *reactor = op->shard->reactor;

    check(!op->busy && list_empty(&op->waiters) && list_empty(&op->blocked));
    reactor->ops_used[op->io_class]--;
    list_push(&reactor->free_ops, &op->link);
    agent_reactor_wake(reactor);
}

static struct list *op_key_list(struct agent_shard *shard, const struct key *key)
{
    return &shard->keys[shm_arena_head(shard->secret, AGENT_KEY_LISTS, key)];
}

struct agent_op *agent_op_find(struct agent_shard *shard, const struct key *key,
                               enum agent_op_kind kind)
{
    list_for_each (link, op_key_list(shard, key)) {
        struct agent_op *op = container_of(link, struct agent_op, key_link);

        if (op->kind == kind && !op->drop && op->direct == NULL && key_equal(&op->key, key))
            return op;
    }
    return NULL;
}

void agent_op_drop_loads(struct agent_shard *shard, const struct key *key)
{
    list_for_each (link, op_key_list(shard, key)) {
        struct agent_op *op = container_of(link, struct agent_op, key_link);

        if (op->kind == AGENT_OP_LOAD && key_equal(&op->key, key))
            op->drop = true;
    }
}

/* ---- whom to ask ---------------------------------------------------------------------------- */

/* The first of a key's enclosures that is neither excluded nor tried and has the volume. */
static struct agent_enclosure *op_pick_of(struct agent_shard *shard, const struct key *key,
                                          uint64_t excluded, uint64_t tried, bool *io_owner_down,
                                          bool *io_owner_lacks)
{
    const struct place_map *map = shard->agent->map;
    uint64_t missing = atomic_load_explicit(&shard->missing, memory_order_relaxed);
    uint32_t slot = place_slot(map, key, volume_has_runs(&shard->spec));

    for (uint32_t rank = 0; rank < PLACE_RANKS; rank++) {
        uint32_t member = place_rank(map, slot, rank);

        if (member == UINT32_MAX)
            break;
        if ((excluded >> member & 1) != 0)
            *io_owner_down = true;
        else if ((missing >> member & 1) != 0)
            *io_owner_lacks = true;
        else if ((tried >> member & 1) == 0)
            return &shard->reactor->enclosures[member];
    }
    return NULL;
}

struct agent_enclosure *agent_op_pick(struct agent_shard *shard, const struct key *key,
                                      uint64_t tried, bool *io_owner_down, bool *io_owner_lacks)
{
    const struct agent_reactor *reactor = shard->reactor;
    struct agent_enclosure *enclosure;

    if (shard->agent->map == NULL)
        return NULL;
    enclosure =
        op_pick_of(shard, key, atomic_load_explicit(&reactor->excluded, memory_order_relaxed),
                   tried, io_owner_down, io_owner_lacks);
    if (enclosure == NULL && tried == 0) /* a slow one is better than none */
        enclosure = op_pick_of(shard, key, agent_reactor_down(reactor), tried, io_owner_down,
                               io_owner_lacks);
    return enclosure;
}

icms_err agent_op_target(struct agent_shard *shard, const struct key *key)
{
    bool down = false, lacks = false;

    if (agent_op_pick(shard, key, 0, &down, &lacks) != NULL)
        return ICMS_OK;
    return lacks && !down ? ICMS_NO_VOLUME : ICMS_PEER_DOWN;
}

/* Owner and next in order among those that have the volume. */
static void op_owners(struct agent_op *op, uint32_t *out_owner, uint32_t *out_next)
{
    const struct place_map *map = op->shard->agent->map;
    uint64_t missing = atomic_load_explicit(&op->shard->missing, memory_order_relaxed);
    uint32_t slot = place_slot(map, &op->key, volume_has_runs(&op->shard->spec));
    uint32_t owners[2] = {UINT32_MAX, UINT32_MAX};
    int count = 0;

    for (uint32_t rank = 0; rank < PLACE_RANKS && count < 2; rank++) {
        uint32_t member = place_rank(map, slot, rank);

        if (member == UINT32_MAX)
            break;
        if ((missing >> member & 1) != 0)
            op->owner_lacks = true;
        else
            owners[count++] = member;
    }
    *out_owner = owners[0];
    *out_next = owners[1];
}

/* Owner and next in order, both, have to forget a block. owner_down: one that may have it cannot be
 * asked. */
static struct agent_enclosure *op_pick_delete(struct agent_op *op)
{
    const struct agent_reactor *reactor = op->shard->reactor;
    uint64_t excluded = agent_reactor_down(reactor);
    uint32_t owner, next;

    if (reactor->agent->map == NULL)
        return NULL;
    op_owners(op, &owner, &next);
    if (owner == UINT32_MAX)
        return NULL;
    if ((excluded >> owner & 1) != 0)
        op->owner_down = true;
    else if ((op->tried >> owner & 1) == 0)
        return &reactor->enclosures[owner];
    if (next == UINT32_MAX || (op->tried >> next & 1) != 0)
        return NULL;
    if ((excluded >> next & 1) == 0)
        return &reactor->enclosures[next];
    if (agent_enclosure_was_away(&reactor->enclosures[owner], op->shard))
        op->owner_down = true;
    return NULL;
}

/* The next enclosure that a flush has to ask. One that holds stores of the client and is excluded
 * cannot promise anything: the flush fails. */
static struct agent_enclosure *op_pick_flush(struct agent_op *op)
{
    const struct agent_reactor *reactor = op->shard->reactor;
    uint64_t excluded = agent_reactor_down(reactor);
    uint64_t left = op->wanted & ~op->tried;

    if (left == 0)
        return NULL;
    if ((left & excluded) != 0) {
        op->err = ICMS_PEER_DOWN;
        op->reason = ICMS_MISS_ENCLOSURE_DOWN;
        return NULL;
    }
    return &reactor->enclosures[__builtin_ctzll(left)];
}

static void op_done(struct agent_op *op);

static void op_done_msg(struct loop_msg *msg)
{
    op_done(container_of(msg, struct agent_op, msg));
}

/* Asks the next one; false: there is none. */
static bool op_ask(struct agent_op *op)
{
    struct agent *agent = op->shard->agent;

    if (agent->local != NULL) {
        if ((op->tried & 1) != 0)
            return false;
        op->tried = 1;
        agent_local_ask(agent->local, op);
        return true;
    }
    if (op->kind == AGENT_OP_FLUSH)
        op->enclosure = op_pick_flush(op);
    else if (op->kind == AGENT_OP_DELETE && op->record != 0)
        op->enclosure = op->tried == 0 ? op->enclosure : NULL;
    else if (op->kind == AGENT_OP_DELETE)
        op->enclosure = op_pick_delete(op);
    else
        op->enclosure =
            agent_op_pick(op->shard, &op->key, op->tried, &op->owner_down, &op->owner_lacks);
    if (op->enclosure == NULL)
        return false;
    op->tried |= (uint64_t)1 << op->enclosure->number;
    agent_enclosure_ask(op->enclosure, op);
    return true;
}

/* Nobody who could be asked has the volume. When others have it, their blocks are as far away as
 * those of an enclosure that is down: a miss; a put fails. When none has it, that is an error. */
static void op_says_no_volume(struct agent_op *op)
{
    bool missing = agent_shard_volume_is_missing(op->shard);

    op->err = op->kind == AGENT_OP_DELETE && !missing ? ICMS_MISS : ICMS_NO_VOLUME;
    op->reason = missing ? ICMS_MISS_NONE : ICMS_MISS_NO_VOLUME;
}

void agent_op_start(struct agent_op *op)
{
    struct agent_shard *shard = op->shard;

    op->busy = true;
    if (op->slot != SHM_SLOT_NONE)
        agent_shard_pin(shard, op->slot);
    if (op->kind == AGENT_OP_LOAD || op->kind == AGENT_OP_STORE || op->kind == AGENT_OP_DELETE)
        list_push(op_key_list(shard, &op->key), &op->key_link);
    if (op->kind == AGENT_OP_STORE) {
        op->seq = shard->store_seq++;
        op->epoch = shard->shares[op->client].epoch;
        list_push(&shard->shares[op->client].stores, &op->client_link);
    }
    if (op->kind == AGENT_OP_FLUSH) {
        struct agent_share *share = &shard->shares[op->client];

        check(share->flush == NULL);
        share->flush = op;
        op->epoch = share->epoch;
        op->wanted = share->dirty;
        share->dirty = 0;
        op->err = ICMS_OK;
    } else {
        op->err = ICMS_PEER_DOWN;
        op->reason = ICMS_MISS_ENCLOSURE_DOWN;
    }
    if (op_ask(op))
        return;
    if (op->owner_lacks && !op->owner_down)
        op_says_no_volume(op);
    loop_send(shard->reactor->loop, &op->msg, op_done_msg);
}

/* ---- what an answer means ------------------------------------------------------------------- */

bool agent_err_is_lost(icms_err err)
{
    return err == ICMS_PEER_DOWN || err == ICMS_REFUSED || err == ICMS_RESET ||
           err == ICMS_PROTOCOL;
}

void agent_answer_read(icms_err *io_err, enum icms_miss *io_reason)
{
    icms_err err = *io_err;
    enum icms_miss reason = *io_reason;

    if (err == ICMS_OK) {
        *io_reason = ICMS_MISS_NONE;
        return;
    }
    if (agent_err_is_lost(err)) {
        *io_reason = ICMS_MISS_ENCLOSURE_DOWN;
        return;
    }
    switch (err) {
    case ICMS_MISS:
        if (reason == ICMS_MISS_NONE)
            reason = ICMS_MISS_ABSENT;
        break;
    case ICMS_DEADLINE:
    case ICMS_CANCELED: /* one NVMe status for both, and nobody canceled it */
        err = ICMS_DEADLINE;
        reason = ICMS_MISS_DEADLINE;
        break;
    case ICMS_CORRUPT:
        reason = ICMS_MISS_CHECKSUM;
        break;
    case ICMS_BUSY:
    case ICMS_LIMIT:
        if (reason == ICMS_MISS_NONE)
            reason = ICMS_MISS_SHED;
        break;
    case ICMS_QUOTA:
    case ICMS_NO_SPACE:
        if (reason == ICMS_MISS_NONE)
            reason = ICMS_MISS_QUOTA;
        if (reason == ICMS_MISS_QUOTA)
            err = ICMS_QUOTA; /* one NVMe status for both */
        break;
    case ICMS_EXISTS:
    case ICMS_VALUE_SIZE:
    case ICMS_KEY_SIZE:
        reason = ICMS_MISS_NONE;
        break;
    default:
        if (reason == ICMS_MISS_NONE)
            reason = ICMS_MISS_DRIVE_DOWN;
        break;
    }
    *io_err = err;
    *io_reason = reason;
}

static void op_answer_read(struct agent_op *op)
{
    if (op->err != ICMS_NO_VOLUME) {
        agent_answer_read(&op->err, &op->reason);
        return;
    }
    op->owner_lacks = true; /* not any more: enclosure_volume_lost */
    op_says_no_volume(op);
}

/* True when a block that op->enclosure misses may be with the one that took over while it was away.
 */
static bool op_may_be_next(const struct agent_op *op)
{
    if (op->enclosure == NULL || op->first_reason != ICMS_MISS_NONE || op->err != ICMS_MISS ||
        (op->reason != ICMS_MISS_ABSENT && op->reason != ICMS_MISS_EVICTED))
        return false;
    return agent_enclosure_was_away(op->enclosure, op->shard);
}

/* True when somebody else is asked now. */
static bool op_goes_on(struct agent_op *op)
{
    icms_err err = op->err;
    enum icms_miss reason = op->reason;

    if (agent_err_is_lost(err))
        op->owner_down = true;
    switch (op->kind) {
    case AGENT_OP_LOAD:
    case AGENT_OP_EXIST:
        if (agent_err_is_lost(err) || err == ICMS_NO_VOLUME || op_may_be_next(op)) {
            if (err == ICMS_MISS)
                op->first_reason = reason;
            return op_ask(op);
        }
        return false;
    case AGENT_OP_STORE:
        return (agent_err_is_lost(err) || err == ICMS_NO_VOLUME) && op_ask(op);
    case AGENT_OP_DELETE:
        if (err == ICMS_OK)
            op->found = true;
        return (err == ICMS_OK || err == ICMS_MISS) && op_ask(op);
    case AGENT_OP_FLUSH:
        return err == ICMS_OK && op_ask(op);
    }
    return false;
}

static void op_answered(struct agent_op *op)
{
    check(op->busy);
    if (fault_hit("agent.answer"))
        op->err = ICMS_PEER_DOWN;
    op_answer_read(op);
    if (!op_goes_on(op))
        op_done(op);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* "Absent" of one that stands in for another says only that the other one was not asked. */
static void op_reason_settle(struct agent_op *op)
{
    if (op->err != ICMS_MISS || op->reason != ICMS_MISS_ABSENT)
        return;
    if (op->owner_down)
        op->reason = ICMS_MISS_ENCLOSURE_DOWN;
    else if (op->owner_lacks)
        op->reason = ICMS_MISS_NO_VOLUME;
}

struct agent_op *agent_op_writer(struct agent_shard *shard, const struct key *key)
{
    struct agent_op *op = agent_op_find(shard, key, AGENT_OP_STORE);

    if (op == NULL)
        op = agent_op_find(shard, key, AGENT_OP_DELETE);
    if (op == NULL)
        op = agent_op_find(shard, key, AGENT_OP_LOAD);
    return op != NULL && (op->kind != AGENT_OP_LOAD || op->suspect) ? op : NULL;
}

/* A deadline for what nobody waits for. */
static uint64_t op_background_ns(const struct agent_shard *shard)
{
    return reactor_now_ns(shard->reactor) +
           (uint64_t)shard->agent->opts.store_deadline_ms * 1000000;
}

struct agent_op *agent_op_suspect(struct agent_shard *shard, const struct key *key, bool counted,
                                  uint64_t space)
{
    bool is_known = space != 0;
    struct agent_op *op;
    uint32_t slot;

    if (!shard->spec.sealed || agent_op_writer(shard, key) != NULL ||
        !agent_reactor_has_op(shard->reactor, IO_CLASS_PRESTAGE))
        return NULL;
    if (!is_known)
        space = agent_shard_load_bytes(shard, key);
    slot = agent_shard_slot_take(shard, space);
    if (slot == SHM_SLOT_NONE)
        return NULL;
    op = agent_op_new(shard, NULL, AGENT_OP_LOAD, key, IO_CLASS_PRESTAGE);
    check(op != NULL);
    op->slot = slot;
    op->space = space;
    op->is_reload = is_known;
    op->suspect = true;
    op->counted = counted;
    op->deadline_ns = op_background_ns(shard);
    agent_op_drop_loads(shard, key); /* they may bring the same */
    agent_op_start(op);
    return op;
}

/* Deletes the bad record that a suspect load has read. */
static void op_repair(const struct agent_op *load)
{
    struct agent_shard *shard = load->shard;
    struct agent_op *op;

    if (load->record == 0 || agent_op_writer(shard, &load->key) != NULL)
        return;
    op = agent_op_new(shard, NULL, AGENT_OP_DELETE, &load->key, IO_CLASS_STORE);
    if (op == NULL)
        return;
    op->record = load->record;
    op->enclosure = load->enclosure;
    op->deadline_ns = op_background_ns(shard);
    agent_op_drop_loads(shard, &load->key);
    agent_op_start(op);
}

/* What came is damaged, or was not sealed for this volume and key. */
static void op_done_bad(const struct agent_op *op)
{
    if (op->suspect)
        op_repair(op);
    else if (!op->drop)
        (void)agent_op_suspect(op->shard, &op->key, true, 0);
}

/* The block did not fit into the space that a load had for it. It is loaded again into as much as
 * it said that it needs, and if that is too little, or it did not say, into as much as a block of
 * the volume can need. */
static bool op_was_too_small(struct agent_op *op)
{
    uint64_t bytes_max = op->shard->stored_bytes_max;

    if (op->err != ICMS_VALUE_SIZE || op->direct != NULL || op->space >= bytes_max ||
        op->value_bytes > bytes_max)
        return false;
    op->space = op->is_reload || op->value_bytes <= op->space ? bytes_max : op->value_bytes;
    return true;
}

static void op_done_load(struct agent_op *op)
{
    struct agent_shard *shard = op->shard;

    op_reason_settle(op);
    op->too_small = op_was_too_small(op);
    if (op->err == ICMS_OK)
        agent_shard_size_seen(shard, op->value_bytes);
    if (op->err == ICMS_OK && shard->spec.sealed && op->value_bytes <= LIMIT_TRAILER_BYTES) {
        op->bad = true;
    } else if (op->err == ICMS_OK && shard->spec.sealed) {
        op->value_bytes -= LIMIT_TRAILER_BYTES;
        op->bad = op->suspect && !agent_shard_is_sealed(shard, op->slot, &op->key, op->value_bytes);
    }
    if (op->bad) {
        op->err = ICMS_CORRUPT;
        op->reason = ICMS_MISS_CHECKSUM;
    }
    if (op->reason == ICMS_MISS_CHECKSUM && op->enclosure != NULL)
        agent_enclosure_damaged(op->enclosure, shard->number, &op->key);
    if (op->reason == ICMS_MISS_CHECKSUM && !op->counted)
        counter_add(&shard->checksum_errors, 1);
    if (op->direct == NULL)
        agent_shard_unpin(shard, op->slot);
    if (op->bad)
        op_done_bad(op);
    if (op->direct != NULL)
        return;
    if (op->err == ICMS_OK && !op->drop && agent_shard_find(shard, &op->key) == SHM_SLOT_NONE) {
        agent_shard_publish(shard, op->slot, &op->key, op->value_bytes);
        return;
    }
    agent_shard_slot_give(shard, op->slot);
    op->slot = SHM_SLOT_NONE;
    if (op->too_small && op->suspect)
        (void)agent_op_suspect(shard, &op->key, op->counted, op->space);
    if (op->err == ICMS_OK)
        op->drop = true; /* the waiters look again: something newer is there, or nothing */
}

/* What the client of a store or flush is told by its next flush; NULL: that client is gone. */
static struct agent_share *op_share(struct agent_op *op)
{
    struct agent_share *share = &op->shard->shares[op->client];

    return share->epoch == op->epoch ? share : NULL;
}

static void op_done_flush(struct agent_op *op)
{
    struct agent_share *share = op_share(op);

    if (share == NULL)
        return;
    share->flush = NULL;
    if (op->err == ICMS_OK)
        return;
    share->dirty |= op->wanted;
    /* What an enclosure had of a volume that it lacks now is lost: told once. */
    if (op->err == ICMS_NO_VOLUME && op->enclosure != NULL)
        share->dirty &= ~((uint64_t)1 << op->enclosure->number);
}

static void op_done_store(struct agent_op *op)
{
    struct agent_shard *shard = op->shard;
    struct agent_share *share = op_share(op);

    agent_backlog_give(shard->agent, op->user, shard->number, op->stored_bytes);
    check(shard->store_bytes >= agent_shard_slot_bytes(shard, op->slot));
    shard->store_bytes -= agent_shard_slot_bytes(shard, op->slot);
    agent_shard_unpin(shard, op->slot);
    list_remove(&op->client_link);
    if (share != NULL && op->err == ICMS_OK && op->enclosure != NULL)
        share->dirty |= (uint64_t)1 << op->enclosure->number;
    if (op->published) {
        if (op->err != ICMS_OK)
            counter_add(&shard->store_failures, 1);
        if (op->err != ICMS_OK && share != NULL)
            share->failed++;
    } else if (op->err == ICMS_OK && !list_empty(&op->waiters)) {
        agent_shard_publish(shard, op->slot, &op->key, op->value_bytes);
    } else {
        agent_shard_slot_give(shard, op->slot);
    }
    while (share != NULL && !list_empty(&share->flushes)) {
        struct list *flush = list_first(&share->flushes), *oldest = list_first(&share->stores);

        if (oldest != NULL && container_of(oldest, struct agent_op, client_link)->seq <
                                  container_of(flush, struct agent_req, waiter.link)->flush_seq)
            break;
        agent_waiter_wake(flush, NULL);
    }
}

/* Nobody will be asked any more, nothing touches the slot: tells all that wait. */
static void op_done(struct agent_op *op)
{
    struct list *link;

    list_remove(&op->key_link);
    op->busy = false;
    if (op->err != ICMS_OK && op->first_reason != ICMS_MISS_NONE) {
        op->err = ICMS_MISS; /* what the owner said counts */
        op->reason = op->first_reason;
    }
    if (op->kind == AGENT_OP_FLUSH)
        op_done_flush(op);
    else if (op->kind == AGENT_OP_LOAD)
        op_done_load(op);
    else if (op->kind == AGENT_OP_STORE)
        op_done_store(op);
    else if (op->kind == AGENT_OP_EXIST)
        op_reason_settle(op);
    if (op->done != NULL)
        op->done(op);
    while ((link = list_first(&op->waiters)) != NULL)
        agent_waiter_wake(link, op);
    while ((link = list_first(&op->blocked)) != NULL)
        agent_waiter_wake(link, NULL);
    agent_op_free(op);
}
