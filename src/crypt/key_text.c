/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/key_text.c: texts of NVMe keys, see key_text.h. Called by who reads secret files and by
 * `icms key gen`. Pure; any thread. Everything on the stack that held a key is wiped.
 */
#include "crypt/key_text.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "crypt/secret.h"

#define CRC_BYTES  4
#define CODE_BYTES (KEY_BYTES_MAX + CRC_BYTES)

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

size_t key_hash_bytes(enum key_hash hash)
{
    return hash == KEY_HASH_SHA512 ? 64 : hash == KEY_HASH_SHA384 ? 48 : 32;
}

uint64_t key_id(const struct key_plain *key)
{
    uint8_t text[2 + KEY_BYTES_MAX] = {(uint8_t)key->hash, (uint8_t)key->bytes};
    uint8_t digest[EVP_MAX_MD_SIZE];
    uint64_t id;

    memcpy(text + 2, key->key, key->bytes);
    check(EVP_Digest(text, 2 + key->bytes, digest, NULL, EVP_sha256(), NULL) == 1);
    secret_wipe(text, sizeof(text));
    memcpy(&id, digest, sizeof(id));
    return id + (id == 0);
}

/* CRC-32 as zlib has it. */
static uint32_t crc32_of(const uint8_t *data, size_t bytes)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xedb88320u & (0 - (crc & 1)));
    }
    return ~crc;
}

/* ---- base64 --------------------------------------------------------------------------------- */

static size_t base64_put(const uint8_t *from, size_t bytes, char *to)
{
    size_t at = 0;

    for (size_t i = 0; i < bytes; i += 3) {
        uint32_t group = (uint32_t)from[i] << 16;

        group |= i + 1 < bytes ? (uint32_t)from[i + 1] << 8 : 0;
        group |= i + 2 < bytes ? from[i + 2] : 0;
        to[at++] = digits[group >> 18];
        to[at++] = digits[group >> 12 & 63];
        to[at++] = i + 1 < bytes ? digits[group >> 6 & 63] : '=';
        to[at++] = i + 2 < bytes ? digits[group & 63] : '=';
    }
    return at;
}

static int base64_digit(char c)
{
    const char *at = c != 0 ? strchr(digits, c) : NULL;

    return at != NULL ? (int)(at - digits) : -1;
}

/* The number of bytes that a text stands for; 0: it is not base64, or not as short as possible, or
 * more than bytes_max. */
static size_t base64_get(const char *from, size_t length, uint8_t *to, size_t bytes_max)
{
    size_t padding = 0, bytes;

    if (length == 0 || length % 4 != 0)
        return 0;
    while (padding < 2 && from[length - 1 - padding] == '=')
        padding++;
    bytes = length / 4 * 3 - padding;
    if (bytes > bytes_max)
        return 0;
    for (size_t i = 0; i < length; i += 4) {
        size_t at = i / 4 * 3;
        uint32_t group = 0;

        for (size_t j = 0; j < 4; j++) {
            int digit = i + j < length - padding ? base64_digit(from[i + j]) : 0;

            if (digit < 0)
                return 0;
            group = group << 6 | (uint32_t)digit;
        }
        for (size_t j = 0; j < 3; j++, group <<= 8) {
            if (at + j < bytes)
                to[at + j] = (uint8_t)(group >> 16);
            else if ((uint8_t)(group >> 16) != 0)
                return 0; /* bits behind the last byte */
        }
    }
    return bytes;
}

/* ---- keys ----------------------------------------------------------------------------------- */

static bool key_length_fits(const char *form, enum key_hash hash, size_t bytes)
{
    bool is_tls = strcmp(form, KEY_TEXT_TLS) == 0;

    if (hash > KEY_HASH_SHA512 || (is_tls && hash == KEY_HASH_SHA512))
        return false;
    if (hash != KEY_HASH_NONE)
        return bytes == key_hash_bytes(hash);
    return bytes == 32 || bytes == 48 || (bytes == 64 && !is_tls);
}

size_t key_text_make(const char *form, const struct key_plain *key,
                     char out_text[KEY_TEXT_BYTES_MAX])
{
    uint8_t code[CODE_BYTES];
    le32 crc = le32_of(crc32_of(key->key, key->bytes));
    size_t at;

    check(key_length_fits(form, key->hash, key->bytes));
    memcpy(code, key->key, key->bytes);
    memcpy(code + key->bytes, &crc, sizeof(crc));
    at = (size_t)snprintf(out_text, KEY_TEXT_BYTES_MAX, "%s:%02x:", form, (unsigned)key->hash);
    at += base64_put(code, key->bytes + sizeof(crc), out_text + at);
    out_text[at++] = ':';
    out_text[at] = 0;
    check(at < KEY_TEXT_BYTES_MAX);
    secret_wipe(code, sizeof(code));
    return at;
}

/* What stands behind "FORM:HH:", without the last colon, in code. */
static icms_err code_check(const char *form, enum key_hash hash, const uint8_t *code, size_t bytes,
                           struct err_why *why)
{
    le32 crc;

    if (bytes <= CRC_BYTES)
        return err_set(why, ICMS_CONFIG,
                       "what follows '%s:%02x:' is not base64 of a key and its CRC", form,
                       (unsigned)hash);
    if (!key_length_fits(form, hash, bytes - CRC_BYTES))
        return err_set(
            why, ICMS_CONFIG,
            "a key of %zu bytes does not go with hash %02x: 01 has 32, 02 has 48, 03 has "
            "64 bytes, 00 any of them; %s",
            bytes - CRC_BYTES, (unsigned)hash, "make a new one with `icms key gen`");
    memcpy(&crc, code + bytes - CRC_BYTES, sizeof(crc));
    if (le32_get(crc) != crc32_of(code, bytes - CRC_BYTES))
        return err_set(why, ICMS_CONFIG,
                       "the CRC of the key is wrong: it was typed or copied wrongly");
    if (secret_is_zero(code, bytes - CRC_BYTES))
        return err_set(why, ICMS_CONFIG, SECRET_ZERO);
    return ICMS_OK;
}

icms_err key_text_parse(const char *form, const char *text, size_t bytes, struct err_why *why,
                        struct key_plain *out_key)
{
    size_t head = strlen(form), code_bytes;
    uint8_t code[CODE_BYTES];
    enum key_hash hash;
    icms_err err;

    if (bytes < head + 5 || memcmp(text, form, head) != 0 || text[head] != ':' ||
        text[head + 3] != ':')
        return err_set(why, ICMS_CONFIG, "not a key of the form '%s:HH:...:'", form);
    if (text[head + 1] != '0' || text[head + 2] < '0' || text[head + 2] > '3' ||
        (text[head + 2] == '3' && strcmp(form, KEY_TEXT_TLS) == 0))
        return err_set(why, ICMS_CONFIG, "the hash behind '%s:' is not one of 00 to %s", form,
                       strcmp(form, KEY_TEXT_TLS) == 0 ? "02" : "03");
    if (text[bytes - 1] != ':')
        return err_set(why, ICMS_CONFIG, "the key does not end with ':'; part of it is missing");
    hash = (enum key_hash)(text[head + 2] - '0');
    code_bytes = base64_get(text + head + 4, bytes - head - 5, code, sizeof(code));
    err = code_check(form, hash, code, code_bytes, why);
    if (err == ICMS_OK) {
        memset(out_key, 0, sizeof(*out_key)); /* also between its fields: keys are compared */
        out_key->hash = hash;
        out_key->bytes = code_bytes - CRC_BYTES;
        memcpy(out_key->key, code, out_key->bytes);
    }
    secret_wipe(code, sizeof(code));
    return err;
}
