/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/attach_peer.h: the other end of a connection to the agent's unix socket: who it is, what it
 * says, and how its socket is closed. The thread of attach.c alone; nothing here blocks it.
 *
 * A message may carry descriptors, and whoever drops the last reference to one does what its close
 * does: of a TCP socket that lingers, or a file of a network, that may take as long as the sender
 * likes. So a message is looked at first and taken only when it carries none, and a socket with
 * messages in it is closed on a thread of its own.
 */
#ifndef AGENT_ATTACH_PEER_H
#define AGENT_ATTACH_PEER_H

#include <sys/types.h>

#include "agent/agent.h"

/* A user has at most this many supplementary groups (Linux: NGROUPS_MAX). */
#define ATTACH_GROUPS_MAX 65536

/* Who connected, by what the kernel says; *out_user points to groups[ATTACH_GROUPS_MAX]. */
icms_err attach_peer_user(int sock, uint32_t *groups, struct agent_user *out_user) ICMS_MUST_CHECK;

/* Takes one message of exactly so many bytes. OK; BUSY: nothing is there yet; PROTOCOL: it is of
 * another size, carries descriptors and was left where it is, or the other end is gone. */
icms_err attach_peer_take(int sock, void *out_message, size_t bytes) ICMS_MUST_CHECK;

struct attach_closing;

/* Closes the socket. NULL: done. Else a thread does it: ask attach_peer_closed() now and then. */
struct attach_closing *attach_peer_close(int sock);

/* True when it is closed; *closing is freed then. */
bool attach_peer_closed(struct attach_closing **closing);

/* Nobody asks any more: its thread frees it. */
void attach_peer_leave(struct attach_closing **closing);

#endif
