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

/* What was logged of their endpoints, by the number of the volume's stream. */
struct agent_events_seen {
    uint64_t floods[LIMIT_AGENT_VOLUMES];   /* that were counted at the last look          */
    uint64_t flood_ns[LIMIT_AGENT_VOLUMES]; /* when the last one was seen; 0: there was none */
    uint64_t unbound; /* bit i: it is logged that one cannot be bound, and its end is not */
};

/* Logs endpoints whose connections were ended, since there were too many: once, until none was
 * ended for a minute. And those that cannot be bound again after that, and when they are. events
 * may be NULL. */
void agent_events_look(const struct events *events, uint64_t now_ns,
                       struct agent_events_seen *io_seen);

/* What became of them, as metrics; events may be NULL. */
void agent_events_metrics(const struct events *events, struct ctl_page *page);

#endif
