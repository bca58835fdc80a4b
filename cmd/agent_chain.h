/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_chain.h: keys of a prompt's blocks, from what an engine makes them of.
 *
 *   chain   {"state": 64 digits of hex, "run_blocks": n, "block_tokens": n}: where the engine's
 *           chains begin (struct icms_chain; Scheme.begins of the Python package). tenant, model,
 *           weights, layout, ranks and the volume are hashed into the state: with a wrong one
 *           nothing is found, and never another's block
 *   tokens  the prompt's token ids, for engines whose block is made of its ids alone, as int32,
 *           little-endian (examples/llama): an array, or base64 of these bytes (agent_tokens.h);
 *           what is left behind the last whole block is no block, and a prompt shorter than a block
 *           has no key
 *   hashes  or the engine's own hashes of the blocks, in hex, first to last, for adapters that
 *           chain those (vLLM's KV events tell them to routers). Of a model whose entry says how
 *           vLLM hashes, tokens become these hashes first (agent_vllm.h), and then go the same way
 *
 * Pure; ctl's HTTP thread.
 */
#ifndef CMD_AGENT_CHAIN_H
#define CMD_AGENT_CHAIN_H

#include "agent_body.h"
#include "base/err.h"
#include "base/types.h"

/* What to do where hashes are numbers, as vLLM publishes a part of each by default. */
#define AGENT_CHAIN_WHOLE                                                                          \
    "send each hash whole, as a text of hex: vLLM publishes it with "                              \
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0"

/* How many keys a body with "chain" has at most, or hashes of tokens, where those are more. */
size_t agent_chain_most(const struct agent_body *body);

/* Makes them, and sets the block_tokens of the body. INVALID, NO_MEMORY with a sentence. */
icms_err agent_chain_keys(struct agent_body *body, struct err_why *why, struct key *keys,
                          size_t *out_count) ICMS_MUST_CHECK;

#endif
