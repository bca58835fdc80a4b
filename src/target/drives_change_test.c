/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives that come, go, drain and are replaced while the enclosure runs: what hosts find before,
 * meanwhile, after, and after a restart. On simulated loops and drives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "target/drives_change_rig.h"

static void a_drive_that_comes_costs_no_hit(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops++) {
        struct rig *rig = up_with(loops, 7);

        fill(rig, 1, 200);
        change(rig, 15, 0);
        assert_int_equal(hits(rig, 1, 200), 200);
        fill(rig, 2, 200);
        assert_in_range(blocks(rig, 3), 20, 90); /* a quarter of them */
        rig_down(rig);
        rig_up(rig);
        assert_int_equal(hits(rig, 1, 200), 200);
        assert_int_equal(hits(rig, 2, 200), 200);
        rig_free(&rig);
    }
}

static void a_drive_that_drained_is_removed_without_a_miss(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops++) {
        struct rig *rig = up_with(loops, 7);
        struct target_stats *stats = calloc(1, sizeof(*stats));
        uint64_t moved;

        check(stats != NULL);
        fill(rig, 1, 200);
        moved = blocks(rig, 1);
        assert_true(moved > 30);
        begin(rig, 7, 2);
        assert_int_equal(hits(rig, 1, 200), 200); /* while it begins, and while blocks move */
        over(rig);
        assert_int_equal(hits(rig, 1, 200), 200);
        drained(rig, 1);
        run_ms(rig, 5000);
        target_stats(rig->target, stats);
        assert_true(stats->loaded_age_ns >= (uint64_t)5000 * 1000000); /* a move is no load */
        assert_true(stats->drives[1].drains && !stats->drives[1].out);
        assert_int_equal(stats->drives[1].moved, moved);
        assert_int_equal(hits(rig, 1, 200), 200);
        fill(rig, 2, 100);
        assert_int_equal(blocks(rig, 1), 0);
        begin(rig, 5, 0);
        assert_int_equal(hits(rig, 1, 200), 200);
        over(rig);
        closed(rig);
        target_stats(rig->target, stats); /* also what a drive gave that is gone */
        assert_true(stats->loaded_age_ns < (uint64_t)60000 * 1000000);
        assert_int_equal(hits(rig, 1, 200), 200);
        assert_int_equal(hits(rig, 2, 100), 100);
        rig_down(rig);
        rig_up(rig);
        assert_int_equal(hits(rig, 1, 200), 200);
        free(stats);
        rig_free(&rig);
    }
}

/* One that drains and takes blocks again; draining is also known at the start. */
static void a_drive_that_drains_may_stay(void **state)
{
    struct rig *rig = up_with(2, 3);
    uint64_t before;

    fill(rig, 1, 100);
    rig_down(rig);
    configure(rig, 3, 2);
    rig_up(rig);
    drained(rig, 1);
    assert_int_equal(hits(rig, 1, 100), 100);
    fill(rig, 2, 50);
    assert_int_equal(blocks(rig, 1), 0);
    change(rig, 3, 0);
    before = blocks(rig, 0);
    fill(rig, 2, 100);
    assert_true(blocks(rig, 1) > 20 && blocks(rig, 0) >= before);
    assert_int_equal(hits(rig, 1, 100), 100);
    rig_free(&rig);
}

static bool is_stuck(struct rig *rig, uint32_t i)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));
    bool stuck = false;

    check(stats != NULL);
    target_stats(rig->target, stats);
    for (uint32_t d = 0; d < stats->drive_count; d++)
        stuck =
            stuck || (stats->drives[d].number == number_of(rig, i) && stats->drives[d].is_stuck);
    free(stats);
    return stuck;
}

/* What the others have no space for stays, but for what is asked for. */
static void full_drives_take_what_is_asked_for(void **state)
{
    for (uint32_t full = 0; full < 2; full++) { /* the index, or the segments */
        struct rig *rig;
        struct nvme_cqe cqe;
        uint32_t n = 0;
        struct store_stats stats;

        bytes_per_block = full == 0 ? 0 : 4096;
        rig = up_with(1, 3);
        do {
            assert_int_equal(put(rig, 1, key_text(n, 0), n), NVME_SC_SUCCESS);
            n++;
            store_stats(rig->target->drives[0].store, &stats);
        } while (stats.evictions == 0);
        change(rig, 3, 2);
        run_ms(rig, 2000);
        assert_true(blocks(rig, 1) > 100);
        assert_true(is_stuck(rig, 1)); /* and it is known */
        for (uint32_t i = n - 20; i < n; i++)
            assert_int_equal(get(rig, 1, key_text(i, 0), i, &cqe), NVME_SC_SUCCESS);
        run_ms(rig, 2000);
        change(rig, 1 | 2 | 64, 2); /* there is space at another one */
        run_ms(rig, 2000);
        assert_false(is_stuck(rig, 1));
        change(rig, 1 | 64, 0);
        for (uint32_t i = n - 20; i < n; i++)
            assert_int_equal(get(rig, 1, key_text(i, 0), i, &cqe), NVME_SC_SUCCESS);
        rig_free(&rig);
    }
    bytes_per_block = 0;
}

/* Its blocks are misses, and what it missed stays away when it is back. */
static void a_drive_that_is_removed_comes_back_empty(void **state)
{
    struct rig *rig = up_with(2, 7);
    struct nvme_cqe cqe;
    uint32_t n[8], has;

    fill_drive(rig, 1, 0, n, 8);
    has = hits(rig, 1, 200);
    change(rig, 5, 0);
    closed(rig);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(get(rig, 1, key_text(n[i], 0), n[i], &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(hits(rig, 1, 200), has - 8);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(put(rig, 1, key_text(n[i], 0), 900 + i), NVME_SC_SUCCESS);
    refused(rig, 7, 0, ICMS_FOREIGN, "holds blocks of an enclosure");
    rig_down(rig);
    configure(rig, 7, 0);
    rig_up(rig);
    assert_non_null(strstr(rig_warning(0), "is formatted"));
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(get(rig, 1, key_text(n[i], 0), 900 + i, &cqe), NVME_SC_SUCCESS);
    for (uint32_t i = 4; i < 8; i++)
        assert_int_equal(get(rig, 1, key_text(n[i], 0), n[i], &cqe), NVME_SC_KV_NO_KEY);
    rig_free(&rig);
}

/* All of them one after the other, under new paths: nothing is lost that was drained. */
static void drives_are_replaced_one_after_the_other(void **state)
{
    struct rig *rig = up_with(2, 7);
    struct nvme_cqe cqe;
    uint32_t in = 7;

    fill(rig, 1, 150);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t old = (uint32_t)1 << i, other = (uint32_t)8 << i;

        change(rig, in | other, old);
        drained(rig, i);
        in = (in | other) & ~old;
        change(rig, in, 0);
        closed(rig);
        assert_int_equal(hits(rig, 1, 150), 150);
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
        assert_int_equal(peer_delete(rig->io, 1, key_text(149 - i, 0), &cqe), NVME_SC_SUCCESS);
        assert_int_equal(put(rig, 1, key_text(149 - i, 0), 149 - i), NVME_SC_SUCCESS);
    }
    assert_int_equal(atomic_load(&rig->target->listed), 11); /* numbers are used again */
    rig_crash(rig);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 150), 150);
    rig_free(&rig);
}

/* The new drive dies on its way in: the old one stays, with its blocks. */
static void a_replacement_that_fails_costs_nothing(void **state)
{
    struct rig *rig = up_with(2, 3);
    struct err_why why;
    uint32_t drive;

    fill(rig, 1, 100);
    configure(rig, 1 | 8, 0); /* 3 in the place of 1 */
    assert_int_equal(try_change(rig, &why, &drive), ICMS_OK);
    sim_disk_dead(rig->node, rig->paths[3], true);
    target_drives_commit(rig->target);
    for (int i = 0; i < 3000 && !target_drives_changed(rig->target, &why); i++)
        run_ms(rig, 1);
    if (strstr(why.text, "drive /drive/3 could not join: ") == NULL ||
        strstr(why.text, "stays in service") == NULL)
        fail_msg("%s", why.text);
    assert_int_not_equal(number_of(rig, 1), LIMIT_DRIVES);
    assert_int_equal(hits(rig, 1, 100), 100);
    fill(rig, 1, 120);
    assert_int_equal(hits(rig, 1, 120), 120);
    change(rig, 3, 0); /* the file is as it was */
    closed(rig);
    assert_int_equal(number_of(rig, 3), LIMIT_DRIVES);
    assert_int_equal(hits(rig, 1, 120), 120);
    rig_free(&rig);
}

/* What is shown of a drive does not lie in it: it may be freed before that is read. */
static void what_is_shown_outlives_the_drive(void **state)
{
    struct rig *rig = up_with(2, 7);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    uint64_t reads;

    fill(rig, 1, 60);
    assert_int_equal(hits(rig, 1, 60), 60);
    target_stats(rig->target, stats);
    reads = stats->drives[1].read_ns.total;
    assert_true(reads > 0);
    assert_null(stats->drives[1].store.evicted_age_ns);
    change(rig, 5, 0);
    closed(rig);
    assert_int_equal(stats->drives[1].read_ns.total, reads);
    assert_int_equal(stats->drives[1].evicted_age_ns.total, 0);
    free(stats);
    rig_free(&rig);
}

/* A drive that drains does not stand in for the one that is late. */
static void the_last_drive_that_takes_values_is_not_passed_over(void **state)
{
    struct rig *rig = up_with(2, 3);

    fill(rig, 1, 60);
    change(rig, 3, 2);
    sim_file_slow(rig->node, rig->paths[0], 3000);
    for (uint32_t i = 100; i < 140; i++)
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
    assert_false(target_drive_slow(rig->target, number_of(rig, 0)));
    rig_free(&rig);
}

static void what_cannot_be_is_refused_as_a_whole(void **state)
{
    struct rig *rig = up_with(1, 7);
    uint32_t drive;
    struct err_why why;

    fill(rig, 1, 30);
    refused(rig, 7, 7, ICMS_CONFIG, "draining");
    refused(rig, 0, 0, ICMS_CONFIG, "draining");
    configure(rig, 31, 0);
    list[3].bytes = 0; /* there is no file to take as it is */
    assert_int_equal(try_change(rig, &why, &drive), ICMS_NOT_FOUND);
    assert_int_equal(drive, 3);
    configure(rig, 15, 0);
    list[3].format = TARGET_FORMAT_NOTHING;
    assert_int_equal(try_change(rig, &why, &drive), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, "format_empty"));
    configure(rig, 15, 0);
    assert_int_equal(try_change(rig, &why, &drive), ICMS_OK); /* and one that is given up */
    assert_int_equal(target_drives_change(rig->target, &rig->opts, &drive, &why), ICMS_BUSY);
    target_drives_cancel(rig->target);
    closed(rig);
    assert_int_equal(hits(rig, 1, 30), 30);
    change(rig, 15, 0); /* it was formatted, and never in use */
    assert_int_equal(hits(rig, 1, 30), 30);
    rig_free(&rig);
}

static void a_quota_that_the_drives_cannot_hold(void **state)
{
    struct rig *rig = rig_new(1, 3);

    rig->volumes[0].quota_bytes = 100 * MIB;
    configure(rig, 7, 0);
    rig_up(rig);
    refused(rig, 3, 0, ICMS_CONFIG, "quota");
    change(rig, 15, 0);
    fill(rig, 1, 100);
    change(rig, 7, 0);
    rig_free(&rig);
}

/* A quota grows with the drives, or shrinks with them, in one change of both. */
static void quotas_and_drives_change_together(void **state)
{
    struct rig *rig = up_with(1, 7);
    struct target_refused refused_volume;
    struct err_why why = {""};
    icms_err err = ICMS_OK;

    for (uint32_t step = 0; step < 3; step++) {
        static const uint32_t drives[] = {15, 7, 1}, quotas[] = {150, 100, 30}; /* of 40 MiB each */

        rig->volumes[0].quota_bytes = quotas[step] * MIB;
        configure(rig, drives[step], 0);
        if (try_change(rig, &why, &(uint32_t){0}) != ICMS_OK)
            fail_msg("%s", why.text);
        if (target_volumes_change(rig->target, &rig->opts, &refused_volume, &why) != ICMS_OK)
            fail_msg("%s", why.text);
        for (int i = 0; !target_volumes_changed(rig->target, &err, &refused_volume, &why); i++) {
            assert_true(i < 1000);
            run_ms(rig, 1);
        }
        assert_int_equal(err, ICMS_OK);
        target_drives_commit(rig->target);
        over(rig);
        closed(rig);
        fill(rig, 1, 50);
        assert_int_equal(hits(rig, 1, 50), 50);
    }
    rig_free(&rig);
}

/* Behind the four drives that a key's order has there are others. */
static void six_drives_are_asked_and_told(void **state)
{
    struct rig *rig = up_with(3, 63);
    struct nvme_cqe cqe;
    uint32_t copies = 0;

    fill(rig, 1, 300);
    change(rig, 255, 0);
    assert_int_equal(hits(rig, 1, 300), 300);
    for (uint32_t i = 0; i < 300; i++) {
        struct key key = peer_key(key_text(i, 0));

        assert_int_equal(peer_delete(rig->io, 1, key_text(i, 0), &cqe), NVME_SC_SUCCESS);
        for (uint32_t n = 0; n < DRIVES; n++)
            copies += store_exists(rig->target->drives[n].store, 0, &key, NULL);
    }
    assert_int_equal(copies, 0);
    rig_free(&rig);
}

/* A load that waits for a drive which leaves ends as it would have. */
static void what_is_in_flight_ends(void **state)
{
    struct rig *rig = up_with(2, 7);
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_RETRIEVE, .nsid = 1, .bytes = VALUE_MAX};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint32_t n, bytes = VALUE_MAX;
    uint16_t cid;

    fill_drive(rig, 1, 0, &n, 1);
    sim_file_slow(rig->node, rig->paths[1], 2000);
    cmd.key = peer_key(key_text(n, 0));
    nvme_kv_cmd_encode(&cmd, &sqe);
    cid = peer_submit(rig->io, &sqe, VALUE_MAX);
    run_ms(rig, 2);
    assert_false(list_empty(&rig->target->drives[1].flying));
    change(rig, 5, 0);
    assert_true(rig->target->drives[1].is_leaving);
    refused(rig, 7, 0, ICMS_BUSY, "reload again in a moment");
    assert_true(peer_complete(rig->io, cid, NULL, 0, rig->back, &bytes, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(bytes, value_bytes(n));
    closed(rig);
    rig_free(&rig);
}

/* A drive with a part of its share gets fewer new runs; what it has is found. */
static void a_part_of_its_share(void **state)
{
    struct rig *rig = up_with(2, 7);
    uint8_t parts[LIMIT_DRIVES];
    uint64_t before[3];
    struct err_why why;

    fill(rig, 1, 150);
    memset(parts, 100, sizeof(parts));
    parts[1] = 0;
    parts[2] = 25;
    target_drives_weigh(rig->target, parts);
    for (int i = 0; i < 3; i++)
        before[i] = blocks(rig, (uint32_t)i);
    run_ms(rig, 10);
    assert_false(target_drives_changed(rig->target, &why)); /* nobody asked for it */
    assert_false(target_drives_changing(rig->target));
    assert_int_equal(hits(rig, 1, 150), 150);
    fill(rig, 2, 300);
    assert_int_equal(blocks(rig, 1), before[1]);
    assert_in_range(blocks(rig, 2) - before[2], 30, 90); /* a fifth */
    change(rig, 15, 2);                                  /* it stays through other changes */
    assert_int_equal(rig->target->drives[2].part_percent, 25);
    memset(parts, 0, sizeof(parts)); /* all as bad: none is better */
    target_drives_weigh(rig->target, parts);
    run_ms(rig, 10);
    (void)target_drives_changed(rig->target, &why);
    assert_int_equal(hits(rig, 1, 150), 150);
    assert_int_equal(hits(rig, 2, 300), 300);
    assert_int_equal(put(rig, 1, key_text(1000, 0), 1), NVME_SC_SUCCESS);
    rig_free(&rig);
}

/* A drive that joins holds nothing and misses nothing: mutations meanwhile leave no mark at it, for
 * which it would be formatted at the next start. */
static void a_drive_that_joins_under_load_stays(void **state)
{
    struct rig *rig = up_with(2, 7);
    uint32_t there;

    begin(rig, 15, 0); /* the first mutation since the start notes who is out */
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
        run_ms(rig, 1);
    }
    over(rig);
    fill(rig, 1, 200);
    there = hits(rig, 1, 200);
    assert_int_equal(there, 200);
    rig_down(rig);
    rig_up(rig);
    assert_null(rig_warning(0));
    assert_int_equal(hits(rig, 1, 200), 200);
    rig_free(&rig);
}

/* One that was removed, and is there again: it never heard of the one that came meanwhile, which
 * keeps its blocks all the same, as the others know both. */
static void a_drive_that_returns_costs_no_other_its_blocks(void **state)
{
    struct rig *rig = up_with(2, 7);
    struct nvme_cqe cqe;

    fill(rig, 1, 50);
    change(rig, 7, 1);
    drained(rig, 0);
    change(rig, 6, 0);
    closed(rig);
    change(rig, 14, 0);
    fill(rig, 1, 200);
    assert_true(blocks(rig, 3) > 30);
    assert_int_equal(peer_delete(rig->io, 1, key_text(7, 0), &cqe), NVME_SC_SUCCESS);
    rig_crash(rig);
    configure(rig, 15, 0);
    rig_up(rig);
    assert_non_null(strstr(rig_warning(0), "drive 0 (/drive/0) is formatted"));
    assert_null(rig_warning(1));
    assert_int_equal(hits(rig, 1, 200), 199);
    rig_free(&rig);
}

/* ---- against a model ------------------------------------------------------------------------ */

#define KEYS 40

struct model {
    struct rig *rig;
    uint32_t value[KEYS]; /* last that was acknowledged; 0: deleted */
    uint64_t random;
    uint32_t in, drains; /* configured (bits) */
    uint32_t used;       /* drives (bits) that were in the enclosure once */
};

static uint64_t dice(struct model *model, uint64_t below)
{
    model->random += 0x9e3779b97f4a7c15u;
    return hash64_mix(model->random) % below;
}

/* The last value, or a miss. */
static void model_get(struct model *model, uint32_t key)
{
    struct nvme_cqe cqe;
    uint16_t status = get(model->rig, 1, key_text(key, 0), model->value[key], &cqe);

    if (model->value[key] == 0)
        assert_int_equal(status, NVME_SC_KV_NO_KEY);
    else
        assert_true(status == NVME_SC_SUCCESS || status == NVME_SC_KV_NO_KEY);
}

static void model_use(struct model *model)
{
    uint32_t key = (uint32_t)dice(model, KEYS);
    struct nvme_cqe cqe;

    switch (dice(model, 4)) {
    case 0:
        if (put(model->rig, 1, key_text(key, 0), model->value[key] + 1000 + key) == NVME_SC_SUCCESS)
            model->value[key] += 1000 + key;
        else
            fail_msg("a store failed");
        break;
    case 1:
        (void)peer_delete(model->rig->io, 1, key_text(key, 0), &cqe);
        assert_true(cqe.status == NVME_SC_SUCCESS || cqe.status == NVME_SC_KV_NO_KEY);
        model->value[key] = 0;
        break;
    default:
        model_get(model, key);
    }
}

/* Other drives, of which at least one takes values; one that was used once is not added. */
static void model_change(struct model *model)
{
    uint32_t in = model->in, drive = (uint32_t)1 << dice(model, DRIVES);
    struct err_why why;
    uint32_t at;

    if (dice(model, 2) == 0)
        model->drains ^= drive & in;
    else if ((in & drive) != 0)
        in &= ~drive;
    else if ((model->used & drive) == 0)
        in |= drive;
    model->drains &= in;
    if ((in & ~model->drains) == 0) {
        model->drains = 0;
        in |= model->in;
    }
    configure(model->rig, in, model->drains);
    if (try_change(model->rig, &why, &at) != ICMS_OK)
        fail_msg("%s", why.text);
    target_drives_commit(model->rig->target);
    for (uint64_t i = dice(model, 20); i > 0; i--)
        model_use(model);
    if (dice(model, 8) == 0) { /* in the middle of it */
        rig_crash(model->rig);
        rig_up(model->rig);
    } else {
        over(model->rig);
    }
    model->in = in;
    model->used |= in;
}

/* Whatever comes and goes, and whatever was out when the enclosure was killed, a value that was
 * replaced or deleted is never there again. */
static void nothing_comes_back(void **state)
{
    for (uint32_t seed = 0; seed < 8; seed++) {
        struct model model = {.random = seed, .in = 7, .used = 7};

        model.rig = rig_new(1 + seed % 3, 3);
        model.rig->volumes[0].sealed = false;
        configure(model.rig, 7, 0);
        rig_up(model.rig);
        for (uint32_t step = 0; step < 40; step++) {
            for (uint64_t i = dice(&model, 20); i > 0; i--)
                model_use(&model);
            if (dice(&model, 6) == 0) {
                rig_down(model.rig);
                configure(model.rig, model.in, model.drains);
                if (dice(&model, 2) == 0) { /* and all that ever were */
                    configure(model.rig, model.used, 0);
                    model.in = model.used;
                    model.drains = 0;
                }
                rig_up(model.rig);
            } else {
                model_change(&model);
            }
        }
        for (uint32_t key = 0; key < KEYS; key++)
            model_get(&model, key);
        rig_free(&model.rig);
    }
}

/* ---- against a model, when the power fails ----------------------------------------------------
 */

/* Values of a key that may have been stored since the last flush. */
#define PENDING 64

/* What may be found of a key after the power failed: `base`, which was flushed or deleted, or what
 * was stored since: one of them at least, unless base is 0, or what there was went away with a
 * drive that was not drained (is_excused, is_put_there). */
struct durable {
    uint32_t base;
    bool is_excused, is_put_there; /* put_there: the last of them, while a drive was going */
    uint32_t pending[PENDING], count;
};

struct power {
    struct model model;
    struct durable keys[KEYS];
    uint32_t last; /* value: no one is there twice */
    uint32_t cuts;
    bool is_going; /* a drive is, that was not drained */
};

static void power_flush(struct power *power)
{
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_flush_encode(1, &sqe);
    assert_true(peer_plain(power->model.rig->io, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    for (uint32_t key = 0; key < KEYS; key++) {
        struct durable *is = &power->keys[key];

        if (is->count == 0)
            continue;
        is->base = is->pending[is->count - 1];
        is->is_excused = is->is_put_there;
        is->count = 0;
    }
}

static void power_put(struct power *power, uint32_t key)
{
    struct durable *is = &power->keys[key];
    uint32_t value = ++power->last;

    if (is->count == PENDING)
        power_flush(power);
    assert_int_equal(put(power->model.rig, 1, key_text(key, 0), value), NVME_SC_SUCCESS);
    is->pending[is->count++] = value;
    is->is_put_there = power->is_going;
}

static void power_delete(struct power *power, uint32_t key)
{
    struct nvme_cqe cqe;

    (void)peer_delete(power->model.rig->io, 1, key_text(key, 0), &cqe);
    assert_true(cqe.status == NVME_SC_SUCCESS || cqe.status == NVME_SC_KV_NO_KEY);
    power->keys[key] = (struct durable){.base = 0};
}

/* While the power is there the last value is found, and none that is older. */
static void power_get(struct power *power, uint32_t key)
{
    const struct durable *is = &power->keys[key];
    uint32_t value = is->count > 0 ? is->pending[is->count - 1] : is->base;
    struct nvme_cqe cqe;
    uint16_t status = get(power->model.rig, 1, key_text(key, 0), value, &cqe);

    if (value == 0 || status != NVME_SC_SUCCESS)
        assert_int_equal(status, NVME_SC_KV_NO_KEY);
    if (status != NVME_SC_SUCCESS && value != 0 &&
        !(is->count > 0 ? is->is_put_there : is->is_excused))
        fail_msg("key %u is lost", key);
}

static void power_use(struct power *power)
{
    uint32_t key = (uint32_t)dice(&power->model, KEYS);

    switch (dice(&power->model, 8)) {
    case 0:
    case 1:
    case 2:
        power_put(power, key);
        break;
    case 3:
        power_delete(power, key);
        break;
    case 4:
        power_flush(power);
        break;
    default:
        power_get(power, key);
    }
}

/* Which of the values is there now: that is what is left. */
static void power_look(struct power *power, uint32_t key)
{
    struct durable *is = &power->keys[key];
    struct rig *rig = power->model.rig;
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_RETRIEVE, .nsid = 1, .bytes = VALUE_MAX};
    uint32_t bytes = VALUE_MAX, found = 0;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    cmd.key = peer_key(key_text(key, 0));
    nvme_kv_cmd_encode(&cmd, &sqe);
    assert_true(peer_complete(rig->io, peer_submit(rig->io, &sqe, VALUE_MAX), NULL, 0, rig->back,
                              &bytes, &cqe));
    for (uint32_t i = 0; i <= is->count && cqe.status == NVME_SC_SUCCESS && found == 0; i++) {
        uint32_t value = i < is->count ? is->pending[i] : is->base;

        value_make(rig, value);
        if (value != 0 && bytes == value_bytes(value) && memcmp(rig->value, rig->back, bytes) == 0)
            found = value;
    }
    if (cqe.status == NVME_SC_SUCCESS && found == 0)
        fail_msg("key %u has a value that was replaced or deleted", key);
    if (cqe.status != NVME_SC_SUCCESS && is->base != 0 && !is->is_excused &&
        !(is->count != 0 && is->is_put_there))
        fail_msg("key %u was flushed and is lost%s", key,
                 is->count == 0 ? "" : ", and what replaced it");
    if (found == 0 && (is->is_excused || is->is_put_there))
        is->is_excused = is->is_put_there = true; /* it may be on a drive that is away */
    else
        *is = (struct durable){.base = found};
}

/* The power fails, and comes back. */
static void power_cut(struct power *power)
{
    struct rig *rig = power->model.rig;

    rig_crash_power(rig, true);
    rig_up(rig);
    power->cuts++;
    for (uint32_t key = 0; key < KEYS; key++)
        power_look(power, key);
}

/* A drive that goes before it is empty takes what it has with it. */
static void power_excuse(struct power *power, uint32_t drive)
{
    struct rig *rig = power->model.rig;

    for (uint32_t key = 0; key < KEYS; key++) {
        struct key k = peer_key(key_text(key, 0));

        if (store_exists(rig->target->drives[number_of(rig, drive)].store, 0, &k, NULL))
            power->keys[key].is_excused = power->keys[key].is_put_there = true;
    }
}

/* As model_change, with the power failing at any time of it. */
static void power_change(struct power *power)
{
    struct model *model = &power->model;
    uint32_t in = model->in, drains = model->drains, at = (uint32_t)dice(model, DRIVES);
    uint32_t drive = (uint32_t)1 << at;
    uint64_t uses;

    if (dice(model, 3) > 0)
        drains ^= drive & in;
    else if ((in & drive) != 0)
        in &= ~drive;
    else if ((model->used & drive) == 0)
        in |= drive;
    drains &= in;
    if ((in & ~drains) == 0)
        return;
    if ((in & drive) == 0 && (model->in & drive) != 0) {
        if (dice(model, 2) == 0 && (drains | drive) != model->in) { /* drained before */
            change(model->rig, model->in, drains | drive);
            drained(model->rig, at);
        }
        power_excuse(power, at);
    }
    power->is_going = (model->in & ~in) != 0;
    begin(model->rig, in, drains);
    model->in = in;
    model->used |= in;
    model->drains = drains;
    for (uses = dice(model, 6); uses > 0; uses--)
        power_use(power);
    (void)sim_run(model->rig->sim, sim_now_ns(model->rig->sim) + dice(model, 8000000));
    if (dice(model, 2) == 0)
        power_cut(power);
    else
        over(model->rig);
    power->is_going = false;
    if (dice(model, 4) == 0)
        power_flush(power);
}

/* What was flushed is there, whenever the power fails: while drives come and go, and while values
 * move from one to another. What was deleted or replaced is not, also when a drive is back that was
 * away. */
static void what_was_flushed_survives_the_power(void **state)
{
    uint32_t cuts = 0;

    for (uint32_t seed = 0; seed < 8; seed++) {
        struct power power = {.model = {.random = seed, .in = 7, .used = 7}};
        struct model *model = &power.model;

        model->rig = rig_new(1 + seed % 3, 3);
        model->rig->volumes[0].sealed = false;
        configure(model->rig, 7, 0);
        rig_up(model->rig);
        for (uint32_t step = 0; step < 40; step++) {
            for (uint64_t i = dice(model, 12); i > 0; i--)
                power_use(&power);
            if (dice(model, 6) != 0) {
                power_change(&power);
                continue;
            }
            if (dice(model, 2) == 0) { /* all that ever were: some come back */
                configure(model->rig, model->used, 0);
                model->in = model->used;
                model->drains = 0;
            }
            power_cut(&power);
        }
        cuts += power.cuts;
        rig_free(&model->rig);
    }
    assert_true(cuts > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drive_that_comes_costs_no_hit),
        cmocka_unit_test(a_drive_that_drained_is_removed_without_a_miss),
        cmocka_unit_test(a_drive_that_drains_may_stay),
        cmocka_unit_test(full_drives_take_what_is_asked_for),
        cmocka_unit_test(a_drive_that_is_removed_comes_back_empty),
        cmocka_unit_test(drives_are_replaced_one_after_the_other),
        cmocka_unit_test(a_replacement_that_fails_costs_nothing),
        cmocka_unit_test(what_is_shown_outlives_the_drive),
        cmocka_unit_test(the_last_drive_that_takes_values_is_not_passed_over),
        cmocka_unit_test(what_cannot_be_is_refused_as_a_whole),
        cmocka_unit_test(a_quota_that_the_drives_cannot_hold),
        cmocka_unit_test(quotas_and_drives_change_together),
        cmocka_unit_test(six_drives_are_asked_and_told),
        cmocka_unit_test(what_is_in_flight_ends),
        cmocka_unit_test(a_part_of_its_share),
        cmocka_unit_test(a_drive_that_joins_under_load_stays),
        cmocka_unit_test(a_drive_that_returns_costs_no_other_its_blocks),
        cmocka_unit_test(nothing_comes_back),
        cmocka_unit_test(what_was_flushed_survives_the_power),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
