/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging memory: no byte is given to two, everything comes back, and a full map says so. A plain
 * model checks random sequences.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/hash.h"
#include "client/client_int.h"

static void room_is_taken_whole_or_not_at_all(void **state)
{
    struct staging staging;
    uint64_t a, b, c;

    assert_int_equal(staging_init(&staging, 4 * STAGING_GRANULE), ICMS_OK);
    assert_true(staging_take(&staging, STAGING_GRANULE + 1, &a));
    assert_true(staging_take(&staging, 1, &b));
    assert_true(staging_take(&staging, STAGING_GRANULE, &c));
    assert_false(staging_take(&staging, 1, &a));
    staging_give(&staging, b, 1);
    assert_false(staging_take(&staging, STAGING_GRANULE + 1, &b));
    assert_true(staging_take(&staging, 1, &b));
    staging_give(&staging, a, STAGING_GRANULE + 1);
    staging_give(&staging, b, 1);
    staging_give(&staging, c, STAGING_GRANULE);
    assert_true(staging_take(&staging, 4 * STAGING_GRANULE, &a));
    assert_int_equal(a, 0);
    assert_int_equal(staging.free_count, 0);
    staging_fini(&staging);
}

static void nonsense_is_refused(void **state)
{
    struct staging staging;
    uint64_t offset;

    assert_int_equal(staging_init(&staging, 100), ICMS_INVALID);
    assert_int_equal(staging_init(&staging, 3 * STAGING_GRANULE), ICMS_OK);
    assert_false(staging_take(&staging, 0, &offset));
    assert_false(staging_take(&staging, 4 * STAGING_GRANULE, &offset));
    assert_false(staging_take(&staging, UINT64_MAX, &offset));
    staging_fini(&staging);
}

#define MODEL_GRANULES 200
#define MODEL_HELD     40

static void random_sequences_match_a_model(void **state)
{
    static bool taken[MODEL_GRANULES];
    uint64_t offset[MODEL_HELD], bytes[MODEL_HELD], random = 42;
    struct staging staging;
    uint32_t refused = 0;

    memset(bytes, 0, sizeof(bytes));
    assert_int_equal(staging_init(&staging, MODEL_GRANULES * STAGING_GRANULE), ICMS_OK);
    for (int round = 0; round < 20000; round++) {
        uint32_t i = (uint32_t)((random = hash64_mix(random)) % MODEL_HELD);
        uint64_t first, count;

        if (bytes[i] == 0) {
            uint32_t run = 0, longest = 0;

            bytes[i] = 1 + (random >> 8) % (12 * STAGING_GRANULE);
            count = (bytes[i] + STAGING_GRANULE - 1) / STAGING_GRANULE;
            for (int g = 0; g < MODEL_GRANULES; g++) {
                run = taken[g] ? 0 : run + 1;
                longest = run > longest ? run : longest;
            }
            /* A run that begins before the place where the search began is found, too. */
            assert_int_equal(staging_take(&staging, bytes[i], &offset[i]), count <= longest);
            if (count > longest) {
                bytes[i] = 0;
                refused++;
                continue;
            }
        } else {
            count = (bytes[i] + STAGING_GRANULE - 1) / STAGING_GRANULE;
            staging_give(&staging, offset[i], bytes[i]);
            bytes[i] = 0;
        }
        first = offset[i] / STAGING_GRANULE;
        assert_true(first + count <= MODEL_GRANULES);
        for (uint64_t g = first; g < first + count; g++) {
            assert_int_equal(taken[g], bytes[i] == 0);
            taken[g] = bytes[i] != 0;
        }
    }
    assert_true(refused > 0);
    staging_fini(&staging);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_is_taken_whole_or_not_at_all),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(random_sequences_match_a_model),
    };

    return cmocka_run_group_tests_name("client-staging", tests, NULL, NULL);
}
