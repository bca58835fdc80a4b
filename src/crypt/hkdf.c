/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HKDF over OpenSSL's HMAC. Each output fits one block of the hash, so Expand is one HMAC.
 */
#include "crypt/hkdf.h"

#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/check.h"
#include "crypt/secret.h"

#define HKDF_INFO_BYTES_MAX 600

static const EVP_MD *hash_md(enum crypt_hash hash)
{
    return hash == CRYPT_SHA384 ? EVP_sha384() : EVP_sha256();
}

icms_err crypt_sha256(const void *data, size_t bytes, uint8_t out[32])
{
    return EVP_Digest(data, bytes, out, NULL, EVP_sha256(), NULL) == 1 ? ICMS_OK : ICMS_NO_MEMORY;
}

icms_err crypt_hmac(enum crypt_hash hash, const void *key, size_t key_bytes, const void *data,
                    size_t data_bytes, uint8_t out[CRYPT_HASH_BYTES_MAX])
{
    unsigned int bytes = 0;

    if (HMAC(hash_md(hash), key, (int)key_bytes, data, data_bytes, out, &bytes) == NULL)
        return ICMS_NO_MEMORY;
    check(bytes == crypt_hash_bytes(hash));
    return ICMS_OK;
}

icms_err crypt_hkdf_extract(enum crypt_hash hash, const void *input, size_t input_bytes,
                            uint8_t out[CRYPT_HASH_BYTES_MAX])
{
    static const uint8_t salt[CRYPT_HASH_BYTES_MAX];

    return crypt_hmac(hash, salt, crypt_hash_bytes(hash), input, input_bytes, out);
}

icms_err crypt_hkdf_expand(enum crypt_hash hash, const uint8_t *secret, const void *info,
                           size_t info_bytes, uint8_t *out, size_t out_bytes)
{
    uint8_t block[CRYPT_HASH_BYTES_MAX];
    uint8_t data[HKDF_INFO_BYTES_MAX + 1];
    icms_err err;

    check(info_bytes <= HKDF_INFO_BYTES_MAX && out_bytes <= crypt_hash_bytes(hash));
    memcpy(data, info, info_bytes);
    data[info_bytes] = 1;
    err = crypt_hmac(hash, secret, crypt_hash_bytes(hash), data, info_bytes + 1, block);
    if (err == ICMS_OK)
        memcpy(out, block, out_bytes);
    secret_wipe(block, sizeof(block));
    return err;
}

icms_err crypt_hkdf_expand_label(enum crypt_hash hash, const uint8_t *secret, const char *label,
                                 const void *context, size_t context_bytes, uint8_t *out,
                                 size_t out_bytes)
{
    static const char prefix[] = "tls13 ";
    size_t prefix_bytes = sizeof(prefix) - 1, label_bytes = strlen(label);
    uint8_t info[HKDF_INFO_BYTES_MAX];
    size_t n = 0;

    check(prefix_bytes + label_bytes <= 255);
    if (context_bytes > 255)
        return ICMS_INVALID;
    info[n++] = (uint8_t)(out_bytes >> 8);
    info[n++] = (uint8_t)out_bytes;
    info[n++] = (uint8_t)(prefix_bytes + label_bytes);
    memcpy(info + n, prefix, prefix_bytes);
    n += prefix_bytes;
    memcpy(info + n, label, label_bytes);
    n += label_bytes;
    info[n++] = (uint8_t)context_bytes;
    if (context_bytes > 0)
        memcpy(info + n, context, context_bytes);
    n += context_bytes;
    return crypt_hkdf_expand(hash, secret, info, n, out, out_bytes);
}
