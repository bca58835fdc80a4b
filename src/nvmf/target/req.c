/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One command, from its capsule to its completion.
 *
 * Runs on the queue pair's loop. Woken by buffers.c (a buffer), qpair.c (data, responded, close,
 * sweep) and the owner (nvmf_target_req_more, _done). Invariants: a command holds at most one
 * buffer and waits for none while it holds one; a buffer goes back only when neither the transport
 * nor the owner can touch it; the end of the data goes to the transport after the owner gave the
 * command back, so nothing says success before the owner did.
 *
 * Life: NEW -> [WAIT_BUFFER] -> [H2C] -> EXECUTE -> [STREAM] -> RESPOND -> SENDING -> DONE, one
 * function a state.
 *
 * Data that comes with a command needs memory at once. What Identify grants to any host has a place
 * in memory of the transport when the pool has none. A store of ours may bring more; then its data
 * is dropped, and the host sends it again as one that asks (NVME_ICMS_ASK), so it costs no memory.
 * Keys of exist-many lie in memory of the queue pair: what waits for its turn holds no buffer.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "nvmf/target/target_int.h"

enum req_step {
    REQ_NEXT, /* run the new state        */
    REQ_WAIT, /* somebody will wake it    */
    REQ_END,  /* the slot is given back   */
};

/* ---- ends ----------------------------------------------------------------------------------- */

/* May the host try the same command again? */
static bool req_dnr(uint16_t status)
{
    switch (status) {
    case NVME_SC_SUCCESS:
    case NVME_SC_TRANSIENT:
    case NVME_SC_TRANSPORT:
    case NVME_SC_NS_NOT_READY:
    case NVME_SC_ABORT_REQUESTED:
    case NVME_SC_CONNECT_BUSY:
    case NVME_SC_INTERNAL:
        return false;
    default:
        return true;
    }
}

void nvmft_req_fail(struct nvmft_req *req, uint16_t status)
{
    struct nvmft_ctrl *ctrl = req->qpair->ctrl;

    check(status != NVME_SC_SUCCESS);
    if (status == NVME_SC_NAMESPACE && ctrl != NULL && le32_get(req->sqe.nsid) != 0 &&
        !atomic_exchange(&ctrl->is_refusal_said, true))
        nvmft_auth_say(req->qpair, ctrl->hostnqn, NVMF_TARGET_AUTH_NAMESPACE);
    req->status = status;
    req->dnr = req_dnr(status);
    req->dw0 = req->dw1 = 0;
    req->end = err_from_nvme(status);
    req->state = NVMFT_REQ_RESPOND;
}

void nvmft_req_fail_err(struct nvmft_req *req, icms_err err, enum icms_miss reason)
{
    nvmft_req_fail(req, err_to_nvme(err));
    req->dnr = icms_err_retry(err) == 0;
    req->dw1 = (uint32_t)reason;
    req->end = err;
    req->pub.reason = reason;
}

static enum req_step req_failed(struct nvmft_req *req, uint16_t status)
{
    nvmft_req_fail(req, status);
    return REQ_NEXT;
}

/* ---- parsing KV commands -------------------------------------------------------------------- */

static bool req_op(uint8_t opcode, enum nvmf_target_op *out_op)
{
    switch (opcode) {
    case NVME_IO_FLUSH:
        *out_op = NVMF_TARGET_FLUSH;
        return true;
    case NVME_KV_STORE:
    case NVME_ICMS_STORE:
        *out_op = NVMF_TARGET_STORE;
        return true;
    case NVME_KV_RETRIEVE:
    case NVME_ICMS_RETRIEVE:
        *out_op = NVMF_TARGET_RETRIEVE;
        return true;
    case NVME_KV_EXIST:
        *out_op = NVMF_TARGET_EXIST;
        return true;
    case NVME_ICMS_EXIST_MANY:
        *out_op = NVMF_TARGET_EXIST_MANY;
        return true;
    case NVME_KV_DELETE:
    case NVME_ICMS_DELETE:
        *out_op = NVMF_TARGET_DELETE;
        return true;
    case NVME_KV_LIST:
        *out_op = NVMF_TARGET_LIST;
        return true;
    default:
        return false;
    }
}

static uint16_t req_kv_check_store(const struct nvmft_qpair *qpair, const struct nvmft_kv *kv,
                                   uint32_t capsule_bytes)
{
    const struct nvmf_target_ns *ns = nvmft_ns(qpair->shard->target, kv->ns);

    if (kv->cmd.bytes == 0 || kv->cmd.bytes > ns->value_bytes_max)
        return NVME_SC_KV_VALUE_SIZE;
    if (kv->cmd.bytes > kv->sgl.bytes)
        return NVME_SC_SGL_LENGTH;
    if (kv->sgl.in_capsule && kv->sgl.bytes != capsule_bytes)
        return NVME_SC_SGL_LENGTH;
    return NVME_SC_SUCCESS;
}

/* Checks all of a KV command that can be checked without its data. capsule_bytes: data that came
 * with it. */
static uint16_t req_kv_check(const struct nvmft_qpair *qpair, const struct nvme_sqe_wf *sqe,
                             uint32_t capsule_bytes, struct nvmft_kv *out_kv)
{
    uint32_t nsid = le32_get(sqe->nsid);
    uint16_t status;
    icms_err err;

    if (!req_op(sqe->opcode, &out_kv->op))
        return NVME_SC_OPCODE;
    out_kv->has_op = true;
    if (!atomic_load_explicit(&qpair->ctrl->ready, memory_order_relaxed))
        return NVME_SC_SEQUENCE;
    if (out_kv->op == NVMF_TARGET_FLUSH && nsid == NVME_NSID_ALL)
        nsid = 1 + nvmft_ns_first(&qpair->ctrl->allowed);
    if (nsid == 0 || !nvmft_ns_has(&qpair->ctrl->allowed, nsid - 1))
        return NVME_SC_NAMESPACE;
    out_kv->ns = nsid - 1;
    if (nvme_sgl_decode(&sqe->sgl, &out_kv->sgl, &status) != ICMS_OK)
        return status;
    if (out_kv->sgl.in_capsule && out_kv->sgl.offset != 0)
        return NVME_SC_SGL_OFFSET;
    if (capsule_bytes > 0 && !out_kv->sgl.in_capsule)
        return NVME_SC_SGL_TYPE;
    if (out_kv->op == NVMF_TARGET_FLUSH)
        return NVME_SC_SUCCESS;
    if (out_kv->op == NVMF_TARGET_EXIST_MANY) {
        err = nvme_kv_exist_many_count(sqe, &out_kv->key_count);
        if (err != ICMS_OK)
            return err_to_nvme(err);
        if (!out_kv->sgl.in_capsule)
            return NVME_SC_SGL_TYPE;
        return out_kv->sgl.bytes == capsule_bytes &&
                       capsule_bytes == out_kv->key_count * sizeof(struct nvme_kv_exist_key_wf)
                   ? NVME_SC_SUCCESS
                   : NVME_SC_SGL_LENGTH;
    }
    err = nvme_kv_cmd_decode(sqe, &out_kv->cmd);
    if (err != ICMS_OK)
        return err_to_nvme(err);
    if (out_kv->op == NVMF_TARGET_STORE)
        return req_kv_check_store(qpair, out_kv, capsule_bytes);
    if (out_kv->sgl.in_capsule && out_kv->sgl.bytes > 0)
        return NVME_SC_SGL_TYPE; /* data to the host cannot be in its capsule */
    if (out_kv->cmd.bytes > out_kv->sgl.bytes)
        return NVME_SC_SGL_LENGTH;
    return NVME_SC_SUCCESS;
}

static void req_kv_parse(const struct nvmft_qpair *qpair, const struct nvme_sqe_wf *sqe,
                         uint32_t capsule_bytes, struct nvmft_kv *out_kv)
{
    *out_kv = (struct nvmft_kv){0};
    out_kv->status = req_kv_check(qpair, sqe, capsule_bytes, out_kv);
}

bool nvmft_req_capsule_room(struct nvmft_qpair *qpair, const struct nvme_sqe_wf *sqe,
                            uint32_t data_bytes, uint64_t *out_bytes, uint32_t *out_offset)
{
    struct nvmf_target *target = qpair->shard->target;
    struct nvmft_kv *kv = &qpair->incoming_kv;

    *out_offset = 0;
    if (sqe->opcode == NVME_FABRICS) {
        *out_bytes = NVMFT_POOL_PAGE;
        if (nvme_fctype(sqe) == NVME_FCTYPE_AUTH_SEND)
            return data_bytes <= NVMFT_POOL_PAGE && qpair->state == NVMFT_QPAIR_READY;
        *out_bytes = NVME_CONNECT_DATA_BYTES;
        return nvme_fctype(sqe) == NVME_FCTYPE_CONNECT && data_bytes == NVME_CONNECT_DATA_BYTES;
    }
    if (qpair->state != NVMFT_QPAIR_READY || qpair->qid == 0 || !nvmft_auth_passed(qpair))
        return false;
    req_kv_parse(qpair, sqe, data_bytes, kv);
    if (kv->status != NVME_SC_SUCCESS)
        return false;
    if (kv->op == NVMF_TARGET_EXIST_MANY) {
        *out_bytes = 0; /* they are few bytes, and wait in memory of the queue pair */
        return true;
    }
    *out_offset = target->opts.headroom_bytes;
    *out_bytes = target->opts.ops->buffer_bytes(data_bytes);
    return kv->op == NVMF_TARGET_STORE;
}

/* ---- states --------------------------------------------------------------------------------- */

/* Whose command it is. */
static uint32_t req_tenant(const struct nvmft_req *req)
{
    return req->is_admin ? nvmft_tenant_admin(req->qpair->shard)
                         : nvmft_ns(req->qpair->shard->target, req->pub.ns)->tenant;
}

static enum req_step req_wait_buffer(struct nvmft_req *req, enum nvmft_wait_class class,
                                     uint64_t bytes)
{
    req->state = NVMFT_REQ_WAIT_BUFFER;
    nvmft_qpair_watch(req->qpair);
    return nvmft_buffers_take(req, req_tenant(req), class, bytes) ? REQ_NEXT : REQ_WAIT;
}

static enum req_step req_new_admin(struct nvmft_req *req)
{
    uint32_t room;

    counter_add(&req->qpair->shard->counters.admin_commands, 1);
    room = nvmft_admin_room(req);
    if (room > 0)
        return req_wait_buffer(req, NVMFT_WAIT_LOAD, room);
    req->state = NVMFT_REQ_EXECUTE;
    return REQ_NEXT;
}

static void req_fill(struct nvmft_req *req, const struct nvmft_kv *kv)
{
    struct nvmf_target_req *pub = &req->pub;

    *pub = (struct nvmf_target_req){
        .op = kv->op,
        .ns = kv->ns,
        .key = kv->cmd.key,
        .only_record = kv->cmd.record,
        .loop = req->qpair->shard->loop,
        .io_class = kv->op == NVMF_TARGET_STORE ? IO_CLASS_STORE : IO_CLASS_LOAD,
    };
    req->counted = true;
    req->keys = kv->op == NVMF_TARGET_EXIST ? 1 : kv->key_count;
    req->sgl = kv->sgl;
    if (kv->cmd.opcode == NVME_ICMS_STORE || kv->cmd.opcode == NVME_ICMS_RETRIEVE)
        pub->io_class = (enum io_class)kv->cmd.io_class;
    if (kv->cmd.time_left_us > 0)
        pub->deadline_ns = req->started_ns + (uint64_t)kv->cmd.time_left_us * 1000;
    if (kv->op == NVMF_TARGET_STORE) {
        pub->value_bytes = kv->cmd.bytes;
        if (kv->cmd.options & NVME_KV_STORE_IF_EXISTS)
            pub->options |= NVMF_TARGET_IF_EXISTS;
        if (kv->cmd.options & NVME_KV_STORE_IF_ABSENT)
            pub->options |= NVMF_TARGET_IF_ABSENT;
    } else {
        pub->host_bytes = kv->cmd.bytes;
    }
}

/* A load waits with those of its class. */
static enum nvmft_wait_class req_load_class(const struct nvmft_req *req)
{
    return req->pub.io_class == IO_CLASS_PRESTAGE && !req->is_expedited ? NVMFT_WAIT_PRESTAGE
                                                                        : NVMFT_WAIT_LOAD;
}

/* A load of class PRESTAGE is waited for now: if it stands in line, it stands in that of loads. */
static void req_expedite(struct nvmft_req *req)
{
    if (req->is_admin || req->pub.op != NVMF_TARGET_RETRIEVE || req->is_expedited ||
        req->pub.io_class != IO_CLASS_PRESTAGE)
        return;
    req->is_expedited = true;
    if (req->state != NVMFT_REQ_WAIT_BUFFER)
        return;
    counter_add(&req->qpair->shard->counters.prestage_expedites, 1);
    nvmft_buffers_unpark(req);
    if (req_wait_buffer(req, NVMFT_WAIT_LOAD, req->buffer_bytes) == REQ_NEXT)
        nvmft_req_run(req);
}

/* What its host says of other commands of the queue pair; it needs no turn. */
static enum req_step req_new_expedite(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    uint16_t cids[NVME_KV_EXPEDITE_CIDS];
    uint32_t count;

    if (nvme_kv_expedite_decode(&req->sqe, cids, &count) != ICMS_OK)
        return req_failed(req, NVME_SC_FIELD);
    for (uint32_t i = 0; i < qpair->slots_touched; i++) {
        struct nvmft_req *other = nvmft_qpair_slot(qpair, i);

        for (uint32_t k = 0; k < count && other->state != NVMFT_REQ_FREE; k++)
            if (other->io.cid == cids[k])
                req_expedite(other);
    }
    req->state = NVMFT_REQ_RESPOND;
    return REQ_NEXT;
}

/* A store whose data is not here yet: is there room, or is the line too long? */
static enum req_step req_new_store(struct nvmft_req *req)
{
    struct nvmft_shard *shard = req->qpair->shard;
    struct nvmf_target *target = shard->target;
    uint64_t bytes = target->opts.ops->buffer_bytes(req->pub.value_bytes);

    if (nvmft_backlog_full(shard, req_tenant(req), bytes)) {
        counter_add(&shard->counters.sheds, 1);
        counter_add(&shard->buffers.tenants[req_tenant(req)].counters.sheds, 1);
        nvmft_req_fail_err(req, ICMS_BUSY, ICMS_MISS_SHED);
        return REQ_NEXT;
    }
    req->io.data_bytes = req->pub.value_bytes;
    return req_wait_buffer(req, NVMFT_WAIT_STORE, bytes);
}

/* There was no room for the data that came with it: the host is to send the command again, and
 * then it waits in line. This one does not count. */
static enum req_step req_ask_first(struct nvmft_req *req)
{
    nvmft_req_fail(req, NVME_SC_TRANSIENT);
    req->dw1 = NVME_ICMS_ASK;
    req->counted = false;
    return REQ_NEXT;
}

static enum req_step req_new_kv(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    struct nvmf_target *target = qpair->shard->target;
    struct nvmft_kv kv;

    if (req->io.data_moved > 0)
        kv = qpair->incoming_kv; /* the verdict that its data was received by */
    else
        req_kv_parse(qpair, &req->sqe, 0, &kv);
    if (kv.status != NVME_SC_SUCCESS) {
        if (kv.has_op && le32_get(req->sqe.nsid) != 0) { /* 0: a host looks whether we live */
            req->pub.op = kv.op;
            req->counted = true;
        }
        return req_failed(req, kv.status);
    }
    req_fill(req, &kv);
    if (req->status != NVME_SC_SUCCESS)
        return req_failed(req, req->status); /* the data digest did not match */
    req->state = NVMFT_REQ_EXECUTE;
    switch (kv.op) {
    case NVMF_TARGET_STORE:
        if (!kv.sgl.in_capsule)
            return req_new_store(req);
        return req->buffer != NULL ? REQ_NEXT : req_ask_first(req);
    case NVMF_TARGET_EXIST_MANY:
        req->pub.keys = nvmft_qpair_keys(req);
        req->pub.key_count = kv.key_count;
        if (nvme_kv_exist_many_decode(qpair->incoming_keys, req->io.data_moved, kv.key_count,
                                      nvmft_qpair_keys(req)) != ICMS_OK)
            return req_failed(req, NVME_SC_KV_KEY_SIZE);
        return req_wait_buffer(req, NVMFT_WAIT_LOAD, NVMFT_POOL_PAGE); /* it needs none: as Exist */
    case NVMF_TARGET_LIST:
        if (req->pub.host_bytes < NVME_KV_LIST_HEADER_BYTES)
            return req_failed(req, NVME_SC_SGL_LENGTH);
        req->pub.host_bytes = (uint32_t)u64_min(req->pub.host_bytes, target->buffer_bytes_max);
        return req_wait_buffer(req, NVMFT_WAIT_SCAN, req->pub.host_bytes);
    case NVMF_TARGET_FLUSH: /* it needs no memory, and takes its turn all the same */
        return req_wait_buffer(req, NVMFT_WAIT_SCAN, NVMFT_POOL_PAGE);
    case NVMF_TARGET_EXIST: /* likewise */
    case NVMF_TARGET_DELETE:
        return req_wait_buffer(req, NVMFT_WAIT_LOAD, NVMFT_POOL_PAGE);
    default: /* a load: it takes its turn with the memory, but for a turn that its host owes */
        if (!nvmft_buffers_pay(qpair))
            return REQ_NEXT;
        req->keys = 1;
        return req_wait_buffer(req, req_load_class(req), NVMFT_POOL_PAGE);
    }
}

/* A load that has had the turn of a lookup, and no other one. */
static bool req_is_lookup(const struct nvmft_req *req)
{
    return req->pub.op == NVMF_TARGET_RETRIEVE && req->keys > 0;
}

/* A queue pair that has to authenticate serves nothing else before. */
static bool req_allowed(const struct nvmft_req *req)
{
    uint8_t type = nvme_fctype(&req->sqe);

    if (req->qpair->state != NVMFT_QPAIR_READY || nvmft_auth_passed(req->qpair))
        return true;
    return req->sqe.opcode == NVME_FABRICS &&
           (type == NVME_FCTYPE_CONNECT || type == NVME_FCTYPE_AUTH_SEND ||
            type == NVME_FCTYPE_AUTH_RECEIVE);
}

static enum req_step req_run_new(struct nvmft_req *req)
{
    if (!req_allowed(req)) {
        counter_add(&req->qpair->shard->counters.auths_wanted, 1);
        return req_failed(req, NVME_SC_AUTH_REQUIRED);
    }
    /* Byte 1 of a fabrics command is reserved. */
    if (req->sqe.opcode != NVME_FABRICS && !nvme_sqe_flags_valid(&req->sqe))
        return req_failed(req, NVME_SC_FIELD);
    if (!req->is_admin && req->sqe.opcode == NVME_ICMS_EXPEDITE)
        return req_new_expedite(req);
    return req->is_admin ? req_new_admin(req) : req_new_kv(req);
}

static enum req_step req_run_wait_buffer(struct nvmft_req *req)
{
    check(req->buffer != NULL);
    if (!req->qpair->conn_open) { /* granted while the connection's commands are given up */
        req->state = NVMFT_REQ_DONE;
        return REQ_NEXT;
    }
    if (!req->is_admin && req->pub.op == NVMF_TARGET_STORE) {
        const struct nvmf_target_opts *opts = &req->qpair->shard->target->opts;

        req->io.data = req->buffer + opts->headroom_bytes;
        req->io.data_moved = 0;
        req->progress_ns = loop_now_ns(req->qpair->shard->loop);
        req->state = NVMFT_REQ_H2C;
        nvmft_qpair_watch(req->qpair);
        nvmft_buffers_hosted(req);
        opts->transport->read(req->qpair->conn, &req->io);
        return REQ_WAIT;
    }
    req->state = NVMFT_REQ_EXECUTE;
    return REQ_NEXT;
}

/* Woken by the transport: all there? */
static enum req_step req_run_h2c(struct nvmft_req *req)
{
    if (req->io.data_moved < req->io.data_bytes)
        return REQ_WAIT;
    nvmft_buffers_unhosted(req);
    if (req->io.err != ICMS_OK)
        return req_failed(req, NVME_SC_TRANSPORT);
    req->state = NVMFT_REQ_EXECUTE;
    return REQ_NEXT;
}

static bool req_expired(const struct nvmft_req *req)
{
    return req->pub.deadline_ns != 0 &&
           loop_now_ns(req->qpair->shard->loop) >= req->pub.deadline_ns;
}

static enum req_step req_answered(struct nvmft_req *req);

static enum req_step req_run_execute(struct nvmft_req *req)
{
    struct nvmf_target *target = req->qpair->shard->target;

    if (req->is_admin) {
        nvmft_admin_execute(req);
        return req->state == NVMFT_REQ_HELD || req->state == NVMFT_REQ_JOIN ||
                       req->state == NVMFT_REQ_AUTH
                   ? REQ_WAIT
                   : REQ_NEXT;
    }
    if (req->answered)
        return req_answered(req);
    if (req_expired(req)) {
        nvmft_req_fail_err(req, ICMS_DEADLINE, ICMS_MISS_DEADLINE);
        return REQ_NEXT;
    }
    req->pub.memory = req->pub.op == NVMF_TARGET_EXIST_MANY || req->pub.op == NVMF_TARGET_EXIST ||
                              req->pub.op == NVMF_TARGET_FLUSH || req_is_lookup(req)
                          ? NULL
                          : req->buffer;
    req->pub.memory_bytes = req->pub.memory == NULL ? 0 : req->buffer_bytes;
    req->pub.err = ICMS_OK;
    req->pub.reason = ICMS_MISS_NONE;
    req->pub.value = NULL;
    req->pub.done_bytes = req->pub.map = 0;
    req->pub.record = 0;
    req->in_kv = true;
    target->opts.ops->kv(target->opts.owner, &req->pub);
    req->in_kv = false;
    return req->answered ? req_answered(req) : REQ_WAIT;
}

void nvmf_target_req_done(struct nvmf_target_req *pub)
{
    struct nvmft_req *req = container_of(pub, struct nvmft_req, pub);

    check(req->magic == NVMFT_REQ_MAGIC && !req->answered);
    check(req->state == NVMFT_REQ_EXECUTE || req->state == NVMFT_REQ_STREAM);
    check(loop_is_mine(pub->loop));
    req->answered = true;
    req->kv_sent_due = true;
    if (!req->in_kv)
        nvmft_req_run(req);
}

/* Data to the host: it is where the owner said. */
static void req_data_begin(struct nvmft_req *req)
{
    /* Sends do not write. */
    req->io.data = (uint8_t *)(uintptr_t)req->pub.value;
    req->io.data_bytes = (uint32_t)u64_min(req->pub.done_bytes, req->pub.host_bytes);
    req->io.data_moved = 0;
}

void nvmf_target_req_more(struct nvmf_target_req *pub, uint32_t bytes)
{
    struct nvmft_req *req = container_of(pub, struct nvmft_req, pub);

    check(req->magic == NVMFT_REQ_MAGIC && !req->answered && !req->in_kv);
    check(loop_is_mine(pub->loop) && pub->op == NVMF_TARGET_RETRIEVE);
    if (req->state == NVMFT_REQ_EXECUTE) {
        req_data_begin(req);
        req->data_ready = 0;
        req->state = NVMFT_REQ_STREAM;
    }
    check(req->state == NVMFT_REQ_STREAM && bytes >= req->data_ready);
    if (bytes < req->io.data_bytes)
        req->data_ready = bytes; /* else the end of the data waits for nvmf_target_req_done */
    nvmft_req_run(req);
}

void *nvmf_target_req_area(struct nvmf_target_req *pub)
{
    return container_of(pub, struct nvmft_req, pub)->area;
}

/* The owner does not get to know more of this command. */
static void req_kv_sent(struct nvmft_req *req)
{
    const struct nvmf_target_opts *opts = &req->qpair->shard->target->opts;

    if (!req->kv_sent_due)
        return;
    req->kv_sent_due = false;
    if (opts->ops->sent != NULL)
        opts->ops->sent(opts->owner, &req->pub);
}

/* The owner is done: what does the host get? */
static enum req_step req_answered(struct nvmft_req *req)
{
    struct nvmf_target *target = req->qpair->shard->target;
    struct nvmf_target_req *pub = &req->pub;

    req->answered = false;
    req->end = pub->err;
    if (!req->qpair->conn_open) {
        req->state = NVMFT_REQ_DONE;
        return REQ_NEXT;
    }
    if (pub->op == NVMF_TARGET_RETRIEVE && pub->err == ICMS_VALUE_SIZE &&
        req->state == NVMFT_REQ_EXECUTE && pub->done_bytes > pub->memory_bytes &&
        pub->done_bytes <= target->buffer_bytes_max) {
        req_kv_sent(req);
        nvmft_buffers_give(req);
        req->keys = 0;
        return req_wait_buffer(req, req_load_class(req), pub->done_bytes);
    }
    if (pub->op == NVMF_TARGET_DELETE && pub->only_record == 0 && pub->err == ICMS_MISS &&
        (atomic_load_explicit(&req->qpair->ctrl->ednek[pub->ns / 64], memory_order_relaxed) >>
             pub->ns % 64 &
         1) == 0)
        pub->err = ICMS_OK; /* NVMe: deleting what is not there succeeds */
    if (pub->err != ICMS_OK) {
        if (pub->op == NVMF_TARGET_RETRIEVE && pub->memory == NULL)
            nvmft_buffers_owe(req->qpair);
        nvmft_req_fail_err(req, pub->err, pub->reason);
        return REQ_NEXT;
    }
    req->status = NVME_SC_SUCCESS;
    if (req->state == NVMFT_REQ_EXECUTE)
        req->io.data_bytes = req->io.data_moved = 0;
    if (pub->op == NVMF_TARGET_RETRIEVE || pub->op == NVMF_TARGET_LIST) {
        check(pub->value != NULL || pub->done_bytes == 0);
        check(req->state == NVMFT_REQ_EXECUTE || req->io.data == pub->value);
        if (req->state == NVMFT_REQ_EXECUTE)
            req_data_begin(req);
        if (pub->op == NVMF_TARGET_RETRIEVE) {
            req->dw0 = (uint32_t)pub->done_bytes;
            req->dw1 = pub->record;
        }
    } else if (pub->op == NVMF_TARGET_EXIST_MANY) {
        req->dw0 = (uint32_t)pub->map;
        req->dw1 = (uint32_t)(pub->map >> 32);
    }
    req->state = NVMFT_REQ_RESPOND;
    return REQ_NEXT;
}

static enum req_step req_run_stream(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;

    if (req->answered)
        return req_answered(req);
    if (qpair->conn_open && req->data_ready > 0) {
        nvmft_qpair_watch(qpair);
        qpair->shard->target->opts.transport->write(qpair->conn, &req->io, req->data_ready);
    }
    return REQ_WAIT;
}

/* The host needs no completion of a retrieve that went well when it asked for no SQ heads, and the
 * result is what it counts itself. */
static enum req_step req_run_respond(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    bool success = req->status == NVME_SC_SUCCESS;

    if (!qpair->conn_open) {
        req->state = NVMFT_REQ_DONE;
        return REQ_NEXT;
    }
    req->io.result_is_bytes = success && qpair->no_flow && req->sqe.opcode == NVME_ICMS_RETRIEVE &&
                              req->dw0 == req->io.data_bytes;
    req->state = NVMFT_REQ_SENDING;
    nvmft_qpair_watch(qpair);
    nvmft_buffers_hosted(req);
    qpair->shard->target->opts.transport->respond(qpair->conn, &req->io,
                                                  success ? req->io.data_bytes : 0);
    return REQ_WAIT;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void req_account(struct nvmft_req *req)
{
    struct nvmft_shard *shard = req->qpair->shard;
    struct nvmft_counters *counters = &shard->counters;
    const struct nvmf_target_req *pub = &req->pub;
    struct nvmft_tenant_counters *tenant;

    if (!req->counted)
        return;
    check((uint32_t)req->end < NVMF_TARGET_ERRS && (uint32_t)pub->reason < NVMF_TARGET_MISSES);
    counter_add(&counters->ops[pub->op][req->end], 1);
    hist_add(&counters->op_ns[pub->op], loop_now_ns(shard->loop) - req->started_ns);
    if (pub->op == NVMF_TARGET_RETRIEVE || pub->op == NVMF_TARGET_EXIST)
        counter_add(&counters->misses[pub->reason], pub->reason != ICMS_MISS_NONE);
    else if (pub->op == NVMF_TARGET_EXIST_MANY && req->status == NVME_SC_SUCCESS)
        counter_add(&counters->misses[ICMS_MISS_ABSENT],
                    pub->key_count - (uint32_t)__builtin_popcountll(pub->map));
    if (req->keys > 0 && (req->end == ICMS_OK || req->end == ICMS_MISS)) {
        tenant = &shard->buffers.tenants[req_tenant(req)].counters;
        counter_add(&tenant->ops[NVMF_TARGET_LOADS], req->keys);
    }
    if (req->status != NVME_SC_SUCCESS)
        return;
    tenant = &shard->buffers.tenants[req_tenant(req)].counters;
    if (pub->op == NVMF_TARGET_STORE) {
        counter_add(&counters->bytes_in, pub->value_bytes);
        counter_add(&tenant->ops[NVMF_TARGET_STORES], 1);
        counter_add(&tenant->bytes[NVMF_TARGET_STORES], pub->value_bytes);
    } else if (pub->op == NVMF_TARGET_RETRIEVE) {
        counter_add(&counters->bytes_out, req->io.data_moved);
        counter_add(&tenant->ops[NVMF_TARGET_LOADS], 1);
        counter_add(&tenant->bytes[NVMF_TARGET_LOADS], req->io.data_moved);
    }
}

static enum req_step req_run_done(struct nvmft_req *req)
{
    req_account(req);
    req_kv_sent(req);
    nvmft_buffers_give(req);
    return REQ_END;
}

static enum req_step req_run_nothing(struct nvmft_req *req)
{
    return REQ_WAIT;
}

static enum req_step (*const req_state_fn[])(struct nvmft_req *req) = {
    [NVMFT_REQ_NEW] = req_run_new,         [NVMFT_REQ_WAIT_BUFFER] = req_run_wait_buffer,
    [NVMFT_REQ_H2C] = req_run_h2c,         [NVMFT_REQ_EXECUTE] = req_run_execute,
    [NVMFT_REQ_STREAM] = req_run_stream,   [NVMFT_REQ_HELD] = req_run_nothing,
    [NVMFT_REQ_AUTH] = req_run_nothing,    [NVMFT_REQ_JOIN] = req_run_nothing,
    [NVMFT_REQ_RESPOND] = req_run_respond, [NVMFT_REQ_SENDING] = req_run_nothing,
    [NVMFT_REQ_DONE] = req_run_done,
};

void nvmft_req_run(struct nvmft_req *req)
{
    enum req_step step;

    do {
        check(req->magic == NVMFT_REQ_MAGIC && req->state != NVMFT_REQ_FREE);
        step = req_state_fn[req->state](req);
    } while (step == REQ_NEXT);
    if (step == REQ_END)
        nvmft_qpair_req_free(req);
}

void nvmft_req_abandon(struct nvmft_req *req)
{
    switch (req->state) {
    case NVMFT_REQ_WAIT_BUFFER:
        req->state = NVMFT_REQ_DONE;
        if (req_is_lookup(req))
            nvmft_buffers_owe(req->qpair);
        nvmft_buffers_unpark(req);
        break;
    case NVMFT_REQ_H2C:
    case NVMFT_REQ_SENDING:
        req->state = NVMFT_REQ_DONE;
        break;
    case NVMFT_REQ_HELD:
        check(req->qpair->reqs_held > 0);
        req->qpair->reqs_held--;
        req->state = NVMFT_REQ_DONE;
        break;
    case NVMFT_REQ_STREAM:
        req->pub.unwanted = true; /* it comes back by itself, as from EXECUTE */
        return;
    default:
        /* FREE; EXECUTE, AUTH and JOIN come back by themselves, the owner may want to know */
        req->pub.unwanted = req->state == NVMFT_REQ_EXECUTE;
        return;
    }
    nvmft_req_run(req);
}
