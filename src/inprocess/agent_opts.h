/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/agent_opts.h: an agent as its configuration says, in icms-agent and inside a process.
 */
#ifndef INPROCESS_AGENT_OPTS_H
#define INPROCESS_AGENT_OPTS_H

#include "agent/agent.h"
#include "conf/conf.h"

/* One enclosure, which is at these addresses: as many as it has. The options point into `from`. Any
 * thread. */
void agent_enclosure_opts_from_conf(const struct conf_enclosure *from,
                                    const struct loop_addr addrs[LIMIT_LINKS],
                                    struct agent_enclosure_opts *out_opts);

/* Turns a configuration into an agent's options; with a pod map they have no enclosures yet
 * (inprocess/pod_watch.h). enclosures: memory for LIMIT_ENCLOSURES that stays as long as the
 * options; the options also point into conf. Any thread. */
icms_err agent_opts_from_conf(const struct conf_agent *conf,
                              struct agent_enclosure_opts *enclosures, struct err_why *why,
                              struct agent_opts *out_opts) ICMS_MUST_CHECK;

#endif
