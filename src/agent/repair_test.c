/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block whose trailer fails where it is stored: the bad record goes, so that a put that does not
 * replace repairs it; and nothing else goes, whoever says what. With a pod and with a drive of the
 * agent's own, on simulated machines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "agent/agent_int.h"
#include "agent/agent_rig.h"
#include "base/crc.h"
#include "wire/sealed.h"

#define KV    0
#define BYTES 20000u
#define WAIT  (1000 * RIG_MS)

/* A write to the agent's own drive, past the agent. */
struct own_write {
    struct loop_msg msg;
    struct store *store;
    struct store_write write;
    bool is_done;
};

static void own_write_done(struct store_write *write)
{
    struct own_write *own = container_of(write, struct own_write, write);

    assert_int_equal(write->err, ICMS_OK);
    own->is_done = true;
}

static void own_write_begin(struct loop_msg *msg)
{
    struct own_write *own = container_of(msg, struct own_write, msg);

    own->write.err = store_write(own->store, &own->write);
    assert_int_equal(own->write.err, ICMS_OK);
}

static void store(struct agent_rig *rig, uint32_t n, const uint8_t *stored, uint32_t bytes)
{
    struct own_write own = {.is_done = false};
    uint8_t *memory = aligned_alloc(LIMIT_DISK_ALIGN, store_record_bytes(bytes));
    struct key key;

    assert_non_null(memory);
    memset(memory, 0, store_record_bytes(bytes));
    memcpy(memory + (rig->agent->local == NULL ? 0 : STORE_HEADER_BYTES), stored, bytes);
    rig_key(n, &key);
    if (rig->agent->local == NULL) {
        fake_target_put(rig->fake[0], KV + 1, &key, memory, bytes);
    } else {
        own.store = rig->agent->local->store;
        own.write = (struct store_write){.volume = KV,
                                         .key = key,
                                         .memory = memory,
                                         .value_bytes = bytes,
                                         .done = own_write_done};
        loop_send(rig->agent->reactors[0].loop, &own.msg, own_write_begin);
        while (!own.is_done)
            assert_true(sim_step(rig->sim));
    }
    free(memory);
}

/* Stores bytes under key n that nobody sealed. */
static void store_bad(struct agent_rig *rig, uint32_t n, uint32_t bytes)
{
    uint8_t *bad = malloc(bytes);

    assert_non_null(bad);
    memset(bad, 0x5a, bytes);
    store(rig, n, bad, bytes);
    free(bad);
}

/* Value n as an icms of another format version has it: all that we know of it is its trailer. */
static void make_version(uint8_t stored[BYTES + LIMIT_TRAILER_BYTES], uint32_t n)
{
    static const struct uuid other;
    uint8_t *trailer = stored + BYTES;
    struct key key;
    le32 crc;

    rig_key(n, &key);
    rig_value(n, BYTES, stored);
    sealed_trailer_make(&other, &key, rig_digest(n), BYTES, 0, trailer);
    trailer[4] = SEALED_VERSION + 1;
    crc = le32_of(crc32c(trailer, LIMIT_TRAILER_BYTES - sizeof(crc)));
    memcpy(trailer + LIMIT_TRAILER_BYTES - sizeof(crc), &crc, sizeof(crc));
}

static bool is_stored(struct agent_rig *rig, uint32_t n)
{
    struct key key;

    rig_key(n, &key);
    if (rig->agent->local != NULL)
        return store_exists(rig->agent->local->store, KV, &key, NULL);
    return fake_target_find(rig->fake[0], KV + 1, &key) != NULL;
}

static struct agent_rig *rig_up(bool own, struct rig_client **out_client)
{
    struct agent_rig *rig = rig_new(&(struct rig_opts){.enclosures = own ? 0 : 1});

    *out_client = rig_client_new(rig);
    return rig;
}

static icms_err put_if_absent(struct rig_client *client, uint32_t n)
{
    return rig_wait(client, rig_put(client, KV, n, BYTES, SHM_FLAG_IF_ABSENT, WAIT))->status;
}

static void assert_checksum_miss(const struct shm_complete *answer)
{
    assert_int_equal(answer->status, ICMS_MISS);
    assert_int_equal(answer->reason, ICMS_MISS_CHECKSUM);
}

/* The client finds it in the arena; the put is in the ring before anything was deleted. */
static void a_put_behind_a_suspicion_repairs_the_block(void **state)
{
    for (int own = 0; own < 2; own++) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up(own != 0, &client);

        for (uint32_t n = 1; n <= 3; n++) {
            uint64_t tag;

            store_bad(rig, n, BYTES + LIMIT_TRAILER_BYTES);
            assert_int_equal(put_if_absent(client, n), ICMS_EXISTS); /* nobody knows yet */
            assert_int_equal(rig_wait(client, rig_get(client, KV, n, 0, WAIT))->status, ICMS_OK);
            rig_lease_give(client, 0);
            (void)rig_op(client, SHM_OP_SUSPECT, KV, n, 0);
            tag = rig_put(client, KV, n, BYTES, SHM_FLAG_IF_ABSENT, WAIT);
            assert_int_equal(rig_wait(client, tag)->status, ICMS_OK);
            assert_true(rig_value_is(client, KV, n, BYTES,
                                     rig_wait(client, rig_get(client, KV, n, 0, WAIT))));
            rig_lease_give(client, 0);
            assert_true(is_stored(rig, n));
            assert_int_equal(rig_stats(rig)->checksum_errors, n); /* once each */
            if (!own) {
                struct key key;

                rig_key(n, &key);
                assert_int_equal(rig_stats(rig)->enclosures[0].checksum_errors, n);
                assert_int_equal(rig_stats(rig)->enclosures[0].damaged_volume, KV);
                assert_memory_equal(&rig_stats(rig)->enclosures[0].damaged_key, &key, sizeof(key));
            }
        }
        if (!own) {
            assert_int_equal(rig->fake[0]->record_deletes, 3);
            assert_int_equal(rig->fake[0]->deletes, 3);
        }
        rig_client_free(client);
        rig_free(rig);
    }
}

/* It is not in the arena: a client received it in its memory, or it was evicted. */
static void a_suspicion_about_a_block_that_is_not_in_the_arena_is_looked_into(void **state)
{
    for (int own = 0; own < 2; own++) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up(own != 0, &client);

        store_bad(rig, 1, BYTES + LIMIT_TRAILER_BYTES);
        (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0);
        (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0);
        assert_int_equal(put_if_absent(client, 1), ICMS_OK);
        assert_int_equal(rig_stats(rig)->checksum_errors, 1);
        assert_int_equal(rig_stats(rig)->backlog_bytes, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* The agent sees itself that it is too short for a trailer. */
static void a_value_without_a_trailer_is_deleted_unasked(void **state)
{
    for (int own = 0; own < 2; own++) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up(own != 0, &client);

        store_bad(rig, 1, 40);
        assert_checksum_miss(rig_wait(client, rig_get(client, KV, 1, 0, WAIT)));
        assert_int_equal(put_if_absent(client, 1), ICMS_OK);
        assert_int_equal(rig_stats(rig)->checksum_errors, 1);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* Also when it ends right after that, before the agent has looked at its ring. */
static void a_suspicion_of_a_client_that_ends_is_looked_into(void **state)
{
    struct rig_client *client, *other;
    struct agent_rig *rig = rig_up(false, &client);
    struct shm_submit entry = {.op = SHM_OP_SUSPECT, .volume = KV, .key_length = LIMIT_KEY_BYTES};
    struct key key;

    other = rig_client_new(rig);
    store_bad(rig, 1, BYTES + LIMIT_TRAILER_BYTES);
    rig_key(1, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    assert_true(shm_submit_hint(&client->ring, &entry)); /* without waking the agent */
    rig_client_free(client);
    rig_run(rig, 100 * RIG_MS);
    assert_false(is_stored(rig, 1));
    assert_int_equal(put_if_absent(other, 1), ICMS_OK);
    rig_client_free(other);
    rig_free(rig);
}

/* Who joins the second look gets its answer. */
static void a_get_during_the_second_look_has_its_answer(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(false, &client);
    uint64_t tag;

    store_bad(rig, 1, BYTES + LIMIT_TRAILER_BYTES);
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0);
    tag = rig_get(client, KV, 1, 0, WAIT);
    assert_checksum_miss(rig_wait(client, tag));
    tag = rig_get(client, KV, 1, 0, WAIT); /* waits for the deletion */
    assert_int_equal(rig_wait(client, tag)->reason, ICMS_MISS_ABSENT);
    assert_false(is_stored(rig, 1));
    rig_client_free(client);
    rig_free(rig);
}

/* Another host replaces the record after it was read and before it is deleted. */
static void a_record_that_was_replaced_is_kept(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(false, &client);
    struct fake_target *fake = rig->fake[0];

    store_bad(rig, 1, BYTES + LIMIT_TRAILER_BYTES);
    fake->delay_ns = 20 * RIG_MS; /* the answer is made of what is there when the delay is over */
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0);
    for (int i = 0; i < 1000 && fake->record_deletes == 0; i++)
        rig_run(rig, RIG_MS);
    assert_int_equal(fake->record_deletes, 1);
    rig_flash(rig, 0, KV, 1, BYTES);
    rig_run(rig, 100 * RIG_MS);
    assert_true(is_stored(rig, 1));
    assert_true(
        rig_value_is(client, KV, 1, BYTES, rig_wait(client, rig_get(client, KV, 1, 0, WAIT))));
    rig_lease_give(client, 0);
    assert_int_equal(fake->deletes, 1);
    rig_client_free(client);
    rig_free(rig);
}

/* A client that says so of a block that is whole costs a look, and the block stays; so does a bad
 * one of a volume without trailers, and one whose enclosure does not name records. */
static void only_what_the_agent_finds_bad_is_deleted(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(false, &client);
    struct key key;

    rig_flash(rig, 0, KV, 1, BYTES);
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0); /* not in the arena */
    rig_run(rig, 100 * RIG_MS);
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0); /* there */
    rig_run(rig, 100 * RIG_MS);
    assert_int_equal(rig->fake[0]->retrieves, 1);
    rig_flash(rig, 0, 1, 2, BYTES);
    (void)rig_op(client, SHM_OP_SUSPECT, 1, 2, 0);  /* volume "raw" */
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 3, 0); /* nobody has it */
    rig_run(rig, 100 * RIG_MS);
    assert_int_equal(rig->fake[0]->deletes, 0);
    assert_int_equal(rig_stats(rig)->checksum_errors, 0);
    rig_key(2, &key);
    assert_non_null(fake_target_find(rig->fake[0], 2, &key));
    assert_true(
        rig_value_is(client, KV, 1, BYTES, rig_wait(client, rig_get(client, KV, 1, 0, WAIT))));
    rig_lease_give(client, 0);
    assert_int_equal(rig->fake[0]->retrieves, 2);
    rig_client_free(client);
    rig_free(rig);
}

/* A damaged copy in the arena alone is forgotten; the block is whole where it is stored. */
static void a_copy_that_was_damaged_here_is_loaded_again(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(false, &client);
    uint32_t slot;
    struct key key;

    rig_flash(rig, 0, KV, 1, BYTES);
    assert_int_equal(rig_wait(client, rig_get(client, KV, 1, 0, WAIT))->status, ICMS_OK);
    rig_lease_give(client, 0);
    rig_key(1, &key);
    slot = agent_shard_find(&rig->agent->reactors[0].shards[KV], &key);
    agent_shard_memory(&rig->agent->reactors[0].shards[KV], slot)[100] ^= 1;
    (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0);
    assert_true(
        rig_value_is(client, KV, 1, BYTES, rig_wait(client, rig_get(client, KV, 1, 0, WAIT))));
    rig_lease_give(client, 0);
    assert_int_equal(rig->fake[0]->deletes, 0);
    assert_int_equal(rig_stats(rig)->checksum_errors, 1);
    rig_client_free(client);
    rig_free(rig);
}

/* Nobody here can tell whether it is whole, so it stays where it is, in the arena, too, whoever
 * suspects it; who asks for it judges it. A put that does not replace finds it, one that does
 * replaces it. */
static void a_value_of_another_version_is_passed_on_and_stays(void **state)
{
    uint8_t stored[BYTES + LIMIT_TRAILER_BYTES];

    for (int own = 0; own < 2; own++) {
        struct rig_client *client;
        struct agent_rig *rig = rig_up(own != 0, &client);

        make_version(stored, 1);
        store(rig, 1, stored, sizeof(stored));
        for (int again = 0; again < 2; again++) {
            (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0); /* not in the arena; there */
            rig_run(rig, 100 * RIG_MS);
            assert_true(is_stored(rig, 1));
            assert_true(rig_value_is(client, KV, 1, BYTES,
                                     rig_wait(client, rig_get(client, KV, 1, 0, WAIT))));
            rig_lease_give(client, 0);
        }
        assert_int_equal(put_if_absent(client, 1), ICMS_EXISTS);
        assert_int_equal(rig_stats(rig)->checksum_errors, 0);
        if (!own)
            assert_int_equal(rig->fake[0]->deletes, 0);
        assert_int_equal(
            rig_wait(client, rig_put(client, KV, 1, BYTES, SHM_FLAG_ON_FLASH, WAIT))->status,
            ICMS_OK);
        (void)rig_op(client, SHM_OP_SUSPECT, KV, 1, 0);
        rig_run(rig, 100 * RIG_MS);
        assert_true(
            rig_value_is(client, KV, 1, BYTES, rig_wait(client, rig_get(client, KV, 1, 0, WAIT))));
        rig_lease_give(client, 0);
        assert_int_equal(rig_stats(rig)->checksum_errors, 0);
        rig_client_free(client);
        rig_free(rig);
    }
}

/* Into the memory of who asks: the agent does not say that it has checked it. */
static void a_value_of_another_version_is_not_said_to_be_checked(void **state)
{
    uint8_t stored[BYTES + LIMIT_TRAILER_BYTES], to[BYTES], trailer[LIMIT_TRAILER_BYTES];
    struct rig_client *client;
    struct agent_rig *rig = rig_up(true, &client);
    const struct shm_complete *answer;

    agent_client_trust(rig->agent, client->attached.client); /* it is in this process */
    for (uint32_t n = 1; n <= 2; n++) {
        struct shm_submit entry = {.op = SHM_OP_GET,
                                   .flags = SHM_FLAG_DIRECT,
                                   .key_length = LIMIT_KEY_BYTES,
                                   .deadline_ns = rig_now_ns(rig) + WAIT,
                                   .offset = (uint64_t)(uintptr_t)to,
                                   .bytes = sizeof(to),
                                   .aside = (uint64_t)(uintptr_t)trailer,
                                   .lease = 300};
        struct key key;

        make_version(stored, n);
        if (n == 2) { /* the same of ours */
            rig_key(n, &key);
            sealed_trailer_make(&rig->volumes[KV].uuid, &key, rig_digest(n), BYTES,
                                crc32c(stored, BYTES), stored + BYTES);
        }
        store(rig, n, stored, sizeof(stored));
        rig_key(n, &key);
        memcpy(entry.key, key.bytes, sizeof(entry.key));
        answer = rig_wait(client, rig_submit(client, &entry));
        assert_int_equal(answer->status, ICMS_OK);
        assert_int_equal(answer->slot, SHM_SLOT_NONE);
        assert_int_equal(answer->checked, n == 2);
        assert_memory_equal(to, stored, BYTES);
        assert_memory_equal(trailer, stored + BYTES, LIMIT_TRAILER_BYTES);
    }
    assert_int_equal(rig_stats(rig)->checksum_errors, 0);
    rig_client_free(client);
    rig_free(rig);
}

/* A client of another version: it is refused, and nothing is damaged. */
static void a_put_of_another_version_is_refused_by_name(void **state)
{
    struct rig_client *client;
    struct agent_rig *rig = rig_up(false, &client);
    const struct shm_complete *answer;
    struct shm_submit entry = {.op = SHM_OP_PUT,
                               .bytes = BYTES,
                               .key_length = LIMIT_KEY_BYTES,
                               .deadline_ns = rig_now_ns(rig) + WAIT};
    struct key key;

    rig_key(1, &key);
    memcpy(entry.key, key.bytes, sizeof(entry.key));
    make_version(client->ring.staging, 1);
    answer = rig_wait(client, rig_submit(client, &entry));
    assert_int_equal(answer->status, ICMS_VERSION);
    assert_int_equal(answer->reason, ICMS_MISS_VERSION);
    assert_int_equal(rig_stats(rig)->checksum_errors, 0);
    assert_false(is_stored(rig, 1));
    rig_client_free(client);
    rig_free(rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_put_behind_a_suspicion_repairs_the_block),
        cmocka_unit_test(a_suspicion_about_a_block_that_is_not_in_the_arena_is_looked_into),
        cmocka_unit_test(a_value_without_a_trailer_is_deleted_unasked),
        cmocka_unit_test(a_suspicion_of_a_client_that_ends_is_looked_into),
        cmocka_unit_test(a_get_during_the_second_look_has_its_answer),
        cmocka_unit_test(a_record_that_was_replaced_is_kept),
        cmocka_unit_test(only_what_the_agent_finds_bad_is_deleted),
        cmocka_unit_test(a_copy_that_was_damaged_here_is_loaded_again),
        cmocka_unit_test(a_value_of_another_version_is_passed_on_and_stays),
        cmocka_unit_test(a_value_of_another_version_is_not_said_to_be_checked),
        cmocka_unit_test(a_put_of_another_version_is_refused_by_name),
    };

    return cmocka_run_group_tests_name("agent-repair", tests, NULL, NULL);
}
