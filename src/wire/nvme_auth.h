/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/nvme_auth.h: in-band authentication of NVMe over Fabrics: the commands AUTH Send and AUTH
 * Receive, and the messages of DH-HMAC-CHAP that they carry (NVMe base 8.13).
 *
 *   host                                   target
 *   AUTH Send     NEGOTIATE  ---------->            hashes and groups that the host has
 *   AUTH Receive             <----------  CHALLENGE one of each, a challenge, a DH value
 *   AUTH Send     REPLY      ---------->            the response, perhaps a challenge, a DH value
 *   AUTH Receive             <----------  SUCCESS1  perhaps the target's response; or FAILURE1
 *   AUTH Send     SUCCESS2   ---------->            only when the target was challenged; or
 * FAILURE2
 *
 * Pure: bytes to structs and back. Any thread. Decoders take hostile bytes.
 */
#ifndef WIRE_NVME_AUTH_H
#define WIRE_NVME_AUTH_H

#include "wire/nvme.h"

/* The largest message: REPLY with SHA-512 and a group of 8,192 bits. */
#define NVME_AUTH_BYTES_MAX (16 + 64 + 64 + 1024)

/* Identifiers in a list of NEGOTIATE. */
#define NVME_AUTH_IDS_MAX 30

enum nvme_auth_id {
    NVME_AUTH_NEGOTIATE = 0x00,
    NVME_AUTH_CHALLENGE = 0x01,
    NVME_AUTH_REPLY = 0x02,
    NVME_AUTH_SUCCESS1 = 0x03,
    NVME_AUTH_SUCCESS2 = 0x04,
    NVME_AUTH_FAILURE2 = 0xf0, /* of the host   */
    NVME_AUTH_FAILURE1 = 0xf1, /* of the target */
};

/* Why an authentication failed: the explanation of FAILURE1 and FAILURE2. */
enum nvme_auth_why {
    NVME_AUTH_WHY_FAILED = 0x01,   /* wrong response, or nothing to compare it with */
    NVME_AUTH_WHY_PROTOCOL = 0x02, /* no protocol in common                         */
    NVME_AUTH_WHY_CONCAT = 0x03,   /* secure channel concatenation does not fit     */
    NVME_AUTH_WHY_HASH = 0x04,     /* no hash in common                             */
    NVME_AUTH_WHY_GROUP = 0x05,    /* no group in common                            */
    NVME_AUTH_WHY_PAYLOAD = 0x06,  /* a message that makes no sense                 */
    NVME_AUTH_WHY_MESSAGE = 0x07,  /* a message that is not expected now            */
};

/* A message. Values lie where it was decoded from, or wherever the encoder's caller has them. */
struct nvme_auth_msg {
    enum nvme_auth_id id;
    uint16_t t_id;                     /* transaction                                           */
    uint8_t concat;                    /* NEGOTIATE: secure channel concatenation; 0: none      */
    uint8_t hash_count, group_count;   /* NEGOTIATE                                             */
    uint8_t hashes[NVME_AUTH_IDS_MAX]; /* NEGOTIATE: 1 SHA-256, 2 SHA-384, 3 SHA-512            */
    uint8_t groups[NVME_AUTH_IDS_MAX]; /* NEGOTIATE: 0 none, 1 ffdhe2048 .. 5 ffdhe8192         */
    uint8_t hash, group;               /* CHALLENGE                                             */
    uint8_t value_bytes;      /* CHALLENGE, REPLY, SUCCESS1, also without a response: of value and
                                 challenge    */
    const uint8_t *value;     /* CHALLENGE: the challenge; REPLY, SUCCESS1: a response;
                                 SUCCESS1 without: NULL                                */
    const uint8_t *challenge; /* REPLY: the host's; NULL: the target need not prove
                                 itself                                                */
    uint32_t seqnum;          /* CHALLENGE, REPLY                                      */
    uint16_t dh_bytes;        /* CHALLENGE, REPLY: of dh; 0: none                      */
    const uint8_t *dh;        /* CHALLENGE, REPLY: DH value, big-endian                */
    uint8_t reason;           /* FAILURE1, FAILURE2: 1                                 */
    uint8_t why;              /* FAILURE1, FAILURE2: enum nvme_auth_why                */
};

/* Writes a message that is as its comments say; returns its length. */
size_t nvme_auth_encode(const struct nvme_auth_msg *msg, uint8_t out[NVME_AUTH_BYTES_MAX]);

/* What begins a message of bytes. PROTOCOL: too short, unknown, or lengths that do not fit in bytes
 * or are not those of a hash (32, 48, 64) and, with a multiple of 4, of a group. Identifiers of
 * hashes and groups are for the caller to judge; unknown protocols of NEGOTIATE are skipped, and
 * its counts are 0 when DH-HMAC-CHAP is not among them. Bytes behind the message are left alone. */
icms_err nvme_auth_decode(const void *data, size_t bytes,
                          struct nvme_auth_msg *out_msg) ICMS_MUST_CHECK;

/* AUTH Send (is_send) or Receive of at most bytes: the whole entry but cid and sgl. */
void nvme_auth_cmd_encode(bool is_send, uint32_t bytes, struct nvme_sqe_wf *out_sqe);

/* The length that such an entry tells. INVALID: it is for another security protocol. */
icms_err nvme_auth_cmd_decode(const struct nvme_sqe_wf *sqe, uint32_t *out_bytes) ICMS_MUST_CHECK;

#endif
