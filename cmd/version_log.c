/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What another version of icms stored, as lines of the agent's log.
 *
 * Called by icms-agent on the main thread, each time it looks at the counters. Invariant: a line
 * names the volume whose misses it counts.
 */
#include "version_log.h"

#include "base/log.h"

#define VERSION_LOG_NS ((uint64_t)60 * 1000 * 1000 * 1000)

void version_log_look(struct version_log *log, uint64_t now_ns, const struct agent_stats *stats)
{
    const struct agent_volume_stats *most = NULL;
    uint64_t new = 0, count;

    for (uint32_t i = 0; i < stats->volume_count; i++) {
        count = stats->volumes[i].misses[ICMS_MISS_VERSION];
        if (count > log->told[i] && count - log->told[i] > new) {
            most = &stats->volumes[i];
            new = count - log->told[i];
        }
    }
    if (most == NULL || (log->line_ns != 0 && now_ns < log->line_ns + VERSION_LOG_NS))
        return;
    count = most->misses[ICMS_MISS_VERSION];
    log_line(LOG_WARN,
             "volume %s: blocks are misses, since another version of icms stored them in a format "
             "that clients here do not know; they stay for those that do; upgrade libicms, see "
             "version in icms-errors(7); new=%llu version_misses=%llu",
             most->name, (unsigned long long)new, (unsigned long long)count);
    log->told[most - stats->volumes] = count;
    log->line_ns = now_ns;
}
