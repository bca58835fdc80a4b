/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of mem_transport.h. Test code only; all loops are of one simulation.
 *
 * A capsule is a message from the host's loop to the target's, the completion the same message
 * back. The target reads and writes the memory of the host's command in messages to itself. A
 * connection ends when no message of it is on its way.
 */
#include "nvmf/mem_transport.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/list.h"

struct mem_counts mem_counts;

/* A command of a host. */
struct mem_cmd {
    struct loop_msg msg;          /* the capsule there, the completion back                 */
    struct loop_msg withdraw_msg; /* to the host itself                                     */
    struct list link;             /* waits at the target                                    */
    struct mem_host *host;        /* whose                                                  */
    struct nvmf_host_io *io;      /* the command                                            */
    struct nvme_sqe_wf sqe;       /* as it goes out                                         */
    struct nvme_cqe cqe;          /* the answer                                             */
    bool has_read;                /* the target has the data                                */
    bool withdrawing;             /* withdraw_msg is on its way                             */
    bool answered;                /* and the completion came meanwhile                      */
};

struct mem_host {
    struct nvmf_conn conn; /* first */
    const struct nvmf_host_conn_ops *ops;
    struct loop *loop;
    struct mem_target *peer; /* NULL: none yet                           */
    bool open;               /* closed() is owed                         */
    bool closing;            /* and comes when no message is on its way  */
    icms_err why, peer_why;  /* closing: for each side                   */
    uint32_t messages;       /* on their way, of both sides              */
    struct loop_msg msg;     /* connects                                 */
    struct loop_msg end_msg; /* brings closed()                          */
    uint64_t received;       /* bytes of completions                     */
    struct mem_cmd cmds[];   /* by slot                                  */
};

struct mem_target {
    struct nvmf_conn conn; /* first */
    const struct nvmf_target_conn_ops *ops;
    struct loop *loop;
    struct mem_host *peer; /* NULL: it is gone                           */
    bool open;             /* closed() is owed                           */
    icms_err why;          /* of it                                      */
    uint8_t *own;
    bool own_used;
    struct list waiting; /* struct mem_cmd                              */
    struct loop_msg msg; /* brings opened()                             */
    struct loop_msg end_msg;
};

/* A command at a target: nvmf_target_io.area. */
struct mem_io {
    struct loop_msg msg;
    struct nvmf_target_io *io;
    struct mem_target *target;
    uint32_t bytes; /* respond: of data */
};

struct mem_listener {
    struct nvmf_listener listener; /* first */
    struct loop *loop;
    uint32_t open, open_max;
    bool closed;
    struct mem_host *coming; /* inside accepted() */
};

static struct mem_listener *mem_listening;

static struct mem_host *host_of(struct nvmf_conn *conn)
{
    return container_of(conn, struct mem_host, conn);
}

static struct mem_target *target_of(struct nvmf_conn *conn)
{
    return container_of(conn, struct mem_target, conn);
}

/* ---- the end -------------------------------------------------------------------------------- */

static void host_closed(struct loop_msg *msg)
{
    struct mem_host *host = container_of(msg, struct mem_host, end_msg);

    host->open = host->closing = false;
    host->ops->closed(&host->conn, host->why, icms_err_text(host->why));
}

static void target_closed(struct loop_msg *msg)
{
    struct mem_target *target = container_of(msg, struct mem_target, end_msg);

    target->open = target->conn.is_paused = false;
    target->ops->closed(&target->conn, target->why);
}

static void mem_end(struct mem_host *host)
{
    struct mem_target *target = host->peer;

    if (!host->closing || host->messages > 0)
        return;
    host->messages = 1; /* end_msg; nothing counts it down */
    host->peer = NULL;
    if (target != NULL) {
        target->peer = NULL;
        target->why = host->peer_why;
        while (list_pop(&target->waiting) != NULL)
            ;
        if (target->open)
            loop_send(target->loop, &target->end_msg, target_closed);
    }
    loop_send(host->loop, &host->end_msg, host_closed);
}

static void mem_shut(struct mem_host *host, icms_err why, icms_err peer_why)
{
    if (host == NULL || !host->open || host->closing)
        return;
    host->closing = true;
    host->why = why;
    host->peer_why = peer_why;
    mem_end(host);
}

static void mem_post(struct mem_host *host, struct loop *loop, struct loop_msg *msg,
                     void (*run)(struct loop_msg *msg))
{
    host->messages++;
    loop_send(loop, msg, run);
}

/* A message arrived; false: the connection is ending. */
static bool mem_arrived(struct mem_host *host)
{
    check(host->messages > 0);
    host->messages--;
    mem_end(host);
    return !host->closing;
}

static void host_close(struct nvmf_conn *conn, icms_err why)
{
    mem_shut(host_of(conn), why, ICMS_RESET);
}

static void target_close(struct nvmf_conn *conn, icms_err why)
{
    mem_shut(target_of(conn)->peer, ICMS_RESET, why);
}

/* ---- connecting ----------------------------------------------------------------------------- */

static icms_err host_new(struct loop *loop, uint32_t slots, const struct nvmf_host_conn_ops *ops,
                         void *owner, struct nvmf_conn **out_conn)
{
    struct mem_host *host = calloc(1, sizeof(*host) + slots * sizeof(host->cmds[0]));

    check(host != NULL);
    host->conn.owner = owner;
    host->loop = loop;
    host->ops = ops;
    *out_conn = &host->conn;
    return ICMS_OK;
}

static void host_free(struct nvmf_conn **conn)
{
    free(host_of(*conn));
    *conn = NULL;
}

static void host_dialed(struct loop_msg *msg)
{
    struct mem_host *host = container_of(msg, struct mem_host, msg);

    if (!mem_arrived(host))
        return;
    if (mem_listening == NULL || mem_listening->closed) {
        mem_shut(host, ICMS_REFUSED, ICMS_REFUSED);
        return;
    }
    check(mem_listening->open++ < mem_listening->open_max);
    mem_listening->coming = host;
    mem_listening->listener.accepted(&mem_listening->listener);
    check(mem_listening->coming == NULL);
}

static void host_connect(struct nvmf_conn *conn, const struct nvmf_connect_opts *opts)
{
    struct mem_host *host = host_of(conn);

    check(!host->open);
    host->open = true;
    host->closing = false;
    host->messages = 0;
    host->received = 0;
    mem_post(host, mem_listening->loop, &host->msg, host_dialed);
}

static icms_err mem_listen(struct loop *loop, const struct loop_addr *addr, uint32_t open_max,
                           struct nvmf_listener *with,
                           void (*accepted)(struct nvmf_listener *listener), void *owner,
                           struct err_why *why, struct nvmf_listener **out_listener,
                           struct loop_addr *out_addr)
{
    struct mem_listener *listener = calloc(1, sizeof(*listener));

    check(listener != NULL && mem_listening == NULL && with == NULL);
    listener->listener.owner = owner;
    listener->listener.accepted = accepted;
    listener->loop = loop;
    listener->open_max = open_max;
    mem_listening = listener;
    *out_listener = &listener->listener;
    *out_addr = *addr;
    return ICMS_OK;
}

static void mem_take(struct nvmf_listener *listener, struct nvmf_conn *conn)
{
    target_of(conn)->peer = mem_listening->coming;
    mem_listening->coming->peer = target_of(conn);
    mem_listening->coming = NULL;
}

static void mem_release(struct nvmf_listener *listener)
{
    mem_listening->open--;
}

static void mem_listen_close(struct nvmf_listener *listener)
{
    mem_listening->closed = true;
}

static void mem_listen_free(struct nvmf_listener **listener)
{
    free(mem_listening);
    mem_listening = NULL;
    *listener = NULL;
}

static icms_err target_new(struct loop *loop, uint8_t *own, const struct nvmf_target_conn_ops *ops,
                           void *owner, struct nvmf_conn **out_conn)
{
    struct mem_target *target = calloc(1, sizeof(*target));

    check(target != NULL);
    target->conn.owner = owner;
    target->loop = loop;
    target->ops = ops;
    target->own = own;
    list_init(&target->waiting);
    *out_conn = &target->conn;
    return ICMS_OK;
}

static void target_free(struct nvmf_conn **conn)
{
    free(target_of(*conn));
    *conn = NULL;
}

static void host_opened(struct loop_msg *msg)
{
    struct mem_host *host = container_of(msg, struct mem_host, msg);

    if (mem_arrived(host))
        host->ops->opened(&host->conn);
}

static void target_opened(struct loop_msg *msg)
{
    struct mem_target *target = container_of(msg, struct mem_target, msg);
    struct mem_host *host = target->peer;

    if (!mem_arrived(host))
        return;
    target->ops->opened(&target->conn);
    mem_post(host, host->loop, &host->msg, host_opened);
}

static void target_open(struct nvmf_conn *conn, const struct nvmf_accept_opts *opts)
{
    struct mem_target *target = target_of(conn);

    target->open = true;
    target->own_used = false;
    if (target->peer != NULL)
        mem_post(target->peer, target->loop, &target->msg, target_opened);
    else
        loop_send(target->loop, &target->end_msg, target_closed);
}

/* ---- data ----------------------------------------------------------------------------------- */

/* Copies bytes at offset of the host's data: to the target or from it. */
static void mem_copy(const struct nvmf_host_io *io, uint32_t offset, uint8_t *memory,
                     uint32_t bytes, bool to_host)
{
    for (int i = 0; i < NVMF_DATA_VECTORS && bytes > 0; i++) {
        uint8_t *at = io->data[i].iov_base;
        uint32_t length = (uint32_t)io->data[i].iov_len;
        uint32_t n;

        if (offset >= length) {
            offset -= length;
            continue;
        }
        n = length - offset < bytes ? length - offset : bytes;
        memcpy(to_host ? at + offset : memory, to_host ? memory : at + offset, n);
        memory += n;
        bytes -= n;
        offset = 0;
    }
    check(bytes == 0);
}

static struct mem_cmd *mem_cmd_of(struct mem_target *target, const struct nvmf_target_io *io)
{
    struct mem_host *host = target->peer;
    const struct nvmf_host_io *host_io = host->ops->find(&host->conn, io->cid);

    check(host_io != NULL);
    return &host->cmds[host_io->slot];
}

/* Data of a retrieve up to bytes, unless the host does not want it any more. */
static void target_copy(struct mem_target *target, struct nvmf_target_io *io, uint32_t bytes)
{
    struct mem_cmd *cmd = mem_cmd_of(target, io);

    if (bytes <= io->data_moved)
        return;
    if (cmd->io->data[0].iov_base != NULL)
        mem_copy(cmd->io, io->data_moved, io->data + io->data_moved, bytes - io->data_moved, true);
    cmd->io->moved = io->data_moved = bytes;
}

/* ---- commands ------------------------------------------------------------------------------- */

/* Hands a command over; false: it has to wait. */
static bool target_deliver(struct mem_target *target, struct mem_cmd *cmd)
{
    uint32_t bytes = cmd->io->in_capsule ? cmd->io->data_bytes : 0, offset = 0;
    uint8_t *memory = NULL, *own = NULL;
    icms_err err = ICMS_OK;

    if (bytes > 0)
        err = target->ops->capsule(&target->conn, &cmd->sqe, bytes, &memory, &offset);
    check(err == ICMS_OK || err == ICMS_BUSY || err == ICMS_LIMIT);
    if (err == ICMS_LIMIT || (err == ICMS_BUSY && target->own_used))
        return false;
    if (err == ICMS_BUSY) {
        target->own_used = true;
        memory = own = target->own;
        mem_counts.own++;
    }
    if (memory != NULL)
        mem_copy(cmd->io, 0, memory + offset, bytes, false);
    err = target->ops->command(&target->conn, &cmd->sqe, bytes, ICMS_OK, own);
    check(err == ICMS_OK || (err == ICMS_LIMIT && bytes == 0));
    cmd->has_read = err == ICMS_OK && cmd->io->in_capsule;
    return err == ICMS_OK;
}

static void target_resume(struct mem_target *target)
{
    struct list *link;

    while (target->peer != NULL && (link = list_first(&target->waiting)) != NULL) {
        if (!target_deliver(target, container_of(link, struct mem_cmd, link)))
            return;
        list_remove(link);
    }
    target->conn.is_paused = false;
}

static void target_capsule(struct loop_msg *msg)
{
    struct mem_cmd *cmd = container_of(msg, struct mem_cmd, msg);
    struct mem_target *target = cmd->host->peer;

    if (!mem_arrived(cmd->host))
        return;
    mem_counts.commands++;
    if (list_empty(&target->waiting) && target_deliver(target, cmd))
        return;
    mem_counts.waits++;
    target->conn.is_paused = true;
    list_push(&target->waiting, &cmd->link);
}

static void host_send(struct nvmf_conn *conn, struct nvmf_host_io *io,
                      const struct nvme_sqe_wf *sqe)
{
    struct mem_host *host = host_of(conn);
    struct mem_cmd *cmd = &host->cmds[io->slot];
    struct nvme_sgl sgl = {.in_capsule = io->in_capsule, .bytes = io->data_bytes};

    if (host->closing)
        return;
    io->moved = 0;
    io->err = ICMS_OK;
    *cmd = (struct mem_cmd){.host = host, .io = io, .sqe = *sqe};
    list_init(&cmd->link);
    nvme_sgl_encode(&sgl, &cmd->sqe.sgl);
    mem_post(host, host->peer->loop, &cmd->msg, target_capsule);
}

static void host_completed(struct loop_msg *msg)
{
    struct mem_cmd *cmd = container_of(msg, struct mem_cmd, msg);
    struct mem_host *host = cmd->host;

    host->received += sizeof(struct nvme_cqe_wf);
    if (!mem_arrived(host))
        return;
    if (cmd->withdrawing)
        cmd->answered = true;
    else
        host->ops->completed(&host->conn, cmd->io, &cmd->cqe);
}

static void host_withdrawn(struct loop_msg *msg)
{
    struct mem_cmd *cmd = container_of(msg, struct mem_cmd, withdraw_msg);
    struct mem_host *host = cmd->host;

    cmd->withdrawing = false;
    host->ops->withdrawn(&host->conn, cmd->io);
    if (mem_arrived(host) && cmd->answered)
        host->ops->completed(&host->conn, cmd->io, &cmd->cqe);
}

static icms_err host_withdraw(struct nvmf_conn *conn, struct nvmf_host_io *io)
{
    struct mem_host *host = host_of(conn);
    struct mem_cmd *cmd = &host->cmds[io->slot];

    if (io->direction == NVME_DIRECTION_H2C)
        return cmd->has_read ? ICMS_NOT_FOUND : ICMS_BUSY;
    if (io->direction == NVME_DIRECTION_NONE)
        return ICMS_NOT_FOUND;
    mem_counts.withdraws++;
    memset(io->data, 0, sizeof(io->data));
    cmd->withdrawing = true;
    mem_post(host, host->loop, &cmd->withdraw_msg, host_withdrawn);
    return ICMS_OK;
}

/* The target writes whenever it wants. */
static bool host_redirect(struct nvmf_conn *conn, struct nvmf_host_io *io,
                          const struct iovec data[NVMF_DATA_VECTORS])
{
    (void)conn;
    (void)io;
    (void)data;
    return false;
}

static uint64_t host_received(const struct nvmf_conn *conn)
{
    return ((const struct mem_host *)conn)->received;
}

static struct mem_io *mem_io_of(struct mem_target *target, struct nvmf_target_io *io)
{
    struct mem_io *mio = io->area;

    mio->io = io;
    mio->target = target;
    return mio;
}

static void target_read_run(struct loop_msg *msg)
{
    struct mem_io *mio = container_of(msg, struct mem_io, msg);
    struct mem_target *target = mio->target;
    struct mem_cmd *cmd = mem_cmd_of(target, mio->io);

    if (!mem_arrived(target->peer))
        return;
    mem_counts.reads++;
    mem_copy(cmd->io, 0, mio->io->data, mio->io->data_bytes, false);
    cmd->has_read = true;
    cmd->io->moved = mio->io->data_moved = mio->io->data_bytes;
    target->ops->progress(&target->conn, mio->io);
}

static void target_read(struct nvmf_conn *conn, struct nvmf_target_io *io)
{
    struct mem_target *target = target_of(conn);

    if (target->peer != NULL && !target->peer->closing)
        mem_post(target->peer, target->loop, &mem_io_of(target, io)->msg, target_read_run);
}

static void target_write(struct nvmf_conn *conn, struct nvmf_target_io *io, uint32_t bytes)
{
    struct mem_target *target = target_of(conn);

    if (target->peer == NULL || target->peer->closing)
        return;
    mem_counts.writes++;
    target_copy(target, io, bytes);
}

static void target_respond_run(struct loop_msg *msg)
{
    struct mem_io *mio = container_of(msg, struct mem_io, msg);
    struct mem_target *target = mio->target;
    struct mem_host *host = target->peer;
    struct mem_cmd *cmd = mem_cmd_of(target, mio->io);

    if (!mem_arrived(host))
        return;
    target_copy(target, mio->io, mio->bytes);
    target->ops->completion(&target->conn, mio->io, &cmd->cqe);
    mem_post(host, host->loop, &cmd->msg, host_completed);
    if (mio->io->in_own)
        target->own_used = false;
    target->ops->responded(&target->conn, mio->io);
    target_resume(target);
}

static void target_respond(struct nvmf_conn *conn, struct nvmf_target_io *io, uint32_t bytes)
{
    struct mem_target *target = target_of(conn);

    if (target->peer == NULL || target->peer->closing)
        return;
    mem_io_of(target, io)->bytes = bytes;
    mem_post(target->peer, target->loop, &mem_io_of(target, io)->msg, target_respond_run);
}

static void target_mark(struct nvmf_conn *conn, struct net_mark mark)
{
    (void)conn;
    (void)mark; /* nothing travels */
}

const struct nvmf_host_transport nvmf_host_mem = {
    .conn_new = host_new,
    .conn_free = host_free,
    .connect = host_connect,
    .send = host_send,
    .withdraw = host_withdraw,
    .redirect = host_redirect,
    .close = host_close,
    .received = host_received,
};

const struct nvmf_target_transport nvmf_target_mem = {
    .io_bytes = sizeof(struct mem_io),
    .listen = mem_listen,
    .take = mem_take,
    .release = mem_release,
    .listen_close = mem_listen_close,
    .listen_free = mem_listen_free,
    .conn_new = target_new,
    .conn_free = target_free,
    .open = target_open,
    .mark = target_mark,
    .read = target_read,
    .write = target_write,
    .respond = target_respond,
    .close = target_close,
};
