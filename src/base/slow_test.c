/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which peer is slow: peers with a latency each, asked in turns by a number of clients, as the
 * owner of a verdict does it. No seed may pass over half of the peers, or one that is no worse than
 * the others.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/slow.h"

#define MS       ((uint64_t)1000000)
#define S        (1000 * MS)
#define PEERS    8
#define CLIENTS  4
#define PROBE_NS (500 * MS)

/* Clients that ask one peer after the other, each one command at a time. */
struct world {
    struct slow slow;
    uint64_t in_use, now_ns;
    uint64_t random;
    uint64_t took_ns[PEERS];    /* of an operation                          */
    uint64_t deadline_ns;       /* relative; 0: none                        */
    enum slow_end end;          /* of those that are in time                */
    uint32_t peer[CLIENTS];     /* whom the client asks                     */
    struct slow_op op[CLIENTS]; /* what it waits for                        */
    bool is_late[CLIENTS];      /* 300 ms                                   */
    uint32_t late_of_30;        /* operations of peer 1                     */
    bool looks;                 /* at what is not answered                  */
    uint64_t look_ns[PEERS];    /* when; 0: not soon                        */
    uint64_t probe_ns[PEERS];   /* when the next one of a slow peer is sent */
    uint32_t verdicts, returns; /* of all peers                             */
    uint64_t first_ns;          /* of the first verdict                     */
    uint32_t ops;               /* ended                                    */
};

static uint64_t dice(struct world *world, uint64_t sides)
{
    world->random = hash64_mix(world->random + 1);
    return world->random % sides;
}

static void ask(struct world *world, uint32_t client)
{
    do
        world->peer[client] = (uint32_t)dice(world, world->slow.count);
    while ((world->in_use >> world->peer[client] & 1) == 0);
    world->op[client].sent_ns = world->now_ns;
    world->op[client].bytes = 4096;
    world->is_late[client] =
        world->peer[client] == 1 && world->late_of_30 != 0 && dice(world, 30) < world->late_of_30;
    if (world->looks)
        slow_sent(&world->slow, world->peer[client], &world->op[client]);
}

static void world_init(struct world *world, uint32_t peers, uint64_t seed)
{
    memset(world, 0, sizeof(*world));
    slow_init(&world->slow, peers);
    world->in_use = ((uint64_t)1 << peers) - 1;
    world->looks = true;
    world->random = seed;
    world->now_ns = S;
    for (uint32_t i = 0; i < peers; i++)
        world->took_ns[i] = MS;
    for (uint32_t i = 0; i < CLIENTS; i++)
        ask(world, i);
}

static void out_of_use(struct world *world, uint32_t peer)
{
    world->in_use &= ~((uint64_t)1 << peer);
    world->probe_ns[peer] = world->now_ns + PROBE_NS;
    world->first_ns = world->verdicts++ == 0 ? world->now_ns : world->first_ns;
}

static void client_step(struct world *world, uint32_t client)
{
    uint32_t peer = world->peer[client];
    uint64_t took_ns = world->now_ns - world->op[client].sent_ns;
    uint64_t takes_ns = world->is_late[client] ? 300 * MS : world->took_ns[peer];
    bool missed = world->deadline_ns != 0 && takes_ns > world->deadline_ns;

    if (took_ns < (missed ? world->deadline_ns : takes_ns))
        return;
    world->ops++;
    if (world->looks)
        list_remove(&world->op[client].link);
    if ((world->in_use >> peer & 1) != 0 &&
        slow_ended(&world->slow, peer, world->in_use, missed ? SLOW_MISSED : world->end,
                   &world->op[client], world->now_ns))
        out_of_use(world, peer);
    ask(world, client);
}

static void peer_step(struct world *world, uint32_t peer)
{
    if ((world->in_use >> peer & 1) != 0 ||
        world->now_ns < world->probe_ns[peer] + world->took_ns[peer])
        return;
    if (slow_probed(&world->slow, peer, world->in_use, true, 4096, world->probe_ns[peer],
                    world->now_ns)) {
        world->in_use |= (uint64_t)1 << peer;
        world->returns++;
    }
    world->probe_ns[peer] = world->now_ns + PROBE_NS;
}

static void look_step(struct world *world, uint32_t peer)
{
    uint64_t next_ns;

    if (!world->looks || (world->in_use >> peer & 1) == 0)
        return;
    if (world->look_ns[peer] != 0 && world->now_ns >= world->look_ns[peer]) {
        world->look_ns[peer] = 0;
        if (slow_look(&world->slow, peer, world->in_use, 0, world->now_ns)) {
            out_of_use(world, peer);
            return;
        }
    }
    next_ns = slow_look_ns(&world->slow, peer, world->now_ns);
    if (world->look_ns[peer] == 0)
        world->look_ns[peer] = next_ns;
}

static void world_run(struct world *world, uint64_t ns)
{
    for (uint64_t end_ns = world->now_ns + ns; world->now_ns < end_ns; world->now_ns += MS / 2) {
        for (uint32_t i = 0; i < CLIENTS; i++)
            client_step(world, i);
        for (uint32_t i = 0; i < world->slow.count; i++) {
            peer_step(world, i);
            look_step(world, i);
        }
        assert_true((uint32_t)__builtin_popcountll(world->in_use) * 2 >= world->slow.count);
    }
}

static void one_slow_peer_is_passed_over_and_comes_back(void **state)
{
    struct world world;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        uint64_t began_ns;

        world_init(&world, 3, seed);
        world_run(&world, S);
        assert_int_equal(world.verdicts, 0);
        began_ns = world.now_ns;
        world.took_ns[1] = 300 * MS;
        world_run(&world, 6 * S);
        assert_int_equal(world.verdicts, 1);
        assert_int_equal(world.in_use, 5);
        assert_true(world.first_ns - began_ns < 1500 * MS);
        world_run(&world, 60 * S); /* the probes are as slow */
        assert_int_equal(world.in_use, 5);
        world.took_ns[1] = MS;
        world_run(&world, 2 * S);
        assert_int_equal(world.in_use, 7);
        assert_int_equal(world.returns, 1);
    }
}

static void peers_that_are_slow_together_stay_in_use(void **state)
{
    struct world world;

    for (uint64_t seed = 1; seed <= 20; seed++) {
        world_init(&world, (uint32_t)(2 + seed % 7), seed);
        world_run(&world, S);
        for (uint32_t i = 0; i < world.slow.count; i++)
            world.took_ns[i] = 300 * MS;
        world_run(&world, 30 * S);
        assert_int_equal(world.verdicts, 0);
        world.deadline_ns = 100 * MS; /* nothing comes in time */
        world_run(&world, 30 * S);
        assert_int_equal(world.verdicts, 0);
    }
}

static void deadlines_that_nobody_could_keep_say_nothing(void **state)
{
    struct world world;

    world_init(&world, 3, 1);
    world.took_ns[1] = 4 * MS;
    world.deadline_ns = 3 * MS;
    world_run(&world, 20 * S);
    assert_int_equal(world.verdicts, 0);
    world.took_ns[1] = 300 * MS; /* nor does this one answer within what the others need often */
    world.deadline_ns = 20 * MS;
    world_run(&world, 5 * S);
    assert_int_equal(world.in_use, 5);
}

static void a_peer_that_refuses_is_busy(void **state)
{
    struct world world;

    world_init(&world, 3, 1);
    world.end = SLOW_SHED;
    world.took_ns[1] = 300 * MS;
    world_run(&world, 20 * S);
    assert_int_equal(world.verdicts, 0);
}

/* An operation that nobody looked at before it ended. */
static bool ended(struct slow *slow, uint32_t peer, enum slow_end end, uint64_t sent_ns,
                  uint64_t now_ns)
{
    struct slow_op op = {.sent_ns = sent_ns};

    return slow_ended(slow, peer, 3, end, &op, now_ns);
}

/* Everything that waits for one pause ends late, and together. */
static void one_pause_is_no_verdict(void **state)
{
    struct slow slow;

    slow_init(&slow, 2);
    for (uint64_t i = 0; i < 50; i++) {
        assert_false(ended(&slow, 0, SLOW_ANSWERED, S, 3 * S + i * MS));
        assert_false(ended(&slow, 1, SLOW_ANSWERED, 3 * S + i * MS, 3 * S + i * MS + 1));
    }
    /* it goes on after the pause */
    assert_true(ended(&slow, 0, SLOW_ANSWERED, 3 * S, 3 * S + 400 * MS));
}

/* What is late already counts before it ends, once one has ended late. */
static void what_is_not_answered_counts(void **state)
{
    struct slow_op op[3] = {{.sent_ns = 3 * S}, {.sent_ns = 3 * S}, {.sent_ns = 3 * S + 380 * MS}};
    struct slow slow;

    slow_init(&slow, 2);
    slow_sent(&slow, 0, &op[0]);
    assert_int_equal(slow_look_ns(&slow, 0, 3 * S), 0);
    assert_false(slow_look(&slow, 0, 3, 0, 9 * S)); /* it may be one pause */
    assert_false(ended(&slow, 0, SLOW_ANSWERED, S, 3 * S));
    assert_int_equal(slow_look_ns(&slow, 0, 3 * S), 3 * S + 400 * MS);
    assert_int_equal(slow_look_ns(&slow, 0, 4 * S), 4 * S + 50 * MS);
    slow_sent(&slow, 0, &op[1]);
    assert_false(slow_look(&slow, 0, 3, 0, 3 * S + 400 * MS)); /* is the other one well? */
    assert_false(ended(&slow, 1, SLOW_ANSWERED, 3 * S, 3 * S + MS));
    assert_false(slow_look(&slow, 0, 3, 0, 3 * S + 399 * MS));
    assert_false(slow_look(&slow, 0, 3, 3 * S, 3 * S + 400 * MS)); /* it stood still */
    list_remove(&op[1].link);
    slow_sent(&slow, 0, &op[2]);
    assert_false(slow_look(&slow, 0, 3, 0, 3 * S + 400 * MS)); /* two are late */
    assert_true(slow_look(&slow, 0, 3, 0, 3 * S + 431 * MS));
    assert_int_equal(slow_late_ns(&slow, 0), 2 * S);
    list_remove(&op[0].link);
    list_remove(&op[2].link);
    assert_int_equal(slow_look_ns(&slow, 0, 4 * S), 0);
}

/* Where little is asked for there is little in time to make up for a pause: an hour does. */
static void pauses_far_apart_are_no_streak(void **state)
{
    for (int looks = 0; looks < 2; looks++) {
        struct slow_op op = {.sent_ns = 3600 * S};
        struct slow slow;

        slow_init(&slow, 2);
        for (int i = 0; i < 3; i++)
            assert_false(ended(&slow, 0, SLOW_ANSWERED, S, S + 300 * MS));
        assert_false(ended(&slow, 1, SLOW_ANSWERED, 3600 * S - MS, 3600 * S));
        slow_sent(&slow, 0, &op);
        if (looks == 1)
            assert_false(slow_look(&slow, 0, 3, 0, 3600 * S + 60 * MS));
        list_remove(&op.link);
        for (int i = 0; i < 2; i++)
            assert_false(ended(&slow, 0, SLOW_ANSWERED, 3600 * S, 3600 * S + 60 * MS));
    }
}

/* Half a second for an answer: not waited for twice, where the others are asked meanwhile. */
static void half_a_second_is_seen_within_one(void **state)
{
    for (int looks = 0; looks < 2; looks++) {
        uint32_t soon = 0;

        for (uint64_t seed = 1; seed <= 20; seed++) {
            struct world world;

            world_init(&world, 3, seed);
            world.looks = looks == 1;
            world_run(&world, S);
            world.took_ns[1] = 500 * MS;
            world_run(&world, 3 * S);
            assert_int_equal(world.verdicts, 1);
            assert_true(world.first_ns < 3 * S + 10 * MS);
            soon += world.first_ns < 2 * S + 910 * MS;
        }
        assert_in_range(soon, looks == 1 ? 15 : 0, looks == 1 ? 20 : 0);
    }
}

/* An operation in time makes up for half a late one, one that had too little time for nothing. */
static void two_in_time_make_up_for_one(void **state)
{
    for (int missed = 0; missed < 2; missed++) {
        struct slow slow;

        slow_init(&slow, 2);
        for (uint64_t at = S; at < 3 * S; at += S) {
            assert_false(ended(&slow, 0, SLOW_ANSWERED, at, at + 500 * MS));
            assert_false(ended(&slow, 1, SLOW_ANSWERED, at + 600 * MS, at + 601 * MS));
        }
        assert_false(ended(&slow, 0, missed ? SLOW_MISSED : SLOW_ANSWERED, 3 * S, 3 * S + 4 * MS));
        assert_int_equal(ended(&slow, 0, SLOW_ANSWERED, 4 * S, 5 * S), missed);
    }
}

/* Late for half of what it is asked, or for two of three, is slow. For one of ten is not, but where
 * all clients happen to wait for it twice in a row. */
static void late_for_half_is_slow(void **state)
{
    static const uint32_t late_of_30[] = {3, 15, 20};
    uint32_t seeds[3] = {0};

    for (uint64_t seed = 1; seed <= 20; seed++)
        for (int share = 0; share < 3; share++) {
            struct world world;

            world_init(&world, 3, seed);
            world_run(&world, S);
            world.late_of_30 = late_of_30[share];
            world_run(&world, 4 * S);
            seeds[share] += world.verdicts != 0;
        }
    assert_in_range(seeds[0], 0, 5);
    assert_int_equal(seeds[1], 20);
    assert_int_equal(seeds[2], 20);
}

/* What was well before the streak may be slow, too: nobody is blamed before half were asked. */
static void the_others_have_to_be_well_since(void **state)
{
    struct slow slow;

    slow_init(&slow, 2);
    assert_false(ended(&slow, 1, SLOW_ANSWERED, S, S + MS));
    for (uint64_t i = 0; i < 20; i++)
        assert_false(ended(&slow, 0, SLOW_ANSWERED, (2 + i) * S, (3 + i) * S));
    assert_false(ended(&slow, 1, SLOW_ANSWERED, 30 * S, 30 * S + MS));
    assert_true(ended(&slow, 0, SLOW_ANSWERED, 30 * S, 31 * S));
}

/* The share of peer 0, where half of two peers are well. */
static uint32_t share(struct slow *slow, uint64_t blind_ns, uint64_t now_ns)
{
    return slow_share(slow, 0, 3, blind_ns, now_ns);
}

static void a_share_falls_and_comes_back(void **state)
{
    static const uint32_t percent[] = {100, 60, 20, 20, 20};
    struct slow slow;

    slow_init(&slow, 2);
    assert_int_equal(share(&slow, 0, S), 100);
    for (uint32_t i = 0; i < 5; i++) {
        uint64_t now_ns = S + (i + 1) * 60 * MS;

        assert_false(ended(&slow, 0, SLOW_ANSWERED, now_ns - 55 * MS, now_ns));
        assert_false(ended(&slow, 1, SLOW_ANSWERED, now_ns, now_ns + MS));
        assert_int_equal(share(&slow, 0, now_ns), percent[i]);
    }
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(share(&slow, 0, 2 * S), i < 4 ? 20 + 20 * i : 100);
        assert_false(ended(&slow, 0, SLOW_SHED, 2 * S, 2 * S + MS));
    }
}

static void a_share_is_whole_where_the_others_are_late(void **state)
{
    struct slow slow;

    slow_init(&slow, 2);
    for (int i = 0; i < 3; i++)
        assert_false(ended(&slow, 0, SLOW_MISSED, S, S + 300 * MS));
    assert_int_equal(share(&slow, 0, S + 300 * MS), 100); /* nobody was seen since */
    assert_false(ended(&slow, 1, SLOW_ANSWERED, 2 * S, 2 * S + MS));
    assert_int_equal(share(&slow, 0, 2 * S + MS), 20);
    assert_int_equal(slow_share(&slow, 0, 1, 0, 2 * S + MS), 100); /* the other is not there */
    assert_false(ended(&slow, 1, SLOW_ANSWERED, 2 * S, 7 * S));
    assert_int_equal(share(&slow, 0, 7 * S), 100);
    for (int i = 0; i < 2; i++)
        assert_false(ended(&slow, 1, SLOW_ANSWERED, 8 * S, 8 * S + MS));
    assert_int_equal(share(&slow, 0, 9 * S), 20);
    assert_int_equal(share(&slow, 0, 12 * S), 100); /* forgotten */
}

/* Two that are not answered are as two that were late. */
static void what_waits_lowers_a_share(void **state)
{
    struct slow_op op[20];
    struct slow slow;

    slow_init(&slow, 2);
    for (uint32_t i = 0; i < 20; i++) {
        op[i] = (struct slow_op){.sent_ns = S + i * 10 * MS};
        slow_sent(&slow, 0, &op[i]);
    }
    assert_false(ended(&slow, 1, SLOW_ANSWERED, S - MS, S + 6 * MS));
    assert_int_equal(share(&slow, 0, S + 90 * MS), 100); /* is the other one well? */
    assert_false(ended(&slow, 1, SLOW_ANSWERED, S + 5 * MS, S + 6 * MS));
    assert_int_equal(share(&slow, 0, S + 50 * MS), 100);
    assert_int_equal(share(&slow, 0, S + 59 * MS), 100);
    assert_int_equal(share(&slow, 0, S + 61 * MS), 60);
    assert_int_equal(share(&slow, S, S + 61 * MS), 100); /* it stood still */
    assert_int_equal(share(&slow, 0, 9 * S), 20);
    for (uint32_t i = 0; i < 20; i++)
        list_remove(&op[i].link);
    assert_int_equal(share(&slow, 0, 9 * S), 100);
}

/* What no probe can stand for has no verdict, and so nothing is forgotten with one. */
static void what_is_only_seen_has_no_verdict(void **state)
{
    struct slow_op op = {.sent_ns = S};
    struct slow slow;

    slow_init(&slow, 2);
    for (uint64_t i = 0; i < 20; i++) {
        assert_true(slow_seen(&slow, 0, 3, SLOW_ANSWERED, &op, S + (i + 1) * 300 * MS));
        assert_false(ended(&slow, 1, SLOW_ANSWERED, 9 * S, 9 * S + MS));
    }
    assert_int_equal(share(&slow, 0, 9 * S), 20);
}

static void large_operations_may_take_longer(void **state)
{
    struct slow slow;

    slow_init(&slow, 2);
    assert_int_equal(slow_limit_ns(&slow, 0, 3, 0), SLOW_FLOOR_NS);
    assert_int_equal(slow_limit_ns(&slow, 0, 3, 128 * 1000 * 1000), SLOW_FLOOR_NS + S);
    assert_false(ended(&slow, 1, SLOW_ANSWERED, S, S + 100 * MS));
    assert_int_equal(slow_limit_ns(&slow, 0, 3, 0), 800 * MS);
    assert_int_equal(slow_limit_ns(&slow, 0, 1, 0), SLOW_FLOOR_NS); /* peer 1 is not in use */
}

/* One that is slow again and again waits longer each time. */
static void a_peer_that_comes_and_goes_does_not_flap(void **state)
{
    struct world world;

    world_init(&world, 3, 1);
    for (int i = 0; i < 450; i++) {
        world.took_ns[1] = (world.in_use >> 1 & 1) != 0 ? 300 * MS : MS;
        world_run(&world, 4 * S);
    }
    assert_in_range(world.verdicts, 3, 60);
    assert_int_equal(world.slow.peers[1].hold_ns, SLOW_HOLD_NS_MAX);
    world.took_ns[1] = MS;
    world_run(&world, SLOW_HOLD_NS_MAX + S);
    assert_int_equal(world.in_use, 7);
}

static void random_pods_never_lose_half(void **state)
{
    for (uint64_t seed = 1; seed <= 100; seed++) {
        struct world world;

        world_init(&world, (uint32_t)(1 + seed % PEERS), seed);
        for (int step = 0; step < 10; step++) {
            for (uint32_t i = 0; i < world.slow.count; i++)
                world.took_ns[i] = MS << dice(&world, 10);
            world.deadline_ns = dice(&world, 2) * 500 * MS;
            world.end = dice(&world, 4) == 0 ? SLOW_SHED : SLOW_ANSWERED;
            world_run(&world, 3 * S); /* asserts */
        }
        for (uint32_t i = 0; i < world.slow.count; i++)
            world.took_ns[i] = MS;
        world_run(&world, SLOW_HOLD_NS_MAX + 10 * S);
        assert_int_equal(world.in_use, ((uint64_t)1 << world.slow.count) - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_slow_peer_is_passed_over_and_comes_back),
        cmocka_unit_test(peers_that_are_slow_together_stay_in_use),
        cmocka_unit_test(deadlines_that_nobody_could_keep_say_nothing),
        cmocka_unit_test(a_peer_that_refuses_is_busy),
        cmocka_unit_test(one_pause_is_no_verdict),
        cmocka_unit_test(what_is_not_answered_counts),
        cmocka_unit_test(pauses_far_apart_are_no_streak),
        cmocka_unit_test(half_a_second_is_seen_within_one),
        cmocka_unit_test(two_in_time_make_up_for_one),
        cmocka_unit_test(late_for_half_is_slow),
        cmocka_unit_test(the_others_have_to_be_well_since),
        cmocka_unit_test(a_share_falls_and_comes_back),
        cmocka_unit_test(a_share_is_whole_where_the_others_are_late),
        cmocka_unit_test(what_waits_lowers_a_share),
        cmocka_unit_test(what_is_only_seen_has_no_verdict),
        cmocka_unit_test(large_operations_may_take_longer),
        cmocka_unit_test(a_peer_that_comes_and_goes_does_not_flap),
        cmocka_unit_test(random_pods_never_lose_half),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
