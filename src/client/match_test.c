/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking for many blocks at once: no message for what is in the arena, one for all that is not,
 * and the right status for each block whatever the agent does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"
#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"

#define KEYS 3000 /* more than one entry takes */

struct fixture {
    struct client_rig rig;          /* first                 */
    struct icms_volume *raw;        /* of the rig            */
    struct icms_block blocks[KEYS]; /* keys 0, 1, ...        */
    struct icms_key keys[KEYS];     /* the same              */
};

static int setup_with(void **state, const struct icms_options *options)
{
    struct fixture *f = calloc(1, sizeof(*f));

    check(f != NULL);
    *state = f;
    for (uint64_t i = 0; i < KEYS; i++)
        f->blocks[i].key = f->keys[i] = rig_key(i);
    if (client_rig_open(&f->rig, options) != 0)
        return -1;
    f->raw = f->rig.raw;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, NULL);
}

static int setup_small(void **state)
{
    struct icms_options options;

    icms_options_init(&options);
    options.buffer_bytes = 4096; /* room for 195 keys */
    options.load_deadline_ms = options.store_deadline_ms = RIG_GRACE_MS;
    return setup_with(state, &options);
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    client_rig_close(&f->rig);
    free(f);
    return 0;
}

static void put(struct fixture *f, uint64_t number)
{
    char value[] = "value";
    struct icms_block block = {.key = rig_key(number), .data = value, .bytes = 5};

    assert_int_equal(icms_put(f->raw, &block, 1, NULL), ICMS_OK);
}

/* Every seventh block is there, up to 210: the fake agent's table is small. */
static void put_some(struct fixture *f)
{
    for (uint64_t i = 0; i < 210; i += 7)
        put(f, i);
}

static void assert_statuses(const struct fixture *f, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        bool there = i < 210 && i % 7 == 0;

        assert_int_equal(f->blocks[i].status, there ? ICMS_OK : ICMS_MISS);
        assert_int_equal(f->blocks[i].reason, there ? ICMS_MISS_NONE : ICMS_MISS_EVICTED);
    }
}

static void many_blocks_are_looked_for_with_one_message(void **state)
{
    const size_t counts[] = {2, 3, 64, 1000, SHM_MATCH_KEYS, SHM_MATCH_KEYS + 2, KEYS};
    struct fixture *f = *state;
    size_t matched;

    put_some(f);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        unsigned before = atomic_load(&fake.exists_manys);
        size_t count = counts[i];

        assert_int_equal(icms_exists(f->raw, f->blocks, count, NULL), ICMS_MISS);
        assert_statuses(f, count);
        assert_int_equal(atomic_load(&fake.exists_manys) - before,
                         (count > SHM_MATCH_KEYS ? 2 : 1) * fake_reactors());
    }
    assert_int_equal(atomic_load(&fake.exists), 0);
    put(f, 1);
    put(f, 2);
    assert_int_equal(icms_match(f->raw, f->keys, KEYS, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 3);
    assert_int_equal(icms_match(f->raw, f->keys + 3, KEYS - 3, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 0);
}

static void blocks_in_the_arena_need_no_message(void **state)
{
    struct fixture *f = *state;
    struct icms_block block;
    size_t matched = 0;
    char data[8];

    for (uint64_t i = 0; i < 6; i++) { /* the arena has eight slots */
        put(f, i);
        block = (struct icms_block){.key = rig_key(i), .data = data, .bytes = sizeof(data)};
        assert_int_equal(icms_get(f->raw, &block, 1, NULL), ICMS_OK);
    }
    atomic_store(&fake.mute, true); /* whoever needs it waits for ever */
    assert_int_equal(icms_match(f->raw, f->keys, 6, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 6);
    assert_int_equal(icms_exists(f->raw, f->blocks, 6, NULL), ICMS_OK);
    assert_int_equal(atomic_load(&fake.exists) + atomic_load(&fake.exists_manys), 0);
    atomic_store(&fake.mute, false);
    /* the prefix needs none, the rest one */
    assert_int_equal(icms_match(f->raw, f->keys, 100, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 6);
    assert_int_equal(atomic_load(&fake.exists_manys), fake_reactors());
}

/* One deadline and one prefix, however many requests that takes. */
static void a_match_takes_any_number_of_keys(void **state)
{
    enum { MANY = 3 * ICMS_BATCH_MAX + 17 };
    const size_t holes[] = {MANY, MANY - 1, 2 * ICMS_BATCH_MAX, ICMS_BATCH_MAX, ICMS_BATCH_MAX - 1};
    struct fixture *f = *state;
    struct icms_key *keys = calloc(MANY, sizeof(*keys));
    struct icms_request_options options;
    uint64_t began_ns;
    size_t matched;

    assert_non_null(keys);
    put(f, 0);
    for (size_t i = 0; i < sizeof(holes) / sizeof(holes[0]); i++) {
        for (size_t k = 0; k < MANY; k++)
            keys[k] = rig_key(k == holes[i] ? 1 : 0);
        assert_int_equal(icms_match(f->raw, keys, MANY, NULL, &matched), ICMS_OK);
        assert_int_equal(matched, holes[i]);
    }
    assert_int_equal(icms_match(f->raw, keys, 0, NULL, &matched), ICMS_INVALID);
    assert_int_equal(icms_match(f->raw, NULL, MANY, NULL, &matched), ICMS_INVALID);
    icms_request_options_init(&options);
    options.deadline_ms = 100;
    keys[0] = rig_key(2); /* not in the arena */
    atomic_store(&fake.swallow, true);
    began_ns = client_now_ns();
    assert_int_equal(icms_match(f->raw, keys, MANY, &options, &matched), ICMS_OK);
    assert_int_equal(matched, 0);
    assert_in_range(rig_elapsed_ms(began_ns), 100, RIG_GRACE_MS);
    atomic_store(&fake.swallow, false);
    free(keys);
}

/* ---- estimates ------------------------------------------------------------------------------ */

/* Of a prefix that takes several entries and requests, each block's is behind those before it, and
 * what is not matched is nobody's. */
static void a_prefix_is_estimated_up_to_each_block(void **state)
{
    enum { MANY = ICMS_BATCH_MAX + 100, HOLE = MANY - 1 };
    struct fixture *f = *state;
    struct icms_estimate *estimates = calloc(MANY, sizeof(*estimates));
    struct icms_key *keys = calloc(MANY, sizeof(*keys));
    size_t matched = 0;

    assert_non_null(keys);
    assert_non_null(estimates);
    put(f, 0);
    for (size_t k = 0; k < MANY; k++)
        keys[k] = rig_key(k == HOLE ? 1 : 0);
    assert_int_equal(icms_match_estimate(f->raw, keys, MANY, NULL, estimates, &matched), ICMS_OK);
    assert_int_equal(matched, HOLE);
    for (uint64_t k = 0; k < HOLE; k++) { /* an entry is SHM_MATCH_KEYS, a key a millisecond */
        assert_int_equal(estimates[k].source, ICMS_SOURCE_POD);
        assert_int_equal(estimates[k].bytes, (k + 1) * 1000);
        assert_int_equal(estimates[k].load_us, (k + 1) * 1000);
        assert_int_equal(estimates[k].error_us, (k % SHM_MATCH_KEYS + 1) * 100);
    }
    assert_int_equal(icms_match_estimate(f->raw, keys, MANY, NULL, NULL, &matched), ICMS_INVALID);
    assert_int_equal(icms_match_estimate(f->raw, keys, 0, NULL, estimates, &matched), ICMS_INVALID);
    assert_int_equal(icms_match_estimate(f->raw, keys + HOLE, 1, NULL, estimates, &matched),
                     ICMS_OK);
    assert_int_equal(matched, 0);
    free(keys);
    free(estimates);
}

/* Gets measure what the copies cost, which no agent knows. */
static void copies_count_too(void **state)
{
    struct fixture *f = *state;
    struct icms_estimate estimates[2];
    struct icms_block block;
    char data[8];
    size_t matched;

    put(f, 0);
    block = (struct icms_block){.key = rig_key(0), .data = data, .bytes = sizeof(data)};
    assert_int_equal(icms_get(f->raw, &block, 1, NULL), ICMS_OK);
    assert_int_equal(atomic_load(&f->rig.icms->copy_bytes), 5);
    atomic_store(&f->rig.icms->copy_ns, 5 * 7000); /* 7 us a byte */
    assert_int_equal(icms_match_estimate(f->raw, f->keys, 2, NULL, estimates, &matched), ICMS_OK);
    assert_int_equal(matched, 1);
    assert_int_equal(estimates[0].load_us, 1000 + 7 * 1000);
    /* what is remembered is bounded */
    atomic_store(&f->rig.icms->copy_bytes, CLIENT_COPY_BYTES);
    assert_int_equal(icms_get(f->raw, &block, 1, NULL), ICMS_OK);
    assert_int_equal(atomic_load(&f->rig.icms->copy_bytes), CLIENT_COPY_BYTES / 2 + 5);
}

/* Without memory for an answer, and by an agent that dies, stops or lies, nothing is known, which
 * is no error of a match. */
static void what_nobody_says_is_unknown(void **state)
{
    struct fixture *f = *state;
    struct icms_request_options options;
    struct icms_estimate estimates[8];
    uint64_t began_ns;
    size_t matched = 77;
    void *buffer;

    icms_request_options_init(&options);
    options.deadline_ms = 100;
    for (uint64_t i = 0; i < 8; i++)
        put(f, i);
    assert_int_equal(icms_buffer_take(f->rig.icms, 4000, &buffer), ICMS_OK);
    assert_int_equal(icms_match_estimate(f->raw, f->keys, 8, NULL, estimates, &matched), ICMS_OK);
    assert_int_equal(matched, 8);
    for (int i = 0; i < 8; i++) {
        assert_true(estimates[i].load_us == ICMS_ESTIMATE_UNKNOWN);
        assert_true(estimates[i].error_us == ICMS_ESTIMATE_UNKNOWN);
        assert_int_equal(estimates[i].source, ICMS_SOURCE_NONE);
    }
    icms_buffer_give(f->rig.icms, buffer);
    atomic_store(&fake.lie, true);
    assert_int_equal(icms_match_estimate(f->raw, f->keys, 8, NULL, estimates, &matched), ICMS_OK);
    assert_int_equal(matched, 0);
    atomic_store(&fake.lie, false);
    atomic_store(&fake.swallow, true);
    began_ns = client_now_ns();
    assert_int_equal(icms_match_estimate(f->raw, f->keys, 8, &options, estimates, &matched),
                     ICMS_OK);
    assert_int_equal(matched, 0);
    assert_in_range(rig_elapsed_ms(began_ns), 100, RIG_GRACE_MS);
    fake_socket_stop(&f->rig.socket);
    matched = 77;
    assert_int_equal(icms_match_estimate(f->raw, f->keys, 8, &options, estimates, &matched),
                     ICMS_PEER_DOWN);
    assert_int_equal(matched, 77);
    atomic_store(&fake.swallow, false);
}

/* Whatever numbers an agent writes, the sums are bounded. */
static void numbers_of_an_agent_are_bounded(void **state)
{
    enum { MANY = 3 * SHM_MATCH_KEYS };
    static struct icms_estimate estimates[MANY];
    struct fixture *f = *state;
    uint64_t before_us = 0;

    atomic_store(&f->rig.icms->copy_bytes, 1);
    atomic_store(&f->rig.icms->copy_ns, UINT32_MAX);
    for (int i = 0; i < MANY; i++)
        estimates[i] = (struct icms_estimate){
            .load_us = UINT32_MAX - 1,
            .error_us = (uint64_t)UINT32_MAX * UINT32_MAX / 1000,
            .bytes = UINT32_MAX,
            .source = i % 3 == 0 ? (enum icms_source)ESTIMATE_BEGINS : ICMS_SOURCE_NONE};
    client_estimates_settle(f->rig.icms, estimates, MANY);
    for (int i = 0; i < MANY; i++) {
        assert_true(estimates[i].load_us >= before_us);
        assert_true(estimates[i].load_us != ICMS_ESTIMATE_UNKNOWN);
        assert_int_equal(estimates[i].source, ICMS_SOURCE_NONE);
        before_us = estimates[i].load_us;
    }
    estimates[1].load_us = ICMS_ESTIMATE_UNKNOWN;
    client_estimates_settle(f->rig.icms, estimates, 3);
    assert_true(estimates[0].load_us != ICMS_ESTIMATE_UNKNOWN);
    assert_true(estimates[1].load_us == ICMS_ESTIMATE_UNKNOWN);
    assert_true(estimates[2].load_us == ICMS_ESTIMATE_UNKNOWN);
}

/* Requests that each take a part of the time do not get the whole of it again. */
static void a_long_match_has_one_deadline(void **state)
{
    enum { MANY = 50 * ICMS_BATCH_MAX };
    struct fixture *f = *state;
    struct icms_key *keys = calloc(MANY, sizeof(*keys));
    struct icms_request_options options;
    uint64_t began_ns;
    size_t matched;

    assert_non_null(keys);
    put(f, 0);
    for (size_t k = 0; k < MANY; k++)
        keys[k] = rig_key(0);
    icms_request_options_init(&options);
    options.deadline_ms = 200;
    atomic_store(&fake.delay_us, 60000); /* each of 100 messages: three fit */
    began_ns = client_now_ns();
    assert_int_equal(icms_match(f->raw, keys, MANY, &options, &matched), ICMS_OK);
    assert_true(matched < MANY);
    assert_in_range(rig_elapsed_ms(began_ns), 200, RIG_GRACE_MS);
    atomic_store(&fake.delay_us, 0);
    free(keys);
}

#define LONG_KEYS ((size_t)4 * ICMS_BATCH_MAX)

/* A match of LONG_KEYS in a thread of its own. */
struct long_match {
    struct fixture *f;
    struct icms_key *keys;
    size_t matched;
    icms_err err;
    pthread_t thread;
};

static void *long_match_run(void *arg)
{
    struct long_match *match = arg;

    match->err = icms_match(match->f->raw, match->keys, LONG_KEYS, NULL, &match->matched);
    return NULL;
}

/* Begins one, each of whose messages takes a while, and waits until its first request is over. */
static void long_match_begin(struct long_match *match, struct fixture *f)
{
    *match = (struct long_match){.f = f, .keys = calloc(LONG_KEYS, sizeof(struct icms_key))};
    assert_non_null(match->keys);
    put(f, 0);
    for (size_t k = 0; k < LONG_KEYS; k++)
        match->keys[k] = rig_key(0);
    atomic_store(&fake.delay_us, 30000);
    assert_int_equal(pthread_create(&match->thread, NULL, long_match_run, match), 0);
    while (atomic_load(&fake.exists_manys) <= fake_reactors() * ICMS_BATCH_MAX / SHM_MATCH_KEYS)
        usleep(1000);
}

static void long_match_end(struct long_match *match)
{
    assert_int_equal(pthread_join(match->thread, NULL), 0);
    atomic_store(&fake.delay_us, 0);
    free(match->keys);
}

/* All of its requests are one call, which a close waits for. */
static void close_waits_for_a_long_match(void **state)
{
    struct fixture *f = *state;
    struct long_match match;

    long_match_begin(&match, f);
    icms_close(&f->rig.icms);
    long_match_end(&match);
    assert_int_equal(match.err, ICMS_OK);
    assert_int_equal(match.matched, LONG_KEYS);
}

/* As one that fits one request does. */
static void a_long_match_keeps_its_prefix_when_the_agent_dies(void **state)
{
    struct fixture *f = *state;
    struct long_match match;
    size_t matched = 77;

    long_match_begin(&match, f);
    fake_socket_stop(&f->rig.socket);
    long_match_end(&match);
    assert_int_equal(match.err, ICMS_OK);
    assert_in_range(match.matched, ICMS_BATCH_MAX, LONG_KEYS - 1);
    assert_int_equal(icms_match(f->raw, f->keys, KEYS, NULL, &matched), ICMS_PEER_DOWN);
    assert_int_equal(matched, 77);
}

static void a_key_that_is_none_spoils_only_itself(void **state)
{
    struct fixture *f = *state;
    size_t matched = 0;

    put_some(f);
    f->blocks[10].key.length = 0;
    f->blocks[11].key.length = 17;
    f->blocks[50].key.length = 3; /* with bytes behind it */
    memset(f->blocks[50].key.bytes, 1, 16);
    assert_int_equal(icms_exists(f->raw, f->blocks, 100, NULL), ICMS_MISS);
    assert_int_equal(f->blocks[10].status, ICMS_KEY_SIZE);
    assert_int_equal(f->blocks[11].status, ICMS_KEY_SIZE);
    assert_int_equal(f->blocks[50].status, ICMS_INVALID);
    assert_int_equal(f->blocks[49].status, ICMS_OK);
    assert_int_equal(f->blocks[51].reason, ICMS_MISS_EVICTED);
    assert_int_equal(f->blocks[98].status, ICMS_OK);
    for (uint64_t i = 1; i < 7; i++)
        put(f, i);
    f->keys[5].length = 0;
    assert_int_equal(icms_match(f->raw, f->keys, 100, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 5);
}

static void little_staging_memory_is_enough(void **state)
{
    struct fixture *f = *state;
    void *buffer;

    put_some(f);
    assert_int_equal(icms_exists(f->raw, f->blocks, KEYS, NULL), ICMS_MISS);
    assert_statuses(f, KEYS);
    assert_true(atomic_load(&fake.exists_manys) >= 1);
    /* when it is all taken, a key goes alone */
    atomic_store(&fake.exists, 0);
    assert_int_equal(icms_buffer_take(f->rig.icms, 4000, &buffer), ICMS_OK);
    assert_int_equal(icms_exists(f->raw, f->blocks, 30, NULL), ICMS_MISS);
    assert_statuses(f, 30);
    assert_int_equal(atomic_load(&fake.exists), 30);
    icms_buffer_give(f->rig.icms, buffer);
}

static void an_agent_that_fails_lies_or_stops_is_a_status_for_each(void **state)
{
    struct fixture *f = *state;
    struct icms_request_options options;
    uint64_t began_ns;

    icms_request_options_init(&options);
    options.deadline_ms = 100;
    put_some(f);
    atomic_store(&fake.status, ICMS_NO_VOLUME);
    assert_int_equal(icms_exists(f->raw, f->blocks, 100, NULL), ICMS_MISS);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(f->blocks[i].status, ICMS_NO_VOLUME);
    atomic_store(&fake.status, 0);
    atomic_store(&fake.lie, true);
    assert_int_equal(icms_exists(f->raw, f->blocks, 100, NULL), ICMS_MISS);
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(f->blocks[i].status, ICMS_MISS);
        assert_int_equal(f->blocks[i].reason, ICMS_MISS_ABSENT);
    }
    atomic_store(&fake.lie, false);
    atomic_store(&fake.swallow, true); /* its late answers hit nobody */
    began_ns = client_now_ns();
    assert_int_equal(icms_exists(f->raw, f->blocks, KEYS, &options), ICMS_MISS);
    assert_in_range(rig_elapsed_ms(began_ns), 100, RIG_GRACE_MS);
    for (size_t i = 0; i < KEYS; i++)
        assert_int_equal(f->blocks[i].reason, ICMS_MISS_DEADLINE);
    atomic_store(&fake.swallow, false);
    usleep(50000);
    assert_int_equal(icms_exists(f->raw, f->blocks, KEYS, NULL), ICMS_MISS);
    assert_statuses(f, KEYS);
    atomic_store(&fake.swallow, true);
    fake_socket_stop(&f->rig.socket); /* it dies */
    assert_int_equal(icms_exists(f->raw, f->blocks, 100, NULL), ICMS_PEER_DOWN);
    for (size_t i = 0; i < 100; i++)
        assert_int_equal(f->blocks[i].status, ICMS_PEER_DOWN);
}

static void asynchronous_requests_do_the_same(void **state)
{
    struct fixture *f = *state;
    struct icms_request *request;

    put_some(f);
    assert_int_equal(icms_exists_start(f->raw, f->blocks, KEYS, NULL, &request), ICMS_OK);
    assert_int_equal(icms_request_wait(request, 5000), ICMS_OK);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_statuses(f, KEYS);
    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_exists_start(f->raw, f->blocks, KEYS, NULL, &request), ICMS_OK);
    icms_request_cancel(request);
    assert_int_equal(icms_request_wait(request, 5000), ICMS_OK);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    for (size_t i = 0; i < KEYS; i++)
        assert_int_equal(f->blocks[i].status, ICMS_CANCELED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(many_blocks_are_looked_for_with_one_message),
        TEST(blocks_in_the_arena_need_no_message),
        TEST(a_match_takes_any_number_of_keys),
        TEST(a_prefix_is_estimated_up_to_each_block),
        TEST(copies_count_too),
        cmocka_unit_test_setup_teardown(what_nobody_says_is_unknown, setup_small, teardown),
        TEST(numbers_of_an_agent_are_bounded),
        TEST(a_long_match_has_one_deadline),
        TEST(close_waits_for_a_long_match),
        TEST(a_long_match_keeps_its_prefix_when_the_agent_dies),
        TEST(a_key_that_is_none_spoils_only_itself),
        cmocka_unit_test_setup_teardown(little_staging_memory_is_enough, setup_small, teardown),
        TEST(an_agent_that_fails_lies_or_stops_is_a_status_for_each),
        TEST(asynchronous_requests_do_the_same),
    };

    return cmocka_run_group_tests_name("client-match", tests, NULL, NULL);
}
