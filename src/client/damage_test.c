/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One flipped byte, anywhere in a value of any size or in its trailer, is a miss with the reason
 * "checksum": when the value is copied, when it is leased, and when an agent in this process
 * received it in the caller's memory. A whole value of another block whose key has the same 16
 * bytes is a miss with the reason "collision" at the same places, and one of another format version
 * with the reason "version": the agent is told of neither. And a value never goes beyond the
 * caller's memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/client_int.h"
#include "client/client_rig.h"

#define KIB ((uint32_t)1024)

/* Around the sizes at which a value is copied, checked or received in another way. */
static const uint32_t sizes[] = {
    1, 5000, 8 * KIB - 1, 8 * KIB, 8 * KIB + 1, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 1024 * KIB};
#define SIZES  (sizeof(sizes) / sizeof(*sizes))
#define PLACES 5

/* A rig whose staging memory has room for the largest value. */
static int setup(void **state)
{
    struct client_rig *rig = calloc(1, sizeof(*rig));
    struct icms_options options;

    assert_non_null(rig);
    *state = rig;
    icms_options_init(&options);
    options.buffer_bytes = (uint64_t)4 << 20;
    return client_rig_open(rig, &options);
}

/* Which byte is flipped: the first, one in the middle and the last of the value, the first and one
 * of the last of the trailer (its own checksum). As fake.damage wants it. */
static unsigned place(uint32_t bytes, int which)
{
    const unsigned places[PLACES] = {0, bytes / 2, bytes - 1, bytes, bytes + 23};

    return 1 + places[which];
}

static void a_copy_with_one_flipped_byte_is_a_miss(void **state)
{
    struct client_rig *rig = *state;
    struct icms_block block;

    for (size_t i = 0; i < SIZES; i++)
        for (int which = 0; which < PLACES; which++) {
            assert_int_equal(rig_put_one(rig->big, i, sizes[i]), ICMS_OK);
            atomic_store(&fake.damage, place(sizes[i], which));
            assert_int_equal(rig_get_one(rig->big, i, sizes[i], &block), ICMS_MISS);
            assert_int_equal(block.reason, ICMS_MISS_CHECKSUM);
            atomic_store(&fake.damage, 0);
            assert_int_equal(rig_put_one(rig->big, i, sizes[i]), ICMS_OK); /* out of the arena */
            assert_int_equal(rig_get_one(rig->big, i, sizes[i], &block), ICMS_OK);
        }
}

static void a_leased_value_with_one_flipped_byte_is_a_miss(void **state)
{
    struct client_rig *rig = *state;
    enum icms_miss reason;
    struct icms_lease lease;

    for (size_t i = 0; i < SIZES; i++)
        for (int which = 0; which < PLACES; which++) {
            struct icms_key key = rig_key(i);

            assert_int_equal(rig_put_one(rig->big, i, sizes[i]), ICMS_OK);
            atomic_store(&fake.damage, place(sizes[i], which));
            assert_int_equal(icms_lease_take(rig->big, &key, NULL, &reason, &lease), ICMS_MISS);
            assert_int_equal(reason, ICMS_MISS_CHECKSUM);
            atomic_store(&fake.damage, 0);
            assert_int_equal(rig_put_one(rig->big, i, sizes[i]), ICMS_OK);
            assert_int_equal(icms_lease_take(rig->big, &key, NULL, &reason, &lease), ICMS_OK);
            assert_int_equal(lease.bytes, sizes[i]);
            icms_lease_give(&lease);
        }
}

/* A value is checked once for as long as it is in its slot: what comes into the slot after it is
 * checked again. */
static void each_value_that_a_slot_gets_is_checked(void **state)
{
    struct client_rig *rig = *state;
    enum { SLOTS = 2, BYTES = 70000 }; /* of the volume "big" */
    enum icms_miss reason;
    struct icms_lease lease;

    for (uint64_t n = 0; n < 4 * SLOTS; n++) {
        bool damaged = n / SLOTS % 2 == 1; /* each slot by turns has a good and a bad value */
        struct icms_key key = rig_key(n);

        assert_int_equal(rig_put_one(rig->big, n, BYTES), ICMS_OK);
        atomic_store(&fake.damage, damaged ? 100 : 0);
        for (int again = 0; again < 2; again++) {
            icms_err err = icms_lease_take(rig->big, &key, NULL, &reason, &lease);

            assert_int_equal(err, damaged ? ICMS_MISS : ICMS_OK);
            assert_int_equal(reason, damaged ? ICMS_MISS_CHECKSUM : ICMS_MISS_NONE);
            if (err == ICMS_OK)
                icms_lease_give(&lease);
        }
    }
}

/* The key of another block with the same 16 bytes. */
static struct icms_key twin_of(uint64_t number)
{
    struct icms_key twin = rig_key(number);

    twin.digest[ICMS_DIGEST_BYTES - 1] ^= 2;
    return twin;
}

static uint64_t counted(const struct icms_volume *volume, enum shm_count count)
{
    return atomic_load(
        &volume->icms->link->rings[0].counts[client_view(volume)->arena.volume][count]);
}

static uint64_t collisions(const struct icms_volume *volume)
{
    return counted(volume, SHM_COUNT_COLLISIONS);
}

/* Also where this handle has checked the value before. The agent is not told: the value is whole.
 */
static void a_value_of_another_block_is_a_collision(void **state)
{
    struct client_rig *rig = *state;
    struct icms_lease lease;
    enum icms_miss reason;

    atomic_store(&fake.suspects, 0);
    for (size_t i = 0; i < SIZES; i++) {
        struct icms_key key = rig_key(i), twin = twin_of(i);
        uint8_t *data = malloc(sizes[i]);
        struct icms_block block = {.key = twin, .data = data, .bytes = sizes[i]};
        uint64_t before = collisions(rig->big);

        assert_non_null(data);
        assert_int_equal(rig_put_one(rig->big, i, sizes[i]), ICMS_OK);
        for (int again = 0; again < 2; again++) { /* by message, then from the arena */
            block.bytes = sizes[i];
            assert_int_equal(icms_get(rig->big, &block, 1, NULL), ICMS_MISS);
            assert_int_equal(block.reason, ICMS_MISS_COLLISION);
            assert_int_equal(block.source, ICMS_SOURCE_NONE);
        }
        for (int again = 0; again < 2; again++) {
            assert_int_equal(icms_lease_take(rig->big, &twin, NULL, &reason, &lease), ICMS_MISS);
            assert_int_equal(reason, ICMS_MISS_COLLISION);
            assert_int_equal(icms_lease_take(rig->big, &key, NULL, &reason, &lease), ICMS_OK);
            icms_lease_give(&lease);
        }
        assert_int_equal(collisions(rig->big), before + 4);
        assert_int_equal(rig_get_one(rig->big, i, sizes[i], NULL), ICMS_OK);
        free(data);
    }
    assert_int_equal(atomic_load(&fake.suspects), 0);
    assert_int_equal(fake_agent_leases(rig->agent), 0);
}

/* An icms of another version stored it. It is never checked off as seen. A put that does not
 * replace finds it, one that does replaces it. */
static void a_value_of_another_version_is_left_alone(void **state)
{
    struct client_rig *rig = *state;
    struct icms_request_options if_absent;
    struct icms_lease lease;
    enum icms_miss reason;

    icms_request_options_init(&if_absent);
    if_absent.put_if_absent = 1;
    atomic_store(&fake.suspects, 0);
    for (size_t i = 0; i < SIZES; i++) {
        struct icms_key key = rig_key(i);
        uint8_t byte = 1;
        struct icms_block block;
        uint64_t before = counted(rig->big, SHM_COUNT_VERSIONS);

        atomic_store(&fake.version, 3 + 2 * (i % 2)); /* before and behind */
        assert_int_equal(rig_put_one(rig->big, i, sizes[i]), ICMS_OK);
        for (int again = 0; again < 2; again++) { /* by message, then from the arena */
            assert_int_equal(rig_get_one(rig->big, i, sizes[i], &block), ICMS_MISS);
            assert_int_equal(block.reason, ICMS_MISS_VERSION);
            assert_int_equal(block.source, ICMS_SOURCE_NONE);
            assert_int_equal(icms_lease_take(rig->big, &key, NULL, &reason, &lease), ICMS_MISS);
            assert_int_equal(reason, ICMS_MISS_VERSION);
        }
        for (int room = 0; room < 2; room++) { /* its length is not known here */
            block = (struct icms_block){
                .key = key, .data = room == 0 ? NULL : &byte, .bytes = (uint64_t)room};
            (void)!icms_get(rig->big, &block, 1, NULL);
            assert_int_equal(block.status, ICMS_MISS);
            assert_int_equal(block.reason, ICMS_MISS_VERSION);
        }
        assert_true(byte == 1 || sizes[i] == 1);
        assert_int_equal(counted(rig->big, SHM_COUNT_VERSIONS), before + 6);
        block = (struct icms_block){.key = key, .data = &byte, .bytes = 1};
        (void)!icms_put(rig->big, &block, 1, &if_absent);
        assert_int_equal(block.status, ICMS_EXISTS);
        atomic_store(&fake.version, 0);
        assert_int_equal(rig_put_one(rig->big, i, sizes[i]), ICMS_OK);
        assert_int_equal(rig_get_one(rig->big, i, sizes[i], &block), ICMS_OK);
    }
    assert_int_equal(atomic_load(&fake.suspects), 0);
    assert_int_equal(fake_agent_leases(rig->agent), 0);
}

/* Room for one byte less than the value has: nothing is written, neither there nor behind it. */
static void a_value_that_is_one_byte_too_long_is_refused(void **state)
{
    struct client_rig *rig = *state;

    for (size_t i = 1; i < SIZES; i++) {
        uint8_t *data = malloc(sizes[i]);
        struct icms_block block = {.key = rig_key(i), .data = data, .bytes = sizes[i] - 1};

        assert_non_null(data);
        assert_int_equal(rig_put_one(rig->big, i, sizes[i]), ICMS_OK);
        for (int again = 0; again < 2; again++) { /* by message, then from the arena */
            memset(data, 0xee, sizes[i]);
            block.bytes = sizes[i] - 1;
            assert_int_equal(icms_get(rig->big, &block, 1, NULL), ICMS_MISS);
            assert_int_equal(block.status, ICMS_VALUE_SIZE);
            assert_int_equal(block.bytes, sizes[i]);
            assert_true(data[0] == 0xee && memcmp(data, data + 1, sizes[i] - 1) == 0);
        }
        block.bytes = sizes[i];
        assert_int_equal(icms_get(rig->big, &block, 1, NULL), ICMS_OK);
        free(data);
    }
}

/* ---- an agent in this process --------------------------------------------------------------- */

/* Gets value number 1, by this key, into so much room; the status of the block. */
static icms_err direct_get_by(struct icms_volume *volume, struct icms_key key, uint32_t bytes,
                              uint64_t room, struct icms_block *out_block)
{
    uint8_t *data = malloc(room), *wanted = malloc(bytes);

    assert_true(data != NULL && wanted != NULL);
    *out_block = (struct icms_block){.key = key, .data = data, .bytes = room};
    (void)!icms_get(volume, out_block, 1, NULL);
    if (out_block->status == ICMS_OK) {
        rig_fill(wanted, bytes, 1);
        assert_int_equal(out_block->bytes, bytes);
        assert_memory_equal(data, wanted, bytes);
    }
    free(data);
    free(wanted);
    return out_block->status;
}

static icms_err direct_get(struct icms_volume *volume, uint32_t bytes, uint64_t room,
                           struct icms_block *out_block)
{
    return direct_get_by(volume, rig_key(1), bytes, room, out_block);
}

/* Whether or not the agent has checked it. */
static void assert_direct_collision(struct icms_volume *volume, uint32_t bytes, uint64_t room)
{
    struct icms_block block;

    for (int checks = 0; checks < 2; checks++) {
        atomic_store(&fake.checks, checks != 0);
        assert_int_equal(direct_get_by(volume, twin_of(1), bytes, room, &block), ICMS_MISS);
        assert_int_equal(block.reason, ICMS_MISS_COLLISION);
        assert_int_equal(block.source, ICMS_SOURCE_NONE);
        assert_int_equal(direct_get(volume, bytes, room, &block), ICMS_OK);
    }
    atomic_store(&fake.checks, false);
}

/* A handle with the agent of the tests inside, and its volume; folder ends with XXXXXX. */
static struct icms *inside_open(char *folder, struct icms_volume **out_volume)
{
    struct icms *icms = NULL;
    char where[64];

    fake_reset();
    assert_non_null(mkdtemp(folder));
    (void)snprintf(where, sizeof(where), "dir:%s", folder);
    assert_int_equal(icms_open(where, NULL, NULL, 0, &icms), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "kv", NULL, 0, out_volume), ICMS_OK);
    return icms;
}

static void inside_close(struct icms *icms, const char *folder)
{
    static const char *const names[] = {"icms.lock", "volumes", "icms.store", ""};
    char path[64];

    icms_close(&icms);
    for (int i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        (void)remove(path);
    }
}

static void a_direct_receive_of_anything_else_is_a_miss(void **state)
{
    /* The trailer lies behind the room, on both sides of its end, and inside of it. */
    static const uint32_t behind[] = {0, 10, LIMIT_TRAILER_BYTES, 4096};
    char folder[] = "/tmp/icms-damage-test-XXXXXX";
    struct icms_volume *volume = NULL;
    struct icms *icms = inside_open(folder, &volume);
    struct icms_block block;

    for (size_t i = 0; i < SIZES; i++) {
        if (sizes[i] < CLIENT_DIRECT_BYTES)
            continue;
        assert_int_equal(rig_put_one(volume, 1, sizes[i]), ICMS_OK);
        for (size_t j = 0; j < sizeof(behind) / sizeof(*behind); j++) {
            for (int which = 0; which < PLACES; which++) {
                atomic_store(&fake.damage, place(sizes[i], which));
                atomic_store(&fake.suspects, 0);
                assert_int_equal(direct_get(volume, sizes[i], sizes[i] + behind[j], &block),
                                 ICMS_MISS);
                for (int n = 0; n < 2000 && atomic_load(&fake.suspects) == 0; n++)
                    (void)usleep(1000); /* the agent is told */
                assert_int_equal(atomic_load(&fake.suspects), 1);
                assert_int_equal(block.reason, ICMS_MISS_CHECKSUM);
                assert_int_equal(block.source, ICMS_SOURCE_NONE);
            }
            atomic_store(&fake.damage, 0);
            assert_int_equal(direct_get(volume, sizes[i], sizes[i] + behind[j], &block), ICMS_OK);
            assert_int_equal(block.source, ICMS_SOURCE_POD);
            assert_direct_collision(volume, sizes[i], sizes[i] + behind[j]);
            atomic_store(&fake.suspects, 0);
            atomic_store(&fake.version, 5);
            assert_int_equal(direct_get(volume, sizes[i], sizes[i] + behind[j], &block), ICMS_MISS);
            assert_int_equal(block.reason, ICMS_MISS_VERSION);
            atomic_store(&fake.version, 0);
            assert_int_equal(rig_put_one(volume, 1, sizes[i]), ICMS_OK); /* behind it in the ring */
            assert_int_equal(atomic_load(&fake.suspects), 0);
        }
    }
    assert_true(atomic_load(&fake.directs) > 0);
    assert_int_equal(atomic_load(&fake.directs), atomic_load(&fake.gets));
    inside_close(icms, folder);
}

/* How the value comes that a get waits for. In the agent's thread. */
static enum {
    COMES_ONCE,         /* in one arrival                                           */
    COMES_BAD_BEFORE,   /* the second arrival mends what was wrong in the first     */
    COMES_BAD_AFTER,    /* the second arrival damages what was right in the first   */
    COMES_TOLD_AGAIN,   /* likewise, and the second one is told of, too             */
    COMES_TOLD_TOO_MUCH /* the parts are longer than the value                      */
} comes;

/* Tells of so many bytes of an arrival, and gives the client's thread time to sum them: if it does
 * so later, it sees what is there then, and the test is less strict. */
static void arrival_told(struct fake_arriving *arriving, uint64_t arrival, uint32_t bytes)
{
    struct shm_complete part = *arriving->answer;

    part.version = arrival;
    part.value_bytes = bytes;
    part.part = 1;
    check(shm_complete_part(arriving->ring, &part));
    if (shm_complete_publish(arriving->ring))
        loop_event_signal(arriving->event);
    (void)usleep(20000);
}

static bool value_comes(struct fake_arriving *arriving)
{
    uint8_t *byte = arriving->stored + 1000;
    uint64_t arrival = 7;

    *byte ^= comes == COMES_BAD_BEFORE;
    arrival_told(arriving, arrival, 256 * KIB - LIMIT_TRAILER_BYTES);
    arrival_told(arriving, arrival,
                 comes == COMES_TOLD_TOO_MUCH ? arriving->value_bytes + 1
                                              : 512 * KIB - LIMIT_TRAILER_BYTES);
    if (comes == COMES_BAD_BEFORE || comes == COMES_BAD_AFTER || comes == COMES_TOLD_AGAIN) {
        *byte ^= 1;
        arrival = 8;
    }
    if (comes == COMES_TOLD_AGAIN)
        arrival_told(arriving, arrival, 256 * KIB - LIMIT_TRAILER_BYTES);
    arriving->answer->version = arrival;
    return true;
}

/* What was summed while it arrived counts for that arrival: the next one writes there again. */
static void a_sum_is_of_one_arrival(void **state)
{
    char folder[] = "/tmp/icms-damage-test-XXXXXX";
    struct icms_volume *volume = NULL;
    struct icms *icms = inside_open(folder, &volume);
    struct icms_block block;

    assert_int_equal(rig_put_one(volume, 1, 1024 * KIB), ICMS_OK);
    atomic_store(&fake.arriving, value_comes);
    for (comes = COMES_ONCE; comes <= COMES_TOLD_TOO_MUCH; comes++) {
        bool is_bad = comes == COMES_BAD_AFTER || comes == COMES_TOLD_AGAIN;

        assert_int_equal(direct_get(volume, 1024 * KIB, 1028 * KIB, &block),
                         is_bad ? ICMS_MISS : ICMS_OK);
        assert_int_equal(block.reason, is_bad ? ICMS_MISS_CHECKSUM : ICMS_MISS_NONE);
    }
    assert_int_equal(atomic_load(&fake.parted), COMES_TOLD_TOO_MUCH + 1);
    atomic_store(&fake.arriving, NULL);
    inside_close(icms, folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, client_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_copy_with_one_flipped_byte_is_a_miss),
        TEST(a_leased_value_with_one_flipped_byte_is_a_miss),
        TEST(each_value_that_a_slot_gets_is_checked),
        TEST(a_value_of_another_block_is_a_collision),
        TEST(a_value_of_another_version_is_left_alone),
        TEST(a_value_that_is_one_byte_too_long_is_refused),
        cmocka_unit_test(a_direct_receive_of_anything_else_is_a_miss),
        cmocka_unit_test(a_sum_is_of_one_arrival),
    };

    return cmocka_run_group_tests_name("client-damage", tests, NULL, NULL);
}
