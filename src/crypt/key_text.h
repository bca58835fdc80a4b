/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/key_text.h: the two forms of text in which NVMe keys are handed to people:
 *
 *   DHHC-1:HH:base64(key || crc):        a DH-HMAC-CHAP secret (NVMe base 8.13)
 *   NVMeTLSkey-1:HH:base64(key || crc):  a TLS pre-shared key, interchange format (NVMe/TCP 3.6)
 *
 * HH is a hash in two digits: 00 none, 01 SHA-256, 02 SHA-384, 03 SHA-512 (not for TLS). The crc is
 * CRC-32 (ISO-HDLC) of the key, little-endian. Pure; any thread.
 */
#ifndef CRYPT_KEY_TEXT_H
#define CRYPT_KEY_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define KEY_TEXT_DHCHAP "DHHC-1"
#define KEY_TEXT_TLS    "NVMeTLSkey-1"

/* Bytes of a key: 32, 48 or 64; a TLS key has no 64. */
#define KEY_BYTES_MAX 64

/* Room for the text of any key with its final zero byte. */
#define KEY_TEXT_BYTES_MAX 128

enum key_hash {
    KEY_HASH_NONE = 0,
    KEY_HASH_SHA256 = 1,
    KEY_HASH_SHA384 = 2,
    KEY_HASH_SHA512 = 3,
};

/* A key as its text tells it. Wiped by its owner. */
struct key_plain {
    enum key_hash hash;         /* how it is transformed               */
    size_t bytes;               /* 32, 48 or 64                        */
    uint8_t key[KEY_BYTES_MAX]; /* the rest is 0                       */
};

/* The bytes that a key of this hash has: 32, 48 or 64; of none 32. */
size_t key_hash_bytes(enum key_hash hash);

/* Tells keys apart without being one: 64 bits of a hash of all of it; never 0. For keys that were
 * made at random: of one that could be guessed it would tell whether a guess is right. */
uint64_t key_id(const struct key_plain *key);

/* Writes the text of a key; returns its length. form: KEY_TEXT_DHCHAP or KEY_TEXT_TLS. */
size_t key_text_make(const char *form, const struct key_plain *key,
                     char out_text[KEY_TEXT_BYTES_MAX]);

/* Reads a text of that form, strictly: nothing before it or behind it. CONFIG with a sentence that
 * says what is wrong and holds nothing of the text; *out_key is untouched then. A key whose length
 * is not that of its hash is refused, as by the standard. */
icms_err key_text_parse(const char *form, const char *text, size_t bytes, struct err_why *why,
                        struct key_plain *out_key) ICMS_MUST_CHECK;

#endif
