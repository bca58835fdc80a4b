/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/sealed.h: the trailer that follows a sealed value from the hand that made it to the hand
 * that uses it.
 *
 * It is made where a block is first handed over and checked where it is last handed out, and is the
 * same bytes in DRAM, on SSD, flash, S3 and in a hand-off. Bound into its checksum are the value,
 * the trailer's own fields, the volume and the key, so a value delivered for another key or volume
 * does not pass. The value's CRC32C is the caller's, taken in the pass that copies
 * (crc32c_copy).
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
#define SEALED_VERSION 1

/* What the value's bytes are. */
#define SEALED_KIND_PLAIN 0 /* the value itself; salt, tag and key_id are 0                 */
/* Kind 1 is kept for AES-256-GCM: salt, tag and key_id are in use, the value is ciphertext. */

struct sealed_trailer_wf {
    le32 magic;          /* @0  SEALED_MAGIC                                               */
    uint8_t version;     /* @4  SEALED_VERSION                                             */
    uint8_t kind;        /* @5  SEALED_KIND_*                                              */
    uint8_t reserved[2]; /* @6  0                                                          */
    le32 length;         /* @8  bytes of the plain value, trailer not counted              */
    le32 key_id;         /* @12 encryption key of the volume; 0 when plain                 */
    uint8_t salt[24];    /* @16 of the block's key; 0 when plain                           */
    uint8_t tag[16];     /* @40 authenticates the ciphertext; 0 when plain                 */
    le32 value_crc;      /* @56 CRC32C of value, bytes 0..55, volume, key, key length      */
    le32 trailer_crc;    /* @60 CRC32C of bytes 0..59                                      */
};
static_assert(sizeof(struct sealed_trailer_wf) == LIMIT_TRAILER_BYTES, "trailer");
static_assert(offsetof(struct sealed_trailer_wf, value_crc) == 56, "trailer: value_crc");

/* Writes the trailer of a plain value: length bytes whose CRC32C is value_crc. */
void sealed_trailer_make(const struct uuid *volume, const struct key *key, uint32_t length,
                         uint32_t value_crc, uint8_t out_trailer[LIMIT_TRAILER_BYTES]);

/* Reads the length of the plain value before the value itself is looked at. CORRUPT: no trailer, or
 * damaged; VERSION: whole, but of a version or kind that this build does not know. */
icms_err sealed_trailer_length(const uint8_t trailer[LIMIT_TRAILER_BYTES],
                               uint32_t *out_length) ICMS_MUST_CHECK;

/* ICMS_OK only when the length bytes with CRC32C value_crc are what was sealed for this volume and
 * key. CORRUPT or VERSION otherwise, as above. */
icms_err sealed_trailer_check(const struct uuid *volume, const struct key *key, uint32_t length,
                              uint32_t value_crc,
                              const uint8_t trailer[LIMIT_TRAILER_BYTES]) ICMS_MUST_CHECK;

#endif
