/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_reload.h: icms-target reads its file again: what differs is applied as a whole while
 * it runs, or refused as a whole with file and line, and everything stays as it was.
 *
 *   SIGHUP -> read, parsed -> compared with the file that runs -> the enclosure (target.h) compares
 *   with what it has -> applied, loop by loop -> logged, audited; the file that runs is this one
 *
 * Volumes and tenants may differ (conf/conf.h). One change at a time: a SIGHUP that comes meanwhile
 * begins the next one when it is over. Main thread.
 */
#ifndef CMD_TARGET_RELOAD_H
#define CMD_TARGET_RELOAD_H

#include "conf/conf.h"
#include "ctl/audit.h"
#include "target/target.h"

struct target_reload {
    const char *path; /* of the file; kept by the caller        */
    struct target *target;
    const struct ctl_audit *audit;
    struct conf_live *runs;  /* the file that runs              */
    struct conf_live *comes; /* that is being applied, or NULL  */
    bool again;              /* SIGHUP came meanwhile           */
};

/* Reads the file that runs: what target was made with. */
icms_err target_reload_init(struct target_reload *reload, const char *path, struct target *target,
                            const struct ctl_audit *audit, struct err_why *why) ICMS_MUST_CHECK;
void target_reload_fini(struct target_reload *reload);

/* SIGHUP. */
void target_reload_begin(struct target_reload *reload);

/* Now and then: says how a change ended. True while one is being applied. */
bool target_reload_look(struct target_reload *reload);

#endif
