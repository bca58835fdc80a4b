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
 * that is missed may be elsewhere (agent_op_pick): with the enclosure that owned it before another
 * one joined or it drained itself; and with the one that took over, where the one that misses it
 * was away lately. Each of the two is asked once. While the owner is late now and then, its share
 * is lowered: in a part of its slots it and the next in order change places (pick_next), for stores
 * as for loads, so that no block is missed for it; only these two, which deletions reach. A store
 * if absent first asks both whether they have it (looks). A block that the former owner had is
 * stored at its owner (op_move), if nothing else has to wait for that: the next load finds it
 * there. While the owner is excluded, "absent" elsewhere means that the owner is down. An enclosure
 * that lacks the volume is passed over in the same way, and "absent" elsewhere then is "no_volume";
 * that nobody has it is an error.
 *
 * With a drive of the agent's own beside the pod (tier.h), it is asked first: a load that it
 * answers is over, and a store that it takes; a remove is over when it and the pod have forgotten
 * the block. A store is for the drive alone (exclusive) only when the pod says that it does not
 * have the key (looks): else what the pod has would come back when the drive evicts the block.
 *
 * Repair. A block whose trailer fails may be bad where it is stored, and a put that does not
 * replace would find it there for ever. So it is loaded again (suspect), checked here whoever says
 * that it is bad, and a bad record is deleted where it was read, unless another one has replaced
 * it. Who writes the key waits for both. Both belong to the share of who found the block, or
 * reported it, and the load has the deadline of a load: nobody has a second share for reports.
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
        .identity = shard->identity,
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
    list_init(&op->asked.link);
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

        if (op->kind == kind && !op->drop && op->direct == NULL && !agent_op_is_stale(op) &&
            key_equal(&op->key, key))
            return op;
    }
    return NULL;
}

void agent_op_expedite(struct agent_op *op)
{
    bool is_at_pod = op->enclosure != NULL && !op->at_tier; /* else at most at the own drive */

    if (op->io_class == IO_CLASS_PRESTAGE && !op->is_expedited)
        op->is_expedited = !is_at_pod || nvmf_expedite(&op->u.nvmf);
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

void agent_search_asked(struct agent_search *search, const struct agent_enclosure *enclosure)
{
    if (search->tried == 0)
        search->epoch = enclosure->reactor->view->epoch;
    search->tried |= (uint64_t)1 << enclosure->number;
    if (search->is_missed && !search->at_former)
        search->may_be_next = false;
}

/* Whether it was asked by another view than there is now: there may be another owner, who was not
 * asked. */
static bool search_is_behind(const struct agent_shard *shard, const struct agent_search *search)
{
    return search->tried != 0 && search->epoch != shard->reactor->view->epoch;
}

bool agent_search_missed(const struct agent_shard *shard, struct agent_search *search,
                         const struct agent_enclosure *enclosure)
{
    if (!search->is_missed)
        search->may_be_next = search->passed != 0 || agent_enclosure_was_away(enclosure, shard);
    search->is_missed = true;
    return search->may_be_next || search_is_behind(shard, search) ||
           (shard->reactor->view->former != NULL && !search->at_former);
}

void agent_search_lost(struct agent_search *search, bool lacks)
{
    if (lacks)
        search->owner_lacks = true;
    else
        search->owner_down = true;
    if (search->is_missed && !search->at_former)
        search->may_be_next = true;
}

void agent_search_count(struct agent_shard *shard, const struct agent_search *search, bool is_found)
{
    if (search->at_former)
        counter_add(is_found ? &shard->former_found : &shard->former_missed, 1);
}

/* The first of a key's enclosures that is neither excluded nor tried and has the volume. */
static struct agent_enclosure *pick_owner(struct agent_shard *shard, uint32_t slot,
                                          uint64_t excluded, struct agent_search *search)
{
    const struct agent_view *view = shard->reactor->view;
    uint64_t missing = atomic_load_explicit(&shard->missing, memory_order_relaxed);

    for (uint32_t rank = 0; rank < PLACE_RANKS; rank++) {
        uint32_t number = agent_view_rank(view, view->owners, slot, rank);

        if (number == UINT32_MAX)
            break;
        if ((excluded >> number & 1) != 0)
            search->owner_down = true;
        else if ((missing >> number & 1) != 0)
            search->owner_lacks = true;
        else if ((search->tried >> number & 1) == 0)
            return &shard->reactor->enclosures[number];
    }
    return NULL;
}

/* Owner and next in order among those that have the volume; UINT32_MAX: there is none. True: one
 * before them lacks it. */
static bool slot_owners(const struct agent_shard *shard, const struct place_map *map, uint32_t slot,
                        uint32_t out_owners[2])
{
    uint64_t missing = atomic_load_explicit(&shard->missing, memory_order_relaxed);
    bool lacks = false;
    int count = 0;

    out_owners[0] = out_owners[1] = UINT32_MAX;
    for (uint32_t rank = 0; rank < PLACE_RANKS && count < 2; rank++) {
        uint32_t number = agent_view_rank(shard->reactor->view, map, slot, rank);

        if (number == UINT32_MAX)
            break;
        if ((missing >> number & 1) != 0)
            lacks = true;
        else
            out_owners[count++] = number;
    }
    return lacks;
}

/* The next in order, where it is asked before the owner, whose share is lowered. */
static struct agent_enclosure *pick_next(struct agent_shard *shard, uint32_t slot,
                                         uint64_t excluded, struct agent_search *search)
{
    struct agent_reactor *reactor = shard->reactor;
    uint32_t owners[2];

    (void)slot_owners(shard, reactor->view->owners, slot, owners);
    if (owners[1] == UINT32_MAX || (excluded >> owners[1] & 1) != 0 ||
        agent_enclosure_takes(&reactor->enclosures[owners[0]], slot) ||
        !agent_enclosure_takes(&reactor->enclosures[owners[1]], slot))
        return NULL;
    search->passed = (uint8_t)(owners[0] + 1);
    return &reactor->enclosures[owners[1]];
}

/* The one that owned a slot before, if it was not asked and can be. A slow one is: no other has
 * what it has. */
static struct agent_enclosure *pick_former(struct agent_shard *shard, uint32_t slot,
                                           struct agent_search *search)
{
    const struct agent_reactor *reactor = shard->reactor;
    const struct agent_view *view = reactor->view;
    uint64_t missing = atomic_load_explicit(&shard->missing, memory_order_relaxed);
    uint32_t number;

    if (view->former == NULL)
        return NULL;
    number = agent_view_rank(view, view->former, slot, 0);
    if (number == UINT32_MAX || ((missing | search->tried) >> number & 1) != 0)
        return NULL;
    if ((agent_reactor_down(reactor) >> number & 1) == 0)
        return &reactor->enclosures[number];
    search->owner_down = true;
    return NULL;
}

struct agent_enclosure *agent_op_pick(struct agent_shard *shard, const struct key *key,
                                      struct agent_search *search)
{
    const struct agent_reactor *reactor = shard->reactor;
    uint64_t excluded = atomic_load_explicit(&reactor->excluded, memory_order_relaxed);
    struct agent_enclosure *enclosure;
    uint32_t slot;

    search->at_former = false;
    if (reactor->view->owners == NULL)
        return NULL;
    slot = place_slot(reactor->view->owners, key, volume_has_runs(&shard->spec));
    if (search->is_missed) {
        enclosure = pick_former(shard, slot, search);
        search->at_former = enclosure != NULL;
        if (enclosure != NULL || (!search->may_be_next && !search_is_behind(shard, search)))
            return enclosure;
    }
    if (search->tried == 0) {
        search->passed = 0;
        enclosure = reactor->lowered != 0 ? pick_next(shard, slot, excluded, search) : NULL;
        if (enclosure != NULL)
            return enclosure;
    }
    enclosure = pick_owner(shard, slot, excluded, search);
    if (enclosure == NULL && search->tried == 0) /* a slow one is better than none */
        enclosure = pick_owner(shard, slot, agent_reactor_down(reactor), search);
    return enclosure;
}

icms_err agent_op_target(struct agent_shard *shard, const struct key *key)
{
    struct agent_search search = {0};

    if (agent_op_pick(shard, key, &search) != NULL)
        return ICMS_OK;
    return search.owner_lacks && !search.owner_down ? ICMS_NO_VOLUME : ICMS_PEER_DOWN;
}

bool agent_op_may_move(const struct agent_shard *shard, const struct key *key)
{
    const struct agent_view *view = shard->reactor->view;
    uint32_t slot;

    if (view->former == NULL)
        return false;
    slot = place_slot(view->owners, key, volume_has_runs(&shard->spec));
    return agent_view_rank(view, view->owners, slot, 0) !=
           agent_view_rank(view, view->former, slot, 0);
}

/* Owner and next in order, both, have to forget a block. owner_down: one that may have it cannot be
 * asked. */
static struct agent_enclosure *pick_delete(struct agent_op *op, const struct place_map *map)
{
    const struct agent_reactor *reactor = op->shard->reactor;
    uint64_t excluded = agent_reactor_down(reactor);
    uint32_t owners[2];

    if (slot_owners(op->shard, map, place_slot(map, &op->key, volume_has_runs(&op->shard->spec)),
                    owners))
        op->search.owner_lacks = true;
    if (owners[0] == UINT32_MAX)
        return NULL;
    if ((excluded >> owners[0] & 1) != 0)
        op->search.owner_down = true;
    else if ((op->search.tried >> owners[0] & 1) == 0)
        return &reactor->enclosures[owners[0]];
    if (owners[1] == UINT32_MAX || (op->search.tried >> owners[1] & 1) != 0)
        return NULL;
    if ((excluded >> owners[1] & 1) == 0)
        return &reactor->enclosures[owners[1]];
    if (agent_enclosure_was_away(&reactor->enclosures[owners[0]], op->shard))
        op->search.owner_down = true;
    return NULL;
}

/* Those that own the key, and those that owned it before. */
static struct agent_enclosure *op_pick_delete(struct agent_op *op)
{
    const struct agent_view *view = op->shard->reactor->view;
    struct agent_enclosure *enclosure = NULL;

    if (view->owners != NULL)
        enclosure = pick_delete(op, view->owners);
    if (enclosure == NULL && view->former != NULL)
        enclosure = pick_delete(op, view->former);
    return enclosure;
}

/* The next enclosure that a flush has to ask. One that holds stores of the client and is excluded
 * cannot promise anything: the flush fails. */
static struct agent_enclosure *op_pick_flush(struct agent_op *op)
{
    const struct agent_reactor *reactor = op->shard->reactor;
    uint64_t excluded = agent_reactor_down(reactor);
    uint64_t left = op->wanted & ~op->search.tried;

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

    if (agent_op_is_stale(op))
        return false;
    if (agent->local != NULL) {
        if ((op->search.tried & 1) != 0)
            return false;
        op->search.tried = 1;
        agent_local_ask(agent->local, op);
        return true;
    }
    if (op->kind == AGENT_OP_FLUSH)
        op->enclosure = op_pick_flush(op);
    else if (op->kind == AGENT_OP_DELETE && op->record != 0)
        op->enclosure = op->search.tried == 0 ? op->enclosure : NULL;
    else if (op->kind == AGENT_OP_DELETE)
        op->enclosure = op_pick_delete(op);
    else
        op->enclosure = agent_op_pick(op->shard, &op->key, &op->search);
    if (op->enclosure == NULL)
        return false;
    agent_search_asked(&op->search, op->enclosure);
    if (op->kind == AGENT_OP_STORE && !op->looks && op->search.passed != 0)
        agent_enclosure_passed(&op->shard->reactor->enclosures[op->search.passed - 1]);
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

/* Whether the next in order is asked before the owner, whose share is lowered. */
static bool op_passes_owner(const struct agent_op *op)
{
    struct agent_search search = {0};

    return op->shard->reactor->lowered != 0 &&
           agent_op_pick(op->shard, &op->key, &search) != NULL && search.passed != 0;
}

void agent_op_start(struct agent_op *op)
{
    struct agent_shard *shard = op->shard;

    op->busy = true;
    if (op->slot != SHM_SLOT_NONE)
        agent_shard_pin(shard, op->slot);
    if (op->kind == AGENT_OP_LOAD || op->kind == AGENT_OP_STORE || op->kind == AGENT_OP_DELETE)
        list_push(op_key_list(shard, &op->key), &op->key_link);
    if (op->kind == AGENT_OP_STORE && !op->moves) {
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
        op->own_dirty = share->own_dirty;
        share->dirty = 0;
        share->own_dirty = false;
        op->err = ICMS_OK;
    } else {
        op->err = ICMS_PEER_DOWN;
        op->reason = ICMS_MISS_ENCLOSURE_DOWN;
    }
    op->looks = op->kind == AGENT_OP_STORE && !op->moves &&
                (agent_tier_takes(shard, &op->key) || (op->if_absent && op_passes_owner(op)));
    if ((!op->looks && agent_tier_ask(op)) || op_ask(op))
        return;
    if (op->search.owner_lacks && !op->search.owner_down)
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
    op->search.owner_lacks = true; /* not any more: enclosure_volume_lost */
    op_says_no_volume(op);
}

/* Whether another one is asked for a block: the one that was asked does not have it, or is lost. */
static bool op_read_goes_on(struct agent_op *op)
{
    icms_err err = op->err;
    enum icms_miss reason = op->reason;

    if (op->enclosure == NULL)
        return false;
    if (op->kind == AGENT_OP_LOAD && err != ICMS_OK &&
        reactor_now_ns(op->shard->reactor) >= op->deadline_ns) {
        /* Nobody else is asked, and who waits with a late one and has more time asks again. */
        op->err = ICMS_DEADLINE;
        op->reason = ICMS_MISS_DEADLINE;
        return false;
    }
    if (agent_err_is_lost(err) || err == ICMS_NO_VOLUME) {
        agent_search_lost(&op->search, err == ICMS_NO_VOLUME);
        return op_ask(op);
    }
    if (err == ICMS_OK || err == ICMS_MISS)
        agent_search_count(op->shard, &op->search, err == ICMS_OK);
    if (err != ICMS_MISS || (reason != ICMS_MISS_ABSENT && reason != ICMS_MISS_EVICTED) ||
        !agent_search_missed(op->shard, &op->search, op->enclosure))
        return false;
    if (op->first_reason == ICMS_MISS_NONE && op->search.passed == 0)
        op->first_reason = reason; /* else what the owner says comes last */
    return op_ask(op);
}

/* True when somebody else is asked now. */
static bool op_goes_on(struct agent_op *op)
{
    icms_err err = op->err;

    if (agent_err_is_lost(err))
        op->search.owner_down = true;
    switch (op->kind) {
    case AGENT_OP_LOAD:
    case AGENT_OP_EXIST:
        return op_read_goes_on(op);
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

/* The own drive has answered, or had its time: what it does not have the pod may have. A block that
 * it could not forget is as one of an enclosure that is down. */
static void op_tier_answered(struct agent_op *op)
{
    icms_err err = op->err;

    op->at_tier = false;
    if ((op->kind == AGENT_OP_LOAD &&
         (err == ICMS_OK ||
          (err == ICMS_VALUE_SIZE && op->value_bytes <= op->shard->stored_bytes_max))) ||
        (op->kind == AGENT_OP_STORE && (err == ICMS_OK || err == ICMS_EXISTS)) ||
        (op->kind == AGENT_OP_FLUSH && err != ICMS_OK)) {
        op->from_tier = op->err == ICMS_OK;
        if (err == ICMS_OK)
            op->reason = ICMS_MISS_NONE;
        op_done(op);
        return;
    }
    if (op->kind == AGENT_OP_DELETE && op->err == ICMS_OK)
        op->found = true;
    else if (op->kind == AGENT_OP_DELETE && op->err != ICMS_MISS)
        op->search.owner_down = true;
    op->err = op->kind == AGENT_OP_FLUSH ? ICMS_OK : ICMS_PEER_DOWN;
    op->reason = op->kind == AGENT_OP_FLUSH ? ICMS_MISS_NONE : ICMS_MISS_ENCLOSURE_DOWN;
    if (op_ask(op))
        return;
    if (op->search.owner_lacks && !op->search.owner_down)
        op_says_no_volume(op);
    op_done(op);
}

/* The pod has said whether it has the key of a store that the own drive would take alone, or the
 * next in order instead of the owner. */
static void op_looked(struct agent_op *op)
{
    bool is_there = op->err == ICMS_OK;
    bool is_absent = op->err == ICMS_MISS && !op->search.owner_down && !op->search.owner_lacks &&
                     (op->reason == ICMS_MISS_ABSENT || op->reason == ICMS_MISS_EVICTED);

    op->looks = false;
    op->search = (struct agent_search){0};
    op->first_reason = ICMS_MISS_NONE;
    op->enclosure = NULL;
    op->err = ICMS_PEER_DOWN;
    op->reason = ICMS_MISS_ENCLOSURE_DOWN;
    if (is_there && op->if_absent) {
        op->err = ICMS_EXISTS;
        op->reason = ICMS_MISS_NONE;
    } else if ((is_absent && agent_tier_ask(op)) || op_ask(op)) {
        return;
    } else if (op->search.owner_lacks && !op->search.owner_down) {
        op_says_no_volume(op);
    }
    op_done(op);
}

static void op_answered(struct agent_op *op)
{
    check(op->busy);
    if (op->at_tier) {
        op_tier_answered(op);
        return;
    }
    if (fault_hit("agent.answer"))
        op->err = ICMS_PEER_DOWN;
    op_answer_read(op);
    if (op->looks) {
        if (!op_read_goes_on(op))
            op_looked(op);
        return;
    }
    if (!op_goes_on(op))
        op_done(op);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* "Absent" of one that stands in for another says only that the other one was not asked. */
static void op_reason_settle(struct agent_op *op)
{
    if (op->err != ICMS_MISS || op->reason != ICMS_MISS_ABSENT)
        return;
    if (op->search.owner_down)
        op->reason = ICMS_MISS_ENCLOSURE_DOWN;
    else if (op->search.owner_lacks)
        op->reason = ICMS_MISS_NO_VOLUME;
    else if (agent_tier_has(op->shard, &op->key)) /* which had its time, or no buffer */
        op->reason = ICMS_MISS_DEADLINE;
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

/* A deadline for what nobody waits for: that of loads or of stores. */
static uint64_t op_background_ns(const struct agent_shard *shard, enum io_class io_class)
{
    const struct agent_opts *opts = &shard->agent->opts;

    return reactor_now_ns(shard->reactor) + (uint64_t)(io_class == IO_CLASS_LOAD
                                                           ? opts->load_deadline_ms
                                                           : opts->store_deadline_ms) *
                                                1000000;
}

struct agent_op *agent_op_suspect(struct agent_shard *shard, struct agent_user_share *user,
                                  const struct key *key, bool counted, uint64_t space,
                                  uint64_t deadline_ns)
{
    bool is_known = space != 0;
    struct agent_op *op;
    uint32_t slot;

    if (!shard->spec.sealed || agent_op_writer(shard, key) != NULL ||
        line_has_others(&shard->wait_slot, agent_member(shard->agent, user)))
        return NULL;
    op = agent_op_new(shard, user, AGENT_OP_LOAD, key, IO_CLASS_PRESTAGE);
    if (op == NULL) /* there is none, or others wait for one */
        return NULL;
    if (!is_known)
        space = agent_shard_load_bytes(shard, key);
    slot = agent_shard_slot_take(shard, space);
    if (slot == SHM_SLOT_NONE) {
        agent_op_free(op);
        return NULL;
    }
    op->slot = slot;
    op->space = space;
    op->is_reload = is_known;
    op->suspect = true;
    op->counted = counted;
    op->deadline_ns = u64_min(deadline_ns, op_background_ns(shard, IO_CLASS_LOAD));
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
    op = agent_op_new(shard, load->user, AGENT_OP_DELETE, &load->key, IO_CLASS_STORE);
    if (op == NULL)
        return;
    op->record = load->record;
    op->enclosure = load->enclosure;
    op->deadline_ns = op_background_ns(shard, IO_CLASS_STORE);
    agent_op_drop_loads(shard, &load->key);
    agent_op_start(op);
}

/* What came is damaged, or was not sealed for this volume and key. */
static void op_done_bad(const struct agent_op *op)
{
    if (op->suspect)
        op_repair(op);
    else if (!op->drop)
        (void)agent_op_suspect(op->shard, op->user, &op->key, true, 0, UINT64_MAX);
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

/* Whether stores of clients leave something to those that nobody waits for: half of what there is
 * of each. */
static bool op_move_fits(const struct agent_op *load, uint64_t stored_bytes)
{
    const struct agent_shard *shard = load->shard;
    const struct agent_reactor *reactor = shard->reactor;
    uint64_t backlog_bytes =
        atomic_load_explicit(&shard->agent->backlog_bytes, memory_order_relaxed) + stored_bytes;
    uint64_t store_bytes = shard->store_bytes + agent_shard_slot_bytes(shard, load->slot);

    return reactor->ops_used[IO_CLASS_STORE] < AGENT_OPS / 8 &&
           agent_reactor_has_op(reactor, IO_CLASS_STORE) &&
           line_first(&reactor->wait_op[IO_CLASS_STORE]) == NULL &&
           backlog_bytes <= shard->agent->opts.store_backlog_bytes / 2 &&
           store_bytes <= shard->store_bytes_max / 2 &&
           !agent_backlog_full(shard->agent, load->user, shard->number, stored_bytes);
}

/* A block that was found where it was before is stored where it belongs now, unless it is there,
 * nobody takes it, or there is more urgent work. */
static void op_move(const struct agent_op *load)
{
    struct agent_shard *shard = load->shard;
    uint32_t stored_bytes = load->value_bytes + (shard->spec.sealed ? LIMIT_TRAILER_BYTES : 0);
    struct agent_op *op;

    if (!load->search.at_former || load->search.owner_down || load->user == NULL ||
        agent_op_writer(shard, &load->key) != NULL)
        return;
    if (!op_move_fits(load, stored_bytes) ||
        (shard->spec.sealed &&
         agent_shard_check(shard, load->slot, &load->key, load->value_bytes) != ICMS_OK) ||
        !agent_backlog_take(shard->agent, load->user, shard->number, stored_bytes)) {
        counter_add(&shard->moves_shed, 1);
        return;
    }
    op = agent_op_new(shard, load->user, AGENT_OP_STORE, &load->key, IO_CLASS_STORE);
    check(op != NULL);
    op->moves = true;
    op->if_absent = true;
    op->slot = load->slot;
    op->value_bytes = load->value_bytes;
    op->stored_bytes = stored_bytes;
    op->deadline_ns = op_background_ns(shard, IO_CLASS_STORE);
    shard->store_bytes += agent_shard_slot_bytes(shard, op->slot);
    agent_op_start(op);
}

/* The slot stays what it is, whatever became of the copy. */
static void op_done_move(const struct agent_op *op)
{
    struct agent_shard *shard = op->shard;

    if (op->err == ICMS_OK) {
        counter_add(&shard->moved, 1);
        counter_add(&shard->moved_bytes, op->value_bytes);
    } else if (op->err != ICMS_EXISTS) { /* another agent was first */
        counter_add(&shard->moves_shed, 1);
    }
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
        op->bad = op->suspect &&
                  agent_shard_check(shard, op->slot, &op->key, op->value_bytes) == ICMS_CORRUPT;
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
        agent_shard_publish(shard, op->slot, &op->key, op->value_bytes, op->once);
        op_move(op);
        return;
    }
    agent_shard_slot_give(shard, op->slot);
    op->slot = SHM_SLOT_NONE;
    if (op->too_small && op->suspect)
        (void)agent_op_suspect(shard, op->user, &op->key, op->counted, op->space, op->deadline_ns);
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

    if (op->err == ICMS_OK && op->lost) {
        op->err = ICMS_PEER_DOWN;
        op->reason = ICMS_MISS_ENCLOSURE_DOWN;
    }
    if (share == NULL)
        return;
    share->flush = NULL;
    if (op->err == ICMS_OK)
        return;
    share->dirty |= op->wanted;
    if (op->err != ICMS_DRIVE_DOWN) /* then it is lost: told once */
        share->own_dirty |= op->own_dirty;
    /* What an enclosure had of a volume that it lacks now is lost: told once. */
    if (op->err == ICMS_NO_VOLUME && op->enclosure != NULL)
        share->dirty &= ~((uint64_t)1 << op->enclosure->number);
}

/* The enclosure has a store that was not flushed; if it just left, that is lost. */
static void share_dirty(struct agent_share *share, const struct agent_enclosure *enclosure)
{
    uint64_t bit = (uint64_t)1 << enclosure->number;

    if ((enclosure->reactor->view->members & bit) != 0)
        share->dirty |= bit;
    else
        share->failed++;
}

static void op_done_store(struct agent_op *op)
{
    struct agent_shard *shard = op->shard;
    struct agent_share *share = op->moves ? NULL : op_share(op);

    agent_backlog_give(shard->agent, op->user, shard->number, op->stored_bytes);
    check(shard->store_bytes >= agent_shard_slot_bytes(shard, op->slot));
    shard->store_bytes -= agent_shard_slot_bytes(shard, op->slot);
    agent_shard_unpin(shard, op->slot);
    list_remove(&op->client_link);
    if (share != NULL && op->err == ICMS_OK && op->enclosure != NULL)
        share_dirty(share, op->enclosure);
    if (share != NULL && op->from_tier)
        share->own_dirty = true;
    if (!op->moves && !op->published && !op->from_tier && (op->err != ICMS_EXISTS || op->left_tier))
        agent_tier_forget(shard, &op->key); /* it may have been replaced */
    if (op->moves) {
        op_done_move(op);
    } else if (op->published) {
        if (op->err != ICMS_OK)
            counter_add(&shard->store_failures, 1);
        if (op->err != ICMS_OK && share != NULL)
            share->failed++;
    } else if (op->err == ICMS_OK && !list_empty(&op->waiters)) {
        agent_shard_publish(shard, op->slot, &op->key, op->value_bytes, op->once);
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

/* Its volume was reset meanwhile: whatever it brought is not of the volume as it is now. A load
 * into the memory of a request from before keeps what it has. */
static void op_stale(struct agent_op *op)
{
    if (op->kind == AGENT_OP_LOAD && op->direct != NULL && op->err == ICMS_OK)
        return;
    op->err = op->kind == AGENT_OP_LOAD || op->kind == AGENT_OP_EXIST ? ICMS_MISS : ICMS_NO_VOLUME;
    op->reason = ICMS_MISS_NO_VOLUME;
    op->drop = false;
    op->wanted = 0; /* FLUSH: agent_shard_identity_set counts what is lost */
}

/* Nobody will be asked any more, nothing touches the slot: tells all that wait. */
static void op_done(struct agent_op *op)
{
    struct list *link;

    list_remove(&op->key_link);
    op->busy = false;
    /* What the owner said counts, unless the block is there, or may be: the next was late. */
    if (op->err != ICMS_OK && op->err != ICMS_VALUE_SIZE && op->err != ICMS_DEADLINE &&
        op->first_reason != ICMS_MISS_NONE) {
        op->err = ICMS_MISS;
        op->reason = op->first_reason;
    }
    if (agent_op_is_stale(op))
        op_stale(op);
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
