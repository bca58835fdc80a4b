/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/agent_chain.c: see agent_chain.h.
 */
#include "agent_chain.h"

#include <string.h>

#include "base/bytes.h"
#include "icms/icms.h"

#define CHAIN_RUN_BLOCKS_MAX 65536
#define CHAIN_TOKENS_MAX     4096 /* of a block */
#define CHAIN_HASH_BYTES     64

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
    if (!number_read(json_object_get(said, "block_tokens"), CHAIN_TOKENS_MAX, out_block_tokens))
        return err_set(why, ICMS_INVALID, "chain: block_tokens: a whole number from 1 to %d",
                       CHAIN_TOKENS_MAX);
    *out_chain = chain;
    return ICMS_OK;
}

static icms_err chain_step(struct icms_chain *chain, const void *content, size_t bytes,
                           struct err_why *why, struct key *out_key)
{
    struct icms_key made;

    icms_chain_next(chain, content, bytes, &made);
    if (made.length == 0)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the hash of a block");
    *out_key = (struct key){.length = made.length};
    memcpy(out_key->bytes, made.bytes, sizeof(out_key->bytes));
    return ICMS_OK;
}

static icms_err chain_tokens(struct icms_chain *chain, uint32_t block_tokens, const json_t *tokens,
                             struct err_why *why, struct key *keys, size_t *out_count)
{
    le32 content[CHAIN_TOKENS_MAX];
    const json_t *value;
    size_t i;

    json_array_foreach(tokens, i, value)
    {
        if (!json_is_integer(value) || json_integer_value(value) < 0 ||
            json_integer_value(value) > INT32_MAX)
            return err_set(why, ICMS_INVALID, "tokens: entry %zu is not a token id, 0 to %d", i,
                           INT32_MAX);
        content[i % block_tokens] = le32_of((uint32_t)json_integer_value(value));
        if ((i + 1) % block_tokens != 0)
            continue;
        if (chain_step(chain, content, block_tokens * sizeof(content[0]), why, &keys[*out_count]) !=
            ICMS_OK)
            return ICMS_NO_MEMORY;
        (*out_count)++;
    }
    return ICMS_OK;
}

/* The ids are as they are hashed. */
static icms_err chain_ids(struct icms_chain *chain, uint32_t block_tokens,
                          const struct agent_body *body, struct err_why *why, struct key *keys,
                          size_t *out_count)
{
    size_t block_bytes = block_tokens * sizeof(le32);

    for (size_t i = 0; i < body->id_count; i++)
        if (body->ids[i * sizeof(le32) + 3] > 127)
            return err_set(why, ICMS_INVALID, "tokens: entry %zu is not a token id, 0 to %d", i,
                           INT32_MAX);
    for (; *out_count < body->id_count / block_tokens; (*out_count)++)
        if (chain_step(chain, body->ids + *out_count * block_bytes, block_bytes, why,
                       &keys[*out_count]) != ICMS_OK)
            return ICMS_NO_MEMORY;
    return ICMS_OK;
}

static icms_err chain_hashes(struct icms_chain *chain, const json_t *hashes, struct err_why *why,
                             struct key *keys, size_t *out_count)
{
    uint8_t content[CHAIN_HASH_BYTES];
    const json_t *value;
    size_t i;

    json_array_foreach(hashes, i, value)
    {
        size_t bytes = agent_body_hex(value, content, sizeof(content));

        if (json_is_integer(value))
            return err_set(why, ICMS_INVALID, "hashes: entry %zu is a number; " AGENT_CHAIN_WHOLE,
                           i);
        if (bytes == 0)
            return err_set(why, ICMS_INVALID,
                           "hashes: entry %zu is not 2 to %d digits of hex, two a byte", i,
                           2 * CHAIN_HASH_BYTES);
        if (chain_step(chain, content, bytes, why, &keys[i]) != ICMS_OK)
            return ICMS_NO_MEMORY;
        *out_count = i + 1;
    }
    if (*out_count == 0)
        return err_set(why, ICMS_INVALID, "hashes: there are none");
    return ICMS_OK;
}

size_t agent_chain_most(const struct agent_body *body)
{
    const json_t *chain = json_object_get(body->root, "chain");
    uint32_t block_tokens = 1;

    (void)number_read(json_object_get(chain, "block_tokens"), CHAIN_TOKENS_MAX, &block_tokens);
    return json_array_size(json_object_get(body->root, "tokens")) +
           json_array_size(json_object_get(body->root, "hashes")) + body->id_count / block_tokens;
}

icms_err agent_chain_keys(const struct agent_body *body, struct err_why *why, struct key *keys,
                          size_t *out_count)
{
    const json_t *root = body->root;
    const json_t *tokens = json_object_get(root, "tokens");
    const json_t *hashes = json_object_get(root, "hashes");
    struct icms_chain chain;
    uint32_t block_tokens = 1;
    icms_err err;

    if (json_object_get(root, "chain") == NULL)
        return err_set(why, ICMS_INVALID,
                       "%s: and where is chain, which says what keys of them begin with?",
                       tokens != NULL ? "tokens" : "hashes");
    if (json_object_get(root, "keys") != NULL || json_object_get(root, "names") != NULL)
        return err_set(why, ICMS_INVALID, "chain: its keys and others do not make one prefix");
    if ((tokens != NULL) == (hashes != NULL) ||
        (body->ids == NULL && !json_is_array(tokens != NULL ? tokens : hashes)))
        return err_set(why, ICMS_INVALID, "chain: with tokens or with hashes, an array");
    err = chain_read(json_object_get(root, "chain"), why, &chain, &block_tokens);
    if (err != ICMS_OK)
        return err;
    if (hashes != NULL)
        return chain_hashes(&chain, hashes, why, keys, out_count);
    err = body->ids != NULL ? chain_ids(&chain, block_tokens, body, why, keys, out_count)
                            : chain_tokens(&chain, block_tokens, tokens, why, keys, out_count);
    if (err == ICMS_OK && *out_count == 0)
        err = err_set(why, ICMS_INVALID, "tokens: less than a block of %u", block_tokens);
    return err;
}
