/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules of an agent's own drive: a size that a drive can have, quotas that fit it. Called by
 * rules.c on the caller's thread. What is at its path is the daemon's to look at.
 */
#include "conf/conf_int.h"

/* What lies in front of the segments of a drive. */
#define LOCAL_HEAD_BYTES ((uint64_t)64 << 10)

icms_err conf_local_rules(const struct conf_source *source, const struct conf_node *map,
                          const struct conf_agent *agent)
{
    uint64_t least = LOCAL_HEAD_BYTES + CONF_DRIVE_SEGMENTS_MIN * agent->local_segment_bytes;
    uint32_t line = conf_node_line(conf_node_get(map, "local"), "size");
    char size[32], other[32];

    if (agent->local_bytes == 0) /* known when it is opened */
        return ICMS_OK;
    if (agent->local_bytes < least)
        return conf_fail(source, line,
                         "local.size: %s is too small: a drive holds at least %d segments, %s; "
                         "sizes need a unit, as in 100GiB; or write a smaller segment",
                         conf_bytes_format(agent->local_bytes, size), CONF_DRIVE_SEGMENTS_MIN,
                         conf_bytes_format(least, other));
    for (uint32_t i = 0; i < agent->volume_count; i++)
        if (agent->volumes[i].quota_bytes > agent->local_bytes)
            return conf_fail(source, conf_node_line(conf_entry(map, "volumes", i), "quota"),
                             "quota: %s is larger than the own drive, %s (local.size); lower it, "
                             "or write 0 for all of it",
                             conf_bytes_format(agent->volumes[i].quota_bytes, size),
                             conf_bytes_format(agent->local_bytes, other));
    return ICMS_OK;
}
