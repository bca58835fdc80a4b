/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether options go together, and with what is on the drives here: the same functions decide at
 * the start and when a configuration is checked.
 *
 * Called by target.c and drives.c at the start, and by icms-target, which then starts nothing. No
 * drive is changed or locked.
 */
#include <stdio.h>
#include <stdlib.h>

#include "target/target_int.h"

void target_store_opts(const struct target_opts *opts, const struct target_drive_opts *given,
                       struct store_opts *out)
{
    store_opts_init(out);
    out->path = given->path;
    out->bytes = given->bytes;
    out->bytes_per_block = given->bytes_per_block;
    out->budget = given->budget;
    out->segment_bytes = opts->segment_bytes;
    out->discard = opts->discard;
    out->value_bytes_max = 1;
    for (uint32_t i = 0; i < opts->volume_count; i++)
        out->value_bytes_max =
            u64_max(out->value_bytes_max, volume_stored_bytes_max(&opts->volumes[i]));
}

/* ---- options alone -------------------------------------------------------------------------- */

static icms_err check_counts(const struct target_opts *opts, struct err_why *why)
{
    if (opts->loops < 1 || opts->loops > LIMIT_LOOPS)
        return err_set(why, ICMS_CONFIG, "%u loops: 1 to %u are possible", opts->loops,
                       LIMIT_LOOPS);
    if (opts->drive_count < 1 || opts->drive_count > LIMIT_DRIVES)
        return err_set(why, ICMS_CONFIG, "%u drives: 1 to %u are possible", opts->drive_count,
                       LIMIT_DRIVES);
    if (opts->volume_count > LIMIT_VOLUMES)
        return err_set(why, ICMS_CONFIG, "%u volumes: %u are possible", opts->volume_count,
                       LIMIT_VOLUMES);
    return ICMS_OK;
}

icms_err target_check(const struct target_opts *opts, struct err_why *why)
{
    icms_err err = check_counts(opts, why);

    for (uint32_t i = 0; i < opts->drive_count && err == ICMS_OK; i++) {
        struct store_opts store;
        struct err_why cause = {""};

        for (uint32_t j = 0; j < i; j++)
            if (strcmp(opts->drives[i].path, opts->drives[j].path) == 0)
                return err_set(why, ICMS_CONFIG, "the drive %s is listed twice",
                               opts->drives[i].path);
        target_store_opts(opts, &opts->drives[i], &store);
        if (store_check(&store, &cause) != ICMS_OK)
            err = err_set(why, ICMS_CONFIG, "drive%u: %.480s", i, cause.text);
    }
    return err;
}

icms_err target_quota_check(const struct volume_spec *volume, uint64_t drives_bytes,
                            struct err_why *why)
{
    if (volume->quota_bytes <= drives_bytes)
        return ICMS_OK;
    return err_set(why, ICMS_CONFIG,
                   "volume %s: its quota of %llu bytes is larger than the drives of the enclosure "
                   "together, %llu bytes; lower it, or write 0 for all of them",
                   volume->name, (unsigned long long)volume->quota_bytes,
                   (unsigned long long)drives_bytes);
}

/* ---- with the drives that are here ---------------------------------------------------------- */

icms_err target_drive_unformatted(uint32_t drive, icms_err err, struct err_why *why)
{
    struct err_why cause = *why;

    if (err != ICMS_FOREIGN && err != ICMS_VERSION && err != ICMS_CORRUPT)
        return err;
    return err_set(why, err, "drive%u: %s: %.300s; %sto erase it, start with `--format drive%u`",
                   drive, err == ICMS_FOREIGN ? "not formatted" : "cannot open", cause.text,
                   err == ICMS_VERSION ? "use that version, or, " : "", drive);
}

/* A store is as large as it was when the drive was formatted; `size` makes files and nothing else.
 */
static void look_size(const struct target_drive_opts *given, uint32_t drive,
                      const struct store_contents *found, struct err_why *note)
{
    uint64_t asked = given->bytes;
    uint64_t has = found->holds == STORE_HOLDS_STORE ? found->store_bytes : found->bytes;

    if (asked == 0 || has == 0 || has == asked)
        return;
    (void)err_set(note, ICMS_OK,
                  "drive %u (%.200s): has %llu MiB and is used as it is, although size says %llu "
                  "MiB; correct size, or format a new file of that size",
                  drive, given->path, (unsigned long long)(has >> 20),
                  (unsigned long long)(asked >> 20));
}

/* Segments are as long as they were when the drive was formatted, too. Behind what is said of its
 * size. */
static void look_segment(const struct target_opts *opts, const char *path, uint32_t drive,
                         const struct store_contents *found, struct err_why *note)
{
    size_t used = strlen(note->text);
    char name[224] = "it";

    if (found->segment_bytes == opts->segment_bytes)
        return;
    if (used == 0)
        (void)snprintf(name, sizeof(name), "drive %u (%.200s):", drive, path);
    (void)snprintf(note->text + used, sizeof(note->text) - used,
                   "%s%s has segments of %llu KiB and is used as it is, although segment says %llu "
                   "KiB; correct segment, or format the drive again",
                   used > 0 ? "; " : "", name, (unsigned long long)(found->segment_bytes >> 10),
                   (unsigned long long)(opts->segment_bytes >> 10));
}

/* A drive that may not be formatted without a question. */
static icms_err look_empty(const char *path, uint32_t drive, bool is_missing, struct err_why *why)
{
    return err_set(
        why, ICMS_NOT_FOUND,
        "drive%u: not formatted: %.200s is %s, start with `--format drive%u` (`all`: all "
        "drives), or write format_empty: true",
        drive, path,
        is_missing ? "missing; look whether its file system is mounted; to make a new file"
                   : "empty; look whether it is the right one; to use it",
        drive);
}

icms_err target_drive_look(const struct target_opts *opts, const struct target_drive_opts *given,
                           uint32_t drive, struct err_why *why, struct store_contents *out_found,
                           struct err_why *out_note)
{
    struct err_why cause = {""};
    struct store_opts sizes;
    icms_err err = store_look(opts->env, given->path, why, out_found);

    if (err == ICMS_OK && out_found->holds == STORE_HOLDS_NO_FILE && given->bytes == 0)
        return err_set(why, ICMS_NOT_FOUND,
                       "drive%u: cannot open %.300s: no such file or device; check the path, or "
                       "write a size to have a file made",
                       drive, given->path);
    if (err != ICMS_OK)
        return target_drive_unformatted(drive, err, why);
    if (given->format == TARGET_FORMAT_NOTHING && out_found->holds != STORE_HOLDS_STORE)
        return look_empty(given->path, drive, out_found->holds == STORE_HOLDS_NO_FILE, why);
    look_size(given, drive, out_found, out_note);
    if (out_found->holds != STORE_HOLDS_STORE)
        return ICMS_OK;
    target_store_opts(opts, given, &sizes);
    sizes.bytes = 0;
    sizes.segment_bytes = out_found->segment_bytes; /* as it was formatted */
    if (store_check(&sizes, &cause) != ICMS_OK)
        return err_set(why, ICMS_INVALID, "drive%u: %.480s", drive, cause.text);
    look_segment(opts, given->path, drive, out_found, out_note);
    return ICMS_OK;
}

/* Bytes of a drive: its own, else those of the file that will be made; 0: not known. */
static uint64_t look_bytes(const struct target_opts *opts, uint32_t drive)
{
    struct store_contents found = {.bytes = 0};

    if (store_look(opts->env, opts->drives[drive].path, NULL, &found) != ICMS_OK ||
        found.bytes == 0)
        return opts->drives[drive].bytes;
    return found.holds == STORE_HOLDS_STORE ? found.store_bytes : found.bytes;
}

/* What the volumes had on the drives whose blocks stay. */
static void check_volumes(const struct target_opts *opts,
                          void (*say)(void *arg, const char *sentence), void *arg)
{
    struct target_generations *known = target_generations_here(opts);

    for (uint32_t i = 0; i < opts->volume_count && known != NULL; i++) {
        struct err_why why = {""};
        const char *key;

        if (target_generation_check(known, &opts->volumes[i], &key, &why) != ICMS_OK)
            say(arg, why.text);
    }
    free(known);
}

void target_check_here(const struct target_opts *opts, void (*say)(void *arg, const char *sentence),
                       void *arg)
{
    uint64_t bytes = 0;
    bool known = true;

    for (uint32_t i = 0; i < opts->drive_count; i++) {
        bool erases = opts->drives[i].format == TARGET_FORMAT_ANY;
        struct err_why why = {""}, note = {""};
        struct store_contents found;

        if (!erases && target_drive_look(opts, &opts->drives[i], i, &why, &found, &note) != ICMS_OK)
            say(arg, why.text);
        if (note.text[0] != '\0')
            say(arg, note.text);
        known = known && look_bytes(opts, i) > 0;
        bytes += look_bytes(opts, i);
    }
    for (uint32_t i = 0; i < opts->volume_count && known; i++) {
        struct err_why why = {""};

        if (target_quota_check(&opts->volumes[i], bytes, &why) != ICMS_OK)
            say(arg, why.text);
    }
    check_volumes(opts, say, arg);
}

uint64_t target_memory_bytes(const struct target_opts *opts)
{
    uint64_t bytes = opts->nvmf.memory_bytes;

    for (uint32_t i = 0; i < opts->drive_count; i++) {
        struct store_opts store;

        target_store_opts(opts, &opts->drives[i], &store);
        bytes += store_memory_bytes(&store, look_bytes(opts, i));
    }
    return bytes;
}
