/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the specifications ask of a target, where hosts of others notice: resets, features, logs,
 * Identify, and fields that must be refused. NVMe base 2.0, NVMe/TCP 1.0, Key Value 1.0.
 */
#include "base/bytes.h"
#include "nvmf/target/target_test.h"

#include <stdio.h>
#include <stdlib.h>

static uint16_t identify(struct peer *peer, uint8_t cns, uint8_t csi, uint32_t nsid, uint8_t *page)
{
    struct nvme_identify what = {.cns = cns, .csi = csi, .nsid = nsid};
    uint32_t bytes = NVME_PAGE_BYTES;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_identify_encode(&what, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, page, &bytes, &cqe));
    return cqe.status;
}

static uint16_t log_read(struct peer *peer, uint8_t page, uint64_t offset, uint8_t *data,
                         uint32_t bytes)
{
    struct nvme_log log = {.page = page, .csi = NVME_CSI_KV, .offset = offset, .bytes = bytes};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_log_encode(&log, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, data, &bytes, &cqe));
    return cqe.status;
}

static uint16_t feature_set(struct peer *peer, uint8_t fid, uint32_t value)
{
    struct nvme_feature what = {.set = true, .fid = fid, .value = value};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_feature_encode(&what, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    return cqe.status;
}

static uint32_t csts(struct peer *admin)
{
    struct nvme_property property = {.offset = NVME_REG_CSTS};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_property_encode(&property, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    return cqe.dw0;
}

static void expect_closed(struct peer *peer)
{
    union nvme_tcp_pdu pdu;
    uint8_t data[4096];
    uint32_t bytes;

    assert_int_equal(peer_recv_pdu(peer, &pdu, data, sizeof(data), &bytes), PEER_CLOSED);
}

/* ---- controllers ---------------------------------------------------------------------------- */

/* CSTS.RDY says 1 until the queues of before are gone, with all of their commands. */
static void a_reset_ends_the_io_queues_and_frees_their_ids(void **state)
{
    struct rig *rig = rig_new(3, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *idle = rig_io(rig, admin, 1, 0), *busy = rig_io(rig, admin, 2, 0), *again;
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_EXIST, .nsid = 1, .key = peer_key("k")};
    struct nvmf_target_stats stats;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    rig->hold = true;
    nvme_kv_cmd_encode(&cmd, &sqe);
    (void)peer_submit(busy, &sqe, 0);
    rig_run(rig, 10);
    assert_int_equal(rig->held_count, 1);
    assert_int_equal(rig_cc_set(admin, NVME_CC_START & ~NVME_CC_ENABLE), NVME_SC_SUCCESS);
    expect_closed(idle);
    expect_closed(busy);
    assert_int_equal(csts(admin), NVME_CSTS_READY);
    rig_let_go(rig);
    assert_int_equal(csts(admin), 0);
    rig_stats(rig, &stats);
    assert_int_equal(stats.connections, 1);
    assert_int_equal(stats.timeouts, 0);
    assert_int_equal(rig_cc_set(admin, NVME_CC_START), NVME_SC_SUCCESS);
    assert_int_equal(csts(admin), NVME_CSTS_READY);
    again = rig_io(rig, admin, 2, 0);
    assert_int_equal(peer_exist(again, 1, "k", &cqe), NVME_SC_KV_NO_KEY);
    peer_free(&again);
    again = rig_io(rig, admin, 1, 0);
    peer_free(&again);
    peer_free(&idle);
    peer_free(&busy);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_shutdown_ends_with_a_reset(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0), *io;

    assert_int_equal(rig_cc_set(admin, NVME_CC_START | NVME_CC_SHN_NORMAL), NVME_SC_SUCCESS);
    assert_int_equal(NVME_CSTS_SHST(csts(admin)), 2);
    assert_int_equal(rig_cc_set(admin, NVME_CC_START), NVME_SC_SUCCESS);
    assert_int_equal(NVME_CSTS_SHST(csts(admin)), 2);
    assert_int_equal(rig_cc_set(admin, NVME_CC_SHN_NORMAL), NVME_SC_SUCCESS);
    rig_run(rig, 10);
    assert_int_equal(csts(admin), NVME_CSTS_SHUTDOWN);
    assert_int_equal(rig_cc_set(admin, NVME_CC_START), NVME_SC_SUCCESS);
    assert_int_equal(csts(admin), NVME_CSTS_READY);
    io = rig_io(rig, admin, 1, 0);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void what_cannot_be_enabled_is_refused(void **state)
{
    static const uint32_t bad[] = {
        NVME_CC_START ^ 0x10,    /* CSS 111b: admin commands only   */
        NVME_CC_START ^ 0x40,    /* CSS 010b                        */
        NVME_CC_START | 1 << 7,  /* pages of 8 KiB                  */
        NVME_CC_START | 1 << 11, /* weighted round robin            */
        NVME_CC_START ^ 1 << 16, /* submission entries of 128 bytes */
        NVME_CC_START ^ 1 << 20, /* completion entries of 32 bytes  */
        0x61,                    /* no sizes                        */
    };
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_peer(rig);
    struct peer *discovery = rig_discovery_peer(rig);
    struct nvme_cqe cqe;

    assert_true(peer_hello(admin, 0) && peer_connect(admin, 0, &cqe));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(rig_cc_set(admin, bad[i]), NVME_SC_FIELD);
        assert_int_equal(csts(admin), 0);
    }
    assert_int_equal(rig_cc_set(admin, NVME_CC_START), NVME_SC_SUCCESS);
    assert_int_equal(csts(admin), NVME_CSTS_READY);
    assert_int_equal(rig_cc_set(admin, NVME_CC_START ^ 0x60),
                     NVME_SC_FIELD); /* while it is enabled */
    assert_int_equal(csts(admin), NVME_CSTS_READY);
    /* Without I/O queues their entries need no sizes. */
    assert_true(peer_hello(discovery, 0) && peer_connect(discovery, 0, &cqe));
    assert_int_equal(rig_cc_set(discovery, NVME_CC_ENABLE), NVME_SC_SUCCESS);
    assert_int_equal(csts(discovery), NVME_CSTS_READY);
    peer_free(&discovery);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_host_without_an_identifier_is_refused(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *peer = rig_peer(rig);
    struct nvme_connect connect = {.entries = 32, .cntlid = NVME_CNTLID_ANY};
    uint8_t data[NVME_CONNECT_DATA_BYTES];
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    memcpy(connect.subnqn, peer->subsys, sizeof(connect.subnqn));
    memcpy(connect.hostnqn, peer->host, sizeof(connect.hostnqn));
    nvme_connect_encode(&connect, &sqe, data);
    assert_true(peer_hello(peer, 0));
    assert_true(peer_command(peer, &sqe, data, sizeof(data), NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_CONNECT_PARAM);
    assert_int_equal(cqe.dw0, NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_HOSTID));
    peer_free(&peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* ---- commands ------------------------------------------------------------------------------- */

static void queues_are_granted_only_before_any_is_made(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin = rig_admin(rig, 0), *io;

    assert_int_equal(feature_set(admin, NVME_FEATURE_QUEUES, 3 | 3 << 16), NVME_SC_SUCCESS);
    assert_int_equal(feature_set(admin, NVME_FEATURE_QUEUES, 1 | 1 << 16), NVME_SC_SUCCESS);
    io = rig_io(rig, admin, 1, 0);
    assert_int_equal(feature_set(admin, NVME_FEATURE_QUEUES, 3 | 3 << 16), NVME_SC_SEQUENCE);
    peer_free(&io);
    rig_run(rig, 10);
    assert_int_equal(feature_set(admin, NVME_FEATURE_QUEUES, 3 | 3 << 16), NVME_SC_SEQUENCE);
    assert_int_equal(rig_cc_set(admin, 0), NVME_SC_SUCCESS);
    rig_run(rig, 10);
    assert_int_equal(feature_set(admin, NVME_FEATURE_QUEUES, 3 | 3 << 16), NVME_SC_SUCCESS);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* What others have, or the status of a refusal << 32. */
static uint64_t setting_tell(struct peer *peer, uint8_t fid, uint32_t nsid, uint32_t value)
{
    struct nvme_feature what = {.set = true, .fid = fid, .nsid = nsid, .value = value};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_feature_encode(&what, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    return cqe.status != 0 ? (uint64_t)cqe.status << 32 : cqe.dw0;
}

static void settings_of_hosts_are_compared(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *first = rig_admin(rig, 0), *second = rig_admin(rig, 0);
    struct peer *discovery = rig_discovery_peer(rig);
    const uint64_t refused = (uint64_t)NVME_SC_NAMESPACE << 32;
    struct nvmf_target_differs differs;
    struct nvmf_target_stats stats;

    nvmf_target_differs(rig->target, &differs);
    assert_int_equal(differs.feature, 0);
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_ENCLOSURES, 0, 7), 7);
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_ENCLOSURES, 0, 7), 7);
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_WEIGHTS, 0, 9), 9);
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_RUN_BLOCKS, 1, 8), 8);
    rig_stats(rig, &stats);
    assert_int_equal(stats.settings_differ, 0);
    /* counted once for an association, and named */
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_RUN_BLOCKS, 1, 32), 8);
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_WEIGHTS, 0, 9), 9);
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_ENCLOSURES, 0, 1), 7);
    rig_stats(rig, &stats);
    assert_int_equal(stats.settings_differ, 1);
    nvmf_target_differs(rig->target, &differs);
    assert_int_equal(differs.feature, NVME_FEATURE_ICMS_RUN_BLOCKS);
    assert_int_equal(differs.ns, 0);
    assert_int_equal(differs.value, 32);
    assert_int_equal(differs.kept, 8);
    assert_true(differs.hostnqn[0] != '\0');
    /* of a namespace that it may use, and of nothing else */
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_RUN_BLOCKS, 0, 8), refused);
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_RUN_BLOCKS, NVME_NSID_ALL, 8), refused);
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_RUN_BLOCKS, LIMIT_VOLUMES, 8), refused);
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_RUN_BLOCKS, LIMIT_VOLUMES + 1, 8),
                     refused);
    assert_true(peer_admin(discovery, 0));
    assert_int_equal(setting_tell(discovery, NVME_FEATURE_ICMS_WEIGHTS, 0, 9),
                     (uint64_t)NVME_SC_FIELD << 32);
    /* who goes on telling a value keeps it; when nobody does, the next one is kept */
    for (int i = 0; i < 4; i++) {
        rig_run(rig, 25000);
        assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_RUN_BLOCKS, 1, 8), 8);
        assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_RUN_BLOCKS, 1, 32), 8);
    }
    for (int i = 0; i < 4; i++) {
        rig_run(rig, 25000);
        assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_RUN_BLOCKS, 1, 32), i < 2 ? 8 : 32);
    }
    peer_free(&discovery);
    peer_free(&first);
    peer_free(&second);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* The epoch that each controller told last is shown, until it ends; it is answered with the
 * target's own, if that follows a map, else with the same. */
static void the_epoch_that_a_host_tells_is_shown(void **state)
{
    static struct nvmf_target_connected hosts[NVMF_TARGET_CONNECTED];
    struct rig *rig = rig_new(1, NULL);
    struct peer *first = rig_admin(rig, 0), *second = rig_admin(rig, 0);
    struct peer *discovery = rig_discovery_peer(rig);
    struct nvmf_target_stats stats;
    uint64_t now_ns;
    uint32_t more;

    assert_int_equal(nvmf_target_connected(rig->target, 0, hosts, &more), 1);
    assert_false(hosts[0].has_epoch); /* a host of others, or an older one */
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_EPOCH, 0, 0), 0);
    assert_int_equal(nvmf_target_connected(rig->target, 0, hosts, &more), 1);
    assert_true(hosts[0].has_epoch && hosts[0].epoch_min == 0 && hosts[0].epoch_max == 0);
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_EPOCH, 0, 7), 7);
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_EPOCH, 9, UINT32_MAX), UINT32_MAX);
    rig_run(rig, 10);
    now_ns = loop_env_now_ns(sim_node_env(rig->node));
    assert_int_equal(nvmf_target_connected(rig->target, now_ns, hosts, &more), 1);
    assert_true(hosts[0].has_epoch && hosts[0].epoch_min == 7 && hosts[0].epoch_max == UINT32_MAX);
    assert_int_equal(hosts[0].controllers, 2);
    assert_true(hosts[0].age_ns >= 10000000 && hosts[0].age_ns < now_ns);
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_EPOCH, 0, 6), 6);
    assert_int_equal(nvmf_target_connected(rig->target, 0, hosts, &more), 1);
    assert_true(hosts[0].epoch_min == 6 && hosts[0].epoch_max == 7 && hosts[0].age_ns == 0);
    nvmf_target_epoch_set(rig->target, pod_name_hash("a"), 12);
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_EPOCH, 0, 6), 12);
    assert_int_equal(nvmf_target_connected(rig->target, 0, hosts, &more), 1);
    assert_true(hosts[0].epoch_min == 6 && hosts[0].epoch_max == 7);
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_ENCLOSURES, 0, 3), 3);
    assert_true(peer_admin(discovery, 0));
    assert_int_equal(setting_tell(discovery, NVME_FEATURE_ICMS_EPOCH, 0, 9),
                     (uint64_t)NVME_SC_FIELD << 32);
    rig_stats(rig, &stats);
    assert_int_equal(stats.settings_differ, 0);
    peer_free(&first);
    peer_free(&second);
    rig_run(rig, 2000);
    for (uint32_t i = 0; i < 64; i++) { /* whoever has the controller next told nothing */
        first = rig_admin(rig, 0);
        assert_int_equal(nvmf_target_connected(rig->target, 0, hosts, &more), 1);
        assert_false(hosts[0].has_epoch);
        peer_free(&first);
        rig_run(rig, 100);
    }
    peer_free(&discovery);
    rig_expect_clean(rig);
    rig_free(&rig);
}

#define MANY (NVMF_TARGET_CONNECTED + 6)

static void many_connections(struct nvmf_target_opts *opts)
{
    opts->connections_max = MANY;
}

/* As many hosts as have a place are listed, each once, and the rest is counted. */
static void more_hosts_than_are_listed_are_counted(void **state)
{
    static struct nvmf_target_connected hosts[NVMF_TARGET_CONNECTED];
    static struct peer *peers[MANY];
    struct rig *rig = rig_new(1, many_connections);
    uint32_t more, listed, both = 0;

    for (uint32_t i = 0; i < MANY; i++) { /* the first and the last one are one host */
        peers[i] = rig_peer(rig);
        peers[i]->kato_ms = 0;
        (void)snprintf(peers[i]->host, sizeof(peers[i]->host), "nqn.2026-01.io.icms:many-%u",
                       i % (MANY - 1));
        assert_true(peer_admin(peers[i], 0));
        assert_int_equal(setting_tell(peers[i], NVME_FEATURE_ICMS_EPOCH, 0, i + 1), i + 1);
    }
    listed = nvmf_target_connected(rig->target, 0, hosts, &more);
    assert_int_equal(listed, NVMF_TARGET_CONNECTED);
    assert_int_equal(more, MANY - 1 - NVMF_TARGET_CONNECTED);
    for (uint32_t i = 0; i < listed; i++) {
        uint32_t number = (uint32_t)atoi(strrchr(hosts[i].hostnqn, '-') + 1);

        both += hosts[i].controllers == 2;
        assert_int_equal(hosts[i].controllers, number == 0 ? 2 : 1);
        assert_int_equal(hosts[i].epoch_min, number + 1);
        assert_int_equal(hosts[i].epoch_max, number == 0 ? MANY : number + 1);
    }
    assert_int_equal(both, 1);
    for (uint32_t i = 0; i < MANY; i++)
        peer_free(&peers[i]);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Hosts get other enclosures one after the other: that is no difference, unless it lasts. */
static void a_change_that_reaches_all_hosts_is_no_difference(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *first = rig_admin(rig, 0), *second = rig_admin(rig, 0);
    struct nvmf_target_stats stats;

    for (int i = 0; i < 2; i++) {
        assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_ENCLOSURES, 0, 7), 7);
        assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_ENCLOSURES, 0, 7), 7);
    }
    assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_ENCLOSURES, 0, 8), 7);
    rig_run(rig, 1000);
    assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_ENCLOSURES, 0, 8), 7);
    for (int i = 0; i < 4; i++) {
        rig_run(rig, 25000);
        assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_ENCLOSURES, 0, 8), i < 2 ? 7 : 8);
        assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_ENCLOSURES, 0, 8), i < 2 ? 7 : 8);
    }
    rig_stats(rig, &stats);
    assert_int_equal(stats.settings_differ, 0);
    for (int i = 0; i < 6; i++) {
        rig_stats(rig, &stats);
        assert_int_equal(stats.settings_differ, 0);
        assert_int_equal(setting_tell(first, NVME_FEATURE_ICMS_ENCLOSURES, 0, 8), 8);
        assert_int_equal(setting_tell(second, NVME_FEATURE_ICMS_ENCLOSURES, 0, 9), 8);
        rig_run(rig, 25000);
    }
    rig_stats(rig, &stats);
    assert_int_equal(stats.settings_differ, 1); /* after 125 s */
    peer_free(&first);
    peer_free(&second);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* A host gets its time for a change once: neither another value that others do not have, nor
 * another setting, nor the right value in between gives it more. */
static void a_host_that_differs_in_turns_differs(void **state)
{
    static const uint8_t fids[] = {NVME_FEATURE_ICMS_ENCLOSURES, NVME_FEATURE_ICMS_WEIGHTS};

    for (int way = 0; way < 3; way++) {
        struct rig *rig = rig_new(1, NULL);
        struct peer *first = rig_admin(rig, 0), *second = rig_admin(rig, 0);
        struct nvmf_target_stats stats;

        for (int i = 0; i < 2; i++) {
            assert_int_equal(setting_tell(first, fids[i], 0, 7), 7);
            assert_int_equal(setting_tell(second, fids[i], 0, 7), 7);
        }
        for (int n = 0; n < 7; n++) {
            rig_stats(rig, &stats);
            assert_int_equal(stats.settings_differ, n == 6); /* 125 s after the first */
            for (int i = 0; i < 2; i++)
                assert_int_equal(setting_tell(first, fids[i], 0, 7), 7);
            if (way == 0) {
                assert_int_equal(setting_tell(second, fids[0], 0, 8 + n % 2), 7);
            } else if (way == 1) {
                assert_int_equal(setting_tell(second, fids[0], 0, n == 2 ? 7 : 8), 7);
            } else {
                assert_int_equal(setting_tell(second, fids[0], 0, 8), 7);
                assert_int_equal(setting_tell(second, fids[1], 0, 7 + n % 2), 7);
            }
            rig_run(rig, 25000);
        }
        peer_free(&first);
        peer_free(&second);
        rig_expect_clean(rig);
        rig_free(&rig);
    }
}

static void only_events_that_exist_can_be_asked_for(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *discovery = rig_discovery_peer(rig);
    const uint32_t common = NVME_ASYNC_CRITICAL_WARNINGS;

    assert_true(peer_admin(discovery, 0));
    for (uint32_t bit = 0; bit < 32; bit++) {
        uint32_t value = (uint32_t)1 << bit;

        assert_int_equal(feature_set(admin, NVME_FEATURE_ASYNC_EVENT, value),
                         value & (common | NVME_OAES_NS_CHANGED | NVME_OAES_ANA) ? NVME_SC_SUCCESS
                                                                                 : NVME_SC_FIELD);
        assert_int_equal(feature_set(discovery, NVME_FEATURE_ASYNC_EVENT, value),
                         value & (common | NVME_OAES_DISCOVERY) ? NVME_SC_SUCCESS : NVME_SC_FIELD);
    }
    assert_int_equal(feature_set(admin, NVME_FEATURE_ASYNC_EVENT, UINT32_MAX), NVME_SC_FIELD);
    peer_free(&discovery);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* More was asked for than the host says it sends. */
static void data_that_ends_early_ends_the_connection(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_KV_STORE, .nsid = 1, .key = peer_key("k"), .bytes = 16384};
    uint8_t value[8192] = {1};
    union nvme_tcp_pdu pdu;
    struct nvme_tcp_bad bad;
    struct nvme_sqe_wf sqe;
    uint32_t bytes;
    uint16_t cid;

    nvme_kv_cmd_encode(&cmd, &sqe);
    cid = peer_submit(io, &sqe, 16384);
    assert_int_equal(peer_recv_pdu(io, &pdu, NULL, 0, &bytes), PEER_PDU);
    assert_int_equal(pdu.common.type, NVME_TCP_R2T);
    nvme_tcp_data_encode(&pdu, NVME_TCP_H2C_DATA, NVME_TCP_FLAG_LAST, cid, le16_get(pdu.r2t.ttag),
                         0, sizeof(value));
    assert_true(peer_send_pdu(io, &pdu, value, sizeof(value)));
    assert_int_equal(peer_recv_pdu(io, &pdu, value, sizeof(value), &bytes), PEER_PDU);
    assert_int_equal(pdu.common.type, NVME_TCP_C2H_TERM);
    nvme_tcp_term_decode(&pdu, &bad);
    assert_int_equal(bad.fes, NVME_TCP_FES_HEADER);
    assert_int_equal(bad.fei, offsetof(struct nvme_tcp_common_wf, flags));
    expect_closed(io);
    assert_int_equal(rig->executed, 0);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* One command whose data descriptor is room bytes. */
static uint16_t with_room(struct peer *peer, struct nvme_sqe_wf *sqe, uint32_t room)
{
    uint8_t data[NVME_PAGE_BYTES];
    struct nvme_cqe cqe;

    assert_true(peer_command(peer, sqe, NULL, 0, data, &room, &cqe));
    return cqe.status;
}

static void a_descriptor_shorter_than_the_data_is_refused(void **state)
{
    static const uint8_t opcodes[] = {NVME_KV_RETRIEVE, NVME_ICMS_RETRIEVE, NVME_KV_LIST};
    struct nvme_identify what = {.cns = NVME_CNS_CTRL};
    struct nvme_log log = {.page = NVME_LOG_SMART, .bytes = 512};
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    assert_int_equal(peer_store(io, 1, "k", "abcd", 4, 0, &cqe), NVME_SC_SUCCESS);
    for (size_t i = 0; i < sizeof(opcodes); i++) {
        struct nvme_kv_cmd cmd = {
            .opcode = opcodes[i], .nsid = 1, .key = peer_key("k"), .bytes = 1024};

        nvme_kv_cmd_encode(&cmd, &sqe);
        assert_int_equal(with_room(io, &sqe, 1023), NVME_SC_SGL_LENGTH);
        assert_int_equal(with_room(io, &sqe, 1024), NVME_SC_SUCCESS);
        assert_int_equal(with_room(io, &sqe, 1025), NVME_SC_SUCCESS);
    }
    nvme_identify_encode(&what, &sqe);
    assert_int_equal(with_room(admin, &sqe, 4092), NVME_SC_SGL_LENGTH);
    assert_int_equal(with_room(admin, &sqe, 4096), NVME_SC_SUCCESS);
    nvme_log_encode(&log, &sqe);
    assert_int_equal(with_room(admin, &sqe, 508), NVME_SC_SGL_LENGTH);
    assert_int_equal(with_room(admin, &sqe, 512), NVME_SC_SUCCESS);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Neither fused commands nor PRPs are there; byte 1 of fabrics commands is reserved. */
static void flags_that_mean_something_else_are_refused(void **state)
{
    static const uint8_t bad[] = {0x00, 0x41, 0x42, 0x43, 0x80, 0xc0};
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_STORE, .nsid = 1, .key = peer_key("k"), .bytes = 4};
    struct nvme_property property = {.offset = NVME_REG_CSTS};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    for (size_t i = 0; i < sizeof(bad); i++) {
        nvme_kv_cmd_encode(&cmd, &sqe);
        sqe.flags = bad[i];
        assert_true(peer_command(io, &sqe, "abcd", 4, NULL, NULL, &cqe));
        assert_int_equal(cqe.status, NVME_SC_FIELD);
        assert_true(cqe.dnr);
        nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &sqe);
        sqe.flags = bad[i];
        assert_true(peer_plain(admin, &sqe, &cqe));
        assert_int_equal(cqe.status, NVME_SC_FIELD);
        nvme_property_encode(&property, &sqe);
        sqe.flags = bad[i];
        assert_true(peer_plain(admin, &sqe, &cqe));
        assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    }
    assert_int_equal(rig->executed, 0);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* ---- Identify and logs ---------------------------------------------------------------------- */

static void both_pages_of_a_namespace_say_the_same(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    uint8_t page[NVME_PAGE_BYTES];
    struct nvme_kv_ns ns;
    le64 blocks;

    for (uint32_t nsid = 1; nsid <= 3; nsid += 2) {
        assert_int_equal(identify(admin, NVME_CNS_NS_CSI, NVME_CSI_KV, nsid, page), 0);
        assert_int_equal(nvme_kv_ns_decode(page, sizeof(page), &ns), ICMS_OK);
        assert_int_equal(identify(admin, NVME_CNS_NS, 0, nsid, page), NVME_SC_SUCCESS);
        memcpy(&blocks, page, sizeof(blocks));
        assert_int_equal(le64_get(blocks) * 512, ns.size_bytes);
        memcpy(&blocks, page + 16, sizeof(blocks));
        assert_int_equal(le64_get(blocks), (ns.used_bytes + 511) / 512);
        assert_int_equal(page[30], ns.shared);
        assert_true(ns.shared);
        assert_memory_equal(page + 104, ns.nguid, sizeof(ns.nguid));
    }
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* What a host with multipathing reads: each namespace is in a group that exists, the log fits what
 * Identify promises, and says that the group is optimized. */
static void access_is_reported_as_identify_says(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *discovery = rig_discovery_peer(rig);
    uint8_t page[NVME_PAGE_BYTES], log[16 + 32 + 4 * LIMIT_VOLUMES];
    uint32_t bytes = sizeof(log);
    struct nvme_log groups = {
        .page = NVME_LOG_ANA, .specific = NVME_LOG_ANA_GROUPS, .bytes = sizeof(log)};
    struct nvme_ns_common common;
    struct nvme_kv_ns kv;
    struct nvme_ctrl ctrl;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    assert_int_equal(identify(admin, NVME_CNS_CTRL, 0, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ctrl_decode(page, sizeof(page), &ctrl), ICMS_OK);
    assert_int_equal(ctrl.ana_groups, 1);
    assert_true(ctrl.multi_ctrl && (ctrl.oaes & NVME_OAES_ANA) != 0);
    assert_int_equal(ctrl.nsid_max, LIMIT_VOLUMES);
    assert_int_equal(log_read(admin, NVME_LOG_ANA, 0, log, sizeof(log)), NVME_SC_SUCCESS);
    /* no change, one group; group 1 of namespaces 1 and 3, no change, optimized */
    assert_memory_equal(log, "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0", 16);
    assert_memory_equal(log + 16, "\1\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0\1", 17);
    assert_memory_equal(log + 48, "\1\0\0\0\3\0\0\0\0\0\0", 12);
    for (uint32_t nsid = 1; nsid <= 3; nsid += 2) {
        assert_int_equal(identify(admin, NVME_CNS_NS_COMMON, 0, nsid, page), NVME_SC_SUCCESS);
        assert_int_equal(nvme_ns_common_decode(page, sizeof(page), &common), ICMS_OK);
        assert_int_equal(common.ana_group, 1);
        assert_int_equal(identify(admin, NVME_CNS_NS_CSI, NVME_CSI_KV, nsid, page), 0);
        assert_int_equal(nvme_kv_ns_decode(page, sizeof(page), &kv), ICMS_OK);
        assert_int_equal(kv.ana_group, 1);
        assert_int_equal(identify(admin, NVME_CNS_NS, 0, nsid, page), NVME_SC_SUCCESS);
        assert_memory_equal(page + 92, "\1\0\0", 4);
    }
    nvme_log_encode(&groups, &sqe);
    assert_true(peer_command(admin, &sqe, NULL, 0, log, &bytes, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_memory_equal(log + 16, "\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 17);
    assert_memory_equal(log + 48, "\0\0\0", 4);

    assert_true(peer_admin(discovery, 0));
    assert_int_equal(log_read(discovery, NVME_LOG_ANA, 0, log, 16), NVME_SC_LOG_PAGE);
    assert_int_equal(identify(discovery, NVME_CNS_CTRL, 0, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ctrl_decode(page, sizeof(page), &ctrl), ICMS_OK);
    assert_true(ctrl.ana_groups == 0 && (ctrl.oaes & NVME_OAES_ANA) == 0);
    peer_free(&discovery);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void offsets_past_the_end_of_a_log_are_refused(void **state)
{
    static const struct {
        uint8_t page;
        uint32_t bytes;
    } logs[] = {{NVME_LOG_ERROR, 64},     {NVME_LOG_SMART, 512},
                {NVME_LOG_FIRMWARE, 512}, {NVME_LOG_NS_CHANGED, 4096},
                {NVME_LOG_EFFECTS, 4096}, {NVME_LOG_ANA, 16 + 32 + 4 * LIMIT_VOLUMES}};
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *discovery = rig_discovery_peer(rig);
    uint8_t data[64];

    for (size_t i = 0; i < sizeof(logs) / sizeof(logs[0]); i++) {
        uint32_t end = logs[i].bytes;

        assert_int_equal(log_read(admin, logs[i].page, end - 4, data, 64), NVME_SC_SUCCESS);
        assert_int_equal(log_read(admin, logs[i].page, end + 4, data, 64), NVME_SC_FIELD);
        assert_int_equal(log_read(admin, logs[i].page, (uint64_t)1 << 40, data, 64), NVME_SC_FIELD);
        assert_int_equal(log_read(admin, logs[i].page, 2, data, 64), NVME_SC_FIELD);
    }
    assert_true(peer_admin(discovery, 0));
    assert_int_equal(log_read(discovery, NVME_LOG_DISCOVERY, 3068, data, 64), NVME_SC_SUCCESS);
    assert_int_equal(log_read(discovery, NVME_LOG_DISCOVERY, 3076, data, 64), NVME_SC_FIELD);
    peer_free(&discovery);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void discovery_claims_only_the_logs_that_it_has(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *discovery = rig_discovery_peer(rig);
    struct peer *admin = rig_admin(rig, 0);
    uint8_t page[NVME_PAGE_BYTES];
    bool claimed;

    assert_true(peer_admin(discovery, 0));
    for (int i = 0; i < 2; i++) {
        struct peer *peer = i == 0 ? discovery : admin;

        assert_int_equal(identify(peer, NVME_CNS_CTRL, 0, 0, page), NVME_SC_SUCCESS);
        claimed = (page[261] & 2) != 0; /* LPA b1: commands supported and effects */
        assert_int_equal(log_read(peer, NVME_LOG_EFFECTS, 0, page, 4096) == NVME_SC_SUCCESS,
                         claimed);
    }
    peer_free(&admin);
    peer_free(&discovery);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void discovery_lists_itself_first(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct nvme_disc_entry entry;
    uint64_t generation, count;
    uint8_t data[3072];

    for (int i = 0; i < 2; i++) {
        struct peer *discovery = rig_discovery_peer(rig);

        assert_true(peer_admin(discovery, 0));
        assert_int_equal(log_read(discovery, NVME_LOG_DISCOVERY, 0, data, sizeof(data)), 0);
        assert_int_equal(nvme_disc_header_decode(data, 1024, &generation, &count), ICMS_OK);
        assert_int_equal(count, 2);
        assert_int_equal(nvme_disc_entry_decode(data + 1024, 1024, &entry), ICMS_OK);
        assert_int_equal(entry.subtype, NVME_DISC_CURRENT);
        assert_string_equal(entry.subnqn, NVME_DISCOVERY);
        assert_string_equal(entry.address, "10.1.0.1");
        assert_string_equal(entry.service, "4420");
        assert_int_equal(entry.flags, NVME_DISC_DUPLICATE | NVME_DISC_PERSISTENT);
        assert_int_equal(nvme_disc_entry_decode(data + 2048, 1024, &entry), ICMS_OK);
        assert_int_equal(entry.subtype, NVME_DISC_NVM);
        assert_string_equal(entry.subnqn, "nqn.2026-01.io.icms:test");
        assert_int_equal(entry.flags, 0);
        peer_free(&discovery);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

static uint64_t count_at(const uint8_t *page, uint32_t at)
{
    le64 count;

    memcpy(&count, page + at, sizeof(count));
    return le64_get(count);
}

static void the_health_log_says_what_is_known(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    uint8_t *value = calloc(1, 600000);
    uint32_t bytes = 600000;
    uint8_t page[512];
    struct nvme_cqe cqe;

    assert_int_equal(log_read(admin, NVME_LOG_SMART, 0, page, 512), NVME_SC_SUCCESS);
    assert_int_equal(page[0], 0);
    assert_int_equal(page[1] | page[2], 0); /* no temperature */
    assert_int_equal(page[3], 100);
    assert_int_equal(count_at(page, 32) + count_at(page, 48) + count_at(page, 64), 0);
    assert_int_equal(peer_store(io, 1, "k", value, 600000, 0, &cqe), NVME_SC_SUCCESS);
    for (int i = 0; i < 2; i++)
        assert_int_equal(peer_retrieve(io, 1, "k", value, &bytes, &cqe), NVME_SC_SUCCESS);
    rig->health =
        (struct nvmf_target_health){.spare_percent = 5, .degraded = true, .media_errors = 3};
    rig_run(rig, 2 * 3600 * 1000);
    assert_int_equal(log_read(admin, NVME_LOG_SMART, 0, page, 512), NVME_SC_SUCCESS);
    assert_int_equal(page[0], NVME_HEALTH_SPARE | NVME_HEALTH_DEGRADED);
    assert_int_equal(page[3], 5);
    assert_int_equal(count_at(page, 32), 3); /* 1,200,000 bytes in units of 512,000, rounded up */
    assert_int_equal(count_at(page, 48), 2);
    assert_int_equal(count_at(page, 64), 2);
    assert_int_equal(count_at(page, 80), 1);
    assert_int_equal(count_at(page, 128), 2);
    assert_int_equal(count_at(page, 160), 3);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    free(value);
    rig_free(&rig);
}

static void keep_alive(struct peer *admin)
{
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
}

/* Told once each time that it begins, to hosts that asked for it. */
static void a_critical_warning_is_an_event(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct nvme_sqe_wf event, alive;
    struct nvme_cqe cqe;
    uint16_t cid, alive_cid;

    nvme_admin_plain_encode(NVME_ADMIN_ASYNC_EVENT, &event);
    nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &alive);
    assert_int_equal(feature_set(admin, NVME_FEATURE_ASYNC_EVENT, NVME_HEALTH_DEGRADED), 0);
    cid = peer_submit(admin, &event, 0);
    keep_alive(admin);
    rig->health.spare_percent = 5; /* not asked for */
    for (int round = 0; round < 2; round++) {
        rig->health.degraded = true;
        alive_cid = peer_submit(admin, &alive, 0);
        assert_true(peer_complete(admin, cid, NULL, 0, NULL, NULL, &cqe));
        assert_int_equal(cqe.dw0, 0x20001); /* log 02h, reliability, SMART */
        assert_true(peer_complete(admin, alive_cid, NULL, 0, NULL, NULL, &cqe));
        cid = peer_submit(admin, &event, 0);
        keep_alive(admin); /* it goes on: nothing new */
        rig->health.degraded = false;
        keep_alive(admin);
    }
    peer_free(&admin);
    /* It was there before the host came: the first request is answered at once. */
    admin = rig_admin(rig, 0);
    assert_int_equal(feature_set(admin, NVME_FEATURE_ASYNC_EVENT, NVME_HEALTH_SPARE), 0);
    assert_true(peer_plain(admin, &event, &cqe));
    assert_int_equal(cqe.dw0, 0x20201);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reset_ends_the_io_queues_and_frees_their_ids),
        cmocka_unit_test(a_shutdown_ends_with_a_reset),
        cmocka_unit_test(what_cannot_be_enabled_is_refused),
        cmocka_unit_test(a_host_without_an_identifier_is_refused),
        cmocka_unit_test(queues_are_granted_only_before_any_is_made),
        cmocka_unit_test(settings_of_hosts_are_compared),
        cmocka_unit_test(the_epoch_that_a_host_tells_is_shown),
        cmocka_unit_test(more_hosts_than_are_listed_are_counted),
        cmocka_unit_test(a_change_that_reaches_all_hosts_is_no_difference),
        cmocka_unit_test(a_host_that_differs_in_turns_differs),
        cmocka_unit_test(only_events_that_exist_can_be_asked_for),
        cmocka_unit_test(data_that_ends_early_ends_the_connection),
        cmocka_unit_test(a_descriptor_shorter_than_the_data_is_refused),
        cmocka_unit_test(flags_that_mean_something_else_are_refused),
        cmocka_unit_test(both_pages_of_a_namespace_say_the_same),
        cmocka_unit_test(access_is_reported_as_identify_says),
        cmocka_unit_test(offsets_past_the_end_of_a_log_are_refused),
        cmocka_unit_test(discovery_claims_only_the_logs_that_it_has),
        cmocka_unit_test(discovery_lists_itself_first),
        cmocka_unit_test(the_health_log_says_what_is_known),
        cmocka_unit_test(a_critical_warning_is_an_event),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
