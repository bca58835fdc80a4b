/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/look.c: which blocks of a prefix the agent has itself, for routers that choose a server.
 *
 * agent_look_start is called by any thread; the keys are looked for on the reactors' loops, in
 * memory and in the index of the own drive: no I/O, and nobody else is asked.
 */
#include "agent/agent_int.h"
#include "agent/many.h"

/* Where a block is: an answer for each key. */
enum look_at {
    LOOK_NOWHERE,
    LOOK_LOCAL, /* on the own drive, and not in memory */
    LOOK_DRAM,
};

static void look_take(struct agent_many *many, struct agent_shard *shard, size_t i)
{
    const struct key *key = &many->keys[i];
    const struct agent_local *local = shard->agent->local;

    if (!agent_shard_is_there(shard))
        return;
    if (agent_shard_find(shard, key) != SHM_SLOT_NONE)
        many->answers[i] = LOOK_DRAM;
    else if (agent_op_find(shard, key, AGENT_OP_DELETE) != NULL)
        return;
    else if (agent_tier_has(shard, key) ||
             (local != NULL && store_exists(local->store, shard->number, key, NULL)))
        many->answers[i] = LOOK_LOCAL;
}

static void look_over(struct agent_many *many, bool is_whole)
{
    struct agent_looked looked = {0};

    while (looked.dram < many->count && many->answers[looked.dram] == LOOK_DRAM)
        looked.dram++;
    looked.local = looked.dram;
    while (looked.local < many->count && many->answers[looked.local] != LOOK_NOWHERE)
        looked.local++;
    many->done(many->done_arg, is_whole ? &looked : NULL);
}

icms_err agent_look_start(struct agent *agent, const struct agent_user *user, const char *volume,
                          const struct key *keys, size_t count, struct err_why *why,
                          void (*done)(void *arg, const struct agent_looked *looked), void *arg)
{
    struct agent_many *many;
    icms_err err = agent_many_new(agent, user, volume, keys, count, why, &many);

    if (err != ICMS_OK)
        return err;
    many->take = look_take;
    many->over = look_over;
    many->done = done;
    many->done_arg = arg;
    agent_many_send(many);
    return ICMS_OK;
}
