/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which models of an agent routers may name.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "conf/conf_int.h"

#define STATE "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F"

static struct conf_agent agent;
static struct err_why why;

static const char *more = ""; /* lines of the agent */

static icms_err parse(const char *models)
{
    char text[4096];

    conf_agent_fini(&agent);
    (void)snprintf(text, sizeof(text),
                   "socket: /run/icms/agent.sock\nenclosures: [{name: e, address: '127.0.0.1:1'}]\n"
                   "volumes: [{name: kv}, {name: b, users: [1]}]\nmodels:\n%s\n%s",
                   models, more);
    return conf_agent_parse(text, strlen(text), "a.yaml", &why, &agent);
}

static void refused(const char *models, uint32_t line, const char *word)
{
    char begin[32];

    assert_int_equal(parse(models), ICMS_CONFIG);
    (void)snprintf(begin, sizeof(begin), "a.yaml:%u: ", line);
    if (strncmp(why.text, begin, strlen(begin)) != 0 || strstr(why.text, word) == NULL)
        fail_msg("%s, not %s ... %s", why.text, begin, word);
}

static void what_is_written_is_taken(void **state)
{
    const struct conf_model *model;

    assert_int_equal(parse("- {name: a/b, volume: b, state: '" STATE
                           "', block_tokens: 16, of: tokens}\n"
                           "- {name: c d, volume: kv, state: '" STATE
                           "', block_tokens: 65536, of: hashes, suffix: '00fF'}"),
                     ICMS_OK);
    assert_int_equal(agent.model_count, 2);
    model = conf_agent_model(&agent, "a/b");
    assert_non_null(model);
    assert_string_equal(model->volume, "b");
    assert_string_equal(model->state, STATE);
    assert_int_equal(model->block_tokens, 16);
    assert_int_equal(model->of, CONF_MODEL_TOKENS);
    assert_string_equal(model->suffix, "");
    assert_int_equal(model->hash, CONF_MODEL_HASH_NONE);
    assert_int_equal(model[1].of, CONF_MODEL_HASHES);
    assert_int_equal(model[1].hash, CONF_MODEL_HASH_NONE);
    assert_string_equal(model[1].suffix, "00fF");
    assert_ptr_equal(conf_agent_model(&agent, "c d"), model + 1);
    assert_null(conf_agent_model(&agent, "a"));
    assert_string_equal(conf_agent_volume(&agent, "b")->name, "b");
    assert_null(conf_agent_volume(&agent, "c"));
}

static void how_vllm_hashes_is_taken(void **state)
{
    const struct conf_model *model = agent.models;

    assert_int_equal(parse("- {name: a, volume: kv, state: '" STATE
                           "', block_tokens: 32, of: hashes, hash: sha256}\n"
                           "- {name: b, volume: kv, state: '" STATE
                           "', block_tokens: 65536, of: hashes, hash: sha256_cbor, hash_seed: 0, "
                           "hash_tokens: 4096}\n"
                           "- {name: c, volume: kv, state: '" STATE
                           "', block_tokens: 32, of: hashes, hash: none}"),
                     ICMS_OK);
    assert_int_equal(model[0].hash, CONF_MODEL_SHA256);
    assert_string_equal(model[0].hash_seed, "vllm-none-hash");
    assert_int_equal(model[0].hash_tokens, 32);
    assert_int_equal(model[1].hash, CONF_MODEL_SHA256_CBOR);
    assert_string_equal(model[1].hash_seed, "0");
    assert_int_equal(model[1].block_tokens, 65536);
    assert_int_equal(model[1].hash_tokens, 4096);
    assert_int_equal(model[2].hash, CONF_MODEL_HASH_NONE);
}

/* Who reaches a port that is open to all is on no list of users. */
static void models_that_nobody_can_ask_for_are_warned_about(void **state)
{
    const char *both = "- {name: m, volume: b, state: '" STATE "', block_tokens: 16, of: tokens}\n"
                       "- {name: n, volume: kv, state: '" STATE "', block_tokens: 16, of: tokens}";

    assert_int_equal(parse(both), ICMS_OK);
    assert_int_equal(agent.warnings.count, 1);
    assert_non_null(strstr(agent.warnings.text[0], "'m' get status 400: its volume b lists users"));
    assert_non_null(strstr(agent.warnings.text[0], "write http.token (icms key gen --type token)"));
    more = "http: {open: all}\n";
    assert_int_equal(parse(both), ICMS_OK);
    assert_int_equal(agent.warnings.count, 1);
    more = "http: {listen: none}\n";
    assert_int_equal(parse(both), ICMS_OK);
    assert_int_equal(agent.warnings.count, 0);
    more = "http: {token: /etc/icms/token}\n";
    assert_int_equal(parse(both), ICMS_OK);
    assert_int_equal(agent.warnings.count, 0);
    more = "";
}

/* What a file may have for none, and what no engine begins with. */
static void seeds_that_no_engine_has_are_warned_about(void **state)
{
    static const struct {
        const char *seed, *shown; /* NULL: no warning */
    } cases[] = {
        {"~", "is '~', and"},     {"none", "is 'none', and"}, {"' 0 '", "is ' 0 ', and"},
        {"'-1'", "is '-1', and"}, {"0x10", "is '0x10', and"}, {"0", NULL},
        {"'4294967295'", NULL},   {"random", NULL},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char models[400];

        (void)snprintf(models, sizeof(models),
                       "- {name: m, volume: kv, state: '" STATE
                       "', block_tokens: 16, of: hashes, hash: sha256, hash_seed: %s}\n"
                       "- {name: n, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes}",
                       cases[i].seed);
        assert_int_equal(parse(models), ICMS_OK);
        assert_int_equal(agent.warnings.count, cases[i].shown != NULL);
        if (cases[i].shown != NULL && strstr(agent.warnings.text[0], cases[i].shown) == NULL)
            fail_msg("%s: %s", cases[i].seed, agent.warnings.text[0]);
    }
}

static void what_is_wrong_is_named(void **state)
{
    refused("- {name: a, volume: other, state: '" STATE "', block_tokens: 16, of: tokens}", 5,
            "no volume other");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: tokens}\n"
            "- {name: a, volume: b, state: '" STATE "', block_tokens: 16, of: tokens}",
            6, "two entries");
    refused("- {name: a, volume: kv, state: '0" STATE "', block_tokens: 16, of: tokens}", 5,
            "state");
    refused("- {name: a, volume: kv, state: '00', block_tokens: 16, of: tokens}", 5, "64 digits");
    refused("- {name: a, volume: kv, state: 'x" STATE "', block_tokens: 16, of: tokens}", 5,
            "state");
    refused("- {name: a, volume: kv, block_tokens: 16, of: tokens}", 5, "state");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16}", 5, "of");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: both}", 5, "of");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: tokens, "
            "suffix: '00'}",
            5, "models of hashes");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes, "
            "suffix: '000'}",
            5, "two a byte");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes, "
            "suffix: '0x'}",
            5, "two a byte");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: tokens, "
            "hash: sha256}",
            5, "hash is for models of hashes");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes, "
            "hash: xxhash}",
            5, "sha256");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes, "
            "hash_seed: '0'}",
            5, "hash_seed is for models with hash");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes, "
            "hash: none, hash_tokens: 16}",
            5, "hash_tokens is for models with hash");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes, "
            "hash: sha256, hash_seed: " STATE "}",
            5, "longer than 63 bytes");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes, "
            "hash: sha256, hash_tokens: 3}",
            5, "no multiple of hash_tokens");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 16, of: hashes, "
            "hash: sha256, hash_tokens: 32}",
            5, "no multiple of hash_tokens");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 8192, of: hashes, "
            "hash: sha256}",
            5, "write hash_tokens");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 8192, of: hashes, "
            "hash: sha256, hash_tokens: 8192}",
            5, "hash_tokens");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 65537, of: hashes}", 5,
            "block_tokens");
    refused("- {name: a, volume: kv, state: '" STATE "', block_tokens: 0}", 5, "block_tokens");
    refused("- {name: a, volume: kv, state: '" STATE "', block_token: 1}", 5, "block_token");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_taken),
        cmocka_unit_test(how_vllm_hashes_is_taken),
        cmocka_unit_test(models_that_nobody_can_ask_for_are_warned_about),
        cmocka_unit_test(seeds_that_no_engine_has_are_warned_about),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    conf_agent_fini(&agent);
    return failed;
}
