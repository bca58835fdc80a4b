/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which generation the volumes of an enclosure had, and which epoch its pod map.
 *
 * A volume that is reset has another UUID, so nothing of before is found. But its file may be put
 * back to the one of before: then that UUID is looked for again, and what was reset would be there.
 * So each drive keeps the highest generation of each name, and whether its blocks are sealed. A map
 * that goes back is refused by who has a later one in use; after a restart nobody has. So each
 * drive keeps the highest epoch, too, of the pod that the enclosure followed last:
 *
 *   target_generations_start   at the start: what all drives know together, against the file
 *   target_generations_look    what a drive knows that nobody has opened, for --check-config
 *   target_generations_know    a volume begins, or an epoch is applied, while the enclosure runs:
 * on all drives in service before a command can meet it, and after all that can refuse it
 * (volumes.c); or a drive joins target_epoch_known         what all drives know before the start,
 * and for --check-config
 *
 * An epoch that is on flash when the power fails, and was not applied, is that of a file which was
 * there: the start takes that. The other way round, what a later epoch took away would be back.
 *
 * Names stand there as hashes. An entry of a name stays when its volume is deleted; when all are in
 * use, the one with the lowest generation goes. A drive that was away knows less; the highest of
 * all counts. Control thread, but for what says otherwise.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "target/target_int.h"

static uint64_t name_hash(const char *name)
{
    uint64_t hash = hash64(name, strlen(name));

    return hash != 0 ? hash : 1;
}

/* Which volume of a name and generation it is: the file may write its UUID. */
static void uuid_hash(const struct uuid *uuid, uint8_t out_hash[3])
{
    uint64_t hash = hash64(uuid->bytes, sizeof(uuid->bytes));

    memcpy(out_hash, &hash, 3);
}

/* The entry of a name (0: a free one); NULL: there is none. */
static struct target_generation_df *entry_find(const struct target_generations *known,
                                               uint64_t name)
{
    for (uint32_t i = 0; i < TARGET_GENERATIONS; i++)
        if (le64_get(known->entry[i].name) == name)
            return (struct target_generation_df *)(uintptr_t)&known->entry[i];
    return NULL;
}

icms_err target_generation_check(const struct target_generations *known,
                                 const struct volume_spec *volume, const char **out_key,
                                 struct err_why *why)
{
    const struct target_generation_df *entry = entry_find(known, name_hash(volume->name));
    uint8_t uuid[3];

    uuid_hash(&volume->uuid, uuid);
    *out_key = "generation";
    if (entry != NULL && le32_get(entry->generation) > volume->generation)
        return err_set(why, ICMS_CONFIG,
                       "volume %s: generation %u is older than %u, which it had on these drives: "
                       "blocks that were reset would be there again; set `generation` to %u or "
                       "more",
                       volume->name, volume->generation, le32_get(entry->generation),
                       le32_get(entry->generation));
    *out_key = "sealed";
    if (entry != NULL && le32_get(entry->generation) == volume->generation &&
        memcmp(entry->uuid, uuid, sizeof(uuid)) == 0 && (entry->is_sealed != 0) != volume->sealed)
        return err_set(why, ICMS_CONFIG,
                       "volume %s: its blocks on these drives are %s; raise `generation` to begin "
                       "anew with this",
                       volume->name, entry->is_sealed != 0 ? "sealed" : "not sealed");
    *out_key = "";
    return ICMS_OK;
}

bool target_generation_has(const struct target_generations *known, const struct volume_spec *volume)
{
    const struct target_generation_df *entry = entry_find(known, name_hash(volume->name));
    uint8_t uuid[3];

    uuid_hash(&volume->uuid, uuid);
    return entry != NULL && memcmp(entry->uuid, uuid, sizeof(uuid)) == 0;
}

uint32_t target_generations_count(const struct target_generations *known)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < TARGET_GENERATIONS; i++)
        count += le64_get(known->entry[i].name) != 0;
    return count;
}

/* The entry that is given up for another name: of a volume that was never reset its format is all
 * that there is to know. */
static struct target_generation_df *entry_least(struct target_generations *known)
{
    struct target_generation_df *least = &known->entry[0];

    for (uint32_t i = 1; i < TARGET_GENERATIONS; i++)
        if (le32_get(known->entry[i].generation) < le32_get(least->generation))
            least = &known->entry[i];
    return least;
}

static void entry_add(struct target_generations *known, const struct target_generation_df *add,
                      bool is_begun)
{
    struct target_generation_df *entry = entry_find(known, le64_get(add->name));

    if (entry != NULL && (le32_get(entry->generation) > le32_get(add->generation) ||
                          (le32_get(entry->generation) == le32_get(add->generation) && !is_begun)))
        return;
    if (entry == NULL)
        entry = entry_find(known, 0);
    if (entry == NULL)
        entry = entry_least(known);
    *entry = *add;
}

void target_generation_add(struct target_generations *known, const struct volume_spec *volume)
{
    struct target_generation_df add = {.name = le64_of(name_hash(volume->name)),
                                       .generation = le32_of(volume->generation),
                                       .is_sealed = volume->sealed};

    uuid_hash(&volume->uuid, add.uuid);
    entry_add(known, &add, true);
}

/* ---- the epoch ------------------------------------------------------------------------------ */

/* Whose epoch counts: nothing is known of it yet. Without a pod whatever drives know stays. */
static void epoch_begin(struct target_generations *known, const struct target_opts *opts)
{
    if (opts->pod != NULL)
        known->map.pod = le32_of(pod_name_hash(opts->pod));
}

static void epoch_add(struct target_generations *known, const struct target_epoch_df *add)
{
    if (le32_get(known->map.pod) == 0)
        known->map = *add;
    else if (le32_get(known->map.pod) == le32_get(add->pod) &&
             le32_get(known->map.epoch) < le32_get(add->epoch))
        known->map.epoch = add->epoch;
}

void target_epoch_add(struct target_generations *known, const struct target_opts *opts)
{
    struct target_epoch_df add;

    if (opts->pod == NULL)
        return;
    add = (struct target_epoch_df){le32_of(pod_name_hash(opts->pod)), le32_of(opts->pod_epoch)};
    epoch_add(known, &add);
}

void target_epoch_tell(struct target *target)
{
    nvmf_target_epoch_set(target->nvmf, le32_get(target->generations.map.pod),
                          le32_get(target->generations.map.epoch));
}

uint32_t target_epoch_known(const struct target_opts *opts)
{
    struct target_generations *known = calloc(1, sizeof(*known));
    uint32_t epoch = 0;

    if (known == NULL || opts->pod == NULL) {
        free(known);
        return 0;
    }
    epoch_begin(known, opts);
    for (uint32_t i = 0; i < opts->drive_count; i++)
        if (opts->drives[i].format != TARGET_FORMAT_ANY)
            target_generations_look(known, opts->env, opts->drives[i].path);
    epoch = le32_get(known->map.epoch);
    free(known);
    return epoch;
}

/* ---- on drives ------------------------------------------------------------------------------ */

/* A page of the owner's notes, from 1. */
static void page_make(const struct target_generations *known, uint32_t page,
                      uint8_t out_page[STORE_NOTE_BYTES])
{
    memset(out_page, 0, STORE_NOTE_BYTES);
    memcpy(out_page, &known->entry[(page - 1) * TARGET_PAGE_GENERATIONS],
           TARGET_PAGE_GENERATIONS * sizeof(known->entry[0]));
    if (page == 1)
        memcpy(out_page + TARGET_PAGE_GENERATIONS * sizeof(known->entry[0]), &known->map,
               sizeof(known->map));
}

/* What a page of a drive has to say. */
static void page_read(struct target_generations *known, uint32_t page, const uint8_t *bytes)
{
    struct target_generation_df entry[TARGET_PAGE_GENERATIONS];
    struct target_epoch_df map;

    memcpy(entry, bytes, sizeof(entry));
    memcpy(&map, bytes + sizeof(entry), sizeof(map));
    if (page == 1)
        epoch_add(known, &map);
    for (uint32_t i = 0; i < TARGET_PAGE_GENERATIONS; i++)
        if (le64_get(entry[i].name) != 0)
            entry_add(known, &entry[i], false);
}

/* What a drive has to say. */
static void drive_read(struct target_generations *known, const struct target_drive *drive)
{
    for (uint32_t page = 1; page < STORE_NOTES; page++)
        page_read(known, page, store_note(drive->store, page));
}

void target_generations_look(struct target_generations *known, struct loop_env *env,
                             const char *path)
{
    uint8_t *pages = malloc((size_t)STORE_NOTES * STORE_NOTE_BYTES);

    if (pages != NULL && store_notes_look(env, path, NULL, pages) == ICMS_OK)
        for (uint32_t page = 1; page < STORE_NOTES; page++)
            page_read(known, page, pages + (size_t)page * STORE_NOTE_BYTES);
    free(pages);
}

static icms_err drive_write(struct target_drive *drive, struct err_why *why)
{
    uint8_t bytes[STORE_NOTE_BYTES];
    icms_err err = ICMS_OK;

    for (uint32_t page = 1; page < STORE_NOTES && err == ICMS_OK; page++) {
        page_make(&drive->target->generations, page, bytes);
        if (memcmp(bytes, store_note(drive->store, page), sizeof(bytes)) != 0)
            err = store_note_put_now(drive->store, page, bytes, why);
    }
    return err;
}

icms_err target_generations_start(struct target *target, struct err_why *why)
{
    const char *key;

    epoch_begin(&target->generations, &target->opts);
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        if (target_drive_in(target, i))
            drive_read(&target->generations, &target->drives[i]);
    for (uint32_t v = 0; v < target->volume_count; v++) {
        icms_err err =
            target_generation_check(&target->generations, &target->volumes[v].spec, &key, why);

        if (err != ICMS_OK)
            return err;
    }
    for (uint32_t v = 0; v < target->volume_count; v++)
        target_generation_add(&target->generations, &target->volumes[v].spec);
    target_epoch_add(&target->generations, &target->opts);
    if (target->opts.pod != NULL)
        target_epoch_tell(target);
    return target_drives_each(target, drive_write, why);
}

bool target_generations_know(struct target_drive *drive, const struct target_generations *known)
{
    uint8_t bytes[STORE_NOTE_BYTES];

    if (drive->note_busy)
        return false;
    for (uint32_t page = 1; page < STORE_NOTES; page++) {
        page_make(known, page, bytes);
        if (memcmp(bytes, store_note(drive->store, page), sizeof(bytes)) != 0)
            return !target_note_write(drive, page, bytes);
    }
    return true;
}
