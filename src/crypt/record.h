/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/record.h: the record layer of TLS 1.3 (RFC 8446, 5 and 7.3) after its handshake, for the
 * two suites of NVMe/TCP: AES-128-GCM with SHA-256 and AES-256-GCM with SHA-384.
 *
 *   record   type 23, 3, 3, length of 2 bytes; then the ciphertext of content, type and zeros; tag
 *
 * Pure but for OpenSSL: bytes in, bytes out. A struct belongs to one thread at a time.
 */
#ifndef CRYPT_RECORD_H
#define CRYPT_RECORD_H

#include <stdbool.h>
#include <sys/uio.h>

#include "crypt/hkdf.h"

#define CRYPT_RECORD_HEADER_BYTES 5
#define CRYPT_RECORD_DATA_MAX     16384                            /* content of one record      */
#define CRYPT_RECORD_BODY_MAX     (CRYPT_RECORD_DATA_MAX + 256)    /* what follows the header    */
#define CRYPT_RECORD_SEALED_EXTRA (CRYPT_RECORD_HEADER_BYTES + 17) /* that we add to content */
#define CRYPT_RECORD_KEY_BYTES    32
#define CRYPT_RECORD_IV_BYTES     12

/* Records that a key makes at most: then its sender changes it. A peer may go on to what RFC 8446,
 * 5.5 allows, which is 2^24.5. */
#define CRYPT_RECORD_KEY_RECORDS  ((uint64_t)1 << 24)
#define CRYPT_RECORD_PEER_RECORDS ((uint64_t)23726566)

/* Content types. */
enum crypt_record_type {
    CRYPT_RECORD_CHANGE_CIPHER = 20,
    CRYPT_RECORD_ALERT = 21,
    CRYPT_RECORD_HANDSHAKE = 22,
    CRYPT_RECORD_DATA = 23,
};

/* Alerts that we send or tell apart. */
enum crypt_alert {
    CRYPT_ALERT_CLOSE_NOTIFY = 0,
    CRYPT_ALERT_UNEXPECTED_MESSAGE = 10,
    CRYPT_ALERT_BAD_RECORD_MAC = 20,
    CRYPT_ALERT_RECORD_OVERFLOW = 22,
    CRYPT_ALERT_DECODE_ERROR = 50,
    CRYPT_ALERT_INTERNAL_ERROR = 80,
    CRYPT_ALERT_USER_CANCELED = 90,
};

struct secret;

/* One direction of one connection. OpenSSL's cipher has its key in memory that a core dump has. */
struct crypt_record {
    enum crypt_hash hash;              /* of the suite                                        */
    struct secret *secret;             /* traffic secret now; owned                          */
    uint8_t iv[CRYPT_RECORD_IV_BYTES]; /* nonce of record 0                                   */
    uint64_t sequence;                 /* of the next record                                  */
    void *cipher;                      /* OpenSSL's, with the key; NULL: not in use           */
};

/* Takes a traffic secret of crypt_hash_bytes(hash). NO_MEMORY. The struct is zeroed or freed. */
icms_err crypt_record_init(struct crypt_record *record, bool sealing, enum crypt_hash hash,
                           const uint8_t *secret) ICMS_MUST_CHECK;

/* Wipes and frees. Harmless when zeroed. */
void crypt_record_fini(struct crypt_record *record);

/* The next traffic secret and its keys (7.2); sequence 0. NO_MEMORY. */
icms_err crypt_record_update(struct crypt_record *record) ICMS_MUST_CHECK;

/* What a kernel needs: 16 or 32 bytes of key (returned), and the IV. 0: NO_MEMORY. The caller wipes
 * them. */
size_t crypt_record_keys(const struct crypt_record *record, uint8_t key[CRYPT_RECORD_KEY_BYTES],
                         uint8_t iv[CRYPT_RECORD_IV_BYTES]);

/* One record of the given content, 0..CRYPT_RECORD_DATA_MAX bytes. Returns its bytes in out: those
 * of content and CRYPT_RECORD_SEALED_EXTRA. 0: OpenSSL failed. */
size_t crypt_record_seal(struct crypt_record *record, enum crypt_record_type type,
                         const struct iovec *content, uint32_t count, uint8_t *out);

/* Checks a header. ICMS_OK and the bytes that follow it; else PROTOCOL and the alert. */
icms_err crypt_record_header(const uint8_t header[CRYPT_RECORD_HEADER_BYTES], uint32_t *out_bytes,
                             enum crypt_alert *out_alert) ICMS_MUST_CHECK;

/* Decrypts and verifies the body of a record to out: body itself, or memory for body_bytes - 17
 * bytes. out then holds bytes that nobody vouches for until this returns ICMS_OK, with type and
 * bytes of the content. Else PROTOCOL and the alert. */
icms_err crypt_record_open(struct crypt_record *record,
                           const uint8_t header[CRYPT_RECORD_HEADER_BYTES], const uint8_t *body,
                           uint32_t body_bytes, uint8_t *out, enum crypt_record_type *out_type,
                           uint32_t *out_bytes, enum crypt_alert *out_alert) ICMS_MUST_CHECK;

#endif
