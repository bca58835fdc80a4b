/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_page.h: what icms-target tells over HTTP: /metrics, /status, /trace, /readyz.
 *
 * Functions for struct ctl_http_opts; arg is the struct target. They run on the HTTP thread, one at
 * a time.
 */
#ifndef CMD_TARGET_PAGE_H
#define CMD_TARGET_PAGE_H

#include "ctl/ctl.h"

void target_page_metrics(void *arg, struct ctl_page *page);
void target_page_status(void *arg, struct ctl_page *page);
void target_page_trace(void *arg, const struct key *key, struct ctl_page *page);
bool target_page_ready(void *arg, struct err_why *why);

#endif
