/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent with small enclosures, in the simulation: tiers, deadlines, health, eviction against
 * leases.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "agent/extent.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/fault_arm.h"
#include "base/hash.h"
#include "icms/icms.h"
#include "store/store.h"
#include "wire/nvme.h"

#define MS    RIG_MS
#define KV    0
#define RAW   1
#define NONE  2
#define BYTES 20000u

static const struct rig_opts one = {.enclosures = 1};
static const struct rig_opts two = {.enclosures = 2};

static void assert_miss(const struct shm_complete *answer, enum icms_miss reason)
{
    assert_non_null(answer);
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, reason);
}

/* ---- what works ----------------------------------------------------------------------------- */

static void an_accepted_put_is_a_dram_hit_and_reaches_flash(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *answer;
    struct key key;

    for (uint32_t volume = KV; volume <= RAW; volume++) {
        answer = rig_wait(client, rig_put(client, volume, 7, BYTES, 0, 0));
        assert_int_equal(answer->status, ICMS_OK);
        answer = rig_wait(client, rig_get(client, volume, 7, 5, 0));
        assert_true(rig_value_is(client, volume, 7, BYTES, answer));
        assert_int_equal(answer->source, ICMS_SOURCE_DRAM);
        rig_lease_give(client, 5);
        rig_run(rig, 100 * MS);
        rig_key(7, &key);
        assert_int_equal(fake_target_find(rig->fake[0], volume + 1, &key)->bytes,
                         BYTES + (volume == KV ? LIMIT_TRAILER_BYTES : 0));
    }
    assert_int_equal(rig->fake[0]->retrieves, 0);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_STORE], 2);
    assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
    rig_client_free(client);
    rig_free(rig);
}

static void a_get_loads_from_the_pod_once_for_all_that_wait(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig), *other = rig_client_new(rig);
    uint64_t tags[8];

    rig_flash(rig, 0, KV, 3, BYTES);
    for (uint32_t i = 0; i < 8; i++)
        tags[i] = rig_get(i % 2 == 0 ? client : other, KV, 3, i, 1000 * MS);
    for (uint32_t i = 0; i < 8; i++) {
        struct rig_client *who = i % 2 == 0 ? client : other;
        const struct shm_complete *answer = rig_wait(who, tags[i]);

        assert_true(rig_value_is(who, KV, 3, BYTES, answer));
        assert_int_equal(answer->source, ICMS_SOURCE_POD);
        assert_int_equal(atomic_load(&who->ring.leases[i]), answer->slot + 1);
    }
    assert_int_equal(rig->fake[0]->retrieves, 1);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_LOAD], 1);
    /* prestaging has its own queue, and may do without a lease */
    rig_flash(rig, 0, KV, 4, BYTES);
    struct shm_submit entry = {
        .op = SHM_OP_GET, .flags = SHM_FLAG_PRESTAGE, .lease = UINT32_MAX, .key_length = 16};
    struct key key;

    rig_key(4, &key);
    memcpy(entry.key, key.bytes, 16);
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_OK);
    assert_int_equal(rig->fake[0]->by_class[IO_CLASS_PRESTAGE], 1);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 4, 100, 0))->source, ICMS_SOURCE_DRAM);
    rig_client_free(client);
    rig_client_free(other);
    rig_free(rig);
}

static void a_client_finds_blocks_in_the_arena_by_itself(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint32_t slot, value_bytes;
    uint64_t version;
    struct key key;

    rig_key(3, &key);
    assert_false(rig_arena_has(&client->arenas[KV], &key));
    assert_int_equal(rig_wait(client, rig_put(client, KV, 3, BYTES, 0, 0))->status, ICMS_OK);
    assert_true(shm_arena_lease(&client->arenas[KV], &key, &client->ring.leases[0], &slot, &version,
                                &value_bytes));
    assert_int_equal(value_bytes, BYTES);
    rig_lease_give(client, 0);
    rig_client_free(client);
    rig_free(rig);
}

static void puts_on_flash_and_if_absent_answer_when_the_enclosure_did(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag;
    struct key key;

    rig->fake[0]->hold_stores = true;
    tag = rig_put(client, KV, 1, BYTES, SHM_FLAG_ON_FLASH, 5000 * MS);
    rig_run(rig, 100 * MS);
    rig_take(client);
    assert_int_equal(client->got[tag], 0);
    rig_key(1, &key);
    assert_false(rig_arena_has(&client->arenas[KV], &key));
    rig_on_fake(rig, 0, fake_target_release);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    assert_true(rig_arena_has(&client->arenas[KV], &key));
    assert_non_null(fake_target_find(rig->fake[0], 1, &key));
    rig_flash(rig, 0, KV, 2, BYTES);
    tag = rig_put(client, KV, 2, BYTES, SHM_FLAG_IF_ABSENT, 5000 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_EXISTS);
    tag = rig_put(client, KV, 1, BYTES, SHM_FLAG_IF_ABSENT, 5000 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_EXISTS);
    assert_int_equal(rig->fake[0]->stores, 2); /* the last one was known here */
    rig->fake[0]->status = NVME_SC_CAPACITY;
    rig->fake[0]->reason = ICMS_MISS_QUOTA;
    tag = rig_put(client, KV, 3, BYTES, SHM_FLAG_ON_FLASH, 5000 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_QUOTA);
    rig_key(3, &key);
    assert_false(rig_arena_has(&client->arenas[KV], &key)); /* a failed store is not visible */
    rig_client_free(client);
    rig_free(rig);
}

static void exists_remove_and_flush(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t put, flush;
    struct key key;

    rig_key(1, &key);
    assert_miss(rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, 1, 0)), ICMS_MISS_ABSENT);
    rig_flash(rig, 0, KV, 1, BYTES);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, 1, 0))->status, ICMS_OK);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 1, 0, 0))->status, ICMS_OK);
    rig_lease_give(client, 0);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, 1, 0))->value_bytes, BYTES);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 1, 0))->status, ICMS_OK);
    assert_false(rig_arena_has(&client->arenas[KV], &key));
    assert_null(fake_target_find(rig->fake[0], 1, &key));
    assert_miss(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 1, 0)), ICMS_MISS_ABSENT);
    assert_miss(rig_wait(client, rig_get(client, KV, 1, 0, 0)), ICMS_MISS_ABSENT);
    /* a flush waits for the stores before it */
    rig->fake[0]->hold_stores = true;
    put = rig_put(client, KV, 2, BYTES, 0, 0);
    flush = rig_op(client, SHM_OP_FLUSH, KV, 0, 5000 * MS);
    rig_run(rig, 100 * MS);
    rig_take(client);
    assert_int_equal(client->got[put], 1);
    assert_int_equal(client->got[flush], 0);
    assert_int_equal(rig->fake[0]->flushes, 0);
    rig_on_fake(rig, 0, fake_target_release);
    assert_int_equal(rig_wait(client, flush)->status, ICMS_OK);
    assert_int_equal(rig->fake[0]->flushes, 1);
    /* and tells of an accepted put that did not make it */
    rig->fake[0]->status = NVME_SC_INTERNAL;
    assert_int_equal(rig_wait(client, rig_put(client, KV, 3, BYTES, 0, 0))->status, ICMS_OK);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, KV, 0, 0))->status, ICMS_IO);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 3, 0, 0))->status, ICMS_OK);
    rig->fake[0]->status = 0;
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, KV, 0, 0))->status, ICMS_OK);
    assert_int_equal(rig_stats(rig)->volumes[KV].store_failures, 1);
    rig_client_free(client);
    rig_free(rig);
}

/* Writers of one key go one after the other; a load that began before publishes nothing old. */
static void the_last_writer_of_a_key_wins(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t get, first, second, removed;
    struct key key;

    rig_key(1, &key);
    rig_flash(rig, 0, KV, 1, BYTES);
    rig->fake[0]->hold = true;
    get = rig_get(client, KV, 1, 0, 5000 * MS);
    rig_run(rig, 20 * MS);
    rig->fake[0]->hold_stores = true;
    first = rig_put(client, KV, 1, 100, 0, 0);
    second = rig_put(client, KV, 1, 200, 0, 0);
    removed = rig_op(client, SHM_OP_REMOVE, KV, 1, 5000 * MS);
    rig_run(rig, 50 * MS);
    rig_take(client);
    assert_int_equal(client->got[first], 1);
    assert_int_equal(client->got[second], 0);
    rig_on_fake(rig, 0, fake_target_release);
    assert_int_equal(rig_wait(client, second)->status, ICMS_OK);
    assert_int_equal(rig_wait(client, removed)->status, ICMS_OK);
    (void)rig_wait(client, get);
    rig_lease_give(client, 0);
    rig_run(rig, 100 * MS);
    assert_null(fake_target_find(rig->fake[0], 1, &key));
    assert_miss(rig_wait(client, rig_get(client, KV, 1, 0, 0)), ICMS_MISS_ABSENT);
    rig_client_free(client);
    rig_free(rig);
}

static void a_drive_of_its_own_instead_of_a_pod(void **state)
{
    static const struct rig_opts local = {.slots = 4, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&local);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *answer;

    assert_miss(rig_wait(client, rig_get(client, KV, 1, 0, 0)), ICMS_MISS_ABSENT);
    for (uint32_t n = 0; n < 40; n++)
        assert_int_equal(rig_wait(client, rig_put(client, n % 2, n, BYTES + n, 0, 0))->status,
                         ICMS_OK);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_FLUSH, KV, 0, 0))->status, ICMS_OK);
    for (uint32_t n = 0; n < 40; n++) {
        answer = rig_wait(client, rig_get(client, n % 2, n, 0, 0));
        assert_true(rig_value_is(client, n % 2, n, BYTES + n, answer));
        rig_lease_give(client, 0);
    }
    assert_true(rig_stats(rig)->volumes[KV].hits_local > 10);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, 0, 0))->status, ICMS_OK);
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 0, 0))->status, ICMS_OK);
    assert_miss(rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, 0, 0)), ICMS_MISS_ABSENT);
    assert_miss(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, 0, 0)), ICMS_MISS_ABSENT);
    assert_miss(rig_wait(client, rig_get(client, KV, 0, 0, 0)), ICMS_MISS_ABSENT);
    assert_int_equal(rig_wait(client, rig_put(client, KV, 2, BYTES, SHM_FLAG_IF_ABSENT, 0))->status,
                     ICMS_EXISTS);
    assert_true(agent_ready(rig->agent, 0, NULL));
    rig_client_free(client);
    rig_free(rig);
}

/* The largest values and what the store writes around them fill slots to the last byte. One block
 * is leased all the time, while records are written from and read into the slots beside it. */
static void records_of_an_own_drive_stay_in_their_slots(void **state)
{
    enum { LARGEST = 2 * 4096 - 2 * 64 - 4 - LIMIT_TRAILER_BYTES, HELD = 5, ROUNDS = 300 };
    static const struct rig_opts local = {.slots = 5, .value_bytes = LARGEST, .own_process = true};
    struct agent_rig *rig = rig_new(&local);
    struct rig_client *client = rig_client_new(rig);
    struct shm_complete held = {0};

    assert_int_equal(client->arenas[KV].data_bytes, 5 * 2 * 4096);
    for (uint32_t n = 0; n < 20; n++) {
        uint64_t tag = rig_put(client, KV, n, LARGEST - n % 3, 0, 0);

        assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
        if (n != HELD)
            continue;
        held = *rig_wait(client, rig_get(client, KV, HELD, 7, 0));
        assert_int_equal(held.source, ICMS_SOURCE_DRAM);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t dice = hash64_mix(round);
        uint32_t n = dice % 20, bytes = LARGEST - n % 3;
        const struct shm_complete *answer;

        if (n == HELD)
            continue;
        if (dice >> 60 < 6)
            assert_int_equal(rig_wait(client, rig_put(client, KV, n, bytes, 0, 0))->status,
                             ICMS_OK);
        answer = rig_wait(client, rig_get(client, KV, n, 0, 0));
        assert_true(rig_value_is(client, KV, n, bytes, answer));
        assert_true(rig_value_is(client, KV, HELD, LARGEST - HELD % 3, &held));
        rig_lease_give(client, 0);
    }
    assert_true(rig_stats(rig)->volumes[KV].hits_local > ROUNDS / 4);
    rig_client_free(client);
    rig_free(rig);
}

/* What the store adds to a value lies in slots only where no other process maps them, and where
 * they are pinned. */
static void other_processes_never_see_a_record(void **state)
{
    enum { SHARED, OWN, OWN_NOT_PINNED, WAYS };

    for (int way = SHARED; way < WAYS; way++) {
        const char *faults = way == OWN_NOT_PINNED ? "agent.pin:1:fail" : "";
        const struct shm_complete *answer;
        const struct shm_arena *arena;
        const uint8_t *first, *end;
        struct rig_client *client;
        struct agent_rig *rig;
        uint32_t blocks = 0;
        bool clean = true;

        assert_int_equal(fault_arm(faults, NULL), ICMS_OK);
        rig = rig_new(
            &(struct rig_opts){.slots = 4, .block_bytes = BYTES, .own_process = way != SHARED});
        client = rig_client_new(rig);
        arena = &client->arenas[KV];
        /* Enough to reuse slots, for stores and for loads. */
        for (uint32_t n = 0; n < 10; n++)
            assert_int_equal(
                rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 0))->status,
                ICMS_OK);
        for (uint32_t n = 0; n < 10; n++) {
            answer = rig_wait(client, rig_get(client, KV, n, 0, 0));
            assert_true(rig_value_is(client, KV, n, BYTES, answer));
            rig_lease_give(client, 0);
        }
        for (uint32_t slot = 0; slot < arena->slot_count; slot++) {
            if (atomic_load(&arena->slots[slot].version) % 2 != 0)
                continue;
            first = shm_arena_value(arena, slot, BYTES);
            end = way == SHARED ? first + bytes_align(BYTES + LIMIT_TRAILER_BYTES, EXTENT_UNIT)
                                : first - STORE_HEADER_BYTES +
                                      store_record_bytes(BYTES + LIMIT_TRAILER_BYTES);
            blocks++;
            for (first += BYTES + LIMIT_TRAILER_BYTES; first < end; first++)
                clean = clean && *first == 0;
        }
        assert_true(blocks >= 2);
        assert_int_equal(clean, way != OWN);
        rig_client_free(client);
        rig_free(rig);
        assert_int_equal(fault_arm("", NULL), ICMS_OK);
    }
}

/* ---- misses and errors ---------------------------------------------------------------------- */

static void every_miss_has_its_reason(void **state)
{
    static const struct {
        uint16_t status;
        uint32_t dw1;
        enum icms_miss reason;
    } cases[] = {
        {NVME_SC_KV_NO_KEY, 0, ICMS_MISS_ABSENT},
        {NVME_SC_KV_NO_KEY, ICMS_MISS_EVICTED, ICMS_MISS_EVICTED},
        {NVME_SC_KV_NO_KEY, 99, ICMS_MISS_ABSENT},
        {NVME_SC_CAPACITY, 0, ICMS_MISS_QUOTA},
        {NVME_SC_UNRECOVERED_READ, 0, ICMS_MISS_CHECKSUM},
        {NVME_SC_INTERNAL, ICMS_MISS_DRIVE_DOWN, ICMS_MISS_DRIVE_DOWN},
        {NVME_SC_INTERNAL, 0, ICMS_MISS_DRIVE_DOWN},
        {NVME_SC_TRANSIENT, ICMS_MISS_SHED, ICMS_MISS_SHED},
        {NVME_SC_TRANSIENT, 0, ICMS_MISS_SHED},
        {NVME_SC_ABORT_REQUESTED, ICMS_MISS_DEADLINE, ICMS_MISS_DEADLINE},
    };
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        rig->fake[0]->status = cases[i].status;
        rig->fake[0]->reason = cases[i].dw1;
        assert_miss(rig_wait(client, rig_get(client, KV, 1, 0, 500 * MS)), cases[i].reason);
        assert_miss(rig_wait(client, rig_op(client, SHM_OP_EXISTS, KV, 1, 500 * MS)),
                    cases[i].reason);
        assert_int_equal(atomic_load(&client->ring.leases[0]), 0);
    }
    for (int reason = ICMS_MISS_ABSENT; reason <= ICMS_MISS_SHED; reason++)
        if (reason != ICMS_MISS_ENCLOSURE_DOWN)
            assert_true(rig_stats(rig)->volumes[KV].misses[reason] > 0);
    rig_client_free(client);
    rig_free(rig);
}

/* NVMe has one status for "too late" and "canceled". */
static void what_is_too_late_at_the_enclosure_was_not_canceled(void **state)
{
    static const uint8_t ops[] = {SHM_OP_PUT, SHM_OP_REMOVE, SHM_OP_FLUSH};
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);

    assert_int_equal(
        rig_wait(client, rig_put(client, KV, 1, BYTES, SHM_FLAG_ON_FLASH, 500 * MS))->status,
        ICMS_OK); /* something to flush */
    rig->fake[0]->status = NVME_SC_ABORT_REQUESTED;
    rig->fake[0]->reason = ICMS_MISS_DEADLINE;
    for (size_t i = 0; i < sizeof(ops); i++) {
        uint64_t tag = ops[i] == SHM_OP_PUT
                           ? rig_put(client, KV, 2, BYTES, SHM_FLAG_ON_FLASH, 500 * MS)
                           : rig_op(client, ops[i], KV, 3, 500 * MS);
        const struct shm_complete *answer = rig_wait(client, tag);

        assert_int_equal(answer->status, ICMS_DEADLINE);
        assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
    }
    rig_client_free(client);
    rig_free(rig);
}

static void wrong_requests_have_their_own_answers(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    /* The last two are volume 0, were their low bits all that counts. */
    static const uint32_t unknown[] = {RIG_VOLUMES, UINT32_MAX, LIMIT_AGENT_VOLUMES,
                                       4 * LIMIT_AGENT_VOLUMES};
    struct shm_submit entry;
    uint8_t *staging = client->ring.staging;
    struct key key;

    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        entry = (struct shm_submit){.op = SHM_OP_GET, .key_length = 16, .volume = unknown[i]};
        assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_NO_VOLUME);
    }
    assert_int_equal(rig_wait(client, rig_get(client, NONE, 1, 0, 0))->status, ICMS_NO_VOLUME);
    assert_int_equal(rig_wait(client, rig_put(client, NONE, 1, 10, SHM_FLAG_ON_FLASH, 0))->status,
                     ICMS_NO_VOLUME);
    entry = (struct shm_submit){.op = SHM_OP_GET, .key_length = 0};
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_KEY_SIZE);
    entry = (struct shm_submit){.op = SHM_OP_GET, .key_length = 17};
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_KEY_SIZE);
    entry = (struct shm_submit){.op = SHM_OP_GET, .key_length = 1, .lease = SHM_LEASES};
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry = (struct shm_submit){.op = 77, .key_length = 1};
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry = (struct shm_submit){.op = SHM_OP_PUT, .key_length = 1, .bytes = 0};
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_VALUE_SIZE);
    entry.bytes = RIG_VALUE_BYTES + 1;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_VALUE_SIZE);
    entry.bytes = 100;
    entry.offset = client->ring.staging_bytes - 100; /* no space for the trailer */
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry.offset = UINT64_MAX - 10;
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_INVALID);
    entry.offset = 0;
    memset(staging, 0, 200); /* no trailer */
    assert_int_equal(rig_wait(client, rig_submit(client, &entry))->status, ICMS_CORRUPT);
    rig_key(1, &key);
    fake_target_put(rig->fake[0], 1, &key, staging, 40); /* shorter than a trailer */
    assert_miss(rig_wait(client, rig_get(client, KV, 1, 0, 0)), ICMS_MISS_CHECKSUM);
    assert_int_equal(rig_stats(rig)->volumes[KV].slots_used, 0);
    assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
    rig_client_free(client);
    rig_free(rig);
}

static void a_damaged_block_goes_when_a_client_finds_it(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    struct key key;

    rig_key(1, &key);
    rig_flash(rig, 0, KV, 1, BYTES);
    fake_target_find(rig->fake[0], 1, &key)->data[100] ^= 1;
    assert_int_equal(rig_wait(client, rig_get(client, KV, 1, 0, 0))->status, ICMS_OK);
    rig_lease_give(client, 0);
    assert_true(rig_arena_has(&client->arenas[KV], &key));
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0);
    rig_run(rig, 50 * MS);
    assert_false(rig_arena_has(&client->arenas[KV], &key));
    assert_int_equal(rig_stats(rig)->checksum_errors, 1);
    assert_int_equal(rig_wait(client, rig_put(client, KV, 2, BYTES, 0, 0))->status, ICMS_OK);
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 2, 0);
    rig_run(rig, 50 * MS);
    rig_key(2, &key);
    assert_true(rig_arena_has(&client->arenas[KV], &key));
    rig_client_free(client);
    rig_free(rig);
}

static void stores_over_the_backlog_are_shed(void **state)
{
    static const struct rig_opts small = {.enclosures = 1, .backlog_bytes = 3 * 21000};
    struct agent_rig *rig = rig_new(&small);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tags[6];
    uint32_t ok = 0, shed = 0;

    rig->fake[0]->hold_stores = true;
    for (uint32_t i = 0; i < 6; i++)
        tags[i] = rig_put(client, KV, i, BYTES, 0, 0);
    for (uint32_t i = 0; i < 6; i++) {
        const struct shm_complete *answer = rig_wait(client, tags[i]);

        ok += answer->status == ICMS_OK;
        shed += answer->status == ICMS_BUSY && answer->reason == ICMS_MISS_SHED;
    }
    assert_int_equal(ok, 3);
    assert_int_equal(shed, 3);
    assert_int_equal(rig_stats(rig)->sheds, 3);
    /* loads are not touched by it */
    rig_flash(rig, 0, KV, 50, BYTES);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 50, 0, 100 * MS))->status, ICMS_OK);
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 100 * MS);
    assert_int_equal(rig_wait(client, rig_put(client, KV, 9, BYTES, 0, 0))->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

static void every_request_is_answered_by_its_deadline(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tags[5], began_ns;

    rig->fake[0]->hold = rig->fake[0]->hold_stores = true;
    began_ns = rig_now_ns(rig);
    tags[0] = rig_get(client, KV, 1, 0, 100 * MS);
    tags[1] = rig_op(client, SHM_OP_EXISTS, KV, 2, 100 * MS);
    tags[2] = rig_put(client, KV, 3, BYTES, SHM_FLAG_ON_FLASH, 100 * MS);
    tags[3] = rig_op(client, SHM_OP_REMOVE, KV, 4, 100 * MS);
    tags[4] = rig_put(client, KV, 3, BYTES, SHM_FLAG_ON_FLASH, 100 * MS); /* behind the other */
    for (int i = 0; i < 5; i++) {
        const struct shm_complete *answer = rig_wait(client, tags[i]);

        assert_int_equal(answer->reason, ICMS_MISS_DEADLINE);
        assert_int_equal(answer->status, i < 2 ? ICMS_MISS : ICMS_DEADLINE);
        assert_in_range(client->got_ns[tags[i]] - began_ns, 99 * MS, 105 * MS);
    }
    /* one that was late when it came */
    tags[0] = rig_get(client, KV, 1, 0, 1);
    assert_miss(rig_wait(client, tags[0]), ICMS_MISS_DEADLINE);
    /* the store's slot is kept until the enclosure is done with it */
    rig_on_fake(rig, 0, fake_target_release);
    rig_run(rig, 200 * MS);
    assert_int_equal(rig_stats(rig)->volumes[KV].slots_used, 0);
    assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
    assert_int_equal(rig_stats(rig)->in_flight, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* Two wait for one load: the one with more time asks again when the first one's is over. */
static void a_join_does_not_shorten_a_deadline(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t early, late;

    rig_flash(rig, 0, KV, 1, BYTES);
    rig->fake[0]->hold = true;
    early = rig_get(client, KV, 1, 0, 50 * MS);
    late = rig_get(client, KV, 1, 1, 2000 * MS);
    assert_miss(rig_wait(client, early), ICMS_MISS_DEADLINE);
    rig_run(rig, 50 * MS);
    rig_on_fake(rig, 0, fake_target_release);
    assert_int_equal(rig_wait(client, late)->status, ICMS_OK);
    rig_client_free(client);
    rig_free(rig);
}

/* Its enclosure is slower than its deadline: what is on its way then is there for the next one, and
 * is asked for and sent once. */
static void what_comes_late_is_there_for_the_next_get(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag, began_ns = rig_now_ns(rig);

    for (uint32_t n = 1; n <= 2; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    rig->fake[0]->delay_ns = 300 * MS;
    tag = rig_get(client, KV, 1, 0, 100 * MS);
    (void)rig_get(client, KV, 2, 1, 100 * MS);
    assert_miss(rig_wait(client, tag), ICMS_MISS_DEADLINE);
    assert_in_range(rig_now_ns(rig) - began_ns, 99 * MS, 105 * MS);
    tag = rig_get(client, KV, 1, 0, 1000 * MS); /* joins it */
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    assert_in_range(rig_now_ns(rig) - began_ns, 300 * MS, 310 * MS);
    rig_run(rig, 10 * MS);
    assert_true(rig_in_arena(client, KV, 2)); /* which nobody waited for */
    assert_int_equal(rig->fake[0]->retrieves, 2);
    rig_client_free(client);
    rig_free(rig);
}

/* But not for ever: an enclosure that keeps it holds nothing of the agent, nor who asks again. */
static void what_does_not_come_is_asked_for_again(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag;

    rig_flash(rig, 0, KV, 1, BYTES);
    rig->fake[0]->hold = true;
    tag = rig_get(client, KV, 1, 0, 100 * MS);
    assert_miss(rig_wait(client, tag), ICMS_MISS_DEADLINE);
    rig->fake[0]->hold = false;
    tag = rig_get(client, KV, 1, 0, 2000 * MS);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    assert_int_equal(rig->fake[0]->retrieves, 2);
    rig->fake[0]->hold = true;
    for (uint32_t n = 100; n < 200; n++)
        (void)rig_get(client, KV, n, SHM_SLOT_NONE, 100 * MS);
    rig_run(rig, 1200 * MS);
    assert_int_equal(rig->agent->reactors[0].ops_used[IO_CLASS_LOAD], 0);
    assert_int_equal(rig_stats(rig)->volumes[KV].slots_used, 1);
    rig_client_free(client);
    rig_free(rig);
}

/* Where much is in flight, operations and memory are for those that somebody waits for. */
static void late_loads_keep_no_others_out(void **state)
{
    struct rig_opts opts = {.enclosures = 4, .slots = 8192, .block_bytes = BYTES};

    for (int has_little_memory = 0; has_little_memory < 2; has_little_memory++) {
        struct agent_rig *rig;
        struct rig_client *client;
        const uint32_t *used;

        opts.slots = has_little_memory ? 256 : 8192;
        rig = rig_new(&opts);
        client = rig_client_new(rig);
        used = &rig->agent->reactors[0].ops_used[IO_CLASS_LOAD];
        for (uint32_t i = 0; i < 4; i++)
            rig->fake[i]->hold = true;
        for (uint32_t n = 0; n < (has_little_memory ? 40 : 400); n++)
            (void)rig_get(client, KV, n, SHM_SLOT_NONE, 100 * MS);
        rig_run(rig, 50 * MS);
        assert_int_equal(*used, has_little_memory ? 40 : 400);
        rig_run(rig, 100 * MS);
        if (has_little_memory)
            assert_in_range(*used, 1, opts.slots / AGENT_LATE_SHARE / 2);
        else
            assert_in_range(*used, AGENT_LATE_OPS / 2, AGENT_LATE_OPS);
        rig_run(rig, 1000 * MS);
        assert_int_equal(*used, 0);
        assert_int_equal(rig->agent->reactors[0].shards[KV].late_bytes, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

static void canceled_requests_are_answered_once(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops += 2) {
        struct rig_opts opts = {.enclosures = 1, .loops = loops};
        struct agent_rig *rig = rig_new(&opts);
        struct rig_client *client = rig_client_new(rig);
        uint64_t tags[20];

        rig->fake[0]->hold = true;
        for (uint32_t i = 0; i < 20; i++)
            tags[i] = rig_get(client, i % 2, i, i, 1000 * MS);
        rig_run(rig, 20 * MS);
        for (uint32_t i = 0; i < 10; i++) {
            rig_cancel(client, tags[i]);
            rig_cancel(client, tags[i]); /* twice */
        }
        rig_publish(client);
        for (uint32_t i = 0; i < 10; i++)
            assert_int_equal(rig_wait(client, tags[i])->status, ICMS_CANCELED);
        for (uint32_t i = 10; i < 20; i++)
            assert_miss(rig_wait(client, tags[i]), ICMS_MISS_DEADLINE);
        assert_int_equal(rig_stats(rig)->in_flight, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* ---- health --------------------------------------------------------------------------------- */

/* Ends enclosure 0 in one of four ways; says how long a load may take to notice. */
enum death { DEATH_RESET, DEATH_STOP, DEATH_HOLE, DEATH_CRASH, DEATHS };

static void die(struct agent_rig *rig, enum death death)
{
    switch (death) {
    case DEATH_RESET:
        rig->fake[0]->refuse_connect = true; /* and does not come back */
        rig_on_fake(rig, 0, fake_target_drop);
        break;
    case DEATH_STOP:
        sim_node_pause(rig->fake_node[0], true);
        break;
    case DEATH_HOLE:
        sim_net_cut(rig->sim, rig->node, rig->fake_node[0], true);
        break;
    default:
        sim_node_crash(rig->fake_node[0], false, false);
        break;
    }
}

static void a_dead_enclosure_is_excluded_within_a_second(void **state)
{
    for (enum death death = 0; death < DEATHS; death++) {
        struct agent_rig *rig = rig_new(&two);
        struct rig_client *client = rig_client_new(rig);
        const struct shm_complete *answer;
        uint64_t tags[64], began_ns;
        uint32_t at_dead = 0;
        struct key key;

        for (uint32_t n = 0; n < 64; n++)
            rig_flash(rig, rig_owner(rig, KV, n), KV, n, BYTES);
        die(rig, death);
        began_ns = rig_now_ns(rig);
        for (uint32_t n = 0; n < 64; n++)
            tags[n] = rig_get(client, KV, n, n, 5000 * MS);
        for (uint32_t n = 0; n < 64; n++) {
            answer = rig_wait(client, tags[n]);
            assert_true(client->got_ns[tags[n]] - began_ns < 1000 * MS);
            if (rig_owner(rig, KV, n) == 1) {
                assert_true(rig_value_is(client, KV, n, BYTES, answer));
            } else {
                assert_miss(answer, ICMS_MISS_ENCLOSURE_DOWN);
                at_dead = n;
            }
            rig_lease_give(client, n);
        }
        rig_key(at_dead, &key);
        assert_int_equal(rig_owner(rig, KV, at_dead), 0);
        assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_EXCLUDED);
        assert_int_equal(rig_stats(rig)->enclosures[0].excluded_count, 1);
        assert_true(rig_stats(rig)->enclosures[0].last_error[0] != 0);
        assert_true(agent_ready(rig->agent, 0, NULL));
        /* the next one takes its stores and is asked for its loads */
        answer = rig_wait(client, rig_put(client, KV, at_dead, BYTES, SHM_FLAG_ON_FLASH, 0));
        assert_int_equal(answer->status, ICMS_OK);
        assert_non_null(fake_target_find(rig->fake[1], 1, &key));
        rig_run(rig, 3000 * MS);
        assert_true(rig_stats(rig)->enclosures[0].probes >= 2);
        rig_client_free(client);
        if (death == DEATH_CRASH)
            rig->fake[0]->conn_count = 0;
        rig_free(rig);
    }
}

/* What the network had of this agent so far. */
static uint64_t network_used(struct agent_rig *rig)
{
    const struct agent_stats *stats = rig_stats(rig);
    uint64_t used = 0;

    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        used += stats->enclosures[i].probes + rig->fake[i]->connects;
        for (uint32_t l = 0; l < stats->enclosures[i].link_count; l++)
            used += stats->enclosures[i].links[l].commands;
    }
    return used;
}

/* When nobody is left to ask, the answer takes no I/O: no command, no connection, no timer. */
static void a_get_that_nobody_can_answer_takes_no_io(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    struct rig_client *client = rig_client_new(rig);
    uint64_t began_ns, used, tag;

    for (uint32_t i = 0; i < 2; i++) {
        rig->fake[i]->refuse_connect = true;
        rig_on_fake(rig, i, fake_target_drop);
    }
    rig_run(rig, 1000 * MS);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(rig_stats(rig)->enclosures[i].state, AGENT_ENCLOSURE_EXCLUDED);
    for (uint32_t n = 0; n < 200; n++) {
        rig_run(rig, MS);
        used = network_used(rig);
        began_ns = rig_now_ns(rig);
        tag = rig_get(client, KV, n, 0, 5000 * MS);
        assert_miss(rig_wait(client, tag), ICMS_MISS_ENCLOSURE_DOWN);
        assert_true(client->got_ns[tag] - began_ns < MS); /* messages to and from the client */
        assert_int_equal(network_used(rig), used);
    }
    rig_client_free(client);
    rig_free(rig);
}

/* A store in flight at the time of the death goes to the next one. */
static void stores_in_flight_move_to_the_next_enclosure(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    struct rig_client *client = rig_client_new(rig);
    uint32_t n = 0;
    struct key key;
    uint64_t tag;

    while (rig_owner(rig, KV, n) != 0)
        n++;
    rig->fake[0]->hold_stores = true;
    tag = rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 5000 * MS);
    rig_run(rig, 50 * MS);
    rig_on_fake(rig, 0, fake_target_drop);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    rig_key(n, &key);
    assert_non_null(fake_target_find(rig->fake[1], 1, &key));
    rig_client_free(client);
    rig_free(rig);
}

static void a_mended_enclosure_is_back_and_what_the_other_took_is_found(void **state)
{
    struct agent_rig *rig = rig_new(&two);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *answer;
    uint32_t n = 0;
    struct key key;

    while (rig_owner(rig, KV, n) != 0)
        n++;
    sim_net_cut(rig->sim, rig->node, rig->fake_node[0], true);
    (void)rig_wait(client, rig_get(client, KV, n, 0, 2000 * MS));
    answer = rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_ON_FLASH, 0));
    assert_int_equal(answer->status, ICMS_OK);
    /* a remove cannot promise anything while the owner is away */
    assert_int_equal(rig_wait(client, rig_op(client, SHM_OP_REMOVE, KV, n + 4, 0))->status,
                     rig_owner(rig, KV, n + 4) == 0 ? ICMS_PEER_DOWN : ICMS_MISS);
    sim_net_cut(rig->sim, rig->node, rig->fake_node[0], false);
    rig_run(rig, 2000 * MS);
    assert_int_equal(rig_stats(rig)->enclosures[0].state, AGENT_ENCLOSURE_UP);
    /* forget the arena's copy: evict by filling it */
    for (uint32_t i = 1000; i < 1300; i++)
        assert_int_equal(rig_wait(client, rig_put(client, KV, i, BYTES, 0, 0))->status, ICMS_OK);
    rig_key(n, &key);
    assert_false(rig_arena_has(&client->arenas[KV], &key));
    rig_run(rig, 100 * MS);
    assert_null(fake_target_find(rig->fake[0], 1, &key));
    answer = rig_wait(client, rig_get(client, KV, n, 0, 0));
    assert_true(rig_value_is(client, KV, n, BYTES, answer));
    rig_client_free(client);
    rig_free(rig);
}

static void without_an_enclosure_it_works_and_misses(void **state)
{
    struct agent_rig *rig = rig_new(&one);
    struct rig_client *client = rig_client_new(rig);
    struct err_why why;
    char text[8192];

    assert_true(agent_ready(rig->agent, 0, NULL));
    rig->fake[0]->refuse_connect = true;
    rig_on_fake(rig, 0, fake_target_drop);
    rig_run(rig, 50 * MS);
    assert_miss(rig_wait(client, rig_get(client, KV, 1, 0, 0)), ICMS_MISS_ENCLOSURE_DOWN);
    assert_int_equal(rig_wait(client, rig_put(client, KV, 1, 10, 0, 0))->status, ICMS_PEER_DOWN);
    assert_false(agent_ready(rig->agent, 0, &why));
    assert_non_null(strstr(why.text, "enclosures"));
    assert_true(agent_status(rig->agent, text, sizeof(text)) < sizeof(text));
    assert_non_null(strstr(text, "\"state\":\"excluded\""));
    rig->fake[0]->refuse_connect = false;
    rig_run(rig, 1000 * MS);
    assert_true(agent_ready(rig->agent, 0, NULL));
    assert_int_equal(rig_wait(client, rig_put(client, KV, 1, 10, 0, 0))->status, ICMS_OK);
    assert_int_equal(rig_wait(client, rig_put(client, KV, 2, 65536, 0, 0))->status, ICMS_OK);
    assert_false(agent_ready(rig->agent, 0.5, &why)); /* 1 of 3 * 64 blocks is more */
    assert_true(agent_ready(rig->agent, 0.6, &why));
    assert_non_null(strstr(why.text, "memory"));
    agent_drain(rig->agent, 0);
    assert_false(agent_ready(rig->agent, 0, &why));
    assert_int_equal(rig_wait(client, rig_get(client, KV, 1, 0, 0))->status, ICMS_CLOSED);
    rig_client_free(client);
    rig_free(rig);
}

/* ---- eviction and leases -------------------------------------------------------------------- */

static void a_leased_slot_stays_whatever_is_loaded(void **state)
{
    static const struct rig_opts small = {.enclosures = 1, .slots = 4, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&small);
    struct rig_client *client = rig_client_new(rig);
    const struct shm_complete *held;

    for (uint32_t n = 0; n < 60; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    held = rig_wait(client, rig_get(client, KV, 0, 0, 0));
    assert_true(rig_value_is(client, KV, 0, BYTES, held));
    for (uint32_t n = 1; n < 60; n++) {
        const struct shm_complete *answer = rig_wait(client, rig_get(client, KV, n, 1, 0));

        assert_true(rig_value_is(client, KV, n, BYTES, answer));
        assert_int_not_equal(answer->slot, held->slot);
        rig_lease_give(client, 1);
        assert_true(rig_value_is(client, KV, 0, BYTES, held));
    }
    assert_true(rig_stats(rig)->volumes[KV].arena_evicted[AGENT_EVICTED_SPACE] > 50);
    assert_int_equal(rig_stats(rig)->volumes[KV].arena_evictions,
                     rig_stats(rig)->volumes[KV].arena_evicted[AGENT_EVICTED_SPACE]);
    rig_client_free(client);
    rig_free(rig);
}

static void when_all_slots_are_leased_gets_are_shed_by_their_deadline(void **state)
{
    static const struct rig_opts small = {.enclosures = 1, .slots = 4, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&small);
    struct rig_client *client = rig_client_new(rig);
    uint64_t tag;

    for (uint32_t n = 0; n < 8; n++)
        rig_flash(rig, 0, KV, n, BYTES);
    for (uint32_t n = 0; n < 4; n++)
        assert_int_equal(rig_wait(client, rig_get(client, KV, n, n, 0))->status, ICMS_OK);
    assert_int_equal(rig_stats(rig)->volumes[KV].slots_leased, 4);
    assert_miss(rig_wait(client, rig_get(client, KV, 5, 5, 100 * MS)), ICMS_MISS_SHED);
    tag = rig_get(client, KV, 5, 5, 1000 * MS);
    rig_run(rig, 50 * MS);
    rig_lease_give(client, 2);
    assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 0, 6, 0))->source, ICMS_SOURCE_DRAM);
    rig_client_free(client);
    rig_free(rig);
}

static void blocks_in_use_stay_longer(void **state)
{
    static const struct rig_opts small = {.enclosures = 1, .slots = 16, .block_bytes = BYTES};
    struct agent_rig *rig = rig_new(&small);
    struct rig_client *client = rig_client_new(rig);

    for (uint32_t n = 0; n < 200; n++) {
        assert_int_equal(rig_wait(client, rig_put(client, KV, 1000 + n, BYTES, 0, 0))->status,
                         ICMS_OK);
        rig_run(rig, 2 * MS); /* a slot that is being stored cannot go */
        assert_int_equal(rig_wait(client, rig_get(client, KV, 1000, 0, 0))->source,
                         ICMS_SOURCE_DRAM);
        rig_lease_give(client, 0);
    }
    assert_true(rig_stats(rig)->volumes[KV].arena_evictions > 150);
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_accepted_put_is_a_dram_hit_and_reaches_flash),
        cmocka_unit_test(a_get_loads_from_the_pod_once_for_all_that_wait),
        cmocka_unit_test(a_client_finds_blocks_in_the_arena_by_itself),
        cmocka_unit_test(puts_on_flash_and_if_absent_answer_when_the_enclosure_did),
        cmocka_unit_test(exists_remove_and_flush),
        cmocka_unit_test(the_last_writer_of_a_key_wins),
        cmocka_unit_test(a_drive_of_its_own_instead_of_a_pod),
        cmocka_unit_test(records_of_an_own_drive_stay_in_their_slots),
        cmocka_unit_test(other_processes_never_see_a_record),
        cmocka_unit_test(every_miss_has_its_reason),
        cmocka_unit_test(what_is_too_late_at_the_enclosure_was_not_canceled),
        cmocka_unit_test(wrong_requests_have_their_own_answers),
        cmocka_unit_test(a_damaged_block_goes_when_a_client_finds_it),
        cmocka_unit_test(stores_over_the_backlog_are_shed),
        cmocka_unit_test(every_request_is_answered_by_its_deadline),
        cmocka_unit_test(a_join_does_not_shorten_a_deadline),
        cmocka_unit_test(what_comes_late_is_there_for_the_next_get),
        cmocka_unit_test(what_does_not_come_is_asked_for_again),
        cmocka_unit_test(late_loads_keep_no_others_out),
        cmocka_unit_test(canceled_requests_are_answered_once),
        cmocka_unit_test(a_dead_enclosure_is_excluded_within_a_second),
        cmocka_unit_test(a_get_that_nobody_can_answer_takes_no_io),
        cmocka_unit_test(stores_in_flight_move_to_the_next_enclosure),
        cmocka_unit_test(a_mended_enclosure_is_back_and_what_the_other_took_is_found),
        cmocka_unit_test(without_an_enclosure_it_works_and_misses),
        cmocka_unit_test(a_leased_slot_stays_whatever_is_loaded),
        cmocka_unit_test(when_all_slots_are_leased_gets_are_shed_by_their_deadline),
        cmocka_unit_test(blocks_in_use_stay_longer),
    };

    return cmocka_run_group_tests_name("agent", tests, NULL, NULL);
}
