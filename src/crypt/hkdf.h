/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/hkdf.h: HKDF-Extract (RFC 5869) and HKDF-Expand-Label (RFC 8446, 7.1) with SHA-256 and
 * SHA-384, as TLS 1.3 and NVMe/TCP use them; and SHA-256 alone.
 *
 * Pure; any thread. Callers clean the secrets that they get.
 */
#ifndef CRYPT_HKDF_H
#define CRYPT_HKDF_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Numbers of NVMe ("hash identifier"). */
enum crypt_hash {
    CRYPT_SHA256 = 1,
    CRYPT_SHA384 = 2,
};

#define CRYPT_HASH_BYTES_MAX 48

/* Bytes of its digest. */
static inline size_t crypt_hash_bytes(enum crypt_hash hash)
{
    return hash == CRYPT_SHA384 ? 48 : 32;
}

/* SHA-256 of data. NO_MEMORY. */
icms_err crypt_sha256(const void *data, size_t bytes, uint8_t out[32]) ICMS_MUST_CHECK;

/* HMAC of data under key; crypt_hash_bytes() into out. NO_MEMORY. */
icms_err crypt_hmac(enum crypt_hash hash, const void *key, size_t key_bytes, const void *data,
                    size_t data_bytes, uint8_t out[CRYPT_HASH_BYTES_MAX]) ICMS_MUST_CHECK;

/* HKDF-Extract(0, input). NO_MEMORY. */
icms_err crypt_hkdf_extract(enum crypt_hash hash, const void *input, size_t input_bytes,
                            uint8_t out[CRYPT_HASH_BYTES_MAX]) ICMS_MUST_CHECK;

/* HKDF-Expand-Label(secret, label, context, out_bytes). secret has crypt_hash_bytes(); label is
 * without "tls13 "; context_bytes <= 255, else INVALID; out_bytes <= crypt_hash_bytes(). */
icms_err crypt_hkdf_expand_label(enum crypt_hash hash, const uint8_t *secret, const char *label,
                                 const void *context, size_t context_bytes, uint8_t *out,
                                 size_t out_bytes) ICMS_MUST_CHECK;

/* HKDF-Expand(secret, info, out_bytes); out_bytes <= crypt_hash_bytes(), info_bytes <= 600. */
icms_err crypt_hkdf_expand(enum crypt_hash hash, const uint8_t *secret, const void *info,
                           size_t info_bytes, uint8_t *out, size_t out_bytes) ICMS_MUST_CHECK;

#endif
