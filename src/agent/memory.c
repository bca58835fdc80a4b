/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/memory.c: the memory of volumes: who shares an arena with whom, and how large each is.
 *
 * Called by agent.c before the loops run and after they ended.
 *
 * An arena is a region that clients map. What a client has mapped it can read for as long as it
 * likes, and nothing can be taken out of a region: the seal that keeps clients from writing forbids
 * to punch holes (fallocate and MADV_REMOVE give EPERM), and who reads a hole would fill it again.
 * So memory can serve one volume after the other only where the same users may use both: volumes
 * share an arena when they have the same users and groups. Each such group of volumes has its
 * floors, and of what all floors leave as much a volume as any other group. Where that is enough
 * for all ceilings of a group, and for a volume that is alone, nothing is shared: each has its own
 * arena. Regions never have more memory than their size, so nothing has to be counted.
 *
 * Invariant: arenas have no more data than memory_bytes, and nothing else holds blocks.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

/* ---- arenas --------------------------------------------------------------------------------- */

static bool ids_are_in(const struct local_id *ids, uint32_t count, const struct local_id *others,
                       uint32_t other_count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = 0;

        while (j < other_count && ids[i].id != others[j].id)
            j++;
        if (j == other_count)
            return false;
    }
    return true;
}

/* Whether the same users may use both. */
static bool volumes_are_alike(const struct volume_spec *a, const struct volume_spec *b)
{
    return ids_are_in(a->users, a->user_count, b->users, b->user_count) &&
           ids_are_in(b->users, b->user_count, a->users, a->user_count) &&
           ids_are_in(a->groups, a->group_count, b->groups, b->group_count) &&
           ids_are_in(b->groups, b->group_count, a->groups, a->group_count);
}

/* Of slabs that a part's data is cut into: not less than the largest block. */
static uint64_t slab_bytes_of(uint64_t data_bytes, uint64_t largest)
{
    return u64_max(largest, bytes_align(data_bytes / AGENT_SLABS, LIMIT_DISK_ALIGN));
}

uint32_t agent_memory_floor_slabs(const struct agent *agent, const struct agent_volume *volume)
{
    uint64_t slab_bytes = agent->arenas[volume->arena].slab_bytes;
    uint64_t bytes = u64_max(volume->memory_bytes_min / agent->reactor_count, 1);

    return (uint32_t)((bytes + slab_bytes - 1) / slab_bytes);
}

/* Cuts the data of a part into slabs. */
static icms_err arena_slabs(struct agent *agent, struct agent_arena *arena, uint64_t volumes,
                            uint64_t largest, struct err_why *why)
{
    const char *name = "";
    uint64_t floors = 0;

    arena->slab_bytes = slab_bytes_of(arena->data_bytes, largest);
    arena->slab_count = (uint32_t)(arena->data_bytes / arena->slab_bytes);
    for (uint32_t i = 0; i < agent->volume_count; i++) {
        if ((volumes >> i & 1) == 0)
            continue;
        agent->volumes[i].arena = (uint32_t)(arena - agent->arenas);
        floors += agent_memory_floor_slabs(agent, &agent->volumes[i]);
        name = agent->volumes[i].spec.name;
    }
    if (floors > arena->slab_count)
        return err_set(why, ICMS_CONFIG,
                       "memory: volume %s and those that share memory with it have %llu KiB of it "
                       "for each of %u loops, and need %llu pieces of %llu KiB, which hold their "
                       "largest block and their memory_min: give it more, or take a smaller "
                       "value_max or memory_min or fewer loops",
                       name, (unsigned long long)(arena->data_bytes >> 10), agent->reactor_count,
                       (unsigned long long)floors, (unsigned long long)(arena->slab_bytes >> 10));
    arena->data_bytes = arena->slab_count * arena->slab_bytes;
    return ICMS_OK;
}

/* The largest block of these volumes. */
static uint64_t group_largest(const struct agent *agent, uint64_t volumes)
{
    uint64_t largest = 0;

    for (uint32_t i = 0; i < agent->volume_count; i++)
        if ((volumes >> i & 1) != 0)
            largest = u64_max(largest, agent->volumes[i].extent_bytes_max);
    return largest;
}

/* Lays out the arena of these volumes. */
static icms_err arena_plan(struct agent *agent, uint64_t volumes, uint64_t bytes,
                           struct err_why *why)
{
    struct agent_arena *arena = &agent->arenas[agent->arena_count++];
    uint64_t largest = group_largest(agent, volumes);
    icms_err err = ICMS_OK;

    arena->data_bytes =
        u64_max(bytes / agent->reactor_count / LIMIT_DISK_ALIGN * LIMIT_DISK_ALIGN, largest);
    if ((volumes & (volumes - 1)) != 0)
        err = arena_slabs(agent, arena, volumes, largest, why);
    if (err != ICMS_OK)
        return err;
    for (uint32_t i = 0; i < agent->volume_count; i++) {
        struct agent_volume *volume = &agent->volumes[i];
        uint64_t bytes_max = u64_max(volume->memory_bytes_max / agent->reactor_count, largest);

        if ((volumes >> i & 1) == 0)
            continue;
        volume->arena = agent->arena_count - 1;
        volume->offset = arena->shards_bytes;
        volume->shard_bytes_max = u64_min(arena->data_bytes, bytes_max);
        arena->shards_bytes += shm_shard_bytes(volume->shard_bytes_max);
        arena->name = volume->spec.name;
    }
    arena->part_bytes = shm_part_bytes(arena->shards_bytes, arena->data_bytes);
    return ICMS_OK;
}

/* Takes the memory of an arena that was laid out. */
static icms_err arena_take(struct agent *agent, struct agent_arena *arena, struct err_why *why)
{
    icms_err err =
        loop_region_new(agent->env, arena->name, agent->reactor_count * arena->part_bytes, false,
                        why, &arena->region);

    if (err == ICMS_OK && agent->opts.prefault && loop_region_touch(arena->region) != ICMS_OK)
        err = err_set(why, ICMS_NO_MEMORY,
                      "volume %s: there are no %llu MiB for its arena: give it less memory, or "
                      "leave prefault out",
                      arena->name, (unsigned long long)(loop_region_bytes(arena->region) >> 20));
    return err;
}

/* Of these volumes one whose ceiling has no space for a slab; volume_count: there is none. */
static uint32_t group_small(const struct agent *agent, uint64_t volumes, uint64_t bytes)
{
    uint64_t slab_bytes =
        slab_bytes_of(bytes / agent->reactor_count, group_largest(agent, volumes));
    uint32_t i = 0;

    while (i < agent->volume_count &&
           ((volumes >> i & 1) == 0 ||
            agent->volumes[i].memory_bytes_max / agent->reactor_count >= slab_bytes))
        i++;
    return i;
}

/* Volumes share so much, which is not less than their floors. One with a ceiling that has no space
 * for a slab has what it may have for itself: it is little. */
static icms_err group_share(struct agent *agent, uint64_t volumes, uint64_t bytes,
                            struct err_why *why)
{
    struct agent_volume *of = agent->volumes;
    icms_err err = ICMS_OK;

    while ((volumes & (volumes - 1)) != 0 && err == ICMS_OK) {
        uint32_t small = group_small(agent, volumes, bytes);
        uint64_t others = 0, own;

        if (small == agent->volume_count)
            return arena_plan(agent, volumes, bytes, why);
        volumes &= ~((uint64_t)1 << small);
        for (uint32_t i = 0; i < agent->volume_count; i++)
            others += (volumes >> i & 1) != 0 ? of[i].memory_bytes_min : 0;
        own = u64_min(of[small].memory_bytes_max, bytes - others);
        err = arena_plan(agent, (uint64_t)1 << small, own, why);
        bytes -= own;
    }
    for (uint32_t i = 0; i < agent->volume_count && err == ICMS_OK; i++)
        if ((volumes >> i & 1) != 0)
            err = arena_plan(agent, volumes, u64_min(bytes, of[i].memory_bytes_max), why);
    return err;
}

/* Volumes that the same users may use, the first of which is this one, in their part of what floors
 * leave: each its own arena, if there is enough for all ceilings, else one. */
static icms_err group_plan(struct agent *agent, uint32_t first, uint64_t left, struct err_why *why)
{
    struct agent_volume *of = agent->volumes;
    uint64_t floors = 0, ceilings = 0, share, volumes = 0;
    uint32_t count = 0;
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < agent->volume_count; i++) {
        if (!volumes_are_alike(&of[i].spec, &of[first].spec))
            continue;
        if (i < first)
            return ICMS_OK; /* it has its group */
        floors += of[i].memory_bytes_min;
        ceilings += of[i].memory_bytes_max;
        volumes |= (uint64_t)1 << i;
        count++;
    }
    share = floors + left * count / agent->volume_count;
    if (agent->opts.memory_bytes != 0 && (ceilings > share || count == 1))
        return group_share(agent, volumes, share, why);
    for (uint32_t i = 0; i < agent->volume_count && err == ICMS_OK; i++)
        if ((volumes >> i & 1) != 0)
            err = arena_plan(agent, (uint64_t)1 << i, of[i].memory_bytes_max, why);
    return err;
}

static void volume_init(struct agent *agent, const struct agent_opts *opts, uint32_t number)
{
    struct agent_volume *volume = &agent->volumes[number];
    /* a drive instead of a pod writes records from slots */
    bool records = opts->local_path != NULL && opts->enclosure_count == 0 && opts->own_process;
    uint64_t least;

    volume->spec = opts->volumes[number];
    volume->stored_bytes_max = volume_stored_bytes_max(&volume->spec);
    volume->margin = records ? STORE_HEADER_BYTES : 0;
    volume->extent_bytes_max =
        bytes_align(agent_extent_bytes(volume->margin, volume->stored_bytes_max), LIMIT_DISK_ALIGN);
    least = agent->reactor_count * volume->extent_bytes_max;
    volume->memory_bytes_min = u64_max(volume->spec.memory_bytes_min, least);
    volume->memory_bytes_max = u64_max(
        volume->spec.memory_bytes_max == 0 ? opts->memory_bytes : volume->spec.memory_bytes_max,
        volume->memory_bytes_min);
}

/* Divides the memory among the volumes, and takes none. */
static icms_err memory_plan(struct agent *agent, const struct agent_opts *opts, struct err_why *why)
{
    uint64_t floors = 0;
    icms_err err = ICMS_OK;

    agent->volumes = calloc(opts->volume_count, sizeof(agent->volumes[0]));
    if (agent->volumes == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %u volumes", opts->volume_count);
    agent->volume_count = opts->volume_count;
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        volume_init(agent, opts, i);
        agent->weights[i] = (uint32_t)u64_max(opts->volumes[i].weight, 1);
        floors += agent->volumes[i].memory_bytes_min;
    }
    if (opts->memory_bytes != 0 && floors > opts->memory_bytes)
        return err_set(why, ICMS_CONFIG,
                       "memory: %llu KiB are less than the %llu KiB that volumes always have, each "
                       "memory_min and one block of value_max for each of %u loops at least: give "
                       "it more, or take fewer loops",
                       (unsigned long long)(opts->memory_bytes >> 10),
                       (unsigned long long)(floors >> 10), agent->reactor_count);
    for (uint32_t i = 0; i < opts->volume_count && err == ICMS_OK; i++)
        err = group_plan(agent, i, opts->memory_bytes == 0 ? 0 : opts->memory_bytes - floors, why);
    check(opts->memory_bytes == 0 || agent_memory_bytes(agent) <= opts->memory_bytes);
    return err;
}

icms_err agent_memory_init(struct agent *agent, const struct agent_opts *opts, struct err_why *why)
{
    icms_err err = memory_plan(agent, opts, why);

    for (uint32_t i = 0; i < agent->arena_count && err == ICMS_OK; i++)
        err = arena_take(agent, &agent->arenas[i], why);
    return err;
}

icms_err agent_memory_check(const struct agent_opts *opts, struct err_why *why, uint64_t *out_bytes)
{
    struct agent *agent = calloc(1, sizeof(*agent));
    uint64_t bytes = 0;
    icms_err err;

    if (agent == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the agent");
    agent->opts = *opts;
    agent->reactor_count = agent_reactor_count(opts);
    err = memory_plan(agent, opts, why);
    for (uint32_t i = 0; i < agent->arena_count; i++)
        bytes += agent->reactor_count * agent->arenas[i].part_bytes;
    agent_memory_fini(agent);
    free(agent);
    if (err == ICMS_OK)
        *out_bytes = bytes;
    return err;
}

uint64_t agent_memory_bytes(const struct agent *agent)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < agent->arena_count; i++)
        bytes += agent->reactor_count * agent->arenas[i].data_bytes;
    return bytes;
}

void agent_memory_fini(struct agent *agent)
{
    for (uint32_t i = 0; i < agent->arena_count; i++)
        loop_region_free(&agent->arenas[i].region);
    free(agent->volumes);
}
