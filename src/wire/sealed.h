/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/sealed.h: the trailer that follows a sealed value from the hand that made it to the hand
 * that uses it.
 *
 * It is made where a block is first handed over and checked where it is last handed out, and is the
 * same bytes in DRAM, on SSD, flash, S3 and in a hand-off. It carries the block's digest, the
 * SHA-256 that names its content, of which the key has 12 bytes only. Bound into its checksum are
 * the value, the trailer's own fields, the volume and the key.
 *
 * Two questions, asked in this order. Is this what somebody sealed for this volume and key
 * (sealed_trailer_check)? If not, bytes were damaged or delivered for another key. Is it the block
 * that is asked for (sealed_trailer_is)? If not, it is whole, and another block whose key has the
 * same 16 bytes: a collision. Nothing is damaged then, and nothing is to be repaired: who deletes
 * the record deletes a block that others may still want.
 *
 * Who asks for a block, and alone knows its digest, asks both. An agent asks the first one. The
 * value's CRC32C is the caller's, taken in the pass that copies (crc32c_copy).
 *
 * Pure; any thread.
 */
#ifndef WIRE_SEALED_H
#define WIRE_SEALED_H

#include <assert.h>
#include <stddef.h>

#include "base/bytes.h"
#include "base/err.h"
#include "base/types.h"

#define SEALED_MAGIC   0x4c414553u /* "SEAL" */
#define SEALED_VERSION 2

/* What the value's bytes are. */
#define SEALED_KIND_PLAIN 0 /* the value itself; key_id is 0                                */
/* Kind 1 is kept for AES-256-GCM: the value is ciphertext, a salt of 24 bytes and a tag of 16 lie
 * at
 * @16, and the digest is in the data that the tag authenticates. */

struct sealed_trailer_wf {
    le32 magic;          /* @0  SEALED_MAGIC                                               */
    uint8_t version;     /* @4  SEALED_VERSION                                             */
    uint8_t kind;        /* @5  SEALED_KIND_*                                              */
    uint8_t reserved[2]; /* @6  0                                                          */
    le32 length;         /* @8  bytes of the plain value, trailer not counted              */
    le32 key_id;         /* @12 encryption key of the volume; 0 when plain                 */
    uint8_t digest[LIMIT_DIGEST_BYTES]; /* @16 of the block                                */
    uint8_t pad[8];                     /* @48 0                                           */
    le32 value_crc;   /* @56 CRC32C of value, bytes 0..55, volume, key, key length      */
    le32 trailer_crc; /* @60 CRC32C of bytes 0..59                                      */
};
static_assert(sizeof(struct sealed_trailer_wf) == LIMIT_TRAILER_BYTES, "trailer");
static_assert(offsetof(struct sealed_trailer_wf, digest) == 16, "trailer: digest");
static_assert(offsetof(struct sealed_trailer_wf, value_crc) == 56, "trailer: value_crc");

/* Writes the trailer of a plain value: length bytes whose CRC32C is value_crc. */
void sealed_trailer_make(const struct uuid *volume, const struct key *key,
                         const uint8_t digest[LIMIT_DIGEST_BYTES], uint32_t length,
                         uint32_t value_crc, uint8_t out_trailer[LIMIT_TRAILER_BYTES]);

/* Reads the length of the plain value before the value itself is looked at. CORRUPT: no trailer, or
 * damaged; VERSION: whole, but of a version or kind that this build does not know. */
icms_err sealed_trailer_length(const uint8_t trailer[LIMIT_TRAILER_BYTES],
                               uint32_t *out_length) ICMS_MUST_CHECK;

/* ICMS_OK only when the length bytes with CRC32C value_crc are what was sealed for this volume and
 * key, whatever the digest. CORRUPT or VERSION otherwise, as above. */
icms_err sealed_trailer_check(const struct uuid *volume, const struct key *key, uint32_t length,
                              uint32_t value_crc,
                              const uint8_t trailer[LIMIT_TRAILER_BYTES]) ICMS_MUST_CHECK;

/* Of a trailer that passed the check: whether it is that of the block with this digest. All 32
 * bytes are compared, so no choice of digests passes for another one. */
bool sealed_trailer_is(const uint8_t trailer[LIMIT_TRAILER_BYTES],
                       const uint8_t digest[LIMIT_DIGEST_BYTES]);

#endif
