/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig: an owner with a list of values in memory, on simulated loops. Test code only.
 */
#include <stdio.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "nvmf/target/target_test.h"

/* ---- the owner ------------------------------------------------------------------------------ */

static struct rig_value **rig_find(struct rig *rig, uint32_t ns, const struct key *key)
{
    struct rig_value **at = &rig->values;

    while (*at != NULL && !((*at)->ns == ns && key_equal(&(*at)->key, key)))
        at = &(*at)->next;
    return at;
}

static void rig_value_free(struct rig_value **at)
{
    struct rig_value *value = *at;

    *at = value->next;
    free(value->data);
    free(value);
}

/* A value of zeros in place of the one that was there. */
static struct rig_value *rig_value_new(struct rig *rig, uint32_t ns, const struct key *key,
                                       uint32_t bytes)
{
    struct rig_value **at = rig_find(rig, ns, key);
    struct rig_value *value = calloc(1, sizeof(*value));

    if (*at != NULL)
        rig_value_free(at);
    check(value != NULL);
    value->ns = ns;
    value->key = *key;
    value->bytes = bytes;
    value->data = calloc(1, bytes);
    check(value->data != NULL);
    value->next = rig->values;
    rig->values = value;
    return value;
}

void rig_put(struct rig *rig, uint32_t ns, const char *key, uint32_t bytes)
{
    struct key name = peer_key(key);

    (void)rig_value_new(rig, ns, &name, bytes);
}

static icms_err rig_store(struct rig *rig, struct nvmf_target_req *req)
{
    bool found = *rig_find(rig, req->ns, &req->key) != NULL;
    struct rig_value *value;

    if (found && (req->options & NVMF_TARGET_IF_ABSENT))
        return ICMS_EXISTS;
    if (!found && (req->options & NVMF_TARGET_IF_EXISTS))
        return ICMS_MISS;
    check(req->memory_bytes >= RIG_HEADROOM + (uint64_t)req->value_bytes);
    value = rig_value_new(rig, req->ns, &req->key, req->value_bytes);
    memcpy(value->data, req->memory + RIG_HEADROOM, req->value_bytes);
    return ICMS_OK;
}

static icms_err rig_retrieve(struct rig *rig, struct nvmf_target_req *req)
{
    struct rig_value *value = *rig_find(rig, req->ns, &req->key);

    if (value == NULL) {
        req->reason = ICMS_MISS_EVICTED;
        return ICMS_MISS;
    }
    req->done_bytes = value->bytes;
    req->value = value->data;
    if (rig->direct)
        return ICMS_OK;
    if (RIG_HEADROOM + (uint64_t)value->bytes > req->memory_bytes) {
        req->done_bytes = bytes_align(RIG_HEADROOM + (uint64_t)value->bytes, LIMIT_DISK_ALIGN);
        return ICMS_VALUE_SIZE;
    }
    memcpy(req->memory + RIG_HEADROOM, value->data, value->bytes);
    req->value = req->memory + RIG_HEADROOM;
    return ICMS_OK;
}

static icms_err rig_list(struct rig *rig, struct nvmf_target_req *req)
{
    struct nvme_kv_list_writer writer;

    nvme_kv_list_write_begin(&writer, req->memory, req->host_bytes);
    for (struct rig_value *value = rig->values; value != NULL; value = value->next)
        if (value->ns == req->ns && !nvme_kv_list_write_key(&writer, &value->key))
            break;
    req->value = req->memory;
    req->done_bytes = nvme_kv_list_write_end(&writer);
    return ICMS_OK;
}

static icms_err rig_execute(struct rig *rig, struct nvmf_target_req *req)
{
    struct rig_value **at;

    switch (req->op) {
    case NVMF_TARGET_STORE:
        return rig_store(rig, req);
    case NVMF_TARGET_RETRIEVE:
        return rig_retrieve(rig, req);
    case NVMF_TARGET_EXIST:
    case NVMF_TARGET_DELETE:
        at = rig_find(rig, req->ns, &req->key);
        if (*at == NULL) {
            req->reason = ICMS_MISS_ABSENT;
            return ICMS_MISS;
        }
        if (req->op == NVMF_TARGET_DELETE)
            rig_value_free(at);
        return ICMS_OK;
    case NVMF_TARGET_EXIST_MANY:
        for (uint32_t i = 0; i < req->key_count; i++)
            req->map |= (uint64_t)(*rig_find(rig, req->ns, &req->keys[i]) != NULL) << i;
        return ICMS_OK;
    case NVMF_TARGET_LIST:
        return rig_list(rig, req);
    default:
        return ICMS_OK;
    }
}

/* Only its size is wanted: it comes again. */
static bool rig_asks_size(struct rig *rig, const struct nvmf_target_req *req)
{
    return req->op == NVMF_TARGET_RETRIEVE && req->memory == NULL && !rig->direct &&
           *rig_find(rig, req->ns, &req->key) != NULL;
}

static void rig_kv(void *owner, struct nvmf_target_req *req)
{
    struct rig *rig = owner;

    rig->executed++;
    if (rig->hold && !rig_asks_size(rig, req)) {
        check(rig->held_count < 1024);
        rig->held[rig->held_count++] = req;
        return;
    }
    req->err = rig_execute(rig, req);
    nvmf_target_req_done(req);
}

static void rig_let_go_run(struct loop_msg *msg)
{
    struct rig_msg *go = container_of(msg, struct rig_msg, msg);

    if (go->req->value == NULL) /* else rig_more executed it */
        go->req->err = rig_execute(go->rig, go->req);
    nvmf_target_req_done(go->req);
}

static void rig_more_run(struct loop_msg *msg)
{
    struct rig_msg *go = container_of(msg, struct rig_msg, msg);

    if (go->req->value == NULL)
        check(rig_execute(go->rig, go->req) == ICMS_OK);
    nvmf_target_req_more(go->req, go->bytes);
}

void rig_more(struct rig *rig, uint32_t bytes)
{
    struct rig_msg *go = &rig->let_go[0];

    check(rig->held_count > 0);
    go->rig = rig;
    go->req = rig->held[0];
    go->bytes = bytes;
    loop_send(go->req->loop, &go->msg, rig_more_run);
    rig_run(rig, 10);
}

static void rig_break_run(struct loop_msg *msg)
{
    struct rig_msg *go = container_of(msg, struct rig_msg, msg);

    go->req->err = go->err;
    go->req->reason = go->reason;
    nvmf_target_req_done(go->req);
}

void rig_break(struct rig *rig, icms_err err, enum icms_miss reason)
{
    struct rig_msg *go = &rig->let_go[0];

    check(rig->held_count > 0);
    go->req = rig->held[0];
    go->err = err;
    go->reason = reason;
    memmove(rig->held, rig->held + 1, --rig->held_count * sizeof(*rig->held));
    loop_send(go->req->loop, &go->msg, rig_break_run);
    rig_run(rig, 10);
}

void rig_let_go(struct rig *rig)
{
    uint32_t count = rig->held_count;

    rig->hold = false;
    rig->held_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        rig->let_go[i].rig = rig;
        rig->let_go[i].req = rig->held[i];
        loop_send(rig->held[i]->loop, &rig->let_go[i].msg, rig_let_go_run);
    }
    rig_run(rig, 10);
}

static void rig_sent(void *owner, struct nvmf_target_req *req)
{
    ((struct rig *)owner)->sent++;
}

static uint64_t rig_used_bytes(void *owner, uint32_t ns)
{
    return 12345;
}

static void rig_health(void *owner, struct nvmf_target_health *out_health)
{
    *out_health = ((struct rig *)owner)->health;
}

static uint64_t rig_buffer_bytes(uint64_t value_bytes)
{
    return bytes_align(RIG_HEADROOM + value_bytes, LIMIT_DISK_ALIGN);
}

static const struct nvmf_target_ops rig_ops = {
    .kv = rig_kv,
    .sent = rig_sent,
    .used_bytes = rig_used_bytes,
    .health = rig_health,
    .buffer_bytes = rig_buffer_bytes,
};

/* ---- the machine room ----------------------------------------------------------------------- */

/* As many as may use one namespace; the last one is the friend of the tests. */
static char rig_hosts[LIMIT_VOLUME_HOSTS][LIMIT_NQN_BYTES];

static void rig_hosts_make(void)
{
    if (rig_hosts[0][0] != 0)
        return;
    for (uint32_t i = 0; i < LIMIT_VOLUME_HOSTS - 1; i++)
        (void)snprintf(rig_hosts[i], LIMIT_NQN_BYTES, "nqn.2026-01.io.icms:host-%u", i);
    (void)snprintf(rig_hosts[LIMIT_VOLUME_HOSTS - 1], LIMIT_NQN_BYTES,
                   "nqn.2026-01.io.icms:friend");
}

struct rig *rig_new(uint32_t loops, void (*change)(struct nvmf_target_opts *opts))
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct nvmf_target_ns namespaces[3] = {
        {.volume = {{1}}, .size_bytes = 1 << 30, .value_bytes_max = RIG_VALUE_MAX, .sealed = true},
        {.volume = {{2}},
         .size_bytes = 1 << 20,
         .value_bytes_max = 10000,
         .host_count = LIMIT_VOLUME_HOSTS,
         .host_nqn = (const char(*)[LIMIT_NQN_BYTES])rig_hosts},
        {.volume = {{3}}, .size_bytes = 1 << 24, .value_bytes_max = 20000},
    };
    struct nvmf_target_opts opts;
    struct sim_opts sim_opts;
    struct err_why why = {""};

    check(rig != NULL);
    rig_hosts_make();
    sim_opts_init(&sim_opts, 7);
    rig->sim = sim_new(&sim_opts);
    rig->node = sim_node_new(rig->sim, "10.1.0.1");
    rig->host = sim_node_new(rig->sim, "10.1.0.2");
    rig->loop_count = loops;
    rig->health.spare_percent = 100;
    for (uint32_t i = 0; i < loops; i++) {
        struct loop_opts loop_opts;

        loop_opts_init(&loop_opts);
        check(loop_new(sim_node_env(rig->node), &loop_opts, &why, &rig->loops[i]) == ICMS_OK);
    }
    nvmf_target_opts_init(&opts);
    opts.loops = rig->loops;
    opts.loop_count = loops;
    check(loop_addr_parse("10.1.0.1:4420", &why, &opts.portals[0].listen) == ICMS_OK);
    opts.nqn = "nqn.2026-01.io.icms:test";
    opts.enclosure = (struct uuid){{9}};
    opts.namespaces = namespaces;
    opts.namespace_count = 3;
    opts.connections_max = 64;
    opts.host_connections_max = 32;
    opts.memory_bytes = (uint64_t)loops * ((uint64_t)40 << 20);
    opts.headroom_bytes = RIG_HEADROOM;
    opts.ops = &rig_ops;
    opts.owner = rig;
    if (change != NULL)
        change(&opts);
    if (nvmf_target_new(&opts, &why, &rig->target) != ICMS_OK ||
        nvmf_target_open(rig->target, &why) != ICMS_OK)
        fail_msg("%s", why.text);
    nvmf_target_addr(rig->target, 0, &rig->addr);
    for (uint32_t i = 0; i < loops; i++)
        check(loop_start(rig->loops[i], &why) == ICMS_OK);
    return rig;
}

void rig_free(struct rig **rig_ref)
{
    struct rig *rig = *rig_ref;

    *rig_ref = NULL;
    for (uint32_t i = 0; i < rig->loop_count; i++) {
        loop_stop(rig->loops[i]);
        loop_join(rig->loops[i]);
        loop_free(&rig->loops[i]);
    }
    nvmf_target_free(&rig->target);
    while (rig->values != NULL)
        rig_value_free(&rig->values);
    sim_free(&rig->sim);
    free(rig);
}

struct peer *rig_peer(struct rig *rig)
{
    struct peer *peer = peer_new_sim(rig->sim, rig->host, &rig->addr);

    assert_non_null(peer);
    return peer;
}

struct peer *rig_discovery_peer(struct rig *rig)
{
    struct peer *peer = rig_peer(rig);

    memcpy(peer->subsys, NVME_DISCOVERY, sizeof(NVME_DISCOVERY));
    return peer;
}

uint16_t rig_cc_set(struct peer *admin, uint32_t cc)
{
    struct nvme_property property = {.set = true, .offset = NVME_REG_CC, .value = cc};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_property_encode(&property, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    return cqe.status;
}

struct peer *rig_admin(struct rig *rig, uint8_t digests)
{
    struct peer *peer = rig_peer(rig);

    assert_true(peer_admin(peer, digests));
    return peer;
}

struct peer *rig_io(struct rig *rig, const struct peer *admin, uint16_t qid, uint8_t digests)
{
    struct peer *peer = rig_peer(rig);

    assert_true(peer_io(peer, admin, qid, digests));
    return peer;
}

void rig_run(struct rig *rig, uint32_t ms)
{
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + (uint64_t)ms * 1000000);
}

void rig_stats(struct rig *rig, struct nvmf_target_stats *out_stats)
{
    nvmf_target_stats(rig->target, out_stats);
}

void rig_fill(uint8_t *data, uint32_t bytes, uint64_t seed)
{
    for (uint32_t i = 0; i < bytes; i++) {
        if (i % 8 == 0)
            seed = hash64_mix(seed);
        data[i] = (uint8_t)(seed >> i % 8 * 8);
    }
}

void rig_expect_clean(struct rig *rig)
{
    static struct nvmf_target_connected hosts[NVMF_TARGET_CONNECTED];
    struct nvmf_target_stats stats;
    uint32_t more;

    rig_run(rig, 2000);
    assert_int_equal(nvmf_target_connected(rig->target, 0, hosts, &more) + more, 0);
    rig_stats(rig, &stats);
    assert_int_equal(stats.connections, 0);
    assert_int_equal(stats.controllers, 0);
    assert_int_equal(stats.buffers_used_bytes, 0);
    assert_int_equal(stats.buffers_parked, 0);
    assert_true(nvmf_target_idle(rig->target));
}
