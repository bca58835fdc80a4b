/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_tokens.c: see agent_tokens.h.
 */
#include "agent_tokens.h"

#include <stdlib.h>
#include <string.h>

#define NAME "\"tokens\""

static size_t space_skip(const char *body, size_t bytes, size_t at)
{
    while (at < bytes && strchr(" \t\r\n", body[at]) != NULL && body[at] != '\0')
        at++;
    return at;
}

/* What is before a name of an object's member, and never before a quote inside a text. */
static bool is_member(const char *body, size_t at)
{
    while (at > 0 && body[at - 1] != '\0' && strchr(" \t\r\n", body[at - 1]) != NULL)
        at--;
    return at > 0 && (body[at - 1] == '{' || body[at - 1] == ',');
}

bool agent_tokens_find(const char *body, size_t bytes, size_t *out_begin, size_t *out_end)
{
    const char *name, *end;
    size_t at = 0, value;

    while ((name = memmem(body + at, bytes - at, NAME, strlen(NAME))) != NULL) {
        at = (size_t)(name - body) + strlen(NAME);
        value = space_skip(body, bytes, at);
        if (!is_member(body, (size_t)(name - body)) || value == bytes || body[value] != ':')
            continue;
        value = space_skip(body, bytes, value + 1);
        if (value == bytes || body[value] != '"')
            continue;
        end = memchr(body + value + 1, '"', bytes - value - 1);
        if (end == NULL)
            return false;
        *out_begin = value + 1;
        *out_end = (size_t)(end - body);
        return true;
    }
    return false;
}

/* 64: it is no digit. */
static uint8_t digit_of(char digit)
{
    if (digit >= 'A' && digit <= 'Z')
        return (uint8_t)(digit - 'A');
    if (digit >= 'a' && digit <= 'z')
        return (uint8_t)(digit - 'a' + 26);
    if (digit >= '0' && digit <= '9')
        return (uint8_t)(digit - '0' + 52);
    if (digit == '+')
        return 62;
    return digit == '/' ? 63 : 64;
}

/* Whole groups of 4 digits, the last one perhaps padded. False: they are not base64. */
static bool base64_read(const char *text, size_t length, uint8_t *bytes, size_t *out_count)
{
    static uint8_t digits[256]; /* the HTTP thread's; 0 throughout: not made */
    size_t padding =
        length >= 4 ? (size_t)(text[length - 1] == '=') + (text[length - 2] == '=') : 0;
    size_t count = 0;
    uint8_t wrong = 0;

    if (length % 4 != 0 || (padding == 2 && text[length - 1] != '='))
        return false;
    for (int i = 0; digits[0] == 0 && i < 256; i++)
        digits[255 - i] = digit_of((char)(255 - i));
    for (size_t i = 0; i < length; i += 4) {
        bool is_last = i + 4 == length;
        uint32_t group = 0;

        for (size_t j = 0; j < 4; j++) {
            uint8_t digit = is_last && j >= 4 - padding ? 0 : digits[(uint8_t)text[i + j]];

            wrong |= digit & 64;
            group = group << 6 | (digit & 63);
        }
        bytes[count++] = (uint8_t)(group >> 16);
        bytes[count++] = (uint8_t)(group >> 8);
        bytes[count++] = (uint8_t)group;
    }
    *out_count = count - padding;
    return wrong == 0;
}

icms_err agent_tokens_read(const char *text, size_t length, struct err_why *why, uint8_t **out_ids,
                           size_t *out_count)
{
    uint8_t *bytes = malloc(length / 4 * 3 + 4);
    size_t count = 0;

    if (bytes == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the token ids");
    if (!base64_read(text, length, bytes, &count) || count % 4 != 0) {
        free(bytes);
        return err_set(why, ICMS_INVALID,
                       memchr(text, '\\', length) != NULL
                           ? "tokens: base64 without escapes: there is a backslash"
                           : "tokens: an array of token ids, or base64 of them as int32, "
                             "little-endian");
    }
    *out_ids = bytes;
    *out_count = count / 4;
    return ICMS_OK;
}
