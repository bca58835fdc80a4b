/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/volume_edit.c: what `icms volume` changes in the file of a target. Called by cmd, on its
 * thread.
 *
 * As in edit.c only the lines of the change are other ones afterwards. A change is refused first by
 * what it means (change_check), then made line by line (change_make). The new text, parsed as a
 * target does, must differ from the old one in what was asked for and in nothing else
 * (change_verify): so no value can bring a line of its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "conf/conf_int.h"

static const char by_hand[] = "change the file by hand";

/* Bytes of a value with its key. */
#define VALUE_BYTES 1024

/* One change on its way. */
struct change {
    const struct conf_volume_change *asked;
    const char *path;
    struct err_why *why;
    struct conf_live *before, *after;
    const struct volume_spec *volume; /* in before; NULL: there is none */
    uint32_t generation;              /* RESET: the next one            */
    bool is_other; /* change_verify: it differs in something that was not asked */
    void (*visit)(void *arg, const char *key, const char *was, const char *is);
    void *arg;
};

/* ---- what it means -------------------------------------------------------------------------- */

static icms_err refuse(const struct change *change, icms_err err, const char *sentence)
{
    return err_set(change->why, err, "%s: volume %.63s: %s; nothing was changed", change->path,
                   change->asked->name, sentence);
}

static icms_err unknown(const struct change *change)
{
    const struct conf_target *conf = conf_live_target(change->before);
    const char *names[LIMIT_VOLUMES + 1] = {NULL};
    const char *nearest;
    char sentence[512] = "the file has none of this name; it has";
    size_t used = strlen(sentence);

    for (uint32_t i = 0; i < conf->volume_count; i++)
        names[i] = conf->volumes[i].name;
    nearest = conf_word_nearest(names, change->asked->name);
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
    return refuse(change, ICMS_NOT_FOUND, sentence);
}

static icms_err change_check(struct change *change)
{
    const struct conf_volume_change *asked = change->asked;

    if (asked->what == CONF_VOLUME_CREATE)
        return change->volume == NULL
                   ? ICMS_OK
                   : refuse(change, ICMS_EXISTS, "the file has it already; see set and reset");
    if (change->volume == NULL)
        return unknown(change);
    if (asked->what == CONF_VOLUME_DELETE) {
        if (conf_live_target(change->before)->volume_count == 1)
            return refuse(change, ICMS_INVALID,
                          "it is the last one of the target: stop icms-target instead");
        if (!asked->yes)
            return refuse(change, ICMS_INVALID, "all of its blocks become misses; add --yes");
    }
    if (asked->what == CONF_VOLUME_RESET) {
        if (change->volume->generation == UINT32_MAX)
            return refuse(change, ICMS_CONFIG, "its generation is the last one");
        if (!asked->yes)
            return refuse(change, ICMS_INVALID,
                          "all of its blocks become misses, for good; add --yes");
        change->generation = change->volume->generation + 1;
    }
    return ICMS_OK;
}

/* The volume with the change; NULL: there is none. */
static const struct volume_spec *volume_after(const struct change *change)
{
    const struct conf_target *after = conf_live_target(change->after);

    for (uint32_t i = 0; i < after->volume_count; i++)
        if (strcmp(after->volumes[i].name, change->asked->name) == 0)
            return &after->volumes[i];
    return NULL;
}

/* Its format is not changed under blocks that are stored. */
static icms_err format_check(const struct change *change)
{
    const struct volume_spec *was = change->volume, *is = volume_after(change);

    if (change->asked->what != CONF_VOLUME_SET || was == NULL || is == NULL)
        return ICMS_OK;
    if (was->encrypted != is->encrypted)
        return refuse(change, ICMS_INVALID, CONF_ENCRYPTED_STAYS);
    return was->sealed == is->sealed ? ICMS_OK : refuse(change, ICMS_INVALID, CONF_SEALED_STAYS);
}

/* A quota that is lower evicts what is beyond it; fewer hosts may be named, but not none. */
static icms_err loss_check(const struct change *change)
{
    const struct volume_spec *was = change->volume, *is = volume_after(change);

    if (was == NULL || is == NULL || change->asked->yes)
        return ICMS_OK;
    if (is->quota_bytes != 0 && (was->quota_bytes == 0 || is->quota_bytes < was->quota_bytes))
        return refuse(change, ICMS_INVALID,
                      "its quota becomes lower: blocks that it holds beyond it are evicted; "
                      "add --yes");
    if (is->host_count == 0 && was->host_count > 0)
        return refuse(change, ICMS_INVALID,
                      "hosts: none are listed, so any host may use it then; add --yes");
    if ((was->require & ~is->require) != 0)
        return refuse(change, ICMS_INVALID,
                      "require: hosts have to prove less than before; add --yes");
    return ICMS_OK;
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* "quota=1GiB" in two; what would end a line or begin a comment is no value. */
static icms_err value_split(const struct change *change, const char *text, char key[VALUE_BYTES],
                            const char **out_value)
{
    const char *equals = strchr(text, '=');
    size_t bytes = equals != NULL ? (size_t)(equals - text) : 0;

    if (bytes == 0 || strlen(text) >= VALUE_BYTES)
        return refuse(change, ICMS_INVALID, "write KEY=VALUE, as in quota=1TiB");
    for (const char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == '#' || *at == 0x7f)
            return refuse(change, ICMS_INVALID,
                          "a value has no line ends, control bytes or number signs");
    memcpy(key, text, bytes);
    key[bytes] = '\0';
    if (strcmp(key, "name") == 0 ||
        (strcmp(key, "generation") == 0 && change->asked->what != CONF_VOLUME_CREATE))
        return refuse(change, ICMS_INVALID,
                      "name and generation are not set: see create, reset and delete");
    if (strcmp(key, "uuid") == 0 && change->asked->what == CONF_VOLUME_SET)
        return refuse(change, ICMS_INVALID,
                      "another uuid is another volume: all of its blocks would become misses; see "
                      "reset");
    *out_value = equals + 1;
    return ICMS_OK;
}

/* The lines of a new volume, behind those of the last one. */
static icms_err entry_add(const struct change *change, struct conf_edit_text *edit)
{
    struct conf_edit_line first = conf_edit_line_at(edit, edit->list->last->line);
    struct conf_edit_line last = conf_edit_line_at(edit, conf_node_last_line(edit->list->last));
    bool is_ended = last.end > last.begin && edit->text[last.end - 1] == '\n';
    char added[LIMIT_NAME_BYTES + 64], *text;
    size_t column, bytes = 0;

    if (!conf_edit_dash_find(edit, first, &column))
        return conf_edit_refuse(edit, edit->list->last->line, by_hand);
    (void)snprintf(added, sizeof(added), "%s%*s- name: %.63s\n", is_ended ? "" : "\n", (int)column,
                   "", change->asked->name);
    text = conf_edit_splice(edit, last.end, last.end, added, &bytes);
    return conf_edit_again(edit, text, bytes);
}

/* Each value in its line. */
static icms_err values_set(const struct change *change, struct conf_edit_text *edit)
{
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < change->asked->value_count && err == ICMS_OK; i++) {
        char key[VALUE_BYTES];
        const char *value = "";

        err = value_split(change, change->asked->values[i], key, &value);
        if (err == ICMS_OK && !conf_edit_find(edit, change->asked->name))
            err = conf_edit_refuse(edit, edit->list->line, by_hand);
        if (err == ICMS_OK)
            err = value[0] != '\0'
                      ? conf_edit_key_set(edit, edit->entry, key, value, "name", by_hand)
                      : conf_edit_key_remove(edit, edit->entry, key, by_hand);
    }
    return err;
}

static icms_err change_make(const struct change *change, struct conf_edit_text *edit)
{
    char number[16];
    icms_err err;

    if (change->asked->what == CONF_VOLUME_CREATE) {
        err = entry_add(change, edit);
        return err == ICMS_OK ? values_set(change, edit) : err;
    }
    if (!conf_edit_find(edit, change->asked->name))
        return conf_edit_refuse(edit, edit->list->line, by_hand);
    switch (change->asked->what) {
    case CONF_VOLUME_RESET:
        (void)snprintf(number, sizeof(number), "%u", change->generation);
        return conf_edit_key_set(edit, edit->entry, "generation", number, "name", by_hand);
    case CONF_VOLUME_DELETE:
        return conf_edit_entry_remove(edit, by_hand);
    default:
        return values_set(change, edit);
    }
}

/* ---- what came of it ------------------------------------------------------------------------ */

/* Whether a difference is one that was asked for: "volumes[kv]", "volumes[kv].quota". */
static bool is_asked(const struct change *change, const char *key)
{
    const struct conf_volume_change *asked = change->asked;
    char own[2 * LIMIT_NAME_BYTES];
    size_t bytes = (size_t)snprintf(own, sizeof(own), "volumes[%.63s]", asked->name);

    if (strncmp(key, own, bytes) != 0)
        return false;
    if (key[bytes] == '\0')
        return asked->what == CONF_VOLUME_CREATE || asked->what == CONF_VOLUME_DELETE;
    if (asked->what == CONF_VOLUME_RESET)
        return strcmp(key + bytes, ".generation") == 0 || strcmp(key + bytes, ".uuid") == 0;
    for (uint32_t i = 0; i < asked->value_count; i++) {
        size_t length = strcspn(asked->values[i], "=");

        if (strncmp(key + bytes + 1, asked->values[i], length) == 0 &&
            key[bytes + 1 + length] == '\0')
            return asked->what == CONF_VOLUME_SET;
    }
    return false;
}

static void verify_visit(void *arg, const char *key, const char *was, const char *is)
{
    struct change *change = arg;

    change->is_other = change->is_other || !is_asked(change, key);
    if (change->visit != NULL)
        change->visit(change->arg, key, was, is);
}

/* What the parsed file says is what was written. */
static bool values_are(const struct change *change, struct conf_edit_text *edit)
{
    for (uint32_t i = 0; i < change->asked->value_count; i++) {
        const char *equals = strchr(change->asked->values[i], '=');
        char key[VALUE_BYTES];
        const struct conf_node *node;

        memcpy(key, change->asked->values[i], (size_t)(equals - change->asked->values[i]));
        key[equals - change->asked->values[i]] = '\0';
        if (!conf_edit_find(edit, change->asked->name))
            return false;
        node = conf_node_get(edit->entry, key);
        if (equals[1] == '\0' ? node != NULL : node == NULL)
            return false;
        if (node != NULL && node->kind == CONF_NODE_SCALAR && strcmp(node->text, equals + 1) != 0)
            return false;
    }
    return true;
}

static icms_err change_verify(struct change *change, struct conf_edit_text *edit)
{
    void (*visit)(void *arg, const char *key, const char *was, const char *is) = change->visit;
    icms_err err =
        conf_live_parse(change->path, edit->text, edit->bytes, change->why, &change->after);

    if (err == ICMS_OK)
        err = format_check(change);
    if (err != ICMS_OK)
        return err;
    change->visit = NULL;
    conf_live_diff(change->before, change->after, verify_visit, change);
    change->visit = visit;
    if (change->is_other || !values_are(change, edit))
        return conf_edit_refuse(edit, edit->list->line, by_hand);
    return loss_check(change);
}

/* ---- the change ----------------------------------------------------------------------------- */

static icms_err change_begin(struct change *change)
{
    const struct conf_target *conf;
    icms_err err = conf_live_read(change->path, change->why, &change->before);

    if (err != ICMS_OK)
        return err;
    conf = conf_live_target(change->before);
    for (uint32_t i = 0; i < conf->volume_count; i++)
        if (strcmp(conf->volumes[i].name, change->asked->name) == 0)
            change->volume = &conf->volumes[i];
    if (strlen(change->asked->name) >= LIMIT_NAME_BYTES)
        return err_set(change->why, ICMS_INVALID, "a name has at most %d bytes",
                       LIMIT_NAME_BYTES - 1);
    return change_check(change);
}

icms_err conf_volume_change(const char *path, const struct conf_volume_change *asked,
                            void (*visit)(void *arg, const char *key, const char *was,
                                          const char *is),
                            void *arg, struct err_why *why, struct conf_edit *out_edit)
{
    struct change change = {.asked = asked, .path = path, .why = why, .visit = visit, .arg = arg};
    struct conf_edit_text edit = {0};
    struct conf_edit made = {0};
    icms_err err = change_begin(&change);

    if (err == ICMS_OK)
        err = conf_edit_open(&edit, path, "volumes", why, &made);
    if (err == ICMS_OK)
        err = change_make(&change, &edit);
    if (err == ICMS_OK)
        err = change_verify(&change, &edit);
    if (err == ICMS_OK) {
        conf_live_diff(change.before, change.after, verify_visit, &change);
        made.text = edit.text;
        made.bytes = edit.bytes;
        made.from = change.volume != NULL ? change.volume->generation : 0;
        made.to = asked->what == CONF_VOLUME_RESET ? change.generation : made.from;
        edit.text = NULL;
        *out_edit = made;
    }
    conf_edit_close(&edit);
    conf_live_free(&change.before);
    conf_live_free(&change.after);
    return err;
}
