/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net/net_rig.h: what tests over a loop share: one loop of a rig, calls on it, connected pairs.
 *
 * For tests of net and nvmf. Bodies run on the main thread and touch a test's state only inside
 * net_rig_call, or before the loop starts; counters that they wait for are atomic.
 */
#ifndef NET_NET_RIG_H
#define NET_NET_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "loop/loop_test.h"
#include "net/net.h"

#define NET_RIG_MS 1000000u

static inline void net_rig_start(struct rig *rig)
{
    struct err_why why = {""};
    struct loop_opts opts;

    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &rig->loop[0]), ICMS_OK);
    assert_int_equal(loop_start(rig->loop[0], NULL), ICMS_OK);
}

/* Ends the loop; the test frees its sockets afterwards. */
static inline void net_rig_end(struct rig *rig)
{
    loop_stop(rig->loop[0]);
    loop_join(rig->loop[0]);
    loop_free(&rig->loop[0]);
}

struct net_rig_call {
    struct loop_msg msg;
    void (*run)(void *arg);
    void *arg;
    atomic_int ran;
};

static inline void net_rig_call_run(struct loop_msg *msg)
{
    struct net_rig_call *call = container_of(msg, struct net_rig_call, msg);

    call->run(call->arg);
    atomic_store(&call->ran, 1);
}

static inline bool net_rig_flag(void *arg)
{
    return atomic_load((atomic_int *)arg) != 0;
}

/* Runs a function on the loop and waits for its end. */
static inline void net_rig_call(struct rig *rig, void (*run)(void *arg), void *arg)
{
    struct net_rig_call call = {.run = run, .arg = arg};

    loop_send(rig->loop[0], &call.msg, net_rig_call_run);
    assert_true(rig->until(rig, net_rig_flag, &call.ran));
}

struct net_rig_count {
    atomic_int *count;
    int want;
};

static inline bool net_rig_reached(void *arg)
{
    struct net_rig_count *count = arg;

    return atomic_load(count->count) >= count->want;
}

/* Waits until a counter has reached a number. */
static inline void net_rig_wait(struct rig *rig, atomic_int *count, int want)
{
    struct net_rig_count wanted = {count, want};

    assert_true(rig->until(rig, net_rig_reached, &wanted));
}

/* Two ends of one connection. */
struct net_rig_pair {
    struct rig *rig;
    struct net_listener listener;
    struct net_dial dial;
    struct loop_sock *sock[2]; /* dialed, accepted */
    atomic_int ready;          /* of both          */
    atomic_int closed;         /* the listener     */
};

static inline void net_rig_accepted(struct net_listener *listener, struct loop_sock *sock)
{
    struct net_rig_pair *pair = listener->arg;

    pair->sock[1] = sock;
    atomic_fetch_add(&pair->ready, 1);
}

static inline void net_rig_dialed(struct net_dial *dial, icms_err err, struct loop_sock *sock)
{
    struct net_rig_pair *pair = container_of(dial, struct net_rig_pair, dial);

    check(err == ICMS_OK);
    pair->sock[0] = sock;
    atomic_fetch_add(&pair->ready, 1);
}

static inline void net_rig_listener_closed(struct net_listener *listener)
{
    struct net_rig_pair *pair = container_of(listener, struct net_rig_pair, listener);

    atomic_fetch_add(&pair->closed, 1);
}

static inline void net_rig_pair_start(void *arg)
{
    struct net_rig_pair *pair = arg;
    struct loop *loop = pair->rig->loop[0];
    struct loop_addr addr = {.port = 0};

    (void)strncpy(addr.host, pair->rig->host, sizeof(addr.host) - 1);
    check(net_listener_open(&pair->listener, loop, &addr, 4, net_rig_accepted, pair, NULL) ==
          ICMS_OK);
    net_listener_addr(&pair->listener, &addr);
    net_dial_start(&pair->dial, loop, &addr, loop_now_ns(loop) + 5000u * (uint64_t)NET_RIG_MS,
                   net_rig_dialed);
}

static inline void net_rig_pair_stop(void *arg)
{
    struct net_rig_pair *pair = arg;

    net_listener_close(&pair->listener, net_rig_listener_closed);
}

/* Connects both ends; their sockets are the caller's. */
static inline void net_rig_pair(struct rig *rig, struct net_rig_pair *pair)
{
    memset(pair, 0, sizeof(*pair));
    pair->rig = rig;
    net_rig_call(rig, net_rig_pair_start, pair);
    net_rig_wait(rig, &pair->ready, 2);
    net_rig_call(rig, net_rig_pair_stop, pair);
    net_rig_wait(rig, &pair->closed, 1);
}

static inline uint64_t net_rig_random(uint64_t *seed)
{
    *seed += 0x9e3779b97f4a7c15u;
    return hash64_mix(*seed);
}

/* Byte i of the stream that tests send. */
static inline uint8_t net_rig_byte(uint64_t i)
{
    return (uint8_t)(hash64_mix(i >> 3) >> (i % 8 * 8));
}

#endif
