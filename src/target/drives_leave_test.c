/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drives that leave while the enclosure runs: what they may still decide when they are back, what
 * waits for one that hangs, and what is found and said while one drains. On simulated loops and
 * drives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "target/drives_change_rig.h"

/* One that left, and is written into the file by hand again, never heard of the one that came
 * meanwhile; and nobody is left who knows both. It is the one that is formatted, and the other one
 * keeps its blocks. */
static void a_drive_that_left_erases_no_other(void **state)
{
    struct rig *rig = up_with(2, 3);

    fill(rig, 1, 50);
    change(rig, 2, 0); /* 0 goes */
    closed(rig);
    change(rig, 2 | 8, 2); /* 3 comes, 1 drains */
    drained(rig, 1);
    change(rig, 8, 0);
    closed(rig);
    fill(rig, 1, 100);
    rig_down(rig);
    configure(rig, 1 | 8, 0);
    rig_up(rig);
    assert_non_null(strstr(rig_warning(0), "drive 0 (/drive/0) is formatted"));
    assert_null(rig_warning(1));
    assert_int_equal(hits(rig, 1, 100), 100);
    rig_free(&rig);
}

/* It has no say, but it has its blocks, when nothing was replaced or deleted meanwhile. Once it is
 * in service again it is as any other. */
static void a_drive_that_left_may_return(void **state)
{
    struct rig *rig = up_with(2, 7);
    struct nvme_cqe cqe;
    uint32_t n[4];

    fill_drive(rig, 0, 0, n, 4);
    change(rig, 6, 0);
    closed(rig);
    for (uint32_t round = 0; round < 2; round++) {
        rig_down(rig);
        configure(rig, 7, 0);
        rig_up(rig);
        assert_null(rig_warning(0));
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(get(rig, 1, key_text(n[i], 0), n[i], &cqe), NVME_SC_SUCCESS);
    }
    assert_int_equal(peer_delete(rig->io, 1, key_text(n[0], 0), &cqe), NVME_SC_SUCCESS);
    rig_down(rig);
    configure(rig, 1, 0); /* alone it serves, and others miss what it replaces */
    rig_up(rig);
    assert_null(rig_warning(0));
    assert_int_equal(put(rig, 1, key_text(n[1], 0), 900), NVME_SC_SUCCESS);
    rig_down(rig);
    configure(rig, 7, 0);
    rig_up(rig);
    assert_non_null(strstr(rig_warning(1), "is formatted"));
    assert_int_equal(get(rig, 1, key_text(n[1], 0), 900, &cqe), NVME_SC_SUCCESS);
    rig_free(&rig);
}

/* It does nothing any more, and is replaced because of that. */
static void a_drive_that_hangs_is_replaced(void **state)
{
    struct rig *rig = up_with(2, 3);
    struct nvme_cqe cqe;
    uint32_t n[4], first = 200;

    fill_drive(rig, 0, 0, n, 4);
    sim_file_slow(rig->node, rig->paths[1], 1000000);
    change(rig, 1 | 8, 0);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(get(rig, 1, key_text(n[i], 0), n[i], &cqe), NVME_SC_SUCCESS);
    for (uint32_t i = first; i < first + 20; i++)
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
    for (uint32_t i = first; i < first + 20; i++)
        assert_int_equal(get(rig, 1, key_text(i, 0), i, &cqe), NVME_SC_SUCCESS);
    sim_file_slow(rig->node, rig->paths[1], 1);
    rig_free(&rig);
}

/* How many different keys List gives. */
static uint32_t listed(struct rig *rig)
{
    static uint8_t data[65536];
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_LIST, .nsid = 1, .bytes = sizeof(data)};
    struct nvme_kv_list_reader reader;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint32_t got = sizeof(data), count = 0;
    struct key key;

    nvme_kv_cmd_encode(&cmd, &sqe);
    assert_true(peer_command(rig->io, &sqe, NULL, 0, data, &got, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(nvme_kv_list_read_begin(&reader, data, got), ICMS_OK);
    while (nvme_kv_list_read_key(&reader, &key))
        count++;
    return count;
}

/* From the drive that is looked at last to those that were before it, and the other way. */
static void a_list_misses_no_key_that_moves(void **state)
{
    for (uint32_t drive = 0; drive < 3; drive++) {
        struct rig *rig = rig_new_far(3, 3, 2000000);
        uint32_t lists = 0;

        configure(rig, 7, 0);
        rig_up(rig);
        fill(rig, 1, 300);
        begin(rig, 7, (uint32_t)1 << drive);
        for (; blocks(rig, drive) > 0; lists++)
            assert_int_equal(listed(rig), 300);
        assert_true(lists > 20);
        over(rig);
        rig_free(&rig);
    }
}

/* Adds drive 3, erased; false: it could not join. */
static bool comes_erased(struct rig *rig, struct err_why *out_why)
{
    uint64_t bytes;
    uint8_t *medium;
    uint32_t drive;

    configure(rig, 3 | 8, 0);
    medium = sim_file_medium(rig->node, rig->paths[3], &bytes);
    if (medium != NULL) /* as `icms drive add --format` does */
        memset(medium, 0, bytes);
    assert_int_equal(try_change(rig, out_why, &drive), ICMS_OK);
    target_drives_commit(rig->target);
    while (!target_drives_changed(rig->target, out_why))
        run_ms(rig, 1);
    return out_why->text[0] == '\0';
}

static void goes(struct rig *rig)
{
    change(rig, 3, 0);
    closed(rig);
}

/* Drives come and go until the lists of the others are full: the next one is refused, because
 * nobody would know what it misses. A start forgets some that are gone. */
static void a_drive_that_nobody_can_note_does_not_join(void **state)
{
    struct rig *rig = up_with(2, 3);
    struct err_why why;
    struct nvme_cqe cqe;
    uint32_t n[4], came = 0;

    while (comes_erased(rig, &why)) {
        assert_in_range(++came, 1, TARGET_NOTE_ROWS - 2);
        goes(rig);
    }
    assert_int_equal(came, TARGET_NOTE_ROWS - 2);
    if (strstr(why.text, "drive /drive/3 could not join: ") == NULL ||
        strstr(why.text, "restart icms-target") == NULL)
        fail_msg("%s", why.text);
    goes(rig);
    rig_down(rig);
    configure(rig, 3, 0);
    rig_up(rig);
    for (uint32_t again = 0; again < 2; again++) {
        assert_true(comes_erased(rig, &why));
        fill_drive(rig, number_of(rig, 3), 1000 * again, n, 4);
        sim_disk_dead(rig->node, rig->paths[3], true);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(put(rig, 1, key_text(n[i], 0), 900 + i), NVME_SC_SUCCESS);
        sim_disk_dead(rig->node, rig->paths[3], false);
        rig_down(rig);
        configure(rig, 3 | 8, 0);
        rig_up(rig);
        assert_non_null(strstr(rig_warning(0), "drive 2 (/drive/3) is formatted"));
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(get(rig, 1, key_text(n[i], 0), 900 + i, &cqe), NVME_SC_SUCCESS);
        goes(rig);
    }
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drive_that_left_erases_no_other),
        cmocka_unit_test(a_drive_that_left_may_return),
        cmocka_unit_test(a_drive_that_hangs_is_replaced),
        cmocka_unit_test(a_list_misses_no_key_that_moves),
        cmocka_unit_test(a_drive_that_nobody_can_note_does_not_join),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
