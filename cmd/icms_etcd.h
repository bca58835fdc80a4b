/* SPDX-License-Identifier: Apache-2.0 */
/* cmd/icms_etcd.h: what the files of icms-etcd share. One thread. */
#ifndef CMD_ICMS_ETCD_H
#define CMD_ICMS_ETCD_H

#include <stdbool.h>

#include "base/limits.h"
#include "base/log.h"
#include "etcd/etcd.h"

struct secret;

/* What the command line said. */
struct etcd_run {
    struct etcd_opts opts;
    struct etcd *etcd;
    const char *prefix; /* of the keys                              */
    const char *file;   /* of the map; register: of the target      */
    char **words;       /* pod: what icms pod shall do, then NULL   */
    int word_count;
    bool dry_run, yes, json;
    char user[128];          /* of $ETCDCTL_USER                         */
    struct secret *password; /* of --password-file                       */
};

/* What was said last, so that it is said once. */
struct etcd_talk {
    char said[2 * ERR_WHY_BYTES_MAX];
    bool is_failing;
};
void etcd_said(struct etcd_talk *talk, enum log_level level, const char *sentence);

/* Waits for the time or for a signal; from the first call on signals come here alone. */
enum etcd_wake {
    ETCD_WAKE_TIME,
    ETCD_WAKE_ASKED, /* SIGHUP          */
    ETCD_WAKE_END,   /* SIGTERM, SIGINT */
};
enum etcd_wake etcd_sleep(uint32_t ms);

/* The time, or a fifth less or more. */
uint32_t etcd_soon(uint32_t ms);

/* Keeps PREFIX/targets/NAME while the target of the configuration answers, until a signal comes. */
icms_err etcd_register(const struct etcd_run *run, struct err_why *why) ICMS_MUST_CHECK;

#endif
