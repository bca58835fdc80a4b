/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/version_log.h: blocks of a format version that clients do not know, as lines of the agent's
 * log: one a minute at most, so that hosts that are upgraded one after the other do not fill it.
 * Main thread.
 */
#ifndef CMD_VERSION_LOG_H
#define CMD_VERSION_LOG_H

#include "agent/agent.h"

/* What was logged. All zeros at first. */
struct version_log {
    uint64_t told[LIMIT_AGENT_VOLUMES]; /* misses of volume i, with the last line of it */
    uint64_t line_ns;                   /* when there was a line; 0: never              */
};

/* Logs the volume with most such misses that were not logged yet; others wait for a later call.
 * now_ns: of loop_env_now_ns. */
void version_log_look(struct version_log *log, uint64_t now_ns, const struct agent_stats *stats);

#endif
