/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A target with several addresses: one subsystem behind all of them, told by discovery, with one
 * limit of connections, and each portal alone in its failure.
 */
#include "nvmf/target/target_test.h"

#define PORTALS 4
#define PORT    4420

/* Portal 3 listens on all addresses and is not advertised as another one. */
static void several_portals(struct nvmf_target_opts *opts)
{
    opts->portal_count = PORTALS;
    for (uint32_t i = 0; i < PORTALS; i++)
        opts->portals[i].listen = (struct loop_addr){"10.1.0.1", (uint16_t)(PORT + i)};
    opts->portals[1].advertise = (struct loop_addr){"192.0.2.7", 5000};
    opts->portals[2].listen = (struct loop_addr){"0.0.0.0", PORT + 2};
    opts->portals[2].advertise = opts->portals[2].listen;
    opts->portals[3].advertise = (struct loop_addr){"2001:db8::7", 0};
}

static void ipv6_wildcard(struct nvmf_target_opts *opts)
{
    opts->portal_count = 2;
    opts->portals[1].listen = (struct loop_addr){"::", PORT + 1};
}

static void few_connections(struct nvmf_target_opts *opts)
{
    several_portals(opts);
    opts->connections_max = 6;
    opts->host_connections_max = 64;
}

/* A host that comes through a portal. */
static struct peer *portal_peer(struct rig *rig, uint32_t portal)
{
    struct loop_addr addr = {"10.1.0.1", (uint16_t)(PORT + portal)};

    return peer_new_sim(rig->sim, rig->host, &addr);
}

static struct peer *portal_admin(struct rig *rig, uint32_t portal)
{
    struct peer *peer = portal_peer(rig, portal);

    assert_non_null(peer);
    assert_true(peer_admin(peer, 0));
    return peer;
}

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

/* The entries of the discovery log, as a host reads them through a portal; how many there are. */
static uint64_t discover(struct rig *rig, uint32_t portal, struct nvme_disc_entry *out_entries)
{
    struct peer *peer = portal_peer(rig, portal);
    uint8_t data[NVME_DISC_HEADER_BYTES + 2 * LIMIT_PORTALS * NVME_DISC_ENTRY_BYTES];
    struct nvme_log log = {.page = NVME_LOG_DISCOVERY, .bytes = NVME_DISC_HEADER_BYTES};
    uint64_t generation, count;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint32_t bytes = sizeof(data);

    assert_non_null(peer);
    memcpy(peer->subsys, NVME_DISCOVERY, sizeof(NVME_DISCOVERY));
    assert_true(peer_admin(peer, 0));
    nvme_log_encode(&log, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, data, &bytes, &cqe));
    assert_int_equal(nvme_disc_header_decode(data, bytes, &generation, &count), ICMS_OK);
    assert_true(count <= (uint64_t)2 * LIMIT_PORTALS);
    for (uint64_t i = 0; i < count; i++) {
        log.offset = NVME_DISC_HEADER_BYTES + i * NVME_DISC_ENTRY_BYTES;
        log.bytes = bytes = NVME_DISC_ENTRY_BYTES;
        nvme_log_encode(&log, &sqe);
        assert_true(peer_command(peer, &sqe, NULL, 0, data, &bytes, &cqe));
        assert_int_equal(nvme_disc_entry_decode(data, bytes, &out_entries[i]), ICMS_OK);
    }
    peer_free(&peer);
    return count;
}

static void expect_entry(const struct nvme_disc_entry *entry, uint16_t port_id,
                         enum nvme_disc_subtype subtype, const char *address, const char *service)
{
    assert_int_equal(entry->port_id, port_id);
    assert_int_equal(entry->subtype, subtype);
    assert_string_equal(entry->address, address);
    assert_string_equal(entry->service, service);
    assert_int_equal(entry->ipv6, strchr(address, ':') != NULL);
    assert_string_equal(entry->subnqn,
                        subtype == NVME_DISC_NVM ? "nqn.2026-01.io.icms:test" : NVME_DISCOVERY);
}

static void discovery_lists_every_portal(void **state)
{
    static const char *const where[PORTALS][2] = {
        {"10.1.0.1", "4420"}, {"192.0.2.7", "5000"}, {"10.1.0.1", "4422"}, {"2001:db8::7", "4423"}};
    struct rig *rig = rig_new(2, several_portals);
    struct nvme_disc_entry entries[2 * LIMIT_PORTALS];

    for (uint32_t through = 0; through < PORTALS; through++) {
        assert_int_equal(discover(rig, through, entries), 2 * PORTALS);
        for (uint16_t i = 0; i < PORTALS; i++) {
            const char *const *at = where[i];

            expect_entry(&entries[(size_t)2 * i], i + 1, NVME_DISC_CURRENT, at[0], at[1]);
            expect_entry(&entries[(size_t)2 * i + 1], i + 1, NVME_DISC_NVM, at[0], at[1]);
        }
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* The one volume is another host's. */
static void of_another_host(struct nvmf_target_opts *opts)
{
    static const char friends[1][LIMIT_NQN_BYTES] = {"nqn.2026-01.io.icms:friend"};
    static const struct nvmf_target_ns ns = {.volume = {{1}},
                                             .size_bytes = 1 << 20,
                                             .value_bytes_max = 10000,
                                             .host_count = 1,
                                             .host_nqn = friends};

    several_portals(opts);
    opts->namespaces = &ns;
    opts->namespace_count = 1;
}

/* Neither the subsystem nor its other addresses. */
static void a_stranger_learns_of_no_other_portal(void **state)
{
    struct rig *rig = rig_new(2, of_another_host);
    struct nvme_disc_entry entries[2 * LIMIT_PORTALS];

    assert_int_equal(discover(rig, 0, entries), 1);
    expect_entry(&entries[0], 1, NVME_DISC_CURRENT, "10.1.0.1", "4420");
    assert_int_equal(discover(rig, 2, entries), 1);
    expect_entry(&entries[0], 3, NVME_DISC_CURRENT, "10.1.0.1", "4422");
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* What it is for this host nobody knows. */
static void a_wildcard_of_another_family_is_left_out(void **state)
{
    struct rig *rig = rig_new(1, ipv6_wildcard);
    struct nvme_disc_entry entries[2 * LIMIT_PORTALS];

    assert_int_equal(discover(rig, 0, entries), 2);
    expect_entry(&entries[1], 1, NVME_DISC_NVM, "10.1.0.1", "4420");
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* A controller is a host's through one portal; its queues may come through any. */
static void all_portals_are_one_subsystem(void **state)
{
    struct rig *rig = rig_new(2, several_portals);
    uint8_t page[NVME_PAGE_BYTES];
    struct nvme_ns_ids ids, ids_0 = {.has_nguid = false};
    struct peer *admin[PORTALS], *io[PORTALS];
    struct nvme_ctrl ctrl;
    struct nvme_cqe cqe;
    uint32_t bytes;

    for (uint32_t i = 0; i < PORTALS; i++) {
        admin[i] = portal_admin(rig, i);
        for (uint32_t j = 0; j < i; j++)
            assert_int_not_equal(admin[i]->cntlid, admin[j]->cntlid);
        assert_int_equal(identify(admin[i], NVME_CNS_CTRL, 0, 0, page), NVME_SC_SUCCESS);
        assert_int_equal(nvme_ctrl_decode(page, sizeof(page), &ctrl), ICMS_OK);
        assert_int_equal(ctrl.cntlid, admin[i]->cntlid);
        assert_string_equal(ctrl.subnqn, "nqn.2026-01.io.icms:test");
        assert_true(ctrl.multi_ctrl);
        assert_int_equal(identify(admin[i], NVME_CNS_NS_IDS, 0, 1, page), NVME_SC_SUCCESS);
        assert_int_equal(nvme_ns_ids_decode(page, sizeof(page), &ids), ICMS_OK);
        if (i == 0)
            ids_0 = ids;
        assert_true(ids.has_nguid);
        assert_memory_equal(ids.nguid, ids_0.nguid, sizeof(ids.nguid));
        io[i] = portal_peer(rig, (i + 1) % PORTALS);
        assert_true(peer_io(io[i], admin[i], 1, 0));
    }
    for (uint32_t i = 0; i < PORTALS; i++) {
        char value[16] = "of portal", got[16];

        value[10] = (char)('0' + i);
        assert_int_equal(peer_store(io[i], 1, "k", value, sizeof(value), 0, &cqe), NVME_SC_SUCCESS);
        bytes = sizeof(got);
        assert_int_equal(peer_retrieve(io[(i + 1) % PORTALS], 1, "k", got, &bytes, &cqe),
                         NVME_SC_SUCCESS);
        assert_memory_equal(got, value, sizeof(value));
    }
    for (uint32_t i = 0; i < PORTALS; i++) {
        peer_free(&io[i]);
        peer_free(&admin[i]);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* The one whose connection broke. */
static void a_loss_names_its_portal(void **state)
{
    struct rig *rig = rig_new(2, several_portals);
    struct nvmf_target_loss loss;
    struct peer *admin, *io;
    uint64_t missed;

    for (int round = 0; round < 2; round++) {
        admin = portal_admin(rig, 1);
        io = portal_peer(rig, 3);
        assert_true(peer_io(io, admin, 1, 0));
        if (round == 0)
            peer_free(&io);
        rig_run(rig, 100);
        peer_free(&admin);
        rig_run(rig, 100);
        assert_true(nvmf_target_loss_take(rig->target, &loss, &missed));
        assert_int_equal(loss.qid, round == 0 ? 1 : 0);
        assert_string_equal(loss.portal.host, "10.1.0.1");
        assert_int_equal(loss.portal.port, round == 0 ? PORT + 3 : PORT + 1);
        if (round == 1)
            peer_free(&io);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void expect_connections(struct rig *rig, uint32_t portal, uint64_t now, uint64_t total)
{
    struct nvmf_target_stats stats;

    rig_run(rig, 100);
    rig_stats(rig, &stats);
    assert_int_equal(stats.portals[portal].connections, now);
    assert_int_equal(stats.portals[portal].connections_total, total);
}

static void connections_are_counted_by_portal(void **state)
{
    struct rig *rig = rig_new(2, several_portals);
    struct nvmf_target_stats stats;
    struct peer *a, *b, *c;

    rig_stats(rig, &stats);
    assert_int_equal(stats.portal_count, PORTALS);
    assert_string_equal(stats.portals[2].addr.host, "0.0.0.0");
    assert_int_equal(stats.portals[3].addr.port, PORT + 3);
    a = portal_admin(rig, 1);
    b = portal_admin(rig, 1);
    c = portal_admin(rig, 3);
    expect_connections(rig, 0, 0, 0);
    expect_connections(rig, 1, 2, 2);
    expect_connections(rig, 3, 1, 1);
    peer_free(&b);
    expect_connections(rig, 1, 1, 2);
    peer_free(&c);
    expect_connections(rig, 3, 0, 1);
    peer_free(&a);
    expect_connections(rig, 1, 0, 2);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* More wait until one of them ends, whichever portal it came through. */
static void all_portals_have_one_limit_of_connections(void **state)
{
    struct rig *rig = rig_new(2, few_connections);
    struct peer *peers[12];
    struct nvmf_target_stats stats;
    uint64_t total = 0;

    for (uint32_t i = 0; i < 12; i++) {
        peers[i] = portal_peer(rig, i % PORTALS);
        assert_non_null(peers[i]);
    }
    rig_run(rig, 500);
    rig_stats(rig, &stats);
    assert_int_equal(stats.connections, 6);
    assert_int_equal(stats.connections_max, 6);
    assert_int_equal(stats.connections_full, 1);
    for (uint32_t i = 0; i < PORTALS; i++)
        total += stats.portals[i].connections;
    assert_int_equal(total, 6);
    for (uint32_t i = 0; i < 12; i++)
        peer_free(&peers[i]);
    rig_run(rig, 500);
    peers[0] = portal_admin(rig, 3);
    peer_free(&peers[0]);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void no_kv(void *owner, struct nvmf_target_req *req)
{
    fail_msg("a command came");
}

static uint64_t no_bytes(uint64_t value_bytes)
{
    return value_bytes;
}

/* None of the others is served either. */
static void a_portal_that_is_taken_is_refused(void **state)
{
    static const struct nvmf_target_ops ops = {.kv = no_kv, .buffer_bytes = no_bytes};
    struct rig *rig = rig_new(1, several_portals);
    struct nvmf_target_opts opts;
    struct nvmf_target *target;
    struct loop_opts loop_opts;
    struct loop *loop;
    struct err_why why = {""};
    struct loop_addr addr = {"10.1.0.1", 6000};

    loop_opts_init(&loop_opts);
    assert_int_equal(loop_new(sim_node_env(rig->node), &loop_opts, &why, &loop), ICMS_OK);
    nvmf_target_opts_init(&opts);
    opts.loops = &loop;
    opts.loop_count = 1;
    opts.portal_count = 2;
    opts.portals[0].listen = addr;
    opts.portals[1].listen = (struct loop_addr){"10.1.0.1", PORT + 3};
    opts.nqn = "nqn.2026-01.io.icms:second";
    opts.memory_bytes = (uint64_t)64 << 20;
    opts.connections_max = 4;
    opts.ops = &ops;
    assert_int_equal(nvmf_target_new(&opts, &why, &target), ICMS_OK);
    assert_int_equal(nvmf_target_open(target, &why), ICMS_ADDRESS_IN_USE);
    assert_non_null(strstr(why.text, "cannot listen on 10.1.0.1:4423"));
    loop_free(&loop);
    nvmf_target_free(&target);
    assert_null(peer_new_sim(rig->sim, rig->host, &addr));
    rig_free(&rig);
}

/* Every portal ends with the target, and refuses from the drain on. */
static void a_drain_closes_every_portal(void **state)
{
    struct rig *rig = rig_new(2, several_portals);
    struct peer *admin = portal_admin(rig, 3);

    nvmf_target_drain(rig->target);
    rig_run(rig, 500);
    assert_true(nvmf_target_idle(rig->target));
    for (uint32_t i = 0; i < PORTALS; i++)
        assert_null(portal_peer(rig, i));
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(discovery_lists_every_portal),
        cmocka_unit_test(a_stranger_learns_of_no_other_portal),
        cmocka_unit_test(a_wildcard_of_another_family_is_left_out),
        cmocka_unit_test(all_portals_are_one_subsystem),
        cmocka_unit_test(a_loss_names_its_portal),
        cmocka_unit_test(connections_are_counted_by_portal),
        cmocka_unit_test(all_portals_have_one_limit_of_connections),
        cmocka_unit_test(a_portal_that_is_taken_is_refused),
        cmocka_unit_test(a_drain_closes_every_portal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
