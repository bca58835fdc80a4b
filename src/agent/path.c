/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/path.c: one enclosure as this agent sees it: its association, health, probing.
 *
 * On its reactor's loop. Every reactor has an association of its own with each enclosure, and a
 * verdict of its own on its health.
 *
 * Life: agent_path_begin -> CONNECTING -> UP <-> EXCLUDED. Health is decided here, on the data
 * path: a connection that is refused, reset or silent (nvmf/host counts bytes, and asks a busy
 * enclosure for a sign of life) excludes at once; every operation under way comes back and goes on
 * with the next enclosure. While excluded it is probed every probe_ms, with jitter so that the
 * agents of a pod do not knock together.
 *
 * An enclosure that lacks a volume, or hides it from this host, is passed over for that volume as
 * if it were excluded (shard->lacking), and looked at again now and then.
 *
 * Invariant: bit `number` of reactor->excluded is clear exactly while UP.
 */
#include "agent/agent_int.h"

#include <stdio.h>

/* ---- health --------------------------------------------------------------------------------- */

static void path_state_set(struct agent_path *path, enum agent_enclosure_state state)
{
    uint64_t bit = (uint64_t)1 << path->number;
    uint64_t excluded = atomic_load_explicit(&path->reactor->excluded, memory_order_relaxed);

    atomic_store_explicit(&path->state, state, memory_order_relaxed);
    if (state == AGENT_ENCLOSURE_UP)
        excluded &= ~bit;
    else
        excluded |= bit;
    atomic_store_explicit(&path->reactor->excluded, excluded, memory_order_release);
}

static void path_text_set(struct agent_path *path, const char *text)
{
    pthread_mutex_lock(&path->text_lock);
    snprintf(path->last_error, sizeof(path->last_error), "%s", text);
    path->last_error_ns = reactor_now_ns(path->reactor);
    pthread_mutex_unlock(&path->text_lock);
}

static void path_open(struct agent_path *path)
{
    uint64_t timeout_ns = (uint64_t)path->agent->opts.connect_timeout_ms * 1000000;

    nvmf_ctrl_open(path->ctrl, reactor_now_ns(path->reactor) + timeout_ns);
}

static void path_probe(struct loop_timer *timer)
{
    struct agent_path *path = container_of(timer, struct agent_path, probe);

    counter_add(&path->probes, 1);
    path_open(path);
}

/* The namespace of a volume there, or NULL. A volume that is sealed here and raw there is not ours.
 */
static const struct nvmf_volume *path_volume_find(struct agent_path *path,
                                                  const struct volume_spec *spec)
{
    const struct nvmf_volume *found = nvmf_ctrl_volume(path->ctrl, &spec->uuid);
    char text[LIMIT_REASON_BYTES];

    if (found == NULL || !found->icms || found->sealed == spec->sealed)
        return found;
    snprintf(text, sizeof(text), "volume %s is %s here and %s there", spec->name,
             spec->sealed ? "sealed" : "raw", found->sealed ? "sealed" : "raw");
    path_text_set(path, text);
    return NULL;
}

/* Looks again, give or take a quarter, for volumes that may be attached later. */
static void path_look_arm(struct agent_path *path)
{
    uint64_t look_ns = AGENT_LOOK_PROBES * (uint64_t)path->agent->opts.probe_ms * 1000000;
    uint64_t jitter_ns = loop_random(path->reactor->loop) % (look_ns / 2 + 1);

    if (!loop_timer_armed(&path->look))
        loop_timer_start(path->reactor->loop, &path->look,
                         reactor_now_ns(path->reactor) + look_ns - look_ns / 4 + jitter_ns);
}

static void path_look(struct loop_timer *timer)
{
    nvmf_ctrl_look(container_of(timer, struct agent_path, look)->ctrl);
}

/* Volumes by name: which namespace, how large. */
static void path_volumes_read(struct agent_path *path)
{
    struct agent *agent = path->agent;

    for (uint32_t i = 0; i < agent->volume_count; i++) {
        struct agent_shard *shard = &path->reactor->shards[i];
        const struct nvmf_volume *found = path_volume_find(path, &shard->spec);

        path->nsid[i] = found == NULL ? 0 : found->nsid;
        path->value_bytes_max[i] = found == NULL ? 0 : found->value_bytes_max;
        if (found == NULL)
            path_look_arm(path);
        /* Whoever stood in for it may have its blocks. */
        if (agent_shard_lacking_set(shard, path->number, found == NULL) && found != NULL)
            atomic_store_explicit(&path->appeared_ns[i], reactor_now_ns(path->reactor),
                                  memory_order_relaxed);
    }
}

/* It says that there is no such namespace: detached since the last look. */
static void path_volume_lost(struct agent_path *path, struct agent_shard *shard)
{
    path->nsid[shard->number] = 0;
    (void)agent_shard_lacking_set(shard, path->number, true);
    path_look_arm(path);
}

static void path_up(struct nvmf_ctrl *ctrl)
{
    struct agent_path *path = nvmf_ctrl_owner(ctrl);
    uint64_t now_ns = reactor_now_ns(path->reactor);
    uint64_t lately_ns = (uint64_t)path->agent->opts.probe_ms * 1000000;

    /* Whoever took over meanwhile may have blocks of it. */
    if (atomic_load_explicit(&path->state, memory_order_relaxed) == AGENT_ENCLOSURE_EXCLUDED ||
        now_ns - path->began_ns > lately_ns)
        atomic_store_explicit(&path->included_ns, now_ns, memory_order_relaxed);
    path_volumes_read(path);
    atomic_store_explicit(&path->exist_many,
                          path->agent->opts.exist_many && nvmf_ctrl_has_exist_many(ctrl),
                          memory_order_relaxed);
    path_state_set(path, AGENT_ENCLOSURE_UP);
    atomic_store_explicit(&path->tried, true, memory_order_release);
}

static void path_changed(struct nvmf_ctrl *ctrl)
{
    path_volumes_read(nvmf_ctrl_owner(ctrl));
}

static void path_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    struct agent_path *path = nvmf_ctrl_owner(ctrl);

    path_text_set(path, why);
    loop_timer_stop(path->reactor->loop, &path->look);
    for (uint32_t i = 0; i < path->agent->volume_count; i++) /* nobody knows what it has now */
        (void)agent_shard_lacking_set(&path->reactor->shards[i], path->number, false);
    if (atomic_load_explicit(&path->state, memory_order_relaxed) != AGENT_ENCLOSURE_EXCLUDED)
        counter_add(&path->exclusions, 1);
    path_state_set(path, AGENT_ENCLOSURE_EXCLUDED);
    atomic_store_explicit(&path->tried, true, memory_order_release);
}

/* Everything of the association is over: the next try is due in probe_ms, give or take a quarter.
 */
static void path_closed(struct nvmf_ctrl *ctrl)
{
    struct agent_path *path = nvmf_ctrl_owner(ctrl);
    uint64_t probe_ns = (uint64_t)path->agent->opts.probe_ms * 1000000;
    uint64_t jitter_ns = loop_random(path->reactor->loop) % (probe_ns / 2 + 1);

    loop_timer_start(path->reactor->loop, &path->probe,
                     reactor_now_ns(path->reactor) + probe_ns - probe_ns / 4 + jitter_ns);
}

static const struct nvmf_ctrl_ops path_ctrl_ops = {
    .up = path_up,
    .changed = path_changed,
    .down = path_down,
    .closed = path_closed,
};

/* ---- operations ----------------------------------------------------------------------------- */

/* How a command ended, seen from here. */
static icms_err path_req_err(struct agent_path *path, struct agent_shard *shard,
                             const struct nvmf_req *req)
{
    if (req->err == ICMS_NO_VOLUME && path->nsid[shard->number] == req->nsid)
        path_volume_lost(path, shard);
    /* The association ended under it, whatever the association died of. */
    if (req->status == 0 && req->err != ICMS_OK && req->err != ICMS_CORRUPT &&
        !nvmf_ctrl_is_up(path->ctrl) && reactor_now_ns(path->reactor) < req->deadline_ns)
        return ICMS_PEER_DOWN;
    return req->err;
}

/* Counts the latency of a command that was answered; what ended with the association was not. */
static void path_count(struct agent_path *path, enum agent_latency kind, icms_err err,
                       uint64_t asked_ns)
{
    if (err != ICMS_PEER_DOWN)
        hist_add(&path->op_ns[kind], reactor_now_ns(path->reactor) - asked_ns);
}

static void path_req_done(struct nvmf_req *req)
{
    struct agent_op *op = req->owner;
    struct agent_path *path = op->path;

    op->err = path_req_err(path, op->shard, req);
    op->reason = req->reason;
    if (op->kind == AGENT_OP_LOAD)
        path_count(path, AGENT_LATENCY_LOAD, op->err, op->asked_ns);
    else if (op->kind == AGENT_OP_STORE)
        path_count(path, AGENT_LATENCY_STORE, op->err, op->asked_ns);
    else if (op->kind == AGENT_OP_EXIST)
        path_count(path, AGENT_LATENCY_EXIST, op->err, op->asked_ns);
    if (op->kind == AGENT_OP_LOAD && op->err == ICMS_OK) {
        uint64_t room = req->data[0].iov_len + req->data[1].iov_len;

        op->value_bytes = req->value_bytes;
        op->record = req->record;
        counter_add(&path->load_bytes, u64_min(req->value_bytes, room)); /* more did not come */
        if (req->value_bytes > room)
            op->err = ICMS_VALUE_SIZE;
    }
    if (op->kind == AGENT_OP_STORE && op->err == ICMS_OK)
        counter_add(&path->store_bytes, op->stored_bytes);
    agent_op_answered(op);
}

static icms_err path_op_start(struct agent_path *path, struct agent_op *op)
{
    struct agent_shard *shard = op->shard;
    struct nvmf_req *req = &op->u.nvmf;
    uint8_t *memory = op->slot == SHM_SLOT_NONE ? NULL : agent_shard_memory(shard, op->slot);

    if (!nvmf_ctrl_is_up(path->ctrl))
        return ICMS_PEER_DOWN;
    if (path->nsid[shard->number] == 0)
        return ICMS_NO_VOLUME;
    op->asked_ns = reactor_now_ns(path->reactor);
    *req = (struct nvmf_req){
        .nsid = path->nsid[shard->number],
        .io_class = op->io_class,
        .key = op->key,
        .deadline_ns = op->deadline_ns,
        .done = path_req_done,
        .owner = op,
    };
    switch (op->kind) {
    case AGENT_OP_LOAD:
        if (op->direct != NULL) {
            req->data[0] = (struct iovec){(void *)(uintptr_t)op->direct->offset, op->direct->bytes};
            req->data[1] =
                (struct iovec){(void *)(uintptr_t)op->direct->aside, LIMIT_TRAILER_BYTES};
        } else {
            req->data[0] = (struct iovec){memory, op->room};
        }
        req->want_record = op->suspect;
        return nvmf_retrieve(path->ctrl, req);
    case AGENT_OP_STORE:
        if (op->stored_bytes > path->value_bytes_max[shard->number])
            return ICMS_VALUE_SIZE;
        req->data[0] = (struct iovec){memory, op->stored_bytes};
        req->options = op->if_absent ? NVME_KV_STORE_IF_ABSENT : 0;
        return nvmf_store(path->ctrl, req);
    case AGENT_OP_EXIST:
        return nvmf_exist(path->ctrl, req);
    case AGENT_OP_DELETE:
        req->only_record = (uint32_t)op->record;
        return nvmf_delete(path->ctrl, req);
    case AGENT_OP_FLUSH:
        return nvmf_flush(path->ctrl, req);
    }
    return ICMS_INVALID;
}

static void path_op_failed(struct loop_msg *msg)
{
    agent_op_answered(container_of(msg, struct agent_op, msg));
}

void agent_path_ask(struct agent_path *path, struct agent_op *op)
{
    icms_err err = path_op_start(path, op);

    if (err == ICMS_OK)
        return;
    op->err = err;
    op->reason = ICMS_MISS_NONE;
    loop_send(path->reactor->loop, &op->msg, path_op_failed);
}

/* ---- exist-many ----------------------------------------------------------------------------- */

static void part_req_done(struct nvmf_req *req)
{
    struct agent_part *part = req->owner;

    part->err = path_req_err(part->path, part->match->shard, req);
    part->reason = req->reason;
    path_count(part->path, AGENT_LATENCY_EXIST, part->err, part->asked_ns);
    if (part->err == ICMS_UNSUPPORTED) /* offered, but not known: key by key from now on */
        atomic_store_explicit(&part->path->exist_many, false, memory_order_relaxed);
    part->map = nvmf_exist_map(req);
    agent_part_answered(part);
}

static void part_failed(struct loop_msg *msg)
{
    agent_part_answered(container_of(msg, struct agent_part, msg));
}

void agent_path_ask_part(struct agent_path *path, struct agent_part *part)
{
    uint32_t nsid = path->nsid[part->match->shard->number];

    part->asked_ns = reactor_now_ns(path->reactor);
    part->nvmf = (struct nvmf_req){
        .nsid = nsid,
        .io_class = IO_CLASS_LOAD,
        .deadline_ns = part->match->deadline_ns,
        .done = part_req_done,
        .owner = part,
    };
    if (!nvmf_ctrl_is_up(path->ctrl))
        part->err = ICMS_PEER_DOWN;
    else if (nsid == 0)
        part->err = ICMS_NO_VOLUME;
    else
        part->err = nvmf_exist_many(path->ctrl, &part->nvmf, part->keys, part->count, part->data);
    if (part->err == ICMS_OK)
        return;
    part->reason = ICMS_MISS_NONE;
    loop_send(path->reactor->loop, &part->msg, part_failed);
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err agent_path_init(struct agent_path *path, struct agent_reactor *reactor, uint32_t number,
                         const struct agent_enclosure_opts *opts, struct err_why *why)
{
    const struct agent *agent = reactor->agent;
    const struct agent_opts *agent_opts = &agent->opts;
    struct nvmf_ctrl_opts ctrl_opts;
    struct uuid volumes[LIMIT_AGENT_VOLUMES];

    for (uint32_t i = 0; i < agent->volume_count; i++)
        volumes[i] = agent->volumes[i].spec.uuid;
    path->agent = reactor->agent;
    path->number = number;
    path->reactor = reactor;
    snprintf(path->name, sizeof(path->name), "%s", opts->name);
    pthread_mutex_init(&path->text_lock, NULL);
    loop_timer_init(&path->probe, path_probe);
    loop_timer_init(&path->look, path_look);
    path_state_set(path, AGENT_ENCLOSURE_CONNECTING);
    nvmf_ctrl_opts_init(&ctrl_opts);
    ctrl_opts.addr = opts->addr;
    ctrl_opts.subnqn = opts->nqn;
    ctrl_opts.hostnqn = agent_opts->host_nqn;
    ctrl_opts.host_id = agent_opts->host_id;
    ctrl_opts.header_digest = agent_opts->header_digest;
    ctrl_opts.data_digest = agent_opts->data_digest;
    ctrl_opts.queue_entries = agent_opts->queue_entries;
    ctrl_opts.keep_alive_ns = (uint64_t)agent_opts->keep_alive_ms * 1000000;
    ctrl_opts.silence_ns = (uint64_t)agent_opts->silence_ms * 1000000;
    ctrl_opts.volumes = volumes;
    ctrl_opts.volume_count = agent->volume_count;
    ctrl_opts.ops = &path_ctrl_ops;
    ctrl_opts.owner = path;
    return nvmf_ctrl_new(path->reactor->loop, &ctrl_opts, why, &path->ctrl);
}

void agent_path_fini(struct agent_path *path)
{
    nvmf_ctrl_free(&path->ctrl);
    pthread_mutex_destroy(&path->text_lock);
}

void agent_path_begin(struct agent_path *path)
{
    path->began_ns = reactor_now_ns(path->reactor);
    path_open(path);
}
