/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of the index: against a model, at full load, with keys that collide.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/hash.h"
#include "store/index.h"
#include "store/layout.h"

/* One salt for every volume; valid until the next call. */
static const uint64_t *salts_of(uint64_t salt)
{
    static uint64_t salts[STORE_VOLUMES_MAX];

    for (uint32_t i = 0; i < STORE_VOLUMES_MAX; i++)
        salts[i] = salt;
    return salts;
}

static struct key test_key(uint64_t n)
{
    struct key key = {.length = (uint8_t)(1 + n % 16)};
    uint64_t half[2] = {hash64_mix(n), hash64_mix(n + 1)};

    memcpy(key.bytes, half, key.length);
    return key;
}

static struct store_location test_spot(uint64_t n)
{
    return (struct store_location){
        .segment = (uint32_t)(hash64_mix(n) % (1u << 20)),
        .page = (uint32_t)(hash64_mix(n + 1) % (1u << 16)),
        .pages = store_record_pages((uint32_t)(1 + hash64_mix(n + 2) % LIMIT_VALUE_BYTES))};
}

static bool spot_equal(const struct store_location *a, const struct store_location *b)
{
    return a->segment == b->segment && a->page == b->page && a->pages == b->pages;
}

static uint64_t index_blocks(const struct store_index *index)
{
    struct store_block block;
    uint64_t blocks = 0;

    for (uint32_t cursor = 0; store_index_next(index, &cursor, UINT32_MAX, &block);)
        blocks++;
    return blocks;
}

static void at_full_load_a_block_costs_at_most_32_bytes(void **state)
{
    static const uint64_t sizes[] = {1024, 5000, 100000};

    for (int s = 0; s < 3; s++) {
        struct store_index *index;
        struct store_location location, old;
        uint64_t n = sizes[s];

        assert_int_equal(store_index_new(n, salts_of(1), &index), ICMS_OK);
        assert_true(store_index_bytes(index) <= 32 * n);
        for (uint64_t i = 0; i < n; i++) {
            struct key key = {.length = 8};

            memcpy(key.bytes, &i, 8);
            location = test_spot(i);
            assert_true(store_index_reserve(index));
            assert_false(store_index_put(index, (uint32_t)(i % 64), &key, &location, &old));
        }
        assert_int_equal(index_blocks(index), n);
        assert_false(store_index_reserve(index));
        for (uint64_t i = 0; i < n; i++) {
            struct key key = {.length = 8};

            memcpy(key.bytes, &i, 8);
            location = test_spot(i);
            assert_true(store_index_find(index, (uint32_t)(i % 64), &key, &old));
            assert_true(spot_equal(&old, &location));
        }
        store_index_free(&index);
        assert_null(index);
    }
}

/* Fills an index with blocks that differ in one property only, so that many chains hold several of
 * them, and finds each of them, and none when it is gone. */
static void assert_told_apart(void (*make)(uint32_t n, uint32_t *out_volume, struct key *out_key))
{
    enum { BLOCKS = 1024 };
    struct store_index *index;
    struct store_location location, old;
    uint32_t volume;
    struct key key;

    assert_int_equal(store_index_new(BLOCKS, salts_of(1), &index), ICMS_OK);
    for (uint32_t n = 0; n < BLOCKS; n++) {
        make(n, &volume, &key);
        location = test_spot(n);
        assert_true(store_index_reserve(index));
        assert_false(store_index_put(index, volume, &key, &location, &old));
    }
    for (uint32_t n = 0; n < BLOCKS; n++) {
        make(n, &volume, &key);
        location = test_spot(n);
        assert_true(store_index_find(index, volume, &key, &old));
        assert_true(spot_equal(&old, &location));
        assert_true(store_index_remove(index, volume, &key, &old));
        assert_true(spot_equal(&old, &location));
        assert_false(store_index_find(index, volume, &key, &old));
    }
    store_index_free(&index);
}

static unsigned two_bytes_at; /* of the keys that differ there only */

static void make_two_bytes(uint32_t n, uint32_t *out_volume, struct key *out_key)
{
    *out_volume = 3;
    *out_key = (struct key){.length = 16};
    memset(out_key->bytes, 0x55, sizeof(out_key->bytes));
    out_key->bytes[two_bytes_at] = (uint8_t)n;
    out_key->bytes[two_bytes_at + 1] = (uint8_t)(n >> 8);
}

static void keys_that_differ_in_two_bytes_are_two_blocks(void **state)
{
    for (two_bytes_at = 0; two_bytes_at < LIMIT_KEY_BYTES; two_bytes_at += 2)
        assert_told_apart(make_two_bytes);
}

static void make_volume_and_length(uint32_t n, uint32_t *out_volume, struct key *out_key)
{
    *out_volume = n % STORE_VOLUMES_MAX;
    *out_key = (struct key){.length = (uint8_t)(1 + n / STORE_VOLUMES_MAX % LIMIT_KEY_BYTES)};
}

/* All keys are zeros. */
static void volume_and_key_length_are_part_of_the_identity(void **state)
{
    _Static_assert(STORE_VOLUMES_MAX * LIMIT_KEY_BYTES >= 1024, "each block is another one");
    assert_told_apart(make_volume_and_length);
}

static void it_agrees_with_a_model(void **state)
{
    enum { KEYS = 1500, STEPS = 200000 };
    static struct store_location model[KEYS];
    static bool there[KEYS];
    struct store_index *index;
    uint64_t blocks = 0;

    memset(there, 0, sizeof(there));
    assert_int_equal(store_index_new(1024, salts_of(5), &index), ICMS_OK);
    for (uint64_t step = 0; step < STEPS; step++) {
        uint64_t n = hash64_mix(step) % KEYS;
        struct key key = test_key(n / 3);
        uint32_t volume = (uint32_t)(n % 3); /* the same keys in three volumes */
        struct store_location location = test_spot(step), old;

        if (hash64_mix(step + 7) % 3 != 0 && store_index_reserve(index)) {
            assert_int_equal(store_index_put(index, volume, &key, &location, &old), there[n]);
            if (there[n])
                assert_true(spot_equal(&old, &model[n]));
            blocks += !there[n];
            there[n] = true;
            model[n] = location;
        } else {
            assert_int_equal(store_index_remove(index, volume, &key, &old), there[n]);
            if (there[n])
                assert_true(spot_equal(&old, &model[n]));
            blocks -= there[n];
            there[n] = false;
        }
        assert_int_equal(index_blocks(index), blocks);
    }
    store_index_free(&index);
}

static void iteration_meets_every_block_and_survives_removal(void **state)
{
    struct store_index *index;
    struct store_block block;
    struct store_location location = test_spot(1), old;
    uint32_t cursor = 0, met = 0;

    assert_int_equal(store_index_new(1024, salts_of(5), &index), ICMS_OK);
    for (uint64_t i = 0; i < 1000; i++) {
        struct key key = {.length = 8};

        memcpy(key.bytes, &i, 8);
        assert_true(store_index_reserve(index));
        store_index_put(index, 9, &key, &location, &old);
    }
    while (cursor < store_index_end(index)) { /* in slices, as a sweep does */
        while (store_index_next(index, &cursor, 10, &block)) {
            met++;
            assert_int_equal(block.volume, 9);
            assert_true(spot_equal(&block.location, &location));
            if (met % 2 == 0)
                assert_true(store_index_remove(index, 9, &block.key, &old));
        }
    }
    assert_int_equal(met, 1000);
    assert_int_equal(index_blocks(index), 500);
    store_index_free(&index);
}

/* Whoever knew the seed could choose keys that share a chain; even then all of them are kept. */
static void keys_of_one_chain_stay_apart(void **state)
{
    enum { KEYS = 1024, HEADS = 1024 / 16 * 11 };
    const uint64_t seed = 42;
    static struct key keys[KEYS];
    struct store_index *index;
    struct store_location old;
    uint32_t found = 0;

    for (uint64_t n = 0; found < KEYS; n++) {
        struct key key = {.length = 8};

        memcpy(key.bytes, &n, 8);
        if ((hash64_seed(key.bytes, 16, seed ^ 7) >> 32) * HEADS >> 32 == 0)
            keys[found++] = key;
    }
    assert_int_equal(store_index_new(KEYS, salts_of(seed), &index), ICMS_OK);
    for (uint32_t i = 0; i < KEYS; i++) {
        struct store_location location = {.segment = i, .page = 1, .pages = 1};

        assert_true(store_index_reserve(index));
        assert_false(store_index_put(index, 3, &keys[i], &location, &old));
    }
    for (uint32_t i = 0; i < KEYS; i += 2)
        assert_true(store_index_remove(index, 3, &keys[i], &old));
    for (uint32_t i = 0; i < KEYS; i++) {
        assert_int_equal(store_index_find(index, 3, &keys[i], &old), i % 2);
        if (i % 2 == 1)
            assert_int_equal(old.segment, i);
        assert_false(store_index_find(index, 4, &keys[i], &old));
    }
    store_index_free(&index);
}

static void length_and_volume_belong_to_the_key(void **state)
{
    struct store_index *index;
    struct store_location old;

    assert_int_equal(store_index_new(1024, salts_of(0), &index), ICMS_OK);
    for (uint32_t i = 0; i < 1024; i++) { /* all bytes are zero */
        struct key key = {.length = (uint8_t)(1 + i % 16)};
        struct store_location location = {.segment = i, .page = 1, .pages = 1};

        assert_true(store_index_reserve(index));
        assert_false(store_index_put(index, i / 16, &key, &location, &old));
    }
    for (uint32_t i = 0; i < 1024; i++) {
        struct key key = {.length = (uint8_t)(1 + i % 16)};

        assert_true(store_index_find(index, i / 16, &key, &old));
        assert_int_equal(old.segment, i);
    }
    store_index_free(&index);
}

static void promises_are_kept(void **state)
{
    struct store_index *index;
    struct store_location location = test_spot(1), old;

    assert_int_equal(store_index_new(1, salts_of(0), &index), ICMS_OK);
    assert_int_equal(store_index_blocks_max(index), 64);
    for (uint32_t i = 0; i < 64; i++)
        assert_true(store_index_reserve(index));
    assert_false(store_index_reserve(index));
    store_index_unreserve(index);
    assert_true(store_index_reserve(index));
    for (uint64_t i = 0; i < 64; i++) {
        struct key key = {.length = 8};

        memcpy(key.bytes, &i, 8);
        assert_false(store_index_put(index, 0, &key, &location, &old));
    }
    assert_false(store_index_reserve(index));
    store_index_free(&index);
}

/* The mark is a part of the place, not of the name. */
static void a_mark_of_damage_stays_until_the_block_changes(void **state)
{
    struct key key = test_key(7);
    struct store_index *index;
    struct store_location location = test_spot(7), old;

    assert_int_equal(store_index_new(1024, salts_of(3), &index), ICMS_OK);
    for (int i = 0; i < 2; i++) {
        bool marked = i == 1;

        location.damaged = marked;
        assert_true(store_index_reserve(index));
        assert_false(store_index_put(index, 63, &key, &location, &old));
        assert_true(store_index_find(index, 63, &key, &old));
        assert_true(spot_equal(&old, &location) && old.damaged == marked);
        store_index_damage(index, 63, &key);
        assert_true(store_index_find(index, 63, &key, &old));
        assert_true(spot_equal(&old, &location) && old.damaged);
        location.damaged = false;
        assert_true(store_index_reserve(index));
        assert_true(store_index_put(index, 63, &key, &location, &old));
        assert_true(old.damaged);
        assert_true(store_index_remove(index, 63, &key, &old));
        assert_false(old.damaged);
        assert_int_equal(index_blocks(index), 0);
    }
    store_index_free(&index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_full_load_a_block_costs_at_most_32_bytes),
        cmocka_unit_test(keys_that_differ_in_two_bytes_are_two_blocks),
        cmocka_unit_test(volume_and_key_length_are_part_of_the_identity),
        cmocka_unit_test(it_agrees_with_a_model),
        cmocka_unit_test(iteration_meets_every_block_and_survives_removal),
        cmocka_unit_test(keys_of_one_chain_stay_apart),
        cmocka_unit_test(length_and_volume_belong_to_the_key),
        cmocka_unit_test(promises_are_kept),
        cmocka_unit_test(a_mark_of_damage_stays_until_the_block_changes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
