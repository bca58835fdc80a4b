/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/page_states.h: metrics of where the time of requests goes, of an agent and of a target.
 */
#ifndef CMD_PAGE_STATES_H
#define CMD_PAGE_STATES_H

#include "ctl/ctl.h"
#include "trace/trace.h"

struct page_states_names {
    const char *requests, *requests_help; /* how many were in a state            */
    const char *seconds;                  /* how long, all of them together      */
};

/* Two families with a sample for each of these states that has a name. */
void page_states(struct ctl_page *page, const struct trace_stats *states, unsigned count,
                 struct page_states_names names);

#endif
