/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/enclosure.c: one enclosure as this agent sees it: its association, health, probing.
 *
 * On its reactor's loop. Every reactor has an association of its own with each enclosure, and a
 * verdict of its own on its health.
 *
 * Life: agent_enclosure_begin -> CONNECTING -> UP <-> EXCLUDED, and UP <-> SLOW -> EXCLUDED;
 * agent_enclosure_relink ends it from any of them: the association is closed, and another one takes
 * its place (CONNECTING), or none (the slot is free). Health
 * is decided here, on the data path: a connection that is refused, reset or silent (nvmf/host
 * counts bytes, and asks a busy enclosure for a sign of life) excludes at once; every operation in
 * flight comes back and goes on with the next enclosure. While excluded it is probed every
 * probe_ms, with jitter so that the agents of a pod do not knock together.
 *
 * Slow: base/slow.h has the rule. It is told of loads and exists that somebody waits for, each kind
 * beside its own, because an enclosure may be quick with one and late with the other. What this
 * agent itself has in flight there may take its time (ahead_bytes), and what was in flight while
 * the reactor stood still says nothing. A slow enclosure keeps its association and what is in
 * flight; new loads and stores go to the next one. It is probed with a command of the kind that was
 * late, for the key that was there last, so it does not come back before that is quick again. When
 * fewer than half of the enclosures are UP the slow ones are used again, and for a key that no
 * other can be asked for a slow one is (agent_op_pick): nothing better is left.
 *
 * An enclosure that lacks a volume, or hides it from this host, is passed over for that volume as
 * if it were excluded (shard->missing), and looked at again now and then.
 *
 * Invariant: bit `number` of reactor->excluded is clear exactly while UP, and that of reactor->slow
 * set exactly while SLOW.
 */
#include "agent/agent_int.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- health --------------------------------------------------------------------------------- */

static void enclosure_state_set(struct agent_enclosure *enclosure, enum agent_enclosure_state state)
{
    uint64_t bit = (uint64_t)1 << enclosure->number;
    uint64_t excluded = atomic_load_explicit(&enclosure->reactor->excluded, memory_order_relaxed);

    atomic_store_explicit(&enclosure->state, state, memory_order_relaxed);
    if (state == AGENT_ENCLOSURE_UP)
        excluded &= ~bit;
    else
        excluded |= bit;
    if (state == AGENT_ENCLOSURE_SLOW)
        enclosure->reactor->slow |= bit;
    else
        enclosure->reactor->slow &= ~bit;
    atomic_store_explicit(&enclosure->reactor->excluded, excluded, memory_order_release);
}

static void enclosure_text_set(struct agent_enclosure *enclosure, const char *text)
{
    pthread_mutex_lock(&enclosure->text_lock);
    snprintf(enclosure->last_error, sizeof(enclosure->last_error), "%s", text);
    enclosure->last_error_ns = reactor_now_ns(enclosure->reactor);
    pthread_mutex_unlock(&enclosure->text_lock);
}

static void enclosure_open(struct agent_enclosure *enclosure)
{
    uint64_t timeout_ns = (uint64_t)enclosure->agent->opts.connect_timeout_ms * 1000000;

    check(!enclosure->is_open);
    enclosure->is_open = true;
    nvmf_ctrl_open(enclosure->link.ctrl, reactor_now_ns(enclosure->reactor) + timeout_ns);
}

static enum agent_enclosure_state enclosure_state(const struct agent_enclosure *enclosure)
{
    return (enum agent_enclosure_state)atomic_load_explicit(&enclosure->state,
                                                            memory_order_relaxed);
}

/* The next probe is due in probe_ms, give or take a quarter. */
static void enclosure_probe_arm(struct agent_enclosure *enclosure)
{
    uint64_t probe_ns = (uint64_t)enclosure->agent->opts.probe_ms * 1000000;
    uint64_t jitter_ns = loop_random(enclosure->reactor->loop) % (probe_ns / 2 + 1);

    loop_timer_start(enclosure->reactor->loop, &enclosure->probe,
                     reactor_now_ns(enclosure->reactor) + probe_ns - probe_ns / 4 + jitter_ns);
}

/* ---- slow ----------------------------------------------------------------------------------- */

/* Enclosures (bits) that are UP. */
static uint64_t enclosures_in_use(const struct agent_reactor *reactor)
{
    return ~atomic_load_explicit(&reactor->excluded, memory_order_relaxed) & reactor->view->members;
}

static void enclosure_slow_begins(struct agent_enclosure *enclosure, struct slow *slow,
                                  uint64_t took_ns)
{
    bool is_load = slow == &enclosure->reactor->slow_loads;
    uint64_t limit_ns =
        slow_limit_ns(slow, enclosure->number, enclosures_in_use(enclosure->reactor), 0);
    char text[LIMIT_REASON_BYTES];

    (void)snprintf(text, sizeof(text),
                   "%s take longer than at the other enclosures: %llu ms, where more than %llu ms "
                   "are late",
                   is_load ? "loads" : "lookups", (unsigned long long)(took_ns / 1000000),
                   (unsigned long long)(limit_ns / 1000000));
    enclosure_text_set(enclosure, text);
    enclosure->slow_in = slow;
    counter_add(&enclosure->slow_total, 1);
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_SLOW);
    enclosure_probe_arm(enclosure);
}

static void enclosure_slow_ends(struct agent_enclosure *enclosure)
{
    slow_forget(&enclosure->reactor->slow_loads, enclosure->number);
    slow_forget(&enclosure->reactor->slow_exists, enclosure->number);
    loop_timer_stop(enclosure->reactor->loop, &enclosure->probe);
    /* Whoever took over meanwhile may have blocks of it. */
    atomic_store_explicit(&enclosure->included_ns, reactor_now_ns(enclosure->reactor),
                          memory_order_relaxed);
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_UP);
}

/* What is slow is better than nothing. */
void agent_enclosures_slow_release(struct agent_reactor *reactor)
{
    uint32_t up = (uint32_t)__builtin_popcountll(enclosures_in_use(reactor));
    uint32_t all = (uint32_t)__builtin_popcountll(reactor->view->members);

    for (uint64_t slow = reactor->slow; 2 * up < all && slow != 0; slow &= slow - 1)
        enclosure_slow_ends(&reactor->enclosures[__builtin_ctzll(slow)]);
}

/* What a probe will ask for: the last that was there, so that it costs what loads cost. */
static void enclosure_asked(struct agent_enclosure *enclosure, const struct nvmf_req *req,
                            bool is_load)
{
    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_UP ||
        (enclosure->asked[is_load].nsid != 0 && req->err != ICMS_OK))
        return;
    enclosure->asked[is_load].key = req->key;
    enclosure->asked[is_load].nsid = req->nsid;
}

/* A load or exist that somebody waits for has ended. */
static void enclosure_ended(struct agent_enclosure *enclosure, struct slow *slow,
                            const struct nvmf_req *req, uint64_t bytes, uint64_t asked_ns)
{
    struct agent_reactor *reactor = enclosure->reactor;
    uint64_t now_ns = reactor_now_ns(reactor);
    enum slow_end end = SLOW_ANSWERED;

    enclosure_asked(enclosure, req, slow == &reactor->slow_loads);
    if (req->err == ICMS_DEADLINE || req->err == ICMS_CANCELED) /* one NVMe status for both */
        end = SLOW_MISSED;
    else if (req->err == ICMS_BUSY || req->err == ICMS_LIMIT || req->reason == ICMS_MISS_SHED)
        end = SLOW_SHED;
    else if (req->err != ICMS_OK && req->err != ICMS_CORRUPT && req->status == 0)
        return; /* it ended with the association, or here */
    if (enclosure_state(enclosure) == AGENT_ENCLOSURE_UP &&
        !agent_reactor_stalled(reactor, asked_ns) &&
        slow_ended(slow, enclosure->number, enclosures_in_use(reactor), end, bytes, asked_ns,
                   now_ns))
        enclosure_slow_begins(enclosure, slow, now_ns - asked_ns);
}

static void enclosure_probe_done(struct nvmf_req *req)
{
    struct agent_enclosure *enclosure = req->owner;
    struct agent_reactor *reactor = enclosure->reactor;
    bool answered = req->status != 0 || req->err == ICMS_OK;

    enclosure->probing = false;
    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_SLOW ||
        agent_reactor_stalled(reactor, enclosure->probe_sent_ns))
        return;
    if (req->err == ICMS_DEADLINE || req->err == ICMS_CANCELED)
        answered = false;
    if (slow_probed(enclosure->slow_in, enclosure->number, enclosures_in_use(reactor), answered,
                    AGENT_PROBE_BYTES, enclosure->probe_sent_ns, reactor_now_ns(reactor)))
        enclosure_slow_ends(enclosure);
}

/* Is it still slow? */
static void enclosure_probe_send(struct agent_enclosure *enclosure)
{
    struct agent_reactor *reactor = enclosure->reactor;
    struct nvmf_req *req = &enclosure->probe_req;
    bool is_load = enclosure->slow_in == &reactor->slow_loads;

    if (enclosure->probing)
        return;
    enclosure->probe_sent_ns = reactor_now_ns(reactor);
    *req = (struct nvmf_req){
        .nsid = enclosure->asked[is_load].nsid,
        .io_class = IO_CLASS_LOAD,
        .key = enclosure->asked[is_load].key,
        .deadline_ns = enclosure->probe_sent_ns + AGENT_PROBE_DEADLINE_NS,
        .done = enclosure_probe_done,
        .owner = enclosure,
    };
    if (is_load)
        req->data[0] = (struct iovec){enclosure->probe_memory, AGENT_PROBE_BYTES};
    enclosure->probing =
        (is_load ? nvmf_retrieve : nvmf_exist)(enclosure->link.ctrl, req) == ICMS_OK;
}

static void enclosure_probe(struct loop_timer *timer)
{
    struct agent_enclosure *enclosure = container_of(timer, struct agent_enclosure, probe);

    counter_add(&enclosure->probes, 1);
    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_SLOW) {
        enclosure_open(enclosure);
        return;
    }
    enclosure_probe_arm(enclosure);
    enclosure_probe_send(enclosure);
}

/* ---- volumes -------------------------------------------------------------------------------- */

/* What a volume's values are, for people. */
static const char *enclosure_kind(bool sealed, bool encrypted)
{
    return encrypted ? "encrypted" : sealed ? "sealed" : "raw";
}

/* The namespace of a volume there, or NULL. A volume that is sealed here and raw there, or
 * encrypted at one end, is not ours. */
static const struct nvmf_volume *enclosure_volume_find(struct agent_enclosure *enclosure,
                                                       const struct volume_spec *spec)
{
    const struct nvmf_volume *found = NULL;
    char text[LIMIT_REASON_BYTES];

    if (!uuid_is_nil(&spec->uuid)) /* the pod has it */
        found = nvmf_ctrl_volume(enclosure->link.ctrl, &spec->uuid);

    if (found == NULL || !found->icms ||
        (found->sealed == spec->sealed && found->encrypted == spec->encrypted))
        return found;
    snprintf(text, sizeof(text), "volume %s is %s here and %s there", spec->name,
             enclosure_kind(spec->sealed, spec->encrypted),
             enclosure_kind(found->sealed, found->encrypted));
    enclosure_text_set(enclosure, text);
    return NULL;
}

/* Looks again, give or take a quarter, for volumes that may be attached later. */
static void enclosure_look_arm(struct agent_enclosure *enclosure)
{
    uint64_t look_ns = AGENT_LOOK_PROBES * (uint64_t)enclosure->agent->opts.probe_ms * 1000000;
    uint64_t jitter_ns = loop_random(enclosure->reactor->loop) % (look_ns / 2 + 1);

    if (!loop_timer_armed(&enclosure->look))
        loop_timer_start(enclosure->reactor->loop, &enclosure->look,
                         reactor_now_ns(enclosure->reactor) + look_ns - look_ns / 4 + jitter_ns);
}

static void enclosure_look(struct loop_timer *timer)
{
    nvmf_ctrl_look(container_of(timer, struct agent_enclosure, look)->link.ctrl);
}

/* Volumes by name: which namespace, how large. */
static void enclosure_volumes_read(struct agent_enclosure *enclosure)
{
    struct agent *agent = enclosure->agent;

    for (uint32_t i = 0; i < agent->volume_count; i++) {
        struct agent_shard *shard = &enclosure->reactor->shards[i];
        const struct nvmf_volume *found = enclosure_volume_find(enclosure, &shard->spec);

        enclosure->nsid[i] = found == NULL ? 0 : found->nsid;
        enclosure->value_bytes_max[i] = found == NULL ? 0 : found->value_bytes_max;
        if (found == NULL && !uuid_is_nil(&shard->spec.uuid))
            enclosure_look_arm(enclosure);
        /* Whoever stood in for it may have its blocks. */
        if (agent_shard_missing_set(shard, enclosure->number, found == NULL) && found != NULL)
            atomic_store_explicit(&enclosure->appeared_ns[i], reactor_now_ns(enclosure->reactor),
                                  memory_order_relaxed);
    }
}

/* It says that there is no such namespace: detached since the last look. */
static void enclosure_volume_lost(struct agent_enclosure *enclosure, struct agent_shard *shard)
{
    enclosure->nsid[shard->number] = 0;
    (void)agent_shard_missing_set(shard, enclosure->number, true);
    enclosure_look_arm(enclosure);
}

void agent_enclosure_volume_set(struct agent_enclosure *enclosure, uint32_t volume)
{
    struct agent_shard *shard = &enclosure->reactor->shards[volume];

    for (int i = 0; i < 2; i++)
        if (enclosure->asked[i].nsid == enclosure->nsid[volume])
            enclosure->asked[i].nsid = 0;
    enclosure->nsid[volume] = 0;
    enclosure->value_bytes_max[volume] = 0;
    atomic_store_explicit(&enclosure->appeared_ns[volume], 0, memory_order_relaxed);
    (void)agent_shard_missing_set(shard, enclosure->number, uuid_is_nil(&shard->spec.uuid));
    if (enclosure->next.ctrl != NULL)
        nvmf_ctrl_wanted_set(enclosure->next.ctrl, volume, &shard->spec.uuid);
    if (enclosure->link.ctrl == NULL)
        return;
    nvmf_ctrl_wanted_set(enclosure->link.ctrl, volume, &shard->spec.uuid);
    nvmf_ctrl_look(enclosure->link.ctrl);
}

static void enclosure_auths_read(struct agent_enclosure *enclosure)
{
    const struct nvmf_ctrl_stats *stats = nvmf_ctrl_stats(enclosure->link.ctrl);

    counter_add(&enclosure->auths, stats->auths - enclosure->link_auths);
    counter_add(&enclosure->auths_refused, stats->auths_refused - enclosure->link_auths_refused);
    enclosure->link_auths = stats->auths;
    enclosure->link_auths_refused = stats->auths_refused;
}

/* Whether the connections that are up now were asked to authenticate. */
static void enclosure_auth_set(struct agent_enclosure *enclosure)
{
    bool is_proven = nvmf_ctrl_stats(enclosure->link.ctrl)->auths > enclosure->link_auths;
    bool is_mutual = enclosure->link.keys->controller_secret != NULL;

    atomic_store_explicit(&enclosure->auth,
                          !is_proven  ? AGENT_AUTH_NONE
                          : is_mutual ? AGENT_AUTH_MUTUAL
                                      : AGENT_AUTH_CHAP,
                          memory_order_relaxed);
}

static void enclosure_up(struct nvmf_ctrl *ctrl)
{
    struct agent_enclosure *enclosure = nvmf_ctrl_owner(ctrl);
    uint64_t now_ns = reactor_now_ns(enclosure->reactor);
    uint64_t lately_ns = (uint64_t)enclosure->agent->opts.probe_ms * 1000000;

    /* Whoever took over meanwhile may have blocks of it. */
    if (enclosure_state(enclosure) == AGENT_ENCLOSURE_EXCLUDED || enclosure->was_relinked ||
        now_ns - enclosure->began_ns > lately_ns)
        atomic_store_explicit(&enclosure->included_ns, now_ns, memory_order_relaxed);
    enclosure->was_relinked = false;
    enclosure_auth_set(enclosure);
    enclosure_auths_read(enclosure);
    enclosure_volumes_read(enclosure);
    atomic_store_explicit(&enclosure->exist_many,
                          enclosure->agent->opts.exist_many && nvmf_ctrl_has_exist_many(ctrl),
                          memory_order_relaxed);
    atomic_store_explicit(&enclosure->tls, nvmf_ctrl_tls(ctrl), memory_order_relaxed);
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_UP);
    atomic_store_explicit(&enclosure->tried, true, memory_order_release);
}

/* What other hosts of the enclosure have. Where that is not what this one has, they look for the
 * same block at different places. An epoch reaches one host after the other: what it changes is not
 * told before all had time to take it. */
static void enclosure_told(struct nvmf_ctrl *ctrl, uint8_t feature, uint32_t volume,
                           uint32_t others)
{
    struct agent_enclosure *enclosure = nvmf_ctrl_owner(ctrl);
    const struct agent_reactor *reactor = enclosure->reactor;
    const struct nvmf_settings *own = &reactor->view->settings;
    bool is_settled =
        reactor->view->epoch == 0 || reactor_now_ns(reactor) - reactor->view_ns > AGENT_SETTLE_NS;

    if (feature == NVME_FEATURE_ICMS_ENCLOSURES)
        atomic_store_explicit(&enclosure->enclosures_differ,
                              is_settled && others != own->enclosures, memory_order_relaxed);
    else if (feature == NVME_FEATURE_ICMS_WEIGHTS)
        atomic_store_explicit(&enclosure->weights_differ, is_settled && others != own->weights,
                              memory_order_relaxed);
    else
        atomic_store_explicit(&enclosure->run_blocks_others[volume],
                              others != own->run_blocks[volume] ? others : 0, memory_order_relaxed);
}

static void enclosure_changed(struct nvmf_ctrl *ctrl)
{
    enclosure_volumes_read(nvmf_ctrl_owner(ctrl));
}

static void enclosure_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    struct agent_enclosure *enclosure = nvmf_ctrl_owner(ctrl);

    enclosure_auths_read(enclosure);
    enclosure_text_set(enclosure, why);
    loop_timer_stop(enclosure->reactor->loop, &enclosure->look);
    for (uint32_t i = 0; i < enclosure->agent->volume_count; i++) /* nobody knows what it has now */
        (void)agent_shard_missing_set(&enclosure->reactor->shards[i], enclosure->number, false);
    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_EXCLUDED)
        counter_add(&enclosure->exclusions, 1);
    loop_timer_stop(enclosure->reactor->loop, &enclosure->probe);
    slow_forget(&enclosure->reactor->slow_loads, enclosure->number);
    slow_forget(&enclosure->reactor->slow_exists, enclosure->number);
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_EXCLUDED);
    agent_enclosures_slow_release(enclosure->reactor);
    atomic_store_explicit(&enclosure->tried, true, memory_order_release);
}

static void enclosure_relinked(struct agent_enclosure *enclosure);

/* Everything of the association is over. */
static void enclosure_closed(struct nvmf_ctrl *ctrl)
{
    struct agent_enclosure *enclosure = nvmf_ctrl_owner(ctrl);

    enclosure->is_open = false;
    if (enclosure->is_relinking)
        enclosure_relinked(enclosure);
    else
        enclosure_probe_arm(enclosure);
}

static const struct nvmf_ctrl_ops enclosure_ctrl_ops = {
    .up = enclosure_up,
    .changed = enclosure_changed,
    .told = enclosure_told,
    .down = enclosure_down,
    .closed = enclosure_closed,
};

/* ---- operations ----------------------------------------------------------------------------- */

/* Not while it leaves, or after that. */
static bool enclosure_is_up(const struct agent_enclosure *enclosure)
{
    return enclosure->link.ctrl != NULL && nvmf_ctrl_is_up(enclosure->link.ctrl);
}

/* How a command ended, seen from here. */
static icms_err enclosure_req_err(struct agent_enclosure *enclosure, struct agent_shard *shard,
                                  const struct nvmf_req *req)
{
    if (req->err == ICMS_NO_VOLUME && enclosure->nsid[shard->number] == req->nsid &&
        enclosure_is_up(enclosure))
        enclosure_volume_lost(enclosure, shard);
    /* The association ended under it, whatever the association died of. */
    if (req->status == 0 && req->err != ICMS_OK && req->err != ICMS_CORRUPT &&
        !enclosure_is_up(enclosure) && reactor_now_ns(enclosure->reactor) < req->deadline_ns)
        return ICMS_PEER_DOWN;
    return req->err;
}

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

/* Counts the latency of a command that was answered; what ended with the association was not. */
static void enclosure_count(struct agent_enclosure *enclosure, enum agent_latency kind,
                            icms_err err, uint64_t asked_ns)
{
    if (err != ICMS_PEER_DOWN)
        hist_add(&enclosure->op_ns[kind], reactor_now_ns(enclosure->reactor) - asked_ns);
}

static uint64_t enclosure_req_space(const struct nvmf_req *req)
{
    return req->data[0].iov_len + req->data[1].iov_len;
}

static void enclosure_req_done(struct nvmf_req *req)
{
    struct agent_op *op = req->owner;
    struct agent_enclosure *enclosure = op->enclosure;

    op->err = enclosure_req_err(enclosure, op->shard, req);
    op->reason = req->reason;
    if (op->kind == AGENT_OP_LOAD)
        enclosure->loading_bytes -= enclosure_req_space(req);
    if (op->io_class == IO_CLASS_LOAD && op->kind == AGENT_OP_LOAD)
        enclosure_ended(enclosure, &enclosure->reactor->slow_loads, req, op->ahead_bytes,
                        op->asked_ns);
    else if (op->io_class == IO_CLASS_LOAD && op->kind == AGENT_OP_EXIST)
        enclosure_ended(enclosure, &enclosure->reactor->slow_exists, req, op->ahead_bytes,
                        op->asked_ns);
    if (op->kind == AGENT_OP_LOAD)
        enclosure_count(enclosure, AGENT_LATENCY_LOAD, op->err, op->asked_ns);
    else if (op->kind == AGENT_OP_STORE)
        enclosure_count(enclosure, AGENT_LATENCY_STORE, op->err, op->asked_ns);
    else if (op->kind == AGENT_OP_EXIST)
        enclosure_count(enclosure, AGENT_LATENCY_EXIST, op->err, op->asked_ns);
    if (op->kind == AGENT_OP_LOAD && op->err == ICMS_OK) {
        uint64_t space = enclosure_req_space(req);

        op->value_bytes = req->value_bytes;
        op->record = req->record;
        counter_add(&enclosure->load_bytes,
                    u64_min(req->value_bytes, space)); /* more did not come */
        if (req->value_bytes > space)
            op->err = ICMS_VALUE_SIZE;
    }
    if (op->kind == AGENT_OP_STORE && op->err == ICMS_OK)
        counter_add(&enclosure->store_bytes, op->stored_bytes);
    op->answered(op);
}

static icms_err enclosure_op_start(struct agent_enclosure *enclosure, struct agent_op *op)
{
    struct agent_shard *shard = op->shard;
    struct nvmf_req *req = &op->u.nvmf;
    uint8_t *memory = op->slot == SHM_SLOT_NONE ? NULL : agent_shard_memory(shard, op->slot);
    icms_err err;

    if (!enclosure_is_up(enclosure))
        return ICMS_PEER_DOWN;
    if (enclosure->nsid[shard->number] == 0)
        return ICMS_NO_VOLUME;
    op->asked_ns = reactor_now_ns(enclosure->reactor);
    op->ahead_bytes = enclosure->loading_bytes;
    *req = (struct nvmf_req){
        .nsid = enclosure->nsid[shard->number],
        .share = agent_share(shard, op->user),
        .io_class = op->io_class,
        .key = op->key,
        .deadline_ns = op->deadline_ns,
        .done = enclosure_req_done,
        .owner = op,
    };
    switch (op->kind) {
    case AGENT_OP_LOAD:
        if (op->direct != NULL) {
            req->data[0] = (struct iovec){(void *)(uintptr_t)op->direct->offset, op->direct->bytes};
            req->data[1] =
                (struct iovec){(void *)(uintptr_t)op->direct->aside, LIMIT_TRAILER_BYTES};
        } else {
            req->data[0] = (struct iovec){memory, op->space};
        }
        req->want_record = op->suspect;
        err = nvmf_retrieve(enclosure->link.ctrl, req);
        if (err == ICMS_OK)
            enclosure->loading_bytes += enclosure_req_space(req);
        op->ahead_bytes = enclosure->loading_bytes;
        return err;
    case AGENT_OP_STORE:
        if (op->stored_bytes > enclosure->value_bytes_max[shard->number])
            return ICMS_VALUE_SIZE;
        req->data[0] = (struct iovec){memory, op->stored_bytes};
        req->options = op->if_absent ? NVME_KV_STORE_IF_ABSENT : 0;
        return nvmf_store(enclosure->link.ctrl, req);
    case AGENT_OP_EXIST:
        return nvmf_exist(enclosure->link.ctrl, req);
    case AGENT_OP_DELETE:
        req->only_record = (uint32_t)op->record;
        return nvmf_delete(enclosure->link.ctrl, req);
    case AGENT_OP_FLUSH:
        return nvmf_flush(enclosure->link.ctrl, req);
    }
    return ICMS_INVALID;
}

static void enclosure_op_failed(struct loop_msg *msg)
{
    struct agent_op *op = container_of(msg, struct agent_op, msg);

    op->answered(op);
}

void agent_enclosure_ask(struct agent_enclosure *enclosure, struct agent_op *op)
{
    icms_err err = enclosure_op_start(enclosure, op);

    if (err == ICMS_OK)
        return;
    op->err = err;
    op->reason = ICMS_MISS_NONE;
    loop_send(enclosure->reactor->loop, &op->msg, enclosure_op_failed);
}

/* ---- exist-many ----------------------------------------------------------------------------- */

static void match_req_done(struct nvmf_req *req)
{
    struct agent_match_cmd *cmd = req->owner;

    cmd->err = enclosure_req_err(cmd->enclosure, cmd->match->shard, req);
    cmd->reason = req->reason;
    enclosure_ended(cmd->enclosure, &cmd->enclosure->reactor->slow_exists, req, cmd->ahead_bytes,
                    cmd->asked_ns);
    enclosure_count(cmd->enclosure, AGENT_LATENCY_EXIST, cmd->err, cmd->asked_ns);
    if (cmd->err == ICMS_UNSUPPORTED) /* offered, but not known: key by key from now on */
        atomic_store_explicit(&cmd->enclosure->exist_many, false, memory_order_relaxed);
    cmd->map = nvmf_exist_map(req);
    cmd->answered(cmd);
}

static void match_req_failed(struct loop_msg *msg)
{
    struct agent_match_cmd *cmd = container_of(msg, struct agent_match_cmd, msg);

    cmd->answered(cmd);
}

void agent_enclosure_ask_match(struct agent_enclosure *enclosure, struct agent_match_cmd *cmd)
{
    uint32_t nsid = enclosure->nsid[cmd->match->shard->number];

    cmd->asked_ns = reactor_now_ns(enclosure->reactor);
    cmd->ahead_bytes = enclosure->loading_bytes;
    cmd->nvmf = (struct nvmf_req){
        .nsid = nsid,
        .share = agent_share(cmd->match->shard, cmd->match->user),
        .io_class = IO_CLASS_LOAD,
        .key = cmd->keys[0],
        .deadline_ns = cmd->match->deadline_ns,
        .done = match_req_done,
        .owner = cmd,
    };
    if (!enclosure_is_up(enclosure))
        cmd->err = ICMS_PEER_DOWN;
    else if (nsid == 0)
        cmd->err = ICMS_NO_VOLUME;
    else
        cmd->err =
            nvmf_exist_many(enclosure->link.ctrl, &cmd->nvmf, cmd->keys, cmd->count, cmd->data);
    if (cmd->err == ICMS_OK)
        return;
    cmd->reason = ICMS_MISS_NONE;
    loop_send(enclosure->reactor->loop, &cmd->msg, match_req_failed);
}

bool agent_enclosure_was_away(const struct agent_enclosure *enclosure,
                              const struct agent_shard *shard)
{
    uint64_t back_ns =
        u64_max(atomic_load_explicit(&enclosure->included_ns, memory_order_relaxed),
                atomic_load_explicit(&enclosure->appeared_ns[shard->number], memory_order_relaxed));

    return back_ns != 0 && loop_env_now_ns(enclosure->agent->env) - back_ns < AGENT_HEAL_NS;
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err agent_link_new(struct agent_reactor *reactor, uint32_t number,
                        const struct agent_enclosure_opts *opts, struct agent_keys *keys,
                        const struct agent_view *view, struct err_why *why,
                        struct agent_link *out_link)
{
    const struct agent *agent = reactor->agent;
    const struct agent_opts *agent_opts = &agent->opts;
    struct nvmf_ctrl_opts ctrl_opts;
    struct uuid volumes[LIMIT_AGENT_VOLUMES];
    struct agent_link link = {.keys = keys};
    icms_err err;

    for (uint32_t i = 0; i < agent->volume_count; i++)
        volumes[i] = view->volumes[i].uuid;
    nvmf_ctrl_opts_init(&ctrl_opts);
    ctrl_opts.addr = opts->addr;
    ctrl_opts.subnqn = opts->nqn;
    ctrl_opts.hostnqn = agent_opts->host_nqn;
    ctrl_opts.host_id = agent_opts->host_id;
    ctrl_opts.header_digest = agent_opts->header_digest;
    ctrl_opts.marks = agent_opts->marks;
    ctrl_opts.data_digest = agent_opts->data_digest;
    ctrl_opts.queue_entries = agent_opts->queue_entries;
    ctrl_opts.shares = (struct nvmf_share_opts){
        .groups = agent->volume_count, .members = AGENT_MEMBERS, .weights = agent->weights};
    ctrl_opts.keep_alive_ns = (uint64_t)agent_opts->keep_alive_ms * 1000000;
    ctrl_opts.silence_ns = (uint64_t)agent_opts->silence_ms * 1000000;
    ctrl_opts.tls = keys->tls;
    ctrl_opts.require = opts->require;
    ctrl_opts.auth_key = keys->secret;
    ctrl_opts.auth_controller_key = keys->controller_secret;
    ctrl_opts.volumes = volumes;
    ctrl_opts.volume_count = agent->volume_count;
    if (reactor->index == 0) /* one of them is enough */
        ctrl_opts.settings = &view->settings;
    ctrl_opts.ops = &enclosure_ctrl_ops;
    ctrl_opts.owner = &reactor->enclosures[number];
    err = nvmf_ctrl_new(reactor->loop, &ctrl_opts, why, &link.ctrl);
    if (err != ICMS_OK)
        return err;
    agent_keys_hold(keys);
    *out_link = link;
    return ICMS_OK;
}

void agent_link_free(struct agent_link *link)
{
    nvmf_ctrl_free(&link->ctrl);
    agent_keys_rele(&link->keys);
}

static void enclosure_begins(struct agent_enclosure *enclosure)
{
    enclosure->began_ns = reactor_now_ns(enclosure->reactor);
    enclosure_open(enclosure);
}

/* What it had is closed: the next association, or the end. */
static void enclosure_relinked(struct agent_enclosure *enclosure)
{
    agent_link_free(&enclosure->link);
    enclosure->link = enclosure->next;
    enclosure->next = (struct agent_link){0};
    enclosure->is_relinking = false;
    enclosure->link_auths = enclosure->link_auths_refused = 0;
    if (enclosure->link.ctrl != NULL)
        enclosure_begins(enclosure);
    else
        atomic_fetch_sub_explicit(&enclosure->agent->pod.members[enclosure->number].reactors, 1,
                                  memory_order_release);
}

void agent_enclosure_relink(struct agent_enclosure *enclosure, struct agent_link *take)
{
    struct agent_reactor *reactor = enclosure->reactor;

    agent_link_free(&enclosure->next); /* never opened: two came in a row */
    enclosure->next = *take;
    *take = (struct agent_link){0};
    enclosure->is_relinking = enclosure->was_relinked = true;
    loop_timer_stop(reactor->loop, &enclosure->probe);
    loop_timer_stop(reactor->loop, &enclosure->look);
    slow_forget(&reactor->slow_loads, enclosure->number);
    slow_forget(&reactor->slow_exists, enclosure->number);
    for (uint32_t i = 0; i < enclosure->agent->volume_count; i++)
        (void)agent_shard_missing_set(&reactor->shards[i], enclosure->number, false);
    memset(enclosure->asked, 0, sizeof(enclosure->asked));
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_CONNECTING);
    if (enclosure->is_open)
        nvmf_ctrl_close(enclosure->link.ctrl, ICMS_PEER_DOWN); /* then enclosure_closed */
    else
        enclosure_relinked(enclosure);
}

void agent_enclosure_settings_set(struct agent_enclosure *enclosure,
                                  const struct nvmf_settings *settings)
{
    atomic_store_explicit(&enclosure->enclosures_differ, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->weights_differ, false, memory_order_relaxed);
    nvmf_ctrl_settings_set(enclosure->link.ctrl, settings);
    if (enclosure->next.ctrl != NULL)
        nvmf_ctrl_settings_set(enclosure->next.ctrl, settings);
}

/* Counters of whom had the slot before. Field by field: an operation that comes to its end may
 * still look at `number`. */
static void enclosure_counters_reset(struct agent_enclosure *enclosure)
{
    uint64_t *const counters[] = {
        &enclosure->exclusions,  &enclosure->probes,        &enclosure->load_bytes,
        &enclosure->store_bytes, &enclosure->slow_total,    &enclosure->checksum_errors,
        &enclosure->auths,       &enclosure->auths_refused,
    };

    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
        counter_set(counters[i], 0);
    memset(enclosure->op_ns, 0, sizeof(enclosure->op_ns));
    enclosure->was_relinked = false;
    for (uint32_t i = 0; i < LIMIT_AGENT_VOLUMES; i++) {
        atomic_store_explicit(&enclosure->appeared_ns[i], 0, memory_order_relaxed);
        atomic_store_explicit(&enclosure->run_blocks_others[i], 0, memory_order_relaxed);
    }
    atomic_store_explicit(&enclosure->tls, 0, memory_order_relaxed);
    atomic_store_explicit(&enclosure->auth, AGENT_AUTH_NONE, memory_order_relaxed);
    atomic_store_explicit(&enclosure->enclosures_differ, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->weights_differ, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->included_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&enclosure->tried, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->state, AGENT_ENCLOSURE_CONNECTING, memory_order_relaxed);
    pthread_mutex_lock(&enclosure->text_lock);
    enclosure->last_error[0] = 0;
    enclosure->damaged_ns = 0;
    pthread_mutex_unlock(&enclosure->text_lock);
}

icms_err agent_enclosure_make(struct agent_enclosure *enclosure, struct agent_reactor *reactor,
                              uint32_t number, struct err_why *why)
{
    if (!enclosure->is_made) {
        enclosure->probe_memory = malloc(AGENT_PROBE_BYTES);
        if (enclosure->probe_memory == NULL)
            return err_set(why, ICMS_NO_MEMORY, "no memory for a probe of an enclosure");
        enclosure->agent = reactor->agent;
        enclosure->reactor = reactor;
        enclosure->number = number;
        pthread_mutex_init(&enclosure->text_lock, NULL);
        loop_timer_init(&enclosure->probe, enclosure_probe);
        loop_timer_init(&enclosure->look, enclosure_look);
        enclosure->is_made = true;
    }
    enclosure_counters_reset(enclosure);
    return ICMS_OK;
}

void agent_enclosure_fini(struct agent_enclosure *enclosure)
{
    if (!enclosure->is_made)
        return;
    agent_link_free(&enclosure->link);
    agent_link_free(&enclosure->next);
    free(enclosure->probe_memory);
    pthread_mutex_destroy(&enclosure->text_lock);
}

void agent_enclosure_begin(struct agent_enclosure *enclosure)
{
    enclosure_begins(enclosure);
}
