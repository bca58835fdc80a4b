/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints that blocks are to be on the own drive: brought there from the pod behind loads, within its
 * write budget, each with one end that is counted; and what a drive that is slow, full, failing or
 * not there costs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "base/check.h"

#define MS    RIG_MS
#define KV    0
#define BYTES 60000u
#define SLOTS 16
#define DRIVE ((uint64_t)32 << 20)
#define AT    (3u << 20) /* in staging memory, behind what puts use */

static struct agent_rig *rig_of(struct rig_opts opts)
{
    opts.seed = 11;
    opts.enclosures = 1;
    if (opts.slots == 0)
        opts.slots = SLOTS;
    if (opts.own_drive_bytes == 0)
        opts.own_drive_bytes = DRIVE;
    return rig_new(&opts);
}

/* Hints of keys first, first + 1, ..., to a tier; returns how many were taken. */
static uint32_t hints_flags(struct rig_client *client, uint32_t first, uint32_t count,
                            uint64_t need_ns, uint32_t tier, uint8_t flags)
{
    struct shm_submit entry = {.op = SHM_OP_PRESTAGE,
                               .offset = AT,
                               .bytes = count,
                               .flags = flags,
                               .lease = shm_hint(tier, 0, 0),
                               .aside = rig_now_ns(client->rig) + need_ns,
                               .deadline_ns = rig_now_ns(client->rig) + 2000 * MS};
    uint8_t *memory = client->ring.staging + AT;
    const struct shm_complete *answer;
    uint32_t taken = 0;

    for (uint32_t i = 0; i < count; i++) {
        rig_put_key(memory, i, first + i);
    }
    memset(memory + count * sizeof(struct shm_key), 0xee, count);
    answer = rig_wait(client, rig_submit(client, &entry));
    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_OK);
    for (uint32_t i = 0; i < count; i++)
        taken += memory[count * sizeof(struct shm_key) + i] == ICMS_MISS_NONE;
    return taken;
}

static void hints(struct rig_client *client, uint32_t first, uint32_t count, uint64_t need_ns,
                  uint32_t tier)
{
    assert_int_equal(hints_flags(client, first, count, need_ns, tier, 0), count);
}

static void to_drive(struct rig_client *client, uint32_t first, uint32_t count, uint64_t need_ns)
{
    for (uint32_t n = first; n < first + count; n++)
        rig_flash(client->rig, 0, KV, n, BYTES);
    hints(client, first, count, need_ns, ICMS_TIER_LOCAL);
}

static const struct agent_tier_stats *drive_of(struct agent_rig *rig)
{
    return &rig_stats(rig)->tier;
}

/* Each operation of the drive takes so many times as long. */
static void drive_slow(struct agent_rig *rig, uint32_t factor)
{
    sim_file_slow(rig->node, RIG_DRIVE, factor);
}

static uint64_t ended(struct agent_rig *rig, enum agent_hint_end end)
{
    return rig_hints(rig)->ended[end];
}

/* Loads a block, whose bytes are right; returns where it came from, or -1 for a miss. */
static int load_bytes(struct rig_client *client, uint32_t n, uint32_t bytes)
{
    const struct shm_complete *answer = rig_wait(client, rig_get(client, KV, n, 9, 2000 * MS));
    int source;

    assert_non_null(answer);
    if (answer->status != ICMS_OK)
        return -1;
    source = answer->source;
    assert_true(rig_value_is(client, KV, n, bytes, answer));
    rig_lease_give(client, 9);
    return source;
}

static int load(struct rig_client *client, uint32_t n)
{
    return load_bytes(client, n, BYTES);
}

/* Other blocks take all of the memory. */
static void memory_turns_over(struct rig_client *client)
{
    for (uint32_t n = 5000; n < 5000 + 3 * SLOTS; n++) {
        rig_flash(client->rig, 0, KV, n, BYTES);
        assert_true(load(client, n) >= 0);
        rig_run(client->rig, 10 * MS);
    }
}

static void a_hint_brings_a_block_to_the_drive(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    to_drive(client, 1, 4, 60000 * MS);
    rig_run(rig, 200 * MS);
    assert_int_equal(drive_of(rig)->prestaged, 4);
    assert_true(drive_of(rig)->prestaged_bytes >= 4 * BYTES);
    assert_int_equal(drive_of(rig)->blocks, 4);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_PRESTAGE], 4);
    assert_int_equal(rig_hints(rig)->load_bytes, 4 * BYTES);
    assert_int_equal(rig_hints(rig)->waiting, 4);
    assert_int_equal(rig_hints(rig)->kept_bytes, 0); /* memory is for others */
    memory_turns_over(client);
    for (uint32_t n = 1; n <= 4; n++)
        assert_int_equal(load(client, n), ICMS_SOURCE_LOCAL);
    assert_int_equal(ended(rig, AGENT_HINT_IN_TIME), 4);
    assert_int_equal(rig_hints(rig)->unused_bytes, 0);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* What is in memory is not loaded for it, and what the drive has is not written again. */
static void what_is_there_moves_once(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    uint64_t retrieves;

    rig_flash(rig, 0, KV, 1, BYTES);
    assert_true(load(client, 1) >= 0);
    retrieves = rig->fake[0]->retrieves;
    hints(client, 1, 1, 60000 * MS, ICMS_TIER_LOCAL);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig->fake[0]->retrieves, retrieves);
    assert_int_equal(drive_of(rig)->prestaged, 1);
    assert_int_equal(load(client, 1), ICMS_SOURCE_DRAM); /* still in memory: in time, too */
    assert_int_equal(ended(rig, AGENT_HINT_IN_TIME), 1);
    hints(client, 1, 1, 60000 * MS, ICMS_TIER_LOCAL);
    rig_run(rig, 100 * MS);
    assert_int_equal(drive_of(rig)->prestaged, 1);
    assert_int_equal(rig_hints(rig)->waiting, 1);
    memory_turns_over(client);
    assert_int_equal(load(client, 1), ICMS_SOURCE_LOCAL);
    assert_int_equal(ended(rig, AGENT_HINT_IN_TIME), 2);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Copies of what is in memory keep the loop from all else: a turn of it begins few of them. */
static void blocks_in_memory_are_copied_a_few_in_a_turn(void **state)
{
    enum { LARGE = 4 << 20, COUNT = 12, FEW = AGENT_TAKE_BYTES / LARGE + 1 };
    struct agent_rig *rig = rig_of((struct rig_opts){
        .value_bytes = LARGE, .block_bytes = LARGE, .own_drive_bytes = (uint64_t)128 << 20});
    struct rig_client *client;
    uint64_t writing = 0;

    rig->opts.local_path = "/drive/large"; /* its segments have space for them */
    rig->opts.local_segment_bytes = 16 << 20;
    rig_restart(rig, true);
    assert_int_equal(drive_of(rig)->state, AGENT_TIER_UP);
    client = rig_client_new(rig);
    for (uint32_t n = 1; n <= COUNT; n++) {
        rig_flash(rig, 0, KV, n, LARGE);
        assert_int_equal(load_bytes(client, n, LARGE), ICMS_SOURCE_POD);
    }
    sim_file_slow(rig->node, rig->opts.local_path, 100);
    hints(client, 1, COUNT, 60000 * MS, ICMS_TIER_LOCAL);
    assert_int_equal(rig_hints(rig)->loading, 0);
    for (uint64_t before = 0; drive_of(rig)->prestaged == 0; before = writing) {
        assert_true(sim_step(rig->sim)); /* a turn at most */
        writing = rig_hints(rig)->loading;
        assert_true(writing <= before + FEW);
    }
    assert_true(writing > FEW); /* in more than one */
    rig_run(rig, 20000 * MS);
    assert_int_equal(drive_of(rig)->prestaged, COUNT);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_PRESTAGE], 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Blocks of the range that are on the drive. */
static uint32_t on_drive(const struct agent_rig *rig, uint32_t first, uint32_t count)
{
    uint32_t there = 0;
    struct key key;

    for (uint32_t n = first; n < first + count; n++) {
        rig_key(n, &key);
        there += agent_tier_has(&rig->agent->reactors[0].shards[KV], &key);
    }
    return there;
}

/* What is in memory is loaded for nobody, and its copies are taken in turns all the same. */
static void users_take_turns_at_the_drive(void **state)
{
    enum { MANY = 100, FEW = 4 };
    const struct agent_user users[2] = {{.uid = 5, .gid = 5}, {.uid = 6, .gid = 6}};
    struct agent_rig *rig = rig_of((struct rig_opts){.slots = 128});
    struct rig_client *client[2];
    icms_err err;

    for (int i = 0; i < 2; i++) {
        client[i] = rig_client_as(rig, &users[i], &err);
        assert_non_null(client[i]);
    }
    for (uint32_t n = 1; n <= MANY + FEW; n++) {
        rig_flash(rig, 0, KV, n, BYTES);
        assert_true(load(client[0], n) >= 0);
    }
    drive_slow(rig, 100);
    hints(client[0], 1, MANY, 60000 * MS, ICMS_TIER_LOCAL);
    hints(client[1], MANY + 1, FEW, 60000 * MS, ICMS_TIER_LOCAL);
    while (on_drive(rig, MANY + 1, FEW) < FEW)
        assert_true(sim_step(rig->sim));
    assert_true(on_drive(rig, 1, MANY) <= AGENT_TIER_IOS / 2 + 3 * FEW);
    for (int i = 0; i < 2; i++)
        rig_client_free(client[i]);
    rig_free(rig);
}

/* Reads for hints have a part of the buffers. */
static void hints_leave_the_drive_to_loads(void **state)
{
    enum { COUNT = 100, MEMORY = 128 };
    struct agent_rig *rig = rig_of(
        (struct rig_opts){.slots = MEMORY, .own_drive_bytes = 2 * DRIVE, .own_drive_share = 1});
    struct rig_client *client = rig_client_new(rig);
    const struct agent_tier *tier = rig->agent->tier;
    const struct shm_complete *answer;
    uint32_t reads, most = 0;

    for (uint32_t n = 1; n <= COUNT + MEMORY; n++) {
        answer = rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 2000 * MS));
        assert_int_equal(answer->status, ICMS_OK);
    }
    drive_slow(rig, 100);
    hints(client, 1, COUNT - 1, 60000 * MS, ICMS_TIER_DRAM);
    while (rig_hints(rig)->loading > 0 || most == 0) {
        reads = 0;
        list_for_each (link, &tier->busy)
            reads++;
        most = reads > most ? reads : most;
        assert_true(sim_step(rig->sim));
    }
    assert_in_range(most, 2, AGENT_TIER_IOS / AGENT_TIER_HINTS);
    rig_client_free(client);
    rig_free(rig);
}

/* A session that its user left is on the drive, and comes to memory when the user types: one load
 * from the pod, and both hints were of use. */
static void a_hint_for_memory_reads_what_a_hint_brought_to_the_drive(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    uint64_t pod;

    to_drive(client, 1, 3, 300000 * MS);
    rig_run(rig, 100 * MS);
    memory_turns_over(client);
    pod = rig->fake[0]->retrieves;
    hints(client, 1, 3, 1000 * MS, ICMS_TIER_DRAM);
    rig_run(rig, 100 * MS);
    assert_int_equal(ended(rig, AGENT_HINT_IN_TIME), 3);
    for (uint32_t n = 1; n <= 3; n++)
        assert_int_equal(load(client, n), ICMS_SOURCE_DRAM);
    assert_int_equal(ended(rig, AGENT_HINT_IN_TIME), 6);
    assert_int_equal(rig->fake[0]->retrieves, pod);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

static void what_nobody_asks_for_is_unused(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    to_drive(client, 1, 2, 1000 * MS);
    rig_run(rig, 2500 * MS);
    assert_int_equal(ended(rig, AGENT_HINT_UNUSED), 2);
    assert_int_equal(rig_hints(rig)->unused_bytes, 2 * BYTES);
    assert_int_equal(rig_hints_left(rig), 0);
    to_drive(client, 11, 1, 60000 * MS);
    rig_run(rig, 100 * MS);
    assert_int_equal(hints_flags(client, 11, 1, 0, ICMS_TIER_DRAM, SHM_FLAG_FORGET), 1);
    assert_int_equal(ended(rig, AGENT_HINT_CANCELED), 1);
    assert_int_equal(rig_hints(rig)->unused_bytes, 3 * BYTES);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A get that comes before the block does not wait for the drive, and makes the hint a late one. */
static void a_get_does_not_wait_for_the_drive(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    uint64_t begin_ns;

    drive_slow(rig, 1000);
    to_drive(client, 1, 1, 60000 * MS);
    rig_run(rig, 50 * MS);
    assert_int_equal(rig_hints(rig)->loading, 1); /* is being written */
    begin_ns = rig_now_ns(rig);
    assert_int_equal(load(client, 1), ICMS_SOURCE_DRAM);
    assert_true(rig_now_ns(rig) - begin_ns < 20 * MS);
    rig_run(rig, 3000 * MS);
    assert_int_equal(ended(rig, AGENT_HINT_LATE), 1);
    rig->fake[0]->delay_ns = 20 * MS;
    to_drive(client, 2, 1, 60000 * MS);
    rig_run(rig, 5 * MS);
    assert_int_equal(load(client, 2), ICMS_SOURCE_POD);
    rig_run(rig, 3000 * MS);
    assert_int_equal(ended(rig, AGENT_HINT_LATE), 2);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Hints for memory have turns of their own: a drive that takes nothing, or takes its time, does not
 * delay them, and no hint waits for it for ever. */
static void a_hanging_drive_holds_no_hint_for_memory(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    drive_slow(rig, 10000000);
    to_drive(client, 100, 200, 5000 * MS);
    rig_run(rig, 100 * MS);
    assert_true(rig_hints(rig)->queued > 100); /* no more loads than it has buffers for */
    assert_true(rig->fake[0]->by_class[IO_CLASS_PRESTAGE] <= AGENT_TIER_IOS / 2);
    for (uint32_t n = 1; n <= 4; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    hints(client, 1, 4, 60000 * MS, ICMS_TIER_DRAM);
    rig_run(rig, 50 * MS);
    for (uint32_t n = 1; n <= 4; n++)
        assert_int_equal(load(client, n), ICMS_SOURCE_DRAM);
    assert_int_equal(ended(rig, AGENT_HINT_IN_TIME), 4);
    rig_run(rig, 8000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    assert_int_equal(ended(rig, AGENT_HINT_DROPPED), 200);
    rig_client_free(client);
    rig_free(rig);
}

/* What the write budget does not allow is not loaded either, but for one block now and then. */
static void the_write_budget_is_kept(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_day = (uint64_t)64 << 20});
    struct rig_client *client = rig_client_new(rig);
    uint64_t loads;

    for (uint32_t first = 1; first < 1500; first += 500)
        to_drive(client, first, 500, 20000 * MS);
    rig_run(rig, 10000 * MS);
    assert_true(ended(rig, AGENT_HINT_OVER_BUDGET) > 0);
    assert_int_equal(drive_of(rig)->refused, 0); /* of evictions */
    loads = rig->fake[0]->by_class[IO_CLASS_PRESTAGE];
    rig_run(rig, 5000 * MS);
    assert_true(rig->fake[0]->by_class[IO_CLASS_PRESTAGE] - loads <= 60);
    rig_run(rig, 30000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    assert_true(ended(rig, AGENT_HINT_DROPPED) > 500);
    rig_client_free(client);
    rig_free(rig);
}

/* A drive with less space than is hinted keeps the last ones; what it evicted comes from the pod.
 */
static void a_full_drive_costs_no_block(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_bytes = (uint64_t)8 << 20});
    struct rig_client *client = rig_client_new(rig);
    uint32_t from_drive = 0;

    to_drive(client, 1, 200, 60000 * MS);
    rig_run(rig, 2000 * MS);
    assert_int_equal(drive_of(rig)->prestaged, 200);
    assert_true(drive_of(rig)->blocks < 200);
    memory_turns_over(client);
    for (uint32_t n = 1; n <= 200; n++) {
        int source = load(client, n);

        assert_true(source >= 0);
        from_drive += source == ICMS_SOURCE_LOCAL;
    }
    assert_true(from_drive > 0);
    assert_int_equal(rig_hints_left(rig), 0);
    assert_int_equal(ended(rig, AGENT_HINT_IN_TIME) + ended(rig, AGENT_HINT_UNUSED), 200);
    assert_true(ended(rig, AGENT_HINT_UNUSED) > 0);
    assert_true(rig_hints(rig)->unused_bytes >= ended(rig, AGENT_HINT_UNUSED) * BYTES);
    rig_client_free(client);
    rig_free(rig);
}

/* A drive that fails while it is written, and one that has failed. */
static void a_drive_that_fails_costs_hints_alone(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    sim_disk_dead(rig->node, RIG_DRIVE, true);
    to_drive(client, 1, 40, 60000 * MS);
    rig_run(rig, 500 * MS);
    assert_int_equal(drive_of(rig)->state, AGENT_TIER_DOWN);
    assert_true(ended(rig, AGENT_HINT_FAILED) > 10);
    to_drive(client, 101, 40, 60000 * MS);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_hints(rig)->queued + rig_hints(rig)->loading, 0);
    for (uint32_t n = 1; n <= 40; n++)
        assert_true(load(client, n) >= 0);
    rig_run(rig, 62000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Something that is no store lies where the drive should be. */
static void foreign_prepare(struct sim_node *node)
{
    struct loop_file_opts opts = {.path = RIG_DRIVE, .create = true, .write = true, .bytes = DRIVE};
    static uint8_t page[4096] = {'x'};
    struct loop_file *file;

    assert_int_equal(loop_file_open(sim_node_env(node), &opts, NULL, &file), ICMS_OK);
    assert_int_equal(loop_file_write_now(file, 0, page, sizeof(page)), ICMS_OK);
    loop_file_close(&file);
}

/* Hints for a drive that is not used fail, and load nothing. */
static void a_foreign_drive_costs_hints_alone(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.prepare = foreign_prepare});
    struct rig_client *client = rig_client_new(rig);

    to_drive(client, 1, 40, 60000 * MS);
    rig_run(rig, 100 * MS);
    assert_int_equal(ended(rig, AGENT_HINT_FAILED), 40);
    assert_int_equal(rig->fake[0]->retrieves, 0);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

static void tiers_that_are_none_are_refused(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    static const uint32_t tiers[] = {ICMS_TIER_LOCAL + 1, (1u << SHM_HINT_BITS) - 1};
    struct shm_submit entry = {.op = SHM_OP_PRESTAGE, .bytes = 1};

    for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++) {
        entry.lease = shm_hint(tiers[i], 0, 0);
        assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_UNSUPPORTED);
    }
    entry.lease = shm_hint(ICMS_TIER_LOCAL, ICMS_PRIORITY_MAX + 1, 0);
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    assert_int_equal(hints_flags(client, 1, 500, 0, ICMS_TIER_LOCAL, 0), 0); /* it has passed */
    assert_int_equal(rig_hints(rig)->passed, 500);
    assert_int_equal(rig_hints(rig)->taken, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* What was replaced or removed meanwhile does not come back from there. */
static void what_is_replaced_or_removed_does_not_come_back(void **state)
{
    enum { NEW = BYTES - 10000 };
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    drive_slow(rig, 20);
    for (uint32_t round = 0; round < 20; round++) {
        uint32_t n = 1 + 2 * round, gone = n + 1;

        to_drive(client, n, 2, 60000 * MS);
        rig_run(rig, round * 3 * MS); /* loading, written, or there */
        assert_int_equal(
            rig_wait(client,
                     rig_put(client, KV, n, NEW, round % 2 == 0 ? SHM_FLAG_ON_FLASH : 0, 2000 * MS))
                ->status,
            ICMS_OK);
        assert_int_equal(
            rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, gone, 2000 * MS))->status, ICMS_OK);
        rig_run(rig, 100 * MS);
    }
    memory_turns_over(client);
    for (uint32_t n = 1; n <= 40; n += 2) {
        assert_true(load_bytes(client, n, NEW) >= 0);
        assert_int_equal(load(client, n + 1), -1);
    }
    rig_run(rig, 62000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A million hints, of keys that do not exist: refused or absent, and loads are served meanwhile. */
static void a_flood_of_lies_harms_nobody(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    uint64_t taken = 0, asked = 0;

    for (uint32_t n = 1; n <= 10; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    for (uint32_t first = 100000; asked < 1000000; first += SHM_HINT_KEYS) {
        taken +=
            hints_flags(client, first, SHM_HINT_KEYS, 60000 * MS, first / SHM_HINT_KEYS % 2, 0);
        asked += SHM_HINT_KEYS;
        if (client->next_tag > RIG_ANSWERS - 64)
            break;
        if (asked % (SHM_HINT_KEYS * 256) == 0) {
            uint64_t begin_ns = rig_now_ns(rig);

            assert_true(load(client, 1 + asked / (SHM_HINT_KEYS * 256) % 10) >= 0);
            assert_true(rig_now_ns(rig) - begin_ns < 20 * MS);
        }
    }
    assert_true(rig_hints(rig)->full > 0 && taken < asked);
    rig_run(rig, 70000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    assert_int_equal(drive_of(rig)->prestaged, 0);
    rig_client_free(client);
    rig_free(rig);
}

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Hints for both tiers, gets, puts, removes and cancels at random, while pod and drive are slow at
 * times and the enclosure is lost: every hint has one end, no byte is wrong. */
static void every_hint_has_one_end(void **state)
{
    enum { KEYS = 60, STEPS = 4000 };
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_bytes = (uint64_t)16 << 20});
    struct rig_client *client = rig_client_new(rig);
    uint64_t seed = 5;

    for (uint32_t n = 0; n < KEYS; n += 2)
        rig_flash(rig, 0, KV, n, BYTES);
    for (int step = 0; step < STEPS && client->next_tag < RIG_ANSWERS - 16; step++) {
        uint32_t n = (uint32_t)(random_next(&seed) % KEYS), what = random_next(&seed) % 100;
        uint32_t tier = random_next(&seed) % 2, count = 1 + (uint32_t)(random_next(&seed) % 4);

        if (what < 40)
            (void)hints_flags(client, n, count, random_next(&seed) % 300 * MS, tier, 0);
        else if (what < 48)
            (void)hints_flags(client, n, count, 0, tier, SHM_FLAG_FORGET);
        else if (what < 75)
            (void)load(client, n);
        else if (what < 80)
            (void)rig_wait(client, rig_put(client, KV, n, BYTES, 0, 500 * MS));
        else if (what < 83)
            (void)rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, 500 * MS));
        else if (what < 85)
            rig->fake[0]->delay_ns = random_next(&seed) % 4 * 10 * MS;
        else if (what < 87)
            drive_slow(rig, 1 + (uint32_t)(random_next(&seed) % 4) * 40);
        else if (what < 88)
            rig->fake[0]->wrong = FAKE_RESET;
        else
            rig_run(rig, random_next(&seed) % 20 * MS);
        (void)rig_hints_left(rig);
    }
    rig_run(rig, 10000 * MS);
    assert_int_equal(rig_hints_left(rig), 0);
    assert_true(drive_of(rig)->prestaged > 0);
    for (int i = 0; i < AGENT_HINT_ENDS; i++)
        print_message("  %s %llu\n", agent_hint_end_name((enum agent_hint_end)i),
                      (unsigned long long)ended(rig, (enum agent_hint_end)i));
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hint_brings_a_block_to_the_drive),
        cmocka_unit_test(what_is_there_moves_once),
        cmocka_unit_test(blocks_in_memory_are_copied_a_few_in_a_turn),
        cmocka_unit_test(users_take_turns_at_the_drive),
        cmocka_unit_test(hints_leave_the_drive_to_loads),
        cmocka_unit_test(a_hint_for_memory_reads_what_a_hint_brought_to_the_drive),
        cmocka_unit_test(what_nobody_asks_for_is_unused),
        cmocka_unit_test(a_get_does_not_wait_for_the_drive),
        cmocka_unit_test(a_hanging_drive_holds_no_hint_for_memory),
        cmocka_unit_test(the_write_budget_is_kept),
        cmocka_unit_test(a_full_drive_costs_no_block),
        cmocka_unit_test(a_drive_that_fails_costs_hints_alone),
        cmocka_unit_test(a_foreign_drive_costs_hints_alone),
        cmocka_unit_test(tiers_that_are_none_are_refused),
        cmocka_unit_test(what_is_replaced_or_removed_does_not_come_back),
        cmocka_unit_test(a_flood_of_lies_harms_nobody),
        cmocka_unit_test(every_hint_has_one_end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
