/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the body of POST /v1/prestage and of POST /v1/match: hints within their bounds, or
 * refused with a sentence. What is a question is an order as well, of the same keys.
 */
#include <stdlib.h>
#include <string.h>

#include "agent_match.h"
#include "agent_prestage.h"
#include "base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define STATE "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

/* What "model" may stand for. */
static const struct conf_agent conf = {
    .volume_count = 1,
    .volumes = {{.name = "kv", .run_blocks = 8}},
    .model_count = 3,
    .models = {{"m", "kv", STATE, "0a", 2, CONF_MODEL_HASHES},
               {"v", "kv", STATE, "", 2, CONF_MODEL_HASHES, CONF_MODEL_SHA256, 2, "0"},
               {"w", "kv", STATE, "0a", 2, CONF_MODEL_HASHES, CONF_MODEL_SHA256_CBOR, 1, "0"}},
};

static void keys_check(const struct key *keys, size_t count, size_t bytes)
{
    check(count <= bytes);
    for (size_t i = 0; i < count; i++)
        check(keys[i].length >= 1 && keys[i].length <= LIMIT_KEY_BYTES);
}

static void match_check(const char *body, size_t bytes, icms_err err,
                        const struct agent_hints *hints)
{
    struct err_why why = {""};
    char volume[LIMIT_NAME_BYTES];
    struct key *keys = NULL;
    size_t count = 0;
    uint32_t block_tokens = 0;

    if (agent_match_read(body, bytes, &conf, 1, &why, volume, &keys, &count, &block_tokens) !=
        ICMS_OK) {
        check(why.text[0] != '\0' && keys == NULL);
        return;
    }
    keys_check(keys, count, bytes);
    check(count > 0 || block_tokens > 0);
    check(err == ICMS_OK && hints->count == count && strcmp(hints->volume, volume) == 0);
    check(memcmp(hints->keys, keys, count * sizeof(keys[0])) == 0);
    free(keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct err_why why = {""};
    char volume[LIMIT_NAME_BYTES];
    struct agent_hints hints = {0};
    char *body;
    icms_err err;

    if (bytes > LIMIT_HTTP_BODY_BYTES)
        return 0;
    body = malloc(bytes + 1); /* its end is watched */
    check(body != NULL);
    memcpy(body, data, bytes);
    err = agent_prestage_read(body, bytes, &conf, 1, &why, volume, &hints);
    if (err == ICMS_OK) {
        check(memchr(volume, 0, sizeof(volume)) != NULL && hints.volume == volume);
        check(hints.priority <= 3);
        check(hints.deadline_ms >= 1 && hints.deadline_ms <= 600000);
        keys_check(hints.keys, hints.count, bytes);
    } else {
        check(why.text[0] != '\0' && hints.keys == NULL);
    }
    match_check(body, bytes, err, &hints);
    free((void *)(uintptr_t)hints.keys);
    free(body);
    return 0;
}
