/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared memory's rules: rings between honest and hostile sides, views over hostile headers,
 * and leases while another thread evicts.
 */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "agent/extent.h"
#include "shm/shm.h"
#include "base/hash.h"

#define TEST_STAGING ((uint64_t)1 << 20)
#define DATA         ((uint64_t)8 * 12288) /* of the arena */
#define REACTORS     2

static bool arena_has(const struct shm_arena *arena, const struct key *key)
{
    return shm_arena_has_first(arena, key, 1) == 1;
}

static struct volume_spec test_volume(void)
{
    struct volume_spec volume = {0};

    memset(volume.uuid.bytes, 7, sizeof(volume.uuid.bytes));
    strcpy(volume.name, "kv");
    volume.value_bytes_max = 8192;
    volume.memory_bytes_max = DATA;
    volume.run_blocks = 32;
    volume.sealed = true;
    return volume;
}

static void *test_memory(uint64_t bytes)
{
    void *memory = aligned_alloc(4096, (bytes + 4095) & ~(uint64_t)4095);

    assert_non_null(memory);
    memset(memory, 0, bytes);
    return memory;
}

static struct key test_key(uint64_t number)
{
    struct key key = {.length = 16};

    memcpy(key.bytes, &number, sizeof(number));
    return key;
}

/* ---- rings ---------------------------------------------------------------------------------- */

struct rings {
    void *memory;                  /* the region            */
    uint64_t bytes;                /* of it                 */
    struct shm_ring client, agent; /* both sides' views     */
};

static void rings_new(struct rings *rings)
{
    rings->bytes = shm_client_region_bytes(REACTORS, TEST_STAGING);
    rings->memory = test_memory(rings->bytes);
    shm_client_format(rings->memory, 3, REACTORS, TEST_STAGING);
    assert_int_equal(shm_ring_view(rings->memory, rings->bytes, 1, &rings->client), ICMS_OK);
    assert_int_equal(shm_ring_view(rings->memory, rings->bytes, 1, &rings->agent), ICMS_OK);
}

static void entries_cross_the_ring_in_order_and_only_once_published(void **state)
{
    struct shm_submit in = {0}, out[8];
    struct rings rings;
    uint32_t count;

    rings_new(&rings);
    for (uint64_t tag = 1; tag <= 3; tag++) {
        in.tag = tag;
        assert_true(shm_submit_push(&rings.client, &in));
    }
    assert_int_equal(shm_submit_take(&rings.agent, out, 8, &count), ICMS_OK);
    assert_int_equal(count, 0);
    assert_false(shm_submit_publish(&rings.client));
    assert_int_equal(shm_submit_take(&rings.agent, out, 2, &count), ICMS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(out[0].tag, 1);
    assert_int_equal(out[1].tag, 2);
    assert_int_equal(shm_submit_take(&rings.agent, out, 8, &count), ICMS_OK);
    assert_int_equal(count, 1);
    assert_int_equal(out[0].tag, 3);
    free(rings.memory);
}

static void a_full_ring_refuses_until_the_other_side_takes(void **state)
{
    static struct shm_complete out[16];
    struct shm_complete in = {0};
    struct rings rings;
    uint32_t count;

    rings_new(&rings);
    for (uint32_t i = 0; i < SHM_RING_ENTRIES; i++) {
        in.tag = i;
        assert_true(shm_complete_push(&rings.agent, &in));
    }
    assert_false(shm_complete_push(&rings.agent, &in));
    (void)shm_complete_publish(&rings.agent);
    assert_int_equal(shm_complete_take(&rings.client, out, 16, &count), ICMS_OK);
    assert_int_equal(count, 16);
    for (uint32_t i = 0; i < 16; i++)
        assert_true(shm_complete_push(&rings.agent, &in));
    assert_false(shm_complete_push(&rings.agent, &in));
    free(rings.memory);
}

/* Whatever the client makes of its position. */
static void parts_take_half_of_the_ring(void **state)
{
    static struct shm_complete out[16];
    struct shm_complete in = {.part = 1};
    struct rings rings;
    uint32_t count;

    rings_new(&rings);
    for (uint32_t i = 0; i < SHM_RING_ENTRIES / 2; i++)
        assert_true(shm_complete_part(&rings.agent, &in));
    assert_false(shm_complete_part(&rings.agent, &in));
    for (uint32_t i = 0; i < SHM_RING_ENTRIES / 2; i++)
        assert_true(shm_complete_push(&rings.agent, &in));
    (void)shm_complete_publish(&rings.agent);
    assert_int_equal(shm_complete_take(&rings.client, out, 16, &count), ICMS_OK);
    assert_false(shm_complete_part(&rings.agent, &in));
    atomic_store(&rings.client.qpair->complete_head, UINT32_MAX / 2);
    assert_false(shm_complete_part(&rings.agent, &in));
    free(rings.memory);
}

static void positions_that_make_no_sense_are_refused(void **state)
{
    struct shm_submit submit[4] = {{0}};
    struct shm_complete complete[4] = {{0}};
    struct rings rings;
    uint32_t count = 77;

    rings_new(&rings);
    atomic_store(&rings.client.qpair->submit_tail, SHM_RING_ENTRIES + 1);
    assert_int_equal(shm_submit_take(&rings.agent, submit, 4, &count), ICMS_PROTOCOL);
    atomic_store(&rings.client.qpair->submit_tail, UINT32_MAX);
    assert_int_equal(shm_submit_take(&rings.agent, submit, 4, &count), ICMS_PROTOCOL);
    atomic_store(&rings.client.qpair->complete_tail, 5 * SHM_RING_ENTRIES);
    assert_int_equal(shm_complete_take(&rings.client, complete, 4, &count), ICMS_PROTOCOL);
    assert_int_equal(count, 77);
    /* A head before or after everything that was ever sent: full, and nothing is overwritten. */
    atomic_store(&rings.client.qpair->submit_head, 1);
    assert_false(shm_submit_push(&rings.client, submit));
    atomic_store(&rings.client.qpair->complete_head, 0x80000000u);
    assert_false(shm_complete_push(&rings.agent, complete));
    free(rings.memory);
}

static void a_hint_is_seen_and_wakes_nobody(void **state)
{
    struct shm_submit in = {.tag = 1}, out[4];
    struct rings rings;
    uint32_t count;

    rings_new(&rings);
    assert_true(shm_agent_sleep(&rings.agent));
    assert_true(shm_submit_hint(&rings.client, &in));
    assert_false(shm_submit_publish(&rings.client)); /* nobody waits for it */
    assert_int_equal(shm_submit_take(&rings.agent, out, 4, &count), ICMS_OK);
    assert_int_equal(count, 1);
    assert_true(shm_agent_sleep(&rings.agent));

    /* Behind an entry that is not published yet it waits, and takes its wake away from nobody. */
    assert_true(shm_submit_push(&rings.client, &in));
    assert_true(shm_submit_hint(&rings.client, &in));
    assert_int_equal(shm_submit_take(&rings.agent, out, 4, &count), ICMS_OK);
    assert_int_equal(count, 0);
    assert_true(shm_submit_publish(&rings.client));
    assert_int_equal(shm_submit_take(&rings.agent, out, 4, &count), ICMS_OK);
    assert_int_equal(count, 2);

    assert_true(shm_agent_sleep(&rings.agent));
    assert_true(shm_submit_hint(&rings.client, &in));
    assert_true(shm_submit_push(&rings.client, &in));
    assert_true(shm_submit_publish(&rings.client));
    assert_false(shm_submit_wake(&rings.client));
    assert_int_equal(shm_submit_take(&rings.agent, out, 4, &count), ICMS_OK);
    assert_int_equal(count, 2);
    assert_true(shm_agent_sleep(&rings.agent));
    assert_true(shm_submit_hint(&rings.client, &in));
    assert_true(shm_submit_wake(&rings.client));
    free(rings.memory);
}

static void a_sleeper_is_woken_once_and_sees_what_came_before(void **state)
{
    struct shm_submit in = {0}, out[4];
    struct rings rings;
    uint32_t count;

    rings_new(&rings);
    assert_true(shm_agent_sleep(&rings.agent));
    assert_true(shm_submit_push(&rings.client, &in));
    assert_true(shm_submit_publish(&rings.client));
    assert_true(shm_submit_push(&rings.client, &in));
    assert_false(shm_submit_publish(&rings.client)); /* it was woken */
    assert_false(shm_agent_sleep(&rings.agent));     /* there is something to take */
    assert_int_equal(shm_submit_take(&rings.agent, out, 4, &count), ICMS_OK);
    assert_int_equal(count, 2);
    assert_true(shm_agent_sleep(&rings.agent));
    assert_true(shm_client_sleep(&rings.client));
    assert_true(shm_complete_push(&rings.agent, &(struct shm_complete){.tag = 1}));
    assert_true(shm_complete_publish(&rings.agent));
    assert_false(shm_client_sleep(&rings.client));
    free(rings.memory);
}

#define RING_MESSAGES 20000

static void *ring_echo(void *arg)
{
    struct rings *rings = arg;
    struct shm_submit in[32];
    uint32_t done = 0, count;

    while (done < RING_MESSAGES) {
        if (shm_submit_take(&rings->agent, in, 32, &count) != ICMS_OK)
            return rings;
        for (uint32_t i = 0; i < count; i++) {
            struct shm_complete out = {.tag = in[i].tag, .version = in[i].offset};

            while (!shm_complete_push(&rings->agent, &out)) {
            }
        }
        done += count;
        (void)shm_complete_publish(&rings->agent);
        if (count == 0)
            sched_yield();
    }
    return NULL;
}

static void two_threads_echo_without_loss(void **state)
{
    struct shm_complete out[64];
    uint64_t sent = 0, got = 0;
    struct rings rings;
    pthread_t agent;
    uint32_t count;
    void *result;

    rings_new(&rings);
    assert_int_equal(pthread_create(&agent, NULL, ring_echo, &rings), 0);
    while (got < RING_MESSAGES) {
        struct shm_submit in = {.tag = sent, .offset = hash64_mix(sent)};

        while (sent < RING_MESSAGES && shm_submit_push(&rings.client, &in)) {
            sent++;
            in.tag = sent;
            in.offset = hash64_mix(sent);
        }
        (void)shm_submit_publish(&rings.client);
        assert_int_equal(shm_complete_take(&rings.client, out, 64, &count), ICMS_OK);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(out[i].tag, got);
            assert_int_equal(out[i].version, hash64_mix(got));
            got++;
        }
        if (count == 0)
            sched_yield();
    }
    assert_int_equal(pthread_join(agent, &result), 0);
    assert_null(result);
    free(rings.memory);
}

/* ---- arenas --------------------------------------------------------------------------------- */

struct arena_fixture {
    void *memory;           /* the region                 */
    uint64_t bytes;         /* of it                      */
    struct shm_arena arena; /* a client's view            */
};

static void arena_new(struct arena_fixture *f)
{
    struct volume_spec volume = test_volume();

    struct shm_shard shard = {.number = 5,
                              .reactor_count = 1,
                              .bytes_max = DATA,
                              .data_offset = shm_shard_bytes(DATA),
                              .data_bytes = DATA,
                              .hash_seed = 99};

    f->bytes = shm_part_bytes(shard.data_offset, DATA);
    f->memory = test_memory(f->bytes);
    shm_shard_format(f->memory, &volume, &shard);
    assert_int_equal(shm_arena_view(f->memory, f->bytes, 0, 1, 0, &f->arena), ICMS_OK);
}

/* What an agent does: fills slot i and the memory at offset with a key's value, puts it at the head
 * of its chain. */
static void arena_fill_at(struct arena_fixture *f, uint32_t i, uint64_t offset,
                          const struct key *key, uint8_t fill, uint32_t bytes)
{
    struct shm_slot *slot = (struct shm_slot *)(uintptr_t)&f->arena.slots[i];
    _Atomic uint32_t *head =
        (_Atomic uint32_t *)(uintptr_t)&f->arena
            .heads[shm_arena_head(f->arena.hash_seed, f->arena.head_count, key)];
    uint64_t version = atomic_load(&slot->version);

    assert_int_equal(version % 2, 1);
    atomic_store(&slot->offset, offset);
    memset((uint8_t *)(uintptr_t)shm_arena_value(&f->arena, i, bytes), fill, bytes);
    shm_slot_key_set(slot, key);
    atomic_store(&slot->value_bytes, bytes);
    atomic_store(&slot->next, atomic_load(head));
    atomic_store(&slot->version, version + 1);
    atomic_store(head, i);
}

static void arena_fill(struct arena_fixture *f, uint32_t i, const struct key *key, uint8_t fill,
                       uint32_t bytes)
{
    arena_fill_at(f, i, (uint64_t)i * 12288, key, fill, bytes);
}

static void a_formatted_arena_reads_as_it_was_written(void **state)
{
    struct arena_fixture f;

    arena_new(&f);
    assert_int_equal(f.arena.slot_count, DATA / SHM_SLOT_BYTES);
    assert_int_equal(f.arena.data_bytes, DATA);
    assert_int_equal((uintptr_t)f.arena.data % 4096, 0);
    assert_true(f.arena.data + DATA <= (const uint8_t *)f.memory + f.bytes);
    assert_int_equal(f.arena.value_bytes_max, 8192);
    assert_int_equal(f.arena.volume, 5);
    assert_int_equal(f.arena.run_blocks, 32);
    assert_true(f.arena.sealed);
    assert_string_equal(f.arena.name, "kv");
    free(f.memory);
}

/* Whatever a slot says: a value is inside the arena, or there is none. */
static void a_value_that_is_not_inside_the_arena_is_no_hit(void **state)
{
    const uint64_t offsets[] = {1,
                                63,
                                DATA - 100 - LIMIT_TRAILER_BYTES + 1,
                                DATA - 128,
                                DATA - 64,
                                DATA,
                                DATA + 64,
                                UINT64_MAX,
                                UINT64_MAX - 63,
                                (uint64_t)1 << 63};
    struct key one = test_key(1);
    struct arena_fixture f;
    _Atomic uint32_t lease = 0;
    uint32_t slot, bytes;
    uint64_t version;
    struct shm_slot *it;

    arena_new(&f);
    arena_fill(&f, 4, &one, 0xaa, 100);
    it = (struct shm_slot *)(uintptr_t)&f.arena.slots[4];
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++) {
        atomic_store(&it->offset, offsets[i]);
        assert_null(shm_arena_value(&f.arena, 4, 100));
        assert_false(shm_arena_lease(&f.arena, &one, &lease, &slot, &version, &bytes));
        assert_int_equal(lease, 0);
    }
    atomic_store(&it->offset, DATA - 192); /* 164 bytes fit to the last unit */
    assert_ptr_equal(shm_arena_value(&f.arena, 4, 100), f.arena.data + DATA - 192);
    assert_true(shm_arena_lease(&f.arena, &one, &lease, &slot, &version, &bytes));
    assert_null(shm_arena_value(&f.arena, 4, 129));
    assert_null(shm_arena_value(&f.arena, 4, UINT32_MAX));
    assert_null(shm_arena_value(&f.arena, f.arena.slot_count, 100));
    assert_null(shm_arena_value(&f.arena, SHM_SLOT_NONE, 100));
    free(f.memory);
}

static void a_key_is_found_and_leased_and_another_is_not(void **state)
{
    struct key one = test_key(1), two = test_key(2), shorter = one;
    struct arena_fixture f;
    _Atomic uint32_t lease = 0;
    uint32_t slot, bytes;
    uint64_t version;

    arena_new(&f);
    shorter.length = 15;
    assert_false(shm_arena_lease(&f.arena, &one, &lease, &slot, &version, &bytes));
    arena_fill(&f, 4, &one, 0xaa, 100);
    assert_true(arena_has(&f.arena, &one));
    assert_false(arena_has(&f.arena, &two));
    assert_false(arena_has(&f.arena, &shorter));
    assert_true(shm_arena_lease(&f.arena, &one, &lease, &slot, &version, &bytes));
    assert_int_equal(slot, 4);
    assert_int_equal(bytes, 100);
    assert_int_equal(lease, 5);
    assert_int_equal(version % 2, 0);
    lease = 0;
    assert_false(shm_arena_lease(&f.arena, &two, &lease, &slot, &version, &bytes));
    assert_int_equal(lease, 0);
    free(f.memory);
}

/* The lease entry lies where the slot has its version: the moment that the lease is published, the
 * slot changes. That is what an agent does that saw no lease just before. */
/* Every chain leads to the slot, so only the comparison tells its key from others. */
static void keys_are_told_apart_in_one_chain(void **state)
{
    struct key one = test_key(1), other;
    struct arena_fixture f;
    _Atomic uint32_t *heads;

    one.bytes[15] = 0;
    arena_new(&f);
    arena_fill(&f, 3, &one, 1, 10);
    heads = (_Atomic uint32_t *)(uintptr_t)f.arena.heads;
    for (uint32_t i = 0; i < f.arena.head_count; i++)
        atomic_store(&heads[i], 3);
    assert_true(arena_has(&f.arena, &one));
    for (int i = 0; i < 16; i++) {
        other = one;
        other.bytes[i] ^= 0x80;
        assert_false(arena_has(&f.arena, &other));
    }
    other = one;
    other.length = 15; /* the bytes behind it are zeros in both */
    assert_false(arena_has(&f.arena, &other));
    assert_int_equal(shm_arena_has_first(&f.arena, &other, 1), 0);
    free(f.memory);
}

static void a_slot_that_changes_while_it_is_leased_is_no_hit(void **state)
{
    struct key one = test_key(1);
    struct arena_fixture f;
    _Atomic uint32_t *version;
    uint32_t slot = 99, bytes = 99;
    uint64_t leased = 99;

    for (uint32_t i = 0; i < 8; i++) {
        arena_new(&f);
        arena_fill(&f, i, &one, 0xaa, 100);
        version = (_Atomic uint32_t *)(uintptr_t)&f.arena.slots[i].version;
        assert_int_equal(*version, 2);
        if (i + 1 == 2)
            atomic_store(version, 4); /* what the lease writes is another version, odd or even */
        assert_false(shm_arena_lease(&f.arena, &one, version, &slot, &leased, &bytes));
        assert_int_equal(*version, 0); /* and the entry names no slot */
        free(f.memory);
    }
    assert_int_equal(slot, 99);
    assert_int_equal(leased, 99);
    assert_int_equal(bytes, 99);
}

static void a_chain_that_loops_or_leads_out_of_the_arena_ends(void **state)
{
    struct key one = test_key(1), two = test_key(2);
    struct arena_fixture f;
    _Atomic uint32_t *heads;
    struct shm_slot *slots;

    arena_new(&f);
    arena_fill(&f, 0, &one, 1, 10);
    heads = (_Atomic uint32_t *)(uintptr_t)f.arena.heads;
    slots = (struct shm_slot *)(uintptr_t)f.arena.slots;
    for (uint32_t i = 0; i < f.arena.head_count; i++)
        atomic_store(&heads[i], 0);
    atomic_store(&slots[0].next, 0);
    assert_false(arena_has(&f.arena, &two));
    atomic_store(&slots[0].next, f.arena.slot_count);
    assert_false(arena_has(&f.arena, &two));
    for (uint32_t longer = 8193; longer < 1 << 30; longer *= 2) { /* than any value: no lease */
        _Atomic uint32_t lease = 0;
        uint32_t slot, bytes;
        uint64_t version;

        atomic_store(&slots[0].value_bytes, longer);
        assert_false(shm_arena_lease(&f.arena, &one, &lease, &slot, &version, &bytes));
        assert_int_equal(lease, 0);
    }
    free(f.memory);
}

static void hostile_headers_give_no_view_that_leaves_the_region(void **state)
{
    struct rings rings;
    struct arena_fixture f;
    struct shm_arena arena;
    struct shm_ring ring;
    uint64_t random = 1;
    uint8_t *kept;
    int views = 0;

    arena_new(&f);
    rings_new(&rings);
    assert_int_equal(shm_arena_view(f.memory, 10, 0, 1, 0, &arena), ICMS_PROTOCOL);
    assert_int_equal(shm_arena_view(f.memory, f.bytes - 65536, 0, 1, 0, &arena), ICMS_PROTOCOL);
    for (uint64_t offset = 1; offset <= 2 * f.bytes; offset += 1000)
        assert_int_equal(shm_arena_view(f.memory, f.bytes, 0, 1, offset, &arena), ICMS_PROTOCOL);
    for (uint64_t offset = 4096; offset <= 2 * f.bytes; offset += 4096)
        assert_int_equal(shm_arena_view(f.memory, f.bytes, 0, 1, offset, &arena), ICMS_PROTOCOL);
    assert_int_equal(shm_arena_view(f.memory, f.bytes, 0, 1, (uint64_t)-4096, &arena),
                     ICMS_PROTOCOL);
    assert_int_equal(shm_ring_view(rings.memory, 10, 1, &ring), ICMS_PROTOCOL);
    assert_int_equal(shm_ring_view(rings.memory, rings.bytes - 4096, 1, &ring), ICMS_PROTOCOL);

    kept = malloc(sizeof(struct shm_arena_header));
    assert_non_null(kept);
    memcpy(kept, f.memory, sizeof(struct shm_arena_header));
    for (int round = 0; round < 20000; round++) {
        uint8_t *bytes = f.memory;
        const uint8_t *end = bytes + f.bytes;
        struct key key;

        for (int flips = 0; flips < 3; flips++) {
            random = hash64_mix(random);
            bytes[12 + random % (sizeof(struct shm_arena_header) - 12)] = (uint8_t)(random >> 32);
        }
        if (shm_arena_view(f.memory, f.bytes, 0, 1, 0, &arena) == ICMS_OK) {
            views++;
            assert_true((uintptr_t)(arena.heads + arena.head_count) <= (uintptr_t)end);
            assert_true((const uint8_t *)(arena.slots + arena.slot_count) <= end);
            assert_true(arena.data + arena.data_bytes <= end);
            key = test_key(random);
            (void)arena_has(&arena, &key);
        }
        memcpy(f.memory, kept, sizeof(struct shm_arena_header));
    }
    assert_true(views > 0); /* the name and the uuid are free */
    for (int round = 0; round < 20000; round++) {
        uint8_t *bytes = rings.memory;

        shm_client_format(rings.memory, 3, REACTORS, TEST_STAGING);
        for (int flips = 0; flips < 2; flips++) {
            random = hash64_mix(random);
            bytes[12 + random % (sizeof(struct shm_client_header) - 12)] = (uint8_t)(random >> 32);
        }
        if (shm_ring_view(rings.memory, rings.bytes, 1, &ring) == ICMS_OK) {
            const uint8_t *end = bytes + rings.bytes;

            assert_true((const uint8_t *)(ring.qpair + 1) <= end);
            assert_true((uintptr_t)(ring.leases + SHM_LEASES) <= (uintptr_t)end);
            assert_true((uintptr_t)(ring.lease_shards + SHM_LEASES) <= (uintptr_t)end);
            assert_true(ring.staging + ring.staging_bytes <= end);
        }
    }
    free(kept);
    free(rings.memory);
    free(f.memory);
}

/* ---- reactors ------------------------------------------------------------------------------- */

static void a_key_belongs_to_one_reactor_and_a_run_stays_together(void **state)
{
    static const uint32_t counts[] = {1, 2, 3, 7, 32};

    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++) {
        uint32_t count = counts[c], by_run[32] = {0}, by_key[32] = {0};

        for (uint64_t n = 0; n < 32000; n++) {
            struct key first = test_key(hash64_mix(n)), other = first;

            other.bytes[LIMIT_KEY_BYTES - 1] = (uint8_t)(1 + n % 255); /* of the same run */
            assert_true(shm_reactor(&first, true, count) < count);
            assert_int_equal(shm_reactor(&first, true, count), shm_reactor(&other, true, count));
            by_run[shm_reactor(&first, true, count)]++;
            by_key[shm_reactor(&first, false, count)]++;
        }
        for (uint32_t r = 0; r < count; r++) {
            assert_in_range(by_run[r], 32000 / count * 8 / 10, 32000 / count * 12 / 10);
            assert_in_range(by_key[r], 32000 / count * 8 / 10, 32000 / count * 12 / 10);
        }
    }
}

/* ---- leases against an evictor -------------------------------------------------------------- */

#define LEASE_READERS 2
#define LEASE_KEYS    16

/* Bytes of a key's value: some share a page, others have several. */
static uint32_t lease_bytes(uint64_t number)
{
    return 300 + (uint32_t)(number * number * 30);
}

struct lease_fixture {
    struct arena_fixture f;
    struct extents extents;                 /* the agent's                          */
    _Atomic uint32_t leases[LEASE_READERS]; /* the lease tables of all clients      */
    atomic_bool stop;                       /* the evictor has finished             */
    atomic_int wrong;                       /* bytes of another key under a lease   */
    atomic_int hits;
};

static void arena_unlink(struct arena_fixture *f, uint32_t i, const struct key *key)
{
    _Atomic uint32_t *at = (_Atomic uint32_t *)(uintptr_t)&f->arena
                               .heads[shm_arena_head(f->arena.hash_seed, f->arena.head_count, key)];

    while (atomic_load(at) != i)
        at = (_Atomic uint32_t *)(uintptr_t)&f->arena.slots[atomic_load(at)].next;
    atomic_store(at, atomic_load(&f->arena.slots[i].next));
}

/* Takes a slot's block away, when nobody leases it any more. */
static void lease_take_away(struct lease_fixture *lf, uint32_t i, const struct key *key)
{
    struct shm_slot *slot = (struct shm_slot *)(uintptr_t)&lf->f.arena.slots[i];

    atomic_fetch_add(&slot->version, 1); /* odd: no new lease holds from here on */
    arena_unlink(&lf->f, i, key);
    for (int r = 0; r < LEASE_READERS; r++)
        while (atomic_load(&lf->leases[r]) == i + 1)
            sched_yield();
    extents_give(&lf->extents, i);
}

/* Puts a key's block where its bytes find space. */
static void lease_put(struct lease_fixture *lf, uint32_t i, uint64_t number)
{
    uint32_t bytes = lease_bytes(number);
    struct key key = test_key(number);

    assert_true(extents_take(&lf->extents, i, bytes + LIMIT_TRAILER_BYTES));
    arena_fill_at(&lf->f, i, lf->extents.of[i].begin, &key, (uint8_t)number, bytes);
}

/* The agent: again and again takes a slot and its memory away and gives them to other keys, of
 * other sizes, obeying leases. */
static void *lease_evict(void *arg)
{
    struct lease_fixture *lf = arg;
    uint64_t owner[8];
    uint64_t random = 3;

    for (uint32_t i = 0; i < 8; i++)
        owner[i] = i;
    for (int round = 0; round < 20000 || atomic_load(&lf->hits) == 0; round++) {
        uint32_t i = (uint32_t)((random = hash64_mix(random)) % 8);
        uint64_t next = (random >> 8) % LEASE_KEYS;
        struct key from = test_key(owner[i]);
        bool there = false;

        for (uint32_t j = 0; j < 8; j++)
            there = there || owner[j] == next;
        if (there)
            continue;
        lease_take_away(lf, i, &from);
        lease_put(lf, i, next);
        owner[i] = next;
    }
    atomic_store(&lf->stop, true);
    return NULL;
}

static void *lease_read(void *arg)
{
    static atomic_int reader_next;
    struct lease_fixture *lf = arg;
    _Atomic uint32_t *lease = &lf->leases[atomic_fetch_add(&reader_next, 1) % LEASE_READERS];
    uint64_t random = (uint64_t)(uintptr_t)lease;

    while (!atomic_load(&lf->stop)) {
        uint64_t number = (random = hash64_mix(random)) % LEASE_KEYS;
        struct key key = test_key(number);
        uint32_t slot, bytes;
        uint64_t version;

        if (!shm_arena_lease(&lf->f.arena, &key, lease, &slot, &version, &bytes))
            continue;
        for (uint32_t i = 0; i < bytes; i += 64)
            if (shm_arena_value(&lf->f.arena, slot, bytes)[i] != (uint8_t)number)
                atomic_fetch_add(&lf->wrong, 1);
        if (bytes != lease_bytes(number))
            atomic_fetch_add(&lf->wrong, 1);
        atomic_fetch_add(&lf->hits, 1);
        atomic_store_explicit(lease, 0, memory_order_release);
    }
    return NULL;
}

static void a_leased_slot_never_changes_under_its_reader(void **state)
{
    struct lease_fixture *lf = calloc(1, sizeof(*lf));
    pthread_t readers[LEASE_READERS], evictor;

    assert_non_null(lf);
    arena_new(&lf->f);
    assert_int_equal(extents_init(&lf->extents, DATA, 8), ICMS_OK);
    for (uint32_t i = 0; i < 8; i++)
        lease_put(lf, i, i);
    for (int r = 0; r < LEASE_READERS; r++)
        assert_int_equal(pthread_create(&readers[r], NULL, lease_read, lf), 0);
    assert_int_equal(pthread_create(&evictor, NULL, lease_evict, lf), 0);
    assert_int_equal(pthread_join(evictor, NULL), 0);
    for (int r = 0; r < LEASE_READERS; r++)
        assert_int_equal(pthread_join(readers[r], NULL), 0);
    assert_int_equal(atomic_load(&lf->wrong), 0);
    assert_true(atomic_load(&lf->hits) > 0);
    extents_fini(&lf->extents);
    free(lf->f.memory);
    free(lf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_cross_the_ring_in_order_and_only_once_published),
        cmocka_unit_test(a_full_ring_refuses_until_the_other_side_takes),
        cmocka_unit_test(parts_take_half_of_the_ring),
        cmocka_unit_test(positions_that_make_no_sense_are_refused),
        cmocka_unit_test(a_hint_is_seen_and_wakes_nobody),
        cmocka_unit_test(a_sleeper_is_woken_once_and_sees_what_came_before),
        cmocka_unit_test(two_threads_echo_without_loss),
        cmocka_unit_test(a_formatted_arena_reads_as_it_was_written),
        cmocka_unit_test(a_value_that_is_not_inside_the_arena_is_no_hit),
        cmocka_unit_test(a_key_is_found_and_leased_and_another_is_not),
        cmocka_unit_test(keys_are_told_apart_in_one_chain),
        cmocka_unit_test(a_slot_that_changes_while_it_is_leased_is_no_hit),
        cmocka_unit_test(a_chain_that_loops_or_leads_out_of_the_arena_ends),
        cmocka_unit_test(a_key_belongs_to_one_reactor_and_a_run_stays_together),
        cmocka_unit_test(hostile_headers_give_no_view_that_leaves_the_region),
        cmocka_unit_test(a_leased_slot_never_changes_under_its_reader),
    };

    return cmocka_run_group_tests_name("agent-shm", tests, NULL, NULL);
}
