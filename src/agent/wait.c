/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/wait.c: who waits for something of which a reactor has a fixed number: an operation, a
 * batch, a command of a batch.
 *
 * Called by op.c and match.c when one was given back, on the reactor's loop; slot.c wakes those
 * that wait for memory in the same way.
 *
 * Invariant: who is woken is in no list, and is at the end of its list when it has to wait again.
 */
#include "agent/agent_int.h"

void agent_waiters_wake(struct list *list, int past)
{
    struct list again, *link;

    list_init(&again);
    for (int waits = 0; waits < past && (link = list_first(list)) != NULL;) {
        agent_waiter_wake(link, NULL);
        /* Only the pointer is looked at: who got what it waited for may be another's by now. */
        if (list->prev == link) {
            list_remove(link);
            list_push_front(&again, link);
            waits++;
        }
    }
    while ((link = list_pop(&again)) != NULL)
        list_push_front(list, link);
}

bool agent_reactor_has_op(const struct agent_reactor *reactor, enum io_class io_class)
{
    /* Loads are never kept out by the others. */
    uint32_t ops_max = io_class == IO_CLASS_LOAD ? AGENT_OPS : AGENT_OPS / 4;

    return reactor->ops_used[io_class] < ops_max && !list_empty(&reactor->free_ops);
}

/* The first that waits for an operation and may have one now, loads before all; NULL: nobody. */
static struct list *wait_op_first(const struct agent_reactor *reactor)
{
    for (int i = 0; i < IO_CLASS_COUNT; i++)
        if (!list_empty(&reactor->wait_op[i]) && agent_reactor_has_op(reactor, (enum io_class)i))
            return reactor->wait_op[i].next;
    return NULL;
}

/* Whether a batch may go on, or a request may have one. */
static bool wait_match_any(const struct agent_reactor *reactor)
{
    return (!list_empty(&reactor->wait_cmd) && !list_empty(&reactor->free_match_cmds)) ||
           (!list_empty(&reactor->wait_alone) && agent_reactor_has_op(reactor, IO_CLASS_LOAD)) ||
           (!list_empty(&reactor->wait_match) && !list_empty(&reactor->free_matches));
}

/* Not everyone who looks again takes an operation, so all look for whom there is one. Who waits for
 * an operation does not hold up who waits for a command, nor the other way round. */
static void reactor_wake(struct loop_msg *msg)
{
    struct agent_reactor *reactor = container_of(msg, struct agent_reactor, wake);
    struct list *link;

    reactor->wake_sent = false;
    for (int i = 0; i < AGENT_WAKE_MAX && (link = wait_op_first(reactor)) != NULL; i++)
        agent_waiter_wake(link, NULL);
    agent_waiters_wake(&reactor->wait_cmd, 1);
    agent_waiters_wake(&reactor->wait_alone, 1);
    while (!list_empty(&reactor->free_matches) && (link = list_first(&reactor->wait_match)) != NULL)
        agent_waiter_wake(link, NULL);
    if (wait_op_first(reactor) != NULL)
        agent_reactor_wake(reactor);
}

void agent_reactor_wake(struct agent_reactor *reactor)
{
    if (reactor->wake_sent || (wait_op_first(reactor) == NULL && !wait_match_any(reactor)))
        return;
    reactor->wake_sent = true;
    loop_send(reactor->loop, &reactor->wake, reactor_wake);
}
