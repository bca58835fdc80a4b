/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/client.h: what libicms offers to the programs of this project besides include/icms.
 */
#ifndef CLIENT_CLIENT_H
#define CLIENT_CLIENT_H

#include "agent/agent.h"
#include "conf/conf.h"

/* Turns a configuration into an agent's options. enclosures: memory for LIMIT_ENCLOSURES that stays
 * as long as the options; the options also point into conf. Any thread. */
icms_err client_agent_opts(const struct conf_agent *conf, struct agent_enclosure_opts *enclosures,
                           struct err_why *why, struct agent_opts *out_opts) ICMS_MUST_CHECK;

#endif
