/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/connections_log.h: that all connections of a target are in use, as lines of its log: one when
 * it begins, one when it is over. Main thread.
 */
#ifndef CMD_CONNECTIONS_LOG_H
#define CMD_CONNECTIONS_LOG_H

#include "nvmf/target.h"

/* What was logged. All zeros at first. */
struct connections_log {
    uint64_t full;    /* stats.connections_full at the last look                     */
    uint64_t full_ns; /* when all were in use last; 0: since then some have been free */
};

/* now_ns: of loop_env_now_ns. */
void connections_log_look(struct connections_log *log, uint64_t now_ns,
                          const struct nvmf_target_stats *stats);

#endif
