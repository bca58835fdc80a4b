/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/slot.c: the slots of a shard: which block is in which one, who reads it, which ones go.
 *
 * Called by slab.c, shard.c, op.c and req.c on the reactor's loop; nothing here blocks.
 *
 * Life of a slot: FREE -> agent_shard_place -> FILLING -> agent_shard_publish -> LIVE ->
 * agent_shard_unpublish -> LIMBO -> shard_sweep -> FREE. It has its extent of the data
 * (extent.h) from its place on until it is FREE.
 *
 * Invariants: a slot's version is even only while LIVE; a slot is FREE only when it has no pin and
 * no lease was seen after its version became odd, so nobody reads its memory, and no operation
 * names it. Who was told that a block arrives (agent_waiter.came) may read it at any time, and
 * believes what it finds there only as far as tags or the checksum of the whole value pass. A
 * slot's offset changes only when it becomes FILLING. What the arena says is written by us alone;
 * what decides (keys, chains' heads, sizes) is kept in meta too and never read back from it, except
 * the chain links.
 */
#include "agent/agent_int.h"

/* ---- leases --------------------------------------------------------------------------------- */

/* Looks through the lease tables of all clients: sets shard->leased. What a client wrote there is
 * bounded and otherwise believed: it can hold slots, 512 at most, and do nothing else. */
static void shard_leases_look(struct agent_shard *shard)
{
    uint32_t slot_count = shard->arena.slot_count;

    memset(shard->leased, 0, (slot_count + 63) / 64 * 8);
    for (uint32_t i = 0; i < LIMIT_CLIENTS; i++) {
        const struct agent_client *client = &shard->agent->clients[i];
        const struct shm_ring *ring = &client->qpairs[shard->reactor->index].ring;

        if (!atomic_load_explicit(&client->visible, memory_order_seq_cst) ||
            (client->volumes >> shard->number & 1) == 0)
            continue;
        for (uint32_t j = 0; j < SHM_LEASES; j++) {
            uint32_t slot = atomic_load_explicit(&ring->leases[j], memory_order_seq_cst) - 1;

            if (slot < slot_count &&
                atomic_load_explicit(&ring->lease_shards[j], memory_order_acquire) ==
                    shard->arena.shard)
                shard->leased[slot / 64] |= (uint64_t)1 << slot % 64;
        }
    }
}

static bool shard_is_leased(const struct agent_shard *shard, uint32_t slot)
{
    return (shard->leased[slot / 64] >> slot % 64 & 1) != 0;
}

void agent_shard_lease(struct agent_shard *shard, uint32_t slot, const struct shm_ring *ring,
                       uint32_t lease)
{
    check(shard->meta[slot].state == AGENT_SLOT_LIVE && lease < SHM_LEASES);
    atomic_store_explicit(&ring->lease_shards[lease], shard->arena.shard, memory_order_release);
    atomic_store_explicit(&ring->leases[lease], slot + 1, memory_order_seq_cst);
}

/* ---- in which slabs ---------------------------------------------------------------------------
 */

static uint32_t slab_of(const struct agent_slabs *slabs, uint64_t address)
{
    return (uint32_t)(address / slabs->arena->slab_bytes);
}

/* It may lie in two slabs. */
static void slot_slab_used(struct agent_shard *shard, uint32_t slot)
{
    const struct extent *extent = &shard->extents.of[slot];
    struct agent_slabs *slabs = shard->slabs;
    uint64_t now_ns = reactor_now_ns(shard->reactor);

    slabs->last_ns[slab_of(slabs, extent->begin)] = now_ns;
    slabs->last_ns[slab_of(slabs, extent->begin + extent->bytes - 1)] = now_ns;
}

static void slot_slab_taken(struct agent_shard *shard, uint32_t slot)
{
    uint32_t slab = slab_of(shard->slabs, shard->extents.of[slot].begin);

    if (shard->slab_first[slab] == SHM_SLOT_NONE)
        shard->slab_first[slab] = slot;
    slot_slab_used(shard, slot);
}

static void slot_slab_gone(struct agent_shard *shard, uint32_t slot)
{
    const struct extent *of = shard->extents.of;
    uint32_t slab = slab_of(shard->slabs, of[slot].begin), slot_count = shard->arena.slot_count;
    uint32_t beside[2] = {of[slot].prev, of[slot].next};

    if (shard->slab_first[slab] != slot)
        return;
    shard->slab_first[slab] = SHM_SLOT_NONE;
    for (int i = 0; i < 2; i++)
        if (beside[i] < slot_count && slab_of(shard->slabs, of[beside[i]].begin) == slab)
            shard->slab_first[slab] = beside[i];
}

/* ---- the index ------------------------------------------------------------------------------ */

static uint32_t shard_find_from(struct agent_shard *shard, uint32_t head, const struct key *key)
{
    uint32_t at = atomic_load_explicit(&shard->heads[head], memory_order_relaxed);

    while (at != SHM_SLOT_NONE) {
        check(at < shard->arena.slot_count);
        if (key_equal(&shard->meta[at].key, key))
            return at;
        at = atomic_load_explicit(&shard->slots[at].next, memory_order_relaxed);
    }
    return SHM_SLOT_NONE;
}

uint32_t agent_shard_find(struct agent_shard *shard, const struct key *key)
{
    return shard_find_from(
        shard, shm_arena_head(shard->arena.hash_seed, shard->arena.head_count, key), key);
}

/* The heads lie all over the index: they are fetched together. */
uint32_t agent_shard_find_many(struct agent_shard *shard, const struct key *keys, uint32_t count)
{
    uint32_t heads[SHM_PROBE_KEYS], there = 0;

    check(count >= 1 && count <= SHM_PROBE_KEYS);
    for (uint32_t i = 0; i < count; i++) {
        heads[i] = shm_arena_head(shard->arena.hash_seed, shard->arena.head_count, &keys[i]);
        __builtin_prefetch(&shard->heads[heads[i]]);
    }
    for (uint32_t i = 0; i < count; i++)
        if (shard_find_from(shard, heads[i], &keys[i]) != SHM_SLOT_NONE)
            there |= 1u << i;
    return there;
}

/* The last slot of a chain that has no space for one more; NONE: it has space. Who knows the seed
 * can choose keys of one chain: the oldest goes, so that no lookup is slow. */
static uint32_t shard_chain_over(const struct agent_shard *shard, uint32_t head)
{
    uint32_t at = atomic_load_explicit(&shard->heads[head], memory_order_relaxed);

    for (int steps = 1; at != SHM_SLOT_NONE; steps++) {
        check(at < shard->arena.slot_count);
        if (steps == SHM_CHAIN_STEPS_MAX)
            return at;
        at = atomic_load_explicit(&shard->slots[at].next, memory_order_relaxed);
    }
    return SHM_SLOT_NONE;
}

static void shard_version_step(struct agent_shard *shard, uint32_t slot)
{
    struct shm_slot *shared = &shard->slots[slot];
    uint64_t version = atomic_load_explicit(&shared->version, memory_order_relaxed);

    atomic_store_explicit(&shared->version, version + 1, memory_order_seq_cst);
}

static void shard_wake_send(struct agent_shard *shard);

/* The list of a LIVE block by which it goes before others, or NULL. */
static struct list *slot_list(struct agent_shard *shard, uint32_t slot)
{
    if (shard->meta[slot].once)
        return &shard->once;
    return agent_shard_is_large(shard, agent_shard_slot_bytes(shard, slot)) ? &shard->large : NULL;
}

void agent_shard_publish(struct agent_shard *shard, uint32_t slot, const struct key *key,
                         uint32_t value_bytes, bool once)
{
    struct agent_slot *meta = &shard->meta[slot];
    struct shm_slot *shared = &shard->slots[slot];
    uint64_t stored_bytes = value_bytes + (shard->spec.sealed ? LIMIT_TRAILER_BYTES : 0);
    uint32_t head = shm_arena_head(shard->arena.hash_seed, shard->arena.head_count, key);
    uint32_t old = shard_find_from(shard, head, key);
    struct list *list;

    check(meta->state == AGENT_SLOT_FILLING);
    meta->once = once && (old == SHM_SLOT_NONE || shard->meta[old].once);
    if (old == SHM_SLOT_NONE)
        old = shard_chain_over(shard, head);
    if (old != SHM_SLOT_NONE)
        agent_shard_unpublish(shard, old);
    if (extents_trim(&shard->extents, slot, agent_shard_extent_bytes(shard, stored_bytes)))
        shard_wake_send(shard);
    list = slot_list(shard, slot);
    if (list != NULL)
        list_push(list, &meta->link);
    meta->state = AGENT_SLOT_LIVE;
    meta->was_read = false;
    meta->value_bytes = value_bytes;
    meta->key = *key;
    meta->head = head;
    shm_slot_key_set(shared, key);
    atomic_store_explicit(&shared->value_bytes, value_bytes, memory_order_relaxed);
    shard_version_step(shard, slot); /* even: stable */
    atomic_store_explicit(&shared->next,
                          atomic_load_explicit(&shard->heads[meta->head], memory_order_relaxed),
                          memory_order_release);
    atomic_store_explicit(&shard->heads[meta->head], slot, memory_order_release);
    counter_add(&shard->slots_used, 1);
    counter_add(&shard->used_bytes, value_bytes);
    meta->since_ns = reactor_now_ns(shard->reactor);
    if (shard->events != NULL)
        agent_event_put(shard, key, AGENT_EVENT_STORED, AGENT_EVENT_DRAM);
}

static void shard_unlink(struct agent_shard *shard, uint32_t slot)
{
    _Atomic uint32_t *from = &shard->heads[shard->meta[slot].head];
    uint32_t at;

    while ((at = atomic_load_explicit(from, memory_order_relaxed)) != slot) {
        check(at < shard->arena.slot_count);
        from = &shard->slots[at].next;
    }
    atomic_store_explicit(from,
                          atomic_load_explicit(&shard->slots[slot].next, memory_order_relaxed),
                          memory_order_release);
}

static void shard_slot_free(struct agent_shard *shard, uint32_t slot)
{
    struct agent_slot *meta = &shard->meta[slot];

    check(meta->pins == 0 && meta->state != AGENT_SLOT_LIVE);
    if (shard->slabs != NULL)
        slot_slab_gone(shard, slot);
    extents_give(&shard->extents, slot);
    meta->state = AGENT_SLOT_FREE;
    list_push(&shard->free, &meta->link);
}

static void shard_wake(struct loop_msg *msg);

/* A slot is free, or may be: whoever waits for one looks, after what runs now. */
static void shard_wake_send(struct agent_shard *shard)
{
    if (shard->wake_sent ||
        (line_first(&shard->wait_slot) == NULL && line_first(&shard->wait_share) == NULL))
        return;
    shard->wake_sent = true;
    loop_send(shard->reactor->loop, &shard->wake, shard_wake);
}

void agent_shard_sweep_arm(struct agent_shard *shard)
{
    if (!loop_timer_armed(&shard->sweep))
        loop_timer_start(shard->reactor->loop, &shard->sweep,
                         reactor_now_ns(shard->reactor) + AGENT_RETRY_NS);
}

void agent_shard_unpublish(struct agent_shard *shard, uint32_t slot)
{
    struct agent_slot *meta = &shard->meta[slot];

    check(meta->state == AGENT_SLOT_LIVE);
    if (meta->hint != 0)
        shard->hint_gone(shard, slot);
    shard_version_step(shard, slot); /* odd: changing */
    shard_unlink(shard, slot);
    list_remove(&meta->link); /* once, large */
    meta->state = AGENT_SLOT_LIMBO;
    list_push(&shard->limbo, &meta->link);
    counter_add(&shard->slots_used, -(uint64_t)1);
    counter_add(&shard->used_bytes, -(uint64_t)meta->value_bytes);
    agent_shard_sweep_arm(shard);
    if (shard->events != NULL && shard->identity % 2 == 0) /* else all are going */
        agent_event_put(shard, &meta->key, AGENT_EVENT_REMOVED, AGENT_EVENT_DRAM);
}

/* ---- space ---------------------------------------------------------------------------------- */

/* Frees what of limbo is neither leased nor pinned. */
static void shard_limbo_free(struct agent_shard *shard)
{
    if (list_empty(&shard->limbo))
        return;
    shard_leases_look(shard);
    list_for_each_safe (link, &shard->limbo) {
        struct agent_slot *meta = container_of(link, struct agent_slot, link);
        uint32_t slot = (uint32_t)(meta - shard->meta);

        if (meta->pins > 0 || shard_is_leased(shard, slot))
            continue;
        list_remove(&meta->link);
        shard_slot_free(shard, slot);
    }
}

static bool shard_may_go(void *arg, uint32_t slot)
{
    struct agent_shard *shard = arg;
    const struct agent_slot *meta = &shard->meta[slot];

    if (slot >= shard->arena.slot_count)
        return false; /* a reservation */
    return meta->state == AGENT_SLOT_LIVE && meta->pins == 0 && !shard_is_leased(shard, slot) &&
           (meta->kept <= shard->evicts || (meta->kept == AGENT_KEPT_PIN && shard->yields));
}

const char *agent_evicted_name(enum agent_evicted what)
{
    static const char *const names[] = {
#define AGENT_EVICTED_XX(name, text) [AGENT_EVICTED_##name] = (text),
        AGENT_EVICTED_MAP(AGENT_EVICTED_XX)
#undef AGENT_EVICTED_XX
    };

    return (unsigned)what < AGENT_EVICTED_COUNT ? names[what] : "?";
}

static void shard_evict_slot(struct agent_shard *shard, uint32_t slot, enum agent_evicted what)
{
    hist_add(&shard->evicted_age_ns, reactor_now_ns(shard->reactor) - shard->meta[slot].since_ns);
    agent_tier_evicted(shard, slot);
    agent_shard_unpublish(shard, slot);
    counter_add(&shard->evicted[what], 1);
}

/* Takes what has to go for such an extent out of the index, and a little ahead, unless what is kept
 * would go for that. Leased blocks are in use. */
static void shard_evict(struct agent_shard *shard, uint64_t extent_bytes)
{
    uint64_t ahead =
        shard->evicts != AGENT_KEPT_NOT ? 0 : counter_get(&shard->bytes) / AGENT_EVICT_SHARE;
    struct extent_sweep sweep = {.may = shard_may_go, .arg = shard};
    uint32_t slot, last;

    shard_leases_look(shard);
    for (int i = 0; i < AGENT_EVICT_MAX && (i == 0 || sweep.bytes + extent_bytes <= ahead); i++) {
        if (!extents_window(&shard->extents, extent_bytes, &sweep, &slot, &last))
            return;
        for (bool more = true; more; slot = shard->extents.of[slot].next) {
            more = slot != last;
            shard_evict_slot(shard, slot, AGENT_EVICTED_SPACE);
        }
    }
}

/* The first slot that lies in part of the arena, or behind it. */
static uint32_t shard_first(const struct agent_shard *shard, uint32_t before, uint64_t begin)
{
    const struct extents *extents = &shard->extents;

    if (before == extents->count || extents->of[before].begin + extents->of[before].bytes <= begin)
        return extents->of[before].next;
    return before;
}

bool agent_shard_is_clear(struct agent_shard *shard, uint32_t before, uint64_t begin, uint64_t end)
{
    const struct extents *extents = &shard->extents;
    uint32_t count = 0;

    shard_leases_look(shard);
    for (uint32_t at = shard_first(shard, before, begin);
         at != extents->count && extents->of[at].begin < end && count < AGENT_SLAB_BLOCKS;
         at = extents->of[at].next, count++)
        if (!shard_may_go(shard, at))
            return false;
    return true;
}

bool agent_shard_clear(struct agent_shard *shard, uint32_t before, uint64_t begin, uint64_t end)
{
    const struct extents *extents = &shard->extents;
    uint32_t at = shard_first(shard, before, begin), count = 0;

    for (; at != extents->count && extents->of[at].begin < end && count < AGENT_SLAB_BLOCKS;
         at = extents->of[at].next, count++)
        shard_evict_slot(shard, at, AGENT_EVICTED_VOLUME);
    shard_limbo_free(shard);
    return count < AGENT_SLAB_BLOCKS;
}

bool agent_shard_has_slot(const struct agent_shard *shard)
{
    return !list_empty(&shard->free) || shard->meta_used < shard->arena.slot_count;
}

/* A slot with such an extent; NONE: there is none at this moment. */
static uint32_t shard_slot_find(struct agent_shard *shard, uint64_t extent_bytes)
{
    struct list *link = list_first(&shard->free);
    struct agent_slot *meta;
    uint32_t slot;

    if (!agent_shard_has_slot(shard))
        return SHM_SLOT_NONE;
    meta =
        link != NULL ? container_of(link, struct agent_slot, link) : &shard->meta[shard->meta_used];
    slot = (uint32_t)(meta - shard->meta);
    if (!extents_take(&shard->extents, slot, extent_bytes))
        return SHM_SLOT_NONE;
    if (link != NULL)
        list_remove(link);
    else
        shard->meta_used++;
    list_init(&meta->link);
    meta->state = AGENT_SLOT_FILLING;
    atomic_store_explicit(&shard->slots[slot].offset, shard->extents.of[slot].begin + shard->margin,
                          memory_order_relaxed);
    if (shard->slabs != NULL)
        slot_slab_taken(shard, slot);
    return slot;
}

/* The same with blocks of a list gone, the first one first, as few as it takes: of a stream of them
 * each has the space of the one before, and all else stays. Nothing that is kept: blocks that lie
 * anywhere may all go for no space at all. */
static uint32_t shard_list_replace(struct agent_shard *shard, struct list *list,
                                   uint64_t extent_bytes)
{
    enum agent_evicted what = list == &shard->once ? AGENT_EVICTED_ONCE : AGENT_EVICTED_LARGE;
    uint32_t slot = SHM_SLOT_NONE, tries = 0;

    if (list_empty(list) || shard->evicts != AGENT_KEPT_NOT)
        return SHM_SLOT_NONE;
    shard_leases_look(shard);
    list_for_each_safe (link, list) {
        uint32_t first = (uint32_t)(container_of(link, struct agent_slot, link) - shard->meta);

        if (slot != SHM_SLOT_NONE || tries++ == AGENT_ONCE_TRIES)
            break;
        if (!shard_may_go(shard, first))
            continue;
        shard_evict_slot(shard, first, what);
        shard_limbo_free(shard);
        slot = shard_slot_find(shard, extent_bytes);
    }
    return slot;
}

uint32_t agent_shard_replace_once(struct agent_shard *shard, uint64_t extent_bytes)
{
    return shard_list_replace(shard, &shard->once, extent_bytes);
}

uint32_t agent_shard_place(struct agent_shard *shard, uint64_t extent_bytes)
{
    uint32_t slot = shard_slot_find(shard, extent_bytes);

    if (slot != SHM_SLOT_NONE || list_empty(&shard->limbo))
        return slot;
    shard_limbo_free(shard);
    return shard_slot_find(shard, extent_bytes);
}

uint32_t agent_shard_replace(struct agent_shard *shard, uint64_t extent_bytes)
{
    uint32_t slot = shard_list_replace(shard, &shard->large, extent_bytes);

    if (slot != SHM_SLOT_NONE)
        return slot;
    shard_evict(shard, extent_bytes);
    return agent_shard_place(shard, extent_bytes);
}

/* Behind one that needs much space there may be others that need little. */
static void shard_slot_wake(struct agent_shard *shard)
{
    shard->waking = true;
    agent_line_wake(&shard->wait_slot, AGENT_WAKE_PAST);
    agent_line_wake(&shard->wait_share, AGENT_WAKE_PAST);
    shard->waking = false;
}

void agent_shard_slot_give(struct agent_shard *shard, uint32_t slot)
{
    check(shard->meta[slot].state == AGENT_SLOT_FILLING);
    shard_slot_free(shard, slot);
    shard_wake_send(shard);
}

static void shard_wake(struct loop_msg *msg)
{
    struct agent_shard *shard = container_of(msg, struct agent_shard, wake);

    shard->wake_sent = false;
    shard_slot_wake(shard);
}

static void shard_sweep(struct loop_timer *timer)
{
    struct agent_shard *shard = container_of(timer, struct agent_shard, sweep);

    shard_limbo_free(shard);
    shard_slot_wake(shard);
    if (!list_empty(&shard->limbo) || line_first(&shard->wait_slot) != NULL)
        agent_shard_sweep_arm(shard); /* who waits in wait_share is woken by the end of a store */
}

void agent_shard_pin(struct agent_shard *shard, uint32_t slot)
{
    struct agent_slot *meta = &shard->meta[slot];

    check(meta->state == AGENT_SLOT_FILLING || meta->state == AGENT_SLOT_LIVE);
    check(meta->pins < UINT16_MAX);
    meta->pins++;
}

void agent_shard_unpin(struct agent_shard *shard, uint32_t slot)
{
    check(shard->meta[slot].pins > 0);
    shard->meta[slot].pins--;
    shard_wake_send(shard);
}

void agent_shard_once_end(struct agent_shard *shard, uint32_t slot)
{
    struct agent_slot *meta = &shard->meta[slot];
    struct list *list;

    check(meta->state == AGENT_SLOT_LIVE);
    if (!meta->once)
        return;
    list_remove(&meta->link);
    meta->once = false;
    list = slot_list(shard, slot);
    if (list != NULL)
        list_push(list, &meta->link);
}

/* What is in shard->once and was read goes before what was not. */
static void slot_read_once(struct agent_shard *shard, uint32_t slot, bool once)
{
    struct agent_slot *meta = &shard->meta[slot];

    if (!once && meta->was_read) {
        agent_shard_once_end(shard, slot);
        return;
    }
    list_remove(&meta->link);
    list_push_front(&shard->once, &meta->link);
}

void agent_shard_touch(struct agent_shard *shard, uint32_t slot, bool once)
{
    struct agent_slot *meta = &shard->meta[slot];

    if (meta->once)
        slot_read_once(shard, slot, once);
    meta->was_read |= meta->once || !once;
    if (!meta->once && !once)
        extents_use(&shard->extents, slot);
    if (!meta->once && !once && shard->slabs != NULL)
        slot_slab_used(shard, slot);
    if (meta->hint != 0)
        shard->hint_read(shard, slot);
}

void agent_shard_slots_init(struct agent_shard *shard)
{
    list_init(&shard->free);
    list_init(&shard->limbo);
    list_init(&shard->once);
    list_init(&shard->large);
    loop_timer_init(&shard->sweep, shard_sweep);
}
