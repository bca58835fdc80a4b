/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's notes: what the owner of a store keeps on its drive, in pages.
 *
 *   store_note_put -> the first copy, flushed (meta.c) -> the second -> done
 *
 * Invariants: one copy of a page is whole on flash at any time; done is called when both are. A
 * page that cannot be written takes the drive out of service.
 */
#include <stdlib.h>

#include "store/format.h"
#include "store/store_int.h"

static_assert(sizeof(((struct store_note_df *)0)->bytes) == STORE_NOTE_BYTES, "what callers have");

static_assert(STORE_NOTES == STORE_NOTE_PAGES, "what callers have");

/* Of one of the two copies of a page. */
static uint64_t note_offset(uint32_t page, uint32_t copy)
{
    return (copy == 0 ? STORE_NOTE_OFFSET_A : STORE_NOTE_OFFSET_B) +
           (uint64_t)page * STORE_PAGE_BYTES;
}

/* ---- before the loop runs ---------------------------------------------------------------------
 */

/* Reads both copies to df[0]; df[1] is then the one that counts, or zeros. Returns how many could
 * not be read. */
static uint32_t note_read(struct loop_file *file, const struct uuid *drive, uint32_t page,
                          struct store_note_df df[2])
{
    uint32_t failed = 0;

    memset(&df[1], 0, sizeof(df[1]));
    for (uint32_t i = 0; i < 2; i++) {
        if (loop_file_read_now(file, note_offset(page, i), df, sizeof(*df)) != ICMS_OK)
            failed++;
        else if (store_note_check(drive, page, df) &&
                 le64_get(df->sequence) > le64_get(df[1].sequence))
            df[1] = df[0];
    }
    return failed;
}

/* The first pages of a drive whose store is not open, and of the last of them how many copies could
 * not be read, and whether none counts. */
static icms_err notes_read(struct loop_env *env, const struct loop_file_opts *open, uint32_t pages,
                           struct err_why *why, struct uuid *out_drive, uint8_t *out_bytes,
                           uint32_t *out_unread, bool *out_lost)
{
    struct store_note_df *df = aligned_alloc(STORE_PAGE_BYTES, 2 * sizeof(*df));
    struct store_super super = {.segments = 0};
    struct loop_file *file = NULL;
    icms_err err = df == NULL ? err_set(why, ICMS_NO_MEMORY, "no memory for a note")
                              : loop_file_open(env, open, why, &file);

    if (err == ICMS_OK)
        err = store_super_read(file, open->path, why, &super);
    for (uint32_t page = 0; page < pages && err == ICMS_OK; page++) {
        *out_unread = note_read(file, &super.drive, page, df);
        *out_lost = le64_get(df[1].sequence) == 0;
        memcpy(out_bytes + (size_t)page * STORE_NOTE_BYTES, df[1].bytes, STORE_NOTE_BYTES);
    }
    if (err == ICMS_OK)
        *out_drive = super.drive;
    loop_file_close(&file);
    free(df);
    return err;
}

icms_err store_note_read(struct loop_env *env, const char *path, struct err_why *why,
                         struct uuid *out_drive, void *out_bytes, bool *out_lost)
{
    struct loop_file_opts open = {.path = path, .write = true, .direct = true, .exclusive = true};
    uint32_t unread;
    icms_err err = notes_read(env, &open, 1, why, out_drive, out_bytes, &unread, out_lost);

    if (err == ICMS_OK && unread == 2)
        err = err_set(why, ICMS_IO, "%s: cannot read which drives belong together", path);
    return err;
}

icms_err store_notes_look(struct loop_env *env, const char *path, struct err_why *why,
                          void *out_pages)
{
    struct loop_file_opts open = {.path = path, .direct = true};
    struct uuid drive;
    uint32_t unread; /* zeros then */
    bool lost;

    return notes_read(env, &open, STORE_NOTE_PAGES, why, &drive, out_pages, &unread, &lost);
}

icms_err store_note_open(struct store *store, struct err_why *why)
{
    struct store_note_df *df = store_pages_new(store, STORE_NOTE_PAGES);
    struct store_note_df *both = aligned_alloc(STORE_PAGE_BYTES, 2 * sizeof(*both));
    struct store_error error =
        store_error_at("read of the list of drives", ICMS_IO, note_offset(0, 0));
    uint32_t unread = 0;

    if (df == NULL || both == NULL) {
        free(both);
        return err_set(why, ICMS_NO_MEMORY, "no memory for a note");
    }
    for (uint32_t page = 0; page < STORE_NOTE_PAGES; page++) {
        unread += note_read(store->file, &store->super.drive, page, both);
        df[page] = both[1];
    }
    free(both);
    if (unread > 0)
        store_error_add(store, &error, unread);
    store->note.df = df;
    return ICMS_OK;
}

const void *store_note(const struct store *store, uint32_t page)
{
    check(page < STORE_NOTE_PAGES);
    return store->note.df[page].bytes;
}

static void note_make(struct store *store, uint32_t page, const void *bytes)
{
    struct store_note_df *df = &store->note.df[page];

    check(page < STORE_NOTE_PAGES);
    memcpy(df->bytes, bytes, STORE_NOTE_BYTES);
    store_note_make(&store->super.drive, page, le64_get(df->sequence) + 1, df);
}

icms_err store_note_put_now(struct store *store, uint32_t page, const void *bytes,
                            struct err_why *why)
{
    icms_err err = ICMS_OK;

    note_make(store, page, bytes);
    for (uint32_t i = 0; i < 2 && err == ICMS_OK; i++) {
        err = loop_file_write_now(store->file, note_offset(page, i), &store->note.df[page],
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

/* ---- on the loop ------------------------------------------------------------------------------
 */

static void note_copy_write(struct store *store, const struct store_note *note, uint32_t copy);

static void store_note_written(struct store_meta *meta, icms_err err)
{
    struct store_note_writer *writer = container_of(meta, struct store_note_writer, meta);
    struct store_note *note = writer->note;

    if (err == ICMS_OK && writer->copy == 0) {
        note_copy_write(meta->store, note, 1);
        return;
    }
    writer->note = NULL;
    note->err = err;
    note->done(note);
}

static void note_copy_write(struct store *store, const struct store_note *note, uint32_t copy)
{
    struct store_note_writer *writer = &store->note;

    writer->copy = copy;
    writer->write = (struct store_meta_write){.offset = note_offset(note->page, copy),
                                              .memory = &writer->df[note->page],
                                              .bytes = sizeof(*writer->df)};
    writer->meta = (struct store_meta){.what = "write of the list of drives",
                                       .writes = &writer->write,
                                       .count = 1,
                                       .flush = true,
                                       .done = store_note_written};
    store_meta_start(store, &writer->meta);
}

icms_err store_note_put(struct store *store, struct store_note *note)
{
    struct store_note_writer *writer = &store->note;

    check(store->magic == STORE_MAGIC && note->done != NULL && writer->note == NULL);
    if (store->down)
        return ICMS_DRIVE_DOWN;
    note_make(store, note->page, note->bytes);
    writer->note = note;
    note_copy_write(store, note, 0);
    return ICMS_OK;
}
