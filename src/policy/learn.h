/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy/learn.h: which new blocks come back, learnt by where in their prompts they lie
 * (base/prompt.h). Private to src/policy.
 *
 * Each hint is a cell with two counters: blocks that were offered for the first time, and those of
 * them that were offered or read again. Both fade, so a drive follows what its clients do. What may
 * be written goes to the cells that come back most: their share of what is new is what the budget
 * has left besides what is known, and a threshold divides them there.
 *
 * Life: learn_new -> learn_back, learn_offered, learn_gained, learn_spent, learn_level, learn_wants
 * -> learn_free.
 */
#ifndef POLICY_LEARN_H
#define POLICY_LEARN_H

#include <stdbool.h>

#include "base/err.h"
#include "base/prompt.h"

struct learn;

/* Remembers about so many blocks that were offered, in 4 bytes each. NO_MEMORY. */
icms_err learn_new(uint64_t keys, struct learn **out_learn) ICMS_MUST_CHECK;
void learn_free(struct learn **learn);
uint64_t learn_bytes(const struct learn *learn);

/* A block was read, or offered again. hash names it in the drive. */
void learn_back(struct learn *learn, uint64_t hash);

/* A block of which nothing is known was offered, with a hint. */
void learn_offered(struct learn *learn, uint64_t hash, prompt_hint hint, uint64_t bytes);

/* Bytes that the budget gained; and that it was asked for, or spends, besides learn_offered. */
void learn_gained(struct learn *learn, double bytes);
void learn_spent(struct learn *learn, double bytes);

/* How much of what the budget should hold is there, 1 for all. From time to time this makes the
 * threshold anew. */
void learn_level(struct learn *learn, double level);

/* Whether blocks with this hint come back often enough. run names the block's run in the drive:
 * where only a part of them is wanted, it is whole runs. */
bool learn_wants(const struct learn *learn, prompt_hint hint, uint64_t run);

#endif
