/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_auth.h: what icms-target says of authentications and refusals, and of what it
 * was told of hosts and volumes. Main thread.
 */
#ifndef CMD_TARGET_AUTH_H
#define CMD_TARGET_AUTH_H

#include "conf/conf.h"
#include "ctl/audit.h"
#include "target/target.h"

/* Logs and audits what ended since the last call: a host and a result at most once a minute, and
 * not more than a few lines in any time. */
void target_auths(struct target *target, const struct ctl_audit *audit);

/* One line of the audit log: what happens to a volume ("served", "created", "reset", "changed",
 * "deleted"), and what the configuration says of it. */
void target_auth_volume(const struct ctl_audit *audit, const struct volume_spec *volume,
                        const char *what);

/* What the configuration says of volumes and hosts, at the start: an auditor compares it with the
 * start before. */
void target_auth_conf(const struct conf_target *conf, const struct ctl_audit *audit);

/* The same decision alone, for tests: whether to say this now; out_missed: how many were left out
 * since the last that was said. */
bool target_auth_said(const struct nvmf_target_auth *auth, uint64_t now_ns, uint64_t *out_missed);

#endif
