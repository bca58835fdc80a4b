/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The PDUs of NVMe/TCP.
 *
 * Called by nvmf/pdu.c on its loop for every PDU. Pure. Invariant: what nvme_tcp_hdr_check accepts
 * has header_bytes <= NVME_TCP_HEADER_MAX and data_bytes within the rules, so a receiver needs no
 * bounds of its own.
 */
#include "wire/nvme_tcp.h"

#include "base/check.h"
#include "base/crc.h"

#define DIGESTS    (NVME_TCP_FLAG_HDGST | NVME_TCP_FLAG_DDGST)
#define PDA_MAX    31 /* 0's based: 128 bytes */
#define H2C_MIN    4096
#define AT_TYPE    0
#define AT_FLAGS   1
#define AT_HLEN    2
#define AT_PDO     3
#define AT_PLEN    4
#define AT_PFV     8
#define AT_PDA     10
#define AT_DIGESTS 11
#define AT_LIMIT   12
#define AT_OFFSET  12
#define AT_LENGTH  16

/* What every PDU of a type has. */
struct tcp_shape {
    uint8_t hlen;          /* of its header                                */
    uint8_t flags;         /* that it may carry                            */
    enum nvme_tcp_role to; /* who receives it                              */
    bool may_have_data;    /* data may follow                              */
    bool must_have_data;   /* data must follow                             */
};

static bool tcp_shape(uint8_t type, struct tcp_shape *out_shape)
{
    static const struct tcp_shape shapes[] = {
        [NVME_TCP_IC_REQ] = {128, 0, NVME_TCP_CONTROLLER, false, false},
        [NVME_TCP_IC_RESP] = {128, 0, NVME_TCP_HOST, false, false},
        [NVME_TCP_H2C_TERM] = {24, 0, NVME_TCP_CONTROLLER, true, false},
        [NVME_TCP_C2H_TERM] = {24, 0, NVME_TCP_HOST, true, false},
        [NVME_TCP_CAPSULE_CMD] = {72, DIGESTS, NVME_TCP_CONTROLLER, true, false},
        [NVME_TCP_CAPSULE_RESP] = {24, NVME_TCP_FLAG_HDGST, NVME_TCP_HOST, false, false},
        [NVME_TCP_H2C_DATA] = {24, DIGESTS | NVME_TCP_FLAG_LAST, NVME_TCP_CONTROLLER, true, true},
        [NVME_TCP_C2H_DATA] = {24, DIGESTS | NVME_TCP_FLAG_LAST | NVME_TCP_FLAG_SUCCESS,
                               NVME_TCP_HOST, true, true},
        [NVME_TCP_R2T] = {24, NVME_TCP_FLAG_HDGST, NVME_TCP_HOST, false, false},
    };

    if (type >= sizeof(shapes) / sizeof(shapes[0]) || shapes[type].hlen == 0)
        return false;
    *out_shape = shapes[type];
    return true;
}

static bool tcp_is_ic(uint8_t type)
{
    return type == NVME_TCP_IC_REQ || type == NVME_TCP_IC_RESP;
}

static bool tcp_is_term(uint8_t type)
{
    return type == NVME_TCP_H2C_TERM || type == NVME_TCP_C2H_TERM;
}

/* ---- encode --------------------------------------------------------------------------------- */

/* Zeroes the header of its type and sets the type. */
static void tcp_begin(union nvme_tcp_pdu *pdu, enum nvme_tcp_type type)
{
    memset(pdu, 0, sizeof(*pdu));
    pdu->common.type = (uint8_t)type;
}

void nvme_tcp_ic_req_encode(union nvme_tcp_pdu *pdu, uint8_t hpda, uint8_t digests,
                            uint32_t r2t_max)
{
    check(hpda <= PDA_MAX && (digests & ~DIGESTS) == 0 && r2t_max >= 1);
    tcp_begin(pdu, NVME_TCP_IC_REQ);
    pdu->ic.pda = hpda;
    pdu->ic.digests = digests;
    pdu->ic.limit = le32_of(r2t_max - 1);
}

void nvme_tcp_ic_resp_encode(union nvme_tcp_pdu *pdu, uint8_t cpda, uint8_t digests,
                             uint32_t h2c_data_max)
{
    check(cpda <= PDA_MAX && (digests & ~DIGESTS) == 0);
    check(h2c_data_max >= H2C_MIN && h2c_data_max % 4 == 0);
    tcp_begin(pdu, NVME_TCP_IC_RESP);
    pdu->ic.pda = cpda;
    pdu->ic.digests = digests;
    pdu->ic.limit = le32_of(h2c_data_max);
}

void nvme_tcp_cmd_encode(union nvme_tcp_pdu *pdu, const struct nvme_sqe_wf *sqe)
{
    tcp_begin(pdu, NVME_TCP_CAPSULE_CMD);
    pdu->cmd.sqe = *sqe;
}

void nvme_tcp_resp_encode(union nvme_tcp_pdu *pdu, const struct nvme_cqe *cqe)
{
    tcp_begin(pdu, NVME_TCP_CAPSULE_RESP);
    nvme_cqe_encode(cqe, &pdu->resp.cqe);
}

void nvme_tcp_data_encode(union nvme_tcp_pdu *pdu, enum nvme_tcp_type type, uint8_t flags,
                          uint16_t cid, uint16_t ttag, uint32_t offset, uint32_t length)
{
    check(type == NVME_TCP_H2C_DATA || type == NVME_TCP_C2H_DATA);
    tcp_begin(pdu, type);
    pdu->common.flags = flags & (NVME_TCP_FLAG_LAST | NVME_TCP_FLAG_SUCCESS);
    pdu->data.cid = le16_of(cid);
    pdu->data.ttag = le16_of(ttag);
    pdu->data.offset = le32_of(offset);
    pdu->data.length = le32_of(length);
}

void nvme_tcp_r2t_encode(union nvme_tcp_pdu *pdu, uint16_t cid, uint16_t ttag, uint32_t offset,
                         uint32_t length)
{
    tcp_begin(pdu, NVME_TCP_R2T);
    pdu->r2t.cid = le16_of(cid);
    pdu->r2t.ttag = le16_of(ttag);
    pdu->r2t.offset = le32_of(offset);
    pdu->r2t.length = le32_of(length);
}

void nvme_tcp_term_encode(union nvme_tcp_pdu *pdu, enum nvme_tcp_type type, struct nvme_tcp_bad bad)
{
    le32 fei = le32_of(bad.fei);

    check(tcp_is_term((uint8_t)type));
    tcp_begin(pdu, type);
    pdu->term.fes = le16_of((uint16_t)bad.fes);
    memcpy(pdu->term.fei, &fei, sizeof(fei));
}

void nvme_tcp_term_decode(const union nvme_tcp_pdu *pdu, struct nvme_tcp_bad *out_bad)
{
    le32 fei;

    memcpy(&fei, pdu->term.fei, sizeof(fei));
    *out_bad = (struct nvme_tcp_bad){.fes = le16_get(pdu->term.fes), .fei = le32_get(fei)};
}

uint32_t nvme_tcp_frame_encode(union nvme_tcp_pdu *pdu, uint32_t data_bytes, uint8_t digests,
                               uint8_t pda)
{
    uint8_t type = pdu->common.type;
    uint32_t align = ((uint32_t)pda + 1) * 4;
    uint32_t head, pdo, plen;
    struct tcp_shape shape;

    check(tcp_shape(type, &shape));
    check((data_bytes == 0 || shape.may_have_data) && pda <= PDA_MAX);
    if (tcp_is_ic(type) || tcp_is_term(type))
        digests = 0;
    head = shape.hlen + (digests & NVME_TCP_FLAG_HDGST ? NVME_TCP_DIGEST_BYTES : 0);
    pdo = head;
    if (data_bytes > 0 && !tcp_is_term(type))
        pdo = (head + align - 1) / align * align;
    plen = pdo + data_bytes;
    pdu->common.flags &= (uint8_t)~DIGESTS;
    if (digests & NVME_TCP_FLAG_HDGST)
        pdu->common.flags |= NVME_TCP_FLAG_HDGST;
    if (data_bytes > 0 && (digests & NVME_TCP_FLAG_DDGST)) {
        pdu->common.flags |= NVME_TCP_FLAG_DDGST;
        plen += NVME_TCP_DIGEST_BYTES;
    }
    pdu->common.hlen = shape.hlen;
    pdu->common.pdo = data_bytes > 0 && !tcp_is_term(type) ? (uint8_t)pdo : 0;
    pdu->common.plen = le32_of(plen);
    check(pdo >= shape.hlen && pdo <= sizeof(pdu->bytes));
    memset(pdu->bytes + shape.hlen, 0, pdo - shape.hlen);
    if (digests & NVME_TCP_FLAG_HDGST) {
        le32 digest = le32_of(crc32c(pdu->bytes, shape.hlen));

        for (uint32_t i = 0; i < sizeof(digest); i++)
            pdu->bytes[shape.hlen + i] = digest.byte[i];
    }
    return pdo;
}

/* ---- decode --------------------------------------------------------------------------------- */

static icms_err tcp_bad(struct nvme_tcp_bad *out_bad, enum nvme_tcp_fes fes, uint32_t fei)
{
    *out_bad = (struct nvme_tcp_bad){.fes = fes, .fei = fei};
    return ICMS_PROTOCOL;
}

/* The largest data of a type. */
static uint32_t tcp_data_max(uint8_t type, const struct nvme_tcp_rules *rules)
{
    if (tcp_is_term(type))
        return NVME_TCP_TERM_DATA_MAX;
    return type == NVME_TCP_CAPSULE_CMD ? rules->capsule_data_max : rules->data_max;
}

/* plen and pdo: where the data is and how long. head is header with digest. */
static icms_err tcp_layout_check(const struct nvme_tcp_common_wf *common,
                                 const struct tcp_shape *shape, const struct nvme_tcp_rules *rules,
                                 struct nvme_tcp_frame *frame, struct nvme_tcp_bad *out_bad)
{
    uint32_t head = frame->hlen + (frame->hdgst ? NVME_TCP_DIGEST_BYTES : 0);
    uint32_t tail = frame->ddgst ? NVME_TCP_DIGEST_BYTES : 0;
    uint32_t align = ((uint32_t)rules->pda + 1) * 4;
    uint32_t pdo = head;

    frame->plen = le32_get(common->plen);
    if (frame->plen < head || (frame->plen > head && !shape->may_have_data) ||
        (frame->plen == head && (shape->must_have_data || frame->ddgst)))
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_PLEN);
    if (frame->plen > head && !tcp_is_term(common->type)) {
        pdo = common->pdo;
        if (pdo < head || pdo > NVME_TCP_HEADER_MAX || pdo % align != 0)
            return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_PDO);
        if (frame->plen < pdo + tail + 1)
            return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_PLEN);
    }
    frame->header_bytes = pdo;
    frame->data_bytes = frame->plen - pdo - tail;
    if (frame->data_bytes > tcp_data_max(common->type, rules))
        return tcp_bad(out_bad, NVME_TCP_FES_LIMIT, AT_PLEN);
    return ICMS_OK;
}

icms_err nvme_tcp_hdr_check(const struct nvme_tcp_common_wf *common,
                            const struct nvme_tcp_rules *rules, struct nvme_tcp_frame *out_frame,
                            struct nvme_tcp_bad *out_bad)
{
    uint8_t type = common->type, flags = common->flags, digests;
    struct nvme_tcp_frame frame = {.type = type, .flags = flags};
    struct tcp_shape shape;
    icms_err err;

    if (!tcp_shape(type, &shape) || shape.to != rules->role)
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_TYPE);
    if (!tcp_is_term(type) && tcp_is_ic(type) == rules->connected)
        return tcp_bad(out_bad, NVME_TCP_FES_SEQUENCE, AT_TYPE);
    if (common->hlen != shape.hlen)
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_HLEN);
    digests = tcp_is_ic(type) || tcp_is_term(type) ? 0 : rules->digests;
    if ((flags & ~shape.flags) != 0 || (flags & DIGESTS & ~digests) != 0 ||
        (digests & NVME_TCP_FLAG_HDGST & ~flags) != 0 ||
        ((flags & NVME_TCP_FLAG_SUCCESS) && !(flags & NVME_TCP_FLAG_LAST)))
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_FLAGS);
    frame.hlen = shape.hlen;
    frame.hdgst = flags & NVME_TCP_FLAG_HDGST;
    frame.ddgst = flags & NVME_TCP_FLAG_DDGST;
    err = tcp_layout_check(common, &shape, rules, &frame, out_bad);
    if (err != ICMS_OK)
        return err;
    /* Data without the digest that was agreed on. */
    if (frame.data_bytes > 0 && (digests & NVME_TCP_FLAG_DDGST) && !frame.ddgst)
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_FLAGS);
    *out_frame = frame;
    return ICMS_OK;
}

static icms_err tcp_ic_check(const struct nvme_tcp_ic_wf *ic, struct nvme_tcp_bad *out_bad)
{
    uint32_t limit = le32_get(ic->limit);

    if (le16_get(ic->pfv) != 0)
        return tcp_bad(out_bad, NVME_TCP_FES_UNSUPPORTED, AT_PFV);
    if (ic->pda > PDA_MAX)
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_PDA);
    if ((ic->digests & ~DIGESTS) != 0)
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_DIGESTS);
    if (ic->common.type == NVME_TCP_IC_RESP && (limit < H2C_MIN || limit % 4 != 0))
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_LIMIT);
    return ICMS_OK;
}

/* Data PDUs and R2T share the places of offset and length. */
static icms_err tcp_range_check(const struct nvme_tcp_data_wf *data, struct nvme_tcp_bad *out_bad)
{
    uint32_t offset = le32_get(data->offset), length = le32_get(data->length);

    if (length == 0)
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_LENGTH);
    if (offset % 4 != 0)
        return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_OFFSET);
    if (length > UINT32_MAX - offset)
        return tcp_bad(out_bad, NVME_TCP_FES_RANGE, AT_OFFSET);
    return ICMS_OK;
}

icms_err nvme_tcp_pdu_check(const union nvme_tcp_pdu *pdu, const struct nvme_tcp_frame *frame,
                            struct nvme_tcp_bad *out_bad)
{
    static_assert(offsetof(struct nvme_tcp_r2t_wf, length) ==
                      offsetof(struct nvme_tcp_data_wf, length),
                  "R2T and data PDUs are checked alike");

    if (frame->hdgst) {
        le32 digest;

        memcpy(&digest, pdu->bytes + frame->hlen, sizeof(digest));
        if (le32_get(digest) != crc32c(pdu->bytes, frame->hlen))
            return tcp_bad(out_bad, NVME_TCP_FES_HDGST, le32_get(digest));
    }
    switch (frame->type) {
    case NVME_TCP_IC_REQ:
    case NVME_TCP_IC_RESP:
        return tcp_ic_check(&pdu->ic, out_bad);
    case NVME_TCP_H2C_DATA:
    case NVME_TCP_C2H_DATA:
        if (le32_get(pdu->data.length) != frame->data_bytes)
            return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_LENGTH);
        return tcp_range_check(&pdu->data, out_bad);
    case NVME_TCP_R2T:
        return tcp_range_check(&pdu->data, out_bad);
    case NVME_TCP_CAPSULE_CMD:
    case NVME_TCP_CAPSULE_RESP:
    case NVME_TCP_H2C_TERM:
    case NVME_TCP_C2H_TERM:
        return ICMS_OK;
    }
    return tcp_bad(out_bad, NVME_TCP_FES_HEADER, AT_TYPE);
}

/* ---- digests -------------------------------------------------------------------------------- */

bool nvme_tcp_ddgst_matches(uint32_t crc, uint32_t bytes, uint32_t received)
{
    static const uint8_t zeros[3];

    if (crc == received)
        return true;
    return bytes % 4 != 0 && crc32c_add(crc, zeros, 4 - bytes % 4) == received;
}
