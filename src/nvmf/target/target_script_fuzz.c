/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer: sequences of what hosts do, on several queue pairs of two controllers at a time.
 *
 * An input is a list of steps of three bytes: what (enum step), which peer, argument. Peers 0 and 4
 * are admin queues, the others I/O queues of the controller before them. A capsule may be sent in
 * two halves with steps of other queue pairs in between. Bytes of one peer are never reordered, but
 * nothing else is respected: commands come before Connect, in the middle of a capsule, and after
 * the controller was disabled. Answers are read only where a step says so. Afterwards, whatever
 * came, no connection, controller, buffer or command is left.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "nvmf/target/target_test.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

#define SCRIPT_PEERS      8
#define SCRIPT_CTRL_PEERS 4 /* of one controller, its admin queue included */
#define SCRIPT_STEPS_MAX  200

enum step {
    STEP_OPEN,    /* connection, ICReq and Connect                      */
    STEP_CLOSE,   /* the connection ends                                */
    STEP_HALF,    /* a capsule but for its last bytes                   */
    STEP_REST,    /* those                                              */
    STEP_CC,      /* Property Set of CC                                 */
    STEP_ADMIN,   /* an admin or fabrics command without data out       */
    STEP_KV,      /* a KV command without data in its capsule           */
    STEP_H2C,     /* H2CData that was or was not asked for              */
    STEP_FEATURE, /* Set Features                                       */
    STEP_HOLD,    /* the owner keeps commands or answers; its drives fail or not */
    STEP_WAIT,    /* a few milliseconds                                 */
    STEP_SLEEP,   /* long enough for timeouts                           */
    STEP_READ,    /* what came is read, and data that was asked for sent */
    STEP_COUNT,
};

struct script_peer {
    struct peer *peer; /* NULL: closed                    */
    uint16_t cntlid;   /* admin queues: of the last one   */
    uint8_t rest[256]; /* HALF: what REST sends           */
    uint32_t rest_bytes;
};

static struct rig *rig;
static struct script_peer peers[SCRIPT_PEERS];

static void script_opts(struct nvmf_target_opts *opts)
{
    opts->memory_bytes = (uint64_t)36 << 20;
    opts->connections_max = 12;
    opts->host_connections_max = 7;
    opts->header_timeout_ms = 100;
    opts->stall_timeout_ms = 200;
}

static void script_open(unsigned index, uint8_t arg)
{
    struct script_peer *at = &peers[index];
    struct script_peer *admin = &peers[index / SCRIPT_CTRL_PEERS * SCRIPT_CTRL_PEERS];
    struct nvme_cqe cqe;

    if (at->peer != NULL)
        return;
    at->rest_bytes = 0;
    at->peer = peer_new_sim(rig->sim, rig->host, &rig->addr);
    if (at->peer == NULL)
        return;
    at->peer->timeout_ms = 20;
    at->peer->cntlid = admin->cntlid;
    at->peer->kato_ms = arg & 1 ? 100 : 0;
    at->peer->attributes = arg & 2 ? NVME_CATTR_NO_SQ_FLOW : 0;
    at->peer->entries = arg & 4 ? 2 : 32;
    if ((arg & 0xc0) == 0xc0)
        return; /* says nothing */
    if (!peer_hello(at->peer, arg & 8 ? NVME_TCP_FLAG_HDGST : 0) || (arg & 0xc0) == 0x80)
        return;
    if (arg & 0x20 && at == admin)
        memcpy(at->peer->subsys, NVME_DISCOVERY, sizeof(NVME_DISCOVERY));
    if (peer_connect(at->peer, at == admin ? 0 : (uint16_t)(index % SCRIPT_CTRL_PEERS), &cqe) &&
        at == admin)
        at->cntlid = at->peer->cntlid;
}

/* All of a PDU but its last bytes; those are kept for STEP_REST. */
static void script_send_half(struct script_peer *at, union nvme_tcp_pdu *pdu, const uint8_t *data,
                             uint32_t bytes, uint32_t keep)
{
    uint8_t flat[sizeof(*pdu) + NVME_CONNECT_DATA_BYTES + 8192];
    uint32_t head = nvme_tcp_frame_encode(pdu, bytes, at->peer->digests, 0);
    uint32_t all = head + bytes;

    check(all <= sizeof(flat));
    memcpy(flat, pdu->bytes, head);
    memcpy(flat + head, data, bytes);
    keep = (uint32_t)u64_min(u64_min(keep, sizeof(at->rest)), all);
    memcpy(at->rest, flat + all - keep, keep);
    at->rest_bytes = keep;
    (void)peer_send_bytes(at->peer, flat, all - keep);
}

static void script_half(struct script_peer *at, uint8_t arg)
{
    static const uint8_t opcodes[8] = {
        NVME_KV_STORE,    NVME_ICMS_EXIST_MANY, NVME_ICMS_STORE, NVME_FABRICS,
        NVME_KV_RETRIEVE, NVME_ADMIN_IDENTIFY,  NVME_KV_DELETE,  0x3d};
    static const uint32_t sizes[4] = {40, 200, 4096, 8192};
    struct key keys[2] = {peer_key("one"), peer_key("two")};
    uint32_t bytes = sizes[arg >> 3 & 3];
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_KV_STORE, .nsid = 1, .key = peer_key("k"), .bytes = bytes};
    uint8_t data[8192] = {1};
    union nvme_tcp_pdu pdu;
    struct nvme_sqe_wf sqe;
    struct nvme_sgl sgl;

    if (at->rest_bytes > 0)
        return;
    nvme_kv_cmd_encode(&cmd, &sqe);
    if (opcodes[arg & 7] == NVME_ICMS_EXIST_MANY)
        bytes = nvme_kv_exist_many_encode(1, keys, 2, &sqe, data);
    sqe.opcode = opcodes[arg & 7];
    if (sqe.opcode == NVME_FABRICS) {
        sqe.nsid.byte[0] = NVME_FCTYPE_CONNECT;
        bytes = NVME_CONNECT_DATA_BYTES;
    }
    sgl = (struct nvme_sgl){.in_capsule = true, .bytes = bytes};
    nvme_sgl_encode(&sgl, &sqe.sgl);
    sqe.cid = le16_of(at->peer->cid++);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    script_send_half(at, &pdu, data, bytes, arg & 0x80 ? 4 : arg & 0x40 ? 120 : 40);
}

static void script_rest(struct script_peer *at)
{
    if (at->rest_bytes == 0)
        return;
    (void)peer_send_bytes(at->peer, at->rest, at->rest_bytes);
    at->rest_bytes = 0;
}

static void script_cc(struct script_peer *at, uint8_t arg)
{
    static const uint32_t values[8] = {
        NVME_CC_START,
        0,
        NVME_CC_START | NVME_CC_SHN_NORMAL,
        NVME_CC_SHN_NORMAL,
        NVME_CC_START | 1 << 7,
        1,
        NVME_CC_START ^ 0x30,
        UINT32_MAX,
    };
    struct nvme_property property = {.set = true, .offset = NVME_REG_CC, .value = values[arg & 7]};
    struct nvme_sqe_wf sqe;

    nvme_property_encode(&property, &sqe);
    (void)peer_submit(at->peer, &sqe, 0);
}

static void script_admin(struct script_peer *at, uint8_t arg)
{
    static const uint8_t opcodes[8] = {NVME_ADMIN_IDENTIFY,    NVME_ADMIN_GET_LOG_PAGE,
                                       NVME_ADMIN_ASYNC_EVENT, NVME_ADMIN_ABORT,
                                       NVME_ADMIN_KEEP_ALIVE,  NVME_FABRICS,
                                       NVME_FABRICS,           0xc9};
    struct nvme_log log = {.page = arg >> 3, .bytes = 4096, .offset = (uint64_t)(arg >> 3) * 64};
    struct nvme_identify what = {.cns = arg >> 3, .csi = 1, .nsid = 1};
    struct nvme_sqe_wf sqe;
    uint32_t bytes = 0;

    switch (opcodes[arg & 7]) {
    case NVME_ADMIN_IDENTIFY:
        nvme_identify_encode(&what, &sqe);
        bytes = NVME_PAGE_BYTES;
        break;
    case NVME_ADMIN_GET_LOG_PAGE:
        log.page = log.page == 31 ? NVME_LOG_DISCOVERY : log.page;
        nvme_log_encode(&log, &sqe);
        bytes = NVME_PAGE_BYTES;
        break;
    case NVME_FABRICS:
        nvme_disconnect_encode(&sqe);
        if ((arg & 7) == 6)
            sqe.nsid.byte[0] = arg >> 3;
        break;
    default:
        nvme_admin_plain_encode(opcodes[arg & 7], &sqe);
        sqe.cdw10 = le32_of(arg >> 3);
        break;
    }
    (void)peer_submit(at->peer, &sqe, bytes);
}

/* Of the last commands, of one twice, and of one that is not there; or of a count that is wrong. */
static void script_expedite(const struct script_peer *at, uint8_t arg, struct nvme_sqe_wf *out_sqe)
{
    uint16_t cids[NVME_KV_EXPEDITE_CIDS];

    for (uint32_t i = 0; i < NVME_KV_EXPEDITE_CIDS; i++)
        cids[i] = (uint16_t)(at->peer->cid - i / 2);
    nvme_kv_expedite_encode(cids, NVME_KV_EXPEDITE_CIDS, out_sqe);
    if (arg >= 16)
        out_sqe->cdw10 = le32_of(arg - 16);
}

static void script_kv(struct script_peer *at, uint8_t arg)
{
    static const uint8_t opcodes[8] = {NVME_KV_STORE,      NVME_KV_RETRIEVE,  NVME_KV_EXIST,
                                       NVME_KV_DELETE,     NVME_KV_LIST,      NVME_ICMS_STORE,
                                       NVME_ICMS_RETRIEVE, NVME_ICMS_EXPEDITE};
    static const uint32_t sizes[4] = {100, 9000, 20000, RIG_VALUE_MAX};
    struct nvme_kv_cmd cmd = {.opcode = opcodes[arg & 7],
                              .nsid = arg & 0x80 ? 3 : 1,
                              .key = peer_key(arg & 0x40 ? "k" : "other"),
                              .bytes = sizes[arg >> 3 & 3]};
    struct nvme_sqe_wf sqe;

    if (arg & 0x20) {
        cmd.time_left_us = 5000;
        cmd.io_class = arg & 0x10 ? IO_CLASS_PRESTAGE : IO_CLASS_LOAD;
    }
    if (cmd.opcode == NVME_ICMS_EXPEDITE)
        script_expedite(at, arg >> 3, &sqe);
    else
        nvme_kv_cmd_encode(&cmd, &sqe);
    (void)peer_submit(at->peer, &sqe, cmd.opcode == NVME_ICMS_EXPEDITE ? 0 : cmd.bytes);
}

/* Data for one of the first commands of a queue pair: sometimes what was asked for. */
static void script_h2c(struct script_peer *at, uint8_t arg)
{
    static const uint8_t data[4096];
    static const uint32_t sizes[4] = {100, 904, 4096, 3616};
    uint32_t bytes = sizes[arg >> 2 & 3];
    union nvme_tcp_pdu pdu;

    if (at->rest_bytes > 0)
        return;
    nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, arg & 0x80 ? NVME_TCP_FLAG_LAST : 0,
                         (uint16_t)(at->peer->cid - 1 - (arg >> 6 & 1)), arg & 3,
                         (uint32_t)(arg >> 4 & 3) * 4096, bytes);
    script_send_half(at, &pdu, data, bytes, arg & 0x40 ? 0 : 60);
}

/* Reads a few PDUs, and sends all the data that one asks for. */
static void script_read(struct script_peer *at)
{
    static uint8_t data[2 << 20];
    union nvme_tcp_pdu pdu, answer;
    uint32_t bytes;

    at->peer->timeout_ms = 1;
    for (int i = 0; i < 8; i++) {
        if (peer_recv_pdu(at->peer, &pdu, data, sizeof(data), &bytes) != PEER_PDU)
            break;
        if (pdu.common.type != NVME_TCP_R2T || le32_get(pdu.r2t.length) > 20000 ||
            at->rest_bytes > 0)
            continue;
        bytes = le32_get(pdu.r2t.length);
        nvme_tcp_data_encode(&answer, NVME_TCP_H2C_DATA, NVME_TCP_FLAG_LAST, le16_get(pdu.r2t.cid),
                             le16_get(pdu.r2t.ttag), 0, bytes);
        if (!peer_send_pdu(at->peer, &answer, data, bytes))
            break;
    }
    at->peer->timeout_ms = 20;
}

static void script_feature(struct script_peer *at, uint8_t arg)
{
    static const uint8_t ids[4] = {NVME_FEATURE_KEEP_ALIVE, NVME_FEATURE_QUEUES,
                                   NVME_FEATURE_ASYNC_EVENT, NVME_FEATURE_KV};
    static const uint8_t shared[4] = {NVME_FEATURE_ICMS_ENCLOSURES, NVME_FEATURE_ICMS_WEIGHTS,
                                      NVME_FEATURE_ICMS_RUN_BLOCKS, NVME_FEATURE_ICMS_RUN_BLOCKS};
    uint32_t value = (arg & 3) == 2 ? arg >> 2 : (uint32_t)(arg >> 2) * 50;
    struct nvme_feature feature = {.set = true, .fid = ids[arg & 3], .nsid = 1, .value = value};
    struct nvme_sqe_wf sqe;

    if (arg >=
        0xc0) { /* what hosts have to agree about, of namespaces that there are and are not */
        feature.fid = shared[arg & 3];
        feature.nsid = (arg & 3) == 3 ? arg >> 2 & 7 : 1;
        feature.value = arg >> 2 & 3;
        if (arg >= 0xfc)
            feature.fid = NVME_FEATURE_ICMS_EPOCH;
    }
    nvme_feature_encode(&feature, &sqe);
    (void)peer_submit(at->peer, &sqe, 0);
}

static void script_step(enum step step, unsigned index, uint8_t arg)
{
    struct script_peer *at = &peers[index];

    switch (step) {
    case STEP_OPEN:
        script_open(index, arg);
        return;
    case STEP_HOLD:
        if (arg & 1)
            rig->hold = true;
        else
            rig_let_go(rig);
        rig->health.degraded = (arg & 2) != 0;
        return;
    case STEP_WAIT:
        rig_run(rig, arg % 8);
        return;
    case STEP_SLEEP:
        rig_run(rig, arg & 0x80 ? 12000 : (uint32_t)(arg % 8) * 100);
        return;
    default:
        break;
    }
    if (at->peer == NULL)
        return;
    if (step == STEP_CLOSE)
        peer_free(&at->peer);
    else if (step == STEP_HALF)
        script_half(at, arg);
    else if (step == STEP_REST)
        script_rest(at);
    else if (step == STEP_CC)
        script_cc(at, arg);
    else if (step == STEP_ADMIN)
        script_admin(at, arg);
    else if (step == STEP_KV)
        script_kv(at, arg);
    else if (step == STEP_H2C)
        script_h2c(at, arg);
    else if (step == STEP_READ)
        script_read(at);
    else
        script_feature(at, arg);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct nvmf_target_stats stats;

    if (bytes > (size_t)3 * SCRIPT_STEPS_MAX)
        return 0;
    if (rig == NULL)
        rig = rig_new(2, script_opts);
    rig->health.degraded = false;
    rig_put(rig, 0, "k", 20000);
    rig_put(rig, 0, "other", 3 << 20);
    for (size_t i = 0; i + 3 <= bytes; i += 3) {
        script_step((enum step)(data[i] & 0x7f) % STEP_COUNT, data[i + 1] % SCRIPT_PEERS,
                    data[i + 2]);
        if ((data[i] & 0x80) == 0) /* else together with the next step */
            rig_run(rig, 1);
    }
    rig_let_go(rig);
    for (unsigned i = 0; i < SCRIPT_PEERS; i++) {
        peer_free(&peers[i].peer);
        peers[i].rest_bytes = 0;
    }
    rig_run(rig, 1500);
    nvmf_target_stats(rig->target, &stats);
    check(stats.connections == 0 && stats.controllers == 0);
    check(stats.buffers_used_bytes == 0 && stats.buffers_parked == 0);
    return 0;
}
