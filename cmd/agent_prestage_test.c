/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of POST /v1/prestage: what is right is read as it is written, what is wrong is refused
 * with a sentence, and no body whatever does more than that.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent_prestage.h"
#include "agent_vllm.h"
#include "base/check.h"
#include "base/limits.h"
#include "icms/icms.h"

#define DIGITS "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define STATE  "\"" DIGITS "\""
#define CHAIN2 "{\"state\": " STATE ", \"run_blocks\": 8, \"block_tokens\": 2}"

static struct conf_agent conf = {
    .volume_count = 2,
    .volumes = {{.name = "kv", .run_blocks = 8}, {.name = "b", .run_blocks = 2}},
    .model_count = 5,
    .models = {{"m", "kv", DIGITS, .block_tokens = 16},
               {"org/m", "b", DIGITS, .block_tokens = 2},
               {"h", "kv", DIGITS, "0a", 16, CONF_MODEL_HASHES},
               {"v", "kv", DIGITS, "", 2, CONF_MODEL_HASHES, CONF_MODEL_SHA256, 2, "0"},
               {"chunk", "kv", DIGITS, "00000000", 4, CONF_MODEL_HASHES, CONF_MODEL_SHA256, 2,
                "0"}},
};
static char volume[LIMIT_NAME_BYTES];
static struct agent_hints hints;
static struct err_why why;
static uint64_t volumes = UINT64_MAX;

static icms_err read_text(const char *text)
{
    free((void *)(uintptr_t)hints.keys);
    hints = (struct agent_hints){0};
    why.text[0] = '\0';
    return agent_prestage_read(text, strlen(text), &conf, volumes, &why, volume, &hints);
}

static void what_is_right_is_read(void **state)
{
    struct icms_key named;

    assert_int_equal(read_text("{\"volume\": \"kv\", \"keys\": [\"00aBff\", "
                               "\"000102030405060708090a0b0c0d0e0f\"], \"names\": [\"x\\u00e4\"], "
                               "\"deadline_ms\": 600000, \"priority\": 3, \"tier\": \"dram\", "
                               "\"pin_seconds\": 86400}"),
                     ICMS_OK);
    assert_string_equal(hints.volume, "kv");
    assert_int_equal(hints.count, 3);
    assert_int_equal(hints.deadline_ms, 600000);
    assert_int_equal(hints.priority, 3);
    assert_int_equal(hints.pin_s, 86400);
    assert_int_equal(hints.tier, ICMS_TIER_DRAM);
    assert_int_equal(hints.keys[0].length, 3);
    assert_memory_equal(hints.keys[0].bytes, "\x00\xab\xff\0", 4);
    assert_int_equal(hints.keys[1].length, 16);
    assert_int_equal(hints.keys[1].bytes[15], 15);
    icms_key_from_name("x\xc3\xa4", 3, &named);
    assert_memory_equal(hints.keys[2].bytes, named.bytes, sizeof(named.bytes));
    assert_int_equal(read_text("{\"volume\": \"kv\", \"names\": [\"a\"]}"), ICMS_OK);
    assert_int_equal(hints.deadline_ms, 1000);
    assert_int_equal(hints.priority, 0);
    assert_int_equal(hints.pin_s, 0);
    assert_int_equal(hints.tier, ICMS_TIER_DRAM);
    assert_int_equal(read_text("{\"volume\": \"kv\", \"names\": [\"a\"], \"tier\": \"local\"}"),
                     ICMS_OK);
    assert_int_equal(hints.tier, ICMS_TIER_LOCAL);
    assert_false(hints.once);
    assert_int_equal(read_text("{\"volume\": \"kv\", \"names\": [\"a\"], \"once\": true}"),
                     ICMS_OK);
    assert_true(hints.once);
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *text, *why;
        icms_err err;
    } cases[] = {
        {"", "not JSON", ICMS_INVALID},
        {"[]", "object", ICMS_INVALID},
        {"{\"volume\": \"kv\"", "not JSON", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"volume\": \"kv\"}", "not JSON", ICMS_INVALID},
        {"{\"volume\": \"kv\"} {}", "not JSON", ICMS_INVALID},
        {"{\"keys\": [\"00\"]}", "volume", ICMS_INVALID},
        {"{\"volume\": 7, \"keys\": [\"00\"]}", "volume", ICMS_INVALID},
        {"{\"volume\": \"0123456789012345678901234567890123456789012345678901234567890123\", "
         "\"keys\": [\"00\"]}",
         "volume", ICMS_INVALID},
        {"{\"volume\": \"kv\"}", "no keys", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": []}", "no keys", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": {}}", "keys: an array", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": \"00\"}", "keys: an array", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\", \"\"]}", "entry 1", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"0\"]}", "entry 0", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"0g\"]}", "entry 0", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [7]}", "entry 0", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"000102030405060708090a0b0c0d0e0f10\"]}", "entry 0",
         ICMS_INVALID},
        {"{\"volume\": \"kv\", \"names\": [\"\"]}", "entry 0", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"deadline_ms\": 0}", "deadline_ms",
         ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"deadline_ms\": 600001}", "deadline_ms",
         ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"deadline_ms\": 1.5}", "deadline_ms",
         ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"priority\": -1}", "priority", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"priority\": 4}", "priority", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"tier\": \"pod\"}", "dram", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"pin_seconds\": 86401}", "pin_seconds",
         ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"pin_seconds\": true}", "pin_seconds",
         ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"tier\": 1}", "dram", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"once\": 1}", "once", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"cancel\": 1}", "cancel", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"cancel\": true, \"pin_seconds\": 0}",
         "pin_seconds: not with cancel", ICMS_INVALID},
        {"{\"volume\": \"kv\", \"keys\": [\"00\"], \"dead\": 1}", "unknown member", ICMS_INVALID},
        {"{\"model\": \"n\", \"tokens\": [1, 2]}", "not one of this agent's models", ICMS_INVALID},
        {"{\"model\": 1, \"tokens\": [1, 2]}", "model: a name", ICMS_INVALID},
        {"{\"model\": \"m\", \"volume\": \"kv\", \"tokens\": [1, 2]}", "or the model",
         ICMS_INVALID},
        {"{\"model\": \"m\", \"chain\": {}, \"tokens\": [1, 2]}", "or the model", ICMS_INVALID},
        {"{\"model\": \"m\", \"keys\": [\"00\"]}",
         "model: its keys and others do not make one prefix", ICMS_INVALID},
        {"{\"model\": \"m\"}",
         "model: send tokens (an array or base64) or hashes (an array), one of them", ICMS_INVALID},
        {"{\"model\": \"m\", \"tokens\": null}",
         "model: send tokens (an array or base64) or hashes (an array), one of them", ICMS_INVALID},
        {"{\"model\": \"v\", \"tokens\": 7}",
         "model: send tokens (an array or base64) or hashes (an array), one of them", ICMS_INVALID},
        {"{\"model\": \"v\", \"tokens\": {}}",
         "model: send tokens (an array or base64) or hashes (an array), one of them", ICMS_INVALID},
        {"{\"model\": \"v\", \"hashes\": \"00\"}",
         "model: send tokens (an array or base64) or hashes (an array), one of them", ICMS_INVALID},
        {"{\"model\": \"v\", \"tokens\": [9223372036854775808]}",
         "a token id is 0 to 2147483647; if it is a hash, send each hash whole", ICMS_INVALID},
        {"{\"model\": \"v\", \"tokens\": [1e400]}",
         "a token id is 0 to 2147483647; if it is a hash, send each hash whole", ICMS_INVALID},
        {"{\"model\": \"m\", \"hashes\": [\"00\"]}", "made of tokens", ICMS_INVALID},
        {"{\"model\": \"h\", \"tokens\": [1]}", "made of hashes: send those, or set hash",
         ICMS_INVALID},
        {"{\"model\": \"v\", \"tokens\": [1, 2], \"hashes\": [\"00\"]}",
         "send tokens (an array or base64) or hashes (an array), one of them", ICMS_INVALID},
        {"{\"model\": \"v\", \"tokens\": [1, 2147483648]}", "entry 1 is not a token id",
         ICMS_INVALID},
        {"{\"model\": \"h\", \"hashes\": [\"00\", 1]}", "entry 1 is a number", ICMS_INVALID},
        {"{\"model\": \"h\", \"hashes\": [18446744073709551615]}", "send each hash whole",
         ICMS_INVALID},
        {"{\"model\": \"h\", \"hashes\": [true]}", "entry 0 is not 2 to 128 digits", ICMS_INVALID},
        {"{\"model\": \"h\", \"hashes\": [\"0x00\"]}", "entry 0 is not 2 to 128 digits",
         ICMS_INVALID},
        {"{\"model\": \"v\", \"hashes\": [\"" DIGITS "\", \"0001020304050607\"]}",
         "entry 1 has 8 bytes, where a hash of vLLM's has 32: send each hash whole", ICMS_INVALID},
        {"{\"model\": \"chunk\", \"hashes\": [\"" DIGITS "00000000\"]}", "entry 0 has 36 bytes",
         ICMS_INVALID},
        {"{\"model\": \"h\", \"hashes\": 1}",
         "send tokens (an array or base64) or hashes (an array), one of them", ICMS_INVALID},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(read_text(cases[i].text), cases[i].err);
        if (strstr(why.text, cases[i].why) == NULL)
            fail_msg("%s: %s", cases[i].text, why.text);
        assert_int_equal(hints.count == 0 || hints.keys == NULL, 1);
    }
}

/* The keys are those of the chain, for both that it may be made of. */
static void a_chain_makes_the_engines_keys(void **state)
{
    static const char tokens[] =
        "{\"volume\": \"kv\", \"tokens\": [1, 2, 2147483647, 4, 5, 0, 7], \"chain\": {\"state\": "
        "\"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\", \"run_blocks\": 2, "
        "\"block_tokens\": 2}}";
    static const char hashes[] =
        "{\"volume\": \"kv\", \"hashes\": [\"00ff\", \"ABcd\", \"01\"], \"chain\": {\"state\": "
        "\"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\", \"run_blocks\": 8, "
        "\"block_tokens\": 16}}";
    static const uint8_t ids[] = {1, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255, 127,
                                  4, 0, 0, 0, 5, 0, 0, 0, 0,   0,   0,   0};
    static const char *const contents[] = {"\x00\xff", "\xab\xcd", "\x01"};
    static const size_t lengths[] = {2, 2, 1};
    struct icms_chain chain = {.run_blocks = 2};
    struct icms_key key;

    for (uint8_t i = 0; i < sizeof(chain.state); i++)
        chain.state[i] = i;
    assert_int_equal(read_text(tokens), ICMS_OK);
    assert_int_equal(hints.count, 3); /* the seventh token is part of a block */
    for (size_t i = 0; i < 3; i++) {
        icms_chain_next(&chain, ids + 8 * i, 8, &key);
        assert_memory_equal(hints.keys[i].bytes, key.bytes, sizeof(key.bytes));
        assert_int_equal(hints.keys[i].length, 16);
    }
    chain = (struct icms_chain){.run_blocks = 8};
    for (uint8_t i = 0; i < sizeof(chain.state); i++)
        chain.state[i] = i;
    assert_int_equal(read_text(hashes), ICMS_OK);
    assert_int_equal(hints.count, 3);
    for (size_t i = 0; i < 3; i++) {
        icms_chain_next(&chain, contents[i], lengths[i], &key);
        assert_memory_equal(hints.keys[i].bytes, key.bytes, sizeof(key.bytes));
    }
}

static void a_model_stands_for_its_volume_and_chain(void **state)
{
    static const char by_name[] = "{\"model\": \"org/m\", \"tokens\": [1, 2, 3, 4, 5]}";
    static const char by_chain[] =
        "{\"volume\": \"b\", \"tokens\": [1, 2, 3, 4, 5], \"chain\": {\"state\": " STATE
        ", \"run_blocks\": 2, \"block_tokens\": 2}}";
    struct key named[2];

    assert_int_equal(read_text(by_name), ICMS_OK);
    assert_string_equal(hints.volume, "b");
    assert_int_equal(hints.count, 2);
    memcpy(named, hints.keys, sizeof(named));
    assert_int_equal(read_text(by_chain), ICMS_OK);
    assert_int_equal(hints.count, 2);
    assert_memory_equal(hints.keys, named, sizeof(named));
    assert_int_equal(read_text("{\"model\": \"h\", \"hashes\": [\"00ff\", \"ab\"]}"), ICMS_OK);
    assert_string_equal(hints.volume, "kv");
    assert_int_equal(hints.count, 2);
    memcpy(named, hints.keys, sizeof(named));
    assert_int_equal(
        read_text(
            "{\"volume\": \"kv\", \"hashes\": [\"00ff0a\", \"ab0a\"], \"chain\": {\"state\": " STATE
            ", \"run_blocks\": 8, \"block_tokens\": 16}}"),
        ICMS_OK);
    assert_memory_equal(hints.keys, named, sizeof(named));
}

/* Hashes of the blocks 1, 2 and 2147483647, 4 with the seed 0, made as agent_vllm_test.c tells. */
#define HASH_1 "c128b7907a1dcdcf1af44a0bf6a19917e5cdc31c640fd057aa2e1f1b3a8b3ac3"
#define HASH_2 "784670d2c490214cf6238c32fe4790de0d0252842480f211e1b649851123ed23"

/* Tokens and vLLM's hashes of them have the same keys. */
static void tokens_stand_for_the_hashes_that_vllm_makes_of_them(void **state)
{
    static const struct {
        const char *hashes, *tokens;
        size_t count;
    } cases[] = {
        {"{\"model\": \"v\", \"hashes\": [\"" HASH_1 "\", \"" HASH_2 "\"]}",
         "{\"model\": \"v\", \"tokens\": [1, 2, 2147483647, 4, 5]}", 2},
        {"{\"model\": \"v\", \"hashes\": [\"" HASH_1 "\", \"" HASH_2 "\"]}",
         "{\"model\": \"v\", \"tokens\": \"AQAAAAIAAAD///9/BAAAAA==\"}", 2},
        {"{\"model\": \"chunk\", \"hashes\": [\"" HASH_2 "\"]}",
         "{\"model\": \"chunk\", \"tokens\": [1, 2, 2147483647, 4, 5, 6, 7]}", 1},
        {"{\"model\": \"chunk\", \"hashes\": [\"" HASH_2 "\"]}",
         "{\"model\": \"chunk\", \"tokens\": \"AQAAAAIAAAD///9/BAAAAA==\"}", 1},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct key keys[2];

        assert_int_equal(read_text(cases[i].hashes), ICMS_OK);
        assert_int_equal(hints.count, cases[i].count);
        memcpy(keys, hints.keys, cases[i].count * sizeof(keys[0]));
        assert_int_equal(read_text(cases[i].tokens), ICMS_OK);
        assert_int_equal(hints.count, cases[i].count);
        assert_memory_equal(hints.keys, keys, cases[i].count * sizeof(keys[0]));
    }
}

/* As large as blocks can be: an array and base64 make the same key, which is that of the chain, or
 * of the last of the hashes that vLLM makes of such a block. */
static void the_largest_blocks_have_keys(void **state)
{
    const size_t digits = (CONF_BLOCK_TOKENS_MAX * 4 + 2) / 3 * 4; /* the last two are padding */
    char *text = malloc(3 * CONF_BLOCK_TOKENS_MAX + digits + 400);
    le32 *ids = calloc(CONF_BLOCK_TOKENS_MAX, sizeof(*ids));
    struct conf_model *model = &conf.models[conf.model_count++];

    check(text != NULL && ids != NULL);
    for (int of = CONF_MODEL_TOKENS; of <= CONF_MODEL_HASHES; of++) {
        struct icms_chain chain = {.run_blocks = 8};
        struct icms_key key;
        size_t at;

        for (uint8_t i = 0; i < sizeof(chain.state); i++)
            chain.state[i] = i;
        *model = (struct conf_model){"large", "kv", DIGITS, "", CONF_BLOCK_TOKENS_MAX, (uint8_t)of};
        if (of == CONF_MODEL_HASHES) {
            struct agent_vllm vllm;

            model->hash = CONF_MODEL_SHA256;
            model->hash_tokens = CONF_HASH_TOKENS_MAX;
            memcpy(model->hash_seed, "0", 2);
            assert_int_equal(agent_vllm_begin(&vllm, CONF_MODEL_SHA256, "0"), ICMS_OK);
            for (size_t i = 0; i < CONF_BLOCK_TOKENS_MAX; i += CONF_HASH_TOKENS_MAX)
                assert_int_equal(agent_vllm_next(&vllm, ids + i, CONF_HASH_TOKENS_MAX), ICMS_OK);
            icms_chain_next(&chain, vllm.last, sizeof(vllm.last), &key);
        } else {
            icms_chain_next(&chain, ids, CONF_BLOCK_TOKENS_MAX * sizeof(ids[0]), &key);
        }
        at = (size_t)sprintf(text, "{\"model\": \"large\", \"tokens\": [0");
        for (size_t i = 0; i < CONF_BLOCK_TOKENS_MAX; i++) /* one more */
            at += (size_t)sprintf(text + at, ",0");
        memcpy(text + at, "]}", 3);
        assert_int_equal(read_text(text), ICMS_OK);
        assert_int_equal(hints.count, 1);
        assert_memory_equal(hints.keys[0].bytes, key.bytes, sizeof(key.bytes));
        at = (size_t)sprintf(text, "{\"model\": \"large\", \"tokens\": \"");
        memset(text + at, 'A', digits);
        memcpy(text + at + digits - 2, "==\"}", 5);
        assert_int_equal(read_text(text), ICMS_OK);
        assert_int_equal(hints.count, 1);
        assert_memory_equal(hints.keys[0].bytes, key.bytes, sizeof(key.bytes));
    }
    conf.model_count--;
    free(ids);
    free(text);
}

/* Which is the answer to a short question, and no mistake of who asks. */
static void a_prompt_shorter_than_a_block_has_no_keys(void **state)
{
    static const char *const bodies[] = {
        "{\"model\": \"m\", \"tokens\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]}",
        "{\"model\": \"m\", \"tokens\": []}",
        "{\"model\": \"v\", \"tokens\": [1]}",
        "{\"model\": \"chunk\", \"tokens\": [1, 2, 3]}",
        "{\"model\": \"v\", \"hashes\": []}",
        "{\"volume\": \"kv\", \"tokens\": [1], \"chain\": " CHAIN2 "}",
        "{\"volume\": \"kv\", \"tokens\": \"AQAAAA==\", \"chain\": " CHAIN2 "}",
        "{\"volume\": \"kv\", \"tokens\": \"\", \"chain\": " CHAIN2 "}",
        "{\"volume\": \"kv\", \"hashes\": [], \"chain\": " CHAIN2 "}",
    };

    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        assert_int_equal(read_text(bodies[i]), ICMS_OK);
        assert_string_equal(hints.volume, "kv");
        assert_int_equal(hints.count, 0);
    }
    assert_int_equal(read_text("{\"model\": \"v\", \"tokens\": [-1]}"), ICMS_INVALID);
}

/* Whatever else is wrong: who may not use its volume is not told that there is such a model. */
static void a_model_of_a_forbidden_volume_is_none(void **state)
{
    static const char *const bodies[] = {
        "{\"model\": \"%s\", \"tokens\": [1, 2, 3, 4]}",
        "{\"model\": \"%s\", \"hashes\": [\"00\"]}",
        "{\"model\": \"%s\"}",
    };
    char text[100];

    volumes = 1; /* and not that of org/m */
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct err_why unknown;

        (void)snprintf(text, sizeof(text), bodies[i], "org/n");
        assert_int_equal(read_text(text), ICMS_INVALID);
        unknown = why;
        (void)snprintf(text, sizeof(text), bodies[i], "org/m");
        assert_int_equal(read_text(text), ICMS_INVALID);
        *(strstr(why.text, "org/m") + 4) = 'n';
        assert_string_equal(why.text, unknown.text);
    }
    assert_int_equal(read_text("{\"model\": \"h\", \"hashes\": [\"00\"]}"), ICMS_OK);
    volumes = UINT64_MAX;
}

static void what_is_wrong_with_a_chain_is_named(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"\"tokens\": [1]", "where is chain"},
        {"\"hashes\": [\"00\"]", "where is chain"},
        {"\"chain\": {}",
         "chain: send tokens (an array or base64) or hashes (an array), one of them"},
        {"\"chain\": {}, \"tokens\": 1",
         "send tokens (an array or base64) or hashes (an array), one of them"},
        {"\"chain\": {}, \"tokens\": [1], \"hashes\": [\"00\"]",
         "send tokens (an array or base64) or hashes (an array), one of them"},
        {"\"chain\": {}, \"tokens\": [1], \"hashes\": \"00\"",
         "send tokens (an array or base64) or hashes (an array), one of them"},
        {"\"chain\": {}, \"tokens\": null, \"hashes\": [\"00\"]",
         "send tokens (an array or base64) or hashes (an array), one of them"},
        {"\"chain\": {}, \"tokens\": [1]", "an object with state"},
        {"\"chain\": 7, \"tokens\": [1]", "an object with state"},
        {"\"chain\": {\"state\": \"00\", \"run_blocks\": 1, \"block_tokens\": 1}, \"tokens\": [1]",
         "state: 64"},
        {"\"chain\": {\"state\": " STATE
         ", \"run_blocks\": 0, \"block_tokens\": 1}, \"tokens\": [1]",
         "run_blocks"},
        {"\"chain\": {\"state\": " STATE
         ", \"run_blocks\": 1, \"block_tokens\": 65537}, \"tokens\": [1]",
         "block_tokens"},
        {"\"chain\": {\"state\": " STATE
         ", \"run_blocks\": 1, \"block_tokens\": 1}, \"tokens\": [1, -1]",
         "entry 1 is not a token"},
        {"\"chain\": {\"state\": " STATE
         ", \"run_blocks\": 1, \"block_tokens\": 1}, \"tokens\": [2147483648]",
         "entry 0 is not a token"},
        {"\"chain\": {\"state\": " STATE
         ", \"run_blocks\": 1, \"block_tokens\": 1}, \"hashes\": [\"0\"]",
         "entry 0 is not 2"},
        {"\"chain\": {\"state\": " STATE
         ", \"run_blocks\": 1, \"block_tokens\": 1}, \"tokens\": [1], \"keys\": [\"00\"]",
         "chain: its keys and others do not make one prefix"},
    };
    char text[512];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(text, sizeof(text), "{\"volume\": \"kv\", %s}", cases[i].text);
        assert_int_equal(read_text(text), ICMS_INVALID);
        if (strstr(why.text, cases[i].why) == NULL)
            fail_msg("%s: %s", text, why.text);
    }
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* A right body with bytes changed, cut out and put in. */
static void any_body_is_read_or_refused(void **state)
{
    static const char right[] = "{\"volume\": \"kv\", \"keys\": [\"00aBff\", \"0001020304\"], "
                                "\"names\": [\"x\\u00e4\"], \"deadline_ms\": 600, \"priority\": 3}";
    static const char bytes[] = "\"{}[]:,\\u0019af-.eE \0\xff\xc3";
    uint64_t seed = 3;
    unsigned good = 0;

    for (int round = 0; round < 30000; round++) {
        char text[sizeof(right) + 8];
        size_t length = sizeof(right) - 1;

        memcpy(text, right, sizeof(right));
        for (uint64_t i = random_next(&seed) % 4; i > 0; i--) {
            size_t at = random_next(&seed) % length;

            switch (random_next(&seed) % 3) {
            case 0:
                text[at] = bytes[random_next(&seed) % sizeof(bytes)];
                break;
            case 1:
                memmove(text + at, text + at + 1, length-- - at - 1);
                break;
            default:
                memmove(text + at + 1, text + at, length++ - at);
                text[at] = bytes[random_next(&seed) % sizeof(bytes)];
            }
        }
        hints = (struct agent_hints){0};
        why.text[0] = '\0';
        if (agent_prestage_read(text, length, &conf, volumes, &why, volume, &hints) != ICMS_OK) {
            assert_true(why.text[0] != '\0');
            continue;
        }
        assert_true(hints.count > 0 && hints.deadline_ms > 0 && hints.keys[0].length > 0);
        free((void *)(uintptr_t)hints.keys);
        good++;
    }
    hints = (struct agent_hints){0};
    assert_in_range(good, 1000, 29000);
}

/* As deep, and as many, as a body can have. */
static void the_largest_bodies_are_bounded(void **state)
{
    static const char *const pieces[] = {"[", "{\"a\":", "{},", "1,", "\"", "\"00\","};
    char *text = malloc(LIMIT_HTTP_JSON_BYTES + 8);

    check(text != NULL);
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        size_t length = strlen(pieces[i]), at = 0;

        at = (size_t)sprintf(text, "{\"volume\": \"kv\", \"keys\": [");
        for (; at + length <= LIMIT_HTTP_JSON_BYTES; at += length)
            memcpy(text + at, pieces[i], length);
        text[at] = '\0';
        assert_int_equal(read_text(text), ICMS_INVALID);
        assert_null(strstr(why.text, "at most"));
        memcpy(text + at, "1,1,1,1", 8);
        assert_int_equal(read_text(text), ICMS_LIMIT);
        assert_non_null(strstr(why.text, "262144 bytes at most"));
    }
    free(text);
}

/* ---- token ids as base64 -------------------------------------------------------------------- */

/* They make the keys that an array of them makes. */
static void base64_makes_the_keys_of_an_array(void **state)
{
    static const char *const same[] = {
        "{\"volume\": \"kv\", \"chain\": " CHAIN2 ", \"tokens\": "
        "\"AQAAAAIAAAD///9/BAAAAPv/PwA=\"}",
        "{\"tokens\" : \t\"AQAAAAIAAAD///9/BAAAAPv/PwA=\",\"volume\":\"kv\",\"chain\":" CHAIN2 "}",
        "{\"volume\": \"kv\", \"chain\": " CHAIN2 ", \"tokens\": \"AQAAAAIAAAD///9/BAAAAA==\"}"};
    struct key keys[2];

    assert_int_equal(read_text("{\"volume\": \"kv\", \"tokens\": [1, 2, 2147483647, 4, 4194299], "
                               "\"chain\": " CHAIN2 "}"),
                     ICMS_OK);
    assert_int_equal(hints.count, 2);
    memcpy(keys, hints.keys, sizeof(keys));
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        assert_int_equal(read_text(same[i]), ICMS_OK);
        assert_int_equal(hints.count, 2);
        assert_memory_equal(hints.keys, keys, sizeof(keys));
    }
    /* a name that looks like it */
    assert_int_equal(read_text("{\"volume\": \"kv\", \"names\": [\"{\\\"tokens\\\": \\\"AQ\"]}"),
                     ICMS_OK);
    assert_int_equal(hints.count, 1);
}

static void what_is_no_base64_is_refused(void **state)
{
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"\"tokens\": \"AQAAAAIAAA\"", "base64"}, /* no padding */
        {"\"tokens\": \"AQAAAAIAAAA=\", \"tokens\": \"\"", "not JSON"},
        {"\"tokens\": \"AQAAAAIAAA=A\"", "base64"},
        {"\"tokens\": \"AQAA=AIAAAA=\"", "base64"},
        {"\"tokens\": \"AQAA-AIAAAA=\"", "base64"},
        {"\"tokens\": \"AQAA\\u0041AIA\"", "without escapes"},
        {"\"tokens\": \"AQAAAAIA\"", "base64"},      /* 6 bytes */
        {"\"tokens\": \"AQAAAAAAAIA=\"", "entry 1"}, /* -2147483648 */
        {"\"tokens\": \"AQAAAAIAAAA=", "not JSON"},
        {"\"tokens\": \"AQAAAAIAAAA=\", \"hashes\": [\"00\"]",
         "send tokens (an array or base64) or hashes (an array), one of them"},
        {"\"x\": {\"tokens\": \"AQAAAAIAAAA=\"}", "nothing inside"},
        {"\"x\": {\"tokens\": \"AQAAAAIAAAA=\"}, \"tokens\": \"\"", "unknown member"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[400];

        (void)snprintf(text, sizeof(text), "{\"volume\": \"kv\", \"chain\": " CHAIN2 ", %s}",
                       cases[i].text);
        assert_int_equal(read_text(text), ICMS_INVALID);
        if (strstr(why.text, cases[i].why) == NULL)
            fail_msg("%s: %s", cases[i].text, why.text);
    }
}

/* A million and more, within the body's limit. */
static void a_million_token_ids_fit(void **state)
{
    const size_t count = 1048575, digits = count * 4 / 3 * 4; /* count is a multiple of 3 */
    char *text = malloc(digits + 400);
    size_t length;

    check(text != NULL);
    for (unsigned block = 16; block >= 2; block /= 8) {
        length = (size_t)sprintf(
            text,
            "{\"volume\": \"kv\", \"chain\": {\"state\": \"%064d\", \"run_blocks\": 4, "
            "\"block_tokens\": %u}, \"tokens\": \"",
            0, block);
        memset(text + length, 'A', digits);
        memcpy(text + length + digits, "\"}", 3);
        assert_true(length + digits + 2 <= LIMIT_HTTP_BODY_BYTES);
        assert_int_equal(read_text(text), block == 16 ? ICMS_OK : ICMS_LIMIT);
        if (block == 16)
            assert_int_equal(hints.count, count / 16);
        else /* half a million hashes hold up the thread of HTTP */
            assert_non_null(
                strstr(why.text, "524287 keys or hashes, where a body may have 131072: larger"));
    }
    for (int i = 0; i < 2; i++) { /* 16,383 keys, and 131,071 or 524,287 hashes in front of them */
        struct conf_model *model = &conf.models[conf.model_count++];

        *model = (struct conf_model){"m64",
                                     "kv",
                                     DIGITS,
                                     "",
                                     64,
                                     CONF_MODEL_HASHES,
                                     i == 0 ? CONF_MODEL_SHA256 : CONF_MODEL_SHA256_CBOR,
                                     i == 0 ? 8 : 2,
                                     "0"};
        length = (size_t)sprintf(text, "{\"model\": \"m64\", \"tokens\": \"");
        memset(text + length, 'A', digits);
        memcpy(text + length + digits, "\"}", 3);
        assert_int_equal(read_text(text), i == 0 ? ICMS_OK : ICMS_LIMIT);
        assert_int_equal(hints.count, i == 0 ? count / 64 : 0);
        conf.model_count--;
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_right_is_read),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(a_chain_makes_the_engines_keys),
        cmocka_unit_test(a_model_stands_for_its_volume_and_chain),
        cmocka_unit_test(tokens_stand_for_the_hashes_that_vllm_makes_of_them),
        cmocka_unit_test(the_largest_blocks_have_keys),
        cmocka_unit_test(a_prompt_shorter_than_a_block_has_no_keys),
        cmocka_unit_test(a_model_of_a_forbidden_volume_is_none),
        cmocka_unit_test(what_is_wrong_with_a_chain_is_named),
        cmocka_unit_test(any_body_is_read_or_refused),
        cmocka_unit_test(the_largest_bodies_are_bounded),
        cmocka_unit_test(base64_makes_the_keys_of_an_array),
        cmocka_unit_test(what_is_no_base64_is_refused),
        cmocka_unit_test(a_million_token_ids_fit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
