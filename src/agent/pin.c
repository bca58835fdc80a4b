/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/pin.c: hints that stay for a time: see prestage.h, Pins.
 *
 * Called by prestage.c on the reactor's loop, and by slab.c through the shard's pins_fit.
 *
 * Invariants: the bytes of pins are those of their shares, of their users and of the drive, each
 * the sum of its hints' pinned_bytes; a hint has them, and is in its share's pins, while its pin_ns
 * is not 0. Pins in memory have their part of what the shard has now, at most.
 */
#include "agent/agent_int.h"
#include "agent/prestage_int.h"

/* Of the drive: pins of all volumes take a part at most. */
#define PIN_DRIVE_SHARE 2

static uint64_t *pin_volume_bytes(struct agent_shard *shard, uint32_t tier)
{
    return tier == ICMS_TIER_LOCAL ? &shard->prestage.pinned_drive_bytes
                                   : &shard->prestage.pinned_bytes;
}

/* Whoever has none yet may have half of what is free: no user can take it all. */
static bool pin_is_within(uint64_t own, uint64_t all, uint64_t more, uint64_t most)
{
    return all <= most && own + more <= most - all;
}

/* Of so many bytes of a tier: what pins of the volume may have. */
static uint64_t pin_part(const struct agent_shard *shard, uint64_t tier_bytes)
{
    return (uint64_t)((double)tier_bytes * shard->spec.pin_percent_max / 100);
}

bool agent_pin_fits(struct agent_shard *shard, const struct hint_share *share, uint64_t bytes)
{
    const struct agent_prestage *prestage = shard->reactor->prestage;
    uint32_t user = share->number % AGENT_MEMBERS;
    uint64_t tier_bytes = counter_get(&shard->bytes);

    if (!pin_is_within(prestage->pins[user], prestage->pins_all, 1, AGENT_PINS))
        return false;
    if (share->tier == ICMS_TIER_LOCAL) {
        tier_bytes = agent_tier_bytes_max(shard->agent->tier);
        if (!pin_is_within(prestage->pinned_drive[user], prestage->pinned_drive_all, bytes,
                           tier_bytes / PIN_DRIVE_SHARE))
            return false;
        if (shard->spec.quota_bytes != 0)
            tier_bytes = u64_min(tier_bytes, shard->spec.quota_bytes);
    }
    return pin_is_within(share->pinned_bytes, counter_get(pin_volume_bytes(shard, share->tier)),
                         bytes, pin_part(shard, tier_bytes));
}

uint64_t agent_pin_bytes(const struct agent_shard *shard, const struct hint_share *share,
                         const struct key *key, uint32_t slot)
{
    if (share->tier == ICMS_TIER_LOCAL && agent_tier_has(shard, key))
        return agent_tier_bytes(shard, key);
    if (slot != SHM_SLOT_NONE)
        return agent_shard_slot_bytes(shard, slot);
    return agent_shard_extent_bytes(shard, shard->size_average != 0 ? shard->size_average : 1);
}

/* Counts so many bytes more, or less. */
static void pin_count(struct agent_hint *hint, uint64_t bytes)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;

    hint->pinned_bytes += bytes;
    hint->share->pinned_bytes += bytes;
    counter_add(pin_volume_bytes(hint->shard, hint->share->tier), bytes);
    counter_add(
        &hint->shard->users[hint->user - hint->shard->agent->users].pinned[hint->share->tier],
        bytes);
    if (hint->share->tier != ICMS_TIER_LOCAL)
        return;
    prestage->pinned_drive_all += bytes;
    prestage->pinned_drive[hint->share->number % AGENT_MEMBERS] += bytes;
}

void agent_pin_take(struct agent_hint *hint, uint64_t until_ns, uint64_t bytes)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;

    check(hint->pin_ns == 0 && until_ns != 0);
    hint->pin_ns = until_ns;
    list_init(&hint->pin_link);
    list_push_front(&hint->share->pins, &hint->pin_link);
    prestage->pins_all++;
    prestage->pins[hint->share->number % AGENT_MEMBERS]++;
    counter_add(&hint->shard->prestage.pins, 1);
    pin_count(hint, bytes);
}

void agent_pin_give(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;

    if (hint->pin_ns == 0)
        return;
    hint->pin_ns = 0;
    list_remove(&hint->pin_link);
    prestage->pins_all--;
    prestage->pins[hint->share->number % AGENT_MEMBERS]--;
    counter_add(&hint->shard->prestage.pins, -(uint64_t)1);
    pin_count(hint, -hint->pinned_bytes);
}

void agent_pin_settle(struct agent_hint *hint, uint64_t bytes)
{
    struct agent_shard *shard = hint->shard;
    uint64_t until_ns = hint->pin_ns;

    if (until_ns == 0 || bytes == hint->pinned_bytes)
        return;
    agent_pin_give(hint);
    if (agent_pin_fits(shard, hint->share, bytes))
        agent_pin_take(hint, until_ns, bytes);
    else
        counter_add(&shard->prestage.pins_refused, 1);
}

/* Of the users of a shard the one that has most of its memory pinned. */
static struct hint_share *share_most_pinned(const struct agent_shard *shard)
{
    struct hint_share *shares = &shard->reactor->prestage->shares[shard->number * AGENT_MEMBERS];
    struct hint_share *most = &shares[0];

    for (uint32_t i = 1; i < AGENT_MEMBERS; i++)
        if (shares[i].pinned_bytes > most->pinned_bytes)
            most = &shares[i];
    return most;
}

void agent_pins_fit(struct agent_shard *shard)
{
    uint64_t most = pin_part(shard, counter_get(&shard->bytes));

    while (counter_get(&shard->prestage.pinned_bytes) > most) {
        struct list *link = list_first(&share_most_pinned(shard)->pins);
        struct agent_hint *hint;

        check(link != NULL);
        hint = container_of(link, struct agent_hint, pin_link);
        agent_pin_give(hint);
        counter_add(&shard->prestage.pins_refused, 1);
        if (hint->slot != SHM_SLOT_NONE)
            agent_hint_slot_set(shard, hint->slot);
    }
}

bool agent_pin_is_over(const struct agent_hint *hint, uint64_t now_ns)
{
    return hint->pin_ns <= now_ns || atomic_load(&hint->user->number) != hint->user_number;
}
