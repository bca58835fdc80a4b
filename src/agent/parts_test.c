/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sealed values that arrive: who waits for a load is told how much of it is in the slot, in which,
 * and no more than it asked for; the answer is the same whatever happens on the way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "icms/icms.h"

#define MS    RIG_MS
#define KV    0
#define RAW   1
#define PLAIN ((uint32_t)1 << 20)
#define BYTES ((uint32_t)sealed_bytes(PLAIN))
#define PIECE ((uint32_t)LIMIT_PIECE_BYTES)

/* A value takes 10 ms, so that there is time between its parts. */
static const struct rig_opts encrypted = {.enclosures = 1,
                                          .links = 2,
                                          .slots = 8,
                                          .value_bytes = PLAIN,
                                          .encrypted = true,
                                          .net_bytes_per_s = (uint64_t)100 << 20};

/* The same machines, with volumes that are sealed and not encrypted. */
static struct agent_rig *rig_plain_new(void)
{
    struct rig_opts opts = encrypted;

    opts.encrypted = false;
    return rig_new(&opts);
}

static uint64_t get_parts_of(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t lease,
                             uint64_t timeout)
{
    struct shm_submit entry = {.op = SHM_OP_GET,
                               .flags = SHM_FLAG_PARTS,
                               .volume = volume,
                               .lease = lease,
                               .deadline_ns = rig_now_ns(client->rig) + timeout};
    struct key key;

    rig_key(n, &key);
    entry.key_length = key.length;
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    return rig_submit(client, &entry);
}

static uint64_t get_parts(struct rig_client *client, uint32_t n, uint32_t lease, uint64_t timeout)
{
    return get_parts_of(client, KV, n, lease, timeout);
}

/* The part says how many whole pieces there are, and they are there. */
static void part_is_right(struct rig_client *client, uint32_t n, uint64_t tag)
{
    const struct shm_complete *part = &client->parts[tag];
    const uint8_t *memory = shm_arena_value(rig_shard(client, KV, n), part->slot, BYTES);
    uint8_t *wanted = malloc(BYTES);

    rig_value(n, BYTES, wanted);
    assert_non_null(memory);
    assert_true(part->value_bytes > LIMIT_SEALED_HEAD_BYTES && part->value_bytes <= BYTES);
    assert_int_equal(sealed_pieces_end(sealed_pieces_in(part->value_bytes)), part->value_bytes);
    assert_memory_equal(memory, wanted, part->value_bytes);
    free(wanted);
}

/* Plain: what is told is whole pieces of what came, but for what may be a trailer. */
static void plain_part_is_right(struct rig_client *client, uint32_t n, uint64_t tag, uint32_t bytes)
{
    const struct shm_complete *part = &client->parts[tag];
    const uint8_t *memory = shm_arena_value(rig_shard(client, KV, n), part->slot, bytes);
    uint8_t *wanted = malloc(bytes);

    rig_value(n, bytes, wanted);
    assert_non_null(memory);
    assert_true(part->value_bytes > 0 && part->value_bytes <= bytes);
    assert_int_equal((part->value_bytes + LIMIT_TRAILER_BYTES) % PIECE, 0);
    assert_memory_equal(memory, wanted, part->value_bytes);
    free(wanted);
}

/* Runs until another part is there. False: the answer was first. */
static bool next_part(struct rig_client *client, uint64_t tag)
{
    uint32_t before = client->part_count[tag];

    for (;;) {
        rig_take(client);
        if (client->part_count[tag] != before || client->got[tag] != 0)
            return client->part_count[tag] != before;
        assert_true(sim_step(client->rig->sim));
    }
}

static void the_pieces_that_are_there_are_told(void **state)
{
    struct agent_rig *rig = rig_new(&encrypted);
    struct rig_client *client = rig_client_new(rig);

    for (uint32_t n = 100; n < 148; n += 4) { /* slots are used again, at other places */
        uint32_t bytes = 0, parts = 0;
        uint64_t tag;

        rig_flash(rig, 0, KV, n, BYTES);
        tag = get_parts(client, n, 1, 5000 * MS);
        while (next_part(client, tag)) {
            assert_true(client->parts[tag].value_bytes > bytes);
            bytes = client->parts[tag].value_bytes;
            part_is_right(client, n, tag);
            parts++;
        }
        assert_true(parts >= 2);
        assert_true(rig_value_is(client, KV, n, BYTES, rig_wait(client, tag)));
        assert_int_equal(client->answers[tag].slot, client->parts[tag].slot);
        rig_lease_give(client, 1);
    }
    rig_client_free(client);
    rig_free(rig);
}

/* It is told from its begin on; a hit has no parts. */
static void who_joins_is_told_and_who_did_not_ask_is_not(void **state)
{
    struct agent_rig *rig = rig_new(&encrypted);
    struct rig_client *client = rig_client_new(rig), *other = rig_client_new(rig);
    uint64_t first, joined, silent, hit;

    rig_flash(rig, 0, KV, 100, BYTES);
    first = get_parts(client, 100, 1, 5000 * MS);
    assert_true(next_part(client, first));
    joined = get_parts(other, 100, 1, 5000 * MS);
    silent = rig_get(client, KV, 100, 2, 5000 * MS);
    assert_true(next_part(other, joined));
    part_is_right(other, 100, joined);
    assert_true(rig_value_is(client, KV, 100, BYTES, rig_wait(client, first)));
    assert_true(rig_value_is(other, KV, 100, BYTES, rig_wait(other, joined)));
    assert_true(rig_value_is(client, KV, 100, BYTES, rig_wait(client, silent)));
    assert_int_equal(client->part_count[silent], 0);
    assert_int_equal(rig->fake[0]->retrieves, 1);
    hit = get_parts(client, 100, 3, 5000 * MS);
    assert_true(rig_value_is(client, KV, 100, BYTES, rig_wait(client, hit)));
    assert_int_equal(client->part_count[hit], 0);
    rig_client_free(client);
    rig_client_free(other);
    rig_free(rig);
}

/* A value whose trailer begins just before a piece ends is not told to be longer than it is. */
static void a_plain_value_is_told_too(void **state)
{
    static const uint32_t sizes[] = {PLAIN, 2 * PIECE - 1, 2 * PIECE, 2 * PIECE + 1, PIECE + 1};
    struct agent_rig *rig = rig_plain_new();
    struct rig_client *client = rig_client_new(rig);

    for (uint32_t i = 0; i < 2 * sizeof(sizes) / sizeof(*sizes); i++) {
        uint32_t n = 100 + 4 * i, value_bytes = sizes[i / 2], bytes = 0, parts = 0;
        uint64_t tag;

        rig_flash(rig, 0, KV, n, value_bytes);
        tag = get_parts(client, n, 1, 5000 * MS);
        while (next_part(client, tag)) {
            assert_true(client->parts[tag].value_bytes > bytes);
            bytes = client->parts[tag].value_bytes;
            plain_part_is_right(client, n, tag, value_bytes);
            parts++;
        }
        assert_in_range(parts, 1, (value_bytes + LIMIT_TRAILER_BYTES) / PIECE);
        assert_true(rig_value_is(client, KV, n, value_bytes, rig_wait(client, tag)));
        rig_lease_give(client, 1);
    }
    rig_client_free(client);
    rig_free(rig);
}

/* While its client waits for more than one value it is told nothing of plain ones; of the last one
 * it is told again. */
static void who_waits_for_several_is_woken_by_answers(void **state)
{
    struct agent_rig *rig = rig_plain_new();
    struct rig_client *client = rig_client_new(rig), *other = rig_client_new(rig);
    uint64_t whole, late, theirs;

    for (uint32_t n = 100; n <= 112; n += 4)
        rig_flash(rig, 0, KV, n, PLAIN);
    whole = get_parts(client, 100, 1, 5000 * MS);
    late = get_parts(client, 104, 2, 5000 * MS);
    assert_true(rig_value_is(client, KV, 100, PLAIN, rig_wait(client, whole)));
    assert_int_equal(client->part_count[whole], 0);
    assert_true(rig_value_is(client, KV, 104, PLAIN, rig_wait(client, late)));
    rig_lease_give(client, 1);
    rig_lease_give(client, 2);
    /* What other clients wait for is nothing to it. */
    whole = get_parts(client, 108, 1, 5000 * MS);
    late = get_parts(client, 112, 2, 2 * MS);
    theirs = get_parts(other, 112, 1, 5000 * MS);
    assert_int_equal(rig_wait(client, late)->reason, ICMS_MISS_DEADLINE);
    assert_true(next_part(client, whole));
    plain_part_is_right(client, 108, whole, PLAIN);
    assert_true(rig_value_is(client, KV, 108, PLAIN, rig_wait(client, whole)));
    assert_true(rig_value_is(other, KV, 112, PLAIN, rig_wait(other, theirs)));
    rig_client_free(client);
    rig_client_free(other);
    rig_free(rig);
}

/* A value of one piece, and one without a trailer. */
static void small_and_raw_values_have_no_parts(void **state)
{
    struct agent_rig *rig = rig_plain_new();
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag;

    for (uint32_t volume = KV; volume <= RAW; volume++) {
        uint32_t bytes = volume == KV ? PIECE - LIMIT_TRAILER_BYTES - 1 : PLAIN;

        rig_flash(rig, 0, volume, 100, bytes);
        tag = get_parts_of(client, volume, 100, 1 + volume, 5000 * MS);
        assert_true(rig_value_is(client, volume, 100, bytes, rig_wait(client, tag)));
        assert_int_equal(client->part_count[tag], 0);
    }
    rig_client_free(client);
    rig_free(rig);
}

/* The other link brings it from the beginning, and that is told: less than before. */
static void link_is_lost(struct agent_rig *rig, bool is_plain, uint32_t bytes)
{
    struct rig_client *client = rig_client_new(rig);
    const struct agent_enclosure_stats *seen;
    uint32_t before, lost;
    uint64_t tag;

    rig_flash(rig, 0, KV, 100, bytes);
    tag = get_parts(client, 100, 1, 20000 * MS);
    assert_true(next_part(client, tag));
    assert_true(next_part(client, tag));
    before = client->parts[tag].value_bytes;
    seen = &rig_stats(rig)->enclosures[0];
    lost = seen->links[0].in_flight != 0 ? 0 : 1;
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][lost], true);
    while (next_part(client, tag) && client->parts[tag].value_bytes >= before)
        continue;
    assert_int_equal(client->got[tag], 0);
    if (is_plain)
        plain_part_is_right(client, 100, tag, bytes);
    else
        part_is_right(client, 100, tag);
    assert_true(rig_value_is(client, KV, 100, bytes, rig_wait(client, tag)));
    assert_int_equal(rig_stats(rig)->enclosures[0].failovers, 1);
    rig_on_fake(rig, 0, fake_target_drop); /* it holds what it could not send */
    rig_run(rig, MS);
    rig_client_free(client);
    rig_free(rig);
}

static void a_link_that_is_lost_in_the_middle_costs_nothing(void **state)
{
    link_is_lost(rig_new(&encrypted), false, BYTES);
    link_is_lost(rig_plain_new(), true, PLAIN);
}

/* In the memory of a client in this process: parts and the answer name one arrival, and after a
 * link is lost another one, which begins anew. */
static void the_parts_in_a_clients_memory_name_their_arrival(void **state)
{
    struct agent_rig *rig = rig_plain_new();
    struct rig_client *client = rig_client_new(rig);
    uint8_t *memory = malloc(PLAIN + LIMIT_TRAILER_BYTES), *wanted = malloc(PLAIN);
    struct shm_submit entry = {.op = SHM_OP_GET,
                               .flags = SHM_FLAG_PARTS | SHM_FLAG_DIRECT,
                               .lease = 1,
                               .offset = (uint64_t)(uintptr_t)memory,
                               .bytes = PLAIN + LIMIT_TRAILER_BYTES,
                               .aside = (uint64_t)(uintptr_t)wanted,
                               .deadline_ns = rig_now_ns(rig) + 20000 * MS};
    const struct shm_complete *answer;
    struct key key;
    uint64_t tag, first;
    uint32_t lost;

    agent_client_trust(rig->agent, client->attached.client);
    rig_flash(rig, 0, KV, 100, PLAIN);
    rig_key(100, &key);
    entry.key_length = key.length;
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    tag = rig_submit(client, &entry);
    assert_true(next_part(client, tag));
    first = client->parts[tag].version;
    assert_true(next_part(client, tag));
    assert_int_equal(client->parts[tag].version, first);
    assert_int_not_equal(first, 0);
    rig_value(100, PLAIN, wanted);
    assert_int_equal(client->parts[tag].slot, SHM_SLOT_NONE);
    assert_memory_equal(memory, wanted, client->parts[tag].value_bytes);
    lost = rig_stats(rig)->enclosures[0].links[0].in_flight != 0 ? 0 : 1;
    sim_net_cut(rig->sim, rig->node, rig->link_node[0][lost], true);
    while (next_part(client, tag))
        assert_memory_equal(memory, wanted, client->parts[tag].value_bytes);
    assert_int_not_equal(client->parts[tag].version, first);
    answer = rig_wait(client, tag);
    assert_int_equal(answer->status, ICMS_OK);
    assert_int_equal(answer->slot, SHM_SLOT_NONE);
    assert_int_equal(answer->version, client->parts[tag].version);
    assert_int_equal(rig_stats(rig)->enclosures[0].failovers, 1);
    assert_memory_equal(memory, wanted, PLAIN);
    rig_on_fake(rig, 0, fake_target_drop); /* it holds what it could not send */
    rig_run(rig, MS);
    rig_client_free(client);
    rig_free(rig);
    free(memory);
    free(wanted);
}

/* The owner is lost; the next in order has another value of the key. */
static void another_owner_brings_another_value(void **state)
{
    struct rig_opts opts = encrypted;
    struct agent_rig *rig;
    struct rig_client *client;
    uint32_t owner;
    uint64_t tag;

    opts.enclosures = 2;
    opts.links = 0;
    rig = rig_new(&opts);
    client = rig_client_new(rig);
    owner = rig_owner(rig, KV, 100);
    rig_flash(rig, owner, KV, 100, BYTES);
    rig_flash(rig, 1 - owner, KV, 100, BYTES / 2);
    tag = get_parts(client, 100, 1, 20000 * MS);
    assert_true(next_part(client, tag));
    sim_net_cut(rig->sim, rig->node, rig->fake_node[owner], true);
    assert_true(rig_value_is(client, KV, 100, BYTES / 2, rig_wait(client, tag)));
    rig_on_fake(rig, owner, fake_target_drop); /* it holds what it could not send */
    rig_run(rig, MS);
    rig_client_free(client);
    rig_free(rig);
}

/* A request that is over is told nothing: rig_take would see it. The load goes on. */
static void no_part_comes_after_the_answer(void **state)
{
    struct agent_rig *rig = rig_new(&encrypted);
    struct rig_client *client = rig_client_new(rig);
    uint64_t late, canceled, whole;

    rig_flash(rig, 0, KV, 100, BYTES);
    whole = get_parts(client, 100, 3, 5000 * MS);
    canceled = get_parts(client, 100, 2, 5000 * MS);
    late = get_parts(client, 100, 1, 5 * MS);
    assert_true(next_part(client, canceled));
    rig_cancel(client, canceled);
    rig_publish(client);
    assert_int_equal(rig_wait(client, canceled)->status, ICMS_CANCELED);
    assert_int_equal(rig_wait(client, late)->reason, ICMS_MISS_DEADLINE);
    assert_int_equal(client->got[whole], 0);
    assert_true(rig_value_is(client, KV, 100, BYTES, rig_wait(client, whole)));
    rig_run(rig, 100 * MS);
    rig_take(client);
    rig_client_free(client);
    rig_free(rig);
}

/* The same of a plain value, whose client waits for nothing else. */
static void nor_does_one_of_a_plain_value(void **state)
{
    struct agent_rig *rig = rig_plain_new();
    struct rig_client *client = rig_client_new(rig);
    uint64_t late, canceled;

    rig_flash(rig, 0, KV, 100, PLAIN);
    rig_flash(rig, 0, KV, 104, PLAIN);
    canceled = get_parts(client, 100, 1, 5000 * MS);
    assert_true(next_part(client, canceled));
    rig_cancel(client, canceled);
    rig_publish(client);
    while (next_part(client, canceled)) /* what was told before the agent saw that */
        continue;
    assert_int_equal(rig_wait(client, canceled)->status, ICMS_CANCELED);
    rig_run(rig, 100 * MS);
    late = get_parts(client, 104, 1, 6 * MS);
    assert_true(next_part(client, late));
    while (next_part(client, late))
        continue;
    assert_int_equal(rig_wait(client, late)->reason, ICMS_MISS_DEADLINE);
    rig_run(rig, 100 * MS);
    rig_take(client);
    rig_client_free(client);
    rig_free(rig);
}

/* Who does not take them gets its answers all the same: parts have half of the ring. */
static void parts_leave_room_for_answers(void **state)
{
    struct agent_rig *rig = rig_new(&encrypted);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_ring *ring = &client->ring;
    uint32_t held = SHM_RING_ENTRIES / 2 - 1;
    uint64_t tag;

    /* As if so many had not been taken. */
    atomic_store(&ring->qpair->complete_head, ring->complete_head - held);
    rig_flash(rig, 0, KV, 100, BYTES);
    tag = get_parts(client, 100, 1, 5000 * MS);
    rig_run(rig, 1000 * MS);
    atomic_store(&ring->qpair->complete_head, ring->complete_head);
    assert_true(rig_value_is(client, KV, 100, BYTES, rig_wait(client, tag)));
    assert_int_equal(client->part_count[tag], 1);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pieces_that_are_there_are_told),
        cmocka_unit_test(who_joins_is_told_and_who_did_not_ask_is_not),
        cmocka_unit_test(a_plain_value_is_told_too),
        cmocka_unit_test(who_waits_for_several_is_woken_by_answers),
        cmocka_unit_test(small_and_raw_values_have_no_parts),
        cmocka_unit_test(a_link_that_is_lost_in_the_middle_costs_nothing),
        cmocka_unit_test(the_parts_in_a_clients_memory_name_their_arrival),
        cmocka_unit_test(another_owner_brings_another_value),
        cmocka_unit_test(no_part_comes_after_the_answer),
        cmocka_unit_test(nor_does_one_of_a_plain_value),
        cmocka_unit_test(parts_leave_room_for_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
