/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /v1/prestage of icms-agent: hints from routers and gateways.
 *
 * Called by ctl's HTTP thread. The body is of someone who has proven that he may use the port, and
 * is checked like a stranger's all the same. What it can make us take: jansson's tree of
 * LIMIT_HTTP_BODY_BYTES of text, one at a time.
 */
#include "agent_prestage.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "agent_page.h"
#include "icms/icms.h"

#define PRESTAGE_DEADLINE_MS     1000
#define PRESTAGE_DEADLINE_MS_MAX 600000

/* Whoever reaches an open port: a user of this machine that no list of users has. */
static const struct agent_user prestage_anybody = {.uid = UINT32_MAX, .gid = UINT32_MAX};

/* Statuses of HTTP. */
enum {
    STATUS_ACCEPTED = 202,
    STATUS_BAD_REQUEST = 400,
    STATUS_NOT_FOUND = 404,
    STATUS_INTERNAL = 500,
    STATUS_UNAVAILABLE = 503,
};

/* ---- reading -------------------------------------------------------------------------------- */

/* The members that there may be. */
static icms_err members_check(json_t *root, struct err_why *why)
{
    static const char *const members[] = {"volume",      "keys",     "names",
                                          "deadline_ms", "priority", "tier"};
    const char *name;
    json_t *value;

    json_object_foreach(root, name, value)
    {
        size_t i = 0;

        if (strcmp(name, "model") == 0 || strcmp(name, "tokens") == 0)
            return err_set(why, ICMS_UNSUPPORTED,
                           "%s: this agent does not know how an engine makes keys of tokens; send "
                           "keys, or names",
                           name);
        while (i < sizeof(members) / sizeof(*members) && strcmp(name, members[i]) != 0)
            i++;
        if (i == sizeof(members) / sizeof(*members))
            return err_set(why, ICMS_INVALID,
                           "unknown member \"%.40s\"; there are volume, keys, names, deadline_ms, "
                           "priority and tier",
                           name);
    }
    return ICMS_OK;
}

/* A whole number between two bounds, or what it is without one. */
static icms_err number_read(const json_t *root, const char *name, uint32_t least, uint32_t most,
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

static bool key_read(const json_t *value, struct key *out_key)
{
    const char *text = json_string_value(value);
    size_t digits = text == NULL ? 0 : strlen(text);

    *out_key = (struct key){.length = (uint8_t)(digits / 2)};
    if (digits == 0 || digits % 2 != 0 || digits > (size_t)2 * LIMIT_KEY_BYTES)
        return false;
    for (size_t i = 0; i < digits; i++) {
        int digit = hex_digit(text[i]);

        if (digit < 0)
            return false;
        out_key->bytes[i / 2] = (uint8_t)(out_key->bytes[i / 2] << 4 | digit);
    }
    return true;
}

static bool name_read(const json_t *value, struct key *out_key)
{
    struct icms_key key;

    if (!json_is_string(value) || json_string_length(value) == 0)
        return false;
    icms_key_from_name(json_string_value(value), json_string_length(value), &key);
    *out_key = (struct key){.length = key.length};
    memcpy(out_key->bytes, key.bytes, sizeof(out_key->bytes));
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

static icms_err keys_read(const json_t *root, struct err_why *why, struct agent_hints *out_hints)
{
    size_t room = json_array_size(json_object_get(root, "keys")) +
                  json_array_size(json_object_get(root, "names"));
    struct key *keys = calloc(room + 1, sizeof(*keys));
    icms_err err;

    if (keys == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %zu keys", room);
    err = keys_append(root, "keys", "2 to 32 digits of hex, two a byte", key_read, why, keys,
                      &out_hints->count);
    if (err == ICMS_OK)
        err = keys_append(root, "names", "a text of one byte or more", name_read, why, keys,
                          &out_hints->count);
    if (err == ICMS_OK && out_hints->count == 0)
        err = err_set(why, ICMS_INVALID, "there are no keys and no names");
    if (err == ICMS_OK)
        out_hints->keys = keys;
    else
        free(keys);
    return err;
}

static icms_err order_read(json_t *root, struct err_why *why, char out_volume[LIMIT_NAME_BYTES],
                           struct agent_hints *out_hints)
{
    const json_t *volume = json_object_get(root, "volume"), *tier = json_object_get(root, "tier");
    icms_err err = members_check(root, why);
    bool is_local = false;

    if (err != ICMS_OK)
        return err;
    if (!json_is_string(volume) || json_string_length(volume) >= LIMIT_NAME_BYTES)
        return err_set(why, ICMS_INVALID, "volume: the name of a volume");
    if (tier != NULL) {
        is_local = json_is_string(tier) && strcmp(json_string_value(tier), "local") == 0;
        if (!is_local && (!json_is_string(tier) || strcmp(json_string_value(tier), "dram") != 0))
            return err_set(why, ICMS_INVALID, "tier: \"dram\" or \"local\"");
    }
    memcpy(out_volume, json_string_value(volume), json_string_length(volume) + 1);
    *out_hints = (struct agent_hints){.volume = out_volume,
                                      .deadline_ms = PRESTAGE_DEADLINE_MS,
                                      .tier = is_local ? ICMS_TIER_LOCAL : ICMS_TIER_DRAM};
    err =
        number_read(root, "deadline_ms", 1, PRESTAGE_DEADLINE_MS_MAX, why, &out_hints->deadline_ms);
    if (err == ICMS_OK)
        err = number_read(root, "priority", 0, ICMS_PRIORITY_MAX, why, &out_hints->priority);
    return err == ICMS_OK ? keys_read(root, why, out_hints) : err;
}

icms_err agent_prestage_read(const char *body, size_t bytes, struct err_why *why,
                             char out_volume[LIMIT_NAME_BYTES], struct agent_hints *out_hints)
{
    json_error_t error;
    json_t *root = json_loadb(body, bytes, JSON_REJECT_DUPLICATES, &error);
    icms_err err;

    if (root == NULL)
        return err_set(why, ICMS_INVALID, "this is not JSON: line %d: %s", error.line, error.text);
    err = json_is_object(root) ? order_read(root, why, out_volume, out_hints)
                               : err_set(why, ICMS_INVALID, "the body has to be a JSON object");
    json_decref(root);
    return err;
}

/* ---- answering ------------------------------------------------------------------------------ */

static unsigned status_of(icms_err err)
{
    switch (err) {
    case ICMS_OK:
        return STATUS_ACCEPTED;
    case ICMS_NO_VOLUME:
        return STATUS_NOT_FOUND;
    case ICMS_BUSY:
    case ICMS_CLOSED:
        return STATUS_UNAVAILABLE;
    case ICMS_NO_MEMORY:
        return STATUS_INTERNAL;
    default:
        return STATUS_BAD_REQUEST;
    }
}

/* What is said. */
struct prestage_answer {
    icms_err err;
    size_t count;
    struct err_why why;
};

static void answer_write(void *arg, struct json *json)
{
    const struct prestage_answer *answer = arg;

    json_put_object(json, NULL);
    if (answer->err == ICMS_OK) {
        json_put_uint(json, "hints", answer->count);
    } else {
        json_put_string(json, "error", icms_err_name(answer->err));
        json_put_string(json, "why", answer->why.text);
    }
    json_put_end(json);
}

unsigned agent_prestage_post(void *arg, const char *body, size_t bytes, struct ctl_page *page)
{
    const struct agent_page *own = arg;
    struct prestage_answer answer = {.why = {""}};
    struct agent_hints hints = {0};
    char volume[LIMIT_NAME_BYTES];

    answer.err = agent_prestage_read(body, bytes, &answer.why, volume, &hints);
    if (answer.err == ICMS_OK) {
        answer.count = hints.count;
        hints.user = own->is_open ? &prestage_anybody : NULL;
        answer.err = agent_prestage(own->agent, &hints, &answer.why);
        free((void *)(uintptr_t)hints.keys);
    }
    ctl_json(page, answer_write, &answer);
    return status_of(answer.err);
}
