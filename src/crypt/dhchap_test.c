/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What DH-HMAC-CHAP computes. The golden responses were made by an implementation in Python that
 * shares nothing with this one: hashlib, hmac, pow(), and the primes as RFC 7919 defines them by e.
 * That a Linux host computes the same is shown in test/interop.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "crypt/dhchap.h"

#define HOST "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001"
#define SUB  "nqn.2026-01.io.icms:e1"

static const struct {
    uint8_t hash, group, key_hash;
    const char *host, *target; /* the first 16 bytes */
} golden[] = {
    {1, 0, 1, "26b3b059792e5d3f9307f359d296ad8d", "5cdf41792eec706093e738b3528c1a11"},
    {1, 1, 2, "9fe8b9d7cfb3c3810af011272a28c07b", "ccdaa0d1b167fd7c31caf200f0eecb02"},
    {1, 2, 3, "cb929254d6ed2e628537a14851232cac", "ee4991923f0b07bf0e72d6b7467d9e48"},
    {1, 3, 0, "e0badf1dba8a0219603ee3643500ff7d", "47bfc663719f27e2d58dce875597cc77"},
    {1, 4, 1, "e0b3e5a283b90b3745a93f58d33d5f92", "b63750ff2d10788d4cf56eca1ae00824"},
    {1, 5, 2, "0075c3f1a823cbeb2e3ace9c199db651", "08dc6dd7e7f48e45a6648b9c03c98b98"},
    {2, 0, 2, "f65d4c1009619299a695d7fd6fbd0f96", "ba83a2dfd89d5cbc68a33dc67c029287"},
    {2, 1, 3, "b4b1bbfdd9e985d318c469d7a2ca90d5", "beb23462d1cab1dfa60dd21e80379d56"},
    {2, 2, 0, "62ba50dc500112bdd5e6946e021be312", "17d5e87e3f8254f74046b7841e570e08"},
    {2, 3, 1, "121d937c2da35202fb05192792a2c605", "b4d14df4fd05395e605c555d2127d405"},
    {2, 4, 2, "515034b838a676d692e386c27d96bb4b", "b32d38fbc9d24e4aa26f628e98085acb"},
    {2, 5, 3, "b080496aa1e18f8f06779e61a843c0ab", "478a931aeac60612cb4a34cbdeb00e0b"},
    {3, 0, 3, "804a7ff084cb382d33393e99752bda34", "7f7cc09a73dc2d55c594549bb9434bff"},
    {3, 1, 0, "40f95353f0ddd26d067a23b5d65fff23", "dccf109c5296c48ebcfc10a6d43ad973"},
    {3, 2, 1, "3fb1321eb39fc0d033b55f83620d4f01", "b728aa07d8128ff017fd5a6b3ae1c430"},
    {3, 3, 2, "80b6002fcc08b7ade4487933f4f62ba4", "6d2c58374123e901e0f5b04957623375"},
    {3, 4, 3, "592b21cd8bede5f84123ebc244f0952f", "37dda400b6b7c1b8adb0e9381a34881c"},
    {3, 5, 0, "3ff88d6074ca5992a92a224be7d96344", "4ef8b440ed2483f664b74c5420de9ca4"},
};

static void bytes_fill(uint8_t *out, size_t bytes, unsigned factor, unsigned add)
{
    for (size_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(i * factor + add);
}

static void response_is(const struct key_plain *key, const struct dhchap_question *question,
                        const char *want)
{
    uint8_t response[DHCHAP_DIGEST_BYTES_MAX];
    char text[33];

    assert_int_equal(dhchap_response(key, question, response), ICMS_OK);
    for (int i = 0; i < 16; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", response[i]);
    assert_string_equal(text, want);
}

static void responses_are_those_of_another_implementation(void **state)
{
    assert_int_equal(sizeof(golden) / sizeof(*golden), 3 * DHCHAP_GROUPS);
    for (size_t i = 0; i < sizeof(golden) / sizeof(*golden); i++) {
        uint8_t hash = golden[i].hash, group = golden[i].group;
        uint8_t challenge[DHCHAP_DIGEST_BYTES_MAX], ours[DHCHAP_PRIVATE_BYTES];
        uint8_t theirs[DHCHAP_PRIVATE_BYTES], public[DHCHAP_VALUE_BYTES_MAX];
        uint8_t shared[DHCHAP_VALUE_BYTES_MAX], again[DHCHAP_VALUE_BYTES_MAX];
        struct key_plain key = {.hash = (enum key_hash)golden[i].key_hash};
        struct dhchap_question question = {.hash = (enum key_hash)hash,
                                           .t_id = 0x5566,
                                           .seqnum = 0x11223344,
                                           .challenge = challenge,
                                           .hostnqn = HOST,
                                           .subnqn = SUB};

        key.bytes = key_hash_bytes(key.hash);
        bytes_fill(key.key, key.bytes, 7, hash);
        bytes_fill(challenge, dhchap_hash_bytes(hash), 5, group);
        bytes_fill(ours, sizeof(ours), 3, 1u + group);
        bytes_fill(theirs, sizeof(theirs), 11, 2u + group);
        if (group != DHCHAP_NONE) {
            question.shared = shared;
            question.shared_bytes = dhchap_group_bytes(group);
            assert_int_equal(dhchap_public((enum dhchap_group)group, theirs, public), ICMS_OK);
            assert_int_equal(dhchap_shared((enum dhchap_group)group, ours, public, shared),
                             ICMS_OK);
            assert_int_equal(dhchap_public((enum dhchap_group)group, ours, public), ICMS_OK);
            assert_int_equal(dhchap_shared((enum dhchap_group)group, theirs, public, again),
                             ICMS_OK);
            assert_memory_equal(shared, again, question.shared_bytes);
        }
        response_is(&key, &question, golden[i].host);
        question.is_target = true;
        response_is(&key, &question, golden[i].target);
    }
}

/* Every part of a question changes its response. */
static void a_response_is_bound_to_all_of_its_question(void **state)
{
    uint8_t challenge[32] = {1}, other[32] = {2}, response[64], changed[64], shared[256] = {3};
    struct key_plain key = {.hash = KEY_HASH_SHA256, .bytes = 32, .key = {4}}, key2 = key;
    struct dhchap_question question = {.hash = KEY_HASH_SHA256,
                                       .t_id = 1,
                                       .seqnum = 2,
                                       .challenge = challenge,
                                       .hostnqn = HOST,
                                       .subnqn = SUB};
    struct dhchap_question q[8];

    for (size_t i = 0; i < 8; i++)
        q[i] = question;
    q[0].t_id = 0x101;
    q[1].seqnum = 0x1000002;
    q[2].challenge = other;
    q[3].hostnqn = HOST "1";
    q[4].subnqn = SUB "1";
    q[5].is_target = true;
    q[6].concat = 1;
    q[7].shared = shared;
    q[7].shared_bytes = sizeof(shared);
    assert_int_equal(dhchap_response(&key, &question, response), ICMS_OK);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(dhchap_response(&key, &q[i], changed), ICMS_OK);
        assert_false(dhchap_equal(response, changed, 32));
    }
    key2.hash = KEY_HASH_NONE;
    assert_int_equal(dhchap_response(&key2, &question, changed), ICMS_OK);
    assert_false(dhchap_equal(response, changed, 32));
    key2 = key;
    key2.key[31] = 1;
    assert_int_equal(dhchap_response(&key2, &question, changed), ICMS_OK);
    assert_false(dhchap_equal(response, changed, 32));
    assert_int_equal(dhchap_response(&key, &question, changed), ICMS_OK);
    assert_true(dhchap_equal(response, changed, 32));
    changed[31] ^= 1;
    assert_false(dhchap_equal(response, changed, 32));
}

/* p-1 is found from the group itself: 2^(bits) minus a number, so it begins and ends with ones. */
static void values_that_are_none_are_refused(void **state)
{
    static const uint8_t private[DHCHAP_PRIVATE_BYTES] = {1, 2, 3};
    uint8_t value[DHCHAP_VALUE_BYTES_MAX], out[DHCHAP_VALUE_BYTES_MAX];
    uint8_t order[DHCHAP_PRIVATE_BYTES] = {0};

    for (uint8_t group = DHCHAP_2048; group < DHCHAP_GROUPS; group++) {
        size_t bytes = dhchap_group_bytes(group);

        memset(value, 0, sizeof(value));
        assert_int_equal(dhchap_shared((enum dhchap_group)group, private, value, out), ICMS_AUTH);
        value[bytes - 1] = 1;
        assert_int_equal(dhchap_shared((enum dhchap_group)group, private, value, out), ICMS_AUTH);
        value[bytes - 1] = 2; /* the generator itself is one */
        assert_int_equal(dhchap_shared((enum dhchap_group)group, private, value, out), ICMS_OK);
        memset(value, 0xff, bytes); /* above p */
        assert_int_equal(dhchap_shared((enum dhchap_group)group, private, value, out), ICMS_AUTH);
    }
    /* 2^0 = 1: a private exponent of 0 is never made, but the sum is right */
    assert_int_equal(dhchap_public(DHCHAP_2048, order, out), ICMS_OK);
    assert_int_equal(out[255], 1);
}

/* The prime of ffdhe2048 (RFC 7919 A.1), its last word one less: p - 1, and p itself. */
static void the_largest_values_are_refused(void **state)
{
    static const uint8_t private[DHCHAP_PRIVATE_BYTES] = {1, 2, 3};
    static const char text[] =
        "FFFFFFFFFFFFFFFFADF85458A2BB4A9AAFDC5620273D3CF1D8B9C583CE2D3695A9E13641146433FBCC939DCE24"
        "9B3EF97D2FE363630C75D8F681B202AEC4617AD3DF1ED5D5FD65612433F51F5F066ED0856365553DED1AF3B557"
        "135E7F57C935984F0C70E0E68B77E2A689DAF3EFE8721DF158A136ADE73530ACCA4F483A797ABC0AB182B324FB"
        "61D108A94BB2C8E3FBB96ADAB760D7F4681D4F42A3DE394DF4AE56EDE76372BB190B07A7C8EE0A6D709E02FCE1"
        "CDF7E2ECC03404CD28342F619172FE9CE98583FF8E4F1232EEF28183C3FE3B1B4C6FAD733BB5FCBC2EC22005C5"
        "8EF1837D1683B2C6F34A26C1B2EFFA886B423861285C97FFFFFFFFFFFFFFFF";
    uint8_t value[256], out[256];

    for (int i = 0; i < 256; i++) {
        unsigned byte;

        assert_int_equal(sscanf(text + 2 * i, "%2x", &byte), 1);
        value[i] = (uint8_t)byte;
    }
    assert_int_equal(dhchap_shared(DHCHAP_2048, private, value, out), ICMS_AUTH);
    value[255] = 0xfe;
    assert_int_equal(dhchap_shared(DHCHAP_2048, private, value, out), ICMS_AUTH);
    value[255] = 0xfd; /* p - 2 is one */
    assert_int_equal(dhchap_shared(DHCHAP_2048, private, value, out), ICMS_OK);
}

static void names_are_those_of_the_standard(void **state)
{
    assert_string_equal(dhchap_group_name(DHCHAP_NONE), "null");
    assert_string_equal(dhchap_group_name(DHCHAP_8192), "ffdhe8192");
    assert_null(dhchap_group_name(DHCHAP_GROUPS));
    assert_string_equal(dhchap_hash_name(KEY_HASH_SHA512), "sha512");
    assert_null(dhchap_hash_name(0));
    assert_null(dhchap_hash_name(DHCHAP_HASHES));
    assert_int_equal(dhchap_group_bytes(255), 0);
    assert_int_equal(dhchap_hash_bytes(255), 0);
    assert_int_equal(dhchap_hash_bytes(0), 0);
}

static void a_secret_file_becomes_a_key(void **state)
{
    char path[] = "/tmp/icms-dhchap-XXXXXX";
    static const char good[] = "DHHC-1:01:QfgnsZs5cSVb9bQ3ystlcL4ROTsCT3O6I3U39yyaCd/z6lsq:\n";
    static const char bad[] = "DHHC-1:01:QfgnsZs5cSVb9bQ3ystlcL4ROTsCT3O6I3U39yyaCd/z6lsr:\n";
    struct secret *secret = NULL;
    struct err_why why = {""};
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, good, sizeof(good) - 1, 0), sizeof(good) - 1);
    assert_int_equal(dhchap_secret_read(path, &why, &secret), ICMS_OK);
    assert_int_equal(dhchap_key(secret)->hash, KEY_HASH_SHA256);
    assert_int_equal(dhchap_key(secret)->key[0], 0x41);
    secret_free(&secret);
    assert_int_equal(pwrite(fd, bad, sizeof(bad) - 1, 0), sizeof(bad) - 1);
    assert_int_equal(dhchap_secret_read(path, &why, &secret), ICMS_CONFIG);
    assert_non_null(strstr(why.text, path));
    assert_non_null(strstr(why.text, "CRC"));
    assert_null(strstr(why.text, "Qfgn"));
    assert_null(secret);
    (void)close(fd);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(responses_are_those_of_another_implementation),
        cmocka_unit_test(a_response_is_bound_to_all_of_its_question),
        cmocka_unit_test(values_that_are_none_are_refused),
        cmocka_unit_test(the_largest_values_are_refused),
        cmocka_unit_test(names_are_those_of_the_standard),
        cmocka_unit_test(a_secret_file_becomes_a_key),
    };

    return cmocka_run_group_tests_name("dhchap", tests, NULL, NULL);
}
