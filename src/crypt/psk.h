/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/psk.h: pre-shared keys of NVMe/TCP with TLS 1.3 (NVMe TCP Transport Specification 1.1,
 * 3.6.1).
 *
 *   configured PSK     in a file, as text (crypt/key_text.h)
 *   retained PSK       of one host: from the configured PSK and the NQN of the host; of hash 00:
 * the same TLS PSK, identity  of one host and one subsystem: what the handshake uses
 *
 * Versions of libnvme before 1.16 (nvme-cli before 2.16) derive both differently from the
 * specification; CRYPT_PSK_LIBNVME derives as they do.
 *
 * Pure; any thread.
 */
#ifndef CRYPT_PSK_H
#define CRYPT_PSK_H

#include "base/limits.h"
#include "crypt/hkdf.h"
#include "crypt/key_text.h"

/* "NVMe1R02 ", two NQNs, base64 of a digest of 48 bytes, spaces and the zero byte. */
#define CRYPT_PSK_IDENTITY_BYTES (9 + 2 * LIMIT_NQN_BYTES + 64 + 1)

/* What a handshake uses. */
struct crypt_tls_psk {
    enum crypt_hash hash; /* SHA-256: TLS_AES_128_GCM_SHA256; SHA-384: TLS_AES_256_GCM_SHA384 */
    uint8_t bytes;        /* of key: crypt_hash_bytes(hash)                                   */
    uint8_t key[CRYPT_HASH_BYTES_MAX];
    char identity[CRYPT_PSK_IDENTITY_BYTES]; /* "NVMe1R01 HOSTNQN SUBNQN DIGEST"              */
};

/* How identity and TLS PSK are made. */
enum crypt_psk_kind {
    CRYPT_PSK_V1,      /* NVMe1R..: the identity ends in a digest of the PSK             */
    CRYPT_PSK_V0,      /* NVMe0R..: it does not: two PSKs of a host have the same        */
    CRYPT_PSK_LIBNVME, /* NVMe1R.. as libnvme before 1.16                                */
};

/* The TLS PSK and identity of a host and a subsystem. psk has 32 or 48 bytes. INVALID: V0 and the
 * NQNs together are longer than the derivation can take (246 bytes); NO_MEMORY. */
icms_err crypt_psk_derive(const struct key_plain *psk, enum crypt_psk_kind kind,
                          const char *hostnqn, const char *subnqn,
                          struct crypt_tls_psk *out_psk) ICMS_MUST_CHECK;

/* Overwrites it. */
void crypt_tls_psk_wipe(struct crypt_tls_psk *psk);

#endif
