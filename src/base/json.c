/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/json.c: JSON into bounded memory. Called on any thread, by whoever owns the struct.
 *
 * Invariant: out holds the first bytes of the text, `bytes` - 1 at most, and a zero behind them.
 */
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

static void json_add(struct json *json, const char *text, size_t length)
{
    if (json->length + 1 < json->bytes) {
        size_t space = json->bytes - 1 - json->length;
        size_t fits = length < space ? length : space;

        memcpy(json->out + json->length, text, fits);
        json->out[json->length + fits] = '\0';
    }
    json->length += length;
}

/* Bytes of the UTF-8 character that begins here; 0: none does (RFC 3629, table of section 4). */
static unsigned utf8_bytes(const unsigned char *c)
{
    unsigned char second_min = 0x80, second_max = 0xbf;
    unsigned count = c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;

    if (c[0] < 0x80)
        return 1;
    if (c[0] < 0xc2 || c[0] > 0xf4)
        return 0;
    if (c[0] == 0xe0) /* longer than needed */
        second_min = 0xa0;
    if (c[0] == 0xed) /* half of a surrogate pair */
        second_max = 0x9f;
    if (c[0] == 0xf0)
        second_min = 0x90;
    if (c[0] == 0xf4) /* above U+10FFFF */
        second_max = 0x8f;
    if (c[1] < second_min || c[1] > second_max)
        return 0;
    for (unsigned i = 2; i < count; i++)
        if (c[i] < 0x80 || c[i] > 0xbf) /* also the zero at the end */
            return 0;
    return count;
}

static void json_text(struct json *json, const char *text)
{
    const unsigned char *c = (const unsigned char *)text;
    unsigned count;
    char escape[8];

    json_add(json, "\"", 1);
    for (; *c != 0; c += count > 0 ? count : 1) {
        count = utf8_bytes(c);
        if (count == 0)
            json_add(json, "\\ufffd", 6);
        else if (*c == '"' || *c == '\\')
            json_add(json, escape, (size_t)snprintf(escape, sizeof(escape), "\\%c", *c));
        else if (*c < 0x20)
            json_add(json, escape, (size_t)snprintf(escape, sizeof(escape), "\\u%04x", *c));
        else
            json_add(json, (const char *)c, count);
    }
    json_add(json, "\"", 1);
}

/* What stands in front of a value. */
static void json_begin(struct json *json, const char *name)
{
    bool in_object = json->depth > 0 && (json->objects >> (json->depth - 1) & 1) != 0;

    check(in_object == (name != NULL));
    if (json->comma)
        json_add(json, ",", 1);
    json->comma = true;
    if (name != NULL) {
        json_text(json, name);
        json_add(json, ":", 1);
    }
}

static void json_open(struct json *json, const char *name, bool is_object)
{
    json_begin(json, name);
    check(json->depth < JSON_DEPTH_MAX);
    json_add(json, is_object ? "{" : "[", 1);
    json->objects &= ~((uint32_t)1 << json->depth);
    json->objects |= (uint32_t)is_object << json->depth;
    json->depth++;
    json->comma = false;
}

void json_init(struct json *json, char *out, size_t bytes)
{
    *json = (struct json){.out = out, .bytes = bytes};
    if (bytes > 0)
        out[0] = '\0';
}

size_t json_finish(struct json *json)
{
    check(json->depth == 0);
    return json->length;
}

void json_put_object(struct json *json, const char *name)
{
    json_open(json, name, true);
}

void json_put_array(struct json *json, const char *name)
{
    json_open(json, name, false);
}

void json_put_end(struct json *json)
{
    check(json->depth > 0);
    json->depth--;
    json_add(json, (json->objects >> json->depth & 1) != 0 ? "}" : "]", 1);
    json->comma = true;
}

void json_put_string(struct json *json, const char *name, const char *text)
{
    json_begin(json, name);
    json_text(json, text);
}

void json_put_uint(struct json *json, const char *name, uint64_t value)
{
    char text[24];

    json_begin(json, name);
    json_add(json, text, (size_t)snprintf(text, sizeof(text), "%" PRIu64, value));
}

void json_put_bool(struct json *json, const char *name, bool value)
{
    json_begin(json, name);
    json_add(json, value ? "true" : "false", value ? 4 : 5);
}

void json_put_real(struct json *json, const char *name, double value)
{
    uint64_t thousandths;
    char text[32];

    json_begin(json, name);
    if (!(value >= 0 && value < 1e15)) {
        json_add(json, "null", 4);
        return;
    }
    thousandths = (uint64_t)(value * 1000 + 0.5);
    json_add(json, text,
             (size_t)snprintf(text, sizeof(text), "%" PRIu64 ".%03" PRIu64, thousandths / 1000,
                              thousandths % 1000));
}
