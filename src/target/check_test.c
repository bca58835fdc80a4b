/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is known of options and drives before a target starts is what its start does. On simulated
 * drives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "loop/sim.h"
#include "target/target_int.h"
#include "target/target_test_rig.h"

/* Sentences of target_check_here. */
struct said {
    uint32_t count;
    char text[8][ERR_WHY_BYTES_MAX];
};

static void say(void *arg, const char *sentence)
{
    struct said *said = arg;

    check(said->count < 8);
    (void)snprintf(said->text[said->count++], ERR_WHY_BYTES_MAX, "%s", sentence);
}

static struct said check_here(struct rig *rig)
{
    static struct said said;

    said.count = 0;
    target_check_here(&rig->opts, say, &said);
    return said;
}

/* Whatever sizes of drives, segments and values: the check refuses what a start with empty drives
 * refuses, with the same words. */
static void a_check_agrees_with_the_start(void **state)
{
    uint32_t starts = 0, refusals = 0;

    for (uint64_t seed = 0; seed < 60; seed++) {
        uint64_t random = hash64_mix(seed);
        struct rig *rig = rig_new(1, 2);
        struct err_why said = {""}, why = {""};
        icms_err err;

        rig->opts.segment_bytes = (uint64_t)65536 << random % 6;
        rig->drives[0].bytes =
            rig->opts.segment_bytes * (3 + (random >> 8) % 4) + ((random >> 12) % 3) * 65536;
        rig->volumes[0].value_bytes_max = 1000 + (random >> 16) % 500000;
        rig->volumes[1].value_bytes_max = 1000;
        err = target_check(&rig->opts, &said);
        if (err == ICMS_OK) {
            rig_up(rig);
            assert_true(rig->target->drives[0].store != NULL);
            starts++;
        } else {
            assert_int_equal(err, ICMS_CONFIG);
            assert_int_equal(rig_try(rig, &why), err);
            assert_string_equal(said.text, why.text);
            assert_non_null(strstr(why.text, "drive0"));
            refusals++;
        }
        rig_free(&rig);
    }
    assert_true(starts > 10 && refusals > 10);
}

static void a_size_that_differs_is_said(void **state)
{
    struct rig *rig = rig_new(1, 1);

    assert_int_equal(check_here(rig).count, 0); /* it will be made */
    rig_up(rig);
    assert_null(rig_warning(1));                /* but that it was formatted */
    assert_int_equal(check_here(rig).count, 0); /* beside the target that serves it */
    rig_down(rig);
    rig->drives[0].bytes = 50 * MIB;
    assert_int_equal(check_here(rig).count, 1);
    assert_string_equal(check_here(rig).text[0],
                        "drive 0 (/drive/0): has 40 MiB and is used as it is, although size says "
                        "50 MiB; correct size, or format a new file of that size");
    rig_up(rig);
    assert_string_equal(rig_warning(0), check_here(rig).text[0]);
    rig_free(&rig);
}

static void a_segment_that_differs_is_said(void **state)
{
    struct rig *rig = rig_new(1, 1);

    rig_up(rig);
    rig_down(rig);
    rig->opts.segment_bytes = 2 * MIB;
    assert_int_equal(check_here(rig).count, 1);
    assert_string_equal(check_here(rig).text[0],
                        "drive 0 (/drive/0): has segments of 1024 KiB and is used as it is, "
                        "although segment says 2048 KiB; correct segment, or format the drive "
                        "again");
    rig_up(rig);
    assert_string_equal(rig_warning(0), check_here(rig).text[0]);
    rig_down(rig);
    rig->drives[0].bytes = 50 * MIB; /* both */
    assert_int_equal(check_here(rig).count, 1);
    assert_non_null(
        strstr(check_here(rig).text[0], "a new file of that size; it has segments of 1024 KiB"));
    rig_free(&rig);
}

/* What the drives know of the volumes is read without opening them, beside a target that runs. */
static void volumes_that_the_drives_know_otherwise_are_said(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct err_why why = {""};

    rig->volumes[1].generation = 3;
    rig_up(rig);
    assert_int_equal(check_here(rig).count, 0);
    rig->volumes[0].sealed = false;
    assert_int_equal(check_here(rig).count, 1);
    rig_down(rig);
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_string_equal(check_here(rig).text[0], why.text);
    assert_non_null(strstr(why.text, "volume volume0: its blocks on these drives are sealed"));
    rig->volumes[0].sealed = true;
    rig->volumes[1].generation = 2;
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_int_equal(check_here(rig).count, 1);
    assert_string_equal(check_here(rig).text[0], why.text);
    assert_non_null(strstr(why.text, "generation 2 is older than 3"));
    rig->drives[0].format = TARGET_FORMAT_ANY; /* the other one still knows */
    assert_int_equal(check_here(rig).count, 1);
    rig->drives[1].format = TARGET_FORMAT_ANY;
    assert_int_equal(check_here(rig).count, 0);
    rig_free(&rig);
}

/* A map of another pod lists others: what the drives hold would be evicted. */
static void drives_that_were_used_for_other_volumes_are_told(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct volume_spec was[2];

    assert_int_equal(target_volumes_foreign(&rig->opts), 0); /* drives are empty */
    rig_up(rig);
    assert_int_equal(target_volumes_foreign(&rig->opts), 0);
    memcpy(was, rig->volumes, sizeof(was));
    for (uint32_t i = 0; i < rig->opts.volume_count; i++)
        (void)snprintf(rig->volumes[i].name, sizeof(rig->volumes[i].name), "foreign%u", i);
    assert_int_equal(target_volumes_foreign(&rig->opts), rig->opts.volume_count);
    rig_down(rig);
    assert_int_equal(target_volumes_foreign(&rig->opts), rig->opts.volume_count);
    rig->volumes[0] = was[0]; /* one is enough: volumes may come and go */
    assert_int_equal(target_volumes_foreign(&rig->opts), 0);
    rig->volumes[0].generation++;
    rig->volumes[0].uuid.bytes[0]++; /* its blocks are not those that they hold */
    assert_int_equal(target_volumes_foreign(&rig->opts), rig->opts.volume_count);
    rig->drives[0].format = TARGET_FORMAT_ANY; /* the other one still holds some */
    assert_int_equal(target_volumes_foreign(&rig->opts), rig->opts.volume_count);
    rig->drives[1].format = TARGET_FORMAT_ANY;
    assert_int_equal(target_volumes_foreign(&rig->opts), 0);
    rig_free(&rig);
}

/* Applies the volumes of the options with an epoch of a map, while the target runs. */
static void epoch_apply(struct rig *rig, uint32_t epoch)
{
    struct target_refused refused;
    struct err_why why = {""};
    icms_err err = ICMS_OK;
    int turns = 0;

    rig->opts.pod_epoch = epoch;
    assert_int_equal(target_volumes_change(rig->target, &rig->opts, &refused, &why), ICMS_OK);
    while (!target_volumes_changed(rig->target, &err, &refused, &why) && turns++ < 1000)
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 1000000);
    assert_true(turns < 1000);
    assert_int_equal(err, ICMS_OK);
}

/* The highest epoch of a pod that one drive of the rig, or all of them (first: 0), know. */
static uint32_t epoch_of(struct rig *rig, const char *pod, uint32_t first, uint32_t count)
{
    struct target_opts opts = rig->opts;

    opts.pod = pod;
    opts.drives = &rig->drives[first];
    opts.drive_count = count;
    return target_epoch_known(&opts);
}

/* The highest epoch stays on all drives, over restarts and crashes, whatever the map has later. */
static void the_highest_epoch_stays(void **state)
{
    struct rig *rig = rig_new(1, 2);

    rig_up(rig); /* without a map */
    assert_int_equal(target_epoch_known(&rig->opts), 0);
    rig_down(rig);
    rig->opts.pod = "a";
    rig->opts.pod_epoch = 7;
    assert_int_equal(target_epoch_known(&rig->opts), 0);
    rig_up(rig);
    assert_int_equal(target_epoch_known(&rig->opts), 7); /* beside the target that serves */
    epoch_apply(rig, 9);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(epoch_of(rig, "a", i, 1), 9);
    rig_crash_power(rig, true);
    assert_int_equal(target_epoch_known(&rig->opts), 9);
    rig->opts.pod_epoch = 3; /* whoever starts it so was asked before */
    rig_up(rig);
    assert_int_equal(target_epoch_known(&rig->opts), 9);
    rig_down(rig);
    rig->opts.pod = NULL; /* volumes of its own for a while */
    rig_up(rig);
    rig_down(rig);
    assert_int_equal(epoch_of(rig, "a", 0, 2), 9);
    assert_int_equal(epoch_of(rig, "b", 0, 2), 0);
    rig->opts.pod = "b"; /* of another pod from now on */
    rig->opts.pod_epoch = 2;
    rig_up(rig);
    rig_down(rig);
    assert_int_equal(epoch_of(rig, "b", 0, 2), 2);
    assert_int_equal(epoch_of(rig, "a", 0, 2), 0);
    rig_free(&rig);
}

/* A drive that was away, or is new, knows less: the highest of all counts, and all know it then. */
static void the_highest_epoch_of_all_drives_counts(void **state)
{
    struct rig *rig = rig_new(1, 2);

    rig->opts.pod = "a";
    rig->opts.pod_epoch = 7;
    rig_up(rig);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[1], true);
    rig_up(rig);
    epoch_apply(rig, 9);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[1], false);
    assert_int_equal(epoch_of(rig, "a", 0, 1), 9);
    assert_int_equal(epoch_of(rig, "a", 1, 1), 7);
    assert_int_equal(epoch_of(rig, "a", 0, 2), 9);
    rig_up(rig);
    assert_int_equal(epoch_of(rig, "a", 1, 1), 9);
    rig_down(rig);
    rig->drives[0].format = TARGET_FORMAT_ANY; /* the other one still knows */
    assert_int_equal(target_epoch_known(&rig->opts), 9);
    rig->drives[1].format = TARGET_FORMAT_ANY;
    assert_int_equal(target_epoch_known(&rig->opts), 0);
    rig->drives[1].format = TARGET_FORMAT_NOTHING;
    rig_up(rig); /* the new one knows it, too */
    rig->drives[0].format = TARGET_FORMAT_NOTHING;
    assert_int_equal(epoch_of(rig, "a", 0, 1), 9);
    rig_free(&rig);
}

/* A change that a drive refuses leaves the epoch as it was. */
static void a_refused_change_keeps_the_epoch(void **state)
{
    struct rig *rig = rig_new(1, 1);
    struct target_refused refused;
    struct err_why why = {""};

    rig->opts.pod = "a";
    rig->opts.pod_epoch = 7;
    rig->volumes[0].generation = 2;
    rig_up(rig);
    rig->volumes[0].generation = 1;
    rig->opts.pod_epoch = 8;
    assert_int_equal(target_volumes_change(rig->target, &rig->opts, &refused, &why), ICMS_CONFIG);
    assert_int_equal(target_epoch_known(&rig->opts), 7);
    rig_free(&rig);
}

/* The quota fits into the size that is written, and not into the drive that is there. */
static void a_quota_above_the_drives_that_are_here_is_said(void **state)
{
    struct rig *rig = rig_new(1, 1);
    struct err_why why = {""};

    rig_up(rig);
    rig_down(rig);
    rig->drives[0].bytes = 0;
    rig->volumes[0].quota_bytes = 40 * MIB;
    assert_int_equal(check_here(rig).count, 0);
    rig->volumes[0].quota_bytes++;
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_int_equal(check_here(rig).count, 1);
    assert_string_equal(check_here(rig).text[0], why.text);
    rig_free(&rig);
}

/* The segments of a drive are those it was formatted with. */
static void values_that_do_not_fit_a_formatted_drive_are_said(void **state)
{
    struct rig *rig = rig_new(1, 1);
    struct err_why why = {""};

    rig_up(rig);
    rig_down(rig);
    rig->opts.segment_bytes = 8 * MIB;
    rig->opts.nvmf.memory_bytes = 16 * MIB;
    rig->volumes[0].value_bytes_max = 2 * MIB;
    assert_int_equal(target_check(&rig->opts, &why), ICMS_OK);
    assert_int_equal(rig_try(rig, &why), ICMS_INVALID);
    assert_int_equal(check_here(rig).count, 1);
    assert_string_equal(check_here(rig).text[0], why.text);
    assert_non_null(strstr(why.text, "drive0: /drive/0: values of 2097216 bytes do not fit"));
    rig_free(&rig);
}

/* Formatting is never silent, and nothing is formatted that may not be. */
static void a_drive_is_formatted_as_its_options_say_and_that_is_told(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct err_why why = {""};
    uint64_t bytes;
    uint8_t *medium;

    rig->drives[0].format = rig->drives[1].format = TARGET_FORMAT_NOTHING;
    assert_int_equal(rig_try(rig, &why), ICMS_NOT_FOUND);
    assert_string_equal(why.text,
                        "drive0: not formatted: /drive/0 is missing; look whether its file system "
                        "is mounted; to make a new file, start with `--format drive0` (`all`: all "
                        "drives), or write format_empty: true");
    assert_string_equal(check_here(rig).text[0], why.text);
    assert_null(sim_file_medium(rig->node, "/drive/0", &bytes));
    rig->drives[0].format = TARGET_FORMAT_EMPTY;
    rig_up(rig); /* with one drive */
    assert_string_equal(rig_warning(0),
                        "drive 0 (/drive/0): formatted: the file was missing, and is made; it "
                        "holds no blocks now");
    assert_non_null(strstr(rig_warning(1), "drive 1 is out of service: drive1: "));
    assert_null(sim_file_medium(rig->node, "/drive/1", &bytes));
    fill(rig, 1, 10);
    rig_down(rig);
    rig->drives[0].format = TARGET_FORMAT_NOTHING;
    rig->drives[1].format = TARGET_FORMAT_ANY;
    rig_up(rig);
    assert_string_equal(rig_warning(0),
                        "drive 1 (/drive/1): formatted: --format names it; it holds no blocks now");
    assert_null(rig_warning(1));
    assert_int_equal(hits(rig, 1, 10), 10);
    rig_down(rig);
    /* truncated to nothing, and made anew by hand */
    medium = sim_file_medium(rig->node, "/drive/1", &bytes);
    memset(medium, 0, bytes);
    rig->drives[1].format = TARGET_FORMAT_NOTHING;
    rig_up(rig);
    assert_non_null(strstr(rig_warning(0), "/drive/1 is empty; look whether"));
    rig_free(&rig);
}

/* One damaged drive costs itself, wherever the damage is. */
static void a_damaged_beginning_leaves_the_others_in_service(void **state)
{
    struct rig *rig = rig_new(1, 3);
    uint64_t bytes;

    rig_up(rig);
    fill(rig, 1, 60);
    rig_down(rig);
    memset(sim_file_medium(rig->node, "/drive/1", &bytes), 0xa5, MIB);
    rig_up(rig);
    assert_non_null(strstr(rig_warning(0), "to erase it, start with `--format drive1`"));
    assert_in_range(hits(rig, 1, 60), 20, 59);
    rig_free(&rig);
}

/* By the share of drives that are out. */
static void readiness_names_the_drives_that_are_out(void **state)
{
    struct rig *rig = rig_new(1, 4);
    struct err_why why = {""};

    rig_up(rig);
    rig_down(rig);
    rig->opts.ready_out_percent_max = 25;
    sim_disk_dead(rig->node, "/drive/2", true);
    rig_up(rig);
    assert_true(target_ready(rig->target, &why));
    assert_string_equal(why.text, "1 of 4 drives out of service: drive2 (/drive/2)");
    rig_down(rig);
    sim_disk_dead(rig->node, "/drive/0", true);
    rig_up(rig);
    assert_false(target_ready(rig->target, &why));
    assert_string_equal(why.text,
                        "2 of 4 drives out of service: drive0 (/drive/0) drive2 (/drive/2)");
    atomic_fetch_or(&rig->target->slow, 2);
    assert_false(target_ready(rig->target, &why));
    assert_non_null(strstr(why.text, "; 1 of 4 drives slow: drive1 (/drive/1)"));
    rig_free(&rig);
}

/* Buffers, and 32 bytes of index for each block that a drive may have. */
static void the_memory_of_indexes_counts(void **state)
{
    struct rig *rig = rig_new(1, 1);
    uint64_t least;

    rig->drives[0].bytes_per_block = 4096;
    least = rig->opts.nvmf.memory_bytes + 40 * MIB / 4096 * 32;
    assert_in_range(target_memory_bytes(&rig->opts), least, least + MIB);
    rig_up(rig);
    rig_down(rig);
    rig->drives[0].bytes = 0; /* as it is */
    assert_in_range(target_memory_bytes(&rig->opts), least, least + MIB);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_check_agrees_with_the_start),
        cmocka_unit_test(a_size_that_differs_is_said),
        cmocka_unit_test(a_segment_that_differs_is_said),
        cmocka_unit_test(volumes_that_the_drives_know_otherwise_are_said),
        cmocka_unit_test(drives_that_were_used_for_other_volumes_are_told),
        cmocka_unit_test(the_highest_epoch_stays),
        cmocka_unit_test(the_highest_epoch_of_all_drives_counts),
        cmocka_unit_test(a_refused_change_keeps_the_epoch),
        cmocka_unit_test(a_quota_above_the_drives_that_are_here_is_said),
        cmocka_unit_test(values_that_do_not_fit_a_formatted_drive_are_said),
        cmocka_unit_test(a_drive_is_formatted_as_its_options_say_and_that_is_told),
        cmocka_unit_test(a_damaged_beginning_leaves_the_others_in_service),
        cmocka_unit_test(readiness_names_the_drives_that_are_out),
        cmocka_unit_test(the_memory_of_indexes_counts),
    };

    return cmocka_run_group_tests_name("target-check", tests, NULL, NULL);
}
