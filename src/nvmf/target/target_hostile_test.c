/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that break the protocol, stall, flood or lie: each gets the right TermReq or status or is
 * dropped, nothing is left over, and polite hosts do not notice.
 */
#include "base/bytes.h"
#include "base/hash.h"
#include "nvmf/target/target_int.h"
#include "nvmf/target/target_test.h"

#define HDGST NVME_TCP_FLAG_HDGST
#define DDGST NVME_TCP_FLAG_DDGST

/* The target ends the connection with a TermReq of this status. */
static void expect_term(struct peer *peer, enum nvme_tcp_fes fes)
{
    union nvme_tcp_pdu pdu;
    struct nvme_tcp_bad bad;
    uint8_t data[NVME_TCP_TERM_DATA_MAX];
    uint32_t bytes;

    do
        assert_int_equal(peer_recv_pdu(peer, &pdu, data, sizeof(data), &bytes), PEER_PDU);
    while (pdu.common.type == NVME_TCP_CAPSULE_RESP || pdu.common.type == NVME_TCP_R2T);
    assert_int_equal(pdu.common.type, NVME_TCP_C2H_TERM);
    nvme_tcp_term_decode(&pdu, &bad);
    assert_int_equal(bad.fes, fes);
    assert_int_equal(peer_recv_pdu(peer, &pdu, data, sizeof(data), &bytes), PEER_CLOSED);
}

static void expect_closed(struct peer *peer)
{
    union nvme_tcp_pdu pdu;
    uint8_t data[4096];
    uint32_t bytes;
    enum peer_got got;

    do
        got = peer_recv_pdu(peer, &pdu, data, sizeof(data), &bytes);
    while (got == PEER_PDU);
    assert_int_equal(got, PEER_CLOSED);
}

static struct nvme_sqe_wf store_sqe(const char *key, uint32_t bytes)
{
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_KV_STORE, .nsid = 1, .key = peer_key(key), .bytes = bytes};
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    return sqe;
}

static void the_first_pdu_has_to_be_a_good_icreq(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    union nvme_tcp_pdu pdu;
    struct nvme_sqe_wf sqe = store_sqe("k", 10);
    struct peer *peer = rig_peer(rig);

    nvme_tcp_cmd_encode(&pdu, &sqe);
    assert_true(peer_send_pdu(peer, &pdu, NULL, 0));
    expect_term(peer, NVME_TCP_FES_SEQUENCE);
    peer_free(&peer);
    peer = rig_peer(rig);
    nvme_tcp_ic_req_encode(&pdu, 0, 0, 1);
    pdu.ic.pfv = le16_of(1);
    assert_true(peer_send_pdu(peer, &pdu, NULL, 0));
    expect_term(peer, NVME_TCP_FES_UNSUPPORTED);
    peer_free(&peer);
    peer = rig_peer(rig);
    assert_true(peer_hello(peer, 0));
    nvme_tcp_ic_req_encode(&pdu, 0, 0, 1);
    assert_true(peer_send_pdu(peer, &pdu, NULL, 0));
    expect_term(peer, NVME_TCP_FES_SEQUENCE);
    peer_free(&peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void lengths_that_lie_end_the_connection(void **state)
{
    static const struct {
        uint8_t at;
        uint8_t value;
    } lies[] = {
        {0, 0x42},         /* type                                    */
        {0, NVME_TCP_R2T}, /* a type that only we may send     */
        {2, 71},           /* header too short                        */
        {2, 255},          /* too long                                */
        {4, 8},            /* the whole shorter than the header       */
        {7, 0x7f},         /* two gigabytes                           */
    };
    struct rig *rig = rig_new(1, NULL);

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct peer *peer = rig_admin(rig, 0);
        struct nvme_sqe_wf sqe;
        union nvme_tcp_pdu pdu;
        union nvme_tcp_pdu got;
        struct nvme_tcp_bad bad;
        uint8_t data[NVME_TCP_TERM_DATA_MAX];
        uint32_t bytes;

        nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &sqe);
        nvme_tcp_cmd_encode(&pdu, &sqe);
        nvme_tcp_frame_encode(&pdu, 0, 0, 0);
        pdu.bytes[lies[i].at] = lies[i].value;
        assert_true(peer_send_bytes(peer, pdu.bytes, sizeof(pdu.cmd)));
        assert_int_equal(peer_recv_pdu(peer, &got, data, sizeof(data), &bytes), PEER_PDU);
        assert_int_equal(got.common.type, NVME_TCP_C2H_TERM);
        nvme_tcp_term_decode(&got, &bad);
        assert_in_range(bad.fes, NVME_TCP_FES_HEADER, NVME_TCP_FES_UNSUPPORTED);
        /* It comes with the header that was wrong. */
        assert_memory_equal(data, pdu.bytes, 8);
        peer_free(&peer);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_wrong_header_digest_ends_the_connection(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *peer = rig_admin(rig, HDGST);
    struct nvme_sqe_wf sqe;
    union nvme_tcp_pdu pdu;
    uint32_t head;

    nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &sqe);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    head = nvme_tcp_frame_encode(&pdu, 0, HDGST, 0);
    pdu.bytes[head - 1] ^= 1;
    assert_true(peer_send_bytes(peer, pdu.bytes, head));
    expect_term(peer, NVME_TCP_FES_HDGST);
    peer_free(&peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Sends a PDU whose data digest is wrong. */
static void send_bad_digest(struct peer *peer, union nvme_tcp_pdu *pdu, const uint8_t *data,
                            uint32_t bytes)
{
    uint32_t head = nvme_tcp_frame_encode(pdu, bytes, peer->digests, 0);
    uint8_t digest[4] = {1, 2, 3, 4};

    assert_true(peer_send_bytes(peer, pdu->bytes, head));
    assert_true(peer_send_bytes(peer, data, bytes));
    assert_true(peer_send_bytes(peer, digest, 4));
}

static void a_wrong_data_digest_fails_the_command_alone(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, DDGST);
    struct peer *io = rig_io(rig, admin, 1, DDGST);
    uint8_t value[16384] = {1, 2, 3};
    struct nvme_sqe_wf sqe = store_sqe("k", 4000);
    struct nvme_sgl sgl = {.in_capsule = true, .bytes = 4000};
    struct nvmf_target_stats stats;
    union nvme_tcp_pdu pdu;
    struct nvme_cqe cqe;
    uint32_t bytes;
    uint16_t cid;

    nvme_sgl_encode(&sgl, &sqe.sgl);
    sqe.cid = le16_of(500);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    send_bad_digest(io, &pdu, value, 4000);
    assert_true(peer_complete(io, 500, NULL, 0, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_TRANSPORT);
    assert_false(cqe.dnr);
    sqe = store_sqe("k", sizeof(value));
    cid = peer_submit(io, &sqe, sizeof(value));
    assert_int_equal(peer_recv_pdu(io, &pdu, NULL, 0, &bytes), PEER_PDU);
    assert_int_equal(pdu.common.type, NVME_TCP_R2T);
    {
        uint16_t ttag = le16_get(pdu.r2t.ttag);

        nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, 0, cid, ttag, 0, 8192);
        send_bad_digest(io, &pdu, value, 8192);
        nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, NVME_TCP_FLAG_LAST, cid, ttag, 8192, 8192);
        assert_true(peer_send_pdu(io, &pdu, value + 8192, 8192));
    }
    assert_true(peer_complete(io, cid, NULL, 0, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_TRANSPORT);
    assert_int_equal(rig->executed, 0);
    assert_int_equal(peer_store(io, 1, "k", value, sizeof(value), 0, &cqe), NVME_SC_SUCCESS);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_stats(rig, &stats);
    assert_int_equal(stats.digest_errors, 2);
    rig_free(&rig);
}

enum bad_data {
    BAD_TTAG,
    BAD_TTAG_FAR,
    BAD_CID,
    BAD_OFFSET,
    BAD_LENGTH,
    BAD_LENGTH_PDU,
    BAD_NONE_ASKED,
    BAD_COUNT,
};

static void data_that_nobody_asked_for_ends_the_connection(void **state)
{
    static const enum nvme_tcp_fes expected[BAD_COUNT] = {
        [BAD_TTAG] = NVME_TCP_FES_HEADER,       [BAD_TTAG_FAR] = NVME_TCP_FES_HEADER,
        [BAD_CID] = NVME_TCP_FES_HEADER,        [BAD_OFFSET] = NVME_TCP_FES_RANGE,
        [BAD_LENGTH] = NVME_TCP_FES_RANGE,      [BAD_LENGTH_PDU] = NVME_TCP_FES_LIMIT,
        [BAD_NONE_ASKED] = NVME_TCP_FES_HEADER,
    };
    struct rig *rig = rig_new(1, NULL);
    uint8_t *value = NULL;

    for (int bad = 0; bad < BAD_COUNT; bad++) {
        struct peer *admin = rig_admin(rig, 0);
        struct peer *io = rig_io(rig, admin, 1, 0);
        uint32_t asked = bad == BAD_LENGTH_PDU ? 2 * io->h2c_max : 16384;
        struct nvme_sqe_wf sqe = store_sqe("k", asked);
        uint32_t length = bad == BAD_LENGTH       ? asked + 4
                          : bad == BAD_LENGTH_PDU ? io->h2c_max + 4
                                                  : 4096;
        union nvme_tcp_pdu pdu;
        uint16_t cid = 0;
        uint16_t ttag = 0;
        uint32_t bytes;

        value = realloc(value, length);
        assert_non_null(value);
        memset(value, 0, length);
        if (bad != BAD_NONE_ASKED) {
            cid = peer_submit(io, &sqe, asked);
            assert_int_equal(peer_recv_pdu(io, &pdu, NULL, 0, &bytes), PEER_PDU);
            ttag = le16_get(pdu.r2t.ttag);
        }
        nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, 0, bad == BAD_CID ? (uint16_t)(cid + 1) : cid,
                             bad == BAD_TTAG       ? (uint16_t)(ttag ^ 1)
                             : bad == BAD_TTAG_FAR ? 60000
                                                   : ttag,
                             bad == BAD_OFFSET ? 4096 : 0, length);
        (void)peer_send_pdu(io, &pdu, value, length);
        expect_term(io, expected[bad]);
        peer_free(&io);
        peer_free(&admin);
    }
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

static void more_commands_than_the_queue_has_entries_end_the_connection(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_EXIST, .nsid = 1, .key = peer_key("k")};
    struct nvme_sqe_wf sqe;

    rig->hold = true;
    nvme_kv_cmd_encode(&cmd, &sqe);
    for (int i = 0; i < 33; i++)
        (void)peer_submit(io, &sqe, 0);
    expect_term(io, NVME_TCP_FES_LIMIT);
    assert_int_equal(rig->held_count, 32);
    rig_let_go(rig);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void command_ids_need_not_be_unique(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    uint8_t value[20000] = {5};
    struct nvme_cqe cqe;

    for (int i = 0; i < 4; i++) {
        struct nvme_sqe_wf sqe = store_sqe("k", sizeof(value));

        io->cid = 9;
        (void)peer_submit(io, &sqe, sizeof(value));
    }
    for (int i = 0; i < 4; i++) {
        assert_true(peer_complete(io, 9, value, sizeof(value), NULL, NULL, &cqe));
        assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    }
    assert_int_equal(rig->executed, 4);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Retrieves of class PRESTAGE stand in line behind a load; whatever is said of them, and of what
 * they are not, each is served once. */
static void an_expedite_of_anything_is_answered(void **state)
{
    enum { RETRIEVES = 20, EXPEDITED = 3 };
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_ICMS_RETRIEVE, .nsid = 1, .key = peer_key("k"), .bytes = 4096};
    uint16_t first, said[NVME_KV_EXPEDITE_CIDS];
    bool came[RETRIEVES] = {false};
    uint8_t room[4096];
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    rig_put(rig, 0, "k", 4096);
    rig->hold = true;
    for (int i = 0; i < RETRIEVES; i++) {
        cmd.io_class = i == 0 ? IO_CLASS_LOAD : IO_CLASS_PRESTAGE;
        nvme_kv_cmd_encode(&cmd, &sqe);
        (void)peer_submit(io, &sqe, 4096);
    }
    first = (uint16_t)(io->cid - RETRIEVES);
    for (uint32_t i = 0; i < NVME_KV_EXPEDITE_CIDS; i++) /* twice each, itself, and of nobody */
        said[i] = (uint16_t)(i < 2 * EXPEDITED ? io->cid - 1 - i / 2 : i == 7 ? io->cid : 5000 + i);
    for (int i = 0; i < 3; i++) {
        nvme_kv_expedite_encode(said, NVME_KV_EXPEDITE_CIDS, &sqe);
        if (i == 1)
            sqe.cdw10 = le32_of(NVME_KV_EXPEDITE_CIDS + 1);
        assert_true(peer_plain(io, &sqe, &cqe));
        assert_int_equal(cqe.status, i == 1 ? NVME_SC_FIELD : NVME_SC_SUCCESS);
    }
    assert_true(peer_plain(admin, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_OPCODE);
    assert_int_equal(rig->held_count, 2 + EXPEDITED);
    rig->hold = false;
    rig_let_go(rig);
    for (uint32_t i = 0; i < RETRIEVES;) {
        union nvme_tcp_pdu pdu;
        uint32_t bytes, at;

        assert_int_equal(peer_recv_pdu(io, &pdu, room, sizeof(room), &bytes), PEER_PDU);
        if (pdu.common.type == NVME_TCP_C2H_DATA)
            continue;
        assert_int_equal(pdu.common.type, NVME_TCP_CAPSULE_RESP);
        nvme_cqe_decode(&pdu.resp.cqe, &cqe);
        at = (uint32_t)cqe.cid - first;
        assert_int_equal(cqe.status, NVME_SC_SUCCESS);
        assert_true(at < RETRIEVES && !came[at]);
        came[at] = true;
        i++;
    }
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void half_open_connections_are_dropped_in_time(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *mute = rig_peer(rig);
    struct peer *shy = rig_peer(rig);
    struct peer *torn = rig_peer(rig);
    struct nvmf_target_stats stats;
    union nvme_tcp_pdu pdu;

    assert_true(peer_hello(shy, 0));
    nvme_tcp_ic_req_encode(&pdu, 0, 0, 1);
    nvme_tcp_frame_encode(&pdu, 0, 0, 0);
    assert_true(peer_send_bytes(torn, pdu.bytes, 77));
    peer_sleep(mute, 4000);
    rig_stats(rig, &stats);
    assert_int_equal(stats.connections, 3);
    peer_sleep(mute, 2000);
    rig_stats(rig, &stats);
    assert_int_equal(stats.connections, 0);
    assert_int_equal(stats.timeouts, 3);
    expect_closed(mute);
    expect_closed(shy);
    expect_closed(torn);
    peer_free(&mute);
    peer_free(&shy);
    peer_free(&torn);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void byte_by_byte_is_served_when_it_is_quick_enough(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, HDGST | DDGST);
    struct peer *io = rig_io(rig, admin, 1, HDGST | DDGST);
    struct nvme_sqe_wf sqe = store_sqe("slow", 100);
    struct nvme_sgl sgl = {.in_capsule = true, .bytes = 100};
    union nvme_tcp_pdu pdu;
    uint8_t value[100];
    uint8_t flat[256];
    struct nvme_cqe cqe;
    uint32_t bytes = 100;
    uint32_t head;

    rig_fill(value, sizeof(value), 1);
    nvme_sgl_encode(&sgl, &sqe.sgl);
    sqe.cid = le16_of(77);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    head = nvme_tcp_frame_encode(&pdu, 100, HDGST, 0);
    memcpy(flat, pdu.bytes, head);
    memcpy(flat + head, value, 100);
    /* Without a data digest: the flag is off, so it has to be off in what was agreed. */
    peer_free(&io);
    io = rig_io(rig, admin, 2, HDGST);
    for (uint32_t i = 0; i < head + 100; i++) {
        assert_true(peer_send_bytes(io, flat + i, 1));
        peer_sleep(io, 5);
    }
    assert_true(peer_complete(io, 77, NULL, 0, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(peer_retrieve(io, 1, "slow", flat, &bytes, &cqe), NVME_SC_SUCCESS);
    assert_memory_equal(flat, value, 100);
    /* And dropped when it is not. */
    for (uint32_t i = 0; i < 20; i++) {
        if (!peer_send_bytes(io, pdu.bytes + i, 1))
            break;
        peer_sleep(io, 500);
    }
    expect_closed(io);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_peer_that_owes_data_gives_its_buffers_back(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_sqe_wf sqe = store_sqe("k", 1 << 20);
    struct nvmf_target_stats stats;

    for (int i = 0; i < 8; i++)
        (void)peer_submit(io, &sqe, 1 << 20);
    rig_run(rig, 1000);
    rig_stats(rig, &stats);
    assert_true(stats.buffers_used_bytes >= 8 << 20);
    rig_run(rig, 10000);
    rig_stats(rig, &stats);
    assert_int_equal(stats.buffers_used_bytes, 0);
    assert_int_equal(stats.connections, 1);
    expect_closed(io);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_peer_that_does_not_read_gives_its_buffers_back(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    uint8_t *value = calloc(1, RIG_VALUE_MAX);
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_KV_RETRIEVE, .nsid = 1, .key = peer_key("k"), .bytes = RIG_VALUE_MAX};
    struct nvmf_target_stats stats;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    assert_int_equal(peer_store(io, 1, "k", value, RIG_VALUE_MAX, 0, &cqe), NVME_SC_SUCCESS);
    nvme_kv_cmd_encode(&cmd, &sqe);
    for (int i = 0; i < 30; i++)
        (void)peer_submit(io, &sqe, RIG_VALUE_MAX);
    rig_run(rig, 1000);
    rig_stats(rig, &stats);
    assert_true(stats.buffers_used_bytes >= RIG_VALUE_MAX);
    /* One queue pair cannot have it all. */
    assert_true(stats.buffers_used_bytes <= stats.buffers_bytes / 2);
    rig_run(rig, 12000);
    rig_stats(rig, &stats);
    assert_int_equal(stats.buffers_used_bytes, 0);
    assert_int_equal(stats.buffers_parked, 0);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

static void few_buffers(struct nvmf_target_opts *opts)
{
    opts->memory_bytes = (uint64_t)18 << 20;
}

/* Buffers are all promised to stores whose data lies in the stream behind stores that need one. */
static void data_in_capsules_never_blocks_the_data_behind_it(void **state)
{
    struct rig *rig = rig_new(1, few_buffers);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io[3];
    struct nvme_sqe_wf big = store_sqe("big", RIG_VALUE_MAX);
    uint8_t *value = calloc(1, RIG_VALUE_MAX);
    uint16_t cid[3];

    for (int i = 0; i < 3; i++) {
        io[i] = rig_io(rig, admin, (uint16_t)(i + 1), 0);
        cid[i] = peer_submit(io[i], &big, RIG_VALUE_MAX);
    }
    rig_run(rig, 100);
    /* Small stores in front of the data. */
    for (int i = 0; i < 3; i++)
        for (uint16_t n = 0; n < 10; n++) {
            struct nvme_sqe_wf sqe = store_sqe("small", 4096);
            struct nvme_sgl sgl = {.in_capsule = true, .bytes = 4096};
            union nvme_tcp_pdu pdu;

            sqe.cid = le16_of((uint16_t)(1000 + n));
            nvme_sgl_encode(&sgl, &sqe.sgl);
            nvme_tcp_cmd_encode(&pdu, &sqe);
            assert_true(peer_send_pdu(io[i], &pdu, value, 4096));
        }
    for (int i = 0; i < 3; i++) {
        unsigned answers = 0;

        while (answers < 11) {
            union nvme_tcp_pdu pdu;
            uint32_t bytes;

            assert_int_equal(peer_recv_pdu(io[i], &pdu, NULL, 0, &bytes), PEER_PDU);
            if (pdu.common.type == NVME_TCP_R2T) {
                uint16_t ttag = le16_get(pdu.r2t.ttag);

                for (uint32_t at = 0; at < RIG_VALUE_MAX; at += 262144) {
                    nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, 0, cid[i], ttag, at, 262144);
                    assert_true(peer_send_pdu(io[i], &pdu, value + at, 262144));
                }
            } else {
                struct nvme_cqe cqe;

                assert_int_equal(pdu.common.type, NVME_TCP_CAPSULE_RESP);
                nvme_cqe_decode(&pdu.resp.cqe, &cqe);
                assert_int_equal(cqe.status, NVME_SC_SUCCESS);
                answers++;
            }
        }
        peer_free(&io[i]);
    }
    peer_free(&admin);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

/* A store of ours with its data, larger than IOCCSZ. */
static struct nvme_cqe large_store(struct peer *io, uint8_t opcode, const uint8_t *value,
                                   uint32_t bytes)
{
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_ICMS_STORE, .nsid = 1, .key = peer_key("large"), .bytes = bytes};
    struct nvme_cqe cqe = {.status = UINT16_MAX};
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    sqe.opcode = opcode;
    io->capsule_max = UINT32_MAX;
    (void)!peer_command(io, &sqe, value, bytes, NULL, NULL, &cqe);
    io->capsule_max = 8192;
    return cqe;
}

/* There is room, or its data is dropped and it is told to ask; what follows is served. */
static void a_large_store_brings_its_data_or_is_told_to_ask(void **state)
{
    struct rig *rig = rig_new(1, few_buffers);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0), *full[3];
    struct nvme_sqe_wf big = store_sqe("big", RIG_VALUE_MAX);
    uint8_t *value = malloc(NVME_ICMS_STORE_DATA_BYTES), *back = malloc(RIG_VALUE_MAX);
    uint32_t bytes = RIG_VALUE_MAX;
    struct nvmf_target_stats stats;
    struct nvme_cqe cqe;

    rig_fill(value, NVME_ICMS_STORE_DATA_BYTES, 5);
    cqe = large_store(io, NVME_ICMS_STORE, value, NVME_ICMS_STORE_DATA_BYTES);
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(peer_retrieve(io, 1, "large", back, &bytes, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(bytes, NVME_ICMS_STORE_DATA_BYTES);
    assert_memory_equal(back, value, bytes);

    for (int i = 0; i < 3; i++) { /* promised to stores whose data does not come */
        full[i] = rig_io(rig, admin, (uint16_t)(i + 2), 0);
        (void)peer_submit(full[i], &big, RIG_VALUE_MAX);
    }
    rig_run(rig, 100);
    for (int i = 0; i < 3; i++) {
        cqe = large_store(io, NVME_ICMS_STORE, value, 100000);
        assert_int_equal(cqe.status, NVME_SC_TRANSIENT);
        assert_int_equal(cqe.dw1, NVME_ICMS_ASK);
        assert_false(cqe.dnr);
        assert_int_equal(peer_store(io, 1, "small", value, 8192, 0, &cqe), NVME_SC_SUCCESS);
    }
    for (int i = 0; i < 3; i++)
        peer_free(&full[i]);
    rig_run(rig, 100);
    cqe = large_store(io, NVME_ICMS_STORE, value, 100000);
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    rig_stats(rig, &stats);
    assert_int_equal(stats.ops[NVMF_TARGET_STORE][ICMS_BUSY], 0);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    free(value);
    free(back);
    rig_free(&rig);
}

/* A store whose descriptor says more than its capsule has would get old bytes of our buffer. */
static void a_capsule_that_is_shorter_than_its_descriptor_is_refused(void **state)
{
    static const struct {
        uint32_t said, sent; /* bytes */
    } cases[] = {{4096, 2048}, {64, 60}, {60, 64}, {64, 0}};
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    uint8_t data[4096] = {0};
    struct nvme_cqe cqe;

    for (uint16_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct nvme_kv_cmd cmd = {
            .opcode = NVME_KV_STORE, .nsid = 1, .key = peer_key("k"), .bytes = cases[i].said};
        struct nvme_sgl sgl = {.in_capsule = true, .bytes = cases[i].said};
        struct nvme_sqe_wf sqe;
        union nvme_tcp_pdu pdu;

        nvme_kv_cmd_encode(&cmd, &sqe);
        nvme_sgl_encode(&sgl, &sqe.sgl);
        sqe.cid = le16_of(i);
        nvme_tcp_cmd_encode(&pdu, &sqe);
        assert_true(peer_send_pdu(io, &pdu, data, cases[i].sent));
        assert_true(peer_complete(io, i, NULL, 0, NULL, NULL, &cqe));
        assert_int_equal(cqe.status, NVME_SC_SGL_LENGTH);
        assert_int_equal(peer_exist(io, 1, "k", &cqe), NVME_SC_KV_NO_KEY);
    }
    assert_int_equal(peer_store(io, 1, "k", data, 64, 0, &cqe), NVME_SC_SUCCESS);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Whoever brings more than was granted, or with another command, is cut off. */
static void large_data_comes_with_our_stores_alone(void **state)
{
    const struct {
        uint8_t opcode;
        uint32_t bytes;
    } wrong[] = {{NVME_KV_STORE, 8193},
                 {NVME_ICMS_STORE, NVME_ICMS_STORE_DATA_BYTES + 1},
                 {NVME_ICMS_EXIST_MANY, 9000}};
    uint8_t *value = calloc(1, NVME_ICMS_STORE_DATA_BYTES + 1);
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct nvme_sqe_wf sqe = store_sqe("k", 9000);
    struct nvme_cqe cqe;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct peer *io = rig_io(rig, admin, (uint16_t)(i + 1), 0);

        cqe = large_store(io, wrong[i].opcode, value, wrong[i].bytes);
        assert_int_equal(cqe.status, UINT16_MAX);
        peer_free(&io);
    }
    admin->capsule_max = UINT32_MAX;
    assert_false(peer_command(admin, &sqe, value, 9000, NULL, NULL, &cqe));
    peer_free(&admin);
    rig_run(rig, 100);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

static void a_flood_of_connections_passes(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *polite = rig_admin(rig, 0);
    struct peer *flood[100] = {NULL};
    struct nvmf_target_stats stats;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    for (int i = 0; i < 100; i++)
        flood[i] = peer_new_sim(rig->sim, rig->host, &rig->addr);
    rig_run(rig, 1000);
    rig_stats(rig, &stats);
    assert_int_equal(stats.connections, 64);
    nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &sqe);
    assert_true(peer_plain(polite, &sqe, &cqe));
    rig_run(rig, 12000); /* all of them were mute, and are gone */
    rig_stats(rig, &stats);
    assert_int_equal(stats.connections, 1);
    assert_true(peer_plain(polite, &sqe, &cqe));
    for (int i = 0; i < 100; i++)
        peer_free(&flood[i]);
    peer_free(&polite);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Bytes that are nearly right: valid PDUs with some of their bytes changed, cut or repeated. */
static void noise_after_hello_ends_clean(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    uint64_t random = 99;
    uint8_t flat[16384];

    for (int round = 0; round < 150; round++) {
        uint8_t digests = round % 2 == 0 ? 0 : HDGST | DDGST;
        struct peer *admin = rig_admin(rig, digests);
        struct peer *io = rig_io(rig, admin, 1, digests);

        for (int n = 0; n < 12; n++) {
            struct nvme_sqe_wf sqe = store_sqe("k", 1 + (uint32_t)(random >> 20) % 9000);
            struct nvme_sgl sgl = {.in_capsule = random & 1, .bytes = le32_get(sqe.cdw10)};
            uint32_t bytes = sgl.in_capsule && sgl.bytes < 8192 ? sgl.bytes : 0;
            union nvme_tcp_pdu pdu;
            uint32_t head;

            random = hash64_mix(random);
            sqe.opcode = (const uint8_t[]){1, 2, 6, 0x10, 0x14, 0x81, 0x82, 0x85}[random % 8];
            nvme_sgl_encode(&sgl, &sqe.sgl);
            nvme_tcp_cmd_encode(&pdu, &sqe);
            if (random >> 8 & 1)
                nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, 0, (uint16_t)(random % 4),
                                     (uint16_t)(random >> 16 & 3), 0, bytes = 64);
            head = nvme_tcp_frame_encode(&pdu, bytes, digests, 0);
            memcpy(flat, pdu.bytes, head);
            rig_fill(flat + head, bytes, random);
            bytes += head;
            random = hash64_mix(random);
            if (random % 3 == 0)
                flat[random / 3 % bytes] ^= (uint8_t)(1 << (random >> 40) % 8);
            if (random % 7 == 0)
                bytes = 1 + (uint32_t)(random >> 32) % bytes;
            if (!peer_send_bytes(random & 16 ? io : admin, flat, bytes))
                break;
            rig_run(rig, 1);
        }
        peer_free(&io);
        peer_free(&admin);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Opcodes that bring data in their capsule, rightly or not. */
static const uint8_t capsule_opcodes[] = {
    NVME_KV_STORE, NVME_ICMS_STORE, NVME_ICMS_EXIST_MANY, NVME_KV_RETRIEVE, NVME_ICMS_RETRIEVE,
    NVME_KV_LIST,  NVME_KV_DELETE,  NVME_KV_EXIST,        NVME_IO_FLUSH,    NVME_FABRICS,
    0x3d,
};
#define CAPSULE_OPCODES (sizeof(capsule_opcodes) / sizeof(capsule_opcodes[0]))

/* A command whose data is announced to come in its capsule; its header is sent. Returns the bytes
 * of data that are owed. */
static uint32_t send_capsule_header(struct peer *io, uint8_t opcode, uint16_t cid,
                                    uint8_t data[NVME_CONNECT_DATA_BYTES])
{
    struct key keys[2] = {peer_key("one"), peer_key("two")};
    struct nvme_sqe_wf sqe = store_sqe("k", 40);
    struct nvme_sgl sgl = {.in_capsule = true, .bytes = 40};
    union nvme_tcp_pdu pdu;
    uint32_t head;

    memset(data, 0, NVME_CONNECT_DATA_BYTES);
    if (opcode == NVME_ICMS_EXIST_MANY)
        sgl.bytes = nvme_kv_exist_many_encode(1, keys, 2, &sqe, data);
    sqe.opcode = opcode;
    if (opcode == NVME_FABRICS) {
        sqe.nsid.byte[0] = NVME_FCTYPE_CONNECT;
        sgl.bytes = NVME_CONNECT_DATA_BYTES;
    }
    sqe.cid = le16_of(cid);
    nvme_sgl_encode(&sgl, &sqe.sgl);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    head = nvme_tcp_frame_encode(&pdu, sgl.bytes, 0, 0);
    assert_true(peer_send_bytes(io, pdu.bytes, head));
    return sgl.bytes;
}

/* The data of a command is received by what the target thought of it at its header, whatever the
 * other queue pairs of the controller do before the data is there. */
static void a_command_is_judged_once_at_its_header(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    _Atomic bool *ready = &rig->target->ctrls[admin->cntlid - 1].ready;
    uint8_t data[NVME_CONNECT_DATA_BYTES];

    for (int from = 0; from < 2; from++)
        for (size_t i = 0; i < CAPSULE_OPCODES; i++) {
            uint8_t opcode = capsule_opcodes[i];
            uint16_t cid = (uint16_t)(100 + i);
            struct nvme_cqe cqe;
            uint32_t bytes;

            atomic_store(ready, from == 1);
            bytes = send_capsule_header(io, opcode, cid, data);
            rig_run(rig, 10);
            atomic_store(ready, from == 0);
            assert_true(peer_send_bytes(io, data, bytes));
            assert_true(peer_complete(io, cid, NULL, 0, NULL, NULL, &cqe));
            if (opcode == NVME_FABRICS)
                assert_int_equal(cqe.status, NVME_SC_SEQUENCE);
            else if (opcode == 0x3d)
                assert_int_equal(cqe.status, NVME_SC_OPCODE);
            else if (from == 0)
                assert_int_equal(cqe.status, NVME_SC_SEQUENCE);
            else if (opcode == NVME_KV_STORE || opcode == NVME_ICMS_STORE ||
                     opcode == NVME_ICMS_EXIST_MANY || opcode == NVME_IO_FLUSH)
                assert_int_equal(cqe.status, NVME_SC_SUCCESS);
            else
                assert_int_equal(cqe.status, NVME_SC_SGL_TYPE);
        }
    atomic_store(ready, true);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void set_cc(struct peer *admin, uint32_t cc)
{
    struct nvme_property property = {.set = true, .offset = NVME_REG_CC, .value = cc};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_property_encode(&property, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
}

enum between {
    BETWEEN_TOGGLE,     /* disabled at the header, enabled at the data      */
    BETWEEN_DISABLE,    /* enabled at the header, disabled at the data      */
    BETWEEN_SHUTDOWN,   /* likewise, by a shutdown                          */
    BETWEEN_DISCONNECT, /* the queue pair's connection ends                 */
    BETWEEN_DELETE,     /* the admin queue's connection ends                */
    BETWEEN_COUNT,
};

/* What a host can do between the header and the data of a command, by its own commands. */
static void a_controller_that_changes_under_a_capsule_ends_clean(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    uint8_t data[NVME_CONNECT_DATA_BYTES];

    for (int what = 0; what < BETWEEN_COUNT; what++)
        for (size_t i = 0; i < CAPSULE_OPCODES; i++) {
            struct peer *admin = rig_admin(rig, 0);
            struct peer *io = rig_io(rig, admin, 1, 0);
            union nvme_tcp_pdu pdu;
            uint32_t bytes, got;

            if (what == BETWEEN_TOGGLE)
                set_cc(admin, 0);
            bytes = send_capsule_header(io, capsule_opcodes[i], 7, data);
            rig_run(rig, 10);
            if (what == BETWEEN_DELETE)
                peer_free(&admin);
            else if (what == BETWEEN_DISCONNECT)
                peer_free(&io);
            else
                set_cc(admin, what == BETWEEN_TOGGLE    ? NVME_CC_START
                              : what == BETWEEN_DISABLE ? 0
                                                        : NVME_CC_START | NVME_CC_SHN_NORMAL);
            if (io != NULL && peer_send_bytes(io, data, bytes))
                assert_int_not_equal(peer_recv_pdu(io, &pdu, data, sizeof(data), &got),
                                     PEER_SILENCE);
            peer_free(&io);
            peer_free(&admin);
        }
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_pdu_has_to_be_a_good_icreq),
        cmocka_unit_test(lengths_that_lie_end_the_connection),
        cmocka_unit_test(a_wrong_header_digest_ends_the_connection),
        cmocka_unit_test(a_wrong_data_digest_fails_the_command_alone),
        cmocka_unit_test(data_that_nobody_asked_for_ends_the_connection),
        cmocka_unit_test(more_commands_than_the_queue_has_entries_end_the_connection),
        cmocka_unit_test(command_ids_need_not_be_unique),
        cmocka_unit_test(an_expedite_of_anything_is_answered),
        cmocka_unit_test(half_open_connections_are_dropped_in_time),
        cmocka_unit_test(byte_by_byte_is_served_when_it_is_quick_enough),
        cmocka_unit_test(a_peer_that_owes_data_gives_its_buffers_back),
        cmocka_unit_test(a_peer_that_does_not_read_gives_its_buffers_back),
        cmocka_unit_test(data_in_capsules_never_blocks_the_data_behind_it),
        cmocka_unit_test(a_large_store_brings_its_data_or_is_told_to_ask),
        cmocka_unit_test(a_capsule_that_is_shorter_than_its_descriptor_is_refused),
        cmocka_unit_test(large_data_comes_with_our_stores_alone),
        cmocka_unit_test(a_flood_of_connections_passes),
        cmocka_unit_test(noise_after_hello_ends_clean),
        cmocka_unit_test(a_command_is_judged_once_at_its_header),
        cmocka_unit_test(a_controller_that_changes_under_a_capsule_ends_clean),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
