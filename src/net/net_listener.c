/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners: accept, hand over, and wait when there is no room.
 *
 * On the listener's loop; net_listener_rele from any thread. Life:
 *
 *   net_listener_open    CLOSED -> ACCEPT
 *   listener_accepted    ACCEPT -> ACCEPT, or PAUSE at the limit or after an error
 *   listener_retry       PAUSE -> ACCEPT, or PAUSE while at the limit; hands over what was held
 *   net_listener_close   -> CLOSING
 *   listener_end         CLOSING -> CLOSED
 *
 * Invariant: at most open_max connections are handed out and not given back. Giving back wakes
 * nobody; a listener at its limit looks again every NET_PAUSE_MIN_NS, which connections wait for in
 * the kernel's backlog. Several listeners may share a limit. Then one may reach it while the accept
 * of another is in flight: what that accepts is held, and is the first to be handed over.
 */
#include "net/net.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"

#define NET_PAUSE_MIN_NS ((uint64_t)10 * 1000 * 1000)
#define NET_PAUSE_MAX_NS ((uint64_t)1000 * 1000 * 1000)

static void listener_accept(struct net_listener *listener);

static void listener_pause(struct net_listener *listener, uint64_t pause_ns)
{
    listener->state = NET_LISTENER_PAUSE;
    loop_timer_start(listener->loop, &listener->timer, loop_now_ns(listener->loop) + pause_ns);
}

/* At the limit: true, and the listener pauses. */
static bool listener_full(struct net_listener *listener)
{
    if (atomic_load(&listener->limit->open) < listener->limit->open_max)
        return false;
    listener_pause(listener, NET_PAUSE_MIN_NS);
    return true;
}

static void listener_end(struct net_listener *listener)
{
    check(listener->state == NET_LISTENER_CLOSING);
    loop_sock_close(&listener->held);
    loop_sock_close(&listener->sock);
    listener->state = NET_LISTENER_CLOSED;
    if (listener->closed != NULL)
        listener->closed(listener);
}

static void listener_end_msg(struct loop_msg *msg)
{
    listener_end(container_of(msg, struct net_listener, msg));
}

/* Out of descriptors or memory: an accept would fail at once again, so wait longer each time. */
static void listener_failed(struct net_listener *listener)
{
    listener_pause(listener, listener->backoff_ns);
    listener->backoff_ns = u64_min(2 * listener->backoff_ns, NET_PAUSE_MAX_NS);
}

static void listener_hand_over(struct net_listener *listener, struct loop_sock *sock)
{
    listener->accepted++;
    atomic_fetch_add(&listener->limit->open, 1);
    listener->accept(listener, sock);
    if (listener->state != NET_LISTENER_CLOSING)
        listener_accept(listener);
}

static void listener_accepted(struct loop_op *op)
{
    struct net_listener *listener = container_of(op, struct net_listener, op);
    struct loop_sock *sock = op->sock;

    if (listener->state == NET_LISTENER_CLOSING) {
        if (op->err == ICMS_OK)
            loop_sock_close(&sock);
        listener_end(listener);
        return;
    }
    if (op->err != ICMS_OK) {
        listener_failed(listener);
        return;
    }
    if (fault_hit("net.accept")) {
        loop_sock_close(&sock);
        listener_failed(listener);
        return;
    }
    listener->backoff_ns = NET_PAUSE_MIN_NS;
    if (listener_full(listener))
        listener->held = sock;
    else
        listener_hand_over(listener, sock);
}

static void listener_accept(struct net_listener *listener)
{
    if (listener_full(listener))
        return;
    listener->state = NET_LISTENER_ACCEPT;
    loop_accept(listener->loop, &listener->op, listener->sock, listener_accepted);
}

static void listener_retry(struct loop_timer *timer)
{
    struct net_listener *listener = container_of(timer, struct net_listener, timer);
    struct loop_sock *held = listener->held;

    if (held == NULL) {
        listener_accept(listener);
    } else if (!listener_full(listener)) {
        listener->held = NULL;
        listener_hand_over(listener, held);
    }
}

icms_err net_listener_open(struct net_listener *listener, struct loop *loop,
                           const struct loop_addr *addr, uint32_t open_max,
                           void (*accept)(struct net_listener *listener, struct loop_sock *sock),
                           void *arg, struct err_why *why)
{
    icms_err err;

    check(open_max > 0);
    *listener = (struct net_listener){.state = NET_LISTENER_CLOSED,
                                      .loop = loop,
                                      .open_max = open_max,
                                      .backoff_ns = NET_PAUSE_MIN_NS,
                                      .arg = arg,
                                      .accept = accept};
    listener->limit = listener;
    err = loop_listen(loop_env(loop), addr, why, &listener->sock);
    if (err != ICMS_OK)
        return err;
    loop_timer_init(&listener->timer, listener_retry);
    listener_accept(listener);
    return ICMS_OK;
}

void net_listener_share(struct net_listener *listener, struct net_listener *other)
{
    check(listener->loop == other->loop && listener->accepted == 0 && other->limit == other);
    listener->limit = other;
}

void net_listener_addr(const struct net_listener *listener, struct loop_addr *out_addr)
{
    loop_sock_addr(listener->sock, out_addr);
}

void net_listener_rele(struct net_listener *listener)
{
    check(atomic_fetch_sub(&listener->limit->open, 1) > 0);
}

void net_listener_close(struct net_listener *listener,
                        void (*closed)(struct net_listener *listener))
{
    bool accepting = loop_op_busy(&listener->op);

    check(listener->state == NET_LISTENER_ACCEPT || listener->state == NET_LISTENER_PAUSE);
    listener->state = NET_LISTENER_CLOSING;
    listener->closed = closed;
    loop_timer_stop(listener->loop, &listener->timer);
    if (accepting)
        loop_op_cancel(&listener->op);
    else
        loop_send(listener->loop, &listener->msg, listener_end_msg);
}

void net_listener_fini(struct net_listener *listener)
{
    loop_sock_close(&listener->held);
    loop_sock_close(&listener->sock);
    listener->state = NET_LISTENER_CLOSED;
}
