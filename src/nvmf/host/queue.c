/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/queue.c: one queue pair of the initiator: dial, ICReq, Connect, then commands.
 *
 * Called by ctrl.c and req.c, and by net and nvmf/pdu on the association's loop.
 *
 * A command lives from queue_cmd_send to queue_cmd_free: it holds its CID until the target answered
 * and the kernel has all that we send for it. Its request may end earlier (nvmf_cmd_detach); what
 * then comes for the CID is received and dropped, and everything is still checked. Invariants:
 * nothing is written to a request's memory unless cmd->req is that request; data of a command comes
 * and goes in order, without holes, inside its transfer; whatever a target does that does not fit
 * ends the association, never more.
 */
#include "base/check.h"
#include "nvmf/host/host_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const struct nvmf_pdu_ops queue_pdu_ops;

static struct nvmf_queue *queue_of(struct nvmf_pdu_conn *conn)
{
    return container_of(conn, struct nvmf_queue, conn);
}

/* ---- memory --------------------------------------------------------------------------------- */

icms_err nvmf_queue_init(struct nvmf_queue *queue, struct nvmf_ctrl *ctrl, uint16_t qid,
                         uint32_t entries)
{
    static const char *const names[NVMF_QUEUES] = {"admin", "load", "prestage", "store"};

    queue->ctrl = ctrl;
    queue->qid = qid;
    queue->name = names[qid];
    queue->entries_max = entries;
    list_init(&queue->free);
    list_init(&queue->parked);
    list_init(&queue->senders);
    nvmf_req_init(&queue->connect, ctrl, queue);
    queue->cmds = calloc(entries, sizeof(queue->cmds[0]));
    if (queue->cmds == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < entries; i++) {
        queue->cmds[i].index = (uint16_t)i;
        list_init(&queue->cmds[i].link);
    }
    return ICMS_OK;
}

void nvmf_queue_fini(struct nvmf_queue *queue)
{
    nvmf_pdu_fini(&queue->conn);
    free(queue->cmds);
    queue->cmds = NULL;
}

/* ---- the end of a queue --------------------------------------------------------------------- */

/* The target broke the protocol on this queue. */
static void __attribute__((format(printf, 4, 5)))
queue_violation(struct nvmf_queue *queue, enum nvme_tcp_fes fes, uint32_t fei, const char *format,
                ...)
{
    char text[160];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    queue->ctrl->stats.violations++;
    queue->terminated = true;
    nvmf_pdu_term(&queue->conn, fes, fei);
    nvmf_ctrl_fail(queue->ctrl, ICMS_PROTOCOL, "the target broke the protocol on the %s queue: %s",
                   queue->name, text);
}

void nvmf_queue_close(struct nvmf_queue *queue, icms_err why)
{
    switch (queue->state) {
    case NVMF_QUEUE_CLOSED:
    case NVMF_QUEUE_CLOSING:
        break;
    case NVMF_QUEUE_DIAL:
        net_dial_cancel(&queue->dial);
        break;
    case NVMF_QUEUE_IC:
    case NVMF_QUEUE_CONNECT:
    case NVMF_QUEUE_LIVE:
        queue->state = NVMF_QUEUE_CLOSING;
        /* A TermReq on its way ends the connection by itself. */
        if (!queue->terminated)
            nvmf_pdu_close(&queue->conn, why);
        break;
    }
}

/* Nothing of the connection is in flight: every command and request of it ends. */
static void queue_closed(struct nvmf_pdu_conn *conn, icms_err why)
{
    struct nvmf_queue *queue = queue_of(conn);
    struct nvmf_ctrl *ctrl = queue->ctrl;

    ctrl->stats.bytes_in += conn->net.bytes_in;
    ctrl->stats.bytes_out += conn->net.bytes_out;
    queue->state = NVMF_QUEUE_CLOSING;
    if (why == ICMS_PROTOCOL)
        nvmf_ctrl_fail(ctrl, why,
                       "the connection of the %s queue ended: a PDU that breaks the "
                       "protocol was sent or received",
                       queue->name);
    else
        nvmf_ctrl_fail(ctrl, why, "the connection of the %s queue ended: %s", queue->name,
                       icms_err_text(why));
    for (uint32_t i = 0; i < queue->entries_max; i++) {
        struct nvmf_cmd *cmd = &queue->cmds[i];

        check(!cmd->capsule_busy && cmd->data_busy == 0);
        if (!cmd->used)
            continue;
        list_remove(&cmd->link);
        cmd->used = false;
        if (cmd->req != NULL) {
            struct nvmf_req *req = cmd->req;

            cmd->req = NULL;
            req->cmd = NULL;
            nvmf_req_end(req, req->state == NVMF_REQ_DRAIN ? req->err : ctrl->err);
        }
    }
    for (struct list *link; (link = list_pop(&queue->parked)) != NULL;)
        nvmf_req_end(container_of(link, struct nvmf_req, link), ctrl->err);
    queue->receiving = NULL;
    queue->used = queue->waiting = 0;
    queue->state = NVMF_QUEUE_CLOSED;
    nvmf_ctrl_poke(ctrl);
}

/* ---- opening -------------------------------------------------------------------------------- */

static void queue_ic_sent(struct nvmf_pdu_tx *tx, icms_err err)
{
}

static void queue_dial_done(struct net_dial *dial, icms_err err, struct loop_sock *sock)
{
    struct nvmf_queue *queue = container_of(dial, struct nvmf_queue, dial);
    struct nvmf_ctrl *ctrl = queue->ctrl;
    struct nvmf_pdu_opts opts = {
        .ops = &queue_pdu_ops,
        .role = NVME_TCP_HOST,
        .data_max = NVMF_C2H_BYTES_MAX,
        .send_timeout_ns = ctrl->send_timeout_ns,
    };

    if (err == ICMS_OK && ctrl->state == NVMF_CTRL_CLOSING) {
        loop_sock_close(&sock);
        err = ICMS_CANCELED;
    }
    if (err != ICMS_OK) {
        queue->state = NVMF_QUEUE_CLOSED;
        nvmf_ctrl_fail(ctrl, err, "cannot connect (%s queue): %s", queue->name, icms_err_text(err));
        nvmf_ctrl_poke(ctrl);
        return;
    }
    queue->state = NVMF_QUEUE_IC;
    nvmf_pdu_open(&queue->conn, ctrl->loop, sock, &opts);
    nvme_tcp_ic_req_encode(&queue->ic.pdu, 0, ctrl->digests, 1);
    memset(queue->ic.data, 0, sizeof(queue->ic.data));
    queue->ic.done = queue_ic_sent;
    nvmf_pdu_send(&queue->conn, &queue->ic);
}

void nvmf_queue_open(struct nvmf_queue *queue, uint32_t entries, uint64_t deadline_ns)
{
    check(queue->state == NVMF_QUEUE_CLOSED);
    check(entries >= NVMF_ENTRIES_MIN && entries <= queue->entries_max);
    queue->state = NVMF_QUEUE_DIAL;
    queue->depth = entries - 1;
    queue->used = queue->waiting = 0;
    queue->silent_ticks = 0;
    queue->heard_bytes = 0;
    queue->terminated = false;
    queue->receiving = NULL;
    queue->ask_first = 0;
    queue->in_capsule_max = NVME_CONNECT_DATA_BYTES; /* until Connect is over */
    list_init(&queue->free);
    for (uint32_t i = 0; i < queue->depth; i++) {
        queue->cmds[i].used = false;
        queue->cmds[i].req = NULL;
        list_push(&queue->free, &queue->cmds[i].link);
    }
    net_dial_start(&queue->dial, queue->ctrl->loop, &queue->ctrl->addr, deadline_ns,
                   queue_dial_done);
}

static void queue_connect_done(struct nvmf_req *req)
{
    struct nvmf_queue *queue = container_of(req, struct nvmf_queue, connect);
    struct nvmf_ctrl *ctrl = queue->ctrl;

    if (req->err != ICMS_OK) {
        if (req->status == NVME_SC_CONNECT_HOST)
            nvmf_ctrl_fail(ctrl, ICMS_AUTH, "the target does not allow host %s to use subsystem %s",
                           ctrl->hostnqn, ctrl->subnqn);
        else if (req->status == NVME_SC_CONNECT_PARAM &&
                 req->result == NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_SUBNQN))
            nvmf_ctrl_fail(ctrl, req->err,
                           "the target has no subsystem %s that host %s may use; check the "
                           "enclosure's name or nqn, and its volumes' hosts",
                           ctrl->subnqn, ctrl->hostnqn);
        else if (req->status != 0)
            nvmf_ctrl_fail(ctrl, req->err,
                           "the target refused Connect of the %s queue to subsystem %s with NVMe "
                           "status %03xh",
                           queue->name, ctrl->subnqn, req->status);
        else
            nvmf_ctrl_fail(ctrl, req->err, "Connect of the %s queue: %s", queue->name,
                           icms_err_text(req->err));
        return;
    }
    if ((req->result & NVME_CONNECT_AUTH) != 0) {
        nvmf_ctrl_fail(ctrl, ICMS_AUTH,
                       "the target wants DH-HMAC-CHAP authentication, which this "
                       "host does not offer");
        return;
    }
    if (queue->qid == 0)
        ctrl->cntlid = nvme_connect_cntlid(req->result);
    queue->state = NVMF_QUEUE_LIVE;
    queue->in_capsule_max = queue->qid == 0 ? 0 : ctrl->info.in_capsule_bytes;
    nvmf_ctrl_queue_live(ctrl, queue);
}

/* ICResp is there: agree on digests, then Connect. */
static void queue_ic_resp(struct nvmf_queue *queue, const struct nvme_tcp_ic_wf *ic)
{
    struct nvmf_ctrl *ctrl = queue->ctrl;
    struct nvmf_req *req = &queue->connect;
    struct nvme_connect connect = {
        .qid = queue->qid,
        .entries = (uint16_t)(queue->depth + 1),
        .kato_ms = queue->qid == 0 ? (uint32_t)(ctrl->keep_alive_ns / 1000000) : 0,
        .attributes = NVME_CATTR_NO_SQ_FLOW, /* CIDs say what is free */
        .cntlid = queue->qid == 0 ? NVME_CNTLID_ANY : ctrl->cntlid,
    };
    uint32_t h2c_max = le32_get(ic->limit);

    if ((ic->digests & ~ctrl->digests) != 0) {
        queue_violation(queue, NVME_TCP_FES_HEADER, 11,
                        "it turned digests on that were not asked "
                        "for");
        return;
    }
    queue->h2c_max = h2c_max < NVMF_H2C_BYTES_MAX ? h2c_max : NVMF_H2C_BYTES_MAX;
    nvmf_pdu_digests_set(&queue->conn, ic->digests, ic->pda);
    queue->state = NVMF_QUEUE_CONNECT;
    memcpy(connect.hostid, ctrl->host_id.bytes, sizeof(connect.hostid));
    memcpy(connect.subnqn, ctrl->subnqn, sizeof(connect.subnqn));
    memcpy(connect.hostnqn, ctrl->hostnqn, sizeof(connect.hostnqn));
    nvme_connect_encode(&connect, &req->sqe, queue->connect_data);
    req->direction = NVME_DIRECTION_H2C;
    req->data[0] = (struct iovec){queue->connect_data, sizeof(queue->connect_data)};
    req->done = queue_connect_done;
    req->deadline_ns = 0;
    nvmf_req_start(req);
}

/* ---- sending -------------------------------------------------------------------------------- */

/* The part of the request's memory at [offset, offset + bytes) of its data. */
static void cmd_slice(const struct nvmf_req *req, uint32_t offset, uint32_t bytes,
                      struct iovec out[NVMF_PDU_VECTORS])
{
    uint32_t n = 0;

    memset(out, 0, sizeof(out[0]) * NVMF_PDU_VECTORS);
    for (uint32_t i = 0; i < NVMF_PDU_VECTORS && bytes > 0; i++) {
        size_t length = req->data[i].iov_len;
        size_t take;

        if (offset >= length) {
            offset -= (uint32_t)length;
            continue;
        }
        take = length - offset < bytes ? length - offset : bytes;
        out[n++] = (struct iovec){(uint8_t *)req->data[i].iov_base + offset, take};
        bytes -= (uint32_t)take;
        offset = 0;
    }
    check(bytes == 0);
}

static void cmd_free(struct nvmf_cmd *cmd, struct nvmf_queue *queue)
{
    check(cmd->used && cmd->req == NULL && !cmd->capsule_busy && cmd->data_busy == 0);
    check(list_empty(&cmd->link));
    cmd->used = false;
    cmd->generation++;
    queue->used--;
    list_push(&queue->free, &cmd->link);
    nvmf_queue_run(queue);
}

/* The target had no room for the data that came with the store: it goes out again, first of all,
 * as one whose data the target asks for. */
static void cmd_ask(struct nvmf_cmd *cmd, struct nvmf_queue *queue)
{
    struct nvmf_req *req = cmd->req;

    check(req->state == NVMF_REQ_SENT);
    queue->ask_first = NVMF_ASK_FIRST;
    cmd->req = NULL;
    req->cmd = NULL;
    req->state = NVMF_REQ_PARKED;
    list_push_front(&queue->parked, &req->link);
    cmd_free(cmd, queue);
}

/* The answer is there and nothing is being sent or received: the CID is free, the request ends. */
static void cmd_finish(struct nvmf_cmd *cmd, struct nvmf_queue *queue)
{
    struct nvmf_req *req = cmd->req;

    if (!cmd->answered || cmd->capsule_busy || cmd->data_busy > 0 || queue->receiving == cmd)
        return;
    if (queue->state == NVMF_QUEUE_CLOSING)
        return; /* queue_closed ends everything */
    if (req != NULL && cmd->eager && cmd->cqe.status == NVME_SC_TRANSIENT &&
        cmd->cqe.dw1 == NVME_ICMS_ASK) {
        cmd_ask(cmd, queue);
        return;
    }
    if (req != NULL)
        nvmf_req_result(req, cmd);
    cmd->req = NULL;
    cmd_free(cmd, queue); /* parked requests go before what done may start */
    if (req != NULL) {
        req->cmd = NULL;
        nvmf_req_end(req, req->err);
    }
}

void nvmf_cmd_detach(struct nvmf_cmd *cmd)
{
    cmd->req->cmd = NULL;
    cmd->req = NULL;
}

static void cmd_capsule_sent(struct nvmf_pdu_tx *tx, icms_err err)
{
    struct nvmf_cmd *cmd = container_of(tx, struct nvmf_cmd, capsule);
    struct nvmf_queue *queue = tx->owner;
    struct nvmf_req *req = cmd->req;

    cmd->capsule_busy = false;
    if (req != NULL && req->state == NVMF_REQ_DRAIN) {
        nvmf_cmd_detach(cmd);
        nvmf_req_end(req, req->err);
    }
    cmd_finish(cmd, queue);
}

/* The entry as it goes out now; a vendor command carries the time that is left. */
static void cmd_sqe(const struct nvmf_cmd *cmd, const struct nvmf_req *req,
                    struct nvmf_queue *queue, struct nvme_sqe_wf *out_sqe)
{
    struct nvme_sgl sgl = {.in_capsule = cmd->in_capsule, .bytes = cmd->data_bytes};
    struct nvme_kv_cmd kv = req->kv;

    if (kv.opcode == NVME_ICMS_STORE || kv.opcode == NVME_ICMS_RETRIEVE) {
        uint64_t now_ns = loop_now_ns(queue->ctrl->loop);
        uint64_t left_us = req->deadline_ns > now_ns ? (req->deadline_ns - now_ns) / 1000 : 0;

        /* 0 would mean without limit */
        kv.time_left_us =
            req->deadline_ns == 0 ? 0 : (uint32_t)u64_min(u64_max(left_us, 1), UINT32_MAX);
    }
    if (kv.opcode != 0)
        nvme_kv_cmd_encode(&kv, out_sqe);
    else
        *out_sqe = req->sqe;
    out_sqe->cid = le16_of((uint16_t)(cmd->index | cmd->generation << NVMF_CID_INDEX_BITS));
    out_sqe->flags = NVME_SQE_FLAGS_SGL;
    nvme_sgl_encode(&sgl, &out_sqe->sgl);
}

/* How much data may go with a command. */
static uint32_t queue_capsule_max(struct nvmf_queue *queue, const struct nvmf_req *req)
{
    if (req->kv.opcode != NVME_ICMS_STORE || req->data_bytes <= queue->in_capsule_max ||
        (queue->ctrl->info.icms_ext & NVME_ICMS_EXT_STORE_DATA) == 0)
        return queue->in_capsule_max;
    if (queue->ask_first > 0) {
        queue->ask_first--;
        return queue->in_capsule_max;
    }
    return NVME_ICMS_STORE_DATA_BYTES;
}

static void queue_cmd_send(struct nvmf_queue *queue, struct nvmf_req *req)
{
    struct nvmf_cmd *cmd = container_of(list_pop(&queue->free), struct nvmf_cmd, link);
    struct nvme_sqe_wf sqe;

    cmd->used = true;
    cmd->answered = false;
    cmd->direction = req->direction;
    cmd->data_bytes = req->data_bytes;
    cmd->moved = cmd->sent = 0;
    cmd->data_err = ICMS_OK;
    cmd->quiet = req == &queue->ctrl->event;
    cmd->list = req->kv.opcode == NVME_KV_LIST;
    cmd->admin = queue->qid == 0;
    cmd->in_capsule = req->direction == NVME_DIRECTION_H2C && req->data_bytes > 0 &&
                      req->data_bytes <= queue_capsule_max(queue, req);
    cmd->eager = cmd->in_capsule && req->data_bytes > queue->in_capsule_max;
    cmd->req = req;
    req->cmd = cmd;
    req->state = NVMF_REQ_SENT;
    queue->used++;
    if (!cmd->quiet)
        queue->waiting++;
    cmd_sqe(cmd, req, queue, &sqe);
    cmd->opcode = sqe.opcode;
    nvme_tcp_cmd_encode(&cmd->capsule.pdu, &sqe);
    memset(cmd->capsule.data, 0, sizeof(cmd->capsule.data));
    if (cmd->in_capsule)
        cmd_slice(req, 0, cmd->data_bytes, cmd->capsule.data);
    cmd->capsule.done = cmd_capsule_sent;
    cmd->capsule.owner = queue;
    cmd->capsule_busy = true;
    if (queue->qid != 0)
        queue->ctrl->stats.commands++;
    nvmf_pdu_send(&queue->conn, &cmd->capsule);
    nvmf_ctrl_watch(queue->ctrl);
}

void nvmf_queue_run(struct nvmf_queue *queue)
{
    while (!list_empty(&queue->free) && !list_empty(&queue->parked) &&
           (queue->state == NVMF_QUEUE_LIVE || queue->state == NVMF_QUEUE_CONNECT))
        queue_cmd_send(queue, container_of(list_pop(&queue->parked), struct nvmf_req, link));
}

static void queue_data_sent(struct nvmf_pdu_tx *pdu, icms_err err);

/* A PDU for so much data; NULL: enough is queued. */
static struct nvmf_tx *queue_tx_data(struct nvmf_queue *queue, uint32_t bytes)
{
    if (queue->tx_data_bytes > 0 && queue->tx_data_bytes + bytes > NVMF_TX_DATA_BYTES)
        return NULL;
    for (uint32_t i = 0; i < NVMF_TX_DATA; i++)
        if (queue->tx_data[i].cmd == NULL)
            return &queue->tx_data[i];
    return NULL;
}

/* Sends the next H2CData PDU of the R2T that is being served; false: enough is queued. */
static bool cmd_data_send(struct nvmf_cmd *cmd, struct nvmf_queue *queue)
{
    uint32_t bytes = (uint32_t)u64_min(cmd->moved - cmd->sent, queue->h2c_max);
    struct nvmf_tx *tx = queue_tx_data(queue, bytes);
    uint8_t flags = cmd->sent + bytes == cmd->moved ? NVME_TCP_FLAG_LAST : 0;

    if (tx == NULL)
        return false;
    nvme_tcp_data_encode(&tx->pdu.pdu, NVME_TCP_H2C_DATA, flags,
                         (uint16_t)(cmd->index | cmd->generation << NVMF_CID_INDEX_BITS), cmd->ttag,
                         cmd->sent, bytes);
    cmd_slice(cmd->req, cmd->sent, bytes, tx->pdu.data);
    tx->pdu.done = queue_data_sent;
    tx->queue = queue;
    tx->cmd = cmd;
    tx->bytes = bytes;
    queue->tx_data_bytes += bytes;
    cmd->sent += bytes;
    cmd->data_busy++;
    nvmf_pdu_send(&queue->conn, &tx->pdu);
    return true;
}

/* Queues data that the target asked for, one command after the other. */
static void queue_data_run(struct nvmf_queue *queue)
{
    struct list *link;

    while (queue->state == NVMF_QUEUE_LIVE && (link = list_first(&queue->senders)) != NULL) {
        struct nvmf_cmd *cmd = container_of(link, struct nvmf_cmd, link);

        check(cmd->req != NULL && cmd->sent < cmd->moved);
        if (!cmd_data_send(cmd, queue))
            return;
        if (cmd->sent == cmd->moved)
            list_remove(link);
    }
}

static void queue_data_sent(struct nvmf_pdu_tx *pdu, icms_err err)
{
    struct nvmf_tx *tx = container_of(pdu, struct nvmf_tx, pdu);
    struct nvmf_queue *queue = tx->queue;
    struct nvmf_cmd *cmd = tx->cmd;

    check(cmd->data_busy > 0 && queue->tx_data_bytes >= tx->bytes);
    queue->tx_data_bytes -= tx->bytes;
    tx->cmd = NULL;
    cmd->data_busy--;
    if (err == ICMS_OK)
        queue_data_run(queue);
    cmd_finish(cmd, queue);
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* The command of a CID that came from outside; NULL: there is none. */
static struct nvmf_cmd *queue_cmd(struct nvmf_queue *queue, le16 wf)
{
    uint16_t cid = le16_get(wf);
    uint32_t index = cid & NVMF_CID_INDEX_MASK;
    struct nvmf_cmd *cmd;

    if (index >= queue->depth)
        return NULL;
    cmd = &queue->cmds[index];
    if (!cmd->used || cmd->answered ||
        cid != (uint16_t)(cmd->index | cmd->generation << NVMF_CID_INDEX_BITS))
        return NULL;
    return cmd;
}

/* Data comes: into the memory of its request, or nowhere when that ended already. */
static icms_err queue_header(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                             uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct nvmf_queue *queue = queue_of(conn);
    uint32_t offset = le32_get(pdu->data.offset);
    struct nvmf_cmd *cmd;

    if (pdu->common.type != NVME_TCP_C2H_DATA)
        return ICMS_PROTOCOL;
    cmd = queue_cmd(queue, pdu->data.cid);
    if (cmd == NULL || cmd->direction != NVME_DIRECTION_C2H) {
        queue_violation(queue, NVME_TCP_FES_HEADER, 8, "data for command %04xh, which wants none",
                        le16_get(pdu->data.cid));
        return ICMS_PROTOCOL;
    }
    if (offset != cmd->moved || data_bytes > cmd->data_bytes - cmd->moved) {
        queue_violation(queue, NVME_TCP_FES_RANGE, 12,
                        "data at %u, %u bytes, where byte %u of %u was next", offset, data_bytes,
                        cmd->moved, cmd->data_bytes);
        return ICMS_PROTOCOL;
    }
    queue->receiving = cmd;
    queue->receiving_memory = NULL;
    if (cmd->req != NULL && cmd->req->state == NVMF_REQ_SENT) {
        cmd_slice(cmd->req, offset, data_bytes, out_data);
        queue->receiving_memory = out_data[0].iov_base;
    }
    return ICMS_OK;
}

static void queue_data(struct nvmf_queue *queue, const union nvme_tcp_pdu *pdu, uint32_t data_bytes,
                       icms_err data_status)
{
    struct nvmf_cmd *cmd = queue_cmd(queue, pdu->data.cid);

    queue->receiving = NULL;
    if (cmd == NULL || cmd->direction != NVME_DIRECTION_C2H || data_bytes == 0) {
        queue_violation(queue, NVME_TCP_FES_HEADER, 8, "data for command %04xh, which wants none",
                        le16_get(pdu->data.cid));
        return;
    }
    cmd->moved += data_bytes;
    if (data_status == ICMS_CORRUPT) {
        cmd->data_err = ICMS_CORRUPT;
        queue->ctrl->stats.digest_errors++;
    }
    if ((pdu->common.flags & NVME_TCP_FLAG_SUCCESS) != 0) {
        if ((pdu->common.flags & NVME_TCP_FLAG_LAST) == 0) {
            queue_violation(queue, NVME_TCP_FES_HEADER, 1, "success before the last data");
            return;
        }
        /* No completion comes: its result is the size of what came. */
        cmd->cqe = (struct nvme_cqe){.dw0 = cmd->moved};
        cmd->answered = true;
        queue->waiting--;
        if (queue->qid != 0)
            queue->ctrl->stats.answers++;
        cmd_finish(cmd, queue);
    }
}

/* The target asks for data of a store. */
static void queue_r2t(struct nvmf_queue *queue, const union nvme_tcp_pdu *pdu)
{
    struct nvmf_cmd *cmd = queue_cmd(queue, pdu->r2t.cid);
    uint32_t offset = le32_get(pdu->r2t.offset), length = le32_get(pdu->r2t.length);

    if (cmd == NULL || cmd->direction != NVME_DIRECTION_H2C || cmd->in_capsule) {
        queue_violation(queue, NVME_TCP_FES_HEADER, 8,
                        "it asked for data of command %04xh, which has none",
                        le16_get(pdu->r2t.cid));
        return;
    }
    if (cmd->sent != cmd->moved || cmd->data_busy > 0) {
        queue_violation(queue, NVME_TCP_FES_LIMIT, 0, "it asked for data twice at a time");
        return;
    }
    if (offset != cmd->moved || length == 0 || length > cmd->data_bytes - cmd->moved) {
        queue_violation(queue, NVME_TCP_FES_RANGE, 12,
                        "it asked for data at %u, %u bytes, where byte %u of %u was next", offset,
                        length, cmd->moved, cmd->data_bytes);
        return;
    }
    check(cmd->req != NULL); /* a store is not detached before all its data went */
    cmd->ttag = le16_get(pdu->r2t.ttag);
    cmd->moved += length;
    list_push(&queue->senders, &cmd->link);
    queue_data_run(queue);
}

/* True when a success does not fit what was moved. */
static bool cmd_success_is_wrong(const struct nvmf_cmd *cmd)
{
    if (cmd->direction == NVME_DIRECTION_H2C && !cmd->in_capsule && cmd->data_bytes > 0)
        return cmd->sent != cmd->data_bytes;
    if (cmd->direction == NVME_DIRECTION_C2H && !cmd->admin && !cmd->list)
        return cmd->cqe.dw0 == 0 || cmd->moved != u64_min(cmd->cqe.dw0, cmd->data_bytes);
    return false;
}

static void queue_completion(struct nvmf_queue *queue, const union nvme_tcp_pdu *pdu)
{
    struct nvmf_cmd *cmd = queue_cmd(queue, pdu->resp.cqe.cid);

    if (cmd == NULL) {
        queue_violation(queue, NVME_TCP_FES_HEADER, 20,
                        "it completed command %04xh, which is not under way",
                        le16_get(pdu->resp.cqe.cid));
        return;
    }
    nvme_cqe_decode(&pdu->resp.cqe, &cmd->cqe);
    if (cmd->cqe.status == NVME_SC_SUCCESS && cmd_success_is_wrong(cmd)) {
        queue_violation(queue, NVME_TCP_FES_SEQUENCE, 0,
                        "command %02xh succeeded with result %u after %u of %u bytes", cmd->opcode,
                        cmd->cqe.dw0, cmd->moved, cmd->data_bytes);
        return;
    }
    cmd->answered = true;
    list_remove(&cmd->link); /* it wants no more data */
    if (!cmd->quiet)
        queue->waiting--;
    if (queue->qid != 0)
        queue->ctrl->stats.answers++;
    cmd_finish(cmd, queue);
}

static void queue_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                      uint32_t data_bytes, icms_err data_status)
{
    struct nvmf_queue *queue = queue_of(conn);

    if (queue->state == NVMF_QUEUE_CLOSING)
        return;
    switch (pdu->common.type) {
    case NVME_TCP_IC_RESP:
        if (queue->state == NVMF_QUEUE_IC)
            queue_ic_resp(queue, &pdu->ic);
        else
            queue_violation(queue, NVME_TCP_FES_SEQUENCE, 0, "a second ICResp");
        break;
    case NVME_TCP_C2H_DATA:
        queue_data(queue, pdu, data_bytes, data_status);
        break;
    case NVME_TCP_R2T:
        queue_r2t(queue, pdu);
        break;
    case NVME_TCP_CAPSULE_RESP:
        queue_completion(queue, pdu);
        break;
    default:
        queue_violation(queue, NVME_TCP_FES_HEADER, 0, "PDU of type %02xh", pdu->common.type);
        break;
    }
}

static void queue_redirected(struct nvmf_pdu_conn *conn, void *arg)
{
    struct nvmf_req *req = arg;

    check(req->state == NVMF_REQ_DRAIN && req->cmd == NULL);
    nvmf_req_end(req, req->err);
}

bool nvmf_queue_redirect(struct nvmf_queue *queue, struct nvmf_cmd *cmd)
{
    if (queue->receiving != cmd || queue->receiving_memory == NULL)
        return false;
    if (nvmf_pdu_recv_redirect(&queue->conn, queue->receiving_memory, queue_redirected, cmd->req) !=
        ICMS_OK)
        return false;
    queue->receiving_memory = NULL;
    queue->ctrl->stats.redirects++;
    return true;
}

static const struct nvmf_pdu_ops queue_pdu_ops = {
    .header = queue_header,
    .pdu = queue_pdu,
    .closed = queue_closed,
};
