/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What loads are expected to take, at servers with a latency, a bandwidth and some noise: batches,
 * windows and single loads, how well that was known, servers that change, and servers that say what
 * makes no sense.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/estimate.h"
#include "base/hash.h"

#define US    ((uint64_t)1000)
#define MS    (1000 * US)
#define S     (1000 * MS)
#define KIB   ((uint64_t)1024)
#define MIB   (1024 * KIB)
#define LOADS 64

/* Answers one load after the other, each latency_ns after it was asked for at the earliest. */
struct server {
    struct estimate estimate;
    uint64_t latency_ns, bytes_per_s;
    uint32_t noise; /* percent, either way, of what each load takes */
    uint64_t random, now_ns;
    uint64_t free_ns; /* when it has sent all that it was asked for */
    struct {
        struct estimate_load load;
        uint64_t bytes, done_ns;
        enum estimate_end end;
        uint64_t error;
        bool in_flight;
    } loads[LOADS];
    uint32_t skip;           /* loads that are not counted yet, while it learns        */
    uint32_t judged, within; /* groups of which something was expected; within 30 %    */
};

static void server_init(struct server *server, uint64_t latency_ns, uint64_t bytes_per_s,
                        uint32_t noise)
{
    memset(server, 0, sizeof(*server));
    server->latency_ns = latency_ns;
    server->bytes_per_s = bytes_per_s;
    server->noise = noise;
    server->now_ns = server->free_ns = S;
}

static uint64_t noisy(struct server *server, uint64_t ns)
{
    server->random = hash64_mix(server->random + 1);
    return ns * (100 - server->noise + server->random % (2 * server->noise + 1)) / 100;
}

static void ask(struct server *server, uint32_t i, uint64_t bytes, enum estimate_end end)
{
    uint64_t begin_ns = server->now_ns + noisy(server, server->latency_ns);

    assert_false(server->loads[i].in_flight);
    if (begin_ns < server->free_ns)
        begin_ns = server->free_ns;
    server->free_ns = begin_ns + noisy(server, bytes * 1000 / (server->bytes_per_s / US / US));
    server->loads[i].bytes = bytes;
    server->loads[i].done_ns = server->free_ns;
    server->loads[i].end = end;
    server->loads[i].in_flight = true;
    estimate_begun(&server->estimate, &server->loads[i].load, bytes, server->now_ns);
}

/* The next load that is over; LOADS: none is in flight. */
static uint32_t next_over(struct server *server)
{
    uint32_t first = LOADS;

    for (uint32_t i = 0; i < LOADS; i++)
        if (server->loads[i].in_flight &&
            (first == LOADS || server->loads[i].done_ns < server->loads[first].done_ns))
            first = i;
    if (first == LOADS)
        return LOADS;
    server->now_ns = server->loads[first].done_ns;
    server->loads[first].in_flight = false;
    server->loads[first].error =
        estimate_ended(&server->estimate, &server->loads[first].load, server->loads[first].end,
                       server->loads[first].bytes, server->now_ns);
    if (server->skip > 0) {
        server->skip--;
    } else if (server->loads[first].error != ESTIMATE_UNKNOWN) {
        server->judged++;
        server->within += server->loads[first].error <= 300;
    }
    return first;
}

/* So many loads, asked for together; what it takes until the last one is there. */
static uint64_t batch(struct server *server, uint32_t count, uint64_t bytes)
{
    uint64_t begin_ns = server->now_ns;

    for (uint32_t i = 0; i < count; i++)
        ask(server, i, bytes, ESTIMATE_CAME);
    while (next_over(server) != LOADS)
        ;
    return server->now_ns - begin_ns;
}

/* So many loads in all, `window` of them at a time. */
static void windowed(struct server *server, uint32_t count, uint32_t window, uint64_t bytes)
{
    uint32_t i;

    for (i = 0; i < window; i++)
        ask(server, i, bytes, ESTIMATE_CAME);
    for (uint32_t left = count - window; (i = next_over(server)) != LOADS;)
        if (left > 0) {
            left--;
            ask(server, i, bytes, ESTIMATE_CAME);
        }
}

static void is_within(uint64_t expected_ns, uint64_t took_ns, uint64_t percent)
{
    if (expected_ns * 100 < took_ns * (100 - percent) ||
        expected_ns * 100 > took_ns * (100 + percent))
        fail_msg("expected %llu us, took %llu us", (unsigned long long)(expected_ns / US),
                 (unsigned long long)(took_ns / US));
}

static void mostly_within(const struct server *server)
{
    if (server->within * 10 < server->judged * 9)
        fail_msg("%u of %u groups are within 30 %%", server->within, server->judged);
}

/* ---- what is expected ----------------------------------------------------------------------- */

static void nothing_is_known_at_first(void **state)
{
    struct server server;
    struct estimate_told told;

    (void)state;
    server_init(&server, MS, 1000 * MS, 0);
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) == ESTIMATE_UNKNOWN);
    assert_int_equal(estimate_error(&server.estimate), 1000);
    assert_false(estimate_tell(&server.estimate, &told));
    ask(&server, 0, MIB, ESTIMATE_CAME);
    assert_true(server.loads[0].load.expected_ns == ESTIMATE_UNKNOWN);
    assert_int_equal(next_over(&server), 0);
    assert_int_equal(server.judged, 0);
    assert_true(estimate_tell(&server.estimate, &told));
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) != ESTIMATE_UNKNOWN);
}

/* One batch teaches what a batch of another length takes. */
static void batches_are_learnt(void **state)
{
    static const uint64_t rates[] = {1000000, 10000000, 1000000000, 25000000000};

    (void)state;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        struct server server;
        uint64_t expected_ns;

        server_init(&server, 2 * MS, rates[i], 10);
        batch(&server, 16, 256 * KIB);
        for (uint32_t round = 0; round < 5; round++)
            for (uint32_t count = 1; count <= LOADS; count *= 4) {
                expected_ns = estimate_ns(&server.estimate, count * 256 * KIB, server.now_ns);
                is_within(expected_ns, batch(&server, count, 256 * KIB), 30);
            }
        assert_int_equal(server.judged, 20);
        mostly_within(&server);
        assert_true(estimate_error(&server.estimate) <= 300);
    }
}

/* Who asks for the next one some time after the last one came, as an engine that first puts that
 * into its place, finds the one before it under way. */
static void what_is_under_way_takes_less(void **state)
{
    struct server server;
    uint32_t next = 0;

    (void)state;
    server_init(&server, 0, (uint64_t)500 * 1000 * 1000, 5);
    batch(&server, 1, MIB);
    ask(&server, 0, MIB, ESTIMATE_CAME);
    ask(&server, 1, MIB, ESTIMATE_CAME);
    server.skip = 20;
    for (int i = 0; i < 200; i++, next = 1 - next) {
        assert_int_equal(next_over(&server), next);
        server.now_ns += 1200 * US; /* of some 2100 that each takes */
        ask(&server, next, MIB, ESTIMATE_CAME);
    }
    assert_true(server.judged > 80);
    assert_true(estimate_error(&server.estimate) <= 60);
    mostly_within(&server);
    server.now_ns += S; /* but not more than one of them */
    assert_true(estimate_ns(&server.estimate, 0, server.now_ns) > 2 * MS);
}

/* What does not come takes no time off what is not asked for yet. */
static void what_is_overdue_makes_nothing_fast(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 0);
    batch(&server, 1, MIB);
    batch(&server, 16, MIB);
    server.bytes_per_s /= 1000;
    for (uint32_t i = 0; i < 16; i++)
        ask(&server, i, MIB, ESTIMATE_CAME);
    server.now_ns += S;
    assert_true(estimate_ns(&server.estimate, 32 * MIB, server.now_ns) > 30 * MS);
    assert_true(estimate_ns(&server.estimate, 0, server.now_ns) == 0);
}

/* A load behind others is expected when those have come, whether latency or bandwidth is short. */
static void windows_are_learnt(void **state)
{
    static const uint32_t windows[] = {1, 2, 8, 32};

    (void)state;
    for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
        for (int latency_is_all = 0; latency_is_all < 2; latency_is_all++) {
            struct server server;

            if (latency_is_all)
                server_init(&server, 2 * MS, (uint64_t)100 * 1000 * 1000 * 1000, 10);
            else
                server_init(&server, 50 * US, (uint64_t)100 * 1000 * 1000, 10);
            server.skip = 200;
            windowed(&server, 600, windows[i], 256 * KIB);
            assert_in_range(server.judged, 400 / (2 * windows[i]), 400);
            mostly_within(&server);
        }
}

/* A server that works at all that it is asked for at once, and so ends all of it together: the
 * first took much longer than was expected of it alone, and that says nothing of what the match
 * said of all of them. A load that is asked for later, while the others are on their way, is not of
 * them. */
static void groups_are_judged_as_a_whole(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 0);
    for (uint32_t round = 0; round < 40; round++) {
        uint64_t begin_ns = server.now_ns, end_ns;
        struct estimate_load later;

        for (uint32_t i = 0; i < 16; i++)
            ask(&server, i, MIB, ESTIMATE_CAME);
        end_ns = server.free_ns;
        for (uint32_t i = 0; i < 16; i++)
            server.loads[i].done_ns = end_ns - (15 - i) * 10 * US;
        assert_int_equal(next_over(&server), 0);
        estimate_begun(&server.estimate, &later, MIB, server.now_ns);
        while (next_over(&server) != LOADS)
            ;
        is_within(server.now_ns - begin_ns, 16 * MIB + MS, 5);
        server.now_ns += MS;
        assert_true(estimate_ended(&server.estimate, &later, ESTIMATE_CAME, MIB, server.now_ns) ==
                    ESTIMATE_UNKNOWN);
        server.free_ns = server.now_ns;
    }
    assert_int_equal(server.judged, 39);
    assert_true(estimate_error(&server.estimate) <= 300);
}

/* A miss in a group leaves nothing to compare with; a deadline says that it took longer. */
static void groups_that_miss_are_left_out(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 0);
    batch(&server, 16, MIB);
    for (uint32_t i = 0; i < 16; i++)
        ask(&server, i, MIB, i == 3 ? ESTIMATE_NOTHING : ESTIMATE_CAME);
    while (next_over(&server) != LOADS)
        ;
    assert_int_equal(server.judged, 0);
    for (uint32_t i = 0; i < 16; i++)
        ask(&server, i, MIB, i == 15 ? ESTIMATE_LATE : ESTIMATE_CAME);
    server.loads[15].done_ns = server.now_ns + 20 * MS;
    while (next_over(&server) != LOADS)
        ;
    assert_int_equal(server.judged, 1);
    for (uint32_t i = 0; i < 16; i++)
        ask(&server, i, MIB, i == 0 ? ESTIMATE_LATE : ESTIMATE_CAME);
    server.loads[0].done_ns = server.now_ns + MS;
    for (uint32_t i = 1; i < 16; i++)
        server.loads[i].done_ns = server.now_ns + 2 * MS;
    while (next_over(&server) != LOADS)
        ;
    assert_int_equal(server.judged, 1);
}

/* Single loads say nothing of how many fit beside each other: the estimate of a batch is too long
 * rather than too short, and the batch itself corrects it. */
static void single_loads_promise_nothing(void **state)
{
    struct server server;
    uint64_t expected_ns, took_ns;

    (void)state;
    server_init(&server, 2 * MS, (uint64_t)10 * 1000 * 1000 * 1000, 0);
    windowed(&server, 20, 1, 64 * KIB);
    expected_ns = estimate_ns(&server.estimate, 32 * 64 * KIB, server.now_ns);
    took_ns = batch(&server, 32, 64 * KIB);
    assert_true(expected_ns >= took_ns);
    batch(&server, 32, 64 * KIB);
    expected_ns = estimate_ns(&server.estimate, 32 * 64 * KIB, server.now_ns);
    is_within(expected_ns, batch(&server, 32, 64 * KIB), 30);
}

/* A server that begins with all that it is asked for: the first of several comes late, and the
 * others right behind it. What one takes alone is another matter, whichever is seen first. */
static void several_together_and_one_alone_are_both_learnt(void **state)
{
    enum { LEARNT = 4 };

    (void)state;
    for (int alone_first = 0; alone_first < 2; alone_first++) {
        struct server server;
        uint64_t expected_ns, took_ns;

        server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 5);
        if (alone_first)
            windowed(&server, 4, 1, 2 * MIB);
        for (int i = 0; i < 12; i++) {
            server.latency_ns = 30 * MS;
            expected_ns = estimate_ns(&server.estimate, 64 * MIB, server.now_ns);
            took_ns = batch(&server, 32, 2 * MIB);
            if (i >= LEARNT)
                is_within(expected_ns, took_ns, 25);
            server.latency_ns = MS;
            server.now_ns += S;
            expected_ns = estimate_ns(&server.estimate, 2 * MIB, server.now_ns);
            took_ns = batch(&server, 1, 2 * MIB);
            if (i >= LEARNT)
                is_within(expected_ns, took_ns, 25);
            server.now_ns += S;
        }
        assert_true(estimate_error(&server.estimate) <= 250);
    }
}

/* A load that is not answered for long makes one busy interval of all others: what passes between
 * two of these is not what they take. */
static void a_load_that_stays_makes_no_others_slow(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, 2 * MS, (uint64_t)10 * 1000 * 1000 * 1000, 0);
    ask(&server, 1, MIB, ESTIMATE_CAME);
    server.loads[1].done_ns = UINT64_MAX;
    for (int i = 0; i < 8; i++) {
        server.now_ns += 5 * S;
        server.free_ns = server.now_ns;
        ask(&server, 0, MIB, ESTIMATE_CAME);
        assert_int_equal(next_over(&server), 0);
        assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) < 10 * MS);
    }
}

/* What is in flight comes first. */
static void queues_count(void **state)
{
    struct server server;
    uint64_t empty_ns, full_ns;

    (void)state;
    server_init(&server, MS, (uint64_t)100 * 1000 * 1000, 0);
    batch(&server, 32, MIB);
    empty_ns = estimate_ns(&server.estimate, MIB, server.now_ns);
    for (uint32_t i = 0; i < 32; i++)
        ask(&server, i, MIB, ESTIMATE_CAME);
    full_ns = estimate_ns(&server.estimate, MIB, server.now_ns);
    is_within(full_ns, empty_ns + 32 * MIB * 10, 5);
    for (uint32_t i = 0; i < 16; i++)
        assert_true(next_over(&server) != LOADS);
    is_within(estimate_ns(&server.estimate, MIB, server.now_ns), 17 * MIB * 10, 5);
}

/* ---- what changes --------------------------------------------------------------------------- */

/* A path that becomes a hundred times slower, and one that is repaired, asked for one block at a
 * time: a few loads tell. */
static void changes_are_noticed_soon(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 5);
    batch(&server, LOADS, MIB);
    batch(&server, LOADS, MIB);
    server.bytes_per_s = 10 * 1000 * 1000;
    windowed(&server, ESTIMATE_SURPRISES, 1, MIB);
    is_within(estimate_ns(&server.estimate, 8 * MIB, server.now_ns), 8 * MIB * 100, 15);
    batch(&server, LOADS, MIB);
    is_within(estimate_ns(&server.estimate, 8 * MIB, server.now_ns), 8 * MIB * 100, 15);
    server.bytes_per_s = 1000 * 1000 * 1000;
    windowed(&server, ESTIMATE_SURPRISES, 1, MIB);
    is_within(estimate_ns(&server.estimate, MIB, server.now_ns), 2 * MS, 30);
    batch(&server, 8, MIB);
    is_within(estimate_ns(&server.estimate, 8 * MIB, server.now_ns), MS + 8 * MIB, 30);
}

/* How far off it was at a server that is gone says nothing of the one that is there, nor does by
 * how much that is another one. */
static void errors_of_before_a_change_are_dropped(void **state)
{
    struct estimate_told told;
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 5);
    for (int i = 0; i < ESTIMATE_ERRORS; i++)
        batch(&server, 8, MIB);
    assert_true(estimate_error(&server.estimate) <= 300);
    server.bytes_per_s = 10 * 1000 * 1000;
    windowed(&server, ESTIMATE_SURPRISES, 1, MIB);
    assert_int_equal(estimate_error(&server.estimate), 1000);
    assert_true(estimate_tell(&server.estimate, &told) && told.error == 1000);
    windowed(&server, 2, 1, MIB);
    assert_true(estimate_error(&server.estimate) <= 300);
    assert_true(estimate_tell(&server.estimate, &told) && told.error <= 300);
}

/* Loads in flight, of which the first comes after two fifths of took_ns and the last at its end, as
 * if the server sent all at once; in reverse: the one that is asked for last comes first. */
static void come_together(struct server *server, uint32_t count, uint64_t took_ns, bool reverse)
{
    uint64_t asked_ns = server->now_ns;

    for (uint32_t i = 0; i < count; i++)
        ask(server, i, 2 * MIB, ESTIMATE_CAME);
    for (uint32_t i = 0; i < count; i++)
        server->loads[reverse ? count - 1 - i : i].done_ns =
            asked_ns + took_ns * 2 / 5 + took_ns * 3 / 5 * i / (count - 1);
    server->free_ns = asked_ns + took_ns;
}

/* Many that the server sends at once: the first of them takes ten times what it takes alone, and
 * nothing has changed. So what one takes alone is not forgotten, and nobody who asks meanwhile is
 * told that the server is slow. */
static void coming_together_is_no_change(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)500 * 1000 * 1000, 0);
    for (uint32_t round = 0; round < 8; round++) {
        uint64_t left = 31;

        batch(&server, 1, 2 * MIB);
        come_together(&server, 31, 31 * 4 * MS, round % 2 == 1);
        while (next_over(&server) != LOADS) {
            uint64_t expected_ns = estimate_ns(&server.estimate, 2 * MIB, server.now_ns);

            assert_true(round == 0 || expected_ns < left * 2 * 4 * MS + 8 * MS);
            left--;
        }
        if (round > 0) {
            is_within(estimate_ns(&server.estimate, 2 * MIB, server.now_ns), 2 * MIB * 2 + MS, 10);
            is_within(estimate_ns(&server.estimate, 64 * MIB, server.now_ns), 32 * 4 * MS, 20);
        }
    }
    assert_true(server.estimate.was_alone && server.estimate.firsts == 8);
    assert_true(estimate_error(&server.estimate) <= 300);
}

/* Of each batch the first comes late. What is forgotten is of whole batches: else the last ones,
 * which come fast, are most of what is remembered. */
static void batches_are_remembered_as_a_whole(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)700 * 1000 * 1000, 0);
    batch(&server, 1, 128 * KIB);
    server.latency_ns = 6 * MS;
    for (uint32_t round = 0; round < 40; round++) {
        uint64_t expected_ns = estimate_ns(&server.estimate, 23 * 128 * KIB, server.now_ns);
        uint64_t took_ns = batch(&server, 23, 128 * KIB);

        if (round > 0)
            is_within(expected_ns, took_ns, 3);
    }
}

/* A window of loads that is never empty: one tells of a slow server as soon as several, whether
 * they come or end at their deadlines. */
static void a_slow_server_that_is_always_busy_is_noticed(void **state)
{
    for (uint32_t window = 1; window <= 8; window *= 2)
        for (uint64_t slower = 5; slower <= 100; slower *= 4)
            for (int is_late = 0; is_late < 2; is_late++) {
                struct server server;
                uint64_t needed = 0, value_ns = 2 * MIB * slower;

                server_init(&server, 0, (uint64_t)500 * 1000 * 1000, 0);
                windowed(&server, 300, window, MIB);
                server.bytes_per_s /= slower;
                for (uint32_t i = 0; i < window; i++)
                    ask(&server, i, MIB, is_late ? ESTIMATE_LATE : ESTIMATE_CAME);
                while (estimate_ns(&server.estimate, MIB, server.now_ns) <
                       (window + 1) * value_ns / 3) {
                    uint32_t i = next_over(&server);

                    assert_true(++needed <= 3 * window + ESTIMATE_SURPRISES);
                    ask(&server, i, MIB, is_late ? ESTIMATE_LATE : ESTIMATE_CAME);
                }
            }
}

/* Loads that join those from which nothing has come yet: the time before counts, too. And values
 * that are smaller than all others say nothing of speed. */
static void a_little_faster_is_not_much_faster(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)100 * 1000 * 1000, 0);
    batch(&server, 1, 2 * MIB);
    batch(&server, 16, 2 * MIB);
    for (uint32_t i = 0; i < 8; i++)
        ask(&server, i, 2 * MIB, ESTIMATE_CAME);
    server.now_ns += 130 * MS;
    ask(&server, 8, 2 * MIB, ESTIMATE_CAME);
    for (uint32_t i = 0; i < 9; i++)
        server.loads[i].done_ns = server.now_ns + 23 * MS + i;
    while (next_over(&server) != LOADS)
        ;
    is_within(estimate_ns(&server.estimate, 20 * MIB, server.now_ns), 20 * MIB * 10, 20);
    for (uint32_t i = 0; i < 8; i++) {
        ask(&server, i, 2 * MIB, ESTIMATE_CAME);
        server.loads[i].bytes = 4096;
        server.loads[i].done_ns = server.now_ns + 30 * MS;
    }
    while (next_over(&server) != LOADS)
        ;
    is_within(estimate_ns(&server.estimate, 20 * MIB, server.now_ns), 20 * MIB * 10, 20);
}

/* A server that sends all at once and changes: one batch tells, whichever way, and of a slow one a
 * part of it. */
static void a_change_is_seen_in_a_batch(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)500 * 1000 * 1000, 0);
    batch(&server, 1, 2 * MIB);
    come_together(&server, 31, 31 * 4 * MS, false);
    while (next_over(&server) != LOADS)
        ;
    come_together(&server, 31, 31 * 40 * MS, false);
    for (int i = 0; i < 4; i++)
        assert_int_equal(next_over(&server), i);
    assert_true(estimate_ns(&server.estimate, 64 * MIB, server.now_ns) > 32 * 20 * MS);
    while (next_over(&server) != LOADS)
        ;
    is_within(estimate_ns(&server.estimate, 62 * MIB, server.now_ns), 31 * 40 * MS, 30);
    come_together(&server, 31, 31 * 4 * MS, false);
    while (next_over(&server) != LOADS)
        ;
    is_within(estimate_ns(&server.estimate, 62 * MIB, server.now_ns), 31 * 4 * MS, 10);
}

/* One load of many that stood still for a while changes nothing. */
static void one_pause_is_no_change(void **state)
{
    struct server server;
    uint64_t before_ns;

    (void)state;
    server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 5);
    windowed(&server, 100, 1, MIB);
    before_ns = estimate_ns(&server.estimate, MIB, server.now_ns);
    server.latency_ns = 200 * MS;
    windowed(&server, 1, 1, MIB);
    server.latency_ns = MS;
    windowed(&server, 40, 1, MIB);
    is_within(estimate_ns(&server.estimate, MIB, server.now_ns), before_ns, 60);
}

static void what_was_away_is_unknown(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 5);
    batch(&server, 32, MIB);
    ask(&server, 0, MIB, ESTIMATE_CAME);
    estimate_forget(&server.estimate);
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) == ESTIMATE_UNKNOWN);
    assert_int_equal(next_over(&server), 0); /* it was in flight, and counts from now on */
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) != ESTIMATE_UNKNOWN);
}

/* ---- what makes no sense -------------------------------------------------------------------- */

/* Loads that end at their deadline say that the server is no faster; misses say nothing. */
static void deadlines_count_and_misses_do_not(void **state)
{
    struct server server;
    uint64_t before_ns;

    (void)state;
    server_init(&server, 100 * MS, 1000 * MS, 0);
    ask(&server, 0, MIB, ESTIMATE_NOTHING);
    assert_int_equal(next_over(&server), 0);
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) == ESTIMATE_UNKNOWN);
    ask(&server, 0, MIB, ESTIMATE_LATE);
    assert_int_equal(next_over(&server), 0);
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) >= 100 * MS);

    batch(&server, 32, MIB);
    before_ns = estimate_ns(&server.estimate, MIB, server.now_ns);
    server.latency_ns = US; /* who asked gave too little time */
    server.bytes_per_s = (uint64_t)100 * 1000 * 1000 * 1000;
    for (uint32_t i = 0; i < 50; i++) {
        ask(&server, 0, MIB, i % 2 == 0 ? ESTIMATE_LATE : ESTIMATE_NOTHING);
        assert_int_equal(next_over(&server), 0);
        assert_true(server.loads[0].error == ESTIMATE_UNKNOWN);
    }
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) == before_ns);
    server.latency_ns = 10 * S; /* nothing comes any more */
    for (uint32_t i = 0; i < ESTIMATE_SURPRISES; i++) {
        ask(&server, 0, MIB, ESTIMATE_LATE);
        assert_int_equal(next_over(&server), 0);
    }
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) >= 10 * S);
}

/* A batch on a path that is very slow: a part of it comes, or nothing, and the rest ends at its
 * deadline. What came says how fast the path is, and not what was asked for. */
static void a_batch_that_is_cut_short_says_how_fast_it_was(void **state)
{
    (void)state;
    for (uint32_t came = 0; came <= 7; came += 7)
        for (int is_known = 0; is_known < 2; is_known++) {
            struct server server;

            server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 5);
            if (is_known)
                batch(&server, 32, MIB);
            server.bytes_per_s = came == 0 ? 1000 * 1000 : 10 * 1000 * 1000;
            for (uint32_t i = 0; i < 32; i++) {
                ask(&server, i, MIB, ESTIMATE_CAME);
                if (i >= came) {
                    server.loads[i].end = ESTIMATE_LATE;
                    server.loads[i].done_ns = server.now_ns + 800 * MS;
                }
            }
            while (next_over(&server) != LOADS)
                ;
            if (came != 0)
                is_within(estimate_ns(&server.estimate, 32 * MIB, server.now_ns), 32 * MIB * 100,
                          25);
            else
                assert_true(estimate_ns(&server.estimate, 32 * MIB, server.now_ns) >= 20 * S);
        }
}

/* Sizes and times that nobody can have: no sum wraps, and no estimate is beyond its bound. */
static void numbers_are_bounded(void **state)
{
    static const uint64_t sizes[] = {0, 1, UINT32_MAX, UINT64_MAX};
    struct estimate_load loads[LOADS];
    struct estimate estimate;
    struct estimate_told told;
    uint64_t now_ns = 1;

    (void)state;
    memset(&estimate, 0, sizeof(estimate));
    for (uint32_t round = 0; round < 100; round++) {
        for (uint32_t i = 0; i < LOADS; i++)
            estimate_begun(&estimate, &loads[i], sizes[(round + i) % 4], now_ns);
        now_ns += round % 3 == 0 ? 0 : round % 3 == 1 ? 1 : UINT64_MAX / 256;
        for (uint32_t i = 0; i < LOADS; i++) {
            uint64_t error = estimate_ended(&estimate, &loads[i], (enum estimate_end)(i % 3),
                                            sizes[(round + i / 4) % 4], now_ns);

            assert_true(error <= ESTIMATE_ERROR_MAX || error == ESTIMATE_UNKNOWN);
        }
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            uint64_t ns = estimate_ns(&estimate, sizes[i], now_ns);

            assert_true(ns <= ESTIMATE_NS_MAX || ns == ESTIMATE_UNKNOWN);
        }
        assert_true(!estimate_tell(&estimate, &told) || told.bytes_per_s <= (uint64_t)1 << 40);
        assert_true(estimate_error(&estimate) <= ESTIMATE_ERROR_MAX);
    }
    assert_int_equal(estimate.in_flight, 0);
    assert_int_equal(estimate.in_flight_bytes, 0);
}

/* A server that sends a byte where a megabyte was expected is slow, and not infinitely fast. */
static void small_values_make_nobody_fast(void **state)
{
    struct server server;

    (void)state;
    server_init(&server, MS, (uint64_t)1000 * 1000 * 1000, 0);
    for (uint32_t i = 0; i < 100; i++) {
        ask(&server, 0, MIB, ESTIMATE_CAME);
        server.loads[0].bytes = 1;
        assert_int_equal(next_over(&server), 0);
    }
    assert_true(estimate_ns(&server.estimate, MIB, server.now_ns) >= 2 * MS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_at_first),
        cmocka_unit_test(batches_are_learnt),
        cmocka_unit_test(what_is_under_way_takes_less),
        cmocka_unit_test(what_is_overdue_makes_nothing_fast),
        cmocka_unit_test(windows_are_learnt),
        cmocka_unit_test(groups_are_judged_as_a_whole),
        cmocka_unit_test(groups_that_miss_are_left_out),
        cmocka_unit_test(single_loads_promise_nothing),
        cmocka_unit_test(several_together_and_one_alone_are_both_learnt),
        cmocka_unit_test(a_load_that_stays_makes_no_others_slow),
        cmocka_unit_test(queues_count),
        cmocka_unit_test(changes_are_noticed_soon),
        cmocka_unit_test(errors_of_before_a_change_are_dropped),
        cmocka_unit_test(coming_together_is_no_change),
        cmocka_unit_test(batches_are_remembered_as_a_whole),
        cmocka_unit_test(a_change_is_seen_in_a_batch),
        cmocka_unit_test(a_slow_server_that_is_always_busy_is_noticed),
        cmocka_unit_test(a_little_faster_is_not_much_faster),
        cmocka_unit_test(one_pause_is_no_change),
        cmocka_unit_test(what_was_away_is_unknown),
        cmocka_unit_test(deadlines_count_and_misses_do_not),
        cmocka_unit_test(a_batch_that_is_cut_short_says_how_fast_it_was),
        cmocka_unit_test(numbers_are_bounded),
        cmocka_unit_test(small_values_make_nobody_fast),
    };

    return cmocka_run_group_tests_name("estimate", tests, NULL, NULL);
}
