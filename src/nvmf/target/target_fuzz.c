/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer: what a peer sends after it connected.
 *
 * The first byte of an input chooses: bit 0 header digests, bit 1 data digests, bit 2 the admin
 * queue instead of an I/O queue, bit 3 nothing before it (not even ICReq), bit 4 the owner keeps
 * the commands until the peer has left, bits 7:5 where the stream is cut in pieces. The rest are
 * the bytes of the stream. Digests are computed for the PDUs that look whole, so that what is
 * behind them is reached. Afterwards, whatever came, no connection, buffer or command is left.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "nvmf/target/target_test.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define FUZZ_INPUT_MAX ((size_t)32 << 10)

static struct rig *rig;
static uint8_t stream[FUZZ_INPUT_MAX + 64];

static void fuzz_few_buffers(struct nvmf_target_opts *opts)
{
    opts->memory_bytes = (uint64_t)36 << 20;
    opts->connections_max = 8;
    opts->header_timeout_ms = 100;
    opts->stall_timeout_ms = 200;
}

/* Puts right digests into the PDUs of the stream, as far as their lengths make sense. */
static void fuzz_digests(uint8_t *at, size_t left)
{
    while (left >= NVME_TCP_COMMON_BYTES) {
        uint8_t flags = at[1];
        size_t hlen = at[2];
        size_t pdo = at[3];
        size_t plen = (size_t)at[4] | (size_t)at[5] << 8 | (size_t)at[6] << 16;
        le32 digest;

        if (at[7] != 0 || plen > left || plen < NVME_TCP_COMMON_BYTES)
            return;
        if ((flags & NVME_TCP_FLAG_HDGST) && hlen + sizeof(digest) <= plen) {
            digest = le32_of(crc32c(at, hlen));
            memcpy(at + hlen, &digest, sizeof(digest));
        }
        if ((flags & NVME_TCP_FLAG_DDGST) && pdo > 0 && pdo + sizeof(digest) <= plen) {
            digest = le32_of(crc32c(at + pdo, plen - pdo - sizeof(digest)));
            memcpy(at + plen - sizeof(digest), &digest, sizeof(digest));
        }
        at += plen;
        left -= plen;
    }
}

static void fuzz_send(struct peer *peer, size_t bytes, unsigned pieces)
{
    size_t piece = pieces == 0 ? bytes : bytes / (pieces + 1) + 1;

    for (size_t at = 0; at < bytes; at += piece) {
        if (!peer_send_bytes(peer, stream + at, u64_min(piece, bytes - at)))
            return;
        rig_run(rig, 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct nvmf_target_stats stats;
    struct peer *admin = NULL;
    struct peer *io = NULL;
    struct peer *raw = NULL;
    uint8_t digests;

    if (bytes < 2 || bytes > FUZZ_INPUT_MAX)
        return 0;
    if (rig == NULL)
        rig = rig_new(2, fuzz_few_buffers);
    digests = data[0] & (NVME_TCP_FLAG_HDGST | NVME_TCP_FLAG_DDGST);
    memcpy(stream, data + 1, bytes - 1);
    fuzz_digests(stream, bytes - 1);
    if (data[0] & 8) {
        raw = rig_peer(rig);
    } else {
        admin = rig_admin(rig, digests);
        io = rig_io(rig, admin, 1, digests);
    }
    rig->hold = (data[0] & 16) != 0;
    fuzz_send(raw != NULL ? raw : data[0] & 4 ? admin : io, bytes - 1, data[0] >> 5);
    rig_run(rig, 5);
    if (data[0] & 1)
        rig_run(rig, 400); /* the timeouts may come first */
    peer_free(&io);
    peer_free(&raw);
    peer_free(&admin);
    rig_run(rig, 10);
    rig_let_go(rig);
    rig_run(rig, 1500);
    nvmf_target_stats(rig->target, &stats);
    check(stats.connections == 0 && stats.controllers == 0);
    check(stats.buffers_used_bytes == 0 && stats.buffers_parked == 0);
    return 0;
}
