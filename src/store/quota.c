/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quota of a volume, which may be one of several drives: each has a store, on a loop of its
 * own.
 *
 * Called by mutations, reclaim and segments, on the loop's thread. Nothing but struct store_quota
 * is shared; a write takes its bytes there before it goes to the device, so the sum never exceeds
 * the quota, whatever the others do.
 *
 * Each drive has a part of the quota, by its weight. When a write finds no space, drives that hold
 * more than their part evict blocks until there is some. One does, always: if every drive held no
 * more than its part, and the one that writes would not either, there would be space. A write that
 * is larger than the part of a drive is the exception: while one waits every drive that has
 * something gives. And where a write waits for QUOTA_PATIENCE_NS its own drive gives: the drives
 * that should may be too slow, or hang. store_quota_look is called now and then to see that.
 *
 * The owner may change a quota while writes wait for it, and the drives' parts (volume.c): a write
 * that it cannot hold any more ends, and what is held beyond it is evicted without a write that
 * waits.
 *
 * Nobody waits for what another does not know. While writes wait, each change of the sum is told to
 * the other drives (store_ops.quota, store_quota_look), and so is each write that begins to wait;
 * then all look whether they have to evict, and whether their own writes can go on. What waits is
 * written before the sum is looked at, and the sum is written before it is looked who waits.
 */
#include "base/bytes.h"
#include "store/store_int.h"

#define QUOTA_PATIENCE_NS ((uint64_t)100 * 1000 * 1000)

static uint64_t quota_waiting(const struct store_volume *volume)
{
    return atomic_load(&volume->quota->waiting);
}

static bool quota_fits(const struct store_quota *quota, uint64_t bytes)
{
    return atomic_load(&quota->bytes) + bytes <= quota->bytes_max;
}

static void quota_tell(const struct store *store)
{
    if (store->ops.quota != NULL)
        store->ops.quota(store->owner);
}

/* The sum changed, or a write waits. */
static void quota_changed(struct store *store, struct store_volume *volume)
{
    if (quota_waiting(volume) > volume->need_bytes)
        quota_tell(store);
}

/* A little more than what waits, so that not each write has to wait. */
static uint64_t quota_more(const struct store_volume *volume, uint64_t waiting)
{
    return waiting > 0 ? waiting + volume->quota_bytes / 16 : 0;
}

static bool quota_has_space(const struct store_volume *volume, uint64_t evicting_bytes)
{
    return atomic_load(&volume->quota->bytes) + quota_more(volume, quota_waiting(volume)) <=
           volume->quota->bytes_max + evicting_bytes;
}

/* This drive is one that evicts while there is no space. */
static bool quota_gives(const struct store_volume *volume, uint64_t evicting_bytes)
{
    const struct store_quota *quota = volume->quota;
    uint64_t held = volume->bytes + volume->flight_bytes;
    bool gives_all = volume->gives_all || quota_waiting(volume) >= quota->share_min;
    uint64_t part = gives_all ? 0 : volume->quota_bytes;

    return held > evicting_bytes &&
           held - evicting_bytes + quota_more(volume, volume->need_bytes) > part;
}

bool store_quota_is_fine(const struct store_volume *volume, uint64_t evicting_bytes)
{
    return quota_has_space(volume, evicting_bytes) || !quota_gives(volume, evicting_bytes);
}

/* This drive evicts when it has to. */
static void quota_look(struct store *store, struct store_volume *volume)
{
    volume->gives_all =
        volume->need_bytes > 0 && loop_now_ns(store->loop) >= volume->need_ns + QUOTA_PATIENCE_NS;
    if (list_empty(&volume->over_link) && !store_quota_is_fine(volume, 0))
        list_push(&store->over, &volume->over_link);
}

void store_quota_look(struct store *store)
{
    check(store->magic == STORE_MAGIC);
    if (store->down)
        return;
    for (uint32_t i = 0; i < store->volume_count; i++) {
        struct store_volume *volume = &store->volumes[i];

        if (volume->quota != NULL && (quota_waiting(volume) > 0 || !quota_has_space(volume, 0)))
            quota_look(store, volume);
    }
    store->run(store);
}

/* A write of so many bytes waits, and is the first of its volume; true: not any more. */
static bool quota_wait(struct store *store, struct store_volume *volume, uint64_t bytes)
{
    if (volume->need_bytes != bytes) {
        atomic_fetch_add(&volume->quota->waiting, bytes - volume->need_bytes);
        if (volume->need_bytes == 0)
            volume->need_ns = loop_now_ns(store->loop);
        volume->need_bytes = bytes;
        if (quota_fits(volume->quota, bytes))
            return true;
        quota_tell(store);
    }
    quota_look(store, volume);
    return false;
}

void store_quota_wait_end(struct store_volume *volume)
{
    if (volume->need_bytes > 0)
        atomic_fetch_sub(&volume->quota->waiting, volume->need_bytes);
    volume->need_bytes = 0;
    volume->gives_all = false;
}

bool store_quota_fits(struct store *store, struct store_volume *volume, uint64_t bytes)
{
    return volume->quota == NULL || quota_fits(volume->quota, bytes) ||
           quota_wait(store, volume, bytes);
}

bool store_quota_take(struct store *store, struct store_volume *volume, uint64_t bytes)
{
    struct store_quota *quota = volume->quota;
    uint64_t held;

    if (quota == NULL)
        return true;
    held = atomic_load(&quota->bytes);
    do
        if (held + bytes > quota->bytes_max)
            return false; /* others were faster; the next look at it waits */
    while (!atomic_compare_exchange_weak(&quota->bytes, &held, held + bytes));
    store_quota_wait_end(volume);
    quota_changed(store, volume);
    return true;
}

void store_quota_give(struct store *store, struct store_volume *volume, uint64_t bytes)
{
    if (volume->quota == NULL)
        return;
    atomic_fetch_sub(&volume->quota->bytes, bytes);
    quota_changed(store, volume);
}

void store_quota_leave(struct store *store)
{
    for (uint32_t i = 0; i < store->volume_count; i++) {
        struct store_volume *volume = &store->volumes[i];

        if (volume->quota == NULL)
            continue;
        store_quota_wait_end(volume);
        store_quota_give(store, volume, volume->bytes);
    }
}
