/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a drive does wrong is told with its place, and space that is missing for a while is no
 * broken drive: on every back end.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/fault_arm.h"
#include "loop/sim.h"
#include "store/store_int.h"
#include "store/store_rig.h"

static bool fault_set(const char *text)
{
    return fault_arm(text, NULL) == ICMS_OK;
}

/* ---- errors --------------------------------------------------------------------------------- */

static void damage_is_told_with_block_and_place(void **state)
{
    struct rig *rig = *state;
    uint64_t at = STORE_DATA_OFFSET + 2 * STORE_PAGE_BYTES, missed = 7;
    struct key key = rig_key(1);
    struct store_error error;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 2000, 1, 0), ICMS_OK);
    assert_false(store_error_take(rig->store, &error, &missed));
    rig_flip(rig, at + 500, 1);
    assert_int_equal(rig_get(rig, 0, 1, 2000, 1, NULL), ICMS_MISS);
    assert_true(store_error_take(rig->store, &error, &missed));
    assert_int_equal(missed, 0);
    assert_string_equal(error.what, "value");
    assert_int_equal(error.err, ICMS_CORRUPT);
    assert_int_equal(error.offset, at);
    assert_int_equal(error.volume, 0);
    assert_memory_equal(&error.key, &key, sizeof(key));
    assert_false(store_error_take(rig->store, &error, &missed));
    rig_verify(rig);
}

static void a_failed_write_is_told_with_block_and_place(void **state)
{
    struct rig *rig = *state;
    struct key key = rig_key(5);
    struct store_error error;
    struct store_stats stats;
    uint64_t missed;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_true(fault_set("store.write:1:fail"));
    assert_int_equal(rig_put(rig, 0, 5, 2000, 1, 0), ICMS_IO);
    assert_true(fault_set("store.flush:1:fail"));
    assert_int_equal(rig_flush(rig), ICMS_IO);
    assert_true(fault_set(NULL));
    assert_true(store_error_take(rig->store, &error, &missed));
    assert_string_equal(error.what, "write of a value");
    assert_int_equal(error.err, ICMS_IO);
    assert_int_equal(error.offset, STORE_DATA_OFFSET + 2 * STORE_PAGE_BYTES);
    assert_memory_equal(&error.key, &key, sizeof(key));
    rig_stats(rig, &stats);
    assert_int_equal(stats.io_errors, 2);
    assert_int_equal(stats.no_space_errors, 0);
    rig_verify(rig);
}

/* More than are kept are counted. */
static void errors_that_nobody_takes_are_counted(void **state)
{
    enum { BLOCKS = STORE_ERRORS + 10 };
    struct rig *rig = *state;
    struct store_error error;
    struct store_stats stats;
    uint64_t missed, unsaid = 0;
    uint32_t taken = 0;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (int round = 0; round < 2; round++) {
        for (uint64_t i = 0; i < BLOCKS; i++) {
            assert_true(fault_set("store.write:1:fail"));
            assert_int_equal(rig_put(rig, 0, i, 100, 1, 0), ICMS_IO);
            assert_true(fault_set(NULL));
            assert_int_equal(rig_put(rig, 0, i, 100, 1, 0), ICMS_OK); /* not in a row */
        }
        while (store_error_take(rig->store, &error, &missed)) {
            taken++;
            unsaid += missed;
        }
    }
    rig_stats(rig, &stats);
    assert_int_equal(stats.io_errors, 2 * BLOCKS);
    assert_int_equal(taken, 2 * STORE_ERRORS);
    assert_int_equal(unsaid, 20);
    rig_verify(rig);
}

/* ---- no space ------------------------------------------------------------------------------- */

/* No write of the drive finds space; a file that is limited in size is as good as a full file
 * system. */
static void space_end(struct rig *rig, bool end)
{
    struct rlimit limit;

    if (rig->sim != NULL) {
        sim_disk_full(rig->node, rig->path, end);
        return;
    }
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = end ? STORE_PAGE_BYTES : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static uint64_t no_space_errors(const struct rig *rig)
{
    struct store_stats stats;

    store_stats(rig->store, &stats);
    return stats.no_space_errors;
}

/* More often than what takes a drive out. */
static bool failed_some(void *arg)
{
    const struct rig *rig = arg;

    return no_space_errors(rig) > STORE_WRITE_ERRORS_MAX || atomic_load(&rig->down_calls) > 0;
}

/* Or it is out, which no test wants. */
static bool failed_often(void *arg)
{
    const struct rig *rig = arg;

    return no_space_errors(rig) >= 30 || atomic_load(&rig->down_calls) > 0;
}

static bool is_over(void *arg)
{
    return atomic_load(&((struct rig_op *)arg)->done) != 0;
}

/* Stores, replacements and deletions while there is none, and segments that begin and are sealed:
 * nothing takes the drive out, and all goes on when there is some again. */
static void space_that_comes_back_finds_the_drive_in_service(void **state)
{
    enum { BLOCKS = 200, BYTES = 3000, OPS = 60 };
    struct rig *rig = *state;
    struct rig_op *ops[OPS];
    struct store_stats stats;
    uint32_t failed = 0;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < BLOCKS; i++)
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
    space_end(rig, true);
    for (uint32_t i = 0; i < OPS; i++) {
        ops[i] = rig_op_new(rig, i % 6 == 5 ? RIG_DELETE : RIG_WRITE, BYTES);
        ops[i]->key = rig_key(BLOCKS - OPS / 2 + i); /* some are there, some are new */
        ops[i]->seed = 1000 + i;
        ops[i]->value_bytes = BYTES;
        rig_op_start(ops[i]);
    }
    assert_true(rig_until(rig, failed_often, rig));
    assert_int_equal(atomic_load(&rig->down_calls), 0);
    rig_stats(rig, &stats);
    assert_false(stats.down);
    assert_true(stats.full);
    assert_int_equal(stats.io_errors, 0);
    assert_int_equal(rig_get(rig, 0, 3, BYTES, 3, NULL), ICMS_OK); /* loads go on */
    space_end(rig, false);
    for (uint32_t i = 0; i < OPS; i++) {
        assert_true(rig_until(rig, is_over, ops[i]));
        failed += ops[i]->err == ICMS_NO_SPACE;
        assert_true(ops[i]->err == ICMS_OK || ops[i]->err == ICMS_NO_SPACE ||
                    (ops[i]->kind == RIG_DELETE && ops[i]->err == ICMS_MISS));
        rig_op_free(ops[i]);
    }
    assert_true(failed > 0);
    for (uint64_t i = 500; i < 800; i++) /* through new segments */
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
    rig_stats(rig, &stats);
    assert_false(stats.down || stats.full);
    assert_int_equal(atomic_load(&rig->down_calls), 0);
    rig_verify(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(rig_get(rig, 0, i, BYTES, i, NULL), ICMS_OK);
}

/* The list of drives, which must be on flash before an answer goes out. */
static struct store_note note;
static atomic_int noted;

static void note_done(struct store_note *done)
{
    atomic_store(&noted, 1);
}

static void note_begin(struct rig *rig, void *arg)
{
    static uint8_t bytes[STORE_NOTE_BYTES];

    note = (struct store_note){.bytes = bytes, .done = note_done};
    assert_int_equal(store_note_put(rig->store, &note), ICMS_OK);
}

static bool is_noted(void *arg)
{
    return atomic_load(&noted) != 0;
}

static void a_note_waits_for_space(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    atomic_store(&noted, 0);
    space_end(rig, true);
    rig_call(rig, note_begin, NULL);
    assert_true(rig_until(rig, failed_some, rig));
    assert_false(is_noted(NULL));
    space_end(rig, false);
    assert_true(rig_until(rig, is_noted, NULL));
    assert_int_equal(note.err, ICMS_OK);
    assert_int_equal(atomic_load(&rig->down_calls), 0);
    rig_verify(rig);
}

#define STORE_TESTS(backend)                                                                       \
    STORE_TEST(damage_is_told_with_block_and_place, backend),                                      \
        STORE_TEST(a_failed_write_is_told_with_block_and_place, backend),                          \
        STORE_TEST(errors_that_nobody_takes_are_counted, backend),                                 \
        STORE_TEST(space_that_comes_back_finds_the_drive_in_service, backend),                     \
        STORE_TEST(a_note_waits_for_space, backend)

/* Also of a test that failed: whatever writes next is not limited. */
static int uring_teardown(void **state)
{
    space_end(*state, false);
    return rig_uring_teardown(state);
}

static int sim_teardown(void **state)
{
    return rig_sim_teardown(state);
}

#define STORE_TEST(test, backend)                                                                  \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, backend##_teardown, NULL                 \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {STORE_TESTS(uring), STORE_TESTS(sim)};

    return cmocka_run_group_tests_name("store-error", tests, NULL, NULL);
}
