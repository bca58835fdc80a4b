/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_page.h: what icms-agent tells over HTTP: /metrics, /status, /readyz.
 *
 * Functions for struct ctl_http_opts; arg is a struct agent_page. They run on the HTTP thread, one
 * at a time.
 */
#ifndef CMD_AGENT_PAGE_H
#define CMD_AGENT_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "agent/agent.h"
#include "conf/conf.h"
#include "ctl/ctl.h"

struct events;

struct agent_page {
    struct agent *agent;
    const struct conf_agent *conf;
    double memory_percent_max; /* readiness; 0: off            */
    struct events *events;     /* NULL: none are published    */
    bool is_open;              /* nobody has to prove anything to the HTTP port */
    _Atomic bool attaching;    /* clients can attach: its socket is there; set by the main thread */
    struct agent_stats stats;  /* of the page that is made     */
    uint64_t match_late_ns;    /* agent_match.c: when a question was not answered; 0: it was */
};

void agent_page_metrics(void *arg, struct ctl_page *page);
void agent_page_status(void *arg, struct ctl_page *page);
bool agent_page_ready(void *arg, struct err_why *why);

#endif
