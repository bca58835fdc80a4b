/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume that is reset under an open handle: nothing of before is found, the handle goes on with
 * the new identity, and what it leased stays.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"

#define KV    0
#define RAW   1
#define BYTES 3000u

static const struct uuid second = {{2, 2, 2}}, nil;

static struct icms_key chain_key(const struct icms_volume *volume)
{
    const struct icms_layout layout = {
        .tenant = "acme", .model = "m", .dtype = "f16", .layout = "l", .block_tokens = 16};
    struct icms_chain chain;
    struct icms_key key;

    icms_chain_init(&chain, volume, &layout);
    icms_chain_next(&chain, "tokens", 6, &key);
    return key;
}

static void nothing_of_before_is_found(void **state)
{
    struct client_rig *rig = *state;
    struct icms_volume *volumes[] = {rig->kv, rig->raw};

    for (uint32_t v = KV; v <= RAW; v++) {
        struct icms_key before = chain_key(volumes[v]), after;
        struct icms_volume_info info;
        struct icms_block block;

        assert_int_equal(rig_put_one(volumes[v], 7, BYTES), ICMS_OK);
        assert_int_equal(rig_get_one(volumes[v], 7, BYTES, NULL), ICMS_OK);
        assert_int_equal(rig_get_one(volumes[v], 7, BYTES, &block), ICMS_OK);
        assert_int_equal(block.source, ICMS_SOURCE_DRAM); /* it lies in the mapped arena */
        fake_agent_reset(rig->agent, v, &second);
        assert_int_equal(rig_get_one(volumes[v], 7, BYTES, &block), ICMS_MISS);
        icms_volume_info(volumes[v], &info);
        assert_memory_equal(info.uuid, second.bytes, 16);
        after = chain_key(volumes[v]);
        assert_memory_not_equal(before.digest, after.digest, sizeof(before.digest));
        assert_int_equal(rig_put_one(volumes[v], 7, BYTES + 1), ICMS_OK);
        assert_int_equal(rig_get_one(volumes[v], 7, BYTES + 1, NULL), ICMS_OK);
    }
}

static void a_volume_that_changes_has_no_blocks(void **state)
{
    struct client_rig *rig = *state;
    struct icms_volume *other = NULL;
    char why[256];

    assert_int_equal(rig_put_one(rig->kv, 7, BYTES), ICMS_OK);
    fake_agent_reset(rig->agent, KV, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rig_get_one(rig->kv, 7, BYTES, NULL), ICMS_NO_VOLUME);
        assert_int_equal(rig_put_one(rig->kv, 7, BYTES), ICMS_NO_VOLUME);
    }
    assert_int_equal(icms_volume_open(rig->icms, "kv", why, sizeof(why), &other), ICMS_NO_VOLUME);
    assert_non_null(strstr(why, "being reset"));
    assert_int_equal(rig_put_one(rig->raw, 7, BYTES), ICMS_OK);
    fake_agent_reset(rig->agent, KV, &second);
    assert_int_equal(rig_get_one(rig->kv, 7, BYTES, NULL), ICMS_MISS);
    assert_int_equal(rig_put_one(rig->kv, 7, BYTES), ICMS_OK);
}

static void a_volume_leaves_the_pod_and_comes_back(void **state)
{
    struct client_rig *rig = *state;
    struct icms_volume *other = NULL;
    struct icms_volume_info info;
    char why[256];

    fake_agent_reset(rig->agent, KV, &nil);
    assert_int_equal(rig_get_one(rig->kv, 7, BYTES, NULL), ICMS_NO_VOLUME);
    assert_int_equal(rig_put_one(rig->kv, 7, BYTES), ICMS_NO_VOLUME);
    icms_volume_info(rig->kv, &info);
    assert_string_equal(info.name, "kv"); /* as it was before */
    assert_int_equal(icms_volume_open(rig->icms, "kv", why, sizeof(why), &other), ICMS_NO_VOLUME);
    assert_non_null(strstr(why, "pod does not have it"));
    fake_agent_reset(rig->agent, KV, NULL);
    fake_agent_reset(rig->agent, KV, &second);
    assert_int_equal(icms_volume_open(rig->icms, "kv", why, sizeof(why), &other), ICMS_OK);
    assert_int_equal(rig_put_one(rig->kv, 7, BYTES), ICMS_OK);
    assert_int_equal(rig_get_one(other, 7, BYTES, NULL), ICMS_OK);
    icms_volume_close(&other);
}

static void a_lease_stays(void **state)
{
    struct client_rig *rig = *state;
    struct icms_key key = rig_key(7);
    struct icms_lease lease;
    uint8_t value[BYTES];
    enum icms_miss reason;

    rig_fill(value, sizeof(value), 7);
    assert_int_equal(rig_put_one(rig->kv, 7, BYTES), ICMS_OK);
    assert_int_equal(icms_lease_take(rig->kv, &key, NULL, &reason, &lease), ICMS_OK);
    fake_agent_reset(rig->agent, KV, &second);
    for (uint32_t n = 100; n < 140; n++) /* more than the arena holds */
        assert_int_equal(rig_put_one(rig->kv, n, BYTES), ICMS_OK);
    for (uint32_t n = 100; n < 140; n++)
        assert_int_equal(rig_get_one(rig->kv, n, BYTES, NULL), ICMS_OK);
    assert_memory_equal(lease.data, value, sizeof(value));
    icms_lease_give(&lease);
    assert_int_equal(icms_lease_take(rig->kv, &key, NULL, &reason, &lease), ICMS_MISS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nothing_of_before_is_found, client_rig_setup,
                                        client_rig_teardown),
        cmocka_unit_test_setup_teardown(a_volume_that_changes_has_no_blocks, client_rig_setup,
                                        client_rig_teardown),
        cmocka_unit_test_setup_teardown(a_volume_leaves_the_pod_and_comes_back, client_rig_setup,
                                        client_rig_teardown),
        cmocka_unit_test_setup_teardown(a_lease_stays, client_rig_setup, client_rig_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
