/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/target/tcp.c: a target's connections over TCP: ICReq, capsules, R2Ts and data PDUs.
 *
 * Called by registry.c, qpair.c and req.c through nvmf_target_tcp, and by net and nvmf/pdu. The
 * listener is on loop 0, a connection on its own loop. A command passes through here in pieces:
 *
 *   tcp_read                 R2T; H2CData; progress()
 *   tcp_write, tcp_respond   C2HData, when its turn comes; then the completion; responded()
 *
 * Invariants: data of commands goes one command after the other; the completion is queued behind
 * all data of its command; H2CData is received only where an R2T asked for it, in order, without
 * holes.
 *
 * Data that comes in a capsule cannot be parked without the stream behind it, where the data may be
 * that frees the buffers others wait for. So each connection has memory of its own for one capsule:
 * the command in it needs nothing more from the host or the owner's memory, ends by itself, and the
 * stream goes on.
 */
#include <stdlib.h>

#include "base/check.h"
#include "net/net.h"
#include "nvmf/pdu.h"
#include "nvmf/transport.h"

/* Largest data of one H2CData or C2HData PDU: nothing waits behind more than this. */
#define TCP_DATA_PDU_BYTES ((uint32_t)1 << 20)

/* Data PDUs of one connection that are queued at a time, and their bytes, unless it is one. Enough
 * to keep a socket busy; what is queued beyond that only grows cold in the cache. */
#define TCP_TX_DATA       8
#define TCP_TX_DATA_BYTES ((uint32_t)1 << 20)

/* What TCP knows of a command: nvmf_target_io.area. Between commands all but io and link is 0. */
struct tcp_io {
    struct nvmf_target_io *io; /* the command; NULL: there was none here yet                    */
    struct list link;          /* in senders: with data to queue                                */
    bool reading;              /* R2T sent, data is missing                                     */
    bool answering;            /* tcp_respond was called                                        */
    bool told;                 /* the completion is queued: tx, or the last data says it        */
    bool tx_busy;              /* tx is queued or in flight                                     */
    uint32_t ready;            /* bytes of the data that may be queued                          */
    uint32_t data_busy;        /* data PDUs of it that are queued or in flight                  */
    struct nvmf_pdu_tx tx;     /* R2T or CapsuleResp                                            */
};

/* A C2HData PDU that is queued. */
struct tcp_tx {
    struct nvmf_pdu_tx pdu; /* as it goes out          */
    struct tcp *tcp;        /* whose connection        */
    struct tcp_io *tio;     /* whose; NULL: it is free */
    uint32_t bytes;         /* data in it              */
};

struct tcp {
    struct nvmf_conn conn; /* first */
    struct loop *loop;
    const struct nvmf_target_conn_ops *ops;
    struct loop_sock *sock;         /* taken and not open yet; owned                          */
    struct nvmf_pdu_conn pdu;       /* open from tcp_open to tcp_closed                       */
    struct nvmf_pdu_tx hello;       /* ICResp                                                 */
    uint8_t *own;                   /* memory for the data of one capsule                     */
    bool own_used;                  /* by a command, or by the data that is being received    */
    bool own_coming;                /* the data that is being received goes there             */
    bool has_pending;               /* pending waits for a slot                               */
    struct nvme_sqe_wf pending;     /* a command without data                                 */
    struct nvmf_target_io *reading; /* whose H2CData is being received; NULL: none            */
    uint32_t told;                  /* commands with told: the host may send one more for each */
    struct list senders;            /* struct tcp_io with data to queue, oldest first         */
    struct tcp_tx tx_data[TCP_TX_DATA]; /* what is queued                                     */
    uint32_t tx_data_bytes;             /* of data in it                                      */
};

static const struct nvmf_pdu_ops tcp_pdu_ops;

static struct tcp *tcp_of(struct nvmf_conn *conn)
{
    return container_of(conn, struct tcp, conn);
}

static struct tcp_io *tcp_io_of(struct nvmf_target_io *io)
{
    struct tcp_io *tio = io->area;

    if (tio->io == NULL) {
        tio->io = io;
        list_init(&tio->link);
    }
    return tio;
}

/* ---- listening ------------------------------------------------------------------------------ */

struct tcp_listener {
    struct nvmf_listener listener; /* first                                 */
    struct net_listener net;       /* TCP                                   */
    struct loop_sock *sock;        /* inside accepted(): to be taken; owned */
};

static struct tcp_listener *tcp_listener_of(struct nvmf_listener *listener)
{
    return container_of(listener, struct tcp_listener, listener);
}

static void tcp_accepted(struct net_listener *net, struct loop_sock *sock)
{
    struct tcp_listener *tcp = container_of(net, struct tcp_listener, net);

    tcp->sock = sock;
    tcp->listener.accepted(&tcp->listener);
    check(tcp->sock == NULL);
}

static icms_err tcp_listen(struct loop *loop, const struct loop_addr *addr, uint32_t open_max,
                           struct nvmf_listener *with,
                           void (*accepted)(struct nvmf_listener *listener), void *owner,
                           struct err_why *why, struct nvmf_listener **out_listener,
                           struct loop_addr *out_addr)
{
    struct tcp_listener *tcp = calloc(1, sizeof(*tcp));
    icms_err err;

    if (tcp == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    tcp->listener.owner = owner;
    tcp->listener.accepted = accepted;
    err = net_listener_open(&tcp->net, loop, addr, open_max, tcp_accepted, NULL, why);
    if (err != ICMS_OK) {
        free(tcp);
        return err;
    }
    if (with != NULL)
        net_listener_share(&tcp->net, &tcp_listener_of(with)->net);
    net_listener_addr(&tcp->net, out_addr);
    *out_listener = &tcp->listener;
    return ICMS_OK;
}

static void tcp_take(struct nvmf_listener *listener, struct nvmf_conn *conn)
{
    check(tcp_listener_of(listener)->sock != NULL && tcp_of(conn)->sock == NULL);
    tcp_of(conn)->sock = tcp_listener_of(listener)->sock;
    tcp_listener_of(listener)->sock = NULL;
}

static void tcp_release(struct nvmf_listener *listener)
{
    net_listener_rele(&tcp_listener_of(listener)->net);
}

static void tcp_listen_close(struct nvmf_listener *listener)
{
    net_listener_close(&tcp_listener_of(listener)->net, NULL);
}

static void tcp_listen_free(struct nvmf_listener **listener)
{
    net_listener_fini(&tcp_listener_of(*listener)->net);
    free(tcp_listener_of(*listener));
    *listener = NULL;
}

/* ---- opening and closing -------------------------------------------------------------------- */

static icms_err tcp_new(struct loop *loop, uint8_t *own, const struct nvmf_target_conn_ops *ops,
                        void *owner, struct nvmf_conn **out_conn)
{
    struct tcp *tcp = calloc(1, sizeof(*tcp));

    if (tcp == NULL)
        return ICMS_NO_MEMORY;
    tcp->conn.owner = owner;
    tcp->loop = loop;
    tcp->ops = ops;
    tcp->own = own;
    list_init(&tcp->senders);
    *out_conn = &tcp->conn;
    return ICMS_OK;
}

static void tcp_free(struct nvmf_conn **conn)
{
    struct tcp *tcp = tcp_of(*conn);

    if (tcp->sock != NULL)
        loop_sock_close(&tcp->sock);
    nvmf_pdu_fini(&tcp->pdu);
    free(tcp);
    *conn = NULL;
}

static void tcp_open(struct nvmf_conn *conn, const struct nvmf_accept_opts *opts)
{
    struct tcp *tcp = tcp_of(conn);
    struct loop_sock *sock = tcp->sock;
    struct nvmf_pdu_opts pdu_opts = {
        .ops = &tcp_pdu_ops,
        .role = NVME_TCP_CONTROLLER,
        .capsule_data_max = opts->capsule_bytes_max,
        .data_max = TCP_DATA_PDU_BYTES,
        .pdu_timeout_ns = opts->header_timeout_ns,
        .send_timeout_ns = opts->send_timeout_ns,
        .tls = opts->tls,
    };

    check(sock != NULL && list_empty(&tcp->senders) && tcp->tx_data_bytes == 0);
    tcp->sock = NULL; /* the connection's now */
    tcp->own_used = tcp->own_coming = false;
    tcp->told = 0;
    nvmf_pdu_open(&tcp->pdu, tcp->loop, sock, &pdu_opts);
}

static void tcp_mark(struct nvmf_conn *conn, struct net_mark mark)
{
    net_conn_mark(&tcp_of(conn)->pdu.net, mark);
}

static void tcp_close(struct nvmf_conn *conn, icms_err why)
{
    nvmf_pdu_close(&tcp_of(conn)->pdu, why);
}

static void tcp_closed(struct nvmf_pdu_conn *pdu, icms_err why)
{
    struct tcp *tcp = container_of(pdu, struct tcp, pdu);

    while (list_pop(&tcp->senders) != NULL)
        ;
    tcp->has_pending = tcp->conn.is_paused = false;
    tcp->reading = NULL;
    tcp->conn.tls = NET_TLS_NONE;
    tcp->conn.hostnqn = tcp->conn.subnqn = "";
    tcp->conn.key_id = 0;
    tcp->conn.digest_errors = pdu->stats.ddgst_errors + pdu->stats.hdgst_errors;
    tcp->ops->closed(&tcp->conn, why);
}

/* ---- sending -------------------------------------------------------------------------------- */

static void tcp_resume(struct tcp *tcp)
{
    if (!tcp->conn.is_paused)
        return;
    if (tcp->has_pending &&
        tcp->ops->command(&tcp->conn, &tcp->pending, 0, ICMS_OK, NULL) != ICMS_OK)
        return;
    tcp->has_pending = tcp->conn.is_paused = false;
    nvmf_pdu_recv_resume(&tcp->pdu);
}

/* All of a command is with the kernel. */
static void tcp_over(struct tcp *tcp, struct tcp_io *tio)
{
    struct nvmf_target_io *io = tio->io;

    tio->answering = tio->told = false;
    tio->ready = 0;
    tcp->told--;
    if (io->in_own) {
        check(tcp->own_used);
        tcp->own_used = false;
    }
    tcp->ops->responded(&tcp->conn, io);
    tcp_resume(tcp);
}

static void tcp_data_sent(struct nvmf_pdu_tx *pdu, icms_err err);

/* A PDU for so much data; NULL: enough is queued. */
static struct tcp_tx *tcp_tx_data(struct tcp *tcp, uint32_t bytes)
{
    if (tcp->tx_data_bytes > 0 && tcp->tx_data_bytes + bytes > TCP_TX_DATA_BYTES)
        return NULL;
    for (int i = 0; i < TCP_TX_DATA; i++)
        if (tcp->tx_data[i].tio == NULL)
            return &tcp->tx_data[i];
    return NULL;
}

/* Queues the next of the data that is ready as one PDU; false: enough is queued. The last one may
 * say that the command succeeded, instead of a completion. */
static bool tcp_send_data(struct tcp *tcp, struct tcp_io *tio)
{
    struct nvmf_target_io *io = tio->io;
    uint32_t bytes = (uint32_t)u64_min(tio->ready - io->data_moved, TCP_DATA_PDU_BYTES);
    struct tcp_tx *tx = tcp_tx_data(tcp, bytes);
    uint8_t flags = 0;

    if (tx == NULL)
        return false;
    if (io->data_moved + bytes == io->data_bytes) {
        flags = NVME_TCP_FLAG_LAST;
        if (io->result_is_bytes) {
            flags |= NVME_TCP_FLAG_SUCCESS;
            tio->told = true;
            tcp->told++;
        }
    }
    nvme_tcp_data_encode(&tx->pdu.pdu, NVME_TCP_C2H_DATA, flags, io->cid, 0, io->data_moved, bytes);
    tx->pdu.data[0] = (struct iovec){io->data + io->data_moved, bytes};
    tx->pdu.data[1] = (struct iovec){0};
    tx->pdu.done = tcp_data_sent;
    tx->tcp = tcp;
    tx->tio = tio;
    tx->bytes = bytes;
    tcp->tx_data_bytes += bytes;
    tio->data_busy++;
    io->data_moved += bytes;
    nvmf_pdu_send(&tcp->pdu, &tx->pdu);
    return true;
}

/* Queues data that is ready, or until enough is queued (false). The first of the senders queues
 * what fits; the others wait for it to be through. */
static bool tcp_send_ready(struct tcp *tcp, struct tcp_io *tio)
{
    if (list_empty(&tio->link) && tio->io->data_moved < tio->ready)
        list_push(&tcp->senders, &tio->link);
    while (tio->io->data_moved < tio->ready) {
        if (list_first(&tcp->senders) != &tio->link || !tcp_send_data(tcp, tio))
            return false;
    }
    list_remove(&tio->link);
    return true;
}

static void tcp_tx_sent(struct nvmf_pdu_tx *tx, icms_err err);

/* Sends the R2T or the completion that is encoded in tx. */
static void tcp_send_tx(struct tcp *tcp, struct tcp_io *tio)
{
    check(!tio->tx_busy);
    tio->tx_busy = true;
    tio->tx.data[0] = tio->tx.data[1] = (struct iovec){0};
    tio->tx.done = tcp_tx_sent;
    tio->tx.owner = tcp;
    nvmf_pdu_send(&tcp->pdu, &tio->tx);
}

/* Does what comes next for a command with data to the host, or a completion. */
static void tcp_run(struct tcp *tcp, struct tcp_io *tio)
{
    bool queued = tcp_send_ready(tcp, tio);
    struct nvme_cqe cqe;

    tio->io->data_busy = !queued || tio->data_busy > 0;
    if (!queued || !tio->answering)
        return;
    if (!tio->told) {
        tio->told = true;
        tcp->told++;
        tcp->ops->completion(&tcp->conn, tio->io, &cqe);
        nvme_tcp_resp_encode(&tio->tx.pdu, &cqe);
        tcp_send_tx(tcp, tio);
    } else if (!tio->tx_busy && tio->data_busy == 0) {
        tcp_over(tcp, tio);
    }
}

/* The R2T or the completion was sent. When the connection is ending, closed() ends the rest. */
static void tcp_tx_sent(struct nvmf_pdu_tx *tx, icms_err err)
{
    struct tcp_io *tio = container_of(tx, struct tcp_io, tx);
    struct tcp *tcp = tx->owner;

    check(tio->tx_busy);
    tio->tx_busy = false;
    if (err != ICMS_OK)
        return;
    if (tio->answering)
        tcp_run(tcp, tio);
    else
        tcp->ops->progress(&tcp->conn, tio->io);
}

static void tcp_data_sent(struct nvmf_pdu_tx *pdu, icms_err err)
{
    struct tcp_tx *tx = container_of(pdu, struct tcp_tx, pdu);
    struct tcp_io *tio = tx->tio;
    struct tcp *tcp = tx->tcp;
    struct list *first;

    check(tio->data_busy > 0 && tcp->tx_data_bytes >= tx->bytes);
    tcp->tx_data_bytes -= tx->bytes;
    tx->tio = NULL;
    tio->data_busy--;
    if (err != ICMS_OK)
        return;
    tcp_run(tcp, tio);
    while ((first = list_first(&tcp->senders)) != NULL) {
        tcp_run(tcp, container_of(first, struct tcp_io, link));
        if (list_first(&tcp->senders) == first)
            break;
    }
}

static void tcp_write(struct nvmf_conn *conn, struct nvmf_target_io *io, uint32_t bytes)
{
    struct tcp_io *tio = tcp_io_of(io);

    check(bytes >= tio->ready && bytes < io->data_bytes);
    tio->ready = bytes;
    tcp_run(tcp_of(conn), tio);
}

static void tcp_respond(struct nvmf_conn *conn, struct nvmf_target_io *io, uint32_t bytes)
{
    struct tcp_io *tio = tcp_io_of(io);

    check(!tio->answering && !tio->reading && !tio->tx_busy);
    tio->answering = true;
    tio->ready = bytes;
    tcp_run(tcp_of(conn), tio);
}

/* Asks for all the data at once; the host cuts it into PDUs of the size that ICResp told it. */
static void tcp_read(struct nvmf_conn *conn, struct nvmf_target_io *io)
{
    struct tcp_io *tio = tcp_io_of(io);

    tio->reading = true;
    nvme_tcp_r2t_encode(&tio->tx.pdu, io->cid, io->tag, 0, io->data_bytes);
    tcp_send_tx(tcp_of(conn), tio);
}

/* ---- receiving ------------------------------------------------------------------------------ */

/* No slot is free. The host may not know that a completion was sent: then reading stops until one
 * is. Else it sends more than the queue has entries (false). */
static bool tcp_wait_slot(struct tcp *tcp)
{
    if (tcp->told == 0)
        nvmf_pdu_term(&tcp->pdu, NVME_TCP_FES_LIMIT, 0);
    return tcp->told > 0;
}

static icms_err tcp_pause(struct tcp *tcp)
{
    tcp->conn.is_paused = true;
    return ICMS_BUSY;
}

/* Memory for data that comes with a command; BUSY: none now, the stream waits. */
static icms_err tcp_header_capsule(struct tcp *tcp, const struct nvme_sqe_wf *sqe,
                                   uint32_t data_bytes, struct iovec *out_data)
{
    uint8_t *memory = NULL;
    uint32_t offset = 0;
    icms_err err = tcp->ops->capsule(&tcp->conn, sqe, data_bytes, &memory, &offset);

    if (err == ICMS_VALUE_SIZE) {
        nvmf_pdu_term(&tcp->pdu, NVME_TCP_FES_LIMIT, offsetof(struct nvme_tcp_common_wf, plen));
        return ICMS_PROTOCOL;
    }
    if (err == ICMS_LIMIT)
        return tcp_wait_slot(tcp) ? tcp_pause(tcp) : ICMS_PROTOCOL;
    if (err == ICMS_BUSY) {
        if (tcp->own_used)
            return tcp_pause(tcp);
        tcp->own_used = tcp->own_coming = true;
        memory = tcp->own;
    }
    if (memory != NULL)
        *out_data = (struct iovec){memory + offset, data_bytes};
    return ICMS_OK;
}

/* A command, its data included if it brought some and there is use for it. */
static void tcp_capsule(struct tcp *tcp, const struct nvme_sqe_wf *sqe, uint32_t data_bytes,
                        icms_err data_err)
{
    uint8_t *own = tcp->own_coming ? tcp->own : NULL;

    tcp->own_coming = false;
    if (tcp->ops->command(&tcp->conn, sqe, data_bytes, data_err, own) == ICMS_OK)
        return;
    check(!tcp->has_pending && data_bytes == 0);
    if (!tcp_wait_slot(tcp))
        return;
    tcp->has_pending = true;
    tcp->pending = *sqe;
    (void)tcp_pause(tcp);
    nvmf_pdu_recv_pause(&tcp->pdu);
}

/* H2CData: the command that it is for; NULL: it does not fit, and a TermReq says so. */
static struct nvmf_target_io *tcp_h2c_check(struct tcp *tcp, const struct nvme_tcp_data_wf *data,
                                            uint32_t data_bytes)
{
    struct nvmf_target_io *io = tcp->ops->find(&tcp->conn, le16_get(data->ttag));

    if (io == NULL || !tcp_io_of(io)->reading) {
        nvmf_pdu_term(&tcp->pdu, NVME_TCP_FES_HEADER, offsetof(struct nvme_tcp_data_wf, ttag));
        return NULL;
    }
    if (le16_get(data->cid) != io->cid) {
        nvmf_pdu_term(&tcp->pdu, NVME_TCP_FES_HEADER, offsetof(struct nvme_tcp_data_wf, cid));
        return NULL;
    }
    if (le32_get(data->offset) != io->data_moved) {
        nvmf_pdu_term(&tcp->pdu, NVME_TCP_FES_RANGE, offsetof(struct nvme_tcp_data_wf, offset));
        return NULL;
    }
    if (data_bytes == 0 || data_bytes > io->data_bytes - io->data_moved) {
        nvmf_pdu_term(&tcp->pdu, NVME_TCP_FES_RANGE, offsetof(struct nvme_tcp_data_wf, length));
        return NULL;
    }
    if ((data->common.flags & NVME_TCP_FLAG_LAST) != 0 &&
        data_bytes < io->data_bytes - io->data_moved) {
        /* The rest that was asked for is not to come. */
        nvmf_pdu_term(&tcp->pdu, NVME_TCP_FES_HEADER, offsetof(struct nvme_tcp_common_wf, flags));
        return NULL;
    }
    return io;
}

static icms_err tcp_header(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                           uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct tcp *tcp = container_of(conn, struct tcp, pdu);

    if (pdu->common.type == NVME_TCP_CAPSULE_CMD)
        return tcp_header_capsule(tcp, &pdu->cmd.sqe, data_bytes, &out_data[0]);
    check(pdu->common.type == NVME_TCP_H2C_DATA);
    tcp->reading = tcp_h2c_check(tcp, &pdu->data, data_bytes);
    if (tcp->reading == NULL)
        return ICMS_PROTOCOL;
    out_data[0] = (struct iovec){tcp->reading->data + tcp->reading->data_moved, data_bytes};
    return ICMS_OK;
}

static void tcp_h2c(struct tcp *tcp, const struct nvme_tcp_data_wf *data, uint32_t data_bytes,
                    icms_err data_err)
{
    struct nvmf_target_io *io = tcp->reading;

    tcp->reading = NULL;
    if (io == NULL) { /* no data: tcp_header was not asked */
        (void)tcp_h2c_check(tcp, data, 0);
        return;
    }
    if (data_err != ICMS_OK)
        io->err = data_err;
    io->data_moved += data_bytes;
    if (io->data_moved == io->data_bytes)
        tcp_io_of(io)->reading = false;
    if (tcp_io_of(io)->reading || !tcp_io_of(io)->tx_busy) /* else tcp_tx_sent says so */
        tcp->ops->progress(&tcp->conn, io);
}

static void tcp_hello(struct tcp *tcp, const struct nvme_tcp_ic_wf *ic)
{
    nvme_tcp_ic_resp_encode(&tcp->hello.pdu, 0, ic->digests, TCP_DATA_PDU_BYTES);
    tcp->hello.data[0] = tcp->hello.data[1] = (struct iovec){0};
    tcp->hello.done = NULL;
    nvmf_pdu_send(&tcp->pdu, &tcp->hello);
    nvmf_pdu_digests_set(&tcp->pdu, ic->digests, ic->pda);
    tcp->conn.tls = net_conn_tls(&tcp->pdu.net);
    tcp->conn.hostnqn = net_conn_hostnqn(&tcp->pdu.net);
    tcp->conn.subnqn = net_conn_subnqn(&tcp->pdu.net);
    tcp->conn.key_id = net_conn_key_id(&tcp->pdu.net);
    tcp->conn.peer = tcp->pdu.net.peer;
    tcp->conn.local = tcp->pdu.net.local;
    tcp->ops->opened(&tcp->conn);
}

static void tcp_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu, uint32_t data_bytes,
                    icms_err data_err)
{
    struct tcp *tcp = container_of(conn, struct tcp, pdu);

    switch (pdu->common.type) {
    case NVME_TCP_IC_REQ:
        tcp_hello(tcp, &pdu->ic);
        break;
    case NVME_TCP_CAPSULE_CMD:
        tcp_capsule(tcp, &pdu->cmd.sqe, data_bytes, data_err);
        break;
    case NVME_TCP_H2C_DATA:
        tcp_h2c(tcp, &pdu->data, data_bytes, data_err);
        break;
    default:
        check(!"the PDU layer lets only these through");
    }
}

static const struct nvmf_pdu_ops tcp_pdu_ops = {
    .header = tcp_header,
    .pdu = tcp_pdu,
    .closed = tcp_closed,
};

const struct nvmf_target_transport nvmf_target_tcp = {
    .io_bytes = sizeof(struct tcp_io),
    .listen = tcp_listen,
    .take = tcp_take,
    .release = tcp_release,
    .listen_close = tcp_listen_close,
    .listen_free = tcp_listen_free,
    .conn_new = tcp_new,
    .conn_free = tcp_free,
    .open = tcp_open,
    .mark = tcp_mark,
    .read = tcp_read,
    .write = tcp_write,
    .respond = tcp_respond,
    .close = tcp_close,
};
