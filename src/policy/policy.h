/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy/policy.h: what a drive keeps, what it writes again and what it does not write at all.
 *
 * Decisions only: no I/O, no clock (time is passed in), memory taken at start. The store asks it
 * on its loop and `icms replay` asks it about a trace, so that what a replay shows is what a drive
 * does. One policy is one drive; calls are not thread-safe.
 *
 * The model. A drive is a log of segments; reclaim takes whole ones. Every volume has a clock that
 * steps as it is written, and a step on it before which blocks are *due*: they were not wanted for
 * so long that they have to go. Reclaim takes the segment that has the most of them; what is not
 * due is written again, the rest is evicted. A chain is always read from its first block on: the
 * blocks in front are wanted at least as lately as those behind, and leave after them.
 *
 * Life: policy_new -> policy_volume_share ... -> events and questions -> policy_free.
 */
#ifndef POLICY_POLICY_H
#define POLICY_POLICY_H

#include <stdbool.h>

#include "base/err.h"
#include "base/limits.h"
#include "base/prompt.h"

struct policy;

/* What is known about a block, for its owner to keep beside the block's place: how often it was
 * read (0 to 3), and at which step of its volume's clock it counts as wanted. 0: nothing. */
typedef uint8_t policy_state;

/* Steps of a clock until they repeat. */
#define POLICY_STEPS 63

/* Of the blocks of a segment: how many count as wanted at each step; zeroed when a life begins. */
struct policy_segment {
    uint16_t wanted[POLICY_STEPS];
};

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

/* A block that was not there was written into a segment; hash names it in the drive (volume and
 * key). Its state: one that was there lately begins with the reads that it had, and one more. */
policy_state policy_written(struct policy *policy, uint32_t volume, struct policy_segment *segment,
                            uint64_t hash, uint64_t bytes, uint64_t now_ms);

/* A block was asked for: read, or offered again. run names its run in the drive, as hash names the
 * block. Its new state. */
policy_state policy_read(struct policy *policy, uint32_t volume, struct policy_segment *segment,
                         uint64_t hash, uint64_t run, policy_state state, uint64_t now_ms);

/* A block came into a segment, or went out of it, with this state. */
void policy_segment_add(struct policy_segment *segment, policy_state state);
void policy_segment_sub(struct policy_segment *segment, policy_state state);

/* A block was taken out to make room. */
void policy_evicted(struct policy *policy, uint64_t hash, policy_state state);

/* ---- questions ------------------------------------------------------------------------------ */

/* A choice among the segments of one volume: which to reclaim. */
struct policy_choice {
    void *best;        /* the owner of the segment to take so far; NULL: none      */
    int32_t due;       /* what counts as wanted at this step or before is          */
    int32_t end;       /* the last step there can be                               */
    bool many;         /* segments have many blocks: the one with the lowest mean goes */
    bool rich;         /* all of a segment may be carried over                     */
    bool spares;       /* set by the caller: what is not due stays where it is     */
    uint32_t best_due; /* its due blocks, in parts of all; 0: too few              */
    int32_t best_step; /* then: at which step all of them would be; many: 64 times its mean */
};

/* Reclaim that begins frees one segment of so many before it ends: what it carries over lies
 * together then, apart from what is new. */
#define POLICY_BATCH_PART 200

/* Begins a choice. carry_bytes: what may be carried over of a segment, at most; 0: nobody has time
 * for it. Segments are offered the oldest first, each with the number
 * of its live blocks. policy_choice_end gives what was offered with the best one, or NULL. */
void policy_choice_begin(const struct policy *policy, uint32_t volume, uint64_t carry_bytes,
                         struct policy_choice *out_choice);
void policy_choice_add(struct policy_choice *choice, const struct policy_segment *segment,
                       uint32_t blocks, void *owner);
void *policy_choice_end(struct policy *policy, uint32_t volume, const struct policy_choice *choice);

/* Whether a block with this state is due. */
bool policy_due(const struct policy *policy, uint32_t volume, policy_state state);

/* Whether to write a live block of a segment under reclaim again; else it is to be evicted. It
 * keeps its state. A yes is charged to the budgets; policy_carry_undo gives it back when the block
 * was not written after all. */
bool policy_carry(struct policy *policy, uint32_t volume, policy_state state, uint64_t bytes,
                  uint64_t now_ms);
void policy_carry_undo(struct policy *policy, uint64_t bytes);

/* Whether to write a block that is offered. A yes is charged to the budget. Always yes without a
 * budget. With one, blocks that were refused or evicted lately are taken while it has anything. Of
 * new ones with a hint those are taken that lie where blocks come back (learn.h); of those without
 * (0), when the budget runs short, those of runs that were read while there is a little more.
 * What is not taken is remembered. */
bool policy_admit(struct policy *policy, uint64_t hash, uint64_t run, prompt_hint hint,
                  uint64_t bytes, uint64_t now_ms);

/* Gives back what a yes was charged: the block was not written after all. */
void policy_admit_undo(struct policy *policy, uint64_t bytes);

/* Charges what is written without asking: tombstones, headers, summaries. The budget may owe it. */
void policy_charge(struct policy *policy, uint64_t bytes, uint64_t now_ms);

/* Bytes that may be written at once; UINT64_MAX without a budget. */
uint64_t policy_budget_left(struct policy *policy, uint64_t now_ms);

/* Memory it holds. */
uint64_t policy_bytes(const struct policy *policy);

#endif
