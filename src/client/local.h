/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/local.h: an agent inside this process, for "pod:" and "dir:". src/inprocess has it:
 * nothing else of libicms knows the agent, whose code a program over "unix:" never runs.
 *
 * Called by icms_open, icms_volume_open, icms_status and icms_close, one at a time a handle.
 */
#ifndef CLIENT_LOCAL_H
#define CLIENT_LOCAL_H

#include "client/link.h"
#include "icms/icms.h"

/* What "pod:" and "dir:" keep. */
struct client_local;
struct block_reader;

icms_err client_local_open_pod(const char *path, const struct icms_options *options,
                               struct err_why *why,
                               struct client_local **out_local) ICMS_MUST_CHECK;
icms_err client_local_open_dir(const char *path, const struct icms_options *options,
                               struct err_why *why,
                               struct client_local **out_local) ICMS_MUST_CHECK;

/* Starts the agent and attaches to it. dir: with the volumes that the directory knows. */
icms_err client_local_start(struct client_local *local, struct err_why *why,
                            struct client_link **out_link) ICMS_MUST_CHECK;

/* dir: notes a volume for the next start; OK also when it is known already, encrypted or not. */
icms_err client_local_volume_add(struct client_local *local, const char *name, bool encrypted,
                                 struct err_why *why) ICMS_MUST_CHECK;

/* Forgets the volume that was added last: no agent starts with it. */
void client_local_volume_drop(struct client_local *local);

/* True for dir:, whose agent starts when there is a volume. */
bool client_local_makes_volumes(const struct client_local *local);

/* Volumes that are known. */
uint32_t client_local_volumes(const struct client_local *local);

/* Whether its agent has a drive of its own: dir:, or `local` beside a pod. */
bool client_local_has_drive(const struct client_local *local);
void client_local_close(struct client_local **local);

/* The agent that a link is attached to: accepted stores reach the flash, then it ends. */
void client_inside_free(struct client_inside **inside);

/* How an agent reads blocks of its own drive whose values are copied to devices (copy.c). */
const struct block_reader *client_reader(void);

/* Its status text; returns what the whole needs, as agent_status() does. Any thread. */
size_t client_inside_status(struct client_inside *inside, char *out, size_t bytes);

/* icms_trace of that agent. NO_MEMORY. Any thread. */
icms_err client_inside_trace(struct client_inside *inside, const struct icms_key *key, char *out,
                             size_t bytes, size_t *out_bytes) ICMS_MUST_CHECK;

#endif
