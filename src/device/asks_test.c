/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the copier asks of a driver, and how often: over the fake GPU, once as each of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device_rig.h"

/* Waits until the driver has one copy more than it had. */
static void wait_asked(int before)
{
    uint64_t begin = now_ms();

    for (; gpu->count(FAKE_DEVICE_ASKED) == before; usleep(500))
        assert_true(now_ms() - begin < WAIT_MS);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void the_thread_sleeps_as_long_as_it_says(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES), begin = now_ms();
    struct device_copy *copy = start(f, DEVICE_IN, address, BYTES, 1);

    assert_int_equal(wait_over(copy), COPY_DONE);
    for (; atomic_load(&f->landed) == 0; usleep(100))
        assert_true(now_ms() - begin < WAIT_MS);
    assert_int_equal(atomic_load(&f->slack), 1);
    device_copy_give(copy);
}

/* It is looked at without a pause for a moment only, and then at most once a millisecond. */
static void a_copy_that_does_not_end_is_not_polled_for(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    int asked = gpu->count(FAKE_DEVICE_ASKED), queries;
    struct device_copy *copy;

    gpu->set(FAKE_DEVICE_STUCK, 1);
    copy = start(f, DEVICE_IN, address, BYTES, 1);
    wait_asked(asked);
    (void)usleep(200000);
    queries = gpu->count(FAKE_DEVICE_QUERIES);
    (void)usleep(300000);
    assert_true(gpu->count(FAKE_DEVICE_QUERIES) - queries < 3000);
    assert_int_equal(device_copy_is_over(copy), COPY_NOT_OVER);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    assert_int_equal(wait_over(copy), COPY_DONE);
    device_copy_give(copy);
}

/* ---- streams --------------------------------------------------------------------------------- */

/* Callers name it 1, as CUDA does; to HIP that is no stream. */
static void the_default_stream_has_a_name_for_each_driver(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    void *stream = (void *)1;
    struct device_mark *mark = NULL;
    struct device_copy *copy;
    int code = 0;

    if (IS_GAUDI)
        skip(); /* it has none */
    assert_true(device_mark_take(f->copier, stream, &f->users, &mark, &code));
    copy = start_in_order(f, address, 9, mark, stream);
    device_mark_give(mark);
    assert_int_equal(wait_over(copy), COPY_DONE);
    device_copy_give(copy);
    wait_users(f, 0);
    assert_int_equal(atomic_load(&f->failed), 0);
}

/* ---- addresses ------------------------------------------------------------------------------- */

#define PIECES 8

/* How often the driver is asked what an address is for a copy of pieces, each in its own range or
 * all in one. */
static int looks_of(struct fixture *f, uint64_t address, uint32_t count, uint64_t id, bool one)
{
    struct device_copy *copy = device_copy_take(f->copier, PIECES * 1000, &f->users);
    static _Atomic uint32_t users[PIECES];
    struct device_piece pieces[PIECES];
    int looks;

    assert_non_null(copy);
    fill(copy->memory, PIECES * 1000, 1);
    for (uint32_t i = 0; i < count; i++)
        pieces[i] = (struct device_piece){.address = address + i * (BYTES / PIECES),
                                          .bytes = PIECES * 1000 / count,
                                          .id = id,
                                          .users = &users[one ? 0 : i]};
    device_copy_pieces(copy, pieces, count);
    looks = gpu->count(FAKE_DEVICE_LOOKS);
    device_copy_start(copy, &(struct device_order){.direction = DEVICE_IN, .bytes = PIECES * 1000});
    assert_int_equal(wait_over(copy), COPY_DONE);
    device_copy_give(copy);
    wait_users(f, 0);
    return gpu->count(FAKE_DEVICE_LOOKS) - looks;
}

/* Once for each range whose allocation is known by an id, with one call where there is one. */
static void a_range_is_looked_at_once_a_copy(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    struct device_pointer pointer;
    int one;

    if (IS_GAUDI)
        skip(); /* it does not say what is allocated */
    assert_true(device_ops(f->driver)->look(f->driver, address, &pointer));
    one = looks_of(f, address, 1, pointer.id, true);
    assert_int_equal(one, IS_CUDA ? 1 : 4);
    assert_int_equal(looks_of(f, address, PIECES, pointer.id, true), one);
    assert_int_equal(looks_of(f, address, PIECES, pointer.id, false), PIECES * one);
    assert_int_equal(looks_of(f, address, PIECES, 0, true), 2 * PIECES * one);
    assert_int_equal(atomic_load(&f->failed), 0);
}

/* A driver that has ended, as when the process exits, says of no address what it is: the CPU does
 * not touch what it cannot read. */
static void what_a_driver_that_has_ended_does_not_say_is_foreign(void **state)
{
    static const int codes[] = {FAKE_NOT_INITIALIZED, FAKE_DEINITIALIZED};
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    int here = 0;

    if (IS_GAUDI)
        skip(); /* it knows its addresses */
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        gpu->set(FAKE_DEVICE_POINTER, codes[i]);
        assert_true(device_is_foreign((void *)(uintptr_t)address));
        assert_false(device_is_foreign(&here));
    }
    gpu->set(FAKE_DEVICE_POINTER, FAKE_INVALID);
    assert_false(device_is_foreign((void *)(uintptr_t)address));
}

/* Memory of a context of the engine's own: the primary one, which nobody has, is not made to look
 * whether it is that. */
static void no_context_is_made_for_memory_that_has_one(void **state)
{
    struct fixture *f = *state;
    int made = gpu->count(FAKE_DEVICE_MADE);
    struct err_why why = {{0}};
    void *context;

    if (!IS_CUDA)
        skip(); /* they have none */
    context = gpu->context_new(0);
    gpu->set(FAKE_DEVICE_INACTIVE, 1);
    assert_int_equal(copier_open(f, context, &why), ICMS_OK);
    assert_int_equal(gpu->count(FAKE_DEVICE_MADE), made);
    assert_int_equal(gpu->count(FAKE_DEVICE_RETAINED), 0);
    assert_true(device_copier_free(&f->copier));
    gpu->context_destroy(context);
    assert_int_equal(copier_open(f, NULL, &why), ICMS_OK); /* memory of the device: it is needed */
    assert_int_equal(gpu->count(FAKE_DEVICE_MADE), made + 1);
    assert_int_equal(gpu->count(FAKE_DEVICE_RETAINED), 1);
}

/* A driver that forgets a context says that there is none, or that there is no pin: what the
 * context ran has ended, and what it pinned may be unmapped. */
static void a_context_that_the_driver_forgot_is_gone(void **state)
{
    static const int codes[] = {FAKE_BAD_CONTEXT, FAKE_DESTROYED};
    struct fixture *f = *state;
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct err_why why = {{0}};
    uint64_t begin = now_ms();

    if (!IS_CUDA) {
        (void)munmap(memory, BYTES);
        skip(); /* HIP has one a device */
    }
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        void *context = gpu->context_new(0);
        uint64_t address = gpu->alloc(context, BYTES);
        int asked = gpu->count(FAKE_DEVICE_ASKED);
        struct device_copy *copy;

        assert_int_equal(copier_open(f, context, &why), ICMS_OK);
        assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_OK);
        gpu->set(FAKE_DEVICE_STUCK, 1);
        copy = start(f, DEVICE_IN, address, BYTES, 1);
        wait_asked(asked);
        gpu->set(FAKE_DEVICE_GONE, codes[i]);
        gpu->context_destroy(context);
        assert_int_equal(wait_over(copy), COPY_FAILED);
        device_copy_give(copy);
        wait_users(f, 0);
        for (; !device_copier_unpin(f->copier, memory); usleep(500))
            assert_true(now_ms() - begin < WAIT_MS);
        assert_true(device_copier_free(&f->copier));
        gpu->set(FAKE_DEVICE_STUCK, 0);
        gpu->alloc_free(address);
    }
    (void)munmap(memory, BYTES);
}

/* The driver lost a pin, as a primary context does that is reset: it has let go of it. */
static void a_pin_that_the_driver_lost_is_gone(void **state)
{
    struct fixture *f = *state;
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct err_why why = {{0}};
    uint64_t begin = now_ms();

    if (IS_GAUDI) {
        (void)munmap(memory, BYTES);
        skip(); /* it has no such status */
    }
    assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_OK);
    gpu->set(FAKE_DEVICE_UNPIN, FAKE_NOT_PINNED);
    for (; !device_copier_unpin(f->copier, memory); usleep(500))
        assert_true(now_ms() - begin < WAIT_MS);
    assert_true(device_copier_free(&f->copier));
    gpu->set(FAKE_DEVICE_UNPIN, 0);
    gpu->unpin_all();
    (void)munmap(memory, BYTES);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* A driver may wait for all that is on the device before it unpins and frees, and a stream of the
 * engine's is stuck: the copier is left behind, in a process of its own. */
static void a_driver_that_waits_for_the_engine_is_left_behind(void **state)
{
    (void)state;
    child_run("sync", NULL);
}

static int sync_main(void)
{
    struct fixture f = {.copier = NULL};
    struct err_why why = {{0}};
    uint64_t address, begin;
    void *stream;

    f.context = gpu->context(0);
    if (device_driver_get(DEVICE_TEST_KIND, &why, &f.driver) != ICMS_OK ||
        copier_open(&f, f.context, &why) != ICMS_OK)
        return 1;
    address = gpu->alloc(f.context, BYTES);
    stream = gpu->stream_new(f.context);
    gpu->stream_hold(stream, true);
    gpu->stream_write(stream, address, 1, BYTES);
    gpu->set(FAKE_DEVICE_SYNC, 1);
    (void)alarm(WAIT_MS / 1000);
    if (device_copier_free(&f.copier))
        return 2;
    gpu->stream_hold(stream, false); /* the thread comes back, and calls nobody */
    for (begin = now_ms(); gpu->count(FAKE_DEVICE_PINS) != 0; (void)usleep(1000))
        if (now_ms() - begin > WAIT_MS)
            return 3;
    if (copier_open(&f, f.context, &why) != ICMS_OK || !device_copier_free(&f.copier))
        return 4;
    return atomic_load(&f.landed) == 0 ? 0 : 5;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(the_thread_sleeps_as_long_as_it_says),
        CASE(a_copy_that_does_not_end_is_not_polled_for),
        CASE(the_default_stream_has_a_name_for_each_driver),
        CASE(a_range_is_looked_at_once_a_copy),
        CASE(what_a_driver_that_has_ended_does_not_say_is_foreign),
        BARE(no_context_is_made_for_memory_that_has_one),
        BARE(a_context_that_the_driver_forgot_is_gone),
        CASE(a_pin_that_the_driver_lost_is_gone),
        BARE(a_driver_that_waits_for_the_engine_is_left_behind),
    };

    gpu = fake_device_load(LIBRARY);
    if (gpu == NULL) {
        (void)fprintf(stderr, "no fake %s in LD_LIBRARY_PATH\n", LIBRARY);
        return 1;
    }
    if (argc == 2 && strcmp(argv[1], "sync") == 0)
        return sync_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
