/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every key of an agent's models. See keys.c.
 */
#include "conf/keys_int.h"

static const char *const model_ofs[] = {
    [CONF_MODEL_TOKENS] = "tokens",
    [CONF_MODEL_HASHES] = "hashes",
    NULL,
};

static const char *const model_hashes[] = {
    [CONF_MODEL_HASH_NONE] = "none",
    [CONF_MODEL_SHA256] = "sha256",
    [CONF_MODEL_SHA256_CBOR] = "sha256_cbor",
    NULL,
};

static const struct conf_key model_keys[] = {
    {"name", CONF_PATH, true, AT(struct conf_model, name), .example = "meta-llama/Llama-3.1-8B",
     .doc = "The name by which routers know it, up to 127 bytes."},
    {"volume", CONF_NAME, true, AT(struct conf_model, volume), .example = "kv",
     .doc = "The volume that its engines use, by its name in volumes. Over an http port without "
            "token and client_ca a volume that lists users or groups does not exist: requests for "
            "the model get status 400, as for one that is not listed, and the agent warns of it at "
            "the start."},
    {"state", CONF_PATH, true, AT(struct conf_model, state),
     .example = "8d5b6dd6cdd5e4e9f1d6d6a4ad2d5e0f8a7f3f2fd3c1f7f0a1b2c3d4e5f60718",
     .doc = "Where the keys of its engines begin, 64 digits of hex: the adapters for vLLM log this "
            "entry, Scheme.begins() of the Python package returns it. It changes with weights, "
            "configuration and rank of an engine, and with the generation of the volume; with a "
            "wrong one no block is found, and never another's."},
    {"block_tokens", CONF_COUNT, true, AT(struct conf_model, block_tokens), .min = 1,
     .max = CONF_BLOCK_TOKENS_MAX, .example = "16", .doc = "Tokens of a block."},
    {"of", CONF_CHOICE, true, AT(struct conf_model, of), .choices = model_ofs, .example = "hashes",
     .doc = "What keys are made of: tokens, the ids of each block alone, as examples/llama does; "
            "hashes, the engine's own of each block, as the adapters for vLLM do. The other one is "
            "refused in requests, except for tokens with hash."},
    {"suffix", CONF_PATH, false, AT(struct conf_model, suffix), .computed = "none",
     .example = "'00000000'",
     .doc =
         "Up to 16 digits of hex behind each hash: IcmsTier has the number of its KV cache group, "
         "00000000."},
    {"hash", CONF_CHOICE, false, AT(struct conf_model, hash), .choices = model_hashes,
     .fallback = "none",
     .doc =
         "How vLLM hashes the tokens of its blocks: its --prefix-caching-hash-algo. Set it, with "
         "of: hashes, for routers and gateways that have the tokens of a prompt and not its "
         "hashes: the agent then makes the hashes, and requests have either. The adapters for "
         "vLLM log it, unless it is another one: xxhash and xxhash_cbor are unsupported. none: "
         "tokens are refused. Of requests with a LoRA adapter, images, prompt embeddings or a "
         "cache_salt vLLM hashes these, too: tokens stand for a request without them."},
    {"hash_seed", CONF_PATH, false, AT(struct conf_model, hash_seed),
     .computed = "vllm-none-hash, that of vLLM 0.32 without PYTHONHASHSEED", .example = "'0'",
     .doc =
         "PYTHONHASHSEED of the engines, with which vLLM's hashes begin, up to 63 bytes. Only "
         "with hash. It has digits or is random, as Python takes it, or is what vLLM has without "
         "it; the agent warns of others at the start. With a wrong one no block is found, and "
         "never another's."},
    {"hash_tokens", CONF_COUNT, false, AT(struct conf_model, hash_tokens), .min = 1,
     .max = CONF_HASH_TOKENS_MAX, .computed = "block_tokens", .example = "16",
     .doc = "Tokens of a block that vLLM hashes, where block_tokens is a multiple of it, as with "
            "blocks_per_chunk of IcmsTier. Only with hash, and required there when block_tokens is "
            "more than 4096."},
};
const struct conf_table conf_model_table = {"a model", KEYS(model_keys)};
