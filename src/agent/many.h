/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/many.h: keys that another thread brings, at all reactors (many.c): hints of an operator
 * (prestage_many.c), and which of the keys the agent has itself (look.c). Private to the agent.
 */
#ifndef AGENT_MANY_H
#define AGENT_MANY_H

#include "agent/agent_int.h"

/* A reactor's part of an order. */
struct agent_many_part {
    struct loop_msg msg;
    struct agent_many *many;
    struct agent_shard *shard;
    size_t next; /* keys before it were looked at */
};

/* Keys that another thread brought, at all reactors; it owns itself. */
struct agent_many {
    struct agent *agent;
    uint32_t place;        /* in agent->many                                            */
    _Atomic uint32_t left; /* parts that are not over                                   */
    struct agent_many_part parts[LIMIT_LOOPS];
    /* For a key of the shard's reactor, on its loop. */
    void (*take)(struct agent_many *many, struct agent_shard *shard, size_t i);
    /* At the end, before it is freed; false: the loops were stopped before. NULL: none. */
    void (*over)(struct agent_many *many, bool is_whole);
    struct agent_wish wish; /* hints                                                    */
    void (*done)(void *arg, const struct agent_looked *looked); /* of agent_look_start */
    void *done_arg;
    uint8_t *answers; /* [count], zeros at the begin; of take                            */
    size_t count;
    struct key keys[];
};

/* An order, whose functions and fields the caller sets before agent_many_send. INVALID, NO_VOLUME,
 * CLOSED, NO_MEMORY, BUSY (AGENT_MANY are in flight), each with a sentence. user NULL: the owner.
 * Any thread. */
icms_err agent_many_new(struct agent *agent, const struct agent_user *user, const char *volume,
                        const struct key *keys, size_t count, struct err_why *why,
                        struct agent_many **out_many) ICMS_MUST_CHECK;

/* Each reactor takes its keys, and frees the order in the end. */
void agent_many_send(struct agent_many *many);

/* Frees what is left with loops that were stopped. */
void agent_many_forget(struct agent *agent);

#endif
