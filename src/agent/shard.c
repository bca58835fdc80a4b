/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/shard.c: a reactor's shard of a volume: how a block gets memory, what is known of the
 * volume's blocks.
 *
 * Called by enclosure.c, op.c, req.c and client.c on the reactor's loop, by agent.c before it runs;
 * nothing here blocks.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

#include "base/crc.h"
#include "base/fault.h"
#include "wire/sealed.h"

/* ---- space ---------------------------------------------------------------------------------- */

uint32_t agent_shard_slot_take_hint(struct agent_shard *shard, uint64_t stored_bytes)
{
    uint64_t extent_bytes = agent_shard_extent_bytes(shard, stored_bytes);
    uint32_t slot = SHM_SLOT_NONE;

    if (!fault_hit("agent.slot")) {
        slot = agent_shard_place(shard, extent_bytes);
        if (slot == SHM_SLOT_NONE)
            slot = agent_shard_replace_once(shard, extent_bytes);
        if (slot == SHM_SLOT_NONE && agent_shard_has_slot(shard) && agent_slabs_take(shard))
            slot = agent_shard_place(shard, extent_bytes);
        if (slot == SHM_SLOT_NONE)
            slot = agent_shard_replace(shard, extent_bytes);
    }
    if (slot == SHM_SLOT_NONE)
        agent_shard_sweep_arm(shard);
    return slot;
}

/* Whoever needs space now goes before what somebody may read. */
uint32_t agent_shard_slot_take(struct agent_shard *shard, uint64_t stored_bytes)
{
    const uint64_t kept_bytes[] = {[AGENT_KEPT_HINT] = counter_get(&shard->prestage.kept_bytes),
                                   [AGENT_KEPT_PIN] = counter_get(&shard->prestage.pinned_bytes)};
    uint32_t slot = agent_shard_slot_take_hint(shard, stored_bytes);

    for (int kept = AGENT_KEPT_HINT; kept <= AGENT_KEPT_PIN && slot == SHM_SLOT_NONE; kept++)
        if (kept_bytes[kept] != 0) {
            shard->evicts = (enum agent_kept)kept;
            slot = agent_shard_slot_take_hint(shard, stored_bytes);
        }
    shard->evicts = AGENT_KEPT_NOT;
    return slot;
}

bool agent_shard_stores_more(struct agent_shard *shard, uint64_t stored_bytes)
{
    uint64_t bytes = shard->store_bytes + agent_shard_extent_bytes(shard, stored_bytes);

    while (shard->store_bytes != 0 && bytes > shard->store_bytes_max)
        if (!agent_slabs_take(shard))
            return false;
    return true;
}

uint64_t agent_shard_load_bytes(const struct agent_shard *shard, const struct key *key)
{
    uint64_t bytes = u64_max(shard->sizes_max[0], shard->sizes_max[1]);
    uint64_t own_bytes = agent_tier_bytes(shard, key);

    if (own_bytes != 0)
        return u64_min(own_bytes, shard->stored_bytes_max);
    if (shard->agent->local != NULL)
        bytes = u64_max(agent_local_bytes(shard->agent->local, shard, key), 1);
    return bytes == 0 ? shard->stored_bytes_max : u64_min(bytes, shard->stored_bytes_max);
}

uint64_t agent_shard_expected_bytes(const struct agent_shard *shard)
{
    return shard->size_average != 0 ? shard->size_average : shard->stored_bytes_max;
}

void agent_shard_size_seen(struct agent_shard *shard, uint64_t stored_bytes)
{
    if (shard->size_average == 0)
        shard->size_average = stored_bytes;
    shard->size_average = shard->size_average - shard->size_average / 8 + stored_bytes / 8;
    shard->sizes_max[1] = u64_max(shard->sizes_max[1], stored_bytes);
    if (++shard->sizes_count < AGENT_SIZES_COUNT)
        return;
    shard->sizes_max[0] = shard->sizes_max[1];
    shard->sizes_max[1] = 0;
    shard->sizes_count = 0;
}

/* ---- use ------------------------------------------------------------------------------------ */

bool agent_shard_admits(struct agent_shard *shard, const struct key *key)
{
    uint64_t hash = hash64_seed(key->bytes, sizeof(key->bytes), shard->secret);
    uint64_t extent_bytes = agent_shard_extent_bytes(shard, agent_shard_load_bytes(shard, key));
    struct agent_passed *note = &shard->passed[hash & (shard->passed_count - 1)];
    uint32_t tag = (uint32_t)(hash >> 32) | 1; /* 0: nothing was noted here */
    uint32_t since = shard->passed_now - note->when;
    bool again = !agent_shard_is_large(shard, extent_bytes) && note->tag == tag &&
                 since < counter_get(&shard->bytes) / extent_bytes;

    *note = (struct agent_passed){.tag = again ? 0 : tag, .when = shard->passed_now};
    if (!again)
        shard->passed_now++;
    return again;
}

icms_err agent_shard_check(struct agent_shard *shard, uint32_t slot, const struct key *key,
                           uint32_t value_bytes)
{
    const uint8_t *value = agent_shard_memory(shard, slot);
    const struct sealed_place place = agent_shard_sealed_place(shard, key);

    return sealed_trailer_check(&place, value_bytes, crc32c(value, value_bytes),
                                value + value_bytes);
}

bool agent_shard_verify(struct agent_shard *shard, uint32_t slot)
{
    const struct agent_slot *meta = &shard->meta[slot];

    check(meta->state == AGENT_SLOT_LIVE);
    if (!shard->spec.sealed ||
        agent_shard_check(shard, slot, &meta->key, meta->value_bytes) != ICMS_CORRUPT)
        return true;
    agent_shard_unpublish(shard, slot);
    return false;
}

/* ---- who has it ----------------------------------------------------------------------------- */

bool agent_shard_volume_is_missing(const struct agent_shard *shard)
{
    uint64_t all = shard->reactor->view->members;

    return all != 0 && atomic_load_explicit(&shard->missing, memory_order_relaxed) == all;
}

bool agent_shard_missing_set(struct agent_shard *shard, uint32_t enclosure, bool lacks)
{
    uint64_t bit = (uint64_t)1 << enclosure;
    uint64_t before = atomic_load_explicit(&shard->missing, memory_order_relaxed);

    atomic_store_explicit(&shard->missing, lacks ? before | bit : before & ~bit,
                          memory_order_relaxed);
    atomic_store_explicit(&shard->header->volume_missing, agent_shard_volume_is_missing(shard),
                          memory_order_release);
    return ((before & bit) != 0) != lacks;
}

/* Stores of a client that are with enclosures that left. */
static void share_left(struct agent_share *share, uint64_t left)
{
    struct agent_op *flush = share->flush;

    if ((share->dirty & left) != 0)
        share->failed++;
    share->dirty &= ~left;
    if (flush == NULL || (flush->wanted & left) == 0)
        return;
    flush->lost = true;
    flush->wanted &= ~left;
}

void agent_shard_view_changed(struct agent_shard *shard, uint64_t left)
{
    for (uint32_t i = 0; left != 0 && i < LIMIT_CLIENTS; i++)
        share_left(&shard->shares[i], left);
    atomic_store_explicit(&shard->header->volume_missing, agent_shard_volume_is_missing(shard),
                          memory_order_release);
}

/* ---- identity ------------------------------------------------------------------------------- */

/* Takes the next blocks out of the index; when all are gone the new UUID counts. Nothing comes
 * meanwhile: requests are refused, operations are stale. */
static void shard_identity_run(struct loop_msg *msg)
{
    struct agent_shard *shard = container_of(msg, struct agent_shard, identity_msg);
    uint32_t end = (uint32_t)u64_min(shard->identity_at + AGENT_IDENTITY_SLICE, shard->meta_used);

    for (; shard->identity_at < end; shard->identity_at++)
        if (shard->meta[shard->identity_at].state == AGENT_SLOT_LIVE)
            agent_shard_unpublish(shard, shard->identity_at);
    if (shard->identity_at < shard->meta_used) {
        loop_send(shard->reactor->loop, &shard->identity_msg, shard_identity_run);
        return;
    }
    shm_arena_identity_end(shard->header, &shard->spec.uuid);
    shard->identity++;
    agent_events_reset(shard);
}

/* What clients stored under the UUID of before and did not flush is lost. What is in flight fails
 * by itself. */
static void shard_shares_lose(struct agent_shard *shard)
{
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++) {
        struct agent_share *share = &shard->shares[i];

        share->failed += share->dirty != 0 || share->own_dirty;
        share->dirty = 0;
        share->own_dirty = false;
    }
}

bool agent_shard_identity_set(struct agent_shard *shard, const struct uuid *uuid)
{
    if (uuid_equal(&shard->spec.uuid, uuid))
        return false;
    shard->spec.uuid = *uuid;
    shard->change++;
    agent_tier_volume_set(shard);
    shard_shares_lose(shard);
    if (shard->identity % 2 != 0)
        return true; /* blocks are going already */
    shard->identity++;
    shm_arena_identity_begin(shard->header);
    shard->identity_at = 0;
    loop_send(shard->reactor->loop, &shard->identity_msg, shard_identity_run);
    return true;
}

void agent_shard_client_gone(struct agent_shard *shard, uint32_t number)
{
    struct agent_share *share = &shard->shares[number];

    check(list_empty(&share->flushes));
    while (list_pop(&share->stores) != NULL)
        ;
    share->epoch++;
    share->failed = 0;
    share->dirty = 0;
    share->own_dirty = false;
    share->flush = NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

/* Its part of the region. */
static icms_err shard_arena(struct agent_shard *shard, const struct agent_volume *volume,
                            struct err_why *why)
{
    const struct agent *agent = shard->agent;
    const struct agent_arena *arena = &agent->arenas[volume->arena];
    struct shm_shard layout = {.number = shard->number,
                               .reactor = shard->reactor->index,
                               .reactor_count = agent->reactor_count,
                               .bytes_max = volume->shard_bytes_max,
                               .data_offset = arena->shards_bytes - volume->offset,
                               .data_bytes = arena->data_bytes};
    uint8_t *region = loop_region_base(arena->region);
    uint8_t *base = region + layout.reactor * arena->part_bytes + volume->offset;

    /* Clients of this volume learn it, others that choose keys for it do not. */
    loop_entropy(shard->reactor->loop, &layout.hash_seed, sizeof(layout.hash_seed));
    shm_shard_format(base, &shard->spec, &layout);
    if (shm_arena_view(region, agent->reactor_count * arena->part_bytes, layout.reactor,
                       agent->reactor_count, volume->offset, &shard->arena) != ICMS_OK)
        return err_set(why, ICMS_CONFIG, "volume %s: sizes that are not possible",
                       shard->spec.name);
    shard->header = (void *)base;
    shard->heads = (void *)(base + shard->arena.header->heads_offset);
    shard->slots = (void *)(base + shard->arena.header->slots_offset);
    shard->data = base + shard->arena.header->data_offset;
    return ICMS_OK;
}

icms_err agent_shard_init(struct agent_shard *shard, struct agent_reactor *reactor, uint32_t number,
                          struct err_why *why)
{
    const struct agent_volume *volume = &reactor->agent->volumes[number];
    icms_err err;

    shard->agent = reactor->agent;
    shard->reactor = reactor;
    shard->number = number;
    shard->events = (shard->agent->opts.events >> number & 1) != 0 ? reactor->events : NULL;
    shard->spec = volume->spec;
    shard->stored_bytes_max = volume->stored_bytes_max;
    shard->margin = volume->margin;
    agent_shard_slots_init(shard);
    loop_entropy(reactor->loop, &shard->secret, sizeof(shard->secret));
    for (int i = 0; i < AGENT_KEY_LISTS; i++)
        list_init(&shard->keys[i]);
    for (int i = 0; i < LIMIT_CLIENTS; i++) {
        list_init(&shard->shares[i].stores);
        list_init(&shard->shares[i].flushes);
    }
    if (agent_shard_lines_init(shard) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the users of volume %s",
                       shard->spec.name);
    err = shard_arena(shard, volume, why);
    if (err != ICMS_OK)
        return err;
    shard->bytes_max = volume->shard_bytes_max;
    err = extents_init(&shard->extents, shard->arena.data_bytes,
                       shard->arena.slot_count + shard->agent->arenas[volume->arena].slab_count);
    shard->meta = calloc(shard->arena.slot_count, sizeof(shard->meta[0]));
    shard->leased = calloc((shard->arena.slot_count + 63) / 64, sizeof(uint64_t));
    /* Twice as many as the arena holds of the smallest, so that few notes are written over. */
    for (shard->passed_count = 64;
         shard->passed_count < 2 * shard->bytes_max / AGENT_PASSED_BYTES &&
         shard->passed_count < AGENT_PASSED_MAX;)
        shard->passed_count *= 2;
    shard->passed = calloc(shard->passed_count, sizeof(shard->passed[0]));
    if (err != ICMS_OK || shard->meta == NULL || shard->leased == NULL || shard->passed == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the %u slots of volume %s",
                       shard->arena.slot_count, shard->spec.name);
    agent_slabs_join(shard);
    return ICMS_OK;
}

void agent_shard_fini(struct agent_shard *shard)
{
    extents_fini(&shard->extents);
    free(shard->meta);
    free(shard->leased);
    free(shard->passed);
    free(shard->lines_memory);
}
