/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_chain.c: see agent_chain.h.
 */
#include "agent_chain.h"

#include <stdlib.h>
#include <string.h>

#include "agent_vllm.h"
#include "base/bytes.h"
#include "base/check.h"
#include "icms/icms.h"

#define CHAIN_RUN_BLOCKS_MAX 65536
#define CHAIN_HASH_BYTES     64
#define CHAIN_SUFFIX_BYTES   8

#define NO_HASH "no memory for the hash of a block"
#define NO_ID   "tokens: entry %zu is not a token id, 0 to %d"

static bool number_read(const json_t *value, json_int_t most, uint32_t *out_number)
{
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > most)
        return false;
    *out_number = (uint32_t)json_integer_value(value);
    return true;
}

/* Where chains begin. */
static icms_err chain_read(const json_t *said, struct err_why *why, struct icms_chain *out_chain,
                           uint32_t *out_block_tokens)
{
    struct icms_chain chain = {.blocks = 0};

    if (!json_is_object(said) || json_object_size(said) != 3)
        return err_set(why, ICMS_INVALID,
                       "chain: an object with state, run_blocks and block_tokens");
    if (agent_body_hex(json_object_get(said, "state"), chain.state, sizeof(chain.state)) !=
        sizeof(chain.state))
        return err_set(why, ICMS_INVALID, "chain: state: 64 digits of hex");
    if (!number_read(json_object_get(said, "run_blocks"), CHAIN_RUN_BLOCKS_MAX, &chain.run_blocks))
        return err_set(why, ICMS_INVALID, "chain: run_blocks: a whole number from 1 to %d",
                       CHAIN_RUN_BLOCKS_MAX);
    if (!number_read(json_object_get(said, "block_tokens"), CONF_BLOCK_TOKENS_MAX,
                     out_block_tokens))
        return err_set(why, ICMS_INVALID, "chain: block_tokens: a whole number from 1 to %d",
                       CONF_BLOCK_TOKENS_MAX);
    *out_chain = chain;
    return ICMS_OK;
}

/* A chain, and what is between tokens or hashes and the content of a block. */
struct chain {
    struct icms_chain keys;
    uint32_t block_tokens;
    uint8_t suffix[CHAIN_SUFFIX_BYTES]; /* behind each hash                           */
    size_t suffix_bytes;                /* 0: none                                    */
    uint32_t hash_tokens;               /* vLLM hashes so many; 0: ids are hashed here */
    struct agent_vllm vllm;
};

/* What a model has besides. */
static icms_err chain_model(struct chain *chain, const struct conf_model *model,
                            struct err_why *why)
{
    chain->suffix_bytes = strlen(model->suffix) / 2;
    check(hex_read(model->suffix, chain->suffix_bytes, chain->suffix)); /* conf_models_rules */
    if (model->hash == CONF_MODEL_HASH_NONE)
        return ICMS_OK;
    chain->hash_tokens = model->hash_tokens;
    return agent_vllm_begin(&chain->vllm, model->hash, model->hash_seed) == ICMS_OK
               ? ICMS_OK
               : err_set(why, ICMS_NO_MEMORY, NO_HASH);
}

static icms_err chain_step(struct chain *chain, const void *content, size_t bytes,
                           struct err_why *why, struct key *out_key)
{
    struct icms_key made;

    icms_chain_next(&chain->keys, content, bytes, &made);
    if (made.length == 0)
        return err_set(why, ICMS_NO_MEMORY, NO_HASH);
    *out_key = (struct key){.length = made.length};
    memcpy(out_key->bytes, made.bytes, sizeof(out_key->bytes));
    return ICMS_OK;
}

/* The engine's hash of a block. */
static icms_err chain_step_hash(struct chain *chain, const uint8_t *hash, size_t bytes,
                                struct err_why *why, struct key *out_key)
{
    uint8_t content[CHAIN_HASH_BYTES + CHAIN_SUFFIX_BYTES];

    memcpy(content, hash, bytes);
    memcpy(content + bytes, chain->suffix, chain->suffix_bytes);
    return chain_step(chain, content, bytes + chain->suffix_bytes, why, out_key);
}

/* The ids of a block. What vLLM hashes in several steps has the hash of the last one. */
static icms_err chain_step_ids(struct chain *chain, const le32 *ids, struct err_why *why,
                               struct key *out_key)
{
    if (chain->hash_tokens == 0)
        return chain_step(chain, ids, chain->block_tokens * sizeof(ids[0]), why, out_key);
    for (uint32_t i = 0; i < chain->block_tokens; i += chain->hash_tokens)
        if (agent_vllm_next(&chain->vllm, ids + i, chain->hash_tokens) != ICMS_OK)
            return err_set(why, ICMS_NO_MEMORY, NO_HASH);
    return chain_step_hash(chain, chain->vllm.last, sizeof(chain->vllm.last), why, out_key);
}

/* ids: room for those of a block. */
static icms_err chain_tokens_into(struct chain *chain, const json_t *tokens, le32 *ids,
                                  struct err_why *why, struct key *keys, size_t *out_count)
{
    const json_t *value;
    size_t i;

    json_array_foreach(tokens, i, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > INT32_MAX)
            return err_set(why, ICMS_INVALID, NO_ID, i, INT32_MAX);
        ids[i % chain->block_tokens] = le32_of((uint32_t)json_integer_value(value));
        if ((i + 1) % chain->block_tokens != 0)
            continue;
        if (chain_step_ids(chain, ids, why, &keys[*out_count]) != ICMS_OK)
            return ICMS_NO_MEMORY;
        (*out_count)++;
    }
    return ICMS_OK;
}

static icms_err chain_tokens(struct chain *chain, const json_t *tokens, struct err_why *why,
                             struct key *keys, size_t *out_count)
{
    le32 *ids = calloc(chain->block_tokens, sizeof(*ids)); /* 256 KiB at most */
    icms_err err;

    if (ids == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the ids of a block");
    err = chain_tokens_into(chain, tokens, ids, why, keys, out_count);
    free(ids);
    return err;
}

/* The ids are as they are hashed. */
static icms_err chain_ids(struct chain *chain, const struct agent_body *body, struct err_why *why,
                          struct key *keys, size_t *out_count)
{
    const le32 *ids = (const le32 *)(const void *)body->ids;

    for (size_t i = 0; i < body->id_count; i++)
        if (le32_get(ids[i]) > INT32_MAX)
            return err_set(why, ICMS_INVALID, NO_ID, i, INT32_MAX);
    for (; *out_count < body->id_count / chain->block_tokens; (*out_count)++)
        if (chain_step_ids(chain, ids + *out_count * chain->block_tokens, why, &keys[*out_count]) !=
            ICMS_OK)
            return ICMS_NO_MEMORY;
    return ICMS_OK;
}

static icms_err chain_hashes(struct chain *chain, const json_t *hashes, struct err_why *why,
                             struct key *keys, size_t *out_count)
{
    uint8_t hash[CHAIN_HASH_BYTES];
    const json_t *value;
    size_t i;

    json_array_foreach(hashes, i, value)
    {
        size_t bytes = agent_body_hex(value, hash, sizeof(hash));

        if (json_is_integer(value))
            return err_set(why, ICMS_INVALID, "hashes: entry %zu is a number; " AGENT_CHAIN_WHOLE,
                           i);
        if (bytes == 0)
            return err_set(why, ICMS_INVALID,
                           "hashes: entry %zu is not 2 to %d digits of hex, two a byte", i,
                           2 * CHAIN_HASH_BYTES);
        if (chain->hash_tokens != 0 && bytes != AGENT_VLLM_HASH_BYTES)
            return err_set(why, ICMS_INVALID,
                           "hashes: entry %zu has %zu bytes, where a hash of vLLM's has "
                           "%d: " AGENT_CHAIN_WHOLE,
                           i, bytes, AGENT_VLLM_HASH_BYTES);
        if (chain_step_hash(chain, hash, bytes, why, &keys[i]) != ICMS_OK)
            return ICMS_NO_MEMORY;
        *out_count = i + 1;
    }
    return ICMS_OK;
}

size_t agent_chain_most(const struct agent_body *body)
{
    const json_t *chain = json_object_get(body->root, "chain");
    uint32_t block_tokens = 1;

    (void)number_read(json_object_get(chain, "block_tokens"), CONF_BLOCK_TOKENS_MAX, &block_tokens);
    if (body->model != NULL && body->model->hash != CONF_MODEL_HASH_NONE)
        block_tokens = body->model->hash_tokens;
    return json_array_size(json_object_get(body->root, "tokens")) +
           json_array_size(json_object_get(body->root, "hashes")) + body->id_count / block_tokens;
}

icms_err agent_chain_keys(struct agent_body *body, struct err_why *why, struct key *keys,
                          size_t *out_count)
{
    const json_t *root = body->root;
    const json_t *tokens = json_object_get(root, "tokens");
    const json_t *hashes = json_object_get(root, "hashes");
    const char *begin = body->model != NULL ? "model" : "chain";
    struct chain chain = {.block_tokens = 1};
    icms_err err;

    if (json_object_get(root, "chain") == NULL)
        return err_set(why, ICMS_INVALID,
                       "%s: and where is chain, which says what keys of them begin with?",
                       tokens != NULL ? "tokens" : "hashes");
    if (json_object_get(root, "keys") != NULL || json_object_get(root, "names") != NULL)
        return err_set(why, ICMS_INVALID,
                       "%s: its keys and others do not make one prefix: send tokens or hashes, and "
                       "neither keys nor names",
                       begin);
    if ((tokens != NULL) == (hashes != NULL) ||
        (body->ids == NULL && !json_is_array(tokens != NULL ? tokens : hashes)))
        return err_set(why, ICMS_INVALID,
                       "%s: send tokens (an array or base64) or hashes (an array), one of them",
                       begin);
    err = chain_read(json_object_get(root, "chain"), why, &chain.keys, &chain.block_tokens);
    if (err == ICMS_OK && body->model != NULL)
        err = chain_model(&chain, body->model, why);
    if (err != ICMS_OK)
        return err;
    body->block_tokens = chain.block_tokens;
    if (hashes != NULL)
        return chain_hashes(&chain, hashes, why, keys, out_count);
    return body->ids != NULL ? chain_ids(&chain, body, why, keys, out_count)
                             : chain_tokens(&chain, tokens, why, keys, out_count);
}
