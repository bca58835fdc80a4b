/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making an empty store, and reading the superblock of one. Blocking; before the loop starts.
 *
 * A drive that holds anything else is left as it is. What lies in segments of an earlier format is
 * not erased: it belongs to another drive uuid and does not pass.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "store/format.h"
#include "store/layout.h"

/* Up to here every byte is looked at for foreign data; of a larger drive both ends of this size
 * and pieces in between. */
#define FORMAT_LOOK_BYTES  ((uint64_t)64 << 20)
#define FORMAT_PIECE_BYTES ((uint64_t)256 << 10)
#define FORMAT_PIECES      256

static bool format_is_zero(const uint8_t *memory, uint64_t bytes)
{
    return bytes == 0 || (memory[0] == 0 && memcmp(memory, memory + 1, bytes - 1) == 0);
}

icms_err store_super_read(struct loop_file *file, const char *path, struct err_why *why,
                          struct store_super *out_super)
{
    static const uint64_t offsets[2] = {STORE_SUPER_OFFSET_A, STORE_SUPER_OFFSET_B};
    struct store_super_df *df = aligned_alloc(STORE_PAGE_BYTES, STORE_PAGE_BYTES);
    icms_err worst = ICMS_FOREIGN;

    if (df == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: no memory", path);
    for (int i = 0; i < 2 && loop_file_bytes(file) >= offsets[i] + STORE_PAGE_BYTES; i++) {
        icms_err err = loop_file_read_now(file, offsets[i], df, STORE_PAGE_BYTES);

        if (err == ICMS_OK)
            err = store_super_check(df, out_super);
        if (err == ICMS_OK) {
            free(df);
            return ICMS_OK;
        }
        if (worst == ICMS_FOREIGN || err == ICMS_VERSION)
            worst = err;
    }
    free(df);
    if (worst == ICMS_FOREIGN)
        return err_set(why, worst, "%s does not hold an icms store", path);
    if (worst == ICMS_VERSION)
        return err_set(why, worst, "%s holds an icms store of another version", path);
    return err_set(why, worst, "%s holds an icms store whose superblocks cannot be read (%s)", path,
                   icms_err_text(worst));
}

/* Reads a part in pieces; FOREIGN at the first byte that is not zero. */
static icms_err format_look(struct loop_file *file, uint64_t from, uint64_t bytes, uint8_t *memory)
{
    uint64_t end = from + bytes;

    for (; from < end; from += FORMAT_PIECE_BYTES) {
        uint64_t n = u64_min(FORMAT_PIECE_BYTES, end - from);
        icms_err err = loop_file_read_now(file, from, memory, n);

        if (err != ICMS_OK)
            return err;
        if (!format_is_zero(memory, n))
            return ICMS_FOREIGN;
    }
    return ICMS_OK;
}

/* FOREIGN when there is anything but zeros, as far as it is looked at. A rest behind the last whole
 * page cannot be read directly; it says that the file is not ours. */
static icms_err format_check_empty(struct loop_file *file)
{
    uint64_t bytes = loop_file_bytes(file);
    uint8_t *memory = aligned_alloc(STORE_PAGE_BYTES, FORMAT_PIECE_BYTES);
    icms_err err;

    if (memory == NULL)
        return ICMS_NO_MEMORY;
    if (bytes % STORE_PAGE_BYTES != 0) {
        free(memory);
        return ICMS_FOREIGN;
    }
    err = format_look(file, 0, u64_min(bytes, FORMAT_LOOK_BYTES), memory);
    if (err == ICMS_OK && bytes > FORMAT_LOOK_BYTES)
        err = format_look(file, bytes - FORMAT_LOOK_BYTES, FORMAT_LOOK_BYTES, memory);
    for (uint64_t i = 1; err == ICMS_OK && bytes > 2 * FORMAT_LOOK_BYTES && i < FORMAT_PIECES; i++)
        err = format_look(file, bytes / FORMAT_PIECES * i / STORE_PAGE_BYTES * STORE_PAGE_BYTES,
                          FORMAT_PIECE_BYTES, memory);
    free(memory);
    return err;
}

/* Whether the drive may be formatted; out_old is its uuid when it was a store. */
static icms_err format_allowed(struct loop_file *file, const char *path, bool overwrite,
                               struct err_why *why, struct uuid *out_old)
{
    struct err_why ignored;
    struct store_super super;
    icms_err err = store_super_read(file, path, &ignored, &super);

    if (err == ICMS_OK)
        *out_old = super.drive;
    if (overwrite)
        return ICMS_OK;
    if (err == ICMS_OK || err == ICMS_VERSION || err == ICMS_CORRUPT)
        return err_set(why, ICMS_EXISTS, "%s holds an icms store already", path);
    if (err == ICMS_FOREIGN)
        err = format_check_empty(file);
    if (err == ICMS_FOREIGN)
        return err_set(why, err, "%s holds data of another program", path);
    if (err != ICMS_OK)
        return err_set(why, err, "cannot read %s: %s", path, icms_err_text(err));
    return ICMS_OK;
}

void store_opts_init(struct store_opts *opts)
{
    *opts = (struct store_opts){.segment_bytes = (uint64_t)64 << 20,
                                .value_bytes_max = LIMIT_VALUE_BYTES_DEFAULT + LIMIT_TRAILER_BYTES,
                                .writes_max = 64,
                                .discard = true};
}

icms_err store_opts_check(const struct store_opts *opts, struct err_why *why)
{
    uint64_t segment_pages = opts->segment_bytes / STORE_PAGE_BYTES;
    uint64_t record_max =
        store_segment_record_pages((uint32_t)segment_pages) * (uint64_t)STORE_PAGE_BYTES;

    if (opts->path == NULL || opts->path[0] == '\0')
        return err_set(why, ICMS_INVALID, "no path for the store");
    if (!bytes_power_of_two(opts->segment_bytes) || opts->segment_bytes < STORE_SEGMENT_BYTES_MIN ||
        opts->segment_bytes > STORE_SEGMENT_BYTES_MAX)
        return err_set(why, ICMS_INVALID,
                       "%s: segments of %llu bytes: use a power of two from 64 KiB to 256 MiB",
                       opts->path, (unsigned long long)opts->segment_bytes);
    if (opts->value_bytes_max == 0 ||
        opts->value_bytes_max > LIMIT_VALUE_BYTES + LIMIT_TRAILER_BYTES ||
        store_record_bytes(opts->value_bytes_max) > record_max ||
        store_record_bytes(opts->value_bytes_max) > STORE_RECORD_PAGES_MAX * STORE_PAGE_BYTES)
        return err_set(why, ICMS_INVALID,
                       "%s: values of %llu bytes do not fit in segments of %llu: use larger "
                       "segments or a smaller largest value (64 MiB at most)",
                       opts->path, (unsigned long long)opts->value_bytes_max,
                       (unsigned long long)opts->segment_bytes);
    return ICMS_OK;
}

/* How many segments fit; LIMIT or NO_SPACE when that is too many or too few. */
static icms_err format_super(const struct store_opts *opts, uint64_t bytes, struct err_why *why,
                             struct store_super *super)
{
    uint64_t segments =
        bytes > STORE_DATA_OFFSET ? (bytes - STORE_DATA_OFFSET) / opts->segment_bytes : 0;

    if (segments < STORE_SEGMENTS_MIN)
        return err_set(why, ICMS_NO_SPACE,
                       "%s is too small: %llu bytes hold %llu segments of %llu, at least %d are "
                       "needed: make it larger or segments smaller",
                       opts->path, (unsigned long long)bytes, (unsigned long long)segments,
                       (unsigned long long)opts->segment_bytes, STORE_SEGMENTS_MIN);
    super->segments = (uint32_t)u64_min(segments, STORE_SEGMENTS_MAX);
    super->segment_bytes = opts->segment_bytes;
    super->bytes = bytes;
    return ICMS_OK;
}

icms_err store_check(const struct store_opts *opts, struct err_why *why)
{
    struct store_super super;
    icms_err err = store_opts_check(opts, why);

    if (err != ICMS_OK || opts->bytes == 0)
        return err;
    err = format_super(opts, opts->bytes, why, &super);
    return err == ICMS_OK ? store_budget_check(opts, opts->bytes, why) : err;
}

icms_err store_look(struct loop_env *env, const char *path, struct err_why *why,
                    struct store_contents *out_found)
{
    struct loop_file_opts open = {.path = path, .direct = true};
    struct store_contents found = {.holds = STORE_HOLDS_STORE};
    struct store_super super;
    struct loop_file *file = NULL;
    icms_err err = loop_file_open(env, &open, why, &file);

    if (err == ICMS_NOT_FOUND) {
        *out_found = (struct store_contents){.holds = STORE_HOLDS_NO_FILE};
        return ICMS_OK;
    }
    if (err != ICMS_OK)
        return err;
    found.bytes = loop_file_bytes(file);
    err = store_super_read(file, path, why, &super);
    if (err == ICMS_OK) {
        found.segment_bytes = super.segment_bytes;
        found.store_bytes = super.bytes;
    } else if (err == ICMS_FOREIGN && (err = format_check_empty(file)) == ICMS_OK)
        found.holds = STORE_HOLDS_ZEROS;
    else if (err == ICMS_FOREIGN)
        (void)err_set(why, err, "%s holds data of another program, or its beginning is damaged",
                      path);
    loop_file_close(&file);
    if (err == ICMS_OK)
        *out_found = found;
    return err;
}

/* The superblock that is read first is the last one of the store before; a whole note of its own
 * stands beside it until it is written, and one of the new store after that. */
static icms_err format_write(struct loop_file *file, const struct store_super *super,
                             const void *bytes)
{
    static const uint64_t offset[] = {STORE_NOTE_OFFSET_B, STORE_SUPER_OFFSET_B,
                                      STORE_SUPER_OFFSET_A, STORE_NOTE_OFFSET_A};
    uint8_t *pages = aligned_alloc(STORE_PAGE_BYTES, 2 * STORE_PAGE_BYTES);
    struct store_note_df *note;
    icms_err err = ICMS_OK;

    if (pages == NULL)
        return ICMS_NO_MEMORY;
    note = (struct store_note_df *)(void *)(pages + STORE_PAGE_BYTES);
    store_super_make(super, (struct store_super_df *)(void *)pages);
    memset(note, 0, sizeof(*note));
    if (bytes != NULL)
        memcpy(note->bytes, bytes, STORE_NOTE_BYTES);
    store_note_make(&super->drive, 0, 1, note);
    for (int i = 0; i < 4 && err == ICMS_OK; i++) {
        err = loop_file_write_now(file, offset[i], i == 1 || i == 2 ? pages : (void *)note,
                                  STORE_PAGE_BYTES);
        if (err == ICMS_OK)
            err = loop_file_flush_now(file);
    }
    free(pages);
    return err;
}

/* A name that no other format of this drive had: made of the old one, the clock and the path. It
 * is no secret. */
static struct uuid format_uuid(struct loop_env *env, const char *path, const struct uuid *old)
{
    uint64_t seed = hash64_seed(path, strlen(path), loop_env_now_ns(env));
    uint64_t half[2] = {hash64_seed(old->bytes, sizeof(old->bytes), seed),
                        hash64_seed(old->bytes, sizeof(old->bytes), ~seed)};
    struct uuid uuid;

    memcpy(uuid.bytes, half, sizeof(uuid.bytes));
    uuid.bytes[6] = (uint8_t)((uuid.bytes[6] & 0x0f) | 0x80); /* RFC 9562, version 8 */
    uuid.bytes[8] = (uint8_t)((uuid.bytes[8] & 0x3f) | 0x80);
    return uuid;
}

icms_err store_format(struct loop_env *env, const struct store_opts *opts, bool overwrite,
                      struct err_why *why)
{
    struct loop_file_opts open = {.path = opts->path,
                                  .create = true,
                                  .write = true,
                                  .direct = true,
                                  .exclusive = true,
                                  .sparse = opts->sparse,
                                  .bytes = opts->bytes};
    struct store_super super = {.segments = 0};
    struct uuid old = {{0}};
    struct loop_file *file = NULL;
    icms_err err = store_opts_check(opts, why);

    if (err != ICMS_OK)
        return err;
    if (opts->bytes == 0) /* as it is: it has to be there */
        open.create = false;
    else
        err = format_super(opts, opts->bytes, why, &super); /* before a file is made */
    if (err != ICMS_OK)
        return err;
    err = loop_file_open(env, &open, why, &file);
    if (err != ICMS_OK)
        return err;
    err = format_allowed(file, opts->path, overwrite, why, &old);
    if (err == ICMS_OK)
        err = format_super(opts, loop_file_bytes(file), why, &super);
    if (err == ICMS_OK) {
        super.drive = format_uuid(env, opts->path, &old);
        err = format_write(file, &super, opts->note);
        if (err != ICMS_OK)
            err = err_set(why, err, "cannot write to %s: %s", opts->path, icms_err_text(err));
    }
    loop_file_close(&file);
    return err;
}
