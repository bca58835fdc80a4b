/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics of where the time of requests goes.
 */
#include "page_states.h"

#include <stdio.h>

void page_states(struct ctl_page *page, const struct trace_stats *states, unsigned count,
                 struct page_states_names names)
{
    for (int seconds = 0; seconds < 2; seconds++) {
        const char *name = seconds ? names.seconds : names.requests;

        ctl_family(page, name, "counter",
                   seconds ? "How long they were in it, all of them together."
                           : names.requests_help);
        for (unsigned i = 0; i < count; i++) {
            char labels[64];

            if (states[i].name == NULL)
                continue;
            (void)snprintf(labels, sizeof(labels), "state=\"%s\"", states[i].name);
            ctl_sample(page, name, labels,
                       seconds ? (double)states[i].us / 1e6 : (double)states[i].count);
        }
    }
}
