/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay/tiers.h: a trace through the tiers of one server: its memory, a drive of its own and its
 * part of the pod.
 *
 * Memory is the arena's own code (agent/extent.h), drives are logs of segments with the store's
 * policy, and what moves between them is what the agent moves (policy/tier.h): a load looks in
 * memory, on the drive, then in the pod, and brings the block into memory; a block that is nowhere
 * is stored in memory and in the pod; with a share, those of its runs on the drive instead.
 */
#ifndef REPLAY_TIERS_H
#define REPLAY_TIERS_H

#include "replay/model.h"

enum replay_tier {
    REPLAY_DRAM,
    REPLAY_LOCAL,
    REPLAY_POD,
    REPLAY_TIERS,
};

extern const char *const replay_tier_names[REPLAY_TIERS];

struct replay_tiers_result {
    uint64_t refs, tokens; /* blocks asked for, tokens of all prompts             */
    uint64_t token_hits;   /* tokens of longest prefixes                          */
    struct {
        uint64_t block_hits;    /* of longest prefixes, by where they were        */
        uint64_t written_bytes; /* drives: all that goes to them                  */
        uint64_t refused;       /* drives: blocks that the write budget refused   */
        uint64_t segments;      /* drives                                         */
    } tiers[REPLAY_TIERS];
};

/* setup: sizes of blocks and segments, loops, and the write budget of the drive; blocks: of each
 * tier, 0 for none but the first; share: of the runs that lie on the drive and not in the pod, 0:
 * the pod has all. INVALID (a tier is too small), NO_MEMORY with a sentence. */
icms_err replay_tiers_run(const struct replay_trace *trace, const struct replay_setup *setup,
                          const uint64_t blocks[REPLAY_TIERS], double share, struct err_why *why,
                          struct replay_tiers_result *out_result) ICMS_MUST_CHECK;

#endif
