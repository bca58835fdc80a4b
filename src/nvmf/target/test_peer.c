/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host for tests: PDUs and conversations over a wire (test_peer_wire.c). Test code only.
 */
#include "nvmf/target/test_peer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"

struct key peer_key(const char *text)
{
    struct key key = {.length = (uint8_t)strlen(text)};

    check(key.length <= LIMIT_KEY_BYTES);
    memcpy(key.bytes, text, key.length);
    return key;
}

/* ---- bytes and PDUs ------------------------------------------------------------------------- */

bool peer_send_bytes(struct peer *peer, const void *data, size_t bytes)
{
    return peer->wire->send(peer, data, bytes);
}

bool peer_send_pdu(struct peer *peer, union nvme_tcp_pdu *pdu, const void *data, uint32_t bytes)
{
    uint32_t head = nvme_tcp_frame_encode(pdu, bytes, peer->digests, 0);
    size_t all = (size_t)head + bytes + sizeof(le32);
    uint8_t *flat = malloc(all);
    bool sent;

    check(flat != NULL);
    memcpy(flat, pdu->bytes, head);
    if (bytes > 0)
        memcpy(flat + head, data, bytes);
    all = head + bytes;
    if (pdu->common.flags & NVME_TCP_FLAG_DDGST) {
        le32 digest = le32_of(crc32c(data, bytes));

        memcpy(flat + all, &digest, sizeof(digest));
        all += sizeof(digest);
    }
    sent = peer->wire->send(peer, flat, all);
    free(flat);
    return sent;
}

static enum peer_got peer_recv_all(struct peer *peer, void *memory, uint32_t bytes)
{
    uint8_t *to = memory;

    while (bytes > 0) {
        uint32_t have = (uint32_t)u64_min(peer->buffer_end - peer->buffer_at, bytes);
        long got;

        memcpy(to, peer->buffer + peer->buffer_at, have);
        peer->buffer_at += have;
        to += have;
        bytes -= have;
        if (bytes == 0)
            break;
        got = peer->wire->recv(peer, peer->buffer, sizeof(peer->buffer), peer->timeout_ms);
        if (got <= 0)
            return got == 0 ? PEER_CLOSED : PEER_SILENCE;
        peer->buffer_at = 0;
        peer->buffer_end = (uint32_t)got;
    }
    return PEER_PDU;
}

enum peer_got peer_recv_pdu(struct peer *peer, union nvme_tcp_pdu *out_pdu, void *data,
                            uint32_t room, uint32_t *out_bytes)
{
    struct nvme_tcp_rules rules = {
        .role = NVME_TCP_HOST,
        .connected = true,
        .digests = peer->digests,
        .data_max = (uint32_t)1 << 30,
    };
    struct nvme_tcp_frame frame;
    struct nvme_tcp_bad bad;
    enum peer_got got;

    *out_bytes = 0;
    got = peer_recv_all(peer, out_pdu->bytes, NVME_TCP_COMMON_BYTES);
    if (got != PEER_PDU)
        return got;
    if (out_pdu->common.type == NVME_TCP_IC_RESP)
        rules.connected = false;
    if (nvme_tcp_hdr_check(&out_pdu->common, &rules, &frame, &bad) != ICMS_OK)
        return PEER_BROKEN;
    got = peer_recv_all(peer, out_pdu->bytes + NVME_TCP_COMMON_BYTES,
                        frame.header_bytes - NVME_TCP_COMMON_BYTES);
    if (got != PEER_PDU)
        return got;
    if (nvme_tcp_pdu_check(out_pdu, &frame, &bad) != ICMS_OK || frame.data_bytes > room)
        return PEER_BROKEN;
    got = peer_recv_all(peer, data, frame.data_bytes);
    *out_bytes = frame.data_bytes;
    if (got == PEER_PDU && frame.ddgst) {
        le32 digest;

        got = peer_recv_all(peer, &digest, sizeof(digest));
        if (got == PEER_PDU && le32_get(digest) != crc32c(data, frame.data_bytes))
            return PEER_BROKEN;
    }
    return got;
}

/* ---- conversations -------------------------------------------------------------------------- */

bool peer_hello(struct peer *peer, uint8_t digests)
{
    union nvme_tcp_pdu pdu;
    uint32_t bytes;

    nvme_tcp_ic_req_encode(&pdu, 0, digests, 1);
    peer->digests = 0;
    if (!peer_send_pdu(peer, &pdu, NULL, 0) ||
        peer_recv_pdu(peer, &pdu, NULL, 0, &bytes) != PEER_PDU ||
        pdu.common.type != NVME_TCP_IC_RESP || pdu.ic.digests != digests)
        return false;
    peer->digests = digests;
    peer->h2c_max = le32_get(pdu.ic.limit);
    return true;
}

uint16_t peer_submit(struct peer *peer, struct nvme_sqe_wf *sqe, uint32_t data_bytes)
{
    union nvme_tcp_pdu pdu;
    struct nvme_sgl sgl = {.bytes = data_bytes};
    uint16_t cid = peer->cid++;

    sqe->cid = le16_of(cid);
    nvme_sgl_encode(&sgl, &sqe->sgl);
    nvme_tcp_cmd_encode(&pdu, sqe);
    (void)peer_send_pdu(peer, &pdu, NULL, 0);
    return cid;
}

/* Sends what an R2T asks for, in PDUs of the size that ICResp allows. */
static bool peer_answer_r2t(struct peer *peer, const struct nvme_tcp_r2t_wf *r2t, const void *out,
                            uint32_t out_bytes)
{
    uint32_t at = le32_get(r2t->offset);
    uint32_t end = at + le32_get(r2t->length);

    peer->r2ts++;
    if (end > out_bytes)
        return false;
    while (at < end) {
        uint32_t bytes = (uint32_t)u64_min(end - at, peer->h2c_max);
        union nvme_tcp_pdu pdu;

        nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, at + bytes == end ? NVME_TCP_FLAG_LAST : 0,
                             le16_get(r2t->cid), le16_get(r2t->ttag), at, bytes);
        if (!peer_send_pdu(peer, &pdu, (const uint8_t *)out + at, bytes))
            return false;
        at += bytes;
    }
    return true;
}

bool peer_complete(struct peer *peer, uint16_t cid, const void *out, uint32_t out_bytes, void *in,
                   uint32_t *io_in_bytes, struct nvme_cqe *out_cqe)
{
    uint32_t room = io_in_bytes != NULL ? *io_in_bytes : 0;
    uint32_t have = 0;

    for (;;) {
        union nvme_tcp_pdu pdu;
        uint32_t bytes;

        if (peer_recv_pdu(peer, &pdu, in == NULL ? NULL : (uint8_t *)in + have, room - have,
                          &bytes) != PEER_PDU)
            return false;
        switch (pdu.common.type) {
        case NVME_TCP_R2T:
            if (le16_get(pdu.r2t.cid) != cid || !peer_answer_r2t(peer, &pdu.r2t, out, out_bytes))
                return false;
            break;
        case NVME_TCP_C2H_DATA:
            if (le16_get(pdu.data.cid) != cid || le32_get(pdu.data.offset) != have)
                return false;
            peer->data_pdus++;
            have += bytes;
            break;
        case NVME_TCP_CAPSULE_RESP:
            nvme_cqe_decode(&pdu.resp.cqe, out_cqe);
            if (io_in_bytes != NULL)
                *io_in_bytes = have;
            return out_cqe->cid == cid;
        default:
            return false;
        }
    }
}

bool peer_command(struct peer *peer, struct nvme_sqe_wf *sqe, const void *out, uint32_t out_bytes,
                  void *in, uint32_t *io_in_bytes, struct nvme_cqe *out_cqe)
{
    union nvme_tcp_pdu pdu;
    struct nvme_sgl sgl = {
        .in_capsule = out_bytes > 0 && out_bytes <= peer->capsule_max,
        .bytes = out_bytes > 0         ? out_bytes
                 : io_in_bytes != NULL ? *io_in_bytes
                                       : 0,
    };
    uint16_t cid = peer->cid++;

    out_cqe->status = UINT16_MAX;
    sqe->cid = le16_of(cid);
    nvme_sgl_encode(&sgl, &sqe->sgl);
    nvme_tcp_cmd_encode(&pdu, sqe);
    if (!peer_send_pdu(peer, &pdu, out, sgl.in_capsule ? out_bytes : 0))
        return false;
    return peer_complete(peer, cid, out, out_bytes, in, io_in_bytes, out_cqe);
}

bool peer_plain(struct peer *peer, struct nvme_sqe_wf *sqe, struct nvme_cqe *out_cqe)
{
    return peer_command(peer, sqe, NULL, 0, NULL, NULL, out_cqe);
}

bool peer_connect(struct peer *peer, uint16_t qid, struct nvme_cqe *out_cqe)
{
    struct nvme_connect connect = {
        .qid = qid,
        .entries = peer->entries,
        .attributes = peer->attributes,
        .kato_ms = qid == 0 ? peer->kato_ms : 0,
        .cntlid = qid == 0 ? NVME_CNTLID_ANY : peer->cntlid,
        .hostid = {1, 2, 3},
    };
    uint8_t data[NVME_CONNECT_DATA_BYTES];
    struct nvme_sqe_wf sqe;
    uint32_t capsule_max = peer->capsule_max;
    bool answered;

    snprintf(connect.subnqn, sizeof(connect.subnqn), "%s", peer->subsys);
    snprintf(connect.hostnqn, sizeof(connect.hostnqn), "%s", peer->host);
    nvme_connect_encode(&connect, &sqe, data);
    peer->capsule_max = sizeof(data);
    answered = peer_command(peer, &sqe, data, sizeof(data), NULL, NULL, out_cqe);
    peer->capsule_max = capsule_max;
    if (!answered || out_cqe->status != NVME_SC_SUCCESS)
        return false;
    peer->cntlid = nvme_connect_cntlid(out_cqe->dw0);
    return true;
}

uint16_t peer_enable(struct peer *peer)
{
    struct nvme_property cc = {.set = true, .offset = NVME_REG_CC, .value = NVME_CC_START};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_property_encode(&cc, &sqe);
    return peer_plain(peer, &sqe, &cqe) ? cqe.status : UINT16_MAX;
}

bool peer_closed(struct peer *peer)
{
    union nvme_tcp_pdu pdu;
    uint32_t bytes;

    return peer_recv_pdu(peer, &pdu, NULL, 0, &bytes) == PEER_CLOSED;
}

bool peer_admin(struct peer *peer, uint8_t digests)
{
    struct nvme_property status = {.offset = NVME_REG_CSTS};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    if (!peer_hello(peer, digests) || !peer_connect(peer, 0, &cqe) ||
        peer_enable(peer) != NVME_SC_SUCCESS)
        return false;
    nvme_property_encode(&status, &sqe);
    return peer_plain(peer, &sqe, &cqe) && cqe.status == NVME_SC_SUCCESS &&
           cqe.dw0 == NVME_CSTS_READY;
}

bool peer_io(struct peer *peer, const struct peer *admin, uint16_t qid, uint8_t digests)
{
    struct nvme_cqe cqe;

    peer->cntlid = admin->cntlid;
    memcpy(peer->host, admin->host, sizeof(peer->host));
    memcpy(peer->subsys, admin->subsys, sizeof(peer->subsys));
    return peer_hello(peer, digests) && peer_connect(peer, qid, &cqe);
}

/* ---- KV ------------------------------------------------------------------------------------- */

static struct nvme_sqe_wf peer_kv(uint8_t opcode, uint32_t nsid, const char *key, uint32_t bytes,
                                  uint8_t options)
{
    struct nvme_kv_cmd cmd = {
        .opcode = opcode, .options = options, .nsid = nsid, .key = peer_key(key), .bytes = bytes};
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    return sqe;
}

uint16_t peer_store(struct peer *peer, uint32_t nsid, const char *key, const void *value,
                    uint32_t bytes, uint8_t options, struct nvme_cqe *out_cqe)
{
    struct nvme_sqe_wf sqe = peer_kv(NVME_KV_STORE, nsid, key, bytes, options);

    if (!peer_command(peer, &sqe, value, bytes, NULL, NULL, out_cqe))
        return UINT16_MAX;
    return out_cqe->status;
}

uint16_t peer_retrieve(struct peer *peer, uint32_t nsid, const char *key, void *value,
                       uint32_t *io_bytes, struct nvme_cqe *out_cqe)
{
    struct nvme_sqe_wf sqe = peer_kv(NVME_KV_RETRIEVE, nsid, key, *io_bytes, 0);

    if (!peer_command(peer, &sqe, NULL, 0, value, io_bytes, out_cqe))
        return UINT16_MAX;
    return out_cqe->status;
}

uint16_t peer_exist(struct peer *peer, uint32_t nsid, const char *key, struct nvme_cqe *out_cqe)
{
    struct nvme_sqe_wf sqe = peer_kv(NVME_KV_EXIST, nsid, key, 0, 0);

    return peer_plain(peer, &sqe, out_cqe) ? out_cqe->status : UINT16_MAX;
}

uint16_t peer_delete(struct peer *peer, uint32_t nsid, const char *key, struct nvme_cqe *out_cqe)
{
    struct nvme_sqe_wf sqe = peer_kv(NVME_KV_DELETE, nsid, key, 0, 0);

    return peer_plain(peer, &sqe, out_cqe) ? out_cqe->status : UINT16_MAX;
}
