/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/tier_look.c: what the own drive has, and for whom it is the only place: see tier.h.
 *
 * Called by tier.c, op.c, match.c and req.c, and by prestage_pace.c for hints, on reactor 0's loop.
 */
#include "agent/agent_int.h"

#include "policy/tier.h"

uint32_t agent_tier_number(const struct agent_tier *tier, const struct agent_shard *shard)
{
    return atomic_load_explicit(&tier->numbers[shard->number], memory_order_relaxed);
}

static bool tier_is_forgetting(const struct agent_tier *tier, uint32_t volume,
                               const struct key *key)
{
    list_for_each (link, &tier->forgets_busy) {
        const struct agent_tier_forget *forget = container_of(link, struct agent_tier_forget, link);

        if (forget->delete.volume == volume && key_equal(&forget->delete.key, key))
            return true;
    }
    return false;
}

uint64_t agent_tier_bytes(const struct agent_shard *shard, const struct key *key)
{
    const struct agent_tier *tier = shard->agent->tier;
    uint64_t bytes = 0;
    uint32_t volume;

    if (tier == NULL || agent_tier_health(tier) == AGENT_TIER_DOWN ||
        (agent_tier_health(tier) == AGENT_TIER_SLOW && agent_tier_is_spare(shard, key)))
        return 0;
    volume = agent_tier_number(tier, shard);
    if (volume == AGENT_TIER_NO_NUMBER || !store_exists(tier->store, volume, key, &bytes) ||
        tier_is_forgetting(tier, volume, key))
        return 0;
    return bytes;
}

bool agent_tier_has(const struct agent_shard *shard, const struct key *key)
{
    return agent_tier_bytes(shard, key) != 0;
}

/* Whether the drive has the key instead of the pod. */
static bool tier_is_own(const struct agent_tier *tier, uint32_t slot)
{
    return tier->share > 0 && policy_is_own(slot, tier->share);
}

bool agent_tier_is_spare(const struct agent_shard *shard, const struct key *key)
{
    const struct agent_view *view = shard->reactor->view;
    uint64_t not_asked = agent_reactor_down(shard->reactor) |
                         atomic_load_explicit(&shard->missing, memory_order_relaxed);
    uint32_t slot, owner;

    if (view->owners == NULL)
        return false;
    slot = place_slot(view->owners, key, volume_has_runs(&shard->spec));
    owner = agent_view_rank(view, view->owners, slot, 0);
    return owner != UINT32_MAX && (not_asked >> owner & 1) == 0 &&
           !tier_is_own(shard->agent->tier, slot);
}

bool agent_tier_takes(const struct agent_shard *shard, const struct key *key)
{
    const struct agent_tier *tier = shard->agent->tier;
    const struct place_map *map = shard->reactor->view->owners;

    return tier != NULL && map != NULL && agent_tier_health(tier) == AGENT_TIER_UP &&
           agent_tier_number(tier, shard) != AGENT_TIER_NO_NUMBER &&
           tier_is_own(tier, place_slot(map, key, volume_has_runs(&shard->spec)));
}

bool agent_tier_reads_hint(const struct agent_tier *tier)
{
    uint32_t hints = 0;

    list_for_each (link, &tier->busy) {
        const struct agent_tier_io *io = container_of(link, struct agent_tier_io, link);

        hints += !io->is_write && io->op != NULL && io->op->io_class == IO_CLASS_PRESTAGE &&
                 !io->op->is_expedited;
    }
    return hints < tier->io_count / AGENT_TIER_HINTS && line_first(&tier->waiting) == NULL;
}
