/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/drive_log.h: what a drive did wrong, as lines of a daemon's log: few at once, so that a drive
 * that fails all the time does not fill the log. Main thread.
 */
#ifndef CMD_DRIVE_LOG_H
#define CMD_DRIVE_LOG_H

#include "store/store.h"

/* What was logged of one drive. All zeros at first. */
struct drive_log {
    uint64_t lines;           /* logged since line_ns                              */
    uint64_t line_ns;         /* when there was the last one more                  */
    uint64_t unlogged;        /* errors since the last line                        */
    uint64_t no_space_errors; /* that were known at the last look                  */
    uint64_t no_space_ns;     /* when there was one last; 0: there is space again  */
};

struct drive_log_source {
    const char *name; /* "drive 0 (/var/lib/icms/drive0)" */
    bool (*take)(void *arg, struct store_error *out_error, uint64_t *out_missed);
    const char *(*volume)(void *arg, uint32_t volume); /* its name */
    void *arg;                                         /* of both   */
};

/* Logs errors of the drive that were not logged yet, and when space ends and comes back. now_ns: of
 * loop_env_now_ns. */
void drive_log_look(struct drive_log *log, uint64_t now_ns, const struct drive_log_source *source,
                    const struct store_stats *stats);

#endif
