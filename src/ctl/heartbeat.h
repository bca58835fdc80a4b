/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl/heartbeat.h: whether the reactors of a daemon still run. One thread asks each of them now and
 * then with a message; a reactor that does not answer in time is stuck. /healthz and the service
 * manager's watchdog follow it.
 *
 *     ctl_heartbeat_init(); ctl_heartbeat_add() for each loop
 *     ctl_heartbeat_ask() at least every CTL_HEARTBEAT_ASK_NS, on one thread, while the loops run
 *     ctl_heartbeat_alive() on any thread
 *     the loops are freed, then the memory of the heartbeat
 */
#ifndef CTL_HEARTBEAT_H
#define CTL_HEARTBEAT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/limits.h"
#include "loop/loop.h"

#define CTL_HEARTBEAT_ASK_NS  ((uint64_t)1 * 1000 * 1000 * 1000)
#define CTL_HEARTBEAT_LATE_NS ((uint64_t)5 * 1000 * 1000 * 1000)

struct ctl_reactor {
    struct loop *loop;
    struct loop_msg msg;       /* to the loop; in flight while asked_ns is not 0     */
    _Atomic uint64_t asked_ns; /* when it was sent; 0: answered                      */
};

struct ctl_heartbeat {
    struct loop_env *env;
    uint64_t late_ns;          /* a reactor that takes longer to answer is stuck     */
    _Atomic uint64_t asked_ns; /* when all were asked; 0: not yet                    */
    uint32_t count;
    struct ctl_reactor reactors[LIMIT_LOOPS];
};

void ctl_heartbeat_init(struct ctl_heartbeat *heartbeat, struct loop_env *env, uint64_t late_ns);
void ctl_heartbeat_add(struct ctl_heartbeat *heartbeat, struct loop *loop);

/* Asks each reactor that owes no answer. */
void ctl_heartbeat_ask(struct ctl_heartbeat *heartbeat);

/* No one is asked any more: the daemon drains. Of the thread that asked. */
void ctl_heartbeat_end(struct ctl_heartbeat *heartbeat);

/* False, and why says which reactor and for how long, when one owes an answer for too long, or when
 * they are asked no more. True before the first ctl_heartbeat_ask and after
 * ctl_heartbeat_end. Any thread. */
bool ctl_heartbeat_alive(struct ctl_heartbeat *heartbeat, struct err_why *why);

#endif
