/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_reload.h: icms-target reads its file again, and follows its pod map (`pod`): what
 * differs is applied as a whole while it runs, or refused as a whole with file and line, and
 * everything stays as it was.
 *
 *   SIGHUP -> file and map are read, parsed -> compared with what runs -> drives that come are
 *   opened, on a thread of its own, for that may take long -> the enclosure (target.h) compares
 *   volumes with what it has -> volumes are applied, loop by loop, then drives -> logged, audited;
 *   what runs is this
 *
 *   another text in the map's file (conf/pod_file.h) -> joined with the target's file as it runs,
 *   compared (conf_pod_compare) -> from there on as above
 *
 * Volumes, tenants and drives may differ (conf/conf.h). Whatever is refused is refused before
 * drives change, and volumes too. One change at a time: a SIGHUP that comes meanwhile begins the
 * next one when it is over, and so does a map. Main thread.
 */
#ifndef CMD_TARGET_RELOAD_H
#define CMD_TARGET_RELOAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "conf/conf.h"
#include "conf/pod_file.h"
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

/* What the watch of the map's file has for the main thread. */
struct target_map {
    pthread_mutex_t lock;
    char *text; /* not taken yet, or NULL                              */
    size_t bytes;
    char unreadable[ERR_WHY_BYTES_MAX]; /* why there is no text; "": there is one, or no news */
};

struct target_reload {
    const char *path; /* of the file; kept by the caller        */
    struct target *target;
    const struct ctl_audit *audit;
    struct conf_live *started;  /* what the target was made with; kept as long as it lives      */
    struct conf_live *runs;     /* the file that runs                                           */
    struct conf_live *comes;    /* that is being applied, or NULL                               */
    bool again;                 /* SIGHUP came meanwhile                                        */
    bool is_map;                /* comes is another map, not read at SIGHUP                     */
    struct conf_pod_file *file; /* of the map; NULL: there is none                              */
    struct target_map map;      /* of its watch                                                 */
    char *offered;              /* the map that comes, or that is tried again; NULL             */
    size_t offered_bytes;
    uint64_t offer_ns;                   /* it is not tried before                                */
    char map_refused[ERR_WHY_BYTES_MAX]; /* why the map of the file is not in use; ""           */
    char said[ERR_WHY_BYTES_MAX];        /* why the last SIGHUP was refused; ""                 */
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

/* The pod and the epoch of a file's map as target takes them; they stay the file's. */
void target_reload_pod(const struct conf_live *live, struct target_opts *io_opts);

/* Reads the file, and its map. target_reload_fini also after an error. */
icms_err target_reload_init(struct target_reload *reload, const struct daemon_opts *opts,
                            struct err_why *why) ICMS_MUST_CHECK;
void target_reload_fini(struct target_reload *reload);

/* What it read: what the target is to be made with, until target_reload_fini. */
const struct conf_target *target_reload_conf(const struct target_reload *reload);

/* Whether the target may start with its map, before a drive is opened. CONFIG, with a sentence: it
 * is that of other enclosures and other volumes, or of an epoch below the one that the drives had
 * of the same pod. Blocking. */
icms_err target_reload_check(const struct target_reload *reload, const struct target_opts *opts,
                             struct err_why *why) ICMS_MUST_CHECK;

/* The target runs: the map is watched from here on. */
icms_err target_reload_start(struct target_reload *reload, struct target *target,
                             const struct ctl_audit *audit, struct err_why *why) ICMS_MUST_CHECK;

/* Nothing is begun any more, and no thread uses the target. */
void target_reload_stop(struct target_reload *reload);

/* SIGHUP. */
void target_reload_begin(struct target_reload *reload);

/* Now and then: begins with a map that came, and says how a change ended. True while one is being
 * applied. */
bool target_reload_look(struct target_reload *reload);

#endif
