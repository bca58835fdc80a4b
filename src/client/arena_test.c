/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies to devices straight from the arena, over the fake GPU: what keeps a slot while a device
 * reads it, and what keeps the arena mapped. The agent is fake, behind a socket, or with the
 * argument "dir" in this process.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/memory_rig.h"

#define BYTES 60000

static uint32_t device_leases(const struct fixture *f)
{
    return atomic_load(&f->icms->link->device_leases);
}

/* One get that is canceled when the device has its copy, which does not run. */
static void get_stuck(struct icms_memory *memory, struct icms_volume *volume, uint64_t number,
                      uint64_t address)
{
    struct icms_block block = block_of(number, address, BYTES);
    struct icms_request *request = NULL;
    int asked = gpu->count(FAKE_DEVICE_ASKED);
    uint64_t begin = client_now_ns();

    gpu->set(FAKE_DEVICE_STUCK, 1);
    assert_int_equal(icms_get_start(volume, &block, 1, NULL, &request), ICMS_OK);
    for (; gpu->count(FAKE_DEVICE_ASKED) == asked; (void)!icms_request_wait(request, 1))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    icms_request_cancel(request);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_int_equal(block.status, ICMS_CANCELED);
    assert_int_equal(icms_memory_unregister(&memory), ICMS_BUSY);
}

static void leases_come_back(const struct fixture *f)
{
    uint64_t begin = client_now_ns();

    for (; device_leases(f) != 0; usleep(1000))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
}

/* How far a request is, run by this thread; adds to *over the requests that are over. */
static size_t next_of(const struct fixture *f, const struct icms_request *request, uint32_t *over)
{
    *over += icms_poll(f->icms) != NULL;
    return request->next;
}

/* Requests that wait for leases have all pinned memory. The first of them finds its block in the
 * arena, and waits for memory of its next one behind another request: it has to let those pass who
 * have what it waits for. */
static void who_waits_for_memory_keeps_nobody_from_leases(void **state)
{
    enum { GETS = 64 };
    struct fixture *f = *state;
    struct icms_request *requests[GETS] = {0}, *first = NULL;
    struct icms_block blocks[2], large[GETS];
    uint32_t leases[SHM_LEASES], count = 0, gets = 0, over = 0;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, 8 * MIB, &memory), begin = client_now_ns();

    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    assert_int_equal(rig_get_one(f->kv, 1, BYTES, NULL), ICMS_OK);
    for (unsigned i = 0; i < 2; i++)
        blocks[i] = block_of(1 + i, address, BYTES);
    while ((leases[count] = client_lease_take(f->icms->link, false)) != CLIENT_LEASE_NONE)
        count++;
    assert_int_equal(icms_get_start(f->kv, blocks, 2, NULL, &first), ICMS_OK);
    do {
        assert_in_range(gets, 0, GETS - 1);
        large[gets] = block_of(100 + gets, address, 8 * MIB);
        assert_int_equal(icms_get_start(f->big, &large[gets], 1, NULL, &requests[gets]), ICMS_OK);
    } while (!requests[gets++]->copy_wanted);

    client_lease_give(f->icms->link, leases[--count]);
    for (; next_of(f, first, &over) == 0; usleep(1000))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    while (count > 0)
        client_lease_give(f->icms->link, leases[--count]);
    for (; over <= gets; over++)
        assert_non_null(rig_poll_next(f->icms));
    for (uint32_t i = 0; i < gets; i++) {
        assert_int_equal(icms_request_end(&requests[i]), ICMS_MISS);
        assert_int_equal(large[i].reason, ICMS_MISS_ABSENT);
    }
    assert_int_equal(icms_request_end(&first), ICMS_MISS);
    assert_int_equal(blocks[0].status, ICMS_OK);
    assert_int_equal(blocks[1].reason, ICMS_MISS_ABSENT);
    unreg(&memory);
}

/* Links that were replaced are freed. */
static void retired_go(const struct fixture *f)
{
    uint64_t begin = client_now_ns();
    bool gone = false;

    for (; !gone; usleep(1000)) {
        client_lock(f->icms);
        gone = list_empty(&f->icms->retired);
        client_unlock(f->icms);
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    }
}

static void nothing_let_go(void *arg, uint32_t number)
{
}

/* Whether a copy would read the arena of kv in place. */
static bool arenas_are_pinned(const struct fixture *f)
{
    const struct client_map *map = client_volume_map(f->icms->link, "kv");
    _Atomic uint32_t users = 0;
    struct device_copy *copy = device_copy_take(f->icms->devices[0].copier, 1, &users);
    bool pinned = device_copy_from(copy, map->base, 1, nothing_let_go, NULL, 0);

    device_copy_give(copy);
    return pinned;
}

static void a_device_reads_the_arena_under_a_lease(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory), begin;

    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    for (int n = 0; n < 2; n++) { /* checked, then known to be whole */
        device_fill(address, BYTES, 99);
        get_stuck(memory, f->kv, 1, address);
        assert_int_equal(device_leases(f), 1);
        if (!in_process)
            assert_int_equal(fake_agent_leases(f->rig.agent), 1);
        gpu->set(FAKE_DEVICE_STUCK, 0);
        leases_come_back(f);
        device_is(address, BYTES, 1);
        for (begin = client_now_ns(); !in_process && fake_agent_leases(f->rig.agent) != 0;
             usleep(100))
            assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    }
    /* In time, it is back when the block is done. */
    assert_int_equal(get_one(f->kv, 1, address, BYTES), ICMS_OK);
    assert_int_equal(device_leases(f), 0);
    device_is(address, BYTES, 1);
    unreg(&memory);
}

/* The request is over, and its block evicted, as far as that goes: what the device reads is still
 * what it was. */
static void a_slot_that_a_device_reads_is_not_used_again(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);

    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    get_stuck(memory, f->kv, 1, address);
    atomic_store(&fake.forget, true);
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(rig_put_one(f->kv, 100 + i, BYTES), ICMS_OK);
    atomic_store(&fake.forget, false);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    leases_come_back(f);
    device_is(address, BYTES, 1);
    unreg(&memory);
}

static void a_damaged_block_is_not_copied(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_block block = block_of(1, address, BYTES);

    if (in_process)
        skip(); /* the fake agent damages */
    device_fill(address, BYTES, 42);
    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    atomic_store(&fake.forget, true); /* it is asked for each time */
    for (unsigned at = 1; at < BYTES + LIMIT_TRAILER_BYTES; at += 7919) {
        atomic_store(&fake.damage, at);
        block = block_of(1, address, BYTES);
        (void)!icms_get(f->kv, &block, 1, NULL);
        assert_int_equal(block.status, ICMS_MISS);
        atomic_store(&fake.damage, 0);
        assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    }
    atomic_store(&fake.version, 5);
    atomic_store(&fake.suspects, 0);
    for (int again = 0; again < 2; again++) {
        (void)!icms_get(f->kv, &block, 1, NULL);
        assert_int_equal(block.status, ICMS_MISS);
        assert_int_equal(block.reason, ICMS_MISS_VERSION);
    }
    atomic_store(&fake.version, 0);
    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK); /* behind them in the ring */
    assert_int_equal(atomic_load(&fake.suspects), 0);
    assert_int_equal(device_leases(f), 0);
    device_is(address, BYTES, 42);
    unreg(&memory);
}

/* A device that is stuck has a part of the leases, and the others go on. */
static void a_stuck_device_leaves_leases_to_others(void **state)
{
    enum { COUNT = 250 };
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, COUNT * 4 * KIB, &memory);
    struct icms_block *blocks = calloc(COUNT, sizeof(*blocks));
    struct icms_request *request = NULL;
    int asked = gpu->count(FAKE_DEVICE_ASKED);
    uint64_t begin = client_now_ns();

    assert_int_equal(rig_put_one(f->kv, 1, 3000), ICMS_OK);
    assert_int_equal(rig_put_one(f->kv, 2, 3000), ICMS_OK);
    for (size_t i = 0; i < COUNT; i++)
        blocks[i] = block_of(1, address + i * 4 * KIB, 3000);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    assert_int_equal(icms_get_start(f->kv, blocks, COUNT, NULL, &request), ICMS_OK);
    for (; gpu->count(FAKE_DEVICE_ASKED) < asked + COUNT; (void)!icms_request_wait(request, 1))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    icms_request_cancel(request);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_int_equal(device_leases(f), CLIENT_LEASES_DEVICE);
    for (int i = 0; i < 10; i++)
        assert_int_equal(rig_get_one(f->kv, 2, 3000, NULL), ICMS_OK);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    leases_come_back(f);
    for (size_t i = 0; i < COUNT; i++)
        device_is(address + i * 4 * KIB, 3000, 1);
    free(blocks);
    unreg(&memory);
}

/* Several times as many as there are leases and copies. */
static void large_batches_wait_for_leases(void **state)
{
    enum { COUNT = 2000 };
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, COUNT * 4 * KIB, &memory);
    struct icms_block *blocks = calloc(COUNT, sizeof(*blocks));

    for (uint64_t i = 0; i < 4; i++)
        assert_int_equal(rig_put_one(f->kv, i, 3000), ICMS_OK);
    for (size_t i = 0; i < COUNT; i++)
        blocks[i] = block_of(i % 4, address + i * 4 * KIB, 3000);
    gpu->set(FAKE_DEVICE_DELAY_US, 200);
    assert_int_equal(icms_get(f->kv, blocks, COUNT, NULL), ICMS_OK);
    for (size_t i = 0; i < COUNT; i++)
        device_is(address + i * 4 * KIB, 3000, i % 4);
    assert_int_equal(device_leases(f), 0);
    free(blocks);
    unreg(&memory);
}

static void where_it_cannot_be_pinned_values_are_staged(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory, *second;
    uint64_t address;

    /* The arena is larger than this, the copier's memory smaller when it has to be. */
    gpu->set(in_process ? FAKE_DEVICE_PIN_MAX : FAKE_DEVICE_PIN_READ,
             in_process ? 4 << 20 : FAKE_NOT_SUPPORTED);
    atomic_store(&f->watched, f->icms);
    address = memory_new(f, MIB, &memory);
    assert_int_equal(f->lines, 1);
    assert_non_null(strstr(f->line, "cannot pin"));
    assert_non_null(strstr(f->line, in_process ? "ERROR_OUT_OF_MEMORY" : "ERROR_NOT_SUPPORTED"));
    (void)memory_new(f, MIB, &second);
    assert_int_equal(f->lines, 1);
    atomic_store(&f->watched, NULL);
    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    get_stuck(memory, f->kv, 1, address);
    assert_int_equal(device_leases(f), 0);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    assert_int_equal(get_one(f->kv, 1, address, BYTES), ICMS_OK);
    device_is(address, BYTES, 1);
    unreg(&memory);
    unreg(&second);
}

static void a_volume_that_is_opened_later_is_pinned(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_volume *later = NULL;
    char why[256] = "";
    int pins;

    icms_volume_close(in_process ? &later : &f->rig.raw);
    pins = gpu->count(FAKE_DEVICE_PINS);
    if (icms_volume_open(f->icms, in_process ? "later" : "raw", why, sizeof(why), &later) !=
        ICMS_OK)
        fail_msg("%s", why);
    if (in_process) /* another agent, and both volumes are pinned */
        assert_true(gpu->count(FAKE_DEVICE_PINS) > pins);
    assert_int_equal(put_one(later, 1, address, BYTES), ICMS_OK);
    get_stuck(memory, later, 1, address);
    assert_int_equal(device_leases(f), 1);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    leases_come_back(f);
    assert_int_equal(put_one(f->kv, 2, address, BYTES), ICMS_OK);
    get_stuck(memory, f->kv, 2, address);
    assert_int_equal(device_leases(f), 1);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    icms_volume_close(&later);
    unreg(&memory);
}

/* The agent of a dir: is not replaced while a device reads what it has. */
static void a_volume_is_not_made_while_a_device_reads(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_volume *later = NULL;
    char why[256] = "";

    if (!in_process)
        skip();
    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    get_stuck(memory, f->kv, 1, address);
    assert_int_equal(icms_volume_open(f->icms, "later", why, sizeof(why), &later), ICMS_BUSY);
    assert_non_null(strstr(why, "copies to devices"));
    gpu->set(FAKE_DEVICE_STUCK, 0);
    leases_come_back(f);
    device_is(address, BYTES, 1);
    assert_int_equal(icms_volume_open(f->icms, "later", why, sizeof(why), &later), ICMS_OK);
    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK); /* the fake agent keeps nothing */
    assert_int_equal(get_one(f->kv, 1, address, BYTES), ICMS_OK);
    icms_volume_close(&later);
    unreg(&memory);
}

/* The agent dies and another one takes its place: the old arena stays until the device is done. */
static void the_arena_of_a_dead_agent_stays_while_a_device_reads(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);

    if (in_process)
        skip();
    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    get_stuck(memory, f->kv, 1, address);
    fake_socket_stop(&f->rig.socket);
    f->rig.socket = fake_socket_start(f->rig.agent, f->rig.path);
    assert_int_equal(rig_put_one_soon(f->kv, 2, BYTES), ICMS_OK);
    assert_false(list_empty(&f->icms->retired));
    gpu->set(FAKE_DEVICE_STUCK, 0);
    retired_go(f);
    device_is(address, BYTES, 1);
    leases_come_back(f);
    assert_int_equal(get_one(f->kv, 2, address, BYTES), ICMS_OK);
    device_is(address, BYTES, 2);
    unreg(&memory);
}

/* Another agent in the place of the one that is gone. */
static void agent_anew(struct fixture *f)
{
    fake_socket_stop(&f->rig.socket);
    f->rig.socket = fake_socket_start(f->rig.agent, f->rig.path);
    assert_int_equal(rig_put_one_soon(f->kv, 2, BYTES), ICMS_OK);
}

/* Nobody registers anything or opens a volume: the call that finds the new agent is enough. */
static void the_arena_of_the_next_agent_is_pinned(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory), begin;
    int pins = gpu->count(FAKE_DEVICE_PINS);

    if (in_process)
        skip();
    for (int i = 0; i < 3; i++) {
        agent_anew(f);
        /* Those of the old agent went. */
        for (begin = client_now_ns(); gpu->count(FAKE_DEVICE_PINS) != pins || !arenas_are_pinned(f);
             usleep(1000))
            assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        get_stuck(memory, f->kv, 2, address);
        assert_int_equal(device_leases(f), 1);
        gpu->set(FAKE_DEVICE_STUCK, 0);
        leases_come_back(f);
        device_is(address, BYTES, 2);
    }
    unreg(&memory);
}

/* Pinning takes the driver long: calls go on, and their values are copied once more. */
static void calls_do_not_wait_for_the_next_arena(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory), begin;

    if (in_process)
        skip();
    gpu->set(FAKE_DEVICE_PIN_HANG, 1);
    agent_anew(f);
    assert_int_equal(get_one(f->kv, 2, address, BYTES), ICMS_OK);
    device_is(address, BYTES, 2);
    assert_false(arenas_are_pinned(f));
    /* That agent goes, too, while the driver pins what it had. */
    agent_anew(f);
    assert_false(list_empty(&f->icms->retired));
    assert_int_equal(get_one(f->kv, 2, address, BYTES), ICMS_OK);
    gpu->set(FAKE_DEVICE_PIN_HANG, 0);
    for (begin = client_now_ns(); !arenas_are_pinned(f); usleep(1000))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    retired_go(f);
    unreg(&memory);
}

static void a_refusal_to_pin_the_next_arena_is_said(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory), begin;

    if (in_process)
        skip();
    gpu->set(FAKE_DEVICE_PIN_READ, FAKE_NOT_SUPPORTED);
    for (int i = 0; i < 2; i++) {
        agent_anew(f);
        for (begin = client_now_ns(); f->lines == 0; usleep(1000))
            assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        retired_go(f);
        assert_int_equal(get_one(f->kv, 2, address, BYTES), ICMS_OK);
        device_is(address, BYTES, 2);
    }
    assert_int_equal(f->lines, 1);
    assert_non_null(strstr(f->line, "MiB again for CUDA device 0: ERROR_NOT_SUPPORTED"));
    unreg(&memory);
}

static void *pin_soon(void *arg)
{
    (void)usleep(100000);
    gpu->set(FAKE_DEVICE_PIN_HANG, 0);
    return arg;
}

/* The last range of a device goes meanwhile: what the driver pins is unpinned before that is over.
 */
static void memory_is_unregistered_while_the_next_arena_is_pinned(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    pthread_t thread;

    if (in_process)
        skip();
    (void)memory_new(f, MIB, &memory);
    gpu->set(FAKE_DEVICE_PIN_HANG, 1);
    agent_anew(f);
    assert_int_equal(pthread_create(&thread, NULL, pin_soon, NULL), 0);
    unreg(&memory);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(gpu->count(FAKE_DEVICE_PINS), 0);
    assert_false(f->icms->link->kept);
}

static void *memory_register(void *arg)
{
    struct fixture *f = arg;

    return reg(f, gpu->alloc(f->context, MIB), MIB);
}

/* The agent is replaced while a call lasts that the driver holds up: others do not wait for it. */
static void calls_do_not_wait_for_one_that_the_next_agent_waits_for(void **state)
{
    struct fixture *f = *state;
    struct icms_request_options options = {.struct_bytes = sizeof(options), .deadline_ms = 10};
    struct icms_key key = rig_key(1);
    struct icms_memory *memory;
    uint64_t begin = client_now_ns();
    bool is_pinning = false;
    pthread_t thread;
    size_t matched;

    if (in_process)
        skip();
    gpu->set(FAKE_DEVICE_PIN_HANG, 1);
    assert_int_equal(pthread_create(&thread, NULL, memory_register, f), 0);
    while (!is_pinning) {
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        client_lock(f->icms);
        is_pinning = f->icms->calls != 0;
        client_unlock(f->icms);
    }
    fake_socket_stop(&f->rig.socket);
    f->rig.socket = fake_socket_start(f->rig.agent, f->rig.path);
    while (icms_volume_state(f->kv) == ICMS_OK)
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    for (int i = 0; i < 200; i++, usleep(1000)) {
        assert_int_equal(icms_volume_state(f->kv), ICMS_PEER_DOWN);
        assert_int_equal(icms_match(f->kv, &key, 1, &options, &matched), ICMS_PEER_DOWN);
    }
    gpu->set(FAKE_DEVICE_PIN_HANG, 0);
    assert_int_equal(pthread_join(thread, (void **)&memory), 0);
    assert_int_equal(rig_put_one_soon(f->kv, 1, BYTES), ICMS_OK);
    unreg(&memory);
}

static void a_context_that_is_destroyed_gives_its_leases_back(void **state)
{
    struct fixture *f = *state;
    void *context = gpu->context_new(0);
    uint64_t address = gpu->alloc(context, MIB);
    struct icms_memory *memory = reg(f, address, MIB);

    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    get_stuck(memory, f->kv, 1, address);
    assert_int_equal(device_leases(f), 1);
    gpu->context_destroy(context);
    leases_come_back(f);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    unreg(&memory);
}

/* A driver that goes on believing in its pin: what it would read stays mapped after icms_close. */
static void what_a_driver_does_not_unpin_stays_mapped(void **state)
{
    struct fixture *f = *state;
    void *context = gpu->context_new(0);
    struct icms_options options;
    struct icms_volume *volume = NULL;
    struct icms *icms = NULL;
    struct icms_memory *memory = NULL;
    uint64_t address = gpu->alloc(context, MIB);
    unsigned char resident;
    void *base;

    if (in_process)
        skip(); /* the agent would be left behind as well */
    icms_options_init(&options);
    assert_int_equal(icms_open(f->rig.where, &options, NULL, 0, &icms), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "kv", NULL, 0, &volume), ICMS_OK);
    assert_int_equal(
        icms_memory_register(icms, ICMS_MEMORY_CUDA, pointer(address), MIB, NULL, 0, &memory),
        ICMS_OK);
    base = client_volume_map(icms->link, "kv")->base;
    gpu->set(FAKE_DEVICE_UNPIN, FAKE_BAD_CONTEXT);
    icms_close(&icms);
    gpu->set(FAKE_DEVICE_UNPIN, 0);
    assert_int_equal(mincore(base, 4096, &resident), 0);
    gpu->context_destroy(context); /* it takes the pins along */
}

static void encrypted_volumes_are_staged(void **state)
{
    struct fixture *f = *state;
    char folder[] = "/tmp/icms-memory-XXXXXX", list[80], key[80], why[256] = "";
    uint64_t address = gpu->alloc(f->context, MIB);
    struct icms_options options;
    struct icms_memory *memory = NULL;
    struct icms_volume *vault = NULL;
    struct icms *icms = NULL;
    FILE *file;

    if (in_process)
        skip();
    assert_non_null(mkdtemp(folder));
    (void)snprintf(key, sizeof(key), "%s/key", folder);
    (void)snprintf(list, sizeof(list), "%s/keys.yaml", folder);
    file = fopen(key, "w");
    (void)fputs("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", file);
    (void)fclose(file);
    assert_int_equal(chmod(key, 0600), 0);
    file = fopen(list, "w");
    (void)fprintf(file, "volumes:\n  - name: vault\n    keys:\n      - id: 1\n        file: %s\n",
                  key);
    (void)fclose(file);
    icms_options_init(&options);
    options.keys = list;
    if (icms_open(f->rig.where, &options, why, sizeof(why), &icms) != ICMS_OK ||
        icms_volume_open(icms, "vault", why, sizeof(why), &vault) != ICMS_OK ||
        icms_memory_register(icms, ICMS_MEMORY_CUDA, pointer(address), MIB, why, sizeof(why),
                             &memory) != ICMS_OK)
        fail_msg("%s", why);
    assert_int_equal(gpu->count(FAKE_DEVICE_PINS), 1); /* the copier's own memory */
    assert_int_equal(put_one(vault, 1, address, BYTES), ICMS_OK);
    assert_int_equal(get_one(vault, 1, address, BYTES), ICMS_OK);
    assert_int_equal(atomic_load(&icms->link->device_leases), 0);
    icms_close(&icms);
    (void)unlink(key);
    (void)unlink(list);
    (void)rmdir(folder);
}

static void fail_inside(void *arg)
{
    check(arg == NULL && "of the test");
}

/* Its lease is the agent's again when the device is done, and not at the end of the handle. */
static void a_handle_that_failed_keeps_leases_of_devices(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_block block = block_of(1, address, BYTES);
    struct icms_request *request = NULL;
    int asked = gpu->count(FAKE_DEVICE_ASKED);
    uint64_t begin = client_now_ns();

    if (in_process)
        skip(); /* guarded handles alone fail */
    assert_int_equal(rig_put_one(f->kv, 1, BYTES), ICMS_OK);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    assert_int_equal(icms_get_start(f->kv, &block, 1, NULL, &request), ICMS_OK);
    for (; gpu->count(FAKE_DEVICE_ASKED) == asked; (void)!icms_request_wait(request, 1))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    assert_false(client_guarded(f->icms, fail_inside, f));
    assert_int_equal(device_leases(f), 1);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    assert_int_equal(icms_request_end(&request), ICMS_CLOSED);
    device_is(address, BYTES, 1);
    unreg(&memory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(a_device_reads_the_arena_under_a_lease),
        CASE(a_slot_that_a_device_reads_is_not_used_again),
        CASE(who_waits_for_memory_keeps_nobody_from_leases),
        CASE(a_damaged_block_is_not_copied),
        CASE(a_stuck_device_leaves_leases_to_others),
        CASE(large_batches_wait_for_leases),
        CASE(where_it_cannot_be_pinned_values_are_staged),
        CASE(a_volume_that_is_opened_later_is_pinned),
        CASE(a_volume_is_not_made_while_a_device_reads),
        CASE(the_arena_of_a_dead_agent_stays_while_a_device_reads),
        CASE(the_arena_of_the_next_agent_is_pinned),
        CASE(calls_do_not_wait_for_the_next_arena),
        CASE(a_refusal_to_pin_the_next_arena_is_said),
        CASE(memory_is_unregistered_while_the_next_arena_is_pinned),
        CASE(calls_do_not_wait_for_one_that_the_next_agent_waits_for),
        CASE(a_context_that_is_destroyed_gives_its_leases_back),
        CASE(what_a_driver_does_not_unpin_stays_mapped),
        CASE(encrypted_volumes_are_staged),
        CASE(a_handle_that_failed_keeps_leases_of_devices),
    };

    if (memory_rig_begin(argc, argv) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
