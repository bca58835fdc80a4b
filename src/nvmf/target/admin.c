/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admin and fabrics commands. Short, and executed at once on the admin queue's loop.
 *
 * Called by req.c in state EXECUTE. Each command leaves the request in the state that comes next:
 * C2H with data, RESPOND with a status, HELD (async event request) or JOIN (Connect).
 */
#include "base/bytes.h"
#include "base/check.h"
#include "nvmf/target/target_int.h"

uint32_t nvmft_admin_room(const struct nvmft_req *req)
{
    struct nvme_log log;

    if (req->qpair->state != NVMFT_QPAIR_READY || req->buffer != NULL)
        return 0;
    if (req->sqe.opcode == NVME_FABRICS && nvme_fctype(&req->sqe) == NVME_FCTYPE_AUTH_RECEIVE)
        return NVME_PAGE_BYTES;
    if (req->qpair->qid != 0)
        return 0;
    if (req->sqe.opcode == NVME_ADMIN_IDENTIFY)
        return NVME_PAGE_BYTES;
    if (req->sqe.opcode == NVME_ADMIN_GET_LOG_PAGE && nvme_log_decode(&req->sqe, &log) == ICMS_OK &&
        log.bytes <= NVMFT_LOG_BYTES)
        return (uint32_t)log.bytes;
    return 0;
}

static void admin_answer(struct nvmft_req *req, uint16_t status)
{
    if (status != NVME_SC_SUCCESS)
        nvmft_req_fail(req, status);
    else
        req->state = NVMFT_REQ_RESPOND;
}

/* Sends what lies in the buffer. */
static void admin_answer_data(struct nvmft_req *req, uint16_t status, uint64_t bytes)
{
    struct nvme_sgl sgl;

    if (status == NVME_SC_SUCCESS && nvme_sgl_decode(&req->sqe.sgl, &sgl, &status) == ICMS_OK &&
        sgl.in_capsule)
        status = NVME_SC_SGL_TYPE;
    else if (status == NVME_SC_SUCCESS && sgl.bytes < bytes)
        status = NVME_SC_SGL_LENGTH;
    if (status != NVME_SC_SUCCESS) {
        nvmft_req_fail(req, status);
        return;
    }
    req->io.data = req->buffer;
    req->io.data_bytes = (uint32_t)bytes;
    req->io.data_moved = 0;
    req->state = NVMFT_REQ_RESPOND;
}

static void admin_get_log(struct nvmft_req *req)
{
    struct nvme_log log;

    if (req->buffer == NULL || nvme_log_decode(&req->sqe, &log) != ICMS_OK)
        admin_answer(req, NVME_SC_FIELD);
    else
        admin_answer_data(req, nvmft_log(req->qpair, &log, req->buffer), log.bytes);
}

/* ---- features ------------------------------------------------------------------------------- */

/* Feature 20h belongs to a namespace, or to all that the host may use. */
static uint16_t feature_ns(const struct nvmft_ctrl *ctrl, uint32_t nsid,
                           struct nvmft_ns_set *out_set)
{
    if (nsid == NVME_NSID_ALL) {
        for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
            atomic_init(&out_set->word[i], atomic_load(&ctrl->allowed.word[i]));
        return NVME_SC_SUCCESS;
    }
    if (nsid == 0 || !nvmft_ns_has(&ctrl->allowed, nsid - 1))
        return NVME_SC_NAMESPACE;
    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
        atomic_init(&out_set->word[i], i == (nsid - 1) / 64 ? (uint64_t)1 << (nsid - 1) % 64 : 0);
    return NVME_SC_SUCCESS;
}

/* Sets it; gets it: whether it is on in each of them. */
static void feature_kv_set(struct nvmft_ctrl *ctrl, const struct nvmft_ns_set *set, bool on)
{
    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++) {
        if (on)
            atomic_fetch_or_explicit(&ctrl->ednek[i], set->word[i], memory_order_relaxed);
        else
            atomic_fetch_and_explicit(&ctrl->ednek[i], ~set->word[i], memory_order_relaxed);
    }
}

static bool feature_kv_get(const struct nvmft_ctrl *ctrl, const struct nvmft_ns_set *set)
{
    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
        if ((set->word[i] & ~atomic_load_explicit(&ctrl->ednek[i], memory_order_relaxed)) != 0)
            return false;
    return true;
}

static uint16_t feature_set_queues(struct nvmft_req *req, uint32_t value)
{
    uint32_t sq = value & 0xffff;
    uint32_t cq = value >> 16;
    uint32_t granted;

    if (sq == 0xffff || cq == 0xffff)
        return NVME_SC_FIELD;
    if (atomic_load(&req->qpair->ctrl->io_made))
        return NVME_SC_SEQUENCE; /* what was granted holds until the next reset */
    granted = (uint32_t)u64_min(u64_min(sq, cq) + 1, NVMFT_IO_QUEUES);
    req->qpair->ctrl->io_queues = granted;
    req->dw0 = (granted - 1) | (granted - 1) << 16;
    return NVME_SC_SUCCESS;
}

/* Events that a host may ask for: those of OAES, and critical warnings, which are not optional. */
static uint16_t feature_set_events(struct nvmft_ctrl *ctrl, uint32_t value)
{
    uint32_t known =
        (ctrl->discovery ? NVME_OAES_DISCOVERY : NVMFT_OAES) | NVME_ASYNC_CRITICAL_WARNINGS;

    if ((value & ~known) != 0)
        return NVME_SC_FIELD;
    ctrl->async_config = value;
    return NVME_SC_SUCCESS;
}

static uint16_t feature_set(struct nvmft_req *req, const struct nvme_feature *feature)
{
    struct nvmft_ctrl *ctrl = req->qpair->ctrl;
    struct nvmft_ns_set set;
    uint16_t status;

    if (feature->save)
        return NVME_SC_FIELD;
    switch (feature->fid) {
    case NVME_FEATURE_KEEP_ALIVE:
        nvmft_registry_kato(ctrl, feature->value);
        return NVME_SC_SUCCESS;
    case NVME_FEATURE_ASYNC_EVENT:
        return feature_set_events(ctrl, feature->value);
    default:
        break;
    }
    if (ctrl->discovery)
        return NVME_SC_FIELD;
    switch (feature->fid) {
    case NVME_FEATURE_QUEUES:
        return feature_set_queues(req, feature->value);
    case NVME_FEATURE_KV:
        status = feature_ns(ctrl, feature->nsid, &set);
        if (status != NVME_SC_SUCCESS)
            return status;
        feature_kv_set(ctrl, &set, (feature->value & 1) != 0);
        return NVME_SC_SUCCESS;
    case NVME_FEATURE_IO_SETS:
        return feature->value == 0 ? NVME_SC_SUCCESS : NVME_SC_FIELD;
    case NVME_FEATURE_ICMS_ENCLOSURES:
    case NVME_FEATURE_ICMS_WEIGHTS:
    case NVME_FEATURE_ICMS_RUN_BLOCKS:
        return nvmft_setting_tell(ctrl, req->qpair->shard, feature, &req->dw0);
    case NVME_FEATURE_ICMS_EPOCH:
        nvmft_epoch_tell(ctrl, feature->value, &req->dw0, &req->dw1);
        return NVME_SC_SUCCESS;
    case NVME_FEATURE_WRITE_CACHE:
        return feature->value & 1 ? NVME_SC_SUCCESS : NVME_SC_FEATURE_READ_ONLY;
    case NVME_FEATURE_ARBITRATION:
    case NVME_FEATURE_POWER:
    case NVME_FEATURE_TEMPERATURE:
    case NVME_FEATURE_ERROR:
        return NVME_SC_FEATURE_READ_ONLY;
    default:
        return NVME_SC_FIELD;
    }
}

/* Get Features, select 3: what can be done with it. */
#define FEATURE_CHANGEABLE 0x4u
#define FEATURE_PER_NS     0x2u

static uint16_t feature_get(struct nvmft_req *req, const struct nvme_feature *feature)
{
    const struct nvmft_ctrl *ctrl = req->qpair->ctrl;
    bool set_now = feature->select == 0;
    uint32_t able = FEATURE_CHANGEABLE;
    struct nvmft_ns_set set;
    uint16_t status;

    if (feature->select > 3)
        return NVME_SC_FIELD;
    switch (feature->fid) {
    case NVME_FEATURE_KEEP_ALIVE:
        req->dw0 = set_now ? atomic_load_explicit(&ctrl->kato_ms, memory_order_relaxed) : 0;
        break;
    case NVME_FEATURE_ASYNC_EVENT:
        req->dw0 = set_now ? ctrl->async_config : 0;
        break;
    case NVME_FEATURE_QUEUES:
        req->dw0 = (ctrl->io_queues - 1) | (ctrl->io_queues - 1) << 16;
        break;
    case NVME_FEATURE_KV:
        status = feature_ns(ctrl, feature->nsid, &set);
        if (status != NVME_SC_SUCCESS)
            return status;
        able |= FEATURE_PER_NS;
        req->dw0 = set_now && feature_kv_get(ctrl, &set);
        break;
    case NVME_FEATURE_WRITE_CACHE:
        able = 0;
        req->dw0 = 1;
        break;
    case NVME_FEATURE_IO_SETS:
    case NVME_FEATURE_ARBITRATION:
    case NVME_FEATURE_POWER:
    case NVME_FEATURE_TEMPERATURE:
    case NVME_FEATURE_ERROR:
        able = 0;
        break;
    default:
        return NVME_SC_FIELD;
    }
    if (ctrl->discovery && feature->fid != NVME_FEATURE_KEEP_ALIVE &&
        feature->fid != NVME_FEATURE_ASYNC_EVENT)
        return NVME_SC_FIELD;
    if (feature->select == 3)
        req->dw0 = able;
    return NVME_SC_SUCCESS;
}

static void admin_features(struct nvmft_req *req)
{
    struct nvme_feature feature;

    nvme_feature_decode(&req->sqe, &feature);
    admin_answer(req, feature.set ? feature_set(req, &feature) : feature_get(req, &feature));
}

static void admin_async_event(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;

    if (qpair->reqs_held >= NVMFT_AERS) {
        nvmft_req_fail(req, NVME_SC_AER_LIMIT);
        return;
    }
    qpair->reqs_held++;
    req->state = NVMFT_REQ_HELD;
}

/* Answers the oldest slot with a held request; false: there is none. */
static bool admin_event(struct nvmft_qpair *qpair, const struct nvmft_req *current, uint32_t dw0)
{
    for (uint32_t i = 0; i < qpair->slots_touched && qpair->reqs_held > 0; i++) {
        struct nvmft_req *req = nvmft_qpair_slot(qpair, i);

        if (req->state != NVMFT_REQ_HELD)
            continue;
        qpair->reqs_held--;
        req->dw0 = dw0;
        req->state = NVMFT_REQ_RESPOND;
        if (req != current)
            nvmft_req_run(req);
        return true;
    }
    return false;
}

/* A critical warning that began and that the host enabled in feature 0Bh. Looked at with each admin
 * command, so a host that sends keep-alives is notified within their interval. */
static void admin_tell_warning(struct nvmft_qpair *qpair, const struct nvmft_req *current)
{
    struct nvmft_ctrl *ctrl = qpair->ctrl;
    uint8_t fresh;

    if ((ctrl->async_config & NVME_ASYNC_CRITICAL_WARNINGS) == 0)
        return;
    fresh = nvmft_warnings(qpair->shard->target);
    ctrl->warned &= fresh; /* a warning that ended is an event when it begins again */
    fresh &= (uint8_t)(ctrl->async_config & NVME_ASYNC_CRITICAL_WARNINGS & ~ctrl->warned);
    if (fresh != 0 &&
        admin_event(qpair, current,
                    fresh & NVME_HEALTH_DEGRADED ? NVME_AEN_DEGRADED : NVME_AEN_SPARE))
        ctrl->warned |= fresh & NVME_HEALTH_DEGRADED ? NVME_HEALTH_DEGRADED : NVME_HEALTH_SPARE;
}

/* What the host has to be told, as far as it holds requests for it. current: the command that is
 * being executed, or NULL. */
static void admin_tell(struct nvmft_qpair *qpair, const struct nvmft_req *current)
{
    struct nvmft_ctrl *ctrl = qpair->ctrl;

    if (ctrl->discovery || qpair->reqs_held == 0)
        return;
    if ((ctrl->async_config & NVME_OAES_NS_CHANGED) != 0 && nvmft_spaces_news(ctrl) &&
        admin_event(qpair, current, NVME_AEN_NS_CHANGED))
        ctrl->is_ns_told = true;
    admin_tell_warning(qpair, current);
}

void nvmft_admin_tell(struct nvmft_qpair *qpair)
{
    admin_tell(qpair, NULL);
}

/* ---- fabrics -------------------------------------------------------------------------------- */

/* What a host may enable: CAP's command sets, pages of 4 KiB, round robin, the entry sizes of
 * Identify. A discovery controller has no I/O queues, so hosts leave their entry sizes open. */
static bool property_cc_valid(const struct nvmft_ctrl *ctrl, uint32_t cc)
{
    if (NVME_CC_CSS(cc) != 0 && NVME_CC_CSS(cc) != 6)
        return false;
    if (NVME_CC_MPS(cc) != 0 || NVME_CC_AMS(cc) != 0)
        return false;
    return ctrl->discovery || (NVME_CC_IOSQES(cc) == 6 && NVME_CC_IOCQES(cc) == 4);
}

/* Writes CC: enable, disable, shut down. A reset lasts until the I/O queues are gone; the rest
 * takes no time here. */
static uint16_t property_set_cc(struct nvmft_ctrl *ctrl, uint32_t cc)
{
    bool enable = (cc & NVME_CC_ENABLE) != 0;
    bool enabled = (ctrl->cc & NVME_CC_ENABLE) != 0;

    if (enable && !property_cc_valid(ctrl, cc))
        return NVME_SC_FIELD;
    if (enable && enabled && NVME_CC_CSS(cc) != NVME_CC_CSS(ctrl->cc))
        return NVME_SC_FIELD;
    if (enable != enabled)
        ctrl->csts = enable ? NVME_CSTS_READY : 0;
    if (enable && !enabled)
        nvmft_spaces_forget(ctrl); /* the host looks at all of them next */
    if (NVME_CC_SHN(cc) != 0)
        ctrl->csts |= NVME_CSTS_SHUTDOWN;
    ctrl->cc = cc;
    atomic_store(&ctrl->shut, ctrl->csts != NVME_CSTS_READY);
    atomic_store(&ctrl->ready, ctrl->csts == NVME_CSTS_READY);
    if (enabled && !enable)
        nvmft_registry_reset(ctrl);
    return NVME_SC_SUCCESS;
}

static uint16_t fabrics_property(struct nvmft_req *req)
{
    struct nvmft_ctrl *ctrl = req->qpair->ctrl;
    const struct nvmf_target_opts *opts = &req->qpair->shard->target->opts;
    struct nvme_property property;
    uint64_t value;

    if (nvme_property_decode(&req->sqe, &property) != ICMS_OK)
        return NVME_SC_FIELD;
    if (property.set) {
        if (property.offset != NVME_REG_CC || property.wide)
            return NVME_SC_FIELD;
        return property_set_cc(ctrl, (uint32_t)property.value);
    }
    switch (property.offset) {
    case NVME_REG_CAP:
        value = nvme_cap((uint16_t)opts->queue_entries_max, 10);
        break;
    case NVME_REG_VS:
        value = NVME_VERSION_2_0;
        break;
    case NVME_REG_CC:
        value = ctrl->cc;
        break;
    case NVME_REG_CSTS:
        value = ctrl->csts | (atomic_load(&ctrl->resetting) ? NVME_CSTS_READY : 0);
        break;
    default:
        return NVME_SC_FIELD;
    }
    if (property.wide != (property.offset == NVME_REG_CAP))
        return NVME_SC_FIELD;
    req->dw0 = (uint32_t)value;
    req->dw1 = (uint32_t)(value >> 32);
    return NVME_SC_SUCCESS;
}

/* Property Get and Set, Disconnect; Connect is qpair.c's. */
static void nvmft_fabrics_execute(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    uint8_t type = nvme_fctype(&req->sqe);

    if (type == NVME_FCTYPE_CONNECT) {
        nvmft_qpair_connect(req);
        return;
    }
    if (qpair->state != NVMFT_QPAIR_READY) {
        nvmft_req_fail(req, NVME_SC_SEQUENCE);
        return;
    }
    switch (type) {
    case NVME_FCTYPE_PROPERTY_GET:
    case NVME_FCTYPE_PROPERTY_SET:
        admin_answer(req, qpair->qid == 0 ? fabrics_property(req) : NVME_SC_OPCODE);
        break;
    case NVME_FCTYPE_AUTH_SEND:
        nvmft_auth_send(req);
        break;
    case NVME_FCTYPE_AUTH_RECEIVE:
        nvmft_auth_receive(req);
        break;
    case NVME_FCTYPE_DISCONNECT:
        if (qpair->qid != 0)
            qpair->close_wanted = true; /* closes when this is answered */
        nvmft_qpair_watch(qpair);
        admin_answer(req, qpair->qid != 0 ? NVME_SC_SUCCESS : NVME_SC_OPCODE);
        break;
    default:
        nvmft_req_fail(req, NVME_SC_OPCODE);
    }
}

/* ---- all ------------------------------------------------------------------------------------ */

void nvmft_admin_execute(struct nvmft_req *req)
{
    struct nvmft_qpair *qpair = req->qpair;
    struct nvmf_target *target = qpair->shard->target;

    if (req->sqe.opcode == NVME_FABRICS) {
        nvmft_fabrics_execute(req);
        return;
    }
    if (qpair->state != NVMFT_QPAIR_READY) {
        nvmft_req_fail(req, NVME_SC_SEQUENCE);
        return;
    }
    switch (req->sqe.opcode) {
    case NVME_ADMIN_IDENTIFY:
        admin_answer_data(req, nvmft_identify(qpair->ctrl, target, &req->sqe, req->buffer),
                          NVME_PAGE_BYTES);
        break;
    case NVME_ADMIN_GET_LOG_PAGE:
        admin_get_log(req);
        break;
    case NVME_ADMIN_SET_FEATURES:
    case NVME_ADMIN_GET_FEATURES:
        admin_features(req);
        break;
    case NVME_ADMIN_KEEP_ALIVE:
        admin_answer(req, NVME_SC_SUCCESS);
        break;
    case NVME_ADMIN_ABORT:
        req->dw0 = 1; /* not aborted: what is under way ends by itself */
        admin_answer(req, NVME_SC_SUCCESS);
        break;
    case NVME_ADMIN_ASYNC_EVENT:
        admin_async_event(req);
        break;
    default:
        nvmft_req_fail(req, NVME_SC_OPCODE);
    }
    admin_tell(qpair, req);
}
