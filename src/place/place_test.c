/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of placement: shares, least movement, independence of list order and of the two levels,
 * and the golden table that every version and machine has to compute.
 */
#include "place/place.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/hash.h"

static struct uuid test_uuid(uint64_t n)
{
    struct uuid uuid;
    uint64_t half[2] = {hash64_mix(n), hash64_mix(n + 1000003)};

    memcpy(uuid.bytes, half, sizeof(uuid.bytes));
    return uuid;
}

static void test_members(struct place_member *members, uint32_t count, uint64_t first)
{
    for (uint32_t i = 0; i < count; i++)
        members[i] = (struct place_member){.uuid = test_uuid(first + i), .weight = 1};
}

static struct place_map *test_map(const struct place_member *members, uint32_t count)
{
    struct place_map *map = NULL;
    struct err_why why;

    assert_int_equal(place_map_new(members, count, &why, &map), ICMS_OK);
    return map;
}

/* Largest relative deviation of the owned slots from the weights. */
static double test_deviation(const struct place_map *map, const struct place_member *members,
                             uint32_t count)
{
    double owned[64] = {0}, total = 0, worst = 0;

    for (uint32_t i = 0; i < count; i++)
        total += members[i].weight;
    for (uint32_t slot = 0; slot < PLACE_SLOTS; slot++)
        owned[place_rank(map, slot, 0)]++;
    for (uint32_t i = 0; i < count; i++) {
        double share = PLACE_SLOTS * members[i].weight / total;

        if (share == 0)
            assert_true(owned[i] == 0);
        else
            worst = fmax(worst, fabs(owned[i] - share) / share);
    }
    return worst;
}

static void equal_weights_get_equal_shares(void **state)
{
    static const struct {
        uint32_t count;
        double bound;
    } rows[] = {{1, 0}, {2, 0.02}, {5, 0.03}, {36, 0.09}, {64, 0.12}};
    struct place_member members[64];

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct place_map *map;

        test_members(members, rows[i].count, 100 * i);
        map = test_map(members, rows[i].count);
        assert_int_equal(place_map_members(map), rows[i].count);
        assert_true(test_deviation(map, members, rows[i].count) <= rows[i].bound);
        place_map_free(&map);
        assert_null(map);
    }
}

static void shares_follow_unequal_weights(void **state)
{
    struct place_member members[6];
    struct place_map *map, *scaled;

    test_members(members, 6, 0);
    members[0].weight = 30.72e12;
    members[1].weight = 15.36e12;
    members[2].weight = 7.68e12;
    members[3].weight = 0;
    members[4].weight = 3.84e12;
    members[5].weight = 15.36e12;
    map = test_map(members, 6);
    assert_true(test_deviation(map, members, 6) < 0.06);
    for (uint32_t i = 0; i < 6; i++)
        members[i].weight /= 1024; /* the unit does not matter */
    scaled = test_map(members, 6);
    for (uint32_t slot = 0; slot < PLACE_SLOTS; slot++)
        assert_int_equal(place_rank(map, slot, 0), place_rank(scaled, slot, 0));
    place_map_free(&map);
    place_map_free(&scaled);
}

static void losing_a_member_moves_only_its_slots(void **state)
{
    struct place_member members[36], left[35];
    struct place_map *before, *after;
    uint32_t lost = 11, moved = 0;

    test_members(members, 36, 0);
    members[3].weight = 2.5;
    for (uint32_t i = 0, n = 0; i < 36; i++) {
        if (i != lost)
            left[n++] = members[i];
    }
    before = test_map(members, 36);
    after = test_map(left, 35);
    for (uint32_t slot = 0; slot < PLACE_SLOTS; slot++) {
        uint32_t was = place_rank(before, slot, 0);
        uint32_t is = place_rank(after, slot, 0);

        if (was == lost) { /* the next in order takes over */
            moved++;
            was = place_rank(before, slot, 1);
        }
        assert_int_equal(is, was > lost ? was - 1 : was);
    }
    assert_in_range(moved, PLACE_SLOTS / 36 * 8 / 10, PLACE_SLOTS / 36 * 12 / 10);
    place_map_free(&before);
    place_map_free(&after);
}

static void adding_a_member_takes_only_its_share(void **state)
{
    struct place_member members[37];
    struct place_map *before, *after;
    uint32_t taken = 0;

    test_members(members, 37, 0);
    before = test_map(members, 36);
    after = test_map(members, 37);
    for (uint32_t slot = 0; slot < PLACE_SLOTS; slot++) {
        if (place_rank(after, slot, 0) == 36) {
            taken++; /* and the former owner is next */
            assert_int_equal(place_rank(after, slot, 1), place_rank(before, slot, 0));
        } else {
            assert_int_equal(place_rank(after, slot, 0), place_rank(before, slot, 0));
        }
    }
    assert_in_range(taken, PLACE_SLOTS / 37 * 9 / 10, PLACE_SLOTS / 37 * 11 / 10);
    place_map_free(&before);
    place_map_free(&after);
}

static void ranks_are_distinct_and_end_with_the_members(void **state)
{
    struct place_member members[9];

    test_members(members, 9, 0);
    for (uint32_t count = 1; count <= 9; count++) {
        struct place_map *map = test_map(members, count);

        for (uint32_t slot = 0; slot < PLACE_SLOTS; slot += 7) {
            uint64_t seen = 0;

            for (uint32_t r = 0; r < PLACE_RANKS; r++) {
                uint32_t member = place_rank(map, slot, r);

                if (r >= count) {
                    assert_int_equal(member, UINT32_MAX);
                    continue;
                }
                assert_true(member < count);
                assert_int_equal(seen >> member & 1, 0);
                seen |= (uint64_t)1 << member;
            }
        }
        place_map_free(&map);
    }
}

static void the_order_of_the_list_does_not_matter(void **state)
{
    struct place_member members[36], other[36];
    struct place_map *a, *b;

    test_members(members, 36, 0);
    for (uint32_t i = 0; i < 36; i++)
        members[i].weight = 1 + i % 3;
    for (uint32_t i = 0; i < 36; i++)
        other[i] = members[(i * 5 + 17) % 36];
    a = test_map(members, 36);
    b = test_map(other, 36);
    for (uint32_t slot = 0; slot < PLACE_SLOTS; slot++) {
        for (uint32_t r = 0; r < PLACE_RANKS; r++)
            assert_int_equal(place_rank(a, slot, r), (place_rank(b, slot, r) * 5 + 17) % 36);
    }
    place_map_free(&a);
    place_map_free(&b);
}

static void excluded_members_are_passed_over_in_order(void **state)
{
    struct place_member members[6];
    struct place_map *map;

    test_members(members, 6, 0);
    map = test_map(members, 6);
    for (uint64_t n = 0; n < 1000; n++) {
        struct key key = {.length = 16};
        uint64_t run = hash64_mix(n), excluded = 0;
        uint32_t slot;

        memcpy(key.bytes, &run, sizeof(run));
        slot = place_slot(map, &key, true);
        for (uint32_t r = 0; r < PLACE_RANKS; r++) {
            assert_int_equal(place_owner(map, &key, true, excluded), place_rank(map, slot, r));
            excluded |= (uint64_t)1 << place_rank(map, slot, r);
        }
        assert_int_equal(place_owner(map, &key, true, excluded), UINT32_MAX);
    }
    place_map_free(&map);
}

static void a_run_stays_together_and_other_keys_do_not(void **state)
{
    struct key a = {.length = 16, .bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9}};
    struct key b = {.length = 16, .bytes = {1, 2, 3, 4, 200, 100, 7, 8, 9}};
    struct key other = {.length = 16, .bytes = {1, 2, 3, 5, 5, 6, 7, 8, 9}};
    struct key c = {.length = 15, .bytes = {1, 2, 3, 4, 5, 6, 7, 8, 9}};
    struct key d = {.length = 15, .bytes = {1, 2, 3, 4, 5, 6, 7, 8, 10}};
    struct place_member members[36];
    struct place_map *map;

    test_members(members, 36, 0);
    map = test_map(members, 36);
    assert_int_equal(place_slot(map, &a, true), place_slot(map, &b, true));
    assert_int_not_equal(place_slot(map, &a, true), place_slot(map, &other, true));
    assert_int_not_equal(place_slot(map, &c, true), place_slot(map, &d, true));
    assert_int_not_equal(place_slot(map, &a, false), place_slot(map, &b, false));
    place_map_free(&map);
}

/* What a foreign host calls its blocks: the beginning tells nothing. Nor does a run need more than
 * its 4 bytes: either way no enclosure has much more than its part. */
static void names_that_begin_alike_and_runs_spread_evenly(void **state)
{
    enum { ENCLOSURES = 36, KEYS = 360000, MEAN = KEYS / ENCLOSURES };
    uint32_t names[ENCLOSURES] = {0}, runs[ENCLOSURES] = {0};
    struct place_member members[ENCLOSURES];
    struct place_map *map;

    test_members(members, ENCLOSURES, 0);
    map = test_map(members, ENCLOSURES);
    for (uint32_t n = 0; n < KEYS; n++) {
        struct key key = {.length = 16};
        char text[17];

        (void)snprintf(text, sizeof(text), "checkpoint%06u", n);
        memcpy(key.bytes, text, 16);
        names[place_owner(map, &key, false, 0)]++;
        memcpy(key.bytes, &n, sizeof(n));
        runs[place_owner(map, &key, true, 0)]++;
    }
    for (uint32_t e = 0; e < ENCLOSURES; e++) {
        assert_in_range(names[e], MEAN * 9 / 10, MEAN * 11 / 10);
        assert_in_range(runs[e], MEAN * 9 / 10, MEAN * 11 / 10);
    }
    place_map_free(&map);
}

/* 36 enclosures of 32 drives: what reaches one enclosure divides evenly among its drives. */
static void drives_are_chosen_independently_of_enclosures(void **state)
{
    enum { ENCLOSURES = 36, DRIVES = 32, RUNS = 2000000 };
    static uint32_t count[ENCLOSURES][DRIVES];
    static struct place_map *drive_map[ENCLOSURES];
    struct place_member members[ENCLOSURES];
    struct place_map *enclosures;
    double mean = (double)RUNS / ENCLOSURES / DRIVES;

    test_members(members, ENCLOSURES, 0);
    enclosures = test_map(members, ENCLOSURES);
    for (uint32_t e = 0; e < ENCLOSURES; e++) {
        struct err_why why;

        test_members(members, DRIVES, 1000 * (e + 1));
        assert_int_equal(place_map_new_drives(members, DRIVES, &why, &drive_map[e]), ICMS_OK);
    }
    for (uint64_t n = 0; n < RUNS; n++) {
        struct key key = {.length = 16};
        uint64_t run = hash64_mix(n);
        uint32_t e;

        memcpy(key.bytes, &run, sizeof(run));
        e = place_owner(enclosures, &key, true, 0);
        count[e][place_owner(drive_map[e], &key, true, 0)]++;
    }
    for (uint32_t e = 0; e < ENCLOSURES; e++) {
        double sum = 0;

        for (uint32_t d = 0; d < DRIVES; d++)
            sum += count[e][d];
        assert_true(fabs(sum / DRIVES - mean) < 0.08 * mean);
        /* the sampling itself scatters by 2.4 %, the slots by 2.2 % */
        for (uint32_t d = 0; d < DRIVES; d++)
            assert_true(fabs(count[e][d] - sum / DRIVES) < 0.15 * sum / DRIVES);
        place_map_free(&drive_map[e]);
    }
    place_map_free(&enclosures);
}

static void bad_members_are_refused(void **state)
{
    struct place_member members[65];
    struct place_map *map = NULL;
    struct err_why why;

    test_members(members, 65, 0);
    assert_int_equal(place_map_new(members, 0, &why, &map), ICMS_INVALID);
    assert_int_equal(place_map_new(members, 65, &why, &map), ICMS_INVALID);
    members[1].uuid = members[0].uuid;
    assert_int_equal(place_map_new(members, 2, &why, &map), ICMS_INVALID);
    assert_non_null(strstr(why.text, "twice"));
    members[1] = (struct place_member){.uuid = test_uuid(9), .weight = NAN};
    assert_int_equal(place_map_new(members, 2, &why, &map), ICMS_INVALID);
    members[1].weight = -1;
    assert_int_equal(place_map_new(members, 2, &why, &map), ICMS_INVALID);
    members[1].weight = INFINITY;
    assert_int_equal(place_map_new(members, 2, NULL, &map), ICMS_INVALID);
    members[0].weight = members[1].weight = 0;
    assert_int_equal(place_map_new(members, 2, &why, &map), ICMS_INVALID);
    assert_null(map);
}

/* If this fails, a new version places differently from the old ones in the same pod. */
static void the_mapping_is_pinned(void **state)
{
    struct place_member members[5];
    struct key key = {.length = 16, .bytes = {1, 2, 3, 4, 5, 6, 7, 8}};
    struct place_map *map, *drives;
    struct err_why why;
    uint64_t hash = 0;

    test_members(members, 5, 0);
    for (uint32_t i = 0; i < 5; i++)
        members[i].weight = 1 + 0.3 * i;
    map = test_map(members, 5);
    assert_int_equal(place_map_new_drives(members, 5, &why, &drives), ICMS_OK);
    for (uint32_t slot = 0; slot < PLACE_SLOTS; slot++) {
        for (uint32_t r = 0; r < PLACE_RANKS; r++)
            hash = hash64_mix(hash ^ place_rank(map, slot, r));
    }
    assert_int_equal(place_slot(map, &key, true), 39051);
    assert_int_equal(place_slot(map, &key, false), 51648);
    assert_int_equal(place_slot(drives, &key, true), 13228);
    assert_int_equal(hash, 0xf5869fd9c2bd202c);
    place_map_free(&map);
    place_map_free(&drives);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_weights_get_equal_shares),
        cmocka_unit_test(shares_follow_unequal_weights),
        cmocka_unit_test(losing_a_member_moves_only_its_slots),
        cmocka_unit_test(adding_a_member_takes_only_its_share),
        cmocka_unit_test(ranks_are_distinct_and_end_with_the_members),
        cmocka_unit_test(the_order_of_the_list_does_not_matter),
        cmocka_unit_test(excluded_members_are_passed_over_in_order),
        cmocka_unit_test(a_run_stays_together_and_other_keys_do_not),
        cmocka_unit_test(names_that_begin_alike_and_runs_spread_evenly),
        cmocka_unit_test(drives_are_chosen_independently_of_enclosures),
        cmocka_unit_test(bad_members_are_refused),
        cmocka_unit_test(the_mapping_is_pinned),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
