/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop/memory_limit.h: how much memory this process may use at most, as the machine and the control
 * groups around the process say. Who takes more of it than that is killed, without a word.
 */
#ifndef LOOP_MEMORY_LIMIT_H
#define LOOP_MEMORY_LIMIT_H

#include "base/err.h"
#include "base/limits.h"

struct loop_memory_limit {
    uint64_t bytes;                   /* UINT64_MAX: nothing is known                        */
    char what[LIMIT_PATH_BYTES + 64]; /* whose limit: "this machine", or "control group /..." */
};

/* The least of the machine's memory and memory.max of the process's control group and of all groups
 * above it; memory.limit_in_bytes with cgroup v1. Reads /proc and /sys below root ("": those of
 * this machine; tests have their own). Blocking; any thread. */
void loop_memory_limit(const char *root, struct loop_memory_limit *out_limit);

/* LIMIT with a sentence when the process, called program, shall take more than the limit. need:
 * what it takes, where: the configuration keys that say so. */
icms_err loop_memory_check(const struct loop_memory_limit *limit, const char *program,
                           uint64_t need_bytes, const char *where,
                           struct err_why *why) ICMS_MUST_CHECK;

#endif
