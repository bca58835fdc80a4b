/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks of a prefix an agent has itself: in memory, and on its own drive; the enclosures are
 * not asked, an access is not counted, and what was reset or removed is not there.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"

#define KV     0
#define BYTES  20000u
#define KEYS   40
#define SLOTS  16
#define WAIT   (5000 * RIG_MS)
#define NOBODY 999999u

struct answer {
    int count; /* times that it was given */
    bool is_whole;
    struct agent_looked looked;
};

static void answered(void *arg, const struct agent_looked *looked)
{
    struct answer *answer = arg;

    answer->count++;
    answer->is_whole = looked != NULL;
    if (looked != NULL)
        answer->looked = *looked;
}

/* Asks for keys first, first + 1, ...; hole: one of them is another key. */
static struct agent_looked look(struct agent_rig *rig, uint32_t first, uint32_t count,
                                uint32_t hole)
{
    struct answer answer = {0};
    struct err_why why = {""};
    struct key keys[KEYS];

    assert_true(count <= KEYS);
    for (uint32_t i = 0; i < count; i++)
        rig_key(i == hole ? 500000 : first + i, &keys[i]);
    assert_int_equal(agent_look_start(rig->agent, NULL, "kv", keys, count, &why, answered, &answer),
                     ICMS_OK);
    rig_run(rig, RIG_MS);
    assert_int_equal(answer.count, 1);
    assert_true(answer.is_whole);
    return answer.looked;
}

static void a_prefix_in_memory_ends_at_its_first_hole(void **state)
{
    const struct rig_opts opts = {.enclosures = 1, .loops = 3, .slots = 64, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint64_t exists;

    for (uint32_t n = 0; n < 30; n++)
        assert_int_equal(rig_wait(client, rig_put(client, KV, n, BYTES, 0, WAIT))->status, ICMS_OK);
    for (uint32_t n = 30; n < KEYS; n++)
        rig_flash(rig, 0, KV, n, BYTES); /* the pod alone has these */
    exists = rig_stats(rig)->enclosures[0].op_ns[AGENT_LATENCY_EXIST].total;
    assert_int_equal(look(rig, 0, KEYS, NOBODY).dram, 30);
    assert_int_equal(look(rig, 0, KEYS, NOBODY).local, 30);
    assert_int_equal(look(rig, 0, 30, 7).dram, 7);
    assert_int_equal(look(rig, 0, 30, 0).dram, 0);
    assert_int_equal(look(rig, 30, 3, NOBODY).dram, 0);
    assert_int_equal(look(rig, 0, 0, NOBODY).local, 0);
    assert_int_equal(rig_stats(rig)->enclosures[0].op_ns[AGENT_LATENCY_EXIST].total, exists);
    assert_int_equal(rig_stats(rig)->volumes[KV].hits_dram, 0);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 5, WAIT))->status, ICMS_OK);
    assert_int_equal(look(rig, 0, 30, NOBODY).dram, 5);
    rig_client_free(client);
    rig_free(rig);
}

static void the_own_drive_goes_on_where_memory_ends(void **state)
{
    const struct rig_opts opts = {.enclosures = 1,
                                  .slots = SLOTS,
                                  .block_bytes = BYTES,
                                  .own_drive_bytes = (uint64_t)64 << 20};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    struct agent_looked looked;

    for (uint32_t n = 0; n < 3 * SLOTS; n++) {
        rig_flash(rig, 0, KV, n, BYTES);
        (void)rig_load(client, KV, n, BYTES);
        rig_run(rig, 20 * RIG_MS);
    }
    assert_true(rig_stats(rig)->tier.demoted >= SLOTS);
    looked = look(rig, 0, SLOTS, NOBODY);
    assert_int_equal(looked.dram, 0);
    assert_int_equal(looked.local, SLOTS);
    (void)rig_load(client, KV, 0, BYTES); /* from the drive, into memory */
    looked = look(rig, 0, SLOTS, 4);
    assert_int_equal(looked.dram, 1);
    assert_int_equal(looked.local, 4);
    looked = look(rig, 3 * SLOTS - 1, 2, NOBODY);
    assert_int_equal(looked.dram, 1);
    assert_int_equal(looked.local, 1);
    rig_client_free(client);
    rig_free(rig);
}

static void what_is_wrong_is_refused(void **state)
{
    const struct rig_opts opts = {
        .enclosures = 1, .slots = 16, .block_bytes = BYTES, .raw_uid = 1001};
    const struct agent_user stranger = {.uid = UINT32_MAX, .gid = UINT32_MAX};
    struct agent_rig *rig = rig_new(&opts);
    struct answer answer = {0};
    struct err_why why = {""};
    struct key key;

    rig_key(1, &key);
    assert_int_equal(agent_look_start(rig->agent, NULL, "no", &key, 1, &why, answered, &answer),
                     ICMS_NO_VOLUME);
    assert_int_equal(agent_look_start(rig->agent, NULL, "no", &key, 0, &why, answered, &answer),
                     ICMS_NO_VOLUME);
    assert_int_equal(
        agent_look_start(rig->agent, &stranger, "raw", &key, 1, &why, answered, &answer),
        ICMS_NO_VOLUME); /* which is another user's */
    key.length = LIMIT_KEY_BYTES + 1;
    assert_int_equal(agent_look_start(rig->agent, NULL, "kv", &key, 1, &why, answered, &answer),
                     ICMS_INVALID);
    key.length = 16;
    for (int i = 0; i < AGENT_MANY; i++)
        assert_int_equal(agent_look_start(rig->agent, NULL, "kv", &key, 1, &why, answered, &answer),
                         ICMS_OK);
    assert_int_equal(agent_look_start(rig->agent, NULL, "kv", &key, 1, &why, answered, &answer),
                     ICMS_BUSY);
    assert_int_equal(answer.count, 0);
    rig_run(rig, RIG_MS);
    assert_int_equal(answer.count, AGENT_MANY);
    /* An agent that ends with one in flight answers it. */
    assert_int_equal(agent_look_start(rig->agent, NULL, "kv", &key, 1, &why, answered, &answer),
                     ICMS_OK);
    rig_free(rig);
    assert_int_equal(answer.count, AGENT_MANY + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_in_memory_ends_at_its_first_hole),
        cmocka_unit_test(the_own_drive_goes_on_where_memory_ends),
        cmocka_unit_test(what_is_wrong_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
