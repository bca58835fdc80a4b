/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /v1/match beside an agent that does not answer, which is made up here: questions keep the
 * HTTP thread for a second together, and not each of them. And of whom what is told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <errno.h>
#include <semaphore.h>

#include "agent_match.h"
#include "agent_page.h"
#include "ctl/test_page.h"
#include "icms/icms.h"

#define QUESTIONS 16
#define MS        ((uint64_t)1000 * 1000)

#define STATE "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static const struct conf_agent conf = {
    .volume_count = 2,
    .volumes = {{.name = "kv", .run_blocks = 8}, {.name = "theirs", .run_blocks = 8}},
    .model_count = 2,
    .models = {{"m", "kv", STATE, .block_tokens = 2}, {"n", "theirs", STATE, .block_tokens = 2}},
};

/* ---- an agent, and time --------------------------------------------------------------------- */

static bool answers;
static struct {
    void (*done)(void *arg, const struct agent_looked *looked);
    void *arg;
} asked[QUESTIONS];
static uint32_t asked_count;
static struct key asked_keys[2]; /* the first ones of the last two */
static uint64_t waited_ns;

icms_err agent_look_start(struct agent *agent, const struct agent_user *user, const char *volume,
                          const struct key *keys, size_t count, struct err_why *why,
                          void (*done)(void *arg, const struct agent_looked *looked), void *arg)
{
    const struct agent_looked looked = {.dram = 1, .local = 1};

    asked_keys[0] = asked_keys[1];
    asked_keys[1] = keys[0];
    if (answers) {
        done(arg, &looked);
        return ICMS_OK;
    }
    assert_true(asked_count < QUESTIONS);
    asked[asked_count].done = done;
    asked[asked_count].arg = arg;
    asked_count++;
    return ICMS_OK;
}

uint64_t __wrap_agent_access(const struct agent *agent, const struct agent_user *user);

/* Whoever gives no proof may use the first volume. */
uint64_t __wrap_agent_access(const struct agent *agent, const struct agent_user *user)
{
    assert_non_null(user);
    return 1;
}

int __real_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until);
int __wrap_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until);

/* Nobody waits in here. */
int __wrap_sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *until)
{
    struct timespec now;

    if (answers)
        return __real_sem_clockwait(sem, clock, until);
    assert_int_equal(clock_gettime(clock, &now), 0);
    waited_ns +=
        (uint64_t)((until->tv_sec - now.tv_sec) * 1000000000 + until->tv_nsec - now.tv_nsec);
    errno = ETIMEDOUT;
    return -1;
}

/* ---- questions ------------------------------------------------------------------------------ */

static char said[512]; /* the last answer */

static unsigned post_body(struct agent_page *agent, const char *body)
{
    struct ctl_page *page = ctl_page_new();
    unsigned status;

    assert_non_null(page);
    status = agent_match_post(agent, body, strlen(body), page);
    (void)snprintf(said, sizeof(said), "%s", ctl_page_text(page));
    assert_int_equal(strstr(ctl_page_text(page), "\"dram\":1") != NULL, status == 200);
    ctl_page_free(&page);
    return status;
}

static unsigned post(struct agent_page *agent)
{
    return post_body(agent, "{\"volume\": \"kv\", \"names\": [\"a\"]}");
}

/* As in NVMe commands, or as the Python package and `icms match --hex` write them. */
static void keys_have_two_forms(void **state)
{
    static struct agent_page agent = {.conf = &conf};
    char digits[2 * (ICMS_RUN_BYTES + ICMS_DIGEST_BYTES) + 1], body[256], hex[33] = "";
    struct icms_key key;

    icms_key_from_name("a", 1, &key);
    for (uint32_t i = 0; i < ICMS_RUN_BYTES; i++)
        (void)snprintf(digits + 2 * i, 3, "%02x", key.bytes[i]);
    for (uint32_t i = 0; i < ICMS_DIGEST_BYTES; i++)
        (void)snprintf(digits + 2 * (ICMS_RUN_BYTES + i), 3, "%02X", key.digest[i]);
    for (uint32_t i = 0; i < key.length; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", key.bytes[i]);
    answers = true;
    (void)snprintf(body, sizeof(body), "{\"volume\": \"kv\", \"keys\": [\"%s\"]}", digits);
    assert_int_equal(post_body(&agent, body), 200);
    (void)snprintf(body, sizeof(body), "{\"volume\": \"kv\", \"keys\": [\"%s\"]}", hex);
    assert_int_equal(post_body(&agent, body), 200);
    assert_memory_equal(&asked_keys[0], &asked_keys[1], sizeof(asked_keys[0]));
    digits[70] = 'x';
    (void)snprintf(body, sizeof(body), "{\"volume\": \"kv\", \"keys\": [\"%s\"]}", digits);
    assert_int_equal(post_body(&agent, body), 400);
    digits[70] = '\0';
    (void)snprintf(body, sizeof(body), "{\"volume\": \"kv\", \"keys\": [\"%s\"]}", digits);
    assert_int_equal(post_body(&agent, body), 400);
    answers = false;
}

/* A port that is open to all does not tell whose model it is. */
static void models_of_forbidden_volumes_are_unknown(void **state)
{
    static struct agent_page agent = {.conf = &conf, .is_open = true};
    char unknown[sizeof(said)];

    answers = true;
    assert_int_equal(post_body(&agent, "{\"model\": \"m\", \"tokens\": [1, 2]}"), 200);
    assert_int_equal(post_body(&agent, "{\"model\": \"x\", \"tokens\": [1, 2]}"), 400);
    memcpy(unknown, said, sizeof(said));
    assert_int_equal(post_body(&agent, "{\"model\": \"n\", \"tokens\": [1, 2]}"), 400);
    *strstr(unknown, "\\\"x") = '\0'; /* up to the name */
    assert_memory_equal(said, unknown, strlen(unknown));
    assert_null(strstr(said, "theirs"));
    agent.is_open = false; /* a proof was asked for */
    assert_int_equal(post_body(&agent, "{\"model\": \"n\", \"tokens\": [1, 2]}"), 200);
    answers = false;
}

/* With what a router knows of blocks it counts tokens. */
static void answers_of_a_chain_have_the_tokens_of_a_block(void **state)
{
    static struct agent_page agent = {.conf = &conf};

    answers = true;
    assert_int_equal(post_body(&agent, "{\"model\": \"m\", \"tokens\": [1, 2, 3]}"), 200);
    assert_string_equal(said, "{\"of\":1,\"dram\":1,\"local\":1,\"block_tokens\":2}");
    assert_int_equal(post_body(&agent, "{\"volume\": \"kv\", \"hashes\": [\"00\"], \"chain\": "
                                       "{\"state\": \"" STATE
                                       "\", \"run_blocks\": 1, \"block_tokens\": 65536}}"),
                     200);
    assert_string_equal(said, "{\"of\":1,\"dram\":1,\"local\":1,\"block_tokens\":65536}");
    assert_int_equal(post_body(&agent, "{\"model\": \"m\", \"tokens\": [1]}"), 200);
    assert_non_null(strstr(said, "{\"of\":0,"));
    assert_non_null(strstr(said, "\"block_tokens\":2}"));
    assert_int_equal(post(&agent), 200);
    assert_string_equal(said, "{\"of\":1,\"dram\":1,\"local\":1}");
    answers = false;
}

static void questions_that_nobody_answers_wait_a_second_together(void **state)
{
    static struct agent_page agent = {.conf = &conf};

    for (uint32_t i = 0; i < QUESTIONS - 1; i++)
        assert_int_equal(post(&agent), 503);
    assert_true(waited_ns <= 2000 * MS);
    assert_true(waited_ns >= 900 * MS);
    /* it answers again, and has all of its time after that */
    answers = true;
    assert_int_equal(post(&agent), 200);
    answers = false;
    waited_ns = 0;
    assert_int_equal(post(&agent), 503);
    assert_true(waited_ns >= 900 * MS);
    for (uint32_t i = 0; i < asked_count; i++) /* at last */
        asked[i].done(asked[i].arg, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_have_two_forms),
        cmocka_unit_test(models_of_forbidden_volumes_are_unknown),
        cmocka_unit_test(answers_of_a_chain_have_the_tokens_of_a_block),
        cmocka_unit_test(questions_that_nobody_answers_wait_a_second_together),
    };

    return cmocka_run_group_tests_name("agent-match-post", tests, NULL, NULL);
}
