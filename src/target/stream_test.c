/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large values, sent piece by piece while they are read: in order, checked before they leave, and
 * with an end that is true whatever happens in the middle. On simulated loops and drives; with two
 * loops of either, keys meet drives on the loop of their connection and on the other one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "target/target_test_rig.h"

#define LARGE ((uint32_t)(4 * MIB) + LIMIT_TRAILER_BYTES)
#define KEYS  4

/* A load whose first data came. */
struct load {
    struct rig *rig;
    uint16_t cid;
    uint32_t got;  /* bytes of data                            */
    uint32_t pdus; /* that it came in                         */
    bool last;     /* a PDU said that it ends the data          */
};

static uint8_t value[LARGE], back[LARGE], data[MIB];
static struct target_stats stats;

static void large_make(uint32_t n)
{
    uint64_t random = n;

    for (uint32_t i = 0; i < LARGE; i++) {
        if (i % 8 == 0)
            random = hash64_mix(random);
        value[i] = (uint8_t)(random >> i % 8 * 8);
    }
}

/* An enclosure with KEYS large values in its first volume. */
static struct rig *large_up(uint32_t loops, uint32_t drives)
{
    struct rig *rig = rig_new(loops, drives);
    struct nvme_cqe cqe;

    rig->opts.segment_bytes = 16 * MIB;
    rig->opts.nvmf.memory_bytes = loops * 32 * MIB;
    rig->volumes[0].value_bytes_max = 4 * MIB;
    for (uint32_t i = 0; i < drives; i++)
        rig->drives[i].bytes = 100 * MIB;
    rig_up(rig);
    for (uint32_t n = 0; n < KEYS; n++) {
        large_make(n);
        assert_int_equal(peer_store(rig->io, 1, key_text(n, 0), value, LARGE, 0, &cqe),
                         NVME_SC_SUCCESS);
    }
    return rig;
}

/* Receives the next PDU: its type. Data has to follow what came before. */
static uint8_t load_pdu(struct load *load, union nvme_tcp_pdu *out_pdu)
{
    uint32_t bytes;

    assert_int_equal(peer_recv_pdu(load->rig->io, out_pdu, data, sizeof(data), &bytes), PEER_PDU);
    if (out_pdu->common.type == NVME_TCP_C2H_DATA) {
        assert_false(load->last);
        assert_int_equal(le16_get(out_pdu->data.cid), load->cid);
        assert_int_equal(le32_get(out_pdu->data.offset), load->got);
        assert_true(load->got + bytes <= LARGE);
        memcpy(back + load->got, data, bytes);
        load->got += bytes;
        load->pdus++;
        load->last = (out_pdu->common.flags & NVME_TCP_FLAG_LAST) != 0;
    }
    return out_pdu->common.type;
}

/* Starts the load of key n and waits for its first data. time_left_us: as in NVME_ICMS_RETRIEVE; 0:
 * the standard's Retrieve. */
static void load_begin(struct load *load, struct rig *rig, uint32_t n, uint32_t time_left_us)
{
    struct nvme_kv_cmd cmd = {
        .opcode = time_left_us > 0 ? NVME_ICMS_RETRIEVE : NVME_KV_RETRIEVE,
        .nsid = 1,
        .key = peer_key(key_text(n, 0)),
        .bytes = LARGE,
        .time_left_us = time_left_us,
    };
    union nvme_tcp_pdu pdu;
    struct nvme_sqe_wf sqe;

    large_make(n);
    nvme_kv_cmd_encode(&cmd, &sqe);
    *load = (struct load){.rig = rig};
    load->cid = peer_submit(rig->io, &sqe, LARGE);
    assert_int_equal(load_pdu(load, &pdu), NVME_TCP_C2H_DATA);
    assert_false(load->last);
}

/* Waits for its completion; the data is what was stored, as far as it came. */
static void load_end(struct load *load, struct nvme_cqe *out_cqe)
{
    union nvme_tcp_pdu pdu;

    while (load_pdu(load, &pdu) == NVME_TCP_C2H_DATA)
        ;
    assert_int_equal(pdu.common.type, NVME_TCP_CAPSULE_RESP);
    nvme_cqe_decode(&pdu.resp.cqe, out_cqe);
    assert_int_equal(out_cqe->cid, load->cid);
    assert_memory_equal(back, value, load->got);
}

static void expect_all(struct load *load)
{
    struct nvme_cqe cqe;

    load_end(load, &cqe);
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(cqe.dw0, LARGE);
    assert_int_equal(load->got, LARGE);
    assert_true(load->last);
}

static void expect_part(struct load *load, enum icms_miss reason)
{
    struct nvme_cqe cqe;

    load_end(load, &cqe);
    assert_int_equal(cqe.status, NVME_SC_KV_NO_KEY);
    assert_int_equal(cqe.dw1, reason);
    assert_true(load->got < LARGE);
    assert_false(load->last);
}

static uint64_t reads(const struct rig *rig)
{
    uint64_t n = 0;

    target_stats(rig->target, &stats);
    for (uint32_t i = 0; i < rig->opts.drive_count; i++)
        n += stats.drives[i].store.reads;
    return n;
}

/* All buffers are back. */
static void expect_nothing_held(struct rig *rig)
{
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 2000000000);
    target_stats(rig->target, &stats);
    assert_int_equal(stats.nvmf.buffers_used_bytes, 0);
    for (uint32_t i = 0; i < rig->opts.drive_count; i++)
        assert_true(list_empty(&rig->target->drives[i].flying));
}

/* The drive that has value n when all are in service. */
static uint32_t value_drive(struct rig *rig, uint32_t n)
{
    struct key key = peer_key(key_text(n, 0));

    return place_rank(rig->target->map, place_slot(rig->target->map, &key, true), 0);
}

/* A byte of value n flips on that drive. */
static void value_flip(struct rig *rig, uint32_t n, uint32_t offset)
{
    uint64_t bytes;
    uint8_t *medium = sim_file_medium(rig->node, rig->paths[value_drive(rig, n)], &bytes);
    uint8_t *at;

    large_make(n);
    at = memmem(medium, bytes, value + offset, 64);
    assert_non_null(at);
    *at ^= 1;
}

/* The host has the first data while the drive still reads the last of it. */
static void the_first_data_leaves_before_the_last_is_read(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++) {
        struct rig *rig = large_up(loops, 2);
        struct load load;
        uint64_t before;

        sim_disk_slow(rig->node, 20);
        for (uint32_t n = 0; n < KEYS; n++) {
            before = reads(rig);
            load_begin(&load, rig, n, 0);
            assert_int_equal(reads(rig), before);
            expect_all(&load);
            assert_true(load.pdus > 5); /* not one, and then what fills a PDU */
            assert_int_equal(reads(rig), before + 1);
        }
        target_stats(rig->target, &stats);
        assert_int_equal(stats.nvmf.ops[NVMF_TARGET_RETRIEVE][ICMS_OK], KEYS);
        assert_int_equal(stats.nvmf.bytes_out, KEYS * (uint64_t)LARGE);
        assert_int_equal(stats.drives[0].read_ns.total + stats.drives[1].read_ns.total, KEYS);
        expect_nothing_held(rig);
        rig_free(&rig);
    }
}

/* The time that a load takes over the network. */
static uint64_t load_ns(struct rig *rig, uint32_t n)
{
    uint64_t begin_ns = sim_now_ns(rig->sim);
    struct load load;

    load_begin(&load, rig, n, 0);
    expect_all(&load);
    return sim_now_ns(rig->sim) - begin_ns;
}

/* The time that it takes without one. */
static uint64_t inside_ns(struct rig *rig, uint32_t n)
{
    uint64_t begin_ns = sim_now_ns(rig->sim), room = store_record_bytes(LARGE);
    struct inside inside = {0};

    inside.call.req = (struct nvmf_target_req){
        .op = NVMF_TARGET_RETRIEVE,
        .key = peer_key(key_text(n, 0)),
        .memory = aligned_alloc(LIMIT_DISK_ALIGN, room),
        .memory_bytes = room,
    };
    check(inside.call.req.memory != NULL);
    assert_int_equal(inside_run(rig, &inside), ICMS_OK);
    free(inside.call.req.memory);
    return sim_now_ns(rig->sim) - begin_ns;
}

/* With a disk about as fast as the network, a load takes much less than both take one after the
 * other: than the load inside, and one from a disk that takes hardly any time. */
static void disk_and_network_work_at_the_same_time(void **state)
{
    struct rig *rig = large_up(1, 1);

    for (uint32_t n = 0; n < KEYS; n++) {
        uint64_t wire_ns = load_ns(rig, n), disk_ns;

        sim_disk_slow(rig->node, 8);
        disk_ns = inside_ns(rig, n);
        assert_in_range(disk_ns, wire_ns / 2, wire_ns * 2);
        assert_true(load_ns(rig, n) < (disk_ns + wire_ns) * 8 / 10);
        sim_disk_slow(rig->node, 1);
    }
    rig_free(&rig);
}

/* What is before a bad piece may have come; the load is a miss with reason checksum, also when it
 * is asked for again, and the damage is counted once. */
static void a_bad_piece_in_the_middle_is_a_checksum_miss(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++) {
        struct rig *rig = large_up(loops, 2);
        struct load load;

        sim_disk_slow(rig->node, 20);
        for (uint32_t n = 0; n < KEYS; n++) {
            uint32_t bytes = LARGE, bad = (uint32_t)(2 * MIB) + n * 4096;
            struct nvme_cqe cqe;

            value_flip(rig, n, bad);
            load_begin(&load, rig, n, n % 2 == 0 ? 0 : 60000000);
            expect_part(&load, ICMS_MISS_CHECKSUM);
            assert_true(load.got <= bad);
            assert_int_equal(peer_retrieve(rig->io, 1, key_text(n, 0), back, &bytes, &cqe),
                             NVME_SC_KV_NO_KEY);
            assert_int_equal(cqe.dw1, ICMS_MISS_CHECKSUM);
            assert_int_equal(bytes, 0);
        }
        expect_nothing_held(rig);
        assert_int_equal(
            stats.drives[0].store.checksum_errors + stats.drives[1].store.checksum_errors, KEYS);
        assert_int_equal(stats.nvmf.misses[ICMS_MISS_CHECKSUM], 2 * KEYS);
        rig_free(&rig);
    }
}

/* Two drives have the same value, as one was out when it was stored again. Once some of it was sent
 * from the first, the second is not asked; it is for the next load. */
static void a_load_does_not_go_on_with_another_drive(void **state)
{
    struct rig *rig = large_up(1, 2);
    uint32_t first = value_drive(rig, 0);
    struct nvme_cqe cqe;
    struct load load;

    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[first], true);
    rig_up(rig);
    large_make(0);
    assert_int_equal(
        peer_store(rig->io, 1, key_text(0, 0), value, LARGE, NVME_KV_STORE_IF_ABSENT, &cqe),
        NVME_SC_SUCCESS);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[first], false);
    rig_up(rig);
    sim_disk_slow(rig->node, 20);
    assert_int_equal(value_drive(rig, 0), first);
    value_flip(rig, 0, (uint32_t)(2 * MIB));
    load_begin(&load, rig, 0, 0);
    expect_part(&load, ICMS_MISS_CHECKSUM);
    load_begin(&load, rig, 0, 0);
    expect_all(&load);
    expect_nothing_held(rig);
    rig_free(&rig);
}

static void a_drive_that_dies_in_the_middle_is_a_miss(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++) {
        struct rig *rig = large_up(loops, 2);
        struct load load;

        sim_disk_slow(rig->node, 20);
        load_begin(&load, rig, 0, 0);
        for (uint32_t i = 0; i < 2; i++)
            sim_disk_dead(rig->node, rig->paths[i], true);
        expect_part(&load, ICMS_MISS_DRIVE_DOWN);
        for (uint32_t i = 0; i < 2; i++)
            sim_disk_dead(rig->node, rig->paths[i], false);
        expect_nothing_held(rig);
        load_begin(&load, rig, 0, 0);
        expect_all(&load);
        rig_free(&rig);
    }
}

/* The drive reads into the buffer for a while; then that is free, and others are served. */
static void a_host_that_goes_in_the_middle_costs_nothing(void **state)
{
    for (uint32_t loops = 1; loops <= 2; loops++) {
        struct rig *rig = large_up(loops, 2);
        struct load load;
        struct loop_addr addr;

        nvmf_target_addr(target_nvmf(rig->target), 0, &addr);
        sim_disk_slow(rig->node, 20);
        for (uint32_t n = 0; n < KEYS; n++) {
            load_begin(&load, rig, n, 0);
            peer_free(&rig->io);
            target_stats(rig->target, &stats);
            assert_true(stats.nvmf.buffers_used_bytes >= LARGE);
            rig->io = peer_new_sim(rig->sim, rig->host, &addr);
            assert_non_null(rig->io);
            assert_true(peer_io(rig->io, rig->admin, (uint16_t)(2 + n), 0));
        }
        expect_nothing_held(rig);
        load_begin(&load, rig, 1, 0);
        expect_all(&load);
        rig_free(&rig);
    }
}

static uint32_t property(struct peer *admin, bool set, uint32_t offset, uint32_t what)
{
    struct nvme_property property = {.set = set, .offset = offset, .value = what};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_property_encode(&property, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    return cqe.dw0;
}

/* The controller is not reset before the drive is done with the buffer. */
static void a_reset_in_the_middle_waits_for_the_drive(void **state)
{
    struct rig *rig = large_up(2, 2);
    struct loop_addr addr;
    struct load load;

    nvmf_target_addr(target_nvmf(rig->target), 0, &addr);
    sim_disk_slow(rig->node, 100);
    for (uint32_t n = 0; n < KEYS; n++) {
        load_begin(&load, rig, n, 0);
        (void)property(rig->admin, true, NVME_REG_CC, NVME_CC_START & ~NVME_CC_ENABLE);
        assert_int_equal(property(rig->admin, false, NVME_REG_CSTS, 0), NVME_CSTS_READY);
        target_stats(rig->target, &stats);
        assert_true(stats.nvmf.buffers_used_bytes >= LARGE);
        peer_free(&rig->io);
        expect_nothing_held(rig);
        assert_int_equal(property(rig->admin, false, NVME_REG_CSTS, 0), 0);
        (void)property(rig->admin, true, NVME_REG_CC, NVME_CC_START);
        rig->io = peer_new_sim(rig->sim, rig->host, &addr);
        assert_non_null(rig->io);
        assert_true(peer_io(rig->io, rig->admin, 1, 0));
    }
    load_begin(&load, rig, 0, 0);
    expect_all(&load);
    rig_free(&rig);
}

/* A deadline that passes in the middle changes nothing of what is sent, and the drive counts as
 * late. */
static void a_deadline_in_the_middle_ends_with_the_whole_value(void **state)
{
    struct rig *rig = large_up(2, 2);
    uint64_t begin_ns;
    struct load load;
    uint32_t late = 0;

    sim_disk_slow(rig->node, 100);
    for (uint32_t n = 0; n < KEYS; n++) {
        begin_ns = sim_now_ns(rig->sim);
        load_begin(&load, rig, n, 100000);
        assert_true(sim_now_ns(rig->sim) < begin_ns + 100000000);
        expect_all(&load);
        assert_true(sim_now_ns(rig->sim) > begin_ns + 100000000);
        for (uint32_t i = 0; i < 2; i++)
            late += atomic_load(&rig->target->drives[i].lates);
        assert_true(late > n);
    }
    expect_nothing_held(rig);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_data_leaves_before_the_last_is_read),
        cmocka_unit_test(disk_and_network_work_at_the_same_time),
        cmocka_unit_test(a_bad_piece_in_the_middle_is_a_checksum_miss),
        cmocka_unit_test(a_load_does_not_go_on_with_another_drive),
        cmocka_unit_test(a_drive_that_dies_in_the_middle_is_a_miss),
        cmocka_unit_test(a_host_that_goes_in_the_middle_costs_nothing),
        cmocka_unit_test(a_reset_in_the_middle_waits_for_the_drive),
        cmocka_unit_test(a_deadline_in_the_middle_ends_with_the_whole_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
