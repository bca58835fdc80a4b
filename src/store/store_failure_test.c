/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that fail: nothing that was acknowledged is lost, and a device that fails for good goes
 * out of service. The same tests on every back end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/fault_arm.h"
#include "loop/sim.h"
#include "store/layout.h"
#include "store/store_int.h"
#include "store/store_rig.h"

static void test_fault(const char *text)
{
    struct err_why why;

    assert_int_equal(fault_arm(text, &why), ICMS_OK);
}

static void a_failed_write_is_never_visible(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 9, 100, 1, 0), ICMS_OK);
    test_fault("store.kill:1:fail"); /* is tried again */
    assert_int_equal(rig_put(rig, 0, 9, 100, 2, 0), ICMS_OK);
    test_fault(NULL);
    assert_int_equal(rig_get(rig, 0, 9, 100, 2, NULL), ICMS_OK);
    for (int i = 0; i < 2; i++) {
        uint64_t key = (uint64_t)i * 2;

        assert_int_equal(rig_put(rig, 0, key, 100, 1, 0), ICMS_OK);
        test_fault("store.write:1:fail");
        assert_int_equal(rig_put(rig, 0, key + 1, 100, 2, 0), ICMS_IO);
        assert_int_equal(rig_get(rig, 0, key + 1, 100, 2, NULL), ICMS_MISS);
        test_fault("store.write:1:fail");
        assert_int_equal(rig_put(rig, 0, key, 100, 3, 0), ICMS_IO);
        assert_int_equal(rig_get(rig, 0, key, 100, 1, NULL), ICMS_OK); /* as before */
        test_fault(NULL);
    }
    for (int again = 0; again < 2; again++) { /* nor after a restart: it was killed */
        for (uint64_t i = 0; i < 2; i++) {
            assert_int_equal(rig_get(rig, 0, i * 2, 100, 1, NULL), ICMS_OK);
            assert_int_equal(rig_get(rig, 0, i * 2 + 1, 100, 2, NULL), ICMS_MISS);
        }
        rig_restart(rig);
    }
    assert_int_equal(rig_put(rig, 0, 1, 100, 4, 0), ICMS_OK);
    assert_int_equal(rig_get(rig, 0, 1, 100, 4, NULL), ICMS_OK);
}

/* It is on flash, and dead. */
static void a_failed_write_is_no_difference(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig_format(rig);
    for (uint64_t blocks = 1; blocks < 60; blocks += 29) {
        uint64_t replaced = 1000 * blocks, fresh = replaced + 1;

        rig_up(rig);
        assert_int_equal(rig_put(rig, 0, replaced, 100, 1, 0), ICMS_OK);
        test_fault("store.write:1:fail");
        assert_int_equal(rig_put(rig, 0, replaced, 100, 2, 0), ICMS_IO);
        test_fault("store.write:1:fail");
        assert_int_equal(rig_put(rig, 0, fresh, 100, 2, 0), ICMS_IO);
        test_fault(NULL);
        for (uint64_t i = 0; i < blocks; i++)
            assert_int_equal(rig_put(rig, 0, replaced + 10 + i, 3000, i, 0), ICMS_OK);
        if (blocks > 20)
            rig_wait_sealed(rig, 0, replaced);
        rig_verify(rig);
        rig_up(rig);
        assert_int_equal(rig_get(rig, 0, replaced, 100, 1, NULL), ICMS_OK);
        assert_int_equal(rig_get(rig, 0, fresh, 100, 2, NULL), ICMS_MISS);
        rig_verify(rig);
    }
}

/* What cannot be marked as dead could come back. */
static void a_kill_that_fails_for_good_takes_the_drive_out(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 100, 1, 0), ICMS_OK);
    assert_int_equal(rig_put(rig, 0, 2, 100, 2, 0), ICMS_OK);
    test_fault("store.kill:1:fail+");
    assert_int_equal(rig_put(rig, 0, 1, 100, 3, 0), ICMS_DRIVE_DOWN);
    test_fault(NULL);
    rig_stats(rig, &stats); /* records that are written meanwhile give it no further attempts */
    assert_int_equal(stats.io_errors, 3);
    assert_int_equal(rig_delete(rig, 0, 2), ICMS_DRIVE_DOWN);
    assert_int_equal(atomic_load(&rig->down_calls), 1);
    rig_restart(rig); /* nobody was told of either */
    assert_int_equal(rig_get(rig, 0, 1, 100, 3, NULL), ICMS_OK);
    assert_int_equal(rig_get(rig, 0, 2, 100, 2, NULL), ICMS_OK);
    rig_stats(rig, &stats);
    assert_int_equal(stats.blocks, 2);
    rig_verify(rig);
}

static void a_drive_that_keeps_failing_goes_out_of_service(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    enum icms_miss reason;
    int writes = 0;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 100, 1, 0), ICMS_OK);
    test_fault("store.write:1:fail+");
    while (rig_put(rig, 0, 2, 100, 1, 0) == ICMS_IO)
        writes++;
    assert_in_range(writes, 2, 20);
    test_fault(NULL);
    assert_int_equal(rig_put(rig, 0, 2, 100, 1, 0), ICMS_DRIVE_DOWN);
    assert_int_equal(rig_delete(rig, 0, 1), ICMS_DRIVE_DOWN);
    assert_int_equal(rig_get(rig, 0, 1, 100, 1, &reason), ICMS_DRIVE_DOWN);
    assert_int_equal(reason, ICMS_MISS_DRIVE_DOWN);
    assert_int_equal(rig_flush(rig), ICMS_DRIVE_DOWN);
    assert_false(rig_exists(rig, 0, 1));
    assert_int_equal(atomic_load(&rig->down_calls), 1);
    rig_stats(rig, &stats);
    assert_true(stats.down);
    rig_restart(rig);
    assert_int_equal(rig_get(rig, 0, 1, 100, 1, NULL), ICMS_OK);
}

static void call_rest(struct rig *rig, void *arg)
{
    (void)store_rest(rig->store);
}

/* Writes that end well when the drive is out of service already: rig_on_index is not called. */
static void nothing_is_told_of_the_index_after_down(void **state)
{
    struct rig *rig = *state;
    struct rig_op *op[8];

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 100, 100, 1, 0), ICMS_OK); /* a segment is open */
    if (rig->sim != NULL)
        sim_file_slow(rig->node, rig->path, 1000);
    for (uint64_t i = 0; i < 8; i++) {
        op[i] = rig_op_new(rig, RIG_WRITE, 3000);
        op[i]->key = rig_key(i);
        op[i]->value_bytes = 3000;
        rig_op_start(op[i]);
    }
    rig_call(rig, call_rest, NULL);
    for (uint64_t i = 0; i < 8; i++) {
        rig_op_wait(op[i]);
        rig_op_free(op[i]);
    }
    assert_int_equal(atomic_load(&rig->down_calls), 1);
    rig_down(rig);
}

/* Failures of what the store does behind the scenes cost nothing that was acknowledged. */
static void failures_of_the_log_itself_lose_nothing(void **state)
{
    static const char *const faults[] = {"store.seal:3:fail", "store.header:2:fail",
                                         "store.reclaim:2:fail+",
                                         "store.seal:1:fail,"
                                         "store.header:3:fail,"
                                         "store.reclaim:1:fail",
                                         "store.seal:1:fail+"};
    struct rig *rig = *state;
    uint64_t key = 0, known = 0;

    rig_one_volume(rig);
    rig->opts.bytes = 2 << 20;
    rig_format(rig);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        struct store_stats stats;
        uint64_t hits = 0;

        rig_up(rig);
        test_fault(faults[i]);
        for (uint64_t n = 0; n < 200; n++, key++)
            assert_int_equal(rig_put(rig, 0, key, 10000, key, 0), ICMS_OK);
        test_fault(NULL);
        for (int again = 0; again < 2; again++) {
            for (uint64_t n = key - 200, h = hits = 0; n < key; n++, hits = h)
                h += rig_get(rig, 0, n, 10000, n, NULL) == ICMS_OK;
            rig_stats(rig, &stats);
            assert_true(hits > 100);
            known = 0;
            for (uint64_t n = 0; n < key; n++)
                known += rig_get(rig, 0, n, 10000, n, NULL) == ICMS_OK;
            assert_int_equal(stats.blocks, known);
            assert_int_equal(stats.evictions + stats.blocks, key);
            if (again == 0)
                rig_restart(rig);
        }
        rig_down(rig);
    }
}

/* A write of a new life fails; nothing is written after it that would hide what it left on flash.
 */
static void a_new_life_that_fails_once_counts_once(void **state)
{
    struct rig *rig = *state;
    uint64_t key = 0;

    rig_one_volume(rig);
    rig->opts.bytes = 2 << 20;
    rig_format(rig);
    for (unsigned nth = 1; nth <= 12; nth++) {
        struct store_stats stats;
        char fault[32];

        rig_up(rig);
        for (uint64_t n = 0; n < 200; n++, key++) {
            (void)snprintf(fault, sizeof(fault), "store.header:%u:fail", nth);
            if (n == 180)
                test_fault(fault);
            assert_int_equal(rig_put(rig, 0, key, 10000, key, 0), ICMS_OK);
        }
        test_fault(NULL);
        rig_restart(rig);
        rig_stats(rig, &stats);
        assert_int_equal(stats.evictions + stats.blocks, key);
        rig_down(rig);
    }
}

static void a_life_that_fails_for_good_takes_the_drive_out(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;
    icms_err err = ICMS_OK;

    rig_one_volume(rig);
    rig->opts.bytes = 2 << 20;
    rig_format(rig);
    rig_up(rig);
    test_fault("store.header:1:fail+");
    for (uint64_t key = 0; key < 1000 && err == ICMS_OK; key++)
        err = rig_put(rig, 0, key, 10000, key, 0);
    test_fault(NULL);
    assert_int_equal(err, ICMS_DRIVE_DOWN);
    assert_int_equal(atomic_load(&rig->down_calls), 1);
    rig_stats(rig, &stats); /* records that are written meanwhile give it no further attempts */
    assert_int_equal(stats.io_errors, 3);
    rig_restart(rig);
    assert_int_equal(rig_put(rig, 0, 1, 10000, 1, 0), ICMS_OK);
}

/* Only simulated. The read that takes the drive out of service is that of a job for a quota: it
 * evicts nothing any more. */
static void a_drive_goes_out_under_a_job_for_a_quota(void **state)
{
    struct rig rig = {.sim = NULL};
    struct store_volume_stats volume;
    struct sim_opts opts;
    uint64_t key = 0;

    sim_opts_init(&opts, 3);
    opts.disk_read_error_ppm = 1000000;
    rig_sim_init(&rig, &opts);
    sim_faults(rig.sim, false);
    rig_one_volume(&rig);
    rig.quota_bytes[0] = 2 * RIG_SEGMENT_BYTES; /* it shares segments */
    rig_format(&rig);
    rig_up(&rig);
    do {
        assert_int_equal(rig_put(&rig, 0, key, 6000, key, 0), ICMS_OK);
        key++;
        store_volume_stats(rig.store, 0, &volume);
    } while (key < 100 || volume.bytes + store_record_bytes(6000) <= volume.quota_bytes);
    rig_wait_sealed(&rig, 0, key - volume.blocks);
    for (int i = 0; i < 1000; i++) /* nothing else is under way */
        (void)sim_step(rig.sim);
    sim_faults(rig.sim, true);
    for (int i = 0; i < STORE_READ_ERRORS_MAX - 1; i++)
        assert_int_equal(rig_get(&rig, 0, key - 1, 6000, key - 1, NULL), ICMS_IO);
    assert_int_equal(rig_put(&rig, 0, key, 6000, key, 0), ICMS_DRIVE_DOWN);
    assert_int_equal(atomic_load(&rig.down_calls), 1);
    for (int i = 0; i < 1000; i++)
        (void)sim_step(rig.sim);
    sim_faults(rig.sim, false);
    rig_restart(&rig);
    assert_int_equal(rig_get(&rig, 0, key - 1, 6000, key - 1, NULL), ICMS_OK);
    rig_down(&rig);
    sim_free(&rig.sim);
}

/* Only simulated. Reads that fail at open, alone or twice in a row, lose nothing. */
static void reads_that_fail_at_open_lose_nothing_for_good(void **state)
{
    struct rig rig = {.sim = NULL};
    struct sim_opts opts;
    uint64_t opened = 0, errors = 0;

    sim_opts_init(&opts, 3);
    opts.disk_read_error_ppm = 20000;
    rig_sim_init(&rig, &opts);
    sim_faults(rig.sim, false);
    rig_one_volume(&rig);
    rig_format(&rig);
    rig_up(&rig);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(rig_put(&rig, 0, i, 10000, i, 0), ICMS_OK);
    rig_down(&rig);
    sim_faults(rig.sim, true);
    for (int i = 0; i < 30; i++) {
        struct loop_opts loop_options;
        struct err_why why = {""};
        struct store_stats stats;

        loop_opts_init(&loop_options);
        assert_int_equal(loop_new(rig.env, &loop_options, &why, &rig.loop), ICMS_OK);
        if (store_open(rig.loop, &rig.opts, &why, &rig.store) == ICMS_OK) {
            store_stats(rig.store, &stats);
            assert_true(stats.blocks <= 60);
            errors += stats.io_errors;
            opened++;
        }
        loop_free(&rig.loop);
        store_close(&rig.store);
    }
    assert_true(opened > 10 && errors > opened);
    sim_faults(rig.sim, false);
    rig_up(&rig);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(rig_get(&rig, 0, i, 10000, i, NULL), ICMS_OK);
    rig_down(&rig);
    sim_free(&rig.sim);
}

/* However many mutations wait for it: it is tried again, and none of them is lost or half done. */
static void one_failed_flush_is_one_failure(void **state)
{
    enum { OPS = 40 };
    struct rig *rig = *state;
    struct rig_op *ops[OPS];
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < OPS; i++)
        assert_int_equal(rig_put(rig, 0, i, 100, i, 0), ICMS_OK);
    test_fault("store.kill_flush:2:fail");
    for (uint64_t i = 0; i < OPS; i++) {
        ops[i] = rig_op_new(rig, RIG_WRITE, 100);
        ops[i]->key = rig_key(i);
        ops[i]->value_bytes = 100;
        ops[i]->seed = i + OPS;
        rig_op_start(ops[i]);
    }
    for (uint64_t i = 0; i < OPS; i++) {
        rig_op_wait(ops[i]);
        assert_int_equal(ops[i]->err, ICMS_OK);
        assert_int_equal(rig_get(rig, 0, i, 100, i + OPS, NULL), ICMS_OK);
        rig_op_free(ops[i]);
    }
    test_fault(NULL);
    rig_stats(rig, &stats);
    assert_int_equal(stats.io_errors, 1);
    assert_int_equal(atomic_load(&rig->down_calls), 0);
}

static void a_failed_flush_says_so(void **state)
{
    struct rig *rig = *state;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    assert_int_equal(rig_put(rig, 0, 1, 100, 1, 0), ICMS_OK);
    assert_int_equal(rig_flush(rig), ICMS_OK);
    test_fault("store.flush:1:fail");
    assert_int_equal(rig_flush(rig), ICMS_IO);
    assert_int_equal(rig_flush(rig), ICMS_OK);
    test_fault(NULL);
}

/* Since when free segments are under the mark, until they are not. */
static void few_free_segments_are_told(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats, later;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    rig_stats(rig, &stats);
    assert_int_equal(stats.free_low_ns, 0);
    rig->store->free_low_mark = UINT32_MAX;
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(rig_put(rig, 0, i, 10000, i, 0), ICMS_OK);
    rig_stats(rig, &stats);
    assert_true(stats.free_low_ns > 0);
    for (uint64_t i = 100; i < 200; i++)
        assert_int_equal(rig_put(rig, 0, i, 10000, i, 0), ICMS_OK);
    rig_stats(rig, &later);
    assert_int_equal(later.free_low_ns, stats.free_low_ns);
    rig->store->free_low_mark = (uint32_t)later.segments_free + 1;
    rig->store->free_count++; /* one becomes free, and is taken at once */
    store_free_count_note(rig->store);
    rig->store->free_count--;
    store_free_count_note(rig->store);
    rig_stats(rig, &later);
    assert_int_equal(later.free_low_ns, stats.free_low_ns);
    rig->store->free_low_mark = 0;
    for (uint64_t i = 200; i < 300; i++)
        assert_int_equal(rig_put(rig, 0, i, 10000, i, 0), ICMS_OK);
    rig_stats(rig, &stats);
    assert_int_equal(stats.free_low_ns, 0);
}

/* A store that is to be closed: whether it rests is asked while a sweep of the index (reclaim.c)
 * has nothing but a message on its way. */
struct rest {
    struct loop_msg msg;
    struct rig *rig;
    bool is_caught; /* the sweep was met, and the store was asked */
    bool rests;     /* what it said                               */
    atomic_bool is_over;
};

static void rest_look(struct loop_msg *msg)
{
    struct rest *rest = container_of(msg, struct rest, msg);
    struct store *store = rest->rig->store;

    if (store->reclaim.segment != NULL && (store->metas > 0 || loop_file_busy(store->file))) {
        loop_send(store->loop, &rest->msg, rest_look);
        return;
    }
    rest->is_caught = store->reclaim.segment != NULL;
    if (rest->is_caught)
        rest->rests = store_rest(store);
    atomic_store(&rest->is_over, true);
}

static bool rest_is_over(void *arg)
{
    return atomic_load(&((struct rest *)arg)->is_over);
}

static void rest_ask(struct rig *rig, void *arg)
{
    *(bool *)arg = store_rest(rig->store);
}

static void a_store_does_not_rest_before_reclaim_ended(void **state)
{
    struct rig *rig = *state;
    struct rest rest = {.rig = rig};

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    test_fault("store.reclaim:1:fail+"); /* a segment's blocks are found by a sweep */
    for (uint64_t i = 0; !rest.is_caught && i < 400; i++) {
        assert_int_equal(rig_put(rig, 0, i, 30000, i, 0), ICMS_OK);
        atomic_store(&rest.is_over, false);
        loop_send(rig->loop, &rest.msg, rest_look);
        assert_true(rig_until(rig, rest_is_over, &rest));
    }
    assert_true(rest.is_caught);
    assert_false(rest.rests);
    for (int i = 0; i < 1000000 && !rest.rests; i++)
        rig_call(rig, rest_ask, &rest.rests);
    assert_true(rest.rests);
    assert_null(rig->store->reclaim.segment);
    test_fault(NULL);
}

#define STORE_TESTS(backend)                                                                       \
    STORE_TEST(a_kill_that_fails_for_good_takes_the_drive_out, backend),                           \
        STORE_TEST(a_failed_write_is_no_difference, backend),                                      \
        STORE_TEST(a_store_does_not_rest_before_reclaim_ended, backend),                           \
        STORE_TEST(few_free_segments_are_told, backend),                                           \
        STORE_TEST(a_failed_write_is_never_visible, backend),                                      \
        STORE_TEST(a_drive_that_keeps_failing_goes_out_of_service, backend),                       \
        STORE_TEST(nothing_is_told_of_the_index_after_down, backend),                              \
        STORE_TEST(failures_of_the_log_itself_lose_nothing, backend),                              \
        STORE_TEST(a_new_life_that_fails_once_counts_once, backend),                               \
        STORE_TEST(a_life_that_fails_for_good_takes_the_drive_out, backend),                       \
        STORE_TEST(one_failed_flush_is_one_failure, backend),                                      \
        STORE_TEST(a_failed_flush_says_so, backend)

#define STORE_TEST(test, backend)                                                                  \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drive_goes_out_under_a_job_for_a_quota),
        cmocka_unit_test(reads_that_fail_at_open_lose_nothing_for_good),
        STORE_TESTS(uring),
        STORE_TESTS(sim),
    };

    return cmocka_run_group_tests_name("store-failure", tests, NULL, NULL);
}
