/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/access.h: what users of this machine may use, and what part of it each of them has.
 */
#ifndef AGENT_ACCESS_H
#define AGENT_ACCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "agent/agent.h"
#include "base/err.h"
#include "base/limits.h"

struct agent;
struct agent_client;
struct agent_user;

/* All clients of one user. A place that has none may go to another user, and keeps the stores that
 * are still in flight. */
struct agent_user_share {
    uint32_t clients; /* under agent->control                                                  */
    bool is_known;    /* it has had clients; under agent->control, as all until backlog_bytes  */
    bool owner;       /* the agent's own user, or root                                         */
    uint32_t uid;     /* else                                                                  */
    _Atomic uint32_t number; /* of users that had the place: pins of others are over             */
    struct agent_user_stats before[LIMIT_AGENT_VOLUMES]; /* what others with this place did, by
                                                            volume                             */
    uint64_t hit_bytes[LIMIT_AGENT_VOLUMES];             /* by its clients' counters           */
    _Atomic uint64_t backlog_bytes[LIMIT_AGENT_VOLUMES]; /* of agent->backlog_bytes, by volume */
};

/* Bit i: the user may use volume i. NULL: this process. Any thread. */
uint64_t agent_access(const struct agent *agent, const struct agent_user *user);

/* Takes so many bytes of the backlog of stores for a user of a volume; false: the backlog is full,
 * and the user has more than its part there. Volumes that have stores in flight have parts by
 * weight, and the users of a volume that have any have the same. So one alone may have all of it,
 * and one that comes then has its part on top. Any reactor. */
bool agent_backlog_take(struct agent *agent, struct agent_user_share *user, uint32_t volume,
                        uint64_t bytes);
void agent_backlog_give(struct agent *agent, struct agent_user_share *user, uint32_t volume,
                        uint64_t bytes);

/* Whether it would be refused now. */
bool agent_backlog_full(const struct agent *agent, const struct agent_user_share *user,
                        uint32_t volume, uint64_t bytes);

/* A client that is free, marked as the user's. Under agent->control. */
icms_err agent_access_client(struct agent *agent, const struct agent_user *user,
                             struct err_why *why, struct agent_client **out_client) ICMS_MUST_CHECK;

#endif
