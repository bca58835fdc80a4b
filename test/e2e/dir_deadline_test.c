/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libicms in a directory whose device does not answer in time: gets end by their deadline, and what
 * the device brings later touches nobody's memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fault_arm.h"
#include "icms/icms.h"

#define BLOCKS      40 /* more than the buffers of a drive */
#define BYTES       100000
#define CLEAN       0xa5
#define DEADLINE_MS 300
#define SLOW_US     "6000000"
#define GRACE_S     3.0 /* under half of that: a loaded machine */

struct fixture {
    char folder[64], where[80];
    struct icms *icms;
    struct icms_volume *volume;
    uint8_t *memory; /* BYTES a block */
    struct icms_block blocks[BLOCKS];
};

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void open_folder(struct fixture *f)
{
    char why[256] = "";

    if (icms_open(f->where, NULL, why, sizeof(why), &f->icms) != ICMS_OK ||
        icms_volume_open(f->icms, "kv", why, sizeof(why), &f->volume) != ICMS_OK)
        fail_msg("%s", why);
}

/* The blocks, and the bytes that a value has, or others. */
static void fill(struct fixture *f, bool values)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        char name[16];

        snprintf(name, sizeof(name), "block %u", i);
        f->blocks[i] = (struct icms_block){.data = f->memory + (size_t)i * BYTES, .bytes = BYTES};
        icms_key_from_name(name, strlen(name), &f->blocks[i].key);
        memset(f->blocks[i].data, values ? (int)i : CLEAN, BYTES);
    }
}

static void assert_filled(const struct fixture *f, bool values)
{
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const uint8_t *data = f->blocks[i].data;

        for (uint32_t at = 0; at < BYTES; at++)
            assert_int_equal(data[at], values ? i : CLEAN);
    }
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    *state = f;
    f->memory = malloc((size_t)BLOCKS * BYTES);
    (void)snprintf(f->folder, sizeof(f->folder), "/tmp/icms-dir-deadline-XXXXXX");
    if (f->memory == NULL || mkdtemp(f->folder) == NULL)
        return -1;
    (void)snprintf(f->where, sizeof(f->where), "dir:%s/kv", f->folder);
    open_folder(f);
    fill(f, true);
    assert_int_equal(icms_put(f->volume, f->blocks, BLOCKS, NULL), ICMS_OK);
    assert_int_equal(icms_flush(f->volume, NULL), ICMS_OK);
    icms_close(&f->icms);
    open_folder(f); /* nothing is in memory */
    return 0;
}

static int teardown(void **state)
{
    static const char *const names[] = {"kv/icms.lock", "kv/volumes", "kv/icms.store", "kv", ""};
    struct fixture *f = *state;
    char path[128];

    icms_close(&f->icms);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", f->folder, names[i]);
        (void)remove(path);
    }
    free(f->memory);
    free(f);
    return 0;
}

static void gets_end_by_their_deadline(void **state)
{
    struct fixture *f = *state;
    struct icms_request_options options;
    double begin;

    icms_request_options_init(&options);
    options.deadline_ms = DEADLINE_MS;
    fill(f, false);
    assert_int_equal(fault_arm("loop.read:1:slow=" SLOW_US, NULL), ICMS_OK);
    begin = now();
    assert_int_equal(icms_get(f->volume, f->blocks, BLOCKS, &options), ICMS_MISS);
    assert_true(now() - begin < GRACE_S);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(f->blocks[i].status, ICMS_MISS);
        assert_int_equal(f->blocks[i].reason, ICMS_MISS_DEADLINE);
    }
    assert_int_equal(fault_arm("", NULL), ICMS_OK);
    while (now() - begin < 8) /* the reads came back */
        usleep(100000);
    assert_filled(f, false);
    options.deadline_ms = 60000;
    assert_int_equal(icms_get(f->volume, f->blocks, BLOCKS, &options), ICMS_OK);
    assert_filled(f, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gets_end_by_their_deadline, setup, teardown),
    };

    return cmocka_run_group_tests_name("e2e-dir-deadline", tests, NULL, NULL);
}
