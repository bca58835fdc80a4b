/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map of the tree to a struct, along its table of keys. Called by conf.c on the caller's thread.
 *
 * Every member of the map must be a key of the table and may come once; what is missing keeps the
 * default that conf_table_init gave it. Depth is bounded by the tables, which are constant.
 */
#include "conf/conf_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* Keys of a table; the bits of a word tell which ones came. */
#define TABLE_KEYS_MAX 64

static void *field_of(const struct conf_key *key, void *object)
{
    return (char *)object + key->offset;
}

static uint32_t *count_of(const struct conf_key *key, void *object)
{
    return (uint32_t *)(void *)((char *)object + key->count_offset);
}

void conf_table_init(const struct conf_table *table, void *object)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct conf_key *key = &table->keys[i];

        if (key->kind == CONF_MAP)
            conf_table_init(key->table, field_of(key, object));
        else if (key->fallback != NULL)
            check(conf_value_set(key, key->fallback, NULL, object) == ICMS_OK);
    }
}

/* ---- unknown keys --------------------------------------------------------------------------- */

#define DISTANCE_BYTES 32

/* How many single-letter changes make b of a; a is cut to DISTANCE_BYTES. */
static unsigned text_distance(const char *a, const char *b)
{
    unsigned row[DISTANCE_BYTES + 1];
    size_t a_bytes = strnlen(a, DISTANCE_BYTES);

    for (unsigned i = 0; i <= a_bytes; i++)
        row[i] = i;
    for (; *b != '\0'; b++) {
        unsigned diagonal = row[0]++;

        for (size_t i = 1; i <= a_bytes; i++) {
            unsigned change = diagonal + (a[i - 1] != *b);

            diagonal = row[i];
            if (change > row[i] + 1)
                change = row[i] + 1;
            if (change > row[i - 1] + 1)
                change = row[i - 1] + 1;
            row[i] = change;
        }
    }
    return row[a_bytes];
}

const char *conf_word_nearest(const char *const *words, const char *text)
{
    const char *nearest = NULL;
    unsigned least = 1 + (unsigned)strnlen(text, DISTANCE_BYTES) / 2;

    if (least > 5)
        least = 5;
    for (; *words != NULL; words++) {
        unsigned distance = text_distance(text, *words);

        if (distance < least) {
            least = distance;
            nearest = *words;
        }
    }
    return nearest;
}

/* The key of a table that is written most alike; NULL when none is near. */
static const char *key_nearest(const struct conf_table *table, const char *name)
{
    const char *names[TABLE_KEYS_MAX + 1] = {NULL};

    for (uint32_t i = 0; i < table->count; i++)
        names[i] = table->keys[i].name;
    return conf_word_nearest(names, name);
}

static const struct conf_key *key_find(const struct conf_table *table, const char *name)
{
    for (uint32_t i = 0; i < table->count; i++)
        if (strcmp(table->keys[i].name, name) == 0)
            return &table->keys[i];
    return NULL;
}

/* A key that is right elsewhere: in the other daemon's file, or inside an entry of this one. */
static icms_err key_unknown(const struct conf_table *table, const struct conf_source *source,
                            const struct conf_node *node)
{
    const struct conf_table *other =
        table == &conf_target_table ? &conf_agent_table : &conf_target_table;
    const char *nearest = key_nearest(table, node->key);
    char shown[CONF_SHOW_BYTES];
    char list[ERR_WHY_BYTES_MAX / 2];
    size_t used = 0;

    conf_show(node->key, shown);
    if (nearest != NULL)
        return conf_fail(source, node->key_line, "%s has no key '%s'; did you mean '%s'?",
                         table->what, shown, nearest);
    if ((table == &conf_target_table || table == &conf_agent_table) &&
        key_find(other, node->key) != NULL)
        return conf_fail(source, node->key_line, "%s has no key '%s': it belongs in that of %s",
                         table->what, shown,
                         other == &conf_agent_table ? "icms-agent" : "icms-target");
    for (uint32_t i = 0; i < table->count && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i > 0 ? ", " : "",
                                 table->keys[i].name);
    return conf_fail(source, node->key_line, "%s has no key '%s'; it has %s", table->what, shown,
                     list);
}

/* ---- members -------------------------------------------------------------------------------- */

static icms_err bind_scalar(const struct conf_key *key, const struct conf_source *source,
                            const struct conf_node *node, void *object)
{
    struct err_why reason = {""};

    if (node->kind != CONF_NODE_SCALAR)
        return conf_fail(source, node->line, "%s: one value is wanted here, not a %s", key->name,
                         node->kind == CONF_NODE_MAP ? "map" : "list");
    if (conf_value_set(key, node->text, &reason, object) != ICMS_OK)
        return conf_fail(source, node->line, "%s: %s", key->name, reason.text);
    return ICMS_OK;
}

/* Takes memory for as many names as are written, where a list has no room in the struct. */
static icms_err bind_names(const struct conf_key *key, const struct conf_source *source,
                           const struct conf_node *list, void *object)
{
    void **names = field_of(key, object);
    size_t count = 0;

    for (const struct conf_node *node = list->first; node != NULL && count < key->max;
         node = node->next)
        count++;
    if (count == 0)
        return ICMS_OK; /* refused by bind_list, and so are more than the largest number */
    *names = calloc(count, key->size);
    if (*names == NULL)
        return err_set(source->why, ICMS_NO_MEMORY, "%s: out of memory", source->name);
    return ICMS_OK;
}

static icms_err bind_list(const struct conf_key *key, const struct conf_source *source,
                          const struct conf_node *list, void *object)
{
    char *members = field_of(key, object);
    uint32_t count = 0;
    icms_err err;

    if (list->kind != CONF_NODE_LIST)
        return conf_fail(source, list->line, "%s: a list is wanted here (lines that begin with -)",
                         key->name);
    if (key->kind == CONF_NQNS || key->own) {
        err = bind_names(key, source, list, object);
        if (err != ICMS_OK)
            return err;
        members = *(char **)field_of(key, object);
    }
    for (const struct conf_node *node = list->first; node != NULL; node = node->next) {
        char *member = members + (size_t)count * key->size;

        if (count == key->max)
            return conf_fail(source, node->line, "%s: more than %llu entries", key->name,
                             (unsigned long long)key->max);
        if (key->kind == CONF_MAPS) {
            conf_table_init(key->table, member);
            err = conf_table_bind(key->table, source, node, member);
        } else {
            bool id = key->kind == CONF_USERS || key->kind == CONF_GROUPS; /* its name is first */
            struct conf_key text = {.name = key->name,
                                    .kind = key->kind == CONF_NQNS      ? CONF_NQN
                                            : key->kind == CONF_PORTALS ? CONF_ADDRESS
                                            : key->kind == CONF_HOSTS   ? CONF_HOST
                                                                        : CONF_PATH,
                                    .min = key->min,
                                    .size = id ? LIMIT_NAME_BYTES : key->size};

            err = bind_scalar(&text, source, node, member);
        }
        if (err != ICMS_OK)
            return err;
        count++;
    }
    if (count < (key->kind == CONF_PORTALS || key->kind == CONF_HOSTS ? 1 : key->min))
        return conf_fail(source, list->line, "%s: the list is empty", key->name);
    *count_of(key, object) = count;
    return ICMS_OK;
}

static icms_err bind_member(const struct conf_key *key, const struct conf_source *source,
                            const struct conf_node *node, void *object)
{
    switch (key->kind) {
    case CONF_MAP:
        return conf_table_bind(key->table, source, node, field_of(key, object));
    case CONF_MAPS:
    case CONF_NQNS:
    case CONF_PATHS:
    case CONF_USERS:
    case CONF_GROUPS:
        return bind_list(key, source, node, object);
    case CONF_PORTALS:
    case CONF_HOSTS:
        return node->kind == CONF_NODE_LIST ? bind_list(key, source, node, object)
                                            : bind_scalar(key, source, node, object);
    default:
        return bind_scalar(key, source, node, object);
    }
}

icms_err conf_table_bind(const struct conf_table *table, const struct conf_source *source,
                         const struct conf_node *map, void *object)
{
    uint64_t seen = 0;

    check(table->count <= TABLE_KEYS_MAX);
    if (map->kind != CONF_NODE_MAP)
        return conf_fail(source, map->line, "%s is written as a map: 'key: value' lines",
                         table->what);
    for (const struct conf_node *node = map->first; node != NULL; node = node->next) {
        const struct conf_key *key = key_find(table, node->key);
        uint64_t bit;
        icms_err err;

        if (key == NULL)
            return key_unknown(table, source, node);
        bit = (uint64_t)1 << (key - table->keys);
        if (seen & bit)
            return conf_fail(source, node->key_line, "'%s' is written twice; first in line %u",
                             key->name, conf_node_line(map, key->name));
        seen |= bit;
        err = bind_member(key, source, node, object);
        if (err != ICMS_OK)
            return err;
    }
    for (uint32_t i = 0; i < table->count; i++) {
        const struct conf_key *key = &table->keys[i];

        if (!key->required || (seen & (uint64_t)1 << i) ||
            (key->unless != NULL && conf_node_get(map, key->unless) != NULL))
            continue;
        return conf_fail(source, map->line, "%s needs the key '%s', as in '%s: %s'%s%s",
                         table->what, key->name, key->name, key->example,
                         key->unless != NULL ? ", or the key " : "",
                         key->unless != NULL ? key->unless : "");
    }
    return table->rules != NULL ? table->rules(source, map, object) : ICMS_OK;
}
