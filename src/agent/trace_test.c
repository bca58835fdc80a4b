/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lives of requests as `icms trace` shows them, on simulated machines: which states, how long,
 * whose, and who may see them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/agent_rig.h"

#define KV    0
#define RAW   1
#define BYTES 9000u
#define WAIT  (1000 * RIG_MS)

static char *trace_of(struct agent_rig *rig, uint32_t n)
{
    struct key key;
    char *text;

    rig_key(n, &key);
    text = agent_trace(rig->agent, NULL, &key);
    assert_non_null(text);
    return text;
}

static unsigned requests(const char *text)
{
    unsigned count = 0;

    while ((text = strstr(text, "{\"op\":")) != NULL) {
        text++;
        count++;
    }
    return count;
}

/* The number behind a name. */
static uint64_t number(const char *text, const char *name)
{
    char field[64];

    (void)snprintf(field, sizeof(field), "\"%s\":", name);
    text = strstr(text, field);
    assert_non_null(text);
    return strtoull(text + strlen(field), NULL, 10);
}

/* Microseconds that the first request spent in a state. */
static uint64_t state_us(const char *text, const char *state)
{
    char field[64];

    (void)snprintf(field, sizeof(field), "{\"state\":\"%s\"", state);
    text = strstr(text, field);
    assert_non_null(text);
    return number(text, "us");
}

static void stop_answering(struct fake_target *target)
{
    target->silent = true;
}

static void a_request_says_where_its_time_went(void **state)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 1});
    struct rig_client *client = rig_client_new(rig);
    bool seen = false;
    char *text;

    rig_run(rig, 100 * RIG_MS);
    rig_flash(rig, 0, KV, 1, BYTES);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 1, 0, WAIT))->status, ICMS_OK);
    text = trace_of(rig, 1);
    assert_int_equal(requests(text), 1);
    assert_non_null(strstr(text, "\"op\":\"get\",\"volume\":\"kv\""));
    assert_non_null(strstr(text, "\"bytes\":9000,\"status\":\"OK\",\"reason\":\"none\""));
    assert_non_null(strstr(text, rig->enclosures[0].name));
    assert_true(state_us(text, "pod") > 0);
    assert_true(state_us(text, "pod") <= number(strstr(text, "age_us"), "us"));
    free(text);
    /* One that nobody answers: all of its time is with the pod, up to its deadline. */
    rig_on_fake(rig, 0, stop_answering);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 2, 1, 50 * RIG_MS))->reason,
                     ICMS_MISS_DEADLINE);
    text = trace_of(rig, 2);
    assert_int_equal(requests(text), 1);
    assert_non_null(strstr(text, "\"status\":\"MISS\",\"reason\":\"deadline\""));
    assert_in_range(state_us(text, "pod"), 49000, 60000);
    free(text);
    text = agent_trace(rig->agent, NULL, NULL); /* and it is the slowest */
    assert_int_equal(requests(text), 2);
    assert_in_range(number(text, "us"), 49000, 60000);
    free(text);
    for (int i = 0; i < AGENT_STATS_STATES; i++)
        if (rig_stats(rig)->states[i].name != NULL &&
            strcmp(rig_stats(rig)->states[i].name, "pod") == 0) {
            assert_int_equal(rig_stats(rig)->states[i].count, 2);
            assert_in_range(rig_stats(rig)->states[i].us, 49000, 61000);
            seen = true;
        }
    assert_true(seen);
    rig_client_free(client);
    rig_free(rig);
}

/* A key of several reactors' agents is in the book of one. */
static void all_reactors_are_asked(void **state)
{
    struct agent_rig *rig =
        rig_new(&(struct rig_opts){.enclosures = 1, .loops = RIG_REACTORS, .many = true});
    struct rig_client *client = rig_client_new(rig);
    char *text;

    rig_run(rig, 100 * RIG_MS);
    for (uint32_t n = 0; n < 40; n++)
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, WAIT))->status,
            ICMS_OK);
    for (uint32_t n = 0; n < 40; n++) {
        text = trace_of(rig, n);
        assert_int_equal(requests(text), 1);
        assert_non_null(strstr(text, "\"op\":\"put\""));
        free(text);
    }
    text = agent_trace(rig->agent, NULL, NULL);
    assert_int_equal(requests(text), 32);
    free(text);
    rig_client_free(client);
    rig_free(rig);
}

/* What a client writes where no key is must not be taken for one. */
static void a_request_without_a_key_has_none(void **state)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 1});
    struct rig_client *client = rig_client_new(rig);
    struct shm_submit entry = {.op = SHM_OP_FLUSH, .volume = KV, .key_length = 255};
    char *text;

    rig_run(rig, 100 * RIG_MS);
    memset(entry.key, 0xee, sizeof(entry.key));
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
    text = agent_trace(rig->agent, NULL, NULL);
    assert_non_null(strstr(text, "\"op\":\"flush\",\"volume\":\"kv\",\"key\":\"\""));
    free(text);
    rig_client_free(client);
    rig_free(rig);
}

static void a_user_sees_requests_of_its_volumes_alone(void **state)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = 1, .raw_uid = 1001});
    struct rig_client *client = rig_client_new(rig);
    const struct agent_user own = {.uid = 1001, .gid = 1001}, other = {.uid = 1002, .gid = 1002};
    struct key key;
    char *text;

    rig_run(rig, 100 * RIG_MS);
    assert_int_equal(rig_wait(client, rig_put(client, RAW, 5, 100, 0, WAIT))->status, ICMS_OK);
    rig_key(5, &key);
    text = agent_trace(rig->agent, &own, &key);
    assert_int_equal(requests(text), 1);
    free(text);
    text = agent_trace(rig->agent, &other, &key);
    assert_int_equal(requests(text), 0);
    free(text);
    text = agent_trace(rig->agent, &other, NULL);
    assert_int_equal(requests(text), 0);
    free(text);
    rig_client_free(client);
    rig_free(rig);
}

/* Whoever has many slow requests in another volume must not hide mine. */
static void a_user_sees_its_own_slow_requests(void **state)
{
    struct agent_rig *rig =
        rig_new(&(struct rig_opts){.enclosures = 1, .raw_uid = 1001, .raw_gid = 1001});
    struct rig_client *client = rig_client_new(rig);
    const struct agent_user me = {.uid = 1002, .gid = 1002};
    char *text;
    bool seen;
    uint64_t tags[40];

    rig_run(rig, 100 * RIG_MS);
    rig_flash(rig, 0, KV, 1, 9000);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 1, 0, WAIT))->status, ICMS_OK);
    text = agent_trace(rig->agent, &me, NULL);
    assert_non_null(strstr(text, "\"op\""));
    free(text);
    rig->fake[0]->silent = true;
    for (uint32_t i = 0; i < 40; i++)
        tags[i] = rig_get(client, RAW, 100 + i, 10 + i, 50 * RIG_MS);
    for (uint32_t i = 0; i < 40; i++)
        (void)rig_wait(client, tags[i]);
    text = agent_trace(rig->agent, &me, NULL);
    seen = strstr(text, "\"op\"") != NULL;
    free(text);
    rig_client_free(client);
    rig_free(rig);
    assert_true(seen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_says_where_its_time_went),
        cmocka_unit_test(all_reactors_are_asked),
        cmocka_unit_test(a_request_without_a_key_has_none),
        cmocka_unit_test(a_user_sees_requests_of_its_volumes_alone),
        cmocka_unit_test(a_user_sees_its_own_slow_requests),
    };

    return cmocka_run_group_tests_name("agent-trace", tests, NULL, NULL);
}
