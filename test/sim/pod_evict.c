/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test/sim/pod_evict.c: judges what agents evict from memory: pinned blocks go after all others.
 *
 * What is promised, and judged exactly: a pinned block is evicted for a load or a put of its volume
 * only when the space for that cannot be made of blocks that are not pinned. Space is in one piece,
 * so this is about blocks that lie beside each other, with the holes between them; what is leased,
 * or in use by an operation, cannot go either. A hint evicts no pinned block. Another volume that
 * takes memory beyond the floor may.
 *
 * The agent is asked by what it calls for each eviction (agent_tier_evicted) and each need of space
 * (agent_shard_slot_take, agent_shard_slot_take_hint), which the linker wraps. Pins are taken from
 * its hints, not from what its eviction looks at.
 */
#include "agent/agent_int.h"
#include "agent/prestage_int.h"
#include "pod.h"

uint32_t __real_agent_shard_slot_take(struct agent_shard *shard, uint64_t stored_bytes);
uint32_t __wrap_agent_shard_slot_take(struct agent_shard *shard, uint64_t stored_bytes);
uint32_t __real_agent_shard_slot_take_hint(struct agent_shard *shard, uint64_t stored_bytes);
uint32_t __wrap_agent_shard_slot_take_hint(struct agent_shard *shard, uint64_t stored_bytes);
void __real_agent_tier_evicted(struct agent_shard *shard, uint32_t slot);
void __wrap_agent_tier_evicted(struct agent_shard *shard, uint32_t slot);

/* Who needs space at this moment; shard NULL: nobody. */
struct evict_need {
    const struct agent_shard *shard;
    uint64_t extent_bytes;
    bool is_hint;
};

static struct pod_world *evict_world;
static struct evict_need evict_need;

void pod_evict_init(struct pod_world *world)
{
    evict_world = world;
}

static bool evict_is_pinned(const struct agent_shard *shard, uint32_t slot)
{
    const struct agent_prestage *prestage = shard->reactor->prestage;

    for (uint32_t i = 0; i < prestage->made; i++) {
        const struct agent_hint *hint = &prestage->hints[i];

        if (hint->state == HINT_READY && hint->shard == shard && hint->slot == slot &&
            hint->share->tier == ICMS_TIER_DRAM && hint->pin_ns > reactor_now_ns(shard->reactor))
            return true;
    }
    return false;
}

/* What went just now for the same need is in limbo. */
static bool evict_could_go(const struct agent_shard *shard, uint32_t slot)
{
    const struct agent_slot *meta = &shard->meta[slot];

    if (slot >= shard->arena.slot_count || meta->pins > 0 ||
        (shard->leased[slot / 64] >> slot % 64 & 1) != 0)
        return false;
    return meta->state == AGENT_SLOT_LIMBO ||
           (meta->state == AGENT_SLOT_LIVE && meta->kept != AGENT_KEPT_PIN &&
            !evict_is_pinned(shard, slot));
}

static uint64_t evict_hole(const struct extents *extents, uint32_t at)
{
    const struct extent *extent = &extents->of[at];
    uint64_t begin = at == extents->count ? 0 : extent->begin + extent->bytes;
    uint64_t end =
        extent->next == extents->count ? extents->capacity : extents->of[extent->next].begin;

    return end - begin;
}

/* The longest piece of space that blocks leave which are not pinned, one at least. */
static uint64_t evict_longest(const struct agent_shard *shard)
{
    const struct extents *extents = &shard->extents;
    uint64_t bytes = evict_hole(extents, extents->count), longest = 0;

    for (uint32_t at = extents->of[extents->count].next; at != extents->count;
         at = extents->of[at].next) {
        if (!evict_could_go(shard, at)) {
            bytes = evict_hole(extents, at);
            continue;
        }
        bytes += extents->of[at].bytes + evict_hole(extents, at);
        longest = u64_max(longest, bytes);
    }
    return longest;
}

void __wrap_agent_tier_evicted(struct agent_shard *shard, uint32_t slot)
{
    uint64_t longest;

    if (evict_need.shard == shard && evict_is_pinned(shard, slot)) {
        evict_world->counts.pinned_evicted++;
        if (evict_need.is_hint)
            pod_fail(evict_world, POD_FAULT_FORGOT, "a hint evicts a pinned block");
        longest = evict_longest(shard);
        if (longest >= evict_need.extent_bytes)
            pod_fail(evict_world, POD_FAULT_FORGOT,
                     "a pinned block is evicted for %llu bytes, where others leave %llu",
                     (unsigned long long)evict_need.extent_bytes, (unsigned long long)longest);
    }
    __real_agent_tier_evicted(shard, slot);
}

uint32_t __wrap_agent_shard_slot_take(struct agent_shard *shard, uint64_t stored_bytes)
{
    uint32_t slot;

    evict_need = (struct evict_need){shard, agent_shard_extent_bytes(shard, stored_bytes), false};
    slot = __real_agent_shard_slot_take(shard, stored_bytes);
    evict_need = (struct evict_need){NULL, 0, false};
    return slot;
}

uint32_t __wrap_agent_shard_slot_take_hint(struct agent_shard *shard, uint64_t stored_bytes)
{
    uint32_t slot;

    evict_need = (struct evict_need){shard, agent_shard_extent_bytes(shard, stored_bytes), true};
    slot = __real_agent_shard_slot_take_hint(shard, stored_bytes);
    evict_need = (struct evict_need){NULL, 0, false};
    return slot;
}
