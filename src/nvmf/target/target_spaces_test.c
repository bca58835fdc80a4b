/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespaces that change while hosts use them: who is told, what begins afterwards, and what began
 * before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "nvmf/target/target_test.h"
#include "nvmf/target/test_peer.h"
#include "wire/nvme_identify.h"
#include "wire/nvme_log.h"

#define FRIEND "nqn.2026-01.io.icms:friend"

static const char friends[1][LIMIT_NQN_BYTES] = {FRIEND};

/* The namespaces of a rig as they shall be, from those it begins with. */
struct spaces {
    struct nvmf_target_ns ns[5];
    uint32_t count;
    struct nvmf_target_tenant tenants[1];
};

static const struct spaces begin = {
    .ns = {{.volume = {{1}}, .size_bytes = 1 << 30, .value_bytes_max = RIG_VALUE_MAX},
           {.volume = {{2}},
            .size_bytes = 1 << 20,
            .value_bytes_max = 10000,
            .host_count = 1,
            .host_nqn = friends},
           {.volume = {{3}}, .size_bytes = 1 << 24, .value_bytes_max = 20000},
           {.volume = {{4}}, .size_bytes = 1 << 22, .value_bytes_max = 10000},
           {.volume = {{5}}, .size_bytes = 1 << 22, .value_bytes_max = 10000}},
    .count = 3,
    .tenants = {{.weight = 1}},
};

/* A change on its way. */
struct way {
    struct nvmf_target_change *change;
    struct nvmf_target *target;
    struct loop_msg msg;
    uint32_t done;
};

static void way_done(void *arg)
{
    ((struct way *)arg)->done++;
}

static void way_begin(struct loop_msg *msg)
{
    struct way *way = container_of(msg, struct way, msg);

    nvmf_target_change_start(way->target, way->change, way_done, way);
}

static void spaces_send(struct rig *rig, const struct spaces *spaces, struct way *way)
{
    struct err_why why = {""};

    *way = (struct way){.target = rig->target};
    assert_int_equal(nvmf_target_change_new(rig->target, spaces->ns, spaces->count, spaces->tenants,
                                            &why, &way->change),
                     ICMS_OK);
    loop_send(rig->loops[0], &way->msg, way_begin);
}

static void spaces_set(struct rig *rig, const struct spaces *spaces)
{
    struct way way;

    spaces_send(rig, spaces, &way);
    rig_run(rig, 5);
    assert_int_equal(way.done, 1);
    nvmf_target_change_free(&way.change);
}

static struct rig *spaces_rig(uint32_t loops)
{
    struct rig *rig = rig_new(loops, NULL);

    spaces_set(rig, &begin); /* its own, with fewer friends */
    return rig;
}

static void events_on(struct peer *admin)
{
    struct nvme_feature feature = {
        .set = true, .fid = NVME_FEATURE_ASYNC_EVENT, .value = NVME_OAES_NS_CHANGED};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_feature_encode(&feature, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    assert_int_equal(cqe.status, 0);
}

static struct peer *host(struct rig *rig, const char *nqn, bool events)
{
    struct peer *admin = rig_peer(rig);

    if (nqn != NULL)
        strcpy(admin->host, nqn);
    assert_true(peer_admin(admin, 0));
    if (events)
        events_on(admin);
    return admin;
}

static uint16_t event_ask(struct peer *admin)
{
    struct nvme_sqe_wf sqe;

    nvme_admin_plain_encode(NVME_ADMIN_ASYNC_EVENT, &sqe);
    return peer_submit(admin, &sqe, 0);
}

static void event_came(struct peer *admin, uint16_t cid)
{
    struct nvme_cqe cqe;

    assert_true(peer_complete(admin, cid, NULL, 0, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, 0);
    assert_int_equal(cqe.dw0, NVME_AEN_NS_CHANGED);
}

/* No event came: the next completion is that of this command. */
static void no_event(struct peer *admin)
{
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint16_t cid;

    nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &sqe);
    cid = peer_submit(admin, &sqe, 0);
    assert_true(peer_complete(admin, cid, NULL, 0, NULL, NULL, &cqe));
    assert_int_equal(cqe.dw0, 0);
}

/* The Changed Namespace List, in one piece or two: bit i - 1 for NSID i. */
static uint32_t changed(struct peer *admin, bool retain, uint32_t first_bytes)
{
    uint8_t page[4096] = {0};
    uint32_t map = 0;

    for (uint32_t at = 0; at < sizeof(page);) {
        struct nvme_log log = {.page = NVME_LOG_NS_CHANGED,
                               .retain = retain,
                               .offset = at,
                               .bytes = at == 0 ? first_bytes : sizeof(page) - at};
        uint32_t bytes = (uint32_t)log.bytes;
        struct nvme_sqe_wf sqe;
        struct nvme_cqe cqe;

        nvme_log_encode(&log, &sqe);
        assert_true(peer_command(admin, &sqe, NULL, 0, page + at, &bytes, &cqe));
        assert_int_equal(cqe.status, 0);
        at += (uint32_t)log.bytes;
    }
    for (uint32_t i = 0; i < sizeof(page) / 4; i++) {
        le32 nsid;

        memcpy(&nsid, page + 4 * (size_t)i, 4);
        assert_true(le32_get(nsid) <= 32);
        if (le32_get(nsid) != 0)
            map |= 1u << (le32_get(nsid) - 1);
    }
    return map;
}

static uint32_t active(struct peer *admin)
{
    struct nvme_identify what = {.cns = NVME_CNS_NS_ACTIVE};
    uint8_t page[NVME_PAGE_BYTES];
    uint32_t bytes = sizeof(page), map = 0;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_identify_encode(&what, &sqe);
    assert_true(peer_command(admin, &sqe, NULL, 0, page, &bytes, &cqe));
    for (uint32_t i = 0; i < sizeof(page) / 4; i++) {
        le32 nsid;

        memcpy(&nsid, page + 4 * (size_t)i, 4);
        if (le32_get(nsid) != 0)
            map |= 1u << (le32_get(nsid) - 1);
    }
    return map;
}

/* The log of asymmetric access: how often it changed, which namespaces are in its group. */
static void expect_ana(struct peer *admin, uint64_t changes, uint32_t map)
{
    struct nvme_log log = {.page = NVME_LOG_ANA, .bytes = 16 + 32 + 4 * 32};
    uint8_t page[16 + 32 + 4 * 32];
    uint32_t bytes = sizeof(page), got = 0;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    le64 count;
    le32 word;

    nvme_log_encode(&log, &sqe);
    assert_true(peer_command(admin, &sqe, NULL, 0, page, &bytes, &cqe));
    assert_int_equal(cqe.status, 0);
    memcpy(&count, page, sizeof(count));
    assert_int_equal(le64_get(count), changes);
    memcpy(&count, page + 24, sizeof(count)); /* the group's own */
    assert_int_equal(le64_get(count), changes);
    memcpy(&word, page + 20, sizeof(word));
    for (uint32_t i = 0; i < 32; i++) {
        le32 nsid;

        memcpy(&nsid, page + 48 + 4 * (size_t)i, sizeof(nsid));
        assert_int_equal(le32_get(nsid) != 0, i < le32_get(word));
        if (le32_get(nsid) != 0)
            got |= 1u << (le32_get(nsid) - 1);
    }
    assert_int_equal(got, map);
}

/* What others may use is no change for a host; neither is another size. No event but that of the
 * namespaces comes. */
static void access_follows_what_a_host_may_use(void **state)
{
    struct rig *rig = spaces_rig(2);
    struct peer *friend = host(rig, FRIEND, false), *other = host(rig, NULL, false);
    struct nvme_feature events = {.set = true,
                                  .fid = NVME_FEATURE_ASYNC_EVENT,
                                  .value = NVME_OAES_NS_CHANGED | NVME_OAES_ANA};
    struct spaces spaces = begin;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint16_t event;

    (void)state;
    nvme_feature_encode(&events, &sqe);
    assert_true(peer_plain(friend, &sqe, &cqe));
    assert_int_equal(cqe.status, 0);
    event = event_ask(friend);
    (void)event_ask(friend);
    expect_ana(friend, 0, 0x7);
    expect_ana(other, 0, 0x5);
    spaces.count = 4;
    spaces.ns[3].host_count = 1;
    spaces.ns[3].host_nqn = friends;
    spaces_set(rig, &spaces);
    event_came(friend, event);
    no_event(friend);
    expect_ana(friend, 1, 0xf);
    expect_ana(other, 0, 0x5);
    spaces.ns[0].size_bytes /= 2;
    spaces_set(rig, &spaces);
    expect_ana(friend, 1, 0xf);
    spaces.ns[2].is_gone = true;
    spaces_set(rig, &spaces);
    expect_ana(friend, 2, 0xb);
    expect_ana(other, 1, 0x1);
    peer_free(&friend);
    friend = host(rig, FRIEND, false); /* begins anew */
    expect_ana(friend, 0, 0xb);
    peer_free(&friend);
    peer_free(&other);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Only hosts that may use it, and asked for events. */
static void hosts_are_told_of_what_they_may_use(void **state)
{
    struct rig *rig = spaces_rig(3);
    struct peer *friend = host(rig, FRIEND, true), *other = host(rig, NULL, true);
    struct peer *quiet = host(rig, FRIEND, false);
    uint16_t friend_event = event_ask(friend), other_event = event_ask(other);
    struct spaces spaces = begin;

    (void)state;
    (void)event_ask(quiet);
    assert_int_equal(active(friend), 0x7);
    assert_int_equal(active(other), 0x5);
    spaces.count = 4; /* one comes, for the friend */
    spaces.ns[3].host_count = 1;
    spaces.ns[3].host_nqn = friends;
    spaces_set(rig, &spaces);
    event_came(friend, friend_event);
    no_event(other);
    no_event(quiet);
    assert_int_equal(active(friend), 0xf);
    assert_int_equal(active(other), 0x5);
    assert_int_equal(changed(friend, false, 4096), 0x8);
    assert_int_equal(changed(friend, false, 4096), 0);
    assert_int_equal(changed(other, false, 4096), 0);
    assert_int_equal(changed(quiet, false, 4096), 0x8);
    friend_event = event_ask(friend);
    spaces.ns[3].is_gone = true;
    spaces.ns[1].host_count = 0; /* and another is for everybody */
    spaces_set(rig, &spaces);
    event_came(friend, friend_event);
    event_came(other, other_event);
    assert_int_equal(changed(friend, false, 4), 0x8);
    assert_int_equal(changed(other, false, 4096), 0x2);
    assert_int_equal(active(friend), 0x7);
    assert_int_equal(active(other), 0x7);
    peer_free(&friend);
    peer_free(&other);
    peer_free(&quiet);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* One event until the list was read; with one that was kept, none. What is news before a request
 * for events is told with the next one. */
static void an_event_waits_for_its_reader(void **state)
{
    struct rig *rig = spaces_rig(1);
    struct peer *admin = host(rig, NULL, true);
    struct spaces spaces = begin;
    uint16_t event;

    (void)state;
    spaces.ns[0].size_bytes /= 2;
    spaces_set(rig, &spaces);
    event = event_ask(admin);
    event_came(admin, event);
    event = event_ask(admin);
    spaces.count = 4;
    spaces_set(rig, &spaces);
    no_event(admin);
    assert_int_equal(changed(admin, true, 4096), 0x9);
    no_event(admin);
    spaces.count = 5;
    spaces_set(rig, &spaces);
    no_event(admin);
    assert_int_equal(changed(admin, false, 4), 0x19); /* the second piece has the rest */
    assert_int_equal(changed(admin, false, 4096), 0);
    no_event(admin);
    spaces.ns[4].is_gone = true;
    spaces_set(rig, &spaces);
    event_came(admin, event);
    /* a controller that begins anew looks at everything: nothing has changed for it */
    peer_free(&admin);
    admin = host(rig, NULL, true);
    event = event_ask(admin);
    no_event(admin);
    spaces_set(rig, &spaces); /* nothing changes */
    no_event(admin);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* With the owner, and with half of its data at the host. */
static void commands_that_began_end_as_they_would(void **state)
{
    struct rig *rig = spaces_rig(2);
    struct peer *admin = host(rig, NULL, false);
    struct peer *io = rig_io(rig, admin, 1, 0), *store = rig_io(rig, admin, 2, 0);
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_RETRIEVE, .nsid = 1};
    uint8_t *value = calloc(1, 200000), back[2000];
    uint32_t bytes = sizeof(back);
    struct spaces spaces = begin;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint16_t cid, store_cid;

    (void)state;
    assert_non_null(value);
    rig_put(rig, 0, "small", 2000);
    rig->hold = true;
    cmd.key = peer_key("small");
    cmd.bytes = sizeof(back);
    nvme_kv_cmd_encode(&cmd, &sqe);
    cid = peer_submit(io, &sqe, sizeof(back));
    cmd.key = peer_key("large");
    cmd.bytes = 200000;
    cmd.opcode = NVME_KV_STORE;
    nvme_kv_cmd_encode(&cmd, &sqe);
    store_cid = peer_submit(store, &sqe, 200000); /* its R2T is not answered yet */
    rig_run(rig, 5);
    spaces.ns[0].is_gone = true;
    spaces_set(rig, &spaces);
    rig->hold = false;
    rig_let_go(rig);
    assert_true(peer_complete(store, store_cid, value, 200000, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, 0);
    assert_true(peer_complete(io, cid, NULL, 0, back, &bytes, &cqe));
    assert_int_equal(cqe.status, 0);
    assert_int_equal(bytes, sizeof(back));
    assert_int_equal(peer_exist(io, 1, "small", &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(peer_store(store, 1, "other", value, 100, 0, &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(peer_exist(io, 3, "small", &cqe), err_to_nvme(ICMS_MISS));
    spaces.ns[0].is_gone = false; /* it is back, as it was */
    spaces_set(rig, &spaces);
    assert_int_equal(peer_exist(io, 1, "large", &cqe), 0);
    peer_free(&io);
    peer_free(&store);
    peer_free(&admin);
    free(value);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* A host whose right ends is as one that never had it. */
static void a_right_ends(void **state)
{
    struct rig *rig = spaces_rig(2);
    struct peer *admin = host(rig, NULL, true), *io = rig_io(rig, admin, 1, 0);
    uint16_t event = event_ask(admin);
    struct spaces spaces = begin;
    struct nvme_cqe cqe;

    (void)state;
    assert_int_equal(peer_store(io, 1, "key", "value", 5, 0, &cqe), 0);
    spaces.ns[0].host_count = 1;
    spaces.ns[0].host_nqn = friends;
    spaces_set(rig, &spaces);
    event_came(admin, event);
    assert_int_equal(changed(admin, false, 4096), 0x1);
    assert_int_equal(peer_exist(io, 1, "key", &cqe), NVME_SC_NAMESPACE);
    spaces.ns[0].host_count = 0;
    spaces.ns[0].require = REQUIRE_CHAP; /* which it has not proven */
    spaces_set(rig, &spaces);
    assert_int_equal(peer_exist(io, 1, "key", &cqe), NVME_SC_NAMESPACE);
    spaces.ns[0].require = 0;
    spaces_set(rig, &spaces);
    assert_int_equal(peer_exist(io, 1, "key", &cqe), 0);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Changes while hosts come, ask, store and go, over four loops. */
static void changes_without_end(void **state)
{
    struct rig *rig = spaces_rig(4);
    struct spaces spaces = begin;
    struct peer *admin = NULL, *io = NULL;
    struct nvme_cqe cqe;
    struct way way;
    uint32_t served = 0, refused = 0;

    (void)state;
    spaces.count = 5;
    for (uint32_t turn = 0; turn < 300; turn++) {
        uint64_t draw = hash64_mix(turn);

        for (uint32_t i = 0; i < 5; i++) {
            spaces.ns[i].is_gone = i > 0 && (draw >> i & 1) != 0;
            spaces.ns[i].size_bytes ^= (draw >> (8 + i) & 1) << 20;
        }
        spaces.tenants[0].weight = 1 + (uint32_t)(draw >> 20) % 100;
        spaces_send(rig, &spaces, &way);
        if (admin == NULL) {
            admin = host(rig, draw >> 30 & 1 ? FRIEND : NULL, true);
            (void)event_ask(admin);
            io = rig_io(rig, admin, 1, 0);
        }
        for (uint32_t i = 1; i <= 5; i++) {
            uint16_t status = peer_store(io, i, "key", "value", 5, 0, &cqe);

            assert_true(status == 0 || status == NVME_SC_NAMESPACE);
            served += status == 0;
            refused += status != 0;
        }
        rig_run(rig, 5);
        assert_int_equal(way.done, 1);
        nvmf_target_change_free(&way.change);
        if (draw >> 40 & 1) {
            peer_free(&io);
            peer_free(&admin);
        }
    }
    assert_true(served > 300 && refused > 300);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_are_told_of_what_they_may_use),
        cmocka_unit_test(access_follows_what_a_host_may_use),
        cmocka_unit_test(an_event_waits_for_its_reader),
        cmocka_unit_test(commands_that_began_end_as_they_would),
        cmocka_unit_test(a_right_ends),
        cmocka_unit_test(changes_without_end),
    };

    return cmocka_run_group_tests_name("nvmf-target-spaces", tests, NULL, NULL);
}
