/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/direct_test.c: blocks that a client in the agent's own process receives in its memory, or
 * gives away from there, on simulated machines: what arrives, and that nothing is written or read
 * there after the answer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "base/crc.h"
#include "base/fault_arm.h"
#include "icms/icms.h"
#include "wire/sealed.h"

#define VALUE 5000u
#define SPACE 8192u
#define CLEAN 0xa5

/* The engine's. */
struct memory {
    uint8_t data[SPACE];
    uint8_t trailer[LIMIT_TRAILER_BYTES];
    uint8_t digest[LIMIT_DIGEST_BYTES]; /* of what is put */
};

static struct memory *memory_new(void)
{
    struct memory *memory = malloc(sizeof(*memory));

    assert_non_null(memory);
    memset(memory, CLEAN, sizeof(*memory));
    return memory;
}

static bool memory_is_clean(const struct memory *memory)
{
    for (size_t i = 0; i < sizeof(*memory); i++)
        if (((const uint8_t *)memory)[i] != CLEAN)
            return false;
    return true;
}

static uint64_t direct_get(struct rig_client *client, uint32_t n, struct memory *memory,
                           uint32_t space, uint64_t timeout_ns)
{
    struct shm_submit entry = {
        .op = SHM_OP_GET,
        .flags = SHM_FLAG_DIRECT,
        .key_length = LIMIT_KEY_BYTES,
        .deadline_ns = rig_now_ns(client->rig) + timeout_ns,
        .offset = (uint64_t)(uintptr_t)memory->data,
        .bytes = space,
        .aside = (uint64_t)(uintptr_t)memory->trailer,
        .lease = 300,
    };
    struct key key;

    rig_key(n, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    return rig_submit(client, &entry);
}

/* Value and trailer lie one behind the other, over the end of the space. */
static void assert_received(struct rig_client *client, const struct memory *memory, uint32_t space,
                            uint32_t n)
{
    uint8_t wanted[VALUE], trailer[LIMIT_TRAILER_BYTES];
    uint32_t inside = space - VALUE < sizeof(trailer) ? space - VALUE : sizeof(trailer);
    struct key key;

    rig_key(n, &key);
    rig_value(n, VALUE, wanted);
    assert_memory_equal(memory->data, wanted, VALUE);
    memcpy(trailer, memory->data + VALUE, inside);
    memcpy(trailer + inside, memory->trailer, sizeof(trailer) - inside);
    assert_int_equal(
        sealed_trailer_check(&(struct sealed_place){&client->rig->volumes[0].uuid, &key, false},
                             VALUE, crc32c(wanted, VALUE), trailer),
        ICMS_OK);
    assert_true(sealed_trailer_is(trailer, rig_digest(n)));
}

static struct agent_rig *rig_up_with(const struct rig_opts *opts, struct rig_client **out_client)
{
    struct agent_rig *rig = rig_new(opts);

    *out_client = rig_client_new(rig);
    agent_client_trust(rig->agent, (*out_client)->attached.client);
    for (uint32_t n = 1; n <= 8; n++)
        rig_flash(rig, 0, 0, n, VALUE);
    return rig;
}

static struct agent_rig *rig_up(uint32_t loops, struct rig_client **out_client)
{
    const struct rig_opts opts = {.seed = 7, .enclosures = 1, .loops = loops};

    return rig_up_with(&opts, out_client);
}

static void rig_down(struct agent_rig *rig, struct rig_client *client)
{
    rig_client_free(client);
    rig_free(rig);
}

static void fake_release(struct fake_target *target)
{
    target->hold = false;
    fake_target_release(target);
}

static void a_block_is_received_where_it_is_wanted_and_kept_when_it_comes_again(void **state)
{
    static const uint32_t spaces[] = {VALUE, VALUE + 10, VALUE + LIMIT_TRAILER_BYTES, SPACE};

    for (uint32_t loops = 1; loops <= 3; loops += 2) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up(loops, &client);
        struct memory *memory = memory_new();

        for (uint32_t i = 0; i < 4; i++) {
            const struct shm_complete *answer =
                rig_wait(client, direct_get(client, i + 1, memory, spaces[i], 1000 * RIG_MS));

            assert_int_equal(answer->status, ICMS_OK);
            assert_int_equal(answer->slot, SHM_SLOT_NONE);
            assert_int_equal(answer->value_bytes, VALUE);
            assert_int_equal(answer->source, ICMS_SOURCE_POD);
            assert_received(client, memory, spaces[i], i + 1);
        }
        for (int round = 0; round < 2; round++) {
            const struct shm_complete *answer =
                rig_wait(client, direct_get(client, 1, memory, SPACE, 1000 * RIG_MS));

            assert_int_equal(answer->status, ICMS_OK);
            assert_int_not_equal(answer->slot, SHM_SLOT_NONE);
            assert_int_equal(answer->source, round == 0 ? ICMS_SOURCE_POD : ICMS_SOURCE_DRAM);
            rig_lease_give(client, 300);
        }
        free(memory);
        rig_down(rig, client);
    }
}

/* Gets blocks 1 to count; how many of them were kept in the arena, or came from there. */
static uint32_t get_all(struct rig_client *client, struct memory *memory, uint32_t count)
{
    uint32_t kept = 0;

    for (uint32_t n = 1; n <= count; n++) {
        const struct shm_complete *answer =
            rig_wait(client, direct_get(client, n, memory, SPACE, 1000 * RIG_MS));

        assert_int_equal(answer->status, ICMS_OK);
        kept += answer->slot != SHM_SLOT_NONE;
        rig_lease_give(client, 300);
    }
    return kept;
}

/* What comes again is kept when the arena holds as many blocks as came between, whatever the
 * largest value is; what would be evicted before it comes again is not. */
static void blocks_are_kept_that_the_arena_can_hold_until_they_come_again(void **state)
{
    enum { COUNT = 400 };
    static const struct rig_opts large = {.enclosures = 1, .slots = 16, .value_bytes = 4 << 20};
    static const struct rig_opts small = {.enclosures = 1, .slots = 100, .block_bytes = VALUE};

    for (int way = 0; way < 2; way++) {
        struct agent_rig *rig = rig_new(way == 0 ? &large : &small);
        struct rig_client *client = rig_client_new(rig);
        struct memory *memory = memory_new();

        agent_client_trust(rig->agent, client->attached.client);
        for (uint32_t n = 1; n <= COUNT; n++)
            rig_flash(rig, 0, 0, n, VALUE);
        assert_int_equal(get_all(client, memory, COUNT), 0);
        if (way == 0) {
            uint32_t kept = get_all(client, memory, COUNT);

            assert_in_range(kept, COUNT * 3 / 4, COUNT); /* some notes are written over */
            (void)get_all(client, memory, COUNT);
            assert_in_range(rig_stats(rig)->volumes[0].hits_dram, kept, COUNT);
        } else {
            assert_int_equal(get_all(client, memory, COUNT), 0);
        }
        free(memory);
        rig_down(rig, client);
    }
}

/* It would drive out more than it is worth. */
static void a_block_of_more_than_a_quarter_of_the_arena_is_never_kept(void **state)
{
    for (uint32_t slots = 3; slots <= 4; slots++) {
        struct rig_opts opts = {.enclosures = 1, .slots = slots, .value_bytes = VALUE};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        struct memory *memory = memory_new();
        uint32_t kept = 0;

        agent_client_trust(rig->agent, client->attached.client);
        rig_flash(rig, 0, 0, 1, VALUE);
        for (int i = 0; i < 4; i++)
            kept += get_all(client, memory, 1);
        assert_int_equal(kept, slots == 3 ? 0 : 3);
        free(memory);
        rig_down(rig, client);
    }
}

static void another_process_cannot_name_memory(void **state)
{
    struct rig_client *client, *stranger;
    struct agent_rig *rig = rig_up(1, &client);
    struct memory *memory = memory_new();

    stranger = rig_client_new(rig);
    assert_int_equal(
        rig_wait(stranger, direct_get(stranger, 1, memory, SPACE, 1000 * RIG_MS))->status,
        ICMS_INVALID);
    assert_true(memory_is_clean(memory));
    rig_client_free(stranger);
    free(memory);
    rig_down(rig, client);
}

static void too_little_space_says_how_much_is_wanted(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(1, &client);
    struct memory *memory = memory_new();
    const struct shm_complete *answer =
        rig_wait(client, direct_get(client, 1, memory, VALUE - 1, 1000 * RIG_MS));

    assert_int_equal(answer->status, ICMS_VALUE_SIZE);
    assert_int_equal(answer->value_bytes, VALUE);
    for (uint32_t i = VALUE - 1; i < SPACE; i++)
        assert_int_equal(memory->data[i], CLEAN);
    free(memory);
    rig_down(rig, client);
}

static void nothing_is_written_after_the_answer(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops += 2) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up(loops, &client);
        struct memory *memory = memory_new();
        const struct shm_complete *answer;
        uint64_t begin_ns = rig_now_ns(rig), tag;

        rig->fake[0]->hold = true;
        tag = direct_get(client, 1, memory, SPACE, 200 * RIG_MS);
        answer = rig_wait(client, tag);
        assert_int_equal(answer->status, ICMS_MISS);
        assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
        assert_in_range(client->got_ns[tag] - begin_ns, 200 * RIG_MS, 300 * RIG_MS);
        rig_on_fake(rig, 0, fake_release);
        rig_run(rig, 500 * RIG_MS);
        assert_true(memory_is_clean(memory));
        free(memory);
        rig_down(rig, client);
    }
}

/* What is on its way then is not lost: it comes into the arena, once, for who asks again. Where a
 * part of it is in the client's memory, or the arena has no room, it is asked for again. */
static void what_comes_late_comes_into_the_arena(void **state)
{
    for (int has_room = 0; has_room < 2; has_room++) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up(1, &client);
        struct memory *memory = memory_new();
        const struct shm_complete *answer;
        uint64_t begin_ns = rig_now_ns(rig), tag, again;

        if (!has_room)
            rig->agent->reactors[0].shards[0].late_bytes = UINT32_MAX;
        rig->fake[0]->delay_ns = 300 * RIG_MS;
        tag = direct_get(client, 1, memory, SPACE, 100 * RIG_MS);
        assert_int_equal(rig_wait(client, tag)->reason, ICMS_MISS_DEADLINE);
        assert_in_range(client->got_ns[tag] - begin_ns, 100 * RIG_MS, 105 * RIG_MS);
        again = direct_get(client, 1, memory, SPACE, 1000 * RIG_MS);
        answer = rig_wait(client, again);
        assert_int_equal(answer->status, ICMS_OK);
        assert_int_equal(rig->fake[0]->retrieves, has_room ? 1 : 2);
        if (has_room) {
            assert_in_range(client->got_ns[again] - begin_ns, 300 * RIG_MS, 310 * RIG_MS);
            assert_int_not_equal(answer->slot, SHM_SLOT_NONE);
            assert_int_equal(answer->value_bytes, VALUE);
            assert_true(memory_is_clean(memory));
            assert_int_equal(rig->agent->reactors[0].shards[0].late_bytes, 0);
            rig_lease_give(client, 300);
        }
        free(memory);
        rig_down(rig, client);
    }
}

/* Whenever the deadline comes, before, in the middle of and after the data: the memory is the
 * client's once it is told, and the next one has the value. */
static void a_deadline_in_the_middle_leaves_the_memory_alone(void **state)
{
    const struct rig_opts opts = {.seed = 7, .enclosures = 1, .net_bytes_per_s = 500000};
    uint32_t in_arena = 0, asked_again = 0;

    for (uint64_t at_us = 50; at_us < 20000; at_us += 100) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up_with(&opts, &client);
        struct memory *memory = memory_new(), *next = memory_new();
        const struct shm_complete *answer;
        bool is_late;

        rig->fake[0]->c2h_bytes = 1000;
        answer = rig_wait(client, direct_get(client, 1, memory, SPACE, at_us * 1000));
        is_late = answer->status != ICMS_OK;
        memset(memory, CLEAN, sizeof(*memory));
        answer = rig_wait(client, direct_get(client, 1, next, SPACE, 1000 * RIG_MS));
        assert_int_equal(answer->status, ICMS_OK);
        assert_int_equal(answer->value_bytes, VALUE);
        assert_true(memory_is_clean(memory));
        if (answer->slot == SHM_SLOT_NONE) {
            assert_received(client, next, SPACE, 1);
        } else {
            rig_value(1, VALUE, memory->data);
            assert_memory_equal(shm_arena_value(rig_shard(client, 0, 1), answer->slot, VALUE),
                                memory->data, VALUE);
            rig_lease_give(client, 300);
        }
        in_arena += is_late && rig->fake[0]->retrieves == 1;
        asked_again += is_late && rig->fake[0]->retrieves == 2;
        free(next);
        free(memory);
        rig_down(rig, client);
    }
    assert_true(in_arena > 0 && asked_again > 0);
}

/* What is canceled may still be written to: the answer waits for the operation. */
static void a_cancel_does_not_end_it_early(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(1, &client);
    struct memory *memory = memory_new();
    uint64_t tag;

    rig->fake[0]->hold = true;
    tag = direct_get(client, 1, memory, SPACE, 400 * RIG_MS);
    rig_run(rig, 50 * RIG_MS);
    rig_cancel(client, tag);
    rig_publish(client);
    rig_run(rig, 50 * RIG_MS);
    rig_take(client);
    assert_int_equal(client->got[tag], 0);
    rig_on_fake(rig, 0, fake_release);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    assert_received(client, memory, SPACE, 1);
    free(memory);
    rig_down(rig, client);
}

static void a_write_that_overtakes_it_counts(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(1, &client);
    struct memory *memory = memory_new();
    const struct shm_complete *answer;
    uint64_t tag;

    rig->fake[0]->hold = true;
    tag = direct_get(client, 1, memory, SPACE, 1000 * RIG_MS);
    rig_run(rig, 10 * RIG_MS);
    assert_int_equal(rig_wait(client, rig_put(client, 0, 1, 100, 0, 1000 * RIG_MS))->status,
                     ICMS_OK);
    rig_on_fake(rig, 0, fake_release);
    answer = rig_wait(client, tag);
    assert_int_equal(answer->status, ICMS_OK);
    assert_int_not_equal(answer->slot, SHM_SLOT_NONE);
    assert_int_equal(answer->value_bytes, 100);
    rig_lease_give(client, 300);
    free(memory);
    rig_down(rig, client);
}

/* The enclosure vanishes, in the middle of data too: the memory is the client's once it is told. */
static void an_enclosure_that_dies_leaves_the_memory_alone(void **state)
{
    for (uint64_t at_us = 0; at_us < 2000; at_us += 50) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up(1, &client);
        struct memory *memory = memory_new();
        const struct shm_complete *answer;
        uint64_t tag = direct_get(client, 1, memory, SPACE, 1000 * RIG_MS);

        rig_run(rig, at_us * 1000);
        sim_node_crash(rig->fake_node[0], false, false);
        answer = rig_wait(client, tag);
        assert_non_null(answer);
        if (answer->status == ICMS_OK)
            assert_received(client, memory, SPACE, 1);
        memset(memory, CLEAN, sizeof(*memory));
        rig_run(rig, 100 * RIG_MS);
        assert_true(memory_is_clean(memory));
        free(memory);
        rig_down(rig, client);
    }
}

/* An agent with a drive of its own on which blocks 1 to 8 lie, and in its arena only the last. */
static struct agent_rig *rig_up_local(struct rig_client **out_client)
{
    struct agent_rig *rig = rig_new(
        &(struct rig_opts){.seed = 7, .slots = 4, .value_bytes = VALUE, .own_process = true});

    *out_client = rig_client_new(rig);
    agent_client_trust(rig->agent, (*out_client)->attached.client);
    for (uint32_t n = 1; n <= 8; n++)
        assert_int_equal(
            rig_wait(*out_client, rig_put(*out_client, 0, n, VALUE, SHM_FLAG_ON_FLASH, 0))->status,
            ICMS_OK);
    return rig;
}

static void a_drive_of_its_own_delivers_where_it_is_wanted(void **state)
{
    static const uint32_t spaces[] = {VALUE, VALUE + 10, SPACE};
    struct rig_client *client;
    struct agent_rig *rig = rig_up_local(&client);
    struct memory *memory = memory_new();
    const struct shm_complete *answer;

    answer = rig_wait(
        client, direct_get(client, 4, memory, VALUE - LIMIT_TRAILER_BYTES - 1, 1000 * RIG_MS));
    assert_int_equal(answer->status, ICMS_VALUE_SIZE);
    assert_int_equal(answer->value_bytes, VALUE);
    assert_true(memory_is_clean(memory));
    for (uint32_t i = 0; i < 3; i++) {
        answer = rig_wait(client, direct_get(client, i + 1, memory, spaces[i], 1000 * RIG_MS));
        assert_int_equal(answer->status, ICMS_OK);
        assert_int_equal(answer->slot, SHM_SLOT_NONE);
        assert_int_equal(answer->value_bytes, VALUE);
        assert_int_equal(answer->source, ICMS_SOURCE_LOCAL);
        assert_int_equal(answer->checked, 1);
        assert_received(client, memory, spaces[i], i + 1);
        for (uint32_t at = VALUE + LIMIT_TRAILER_BYTES; at < SPACE; at++)
            assert_int_equal(memory->data[at], CLEAN);
    }
    assert_int_equal(rig_stats(rig)->volumes[0].hits_local, 3);
    answer = rig_wait(client, direct_get(client, 1, memory, SPACE, 1000 * RIG_MS));
    assert_int_equal(answer->status, ICMS_OK); /* it came again, and is kept */
    assert_int_not_equal(answer->slot, SHM_SLOT_NONE);
    assert_int_equal(answer->source, ICMS_SOURCE_LOCAL);
    rig_lease_give(client, 300);
    answer = rig_wait(client, direct_get(client, 99, memory, SPACE, 1000 * RIG_MS));
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_ABSENT);
    free(memory);
    rig_down(rig, client);
}

/* The copy's checksum is not the trailer's: a miss, counted, and nothing says that it passed. */
static void what_a_drive_of_its_own_delivers_is_checked(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up_local(&client);
    struct memory *memory = memory_new();
    const struct shm_complete *answer;

    assert_int_equal(fault_arm("agent.local:1:fail", NULL), ICMS_OK);
    answer = rig_wait(client, direct_get(client, 2, memory, SPACE, 1000 * RIG_MS));
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_CHECKSUM);
    assert_int_equal(answer->checked, 0);
    assert_int_equal(rig_stats(rig)->checksum_errors, 1);
    assert_int_equal(rig_stats(rig)->volumes[0].hits_local, 0);
    assert_int_equal(fault_arm("", NULL), ICMS_OK);
    free(memory);
    rig_down(rig, client);
}

/* The drive answers long after the deadline: the client was told before, and has its memory. */
static void a_slow_drive_of_its_own_leaves_the_memory_alone(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up_local(&client);
    struct memory *memory = memory_new();
    const struct shm_complete *answer;
    uint64_t begin_ns = rig_now_ns(rig), tag;

    sim_disk_slow(rig->node, 10000);
    tag = direct_get(client, 1, memory, SPACE, 50 * RIG_MS);
    answer = rig_wait(client, tag);
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
    assert_in_range(client->got_ns[tag] - begin_ns, 50 * RIG_MS, 100 * RIG_MS);
    rig_run(rig, 5000 * RIG_MS);
    assert_true(memory_is_clean(memory));
    free(memory);
    rig_down(rig, client);
}

/* ---- puts ----------------------------------------------------------------------------------- */

/* Puts value number `look` as block n, out of memory. */
static uint64_t direct_put(struct rig_client *client, uint32_t n, uint32_t look,
                           struct memory *memory, uint8_t flags, uint64_t timeout_ns)
{
    struct shm_submit entry = {
        .op = SHM_OP_PUT,
        .flags = SHM_FLAG_DIRECT | flags,
        .key_length = LIMIT_KEY_BYTES,
        .deadline_ns = rig_now_ns(client->rig) + timeout_ns,
        .offset = (uint64_t)(uintptr_t)memory->data,
        .bytes = VALUE,
        .aside = (uint64_t)(uintptr_t)memory->digest,
    };
    struct key key;

    rig_key(n, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    rig_value(look, VALUE, memory->data);
    memcpy(memory->digest, rig_digest(n), sizeof(memory->digest));
    return rig_submit(client, &entry);
}

/* True when the enclosure has block n, with the bytes of value number `look` and their trailer. */
static bool flash_has(struct agent_rig *rig, uint32_t n, uint32_t look)
{
    uint8_t wanted[VALUE];
    const struct fake_block *block;
    struct key key;

    rig_key(n, &key);
    block = fake_target_find(rig->fake[0], 1, &key);
    if (block == NULL)
        return false;
    rig_value(look, VALUE, wanted);
    assert_int_equal(block->bytes, VALUE + LIMIT_TRAILER_BYTES);
    return memcmp(block->data, wanted, VALUE) == 0 &&
           sealed_trailer_check(&(struct sealed_place){&rig->volumes[0].uuid, &key, false}, VALUE,
                                crc32c(wanted, VALUE), block->data + VALUE) == ICMS_OK &&
           sealed_trailer_is(block->data + VALUE, rig_digest(n));
}

/* A get finds value number `look` in the arena. */
static void assert_found(struct rig_client *client, uint32_t n, uint32_t look)
{
    const struct shm_complete *answer = rig_wait(client, rig_get(client, 0, n, 301, 1000 * RIG_MS));
    uint8_t wanted[VALUE];

    rig_value(look, VALUE, wanted);
    assert_int_equal(answer->status, ICMS_OK);
    assert_int_equal(answer->source, ICMS_SOURCE_DRAM);
    assert_int_equal(answer->value_bytes, VALUE);
    assert_memory_equal(rig_leased(client, 0, answer), wanted, VALUE);
    rig_lease_give(client, 301);
}

static void a_put_is_copied_and_sealed_by_the_agent(void **state)
{
    static const uint8_t flags[] = {0, SHM_FLAG_ON_FLASH, SHM_FLAG_IF_ABSENT};

    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t loops = 1; loops <= 3; loops += 2) {
            struct rig_client *client;
            struct agent_rig *rig = rig_up(loops, &client);
            struct memory *memory = memory_new();
            uint64_t tag = direct_put(client, 20, 20, memory, flags[i], 1000 * RIG_MS);

            assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
            memset(memory, CLEAN, sizeof(*memory));
            rig_run(rig, 100 * RIG_MS);
            assert_true(flash_has(rig, 20, 20));
            assert_found(client, 20, 20);
            free(memory);
            rig_down(rig, client);
        }
}

/* Answered at its deadline, whether it was copied or waited for a writer before it: the memory is
 * the caller's again, and what becomes of it reaches no drive. */
static void nothing_is_read_after_the_answer_of_a_put(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(1, &client);
    struct memory *first = memory_new(), *second = memory_new();
    uint64_t begin_ns = rig_now_ns(rig), copied, waiting;

    rig->fake[0]->hold_stores = true;
    copied = direct_put(client, 20, 20, first, SHM_FLAG_ON_FLASH, 200 * RIG_MS);
    waiting = direct_put(client, 20, 21, second, SHM_FLAG_ON_FLASH, 200 * RIG_MS);
    assert_int_equal(rig_wait(client, copied)->status, ICMS_DEADLINE);
    assert_int_equal(rig_wait(client, waiting)->status, ICMS_DEADLINE);
    assert_in_range(client->got_ns[copied] - begin_ns, 200 * RIG_MS, 210 * RIG_MS);
    assert_in_range(client->got_ns[waiting] - begin_ns, 200 * RIG_MS, 210 * RIG_MS);
    memset(first, CLEAN, sizeof(*first));
    memset(second, CLEAN, sizeof(*second));
    rig_on_fake(rig, 0, fake_release);
    rig_run(rig, 2000 * RIG_MS);
    assert_true(flash_has(rig, 20, 20));
    free(first);
    free(second);
    rig_down(rig, client);
}

static void another_process_cannot_put_out_of_memory(void **state)
{
    struct rig_client *client, *stranger;
    struct agent_rig *rig = rig_up(1, &client);
    struct memory *memory = memory_new();

    stranger = rig_client_new(rig);
    for (uint8_t flags = 0; flags <= SHM_FLAG_ON_FLASH; flags++)
        assert_int_equal(
            rig_wait(stranger, direct_put(stranger, 20, 20, memory, flags, 1000 * RIG_MS))->status,
            ICMS_INVALID);
    rig_client_free(stranger);
    free(memory);
    rig_down(rig, client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_is_received_where_it_is_wanted_and_kept_when_it_comes_again),
        cmocka_unit_test(blocks_are_kept_that_the_arena_can_hold_until_they_come_again),
        cmocka_unit_test(a_block_of_more_than_a_quarter_of_the_arena_is_never_kept),
        cmocka_unit_test(another_process_cannot_name_memory),
        cmocka_unit_test(too_little_space_says_how_much_is_wanted),
        cmocka_unit_test(nothing_is_written_after_the_answer),
        cmocka_unit_test(what_comes_late_comes_into_the_arena),
        cmocka_unit_test(a_deadline_in_the_middle_leaves_the_memory_alone),
        cmocka_unit_test(a_cancel_does_not_end_it_early),
        cmocka_unit_test(a_write_that_overtakes_it_counts),
        cmocka_unit_test(an_enclosure_that_dies_leaves_the_memory_alone),
        cmocka_unit_test(a_drive_of_its_own_delivers_where_it_is_wanted),
        cmocka_unit_test(what_a_drive_of_its_own_delivers_is_checked),
        cmocka_unit_test(a_slow_drive_of_its_own_leaves_the_memory_alone),
        cmocka_unit_test(a_put_is_copied_and_sealed_by_the_agent),
        cmocka_unit_test(nothing_is_read_after_the_answer_of_a_put),
        cmocka_unit_test(another_process_cannot_put_out_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
