/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether reactors run: asked by the main thread of a daemon, looked at by it and by the HTTP
 * thread. A reactor's part is one message: it clears asked_ns.
 */
#include "ctl/heartbeat.h"

#include "base/check.h"

void ctl_heartbeat_init(struct ctl_heartbeat *heartbeat, struct loop_env *env, uint64_t late_ns)
{
    heartbeat->env = env;
    heartbeat->late_ns = late_ns;
    heartbeat->count = 0;
    atomic_init(&heartbeat->asked_ns, 0);
}

void ctl_heartbeat_add(struct ctl_heartbeat *heartbeat, struct loop *loop)
{
    struct ctl_reactor *reactor = &heartbeat->reactors[heartbeat->count];

    check(heartbeat->count < LIMIT_LOOPS && atomic_load(&heartbeat->asked_ns) == 0);
    reactor->loop = loop;
    atomic_init(&reactor->asked_ns, 0);
    heartbeat->count++;
}

static void reactor_answer(struct loop_msg *msg)
{
    struct ctl_reactor *reactor = container_of(msg, struct ctl_reactor, msg);

    atomic_store_explicit(&reactor->asked_ns, 0, memory_order_release);
}

static uint64_t heartbeat_now_ns(const struct ctl_heartbeat *heartbeat)
{
    uint64_t now_ns = loop_env_now_ns(heartbeat->env);

    return now_ns == 0 ? 1 : now_ns;
}

void ctl_heartbeat_ask(struct ctl_heartbeat *heartbeat)
{
    uint64_t now_ns = heartbeat_now_ns(heartbeat);

    for (uint32_t i = 0; i < heartbeat->count; i++) {
        struct ctl_reactor *reactor = &heartbeat->reactors[i];

        if (atomic_load_explicit(&reactor->asked_ns, memory_order_acquire) != 0)
            continue;
        atomic_store_explicit(&reactor->asked_ns, now_ns, memory_order_relaxed);
        loop_send(reactor->loop, &reactor->msg, reactor_answer);
    }
    atomic_store_explicit(&heartbeat->asked_ns, now_ns, memory_order_release);
}

void ctl_heartbeat_end(struct ctl_heartbeat *heartbeat)
{
    atomic_store_explicit(&heartbeat->asked_ns, 0, memory_order_release);
}

bool ctl_heartbeat_alive(struct ctl_heartbeat *heartbeat, struct err_why *why)
{
    uint64_t asked_ns = atomic_load_explicit(&heartbeat->asked_ns, memory_order_acquire);
    uint64_t now_ns = heartbeat_now_ns(heartbeat);

    if (asked_ns == 0)
        return true;
    for (uint32_t i = 0; i < heartbeat->count; i++) {
        uint64_t since_ns =
            atomic_load_explicit(&heartbeat->reactors[i].asked_ns, memory_order_relaxed);

        if (since_ns == 0 || now_ns < since_ns + heartbeat->late_ns)
            continue;
        (void)err_set(why, ICMS_DEADLINE, "reactor %u is stuck: it has not answered for %.1f s", i,
                      (double)(now_ns - since_ns) / 1e9);
        return false;
    }
    if (now_ns < asked_ns + CTL_HEARTBEAT_ASK_NS + heartbeat->late_ns)
        return true;
    (void)err_set(why, ICMS_DEADLINE,
                  "the main thread is stuck: it has asked no reactor for %.1f s",
                  (double)(now_ns - asked_ns) / 1e9);
    return false;
}
