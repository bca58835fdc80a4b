/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl/audit.h: the audit log: one JSON line for each authentication, refusal, and change that
 * somebody may have to account for. The caller bounds how many there are.
 *
 * Control threads only: writing blocks.
 */
#ifndef CTL_AUDIT_H
#define CTL_AUDIT_H

#include <stdint.h>

#include "base/err.h"

/* Where lines go. Zeros: nowhere. */
struct ctl_audit {
    const char *program; /* who writes                                               */
    const char *path;    /* of the file, kept by the caller; NULL: the daemon's log  */
};

/* where: a file, which is appended to and made with mode 0600 when it is missing; "journal": the
 * daemon's log; "" or "none": nowhere. Errors of a file show here, with a sentence. PERMISSION:
 * also a file that another user owns, or that every user can write. */
icms_err ctl_audit_init(struct ctl_audit *audit, const char *program, const char *where,
                        struct err_why *why) ICMS_MUST_CHECK;

/* What happened. Texts may be NULL: they are left out then. */
struct ctl_audit_event {
    const char *event;  /* "authentication", "refusal", "http", "keys", "volume", "host",
                           "configuration"                                                     */
    const char *host;   /* NQN, as the host says of itself; of an agent: the enclosure        */
    const char *method; /* "chap" or "tls"                                                    */
    const char *peer;   /* address                                                            */
    const char *volume; /* its name                                                           */
    const char *user;   /* of this machine, its number                                        */
    const char *result; /* a few words                                                        */
    uint32_t queue;     /* of the NVMe controller                                             */
    uint64_t missed;    /* how many like it were left out before                              */
};

/* One line. The file is opened for each line, so it may be rotated; a failure is logged. Any
 * control thread. */
void ctl_audit_write(const struct ctl_audit *audit, const struct ctl_audit_event *event);

#endif
