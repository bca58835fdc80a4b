/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it takes to have a prefix, as a match says it: against what it then takes, of memory, the
 * own drive and the pod, and where nothing is known. base/estimate_test.c has the model by itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "icms/icms.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 60000u
#define AT    (3u << 20) /* in staging memory, behind what puts use */

static uint64_t ask_at(struct rig_client *client, uint64_t at, uint32_t first, uint32_t count,
                       uint8_t flags, uint64_t timeout_ns)
{
    struct shm_submit entry = {
        .op = SHM_OP_EXISTS_MANY,
        .flags = flags,
        .volume = KV,
        .offset = at,
        .bytes = count,
        .deadline_ns = rig_now_ns(client->rig) + timeout_ns,
    };
    uint8_t *memory = client->ring.staging + at;

    for (uint32_t i = 0; i < count; i++) {
        if (at + (i + 1) * sizeof(struct shm_key) <= client->ring.staging_bytes)
            rig_put_key(memory, i, first + i);
    }
    return rig_submit(client, &entry);
}

/* Estimates of keys first, first + 1, ... as they stand in staging memory. */
static struct shm_estimate estimates[SHM_MATCH_KEYS];

static void ask_for(struct rig_client *client, uint32_t first, uint32_t count, uint64_t timeout_ns)
{
    const struct shm_complete *answer;

    memset(client->ring.staging + AT + SHM_MATCH_BYTES(count), 0, count * sizeof(estimates[0]));
    answer = rig_wait(client, ask_at(client, AT, first, count, SHM_FLAG_ESTIMATE, timeout_ns));
    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_OK);
    memcpy(estimates, client->ring.staging + AT + SHM_MATCH_BYTES(count),
           count * sizeof(estimates[0]));
}

/* Asks for all of them together; how long until the last one is there. Those that are not there
 * count, too. */
static uint64_t load(struct rig_client *client, uint32_t first, uint32_t count)
{
    uint64_t begin_ns = rig_now_ns(client->rig), tags[64], last_ns = begin_ns;

    assert_true(count <= 64);
    for (uint32_t i = 0; i < count; i++)
        tags[i] = rig_get(client, KV, first + i, SHM_SLOT_NONE, 5000 * MS);
    for (uint32_t i = 0; i < count; i++) {
        assert_non_null(rig_wait(client, tags[i]));
        last_ns = u64_max(last_ns, client->got_ns[tags[i]]);
    }
    return last_ns - begin_ns;
}

static void flash(struct agent_rig *rig, uint32_t first, uint32_t count)
{
    for (uint32_t n = first; n < first + count; n++)
        rig_flash(rig, rig_owner(rig, KV, n), KV, n, BYTES);
}

static void is_within(uint64_t us, uint64_t took_ns, uint64_t percent)
{
    uint64_t took_us = took_ns / 1000;

    if (us * 100 < took_us * (100 - percent) || us * 100 > took_us * (100 + percent))
        fail_msg("expected %llu us, took %llu us", (unsigned long long)us,
                 (unsigned long long)took_us);
}

/* ---- the pod -------------------------------------------------------------------------------- */

/* With one reactor and with several: each says what its own keys take. */
static void a_prefix_takes_what_was_said(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops += 2) {
        const struct rig_opts opts = {.enclosures = 3, .slots = 256, .many = true, .loops = loops};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        uint64_t us = 0;

        flash(rig, 0, 512);
        for (uint32_t i = 0; i < 3; i++)
            rig->fake[i]->delay_ns = (i + 1) * 10 * MS;
        ask_for(client, 0, 64, 1000 * MS);
        for (uint32_t i = 0; i < 64; i++) {
            assert_int_equal(estimates[i].source, ICMS_SOURCE_POD);
            assert_true(estimates[i].us == SHM_ESTIMATE_UNKNOWN);
        }
        for (uint32_t n = 0; n < 256; n += 64)
            load(client, n, 64);
        ask_for(client, 256, 64, 1000 * MS);
        for (uint32_t i = 0; i < 64; i++) {
            assert_in_range(estimates[i].bytes, BYTES, BYTES + LIMIT_TRAILER_BYTES);
            us = u64_max(us, estimates[i].us);
        }
        assert_true(us != SHM_ESTIMATE_UNKNOWN);
        is_within(us, load(client, 256, 64), 30);
        for (uint32_t i = 0; i < 3; i++) {
            const struct agent_estimate_stats *stats = &rig_stats(rig)->enclosures[i].estimate;

            assert_true(stats->bytes_per_s > 0 && stats->errors.total > 0);
        }
        rig_client_free(client);
        rig_free(rig);
    }
}

/* What is in memory takes nothing; a hole ends what is said. */
static void memory_is_there_and_a_hole_is_not(void **state)
{
    const struct rig_opts opts = {.enclosures = 2, .slots = 256, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 30);
    flash(rig, 31, 30);
    rig->fake[0]->delay_ns = rig->fake[1]->delay_ns = 5 * MS;
    load(client, 0, 20);
    ask_for(client, 0, 61, 1000 * MS);
    for (uint32_t i = 0; i < 20; i++) {
        assert_int_equal(estimates[i].source, ICMS_SOURCE_DRAM);
        assert_int_equal(estimates[i].us, 0);
    }
    for (uint32_t i = 20; i < 30; i++) {
        assert_int_equal(estimates[i].source, ICMS_SOURCE_POD);
        assert_in_range(estimates[i].us, 4000, 60000);
    }
    for (uint32_t i = 30; i < 61; i++)
        assert_int_equal(estimates[i].source, ICMS_SOURCE_NONE);
    rig_client_free(client);
    rig_free(rig);
}

/* What is in flight already comes first, and a block that is being loaded is not counted twice. */
static void what_is_in_flight_counts_once(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 256, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t alone_us;

    flash(rig, 0, 512);
    rig->fake[0]->delay_ns = 10 * MS;
    for (uint32_t n = 0; n < 256; n++) /* one at a time: the rate is a block in 10 ms */
        load(client, n, 1);
    ask_for(client, 300, 1, 1000 * MS);
    alone_us = estimates[0].us;
    is_within(alone_us, 10 * MS, 20);
    rig->fake[0]->delay_ns = 100 * MS;
    for (uint32_t n = 300; n < 310; n++)
        (void)rig_get(client, KV, n, SHM_SLOT_NONE, 5000 * MS);
    rig_run(rig, MS);
    rig->fake[0]->delay_ns = 0;
    ask_for(client, 300, 10, 1000 * MS);
    is_within(estimates[9].us, 100 * MS, 20);
    ask_for(client, 400, 1, 1000 * MS);
    is_within(estimates[0].us, 110 * MS, 20);
    rig_run(rig, 300 * MS);
    rig_client_free(client);
    rig_free(rig);
}

/* Hints that an enclosure keeps waiting are no part of what loads take there, whether those come
 * now and then or one after the other; a block that is only being prestaged has yet to come. */
static void hints_that_wait_make_no_load_slow(void **state)
{
    enum { HELD = 16 };
    const struct rig_opts opts = {.enclosures = 1, .slots = 256, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 256);
    rig->fake[0]->hold = true;
    for (uint32_t n = 0; n < HELD; n++)
        (void)rig_prestage(client, n, 60000 * MS);
    rig_run(rig, MS);
    rig->fake[0]->hold = false;
    rig->fake[0]->delay_ns = 2 * MS;
    for (uint32_t n = 100; n < 110; n++) {
        load(client, n, 1);
        rig_run(rig, 1000 * MS);
        ask_for(client, 200, 1, 1000 * MS);
        assert_in_range(estimates[0].us, 1000, 6000);
    }
    ask_for(client, 0, HELD, 1000 * MS);
    assert_true(estimates[HELD - 1].us >= HELD * 1000);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_PRESTAGE], HELD);
    rig->fake[0]->delay_ns = 0;
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    ask_for(client, 200, 1, 1000 * MS);
    assert_in_range(estimates[0].us, 1000, 6000);
    rig_client_free(client);
    rig_free(rig);
}

/* An enclosure that was away may be another one now. */
static void what_was_away_is_not_known(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 256, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 0, 64);
    load(client, 0, 16);
    ask_for(client, 20, 1, 1000 * MS);
    assert_true(estimates[0].us != SHM_ESTIMATE_UNKNOWN);
    rig_on_fake(rig, 0, fake_target_drop);
    rig_run(rig, 5000 * MS);
    ask_for(client, 20, 1, 1000 * MS);
    assert_int_equal(estimates[0].source, ICMS_SOURCE_POD);
    assert_true(estimates[0].us == SHM_ESTIMATE_UNKNOWN);
    rig_client_free(client);
    rig_free(rig);
}

/* With other addresses it may be another one, too, though a link of before stays up. */
static void what_has_other_addresses_is_not_known(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .links = 2, .slots = 256, .many = true, .epoch = 1};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    struct agent_enclosure_opts fewer = rig->enclosures[0];
    struct err_why why = {""};

    flash(rig, 0, 64);
    load(client, 0, 16);
    ask_for(client, 20, 1, 1000 * MS);
    assert_true(estimates[0].us != SHM_ESTIMATE_UNKNOWN);
    fewer.addr_count = 1;
    assert_int_equal(rig_pod(rig, 2, &fewer, 1, &why), ICMS_OK);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].link_count, 1);
    assert_int_equal(rig_stats(rig)->enclosures[0].excluded_count, 0); /* it was never away */
    ask_for(client, 20, 1, 1000 * MS);
    assert_int_equal(estimates[0].source, ICMS_SOURCE_POD);
    assert_true(estimates[0].us == SHM_ESTIMATE_UNKNOWN);
    load(client, 20, 16);
    ask_for(client, 40, 1, 1000 * MS);
    assert_true(estimates[0].us != SHM_ESTIMATE_UNKNOWN);
    rig_client_free(client);
    rig_free(rig);
}

/* Nobody answers by the deadline: nothing is said, in time. Then loads that end at their deadlines
 * say that it takes longer. */
static void a_deadline_says_nothing_of_keys(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 256, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t began_ns;

    flash(rig, 0, 64);
    load(client, 0, 16);
    rig->fake[0]->delay_ns = 700 * MS;
    began_ns = rig_now_ns(rig);
    ask_for(client, 16, 16, 50 * MS);
    assert_true(rig_now_ns(rig) - began_ns < 150 * MS);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(estimates[i].source, ICMS_SOURCE_NONE);
    for (uint32_t n = 32; n < 32 + 2 * ESTIMATE_SURPRISES; n++)
        assert_int_equal(rig_wait(client, rig_get(client, KV, n, SHM_SLOT_NONE, 300 * MS))->reason,
                         ICMS_MISS_DEADLINE);
    ask_for(client, 50, 1, 1000 * MS);
    assert_true(estimates[0].us >= 250000 && estimates[0].us != SHM_ESTIMATE_UNKNOWN);
    rig_client_free(client);
    rig_free(rig);
}

/* The part of a prefix that an engine loads, which computes a block in so much time: the prompt is
 * there first with that. */
static uint32_t choose(uint32_t count, uint64_t compute_us, uint64_t *out_us)
{
    uint32_t best = 0;

    *out_us = count * compute_us;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t us = estimates[i].us + (count - i - 1) * compute_us;

        assert_true(estimates[i].us != SHM_ESTIMATE_UNKNOWN);
        if (us <= *out_us) {
            *out_us = us;
            best = i + 1;
        }
    }
    return best;
}

/* At 1 MB/s, 10 MB/s and 1 GB/s no prompt is there more than 10 % later than with all of its prefix
 * loaded, or computed, whichever is faster; after one prefix that was loaded to learn that. */
static void no_engine_waits_longer_than_it_would_compute(void **state)
{
    static const struct {
        uint64_t net_bytes_per_s;
        uint64_t compute_us; /* a block: 60 ms at 1 MB/s, 6 ms at 10 MB/s */
        bool loads;          /* what is faster by far                     */
    } paths[] = {
        {1000 * 1000, 10000, false},      {1000 * 1000, 200000, true},
        {10 * 1000 * 1000, 1000, false},  {10 * 1000 * 1000, 10000, true},
        {1000 * 1000 * 1000, 1000, true}, {1000 * 1000 * 1000, 10000, true},
    };
    enum { BLOCKS = 32 };

    for (size_t p = 0; p < sizeof(paths) / sizeof(paths[0]); p++) {
        const struct rig_opts opts = {.enclosures = 1,
                                      .slots = 256,
                                      .many = true,
                                      .net_bytes_per_s = paths[p].net_bytes_per_s};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        uint64_t all_us = BLOCKS * paths[p].compute_us, load_us, took_us, said_us;
        uint32_t part;

        flash(rig, 0, 5 * BLOCKS);
        load(client, 0, BLOCKS);
        load_us = load(client, BLOCKS, BLOCKS) / 1000;
        ask_for(client, 2 * BLOCKS, BLOCKS, 1000 * MS);
        part = choose(BLOCKS, paths[p].compute_us, &said_us);
        took_us = (BLOCKS - part) * paths[p].compute_us;
        if (part > 0)
            took_us += load(client, 2 * BLOCKS, part) / 1000;
        assert_true(took_us * 10 <= u64_min(load_us, all_us) * 11);
        assert_int_equal(part > BLOCKS / 2, paths[p].loads);
        is_within(said_us, took_us * 1000, 30);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* ---- drives of its own ---------------------------------------------------------------------- */

static void a_drive_instead_of_a_pod_is_measured(void **state)
{
    const struct rig_opts opts = {.enclosures = 0, .slots = 16};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t took_ns;
    uint32_t us;

    for (uint32_t n = 0; n < 128; n++)
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 0))->status, ICMS_OK);
    ask_for(client, 0, 8, 1000 * MS);
    assert_int_equal(estimates[0].source, ICMS_SOURCE_LOCAL);
    assert_true(estimates[0].us == SHM_ESTIMATE_UNKNOWN);
    for (uint32_t n = 8; n < 88; n += 8)
        load(client, n, 8);
    ask_for(client, 88, 8, 1000 * MS);
    us = estimates[7].us;
    assert_true(us != SHM_ESTIMATE_UNKNOWN);
    took_ns = load(client, 88, 8);
    is_within(us, took_ns, 50);
    assert_true(rig_stats(rig)->tier.estimate.errors.total >=
                72 / 8); /* by what was asked together */
    rig_client_free(client);
    rig_free(rig);
}

/* What memory evicted is on the own drive, which is known by itself beside the pod. */
static void a_drive_under_the_memory_is_measured(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .slots = 16, .many = true, .own_drive_bytes = (uint64_t)32 << 20};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t pod_us;

    flash(rig, 1, 64);
    rig->fake[0]->delay_ns = 50 * MS;
    for (uint32_t n = 1; n <= 48; n++)
        load(client, n, 1);
    rig_run(rig, 1000 * MS); /* what was evicted is written */
    ask_for(client, 49, 4, 1000 * MS);
    assert_int_equal(estimates[0].source, ICMS_SOURCE_POD);
    pod_us = estimates[0].us;
    is_within(pod_us, 50 * MS, 30);
    ask_for(client, 1, 8, 1000 * MS);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(estimates[i].source, ICMS_SOURCE_LOCAL);
        assert_true(estimates[i].us == SHM_ESTIMATE_UNKNOWN);
        assert_in_range(estimates[i].bytes, BYTES, BYTES + 4096); /* whole pages */
    }
    load(client, 1, 8);
    ask_for(client, 9, 8, 1000 * MS);
    assert_int_equal(estimates[7].source, ICMS_SOURCE_LOCAL);
    assert_true(estimates[7].us < pod_us);
    assert_int_equal(rig_stats(rig)->tier.promoted, 8);
    assert_true(rig_stats(rig)->tier.estimate.bytes_per_s > 0);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- who asks ------------------------------------------------------------------------------- */

static void estimates_stay_in_staging_memory(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t bytes = client->ring.staging_bytes, tag;

    tag = ask_at(client, bytes - SHM_MATCH_BYTES(10), 0, 10, 0, 100 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    tag = ask_at(client, bytes - SHM_MATCH_BYTES(10), 0, 10, SHM_FLAG_ESTIMATE, 100 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_INVALID);
    tag = ask_at(client, bytes - SHM_ESTIMATE_BYTES(10) + 1, 0, 10, SHM_FLAG_ESTIMATE, 100 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_INVALID);
    tag = ask_at(client, bytes - SHM_ESTIMATE_BYTES(10), 0, 10, SHM_FLAG_ESTIMATE, 100 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_takes_what_was_said),
        cmocka_unit_test(memory_is_there_and_a_hole_is_not),
        cmocka_unit_test(what_is_in_flight_counts_once),
        cmocka_unit_test(hints_that_wait_make_no_load_slow),
        cmocka_unit_test(what_was_away_is_not_known),
        cmocka_unit_test(what_has_other_addresses_is_not_known),
        cmocka_unit_test(a_deadline_says_nothing_of_keys),
        cmocka_unit_test(no_engine_waits_longer_than_it_would_compute),
        cmocka_unit_test(a_drive_instead_of_a_pod_is_measured),
        cmocka_unit_test(a_drive_under_the_memory_is_measured),
        cmocka_unit_test(estimates_stay_in_staging_memory),
    };

    return cmocka_run_group_tests_name("agent-estimate", tests, NULL, NULL);
}
