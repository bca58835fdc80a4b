/* SPDX-License-Identifier: Apache-2.0 */
#include "conf/change.h"

#include <stdio.h>
#include <string.h>

const char conf_change_by_hand[] = "change the file by hand";

icms_err conf_change_refuse(const struct conf_change *change, icms_err err, const char *sentence)
{
    return err_set(change->why, err, "%s: %s %.200s: %s; nothing was changed", change->path,
                   change->kind->noun, change->name, sentence);
}

icms_err conf_change_find(const struct conf_change *change, struct conf_edit_text *edit)
{
    return conf_edit_find_key(edit, change->kind->key, change->name)
               ? ICMS_OK
               : conf_edit_refuse(edit, edit->list->line, conf_change_by_hand);
}

/* ---- values --------------------------------------------------------------------------------- */

/* "quota=1GiB" in two; what would end a line or begin a comment is no value. */
static icms_err value_split(const struct conf_change *change, const char *text,
                            char key[CONF_CHANGE_VALUE_BYTES], const char **out_value)
{
    const char *equals = strchr(text, '=');
    size_t bytes = equals != NULL ? (size_t)(equals - text) : 0;
    const char *refusal;

    if (bytes == 0 || strlen(text) >= CONF_CHANGE_VALUE_BYTES)
        return conf_change_refuse(change, ICMS_INVALID, "write KEY=VALUE, as in size=1TiB");
    for (const char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == '#' || *at == 0x7f)
            return conf_change_refuse(change, ICMS_INVALID,
                                      "a value has no line ends, control bytes or number signs");
    memcpy(key, text, bytes);
    key[bytes] = '\0';
    refusal = change->kind->key_refusal(change, key);
    if (refusal != NULL)
        return conf_change_refuse(change, ICMS_INVALID, refusal);
    *out_value = equals + 1;
    return ICMS_OK;
}

icms_err conf_change_values(const struct conf_change *change, struct conf_edit_text *edit)
{
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < change->value_count && err == ICMS_OK; i++) {
        char key[CONF_CHANGE_VALUE_BYTES];
        const char *value = "";

        err = value_split(change, change->values[i], key, &value);
        if (err == ICMS_OK)
            err = conf_change_find(change, edit);
        if (err == ICMS_OK)
            err = value[0] != '\0'
                      ? conf_edit_key_set(edit, edit->entry, key, value, change->kind->key,
                                          conf_change_by_hand)
                      : conf_edit_key_remove(edit, edit->entry, key, conf_change_by_hand);
    }
    return err;
}

/* What the parsed file says is what was written. */
static bool values_are(const struct conf_change *change, struct conf_edit_text *edit)
{
    for (uint32_t i = 0; i < change->value_count; i++) {
        char key[CONF_CHANGE_VALUE_BYTES];
        const char *value = "";
        const struct conf_node *node;

        if (value_split(change, change->values[i], key, &value) != ICMS_OK ||
            conf_change_find(change, edit) != ICMS_OK)
            return false;
        node = conf_node_get(edit->entry, key);
        if ((node != NULL) != (value[0] != '\0') ||
            (node != NULL && node->kind == CONF_NODE_SCALAR && strcmp(node->text, value) != 0))
            return false;
    }
    return true;
}

/* ---- what came of it ------------------------------------------------------------------------ */

/* Whether a difference is one of this entry, and was asked for. */
static bool is_asked(const struct conf_change *change, const char *key, const char *name)
{
    char own[CONF_CHANGE_VALUE_BYTES];
    int bytes = snprintf(own, sizeof(own), "%s[%.200s]", change->kind->list, name);

    return strncmp(key, own, (size_t)bytes) == 0 && change->kind->is_asked(change, key + bytes);
}

static void change_visit(void *arg, const char *key, const char *was, const char *is)
{
    struct conf_change *change = arg;

    (void)was;
    (void)is;
    change->differences++;
    change->is_other =
        change->is_other || !(is_asked(change, key, change->name) ||
                              (change->other != NULL && is_asked(change, key, change->other)));
}

static icms_err change_verify(struct conf_change *change, struct conf_edit_text *edit)
{
    icms_err err =
        conf_live_parse(change->path, edit->text, edit->bytes, change->why, &change->after);

    if (err != ICMS_OK)
        return err;
    conf_live_diff(change->before, change->after, change_visit, change);
    if (change->is_other || (change->differences == 0 && change->value_count == 0) ||
        !values_are(change, edit))
        return conf_edit_refuse(edit, edit->list->line, conf_change_by_hand);
    return change->kind->check_after != NULL ? change->kind->check_after(change) : ICMS_OK;
}

/* ---- the change ----------------------------------------------------------------------------- */

static icms_err change_make(const struct conf_change *change, struct conf_edit_text *edit)
{
    char line[CONF_CHANGE_VALUE_BYTES];
    icms_err err;

    if (!change->is_new) {
        err = conf_change_find(change, edit);
        return err == ICMS_OK ? change->kind->make(change, edit) : err;
    }
    (void)snprintf(line, sizeof(line), "%s: %s\n", change->kind->key, change->name);
    err = conf_edit_entry_add(edit, NULL, line, conf_change_by_hand);
    return err == ICMS_OK ? conf_change_values(change, edit) : err;
}

icms_err conf_change_run(struct conf_change *change,
                         void (*visit)(void *arg, const char *key, const char *was, const char *is),
                         void *arg, struct conf_edit *out_edit)
{
    struct conf_edit_text edit = {0};
    struct conf_edit made = {0};
    icms_err err;

    conf_edit_begin(change->path, &made);
    err = conf_live_read(change->path, "--file", change->why, &change->before);
    if (err == ICMS_OK)
        err = change->kind->check(change);
    if (err == ICMS_OK)
        err = conf_edit_open(&edit, change->path, change->kind->list, change->why, &made);
    if (err == ICMS_OK)
        err = change_make(change, &edit);
    if (err == ICMS_OK)
        err = change_verify(change, &edit);
    if (err == ICMS_OK) {
        if (visit != NULL)
            conf_live_diff(change->before, change->after, visit, arg);
        made.text = edit.text;
        made.bytes = edit.bytes;
        edit.text = NULL;
        *out_edit = made;
    }
    conf_edit_close(&edit);
    conf_live_free(&change->before);
    conf_live_free(&change->after);
    return err;
}
