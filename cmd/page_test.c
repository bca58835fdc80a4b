/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemons' pages make of readiness and counters. The target and the agent behind them are
 * made up here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent_page.h"
#include "ctl/test_page.h"
#include "target/target.h"
#include "target_page.h"

static bool is_ready;
static uint32_t target_volumes = 1;
static uint64_t loaded_age_ns = UINT64_MAX;
static struct agent_page agent_page;
static struct hist hists[AGENT_LATENCY_COUNT];

/* ---- a target and an agent ------------------------------------------------------------------ */

bool target_ready(const struct target *target, struct err_why *why)
{
    if (!is_ready)
        (void)err_set(why, ICMS_CLOSED, "draining");
    return is_ready;
}

void target_stats(const struct target *target, struct target_stats *out_stats)
{
    static const struct volume_spec volume = {.name = "kv"};
    static const struct tenant_spec tenant = {.name = "team", .weight = 3};

    memset(out_stats, 0, sizeof(*out_stats));
    out_stats->name = "e0";
    out_stats->nqn = "nqn.2026-01.io.icms:e0";
    out_stats->uuid = (struct uuid){.bytes = {[15] = 0xe0}};
    out_stats->capacity_bytes = 200;
    out_stats->used_bytes = 50;
    out_stats->up_ns = 7500000000;
    out_stats->loaded_age_ns = loaded_age_ns;
    out_stats->drive_count = 1;
    strcpy(out_stats->drives[0].path, "/dev/x");
    out_stats->drives[0].read_ns = hists[0];
    out_stats->drives[0].write_ns = hists[1];
    out_stats->nvmf.connections = 3;
    out_stats->nvmf.connections_max = 1024;
    out_stats->nvmf.connections_full = 2;
    out_stats->nvmf.portal_count = 2;
    out_stats->nvmf.portals[0] = (struct nvmf_target_portal_stats){{"192.0.2.1", 4420}, 3, 5};
    out_stats->nvmf.portals[1] = (struct nvmf_target_portal_stats){{"2001:db8::1", 4420}, 0, 7};
    out_stats->volume_count = 1;
    snprintf(out_stats->volumes[0].name, sizeof(out_stats->volumes[0].name), "%s", volume.name);
    out_stats->volumes[0].store.quota_bytes = volume.quota_bytes;
    out_stats->volumes[0].generation = 3;
    out_stats->volumes[0].encrypted = true;
    out_stats->volumes[0].require = REQUIRE_CHAP;
    out_stats->volumes[0].hits = 7;
    out_stats->volumes[0].loaded_age_ns = loaded_age_ns;
    out_stats->states[3].name = "look";
    out_stats->states[3].count = 4;
    out_stats->states[3].us = 2500000;
    for (; out_stats->volume_count < target_volumes; out_stats->volume_count++) {
        struct target_volume_stats *stats = &out_stats->volumes[out_stats->volume_count];

        /* The longest name, and the largest numbers. */
        *stats = (struct target_volume_stats){.hits = UINT64_MAX};
        (void)snprintf(stats->name, sizeof(stats->name), "%063u", out_stats->volume_count);
        memset(&stats->store, 0xff, sizeof(stats->store));
    }
    out_stats->tenants[0].spec = tenant;
    out_stats->tenants[0].nvmf.bytes[NVMF_TARGET_STORES] = 4096;
    out_stats->tenants[0].nvmf.wait_ns[NVMF_TARGET_LOADS] = 1500000000;
    out_stats->tenants[0].nvmf.sheds = 2;
    for (out_stats->tenant_count = 1; out_stats->tenant_count < target_volumes;) {
        struct target_tenant_stats *stats = &out_stats->tenants[out_stats->tenant_count];

        out_stats->tenant_count++;
        *stats = (struct target_tenant_stats){.nvmf = {.sheds = 0}};
        (void)snprintf(stats->spec.name, sizeof(stats->spec.name), "%063u",
                       out_stats->tenant_count);
        memset(&stats->nvmf, 0xff, sizeof(stats->nvmf));
    }
}

uint32_t target_connected(const struct target *target,
                          struct nvmf_target_connected out[NVMF_TARGET_CONNECTED],
                          uint32_t *out_more)
{
    out[0] = (struct nvmf_target_connected){
        .hostnqn = "nqn.2026-01.io.icms:a", .proven = 3, .controllers = 1, .connections = 4};
    out[1] = out[2] = out[0];
    out[1].has_epoch = out[2].has_epoch = true;
    out[2].epoch_min = 6;
    out[2].epoch_max = 7;
    out[2].age_ns = 1500000000;
    *out_more = 2;
    return 3;
}

char *target_trace(struct target *target, const struct key *key)
{
    return key == NULL ? NULL : strdup("{\"requests\":[]}");
}

bool agent_ready(struct agent *agent, double memory_percent_max, struct err_why *why)
{
    if (!is_ready)
        (void)err_set(why, ICMS_CLOSED, "draining");
    return is_ready;
}

void agent_stats(struct agent *agent, struct agent_stats *out_stats)
{
    struct agent_volume_stats *volume = &out_stats->volumes[0];

    memset(out_stats, 0, sizeof(*out_stats));
    out_stats->states[1].name = "new";
    out_stats->states[1].count = 9;
    out_stats->states[1].us = 1500;
    out_stats->is_map_refused = is_ready; /* in one of the two */
    out_stats->volume_count = out_stats->enclosure_count = 1;
    strcpy(out_stats->enclosures[0].name, "e0");
    memcpy(out_stats->enclosures[0].op_ns, hists, sizeof(out_stats->enclosures[0].op_ns));
    strcpy(volume->name, "kv");
    volume->identity.generation = 4;
    volume->hits_dram = 1000;
    volume->drive_blocks = 7;
    volume->drive_bytes = 28672;
    volume->misses[ICMS_MISS_ABSENT] = 3;
    volume->keys_found = 12;
    volume->matched = 12 + 65536;
    volume->matches[4] = 1;                     /* of 12 blocks    */
    volume->matches[SHM_MATCH_BUCKETS - 1] = 1; /* of 65,536 blocks */
    volume->evicted_age_ns = hists[0];
    volume->arena_evictions = 13;
    volume->arena_evicted[AGENT_EVICTED_SPACE] = 11;
    volume->arena_evicted[AGENT_EVICTED_VOLUME] = 2;
    out_stats->has_tier = true;
    out_stats->tier.kept = 6;
    out_stats->tier.evicted = 8;
    out_stats->tier.forgotten = 9;
}

bool agent_user_stats(struct agent *agent, uint32_t place, uint32_t volume,
                      struct agent_user_stats *out_stats)
{
    if (place > 1 || volume != 0)
        return false;
    *out_stats = (struct agent_user_stats){.requests = 5,
                                           .load_bytes = 4096,
                                           .load_pod_bytes = 1024,
                                           .wait_us = 2500000,
                                           .owner = place == 0,
                                           .uid = place == 0 ? 0 : 1001};
    return true;
}

size_t agent_status(struct agent *agent, char *out, size_t bytes)
{
    (void)snprintf(out, bytes, "{}");
    return 2;
}

/* ---- tests ---------------------------------------------------------------------------------- */

/* True when the page has this line. */
static bool has(const struct ctl_page *page, const char *line)
{
    const char *text = ctl_page_text(page);

    for (const char *at = text; (at = strstr(at, line)) != NULL; at++)
        if ((at == text || at[-1] == '\n') && at[strlen(line)] == '\n')
            return true;
    return false;
}

static void test_a_target_is_as_ready_as_it_says(void **state)
{
    struct err_why why = {""};

    is_ready = true;
    assert_true(target_page_ready(NULL, &why));
    is_ready = false;
    assert_false(target_page_ready(NULL, &why));
    assert_string_equal(why.text, "draining");
}

static void test_a_target_tells_its_readiness(void **state)
{
    for (int ready = 0; ready < 2; ready++) {
        struct ctl_page *page = ctl_page_new();

        is_ready = ready != 0;
        target_page_metrics(NULL, page);
        assert_true(has(page, ready ? "icms_target_ready 1" : "icms_target_ready 0"));
        assert_true(has(page, "kv_cache_usage_perc 0.25"));
        assert_true(has(page, "icms_target_hits_total{volume=\"kv\"} 7"));
        assert_true(has(page, "icms_target_volume_generation{volume=\"kv\"} 3"));
        assert_true(
            has(page, "icms_target_tenant_bytes_total{tenant=\"team\",class=\"store\"} 4096"));
        assert_true(
            has(page, "icms_target_tenant_wait_seconds_total{tenant=\"team\",class=\"load\"} 1.5"));
        assert_true(has(page, "icms_target_tenant_sheds_total{tenant=\"team\"} 2"));
        assert_true(has(page, "icms_target_connections_max 1024"));
        assert_true(has(page, "icms_target_connections_full_total 2"));
        assert_true(has(page, "icms_target_portal_connections{portal=\"192.0.2.1:4420\"} 3"));
        assert_true(
            has(page, "icms_target_portal_connections_total{portal=\"[2001:db8::1]:4420\"} 7"));
        assert_true(has(page, "icms_target_commands_in_state_total{state=\"look\"} 4"));
        assert_true(has(page, "icms_target_command_state_seconds_total{state=\"look\"} 2.5"));
        ctl_page_free(&page);
        page = ctl_page_new();
        target_page_status(NULL, page);
        assert_non_null(strstr(ctl_page_text(page), ready
                                                        ? "\"ready\":true,\"why\":\"\""
                                                        : "\"ready\":false,\"why\":\"draining\""));
        assert_non_null(strstr(ctl_page_text(page),
                               "{\"name\":\"e0\",\"nqn\":\"nqn.2026-01.io.icms:e0\","
                               "\"uuid\":\"00000000-0000-0000-0000-0000000000e0\","));
        assert_non_null(strstr(ctl_page_text(page), "\"connections\":3,\"connections_max\":1024,"));
        assert_non_null(
            strstr(ctl_page_text(page),
                   "[{\"nqn\":\"nqn.2026-01.io.icms:a\",\"proven\":\"chap+tls\","
                   "\"controllers\":1,\"connections\":4,\"connected_seconds\":0.000},"));
        assert_non_null(strstr(ctl_page_text(page), "\"connected_seconds\":0.000,\"epoch\":0},"));
        assert_non_null(strstr(ctl_page_text(page),
                               "\"connected_seconds\":1.500,\"epoch\":6,\"epoch_max\":7}],"
                               "\"controllers_more\":2,"));
        assert_non_null(strstr(ctl_page_text(page), "\"generation\":3,\"nsid\":1,"
                                                    "\"encrypted\":true,\"require\":\"chap\","));
        assert_non_null(strstr(ctl_page_text(page), "{\"name\":\"team\",\"weight\":3,\"load\":"));
        ctl_page_free(&page);
    }
}

static void test_a_target_tells_its_pod_map(void **state)
{
    struct target_page_pod pod = {.name = "pod0", .epoch = 7, .refused = "p.yaml:3: \"x\""};
    struct ctl_page *page = ctl_page_new();

    target_page_metrics(NULL, page);
    assert_true(has(page, "icms_target_epoch 0"));
    assert_true(has(page, "icms_target_map_refused 0"));
    ctl_page_free(&page);
    target_page_pod_set(&pod);
    page = ctl_page_new();
    target_page_metrics(NULL, page);
    assert_true(has(page, "icms_target_epoch 7"));
    assert_true(has(page, "icms_target_map_refused 1"));
    ctl_page_free(&page);
    page = ctl_page_new();
    target_page_status(NULL, page);
    assert_non_null(strstr(ctl_page_text(page), "\"pod\":\"pod0\",\"epoch\":7,"
                                                "\"map_refused\":\"p.yaml:3: \\\"x\\\"\","));
    ctl_page_free(&page);
}

static void test_a_target_tells_when_it_was_last_read(void **state)
{
    struct ctl_page *page = ctl_page_new();

    target_page_metrics(NULL, page); /* never */
    assert_true(has(page, "icms_target_last_load_age_seconds 7.5"));
    ctl_page_free(&page);
    page = ctl_page_new();
    target_page_status(NULL, page);
    assert_non_null(
        strstr(ctl_page_text(page), "\"uptime_seconds\":7.500,\"last_load_age_seconds\":null,"));
    ctl_page_free(&page);
    loaded_age_ns = 1500000000;
    page = ctl_page_new();
    target_page_metrics(NULL, page);
    assert_true(has(page, "icms_target_last_load_age_seconds 1.5"));
    ctl_page_free(&page);
    page = ctl_page_new();
    target_page_status(NULL, page);
    assert_non_null(
        strstr(ctl_page_text(page), "\"uptime_seconds\":7.500,\"last_load_age_seconds\":1.500,"));
    assert_non_null(
        strstr(ctl_page_text(page), "\"evictions\":0,\"last_load_age_seconds\":1.500}"));
    ctl_page_free(&page);
    loaded_age_ns = UINT64_MAX;
}

/* Both pages of an enclosure with 1,024 volumes, and longest names, fit. */
static void test_the_pages_have_room_for_1024_volumes(void **state)
{
    struct ctl_page *page = ctl_page_new();

    target_volumes = LIMIT_VOLUMES;
    target_page_metrics(NULL, page);
    assert_non_null(strstr(ctl_page_text(page), "0000000001023\"} "));
    assert_true(has(page, "icms_target_prestage_parks_total 0"));
    assert_true(has(page, "icms_target_buffers_parks_total 0")); /* the last line */
    ctl_page_free(&page);
    page = ctl_page_new();
    target_page_status(NULL, page);
    assert_non_null(strstr(ctl_page_text(page), "0001023\",\"uuid\""));
    assert_string_equal(ctl_page_text(page) + strlen(ctl_page_text(page)) - 4, "}]}\n");
    ctl_page_free(&page);
    target_volumes = 1;
}

static void test_a_trace_is_passed_on(void **state)
{
    struct ctl_page *page = ctl_page_new();
    struct key key = {.bytes = {1}, .length = 1};

    target_page_trace(NULL, &key, page);
    assert_string_equal(ctl_page_text(page), "{\"requests\":[]}\n");
    ctl_page_free(&page);
    page = ctl_page_new();
    target_page_trace(NULL, NULL, page); /* no memory */
    assert_string_equal(ctl_page_text(page), "{}\n");
    ctl_page_free(&page);
}

static void test_an_agent_is_ready_when_clients_can_attach(void **state)
{
    struct err_why why = {""};

    is_ready = true;
    atomic_store(&agent_page.attaching, false);
    assert_false(agent_page_ready(&agent_page, &why));
    assert_non_null(strstr(why.text, "starting"));
    atomic_store(&agent_page.attaching, true);
    assert_true(agent_page_ready(&agent_page, &why));
    is_ready = false;
    assert_false(agent_page_ready(&agent_page, &why));
    assert_string_equal(why.text, "draining");
}

static void test_an_agent_tells_its_readiness_and_counts(void **state)
{
    atomic_store(&agent_page.attaching, true);
    for (int ready = 0; ready < 2; ready++) {
        struct ctl_page *page = ctl_page_new();

        is_ready = ready != 0;
        agent_page_metrics(&agent_page, page);
        assert_true(has(page, ready ? "icms_agent_ready 1" : "icms_agent_ready 0"));
        assert_true(has(page, ready ? "icms_agent_map_refused 1" : "icms_agent_map_refused 0"));
        assert_true(has(page, "icms_agent_hits_total{tier=\"dram\",volume=\"kv\"} 1000"));
        assert_true(has(page, "icms_agent_volume_generation{volume=\"kv\"} 4"));
        assert_true(has(page, "icms_agent_drive_blocks{volume=\"kv\"} 7"));
        assert_true(has(page, "icms_agent_drive_bytes{volume=\"kv\"} 28672"));
        assert_true(has(page, "icms_agent_tier_evictions_total{tier=\"dram\"} 13"));
        assert_true(has(page, "icms_agent_tier_evictions_total{tier=\"local\"} 8"));
        assert_true(
            has(page, "icms_agent_arena_evictions_total{reason=\"space\",volume=\"kv\"} 11"));
        assert_true(
            has(page, "icms_agent_arena_evictions_total{reason=\"volume\",volume=\"kv\"} 2"));
        assert_true(has(page, "icms_agent_drive_offers_total{result=\"present\"} 6"));
        assert_true(has(page, "icms_agent_drive_deletions_total 9"));
        assert_true(has(page, "icms_agent_misses_total{reason=\"absent\",volume=\"kv\"} 3"));
        assert_true(has(page, "icms_agent_requests_in_state_total{state=\"new\"} 9"));
        assert_true(has(page, "icms_agent_request_state_seconds_total{state=\"new\"} 0.0015"));
        assert_true(has(page, "icms_agent_keys_total{result=\"found\",volume=\"kv\"} 12"));
        assert_true(has(page, "icms_agent_match_blocks_bucket{volume=\"kv\",le=\"7\"} 0"));
        assert_true(has(page, "icms_agent_match_blocks_bucket{volume=\"kv\",le=\"15\"} 1"));
        assert_true(has(page, "icms_agent_match_blocks_bucket{volume=\"kv\",le=\"4095\"} 1"));
        assert_null(strstr(ctl_page_text(page), "le=\"8191\""));
        assert_true(has(page, "icms_agent_match_blocks_bucket{volume=\"kv\",le=\"+Inf\"} 2"));
        assert_true(has(page, "icms_agent_match_blocks_sum{volume=\"kv\"} 65548"));
        assert_true(has(page, "icms_agent_user_requests_total{user=\"owner\",volume=\"kv\"} 5"));
        assert_true(
            has(page, "icms_agent_user_load_pod_bytes_total{user=\"owner\",volume=\"kv\"} 1024"));
        assert_true(
            has(page, "icms_agent_user_wait_seconds_total{user=\"1001\",volume=\"kv\"} 2.5"));
        ctl_page_free(&page);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_target_is_as_ready_as_it_says),
        cmocka_unit_test(test_a_target_tells_its_readiness),
        cmocka_unit_test(test_a_target_tells_its_pod_map),
        cmocka_unit_test(test_a_target_tells_when_it_was_last_read),
        cmocka_unit_test(test_the_pages_have_room_for_1024_volumes),
        cmocka_unit_test(test_a_trace_is_passed_on),
        cmocka_unit_test(test_an_agent_is_ready_when_clients_can_attach),
        cmocka_unit_test(test_an_agent_tells_its_readiness_and_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
