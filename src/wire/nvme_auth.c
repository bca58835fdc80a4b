/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of DH-HMAC-CHAP, and the commands that carry them, see nvme_auth.h.
 *
 * Called by nvmf (both sides) before a queue pair is used, on its loop. Pure.
 */
#include "wire/nvme_auth.h"

#include "base/check.h"
#include "wire/nvme_fabrics.h"

#define AUTH_TYPE_COMMON 0x00
#define AUTH_TYPE_DHCHAP 0x01
#define AUTH_SECP        0xe9 /* security protocol of NVMe                */

struct auth_head_wf {
    uint8_t type; /* @0 AUTH_TYPE_*      */
    uint8_t id;   /* @1 enum nvme_auth_id */
    le16 reserved2;
    le16 t_id; /* @4 */
};

struct auth_protocol_wf {
    uint8_t authid; /* @0 1: DH-HMAC-CHAP */
    uint8_t reserved1;
    uint8_t hash_count;  /* @2 */
    uint8_t group_count; /* @3 */
    uint8_t hashes[NVME_AUTH_IDS_MAX];
    uint8_t groups[NVME_AUTH_IDS_MAX];
};

struct auth_negotiate_wf {
    struct auth_head_wf head;
    uint8_t concat;         /* @6               */
    uint8_t protocol_count; /* @7; they follow  */
};

struct auth_challenge_wf {
    struct auth_head_wf head;
    uint8_t value_bytes; /* @6 */
    uint8_t reserved7;
    uint8_t hash;  /* @8  */
    uint8_t group; /* @9  */
    le16 dh_bytes; /* @10 */
    le32 seqnum;   /* @12; challenge, DH value */
};

struct auth_reply_wf {
    struct auth_head_wf head;
    uint8_t value_bytes; /* @6 */
    uint8_t reserved7;
    uint8_t is_mutual; /* @8: the challenge is valid */
    uint8_t reserved9;
    le16 dh_bytes; /* @10 */
    le32 seqnum;   /* @12; response, challenge, DH value */
};

struct auth_success1_wf {
    struct auth_head_wf head;
    uint8_t value_bytes; /* @6 */
    uint8_t reserved7;
    uint8_t has_value; /* @8: the response is valid */
    uint8_t reserved9[7];
};

struct auth_success2_wf {
    struct auth_head_wf head;
    uint8_t reserved6[10];
};

struct auth_failure_wf {
    struct auth_head_wf head;
    uint8_t reason; /* @6 */
    uint8_t why;    /* @7 */
};

static_assert(sizeof(struct auth_protocol_wf) == 64 && sizeof(struct auth_negotiate_wf) == 8,
              "negotiate");
static_assert(sizeof(struct auth_challenge_wf) == 16 && sizeof(struct auth_reply_wf) == 16 &&
                  sizeof(struct auth_success1_wf) == 16 && sizeof(struct auth_success2_wf) == 16 &&
                  sizeof(struct auth_failure_wf) == 8,
              "messages");

static bool auth_is_common(enum nvme_auth_id id)
{
    return id == NVME_AUTH_NEGOTIATE || id == NVME_AUTH_FAILURE1 || id == NVME_AUTH_FAILURE2;
}

/* ---- encoding ------------------------------------------------------------------------------- */

static size_t auth_put(uint8_t *out, size_t at, const uint8_t *from, size_t bytes)
{
    if (bytes > 0 && from != NULL)
        memcpy(out + at, from, bytes);
    else
        memset(out + at, 0, bytes);
    return at + bytes;
}

static size_t auth_encode_negotiate(const struct nvme_auth_msg *msg, struct auth_head_wf head,
                                    uint8_t *out)
{
    struct auth_negotiate_wf wf = {.head = head, .concat = msg->concat, .protocol_count = 1};
    struct auth_protocol_wf protocol = {
        .authid = 1, .hash_count = msg->hash_count, .group_count = msg->group_count};

    check(msg->hash_count <= NVME_AUTH_IDS_MAX && msg->group_count <= NVME_AUTH_IDS_MAX);
    memcpy(protocol.hashes, msg->hashes, msg->hash_count);
    memcpy(protocol.groups, msg->groups, msg->group_count);
    memcpy(out, &wf, sizeof(wf));
    memcpy(out + sizeof(wf), &protocol, sizeof(protocol));
    return sizeof(wf) + sizeof(protocol);
}

static size_t auth_encode_challenge(const struct nvme_auth_msg *msg, struct auth_head_wf head,
                                    uint8_t *out)
{
    struct auth_challenge_wf wf = {.head = head,
                                   .value_bytes = msg->value_bytes,
                                   .hash = msg->hash,
                                   .group = msg->group,
                                   .dh_bytes = le16_of(msg->dh_bytes),
                                   .seqnum = le32_of(msg->seqnum)};
    size_t at = auth_put(out, 0, (const uint8_t *)&wf, sizeof(wf));

    at = auth_put(out, at, msg->value, msg->value_bytes);
    return auth_put(out, at, msg->dh, msg->dh_bytes);
}

static size_t auth_encode_reply(const struct nvme_auth_msg *msg, struct auth_head_wf head,
                                uint8_t *out)
{
    struct auth_reply_wf wf = {.head = head,
                               .value_bytes = msg->value_bytes,
                               .is_mutual = msg->challenge != NULL,
                               .dh_bytes = le16_of(msg->dh_bytes),
                               .seqnum = le32_of(msg->seqnum)};
    size_t at = auth_put(out, 0, (const uint8_t *)&wf, sizeof(wf));

    at = auth_put(out, at, msg->value, msg->value_bytes);
    at = auth_put(out, at, msg->challenge, msg->value_bytes);
    return auth_put(out, at, msg->dh, msg->dh_bytes);
}

static size_t auth_encode_success1(const struct nvme_auth_msg *msg, struct auth_head_wf head,
                                   uint8_t *out)
{
    struct auth_success1_wf wf = {
        .head = head, .value_bytes = msg->value_bytes, .has_value = msg->value != NULL};
    size_t at = auth_put(out, 0, (const uint8_t *)&wf, sizeof(wf));

    return auth_put(out, at, msg->value, msg->value_bytes);
}

size_t nvme_auth_encode(const struct nvme_auth_msg *msg, uint8_t out[NVME_AUTH_BYTES_MAX])
{
    struct auth_head_wf head = {
        .type = auth_is_common(msg->id) ? AUTH_TYPE_COMMON : AUTH_TYPE_DHCHAP,
        .id = (uint8_t)msg->id,
        .t_id = le16_of(msg->t_id),
    };
    struct auth_success2_wf success2 = {.head = head};
    struct auth_failure_wf failure = {.head = head, .reason = msg->reason, .why = msg->why};

    check(msg->value_bytes <= 64 && msg->dh_bytes <= 1024);
    switch (msg->id) {
    case NVME_AUTH_NEGOTIATE:
        return auth_encode_negotiate(msg, head, out);
    case NVME_AUTH_CHALLENGE:
        return auth_encode_challenge(msg, head, out);
    case NVME_AUTH_REPLY:
        return auth_encode_reply(msg, head, out);
    case NVME_AUTH_SUCCESS1:
        return auth_encode_success1(msg, head, out);
    case NVME_AUTH_SUCCESS2:
        return auth_put(out, 0, (const uint8_t *)&success2, sizeof(success2));
    case NVME_AUTH_FAILURE1:
    case NVME_AUTH_FAILURE2:
        return auth_put(out, 0, (const uint8_t *)&failure, sizeof(failure));
    }
    check(false);
    return 0;
}

/* ---- decoding ------------------------------------------------------------------------------- */

static bool value_length_fits(uint8_t bytes)
{
    return bytes == 32 || bytes == 48 || bytes == 64;
}

static icms_err auth_decode_negotiate(const uint8_t *data, size_t bytes, struct nvme_auth_msg *msg)
{
    struct auth_negotiate_wf wf;
    struct auth_protocol_wf protocol;

    if (bytes < sizeof(wf))
        return ICMS_PROTOCOL;
    memcpy(&wf, data, sizeof(wf));
    msg->concat = wf.concat;
    if (bytes - sizeof(wf) < wf.protocol_count * sizeof(protocol))
        return ICMS_PROTOCOL;
    for (unsigned i = 0; i < wf.protocol_count; i++) {
        memcpy(&protocol, data + sizeof(wf) + i * sizeof(protocol), sizeof(protocol));
        if (protocol.authid != 1)
            continue;
        if (protocol.hash_count > NVME_AUTH_IDS_MAX || protocol.group_count > NVME_AUTH_IDS_MAX)
            return ICMS_PROTOCOL;
        msg->hash_count = protocol.hash_count;
        msg->group_count = protocol.group_count;
        memcpy(msg->hashes, protocol.hashes, protocol.hash_count);
        memcpy(msg->groups, protocol.groups, protocol.group_count);
        break;
    }
    return ICMS_OK;
}

/* values of value_bytes, then a DH value, behind the 16 bytes that each of these messages begins
 * with. */
static icms_err auth_values(const uint8_t *data, size_t bytes, unsigned values,
                            struct nvme_auth_msg *msg)
{
    size_t need = 16 + (size_t)values * msg->value_bytes;

    if (!value_length_fits(msg->value_bytes) || msg->dh_bytes % 4 != 0 || msg->dh_bytes > 1024 ||
        bytes < need + msg->dh_bytes)
        return ICMS_PROTOCOL;
    msg->value = data + 16;
    msg->dh = msg->dh_bytes > 0 ? data + need : NULL;
    return ICMS_OK;
}

static icms_err auth_decode_challenge(const uint8_t *data, size_t bytes, struct nvme_auth_msg *msg)
{
    struct auth_challenge_wf wf;

    if (bytes < sizeof(wf))
        return ICMS_PROTOCOL;
    memcpy(&wf, data, sizeof(wf));
    msg->value_bytes = wf.value_bytes;
    msg->hash = wf.hash;
    msg->group = wf.group;
    msg->dh_bytes = le16_get(wf.dh_bytes);
    msg->seqnum = le32_get(wf.seqnum);
    return auth_values(data, bytes, 1, msg);
}

static icms_err auth_decode_reply(const uint8_t *data, size_t bytes, struct nvme_auth_msg *msg)
{
    struct auth_reply_wf wf;
    icms_err err;

    if (bytes < sizeof(wf))
        return ICMS_PROTOCOL;
    memcpy(&wf, data, sizeof(wf));
    msg->value_bytes = wf.value_bytes;
    msg->dh_bytes = le16_get(wf.dh_bytes);
    msg->seqnum = le32_get(wf.seqnum);
    if (wf.is_mutual > 1)
        return ICMS_PROTOCOL;
    err = auth_values(data, bytes, 2, msg);
    if (err == ICMS_OK && wf.is_mutual == 1)
        msg->challenge = msg->value + msg->value_bytes;
    return err;
}

static icms_err auth_decode_success1(const uint8_t *data, size_t bytes, struct nvme_auth_msg *msg)
{
    struct auth_success1_wf wf;

    if (bytes < sizeof(wf))
        return ICMS_PROTOCOL;
    memcpy(&wf, data, sizeof(wf));
    if (wf.has_value > 1)
        return ICMS_PROTOCOL;
    if (wf.has_value == 0) {
        msg->value_bytes = value_length_fits(wf.value_bytes) ? wf.value_bytes : 0;
        return ICMS_OK;
    }
    msg->value_bytes = wf.value_bytes;
    return auth_values(data, bytes, 1, msg);
}

static icms_err auth_decode_failure(const uint8_t *data, size_t bytes, struct nvme_auth_msg *msg)
{
    struct auth_failure_wf wf;

    if (bytes < sizeof(wf))
        return ICMS_PROTOCOL;
    memcpy(&wf, data, sizeof(wf));
    msg->reason = wf.reason;
    msg->why = wf.why;
    return ICMS_OK;
}

icms_err nvme_auth_decode(const void *data, size_t bytes, struct nvme_auth_msg *out_msg)
{
    struct nvme_auth_msg msg = {.id = NVME_AUTH_NEGOTIATE};
    struct auth_head_wf head;
    icms_err err;

    if (bytes < sizeof(head))
        return ICMS_PROTOCOL;
    memcpy(&head, data, sizeof(head));
    if (head.type !=
        (auth_is_common((enum nvme_auth_id)head.id) ? AUTH_TYPE_COMMON : AUTH_TYPE_DHCHAP))
        return ICMS_PROTOCOL;
    msg.id = (enum nvme_auth_id)head.id;
    msg.t_id = le16_get(head.t_id);
    switch (head.id) {
    case NVME_AUTH_NEGOTIATE:
        err = auth_decode_negotiate(data, bytes, &msg);
        break;
    case NVME_AUTH_CHALLENGE:
        err = auth_decode_challenge(data, bytes, &msg);
        break;
    case NVME_AUTH_REPLY:
        err = auth_decode_reply(data, bytes, &msg);
        break;
    case NVME_AUTH_SUCCESS1:
        err = auth_decode_success1(data, bytes, &msg);
        break;
    case NVME_AUTH_SUCCESS2:
        err = bytes < sizeof(struct auth_success2_wf) ? ICMS_PROTOCOL : ICMS_OK;
        break;
    case NVME_AUTH_FAILURE1:
    case NVME_AUTH_FAILURE2:
        err = auth_decode_failure(data, bytes, &msg);
        break;
    default:
        err = ICMS_PROTOCOL;
    }
    if (err == ICMS_OK)
        *out_msg = msg;
    return err;
}

/* ---- commands ------------------------------------------------------------------------------- */

void nvme_auth_cmd_encode(bool is_send, uint32_t bytes, struct nvme_sqe_wf *out_sqe)
{
    *out_sqe = (struct nvme_sqe_wf){.opcode = NVME_FABRICS, .flags = NVME_SQE_FLAGS_SGL};
    out_sqe->nsid.byte[0] = is_send ? NVME_FCTYPE_AUTH_SEND : NVME_FCTYPE_AUTH_RECEIVE;
    out_sqe->cdw10 = le32_of((uint32_t)AUTH_SECP << 24 | 1u << 16 | 1u << 8);
    out_sqe->cdw11 = le32_of(bytes);
}

icms_err nvme_auth_cmd_decode(const struct nvme_sqe_wf *sqe, uint32_t *out_bytes)
{
    if (sqe->cdw10.byte[1] != 1 || sqe->cdw10.byte[2] != 1 || sqe->cdw10.byte[3] != AUTH_SECP)
        return ICMS_INVALID;
    *out_bytes = le32_get(sqe->cdw11);
    return ICMS_OK;
}
