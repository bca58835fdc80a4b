/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/wait.c: who waits for something of which there is not enough: an operation, a batch, a
 * command of a batch, space in an arena.
 *
 * Called by op.c and match.c when one was given back, on the reactor's loop, and by slot.c for
 * space. Who waits does so in a line (base/line.h): volumes take turns by weight, the users of a
 * volume alike; for the space of a volume only users do. Who comes while another share waits waits
 * behind it, so what is given back goes to who is next, and not to who asks most often.
 *
 * A share is charged where something of it waited and took what it had waited for. A request that
 * needs space and an operation gives back the one while it waits for the other: for the turn that
 * it could not use its share is charged as for the least there is, so that it is charged once for
 * its bytes, and those who wait with it have their turns meanwhile.
 *
 * Invariants: who is woken is in no line, and is at the end of its share when it has to wait again.
 * While somebody waits for an operation, a batch or a command, and there is one, `wake` is in
 * flight.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

/* ---- lines ---------------------------------------------------------------------------------- */

uint32_t agent_member(const struct agent *agent, const struct agent_user_share *user)
{
    return user == NULL ? 0 : 1 + (uint32_t)(user - agent->users);
}

uint32_t agent_share(const struct agent_shard *shard, const struct agent_user_share *user)
{
    return shard->number * AGENT_MEMBERS + agent_member(shard->agent, user);
}

icms_err agent_reactor_lines_init(struct agent_reactor *reactor)
{
    const struct agent *agent = reactor->agent;
    struct line *lines[IO_CLASS_COUNT + 3] = {&reactor->wait_match, &reactor->wait_cmd,
                                              &reactor->wait_alone};
    size_t bytes = line_bytes(agent->volume_count, AGENT_MEMBERS);
    uint8_t *memory = malloc((IO_CLASS_COUNT + 3) * bytes);

    reactor->lines_memory = memory;
    if (memory == NULL)
        return ICMS_NO_MEMORY;
    for (int i = 0; i < IO_CLASS_COUNT; i++)
        lines[3 + i] = &reactor->wait_op[i];
    for (int i = 0; i < IO_CLASS_COUNT + 3; i++)
        line_init(lines[i], memory + i * bytes, agent->volume_count, AGENT_MEMBERS, agent->weights);
    return ICMS_OK;
}

icms_err agent_shard_lines_init(struct agent_shard *shard)
{
    size_t bytes = line_bytes(1, AGENT_MEMBERS);
    uint8_t *memory = malloc(2 * bytes);

    shard->lines_memory = memory;
    if (memory == NULL)
        return ICMS_NO_MEMORY;
    line_init(&shard->wait_slot, memory, 1, AGENT_MEMBERS, NULL);
    line_init(&shard->wait_share, memory + bytes, 1, AGENT_MEMBERS, NULL);
    return ICMS_OK;
}

void agent_line_wait(struct agent_waiter *waiter, struct line *line, uint32_t share)
{
    check(waiter->line == NULL && list_empty(&waiter->link));
    waiter->line = line;
    waiter->share = share;
    line_push(line, share, &waiter->link);
}

void agent_waiter_leave(struct agent_waiter *waiter)
{
    if (waiter->line != NULL)
        line_leave(waiter->line, waiter->share, &waiter->link);
    else
        list_remove(&waiter->link);
    waiter->line = NULL;
}

/* ---- waking --------------------------------------------------------------------------------- */

/* Wakes what is next in a line; NULL: nothing is. */
static struct list *wait_next(struct line *line, uint32_t *out_share)
{
    struct list *link = line_pop(line, out_share);
    struct agent_waiter *waiter;
    uint64_t bytes;

    if (link == NULL)
        return NULL;
    waiter = container_of(link, struct agent_waiter, link);
    waiter->line = NULL;
    bytes = waiter->wake(waiter, NULL);
    /* Only the pointer is looked at: who got what it waited for may be another's by now. */
    if (bytes > 0 || line->shares[*out_share].waiting.prev != link)
        line_charge(line, *out_share, bytes);
    return link;
}

void agent_line_wake(struct line *line, uint32_t past)
{
    struct list again, *link;
    uint32_t share;

    list_init(&again);
    while ((link = wait_next(line, &share)) != NULL) {
        if (line->shares[share].waiting.prev != link)
            continue;
        line_leave(line, share, link);
        list_push_front(&again, link);
        if (++line->shares[share].passed >= past)
            line_hold(line, share);
    }
    while ((link = list_pop(&again)) != NULL) {
        share = container_of(link, struct agent_waiter, link)->share;
        line->shares[share].passed = 0;
        line_push_front(line, share, link);
        line_release(line, share);
    }
}

bool agent_reactor_has_op(const struct agent_reactor *reactor, enum io_class io_class)
{
    /* Loads are never kept out by the others. */
    uint32_t ops_max = io_class == IO_CLASS_LOAD ? AGENT_OPS : AGENT_OPS_OTHERS;

    if (reactor->ops_used[io_class] >= ops_max || list_empty(&reactor->free_ops))
        return false;
    return io_class != IO_CLASS_STORE || reactor->agent->tier == NULL ||
           agent_tier_may_begin(reactor->agent->tier, reactor->ops_used[io_class]);
}

/* Where somebody waits for an operation and may have one now, loads before all; NULL: nowhere. */
static struct line *wait_op_first(struct agent_reactor *reactor)
{
    for (int i = 0; i < IO_CLASS_COUNT; i++)
        if (line_first(&reactor->wait_op[i]) != NULL &&
            agent_reactor_has_op(reactor, (enum io_class)i))
            return &reactor->wait_op[i];
    return NULL;
}

/* Where a batch waits that may go on, or a request that may have one; NULL: nowhere. */
static struct line *wait_match_first(struct agent_reactor *reactor)
{
    if (line_first(&reactor->wait_cmd) != NULL && !list_empty(&reactor->free_match_cmds))
        return &reactor->wait_cmd;
    if (line_first(&reactor->wait_alone) != NULL && agent_reactor_has_op(reactor, IO_CLASS_LOAD))
        return &reactor->wait_alone;
    if (line_first(&reactor->wait_match) != NULL && !list_empty(&reactor->free_matches))
        return &reactor->wait_match;
    return NULL;
}

/* Not everyone who looks again takes an operation, so all look for whom there is one. Who waits for
 * an operation does not hold up who waits for a command, nor the other way round. */
static void reactor_wake(struct loop_msg *msg)
{
    struct agent_reactor *reactor = container_of(msg, struct agent_reactor, wake);
    struct line *line;
    uint32_t share;

    reactor->wake_sent = false;
    reactor->waking = true;
    for (int i = 0; i < AGENT_WAKE_MAX && (line = wait_op_first(reactor)) != NULL; i++)
        (void)wait_next(line, &share);
    for (int i = 0; i < AGENT_WAKE_MAX && (line = wait_match_first(reactor)) != NULL; i++)
        (void)wait_next(line, &share);
    reactor->waking = false;
    agent_reactor_wake(reactor);
}

void agent_reactor_wake(struct agent_reactor *reactor)
{
    if (reactor->wake_sent || (wait_op_first(reactor) == NULL && wait_match_first(reactor) == NULL))
        return;
    reactor->wake_sent = true;
    loop_send(reactor->loop, &reactor->wake, reactor_wake);
}
