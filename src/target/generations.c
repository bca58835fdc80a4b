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
 *   target_generations_here    what drives know before the start, and for --check-config
 *   target_generations_know    a volume begins, or an epoch is applied, while the enclosure runs:
 * on all drives in service before a command can meet it, and after all that can refuse it
 * (volumes.c); or a drive joins
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

static struct target_generation_df *entry_at(const struct target_generations *known, uint32_t i)
{
    return (struct target_generation_df *)(uintptr_t)&known->page[i / TARGET_PAGE_GENERATIONS]
        .entry[i % TARGET_PAGE_GENERATIONS];
}

/* The entry of a name (0: a free one); NULL: there is none. */
static struct target_generation_df *entry_find(const struct target_generations *known,
                                               uint64_t name)
{
    for (uint32_t i = 0; i < TARGET_GENERATIONS; i++)
        if (le64_get(entry_at(known, i)->name) == name)
            return entry_at(known, i);
    return NULL;
}

/* Whether that is of a volume's UUID, too. */
static bool entry_is_of(const struct target_generation_df *entry, const struct volume_spec *volume)
{
    uint8_t uuid[3];

    uuid_hash(&volume->uuid, uuid);
    return entry != NULL && memcmp(entry->uuid, uuid, sizeof(uuid)) == 0;
}

icms_err target_generation_check(const struct target_generations *known,
                                 const struct volume_spec *volume, const char **out_key,
                                 struct err_why *why)
{
    const struct target_generation_df *entry = entry_find(known, name_hash(volume->name));

    *out_key = "generation";
    if (entry != NULL && le32_get(entry->generation) > volume->generation)
        return err_set(why, ICMS_CONFIG,
                       "volume %s: generation %u is older than %u, which it had on these drives: "
                       "blocks that were reset would be there again; set `generation` to %u or "
                       "more",
                       volume->name, volume->generation, le32_get(entry->generation),
                       le32_get(entry->generation));
    *out_key = "sealed";
    if (entry_is_of(entry, volume) && le32_get(entry->generation) == volume->generation &&
        (entry->is_sealed != 0) != volume->sealed)
        return err_set(why, ICMS_CONFIG,
                       "volume %s: its blocks on these drives are %s; raise `generation` to begin "
                       "anew with this",
                       volume->name, entry->is_sealed != 0 ? "sealed" : "not sealed");
    *out_key = "";
    return ICMS_OK;
}

/* The entry that is given up for another name: of a volume that was never reset its format is all
 * that there is to know. */
static struct target_generation_df *entry_least(struct target_generations *known)
{
    struct target_generation_df *least = entry_at(known, 0);

    for (uint32_t i = 1; i < TARGET_GENERATIONS; i++)
        if (le32_get(entry_at(known, i)->generation) < le32_get(least->generation))
            least = entry_at(known, i);
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
        known->page[0].map.pod = le32_of(pod_name_hash(opts->pod));
}

static void epoch_add(struct target_generations *known, const struct target_epoch_df *add)
{
    struct target_epoch_df *map = &known->page[0].map;

    if (le32_get(map->pod) == 0)
        *map = *add;
    else if (le32_get(map->pod) == le32_get(add->pod) &&
             le32_get(map->epoch) < le32_get(add->epoch))
        map->epoch = add->epoch;
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
    const struct target_epoch_df *map = &target->generations.page[0].map;

    nvmf_target_epoch_set(target->nvmf, le32_get(map->pod), le32_get(map->epoch));
}

/* ---- on drives ------------------------------------------------------------------------------ */

/* What a page of a drive has to say. */
static void page_read(struct target_generations *known, uint32_t page,
                      const struct target_generations_df *df)
{
    if (page == 1)
        epoch_add(known, &df->map);
    for (uint32_t i = 0; i < TARGET_PAGE_GENERATIONS; i++)
        if (le64_get(df->entry[i].name) != 0)
            entry_add(known, &df->entry[i], false);
}

/* The first page that a drive has otherwise; STORE_NOTES: none. */
static uint32_t page_differs(const struct target_drive *drive,
                             const struct target_generations *known)
{
    uint32_t page = 1;

    while (page < STORE_NOTES &&
           memcmp(&known->page[page - 1], store_note(drive->store, page), STORE_NOTE_BYTES) == 0)
        page++;
    return page;
}

struct target_generations *target_generations_here(const struct target_opts *opts)
{
    struct target_generations *known = calloc(1, sizeof(*known));
    uint8_t *pages = malloc((size_t)STORE_NOTES * STORE_NOTE_BYTES);

    if (known != NULL)
        epoch_begin(known, opts);
    for (uint32_t i = 0; i < opts->drive_count && known != NULL && pages != NULL; i++)
        if (opts->drives[i].format != TARGET_FORMAT_ANY &&
            store_notes_look(opts->env, opts->drives[i].path, NULL, pages) == ICMS_OK)
            for (uint32_t page = 1; page < STORE_NOTES; page++)
                page_read(known, page, (const void *)(pages + (size_t)page * STORE_NOTE_BYTES));
    free(pages);
    return known;
}

uint32_t target_epoch_known(const struct target_opts *opts)
{
    struct target_generations *known = opts->pod != NULL ? target_generations_here(opts) : NULL;
    uint32_t epoch = known != NULL ? le32_get(known->page[0].map.epoch) : 0;

    free(known);
    return epoch;
}

uint32_t target_volumes_foreign(const struct target_opts *opts)
{
    struct target_generations *known = target_generations_here(opts);
    uint32_t count = 0;

    for (uint32_t i = 0; i < TARGET_GENERATIONS && known != NULL; i++)
        count += le64_get(entry_at(known, i)->name) != 0;
    for (uint32_t i = 0; i < opts->volume_count && count > 0; i++)
        if (entry_is_of(entry_find(known, name_hash(opts->volumes[i].name)), &opts->volumes[i]))
            count = 0;
    free(known);
    return count;
}

static icms_err drive_write(struct target_drive *drive, struct err_why *why)
{
    const struct target_generations *known = &drive->target->generations;
    icms_err err = ICMS_OK;
    uint32_t page;

    while (err == ICMS_OK && (page = page_differs(drive, known)) < STORE_NOTES)
        err = store_note_put_now(drive->store, page, &known->page[page - 1], why);
    return err;
}

icms_err target_generations_start(struct target *target, struct err_why *why)
{
    const char *key;

    epoch_begin(&target->generations, &target->opts);
    for (uint32_t i = 0; i < target->opts.drive_count; i++)
        for (uint32_t page = 1; target_drive_in(target, i) && page < STORE_NOTES; page++)
            page_read(&target->generations, page, store_note(target->drives[i].store, page));
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
    uint32_t page;

    if (drive->note_busy)
        return false;
    page = page_differs(drive, known);
    return page == STORE_NOTES || !target_note_write(drive, page, &known->page[page - 1]);
}
