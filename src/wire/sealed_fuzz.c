/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of the trailer's check: a key length, then a trailer, then the value. Nothing but what was
 * made for this value, volume, key and digest passes. The same bytes are read as a head, which is
 * made again. The trailer is also checked with its checksum put right, as another build would write
 * it: then it is of this version, or VERSION, and never taken for damage.
 */
#include "base/check.h"
#include "base/crc.h"
#include "wire/sealed.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A trailer with magic and checksum in order, whatever else it holds. */
static void whole_trailer(const struct sealed_place *place, uint32_t length, uint32_t crc,
                          const uint8_t bytes[LIMIT_TRAILER_BYTES])
{
    const size_t covered = offsetof(struct sealed_trailer_wf, trailer_crc);
    struct sealed_trailer_wf trailer;
    uint8_t whole[LIMIT_TRAILER_BYTES];
    icms_err encrypted, checked;

    memcpy(&trailer, bytes, sizeof(trailer));
    trailer.magic = le32_of(SEALED_MAGIC);
    memcpy(whole, &trailer, sizeof(whole));
    trailer.trailer_crc = le32_of(crc32c(whole, covered));
    memcpy(whole, &trailer, sizeof(whole));

    encrypted = sealed_trailer_encrypted(whole);
    checked = sealed_trailer_check(place, length, crc, whole);
    if (trailer.version != SEALED_VERSION || trailer.kind > SEALED_KIND_ENCRYPTED) {
        check(encrypted == ICMS_VERSION && checked == ICMS_VERSION);
        return;
    }
    check((encrypted == ICMS_OK) == (trailer.kind == SEALED_KIND_ENCRYPTED));
    check(checked == ICMS_OK || checked == ICMS_CORRUPT);
    check(checked != ICMS_OK || le32_get(trailer.length) == length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const struct uuid volume = {{7}};
    struct key key = {.bytes = "0123456789abcde"};
    struct sealed_place place = {.volume = &volume, .key = &key};
    uint8_t made[LIMIT_TRAILER_BYTES], digest[LIMIT_DIGEST_BYTES];
    uint8_t head_made[LIMIT_SEALED_HEAD_BYTES];
    struct sealed_head head;
    uint32_t crc, length;

    if (bytes < 1 + LIMIT_TRAILER_BYTES)
        return 0;
    key.length = (uint8_t)(1 + data[0] % LIMIT_KEY_BYTES);
    if (sealed_head_read(data + 1, &head) == ICMS_OK) {
        sealed_head_make(&head, head_made);
        check(memcmp(head_made, data + 1, sizeof(head_made)) == 0);
    }
    place.encrypted = sealed_trailer_encrypted(data + 1) == ICMS_OK;
    crc = crc32c(data + 1 + LIMIT_TRAILER_BYTES, bytes - 1 - LIMIT_TRAILER_BYTES);
    length = (uint32_t)(bytes - 1 - LIMIT_TRAILER_BYTES);
    whole_trailer(&place, length, crc, data + 1);
    /* The digest is whatever the input says: all else follows. */
    memcpy(digest, data + 1 + offsetof(struct sealed_trailer_wf, digest), sizeof(digest));
    if (place.encrypted)
        sealed_trailer_make_encrypted(&volume, &key, digest, length, crc, made);
    else
        sealed_trailer_make(&volume, &key, digest, length, crc, made);
    check(sealed_trailer_is(made, digest));
    check(sealed_trailer_check(&place, length, crc, made) == ICMS_OK);
    if (sealed_trailer_check(&place, length, crc, data + 1) == ICMS_OK)
        check(memcmp(made, data + 1, sizeof(made)) == 0);
    place.encrypted = !place.encrypted;
    check(sealed_trailer_check(&place, length, crc, data + 1) != ICMS_OK);
    check(sealed_trailer_check(&place, length, crc, made) != ICMS_OK);
    return 0;
}
