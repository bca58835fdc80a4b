/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_body.c: see agent_body.h. Called by ctl's HTTP thread. A body is of someone who has
 * proven that he may use the port, and is checked like a stranger's all the same. What it can make
 * us take: jansson's tree of LIMIT_HTTP_JSON_BYTES of text, 4 bytes for each token id that came as
 * base64, as much for those of one block, and AGENT_BODY_KEYS keys with a hash each, or two where
 * hash of the model's entry is set, one body at a time.
 */
#include "agent_body.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/access.h"
#include "agent_chain.h"
#include "agent_tokens.h"
#include "icms/icms.h"

/* Statuses of HTTP. */
enum {
    STATUS_BAD_REQUEST = 400,
    STATUS_FORBIDDEN = 403,
    STATUS_NOT_FOUND = 404,
    STATUS_TOO_LARGE = 413,
    STATUS_INTERNAL = 500,
    STATUS_UNAVAILABLE = 503,
};

/* ---- reading -------------------------------------------------------------------------------- */

static icms_err member_unknown(const char *name, const char *const *members, struct err_why *why)
{
    char list[200] = "";
    size_t used = 0;

    for (size_t i = 0; members[i] != NULL && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s",
                                 i == 0                   ? ""
                                 : members[i + 1] == NULL ? " and "
                                                          : ", ",
                                 members[i]);
    return err_set(why, ICMS_INVALID, "unknown member \"%.40s\"; there are %s", name, list);
}

static icms_err members_check(json_t *root, const char *const *members, struct err_why *why)
{
    const char *name;
    json_t *value;

    json_object_foreach(root, name, value)
    {
        size_t i = 0;

        while (members[i] != NULL && strcmp(name, members[i]) != 0)
            i++;
        if (members[i] == NULL)
            return member_unknown(name, members, why);
    }
    return ICMS_OK;
}

/* A body without what is between begin and end. */
struct body_rest {
    const char *text;
    size_t at, begin, end, bytes;
};

/* For json_load_callback. */
static size_t rest_next(void *to, size_t room, void *arg)
{
    struct body_rest *rest = arg;
    size_t until;

    if (rest->at == rest->begin)
        rest->at = rest->end;
    until = rest->at < rest->begin ? rest->begin : rest->bytes;
    if (room > until - rest->at)
        room = until - rest->at;
    memcpy(to, rest->text + rest->at, room);
    rest->at += room;
    return room;
}

/* The JSON of it, but for token ids as base64. */
static icms_err body_load(const char *text, size_t bytes, struct err_why *why,
                          struct agent_body *body)
{
    struct body_rest rest = {.text = text, .begin = bytes, .end = bytes, .bytes = bytes};
    bool has_ids = agent_tokens_find(text, bytes, &rest.begin, &rest.end);
    json_error_t error;
    const json_t *tokens;

    if (bytes - (rest.end - rest.begin) > LIMIT_HTTP_JSON_BYTES)
        return err_set(why, ICMS_LIMIT, "a body has %zu bytes at most, without token ids as base64",
                       LIMIT_HTTP_JSON_BYTES);
    body->root = json_load_callback(rest_next, &rest, JSON_REJECT_DUPLICATES, &error);
    if (body->root == NULL && json_error_code(&error) == json_error_numeric_overflow)
        return err_set(why, ICMS_INVALID,
                       "line %d: %s: a token id is 0 to %d; if it is a hash, " AGENT_CHAIN_WHOLE,
                       error.line, error.text, INT32_MAX);
    if (body->root == NULL)
        return err_set(why, ICMS_INVALID, "this is not JSON: line %d: %s", error.line, error.text);
    if (!has_ids)
        return ICMS_OK;
    tokens = json_object_get(body->root, "tokens");
    if (!json_is_string(tokens) || json_string_length(tokens) != 0)
        return err_set(why, ICMS_INVALID, "tokens: a member of the body, and of nothing inside");
    return agent_tokens_read(text + rest.begin, rest.end - rest.begin, why, &body->ids,
                             &body->id_count);
}

/* The model, if its volume is one of these: the name of another one is not told. */
static const struct conf_model *model_find(const struct conf_agent *conf, uint64_t volumes,
                                           const char *name)
{
    const struct conf_model *model = conf_agent_model(conf, name);
    ptrdiff_t volume;

    if (model == NULL)
        return NULL;
    volume = conf_agent_volume(conf, model->volume) - conf->volumes;
    return (volumes >> volume & 1) != 0 ? model : NULL;
}

/* What a model's name stands for takes its place. */
static icms_err body_model(struct agent_body *body, const struct conf_agent *conf, uint64_t volumes,
                           struct err_why *why)
{
    json_t *root = body->root;
    const json_t *name = json_object_get(root, "model");
    const struct conf_model *model;
    json_t *chain;

    if (name == NULL)
        return ICMS_OK;
    if (json_object_get(root, "volume") != NULL || json_object_get(root, "chain") != NULL)
        return err_set(why, ICMS_INVALID,
                       "model: it says which volume and chain; send one of them, or the model");
    if (!json_is_string(name))
        return err_set(why, ICMS_INVALID, "model: a name");
    model = model_find(conf, volumes, json_string_value(name));
    if (model == NULL)
        return err_set(why, ICMS_INVALID,
                       "model: \"%.100s\" is not one of this agent's models: list it in its "
                       "configuration, or send volume and keys, names, or the engine's chain",
                       json_string_value(name));
    if (model->of == CONF_MODEL_TOKENS && json_object_get(root, "hashes") != NULL)
        return err_set(why, ICMS_INVALID,
                       "model: keys of \"%.100s\" are made of tokens, and of nothing else",
                       model->name);
    if (model->of == CONF_MODEL_HASHES && model->hash == CONF_MODEL_HASH_NONE &&
        json_object_get(root, "tokens") != NULL)
        return err_set(why, ICMS_INVALID,
                       "model: keys of \"%.100s\" are made of hashes: send those, or set hash in "
                       "its entry of the agent's models, as vLLM's adapter logs it",
                       model->name);
    chain = json_pack("{s:s, s:i, s:i}", "state", model->state, "run_blocks",
                      (int)conf_agent_volume(conf, model->volume)->run_blocks, "block_tokens",
                      (int)model->block_tokens);
    if (json_object_set_new(root, "chain", chain) != 0 ||
        json_object_set_new(root, "volume", json_string(model->volume)) != 0)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    body->model = model;
    return ICMS_OK;
}

icms_err agent_body_read(const char *text, size_t bytes, const struct conf_agent *conf,
                         uint64_t volumes, const char *const *members, struct err_why *why,
                         struct agent_body *out_body)
{
    icms_err err;

    *out_body = (struct agent_body){.root = NULL};
    err = body_load(text, bytes, why, out_body);
    if (err == ICMS_OK && !json_is_object(out_body->root))
        err = err_set(why, ICMS_INVALID, "the body has to be a JSON object");
    if (err == ICMS_OK)
        err = members_check(out_body->root, members, why);
    return err == ICMS_OK ? body_model(out_body, conf, volumes, why) : err;
}

void agent_body_end(struct agent_body *body)
{
    json_decref(body->root);
    free(body->ids);
    *body = (struct agent_body){.root = NULL};
}

icms_err agent_body_volume(const json_t *root, struct err_why *why,
                           char out_volume[LIMIT_NAME_BYTES])
{
    const json_t *volume = json_object_get(root, "volume");

    if (!json_is_string(volume) || json_string_length(volume) >= LIMIT_NAME_BYTES)
        return err_set(why, ICMS_INVALID, "volume: the name of a volume");
    memcpy(out_volume, json_string_value(volume), json_string_length(volume) + 1);
    return ICMS_OK;
}

icms_err agent_body_number(const json_t *root, const char *name, uint32_t least, uint32_t most,
                           struct err_why *why, uint32_t *io_value)
{
    const json_t *value = json_object_get(root, name);

    if (value == NULL)
        return ICMS_OK;
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most)
        return err_set(why, ICMS_INVALID, "%s: a whole number from %u to %u", name, least, most);
    *io_value = (uint32_t)json_integer_value(value);
    return ICMS_OK;
}

size_t agent_body_hex(const json_t *value, uint8_t *bytes, size_t room)
{
    const char *text = json_string_value(value);
    size_t length = text == NULL ? 0 : strlen(text);

    if (length % 2 != 0 || length / 2 > room)
        return 0;
    return hex_read(text, length / 2, bytes) ? length / 2 : 0;
}

static void key_of(const struct icms_key *key, struct key *out_key)
{
    *out_key = (struct key){.length = key->length};
    memcpy(out_key->bytes, key->bytes, sizeof(out_key->bytes));
}

#define KEY_DIGITS "2 to 32 digits of hex, two a byte, or the 72 of a run and a digest"

/* As in NVMe commands, or run and digest as the Python package and `icms match --hex` have them. */
static bool key_read(const json_t *value, struct key *out_key)
{
    uint8_t bytes[ICMS_RUN_BYTES + ICMS_DIGEST_BYTES];
    struct icms_key key;

    if (json_string_length(value) != 2 * sizeof(bytes))
        return json_is_string(value) && key_parse(json_string_value(value), out_key);
    if (agent_body_hex(value, bytes, sizeof(bytes)) == 0)
        return false;
    icms_key_from_digest(bytes, bytes + ICMS_RUN_BYTES, &key);
    key_of(&key, out_key);
    return true;
}

static bool name_read(const json_t *value, struct key *out_key)
{
    struct icms_key key;

    if (!json_is_string(value) || json_string_length(value) == 0)
        return false;
    icms_key_from_name(json_string_value(value), json_string_length(value), &key);
    key_of(&key, out_key);
    return key.length != 0;
}

/* Appends the keys of an array. */
static icms_err keys_append(const json_t *root, const char *name, const char *what,
                            bool (*read)(const json_t *value, struct key *out_key),
                            struct err_why *why, struct key *keys, size_t *io_count)
{
    const json_t *array = json_object_get(root, name), *value;
    size_t i;

    if (array == NULL)
        return ICMS_OK;
    if (!json_is_array(array))
        return err_set(why, ICMS_INVALID, "%s: an array", name);
    json_array_foreach(array, i, value)
    {
        if (!read(value, &keys[*io_count]))
            return err_set(why, ICMS_INVALID, "%s: entry %zu is not %s", name, i, what);
        (*io_count)++;
    }
    return ICMS_OK;
}

icms_err agent_body_keys(struct agent_body *body, struct err_why *why, struct key **out_keys,
                         size_t *out_count)
{
    const json_t *root = body->root;
    size_t most = json_array_size(json_object_get(root, "keys")) +
                  json_array_size(json_object_get(root, "names")) + agent_chain_most(body);
    struct key *keys;
    size_t count = 0;
    icms_err err;

    if (most > AGENT_BODY_KEYS)
        return err_set(why, ICMS_LIMIT,
                       "%zu keys or hashes, where a body may have %d: larger blocks have fewer",
                       most, AGENT_BODY_KEYS);
    keys = calloc(most + 1, sizeof(*keys));
    if (keys == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %zu keys", most);
    err = keys_append(root, "keys", KEY_DIGITS, key_read, why, keys, &count);
    if (err == ICMS_OK)
        err =
            keys_append(root, "names", "a text of one byte or more", name_read, why, keys, &count);
    if (err == ICMS_OK &&
        (json_object_get(root, "chain") != NULL || json_object_get(root, "tokens") != NULL ||
         json_object_get(root, "hashes") != NULL))
        err = agent_chain_keys(body, why, keys, &count);
    else if (err == ICMS_OK && count == 0)
        err = err_set(why, ICMS_INVALID, "there are no keys and no names");
    if (err != ICMS_OK) {
        free(keys);
        return err;
    }
    *out_keys = keys;
    *out_count = count;
    return ICMS_OK;
}

/* Whoever reaches an open port: a user of this machine that no list of users has. */
static const struct agent_user body_anybody = {.uid = UINT32_MAX, .gid = UINT32_MAX};

const struct agent_user *agent_body_user(const struct agent_page *page)
{
    return page->is_open ? &body_anybody : NULL;
}

uint64_t agent_body_volumes(const struct agent_page *page)
{
    return page->is_open ? agent_access(page->agent, &body_anybody) : UINT64_MAX;
}

/* ---- answering ------------------------------------------------------------------------------ */

static unsigned status_of(icms_err err)
{
    switch (err) {
    case ICMS_NO_VOLUME:
        return STATUS_NOT_FOUND;
    case ICMS_LIMIT:
        return STATUS_TOO_LARGE;
    case ICMS_AUTH:
        return STATUS_FORBIDDEN;
    case ICMS_BUSY:
    case ICMS_CLOSED:
    case ICMS_DEADLINE:
        return STATUS_UNAVAILABLE;
    case ICMS_NO_MEMORY:
        return STATUS_INTERNAL;
    default:
        return STATUS_BAD_REQUEST;
    }
}

/* What is said. */
struct body_refusal {
    icms_err err;
    const struct err_why *why;
};

static void refusal_write(void *arg, struct json *json)
{
    const struct body_refusal *refusal = arg;

    json_put_object(json, NULL);
    json_put_string(json, "error", icms_err_name(refusal->err));
    json_put_string(json, "why", refusal->why->text);
    json_put_end(json);
}

unsigned agent_body_refuse(struct ctl_page *page, icms_err err, const struct err_why *why)
{
    struct body_refusal refusal = {.err = err, .why = why};

    ctl_json(page, refusal_write, &refusal);
    return status_of(err);
}
