/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/queue.c: one queue pair of the initiator: it connects, sends Connect, then commands.
 *
 * Called by ctrl.c and req.c, and by the transport, on the association's loop.
 *
 * A command lives from queue_cmd_send to cmd_free: it holds its CID until the target answered and
 * the transport is done with it. Its request may end earlier (nvmf_cmd_detach); what then comes for
 * the CID is dropped, and everything is still checked. Invariants: nothing is written to a
 * request's memory after its end; whatever a target does that does not fit ends the association,
 * never more.
 */
#include "base/check.h"
#include "nvmf/host/host_int.h"

#include <stdlib.h>

static const struct nvmf_host_conn_ops queue_ops;

static void queue_expedite_done(struct nvmf_req *req);

/* ---- memory --------------------------------------------------------------------------------- */

icms_err nvmf_queue_init(struct nvmf_queue *queue, struct nvmf_ctrl *ctrl, uint16_t qid,
                         uint32_t entries, const struct nvmf_share_opts *shares)
{
    static const char *const names[NVMF_QUEUES] = {"admin", "load", "prestage", "store"};

    queue->ctrl = ctrl;
    queue->qid = qid;
    queue->name = names[qid];
    queue->entries_max = entries;
    list_init(&queue->free);
    nvmf_req_init(&queue->connect, ctrl, queue);
    nvmf_req_init(&queue->expedite, ctrl, queue);
    queue->expedite.done = queue_expedite_done;
    queue->expedite.direction = NVME_DIRECTION_NONE;
    loop_timer_init(&queue->expedite.timer, NULL); /* as of ask */
    list_init(&queue->expedite.link);
    queue->cmds = calloc(entries, sizeof(queue->cmds[0]));
    queue->line_memory = malloc(line_bytes(shares->groups, shares->members));
    if (queue->cmds == NULL || queue->line_memory == NULL)
        return ICMS_NO_MEMORY;
    line_init(&queue->line, queue->line_memory, shares->groups, shares->members, shares->weights);
    for (uint32_t i = 0; i < entries; i++) {
        queue->cmds[i].io.slot = (uint16_t)i;
        list_init(&queue->cmds[i].link);
    }
    return ctrl->transport->conn_new(ctrl->loop, entries, &queue_ops, queue, &queue->conn);
}

void nvmf_queue_fini(struct nvmf_queue *queue)
{
    if (queue->conn != NULL)
        queue->ctrl->transport->conn_free(&queue->conn);
    free(queue->cmds);
    free(queue->line_memory);
    queue->cmds = NULL;
    queue->line_memory = NULL;
}

/* ---- parked requests ------------------------------------------------------------------------ */

void nvmf_queue_park(struct nvmf_queue *queue, struct nvmf_req *req, bool front)
{
    if (front)
        line_push_front(&queue->line, req->share, &req->link);
    else
        line_push(&queue->line, req->share, &req->link);
}

/* The parked request whose turn it is, which is parked no more; NULL: there is none. */
static struct nvmf_req *queue_unpark(struct nvmf_queue *queue)
{
    uint32_t share;
    struct list *link = line_pop(&queue->line, &share);
    struct nvmf_req *req;

    if (link == NULL)
        return NULL;
    req = container_of(link, struct nvmf_req, link);
    line_charge(&queue->line, share, req->data_bytes);
    return req;
}

/* ---- the end of a queue --------------------------------------------------------------------- */

static void queue_broken(struct nvmf_conn *conn, const char *text)
{
    struct nvmf_queue *queue = conn->owner;

    queue->ctrl->stats.violations++;
    nvmf_ctrl_fail(queue->ctrl, ICMS_PROTOCOL, "the target broke the protocol on the %s queue: %s",
                   queue->name, text);
}

uint64_t nvmf_queue_heard(const struct nvmf_queue *queue)
{
    return queue->ctrl->transport->received(queue->conn);
}

void nvmf_queue_close(struct nvmf_queue *queue, icms_err why)
{
    if (queue->state == NVMF_QUEUE_CLOSED || queue->state == NVMF_QUEUE_CLOSING)
        return;
    queue->state = NVMF_QUEUE_CLOSING;
    queue->ctrl->transport->close(queue->conn, why);
}

/* Nothing of the connection is in flight: every command and request of it ends. */
static void queue_closed(struct nvmf_conn *conn, icms_err err, const char *text)
{
    struct nvmf_queue *queue = conn->owner;
    struct nvmf_ctrl *ctrl = queue->ctrl;
    bool opening = queue->state == NVMF_QUEUE_OPENING;

    queue->state = NVMF_QUEUE_CLOSING;
    if (opening)
        nvmf_ctrl_fail(ctrl, err, "cannot connect (%s queue): %s", queue->name, text);
    else
        nvmf_ctrl_fail(ctrl, err, "the connection of the %s queue ended: %s", queue->name, text);
    for (uint32_t i = 0; i < queue->entries_max; i++) {
        struct nvmf_cmd *cmd = &queue->cmds[i];

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
    for (struct nvmf_req *req; (req = queue_unpark(queue)) != NULL;)
        nvmf_req_end(req, ctrl->err);
    queue->used = queue->waiting = 0;
    queue->state = NVMF_QUEUE_CLOSED;
    nvmf_ctrl_poke(ctrl);
}

/* ---- opening -------------------------------------------------------------------------------- */

void nvmf_queue_open(struct nvmf_queue *queue, uint32_t entries, uint64_t deadline_ns)
{
    struct nvmf_connect_opts opts = queue->ctrl->connect;

    check(queue->state == NVMF_QUEUE_CLOSED);
    check(entries >= NVMF_ENTRIES_MIN && entries <= queue->entries_max);
    queue->state = NVMF_QUEUE_OPENING;
    queue->depth = entries - 1;
    queue->used = queue->waiting = 0;
    queue->silent_ticks = 0;
    queue->heard_bytes = 0;
    queue->ask_first = 0;
    queue->in_capsule_max = NVME_CONNECT_DATA_BYTES; /* until Connect is over */
    list_init(&queue->free);
    list_init(&queue->unanswered);
    for (uint32_t i = 0; i < queue->depth; i++) {
        queue->cmds[i].used = false;
        queue->cmds[i].req = NULL;
        list_push(&queue->free, &queue->cmds[i].link);
    }
    opts.deadline_ns = deadline_ns;
    opts.mark =
        queue->qid == 0 ? queue->ctrl->marks.control : queue->ctrl->marks.io[queue->qid - 1];
    queue->ctrl->transport->connect(queue->conn, &opts);
}

void nvmf_queue_live(struct nvmf_queue *queue)
{
    queue->state = NVMF_QUEUE_LIVE;
    queue->in_capsule_max = queue->qid == 0 ? 0 : queue->ctrl->info.in_capsule_bytes;
    nvmf_ctrl_queue_live(queue->ctrl, queue);
}

/* What the target asks for, and what we ask of it. dw0: of Connect. */
static void queue_authenticate(struct nvmf_queue *queue, uint32_t dw0)
{
    struct nvmf_ctrl *ctrl = queue->ctrl;
    bool is_wanted = (ctrl->require & REQUIRE_CHAP) != 0 || ctrl->auth_controller_key != NULL;

    if ((dw0 & NVME_CONNECT_ASCR) != 0)
        nvmf_ctrl_fail(ctrl, ICMS_AUTH,
                       "the target wants a secure channel made by authentication, which this host "
                       "does not offer; use TLS with a pre-shared key");
    else if ((dw0 & NVME_CONNECT_ATR) == 0 && !is_wanted)
        nvmf_queue_live(queue);
    else if (ctrl->auth == NULL)
        nvmf_ctrl_fail(ctrl, ICMS_AUTH,
                       "the target wants host %s to authenticate, and it has no secret; make one "
                       "with `icms key gen` and name it as `secret`",
                       ctrl->hostnqn);
    else
        nvmf_auth_start(queue);
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
    if (queue->qid == 0)
        ctrl->cntlid = nvme_connect_cntlid(req->result);
    queue_authenticate(queue, req->result);
}

/* The target is there: Connect. */
static void queue_opened(struct nvmf_conn *conn)
{
    struct nvmf_queue *queue = conn->owner;
    struct nvmf_ctrl *ctrl = queue->ctrl;
    struct nvmf_req *req = &queue->connect;
    struct nvme_connect connect = {
        .qid = queue->qid,
        .entries = (uint16_t)(queue->depth + 1),
        .kato_ms = queue->qid == 0 ? (uint32_t)(ctrl->keep_alive_ns / 1000000) : 0,
        .attributes = NVME_CATTR_NO_SQ_FLOW, /* CIDs say what is free */
        .cntlid = queue->qid == 0 ? NVME_CNTLID_ANY : ctrl->cntlid,
    };

    if (queue->qid != 0)
        connect.attributes |= nvme_cattr_priority((enum io_class)(queue->qid - 1));
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

static void cmd_free(struct nvmf_cmd *cmd, struct nvmf_queue *queue)
{
    check(cmd->used && cmd->req == NULL);
    list_remove(&cmd->link);
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
    nvmf_queue_park(queue, req, true);
    cmd_free(cmd, queue);
}

static void queue_progress(struct nvmf_conn *conn, struct nvmf_host_io *io)
{
    struct nvmf_req *req = container_of(io, struct nvmf_cmd, io)->req;

    if (req == NULL || req->state != NVMF_REQ_SENT || req->came == NULL)
        return;
    req->came_bytes = io->moved;
    req->came(req);
}

/* The answer is there and nothing touches the memory: the CID is free, the request ends. */
static void queue_completed(struct nvmf_conn *conn, struct nvmf_host_io *io,
                            const struct nvme_cqe *cqe)
{
    struct nvmf_queue *queue = conn->owner;
    struct nvmf_cmd *cmd = container_of(io, struct nvmf_cmd, io);
    struct nvmf_req *req = cmd->req;

    if (!cmd->quiet)
        queue->waiting--;
    if (queue->qid != 0)
        queue->ctrl->stats.answers++;
    if (io->err != ICMS_OK)
        queue->ctrl->stats.digest_errors++;
    if (req != NULL && cmd->eager && cqe->status == NVME_SC_TRANSIENT &&
        cqe->dw1 == NVME_ICMS_ASK) {
        cmd_ask(cmd, queue);
        return;
    }
    if (req != NULL)
        nvmf_req_result(req, cmd, cqe);
    cmd->req = NULL;
    cmd_free(cmd, queue); /* parked requests go before what done may start */
    if (req != NULL) {
        req->cmd = NULL;
        nvmf_req_end(req, req->err);
    }
}

void nvmf_cmd_detach(struct nvmf_cmd *cmd)
{
    struct nvmf_queue *queue = cmd->req->queue;

    cmd->req->cmd = NULL;
    cmd->req = NULL;
    cmd->detached_ns = loop_now_ns(queue->ctrl->loop);
    list_push(&queue->unanswered, &cmd->link);
}

static void queue_withdrawn(struct nvmf_conn *conn, struct nvmf_host_io *io)
{
    struct nvmf_cmd *cmd = container_of(io, struct nvmf_cmd, io);
    struct nvmf_req *req = cmd->req;

    check(req != NULL && req->state == NVMF_REQ_DRAIN);
    nvmf_cmd_detach(cmd);
    nvmf_req_end(req, req->err);
}

/* The entry as it goes out now; a vendor command carries the time that is left. */
static void cmd_sqe(const struct nvmf_cmd *cmd, const struct nvmf_req *req,
                    struct nvmf_queue *queue, struct nvme_sqe_wf *out_sqe)
{
    struct nvme_kv_cmd kv = {
        .opcode = req->opcode,
        .options = req->direction == NVME_DIRECTION_H2C ? (uint8_t)req->options : 0,
        .io_class = (uint8_t)req->io_class,
        .nsid = req->nsid,
        .key = req->key,
        .bytes = req->data_bytes,
        .record = req->only_record,
    };

    if (kv.opcode == NVME_ICMS_STORE || kv.opcode == NVME_ICMS_RETRIEVE) {
        uint64_t now_ns = loop_now_ns(queue->ctrl->loop);
        uint64_t left_us = req->deadline_ns > now_ns ? (req->deadline_ns - now_ns) / 1000 : 0;

        /* 0 would mean without limit */
        kv.time_left_us =
            req->deadline_ns == 0 ? 0 : (uint32_t)u64_min(u64_max(left_us, 1), UINT32_MAX);
        kv.may_ask = cmd->eager;
    }
    if (kv.opcode != 0)
        nvme_kv_cmd_encode(&kv, out_sqe);
    else
        *out_sqe = req->sqe;
    out_sqe->cid = le16_of(cmd->io.cid);
    out_sqe->flags = NVME_SQE_FLAGS_SGL;
}

/* A store whose data the target may drop, and ask for. */
static bool queue_may_ask(const struct nvmf_queue *queue, const struct nvmf_req *req)
{
    return req->opcode == NVME_ICMS_STORE &&
           (queue->ctrl->info.icms_ext & NVME_ICMS_EXT_STORE_DATA) != 0;
}

/* How much data may go with a command. While the target has no room for it, none: data that no
 * buffer takes would stop the connection, and the question whether the target lives behind it. */
static uint32_t queue_capsule_max(struct nvmf_queue *queue, const struct nvmf_req *req)
{
    if (!queue_may_ask(queue, req))
        return queue->in_capsule_max;
    if (queue->ask_first > 0) {
        queue->ask_first--;
        return 0;
    }
    return NVME_ICMS_STORE_DATA_BYTES;
}

static void queue_cmd_send(struct nvmf_queue *queue, struct nvmf_req *req)
{
    struct nvmf_cmd *cmd = container_of(list_pop(&queue->free), struct nvmf_cmd, link);
    struct nvme_sqe_wf sqe;

    cmd->used = true;
    cmd->expedite = false;
    cmd->quiet = req == &queue->ctrl->event;
    cmd->io.cid = (uint16_t)(cmd->io.slot | cmd->generation << NVMF_CID_INDEX_BITS);
    cmd->io.direction = req->direction;
    cmd->io.data_bytes = req->data_bytes;
    cmd->io.in_capsule = req->direction == NVME_DIRECTION_H2C && req->data_bytes > 0 &&
                         req->data_bytes <= queue_capsule_max(queue, req);
    cmd->io.result_is_bytes =
        queue->qid != 0 && queue->state == NVMF_QUEUE_LIVE && req->opcode != NVME_KV_LIST;
    memcpy(cmd->io.data, req->data, sizeof(cmd->io.data));
    cmd->eager = cmd->io.in_capsule && queue_may_ask(queue, req);
    cmd->req = req;
    req->cmd = cmd;
    req->state = NVMF_REQ_SENT;
    queue->used++;
    if (!cmd->quiet)
        queue->waiting++;
    cmd_sqe(cmd, req, queue, &sqe);
    if (queue->qid != 0)
        queue->ctrl->stats.commands++;
    queue->ctrl->transport->send(queue->conn, &cmd->io, &sqe);
    nvmf_ctrl_watch(queue->ctrl);
}

/* Whether signs of life can be asked for. */
static bool queue_can_ask(const struct nvmf_queue *queue)
{
    return queue->qid != 0 && queue->state == NVMF_QUEUE_LIVE && queue->ctrl->silence_ns > 0 &&
           queue->ctrl->info.icms_ext != 0 && queue->depth > 1;
}

static void queue_ask_done(struct nvmf_req *req)
{
    check(req->owner == NULL); /* that it came was the answer */
}

void nvmf_queue_ask(struct nvmf_queue *queue)
{
    struct nvmf_req *req = &queue->ask;

    if (!queue_can_ask(queue) || req->state != NVMF_REQ_IDLE || list_empty(&queue->free))
        return;
    nvmf_req_init(req, queue->ctrl, queue);
    req->opcode = NVME_KV_EXIST;
    req->key = (struct key){.length = 1};
    req->direction = NVME_DIRECTION_NONE;
    req->deadline_ns = 0;
    req->done = queue_ask_done;
    loop_timer_init(&req->timer, NULL); /* it has no deadline: the silence ends it */
    list_init(&req->link);
    queue_cmd_send(queue, req);
}

/* ---- what is waited for --------------------------------------------------------------------- */

static bool queue_can_expedite(const struct nvmf_queue *queue)
{
    return queue->qid == 1 + IO_CLASS_PRESTAGE && queue->state == NVMF_QUEUE_LIVE &&
           queue->depth > 2 && (queue->ctrl->info.icms_ext & NVME_ICMS_EXT_EXPEDITE) != 0;
}

/* Tells the target which commands are waited for, as many as go into one command. */
static void queue_expedite_run(struct nvmf_queue *queue)
{
    struct nvmf_req *req = &queue->expedite;
    uint16_t cids[NVME_KV_EXPEDITE_CIDS];
    uint32_t count = 0;

    if (!queue_can_expedite(queue) || req->state != NVMF_REQ_IDLE || list_empty(&queue->free))
        return;
    for (uint32_t i = 0; i < queue->depth && count < NVME_KV_EXPEDITE_CIDS; i++) {
        struct nvmf_cmd *cmd = &queue->cmds[i];

        if (cmd->used && cmd->expedite)
            cids[count++] = cmd->io.cid;
        cmd->expedite = false; /* said, or over */
    }
    if (count == 0)
        return;
    nvme_kv_expedite_encode(cids, count, &req->sqe);
    queue_cmd_send(queue, req);
}

static void queue_expedite_done(struct nvmf_req *req)
{
    queue_expedite_run(req->queue);
}

bool nvmf_queue_expedite(struct nvmf_queue *queue, struct nvmf_cmd *cmd)
{
    if (!queue_can_expedite(queue))
        return false;
    cmd->expedite = true;
    queue_expedite_run(queue);
    return true;
}

void nvmf_queue_run(struct nvmf_queue *queue)
{
    uint32_t kept = (queue_can_ask(queue) ? 1 : 0) + (queue_can_expedite(queue) ? 1 : 0);
    struct nvmf_req *req;

    while (queue->used + kept < queue->depth &&
           (queue->state == NVMF_QUEUE_LIVE || queue->state == NVMF_QUEUE_CONNECT) &&
           (req = queue_unpark(queue)) != NULL)
        queue_cmd_send(queue, req);
}

/* The command of a CID that came from outside; NULL: there is none. */
static struct nvmf_host_io *queue_find(struct nvmf_conn *conn, uint16_t cid)
{
    struct nvmf_queue *queue = conn->owner;
    uint32_t slot = cid & NVMF_CID_INDEX_MASK;
    struct nvmf_cmd *cmd;

    if (slot >= queue->depth)
        return NULL;
    cmd = &queue->cmds[slot];
    return cmd->used && cid == cmd->io.cid ? &cmd->io : NULL;
}

static const struct nvmf_host_conn_ops queue_ops = {
    .opened = queue_opened,
    .find = queue_find,
    .progress = queue_progress,
    .withdrawn = queue_withdrawn,
    .completed = queue_completed,
    .broken = queue_broken,
    .closed = queue_closed,
};
