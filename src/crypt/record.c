/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record layer of TLS 1.3: AES-GCM over OpenSSL, straight from and to where data lies.
 *
 * Called by net_tls.c on a connection's loop. Invariants: the nonce is the IV with the sequence
 * number in its last 8 bytes, so no nonce comes twice under one key; a record that does not verify
 * moves nothing on, and its connection ends.
 */
#include "crypt/record.h"

#include <string.h>

#include <openssl/evp.h>

#include "base/bytes.h"
#include "base/check.h"
#include "crypt/secret.h"

#define RECORD_TAG_BYTES 16
#define RECORD_MIN_BYTES (1 + RECORD_TAG_BYTES) /* body: type and tag */

/* ---- keys ----------------------------------------------------------------------------------- */

static size_t record_key_bytes(enum crypt_hash hash)
{
    return hash == CRYPT_SHA384 ? 32 : 16;
}

size_t crypt_record_keys(const struct crypt_record *record, uint8_t key[CRYPT_RECORD_KEY_BYTES],
                         uint8_t iv[CRYPT_RECORD_IV_BYTES])
{
    size_t bytes = record_key_bytes(record->hash);

    if (crypt_hkdf_expand_label(record->hash, secret_bytes(record->secret), "key", NULL, 0, key,
                                bytes) != ICMS_OK ||
        crypt_hkdf_expand_label(record->hash, secret_bytes(record->secret), "iv", NULL, 0, iv,
                                CRYPT_RECORD_IV_BYTES) != ICMS_OK)
        return 0;
    return bytes;
}

/* Puts the keys of the secret into use. */
static icms_err record_key(struct crypt_record *record)
{
    uint8_t key[CRYPT_RECORD_KEY_BYTES];
    size_t bytes = crypt_record_keys(record, key, record->iv);
    /* -1: the direction stays */
    int ok = bytes > 0 && EVP_CipherInit_ex(record->cipher, NULL, NULL, key, NULL, -1) == 1;

    secret_wipe(key, sizeof(key));
    record->sequence = 0;
    return ok ? ICMS_OK : ICMS_NO_MEMORY;
}

icms_err crypt_record_init(struct crypt_record *record, bool sealing, enum crypt_hash hash,
                           const uint8_t *secret)
{
    const EVP_CIPHER *cipher = hash == CRYPT_SHA384 ? EVP_aes_256_gcm() : EVP_aes_128_gcm();

    check(record->cipher == NULL && record->secret == NULL);
    record->hash = hash;
    if (secret_new(CRYPT_HASH_BYTES_MAX, NULL, &record->secret) != ICMS_OK)
        return ICMS_NO_MEMORY;
    memcpy(secret_bytes(record->secret), secret, crypt_hash_bytes(hash));
    record->cipher = EVP_CIPHER_CTX_new();
    if (record->cipher == NULL ||
        EVP_CipherInit_ex(record->cipher, cipher, NULL, NULL, NULL, sealing) != 1 ||
        record_key(record) != ICMS_OK) {
        crypt_record_fini(record);
        return ICMS_NO_MEMORY;
    }
    return ICMS_OK;
}

void crypt_record_fini(struct crypt_record *record)
{
    EVP_CIPHER_CTX_free(record->cipher);
    secret_free(&record->secret);
    secret_wipe(record, sizeof(*record));
}

icms_err crypt_record_update(struct crypt_record *record)
{
    uint8_t next[CRYPT_HASH_BYTES_MAX];
    icms_err err =
        crypt_hkdf_expand_label(record->hash, secret_bytes(record->secret), "traffic upd", NULL, 0,
                                next, crypt_hash_bytes(record->hash));

    if (err != ICMS_OK)
        return err;
    memcpy(secret_bytes(record->secret), next, crypt_hash_bytes(record->hash));
    secret_wipe(next, sizeof(next));
    return record_key(record);
}

/* Begins the next record. */
static bool record_begin(struct crypt_record *record, const uint8_t *header)
{
    uint8_t nonce[CRYPT_RECORD_IV_BYTES];
    int n;

    memcpy(nonce, record->iv, sizeof(nonce));
    for (int i = 0; i < 8; i++)
        nonce[CRYPT_RECORD_IV_BYTES - 1 - i] ^= (uint8_t)(record->sequence >> 8 * i);
    check(record->sequence < UINT64_MAX);
    return EVP_CipherInit_ex(record->cipher, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(record->cipher, NULL, &n, header, CRYPT_RECORD_HEADER_BYTES) == 1;
}

static bool record_cipher(struct crypt_record *record, const void *in, size_t bytes, uint8_t *out)
{
    int n = 0;

    return bytes == 0 ||
           (EVP_CipherUpdate(record->cipher, out, &n, in, (int)bytes) == 1 && (size_t)n == bytes);
}

/* ---- sealing -------------------------------------------------------------------------------- */

size_t crypt_record_seal(struct crypt_record *record, enum crypt_record_type type,
                         const struct iovec *content, uint32_t count, uint8_t *out)
{
    uint8_t *at = out + CRYPT_RECORD_HEADER_BYTES;
    uint8_t inner = (uint8_t)type;
    size_t bytes = 0;
    bool ok;
    int n;

    for (uint32_t i = 0; i < count; i++)
        bytes += content[i].iov_len;
    check(bytes <= CRYPT_RECORD_DATA_MAX);
    out[0] = CRYPT_RECORD_DATA;
    out[1] = out[2] = 3;
    out[3] = (uint8_t)((bytes + RECORD_MIN_BYTES) >> 8);
    out[4] = (uint8_t)(bytes + RECORD_MIN_BYTES);
    ok = record_begin(record, out);
    for (uint32_t i = 0; ok && i < count; i++) {
        ok = record_cipher(record, content[i].iov_base, content[i].iov_len, at);
        at += content[i].iov_len;
    }
    ok = ok && record_cipher(record, &inner, 1, at) &&
         EVP_CipherFinal_ex(record->cipher, at + 1, &n) == 1 &&
         EVP_CIPHER_CTX_ctrl(record->cipher, EVP_CTRL_AEAD_GET_TAG, RECORD_TAG_BYTES, at + 1) == 1;
    record->sequence++;
    return ok ? bytes + CRYPT_RECORD_SEALED_EXTRA : 0;
}

/* ---- opening -------------------------------------------------------------------------------- */

static icms_err record_bad(enum crypt_alert alert, enum crypt_alert *out_alert)
{
    *out_alert = alert;
    return ICMS_PROTOCOL;
}

icms_err crypt_record_header(const uint8_t header[CRYPT_RECORD_HEADER_BYTES], uint32_t *out_bytes,
                             enum crypt_alert *out_alert)
{
    uint32_t bytes = (uint32_t)header[3] << 8 | header[4];

    if (header[0] != CRYPT_RECORD_DATA)
        return record_bad(CRYPT_ALERT_UNEXPECTED_MESSAGE, out_alert);
    if (bytes > CRYPT_RECORD_BODY_MAX)
        return record_bad(CRYPT_ALERT_RECORD_OVERFLOW, out_alert);
    if (bytes < RECORD_MIN_BYTES)
        return record_bad(CRYPT_ALERT_DECODE_ERROR, out_alert);
    *out_bytes = bytes;
    return ICMS_OK;
}

/* The type stands behind the content, in front of any number of zeros. */
static icms_err record_content(const uint8_t *out, uint32_t bytes, uint8_t last,
                               enum crypt_record_type *out_type, uint32_t *out_bytes,
                               enum crypt_alert *out_alert)
{
    while (last == 0 && bytes > 0)
        last = out[--bytes];
    if (last < CRYPT_RECORD_ALERT || last > CRYPT_RECORD_DATA)
        return record_bad(CRYPT_ALERT_UNEXPECTED_MESSAGE, out_alert);
    if (bytes > CRYPT_RECORD_DATA_MAX)
        return record_bad(CRYPT_ALERT_RECORD_OVERFLOW, out_alert);
    *out_type = (enum crypt_record_type)last;
    *out_bytes = bytes;
    return ICMS_OK;
}

icms_err crypt_record_open(struct crypt_record *record,
                           const uint8_t header[CRYPT_RECORD_HEADER_BYTES], const uint8_t *body,
                           uint32_t body_bytes, uint8_t *out, enum crypt_record_type *out_type,
                           uint32_t *out_bytes, enum crypt_alert *out_alert)
{
    uint32_t bytes = body_bytes - RECORD_MIN_BYTES;
    uint8_t tag[RECORD_TAG_BYTES], last;
    int n;

    check(body_bytes >= RECORD_MIN_BYTES && body_bytes <= CRYPT_RECORD_BODY_MAX);
    memcpy(tag, body + bytes + 1, sizeof(tag));
    if (!record_begin(record, header) || !record_cipher(record, body, bytes, out) ||
        !record_cipher(record, body + bytes, 1, &last) ||
        EVP_CIPHER_CTX_ctrl(record->cipher, EVP_CTRL_AEAD_SET_TAG, RECORD_TAG_BYTES, tag) != 1 ||
        EVP_CipherFinal_ex(record->cipher, tag, &n) != 1)
        return record_bad(CRYPT_ALERT_BAD_RECORD_MAC, out_alert);
    record->sequence++;
    return record_content(out, bytes, last, out_type, out_bytes, out_alert);
}
