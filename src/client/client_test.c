/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of icms.h, over a unix socket, against an agent that does whatever a test wants.
 */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"

#define VALUE_MAX 65536

/* ---- the plain life ------------------------------------------------------------------------- */

static void what_was_put_is_what_is_got(void **state)
{
    static const size_t sizes[] = {1, 7, 4032, 4096, 4097, 65535, 65536};
    struct client_rig *f = *state;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        assert_int_equal(rig_put_one(f->kv, i, sizes[i]), ICMS_OK);
        assert_int_equal(rig_put_one(f->raw, i, sizes[i]), ICMS_OK);
        assert_int_equal(rig_get_one(f->kv, i, sizes[i], NULL), ICMS_OK);
        assert_int_equal(rig_get_one(f->raw, i, sizes[i], NULL), ICMS_OK);
    }
    assert_int_equal(fake_agent_leases(f->agent), 0);
}

static void the_second_get_needs_no_message(void **state)
{
    struct client_rig *f = *state;
    struct icms_block block;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    assert_int_equal(rig_get_one(f->kv, 1, 5000, &block), ICMS_OK);
    assert_int_equal(block.source, ICMS_SOURCE_POD);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(rig_get_one(f->kv, 1, 5000, &block), ICMS_OK);
        assert_int_equal(block.source, ICMS_SOURCE_DRAM);
    }
    assert_int_equal(atomic_load(&fake.gets), 1);
    assert_int_equal(fake_agent_leases(f->agent), 0);
}

static void a_block_that_is_not_there_is_a_miss(void **state)
{
    struct client_rig *f = *state;
    struct icms_block block;

    assert_int_equal(rig_get_one(f->kv, 1, 100, &block), ICMS_MISS);
    assert_int_equal(block.reason, ICMS_MISS_ABSENT);
    assert_int_equal(block.source, ICMS_SOURCE_NONE);
}

static void a_small_room_says_how_much_is_needed(void **state)
{
    struct client_rig *f = *state;
    uint8_t room[10];
    struct icms_block block = {.key = rig_key(1), .data = room, .bytes = sizeof(room)};

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    for (int i = 0; i < 2; i++) { /* by message, then from the arena */
        block.bytes = sizeof(room);
        assert_int_equal(icms_get(f->kv, &block, 1, NULL), ICMS_MISS);
        assert_int_equal(block.status, ICMS_VALUE_SIZE);
        assert_int_equal(block.bytes, 5000);
    }
}

static void a_get_without_memory_brings_the_block_near(void **state)
{
    struct client_rig *f = *state;
    struct icms_block block = {.key = rig_key(1)};
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.class_ = ICMS_CLASS_PRESTAGE;
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    assert_int_equal(icms_get(f->kv, &block, 1, &options), ICMS_OK);
    assert_int_equal(block.bytes, 5000);
    assert_int_equal(rig_get_one(f->kv, 1, 5000, &block), ICMS_OK);
    assert_int_equal(block.source, ICMS_SOURCE_DRAM);
}

static void batches_larger_than_every_ring_go_through(void **state)
{
    struct client_rig *f = *state;
    struct icms_block *blocks = calloc(ICMS_BATCH_MAX, sizeof(*blocks));
    uint8_t *data = malloc((size_t)ICMS_BATCH_MAX * 64);
    size_t misses = 0;

    for (size_t i = 0; i < ICMS_BATCH_MAX; i++) {
        rig_fill(data + i * 64, 64, i);
        blocks[i] = (struct icms_block){.key = rig_key(i), .data = data + i * 64, .bytes = 64};
    }
    assert_int_equal(icms_put(f->kv, blocks, ICMS_BATCH_MAX, NULL), ICMS_OK);
    assert_int_equal(fake_agent_blocks(f->agent), ICMS_BATCH_MAX);
    assert_int_equal(icms_exists(f->kv, blocks, ICMS_BATCH_MAX, NULL), ICMS_OK);
    memset(data, 0, (size_t)ICMS_BATCH_MAX * 64);
    /* Eight slots for 256 gets at a time: the agent sheds some of them. */
    (void)!icms_get(f->kv, blocks, ICMS_BATCH_MAX, NULL);
    for (size_t i = 0; i < ICMS_BATCH_MAX; i++) {
        uint8_t wanted[64];

        if (blocks[i].status != ICMS_OK) {
            assert_int_equal(blocks[i].status, ICMS_MISS);
            assert_int_equal(blocks[i].reason, ICMS_MISS_SHED);
            misses++;
            continue;
        }
        rig_fill(wanted, 64, i);
        assert_memory_equal(blocks[i].data, wanted, 64);
    }
    assert_true(misses < ICMS_BATCH_MAX);
    assert_int_equal(icms_remove(f->kv, blocks, ICMS_BATCH_MAX, NULL), ICMS_OK);
    assert_int_equal(fake_agent_blocks(f->agent), 0);
    assert_int_equal(fake_agent_leases(f->agent), 0);
    free(blocks);
    free(data);
}

static void values_larger_than_half_the_staging_memory_take_turns(void **state)
{
    struct client_rig *f = *state;
    struct icms_options options;
    struct icms_volume *big;
    struct icms *icms;
    uint8_t *data = malloc((size_t)8 << 20);
    struct icms_block blocks[4];

    icms_options_init(&options);
    options.buffer_bytes = ((uint64_t)8 << 20) + 8192; /* room for one */
    assert_int_equal(icms_open(f->where, &options, NULL, 0, &icms), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "big", NULL, 0, &big), ICMS_OK);
    rig_fill(data, (size_t)8 << 20, 5);
    for (uint64_t i = 0; i < 4; i++)
        blocks[i] =
            (struct icms_block){.key = rig_key(i), .data = data, .bytes = (uint64_t)8 << 20};
    assert_int_equal(icms_put(big, blocks, 4, NULL), ICMS_OK);
    icms_close(&icms);
    free(data);
}

static void match_counts_up_to_the_first_hole(void **state)
{
    struct client_rig *f = *state;
    struct icms_key keys[100];
    size_t matched = 77;

    for (uint64_t i = 0; i < 100; i++) {
        keys[i] = rig_key(i);
        if (i != 60 && i != 80)
            assert_int_equal(rig_put_one(f->kv, i, 64), ICMS_OK);
    }
    assert_int_equal(rig_get_one(f->kv, 3, 64, NULL), ICMS_OK); /* one is in the arena */
    assert_int_equal(icms_match(f->kv, keys, 100, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 60);
    assert_int_equal(icms_match(f->kv, keys, 60, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 60);
    assert_int_equal(icms_match(f->kv, keys + 60, 5, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 0);
}

static void options_reach_the_agent(void **state)
{
    struct client_rig *f = *state;
    struct icms_request_options options;
    uint8_t data[64] = {0};
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};

    icms_request_options_init(&options);
    options.put_if_absent = 1;
    options.put_ack = ICMS_PUT_ON_FLASH;
    assert_int_equal(icms_put(f->kv, &block, 1, &options), ICMS_OK);
    assert_int_equal(icms_put(f->kv, &block, 1, &options), ICMS_MISS);
    assert_int_equal(block.status, ICMS_EXISTS);
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_OK);
    assert_int_equal(atomic_load(&fake.flushes), fake_reactors()); /* each its own */
    atomic_store(&fake.status, ICMS_IO);
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_IO);
}

/* ---- bad input ------------------------------------------------------------------------------ */

static void each_mistake_has_its_own_status(void **state)
{
    struct client_rig *f = *state;
    uint8_t data[64] = {0};
    struct icms_block blocks[8];

    for (int i = 0; i < 8; i++)
        blocks[i] = (struct icms_block){.key = rig_key(1), .data = data, .bytes = sizeof(data)};
    blocks[0].key.length = 0;
    blocks[1].key.length = 17;
    blocks[2].key.length = 4;
    blocks[2].key.bytes[5] = 1;
    assert_int_equal(icms_key_raw("no digest", 9, &blocks[7].key), ICMS_OK);
    blocks[3].bytes = 0;
    blocks[4].bytes = VALUE_MAX + 1;
    blocks[5].data = NULL;
    assert_int_equal(icms_put(f->kv, blocks, 8, NULL), ICMS_MISS);
    assert_int_equal(blocks[0].status, ICMS_KEY_SIZE);
    assert_int_equal(blocks[1].status, ICMS_KEY_SIZE);
    assert_int_equal(blocks[2].status, ICMS_INVALID);
    assert_int_equal(blocks[3].status, ICMS_VALUE_SIZE);
    assert_int_equal(blocks[4].status, ICMS_VALUE_SIZE);
    assert_int_equal(blocks[5].status, ICMS_INVALID);
    assert_int_equal(blocks[6].status, ICMS_OK);
    assert_int_equal(blocks[7].status, ICMS_INVALID);
    assert_int_equal(icms_put(f->kv, blocks, 0, NULL), ICMS_INVALID);
    assert_int_equal(icms_put(f->kv, blocks, ICMS_BATCH_MAX + 1, NULL), ICMS_INVALID);
    assert_int_equal(icms_put(NULL, blocks, 7, NULL), ICMS_INVALID);
    assert_int_equal(blocks[6].status, ICMS_INVALID);
}

static void an_unknown_volume_is_named_with_those_there_are(void **state)
{
    struct client_rig *f = *state;
    struct icms_volume *volume = NULL;
    char why[256];

    assert_int_equal(icms_volume_open(f->icms, "nope", why, sizeof(why), &volume), ICMS_NO_VOLUME);
    assert_non_null(strstr(why, "nope"));
    assert_non_null(strstr(why, "kv, raw, big"));
    assert_null(volume);
}

static void a_volume_that_no_enclosure_has_is_not_opened(void **state)
{
    struct client_rig *f = *state;
    struct icms_volume *volume = NULL;
    char why[256];

    fake_agent_volume_missing_set(f->agent, 1, true);
    assert_int_equal(icms_volume_open(f->icms, "raw", why, sizeof(why), &volume), ICMS_NO_VOLUME);
    assert_non_null(strstr(why, "no enclosure of the pod has the volume raw"));
    assert_null(volume);
    fake_agent_volume_missing_set(f->agent, 1, false); /* attached meanwhile */
    assert_int_equal(icms_volume_open(f->icms, "raw", why, sizeof(why), &volume), ICMS_OK);
    icms_volume_close(&volume);
}

static void tiers_that_cannot_be_opened_say_why(void **state)
{
    struct icms *icms = NULL;
    char why[256];

    assert_int_equal(icms_open("unix:/nonexistent/a.sock", NULL, why, sizeof(why), &icms),
                     ICMS_NOT_FOUND);
    assert_non_null(strstr(why, "icms-agent"));
    assert_int_equal(icms_open("what", NULL, why, sizeof(why), &icms), ICMS_INVALID);
    assert_non_null(strstr(why, "unix:SOCKET"));
    assert_int_equal(icms_open("pod:/nonexistent/agent.yaml", NULL, why, sizeof(why), &icms),
                     ICMS_NOT_FOUND);
    assert_int_equal(icms_open(NULL, NULL, why, sizeof(why), &icms), ICMS_INVALID);
    assert_null(icms);
}

static void on_alarm(int number)
{
    (void)number;
}

/* Signals of a program come all the time: those of a profiler every millisecond. */
static void signals_neither_fail_nor_prolong_an_open(void **state)
{
    struct itimerval often = {.it_interval.tv_usec = 500, .it_value.tv_usec = 500}, never = {0};
    struct sigaction action = {.sa_handler = on_alarm}, before; /* no SA_RESTART */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct client_rig *f = *state;
    struct icms *icms = NULL;
    char where[sizeof(address.sun_path) + 8], status[64];
    size_t bytes;
    icms_err err = ICMS_OK;
    uint64_t begin;
    int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s.silent", f->path);
    (void)snprintf(where, sizeof(where), "unix:%s", address.sun_path);
    assert_int_equal(bind(silent, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(silent, 8), 0);
    assert_int_equal(sigaction(SIGALRM, &action, &before), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    for (int i = 0; i < 8 && err == ICMS_OK; i++) {
        err = icms_open(f->where, NULL, NULL, 0, &icms);
        icms_close(&icms);
    }
    for (int i = 0; i < 200 && err == ICMS_OK; i++)
        err = icms_status(f->icms, status, sizeof(status), &bytes);
    begin = client_now_ns();
    if (err == ICMS_OK)
        err = icms_open(where, NULL, NULL, 0, &icms); /* nobody accepts */
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(sigaction(SIGALRM, &before, NULL), 0);
    assert_int_equal(err, ICMS_PEER_DOWN);
    assert_in_range(client_now_ns() - begin, CLIENT_ATTACH_MS * 1000000ull * 9 / 10,
                    CLIENT_ATTACH_MS * 1000000ull * 10);
    (void)close(silent);
    (void)unlink(address.sun_path);
}

/* ---- asynchronous --------------------------------------------------------------------------- */

static void requests_come_back_from_poll_with_their_tags(void **state)
{
    struct client_rig *f = *state;
    uint8_t data[50][64];
    struct icms_block blocks[50];
    struct icms_request_options options;
    struct icms_request *request;
    int seen[50] = {0};

    icms_request_options_init(&options);
    for (uint64_t i = 0; i < 50; i++) {
        rig_fill(data[i], 64, i);
        blocks[i] = (struct icms_block){.key = rig_key(i), .data = data[i], .bytes = 64};
        options.tag = &seen[i];
        assert_int_equal(icms_put_start(f->kv, &blocks[i], 1, &options, &request), ICMS_OK);
    }
    for (int i = 0; i < 50; i++) {
        request = rig_poll_next(f->icms);
        assert_non_null(request);
        assert_true(icms_request_over(request));
        ++*(int *)icms_request_tag(request);
        assert_int_equal(icms_request_end(&request), ICMS_OK);
        assert_null(request);
    }
    for (int i = 0; i < 50; i++)
        assert_int_equal(seen[i], 1);
    assert_null(icms_poll(f->icms));
    assert_int_equal(fake_agent_blocks(f->agent), 50);
}

/* Nothing to do, nothing readable: a caller that sleeps in poll(2) sleeps. */
static void the_event_is_quiet_when_nothing_is_over(void **state)
{
    struct client_rig *f = *state;
    struct pollfd event = {.fd = icms_event_fd(f->icms), .events = POLLIN};
    uint8_t data[64] = {0};
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};
    struct icms_request *request;

    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_OK);
    while (icms_poll(f->icms) != NULL || poll(&event, 1, 0) == 1) {
    }
    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_exists_start(f->big, &block, 1, NULL, &request), ICMS_OK);
    assert_int_equal(poll(&event, 1, 50), 0);
    atomic_store(&fake.swallow, false);
    request = rig_poll_next(f->icms);
    assert_non_null(request);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_null(icms_poll(f->icms));
    assert_int_equal(poll(&event, 1, 0), 0);
}

static void deadlines_of_requests_reach_who_polls(void **state)
{
    struct client_rig *f = *state;
    struct icms_request_options options;
    uint8_t data[64] = {0};
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};
    struct icms_request *request;
    uint64_t begin = client_now_ns();

    icms_request_options_init(&options);
    options.deadline_ms = 100;
    atomic_store(&fake.mute, true);
    assert_true(icms_event_fd(f->icms) >= 0);
    assert_int_equal(icms_get_start(f->kv, &block, 1, &options, &request), ICMS_OK);
    request = rig_poll_next(f->icms);
    assert_non_null(request);
    assert_in_range(rig_elapsed_ms(begin), 100, RIG_GRACE_MS);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_int_equal(block.reason, ICMS_MISS_DEADLINE);
}

static void waiting_for_one_takes_it_from_poll(void **state)
{
    struct client_rig *f = *state;
    uint8_t data[2][64] = {{0}};
    struct icms_block blocks[2];
    struct icms_request *requests[2], *polled;

    atomic_store(&fake.delay_us, 20000);
    for (uint64_t i = 0; i < 2; i++) {
        blocks[i] = (struct icms_block){.key = rig_key(i), .data = data[i], .bytes = 64};
        assert_int_equal(icms_put_start(f->kv, &blocks[i], 1, NULL, &requests[i]), ICMS_OK);
    }
    assert_int_equal(icms_request_wait(requests[0], 0), ICMS_DEADLINE);
    assert_int_equal(icms_request_wait(requests[0], -1), ICMS_OK);
    polled = rig_poll_next(f->icms);
    assert_ptr_equal(polled, requests[1]);
    assert_null(icms_poll(f->icms));
    assert_int_equal(icms_request_end(&requests[0]), ICMS_OK);
    assert_int_equal(icms_request_end(&requests[1]), ICMS_OK);
}

static void a_canceled_request_ends_soon(void **state)
{
    struct client_rig *f = *state;
    uint8_t data[64] = {0};
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};
    struct icms_request *request;

    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_get_start(f->kv, &block, 1, NULL, &request), ICMS_OK);
    usleep(20000);
    icms_request_cancel(request);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_int_equal(block.status, ICMS_CANCELED); /* at its deadline it would be a miss */
    assert_int_equal(atomic_load(&fake.cancels), 1);
}

/* Threads that copy blocks of the arena have all entries of the lease table, and give them back
 * without a wake. */
static void a_get_finds_leases_that_come_back_in_silence(void **state)
{
    struct client_rig *f = *state;
    uint32_t leases[SHM_LEASES], count = 0;
    uint8_t data[64] = {0};
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = sizeof(data)};
    struct icms_request *request;

    assert_int_equal(rig_put_one(f->kv, 1, sizeof(data)), ICMS_OK);
    while ((leases[count] = client_lease_take(f->icms->link, false)) != CLIENT_LEASE_NONE)
        count++;
    assert_true(count > 0);
    assert_int_equal(icms_get_start(f->kv, &block, 1, NULL, &request), ICMS_OK);
    assert_null(icms_poll(f->icms));
    while (count > 0)
        client_lease_give(f->icms->link, leases[--count]);
    assert_ptr_equal(rig_poll_next(f->icms), request);
    assert_int_equal(icms_request_end(&request), ICMS_OK); /* at its deadline it would be a miss */
    assert_int_equal(block.status, ICMS_OK);
}

static void too_many_requests_are_refused_not_queued(void **state)
{
    struct client_rig *f = *state;
    static struct icms_request *requests[CLIENT_REQUESTS];
    static struct icms_block blocks[CLIENT_REQUESTS + 1];

    for (uint64_t i = 0; i < CLIENT_REQUESTS; i++) {
        blocks[i] = (struct icms_block){.key = rig_key(i)};
        assert_int_equal(icms_exists_start(f->kv, &blocks[i], 1, NULL, &requests[i]), ICMS_OK);
    }
    blocks[CLIENT_REQUESTS].key = rig_key(1);
    {
        struct icms_request *more = NULL;

        assert_int_equal(icms_exists_start(f->kv, &blocks[CLIENT_REQUESTS], 1, NULL, &more),
                         ICMS_LIMIT);
        assert_int_equal(blocks[CLIENT_REQUESTS].status, ICMS_LIMIT);
    }
    for (uint64_t i = 0; i < CLIENT_REQUESTS; i++)
        assert_int_equal(icms_request_end(&requests[i]), ICMS_MISS);
}

/* Answers hold operations until somebody takes them; who waits for room takes those of others. */
static void a_request_that_nobody_polls_for_starves_nobody(void **state)
{
    struct client_rig *f = *state;
    struct icms_block *blocks = calloc(ICMS_BATCH_MAX, sizeof(*blocks));
    struct icms_request *request;

    for (uint64_t i = 0; i < ICMS_BATCH_MAX; i++)
        blocks[i].key = rig_key(i);
    assert_int_equal(icms_exists_start(f->big, blocks, ICMS_BATCH_MAX, NULL, &request), ICMS_OK);
    for (uint64_t i = 0; i < 10; i++)
        assert_int_equal(rig_put_one(f->kv, i, 64), ICMS_OK);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    free(blocks);
}

static void close_waits_for_requests_that_nobody_ended(void **state)
{
    struct client_rig *f = *state;
    static uint8_t data[20][64];
    static struct icms_block blocks[20];
    struct icms_request *request;

    atomic_store(&fake.delay_us, 1000);
    for (uint64_t i = 0; i < 20; i++) {
        blocks[i] = (struct icms_block){.key = rig_key(i), .data = data[i], .bytes = 64};
        assert_int_equal(icms_put_start(f->kv, &blocks[i], 1, NULL, &request), ICMS_OK);
    }
    icms_close(&f->icms);
    assert_null(f->icms);
    for (int i = 0; i < 20; i++)
        assert_int_equal(blocks[i].status, ICMS_OK);
}

/* ---- without a copy ------------------------------------------------------------------------- */

static void a_lease_keeps_the_block_while_others_come_and_go(void **state)
{
    struct client_rig *f = *state;
    struct icms_lease lease;
    struct icms_key key = rig_key(1);
    uint8_t wanted[5000];

    rig_fill(wanted, sizeof(wanted), 1);
    for (uint64_t i = 1; i < 40; i++)
        assert_int_equal(rig_put_one(f->kv, i, 5000), ICMS_OK);
    for (int round = 0; round < 2; round++) { /* by message, then from the arena */
        assert_int_equal(icms_lease_take(f->kv, &key, NULL, NULL, &lease), ICMS_OK);
        assert_int_equal(lease.bytes, 5000);
        for (uint64_t i = 2; i < 40 && round == 1; i++)
            assert_int_equal(rig_get_one(f->kv, i, 5000, NULL), ICMS_OK);
        assert_memory_equal(lease.data, wanted, sizeof(wanted));
        assert_int_equal(fake_agent_leases(f->agent), 1);
        icms_lease_give(&lease);
        assert_null(lease.owner);
        icms_lease_give(&lease);
        assert_int_equal(fake_agent_leases(f->agent), 0);
    }
}

static void leases_of_absent_or_damaged_blocks_are_misses(void **state)
{
    struct client_rig *f = *state;
    struct icms_key key = rig_key(1);
    enum icms_miss reason = ICMS_MISS_NONE;
    struct icms_lease lease;

    assert_int_equal(icms_lease_take(f->kv, &key, NULL, &reason, &lease), ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_ABSENT);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    atomic_store(&fake.corrupt, true);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(icms_lease_take(f->kv, &key, NULL, &reason, &lease), ICMS_MISS);
        assert_int_equal(reason, ICMS_MISS_CHECKSUM);
    }
    assert_int_equal(fake_agent_leases(f->agent), 0);
    key.length = 0;
    assert_int_equal(icms_lease_take(f->kv, &key, NULL, &reason, &lease), ICMS_KEY_SIZE);
}

/* What was checked is a value in a slot, not the slot. */
static void a_block_that_comes_again_is_checked_again(void **state)
{
    struct client_rig *f = *state;
    struct icms_key key = rig_key(1);
    enum icms_miss reason = ICMS_MISS_NONE;
    struct icms_lease lease;
    icms_err err;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(icms_lease_take(f->kv, &key, NULL, NULL, &lease), ICMS_OK);
        icms_lease_give(&lease);
    }
    atomic_store(&fake.corrupt, true);
    assert_int_equal(icms_lease_take(f->kv, &key, NULL, NULL, &lease), ICMS_OK);
    icms_lease_give(&lease);
    for (uint64_t i = 2; i < 40; i++) { /* others take the slots */
        assert_int_equal(rig_put_one(f->kv, i, 5000), ICMS_OK);
        (void)!rig_get_one(f->kv, i, 5000, NULL);
    }
    err = icms_lease_take(f->kv, &key, NULL, &reason, &lease);
    assert_int_equal(err, ICMS_MISS);
    assert_int_equal(reason, ICMS_MISS_CHECKSUM);
}

static void leases_are_bounded(void **state)
{
    struct client_rig *f = *state;
    static struct icms_lease leases[ICMS_LEASES_MAX];
    struct icms_request_options options;
    struct icms_key key = rig_key(1);
    struct icms_lease more;
    icms_err err;

    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_OK);
    for (int i = 0; i < ICMS_LEASES_MAX; i++)
        assert_int_equal(icms_lease_take(f->kv, &key, NULL, NULL, &leases[i]), ICMS_OK);
    icms_request_options_init(&options);
    options.deadline_ms = 50;
    err = icms_lease_take(f->kv, &key, &options, NULL, &more);
    assert_int_equal(err, ICMS_LIMIT);
    assert_int_equal(rig_get_one(f->kv, 1, 64, NULL), ICMS_OK); /* gets have leases of their own */
    for (int i = 0; i < ICMS_LEASES_MAX; i++)
        icms_lease_give(&leases[i]);
    assert_int_equal(icms_lease_take(f->kv, &key, NULL, NULL, &more), ICMS_OK);
    icms_lease_give(&more);
}

static void a_put_from_a_taken_buffer_is_in_place(void **state)
{
    struct client_rig *f = *state;
    struct icms_block blocks[2];
    void *data = NULL, *second = NULL;

    assert_int_equal(icms_buffer_take(f->icms, 5000, &data), ICMS_OK);
    rig_fill(data, 5000, 1);
    for (uint64_t i = 0; i < 2; i++) /* both from one buffer: the second one is copied */
        blocks[i] = (struct icms_block){.key = rig_key(1 + i), .data = data, .bytes = 5000};
    assert_int_equal(icms_put(f->kv, blocks, 2, NULL), ICMS_OK);
    assert_int_equal(rig_get_one(f->kv, 1, 5000, NULL), ICMS_OK);
    blocks[0].bytes = 4000; /* shorter than the buffer */
    assert_int_equal(icms_put(f->kv, blocks, 1, NULL), ICMS_OK);
    assert_int_equal(rig_get_one(f->kv, 1, 4000, NULL), ICMS_OK);
    assert_int_equal(icms_buffer_take(f->icms, (uint64_t)2 << 20, &second), ICMS_NO_MEMORY);
    icms_buffer_give(f->icms, data);
    icms_buffer_give(f->icms, data); /* not a buffer any more: harmless */
    assert_int_equal(icms_buffer_take(f->icms, 900000, &second), ICMS_OK);
    icms_buffer_give(f->icms, second);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, client_rig_setup, client_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_put_is_what_is_got),
        TEST(the_second_get_needs_no_message),
        TEST(a_block_that_is_not_there_is_a_miss),
        TEST(a_small_room_says_how_much_is_needed),
        TEST(a_get_without_memory_brings_the_block_near),
        TEST(batches_larger_than_every_ring_go_through),
        TEST(values_larger_than_half_the_staging_memory_take_turns),
        TEST(match_counts_up_to_the_first_hole),
        TEST(options_reach_the_agent),
        TEST(each_mistake_has_its_own_status),
        TEST(an_unknown_volume_is_named_with_those_there_are),
        TEST(a_volume_that_no_enclosure_has_is_not_opened),
        TEST(tiers_that_cannot_be_opened_say_why),
        TEST(signals_neither_fail_nor_prolong_an_open),
        TEST(requests_come_back_from_poll_with_their_tags),
        TEST(the_event_is_quiet_when_nothing_is_over),
        TEST(deadlines_of_requests_reach_who_polls),
        TEST(waiting_for_one_takes_it_from_poll),
        TEST(a_canceled_request_ends_soon),
        TEST(a_get_finds_leases_that_come_back_in_silence),
        TEST(too_many_requests_are_refused_not_queued),
        TEST(a_request_that_nobody_polls_for_starves_nobody),
        TEST(close_waits_for_requests_that_nobody_ended),
        TEST(a_lease_keeps_the_block_while_others_come_and_go),
        TEST(leases_of_absent_or_damaged_blocks_are_misses),
        TEST(a_block_that_comes_again_is_checked_again),
        TEST(leases_are_bounded),
        TEST(a_put_from_a_taken_buffer_is_in_place),
    };

    return cmocka_run_group_tests_name("client", tests, NULL, NULL);
}
