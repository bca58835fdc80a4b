/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints that blocks will be asked for soon: in order, in time, within limits, behind all loads, and
 * each with one end that is counted.
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

#define MS    RIG_MS
#define KV    0
#define RAW   1
#define BYTES 20000u
#define AT    (3u << 20) /* in staging memory, behind what puts use */

#define USER   1001
#define OTHERS 1003

static const struct rig_opts one = {.enclosures = 1, .slots = 64, .block_bytes = BYTES};

static struct rig_client *client_of(struct agent_rig *rig, uint32_t uid)
{
    const struct agent_user user = {.uid = uid, .gid = uid};
    icms_err err;
    struct rig_client *client = rig_client_as(rig, &user, &err);

    assert_non_null(client);
    return client;
}

/* What is asked of the agent about keys first, first + 1, ... */
struct hints {
    uint32_t first, count;
    uint64_t need_ns; /* from now */
    uint32_t hint;    /* shm_hint() */
    uint8_t flags;
    uint32_t volume;
};

static uint64_t hints_send(struct rig_client *client, const struct hints *hints)
{
    struct shm_submit entry = {.op = SHM_OP_PRESTAGE,
                               .offset = AT,
                               .bytes = hints->count,
                               .lease = hints->hint,
                               .flags = hints->flags,
                               .volume = hints->volume,
                               .aside = rig_now_ns(client->rig) + hints->need_ns,
                               .deadline_ns = rig_now_ns(client->rig) + 2000 * MS};
    uint8_t *memory = client->ring.staging + AT;

    for (uint32_t i = 0; i < hints->count; i++) {
        rig_put_key(memory, i, hints->first + i);
    }
    memset(memory + hints->count * sizeof(struct shm_key), 0xee, hints->count);
    return rig_submit(client, &entry);
}

/* How many of these hints the agent takes; all others are refused with this reason. */
static uint32_t hints_taken(struct rig_client *client, const struct hints *hints,
                            enum icms_miss otherwise)
{
    const struct shm_complete *answer = rig_wait(client, hints_send(client, hints));
    const uint8_t *reasons = client->ring.staging + AT + hints->count * sizeof(struct shm_key);
    uint32_t taken = 0;

    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_OK);
    for (uint32_t i = 0; i < hints->count; i++) {
        if (reasons[i] != ICMS_MISS_NONE)
            assert_int_equal(reasons[i], otherwise);
        taken += reasons[i] == ICMS_MISS_NONE;
    }
    return taken;
}

static void hint(struct rig_client *client, uint32_t n, uint64_t need_ns)
{
    const struct hints hints = {.first = n, .count = 1, .need_ns = need_ns};

    assert_int_equal(hints_taken(client, &hints, ICMS_MISS_NONE), 1);
}

static void a_hint_brings_a_block_before_it_is_asked_for(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    rig_flash(rig, 0, KV, 3, BYTES);
    hint(client, 3, 1000 * MS);
    rig_run(rig, 50 * MS);
    assert_true(rig_in_arena(client, KV, 3));
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_PRESTAGE], 1);
    assert_int_equal(rig_hints(rig)->waiting, 1);
    assert_true(rig_hints(rig)->kept_bytes >= BYTES);
    assert_true(rig_load(client, KV, 3, BYTES));
    assert_int_equal(rig->fake[0]->retrieves, 1);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], 1);
    assert_int_equal(rig_hints(rig)->load_bytes, BYTES);
    assert_int_equal(rig_hints(rig)->unused_bytes, 0);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A client that reads in mapped memory says so with a touch. */
static void a_hit_without_the_agent_counts_as_read(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    rig_flash(rig, 0, KV, 3, BYTES);
    hint(client, 3, 1000 * MS);
    rig_run(rig, 50 * MS);
    (void)rig_op(client, SHM_OP_TOUCH, KV, 3, 0);
    rig_run(rig, 50 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], 1);
    rig_client_free(client);
    rig_free(rig);
}

/* Also when it ends right after that, before the agent has looked at its ring. */
static void a_hit_of_a_client_that_ends_counts_as_read(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    struct shm_submit entry = {.op = SHM_OP_TOUCH, .key_length = 16};
    struct key key;

    rig_flash(rig, 0, KV, 3, BYTES);
    hint(client, 3, 1000 * MS);
    rig_run(rig, 60 * MS);
    rig_key(3, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    assert_true(shm_submit_hint(&client->ring, &entry)); /* without waking the agent */
    rig_client_free(client);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], 1);
    rig_free(rig);
}

static void a_block_that_is_there_is_kept_for_its_hint(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    assert_int_equal(rig_wait(client, rig_put(client, KV, 3, BYTES, 0, 0))->status, ICMS_OK);
    hint(client, 3, 5000 * MS);
    for (uint32_t n = 100; n < 400; n++) {
        rig_flash(rig, 0, KV, n, BYTES);
        assert_false(rig_load(client, KV, n, BYTES));
    }
    assert_true(rig_in_arena(client, KV, 3));
    rig_run(rig, 6100 * MS); /* nobody asked for it: it is like all others again */
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_UNUSED], 1);
    assert_int_equal(rig_hints(rig)->unused_bytes, 0);
    assert_int_equal(rig_hints_left(rig), 0);
    for (uint32_t n = 400; n < 700; n++) {
        rig_flash(rig, 0, KV, n, BYTES);
        assert_false(rig_load(client, KV, n, BYTES));
    }
    assert_false(rig_in_arena(client, KV, 3));
    rig_client_free(client);
    rig_free(rig);
}

/* What was loaded, stays unread and goes is counted as bytes. */
static void a_block_that_nobody_reads_is_unused(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    rig_flash(rig, 0, KV, 3, BYTES);
    hint(client, 3, 1000 * MS);
    rig_run(rig, 1900 * MS);
    assert_int_equal(rig_hints_left(rig), 1);
    rig_run(rig, 200 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_UNUSED], 1);
    assert_int_equal(rig_hints(rig)->unused_bytes, BYTES);
    assert_true(rig_in_arena(client, KV, 3)); /* as any other block */
    rig_client_free(client);
    rig_free(rig);
}

/* Runs until a block is in the arena, with loads in flight all the time. */
static void run_until_there(struct rig_client *client, uint32_t n)
{
    static uint32_t absent = 1000000;

    while (!rig_in_arena(client, KV, n)) {
        (void)rig_get(client, KV, absent++, SHM_SLOT_NONE, 1000 * MS);
        rig_run(client->rig, 5 * MS);
    }
}

/* Beside loads blocks that may have 1.5 MiB, as one lately had, are loaded one at a time. */
static void the_earliest_deadline_goes_first_and_priority_before_that(void **state)
{
    enum { LARGE = 3 << 19 };
    const struct rig_opts opts = {.enclosures = 1, .slots = 24, .value_bytes = LARGE};
    static const uint32_t order[] = {3, 1, 2, 0}; /* 3 has priority */
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    const struct hints first = {
        .first = 3, .count = 1, .need_ns = 9000 * MS, .hint = shm_hint(ICMS_TIER_DRAM, 1, 0)};

    for (uint32_t n = 0; n < 4; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    rig_flash(rig, 0, KV, 4, LARGE);
    rig->fake[0]->delay_ns = 20 * MS;
    (void)rig_get(client, KV, 999, SHM_SLOT_NONE, 1000 * MS);
    hint(client, 4, 9000 * MS); /* is begun before the others come */
    rig_run(rig, MS);
    hint(client, 0, 8000 * MS);
    hint(client, 1, 4000 * MS);
    hint(client, 2, 6000 * MS);
    assert_int_equal(hints_taken(client, &first, ICMS_MISS_NONE), 1);
    run_until_there(client, 4);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t there = 0;

        run_until_there(client, order[i]);
        for (uint32_t n = 0; n < 4; n++)
            there += rig_in_arena(client, KV, n);
        assert_int_equal(there, i + 1);
    }
    rig_client_free(client);
    rig_free(rig);
}

static void hints_that_cannot_be_served_are_refused_or_dropped(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    const struct hints passed = {.first = 0, .count = 500, .need_ns = 0};
    const struct hints absent = {.first = 1000, .count = 500, .need_ns = 1000 * MS};
    const struct hints soon = {.first = 2000, .count = 500, .need_ns = 100 * MS};

    assert_int_equal(hints_taken(client, &passed, ICMS_MISS_DEADLINE), 0);
    assert_int_equal(rig_hints(rig)->passed, 500);
    assert_int_equal(hints_taken(client, &absent, ICMS_MISS_NONE), 500);
    rig_run(rig, 500 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_ABSENT], 500);
    assert_int_equal(rig_hints_left(rig), 0);
    rig->fake[0]->delay_ns = 150 * MS; /* nothing that is asked for now comes in time */
    assert_int_equal(hints_taken(client, &soon, ICMS_MISS_NONE), 500);
    rig_run(rig, 140 * MS);
    assert_int_equal(rig_hints(rig)->queued, 0);
    assert_true(rig_hints(rig)->ended[AGENT_HINT_DROPPED] > 100);
    rig_run(rig, 1000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* One that arrives after its deadline, and one that is asked for while it is under way. */
static void late_blocks_are_counted_with_how_much(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag;

    for (uint32_t n = 1; n <= 4; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    rig->fake[0]->delay_ns = 50 * MS;
    hint(client, 1, 20 * MS);
    rig_run(rig, 100 * MS);
    assert_true(rig_in_arena(client, KV, 1));
    assert_true(rig_load(client, KV, 1, BYTES));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_LATE], 1);
    assert_in_range(rig_hints(rig)->late_ns.sum, 29 * MS, 35 * MS);
    hint(client, 2, 1000 * MS);
    rig_run(rig, 30 * MS);
    tag = rig_get(client, KV, 2, 5, 1000 * MS); /* joins its load */
    assert_true(rig_value_is(client, KV, 2, BYTES, rig_wait(client, tag)));
    assert_int_equal(rig->fake[0]->retrieves, 2);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_LATE], 2);
    assert_in_range(rig_hints(rig)->late_ns.sum, 45 * MS, 60 * MS);
    tag = rig_get(client, KV, 3, 6, 1000 * MS);
    rig_run(rig, 10 * MS);
    hint(client, 3, 1000 * MS); /* joins the load of the get, which came first */
    assert_int_equal(rig_hints(rig)->loading + rig_hints(rig)->queued, 1);
    assert_true(rig_value_is(client, KV, 3, BYTES, rig_wait(client, tag)));
    rig_run(rig, 10 * MS);
    assert_int_equal(rig->fake[0]->retrieves, 3);
    rig_run(rig, 3000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* It was asked for, and a put overtook the load: its turn comes again, and finds the block. */
static void a_hint_that_a_put_overtakes_ends(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    rig_flash(rig, 0, KV, 1, BYTES);
    rig->fake[0]->delay_ns = 20 * MS;
    hint(client, 1, 5000 * MS);
    rig_run(rig, 5 * MS);
    (void)rig_get(client, KV, 1, 5, 1000 * MS);
    rig_run(rig, MS);
    assert_int_equal(rig_wait(client, rig_put(client, KV, 1, BYTES, 0, 1000 * MS))->status,
                     ICMS_OK);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_LATE], 1);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* While a load waits for an operation no hint is begun; a get overtakes the hint of its own key. */
static void a_get_of_a_queued_hint_loads_at_once(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 8, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    const struct hints many = {.first = 0, .count = 8, .need_ns = 2000 * MS};

    for (uint32_t n = 0; n < 8; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    assert_int_equal(hints_taken(client, &many, ICMS_MISS_NONE), 8);
    rig_run(rig, 20 * MS);
    assert_true(rig_hints(rig)->queued > 0); /* half of 8 is kept */
    for (uint32_t n = 8; n-- > 0;) {
        (void)rig_load(client, KV, n, BYTES);
        rig_run(rig, 5 * MS);
    }
    assert_int_equal(rig_hints_left(rig), 0);
    assert_true(rig_hints(rig)->ended[AGENT_HINT_LATE] >= 1);
    assert_true(rig_hints(rig)->ended[AGENT_HINT_IN_TIME] >= 2);
    assert_int_equal(rig->fake[0]->retrieves, 8);
    rig_client_free(client);
    rig_free(rig);
}

/* Whoever hints more than can be read in time holds half of the memory, and no load waits. */
static void blocks_are_kept_within_a_part_of_the_memory(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    const struct hints many = {.first = 0, .count = 64, .need_ns = 3000 * MS};
    uint64_t arena_bytes;

    for (uint32_t n = 0; n < 200; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    assert_int_equal(hints_taken(client, &many, ICMS_MISS_NONE), 64);
    rig_run(rig, 200 * MS);
    arena_bytes = rig_stats(rig)->volumes[KV].arena_bytes;
    assert_true(rig_hints(rig)->kept_bytes <= arena_bytes / AGENT_KEPT_SHARE);
    assert_true(rig_hints(rig)->waiting >= 10);
    for (uint32_t n = 100; n < 200; n++)
        assert_false(rig_load(client, KV, n, BYTES));
    for (uint32_t n = 0; n < 64; n++) { /* in the order of their deadlines: in time, but for few */
        rig_run(rig, 2 * MS);
        (void)rig_load(client, KV, n, BYTES);
    }
    rig_run(rig, 5000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    assert_true(rig_hints(rig)->ended[AGENT_HINT_IN_TIME] >= 30);
    rig_client_free(client);
    rig_free(rig);
}

/* All else is leased: what is kept goes, and the load does not wait. */
static void loads_evict_what_is_kept_when_there_is_nothing_else(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 8, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag;

    for (uint32_t n = 0; n < 20; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    for (uint32_t n = 0; n < 2; n++)
        hint(client, n, 5000 * MS);
    rig_run(rig, 50 * MS);
    assert_int_equal(rig_hints(rig)->waiting, 2);
    for (uint32_t n = 10; n < 18; n++) {
        tag = rig_get(client, KV, n, n, 500 * MS);
        assert_true(rig_value_is(client, KV, n, BYTES, rig_wait(client, tag)));
    }
    rig_run(rig, 10 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_UNUSED], 2);
    assert_int_equal(rig_hints(rig)->unused_bytes, 2 * BYTES);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A flood of hints is bounded, a user that comes later has hints, and loads are served. */
static void a_flood_of_hints_is_refused(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *flood = client_of(rig, USER), *other = client_of(rig, OTHERS);
    uint32_t taken = 0;

    for (uint32_t n = 0; n < 10; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    rig->fake[0]->delay_ns = 2 * MS;
    for (uint32_t first = 100000; first < 130000; first += SHM_HINT_KEYS) {
        const struct hints many = {.first = first, .count = SHM_HINT_KEYS, .need_ns = 60000 * MS};

        taken += hints_taken(flood, &many, ICMS_MISS_SHED);
    }
    assert_in_range(taken, AGENT_HINTS / 2, AGENT_HINTS);
    assert_true(rig_hints(rig)->full > 0);
    for (uint32_t n = 0; n < 10; n++) {
        uint64_t begin_ns = rig_now_ns(rig);

        if (n < 5)
            hint(other, n, 1000 * MS);
        else
            assert_false(rig_load(other, KV, n, BYTES));
        assert_true(rig_now_ns(rig) - begin_ns < 10 * MS);
    }
    rig_run(rig, 200 * MS); /* turns: the other's five are there before the flood is over */
    assert_true(rig_hints(rig)->queued > 1000);
    for (uint32_t n = 0; n < 5; n++)
        assert_true(rig_load(other, KV, n, BYTES));
    rig_run(rig, 70000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(flood);
    rig_client_free(other);
    rig_free(rig);
}

/* A command that is never answered, by an enclosure that answers others, has its block for a time.
 */
static void a_hint_holds_no_load_for_long(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    rig_flash(rig, 0, KV, 1, BYTES);
    rig->fake[0]->hold = true;
    hint(client, 1, 600000 * MS);
    rig_run(rig, 50 * MS);
    rig->fake[0]->hold = false; /* the first command is not answered, others are */
    rig_run(rig, 31000 * MS);
    assert_true(rig_in_arena(client, KV, 1));
    rig_client_free(client);
    rig_free(rig);
}

/* ---- slow paths ----------------------------------------------------------------------------- */

#define LARGE (2u << 20)

/* It takes four seconds, and a load of a get has two. */
static const struct rig_opts slow = {
    .enclosures = 1, .slots = 16, .value_bytes = LARGE, .net_bytes_per_s = LARGE / 4};

static void a_large_block_on_a_slow_path_arrives_once(void **state)
{
    struct agent_rig *rig = rig_new(&slow);
    struct rig_client *client = rig_client_new(rig);

    rig_flash(rig, 0, KV, 1, LARGE);
    hint(client, 1, 15000 * MS);
    rig_run(rig, 10000 * MS);
    assert_true(rig_in_arena(client, KV, 1));
    assert_int_equal(rig->fake[0]->retrieves, 1);
    assert_int_equal(rig_hints(rig)->load_bytes, LARGE);
    assert_true(rig_load(client, KV, 1, LARGE));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], 1);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A get has its own deadline, and what was loaded before it came is not lost. */
static void a_get_that_joins_a_slow_load_has_it_sooner(void **state)
{
    uint64_t took_ns[2];

    for (int hinted = 0; hinted < 2; hinted++) {
        struct agent_rig *rig = rig_new(&slow);
        struct rig_client *client = rig_client_new(rig);
        uint64_t tag, begun_ns;

        rig_flash(rig, 0, KV, 1, LARGE);
        rig_flash(rig, 0, KV, 2, LARGE);
        if (hinted)
            hint(client, 1, 15000 * MS);
        rig_run(rig, 1500 * MS);
        begun_ns = rig_now_ns(rig);
        tag = rig_get(client, KV, 1, 5, 8000 * MS);
        assert_true(rig_value_is(client, KV, 1, LARGE, rig_wait(client, tag)));
        took_ns[hinted] = client->got_ns[tag] - begun_ns;
        assert_int_equal(rig->fake[0]->retrieves, 1);
        hint(client, 2, 600000 * MS);
        rig_run(rig, 500 * MS);
        tag = rig_get(client, KV, 2, 6, 1000 * MS); /* cannot be */
        begun_ns = rig_now_ns(rig);
        assert_int_equal(rig_wait(client, tag)->reason, ICMS_MISS_DEADLINE);
        assert_in_range(client->got_ns[tag] - begun_ns, 900 * MS, 1200 * MS);
        rig_run(rig, 8000 * MS);
        assert_true(rig_in_arena(client, KV, 2)); /* by the same load */
        assert_int_equal(rig->fake[0]->retrieves, 2);
        rig_client_free(client);
        rig_free(rig);
    }
    assert_true(took_ns[1] + 1000 * MS < took_ns[0]);
}

/* By what is known of the path; and not for ever, when the path is another one. */
static void a_burst_that_cannot_arrive_is_dropped_before_it_is_sent(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    struct hints soon = {.first = 1000, .count = 500, .need_ns = 1000 * MS};
    uint64_t retrieves;
    uint32_t n, in_a_row = 0;

    for (n = 1; n < 2000; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    rig->fake[0]->delay_ns = 3000 * MS; /* longer than a load of a hint lasts */
    hint(client, 1, 1500 * MS);
    rig_run(rig, 3000 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_DROPPED], 1);
    retrieves = rig->fake[0]->retrieves;
    assert_int_equal(hints_taken(client, &soon, ICMS_MISS_NONE), 500);
    rig_run(rig, 900 * MS);
    assert_true(rig_hints(rig)->ended[AGENT_HINT_DROPPED] >= 490);
    assert_in_range(rig->fake[0]->retrieves - retrieves, 0, 5);
    rig_run(rig, 5000 * MS);
    /* it is fast again, of which nobody tells but hints */
    rig->fake[0]->delay_ns = 0;
    for (n = 100; n < 130 && in_a_row < 3; n++) {
        hint(client, n, 1000 * MS);
        rig_run(rig, 1000 * MS);
        in_a_row = rig_in_arena(client, KV, n) ? in_a_row + 1 : 0;
    }
    assert_int_equal(in_a_row, 3);
    rig_run(rig, 5000 * MS);
    soon.first = 1;
    soon.count = 20;
    assert_int_equal(hints_taken(client, &soon, ICMS_MISS_NONE), 20);
    rig_run(rig, 500 * MS);
    for (n = 1; n <= 20; n++)
        assert_true(rig_in_arena(client, KV, n));
    rig_run(rig, 5000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Who wants it soon does not take it from who wants it later. */
static void the_latest_of_two_hints_counts(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    rig_flash(rig, 0, KV, 1, BYTES);
    rig->fake[0]->delay_ns = 50 * MS;
    hint(client, 1, 5000 * MS);
    hint(client, 1, 20 * MS);
    rig_run(rig, 1000 * MS);
    assert_true(rig_load(client, KV, 1, BYTES));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], 1);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A user has no second share of the hints with a second volume. */
static void a_flood_of_two_volumes_is_one_flood(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = client_of(rig, USER);
    uint32_t taken = 0;

    rig->fake[0]->delay_ns = 2 * MS;
    for (uint32_t volume = KV; volume <= RAW; volume++)
        for (uint32_t first = 100000; first < 130000; first += SHM_HINT_KEYS) {
            const struct hints many = {
                .first = first, .count = SHM_HINT_KEYS, .need_ns = 60000 * MS, .volume = volume};

            taken += hints_taken(client, &many, ICMS_MISS_SHED);
        }
    assert_in_range(taken, AGENT_HINTS / 2, AGENT_HINTS / 2 + AGENT_HINTS / 16);
    rig_client_free(client);
    rig_free(rig);
}

static void hints_are_joined_and_taken_back(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = client_of(rig, USER), *other = client_of(rig, OTHERS);
    const struct hints forget = {.first = 1, .count = 1, .flags = SHM_FLAG_FORGET};

    rig_flash(rig, 0, KV, 1, BYTES);
    assert_int_equal(hints_taken(client, &forget, ICMS_MISS_ABSENT), 0);
    hint(client, 1, 5000 * MS);
    hint(client, 1, 4000 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_JOINED], 1);
    assert_int_equal(hints_taken(other, &forget, ICMS_MISS_ABSENT), 0); /* not its own */
    assert_int_equal(hints_taken(client, &forget, ICMS_MISS_ABSENT), 1);
    rig_run(rig, 50 * MS);
    assert_int_equal(rig_hints(rig)->waiting, 1);
    hint(other, 1, 9000 * MS); /* two users wait to read it */
    assert_int_equal(rig_hints(rig)->waiting, 2);
    assert_int_equal(hints_taken(client, &forget, ICMS_MISS_ABSENT), 1);
    assert_int_equal(hints_taken(client, &forget, ICMS_MISS_ABSENT), 0);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_CANCELED], 1);
    assert_int_equal(rig_hints(rig)->unused_bytes, BYTES);
    assert_true(rig_load(other, KV, 1, BYTES));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], 1);
    assert_int_equal(rig_hints_left(rig), 0);
    rig->fake[0]->delay_ns = 20 * MS;
    rig_flash(rig, 0, KV, 2, BYTES);
    hint(client, 2, 5000 * MS);
    rig_run(rig, 10 * MS);
    assert_int_equal(rig_hints(rig)->loading, 1);
    assert_int_equal(hints_taken(client,
                                 &(struct hints){.first = 2, .count = 1, .flags = SHM_FLAG_FORGET},
                                 ICMS_MISS_ABSENT),
                     1);
    rig_run(rig, 50 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_CANCELED], 2);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_client_free(other);
    rig_free(rig);
}

/* Fills the part of memory that is kept with keys from 0 on, and returns how many are there. */
static uint32_t kept_fill(struct rig_client *client, uint32_t count, uint64_t need_ns)
{
    const struct hints many = {.first = 0, .count = count, .need_ns = need_ns};
    uint32_t there = 0;

    for (uint32_t n = 0; n < count; n++)
        rig_flash(client->rig, 0, KV, n, BYTES);
    assert_int_equal(hints_taken(client, &many, ICMS_MISS_NONE), count);
    rig_run(client->rig, 50 * MS);
    for (uint32_t n = 0; n < count; n++)
        there += rig_in_arena(client, KV, n);
    assert_true(rig_hints(client->rig)->queued > 0);
    return there;
}

/* What was asked for first does not hold the place of what is needed first. */
static void an_earlier_deadline_takes_the_place_of_a_later_one(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 16, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    const struct hints urgent = {
        .first = 101, .count = 1, .need_ns = 20000 * MS, .hint = shm_hint(ICMS_TIER_DRAM, 1, 0)};
    uint32_t kept = kept_fill(client, 16, 9000 * MS);

    assert_in_range(kept, 4, 12);
    for (uint32_t n = 100; n < 103; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    hint(client, 102, 19000 * MS); /* later than all: waits */
    hint(client, 100, 500 * MS);
    rig_run(rig, 50 * MS);
    assert_true(rig_in_arena(client, KV, 100));
    assert_false(rig_in_arena(client, KV, 102));
    assert_int_equal(hints_taken(client, &urgent, ICMS_MISS_NONE), 1);
    rig_run(rig, 50 * MS);
    assert_true(rig_in_arena(client, KV, 101));
    assert_true(rig_hints(rig)->kept_bytes <=
                rig_stats(rig)->volumes[KV].arena_bytes / AGENT_KEPT_SHARE);
    assert_true(rig_load(client, KV, 100, BYTES));
    assert_true(rig_load(client, KV, 101, BYTES));
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_IN_TIME], 2);
    rig_client_free(client);
    rig_free(rig);
}

/* Also when it was evicted meanwhile: all are in time. */
static void what_gave_its_place_is_loaded_again(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 16, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t kept = kept_fill(client, 16, 9000 * MS), gone = 0;

    for (uint32_t n = 100; n < 100 + kept; n++) {
        rig_flash(rig, 0, KV, n, BYTES);
        hint(client, n, 2000 * MS);
    }
    rig_run(rig, 50 * MS);
    for (uint32_t n = 100; n < 100 + kept; n++)
        assert_true(rig_in_arena(client, KV, n));
    for (uint32_t n = 200; n < 230; n++) { /* memory is needed for others */
        rig_flash(rig, 0, KV, n, BYTES);
        assert_false(rig_load(client, KV, n, BYTES));
    }
    for (uint32_t n = 0; n < 16; n++)
        gone += !rig_in_arena(client, KV, n);
    assert_true(gone == 16);
    assert_true(rig_hints(rig)->unused_bytes >= kept * BYTES);
    for (uint32_t n = 100; n < 100 + kept; n++)
        assert_true(rig_load(client, KV, n, BYTES));
    for (uint32_t n = 0; n < 16; n++) {
        rig_run(rig, 20 * MS);
        (void)rig_load(client, KV, n, BYTES);
    }
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_UNUSED], 0);
    assert_true(rig_hints(rig)->ended[AGENT_HINT_IN_TIME] >= 2 * kept);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Who came first and says that it needs all in ten minutes has its part, and no more, once another
 * user has hints. */
static void a_user_over_its_part_gives_places_to_another(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 32, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *hoarder = client_of(rig, USER), *other = client_of(rig, OTHERS);
    uint32_t kept = kept_fill(hoarder, 32, 1000 * MS), there = 0, still = 0;

    for (uint32_t n = 100; n < 100 + kept; n++) {
        rig_flash(rig, 0, KV, n, BYTES);
        hint(other, n, 600000 * MS); /* even later */
    }
    rig_run(rig, 100 * MS);
    for (uint32_t n = 100; n < 100 + kept; n++)
        there += rig_in_arena(other, KV, n);
    assert_in_range(there, kept / 2 - 1, kept / 2 + 1);
    assert_true(rig_hints(rig)->kept_bytes * AGENT_KEPT_SHARE <=
                rig_stats(rig)->volumes[KV].arena_bytes);
    for (uint32_t n = 0; n < 32; n++)
        still += rig_load(hoarder, KV, n, BYTES);
    assert_true(still >= kept / 2 - 1);
    rig_client_free(hoarder);
    rig_client_free(other);
    rig_free(rig);
}

/* A user ends, and another one has its place: what the first one wanted is not done for it. */
static void hints_of_a_user_who_is_gone_load_nothing(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = client_of(rig, USER);
    const struct agent_user_share *user = rig->agent->clients[client->attached.client].user;
    const struct hints many = {.first = 0, .count = 500, .need_ns = 60000 * MS};
    uint32_t number = atomic_load(&user->number);
    uint64_t loading, queued;

    for (uint32_t n = 0; n < many.count; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    rig->fake[0]->hold = true;
    assert_int_equal(hints_taken(client, &many, ICMS_MISS_NONE), many.count);
    rig_run(rig, 10 * MS);
    rig_client_free(client);
    client = NULL;
    for (uint32_t uid = USER + 1; atomic_load(&user->number) == number; uid++) {
        assert_true(uid < USER + 2 * AGENT_USERS);
        if (client != NULL)
            rig_client_free(client);
        client = client_of(rig, uid);
    }
    loading = rig_hints(rig)->loading;
    queued = rig_hints(rig)->queued;
    assert_true(queued > 100 && loading + queued == many.count);
    rig->fake[0]->hold = false;
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 2000 * MS);
    assert_int_equal(rig_hints(rig)->ended[AGENT_HINT_FAILED], queued);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_PRESTAGE], loading);
    hint(client, 0, 1000 * MS); /* and it has its own */
    assert_true(rig_load(client, KV, 0, BYTES));
    rig_run(rig, 62000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* What a client writes is bounded before it is looked at. */
static void nonsense_is_refused(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t staging_bytes = client->ring.staging_bytes;
    const struct {
        struct shm_submit entry;
        icms_err status;
    } cases[] = {
        {{.bytes = 0}, ICMS_INVALID},
        {{.bytes = SHM_HINT_KEYS + 1}, ICMS_INVALID},
        {{.bytes = UINT32_MAX}, ICMS_INVALID},
        {{.bytes = 1, .offset = staging_bytes - 20}, ICMS_INVALID},
        {{.bytes = 1, .offset = UINT64_MAX}, ICMS_INVALID},
        {{.bytes = 1, .volume = 7}, ICMS_NO_VOLUME},
        {{.bytes = 1, .lease = shm_hint(ICMS_TIER_LOCAL, 0, 0)}, ICMS_UNSUPPORTED},
        {{.bytes = 1, .lease = shm_hint((1u << SHM_HINT_BITS) - 1, 0, 0)}, ICMS_UNSUPPORTED},
        {{.bytes = 1, .lease = ICMS_PRIORITY_MAX + 1}, ICMS_INVALID},
        {{.bytes = 1, .offset = 0, .aside = UINT64_MAX}, ICMS_KEY_SIZE}, /* zeros are no key */
    };

    memset(client->ring.staging, 0, 4096);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shm_submit entry = cases[i].entry;

        entry.op = SHM_OP_PRESTAGE;
        assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, cases[i].status);
    }
    assert_int_equal(rig_hints(rig)->taken, 0);
    hint(client, 1, UINT64_MAX / 2); /* no hint stays for ever */
    rig_run(rig, 50 * MS);
    assert_int_equal(rig_hints_left(rig), 0); /* it is absent */
    rig_client_free(client);
    rig_free(rig);
}

/* An operator's hints, from another thread. */
static void hints_of_the_owner_need_no_client(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .slots = 64, .block_bytes = BYTES, .loops = 3};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    struct key keys[12];
    struct agent_hints hints = {.volume = "kv", .keys = keys, .count = 12, .deadline_ms = 1000};
    struct err_why why = {""};

    for (uint32_t n = 0; n < 12; n++) {
        rig_key(n, &keys[n]);
        rig_flash(rig, 0, KV, n, BYTES);
    }
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
    rig_run(rig, 200 * MS);
    for (uint32_t n = 0; n < 12; n++)
        assert_true(rig_in_arena(client, KV, n));
    for (int i = 0; i < AGENT_MANY; i++)
        assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_BUSY);
    rig_run(rig, 10 * MS);
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
    hints.priority = ICMS_PRIORITY_MAX + 1;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_INVALID);
    hints.priority = 0;
    hints.tier = ICMS_TIER_LOCAL;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_UNSUPPORTED);
    hints.tier = ICMS_TIER_DRAM;
    hints.volume = "no";
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_NO_VOLUME);
    hints.volume = "kv";
    hints.deadline_ms = 0;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_INVALID);
    hints.deadline_ms = 600001;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_INVALID);
    hints.deadline_ms = 1000;
    keys[3].length = 17;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_INVALID);
    hints.count = 0;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
    hints.volume = "no";
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_NO_VOLUME);
    rig_client_free(client);
    rig_free(rig); /* with a batch that was not taken */
}

/* Hints of somebody else are for volumes that he may use; another one is like none. */
static void hints_of_a_user_are_for_his_volumes(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .raw_uid = 7};
    const struct agent_user user = {.uid = 7, .gid = 7}, anybody = {.uid = 8, .gid = 8};
    struct agent_rig *rig = rig_new(&opts);
    struct key key;
    struct agent_hints hints = {.keys = &key, .count = 1, .deadline_ms = 1000};
    struct err_why foreign = {""}, absent = {""};

    rig_key(1, &key);
    hints.volume = "raw";
    assert_int_equal(agent_prestage(rig->agent, &hints, NULL), ICMS_OK);
    hints.user = &user;
    assert_int_equal(agent_prestage(rig->agent, &hints, NULL), ICMS_OK);
    hints.user = &anybody;
    assert_int_equal(agent_prestage(rig->agent, &hints, &foreign), ICMS_NO_VOLUME);
    hints.volume = "abc";
    assert_int_equal(agent_prestage(rig->agent, &hints, &absent), ICMS_NO_VOLUME);
    memcpy(strstr(absent.text, "abc"), "raw", 3);
    assert_string_equal(absent.text, foreign.text);
    hints.volume = "kv";
    assert_int_equal(agent_prestage(rig->agent, &hints, NULL), ICMS_OK);
    rig_free(rig);
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Two users hint, read, put, remove and take back at random, in little memory, while the enclosure
 * is slow and is lost at times: every hint has one end, and memory is given back. */
static void every_hint_has_one_end(void **state)
{
    enum { KEYS = 60, STEPS = 6000 };
    const struct rig_opts opts = {.enclosures = 2, .slots = 12, .block_bytes = BYTES, .loops = 2};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *clients[2] = {client_of(rig, USER), client_of(rig, OTHERS)};
    uint64_t seed = 7;

    for (uint32_t n = 0; n < KEYS; n += 2)
        rig_flash(rig, rig_owner(rig, KV, n), KV, n, BYTES);
    for (int step = 0; step < STEPS; step++) {
        struct rig_client *client = clients[random_next(&seed) % 2];
        uint32_t n = (uint32_t)(random_next(&seed) % KEYS), what = random_next(&seed) % 100;
        struct hints hints = {.first = n,
                              .count = 1 + (uint32_t)(random_next(&seed) % 4),
                              .need_ns = random_next(&seed) % 200 * MS,
                              .hint = (uint32_t)(random_next(&seed) % 4)};

        if (what < 45)
            (void)hints_taken(client, &hints, ICMS_MISS_DEADLINE);
        else if (what < 55) {
            hints.flags = SHM_FLAG_FORGET;
            (void)hints_taken(client, &hints, ICMS_MISS_ABSENT);
        } else if (what < 80) {
            assert_non_null(rig_wait(client, rig_get(client, KV, n, SHM_SLOT_NONE, 50 * MS)));
        } else if (what < 84) {
            assert_non_null(rig_wait(client, rig_put(client, KV, n, BYTES, 0, 500 * MS)));
        } else if (what < 86) {
            assert_non_null(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, 500 * MS)));
        } else if (what < 88) {
            rig->fake[random_next(&seed) % 2]->delay_ns = random_next(&seed) % 4 * 10 * MS;
        } else if (what < 89) {
            rig->fake[random_next(&seed) % 2]->wrong = FAKE_RESET;
        } else {
            rig_run(rig, random_next(&seed) % 20 * MS);
        }
        (void)rig_hints_left(rig);
        if (client->next_tag > RIG_ANSWERS - 16)
            break;
    }
    rig_run(rig, 10000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    for (int i = 0; i < AGENT_HINT_ENDS; i++)
        print_message("  %s %llu\n", agent_hint_end_name((enum agent_hint_end)i),
                      (unsigned long long)rig_hints(rig)->ended[i]);
    rig_client_free(clients[0]);
    rig_client_free(clients[1]);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hint_brings_a_block_before_it_is_asked_for),
        cmocka_unit_test(a_hit_without_the_agent_counts_as_read),
        cmocka_unit_test(a_hit_of_a_client_that_ends_counts_as_read),
        cmocka_unit_test(a_block_that_is_there_is_kept_for_its_hint),
        cmocka_unit_test(a_block_that_nobody_reads_is_unused),
        cmocka_unit_test(the_earliest_deadline_goes_first_and_priority_before_that),
        cmocka_unit_test(hints_that_cannot_be_served_are_refused_or_dropped),
        cmocka_unit_test(late_blocks_are_counted_with_how_much),
        cmocka_unit_test(a_hint_that_a_put_overtakes_ends),
        cmocka_unit_test(a_hint_holds_no_load_for_long),
        cmocka_unit_test(a_large_block_on_a_slow_path_arrives_once),
        cmocka_unit_test(a_get_that_joins_a_slow_load_has_it_sooner),
        cmocka_unit_test(a_burst_that_cannot_arrive_is_dropped_before_it_is_sent),
        cmocka_unit_test(the_latest_of_two_hints_counts),
        cmocka_unit_test(a_flood_of_two_volumes_is_one_flood),
        cmocka_unit_test(a_get_of_a_queued_hint_loads_at_once),
        cmocka_unit_test(blocks_are_kept_within_a_part_of_the_memory),
        cmocka_unit_test(loads_evict_what_is_kept_when_there_is_nothing_else),
        cmocka_unit_test(a_flood_of_hints_is_refused),
        cmocka_unit_test(an_earlier_deadline_takes_the_place_of_a_later_one),
        cmocka_unit_test(what_gave_its_place_is_loaded_again),
        cmocka_unit_test(a_user_over_its_part_gives_places_to_another),
        cmocka_unit_test(hints_are_joined_and_taken_back),
        cmocka_unit_test(hints_of_a_user_who_is_gone_load_nothing),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(hints_of_the_owner_need_no_client),
        cmocka_unit_test(hints_of_a_user_are_for_his_volumes),
        cmocka_unit_test(every_hint_has_one_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
