/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Controllers and the free queue pair slots: what all connections of a target share.
 *
 * Runs on loop 0 alone. Queue pairs on other loops ask by message (join, leave) and are told by
 * message (kill). A controller lives as long as a queue pair is joined to it; it dies when its
 * admin queue leaves or it was silent for longer than its keep-alive timeout, and takes its queue
 * pairs with it. Its timer looks once a timeout, so controllers that are idle cost next to nothing.
 */
#include <stdlib.h>

#include "base/check.h"
#include "nvmf/target/target_int.h"

/* Silence that is forgiven beyond the keep-alive timeout: a host that was late. */
#define REGISTRY_GRACE_NS ((uint64_t)500 * 1000 * 1000)

/* Of all connections, the part that discovery may have for hosts that have to prove who they are:
 * it is told to who proves nothing. The oldest goes for one more. */
#define REGISTRY_UNPROVEN_PART 8

static void registry_look(struct loop_timer *timer);

icms_err nvmft_registry_init(struct nvmf_target *target)
{
    list_init(&target->unproven);
    target->ctrls = calloc(target->opts.connections_max, sizeof(*target->ctrls));
    target->listed = calloc(target->opts.connections_max, NVMFT_PROVEN * sizeof(target->listed[0]));
    if (target->ctrls == NULL || target->listed == NULL)
        return ICMS_NO_MEMORY;
    if (nvmft_hosts_init(&target->hosts, target->opts.connections_max) != ICMS_OK)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < target->opts.connections_max; i++) {
        target->ctrls[i].cntlid = (uint16_t)(i + 1);
        target->ctrls[i].target = target;
        list_init(&target->ctrls[i].qpairs);
        list_init(&target->ctrls[i].unproven_link);
        loop_timer_init(&target->ctrls[i].timer, registry_look);
    }
    return ICMS_OK;
}

/* ---- connections ---------------------------------------------------------------------------- */

/* A connection goes to the loop that has the fewest, before a byte of it is read. */
void nvmft_registry_accept(struct nvmf_listener *listener)
{
    struct nvmft_portal *portal = listener->owner;
    struct nvmf_target *target = portal->target;
    struct nvmft_shard *best = NULL;
    struct nvmft_qpair *qpair;

    for (uint32_t i = 0; i < target->opts.loop_count; i++)
        if (best == NULL || target->shards[i].used < best->used)
            best = &target->shards[i];
    check(best != NULL && !list_empty(&best->free));
    qpair = container_of(list_pop(&best->free), struct nvmft_qpair, free_link);
    check(!qpair->kill_busy && !qpair->tell_busy && qpair->reg_ctrl == NULL);
    best->used++;
    if (atomic_fetch_add_explicit(&target->connections, 1, memory_order_relaxed) + 1 ==
        target->opts.connections_max)
        counter_add(&target->connections_full, 1);
    atomic_fetch_add_explicit(&target->connections_total, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&portal->connections, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&portal->connections_total, 1, memory_order_relaxed);
    qpair->portal = portal;
    qpair->left = false;
    qpair->reg_verb = NVMFT_REG_OPEN;
    target->opts.transport->take(listener, qpair->conn);
    loop_send(best->loop, &qpair->reg_msg, nvmft_qpair_open);
}

static void registry_slot_free(struct nvmft_qpair *qpair)
{
    struct nvmft_shard *shard = qpair->shard;

    if (!qpair->left || qpair->kill_busy || qpair->tell_busy)
        return;
    check(qpair->state == NVMFT_QPAIR_LEAVING && shard->used > 0);
    qpair->state = NVMFT_QPAIR_FREE;
    shard->used--;
    list_push(&shard->free, &qpair->free_link);
    atomic_fetch_sub_explicit(&shard->target->connections, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&qpair->portal->connections, 1, memory_order_relaxed);
    shard->target->opts.transport->release(qpair->portal->listener);
}

/* ---- controllers ---------------------------------------------------------------------------- */

/* Keeps a loss until it is taken. */
static void registry_loss_add(struct nvmf_target *target, const struct nvmf_target_loss *loss)
{
    struct nvmft_losses *losses = &target->losses;
    uint32_t written = atomic_load_explicit(&losses->written, memory_order_relaxed);

    if (written - atomic_load_explicit(&losses->taken, memory_order_acquire) == NVMFT_LOSSES) {
        atomic_fetch_add_explicit(&losses->missed, 1, memory_order_relaxed);
        return;
    }
    losses->loss[written % NVMFT_LOSSES] = *loss;
    atomic_store_explicit(&losses->written, written + 1, memory_order_release);
}

bool nvmf_target_loss_take(struct nvmf_target *target, struct nvmf_target_loss *out_loss,
                           uint64_t *out_missed)
{
    struct nvmft_losses *losses = &target->losses;
    uint32_t taken = atomic_load_explicit(&losses->taken, memory_order_relaxed);

    if (atomic_load_explicit(&losses->written, memory_order_acquire) == taken)
        return false;
    *out_missed = atomic_exchange_explicit(&losses->missed, 0, memory_order_relaxed);
    *out_loss = losses->loss[taken % NVMFT_LOSSES];
    atomic_store_explicit(&losses->taken, taken + 1, memory_order_release);
    return true;
}

static struct nvmf_target_loss registry_loss(const struct nvmft_ctrl *ctrl,
                                             const struct nvmft_portal *portal, uint16_t qid,
                                             icms_err why)
{
    struct nvmf_target_loss loss = {
        .portal = portal->addr, .cntlid = ctrl->cntlid, .qid = qid, .why = why};

    memcpy(loss.hostnqn, ctrl->hostnqn, sizeof(loss.hostnqn));
    return loss;
}

/* Ends one queue pair of a controller; again is harmless. */
static void registry_kill_qpair(struct nvmft_qpair *qpair, icms_err why)
{
    check(!qpair->left);
    if (qpair->kill_busy)
        return;
    qpair->kill_busy = true;
    qpair->kill_why = why;
    loop_send(qpair->shard->loop, &qpair->kill_msg, nvmft_qpair_killed);
}

/* The end of a controller, for which loss says what happened. When the connection of an I/O queue
 * broke before, that is what happened. */
static void registry_kill(struct nvmft_ctrl *ctrl, const struct nvmf_target_loss *loss)
{
    struct nvmf_target *target = ctrl->target;

    if (ctrl->dying)
        return;
    ctrl->dying = true;
    if (ctrl->is_unproven) {
        list_remove(&ctrl->unproven_link);
        target->unproven_count--;
    }
    if (!ctrl->discovery && !atomic_load(&ctrl->shut) && loss->why != ICMS_CLOSED)
        registry_loss_add(target, ctrl->lost_first ? &ctrl->loss : loss);
    list_for_each (link, &ctrl->qpairs)
        registry_kill_qpair(container_of(link, struct nvmft_qpair, ctrl_link), ICMS_DEADLINE);
}

/* A reset is over when no I/O queue of before is left. */
static void registry_reset_look(struct nvmft_ctrl *ctrl)
{
    if (ctrl->joined <= 1)
        atomic_store(&ctrl->resetting, false);
}

static void registry_reset(struct loop_msg *msg)
{
    struct nvmft_ctrl *ctrl = container_of(msg, struct nvmft_ctrl, reset_msg);

    /* It came before the admin queue's LEAVE, so the controller is still that host's. */
    check(ctrl->live);
    atomic_store(&ctrl->reset_sent, false);
    list_for_each (link, &ctrl->qpairs) {
        struct nvmft_qpair *qpair = container_of(link, struct nvmft_qpair, ctrl_link);

        if (qpair->reg_qid != 0)
            registry_kill_qpair(qpair, ICMS_CLOSED);
    }
    atomic_store(&ctrl->io_made, false);
    registry_reset_look(ctrl);
}

void nvmft_registry_reset(struct nvmft_ctrl *ctrl)
{
    atomic_store(&ctrl->resetting, true);
    if (!atomic_exchange(&ctrl->reset_sent, true))
        loop_send(ctrl->target->opts.loops[0], &ctrl->reset_msg, registry_reset);
}

/* From true to false hostnqn, host and proven stay as they are: other threads read them. */
static void registry_serve(struct nvmft_ctrl *ctrl, bool is_served)
{
    if (ctrl->discovery || ctrl->is_served == is_served)
        return;
    pthread_mutex_lock(&ctrl->target->slow_lock);
    ctrl->is_served = is_served;
    ctrl->served_ns = loop_now_ns(ctrl->target->opts.loops[0]);
    pthread_mutex_unlock(&ctrl->target->slow_lock);
}

/* One controller more of a host. */
static void connected_add(struct nvmf_target_connected *host, const struct nvmft_ctrl *ctrl,
                          uint64_t now_ns)
{
    uint64_t age_ns = now_ns > ctrl->served_ns ? now_ns - ctrl->served_ns : 0;
    uint64_t told = atomic_load_explicit(&ctrl->epoch, memory_order_relaxed);
    uint32_t epoch = (uint32_t)told;

    host->controllers++;
    host->connections += atomic_load_explicit(&ctrl->joined, memory_order_relaxed);
    if (age_ns > host->age_ns)
        host->age_ns = age_ns;
    if ((told & NVMFT_EPOCH_TOLD) == 0)
        return;
    if (!host->has_epoch || epoch < host->epoch_min)
        host->epoch_min = epoch;
    if (!host->has_epoch || epoch > host->epoch_max)
        host->epoch_max = epoch;
    host->has_epoch = true;
}

uint32_t nvmf_target_connected(struct nvmf_target *target, uint64_t now_ns,
                               struct nvmf_target_connected out[NVMF_TARGET_CONNECTED],
                               uint32_t *out_more)
{
    uint32_t connections_max = target->opts.connections_max, count = 0;

    *out_more = 0;
    pthread_mutex_lock(&target->slow_lock);
    memset(target->listed, 0, (size_t)connections_max * NVMFT_PROVEN * sizeof(uint16_t));
    for (uint32_t i = 0; i < connections_max; i++) {
        const struct nvmft_ctrl *ctrl = &target->ctrls[i];
        uint16_t *listed;

        if (!ctrl->is_served)
            continue;
        listed = &target->listed[(size_t)ctrl->host * NVMFT_PROVEN + ctrl->proven];
        if (*listed == 0 && count == NVMF_TARGET_CONNECTED) {
            (*out_more)++;
            continue;
        }
        if (*listed == 0) {
            out[count] = (struct nvmf_target_connected){.proven = ctrl->proven};
            memcpy(out[count].hostnqn, ctrl->hostnqn, sizeof(ctrl->hostnqn));
            *listed = (uint16_t)++count;
        }
        connected_add(&out[*listed - 1], ctrl, now_ns);
    }
    pthread_mutex_unlock(&target->slow_lock);
    return count;
}

void nvmft_registry_killed(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, kill_msg);

    check(qpair->kill_busy);
    qpair->kill_busy = false;
    registry_slot_free(qpair);
}

void nvmft_registry_leave(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, reg_msg);
    struct nvmf_target *target = qpair->shard->target;
    struct nvmft_ctrl *ctrl = qpair->reg_ctrl;
    struct nvmf_target_loss loss;

    check(qpair->reg_verb == NVMFT_REG_LEAVE && !qpair->left);
    qpair->left = true;
    if (ctrl != NULL) {
        qpair->reg_ctrl = NULL;
        list_remove(&qpair->ctrl_link);
        check(ctrl->live && ctrl->joined > 0);
        ctrl->joined--;
        target->hosts.host[ctrl->host].qpairs -= qpair->reg_counted;
        qpair->reg_counted = false;
        loss = registry_loss(ctrl, qpair->portal, qpair->reg_qid, qpair->reg_why);
        if (qpair->reg_qid == 0) {
            registry_kill(ctrl, &loss);
        } else {
            ctrl->qids &= ~((uint64_t)1 << (qpair->reg_qid - 1));
            if (!ctrl->lost_first && qpair->reg_why != ICMS_CLOSED) {
                ctrl->lost_first = true;
                ctrl->loss = loss;
            }
        }
        registry_reset_look(ctrl);
        if (ctrl->joined == 0) {
            registry_serve(ctrl, false);
            ctrl->live = false;
            nvmft_hosts_rele(&target->hosts, ctrl->host);
            loop_timer_stop(target->opts.loops[0], &ctrl->timer);
            atomic_fetch_sub_explicit(&target->controllers, 1, memory_order_relaxed);
        }
    }
    registry_slot_free(qpair);
}

/* Whether a controller may be used: till then its admin queue is its only one. */
static bool registry_is_proven(const struct nvmft_ctrl *ctrl)
{
    return !ctrl->is_auth_wanted || list_empty(&ctrl->qpairs) ||
           container_of(ctrl->qpairs.next, struct nvmft_qpair, ctrl_link)->reg_counted;
}

/* Kills a controller that was silent for too long, or looks again when it may be. One of a host
 * that proves nothing has its time, whatever it says. A host that authenticates cannot keep alive,
 * and may compute for longer than that: its queue's timeout ends it. */
static void registry_look(struct loop_timer *timer)
{
    struct nvmft_ctrl *ctrl = container_of(timer, struct nvmft_ctrl, timer);
    struct nvmf_target *target = ctrl->target;
    struct loop *loop = target->opts.loops[0];
    uint64_t kato_ns =
        (uint64_t)atomic_load_explicit(&ctrl->kato_ms, memory_order_relaxed) * 1000000;
    uint64_t due_ns =
        atomic_load_explicit(&ctrl->heard_ns, memory_order_relaxed) + kato_ns + REGISTRY_GRACE_NS;

    struct nvmf_target_loss loss;

    if (ctrl->is_unproven)
        due_ns = ctrl->end_ns;
    else if (!registry_is_proven(ctrl))
        due_ns = loop_now_ns(loop) + kato_ns + REGISTRY_GRACE_NS;
    if (!ctrl->live || ctrl->dying || (kato_ns == 0 && !ctrl->is_unproven))
        return;
    if (loop_now_ns(loop) < due_ns) {
        loop_timer_start(loop, timer, due_ns);
        return;
    }
    loss = registry_loss(ctrl, ctrl->portal, 0, ICMS_DEADLINE);
    loss.keep_alive = !ctrl->is_unproven;
    if (loss.keep_alive)
        atomic_fetch_add_explicit(&target->keepalive_timeouts, 1, memory_order_relaxed);
    registry_kill(ctrl, &loss);
}

static void registry_kato_changed(struct loop_msg *msg)
{
    struct nvmft_ctrl *ctrl = container_of(msg, struct nvmft_ctrl, kato_msg);

    atomic_store(&ctrl->kato_sent, false);
    registry_look(&ctrl->timer); /* of whoever has the controller by now */
}

void nvmft_registry_kato(struct nvmft_ctrl *ctrl, uint32_t kato_ms)
{
    atomic_store(&ctrl->kato_ms, kato_ms);
    if (!atomic_exchange(&ctrl->kato_sent, true))
        loop_send(ctrl->target->opts.loops[0], &ctrl->kato_msg, registry_kato_changed);
}

/* ---- namespaces that change ----------------------------------------------------------------- */

/* The host of an admin queue has to be told: by message, one at a time. */
static void registry_tell(struct nvmft_qpair *qpair)
{
    qpair->tell_again = qpair->tell_busy;
    if (qpair->tell_busy)
        return;
    qpair->tell_busy = true;
    loop_send(qpair->shard->loop, &qpair->tell_msg, nvmft_qpair_tell);
}

void nvmft_registry_told(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, tell_msg);

    check(qpair->tell_busy);
    qpair->tell_busy = false;
    if (qpair->tell_again && !qpair->left)
        registry_tell(qpair);
    else
        registry_slot_free(qpair);
}

/* Whether Identify says something else of it. */
static bool registry_ns_differs(const struct nvmf_target_ns *a, const struct nvmf_target_ns *b)
{
    return a->size_bytes != b->size_bytes || a->value_bytes_max != b->value_bytes_max ||
           a->sealed != b->sealed || a->encrypted != b->encrypted;
}

/* What the host of a controller may use from now on, and what of it is news. */
static void registry_ctrl_spaces(struct nvmft_ctrl *ctrl, const struct nvmft_spaces *was,
                                 const struct nvmft_spaces *is)
{
    struct nvmft_ns_set before = {{0}};
    bool news = false, moved = false;

    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
        atomic_store(&before.word[i], atomic_load(&ctrl->allowed.word[i]));
    nvmft_ns_allowed(is, ctrl->hostnqn, ctrl->proven, &ctrl->allowed);
    for (uint32_t i = 0; i < is->count; i++) {
        bool had = nvmft_ns_has(&before, i), has = nvmft_ns_has(&ctrl->allowed, i);

        if (had == has && !(has && registry_ns_differs(&was->ns[i], &is->ns[i])))
            continue;
        atomic_fetch_or(&ctrl->changed.word[i / 64], (uint64_t)1 << i % 64);
        moved = moved || had != has;
        news = true;
    }
    if (moved)
        atomic_fetch_add(&ctrl->ana_changes, 1);
    if (!news || ctrl->discovery)
        return;
    list_for_each (link, &ctrl->qpairs) {
        struct nvmft_qpair *qpair = container_of(link, struct nvmft_qpair, ctrl_link);

        if (qpair->reg_qid == 0)
            registry_tell(qpair);
    }
}

void nvmft_registry_spaces(struct nvmf_target *target, const struct nvmft_spaces *was)
{
    for (uint32_t i = 0; i < target->opts.connections_max; i++)
        if (target->ctrls[i].live)
            registry_ctrl_spaces(&target->ctrls[i], was, nvmft_spaces(target));
}

/* ---- Connect -------------------------------------------------------------------------------- */

static uint16_t registry_refuse(struct nvmft_qpair *qpair, uint16_t status, uint32_t dw0)
{
    qpair->reg_dw0 = dw0;
    return status;
}

/* It counts to the limit of its host. Who only names a host does not: strangers would keep it out.
 */
static void registry_count(struct nvmft_qpair *qpair, struct nvmft_ctrl *ctrl)
{
    check(!qpair->reg_counted);
    qpair->reg_counted = true;
    ctrl->target->hosts.host[ctrl->host].qpairs++;
}

static void registry_add(struct nvmft_qpair *qpair, struct nvmft_ctrl *ctrl)
{
    ctrl->joined++;
    if (!ctrl->is_auth_wanted && !ctrl->is_unproven)
        registry_count(qpair, ctrl);
    list_push(&ctrl->qpairs, &qpair->ctrl_link);
    qpair->reg_ctrl = ctrl;
    qpair->reg_qid = qpair->reg_connect.qid;
}

/* Whether a connection lacks the TLS that its host has to use. */
static bool registry_lacks_tls(const struct nvmf_target *target, const struct nvmft_qpair *qpair)
{
    return !qpair->reg_tls &&
           (nvmft_keys_require(target->keys, qpair->reg_connect.hostnqn) & REQUIRE_TLS) != 0;
}

/* Makes room for one more controller that serves discovery to a host that proves nothing, and gives
 * it its time. */
static void registry_unproven_add(struct nvmf_target *target, struct nvmft_ctrl *ctrl)
{
    uint32_t max =
        (target->opts.connections_max + REGISTRY_UNPROVEN_PART - 1) / REGISTRY_UNPROVEN_PART;

    if (target->unproven_count >= max) {
        struct nvmft_ctrl *oldest =
            container_of(target->unproven.next, struct nvmft_ctrl, unproven_link);
        struct nvmf_target_loss loss = registry_loss(oldest, oldest->portal, 0, ICMS_DEADLINE);

        registry_kill(oldest, &loss);
    }
    ctrl->end_ns =
        loop_now_ns(target->opts.loops[0]) + (uint64_t)target->opts.header_timeout_ms * 1000000;
    list_push(&target->unproven, &ctrl->unproven_link);
    target->unproven_count++;
}

/* A new controller. A host that may use no namespace is told what it would be told of a subsystem
 * that does not exist; one that has to authenticate is told so first, whoever it is. One that lacks
 * its TLS authenticates like a host that is not known, and fails: else a stranger would learn which
 * hosts have to use TLS. */
static uint16_t registry_join_admin(struct nvmf_target *target, struct nvmft_qpair *qpair)
{
    const struct nvme_connect *connect = &qpair->reg_connect;
    bool discovery = strcmp(connect->subnqn, NVME_DISCOVERY) == 0;
    bool lacks_tls = !discovery && registry_lacks_tls(target, qpair);
    uint8_t require = discovery   ? 0
                      : lacks_tls ? REQUIRE_CHAP
                                  : nvmft_auth_require(&target->auth_hosts, connect->hostnqn);
    uint8_t proven = (require & REQUIRE_CHAP) | (qpair->reg_tls ? REQUIRE_TLS : 0);
    struct nvmft_ns_set allowed;
    struct nvmft_ctrl *ctrl = NULL;

    nvmft_ns_allowed(nvmft_spaces(target), connect->hostnqn, proven, &allowed);

    if (!discovery && (strcmp(connect->subnqn, target->opts.nqn) != 0 ||
                       (nvmft_ns_first(&allowed) == LIMIT_VOLUMES &&
                        nvmft_spaces(target)->active > 0 && (require & REQUIRE_CHAP) == 0)))
        return registry_refuse(qpair, NVME_SC_CONNECT_PARAM,
                               NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_SUBNQN));
    if (!discovery && connect->cntlid != NVME_CNTLID_ANY)
        return registry_refuse(qpair, NVME_SC_CONNECT_PARAM,
                               NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_CNTLID));
    for (uint32_t i = 0; i < target->opts.connections_max && ctrl == NULL; i++) {
        ctrl = &target->ctrls[target->ctrl_next];
        target->ctrl_next = (target->ctrl_next + 1) % target->opts.connections_max;
        if (ctrl->live)
            ctrl = NULL;
    }
    if (ctrl == NULL)
        return registry_refuse(qpair, NVME_SC_CONNECT_BUSY, 0);
    check(ctrl->joined == 0 && list_empty(&ctrl->qpairs));
    ctrl->host = nvmft_hosts_hold(&target->hosts, connect->hostnqn);
    ctrl->live = true;
    ctrl->dying = false;
    ctrl->portal = qpair->portal;
    ctrl->discovery = discovery;
    ctrl->is_unproven =
        discovery && !qpair->reg_tls &&
        (nvmft_auth_require(&target->auth_hosts, connect->hostnqn) & REQUIRE_CHAP) != 0;
    ctrl->tls = qpair->reg_tls;
    ctrl->qids = 0;
    ctrl->proven = proven;
    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
        atomic_store(&ctrl->allowed.word[i], atomic_load(&allowed.word[i]));
    nvmft_spaces_forget(ctrl);
    ctrl->is_auth_wanted = (require & REQUIRE_CHAP) != 0;
    ctrl->lacks_tls = lacks_tls;
    ctrl->auth_host = lacks_tls ? NULL : nvmft_auth_host(&target->auth_hosts, connect->hostnqn);
    memcpy(ctrl->hostid, connect->hostid, sizeof(ctrl->hostid));
    memcpy(ctrl->hostnqn, connect->hostnqn, sizeof(ctrl->hostnqn));
    atomic_store(&ctrl->kato_ms, connect->kato_ms);
    atomic_store(&ctrl->heard_ns, loop_now_ns(target->opts.loops[0]));
    atomic_store(&ctrl->epoch, 0);
    atomic_store(&ctrl->ready, false);
    atomic_store(&ctrl->resetting, false);
    atomic_store(&ctrl->io_made, false);
    atomic_store(&ctrl->shut, false);
    atomic_store(&ctrl->is_refusal_said, false);
    ctrl->lost_first = false;
    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
        atomic_store(&ctrl->ednek[i], 0);
    ctrl->cc = ctrl->csts = ctrl->async_config = 0;
    ctrl->warned = 0;
    ctrl->differs = ctrl->has_told[0] = ctrl->has_told[1] = false;
    ctrl->changed_ns[0] = ctrl->changed_ns[1] = 0;
    ctrl->io_queues = NVMFT_IO_QUEUES;
    atomic_fetch_add_explicit(&target->controllers, 1, memory_order_relaxed);
    registry_add(qpair, ctrl);
    if (!ctrl->is_auth_wanted)
        registry_serve(ctrl, true);
    if (ctrl->is_unproven)
        registry_unproven_add(target, ctrl);
    registry_look(&ctrl->timer);
    return NVME_SC_SUCCESS;
}

/* What of a Connect is not the controller's host; SUCCESS: nothing. Where hosts prove who they are,
 * that is told as of a controller that does not exist. */
static uint16_t registry_join_other(struct nvmft_qpair *qpair, const struct nvmft_ctrl *ctrl)
{
    const struct nvme_connect *connect = &qpair->reg_connect;
    bool is_other = strcmp(ctrl->hostnqn, connect->hostnqn) != 0;
    uint32_t at = is_other ? NVME_CONNECT_AT_HOSTNQN : NVME_CONNECT_AT_HOSTID;

    is_other = is_other || ctrl->tls != qpair->reg_tls ||
               memcmp(ctrl->hostid, connect->hostid, sizeof(ctrl->hostid)) != 0;
    if (ctrl->is_auth_wanted || ctrl->tls || qpair->reg_tls)
        at = NVME_CONNECT_AT_CNTLID;
    return is_other ? registry_refuse(qpair, NVME_SC_CONNECT_PARAM, NVME_CONNECT_BAD_DATA(at))
                    : NVME_SC_SUCCESS;
}

/* One more queue of a controller that is there. */
static uint16_t registry_join_io(struct nvmf_target *target, struct nvmft_qpair *qpair)
{
    const struct nvme_connect *connect = &qpair->reg_connect;
    struct nvmft_ctrl *ctrl;
    uint16_t status;

    if (strcmp(connect->subnqn, target->opts.nqn) != 0)
        return registry_refuse(qpair, NVME_SC_CONNECT_PARAM,
                               NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_SUBNQN));
    ctrl = connect->cntlid >= 1 && connect->cntlid <= target->opts.connections_max
               ? &target->ctrls[connect->cntlid - 1]
               : NULL;
    if (ctrl == NULL || !ctrl->live || ctrl->dying || ctrl->discovery)
        return registry_refuse(qpair, NVME_SC_CONNECT_PARAM,
                               NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_CNTLID));
    status = registry_join_other(qpair, ctrl);
    if (status != NVME_SC_SUCCESS)
        return status;
    if (!atomic_load(&ctrl->ready) || atomic_load(&ctrl->resetting))
        return registry_refuse(qpair, NVME_SC_SEQUENCE, 0);
    if (connect->qid > NVMFT_IO_QUEUES || (ctrl->qids >> (connect->qid - 1) & 1) != 0)
        return registry_refuse(qpair, NVME_SC_CONNECT_PARAM,
                               NVME_CONNECT_BAD_SQE(NVME_CONNECT_AT_QID));
    ctrl->qids |= (uint64_t)1 << (connect->qid - 1);
    ctrl->lost_first = false;
    atomic_store(&ctrl->io_made, true);
    registry_add(qpair, ctrl);
    return NVME_SC_SUCCESS;
}

void nvmft_registry_proven(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, proven_msg);
    struct nvmft_ctrl *ctrl = qpair->reg_ctrl;
    struct nvmf_target *target = qpair->shard->target;

    /* It came before the queue pair's LEAVE, so the controller is still its own. */
    check(ctrl != NULL && ctrl->is_auth_wanted);
    registry_count(qpair, ctrl);
    registry_serve(ctrl, true);
    if (target->hosts.host[ctrl->host].qpairs > target->opts.host_connections_max)
        registry_kill_qpair(qpair, ICMS_BUSY);
}

void nvmft_registry_join(struct loop_msg *msg)
{
    struct nvmft_qpair *qpair = container_of(msg, struct nvmft_qpair, reg_msg);
    struct nvmf_target *target = qpair->shard->target;

    check(qpair->reg_verb == NVMFT_REG_JOIN && qpair->reg_ctrl == NULL);
    qpair->reg_dw0 = 0;
    if (nvmft_hosts_qpairs(&target->hosts, qpair->reg_connect.hostnqn) >=
        target->opts.host_connections_max)
        qpair->reg_status = NVME_SC_CONNECT_BUSY;
    else if (registry_lacks_tls(target, qpair) &&
             (!target->auth_hosts.asks_plain ||
              strcmp(qpair->reg_connect.subnqn, NVME_DISCOVERY) == 0))
        qpair->reg_status = NVME_SC_AUTH_REQUIRED;
    else if (qpair->reg_connect.qid == 0)
        qpair->reg_status = registry_join_admin(target, qpair);
    else
        qpair->reg_status = registry_join_io(target, qpair);
    loop_send(qpair->shard->loop, &qpair->reg_msg, nvmft_qpair_joined);
}
