/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/req.c: requests of the initiator: start, deadline, end.
 *
 * Called by the owner on the association's loop, by queue.c and by timers.
 *
 * Life: nvmf_req_start (PARKED) -> queue_cmd_send (SENT) -> nvmf_req_end (IDLE, done). The deadline
 * may come in between; what then happens depends on what may still touch the memory:
 *
 *   parked                          ends at once
 *   only the answer is missing      ends at once; the CID stays reserved until the answer
 *   its memory is read or written   DRAIN: ends when the transport says that it is over
 *   a store that may still be asked for data: goes on, marked late, for NVMF_STORE_LATE_NS more
 *
 * Invariant: done runs once for each start, from a callback of the loop, and then nothing reads or
 * writes the request's memory.
 */
#include "base/check.h"
#include "base/fault.h"
#include "nvmf/host/host_int.h"

/* ---- the end -------------------------------------------------------------------------------- */

void nvmf_req_end(struct nvmf_req *req, icms_err err)
{
    struct nvmf_ctrl *ctrl = req->ctrl;

    check(req->state != NVMF_REQ_IDLE && req->cmd == NULL);
    loop_timer_stop(ctrl->loop, &req->timer);
    req->state = NVMF_REQ_IDLE;
    req->err = err;
    req->done(req);
}

/* The same, later: for calls of the owner. */
static void req_end_later(struct nvmf_req *req, icms_err err)
{
    loop_timer_stop(req->ctrl->loop, &req->timer);
    req->state = NVMF_REQ_ENDED;
    req->err = err;
    list_push(&req->ctrl->ended, &req->link);
    nvmf_ctrl_poke(req->ctrl);
}

/* The error of an answer. A target that is icms says the reason of a failure in DW1. */
void nvmf_req_result(struct nvmf_req *req, const struct nvmf_cmd *cmd, const struct nvme_cqe *cqe)
{
    uint32_t reason = cqe->dw1;

    req->status = cqe->status;
    req->result = cqe->dw0;
    req->result1 = cqe->dw1;
    req->err = ICMS_OK;
    req->reason = ICMS_MISS_NONE;
    if (cqe->status != NVME_SC_SUCCESS) {
        req->err = err_from_nvme(cqe->status);
        if (req->err == ICMS_OK)
            req->err = ICMS_IO;
        if (reason > ICMS_MISS_NONE && reason < ICMS_MISS_COUNT)
            req->reason = (enum icms_miss)reason;
        return;
    }
    if (cmd->io.err != ICMS_OK)
        req->err = cmd->io.err;
    else if (cmd->io.direction == NVME_DIRECTION_C2H)
        req->value_bytes = cmd->io.result_is_bytes ? cqe->dw0 : cmd->io.moved;
    if (req->want_record && (req->ctrl->info.icms_ext & NVME_ICMS_EXT_RECORD) != 0)
        req->record = cqe->dw1;
}

/* ---- deadline ------------------------------------------------------------------------------- */

/* Ends a sent request whose deadline passed, as far as that is possible now. */
static void req_expire_sent(struct nvmf_req *req)
{
    struct nvmf_ctrl *ctrl = req->ctrl;
    struct nvmf_cmd *cmd = req->cmd;
    icms_err withdraw = ctrl->transport->withdraw(req->queue->conn, &cmd->io);

    if (withdraw == ICMS_BUSY) {
        if (req->late) {
            nvmf_ctrl_fail(ctrl, ICMS_DEADLINE, "a store was neither answered nor its data taken");
            return;
        }
        req->late = true;
        loop_timer_start(ctrl->loop, &req->timer, loop_now_ns(ctrl->loop) + NVMF_STORE_LATE_NS);
        return;
    }
    req->err = ICMS_DEADLINE;
    if (withdraw == ICMS_OK) {
        req->state = NVMF_REQ_DRAIN;
        if (cmd->io.direction == NVME_DIRECTION_C2H)
            ctrl->stats.redirects++;
        return;
    }
    nvmf_cmd_detach(cmd);
    nvmf_req_end(req, ICMS_DEADLINE);
}

static void req_deadline(struct loop_timer *timer)
{
    struct nvmf_req *req = container_of(timer, struct nvmf_req, timer);
    uint64_t more_ns = 0;

    if (req->state == NVMF_REQ_SENT && req->overdue != NULL && !req->late)
        more_ns = req->overdue(req);
    if (req->state == NVMF_REQ_PARKED) {
        line_leave(&req->queue->line, req->share, &req->link);
        nvmf_req_end(req, ICMS_DEADLINE);
    } else if (more_ns != 0) {
        req->late = true;
        loop_timer_start(req->ctrl->loop, &req->timer, loop_now_ns(req->ctrl->loop) + more_ns);
    } else if (req->state == NVMF_REQ_SENT) {
        req_expire_sent(req);
    }
}

bool nvmf_redirect(struct nvmf_req *req, const struct iovec data[NVMF_DATA_VECTORS])
{
    check(req->state == NVMF_REQ_SENT && req->direction == NVME_DIRECTION_C2H);
    check(data[0].iov_len + data[1].iov_len == req->data_bytes);
    if (!req->ctrl->transport->redirect(req->queue->conn, &req->cmd->io, data))
        return false;
    memcpy(req->data, data, sizeof(req->data));
    return true;
}

/* ---- the start ------------------------------------------------------------------------------ */

void nvmf_req_init(struct nvmf_req *req, struct nvmf_ctrl *ctrl, struct nvmf_queue *queue)
{
    req->state = NVMF_REQ_IDLE;
    req->ctrl = ctrl;
    req->queue = queue;
}

void nvmf_req_start(struct nvmf_req *req)
{
    struct nvmf_ctrl *ctrl = req->ctrl;

    check(req->state == NVMF_REQ_IDLE);
    check(req->overdue == NULL || req->opcode == NVME_ICMS_RETRIEVE ||
          req->opcode == NVME_KV_RETRIEVE);
    req->state = NVMF_REQ_PARKED;
    req->cmd = NULL;
    req->late = false;
    req->err = ICMS_OK;
    req->reason = ICMS_MISS_NONE;
    req->status = 0;
    req->result = req->result1 = 0;
    req->value_bytes = req->record = 0;
    req->data_bytes = (uint32_t)(req->data[0].iov_len + req->data[1].iov_len);
    loop_timer_init(&req->timer, req_deadline);
    if (req->deadline_ns != 0)
        loop_timer_start(ctrl->loop, &req->timer, req->deadline_ns);
    list_init(&req->link);
    nvmf_queue_park(req->queue, req, false);
    nvmf_queue_run(req->queue);
}

/* An I/O command of the owner. */
static icms_err req_io(struct nvmf_ctrl *ctrl, struct nvmf_req *req, uint8_t opcode,
                       uint8_t direction)
{
    uint64_t bytes = (uint64_t)req->data[0].iov_len + req->data[1].iov_len;

    check(req->io_class < IO_CLASS_COUNT && req->done != NULL);
    if (!ctrl->up || fault_hit("nvmf.host.start"))
        return ICMS_PEER_DOWN;
    if (bytes > ctrl->transfer_max)
        return ICMS_VALUE_SIZE;
    nvmf_req_init(req, ctrl, &ctrl->queues[1 + req->io_class]);
    req->direction = direction;
    req->opcode = opcode;
    nvmf_req_start(req);
    return ICMS_OK;
}

bool nvmf_expedite(struct nvmf_req *req)
{
    struct nvmf_ctrl *ctrl = req->ctrl;

    if ((req->state != NVMF_REQ_SENT && req->state != NVMF_REQ_PARKED) || !ctrl->up)
        return true; /* its end is known */
    check(req->io_class == IO_CLASS_PRESTAGE);
    if (req->state == NVMF_REQ_SENT)
        return nvmf_queue_expedite(req->queue, req->cmd);
    line_leave(&req->queue->line, req->share, &req->link);
    req->io_class = IO_CLASS_LOAD;
    req->queue = &ctrl->queues[1 + IO_CLASS_LOAD];
    nvmf_queue_park(req->queue, req, false);
    nvmf_queue_run(req->queue);
    return true;
}

static bool req_key_valid(const struct nvmf_req *req)
{
    return req->key.length >= 1 && req->key.length <= LIMIT_KEY_BYTES;
}

icms_err nvmf_store(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    bool timed = (ctrl->info.icms_ext & NVME_ICMS_EXT_TIMED) != 0;

    if (!req_key_valid(req))
        return ICMS_KEY_SIZE;
    if (req->data[0].iov_len == 0)
        return ICMS_VALUE_SIZE;
    if ((req->options & NVME_KV_STORE_IF_EXISTS) != 0 &&
        (req->options & NVME_KV_STORE_IF_ABSENT) != 0)
        return ICMS_INVALID;
    return req_io(ctrl, req, timed ? NVME_ICMS_STORE : NVME_KV_STORE, NVME_DIRECTION_H2C);
}

/* Only the standard's Retrieve always ends with a completion, which names the record. */
icms_err nvmf_retrieve(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    bool timed = (ctrl->info.icms_ext & NVME_ICMS_EXT_TIMED) != 0 && !req->want_record;

    if (!req_key_valid(req))
        return ICMS_KEY_SIZE;
    if (req->data[0].iov_len == 0)
        return ICMS_VALUE_SIZE;
    return req_io(ctrl, req, timed ? NVME_ICMS_RETRIEVE : NVME_KV_RETRIEVE, NVME_DIRECTION_C2H);
}

/* Commands without data. */
static icms_err req_plain(struct nvmf_ctrl *ctrl, struct nvmf_req *req, uint8_t opcode)
{
    if (!req_key_valid(req))
        return ICMS_KEY_SIZE;
    memset(req->data, 0, sizeof(req->data));
    return req_io(ctrl, req, opcode, NVME_DIRECTION_NONE);
}

icms_err nvmf_exist(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    return req_plain(ctrl, req, NVME_KV_EXIST);
}

icms_err nvmf_exist_many(struct nvmf_ctrl *ctrl, struct nvmf_req *req, const struct key *keys,
                         uint32_t count, void *memory)
{
    uint32_t bytes;

    check(count >= 1 && count <= NVME_KV_EXIST_MANY_KEYS);
    if (!ctrl->up)
        return ICMS_PEER_DOWN;
    if (!nvmf_ctrl_has_exist_many(ctrl))
        return ICMS_UNSUPPORTED;
    for (uint32_t i = 0; i < count; i++)
        if (keys[i].length < 1 || keys[i].length > LIMIT_KEY_BYTES)
            return ICMS_KEY_SIZE;
    bytes = nvme_kv_exist_many_encode(req->nsid, keys, count, &req->sqe, memory);
    req->data[0] = (struct iovec){memory, bytes};
    req->data[1] = (struct iovec){0};
    return req_io(ctrl, req, 0, NVME_DIRECTION_H2C); /* no KV opcode: req->sqe goes out as it is */
}

icms_err nvmf_delete(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    if (req->only_record == 0)
        return req_plain(ctrl, req, NVME_KV_DELETE);
    if (ctrl->up && (ctrl->info.icms_ext & NVME_ICMS_EXT_RECORD) == 0)
        return ICMS_UNSUPPORTED;
    return req_plain(ctrl, req, NVME_ICMS_DELETE);
}

icms_err nvmf_list(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    if (req->key.length > LIMIT_KEY_BYTES)
        return ICMS_KEY_SIZE;
    if (req->data[0].iov_len < NVME_KV_LIST_HEADER_BYTES)
        return ICMS_VALUE_SIZE;
    return req_io(ctrl, req, NVME_KV_LIST, NVME_DIRECTION_C2H);
}

icms_err nvmf_flush(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    memset(req->data, 0, sizeof(req->data));
    if (ctrl->up && !ctrl->info.write_cache) { /* what is stored is safe already */
        nvmf_req_init(req, ctrl, &ctrl->queues[1 + req->io_class]);
        loop_timer_init(&req->timer, req_deadline);
        req->reason = ICMS_MISS_NONE;
        req->status = 0;
        req_end_later(req, ICMS_OK);
        return ICMS_OK;
    }
    nvme_flush_encode(req->nsid, &req->sqe);
    return req_io(ctrl, req, NVME_IO_FLUSH, NVME_DIRECTION_NONE);
}
