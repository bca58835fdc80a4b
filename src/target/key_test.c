/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutations of one key that go to different drives: one after the other, bounded, and in time. On
 * simulated loops and drives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "target/target_test_rig.h"

#define SHARE (4 * MIB / TARGET_SHARE) /* of the memory of one loop */

/* A key, and its drives in order. */
struct place {
    struct key key;
    uint32_t drive[3];
};

static struct place place_of(struct rig *rig, uint32_t n)
{
    struct place place = {.key = peer_key(key_text(n, 0))};
    uint32_t slot = place_slot(rig->target->map, &place.key, true);

    for (uint32_t rank = 0; rank < rig->opts.drive_count; rank++)
        place.drive[rank] = place_rank(rig->target->map, slot, rank);
    return place;
}

/* Passed over; that it is slow for others, too, is up to the test. */
static void pass_over(struct rig *rig, uint32_t drive, bool over)
{
    uint32_t bit = (uint32_t)1 << drive;

    if (over)
        atomic_fetch_or(&rig->target->slow, bit);
    else
        atomic_fetch_and(&rig->target->slow, ~bit);
}

/* A call that begins now; a value of 1,000 bytes of this kind. */
static void begin(struct rig *rig, struct inside *inside, enum nvmf_target_op op,
                  const struct key *key, uint8_t value, uint64_t room)
{
    uint8_t *memory = aligned_alloc(LIMIT_DISK_ALIGN, bytes_align(room, LIMIT_DISK_ALIGN));

    check(memory != NULL);
    memset(memory, value, room);
    inside->target = rig->target;
    inside->over = false;
    inside->call.done = inside_done;
    inside->call.req = (struct nvmf_target_req){
        .op = op,
        .key = *key,
        .memory = memory,
        .memory_bytes = room,
        .value_bytes = 1000,
    };
    loop_send(target_loop(rig->target, 0), &inside->msg, inside_begin);
}

static void run_ms(struct rig *rig, uint64_t ms)
{
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + ms * 1000000);
}

/* Waits for calls, and frees what they had. */
static void finish(struct rig *rig, struct inside *inside, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        for (int n = 0; n < 10000 && !inside[i].over; n++)
            run_ms(rig, 10);
        assert_true(inside[i].over);
        free(inside[i].call.req.memory);
    }
    assert_int_equal(atomic_load(&rig->target->key_wait_bytes), 0);
}

/* On how many drives the key is; every one of them has this value. */
static uint32_t copies(struct rig *rig, const struct key *key, uint8_t value)
{
    struct inside inside = {.over = false};
    uint32_t count = 0, slow = atomic_load(&rig->target->slow);

    for (uint32_t i = 0; i < rig->opts.drive_count; i++)
        count += store_exists(rig->target->drives[i].store, 0, key, NULL);
    if (count == 0)
        return 0;
    atomic_store(&rig->target->slow, 0);
    begin(rig, &inside, NVMF_TARGET_RETRIEVE, key, 0, store_record_bytes(1000));
    for (int n = 0; n < 10000 && !inside.over; n++)
        run_ms(rig, 10);
    assert_true(inside.over);
    assert_int_equal(inside.call.req.err, ICMS_OK);
    assert_int_equal(inside.call.req.done_bytes, 1000);
    assert_int_equal(inside.call.req.value[0], value);
    free(inside.call.req.memory);
    atomic_store(&rig->target->slow, slow);
    return count;
}

/* An older value lies on the second drive of the key, which takes long to delete it. */
static struct place older_value(struct rig *rig, uint32_t n)
{
    struct place place = place_of(rig, n);
    struct inside inside = {.over = false};

    pass_over(rig, place.drive[0], true);
    begin(rig, &inside, NVMF_TARGET_STORE, &place.key, 1, store_record_bytes(1000));
    finish(rig, &inside, 1);
    pass_over(rig, place.drive[0], false);
    assert_true(store_exists(rig->target->drives[place.drive[1]].store, 0, &place.key, NULL));
    sim_file_slow(rig->node, rig->paths[place.drive[1]], 3000);
    return place;
}

/* The first mutation waits for the second drive to delete; what comes meanwhile goes to the third.
 */
static void meanwhile(struct rig *rig, const struct place *place)
{
    run_ms(rig, 5);
    pass_over(rig, place->drive[0], true);
    pass_over(rig, place->drive[1], true);
}

static void all_well(struct rig *rig, const struct place *place)
{
    sim_file_slow(rig->node, rig->paths[place->drive[1]], 1);
    pass_over(rig, place->drive[0], false);
    pass_over(rig, place->drive[1], false);
}

/* Each of them deletes the key on all drives but its own. */
static void two_stores_on_two_drives_leave_the_later_value(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops++) {
        struct rig *rig = rig_new(loops, 3);

        rig_up(rig);
        for (uint32_t n = 0; n < 6; n++) {
            struct place place = older_value(rig, n);
            struct inside inside[2] = {0};

            begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 2, store_record_bytes(1000));
            meanwhile(rig, &place);
            begin(rig, &inside[1], NVMF_TARGET_STORE, &place.key, 3, store_record_bytes(1000));
            finish(rig, inside, 2);
            assert_int_equal(inside[0].call.req.err, ICMS_OK);
            assert_int_equal(inside[1].call.req.err, ICMS_OK);
            assert_int_equal(copies(rig, &place.key, 3), 1);
            all_well(rig, &place);
        }
        rig_free(&rig);
    }
}

static void a_store_behind_a_delete_is_not_deleted(void **state)
{
    for (uint32_t loops = 1; loops <= 3; loops++) {
        struct rig *rig = rig_new(loops, 3);

        rig_up(rig);
        for (uint32_t n = 0; n < 6; n++) {
            struct place place = older_value(rig, n);
            struct inside inside[3] = {0};

            begin(rig, &inside[0], NVMF_TARGET_DELETE, &place.key, 0, LIMIT_DISK_ALIGN);
            meanwhile(rig, &place);
            begin(rig, &inside[1], NVMF_TARGET_STORE, &place.key, 3, store_record_bytes(1000));
            finish(rig, inside, 2);
            assert_int_equal(inside[0].call.req.err, ICMS_OK);
            assert_int_equal(inside[1].call.req.err, ICMS_OK);
            assert_int_equal(copies(rig, &place.key, 3), 1);
            all_well(rig, &place);
            /* and a delete behind a store finds what that wrote */
            pass_over(rig, place.drive[0], true);
            begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 4, store_record_bytes(1000));
            begin(rig, &inside[1], NVMF_TARGET_DELETE, &place.key, 0, LIMIT_DISK_ALIGN);
            begin(rig, &inside[2], NVMF_TARGET_DELETE, &place.key, 0, LIMIT_DISK_ALIGN);
            finish(rig, inside, 3);
            assert_int_equal(inside[0].call.req.err, ICMS_OK);
            assert_int_equal(inside[1].call.req.err, ICMS_OK);
            assert_int_equal(inside[2].call.req.err, ICMS_MISS);
            assert_int_equal(copies(rig, &place.key, 4), 0);
            pass_over(rig, place.drive[0], false);
        }
        rig_free(&rig);
    }
}

/* Conditions pass over a slow drive like all stores, and hold for stores that come together. */
static void conditions_hold_while_another_drive_stores_the_key(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct target_stats *stats = calloc(1, sizeof(*stats));

    check(stats != NULL);
    rig_up(rig);
    for (uint32_t n = 0; n < 6; n++) {
        struct place place = place_of(rig, n);
        struct inside inside[3] = {0};
        uint64_t reads, writes;

        sim_file_slow(rig->node, rig->paths[place.drive[0]], 3000);
        begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 2, store_record_bytes(1000));
        inside[0].call.req.options = NVMF_TARGET_IF_ABSENT;
        run_ms(rig, 5);
        pass_over(rig, place.drive[0], true);
        begin(rig, &inside[1], NVMF_TARGET_STORE, &place.key, 3, store_record_bytes(1000));
        inside[1].call.req.options = NVMF_TARGET_IF_ABSENT;
        finish(rig, inside, 2);
        assert_int_equal(inside[0].call.req.err, ICMS_OK);
        assert_int_equal(inside[1].call.req.err, ICMS_EXISTS);
        assert_int_equal(copies(rig, &place.key, 2), 1);
        /* what is there already costs no I/O, on a slow drive neither */
        target_stats(rig->target, stats);
        reads = stats->drives[place.drive[0]].store.reads;
        writes = stats->drives[place.drive[0]].store.device_write_bytes;
        begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 3, store_record_bytes(1000));
        inside[0].call.req.options = NVMF_TARGET_IF_ABSENT;
        run_ms(rig, 5);
        assert_true(inside[0].over);
        finish(rig, inside, 1);
        assert_int_equal(inside[0].call.req.err, ICMS_EXISTS);
        target_stats(rig->target, stats);
        assert_int_equal(stats->drives[place.drive[0]].store.reads, reads);
        assert_int_equal(stats->drives[place.drive[0]].store.device_write_bytes, writes);
        /* a new key does not wait for the slow drive */
        place.key = peer_key(key_text(n, 1)); /* of the same run */
        begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 5, store_record_bytes(1000));
        inside[0].call.req.options = NVMF_TARGET_IF_ABSENT;
        run_ms(rig, 5);
        assert_true(inside[0].over);
        finish(rig, inside, 1);
        assert_int_equal(inside[0].call.req.err, ICMS_OK);
        sim_file_slow(rig->node, rig->paths[place.drive[0]], 1);
        pass_over(rig, place.drive[0], false);
    }
    free(stats);
    rig_free(&rig);
}

/* What is offered again and again is in use: its segment stays while later ones are evicted. */
static void a_block_that_is_offered_again_stays(void **state)
{
    enum { BLOCKS = 100, BYTES = 200000 };
    struct rig *rig = rig_new(1, 1);
    struct nvme_cqe cqe;
    uint32_t left = 0;

    rig->drives[0].bytes = 12 * MIB;
    rig_up(rig);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        assert_int_equal(peer_store(rig->io, 1, key_text(i, 0), rig->value, BYTES, 0, &cqe),
                         NVME_SC_SUCCESS);
        assert_int_equal(peer_store(rig->io, 1, key_text(0, 0), rig->value, BYTES,
                                    NVME_KV_STORE_IF_ABSENT, &cqe),
                         NVME_SC_KV_EXISTS);
    }
    for (uint32_t i = 0; i < BLOCKS; i++)
        left += peer_exist(rig->io, 1, key_text(i, 0), &cqe) == NVME_SC_SUCCESS;
    assert_in_range(left, 2, BLOCKS / 2);
    rig_free(&rig);
}

/* What waits for a key holds buffers: a share of them, then stores are shed. */
static void what_waits_for_a_key_is_bounded(void **state)
{
    enum { WAIT = 3, SHED = 2, CALLS = 1 + WAIT + SHED };
    struct rig *rig = rig_new(1, 3);
    struct inside *inside = calloc(CALLS + 2, sizeof(*inside));
    struct place place;
    struct key other;

    check(inside != NULL);
    rig_up(rig);
    place = older_value(rig, 0);
    other = peer_key(key_text(0, 1)); /* the same run, so the same drives */
    for (uint32_t i = 0; i < CALLS; i++) {
        begin(rig, &inside[i], NVMF_TARGET_STORE, &place.key, (uint8_t)(10 + i), SHARE / WAIT);
        if (i == 0)
            meanwhile(rig, &place);
        run_ms(rig, 1);
        assert_int_equal(atomic_load(&rig->target->key_wait_bytes),
                         u64_min(i, WAIT) * (SHARE / WAIT));
        assert_int_equal(inside[i].over, i > WAIT);
    }
    for (uint32_t i = CALLS - SHED; i < CALLS; i++) {
        assert_int_equal(inside[i].call.req.err, ICMS_BUSY);
        assert_int_equal(inside[i].call.req.reason, ICMS_MISS_SHED);
    }
    /* another key of the run, and the same in another volume, wait for nobody */
    begin(rig, &inside[CALLS], NVMF_TARGET_STORE, &other, 7, SHARE / WAIT);
    begin(rig, &inside[CALLS + 1], NVMF_TARGET_STORE, &place.key, 7, SHARE / WAIT);
    inside[CALLS + 1].call.req.ns = 1;
    run_ms(rig, 5);
    assert_true(inside[CALLS].over && inside[CALLS + 1].over);
    assert_int_equal(inside[CALLS].call.req.err, ICMS_OK);
    assert_int_equal(inside[CALLS + 1].call.req.err, ICMS_OK);
    finish(rig, inside, CALLS + 2);
    for (uint32_t i = 0; i <= WAIT; i++)
        assert_int_equal(inside[i].call.req.err, ICMS_OK);
    assert_int_equal(copies(rig, &place.key, 10 + WAIT), 1);
    all_well(rig, &place);
    free(inside);
    rig_free(&rig);
}

/* A value that is larger than the share may wait when nothing else does. */
static void one_large_store_may_wait_for_a_key(void **state)
{
    struct rig *rig = rig_new(1, 3);
    struct inside inside[2] = {0};
    struct place place;

    rig_up(rig);
    place = older_value(rig, 0);
    begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 2, store_record_bytes(1000));
    meanwhile(rig, &place);
    begin(rig, &inside[1], NVMF_TARGET_STORE, &place.key, 3, 2 * SHARE);
    run_ms(rig, 5);
    assert_int_equal(atomic_load(&rig->target->key_wait_bytes), 2 * SHARE);
    finish(rig, inside, 2);
    assert_int_equal(inside[1].call.req.err, ICMS_OK);
    assert_int_equal(copies(rig, &place.key, 3), 1);
    all_well(rig, &place);
    rig_free(&rig);
}

/* Whose deadline passed while it waited changes nothing; the next one goes on. */
static void what_waited_too_long_for_a_key_is_not_begun(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct inside inside[4] = {0};
    struct place place;

    rig_up(rig);
    place = older_value(rig, 0);
    begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 2, store_record_bytes(1000));
    meanwhile(rig, &place);
    for (uint32_t i = 1; i < 4; i++) {
        begin(rig, &inside[i], i == 2 ? NVMF_TARGET_DELETE : NVMF_TARGET_STORE, &place.key, 3,
              store_record_bytes(1000));
        inside[i].call.req.deadline_ns = i < 3 ? sim_now_ns(rig->sim) + 1000000 : 0;
        inside[i].call.req.options = i == 3 ? NVMF_TARGET_IF_ABSENT : 0;
    }
    finish(rig, inside, 4);
    for (uint32_t i = 1; i < 3; i++) {
        assert_int_equal(inside[i].call.req.err, ICMS_DEADLINE);
        assert_int_equal(inside[i].call.req.reason, ICMS_MISS_DEADLINE);
    }
    assert_int_equal(inside[3].call.req.err, ICMS_EXISTS);
    assert_int_equal(copies(rig, &place.key, 2), 1);
    all_well(rig, &place);
    rig_free(&rig);
}

/* A drive that goes out of service under the first of them: the next one has its turn all the same,
 * and so has a target that is stopped, or loses a connection, while some wait. */
static void a_key_is_released_whatever_its_mutation_meets(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct inside inside[3] = {0};
    struct place place;

    rig_up(rig);
    place = older_value(rig, 0);
    begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 2, store_record_bytes(1000));
    meanwhile(rig, &place);
    begin(rig, &inside[1], NVMF_TARGET_STORE, &place.key, 3, store_record_bytes(1000));
    begin(rig, &inside[2], NVMF_TARGET_STORE, &place.key, 4, store_record_bytes(1000));
    run_ms(rig, 5);
    for (uint32_t i = 0; i < 3; i++)
        sim_disk_dead(rig->node, rig->paths[i], true);
    finish(rig, inside, 3);
    for (uint32_t i = 1; i < 3; i++) /* the first one was written before */
        assert_int_not_equal(inside[i].call.req.err, ICMS_OK);
    for (uint32_t i = 0; i < 3; i++)
        sim_disk_dead(rig->node, rig->paths[i], false);
    all_well(rig, &place);
    rig_down(rig);
    rig_up(rig);
    place = older_value(rig, 1);
    /* over the network: the host leaves while its stores wait */
    memset(rig->value, 9, 1000);
    for (int i = 0; i < 4; i++) {
        struct nvme_kv_cmd cmd = {
            .opcode = NVME_KV_STORE, .nsid = 1, .key = place.key, .bytes = 1000};
        struct nvme_sgl sgl = {.in_capsule = true, .bytes = 1000};
        struct nvme_sqe_wf sqe;
        union nvme_tcp_pdu pdu;

        nvme_kv_cmd_encode(&cmd, &sqe);
        sqe.cid = le16_of(rig->io->cid++);
        nvme_sgl_encode(&sgl, &sqe.sgl);
        nvme_tcp_cmd_encode(&pdu, &sqe);
        assert_true(peer_send_pdu(rig->io, &pdu, rig->value, 1000));
        run_ms(rig, 5);
    }
    assert_true(atomic_load(&rig->target->key_wait_bytes) > 0);
    peer_free(&rig->io);
    peer_free(&rig->admin);
    for (int i = 0; i < 1000 && !nvmf_target_idle(target_nvmf(rig->target)); i++)
        run_ms(rig, 10);
    assert_true(nvmf_target_idle(target_nvmf(rig->target)));
    assert_int_equal(atomic_load(&rig->target->key_wait_bytes), 0);
    all_well(rig, &place);
    begin(rig, &inside[0], NVMF_TARGET_STORE, &place.key, 5, store_record_bytes(1000));
    finish(rig, inside, 1);
    assert_int_equal(copies(rig, &place.key, 5), 1);
    /* and the target stops while some wait */
    place = older_value(rig, 2);
    for (uint32_t i = 0; i < 3; i++)
        begin(rig, &inside[i], NVMF_TARGET_STORE, &place.key, 6, store_record_bytes(1000));
    run_ms(rig, 5);
    assert_true(atomic_load(&rig->target->key_wait_bytes) > 0);
    target_stop(rig->target);
    target_free(&rig->target);
    for (uint32_t i = 0; i < 3; i++)
        free(inside[i].call.req.memory);
    rig_free(&rig);
}

/* ---- deletions of one record ------------------------------------------------------------------
 */

/* The record that a host's Retrieve read. */
static uint32_t record_of(struct rig *rig, const char *key)
{
    uint32_t bytes = VALUE_MAX;
    struct nvme_cqe cqe;

    assert_int_equal(peer_retrieve(rig->io, 1, key, rig->back, &bytes, &cqe), NVME_SC_SUCCESS);
    assert_int_not_equal(cqe.dw1, 0);
    return cqe.dw1;
}

static uint16_t delete_record(struct rig *rig, const char *key, uint32_t record)
{
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_ICMS_DELETE, .nsid = 1, .key = peer_key(key), .record = record};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    assert_true(peer_plain(rig->io, &sqe, &cqe));
    return cqe.status;
}

/* On whichever drive it is; never the one that replaced it, though it has the same bytes. */
static void a_delete_of_one_record_deletes_no_other(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct nvme_cqe cqe;

    rig_up(rig);
    for (uint32_t n = 0; n < 12; n++) {
        const char *key = key_text(n, 0);
        struct place place = place_of(rig, n);
        uint32_t old, now;

        pass_over(rig, place.drive[0], n % 2 == 0);
        assert_int_equal(put(rig, 1, key, n), NVME_SC_SUCCESS);
        old = record_of(rig, key);
        assert_int_equal(record_of(rig, key), old);
        pass_over(rig, place.drive[0], n % 3 == 0);
        assert_int_equal(put(rig, 1, key, n), NVME_SC_SUCCESS);
        now = record_of(rig, key);
        assert_int_not_equal(now, old);
        pass_over(rig, place.drive[0], false);
        assert_int_equal(delete_record(rig, key, old), NVME_SC_KV_NO_KEY);
        assert_int_equal(delete_record(rig, key, now + 1), NVME_SC_KV_NO_KEY);
        assert_int_equal(get(rig, 1, key, n, &cqe), NVME_SC_SUCCESS);
        assert_int_equal(delete_record(rig, key, now), NVME_SC_SUCCESS);
        assert_int_equal(delete_record(rig, key, now), NVME_SC_KV_NO_KEY);
        assert_int_equal(peer_exist(rig->io, 1, key, &cqe), NVME_SC_KV_NO_KEY);
        /* the standard's Delete asks for nothing, and deletes what is there */
        assert_int_equal(put(rig, 1, key, n), NVME_SC_SUCCESS);
        assert_int_equal(peer_delete(rig->io, 1, key, &cqe), NVME_SC_SUCCESS);
        assert_int_equal(peer_exist(rig->io, 1, key, &cqe), NVME_SC_KV_NO_KEY);
    }
    rig_free(&rig);
}

/* A host of the standard may leave what it likes in the reserved dwords of a Delete. */
static void a_standard_delete_has_no_record(void **state)
{
    struct rig *rig = rig_new(1, 1);
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_DELETE, .nsid = 1, .key = peer_key("k")};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    rig_up(rig);
    assert_int_equal(put(rig, 1, "k", 1), NVME_SC_SUCCESS);
    nvme_kv_cmd_encode(&cmd, &sqe);
    sqe.cdw12 = le32_of(77);
    assert_true(peer_plain(rig->io, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(peer_exist(rig->io, 1, "k", &cqe), NVME_SC_KV_NO_KEY);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_stores_on_two_drives_leave_the_later_value),
        cmocka_unit_test(a_store_behind_a_delete_is_not_deleted),
        cmocka_unit_test(conditions_hold_while_another_drive_stores_the_key),
        cmocka_unit_test(a_block_that_is_offered_again_stays),
        cmocka_unit_test(what_waits_for_a_key_is_bounded),
        cmocka_unit_test(one_large_store_may_wait_for_a_key),
        cmocka_unit_test(what_waited_too_long_for_a_key_is_not_begun),
        cmocka_unit_test(a_key_is_released_whatever_its_mutation_meets),
        cmocka_unit_test(a_delete_of_one_record_deletes_no_other),
        cmocka_unit_test(a_standard_delete_has_no_record),
    };

    return cmocka_run_group_tests_name("target-keys", tests, NULL, NULL);
}
