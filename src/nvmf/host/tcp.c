/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/tcp.c: a host's connection over TCP: dial, ICReq, capsules, R2Ts and data PDUs.
 *
 * Called by queue.c through nvmf_host_tcp, and by net and nvmf/pdu, on the connection's loop. Life:
 *
 *   tcp_connect    CLOSED -> DIAL
 *   tcp_dialed     DIAL -> IC, CLOSED
 *   tcp_ic_resp    IC -> OPEN
 *   tcp_close      any: CLOSED follows, from tcp_dialed or tcp_closed
 *
 * Invariants: nothing is written to the memory of a command but data that the target has to send,
 * in order, without holes, inside its transfer; a command is completed when its answer came and the
 * kernel has all that we send for it; whatever a target does that does not fit ends the connection
 * with a TermReq, never more.
 */
#include "base/check.h"
#include "base/limits.h"
#include "net/net.h"
#include "nvmf/pdu.h"
#include "nvmf/transport.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static_assert(NVMF_PDU_VECTORS == NVMF_DATA_VECTORS, "a PDU carries the data of a command");

/* Data of one H2CData PDU: what is sent in one piece holds the connection for so long. */
#define TCP_H2C_BYTES_MAX ((uint32_t)1 << 20)

/* H2CData PDUs of one connection that are queued at a time, and their bytes, unless it is one. */
#define TCP_TX_DATA       8
#define TCP_TX_DATA_BYTES ((uint32_t)1 << 20)

/* Data of one C2HData PDU that is accepted: a value and its trailer may come in one. */
#define TCP_C2H_BYTES_MAX ((uint32_t)(LIMIT_VALUE_BYTES + NVME_PAGE_BYTES))

/* What TCP knows of a command. */
struct tcp_cmd {
    struct list link;           /* in senders: H2C, with data to send                          */
    struct nvmf_host_io *io;    /* the command                                                 */
    bool answered;              /* the completion came                                         */
    bool withdrawn;             /* its memory is wanted back when the capsule is sent          */
    bool capsule_busy;          /* capsule is being sent                                       */
    uint32_t sent;              /* H2C: bytes of it handed to the connection; moved: asked for */
    uint32_t data_busy;         /* H2CData PDUs of it that are being sent                      */
    uint16_t ttag;              /* of the R2T that is being served                             */
    struct nvme_cqe cqe;        /* the answer                                                  */
    struct nvmf_pdu_tx capsule; /* the command                                                 */
};

/* An H2CData PDU that is queued. */
struct tcp_tx {
    struct nvmf_pdu_tx pdu; /* as it goes out          */
    struct tcp *tcp;        /* whose connection        */
    struct tcp_cmd *cmd;    /* whose; NULL: it is free */
    uint32_t bytes;         /* data in it              */
};

enum tcp_state {
    TCP_CLOSED, /* holds nothing                              */
    TCP_DIAL,   /* waits for TCP; woken by tcp_dialed         */
    TCP_IC,     /* waits for ICResp; woken by tcp_pdu         */
    TCP_OPEN,   /* moves capsules and data                    */
};

struct tcp {
    struct nvmf_conn conn; /* first */
    enum tcp_state state;
    bool closing;    /* close was asked for: nothing is completed any more               */
    bool terminated; /* our TermReq is on its way                                        */
    struct loop *loop;
    const struct nvmf_host_conn_ops *ops;
    uint8_t digests;          /* asked for                                                    */
    uint64_t timeout_ns;      /* of a send                                                    */
    uint64_t deadline_ns;     /* of the connect                                       */
    struct crypt_tls *tls;    /* NULL: plain                                          */
    struct net_mark mark;     /* of what is sent                                      */
    struct net_tls_side side; /* of the handshake                                     */
    char tls_text[128];       /* why it failed; "": it did not                        */
    uint32_t h2c_max;         /* data of one H2CData PDU                                      */
    struct list senders;      /* struct tcp_cmd, oldest R2T first: one after the other, so that
                                 each is whole early                                          */
    struct tcp_tx tx_data[TCP_TX_DATA]; /* what is queued                                */
    uint32_t tx_data_bytes;             /* of data in it                                 */
    struct tcp_cmd *receiving;          /* whose data is being received; NULL: none      */
    void *receiving_memory;             /* vector 0 of it; NULL: dropped                 */
    struct net_dial dial;               /* in state DIAL                                 */
    struct nvmf_pdu_conn pdu;           /* open in IC and OPEN                           */
    struct nvmf_pdu_tx ic;              /* ICReq                                         */
    uint32_t slots;                     /* commands                                      */
    struct tcp_cmd cmds[];              /* by nvmf_host_io.slot                          */
};

static const struct nvmf_pdu_ops tcp_pdu_ops;

static struct tcp *tcp_of(struct nvmf_conn *conn)
{
    return container_of(conn, struct tcp, conn);
}

/* ---- memory --------------------------------------------------------------------------------- */

static icms_err tcp_new(struct loop *loop, uint32_t slots, const struct nvmf_host_conn_ops *ops,
                        void *owner, struct nvmf_conn **out_conn)
{
    struct tcp *tcp = calloc(1, sizeof(*tcp) + slots * sizeof(tcp->cmds[0]));

    if (tcp == NULL)
        return ICMS_NO_MEMORY;
    tcp->conn.owner = owner;
    tcp->loop = loop;
    tcp->ops = ops;
    tcp->slots = slots;
    list_init(&tcp->senders);
    for (uint32_t i = 0; i < slots; i++)
        list_init(&tcp->cmds[i].link);
    *out_conn = &tcp->conn;
    return ICMS_OK;
}

static void tcp_free(struct nvmf_conn **conn)
{
    nvmf_pdu_fini(&tcp_of(*conn)->pdu);
    free(tcp_of(*conn));
    *conn = NULL;
}

static uint64_t tcp_received(const struct nvmf_conn *conn)
{
    return ((const struct tcp *)conn)->pdu.net.bytes_in;
}

/* ---- the end -------------------------------------------------------------------------------- */

/* The target broke the protocol. */
static void __attribute__((format(printf, 4, 5)))
tcp_violation(struct tcp *tcp, enum nvme_tcp_fes fes, uint32_t fei, const char *format, ...)
{
    char text[160];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    tcp->terminated = tcp->closing = true;
    nvmf_pdu_term(&tcp->pdu, fes, fei);
    tcp->ops->broken(&tcp->conn, text);
}

static void tcp_close(struct nvmf_conn *conn, icms_err why)
{
    struct tcp *tcp = tcp_of(conn);

    tcp->closing = true;
    if (tcp->state == TCP_DIAL)
        net_dial_cancel(&tcp->dial);
    else if (!tcp->terminated) /* a TermReq on its way ends the connection by itself */
        nvmf_pdu_close(&tcp->pdu, why);
}

static void tcp_closed(struct nvmf_pdu_conn *pdu, icms_err why)
{
    struct tcp *tcp = container_of(pdu, struct tcp, pdu);
    const char *text = why == ICMS_PROTOCOL ? "a PDU that breaks the protocol was sent or received"
                                            : icms_err_text(why);

    for (uint32_t i = 0; i < tcp->slots; i++) {
        check(!tcp->cmds[i].capsule_busy && tcp->cmds[i].data_busy == 0);
        list_remove(&tcp->cmds[i].link);
    }
    tcp->receiving = NULL;
    tcp->state = TCP_CLOSED;
    tcp->conn.tls = NET_TLS_NONE;
    if (tcp->tls_text[0] != '\0')
        text = tcp->tls_text;
    tcp->ops->closed(&tcp->conn, why, text);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* The target did not prove the key, or does not speak TLS: there is no other way in. */
static void tcp_tls_failed(struct net_tls_side *side, const char *hostnqn,
                           const struct loop_addr *peer, const char *why)
{
    struct tcp *tcp = container_of(side, struct tcp, side);

    snprintf(tcp->tls_text, sizeof(tcp->tls_text),
             "TLS handshake failed (%s); check that both sides have the same psk", why);
}

static void tcp_dialed(struct net_dial *dial, icms_err err, struct loop_sock *sock)
{
    struct tcp *tcp = container_of(dial, struct tcp, dial);
    struct nvmf_pdu_opts opts = {
        .ops = &tcp_pdu_ops,
        .role = NVME_TCP_HOST,
        .data_max = TCP_C2H_BYTES_MAX,
        .send_timeout_ns = tcp->timeout_ns,
        .tls = tcp->tls != NULL ? &tcp->side : NULL,
    };
    uint64_t now_ns = loop_now_ns(tcp->loop);

    if (err == ICMS_OK && tcp->closing) {
        loop_sock_close(&sock);
        err = ICMS_CANCELED;
    }
    if (err != ICMS_OK) {
        tcp->state = TCP_CLOSED;
        tcp->ops->closed(&tcp->conn, err,
                         err != ICMS_LIMIT
                             ? icms_err_text(err)
                             : "this process has too many open files for another connection: raise "
                               "'ulimit -n' (LimitNOFILE= in the service)");
        return;
    }
    tcp->state = TCP_IC;
    tcp->side = (struct net_tls_side){
        .settings = tcp->tls,
        .timeout_ns = tcp->deadline_ns > now_ns ? tcp->deadline_ns - now_ns : 1,
        .pending_max = 1,
        .failed = tcp_tls_failed,
    };
    loop_sock_mark(sock, tcp->mark);
    nvmf_pdu_open(&tcp->pdu, tcp->loop, sock, &opts);
    nvme_tcp_ic_req_encode(&tcp->ic.pdu, 0, tcp->digests, 1);
    memset(tcp->ic.data, 0, sizeof(tcp->ic.data));
    tcp->ic.done = NULL;
    nvmf_pdu_send(&tcp->pdu, &tcp->ic);
}

static void tcp_connect(struct nvmf_conn *conn, const struct nvmf_connect_opts *opts)
{
    struct tcp *tcp = tcp_of(conn);

    check(tcp->state == TCP_CLOSED && tcp->tx_data_bytes == 0);
    tcp->state = TCP_DIAL;
    tcp->closing = tcp->terminated = false;
    tcp->pdu.net.bytes_in = 0; /* of the connection before */
    tcp->timeout_ns = opts->send_timeout_ns;
    tcp->deadline_ns = opts->deadline_ns;
    tcp->tls = opts->tls;
    tcp->mark = opts->mark;
    tcp->tls_text[0] = '\0';
    tcp->digests = (opts->header_digest ? NVME_TCP_FLAG_HDGST : 0) |
                   (opts->data_digest ? NVME_TCP_FLAG_DDGST : 0);
    net_dial_start(&tcp->dial, tcp->loop, &opts->addr, opts->deadline_ns, tcp_dialed);
}

/* ICResp is there: agree on digests. */
static void tcp_ic_resp(struct tcp *tcp, const struct nvme_tcp_ic_wf *ic)
{
    uint32_t h2c_max = le32_get(ic->limit);

    if ((ic->digests & ~tcp->digests) != 0) {
        tcp_violation(tcp, NVME_TCP_FES_HEADER, 11,
                      "it turned digests on that were not asked "
                      "for");
        return;
    }
    tcp->h2c_max = h2c_max < TCP_H2C_BYTES_MAX ? h2c_max : TCP_H2C_BYTES_MAX;
    nvmf_pdu_digests_set(&tcp->pdu, ic->digests, ic->pda);
    tcp->state = TCP_OPEN;
    tcp->conn.tls = net_conn_tls(&tcp->pdu.net);
    tcp->ops->opened(&tcp->conn);
}

/* ---- sending -------------------------------------------------------------------------------- */

/* The part of the command's memory at [offset, offset + bytes) of its data. */
static void cmd_slice(const struct nvmf_host_io *io, uint32_t offset, uint32_t bytes,
                      struct iovec out[NVMF_PDU_VECTORS])
{
    uint32_t n = 0;

    memset(out, 0, sizeof(out[0]) * NVMF_PDU_VECTORS);
    for (uint32_t i = 0; i < NVMF_PDU_VECTORS && bytes > 0; i++) {
        size_t length = io->data[i].iov_len;
        size_t take;

        if (offset >= length) {
            offset -= (uint32_t)length;
            continue;
        }
        take = length - offset < bytes ? length - offset : bytes;
        out[n++] = (struct iovec){(uint8_t *)io->data[i].iov_base + offset, take};
        bytes -= (uint32_t)take;
        offset = 0;
    }
    check(bytes == 0);
}

/* The answer is there and nothing is being sent or received. */
static void cmd_finish(struct tcp_cmd *cmd, struct tcp *tcp)
{
    if (!cmd->answered || cmd->capsule_busy || cmd->data_busy > 0 || tcp->receiving == cmd)
        return;
    if (!tcp->closing) /* else closed() ends everything */
        tcp->ops->completed(&tcp->conn, cmd->io, &cmd->cqe);
}

static void cmd_capsule_sent(struct nvmf_pdu_tx *tx, icms_err err)
{
    struct tcp_cmd *cmd = container_of(tx, struct tcp_cmd, capsule);
    struct tcp *tcp = tx->owner;

    cmd->capsule_busy = false;
    if (cmd->withdrawn) {
        cmd->withdrawn = false;
        tcp->ops->withdrawn(&tcp->conn, cmd->io);
    }
    cmd_finish(cmd, tcp);
}

static void tcp_send(struct nvmf_conn *conn, struct nvmf_host_io *io, const struct nvme_sqe_wf *sqe)
{
    struct tcp *tcp = tcp_of(conn);
    struct tcp_cmd *cmd = &tcp->cmds[io->slot];
    struct nvme_sgl sgl = {.in_capsule = io->in_capsule, .bytes = io->data_bytes};

    check(io->slot < tcp->slots && !cmd->capsule_busy && cmd->data_busy == 0);
    io->moved = 0;
    io->err = ICMS_OK;
    cmd->io = io;
    cmd->answered = cmd->withdrawn = false;
    cmd->sent = 0;
    nvme_tcp_cmd_encode(&cmd->capsule.pdu, sqe);
    nvme_sgl_encode(&sgl, &cmd->capsule.pdu.cmd.sqe.sgl);
    memset(cmd->capsule.data, 0, sizeof(cmd->capsule.data));
    if (io->in_capsule)
        memcpy(cmd->capsule.data, io->data, sizeof(cmd->capsule.data));
    cmd->capsule.done = cmd_capsule_sent;
    cmd->capsule.owner = tcp;
    cmd->capsule_busy = true;
    nvmf_pdu_send(&tcp->pdu, &cmd->capsule);
}

static void tcp_data_sent(struct nvmf_pdu_tx *pdu, icms_err err);

/* A PDU for so much data; NULL: enough is queued. */
static struct tcp_tx *tcp_tx_data(struct tcp *tcp, uint32_t bytes)
{
    if (tcp->tx_data_bytes > 0 && tcp->tx_data_bytes + bytes > TCP_TX_DATA_BYTES)
        return NULL;
    for (uint32_t i = 0; i < TCP_TX_DATA; i++)
        if (tcp->tx_data[i].cmd == NULL)
            return &tcp->tx_data[i];
    return NULL;
}

/* Sends the next H2CData PDU of the R2T that is being served; false: enough is queued. */
static bool cmd_data_send(struct tcp_cmd *cmd, struct tcp *tcp)
{
    const struct nvmf_host_io *io = cmd->io;
    uint32_t bytes = (uint32_t)u64_min(io->moved - cmd->sent, tcp->h2c_max);
    struct tcp_tx *tx = tcp_tx_data(tcp, bytes);
    uint8_t flags = cmd->sent + bytes == io->moved ? NVME_TCP_FLAG_LAST : 0;

    if (tx == NULL)
        return false;
    nvme_tcp_data_encode(&tx->pdu.pdu, NVME_TCP_H2C_DATA, flags, io->cid, cmd->ttag, cmd->sent,
                         bytes);
    cmd_slice(io, cmd->sent, bytes, tx->pdu.data);
    tx->pdu.done = tcp_data_sent;
    tx->tcp = tcp;
    tx->cmd = cmd;
    tx->bytes = bytes;
    tcp->tx_data_bytes += bytes;
    cmd->sent += bytes;
    cmd->data_busy++;
    nvmf_pdu_send(&tcp->pdu, &tx->pdu);
    return true;
}

/* Queues data that the target asked for, one command after the other. */
static void tcp_data_run(struct tcp *tcp)
{
    struct list *link;

    while (!tcp->closing && (link = list_first(&tcp->senders)) != NULL) {
        struct tcp_cmd *cmd = container_of(link, struct tcp_cmd, link);

        check(cmd->sent < cmd->io->moved);
        if (!cmd_data_send(cmd, tcp))
            return;
        if (cmd->sent == cmd->io->moved)
            list_remove(link);
    }
}

static void tcp_data_sent(struct nvmf_pdu_tx *pdu, icms_err err)
{
    struct tcp_tx *tx = container_of(pdu, struct tcp_tx, pdu);
    struct tcp_cmd *cmd = tx->cmd;

    check(cmd->data_busy > 0 && tx->tcp->tx_data_bytes >= tx->bytes);
    tx->tcp->tx_data_bytes -= tx->bytes;
    tx->cmd = NULL;
    cmd->data_busy--;
    if (err == ICMS_OK)
        tcp_data_run(tx->tcp);
    cmd_finish(cmd, tx->tcp);
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* The command of a CID that came from outside; NULL: there is none, or it was answered. */
static struct tcp_cmd *tcp_cmd(struct tcp *tcp, le16 cid)
{
    struct nvmf_host_io *io = tcp->ops->find(&tcp->conn, le16_get(cid));

    return io == NULL || tcp->cmds[io->slot].answered ? NULL : &tcp->cmds[io->slot];
}

/* Data comes: into the memory of its command, or nowhere when that was withdrawn. */
static icms_err tcp_header(struct nvmf_pdu_conn *pdu_conn, const union nvme_tcp_pdu *pdu,
                           uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct tcp *tcp = container_of(pdu_conn, struct tcp, pdu);
    uint32_t offset = le32_get(pdu->data.offset);
    struct tcp_cmd *cmd;
    struct nvmf_host_io *io;

    if (pdu->common.type != NVME_TCP_C2H_DATA)
        return ICMS_PROTOCOL;
    cmd = tcp_cmd(tcp, pdu->data.cid);
    if (cmd == NULL || cmd->io->direction != NVME_DIRECTION_C2H) {
        tcp_violation(tcp, NVME_TCP_FES_HEADER, 8, "data for command %04xh, which wants none",
                      le16_get(pdu->data.cid));
        return ICMS_PROTOCOL;
    }
    io = cmd->io;
    if (offset != io->moved || data_bytes > io->data_bytes - io->moved) {
        tcp_violation(tcp, NVME_TCP_FES_RANGE, 12,
                      "data at %u, %u bytes, where byte %u of %u was next", offset, data_bytes,
                      io->moved, io->data_bytes);
        return ICMS_PROTOCOL;
    }
    tcp->receiving = cmd;
    tcp->receiving_memory = NULL;
    if (io->data[0].iov_base != NULL) {
        cmd_slice(io, offset, data_bytes, out_data);
        tcp->receiving_memory = out_data[0].iov_base;
    }
    return ICMS_OK;
}

static void tcp_data(struct tcp *tcp, const union nvme_tcp_pdu *pdu, uint32_t data_bytes,
                     icms_err data_status)
{
    struct tcp_cmd *cmd = tcp_cmd(tcp, pdu->data.cid);

    tcp->receiving = NULL;
    if (cmd == NULL || cmd->io->direction != NVME_DIRECTION_C2H || data_bytes == 0) {
        tcp_violation(tcp, NVME_TCP_FES_HEADER, 8, "data for command %04xh, which wants none",
                      le16_get(pdu->data.cid));
        return;
    }
    cmd->io->moved += data_bytes;
    if (data_status == ICMS_CORRUPT)
        cmd->io->err = ICMS_CORRUPT;
    if ((pdu->common.flags & NVME_TCP_FLAG_SUCCESS) != 0) {
        if ((pdu->common.flags & NVME_TCP_FLAG_LAST) == 0) {
            tcp_violation(tcp, NVME_TCP_FES_HEADER, 1, "success before the last data");
            return;
        }
        /* No completion comes: its result is the size of what came. */
        cmd->cqe = (struct nvme_cqe){.dw0 = cmd->io->moved};
        cmd->answered = true;
        cmd_finish(cmd, tcp);
    } else if (cmd->io->err == ICMS_OK && cmd->io->data[0].iov_base != NULL) {
        tcp->ops->progress(&tcp->conn, cmd->io);
    }
}

/* The target asks for data of a store. */
static void tcp_r2t(struct tcp *tcp, const union nvme_tcp_pdu *pdu)
{
    struct tcp_cmd *cmd = tcp_cmd(tcp, pdu->r2t.cid);
    uint32_t offset = le32_get(pdu->r2t.offset), length = le32_get(pdu->r2t.length);
    struct nvmf_host_io *io;

    if (cmd == NULL || cmd->io->direction != NVME_DIRECTION_H2C || cmd->io->in_capsule) {
        tcp_violation(tcp, NVME_TCP_FES_HEADER, 8,
                      "it asked for data of command %04xh, which has none", le16_get(pdu->r2t.cid));
        return;
    }
    io = cmd->io;
    if (cmd->sent != io->moved || cmd->data_busy > 0) {
        tcp_violation(tcp, NVME_TCP_FES_LIMIT, 0, "it asked for data twice at a time");
        return;
    }
    if (offset != io->moved || length == 0 || length > io->data_bytes - io->moved) {
        tcp_violation(tcp, NVME_TCP_FES_RANGE, 12,
                      "it asked for data at %u, %u bytes, where byte %u of %u was next", offset,
                      length, io->moved, io->data_bytes);
        return;
    }
    cmd->ttag = le16_get(pdu->r2t.ttag);
    io->moved += length;
    list_push(&tcp->senders, &cmd->link);
    tcp_data_run(tcp);
}

/* True when a success does not fit what was moved. */
static bool cmd_success_is_wrong(const struct tcp_cmd *cmd)
{
    const struct nvmf_host_io *io = cmd->io;

    if (io->direction == NVME_DIRECTION_H2C && !io->in_capsule && io->data_bytes > 0)
        return cmd->sent != io->data_bytes;
    if (io->direction == NVME_DIRECTION_C2H && io->result_is_bytes)
        return cmd->cqe.dw0 == 0 || io->moved != u64_min(cmd->cqe.dw0, io->data_bytes);
    return false;
}

static void tcp_completion(struct tcp *tcp, const union nvme_tcp_pdu *pdu)
{
    struct tcp_cmd *cmd = tcp_cmd(tcp, pdu->resp.cqe.cid);

    if (cmd == NULL) {
        tcp_violation(tcp, NVME_TCP_FES_HEADER, 20,
                      "it completed command %04xh, which is not under way",
                      le16_get(pdu->resp.cqe.cid));
        return;
    }
    nvme_cqe_decode(&pdu->resp.cqe, &cmd->cqe);
    if (cmd->cqe.status == NVME_SC_SUCCESS && cmd_success_is_wrong(cmd)) {
        tcp_violation(tcp, NVME_TCP_FES_SEQUENCE, 0,
                      "command %02xh succeeded with result %u after %u of %u bytes",
                      cmd->capsule.pdu.cmd.sqe.opcode, cmd->cqe.dw0, cmd->io->moved,
                      cmd->io->data_bytes);
        return;
    }
    cmd->answered = true;
    list_remove(&cmd->link); /* it wants no more data */
    cmd_finish(cmd, tcp);
}

static void tcp_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu, uint32_t data_bytes,
                    icms_err data_status)
{
    struct tcp *tcp = container_of(conn, struct tcp, pdu);

    if (tcp->closing)
        return;
    switch (pdu->common.type) {
    case NVME_TCP_IC_RESP:
        if (tcp->state == TCP_IC)
            tcp_ic_resp(tcp, &pdu->ic);
        else
            tcp_violation(tcp, NVME_TCP_FES_SEQUENCE, 0, "a second ICResp");
        break;
    case NVME_TCP_C2H_DATA:
        tcp_data(tcp, pdu, data_bytes, data_status);
        break;
    case NVME_TCP_R2T:
        tcp_r2t(tcp, pdu);
        break;
    case NVME_TCP_CAPSULE_RESP:
        tcp_completion(tcp, pdu);
        break;
    default:
        tcp_violation(tcp, NVME_TCP_FES_HEADER, 0, "PDU of type %02xh", pdu->common.type);
        break;
    }
}

static const struct nvmf_pdu_ops tcp_pdu_ops = {
    .header = tcp_header,
    .pdu = tcp_pdu,
    .closed = tcp_closed,
};

/* ---- withdrawing ---------------------------------------------------------------------------- */

static void tcp_redirected(struct nvmf_pdu_conn *conn, void *arg)
{
    struct tcp *tcp = container_of(conn, struct tcp, pdu);

    tcp->ops->withdrawn(&tcp->conn, arg);
}

static icms_err tcp_withdraw(struct nvmf_conn *conn, struct nvmf_host_io *io)
{
    struct tcp *tcp = tcp_of(conn);
    struct tcp_cmd *cmd = &tcp->cmds[io->slot];

    if (io->direction == NVME_DIRECTION_H2C && !io->in_capsule &&
        (cmd->sent < io->data_bytes || cmd->data_busy > 0))
        return ICMS_BUSY;
    memset(io->data, 0, sizeof(io->data));
    if (io->in_capsule && cmd->capsule_busy) {
        cmd->withdrawn = true;
        return ICMS_OK;
    }
    if (tcp->receiving != cmd || tcp->receiving_memory == NULL)
        return ICMS_NOT_FOUND;
    return nvmf_pdu_recv_redirect(&tcp->pdu, tcp->receiving_memory, tcp_redirected, io);
}

static bool tcp_redirect(struct nvmf_conn *conn, struct nvmf_host_io *io,
                         const struct iovec data[NVMF_DATA_VECTORS])
{
    const struct tcp *tcp = tcp_of(conn);
    const struct tcp_cmd *cmd = &tcp->cmds[io->slot];

    check(io->direction == NVME_DIRECTION_C2H);
    if (io->moved != 0 || io->data[0].iov_base == NULL || tcp->receiving == cmd)
        return false;
    memcpy(io->data, data, sizeof(io->data));
    return true;
}

const struct nvmf_host_transport nvmf_host_tcp = {
    .conn_new = tcp_new,
    .conn_free = tcp_free,
    .connect = tcp_connect,
    .send = tcp_send,
    .withdraw = tcp_withdraw,
    .redirect = tcp_redirect,
    .close = tcp_close,
    .received = tcp_received,
};
