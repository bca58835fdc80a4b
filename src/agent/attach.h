/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/attach.h: the agent's unix socket: who connects to it becomes a client, or asks for the
 * status. Control, not data: a thread of its own that blocks, opens files and passes descriptors.
 */
#ifndef AGENT_ATTACH_H
#define AGENT_ATTACH_H

#include "agent/agent.h"

struct attach;

/* Listens on path with these permission bits; makes the last directory of path when it is missing.
 * A socket file that nobody listens on is replaced; one that somebody listens on is ADDRESS_IN_USE,
 * any other file EXISTS. The agent must run. */
icms_err attach_start(struct agent *agent, const char *path, uint32_t mode, struct err_why *why,
                      struct attach **out_attach) ICMS_MUST_CHECK;

/* Ends the thread and every connection, removes the socket file. Clients are not detached: the
 * agent stops next. *attach may be NULL. */
void attach_stop(struct attach **attach);

#endif
