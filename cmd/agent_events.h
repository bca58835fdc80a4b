/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_events.h: the events of an agent's volumes, as its configuration wants them published.
 */
#ifndef CMD_AGENT_EVENTS_H
#define CMD_AGENT_EVENTS_H

#include "agent/agent.h"
#include "conf/conf.h"
#include "ctl/ctl.h"
#include "events/publish.h"

/* For agent_opts.events. */
uint64_t agent_events_volumes(const struct conf_agent *conf);

/* Publishes them; NULL in out_events when there are none. conf stays. */
icms_err agent_events_start(const struct conf_agent *conf, struct agent *agent, struct err_why *why,
                            struct events **out_events) ICMS_MUST_CHECK;

/* What became of them, as metrics; events may be NULL. */
void agent_events_metrics(const struct events *events, struct ctl_page *page);

#endif
