/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data of commands on a target: buffers and who waits for them, how data and its completion are
 * sent, and values that are sent while they are read.
 */
#include <stdio.h>

#include "base/bytes.h"
#include "nvmf/target/target_test.h"

static void few_buffers(struct nvmf_target_opts *opts)
{
    opts->memory_bytes = (uint64_t)20 << 20;
    opts->store_backlog_bytes = (uint64_t)64 << 20;
}

static void commands_wait_for_buffers_in_turn_and_loads_go_first(void **state)
{
    struct rig *rig = rig_new(1, few_buffers);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *stores = rig_io(rig, admin, 1, 0);
    struct peer *loads = rig_io(rig, admin, 2, 0);
    uint8_t *value = malloc(RIG_VALUE_MAX);
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_KV_STORE, .nsid = 1, .key = peer_key("big"), .bytes = RIG_VALUE_MAX};
    struct nvmf_target_stats stats;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint16_t cid[8];
    uint32_t bytes = 100;

    rig_fill(value, RIG_VALUE_MAX, 1);
    assert_int_equal(peer_store(loads, 1, "small", "abc", 3, 0, &cqe), NVME_SC_SUCCESS);
    nvme_kv_cmd_encode(&cmd, &sqe);
    for (int i = 0; i < 7; i++)
        cid[i] = peer_submit(stores, &sqe, RIG_VALUE_MAX);
    rig_run(rig, 20);
    rig_stats(rig, &stats);
    assert_int_equal(stats.buffers_parked, 6); /* one has its R2T */
    /* A load finds room, although stores wait. */
    assert_int_equal(peer_retrieve(loads, 1, "small", value, &bytes, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(bytes, 3);
    rig_fill(value, RIG_VALUE_MAX, 1);
    for (int i = 0; i < 7; i++) {
        assert_true(peer_complete(stores, cid[i], value, RIG_VALUE_MAX, NULL, NULL, &cqe));
        assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    }
    /* The line is only so long: what comes then is shed. */
    for (int i = 0; i < 8; i++)
        cid[i] = peer_submit(stores, &sqe, RIG_VALUE_MAX);
    rig_run(rig, 20);
    rig_stats(rig, &stats);
    assert_int_equal(stats.sheds, 0);
    assert_int_equal(peer_store(stores, 1, "more", value, RIG_VALUE_MAX, 0, &cqe), UINT16_MAX);
    rig_run(rig, 20);
    rig_stats(rig, &stats);
    assert_int_equal(stats.sheds, 1);
    peer_free(&stores);
    peer_free(&loads);
    peer_free(&admin);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

/* Sends a store with its data in the capsule; its cid. */
static uint16_t capsule_submit(struct peer *io, uint8_t opcode, bool may_ask, const char *key)
{
    struct nvme_kv_cmd cmd = {
        .opcode = opcode, .nsid = 1, .key = peer_key(key), .bytes = 4096, .may_ask = may_ask};
    struct nvme_sgl sgl = {.in_capsule = true, .bytes = 4096};
    uint8_t value[4096] = {1};
    union nvme_tcp_pdu pdu;
    struct nvme_sqe_wf sqe;
    uint16_t cid = io->cid++;

    nvme_kv_cmd_encode(&cmd, &sqe);
    sqe.cid = le16_of(cid);
    nvme_sgl_encode(&sgl, &sqe.sgl);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    assert_true(peer_send_pdu(io, &pdu, value, sizeof(value)));
    return cid;
}

/* Whether a host that asks if the target lives has its answer, behind all that it sent. */
static bool lives(struct peer *io)
{
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_EXIST, .key = {.length = 1}};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    io->timeout_ms = 200;
    return peer_plain(io, &sqe, &cqe) && cqe.status == NVME_SC_NAMESPACE;
}

/* No buffer is free for a long time, and stores come with their data. Those of a foreign host stop
 * its connection. One that says that it may be asked for its data again is read on. */
static void stores_without_room_stop_no_host_that_may_ask(void **state)
{
    struct rig *rig = rig_new(1, few_buffers);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *large = rig_io(rig, admin, 1, 0);
    struct peer *own = rig_io(rig, admin, 2, 0), *foreign = rig_io(rig, admin, 3, 0);
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_KV_STORE, .nsid = 1, .key = peer_key("big"), .bytes = RIG_VALUE_MAX};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    rig->hold = true;
    nvme_kv_cmd_encode(&cmd, &sqe);
    for (int i = 0; i < 7; i++) /* they have the memory, or wait for it: no R2T is answered */
        (void)peer_submit(large, &sqe, RIG_VALUE_MAX);
    rig_run(rig, 20);
    for (uint32_t i = 0; i < 3; i++) {
        uint16_t cid = capsule_submit(own, NVME_ICMS_STORE, true, "k");

        assert_true(peer_complete(own, cid, NULL, 0, NULL, NULL, &cqe));
        assert_int_equal(cqe.status, NVME_SC_TRANSIENT);
        assert_int_equal(cqe.dw1, NVME_ICMS_ASK);
    }
    assert_true(lives(own));
    for (uint32_t i = 0; i < 3; i++)
        (void)capsule_submit(foreign, i % 2 == 0 ? NVME_KV_STORE : NVME_ICMS_STORE, false, "k");
    assert_false(lives(foreign));
    assert_int_equal(rig->held_count, 1); /* in memory of the connection */
    peer_free(&large);
    rig_let_go(rig);
    rig->hold = false;
    peer_free(&own);
    peer_free(&foreign);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void shed_early(struct nvmf_target_opts *opts)
{
    opts->store_backlog_bytes = 0;
}

static void a_shed_store_says_so_and_may_be_retried(void **state)
{
    struct rig *rig = rig_new(1, shed_early);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    uint8_t value[9000] = {1};
    struct nvme_cqe cqe;

    assert_int_equal(peer_store(io, 1, "k", value, sizeof(value), 0, &cqe), NVME_SC_TRANSIENT);
    assert_false(cqe.dnr);
    assert_int_equal(cqe.dw1, ICMS_MISS_SHED);
    /* What came in its capsule is here already. */
    assert_int_equal(peer_store(io, 1, "k", value, 4096, 0, &cqe), NVME_SC_SUCCESS);
    peer_free(&io);
    peer_free(&admin);
    rig_free(&rig);
}

/* Submits loads of a key with so much room each; their owner gets them. */
static void loads_submit(struct rig *rig, struct peer *io, const char *key, uint32_t room,
                         int count)
{
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_KV_RETRIEVE, .nsid = 1, .key = peer_key(key), .bytes = room};
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    for (int i = 0; i < count; i++)
        (void)peer_submit(io, &sqe, room);
    rig_run(rig, 20);
}

static void commands_with_the_owner_outlive_their_connection(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvmf_target_stats stats;
    struct nvme_cqe cqe;

    assert_int_equal(peer_store(io, 1, "k", "value", 5, 0, &cqe), NVME_SC_SUCCESS);
    rig->hold = true;
    loads_submit(rig, io, "k", 9000, 20);
    assert_int_equal(rig->held_count, 20);
    peer_free(&io);
    peer_free(&admin);
    rig_run(rig, 500);
    rig_stats(rig, &stats);
    assert_int_equal(stats.connections, 1); /* the slot waits for its commands */
    assert_true(stats.buffers_used_bytes > 0);
    rig_let_go(rig);
    assert_int_equal(rig->sent, 1 + 2 * 20); /* each load asked for the size before */
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* However much room the host has: a load holds what its value takes, a miss nothing. */
static void a_load_takes_a_buffer_of_the_size_of_its_value(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvmf_target_stats stats;
    struct nvme_cqe cqe;

    assert_int_equal(peer_store(io, 1, "k", "value", 5, 0, &cqe), NVME_SC_SUCCESS);
    rig->hold = true;
    loads_submit(rig, io, "k", 3 << 20, 20);
    assert_int_equal(rig->held_count, 20); /* none waits for a buffer */
    rig_stats(rig, &stats);
    assert_int_equal(stats.buffers_used_bytes, 20 * LIMIT_DISK_ALIGN);
    loads_submit(rig, io, "absent", 3 << 20, 10);
    assert_int_equal(rig->held_count, 30);
    rig_stats(rig, &stats);
    assert_int_equal(stats.buffers_used_bytes, 20 * LIMIT_DISK_ALIGN);
    assert_int_equal(stats.buffers_parks, 0);
    rig_let_go(rig);
    peer_free(&io);
    peer_free(&admin);
    rig_run(rig, 100);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void an_owner_may_answer_from_its_own_memory(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, BOTH_DIGESTS);
    uint8_t *value = malloc(1 << 20);
    uint8_t *back = malloc(1 << 20);
    uint32_t bytes = 1 << 20;
    struct nvme_cqe cqe;

    rig->direct = true;
    rig_fill(value, bytes, 3);
    assert_int_equal(peer_store(io, 1, "k", value, bytes, 0, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_retrieve(io, 1, "k", back, &bytes, &cqe), NVME_SC_SUCCESS);
    assert_memory_equal(back, value, 1 << 20);
    assert_int_equal(rig->sent, 2);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    free(value);
    free(back);
    rig_free(&rig);
}

/* Two loads at a time: the older one is whole before the data of the other begins. */
static void data_of_commands_does_not_mix(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    uint32_t size = 3 << 20; /* buffers for two are there */
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_RETRIEVE, .nsid = 1, .bytes = size};
    static const char *const keys[2] = {"one", "two"};
    uint8_t *value = malloc(size);
    uint32_t got[2] = {0}, answers = 0, bytes;
    union nvme_tcp_pdu pdu;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint16_t cid[2];

    rig_fill(value, size, 1);
    for (int i = 0; i < 2; i++)
        assert_int_equal(peer_store(io, 1, keys[i], value, size, 0, &cqe), NVME_SC_SUCCESS);
    for (int i = 0; i < 2; i++) {
        cmd.key = peer_key(keys[i]);
        nvme_kv_cmd_encode(&cmd, &sqe);
        cid[i] = peer_submit(io, &sqe, size);
    }
    while (answers < 2) {
        assert_int_equal(peer_recv_pdu(io, &pdu, value, size, &bytes), PEER_PDU);
        if (pdu.common.type == NVME_TCP_C2H_DATA && le16_get(pdu.data.cid) == cid[1]) {
            assert_int_equal(got[0], size);
            got[1] += bytes;
        } else if (pdu.common.type == NVME_TCP_C2H_DATA) {
            assert_int_equal(le16_get(pdu.data.cid), cid[0]);
            got[0] += bytes;
        } else {
            assert_int_equal(pdu.common.type, NVME_TCP_CAPSULE_RESP);
            answers++;
        }
    }
    assert_int_equal(got[1], size);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

/* The next PDU is data of all of a value; returns its flags. */
static uint8_t expect_data(struct peer *io, uint32_t size)
{
    static uint8_t back[8192];
    union nvme_tcp_pdu pdu;
    uint32_t bytes;

    assert_int_equal(peer_recv_pdu(io, &pdu, back, sizeof(back), &bytes), PEER_PDU);
    assert_int_equal(pdu.common.type, NVME_TCP_C2H_DATA);
    assert_int_equal(bytes, size);
    return pdu.common.flags;
}

static void expect_completion(struct peer *io, uint16_t cid, uint32_t result)
{
    union nvme_tcp_pdu pdu;
    struct nvme_cqe cqe;
    uint32_t bytes;

    assert_int_equal(peer_recv_pdu(io, &pdu, NULL, 0, &bytes), PEER_PDU);
    assert_int_equal(pdu.common.type, NVME_TCP_CAPSULE_RESP);
    nvme_cqe_decode(&pdu.resp.cqe, &cqe);
    assert_int_equal(cqe.cid, cid);
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(cqe.dw0, result);
}

/* A host that wants no SQ heads is spared the completion of a load with time left, when it got the
 * whole value; its slot is free all the same. */
static void the_last_data_may_be_the_completion(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_peer(rig);
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_ICMS_RETRIEVE, .nsid = 1, .key = peer_key("k"), .bytes = 8192};
    uint8_t value[8192] = {1};
    struct nvmf_target_stats stats;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint16_t cid;

    io->attributes = NVME_CATTR_NO_SQ_FLOW;
    assert_true(peer_io(io, admin, 1, 0));
    assert_int_equal(peer_store(io, 1, "k", value, sizeof(value), 0, &cqe), NVME_SC_SUCCESS);
    nvme_kv_cmd_encode(&cmd, &sqe);
    for (int i = 0; i < 3 * io->entries; i++) {
        (void)peer_submit(io, &sqe, sizeof(value));
        assert_true((expect_data(io, sizeof(value)) & NVME_TCP_FLAG_SUCCESS) != 0);
    }
    /* Not all of the value: its size is news. */
    cmd.bytes = 4096;
    nvme_kv_cmd_encode(&cmd, &sqe);
    cid = peer_submit(io, &sqe, 4096);
    assert_int_equal(expect_data(io, 4096) & NVME_TCP_FLAG_SUCCESS, 0);
    expect_completion(io, cid, sizeof(value));
    /* The standard's Retrieve always has its result in a completion. */
    cmd.opcode = NVME_KV_RETRIEVE;
    cmd.bytes = sizeof(value);
    nvme_kv_cmd_encode(&cmd, &sqe);
    cid = peer_submit(io, &sqe, sizeof(value));
    assert_int_equal(expect_data(io, sizeof(value)) & NVME_TCP_FLAG_SUCCESS, 0);
    expect_completion(io, cid, sizeof(value));
    rig_run(rig, 10);
    rig_stats(rig, &stats);
    assert_int_equal(stats.ops[NVMF_TARGET_RETRIEVE][ICMS_OK], 3 * io->entries + 2);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* ---- values that are sent while they are read -------------------------------------------------
 */

enum { PIECE = 256 << 10, STREAMED = 4 * PIECE + 64 };

/* A host without SQ heads, a value of STREAMED bytes under "k", and a vendor's Retrieve of it that
 * the owner holds. */
struct stream {
    struct rig *rig;
    struct peer *admin, *io;
    uint8_t *value, *back;
    struct nvme_sqe_wf sqe;
    uint16_t cid;
    uint32_t got; /* bytes of data */
};

static void stream_submit(struct stream *stream, uint32_t room)
{
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_ICMS_RETRIEVE, .nsid = 1, .key = peer_key("k"), .bytes = room};

    nvme_kv_cmd_encode(&cmd, &stream->sqe);
    stream->cid = peer_submit(stream->io, &stream->sqe, room);
    stream->got = 0;
    stream->rig->hold = true;
    rig_run(stream->rig, 10);
    assert_int_equal(stream->rig->held_count, 1);
}

static void stream_begin(struct stream *stream, uint32_t room)
{
    struct nvme_cqe cqe;

    *stream = (struct stream){.rig = rig_new(1, NULL)};
    stream->admin = rig_admin(stream->rig, 0);
    stream->io = rig_peer(stream->rig);
    stream->io->attributes = NVME_CATTR_NO_SQ_FLOW;
    assert_true(peer_io(stream->io, stream->admin, 1, BOTH_DIGESTS));
    stream->value = malloc(STREAMED);
    stream->back = malloc(STREAMED);
    rig_fill(stream->value, STREAMED, 5);
    assert_int_equal(peer_store(stream->io, 1, "k", stream->value, STREAMED, 0, &cqe),
                     NVME_SC_SUCCESS);
    stream_submit(stream, room);
}

static void stream_end(struct stream *stream)
{
    peer_free(&stream->io);
    peer_free(&stream->admin);
    rig_expect_clean(stream->rig);
    free(stream->value);
    free(stream->back);
    rig_free(&stream->rig);
}

/* The next PDU is so much data of the value, in its place; its flags. */
static uint8_t stream_data(struct stream *stream, uint32_t size)
{
    union nvme_tcp_pdu pdu;
    uint32_t bytes;

    assert_int_equal(peer_recv_pdu(stream->io, &pdu, stream->back, STREAMED, &bytes), PEER_PDU);
    assert_int_equal(pdu.common.type, NVME_TCP_C2H_DATA);
    assert_int_equal(le16_get(pdu.data.cid), stream->cid);
    assert_int_equal(le32_get(pdu.data.offset), stream->got);
    assert_int_equal(bytes, size);
    assert_memory_equal(stream->back, stream->value + stream->got, size);
    stream->got += size;
    return pdu.common.flags & (NVME_TCP_FLAG_LAST | NVME_TCP_FLAG_SUCCESS);
}

static void stream_silence(struct stream *stream)
{
    union nvme_tcp_pdu pdu;
    uint32_t bytes, timeout_ms = stream->io->timeout_ms;

    stream->io->timeout_ms = 50;
    assert_int_equal(peer_recv_pdu(stream->io, &pdu, stream->back, STREAMED, &bytes), PEER_SILENCE);
    stream->io->timeout_ms = timeout_ms;
}

/* What is ready goes out at once and in order, as one PDU each time; the PDU that ends the data
 * goes out when the owner is done, and says so. */
static void a_value_is_sent_while_it_is_read(void **state)
{
    struct stream stream;
    struct nvmf_target_stats stats;

    stream_begin(&stream, STREAMED);
    stream_silence(&stream);
    rig_more(stream.rig, PIECE);
    assert_int_equal(stream_data(&stream, PIECE), 0);
    stream_silence(&stream);
    rig_more(stream.rig, PIECE); /* nothing new */
    stream_silence(&stream);
    rig_more(stream.rig, 3 * PIECE);
    assert_int_equal(stream_data(&stream, 2 * PIECE), 0);
    rig_let_go(stream.rig);
    assert_int_equal(stream_data(&stream, PIECE + 64), NVME_TCP_FLAG_LAST | NVME_TCP_FLAG_SUCCESS);
    stream_silence(&stream);
    rig_stats(stream.rig, &stats);
    assert_int_equal(stats.ops[NVMF_TARGET_RETRIEVE][ICMS_OK], 1);
    assert_int_equal(stats.bytes_out, STREAMED);
    assert_int_equal(stream.rig->sent, 3); /* the store, the size, the value */
    stream_end(&stream);
}

/* The host that has less room than the value gets what it has room for, when the owner is done. */
static void a_value_that_is_sent_in_part_ends_with_its_owner(void **state)
{
    struct stream stream;

    stream_begin(&stream, 2 * PIECE);
    rig_more(stream.rig, PIECE);
    assert_int_equal(stream_data(&stream, PIECE), 0);
    rig_more(stream.rig, 2 * PIECE);
    rig_more(stream.rig, 3 * PIECE);
    stream_silence(&stream);
    rig_let_go(stream.rig);
    assert_int_equal(stream_data(&stream, PIECE), NVME_TCP_FLAG_LAST);
    expect_completion(stream.io, stream.cid, STREAMED);
    stream_end(&stream);
}

/* An owner that fails in the middle: no PDU said that the data is over or right; the command ends
 * with the error and its reason, holds nothing any more, and the connection serves others. */
static void a_value_that_fails_in_the_middle_is_an_error(void **state)
{
    struct stream stream;
    struct nvmf_target_stats stats;
    union nvme_tcp_pdu pdu;
    struct nvme_cqe cqe;
    uint32_t bytes;

    stream_begin(&stream, STREAMED);
    for (uint32_t i = 0; i < 2u * stream.io->entries; i++) {
        if (i > 0)
            stream_submit(&stream, STREAMED);
        rig_more(stream.rig, 2 * PIECE);
        assert_int_equal(stream_data(&stream, 2 * PIECE), 0);
        rig_break(stream.rig, ICMS_MISS, ICMS_MISS_CHECKSUM);
        assert_int_equal(peer_recv_pdu(stream.io, &pdu, NULL, 0, &bytes), PEER_PDU);
        assert_int_equal(pdu.common.type, NVME_TCP_CAPSULE_RESP);
        nvme_cqe_decode(&pdu.resp.cqe, &cqe);
        assert_int_equal(cqe.cid, stream.cid);
        assert_int_equal(cqe.status, NVME_SC_KV_NO_KEY);
        assert_int_equal(cqe.dw0, 0);
        assert_int_equal(cqe.dw1, ICMS_MISS_CHECKSUM);
        rig_run(stream.rig, 10);
        rig_stats(stream.rig, &stats);
        assert_int_equal(stats.buffers_used_bytes, 0);
        assert_int_equal(stats.misses[ICMS_MISS_CHECKSUM], i + 1);
        assert_int_equal(stats.bytes_out, 0);
    }
    stream.rig->hold = false;
    bytes = STREAMED;
    assert_int_equal(peer_retrieve(stream.io, 1, "k", stream.back, &bytes, &cqe), NVME_SC_SUCCESS);
    assert_memory_equal(stream.back, stream.value, STREAMED);
    stream_end(&stream);
}

/* A host that goes away in the middle: the buffer stays until the owner, who may still read into
 * it, gave the command back. */
static void a_host_that_goes_in_the_middle_leaves_nothing(void **state)
{
    struct stream stream;
    struct nvmf_target_stats stats;

    stream_begin(&stream, STREAMED);
    rig_more(stream.rig, PIECE);
    assert_int_equal(stream_data(&stream, PIECE), 0);
    rig_more(stream.rig, 2 * PIECE); /* not received */
    peer_free(&stream.io);
    rig_run(stream.rig, 500);
    assert_true(stream.rig->held[0]->unwanted);
    rig_more(stream.rig, 3 * PIECE);
    rig_stats(stream.rig, &stats);
    assert_true(stats.buffers_used_bytes >= STREAMED);
    rig_let_go(stream.rig);
    rig_stats(stream.rig, &stats);
    assert_int_equal(stats.buffers_used_bytes, 0);
    stream_end(&stream);
}

/* While one value waits for its owner, another that is whole is sent; then the first goes on. */
static void a_value_that_waits_for_its_owner_is_in_nobodys_way(void **state)
{
    struct stream stream;
    uint32_t bytes;
    struct nvme_cqe cqe;
    uint8_t small[100] = {1};

    stream_begin(&stream, STREAMED);
    rig_more(stream.rig, PIECE);
    assert_int_equal(stream_data(&stream, PIECE), 0);
    stream.rig->hold = false;
    assert_int_equal(peer_store(stream.io, 1, "small", small, sizeof(small), 0, &cqe),
                     NVME_SC_SUCCESS);
    bytes = STREAMED;
    assert_int_equal(peer_retrieve(stream.io, 1, "small", stream.back, &bytes, &cqe),
                     NVME_SC_SUCCESS);
    assert_int_equal(bytes, sizeof(small));
    rig_let_go(stream.rig);
    assert_int_equal(stream_data(&stream, STREAMED - PIECE),
                     NVME_TCP_FLAG_LAST | NVME_TCP_FLAG_SUCCESS);
    stream_end(&stream);
}

/* ---- lookups that wait ------------------------------------------------------------------------
 */

#define LOOKUP_QUEUES  2
#define LOOKUP_ENTRIES 1000

/* Namespaces 2 and 3 are of a tenant each, which looks for few keys a second. */
static void limited_lookups(struct nvmf_target_opts *opts)
{
    static const struct nvmf_target_tenant tenants[3] = {
        {.weight = 1},
        {.weight = 1, .ops_per_s[NVMF_TARGET_LOADS] = 100},
        {.weight = 1, .ops_per_s[NVMF_TARGET_LOADS] = 100},
    };
    static struct nvmf_target_ns namespaces[3];

    memcpy(namespaces, opts->namespaces, sizeof(namespaces));
    for (uint32_t i = 0; i < 3; i++) {
        namespaces[i].tenant = i;
        namespaces[i].host_count = 0;
    }
    opts->namespaces = namespaces;
    opts->tenants = tenants;
    opts->tenant_count = 3;
    opts->queue_entries_max = LOOKUP_ENTRIES;
    opts->memory_bytes = (uint64_t)20 << 20;
}

/* Sends exist-many, its keys in the capsule; its cid. */
static uint16_t lookup_submit(struct peer *io, uint32_t nsid, const struct key *keys,
                              uint32_t count)
{
    uint8_t data[NVME_KV_EXIST_MANY_BYTES];
    struct nvme_sqe_wf sqe;
    struct nvme_sgl sgl = {.in_capsule = true};
    union nvme_tcp_pdu pdu;
    uint16_t cid = io->cid++;

    sgl.bytes = nvme_kv_exist_many_encode(nsid, keys, count, &sqe, data);
    sqe.cid = le16_of(cid);
    nvme_sgl_encode(&sgl, &sqe.sgl);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    assert_true(peer_send_pdu(io, &pdu, data, sgl.bytes));
    return cid;
}

static void lookups_that_wait_leave_the_memory_to_loads(void **state)
{
    struct rig *rig = rig_new(1, limited_lookups);
    struct peer *admins[2], *lookups[2][LOOKUP_QUEUES];
    struct peer *admin = rig_admin(rig, 0);
    struct peer *loads = rig_io(rig, admin, 1, 0);
    struct key keys[NVME_KV_EXIST_MANY_KEYS];
    uint8_t *value = malloc(RIG_VALUE_MAX);
    uint32_t bytes = RIG_VALUE_MAX;
    struct nvme_kv_cmd load = {
        .opcode = NVME_KV_RETRIEVE, .nsid = 1, .key = peer_key("small"), .bytes = 100};
    union nvme_tcp_pdu pdu = {0};
    struct nvmf_target_stats stats;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    rig_put(rig, 0, "big", RIG_VALUE_MAX);
    rig_put(rig, 0, "small", 100);
    for (uint32_t i = 0; i < NVME_KV_EXIST_MANY_KEYS; i++)
        keys[i] = peer_key("absent");
    for (uint32_t host = 0; host < 2; host++) {
        admins[host] = rig_peer(rig);
        (void)snprintf(admins[host]->host, LIMIT_NQN_BYTES, "nqn.2026-01.io.icms:host%u", host);
        assert_true(peer_admin(admins[host], 0));
        for (uint16_t i = 0; i < LOOKUP_QUEUES; i++) {
            struct peer *io = lookups[host][i] = rig_peer(rig);

            memcpy(io->host, admins[host]->host, LIMIT_NQN_BYTES);
            io->entries = LOOKUP_ENTRIES;
            assert_true(peer_io(io, admins[host], (uint16_t)(i + 1), 0));
            for (uint32_t sent = 0; sent < LOOKUP_ENTRIES - 1; sent++)
                (void)lookup_submit(io, host + 2, keys, NVME_KV_EXIST_MANY_KEYS);
        }
    }
    rig_run(rig, 100);
    loads->timeout_ms = 1000;
    assert_int_equal(peer_retrieve(loads, 1, "big", value, &bytes, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(bytes, RIG_VALUE_MAX);
    rig_stats(rig, &stats);
    assert_true(stats.buffers_parked > 2 * LOOKUP_QUEUES * (LOOKUP_ENTRIES - 100));
    assert_true(stats.buffers_used_bytes <= 4 * 4096);
    /* A queue pair whose lookups wait is read: a load on it is answered. */
    nvme_kv_cmd_encode(&load, &sqe);
    (void)peer_submit(lookups[0][0], &sqe, 100);
    for (uint32_t i = 0; i < 20 && pdu.common.type != NVME_TCP_C2H_DATA; i++)
        assert_int_equal(peer_recv_pdu(lookups[0][0], &pdu, value, 100, &bytes), PEER_PDU);
    assert_int_equal(pdu.common.type, NVME_TCP_C2H_DATA);
    assert_int_equal(bytes, 100);
    for (uint32_t host = 0; host < 2; host++) {
        for (uint32_t i = 0; i < LOOKUP_QUEUES; i++)
            peer_free(&lookups[host][i]);
        peer_free(&admins[host]);
    }
    peer_free(&loads);
    peer_free(&admin);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

static void lookups_that_wait_keep_their_keys(void **state)
{
    struct rig *rig = rig_new(1, limited_lookups);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct key keys[NVME_KV_EXIST_MANY_KEYS];
    struct nvmf_target_stats stats;
    struct nvme_cqe cqe;
    uint16_t cid[8];

    rig_put(rig, 1, "here", 100);
    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t k = 0; k < NVME_KV_EXIST_MANY_KEYS; k++)
            keys[k] = peer_key(k % 8 == i ? "here" : "absent");
        cid[i] = lookup_submit(io, 2, keys, NVME_KV_EXIST_MANY_KEYS - i);
    }
    rig_run(rig, 10);
    rig_stats(rig, &stats);
    assert_true(stats.buffers_parked >= 6);
    io->timeout_ms = 5000;
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t map = UINT64_C(0x0101010101010101) << i & UINT64_MAX >> i;

        assert_true(peer_complete(io, cid[i], NULL, 0, NULL, NULL, &cqe));
        assert_int_equal(cqe.status, NVME_SC_SUCCESS);
        assert_int_equal(cqe.dw0, (uint32_t)map);
        assert_int_equal(cqe.dw1, (uint32_t)(map >> 32));
    }
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_wait_for_buffers_in_turn_and_loads_go_first),
        cmocka_unit_test(stores_without_room_stop_no_host_that_may_ask),
        cmocka_unit_test(a_shed_store_says_so_and_may_be_retried),
        cmocka_unit_test(commands_with_the_owner_outlive_their_connection),
        cmocka_unit_test(an_owner_may_answer_from_its_own_memory),
        cmocka_unit_test(a_load_takes_a_buffer_of_the_size_of_its_value),
        cmocka_unit_test(data_of_commands_does_not_mix),
        cmocka_unit_test(the_last_data_may_be_the_completion),
        cmocka_unit_test(a_value_is_sent_while_it_is_read),
        cmocka_unit_test(a_value_that_is_sent_in_part_ends_with_its_owner),
        cmocka_unit_test(a_value_that_fails_in_the_middle_is_an_error),
        cmocka_unit_test(a_host_that_goes_in_the_middle_leaves_nothing),
        cmocka_unit_test(a_value_that_waits_for_its_owner_is_in_nobodys_way),
        cmocka_unit_test(lookups_that_wait_leave_the_memory_to_loads),
        cmocka_unit_test(lookups_that_wait_keep_their_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
