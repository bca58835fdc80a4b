/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes that get another identity while the agent runs: nothing of before is found again, by
 * whatever a client asks, whatever was in flight; leases stay; enclosures that lack the new
 * namespace heal without a new connection.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "base/check.h"

#define MS   RIG_MS
#define KV   0
#define RAW  1
#define KEYS 64u

/* The namespace of the newest identity in the fakes; those of before stay below it. */
#define NSID_FIRST (RIG_VOLUMES + 1)

struct reset {
    struct agent_rig *rig;
    struct rig_client *client;
    struct agent_identity identities[RIG_VOLUMES];
    uint64_t epoch;
    uint32_t nsid; /* of the next namespace */
};

static void reset_begin(struct reset *reset, const struct rig_opts *opts)
{
    *reset = (struct reset){.rig = rig_new(opts), .epoch = 1, .nsid = NSID_FIRST};
    rig_run(reset->rig, 50 * MS);
    reset->client = rig_client_new(reset->rig);
    for (uint32_t i = 0; i < RIG_VOLUMES; i++)
        reset->identities[i].uuid = reset->rig->volumes[i].uuid;
    reset->rig->identities = reset->identities;
}

static void reset_end(struct reset *reset)
{
    rig_client_free(reset->client);
    rig_run(reset->rig, 20 * MS); /* what fakes send still */
    rig_free(reset->rig);
}

/* The next identity of a volume. */
static void reset_next(struct reset *reset, uint32_t volume)
{
    struct agent_identity *identity = &reset->identities[volume];

    identity->generation++;
    identity->uuid.bytes[0] = (uint8_t)(0x80 + volume);
    identity->uuid.bytes[1] = (uint8_t)identity->generation;
}

static void reset_apply(struct reset *reset)
{
    struct err_why why = {""};

    assert_int_equal(rig_pod(reset->rig, ++reset->epoch, reset->rig->enclosures,
                             reset->rig->enclosure_count, &why),
                     ICMS_OK);
}

/* Enclosures have the namespace of its identity, too; told: they say so. */
static void reset_targets(struct reset *reset, uint32_t volume, bool told)
{
    struct agent_rig *rig = reset->rig;

    for (uint32_t i = 0; i < rig->enclosure_count; i++) {
        struct fake_target *fake = rig->fake[i];

        fake->volumes[reset->nsid - 1] = fake->volumes[volume];
        fake->volumes[reset->nsid - 1].uuid = reset->identities[volume].uuid;
        fake->volume_count = reset->nsid;
        if (told)
            rig_on_fake(rig, i, fake_target_event);
    }
    reset->nsid++;
    rig->volumes[volume].uuid = reset->identities[volume].uuid;
}

/* All of it: enclosures first, then the agent; clients know. */
static void reset_volume(struct reset *reset, uint32_t volume)
{
    reset_next(reset, volume);
    reset_targets(reset, volume, true);
    reset_apply(reset);
    rig_run(reset->rig, 20 * MS);
    rig_identify(reset->client);
}

static const struct shm_complete *get(struct reset *reset, uint32_t volume, uint32_t n)
{
    return rig_wait(reset->client, rig_get(reset->client, volume, n, 5, 1000 * MS));
}

static void assert_miss(const struct shm_complete *answer, enum icms_miss reason)
{
    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, reason);
}

static void put(struct reset *reset, uint32_t volume, uint32_t n, uint32_t bytes, uint8_t flags)
{
    const struct shm_complete *answer =
        rig_wait(reset->client, rig_put(reset->client, volume, n, bytes, flags, 1000 * MS));

    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_OK);
}

static bool in_arena(const struct reset *reset, uint32_t volume, uint32_t n)
{
    struct key key;

    rig_key(n, &key);
    return rig_arena_has(rig_shard(reset->client, volume, n), &key);
}

/* By a client that attached later. */
static void put_as_new(struct reset *reset, uint32_t volume, uint32_t n)
{
    struct rig_client *client = rig_client_new(reset->rig);
    const struct shm_complete *answer =
        rig_wait(client, rig_put(client, volume, n, 3000, 0, 1000 * MS));

    assert_int_equal(answer->status, ICMS_OK);
    rig_run(reset->rig, 20 * MS);
    rig_client_free(client);
}

static const struct rig_opts ways[] = {
    {.enclosures = 2, .many = true, .epoch = 1},
    {.enclosures = 2, .epoch = 1},
    {.enclosures = 3, .many = true, .loops = 3, .epoch = 1},
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

/* Blocks in memory and on flash are gone for who knows the new identity and for who does not. */
static void test_nothing_of_before_is_found(void **state)
{
    for (size_t w = 0; w < WAYS; w++)
        for (uint32_t volume = KV; volume <= RAW; volume++) {
            struct reset reset;

            reset_begin(&reset, &ways[w]);
            for (uint32_t n = 0; n < KEYS; n++)
                put(&reset, volume, n, 1000, SHM_FLAG_ON_FLASH);
            assert_true(in_arena(&reset, volume, 7));
            reset_next(&reset, volume);
            reset_targets(&reset, volume, true);
            reset_apply(&reset);
            rig_run(reset.rig, 20 * MS);
            for (uint32_t n = 0; n < KEYS; n++) {
                assert_false(in_arena(&reset, volume, n));
                assert_miss(get(&reset, volume, n), ICMS_MISS_NO_VOLUME); /* the old identity */
            }
            put_as_new(&reset, volume, 7); /* nor what others put since */
            assert_false(in_arena(&reset, volume, 7));
            assert_miss(get(&reset, volume, 7), ICMS_MISS_NO_VOLUME);
            rig_identify(reset.client);
            assert_true(in_arena(&reset, volume, 7));
            assert_int_equal(
                rig_wait(reset.client, rig_op(reset.client, SHM_OP_REMOVE, volume, 7, 1000 * MS))
                    ->status,
                ICMS_OK);
            for (uint32_t n = 0; n < KEYS; n++) {
                assert_false(in_arena(&reset, volume, n));
                assert_miss(get(&reset, volume, n), ICMS_MISS_ABSENT);
            }
            for (uint32_t n = 0; n < KEYS; n++)
                put(&reset, volume, n, 2000, 0);
            for (uint32_t n = 0; n < KEYS; n++) {
                const struct shm_complete *answer = get(&reset, volume, n);

                assert_true(rig_value_is(reset.client, volume, n, 2000, answer));
                rig_lease_give(reset.client, 5);
            }
            assert_int_equal(rig_stats(reset.rig)->volumes[volume].identity.generation, 1);
            assert_int_equal(rig_stats(reset.rig)->checksum_errors, 0);
            reset_end(&reset);
        }
}

/* What a client holds stays, byte for byte, until it gives it back; then its memory serves. */
static void test_a_lease_outlives_a_reset(void **state)
{
    struct reset reset;
    const struct shm_complete *answer;
    uint8_t value[1000];
    const uint8_t *leased;

    reset_begin(&reset, &(const struct rig_opts){.enclosures = 1, .epoch = 1, .slots = 8});
    put(&reset, KV, 3, sizeof(value), 0);
    answer = get(&reset, KV, 3);
    leased = rig_leased(reset.client, KV, answer);
    rig_value(3, sizeof(value), value);
    reset_volume(&reset, KV);
    for (uint32_t n = 100; n < 140; n++) /* more than the arena holds */
        put(&reset, KV, n, 60000, 0);
    assert_memory_equal(leased, value, sizeof(value));
    rig_lease_give(reset.client, 5);
    rig_run(reset.rig, 20 * MS);
    assert_true(list_empty(&reset.rig->agent->reactors[0].shards[KV].limbo));
    reset_end(&reset);
}

static void hold(struct agent_rig *rig, bool is_held)
{
    for (uint32_t i = 0; i < rig->enclosure_count; i++)
        rig->fake[i]->hold = is_held;
}

static void release(struct agent_rig *rig)
{
    hold(rig, false);
    for (uint32_t i = 0; i < rig->enclosure_count; i++)
        rig_on_fake(rig, i, fake_target_release);
    rig_run(rig, 20 * MS);
}

/* Everything that a client can ask is in flight; all of it ends, and nothing of it is found. */
static void test_what_is_in_flight_ends(void **state)
{
    for (size_t w = 0; w < WAYS; w++) {
        struct shm_submit flush = {.op = SHM_OP_FLUSH, .volume = KV};
        uint64_t gets[8], puts[8], flash[8], exists[8], removes[8];
        struct reset reset;

        reset_begin(&reset, &ways[w]);
        for (uint32_t n = 0; n < 16; n++)
            rig_flash(reset.rig, rig_owner(reset.rig, KV, n), KV, n, 1000);
        hold(reset.rig, true);
        for (uint32_t n = 0; n < 8; n++) {
            gets[n] = rig_get(reset.client, KV, n, SHM_SLOT_NONE, 5000 * MS);
            exists[n] = rig_op(reset.client, SHM_OP_EXISTS, KV, 8 + n, 5000 * MS);
            puts[n] = rig_put(reset.client, KV, 20 + n, 1000, 0, 5000 * MS);
            flash[n] = rig_put(reset.client, KV, 40 + n, 1000, SHM_FLAG_ON_FLASH, 5000 * MS);
            removes[n] = rig_op(reset.client, SHM_OP_REMOVE, KV, 60 + n, 5000 * MS);
        }
        rig_run(reset.rig, 10 * MS);
        reset_next(&reset, KV);
        reset_targets(&reset, KV, false);
        reset_apply(&reset);
        release(reset.rig);
        for (uint32_t n = 0; n < 8; n++) {
            assert_miss(rig_wait(reset.client, gets[n]), ICMS_MISS_NO_VOLUME);
            assert_miss(rig_wait(reset.client, exists[n]), ICMS_MISS_NO_VOLUME);
            assert_int_equal(rig_wait(reset.client, puts[n])->status, ICMS_OK); /* before it */
            assert_int_equal(rig_wait(reset.client, flash[n])->status, ICMS_NO_VOLUME);
            assert_int_equal(rig_wait(reset.client, removes[n])->status, ICMS_NO_VOLUME);
        }
        rig_identify(reset.client);
        for (uint32_t n = 0; n < 70; n++) {
            assert_false(in_arena(&reset, KV, n));
            assert_miss(get(&reset, KV, n), ICMS_MISS_ABSENT);
        }
        /* Accepted puts that are lost are told, once. */
        assert_int_equal(rig_wait(reset.client, rig_submit(reset.client, &flush))->status, ICMS_IO);
        assert_int_equal(rig_wait(reset.client, rig_submit(reset.client, &flush))->status, ICMS_OK);
        assert_int_equal(rig_stats(reset.rig)->backlog_bytes, 0);
        assert_int_equal(rig_stats(reset.rig)->in_flight, 0);
        reset_end(&reset);
    }
}

/* Keys of one request, some of which were asked for before the reset. */
static void test_a_match_in_flight_finds_nothing(void **state)
{
    for (size_t w = 0; w < WAYS; w++) {
        struct shm_submit entry = {.op = SHM_OP_EXISTS_MANY, .volume = KV, .bytes = KEYS};
        struct reset reset;
        struct shm_key *keys;
        uint8_t *reasons;
        uint64_t tag;

        reset_begin(&reset, &ways[w]);
        keys = (void *)reset.client->ring.staging;
        reasons = reset.client->ring.staging + KEYS * sizeof(*keys);
        memset(reasons, 0xff, KEYS);
        for (uint32_t n = 0; n < KEYS; n++) {
            struct key key;

            rig_flash(reset.rig, rig_owner(reset.rig, KV, n), KV, n, 1000);
            rig_key(n, &key);
            keys[n] = (struct shm_key){.length = key.length};
            memcpy(keys[n].bytes, key.bytes, key.length);
        }
        hold(reset.rig, true);
        tag = rig_submit(reset.client, &entry);
        rig_run(reset.rig, 10 * MS);
        reset_next(&reset, KV);
        reset_targets(&reset, KV, false);
        reset_apply(&reset);
        release(reset.rig);
        assert_non_null(rig_wait(reset.client, tag));
        for (uint32_t n = 0; n < KEYS; n++)
            assert_int_equal(reasons[n], ICMS_MISS_NO_VOLUME);
        reset_end(&reset);
    }
}

/* The agent has the map before the enclosures have the namespace. */
static void test_a_namespace_that_comes_later_heals(void **state)
{
    struct reset reset;
    uint32_t connects;

    reset_begin(&reset, &(const struct rig_opts){.enclosures = 1, .epoch = 1});
    put(&reset, KV, 1, 1000, 0);
    connects = reset.rig->fake[0]->connects;
    reset_next(&reset, KV);
    reset_apply(&reset);
    rig_run(reset.rig, 100 * MS);
    rig_identify(reset.client);
    assert_int_equal(get(&reset, KV, 1)->status, ICMS_NO_VOLUME); /* none has it: an error */
    assert_int_equal(rig_stats(reset.rig)->enclosures[0].missing >> KV & 1, 1);
    reset_targets(&reset, KV, true);
    rig_run(reset.rig, 100 * MS);
    assert_miss(get(&reset, KV, 1), ICMS_MISS_ABSENT);
    assert_int_equal(rig_stats(reset.rig)->enclosures[0].missing >> KV & 1, 0);
    put(&reset, KV, 1, 2000, SHM_FLAG_ON_FLASH);
    assert_int_equal(reset.rig->fake[0]->connects, connects);
    reset_end(&reset);
}

/* A volume that leaves the map, one that others stay beside, and that comes back. */
static void test_a_volume_leaves_and_comes_back(void **state)
{
    struct reset reset;
    struct uuid uuid;

    reset_begin(&reset, &(const struct rig_opts){.enclosures = 2, .epoch = 1});
    put(&reset, KV, 1, 1000, SHM_FLAG_ON_FLASH);
    put(&reset, RAW, 1, 1000, SHM_FLAG_ON_FLASH);
    uuid = reset.identities[KV].uuid;
    reset.identities[KV].uuid = (struct uuid){{0}};
    reset_apply(&reset);
    rig_run(reset.rig, 20 * MS);
    rig_identify(reset.client);
    assert_miss(get(&reset, KV, 1), ICMS_MISS_NO_VOLUME);
    assert_int_equal(
        rig_wait(reset.client, rig_put(reset.client, KV, 1, 1000, 0, 1000 * MS))->status,
        ICMS_NO_VOLUME);
    assert_true(rig_load(reset.client, RAW, 1, 1000)); /* from memory, as before */
    reset.identities[KV].uuid = uuid;                  /* what enclosures kept is there again */
    reset_apply(&reset);
    rig_run(reset.rig, 20 * MS);
    rig_identify(reset.client);
    assert_false(rig_load(reset.client, KV, 1, 1000)); /* from an enclosure */
    reset_end(&reset);
}

static void test_what_cannot_be_is_refused(void **state)
{
    struct err_why why = {""};
    struct reset reset;

    reset_begin(&reset, &(const struct rig_opts){.enclosures = 1, .epoch = 1});
    reset_next(&reset, KV);
    assert_int_equal(rig_pod(reset.rig, 1, reset.rig->enclosures, 1, &why), ICMS_INVALID);
    assert_non_null(strstr(why.text, "other volumes"));
    reset.identities[KV].uuid = reset.identities[RAW].uuid;
    assert_int_equal(rig_pod(reset.rig, 2, reset.rig->enclosures, 1, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "same UUID"));
    put(&reset, KV, 1, 1000, 0); /* nothing has changed */
    reset_end(&reset);
}

/* Puts and gets of few keys while generations change. The size of a value says its generation. */
static void test_no_old_value_under_load(void **state)
{
    for (uint64_t seed = 1; seed <= 12; seed++) {
        const struct rig_opts opts = {.seed = seed,
                                      .enclosures = 3,
                                      .loops = 1 + (uint32_t)(seed % 3),
                                      .many = seed % 2 == 0,
                                      .slots = 16,
                                      .epoch = 1};
        uint64_t random = seed * 0x9e3779b97f4a7c15u, asked[RIG_ANSWERS] = {0};
        uint32_t generation = 0, hits = 0;
        struct reset reset;

        reset_begin(&reset, &opts);
        for (uint32_t step = 0; step < 3000; step++) {
            uint32_t n, what;

            random = hash64_mix(random + step);
            n = (uint32_t)(random % 48);
            what = (uint32_t)(random >> 32) % 400;
            if (what == 0 && generation < 12) {
                reset_volume(&reset, RAW);
                generation++;
            } else if (what < 150) {
                (void)rig_put(reset.client, RAW, n, 1000 + 100 * generation,
                              what % 3 == 0 ? SHM_FLAG_ON_FLASH : 0, 1000 * MS);
            } else {
                uint64_t tag = rig_get(reset.client, RAW, n, SHM_SLOT_NONE, 1000 * MS);

                asked[tag] = generation + 1;
            }
            rig_run(reset.rig, random >> 20 & MS / 8);
            rig_take(reset.client);
        }
        rig_run(reset.rig, 2000 * MS);
        rig_take(reset.client);
        for (uint64_t tag = 1; tag < reset.client->next_tag; tag++) {
            const struct shm_complete *answer = &reset.client->answers[tag];

            if (asked[tag] == 0 || answer->status != ICMS_OK)
                continue;
            hits++;
            assert_in_range(answer->value_bytes, 1000 + 100 * (asked[tag] - 1),
                            1000 + 100 * generation);
        }
        assert_true(hits > 100);
        assert_int_equal(rig_stats(reset.rig)->in_flight, 0);
        reset_end(&reset);
    }
}

/* Pins of blocks of before are over: none is brought again. */
static void pins_go_with_an_identity(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 32, .epoch = 1, .pin_percent = 50};
    struct shm_submit entry = {.op = SHM_OP_PRESTAGE, .offset = 3u << 20, .bytes = 1};
    const struct agent_prestage_stats *hints;
    struct reset reset;

    reset_begin(&reset, &opts);
    put(&reset, 0, 1, 1000, SHM_FLAG_ON_FLASH);
    rig_put_key(reset.client->ring.staging + entry.offset, 0, 1);
    entry.lease = shm_hint(ICMS_TIER_DRAM, 0, 3600);
    entry.aside = entry.deadline_ns = rig_now_ns(reset.rig) + 1000 * MS;
    assert_int_equal(rig_wait(reset.client, rig_submit(reset.client, &entry))->status, ICMS_OK);
    assert_int_equal(rig_stats(reset.rig)->volumes[0].prestage.pins, 1);
    reset_volume(&reset, 0);
    rig_run(reset.rig, 500 * MS);
    hints = &rig_stats(reset.rig)->volumes[0].prestage;
    assert_int_equal(hints->pins, 0);
    assert_int_equal(hints->pinned_bytes, 0);
    assert_int_equal(hints->ended[AGENT_HINT_FAILED], 1);
    assert_false(in_arena(&reset, 0, 1));
    reset_end(&reset);
}

/* A pin on the own drive ends, although the drive has a block of its key again. */
static void a_pin_on_the_drive_is_of_one_identity(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .epoch = 1, .own_drive_bytes = (uint64_t)64 << 20, .pin_percent = 50};
    const uint32_t pinned = shm_hint(ICMS_TIER_LOCAL, 0, 3600),
                   hint = shm_hint(ICMS_TIER_LOCAL, 0, 0);
    struct reset reset;

    reset_begin(&reset, &opts);
    put(&reset, KV, 1, 3000, SHM_FLAG_ON_FLASH);
    assert_true(rig_hint(reset.client, 1, 1000 * MS, pinned, 0));
    rig_run(reset.rig, 500 * MS);
    assert_int_equal(rig_hints(reset.rig)->pins, 1);
    reset_volume(&reset, KV);
    put(&reset, KV, 1, 3000, SHM_FLAG_ON_FLASH);
    assert_true(rig_hint(reset.client, 1, 1000 * MS, hint, 0));
    rig_run(reset.rig, 30000 * MS);
    assert_int_equal(rig_stats(reset.rig)->tier.prestaged, 2);
    assert_int_equal(rig_hints(reset.rig)->pins, 0);
    assert_int_equal(rig_hints(reset.rig)->pinned_drive_bytes, 0);
    reset_end(&reset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pin_on_the_drive_is_of_one_identity),
        cmocka_unit_test(pins_go_with_an_identity),
        cmocka_unit_test(test_nothing_of_before_is_found),
        cmocka_unit_test(test_a_lease_outlives_a_reset),
        cmocka_unit_test(test_what_is_in_flight_ends),
        cmocka_unit_test(test_a_match_in_flight_finds_nothing),
        cmocka_unit_test(test_a_namespace_that_comes_later_heals),
        cmocka_unit_test(test_a_volume_leaves_and_comes_back),
        cmocka_unit_test(test_what_cannot_be_is_refused),
        cmocka_unit_test(test_no_old_value_under_load),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
