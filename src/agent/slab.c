/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/slab.c: slabs of memory that change hands between the volumes that share it.
 *
 * Called by shard.c on the reactor's loop, and by agent.c before it runs.
 *
 * Where volumes share, the data of each reactor's part is cut into slabs of equal size, each with
 * space for the largest block. Shards of all volumes have the same addresses, and a slab
 * that is not theirs is reserved there (agent/extent.h).
 *
 * Life of a slab: nobody's -> agent_slabs_take -> a shard's -> agent_slabs_take for another shard,
 * when agent_shard_clear has evicted all that lies there -> the other shard's.
 *
 * The rule. A shard that finds no space takes a slab that is nobody's; else, of the shards that
 * have more than their floor, the slab that was not accessed for longest, if all of its own were
 * accessed at least AGENT_SLAB_OLDER_NS later; else it evicts what is its own. So an idle volume's
 * memory goes to the others, and volumes that are in use do not take from each other all the time.
 * A slab with a block that somebody keeps counts as accessed when it is found; pins (prestage.h)
 * keep none from another shard, and have their part of what is left.
 *
 * Invariants: a slab is reserved in all shards but its owner's; slabs_min <= slab_count <=
 * slabs_max; nothing leased, pinned or being written lies in a slab that changes hands.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

#define SLAB_NONE UINT32_MAX

/* ---- slabs ---------------------------------------------------------------------------------- */

/* The slot that reserves it. */
static uint32_t slab_slot(const struct agent_shard *shard, uint32_t slab)
{
    return shard->arena.slot_count + slab;
}

/* The last extent that begins before a slab. Slabs before it are reserved or have a first slot, or
 * there is nothing to pass. */
static uint32_t slab_before(const struct agent_shard *shard, uint32_t slab)
{
    uint32_t near = shard->extents.count;

    for (uint32_t at = slab + 1; at-- > 0 && near == shard->extents.count;) {
        if (shard->slabs->owners[at] != shard)
            near = slab_slot(shard, at);
        else if (shard->slab_first[at] != SHM_SLOT_NONE)
            near = shard->slab_first[at];
    }
    return extents_before(&shard->extents, near, slab * shard->slabs->arena->slab_bytes);
}

/* It has changed hands: nobody has more or less than what is written down. */
static void slabs_check(const struct agent_slabs *slabs, const struct agent_shard *shard)
{
    uint64_t slab_bytes = slabs->arena->slab_bytes;
    uint32_t count = 0;

    for (uint32_t i = 0; i < slabs->arena->slab_count; i++)
        count += slabs->owners[i] == shard;
    check(count == shard->slab_count && count >= shard->slabs_min && count <= shard->slabs_max);
    check(shard->extents.reserved_bytes == (slabs->arena->slab_count - count) * slab_bytes);
    check(count * slab_bytes + shard->extents.reserved_bytes <= slabs->arena->data_bytes);
}

/* Stores leave a quarter to loads. */
static void shard_bytes_set(struct agent_shard *shard, uint64_t bytes)
{
    counter_set(&shard->bytes, bytes);
    shard->store_bytes_max = bytes - bytes / 4;
}

static void slab_own(struct agent_shard *shard, uint32_t slab)
{
    struct agent_slabs *slabs = shard->slabs;

    check(slabs->owners[slab] == NULL);
    slabs->owners[slab] = shard;
    slabs->last_ns[slab] = reactor_now_ns(shard->reactor);
    shard->slab_count++;
    extents_unreserve(&shard->extents, slab_slot(shard, slab));
    shard_bytes_set(shard, shard->slab_count * slabs->arena->slab_bytes);
    slabs_check(slabs, shard);
}

/* Whether nothing that lies there is leased, pinned by an operation or being written, nor kept. For
 * another volume pins yield: what a volume has over its floor is no pin's. */
static bool slab_is_clear(struct agent_shard *shard, uint32_t slab, bool is_for_other)
{
    uint64_t bytes = shard->slabs->arena->slab_bytes, begin = slab * bytes;
    bool is_clear;

    shard->yields = is_for_other;
    is_clear = agent_shard_is_clear(shard, slab_before(shard, slab), begin, begin + bytes);
    shard->yields = false;
    return is_clear;
}

/* Evicts what lies there, of which nothing is in use. False: there is more. */
static bool slab_disown(struct agent_shard *shard, uint32_t slab)
{
    struct agent_slabs *slabs = shard->slabs;
    uint64_t bytes = slabs->arena->slab_bytes, begin = slab * bytes;
    uint32_t before = slab_before(shard, slab);

    if (!agent_shard_clear(shard, before, begin, begin + bytes))
        return false;
    before = slab_before(shard, slab);
    if (!extents_is_hole(&shard->extents, before, begin, bytes))
        return false;
    extents_reserve(&shard->extents, slab_slot(shard, slab), before, begin, bytes);
    slabs->owners[slab] = NULL;
    shard->slab_count--;
    shard_bytes_set(shard, shard->slab_count * bytes);
    slabs_check(slabs, shard);
    shard->pins_fit(shard);
    return true;
}

/* Slabs that were not accessed for longest: nobody's, or of other shards over their floor, and of
 * the shard's own. */
struct slabs_oldest {
    uint32_t other, own; /* NONE: there is none */
    uint64_t other_ns, own_ns;
};

static struct slabs_oldest slabs_oldest(const struct agent_slabs *slabs,
                                        const struct agent_shard *shard)
{
    struct slabs_oldest oldest = {.other = SLAB_NONE, .own = SLAB_NONE, UINT64_MAX, UINT64_MAX};

    for (uint32_t i = 0; i < slabs->arena->slab_count; i++) {
        const struct agent_shard *owner = slabs->owners[i];
        uint64_t last_ns = owner == NULL ? 0 : slabs->last_ns[i];

        if (owner == shard && last_ns < oldest.own_ns) {
            oldest.own = i;
            oldest.own_ns = last_ns;
        } else if (owner != shard && (owner == NULL || owner->slab_count > owner->slabs_min) &&
                   last_ns < oldest.other_ns) {
            oldest.other = i;
            oldest.other_ns = last_ns;
        }
    }
    return oldest;
}

/* The slab that the shard shall have: see the rule. NONE: none, or, *out_again, what was found is
 * in use, and counts as accessed from now on. */
static uint32_t slabs_pick(struct agent_slabs *slabs, struct agent_shard *shard, bool *out_again)
{
    struct slabs_oldest oldest = slabs_oldest(slabs, shard);
    uint64_t now_ns = reactor_now_ns(shard->reactor);

    *out_again = false;
    if (oldest.other == SLAB_NONE || slabs->owners[oldest.other] == NULL)
        return oldest.other;
    if (oldest.other_ns + AGENT_SLAB_OLDER_NS > now_ns)
        return SLAB_NONE;
    if (oldest.other_ns + AGENT_SLAB_OLDER_NS > oldest.own_ns) {
        /* Its own goes first, but for what somebody keeps. */
        *out_again = !slab_is_clear(shard, oldest.own, false);
        if (*out_again)
            slabs->last_ns[oldest.own] = now_ns;
        return SLAB_NONE;
    }
    if (slab_is_clear(slabs->owners[oldest.other], oldest.other, true))
        return oldest.other;
    *out_again = true;
    slabs->last_ns[oldest.other] = now_ns;
    return SLAB_NONE;
}

bool agent_slabs_take(struct agent_shard *shard)
{
    struct agent_slabs *slabs = shard->slabs;
    bool again = slabs != NULL && shard->slab_count < shard->slabs_max;

    for (int i = 0; again && i < AGENT_SLAB_TRIES; i++) {
        uint32_t slab = slabs_pick(slabs, shard, &again);

        if (slab == SLAB_NONE)
            continue;
        if (slabs->owners[slab] != NULL && !slab_disown(slabs->owners[slab], slab))
            return false; /* the next one who wants it goes on */
        slab_own(shard, slab);
        return true;
    }
    return false;
}

/* ---- a reactor's part ----------------------------------------------------------------------- */

icms_err agent_slabs_init(struct agent_reactor *reactor)
{
    struct agent *agent = reactor->agent;

    reactor->slabs = calloc(agent->arena_count, sizeof(reactor->slabs[0]));
    if (reactor->slabs == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < agent->arena_count; i++)
        reactor->slabs[i].arena = &agent->arenas[i];
    return ICMS_OK;
}

static uint32_t slabs_in(const struct agent_arena *arena, uint64_t bytes)
{
    return (uint32_t)u64_min(bytes / arena->slab_bytes, arena->slab_count);
}

void agent_slabs_join(struct agent_shard *shard)
{
    const struct agent *agent = shard->agent;
    const struct agent_volume *volume = &agent->volumes[shard->number];
    struct agent_slabs *slabs = &shard->reactor->slabs[volume->arena];
    const struct agent_arena *arena = slabs->arena;
    uint32_t before = shard->extents.count, left;

    if (arena->slab_count == 0) {
        shard_bytes_set(shard, arena->data_bytes);
        return;
    }
    shard->slabs = slabs;
    for (uint32_t i = 0; i < arena->slab_count; i++) {
        shard->slab_first[i] = SHM_SLOT_NONE;
        extents_reserve(&shard->extents, slab_slot(shard, i), before, i * arena->slab_bytes,
                        arena->slab_bytes);
        before = slab_slot(shard, i);
    }
    shard->slabs_max = slabs_in(arena, volume->shard_bytes_max);
    left = agent_memory_floor_slabs(agent, volume);
    for (uint32_t i = 0; left > 0; i++) {
        check(i < arena->slab_count);
        if (slabs->owners[i] == NULL) {
            slab_own(shard, i);
            left--;
        }
    }
    shard->slabs_min = shard->slab_count;
}
