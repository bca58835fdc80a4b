/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text of the shared nouns. Pure; any thread.
 */
#include "base/types.h"

#include <stdio.h>

#include "base/hash.h"

int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool hex_read(const char *text, size_t bytes, uint8_t *out_bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        int high = hex_digit(text[2 * i]), low = high < 0 ? -1 : hex_digit(text[2 * i + 1]);

        if (low < 0)
            return false;
        out_bytes[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

bool key_parse(const char *text, struct key *out_key)
{
    size_t digits = strlen(text);
    struct key key = {.length = (uint8_t)(digits / 2)};

    if (digits == 0 || digits % 2 != 0 || digits > (size_t)2 * LIMIT_KEY_BYTES)
        return false;
    for (size_t i = 0; i < digits; i++) {
        int digit = hex_digit(text[i]);

        if (digit < 0)
            return false;
        key.bytes[i / 2] = (uint8_t)(key.bytes[i / 2] << 4 | digit);
    }
    *out_key = key;
    return true;
}

uint32_t pod_name_hash(const char *name)
{
    uint32_t hash = (uint32_t)hash64(name, strlen(name));

    return hash != 0 ? hash : 1;
}

bool uuid_parse(const char *text, struct uuid *out_uuid)
{
    struct uuid uuid;
    size_t at = 0;

    for (size_t i = 0; i < sizeof(uuid.bytes); i++) {
        int high, low;

        if ((i == 4 || i == 6 || i == 8 || i == 10) && text[at++] != '-')
            return false;
        high = hex_digit(text[at]);
        if (high < 0)
            return false;
        low = hex_digit(text[at + 1]);
        if (low < 0)
            return false;
        uuid.bytes[i] = (uint8_t)(high << 4 | low);
        at += 2;
    }
    if (text[at] != '\0')
        return false;
    *out_uuid = uuid;
    return true;
}

char *uuid_format(const struct uuid *uuid, char text[UUID_TEXT_BYTES])
{
    const uint8_t *b = uuid->bytes;

    (void)snprintf(text, UUID_TEXT_BYTES,
                   "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0],
                   b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
                   b[14], b[15]);
    return text;
}

char *uuid_serial(const struct uuid *uuid, char serial[UUID_SERIAL_BYTES])
{
    const uint8_t *b = uuid->bytes;

    (void)snprintf(serial, UUID_SERIAL_BYTES, "%02X%02X%02X%02X%02X%02X%02X%02X", b[0], b[1], b[2],
                   b[3], b[4], b[5], b[6], b[7]);
    return serial;
}
