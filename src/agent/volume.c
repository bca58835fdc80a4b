/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/volume.c: one volume's arena: who is in which slot, what goes when room is needed.
 *
 * Called by req.c, op.c and guest.c on the volume's loop; nothing here blocks.
 *
 * Life of a slot: FREE -> agent_volume_slot_take -> FILLING -> agent_volume_publish -> LIVE ->
 * agent_volume_unpublish -> LIMBO -> volume_sweep -> FREE. It has its extent of the data
 * (extent.h) from take on until it is FREE.
 *
 * Invariants: a slot's version is even only while LIVE; a slot is FREE only when it has no pin and
 * no lease was seen after its version became odd, so nobody reads its memory, and no operation
 * names it. A slot's offset changes only while it is FILLING.
 * What the arena says is written by us alone; what decides (keys, chains' heads, sizes) is kept in
 * meta too and never read back from it, except the chain links.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

#include "base/crc.h"
#include "base/fault.h"
#include "wire/sealed.h"

/* ---- leases --------------------------------------------------------------------------------- */

/* Looks through the lease tables of all guests: sets volume->leased. What a guest wrote there is
 * bounded and otherwise believed: it can hold slots, 512 at most, and do nothing else. */
static void volume_leases_look(struct agent_volume *volume)
{
    uint32_t slot_count = volume->arena.slot_count;

    memset(volume->leased, 0, (slot_count + 63) / 64 * 8);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++) {
        struct agent_guest *guest = &volume->agent->guests[i];

        if (!atomic_load_explicit(&guest->visible, memory_order_seq_cst) ||
            (guest->volumes >> volume->number & 1) == 0)
            continue;
        for (uint32_t j = 0; j < SHM_LEASES; j++) {
            uint32_t slot = atomic_load_explicit(&guest->ring.leases[j], memory_order_seq_cst) - 1;

            if (slot < slot_count && atomic_load_explicit(&guest->ring.lease_volumes[j],
                                                          memory_order_acquire) == volume->number)
                volume->leased[slot / 64] |= (uint64_t)1 << slot % 64;
        }
    }
}

static bool volume_is_leased(const struct agent_volume *volume, uint32_t slot)
{
    return (volume->leased[slot / 64] >> slot % 64 & 1) != 0;
}

void agent_volume_lease(struct agent_volume *volume, uint32_t slot, struct agent_guest *guest,
                        uint32_t lease)
{
    check(volume->meta[slot].state == AGENT_SLOT_LIVE && lease < SHM_LEASES);
    atomic_store_explicit(&guest->ring.lease_volumes[lease], volume->number, memory_order_release);
    atomic_store_explicit(&guest->ring.leases[lease], slot + 1, memory_order_seq_cst);
}

/* ---- the index ------------------------------------------------------------------------------ */

static uint32_t volume_find_from(struct agent_volume *volume, uint32_t head, const struct key *key)
{
    uint32_t at = atomic_load_explicit(&volume->heads[head], memory_order_relaxed);

    while (at != SHM_SLOT_NONE) {
        check(at < volume->arena.slot_count);
        if (key_equal(&volume->meta[at].key, key))
            return at;
        at = atomic_load_explicit(&volume->slots[at].next, memory_order_relaxed);
    }
    return SHM_SLOT_NONE;
}

uint32_t agent_volume_find(struct agent_volume *volume, const struct key *key)
{
    return volume_find_from(
        volume, shm_arena_head(volume->arena.hash_seed, volume->arena.head_count, key), key);
}

/* The heads lie all over the index: they are fetched together. */
uint32_t agent_volume_find_many(struct agent_volume *volume, const struct key *keys, uint32_t count)
{
    uint32_t heads[SHM_PROBE_KEYS], there = 0;

    check(count >= 1 && count <= SHM_PROBE_KEYS);
    for (uint32_t i = 0; i < count; i++) {
        heads[i] = shm_arena_head(volume->arena.hash_seed, volume->arena.head_count, &keys[i]);
        __builtin_prefetch(&volume->heads[heads[i]]);
    }
    for (uint32_t i = 0; i < count; i++)
        if (volume_find_from(volume, heads[i], &keys[i]) != SHM_SLOT_NONE)
            there |= 1u << i;
    return there;
}

/* The last slot of a chain that has no room for one more; NONE: it has room. Who knows the seed can
 * choose keys of one chain: the oldest goes, so that no lookup is slow. */
static uint32_t volume_chain_over(const struct agent_volume *volume, uint32_t head)
{
    uint32_t at = atomic_load_explicit(&volume->heads[head], memory_order_relaxed);

    for (int steps = 1; at != SHM_SLOT_NONE; steps++) {
        check(at < volume->arena.slot_count);
        if (steps == SHM_CHAIN_STEPS_MAX)
            return at;
        at = atomic_load_explicit(&volume->slots[at].next, memory_order_relaxed);
    }
    return SHM_SLOT_NONE;
}

static void volume_version_step(struct agent_volume *volume, uint32_t slot)
{
    struct shm_slot *shared = &volume->slots[slot];
    uint64_t version = atomic_load_explicit(&shared->version, memory_order_relaxed);

    atomic_store_explicit(&shared->version, version + 1, memory_order_seq_cst);
}

static void volume_kick_send(struct agent_volume *volume);

void agent_volume_publish(struct agent_volume *volume, uint32_t slot, const struct key *key,
                          uint32_t value_bytes)
{
    struct agent_slot *meta = &volume->meta[slot];
    struct shm_slot *shared = &volume->slots[slot];
    uint64_t stored_bytes = value_bytes + (volume->spec.sealed ? LIMIT_TRAILER_BYTES : 0);
    uint32_t head = shm_arena_head(volume->arena.hash_seed, volume->arena.head_count, key);
    uint32_t old = volume_find_from(volume, head, key);

    check(meta->state == AGENT_SLOT_FILLING);
    if (old == SHM_SLOT_NONE)
        old = volume_chain_over(volume, head);
    if (old != SHM_SLOT_NONE)
        agent_volume_unpublish(volume, old);
    if (extents_trim(&volume->extents, slot, agent_volume_extent_bytes(volume, stored_bytes)))
        volume_kick_send(volume);
    meta->state = AGENT_SLOT_LIVE;
    meta->value_bytes = value_bytes;
    meta->key = *key;
    meta->head = head;
    shm_slot_key_set(shared, key);
    atomic_store_explicit(&shared->value_bytes, value_bytes, memory_order_relaxed);
    atomic_store_explicit(&shared->offset, volume->extents.of[slot].begin + volume->margin,
                          memory_order_relaxed);
    volume_version_step(volume, slot); /* even: stable */
    atomic_store_explicit(&shared->next,
                          atomic_load_explicit(&volume->heads[meta->head], memory_order_relaxed),
                          memory_order_release);
    atomic_store_explicit(&volume->heads[meta->head], slot, memory_order_release);
    counter_add(&volume->slots_used, 1);
    counter_add(&volume->used_bytes, value_bytes);
    meta->since_ns = core_now_ns(volume->core);
}

static void volume_unlink(struct agent_volume *volume, uint32_t slot)
{
    _Atomic uint32_t *from = &volume->heads[volume->meta[slot].head];
    uint32_t at;

    while ((at = atomic_load_explicit(from, memory_order_relaxed)) != slot) {
        check(at < volume->arena.slot_count);
        from = &volume->slots[at].next;
    }
    atomic_store_explicit(from,
                          atomic_load_explicit(&volume->slots[slot].next, memory_order_relaxed),
                          memory_order_release);
}

static void volume_slot_free(struct agent_volume *volume, uint32_t slot)
{
    struct agent_slot *meta = &volume->meta[slot];

    check(meta->pins == 0 && meta->state != AGENT_SLOT_LIVE);
    extents_give(&volume->extents, slot);
    meta->state = AGENT_SLOT_FREE;
    list_push(&volume->free, &meta->link);
}

static void volume_kick(struct loop_msg *msg);

/* A slot is free, or may be: whoever waits for one looks, after what runs now. */
static void volume_kick_send(struct agent_volume *volume)
{
    if (volume->kick_sent || (list_empty(&volume->wait_slot) && list_empty(&volume->wait_share)))
        return;
    volume->kick_sent = true;
    loop_send(volume->core->loop, &volume->kick, volume_kick);
}

/* Looks at limbo again soon: leases are given back without a word. */
static void volume_sweep_arm(struct agent_volume *volume)
{
    if (!loop_timer_armed(&volume->sweep))
        loop_timer_start(volume->core->loop, &volume->sweep,
                         core_now_ns(volume->core) + AGENT_RETRY_NS);
}

void agent_volume_unpublish(struct agent_volume *volume, uint32_t slot)
{
    struct agent_slot *meta = &volume->meta[slot];

    check(meta->state == AGENT_SLOT_LIVE);
    volume_version_step(volume, slot); /* odd: changing */
    volume_unlink(volume, slot);
    meta->state = AGENT_SLOT_LIMBO;
    list_push(&volume->limbo, &meta->link);
    counter_add(&volume->slots_used, -(uint64_t)1);
    counter_add(&volume->slots_limbo, 1);
    counter_add(&volume->used_bytes, -(uint64_t)meta->value_bytes);
    volume_sweep_arm(volume);
}

/* ---- room ----------------------------------------------------------------------------------- */

/* Frees what of limbo is neither leased nor pinned. */
static void volume_limbo_free(struct agent_volume *volume)
{
    if (list_empty(&volume->limbo))
        return;
    volume_leases_look(volume);
    list_for_each_safe (link, &volume->limbo) {
        struct agent_slot *meta = container_of(link, struct agent_slot, link);
        uint32_t slot = (uint32_t)(meta - volume->meta);

        if (meta->pins > 0 || volume_is_leased(volume, slot))
            continue;
        list_remove(&meta->link);
        counter_add(&volume->slots_limbo, -(uint64_t)1);
        volume_slot_free(volume, slot);
    }
}

static bool volume_may_go(void *arg, uint32_t slot)
{
    struct agent_volume *volume = arg;
    const struct agent_slot *meta = &volume->meta[slot];

    return meta->state == AGENT_SLOT_LIVE && meta->pins == 0 && !volume_is_leased(volume, slot);
}

/* Takes what has to go for such an extent out of the index, and a little ahead. Leased blocks are
 * in use. */
static void volume_evict(struct agent_volume *volume, uint64_t extent_bytes)
{
    uint64_t now_ns = core_now_ns(volume->core);
    uint64_t ahead = volume->arena.data_bytes / AGENT_EVICT_SHARE;
    struct extent_sweep sweep = {.may = volume_may_go, .arg = volume};
    uint32_t slot, last;

    volume_leases_look(volume);
    for (int i = 0; i < AGENT_EVICT_MAX && (i == 0 || sweep.bytes + extent_bytes <= ahead); i++) {
        if (!extents_window(&volume->extents, extent_bytes, &sweep, &slot, &last))
            return;
        for (bool more = true; more; slot = volume->extents.of[slot].next) {
            more = slot != last;
            hist_add(&volume->evicted_age_ns, now_ns - volume->meta[slot].since_ns);
            agent_volume_unpublish(volume, slot);
            counter_add(&volume->evictions, 1);
        }
    }
}

/* A slot with such an extent; NONE: there is none at this moment. */
static uint32_t volume_slot_find(struct agent_volume *volume, uint64_t extent_bytes)
{
    struct list *link = list_first(&volume->free);
    struct agent_slot *meta;
    uint32_t slot;

    if (link == NULL && volume->meta_used == volume->arena.slot_count)
        return SHM_SLOT_NONE;
    meta = link != NULL ? container_of(link, struct agent_slot, link)
                        : &volume->meta[volume->meta_used];
    slot = (uint32_t)(meta - volume->meta);
    if (!extents_take(&volume->extents, slot, extent_bytes))
        return SHM_SLOT_NONE;
    if (link != NULL)
        list_remove(link);
    else
        volume->meta_used++;
    list_init(&meta->link);
    meta->state = AGENT_SLOT_FILLING;
    return slot;
}

uint32_t agent_volume_slot_take(struct agent_volume *volume, uint64_t stored_bytes)
{
    uint64_t extent_bytes = agent_volume_extent_bytes(volume, stored_bytes);
    uint32_t slot = SHM_SLOT_NONE;

    if (fault_hit("agent.slot")) {
        volume_sweep_arm(volume);
        return SHM_SLOT_NONE;
    }
    slot = volume_slot_find(volume, extent_bytes);
    if (slot == SHM_SLOT_NONE && !list_empty(&volume->limbo)) {
        volume_limbo_free(volume);
        slot = volume_slot_find(volume, extent_bytes);
    }
    if (slot == SHM_SLOT_NONE) {
        volume_evict(volume, extent_bytes);
        volume_limbo_free(volume);
        slot = volume_slot_find(volume, extent_bytes);
    }
    if (slot == SHM_SLOT_NONE)
        volume_sweep_arm(volume);
    return slot;
}

uint64_t agent_volume_extent_bytes(const struct agent_volume *volume, uint64_t stored_bytes)
{
    return volume->margin != 0 ? store_record_bytes(stored_bytes)
                               : bytes_align(stored_bytes, EXTENT_UNIT);
}

uint64_t agent_volume_room(const struct agent_volume *volume, const struct key *key)
{
    uint64_t bytes = u64_max(volume->sizes_max[0], volume->sizes_max[1]);

    if (volume->agent->local != NULL)
        bytes = u64_max(agent_local_bytes(volume->agent->local, volume, key), 1);
    return bytes == 0 ? volume->stored_bytes_max : u64_min(bytes, volume->stored_bytes_max);
}

void agent_volume_size_seen(struct agent_volume *volume, uint64_t stored_bytes)
{
    volume->sizes_max[1] = u64_max(volume->sizes_max[1], stored_bytes);
    if (++volume->sizes_count < AGENT_SIZES_COUNT)
        return;
    volume->sizes_max[0] = volume->sizes_max[1];
    volume->sizes_max[1] = 0;
    volume->sizes_count = 0;
}

/* Who waits in a list looks again, in order, until a few have to wait there again: behind one that
 * needs much room there may be others that need little. */
static void volume_wake(struct list *list)
{
    struct list again, *link;

    list_init(&again);
    for (int waits = 0; waits < AGENT_WAKE_PAST && (link = list_pop(list)) != NULL;) {
        agent_req_again(container_of(link, struct agent_req, link));
        /* Only the pointer is looked at: when it found a slot, the request is not ours any more. */
        if (list->prev == link) {
            list_remove(link);
            list_push_front(&again, link);
            waits++;
        }
    }
    while ((link = list_pop(&again)) != NULL)
        list_push_front(list, link);
}

static void volume_slot_wake(struct agent_volume *volume)
{
    volume_wake(&volume->wait_slot);
    volume_wake(&volume->wait_share);
}

void agent_volume_slot_give(struct agent_volume *volume, uint32_t slot)
{
    check(volume->meta[slot].state == AGENT_SLOT_FILLING);
    volume_slot_free(volume, slot);
    volume_kick_send(volume);
}

static void volume_kick(struct loop_msg *msg)
{
    struct agent_volume *volume = container_of(msg, struct agent_volume, kick);

    volume->kick_sent = false;
    volume_slot_wake(volume);
}

static void volume_sweep(struct loop_timer *timer)
{
    struct agent_volume *volume = container_of(timer, struct agent_volume, sweep);

    volume_limbo_free(volume);
    volume_slot_wake(volume);
    if (!list_empty(&volume->limbo) || !list_empty(&volume->wait_slot))
        volume_sweep_arm(volume); /* who waits in wait_share is woken by the end of a store */
}

void agent_volume_pin(struct agent_volume *volume, uint32_t slot)
{
    struct agent_slot *meta = &volume->meta[slot];

    check(meta->state == AGENT_SLOT_FILLING || meta->state == AGENT_SLOT_LIVE);
    check(meta->pins < UINT16_MAX);
    meta->pins++;
}

void agent_volume_unpin(struct agent_volume *volume, uint32_t slot)
{
    check(volume->meta[slot].pins > 0);
    volume->meta[slot].pins--;
    volume_kick_send(volume);
}

/* ---- use ------------------------------------------------------------------------------------ */

void agent_volume_touch(struct agent_volume *volume, uint32_t slot)
{
    extents_use(&volume->extents, slot);
}

bool agent_volume_again(struct agent_volume *volume, const struct key *key)
{
    uint64_t hash = hash64_seed(key->bytes, sizeof(key->bytes), volume->secret);
    uint64_t extent_bytes = agent_volume_extent_bytes(volume, agent_volume_room(volume, key));
    struct agent_passed *note = &volume->passed[hash & (volume->passed_count - 1)];
    uint32_t tag = (uint32_t)(hash >> 32) | 1; /* 0: nothing was noted here */
    uint32_t since = volume->passed_now - note->when;
    bool again = note->tag == tag && since < volume->arena.data_bytes / extent_bytes;

    *note = (struct agent_passed){.tag = again ? 0 : tag, .when = volume->passed_now};
    if (!again)
        volume->passed_now++;
    return again;
}

bool agent_volume_is_sealed(struct agent_volume *volume, uint32_t slot, const struct key *key,
                            uint32_t value_bytes)
{
    const uint8_t *value = agent_volume_memory(volume, slot);

    return sealed_trailer_check(&volume->spec.uuid, key, value_bytes, crc32c(value, value_bytes),
                                value + value_bytes) == ICMS_OK;
}

bool agent_volume_verify(struct agent_volume *volume, uint32_t slot)
{
    const struct agent_slot *meta = &volume->meta[slot];

    check(meta->state == AGENT_SLOT_LIVE);
    if (!volume->spec.sealed || agent_volume_is_sealed(volume, slot, &meta->key, meta->value_bytes))
        return true;
    agent_volume_unpublish(volume, slot);
    return false;
}

/* ---- who has it ----------------------------------------------------------------------------- */

bool agent_volume_is_homeless(const struct agent_volume *volume)
{
    uint64_t all = agent_paths_mask(volume->agent);

    return all != 0 && atomic_load_explicit(&volume->lacking, memory_order_seq_cst) == all;
}

bool agent_volume_lacking_set(struct agent_volume *volume, uint32_t enclosure, bool lacks)
{
    struct shm_arena_header *header = loop_region_base(volume->region);
    uint64_t bit = (uint64_t)1 << enclosure;
    uint64_t before = lacks
                          ? atomic_fetch_or_explicit(&volume->lacking, bit, memory_order_seq_cst)
                          : atomic_fetch_and_explicit(&volume->lacking, ~bit, memory_order_seq_cst);
    bool homeless;

    /* Loops of several enclosures come here: what is written last has seen what was set last. */
    do {
        homeless = agent_volume_is_homeless(volume);
        atomic_store_explicit(&header->homeless, homeless, memory_order_seq_cst);
    } while (agent_volume_is_homeless(volume) != homeless);
    return ((before & bit) != 0) != lacks;
}

void agent_volume_guest_gone(struct agent_volume *volume, uint32_t number)
{
    struct agent_share *share = &volume->shares[number];

    check(list_empty(&share->flushes));
    while (list_pop(&share->stores) != NULL)
        ;
    share->epoch++;
    share->failed = 0;
    share->dirty = 0;
    share->flush = NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

static icms_err volume_region(struct agent_volume *volume, struct err_why *why)
{
    const struct agent_opts *opts = &volume->agent->opts;
    /* a drive of its own writes records from slots */
    bool records = opts->local_path != NULL && opts->own_process;
    uint64_t data_bytes, bytes, seed;
    uint8_t *base;
    icms_err err;

    volume->margin = records ? STORE_HEADER_BYTES : 0;
    data_bytes = u64_max(
        volume->spec.arena_bytes / LIMIT_DISK_ALIGN * LIMIT_DISK_ALIGN,
        bytes_align(agent_volume_extent_bytes(volume, volume->stored_bytes_max), LIMIT_DISK_ALIGN));
    bytes = shm_arena_region_bytes(data_bytes);
    err =
        loop_region_new(volume->agent->env, volume->spec.name, bytes, false, why, &volume->region);
    if (err != ICMS_OK)
        return err;
    if (opts->prefault && loop_region_touch(volume->region) != ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY,
                       "volume %s: there are no %llu MiB for its arena: make it smaller, or leave "
                       "prefault out",
                       volume->spec.name, (unsigned long long)(bytes >> 20));
    /* Clients of this volume learn it, others that choose keys for it do not. */
    loop_entropy(volume->core->loop, &seed, sizeof(seed));
    base = loop_region_base(volume->region);
    shm_arena_format(base, &volume->spec, data_bytes, volume->number, seed);
    err = loop_region_seal(volume->region, why);
    if (err != ICMS_OK)
        return err;
    if (shm_arena_view(base, bytes, &volume->arena) != ICMS_OK)
        return err_set(why, ICMS_CONFIG, "volume %s: sizes that are not possible",
                       volume->spec.name);
    volume->heads = (void *)(base + volume->arena.header->heads_offset);
    volume->slots = (void *)(base + volume->arena.header->slots_offset);
    volume->data = base + volume->arena.header->data_offset;
    return ICMS_OK;
}

icms_err agent_volume_init(struct agent_volume *volume, struct agent *agent, uint32_t number,
                           const struct volume_spec *spec, struct err_why *why)
{
    icms_err err;

    volume->agent = agent;
    volume->number = number;
    volume->core = &agent->cores[number % agent->core_count];
    volume->spec = *spec;
    volume->stored_bytes_max = volume_stored_bytes_max(spec);
    list_init(&volume->free);
    list_init(&volume->limbo);
    list_init(&volume->wait_slot);
    list_init(&volume->wait_share);
    loop_entropy(volume->core->loop, &volume->secret, sizeof(volume->secret));
    for (int i = 0; i < AGENT_KEY_LISTS; i++)
        list_init(&volume->keys[i]);
    for (int i = 0; i < LIMIT_CLIENTS; i++) {
        list_init(&volume->shares[i].stores);
        list_init(&volume->shares[i].flushes);
    }
    loop_timer_init(&volume->sweep, volume_sweep);
    err = volume_region(volume, why);
    if (err != ICMS_OK)
        return err;
    volume->store_bytes_max = volume->arena.data_bytes - volume->arena.data_bytes / 4;
    err = extents_init(&volume->extents, volume->arena.data_bytes, volume->arena.slot_count);
    volume->meta = calloc(volume->arena.slot_count, sizeof(volume->meta[0]));
    volume->leased = calloc((volume->arena.slot_count + 63) / 64, sizeof(uint64_t));
    /* Twice as many as the arena holds of the smallest, so that few notes are written over. */
    for (volume->passed_count = 64;
         volume->passed_count < 2 * volume->arena.data_bytes / AGENT_PASSED_BYTES &&
         volume->passed_count < AGENT_PASSED_MAX;)
        volume->passed_count *= 2;
    volume->passed = calloc(volume->passed_count, sizeof(volume->passed[0]));
    if (err != ICMS_OK || volume->meta == NULL || volume->leased == NULL || volume->passed == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the %u slots of volume %s",
                       volume->arena.slot_count, spec->name);
    return ICMS_OK;
}

void agent_volume_fini(struct agent_volume *volume)
{
    loop_region_free(&volume->region);
    extents_fini(&volume->extents);
    free(volume->meta);
    free(volume->leased);
    free(volume->passed);
}
