/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/drive_health.h: how worn and hot the drives of a target are, and what part of its share of
 * new blocks each one gets for it.
 *
 * A thread of its own asks every HEALTH_LOOK_S: a device may take long to answer, or never do. It
 * reads the file that the configuration names (conf_health_read); else it asks an NVMe device for
 * its health log, and for others what /sys knows of the temperature. The main thread takes what is
 * there.
 *
 *   part of its share   when
 *   100 %               it is well, or nothing is known
 *   50 %                90 % of its rated writes are used, it is over its warning temperature,
 *                       or HEALTH_SLOW_HALF episodes of slowness are not forgotten
 *   25 %                100 % are used, it is over its critical temperature, it says that its
 *                       spare or reliability is low, or HEALTH_SLOW_QUARTER such episodes
 *   0 %                 it says that it is read-only
 *
 * One episode is forgotten every HEALTH_SLOW_NS, and no more than HEALTH_SLOW_MAX are kept: a drive
 * that was slow a hundred times in an hour is forgiven as soon as one that was slow nine times.
 *
 * A part falls at once. It rises when every reading for HEALTH_RISE_NS asked for more: placement
 * does not follow a temperature that goes up and down.
 */
#ifndef CMD_DRIVE_HEALTH_H
#define CMD_DRIVE_HEALTH_H

#include "conf/conf.h"
#include "target/target.h"

#define HEALTH_LOOK_S  5
#define HEALTH_RISE_NS ((uint64_t)600 * 1000 * 1000 * 1000)

#define HEALTH_SLOW_NS      ((uint64_t)600 * 1000 * 1000 * 1000)
#define HEALTH_SLOW_HALF    3
#define HEALTH_SLOW_QUARTER 6
#define HEALTH_SLOW_MAX     9

struct drive_health {
    char path[LIMIT_PATH_BYTES]; /* of the drive; "": not in use                */
    uint8_t part_percent;        /* that it gets now                            */
    uint8_t better_percent;      /* the least that was asked for since better_ns */
    uint64_t better_ns;          /* since when more was asked for; 0: it was not */
    uint64_t slow_total;         /* as it was                                   */
    uint32_t slow_points;        /* episodes that are not forgotten             */
    uint64_t slow_ns;            /* when the last one was forgotten             */
};

/* What a drive should get, and why; "" at 100. health NULL: nothing is known. */
uint8_t drive_health_wanted(const struct conf_health *health, uint32_t slow_points,
                            char out_why[128]);

/* A reading; true: the part is another one now. */
bool drive_health_step(struct drive_health *drive, uint8_t wanted_percent, uint64_t now_ns);

/* Episodes of slowness that count. */
void drive_health_slow(struct drive_health *drive, uint64_t slow_total, uint64_t now_ns);

/* The health log of an NVMe device: 512 bytes; limits in Kelvin, 0: it has none. */
void drive_health_page(const uint8_t page[512], uint32_t warning_k, uint32_t critical_k,
                       struct conf_health *out_health);

/* Starts the thread; which drives there are, also later. Main thread. */
icms_err drive_health_start(struct err_why *why) ICMS_MUST_CHECK;
void drive_health_conf(const struct conf_target *conf);

/* Looks at what was read; says what changed, and tells the target. */
void drive_health_look(struct target *target, const struct target_stats *stats);

#endif
