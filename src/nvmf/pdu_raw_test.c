/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of nvmf/pdu.h over both back ends: one of them against raw bytes, right ones and those
 * of a hostile peer, and data that is led elsewhere.
 */
#include <stdlib.h>

#include "base/crc.h"
#include "loop/sim.h"
#include "nvmf/pdu_rig.h"

/* ---- one against raw bytes ------------------------------------------------------------------- */

#define RAW_MAX 400000u

struct raw {
    struct rig *rig;
    struct net_rig_pair pair;
    struct nvmf_pdu_conn conn; /* under test                                      */
    enum nvme_tcp_role role;   /* its role                                        */
    uint8_t digests;           /* set once its IC PDU arrived                     */
    uint64_t pdu_timeout_ns;   /* of it                                           */
    struct net_conn peer;      /* the raw side                                    */
    struct net_send send;      /* of bytes                                        */
    uint8_t *bytes;            /* to send, RAW_MAX                                */
    uint32_t bytes_count;      /* of them                                         */
    uint32_t bytes_at;         /* sent so far                                     */
    uint32_t bytes_end;        /* send until here now                             */
    uint32_t piece;            /* bytes of one send                               */
    uint8_t back[4096];        /* what came back, its first bytes                 */
    uint32_t back_bytes;       /* of them                                         */
    uint8_t *memory;           /* where payload goes, RAW_MAX                     */
    bool stays;                /* does not leave when it gets a TermReq                */
    bool drop;                 /* payload goes nowhere                            */
    icms_err header_err;       /* what header() answers                           */
    bool term_in_pdu;          /* nvmf_pdu_term inside pdu()                      */
    struct nvmf_pdu_tx tx;     /* sent inside pdu() with it                       */
    atomic_int tx_done;        /* given back                                      */
    icms_err tx_err;           /* with                                            */
    uint32_t types[64];        /* PDUs delivered                                  */
    icms_err status[64];       /* of their data                                   */
    uint32_t data_bytes[64];   /* likewise                                        */
    icms_err why;              /* of closed()                                     */
    atomic_int sent;           /* bytes_end was reached                           */
    atomic_int pdus;           /* delivered                                       */
    atomic_int headers;        /* asked                                           */
    atomic_int redirected;     /* redirect done                                   */
    atomic_int closed;         /* the tested one                                  */
    atomic_int peer_closed;    /* the raw side                                    */
    icms_err redirect_err;     /* what the call returned                          */
};

static void raw_send_more(struct raw *raw);

static void raw_sent(struct net_send *send, icms_err err)
{
    struct raw *raw = container_of(send, struct raw, send);

    if (err == ICMS_OK)
        raw_send_more(raw);
}

static void raw_send_more(struct raw *raw)
{
    uint32_t n = raw->bytes_end - raw->bytes_at;

    if (n == 0) {
        atomic_fetch_add(&raw->sent, 1);
        return;
    }
    if (n > raw->piece)
        n = raw->piece;
    raw->send = (struct net_send){.count = 1, .done = raw_sent};
    raw->send.vectors[0] = (struct iovec){raw->bytes + raw->bytes_at, n};
    raw->bytes_at += n;
    net_conn_send(&raw->peer, &raw->send);
}

/* A whole TermReq came back: a peer that obeys leaves. */
static bool raw_has_term(const struct raw *raw)
{
    const struct nvme_tcp_common_wf *common = (const void *)raw->back;

    return !raw->stays && raw->back_bytes >= 24 &&
           (common->type == NVME_TCP_C2H_TERM || common->type == NVME_TCP_H2C_TERM) &&
           raw->back_bytes >= le32_get(common->plen);
}

static void raw_peer_recv_done(struct net_conn *conn, icms_err err, uint32_t bytes)
{
    struct raw *raw = container_of(conn, struct raw, peer);

    raw->back_bytes += bytes;
    if (err == ICMS_OK && raw_has_term(raw))
        net_conn_close(conn, ICMS_CLOSED);
    else if (err == ICMS_OK)
        net_conn_recv(conn, raw->back + raw->back_bytes,
                      (uint32_t)sizeof(raw->back) - raw->back_bytes, false);
}

static void raw_peer_closed(struct net_conn *conn, icms_err why)
{
    atomic_fetch_add(&container_of(conn, struct raw, peer)->peer_closed, 1);
}

static icms_err raw_header(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                           uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct raw *raw = container_of(conn, struct raw, conn);

    check(data_bytes > 0 && data_bytes <= DATA_MAX);
    atomic_fetch_add(&raw->headers, 1);
    if (raw->header_err == ICMS_OK && !raw->drop)
        out_data[0] = (struct iovec){raw->memory, data_bytes};
    return raw->header_err;
}

static void raw_tx_done(struct nvmf_pdu_tx *tx, icms_err err)
{
    struct raw *raw = tx->owner;

    raw->tx_err = err;
    atomic_fetch_add(&raw->tx_done, 1);
}

static void raw_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu, uint32_t data_bytes,
                    icms_err status)
{
    struct raw *raw = container_of(conn, struct raw, conn);
    int n = atomic_load(&raw->pdus);

    check(n < 64);
    raw->types[n] = pdu->common.type;
    raw->status[n] = status;
    raw->data_bytes[n] = data_bytes;
    if (n == 0)
        nvmf_pdu_digests_set(conn, raw->digests, 0);
    if (n > 0 && raw->term_in_pdu) {
        struct nvme_cqe cqe = {0};

        nvmf_pdu_term(conn, NVME_TCP_FES_RANGE, 12);
        raw->tx.owner = raw;
        raw->tx.done = raw_tx_done;
        nvme_tcp_resp_encode(&raw->tx.pdu, &cqe);
        nvmf_pdu_send(conn, &raw->tx);
    }
    atomic_fetch_add(&raw->pdus, 1);
}

static void raw_closed(struct nvmf_pdu_conn *conn, icms_err why)
{
    struct raw *raw = container_of(conn, struct raw, conn);

    raw->why = why;
    atomic_fetch_add(&raw->closed, 1);
}

static const struct nvmf_pdu_ops raw_ops = {raw_header, raw_pdu, raw_closed};
static const struct net_conn_ops raw_peer_ops = {raw_peer_recv_done, raw_peer_closed};

static void raw_open_run(void *arg)
{
    struct raw *raw = arg;
    struct nvmf_pdu_opts opts = {.ops = &raw_ops,
                                 .role = raw->role,
                                 .capsule_data_max = CAPSULE_MAX,
                                 .data_max = DATA_MAX,
                                 .pdu_timeout_ns = raw->pdu_timeout_ns};
    struct net_conn_opts peer = {.ops = &raw_peer_ops};

    nvmf_pdu_open(&raw->conn, raw->rig->loop[0], raw->pair.sock[1], &opts);
    net_conn_open(&raw->peer, raw->rig->loop[0], raw->pair.sock[0], &peer);
    net_conn_recv(&raw->peer, raw->back, sizeof(raw->back), false);
}

static void raw_send_run(void *arg)
{
    raw_send_more(arg);
}

/* Sends the bytes up to end; waits until the kernel has them. */
static void raw_send(struct raw *raw, uint32_t end)
{
    raw->bytes_end = end;
    atomic_store(&raw->sent, 0);
    net_rig_call(raw->rig, raw_send_run, raw);
    net_rig_wait(raw->rig, &raw->sent, 1);
}

static void raw_put(struct raw *raw, const void *bytes, uint32_t count)
{
    check(raw->bytes_count + count <= RAW_MAX);
    memcpy(raw->bytes + raw->bytes_count, bytes, count);
    raw->bytes_count += count;
}

/* Appends a PDU with the payload of its cid. */
static void raw_put_pdu(struct raw *raw, union nvme_tcp_pdu *pdu, uint16_t cid, uint32_t data_bytes)
{
    bool connected = raw->bytes_count > 0;
    uint32_t head = nvme_tcp_frame_encode(pdu, data_bytes, connected ? raw->digests : 0, 0);
    uint8_t *data = raw->bytes + raw->bytes_count + head;

    raw_put(raw, pdu->bytes, head);
    check(raw->bytes_count + data_bytes <= RAW_MAX);
    pdu_fill(data, cid, data_bytes);
    raw->bytes_count += data_bytes;
    if (pdu->common.flags & NVME_TCP_FLAG_DDGST) {
        le32 digest = le32_of(crc32c(data, data_bytes));

        raw_put(raw, &digest, sizeof(digest));
    }
}

static void raw_put_command(struct raw *raw, uint16_t cid, uint32_t data_bytes)
{
    struct nvme_sqe_wf sqe = {.opcode = NVME_KV_STORE, .cid = le16_of(cid)};
    union nvme_tcp_pdu pdu;

    nvme_tcp_cmd_encode(&pdu, &sqe);
    raw_put_pdu(raw, &pdu, cid, data_bytes);
}

static void raw_put_data(struct raw *raw, uint16_t cid, uint32_t data_bytes)
{
    bool host = raw->role == NVME_TCP_HOST;
    union nvme_tcp_pdu pdu;

    nvme_tcp_data_encode(&pdu, host ? NVME_TCP_C2H_DATA : NVME_TCP_H2C_DATA, NVME_TCP_FLAG_LAST,
                         cid, 0, 0, data_bytes);
    raw_put_pdu(raw, &pdu, cid, data_bytes);
}

static struct raw *raw_new(struct rig *rig, enum nvme_tcp_role role, uint8_t digests)
{
    struct raw *raw = calloc(1, sizeof(*raw));

    check(raw != NULL);
    raw->rig = rig;
    raw->role = role;
    raw->digests = digests;
    raw->piece = RAW_MAX;
    raw->bytes = malloc(RAW_MAX);
    raw->memory = malloc(RAW_MAX);
    check(raw->bytes != NULL && raw->memory != NULL);
    net_rig_start(rig);
    net_rig_pair(rig, &raw->pair);
    return raw;
}

/* Begins with the IC PDU of the other side. */
static void raw_put_ic(struct raw *raw)
{
    union nvme_tcp_pdu pdu;

    if (raw->role == NVME_TCP_HOST)
        nvme_tcp_ic_resp_encode(&pdu, 0, raw->digests, 4096);
    else
        nvme_tcp_ic_req_encode(&pdu, 0, raw->digests, 1);
    raw_put_pdu(raw, &pdu, 0, 0);
}

static void raw_close_run(void *arg)
{
    struct raw *raw = arg;

    nvmf_pdu_close(&raw->conn, ICMS_CLOSED);
    net_conn_close(&raw->peer, ICMS_CLOSED);
}

static void raw_free(struct raw *raw)
{
    net_rig_call(raw->rig, raw_close_run, raw);
    net_rig_wait(raw->rig, &raw->closed, 1);
    net_rig_wait(raw->rig, &raw->peer_closed, 1);
    assert_int_equal(atomic_load(&raw->closed), 1);
    net_rig_end(raw->rig);
    free(raw->bytes);
    free(raw->memory);
    free(raw);
}

static void bytes_that_come_one_by_one_are_the_same_pdus(void **state)
{
    for (uint8_t digests = 0; digests < 4; digests += 3) {
        struct raw *raw = raw_new(*state, NVME_TCP_CONTROLLER, digests);

        raw->piece = 1;
        raw_put_ic(raw);
        raw_put_command(raw, 1, 0);
        raw_put_command(raw, 2, 7);
        raw_put_data(raw, 3, 300);
        raw_put_command(raw, 4, 0);
        net_rig_call(raw->rig, raw_open_run, raw);
        raw_send(raw, raw->bytes_count);
        net_rig_wait(raw->rig, &raw->pdus, 5);
        assert_int_equal(raw->types[2], NVME_TCP_CAPSULE_CMD);
        assert_int_equal(raw->data_bytes[2], 7);
        assert_int_equal(raw->types[3], NVME_TCP_H2C_DATA);
        assert_int_equal(raw->data_bytes[3], 300);
        assert_true(pdu_is(raw->memory, 3, 300));
        for (int i = 0; i < 5; i++)
            assert_int_equal(raw->status[i], ICMS_OK);
        raw_free(raw);
    }
}

static void a_bad_data_digest_fails_the_command_and_not_the_connection(void **state)
{
    struct raw *raw = raw_new(*state, NVME_TCP_CONTROLLER, BOTH_DIGESTS);
    uint8_t padded[8] = {0};
    le32 digest;

    raw_put_ic(raw);
    raw_put_command(raw, 1, 5000);
    raw->bytes[raw->bytes_count - 100] ^= 1;
    raw_put_command(raw, 2, 5);
    pdu_fill(padded, 2, 5);
    digest = le32_of(crc32c(padded, 8));
    memcpy(raw->bytes + raw->bytes_count - 4, &digest, 4); /* as SPDK does */
    raw_put_command(raw, 3, 5);
    raw->drop = false;
    net_rig_call(raw->rig, raw_open_run, raw);
    raw_send(raw, raw->bytes_count);
    net_rig_wait(raw->rig, &raw->pdus, 4);
    assert_int_equal(raw->status[1], ICMS_CORRUPT);
    assert_int_equal(raw->status[2], ICMS_OK);
    assert_int_equal(raw->status[3], ICMS_OK);
    assert_int_equal(raw->conn.stats.ddgst_errors, 1);
    raw_free(raw);
}

static void payload_without_memory_is_dropped(void **state)
{
    struct raw *raw = raw_new(*state, NVME_TCP_CONTROLLER, BOTH_DIGESTS);

    raw->drop = true;
    raw_put_ic(raw);
    raw_put_data(raw, 1, DATA_MAX);
    raw_put_command(raw, 2, 0);
    memset(raw->memory, 0xaa, RAW_MAX);
    net_rig_call(raw->rig, raw_open_run, raw);
    raw_send(raw, raw->bytes_count);
    net_rig_wait(raw->rig, &raw->pdus, 3);
    assert_int_equal(raw->status[1], ICMS_OK);
    assert_int_equal(raw->memory[0], 0xaa);
    raw_free(raw);
}

/* ---- redirect ------------------------------------------------------------------------------- */

static void redirect_done(struct nvmf_pdu_conn *conn, void *arg)
{
    struct raw *raw = arg;

    check(conn == &raw->conn && atomic_load(&raw->closed) == 0);
    /* From here on nothing may write it. */
    memset(raw->memory, 0x55, RAW_MAX);
    atomic_fetch_add(&raw->redirected, 1);
}

static void redirect_run(void *arg)
{
    struct raw *raw = arg;
    int before = atomic_load(&raw->redirected);

    raw->redirect_err = nvmf_pdu_recv_redirect(&raw->conn, raw->memory, redirect_done, raw);
    check(atomic_load(&raw->redirected) == before);
    check(nvmf_pdu_recv_redirect(&raw->conn, raw->memory + 1, redirect_done, raw) ==
          ICMS_NOT_FOUND);
}

static void redirect_at(struct rig *rig, uint32_t arrived, uint8_t digests)
{
    struct raw *raw = raw_new(rig, NVME_TCP_HOST, digests);
    uint32_t first;

    raw_put_ic(raw);
    first = raw->bytes_count + 24 + (digests & 1 ? 4 : 0);
    raw_put_data(raw, 1, 200000);
    raw_put_data(raw, 2, 100);
    net_rig_call(rig, raw_open_run, raw);
    raw_send(raw, first + arrived);
    net_rig_wait(rig, &raw->headers, 1);
    rig->idle(rig);
    net_rig_call(rig, redirect_run, raw);
    assert_int_equal(raw->redirect_err, ICMS_OK);
    net_rig_wait(rig, &raw->redirected, 1);
    raw_send(raw, raw->bytes_count - 24 - 100 - (digests ? 8 : 0));
    net_rig_wait(rig, &raw->pdus, 2);
    assert_int_equal(raw->status[1], ICMS_CANCELED);
    for (uint32_t i = 0; i < RAW_MAX; i++)
        assert_int_equal(raw->memory[i], 0x55);
    raw_send(raw, raw->bytes_count);
    net_rig_wait(rig, &raw->pdus, 3);
    assert_int_equal(raw->status[2], ICMS_OK);
    assert_true(pdu_is(raw->memory, 2, 100));
    assert_int_equal(atomic_load(&raw->redirected), 1);
    net_rig_call(rig, redirect_run, raw);
    assert_int_equal(raw->redirect_err, ICMS_NOT_FOUND);
    raw_free(raw);
}

static void a_redirect_in_mid_payload_takes_the_memory_back(void **state)
{
    redirect_at(*state, 50000, 0);
    redirect_at(*state, 50000, BOTH_DIGESTS);
    redirect_at(*state, 1, BOTH_DIGESTS);
    redirect_at(*state, 199000, BOTH_DIGESTS); /* the rest comes through the buffer */
    redirect_at(*state, 200000, BOTH_DIGESTS); /* only the digest is missing */
}

static void redirect_close_run(void *arg)
{
    struct raw *raw = arg;

    redirect_run(raw);
    nvmf_pdu_close(&raw->conn, ICMS_CANCELED);
}

static void a_redirect_is_done_before_closed_in_any_case(void **state)
{
    static const uint32_t arrived[] = {50000, 199000};

    for (int i = 0; i < 2; i++) {
        struct raw *raw = raw_new(*state, NVME_TCP_HOST, 0);

        raw_put_ic(raw);
        raw_put_data(raw, 1, 200000);
        net_rig_call(raw->rig, raw_open_run, raw);
        raw_send(raw, 128 + 24 + arrived[i]);
        net_rig_wait(raw->rig, &raw->headers, 1);
        raw->rig->idle(raw->rig);
        net_rig_call(raw->rig, redirect_close_run, raw);
        net_rig_wait(raw->rig, &raw->closed, 1);
        assert_int_equal(raw->redirect_err, ICMS_OK);
        assert_int_equal(atomic_load(&raw->redirected), 1);
        assert_int_equal(raw->why, ICMS_CANCELED);
        raw_free(raw);
    }
}

/* ---- hostile peers -------------------------------------------------------------------------- */

/* What came back is a TermReq with this status and the bad header, behind which nothing follows. */
static void raw_expect_term(struct raw *raw, enum nvme_tcp_fes fes, uint32_t fei, uint32_t bad_at)
{
    union nvme_tcp_pdu pdu = {0};
    struct nvme_tcp_bad bad;
    uint32_t plen;

    net_rig_wait(raw->rig, &raw->closed, 1);
    net_rig_wait(raw->rig, &raw->peer_closed, 1);
    assert_int_equal(raw->why, ICMS_PROTOCOL);
    assert_true(raw->back_bytes >= 24);
    memcpy(&pdu, raw->back, 24);
    assert_int_equal(pdu.common.type,
                     raw->role == NVME_TCP_HOST ? NVME_TCP_H2C_TERM : NVME_TCP_C2H_TERM);
    nvme_tcp_term_decode(&pdu, &bad);
    assert_int_equal(bad.fes, fes);
    assert_int_equal(bad.fei, fei);
    plen = le32_get(pdu.common.plen);
    assert_int_equal(raw->back_bytes, plen);
    assert_int_equal(pdu.common.hlen, 24);
    assert_true(plen > 24 && plen <= 24 + 128);
    assert_memory_equal(raw->back + 24, raw->bytes + bad_at, plen - 24);
    assert_int_equal(raw->conn.stats.term_out, 1);
}

static void raw_hostile(struct rig *rig, enum nvme_tcp_role role, bool connected, uint8_t digests,
                        const void *bytes, uint32_t count, enum nvme_tcp_fes fes, uint32_t fei)
{
    struct raw *raw = raw_new(rig, role, digests);
    uint32_t bad_at;

    if (connected)
        raw_put_ic(raw);
    bad_at = raw->bytes_count;
    raw_put(raw, bytes, count);
    net_rig_call(rig, raw_open_run, raw);
    raw_send(raw, raw->bytes_count);
    raw_expect_term(raw, fes, fei, bad_at);
    raw_free(raw);
}

static void bad_headers_get_the_right_term_request(void **state)
{
    static const struct {
        enum nvme_tcp_role role; /* receiver                */
        bool connected;          /* its state               */
        uint8_t bytes[24];       /* header, padded          */
        enum nvme_tcp_fes fes;   /* wanted                  */
        uint32_t fei;            /* wanted                  */
    } cases[] = {
        /* no such type; a type of the other direction */
        {NVME_TCP_CONTROLLER, true, {8, 0, 24, 0, 24}, NVME_TCP_FES_HEADER, 0},
        {NVME_TCP_CONTROLLER, true, {5, 0, 24, 0, 24}, NVME_TCP_FES_HEADER, 0},
        {NVME_TCP_HOST, true, {6, 0, 24, 24, 28}, NVME_TCP_FES_HEADER, 0},
        /* a second ICReq; a command before the first */
        {NVME_TCP_CONTROLLER, true, {0, 0, 128, 0, 128}, NVME_TCP_FES_SEQUENCE, 0},
        {NVME_TCP_CONTROLLER, false, {4, 0, 72, 0, 72}, NVME_TCP_FES_SEQUENCE, 0},
        {NVME_TCP_HOST, false, {5, 0, 24, 0, 24}, NVME_TCP_FES_SEQUENCE, 0},
        /* lengths */
        {NVME_TCP_CONTROLLER, true, {4, 0, 71, 0, 72}, NVME_TCP_FES_HEADER, 2},
        {NVME_TCP_CONTROLLER, true, {4, 0, 72, 0, 71}, NVME_TCP_FES_HEADER, 4},
        {NVME_TCP_CONTROLLER, true, {4, 0, 72, 0, 0, 0, 0, 0}, NVME_TCP_FES_HEADER, 4},
        {NVME_TCP_CONTROLLER, true, {4, 0, 72, 72, 73, 32}, NVME_TCP_FES_LIMIT, 4},
        {NVME_TCP_CONTROLLER, true, {6, 0, 24, 24, 255, 255, 255, 255}, NVME_TCP_FES_LIMIT, 4},
        {NVME_TCP_CONTROLLER, true, {6, 0, 24, 0, 28}, NVME_TCP_FES_HEADER, 3},
        /* digests that were not agreed on */
        {NVME_TCP_CONTROLLER, true, {4, 1, 72, 0, 76}, NVME_TCP_FES_HEADER, 1},
        {NVME_TCP_HOST, true, {7, 2, 24, 24, 32}, NVME_TCP_FES_HEADER, 1},
        /* SUCCESS without LAST */
        {NVME_TCP_HOST, true, {7, 8, 24, 24, 28}, NVME_TCP_FES_HEADER, 1},
        /* an R2T for nothing; data that is not its length */
        {NVME_TCP_HOST, true, {9, 0, 24, 0, 24}, NVME_TCP_FES_HEADER, 16},
        {NVME_TCP_HOST, true, {7, 0, 24, 24, 28}, NVME_TCP_FES_HEADER, 16},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        raw_hostile(*state, cases[i].role, cases[i].connected, 0, cases[i].bytes,
                    sizeof(cases[i].bytes), cases[i].fes, cases[i].fei);
}

static void bad_ic_requests_are_refused(void **state)
{
    uint8_t bytes[128] = {0, 0, 128, 0, 128};

    bytes[8] = 1;
    raw_hostile(*state, NVME_TCP_CONTROLLER, false, 0, bytes, 128, NVME_TCP_FES_UNSUPPORTED, 8);
    bytes[8] = 0;
    bytes[10] = 32;
    raw_hostile(*state, NVME_TCP_CONTROLLER, false, 0, bytes, 128, NVME_TCP_FES_HEADER, 10);
}

static void a_bad_header_digest_ends_the_connection(void **state)
{
    uint8_t bytes[28] = {5, 1, 24, 0, 28};

    bytes[24] = 0x44;
    bytes[25] = 0x33;
    raw_hostile(*state, NVME_TCP_HOST, true, BOTH_DIGESTS, bytes, 28, NVME_TCP_FES_HDGST, 0x3344);
}

/* The codec's own check says what is to come; here each answer has to arrive. */
static void random_headers_are_answered_as_the_codec_says(void **state)
{
    uint64_t seed = 6;

    for (int tries = 0, done = 0; done < 40 && tries < 4000; tries++) {
        struct nvme_tcp_rules rules = {.role = NVME_TCP_CONTROLLER,
                                       .connected = true,
                                       .capsule_data_max = CAPSULE_MAX,
                                       .data_max = DATA_MAX};
        struct nvme_tcp_common_wf common;
        struct nvme_tcp_frame frame;
        struct nvme_tcp_bad bad;
        uint64_t random = net_rig_random(&seed);

        memcpy(&common, &random, sizeof(common));
        common.type %= 11;
        common.flags &= 0x0f;
        if (random >> 60 < 8)
            common.hlen = common.type == NVME_TCP_CAPSULE_CMD ? 72 : 24;
        rules.role = random >> 59 & 1 ? NVME_TCP_HOST : NVME_TCP_CONTROLLER;
        if (nvme_tcp_hdr_check(&common, &rules, &frame, &bad) == ICMS_OK)
            continue;
        raw_hostile(*state, rules.role, true, 0, &common, sizeof(common), bad.fes, bad.fei);
        done++;
    }
}

static void an_owner_may_refuse_a_pdu(void **state)
{
    struct raw *raw = raw_new(*state, NVME_TCP_CONTROLLER, 0);

    raw->header_err = ICMS_INVALID;
    raw->stays = true; /* and is cut off */
    raw_put_ic(raw);
    raw_put_command(raw, 1, 100);
    net_rig_call(raw->rig, raw_open_run, raw);
    raw_send(raw, raw->bytes_count);
    raw_expect_term(raw, NVME_TCP_FES_HEADER, 0, 128);
    raw_free(raw);
    raw = raw_new(*state, NVME_TCP_CONTROLLER, 0);
    raw->term_in_pdu = true;
    raw_put_ic(raw);
    raw_put_data(raw, 1, 100);
    raw_put_command(raw, 2, 0);
    net_rig_call(raw->rig, raw_open_run, raw);
    raw_send(raw, raw->bytes_count);
    raw_expect_term(raw, NVME_TCP_FES_RANGE, 12, 128);
    /* What the owner sends behind its TermReq never leaves, and is given back. */
    assert_int_equal(atomic_load(&raw->tx_done), 1);
    assert_int_equal(raw->tx_err, ICMS_PROTOCOL);
    assert_int_equal(atomic_load(&raw->pdus), 2);
    raw_free(raw);
}

static void a_term_request_of_the_peer_closes(void **state)
{
    struct nvme_tcp_bad bad = {NVME_TCP_FES_SEQUENCE, 0};
    struct raw *raw = raw_new(*state, NVME_TCP_CONTROLLER, BOTH_DIGESTS);
    union nvme_tcp_pdu pdu;

    raw_put_ic(raw);
    nvme_tcp_term_encode(&pdu, NVME_TCP_H2C_TERM, bad);
    raw_put_pdu(raw, &pdu, 0, 72);
    net_rig_call(raw->rig, raw_open_run, raw);
    raw_send(raw, raw->bytes_count);
    net_rig_wait(raw->rig, &raw->closed, 1);
    assert_int_equal(raw->why, ICMS_PROTOCOL);
    assert_int_equal(raw->conn.stats.term_in, 1);
    assert_int_equal(raw->conn.stats.term_out, 0);
    assert_int_equal(atomic_load(&raw->pdus), 1);
    raw_free(raw);
}

static void raw_leave_run(void *arg)
{
    net_conn_close(&((struct raw *)arg)->peer, ICMS_CLOSED);
}

static void a_peer_that_leaves_in_the_middle_of_anything_closes_with_reset(void **state)
{
    static const uint32_t cuts[] = {0, 5, 128, 131, 190, 128 + 76, 128 + 80, 128 + 76 + 6000};

    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        struct raw *raw = raw_new(*state, NVME_TCP_CONTROLLER, BOTH_DIGESTS);

        raw_put_ic(raw);
        raw_put_command(raw, 1, 6000);
        net_rig_call(raw->rig, raw_open_run, raw);
        raw_send(raw, cuts[i]);
        raw->rig->idle(raw->rig);
        net_rig_call(raw->rig, raw_leave_run, raw);
        net_rig_wait(raw->rig, &raw->closed, 1);
        assert_int_equal(raw->why, ICMS_RESET);
        raw_free(raw);
    }
}

static void a_pdu_that_is_not_whole_in_time_closes(void **state)
{
    static const uint32_t cuts[] = {128 + 3, 128 + 75, 128 + 76 + 1, 128 + 76 + 6000 + 2};

    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        struct raw *raw = raw_new(*state, NVME_TCP_CONTROLLER, BOTH_DIGESTS);

        raw->pdu_timeout_ns = 15 * NET_RIG_MS;
        raw_put_ic(raw);
        raw_put_command(raw, 1, 6000);
        net_rig_call(raw->rig, raw_open_run, raw);
        raw->rig->idle(raw->rig); /* no PDU is started: no hurry */
        assert_int_equal(atomic_load(&raw->closed), 0);
        raw_send(raw, cuts[i]);
        net_rig_wait(raw->rig, &raw->closed, 1);
        assert_int_equal(raw->why, ICMS_DEADLINE);
        raw_free(raw);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(bytes_that_come_one_by_one_are_the_same_pdus),
        BOTH(a_bad_data_digest_fails_the_command_and_not_the_connection),
        BOTH(payload_without_memory_is_dropped),
        BOTH(a_redirect_in_mid_payload_takes_the_memory_back),
        BOTH(a_redirect_is_done_before_closed_in_any_case),
        BOTH(bad_headers_get_the_right_term_request),
        BOTH(bad_ic_requests_are_refused),
        BOTH(a_bad_header_digest_ends_the_connection),
        BOTH(random_headers_are_answered_as_the_codec_says),
        BOTH(an_owner_may_refuse_a_pdu),
        BOTH(a_term_request_of_the_peer_closes),
        BOTH(a_peer_that_leaves_in_the_middle_of_anything_closes_with_reset),
        BOTH(a_pdu_that_is_not_whole_in_time_closes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
