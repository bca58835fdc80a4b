/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory in libicms, over the fake GPU (device/fake_device.h): its memory ends a process
 * whose CPU touches it, so every test is one of that, too. The agent is fake, behind a socket, or
 * with the argument "dir" in this process.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/memory_rig.h"

/* ---- the plain life ------------------------------------------------------------------------- */

static void what_was_put_from_a_device_is_what_is_got_there(void **state)
{
    static const size_t sizes[] = {1, 7, 4032, 4097, 65535, 65536};
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, 4 * MIB, &memory);
    int ran = gpu->count(FAKE_DEVICE_COPIES);

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        device_fill(address + 3, sizes[i], i);
        assert_int_equal(put_one(f->kv, i, address + 3, sizes[i]), ICMS_OK);
        assert_int_equal(rig_get_one(f->kv, i, sizes[i], NULL), ICMS_OK); /* into host memory */
        assert_int_equal(rig_put_one(f->kv, 100 + i, sizes[i]), ICMS_OK);
        for (int n = 0; n < 2; n++) { /* by message, then from the arena */
            assert_int_equal(get_one(f->kv, i, address + MIB, sizes[i]), ICMS_OK);
            device_is(address + MIB, sizes[i], i);
            assert_int_equal(get_one(f->kv, 100 + i, address + 2 * MIB, sizes[i]), ICMS_OK);
            device_is(address + 2 * MIB, sizes[i], 100 + i);
        }
    }
    assert_int_equal(gpu->count(FAKE_DEVICE_COPIES) - ran, 5 * sizeof(sizes) / sizeof(*sizes));
    unreg(&memory);
}

/* More than all pinned memory, to and from the device in one batch, and host memory among it. */
static void large_batches_go_through(void **state)
{
    enum { COUNT = 24 };
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t bytes = 5 * MIB + 123, address = memory_new(f, COUNT * 6 * MIB, &memory);
    struct icms_block blocks[COUNT];
    uint8_t *host = malloc(bytes);

    rig_fill(host, bytes, 5);
    for (uint64_t i = 0; i < COUNT; i++) {
        device_fill(address + i * 6 * MIB, bytes, i);
        blocks[i] = block_of(i, address + i * 6 * MIB, bytes);
    }
    blocks[5].data = host;
    assert_int_equal(icms_put(f->big, blocks, COUNT, NULL), ICMS_OK);
    for (uint64_t i = 0; i < COUNT; i++)
        device_fill(address + i * 6 * MIB, bytes, 1000);
    memset(host, 0, bytes);
    (void)!icms_get(f->big, blocks, COUNT, NULL);
    for (uint64_t i = 0; i < COUNT; i++) {
        if (blocks[i].status == ICMS_MISS) { /* the fake agent has few slots */
            assert_int_equal(blocks[i].reason, ICMS_MISS_SHED);
            continue;
        }
        assert_int_equal(blocks[i].status, ICMS_OK);
        assert_int_equal(blocks[i].bytes, bytes);
        if (i != 5)
            device_is(address + i * 6 * MIB, bytes, i);
        else
            assert_int_equal(host[0], (rig_fill(host + 1, 1, 5), host[1]));
    }
    free(host);
    unreg(&memory);
}

static void many_small_blocks_go_through(void **state)
{
    enum { COUNT = 2000 };
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, COUNT * 4 * KIB, &memory);
    struct icms_block *blocks = calloc(COUNT, sizeof(*blocks));
    size_t ok = 0;

    for (uint64_t i = 0; i < COUNT; i++) {
        device_fill(address + i * 4 * KIB, 3000, i);
        blocks[i] = block_of(i, address + i * 4 * KIB, 3000);
    }
    assert_int_equal(icms_put(f->kv, blocks, COUNT, NULL), ICMS_OK);
    device_fill(address, COUNT * 4 * KIB, 1);
    (void)!icms_get(f->kv, blocks, COUNT, NULL);
    for (uint64_t i = 0; i < COUNT; i++) {
        if (blocks[i].status != ICMS_OK)
            continue;
        device_is(address + i * 4 * KIB, 3000, i);
        ok++;
    }
    assert_true(ok >= 8);
    free(blocks);
    unreg(&memory);
}

static void misses_and_wrong_sizes_give_their_room_back(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, 64 * MIB, &memory);
    struct icms_block block;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    device_fill(address, 5000, 77);
    for (int i = 0; i < 600; i++) { /* more than there are copies */
        block = block_of(1, address, 10);
        assert_int_equal(icms_get(f->kv, &block, 1, NULL), ICMS_MISS);
        assert_int_equal(block.status, ICMS_VALUE_SIZE);
        assert_int_equal(block.bytes, 5000);
        assert_int_equal(get_one(f->kv, 12345, address, 5000), ICMS_MISS);
    }
    device_is(address, 5000, 77);
    unreg(&memory);
}

/* ---- asynchronous, order -------------------------------------------------------------------- */

static void requests_end_each_on_its_own(void **state)
{
    enum { LAYERS = 32 };
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, LAYERS * 64 * KIB, &memory);
    struct icms_block blocks[LAYERS];
    struct icms_request *requests[LAYERS], *over;
    struct icms_request_options options;
    size_t ended = 0;

    icms_request_options_init(&options);
    for (uint64_t i = 0; i < LAYERS; i++)
        assert_int_equal(rig_put_one(f->kv, i, 60000), ICMS_OK);
    for (uint64_t i = 0; i < LAYERS; i++) {
        blocks[i] = block_of(i, address + i * 64 * KIB, 64 * KIB);
        options.tag = &blocks[i];
        assert_int_equal(icms_get_start(f->kv, &blocks[i], 1, &options, &requests[i]), ICMS_OK);
    }
    while (ended < LAYERS && (over = rig_poll_next(f->icms)) != NULL) {
        const struct icms_block *block = icms_request_tag(over);
        uint64_t number = (uint64_t)(block - blocks);

        if (block->status == ICMS_OK) {
            assert_int_equal(block->bytes, 60000);
            device_is(address + number * 64 * KIB, 60000, number);
        }
        (void)icms_request_end(&over);
        ended++;
    }
    assert_int_equal(ended, LAYERS);
    unreg(&memory);
}

/* The copy to the device waits for what is on the stream at the call; what is put there after the
 * get runs behind the copy. */
static void copies_are_ordered_on_the_callers_stream(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory), begin;
    void *stream = gpu->stream_new(f->context);
    struct icms_block block = block_of(1, address, 60000);
    struct icms_request_options options;
    uint8_t byte = 1;

    icms_request_options_init(&options);
    options.stream = stream;
    assert_int_equal(rig_put_one(f->kv, 1, 60000), ICMS_OK);
    gpu->stream_hold(stream, true);
    gpu->stream_write(stream, address, 0x11, 60000);
    assert_int_equal(icms_get(f->kv, &block, 1, &options), ICMS_OK);
    gpu->read(address, &byte, 1);
    assert_int_equal(byte, 0); /* over, and nothing has run */
    gpu->stream_write(stream, address, 0x22, 10);
    gpu->stream_hold(stream, false);
    for (begin = client_now_ns(); !gpu->stream_idle(stream); usleep(100))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    {
        uint8_t got[60000], wanted[60000];

        rig_fill(wanted, sizeof(wanted), 1);
        memset(wanted, 0x22, 10);
        gpu->read(address, got, sizeof(got));
        assert_memory_equal(got, wanted, sizeof(got));
    }
    /* A put takes what the stream leaves there. */
    gpu->stream_hold(stream, true);
    gpu->stream_write(stream, address, 0x44, 60000);
    {
        struct icms_request *request = NULL;
        uint8_t data[60000];
        struct icms_block back = {.key = rig_key(2), .data = data, .bytes = sizeof(data)};

        block = block_of(2, address, 60000);
        assert_int_equal(icms_put_start(f->kv, &block, 1, &options, &request), ICMS_OK);
        assert_int_equal(icms_request_wait(request, 50), ICMS_DEADLINE);
        gpu->stream_hold(stream, false);
        assert_int_equal(icms_request_end(&request), ICMS_OK);
        assert_int_equal(icms_get(f->kv, &back, 1, NULL), ICMS_OK);
        assert_int_equal(data[0], 0x44);
        assert_int_equal(data[59999], 0x44);
    }
    unreg(&memory);
    gpu->stream_free(stream);
}

static void streams_that_cannot_be_used_are_refused(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory, *other;
    uint64_t address = memory_new(f, MIB, &memory);
    uint64_t elsewhere = gpu->alloc(gpu->context(1), MIB);
    void *stream = gpu->stream_new(f->context);
    struct icms_block blocks[2] = {block_of(1, address, 5000), block_of(2, elsewhere, 5000)};
    struct icms_request_options options;

    other = reg(f, elsewhere, MIB);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    assert_int_equal(rig_put_one(f->kv, 2, 5000), ICMS_OK);
    icms_request_options_init(&options);
    options.stream = stream;
    assert_int_equal(icms_get(f->kv, blocks, 2, &options), ICMS_INVALID); /* two devices */
    assert_int_equal(blocks[0].status, ICMS_INVALID);
    options.stream = (void *)DEVICE_STREAM_PER_THREAD;
    assert_int_equal(icms_get(f->kv, blocks, 1, &options), ICMS_INVALID);
    options.stream = stream;
    gpu->stream_capture(stream, true);
    assert_int_equal(icms_get(f->kv, blocks, 1, &options), ICMS_INVALID);
    gpu->stream_capture(stream, false);
    options.stream = &options; /* no stream */
    assert_int_equal(icms_get(f->kv, blocks, 1, &options), ICMS_DEVICE);
    assert_int_equal(icms_get(f->kv, blocks, 2, NULL), ICMS_OK); /* without one they are fine */
    device_is(address, 5000, 1);
    device_is(elsewhere, 5000, 2);
    unreg(&memory);
    unreg(&other);
    gpu->stream_free(stream);
}

/* Memory of a pool names no context, and lies in the primary one like the other memory there. */
static void memory_of_a_pool_shares_the_device(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory, *pool;
    uint64_t address = memory_new(f, MIB, &memory);
    uint64_t elsewhere = gpu->alloc_pool(f->context, MIB);
    int pins = gpu->count(FAKE_DEVICE_PINS);
    void *stream = gpu->stream_new(f->context);
    struct icms_block blocks[2] = {block_of(1, address, 5000), block_of(2, elsewhere, 5000)};
    struct icms_request_options options;
    uint64_t begin;

    pool = reg(f, elsewhere, MIB);
    assert_int_equal(gpu->count(FAKE_DEVICE_PINS), pins);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    assert_int_equal(rig_put_one(f->kv, 2, 5000), ICMS_OK);
    icms_request_options_init(&options);
    options.stream = stream;
    assert_int_equal(icms_get(f->kv, blocks, 2, &options), ICMS_OK);
    for (begin = client_now_ns(); !gpu->stream_idle(stream); usleep(100))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    device_is(address, 5000, 1);
    device_is(elsewhere, 5000, 2);
    unreg(&memory);
    unreg(&pool);
    gpu->stream_free(stream);
}

/* A request remembers its stream by an event of the copier's, also when none of its copies runs. */
static void memory_stays_while_a_request_remembers_a_stream(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, 64 * KIB, &memory);
    void *stream = gpu->stream_new(f->context);
    struct icms_request *request = NULL;
    struct icms_request_options options;
    uint8_t host[5000];
    struct icms_block blocks[2] = {block_of(1, address + 60 * KIB, 5000), /* leaves the range */
                                   block_of(2, (uint64_t)(uintptr_t)host, sizeof(host))};

    rig_fill(host, sizeof(host), 2);
    icms_request_options_init(&options);
    options.stream = stream;
    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_put_start(f->kv, blocks, 2, &options, &request), ICMS_OK);
    assert_int_equal(icms_request_wait(request, 20), ICMS_DEADLINE);
    assert_int_equal(icms_memory_unregister(&memory), ICMS_BUSY);
    atomic_store(&fake.swallow, false);
    (void)icms_request_end(&request);
    assert_int_equal(blocks[0].status, ICMS_INVALID);
    assert_int_equal(blocks[1].status, ICMS_OK);
    unreg(&memory);
    gpu->stream_free(stream);
}

struct stress {
    struct fixture *f;
    uint64_t address;
    unsigned number;
};

static void *stress_run(void *arg)
{
    const struct stress *s = arg;
    struct icms_block blocks[8];

    for (int round = 0; round < 40; round++) {
        for (uint64_t i = 0; i < 8; i++) {
            uint64_t at = s->address + i * 64 * KIB;

            device_fill(at, 64 * KIB, s->number * 1000 + i);
            blocks[i] = block_of(s->number * 1000 + i, at, 64 * KIB);
        }
        assert_int_equal(icms_put(s->f->kv, blocks, 8, NULL), ICMS_OK);
        (void)!icms_get(s->f->kv, blocks, 8, NULL);
        for (uint64_t i = 0; i < 8; i++)
            if (blocks[i].status == ICMS_OK)
                device_is(s->address + i * 64 * KIB, 64 * KIB, s->number * 1000 + i);
    }
    return NULL;
}

static void threads_share_a_device(void **state)
{
    enum { THREADS = 4 };
    struct fixture *f = *state;
    struct stress stress[THREADS];
    struct icms_memory *memories[THREADS];
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        stress[i] = (struct stress){.f = f, .number = i};
        stress[i].address = memory_new(f, MIB, &memories[i]);
        assert_int_equal(pthread_create(&threads[i], NULL, stress_run, &stress[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        unreg(&memories[i]);
    }
}

/* ---- what goes wrong ------------------------------------------------------------------------ */

static void register_refuses(struct fixture *f, enum icms_memory_kind kind, uint64_t address,
                             uint64_t bytes, icms_err err, const char *word)
{
    struct icms_memory *memory = NULL;
    char why[512] = "";

    assert_int_equal(
        icms_memory_register(f->icms, kind, pointer(address), bytes, why, sizeof(why), &memory),
        err);
    assert_null(memory);
    if (strstr(why, word) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", word, why);
}

static void what_cannot_be_registered_is_refused_with_words(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory, *host = NULL;
    uint64_t address = memory_new(f, MIB, &memory), pinned = gpu->pinned(f->context, MIB);
    uint64_t free_ = gpu->alloc(f->context, MIB);
    uint8_t here[100];

    register_refuses(f, ICMS_MEMORY_CUDA, (uint64_t)(uintptr_t)here, 100, ICMS_INVALID,
                     "is not CUDA memory");
    register_refuses(f, ICMS_MEMORY_CUDA, pinned, 100, ICMS_INVALID, "host memory");
    register_refuses(f, ICMS_MEMORY_CUDA, address + 5, 100, ICMS_INVALID, "overlap");
    register_refuses(f, ICMS_MEMORY_CUDA, free_, 0, ICMS_INVALID, "no range");
    register_refuses(f, ICMS_MEMORY_CUDA, free_, UINT64_MAX, ICMS_INVALID, "no range");
    register_refuses(f, ICMS_MEMORY_CUDA, free_, 1 << 30, ICMS_INVALID, "is not CUDA memory");
    register_refuses(f, (enum icms_memory_kind)9, free_, 100, ICMS_INVALID, "no such kind");
    gpu->set(FAKE_DEVICE_INIT, FAKE_NO_DEVICE);
    register_refuses(f, ICMS_MEMORY_CUDA, free_, MIB, ICMS_UNSUPPORTED, "ERROR_NO_DEVICE");
    gpu->set(FAKE_DEVICE_INIT, 0);
    gpu->set(FAKE_DEVICE_VERSION, 10010);
    register_refuses(f, ICMS_MEMORY_CUDA, free_, MIB, ICMS_UNSUPPORTED, "too old");
    gpu->set(FAKE_DEVICE_VERSION, 0);
    unreg(&memory);
    gpu->set(FAKE_DEVICE_PIN_MAX, 4096);
    register_refuses(f, ICMS_MEMORY_CUDA, free_, MIB, ICMS_NO_MEMORY, "pin");
    gpu->set(FAKE_DEVICE_PIN_MAX, 0);
    gpu->set(FAKE_DEVICE_STREAM, FAKE_NO_MEMORY);
    register_refuses(f, ICMS_MEMORY_CUDA, free_, MIB, ICMS_DEVICE, "ERROR_OUT_OF_MEMORY");
    gpu->set(FAKE_DEVICE_STREAM, 0);
    /* Host memory may be named, and is what it was. */
    assert_int_equal(
        icms_memory_register(f->icms, ICMS_MEMORY_HOST, here, sizeof(here), NULL, 0, &host),
        ICMS_OK);
    assert_int_equal(rig_put_one(f->kv, 3, 90), ICMS_OK);
    assert_int_equal(get_one(f->kv, 3, (uint64_t)(uintptr_t)here, 100), ICMS_OK);
    unreg(&host);
}

static void device_memory_that_is_not_registered_is_refused(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory = NULL;
    uint64_t address = gpu->alloc(f->context, MIB), other = gpu->alloc(f->context, MIB);

    for (int i = 0; i < 3; i++) { /* before anything is registered, meanwhile, and after */
        assert_int_equal(put_one(f->kv, 1, other, 5000), ICMS_NOT_REGISTERED);
        assert_int_equal(get_one(f->kv, 1, other, 5000), ICMS_NOT_REGISTERED);
        if (i == 0)
            memory = reg(f, address, 64 * KIB);
        else if (i == 1)
            unreg(&memory);
    }
    memory = reg(f, address, 64 * KIB);
    assert_int_equal(put_one(f->kv, 1, address + 60 * KIB, 5000), ICMS_INVALID); /* leaves it */
    assert_int_equal(get_one(f->kv, 1, address + 64 * KIB, 100), ICMS_NOT_REGISTERED);
    assert_int_equal(put_one(f->kv, 1, address + 64 * KIB - 100, 100), ICMS_OK);
    unreg(&memory);
}

static void device_memory_never_gets_bytes_that_failed_a_check(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_block block = block_of(1, address, 60000);

    assert_int_equal(rig_put_one(f->kv, 1, 60000), ICMS_OK);
    device_fill(address, 60000, 42);
    atomic_store(&fake.damage, 101);
    assert_int_equal(icms_get(f->kv, &block, 1, NULL), ICMS_MISS);
    assert_int_equal(block.reason, ICMS_MISS_CHECKSUM);
    device_is(address, 60000, 42);
    atomic_store(&fake.damage, 0);
    atomic_store(&fake.version, 5); /* nor those of another format version */
    assert_int_equal(rig_put_one(f->kv, 1, 60000), ICMS_OK);
    assert_int_equal(icms_get(f->kv, &block, 1, NULL), ICMS_MISS);
    assert_int_equal(block.reason, ICMS_MISS_VERSION);
    device_is(address, 60000, 42);
    atomic_store(&fake.version, 0);
    unreg(&memory);
}

/* Nothing comes back from the device: the deadline holds, and pinned memory is not used again. */
static void a_stuck_stream_costs_the_deadline_and_no_more(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory), begin;
    struct icms_request_options options;
    struct icms_block block = block_of(1, address, 60000);

    icms_request_options_init(&options);
    options.deadline_ms = 200;
    assert_int_equal(rig_put_one(f->kv, 1, 60000), ICMS_OK);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    for (int hang = 0; hang < 2; hang++) {
        begin = client_now_ns();
        block = block_of(1, address, 60000);
        assert_int_equal(icms_get(f->kv, &block, 1, &options), ICMS_MISS);
        assert_int_equal(block.status, ICMS_MISS);
        assert_int_equal(block.reason, ICMS_MISS_DEADLINE);
        assert_in_range(rig_elapsed_ms(begin), 200, 5000);
        begin = client_now_ns();
        block = block_of(2, address, 60000);
        (void)!icms_put(f->kv, &block, 1, &options);
        assert_int_equal(block.status, ICMS_DEADLINE);
        assert_in_range(rig_elapsed_ms(begin), 200, 5000);
        assert_int_equal(icms_memory_unregister(&memory), ICMS_BUSY);
        gpu->set(FAKE_DEVICE_HANG, 1); /* then the driver does not even return */
    }
    gpu->set(FAKE_DEVICE_HANG, 0);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    unreg(&memory);
    assert_int_equal(rig_get_one(f->kv, 2, 60000, NULL), ICMS_MISS); /* was never stored */
    memory = reg(f, address, MIB);
    assert_int_equal(get_one(f->kv, 1, address, 60000), ICMS_OK);
    device_is(address, 60000, 1);
    unreg(&memory);
}

static void a_canceled_request_lets_go(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_block blocks[4];
    struct icms_request *request = NULL;
    int asked = gpu->count(FAKE_DEVICE_ASKED);

    for (uint64_t i = 0; i < 4; i++)
        blocks[i] = block_of(i, address + i * 64 * KIB, 60000);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    assert_int_equal(icms_put_start(f->kv, blocks, 4, NULL, &request), ICMS_OK);
    while (gpu->count(FAKE_DEVICE_ASKED) == asked)
        usleep(100);
    icms_request_cancel(request);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    for (int i = 0; i < 4; i++)
        assert_int_equal(blocks[i].status, ICMS_CANCELED);
    assert_int_equal(icms_memory_unregister(&memory), ICMS_BUSY);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    unreg(&memory);
}

/* A get whose copy to the device does not end. */
static struct icms_request *get_of_stuck(struct fixture *f, struct icms_memory **out_memory,
                                         struct icms_block *out_block)
{
    struct icms_request *request = NULL;

    *out_block = block_of(1, memory_new(f, MIB, out_memory), 60000);
    assert_int_equal(rig_put_one(f->kv, 1, 60000), ICMS_OK);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    assert_int_equal(icms_get_start(f->kv, out_block, 1, NULL, &request), ICMS_OK);
    return request;
}

/* Its copy to the device has begun: it is over at once, and its memory in use until it has ended.
 */
static void a_canceled_get_does_not_wait_for_its_copy(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    struct icms_block block;
    struct icms_request *request = get_of_stuck(f, &memory, &block);
    uint64_t begin;

    assert_int_equal(icms_request_wait(request, 200), ICMS_DEADLINE);
    begin = client_now_ns();
    icms_request_cancel(request);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_in_range(rig_elapsed_ms(begin), 0, RIG_GRACE_MS / 2);
    assert_int_equal(block.status, ICMS_CANCELED);
    assert_int_equal(icms_memory_unregister(&memory), ICMS_BUSY);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    unreg(&memory);
}

/* When the request's thread sleeps. */
static void *cancels_what_is_waited_for(void *arg)
{
    struct icms_request *request = arg;
    struct icms *icms = request->icms;
    bool sleeps = false;

    while (!sleeps) {
        usleep(1000);
        client_lock(icms);
        sleeps = request->held && icms->reaping;
        client_unlock(icms);
    }
    icms_request_cancel(request);
    return NULL;
}

static void a_cancel_wakes_who_waits_for_a_copy(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    struct icms_block block;
    struct icms_request *request = get_of_stuck(f, &memory, &block);
    uint64_t begin;
    pthread_t thread;

    begin = client_now_ns();
    assert_int_equal(pthread_create(&thread, NULL, cancels_what_is_waited_for, request), 0);
    assert_int_equal(icms_request_wait(request, -1), ICMS_OK);
    assert_in_range(rig_elapsed_ms(begin), 0, RIG_GRACE_MS / 2);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(icms_request_end(&request), ICMS_MISS);
    assert_int_equal(block.status, ICMS_CANCELED);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    unreg(&memory);
}

static void a_copy_that_fails_is_an_error_of_its_block(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_block block = block_of(1, address, 5000);

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    gpu->set(FAKE_DEVICE_COPY, FAKE_INVALID);
    assert_int_equal(icms_get(f->kv, &block, 1, NULL), ICMS_MISS);
    assert_int_equal(block.status, ICMS_DEVICE);
    assert_int_equal(block.source, ICMS_SOURCE_NONE);
    assert_int_equal(put_one(f->kv, 2, address, 5000), ICMS_DEVICE);
    gpu->set(FAKE_DEVICE_COPY, 0);
    assert_int_equal(get_one(f->kv, 1, address, 5000), ICMS_OK);
    assert_int_equal(f->lines, 1);
    assert_non_null(strstr(f->line, "ERROR_INVALID_VALUE"));
    unreg(&memory);
}

static void a_context_that_is_destroyed_is_an_error_and_another_one_is_used(void **state)
{
    struct fixture *f = *state;
    void *context = gpu->context_new(0);
    uint64_t address = gpu->alloc(context, MIB);
    struct icms_memory *memory = reg(f, address, MIB), *next;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    assert_int_equal(get_one(f->kv, 1, address, 5000), ICMS_OK);
    gpu->context_destroy(context);
    assert_int_equal(get_one(f->kv, 1, address, 5000), ICMS_DEVICE);
    assert_int_equal(put_one(f->kv, 2, address, 5000), ICMS_DEVICE);
    assert_int_equal(f->lines, 1);
    address = memory_new(f, MIB, &next);
    assert_int_equal(get_one(f->kv, 1, address, 5000), ICMS_OK);
    device_is(address, 5000, 1);
    unreg(&memory);
    unreg(&next);
}

static void memory_that_was_freed_is_an_error(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    uint8_t byte = 1;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    gpu->alloc_free(address);
    assert_int_equal(get_one(f->kv, 1, address, 5000), ICMS_DEVICE);
    assert_int_equal(gpu->alloc_at(f->context, MIB, address), address); /* somebody else's */
    assert_int_equal(get_one(f->kv, 1, address, 5000), ICMS_DEVICE);
    assert_int_equal(put_one(f->kv, 2, address, 5000), ICMS_DEVICE);
    gpu->read(address, &byte, 1);
    assert_int_equal(byte, 0);
    unreg(&memory);
}

/* A range of several allocations, one behind the other, as expandable segments are. */
static void memory_of_another_device_is_an_error(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t first = gpu->alloc(f->context, 2 * MIB), second = first + MIB;
    uint8_t byte = 1;

    gpu->alloc_free(first);
    assert_int_equal(gpu->alloc_at(f->context, MIB, first), first);
    assert_int_equal(gpu->alloc_at(gpu->context(1), MIB, second), second);
    register_refuses(f, ICMS_MEMORY_CUDA, first, 2 * MIB, ICMS_INVALID, "several devices");
    gpu->alloc_free(second);
    assert_int_equal(gpu->alloc_at(f->context, MIB, second), second);
    memory = reg(f, first, 2 * MIB);
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    assert_int_equal(get_one(f->kv, 1, second, 5000), ICMS_OK);
    gpu->alloc_free(second);
    assert_int_equal(gpu->alloc_at(gpu->context(1), MIB, second), second);
    assert_int_equal(get_one(f->kv, 1, second, 5000), ICMS_DEVICE);
    gpu->read(second, &byte, 1);
    assert_int_equal(byte, 0);
    assert_int_equal(get_one(f->kv, 1, first, 5000), ICMS_OK);
    device_is(first, 5000, 1);
    unreg(&memory);
}

/* The parent goes on, and a child that only lives is told. */
static void a_child_of_fork_is_told(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    int status = 0;
    pid_t child;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    child = fork();
    if (child == 0) {
        struct icms_block block = block_of(1, address, 5000);
        struct icms_memory *other = NULL;
        bool right = icms_get(f->kv, &block, 1, NULL) == ICMS_FORKED &&
                     icms_memory_register(f->icms, ICMS_MEMORY_CUDA, pointer(address), 100, NULL, 0,
                                          &other) == ICMS_FORKED &&
                     icms_memory_unregister(&memory) == ICMS_FORKED;

        icms_close(&f->icms);
        _exit(right ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(get_one(f->kv, 1, address, 5000), ICMS_OK);
    device_is(address, 5000, 1);
    unreg(&memory);
}

/* A handle of the child's own serves it, for memory of the host; the driver does not. */
static void a_child_of_fork_cannot_begin_with_a_driver(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    int status = 0;
    pid_t child;

    if (in_process)
        skip(); /* the parent has the directory */
    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    child = fork();
    if (child == 0) {
        struct icms_memory *other = NULL;
        struct icms_volume *volume = NULL;
        struct icms *icms = NULL;
        uint8_t *data = malloc(5000);
        struct icms_block block = {.key = rig_key(1), .data = data, .bytes = 5000};
        char why[512] = "";
        bool right = icms_open(f->rig.where, NULL, NULL, 0, &icms) == ICMS_OK &&
                     icms_volume_open(icms, "kv", NULL, 0, &volume) == ICMS_OK &&
                     icms_memory_register(icms, ICMS_MEMORY_CUDA, pointer(address), MIB, why,
                                          sizeof(why), &other) == ICMS_UNSUPPORTED &&
                     other == NULL && strstr(why, "was forked from one that uses CUDA") != NULL &&
                     get_one(volume, 1, address, 5000) == ICMS_NOT_REGISTERED &&
                     icms_get(volume, &block, 1, NULL) == ICMS_OK;

        if (!right)
            (void)fprintf(stderr, "in the child: %s\n", why);
        block = (struct icms_block){.key = rig_key(1)}; /* without memory */
        right = right && icms_get(volume, &block, 1, NULL) == ICMS_OK;
        free(data);
        icms_close(&icms);
        _exit(right ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    unreg(&memory);
}

/* What is registered, and under way at its deadline, at icms_close. */
static void close_forgets_what_is_registered(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory, *second;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_request_options options;
    struct icms_block block = block_of(2, address, 60000);

    second = reg(f, gpu->alloc(gpu->context(1), MIB), MIB);
    assert_non_null(second);
    icms_request_options_init(&options);
    options.deadline_ms = 50;
    gpu->set(FAKE_DEVICE_DELAY_US, 300000);
    (void)!icms_put(f->kv, &block, 1, &options);
    assert_int_equal(block.status, ICMS_DEADLINE);
    gpu->set(FAKE_DEVICE_DELAY_US, 0);
}

/* ---- with an agent behind a socket ---------------------------------------------------------- */

static void an_agent_that_dies_takes_no_copy_along(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory);
    struct icms_block blocks[4];
    struct icms_request *request = NULL;

    if (in_process)
        skip();
    assert_int_equal(rig_put_one(f->kv, 0, 5000), ICMS_OK);
    assert_int_equal(get_one(f->kv, 0, address, 5000), ICMS_OK);
    for (uint64_t i = 0; i < 4; i++)
        blocks[i] = block_of(i, address + i * 64 * KIB, 60000);
    atomic_store(&fake.swallow, true);
    assert_int_equal(icms_get_start(f->kv, blocks, 4, NULL, &request), ICMS_OK);
    fake_socket_stop(&f->rig.socket);
    (void)icms_request_end(&request);
    assert_int_equal(blocks[0].status, ICMS_OK); /* was mapped */
    device_is(address, 5000, 0);
    for (int i = 1; i < 4; i++)
        assert_int_equal(blocks[i].status, ICMS_PEER_DOWN);
    unreg(&memory);
}

static void fail_inside(void *arg)
{
    check(arg == NULL && "of the test");
}

/* A handle that failed waits for no driver, and says that memory is in use as long as it is. */
static void a_handle_that_failed_keeps_what_devices_use(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory), begin;
    struct icms_block block = block_of(1, address, 60000);
    struct icms_request *request = NULL;

    if (in_process)
        skip(); /* guarded handles alone fail */
    assert_int_equal(rig_put_one(f->kv, 1, 60000), ICMS_OK);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    assert_int_equal(icms_get_start(f->kv, &block, 1, NULL, &request), ICMS_OK);
    assert_int_equal(icms_request_wait(request, 200), ICMS_DEADLINE);
    assert_false(client_guarded(f->icms, fail_inside, f));
    begin = client_now_ns();
    for (int i = 0; i < 5; i++) {
        assert_int_equal(icms_request_wait(request, 10), ICMS_DEADLINE);
        assert_false(icms_request_over(request));
        assert_null(icms_poll(f->icms));
        assert_int_equal(icms_memory_unregister(&memory), ICMS_BUSY);
    }
    assert_in_range(rig_elapsed_ms(begin), 50, 1500);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    assert_int_equal(icms_request_end(&request), ICMS_CLOSED);
    device_is(address, 60000, 1); /* it had ended then */
    unreg(&memory);
}

/* Plain bytes of an encrypted volume lie in pinned memory of ours on the way, and nowhere that the
 * agent sees. */
static void encrypted_values_pass_in_private_memory(void **state)
{
    struct fixture *f = *state;
    char folder[] = "/tmp/icms-memory-XXXXXX", list[80], key[80], why[256] = "";
    struct icms_options options;
    struct icms_memory *memory = NULL;
    struct icms_volume *vault = NULL;
    struct icms *icms = NULL;
    uint64_t address = gpu->alloc(f->context, 4 * MIB), bytes = MIB;
    uint8_t plain[64];
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
    options.load_deadline_ms = options.store_deadline_ms = RIG_GRACE_MS;
    options.buffer_bytes = 4 * MIB;
    options.keys = list;
    if (icms_open(f->rig.where, &options, why, sizeof(why), &icms) != ICMS_OK ||
        icms_volume_open(icms, "vault", why, sizeof(why), &vault) != ICMS_OK ||
        icms_memory_register(icms, ICMS_MEMORY_CUDA, pointer(address), 4 * MIB, why, sizeof(why),
                             &memory) != ICMS_OK)
        fail_msg("%s", why);
    device_fill(address, bytes, 1);
    assert_int_equal(put_one(vault, 1, address, bytes), ICMS_OK);
    for (int i = 0; i < 2; i++) {
        device_fill(address + 2 * MIB, bytes, 9);
        assert_int_equal(get_one(vault, 1, address + 2 * MIB, bytes), ICMS_OK);
        device_is(address + 2 * MIB, bytes, 1);
    }
    rig_fill(plain, sizeof(plain), 1);
    assert_false(fake_agent_memory_has(f->rig.agent, plain, sizeof(plain)));
    assert_int_equal(put_one(vault, 2, address, bytes), ICMS_OK);
    device_fill(address + 2 * MIB, bytes, 9);
    atomic_store(&fake.damage, 5000);
    assert_int_equal(get_one(vault, 2, address + 2 * MIB, bytes), ICMS_MISS);
    device_is(address + 2 * MIB, bytes, 9);
    atomic_store(&fake.damage, 0);
    icms_close(&icms);
    (void)unlink(key);
    (void)unlink(list);
    (void)rmdir(folder);
}

/* Into whatever space there is. */
static void the_state_names_devices(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    char text[65536], wanted[96];
    size_t bytes, whole, without;

    (void)snprintf(wanted, sizeof(wanted),
                   ",\"devices\":[{\"device\":\"CUDA 0\",\"drive_reads\":\"%s\",\"why\":\"%s\"",
                   in_process ? "undecided" : "host",
                   in_process ? "" : "the agent is another process");
    assert_int_equal(icms_status(f->icms, text, sizeof(text), &without), ICMS_OK);
    assert_null(strstr(text, "\"devices\""));
    (void)memory_new(f, MIB, &memory);
    assert_int_equal(icms_status(f->icms, text, sizeof(text), &bytes), ICMS_OK);
    assert_int_equal(strlen(text) + 1, bytes);
    assert_non_null(strstr(text, wanted));
    assert_string_equal(text + bytes - 4, "}]}");
    for (size_t cut = 0; cut < 3; cut++) { /* of which the agent's part has room, or not */
        size_t space = cut == 0 ? 0 : cut == 1 ? 10 : bytes - 20;

        memset(text, 'x', sizeof(text));
        assert_int_equal(icms_status(f->icms, text, space, &whole), ICMS_OK);
        assert_true(whole > without + 100 && whole < bytes + 256);
        assert_int_equal(text[space], 'x');
        assert_true(space == 0 || memchr(text, 0, space) != NULL);
    }
    unreg(&memory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(what_was_put_from_a_device_is_what_is_got_there),
        CASE(large_batches_go_through),
        CASE(many_small_blocks_go_through),
        CASE(misses_and_wrong_sizes_give_their_room_back),
        CASE(requests_end_each_on_its_own),
        CASE(copies_are_ordered_on_the_callers_stream),
        CASE(streams_that_cannot_be_used_are_refused),
        CASE(memory_of_a_pool_shares_the_device),
        CASE(memory_stays_while_a_request_remembers_a_stream),
        CASE(threads_share_a_device),
        CASE(what_cannot_be_registered_is_refused_with_words),
        CASE(device_memory_that_is_not_registered_is_refused),
        CASE(device_memory_never_gets_bytes_that_failed_a_check),
        CASE(a_stuck_stream_costs_the_deadline_and_no_more),
        CASE(a_canceled_request_lets_go),
        CASE(a_canceled_get_does_not_wait_for_its_copy),
        CASE(a_cancel_wakes_who_waits_for_a_copy),
        CASE(a_copy_that_fails_is_an_error_of_its_block),
        CASE(a_context_that_is_destroyed_is_an_error_and_another_one_is_used),
        CASE(memory_that_was_freed_is_an_error),
        CASE(memory_of_another_device_is_an_error),
        CASE(a_child_of_fork_is_told),
        CASE(a_child_of_fork_cannot_begin_with_a_driver),
        CASE(close_forgets_what_is_registered),
        CASE(an_agent_that_dies_takes_no_copy_along),
        CASE(a_handle_that_failed_keeps_what_devices_use),
        CASE(encrypted_values_pass_in_private_memory),
        CASE(the_state_names_devices),
    };

    if (memory_rig_begin(argc, argv) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
