/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dialers: one connection attempt with a deadline.
 *
 * On the dialer's loop. Life: net_dial_start -> (dial_expire | net_dial_cancel)? -> dial_done. What
 * ends an attempt early only marks it and cancels the connect, so done comes from one place.
 */
#include "net/net.h"

#include "base/check.h"
#include "base/fault.h"

static void dial_end(struct net_dial *dial, icms_err why)
{
    if (!loop_op_busy(&dial->op) || dial->why != ICMS_OK)
        return;
    dial->why = why;
    loop_op_cancel(&dial->op);
}

static void dial_expire(struct loop_timer *timer)
{
    dial_end(container_of(timer, struct net_dial, timer), ICMS_DEADLINE);
}

static void dial_done(struct loop_op *op)
{
    struct net_dial *dial = container_of(op, struct net_dial, op);
    struct loop_sock *sock = op->sock;
    icms_err err = op->err;

    loop_timer_stop(dial->loop, &dial->timer);
    if (dial->why != ICMS_OK || (err == ICMS_OK && fault_hit("net.connect"))) {
        if (err == ICMS_OK)
            loop_sock_close(&sock);
        err = dial->why != ICMS_OK ? dial->why : ICMS_REFUSED;
    }
    dial->done(dial, err, err == ICMS_OK ? sock : NULL);
}

void net_dial_start(struct net_dial *dial, struct loop *loop, const struct loop_addr *addr,
                    uint64_t deadline_ns,
                    void (*done)(struct net_dial *dial, icms_err err, struct loop_sock *sock))
{
    *dial = (struct net_dial){.loop = loop, .addr = *addr, .done = done};
    loop_timer_init(&dial->timer, dial_expire);
    loop_timer_start(loop, &dial->timer, deadline_ns);
    loop_connect(loop, &dial->op, &dial->addr, dial_done);
}

void net_dial_cancel(struct net_dial *dial)
{
    dial_end(dial, ICMS_CANCELED);
}
