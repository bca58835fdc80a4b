/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/fake_target.c: see fake_target.h. Test code: takes memory as it needs it, and check()s
 * what a correct initiator must not do.
 */
#include "nvmf/host/fake_target.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "wire/nvme_auth.h"
#include "wire/nvme_fabrics.h"
#include "wire/nvme_identify.h"
#include "wire/nvme_log.h"

#define FAKE_CMDS 256 /* commands of a connection: ttags */

struct fake_conn;

struct fake_cmd {
    struct list link; /* held                                                  */
    struct fake_conn *conn;
    struct nvme_sqe_wf sqe;
    struct nvme_kv_cmd kv; /* I/O commands                                          */
    uint16_t ttag;
    uint8_t *data;           /* H2C: arrives here; C2H: goes from here                */
    uint32_t bytes;          /* of the transfer                                       */
    uint32_t got;            /* H2C: arrived. C2H: sent                               */
    bool is_expedited;       /* of class PRESTAGE, and waited for                     */
    uint32_t asked;          /* H2C: asked for                                        */
    uint32_t dw1;            /* of a success                                          */
    struct loop_timer timer; /* delay                                                 */
};

struct fake_conn {
    struct list link;
    struct fake_target *target;
    struct nvmf_pdu_conn pdu;
    uint16_t qid;
    bool connected;
    enum nvme_auth_id auth_id; /* of the last message of the host                    */
    uint16_t auth_t_id;        /* of it                                              */
    uint8_t *in_capsule;       /* data of the capsule that arrives                      */
    struct fake_cmd *cmds[FAKE_CMDS];
    struct fake_cmd *event; /* Async Event Request                                   */
    uint32_t txs;           /* in flight                                             */
};

struct fake_tx {
    struct nvmf_pdu_tx tx;
    struct fake_conn *conn;
    uint8_t *data; /* freed with it */
};

/* ---- blocks --------------------------------------------------------------------------------- */

struct fake_block *fake_target_find(struct fake_target *target, uint32_t nsid,
                                    const struct key *key)
{
    list_for_each (link, &target->blocks) {
        struct fake_block *block = container_of(link, struct fake_block, link);

        if (block->nsid == nsid && key_equal(&block->key, key))
            return block;
    }
    return NULL;
}

bool fake_target_remove(struct fake_target *target, uint32_t nsid, const struct key *key)
{
    struct fake_block *block = fake_target_find(target, nsid, key);

    if (block == NULL)
        return false;
    list_remove(&block->link);
    free(block->data);
    free(block);
    return true;
}

void fake_target_put(struct fake_target *target, uint32_t nsid, const struct key *key,
                     const void *data, uint32_t bytes)
{
    struct fake_block *block = calloc(1, sizeof(*block));

    check(block != NULL);
    (void)fake_target_remove(target, nsid, key);
    block->nsid = nsid;
    block->key = *key;
    block->bytes = bytes;
    block->record = ++target->records_put;
    block->data = malloc(bytes);
    check(block->data != NULL);
    memcpy(block->data, data, bytes);
    list_push(&target->blocks, &block->link);
}

/* ---- sending -------------------------------------------------------------------------------- */

static void fake_sent(struct nvmf_pdu_tx *tx, icms_err err)
{
    struct fake_tx *fake = container_of(tx, struct fake_tx, tx);

    fake->conn->txs--;
    free(fake->data);
    free(fake);
}

static struct fake_tx *fake_tx_new(struct fake_conn *conn)
{
    struct fake_tx *fake = calloc(1, sizeof(*fake));

    check(fake != NULL);
    fake->conn = conn;
    fake->tx.done = fake_sent;
    conn->txs++;
    return fake;
}

static void fake_cmd_free(struct fake_cmd *cmd)
{
    if (cmd->conn->cmds[cmd->ttag] == cmd)
        cmd->conn->cmds[cmd->ttag] = NULL;
    loop_timer_stop(cmd->conn->target->loop, &cmd->timer);
    list_remove(&cmd->link);
    free(cmd->data);
    free(cmd);
}

static void fake_cqe_send(struct fake_conn *conn, uint16_t cid, uint16_t status, uint32_t dw0,
                          uint32_t dw1)
{
    struct nvme_cqe cqe = {
        .cid = cid, .status = status, .dw0 = dw0, .dw1 = dw1, .dnr = status != 0};
    struct fake_tx *fake = fake_tx_new(conn);

    nvme_tcp_resp_encode(&fake->tx.pdu, &cqe);
    nvmf_pdu_send(&conn->pdu, &fake->tx);
}

/* True when the next wrong thing is this one; it is used up. */
static bool fake_wrong(struct fake_target *target, enum fake_wrong wrong)
{
    if (target->wrong != wrong)
        return false;
    target->wrong = FAKE_RIGHT;
    return true;
}

/* Answers and frees. */
static void fake_answer(struct fake_cmd *cmd, uint16_t status, uint32_t dw0)
{
    struct fake_conn *conn = cmd->conn;
    struct fake_target *target = conn->target;
    uint16_t cid = le16_get(cmd->sqe.cid);

    if (target->silent)
        return;
    if (conn->qid != 0 && fake_wrong(target, FAKE_CQE_CID))
        cid ^= 0x155;
    if (conn->qid != 0 && fake_wrong(target, FAKE_CQE_OLD))
        cid ^= 0x8000; /* the generation */
    fake_cqe_send(conn, cid, status, dw0, status != 0 ? target->reason : cmd->dw1);
    if (conn->qid != 0 && fake_wrong(target, FAKE_CQE_TWICE))
        fake_cqe_send(conn, cid, status, dw0, 0);
    fake_cmd_free(cmd);
}

static void fake_data_pdu(struct fake_cmd *cmd, uint16_t cid, uint32_t offset, const uint8_t *data,
                          uint32_t bytes, uint8_t flags)
{
    struct fake_tx *fake = fake_tx_new(cmd->conn);

    fake->data = malloc(bytes);
    check(fake->data != NULL);
    memcpy(fake->data, data, bytes);
    nvme_tcp_data_encode(&fake->tx.pdu, NVME_TCP_C2H_DATA, flags, cid, 0, offset, bytes);
    fake->tx.data[0] = (struct iovec){fake->data, bytes};
    nvmf_pdu_send(&cmd->conn->pdu, &fake->tx);
    if (cmd->conn->qid != 0 && cmd->conn->target->bad_digest)
        fake->tx.ddgst.byte[0] ^= 1; /* what is sent inside of a callback leaves at its end */
    cmd->conn->target->bad_digest = false;
}

/* Sends data of a command, then its answer. whole: the result. */
static void fake_data_answer(struct fake_cmd *cmd, const uint8_t *data, uint32_t bytes,
                             uint32_t whole)
{
    struct fake_target *target = cmd->conn->target;
    bool io = cmd->conn->qid != 0;
    uint16_t cid = le16_get(cmd->sqe.cid);
    uint32_t step = io && target->c2h_bytes != 0 ? target->c2h_bytes : bytes;
    uint8_t *more;

    if (target->silent)
        return;
    if (io && fake_wrong(target, FAKE_DATA_LONG)) {
        more = calloc(1, bytes + 1);
        check(more != NULL);
        memcpy(more, data, bytes);
        fake_data_pdu(cmd, cid, 0, more, bytes + 1, NVME_TCP_FLAG_LAST);
        free(more);
        return;
    }
    if (io && fake_wrong(target, FAKE_DATA_OFFSET)) {
        fake_data_pdu(cmd, cid, 4, data, bytes - 4, NVME_TCP_FLAG_LAST);
        return;
    }
    if (io && fake_wrong(target, FAKE_DATA_CID)) {
        fake_data_pdu(cmd, cid ^ 0x155, 0, data, bytes, NVME_TCP_FLAG_LAST);
        return;
    }
    if (io && fake_wrong(target, FAKE_DATA_OLD)) {
        fake_data_pdu(cmd, cid ^ 0x8000, 0, data, bytes, NVME_TCP_FLAG_LAST);
        return;
    }
    if (io && fake_wrong(target, FAKE_DATA_SHORT))
        bytes /= 2;
    for (uint32_t at = 0; at < bytes; at += step) {
        uint32_t n = bytes - at < step ? bytes - at : step;
        bool last = at + n == bytes;
        uint8_t flags = last ? NVME_TCP_FLAG_LAST : 0;

        if (last && io && target->success_flag)
            flags |= NVME_TCP_FLAG_SUCCESS;
        fake_data_pdu(cmd, cid, at, data + at, n, flags);
    }
    if (io && target->success_flag)
        fake_cmd_free(cmd);
    else
        fake_answer(cmd, 0, whole);
}

/* ---- admin ---------------------------------------------------------------------------------- */

static void fake_identify(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;
    struct nvme_identify identify;
    uint8_t page[NVME_PAGE_BYTES] = {0};
    uint32_t nsids[FAKE_VOLUMES];
    const struct fake_volume *volume;

    nvme_identify_decode(&cmd->sqe, &identify);
    volume = &target->volumes[(identify.nsid - 1) % FAKE_VOLUMES];
    if (identify.cns == NVME_CNS_CTRL) {
        struct nvme_ctrl ctrl = {
            .model = "fake",
            .firmware = "1",
            .type = NVME_CTRL_IO,
            .cntlid = 7,
            .version = NVME_VERSION_2_0,
            .oaes = NVME_OAES_NS_CHANGED,
            .async_events = 4,
            .keep_alive_100ms = 1,
            .commands_max = 128,
            .nsid_max = FAKE_VOLUMES,
            .in_capsule_bytes = target->in_capsule_bytes,
            .mdts = target->mdts,
            .write_cache = !target->no_write_cache,
            .icms_ext = (target->timed ? NVME_ICMS_EXT_TIMED : 0) |
                        (target->many ? NVME_ICMS_EXT_EXIST_MANY : 0) |
                        (target->store_data ? NVME_ICMS_EXT_STORE_DATA : 0) |
                        (target->records ? NVME_ICMS_EXT_RECORD : 0) |
                        (target->settings ? NVME_ICMS_EXT_SETTINGS : 0) |
                        (target->expedites ? NVME_ICMS_EXT_EXPEDITE : 0),
            .icms_instance = target->instance,
        };

        strcpy(ctrl.subnqn, "nqn.2014-08.org.nvmexpress:uuid:fake");
        snprintf(ctrl.serial, sizeof(ctrl.serial), "%s",
                 target->serial != NULL ? target->serial : "FAKE");
        nvme_ctrl_encode(&ctrl, page);
    } else if (identify.cns == NVME_CNS_NS_ACTIVE) {
        for (uint32_t i = 0; i < target->volume_count; i++)
            nsids[i] = i + 1;
        nvme_ns_list_encode(nsids, target->volume_count, identify.nsid, page);
    } else if (identify.nsid < 1 || identify.nsid > target->volume_count) {
        fake_answer(cmd, NVME_SC_NAMESPACE, 0);
        return;
    } else if (identify.cns == NVME_CNS_NS_IDS) {
        struct nvme_ns_ids ids = {.has_nguid = true, .has_csi = true, .csi = NVME_CSI_KV};

        memcpy(ids.nguid, volume->uuid.bytes, 16);
        nvme_ns_ids_encode(&ids, page);
    } else if (identify.cns == NVME_CNS_NS_CSI && identify.csi == NVME_CSI_KV) {
        struct nvme_kv_ns ns = {
            .size_bytes = 1 << 30,
            .value_bytes_max = volume->value_bytes_max,
            .key_bytes_max = 16,
            .icms = !volume->foreign,
            .volume = volume->uuid,
            .sealed = volume->sealed,
            .encrypted = volume->encrypted,
        };

        nvme_kv_ns_encode(&ns, page);
    } else {
        fake_answer(cmd, NVME_SC_FIELD, 0);
        return;
    }
    fake_data_answer(cmd, page, sizeof(page), 0);
}

/* ---- authentication ------------------------------------------------------------------------- */

static void fake_auth_send(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;
    struct nvme_auth_msg msg;

    check(nvme_auth_decode(cmd->data, cmd->bytes, &msg) == ICMS_OK);
    cmd->conn->auth_id = msg.id;
    cmd->conn->auth_t_id = msg.t_id;
    target->auth_replies += msg.id == NVME_AUTH_REPLY;
    target->auth_failures += msg.id == NVME_AUTH_FAILURE2;
    if (target->auth == FAKE_AUTH_BUSY && msg.id == NVME_AUTH_NEGOTIATE && target->auth_busy > 0) {
        target->auth_busy--;
        fake_answer(cmd, NVME_SC_TRANSIENT, 0);
        return;
    }
    fake_answer(cmd, target->auth == FAKE_AUTH_STATUS ? NVME_SC_FIELD : 0, 0);
}

static void fake_auth_receive(struct fake_cmd *cmd)
{
    static const uint8_t value[64] = {1, 2, 3};
    enum fake_auth auth = cmd->conn->target->auth;
    bool is_success = cmd->conn->auth_id == NVME_AUTH_REPLY && auth != FAKE_AUTH_CHALLENGE_TWICE;
    uint8_t dh[1024], out[NVME_AUTH_BYTES_MAX];
    struct nvme_auth_msg msg = {.t_id = cmd->conn->auth_t_id, .value = value, .value_bytes = 32};
    size_t bytes;

    memset(dh, auth == FAKE_AUTH_DH_LARGE ? 0xff : auth == FAKE_AUTH_DH_ZERO ? 0 : 7, sizeof(dh));
    if (auth == FAKE_AUTH_REFUSE) {
        msg.id = NVME_AUTH_FAILURE1;
        msg.reason = msg.why = 1;
    } else if (is_success || auth == FAKE_AUTH_SUCCESS_FIRST) {
        msg.id = NVME_AUTH_SUCCESS1;
        if (auth == FAKE_AUTH_BLIND) {
            msg.value = NULL;
            msg.value_bytes = 0;
        }
    } else {
        msg.id = NVME_AUTH_CHALLENGE;
        msg.hash = auth == FAKE_AUTH_HASH ? 4 : 1;
        msg.group = auth == FAKE_AUTH_GROUP ? 6 : 1;
        msg.value_bytes = auth == FAKE_AUTH_LENGTH ? 48 : 32;
        msg.dh = dh;
        msg.dh_bytes = auth == FAKE_AUTH_DH_LENGTH ? 384 : 256;
        msg.t_id += auth == FAKE_AUTH_TRANSACTION;
    }
    bytes = nvme_auth_encode(&msg, out);
    if (auth == FAKE_AUTH_CUT)
        bytes /= 2;
    if (auth == FAKE_AUTH_NOTHING)
        fake_answer(cmd, 0, 0);
    else
        fake_data_answer(cmd, out, (uint32_t)bytes, 0);
}

static void fake_fabrics(struct fake_cmd *cmd)
{
    struct fake_conn *conn = cmd->conn;
    struct nvme_property property;
    struct nvme_connect connect;
    uint32_t dw0 = 0;
    uint16_t status;

    if (nvme_fctype(&cmd->sqe) == NVME_FCTYPE_CONNECT) {
        check(!conn->connected);
        status = nvme_connect_decode(&cmd->sqe, cmd->data, cmd->bytes, &connect, &dw0);
        check(status == NVME_SC_SUCCESS);
        check(connect.cntlid == (connect.qid == 0 ? NVME_CNTLID_ANY : 7));
        conn->qid = connect.qid;
        conn->connected = true;
        conn->target->connects += connect.qid == 0;
        /* not an I/O command for what follows */
        if (conn->target->no_subsystem)
            fake_cqe_send(conn, le16_get(cmd->sqe.cid), NVME_SC_CONNECT_PARAM,
                          NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_SUBNQN), 0);
        else
            fake_cqe_send(conn, le16_get(cmd->sqe.cid),
                          conn->target->refuse_connect ? NVME_SC_CONNECT_HOST : 0,
                          conn->target->auth == FAKE_AUTH_NONE      ? 7
                          : conn->target->auth == FAKE_AUTH_CHANNEL ? 7 | NVME_CONNECT_ASCR
                                                                    : 7 | NVME_CONNECT_ATR,
                          0);
        fake_cmd_free(cmd);
        return;
    }
    if (nvme_fctype(&cmd->sqe) == NVME_FCTYPE_AUTH_SEND) {
        fake_auth_send(cmd);
        return;
    }
    if (nvme_fctype(&cmd->sqe) == NVME_FCTYPE_AUTH_RECEIVE) {
        fake_auth_receive(cmd);
        return;
    }
    check(conn->connected && nvme_property_decode(&cmd->sqe, &property) == ICMS_OK);
    if (property.set) {
        fake_answer(cmd, 0, 0);
        return;
    }
    if (property.offset == NVME_REG_CAP) {
        uint64_t cap = nvme_cap(128, 10);

        if (!conn->target->silent)
            fake_cqe_send(conn, le16_get(cmd->sqe.cid), 0, (uint32_t)cap, (uint32_t)(cap >> 32));
        fake_cmd_free(cmd);
        return;
    }
    fake_answer(cmd, 0, NVME_CSTS_READY);
}

/* DW0 of Set Features: what other hosts have. */
static uint32_t fake_told(struct fake_target *target, const struct nvme_feature *feature)
{
    uint32_t which = feature->fid - NVME_FEATURE_ICMS_ENCLOSURES;

    if (which >= sizeof(target->told) / sizeof(target->told[0]))
        return 0;
    target->told[which]++;
    target->told_value[which] = feature->value;
    target->told_nsid = feature->nsid;
    return target->others[which] != 0 ? target->others[which] : feature->value;
}

static void fake_admin(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;
    uint8_t page[NVME_PAGE_BYTES] = {0};
    struct nvme_feature feature;

    switch (cmd->sqe.opcode) {
    case NVME_ADMIN_IDENTIFY:
        fake_identify(cmd);
        break;
    case NVME_ADMIN_SET_FEATURES:
        nvme_feature_decode(&cmd->sqe, &feature);
        if (target->no_epoch && feature.fid == NVME_FEATURE_ICMS_EPOCH) {
            fake_answer(cmd, NVME_SC_FIELD, 0);
            break;
        }
        if (feature.fid == NVME_FEATURE_ICMS_EPOCH)
            cmd->dw1 = target->pod;
        fake_answer(cmd, 0,
                    feature.fid == NVME_FEATURE_QUEUES ? 0x00070007 : fake_told(target, &feature));
        break;
    case NVME_ADMIN_KEEP_ALIVE:
        target->keep_alives++;
        fake_answer(cmd, 0, 0);
        break;
    case NVME_ADMIN_GET_LOG_PAGE:
        fake_data_answer(cmd, page, sizeof(page), 0);
        break;
    case NVME_ADMIN_ASYNC_EVENT:
        check(cmd->conn->event == NULL);
        cmd->conn->event = cmd;
        break;
    default:
        fake_answer(cmd, NVME_SC_OPCODE, 0);
        break;
    }
}

void fake_target_event(struct fake_target *target)
{
    list_for_each (link, &target->conns) {
        struct fake_conn *conn = container_of(link, struct fake_conn, link);
        struct fake_cmd *cmd = conn->event;

        if (cmd == NULL)
            continue;
        conn->event = NULL;
        fake_answer(cmd, 0, NVME_AEN_NS_CHANGED);
    }
}

/* ---- KV ------------------------------------------------------------------------------------- */

static void fake_list(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;
    uint8_t *memory = malloc(cmd->kv.bytes);
    struct nvme_kv_list_writer writer;
    uint32_t bytes;

    check(memory != NULL);
    nvme_kv_list_write_begin(&writer, memory, cmd->kv.bytes);
    list_for_each (link, &target->blocks) {
        struct fake_block *block = container_of(link, struct fake_block, link);

        if (block->nsid == cmd->kv.nsid && !nvme_kv_list_write_key(&writer, &block->key))
            break;
    }
    bytes = nvme_kv_list_write_end(&writer);
    fake_data_answer(cmd, memory, bytes, 0);
    free(memory);
}

static void fake_exist_many(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;
    struct key keys[NVME_KV_EXIST_MANY_KEYS];
    uint32_t nsid = le32_get(cmd->sqe.nsid), count;
    uint64_t map = 0;

    check(nvme_kv_exist_many_count(&cmd->sqe, &count) == ICMS_OK);
    check(nvme_kv_exist_many_decode(cmd->data, cmd->got, count, keys) == ICMS_OK);
    for (uint32_t i = 0; i < count; i++)
        if (fake_target_find(target, nsid, &keys[i]) != NULL)
            map |= (uint64_t)1 << i;
    if (!target->silent)
        fake_cqe_send(cmd->conn, le16_get(cmd->sqe.cid), 0, (uint32_t)map, (uint32_t)(map >> 32));
    fake_cmd_free(cmd);
}

static void fake_kv(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;
    struct fake_block *block = fake_target_find(target, cmd->kv.nsid, &cmd->kv.key);
    const struct nvme_kv_cmd *kv = &cmd->kv;

    if (target->status != 0) {
        fake_answer(cmd, target->status, 0);
        return;
    }
    switch (kv->opcode) {
    case NVME_KV_STORE:
    case NVME_ICMS_STORE:
        check(cmd->got == cmd->bytes && kv->bytes == cmd->bytes);
        if ((kv->options & NVME_KV_STORE_IF_ABSENT) != 0 && block != NULL) {
            fake_answer(cmd, NVME_SC_KV_EXISTS, 0);
            return;
        }
        fake_target_put(target, kv->nsid, &kv->key, cmd->data, cmd->bytes);
        fake_answer(cmd, 0, 0);
        break;
    case NVME_KV_RETRIEVE:
    case NVME_ICMS_RETRIEVE:
        if (block == NULL) {
            fake_answer(cmd, NVME_SC_KV_NO_KEY, 0);
            break;
        }
        cmd->dw1 = block->record;
        fake_data_answer(cmd, block->data, block->bytes < kv->bytes ? block->bytes : kv->bytes,
                         block->bytes);
        break;
    case NVME_KV_EXIST:
        fake_answer(cmd, block != NULL ? 0 : NVME_SC_KV_NO_KEY, 0);
        break;
    case NVME_ICMS_DELETE:
        check(target->records);
        if (block == NULL || block->record != kv->record) {
            fake_answer(cmd, NVME_SC_KV_NO_KEY, 0);
            break;
        }
        __attribute__((fallthrough));
    case NVME_KV_DELETE:
        fake_answer(cmd, fake_target_remove(target, kv->nsid, &kv->key) ? 0 : NVME_SC_KV_NO_KEY, 0);
        break;
    default:
        fake_list(cmd);
        break;
    }
}

static void fake_r2t_send(struct fake_cmd *cmd, uint16_t cid, uint32_t offset, uint32_t bytes)
{
    struct fake_tx *fake = fake_tx_new(cmd->conn);

    cmd->conn->target->r2ts++;

    nvme_tcp_r2t_encode(&fake->tx.pdu, cid, cmd->ttag, offset, bytes);
    nvmf_pdu_send(&cmd->conn->pdu, &fake->tx);
}

/* Asks for the next piece of a store's data. */
static void fake_r2t(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;
    uint16_t cid = le16_get(cmd->sqe.cid);
    uint32_t left = cmd->bytes - cmd->asked;
    uint32_t bytes = target->r2t_bytes != 0 && target->r2t_bytes < left ? target->r2t_bytes : left;

    if (cmd->conn->qid != 0) {
        if (fake_wrong(target, FAKE_R2T_RANGE)) {
            fake_r2t_send(cmd, cid, cmd->asked, left + 1);
            return;
        }
        if (fake_wrong(target, FAKE_R2T_OFFSET)) {
            fake_r2t_send(cmd, cid, cmd->asked + 4, bytes - 4);
            return;
        }
        if (fake_wrong(target, FAKE_R2T_NEXT)) {
            fake_r2t_send(cmd, cid, cmd->asked, 400);
            fake_r2t_send(cmd, cid, cmd->asked + 400, bytes - 400);
            cmd->asked += bytes;
            return;
        }
        if (fake_wrong(target, FAKE_R2T_CID)) {
            fake_r2t_send(cmd, cid ^ 0x155, 0, bytes);
            return;
        }
        if (fake_wrong(target, FAKE_STORE_DATA)) {
            fake_data_pdu(cmd, cid, 0, (const uint8_t[8]){0}, 8, NVME_TCP_FLAG_LAST);
            return;
        }
        if (fake_wrong(target, FAKE_STORE_UNREAD)) {
            fake_answer(cmd, 0, 0);
            return;
        }
        if (target->wrong == FAKE_R2T_TWICE)
            fake_r2t_send(cmd, cid, cmd->asked, bytes);
        (void)fake_wrong(target, FAKE_R2T_TWICE);
    }
    fake_r2t_send(cmd, cid, cmd->asked, bytes);
    cmd->asked += bytes;
}

/* All data of the command is there. */
static void fake_run(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;

    if (cmd->sqe.opcode == NVME_FABRICS)
        fake_fabrics(cmd);
    else if (cmd->conn->qid == 0)
        fake_admin(cmd);
    else if (cmd->sqe.opcode == NVME_ICMS_EXIST_MANY && target->status == 0)
        fake_exist_many(cmd);
    else if (cmd->sqe.opcode == NVME_IO_FLUSH)
        fake_answer(cmd, target->no_write_cache ? NVME_SC_OPCODE : target->status, 0);
    else
        fake_kv(cmd);
}

static void fake_delayed(struct loop_timer *timer)
{
    fake_run(container_of(timer, struct fake_cmd, timer));
}

static void fake_count(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;

    target->by_class[cmd->conn->qid - 1]++;
    switch (cmd->sqe.opcode) {
    case NVME_KV_STORE:
    case NVME_ICMS_STORE:
        target->stores++;
        break;
    case NVME_KV_RETRIEVE:
    case NVME_ICMS_RETRIEVE:
        target->retrieves++;
        break;
    case NVME_KV_EXIST:
        target->exists++;
        break;
    case NVME_ICMS_EXIST_MANY:
        target->exist_manys++;
        break;
    case NVME_ICMS_DELETE:
        target->record_deletes++;
        __attribute__((fallthrough));
    case NVME_KV_DELETE:
        target->deletes++;
        break;
    case NVME_KV_LIST:
        target->lists++;
        break;
    default:
        target->flushes++;
        break;
    }
}

/* An I/O command is there with all its data. */
static void fake_io(struct fake_cmd *cmd)
{
    struct fake_target *target = cmd->conn->target;

    if (target->mute == cmd->conn->qid)
        return;
    if (fake_wrong(target, FAKE_RESET)) {
        nvmf_pdu_close(&cmd->conn->pdu, ICMS_RESET);
        return;
    }
    if (fake_wrong(target, FAKE_TERM)) {
        nvmf_pdu_term(&cmd->conn->pdu, NVME_TCP_FES_SEQUENCE, 0);
        return;
    }
    if (target->hold ||
        (target->hold_prestage && !cmd->is_expedited && cmd->kv.opcode == NVME_ICMS_RETRIEVE &&
         cmd->kv.io_class == IO_CLASS_PRESTAGE))
        return;
    if (target->delay_ns != 0)
        loop_timer_start(target->loop, &cmd->timer, loop_now_ns(target->loop) + target->delay_ns);
    else
        fake_run(cmd);
}

/* Commands of the connection are waited for. */
static void fake_expedite(struct fake_cmd *cmd)
{
    struct fake_conn *conn = cmd->conn;
    uint16_t cids[NVME_KV_EXPEDITE_CIDS];
    uint32_t count;

    check(conn->target->expedites && conn->qid == 1 + IO_CLASS_PRESTAGE);
    check(nvme_kv_expedite_decode(&cmd->sqe, cids, &count) == ICMS_OK);
    conn->target->expedited += count;
    fake_answer(cmd, 0, 0);
    for (uint32_t i = 0; i < count; i++)
        for (int k = 0; k < FAKE_CMDS; k++) {
            struct fake_cmd *other = conn->cmds[k];

            if (other == NULL || le16_get(other->sqe.cid) != cids[i] || other->is_expedited)
                continue;
            other->is_expedited = true;
            if (conn->target->hold_prestage)
                fake_io(other);
            break;
        }
}

void fake_target_release(struct fake_target *target)
{
    target->hold = target->hold_stores = target->hold_prestage = false;
    list_for_each (link, &target->conns) {
        struct fake_conn *conn = container_of(link, struct fake_conn, link);

        for (int i = 0; i < FAKE_CMDS && conn->qid != 0; i++) {
            struct fake_cmd *cmd = conn->cmds[i];

            if (cmd == NULL)
                continue;
            if (cmd->got < cmd->bytes && NVME_DIRECTION(cmd->sqe.opcode) == NVME_DIRECTION_H2C)
                fake_r2t(cmd);
            else
                fake_io(cmd);
        }
    }
}

/* ---- receiving ------------------------------------------------------------------------------ */

static struct fake_conn *fake_conn_of(struct nvmf_pdu_conn *conn)
{
    return container_of(conn, struct fake_conn, pdu);
}

static icms_err fake_header(struct nvmf_pdu_conn *pdu_conn, const union nvme_tcp_pdu *pdu,
                            uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct fake_conn *conn = fake_conn_of(pdu_conn);
    struct fake_cmd *cmd;

    if (pdu->common.type == NVME_TCP_CAPSULE_CMD) {
        check(conn->in_capsule == NULL);
        conn->in_capsule = malloc(data_bytes);
        check(conn->in_capsule != NULL);
        out_data[0] = (struct iovec){conn->in_capsule, data_bytes};
        return ICMS_OK;
    }
    check(pdu->common.type == NVME_TCP_H2C_DATA);
    cmd = le16_get(pdu->data.ttag) < FAKE_CMDS ? conn->cmds[le16_get(pdu->data.ttag)] : NULL;
    check(cmd != NULL && le16_get(cmd->sqe.cid) == le16_get(pdu->data.cid));
    check(le32_get(pdu->data.offset) == cmd->got && data_bytes <= cmd->asked - cmd->got);
    out_data[0] = (struct iovec){cmd->data + cmd->got, data_bytes};
    return ICMS_OK;
}

static void fake_cmd_begin(struct fake_conn *conn, const struct nvme_sqe_wf *sqe, uint32_t bytes)
{
    struct fake_target *target = conn->target;
    struct fake_cmd *cmd = calloc(1, sizeof(*cmd));
    bool h2c = NVME_DIRECTION(sqe->opcode) == NVME_DIRECTION_H2C ||
               (sqe->opcode == NVME_FABRICS && nvme_fctype(sqe) != NVME_FCTYPE_AUTH_RECEIVE);

    check(cmd != NULL);
    cmd->conn = conn;
    cmd->sqe = *sqe;
    cmd->data = conn->in_capsule;
    conn->in_capsule = NULL;
    list_init(&cmd->link);
    loop_timer_init(&cmd->timer, fake_delayed);
    for (cmd->ttag = 0; conn->cmds[cmd->ttag] != NULL; cmd->ttag++)
        check(cmd->ttag + 1 < FAKE_CMDS);
    conn->cmds[cmd->ttag] = cmd;
    cmd->bytes = le32_get(sqe->sgl.length);
    cmd->got = bytes;
    if (conn->qid != 0 && sqe->opcode == NVME_KV_EXIST && le32_get(sqe->nsid) == 0) {
        target->asked++;
        if (target->mute != conn->qid)
            fake_answer(cmd, NVME_SC_NAMESPACE, 0);
        return;
    }
    if (conn->qid != 0 && sqe->opcode == NVME_ICMS_EXPEDITE) {
        fake_expedite(cmd);
        return;
    }
    if (conn->qid != 0 && sqe->opcode != NVME_FABRICS) {
        fake_count(cmd);
        if (sqe->opcode == NVME_ICMS_EXIST_MANY)
            check(target->many && cmd->got == cmd->bytes); /* in the capsule */
        else if (sqe->opcode != NVME_IO_FLUSH)
            check(nvme_kv_cmd_decode(sqe, &cmd->kv) == ICMS_OK);
        target->time_left_us = cmd->kv.time_left_us;
    }
    if (h2c && cmd->got < cmd->bytes) {
        check(cmd->got == 0);
        cmd->data = malloc(cmd->bytes);
        check(cmd->data != NULL);
        if (!target->hold_stores && !target->silent)
            fake_r2t(cmd);
    } else if (target->no_room > 0 && sqe->opcode == NVME_ICMS_STORE &&
               (bytes > target->in_capsule_bytes || cmd->kv.may_ask)) {
        target->no_room--;
        fake_cqe_send(conn, le16_get(sqe->cid), NVME_SC_TRANSIENT, 0, NVME_ICMS_ASK);
        fake_cmd_free(cmd);
    } else if (conn->qid != 0 && sqe->opcode != NVME_FABRICS) {
        fake_io(cmd);
    } else {
        fake_run(cmd);
    }
}

static void fake_pdu(struct nvmf_pdu_conn *pdu_conn, const union nvme_tcp_pdu *pdu,
                     uint32_t data_bytes, icms_err data_status)
{
    struct fake_conn *conn = fake_conn_of(pdu_conn);
    struct fake_target *target = conn->target;
    struct fake_tx *fake;
    struct fake_cmd *cmd;
    uint8_t digests;

    switch (pdu->common.type) {
    case NVME_TCP_IC_REQ:
        digests = pdu->ic.digests & target->digests;
        fake = fake_tx_new(conn);
        nvme_tcp_ic_resp_encode(&fake->tx.pdu, 0, digests, target->h2c_bytes);
        nvmf_pdu_digests_set(pdu_conn, digests, pdu->ic.pda);
        nvmf_pdu_send(pdu_conn, &fake->tx);
        break;
    case NVME_TCP_CAPSULE_CMD:
        check(data_status == ICMS_OK);
        fake_cmd_begin(conn, &pdu->cmd.sqe, data_bytes);
        break;
    case NVME_TCP_H2C_DATA:
        check(data_status == ICMS_OK);
        cmd = conn->cmds[le16_get(pdu->data.ttag)];
        cmd->got += data_bytes;
        if (cmd->got == cmd->bytes)
            fake_io(cmd);
        else if (cmd->got == cmd->asked)
            fake_r2t(cmd);
        break;
    default:
        check(false);
    }
}

static void fake_closed(struct nvmf_pdu_conn *pdu_conn, icms_err why)
{
    struct fake_conn *conn = fake_conn_of(pdu_conn);
    struct fake_target *target = conn->target;

    check(conn->txs == 0);
    target->terms_in += (uint32_t)pdu_conn->stats.term_in;
    for (int i = 0; i < FAKE_CMDS; i++)
        if (conn->cmds[i] != NULL)
            fake_cmd_free(conn->cmds[i]);
    free(conn->in_capsule);
    list_remove(&conn->link);
    target->conn_count--;
    net_listener_rele(&target->listener);
    free(conn);
}

static const struct nvmf_pdu_ops fake_ops = {
    .header = fake_header,
    .pdu = fake_pdu,
    .closed = fake_closed,
};

static void fake_accept(struct net_listener *listener, struct loop_sock *sock)
{
    struct fake_target *target = listener->arg;
    struct fake_conn *conn = calloc(1, sizeof(*conn));
    struct nvmf_pdu_opts opts = {
        .ops = &fake_ops,
        .role = NVME_TCP_CONTROLLER,
        .capsule_data_max = target->store_data ? NVME_ICMS_STORE_DATA_BYTES : 8192,
        .data_max = target->h2c_bytes,
    };

    check(conn != NULL);
    conn->target = target;
    list_push(&target->conns, &conn->link);
    target->conn_count++;
    nvmf_pdu_open(&conn->pdu, target->loop, sock, &opts);
}

/* ---- life ----------------------------------------------------------------------------------- */

void fake_target_drop(struct fake_target *target)
{
    list_for_each (link, &target->conns)
        nvmf_pdu_close(&container_of(link, struct fake_conn, link)->pdu, ICMS_RESET);
}

void fake_target_open(struct fake_target *target, struct loop *loop, const char *host,
                      uint16_t port)
{
    struct loop_addr addr = {.port = port};

    target->loop = loop;
    list_init(&target->blocks);
    list_init(&target->conns);
    target->in_capsule_bytes = 4096;
    target->h2c_bytes = 131072;
    target->c2h_bytes = 262144;
    target->digests = NVME_TCP_FLAG_HDGST | NVME_TCP_FLAG_DDGST;
    strcpy(addr.host, host);
    check(net_listener_open(&target->listener, loop, &addr, FAKE_CONNS, fake_accept, target,
                            NULL) == ICMS_OK);
    net_listener_addr(&target->listener, &target->addr);
}

void fake_target_fini(struct fake_target *target)
{
    net_listener_fini(&target->listener);
    for (struct list *link; (link = list_pop(&target->conns)) != NULL;) {
        struct fake_conn *conn = container_of(link, struct fake_conn, link);

        nvmf_pdu_fini(&conn->pdu);
        for (int i = 0; i < FAKE_CMDS; i++)
            if (conn->cmds[i] != NULL) {
                free(conn->cmds[i]->data);
                free(conn->cmds[i]);
            }
        free(conn->in_capsule);
        free(conn);
    }
    for (struct list *link; (link = list_pop(&target->blocks)) != NULL;) {
        struct fake_block *block = container_of(link, struct fake_block, link);

        free(block->data);
        free(block);
    }
}
