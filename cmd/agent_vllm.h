/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_vllm.h: the hashes of a prompt's blocks as vLLM makes them, from token ids.
 *
 * In vLLM (v1/core/kv_cache_utils.py, utils/hashing.py)
 *
 *   hash[0] = H( seed )                                  NONE_HASH; seed: a text
 *   hash[n] = H( (hash[n - 1], (id, id, ...), None) )    n = 1, 2, ...; ids of whole blocks
 *
 * where H is SHA-256 of a serialized Python object:
 *
 *   sha256       pickle, protocol 5, as CPython's C code writes it: PROTO, one FRAME, then
 *                SHORT_BINBYTES MEMOIZE of the hash, the ids, each as BININT1, BININT2 or BININT,
 *                TUPLE1 to TUPLE3, or MARK in front and TUPLE behind, MEMOIZE, NONE, TUPLE3,
 * MEMOIZE, STOP. Frames end at 64 KiB: the largest block here has 20 KiB. sha256_cbor  canonical
 * CBOR (RFC 7049, 3.9): arrays, a byte string, unsigned numbers, null.
 *
 * None stands for what vLLM calls extra keys: requests with a LoRA adapter, images, embeddings or a
 * cache_salt have some, and so other hashes, which are not made here.
 *
 * Pure; any thread.
 */
#ifndef CMD_AGENT_VLLM_H
#define CMD_AGENT_VLLM_H

#include "base/bytes.h"
#include "conf/conf.h"

#define AGENT_VLLM_TOKENS_MAX CONF_HASH_TOKENS_MAX /* of a block */
#define AGENT_VLLM_HASH_BYTES 32

struct agent_vllm {
    enum conf_model_hash hash;           /* SHA256 or SHA256_CBOR */
    uint8_t last[AGENT_VLLM_HASH_BYTES]; /* hash[n]               */
};

/* hash[0] of a seed of 0 to CONF_HASH_SEED_BYTES - 1 bytes, UTF-8. NO_MEMORY. */
icms_err agent_vllm_begin(struct agent_vllm *vllm, enum conf_model_hash hash,
                          const char *seed) ICMS_MUST_CHECK;

/* The hash of the next block is in last then. ids: 1 to AGENT_VLLM_TOKENS_MAX, each 0 to INT32_MAX.
 * NO_MEMORY. */
icms_err agent_vllm_next(struct agent_vllm *vllm, const le32 *ids, uint32_t count) ICMS_MUST_CHECK;

#endif
