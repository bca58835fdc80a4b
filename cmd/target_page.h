/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_page.h: what icms-target tells over HTTP: /metrics, /status, /trace, /readyz.
 *
 * Functions for struct ctl_http_opts; arg is the struct target. They run on the HTTP thread, one at
 * a time.
 */
#ifndef CMD_TARGET_PAGE_H
#define CMD_TARGET_PAGE_H

#include "base/limits.h"
#include "ctl/ctl.h"

/* The pod map of the target. */
struct target_page_pod {
    char name[LIMIT_NAME_BYTES];     /* of the pod                                        */
    uint32_t epoch;                  /* that is in use; 0: there is no map                */
    char refused[ERR_WHY_BYTES_MAX]; /* why the map that its file holds is not in use; "" */
};

/* From now on; on any thread. */
void target_page_pod_set(const struct target_page_pod *pod);

void target_page_metrics(void *arg, struct ctl_page *page);
void target_page_status(void *arg, struct ctl_page *page);
void target_page_trace(void *arg, const struct key *key, struct ctl_page *page);
bool target_page_ready(void *arg, struct err_why *why);

#endif
