/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_reload.h: icms-target reads its file again: what differs is applied as a whole while
 * it runs, or refused as a whole with file and line, and everything stays as it was.
 *
 *   SIGHUP -> read, parsed -> compared with the file that runs -> drives that come are opened, on a
 *   thread of its own, for that may take long -> the enclosure (target.h) compares volumes with
 * what it has -> volumes are applied, loop by loop, then drives -> logged, audited; the file that
 * runs is this one
 *
 * Volumes, tenants and drives may differ (conf/conf.h). Whatever is refused is refused before
 * drives change, and volumes too. One change at a time: a SIGHUP that comes meanwhile begins the
 * next one when it is over. Main thread.
 */
#ifndef CMD_TARGET_RELOAD_H
#define CMD_TARGET_RELOAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "conf/conf.h"
#include "ctl/audit.h"
#include "daemon.h"
#include "target/target.h"

enum target_reload_step {
    TARGET_RELOAD_NONE,    /* nothing is being applied                     */
    TARGET_RELOAD_WAITS,   /* for new weights of drives to be applied      */
    TARGET_RELOAD_OPENS,   /* the thread opens drives; woken by is_opened  */
    TARGET_RELOAD_VOLUMES, /* volumes change                               */
    TARGET_RELOAD_DRIVES,  /* drives change                                */
};

struct target_reload {
    const char *path; /* of the file; kept by the caller        */
    struct target *target;
    const struct ctl_audit *audit;
    struct conf_live *runs;  /* the file that runs              */
    struct conf_live *comes; /* that is being applied, or NULL  */
    bool again;              /* SIGHUP came meanwhile           */
    enum target_reload_step step;
    const struct daemon_opts *opts; /* for the limits of memory */
    pthread_t opener;
    struct target_drive_opts drives[LIMIT_DRIVES];
    struct target_opts target_opts; /* as they shall be         */
    /* of the opener, when is_opened */
    icms_err err;
    struct err_why why;
    uint32_t drive; /* what of it is refused                    */
    _Atomic bool is_opened;
};

/* Drives of a configuration as target takes them: [LIMIT_DRIVES]. */
void target_reload_drives(const struct conf_target *conf, struct target_drive_opts *out_drives);

/* Reads the file that runs: what target was made with. */
icms_err target_reload_init(struct target_reload *reload, const struct daemon_opts *opts,
                            struct target *target, const struct ctl_audit *audit,
                            struct err_why *why) ICMS_MUST_CHECK;
void target_reload_fini(struct target_reload *reload);

/* SIGHUP. */
void target_reload_begin(struct target_reload *reload);

/* Now and then: says how a change ended. True while one is being applied. */
bool target_reload_look(struct target_reload *reload);

#endif
