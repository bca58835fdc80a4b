/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/wait.h: who waits for something of which there is not enough, and whose turn it is.
 *
 * Members of a line's groups are users (below). On a reactor's loop.
 *
 * Shares. All clients of one uid are one user (struct agent_user_share); root and the agent's own
 * user are one, too. A share is a user of a volume. Where shares wait for something, volumes take
 * turns by their `weight` and by bytes, the users of a volume alike, and requests of one share in
 * order: base/line.h. Who comes while another share waits waits behind it. What nobody else waits
 * for is free: one share alone may have all of it.
 *
 * What is scarce, who waits for it, and where:
 * - the backlog of stores (`store_backlog`): nobody. While it is full, stores of a share are
 *   shed if it holds more than its part (agent_backlog_take()). One value of a share is always
 *   taken
 * - operations of a reactor, by class: requests, in agent_reactor.wait_op
 * - batches of exists and their commands: requests and batches, in wait_match, wait_cmd and
 *   wait_alone
 * - space in the arena of a volume: requests of its users, in agent_shard.wait_slot and
 *   wait_share
 * - places in a queue pair to an enclosure: commands, by nvmf_req.share. What the enclosure has
 *   already is not taken back: 127 commands a queue pair by default
 * - buffers of an own drive: operations, in agent_local.waiting
 * - time of a reactor: nobody. Rings are polled in turn, of one at most AGENT_TAKE_ROUND times
 *   before others have theirs (qpair_run())
 *
 * Not shared by user: which blocks of a volume stay in its arena (the least recently used goes,
 * whoever stored it: blocks of a volume serve all of its users; between volumes `memory_min` and
 * `memory_max` decide), and leases: a client holds 512 slots at most, and `user_clients_max` bounds
 * the clients of a user.
 */
#ifndef AGENT_WAIT_H
#define AGENT_WAIT_H

#include "agent/agent.h"
#include "base/check.h"
#include "base/err.h"
#include "base/line.h"
#include "base/types.h"

struct agent;
struct agent_op;
struct agent_reactor;
struct agent_shard;
struct agent_user_share;

/* Members of a group: the agent itself, and users. */
#define AGENT_MEMBERS (1 + AGENT_USERS)

/* Of a turn: what looking for a key costs. */
#define AGENT_KEY_COST_BYTES ((uint64_t)1024)

/* Something that waits, in a list or in a line. Whoever owns that takes it out and calls wake, on
 * the loop. */
struct agent_waiter {
    struct list link;
    struct line *line; /* where it waits; NULL: in a list, or nowhere             */
    uint32_t share;    /* whose it is there                                       */
    /* op: the operation that is over, when it waited for that; else NULL. Returns the bytes that
     * its share is charged for in the line where it waited: of what it took. 0: it took nothing,
     * or has to wait for something else first. */
    uint64_t (*wake)(struct agent_waiter *waiter, struct agent_op *op);
    /* It waits for a load, of which more is in its slot (op->arrived_bytes). NULL: it does not want
     * to know. */
    void (*came)(struct agent_waiter *waiter, const struct agent_op *op);
};

/* A user as a member of a line's group. NULL: the agent itself. */
uint32_t agent_member(const struct agent *agent, const struct agent_user_share *user);

/* A user of a volume as a share of a line in which volumes share. */
uint32_t agent_share(const struct agent_shard *shard, const struct agent_user_share *user);

/* Memory for the lines of a reactor, and of a shard; after an error fini all the same. */
icms_err agent_reactor_lines_init(struct agent_reactor *reactor) ICMS_MUST_CHECK;
icms_err agent_shard_lines_init(struct agent_shard *shard) ICMS_MUST_CHECK;

/* It waits in a line, as one of a share. */
void agent_line_wait(struct agent_waiter *waiter, struct line *line, uint32_t share);

/* It waits no more, wherever it did. */
void agent_waiter_leave(struct agent_waiter *waiter);

/* Takes it out of its list and wakes it. */
static inline void agent_waiter_wake(struct list *link, struct agent_op *op)
{
    struct agent_waiter *waiter = container_of(link, struct agent_waiter, link);

    list_remove(link);
    (void)waiter->wake(waiter, op);
}

/* Wakes who waits in a line, turn by turn, until so many of each share have to wait there again;
 * these stay in front. */
void agent_line_wake(struct line *line, uint32_t past);

/* Whether there is an operation for this class. */
bool agent_reactor_has_op(const struct agent_reactor *reactor, enum io_class io_class);

/* Something was given back: whoever waits for it looks, after what runs now. */
void agent_reactor_wake(struct agent_reactor *reactor);

#endif
