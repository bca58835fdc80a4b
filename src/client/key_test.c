/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys: the derivation of key.c with golden values (computed by an independent program from the
 * text in key.c), and what must make a difference.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <openssl/evp.h>

#include "client/client_int.h"

EVP_MD_CTX *__real_EVP_MD_CTX_new(void);
EVP_MD_CTX *__wrap_EVP_MD_CTX_new(void);

static bool no_memory;

EVP_MD_CTX *__wrap_EVP_MD_CTX_new(void)
{
    return no_memory ? NULL : __real_EVP_MD_CTX_new();
}

static struct icms_volume test_volume(uint32_t run_blocks)
{
    static struct volume_view *views; /* of all volumes, to be found */
    struct volume_view *view = calloc(1, sizeof(*view));
    struct icms_volume volume = {.magic = CLIENT_VOLUME_MAGIC};

    assert_non_null(view);
    view->before = views;
    views = view;
    view->info.run_blocks = run_blocks;
    for (uint8_t i = 0; i < 16; i++)
        view->info.uuid[i] = i;
    atomic_init(&volume.view, view);
    return volume;
}

static struct icms_layout test_layout(void)
{
    return (struct icms_layout){
        .tenant = "acme",
        .model = "SmolLM2-135M-Instruct",
        .weights = "\x01\x02\x03",
        .weights_bytes = 3,
        .dtype = "f16",
        .layout = "llama.cpp/1",
        .block_tokens = 256,
        .rank = {1, 0, 0, 0},
        .ranks = {2, 1, 1, 1},
    };
}

static const char *hex_text(const uint8_t *bytes, size_t count)
{
    static char text[80];

    for (size_t i = 0; i < count; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return text;
}

static const char *key_text(const struct icms_key *key)
{
    return hex_text(key->bytes, key->length);
}

static const char *digest_text(const struct icms_key *key)
{
    return hex_text(key->digest, sizeof(key->digest));
}

static void chains_give_the_golden_keys(void **state)
{
    static const char *const golden[] = {
        "94053c61afe09f9102ee122a217a1cb9", "a8e55f35771046664a98e770d684c5ab",
        "f84b0310db83cc66f2d5ab41baa29d88", "f84b03104deafac964749e710132ab89"};
    struct icms_volume volume = test_volume(2);
    struct icms_layout layout = test_layout();
    struct icms_chain chain;
    struct icms_key key;

    icms_chain_init(&chain, &volume, &layout);
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t content[8] = {(uint8_t)i, 0, 0, 0, 7, 0, 0, 0};

        icms_chain_next(&chain, content, sizeof(content), &key);
        assert_string_equal(key_text(&key), golden[i]);
    }
    assert_int_equal(chain.blocks, 4);
    assert_string_equal(digest_text(&key),
                        "f890a57e4deafac964749e710132ab89cbf943164bf32e197e1c8744acd290f3");
}

static void names_are_hashed_whatever_their_length(void **state)
{
    struct icms_key key;

    icms_key_from_name("a", 1, &key);
    assert_int_equal(key.length, 16);
    assert_string_equal(key_text(&key), "20bf7ab85a5264dbe4c01ef6184004a1");
    icms_key_from_name("sixteen bytes ok", 16, &key);
    assert_string_equal(key_text(&key), "8a569b3d416c89f6fb4d2c938132fcec");
    icms_key_from_name("seventeen bytes !", 17, &key);
    assert_string_equal(key_text(&key), "af1db2a021c8773e1b2502082c358247");
    assert_string_equal(digest_text(&key),
                        "af1db2a021c8773e1b2502082c35824744984a02d97e811b75076cafe5ef2cc3");
    icms_key_from_name("", 0, &key);
    assert_string_equal(key_text(&key), "6a07819581cd941d059015ff422aa1fc");
}

static void raw_keys_are_their_bytes_and_have_no_digest(void **state)
{
    static const uint8_t none[ICMS_DIGEST_BYTES];
    struct icms_key key;

    memset(&key, 0xff, sizeof(key));
    assert_int_equal(icms_key_raw("abc", 3, &key), ICMS_OK);
    assert_int_equal(key.length, 3);
    assert_memory_equal(key.bytes, "abc\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    assert_memory_equal(key.digest, none, sizeof(none));
    assert_int_equal(icms_key_raw("", 0, &key), ICMS_KEY_SIZE);
    assert_int_equal(icms_key_raw("seventeen bytes !", 17, &key), ICMS_KEY_SIZE);
}

static void a_digest_gives_its_key_also_in_place(void **state)
{
    uint8_t digest[ICMS_DIGEST_BYTES], run[ICMS_RUN_BYTES] = {0xaa, 0xbb, 0xcc, 0xdd};
    struct icms_key key;

    for (uint8_t i = 0; i < sizeof(digest); i++)
        digest[i] = i;
    icms_key_from_digest(run, digest, &key);
    assert_string_equal(key_text(&key), "aabbccdd0405060708090a0b0c0d0e0f");
    assert_memory_equal(key.digest, digest, sizeof(digest));
    icms_key_from_digest(key.bytes + 4, key.digest, &key);
    assert_string_equal(key_text(&key), "040506070405060708090a0b0c0d0e0f");
    icms_key_from_digest(NULL, digest, &key);
    assert_memory_equal(key.bytes, digest, 16);
}

/* Runs double up to run_blocks: they begin with blocks 0, 1, 2, 4, 8 and 12 when that is 4. */
static void blocks_of_a_run_share_their_first_bytes(void **state)
{
    enum { BLOCKS = 14 };
    static const bool begins[BLOCKS] = {true,  true, true,  false, true,  false, false,
                                        false, true, false, false, false, true,  false};
    struct icms_volume volume = test_volume(4);
    struct icms_layout layout = test_layout();
    struct icms_key keys[BLOCKS];
    struct icms_chain chain;

    icms_chain_init(&chain, &volume, &layout);
    for (int i = 0; i < BLOCKS; i++)
        icms_chain_next(&chain, "same", 4, &keys[i]);
    for (int i = 1; i < BLOCKS; i++) {
        assert_int_equal(memcmp(keys[i].bytes, keys[i - 1].bytes, 4) == 0, !begins[i]);
        for (int j = 0; j < i; j++)
            assert_memory_not_equal(keys[i].bytes, keys[j].bytes, 16);
    }
    assert_memory_equal(keys[0].bytes, keys[0].digest, 16); /* 128 bits of it */
}

static void first_key(const struct icms_volume *volume, const struct icms_layout *layout,
                      struct icms_key *out_key)
{
    struct icms_chain chain;

    icms_chain_init(&chain, volume, layout);
    icms_chain_next(&chain, "content", 7, out_key);
}

static void every_field_of_the_layout_makes_another_key(void **state)
{
    struct icms_volume volume = test_volume(2), other_volume = test_volume(2),
                       other_run = test_volume(3);
    struct icms_layout base = test_layout(), layouts[18];
    struct icms_key keys[21];
    uint32_t count = 0, n = 0;

    for (int i = 0; i < 18; i++)
        layouts[i] = base;
    layouts[n++].tenant = "acm";
    layouts[n++].model = "SmolLM2-135M";
    layouts[n++].weights = "\x01\x02\x04";
    layouts[n++].weights_bytes = 2;
    layouts[n++].dtype = NULL;
    layouts[n++].layout = "llama.cpp/2";
    layouts[n++].block_tokens = 255;
    for (int i = 0; i < 4; i++)
        layouts[n++].rank[i] += 5;
    for (int i = 0; i < 4; i++)
        layouts[n++].ranks[i] += 5;
    /* The same bytes, divided otherwise between two neighbours. */
    layouts[n].tenant = "acmeSmol";
    layouts[n++].model = "LM2-135M-Instruct";
    atomic_load(&other_volume.view)->info.uuid[15] ^= 1;
    first_key(&volume, &base, &keys[count++]);
    first_key(&other_volume, &base, &keys[count++]);
    first_key(&other_run, &base, &keys[count++]);
    for (uint32_t i = 0; i < n; i++)
        first_key(&volume, &layouts[i], &keys[count++]);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++)
            assert_memory_not_equal(keys[i].bytes, keys[j].bytes, 16);
}

static void a_copied_chain_branches(void **state)
{
    struct icms_volume volume = test_volume(4);
    struct icms_layout layout = test_layout();
    struct icms_chain chain, branch;
    struct icms_key a, b, c;

    icms_chain_init(&chain, &volume, &layout);
    for (int i = 0; i < 3; i++)
        icms_chain_next(&chain, "1", 1, &a);
    branch = chain;
    icms_chain_next(&chain, "2", 1, &a);
    icms_chain_next(&branch, "3", 1, &b);
    assert_memory_not_equal(a.bytes, b.bytes, 16);
    assert_memory_equal(a.bytes, b.bytes, 4); /* the same run */
    branch = chain;
    icms_chain_next(&chain, NULL, 0, &a);
    icms_chain_next(&branch, "", 0, &c);
    assert_memory_equal(a.bytes, c.bytes, 16);
}

/* The program goes on; what it stores or loads with such a key is KEY_SIZE. */
static void a_key_without_a_hash_has_no_length(void **state)
{
    struct icms_volume volume = test_volume(4);
    struct icms_layout layout = test_layout();
    struct icms_chain chain, branch;
    struct icms_key key;

    no_memory = true;
    icms_key_from_name("name", 4, &key);
    assert_int_equal(key.length, 0);
    icms_chain_init(&chain, &volume, &layout);
    no_memory = false;
    icms_chain_next(&chain, "a", 1, &key); /* of a chain that never began */
    assert_int_equal(key.length, 0);

    icms_chain_init(&chain, &volume, &layout);
    icms_chain_next(&chain, "a", 1, &key);
    assert_int_equal(key.length, ICMS_KEY_BYTES);
    branch = chain;
    no_memory = true;
    icms_chain_next(&branch, "b", 1, &key);
    assert_int_equal(key.length, 0);
    no_memory = false;
    icms_chain_next(&branch, "c", 1, &key); /* it would be the key of a, c */
    assert_int_equal(key.length, 0);
    icms_chain_next(&chain, "b", 1, &key);
    assert_int_equal(key.length, ICMS_KEY_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chains_give_the_golden_keys),
        cmocka_unit_test(names_are_hashed_whatever_their_length),
        cmocka_unit_test(raw_keys_are_their_bytes_and_have_no_digest),
        cmocka_unit_test(a_digest_gives_its_key_also_in_place),
        cmocka_unit_test(blocks_of_a_run_share_their_first_bytes),
        cmocka_unit_test(every_field_of_the_layout_makes_another_key),
        cmocka_unit_test(a_copied_chain_branches),
        cmocka_unit_test(a_key_without_a_hash_has_no_length),
    };

    return cmocka_run_group_tests_name("client-key", tests, NULL, NULL);
}
