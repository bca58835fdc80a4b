/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/ctrl.c: the association of the initiator with one subsystem.
 *
 * Called by the owner, by queue.c and by timers, on the association's loop.
 *
 * Life: nvmf_ctrl_open -> ADMIN -> [AUTH_*] -> CAP -> ENABLE -> READY -> IDENTIFY -> COUNT ->
 * EVENTS -> NS_* -> QUEUES -> UP -> CLOSING -> CLOSED. The table ctrl_steps has one row a state in
 * which an admin command runs: what it sends, and what its answer does. From UP on the same states
 * are walked again (LOG, NS_*) when the target says that its namespaces changed; requests go on
 * meanwhile.
 *
 * Invariants: one admin command of the state machine at a time; closed() only when all queues are
 * CLOSED and no message of ours is on its way.
 */
#include "base/check.h"
#include "nvmf/host/host_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define CTRL_READY_POLL_NS ((uint64_t)20 * 1000 * 1000)

/* No MDTS: no limit but common sense. */
#define CTRL_TRANSFER_MAX ((uint64_t)1 << 30)

static void ctrl_step(struct nvmf_ctrl *ctrl, enum nvmf_ctrl_state state);

/* ---- the end -------------------------------------------------------------------------------- */

static void ctrl_close(struct nvmf_ctrl *ctrl, icms_err why)
{
    ctrl->state = NVMF_CTRL_CLOSING;
    ctrl->up = false;
    ctrl->err = why;
    loop_timer_stop(ctrl->loop, &ctrl->open_timer);
    loop_timer_stop(ctrl->loop, &ctrl->ready_timer);
    loop_timer_stop(ctrl->loop, &ctrl->auth_timer);
    loop_timer_stop(ctrl->loop, &ctrl->keep_timer);
    loop_timer_stop(ctrl->loop, &ctrl->tick_timer);
    loop_timer_stop(ctrl->loop, &ctrl->tell_timer);
    for (int i = 0; i < NVMF_QUEUES; i++)
        nvmf_queue_close(&ctrl->queues[i], why);
    nvmf_ctrl_poke(ctrl);
}

void nvmf_ctrl_fail(struct nvmf_ctrl *ctrl, icms_err err, const char *format, ...)
{
    char text[LIMIT_REASON_BYTES - LIMIT_ADDRESS_BYTES - 2];
    va_list args;

    if (ctrl->state == NVMF_CTRL_CLOSED || ctrl->state == NVMF_CTRL_CLOSING)
        return;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(ctrl->why, sizeof(ctrl->why), "%s: %s", ctrl->addr_text, text);
    ctrl_close(ctrl, err);
    ctrl->ops->down(ctrl, err, ctrl->why);
}

void nvmf_ctrl_close(struct nvmf_ctrl *ctrl, icms_err why)
{
    if (ctrl->state == NVMF_CTRL_CLOSED || ctrl->state == NVMF_CTRL_CLOSING)
        return;
    ctrl_close(ctrl, why);
}

static void ctrl_msg(struct loop_msg *msg)
{
    struct nvmf_ctrl *ctrl = container_of(msg, struct nvmf_ctrl, msg);
    struct list *link;

    ctrl->msg_sent = false;
    while ((link = list_pop(&ctrl->ended)) != NULL) {
        struct nvmf_req *req = container_of(link, struct nvmf_req, link);

        nvmf_req_end(req, req->err);
    }
    if (ctrl->state != NVMF_CTRL_CLOSING || ctrl->msg_sent)
        return;
    for (int i = 0; i < NVMF_QUEUES; i++)
        if (ctrl->queues[i].state != NVMF_QUEUE_CLOSED)
            return;
    if (nvmf_auth_busy(ctrl))
        return;
    ctrl->state = NVMF_CTRL_CLOSED;
    ctrl->volume_count = 0;
    ctrl->ops->closed(ctrl); /* the owner may free it */
}

void nvmf_ctrl_poke(struct nvmf_ctrl *ctrl)
{
    if (ctrl->msg_sent)
        return;
    ctrl->msg_sent = true;
    loop_send(ctrl->loop, &ctrl->msg, ctrl_msg);
}

/* ---- admin commands ------------------------------------------------------------------------- */

/* Sends req on the admin queue. */
static void ctrl_admin_start(struct nvmf_ctrl *ctrl, struct nvmf_req *req, void *memory,
                             uint32_t bytes, uint64_t deadline_ns,
                             void (*done)(struct nvmf_req *req))
{
    req->direction = bytes > 0 ? NVME_DIRECTION_C2H : NVME_DIRECTION_NONE;
    req->data[0] = (struct iovec){memory, bytes};
    req->data[1] = (struct iovec){0};
    req->deadline_ns = deadline_ns;
    req->done = done;
    nvmf_req_start(req);
}

/* Fails on a command of the state machine that did not succeed; true when it did. */
static bool ctrl_admin_ok(struct nvmf_ctrl *ctrl, const struct nvmf_req *req, const char *what)
{
    if (req->err == ICMS_OK)
        return true;
    if (req->status != 0)
        nvmf_ctrl_fail(ctrl, req->err, "%s was refused with NVMe status %03xh", what, req->status);
    else
        nvmf_ctrl_fail(ctrl, req->err, "%s: %s", what, icms_err_text(req->err));
    return false;
}

static void cap_start(struct nvmf_ctrl *ctrl)
{
    struct nvme_property property = {.wide = true, .offset = NVME_REG_CAP};

    nvme_property_encode(&property, &ctrl->admin.sqe);
}

static void cap_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    if (!ctrl_admin_ok(ctrl, req, "reading the capabilities"))
        return;
    ctrl->cap = req->result | (uint64_t)req->result1 << 32;
    if ((ctrl->cap & NVME_CAP_CSS_IO) == 0) {
        nvmf_ctrl_fail(ctrl, ICMS_UNSUPPORTED, "the target has no other command set than NVM");
        return;
    }
    ctrl_step(ctrl, NVMF_CTRL_ENABLE);
}

static void enable_start(struct nvmf_ctrl *ctrl)
{
    struct nvme_property property = {.set = true, .offset = NVME_REG_CC, .value = NVME_CC_START};

    nvme_property_encode(&property, &ctrl->admin.sqe);
}

static void enable_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    if (ctrl_admin_ok(ctrl, req, "enabling the controller"))
        ctrl_step(ctrl, NVMF_CTRL_READY);
}

static void ready_start(struct nvmf_ctrl *ctrl)
{
    struct nvme_property property = {.offset = NVME_REG_CSTS};

    nvme_property_encode(&property, &ctrl->admin.sqe);
}

static void ready_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    if (!ctrl_admin_ok(ctrl, req, "reading the controller's status"))
        return;
    if ((req->result & NVME_CSTS_FATAL) != 0)
        nvmf_ctrl_fail(ctrl, ICMS_IO, "the controller reports a fatal status");
    else if ((req->result & NVME_CSTS_READY) != 0)
        ctrl_step(ctrl, NVMF_CTRL_IDENTIFY);
    else
        loop_timer_start(ctrl->loop, &ctrl->ready_timer,
                         loop_now_ns(ctrl->loop) + CTRL_READY_POLL_NS);
}

static void ctrl_ready_again(struct loop_timer *timer)
{
    ctrl_step(container_of(timer, struct nvmf_ctrl, ready_timer), NVMF_CTRL_READY);
}

static void identify_make(struct nvmf_ctrl *ctrl, uint8_t cns, uint8_t csi, uint32_t nsid)
{
    struct nvme_identify identify = {.cns = cns, .csi = csi, .nsid = nsid};

    nvme_identify_encode(&identify, &ctrl->admin.sqe);
}

static void identify_start(struct nvmf_ctrl *ctrl)
{
    identify_make(ctrl, NVME_CNS_CTRL, 0, 0);
}

static void identify_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    if (!ctrl_admin_ok(ctrl, req, "Identify Controller"))
        return;
    if (nvme_ctrl_decode(ctrl->page, req->value_bytes, &ctrl->info) != ICMS_OK) {
        nvmf_ctrl_fail(ctrl, ICMS_PROTOCOL, "Identify Controller makes no sense");
        return;
    }
    if (ctrl->info.type != NVME_CTRL_IO) {
        nvmf_ctrl_fail(ctrl, ICMS_UNSUPPORTED, "subsystem %s has no I/O controller", ctrl->subnqn);
        return;
    }
    ctrl->transfer_max = CTRL_TRANSFER_MAX;
    if (ctrl->info.mdts > 0 && ctrl->info.mdts < 18)
        ctrl->transfer_max = (uint64_t)NVME_PAGE_BYTES << ctrl->info.mdts;
    ctrl_step(ctrl, NVMF_CTRL_COUNT);
}

static void feature_make(struct nvmf_ctrl *ctrl, uint8_t fid, uint32_t nsid, uint32_t value)
{
    struct nvme_feature feature = {.set = true, .fid = fid, .nsid = nsid, .value = value};

    nvme_feature_encode(&feature, &ctrl->admin.sqe);
}

static void count_start(struct nvmf_ctrl *ctrl)
{
    uint32_t wanted = IO_CLASS_COUNT - 1; /* 0's based */

    feature_make(ctrl, NVME_FEATURE_QUEUES, 0, wanted << 16 | wanted);
}

static void count_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    uint32_t queues;

    if (!ctrl_admin_ok(ctrl, req, "asking for I/O queues"))
        return;
    queues = 1 + (uint32_t)u64_min(req->result & 0xffff, req->result >> 16);
    if (queues < IO_CLASS_COUNT) {
        nvmf_ctrl_fail(ctrl, ICMS_LIMIT, "the target gives %u I/O queues, %d are needed", queues,
                       IO_CLASS_COUNT);
        return;
    }
    ctrl_step(ctrl, NVMF_CTRL_EVENTS);
}

static void events_start(struct nvmf_ctrl *ctrl)
{
    feature_make(ctrl, NVME_FEATURE_ASYNC_EVENT, 0, ctrl->info.oaes & NVME_OAES_NS_CHANGED);
}

static void ctrl_event_start(struct nvmf_ctrl *ctrl);

static void events_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    /* A target that knows no events is looked at once. */
    if (req->err != ICMS_OK && req->status == 0) {
        (void)ctrl_admin_ok(ctrl, req, "configuring events");
        return;
    }
    if (req->err == ICMS_OK && (ctrl->info.oaes & NVME_OAES_NS_CHANGED) != 0)
        ctrl_event_start(ctrl);
    ctrl->nsid_at = ctrl->nsid_count = 0;
    ctrl->found_count = 0;
    ctrl_step(ctrl, NVMF_CTRL_NS_LIST);
}

/* ---- namespaces ----------------------------------------------------------------------------- */

static void ns_list_start(struct nvmf_ctrl *ctrl)
{
    uint32_t after = ctrl->nsid_count == 0 ? 0 : ctrl->nsids[ctrl->nsid_count - 1];

    identify_make(ctrl, NVME_CNS_NS_ACTIVE, 0, after);
}

/* All namespaces were looked at: what was found counts from now on. */
static void ns_over(struct nvmf_ctrl *ctrl)
{
    memcpy(ctrl->volumes, ctrl->found, sizeof(ctrl->volumes));
    ctrl->volume_count = ctrl->found_count;
    if (!ctrl->up) {
        ctrl->queue_at = 1;
        ctrl_step(ctrl, NVMF_CTRL_QUEUES);
        return;
    }
    ctrl->state = NVMF_CTRL_UP;
    if (ctrl->ns_dirty) {
        ctrl->ns_dirty = false;
        ctrl_step(ctrl, NVMF_CTRL_LOG);
    }
    ctrl->ops->changed(ctrl);
}

/* All namespaces of an icms target are Key-Value, and their format names the volume: one command
 * for each of those that are not wanted. Of other targets the names are asked for first. */
static void ns_begin(struct nvmf_ctrl *ctrl)
{
    ctrl->found[ctrl->found_count] = (struct nvmf_volume){.nsid = ctrl->nsids[ctrl->nsid_at]};
    ctrl_step(ctrl, ctrl->info.icms_ext != 0 ? NVMF_CTRL_NS_KV : NVMF_CTRL_NS_IDS);
}

/* The next namespace of the list, the next piece of it, or the end: also when all that are wanted
 * were found, as a subsystem may have many more. */
static void ns_next(struct nvmf_ctrl *ctrl)
{
    uint32_t most = ctrl->wanted_count > 0 ? ctrl->wanted_count : LIMIT_AGENT_VOLUMES;

    if (ctrl->nsid_at < ctrl->nsid_count && ctrl->found_count < most)
        ns_begin(ctrl);
    else if (ctrl->nsid_count == NVME_NS_LIST_MAX && ctrl->found_count < most)
        ctrl_step(ctrl, NVMF_CTRL_NS_LIST);
    else
        ns_over(ctrl);
}

static void ns_list_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    uint32_t after = ctrl->nsid_count == 0 ? 0 : ctrl->nsids[ctrl->nsid_count - 1];
    icms_err err;

    if (!ctrl_admin_ok(ctrl, req, "listing namespaces"))
        return;
    err = nvme_ns_list_decode(ctrl->page, req->value_bytes, ctrl->nsids, NVME_NS_LIST_MAX,
                              &ctrl->nsid_count);
    if (err != ICMS_OK || (ctrl->nsid_count > 0 && ctrl->nsids[0] <= after)) {
        nvmf_ctrl_fail(ctrl, ICMS_PROTOCOL, "the list of namespaces makes no sense");
        return;
    }
    ctrl->nsid_at = 0;
    ns_next(ctrl);
}

static void ns_ids_start(struct nvmf_ctrl *ctrl)
{
    identify_make(ctrl, NVME_CNS_NS_IDS, 0, ctrl->nsids[ctrl->nsid_at]);
}

static void ns_skip(struct nvmf_ctrl *ctrl)
{
    ctrl->nsid_at++;
    ns_next(ctrl);
}

static void ns_ids_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    struct nvmf_volume *found = &ctrl->found[ctrl->found_count];
    struct nvme_ns_ids ids;

    if (req->err != ICMS_OK && req->status != 0) {
        ns_skip(ctrl); /* gone since the list was made */
        return;
    }
    if (!ctrl_admin_ok(ctrl, req, "identifying a namespace"))
        return;
    if (nvme_ns_ids_decode(ctrl->page, req->value_bytes, &ids) != ICMS_OK) {
        nvmf_ctrl_fail(ctrl, ICMS_PROTOCOL, "the names of namespace %u make no sense",
                       ctrl->nsids[ctrl->nsid_at]);
        return;
    }
    if (!ids.has_csi || ids.csi != NVME_CSI_KV) {
        ns_skip(ctrl);
        return;
    }
    if (ids.has_uuid)
        found->uuid = ids.uuid;
    else if (ids.has_nguid)
        memcpy(found->uuid.bytes, ids.nguid, sizeof(found->uuid.bytes));
    ctrl_step(ctrl, NVMF_CTRL_NS_KV);
}

/* Is the volume looked for, and not found yet? */
static bool ns_wanted(const struct nvmf_ctrl *ctrl, const struct uuid *uuid)
{
    if (ctrl->wanted_count == 0)
        return true;
    for (uint32_t i = 0; i < ctrl->found_count; i++)
        if (uuid_equal(&ctrl->found[i].uuid, uuid))
            return false;
    for (uint32_t i = 0; i < ctrl->wanted_count && !uuid_is_nil(uuid); i++)
        if (uuid_equal(&ctrl->wanted[i], uuid))
            return true;
    return false;
}

void nvmf_ctrl_wanted_set(struct nvmf_ctrl *ctrl, uint32_t index, const struct uuid *uuid)
{
    check(index < ctrl->wanted_count);
    ctrl->wanted[index] = *uuid;
}

static void ns_kv_start(struct nvmf_ctrl *ctrl)
{
    identify_make(ctrl, NVME_CNS_NS_CSI, NVME_CSI_KV, ctrl->nsids[ctrl->nsid_at]);
}

static void ns_kv_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    struct nvmf_volume *found = &ctrl->found[ctrl->found_count];
    struct nvme_kv_ns ns;

    if (req->err != ICMS_OK && req->status != 0) {
        ns_skip(ctrl);
        return;
    }
    if (!ctrl_admin_ok(ctrl, req, "identifying a Key-Value namespace"))
        return;
    if (nvme_kv_ns_decode(ctrl->page, req->value_bytes, &ns) != ICMS_OK) {
        nvmf_ctrl_fail(ctrl, ICMS_PROTOCOL, "the Key-Value format of namespace %u makes no sense",
                       found->nsid);
        return;
    }
    found->value_bytes_max = ns.value_bytes_max;
    found->icms = ns.icms;
    found->sealed = ns.icms && ns.sealed;
    found->encrypted = ns.icms && ns.encrypted;
    if (ns.icms)
        found->uuid = ns.volume;
    if (ns_wanted(ctrl, &found->uuid))
        ctrl_step(ctrl, NVMF_CTRL_NS_DELETE);
    else
        ns_skip(ctrl);
}

static void ns_delete_start(struct nvmf_ctrl *ctrl)
{
    feature_make(ctrl, NVME_FEATURE_KV, ctrl->nsids[ctrl->nsid_at], 1);
}

static void ns_delete_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    /* A target without this feature answers every Delete with success. */
    if (req->err != ICMS_OK && req->status == 0) {
        (void)ctrl_admin_ok(ctrl, req, "setting the Key-Value feature");
        return;
    }
    ctrl->found_count++;
    ns_skip(ctrl);
}

static void log_start(struct nvmf_ctrl *ctrl)
{
    struct nvme_log log = {
        .page = NVME_LOG_NS_CHANGED, .nsid = NVME_NSID_ALL, .bytes = sizeof(ctrl->page)};

    nvme_log_encode(&log, &ctrl->admin.sqe);
}

static void log_done(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    /* What it says does not matter: all are looked at again. Reading it lets the next event come.
     */
    if (req->err != ICMS_OK && req->status == 0) {
        (void)ctrl_admin_ok(ctrl, req, "reading the log of changed namespaces");
        return;
    }
    ctrl->nsid_at = ctrl->nsid_count = 0;
    ctrl->found_count = 0;
    ctrl_step(ctrl, NVMF_CTRL_NS_LIST);
}

void nvmf_ctrl_look(struct nvmf_ctrl *ctrl)
{
    if (!ctrl->up)
        return;
    if (ctrl->state != NVMF_CTRL_UP) { /* a look is under way and may have missed something */
        ctrl->ns_dirty = true;
        return;
    }
    ctrl->nsid_at = ctrl->nsid_count = 0;
    ctrl->found_count = 0;
    ctrl_step(ctrl, NVMF_CTRL_NS_LIST);
}

/* ---- the state machine ---------------------------------------------------------------------- */

static const struct {
    void (*start)(struct nvmf_ctrl *ctrl);                      /* makes ctrl->admin.sqe    */
    void (*done)(struct nvmf_ctrl *ctrl, struct nvmf_req *req); /* looks at the answer      */
    bool page;                                                  /* data goes to ctrl->page  */
} ctrl_steps[] = {
    [NVMF_CTRL_CAP] = {cap_start, cap_done, false},
    [NVMF_CTRL_ENABLE] = {enable_start, enable_done, false},
    [NVMF_CTRL_READY] = {ready_start, ready_done, false},
    [NVMF_CTRL_IDENTIFY] = {identify_start, identify_done, true},
    [NVMF_CTRL_COUNT] = {count_start, count_done, false},
    [NVMF_CTRL_EVENTS] = {events_start, events_done, false},
    [NVMF_CTRL_NS_LIST] = {ns_list_start, ns_list_done, true},
    [NVMF_CTRL_NS_IDS] = {ns_ids_start, ns_ids_done, true},
    [NVMF_CTRL_NS_KV] = {ns_kv_start, ns_kv_done, true},
    [NVMF_CTRL_NS_DELETE] = {ns_delete_start, ns_delete_done, false},
    [NVMF_CTRL_LOG] = {log_start, log_done, true},
};

static void ctrl_step_done(struct nvmf_req *req)
{
    struct nvmf_ctrl *ctrl = container_of(req, struct nvmf_ctrl, admin);

    if (ctrl->state == NVMF_CTRL_CLOSING)
        return;
    check(ctrl->state < sizeof(ctrl_steps) / sizeof(ctrl_steps[0]) &&
          ctrl_steps[ctrl->state].done != NULL);
    ctrl_steps[ctrl->state].done(ctrl, req);
}

/* Enters a state: sends its command, or opens the next queue. */
static void ctrl_step(struct nvmf_ctrl *ctrl, enum nvmf_ctrl_state state)
{
    uint32_t entries = ctrl->queues[1].entries_max;

    check(ctrl->state != NVMF_CTRL_CLOSED && ctrl->state != NVMF_CTRL_CLOSING);
    ctrl->state = state;
    if (state == NVMF_CTRL_QUEUES) {
        entries = (uint32_t)u64_min(entries, nvme_cap_queue_entries(ctrl->cap));
        entries = (uint32_t)u64_min(entries, ctrl->info.commands_max);
        if (entries < NVMF_ENTRIES_MIN)
            entries = NVMF_ENTRIES_MIN;
        nvmf_queue_open(&ctrl->queues[ctrl->queue_at], entries, ctrl->deadline_ns);
        return;
    }
    ctrl_steps[state].start(ctrl);
    ctrl_admin_start(ctrl, &ctrl->admin, ctrl->page, ctrl_steps[state].page ? NVME_PAGE_BYTES : 0,
                     0, ctrl_step_done);
}

/* ---- settings that hosts share -------------------------------------------------------------- */

/* Those that belong to no volume, in the order in which they are told; then run_blocks of each. */
static const uint8_t tell_fids[] = {NVME_FEATURE_ICMS_ENCLOSURES, NVME_FEATURE_ICMS_WEIGHTS,
                                    NVME_FEATURE_ICMS_EPOCH};
#define TELLS ((uint32_t)sizeof(tell_fids))

/* The next setting that the target can compare; false: none is left. */
static bool tell_make(struct nvmf_ctrl *ctrl, struct nvme_feature *out_feature)
{
    const struct nvmf_settings *own = &ctrl->settings;
    const uint32_t values[TELLS] = {own->enclosures, own->weights, own->epoch};
    const struct nvmf_volume *volume;

    *out_feature = (struct nvme_feature){.set = true};
    for (; ctrl->tell_at < TELLS + ctrl->wanted_count; ctrl->tell_at++) {
        if (ctrl->tell_at < TELLS) {
            out_feature->fid = tell_fids[ctrl->tell_at];
            out_feature->value = values[ctrl->tell_at];
            return true;
        }
        volume = nvmf_ctrl_volume(ctrl, &ctrl->wanted[ctrl->tell_at - TELLS]);
        if (volume == NULL)
            continue;
        out_feature->fid = NVME_FEATURE_ICMS_RUN_BLOCKS;
        out_feature->nsid = volume->nsid;
        out_feature->value = own->run_blocks[ctrl->tell_at - TELLS];
        return true;
    }
    return false;
}

static void ctrl_tell_done(struct nvmf_req *req);

static void ctrl_tell_next(struct nvmf_ctrl *ctrl)
{
    struct nvme_feature feature;

    if (!tell_make(ctrl, &feature)) {
        loop_timer_start(ctrl->loop, &ctrl->tell_timer, loop_now_ns(ctrl->loop) + NVMF_TELL_NS);
        return;
    }
    nvme_feature_encode(&feature, &ctrl->tell.sqe);
    ctrl_admin_start(ctrl, &ctrl->tell, NULL, 0, 0, ctrl_tell_done);
}

/* Whatever it answers otherwise says nothing: a volume may just be going away, or an older target
 * not know the setting. The epoch of another pod is none of ours. */
static void ctrl_tell_done(struct nvmf_req *req)
{
    struct nvmf_ctrl *ctrl = container_of(req, struct nvmf_ctrl, tell);
    uint32_t at = ctrl->tell_at;
    uint8_t fid = at < TELLS ? tell_fids[at] : NVME_FEATURE_ICMS_RUN_BLOCKS;
    uint32_t others = req->result;

    if (!ctrl->up)
        return;
    if (ctrl->tell_again) { /* what it says is about settings of before */
        ctrl->tell_again = false;
        ctrl->tell_at = 0;
        ctrl_tell_next(ctrl);
        return;
    }
    if (fid == NVME_FEATURE_ICMS_EPOCH && req->result1 != ctrl->settings.pod)
        others = 0;
    if (req->err == ICMS_OK && ctrl->ops->told != NULL)
        ctrl->ops->told(ctrl, fid, at < TELLS ? 0 : at - TELLS, others);
    if (!ctrl->up)
        return; /* told() closed it */
    ctrl->tell_at++;
    ctrl_tell_next(ctrl);
}

static void ctrl_tell_start(struct nvmf_ctrl *ctrl)
{
    if (!ctrl->up || !ctrl->has_settings || (ctrl->info.icms_ext & NVME_ICMS_EXT_SETTINGS) == 0)
        return;
    ctrl->tell_at = 0;
    ctrl->tell_again = false;
    ctrl_tell_next(ctrl);
}

static void ctrl_tell_fire(struct loop_timer *timer)
{
    ctrl_tell_start(container_of(timer, struct nvmf_ctrl, tell_timer));
}

void nvmf_ctrl_settings_set(struct nvmf_ctrl *ctrl, const struct nvmf_settings *settings)
{
    if (!ctrl->has_settings)
        return;
    ctrl->settings = *settings;
    if (loop_timer_armed(&ctrl->tell_timer))
        loop_timer_start(ctrl->loop, &ctrl->tell_timer, loop_now_ns(ctrl->loop));
    else
        ctrl->tell_again = true; /* it is told, or was not yet */
}

/* ---- keep-alive ----------------------------------------------------------------------------- */

static void ctrl_keep_arm(struct nvmf_ctrl *ctrl)
{
    if (ctrl->keep_alive_ns > 0)
        loop_timer_start(ctrl->loop, &ctrl->keep_timer,
                         loop_now_ns(ctrl->loop) + ctrl->keep_alive_ns / 2);
}

void nvmf_ctrl_queue_live(struct nvmf_ctrl *ctrl, struct nvmf_queue *queue)
{
    if (queue->qid == 0) {
        ctrl_keep_arm(ctrl);
        ctrl_step(ctrl, NVMF_CTRL_CAP);
        return;
    }
    if (++ctrl->queue_at < NVMF_QUEUES) {
        ctrl_step(ctrl, NVMF_CTRL_QUEUES);
        return;
    }
    ctrl->state = NVMF_CTRL_UP;
    ctrl->up = true;
    loop_timer_stop(ctrl->loop, &ctrl->open_timer);
    ctrl->ops->up(ctrl);
    ctrl_tell_start(ctrl);
    if (ctrl->state == NVMF_CTRL_UP && ctrl->ns_dirty) {
        ctrl->ns_dirty = false;
        ctrl_step(ctrl, NVMF_CTRL_LOG);
    }
}

static void ctrl_open_timeout(struct loop_timer *timer)
{
    struct nvmf_ctrl *ctrl = container_of(timer, struct nvmf_ctrl, open_timer);

    nvmf_ctrl_fail(ctrl, ICMS_DEADLINE, "the target did not answer in time while connecting");
}

void nvmf_ctrl_open(struct nvmf_ctrl *ctrl, uint64_t deadline_ns)
{
    check(ctrl->state == NVMF_CTRL_CLOSED && !ctrl->msg_sent);
    ctrl->state = NVMF_CTRL_ADMIN;
    ctrl->deadline_ns = deadline_ns;
    ctrl->err = ICMS_OK;
    ctrl->why[0] = 0;
    ctrl->ns_dirty = false;
    ctrl->silent_ticks = 0;
    ctrl->heard_bytes = 0;
    memset(&ctrl->info, 0, sizeof(ctrl->info));
    loop_timer_start(ctrl->loop, &ctrl->open_timer, deadline_ns);
    nvmf_queue_open(&ctrl->queues[0], NVMF_ADMIN_ENTRIES, deadline_ns);
}

/* ---- events --------------------------------------------------------------------------------- */

static void ctrl_event_done(struct nvmf_req *req)
{
    struct nvmf_ctrl *ctrl = container_of(req, struct nvmf_ctrl, event);

    if (ctrl->state == NVMF_CTRL_CLOSING || req->err != ICMS_OK)
        return; /* a target that gives no events is looked at once */
    if (req->result == NVME_AEN_NS_CHANGED)
        ctrl->ns_dirty = true;
    ctrl_event_start(ctrl);
    if (ctrl->ns_dirty && ctrl->state == NVMF_CTRL_UP) {
        ctrl->ns_dirty = false;
        ctrl_step(ctrl, NVMF_CTRL_LOG);
    }
}

static void ctrl_event_start(struct nvmf_ctrl *ctrl)
{
    nvme_admin_plain_encode(NVME_ADMIN_ASYNC_EVENT, &ctrl->event.sqe);
    ctrl_admin_start(ctrl, &ctrl->event, NULL, 0, 0, ctrl_event_done);
}

/* ---- life signs ----------------------------------------------------------------------------- */

static void ctrl_keep_done(struct nvmf_req *req)
{
    struct nvmf_ctrl *ctrl = container_of(req, struct nvmf_ctrl, keep);

    if (ctrl->state != NVMF_CTRL_CLOSING && req->err == ICMS_DEADLINE)
        nvmf_ctrl_fail(ctrl, ICMS_DEADLINE, "a keep-alive was not answered");
}

static void ctrl_keep_start(struct nvmf_ctrl *ctrl)
{
    if (ctrl->keep.state != NVMF_REQ_IDLE)
        return;
    nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &ctrl->keep.sqe);
    ctrl_admin_start(ctrl, &ctrl->keep, NULL, 0,
                     ctrl->keep_alive_ns == 0 ? 0 : loop_now_ns(ctrl->loop) + ctrl->keep_alive_ns,
                     ctrl_keep_done);
}

static void ctrl_keep_fire(struct loop_timer *timer)
{
    struct nvmf_ctrl *ctrl = container_of(timer, struct nvmf_ctrl, keep_timer);

    ctrl_keep_start(ctrl);
    ctrl_keep_arm(ctrl);
}

void nvmf_ctrl_watch(struct nvmf_ctrl *ctrl)
{
    if (ctrl->silence_ns == 0 || !ctrl->up || loop_timer_armed(&ctrl->tick_timer))
        return;
    ctrl->silent_ticks = 0;
    ctrl->heard_bytes = 0;
    for (int i = 0; i < NVMF_QUEUES; i++) {
        struct nvmf_queue *queue = &ctrl->queues[i];

        queue->silent_ticks = 0;
        queue->heard_bytes = nvmf_queue_heard(queue);
        ctrl->heard_bytes += queue->heard_bytes;
    }
    loop_timer_start(ctrl->loop, &ctrl->tick_timer,
                     loop_now_ns(ctrl->loop) + ctrl->silence_ns / NVMF_SILENCE_TICKS);
}

/* One queue pair, silent or not; true: it is dead although others are not. */
static bool ctrl_tick_queue(struct nvmf_queue *queue)
{
    uint64_t bytes = nvmf_queue_heard(queue);
    bool asked = queue->ask.state != NVMF_REQ_IDLE;

    queue->silent_ticks =
        queue->waiting == 0 || bytes != queue->heard_bytes ? 0 : queue->silent_ticks + 1;
    queue->heard_bytes = bytes;
    return queue->silent_ticks >=
           (uint32_t)(asked ? NVMF_SILENCE_TICKS_ASKED : NVMF_SILENCE_TICKS_QUEUE);
}

/* A command of it was given up long ago and is not answered. */
static bool ctrl_tick_lost(const struct nvmf_queue *queue, uint64_t now_ns)
{
    struct list *first = list_first(&queue->unanswered);

    return first != NULL &&
           now_ns - container_of(first, struct nvmf_cmd, link)->detached_ns > NVMF_ANSWER_NS;
}

/* Any byte is a sign of life: a busy target still answers on its admin queue, which is asked at
 * half time. */
static void ctrl_tick(struct loop_timer *timer)
{
    struct nvmf_ctrl *ctrl = container_of(timer, struct nvmf_ctrl, tick_timer);
    uint64_t now_ns = loop_now_ns(ctrl->loop), heard_bytes = 0;
    struct nvmf_queue *dead = NULL;
    uint32_t waiting = 0;

    for (int i = 0; i < NVMF_QUEUES; i++) {
        struct nvmf_queue *queue = &ctrl->queues[i];

        if (ctrl_tick_lost(queue, now_ns)) {
            nvmf_ctrl_fail(ctrl, ICMS_PEER_DOWN,
                           "a command on the %s queue was not answered for %u s after its deadline",
                           queue->name, (uint32_t)(NVMF_ANSWER_NS / 1000000000));
            return;
        }
        if (ctrl_tick_queue(queue))
            dead = queue;
        heard_bytes += queue->heard_bytes;
        waiting += queue->waiting;
    }
    if (waiting == 0)
        return; /* nvmf_ctrl_watch starts it again */
    ctrl->silent_ticks = heard_bytes != ctrl->heard_bytes ? 0 : ctrl->silent_ticks + 1;
    ctrl->heard_bytes = heard_bytes;
    if (ctrl->silent_ticks >= NVMF_SILENCE_TICKS || dead != NULL) {
        nvmf_ctrl_fail(ctrl, ICMS_PEER_DOWN,
                       "%u commands wait and nothing came on the %s for %u ms", waiting,
                       dead != NULL ? dead->name : "connections",
                       (uint32_t)(ctrl->silence_ns / NVMF_SILENCE_TICKS / 1000000 *
                                  (dead != NULL ? dead->silent_ticks : NVMF_SILENCE_TICKS)));
        return;
    }
    loop_timer_start(ctrl->loop, &ctrl->tick_timer, now_ns + ctrl->silence_ns / NVMF_SILENCE_TICKS);
    for (int i = 0; i < NVMF_QUEUES; i++) /* the timer is armed: watching goes on */
        if (ctrl->queues[i].silent_ticks == NVMF_SILENCE_TICKS / 2)
            nvmf_queue_ask(&ctrl->queues[i]);
    if (ctrl->silent_ticks != NVMF_SILENCE_TICKS / 2)
        return;
    ctrl_keep_start(ctrl);
    if (ctrl->ops->silent != NULL)
        ctrl->ops->silent(ctrl);
}

void nvmf_ctrl_ask(struct nvmf_ctrl *ctrl)
{
    if (ctrl->up)
        ctrl_keep_start(ctrl);
}

/* ---- making --------------------------------------------------------------------------------- */

void nvmf_ctrl_opts_init(struct nvmf_ctrl_opts *opts)
{
    *opts = (struct nvmf_ctrl_opts){
        .transport = &nvmf_host_tcp,
        .queue_entries = 128,
        .shares = {.groups = 1, .members = 1},
        .keep_alive_ns = (uint64_t)5 * 1000 * 1000 * 1000,
        .silence_ns = (uint64_t)500 * 1000 * 1000,
        .send_timeout_ns = (uint64_t)10 * 1000 * 1000 * 1000,
    };
}

icms_err nvmf_ctrl_new(struct loop *loop, const struct nvmf_ctrl_opts *opts, struct err_why *why,
                       struct nvmf_ctrl **out_ctrl)
{
    static const struct uuid no_host;
    struct nvmf_ctrl *ctrl;

    check(opts->volume_count <= LIMIT_AGENT_VOLUMES);
    if (!nvme_nqn_valid(opts->subnqn, strlen(opts->subnqn) + 1) ||
        !nvme_nqn_valid(opts->hostnqn, strlen(opts->hostnqn) + 1))
        return err_set(why, ICMS_CONFIG, "not a valid NVMe qualified name: %s or %s", opts->subnqn,
                       opts->hostnqn);
    if (uuid_equal(&opts->host_id, &no_host))
        return err_set(why, ICMS_CONFIG, "the host identifier is zero: targets refuse that");
    if (opts->queue_entries < NVMF_ENTRIES_MIN || opts->queue_entries > NVMF_ENTRIES_MAX)
        return err_set(why, ICMS_CONFIG, "%u queue entries: 2 to %d are possible",
                       opts->queue_entries, NVMF_ENTRIES_MAX);
    if (opts->auth_key == NULL &&
        ((opts->require & REQUIRE_CHAP) != 0 || opts->auth_controller_key != NULL))
        return err_set(why, ICMS_CONFIG,
                       "host %.200s has to authenticate and has no secret: make one with `icms key "
                       "gen` and name it as `secret`",
                       opts->hostnqn);
    ctrl = calloc(1, sizeof(*ctrl));
    if (ctrl == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a connection to an enclosure");
    ctrl->state = NVMF_CTRL_CLOSED;
    ctrl->loop = loop;
    ctrl->ops = opts->ops;
    ctrl->owner = opts->owner;
    ctrl->transport = opts->transport;
    ctrl->connect = (struct nvmf_connect_opts){
        .addr = opts->addr,
        .send_timeout_ns = opts->send_timeout_ns,
        .header_digest = opts->header_digest,
        .data_digest = opts->data_digest,
        .tls = opts->tls,
    };
    loop_addr_format(&opts->addr, ctrl->addr_text, sizeof(ctrl->addr_text));
    snprintf(ctrl->subnqn, sizeof(ctrl->subnqn), "%s", opts->subnqn);
    snprintf(ctrl->hostnqn, sizeof(ctrl->hostnqn), "%s", opts->hostnqn);
    ctrl->host_id = opts->host_id;
    ctrl->marks = opts->marks;
    ctrl->require = opts->require;
    ctrl->auth_key = opts->auth_key;
    ctrl->auth_controller_key = opts->auth_controller_key;
    ctrl->keep_alive_ns = opts->keep_alive_ns;
    ctrl->silence_ns = opts->silence_ns;
    if (opts->volume_count > 0)
        memcpy(ctrl->wanted, opts->volumes, opts->volume_count * sizeof(ctrl->wanted[0]));
    ctrl->wanted_count = opts->volume_count;
    ctrl->has_settings = opts->settings != NULL;
    if (opts->settings != NULL)
        ctrl->settings = *opts->settings;
    list_init(&ctrl->ended);
    loop_timer_init(&ctrl->open_timer, ctrl_open_timeout);
    loop_timer_init(&ctrl->ready_timer, ctrl_ready_again);
    loop_timer_init(&ctrl->auth_timer, nvmf_auth_again);
    loop_timer_init(&ctrl->keep_timer, ctrl_keep_fire);
    loop_timer_init(&ctrl->tick_timer, ctrl_tick);
    loop_timer_init(&ctrl->tell_timer, ctrl_tell_fire);
    for (uint16_t i = 0; i < NVMF_QUEUES; i++)
        if (nvmf_queue_init(&ctrl->queues[i], ctrl, i,
                            i == 0 ? NVMF_ADMIN_ENTRIES : opts->queue_entries,
                            &opts->shares) != ICMS_OK) {
            nvmf_ctrl_free(&ctrl);
            return err_set(why, ICMS_NO_MEMORY, "no memory for a connection to an enclosure");
        }
    if (opts->auth_key != NULL && nvmf_auth_new(ctrl) != ICMS_OK) {
        nvmf_ctrl_free(&ctrl);
        return err_set(why, ICMS_NO_MEMORY, "no memory for a connection to an enclosure");
    }
    nvmf_req_init(&ctrl->admin, ctrl, &ctrl->queues[0]);
    nvmf_req_init(&ctrl->keep, ctrl, &ctrl->queues[0]);
    nvmf_req_init(&ctrl->event, ctrl, &ctrl->queues[0]);
    nvmf_req_init(&ctrl->tell, ctrl, &ctrl->queues[0]);
    *out_ctrl = ctrl;
    return ICMS_OK;
}

void nvmf_ctrl_free(struct nvmf_ctrl **ctrl)
{
    if (*ctrl == NULL)
        return;
    for (int i = 0; i < NVMF_QUEUES; i++)
        nvmf_queue_fini(&(*ctrl)->queues[i]);
    nvmf_auth_free(*ctrl);
    free(*ctrl);
    *ctrl = NULL;
}

/* ---- looking -------------------------------------------------------------------------------- */

bool nvmf_ctrl_is_up(const struct nvmf_ctrl *ctrl)
{
    return ctrl->up;
}

enum net_tls_how nvmf_ctrl_tls(const struct nvmf_ctrl *ctrl)
{
    return ctrl->queues[0].conn == NULL ? NET_TLS_NONE : ctrl->queues[0].conn->tls;
}

void *nvmf_ctrl_owner(const struct nvmf_ctrl *ctrl)
{
    return ctrl->owner;
}

const char *nvmf_ctrl_serial(const struct nvmf_ctrl *ctrl)
{
    return ctrl->info.serial;
}

uint64_t nvmf_ctrl_instance(const struct nvmf_ctrl *ctrl)
{
    return ctrl->info.icms_instance;
}

uint64_t nvmf_ctrl_heard(const struct nvmf_ctrl *ctrl)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < NVMF_QUEUES; i++)
        bytes += nvmf_queue_heard(&ctrl->queues[i]);
    return bytes;
}

bool nvmf_ctrl_has_exist_many(const struct nvmf_ctrl *ctrl)
{
    return ctrl->up && (ctrl->info.icms_ext & NVME_ICMS_EXT_EXIST_MANY) != 0 &&
           ctrl->info.in_capsule_bytes >= NVME_KV_EXIST_MANY_BYTES;
}

const struct nvmf_volume *nvmf_ctrl_volume(const struct nvmf_ctrl *ctrl, const struct uuid *uuid)
{
    for (uint32_t i = 0; i < ctrl->volume_count; i++)
        if (uuid_equal(&ctrl->volumes[i].uuid, uuid))
            return &ctrl->volumes[i];
    return NULL;
}

const struct nvmf_ctrl_stats *nvmf_ctrl_stats(const struct nvmf_ctrl *ctrl)
{
    return &ctrl->stats;
}
