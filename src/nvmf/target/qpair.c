/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One queue pair: one connection and the commands on it.
 *
 * Runs on the shard's loop; meets loop 0 by message only (target_int.h). Life: FREE -> HELLO ->
 * CONNECT -> JOINING -> READY -> CLOSING -> LEAVING -> FREE; a connection may go to CLOSING from
 * anywhere. It leaves when the connection is closed and no command of it is with the owner, so a
 * buffer outlives everything that may write into it.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "nvmf/target/target_int.h"

#define QPAIR_MS ((uint64_t)1000 * 1000)

static const struct nvmf_target_conn_ops qpair_conn_ops;

static void qpair_timeout(struct loop_timer *timer);
static void qpair_leave(struct nvmft_qpair *qpair);

icms_err nvmft_qpair_init(struct nvmft_qpair *qpair, struct nvmft_shard *shard, uint8_t *staging)
{
    *qpair = (struct nvmft_qpair){.magic = NVMFT_QPAIR_MAGIC, .shard = shard};
    loop_timer_init(&qpair->timer, qpair_timeout);
    list_init(&qpair->reqs_free);
    list_init(&qpair->link);
    list_init(&qpair->watch_link);
    list_init(&qpair->free_link);
    list_init(&qpair->ctrl_link);
    return shard->target->opts.transport->conn_new(shard->loop, staging, &qpair_conn_ops, qpair,
                                                   &qpair->conn);
}

/* ---- slots ---------------------------------------------------------------------------------- */

struct nvmft_req *nvmft_qpair_slot(struct nvmft_qpair *qpair, uint32_t index)
{
    check(index < qpair->slot_count);
    return (struct nvmft_req *)(void *)(qpair->slots + index * qpair->shard->target->slot_bytes);
}

struct key *nvmft_qpair_keys(const struct nvmft_req *req)
{
    return req->qpair->keys + (uint64_t)req->io.tag * NVME_KV_EXIST_MANY_KEYS;
}

/* The one slot that a connection has before it is a queue pair: for Connect. */
static icms_err qpair_slots_make(struct nvmft_qpair *qpair)
{
    check(qpair->reqs_used == 0 && qpair->slots == NULL);
    qpair->slots = calloc(1, qpair->shard->target->slot_bytes);
    if (qpair->slots == NULL)
        return ICMS_NO_MEMORY;
    qpair->slot_count = 1;
    qpair->slots_touched = 0;
    list_init(&qpair->reqs_free);
    return ICMS_OK;
}

static bool qpair_slot_free(const struct nvmft_qpair *qpair)
{
    return qpair->reqs_used < qpair->slot_count;
}

/* A slot for a command that just came. There is one. */
static struct nvmft_req *qpair_req_new(struct nvmft_qpair *qpair, const struct nvme_sqe_wf *sqe)
{
    struct list *link = list_pop(&qpair->reqs_free);
    struct nvmft_req *req;

    check(qpair_slot_free(qpair));
    if (link != NULL) {
        req = container_of(link, struct nvmft_req, link);
        check(req->state == NVMFT_REQ_FREE);
    } else {
        req = nvmft_qpair_slot(qpair, qpair->slots_touched);
        req->magic = NVMFT_REQ_MAGIC;
        req->io.tag = (uint16_t)qpair->slots_touched++;
        req->io.area = (uint8_t *)req + qpair->shard->target->io_offset;
        req->qpair = qpair;
        list_init(&req->link);
        list_init(&req->hosted_link);
    }
    qpair->reqs_used++;
    req->state = NVMFT_REQ_NEW;
    req->sqe = *sqe;
    req->io.cid = le16_get(sqe->cid);
    req->io.in_own = false;
    req->io.data_bytes = req->io.data_moved = 0;
    req->io.err = ICMS_OK;
    req->is_admin = qpair->qid == 0 || sqe->opcode == NVME_FABRICS;
    req->status = NVME_SC_SUCCESS;
    req->dnr = req->counted = req->answered = req->is_expedited = false;
    req->pace = NVMFT_PACE_NONE;
    req->dw0 = req->dw1 = 0;
    req->data_offset = 0;
    req->keys = 0;
    req->end = ICMS_OK;
    req->pub.reason = ICMS_MISS_NONE;
    req->pub.deadline_ns = 0;
    req->started_ns = loop_now_ns(qpair->shard->loop);
    return req;
}

/* ---- closing -------------------------------------------------------------------------------- */

void nvmft_qpair_close(struct nvmft_qpair *qpair, icms_err why)
{
    if (qpair->state == NVMFT_QPAIR_FREE || qpair->state == NVMFT_QPAIR_CLOSING ||
        qpair->state == NVMFT_QPAIR_LEAVING)
        return;
    loop_timer_stop(qpair->shard->loop, &qpair->timer);
    qpair->shard->target->opts.transport->close(qpair->conn, why);
    /* The state changes in closed(): a command that waits for a message goes on until then. */
}

void nvmft_qpair_judge(struct nvmft_qpair *qpair)
{
    struct nvmf_target *target = qpair->shard->target;

    if (!qpair->conn_open)
        return;
    if (qpair->conn->tls != NET_TLS_NONE &&
        !nvmft_keys_accept(target->keys, qpair->conn->hostnqn, qpair->conn->key_id))
        nvmft_auth_say(qpair, qpair->conn->hostnqn, NVMF_TARGET_AUTH_TLS_REPLACED);
    else if (qpair->ctrl != NULL && qpair->is_passed &&
             !nvmft_auth_accepts(&target->auth_hosts, qpair->ctrl->auth_host, qpair->secret_id))
        nvmft_auth_say(qpair, qpair->ctrl->hostnqn, NVMF_TARGET_AUTH_REPLACED);
    else
        return;
    nvmft_qpair_close(qpair, ICMS_CLOSED);
}

static void qpair_timeout(struct loop_timer *timer)
{
    struct nvmft_qpair *qpair = container_of(timer, struct nvmft_qpair, timer);

    if (qpair->state == NVMFT_QPAIR_READY)
        nvmft_auth_timeout(qpair);
    nvmft_qpair_close(qpair, ICMS_DEADLINE);
}

/* Drain and Disconnect: close when nothing is in flight. An admin queue goes last, because its
 * controller goes with it. */
static void qpair_close_idle(struct nvmft_qpair *qpair)
{
    if (qpair->auth_close && qpair->reqs_used == qpair->reqs_held) {
        nvmft_qpair_close(qpair, ICMS_CLOSED);
        return;
    }
    if (qpair->qid == 0 && qpair->ctrl != NULL &&
        atomic_load_explicit(&qpair->ctrl->joined, memory_order_relaxed) > 1)
        return;
    if ((qpair->close_wanted || qpair->shard->draining) && qpair->reqs_used == qpair->reqs_held &&
        !qpair->incoming && qpair->state != NVMFT_QPAIR_JOINING)
        nvmft_qpair_close(qpair, ICMS_CLOSED);
}

void nvmft_qpair_req_free(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;

    check(req->state == NVMFT_REQ_DONE && req->buffer == NULL && list_empty(&req->link));
    req->state = NVMFT_REQ_FREE;
    list_push_front(&qpair->reqs_free, &req->link);
    check(qpair->reqs_used > 0);
    qpair->reqs_used--;
    if (qpair->state == NVMFT_QPAIR_CLOSING) {
        qpair_leave(qpair);
        return;
    }
    qpair_close_idle(qpair);
}

static void qpair_incoming_drop(struct nvmft_qpair *qpair)
{
    qpair->incoming = false;
    if (qpair->incoming_buffer != NULL)
        nvmft_buffers_give_raw(qpair);
}

static void qpair_closed(struct nvmf_conn *conn, icms_err why)
{
    struct nvmft_qpair *qpair = conn->owner;
    struct nvmft_counters *counters = &qpair->shard->counters;

    check(qpair->conn_open);
    qpair->conn_open = false;
    qpair->state = NVMFT_QPAIR_CLOSING;
    /* A host that did not authenticate loses nothing that is worth a word. */
    qpair->reg_why = qpair->ctrl == NULL || nvmft_auth_passed(qpair) ? why : ICMS_CLOSED;
    loop_timer_stop(qpair->shard->loop, &qpair->timer);
    if (why == ICMS_PROTOCOL)
        counter_add(&counters->protocol_errors, 1);
    else if (why == ICMS_DEADLINE)
        counter_add(&counters->timeouts, 1);
    counter_add(&counters->digest_errors, conn->digest_errors);
    qpair_incoming_drop(qpair);
    qpair->reqs_used++; /* the last one does not leave inside the walk */
    for (uint32_t i = 0; i < qpair->slots_touched; i++)
        nvmft_req_abandon(nvmft_qpair_slot(qpair, i));
    qpair->reqs_used--;
    qpair_leave(qpair);
}

/* Everything is over: back to loop 0. */
static void qpair_leave(struct nvmft_qpair *qpair)
{
    check(qpair->state == NVMFT_QPAIR_CLOSING);
    if (qpair->reqs_used > 0 || qpair->conn_open)
        return;
    check(qpair->buffer_bytes == 0 && qpair->reqs_held == 0);
    free(qpair->slots);
    free(qpair->keys);
    qpair->slots = NULL;
    qpair->keys = NULL;
    qpair->slot_count = qpair->slots_touched = 0;
    qpair->ctrl = NULL;
    nvmft_auth_free(qpair);
    list_remove(&qpair->link);
    list_remove(&qpair->watch_link);
    qpair->state = NVMFT_QPAIR_LEAVING;
    qpair->reg_verb = NVMFT_REG_LEAVE;
    loop_send(qpair->shard->target->opts.loops[0], &qpair->reg_msg, nvmft_registry_leave);
}

void nvmft_qpair_killed(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, kill_msg);

    nvmft_qpair_close(qpair, qpair->kill_why);
    loop_send(qpair->shard->target->opts.loops[0], &qpair->kill_msg, nvmft_registry_killed);
}

void nvmft_qpair_tell(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, tell_msg);

    if (qpair->state == NVMFT_QPAIR_READY && qpair->qid == 0)
        nvmft_admin_tell(qpair);
    loop_send(qpair->shard->target->opts.loops[0], &qpair->tell_msg, nvmft_registry_told);
}

void nvmft_qpair_watch(struct nvmft_qpair *qpair)
{
    struct nvmft_shard *shard = qpair->shard;

    if (!list_empty(&qpair->watch_link))
        return;
    list_push(&shard->watched, &qpair->watch_link);
    if (!loop_timer_armed(&shard->timer))
        loop_timer_start(shard->loop, &shard->timer, loop_now_ns(shard->loop) + NVMFT_SWEEP_NS);
}

bool nvmft_qpair_sweep(struct nvmft_qpair *qpair, uint64_t now_ns, uint64_t step_ns)
{
    uint64_t stall_ns = qpair->shard->target->opts.stall_timeout_ms * QPAIR_MS;
    bool more = qpair->close_wanted && qpair->conn_open;
    bool busy;

    qpair_close_idle(qpair);
    if (qpair->state != NVMFT_QPAIR_READY)
        return more;
    for (uint32_t i = 0; i < qpair->slots_touched && qpair->reqs_used > 0; i++) {
        struct nvmft_req *req = nvmft_qpair_slot(qpair, i);

        if (req->state == NVMFT_REQ_H2C && now_ns >= req->progress_ns + stall_ns) {
            nvmft_qpair_close(qpair, ICMS_DEADLINE);
            return false;
        }
        if (req->state == NVMFT_REQ_WAIT_BUFFER && req->pub.deadline_ns != 0 &&
            now_ns >= req->pub.deadline_ns) {
            nvmft_req_fail_err(req, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
            nvmft_buffers_unpark(req);
            nvmft_req_run(req);
        }
        more = more || req->state == NVMFT_REQ_WAIT_BUFFER;
    }
    if (!nvmft_pace_sweep(qpair, step_ns, &busy))
        return false;
    return more || busy;
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* A command came: the controller is alive. The stamp is shared between loops, so it is written
 * rarely. */
static void qpair_heard(struct nvmft_qpair *qpair)
{
    uint64_t now = loop_now_ns(qpair->shard->loop);

    if (nvmft_auth_passed(qpair) &&
        now > atomic_load_explicit(&qpair->ctrl->heard_ns, memory_order_relaxed) + 10 * QPAIR_MS)
        atomic_store_explicit(&qpair->ctrl->heard_ns, now, memory_order_relaxed);
}

/* Who has proven to be a host is no other, and came for this subsystem or for discovery. */
static uint16_t qpair_identity(const struct nvmft_qpair *qpair, uint32_t *out_dw0)
{
    const struct nvme_connect *connect = &qpair->reg_connect;

    if (qpair->conn->tls == NET_TLS_NONE)
        return NVME_SC_SUCCESS;
    if (strcmp(qpair->conn->hostnqn, connect->hostnqn) != 0 ||
        !nvmft_keys_accept(qpair->shard->target->keys, connect->hostnqn, qpair->conn->key_id))
        *out_dw0 = NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_HOSTNQN);
    else if (strcmp(connect->subnqn, NVME_DISCOVERY) != 0 &&
             strcmp(qpair->conn->subnqn, connect->subnqn) != 0)
        *out_dw0 = NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_SUBNQN);
    else
        return NVME_SC_SUCCESS;
    return NVME_SC_CONNECT_PARAM;
}

/* The host is there: Connect comes next. */
static void qpair_opened(struct nvmf_conn *conn)
{
    struct nvmft_qpair *qpair = conn->owner;
    struct nvmf_target *target = qpair->shard->target;

    check(qpair->state == NVMFT_QPAIR_HELLO);
    qpair->state = NVMFT_QPAIR_CONNECT;
    loop_timer_start(qpair->shard->loop, &qpair->timer,
                     loop_now_ns(qpair->shard->loop) + target->opts.header_timeout_ms * QPAIR_MS);
}

/* Memory for data that comes with a command. */
static icms_err qpair_capsule(struct nvmf_conn *conn, const struct nvme_sqe_wf *sqe,
                              uint32_t data_bytes, uint8_t **out_memory, uint32_t *out_offset)
{
    struct nvmft_qpair *qpair = conn->owner;
    bool large = data_bytes > qpair->shard->target->capsule_bytes_max;
    enum nvmft_wait_class class = sqe->opcode == NVME_KV_STORE || sqe->opcode == NVME_ICMS_STORE
                                      ? NVMFT_WAIT_STORE
                                      : NVMFT_WAIT_LOAD;
    uint32_t tenant = nvmft_tenant_admin(qpair->shard);
    uint64_t bytes;

    check(qpair->incoming_buffer == NULL);
    if (large &&
        (sqe->opcode != NVME_ICMS_STORE || qpair->state != NVMFT_QPAIR_READY || qpair->qid == 0))
        return ICMS_VALUE_SIZE;
    if (!qpair_slot_free(qpair))
        return ICMS_LIMIT;
    qpair->incoming = true;
    if (!nvmft_req_capsule_room(qpair, sqe, data_bytes, &bytes, &qpair->incoming_offset))
        return ICMS_OK; /* the command is answered with what is wrong; its data is dropped */
    if (bytes == 0) {
        *out_memory = qpair->incoming_keys;
        *out_offset = 0;
        return ICMS_OK;
    }
    if (qpair->state == NVMFT_QPAIR_READY && qpair->qid != 0 && sqe->opcode != NVME_FABRICS)
        tenant = nvmft_ns(qpair->shard->target, qpair->incoming_kv.ns)->tenant;
    qpair->incoming_class = class;
    qpair->incoming_buffer = nvmft_buffers_try(qpair, tenant, class, bytes);
    qpair->incoming_bytes = bytes_align(bytes, NVMFT_POOL_PAGE);
    *out_memory = qpair->incoming_buffer;
    *out_offset = qpair->incoming_offset;
    if (qpair->incoming_buffer != NULL || large ||
        (sqe->opcode == NVME_ICMS_STORE && qpair->incoming_kv.cmd.may_ask))
        return ICMS_OK; /* no room: dropped; the host is told to ask first */
    check(bytes <= qpair->shard->target->staging_bytes);
    return ICMS_BUSY;
}

/* A command, its data included if it brought some and there is use for it. */
static icms_err qpair_command(struct nvmf_conn *conn, const struct nvme_sqe_wf *sqe,
                              uint32_t data_bytes, icms_err data_err, uint8_t *own)
{
    struct nvmft_qpair *qpair = conn->owner;
    struct nvmft_req *req;

    qpair_heard(qpair);
    if (!qpair_slot_free(qpair))
        return ICMS_LIMIT;
    req = qpair_req_new(qpair, sqe);
    qpair->incoming = false;
    if (own != NULL || qpair->incoming_buffer != NULL) {
        req->buffer = own != NULL ? own : qpair->incoming_buffer; /* it is the command's now */
        req->buffer_bytes =
            own != NULL ? qpair->shard->target->staging_bytes : qpair->incoming_bytes;
        req->io.in_own = own != NULL;
        req->data_offset = qpair->incoming_offset;
        req->wait_class = qpair->incoming_class;
        req->flow = own != NULL ? NULL : qpair->incoming_flow;
        qpair->incoming_buffer = NULL;
        qpair->incoming_flow = NULL;
        if (own == NULL)
            nvmft_buffers_adopt(req);
    }
    req->io.data_moved = data_bytes;
    if (data_err != ICMS_OK)
        req->status = NVME_SC_TRANSPORT;
    nvmft_req_run(req);
    return ICMS_OK;
}

static struct nvmf_target_io *qpair_find(struct nvmf_conn *conn, uint16_t tag)
{
    struct nvmft_qpair *qpair = conn->owner;

    return tag < qpair->slots_touched ? &nvmft_qpair_slot(qpair, tag)->io : NULL;
}

static void qpair_progress(struct nvmf_conn *conn, struct nvmf_target_io *io)
{
    struct nvmft_qpair *qpair = conn->owner;
    struct nvmft_req *req = container_of(io, struct nvmft_req, io);

    qpair_heard(qpair);
    req->progress_ns = loop_now_ns(qpair->shard->loop);
    nvmft_req_run(req);
}

/* The host learns that the command is over: it may send another. */
static void qpair_completion(struct nvmf_conn *conn, struct nvmf_target_io *io,
                             struct nvme_cqe *out_cqe)
{
    struct nvmft_qpair *qpair = conn->owner;
    const struct nvmft_req *req = container_of(io, struct nvmft_req, io);

    qpair->sqhd = (uint16_t)((qpair->sqhd + 1u) % qpair->entries);
    *out_cqe = (struct nvme_cqe){
        .cid = io->cid,
        .sqhd = qpair->no_flow ? UINT16_MAX : qpair->sqhd,
        .status = req->status,
        .dnr = req->dnr,
        .dw0 = req->dw0,
        .dw1 = req->dw1,
    };
}

static void qpair_responded(struct nvmf_conn *conn, struct nvmf_target_io *io)
{
    struct nvmft_req *req = container_of(io, struct nvmft_req, io);

    check(req->state == NVMFT_REQ_SENDING);
    req->state = NVMFT_REQ_DONE;
    nvmft_req_run(req);
}

static const struct nvmf_target_conn_ops qpair_conn_ops = {
    .opened = qpair_opened,
    .capsule = qpair_capsule,
    .command = qpair_command,
    .find = qpair_find,
    .progress = qpair_progress,
    .completion = qpair_completion,
    .responded = qpair_responded,
    .closed = qpair_closed,
};

/* ---- opening and connecting ----------------------------------------------------------------- */

void nvmft_qpair_open(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, reg_msg);
    const struct nvmf_target_opts *opts = &qpair->shard->target->opts;
    struct nvmf_accept_opts accept = {
        .capsule_bytes_max =
            (uint32_t)u64_max(qpair->shard->target->capsule_bytes_max, NVME_ICMS_STORE_DATA_BYTES),
        .header_timeout_ns = opts->header_timeout_ms * QPAIR_MS,
        .send_timeout_ns = opts->stall_timeout_ms * QPAIR_MS,
        .tls = qpair->shard->tls.settings != NULL ? &qpair->shard->tls : NULL,
    };

    check(qpair->state == NVMFT_QPAIR_FREE && qpair->reg_verb == NVMFT_REG_OPEN);
    check(!qpair->conn_open && qpair->reqs_used == 0);
    qpair->state = NVMFT_QPAIR_HELLO;
    qpair->close_wanted = qpair->no_flow = false;
    qpair->is_passed = qpair->auth_close = qpair->is_proven_sent = false;
    qpair->qid = 0;
    qpair->entries = 2;
    qpair->sqhd = 0;
    nvmft_buffers_host(qpair, NULL);
    list_push(&qpair->shard->open, &qpair->link);
    qpair->conn_open = true;
    opts->transport->open(qpair->conn, &accept);
    loop_timer_start(qpair->shard->loop, &qpair->timer,
                     loop_now_ns(qpair->shard->loop) + opts->header_timeout_ms * QPAIR_MS);
    if (qpair->shard->draining || qpair_slots_make(qpair) != ICMS_OK)
        nvmft_qpair_close(qpair, ICMS_CLOSED);
}

static void qpair_connect_refuse(struct nvmft_req *req, uint16_t status, uint32_t dw0)
{
    struct nvmf_target *target = req->qpair->shard->target;

    atomic_fetch_add_explicit(&target->connects_refused, 1, memory_order_relaxed);
    nvmft_req_fail(req, status);
    req->dw0 = dw0;
}

void nvmft_qpair_connect(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    const struct nvmf_target_opts *opts = &qpair->shard->target->opts;
    uint32_t dw0 = 0;
    uint16_t status = NVME_SC_SEQUENCE;

    if (qpair->state == NVMFT_QPAIR_CONNECT) {
        if (req->status != NVME_SC_SUCCESS)
            status = req->status; /* the data digest did not match */
        else if (req->buffer == NULL)
            status = NVME_SC_SGL_LENGTH;
        else
            status = nvme_connect_decode(&req->sqe, req->buffer, req->io.data_moved,
                                         &qpair->reg_connect, &dw0);
    }
    if (status == NVME_SC_SUCCESS && qpair->reg_connect.entries > opts->queue_entries_max) {
        status = NVME_SC_CONNECT_PARAM;
        dw0 = NVME_CONNECT_BAD_SQE(NVME_CONNECT_AT_SQSIZE);
    }
    if (status == NVME_SC_SUCCESS) {
        status = qpair_identity(qpair, &dw0);
        if (status != NVME_SC_SUCCESS)
            nvmft_auth_say(qpair, qpair->conn->hostnqn, NVMF_TARGET_AUTH_TLS_OTHER);
    }
    if (status != NVME_SC_SUCCESS) {
        qpair_connect_refuse(req, status, dw0);
        return;
    }
    req->state = NVMFT_REQ_JOIN;
    qpair->state = NVMFT_QPAIR_JOINING;
    qpair->reg_tls = qpair->conn->tls != NET_TLS_NONE;
    qpair->reg_verb = NVMFT_REG_JOIN;
    loop_send(opts->loops[0], &qpair->reg_msg, nvmft_registry_join);
}

/* The slots of a queue pair are made when its size is known, and touched only as deep as it gets;
 * the Connect command moves into the first of them. */
static icms_err qpair_grow(struct nvmft_qpair *qpair)
{
    uint64_t slot_bytes = qpair->shard->target->slot_bytes;
    uint32_t count = qpair->reg_connect.entries;
    uint8_t *slots = calloc(count, slot_bytes);
    struct key *keys = calloc((size_t)count * NVME_KV_EXIST_MANY_KEYS, sizeof(*keys));
    struct nvmft_req *req;

    check(qpair->reqs_used == 1 && qpair->slot_count == 1 && count >= 2 && qpair->keys == NULL);
    if (slots == NULL || keys == NULL) {
        free(slots);
        free(keys);
        return ICMS_NO_MEMORY;
    }
    qpair->keys = keys;
    memcpy(slots, qpair->slots, slot_bytes);
    free(qpair->slots);
    qpair->slots = slots;
    qpair->slot_count = count;
    req = nvmft_qpair_slot(qpair, 0);
    check(req->state == NVMFT_REQ_JOIN);
    req->io.area = slots + qpair->shard->target->io_offset;
    memset(req->io.area, 0, qpair->shard->target->opts.transport->io_bytes);
    list_init(&req->link);
    list_init(&req->hosted_link);
    return ICMS_OK;
}

/* Tells refusals by who the host is, and nothing that passes away. */
static void qpair_refusal_say(const struct nvmft_qpair *qpair)
{
    if (qpair->reg_status == NVME_SC_AUTH_REQUIRED)
        nvmft_auth_say(qpair, qpair->reg_connect.hostnqn, NVMF_TARGET_AUTH_NO_TLS);
    else if (qpair->reg_status == NVME_SC_CONNECT_PARAM &&
             qpair->reg_dw0 == NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_SUBNQN))
        nvmft_auth_say(qpair, qpair->reg_connect.hostnqn, NVMF_TARGET_AUTH_NO_VOLUME);
}

void nvmft_qpair_joined(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, reg_msg);
    const struct nvmf_target_opts *opts = &qpair->shard->target->opts;
    struct nvmft_req *req;

    check(qpair->reg_verb == NVMFT_REG_JOIN);
    qpair->ctrl = qpair->reg_ctrl;
    if (!qpair->conn_open) {
        /* The peer left meanwhile. The command in the first slot is the only one. */
        req = nvmft_qpair_slot(qpair, 0);
        check(req->state == NVMFT_REQ_JOIN);
        req->state = NVMFT_REQ_DONE;
        nvmft_req_run(req);
        return;
    }
    check(qpair->state == NVMFT_QPAIR_JOINING);
    qpair->state = NVMFT_QPAIR_CONNECT;
    if (qpair->reg_status == NVME_SC_SUCCESS && qpair_grow(qpair) != ICMS_OK) {
        nvmft_qpair_close(qpair, ICMS_NO_MEMORY);
        qpair->reg_status = NVME_SC_INTERNAL;
    }
    req = nvmft_qpair_slot(qpair, 0);
    if (qpair->reg_status != NVME_SC_SUCCESS) {
        qpair_refusal_say(qpair);
        qpair_connect_refuse(req, qpair->reg_status, qpair->reg_dw0);
        nvmft_req_run(req);
        return;
    }
    loop_timer_stop(qpair->shard->loop, &qpair->timer);
    if (qpair->ctrl->is_auth_wanted)
        loop_timer_start(qpair->shard->loop, &qpair->timer,
                         loop_now_ns(qpair->shard->loop) + opts->header_timeout_ms * QPAIR_MS);
    qpair->state = NVMFT_QPAIR_READY;
    nvmft_buffers_host(qpair, qpair->ctrl);
    qpair->qid = qpair->reg_connect.qid;
    qpair->entries = qpair->reg_connect.entries;
    qpair->no_flow = (qpair->reg_connect.attributes & NVME_CATTR_NO_SQ_FLOW) != 0;
    opts->transport->mark(qpair->conn,
                          qpair->qid == 0
                              ? opts->marks.control
                              : opts->marks.io[nvme_cattr_class(qpair->reg_connect.attributes)]);
    if (qpair->qid == 0 && qpair->conn->tls != NET_TLS_NONE)
        nvmft_auth_say(qpair, qpair->ctrl->hostnqn, NVMF_TARGET_AUTH_TLS);
    req->dw0 = qpair->ctrl->cntlid;
    if (qpair->ctrl->is_auth_wanted)
        req->dw0 |= NVME_CONNECT_ATR;
    req->state = NVMFT_REQ_RESPOND;
    qpair_heard(qpair);
    nvmft_req_run(req);
}

void nvmft_qpair_fini(struct nvmft_qpair *qpair)
{
    nvmft_auth_free(qpair);
    if (qpair->conn != NULL)
        qpair->shard->target->opts.transport->conn_free(&qpair->conn);
    free(qpair->slots);
    free(qpair->keys);
    qpair->slots = NULL;
    qpair->keys = NULL;
}
