/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy/policy.h: what a drive keeps, what it writes again and what it does not write at all.
 *
 * Decisions only: no I/O, no clock (time is passed in), memory taken at start. The store asks it
 * on its loop and `icms replay` asks it about a trace, so that what a replay shows is what a drive
 * does. One policy is one drive; calls are not thread-safe.
 *
 * The model. A drive is a log of segments; reclaim takes whole ones. Every segment has a *due*
 * time: the mean of the times at which its blocks were last wanted. When one is reclaimed, its live
 * blocks that were read late enough since then are written again; the others are evicted. A chain
 * is always read from its first block on: the blocks in front are wanted at least as lately as
 * those behind, and leave after them.
 *
 * Life: policy_new -> policy_volume_share ... -> events and questions -> policy_free.
 */
#ifndef POLICY_POLICY_H
#define POLICY_POLICY_H

#include <stdbool.h>

#include "base/err.h"
#include "base/limits.h"

struct policy;

/* What is known about a block, for its owner to keep beside the block's place: how often it was
 * read (0 to 3), and if that was since it was written here, in which step of its volume's clock.
 * 0: nothing. */
typedef uint8_t policy_state;
#define POLICY_STATE_BITS 5

struct policy_opts {
    uint64_t capacity_bytes;   /* of the drive                                                 */
    uint64_t ghost_keys;       /* evicted and refused blocks that are remembered; 4 bytes each */
    uint64_t seed;             /* of the hash that remembers them                              */
    uint64_t budget_bytes_day; /* bytes that may be written a day; 0: any number               */
    uint64_t burst_bytes;      /* of them, that may be saved up; 0: a day's                    */
    uint32_t carry_permille;   /* of the admitted bytes that may be carried over; default 146  */
};

void policy_opts_init(struct policy_opts *opts);

/* NO_MEMORY. */
icms_err policy_new(const struct policy_opts *opts, uint64_t now_ms,
                    struct policy **out_policy) ICMS_MUST_CHECK;
void policy_free(struct policy **policy);

/* Says how many bytes of the drive a volume may hold; it sets the pace of its clock. Before its
 * first event, and whenever that changes. */
void policy_volume_share(struct policy *policy, uint32_t volume, uint64_t bytes);

/* ---- events: what happens to blocks --------------------------------------------------------- */

/* A block that was not there was written; hash names it in the drive (volume and key). Its state:
 * one that was there lately begins with what it had. */
policy_state policy_written(struct policy *policy, uint32_t volume, uint64_t hash, uint64_t bytes,
                            uint64_t now_ms);

/* A block was asked for: read, or offered again. run names its run in the drive, as hash names the
 * block. Its new state. */
policy_state policy_read(struct policy *policy, uint32_t volume, uint64_t run, policy_state state);

/* A block was taken out to make room. */
void policy_evicted(struct policy *policy, uint64_t hash, policy_state state);

/* ---- segments ------------------------------------------------------------------------------- */

/* When the blocks of a segment were last wanted; zeroed when a life begins. */
struct policy_segment {
    uint64_t sum_ms; /* of the times */
    uint32_t blocks; /* so many      */
};

/* A block last wanted at this time was put into the segment. */
static inline void policy_segment_add(struct policy_segment *segment, uint64_t wanted_ms)
{
    segment->sum_ms += wanted_ms;
    segment->blocks++;
}

/* The mean; 0 when nothing is known. */
static inline uint64_t policy_segment_due(const struct policy_segment *segment)
{
    return segment->blocks != 0 ? segment->sum_ms / segment->blocks : 0;
}

/* ---- questions ------------------------------------------------------------------------------ */

struct policy_verdict {
    bool carry;         /* write it again; else evict                           */
    policy_state state; /* carry: of the block from then on                     */
    uint64_t wanted_ms; /* carry: what to tell policy_segment_add               */
};

/* What to do with a live block of a segment under reclaim that was due at due_ms. A yes is charged
 * to the budgets; policy_carry_undo gives it back when the block was not written after all. */
struct policy_verdict policy_carry(struct policy *policy, uint32_t volume, policy_state state,
                                   uint64_t bytes, uint64_t due_ms, uint64_t now_ms);
void policy_carry_undo(struct policy *policy, uint64_t bytes);

/* Whether to write a block that is offered. A yes is charged to the budget. Always yes without a
 * budget. When the budget runs short, blocks that were refused or evicted lately are taken, then
 * while there is a little more those of runs that were read, and others are not: those are
 * remembered. */
bool policy_admit(struct policy *policy, uint64_t hash, uint64_t run, uint64_t bytes,
                  uint64_t now_ms);

/* Gives back what a yes was charged: the block was not written after all. */
void policy_admit_undo(struct policy *policy, uint64_t bytes);

/* Charges what is written without asking: tombstones, headers, summaries. The budget may owe it. */
void policy_charge(struct policy *policy, uint64_t bytes, uint64_t now_ms);

/* Bytes that may be written at once; UINT64_MAX without a budget. */
uint64_t policy_budget_left(struct policy *policy, uint64_t now_ms);

/* Memory it holds. */
uint64_t policy_bytes(const struct policy *policy);

#endif
