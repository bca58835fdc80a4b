/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The write budget of a drive: what is refused, what is written, and that both are accounted for to
 * the byte. The first tests on every back end, those that depend on the clock in simulated time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/fault_arm.h"
#include "base/hash.h"
#include "store/layout.h"
#include "store/store_rig.h"

#define BYTES  20000
#define RECORD store_record_bytes(BYTES)
/* Twelve records a segment, whose own pages are one of sixteen. */
#define SEGMENT_BYTES ((uint64_t)256 << 10)
#define DRIVE_BYTES   ((uint64_t)8 << 20)

#define DAY_MS ((uint64_t)86400 * 1000)

/* A drive begins with this part of a day's budget. */
#define BEGIN_PART 96

/* What may be owed: the dead maps and the ends of segments of an hour. */
#define OWED_MAX ((uint64_t)64 * STORE_PAGE_BYTES)

static uint64_t rig_ms(const struct rig *rig)
{
    return loop_env_now_ns(rig->env) / 1000000;
}

/* A budget of which so many records may be written at once when the drive is opened. */
static void rig_budget_up(struct rig *rig, uint64_t records)
{
    rig_one_volume(rig);
    rig->opts.bytes = DRIVE_BYTES;
    rig->opts.segment_bytes = SEGMENT_BYTES;
    rig->opts.value_bytes_max = BYTES;
    rig->opts.budget.bytes_day = BEGIN_PART * records * RECORD;
    rig_format(rig);
    rig_up(rig);
}

/* What the budget gained at most, however slow the machine is. */
static uint64_t rig_gained(struct rig *rig, uint64_t begin_ms)
{
    return (rig_ms(rig) - begin_ms + 2) * (rig->opts.budget.bytes_day / DAY_MS + 1);
}

struct pause {
    struct loop_timer timer;
    uint64_t end_ns;
    bool over;
};

static void pause_over(struct loop_timer *timer)
{
    container_of(timer, struct pause, timer)->over = true;
}

static void pause_begin(struct rig *rig, void *arg)
{
    struct pause *pause = arg;

    loop_timer_init(&pause->timer, pause_over);
    loop_timer_start(rig->loop, &pause->timer, pause->end_ns);
}

static bool pause_is_over(void *arg)
{
    return ((struct pause *)arg)->over;
}

/* Lets the clock of a simulated machine go on. */
static void rig_until_ms(struct rig *rig, uint64_t end_ms)
{
    struct pause pause = {.end_ns = end_ms * 1000000};

    if (end_ms <= rig_ms(rig))
        return;
    rig_call(rig, pause_begin, &pause);
    assert_true(rig_until(rig, pause_is_over, &pause));
}

/* All that went to the device was taken from the budget, which gained what the clock says. No write
 * of a record is in flight. */
static void rig_account(struct rig *rig, uint64_t begin_ms)
{
    uint64_t day = rig->opts.budget.bytes_day, begin = day / BEGIN_PART;
    struct store_stats stats;
    uint64_t gained;

    rig_stats(rig, &stats);
    gained = rig_gained(rig, begin_ms);
    assert_int_equal(stats.budget_bytes_day, day);
    assert_true(rig->sim == NULL || gained < STORE_PAGE_BYTES);
    assert_true(stats.budget_left_bytes + stats.device_write_bytes >= begin);
    if (stats.budget_left_bytes > 0)
        assert_true(stats.budget_left_bytes + stats.device_write_bytes <= begin + gained);
    else
        assert_true(stats.device_write_bytes <= begin + gained + OWED_MAX);
}

static void without_a_budget_nothing_is_refused(void **state)
{
    struct rig *rig = *state;
    struct store_stats stats;

    rig_one_volume(rig);
    rig_format(rig);
    rig_up(rig);
    for (uint64_t i = 0; i < 300; i++)
        assert_int_equal(rig_put(rig, 0, i, BYTES, i, 0), ICMS_OK);
    assert_int_equal(rig_delete(rig, 0, 299), ICMS_OK);
    rig_stats(rig, &stats);
    assert_int_equal(stats.refused, 0);
    assert_int_equal(stats.budget_bytes_day, 0);
    assert_int_equal(stats.budget_left_bytes, 0);
    assert_int_equal(stats.admitted_bytes, 300 * RECORD);
    assert_true(stats.device_write_bytes > stats.admitted_bytes);
}

static void a_short_budget_takes_what_is_offered_again(void **state)
{
    enum { BLOCKS = 220, BEGIN = 200 };
    struct rig *rig = *state;
    uint64_t begin_ms = rig_ms(rig), admitted = 0, refused = 0, first = 0;
    struct store_stats stats;

    rig_budget_up(rig, BEGIN);
    for (uint64_t i = 0; i < BLOCKS; i++) {
        icms_err err = rig_put(rig, 0, i, BYTES, i, 0);

        if (err == ICMS_OK) {
            admitted++;
            assert_int_equal(refused, 0);
        } else {
            assert_int_equal(err, ICMS_BUSY);
            if (refused++ == 0)
                first = i;
            assert_false(rig_exists(rig, 0, i));
        }
        rig_account(rig, begin_ms);
    }
    assert_true(admitted >= BEGIN / 10 - 4 &&
                admitted <= BEGIN / 10 + 1 + rig_gained(rig, begin_ms) / RECORD);
    /* what was refused once is taken the second time, until nothing at all is left */
    for (uint64_t i = first; i < BLOCKS; i++) {
        icms_err err = rig_put(rig, 0, i, BYTES, i, 0);

        if (err == ICMS_BUSY) {
            refused++;
            break;
        }
        assert_int_equal(err, ICMS_OK);
        admitted++;
        rig_account(rig, begin_ms);
    }
    assert_true(admitted >= BEGIN * 9 / 10 &&
                admitted <= BEGIN + rig_gained(rig, begin_ms) / RECORD);
    rig_stats(rig, &stats);
    assert_true(stats.budget_left_bytes < RECORD + rig_gained(rig, begin_ms));
    assert_int_equal(stats.refused, refused);
    assert_int_equal(stats.admitted_bytes, admitted * RECORD);
    assert_int_equal(stats.writes, admitted);
    assert_int_equal(stats.blocks, admitted);
    rig_account(rig, begin_ms);
    for (uint64_t i = 0; i < admitted; i++) /* what was acknowledged is there */
        assert_int_equal(rig_get(rig, 0, i, BYTES, i, NULL), ICMS_OK);
    assert_int_equal(rig_delete(rig, 0, 0), ICMS_OK);
}

/* Whole keys of one run begin with the same eight bytes. */
static struct key run_key(uint8_t run, uint8_t block)
{
    struct key key = {.length = LIMIT_KEY_BYTES};

    memset(key.bytes, run, 8);
    memset(key.bytes + 8, block, 8);
    return key;
}

/* Writes or reads a block of a run; what done said. */
static icms_err run_op(struct rig *rig, enum rig_kind kind, uint8_t run, uint8_t block)
{
    struct rig_op *op = rig_op_new(rig, kind, BYTES);
    icms_err err;

    op->key = run_key(run, block);
    op->seed = block;
    op->value_bytes = BYTES;
    rig_op_start(op);
    rig_op_wait(op);
    err = op->err;
    rig_op_free(op);
    return err;
}

/* What was admitted and then not written is given back: else a device that fails now and then would
 * cost blocks. */
static void a_write_that_failed_costs_no_budget(void **state)
{
    struct rig *rig = *state;
    struct store_stats before, after;

    rig_budget_up(rig, 200);
    for (uint64_t i = 0; i < 8; i++) {
        assert_int_equal(rig_put(rig, 0, 2 * i, BYTES, i, 0), ICMS_OK);
        rig_stats(rig, &before);
        assert_int_equal(fault_arm("store.write:1:fail", NULL), ICMS_OK);
        assert_int_equal(rig_put(rig, 0, 2 * i + 1, BYTES, i, 0), ICMS_IO);
        assert_int_equal(fault_arm(NULL, NULL), ICMS_OK);
        rig_stats(rig, &after);
        assert_true(after.budget_left_bytes + RECORD > before.budget_left_bytes); /* headers */
    }
    assert_int_equal(after.refused, 0);
}

/* Of two runs of which each has one block, more is taken of the one that was read. */
static void a_short_budget_takes_what_continues_a_run(void **state)
{
    enum { BEGIN = 400 };
    struct rig *rig = *state;
    uint8_t taken = 0;

    rig_budget_up(rig, BEGIN);
    assert_int_equal(run_op(rig, RIG_WRITE, 1, 0), ICMS_OK);
    assert_int_equal(run_op(rig, RIG_WRITE, 2, 0), ICMS_OK);
    for (uint64_t i = 0; rig_put(rig, 0, i, BYTES, i, 0) == ICMS_OK; i++)
        ;
    assert_int_equal(run_op(rig, RIG_WRITE, 1, 1), ICMS_BUSY);
    assert_int_equal(run_op(rig, RIG_READ, 1, 0), ICMS_OK);
    assert_int_equal(run_op(rig, RIG_WRITE, 2, 2), ICMS_BUSY);
    while (taken < 200 && run_op(rig, RIG_WRITE, 1, (uint8_t)(taken + 2)) == ICMS_OK)
        taken++;
    assert_true(taken > BEGIN / 25 && taken <= BEGIN / 20 + 1);
}

/* Also when nothing may be written any more; and the conditions are asked before the budget. */
static void a_delete_is_never_refused(void **state)
{
    enum { BEGIN = 20 };
    struct rig *rig = *state;
    uint64_t kept = 0;
    struct store_stats before, after;

    rig_budget_up(rig, BEGIN);
    for (uint64_t i = 0; i < BEGIN; i++) {
        icms_err err = rig_put(rig, 0, i, BYTES, i, 0);

        if (err == ICMS_BUSY)
            err = rig_put(rig, 0, i, BYTES, i, 0);
        kept += err == ICMS_OK;
    }
    assert_true(kept >= BEGIN - 4 && kept < BEGIN);
    assert_int_equal(rig_put(rig, 0, 0, BYTES, 7, 0), ICMS_BUSY);
    assert_int_equal(rig_get(rig, 0, 0, BYTES, 0, NULL), ICMS_OK); /* the old value stays */
    assert_int_equal(rig_put(rig, 0, 0, BYTES, 7, true), ICMS_EXISTS);
    rig_stats(rig, &before);
    for (uint64_t i = 0; i < kept; i++)
        assert_int_equal(rig_delete(rig, 0, i), ICMS_OK);
    rig_stats(rig, &after);
    assert_int_equal(after.deletes - before.deletes, kept);
    assert_int_equal(after.blocks, 0);
    assert_int_equal(after.budget_left_bytes, 0); /* owed */
    rig_until_ms(rig, rig_ms(rig) + 10000);
    rig_stats(rig, &after);
    assert_int_equal(after.budget_left_bytes, 0); /* and paid slowly */
    rig_restart(rig);
    assert_false(rig_exists(rig, 0, 0));
}

static icms_err rig_try(struct rig *rig, struct err_why *why)
{
    struct loop_opts opts;
    icms_err err;

    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, why, &rig->loop), ICMS_OK);
    err = store_open(rig->loop, &rig->opts, why, &rig->store);
    loop_free(&rig->loop);
    store_close(&rig->store);
    return err;
}

static void a_budget_without_room_for_a_record_is_an_error(void **state)
{
    struct rig *rig = *state;
    struct err_why why = {""};

    rig_one_volume(rig);
    rig->opts.value_bytes_max = BYTES;
    rig_format(rig);
    rig->opts.budget.bytes_day = RECORD - 1;
    assert_int_equal(rig_try(rig, &why), ICMS_INVALID);
    assert_non_null(strstr(why.text, "raise the budget"));
    rig->opts.budget.bytes_day = RECORD;
    assert_int_equal(rig_try(rig, &why), ICMS_OK);
    rig->opts.budget.burst_bytes = RECORD - 1;
    assert_int_equal(rig_try(rig, &why), ICMS_INVALID);
    rig->opts.budget = (struct write_budget){.drive_writes = 0.001}; /* of 4 MiB: a page */
    assert_int_equal(rig_try(rig, &why), ICMS_INVALID);
}

/* ---- simulated days ---------------------------------------------------------------------------
 */

/* Offers blocks of a few thousand, some often and most seldom, reads some, deletes some; an hour.
 */
static void day_hour(struct rig *rig, uint64_t hour, uint64_t offers, uint64_t *io_stored,
                     uint64_t *io_deleted)
{
    for (uint64_t i = 0; i < offers; i++) {
        uint64_t dice = hash64_mix(hour * 100000 + i);
        uint64_t name = dice % (dice >> 60 < 8 ? 40 : 4000);
        bool there = rig_exists(rig, 0, name);
        icms_err err;

        if (there) {
            err = rig_get(rig, 0, name, BYTES, name, NULL); /* it may be evicted just now */
            assert_true(err == ICMS_OK || (err == ICMS_MISS && !rig_exists(rig, 0, name)));
            if (err == ICMS_MISS)
                continue;
            if (dice >> 32 % 64 == 0) {
                assert_int_equal(rig_delete(rig, 0, name), ICMS_OK);
                ++*io_deleted;
            }
            continue;
        }
        err = rig_put(rig, 0, name, BYTES, name, 0);
        assert_true(err == ICMS_OK || err == ICMS_BUSY);
        *io_stored += err == ICMS_OK;
    }
}

/* Over days of too much to write, the device gets what the budget allows and hardly less. */
static void a_budget_is_kept_over_days(void **state)
{
    enum { DAYS = 5 };
    struct rig *rig = *state;
    uint64_t day = (uint64_t)24 << 20, burst = (uint64_t)2 << 20, stored = 0, deleted = 0;
    uint64_t begin_ms, end = STORE_DATA_OFFSET + 64 * RIG_SEGMENT_BYTES;
    struct store_stats stats;

    rig_one_volume(rig);
    rig->opts.bytes = end;
    rig->opts.value_bytes_max = BYTES;
    rig->opts.budget.drive_writes = (double)day / (double)end;
    rig->opts.budget.burst_bytes = burst;
    rig_format(rig);
    rig_up(rig);
    rig_stats(rig, &stats);
    assert_true(stats.budget_bytes_day <= day && stats.budget_bytes_day >= day - 1);
    begin_ms = rig_ms(rig);
    for (uint64_t hour = 0; hour < 24 * DAYS; hour++) {
        day_hour(rig, hour, 150, &stored, &deleted);
        rig_stats(rig, &stats);
        assert_true(stats.device_write_bytes <=
                    burst + OWED_MAX +
                        (uint64_t)((double)day * (double)(rig_ms(rig) - begin_ms) / DAY_MS));
        assert_true(stats.blocks + stats.evictions + deleted == stored);
        rig_until_ms(rig, begin_ms + (hour + 1) * 3600 * 1000);
    }
    assert_true(stats.refused > stored);
    assert_true(stats.evictions > 0);
    assert_true(stats.device_write_bytes >= day * DAYS * 9 / 10);
    assert_int_equal(stats.admitted_bytes, stored * RECORD);
}

/* Three days of silence save what the burst says, or a day's, and no more. */
static void quiet_days_save_a_burst(void **state)
{
    struct rig *rig = *state;
    uint64_t day = 100 * RECORD, left[2] = {30 * RECORD, day};

    for (int i = 0; i < 2; i++) {
        uint64_t stored = 0;
        struct store_stats stats;

        rig_down(rig);
        rig_one_volume(rig);
        rig->opts.bytes = DRIVE_BYTES;
        rig->opts.segment_bytes = SEGMENT_BYTES;
        rig->opts.value_bytes_max = BYTES;
        rig->opts.budget.bytes_day = day;
        rig->opts.budget.burst_bytes = i == 0 ? 30 * RECORD : 0;
        if (i == 0)
            rig_format(rig);
        rig_up(rig);
        rig_until_ms(rig, rig_ms(rig) + 3 * DAY_MS);
        rig_stats(rig, &stats);
        assert_true(stats.budget_left_bytes == left[i]);
        for (uint64_t name = 0; name < 150; name++) {
            icms_err err = rig_put(rig, 0, 1000 * (uint64_t)i + name, BYTES, name, 0);

            if (err == ICMS_BUSY)
                err = rig_put(rig, 0, 1000 * (uint64_t)i + name, BYTES, name, 0);
            stored += err == ICMS_OK;
        }
        assert_true(stored * RECORD <= left[i] && stored * RECORD >= left[i] * 8 / 10);
    }
}

/* ---- what writing costs -----------------------------------------------------------------------
 */

/* Writes a block of a volume now and then reads one of its last few hundred, the latest most. */
static void age_step(struct rig *rig, uint32_t volume, uint64_t n)
{
    uint64_t dice = hash64_mix(n * 3 + volume), back = 1 + dice % (1 + dice / 1000 % 300);

    assert_int_equal(rig_put(rig, volume, n, 6 * BYTES, n, 0), ICMS_OK);
    for (int i = 0; i < 2 && back <= n; i++, back = 1 + back / 2) {
        icms_err err = rig_get(rig, volume, n - back, 6 * BYTES, n - back, NULL);

        assert_true(err == ICMS_OK || err == ICMS_MISS);
    }
}

/* Three volumes of different age, one of them over its quota all the time: what the engine writes,
 * segments' own pages and relocated blocks too, is at most 1.05 bytes for one that it admits. */
static void three_volumes_of_different_age_cost_little(void **state)
{
    struct rig *rig = *state;
    uint64_t segment_bytes = (uint64_t)4 << 20, n[3] = {0};
    struct store_volume_stats limited;
    struct store_stats stats;
    double amplification;

    rig->volume_count = 3;
    for (uint32_t v = 0; v < 3; v++)
        rig->uuid[v] = rig_uuid(v);
    rig->quota_bytes[1] = 6 * segment_bytes;
    rig->opts.segment_bytes = segment_bytes;
    rig->opts.bytes = STORE_DATA_OFFSET + 48 * segment_bytes;
    rig->opts.value_bytes_max = 6 * BYTES;
    rig_format(rig);
    rig_up(rig);
    for (uint64_t step = 0; step < 4200; step++) {
        age_step(rig, 0, n[0]++);
        if (step > 1000 && step % 2 == 0)
            age_step(rig, 1, n[1]++);
        if (step > 2000)
            age_step(rig, 2, n[2]++);
        rig_until_ms(rig, rig_ms(rig) + 2000);
    }
    rig_stats(rig, &stats);
    amplification = (double)stats.device_write_bytes / (double)stats.admitted_bytes;
    print_message("%.4f bytes written for one admitted\n", amplification);
    rig_volume_stats(rig, 1, &limited);
    assert_true(limited.evictions > n[1] / 2 && limited.bytes <= rig->quota_bytes[1]);
    assert_int_equal(stats.admitted_bytes, (n[0] + n[1] + n[2]) * store_record_bytes(6 * BYTES));
    assert_true(amplification <= 1.05);
}

#define BUDGET_TEST(test, backend)                                                                 \
    {                                                                                              \
#backend ": " #test, test, rig_##backend##_setup, rig_##backend##_teardown, NULL           \
    }

#define BUDGET_TESTS(backend)                                                                      \
    BUDGET_TEST(without_a_budget_nothing_is_refused, backend),                                     \
        BUDGET_TEST(a_short_budget_takes_what_is_offered_again, backend),                          \
        BUDGET_TEST(a_budget_without_room_for_a_record_is_an_error, backend)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BUDGET_TESTS(uring),
        BUDGET_TESTS(sim),
        BUDGET_TEST(a_write_that_failed_costs_no_budget, sim),
        BUDGET_TEST(a_short_budget_takes_what_continues_a_run, sim),
        BUDGET_TEST(a_delete_is_never_refused, sim),
        BUDGET_TEST(a_budget_is_kept_over_days, sim),
        BUDGET_TEST(quiet_days_save_a_burst, sim),
        BUDGET_TEST(three_volumes_of_different_age_cost_little, sim),
    };

    return cmocka_run_group_tests_name("store-budget", tests, NULL, NULL);
}
