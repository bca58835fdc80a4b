/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy/policy.h: which segment a drive gives up, and which blocks it writes when its write budget
 * is short.
 *
 * Decisions only: no I/O, no clock (time is passed in), memory taken at start. The store asks it on
 * its loop and `icms replay` asks it about a trace, so a replay shows what a drive does. One policy
 * is one drive; calls are not thread-safe.
 *
 * Eviction. Each segment has one number: its last access. Of the segments of a volume the one with
 * the smallest number is evicted, as a whole. Nothing is relocated.
 *
 * Life: policy_new -> events and questions -> policy_free.
 */
#ifndef POLICY_POLICY_H
#define POLICY_POLICY_H

#include <stdbool.h>

#include "base/err.h"
#include "base/limits.h"

struct policy;

struct policy_opts {
    uint64_t ghost_keys;       /* evicted and refused blocks to remember, about; 4 bytes each  */
    uint64_t budget_bytes_day; /* bytes that may be written a day; 0: any number               */
    uint64_t burst_bytes;      /* of them, that may be saved up; 0: a day's                    */
};

void policy_opts_init(struct policy_opts *opts);

/* NO_MEMORY. */
icms_err policy_new(const struct policy_opts *opts, uint64_t now_ms,
                    struct policy **out_policy) ICMS_MUST_CHECK;
void policy_free(struct policy **policy);

/* ---- eviction: the last access of a segment ------------------------------------------------- */

/* When a block of a segment was written, read or offered for the last time: a count of accesses of
 * the drive. 0: never. Whoever opens a drive gives its segments their order with it. */
struct policy_segment {
    uint64_t access; /* larger is more recent */
};

/* A block of the segment was written, read or offered. */
void policy_access(struct policy *policy, struct policy_segment *segment);

/* Whether the first segment is to be evicted before the second. */
static inline bool policy_before(const struct policy_segment *a, const struct policy_segment *b)
{
    return a->access < b->access;
}

/* ---- blocks that are gone ------------------------------------------------------------------- */

/* A block was written. hash names it in the drive (volume and key). */
void policy_written(struct policy *policy, uint64_t hash);

/* A block was evicted. */
void policy_evicted(struct policy *policy, uint64_t hash);

/* Whether it was, lately, and not written since. */
bool policy_was_evicted(const struct policy *policy, uint64_t hash);

/* ---- admission: with a write budget only ---------------------------------------------------- */

/* A block of a run was read, or offered while it was present. */
void policy_read(struct policy *policy, uint64_t run);

/* Whether to write a block that is offered; run names its run. A yes is charged to the budget.
 * Always yes without a budget. With one, blocks that were refused or evicted lately are taken while
 * it has anything. New ones are taken while a reserve for the former is nearly full, those of runs
 * that were read until a little more is gone. What is not taken is remembered. */
bool policy_admit(struct policy *policy, uint64_t hash, uint64_t run, uint64_t bytes,
                  uint64_t now_ms);

/* Gives back what a yes was charged: the block was not written after all. */
void policy_admit_undo(struct policy *policy, uint64_t bytes);

/* Charges what is written without asking: headers, dead maps, summaries. The budget may owe it. */
void policy_charge(struct policy *policy, uint64_t bytes, uint64_t now_ms);

/* Bytes that may be written at once, below 0: owed; INT64_MAX without a budget. */
int64_t policy_budget_left(struct policy *policy, uint64_t now_ms);

#endif
