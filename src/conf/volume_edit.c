/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/volume_edit.c: what `icms volume` changes in the file of a target (change.h). Called by cmd,
 * on its thread.
 */
#include <stdio.h>
#include <string.h>

#include "conf/change.h"

static const struct conf_volume_change *volume_asked(const struct conf_change *change)
{
    return change->asked;
}

/* The volume without the change; NULL: there is none. */
static const struct volume_spec *volume_before(const struct conf_change *change)
{
    return change->index == UINT32_MAX ? NULL
                                       : &conf_live_target(change->before)->volumes[change->index];
}

/* ---- what it means -------------------------------------------------------------------------- */

static icms_err unknown(const struct conf_change *change)
{
    const struct conf_target *conf = conf_live_target(change->before);
    const char *names[LIMIT_VOLUMES + 1] = {NULL};
    const char *nearest;
    char sentence[512] = "the file has none of this name; it has";
    size_t used = strlen(sentence);

    for (uint32_t i = 0; i < conf->volume_count; i++)
        names[i] = conf->volumes[i].name;
    nearest = conf_word_nearest(names, change->name);
    if (nearest != NULL)
        (void)snprintf(sentence, sizeof(sentence),
                       "the file has none of this name; did you mean %s?", nearest);
    for (uint32_t i = 0; nearest == NULL && i < conf->volume_count; i++) {
        if (used + LIMIT_NAME_BYTES + 8 > sizeof(sentence)) {
            (void)snprintf(sentence + used, sizeof(sentence) - used, ", ...");
            break;
        }
        used += (size_t)snprintf(sentence + used, sizeof(sentence) - used, "%s %s",
                                 i == 0 ? "" : ",", names[i]);
    }
    return conf_change_refuse(change, ICMS_NOT_FOUND, sentence);
}

static icms_err volume_check(struct conf_change *change)
{
    const struct conf_volume_change *asked = change->asked;
    const struct conf_target *conf = conf_live_target(change->before);

    if (conf->pod[0] != '\0')
        return err_set(change->why, ICMS_INVALID,
                       "%s: its volumes are those of the pod map %s, which `pod` names: use `icms "
                       "pod volume` with --file %s; nothing was changed",
                       change->path, conf->pod, conf->pod);
    for (uint32_t i = 0; i < conf->volume_count; i++)
        if (strcmp(conf->volumes[i].name, change->name) == 0)
            change->index = i;
    if (strlen(change->name) >= LIMIT_NAME_BYTES)
        return err_set(change->why, ICMS_INVALID, "a name has at most %d bytes",
                       LIMIT_NAME_BYTES - 1);
    if (asked->what == CONF_VOLUME_CREATE)
        return change->index == UINT32_MAX
                   ? ICMS_OK
                   : conf_change_refuse(change, ICMS_EXISTS,
                                        "the file has it already; see set and reset");
    if (change->index == UINT32_MAX)
        return unknown(change);
    change->version = volume_before(change)->generation;
    if (asked->what == CONF_VOLUME_DELETE) {
        if (conf->volume_count == 1)
            return conf_change_refuse(change, ICMS_INVALID,
                                      "it is the last one of the target: stop icms-target instead");
        if (!asked->yes)
            return conf_change_refuse(change, ICMS_INVALID,
                                      "all of its blocks become misses; add --yes");
    }
    if (asked->what == CONF_VOLUME_RESET) {
        if (change->version == UINT32_MAX)
            return conf_change_refuse(change, ICMS_CONFIG, "its generation is the last one");
        if (!asked->yes)
            return conf_change_refuse(change, ICMS_INVALID,
                                      "all of its blocks become misses, for good; add --yes");
        change->version++;
    }
    return ICMS_OK;
}

/* The volume with the change; NULL: there is none. */
static const struct volume_spec *volume_after(const struct conf_change *change)
{
    const struct conf_target *after = conf_live_target(change->after);

    for (uint32_t i = 0; i < after->volume_count; i++)
        if (strcmp(after->volumes[i].name, change->name) == 0)
            return &after->volumes[i];
    return NULL;
}

static icms_err volume_check_after(const struct conf_change *change)
{
    const struct conf_volume_change *asked = volume_asked(change);
    const struct volume_spec *is = volume_after(change);
    char text[CONF_VOLUME_REFUSAL_BYTES];
    const char *refusal = NULL;

    if (is != NULL)
        refusal = conf_volume_refusal(&(struct conf_volume_step){.was = volume_before(change),
                                                                 .is = is,
                                                                 .values = asked->values,
                                                                 .value_count = asked->value_count,
                                                                 .yes = asked->yes},
                                      text);
    return refusal == NULL ? ICMS_OK : conf_change_refuse(change, ICMS_INVALID, refusal);
}

/* ---- lines ---------------------------------------------------------------------------------- */

static const char *volume_key_refusal(const struct conf_change *change, const char *key)
{
    enum conf_volume_what what = volume_asked(change)->what;

    if (strcmp(key, "name") == 0 || (strcmp(key, "generation") == 0 && what != CONF_VOLUME_CREATE))
        return "name and generation are not set: see create, reset and delete";
    if (strcmp(key, "uuid") == 0 && what == CONF_VOLUME_SET)
        return "another uuid is another volume: all of its blocks would become misses; see reset";
    return NULL;
}

static icms_err volume_make(const struct conf_change *change, struct conf_edit_text *edit)
{
    char number[16];

    switch (volume_asked(change)->what) {
    case CONF_VOLUME_RESET:
        (void)snprintf(number, sizeof(number), "%u", change->version);
        return conf_edit_key_set(edit, edit->entry, "generation", number, "name",
                                 conf_change_by_hand);
    case CONF_VOLUME_DELETE:
        return conf_edit_entry_remove(edit, conf_change_by_hand);
    default:
        return conf_change_values(change, edit);
    }
}

static bool volume_is_asked(const struct conf_change *change, const char *rest)
{
    enum conf_volume_what what = volume_asked(change)->what;

    if (rest[0] == '\0')
        return what == CONF_VOLUME_CREATE || what == CONF_VOLUME_DELETE;
    if (what == CONF_VOLUME_RESET)
        return strcmp(rest, ".generation") == 0 || strcmp(rest, ".uuid") == 0;
    for (uint32_t i = 0; i < change->value_count; i++) {
        size_t length = strcspn(change->values[i], "=");

        if (strncmp(rest + 1, change->values[i], length) == 0 && rest[1 + length] == '\0')
            return what == CONF_VOLUME_SET;
    }
    return false;
}

static const struct conf_change_kind volume_kind = {.list = "volumes",
                                                    .key = "name",
                                                    .noun = "volume",
                                                    .check = volume_check,
                                                    .key_refusal = volume_key_refusal,
                                                    .make = volume_make,
                                                    .is_asked = volume_is_asked,
                                                    .check_after = volume_check_after};

icms_err conf_volume_change(const char *path, const struct conf_volume_change *asked,
                            void (*visit)(void *arg, const char *key, const char *was,
                                          const char *is),
                            void *arg, struct err_why *why, struct conf_edit *out_edit)
{
    struct conf_change change = {.kind = &volume_kind,
                                 .asked = asked,
                                 .path = path,
                                 .name = asked->name,
                                 .values = asked->values,
                                 .value_count = asked->value_count,
                                 .is_new = asked->what == CONF_VOLUME_CREATE,
                                 .index = UINT32_MAX,
                                 .why = why};
    icms_err err = conf_change_run(&change, visit, arg, out_edit);

    if (err == ICMS_OK) {
        out_edit->to = change.version;
        out_edit->from = change.version - (asked->what == CONF_VOLUME_RESET);
    }
    return err;
}
