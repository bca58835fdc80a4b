/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/device_rig.c: see device_rig.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/device_rig.h"
#include "device/fake_device_rig.h"

const struct fake_device *gpu;

uint64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void on_landed(void *arg)
{
    struct fixture *f = arg;

    atomic_store(&f->slack, prctl(PR_GET_TIMERSLACK));
    atomic_fetch_add(&f->landed, 1);
}

static void on_failed(void *arg, const char *line)
{
    struct fixture *f = arg;

    (void)snprintf(f->line, sizeof(f->line), "%s", line);
    atomic_fetch_add(&f->failed, 1);
}

icms_err copier_open(struct fixture *f, void *context, struct err_why *why)
{
    const struct device_copier_options options = {
        .driver = f->driver,
        .place = {.context = IS_CUDA ? context : NULL, .ordinal = 0},
        .landed = on_landed,
        .failed = on_failed,
        .arg = f,
    };

    return device_copier_new(&options, why, &f->copier);
}

int device_setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err_why why = {{0}};

    *state = f;
    gpu->reset();
    f->context = gpu->context(0);
    if (device_driver_get(DEVICE_TEST_KIND, &why, &f->driver) == ICMS_OK &&
        copier_open(f, f->context, &why) == ICMS_OK)
        return 0;
    (void)fprintf(stderr, "%s\n", why.text);
    return -1;
}

int device_setup_bare(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct err_why why = {{0}};

    *state = f;
    gpu->reset();
    f->context = gpu->context(0);
    return device_driver_get(DEVICE_TEST_KIND, &why, &f->driver) == ICMS_OK ? 0 : -1;
}

int device_teardown(void **state)
{
    struct fixture *f = *state;

    gpu->set(FAKE_DEVICE_STUCK, 0);
    assert_true(device_copier_free(&f->copier));
    gpu->reset();
    fake_device_leaks_none(gpu);
    free(f);
    return 0;
}

void fill(uint8_t *data, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + i / 251 + seed * 31);
}

struct device_copy *start(struct fixture *f, enum device_direction direction, uint64_t address,
                          uint64_t bytes, unsigned seed)
{
    struct device_copy *copy = device_copy_take(f->copier, bytes, &f->users);

    assert_non_null(copy);
    if (direction == DEVICE_IN)
        fill(copy->memory, bytes, seed);
    device_copy_start(
        copy, &(struct device_order){.direction = direction, .address = address, .bytes = bytes});
    return copy;
}

struct device_copy *start_in_order(struct fixture *f, uint64_t address, unsigned seed,
                                   struct device_mark *mark, void *stream)
{
    struct device_copy *copy = device_copy_take(f->copier, BYTES, &f->users);

    assert_non_null(copy);
    fill(copy->memory, BYTES, seed);
    device_copy_start(copy, &(struct device_order){.direction = DEVICE_IN,
                                                   .address = address,
                                                   .bytes = BYTES,
                                                   .mark = mark,
                                                   .stream = stream});
    return copy;
}

enum device_copy_over wait_over(const struct device_copy *copy)
{
    uint64_t begin = now_ms();

    while (device_copy_is_over(copy) == COPY_NOT_OVER) {
        assert_true(now_ms() - begin < WAIT_MS);
        (void)usleep(100);
    }
    return device_copy_is_over(copy);
}

void wait_users(struct fixture *f, uint32_t users)
{
    uint64_t begin = now_ms();

    while (atomic_load(&f->users) != users) {
        assert_true(now_ms() - begin < WAIT_MS);
        (void)usleep(100);
    }
}

void child_run(const char *what, const char *libraries)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        if (libraries != NULL)
            (void)setenv("LD_LIBRARY_PATH", libraries, 1);
        (void)execl("/proc/self/exe", "test", what, (char *)NULL);
        _exit(9);
    }
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}
