/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/many.c: keys that another thread brings, at all reactors: hints of an operator, and the
 * question which blocks the agent has itself.
 *
 * Called by prestage_many.c and look.c on any thread; many_part_run is on the reactors' loops.
 *
 * Life of an order: agent_many_new (checked, and a place taken) -> agent_many_send -> many_part_run
 * at each reactor, in slices -> the last one calls over and frees it. What is with loops that were
 * stopped is freed by agent_many_forget.
 *
 * Invariant: agent->many names each order from agent_many_new until it is freed, so there are
 * AGENT_MANY at most.
 */
#include "agent/agent_int.h"
#include "agent/many.h"

#include <stdlib.h>
#include <string.h>

/* Keys that a reactor takes before others have their turn. */
#define MANY_SLICE 512

static void many_free(struct agent_many *many, bool is_whole)
{
    if (many->over != NULL)
        many->over(many, is_whole);
    atomic_store(&many->agent->many[many->place], NULL);
    free(many);
}

static void many_part_run(struct loop_msg *msg)
{
    struct agent_many_part *part = container_of(msg, struct agent_many_part, msg);
    struct agent_many *many = part->many;
    size_t end = u64_min(part->next + MANY_SLICE, many->count);

    for (; part->next < end; part->next++)
        if (agent_shard_owns(part->shard, &many->keys[part->next]))
            many->take(many, part->shard, part->next);
    if (part->next < many->count)
        loop_send(part->shard->reactor->loop, &part->msg, many_part_run);
    else if (atomic_fetch_sub(&many->left, 1) == 1)
        many_free(many, true);
}

/* What is wrong with keys; *out_volume: the number of their volume. */
static icms_err many_check(const struct agent *agent, const struct agent_user *user,
                           const char *name, const struct key *keys, size_t count,
                           struct err_why *why, uint32_t *out_volume)
{
    uint64_t volumes = agent_access(agent, user);
    uint32_t volume = 0;

    for (size_t i = 0; i < count; i++)
        if (keys[i].length < 1 || keys[i].length > LIMIT_KEY_BYTES)
            return err_set(why, ICMS_INVALID, "key %zu: a key has 1 to %d bytes", i,
                           LIMIT_KEY_BYTES);
    while (volume < agent->volume_count &&
           ((volumes >> volume & 1) == 0 || strcmp(agent->volumes[volume].spec.name, name) != 0))
        volume++;
    if (volume == agent->volume_count)
        return err_set(why, ICMS_NO_VOLUME, "this agent has no volume %.63s", name);
    if (atomic_load_explicit(&agent->draining, memory_order_relaxed))
        return err_set(why, ICMS_CLOSED, "the agent is draining");
    *out_volume = volume;
    return ICMS_OK;
}

/* A place for the order; false: all are taken. */
static bool many_place(struct agent *agent, struct agent_many *many)
{
    for (many->place = 0; many->place < AGENT_MANY; many->place++) {
        void *none = NULL;

        if (atomic_compare_exchange_strong(&agent->many[many->place], &none, many))
            return true;
    }
    return false;
}

icms_err agent_many_new(struct agent *agent, const struct agent_user *user, const char *volume,
                        const struct key *keys, size_t count, struct err_why *why,
                        struct agent_many **out_many)
{
    uint32_t number = 0;
    icms_err err = many_check(agent, user, volume, keys, count, why, &number);
    struct agent_many *many;

    if (err != ICMS_OK)
        return err;
    many = calloc(1, sizeof(*many) + count * (sizeof(keys[0]) + 1));
    if (many == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %zu keys", count);
    many->agent = agent;
    many->left = agent->reactor_count;
    many->count = count;
    memcpy(many->keys, keys, count * sizeof(keys[0]));
    many->answers = (uint8_t *)&many->keys[count];
    for (uint32_t i = 0; i < agent->reactor_count; i++)
        many->parts[i] =
            (struct agent_many_part){.many = many, .shard = &agent->reactors[i].shards[number]};
    if (!many_place(agent, many)) {
        free(many);
        return err_set(why, ICMS_BUSY, "%d requests wait already; try again later", AGENT_MANY);
    }
    *out_many = many;
    return ICMS_OK;
}

void agent_many_send(struct agent_many *many)
{
    struct agent *agent = many->agent;
    uint32_t reactor_count = agent->reactor_count;

    /* After the last one it may be freed. */
    for (uint32_t i = 0; i < reactor_count; i++)
        loop_send(agent->reactors[i].loop, &many->parts[i].msg, many_part_run);
}

void agent_many_forget(struct agent *agent)
{
    for (uint32_t i = 0; i < AGENT_MANY; i++) {
        struct agent_many *many = atomic_load(&agent->many[i]);

        if (many != NULL)
            many_free(many, false);
    }
}
