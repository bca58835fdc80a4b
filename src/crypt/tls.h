/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/tls.h: the handshake of TLS 1.3 as NVMe/TCP uses it: pre-shared keys with a Diffie-Hellman
 * exchange, two suites, and nothing else: no certificates, no tickets, no early data, no older
 * version. Made by OpenSSL over memory; what follows the handshake is crypt/record.h.
 *
 * Settings are shared by threads; handshakes that begin use what they are then. A handshake belongs
 * to one thread at a time, which may differ from step to step: a step computes for up to a
 * millisecond and belongs off the loop (loop_job).
 */
#ifndef CRYPT_TLS_H
#define CRYPT_TLS_H

#include <stdbool.h>

#include "crypt/psk.h"
#include "crypt/record.h"

/* One record of a handshake is at most so large, and so many of them come. What honest peers send
 * is below 2 KiB and 4 records. */
#define CRYPT_TLS_RECORD_MAX  8192
#define CRYPT_TLS_RECORDS_MAX 16

/* Room for what a step sends. */
#define CRYPT_TLS_OUT_MAX 4096

struct crypt_tls;           /* settings of one side         */
struct crypt_tls_handshake; /* of one connection            */

/* A host that a server knows. */
struct crypt_tls_host {
    char nqn[LIMIT_NQN_BYTES];
    const struct key_plain *psks; /* several, so that they can be rotated */
    uint32_t psk_count;
};

struct crypt_tls_server_opts {
    const struct crypt_tls_host *hosts; /* ordered by NQN (strcmp); copied, with their PSKs      */
    uint32_t host_count;
    const char *subnqns[2]; /* subsystems that identities may name; kept by the caller; or NULL  */
};

/* Settings of a server. NO_MEMORY, UNSUPPORTED with a sentence. */
icms_err crypt_tls_server_new(const struct crypt_tls_server_opts *opts, struct err_why *why,
                              struct crypt_tls **out_tls) ICMS_MUST_CHECK;

/* Settings of a client: one PSK, copied. */
icms_err crypt_tls_client_new(const struct crypt_tls_psk *psk, struct err_why *why,
                              struct crypt_tls **out_tls) ICMS_MUST_CHECK;

/* Handshakes that begin from now on use other settings of the same side: those of *from, which is
 * freed; handshakes under way end with what they began with. False: the keys were the same. Any
 * thread, one at a time. */
bool crypt_tls_replace(struct crypt_tls *tls, struct crypt_tls **from);

/* Handshakes that began keep what they use. *tls may be NULL. */
void crypt_tls_free(struct crypt_tls **tls);

/* What a handshake led to. The owner wipes it (crypt_tls_result_wipe). */
struct crypt_tls_result {
    enum crypt_hash hash;                  /* of the suite                          */
    uint8_t send[CRYPT_HASH_BYTES_MAX];    /* traffic secrets                       */
    uint8_t receive[CRYPT_HASH_BYTES_MAX]; /* traffic secrets                       */
    char hostnqn[LIMIT_NQN_BYTES];         /* server: of the identity, proven       */
    char subnqn[LIMIT_NQN_BYTES];          /* server: of the identity               */
    uint64_t key_id;                       /* server: key_id() of the PSK           */
};

/* A handshake. Takes no memory to speak of before its first step. NO_MEMORY. */
icms_err crypt_tls_handshake_new(struct crypt_tls *tls,
                                 struct crypt_tls_handshake **out_handshake) ICMS_MUST_CHECK;

/* Goes on: with nothing (the client begins) or with one whole record of the peer. Writes what is to
 * be sent, also after a failure (an alert). ICMS_OK: *out_done says whether it is over; if not, the
 * next record of the peer is awaited. AUTH, PROTOCOL: it failed, crypt_tls_why says how. */
icms_err crypt_tls_step(struct crypt_tls_handshake *handshake, const uint8_t *record,
                        size_t record_bytes, uint8_t out[CRYPT_TLS_OUT_MAX], size_t *out_bytes,
                        bool *out_done) ICMS_MUST_CHECK;

/* Words for a log, without secrets; never NULL. */
const char *crypt_tls_why(const struct crypt_tls_handshake *handshake);

/* After it was done. */
void crypt_tls_result(const struct crypt_tls_handshake *handshake,
                      struct crypt_tls_result *out_result);
void crypt_tls_result_wipe(struct crypt_tls_result *result);

/* Wipes and frees. *handshake may be NULL. */
void crypt_tls_handshake_free(struct crypt_tls_handshake **handshake);

#endif
