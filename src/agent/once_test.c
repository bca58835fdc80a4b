/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that are read once at most (SHM_FLAG_ONCE): they take no memory from others, neither of
 * their volume nor of another one, and no place on the own drive; nor does saying so of a block
 * harm those who say something else.
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
#define S     (1000 * MS)
#define KV    0
#define RAW   1
#define BYTES 20000u
#define SMALL 1000u
#define SLOTS 64
#define USED  48         /* blocks that others use */
#define SCAN  5000       /* the first block of a scan */
#define AT    (3u << 20) /* in staging memory, behind what puts use */
#define DRIVE ((uint64_t)32 << 20)

/* An agent with memory for SLOTS blocks of a volume. */
static struct agent_rig *rig_of(struct rig_opts opts)
{
    opts.seed = 17;
    opts.enclosures = 1;
    opts.slots = SLOTS;
    opts.block_bytes = BYTES;
    opts.pin_percent = 50;
    return rig_new(&opts);
}

/* A get of block n with flags, which leaves a lease; true: from the agent's memory. */
static bool get_bytes(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t bytes,
                      uint8_t flags, uint32_t lease)
{
    struct shm_submit entry = {.op = SHM_OP_GET,
                               .flags = flags,
                               .volume = volume,
                               .key_length = LIMIT_KEY_BYTES,
                               .lease = lease,
                               .deadline_ns = rig_now_ns(client->rig) + 1 * S};
    const struct shm_complete *answer;
    struct key key;

    rig_key(n, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    answer = rig_wait(client, rig_submit(client, &entry));
    assert_true(rig_value_is(client, volume, n, bytes, answer));
    return answer->source == ICMS_SOURCE_DRAM;
}

static bool get(struct rig_client *client, uint32_t volume, uint32_t n, uint8_t flags)
{
    bool is_hit = get_bytes(client, volume, n, BYTES, flags, 9);

    rig_lease_give(client, 9);
    return is_hit;
}

/* What a client says that read block n in mapped memory. */
static void touch(struct rig_client *client, uint32_t n, uint8_t flags)
{
    struct shm_submit entry = {
        .op = SHM_OP_TOUCH, .flags = flags, .volume = KV, .key_length = LIMIT_KEY_BYTES};
    struct key key;

    rig_key(n, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    (void)rig_submit(client, &entry);
    rig_run(client->rig, 5 * MS);
}

static void flash(struct agent_rig *rig, uint32_t first, uint32_t count)
{
    for (uint32_t n = first; n < first + count; n++)
        rig_flash(rig, 0, KV, n, BYTES);
}

/* Blocks that others use: brought, and read again. */
static void use(struct rig_client *client, uint32_t first, uint32_t count)
{
    flash(client->rig, first, count);
    for (uint32_t n = first; n < first + count; n++) {
        (void)get(client, KV, n, 0);
        (void)get(client, KV, n, 0);
    }
}

/* Three times as many blocks as there is memory for, each of them loaded once. */
static void scan(struct rig_client *client, uint32_t volume, uint8_t flags)
{
    for (uint32_t n = SCAN; n < SCAN + 3 * SLOTS; n++) {
        rig_flash(client->rig, 0, volume, n, BYTES);
        (void)get(client, volume, n, flags);
        rig_run(client->rig, 5 * MS);
    }
}

/* Blocks come that others use, until this one has gone for them. */
static void others_come(struct rig_client *client, uint32_t goes)
{
    for (uint32_t n = 2000; rig_in_arena(client, KV, goes); n++) {
        assert_true(n < 2000 + SLOTS);
        use(client, n, 1);
    }
}

static void put(struct rig_client *client, uint32_t n, uint8_t flags)
{
    assert_int_equal(rig_wait(client, rig_put(client, KV, n, BYTES, flags, 1 * S))->status,
                     ICMS_OK);
}

/* A hint of block n with flags, a tier, and seconds of a pin: the status of the answer. */
static uint32_t hint(struct rig_client *client, uint32_t n, uint8_t flags, uint32_t tier,
                     uint32_t pin_s)
{
    struct shm_submit entry = {.op = SHM_OP_PRESTAGE,
                               .offset = AT,
                               .bytes = 1,
                               .flags = flags,
                               .lease = shm_hint(tier, 0, pin_s),
                               .aside = rig_now_ns(client->rig) + 10 * S,
                               .deadline_ns = rig_now_ns(client->rig) + 1 * S};

    rig_put_key(client->ring.staging + AT, 0, n);
    return rig_wait(client, rig_submit(client, &entry))->status;
}

/* ---- others of the volume ------------------------------------------------------------------- */

static void a_scan_takes_no_memory_from_others(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    use(client, 0, USED);
    scan(client, KV, SHM_FLAG_ONCE);
    assert_int_equal(rig_in_arena_of(client, KV, 0, USED), USED);
    assert_true(rig_stats(rig)->volumes[KV].arena_evicted[AGENT_EVICTED_ONCE] > SLOTS);
    assert_int_equal(rig_stats(rig)->volumes[KV].arena_evicted[AGENT_EVICTED_SPACE], 0);
    scan(client, KV, 0); /* without it they go */
    assert_true(rig_in_arena_of(client, KV, 0, USED) < USED / 2);
    rig_client_free(client);
    rig_free(rig);
}

/* Also when there is no free memory before the first of them: one block of others makes space for
 * all. */
static void the_first_of_a_scan_makes_space_for_all(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    uint32_t before;

    use(client, 0, 2 * SLOTS);
    before = rig_in_arena_of(client, KV, 0, 2 * SLOTS);
    scan(client, KV, SHM_FLAG_ONCE);
    assert_true(rig_in_arena_of(client, KV, 0, 2 * SLOTS) + 12 >=
                before); /* windows evicted ahead */
    rig_client_free(client);
    rig_free(rig);
}

/* What somebody puts for one reader stays while there is space, and goes when it is on flash. */
static void puts_take_no_memory_from_others(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    use(client, 0, USED);
    for (uint32_t n = SCAN; n < SCAN + 3 * SLOTS; n++) {
        put(client, n, SHM_FLAG_ONCE);
        assert_true(rig_in_arena(client, KV, n));
        rig_run(rig, 5 * MS);
    }
    assert_int_equal(rig_in_arena_of(client, KV, 0, USED), USED);
    for (uint32_t n = SCAN; n < SCAN + 3 * SLOTS; n++)
        (void)get(client, KV, n, SHM_FLAG_ONCE); /* none was lost */
    assert_int_equal(rig_in_arena_of(client, KV, 0, USED), USED);
    rig_client_free(client);
    rig_free(rig);
}

/* Of two the one that was read goes first, whoever came first. */
static void what_was_read_goes_before_what_was_not(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    put(client, 1000, SHM_FLAG_ONCE);
    put(client, 1001, SHM_FLAG_ONCE);
    rig_run(rig, 100 * MS);
    assert_true(get(client, KV, 1001, 0));
    use(client, 0, SLOTS - 2);
    others_come(client, 1001);
    assert_true(rig_in_arena(client, KV, 1000));
    rig_client_free(client);
    rig_free(rig);
}

/* ---- who says something else ---------------------------------------------------------------- */

/* A second read, by the ring or in mapped memory, without the flag. */
static void a_second_read_makes_it_one_as_the_others(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    use(client, 0, USED / 2);
    flash(rig, 1000, 4);
    for (uint32_t n = 1000; n < 1004; n++)
        assert_false(get(client, KV, n, SHM_FLAG_ONCE));
    assert_true(get(client, KV, 1000, 0));
    assert_true(get(client, KV, 1001, SHM_FLAG_ONCE));
    touch(client, 1002, 0);
    touch(client, 1003, SHM_FLAG_ONCE);
    scan(client, KV, SHM_FLAG_ONCE);
    others_come(client, 1001);
    others_come(client, 1003);
    assert_true(rig_in_arena(client, KV, 1000));
    assert_false(rig_in_arena(client, KV, 1001));
    assert_true(rig_in_arena(client, KV, 1002));
    assert_false(rig_in_arena(client, KV, 1003));
    assert_int_equal(rig_in_arena_of(client, KV, 0, USED / 2), USED / 2);
    rig_client_free(client);
    rig_free(rig);
}

/* A reader of a block that was put for one reader need not say so. */
static void the_first_read_of_a_put_changes_nothing(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    put(client, 1000, SHM_FLAG_ONCE);
    put(client, 1001, SHM_FLAG_ONCE);
    rig_run(rig, 100 * MS);
    assert_true(get(client, KV, 1000, 0));
    assert_true(get(client, KV, 1001, 0));
    assert_true(get(client, KV, 1001, 0));
    use(client, 0, USED);
    scan(client, KV, SHM_FLAG_ONCE);
    others_come(client, 1000);
    assert_false(rig_in_arena(client, KV, 1000));
    assert_true(rig_in_arena(client, KV, 1001));
    rig_client_free(client);
    rig_free(rig);
}

/* Nobody makes the blocks of others go by saying that they are read once. */
static void what_others_use_stays_what_it_is(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    use(client, 0, USED);
    for (uint32_t n = 0; n < USED; n++)
        assert_true(get(client, KV, n, SHM_FLAG_ONCE));
    for (uint32_t n = 0; n < 4; n++) {
        put(client, n, SHM_FLAG_ONCE);
        assert_int_equal(hint(client, n, SHM_FLAG_ONCE, ICMS_TIER_DRAM, 0), ICMS_OK);
    }
    rig_run(rig, 20 * S); /* no hint keeps them any more */
    put(client, 1000, SHM_FLAG_ONCE);
    rig_run(rig, 100 * MS);
    scan(client, KV, SHM_FLAG_ONCE);
    others_come(client, 1000); /* the last of those that go before others */
    assert_int_equal(rig_in_arena_of(client, KV, 0, USED), USED);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- hints ---------------------------------------------------------------------------------- */

/* It is kept until it is read, as any other, and goes first after that. */
static void a_hint_is_kept_until_it_is_read(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 1000, 2);
    assert_int_equal(hint(client, 1000, SHM_FLAG_ONCE, ICMS_TIER_DRAM, 0), ICMS_OK);
    assert_int_equal(hint(client, 1001, 0, ICMS_TIER_DRAM, 0), ICMS_OK);
    assert_int_equal(hint(client, 1001, SHM_FLAG_ONCE, ICMS_TIER_DRAM, 0), ICMS_OK); /* not all */
    rig_run(rig, 100 * MS);
    use(client, 0, USED);
    scan(client, KV, SHM_FLAG_ONCE);
    assert_int_equal(rig_in_arena_of(client, KV, 1000, 2), 2);
    assert_true(get(client, KV, 1000, 0));
    assert_true(get(client, KV, 1001, 0));
    scan(client, KV, SHM_FLAG_ONCE);
    others_come(client, 1000);
    assert_false(rig_in_arena(client, KV, 1000));
    assert_true(rig_in_arena(client, KV, 1001));
    assert_int_equal(rig_in_arena_of(client, KV, 0, USED), USED);
    rig_client_free(client);
    rig_free(rig);
}

/* It is as any other that was not read, when its time is over. */
static void a_hint_that_nobody_reads_goes_first(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 1000, 1);
    assert_int_equal(hint(client, 1000, SHM_FLAG_ONCE, ICMS_TIER_DRAM, 0), ICMS_OK);
    rig_run(rig, 100 * MS);
    use(client, 0, USED);
    rig_run(rig, 20 * S);
    assert_int_equal(rig_stats(rig)->volumes[KV].prestage.waiting, 0);
    assert_true(rig_in_arena(client, KV, 1000));
    others_come(client, 1000);
    assert_int_equal(rig_in_arena_of(client, KV, 0, USED), USED);
    rig_client_free(client);
    rig_free(rig);
}

/* Somebody else says that he will read it: in memory already, and while it is brought. */
static void a_hint_of_another_reader_counts(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 1000, 3);
    (void)get(client, KV, 1002, SHM_FLAG_ONCE);
    assert_int_equal(hint(client, 1000, SHM_FLAG_ONCE, ICMS_TIER_DRAM, 0), ICMS_OK);
    rig_run(rig, 100 * MS);
    assert_int_equal(hint(client, 1000, 0, ICMS_TIER_DRAM, 0), ICMS_OK);
    assert_int_equal(hint(client, 1001, SHM_FLAG_ONCE, ICMS_TIER_DRAM, 0), ICMS_OK);
    while (rig_stats(rig)->volumes[KV].prestage.loading == 0)
        rig_run(rig, MS / 100);
    assert_int_equal(hint(client, 1001, 0, ICMS_TIER_DRAM, 0), ICMS_OK);
    assert_false(rig_in_arena(client, KV, 1001));
    rig_run(rig, 100 * MS);
    (void)get(client, KV, 1000, 0);
    (void)get(client, KV, 1001, 0);
    use(client, 0, USED);
    others_come(client, 1002); /* it was read before them, so it goes after them */
    assert_int_equal(rig_in_arena_of(client, KV, 1000, 2), 2);
    rig_client_free(client);
    rig_free(rig);
}

static void a_hint_that_contradicts_itself_is_refused(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_bytes = DRIVE});
    struct rig_client *client = rig_client_new(rig);
    struct key key;
    struct agent_hints hints = {
        .volume = "kv", .keys = &key, .count = 1, .deadline_ms = 1000, .once = true, .pin_s = 60};
    struct err_why why = {""};

    flash(rig, 0, 1);
    rig_key(0, &key);
    assert_int_equal(hint(client, 0, SHM_FLAG_ONCE, ICMS_TIER_DRAM, 60), ICMS_INVALID);
    assert_int_equal(hint(client, 0, SHM_FLAG_ONCE, ICMS_TIER_LOCAL, 0), ICMS_INVALID);
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_INVALID);
    assert_non_null(strstr(why.text, "once"));
    hints.pin_s = 0;
    hints.tier = ICMS_TIER_LOCAL;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_INVALID);
    assert_int_equal(rig_stats(rig)->volumes[KV].prestage.taken, 0);
    hints.tier = ICMS_TIER_DRAM;
    assert_int_equal(agent_prestage(rig->agent, &hints, &why), ICMS_OK);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_stats(rig)->volumes[KV].prestage.waiting, 1);
    assert_true(rig->agent->reactors[0].shards[KV].meta[0].once);
    rig_client_free(client);
    rig_free(rig);
}

/* A pin says more: what is pinned stays, and what is read once at most makes space beside it. */
static void what_is_pinned_stays(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);

    flash(rig, 1000, 1);
    assert_false(get(client, KV, 1000, SHM_FLAG_ONCE));
    assert_int_equal(hint(client, 1000, 0, ICMS_TIER_DRAM, 600), ICMS_OK);
    use(client, 0, USED);
    scan(client, KV, SHM_FLAG_ONCE);
    scan(client, KV, 0);
    assert_true(rig_in_arena(client, KV, 1000));
    rig_client_free(client);
    rig_free(rig);
}

static void put_small(struct rig_client *client, uint32_t n, uint8_t flags)
{
    assert_int_equal(rig_wait(client, rig_put(client, KV, n, SMALL, flags, 1 * S))->status,
                     ICMS_OK);
}

/* Other blocks are evicted a little ahead, pinned ones as few as it takes. */
static void pinned_blocks_do_not_go_ahead(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    const struct agent_volume_stats *kv = &rig_stats(rig)->volumes[KV];
    uint32_t n = 0;

    for (uint32_t pin = 1000; pin < 1020; pin++) {
        put_small(client, pin, 0);
        assert_int_equal(hint(client, pin, 0, ICMS_TIER_DRAM, 600), ICMS_OK);
    }
    for (; rig_stats(rig)->volumes[KV].arena_used_bytes + 2 * BYTES < kv->arena_bytes; n++) {
        put(client, n, 0);
        rig_run(rig, 10 * MS);
        (void)get_bytes(client, KV, n, BYTES, 0, 100 + n);
    }
    for (; rig_in_arena_of(client, KV, 1000, 20) == 20; n++) {
        assert_true(100 + n < SHM_LEASES);
        put_small(client, n, 0);
        rig_run(rig, 10 * MS);
        (void)get_bytes(client, KV, n, SMALL, 0, 100 + n);
    }
    assert_int_equal(rig_in_arena_of(client, KV, 1000, 20), 19);
    while (n-- > 0)
        rig_lease_give(client, 100 + n);
    rig_client_free(client);
    rig_free(rig);
}

/* Small pinned blocks that lie between leased ones make no space for a larger one: they do not go
 * before the pinned block that makes it. */
static void pinned_blocks_do_not_go_in_vain(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    uint32_t lease = 100;

    flash(rig, 0, 2 * SLOTS);
    for (uint32_t n = 1000; n < 1008; n++) {
        put_small(client, n, SHM_FLAG_ONCE);
        assert_int_equal(hint(client, n, 0, ICMS_TIER_DRAM, 600), ICMS_OK);
        (void)get_bytes(client, KV, n - 1000, BYTES, 0, lease++);
    }
    put(client, 2000, 0);
    assert_int_equal(hint(client, 2000, 0, ICMS_TIER_DRAM, 600), ICMS_OK);
    rig_run(rig, 100 * MS);
    for (uint32_t n = 8; rig_in_arena(client, KV, 2000); n++) {
        assert_true(n < 2 * SLOTS);
        (void)get_bytes(client, KV, n, BYTES, 0, lease++);
    }
    assert_int_equal(rig_in_arena_of(client, KV, 1000, 8), 8);
    while (lease > 100)
        rig_lease_give(client, --lease);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- others --------------------------------------------------------------------------------- */

/* Two volumes share memory: a scan takes no more of the other one's than what is in flight. */
static void another_volume_keeps_its_memory(void **state)
{
    uint64_t left[2];

    for (int i = 0; i < 2; i++) {
        struct agent_rig *rig = rig_of((struct rig_opts){.memory = 20});
        struct rig_client *client = rig_client_new(rig);

        scan(client, RAW, 0);
        rig_run(rig, 100 * S); /* nobody accessed it for long */
        scan(client, KV, i == 0 ? SHM_FLAG_ONCE : 0);
        left[i] = rig_stats(rig)->volumes[RAW].arena_bytes;
        rig_client_free(client);
        rig_free(rig);
    }
    assert_true(left[0] > 2 * left[1]);
}

/* Nor is it written to the own drive when memory evicts it. */
static void nothing_goes_to_the_own_drive(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){.own_drive_bytes = DRIVE});
    struct rig_client *client = rig_client_new(rig);

    use(client, 0, USED);
    scan(client, KV, SHM_FLAG_ONCE);
    assert_int_equal(rig_stats(rig)->tier.demoted, 0);
    assert_true(rig_stats(rig)->tier.unread >= SLOTS);
    scan(client, KV, 0);
    assert_true(rig_stats(rig)->tier.demoted > 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Past the memory of an agent in the client's process, each time. */
static void gets_past_the_memory_stay_so(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    static uint8_t memory[BYTES], trailer[LIMIT_TRAILER_BYTES];
    struct shm_submit entry = {.op = SHM_OP_GET,
                               .key_length = LIMIT_KEY_BYTES,
                               .offset = (uint64_t)(uintptr_t)memory,
                               .bytes = sizeof(memory),
                               .aside = (uint64_t)(uintptr_t)trailer,
                               .lease = 300};
    struct key key;

    agent_client_trust(rig->agent, client->attached.client);
    flash(rig, 0, 1);
    rig_key(0, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    for (int i = 0; i < 4; i++) {
        entry.flags = SHM_FLAG_DIRECT | (i < 3 ? SHM_FLAG_ONCE : 0);
        entry.deadline_ns = rig_now_ns(rig) + 1 * S;
        assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
        assert_false(rig_in_arena(client, KV, 0));
    }
    entry.deadline_ns = rig_now_ns(rig) + 1 * S;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
    assert_true(rig_in_arena(client, KV, 0)); /* asked for twice without it */
    rig_lease_give(client, 300);
    rig_client_free(client);
    rig_free(rig);
}

/* A load with the flag that somebody joins: two reads, and he says nothing of the kind. */
static void who_joins_a_load_is_a_second_reader(void **state)
{
    struct agent_rig *rig = rig_of((struct rig_opts){0});
    struct rig_client *client = rig_client_new(rig);
    struct shm_submit entry = {.op = SHM_OP_GET,
                               .flags = SHM_FLAG_ONCE,
                               .key_length = LIMIT_KEY_BYTES,
                               .lease = SHM_SLOT_NONE,
                               .deadline_ns = rig_now_ns(rig) + 1 * S};
    struct key key;
    uint64_t tag;

    flash(rig, 1000, 1);
    rig_key(1000, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    tag = rig_submit(client, &entry);
    (void)get(client, KV, 1000, 0);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    use(client, 0, USED);
    scan(client, KV, SHM_FLAG_ONCE);
    assert_true(rig_in_arena(client, KV, 1000));
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_scan_takes_no_memory_from_others),
        cmocka_unit_test(the_first_of_a_scan_makes_space_for_all),
        cmocka_unit_test(puts_take_no_memory_from_others),
        cmocka_unit_test(what_was_read_goes_before_what_was_not),
        cmocka_unit_test(a_second_read_makes_it_one_as_the_others),
        cmocka_unit_test(the_first_read_of_a_put_changes_nothing),
        cmocka_unit_test(what_others_use_stays_what_it_is),
        cmocka_unit_test(a_hint_is_kept_until_it_is_read),
        cmocka_unit_test(a_hint_that_nobody_reads_goes_first),
        cmocka_unit_test(a_hint_of_another_reader_counts),
        cmocka_unit_test(a_hint_that_contradicts_itself_is_refused),
        cmocka_unit_test(what_is_pinned_stays),
        cmocka_unit_test(pinned_blocks_do_not_go_ahead),
        cmocka_unit_test(pinned_blocks_do_not_go_in_vain),
        cmocka_unit_test(another_volume_keeps_its_memory),
        cmocka_unit_test(nothing_goes_to_the_own_drive),
        cmocka_unit_test(gets_past_the_memory_stay_so),
        cmocka_unit_test(who_joins_a_load_is_a_second_reader),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
