/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts that move their data slowly, but do move it: what they hold is bounded in bytes and in
 * time, other hosts are served, and a host that is merely waited for by a drive is left alone.
 */
#include <stdio.h>

#include "nvmf/target/target_test.h"

#define MIB        ((uint32_t)1 << 20)
#define SLOW_HOSTS 5

/* A host of its own: an admin queue and I/O queues. */
struct slow_host {
    struct peer *admin;
    struct peer *io[4];
};

static struct slow_host host_new(struct rig *rig, int number, int queues)
{
    struct slow_host host = {.admin = rig_peer(rig)};

    snprintf(host.admin->host, sizeof(host.admin->host), "nqn.2026-01.io.icms:host%d", number);
    assert_true(peer_admin(host.admin, 0));
    for (int i = 0; i < queues; i++) {
        host.io[i] = rig_peer(rig);
        memcpy(host.io[i]->host, host.admin->host, sizeof(host.admin->host));
        assert_true(peer_io(host.io[i], host.admin, (uint16_t)(i + 1), 0));
    }
    return host;
}

static void host_free(struct slow_host *host)
{
    for (int i = 0; i < 4; i++)
        peer_free(&host->io[i]);
    peer_free(&host->admin);
}

static struct nvme_sqe_wf command(uint8_t opcode, uint32_t bytes)
{
    struct nvme_kv_cmd cmd = {
        .opcode = opcode, .nsid = 1, .key = peer_key("value"), .bytes = bytes};
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    return sqe;
}

static void submit(struct peer *io, uint8_t opcode, uint32_t bytes, int count)
{
    for (int i = 0; i < count; i++) {
        struct nvme_sqe_wf sqe = command(opcode, bytes);

        (void)peer_submit(io, &sqe, bytes);
    }
}

static void keep_value(struct rig *rig, uint32_t bytes)
{
    struct slow_host host = host_new(rig, 99, 1);
    uint8_t *value = calloc(1, bytes);
    struct nvme_cqe cqe;

    assert_int_equal(peer_store(host.io[0], 1, "value", value, bytes, 0, &cqe), NVME_SC_SUCCESS);
    free(value);
    host_free(&host);
}

/* Takes data up to the next completion. */
static void expect_completion(struct peer *io)
{
    uint8_t *data = malloc(MIB);
    union nvme_tcp_pdu pdu;
    uint32_t bytes;

    do
        assert_int_equal(peer_recv_pdu(io, &pdu, data, MIB, &bytes), PEER_PDU);
    while (pdu.common.type != NVME_TCP_CAPSULE_RESP);
    assert_int_equal(le16_get(pdu.resp.cqe.status) >> 1, NVME_SC_SUCCESS);
    free(data);
}

static uint64_t used_bytes(struct rig *rig)
{
    struct nvmf_target_stats stats;

    rig_stats(rig, &stats);
    return stats.buffers_used_bytes;
}

/* Reads a little, as it comes; false: the connection is over. */
static bool take(struct peer *io, uint32_t bytes)
{
    uint8_t memory[4096];

    return io->wire->recv(io, memory, bytes < sizeof(memory) ? bytes : sizeof(memory), 10) != 0;
}

static void a_host_is_served_while_others_take_their_data_slowly(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct slow_host slow[SLOW_HOSTS], host;
    uint8_t *value = malloc(MIB);
    struct nvme_cqe cqe;
    uint32_t bytes = MIB;

    keep_value(rig, MIB);
    for (int i = 0; i < SLOW_HOSTS; i++) {
        slow[i] = host_new(rig, i, 1);
        submit(slow[i].io[0], NVME_KV_RETRIEVE, MIB, 30);
    }
    for (int second = 0; second < 5; second++) {
        for (int i = 0; i < SLOW_HOSTS; i++)
            assert_true(take(slow[i].io[0], 512));
        rig_run(rig, 1000);
    }
    assert_true(used_bytes(rig) >= (uint64_t)20 * MIB);
    host = host_new(rig, SLOW_HOSTS, 1);
    host.io[0]->timeout_ms = 500;
    for (int i = 0; i < 10; i++) {
        bytes = MIB;
        assert_int_equal(peer_retrieve(host.io[0], 1, "value", value, &bytes, &cqe),
                         NVME_SC_SUCCESS);
        assert_int_equal(bytes, MIB);
        assert_int_equal(peer_store(host.io[0], 1, "other", value, MIB, 0, &cqe), NVME_SC_SUCCESS);
    }
    host_free(&host);
    for (int i = 0; i < SLOW_HOSTS; i++)
        host_free(&slow[i]);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

static void a_host_is_served_while_others_owe_the_data_of_stores(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct slow_host slow[SLOW_HOSTS], host;
    uint8_t *value = calloc(1, MIB);
    struct nvme_cqe cqe;

    for (int i = 0; i < SLOW_HOSTS; i++) {
        slow[i] = host_new(rig, i, 1);
        submit(slow[i].io[0], NVME_KV_STORE, MIB, 30);
    }
    rig_run(rig, 1000);
    assert_true(used_bytes(rig) >= (uint64_t)16 * MIB);
    host = host_new(rig, SLOW_HOSTS, 1);
    host.io[0]->timeout_ms = 500;
    for (int i = 0; i < 10; i++)
        assert_int_equal(peer_store(host.io[0], 1, "value", value, MIB, 0, &cqe), NVME_SC_SUCCESS);
    host_free(&host);
    for (int i = 0; i < SLOW_HOSTS; i++)
        host_free(&slow[i]);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

static void one_host_gets_half_however_many_queues_it_has(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct slow_host host;
    struct nvmf_target_stats stats;
    uint8_t *data = malloc(PEER_BUFFER_BYTES);
    uint64_t pool, taken = 0;
    uint32_t turns = 0;

    keep_value(rig, MIB);
    rig_stats(rig, &stats);
    pool = stats.buffers_bytes;
    host = host_new(rig, 1, 4);
    submit(host.io[0], NVME_KV_RETRIEVE, MIB, 12);
    rig_run(rig, 100);
    assert_in_range(used_bytes(rig), 12 * (uint64_t)MIB, pool / 2);
    for (int i = 1; i < 4; i++)
        submit(host.io[i], NVME_KV_RETRIEVE, MIB, 12);
    rig_run(rig, 100);
    assert_in_range(used_bytes(rig), pool / 2 - 2 * (uint64_t)MIB, pool / 2);
    /* All of it is served in the end, to a host that takes what comes on each queue. */
    while (taken < (uint64_t)4 * 12 * MIB)
        for (int i = 0; i < 4; i++) {
            long got = host.io[i]->wire->recv(host.io[i], data, PEER_BUFFER_BYTES, 5);

            assert_true(got != 0 && ++turns < 100000);
            taken += got > 0 ? (uint64_t)got : 0;
        }
    free(data);
    host_free(&host);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void expect_slow(struct rig *rig, uint64_t count, const char *hostnqn)
{
    struct nvmf_target_stats stats;
    char name[LIMIT_NQN_BYTES];

    rig_stats(rig, &stats);
    nvmf_target_slow_host(rig->target, name);
    assert_int_equal(stats.slow_hosts, count);
    assert_string_equal(name, hostnqn);
}

static void a_reader_that_trickles_is_cut_off_in_time(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct slow_host host;
    int seconds = 0;

    keep_value(rig, MIB);
    expect_slow(rig, 0, "");
    host = host_new(rig, 1, 1);
    submit(host.io[0], NVME_KV_RETRIEVE, MIB, 8);
    while (take(host.io[0], 4096) && used_bytes(rig) > 0 && ++seconds < 60)
        rig_run(rig, 1000);
    /* The eight of them are what it is waited for. */
    assert_in_range(seconds, LIMIT_DATA_SECONDS, LIMIT_DATA_SECONDS + 10);
    expect_slow(rig, 1, "nqn.2026-01.io.icms:host1");
    assert_int_equal(used_bytes(rig), 0);
    host_free(&host);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_sender_that_trickles_is_cut_off_in_time(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct slow_host host = host_new(rig, 1, 1);
    union nvme_tcp_pdu pdu;
    uint32_t bytes, seconds = 0;
    uint16_t ttag;

    submit(host.io[0], NVME_KV_STORE, MIB, 1);
    assert_int_equal(peer_recv_pdu(host.io[0], &pdu, NULL, 0, &bytes), PEER_PDU);
    assert_int_equal(pdu.common.type, NVME_TCP_R2T);
    ttag = le16_get(pdu.r2t.ttag);
    while (used_bytes(rig) > 0 && seconds < 60) {
        nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, 0, (uint16_t)(host.io[0]->cid - 1), ttag,
                             4 * seconds++, 4);
        (void)peer_send_pdu(host.io[0], &pdu, "word", 4);
        rig_run(rig, 1000);
    }
    assert_in_range(seconds, LIMIT_DATA_SECONDS, LIMIT_DATA_SECONDS + 4);
    expect_slow(rig, 1, "nqn.2026-01.io.icms:host1");
    host_free(&host);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* 1.3 MB/s, with eight values outstanding. */
static void a_host_at_the_least_rate_is_left_alone(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct slow_host host;
    uint8_t *data = malloc(MIB);

    keep_value(rig, MIB);
    host = host_new(rig, 1, 1);
    submit(host.io[0], NVME_KV_RETRIEVE, MIB, 30);
    for (uint32_t taken = 0; taken < 29 * MIB;) {
        long got = host.io[0]->wire->recv(host.io[0], data, PEER_BUFFER_BYTES, 1000);

        assert_true(got > 0);
        taken += (uint32_t)got;
        rig_run(rig, (uint32_t)got / 1300);
    }
    expect_slow(rig, 0, "");
    host_free(&host);
    rig_expect_clean(rig);
    free(data);
    rig_free(&rig);
}

/* Commands that a drive keeps, and a stream that we do not read meanwhile, are not the host's. */
static void a_host_that_is_kept_waiting_is_left_alone(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct slow_host host;

    keep_value(rig, MIB);
    host = host_new(rig, 1, 1);
    rig->hold = true;
    submit(host.io[0], NVME_KV_RETRIEVE, MIB, 8);
    rig_run(rig, 60000);
    expect_slow(rig, 0, "");
    rig_let_go(rig);
    for (int i = 0; i < 8; i++)
        expect_completion(host.io[0]);
    expect_slow(rig, 0, "");
    host_free(&host);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_is_served_while_others_take_their_data_slowly),
        cmocka_unit_test(a_host_is_served_while_others_owe_the_data_of_stores),
        cmocka_unit_test(one_host_gets_half_however_many_queues_it_has),
        cmocka_unit_test(a_reader_that_trickles_is_cut_off_in_time),
        cmocka_unit_test(a_sender_that_trickles_is_cut_off_in_time),
        cmocka_unit_test(a_host_at_the_least_rate_is_left_alone),
        cmocka_unit_test(a_host_that_is_kept_waiting_is_left_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
