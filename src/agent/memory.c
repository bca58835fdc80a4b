/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/memory.c: the memory of volumes: arenas, and slabs that change hands.
 *
 * Called by agent.c (init, fini) before the loops run, and by shard.c on the reactor's loop.
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
 * Where volumes share, the data of each reactor's part is cut into slabs of equal size, each with
 * room for the largest block. Shards of all volumes have the same addresses, and a wall
 * (agent/extent.h) where a slab is not theirs.
 *
 * Life of a slab: nobody's -> agent_pool_take -> a shard's -> agent_pool_take for another shard,
 * when agent_shard_clear has evicted all that lies there -> the other shard's.
 *
 * The rule. A shard that finds no room takes a slab that is nobody's; else, of the shards that have
 * more than their floor, the slab that was not accessed for longest, if all of its own were
 * accessed at least AGENT_SLAB_OLDER_NS later; else it evicts what is its own. So an idle volume's
 * memory goes to the others, and volumes that are in use do not take from each other all the time.
 * A slab with a block that somebody keeps counts as accessed when it is found.
 *
 * Invariants: a slab is behind a wall in all shards but its owner's; slabs_min <= slabs <=
 * slabs_max; nothing leased, pinned or being written lies in a slab that changes hands. Arenas have
 * no more data than memory_bytes, and nothing else holds blocks.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

#define SLAB_NONE UINT32_MAX

/* ---- slabs ---------------------------------------------------------------------------------- */

/* The slot of its wall. */
static uint32_t slab_wall(const struct agent_shard *shard, uint32_t slab)
{
    return shard->arena.slot_count + slab;
}

static uint32_t slab_of(const struct agent_pool *pool, uint64_t address)
{
    return (uint32_t)(address / pool->arena->slab_bytes);
}

void agent_pool_slot_taken(struct agent_shard *shard, uint32_t slot)
{
    uint32_t slab = slab_of(shard->pool, shard->extents.of[slot].begin);

    if (shard->slab_first[slab] == SHM_SLOT_NONE)
        shard->slab_first[slab] = slot;
    agent_pool_slot_used(shard, slot);
}

void agent_pool_slot_gone(struct agent_shard *shard, uint32_t slot)
{
    const struct extent *of = shard->extents.of;
    uint32_t slab = slab_of(shard->pool, of[slot].begin), slot_count = shard->arena.slot_count;
    uint32_t beside[2] = {of[slot].prev, of[slot].next};

    if (shard->slab_first[slab] != slot)
        return;
    shard->slab_first[slab] = SHM_SLOT_NONE;
    for (int i = 0; i < 2; i++)
        if (beside[i] < slot_count && slab_of(shard->pool, of[beside[i]].begin) == slab)
            shard->slab_first[slab] = beside[i];
}

/* It may lie in two slabs. */
void agent_pool_slot_used(struct agent_shard *shard, uint32_t slot)
{
    const struct extent *extent = &shard->extents.of[slot];
    struct agent_pool *pool = shard->pool;
    uint64_t now_ns = reactor_now_ns(shard->reactor);

    pool->last_ns[slab_of(pool, extent->begin)] = now_ns;
    pool->last_ns[slab_of(pool, extent->begin + extent->bytes - 1)] = now_ns;
}

/* The last extent that begins before a slab. Slabs before it have a wall or a first slot, or there
 * is nothing to pass. */
static uint32_t slab_before(const struct agent_shard *shard, uint32_t slab)
{
    uint32_t near = shard->extents.count;

    for (uint32_t at = slab + 1; at-- > 0 && near == shard->extents.count;) {
        if (shard->pool->owners[at] != shard)
            near = slab_wall(shard, at);
        else if (shard->slab_first[at] != SHM_SLOT_NONE)
            near = shard->slab_first[at];
    }
    return extents_before(&shard->extents, near, slab * shard->pool->arena->slab_bytes);
}

/* It has changed hands: nobody has more or less than what is written down. */
static void pool_check(const struct agent_pool *pool, const struct agent_shard *shard)
{
    uint64_t slab_bytes = pool->arena->slab_bytes;
    uint32_t slabs = 0;

    for (uint32_t i = 0; i < pool->arena->slab_count; i++)
        slabs += pool->owners[i] == shard;
    check(slabs == shard->slabs && slabs >= shard->slabs_min && slabs <= shard->slabs_max);
    check(shard->extents.wall_bytes == (pool->arena->slab_count - slabs) * slab_bytes);
    check(slabs * slab_bytes + shard->extents.wall_bytes <= pool->arena->data_bytes);
}

/* Stores leave a quarter to loads. */
static void shard_bytes_set(struct agent_shard *shard, uint64_t bytes)
{
    counter_set(&shard->bytes, bytes);
    shard->store_bytes_max = bytes - bytes / 4;
}

static void slab_own(struct agent_shard *shard, uint32_t slab)
{
    struct agent_pool *pool = shard->pool;

    check(pool->owners[slab] == NULL);
    pool->owners[slab] = shard;
    pool->last_ns[slab] = reactor_now_ns(shard->reactor);
    shard->slabs++;
    extents_unwall(&shard->extents, slab_wall(shard, slab));
    shard_bytes_set(shard, shard->slabs * pool->arena->slab_bytes);
    pool_check(pool, shard);
}

/* Whether nothing that lies there is leased, pinned or being written. */
static bool slab_is_clear(struct agent_shard *shard, uint32_t slab)
{
    uint64_t bytes = shard->pool->arena->slab_bytes, begin = slab * bytes;

    return agent_shard_is_clear(shard, slab_before(shard, slab), begin, begin + bytes);
}

/* Evicts what lies there, of which nothing is in use. False: there is more. */
static bool slab_disown(struct agent_shard *shard, uint32_t slab)
{
    struct agent_pool *pool = shard->pool;
    uint64_t bytes = pool->arena->slab_bytes, begin = slab * bytes;
    uint32_t before = slab_before(shard, slab);

    if (!agent_shard_clear(shard, before, begin, begin + bytes))
        return false;
    before = slab_before(shard, slab);
    if (!extents_is_hole(&shard->extents, before, begin, bytes))
        return false;
    extents_wall(&shard->extents, slab_wall(shard, slab), before, begin, bytes);
    pool->owners[slab] = NULL;
    shard->slabs--;
    shard_bytes_set(shard, shard->slabs * bytes);
    pool_check(pool, shard);
    return true;
}

/* Slabs that were not accessed for longest: nobody's, or of other shards over their floor, and of
 * the shard's own. */
struct pool_oldest {
    uint32_t other, own; /* NONE: there is none */
    uint64_t other_ns, own_ns;
};

static struct pool_oldest pool_oldest(const struct agent_pool *pool,
                                      const struct agent_shard *shard)
{
    struct pool_oldest oldest = {.other = SLAB_NONE, .own = SLAB_NONE, UINT64_MAX, UINT64_MAX};

    for (uint32_t i = 0; i < pool->arena->slab_count; i++) {
        const struct agent_shard *owner = pool->owners[i];
        uint64_t last_ns = owner == NULL ? 0 : pool->last_ns[i];

        if (owner == shard && last_ns < oldest.own_ns) {
            oldest.own = i;
            oldest.own_ns = last_ns;
        } else if (owner != shard && (owner == NULL || owner->slabs > owner->slabs_min) &&
                   last_ns < oldest.other_ns) {
            oldest.other = i;
            oldest.other_ns = last_ns;
        }
    }
    return oldest;
}

/* The slab that the shard shall have: see the rule. NONE: none, or, *out_again, what was found is
 * in use, and counts as accessed from now on. */
static uint32_t pool_pick(struct agent_pool *pool, struct agent_shard *shard, bool *out_again)
{
    struct pool_oldest oldest = pool_oldest(pool, shard);
    uint64_t now_ns = reactor_now_ns(shard->reactor);

    *out_again = false;
    if (oldest.other == SLAB_NONE || pool->owners[oldest.other] == NULL)
        return oldest.other;
    if (oldest.other_ns + AGENT_SLAB_OLDER_NS > now_ns)
        return SLAB_NONE;
    if (oldest.other_ns + AGENT_SLAB_OLDER_NS > oldest.own_ns) {
        /* Its own goes first, but for what somebody keeps. */
        *out_again = !slab_is_clear(shard, oldest.own);
        if (*out_again)
            pool->last_ns[oldest.own] = now_ns;
        return SLAB_NONE;
    }
    if (slab_is_clear(pool->owners[oldest.other], oldest.other))
        return oldest.other;
    *out_again = true;
    pool->last_ns[oldest.other] = now_ns;
    return SLAB_NONE;
}

bool agent_pool_take(struct agent_shard *shard)
{
    struct agent_pool *pool = shard->pool;
    bool again = pool != NULL && shard->slabs < shard->slabs_max;

    for (int i = 0; again && i < AGENT_SLAB_TRIES; i++) {
        uint32_t slab = pool_pick(pool, shard, &again);

        if (slab == SLAB_NONE)
            continue;
        if (pool->owners[slab] != NULL && !slab_disown(pool->owners[slab], slab))
            return false; /* the next one who wants it goes on */
        slab_own(shard, slab);
        return true;
    }
    return false;
}

/* ---- a reactor's part ----------------------------------------------------------------------- */

icms_err agent_pools_init(struct agent_reactor *reactor)
{
    struct agent *agent = reactor->agent;

    reactor->pools = calloc(agent->arena_count, sizeof(reactor->pools[0]));
    if (reactor->pools == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < agent->arena_count; i++)
        reactor->pools[i].arena = &agent->arenas[i];
    return ICMS_OK;
}

static uint32_t slabs_in(const struct agent_arena *arena, uint64_t bytes)
{
    return (uint32_t)u64_min(bytes / arena->slab_bytes, arena->slab_count);
}

/* Slabs that a shard of the volume always has. */
static uint32_t floor_slabs(const struct agent *agent, const struct agent_volume *volume)
{
    uint64_t slab_bytes = agent->arenas[volume->arena].slab_bytes;
    uint64_t bytes = u64_max(volume->memory_bytes_min / agent->reactor_count, 1);

    return (uint32_t)((bytes + slab_bytes - 1) / slab_bytes);
}

void agent_pool_join(struct agent_shard *shard)
{
    const struct agent *agent = shard->agent;
    const struct agent_volume *volume = &agent->volumes[shard->number];
    struct agent_pool *pool = &shard->reactor->pools[volume->arena];
    const struct agent_arena *arena = pool->arena;
    uint32_t before = shard->extents.count, left;

    if (arena->slab_count == 0) {
        shard_bytes_set(shard, arena->data_bytes);
        return;
    }
    shard->pool = pool;
    for (uint32_t i = 0; i < arena->slab_count; i++) {
        shard->slab_first[i] = SHM_SLOT_NONE;
        extents_wall(&shard->extents, slab_wall(shard, i), before, i * arena->slab_bytes,
                     arena->slab_bytes);
        before = slab_wall(shard, i);
    }
    shard->slabs_max = slabs_in(arena, volume->shard_bytes_max);
    left = floor_slabs(agent, volume);
    for (uint32_t i = 0; left > 0; i++) {
        check(i < arena->slab_count);
        if (pool->owners[i] == NULL) {
            slab_own(shard, i);
            left--;
        }
    }
    shard->slabs_min = shard->slabs;
}

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
        floors += floor_slabs(agent, &agent->volumes[i]);
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

/* The arena of these volumes. */
static icms_err arena_new(struct agent *agent, uint64_t volumes, uint64_t bytes,
                          struct err_why *why)
{
    struct agent_arena *arena = &agent->arenas[agent->arena_count++];
    const char *name = "";
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
        name = volume->spec.name;
    }
    arena->part_bytes = shm_part_bytes(arena->shards_bytes, arena->data_bytes);
    err = loop_region_new(agent->env, name, agent->reactor_count * arena->part_bytes, false, why,
                          &arena->region);
    if (err == ICMS_OK && agent->opts.prefault && loop_region_touch(arena->region) != ICMS_OK)
        err = err_set(why, ICMS_NO_MEMORY,
                      "volume %s: there are no %llu MiB for its arena: give it less memory, or "
                      "leave prefault out",
                      name, (unsigned long long)(loop_region_bytes(arena->region) >> 20));
    return err;
}

/* Of these volumes one whose ceiling has no room for a slab; volume_count: there is none. */
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

/* Volumes share so much, which is not less than their floors. One with a ceiling that has no room
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
            return arena_new(agent, volumes, bytes, why);
        volumes &= ~((uint64_t)1 << small);
        for (uint32_t i = 0; i < agent->volume_count; i++)
            others += (volumes >> i & 1) != 0 ? of[i].memory_bytes_min : 0;
        own = u64_min(of[small].memory_bytes_max, bytes - others);
        err = arena_new(agent, (uint64_t)1 << small, own, why);
        bytes -= own;
    }
    for (uint32_t i = 0; i < agent->volume_count && err == ICMS_OK; i++)
        if ((volumes >> i & 1) != 0)
            err = arena_new(agent, volumes, u64_min(bytes, of[i].memory_bytes_max), why);
    return err;
}

/* Volumes that the same users may use, the first of which is this one, in their part of what floors
 * leave: each its own arena, if there is enough for all ceilings, else one. */
static icms_err group_new(struct agent *agent, uint32_t first, uint64_t left, struct err_why *why)
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
            err = arena_new(agent, (uint64_t)1 << i, of[i].memory_bytes_max, why);
    return err;
}

static void volume_init(struct agent *agent, const struct agent_opts *opts, uint32_t number)
{
    struct agent_volume *volume = &agent->volumes[number];
    /* a drive of its own writes records from slots */
    bool records = opts->local_path != NULL && opts->own_process;
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

icms_err agent_memory_init(struct agent *agent, const struct agent_opts *opts, struct err_why *why)
{
    uint64_t floors = 0;
    icms_err err = ICMS_OK;

    agent->volumes = calloc(opts->volume_count, sizeof(agent->volumes[0]));
    if (agent->volumes == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %u volumes", opts->volume_count);
    agent->volume_count = opts->volume_count;
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        volume_init(agent, opts, i);
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
        err = group_new(agent, i, opts->memory_bytes == 0 ? 0 : opts->memory_bytes - floors, why);
    check(opts->memory_bytes == 0 || agent_memory_bytes(agent) <= opts->memory_bytes);
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
