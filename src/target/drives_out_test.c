/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives that were out of an enclosure: what they missed stays away when they are back, and costs
 * no more than it has to.
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

/* Restarts with some drives dead (bits). */
static void restart(struct rig *rig, uint32_t dead)
{
    rig_down(rig);
    for (uint32_t i = 0; i < rig->opts.drive_count; i++)
        sim_disk_dead(rig->node, rig->paths[i], (dead >> i & 1) != 0);
    rig_up(rig);
}

/* Begins a store from inside. */
static void store_begin(struct rig *rig, struct inside *inside, uint32_t volume, const char *key,
                        void *memory, uint64_t room)
{
    inside->target = rig->target;
    inside->call.done = inside_done;
    inside->call.req = (struct nvmf_target_req){
        .op = NVMF_TARGET_STORE,
        .ns = volume,
        .key = peer_key(key),
        .memory = memory,
        .memory_bytes = room,
        .value_bytes = 1000,
    };
    loop_send(target_loop(rig->target, 0), &inside->msg, inside_begin);
}

/* A store is no success when the drive that took it fails before anybody noted who else missed it:
 * the value that it replaced would come back with the drive that was out. */
static void a_store_that_nobody_noted_is_no_success(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct inside *inside = calloc(1, sizeof(*inside));
    uint64_t room = store_record_bytes(1000);
    void *memory = aligned_alloc(LIMIT_DISK_ALIGN, room);
    struct key key;
    uint32_t n;

    check(inside != NULL && memory != NULL);
    memset(memory, 1, room);
    rig_up(rig);
    fill_drive(rig, 1, 0, &n, 1);
    key = peer_key(key_text(n, 0));
    restart(rig, 2);
    store_begin(rig, inside, 0, key_text(n, 0), memory, room);
    while (!store_exists(rig->target->drives[0].store, 0, &key, NULL))
        assert_true(sim_step(rig->sim));
    sim_disk_dead(rig->node, rig->paths[0], true);
    while (!inside->over)
        assert_true(sim_step(rig->sim));
    assert_false(target_drive_in(rig->target, 0));
    assert_int_equal(inside->call.req.err, ICMS_DRIVE_DOWN);
    assert_int_equal(inside->call.req.reason, ICMS_MISS_DRIVE_DOWN);
    free(memory);
    free(inside);
    rig_free(&rig);
}

/* A store that fails as a slow drive does not forget the older value, and cannot take its own value
 * back as that drive fails, too: when both come back, the older one is the only one. */
static void a_failed_store_is_not_there_when_its_drive_comes_back(void **state)
{
    enum { CALLS = 4 };
    struct rig *rig = rig_new(1, 3);
    struct inside *inside = calloc(CALLS + 1, sizeof(*inside));
    uint64_t room = 4 * MIB / TARGET_SHARE / (CALLS - 1); /* so many are more than a share */
    void *memory[CALLS + 1];
    uint32_t n[CALLS + 1], drive = 0, copies = 0;
    struct key key;

    check(inside != NULL);
    for (uint32_t i = 0; i <= CALLS; i++) {
        memory[i] = aligned_alloc(LIMIT_DISK_ALIGN, bytes_align(room, LIMIT_DISK_ALIGN));
        memset(memory[i], 1, room);
    }
    rig_up(rig);
    fill_drive(rig, 0, 0, n, CALLS + 1);
    assert_int_equal(put(rig, 2, key_text(n[CALLS], 0), 1), NVME_SC_SUCCESS);
    drive_slow(rig, 0);
    sim_file_slow(rig->node, rig->paths[0], 20000); /* nothing there ends while the test looks */
    for (uint32_t i = 0; i < CALLS; i++)
        store_begin(rig, &inside[i], 0, key_text(n[i], 0), memory[i], room);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 150000000);
    key = peer_key(key_text(n[CALLS], 0));
    store_begin(rig, &inside[CALLS], 1, key_text(n[CALLS], 0), memory[CALLS], room);
    while (drive == 0) {
        assert_true(sim_step(rig->sim));
        for (uint32_t d = 1; d < 3; d++)
            if (store_exists(rig->target->drives[d].store, 1, &key, NULL))
                drive = d;
    }
    sim_disk_dead(rig->node, rig->paths[drive], true);
    sim_file_slow(rig->node, rig->paths[0], 1);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 30 * (uint64_t)1000000000);
    for (uint32_t i = 0; i <= CALLS; i++) {
        assert_true(inside[i].over);
        free(memory[i]);
    }
    assert_int_equal(inside[CALLS].call.req.err, ICMS_BUSY);
    assert_false(target_drive_in(rig->target, drive));
    restart(rig, 0);
    for (uint32_t d = 0; d < 3; d++)
        copies += store_exists(rig->target->drives[d].store, 1, &key, NULL);
    assert_int_equal(copies, 1);
    assert_true(store_exists(rig->target->drives[0].store, 1, &key, NULL));
    free(inside);
    rig_free(&rig);
}

/* Drives that the list of drive 0 names. */
static uint32_t rows_used(const struct rig *rig)
{
    uint32_t rows = 0;

    for (uint32_t i = 0; i < TARGET_NOTE_ROWS; i++)
        rows += !uuid_equal(&rig->target->drives[0].note.rows[i].drive, &(struct uuid){{0}});
    return rows;
}

static uint64_t drive_blocks(struct rig *rig, uint32_t drive, uint32_t volume)
{
    struct store_volume_stats stats;

    store_volume_stats(rig->target->drives[drive].store, volume, &stats);
    return stats.blocks;
}

/* Stores whose drive goes out of service under them, and that no other one takes: their values may
 * be there, so they are noted as if that drive had missed something. Nothing else is stored. */
static void stores_that_fail_after_a_drive_failed_are_noted(void **state)
{
    enum { CALLS = 100 };
    struct rig *rig = rig_new(1, 2);
    struct inside *inside = calloc(CALLS, sizeof(*inside));
    uint64_t room = store_record_bytes(1000);
    uint32_t n[CALLS];

    check(inside != NULL);
    rig_up(rig);
    fill_drive(rig, 0, 0, n, CALLS);
    drive_slow(rig, 1);
    sim_disk_dead(rig->node, rig->paths[0], true);
    for (uint32_t i = 0; i < CALLS; i++) {
        uint8_t *memory = aligned_alloc(LIMIT_DISK_ALIGN, room);

        check(memory != NULL);
        memset(memory, 1, room);
        store_begin(rig, &inside[i], 0, key_text(n[i], 0), memory, room);
    }
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 60 * (uint64_t)1000000000);
    for (uint32_t i = 0; i < CALLS; i++) {
        assert_true(inside[i].over);
        assert_true(inside[i].call.req.err == ICMS_IO || inside[i].call.req.err == ICMS_DRIVE_DOWN);
        free(inside[i].call.req.memory);
    }
    assert_int_equal(inside[CALLS - 1].call.req.err, ICMS_DRIVE_DOWN);
    assert_false(target_drive_in(rig->target, 0));
    drive_well(rig, 1);
    restart(rig, 0);
    assert_int_equal(drive_blocks(rig, 0, 0), 0);
    assert_non_null(strstr(rig_warning(0), "drive 0 (/drive/0) is formatted"));
    free(inside);
    rig_free(&rig);
}

/* Values that were deleted or replaced while their drive was out, from the start or later, never
 * come back. The drive is formatted, so it has nothing of other volumes either. */
static void what_a_drive_missed_never_comes_back(void **state)
{
    for (uint32_t missing = 0; missing < 2; missing++) { /* at the start, or it fails later */
        struct rig *rig = rig_new(2, 3);
        struct nvme_cqe cqe;
        uint32_t n[8];

        rig_up(rig);
        fill_drive(rig, 1, 0, n, 8);
        fill(rig, 2, 30);
        assert_true(drive_blocks(rig, 1, 1) > 0 && drive_blocks(rig, 1, 0) >= 8);
        if (missing) {
            restart(rig, 2);
        } else {
            sim_disk_dead(rig->node, rig->paths[1], true);
            while (target_drive_in(rig->target, 1))
                (void)put(rig, 1, key_text(n[0], 0), 1);
        }
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(put(rig, 1, key_text(n[i], 0), 900 + i), NVME_SC_SUCCESS);
        for (uint32_t i = 4; i < 8; i++)
            assert_int_equal(peer_delete(rig->io, 1, key_text(n[i], 0), &cqe), NVME_SC_SUCCESS);
        restart(rig, 0);
        assert_int_equal(drive_blocks(rig, 1, 0), 0);
        assert_int_equal(drive_blocks(rig, 1, 1), 0);
        assert_non_null(strstr(rig_warning(0), "drive 1 (/drive/1) is formatted"));
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(get(rig, 1, key_text(n[i], 0), 900 + i, &cqe), NVME_SC_SUCCESS);
        for (uint32_t i = 4; i < 8; i++)
            assert_int_equal(peer_exist(rig->io, 1, key_text(n[i], 0), &cqe), NVME_SC_KV_NO_KEY);
        /* Nobody knows it by its old name any more, and what is new there stays. */
        assert_int_equal(rows_used(rig), 3);
        fill_drive(rig, 1, 2000, n, 4);
        restart(rig, 0);
        assert_int_equal(drive_blocks(rig, 1, 0), 4);
        restart(rig, 1 | 4); /* alone */
        assert_int_equal(drive_blocks(rig, 1, 0), 4);
        rig_free(&rig);
    }
}

/* A condition says nothing of a drive that is out: in a raw volume it may have another value. */
static void a_new_value_beside_one_on_a_drive_that_is_out_stays(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct nvme_cqe cqe;
    uint32_t n;

    rig->volumes[0].sealed = false;
    rig_up(rig);
    fill_drive(rig, 1, 0, &n, 1);
    restart(rig, 2);
    value_make(rig, 900);
    (void)peer_store(rig->io, 1, key_text(n, 0), rig->value, value_bytes(900),
                     NVME_KV_STORE_IF_ABSENT, &cqe);
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    restart(rig, 0);
    assert_int_equal(get(rig, 1, key_text(n, 0), 900, &cqe), NVME_SC_SUCCESS);
    rig_free(&rig);
}

/* icms-flash(5); LOOK: all of it before the first segment */
enum { NOTE = 4096, SUPER_COPY = 32768, NOTE_COPY = 36864, LOOK = 65536 };

/* Both copies. */
static void note_damage(struct rig *rig, uint32_t drive)
{
    uint64_t bytes;
    uint8_t *medium = sim_file_medium(rig->node, rig->paths[drive], &bytes);

    medium[NOTE + 100] ^= 1;
    medium[NOTE_COPY + 100] ^= 1;
}

/* Nobody knows any more what the other drive missed. A drive alone has no others. */
static void a_lost_list_costs_the_other_drives_their_blocks(void **state)
{
    for (uint32_t alone = 0; alone < 2; alone++) {
        struct rig *rig = rig_new(1, alone ? 1 : 2);
        uint64_t kept;

        rig_up(rig);
        fill(rig, 1, 30);
        kept = drive_blocks(rig, 0, 0);
        rig_down(rig);
        note_damage(rig, 0);
        rig_up(rig);
        assert_int_equal(drive_blocks(rig, 0, 0), kept);
        assert_int_equal(rig_warning(0) != NULL, !alone);
        assert_null(rig_warning(1));
        if (!alone) {
            assert_int_equal(drive_blocks(rig, 1, 0), 0);
            fill(rig, 1, 30);
            kept = drive_blocks(rig, 1, 0);
            assert_true(kept > 0);
        }
        restart(rig, 0); /* it has a list again */
        assert_int_equal(drive_blocks(rig, alone ? 0 : 1, 0), kept);
        rig_free(&rig);
    }
}

/* The list that is lost said what the other drive missed, and nobody else did: what was deleted
 * stays away, whether that drive is back at once or later. */
static void what_only_a_lost_list_knew_stays_away(void **state)
{
    for (uint32_t way = 0; way < 3; way++) {
        struct rig *rig = rig_new(1, way == 2 ? 3 : 2);
        struct nvme_cqe cqe;
        uint32_t n[4];

        rig_up(rig);
        fill(rig, 1, 30);
        fill_drive(rig, 1, 100, n, 4);
        restart(rig, 2 | 4); /* of three drives one is left, which alone knows what both missed */
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(peer_delete(rig->io, 1, key_text(n[i], 0), &cqe), NVME_SC_SUCCESS);
        rig_down(rig);
        note_damage(rig, 0);
        if (way == 1) {
            rig_up(rig); /* without the other one */
            rig_down(rig);
        }
        for (uint32_t i = 1; i < rig->opts.drive_count; i++)
            sim_disk_dead(rig->node, rig->paths[i], false);
        rig_up(rig);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(peer_exist(rig->io, 1, key_text(n[i], 0), &cqe), NVME_SC_KV_NO_KEY);
        assert_int_equal(drive_blocks(rig, 1, 0), 0);
        rig_free(&rig);
    }
}

/* Formats a drive as it is done when the drive missed something, and takes what that wrote: so many
 * of its four writes. */
static void format_begin(struct rig *rig, uint32_t drive, uint32_t writes)
{
    static const uint64_t offset[] = {NOTE_COPY, SUPER_COPY, 0, NOTE};
    uint64_t bytes;
    uint8_t *medium = sim_file_medium(rig->node, rig->paths[drive], &bytes);
    uint8_t *before = malloc(LOOK), *after = malloc(LOOK);
    struct err_why why = {""};
    struct store_opts opts;

    check(before != NULL && after != NULL);
    memcpy(before, medium, LOOK);
    store_opts_init(&opts);
    opts.path = rig->paths[drive];
    opts.bytes = bytes;
    opts.segment_bytes = MIB;
    opts.value_bytes_max = VALUE_MAX;
    assert_int_equal(store_format(rig->opts.env, &opts, true, &why), ICMS_OK);
    memcpy(after, medium, LOOK);
    memcpy(medium, before, LOOK);
    for (uint32_t i = 0; i < writes; i++)
        memcpy(medium + offset[i], after + offset[i], 4096);
    free(before);
    free(after);
}

/* The power goes while a drive that missed something is formatted: it is formatted again, or was.
 */
static void a_format_that_ends_in_the_middle_brings_nothing_back(void **state)
{
    for (uint32_t writes = 0; writes <= 4; writes++) {
        struct rig *rig = rig_new(1, 2);
        struct nvme_cqe cqe;
        uint64_t kept;
        uint32_t n[4];

        rig_up(rig);
        fill_drive(rig, 1, 0, n, 4);
        restart(rig, 2);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(peer_delete(rig->io, 1, key_text(n[i], 0), &cqe), NVME_SC_SUCCESS);
        fill(rig, 2, 30);
        kept = drive_blocks(rig, 0, 1);
        rig_down(rig);
        sim_disk_dead(rig->node, rig->paths[1], false);
        format_begin(rig, 1, writes);
        rig_up(rig);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(peer_exist(rig->io, 1, key_text(n[i], 0), &cqe), NVME_SC_KV_NO_KEY);
        assert_int_equal(drive_blocks(rig, 1, 0), 0);
        assert_int_equal(drive_blocks(rig, 0, 1),
                         kept); /* the other drive has nothing to do with it */
        rig_free(&rig);
    }
}

/* The first start with a new drive ends when only the other one has the list that names both. */
static void a_start_that_ends_between_two_lists_costs_nothing(void **state)
{
    struct rig *rig = rig_new(1, 2);
    uint8_t *medium, *fresh = malloc(LOOK);
    uint64_t kept, bytes;

    check(fresh != NULL);
    rig->opts.drive_count = 1;
    rig_up(rig);
    fill(rig, 1, 30);
    kept = drive_blocks(rig, 0, 0);
    rig_down(rig);
    rig->opts.drive_count = 2;
    rig_up(rig); /* makes the file */
    rig_down(rig);
    format_begin(rig, 1, 4);
    medium = sim_file_medium(rig->node, rig->paths[1], &bytes);
    memcpy(fresh, medium, LOOK);
    rig_up(rig);
    rig_down(rig);
    memcpy(medium, fresh, LOOK);
    rig_up(rig);
    assert_null(rig_warning(0));
    assert_int_equal(drive_blocks(rig, 0, 0), kept);
    free(fresh);
    rig_free(&rig);
}

/* Drives that take turns in being out: each knows what the other missed. When both are formatted
 * they still know the third one, which missed all of it. */
static void drives_that_were_out_in_turn_drop_what_each_missed(void **state)
{
    struct rig *rig = rig_new(1, 3);
    struct nvme_cqe cqe;

    rig_up(rig);
    fill(rig, 1, 20);
    restart(rig, 2 | 4);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(put(rig, 1, key_text(i, 0), 100 + i), NVME_SC_SUCCESS);
    restart(rig, 1 | 4);
    for (uint32_t i = 0; i < 20; i++)
        (void)peer_delete(rig->io, 1, key_text(i, 0), &cqe);
    for (uint32_t dead = 4; dead <= 4; dead -= 4) { /* then all are there */
        restart(rig, dead);
        for (uint32_t i = 0; i < 20; i++)
            assert_int_equal(peer_exist(rig->io, 1, key_text(i, 0), &cqe), NVME_SC_KV_NO_KEY);
    }
    rig_free(&rig);
}

static uint64_t drives_written(struct rig *rig)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < rig->opts.drive_count; i++) {
        struct store_stats stats;

        if (rig->target->drives[i].store == NULL)
            continue;
        store_stats(rig->target->drives[i].store, &stats);
        bytes += stats.device_write_bytes;
    }
    return bytes;
}

/* One mark for a drive; none for blocks that are stored under the names of their content. */
static void what_a_drive_missed_is_noted_once(void **state)
{
    const uint64_t note = 2 * (STORE_NOTE_BYTES + 24); /* both copies */
    struct rig *rig = rig_new(2, 3);
    uint64_t before;
    struct nvme_cqe cqe;

    rig_up(rig);
    fill(rig, 1, 30);
    before = drives_written(rig); /* nobody is out: nothing is noted */
    for (uint32_t i = 0; i < 30; i++)
        assert_int_equal(peer_delete(rig->io, 1, key_text(500 + i, 0), &cqe), NVME_SC_SUCCESS);
    assert_int_equal(drives_written(rig), before);
    restart(rig, 2);
    for (uint32_t i = 0; i < 30; i++) {
        value_make(rig, i);
        (void)peer_store(rig->io, 1, key_text(i, 0), rig->value, value_bytes(i),
                         NVME_KV_STORE_IF_ABSENT, &cqe);
    }
    assert_int_equal(hits(rig, 1, 30), 30);
    assert_true(atomic_load(&rig->target->noted) == UINT64_MAX);
    before = drives_written(rig);
    for (uint32_t i = 0; i < 30; i++)
        assert_int_equal(peer_delete(rig->io, 1, key_text(500 + i, 0), &cqe), NVME_SC_SUCCESS);
    assert_int_equal(drives_written(rig), before + 2 * note);
    assert_int_equal(peer_delete(rig->io, 2, key_text(500, 0), &cqe), NVME_SC_SUCCESS);
    assert_int_equal(drives_written(rig), before + 2 * note);
    restart(rig, 2); /* the notes are still there */
    before = drives_written(rig);
    assert_int_equal(peer_delete(rig->io, 1, key_text(500, 0), &cqe), NVME_SC_SUCCESS);
    assert_int_equal(drives_written(rig), before);
    rig_free(&rig);
}

/* The power goes at some moment of a delete and its notes: one that was answered holds. */
static void power_cuts_around_a_note(void **state)
{
    uint32_t answered = 0, unanswered = 0;

    for (uint64_t us = 0; us < 1500; us += 100) {
        struct rig *rig = rig_new(1, 2);
        struct inside *inside = calloc(1, sizeof(*inside));
        struct nvme_cqe cqe;
        uint32_t n;
        bool over;

        check(inside != NULL);
        rig_up(rig);
        fill_drive(rig, 1, 0, &n, 1);
        restart(rig, 2);
        inside->target = rig->target;
        inside->call.done = inside_done;
        inside->call.req = (struct nvmf_target_req){
            .op = NVMF_TARGET_DELETE,
            .key = peer_key(key_text(n, 0)),
        };
        loop_send(target_loop(rig->target, 0), &inside->msg, inside_begin);
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + us * 1000);
        over = inside->over;
        sim_node_crash(rig->node, true, false);
        target_free(&rig->target);
        peer_free(&rig->io);
        peer_free(&rig->admin);
        sim_disk_dead(rig->node, rig->paths[1], false);
        rig_up(rig);
        if (over)
            assert_int_equal(peer_exist(rig->io, 1, key_text(n, 0), &cqe), NVME_SC_KV_NO_KEY);
        answered += over;
        unanswered += !over;
        free(inside);
        rig_free(&rig);
    }
    assert_true(answered > 0 && unanswered > 0);
}

/* A drive that is left out of the configuration is out like one that fails: what it has stays only
 * if nothing was replaced or deleted meanwhile. */
static void a_drive_that_was_left_out_is_one_that_was_out(void **state)
{
    for (uint32_t missed = 0; missed < 2; missed++) {
        struct rig *rig = rig_new(1, 3);
        struct nvme_cqe cqe;
        uint64_t kept;

        rig_up(rig);
        fill(rig, 1, 30);
        kept = drive_blocks(rig, 2, 0);
        assert_true(kept > 0);
        rig_down(rig);
        rig->opts.drive_count = 2;
        rig_up(rig);
        for (uint32_t i = 0; i < 60 && missed; i++)
            (void)peer_delete(rig->io, 1, key_text(i, 0), &cqe);
        rig_down(rig);
        rig->opts.drive_count = 3;
        rig_up(rig);
        assert_int_equal(drive_blocks(rig, 2, 0), missed ? 0 : kept);
        assert_int_equal(hits(rig, 1, 30), missed ? 0 : 30);
        rig_free(&rig);
    }
}

/* A drive that joined while another was out: that one never heard of it, and may have served
 * without it. What the new one has goes, and nothing that was deleted comes back. */
static void a_drive_that_joined_meanwhile_is_formatted(void **state)
{
    struct rig *rig = rig_new(1, 3);
    struct nvme_cqe cqe;
    uint32_t n[4];

    rig->opts.drive_count = 2;
    rig_up(rig);
    rig_down(rig);
    rig->opts.drive_count = 3;
    sim_disk_dead(rig->node, rig->paths[1], true);
    rig_up(rig);
    fill_drive(rig, 2, 0, n, 4);
    restart(rig, 1 | 4); /* the one that was out, alone */
    for (uint32_t i = 0; i < 4; i++)
        (void)peer_delete(rig->io, 1, key_text(n[i], 0), &cqe);
    restart(rig, 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(peer_exist(rig->io, 1, key_text(n[i], 0), &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(drive_blocks(rig, 2, 0), 0);
    rig_free(&rig);
}

/* A drive of another enclosure is not erased by a wrong path. */
static void a_drive_of_another_enclosure_is_refused(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct err_why why = {""};
    const char *path = rig->drives[0].path;

    rig->opts.drive_count = 1;
    rig_up(rig);
    fill(rig, 1, 20);
    rig_down(rig);
    rig->drives[0].path = rig->drives[1].path;
    rig_up(rig);
    fill(rig, 1, 20);
    rig_down(rig);
    rig->drives[0].path = path;
    rig->opts.drive_count = 2;
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "start with `--format drive1`"));
    rig->drives[1].format = TARGET_FORMAT_ANY;
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 20), 20);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stores_that_fail_after_a_drive_failed_are_noted),
        cmocka_unit_test(what_a_drive_missed_never_comes_back),
        cmocka_unit_test(a_store_that_nobody_noted_is_no_success),
        cmocka_unit_test(a_failed_store_is_not_there_when_its_drive_comes_back),
        cmocka_unit_test(a_new_value_beside_one_on_a_drive_that_is_out_stays),
        cmocka_unit_test(a_lost_list_costs_the_other_drives_their_blocks),
        cmocka_unit_test(what_only_a_lost_list_knew_stays_away),
        cmocka_unit_test(a_format_that_ends_in_the_middle_brings_nothing_back),
        cmocka_unit_test(a_start_that_ends_between_two_lists_costs_nothing),
        cmocka_unit_test(drives_that_were_out_in_turn_drop_what_each_missed),
        cmocka_unit_test(what_a_drive_missed_is_noted_once),
        cmocka_unit_test(power_cuts_around_a_note),
        cmocka_unit_test(a_drive_that_was_left_out_is_one_that_was_out),
        cmocka_unit_test(a_drive_that_joined_meanwhile_is_formatted),
        cmocka_unit_test(a_drive_of_another_enclosure_is_refused),
    };

    return cmocka_run_group_tests_name("target-drives-out", tests, NULL, NULL);
}
