/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/diff.c: whose configuration a file is, and where two of one kind differ in meaning. Called
 * by `icms config`, and by a target that reads its file again, or a new epoch of its pod map, on
 * one thread.
 *
 * Values are compared as they are bound, so that 1GiB and 1024MiB, or a default and the same
 * written, are one; they are shown as they are written. A value that neither file writes follows
 * from others, and is not told. Members of a list belong together by their first key, a name or a
 * path; their order means nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "conf/conf_int.h"
#include "conf/pod.h"

/* ---- kinds ---------------------------------------------------------------------------------- */

static const struct kind {
    const char *name;
    const char *key; /* that files of this kind alone have */
    const struct conf_table *table;
    size_t bytes; /* of the struct */
} kinds[] = {
    [CONF_FILE_TARGET] = {"icms-target", "drives", &conf_target_table, sizeof(struct conf_target)},
    [CONF_FILE_POD] = {"pod map", "epoch", &conf_pod_table, sizeof(struct conf_pod)},
    [CONF_FILE_NIXL] = {"NIXL plugin", "devices", &conf_nixl_table, sizeof(struct conf_nixl)},
    [CONF_FILE_AGENT] = {"icms-agent", "enclosures", &conf_agent_table, sizeof(struct conf_agent)},
    [CONF_FILE_SEAL] = {"list of keys", NULL, &conf_seal_table, sizeof(struct conf_seal)},
};

const char *conf_file_kind_name(enum conf_file_kind kind)
{
    return kinds[kind].name;
}

/* A file that is read and bound. */
struct diff_file {
    struct conf_source source;
    char *text;
    struct conf_doc *doc;
    enum conf_file_kind kind;
    void *object;
};

/* What has enclosures and no volumes is a pod map without an epoch; a list of keys has nothing but
 * volumes, with keys. */
static enum conf_file_kind kind_of(const struct conf_node *root)
{
    const struct conf_node *volumes = conf_node_get(root, "volumes");

    if (conf_node_get(root, kinds[CONF_FILE_POD].key) != NULL)
        return CONF_FILE_POD;
    for (int i = 0; i < CONF_FILE_SEAL; i++)
        if (conf_node_get(root, kinds[i].key) != NULL)
            return i == CONF_FILE_AGENT && volumes == NULL ? CONF_FILE_POD : (enum conf_file_kind)i;
    if (conf_node_get(root, "pod") == NULL && conf_node_get(root, "local") == NULL &&
        volumes != NULL && volumes->first != NULL && volumes->first->kind == CONF_NODE_MAP &&
        conf_node_get(volumes->first, "keys") != NULL)
        return CONF_FILE_SEAL;
    return CONF_FILE_AGENT;
}

static void file_close(struct diff_file *file)
{
    if (file->object != NULL && file->kind == CONF_FILE_TARGET)
        conf_target_fini(file->object);
    if (file->object != NULL && file->kind == CONF_FILE_AGENT)
        conf_agent_fini(file->object);
    if (file->object != NULL && file->kind == CONF_FILE_POD)
        conf_pod_fini(file->object);
    conf_doc_free(&file->doc);
    free(file->object);
    free(file->text);
    file->object = NULL;
    file->text = NULL;
}

/* Binds a text that was parsed, as a file of its kind. */
static icms_err file_bind(struct diff_file *file, size_t bytes)
{
    const struct conf_node *root = conf_doc_root(file->doc);
    struct err_why *why = file->source.why;
    const char *path = file->source.name;
    icms_err err;

    file->object = calloc(1, kinds[file->kind].bytes);
    if (file->object == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", path);
    conf_table_init(kinds[file->kind].table, file->object);
    err = conf_table_bind(kinds[file->kind].table, &file->source, root, file->object);
    if (err == ICMS_OK && file->kind == CONF_FILE_POD)
        err = conf_pod_ended(&file->source, file->text, bytes);
    return err;
}

/* Takes the text. */
static icms_err file_parse(struct diff_file *file, const char *path, char *text, size_t bytes,
                           struct err_why *why)
{
    const struct conf_node *root;
    icms_err err;

    file->text = text;
    file->source = (struct conf_source){.name = path, .why = why};
    err = conf_doc_parse(&file->source, text, bytes, &file->doc);
    if (err != ICMS_OK)
        return err;
    root = conf_doc_root(file->doc);
    if (root->kind != CONF_NODE_MAP)
        return conf_fail(&file->source, root->line,
                         "it is no configuration: no 'key: value' lines");
    file->kind = kind_of(root);
    return file_bind(file, bytes);
}

static icms_err file_open(struct diff_file *file, const char *path, struct err_why *why)
{
    size_t bytes = 0;
    char *text = NULL;
    icms_err err = conf_file_read(path, "its name", why, &text, &bytes);

    return err == ICMS_OK ? file_parse(file, path, text, bytes, why) : err;
}

icms_err conf_check(const char *path, struct err_why *why, enum conf_file_kind *out_kind)
{
    struct diff_file file = {.text = NULL};
    icms_err err = file_open(&file, path, why);

    if (err == ICMS_OK)
        *out_kind = file.kind;
    file_close(&file);
    return err;
}

/* ---- differences ---------------------------------------------------------------------------- */

#define DIFF_NAME_BYTES  512
#define DIFF_VALUE_BYTES 512

/* One of the two, at some place in it. */
struct diff_side {
    const struct conf_node *map; /* NULL: it is not written */
    const void *object;
};

struct diff {
    void (*visit)(void *arg, const char *key, const char *was, const char *is);
    void (*visit_line)(void *arg, const char *key, const char *was, const char *is, uint32_t line);
    void *arg;
};

/* line: in the file that is. */
static void diff_tell(const struct diff *diff, const char *key, const char *was, const char *is,
                      uint32_t line)
{
    if (diff->visit_line != NULL)
        diff->visit_line(diff->arg, key, was, is, line);
    else
        diff->visit(diff->arg, key, was, is);
}

static uint32_t line_of(const struct conf_node *node, const struct conf_node *map)
{
    if (node != NULL)
        return node->key_line > 0 ? node->key_line : node->line;
    return map != NULL ? map->line : 1;
}

static void table_diff(const struct diff *diff, const struct conf_table *table, const char *prefix,
                       struct diff_side was, struct diff_side is);

static const void *field_of(const struct conf_key *key, const void *object)
{
    return (const char *)object + key->offset;
}

static uint32_t count_of(const struct conf_key *key, const void *object)
{
    return *(const uint32_t *)(const void *)((const char *)object + key->count_offset);
}

/* The members of a list. */
static const char *members_of(const struct conf_key *key, const void *object)
{
    if (key->kind == CONF_NQNS || key->own)
        return *(char *const *)field_of(key, object);
    return field_of(key, object);
}

static bool field_is_equal(const struct conf_key *key, const void *a, const void *b)
{
    const struct write_budget *left = field_of(key, a), *right = field_of(key, b);

    switch (key->kind) {
    case CONF_NAME:
    case CONF_PATH:
    case CONF_NQN:
    case CONF_ADDRESS:
    case CONF_ADDRESSES:
    case CONF_HOST:
    case CONF_URL:
        return strcmp(field_of(key, a), field_of(key, b)) == 0;
    case CONF_BUDGET: /* its burst is a key of its own */
        return left->bytes_day == right->bytes_day &&
               memcmp(&left->drive_writes, &right->drive_writes, sizeof(left->drive_writes)) == 0;
    case CONF_NQNS:
    case CONF_PATHS:
    case CONF_HOSTS:
    case CONF_PORTALS:
        if (count_of(key, a) != count_of(key, b))
            return false;
        for (uint32_t i = 0; i < count_of(key, a); i++)
            if (strcmp(members_of(key, a) + (size_t)i * key->size,
                       members_of(key, b) + (size_t)i * key->size) != 0)
                return false;
        return true;
    case CONF_USERS:
    case CONF_GROUPS:
        return count_of(key, a) == count_of(key, b) &&
               memcmp(members_of(key, a), members_of(key, b),
                      (size_t)count_of(key, a) * key->size) == 0;
    default:
        return memcmp(field_of(key, a), field_of(key, b), key->size) == 0;
    }
}

/* A value as it is written. */
static const char *value_text(const struct conf_key *key, const struct conf_node *node,
                              char out[DIFF_VALUE_BYTES])
{
    size_t used = 0;

    if (node == NULL) {
        (void)snprintf(out, DIFF_VALUE_BYTES, "%s (default)",
                       key->fallback != NULL   ? key->fallback
                       : key->computed != NULL ? key->computed
                                               : "none");
        return out;
    }
    if (node->kind == CONF_NODE_SCALAR) {
        (void)snprintf(out, DIFF_VALUE_BYTES, "%s", node->text);
        return out;
    }
    out[0] = '\0';
    for (const struct conf_node *at = node->first; at != NULL && used < DIFF_VALUE_BYTES;
         at = at->next)
        used += (size_t)snprintf(out + used, DIFF_VALUE_BYTES - used, "%s%s",
                                 at == node->first ? "" : ", ",
                                 at->kind == CONF_NODE_SCALAR ? at->text : "...");
    return out;
}

/* Member number i of a list that is written. */
static struct diff_side member_at(const struct conf_key *key, struct diff_side side,
                                  const struct conf_node *list, uint32_t i)
{
    const struct conf_node *node = list->first;

    for (uint32_t at = 0; at < i; at++)
        node = node->next;
    return (struct diff_side){node, members_of(key, side.object) + (size_t)i * key->size};
}

/* The member of a list whose first key is the same text; map NULL: there is none. */
static struct diff_side member_find(const struct conf_key *key, struct diff_side side,
                                    const struct conf_node *list, const char *name)
{
    const struct conf_node *node = list != NULL ? list->first : NULL;

    for (size_t i = 0; node != NULL; i++, node = node->next)
        if (strcmp(conf_node_get(node, key->table->keys[0].name)->text, name) == 0)
            return (struct diff_side){node, members_of(key, side.object) + i * key->size};
    return (struct diff_side){NULL, NULL};
}

/* Lists of maps, member by member. */
static void members_diff(const struct diff *diff, const struct conf_key *key, const char *name,
                         struct diff_side was, struct diff_side is)
{
    const struct conf_node *lists[] = {was.map != NULL ? conf_node_get(was.map, key->name) : NULL,
                                       is.map != NULL ? conf_node_get(is.map, key->name) : NULL};
    const struct diff_side sides[] = {was, is};
    char member_name[DIFF_NAME_BYTES];

    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; lists[s] != NULL && i < count_of(key, sides[s].object); i++) {
            struct diff_side member = member_at(key, sides[s], lists[s], i);
            const char *first = conf_node_get(member.map, key->table->keys[0].name)->text;
            struct diff_side other = member_find(key, sides[1 - s], lists[1 - s], first);

            (void)snprintf(member_name, sizeof(member_name), "%.300s[%.200s]", name, first);
            if (other.map == NULL)
                diff_tell(diff, member_name, s == 0 ? "listed" : "not listed",
                          s == 0 ? "not listed" : "listed",
                          s == 0 ? line_of(lists[1], is.map) : member.map->line);
            else if (s == 0)
                table_diff(diff, key->table, member_name, member, other);
        }
}

static void table_diff(const struct diff *diff, const struct conf_table *table, const char *prefix,
                       struct diff_side was, struct diff_side is)
{
    char name[DIFF_NAME_BYTES], was_text[DIFF_VALUE_BYTES], is_text[DIFF_VALUE_BYTES];

    for (uint32_t i = 0; i < table->count; i++) {
        const struct conf_key *key = &table->keys[i];
        const struct conf_node *was_node =
            was.map != NULL ? conf_node_get(was.map, key->name) : NULL;
        const struct conf_node *is_node = is.map != NULL ? conf_node_get(is.map, key->name) : NULL;

        if (was_node == NULL && is_node == NULL)
            continue;
        (void)snprintf(name, sizeof(name), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "",
                       key->name);
        if (key->kind == CONF_MAPS)
            members_diff(diff, key, name, was, is);
        else if (key->kind == CONF_MAP)
            table_diff(diff, key->table, name,
                       (struct diff_side){was_node, field_of(key, was.object)},
                       (struct diff_side){is_node, field_of(key, is.object)});
        else if (!field_is_equal(key, was.object, is.object))
            diff_tell(diff, name, value_text(key, was_node, was_text),
                      value_text(key, is_node, is_text), line_of(is_node, is.map));
    }
}

icms_err conf_diff(const char *was_path, const char *is_path,
                   void (*visit)(void *arg, const char *key, const char *was, const char *is),
                   void *arg, struct err_why *why)
{
    const struct diff diff = {.visit = visit, .arg = arg};
    struct diff_file was = {.text = NULL}, is = {.text = NULL};
    icms_err err = file_open(&was, was_path, why);

    if (err == ICMS_OK)
        err = file_open(&is, is_path, why);
    if (err == ICMS_OK && was.kind != is.kind)
        err = err_set(why, ICMS_INVALID, "%s is of another kind (%s) than %s (%s)", is_path,
                      kinds[is.kind].name, was_path, kinds[was.kind].name);
    if (err == ICMS_OK)
        table_diff(&diff, kinds[was.kind].table, "",
                   (struct diff_side){conf_doc_root(was.doc), was.object},
                   (struct diff_side){conf_doc_root(is.doc), is.object});
    file_close(&was);
    file_close(&is);
    return err;
}

/* ---- a target that reads its file again ------------------------------------------------------ */

struct conf_live {
    struct diff_file file;
    size_t bytes;                /* of its text                                      */
    char path[LIMIT_PATH_BYTES]; /* for errors                                       */
    struct diff_file map;        /* `pod`; object NULL: none, or not joined yet      */
    char map_path[LIMIT_PATH_BYTES];
};

/* Takes a copy of the text, as a file of this kind. */
static icms_err live_parse(struct diff_file *file, enum conf_file_kind kind, const char *path,
                           const char *text, size_t bytes, struct err_why *why)
{
    icms_err err;

    file->source = (struct conf_source){.name = path, .why = why};
    file->kind = kind;
    file->text = malloc(bytes + 1);
    if (file->text == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", path);
    memcpy(file->text, text, bytes);
    file->text[bytes] = '\0';
    err = conf_doc_parse(&file->source, file->text, bytes, &file->doc);
    return err == ICMS_OK ? file_bind(file, bytes) : err;
}

icms_err conf_live_parse(const char *name, const char *text, size_t bytes, struct err_why *why,
                         struct conf_live **out_live)
{
    struct conf_live *live = calloc(1, sizeof(*live));
    icms_err err;

    if (live == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", name);
    live->bytes = bytes;
    (void)snprintf(live->path, sizeof(live->path), "%s", name);
    err = live_parse(&live->file, CONF_FILE_TARGET, live->path, text, bytes, why);
    live->file.source.why = NULL; /* the caller's, of this call */
    if (err != ICMS_OK) {
        conf_live_free(&live);
        return err;
    }
    *out_live = live;
    return ICMS_OK;
}

icms_err conf_live_again(const struct conf_live *live, struct err_why *why,
                         struct conf_live **out_live)
{
    return conf_live_parse(live->path, live->file.text, live->bytes, why, out_live);
}

icms_err conf_live_join(struct conf_live *live, const char *text, size_t bytes, const char *name,
                        struct err_why *why)
{
    const struct conf_source own = {.name = live->path, .why = why};
    struct conf_target_lists lists = {.own = &own, .own_root = conf_doc_root(live->file.doc)};
    struct conf_target *target = live->file.object;
    icms_err err;

    check(live->map.text == NULL && target->pod[0] != '\0');
    (void)snprintf(live->map_path, sizeof(live->map_path), "%s", name);
    err = live_parse(&live->map, CONF_FILE_POD, live->map_path, text, bytes, why);
    if (err == ICMS_OK) {
        lists.map = &live->map.source;
        lists.map_root = conf_doc_root(live->map.doc);
        err = conf_pod_target(live->map.object, lists.map, lists.map_root, target);
    }
    if (err == ICMS_OK)
        err = conf_target_lists_rules(&lists, target);
    live->map.source.why = NULL;
    return err;
}

icms_err conf_live_read(const char *path, const char *remedy, struct err_why *why,
                        struct conf_live **out_live)
{
    size_t bytes = 0;
    char *text = NULL;
    icms_err err = conf_file_read(path, remedy, why, &text, &bytes);

    if (err == ICMS_OK)
        err = conf_live_parse(path, text, bytes, why, out_live);
    free(text);
    return err;
}

void conf_live_free(struct conf_live **live)
{
    if (*live != NULL && (*live)->map.object != NULL) {
        struct conf_target *target = (*live)->file.object;

        for (uint32_t i = 0; i < target->volume_count; i++)
            target->volumes[i].host_nqn = NULL; /* the map's */
    }
    if (*live != NULL) {
        file_close(&(*live)->map);
        file_close(&(*live)->file);
    }
    free(*live);
    *live = NULL;
}

const struct conf_target *conf_live_target(const struct conf_live *live)
{
    return live->file.object;
}

const struct conf_pod *conf_live_pod(const struct conf_live *live)
{
    return live->map.object;
}

static void live_diff(const struct diff *diff, const struct conf_live *was,
                      const struct conf_live *is)
{
    table_diff(diff, &conf_target_table, "",
               (struct diff_side){conf_doc_root(was->file.doc), was->file.object},
               (struct diff_side){conf_doc_root(is->file.doc), is->file.object});
}

/* Maps, when both have one. */
static void live_map_diff(const struct diff *diff, const struct conf_live *was,
                          const struct conf_live *is)
{
    if (was->map.object != NULL && is->map.object != NULL)
        table_diff(diff, &conf_pod_table, "",
                   (struct diff_side){conf_doc_root(was->map.doc), was->map.object},
                   (struct diff_side){conf_doc_root(is->map.doc), is->map.object});
}

/* The first difference that needs a restart. */
struct live_check {
    const struct conf_live *is;
    struct err_why *why;
    icms_err err;
};

/* Which drives there are, whether they drain, and what happens to one that is added. */
static bool live_is_drive(const char *key)
{
    const char *end = strrchr(key, ']');

    return strncmp(key, "drives[", strlen("drives[")) == 0 && end != NULL &&
           (end[1] == '\0' || strcmp(end + 1, ".state") == 0 || strcmp(end + 1, ".health") == 0 ||
            strcmp(end + 1, ".format_empty") == 0);
}

static void live_check_visit(void *arg, const char *key, const char *was, const char *is,
                             uint32_t line)
{
    struct live_check *check = arg;
    const struct conf_source source = {.name = check->is->path, .why = check->why};

    if (check->err != ICMS_OK || strncmp(key, "volumes", strlen("volumes")) == 0 ||
        strncmp(key, "tenants", strlen("tenants")) == 0 || live_is_drive(key))
        return;
    check->err = conf_fail(&source, line,
                           "%.160s is %.80s, and %.80s in the icms-target that runs: only volumes, "
                           "tenants, and which drives there are change while it runs; restart it",
                           key, is, was);
}

icms_err conf_live_check(const struct conf_live *was, const struct conf_live *is,
                         struct err_why *why)
{
    struct live_check check = {is, why, ICMS_OK};
    const struct diff diff = {.visit_line = live_check_visit, .arg = &check};
    const struct conf_source source = {.name = is->path, .why = why};
    const struct conf_source quiet = {.name = was->path, .why = NULL};

    /* Half a file may be right, and lack the hosts of its last volume: then all could use that. */
    if (conf_pod_ended(&quiet, was->file.text, was->bytes) == ICMS_OK)
        check.err = conf_pod_ended(&source, is->file.text, is->bytes);
    live_diff(&diff, was, is);
    return check.err;
}

void conf_live_diff(const struct conf_live *was, const struct conf_live *is,
                    void (*visit)(void *arg, const char *key, const char *was, const char *is),
                    void *arg)
{
    const struct diff diff = {.visit = visit, .arg = arg};

    live_diff(&diff, was, is);
    live_map_diff(&diff, was, is);
}

uint32_t conf_live_line(const struct conf_live *live, uint32_t volume, const char *key,
                        const char **out_file)
{
    bool is_map =
        live->map.object != NULL &&
        (volume != UINT32_MAX || strcmp(key, "tenants") == 0 || strcmp(key, "epoch") == 0);
    const struct conf_node *root = conf_doc_root(is_map ? live->map.doc : live->file.doc);
    const struct conf_node *list = conf_node_get(root, volume == UINT32_MAX ? key : "volumes");
    const struct conf_node *node = list != NULL ? list->first : NULL;

    *out_file = is_map ? live->map_path : live->path;
    if (volume == UINT32_MAX)
        return line_of(list, NULL);
    for (uint32_t at = 0; node != NULL && at < volume; at++)
        node = node->next;
    return node != NULL ? line_of(conf_node_get(node, key), node) : 1;
}

uint32_t conf_live_drive_line(const struct conf_live *live, uint32_t drive)
{
    const struct conf_node *list = conf_node_get(conf_doc_root(live->file.doc), "drives");
    const struct conf_node *node = list->first;

    for (uint32_t at = 0; drive != UINT32_MAX && node != NULL && at < drive; at++)
        node = node->next;
    return line_of(drive == UINT32_MAX || node == NULL ? list : node, NULL);
}
