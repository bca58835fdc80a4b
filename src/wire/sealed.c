/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trailer of a sealed value, and the head of an encrypted one.
 *
 * Called by client and agent on engine threads and loops, once where a block is handed over and
 * once where it is handed out. Pure. Invariant: value_crc covers the value first, so the caller's
 * one pass over it is all that the value costs.
 */
#include "wire/sealed.h"

#include "base/check.h"
#include "base/crc.h"

/* The value's checksum carried on over all that it is bound to. */
static uint32_t sealed_crc(const struct sealed_trailer_wf *trailer, const struct uuid *volume,
                           const struct key *key, uint32_t value_crc)
{
    uint32_t crc = value_crc;

    crc = crc32c_add(crc, trailer, offsetof(struct sealed_trailer_wf, value_crc));
    crc = crc32c_add(crc, volume->bytes, sizeof(volume->bytes));
    crc = crc32c_add(crc, key->bytes, sizeof(key->bytes));
    return crc32c_add(crc, &key->length, sizeof(key->length));
}

static uint32_t trailer_crc(const struct sealed_trailer_wf *trailer)
{
    return crc32c(trailer, offsetof(struct sealed_trailer_wf, trailer_crc));
}

/* Sums a trailer whose other fields are there, and copies it out. */
static void trailer_finish(struct sealed_trailer_wf *trailer, const struct uuid *volume,
                           const struct key *key, uint32_t value_crc,
                           uint8_t out_trailer[LIMIT_TRAILER_BYTES])
{
    trailer->magic = le32_of(SEALED_MAGIC);
    trailer->version = SEALED_VERSION;
    trailer->value_crc = le32_of(sealed_crc(trailer, volume, key, value_crc));
    trailer->trailer_crc = le32_of(trailer_crc(trailer));
    memcpy(out_trailer, trailer, sizeof(*trailer));
}

void sealed_trailer_make(const struct uuid *volume, const struct key *key,
                         const uint8_t digest[LIMIT_DIGEST_BYTES], uint32_t length,
                         uint32_t value_crc, uint8_t out_trailer[LIMIT_TRAILER_BYTES])
{
    struct sealed_trailer_wf trailer = {
        .kind = SEALED_KIND_PLAIN,
        .length = le32_of(length),
    };

    memcpy(trailer.digest, digest, sizeof(trailer.digest));
    trailer_finish(&trailer, volume, key, value_crc, out_trailer);
}

void sealed_trailer_make_encrypted(const struct uuid *volume, const struct key *key,
                                   const uint8_t digest[LIMIT_DIGEST_BYTES], uint32_t length,
                                   uint32_t value_crc, uint8_t out_trailer[LIMIT_TRAILER_BYTES])
{
    struct sealed_trailer_wf trailer = {
        .kind = SEALED_KIND_ENCRYPTED,
        .length = le32_of(length),
    };

    memcpy(trailer.digest, digest, sizeof(trailer.digest));
    trailer_finish(&trailer, volume, key, value_crc, out_trailer);
}

/* Reads a trailer that is whole and of a kind that we know. */
static icms_err sealed_trailer_read(const uint8_t bytes[LIMIT_TRAILER_BYTES],
                                    struct sealed_trailer_wf *out_trailer)
{
    struct sealed_trailer_wf trailer;

    memcpy(&trailer, bytes, sizeof(trailer));
    if (le32_get(trailer.magic) != SEALED_MAGIC ||
        le32_get(trailer.trailer_crc) != trailer_crc(&trailer))
        return ICMS_CORRUPT;
    if (trailer.version != SEALED_VERSION || trailer.kind > SEALED_KIND_ENCRYPTED)
        return ICMS_VERSION;
    *out_trailer = trailer;
    return ICMS_OK;
}

icms_err sealed_trailer_encrypted(const uint8_t trailer[LIMIT_TRAILER_BYTES])
{
    struct sealed_trailer_wf wf;
    icms_err err = sealed_trailer_read(trailer, &wf);

    if (err != ICMS_OK)
        return err;
    return wf.kind == SEALED_KIND_ENCRYPTED ? ICMS_OK : ICMS_CORRUPT;
}

icms_err sealed_trailer_check(const struct sealed_place *place, uint32_t length, uint32_t value_crc,
                              const uint8_t trailer[LIMIT_TRAILER_BYTES])
{
    struct sealed_trailer_wf wf;
    icms_err err = sealed_trailer_read(trailer, &wf);

    if (err != ICMS_OK)
        return err;
    if ((wf.kind == SEALED_KIND_ENCRYPTED) != place->encrypted || le32_get(wf.length) != length ||
        le32_get(wf.value_crc) != sealed_crc(&wf, place->volume, place->key, value_crc))
        return ICMS_CORRUPT;
    return ICMS_OK;
}

bool sealed_trailer_is(const uint8_t trailer[LIMIT_TRAILER_BYTES],
                       const uint8_t digest[LIMIT_DIGEST_BYTES])
{
    return memcmp(trailer + offsetof(struct sealed_trailer_wf, digest), digest,
                  LIMIT_DIGEST_BYTES) == 0;
}

void sealed_head_make(const struct sealed_head *head, uint8_t out_head[LIMIT_SEALED_HEAD_BYTES])
{
    struct sealed_head_wf wf = {.key_id = le32_of(head->key_id), .length = le32_of(head->length)};

    check(head->key_id != 0 && head->length != 0);
    memcpy(wf.salt, head->salt, sizeof(wf.salt));
    memcpy(out_head, &wf, sizeof(wf));
}

icms_err sealed_head_read(const uint8_t bytes[LIMIT_SEALED_HEAD_BYTES],
                          struct sealed_head *out_head)
{
    struct sealed_head_wf wf;

    memcpy(&wf, bytes, sizeof(wf));
    if (le32_get(wf.key_id) == 0 || le32_get(wf.length) == 0)
        return ICMS_CORRUPT;
    *out_head = (struct sealed_head){.key_id = le32_get(wf.key_id), .length = le32_get(wf.length)};
    memcpy(out_head->salt, wf.salt, sizeof(wf.salt));
    return ICMS_OK;
}

void sealed_aad_make(const struct sealed_aad *from, struct sealed_aad_wf *out_aad)
{
    struct sealed_aad_wf aad = {
        .label = "icms sealed",
        .key_id = le32_of(from->key_id),
        .key_length = from->key->length,
        .version = SEALED_VERSION,
        .length = le32_of(from->length),
        .position = le32_of(from->position),
        .count = le32_of(from->count),
    };

    memcpy(aad.volume, from->volume->bytes, sizeof(aad.volume));
    memcpy(aad.digest, from->digest, sizeof(aad.digest));
    memcpy(aad.key, from->key->bytes, sizeof(aad.key));
    *out_aad = aad;
}
