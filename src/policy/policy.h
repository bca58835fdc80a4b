/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy/policy.h: which segment a drive gives up, and which blocks it writes when its write budget
 * is short.
 *
 * Decisions only: no I/O, no clock (time is passed in), memory taken at start. The store asks it on
 * its loop and `icms replay` asks it about a trace, so a replay shows what a drive does. One policy
 * is one drive; calls are not thread-safe.
 *
 * Eviction. Of the segments of a volume the one whose last access is oldest, the victim, is
 * evicted, as a whole. A segment of which all blocks but one were accessed before that lives for
 * that one: the one is relocated, written again elsewhere, and the segment is the next victim. Of
 * all that is written at most one byte in POLICY_RELOCATE_PART may be for that.
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
    uint64_t ghost_keys; /* evicted and refused blocks to remember, about, 1,024 at least; 4 bytes
                            each */
    uint64_t budget_bytes_day; /* bytes that may be written a day; 0: any number               */
    uint64_t burst_bytes;      /* of them, that may be saved up; 0: a day's                    */
};

/* NO_MEMORY. */
icms_err policy_new(const struct policy_opts *opts, uint64_t now_ms,
                    struct policy **out_policy) ICMS_MUST_CHECK;
void policy_free(struct policy **policy);

/* ---- eviction: the last access of a segment ------------------------------------------------- */

/* Last accesses, as counts of the drive's accesses: larger is more recent, 0 is never. Whoever
 * opens a drive gives its segments their order with policy_access_all. */
struct policy_segment {
    uint64_t access; /* when a block was written, read or offered               */
    uint64_t others; /* the same of all blocks but the one that was then, `last` */
    uint64_t last;   /* its name in the drive; 0: not known                     */
};

/* A block of the segment was written, read or offered. hash: its name in the drive, not 0. */
void policy_access(struct policy *policy, struct policy_segment *segment, uint64_t hash);

/* Any number of its blocks were. */
void policy_access_all(struct policy *policy, struct policy_segment *segment);

/* Whether the first segment is to be evicted before the second. */
static inline bool policy_before(const struct policy_segment *a, const struct policy_segment *b)
{
    return a->access < b->access;
}

/* Whether a segment lives for its last accessed block alone: the others were accessed before any of
 * the victim, or with it. */
static inline bool policy_is_held(const struct policy_segment *segment,
                                  const struct policy_segment *victim)
{
    return segment->last != 0 && segment->others != 0 && segment->others <= victim->access &&
           segment->access > victim->access;
}

/* Of what is written so large a part may be relocated, with what overhead adds under a twentieth.
 */
#define POLICY_RELOCATE_PART 23

/* Whether a block of so many bytes may be relocated now. A yes is charged. Never with a write
 * budget, which is for blocks that are stored. */
bool policy_relocate(struct policy *policy, uint64_t bytes);

/* The block was relocated: the segment is as old as its other blocks, unless one of them was
 * accessed since. */
void policy_relocated(struct policy_segment *segment, uint64_t hash);

/* ---- blocks that are gone ------------------------------------------------------------------- */

/* A block was written, and so many bytes for it. hash names it in the drive (volume and key). */
void policy_written(struct policy *policy, uint64_t hash, uint64_t bytes);

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
