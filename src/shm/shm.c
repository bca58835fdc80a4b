/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm/shm.c: layout and rules of the memory that an agent and its clients share.
 *
 * Called by the agent on its loops and by libicms on any thread (rings: one thread at a time a
 * side). No memory is taken and nothing blocks.
 *
 * Invariants: every offset and position that the other side can write is read once and bounded
 * before it is used; own positions never come from shared memory; an even version that was read
 * again after the lease was published means that the slot stays as it is until the lease is zero.
 */
#include "shm/shm.h"

#include <stddef.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"

/* No page is larger, so parts lie side by side in a region. */
#define SHM_PART_ALIGN ((uint64_t)64 << 10)

#define SHM_RING_MASK ((uint32_t)SHM_RING_ENTRIES - 1)
_Static_assert((SHM_RING_ENTRIES & (SHM_RING_ENTRIES - 1)) == 0, "power of two");
_Static_assert(offsetof(struct shm_slot, key) % 8 == 0, "the key is read as two words");
_Static_assert(sizeof(struct shm_slot) % 8 == 0, "slots follow each other");

/* ---- layout --------------------------------------------------------------------------------- */

/* Half as many heads as slots: chains of two on average when all are in use, and of less the larger
 * blocks are. A reader's first look at a head is a miss of its caches: the fewer pages, the better.
 */
static uint64_t arena_heads(uint64_t slots)
{
    uint64_t heads = 16;

    while (heads < slots / 2)
        heads *= 2;
    return heads;
}

struct shard_layout {
    uint64_t slots, heads;
    uint64_t heads_offset, slots_offset, bytes;
};

static void shard_layout_of(uint64_t bytes_max, struct shard_layout *out)
{
    out->slots = u64_min(u64_max(bytes_max / SHM_SLOT_BYTES, 1), SHM_SLOT_NONE / 4);
    out->heads = arena_heads(out->slots);
    out->heads_offset = bytes_align(sizeof(struct shm_arena_header), 64);
    out->slots_offset = bytes_align(out->heads_offset + out->heads * sizeof(uint32_t), 64);
    out->bytes =
        bytes_align(out->slots_offset + out->slots * sizeof(struct shm_slot), LIMIT_DISK_ALIGN);
}

uint64_t shm_shard_bytes(uint64_t bytes_max)
{
    struct shard_layout layout;

    shard_layout_of(bytes_max, &layout);
    return layout.bytes;
}

uint64_t shm_part_bytes(uint64_t shards_bytes, uint64_t data_bytes)
{
    return bytes_align(shards_bytes + data_bytes, SHM_PART_ALIGN);
}

static void uuid_words_set(struct shm_arena_header *header, const struct uuid *uuid)
{
    uint64_t words[2];

    _Static_assert(sizeof(words) == sizeof(uuid->bytes), "a UUID is two words");
    memcpy(words, uuid->bytes, sizeof(words));
    for (int i = 0; i < 2; i++)
        atomic_store_explicit(&header->volume_uuid[i], words[i], memory_order_release);
}

void shm_arena_identity_begin(struct shm_arena_header *header)
{
    atomic_fetch_add_explicit(&header->identity, 1, memory_order_seq_cst);
}

void shm_arena_identity_end(struct shm_arena_header *header, const struct uuid *uuid)
{
    uuid_words_set(header, uuid);
    atomic_fetch_add_explicit(&header->identity, 1, memory_order_seq_cst);
}

void shm_shard_format(void *base, const struct volume_spec *volume, const struct shm_shard *shard)
{
    struct shm_arena_header *header = base;
    struct shard_layout layout;
    _Atomic uint32_t *heads;
    struct shm_slot *slots;

    check(shard->data_bytes > 0 && shard->data_bytes % LIMIT_DISK_ALIGN == 0);
    shard_layout_of(shard->bytes_max, &layout);
    header->magic = SHM_ARENA_MAGIC;
    header->version = SHM_VERSION;
    header->volume = shard->number;
    header->reactor = shard->reactor;
    header->reactor_count = shard->reactor_count;
    uuid_words_set(header, &volume->uuid);
    header->value_bytes_max = volume_carried_bytes_max(volume);
    header->sealed = volume->sealed;
    header->encrypted = volume->encrypted;
    header->run_blocks = volume->run_blocks;
    header->head_count = (uint32_t)layout.heads;
    header->slot_count = (uint32_t)layout.slots;
    header->data_bytes = shard->data_bytes;
    header->heads_offset = layout.heads_offset;
    header->slots_offset = layout.slots_offset;
    header->data_offset = shard->data_offset;
    header->hash_seed = shard->hash_seed;
    memcpy(header->name, volume->name, sizeof(header->name));
    header->name[sizeof(header->name) - 1] = 0;

    heads = (void *)((uint8_t *)base + layout.heads_offset);
    for (uint64_t i = 0; i < layout.heads; i++)
        atomic_init(&heads[i], SHM_SLOT_NONE);
    slots = (void *)((uint8_t *)base + layout.slots_offset);
    for (uint64_t i = 0; i < layout.slots; i++) {
        atomic_init(&slots[i].version, 1); /* free */
        atomic_init(&slots[i].next, SHM_SLOT_NONE);
    }
}

struct client_layout {
    uint64_t qpairs_offset, leases_offset, lease_shards_offset;
    uint64_t counts_offset, staging_offset;
};

static void client_layout_of(uint32_t reactor_count, struct client_layout *out)
{
    out->qpairs_offset = bytes_align(sizeof(struct shm_client_header), 64);
    out->leases_offset = out->qpairs_offset + reactor_count * sizeof(struct shm_qpair);
    out->lease_shards_offset = out->leases_offset + SHM_LEASES * sizeof(uint32_t);
    out->counts_offset = bytes_align(out->lease_shards_offset + SHM_LEASES * sizeof(uint32_t), 64);
    out->staging_offset = bytes_align(
        out->counts_offset + LIMIT_AGENT_VOLUMES * SHM_COUNTS * sizeof(uint64_t), LIMIT_DISK_ALIGN);
}

uint64_t shm_client_region_bytes(uint32_t reactor_count, uint64_t staging_bytes)
{
    struct client_layout layout;

    client_layout_of(reactor_count, &layout);
    return layout.staging_offset + bytes_align(staging_bytes, LIMIT_DISK_ALIGN);
}

void shm_client_format(void *base, uint32_t client, uint32_t reactor_count, uint64_t staging_bytes)
{
    struct shm_client_header *header = base;
    struct client_layout layout;

    client_layout_of(reactor_count, &layout);
    header->magic = SHM_CLIENT_MAGIC;
    header->version = SHM_VERSION;
    header->client = client;
    header->reactor_count = reactor_count;
    header->qpairs_offset = layout.qpairs_offset;
    header->leases_offset = layout.leases_offset;
    header->lease_shards_offset = layout.lease_shards_offset;
    header->counts_offset = layout.counts_offset;
    header->staging_offset = layout.staging_offset;
    header->staging_bytes = bytes_align(staging_bytes, LIMIT_DISK_ALIGN);
}

/* ---- views ---------------------------------------------------------------------------------- */

/* True when count items of item_bytes lie inside the region behind its header. */
static bool table_fits(uint64_t offset, uint64_t count, uint64_t item_bytes, uint64_t align,
                       uint64_t header_bytes, uint64_t bytes)
{
    return offset >= header_bytes && offset <= bytes && offset % align == 0 &&
           count <= (bytes - offset) / item_bytes;
}

/* Parts have the same size, so where one begins needs no word of the other side. */
icms_err shm_arena_view(const void *base, uint64_t bytes, uint32_t reactor, uint32_t reactor_count,
                        uint64_t offset, struct shm_arena *out_arena)
{
    const uint64_t header_bytes = sizeof(struct shm_arena_header);
    struct shm_arena_header h = {0};
    struct shm_arena arena = {0};

    check(reactor < reactor_count);
    bytes = bytes / reactor_count / LIMIT_DISK_ALIGN * LIMIT_DISK_ALIGN;
    if (offset >= bytes || offset % LIMIT_DISK_ALIGN != 0 || bytes - offset < header_bytes)
        return ICMS_PROTOCOL;
    base = (const uint8_t *)base + reactor * bytes + offset;
    bytes -= offset;
    memcpy(&h, base, offsetof(struct shm_arena_header, volume_missing)); /* what stays as it is */
    if (h.magic != SHM_ARENA_MAGIC || h.version != SHM_VERSION || h.volume >= LIMIT_AGENT_VOLUMES ||
        h.reactor != reactor || h.reactor_count != reactor_count || h.sealed > 1 ||
        h.encrypted > h.sealed || h.run_blocks == 0)
        return ICMS_PROTOCOL;
    if (h.value_bytes_max == 0 || h.value_bytes_max > LIMIT_VALUE_BYTES ||
        h.data_bytes < h.value_bytes_max + (h.sealed ? LIMIT_TRAILER_BYTES : 0))
        return ICMS_PROTOCOL;
    if (!bytes_power_of_two(h.head_count) || h.slot_count == 0 || h.slot_count == SHM_SLOT_NONE)
        return ICMS_PROTOCOL;
    if (!table_fits(h.heads_offset, h.head_count, sizeof(uint32_t), 64, header_bytes, bytes) ||
        !table_fits(h.slots_offset, h.slot_count, sizeof(struct shm_slot), 64, header_bytes,
                    bytes) ||
        !table_fits(h.data_offset, h.data_bytes, 1, LIMIT_DISK_ALIGN, header_bytes, bytes))
        return ICMS_PROTOCOL;
    if (memchr(h.name, 0, sizeof(h.name)) == NULL)
        return ICMS_PROTOCOL;

    arena.header = base;
    arena.heads = (const void *)((const uint8_t *)base + h.heads_offset);
    arena.slots = (const void *)((const uint8_t *)base + h.slots_offset);
    arena.data = (const uint8_t *)base + h.data_offset;
    arena.head_count = h.head_count;
    arena.slot_count = h.slot_count;
    arena.data_bytes = h.data_bytes;
    arena.hash_seed = h.hash_seed;
    arena.value_bytes_max = h.value_bytes_max;
    arena.volume = h.volume;
    arena.shard = h.volume * reactor_count + reactor;
    arena.run_blocks = h.run_blocks;
    arena.sealed = h.sealed != 0;
    arena.encrypted = h.encrypted != 0;
    memcpy(arena.name, h.name, sizeof(arena.name));
    (void)!shm_arena_identify(&arena); /* changing: an odd one, which is never current for long */
    *out_arena = arena;
    return ICMS_OK;
}

bool shm_arena_identify(struct shm_arena *io_arena)
{
    const struct shm_arena_header *header = io_arena->header;
    uint32_t identity = atomic_load_explicit(&header->identity, memory_order_acquire);
    uint64_t words[2];

    for (int i = 0; i < 2; i++)
        words[i] = atomic_load_explicit(&header->volume_uuid[i], memory_order_acquire);
    io_arena->identity = identity;
    io_arena->uuid = (struct uuid){{0}};
    if (identity % 2 != 0 ||
        atomic_load_explicit(&header->identity, memory_order_acquire) != identity)
        return false;
    memcpy(io_arena->uuid.bytes, words, sizeof(words));
    return true;
}

uint32_t shm_reactor_count(const void *base, uint64_t bytes)
{
    const struct shm_client_header *header = base;
    uint32_t count;

    if (bytes < sizeof(*header) || header->magic != SHM_CLIENT_MAGIC ||
        header->version != SHM_VERSION)
        return 0;
    count = *(const volatile uint32_t *)&header->reactor_count;
    return count <= LIMIT_LOOPS ? count : 0;
}

icms_err shm_ring_view(void *base, uint64_t bytes, uint32_t reactor, struct shm_ring *out_ring)
{
    const uint64_t header_bytes = sizeof(struct shm_client_header);
    uint32_t reactor_count = shm_reactor_count(base, bytes);
    struct shm_client_header *header = base;
    struct shm_ring ring = {0};
    uint64_t qpairs, leases, shards, counts, staging, staging_bytes;

    if (reactor >= reactor_count)
        return ICMS_PROTOCOL;
    /* The other side may write these while they are read: once each. */
    qpairs = *(volatile uint64_t *)&header->qpairs_offset;
    leases = *(volatile uint64_t *)&header->leases_offset;
    shards = *(volatile uint64_t *)&header->lease_shards_offset;
    counts = *(volatile uint64_t *)&header->counts_offset;
    staging = *(volatile uint64_t *)&header->staging_offset;
    staging_bytes = *(volatile uint64_t *)&header->staging_bytes;
    if (!table_fits(qpairs, reactor_count, sizeof(struct shm_qpair), 64, header_bytes, bytes) ||
        !table_fits(leases, SHM_LEASES, sizeof(uint32_t), 4, header_bytes, bytes) ||
        !table_fits(shards, SHM_LEASES, sizeof(uint32_t), 4, header_bytes, bytes) ||
        !table_fits(counts, LIMIT_AGENT_VOLUMES, SHM_COUNTS * sizeof(uint64_t), 64, header_bytes,
                    bytes) ||
        !table_fits(staging, staging_bytes, 1, LIMIT_DISK_ALIGN, header_bytes, bytes))
        return ICMS_PROTOCOL;

    ring.header = header;
    ring.qpair = (struct shm_qpair *)(void *)((uint8_t *)base + qpairs) + reactor;
    ring.leases = (void *)((uint8_t *)base + leases);
    ring.lease_shards = (void *)((uint8_t *)base + shards);
    ring.counts = (void *)((uint8_t *)base + counts);
    ring.staging = (uint8_t *)base + staging;
    ring.staging_bytes = staging_bytes;
    *out_ring = ring;
    return ICMS_OK;
}

/* ---- the arena ------------------------------------------------------------------------------ */

uint32_t shm_arena_head(uint64_t hash_seed, uint32_t head_count, const struct key *key)
{
    uint8_t bytes[LIMIT_KEY_BYTES + 1];

    memcpy(bytes, key->bytes, LIMIT_KEY_BYTES);
    bytes[LIMIT_KEY_BYTES] = key->length;
    return (uint32_t)hash64_seed(bytes, sizeof(bytes), hash_seed) & (head_count - 1);
}

void shm_slot_key_set(struct shm_slot *slot, const struct key *key)
{
    uint64_t words[2];

    memcpy(words, key->bytes, sizeof(words));
    __atomic_store_n((uint64_t *)(void *)slot->key, words[0], __ATOMIC_RELAXED);
    __atomic_store_n((uint64_t *)(void *)(slot->key + 8), words[1], __ATOMIC_RELAXED);
    __atomic_store_n(&slot->key_length, key->length, __ATOMIC_RELAXED);
}

bool shm_slot_key_equal(const struct shm_slot *slot, const struct key *key)
{
    uint64_t words[2];

    memcpy(words, key->bytes, sizeof(words));
    /* Acquire: what is read after this, the version above all, is read later. */
    return __atomic_load_n((const uint64_t *)(const void *)slot->key, __ATOMIC_ACQUIRE) ==
               words[0] &&
           __atomic_load_n((const uint64_t *)(const void *)(slot->key + 8), __ATOMIC_ACQUIRE) ==
               words[1] &&
           __atomic_load_n(&slot->key_length, __ATOMIC_ACQUIRE) == key->length;
}

/* Follows a chain to a slot that holds the key with a stable version. */
static bool arena_find_from(const struct shm_arena *arena, uint32_t at, const struct key *key,
                            uint32_t *out_slot, uint64_t *out_version)
{
    for (int step = 0; step < SHM_CHAIN_STEPS_MAX && at < arena->slot_count; step++) {
        const struct shm_slot *slot = &arena->slots[at];
        uint64_t version = atomic_load_explicit(&slot->version, memory_order_acquire);

        if (version % 2 == 0 && shm_slot_key_equal(slot, key)) {
            *out_slot = at;
            *out_version = version;
            return true;
        }
        at = atomic_load_explicit(&slot->next, memory_order_acquire);
    }
    return false;
}

static bool arena_find(const struct shm_arena *arena, const struct key *key, uint32_t *out_slot,
                       uint64_t *out_version)
{
    uint32_t head = shm_arena_head(arena->hash_seed, arena->head_count, key);

    return arena_find_from(arena, atomic_load_explicit(&arena->heads[head], memory_order_acquire),
                           key, out_slot, out_version);
}

bool shm_arena_lease(const struct shm_arena *arena, const struct key *key, _Atomic uint32_t *lease,
                     uint32_t *out_slot, uint64_t *out_version, uint32_t *out_value_bytes)
{
    const struct shm_slot *slot;
    uint32_t at, value_bytes;
    uint64_t version;

    if (!arena_find(arena, key, &at, &version))
        return false;
    slot = &arena->slots[at];
    atomic_store_explicit(lease, at + 1, memory_order_seq_cst);
    if (atomic_load_explicit(&slot->version, memory_order_seq_cst) == version) {
        /* Leased: nothing of the slot changes from here on. */
        value_bytes = atomic_load_explicit(&slot->value_bytes, memory_order_relaxed);
        if (shm_arena_is_current(arena) && shm_slot_key_equal(slot, key) && value_bytes != 0 &&
            value_bytes <= arena->value_bytes_max &&
            shm_arena_value(arena, at, value_bytes) != NULL) {
            *out_slot = at;
            *out_version = version;
            *out_value_bytes = value_bytes;
            return true;
        }
    }
    atomic_store_explicit(lease, 0, memory_order_release);
    return false;
}

const uint8_t *shm_arena_value(const struct shm_arena *arena, uint32_t slot, uint32_t value_bytes)
{
    uint64_t stored_bytes = (uint64_t)value_bytes + (arena->sealed ? LIMIT_TRAILER_BYTES : 0);
    uint64_t offset;

    if (slot >= arena->slot_count || stored_bytes > arena->data_bytes)
        return NULL;
    offset = atomic_load_explicit(&arena->slots[slot].offset, memory_order_relaxed);
    if (offset % SHM_VALUE_ALIGN != 0 || offset > arena->data_bytes - stored_bytes)
        return NULL;
    return arena->data + offset;
}

/* Three passes, so that the reads of one pass wait for memory together. */
size_t shm_arena_has_first(const struct shm_arena *arena, const struct key *keys, size_t count)
{
    uint32_t heads[SHM_PROBE_KEYS], slots[SHM_PROBE_KEYS];
    uint64_t version;
    uint32_t at;

    check(count <= SHM_PROBE_KEYS);
    for (size_t i = 0; i < count; i++) {
        heads[i] = shm_arena_head(arena->hash_seed, arena->head_count, &keys[i]);
        __builtin_prefetch(&arena->heads[heads[i]]);
    }
    for (size_t i = 0; i < count; i++) {
        slots[i] = atomic_load_explicit(&arena->heads[heads[i]], memory_order_acquire);
        if (slots[i] < arena->slot_count)
            __builtin_prefetch(&arena->slots[slots[i]]);
    }
    for (size_t i = 0; i < count; i++)
        if (!arena_find_from(arena, slots[i], &keys[i], &at, &version) ||
            atomic_load_explicit(&arena->slots[at].version, memory_order_acquire) != version) {
            count = i;
            break;
        }
    return shm_arena_is_current(arena) ? count : 0;
}

/* ---- reactors ------------------------------------------------------------------------------- */

/* Other bits than those that choose enclosures and drives: a reactor has keys of all of them. */
#define SHM_REACTOR_SEED 0x72656163746f7273u

uint32_t shm_reactor(const struct key *key, bool runs, uint32_t reactor_count)
{
    bool by_run = runs && key->length == LIMIT_KEY_BYTES;
    uint64_t hash;

    if (reactor_count == 1)
        return 0;
    hash = hash64_seed(key->bytes, by_run ? LIMIT_RUN_BYTES : key->length, SHM_REACTOR_SEED);
    return (uint32_t)((hash >> 32) * reactor_count >> 32);
}

/* ---- rings ---------------------------------------------------------------------------------- */

/* The producers' rule: true when there is space between the own tail and a head that the other side
 * wrote; a head that makes no sense counts as full. */
static bool ring_has_space(uint32_t tail, uint32_t head)
{
    return tail - head < SHM_RING_ENTRIES;
}

bool shm_submit_push(struct shm_ring *ring, const struct shm_submit *entry)
{
    uint32_t head = atomic_load_explicit(&ring->qpair->submit_head, memory_order_acquire);

    if (!ring_has_space(ring->submit_tail, head))
        return false;
    ring->qpair->submits[ring->submit_tail & SHM_RING_MASK] = *entry;
    ring->submit_tail++;
    return true;
}

bool shm_submit_wake(struct shm_ring *ring)
{
    if (atomic_load_explicit(&ring->qpair->agent_sleeps, memory_order_seq_cst) == 0)
        return false;
    return atomic_exchange_explicit(&ring->qpair->agent_sleeps, 0, memory_order_seq_cst) != 0;
}

bool shm_submit_publish(struct shm_ring *ring)
{
    if (ring->submit_rung == ring->submit_tail)
        return false; /* nothing new: nobody is woken for it */
    ring->submit_rung = ring->submit_tail;
    atomic_store_explicit(&ring->qpair->submit_tail, ring->submit_tail, memory_order_seq_cst);
    return shm_submit_wake(ring);
}

bool shm_submit_hint(struct shm_ring *ring, const struct shm_submit *entry)
{
    bool alone = ring->submit_rung == ring->submit_tail;

    if (!shm_submit_push(ring, entry))
        return false;
    if (alone) {
        ring->submit_rung = ring->submit_tail;
        atomic_store_explicit(&ring->qpair->submit_tail, ring->submit_tail, memory_order_release);
    }
    return true;
}

icms_err shm_submit_take(struct shm_ring *ring, struct shm_submit *out_entries, uint32_t max,
                         uint32_t *out_count)
{
    uint32_t tail = atomic_load_explicit(&ring->qpair->submit_tail, memory_order_acquire);
    uint32_t count = tail - ring->submit_head;

    if (count > SHM_RING_ENTRIES)
        return ICMS_PROTOCOL;
    if (count > max)
        count = max;
    for (uint32_t i = 0; i < count; i++)
        out_entries[i] = ring->qpair->submits[(ring->submit_head + i) & SHM_RING_MASK];
    ring->submit_head += count;
    if (count != 0)
        atomic_store_explicit(&ring->qpair->submit_head, ring->submit_head, memory_order_release);
    *out_count = count;
    return ICMS_OK;
}

bool shm_complete_push(struct shm_ring *ring, const struct shm_complete *entry)
{
    uint32_t head = atomic_load_explicit(&ring->qpair->complete_head, memory_order_acquire);

    if (!ring_has_space(ring->complete_tail, head))
        return false;
    ring->qpair->completes[ring->complete_tail & SHM_RING_MASK] = *entry;
    ring->complete_tail++;
    return true;
}

bool shm_complete_part(struct shm_ring *ring, const struct shm_complete *entry)
{
    uint32_t head = atomic_load_explicit(&ring->qpair->complete_head, memory_order_acquire);

    return ring->complete_tail - head < SHM_RING_ENTRIES / 2 && shm_complete_push(ring, entry);
}

bool shm_complete_publish(struct shm_ring *ring)
{
    if (atomic_load_explicit(&ring->qpair->complete_tail, memory_order_relaxed) ==
        ring->complete_tail)
        return false;
    atomic_store_explicit(&ring->qpair->complete_tail, ring->complete_tail, memory_order_seq_cst);
    if (atomic_load_explicit(&ring->qpair->client_sleeps, memory_order_seq_cst) == 0)
        return false;
    return atomic_exchange_explicit(&ring->qpair->client_sleeps, 0, memory_order_seq_cst) != 0;
}

icms_err shm_complete_take(struct shm_ring *ring, struct shm_complete *out_entries, uint32_t max,
                           uint32_t *out_count)
{
    uint32_t tail = atomic_load_explicit(&ring->qpair->complete_tail, memory_order_acquire);
    uint32_t count = tail - ring->complete_head;

    if (count > SHM_RING_ENTRIES)
        return ICMS_PROTOCOL;
    if (count > max)
        count = max;
    for (uint32_t i = 0; i < count; i++)
        out_entries[i] = ring->qpair->completes[(ring->complete_head + i) & SHM_RING_MASK];
    ring->complete_head += count;
    if (count != 0)
        atomic_store_explicit(&ring->qpair->complete_head, ring->complete_head,
                              memory_order_release);
    *out_count = count;
    return ICMS_OK;
}

bool shm_agent_sleep(struct shm_ring *ring)
{
    atomic_store_explicit(&ring->qpair->agent_sleeps, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&ring->qpair->submit_tail, memory_order_seq_cst) == ring->submit_head)
        return true;
    atomic_store_explicit(&ring->qpair->agent_sleeps, 0, memory_order_relaxed);
    return false;
}

bool shm_client_sleep(struct shm_ring *ring)
{
    atomic_store_explicit(&ring->qpair->client_sleeps, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&ring->qpair->complete_tail, memory_order_seq_cst) ==
        ring->complete_head)
        return true;
    atomic_store_explicit(&ring->qpair->client_sleeps, 0, memory_order_relaxed);
    return false;
}
