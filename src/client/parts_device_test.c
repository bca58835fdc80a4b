/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encrypted values for memory of a device, opened while they arrive, over the fake GPU: pieces are
 * opened in pinned memory of a copy, and the device has nothing of a value before all of it has
 * passed, and never anything of one that does not.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/crc.h"
#include "client/memory_rig.h"
#include "client/parts_rig.h"
#include "wire/sealed.h"

#define GUARD 4096 /* bytes of the device in front of a value and behind it */

/* What the hook of the agent's thread sees of the test. */
static struct {
    struct fixture *f;
    struct parts_keys keys;
    struct icms_volume *vault;
    struct icms_memory *memory;
    uint64_t address; /* on the device: of the value; GUARD bytes are in front                */
    struct icms_block block;
    struct icms_request *request;
    struct icms_request_options options;
    uint8_t *wanted;           /* [VALUE] of value number 1                         */
    uint8_t *stored, *other;   /* values of the same key as they are stored         */
    uint8_t *before;           /* [VALUE + 2 * GUARD]: what the device had          */
    _Atomic uint32_t which;    /* the hook's                                        */
    int asked;                 /* copies that the driver was asked for before       */
    _Atomic(uint8_t *) pinned; /* where the value is opened                         */
    atomic_bool middle, over;  /* the hook has come that far; the request is over   */
} test;

static int setup(void **state)
{
    char why[256] = "";

    memset(&test, 0, sizeof(test));
    if (parts_keys_write(&test.keys) != 0 || memory_rig_open(state, test.keys.list) != 0)
        return -1;
    test.f = *state;
    test.wanted = malloc(VALUE);
    test.stored = malloc(STORED);
    test.other = malloc(STORED);
    test.before = malloc(VALUE + 2 * GUARD);
    rig_fill(test.wanted, VALUE, 1);
    test.address = memory_new(test.f, VALUE + 2 * GUARD, &test.memory) + GUARD;
    icms_request_options_init(&test.options);
    return icms_volume_open(test.f->icms, VAULT, why, sizeof(why), &test.vault) == ICMS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    if (test.memory != NULL)
        unreg(&test.memory);
    if (memory_rig_teardown(state) != 0)
        return -1;
    parts_keys_remove(&test.keys);
    free(test.wanted);
    free(test.stored);
    free(test.other);
    free(test.before);
    return 0;
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void put(const uint8_t *value, uint32_t bytes, uint8_t *out_stored)
{
    parts_put(&test.f->rig, test.vault, value, bytes, out_stored);
}

/* Starts a get to the device, where no byte is that of the value; nor is one of the pinned memory
 * that it passes. Hooks wait for that. */
static void get_start(bool (*arriving)(struct fake_arriving *arriving))
{
    uint8_t *pinned;

    for (uint32_t i = 0; i < VALUE + 2 * GUARD; i++)
        test.before[i] = i < GUARD || i >= GUARD + VALUE ? 0x5a : (uint8_t)~test.wanted[i - GUARD];
    gpu->write(test.address - GUARD, test.before, VALUE + 2 * GUARD);
    test.block = block_of(1, test.address, VALUE);
    test.asked = gpu->count(FAKE_DEVICE_ASKED);
    atomic_store(&test.pinned, NULL);
    atomic_store(&test.middle, false);
    atomic_store(&test.over, false);
    atomic_store(&fake.arriving, arriving);
    assert_int_equal(icms_get_start(test.vault, &test.block, 1, &test.options, &test.request),
                     ICMS_OK);
    assert_false(list_empty(&test.request->copies));
    pinned = container_of(test.request->copies.next, struct device_copy, link)->memory;
    memcpy(pinned, test.before + GUARD, VALUE);
    atomic_store(&test.pinned, pinned);
}

/* Of what is to be there; the rest is as before. */
static void device_has(const uint8_t *value, uint32_t bytes)
{
    uint8_t *data = malloc(VALUE + 2 * GUARD), *wanted = malloc(VALUE + 2 * GUARD);

    memcpy(wanted, test.before, VALUE + 2 * GUARD);
    if (bytes != 0)
        memcpy(wanted + GUARD, value, bytes);
    gpu->read(test.address - GUARD, data, VALUE + 2 * GUARD);
    check(memcmp(data, wanted, VALUE + 2 * GUARD) == 0); /* the agent's thread asks, too */
    free(data);
    free(wanted);
}

static void device_is_untouched(void)
{
    check(gpu->count(FAKE_DEVICE_ASKED) == test.asked);
    device_has(NULL, 0);
}

static void get_is(bool (*arriving)(struct fake_arriving *arriving), const uint8_t *value,
                   uint32_t bytes)
{
    get_start(arriving);
    assert_int_equal(icms_request_end(&test.request), ICMS_OK);
    assert_int_equal(test.block.bytes, bytes);
    assert_int_equal(gpu->count(FAKE_DEVICE_ASKED), test.asked + 1);
    device_has(value, bytes);
}

static void get_misses(bool (*arriving)(struct fake_arriving *arriving), enum icms_miss reason)
{
    get_start(arriving);
    assert_int_equal(icms_request_end(&test.request), ICMS_MISS);
    assert_int_equal(test.block.status, ICMS_MISS);
    assert_int_equal(test.block.reason, reason);
    assert_int_equal(test.block.source, ICMS_SOURCE_NONE);
    device_is_untouched();
    for (uint32_t i = 0; i < VALUE; i++) /* nor is it kept in ours */
        if (test.pinned[i] != 0 && test.pinned[i] == test.wanted[i])
            fail_msg("byte %u of a value that does not open is there", i);
    assert_int_equal(icms_memory_unregister(&test.memory), ICMS_OK);
    test.memory = reg(test.f, test.address - GUARD, VALUE + 2 * GUARD);
}

static bool byte_is(uint32_t at, uint8_t value)
{
    const uint8_t *pinned = atomic_load(&test.pinned);

    return pinned != NULL && __atomic_load_n(&pinned[at], __ATOMIC_RELAXED) == value &&
           atomic_load(&test.f->icms->crypt->taken) == 0;
}

static bool is_opened(uint32_t pieces)
{
    return byte_is(pieces * PIECE - 1, test.wanted[pieces * PIECE - 1]);
}

static bool is_wiped(uint32_t pieces)
{
    return byte_is(pieces * PIECE - 2, 0);
}

static bool is_prepared(uint32_t arg)
{
    (void)arg;
    return atomic_load(&test.pinned) != NULL;
}

static bool is_over(uint32_t arg)
{
    (void)arg;
    return atomic_load(&test.over);
}

static bool is_middle(uint32_t arg)
{
    (void)arg;
    return atomic_load(&test.middle);
}

/* The request goes on while its thread waits for it. */
static void wait_for_the_middle(void)
{
    while (!is_middle(0))
        assert_int_equal(icms_request_wait(test.request, 1), ICMS_DEADLINE);
}

/* In the agent's thread, as all hooks: these pieces arrive, and are opened before the answer. */
static void arrive(struct fake_arriving *arriving, uint32_t pieces)
{
    check(soon(is_prepared, 0));
    part_pieces(arriving, pieces);
    check(soon(is_opened, pieces));
    device_is_untouched();
}

/* ---- it works ------------------------------------------------------------------------------- */

/* What was opened is not looked at again. */
static bool one_by_one(struct fake_arriving *arriving)
{
    for (uint32_t i = 1; i <= PIECES; i++) {
        arrive(arriving, i);
        memset(arriving->stored + sealed_pieces_end(i - 1), 0x77, PIECE);
    }
    return true;
}

static void pieces_are_opened_before_the_device_has_any(void **state)
{
    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_is(one_by_one, test.wanted, VALUE);
    assert_int_equal(atomic_load(&fake.parted), 1);
    put(test.wanted, VALUE, test.stored);
    get_is(NULL, test.wanted, VALUE); /* all at once */
    assert_int_equal(atomic_load(&fake.suspects), 0);
}

/* Layers in any order, whose ends are not those of the pieces that are encrypted. */
static void a_value_of_layers_is_opened_the_same_way(void **state)
{
    enum { LAYERS = 5, LAYER = VALUE / LAYERS };
    uint8_t *data = malloc(VALUE);
    struct icms_piece layers[LAYERS];

    (void)state;
    put(test.wanted, VALUE, test.stored);
    for (uint64_t i = 0; i < LAYERS; i++)
        layers[i] = (struct icms_piece){.data = pointer(test.address + (LAYERS - 1 - i) * LAYER),
                                        .bytes = LAYER};
    layers[0].bytes += VALUE % LAYERS; /* it is the last one on the device */
    memset(test.before, 0x5a, VALUE + 2 * GUARD);
    gpu->write(test.address - GUARD, test.before, VALUE + 2 * GUARD);
    test.block = (struct icms_block){.key = rig_key(1), .data = layers, .bytes = VALUE};
    test.options.pieces = LAYERS;
    test.asked = gpu->count(FAKE_DEVICE_ASKED);
    atomic_store(&fake.arriving, one_by_one);
    assert_int_equal(icms_get_start(test.vault, &test.block, 1, &test.options, &test.request),
                     ICMS_OK);
    atomic_store(&test.pinned,
                 container_of(test.request->copies.next, struct device_copy, link)->memory);
    assert_int_equal(icms_request_end(&test.request), ICMS_OK);
    for (uint64_t i = 0, at = 0; i < LAYERS; at += layers[i++].bytes) {
        gpu->read((uint64_t)(uintptr_t)layers[i].data, data, layers[i].bytes);
        assert_memory_equal(data, test.wanted + at, layers[i].bytes);
    }
    assert_int_equal(atomic_load(&fake.parted), 1);
    free(data);
}

static bool in_any_order(struct fake_arriving *arriving)
{
    static const uint32_t counts[] = {0, 3, 1, 3, 2, PIECES, 1, PIECES + 1, 100};

    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        part_pieces(arriving, counts[i]);
    return true;
}

static void several_at_a_time(void **state)
{
    enum { COUNT = 4 }; /* as many as the volume has slots */
    uint64_t bytes = (uint64_t)COUNT * VALUE, address;
    struct icms_block blocks[COUNT];
    struct icms_memory *memory;

    (void)state;
    address = memory_new(test.f, bytes, &memory);
    for (uint64_t i = 0; i < COUNT; i++) {
        assert_int_equal(rig_put_one(test.vault, 10 + i, VALUE), ICMS_OK);
        blocks[i] = block_of(10 + i, address + i * VALUE, VALUE);
    }
    atomic_store(&fake.arriving, in_any_order);
    assert_int_equal(icms_get(test.vault, blocks, COUNT, NULL), ICMS_OK);
    for (uint64_t i = 0; i < COUNT; i++)
        device_is(address + i * VALUE, VALUE, 10 + i);
    assert_int_equal(atomic_load(&fake.parted), COUNT);
    unreg(&memory);
}

/* ---- what arrives is not what is answered ---------------------------------------------------- */

/* A piece does not pass after others did; nothing that was opened before stays. */
static bool second_fails(struct fake_arriving *arriving)
{
    arrive(arriving, 1);
    arriving->stored[sealed_pieces_end(1) + 5000] ^= 1;
    part_pieces(arriving, 3);
    check(soon(is_wiped, 1));
    device_is_untouched();
    if (test.which == 0)
        arriving->stored[sealed_pieces_end(1) + 5000] ^= 1;
    return true;
}

/* Those that were left for the answer do not pass. */
static bool last_fails(struct fake_arriving *arriving)
{
    arrive(arriving, test.which);
    arriving->stored[arriving->value_bytes - 1] ^= 1;
    return true;
}

static bool bad_trailer(struct fake_arriving *arriving)
{
    arrive(arriving, PIECES);
    arriving->stored[arriving->value_bytes + test.which] ^= 1;
    return true;
}

/* All of it was opened, and the trailer says that it is of another version. */
static bool of_another_version(struct fake_arriving *arriving)
{
    uint8_t *trailer = arriving->stored + arriving->value_bytes;
    le32 crc;

    arrive(arriving, PIECES);
    trailer[4] = SEALED_VERSION + 1;
    crc = le32_of(crc32c(trailer, LIMIT_TRAILER_BYTES - sizeof(crc)));
    memcpy(trailer + LIMIT_TRAILER_BYTES - sizeof(crc), &crc, sizeof(crc));
    return true;
}

static void suspects_are(unsigned wanted)
{
    assert_int_equal(rig_put_one(test.vault, 2, 10), ICMS_OK); /* behind them in the ring */
    assert_int_equal(atomic_load(&fake.suspects), wanted);
}

static void a_piece_that_fails_after_others_reaches_no_device(void **state)
{
    unsigned suspects = 0;

    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_is(second_fails, test.wanted, VALUE); /* the answer is of one that passes */
    suspects_are(0);
    put(test.wanted, VALUE, test.stored); /* out of the arena */
    test.which = 1;
    get_misses(second_fails, ICMS_MISS_CHECKSUM);
    suspects_are(++suspects);
    for (test.which = 1; test.which <= PIECES; test.which++) {
        put(test.wanted, VALUE, test.stored);
        get_misses(last_fails, ICMS_MISS_CHECKSUM);
        suspects_are(++suspects);
    }
    for (test.which = 0; test.which < LIMIT_TRAILER_BYTES; test.which += 21) {
        put(test.wanted, VALUE, test.stored);
        get_misses(bad_trailer, ICMS_MISS_CHECKSUM);
        suspects_are(++suspects);
    }
    put(test.wanted, VALUE, test.stored);
    get_misses(of_another_version, ICMS_MISS_VERSION);
    suspects_are(suspects);
    put(test.wanted, VALUE, test.stored);
    get_is(one_by_one, test.wanted, VALUE);
}

/* The slot has another value of the key in the end. */
static bool anew(struct fake_arriving *arriving)
{
    uint32_t bytes = arriving->value_bytes + LIMIT_TRAILER_BYTES;

    memcpy(arriving->stored, test.stored, sealed_bytes(VALUE));
    arrive(arriving, 2);
    memcpy(arriving->stored, test.other, bytes);
    for (uint32_t i = 1; i < test.which; i++)
        part_pieces(arriving, i);
    return true;
}

static void a_load_that_begins_anew_brings_another_value(void **state)
{
    static const uint32_t sizes[] = {VALUE, 300000, 2 * PIECE, 100};
    uint8_t *other = malloc(VALUE);

    (void)state;
    rig_fill(other, VALUE, 99);
    for (test.which = 0; test.which <= PIECES + 1; test.which += 2)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
            put(test.wanted, VALUE, test.stored);
            put(other, sizes[i], test.other);
            get_is(anew, other, sizes[i]);
        }
    free(other);
    suspects_are(0);
}

/* The same value once more, from the beginning. */
static bool same_again(struct fake_arriving *arriving)
{
    arrive(arriving, 3);
    memset(arriving->stored, 0, sealed_bytes(VALUE));
    part_pieces(arriving, test.which); /* of what is not there yet */
    memcpy(arriving->stored, test.stored, sealed_bytes(VALUE));
    return true;
}

static void a_load_that_begins_anew_brings_the_same(void **state)
{
    (void)state;
    for (test.which = 1; test.which <= PIECES; test.which++) {
        put(test.wanted, VALUE, test.stored);
        get_is(same_again, test.wanted, VALUE);
    }
}

static bool misses(struct fake_arriving *arriving)
{
    arrive(arriving, PIECES);
    arriving->answer->status = ICMS_MISS;
    arriving->answer->reason = ICMS_MISS_ENCLOSURE_DOWN;
    return true;
}

static void a_miss_after_parts_reaches_no_device(void **state)
{
    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_misses(misses, ICMS_MISS_ENCLOSURE_DOWN);
}

static bool as_it_is(struct fake_arriving *arriving)
{
    for (uint32_t i = 1; i <= PIECES; i++)
        part_pieces(arriving, i);
    return true;
}

static void a_value_that_does_not_fit_is_not_begun(void **state)
{
    (void)state;
    put(test.wanted, VALUE, test.stored);
    memset(test.before, 0x5a, VALUE + 2 * GUARD);
    gpu->write(test.address - GUARD, test.before, VALUE + 2 * GUARD);
    test.asked = gpu->count(FAKE_DEVICE_ASKED);
    atomic_store(&fake.arriving, as_it_is);
    test.block = block_of(1, test.address, VALUE - 1);
    assert_int_equal(icms_get(test.vault, &test.block, 1, NULL), ICMS_MISS);
    assert_int_equal(test.block.status, ICMS_VALUE_SIZE);
    assert_int_equal(test.block.bytes, VALUE);
    device_is_untouched();
    assert_int_equal(atomic_load(&fake.parted), 1);
}

/* Of a plain value the device reads what is in the arena: there is nothing to be done before. */
static void a_plain_value_is_not_begun(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(rig_put_one(f->rig.big, 3, VALUE), ICMS_OK);
    atomic_store(&fake.arriving, as_it_is);
    assert_int_equal(get_one(f->rig.big, 3, test.address, VALUE), ICMS_OK);
    device_is(test.address, VALUE, 3);
    assert_int_equal(atomic_load(&fake.parted), 0);
}

/* ---- the end in the middle ------------------------------------------------------------------ */

/* Parts and the answer come after the request. */
static bool late(struct fake_arriving *arriving)
{
    arrive(arriving, 2);
    atomic_store(&test.middle, true);
    check(soon(is_over, 0));
    part_pieces(arriving, PIECES);
    return true;
}

static bool is_canceled_there(struct fake_arriving *arriving)
{
    arrive(arriving, 2);
    atomic_store(&test.middle, true);
    check(soon(is_over, 0));
    part_pieces(arriving, 3);
    arriving->answer->status = ICMS_CANCELED;
    return true;
}

/* Later calls take what comes for it: the device has nothing of it, and its memory is free. */
static void nothing_is_copied_any_more(void)
{
    struct icms_block block = {.key = rig_key(2)}; /* the agent has to be asked for it */

    assert_int_equal(icms_memory_unregister(&test.memory), ICMS_OK);
    atomic_store(&test.over, true);
    for (int tries = 0; tries < RIG_GRACE_MS && block.reason != ICMS_MISS_EVICTED; tries++) {
        assert_int_equal(icms_exists(test.vault, &block, 1, NULL), ICMS_MISS);
        usleep(1000);
    }
    assert_int_equal(block.reason, ICMS_MISS_EVICTED);
    device_is_untouched();
    assert_int_equal(fake_agent_leases(test.f->rig.agent), 0);
    test.memory = reg(test.f, test.address - GUARD, VALUE + 2 * GUARD);
    icms_request_options_init(&test.options);
    put(test.wanted, VALUE, test.stored);
    get_is(one_by_one, test.wanted, VALUE);
}

static void a_deadline_in_the_middle_ends_it(void **state)
{
    (void)state;
    put(test.wanted, VALUE, test.stored);
    test.options.deadline_ms = 500;
    get_start(late);
    assert_int_equal(icms_request_end(&test.request), ICMS_MISS);
    assert_int_equal(test.block.reason, ICMS_MISS_DEADLINE);
    nothing_is_copied_any_more();
}

/* It is waited for several times, and can be given back to nobody meanwhile. */
static void a_wait_in_the_middle_goes_on(void **state)
{
    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_start(late);
    wait_for_the_middle();
    assert_int_equal(icms_request_wait(test.request, 0), ICMS_DEADLINE);
    assert_int_equal(icms_request_wait(test.request, 20), ICMS_DEADLINE);
    assert_false(icms_request_over(test.request));
    assert_int_equal(icms_memory_unregister(&test.memory), ICMS_BUSY);
    device_is_untouched();
    atomic_store(&test.over, true);
    assert_int_equal(icms_request_end(&test.request), ICMS_OK);
    device_has(test.wanted, VALUE);
}

static void *cancels(void *arg)
{
    check(soon(is_middle, 0));
    icms_request_cancel(arg);
    atomic_store(&test.over, true);
    return NULL;
}

static void a_cancel_in_the_middle_ends_it(void **state)
{
    pthread_t thread;

    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_start(is_canceled_there);
    assert_int_equal(pthread_create(&thread, NULL, cancels, test.request), 0);
    assert_int_equal(icms_request_end(&test.request), ICMS_MISS);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(test.block.status, ICMS_CANCELED);
    nothing_is_copied_any_more();
}

/* Canceled while the device copies what was opened early: its pinned memory is nobody else's until
 * that has ended. */
static void a_cancel_during_the_transfer_keeps_its_memory(void **state)
{
    struct icms_memory *memory;
    struct icms_request *request = NULL;
    uint64_t address = memory_new(test.f, VALUE, &memory);
    struct icms_block block = block_of(2, address, VALUE);

    (void)state;
    put(test.wanted, VALUE, test.stored);
    assert_int_equal(rig_put_one(test.vault, 2, VALUE), ICMS_OK);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    get_start(one_by_one);
    while (gpu->count(FAKE_DEVICE_ASKED) == test.asked)
        assert_int_equal(icms_request_wait(test.request, 1), ICMS_DEADLINE);
    icms_request_cancel(test.request);
    assert_int_equal(icms_request_end(&test.request), ICMS_MISS);
    assert_int_equal(test.block.status, ICMS_CANCELED);
    assert_int_equal(icms_memory_unregister(&test.memory), ICMS_BUSY);
    atomic_store(&fake.arriving, as_it_is);
    assert_int_equal(icms_get_start(test.vault, &block, 1, NULL, &request), ICMS_OK);
    assert_ptr_not_equal(container_of(request->copies.next, struct device_copy, link)->memory,
                         test.pinned);
    while (gpu->count(FAKE_DEVICE_ASKED) != test.asked + 2)
        assert_int_equal(icms_request_wait(request, 1), ICMS_DEADLINE);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    assert_int_equal(icms_request_end(&request), ICMS_OK);
    device_is(address, VALUE, 2);
    unreg(&test.memory); /* when the copy of who canceled has ended */
    device_has(test.wanted, VALUE);
    unreg(&memory);
}

/* The caller frees what the value is for. */
static void memory_that_is_freed_in_the_middle_is_an_error(void **state)
{
    int bad = gpu->count(FAKE_DEVICE_BAD);

    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_start(late);
    wait_for_the_middle();
    gpu->alloc_free(test.address - GUARD);
    atomic_store(&test.over, true);
    assert_int_equal(icms_request_end(&test.request), ICMS_MISS);
    assert_int_equal(test.block.status, ICMS_DEVICE);
    assert_int_equal(gpu->count(FAKE_DEVICE_BAD), bad);
}

static bool dies(struct fake_arriving *arriving)
{
    arrive(arriving, 2);
    atomic_store(&test.middle, true);
    return false;
}

static void an_agent_that_dies_in_the_middle_reaches_no_device(void **state)
{
    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_start(dies);
    wait_for_the_middle();
    fake_socket_stop(&test.f->rig.socket);
    assert_int_equal(icms_request_end(&test.request), ICMS_PEER_DOWN);
    device_is_untouched();
    assert_int_equal(icms_memory_unregister(&test.memory), ICMS_OK);
}

/* ---- on a stream of the caller's ------------------------------------------------------------- */

/* Opening does not wait for what is on the stream; the copy does, and what comes behind the get
 * waits for the copy. */
static void the_copy_takes_its_turn_on_a_stream(void **state)
{
    void *stream = gpu->stream_new(test.f->context);
    uint64_t begin;

    (void)state;
    put(test.wanted, VALUE, test.stored);
    test.options.stream = stream;
    gpu->stream_hold(stream, true);
    gpu->stream_write(stream, test.address, 0x11, VALUE);
    get_start(one_by_one);
    assert_int_equal(icms_request_end(&test.request), ICMS_OK);
    device_has(NULL, 0); /* over, and nothing has run */
    gpu->stream_write(stream, test.address, 0x22, 10);
    gpu->stream_hold(stream, false);
    for (begin = client_now_ns(); !gpu->stream_idle(stream); usleep(100))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    memset(test.wanted, 0x22, 10);
    device_has(test.wanted, VALUE);
    gpu->stream_free(stream);
}

/* A miss leaves nothing on the stream but what the caller put there. */
static void a_miss_leaves_the_stream_alone(void **state)
{
    void *stream = gpu->stream_new(test.f->context);
    uint64_t begin;

    (void)state;
    put(test.wanted, VALUE, test.stored);
    test.options.stream = stream;
    test.which = PIECES;
    gpu->stream_hold(stream, true);
    get_misses(last_fails, ICMS_MISS_CHECKSUM);
    gpu->stream_hold(stream, false);
    for (begin = client_now_ns(); !gpu->stream_idle(stream); usleep(100))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    device_is_untouched();
    gpu->stream_free(stream);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(pieces_are_opened_before_the_device_has_any),
        TEST(a_value_of_layers_is_opened_the_same_way),
        TEST(several_at_a_time),
        TEST(a_piece_that_fails_after_others_reaches_no_device),
        TEST(a_load_that_begins_anew_brings_another_value),
        TEST(a_load_that_begins_anew_brings_the_same),
        TEST(a_miss_after_parts_reaches_no_device),
        TEST(a_value_that_does_not_fit_is_not_begun),
        TEST(a_plain_value_is_not_begun),
        TEST(a_deadline_in_the_middle_ends_it),
        TEST(a_wait_in_the_middle_goes_on),
        TEST(a_cancel_in_the_middle_ends_it),
        TEST(a_cancel_during_the_transfer_keeps_its_memory),
        TEST(memory_that_is_freed_in_the_middle_is_an_error),
        TEST(an_agent_that_dies_in_the_middle_reaches_no_device),
        TEST(the_copy_takes_its_turn_on_a_stream),
        TEST(a_miss_leaves_the_stream_alone),
    };

    if (memory_rig_begin(argc, argv) != 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
