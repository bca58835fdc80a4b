/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: one socket on one loop.
 *
 * On the connection's loop. Life:
 *
 *   net_conn_open     CLOSED -> OPEN
 *   conn_received     OPEN: recv_done; an error begins the close
 *   conn_sent         OPEN: gives net_sends back; an error begins the close
 *   net_conn_close    OPEN -> CLOSING: shut down, cancel
 *   conn_closing      CLOSING -> CLOSED, when nothing is in flight: gives everything back, closed()
 *
 * Invariants: at most one receive and one vectored send are in flight; closed() never runs inside a
 * call of the owner; every net_send is given back once, in order. With TLS the socket is
 * net_tls.c's (net_int.h), and all else is the same.
 */
#include "net/net_int.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"

static void conn_received(struct loop_op *op);
static void conn_sent(struct loop_op *op);

/* ---- timeout -------------------------------------------------------------------------------- */

/* The timer is armed for the earliest time that may matter and looks again when it fires, so data
 * that flows costs no timer. */
static void conn_timer_want(struct net_conn *conn)
{
    if (conn->send_timeout_ns != 0 && !loop_timer_armed(&conn->timer))
        loop_timer_start(conn->loop, &conn->timer, conn->send_at_ns + conn->send_timeout_ns);
}

static void conn_timer_fire(struct loop_timer *timer)
{
    struct net_conn *conn = container_of(timer, struct net_conn, timer);

    if (conn->state != NET_CONN_OPEN || !loop_op_busy(&conn->send_op))
        return;
    if (loop_now_ns(conn->loop) >= conn->send_at_ns + conn->send_timeout_ns)
        net_conn_close(conn, ICMS_DEADLINE);
    else
        conn_timer_want(conn);
}

/* ---- open and close ------------------------------------------------------------------------- */

void net_conn_open(struct net_conn *conn, struct loop *loop, struct loop_sock *sock,
                   const struct net_conn_opts *opts)
{
    check(conn->state == NET_CONN_CLOSED);
    *conn = (struct net_conn){.state = NET_CONN_OPEN,
                              .loop = loop,
                              .sock = sock,
                              .ops = opts->ops,
                              .send_timeout_ns = opts->send_timeout_ns};
    list_init(&conn->sends);
    loop_timer_init(&conn->timer, conn_timer_fire);
    loop_sock_peer(sock, &conn->peer);
    loop_sock_addr(sock, &conn->local);
    if (opts->tls == NULL)
        return;
    conn->tls = net_tls_new(conn, opts->tls);
    if (conn->tls == NULL)
        net_conn_close(conn, ICMS_NO_MEMORY);
}

void net_conn_closing(struct net_conn *conn)
{
    struct list *link;

    check(conn->state == NET_CONN_CLOSING);
    if (conn->closed_pending || loop_op_busy(&conn->recv_op) || loop_op_busy(&conn->send_op) ||
        (conn->tls != NULL && net_tls_busy(conn->tls)))
        return;
    if (conn->receiving) { /* asked for while closing, or waiting for TLS */
        conn->receiving = false;
        conn->ops->recv_done(conn, conn->why, conn->tls != NULL ? net_tls_received(conn->tls) : 0);
    }
    while ((link = list_pop(&conn->sends)) != NULL) {
        struct net_send *send = container_of(link, struct net_send, link);

        send->done(send, conn->why);
    }
    loop_timer_stop(conn->loop, &conn->timer);
    net_tls_free(&conn->tls);
    loop_sock_close(&conn->sock);
    conn->state = NET_CONN_CLOSED;
    conn->ops->closed(conn, conn->why);
}

static void conn_closing_msg(struct loop_msg *msg)
{
    struct net_conn *conn = container_of(msg, struct net_conn, msg);

    conn->closed_pending = false;
    net_conn_closing(conn);
}

void net_conn_mark(struct net_conn *conn, struct net_mark mark)
{
    if (conn->state == NET_CONN_OPEN)
        loop_sock_mark(conn->sock, mark);
}

void net_conn_close(struct net_conn *conn, icms_err why)
{
    if (conn->state != NET_CONN_OPEN)
        return;
    check(why != ICMS_OK);
    conn->state = NET_CONN_CLOSING;
    conn->why = why;
    loop_timer_stop(conn->loop, &conn->timer);
    if (conn->tls != NULL)
        net_tls_shutdown(conn->tls);
    loop_sock_shutdown(conn->sock);
    if (loop_op_busy(&conn->recv_op))
        loop_op_cancel(&conn->recv_op);
    if (loop_op_busy(&conn->send_op))
        loop_op_cancel(&conn->send_op);
    /* Also when something is in flight: its end may come from within a callback of the owner. */
    conn->closed_pending = true;
    loop_send(conn->loop, &conn->msg, conn_closing_msg);
}

void net_conn_fini(struct net_conn *conn)
{
    net_tls_free(&conn->tls);
    loop_sock_close(&conn->sock);
    conn->state = NET_CONN_CLOSED;
}

/* ---- receive -------------------------------------------------------------------------------- */

void net_conn_recv_end(struct net_conn *conn, icms_err err, uint32_t bytes)
{
    if (conn->state == NET_CONN_OPEN && fault_hit("net.recv"))
        err = ICMS_RESET;
    if (err != ICMS_OK && err != ICMS_CANCELED)
        net_conn_close(conn, err);
    if (conn->state == NET_CONN_CLOSING)
        err = conn->why;
    conn->receiving = false;
    conn->ops->recv_done(conn, err, bytes);
    if (conn->state == NET_CONN_CLOSING)
        net_conn_closing(conn);
}

static void conn_received(struct loop_op *op)
{
    struct net_conn *conn = container_of(op, struct net_conn, recv_op);

    conn->bytes_in += op->bytes;
    net_conn_recv_end(conn, op->err, op->bytes);
}

void net_conn_recv(struct net_conn *conn, void *memory, uint32_t bytes, bool whole)
{
    check(conn->state != NET_CONN_CLOSED && bytes > 0);
    check(!conn->receiving);
    conn->receiving = true;
    if (conn->state == NET_CONN_CLOSING)
        return;
    if (conn->tls != NULL)
        net_tls_recv(conn->tls, memory, bytes, whole);
    else
        loop_recv(conn->loop, &conn->recv_op, conn->sock, memory, bytes, whole, conn_received);
}

void net_conn_recv_cancel(struct net_conn *conn)
{
    if (conn->tls != NULL)
        net_tls_recv_cancel(conn->tls);
    else if (loop_op_busy(&conn->recv_op))
        loop_op_cancel(&conn->recv_op);
}

/* ---- send ----------------------------------------------------------------------------------- */

/* Collects vectors of queued sends, leaving out what the kernel has; returns how many. */
static uint32_t conn_gather(struct net_conn *conn)
{
    uint64_t skip = conn->head_sent;
    uint32_t n = 0;

    list_for_each (link, &conn->sends) {
        const struct net_send *send = container_of(link, struct net_send, link);

        for (uint32_t i = 0; i < send->count; i++) {
            struct iovec vector = send->vectors[i];

            if (skip >= vector.iov_len) {
                skip -= vector.iov_len;
                continue;
            }
            if (n == NET_CONN_VECTORS)
                return n;
            conn->vectors[n].iov_base = (uint8_t *)vector.iov_base + skip;
            conn->vectors[n].iov_len = vector.iov_len - skip;
            n++;
            skip = 0;
        }
    }
    return n;
}

void net_conn_flush(struct net_conn *conn)
{
    uint32_t count;

    if (conn->state != NET_CONN_OPEN || conn->corked > 0 || loop_op_busy(&conn->send_op) ||
        list_empty(&conn->sends) || (conn->tls != NULL && !net_tls_is_open(conn->tls)))
        return;
    conn->send_at_ns = loop_now_ns(conn->loop);
    conn_timer_want(conn);
    count = conn_gather(conn);
    if (conn->tls != NULL)
        net_tls_send(conn->tls, count);
    else
        loop_sendv(conn->loop, &conn->send_op, conn->sock, conn->vectors, count, conn_sent);
}

/* Gives back the sends that the kernel has all of. */
static void conn_sent_bytes(struct net_conn *conn, uint32_t bytes)
{
    struct list *link;

    conn->head_sent += bytes;
    while ((link = list_first(&conn->sends)) != NULL) {
        struct net_send *send = container_of(link, struct net_send, link);

        if (conn->head_sent < send->bytes)
            return;
        conn->head_sent -= send->bytes;
        list_remove(link);
        send->done(send, ICMS_OK);
    }
    check(conn->head_sent == 0);
}

void net_conn_send_end(struct net_conn *conn, icms_err err, uint32_t bytes)
{
    if (conn->state == NET_CONN_OPEN && fault_hit("net.send"))
        err = ICMS_RESET;
    if (err != ICMS_OK)
        net_conn_close(conn, err);
    conn->corked++; /* what done callbacks send leaves together */
    conn_sent_bytes(conn, bytes);
    conn->corked--;
    if (conn->state == NET_CONN_CLOSING)
        net_conn_closing(conn);
    else
        net_conn_flush(conn);
}

static void conn_sent(struct loop_op *op)
{
    struct net_conn *conn = container_of(op, struct net_conn, send_op);

    net_conn_send_end(conn, op->err, op->bytes);
}

void net_conn_send(struct net_conn *conn, struct net_send *send)
{
    check(conn->state != NET_CONN_CLOSED);
    check(send->count >= 1 && send->count <= NET_SEND_VECTORS);
    send->bytes = 0;
    for (uint32_t i = 0; i < send->count; i++)
        send->bytes += send->vectors[i].iov_len;
    check(send->bytes > 0);
    list_init(&send->link);
    list_push(&conn->sends, &send->link);
    net_conn_flush(conn);
}

void net_conn_cork(struct net_conn *conn)
{
    conn->corked++;
}

void net_conn_uncork(struct net_conn *conn)
{
    check(conn->corked > 0);
    conn->corked--;
    net_conn_flush(conn);
}
