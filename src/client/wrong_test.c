/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients of an agent that does wrong, stops or dies, and clients with many threads and children.
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/hash.h"
#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"

#define VALUE_MAX 65536

/* ---- an agent that does wrong --------------------------------------------------------------- */

static void a_damaged_value_is_a_checksum_miss(void **state)
{
    struct client_rig *f = *state;
    struct icms_block block;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    atomic_store(&fake.corrupt, true);
    for (int i = 0; i < 2; i++) { /* by message, then from the arena */
        assert_int_equal(rig_get_one(f->kv, 1, 5000, &block), ICMS_MISS);
        assert_int_equal(block.reason, ICMS_MISS_CHECKSUM);
    }
    assert_int_equal(fake_agent_leases(f->agent), 0);
    /* The agent was told, and loads it again. */
    atomic_store(&fake.corrupt, false);
    while (rig_get_one(f->kv, 1, 5000, &block) != ICMS_OK)
        assert_int_equal(block.reason, ICMS_MISS_CHECKSUM);
    assert_true(atomic_load(&fake.suspects) > 0);
}

static void answers_out_of_the_arena_are_refused(void **state)
{
    struct client_rig *f = *state;
    struct icms_block block;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    atomic_store(&fake.lie, true);
    assert_int_equal(rig_get_one(f->kv, 1, 5000, &block), ICMS_PROTOCOL);
}

/* Each answer comes once more when the next one is due, and its operation is another one's by then.
 */
static void an_answer_that_comes_again_answers_nothing_else(void **state)
{
    struct client_rig *f = *state;
    struct icms_block block;

    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_OK);
    atomic_store(&fake.echo, true);
    for (int i = 0; i < 20; i++) {
        atomic_store(&fake.forget, true); /* each one is a message */
        block = (struct icms_block){.key = rig_key(1)};
        assert_int_equal(icms_exists(f->kv, &block, 1, NULL), ICMS_OK);
        block = (struct icms_block){.key = rig_key(2)};
        assert_int_equal(icms_exists(f->kv, &block, 1, NULL), ICMS_MISS);
        assert_int_equal(rig_get_one(f->kv, 2, 64, NULL), ICMS_MISS);
        assert_int_equal(rig_get_one(f->kv, 1, 64, NULL), ICMS_OK);
        assert_int_equal(rig_get_one(f->kv, 2, 64, NULL), ICMS_MISS);
    }
    assert_int_equal(fake_agent_leases(f->agent), 0);
}

static void a_ring_that_makes_no_sense_ends_the_link(void **state)
{
    struct client_rig *f = *state;

    atomic_store(&fake.bad_tail, true);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_PEER_DOWN);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_PEER_DOWN);
    atomic_store(&fake.bad_tail, false);
}

/* A reader that takes until there is nothing left would read for ever. */
static void answers_without_end_end_the_link(void **state)
{
    struct client_rig *f = *state;
    uint64_t begin = client_now_ns();

    atomic_store(&fake.flood, true);
    while (rig_put_one(f->kv, 1, 5000) == ICMS_OK) { /* it may be serving just now */
    }
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_PEER_DOWN);
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    atomic_store(&fake.flood, false);
}

static void messages_without_end_have_an_end(void **state)
{
    struct client_rig *f = *state;
    uint64_t begin = client_now_ns();
    struct icms *icms = NULL;
    char text[64];
    size_t bytes;

    atomic_store(&fake.babble, true);
    assert_int_equal(icms_status(f->icms, text, sizeof(text), &bytes), ICMS_PEER_DOWN);
    assert_int_equal(icms_open(f->where, NULL, NULL, 0, &icms), ICMS_PEER_DOWN);
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    atomic_store(&fake.babble, false);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
}

static void an_error_that_is_none_breaks_the_protocol(void **state)
{
    struct client_rig *f = *state;

    atomic_store(&fake.status, 9999);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_PROTOCOL);
    atomic_store(&fake.status, 0);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
}

/* The late answers of what was given up take their leases along, as soon as somebody looks at the
 * rings: for keys that no reactor has in memory. */
static void leases_end(struct client_rig *f)
{
    struct icms_block absent[64];
    uint64_t begin = client_now_ns();

    while (fake_agent_leases(f->agent) != 0) {
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        for (uint64_t i = 0; i < 64; i++)
            absent[i] = (struct icms_block){.key = rig_key(1000 + i)};
        assert_int_equal(icms_exists(f->kv, absent, 64, NULL), ICMS_MISS);
    }
}

static void a_stopped_agent_costs_one_deadline_and_comes_back(void **state)
{
    struct client_rig *f = *state;
    struct icms_request_options options;
    uint8_t data[64] = {0};
    struct icms_block blocks[3];
    uint64_t begin;
    size_t matched = 9;

    for (uint64_t i = 0; i < 3; i++) {
        assert_int_equal(rig_put_one(f->kv, i, 64), ICMS_OK);
        blocks[i] = (struct icms_block){.key = rig_key(i), .data = data, .bytes = sizeof(data)};
    }
    icms_request_options_init(&options);
    options.deadline_ms = 150;
    atomic_store(&fake.mute, true);
    usleep(2000);
    begin = client_now_ns();
    assert_int_equal(icms_get(f->kv, blocks, 3, &options), ICMS_MISS);
    assert_in_range(rig_elapsed_ms(begin), 150, RIG_GRACE_MS);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(blocks[i].status, ICMS_MISS);
        assert_int_equal(blocks[i].reason, ICMS_MISS_DEADLINE);
    }
    /* It is known to be silent: the next ones do not wait for a deadline that is far away. */
    options.deadline_ms = 10 * RIG_GRACE_MS;
    begin = client_now_ns();
    assert_int_equal(icms_get(f->kv, blocks, 3, &options), ICMS_MISS);
    assert_int_equal(blocks[2].reason, ICMS_MISS_DEADLINE);
    assert_int_equal(icms_put(f->kv, blocks, 3, &options), ICMS_MISS);
    assert_int_equal(blocks[0].status, ICMS_DEADLINE);
    assert_int_equal(icms_match(f->kv, &blocks[0].key, 1, &options, &matched), ICMS_OK);
    assert_int_equal(matched, 0);
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    atomic_store(&fake.mute, false);
    for (uint64_t i = 0; i < 3; i++)
        assert_int_equal(rig_get_one_soon(f->kv, i, 64), ICMS_OK);
    leases_end(f);
}

/* Its keys are missed by their deadline, and then it is known: nobody waits for it again. */
static void a_stuck_reactor_costs_one_deadline_and_comes_back(void **state)
{
    struct client_rig *f = *state;
    struct icms_request_options options;
    uint8_t data[30][64] = {{0}};
    struct icms_block blocks[30];
    uint64_t begin;

    for (uint64_t i = 0; i < 30; i++) {
        assert_int_equal(rig_put_one(f->kv, i, 64), ICMS_OK);
        blocks[i] =
            (struct icms_block){.key = rig_key(i), .data = data[i], .bytes = sizeof(data[i])};
    }
    icms_request_options_init(&options);
    options.deadline_ms = 300;
    atomic_store(&fake.stuck, fake_reactors()); /* the last one */
    usleep(2000);
    assert_int_equal(icms_get(f->kv, blocks, 30, &options), ICMS_MISS);
    options.deadline_ms = 10 * RIG_GRACE_MS;
    begin = client_now_ns();
    assert_int_equal(icms_get(f->kv, blocks, 30, &options), ICMS_MISS);
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    atomic_store(&fake.stuck, 0);
    for (uint64_t i = 0; i < 30; i++)
        assert_int_equal(rig_get_one_soon(f->kv, i, 64), ICMS_OK);
    leases_end(f);
}

/* Keys from first on that belong to the last reactor, or to another one. */
static void keys_of(uint64_t first, bool last, struct icms_block *blocks, uint32_t count)
{
    for (uint32_t i = 0; i < count; first++) {
        struct icms_key key = rig_key(first);
        struct key wire = client_key(&key);

        if ((shm_reactor(&wire, false, fake_reactors()) == fake_reactors() - 1) == last)
            blocks[i++].key = key;
    }
}

/* An answer of another reactor does not say that the stuck one looks again. */
static void answers_of_others_do_not_hide_a_stuck_reactor(void **state)
{
    struct client_rig *f = *state;
    struct icms_request_options options;
    struct icms_request *early;
    uint8_t data[64] = {0};
    struct icms_block other = {.data = data, .bytes = sizeof(data)};
    struct icms_block stuck = {.data = data, .bytes = sizeof(data)};
    uint64_t begin;

    if (fake_reactors() == 1)
        return; /* there are no others */
    keys_of(1, false, &other, 1);
    keys_of(1, true, &stuck, 1);
    icms_request_options_init(&options);
    options.deadline_ms = 10 * RIG_GRACE_MS;
    atomic_store(&fake.swallow, true); /* it is with the agent, and is answered later */
    assert_int_equal(icms_get_start(f->raw, &other, 1, &options, &early), ICMS_OK);
    usleep(20000);
    atomic_store(&fake.stuck, fake_reactors());
    options.deadline_ms = 300;
    assert_int_equal(icms_get(f->raw, &stuck, 1, &options), ICMS_MISS);
    atomic_store(&fake.swallow, false);
    assert_int_equal(icms_request_end(&early), ICMS_MISS); /* absent */
    options.deadline_ms = 10 * RIG_GRACE_MS;
    begin = client_now_ns();
    assert_int_equal(icms_get(f->raw, &stuck, 1, &options), ICMS_MISS);
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    atomic_store(&fake.stuck, 0);
}

/* Each reactor answers a flush: honest answers are never too many. */
static void many_flushes_have_as_many_answers_as_reactors(void **state)
{
    static struct icms_request *requests[CLIENT_REQUESTS];
    struct client_rig *f = *state;
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.deadline_ms = 10 * RIG_GRACE_MS;
    atomic_store(&fake.mute, true);
    for (int i = 0; i < CLIENT_REQUESTS; i++)
        assert_int_equal(icms_flush_start(f->kv, &options, &requests[i]), ICMS_OK);
    atomic_store(&fake.mute, false);
    while (atomic_load(&fake.flushes) < CLIENT_REQUESTS * fake_reactors())
        usleep(1000);
    usleep(2000);
    for (int i = 0; i < CLIENT_REQUESTS; i++)
        assert_int_equal(icms_request_end(&requests[i]), ICMS_OK);
}

/* That puts were lost is told once, by whichever flush comes to its end. */
static void what_one_reactor_lost_is_told_whatever_the_others_say(void **state)
{
    struct client_rig *f = *state;
    struct icms_request_options options;

    atomic_store(&fake.status, ICMS_PEER_DOWN);
    atomic_store(&fake.lossy, fake_reactors()); /* the last to answer */
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_IO);
    atomic_store(&fake.status, ICMS_OK);
    /* the answer comes too late for the flush that asked */
    icms_request_options_init(&options);
    options.deadline_ms = 100;
    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_flush(f->kv, &options), ICMS_DEADLINE);
    atomic_store(&fake.swallow, false);
    assert_int_equal(rig_put_one_soon(f->kv, 1, 64), ICMS_OK); /* it was answered by now */
    atomic_store(&fake.lossy, 0);
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_IO);
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_OK);
}

static void late_answers_hit_nobody_else(void **state)
{
    struct client_rig *f = *state;
    struct icms_request_options options;
    uint8_t data[64] = {0};
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};

    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(rig_put_one(f->kv, i, 64), ICMS_OK);
    icms_request_options_init(&options);
    options.deadline_ms = 20;
    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_get(f->kv, &block, 1, &options), ICMS_MISS);
    assert_int_equal(icms_put(f->kv, &block, 1, &options), ICMS_MISS);
    assert_int_equal(block.status, ICMS_DEADLINE);
    atomic_store(&fake.swallow, false);
    assert_int_equal(rig_get_one_soon(f->kv, 2, 64), ICMS_OK); /* it may pass for silent */
    for (int round = 0; round < 5; round++)
        for (uint64_t i = 2; i < 20; i++)
            assert_int_equal(rig_get_one(f->kv, i, 64, NULL), ICMS_OK);
    assert_int_equal(fake_agent_leases(f->agent), 0);
}

static void a_dead_agent_is_noticed_at_once(void **state)
{
    struct client_rig *f = *state;
    uint64_t begin;
    struct icms_block block;

    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_OK);
    fake_socket_stop(&f->socket);
    begin = client_now_ns();
    assert_int_equal(rig_put_one(f->kv, 2, 64), ICMS_PEER_DOWN);
    assert_int_equal(rig_get_one(f->kv, 1, 64, &block), ICMS_PEER_DOWN);
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
}

static void the_handle_finds_an_agent_that_came_back(void **state)
{
    struct client_rig *f = *state;
    struct icms_key key = rig_key(1);
    struct icms_request *request;
    struct icms_lease lease;
    struct icms_block block = {.key = rig_key(1)};
    uint8_t wanted[5000];
    void *buffer;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    assert_int_equal(icms_lease_take(f->kv, &key, NULL, NULL, &lease), ICMS_OK);
    assert_int_equal(icms_buffer_take(f->icms, 100, &buffer), ICMS_OK);
    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_exists_start(f->big, &block, 1, NULL, &request), ICMS_OK);
    fake_socket_stop(&f->socket);
    assert_int_equal(rig_put_one(f->kv, 2, 64), ICMS_PEER_DOWN);
    assert_int_equal(rig_put_one(f->kv, 2, 64), ICMS_PEER_DOWN);
    atomic_store(&fake.swallow, false);
    f->socket = fake_socket_start(f->agent, f->path);
    /* Attempts have a distance; the blocks are those of the same agent. */
    assert_int_equal(rig_get_one_soon(f->kv, 1, 5000), ICMS_OK);
    assert_int_equal(rig_put_one(f->kv, 2, 64), ICMS_OK);
    assert_int_equal(rig_get_one(f->kv, 1, 5000, NULL), ICMS_OK);
    assert_int_equal(rig_get_one(f->raw, 1, 5000, NULL), ICMS_MISS);
    /* What was taken from the former one stays as it was until it is given back. */
    rig_fill(wanted, sizeof(wanted), 1);
    assert_memory_equal(lease.data, wanted, sizeof(wanted));
    memset(buffer, 1, 100);
    icms_lease_give(&lease);
    icms_buffer_give(f->icms, buffer);
    assert_ptr_equal(rig_poll_next(f->icms), request);
    assert_int_equal(icms_request_end(&request), ICMS_PEER_DOWN);
    assert_int_equal(fake_agent_leases(f->agent), 0);
}

static void *stop_socket_later(void *arg)
{
    struct client_rig *f = arg;

    usleep(100000);
    fake_socket_stop(&f->socket);
    return NULL;
}

static void an_agent_that_dies_under_a_request_ends_it(void **state)
{
    struct client_rig *f = *state;
    uint64_t begin = client_now_ns();
    pthread_t thread;

    atomic_store(&fake.swallow, true);
    assert_int_equal(pthread_create(&thread, NULL, stop_socket_later, f), 0);
    assert_int_equal(rig_get_one(f->kv, 1, 64, NULL), ICMS_PEER_DOWN);
    assert_in_range(rig_elapsed_ms(begin), 50, RIG_GRACE_MS);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* ---- processes and threads ------------------------------------------------------------------ */

static void a_child_of_fork_gets_forked_and_hurts_nobody(void **state)
{
    struct client_rig *f = *state;
    int status = 0;
    pid_t child;

    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_OK);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        uint8_t data[64];
        struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};
        struct icms_volume *volume;
        size_t bytes;
        int wrong = icms_get(f->kv, &block, 1, NULL) != ICMS_FORKED;

        wrong += block.status != ICMS_FORKED;
        wrong += icms_volume_open(f->icms, "kv", NULL, 0, &volume) != ICMS_FORKED;
        wrong += icms_status(f->icms, NULL, 0, &bytes) != ICMS_FORKED;
        wrong += icms_event_fd(f->icms) != -1 || icms_poll(f->icms) != NULL;
        icms_close(&f->icms);
        _exit(wrong);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(rig_get_one(f->kv, 1, 64, NULL), ICMS_OK);
}

#define THREADS       6
#define THREAD_ROUNDS 60

static void *thread_work(void *arg)
{
    static atomic_uint next;
    struct client_rig *f = arg;
    uint64_t base = 1000 * (1 + atomic_fetch_add(&next, 1));

    for (uint64_t i = 0; i < THREAD_ROUNDS; i++) {
        size_t bytes = 1 + hash64_mix(base + i) % VALUE_MAX;

        if (rig_put_one(f->kv, base + i, bytes) != ICMS_OK)
            return f;
        if (i % 3 == 0) {
            struct icms_key key = rig_key(base + i);
            struct icms_lease lease;

            if (icms_lease_take(f->kv, &key, NULL, NULL, &lease) == ICMS_OK)
                icms_lease_give(&lease);
        }
        /* Others hold slots: shed is the agent's right, wrong bytes are not (get_one compares). */
        if (rig_get_one(f->kv, base + i, bytes, NULL) != ICMS_OK &&
            rig_get_one(f->kv, base + i, bytes, NULL) != ICMS_OK)
            continue;
    }
    return NULL;
}

static void many_threads_share_a_handle(void **state)
{
    struct client_rig *f = *state;
    pthread_t threads[THREADS];
    static uint8_t data[100][64];
    static struct icms_block blocks[100];
    struct icms_request *request;
    int under_way = 0;
    void *result;

    atomic_store(&fake.forget, true);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_work, f), 0);
    for (uint64_t i = 0; i < 100; i++) {
        rig_fill(data[i], 64, i);
        blocks[i] = (struct icms_block){.key = rig_key(i), .data = data[i], .bytes = 64};
        assert_int_equal(icms_put_start(f->kv, &blocks[i], 1, NULL, &request), ICMS_OK);
        under_way++;
        while ((request = icms_poll(f->icms)) != NULL) {
            assert_int_equal(icms_request_end(&request), ICMS_OK);
            under_way--;
        }
    }
    for (; under_way > 0; under_way--) {
        request = rig_poll_next(f->icms);
        assert_non_null(request);
        assert_int_equal(icms_request_end(&request), ICMS_OK);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_null(result);
    }
    assert_int_equal(fake_agent_blocks(f->agent), 100 + THREADS * THREAD_ROUNDS);
    assert_int_equal(fake_agent_leases(f->agent), 0);
}

struct poller {
    struct icms *icms;
    atomic_bool stop;
};

/* Does what an application's event loop does, for as long as it is left. */
static void *poller_main(void *arg)
{
    struct poller *poller = arg;

    while (!atomic_load(&poller->stop)) {
        struct pollfd event = {.fd = icms_event_fd(poller->icms), .events = POLLIN};

        (void)poll(&event, 1, 10);
        if (icms_poll(poller->icms) != NULL)
            return arg;
    }
    return NULL;
}

static void who_polls_does_not_take_the_wake_of_who_waits(void **state)
{
    struct client_rig *rig = *state;
    struct poller poller = {.icms = rig->icms};
    struct icms_request_options options;
    struct icms_block block;
    pthread_t thread;
    void *result = NULL;

    icms_request_options_init(&options);
    options.deadline_ms = 60000;
    atomic_store(&fake.delay_us, 20);
    assert_int_equal(pthread_create(&thread, NULL, poller_main, &poller), 0);
    for (int i = 0; i < 500; i++) {
        uint64_t began_ns = client_now_ns();

        block = (struct icms_block){.key = rig_key(2)};
        assert_int_equal(icms_exists(rig->kv, &block, 1, &options), ICMS_MISS);
        assert_true(rig_elapsed_ms(began_ns) < RIG_GRACE_MS);
    }
    atomic_store(&poller.stop, true);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_null(result);
}

static void status_is_the_agents(void **state)
{
    struct client_rig *f = *state;
    char text[256];
    size_t bytes = 0;

    assert_int_equal(icms_status(f->icms, text, sizeof(text), &bytes), ICMS_OK);
    assert_string_equal(text, "{\"fake\":true,\"blocks\":0}");
    assert_int_equal(bytes, strlen(text) + 1);
    assert_int_equal(icms_status(f->icms, text, 5, &bytes), ICMS_OK);
    assert_string_equal(text, "{\"fa");
    assert_int_equal(bytes, 25);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, client_rig_setup, client_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_damaged_value_is_a_checksum_miss),
        TEST(answers_out_of_the_arena_are_refused),
        TEST(an_answer_that_comes_again_answers_nothing_else),
        TEST(a_ring_that_makes_no_sense_ends_the_link),
        TEST(answers_without_end_end_the_link),
        TEST(messages_without_end_have_an_end),
        TEST(an_error_that_is_none_breaks_the_protocol),
        TEST(a_stopped_agent_costs_one_deadline_and_comes_back),
        TEST(a_stuck_reactor_costs_one_deadline_and_comes_back),
        TEST(answers_of_others_do_not_hide_a_stuck_reactor),
        TEST(many_flushes_have_as_many_answers_as_reactors),
        TEST(what_one_reactor_lost_is_told_whatever_the_others_say),
        TEST(late_answers_hit_nobody_else),
        TEST(a_dead_agent_is_noticed_at_once),
        TEST(the_handle_finds_an_agent_that_came_back),
        TEST(an_agent_that_dies_under_a_request_ends_it),
        TEST(a_child_of_fork_gets_forked_and_hurts_nobody),
        TEST(many_threads_share_a_handle),
        TEST(who_polls_does_not_take_the_wake_of_who_waits),
        TEST(status_is_the_agents),
    };

    return cmocka_run_group_tests_name("client-wrong", tests, NULL, NULL);
}
