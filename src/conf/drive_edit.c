/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/drive_edit.c: what `icms drive` changes in the file of a target. Called by cmd, on its
 * thread.
 *
 * As in volume_edit.c: a change is refused first by what it means (change_check), then made line by
 * line (change_make), and the new text, parsed as a target does, must differ from the old one in
 * what was asked for and in nothing else (change_verify).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "conf/conf_int.h"

static const char by_hand[] = "change the file by hand";

/* Bytes of a line that is added: a key and its value. */
#define LINE_BYTES (LIMIT_PATH_BYTES + 64)

/* One change on its way. */
struct change {
    const struct conf_drive_change *asked;
    const char *path; /* of the file */
    struct err_why *why;
    struct conf_live *before, *after;
    const struct conf_drive *drive; /* in before; NULL: there is none               */
    bool is_other;                  /* change_verify: it differs in something that was not asked */
    uint32_t differences;
    void (*visit)(void *arg, const char *key, const char *was, const char *is);
    void *arg;
};

/* ---- what it means -------------------------------------------------------------------------- */

static icms_err refuse(const struct change *change, icms_err err, const char *sentence)
{
    return err_set(change->why, err, "%s: drive %.200s: %s; nothing was changed", change->path,
                   change->asked->path, sentence);
}

static const struct conf_drive *drive_find(const struct conf_live *live, const char *path)
{
    const struct conf_target *conf = conf_live_target(live);

    for (uint32_t i = 0; i < conf->drive_count; i++)
        if (strcmp(conf->drives[i].path, path) == 0)
            return &conf->drives[i];
    return NULL;
}

/* Drives that take blocks, without this one. */
static uint32_t others_up(const struct change *change)
{
    const struct conf_target *conf = conf_live_target(change->before);
    uint32_t up = 0;

    for (uint32_t i = 0; i < conf->drive_count; i++)
        up += &conf->drives[i] != change->drive && conf->drives[i].state == CONF_DRIVE_UP;
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

static icms_err leaves_check(const struct change *change)
{
    if (change->asked->what == CONF_DRIVE_REMOVE && others_up(change) == 0)
        return refuse(change, ICMS_INVALID,
                      "it is the last one that takes blocks: add another one first");
    if (change->drive->state != CONF_DRIVE_DRAINING && !change->asked->yes)
        return refuse(change, ICMS_INVALID,
                      "its blocks become misses: drain it first, and wait until `icms status "
                      "--target` shows 0 blocks of it; or add --yes");
    return ICMS_OK;
}

static icms_err change_check(const struct change *change)
{
    const struct conf_drive_change *asked = change->asked;
    const char *comes = asked->what == CONF_DRIVE_REPLACE ? asked->other : asked->path;

    if (asked->what == CONF_DRIVE_ADD || asked->what == CONF_DRIVE_REPLACE) {
        if (!path_is_plain(comes))
            return refuse(change, ICMS_INVALID,
                          "a path has no quotes, commas, brackets, number signs or control bytes "
                          "here");
        if (drive_find(change->before, comes) != NULL)
            return refuse(change, ICMS_EXISTS,
                          asked->what == CONF_DRIVE_ADD
                              ? "the file has it already"
                              : "the file has the new path already: if another drive is there "
                                "now, remove it, reload icms-target, and add it");
    }
    if (asked->what == CONF_DRIVE_ADD)
        return conf_live_target(change->before)->drive_count < LIMIT_DRIVES
                   ? ICMS_OK
                   : refuse(change, ICMS_LIMIT, "the file has 32 drives, as many as may be");
    if (change->drive == NULL)
        return refuse(change, ICMS_NOT_FOUND,
                      "the file has none of this path; see `icms drive list`");
    if (asked->what == CONF_DRIVE_REPLACE &&
        conf_live_target(change->before)->drive_count == LIMIT_DRIVES)
        return refuse(change, ICMS_LIMIT,
                      "the file has 32 drives, so no number is free for another one beside it: "
                      "remove it, reload icms-target, and add the new one");
    switch (asked->what) {
    case CONF_DRIVE_DRAIN:
        if (change->drive->state == CONF_DRIVE_DRAINING)
            return refuse(change, ICMS_EXISTS, "it is draining already");
        return others_up(change) > 0
                   ? ICMS_OK
                   : refuse(change, ICMS_INVALID,
                            "it is the last one that takes blocks: add another one first");
    case CONF_DRIVE_UNDRAIN:
        return change->drive->state == CONF_DRIVE_DRAINING
                   ? ICMS_OK
                   : refuse(change, ICMS_EXISTS, "it is up already");
    default:
        return leaves_check(change);
    }
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* The lines of a new drive, behind those of the last one. */
static icms_err entry_add(const struct change *change, struct conf_edit_text *edit)
{
    struct conf_edit_line first = conf_edit_line_at(edit, edit->list->last->line);
    struct conf_edit_line last = conf_edit_line_at(edit, conf_node_last_line(edit->list->last));
    bool is_ended = last.end > last.begin && edit->text[last.end - 1] == '\n';
    char added[LINE_BYTES], *text;
    size_t column, bytes = 0;

    if (!conf_edit_dash_find(edit, first, &column))
        return conf_edit_refuse(edit, edit->list->last->line, by_hand);
    (void)snprintf(added, sizeof(added), "%s%*s- path: %s\n", is_ended ? "" : "\n", (int)column, "",
                   change->asked->path);
    text = conf_edit_splice(edit, last.end, last.end, added, &bytes);
    return conf_edit_again(edit, text, bytes);
}

/* "size=1GiB" in two. */
static icms_err value_split(const struct change *change, const char *text, char key[LINE_BYTES],
                            const char **out_value)
{
    const char *equals = strchr(text, '=');
    size_t bytes = equals != NULL ? (size_t)(equals - text) : 0;

    if (bytes == 0 || equals[1] == '\0' || strlen(text) >= LINE_BYTES)
        return refuse(change, ICMS_INVALID, "write KEY=VALUE, as in size=1TiB");
    for (const char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == '#' || *at == 0x7f)
            return refuse(change, ICMS_INVALID,
                          "a value has no line ends, control bytes or number signs");
    memcpy(key, text, bytes);
    key[bytes] = '\0';
    if (strcmp(key, "path") == 0 || strcmp(key, "state") == 0)
        return refuse(change, ICMS_INVALID, "path and state are not values: see drain and replace");
    *out_value = equals + 1;
    return ICMS_OK;
}

static icms_err values_set(const struct change *change, struct conf_edit_text *edit)
{
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < change->asked->value_count && err == ICMS_OK; i++) {
        char key[LINE_BYTES];
        const char *value = "";

        err = value_split(change, change->asked->values[i], key, &value);
        if (err == ICMS_OK && !conf_edit_find_key(edit, "path", change->asked->path))
            err = conf_edit_refuse(edit, edit->list->line, by_hand);
        if (err == ICMS_OK)
            err = conf_edit_key_set(edit, edit->entry, key, value, "path", by_hand);
    }
    return err;
}

static icms_err change_make(const struct change *change, struct conf_edit_text *edit)
{
    const struct conf_drive_change *asked = change->asked;
    icms_err err;

    if (asked->what == CONF_DRIVE_ADD) {
        err = entry_add(change, edit);
        return err == ICMS_OK ? values_set(change, edit) : err;
    }
    if (!conf_edit_find_key(edit, "path", asked->path))
        return conf_edit_refuse(edit, edit->list->line, by_hand);
    switch (asked->what) {
    case CONF_DRIVE_DRAIN:
        return conf_edit_key_set(edit, edit->entry, "state", "draining", "path", by_hand);
    case CONF_DRIVE_UNDRAIN:
        return conf_edit_key_remove(edit, edit->entry, "state", by_hand);
    case CONF_DRIVE_REMOVE:
        return conf_edit_entry_remove(edit, by_hand);
    default:
        err = conf_edit_key_remove(edit, edit->entry, "state", by_hand);
        if (err == ICMS_OK && !conf_edit_find_key(edit, "path", asked->path))
            err = conf_edit_refuse(edit, edit->list->line, by_hand);
        if (err == ICMS_OK) /* that of the old one */
            err = conf_edit_key_remove(edit, edit->entry, "health", by_hand);
        if (err == ICMS_OK && !conf_edit_find_key(edit, "path", asked->path))
            err = conf_edit_refuse(edit, edit->list->line, by_hand);
        if (err == ICMS_OK)
            err = conf_edit_key_set(edit, edit->entry, "path", asked->other, "path", by_hand);
        return err;
    }
}

/* ---- what came of it ------------------------------------------------------------------------ */

/* Whether a difference is one that was asked for: "drives[/d0]", "drives[/d0].state". */
static bool is_asked(const struct change *change, const char *key, const char *is)
{
    const struct conf_drive_change *asked = change->asked;
    bool comes = strcmp(is, "listed") == 0;
    const char *path = asked->what == CONF_DRIVE_REPLACE && comes ? asked->other : asked->path;
    char own[LINE_BYTES];
    size_t bytes = (size_t)snprintf(own, sizeof(own), "drives[%.200s]", path);

    if (strncmp(key, own, bytes) != 0)
        return false;
    switch (asked->what) {
    case CONF_DRIVE_ADD:
        return key[bytes] == '\0' && comes;
    case CONF_DRIVE_REMOVE:
        return key[bytes] == '\0' && !comes;
    case CONF_DRIVE_REPLACE:
        return key[bytes] == '\0';
    default:
        return strcmp(key + bytes, ".state") == 0;
    }
}

static void verify_visit(void *arg, const char *key, const char *was, const char *is)
{
    struct change *change = arg;

    change->differences++;
    change->is_other = change->is_other || !is_asked(change, key, is);
    if (change->visit != NULL)
        change->visit(change->arg, key, was, is);
}

/* What the parsed file says is what was written. */
static bool values_are(const struct change *change, struct conf_edit_text *edit)
{
    for (uint32_t i = 0; i < change->asked->value_count; i++) {
        const char *value = "";
        char key[LINE_BYTES];
        const struct conf_node *node;

        if (value_split(change, change->asked->values[i], key, &value) != ICMS_OK ||
            !conf_edit_find_key(edit, "path", change->asked->path))
            return false;
        node = conf_node_get(edit->entry, key);
        if (node == NULL || node->kind != CONF_NODE_SCALAR || strcmp(node->text, value) != 0)
            return false;
    }
    return true;
}

static icms_err change_verify(struct change *change, struct conf_edit_text *edit)
{
    void (*visit)(void *arg, const char *key, const char *was, const char *is) = change->visit;
    icms_err err =
        conf_live_parse(change->path, edit->text, edit->bytes, change->why, &change->after);

    if (err != ICMS_OK)
        return err;
    change->visit = NULL;
    conf_live_diff(change->before, change->after, verify_visit, change);
    change->visit = visit;
    if (change->is_other || change->differences == 0 || !values_are(change, edit))
        return conf_edit_refuse(edit, edit->list->line, by_hand);
    return ICMS_OK;
}

/* ---- the change ----------------------------------------------------------------------------- */

static icms_err change_begin(struct change *change)
{
    icms_err err = conf_live_read(change->path, change->why, &change->before);

    if (err != ICMS_OK)
        return err;
    change->drive = drive_find(change->before, change->asked->path);
    return change_check(change);
}

icms_err conf_drive_change(const char *path, const struct conf_drive_change *asked,
                           void (*visit)(void *arg, const char *key, const char *was,
                                         const char *is),
                           void *arg, struct err_why *why, struct conf_edit *out_edit)
{
    struct change change = {.asked = asked, .path = path, .why = why, .visit = visit, .arg = arg};
    struct conf_edit_text edit = {0};
    struct conf_edit made = {0};
    icms_err err = change_begin(&change);

    if (err == ICMS_OK)
        err = conf_edit_open(&edit, path, "drives", why, &made);
    if (err == ICMS_OK)
        err = change_make(&change, &edit);
    if (err == ICMS_OK)
        err = change_verify(&change, &edit);
    if (err == ICMS_OK) {
        conf_live_diff(change.before, change.after, verify_visit, &change);
        made.text = edit.text;
        made.bytes = edit.bytes;
        edit.text = NULL;
        *out_edit = made;
    }
    conf_edit_close(&edit);
    conf_live_free(&change.before);
    conf_live_free(&change.after);
    return err;
}
