/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The drives of an enclosure: what fails, is slow or was missing, and what commands that concern
 * several drives see. On simulated loops and drives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "target/target_test_rig.h"

/* A store that passes over a slow drive has to make it forget the older value. A drive on which
 * that fails goes out of service, because the older value would be found first. */
static void an_older_value_on_a_slow_drive_never_hides_a_newer_one(void **state)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct rig *rig = rig_new(2, 3);
    struct nvme_cqe cqe;
    const char *key;
    uint32_t n;

    check(stats != NULL);
    rig_up(rig);
    fill_drive(rig, 0, 0, &n, 1);
    key = key_text(n, 0);
    drive_slow(rig, 0);
    sim_disk_dead(rig->node, rig->paths[0], true);
    assert_int_equal(put(rig, 1, key, 1000), NVME_SC_SUCCESS);
    sim_disk_dead(rig->node, rig->paths[0], false);
    target_stats(rig->target, stats);
    assert_true(stats->drives[0].store.down);
    assert_int_equal(put(rig, 1, key, 2000), NVME_SC_SUCCESS);
    assert_int_equal(get(rig, 1, key, 2000, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(get(rig, 1, key, 2000, &cqe), NVME_SC_SUCCESS);
    free(stats);
    rig_free(&rig);
}

/* A block that went to the next drive while its own one was slow is there, for a condition too,
 * though the write itself goes to its own drive again. */
static void conditions_see_a_block_on_the_next_drive(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct nvme_cqe cqe;
    uint32_t n[4];

    rig_up(rig);
    fill_drive(rig, 0, 0, n, 4);
    for (int i = 0; i < 4; i++) {
        const char *key = key_text(n[i], 0);

        assert_int_equal(peer_delete(rig->io, 1, key, &cqe), NVME_SC_SUCCESS);
        drive_slow(rig, 0);
        assert_int_equal(put(rig, 1, key, n[i]), NVME_SC_SUCCESS);
        drive_well(rig, 0);
        value_make(rig, 5000);
        assert_int_equal(peer_store(rig->io, 1, key, rig->value, value_bytes(5000),
                                    NVME_KV_STORE_IF_ABSENT, &cqe),
                         NVME_SC_KV_EXISTS);
        assert_int_equal(get(rig, 1, key, n[i], &cqe), NVME_SC_SUCCESS);
        value_make(rig, 5000);
        assert_int_equal(peer_store(rig->io, 1, key, rig->value, value_bytes(5000),
                                    NVME_KV_STORE_IF_EXISTS, &cqe),
                         NVME_SC_SUCCESS);
        assert_int_equal(get(rig, 1, key, 5000, &cqe), NVME_SC_SUCCESS);
    }
    rig_free(&rig);
}

/* What waits for a slow drive to forget holds buffers like any other store there, and is bounded
 * like it. */
static void stores_that_wait_for_a_slow_drive_to_forget_are_bounded(void **state)
{
    enum { CALLS = 6, SHARE = 4 };
    struct rig *rig = rig_new(1, 3);
    struct inside *inside = calloc(CALLS, sizeof(*inside));
    uint64_t room = 4 * MIB / TARGET_SHARE / (SHARE - 1); /* so many are more than a share */
    uint32_t n[CALLS], shed = 0, copies;

    check(inside != NULL);
    rig_up(rig);
    fill_drive(rig, 0, 0, n, CALLS);
    drive_slow(rig, 0);
    sim_file_slow(rig->node, rig->paths[0], 20000); /* nothing there ends while the test looks */
    for (uint32_t i = 0; i < CALLS; i++) {
        if (i == SHARE) /* those before are at the drive for a while */
            (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 150000000);
        inside_send(rig, &inside[i], NVMF_TARGET_STORE, key_text(n[i], 0), room, 1000);
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 5000000);
        assert_int_equal(atomic_load(&rig->target->flying_bytes[1]),
                         (i < SHARE ? i + 1 : SHARE) * room);
    }
    for (uint32_t i = 0; i < CALLS; i++)
        shed += inside[i].over && inside[i].call.req.err == ICMS_BUSY &&
                inside[i].call.req.reason == ICMS_MISS_SHED;
    assert_int_equal(shed, CALLS - SHARE);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 30 * (uint64_t)1000000000);
    for (uint32_t i = 0; i < CALLS; i++) {
        assert_true(inside[i].over);
        assert_int_equal(inside[i].call.req.err, i < SHARE ? ICMS_OK : ICMS_BUSY);
        copies = 0; /* a store that fails leaves the old value, and no other */
        for (uint32_t d = 0; d < 3; d++)
            copies += store_exists(rig->target->drives[d].store, 0, &inside[i].call.req.key, NULL);
        assert_int_equal(copies, 1);
        assert_int_equal(
            store_exists(rig->target->drives[0].store, 0, &inside[i].call.req.key, NULL),
            i >= SHARE);
        free(inside[i].call.req.memory);
    }
    assert_int_equal(atomic_load(&rig->target->flying_bytes[1]), 0);
    free(inside);
    rig_free(&rig);
}

static void conditions_delete_and_exist_see_all_drives(void **state)
{
    struct rig *rig = rig_new(3, 3);
    struct key keys[64];
    uint8_t data[NVME_KV_EXIST_MANY_BYTES];
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint32_t bytes;

    rig_up(rig);
    fill(rig, 1, 32);
    for (uint32_t i = 0; i < 64; i++)
        keys[i] = peer_key(key_text(i, 0));
    bytes = nvme_kv_exist_many_encode(1, keys, 64, &sqe, data);
    assert_true(peer_command(rig->io, &sqe, data, bytes, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(cqe.dw0, UINT32_MAX);
    assert_int_equal(cqe.dw1, 0);
    for (uint32_t i = 0; i < 40; i++) {
        value_make(rig, i);
        assert_int_equal(
            peer_store(rig->io, 1, key_text(i, 0), rig->value, 10, NVME_KV_STORE_IF_ABSENT, &cqe),
            i < 32 ? NVME_SC_KV_EXISTS : NVME_SC_SUCCESS);
        assert_int_equal(peer_store(rig->io, 1, key_text(100 + i, 0), rig->value, 10,
                                    NVME_KV_STORE_IF_EXISTS, &cqe),
                         NVME_SC_KV_NO_KEY);
    }
    assert_int_equal(hits(rig, 1, 32), 32);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(peer_exist(rig->io, 1, key_text(i, 0), &cqe), NVME_SC_SUCCESS);
        assert_int_equal(peer_delete(rig->io, 1, key_text(i, 0), &cqe), NVME_SC_SUCCESS);
        assert_int_equal(peer_exist(rig->io, 1, key_text(i, 0), &cqe), NVME_SC_KV_NO_KEY);
        assert_int_equal(cqe.dw1, ICMS_MISS_ABSENT);
    }
    nvme_flush_encode(1, &sqe);
    assert_true(peer_plain(rig->io, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    rig_crash(rig);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 40), 0);
    rig_free(&rig);
}

static void a_drive_that_fails_is_out_and_the_rest_goes_on(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct nvmf_target_health health;
    struct err_why why = {""};
    struct nvme_cqe cqe;
    uint32_t lost = 0;
    uint32_t failed = 0;

    rig_up(rig);
    fill(rig, 1, 90);
    sim_disk_dead(rig->node, rig->paths[1], true);
    for (uint32_t i = 0; i < 90; i++) {
        if (get(rig, 1, key_text(i, 0), i, &cqe) == NVME_SC_SUCCESS)
            continue;
        assert_int_equal(cqe.status, NVME_SC_KV_NO_KEY);
        assert_int_equal(cqe.dw1, ICMS_MISS_DRIVE_DOWN);
        lost++;
    }
    assert_in_range(lost, 15, 45); /* its share, once */
    /* Stores fail until the drive is out of service, then its runs go to the next. */
    for (uint32_t i = 0; i < 90; i++)
        failed += put(rig, 1, key_text(i, 0), i + 500) != NVME_SC_SUCCESS;
    assert_true(failed <= 10);
    target_stats(rig->target, stats);
    assert_true(stats->drives[1].out);
    assert_true(target_ready(rig->target, &why));
    assert_string_equal(why.text, "1 of 3 drives out of service: drive1 (/drive/1)");
    target_nvmf_ops.health(rig->target, &health);
    assert_true(health.degraded && health.spare_percent == 66);
    for (uint32_t i = 0; i < 90; i++)
        (void)put(rig, 1, key_text(i, 0), i);
    assert_int_equal(hits(rig, 1, 90), 90);
    /* All drives out: misses and errors, no more. */
    sim_disk_dead(rig->node, rig->paths[0], true);
    sim_disk_dead(rig->node, rig->paths[2], true);
    for (uint32_t i = 0; i < 90; i++) {
        (void)get(rig, 1, key_text(i, 0), i, &cqe);
        (void)put(rig, 1, key_text(i, 0), i);
    }
    assert_int_equal(hits(rig, 1, 90), 0);
    assert_int_not_equal(put(rig, 1, key_text(0, 0), 0), NVME_SC_SUCCESS);
    assert_int_not_equal(peer_delete(rig->io, 1, key_text(0, 0), &cqe), NVME_SC_SUCCESS);
    assert_false(target_ready(rig->target, &why));
    assert_string_equal(why.text, "no drive is in service");
    free(stats);
    rig_free(&rig);
}

/* Stores that were on their way to a drive when it went out of service go to the next one. */
static void stores_behind_a_drive_that_fails_are_stored_elsewhere(void **state)
{
    enum { CALLS = 100 };
    struct rig *rig = rig_new(1, 3);
    struct inside *inside = calloc(CALLS, sizeof(*inside));
    uint64_t room = store_record_bytes(1000);
    uint32_t n[CALLS], stored = 0;
    struct nvme_cqe cqe;

    check(inside != NULL);
    rig_up(rig);
    fill_drive(rig, 0, 0, n, CALLS);
    sim_disk_dead(rig->node, rig->paths[0], true);
    for (uint32_t i = 0; i < CALLS; i++)
        inside_send(rig, &inside[i], NVMF_TARGET_STORE, key_text(n[i], 0), room, 1000);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 2 * (uint64_t)1000000000);
    for (uint32_t i = 0; i < CALLS; i++) {
        assert_true(inside[i].over);
        if (inside[i].call.req.err == ICMS_OK) {
            stored++;
            assert_int_equal(peer_exist(rig->io, 1, key_text(n[i], 0), &cqe), NVME_SC_SUCCESS);
        } else {
            assert_int_equal(inside[i].call.req.err, ICMS_IO); /* the device failed under it */
        }
        free(inside[i].call.req.memory);
    }
    assert_true(stored > 0);
    free(inside);
    rig_free(&rig);
}

/* What has no time left is not begun: the device has enough to do. */
static void what_is_late_is_not_begun(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct target_stats *before = calloc(1, sizeof(*before)), *after = calloc(1, sizeof(*after));
    struct inside *inside = calloc(1, sizeof(*inside));
    uint64_t room = store_record_bytes(VALUE_MAX);
    uint8_t *memory = aligned_alloc(LIMIT_DISK_ALIGN, room);

    rig_up(rig);
    fill(rig, 1, 20);
    target_stats(rig->target, before);
    for (uint32_t i = 0; i < 40; i++) {
        inside->call.req = (struct nvmf_target_req){
            .op = i < 20 ? NVMF_TARGET_RETRIEVE : NVMF_TARGET_STORE,
            .key = peer_key(key_text(i, 0)),
            .memory = memory,
            .memory_bytes = room,
            .value_bytes = 1000,
            .deadline_ns = 1,
        };
        assert_int_equal(inside_run(rig, inside), ICMS_DEADLINE);
        assert_int_equal(inside->call.req.reason, ICMS_MISS_DEADLINE);
    }
    target_stats(rig->target, after);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(after->drives[i].store.reads, before->drives[i].store.reads);
        assert_int_equal(after->drives[i].store.writes, before->drives[i].store.writes);
    }
    free(memory);
    free(inside);
    free(before);
    free(after);
    rig_free(&rig);
}

/* One good probe may be luck. */
static void a_slow_drive_is_in_use_again_after_two_good_probes(void **state)
{
    struct rig *rig = rig_new(1, 3);
    const struct target_drive *drive;

    rig_up(rig);
    drive = &rig->target->drives[0];
    fill(rig, 1, 10);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 2 * (uint64_t)1000000000); /* how it is well */
    drive_slow(rig, 0);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 2 * (uint64_t)1000000000);
    assert_true(target_drive_slow(rig->target, 0));
    assert_int_equal(drive->probes_good, 0);
    sim_file_slow(rig->node, rig->paths[0], 1);
    while (drive->probes_good == 0)
        assert_true(sim_step(rig->sim));
    assert_true(target_drive_slow(rig->target, 0));
    sim_file_slow(rig->node, rig->paths[0], 3000);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 2 * (uint64_t)1000000000);
    assert_true(target_drive_slow(rig->target, 0));
    assert_int_equal(drive->probes_good, 0);
    drive_well(rig, 0);
    rig_free(&rig);
}

/* A drive of 3 operations a second answers one client in time, each time. */
static void a_drive_of_few_operations_is_slow_with_one_client(void **state)
{
    struct rig *rig = rig_new(1, 3);

    rig_up(rig);
    fill(rig, 1, 10);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 2 * (uint64_t)1000000000);
    for (uint32_t i = 0; i < 3; i++)
        assert_false(target_drive_slow(rig->target, i));
    sim_file_slow(rig->node, rig->paths[1], 3000);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 2 * (uint64_t)1000000000);
    assert_int_equal(atomic_load(&rig->target->slow), 2);
    drive_well(rig, 1);
    /* together they are not: nothing better is left */
    for (uint32_t i = 0; i < 3; i++)
        sim_file_slow(rig->node, rig->paths[i], 3000);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 5 * (uint64_t)1000000000);
    assert_int_equal(atomic_load(&rig->target->slow), 0);
    for (uint32_t i = 0; i < 3; i++)
        sim_file_slow(rig->node, rig->paths[i], 1);
    rig_free(&rig);
}

/* When all drives are late there is too much to do, and no drive to blame. */
static void drives_that_are_slow_together_stay_in_use(void **state)
{
    enum { CALLS = 24 };
    struct rig *rig = rig_new(1, 2);
    struct inside *inside = calloc(2 * (size_t)CALLS, sizeof(*inside));
    uint64_t room = store_record_bytes(VALUE_MAX);
    uint32_t n[2][CALLS];

    check(inside != NULL);
    rig_up(rig);
    fill_drive(rig, 0, 0, n[0], CALLS);
    fill_drive(rig, 1, 1000, n[1], CALLS);
    for (uint32_t i = 0; i < 2; i++)
        sim_file_slow(rig->node, rig->paths[i], 100000); /* past what a load without deadline has */
    for (uint32_t i = 0; i < 2 * CALLS; i++)
        inside_send(rig, &inside[i], NVMF_TARGET_RETRIEVE, key_text(n[i % 2][i / 2], 0), room, 0);
    while (!inside[2 * CALLS - 1].over || !inside[2 * CALLS - 2].over)
        assert_true(sim_step(rig->sim));
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 60 * (uint64_t)1000000000);
    for (uint32_t i = 0; i < 2 * CALLS; i++) {
        assert_true(inside[i].over);
        assert_int_equal(inside[i].call.req.err, ICMS_OK);
        free(inside[i].call.req.memory);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(atomic_load(&rig->target->drives[i].lates) > 0);
        assert_false(target_drive_slow(rig->target, i));
    }
    free(inside);
    rig_free(&rig);
}

static void a_volume_without_room_for_a_value_is_counted(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct nvme_cqe cqe;

    check(stats != NULL);
    rig->volumes[0].quota_bytes = 4 * LIMIT_DISK_ALIGN;
    rig_up(rig);
    memset(rig->value, 1, 20000);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(peer_store(rig->io, 1, key_text(i, 0), rig->value, 20000, 0, &cqe),
                         NVME_SC_CAPACITY);
        assert_int_equal(cqe.dw1, ICMS_MISS_QUOTA);
    }
    assert_int_equal(put(rig, 2, key_text(0, 0), 0), NVME_SC_SUCCESS);
    target_stats(rig->target, stats);
    assert_int_equal(stats->quota_errors, 3);
    free(stats);
    rig_free(&rig);
}

static void a_drive_that_is_missing_at_start_is_filled_around(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct nvme_cqe cqe;
    struct err_why why = {""};

    rig_up(rig);
    fill(rig, 1, 40);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[2], true);
    rig_up(rig);
    assert_non_null(rig_warning(0));
    assert_true(target_ready(rig->target, &why));
    /* What it held is computed again and stored elsewhere. */
    for (uint32_t i = 0; i < 40; i++) {
        uint16_t status = get(rig, 1, key_text(i, 0), i, &cqe);

        if (status == NVME_SC_SUCCESS)
            continue;
        assert_int_equal(cqe.dw1, ICMS_MISS_ABSENT); /* which keys it had is not known */
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
    }
    assert_int_equal(hits(rig, 1, 40), 40);
    for (uint32_t i = 40; i < 80; i++)
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
    rig_down(rig);
    /* It comes back: what was stored further down the order is still found, a new value replaces
     * what lies there, and a delete reaches both. */
    sim_disk_dead(rig->node, rig->paths[2], false);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 80), 80);
    for (uint32_t i = 0; i < 80; i++)
        assert_int_equal(put(rig, 1, key_text(i, 0), i + 700), NVME_SC_SUCCESS);
    for (uint32_t i = 0; i < 80; i++)
        assert_int_equal(get(rig, 1, key_text(i, 0), i + 700, &cqe), NVME_SC_SUCCESS);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[2], true);
    rig_up(rig);
    for (uint32_t i = 0; i < 80; i++) /* never the old value */
        (void)get(rig, 1, key_text(i, 0), i + 700, &cqe);
    rig_free(&rig);
}

/* Drives are known by their superblocks: with their paths swapped, as devices that got other names
 * after a boot, each still has its blocks and its place. (Every one of so few drives is asked, so a
 * hit alone would not show the place.) */
static void drives_whose_paths_are_swapped_keep_their_blocks(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct uuid uuid[3];
    const char *first;

    rig_up(rig);
    fill(rig, 1, 60);
    for (int i = 0; i < 3; i++)
        uuid[i] = rig->target->drives[i].uuid;
    rig_down(rig);
    first = rig->drives[0].path;
    rig->drives[0].path = rig->drives[1].path;
    rig->drives[1].path = rig->drives[2].path;
    rig->drives[2].path = first;
    rig_up(rig);
    for (int i = 0; i < 3; i++)
        assert_true(uuid_equal(&uuid[(i + 1) % 3], &rig->target->drives[i].uuid));
    for (uint32_t n = 0; n < 60; n++) { /* each lies where a new one of its key would go */
        struct key key = peer_key(key_text(n, 0));
        uint32_t owner = place_rank(rig->target->map, place_slot(rig->target->map, &key, true), 0);

        assert_true(store_exists(rig->target->drives[owner].store, 0, &key, NULL));
    }
    assert_int_equal(hits(rig, 1, 60), 60);
    rig_free(&rig);
}

/* Two drives of one UUID would own the same keys. */
static void a_copied_drive_is_refused(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct err_why why = {""};
    uint8_t *from, *to;
    uint64_t bytes;

    rig_up(rig);
    rig_down(rig);
    from = sim_file_medium(rig->node, rig->paths[0], &bytes);
    to = sim_file_medium(rig->node, rig->paths[1], &bytes);
    memcpy(to, from, bytes);
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "drive0 (/drive/0) and drive1 (/drive/1) have the same UUID"));
    assert_non_null(strstr(why.text, "--format drive1"));
    rig->drives[1].format = TARGET_FORMAT_ANY;
    rig_up(rig);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_older_value_on_a_slow_drive_never_hides_a_newer_one),
        cmocka_unit_test(conditions_see_a_block_on_the_next_drive),
        cmocka_unit_test(stores_that_wait_for_a_slow_drive_to_forget_are_bounded),
        cmocka_unit_test(conditions_delete_and_exist_see_all_drives),
        cmocka_unit_test(a_drive_that_fails_is_out_and_the_rest_goes_on),
        cmocka_unit_test(stores_behind_a_drive_that_fails_are_stored_elsewhere),
        cmocka_unit_test(what_is_late_is_not_begun),
        cmocka_unit_test(a_slow_drive_is_in_use_again_after_two_good_probes),
        cmocka_unit_test(a_drive_of_few_operations_is_slow_with_one_client),
        cmocka_unit_test(drives_that_are_slow_together_stay_in_use),
        cmocka_unit_test(a_volume_without_room_for_a_value_is_counted),
        cmocka_unit_test(a_drive_that_is_missing_at_start_is_filled_around),
        cmocka_unit_test(drives_whose_paths_are_swapped_keep_their_blocks),
        cmocka_unit_test(a_copied_drive_is_refused),
    };

    return cmocka_run_group_tests_name("target-drives", tests, NULL, NULL);
}
