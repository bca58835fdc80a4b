/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target/drives_change_rig.h: a rig (target_test_rig.h) whose drives change while it runs. Tests
 * only; a failed step ends the test. Included by one file of a program, behind cmocka.h.
 */
#ifndef TARGET_DRIVES_CHANGE_RIG_H
#define TARGET_DRIVES_CHANGE_RIG_H

#include "target/target_test_rig.h"

#define DRIVES 8

static struct target_drive_opts list[DRIVES];
static uint64_t bytes_per_block; /* of each; 0: the default */

/* What is configured from now on: these drives (bits), of which some drain. */
static inline void configure(struct rig *rig, uint32_t drives, uint32_t drains)
{
    rig->opts.drives = list;
    rig->opts.drive_count = 0;
    for (uint32_t i = 0; i < DRIVES; i++) {
        if ((drives >> i & 1) == 0)
            continue;
        (void)snprintf(rig->paths[i], sizeof(rig->paths[i]), "/drive/%u", i);
        list[rig->opts.drive_count] =
            (struct target_drive_opts){.path = rig->paths[i], .bytes = 40 * MIB};
        list[rig->opts.drive_count].bytes_per_block = bytes_per_block;
        list[rig->opts.drive_count++].drains = (drains >> i & 1) != 0;
    }
}

static inline struct rig *up_with(uint32_t loops, uint32_t drives)
{
    struct rig *rig = rig_new(loops, 3);

    configure(rig, drives, 0);
    rig_up(rig);
    return rig;
}

static inline void run_ms(struct rig *rig, uint64_t ms)
{
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + ms * 1000000);
}

/* The number of a drive; LIMIT_DRIVES: it is not there. */
static inline uint32_t number_of(struct rig *rig, uint32_t i)
{
    for (uint32_t n = 0; n < LIMIT_DRIVES; n++)
        if ((atomic_load(&rig->target->listed) >> n & 1) != 0 &&
            strcmp(rig->target->drives[n].path, rig->paths[i]) == 0)
            return n;
    return LIMIT_DRIVES;
}

static inline void over(struct rig *rig)
{
    struct err_why why;

    for (int i = 0; i < 3000; i++) {
        if (target_drives_changed(rig->target, &why)) {
            assert_string_equal(why.text, "");
            return;
        }
        run_ms(rig, 1);
    }
    fail_msg("the change does not end");
}

static inline icms_err try_change(struct rig *rig, struct err_why *why, uint32_t *out_drive)
{
    why->text[0] = '\0';
    return target_drives_change(rig->target, &rig->opts, out_drive, why);
}

static inline void begin(struct rig *rig, uint32_t drives, uint32_t drains)
{
    struct err_why why;
    uint32_t drive;

    configure(rig, drives, drains);
    if (try_change(rig, &why, &drive) != ICMS_OK)
        fail_msg("%s", why.text);
    target_drives_commit(rig->target);
}

static inline void change(struct rig *rig, uint32_t drives, uint32_t drains)
{
    begin(rig, drives, drains);
    over(rig);
}

static inline void refused(struct rig *rig, uint32_t drives, uint32_t drains, icms_err err,
                           const char *words)
{
    struct place_map *map = rig->target->map;
    uint32_t listed = atomic_load(&rig->target->listed), drive;
    uint64_t out = atomic_load(&rig->target->out);
    struct err_why why;

    configure(rig, drives, drains);
    assert_int_equal(try_change(rig, &why, &drive), err);
    if (strstr(why.text, words) == NULL)
        fail_msg("%s", why.text);
    assert_ptr_equal(map, rig->target->map);
    assert_int_equal(listed, atomic_load(&rig->target->listed));
    assert_int_equal(out, atomic_load(&rig->target->out));
}

static inline uint64_t blocks(struct rig *rig, uint32_t i)
{
    struct store_stats stats;

    store_stats(rig->target->drives[number_of(rig, i)].store, &stats);
    return stats.blocks;
}

static inline void drained(struct rig *rig, uint32_t i)
{
    for (int n = 0; n < 2000 && blocks(rig, i) > 0; n++)
        run_ms(rig, 10);
    assert_int_equal(blocks(rig, i), 0);
}

/* The drives that went are closed: others may have them. */
static inline void closed(struct rig *rig)
{
    struct err_why why;

    for (uint32_t n = 0; n < LIMIT_DRIVES; n++)
        for (int i = 0; i < 10000 && rig->target->drives[n].is_leaving; i++) {
            run_ms(rig, 1);
            (void)target_drives_changed(rig->target, &why);
        }
    for (uint32_t n = 0; n < LIMIT_DRIVES; n++)
        if ((atomic_load(&rig->target->listed) >> n & 1) == 0) {
            assert_false(rig->target->drives[n].is_leaving);
            assert_null(rig->target->drives[n].store);
            assert_null(rig->target->drives[n].closing);
        }
}

#endif
