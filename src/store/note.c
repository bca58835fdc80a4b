/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's note: what the owner of a store keeps on its drive, and the volumes that it
 * drops before the loop runs.
 *
 *   store_note_put -> write, flush of the first copy -> write, flush of the second -> done
 *
 * Invariants: one copy is whole on flash at any time; done is called when both are. A note that
 * cannot be written takes the drive out of service.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "store/store_int.h"

static_assert(sizeof(((struct store_note_df *)0)->bytes) == STORE_NOTE_BYTES, "what callers have");

static const uint64_t note_offset[2] = {STORE_NOTE_OFFSET_A, STORE_NOTE_OFFSET_B};

static uint64_t note_hash(const struct store *store, const struct store_note_df *df)
{
    uint64_t seed = hash64_seed(store->super.drive.bytes, sizeof(store->super.drive.bytes), 0);

    return hash64_seed(df, offsetof(struct store_note_df, hash), seed);
}

/* ---- before the loop runs ---------------------------------------------------------------------
 */

icms_err store_note_open(struct store *store, struct err_why *why)
{
    struct store_note_df *df = store_pages_new(store, 2 * STORE_NOTE_PAGES);
    struct store_note_df *best = &df[1];
    uint32_t failed = 0;

    if (df == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a note");
    for (int i = 0; i < 2; i++) {
        if (loop_file_read_now(store->file, note_offset[i], df, sizeof(*df)) != ICMS_OK)
            failed++;
        else if (le64_get(df->magic) == STORE_NOTE_MAGIC &&
                 le64_get(df->hash) == note_hash(store, df) &&
                 le64_get(df->sequence) > le64_get(best->sequence))
            *best = *df;
    }
    store_stat_add(&store->stats.io_errors, failed);
    if (failed == 2)
        return err_set(why, ICMS_IO, "cannot read which drives belong together");
    store->note.df = best;
    return ICMS_OK;
}

void store_note_get(const struct store *store, void *out_bytes)
{
    memcpy(out_bytes, store->note.df->bytes, STORE_NOTE_BYTES);
}

static void note_make(struct store *store, const void *bytes)
{
    struct store_note_df *df = store->note.df;

    df->magic = le64_of(STORE_NOTE_MAGIC);
    df->sequence = le64_of(le64_get(df->sequence) + 1);
    memcpy(df->bytes, bytes, STORE_NOTE_BYTES);
    df->hash = le64_of(note_hash(store, df));
}

icms_err store_note_put_now(struct store *store, const void *bytes, struct err_why *why)
{
    icms_err err = ICMS_OK;

    note_make(store, bytes);
    for (int i = 0; i < 2 && err == ICMS_OK; i++) {
        err = loop_file_write_now(store->file, note_offset[i], store->note.df,
                                  sizeof(*store->note.df));
        if (err == ICMS_OK)
            err = loop_file_flush_now(store->file);
    }
    if (err != ICMS_OK)
        return err_set(why, err, "cannot write which drives belong together: %s",
                       icms_err_text(err));
    store_overhead_written(store, 2 * sizeof(*store->note.df));
    return ICMS_OK;
}

static int note_record_compare(const void *a, const void *b)
{
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;

    return (one > other) - (one < other);
}

/* Kills records, page | segment << 32, of one segment. */
static icms_err note_kill(struct store *store, const uint64_t *records, uint64_t count)
{
    const struct store_segment *segment = &store->segments[records[0] >> 32];

    for (uint64_t i = 0; i < count; i++)
        store_dead_set(segment->nonce, (uint32_t)records[i], false,
                       store_segment_dead(store, segment));
    return store_kill_write_now(store, segment);
}

/* Takes all blocks of the volume out of the index. */
static void note_forget(struct store *store, uint32_t volume)
{
    struct store_location old;
    struct store_block block;
    uint32_t cursor = 0;

    while (store_index_next(store->index, &cursor, UINT32_MAX, &block)) {
        if (block.volume != volume)
            continue;
        check(store_index_remove(store->index, volume, &block.key, &old));
        store_segment_live_sub(store, volume, &old);
    }
}

icms_err store_volume_drop(struct store *store, uint32_t volume, bool *out_all, struct err_why *why)
{
    uint64_t *records = NULL, count = 0, blocks = 0, begin = 0;
    struct store_block block;
    icms_err err = ICMS_OK;

    for (uint32_t cursor = 0; store_index_next(store->index, &cursor, UINT32_MAX, &block);)
        blocks += block.volume == volume;
    records = malloc((blocks + 1) * sizeof(records[0]));
    if (records == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the blocks of a volume");
    for (uint32_t cursor = 0; store_index_next(store->index, &cursor, UINT32_MAX, &block);) {
        if (block.volume == volume)
            records[count++] = (uint64_t)block.location.segment << 32 | block.location.page;
    }
    qsort(records, count, sizeof(records[0]), note_record_compare);
    for (uint64_t i = 1; i <= count && err == ICMS_OK; i++) {
        if (i < count && records[i] >> 32 == records[begin] >> 32)
            continue;
        err = note_kill(store, &records[begin], i - begin);
        begin = i;
    }
    free(records);
    if (err == ICMS_OK && count > 0)
        err = loop_file_flush_now(store->file);
    if (err != ICMS_OK)
        return err_set(why, err, "cannot drop the blocks of a volume: %s", icms_err_text(err));
    note_forget(store, volume);
    *out_all = store->stats.io_errors == 0 && store->volumes[volume].evictions == 0;
    return ICMS_OK;
}

/* ---- on the loop ------------------------------------------------------------------------------
 */

static void store_note_done(struct loop_op *op);

/* Steps: write and flush of the first copy, then of the second. */
static void note_step(struct store *store)
{
    struct store_note_writer *writer = &store->note;

    if (writer->step % 2 == 1)
        loop_file_flush(store->loop, &writer->op, store->file, store_note_done);
    else
        loop_file_write(store->loop, &writer->op, store->file, note_offset[writer->step / 2],
                        writer->df, sizeof(*writer->df), store_note_done);
}

static void note_end(struct store *store, icms_err err)
{
    struct store_note *note = store->note.note;

    store->note.note = NULL;
    note->err = err;
    note->done(note);
}

static void store_note_done(struct loop_op *op)
{
    struct store *store = container_of(op, struct store, note.op);
    struct store_note_writer *writer = &store->note;

    store_overhead_outcome(store, op->err);
    if (op->err == ICMS_OK && writer->step % 2 == 0)
        store_overhead_written(store, sizeof(*writer->df));
    if (op->err == ICMS_OK) {
        writer->step++;
    } else {
        writer->step -= writer->step % 2; /* a flush that failed forgets the write */
        if (++writer->attempts >= STORE_ATTEMPTS)
            store_down(store);
    }
    if (store->down)
        note_end(store, ICMS_DRIVE_DOWN);
    else if (writer->step == 4)
        note_end(store, ICMS_OK);
    else
        note_step(store);
}

icms_err store_note_put(struct store *store, struct store_note *note)
{
    struct store_note_writer *writer = &store->note;

    check(store->magic == STORE_MAGIC && note->done != NULL && writer->note == NULL);
    if (store->down)
        return ICMS_DRIVE_DOWN;
    note_make(store, note->bytes);
    writer->note = note;
    writer->step = writer->attempts = 0;
    note_step(store);
    return ICMS_OK;
}
