/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/drive_edit.c: what `icms drive` changes in the file of a target (change.h). Called by cmd,
 * on its thread.
 */
#include <string.h>

#include "conf/change.h"

static const struct conf_drive_change *drive_asked(const struct conf_change *change)
{
    return change->asked;
}

/* ---- what it means -------------------------------------------------------------------------- */

static uint32_t drive_find(const struct conf_target *conf, const char *path)
{
    for (uint32_t i = 0; i < conf->drive_count; i++)
        if (strcmp(conf->drives[i].path, path) == 0)
            return i;
    return UINT32_MAX;
}

/* Drives that take blocks, without this one. */
static uint32_t others_up(const struct conf_change *change)
{
    const struct conf_target *conf = conf_live_target(change->before);
    uint32_t up = 0;

    for (uint32_t i = 0; i < conf->drive_count; i++)
        up += i != change->index && conf->drives[i].state == CONF_DRIVE_UP;
    return up;
}

/* A path is one line of the file, and one value of it. */
static bool path_is_plain(const char *path)
{
    if (path[0] == '\0' || strlen(path) >= LIMIT_PATH_BYTES ||
        strchr("-?:,[]{}#&*!|>'\"%@` ", path[0]) != NULL)
        return false;
    for (const char *at = path; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f || strchr("#{}[],\"'", *at) != NULL ||
            (*at == ':' && (at[1] == ' ' || at[1] == '\0')))
            return false;
    return true;
}

/* A drive that comes: added, or in the place of another one. */
static icms_err comes_check(const struct conf_change *change)
{
    bool is_other = drive_asked(change)->what == CONF_DRIVE_REPLACE;
    const char *path = is_other ? change->other : change->name;

    if (!path_is_plain(path))
        return conf_change_refuse(change, ICMS_INVALID,
                                  "a path has no quotes, commas, brackets, number signs or control "
                                  "bytes here");
    if (drive_find(conf_live_target(change->before), path) != UINT32_MAX)
        return conf_change_refuse(change, ICMS_EXISTS,
                                  is_other
                                      ? "the file has the new path already: if another drive is "
                                        "there now, remove it, reload icms-target, and add it"
                                      : "the file has it already");
    return ICMS_OK;
}

static icms_err leaves_check(const struct conf_change *change, bool is_draining)
{
    if (drive_asked(change)->what == CONF_DRIVE_REMOVE && others_up(change) == 0)
        return conf_change_refuse(change, ICMS_INVALID,
                                  "it is the last one that takes blocks: add another one first");
    if (!is_draining && !drive_asked(change)->yes)
        return conf_change_refuse(change, ICMS_INVALID,
                                  "its blocks become misses: drain it first, and wait until `icms "
                                  "status --target` shows 0 blocks of it; or add --yes");
    return ICMS_OK;
}

static icms_err drive_check(struct conf_change *change)
{
    const struct conf_target *conf = conf_live_target(change->before);
    enum conf_drive_what what = drive_asked(change)->what;
    bool is_full = conf->drive_count == LIMIT_DRIVES, is_draining;
    icms_err err = ICMS_OK;

    if (what == CONF_DRIVE_ADD || what == CONF_DRIVE_REPLACE)
        err = comes_check(change);
    if (err != ICMS_OK)
        return err;
    if (what == CONF_DRIVE_ADD)
        return is_full ? conf_change_refuse(change, ICMS_LIMIT,
                                            "the file has 32 drives, as many as may be")
                       : ICMS_OK;
    change->index = drive_find(conf, change->name);
    if (change->index == UINT32_MAX)
        return conf_change_refuse(change, ICMS_NOT_FOUND,
                                  "the file has none of this path; see `icms drive list`");
    if (what == CONF_DRIVE_REPLACE && is_full)
        return conf_change_refuse(change, ICMS_LIMIT,
                                  "the file has 32 drives, so no number is free for another one "
                                  "beside it: remove it, reload icms-target, and add the new one");
    is_draining = conf->drives[change->index].state == CONF_DRIVE_DRAINING;
    switch (what) {
    case CONF_DRIVE_DRAIN:
        if (is_draining)
            return conf_change_refuse(change, ICMS_EXISTS, "it is draining already");
        return others_up(change) > 0
                   ? ICMS_OK
                   : conf_change_refuse(
                         change, ICMS_INVALID,
                         "it is the last one that takes blocks: add another one first");
    case CONF_DRIVE_UNDRAIN:
        return is_draining ? ICMS_OK : conf_change_refuse(change, ICMS_EXISTS, "it is up already");
    default:
        return leaves_check(change, is_draining);
    }
}

/* ---- lines ---------------------------------------------------------------------------------- */

static const char *drive_key_refusal(const struct conf_change *change, const char *key)
{
    (void)change;
    return strcmp(key, "path") == 0 || strcmp(key, "state") == 0
               ? "path and state are not values: see drain and replace"
               : NULL;
}

/* The other drive in its place; state and health are those of the old one. */
static icms_err replace_make(const struct conf_change *change, struct conf_edit_text *edit)
{
    icms_err err = conf_edit_key_remove(edit, edit->entry, "state", conf_change_by_hand);

    if (err == ICMS_OK)
        err = conf_change_find(change, edit);
    if (err == ICMS_OK)
        err = conf_edit_key_remove(edit, edit->entry, "health", conf_change_by_hand);
    if (err == ICMS_OK)
        err = conf_change_find(change, edit);
    return err == ICMS_OK ? conf_edit_key_set(edit, edit->entry, "path", change->other, "path",
                                              conf_change_by_hand)
                          : err;
}

static icms_err drive_make(const struct conf_change *change, struct conf_edit_text *edit)
{
    switch (drive_asked(change)->what) {
    case CONF_DRIVE_DRAIN:
        return conf_edit_key_set(edit, edit->entry, "state", "draining", "path",
                                 conf_change_by_hand);
    case CONF_DRIVE_UNDRAIN:
        return conf_edit_key_remove(edit, edit->entry, "state", conf_change_by_hand);
    case CONF_DRIVE_REMOVE:
        return conf_edit_entry_remove(edit, conf_change_by_hand);
    default:
        return replace_make(change, edit);
    }
}

static bool drive_is_asked(const struct conf_change *change, const char *rest)
{
    enum conf_drive_what what = drive_asked(change)->what;

    return strcmp(rest, what == CONF_DRIVE_DRAIN || what == CONF_DRIVE_UNDRAIN ? ".state" : "") ==
           0;
}

static const struct conf_change_kind drive_kind = {.list = "drives",
                                                   .key = "path",
                                                   .noun = "drive",
                                                   .check = drive_check,
                                                   .key_refusal = drive_key_refusal,
                                                   .make = drive_make,
                                                   .is_asked = drive_is_asked};

icms_err conf_drive_change(const char *path, const struct conf_drive_change *asked,
                           void (*visit)(void *arg, const char *key, const char *was,
                                         const char *is),
                           void *arg, struct err_why *why, struct conf_edit *out_edit)
{
    struct conf_change change = {.kind = &drive_kind,
                                 .asked = asked,
                                 .path = path,
                                 .name = asked->path,
                                 .other = asked->other,
                                 .values = asked->values,
                                 .value_count = asked->value_count,
                                 .is_new = asked->what == CONF_DRIVE_ADD,
                                 .index = UINT32_MAX,
                                 .why = why};

    return conf_change_run(&change, visit, arg, out_edit);
}
