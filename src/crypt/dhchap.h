/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/dhchap.h: what DH-HMAC-CHAP computes (NVMe base 8.13): the groups of RFC 7919, responses,
 * and secrets as they are used. Over OpenSSL; randomness is handed in. Any thread; a group of 8,192
 * bits takes tens of milliseconds, so call it from a loop_job.
 *
 *   K      the secret of the text; hash none: used as it is
 *   K'     HMAC_h(K, nqn || "NVMe-over-Fabrics"), h the hash of the text, nqn of whose secret it is
 *   C'     the challenge; with a group HMAC_H(H(g^xy mod p), challenge)
 *   host   HMAC_H(K', C' || seqnum || t_id || concat || "HostHost" || hostnqn || 0 || subnqn)
 *   target HMAC_H(K', C' || seqnum || t_id || concat || "Controller" || subnqn || 0 || hostnqn)
 */
#ifndef CRYPT_DHCHAP_H
#define CRYPT_DHCHAP_H

#include <stdbool.h>

#include "crypt/key_text.h"
#include "crypt/secret.h"

enum dhchap_group {
    DHCHAP_NONE = 0, /* no Diffie-Hellman */
    DHCHAP_2048 = 1,
    DHCHAP_3072 = 2,
    DHCHAP_4096 = 3,
    DHCHAP_6144 = 4,
    DHCHAP_8192 = 5,
};

#define DHCHAP_GROUPS 6 /* identifiers of groups are below this, */
#define DHCHAP_HASHES 4 /* of hashes from 1 and below this       */

#define DHCHAP_DIGEST_BYTES_MAX 64   /* of a hash, a challenge, a response       */
#define DHCHAP_VALUE_BYTES_MAX  1024 /* of a DH value                            */
#define DHCHAP_PRIVATE_BYTES    64   /* of a private exponent: random bytes      */

/* Bytes of a DH value; 0: none, or no such group. */
size_t dhchap_group_bytes(uint8_t group);

/* Bytes of a digest; 0: no such hash. */
size_t dhchap_hash_bytes(uint8_t hash);

/* "ffdhe2048", "null", "sha256": as in configurations; NULL: no such thing. */
const char *dhchap_group_name(uint8_t group);
const char *dhchap_hash_name(uint8_t hash);

/* Reads a file with a DHHC-1 text; its bytes are a struct key_plain. The sentence names the file.
 */
icms_err dhchap_secret_read(const char *path, struct err_why *why,
                            struct secret **out_secret) ICMS_MUST_CHECK;

static inline const struct key_plain *dhchap_key(struct secret *secret)
{
    return (const struct key_plain *)(const void *)secret_bytes(secret);
}

/* A copy of a secret that may be replaced meanwhile; the caller wipes it. */
static inline void dhchap_key_copy(struct secret *secret, struct key_plain *out_key)
{
    secret_copy(secret, out_key, sizeof(*out_key));
}

/* Whether two keys are the same, whatever their hash. */
bool dhchap_key_same(const struct key_plain *a, const struct key_plain *b);

/* The public value that goes with a private one, dhchap_group_bytes(group) of it. NO_MEMORY. */
icms_err dhchap_public(enum dhchap_group group, const uint8_t private[DHCHAP_PRIVATE_BYTES],
                       uint8_t *out_public) ICMS_MUST_CHECK;

/* The value both sides have, as many bytes. AUTH: the peer's value is not one: 0, 1, p-1 or not
 * below p. NO_MEMORY. */
icms_err dhchap_shared(enum dhchap_group group, const uint8_t private[DHCHAP_PRIVATE_BYTES],
                       const uint8_t *peer, uint8_t *out_shared) ICMS_MUST_CHECK;

/* What a response answers. */
struct dhchap_question {
    enum key_hash hash;       /* H: 1..3                                                         */
    bool is_target;           /* the target proves itself, else the host                         */
    uint16_t t_id;            /* transaction                                                     */
    uint8_t concat;           /* secure channel concatenation                                    */
    uint32_t seqnum;          /* of the challenge                                                */
    const uint8_t *challenge; /* dhchap_hash_bytes(hash)                                         */
    const uint8_t *shared;    /* of dhchap_shared; NULL: no group                                */
    size_t shared_bytes;
    const char *hostnqn, *subnqn;
};

/* What both sides of a conversation know of it, and the exponent of one. */
struct dhchap_talk {
    enum key_hash hash;
    enum dhchap_group group;
    uint16_t t_id;                               /* transaction, chosen by the host              */
    uint32_t seqnum;                             /* of the target's challenge                    */
    uint8_t challenge[DHCHAP_DIGEST_BYTES_MAX];  /* the target's                                 */
    uint32_t seqnum2;                            /* of the host's                                */
    uint8_t challenge2[DHCHAP_DIGEST_BYTES_MAX]; /* the host's                                   */
    uint8_t private[DHCHAP_PRIVATE_BYTES];       /* exponent, ours                               */
    uint8_t public[DHCHAP_VALUE_BYTES_MAX];      /* DH value, ours                               */
    uint8_t peer[DHCHAP_VALUE_BYTES_MAX];        /* DH value of the other side                   */
};

/* What the response of one side answers; shared: of dhchap_shared, with a group. Talk, shared and
 * names are kept by the caller. */
struct dhchap_question dhchap_talk_question(const struct dhchap_talk *talk, bool is_target,
                                            const uint8_t *shared, const char *hostnqn,
                                            const char *subnqn);

/* The response, dhchap_hash_bytes(hash) of it. NO_MEMORY. */
icms_err dhchap_response(const struct key_plain *key, const struct dhchap_question *question,
                         uint8_t *out_response) ICMS_MUST_CHECK;

/* Whether they are the same, in a time that does not depend on where they differ. */
bool dhchap_equal(const uint8_t *a, const uint8_t *b, size_t bytes);

#endif
