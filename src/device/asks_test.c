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

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_thread_sleeps_as_long_as_it_says),
        CASE(a_copy_that_does_not_end_is_not_polled_for),
    };

    gpu = fake_device_load(LIBRARY);
    if (gpu == NULL) {
        (void)fprintf(stderr, "no fake %s in LD_LIBRARY_PATH\n", LIBRARY);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
