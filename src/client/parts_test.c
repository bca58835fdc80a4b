/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of libicms that are copied, or opened where they are encrypted, while they arrive, with an
 * agent that says what has arrived and may lie: whatever it says, and whatever is there, a get
 * brings the value that its answer is of, or misses; nothing is written after its end.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "client/client_int.h"
#include "client/parts_rig.h"
#include "wire/sealed.h"

#define GUARD 4096 /* bytes behind the memory of a get */

struct fixture {
    struct client_rig rig;
    struct icms_volume *vault;  /* encrypted                        */
    struct icms_volume *volume; /* of the test: that, or a plain one */
    struct parts_keys keys;
};

/* What the hook of the agent's thread sees of the test. */
static struct {
    struct fixture *f;
    struct icms_block block;
    uint8_t *data;            /* [VALUE + GUARD]: of the get                       */
    uint8_t *wanted;          /* [VALUE] of value number 1                         */
    uint8_t *stored, *other;  /* values of the same key as they are stored         */
    _Atomic uint32_t which;   /* the hook's                                        */
    atomic_bool middle, over; /* the hook has come that far; the call has returned */
} test;

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct icms_options options;
    char text[256];

    assert_non_null(f);
    *state = f;
    if (parts_keys_write(&f->keys) != 0)
        return -1;
    icms_options_init(&options);
    options.load_deadline_ms = options.store_deadline_ms = RIG_GRACE_MS;
    options.buffer_bytes = (uint64_t)4 << 20;
    options.keys = f->keys.list;
    if (client_rig_open(&f->rig, &options) != 0)
        return -1;
    memset(&test, 0, sizeof(test));
    test.f = f;
    test.data = malloc(VALUE + GUARD);
    test.wanted = malloc(VALUE);
    test.stored = malloc(STORED);
    test.other = malloc(STORED);
    rig_fill(test.wanted, VALUE, 1);
    if (icms_volume_open(f->rig.icms, VAULT, text, sizeof(text), &f->vault) != ICMS_OK)
        return -1;
    f->volume = f->vault;
    return 0;
}

static int setup_plain(void **state)
{
    struct fixture *f;

    if (setup(state) != 0)
        return -1;
    f = *state;
    f->volume = f->rig.big;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    (void)fake_agent_leases(
        f->rig.agent); /* takes its lock: no hook looks at the handle any more */
    client_rig_close(&f->rig);
    parts_keys_remove(&f->keys);
    free(test.data);
    free(test.wanted);
    free(test.stored);
    free(test.other);
    free(f);
    return 0;
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* A value of these bytes under key 1; and what the agent has of it. */
static void put(const uint8_t *value, uint32_t bytes, uint8_t *out_stored)
{
    parts_put(&test.f->rig, test.f->volume, value, bytes, out_stored);
}

static bool is_plain(void)
{
    return test.f->volume != test.f->vault;
}

/* What an agent has of a value of these bytes, its trailer not counted. */
static uint32_t carried(uint32_t bytes)
{
    return (uint32_t)client_carried_bytes(test.f->volume, bytes);
}

/* What an agent tells when so many pieces have come. */
static uint32_t pieces_end(uint32_t count)
{
    if (is_plain())
        return count == 0 ? 0 : count * PIECE - LIMIT_TRAILER_BYTES;
    return (uint32_t)sealed_pieces_end(count);
}

static void pieces_come(struct fake_arriving *arriving, uint32_t count)
{
    part_bytes(arriving, pieces_end(count));
}

/* No byte of the memory is that of the value, and the next call writes into it. */
static void get_prepare(bool (*arriving)(struct fake_arriving *arriving))
{
    for (uint32_t i = 0; i < VALUE; i++)
        test.data[i] = (uint8_t)~test.wanted[i];
    memset(test.data + VALUE, 0x5a, GUARD);
    test.block = (struct icms_block){.key = rig_key(1), .data = test.data, .bytes = VALUE};
    atomic_store(&test.middle, false);
    atomic_store(&test.over, false);
    atomic_store(&fake.arriving, arriving);
}

static icms_err get(bool (*arriving)(struct fake_arriving *arriving))
{
    icms_err err;

    get_prepare(arriving);
    err = icms_get(test.f->volume, &test.block, 1, NULL);
    for (uint32_t i = VALUE; i < VALUE + GUARD; i++)
        assert_int_equal(test.data[i], 0x5a);
    return err;
}

static void get_is_right(bool (*arriving)(struct fake_arriving *arriving))
{
    assert_int_equal(get(arriving), ICMS_OK);
    assert_int_equal(test.block.bytes, VALUE);
    assert_memory_equal(test.data, test.wanted, VALUE);
}

/* Nothing of an encrypted value is seen. */
static void get_misses(bool (*arriving)(struct fake_arriving *arriving), enum icms_miss reason)
{
    assert_int_equal(get(arriving), ICMS_MISS);
    assert_int_equal(test.block.reason, reason);
    for (uint32_t i = 0; i < VALUE && !is_plain(); i++)
        if (test.data[i] != 0 && test.data[i] == test.wanted[i])
            fail_msg("byte %u of a value that does not open is there", i);
}

static bool byte_is(uint32_t at, uint8_t value)
{
    return __atomic_load_n(&test.data[at], __ATOMIC_RELAXED) == value &&
           atomic_load(&test.f->rig.icms->crypt->taken) == 0;
}

static bool is_opened(uint32_t pieces)
{
    uint32_t last = (is_plain() ? pieces_end(pieces) : pieces * PIECE) - 1;

    return byte_is(last, test.wanted[last]);
}

static bool is_wiped(uint32_t pieces)
{
    return byte_is(pieces * PIECE - 2, 0);
}

static bool is_over(uint32_t arg)
{
    (void)arg;
    return atomic_load(&test.over);
}

static bool is_middle(uint32_t arg)
{
    (void)arg;
    return atomic_load(&test.middle);
}

/* In the agent's thread, as all hooks: these pieces arrive, and are opened before the answer. */
static void arrive(struct fake_arriving *arriving, uint32_t pieces)
{
    pieces_come(arriving, pieces);
    check(soon(is_opened, pieces));
}

/* ---- it works ------------------------------------------------------------------------------- */

/* What was taken is not looked at again. The last bytes of a plain piece may be seen before those
 * in front of them are copied. */
static bool one_by_one(struct fake_arriving *arriving)
{
    for (uint32_t i = 1; i <= PIECES; i++) {
        arrive(arriving, i);
        memset(arriving->stored + pieces_end(i - 1), 0x77, is_plain() ? PIECE / 2 : PIECE);
    }
    return true;
}

static void a_value_is_taken_while_it_arrives(void **state)
{
    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_is_right(one_by_one);
    assert_int_equal(atomic_load(&fake.parted), 1);
    assert_int_equal(atomic_load(&fake.suspects), 0);
    /* Estimates learn from what the answer brought, since only that was timed. */
    assert_true(atomic_load(&test.f->rig.icms->copy_bytes) < 2 * PIECE);
}

static bool in_any_order(struct fake_arriving *arriving)
{
    static const uint32_t counts[] = {0, 3, 1, 3, 2, PIECES, 1, PIECES + 1, 100};

    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        pieces_come(arriving, counts[i]);
    return true;
}

static void parts_come_in_any_order_and_number(void **state)
{
    put(test.wanted, VALUE, test.stored);
    get_is_right(in_any_order);
}

static void several_at_a_time(void **state)
{
    enum { COUNT = 4 };
    const struct fixture *f = *state;
    const uint32_t count = is_plain() ? COUNT / 2 : COUNT; /* as many as the volume has slots */
    struct icms_request *requests[COUNT];
    struct icms_block blocks[COUNT];

    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(rig_put_one(f->volume, 10 + i, VALUE), ICMS_OK);
        blocks[i] =
            (struct icms_block){.key = rig_key(10 + i), .data = malloc(VALUE), .bytes = VALUE};
    }
    atomic_store(&fake.arriving, in_any_order);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(icms_get_start(f->volume, &blocks[i], 1, NULL, &requests[i]), ICMS_OK);
    for (uint32_t i = 0; i < count; i++)
        assert_non_null(rig_poll_next(f->rig.icms));
    for (uint64_t i = 0; i < count; i++) {
        assert_int_equal(icms_request_end(&requests[i]), ICMS_OK);
        rig_fill(test.wanted, VALUE, 10 + i);
        assert_memory_equal(blocks[i].data, test.wanted, VALUE);
        free(blocks[i].data);
    }
    assert_int_equal(atomic_load(&fake.parted), count);
}

/* In memory of one piece, without memory and as a lease a value is waited for. */
static void others_wait_for_the_answer(void **state)
{
    const struct fixture *f = *state;
    struct icms_block block = {.key = rig_key(2)};
    struct icms_lease lease;

    atomic_store(&fake.arriving, in_any_order);
    assert_int_equal(rig_put_one(f->volume, 2, PIECE), ICMS_OK);
    assert_int_equal(rig_get_one(f->volume, 2, PIECE, NULL), ICMS_OK);
    assert_int_equal(rig_put_one(f->volume, 2, VALUE), ICMS_OK);
    assert_int_equal(icms_get(f->volume, &block, 1, NULL), ICMS_OK);
    assert_int_equal(rig_put_one(f->volume, 2, VALUE), ICMS_OK);
    assert_int_equal(icms_lease_take(f->volume, &block.key, NULL, NULL, &lease), ICMS_OK);
    icms_lease_give(&lease);
    assert_int_equal(atomic_load(&fake.parted), 0);
}

/* ---- what arrives is not what is answered ---------------------------------------------------- */

/* Piece 1 of 0, 1, ... does not pass; nothing that was opened before stays. A plain value does not
 * pass as a whole. */
static bool second_fails(struct fake_arriving *arriving)
{
    arrive(arriving, 1);
    arriving->stored[pieces_end(1) + 5000] ^= 1;
    pieces_come(arriving, 3);
    check(soon(is_plain() ? is_opened : is_wiped, is_plain() ? 3 : 1));
    pieces_come(arriving, 4); /* no other attempt: this has no effect */
    if (test.which == 0)
        arriving->stored[pieces_end(1) + 5000] ^= 1;
    return true;
}

static void a_piece_that_fails_means_nothing_until_the_answer(void **state)
{
    put(test.wanted, VALUE, test.stored);
    get_is_right(second_fails);
    assert_int_equal(atomic_load(&fake.suspects), 0);
    put(test.wanted, VALUE, test.stored); /* out of the arena */
    test.which = 1;
    get_misses(second_fails, ICMS_MISS_CHECKSUM);
    assert_true(rig_put_one(test.f->volume, 2, 10) == ICMS_OK); /* behind it in the ring */
    assert_int_equal(atomic_load(&fake.suspects), 1);
}

/* The link of the load is lost, and another one, or another enclosure, has another value of the
 * key; that is what the slot has in the end. */
static bool anew(struct fake_arriving *arriving)
{
    uint32_t bytes = arriving->value_bytes + LIMIT_TRAILER_BYTES;

    memcpy(arriving->stored, test.stored, carried(VALUE));
    arrive(arriving, 2);
    memcpy(arriving->stored, test.other, bytes);
    for (uint32_t i = 1; i < test.which; i++)
        pieces_come(arriving, i);
    return true;
}

static void a_load_that_begins_anew_brings_another_value(void **state)
{
    uint8_t *other = malloc(VALUE);

    rig_fill(other, VALUE, 99);
    for (test.which = 0; test.which <= PIECES + 1; test.which++) {
        static const uint32_t sizes[] = {VALUE, 300000, 2 * PIECE, 100};

        for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
            put(test.wanted, VALUE, test.stored);
            put(other, sizes[i], test.other);
            assert_int_equal(get(anew), ICMS_OK);
            assert_int_equal(test.block.bytes, sizes[i]);
            assert_memory_equal(test.data, other, sizes[i]);
        }
    }
    free(other);
    assert_int_equal(atomic_load(&fake.suspects), 0);
}

/* The same value once more, from the beginning. */
static bool same_again(struct fake_arriving *arriving)
{
    arrive(arriving, 3);
    memset(arriving->stored, 0, carried(VALUE));
    pieces_come(arriving, 1); /* of what is not there yet */
    memcpy(arriving->stored, test.stored, carried(VALUE));
    pieces_come(arriving, 2);
    arrive(arriving, 4);
    return true;
}

static bool same_again_and_seen(struct fake_arriving *arriving)
{
    arrive(arriving, 3);
    memset(arriving->stored, 0, carried(VALUE));
    pieces_come(arriving, 4);
    memcpy(arriving->stored, test.stored, carried(VALUE));
    return true;
}

static void a_load_that_begins_anew_brings_the_same(void **state)
{
    put(test.wanted, VALUE, test.stored);
    get_is_right(same_again);
    put(test.wanted, VALUE, test.stored);
    get_is_right(same_again_and_seen);
}

/* Two values of the key, whole by their sums, made of one head and pieces of both. */
static bool mixed(struct fake_arriving *arriving)
{
    uint32_t half = (uint32_t)sealed_pieces_end(2), bytes = arriving->value_bytes;
    struct icms_key icms_key = rig_key(1);
    struct key key = client_key(&icms_key);

    memcpy(arriving->stored, test.stored, bytes);
    arrive(arriving, 2);
    memcpy(arriving->stored + half, test.other + half, bytes - half);
    sealed_trailer_make_encrypted(&client_view(test.f->vault)->arena.uuid, &key, icms_key.digest,
                                  bytes, crc32c(arriving->stored, bytes), arriving->stored + bytes);
    return true;
}

static void pieces_of_two_values_do_not_mix(void **state)
{
    put(test.wanted, VALUE, test.stored);
    put(test.wanted, VALUE, test.other);
    get_misses(mixed, ICMS_MISS_CHECKSUM);
    assert_int_equal(atomic_load(&fake.suspects), 0); /* it is whole */
}

static bool bad_trailer(struct fake_arriving *arriving)
{
    arrive(arriving, PIECES);
    arriving->stored[arriving->value_bytes + test.which] ^= 1;
    return true;
}

static void a_trailer_that_lies_is_a_miss(void **state)
{
    for (test.which = 0; test.which < LIMIT_TRAILER_BYTES; test.which += 7) {
        put(test.wanted, VALUE, test.stored);
        get_misses(bad_trailer, ICMS_MISS_CHECKSUM);
    }
}

/* All of it was opened, and the trailer says that it is of another version. */
static bool of_another_version(struct fake_arriving *arriving)
{
    uint8_t *trailer = arriving->stored + arriving->value_bytes;
    le32 crc;

    arrive(arriving, PIECES);
    trailer[4] = SEALED_VERSION + 1;
    crc = le32_of(crc32c(trailer, LIMIT_TRAILER_BYTES - sizeof(crc)));
    memcpy(trailer + LIMIT_TRAILER_BYTES - sizeof(crc), &crc, sizeof(crc));
    return true;
}

static void a_value_of_another_version_leaves_nothing(void **state)
{
    put(test.wanted, VALUE, test.stored);
    get_misses(of_another_version, ICMS_MISS_VERSION);
    assert_int_equal(atomic_load(&fake.suspects), 0);
}

static bool as_it_is(struct fake_arriving *arriving)
{
    for (uint32_t i = 1; i <= PIECES; i++)
        pieces_come(arriving, i);
    return true;
}

static void a_key_that_is_not_ours_opens_nothing(void **state)
{
    const uint32_t bytes = (uint32_t)sealed_bytes(VALUE);
    const struct fixture *f = *state;
    struct icms_key icms_key = rig_key(1);
    struct key key = client_key(&icms_key);

    put(test.wanted, VALUE, test.stored);
    test.stored[LIMIT_SEALED_SALT_BYTES] = 9; /* its id */
    sealed_trailer_make_encrypted(&client_view(f->vault)->arena.uuid, &key, icms_key.digest, bytes,
                                  crc32c(test.stored, bytes), test.stored + bytes);
    fake_agent_value_give(f->rig.agent, FAKE_VAULT, &key, test.stored, bytes);
    get_misses(as_it_is, ICMS_MISS_NO_KEY);
    for (uint32_t i = 0; i < VALUE; i++)
        assert_int_equal(test.data[i], (uint8_t)~test.wanted[i]);
    assert_int_equal(atomic_load(&fake.suspects), 0);
}

/* ---- plain values --------------------------------------------------------------------------- */

/* It has the same 16 bytes of the key, and another digest. */
static bool collides(struct fake_arriving *arriving)
{
    struct icms_key icms_key = rig_key(1);
    struct key key = client_key(&icms_key);

    icms_key.digest[LIMIT_KEY_BYTES] ^= 1;
    arrive(arriving, test.which);
    sealed_trailer_make(&client_view(test.f->volume)->arena.uuid, &key, icms_key.digest, VALUE,
                        crc32c(arriving->stored, VALUE), arriving->stored + VALUE);
    return true;
}

static void another_block_of_the_key_is_a_collision(void **state)
{
    (void)state;
    for (test.which = 1; test.which <= PIECES; test.which++) {
        put(test.wanted, VALUE, test.stored);
        get_misses(collides, ICMS_MISS_COLLISION);
    }
    assert_int_equal(atomic_load(&fake.suspects), 0);
}

/* Part of it is told to be in another slot, in which it is not. */
static bool in_another_slot(struct fake_arriving *arriving)
{
    struct shm_complete part = *arriving->answer;

    arrive(arriving, 1);
    part.part = 1;
    part.slot = 1 - part.slot;
    part.value_bytes = pieces_end(3);
    part_send(arriving, &part);
    pieces_come(arriving, PIECES);
    return true;
}

static void a_part_of_another_slot_means_nothing(void **state)
{
    const struct fixture *f = *state;

    assert_int_equal(rig_put_one(f->volume, 3, VALUE), ICMS_OK);
    assert_int_equal(rig_get_one(f->volume, 3, VALUE, NULL), ICMS_OK);
    put(test.wanted, VALUE, test.stored);
    get_is_right(in_another_slot);
    assert_int_equal(atomic_load(&fake.suspects), 0);
}

/* Memory of several pieces, whose ends are not those of what arrives. */
static void a_value_of_layers_is_copied_the_same_way(void **state)
{
    enum { LAYERS = 5, LAYER = VALUE / LAYERS };
    bool (*const hooks[])(struct fake_arriving *) = {one_by_one, in_any_order, same_again, anew};
    const struct fixture *f = *state;
    struct icms_piece layers[LAYERS];
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.pieces = LAYERS;
    for (uint32_t i = 0; i < LAYERS; i++)
        layers[i] = (struct icms_piece){.data = test.data + i * LAYER, .bytes = LAYER};
    layers[LAYERS - 1].bytes += VALUE % LAYERS;
    for (size_t i = 0; i < sizeof(hooks) / sizeof(*hooks); i++) {
        put(test.wanted, VALUE, test.stored);
        memcpy(test.other, test.stored, VALUE + LIMIT_TRAILER_BYTES);
        get_prepare(hooks[i]);
        test.block.data = layers;
        assert_int_equal(icms_get(f->volume, &test.block, 1, &options), ICMS_OK);
        assert_memory_equal(test.data, test.wanted, VALUE);
        for (uint32_t k = VALUE; k < VALUE + GUARD; k++)
            assert_int_equal(test.data[k], 0x5a);
    }
    assert_int_equal(atomic_load(&fake.parted), sizeof(hooks) / sizeof(*hooks));
}

/* A volume without trailers has nothing that would tell whether a part counts. */
static void a_raw_value_is_waited_for(void **state)
{
    const struct fixture *f = *state;
    uint8_t *data = malloc(2 * PIECE);
    struct icms_block block = {.key = rig_key(2), .data = data, .bytes = 2 * PIECE};

    assert_int_equal(rig_put_one(f->rig.raw, 2, 60000), ICMS_OK);
    atomic_store(&fake.arriving, in_any_order);
    assert_int_equal(icms_get(f->rig.raw, &block, 1, NULL), ICMS_OK);
    assert_int_equal(block.bytes, 60000);
    assert_int_equal(atomic_load(&fake.parted), 0);
    free(data);
}

/* ---- an agent that lies --------------------------------------------------------------------- */

static bool lying_head(struct fake_arriving *arriving)
{
    static const uint32_t lengths[] = {0,         1,     100,       PIECE,     2 * PIECE,
                                       VALUE - 1, VALUE, VALUE + 1, 1u << 31u, UINT32_MAX};
    const uint32_t count = sizeof(lengths) / sizeof(*lengths);
    le32 id = le32_of(test.which / count % 2), length = le32_of(lengths[test.which % count]);

    memcpy(arriving->stored + LIMIT_SEALED_SALT_BYTES, &id, sizeof(id));
    memcpy(arriving->stored + LIMIT_SEALED_SALT_BYTES + sizeof(id), &length, sizeof(length));
    as_it_is(arriving);
    memcpy(arriving->stored, test.stored, LIMIT_SEALED_HEAD_BYTES);
    return true;
}

static void a_head_that_lies_writes_nowhere_else(void **state)
{
    for (test.which = 0; test.which < 20; test.which++) {
        put(test.wanted, VALUE, test.stored);
        get_is_right(lying_head);
    }
}

/* The value is larger than its memory: not a byte of an encrypted one is written, and none behind
 * the memory. */
static void a_value_that_does_not_fit_is_not_begun(void **state)
{
    static const uint32_t sizes[] = {PIECE + 1, 2 * PIECE, VALUE - 1};
    const struct fixture *f = *state;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        put(test.wanted, VALUE, test.stored);
        get_prepare(as_it_is);
        test.block.bytes = sizes[i];
        assert_int_equal(icms_get(f->volume, &test.block, 1, NULL), ICMS_MISS);
        assert_int_equal(test.block.status, ICMS_VALUE_SIZE);
        assert_int_equal(test.block.bytes, VALUE);
        for (uint32_t k = is_plain() ? sizes[i] : 0; k < VALUE; k++)
            assert_int_equal(test.data[k], (uint8_t)~test.wanted[k]);
    }
    assert_int_equal(atomic_load(&fake.parted), sizeof(sizes) / sizeof(*sizes));
}

static bool nonsense(struct fake_arriving *arriving)
{
    static const uint32_t slots[] = {SHM_SLOT_NONE, 0x7fffffff, 4096, 0};
    static const uint32_t sizes[] = {0, 1, 31, 32, 33, UINT32_MAX, UINT32_MAX - 63, 1u << 31};

    arrive(arriving, 1);
    for (size_t i = 0; i < sizeof(slots) / sizeof(*slots); i++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(*sizes); k++) {
            struct shm_complete part = *arriving->answer;

            part.part = (uint8_t)(1 + 254 * (k % 2));
            part.slot = slots[i];
            part.value_bytes = sizes[k];
            part.status = (uint32_t)k;
            part_send(arriving, &part);
            part.tag += (uint64_t)1 << 32; /* another generation, and another operation */
            part_send(arriving, &part);
            part.tag = k == 0 ? UINT64_MAX : part.tag + 1;
            part_send(arriving, &part);
        }
    return true;
}

static void parts_that_make_no_sense_are_left_alone(void **state)
{
    put(test.wanted, VALUE, test.stored);
    get_is_right(nonsense);
    assert_int_equal(rig_put_one(test.f->volume, 2, 1000), ICMS_OK);
    assert_int_equal(rig_get_one(test.f->volume, 2, 1000, NULL), ICMS_OK);
}

/* ---- the end in the middle ------------------------------------------------------------------ */

/* Parts and the answer come after the call. */
static bool late(struct fake_arriving *arriving)
{
    arrive(arriving, 2);
    atomic_store(&test.middle, true);
    check(soon(is_over, 0));
    pieces_come(arriving, PIECES);
    return true;
}

/* Later calls take them: nothing of the last one is touched, and all of it is free. While the agent
 * does not look at its rings they are over at once. */
static void nothing_is_written_any_more(struct fixture *f)
{
    struct icms_block block = {.key = rig_key(2)}; /* the agent has to be asked for it */

    assert_true(soon(is_middle, 0)); /* the agent's thread has looked at the memory */
    memset(test.data, 0x33, VALUE + GUARD);
    atomic_store(&test.over, true);
    for (int tries = 0; tries < RIG_GRACE_MS && block.reason != ICMS_MISS_EVICTED; tries++) {
        assert_int_equal(icms_exists(f->volume, &block, 1, NULL), ICMS_MISS);
        usleep(1000);
    }
    assert_int_equal(block.reason, ICMS_MISS_EVICTED);
    for (uint32_t i = 0; i < VALUE + GUARD; i++)
        assert_int_equal(test.data[i], 0x33);
    assert_int_equal(fake_agent_leases(f->rig.agent), 0);
    atomic_store(&fake.arriving, NULL);
    assert_int_equal(get(NULL), ICMS_OK);
}

static void a_deadline_in_the_middle_ends_it(void **state)
{
    struct icms_request_options options;
    struct fixture *f = *state;

    icms_request_options_init(&options);
    options.deadline_ms = 300;
    put(test.wanted, VALUE, test.stored);
    get_prepare(late);
    assert_int_equal(icms_get(f->volume, &test.block, 1, &options), ICMS_MISS);
    assert_int_equal(test.block.reason, ICMS_MISS_DEADLINE);
    nothing_is_written_any_more(f);
}

static void a_request_that_is_ended_in_the_middle_is_over(void **state)
{
    struct icms_request_options options;
    struct icms_request *request;
    struct fixture *f = *state;

    icms_request_options_init(&options);
    options.deadline_ms = 1000;
    put(test.wanted, VALUE, test.stored);
    get_prepare(late);
    assert_int_equal(icms_get_start(f->volume, &test.block, 1, &options, &request), ICMS_OK);
    while (!atomic_load(&test.middle) && icms_poll(f->rig.icms) == NULL)
        usleep(1000);
    (void)icms_request_end(&request);
    nothing_is_written_any_more(f);
}

static bool is_canceled_there(struct fake_arriving *arriving)
{
    arrive(arriving, 2);
    atomic_store(&test.middle, true);
    check(soon(is_over, 0));
    pieces_come(arriving, 3);
    arriving->answer->status = ICMS_CANCELED;
    return true;
}

static void *cancels(void *arg)
{
    check(soon(is_middle, 0));
    icms_request_cancel(arg);
    atomic_store(&test.over, true);
    return NULL;
}

static void a_cancel_in_the_middle_ends_it(void **state)
{
    struct icms_request *request;
    struct fixture *f = *state;
    pthread_t thread;
    uint64_t begin;

    put(test.wanted, VALUE, test.stored);
    get_prepare(is_canceled_there);
    begin = client_now_ns();
    assert_int_equal(icms_get_start(f->volume, &test.block, 1, NULL, &request), ICMS_OK);
    assert_int_equal(pthread_create(&thread, NULL, cancels, request), 0);
    assert_ptr_equal(rig_poll_next(f->rig.icms), request);
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS); /* its deadline */
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(test.block.status, ICMS_CANCELED);
    (void)icms_request_end(&request);
    nothing_is_written_any_more(f);
}

/* It is answered with a miss after all. */
static bool misses(struct fake_arriving *arriving)
{
    arrive(arriving, PIECES);
    arriving->answer->status = ICMS_MISS;
    arriving->answer->reason = ICMS_MISS_ENCLOSURE_DOWN;
    return true;
}

static void a_miss_after_parts_is_a_miss(void **state)
{
    put(test.wanted, VALUE, test.stored);
    get_misses(misses, ICMS_MISS_ENCLOSURE_DOWN);
    get_is_right(one_by_one);
}

/* Shorter than what was told: what follows is the old value's. */
static bool shrinks_a_little(struct fake_arriving *arriving)
{
    arrive(arriving, PIECES);
    arriving->answer->value_bytes = PIECE;
    return true;
}

static void a_length_that_is_not_its_own_is_a_miss(void **state)
{
    (void)state;
    put(test.wanted, VALUE, test.stored);
    get_misses(shrinks_a_little, ICMS_MISS_CHECKSUM);
    put(test.wanted, VALUE, test.stored);
    get_is_right(one_by_one);
}

/* It is answered with a length that nothing sealed has. */
static bool shrinks(struct fake_arriving *arriving)
{
    arrive(arriving, PIECES);
    arriving->answer->value_bytes = LIMIT_SEALED_HEAD_BYTES + 8;
    return true;
}

static void a_length_that_cannot_be_after_parts_leaves_nothing(void **state)
{
    put(test.wanted, VALUE, test.stored);
    get_misses(shrinks, ICMS_MISS_CHECKSUM);
    put(test.wanted, VALUE, test.stored);
    get_is_right(one_by_one);
}

static bool dies(struct fake_arriving *arriving)
{
    arrive(arriving, 2);
    atomic_store(&test.middle, true);
    return false;
}

static void *stops_the_agent(void *arg)
{
    struct fixture *f = arg;

    check(soon(is_middle, 0));
    fake_socket_stop(&f->rig.socket);
    return NULL;
}

static void an_agent_that_dies_in_the_middle_is_down(void **state)
{
    struct fixture *f = *state;
    pthread_t thread;

    put(test.wanted, VALUE, test.stored);
    get_prepare(dies);
    assert_int_equal(pthread_create(&thread, NULL, stops_the_agent, f), 0);
    assert_int_equal(icms_get(f->volume, &test.block, 1, NULL), ICMS_PEER_DOWN);
    assert_int_equal(pthread_join(thread, NULL), 0);
    atomic_store(&fake.arriving, one_by_one);
    f->rig.socket = fake_socket_start(f->rig.agent, f->rig.path);
    assert_int_equal(rig_put_one_soon(f->volume, 2, VALUE), ICMS_OK);
    rig_fill(test.wanted, VALUE, 2);
    get_prepare(one_by_one);
    test.block.key = rig_key(2);
    assert_int_equal(icms_get(f->volume, &test.block, 1, NULL), ICMS_OK);
    assert_memory_equal(test.data, test.wanted, VALUE);
}

int main(void)
{
#define TEST(name)  cmocka_unit_test_setup_teardown(name, setup, teardown)
#define PLAIN(name) cmocka_unit_test_setup_teardown(name, setup_plain, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_value_is_taken_while_it_arrives),
        TEST(parts_come_in_any_order_and_number),
        TEST(several_at_a_time),
        TEST(others_wait_for_the_answer),
        TEST(a_piece_that_fails_means_nothing_until_the_answer),
        TEST(a_load_that_begins_anew_brings_another_value),
        TEST(a_load_that_begins_anew_brings_the_same),
        TEST(pieces_of_two_values_do_not_mix),
        TEST(a_trailer_that_lies_is_a_miss),
        TEST(a_value_of_another_version_leaves_nothing),
        TEST(a_key_that_is_not_ours_opens_nothing),
        TEST(a_head_that_lies_writes_nowhere_else),
        TEST(a_value_that_does_not_fit_is_not_begun),
        TEST(parts_that_make_no_sense_are_left_alone),
        TEST(a_deadline_in_the_middle_ends_it),
        TEST(a_request_that_is_ended_in_the_middle_is_over),
        TEST(a_cancel_in_the_middle_ends_it),
        TEST(a_miss_after_parts_is_a_miss),
        TEST(a_length_that_cannot_be_after_parts_leaves_nothing),
        TEST(an_agent_that_dies_in_the_middle_is_down),
        TEST(a_length_that_is_not_its_own_is_a_miss),
        PLAIN(a_value_is_taken_while_it_arrives),
        PLAIN(parts_come_in_any_order_and_number),
        PLAIN(several_at_a_time),
        PLAIN(others_wait_for_the_answer),
        PLAIN(a_piece_that_fails_means_nothing_until_the_answer),
        PLAIN(a_load_that_begins_anew_brings_another_value),
        PLAIN(a_load_that_begins_anew_brings_the_same),
        PLAIN(a_trailer_that_lies_is_a_miss),
        PLAIN(a_value_of_another_version_leaves_nothing),
        PLAIN(another_block_of_the_key_is_a_collision),
        PLAIN(a_part_of_another_slot_means_nothing),
        PLAIN(a_value_of_layers_is_copied_the_same_way),
        PLAIN(a_raw_value_is_waited_for),
        PLAIN(a_value_that_does_not_fit_is_not_begun),
        PLAIN(parts_that_make_no_sense_are_left_alone),
        PLAIN(a_deadline_in_the_middle_ends_it),
        PLAIN(a_request_that_is_ended_in_the_middle_is_over),
        PLAIN(a_cancel_in_the_middle_ends_it),
        PLAIN(a_miss_after_parts_is_a_miss),
        PLAIN(a_length_that_is_not_its_own_is_a_miss),
        PLAIN(an_agent_that_dies_in_the_middle_is_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
