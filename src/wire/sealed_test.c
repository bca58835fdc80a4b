/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the sealed trailer.
 */
#include "wire/test_bytes.h"

#include "base/crc.h"
#include "wire/sealed.h"

static const struct uuid volume = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}};
static const struct key key = {{'k', 'e', 'y'}, 3};
static const char value[] = "a value";
static const uint8_t digest[LIMIT_DIGEST_BYTES] = "the hash of a block, thirty-two";

static icms_err check(const struct uuid *uuid, const struct key *of, uint32_t length, uint32_t crc,
                      const uint8_t trailer[LIMIT_TRAILER_BYTES])
{
    return sealed_trailer_check(&(struct sealed_place){uuid, of, false}, length, crc, trailer);
}

static void has_its_golden_bytes(void **state)
{
    uint8_t trailer[LIMIT_TRAILER_BYTES];

    sealed_trailer_make(&volume, &key, digest, 7, crc32c(value, 7), trailer);
    test_bytes_are(trailer, "5345414c 04 00 0000 07000000 00000000"
                            "7468652068617368206f66206120626c 6f636b2c207468697274792d74776f00"
                            "0000000000000000");
    assert_int_equal(check(&volume, &key, 7, crc32c(value, 7), trailer), ICMS_OK);
}

static void is_the_checksum_of_all_it_is_bound_to(void **state)
{
    uint8_t trailer[LIMIT_TRAILER_BYTES], all[7 + 56 + 16 + 16 + 1];
    le32 crc;

    sealed_trailer_make(&volume, &key, digest, 7, crc32c(value, 7), trailer);
    memcpy(all, value, 7);
    memcpy(all + 7, trailer, 56);
    memcpy(all + 63, volume.bytes, 16);
    memcpy(all + 79, key.bytes, 16);
    all[95] = key.length;
    memcpy(&crc, trailer + 56, 4);
    assert_int_equal(le32_get(crc), crc32c(all, sizeof(all)));
    memcpy(&crc, trailer + 60, 4);
    assert_int_equal(le32_get(crc), crc32c(trailer, 60));
}

static void every_flipped_bit_is_found(void **state)
{
    uint8_t trailer[LIMIT_TRAILER_BYTES];
    uint32_t crc = crc32c(value, 7);

    sealed_trailer_make(&volume, &key, digest, 7, crc, trailer);
    for (int bit = 0; bit < 512; bit++) {
        trailer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(check(&volume, &key, 7, crc, trailer), ICMS_CORRUPT);
        trailer[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    for (int bit = 0; bit < 32; bit++)
        assert_int_equal(check(&volume, &key, 7, crc ^ 1u << bit, trailer), ICMS_CORRUPT);
}

static void another_key_volume_or_length_does_not_pass(void **state)
{
    struct key longer = key, other = key;
    struct uuid elsewhere = volume;
    uint8_t trailer[LIMIT_TRAILER_BYTES];
    uint32_t crc = crc32c(value, 7);

    sealed_trailer_make(&volume, &key, digest, 7, crc, trailer);
    longer.length = 4; /* the same 16 bytes */
    other.bytes[2] = 'z';
    elsewhere.bytes[15] ^= 1;
    assert_int_equal(check(&volume, &longer, 7, crc, trailer), ICMS_CORRUPT);
    assert_int_equal(check(&volume, &other, 7, crc, trailer), ICMS_CORRUPT);
    assert_int_equal(check(&elsewhere, &key, 7, crc, trailer), ICMS_CORRUPT);
    assert_int_equal(check(&volume, &key, 6, crc, trailer), ICMS_CORRUPT);
}

/* Two blocks whose keys have the same 16 bytes: each trailer passes the check, one alone is it. */
static void another_block_of_the_same_key_is_whole_and_not_it(void **state)
{
    uint8_t trailer[LIMIT_TRAILER_BYTES], other[LIMIT_DIGEST_BYTES];
    uint32_t crc = crc32c(value, 7);

    sealed_trailer_make(&volume, &key, digest, 7, crc, trailer);
    assert_true(sealed_trailer_is(trailer, digest));
    for (int bit = 0; bit < 8 * LIMIT_DIGEST_BYTES; bit++) {
        memcpy(other, digest, sizeof(other));
        other[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(sealed_trailer_is(trailer, other));
    }
    memset(other, 0, sizeof(other));
    assert_false(sealed_trailer_is(trailer, other));
    sealed_trailer_make(&volume, &key, other, 7, crc, trailer);
    assert_int_equal(check(&volume, &key, 7, crc, trailer), ICMS_OK);
    assert_false(sealed_trailer_is(trailer, digest));
}

/* CRC32C is linear: another digest with the same checksum is easily found. It does not pass. */
static void a_digest_forged_to_the_same_checksum_does_not_pass(void **state)
{
    uint8_t forged[LIMIT_DIGEST_BYTES], trailer[LIMIT_TRAILER_BYTES];
    uint32_t crc = crc32c(value, 7);
    uint64_t multiple = 0x1edc6f41ull | 1ull << 32, mirrored = 0;

    for (int bit = 0; bit < 33; bit++)
        mirrored |= (multiple >> (32 - bit) & 1) << bit;
    memcpy(forged, digest, sizeof(forged));
    for (int i = 0; i < 8; i++)
        forged[8 + i] ^= (uint8_t)(mirrored >> 8 * i);
    assert_memory_not_equal(forged, digest, sizeof(forged));
    assert_int_equal(crc32c(forged, sizeof(forged)), crc32c(digest, sizeof(digest)));
    sealed_trailer_make(&volume, &key, digest, 7, crc, trailer);
    assert_false(sealed_trailer_is(trailer, forged));
}

/* A byte of a trailer that is whole after that. */
static void set_whole(uint8_t *trailer, int at, uint8_t byte)
{
    le32 whole;

    trailer[at] = byte;
    whole = le32_of(crc32c(trailer, 60));
    memcpy(trailer + 60, &whole, 4);
}

/* Each one, whatever the rest is: what another version has there is not known. */
static void other_versions_and_kinds_are_named(void **state)
{
    const struct sealed_place vault = {&volume, &key, true};
    uint8_t trailer[LIMIT_TRAILER_BYTES];
    uint32_t crc = crc32c(value, 7);

    for (int version = 0; version < 256; version++) {
        sealed_trailer_make(&volume, &key, digest, 7, crc, trailer);
        set_whole(trailer, 4, (uint8_t)version);
        assert_int_equal(check(&volume, &key, 7, crc, trailer),
                         version == SEALED_VERSION ? ICMS_OK : ICMS_VERSION);
        if (version == SEALED_VERSION)
            continue;
        for (int at = 5; at < 60; at++)
            set_whole(trailer, at, (uint8_t)(trailer[at] + 1));
        assert_int_equal(check(&volume, &key, 8, crc + 1, trailer), ICMS_VERSION);
        assert_int_equal(sealed_trailer_check(&vault, 7, crc, trailer), ICMS_VERSION);
        assert_int_equal(sealed_trailer_encrypted(trailer), ICMS_VERSION);
    }
    for (int kind = SEALED_KIND_ENCRYPTED + 1; kind < 256; kind++) {
        sealed_trailer_make(&volume, &key, digest, 7, crc, trailer);
        set_whole(trailer, 5, (uint8_t)kind);
        assert_int_equal(check(&volume, &key, 7, crc, trailer), ICMS_VERSION);
    }
}

/* The version is none of which somebody may say that another build knows it. */
static void a_damaged_version_is_no_other_version(void **state)
{
    uint8_t trailer[LIMIT_TRAILER_BYTES];
    uint32_t crc = crc32c(value, 7);

    for (int byte = 0; byte < 256; byte++)
        for (int at = 4; at < 6; at++) {
            sealed_trailer_make(&volume, &key, digest, 7, crc, trailer);
            if (trailer[at] == byte)
                continue;
            trailer[at] = (uint8_t)byte;
            assert_int_equal(check(&volume, &key, 7, crc, trailer), ICMS_CORRUPT);
            assert_int_equal(sealed_trailer_encrypted(trailer), ICMS_CORRUPT);
        }
}

static void an_encrypted_one_says_so(void **state)
{
    const struct sealed_place place = {&volume, &key, true};
    uint8_t trailer[LIMIT_TRAILER_BYTES], plain[LIMIT_TRAILER_BYTES];
    uint32_t crc = crc32c(value, 7);

    sealed_trailer_make_encrypted(&volume, &key, digest, 7, crc, trailer);
    test_bytes_are(trailer, "5345414c 04 01 0000 07000000 00000000"
                            "7468652068617368206f66206120626c 6f636b2c207468697274792d74776f00"
                            "0000000000000000");
    assert_int_equal(sealed_trailer_check(&place, 7, crc, trailer), ICMS_OK);
    assert_int_equal(sealed_trailer_encrypted(trailer), ICMS_OK);
    assert_true(sealed_trailer_is(trailer, digest));
    assert_int_equal(check(&volume, &key, 7, crc, trailer), ICMS_CORRUPT);
    sealed_trailer_make(&volume, &key, digest, 7, crc, plain);
    assert_int_equal(sealed_trailer_encrypted(plain), ICMS_CORRUPT);
    assert_int_equal(sealed_trailer_check(&place, 7, crc, plain), ICMS_CORRUPT);
    trailer[20] ^= 1;
    assert_int_equal(sealed_trailer_encrypted(trailer), ICMS_CORRUPT);
}

static void a_head_has_its_golden_bytes(void **state)
{
    struct sealed_head head = {.key_id = 0x04030201, .length = 0x100007}, back;
    uint8_t bytes[LIMIT_SEALED_HEAD_BYTES];

    memcpy(head.salt, "ABCDEFGHIJKLMNOPQRSTUVWX", sizeof(head.salt));
    sealed_head_make(&head, bytes);
    test_bytes_are(bytes, "4142434445464748494a4b4c4d4e4f505152535455565758 01020304 07001000");
    assert_int_equal(sealed_head_read(bytes, &back), ICMS_OK);
    assert_memory_equal(&head, &back, sizeof(head));
    memset(bytes + 24, 0, 4); /* no key */
    assert_int_equal(sealed_head_read(bytes, &back), ICMS_CORRUPT);
    sealed_head_make(&head, bytes);
    memset(bytes + 28, 0, 4); /* no value */
    assert_int_equal(sealed_head_read(bytes, &back), ICMS_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_its_golden_bytes),
        cmocka_unit_test(is_the_checksum_of_all_it_is_bound_to),
        cmocka_unit_test(every_flipped_bit_is_found),
        cmocka_unit_test(another_key_volume_or_length_does_not_pass),
        cmocka_unit_test(another_block_of_the_same_key_is_whole_and_not_it),
        cmocka_unit_test(a_digest_forged_to_the_same_checksum_does_not_pass),
        cmocka_unit_test(other_versions_and_kinds_are_named),
        cmocka_unit_test(a_damaged_version_is_no_other_version),
        cmocka_unit_test(an_encrypted_one_says_so),
        cmocka_unit_test(a_head_has_its_golden_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
