/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One NVMe/TCP connection of either side: whole, checked PDUs in and out.
 *
 * Called by nvmf/target and nvmf/host on the connection's loop. Life:
 *
 *   nvmf_pdu_open    CLOSED -> HEADER
 *   pdu_header       HEADER -> DATA, HEADER (no data), PARKED (no memory, paused), TERM
 *   pdu_parked       PARKED -> HEADER
 *   pdu_data         DATA -> DIGEST, HEADER
 *   pdu_digest       DIGEST -> HEADER
 *   nvmf_pdu_term    any -> TERM: queue a TermReq, read and drop
 *   nvmf_pdu_close   any -> CLOSING
 *   pdu_end          CLOSING -> CLOSED, when net is closed and no message is on its way
 *
 * Invariants: at most one receive is in flight, into the small buffer (only when that is empty) or
 * straight into the owner's memory (recv_direct). The owner's memory is written by that receive and
 * by pdu_place only, and after redirect_done by neither. The owner's callbacks run from events of
 * the loop, never from its own calls.
 */
#include "nvmf/pdu.h"

#include "base/check.h"
#include "base/crc.h"

enum pdu_step {
    PDU_NEXT, /* the state changed or bytes were taken: run again         */
    PDU_WAIT, /* nothing to do until something wakes the machine          */
};

/* Payload pieces of at least this much are received straight into place; smaller ones through the
 * buffer, where the next headers may arrive with them. */
#define PDU_DIRECT_MIN (NVMF_PDU_BUFFER_BYTES / 2)

static void pdu_run(struct nvmf_pdu_conn *conn);

/* ---- the machine's timer and message --------------------------------------------------------- */

/* A started PDU has to be whole in time. */
static void pdu_timer_start(struct nvmf_pdu_conn *conn)
{
    if (conn->pdu_timeout_ns != 0 && !loop_timer_armed(&conn->timer))
        loop_timer_start(conn->loop, &conn->timer, loop_now_ns(conn->loop) + conn->pdu_timeout_ns);
}

static void pdu_timer_stop(struct nvmf_pdu_conn *conn)
{
    if (loop_timer_armed(&conn->timer))
        loop_timer_stop(conn->loop, &conn->timer);
}

static void pdu_timer_fire(struct loop_timer *timer)
{
    struct nvmf_pdu_conn *conn = container_of(timer, struct nvmf_pdu_conn, timer);

    nvmf_pdu_close(conn, ICMS_DEADLINE);
}

static void pdu_redirect_end(struct nvmf_pdu_conn *conn)
{
    void (*done)(struct nvmf_pdu_conn * conn, void *arg) = conn->redirect_done;

    if (done == NULL || conn->recv_direct != NULL)
        return;
    conn->redirect_done = NULL;
    conn->redirect_data = NULL;
    done(conn, conn->redirect_arg);
}

/* The last event of a connection: nothing is in flight, tell the owner. */
static void pdu_end(struct nvmf_pdu_conn *conn, icms_err why)
{
    struct list *link;

    pdu_timer_stop(conn);
    check(conn->recv_direct == NULL);
    pdu_redirect_end(conn);
    while ((link = list_pop(&conn->refused)) != NULL) {
        struct nvmf_pdu_tx *tx = container_of(link, struct nvmf_pdu_tx, send.link);

        if (tx->done != NULL)
            tx->done(tx, why);
    }
    conn->state = NVMF_PDU_CLOSED;
    conn->ops->closed(conn, why);
}

static void pdu_msg_run(struct loop_msg *msg)
{
    struct nvmf_pdu_conn *conn = container_of(msg, struct nvmf_pdu_conn, msg);

    conn->msg_sent = false;
    if (conn->net_closed) {
        pdu_end(conn, conn->why);
        return;
    }
    pdu_redirect_end(conn);
    pdu_run(conn);
}

/* Runs the machine soon, from the loop. */
static void pdu_wake(struct nvmf_pdu_conn *conn)
{
    if (conn->msg_sent)
        return;
    conn->msg_sent = true;
    loop_send(conn->loop, &conn->msg, pdu_msg_run);
}

/* ---- receive: bytes -------------------------------------------------------------------------- */

/* Takes up to bytes from the buffer. */
static uint32_t pdu_take(struct nvmf_pdu_conn *conn, void *out, uint32_t bytes)
{
    uint32_t n = (uint32_t)u64_min(bytes, conn->buffer_end - conn->buffer_at);

    memcpy(out, conn->buffer + conn->buffer_at, n);
    conn->buffer_at += n;
    return n;
}

/* Receives into the buffer, which is empty. */
static enum pdu_step pdu_fill(struct nvmf_pdu_conn *conn)
{
    if (net_conn_receiving(&conn->net))
        return PDU_WAIT;
    check(conn->buffer_at == conn->buffer_end);
    conn->buffer_at = conn->buffer_end = 0;
    net_conn_recv(&conn->net, conn->buffer, sizeof(conn->buffer), false);
    return PDU_WAIT;
}

/* Where the next byte of the payload goes, and how many fit there; NULL: it is dropped. */
static uint8_t *pdu_place_at(const struct nvmf_pdu_conn *conn, uint32_t *out_bytes)
{
    uint32_t left = conn->frame.data_bytes - conn->data_done;
    size_t skip = conn->data_done;

    *out_bytes = left;
    if (conn->data[0].iov_base == NULL)
        return NULL;
    for (int i = 0; i < NVMF_PDU_VECTORS; i++) {
        if (skip < conn->data[i].iov_len) {
            *out_bytes = (uint32_t)u64_min(left, conn->data[i].iov_len - skip);
            return (uint8_t *)conn->data[i].iov_base + skip;
        }
        skip -= conn->data[i].iov_len;
    }
    check(left == 0);
    return NULL;
}

/* Counts bytes of payload that are in place, at memory. */
static void pdu_placed(struct nvmf_pdu_conn *conn, const uint8_t *memory, uint32_t bytes)
{
    if (conn->frame.ddgst && conn->data_status == ICMS_OK)
        conn->data_crc = crc32c_add(conn->data_crc, memory, bytes);
    conn->data_done += bytes;
}

static void pdu_received(struct net_conn *net, icms_err err, uint32_t bytes)
{
    struct nvmf_pdu_conn *conn = container_of(net, struct nvmf_pdu_conn, net);
    uint8_t *direct = conn->recv_direct;

    conn->recv_direct = NULL;
    if (direct != NULL && conn->state != NVMF_PDU_CLOSING)
        pdu_placed(conn, direct, bytes);
    if (direct == NULL)
        conn->buffer_end += bytes;
    pdu_redirect_end(conn);
    if (err != ICMS_OK && err != ICMS_CANCELED) {
        conn->state = NVMF_PDU_CLOSING;
        return;
    }
    pdu_run(conn);
}

/* ---- receive: PDUs --------------------------------------------------------------------------- */

/* The whole PDU is there. */
static enum pdu_step pdu_deliver(struct nvmf_pdu_conn *conn, icms_err status)
{
    uint32_t data_bytes = conn->frame.data_bytes;

    pdu_timer_stop(conn);
    conn->stats.pdus_in++;
    conn->state = NVMF_PDU_HEADER;
    memset(conn->data, 0, sizeof(conn->data));
    conn->ops->pdu(conn, &conn->pdu, data_bytes, status);
    /* A TermReq begun inside has copied the header. */
    conn->pdu_bytes = 0;
    conn->framed = false;
    return PDU_NEXT;
}

static enum pdu_step pdu_bad(struct nvmf_pdu_conn *conn, struct nvme_tcp_bad bad)
{
    if (bad.fes == NVME_TCP_FES_HDGST)
        conn->stats.hdgst_errors++;
    nvmf_pdu_term(conn, bad.fes, bad.fei);
    return PDU_NEXT;
}

/* Asks the owner where the payload goes. */
static enum pdu_step pdu_ask(struct nvmf_pdu_conn *conn)
{
    size_t bytes = 0;
    icms_err err;

    memset(conn->data, 0, sizeof(conn->data));
    err = conn->ops->header(conn, &conn->pdu, conn->frame.data_bytes, conn->data);
    if (conn->state != NVMF_PDU_HEADER)
        return PDU_NEXT; /* it closed or terminated */
    if (err == ICMS_BUSY) {
        pdu_timer_stop(conn);
        conn->state = NVMF_PDU_PARKED;
        return PDU_WAIT;
    }
    if (err != ICMS_OK)
        return pdu_bad(conn, (struct nvme_tcp_bad){NVME_TCP_FES_HEADER, 0});
    for (int i = 0; i < NVMF_PDU_VECTORS; i++)
        bytes += conn->data[i].iov_len;
    check(conn->data[0].iov_base == NULL ? bytes == 0 : bytes == conn->frame.data_bytes);
    conn->data_done = 0;
    conn->data_crc = 0;
    conn->data_status = ICMS_OK;
    conn->ddgst_bytes = 0;
    conn->state = NVMF_PDU_DATA;
    return PDU_NEXT;
}

/* The header is whole: check it and decide what follows. */
static enum pdu_step pdu_headed(struct nvmf_pdu_conn *conn)
{
    struct nvme_tcp_bad bad;

    if (nvme_tcp_pdu_check(&conn->pdu, &conn->frame, &bad) != ICMS_OK)
        return pdu_bad(conn, bad);
    switch (conn->frame.type) {
    case NVME_TCP_H2C_TERM:
    case NVME_TCP_C2H_TERM:
        conn->stats.term_in++;
        nvmf_pdu_close(conn, ICMS_PROTOCOL);
        return PDU_NEXT;
    case NVME_TCP_IC_REQ:
    case NVME_TCP_IC_RESP:
        conn->rules.connected = true;
        break;
    default:
        break;
    }
    return conn->frame.data_bytes > 0 ? pdu_ask(conn) : pdu_deliver(conn, ICMS_OK);
}

static enum pdu_step pdu_header(struct nvmf_pdu_conn *conn)
{
    uint32_t want = conn->framed ? conn->frame.header_bytes : NVME_TCP_COMMON_BYTES;
    struct nvme_tcp_bad bad;

    if (conn->paused && conn->pdu_bytes == 0) {
        conn->state = NVMF_PDU_PARKED;
        return PDU_WAIT;
    }
    conn->pdu_bytes += pdu_take(conn, conn->pdu.bytes + conn->pdu_bytes, want - conn->pdu_bytes);
    if (conn->pdu_bytes < want) {
        if (conn->pdu_bytes > 0)
            pdu_timer_start(conn);
        return pdu_fill(conn);
    }
    if (conn->framed)
        return pdu_headed(conn);
    if (nvme_tcp_hdr_check(&conn->pdu.common, &conn->rules, &conn->frame, &bad) != ICMS_OK)
        return pdu_bad(conn, bad);
    conn->framed = true;
    return PDU_NEXT;
}

static enum pdu_step pdu_data(struct nvmf_pdu_conn *conn)
{
    uint32_t bytes;
    uint8_t *at = pdu_place_at(conn, &bytes);
    uint32_t have = conn->buffer_end - conn->buffer_at;

    if (conn->data_done == conn->frame.data_bytes) {
        if (!conn->frame.ddgst)
            return pdu_deliver(conn, conn->data_status);
        conn->state = NVMF_PDU_DIGEST;
        return PDU_NEXT;
    }
    if (have > 0) {
        const uint8_t *from = conn->buffer + conn->buffer_at;

        bytes = (uint32_t)u64_min(bytes, have);
        if (at != NULL)
            memcpy(at, from, bytes);
        conn->buffer_at += bytes;
        pdu_placed(conn, from, bytes);
        return PDU_NEXT;
    }
    pdu_timer_start(conn);
    if (at == NULL || bytes < PDU_DIRECT_MIN)
        return pdu_fill(conn);
    if (!net_conn_receiving(&conn->net)) {
        conn->recv_direct = at;
        net_conn_recv(&conn->net, at, bytes, true);
    }
    return PDU_WAIT;
}

static enum pdu_step pdu_digest(struct nvmf_pdu_conn *conn)
{
    conn->ddgst_bytes += pdu_take(conn, conn->ddgst.byte + conn->ddgst_bytes,
                                  NVME_TCP_DIGEST_BYTES - conn->ddgst_bytes);
    if (conn->ddgst_bytes < NVME_TCP_DIGEST_BYTES) {
        pdu_timer_start(conn);
        return pdu_fill(conn);
    }
    if (conn->data_status == ICMS_OK &&
        !nvme_tcp_ddgst_matches(conn->data_crc, conn->frame.data_bytes, le32_get(conn->ddgst))) {
        conn->stats.ddgst_errors++;
        conn->data_status = ICMS_CORRUPT;
    }
    return pdu_deliver(conn, conn->data_status);
}

/* Stopped reading until the owner resumes. */
static enum pdu_step pdu_parked(struct nvmf_pdu_conn *conn)
{
    return PDU_WAIT;
}

/* The peer is told that it is over: whatever it still sends is dropped. */
static enum pdu_step pdu_term(struct nvmf_pdu_conn *conn)
{
    conn->buffer_at = conn->buffer_end;
    return pdu_fill(conn);
}

static void pdu_run(struct nvmf_pdu_conn *conn)
{
    enum pdu_step step = PDU_NEXT;

    check(!conn->running);
    conn->running = true;
    net_conn_cork(&conn->net); /* answers to what arrived together leave together */
    while (step == PDU_NEXT) {
        switch (conn->state) {
        case NVMF_PDU_HEADER:
            step = pdu_header(conn);
            break;
        case NVMF_PDU_PARKED:
            step = pdu_parked(conn);
            break;
        case NVMF_PDU_DATA:
            step = pdu_data(conn);
            break;
        case NVMF_PDU_DIGEST:
            step = pdu_digest(conn);
            break;
        case NVMF_PDU_TERM:
            step = pdu_term(conn);
            break;
        case NVMF_PDU_CLOSING:
            step = PDU_WAIT;
            break;
        case NVMF_PDU_CLOSED:
            check(false);
        }
    }
    net_conn_uncork(&conn->net);
    conn->running = false;
}

/* ---- open and close ------------------------------------------------------------------------- */

static void pdu_net_closed(struct net_conn *net, icms_err why)
{
    struct nvmf_pdu_conn *conn = container_of(net, struct nvmf_pdu_conn, net);

    conn->state = NVMF_PDU_CLOSING;
    if (conn->why == ICMS_OK)
        conn->why = why;
    if (conn->msg_sent)
        conn->net_closed = true;
    else
        pdu_end(conn, conn->why);
}

static const struct net_conn_ops pdu_net_ops = {
    .recv_done = pdu_received,
    .closed = pdu_net_closed,
};

void nvmf_pdu_open(struct nvmf_pdu_conn *conn, struct loop *loop, struct loop_sock *sock,
                   const struct nvmf_pdu_opts *opts)
{
    const struct net_conn_opts net = {
        .ops = &pdu_net_ops, .send_timeout_ns = opts->send_timeout_ns, .tls = opts->tls};

    void *owner = conn->owner;

    check(conn->state == NVMF_PDU_CLOSED);
    memset(conn, 0, offsetof(struct nvmf_pdu_conn, buffer));
    conn->owner = owner;
    memset(&conn->term, 0, sizeof(conn->term));
    list_init(&conn->refused);
    conn->state = NVMF_PDU_HEADER;
    conn->loop = loop;
    conn->ops = opts->ops;
    conn->rules = (struct nvme_tcp_rules){
        .role = opts->role, .capsule_data_max = opts->capsule_data_max, .data_max = opts->data_max};
    conn->pdu_timeout_ns = opts->pdu_timeout_ns;
    loop_timer_init(&conn->timer, pdu_timer_fire);
    net_conn_open(&conn->net, loop, sock, &net);
    (void)pdu_fill(conn);
}

void nvmf_pdu_digests_set(struct nvmf_pdu_conn *conn, uint8_t digests, uint8_t peer_pda)
{
    conn->rules.digests = digests;
    conn->peer_pda = peer_pda;
}

void nvmf_pdu_close(struct nvmf_pdu_conn *conn, icms_err why)
{
    if (conn->state == NVMF_PDU_CLOSED || conn->state == NVMF_PDU_CLOSING)
        return;
    if (conn->why == ICMS_OK)
        conn->why = why;
    conn->state = NVMF_PDU_CLOSING;
    pdu_timer_stop(conn);
    net_conn_close(&conn->net, why);
}

void nvmf_pdu_fini(struct nvmf_pdu_conn *conn)
{
    net_conn_fini(&conn->net);
    conn->state = NVMF_PDU_CLOSED;
}

/* ---- send ----------------------------------------------------------------------------------- */

static void pdu_sent(struct net_send *send, icms_err err)
{
    struct nvmf_pdu_tx *tx = container_of(send, struct nvmf_pdu_tx, send);

    if (tx->done != NULL)
        tx->done(tx, err);
}

static void tx_vector(struct net_send *send, void *memory, size_t bytes)
{
    send->vectors[send->count++] = (struct iovec){.iov_base = memory, .iov_len = bytes};
}

static void pdu_transmit(struct nvmf_pdu_conn *conn, struct nvmf_pdu_tx *tx)
{
    uint32_t head, data_bytes = 0, crc = 0;

    static_assert(NET_SEND_VECTORS >= NVMF_PDU_VECTORS + 2, "header, data, digest");
    for (int i = 0; i < NVMF_PDU_VECTORS; i++)
        data_bytes += (uint32_t)tx->data[i].iov_len;
    head = nvme_tcp_frame_encode(&tx->pdu, data_bytes, conn->rules.digests, conn->peer_pda);
    tx->send.count = 0;
    tx->send.done = pdu_sent;
    tx_vector(&tx->send, tx->pdu.bytes, head);
    for (int i = 0; i < NVMF_PDU_VECTORS; i++)
        if (tx->data[i].iov_len > 0)
            tx_vector(&tx->send, tx->data[i].iov_base, tx->data[i].iov_len);
    if (tx->pdu.common.flags & NVME_TCP_FLAG_DDGST) {
        for (int i = 0; i < NVMF_PDU_VECTORS; i++)
            crc = crc32c_add(crc, tx->data[i].iov_base, tx->data[i].iov_len);
        tx->ddgst = le32_of(crc);
        tx_vector(&tx->send, &tx->ddgst, sizeof(tx->ddgst));
    }
    net_conn_send(&conn->net, &tx->send);
}

void nvmf_pdu_send(struct nvmf_pdu_conn *conn, struct nvmf_pdu_tx *tx)
{
    check(conn->state != NVMF_PDU_CLOSED);
    tx->conn = conn;
    if (conn->net.state == NET_CONN_OPEN && conn->state != NVMF_PDU_TERM) {
        pdu_transmit(conn, tx);
        return;
    }
    /* Nothing follows a TermReq; what is refused is given back before closed(). */
    list_init(&tx->send.link);
    list_push(&conn->refused, &tx->send.link);
}

void nvmf_pdu_term(struct nvmf_pdu_conn *conn, enum nvme_tcp_fes fes, uint32_t fei)
{
    bool host = conn->rules.role == NVME_TCP_HOST;
    uint32_t bytes = conn->pdu_bytes;

    if (conn->state == NVMF_PDU_CLOSED || conn->state == NVMF_PDU_CLOSING ||
        conn->state == NVMF_PDU_TERM || conn->net.state != NET_CONN_OPEN)
        return;
    conn->state = NVMF_PDU_TERM;
    conn->why = ICMS_PROTOCOL;
    conn->stats.term_out++;
    static_assert(sizeof(conn->pdu) <= sizeof(conn->term_data), "a header fits");
    memcpy(conn->term_data, conn->pdu.bytes, bytes);
    nvme_tcp_term_encode(&conn->term.pdu, host ? NVME_TCP_H2C_TERM : NVME_TCP_C2H_TERM,
                         (struct nvme_tcp_bad){.fes = fes, .fei = fei});
    conn->term.data[0] = (struct iovec){.iov_base = conn->term_data, .iov_len = bytes};
    conn->term.conn = conn;
    pdu_transmit(conn, &conn->term);
    loop_timer_start(conn->loop, &conn->timer, loop_now_ns(conn->loop) + NVMF_PDU_TERM_NS);
    if (conn->recv_direct != NULL)
        net_conn_recv_cancel(&conn->net);
    else if (!conn->running)
        pdu_wake(conn);
}

/* ---- redirect, pause ------------------------------------------------------------------------- */

icms_err nvmf_pdu_recv_redirect(struct nvmf_pdu_conn *conn, const void *data,
                                void (*done)(struct nvmf_pdu_conn *conn, void *arg), void *arg)
{
    bool current = conn->state == NVMF_PDU_DATA || conn->state == NVMF_PDU_DIGEST;

    check(data != NULL && done != NULL);
    check(conn->redirect_data != data);
    /* TERM and CLOSING abandoned the payload, but its receive may still be in flight. */
    if (!(current || conn->recv_direct != NULL) || conn->data[0].iov_base != data)
        return ICMS_NOT_FOUND;
    check(conn->redirect_done == NULL);
    memset(conn->data, 0, sizeof(conn->data));
    conn->data_status = ICMS_CANCELED;
    conn->redirect_data = data;
    conn->redirect_done = done;
    conn->redirect_arg = arg;
    if (conn->recv_direct != NULL)
        net_conn_recv_cancel(&conn->net);
    else
        pdu_wake(conn);
    return ICMS_OK;
}

void nvmf_pdu_recv_pause(struct nvmf_pdu_conn *conn)
{
    if (conn->state != NVMF_PDU_CLOSED)
        conn->paused = true;
}

void nvmf_pdu_recv_resume(struct nvmf_pdu_conn *conn)
{
    conn->paused = false;
    if (conn->state != NVMF_PDU_PARKED)
        return;
    conn->state = NVMF_PDU_HEADER;
    pdu_wake(conn);
}
