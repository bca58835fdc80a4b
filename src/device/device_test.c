/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drivers of device/driver.h and the copier, over the fake GPU, once as each of them.
 */
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device_rig.h"

/* ---- the plain life ------------------------------------------------------------------------- */

static void bytes_go_there_and_come_back(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, MEBIBYTES * BYTES);
    struct device_copy *copies[MEBIBYTES];
    uint8_t *wanted = malloc(BYTES);

    for (unsigned i = 0; i < MEBIBYTES; i++)
        copies[i] = start(f, DEVICE_IN, address + i * BYTES, BYTES, i);
    for (unsigned i = 0; i < MEBIBYTES; i++) {
        assert_int_equal(wait_over(copies[i]), COPY_DONE);
        device_copy_give(copies[i]);
    }
    for (unsigned i = 0; i < MEBIBYTES; i++)
        copies[i] = start(f, DEVICE_OUT, address + i * BYTES, BYTES, 0);
    for (unsigned i = 0; i < MEBIBYTES; i++) {
        assert_int_equal(wait_over(copies[i]), COPY_DONE);
        fill(wanted, BYTES, i);
        assert_memory_equal(copies[i]->memory, wanted, BYTES);
        device_copy_give(copies[i]);
    }
    assert_int_equal(atomic_load(&f->users), 0);
    assert_true(atomic_load(&f->landed) > 0);
    free(wanted);
}

/* The guard: a CPU that touches device memory ends. */
static void the_cpu_cannot_touch_device_memory(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        *(volatile uint8_t *)(uintptr_t)address = 1;
        _exit(0);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) != 0));
}

static void pinned_memory_is_bounded(void **state)
{
    struct fixture *f = *state;
    struct device_copy *copies[DEVICE_COPIES];
    uint32_t count = 0;

    assert_null(device_copy_take(f->copier, DEVICE_PINNED_BYTES + 1, &f->users));
    while ((copies[count] = device_copy_take(f->copier, 5 * BYTES, &f->users)) != NULL) {
        for (uint32_t i = 0; i < count; i++) /* none lies in another one */
            assert_true(copies[i]->memory + 5 * BYTES <= copies[count]->memory ||
                        copies[count]->memory + 5 * BYTES <= copies[i]->memory);
        count++;
    }
    assert_true(count >= 10 && count <= 12);
    assert_int_equal(atomic_load(&f->users), count);
    while (count > 0)
        device_copy_give(copies[--count]);
    copies[0] = device_copy_take(f->copier, DEVICE_PINNED_BYTES, &f->users);
    assert_non_null(copies[0]);
    device_copy_give(copies[0]);
}

static void less_memory_is_pinned_where_there_is_less(void **state)
{
    struct fixture *f = *state;
    struct err_why why = {{0}};

    gpu->set(FAKE_DEVICE_PIN_MAX, 3 << 20);
    assert_int_equal(copier_open(f, f->context, &why), ICMS_OK);
    assert_int_equal(device_copier_bytes(f->copier), 2 << 20);
    assert_true(device_copier_free(&f->copier));
    gpu->set(FAKE_DEVICE_PIN_MAX, 4096);
    assert_int_equal(copier_open(f, f->context, &why), ICMS_NO_MEMORY);
    assert_non_null(strstr(why.text, "ulimit -l"));
}

/* ---- memory of the caller ------------------------------------------------------------------- */

static void on_let_go(void *arg, uint32_t number)
{
    struct fixture *f = arg;

    assert_int_equal(number, 7);
    atomic_fetch_add(&f->let_go, 1);
}

/* A range of the caller's, mapped as an arena is. */
static uint8_t *range_new(bool read_only)
{
    uint8_t *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_true(memory != MAP_FAILED);
    fill(memory, BYTES, 3);
    assert_int_equal(mprotect(memory, BYTES, read_only ? PROT_READ : PROT_READ | PROT_WRITE), 0);
    return memory;
}

static void unpin(struct fixture *f, const void *memory)
{
    uint64_t begin = now_ms();

    for (; !device_copier_unpin(f->copier, memory); usleep(500))
        assert_true(now_ms() - begin < WAIT_MS);
}

static void a_copy_reads_where_its_value_lies(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    uint8_t *memory = range_new(false), wanted[5000], got[5000];
    struct err_why why = {{0}};
    struct device_copy *copy, *others[DEVICE_COPIES];
    int asked = gpu->count(FAKE_DEVICE_ASKED);
    uint32_t count = 0;

    assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_OK);
    assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_OK);
    copy = device_copy_take(f->copier, DEVICE_PINNED_BYTES, &f->users);
    assert_non_null(copy);
    assert_null(device_copy_take(f->copier, 1, &f->users));
    assert_false(device_copy_from(copy, memory + BYTES - 100, 101, on_let_go, f, 7));
    assert_false(device_copy_from(copy, wanted, 100, on_let_go, f, 7));
    assert_true(device_copy_from(copy, memory + 10, 5000, on_let_go, f, 7));
    /* Its own memory is free for others. */
    while ((others[count] = device_copy_take(f->copier, 5 * BYTES, &f->users)) != NULL)
        count++;
    assert_true(count >= 10);
    while (count > 0)
        device_copy_give(others[--count]);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    device_copy_start(
        copy, &(struct device_order){.direction = DEVICE_IN, .address = address, .bytes = 5000});
    for (uint64_t begin = now_ms(); gpu->count(FAKE_DEVICE_ASKED) == asked; usleep(500))
        assert_true(now_ms() - begin < WAIT_MS);
    device_copy_give(copy); /* LOST */
    assert_false(device_copier_unpin(f->copier, memory));
    copy = device_copy_take(f->copier, 100, &f->users);
    assert_false(device_copy_from(copy, memory, 100, on_let_go, f, 7)); /* it is leaving */
    assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_BUSY);
    device_copy_give(copy);
    assert_int_equal(atomic_load(&f->let_go), 0);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    unpin(f, memory);
    assert_int_equal(atomic_load(&f->let_go), 1);
    fill(wanted, sizeof(wanted), 3);
    gpu->read(address, got, sizeof(got));
    assert_memory_equal(got, memory + 10, sizeof(got));
    (void)munmap(memory, BYTES);
}

/* A mapping that may not be written to needs a flag, which not every driver has. */
static void a_range_that_cannot_be_pinned_is_refused(void **state)
{
    struct fixture *f = *state;
    uint8_t *memory = range_new(true), *many[DEVICE_PINS];
    struct err_why why = {{0}};

    assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_DEVICE);
    if (IS_CUDA) {
        assert_int_equal(device_copier_pin(f->copier, memory, BYTES, true, &why), ICMS_OK);
        unpin(f, memory);
    }
    gpu->set(FAKE_DEVICE_PIN_READ, FAKE_NOT_SUPPORTED);
    assert_int_equal(device_copier_pin(f->copier, memory, BYTES, true, &why), ICMS_DEVICE);
    assert_non_null(strstr(why.text, IS_GAUDI ? "status 18: Unsupported" : "ERROR_NOT_SUPPORTED"));
    assert_true(device_copier_unpin(f->copier, memory));
    (void)munmap(memory, BYTES);
    for (int i = 0; i < DEVICE_PINS; i++) {
        many[i] = range_new(false);
        assert_int_equal(device_copier_pin(f->copier, many[i], BYTES, false, &why), ICMS_OK);
    }
    memory = range_new(false);
    assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_LIMIT);
    (void)munmap(memory, BYTES);
    for (int i = 0; i < DEVICE_PINS; i++) {
        unpin(f, many[i]);
        (void)munmap(many[i], BYTES);
    }
}

/* The driver goes on believing in its pin: nobody is told that the memory may go. */
static void a_range_that_the_driver_keeps_stays_pinned(void **state)
{
    struct fixture *f = *state;
    uint8_t *memory = range_new(false);
    struct err_why why = {{0}};

    assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_OK);
    gpu->set(FAKE_DEVICE_UNPIN, FAKE_BAD_HANDLE);
    for (int i = 0; i < 20; i++, usleep(500))
        assert_false(device_copier_unpin(f->copier, memory));
    assert_false(device_copier_free(&f->copier));
    gpu->set(FAKE_DEVICE_UNPIN, 0);
    gpu->unpin_all(); /* as the end of the process would */
    (void)munmap(memory, BYTES);
    assert_int_equal(copier_open(f, f->context, &why), ICMS_OK);
}

/* A context takes its pins along. */
static void a_context_that_is_destroyed_unpins(void **state)
{
    struct fixture *f = *state;
    uint8_t *memory = range_new(false);
    struct err_why why = {{0}};
    void *context;

    if (!IS_CUDA)
        skip(); /* HIP has none */
    context = gpu->context_new(0);
    assert_true(device_copier_free(&f->copier));
    for (int closes = 0; closes < 2; closes++) {
        assert_int_equal(copier_open(f, context, &why), ICMS_OK);
        assert_int_equal(device_copier_pin(f->copier, memory, BYTES, false, &why), ICMS_OK);
        gpu->context_destroy(context);
        if (closes == 0)
            unpin(f, memory);
        assert_true(device_copier_free(&f->copier));
        context = gpu->context_new(0);
    }
    (void)munmap(memory, BYTES);
    assert_int_equal(copier_open(f, f->context, &why), ICMS_OK);
}

/* ---- order ---------------------------------------------------------------------------------- */

static void a_copy_waits_for_the_callers_stream(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    void *stream = gpu->stream_new(f->context);
    struct device_mark *mark = NULL;
    struct device_copy *copy;
    int code;

    gpu->stream_hold(stream, true);
    gpu->stream_write(stream, address, 0x5a, BYTES);
    assert_true(device_mark_take(f->copier, stream, &f->users, &mark, &code));
    gpu->stream_write(stream, address, 0x77, BYTES); /* behind the call: not waited for */
    copy = device_copy_take(f->copier, BYTES, &f->users);
    device_copy_start(
        copy, &(struct device_order){
                  .direction = DEVICE_OUT, .address = address, .bytes = BYTES, .mark = mark});
    (void)usleep(100000);
    assert_int_equal(device_copy_is_over(copy), COPY_NOT_OVER);
    gpu->stream_hold(stream, false);
    assert_int_equal(wait_over(copy), COPY_DONE);
    assert_true(copy->memory[0] == 0x5a || copy->memory[0] == 0x77); /* never what was before */
    device_mark_give(mark);
    device_copy_give(copy);
    gpu->stream_free(stream);
}

/* With a stream it is over before it has ended; what follows on the stream is behind it. */
static void follow_once(struct fixture *f)
{
    uint64_t address = gpu->alloc(f->context, BYTES);
    void *stream = gpu->stream_new(f->context);
    struct device_mark *mark = NULL;
    uint8_t *got = malloc(BYTES);
    struct device_copy *copy;
    uint64_t begin;
    int code;

    gpu->stream_hold(stream, true);
    gpu->stream_write(stream, address, 1, BYTES);
    assert_true(device_mark_take(f->copier, stream, &f->users, &mark, &code));
    copy = start_in_order(f, address, 9, mark, stream);
    assert_int_equal(wait_over(copy), COPY_DONE);
    gpu->read(address, got, BYTES);
    assert_int_equal(got[0], 0); /* nothing has run */
    device_copy_give(copy);
    device_mark_give(mark);
    assert_int_equal(atomic_load(&f->users), 1); /* its memory is the driver's */
    gpu->stream_write(stream, address, 0x33, BYTES / 2);
    gpu->stream_hold(stream, false);
    wait_users(f, 0);
    for (begin = now_ms(); !gpu->stream_idle(stream); (void)usleep(100))
        assert_true(now_ms() - begin < WAIT_MS);
    gpu->read(address, got, BYTES);
    assert_int_equal(got[0], 0x33);
    {
        uint8_t *wanted = malloc(BYTES);

        fill(wanted, BYTES, 9);
        assert_memory_equal(got + BYTES / 2, wanted + BYTES / 2, BYTES / 2);
        free(wanted);
    }
    gpu->stream_free(stream);
    free(got);
}

static void what_follows_on_the_stream_is_behind_the_copy(void **state)
{
    for (int i = 0; i < 12; i++) /* the fake picks a stream at random */
        follow_once(*state);
}

/* A copy that waits for its turn holds the mark, whoever took it: it is counted, and not given to
 * another call. */
static void a_mark_is_held_until_its_copies_are_with_the_driver(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, 2 * BYTES);
    void *stream = gpu->stream_new(f->context);
    struct device_mark *mark = NULL, *other = NULL;
    struct device_copy *first, *second;
    int code;

    gpu->set(FAKE_DEVICE_HANG, 1);
    first = start(f, DEVICE_IN, address, BYTES, 0);
    (void)usleep(200000); /* the thread is in the driver */
    assert_true(device_mark_take(f->copier, stream, &f->users, &mark, &code));
    second = device_copy_take(f->copier, BYTES, &f->users);
    device_copy_start(second, &(struct device_order){.direction = DEVICE_OUT,
                                                     .address = address + BYTES,
                                                     .bytes = BYTES,
                                                     .mark = mark});
    assert_int_equal(atomic_load(&f->users), 3);
    device_mark_give(mark);
    assert_int_equal(atomic_load(&f->users), 3);
    assert_true(device_mark_take(f->copier, stream, &f->users, &other, &code));
    assert_ptr_not_equal(mark, other);
    device_mark_give(other);
    assert_int_equal(atomic_load(&f->users), 3);
    device_copy_give(second); /* taken back, with its mark */
    assert_int_equal(atomic_load(&f->users), 1);
    gpu->set(FAKE_DEVICE_HANG, 0);
    assert_int_equal(wait_over(first), COPY_DONE);
    device_copy_give(first);
    gpu->stream_free(stream);
    wait_users(f, 0);
}

static void the_stream_of_a_lost_copy_is_not_used(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    void *stream = gpu->stream_new(f->context);
    struct device_copy *copy = device_copy_take(f->copier, BYTES, &f->users);

    gpu->set(FAKE_DEVICE_HANG, 1);
    fill(copy->memory, BYTES, 9);
    device_copy_start(
        copy, &(struct device_order){
                  .direction = DEVICE_IN, .address = address, .bytes = BYTES, .stream = stream});
    (void)usleep(200000);   /* the thread is in the driver */
    device_copy_give(copy); /* its deadline passed */
    gpu->stream_free(stream);
    gpu->set(FAKE_DEVICE_HANG, 0);
    wait_users(f, 0);
    assert_int_equal(atomic_load(&f->failed), 0);
}

/* Graphs: a capture is neither broken nor in the way, and a stream that is captured is refused. */
static void captures_go_on_beside_copies(void **state)
{
    struct fixture *f = *state;
    struct err_why why = {{0}};
    uint64_t address = gpu->alloc(f->context, BYTES);
    void *stream = gpu->stream_new(f->context);
    struct device_mark *mark = NULL;
    struct device_copy *copy;
    int code = 0;

    if (IS_GAUDI) {
        gpu->stream_free(stream);
        skip(); /* it captures nothing */
    }
    assert_true(device_copier_free(&f->copier));
    gpu->set(FAKE_DEVICE_CAPTURE, 1); /* of another stream */
    assert_int_equal(copier_open(f, f->context, &why), ICMS_OK);
    assert_true(device_mark_take(f->copier, stream, &f->users, &mark, &code));
    gpu->set(FAKE_DEVICE_HANG, 1);
    copy = start_in_order(f, address, 9, mark, stream);
    device_mark_give(mark);
    gpu->stream_capture(stream, true); /* after the call */
    assert_false(device_mark_take(f->copier, stream, &f->users, &mark, &code));
    assert_true(device_is_capture(code));
    gpu->set(FAKE_DEVICE_HANG, 0);
    assert_int_equal(wait_over(copy), COPY_DONE);
    device_copy_give(copy);
    assert_int_equal(atomic_load(&f->users), 0); /* it was over when it had ended */
    assert_false(device_copier_is_failed(f->copier));
    assert_int_equal(atomic_load(&f->failed), 0);
    assert_int_equal(gpu->count(FAKE_DEVICE_BROKEN), 0);
    gpu->stream_free(stream);
}

/* A driver that refuses for a capture does not fail the copier. */
static void a_refusal_for_a_capture_passes(void **state)
{
    static const int sets[] = {FAKE_DEVICE_RECORD, FAKE_DEVICE_QUERY};
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);

    if (IS_GAUDI)
        skip(); /* it captures nothing */
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        struct device_copy *copy;

        gpu->set(sets[i], FAKE_UNCAPTURED);
        copy = start(f, DEVICE_IN, address, BYTES, 1);
        (void)usleep(100000);
        assert_int_equal(device_copy_is_over(copy), COPY_NOT_OVER);
        gpu->set(sets[i], 0);
        assert_int_equal(wait_over(copy), COPY_DONE);
        device_copy_give(copy);
    }
    wait_users(f, 0);
    assert_int_equal(atomic_load(&f->failed), 0);
}

/* ---- what goes wrong ------------------------------------------------------------------------ */

static void a_copy_that_is_refused_is_over_and_failed(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    struct device_copy *copy;

    gpu->set(FAKE_DEVICE_COPY, FAKE_INVALID);
    copy = start(f, DEVICE_IN, address, BYTES, 1);
    assert_int_equal(wait_over(copy), COPY_FAILED);
    device_copy_give(copy);
    gpu->set(FAKE_DEVICE_COPY, 0);
    copy = start(f, DEVICE_IN, address, BYTES, 1); /* the next one is not concerned */
    assert_int_equal(wait_over(copy), COPY_DONE);
    device_copy_give(copy);
    assert_int_equal(atomic_load(&f->users), 0);
    assert_int_equal(atomic_load(&f->failed), 1);
    assert_non_null(strstr(f->line, IS_GAUDI ? "SynapseAI status 1" : "ERROR_INVALID_VALUE"));
}

static void memory_that_was_freed_is_not_copied_to(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    struct device_pointer before;
    struct device_copy *copy;
    uint8_t byte = 1;

    if (IS_GAUDI)
        skip(); /* it does not say what is allocated */
    assert_true(device_ops(f->driver)->look(f->driver, address, &before));
    gpu->alloc_free(address);
    assert_int_equal(gpu->alloc_at(f->context, BYTES, address), address);
    copy = device_copy_take(f->copier, BYTES, &f->users);
    fill(copy->memory, BYTES, 3);
    device_copy_start(
        copy, &(struct device_order){
                  .direction = DEVICE_IN, .address = address, .bytes = BYTES, .id = before.id});
    assert_int_equal(wait_over(copy), COPY_FAILED);
    device_copy_give(copy);
    gpu->read(address + 1, &byte, 1); /* of whoever has the address now */
    assert_int_equal(byte, 0);
    assert_non_null(strstr(f->line, "was freed"));
}

/* With the driver already: the context is lost with it. */
static void memory_that_is_freed_during_a_copy_is_an_error(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, BYTES);
    struct device_copy *copy;

    gpu->set(FAKE_DEVICE_STUCK, 1);
    copy = start(f, DEVICE_IN, address, BYTES, 1);
    (void)usleep(200000); /* the thread hands it over */
    gpu->alloc_free(address);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    assert_int_equal(wait_over(copy), COPY_FAILED);
    device_copy_give(copy);
    assert_int_equal(atomic_load(&f->users), 1); /* nothing has said that it ended */
    assert_true(device_copier_is_failed(f->copier));
    assert_null(device_copy_take(f->copier, 1, &f->users));
    assert_int_equal(atomic_load(&f->failed), 1);
    gpu->reset();
    wait_users(f, 0);
}

static void memory_of_a_copy_that_does_not_end_is_not_used_again(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, DEVICE_PINNED_BYTES);
    struct device_copy *copy, *next;

    gpu->set(FAKE_DEVICE_STUCK, 1);
    copy = start(f, DEVICE_OUT, address, DEVICE_PINNED_BYTES, 0);
    (void)usleep(200000);
    assert_int_equal(device_copy_is_over(copy), COPY_NOT_OVER);
    device_copy_give(copy); /* its deadline passed */
    assert_null(device_copy_take(f->copier, 1, &f->users));
    assert_int_equal(atomic_load(&f->users), 1);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    wait_users(f, 0);
    next = device_copy_take(f->copier, DEVICE_PINNED_BYTES, &f->users);
    assert_non_null(next);
    device_copy_give(next);
}

static void a_copy_that_the_driver_does_not_have_is_taken_back(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, 2 * BYTES);
    struct device_copy *first, *second;
    int ran = gpu->count(FAKE_DEVICE_COPIES);

    gpu->set(FAKE_DEVICE_HANG, 1);
    first = start(f, DEVICE_IN, address, BYTES, 0);
    (void)usleep(200000); /* the thread is in the driver */
    second = start(f, DEVICE_IN, address + BYTES, BYTES, 0);
    device_copy_give(second);
    assert_int_equal(atomic_load(&f->users), 1);
    gpu->set(FAKE_DEVICE_HANG, 0);
    assert_int_equal(wait_over(first), COPY_DONE);
    device_copy_give(first);
    wait_users(f, 0);
    assert_int_equal(gpu->count(FAKE_DEVICE_COPIES), ran + 1);
}

static void events_that_fail_fail_the_copier(void **state)
{
    static const int sets[] = {FAKE_DEVICE_RECORD, FAKE_DEVICE_QUERY};

    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        struct fixture *f = *state;
        struct err_why why = {{0}};
        uint64_t address = gpu->alloc(f->context, BYTES);
        struct device_copy *copy;

        gpu->set(sets[i], FAKE_ILLEGAL);
        copy = start(f, DEVICE_IN, address, BYTES, 1);
        assert_int_equal(wait_over(copy), COPY_FAILED);
        assert_true(device_copier_is_failed(f->copier));
        device_copy_give(copy);
        (void)usleep(100000);
        assert_int_equal(atomic_load(&f->users), 1); /* nothing has said that it ended */
        gpu->set(sets[i], 0);
        wait_users(f, 0);
        assert_true(device_copier_free(&f->copier));
        assert_int_equal(copier_open(f, f->context, &why), ICMS_OK);
    }
}

/* The driver fails for a moment while copies run: each is counted until its own event happens. */
static void copies_that_run_are_counted_when_events_fail(void **state)
{
    struct fixture *f = *state;
    uint64_t address = gpu->alloc(f->context, 3 * BYTES);
    struct device_copy *copies[3];

    gpu->set(FAKE_DEVICE_STUCK, 1);
    for (unsigned i = 0; i < 3; i++)
        copies[i] = start(f, i == 1 ? DEVICE_OUT : DEVICE_IN, address + i * BYTES, BYTES, i);
    (void)usleep(200000);
    gpu->set(FAKE_DEVICE_QUERY, FAKE_ILLEGAL);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(wait_over(copies[i]), COPY_FAILED);
        device_copy_give(copies[i]);
    }
    assert_int_equal(atomic_load(&f->users), 3);
    assert_false(device_copier_halt(f->copier));
    gpu->set(FAKE_DEVICE_QUERY, 0);
    (void)usleep(100000);
    assert_int_equal(atomic_load(&f->users), 3);
    gpu->set(FAKE_DEVICE_STUCK, 0);
    wait_users(f, 0);
    assert_int_equal(atomic_load(&f->failed), 1);
}

/* A context that is destroyed copies nothing any more. */
static void copies_of_a_context_that_is_destroyed_have_ended(void **state)
{
    struct fixture *f = *state;
    struct err_why why = {{0}};
    void *context = gpu->context_new(0);
    uint64_t address = gpu->alloc(context, BYTES);
    struct device_copy *copy;

    if (!IS_CUDA)
        skip(); /* HIP has one a device */
    assert_int_equal(copier_open(f, context, &why), ICMS_OK);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    copy = start(f, DEVICE_IN, address, BYTES, 1);
    (void)usleep(200000);
    gpu->context_destroy(context);
    assert_int_equal(wait_over(copy), COPY_FAILED);
    device_copy_give(copy);
    wait_users(f, 0);
}

static void a_context_that_was_destroyed_is_an_error(void **state)
{
    struct fixture *f = *state;
    struct err_why why = {{0}};
    void *context = gpu->context_new(0);
    uint64_t address = gpu->alloc(context, BYTES);
    struct device_copy *copy;

    if (!IS_CUDA)
        skip(); /* HIP has one a device */
    assert_int_equal(copier_open(f, context, &why), ICMS_OK);
    copy = start(f, DEVICE_IN, address, BYTES, 1);
    assert_int_equal(wait_over(copy), COPY_DONE);
    device_copy_give(copy);
    gpu->context_destroy(context);
    copy = start(f, DEVICE_IN, address, BYTES, 1);
    assert_int_equal(wait_over(copy), COPY_FAILED);
    device_copy_give(copy);
    assert_true(device_copier_free(&f->copier));
    assert_int_equal(copier_open(f, context, &why), ICMS_DEVICE);
    assert_non_null(strstr(why.text, "ERROR_CONTEXT_IS_DESTROYED"));
}

static void a_driver_that_does_not_return_is_left_behind(void **state)
{
    child_run("hang", NULL);
}

static void a_driver_that_fails_while_copies_run_is_left_behind(void **state)
{
    child_run("stuck", NULL);
}

static int hang_main(void)
{
    struct fixture f = {.copier = NULL};
    struct err_why why = {{0}};
    uint64_t address, begin;

    f.context = gpu->context(0);
    if (device_driver_get(DEVICE_TEST_KIND, &why, &f.driver) != ICMS_OK ||
        copier_open(&f, f.context, &why) != ICMS_OK)
        return 1;
    address = gpu->alloc(f.context, BYTES);
    gpu->set(FAKE_DEVICE_HANG, 1);
    begin = now_ms();
    device_copy_give(start(&f, DEVICE_IN, address, BYTES, 1));
    (void)start(&f, DEVICE_IN, address, BYTES, 1);
    (void)usleep(200000);
    if (device_copier_free(&f.copier))
        return 2;
    if (now_ms() - begin > WAIT_MS)
        return 3;
    gpu->set(FAKE_DEVICE_HANG, 0);
    (void)usleep(100000); /* the thread comes back, and calls nobody */
    return atomic_load(&f.landed) == 0 ? 0 : 4;
}

/* It does not return from pinning a range. */
static void a_driver_that_hangs_while_it_pins_is_left_behind(void **state)
{
    if (!IS_CUDA)
        skip(); /* the fake hangs at mappings that may not be written to */
    child_run("pin", NULL);
}

static int pin_main(void)
{
    struct fixture f = {.copier = NULL};
    struct err_why why = {{0}};
    uint8_t *memory = range_new(true);
    uint64_t begin;

    f.context = gpu->context(0);
    if (device_driver_get(DEVICE_TEST_KIND, &why, &f.driver) != ICMS_OK ||
        copier_open(&f, f.context, &why) != ICMS_OK)
        return 1;
    gpu->set(FAKE_DEVICE_PIN_HANG, 1);
    device_copier_pin_later(f.copier, memory, BYTES, true);
    (void)usleep(200000);
    (void)alarm(WAIT_MS / 1000);
    begin = now_ms();
    if (device_copier_free(&f.copier))
        return 2;
    if (now_ms() - begin > WAIT_MS / 2)
        return 3;
    gpu->set(FAKE_DEVICE_PIN_HANG, 0);
    (void)usleep(100000); /* the thread comes back, and calls nobody */
    return atomic_load(&f.landed) == 0 ? 0 : 4;
}

/* Pinned memory that the device may still read is not given back, whatever the driver says. */
static int stuck_main(void)
{
    struct fixture f = {.copier = NULL};
    struct err_why why = {{0}};
    struct device_copy *copy;
    const uint8_t *memory;
    uint64_t address;

    f.context = gpu->context(0);
    if (device_driver_get(DEVICE_TEST_KIND, &why, &f.driver) != ICMS_OK ||
        copier_open(&f, f.context, &why) != ICMS_OK)
        return 1;
    address = gpu->alloc(f.context, BYTES);
    gpu->set(FAKE_DEVICE_STUCK, 1);
    copy = start(&f, DEVICE_IN, address, BYTES, 1);
    memory = copy->memory;
    (void)usleep(200000);
    gpu->set(FAKE_DEVICE_QUERY, FAKE_ILLEGAL);
    if (wait_over(copy) != COPY_FAILED)
        return 2;
    device_copy_give(copy);
    if (device_copier_free(&f.copier))
        return 3;
    return atomic_load(&f.users) == 1 && *(const volatile uint8_t *)memory == 31 ? 0 : 4;
}

/* ---- drivers -------------------------------------------------------------------------------- */

static void what_an_address_is(void **state)
{
    struct fixture *f = *state;
    const struct device_ops *ops = device_ops(f->driver);
    uint64_t address = gpu->alloc(f->context, BYTES), host = gpu->pinned(f->context, BYTES);
    struct device_pointer pointer;
    int here = 0;

    assert_true(ops->look(f->driver, address + 5000, &pointer));
    assert_true(pointer.on_device);
    assert_int_equal(pointer.ordinal, 0);
    if (!IS_GAUDI) { /* gaudi_test.c */
        assert_int_equal(pointer.base, address);
        assert_int_equal(pointer.bytes, BYTES);
    }
    assert_int_equal(ops->look(f->driver, host, &pointer), !IS_GAUDI);
    assert_true(IS_GAUDI || !pointer.on_device);
    assert_false(ops->look(f->driver, (uint64_t)(uintptr_t)&here, &pointer));
    assert_true(device_is_foreign((void *)(uintptr_t)address));
    assert_false(device_is_foreign((void *)(uintptr_t)host));
    assert_false(device_is_foreign(&here));
}

static void drivers_that_do_not_serve_say_why(void **state)
{
    struct err_why why = {{0}};
    const struct device_driver *driver;

    gpu->set(FAKE_DEVICE_INIT, FAKE_NO_DEVICE);
    assert_int_equal(device_driver_get(DEVICE_TEST_KIND, &why, &driver), ICMS_UNSUPPORTED);
    assert_non_null(
        strstr(why.text, IS_GAUDI ? "no Gaudi (SynapseAI status 8" : "ERROR_NO_DEVICE"));
    gpu->set(FAKE_DEVICE_INIT, 0);
    if (IS_GAUDI) /* it has no version */
        return;
    gpu->set(FAKE_DEVICE_VERSION, IS_CUDA ? 10020 : 50700000);
    assert_int_equal(device_driver_get(DEVICE_TEST_KIND, &why, &driver), ICMS_UNSUPPORTED);
    assert_non_null(strstr(why.text, IS_CUDA ? "CUDA 10.2" : "HIP 5.7"));
    assert_non_null(strstr(why.text, "too old"));
}

static void a_child_of_fork_is_told(void **state)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        const struct device_driver *driver;
        struct err_why why = {{0}};
        icms_err err = device_driver_get(DEVICE_TEST_KIND, &why, &driver);

        _exit(err == ICMS_UNSUPPORTED && strstr(why.text, "spawn") != NULL ? 0 : 1);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* No library: in a process that the loader leaves alone. */
static void a_machine_without_a_driver_says_so(void **state)
{
    child_run("none", "");
}

/* Another library has its name, as one of an old driver would: functions are missing. */
static void a_library_that_lacks_functions_is_too_old(void **state)
{
    char folder[] = "/tmp/icms-old-XXXXXX", path[64], real[PATH_MAX];
    const void *reset;
    Dl_info library;

    memcpy(&reset, &gpu->reset, sizeof(reset));
    assert_int_not_equal(dladdr(reset, &library), 0);
    assert_non_null(realpath(library.dli_fname, real));
    (void)snprintf(strrchr(real, '/'), 20, "/libcufile.so.0");
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/%s", folder, LIBRARY);
    assert_int_equal(symlink(real, path), 0);
    child_run("old", folder);
    (void)unlink(path);
    (void)rmdir(folder);
}

static int old_main(void)
{
    const struct device_driver *driver;
    struct err_why why = {{0}};
    const char *missing = IS_CUDA ? "cuInit" : IS_GAUDI ? "synDeviceGetInfoV2" : "hipInit";

    if (device_driver_get(DEVICE_TEST_KIND, &why, &driver) != ICMS_UNSUPPORTED)
        return 1;
    return strstr(why.text, "is too old: it has no ") != NULL && strstr(why.text, missing) != NULL
               ? 0
               : 2;
}

static int none_main(void)
{
    const struct device_driver *driver;
    struct err_why why = {{0}};

    if (device_driver_get(DEVICE_TEST_KIND, &why, &driver) == ICMS_OK)
        return 0; /* this machine has one */
    device_drivers_look();
    return strstr(why.text, "no driver on this machine") != NULL && !device_is_foreign(&why) ? 0
                                                                                             : 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        CASE(bytes_go_there_and_come_back),
        CASE(the_cpu_cannot_touch_device_memory),
        CASE(pinned_memory_is_bounded),
        CASE(a_copy_reads_where_its_value_lies),
        CASE(a_range_that_cannot_be_pinned_is_refused),
        CASE(a_range_that_the_driver_keeps_stays_pinned),
        CASE(a_context_that_is_destroyed_unpins),
        BARE(less_memory_is_pinned_where_there_is_less),
        CASE(a_copy_waits_for_the_callers_stream),
        CASE(what_follows_on_the_stream_is_behind_the_copy),
        CASE(a_mark_is_held_until_its_copies_are_with_the_driver),
        CASE(the_stream_of_a_lost_copy_is_not_used),
        CASE(captures_go_on_beside_copies),
        CASE(a_refusal_for_a_capture_passes),
        CASE(a_copy_that_is_refused_is_over_and_failed),
        CASE(memory_that_was_freed_is_not_copied_to),
        CASE(memory_that_is_freed_during_a_copy_is_an_error),
        CASE(memory_of_a_copy_that_does_not_end_is_not_used_again),
        CASE(a_copy_that_the_driver_does_not_have_is_taken_back),
        CASE(events_that_fail_fail_the_copier),
        CASE(copies_that_run_are_counted_when_events_fail),
        BARE(copies_of_a_context_that_is_destroyed_have_ended),
        BARE(a_context_that_was_destroyed_is_an_error),
        BARE(a_driver_that_does_not_return_is_left_behind),
        BARE(a_driver_that_fails_while_copies_run_is_left_behind),
        BARE(a_driver_that_hangs_while_it_pins_is_left_behind),
        CASE(what_an_address_is),
        BARE(drivers_that_do_not_serve_say_why),
        BARE(a_child_of_fork_is_told),
        BARE(a_machine_without_a_driver_says_so),
        BARE(a_library_that_lacks_functions_is_too_old),
    };

    if (argc == 2 && strcmp(argv[1], "none") == 0)
        return none_main();
    if (argc == 2 && strcmp(argv[1], "old") == 0)
        return old_main();
    gpu = fake_device_load(LIBRARY);
    if (gpu == NULL) {
        (void)fprintf(stderr, "no fake %s in LD_LIBRARY_PATH\n", LIBRARY);
        return 1;
    }
    if (argc == 2 && strcmp(argv[1], "hang") == 0)
        return hang_main();
    if (argc == 2 && strcmp(argv[1], "stuck") == 0)
        return stuck_main();
    if (argc == 2 && strcmp(argv[1], "pin") == 0)
        return pin_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
