/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values in several pieces of memory, of the host and of devices, over the fake GPU. The agent is
 * fake, behind a socket, or with the argument "dir" in this process.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/memory_rig.h"

#define LAYERS 8

/* A value of layers, each in registered memory of its own, as engines have it. */
struct layered {
    struct icms_memory *memories[LAYERS];
    uint64_t addresses[LAYERS];
    struct icms_piece pieces[LAYERS];
    uint64_t bytes; /* of all of them */
};

static const uint64_t sizes[LAYERS] = {1, 4096, 7000, 8192, 13, 20000, 8000, 12345};

static void layered_open(struct fixture *f, struct layered *l)
{
    *l = (struct layered){0};
    for (int i = 0; i < LAYERS; i++) {
        l->addresses[i] = memory_new(f, 64 * KIB, &l->memories[i]);
        l->pieces[i] =
            (struct icms_piece){.data = pointer(l->addresses[i] + 100), .bytes = sizes[i]};
        l->bytes += sizes[i];
    }
}

static void layered_close(struct layered *l)
{
    for (int i = 0; i < LAYERS; i++)
        if (l->memories[i] != NULL)
            unreg(&l->memories[i]);
}

/* Its first bytes, from a seed; what is behind the value, and in front of it, is not touched. */
static void layered_is(const struct layered *l, uint64_t bytes, uint64_t seed)
{
    uint8_t *value = malloc(l->bytes), data[64 * KIB], before = 0, after = 0;
    uint64_t at = 0;

    rig_fill(value, bytes, seed);
    for (int i = 0; i < LAYERS && at < bytes; i++) {
        uint64_t n = bytes - at < sizes[i] ? bytes - at : sizes[i];

        gpu->read(l->addresses[i] + 99, &before, 1);
        gpu->read(l->addresses[i] + 100, data, n);
        gpu->read(l->addresses[i] + 100 + n, &after, 1);
        assert_memory_equal(data, value + at, n);
        assert_int_equal(before, 0);
        assert_int_equal(after, 0);
        at += n;
    }
    free(value);
}

static icms_err move(struct icms_volume *volume, uint64_t number, struct icms_piece *pieces,
                     uint32_t count, uint64_t bytes, bool store)
{
    struct icms_block block = {.key = rig_key(number), .data = pieces, .bytes = bytes};
    struct icms_request_options options;
    icms_err err;

    icms_request_options_init(&options);
    options.pieces = count;
    err = store ? icms_put(volume, &block, 1, &options) : icms_get(volume, &block, 1, &options);
    assert_int_equal(err == ICMS_OK, block.status == ICMS_OK);
    return block.status;
}

static void layers_of_a_device_are_one_value(void **state)
{
    struct fixture *f = *state;
    struct layered from, to;

    layered_open(f, &from);
    layered_open(f, &to);
    assert_int_equal(rig_put_one(f->kv, 1, from.bytes), ICMS_OK);
    for (int n = 0; n < 2; n++) { /* asked for, then in the arena */
        assert_int_equal(move(f->kv, 1, from.pieces, LAYERS, from.bytes, false), ICMS_OK);
        layered_is(&from, from.bytes, 1);
        /* Put as layers, it is the same value. */
        assert_int_equal(move(f->kv, 1000, from.pieces, LAYERS, from.bytes, true), ICMS_OK);
        assert_int_equal(move(f->kv, 1000, to.pieces, LAYERS, to.bytes, false), ICMS_OK);
        layered_is(&to, to.bytes, 1);
    }
    layered_close(&from);
    layered_close(&to);
}

static void a_small_value_fills_the_first_pieces(void **state)
{
    struct fixture *f = *state;
    struct layered l;

    layered_open(f, &l);
    for (uint64_t bytes = 1; bytes < l.bytes; bytes += 4095) {
        struct icms_block block = {.key = rig_key(bytes), .data = l.pieces, .bytes = l.bytes};
        struct icms_request_options options;
        uint8_t zeros[64 * KIB] = {0};

        for (int i = 0; i < LAYERS; i++)
            gpu->write(l.addresses[i], zeros, sizeof(zeros));
        icms_request_options_init(&options);
        options.pieces = LAYERS;
        assert_int_equal(rig_put_one(f->kv, bytes, bytes), ICMS_OK);
        assert_int_equal(icms_get(f->kv, &block, 1, &options), ICMS_OK);
        assert_int_equal(block.bytes, bytes);
        layered_is(&l, bytes, bytes);
    }
    /* One that is larger than all of them is refused. */
    assert_int_equal(rig_put_one(f->kv, 2, l.bytes), ICMS_OK);
    assert_int_equal(move(f->kv, 2, l.pieces, LAYERS - 1, l.bytes - sizes[LAYERS - 1], false),
                     ICMS_VALUE_SIZE);
    layered_close(&l);
}

static void pieces_of_the_host_are_one_value(void **state)
{
    struct fixture *f = *state;
    struct icms_volume *const volumes[] = {f->kv, f->big, in_process ? f->kv : f->rig.raw};
    uint8_t *value = malloc(200 * KIB), *back = malloc(200 * KIB);
    struct icms_piece pieces[5], rooms[3];

    for (size_t v = 0; v < sizeof(volumes) / sizeof(*volumes); v++) {
        uint64_t bytes = v == 1 ? 180000 : 60000, at = 0; /* large ones go another way in a dir: */

        rig_fill(value, bytes, v);
        memset(back, 0, bytes);
        for (uint64_t i = 0; i < 5; i++, at += pieces[i - 1].bytes)
            pieces[i] = (struct icms_piece){.data = value + at,
                                            .bytes = i == 4 ? bytes - at : bytes / 7 + i};
        rooms[0] = (struct icms_piece){.data = back, .bytes = 1};
        rooms[1] = (struct icms_piece){.data = back + 1, .bytes = bytes / 2};
        rooms[2] = (struct icms_piece){.data = back + 1 + bytes / 2, .bytes = bytes / 2 - 1};
        assert_int_equal(move(volumes[v], 50 + v, pieces, 5, bytes, true), ICMS_OK);
        for (int n = 0; n < 2; n++)
            assert_int_equal(move(volumes[v], 50 + v, rooms, 3, bytes, false), ICMS_OK);
        assert_memory_equal(back, value, bytes);
    }
    free(value);
    free(back);
}

static void a_damaged_value_reaches_no_device(void **state)
{
    struct fixture *f = *state;
    struct layered l;
    uint8_t byte = 1;

    if (in_process)
        skip(); /* the fake agent damages */
    layered_open(f, &l);
    assert_int_equal(rig_put_one(f->kv, 1, l.bytes), ICMS_OK);
    atomic_store(&fake.forget, true);
    atomic_store(&fake.damage, (unsigned)l.bytes); /* its last byte */
    assert_int_equal(move(f->kv, 1, l.pieces, LAYERS, l.bytes, false), ICMS_MISS);
    gpu->read(l.addresses[1] + 100, &byte, 1);
    assert_int_equal(byte, 0);
    atomic_store(&fake.damage, 0);
    assert_int_equal(rig_put_one(f->kv, 1, l.bytes), ICMS_OK);
    byte = 1;
    atomic_store(&fake.version, 5); /* nor does one of another format version */
    assert_int_equal(move(f->kv, 1, l.pieces, LAYERS, l.bytes, false), ICMS_MISS);
    gpu->read(l.addresses[1] + 100, &byte, 1);
    assert_int_equal(byte, 0);
    atomic_store(&fake.version, 0);
    layered_close(&l);
}

static void pieces_that_make_no_sense_are_refused(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *elsewhere = NULL;
    uint8_t host[64];
    struct icms_piece mixed[2], many[ICMS_PIECES_MAX + 1];
    struct layered l;
    uint64_t other, unknown;

    layered_open(f, &l);
    other = gpu->alloc(gpu->context(1), 64 * KIB);
    elsewhere = reg(f, other, 64 * KIB);
    unknown = gpu->alloc(f->context, 64 * KIB);
    for (int store = 0; store < 2; store++) {
        assert_int_equal(move(f->kv, 1, l.pieces, LAYERS, l.bytes - 1, store), ICMS_INVALID);
        assert_int_equal(move(f->kv, 1, l.pieces, LAYERS, l.bytes + 1, store), ICMS_INVALID);
        assert_int_equal(move(f->kv, 1, l.pieces, LAYERS - 1, l.bytes, store), ICMS_INVALID);
        mixed[0] = l.pieces[1];
        for (int order = 0; order < 2; order++) {
            mixed[!order] = l.pieces[1];
            mixed[order] = (struct icms_piece){.data = host, .bytes = sizeof(host)};
            assert_int_equal(move(f->kv, 1, mixed, 2, sizes[1] + sizeof(host), store),
                             ICMS_INVALID);
            mixed[order] = (struct icms_piece){.data = pointer(other), .bytes = 50};
            assert_int_equal(move(f->kv, 1, mixed, 2, sizes[1] + 50, store), ICMS_INVALID);
            mixed[order].data = NULL;
            assert_int_equal(move(f->kv, 1, mixed, 2, sizes[1] + 50, store), ICMS_INVALID);
            mixed[order] = (struct icms_piece){.data = pointer(other), .bytes = 0};
            assert_int_equal(move(f->kv, 1, mixed, 2, sizes[1], store), ICMS_INVALID);
            mixed[order] = (struct icms_piece){.data = pointer(other), .bytes = UINT64_MAX};
            assert_int_equal(move(f->kv, 1, mixed, 2, sizes[1] - 1, store), ICMS_INVALID);
        }
        mixed[0] = (struct icms_piece){.data = host, .bytes = sizeof(host)};
        mixed[1] = (struct icms_piece){.data = pointer(unknown), .bytes = 50};
        assert_int_equal(move(f->kv, 1, mixed, 2, sizeof(host) + 50, store), ICMS_NOT_REGISTERED);
        mixed[0].data = pointer(unknown);
        assert_int_equal(move(f->kv, 1, mixed, 2, sizeof(host) + 50, store), ICMS_NOT_REGISTERED);
        /* Partly outside of what is registered. */
        mixed[0] = l.pieces[0];
        mixed[1] =
            (struct icms_piece){.data = pointer(l.addresses[1] + 64 * KIB - 10), .bytes = 11};
        assert_int_equal(move(f->kv, 1, mixed, 2, 12, store), ICMS_INVALID);
        for (int i = 0; i <= ICMS_PIECES_MAX; i++)
            many[i] = (struct icms_piece){.data = host, .bytes = 1};
        assert_int_equal(move(f->kv, 1, many, ICMS_PIECES_MAX + 1, ICMS_PIECES_MAX + 1, store),
                         ICMS_INVALID);
        assert_int_equal(move(f->kv, 1, NULL, 2, 2, store), ICMS_INVALID);
    }
    assert_int_equal(move(f->kv, 1, many, ICMS_PIECES_MAX, ICMS_PIECES_MAX, true), ICMS_OK);
    unreg(&elsewhere);
    layered_close(&l);
}

/* A stuck copy keeps every range that it has a piece in. */
static void every_range_is_busy_while_a_device_has_it(void **state)
{
    struct fixture *f = *state;
    struct icms_request *request = NULL;
    struct icms_request_options options;
    struct icms_block block;
    struct layered l;
    int asked;

    layered_open(f, &l);
    assert_int_equal(rig_put_one(f->kv, 1, l.bytes), ICMS_OK);
    for (int store = 0; store < 2; store++) {
        uint64_t begin = client_now_ns();

        block = (struct icms_block){.key = rig_key(1), .data = l.pieces, .bytes = l.bytes};
        icms_request_options_init(&options);
        options.pieces = LAYERS;
        asked = gpu->count(FAKE_DEVICE_ASKED);
        gpu->set(FAKE_DEVICE_STUCK, 1);
        if (store == 0)
            assert_int_equal(icms_get_start(f->kv, &block, 1, &options, &request), ICMS_OK);
        else
            assert_int_equal(icms_put_start(f->kv, &block, 1, &options, &request), ICMS_OK);
        for (; gpu->count(FAKE_DEVICE_ASKED) < asked + LAYERS; (void)!icms_request_wait(request, 1))
            assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        icms_request_cancel(request);
        assert_int_equal(icms_request_end(&request), ICMS_MISS);
        for (int i = 0; i < LAYERS; i++)
            assert_int_equal(icms_memory_unregister(&l.memories[i]), ICMS_BUSY);
        memset(l.pieces, 0xff, store == 0 ? 0 : sizeof(l.pieces)); /* the caller's again */
        gpu->set(FAKE_DEVICE_STUCK, 0);
        for (int i = 0; i < LAYERS; i++)
            while (atomic_load(&l.memories[i]->users) != 0)
                usleep(1000);
    }
    layered_close(&l);
}

/* The thread of a request waits for a copy without sleeping for a moment, once. */
static void a_copy_that_does_not_end_is_not_waited_for_awake(void **state)
{
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, MIB, &memory), begin = client_now_ns(), looked;
    struct icms_block block = block_of(1, address, 5000);
    struct icms_request *request = NULL;

    assert_int_equal(rig_put_one(f->kv, 1, 5000), ICMS_OK);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    assert_int_equal(icms_get_start(f->kv, &block, 1, NULL, &request), ICMS_OK);
    for (; request->looked_ns < 50000; (void)!icms_request_wait(request, 1))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    looked = request->looked_ns;
    for (int i = 0; i < 20; i++)
        (void)!icms_request_wait(request, 1);
    assert_int_equal(request->looked_ns, looked);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    assert_int_equal(icms_request_end(&request), ICMS_OK);
    device_is(address, 5000, 1);
    unreg(&memory);
}

/* The driver takes some pieces and refuses another one: the block has failed, and its pinned memory
 * is not used before what was taken has ended. */
static void a_piece_that_is_refused_fails_its_block(void **state)
{
    struct fixture *f = *state;
    struct layered l;

    layered_open(f, &l);
    assert_int_equal(rig_put_one(f->kv, 1, l.bytes), ICMS_OK);
    for (int good = 0; good < LAYERS; good++) {
        gpu->set(FAKE_DEVICE_COPY_AFTER, good + 1);
        gpu->set(FAKE_DEVICE_COPY, FAKE_INVALID);
        assert_int_equal(move(f->kv, 1, l.pieces, LAYERS, l.bytes, good % 2 != 0), ICMS_DEVICE);
        gpu->set(FAKE_DEVICE_COPY, 0);
        assert_int_equal(move(f->kv, 1, l.pieces, LAYERS, l.bytes, false), ICMS_OK);
        layered_is(&l, l.bytes, 1);
    }
    /* Memory under one piece is gone. */
    gpu->alloc_free(l.addresses[3]);
    assert_int_equal(move(f->kv, 1, l.pieces, LAYERS, l.bytes, false), ICMS_DEVICE);
    assert_int_equal(move(f->kv, 2, l.pieces, LAYERS, l.bytes, true), ICMS_DEVICE);
    layered_close(&l);
}

/* An allocator's segment that grows (expandable segments): allocations that are mapped one behind
 * the other, each with an id of its own, in addresses that were reserved for more of them. */
static void memory_of_several_mappings_is_one_range(void **state)
{
    enum { CHUNKS = 3 };
    struct fixture *f = *state;
    uint64_t chunk = 128 * KIB, bytes = 60000, address = gpu->reserve(f->context, 64 * chunk);
    struct icms_memory *memory = NULL;
    struct icms_piece pieces[2];
    char why[512] = "";

    for (uint64_t i = 0; i < CHUNKS; i++)
        gpu->map(address + i * chunk, chunk);
    assert_int_equal(icms_memory_register(f->icms, ICMS_MEMORY_CUDA, pointer(address),
                                          CHUNKS * chunk + 1, why, sizeof(why), &memory),
                     ICMS_INVALID); /* reserved, and nothing is there */
    assert_non_null(strstr(why, "is not CUDA memory"));
    assert_int_equal(put_one(f->kv, 1, address + CHUNKS * chunk, bytes), ICMS_NOT_REGISTERED);
    memory = reg(f, address, CHUNKS * chunk);
    for (uint64_t i = 0; i < 2 * CHUNKS - 1; i++) { /* in each of them, and across each border */
        uint64_t at = address + chunk / 2 * (i + 1) - bytes / 2;

        device_fill(at, bytes, i);
        assert_int_equal(put_one(f->kv, i, at, bytes), ICMS_OK);
        device_fill(at, bytes, 100);
        assert_int_equal(get_one(f->kv, i, at, bytes), ICMS_OK);
        device_is(at, bytes, i);
    }
    /* The allocator gives one back: what lies there is an error, in front or behind, and no copy is
     * asked for. */
    gpu->alloc_free(address + 2 * chunk);
    assert_int_equal(get_one(f->kv, 1, address + 2 * chunk, bytes), ICMS_DEVICE);
    assert_int_equal(get_one(f->kv, 1, address + 2 * chunk - bytes + 1, bytes), ICMS_DEVICE);
    pieces[0] = (struct icms_piece){.data = pointer(address), .bytes = 30000};
    pieces[1] = (struct icms_piece){.data = pointer(address + 2 * chunk), .bytes = 30000};
    assert_int_equal(move(f->kv, 1, pieces, 2, bytes, false), ICMS_DEVICE);
    assert_int_equal(get_one(f->kv, 1, address + chunk, bytes), ICMS_OK);
    gpu->map(address + 2 * chunk, chunk); /* and takes another one */
    assert_int_equal(move(f->kv, 1, pieces, 2, bytes, false), ICMS_OK);
    assert_int_equal(get_one(f->kv, 1, address + 2 * chunk, bytes), ICMS_OK);
    device_is(address + 2 * chunk, bytes, 1);
    unreg(&memory);
}

/* A driver that says of a mapping what was reserved only: its ids are not those of all of it. */
static void memory_of_several_mappings_of_an_old_driver(void **state)
{
    struct fixture *f = *state;
    uint64_t chunk = 128 * KIB, address = gpu->reserve(f->context, 64 * chunk);
    struct icms_memory *memory;

    gpu->set(FAKE_DEVICE_OLD, 1);
    gpu->map(address, chunk);
    gpu->map(address + chunk, chunk);
    memory = reg(f, address, 2 * chunk);
    device_fill(address + chunk, 60000, 7);
    assert_int_equal(put_one(f->kv, 1, address + chunk, 60000), ICMS_OK);
    assert_int_equal(get_one(f->kv, 1, address + chunk - 30000, 60000), ICMS_OK);
    device_is(address + chunk - 30000, 60000, 7);
    unreg(&memory);
}

static void batches_of_layers_go_through(void **state)
{
    enum { COUNT = 60, EACH = 16 };
    struct fixture *f = *state;
    struct icms_memory *memory;
    uint64_t address = memory_new(f, (uint64_t)COUNT * EACH * 4 * KIB, &memory);
    struct icms_piece(*pieces)[EACH] = calloc(COUNT, sizeof(*pieces));
    struct icms_block blocks[COUNT];
    struct icms_request_options options;
    void *stream = gpu->stream_new(f->context);
    uint64_t begin;
    size_t ok = 0;

    icms_request_options_init(&options);
    options.pieces = EACH;
    for (uint64_t i = 0; i < COUNT; i++) {
        for (uint64_t n = 0; n < EACH; n++) { /* layer n holds all blocks, as engines have it */
            pieces[i][n] = (struct icms_piece){.data = pointer(address + (n * COUNT + i) * 4 * KIB),
                                               .bytes = 4000};
            device_fill(address + (n * COUNT + i) * 4 * KIB, 4000, i * EACH + n);
        }
        blocks[i] = (struct icms_block){.key = rig_key(i), .data = pieces[i], .bytes = EACH * 4000};
    }
    assert_int_equal(icms_put(f->kv, blocks, COUNT, &options), ICMS_OK);
    device_fill(address, (uint64_t)COUNT * EACH * 4 * KIB, 1);
    options.stream = stream;
    (void)!icms_get(f->kv, blocks, COUNT, &options);
    for (begin = client_now_ns(); !gpu->stream_idle(stream); usleep(100))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    for (uint64_t i = 0; i < COUNT; i++)
        for (uint64_t n = 0; n < EACH && blocks[i].status == ICMS_OK; n++)
            device_is(address + (n * COUNT + i) * 4 * KIB, 4000, i * EACH + n);
    for (uint64_t i = 0; i < COUNT; i++)
        ok += blocks[i].status == ICMS_OK;
    assert_true(ok > 0); /* the fake agent has few slots */
    free(pieces);
    unreg(&memory);
    gpu->stream_free(stream);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(layers_of_a_device_are_one_value),
        CASE(a_small_value_fills_the_first_pieces),
        CASE(pieces_of_the_host_are_one_value),
        CASE(a_damaged_value_reaches_no_device),
        CASE(pieces_that_make_no_sense_are_refused),
        CASE(every_range_is_busy_while_a_device_has_it),
        CASE(a_copy_that_does_not_end_is_not_waited_for_awake),
        CASE(a_piece_that_is_refused_fails_its_block),
        CASE(memory_of_several_mappings_is_one_range),
        CASE(memory_of_several_mappings_of_an_old_driver),
        CASE(batches_of_layers_go_through),
    };

    if (memory_rig_begin(argc, argv) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
