/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A YAML text to a bounded tree, over the event interface of libyaml. Called by conf.c on the
 * caller's thread.
 *
 * The text is hostile: size, depth and nodes are bounded; anchors, aliases and tags are refused, so
 * nothing multiplies; memory is taken once, from the size of the text, and given back whole.
 */
#include "conf/conf_int.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/check.h"

struct conf_doc {
    struct conf_node *nodes; /* of the tree                         */
    size_t nodes_max;        /* room                                */
    size_t node_count;       /* used                                */
    char *text;              /* the texts of all scalars            */
    size_t text_bytes_max;   /* room                                */
    size_t text_bytes;       /* used                                */
    struct conf_node *root;  /* NULL until it came                  */
};

/* While the events come in. */
struct doc_builder {
    const struct conf_source *source;
    const char *text; /* the file */
    size_t bytes;     /* of it    */
    struct conf_doc *doc;
    struct conf_node *stack[CONF_DEPTH_MAX]; /* open maps and lists                    */
    uint32_t depth;                          /* used                                   */
    const char *key[CONF_DEPTH_MAX];         /* map: key that waits for its value      */
    uint32_t key_line[CONF_DEPTH_MAX];       /* and where it was                       */
};

/* What may be meant where the text is no YAML, or not what it looks like: "; ..." or "". A line has
 * `]:` and a digit where an address of IPv6 has no quotes. */
static const char *doc_hint(const struct doc_builder *builder, uint32_t line)
{
    const char *at = builder->text, *end = builder->text + builder->bytes, *stop;

    for (; at != NULL && line > 1; line--) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at != NULL ? at + 1 : NULL;
    }
    if (at == NULL)
        return "";
    stop = memchr(at, '\n', (size_t)(end - at));
    stop = stop != NULL ? stop : end;
    for (; stop - at > 2; at++)
        if (at[0] == ']' && at[1] == ':' && at[2] >= '0' && at[2] <= '9')
            return "; an IPv6 address has to be in quotes, as in \"[2001:db8::10]:4420\", for "
                   "brackets alone are a list";
    return "";
}

static icms_err doc_text_add(struct doc_builder *builder, uint32_t line, const char *text,
                             size_t bytes, const char **out_text)
{
    struct conf_doc *doc = builder->doc;
    char *to = doc->text + doc->text_bytes;

    if (memchr(text, '\0', bytes) != NULL)
        return conf_fail(builder->source, line, "a value holds a zero byte");
    if (bytes >= doc->text_bytes_max - doc->text_bytes)
        return conf_fail(builder->source, line, "too much text");
    memcpy(to, text, bytes);
    to[bytes] = '\0';
    doc->text_bytes += bytes + 1;
    *out_text = to;
    return ICMS_OK;
}

/* Makes a node and hangs it where the document is. */
static icms_err doc_node_add(struct doc_builder *builder, enum conf_node_kind kind, uint32_t line,
                             struct conf_node **out_node)
{
    struct conf_doc *doc = builder->doc;
    struct conf_node *parent = builder->depth > 0 ? builder->stack[builder->depth - 1] : NULL;
    struct conf_node *node = NULL;

    if (doc->node_count == doc->nodes_max)
        return conf_fail(builder->source, line, "more than %zu values", doc->nodes_max);
    node = &doc->nodes[doc->node_count++];
    node->kind = kind;
    node->line = line;
    if (parent == NULL) {
        doc->root = node;
    } else {
        if (parent->kind == CONF_NODE_MAP) {
            check(builder->key[builder->depth - 1] != NULL);
            node->key = builder->key[builder->depth - 1];
            node->key_line = builder->key_line[builder->depth - 1];
            builder->key[builder->depth - 1] = NULL;
        }
        if (parent->last == NULL)
            parent->first = node;
        else
            parent->last->next = node;
        parent->last = node;
    }
    *out_node = node;
    return ICMS_OK;
}

/* True when the next value of the document is the key of a map. */
static bool doc_wants_key(const struct doc_builder *builder)
{
    return builder->depth > 0 && builder->stack[builder->depth - 1]->kind == CONF_NODE_MAP &&
           builder->key[builder->depth - 1] == NULL;
}

static icms_err doc_open(struct doc_builder *builder, enum conf_node_kind kind, uint32_t line)
{
    struct conf_node *node = NULL;
    icms_err err;

    if (doc_wants_key(builder))
        return conf_fail(builder->source, line, "a key must be a plain word%s",
                         doc_hint(builder, line));
    err = doc_node_add(builder, kind, line, &node);
    if (err != ICMS_OK)
        return err;
    if (builder->depth == CONF_DEPTH_MAX)
        return conf_fail(builder->source, line, "more than %d levels", CONF_DEPTH_MAX);
    builder->key[builder->depth] = NULL;
    builder->stack[builder->depth++] = node;
    return ICMS_OK;
}

static icms_err doc_scalar(struct doc_builder *builder, const yaml_event_t *event, uint32_t line)
{
    struct conf_node *node = NULL;
    const char *text = NULL;
    icms_err err;

    err = doc_text_add(builder, line, (const char *)event->data.scalar.value,
                       event->data.scalar.length, &text);
    if (err != ICMS_OK)
        return err;
    if (doc_wants_key(builder)) {
        builder->key[builder->depth - 1] = text;
        builder->key_line[builder->depth - 1] = line;
        return ICMS_OK;
    }
    err = doc_node_add(builder, CONF_NODE_SCALAR, line, &node);
    if (err == ICMS_OK)
        node->text = text;
    return err;
}

static icms_err doc_anchor_refuse(struct doc_builder *builder, uint32_t line,
                                  const yaml_char_t *anchor, const yaml_char_t *tag)
{
    if (anchor != NULL)
        return conf_fail(builder->source, line, "anchors (&name) are not allowed");
    if (tag != NULL)
        return conf_fail(builder->source, line, "tags (!name) are not allowed");
    return ICMS_OK;
}

static icms_err doc_event(struct doc_builder *builder, const yaml_event_t *event)
{
    uint32_t line = (uint32_t)event->start_mark.line + 1;
    icms_err err;

    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (builder->doc->root != NULL)
            return conf_fail(builder->source, line, "a second document (---) begins here");
        return ICMS_OK;
    case YAML_ALIAS_EVENT:
        return conf_fail(builder->source, line, "aliases (*name) are not allowed");
    case YAML_SCALAR_EVENT:
        err = doc_anchor_refuse(builder, line, event->data.scalar.anchor, event->data.scalar.tag);
        return err != ICMS_OK ? err : doc_scalar(builder, event, line);
    case YAML_SEQUENCE_START_EVENT:
        err = doc_anchor_refuse(builder, line, event->data.sequence_start.anchor,
                                event->data.sequence_start.tag);
        return err != ICMS_OK ? err : doc_open(builder, CONF_NODE_LIST, line);
    case YAML_MAPPING_START_EVENT:
        err = doc_anchor_refuse(builder, line, event->data.mapping_start.anchor,
                                event->data.mapping_start.tag);
        return err != ICMS_OK ? err : doc_open(builder, CONF_NODE_MAP, line);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        check(builder->depth > 0);
        builder->depth--;
        return ICMS_OK;
    default:
        return ICMS_OK;
    }
}

static icms_err doc_syntax(struct doc_builder *builder, const yaml_parser_t *parser)
{
    uint32_t problem_line = (uint32_t)parser->problem_mark.line + 1;
    uint32_t context_line = (uint32_t)parser->context_mark.line + 1;
    uint32_t open_line = builder->depth > 0 ? builder->stack[builder->depth - 1]->line : 0;
    const char *hint = doc_hint(builder, problem_line);
    char shown[CONF_SHOW_BYTES];

    if (hint[0] == '\0')
        hint = doc_hint(builder, context_line);
    if (parser->error == YAML_MEMORY_ERROR)
        return err_set(builder->source->why, ICMS_NO_MEMORY, "%s: out of memory",
                       builder->source->name);
    /* the innermost that is open is the one that the parser is in */
    if (parser->context != NULL && strstr(parser->context, "flow") != NULL && hint[0] == '\0' &&
        open_line != 0 && open_line != problem_line)
        return conf_fail(builder->source, open_line,
                         "this is not YAML: the list or map that begins here is not closed, and "
                         "does not go on in line %u: write its ']' or '}'",
                         problem_line);
    return conf_fail(builder->source, problem_line, "this is not YAML: %s%s",
                     conf_show(parser->problem != NULL ? parser->problem : "unreadable", shown),
                     hint);
}

static icms_err doc_events(struct doc_builder *builder, yaml_parser_t *parser)
{
    bool more = true;

    while (more) {
        yaml_event_t event;
        icms_err err;

        if (!yaml_parser_parse(parser, &event))
            return doc_syntax(builder, parser);
        more = event.type != YAML_STREAM_END_EVENT;
        err = doc_event(builder, &event);
        yaml_event_delete(&event);
        if (err != ICMS_OK)
            return err;
    }
    if (builder->doc->root == NULL)
        return conf_fail(builder->source, 1, "the file is empty");
    return ICMS_OK;
}

icms_err conf_doc_parse(const struct conf_source *source, const char *text, size_t bytes,
                        struct conf_doc **out_doc)
{
    struct conf_doc *doc;
    struct doc_builder builder = {.source = source, .text = text, .bytes = bytes};
    yaml_parser_t parser;
    icms_err err;

    if (bytes > CONF_FILE_BYTES_MAX)
        return conf_fail(source, 1, "the file is larger than %zu MiB", CONF_FILE_BYTES_MAX >> 20);
    doc = calloc(1, sizeof(*doc));
    if (doc == NULL)
        return err_set(source->why, ICMS_NO_MEMORY, "%s: out of memory", source->name);
    /* A value has a byte at least, or follows one; an escape of two bytes may stand for three, and
     * each scalar ends in a zero. */
    doc->nodes_max = bytes + 1 < CONF_NODES_MAX ? bytes + 1 : CONF_NODES_MAX;
    doc->text_bytes_max = 2 * bytes + doc->nodes_max;
    doc->text = malloc(doc->text_bytes_max);
    doc->nodes = calloc(doc->nodes_max, sizeof(*doc->nodes));
    builder.doc = doc;
    if (doc->text == NULL || doc->nodes == NULL || !yaml_parser_initialize(&parser)) {
        conf_doc_free(&doc);
        return err_set(source->why, ICMS_NO_MEMORY, "%s: out of memory", source->name);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    err = doc_events(&builder, &parser);
    yaml_parser_delete(&parser);
    if (err != ICMS_OK) {
        conf_doc_free(&doc);
        return err;
    }
    *out_doc = doc;
    return ICMS_OK;
}

const struct conf_node *conf_doc_root(const struct conf_doc *doc)
{
    return doc->root;
}

void conf_doc_free(struct conf_doc **doc)
{
    if (*doc == NULL)
        return;
    free((*doc)->text);
    free((*doc)->nodes);
    free(*doc);
    *doc = NULL;
}

const struct conf_node *conf_node_get(const struct conf_node *map, const char *key)
{
    for (const struct conf_node *node = map->first; node != NULL; node = node->next)
        if (node->key != NULL && strcmp(node->key, key) == 0)
            return node;
    return NULL;
}

uint32_t conf_node_item_line(const struct conf_node *node, uint32_t i)
{
    if (node->kind != CONF_NODE_LIST)
        return node->key_line;
    for (node = node->first; i > 0; i--)
        node = node->next;
    return node->line;
}

uint32_t conf_node_line(const struct conf_node *map, const char *key)
{
    const struct conf_node *node = conf_node_get(map, key);

    return node != NULL ? node->key_line : map->line;
}
