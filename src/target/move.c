/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a drive that drains holds goes to the others, so that removing it costs nothing.
 *
 * One value at a time for each such drive, begun on its loop by the timer of its probes and by the
 * end of the one before. Values that were loaded since come first (target_move_used). Then all
 * others, in the order of the index, as long as the other drives have free segments: where they are
 * full, each value that comes evicts an older one there, and nobody knows whether this one is worth
 * more until it is asked for.
 *
 * A move is a mutation as a store is (request.c): it holds the key, reads the value here, writes it
 * to the first drive of the key's order, flushes it there, then deletes it on all others, here too.
 * A value that is deleted or replaced meanwhile waits for it or makes it find nothing. Loads find
 * the value at one of the two drives at any time (target_search_again). A move that fails leaves
 * the value here.
 */
#include <stdlib.h>

#include "target/target_int.h"

/* Places of the index that are looked at in one go. */
#define MOVE_STEPS 512

/* A walk that is through begins anew after so long, for what could not be moved. */
#define MOVE_AGAIN_NS ((uint64_t)5 * 1000 * 1000 * 1000)

/* The others are full when less than one part in so many of their segments, or of the entries of
 * their indexes, is free. */
#define MOVE_FREE_PART 8

icms_err target_move_init(struct target_drive *drive, struct err_why *why)
{
    uint64_t bytes = store_record_bytes(drive->target->value_bytes_max);

    if (drive->move.memory != NULL)
        return ICMS_OK;
    drive->move.memory = aligned_alloc(LIMIT_DISK_ALIGN, bytes);
    drive->move.memory_bytes = bytes;
    if (drive->move.memory == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%.200s: no memory to move its blocks", drive->path);
    return ICMS_OK;
}

static bool drive_drains(const struct target_drive *drive)
{
    return (atomic_load_explicit(&drive->target->drains, memory_order_acquire) >> drive->index &
            1) != 0 &&
           target_drive_in(drive->target, drive->index) &&
           !target_drive_slow(drive->target, drive->index);
}

/* Whether those that take values have free segments, and entries of their indexes. */
static bool others_have_space(const struct target_drive *drive)
{
    const struct target *target = drive->target;
    uint32_t takes = target_in(target) & ~atomic_load(&target->drains);
    uint64_t segments = 0, segments_free = 0, blocks_max = 0, blocks = 0;

    for (; takes != 0; takes &= takes - 1) {
        const struct store *store = target->drives[__builtin_ctz(takes)].store;
        struct store_stats stats;

        if (store == NULL)
            continue; /* it left meanwhile */
        store_stats(store, &stats);
        segments += stats.segments;
        segments_free += stats.segments_free;
        blocks_max += stats.blocks_max;
        blocks += stats.blocks;
    }
    return segments_free > segments / MOVE_FREE_PART &&
           blocks < blocks_max - blocks_max / MOVE_FREE_PART;
}

/* The walk goes on to the next volume that has blocks here; false: it is through. */
static bool walk_volume(struct target_drive *drive)
{
    struct target_move *move = &drive->move;
    struct store_volume_stats stats = {.blocks = 0};

    move->at = (struct store_position){0};
    while (++move->volume < LIMIT_VOLUMES) {
        store_volume_stats(drive->store, move->volume, &stats);
        if (stats.blocks > 0)
            return true;
    }
    return false;
}

/* The next keys of the walk; false: there are none now. */
static bool walk_keys(struct target_drive *drive)
{
    struct target_move *move = &drive->move;
    uint64_t now = loop_now_ns(drive->loop);

    move->key_at = move->key_count = 0;
    if (now < move->again_ns)
        return false;
    atomic_store_explicit(&move->is_full, !others_have_space(drive), memory_order_relaxed);
    if (atomic_load_explicit(&move->is_full, memory_order_relaxed))
        return false;
    if (move->volume == UINT32_MAX && !walk_volume(drive))
        move->volume = LIMIT_VOLUMES;
    for (uint32_t turn = 0; turn < MOVE_STEPS / 16 && move->volume < LIMIT_VOLUMES; turn++) {
        move->key_count = store_list(drive->store, move->volume, &move->at, &store_position_end,
                                     MOVE_STEPS, move->keys, TARGET_MOVE_KEYS);
        move->key_volume = move->volume;
        if (store_position_compare(&move->at, &store_position_end) >= 0 && !walk_volume(drive))
            move->volume = LIMIT_VOLUMES;
        if (move->key_count > 0)
            return true;
    }
    if (move->volume == LIMIT_VOLUMES) {
        move->volume = UINT32_MAX;
        move->again_ns = now + MOVE_AGAIN_NS;
    }
    return false;
}

static void target_move_done(struct target_call *call)
{
    struct target_drive *drive = container_of(call, struct target_drive, move.call);

    drive->move.is_busy = false;
    if (call->req.err == ICMS_OK)
        counter_add(&drive->move.moved, 1);
    if (call->req.err != ICMS_OK && call->req.err != ICMS_MISS)
        drive->move.pause_ns = loop_now_ns(drive->loop) + TARGET_MOVE_PAUSE_NS;
    target_move_next(drive);
}

void target_move_next(struct target_drive *drive)
{
    struct target_move *move = &drive->move;
    struct target_move_key next;

    if (!drive_drains(drive) || move->memory == NULL || move->is_busy || drive->is_leaving ||
        loop_now_ns(drive->loop) < move->pause_ns)
        return;
    if (move->used_count > 0) {
        next = move->used[--move->used_count];
    } else {
        if (move->key_at == move->key_count && !walk_keys(drive))
            return;
        next = (struct target_move_key){move->key_volume, move->keys[move->key_at++].key};
    }
    move->is_busy = true;
    move->call.done = target_move_done;
    move->call.req = (struct nvmf_target_req){.op = NVMF_TARGET_STORE,
                                              .ns = next.volume,
                                              .key = next.key,
                                              .memory = move->memory,
                                              .memory_bytes = (uint32_t)move->memory_bytes};
    target_call_move(drive, &move->call);
}

void target_move_used(struct target_drive *drive, uint32_t volume, const struct key *key)
{
    struct target_move *move = &drive->move;

    if (!drive_drains(drive) || move->memory == NULL)
        return;
    if (move->used_count < TARGET_MOVE_KEYS)
        move->used[move->used_count++] = (struct target_move_key){volume, *key};
}
