/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another set of enclosures while the agent runs: growth and drains without misses, removals under
 * load, what is refused, and slots that are used again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "base/check.h"
#include "icms/icms.h"
#include "wire/nvme.h"

#define MS    RIG_MS
#define KV    0
#define RAW   1
#define BYTES 5000u
#define KEYS  240u

/* Three enclosures of four are in the pod, in all ways to ask. */
static const struct rig_opts ways[] = {
    {.enclosures = 4, .members = 3, .epoch = 1, .many = true},
    {.enclosures = 4, .members = 3, .epoch = 1},
    {.enclosures = 4, .members = 3, .epoch = 1, .many = true, .loops = 3},
};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

static const struct rig_opts all_four = {.enclosures = 4, .epoch = 1, .many = true};

/* The rig's first enclosures, the given one in this state. */
struct pod {
    struct agent_enclosure_opts list[RIG_ENCLOSURES];
};

static struct pod pod_with(const struct agent_rig *rig, uint32_t which, enum agent_pod_state state)
{
    struct pod pod;

    memcpy(pod.list, rig->enclosures, sizeof(pod.list));
    pod.list[which].state = state;
    return pod;
}

static void assert_pod(struct agent_rig *rig, uint64_t epoch,
                       const struct agent_enclosure_opts *list, uint32_t count)
{
    struct err_why why = {""};
    icms_err err = rig_pod(rig, epoch, list, count, &why);

    if (err != ICMS_OK)
        print_message("%s\n", why.text);
    assert_int_equal(err, ICMS_OK);
    assert_int_equal(agent_epoch(rig->agent), epoch);
}

/* Refused with a sentence that has these words, and nothing has changed. */
static void assert_refused(struct agent_rig *rig, uint64_t epoch,
                           const struct agent_enclosure_opts *list, uint32_t count, icms_err err,
                           const char *words)
{
    uint64_t before = agent_epoch(rig->agent);
    uint32_t members = rig_stats(rig)->enclosure_count;
    struct err_why why = {""};

    assert_int_equal(rig_pod(rig, epoch, list, count, &why), err);
    if (strstr(why.text, words) == NULL)
        print_message("%s\n", why.text);
    assert_non_null(strstr(why.text, words));
    assert_int_equal(agent_epoch(rig->agent), before);
    assert_int_equal(rig_stats(rig)->enclosure_count, members);
}

static void fill(struct agent_rig *rig, uint32_t first, uint32_t count)
{
    for (uint32_t n = first; n < first + count; n++)
        rig_flash(rig, rig_owner(rig, KV, n), KV, n, BYTES);
}

static uint32_t stores(const struct agent_rig *rig)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < rig->enclosure_count; i++)
        count += rig->fake[i]->stores;
    return count;
}

/* Gets each key, with the right bytes; how many are hits. */
static uint32_t hits(struct rig_client *client, uint32_t first, uint32_t count)
{
    uint32_t found = 0;

    for (uint32_t n = first; n < first + count; n++) {
        const struct shm_complete *answer = rig_wait(client, rig_get(client, KV, n, 5, 1000 * MS));

        assert_non_null(answer);
        if (answer->status != ICMS_OK)
            continue;
        assert_true(rig_value_is(client, KV, n, BYTES, answer));
        rig_lease_give(client, 5);
        found++;
    }
    return found;
}

/* Keys of these that an enclosure owns. */
static uint32_t owned(struct agent_rig *rig, uint32_t enclosure, uint32_t first, uint32_t count)
{
    uint32_t of = 0;

    for (uint32_t n = first; n < first + count; n++)
        of += rig_owner(rig, KV, n) == enclosure;
    return of;
}

static uint32_t key_of(struct agent_rig *rig, uint32_t enclosure, uint32_t n)
{
    while (rig_owner(rig, KV, n) != enclosure)
        n++;
    return n;
}

/* Asks for keys with one request; how many are there. */
static uint32_t matched(struct rig_client *client, uint32_t first, uint32_t count)
{
    const uint32_t at = 3u << 20;
    struct shm_submit entry = {
        .op = SHM_OP_EXISTS_MANY,
        .offset = at,
        .bytes = count,
        .deadline_ns = rig_now_ns(client->rig) + 1000 * MS,
    };
    uint8_t *memory = client->ring.staging + at;
    const struct shm_complete *answer;
    uint32_t found = 0;

    for (uint32_t i = 0; i < count; i++) {
        rig_put_key(memory, i, first + i);
    }
    answer = rig_wait(client, rig_submit(client, &entry));
    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_OK);
    for (uint32_t i = 0; i < count; i++)
        found += memory[count * sizeof(struct shm_key) + i] == ICMS_MISS_NONE;
    return found;
}

/* ---- growth --------------------------------------------------------------------------------- */

static void one_that_joins_takes_its_share_and_costs_no_hit(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        struct pod pod = pod_with(rig, 3, AGENT_POD_JOINING);
        const struct agent_volume_stats *volume = &rig_stats(rig)->volumes[KV];
        uint32_t moving, asked = 0;

        fill(rig, 0, KEYS);
        assert_pod(rig, 2, pod.list, 4);
        moving = owned(rig, 3, 0, KEYS);
        assert_true(moving > 0);
        assert_int_equal(hits(client, 0, KEYS), KEYS); /* it is connected while this goes on */
        rig_run(rig, 500 * MS);
        assert_string_equal(rig_stats(rig)->enclosures[3].name, "e3");
        assert_int_equal(rig_stats(rig)->enclosures[3].state, AGENT_ENCLOSURE_UP);
        assert_int_equal(rig_stats(rig)->enclosures[3].pod_state, AGENT_POD_JOINING);
        for (uint32_t i = 0; i < 4; i++)
            asked += rig->fake[i]->exist_manys + rig->fake[i]->exists;
        assert_int_equal(matched(client, 0, KEYS), KEYS);
        for (uint32_t i = 0; i < 4; i++)
            asked -= rig->fake[i]->exist_manys + rig->fake[i]->exists;
        if (ways[way].many) /* in batches: four to the owners, three to the former ones */
            assert_true(-(int32_t)asked <= 7 * (ways[way].loops == 0 ? 1 : 3));
        /* What is there is moved once. */
        for (int round = 0; round < 3; round++)
            assert_int_equal(hits(client, 0, KEYS), KEYS);
        rig_run(rig, 500 * MS);
        volume = &rig_stats(rig)->volumes[KV];
        assert_true(volume->moved > 0 && volume->moved <= moving);
        assert_int_equal(volume->moved_bytes, volume->moved * BYTES);
        assert_int_equal(rig->fake[3]->stores, volume->moved);
        assert_int_equal(stores(rig), rig->fake[3]->stores);
        /* And is there when it is one of all, without another look elsewhere. */
        asked = (uint32_t)volume->former_found;
        assert_pod(rig, 3, rig->enclosures, 4);
        assert_int_equal(hits(client, 0, KEYS), KEYS);
        assert_int_equal(rig_stats(rig)->volumes[KV].former_found, asked);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* One of four gets four times, or a third, of its weight. */
static void a_weight_that_changes_costs_no_hit(void **state)
{
    for (size_t way = 0; way < WAYS * 2; way++) {
        struct rig_opts opts = ways[way / 2];
        struct agent_rig *rig;
        struct rig_client *client;
        const struct agent_volume_stats *volume;
        struct pod pod;
        uint32_t before[KEYS], moving = 0, asked;

        opts.members = 0;
        rig = rig_new(&opts);
        client = rig_client_new(rig);
        pod = pod_with(rig, 1, AGENT_POD_UP);
        fill(rig, 0, KEYS);
        for (uint32_t n = 0; n < KEYS; n++)
            before[n] = rig_owner(rig, KV, n);
        pod.list[1].former_weight = pod.list[1].weight;
        pod.list[1].weight *= way % 2 == 0 ? 4 : 0.3;
        assert_pod(rig, 2, pod.list, 4);
        for (uint32_t n = 0; n < KEYS; n++)
            moving += rig_owner(rig, KV, n) != before[n];
        assert_true(moving > 0);
        assert_true(rig_stats(rig)->enclosures[1].former_weight == rig->enclosures[1].weight);
        assert_int_equal(matched(client, 0, KEYS), KEYS);
        for (int round = 0; round < 4; round++)
            assert_int_equal(hits(client, 0, KEYS), KEYS);
        rig_run(rig, 500 * MS);
        volume = &rig_stats(rig)->volumes[KV];
        assert_true(volume->moved > 0 && volume->moved <= moving);
        asked = (uint32_t)volume->former_found;
        /* It is settled: what was moved is there without another look elsewhere. */
        pod.list[1].former_weight = 0;
        assert_pod(rig, 3, pod.list, 4);
        assert_int_equal(hits(client, 0, KEYS), KEYS);
        assert_int_equal(rig_stats(rig)->volumes[KV].former_found, asked);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void one_added_to_three_takes_a_quarter_of_the_runs(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct pod pod = pod_with(rig, 3, AGENT_POD_JOINING);
    static uint8_t before[40000];
    uint32_t moved = 0;

    for (uint32_t run = 0; run < 40000; run++)
        before[run] = (uint8_t)rig_owner(rig, KV, run * 4);
    assert_pod(rig, 2, pod.list, 4);
    for (uint32_t run = 0; run < 40000; run++) {
        uint32_t owner = rig_owner(rig, KV, run * 4);

        if (owner == before[run])
            continue;
        assert_int_equal(owner, 3);
        moved++;
    }
    assert_in_range(moved, 40000 * 23 / 100, 40000 * 27 / 100);
    rig_free(rig);
}

/* What goes past the arena otherwise goes through it while it may have to be moved. */
static void what_a_caller_gets_in_its_memory_is_moved_too(void **state)
{
    struct agent_rig *rig = rig_new(&ways[0]);
    struct rig_client *client = rig_client_new(rig);
    struct pod pod = pod_with(rig, 3, AGENT_POD_JOINING);
    uint8_t memory[BYTES], trailer[LIMIT_TRAILER_BYTES];
    struct shm_submit entry = {
        .op = SHM_OP_GET,
        .flags = SHM_FLAG_DIRECT,
        .key_length = LIMIT_KEY_BYTES,
        .bytes = BYTES,
        .lease = 5,
    };
    const struct shm_complete *answer;
    struct key key;
    uint32_t n;

    agent_client_trust(rig->agent, client->attached.client);
    fill(rig, 0, KEYS);
    assert_pod(rig, 2, pod.list, 4);
    rig_run(rig, 500 * MS);
    n = key_of(rig, 3, 0);
    rig_key(n, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    entry.offset = (uint64_t)(uintptr_t)memory;
    entry.aside = (uint64_t)(uintptr_t)trailer;
    entry.deadline_ns = rig_now_ns(rig) + 1000 * MS;
    answer = rig_wait(client, rig_submit(client, &entry));
    assert_true(rig_value_is(client, KV, n, BYTES, answer));
    rig_lease_give(client, 5);
    rig_run(rig, 100 * MS);
    assert_non_null(fake_target_find(rig->fake[3], KV + 1, &key));
    assert_int_equal(rig_stats(rig)->volumes[KV].moved, 1);
    rig_client_free(client);
    rig_free(rig);
}

/* The former owner has a block for which a load has too little space: it is loaded again. */
static void a_larger_block_is_found_at_its_former_owner(void **state)
{
    struct rig_opts opts = ways[0];
    struct agent_rig *rig;
    struct rig_client *client;
    struct pod pod;
    uint32_t n = 0;

    opts.slots = 600; /* 512 blocks are what loads learn from */
    rig = rig_new(&opts);
    client = rig_client_new(rig);
    pod = pod_with(rig, 3, AGENT_POD_JOINING);
    for (uint32_t i = 1000; i < 1520; i++) {
        rig_flash(rig, rig_owner(rig, KV, i), KV, i, 100);
        assert_int_equal(rig_wait(client, rig_get(client, KV, i, 5, 1000 * MS))->status, ICMS_OK);
        rig_lease_give(client, 5);
    }
    fill(rig, 0, KEYS);
    assert_pod(rig, 2, pod.list, 4);
    rig_run(rig, 500 * MS);
    n = key_of(rig, 3, n);
    assert_int_equal(hits(client, n, 1), 1);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_stats(rig)->volumes[KV].moved, 1);
    rig_client_free(client);
    rig_free(rig);
}

/* A damaged block is not carried on, and what clients store goes first. */
static void what_is_damaged_or_too_much_is_not_moved(void **state)
{
    struct rig_opts opts = ways[0];
    struct agent_rig *rig;
    struct rig_client *client;
    struct pod pod;
    struct fake_block *block;
    struct key key;
    uint32_t n;

    opts.backlog_bytes = BYTES; /* half of it is too little for one */
    for (int round = 0; round < 2; round++) {
        rig = rig_new(round == 0 ? &ways[0] : &opts);
        client = rig_client_new(rig);
        pod = pod_with(rig, 3, AGENT_POD_JOINING);
        fill(rig, 0, KEYS);
        assert_pod(rig, 2, pod.list, 4);
        rig_run(rig, 500 * MS);
        n = key_of(rig, 3, 0);
        rig_key(n, &key);
        for (uint32_t i = 0; i < 3 && round == 0; i++) {
            block = fake_target_find(rig->fake[i], KV + 1, &key);
            if (block != NULL)
                block->data[100] ^= 1;
        }
        assert_int_equal(rig_wait(client, rig_get(client, KV, n, 5, 1000 * MS))->status, ICMS_OK);
        rig_lease_give(client, 5);
        rig_run(rig, 100 * MS);
        assert_int_equal(stores(rig), 0);
        assert_int_equal(rig_stats(rig)->volumes[KV].moved, 0);
        assert_int_equal(rig_stats(rig)->volumes[KV].moves_shed, 1);
        assert_int_equal(rig_stats(rig)->volumes[KV].former_found, 1);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void a_deletion_reaches_the_owner_and_the_one_before(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct agent_rig *rig = rig_new(&ways[way]);
        struct rig_client *client = rig_client_new(rig);
        struct pod pod = pod_with(rig, 3, AGENT_POD_JOINING);
        struct key key;
        uint32_t n;

        fill(rig, 0, KEYS);
        assert_pod(rig, 2, pod.list, 4);
        rig_run(rig, 500 * MS);
        n = key_of(rig, 3, 0);
        rig_flash(rig, 3, KV, n, BYTES);
        rig_key(n, &key);
        assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n, 500 * MS))->status,
                         ICMS_OK);
        for (uint32_t i = 0; i < 4; i++)
            assert_null(fake_target_find(rig->fake[i], KV + 1, &key));
        assert_int_equal(rig_wait(client, rig_get(client, KV, n, 5, 500 * MS))->status, ICMS_MISS);
        assert_true(rig_stats(rig)->volumes[KV].former_missed > 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* ---- drains --------------------------------------------------------------------------------- */

static void one_that_drains_is_read_and_not_written_and_its_removal_costs_nothing(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct rig_opts opts = ways[way];
        struct agent_rig *rig;
        struct rig_client *client;
        struct pod pod;
        uint32_t of, misses;

        opts.members = 0;
        rig = rig_new(&opts);
        client = rig_client_new(rig);
        fill(rig, 0, KEYS);
        of = owned(rig, 0, 0, KEYS);
        assert_true(of > 0);
        pod = pod_with(rig, 0, AGENT_POD_DRAINING);
        assert_pod(rig, 2, pod.list, 4);
        assert_int_equal(owned(rig, 0, 0, KEYS), 0);
        assert_int_equal(matched(client, 0, KEYS), KEYS);
        assert_int_equal(hits(client, 0, KEYS), KEYS);
        for (uint32_t n = KEYS; n < KEYS + 40; n++)
            assert_int_equal(
                rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 500 * MS))
                    ->status,
                ICMS_OK);
        rig_run(rig, 500 * MS);
        assert_int_equal(rig->fake[0]->stores, 0);
        assert_int_equal(rig_stats(rig)->volumes[KV].moved, of);
        misses = (uint32_t)rig_stats(rig)->volumes[KV].misses[ICMS_MISS_ABSENT];
        assert_pod(rig, 3, &rig->enclosures[1], 3);
        assert_int_equal(hits(client, 0, KEYS + 40), KEYS + 40);
        assert_int_equal(rig_stats(rig)->volumes[KV].misses[ICMS_MISS_ABSENT], misses);
        assert_int_equal(rig_stats(rig)->enclosure_count, 3);
        rig_run(rig, 500 * MS);
        assert_int_equal(rig->fake[0]->conn_count, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void a_flush_reaches_one_that_drains_and_fails_once_for_one_that_left(void **state)
{
    struct agent_rig *rig = rig_new(&all_four);
    struct rig_client *client = rig_client_new(rig);
    uint32_t n = key_of(rig, 0, 0), m = key_of(rig, 1, 0);
    struct pod pod = pod_with(rig, 0, AGENT_POD_DRAINING);
    uint64_t tag;

    tag = rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    assert_pod(rig, 2, pod.list, 4);
    tag = rig_op(client, SHM_OP_FLUSH, KV, 0, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    assert_int_equal(rig->fake[0]->flushes, 1);

    tag = rig_put(client, KV, m, BYTES, SHM_FLAG_ON_FLASH, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    assert_pod(rig, 3, &rig->enclosures[2], 2);
    tag = rig_op(client, SHM_OP_FLUSH, KV, 0, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_IO);
    tag = rig_op(client, SHM_OP_FLUSH, KV, 0, 500 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* It left while a flush was at another one, or at itself: that flush fails. */
static void a_flush_under_which_an_enclosure_leaves_fails(void **state)
{
    for (uint32_t held = 0; held < 2; held++) {
        struct agent_rig *rig = rig_new(&all_four);
        struct rig_client *client = rig_client_new(rig);
        uint64_t tag;

        for (uint32_t i = 0; i < 2; i++) {
            tag = rig_put(client, KV, key_of(rig, i, 0), BYTES, SHM_FLAG_ON_FLASH, 500 * MS);
            assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
        }
        rig->fake[held]->hold = true;
        tag = rig_op(client, SHM_OP_FLUSH, KV, 0, 2000 * MS);
        rig_run(rig, 10 * MS);
        assert_pod(rig, 2, &rig->enclosures[2], 2);
        rig_run(rig, 10 * MS);
        assert_int_equal(rig_wait(client, tag)->status, ICMS_PEER_DOWN);
        tag = rig_op(client, SHM_OP_FLUSH, KV, 0, 500 * MS);
        (void)rig_wait(client, tag);
        tag = rig_op(client, SHM_OP_FLUSH, KV, 0, 500 * MS);
        assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* ---- removals ------------------------------------------------------------------------------- */

static void fake_hold(struct fake_target *target)
{
    target->hold = true;
}

/* Loads, stores and lookups are at an enclosure when it leaves: each is answered at once, by the
 * others. */
static void what_is_in_flight_at_one_that_leaves_goes_on_with_the_others(void **state)
{
    for (size_t way = 0; way < WAYS; way++) {
        struct rig_opts opts = ways[way];
        struct agent_rig *rig;
        struct rig_client *client;
        uint64_t tags[60];
        uint32_t n = 0;

        opts.members = 0;
        rig = rig_new(&opts);
        client = rig_client_new(rig);
        rig_on_fake(rig, 0, fake_hold);
        for (uint32_t i = 0; i < 60; i++, n++) {
            n = key_of(rig, 0, n);
            if (i % 3 == 0)
                tags[i] = rig_get(client, KV, n, 5, 2000 * MS);
            else if (i % 3 == 1)
                tags[i] = rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 2000 * MS);
            else
                tags[i] = rig_op(client, SHM_OP_EXISTS, KV, n, 2000 * MS);
            if (i % 8 == 7)
                rig_run(rig, MS);
        }
        rig_run(rig, 20 * MS);
        assert_pod(rig, 2, &rig->enclosures[1], 3);
        rig_run(rig, 50 * MS);
        rig_take(client);
        for (uint32_t i = 0; i < 60; i++) {
            assert_int_equal(client->got[tags[i]], 1);
            assert_int_equal(client->answers[tags[i]].status, i % 3 == 1 ? ICMS_OK : ICMS_MISS);
        }
        rig_client_free(client);
        rig_free(rig);
    }
}

static uint32_t number_of(struct agent_rig *rig, const char *name)
{
    const struct agent_stats *stats = rig_stats(rig);

    for (uint32_t i = 0; i < stats->enclosure_count; i++)
        if (strcmp(stats->enclosures[i].name, name) == 0)
            return stats->enclosures[i].number;
    return UINT32_MAX;
}

static void a_member_keeps_its_slot_and_a_free_one_begins_anew(void **state)
{
    static const struct rig_opts opts = {.enclosures = 4, .members = 2, .epoch = 1, .loops = 3};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    struct agent_enclosure_opts list[3];
    uint64_t loaded;

    fill(rig, 0, 40);
    assert_int_equal(hits(client, 0, 40), 40);
    loaded = rig_stats(rig)->pod_load_bytes;
    assert_int_equal(loaded, rig_stats(rig)->enclosures[0].load_bytes +
                                 rig_stats(rig)->enclosures[1].load_bytes);
    assert_int_equal(number_of(rig, "e1"), 1);
    assert_true(rig_stats(rig)->enclosures[0].load_bytes > 0);
    /* "e0" goes while a command is there, and "e2" comes: what "e0" had is not used at once. */
    rig->fake[0]->hold = true;
    (void)rig_get(client, KV, key_of(rig, 0, 40), 6, 500 * MS);
    rig_run(rig, MS);
    assert_pod(rig, 2, &rig->enclosures[1], 2);
    assert_int_equal(number_of(rig, "e1"), 1);
    assert_int_equal(number_of(rig, "e2"), 2);
    assert_int_equal(number_of(rig, "e0"), UINT32_MAX);
    rig_run(rig, 1000 * MS);
    /* When it is closed, "e3" has its slot, and counters of its own. */
    memcpy(list, &rig->enclosures[1], sizeof(list));
    assert_pod(rig, 3, list, 3);
    assert_int_equal(number_of(rig, "e3"), 0);
    assert_int_equal(rig_stats(rig)->enclosures[0].load_bytes, 0);
    assert_true(rig_stats(rig)->pod_load_bytes >= loaded); /* a sum never falls */
    rig_run(rig, 500 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_UP);
    assert_int_equal(rig->fake[1]->connects, 3); /* once for each reactor, and never again */
    assert_int_equal(rig->fake[3]->connects, 3);
    rig_client_free(client);
    rig_free(rig);
}

/* An enclosure that has another address now is the same one, and was away for a moment: what came
 * for it meanwhile is with the next one. */
static void another_address_is_connected_to_in_the_same_slot(void **state)
{
    static const struct rig_opts opts = {.enclosures = 3, .members = 2, .epoch = 1};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    uint32_t n = key_of(rig, 1, 0);
    struct pod pod = pod_with(rig, 0, AGENT_POD_UP);

    rig_flash(rig, 2, KV, n, BYTES);
    assert_int_equal(rig_wait(client, rig_get(client, KV, n, 5, 500 * MS))->status, ICMS_MISS);
    pod.list[1].addrs[0] = rig->enclosures[2].addrs[0];
    rig->fake[1]->hold = true;
    (void)rig_get(client, KV, n, 5, 500 * MS);
    rig_run(rig, MS);
    assert_pod(rig, 2, pod.list, 2);
    rig_run(rig, 500 * MS);
    assert_int_equal(number_of(rig, "e1"), 1);
    assert_int_equal(rig->fake[1]->conn_count, 0);
    assert_int_equal(rig->fake[0]->connects, 1);
    assert_int_equal(hits(client, n, 1), 1);
    n = key_of(rig, 1, n + 1);
    rig_flash(rig, 0, KV, n, BYTES);
    assert_int_equal(hits(client, n, 1), 1);
    /* Twice at once: the one in between is never opened. */
    pod.list[1].addrs[0] = rig->enclosures[1].addrs[0];
    assert_pod(rig, 3, pod.list, 2);
    pod.list[1].addrs[0] = rig->enclosures[2].addrs[0];
    assert_pod(rig, 3, pod.list, 2); /* its name is another address: no new epoch */
    rig_run(rig, 500 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[1].state, AGENT_ENCLOSURE_UP);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void what_cannot_be_is_refused_whole(void **state)
{
    struct agent_rig *rig = rig_new(&all_four);
    static struct agent_enclosure_opts many[LIMIT_ENCLOSURES + 1];
    struct pod pod = pod_with(rig, 0, AGENT_POD_UP);

    for (uint32_t i = 0; i <= LIMIT_ENCLOSURES; i++) {
        many[i] = rig->enclosures[0];
        (void)snprintf(many[i].name, sizeof(many[i].name), "m%u", i);
        many[i].uuid.bytes[0] = (uint8_t)(i + 100);
        many[i].addrs[0].port = (uint16_t)(i + 1000);
    }
    assert_refused(rig, 2, many, LIMIT_ENCLOSURES + 1, ICMS_LIMIT,
                   "65 enclosures: 64 are possible");
    assert_refused(rig, 2, many, LIMIT_ENCLOSURES, ICMS_LIMIT, "no place is free");
    assert_refused(rig, 2, rig->enclosures, 0, ICMS_CONFIG, "no enclosure is left");
    assert_refused(rig, 0, rig->enclosures, 4, ICMS_INVALID, "epoch 0 is older than 1");
    assert_refused(rig, 1, rig->enclosures, 3, ICMS_INVALID, "epoch 1 is in use with other");
    pod.list[1].weight = 2;
    assert_refused(rig, 1, pod.list, 4, ICMS_INVALID, "epoch 1 is in use with other");
    pod = pod_with(rig, 1, AGENT_POD_UP);
    pod.list[1].uuid = pod.list[2].uuid;
    assert_refused(rig, 2, pod.list, 4, ICMS_CONFIG, "enclosures e1 and e2 have the same UUID");
    pod = pod_with(rig, 1, AGENT_POD_UP);
    strcpy(pod.list[1].name, "e3");
    assert_refused(rig, 2, pod.list, 4, ICMS_CONFIG, "two enclosures are named e3");
    pod = pod_with(rig, 1, AGENT_POD_UP);
    pod.list[3].addrs[0] = pod.list[0].addrs[0];
    assert_refused(rig, 2, pod.list, 4, ICMS_CONFIG, "e0 and e3 have the same address");
    pod = pod_with(rig, 1, AGENT_POD_UP);
    pod.list[3].weight = -1;
    assert_refused(rig, 2, pod.list, 4, ICMS_CONFIG, "enclosure e3: its weight");
    pod = pod_with(rig, 0, AGENT_POD_DRAINING);
    assert_refused(rig, 2, pod.list, 1, ICMS_CONFIG, "no enclosure would take blocks");
    pod = pod_with(rig, 0, AGENT_POD_UP);
    strcpy(pod.list[3].nqn, "no nqn");
    assert_refused(rig, 2, pod.list, 4, ICMS_CONFIG, "not a valid NVMe qualified name");
    /* The same again is no change. */
    assert_pod(rig, 1, rig->enclosures, 4);
    assert_int_equal(rig->fake[0]->connects, 1);
    rig_free(rig);
}

static void secret_write(const char *path)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    (void)fputs("DHHC-1:01:QfgnsZs5cSVb9bQ3ystlcL4ROTsCT3O6I3U39yyaCd/z6lsq:\n", file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    assert_int_equal(fclose(file), 0);
}

/* Which enclosures do not answer because their keys cannot be read: they and no others are away. */
static void keys_that_cannot_be_read_hold_no_epoch_up(void **state)
{
    static const struct rig_opts opts = {.enclosures = 4, .members = 3, .epoch = 1, .many = true};
    struct agent_rig *rig = rig_new(&opts);
    struct rig_client *client = rig_client_new(rig);
    struct pod pod = pod_with(rig, 0, AGENT_POD_UP);
    char path[] = "/tmp/icms-pod-test-XXXXXX";
    int fd = mkstemp(path);
    struct err_why why = {""};

    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(unlink(path), 0);
    pod.list[3].secret = path; /* one that comes */
    assert_int_equal(rig_pod(rig, 2, pod.list, 4, &why), ICMS_OK);
    assert_non_null(strstr(why.text, "enclosure e3: it is not used: "));
    assert_non_null(strstr(why.text, path));
    assert_int_equal(agent_epoch(rig->agent), 2);
    rig_run(rig, 2000 * MS);
    assert_int_equal(rig->fake[3]->connects, 0);
    assert_int_equal(rig_stats(rig)->enclosures[number_of(rig, "e3")].state,
                     AGENT_ENCLOSURE_EXCLUDED);
    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_UP);
    secret_write(path);
    assert_int_equal(rig_pod(rig, 2, pod.list, 4, &why), ICMS_OK);
    assert_string_equal(why.text, "");
    rig_run(rig, 500 * MS);
    assert_int_equal(rig->fake[3]->connects, 1);
    assert_int_equal(rig_stats(rig)->enclosures[number_of(rig, "e3")].state, AGENT_ENCLOSURE_UP);
    /* one that stays has what it has, and the epoch is taken */
    assert_int_equal(unlink(path), 0);
    pod.list[0].state = AGENT_POD_DRAINING;
    assert_int_equal(rig_pod(rig, 3, pod.list, 4, &why), ICMS_OK);
    assert_non_null(strstr(why.text, "enclosure e3: its keys stay as they were: "));
    assert_int_equal(owned(rig, 0, 0, KEYS), 0);
    rig_run(rig, 500 * MS);
    assert_int_equal(rig->fake[3]->connects, 1);
    assert_int_equal(rig_stats(rig)->enclosures[number_of(rig, "e3")].state, AGENT_ENCLOSURE_UP);
    /* one that has to prove more than before is not connected to as if it had not */
    pod.list[1].psk = path;
    assert_int_equal(rig_pod(rig, 4, pod.list, 4, &why), ICMS_OK);
    assert_non_null(strstr(why.text, "enclosure e1: it is not used: "));
    rig_run(rig, 2000 * MS);
    assert_int_equal(rig->fake[1]->conn_count, 0);
    rig_client_free(client);
    rig_free(rig);
}

static void an_agent_with_a_drive_takes_no_enclosures_and_one_call_at_a_time_is_taken(void **state)
{
    static const struct rig_opts own = {.enclosures = 0};
    struct agent_rig *rig = rig_new(&own);
    struct err_why why = {""};
    struct agent_enclosure_opts some = {.name = "e0", .weight = 1};

    assert_int_equal(rig_pod(rig, 1, &some, 1, &why), ICMS_INVALID);
    assert_non_null(strstr(why.text, "drive of its own"));
    rig_free(rig);

    rig = rig_new(&all_four);
    assert_int_equal(
        agent_pod_apply_start(rig->agent, 2, rig->enclosures, 3, NULL, &why, NULL, NULL), ICMS_OK);
    assert_int_equal(
        agent_pod_apply_start(rig->agent, 3, rig->enclosures, 2, NULL, &why, NULL, NULL),
        ICMS_BUSY);
    rig_run(rig, 100 * MS);
    assert_int_equal(agent_epoch(rig->agent), 2);
    assert_pod(rig, 3, rig->enclosures, 2);
    /* One that is not over when the agent ends. */
    assert_int_equal(
        agent_pod_apply_start(rig->agent, 4, rig->enclosures, 4, NULL, &why, NULL, NULL), ICMS_OK);
    rig_free(rig);
}

/* ---- faults --------------------------------------------------------------------------------- */

static void fault_drop(struct fake_target *target)
{
    fake_target_drop(target);
}

static void fault_silent(struct fake_target *target)
{
    target->silent = true;
}

static void fault_refuse(struct fake_target *target)
{
    target->refuse_connect = true;
    fake_target_drop(target);
}

static void fault_status(struct fake_target *target)
{
    target->status = NVME_SC_INTERNAL;
}

static void fault_slow(struct fake_target *target)
{
    target->delay_ns = 300 * MS;
}

static void fault_detach(struct fake_target *target)
{
    target->volume_count = 0;
    fake_target_event(target);
}

static void fault_reset(struct fake_target *target)
{
    target->wrong = FAKE_RESET;
}

static void fault_lies(struct fake_target *target)
{
    target->wrong = FAKE_CQE_TWICE;
}

static void (*const faults[])(struct fake_target *target) = {
    fake_hold,  fault_drop,   fault_silent, fault_refuse, fault_status,
    fault_slow, fault_detach, fault_reset,  fault_lies,
};
#define FAULTS (sizeof(faults) / sizeof(faults[0]))

static void fault_none(struct fake_target *target)
{
    target->silent = target->refuse_connect = false;
    target->status = 0;
    target->delay_ns = 0;
    target->wrong = FAKE_RIGHT;
    target->volume_count = 2;
    if (target->hold)
        fake_target_release(target);
    fake_target_event(target);
}

/* Requests of all kinds, each answered once, by its deadline, with the right bytes or none. */
struct load {
    struct rig_client *client;
    uint64_t tags[256];
    uint64_t deadline_ns[256];
    uint32_t keys[256];
    bool gets[256];
    uint32_t count;
};

static void load_send(struct load *load, uint64_t chance)
{
    uint32_t i = load->count++, n = (uint32_t)(chance >> 8) % KEYS;

    load->keys[i] = n;
    load->gets[i] = chance % 4 > 1;
    load->deadline_ns[i] = rig_now_ns(load->client->rig) + 400 * MS;
    if (chance % 4 == 0)
        load->tags[i] =
            rig_put(load->client, KV, n, BYTES, chance & 4 ? SHM_FLAG_ON_FLASH : 0, 400 * MS);
    else if (chance % 4 == 1)
        load->tags[i] = rig_op(load->client, SHM_OP_EXISTS, KV, n, 400 * MS);
    else
        load->tags[i] = rig_get(load->client, KV, n, 20 + i, 400 * MS);
}

static void load_judge(struct load *load)
{
    struct rig_client *client = load->client;

    for (int i = 0; i < 90; i++) {
        rig_run(client->rig, 5 * MS);
        rig_take(client);
    }
    for (uint32_t i = 0; i < load->count; i++) {
        const struct shm_complete *answer = &client->answers[load->tags[i]];

        assert_int_equal(client->got[load->tags[i]], 1);
        assert_true(client->got_ns[load->tags[i]] <= load->deadline_ns[i] + 20 * MS);
        if (answer->status == ICMS_OK && load->gets[i])
            assert_true(rig_value_is(client, KV, load->keys[i], BYTES, answer));
    }
    for (uint32_t i = 0; i < 256; i++)
        rig_lease_give(client, 20 + i);
    load->count = 0;
}

static void every_fault_may_come_with_every_change(void **state)
{
    for (uint64_t seed = 1; seed <= 2 * FAULTS; seed++) {
        struct rig_opts opts = ways[seed % WAYS];
        struct agent_rig *rig;
        struct load load = {0};
        uint64_t epoch = 1;

        opts.seed = seed;
        opts.members = 0;
        rig = rig_new(&opts);
        load.client = rig_client_new(rig);
        fill(rig, 0, KEYS);
        for (uint32_t round = 0; round < 24; round++) {
            uint32_t broken = (uint32_t)(sim_random(rig->sim) % 4);
            struct agent_enclosure_opts list[4];
            uint32_t count = 0;

            rig_on_fake(rig, broken, faults[(seed + round / 8) % FAULTS]);
            for (uint32_t i = 0; i < 4; i++) {
                uint64_t chance = sim_random(rig->sim);

                if (chance % 4 == 0 && i != round % 4)
                    continue;
                list[count] = rig->enclosures[i];
                if (i != round % 4)
                    list[count].state = (enum agent_pod_state)(chance / 4 % 3);
                count++;
            }
            for (uint32_t i = 0; i < 12; i++)
                load_send(&load, sim_random(rig->sim));
            rig_run(rig, sim_random(rig->sim) % (3 * MS));
            assert_pod(rig, ++epoch, list, count);
            for (uint32_t i = 0; i < 12; i++)
                load_send(&load, sim_random(rig->sim));
            load_judge(&load);
            rig_on_fake(rig, broken, fault_none);
        }
        assert_pod(rig, ++epoch, rig->enclosures, 4);
        rig_run(rig, 3000 * MS);
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(rig_stats(rig)->enclosures[i].state, AGENT_ENCLOSURE_UP);
        assert_int_equal(rig_stats(rig)->in_flight, 0);
        assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
        fill(rig, KEYS, 20);
        assert_int_equal(hits(load.client, KEYS, 20), 20);
        rig_client_free(load.client);
        rig_free(rig);
    }
}

/* ---- settings ------------------------------------------------------------------------------- */

static void settings_on(struct fake_target *target)
{
    target->settings = true;
    fake_target_drop(target);
}

/* Other enclosures are told at once, and that others do not have them yet is nothing to tell for a
 * while. */
static void an_epoch_is_told_and_a_difference_that_lasts(void **state)
{
    struct agent_rig *rig = rig_new(&all_four);
    struct pod pod = pod_with(rig, 3, AGENT_POD_DRAINING);
    uint32_t enclosures, weights;
    char text[16384];

    rig_on_fake(rig, 0, settings_on);
    rig_run(rig, 3000 * MS);
    enclosures = rig->fake[0]->told_value[0];
    weights = rig->fake[0]->told_value[1];
    assert_int_equal(rig->fake[0]->told_value[3], 1);
    rig->fake[0]->others[0] = enclosures; /* they still have those */
    rig->fake[0]->others[1] = weights;
    assert_pod(rig, 2, pod.list, 4);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig->fake[0]->told_value[0], enclosures);
    assert_int_not_equal(rig->fake[0]->told_value[1], weights);
    assert_int_equal(rig->fake[0]->told_value[3], 2);
    assert_pod(rig, 3, rig->enclosures, 3);
    rig_run(rig, 100 * MS);
    assert_int_not_equal(rig->fake[0]->told_value[0], enclosures);
    assert_int_equal(rig->fake[0]->told_value[3], 3);
    rig_run(rig, 100000 * MS);
    assert_false(rig_stats(rig)->enclosures[0].enclosures_differ);
    assert_false(rig_stats(rig)->enclosures[0].weights_differ);
    rig_run(rig, 50000 * MS);
    assert_true(rig_stats(rig)->enclosures[0].enclosures_differ);
    assert_true(rig_stats(rig)->enclosures[0].weights_differ);
    assert_true(agent_status(rig->agent, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"epoch\":3"));
    assert_non_null(strstr(text, "\"pod_state\":\"up\""));
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_joins_takes_its_share_and_costs_no_hit),
        cmocka_unit_test(a_weight_that_changes_costs_no_hit),
        cmocka_unit_test(one_added_to_three_takes_a_quarter_of_the_runs),
        cmocka_unit_test(what_a_caller_gets_in_its_memory_is_moved_too),
        cmocka_unit_test(a_larger_block_is_found_at_its_former_owner),
        cmocka_unit_test(what_is_damaged_or_too_much_is_not_moved),
        cmocka_unit_test(a_deletion_reaches_the_owner_and_the_one_before),
        cmocka_unit_test(one_that_drains_is_read_and_not_written_and_its_removal_costs_nothing),
        cmocka_unit_test(a_flush_reaches_one_that_drains_and_fails_once_for_one_that_left),
        cmocka_unit_test(a_flush_under_which_an_enclosure_leaves_fails),
        cmocka_unit_test(what_is_in_flight_at_one_that_leaves_goes_on_with_the_others),
        cmocka_unit_test(a_member_keeps_its_slot_and_a_free_one_begins_anew),
        cmocka_unit_test(another_address_is_connected_to_in_the_same_slot),
        cmocka_unit_test(what_cannot_be_is_refused_whole),
        cmocka_unit_test(keys_that_cannot_be_read_hold_no_epoch_up),
        cmocka_unit_test(an_agent_with_a_drive_takes_no_enclosures_and_one_call_at_a_time_is_taken),
        cmocka_unit_test(every_fault_may_come_with_every_change),
        cmocka_unit_test(an_epoch_is_told_and_a_difference_that_lasts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
