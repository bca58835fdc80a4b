/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of keys as documents: the example files, and a walk for the manual pages. Called by
 * cmd (--print-config) and by the generator of the manual pages, on one thread.
 */
#include "conf/conf_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* ---- a walk over the keys ------------------------------------------------------------------- */

static const char *kind_text(enum conf_kind kind)
{
    switch (kind) {
    case CONF_NAME:
        return "name";
    case CONF_PATH:
        return "path";
    case CONF_NQN:
        return "NQN";
    case CONF_ADDRESS:
        return "address";
    case CONF_ADDRESSES:
        return "address or none";
    case CONF_PORTALS:
        return "address, or list of addresses";
    case CONF_HOST:
        return "address or DNS name, and port";
    case CONF_HOSTS:
        return "address or DNS name, and port, or list of them";
    case CONF_URL:
        return "URL";
    case CONF_UUID:
        return "UUID";
    case CONF_BYTES:
        return "size";
    case CONF_BUDGET:
        return "size, or number and DWPD";
    case CONF_DURATION:
        return "time";
    case CONF_COUNT:
        return "number";
    case CONF_MODE:
        return "octal mode";
    case CONF_BOOL:
        return "true or false";
    case CONF_REQUIRE:
        return "none, chap, tls or chap+tls";
    case CONF_CHOICE:
        return "word";
    case CONF_PERCENT:
        return "percentage";
    case CONF_NUMBER:
        return "number";
    case CONF_MAP:
        return "map";
    case CONF_MAPS:
        return "list of maps";
    case CONF_NQNS:
        return "list of NQNs";
    case CONF_PATHS:
        return "list of paths";
    case CONF_USERS:
        return "list of users";
    case CONF_GROUPS:
        return "list of groups";
    }
    return "";
}

#define RANGE_BYTES 96

static void range_text(const struct conf_key *key, char out[RANGE_BYTES])
{
    char low[32], high[32];

    out[0] = '\0';
    if (key->kind == CONF_BYTES)
        (void)snprintf(out, RANGE_BYTES, "%s to %s", conf_bytes_format(key->min, low),
                       conf_bytes_format(key->max, high));
    else if (key->kind == CONF_DURATION)
        (void)snprintf(out, RANGE_BYTES, "%llums to %llus", (unsigned long long)key->min,
                       (unsigned long long)key->max / 1000);
    else if (key->kind == CONF_COUNT)
        (void)snprintf(out, RANGE_BYTES, "%llu to %llu", (unsigned long long)key->min,
                       (unsigned long long)key->max);
    else if (key->kind == CONF_MAPS || key->kind == CONF_NQNS || key->kind == CONF_PATHS ||
             key->kind == CONF_USERS || key->kind == CONF_GROUPS || key->kind == CONF_PORTALS ||
             key->kind == CONF_HOSTS)
        (void)snprintf(out, RANGE_BYTES, "at most %llu", (unsigned long long)key->max);
}

static const char *fallback_text(const struct conf_key *key)
{
    if (key->required)
        return key->computed != NULL ? key->computed : "required";
    if (key->fallback != NULL)
        return key->fallback;
    return key->computed != NULL ? key->computed : "";
}

static void table_walk(const struct conf_table *table, const char *prefix,
                       void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct conf_key *key = &table->keys[i];
        char name[128];
        char range[RANGE_BYTES];
        struct conf_key_doc doc = {.name = name, .type = kind_text(key->kind), .range = range};

        range_text(key, range);
        (void)snprintf(name, sizeof(name), "%s%s", prefix, key->name);
        doc.fallback = fallback_text(key);
        doc.doc = key->doc;
        visit(arg, &doc);
        if (key->table != NULL) {
            (void)snprintf(name, sizeof(name), "%s%s%s.", prefix, key->name,
                           key->kind == CONF_MAPS ? "[]" : "");
            table_walk(key->table, name, visit, arg);
        }
    }
}

void conf_target_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg)
{
    table_walk(&conf_target_table, "", visit, arg);
}

void conf_agent_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg)
{
    table_walk(&conf_agent_table, "", visit, arg);
}

void conf_seal_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg)
{
    table_walk(&conf_seal_table, "", visit, arg);
}

void conf_nixl_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg)
{
    table_walk(&conf_nixl_table, "", visit, arg);
}

void conf_pod_keys(void (*visit)(void *arg, const struct conf_key_doc *doc), void *arg)
{
    table_walk(&conf_pod_table, "", visit, arg);
}

/* ---- the example file ----------------------------------------------------------------------- */

#define EXAMPLE_BYTES 32768
#define EXAMPLE_WIDTH 96

struct example {
    char text[EXAMPLE_BYTES];
    size_t used;
};

static void example_add(struct example *example, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void example_add(struct example *example, const char *format, ...)
{
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(example->text + example->used, EXAMPLE_BYTES - example->used, format, args);
    va_end(args);
    check(n >= 0 && (size_t)n < EXAMPLE_BYTES - example->used);
    example->used += (size_t)n;
}

/* A comment in lines of at most EXAMPLE_WIDTH. */
static void example_comment(struct example *example, unsigned indent, const char *text)
{
    size_t column = 0;

    while (*text != '\0') {
        size_t word = strcspn(text, " ");

        if (column == 0 || column + 1 + word > EXAMPLE_WIDTH) {
            example_add(example, "%s%*s#", column == 0 ? "" : "\n", (int)indent, "");
            column = indent + 1;
        }
        example_add(example, " %.*s", (int)word, text);
        column += 1 + word;
        text += word;
        text += strspn(text, " ");
    }
    example_add(example, "\n");
}

/* One table. list: it is a member of a list, which begins with "- ". off: all of it is a comment.
 */
static void example_table(struct example *example, const struct conf_table *table, unsigned indent,
                          bool list, bool off)
{
    for (uint32_t i = 0; i < table->count; i++) {
        const struct conf_key *key = &table->keys[i];
        const char *value = key->fallback != NULL ? key->fallback : key->example;
        bool key_off = off || (!key->required && key->fallback == NULL && key->kind != CONF_MAP &&
                               key->kind != CONF_MAPS);
        bool local = (key->kind == CONF_MAP || (key->kind == CONF_MAPS && key->example == NULL)) &&
                     key->computed != NULL;
        unsigned column = indent + (list && i > 0 ? 2 : 0);
        char comment[2048];

        if (key->required || key->fallback != NULL || key->computed == NULL)
            (void)snprintf(comment, sizeof(comment), "%s", key->doc);
        else
            (void)snprintf(comment, sizeof(comment), "%s Default: %s.", key->doc, key->computed);
        example_comment(example, column, comment);
        example_add(example, "%*s%s", (int)column, "", key_off || local ? "# " : "");
        example_add(example, "%s%s:", list && i == 0 ? "- " : "", key->name);
        if (key->kind == CONF_MAP || key->kind == CONF_MAPS) {
            example_add(example, "\n");
            example_table(example, key->table, indent + 2, key->kind == CONF_MAPS, off || local);
        } else {
            example_add(example, " %s\n", value != NULL ? value : "...");
        }
    }
}

static const char *example_make(struct example *example, const char *daemon,
                                const struct conf_table *table)
{
    if (example->used == 0) {
        example_add(example,
                    "# Configuration of %s, see %s.yaml(5). Every key is shown, with its default\n"
                    "# where it has one; a line that begins with '#' need not be written.\n"
                    "# Sizes: B, KiB, MiB, GiB, TiB. Times: ms, s, min.\n\n",
                    daemon, daemon);
        example_table(example, table, 0, false, false);
    }
    return example->text;
}

const char *conf_target_example(void)
{
    static struct example example;

    return example_make(&example, "icms-target", &conf_target_table);
}

const char *conf_agent_example(void)
{
    static struct example example;

    return example_make(&example, "icms-agent", &conf_agent_table);
}
