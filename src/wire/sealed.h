/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/sealed.h: the trailer that follows a sealed value from the hand that made it to the hand
 * that uses it.
 *
 * It is made where a block is first handed over and checked where it is last handed out, and is the
 * same bytes in DRAM, on SSD, flash, S3 and in a hand-off. Bound into its checksum are the value as
 * it is stored, the trailer's own fields, the volume and the key.
 *
 * Two kinds, one a volume. Plain: the value itself. Encrypted: a head, which says how the rest is
 * opened, and ciphertext with the tags of its pieces (crypt/seal.h). The head is in front, so that
 * who has the first pieces can open them. The trailer carries the block's digest, the SHA-256 that
 * names its content, of which the key has 12 bytes only; of an encrypted value the tags
 * authenticate it, too.
 *
 * Two questions, asked in this order. Is this what somebody sealed for this volume and key
 * (sealed_trailer_check)? If not, bytes were damaged or delivered for another key. Is it the block
 * that is asked for (sealed_trailer_is)? If not, it is whole, and another block whose key has the
 * same 16 bytes: a collision. Nothing is damaged then, and nothing is to be repaired: who deletes
 * the record deletes a block that others may still want. The same holds for an encrypted value that
 * passes the check and whose tags do not pass: it may have been sealed under another key.
 *
 * Who asks for a block, and alone knows its digest, asks both, and has the tags. An agent asks the
 * first one. The value's CRC32C is the caller's, taken in the pass that copies (crc32c_copy).
 *
 * Versions. While hosts are upgraded, values of two versions lie side by side. In every version a
 * stored value ends in LIMIT_TRAILER_BYTES, with magic, version and kind where they are here, and
 * trailer_crc over all bytes in front of it. So damage and another version are told apart: a
 * version byte that was flipped does not pass trailer_crc, and is CORRUPT; a trailer that passes
 * with a version or kind that this build does not know is VERSION, whatever the rest of it holds.
 * Such a value is never read, and nobody here can say whether it is whole, so nobody reports,
 * repairs or deletes it: that is up to who knows the version. A put replaces it; a put with *if
 * absent* finds it there, as it does one under a key that this process lacks. What is left of a
 * version that no process reads any more goes with the volume's generation.
 *
 * trailer_crc is no proof of who wrote a trailer. Who can write a whole one of another version
 * gains a miss that stays, as by any value that does not open; what a reader accepts does not
 * change: the tags of an encrypted value have the version in their associated data.
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
#define SEALED_VERSION 4

/* What the value's bytes are. */
#define SEALED_KIND_PLAIN     0 /* the value itself                                             */
#define SEALED_KIND_ENCRYPTED 1 /* a head, and pieces of ciphertext, each with its tag          */

struct sealed_trailer_wf {
    le32 magic;          /* @0  SEALED_MAGIC                                               */
    uint8_t version;     /* @4  SEALED_VERSION                                             */
    uint8_t kind;        /* @5  SEALED_KIND_*                                              */
    uint8_t reserved[2]; /* @6  0                                                          */
    le32 length;         /* @8  bytes in front of the trailer: value, or all that is sealed */
    uint8_t pad[4];      /* @12 0                                                          */
    uint8_t digest[LIMIT_DIGEST_BYTES]; /* @16 of the block                                */
    uint8_t pad1[8];                    /* @48 0                                           */
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

/* The same for length bytes of head, ciphertext and tags. */
void sealed_trailer_make_encrypted(const struct uuid *volume, const struct key *key,
                                   const uint8_t digest[LIMIT_DIGEST_BYTES], uint32_t length,
                                   uint32_t value_crc, uint8_t out_trailer[LIMIT_TRAILER_BYTES]);

/* Whether this is a trailer of an encrypted value, whatever value and block. CORRUPT: no trailer,
 * or damaged, or that of a plain value; VERSION: whole, but of a version or kind that this build
 * does not know. */
icms_err sealed_trailer_encrypted(const uint8_t trailer[LIMIT_TRAILER_BYTES]) ICMS_MUST_CHECK;

/* What a value is held against: the volume, whether it is encrypted, and the key. */
struct sealed_place {
    const struct uuid *volume;
    const struct key *key;
    bool encrypted;
};

/* ICMS_OK only when the length bytes with CRC32C value_crc are what was sealed for this volume and
 * key, in the kind of the volume, whatever the digest. CORRUPT or VERSION otherwise, as above. */
icms_err sealed_trailer_check(const struct sealed_place *place, uint32_t length, uint32_t value_crc,
                              const uint8_t trailer[LIMIT_TRAILER_BYTES]) ICMS_MUST_CHECK;

/* Of a trailer that passed the check: whether it is that of the block with this digest. All 32
 * bytes are compared, so no choice of digests passes for another one. */
bool sealed_trailer_is(const uint8_t trailer[LIMIT_TRAILER_BYTES],
                       const uint8_t digest[LIMIT_DIGEST_BYTES]);

/* ---- the head of an encrypted value --------------------------------------------------------- */

/* How what follows is opened. It has no checksum of its own: with another salt, id or length no
 * piece opens. */
struct sealed_head_wf {
    uint8_t salt[LIMIT_SEALED_SALT_BYTES]; /* @0  of the value's key, random      */
    le32 key_id;                           /* @24 of the volume's key; not 0      */
    le32 length;                           /* @28 of the plain value; not 0       */
};
static_assert(sizeof(struct sealed_head_wf) == LIMIT_SEALED_HEAD_BYTES, "head");
static_assert(offsetof(struct sealed_head_wf, key_id) == 24, "head: key_id");

struct sealed_head {
    uint8_t salt[LIMIT_SEALED_SALT_BYTES];
    uint32_t key_id, length;
};

void sealed_head_make(const struct sealed_head *head, uint8_t out_head[LIMIT_SEALED_HEAD_BYTES]);

/* CORRUPT: nobody made it. */
icms_err sealed_head_read(const uint8_t bytes[LIMIT_SEALED_HEAD_BYTES],
                          struct sealed_head *out_head) ICMS_MUST_CHECK;

/* ---- what the tag of a piece authenticates -------------------------------------------------- */

/* It is made anew by who seals and who opens, and never stored. The volume's UUID has its
 * generation in it, and that it is encrypted; the digest has the tenant that the chain was made
 * for. */
struct sealed_aad_wf {
    uint8_t label[12];                  /* @0  "icms sealed"                */
    le32 key_id;                        /* @12                              */
    uint8_t volume[16];                 /* @16                              */
    uint8_t digest[LIMIT_DIGEST_BYTES]; /* @32                              */
    uint8_t key[LIMIT_KEY_BYTES];       /* @64                              */
    uint8_t key_length;                 /* @80                              */
    uint8_t version;                    /* @81 SEALED_VERSION               */
    uint8_t pad[2];                     /* @82 0                            */
    le32 length;                        /* @84 of the plain value           */
    le32 position;                      /* @88 of the piece, from 0         */
    le32 count;                         /* @92 pieces                       */
};
static_assert(sizeof(struct sealed_aad_wf) == 96, "associated data");
static_assert(offsetof(struct sealed_aad_wf, length) == 84, "associated data: length");

struct sealed_aad {
    const struct uuid *volume;
    const struct key *key;
    const uint8_t *digest; /* [LIMIT_DIGEST_BYTES] */
    uint32_t key_id;
    uint32_t length; /* of the plain value */
    uint32_t position, count;
};

void sealed_aad_make(const struct sealed_aad *from, struct sealed_aad_wf *out_aad);

#endif
