/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A target whose connections are all in use; see connections_log.h. Called by the main thread of
 * icms-target, twice a second.
 */
#include "connections_log.h"

#include "base/log.h"

/* Free for so long, it is over: hosts that come and go at the limit are one episode. */
#define CONNECTIONS_LOG_FREE_NS ((uint64_t)60 * 1000 * 1000 * 1000)

void connections_log_look(struct connections_log *log, uint64_t now_ns,
                          const struct nvmf_target_stats *stats)
{
    bool full = stats->connections_full > log->full || stats->connections >= stats->connections_max;

    if (full && log->full_ns == 0)
        log_line(LOG_WARN,
                 "connections: all are in use: hosts that connect wait until others disconnect; "
                 "`icms status --target` shows who has how many; set a larger connections_max and "
                 "restart icms-target; connections_max=%llu",
                 (unsigned long long)stats->connections_max);
    if (full) {
        log->full_ns = now_ns;
    } else if (log->full_ns != 0 && now_ns > log->full_ns + CONNECTIONS_LOG_FREE_NS) {
        log->full_ns = 0;
        log_line(LOG_INFO, "connections: some are free again; connections=%llu full=%llu",
                 (unsigned long long)stats->connections,
                 (unsigned long long)stats->connections_full);
    }
    log->full = stats->connections_full;
}
