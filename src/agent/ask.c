/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/ask.c: what an enclosure is asked, and by which of its links (enclosure.h).
 *
 * Called by op.c and match.c on the reactor's loop.
 *
 * Life of a command: agent_enclosure_ask -> enclosure_op_start, which picks a link -> the link's
 * association -> enclosure_req_done -> op->answered; or, when the link was lost under it, again by
 * a link that did not have it (links_tried), until none is left or its deadline has passed.
 * Commands of a batch alike: agent_enclosure_ask_match, match_req_done.
 *
 * Invariant: what a link has in flight (in_flight, in_flight_bytes) is what was begun there
 * (link_begun) and is not over (link_over); its association ends all of it before it is closed.
 */
#include "agent/agent_int.h"

/* ---- one command at a link ------------------------------------------------------------------ */

static uint64_t req_space(const struct nvmf_req *req)
{
    return req->data[0].iov_len + req->data[1].iov_len;
}

static void link_begun(struct agent_link *link, const struct nvmf_req *req)
{
    counter_add(&link->commands, 1);
    counter_add(&link->in_flight, 1);
    counter_add(&link->in_flight_bytes, req_space(req) + AGENT_KEY_COST_BYTES);
}

static void link_over(struct agent_link *link, const struct nvmf_req *req)
{
    uint64_t bytes = req_space(req) + AGENT_KEY_COST_BYTES;

    check(counter_get(&link->in_flight) > 0 && counter_get(&link->in_flight_bytes) >= bytes);
    counter_set(&link->in_flight, counter_get(&link->in_flight) - 1);
    counter_set(&link->in_flight_bytes, counter_get(&link->in_flight_bytes) - bytes);
}

/* How a command ended, seen from here. */
static icms_err link_req_err(struct agent_link *link, struct agent_shard *shard, bool is_load,
                             const struct nvmf_req *req)
{
    bool is_damaged = is_load && req->err == ICMS_CORRUPT; /* what came of it */

    if (req->err == ICMS_NO_VOLUME && link->nsid[shard->number] == req->nsid &&
        agent_link_is_up(link))
        agent_link_volume_lost(link, shard);
    /* The association ended under it, whatever the association died of. */
    if (req->status == 0 && req->err != ICMS_OK && !is_damaged && !agent_link_is_up(link) &&
        reactor_now_ns(shard->reactor) < req->deadline_ns)
        return ICMS_PEER_DOWN;
    return req->err;
}

/* Counts the latency of a command that was answered; what ended with the association was not. */
static void enclosure_count(struct agent_enclosure *enclosure, enum agent_latency kind,
                            icms_err err, uint64_t asked_ns)
{
    if (err != ICMS_PEER_DOWN)
        hist_add(&enclosure->op_ns[kind], reactor_now_ns(enclosure->reactor) - asked_ns);
}

/* ---- operations ----------------------------------------------------------------------------- */

static enum agent_op_kind op_asks(const struct agent_op *op)
{
    return op->looks ? AGENT_OP_EXIST : op->kind;
}

/* Somebody waits for what a load or exist of it brings. */
static bool op_is_awaited(const struct agent_op *op)
{
    return op->io_class == IO_CLASS_LOAD &&
           (op->kind == AGENT_OP_LOAD || op->kind == AGENT_OP_EXIST);
}

static void enclosure_op_count(struct agent_op *op)
{
    struct agent_enclosure *enclosure = op->enclosure;
    enum agent_op_kind asks = op_asks(op);

    if (asks == AGENT_OP_LOAD)
        enclosure_count(enclosure, AGENT_LATENCY_LOAD, op->err, op->asked.sent_ns);
    else if (asks == AGENT_OP_STORE)
        enclosure_count(enclosure, AGENT_LATENCY_STORE, op->err, op->asked.sent_ns);
    else if (asks == AGENT_OP_EXIST)
        enclosure_count(enclosure, AGENT_LATENCY_EXIST, op->err, op->asked.sent_ns);
    if (asks == AGENT_OP_STORE && op->err == ICMS_OK) {
        counter_add(&enclosure->reactor->pod_store_bytes, op->stored_bytes);
        counter_add(&enclosure->store_bytes, op->stored_bytes);
        counter_add(&op->by_link->store_bytes, op->stored_bytes);
    }
}

static void enclosure_op_loaded(struct agent_op *op, const struct nvmf_req *req)
{
    uint64_t space = req_space(req);
    uint64_t came_bytes = u64_min(req->value_bytes, space); /* more did not come */

    op->value_bytes = req->value_bytes;
    op->record = req->record;
    counter_add(&op->enclosure->reactor->pod_load_bytes, came_bytes);
    counter_add(&op->enclosure->load_bytes, came_bytes);
    counter_add(&op->by_link->load_bytes, came_bytes);
    if (req->value_bytes > space)
        op->err = ICMS_VALUE_SIZE;
}

/* Whether it says how long loads take. Those of hints do not: they may stand behind the loads of
 * all hosts there, which in turn pass them by, so they are no part of what a load waits for. */
static bool op_is_measured(const struct agent_op *op)
{
    return op->kind == AGENT_OP_LOAD && op->io_class != IO_CLASS_PRESTAGE;
}

/* What the load took, against what was expected of it. */
static void enclosure_load_ended(const struct agent_op *op, const struct nvmf_req *req)
{
    struct agent_enclosure *enclosure = op->enclosure;
    enum estimate_end end = ESTIMATE_NOTHING;
    uint64_t error;

    if (agent_reactor_stalled(enclosure->reactor, op->asked.sent_ns))
        end = ESTIMATE_NOTHING;
    else if (op->err == ICMS_OK)
        end = ESTIMATE_CAME;
    else if (op->err == ICMS_DEADLINE || op->err == ICMS_CANCELED) /* one NVMe status for both */
        end = ESTIMATE_LATE;
    error = estimate_ended(&enclosure->estimate, &op->load, end,
                           u64_min(req->value_bytes, req_space(req)),
                           reactor_now_ns(enclosure->reactor));
    if (error != ESTIMATE_UNKNOWN)
        hist_add(&enclosure->estimate_error, error);
}

/* Bytes of the value of which clients may know when so many of what is stored have come: of whole
 * pieces. The last bytes that came may be the trailer of a plain value. */
static uint32_t req_arrived_bytes(const struct agent_op *op, uint32_t came_bytes)
{
    uint64_t pieces = came_bytes / LIMIT_PIECE_BYTES;

    if (op->shard->spec.encrypted) {
        pieces = sealed_pieces_in(came_bytes);
        return pieces == 0 ? 0 : (uint32_t)sealed_pieces_end((uint32_t)pieces);
    }
    return pieces == 0 ? 0 : (uint32_t)(pieces * LIMIT_PIECE_BYTES - LIMIT_TRAILER_BYTES);
}

/* More of a sealed value is in its slot: who waits may be told, piece by piece. A load that begins
 * anew, elsewhere perhaps, has none again: clients see by tags or the checksum what they were told
 * of, and in their own memory by the number of the arrival. */
static void enclosure_req_came(struct nvmf_req *req)
{
    struct agent_op *op = req->owner;
    uint32_t arrived_bytes = req_arrived_bytes(op, req->came_bytes);

    if (arrived_bytes == op->arrived_bytes)
        return;
    op->arrived_bytes = arrived_bytes;
    list_for_each (link, &op->waiters) {
        struct agent_waiter *waiter = container_of(link, struct agent_waiter, link);

        if (waiter->came != NULL)
            waiter->came(waiter, op);
    }
}

/* The value that a request waits for in its memory comes into the arena instead, and the request is
 * over. False: some of the value is in its memory, or there is no room in the arena. */
static bool enclosure_req_to_arena(struct agent_op *op, struct nvmf_req *req)
{
    struct agent_shard *shard = op->shard;
    uint64_t bytes = req_space(req);
    uint32_t slot;

    if (req->came_bytes != 0)
        return false;
    slot = agent_shard_slot_take_hint(shard, bytes); /* nobody waits for it now */
    if (slot == SHM_SLOT_NONE)
        return false;
    if (!nvmf_redirect(req,
                       (struct iovec[]){{agent_shard_memory(shard, slot), bytes}, {NULL, 0}})) {
        agent_shard_slot_give(shard, slot);
        return false;
    }
    op->once = (op->direct->flags & SHM_FLAG_ONCE) != 0;
    op->err = ICMS_DEADLINE;
    op->reason = ICMS_MISS_DEADLINE;
    check(!list_empty(&op->waiters));
    agent_waiter_wake(list_first(&op->waiters), op);
    agent_shard_pin(shard, slot);
    op->direct = NULL;
    op->slot = slot;
    op->space = bytes;
    return true;
}

/* The deadline of a load has passed. Its value is on its way and is not thrown away: who asks for
 * the block again soon waits with this load. Not where it would be thrown away then, many are in
 * flight or memory is wanted. The enclosure is late, whatever comes. */
static uint64_t enclosure_req_overdue(struct nvmf_req *req)
{
    struct agent_op *op = req->owner;
    struct agent_shard *shard = op->shard;
    uint64_t late_bytes = shard->late_bytes + req_space(req);

    if (op->drop || agent_op_is_stale(op))
        return 0;
    if (shard->reactor->ops_used[IO_CLASS_LOAD] > AGENT_LATE_OPS ||
        line_first(&shard->wait_slot) != NULL ||
        late_bytes > counter_get(&shard->bytes) / AGENT_LATE_SHARE)
        return 0;
    if (op->direct != NULL && !enclosure_req_to_arena(op, req))
        return 0;
    shard->late_bytes = late_bytes;
    op->is_late = true;
    list_remove(&op->asked.link);
    agent_link_missed(op->by_link, shard, true, req, &op->asked);
    return AGENT_LATE_NS;
}

static bool enclosure_op_again(struct agent_op *op);

static void enclosure_req_done(struct nvmf_req *req)
{
    struct agent_op *op = req->owner;
    struct agent_enclosure *enclosure = op->enclosure;
    bool was_late = op->is_late;

    op->is_late = false;
    if (was_late)
        op->shard->late_bytes -= req_space(req);

    link_over(op->by_link, req);
    list_remove(&op->asked.link);
    op->err = link_req_err(op->by_link, op->shard, op->kind == AGENT_OP_LOAD, req);
    op->reason = req->reason;
    if (op->kind == AGENT_OP_LOAD)
        enclosure->loading_bytes -= req_space(req);
    if (op_is_measured(op))
        enclosure_load_ended(op, req);
    if (op_asks(op) == AGENT_OP_STORE) {
        enclosure->storing_bytes -= req_space(req);
        agent_enclosure_store_ended(enclosure, req, &op->asked);
    }
    if (op_is_awaited(op) && !was_late)
        agent_link_ended(op->by_link, op->shard, op->kind == AGENT_OP_LOAD, req, &op->asked);
    enclosure_op_count(op);
    if (op->kind == AGENT_OP_LOAD && op->err == ICMS_OK)
        enclosure_op_loaded(op, req);
    if (op->err != ICMS_PEER_DOWN || !enclosure_op_again(op))
        op->answered(op);
}

/* The command of an operation; its memory is where `op` says. */
static icms_err enclosure_op_send(struct agent_op *op)
{
    struct agent_link *link = op->by_link;
    struct nvmf_ctrl *ctrl = link->own.ctrl;
    struct agent_shard *shard = op->shard;
    struct nvmf_req *req = &op->u.nvmf;
    uint8_t *memory = op->slot == SHM_SLOT_NONE ? NULL : agent_shard_memory(shard, op->slot);

    switch (op_asks(op)) {
    case AGENT_OP_LOAD:
        if (op->direct != NULL) {
            req->data[0] = (struct iovec){(void *)(uintptr_t)op->direct->offset, op->direct->bytes};
            req->data[1] =
                (struct iovec){(void *)(uintptr_t)op->direct->aside, LIMIT_TRAILER_BYTES};
        } else {
            req->data[0] = (struct iovec){memory, op->space};
        }
        req->want_record = op->suspect;
        return nvmf_retrieve(ctrl, req);
    case AGENT_OP_STORE:
        if (op->stored_bytes > link->value_bytes_max[shard->number])
            return ICMS_VALUE_SIZE;
        req->data[0] = (struct iovec){memory, op->stored_bytes};
        req->options = op->if_absent ? NVME_KV_STORE_IF_ABSENT : 0;
        return nvmf_store(ctrl, req);
    case AGENT_OP_EXIST:
        return nvmf_exist(ctrl, req);
    case AGENT_OP_DELETE:
        req->only_record = (uint32_t)op->record;
        return nvmf_delete(ctrl, req);
    case AGENT_OP_FLUSH:
        return nvmf_flush(ctrl, req);
    }
    return ICMS_INVALID;
}

static icms_err enclosure_op_start(struct agent_enclosure *enclosure, struct agent_op *op)
{
    struct agent_shard *shard = op->shard;
    icms_err err = agent_enclosure_link(enclosure, shard->number, op->links_tried, &op->by_link);

    if (err != ICMS_OK)
        return err;
    op->links_tried |= (uint32_t)1 << op->by_link->at;
    op->asked.sent_ns = reactor_now_ns(enclosure->reactor);
    op->u.nvmf = (struct nvmf_req){
        .nsid = op->by_link->nsid[shard->number],
        .share = agent_share(shard, op->user),
        .io_class = op->is_expedited ? IO_CLASS_LOAD : op->io_class,
        .key = op->key,
        .deadline_ns = op->deadline_ns,
        .done = enclosure_req_done,
        .owner = op,
    };
    if (shard->spec.sealed && op->kind == AGENT_OP_LOAD)
        op->u.nvmf.came = enclosure_req_came;
    if (op_is_measured(op) && !op->suspect)
        op->u.nvmf.overdue = enclosure_req_overdue;
    if (op->direct != NULL)
        op->arrival = ++enclosure->reactor->arrivals;
    err = enclosure_op_send(op);
    if (err == ICMS_OK) {
        link_begun(op->by_link, &op->u.nvmf);
        if (op->kind == AGENT_OP_LOAD)
            enclosure->loading_bytes += req_space(&op->u.nvmf);
        if (op_is_measured(op))
            estimate_begun(&enclosure->estimate, &op->load,
                           u64_min(agent_shard_expected_bytes(shard), req_space(&op->u.nvmf)),
                           op->asked.sent_ns);
        if (op_asks(op) == AGENT_OP_STORE)
            enclosure->storing_bytes += req_space(&op->u.nvmf);
    }
    op->asked.bytes =
        op_asks(op) == AGENT_OP_STORE ? enclosure->storing_bytes : enclosure->loading_bytes;
    if (err == ICMS_OK && op_asks(op) == AGENT_OP_STORE)
        agent_enclosure_store_sent(enclosure, &op->asked);
    if (err == ICMS_OK && op_is_awaited(op))
        agent_enclosure_sent(enclosure, op->kind == AGENT_OP_LOAD, &op->asked);
    return err;
}

/* The link was lost under it: true when another one has it now. */
static bool enclosure_op_again(struct agent_op *op)
{
    struct agent_enclosure *enclosure = op->enclosure;

    if (agent_op_is_stale(op) || reactor_now_ns(enclosure->reactor) >= op->deadline_ns ||
        enclosure_op_start(enclosure, op) != ICMS_OK)
        return false;
    counter_add(&enclosure->failovers, 1);
    return true;
}

static void enclosure_op_failed(struct loop_msg *msg)
{
    struct agent_op *op = container_of(msg, struct agent_op, msg);

    op->answered(op);
}

void agent_enclosure_ask(struct agent_enclosure *enclosure, struct agent_op *op)
{
    icms_err err;

    op->links_tried = 0;
    op->u.nvmf.state = NVMF_REQ_IDLE; /* the drive may have been asked before */
    err = enclosure_op_start(enclosure, op);
    if (err == ICMS_OK)
        return;
    op->err = err;
    op->reason = ICMS_MISS_NONE;
    loop_send(enclosure->reactor->loop, &op->msg, enclosure_op_failed);
}

/* ---- exist-many ----------------------------------------------------------------------------- */

static bool enclosure_match_again(struct agent_match_cmd *cmd);

static void match_req_done(struct nvmf_req *req)
{
    struct agent_match_cmd *cmd = req->owner;
    const struct agent_shard *shard = cmd->match->shard;

    link_over(cmd->by_link, req);
    list_remove(&cmd->asked.link);
    cmd->err = link_req_err(cmd->by_link, cmd->match->shard, false, req);
    cmd->reason = req->reason;
    agent_link_ended(cmd->by_link, shard, false, req, &cmd->asked);
    enclosure_count(cmd->enclosure, AGENT_LATENCY_EXIST, cmd->err, cmd->asked.sent_ns);
    if (cmd->err == ICMS_PEER_DOWN && enclosure_match_again(cmd))
        return;
    if (cmd->err == ICMS_UNSUPPORTED) /* offered, but not known: key by key from now on */
        atomic_store_explicit(&cmd->enclosure->exist_many, false, memory_order_relaxed);
    cmd->map = nvmf_exist_map(req);
    cmd->answered(cmd);
}

static icms_err enclosure_match_start(struct agent_match_cmd *cmd)
{
    struct agent_enclosure *enclosure = cmd->enclosure;
    const struct agent_match *match = cmd->match;
    icms_err err =
        agent_enclosure_link(enclosure, match->shard->number, cmd->links_tried, &cmd->by_link);

    if (err != ICMS_OK)
        return err;
    cmd->links_tried |= (uint32_t)1 << cmd->by_link->at;
    cmd->asked.sent_ns = reactor_now_ns(enclosure->reactor);
    cmd->asked.bytes = enclosure->loading_bytes;
    cmd->nvmf = (struct nvmf_req){
        .nsid = cmd->by_link->nsid[match->shard->number],
        .share = agent_share(match->shard, match->user),
        .io_class = IO_CLASS_LOAD,
        .key = cmd->keys[0],
        .deadline_ns = match->deadline_ns,
        .done = match_req_done,
        .owner = cmd,
    };
    err = nvmf_exist_many(cmd->by_link->own.ctrl, &cmd->nvmf, cmd->keys, cmd->count, cmd->data);
    if (err == ICMS_OK) {
        link_begun(cmd->by_link, &cmd->nvmf);
        agent_enclosure_sent(enclosure, false, &cmd->asked);
    }
    return err;
}

static bool enclosure_match_again(struct agent_match_cmd *cmd)
{
    const struct agent_match *match = cmd->match;

    if (match->identity != match->shard->identity ||
        reactor_now_ns(match->shard->reactor) >= match->deadline_ns ||
        enclosure_match_start(cmd) != ICMS_OK)
        return false;
    counter_add(&cmd->enclosure->failovers, 1);
    return true;
}

static void match_req_failed(struct loop_msg *msg)
{
    struct agent_match_cmd *cmd = container_of(msg, struct agent_match_cmd, msg);

    cmd->answered(cmd);
}

void agent_enclosure_ask_match(struct agent_enclosure *enclosure, struct agent_match_cmd *cmd)
{
    cmd->links_tried = 0;
    cmd->err = enclosure_match_start(cmd);
    if (cmd->err == ICMS_OK)
        return;
    cmd->reason = ICMS_MISS_NONE;
    loop_send(enclosure->reactor->loop, &cmd->msg, match_req_failed);
}

/* ---- what answers leave behind --------------------------------------------------------------- */

void agent_enclosure_damaged(struct agent_enclosure *enclosure, uint32_t volume,
                             const struct key *key)
{
    counter_add(&enclosure->checksum_errors, 1);
    pthread_mutex_lock(&enclosure->text_lock);
    enclosure->damaged_volume = volume;
    enclosure->damaged_key = *key;
    enclosure->damaged_ns = u64_max(loop_env_now_ns(enclosure->agent->env), 1);
    pthread_mutex_unlock(&enclosure->text_lock);
}

bool agent_enclosure_was_away(const struct agent_enclosure *enclosure,
                              const struct agent_shard *shard)
{
    uint64_t back_ns =
        u64_max(atomic_load_explicit(&enclosure->included_ns, memory_order_relaxed),
                atomic_load_explicit(&enclosure->appeared_ns[shard->number], memory_order_relaxed));

    return back_ns != 0 && loop_env_now_ns(enclosure->agent->env) - back_ns < AGENT_HEAL_NS;
}
