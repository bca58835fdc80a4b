/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers that want to keep others out: with authentications that they begin, and with
 * connections to discovery, for which nobody proves anything.
 */
#include "nvmf/target/target_test.h"

#include <stdio.h>
#include <unistd.h>

#include "base/check.h"
#include "crypt/dhchap.h"
#include "wire/nvme_auth.h"

#define HOST      "nqn.2026-01.io.icms:test-host"
#define FREE_HOST "nqn.2026-01.io.icms:free-host"
#define STRANGER  "nqn.2026-01.io.icms:stranger"
#define SECOND_MS 1000
#define PAUSE_NS  ((uint64_t)250 * 1000 * 1000)
#define LIFE_MS   (5 * SECOND_MS) /* the target's header timeout */

static char folder[64];
static char paths[1][LIMIT_PATH_BYTES];
static struct key_plain key = {.hash = KEY_HASH_SHA256, .bytes = 32};

static int setup(void **state)
{
    char text[KEY_TEXT_BYTES_MAX];
    size_t bytes;

    (void)snprintf(folder, sizeof(folder), "/tmp/icms-stranger-XXXXXX");
    check(mkdtemp(folder) != NULL);
    (void)snprintf(paths[0], sizeof(paths[0]), "%s/secret", folder);
    secret_random(key.key, key.bytes);
    bytes = key_text_make(KEY_TEXT_DHCHAP, &key, text);
    check(secret_write(paths[0], text, bytes, NULL) == ICMS_OK);
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(paths[0]);
    return rmdir(folder);
}

/* All hosts have to authenticate, but for one; one can. */
static void with_auth(struct nvmf_target_opts *opts)
{
    static struct nvmf_target_host hosts[2];

    (void)snprintf(hosts[0].nqn, sizeof(hosts[0].nqn), HOST);
    hosts[0].require = REQUIRE_CHAP;
    hosts[0].secrets = (const char(*)[LIMIT_PATH_BYTES])paths;
    hosts[0].secret_count = 1;
    (void)snprintf(hosts[1].nqn, sizeof(hosts[1].nqn), FREE_HOST);
    opts->hosts = hosts;
    opts->host_count = 2;
    opts->require = REQUIRE_CHAP;
    opts->header_timeout_ms = LIFE_MS;
    opts->connections_max = 128;
}

static void with_few_connections(struct nvmf_target_opts *opts)
{
    with_auth(opts);
    opts->host_connections_max = 2;
}

static void with_two_for_discovery(struct nvmf_target_opts *opts)
{
    with_auth(opts);
    opts->connections_max = 16;
}

static void without_group(struct nvmf_target_opts *opts)
{
    with_auth(opts);
    opts->auth_groups[0] = DHCHAP_NONE;
    opts->auth_group_count = 1;
}

static struct peer *connected_to(struct rig *rig, struct sim_node *node, const char *host,
                                 const char *subsys, const struct peer *admin)
{
    struct peer *peer = peer_new_sim(rig->sim, node, &rig->addr);
    struct nvme_cqe cqe;

    assert_non_null(peer);
    (void)snprintf(peer->host, sizeof(peer->host), "%s", host);
    if (subsys != NULL)
        (void)snprintf(peer->subsys, sizeof(peer->subsys), "%s", subsys);
    assert_true(peer_hello(peer, 0));
    if (admin != NULL)
        peer->cntlid = admin->cntlid;
    assert_true(peer_connect(peer, admin != NULL, &cqe));
    return peer;
}

static struct peer *connected(struct rig *rig, struct sim_node *node, const char *host,
                              const char *subsys)
{
    return connected_to(rig, node, host, subsys, NULL);
}

static bool is_closed_in(struct peer *peer, uint32_t timeout_ms)
{
    peer->timeout_ms = timeout_ms;
    return peer_closed(peer);
}

/* ---- authentication ------------------------------------------------------------------------- */

static void negotiate(struct peer *peer)
{
    struct nvme_auth_msg msg = {.id = NVME_AUTH_NEGOTIATE,
                                .t_id = 7,
                                .hash_count = 1,
                                .hashes = {1},
                                .group_count = 2,
                                .groups = {DHCHAP_2048, DHCHAP_NONE}};
    struct nvme_sgl sgl = {.in_capsule = true};
    uint8_t out[NVME_AUTH_BYTES_MAX];
    union nvme_tcp_pdu pdu;
    struct nvme_sqe_wf sqe;

    sgl.bytes = (uint32_t)nvme_auth_encode(&msg, out);
    nvme_auth_cmd_encode(true, sgl.bytes, &sqe);
    nvme_sgl_encode(&sgl, &sqe.sgl);
    nvme_tcp_cmd_encode(&pdu, &sqe);
    assert_true(peer_send_pdu(peer, &pdu, out, sgl.bytes));
}

/* The status of the answer; UINT16_MAX: none comes in time. */
static uint16_t answer(struct peer *peer, uint32_t timeout_ms)
{
    union nvme_tcp_pdu pdu;
    struct nvme_cqe cqe;
    uint32_t bytes;

    peer->timeout_ms = timeout_ms;
    if (peer_recv_pdu(peer, &pdu, NULL, 0, &bytes) != PEER_PDU)
        return UINT16_MAX;
    nvme_cqe_decode(&pdu.resp.cqe, &cqe);
    return cqe.status;
}

/* One address begins more authentications than may wait. Hosts of other addresses find a place, and
 * who found none hears it after a pause. */
static void one_address_does_not_take_all_places(void **state)
{
    enum { STRANGERS = 100, HOSTS = 3 };
    struct rig *rig = rig_new(1, with_auth);
    struct sim_node *node = sim_node_new(rig->sim, "10.1.0.77");
    struct peer *strangers[STRANGERS], *hosts[HOSTS];
    uint32_t late = 0;
    uint64_t start_ns;

    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = connected(rig, node, STRANGER, NULL);
    for (int i = 0; i < HOSTS; i++)
        hosts[i] = connected(rig, rig->host, HOST, NULL);
    start_ns = loop_env_now_ns(sim_node_env(rig->node));
    for (int i = 0; i < STRANGERS; i++)
        negotiate(strangers[i]);
    for (int i = 0; i < HOSTS; i++)
        negotiate(hosts[i]);
    for (int i = 0; i < HOSTS; i++)
        assert_int_equal(answer(hosts[i], SECOND_MS), NVME_SC_SUCCESS);
    peer_free(&strangers[STRANGERS - 1]); /* it leaves in its pause */
    for (int i = 0; i < STRANGERS - 1; i++) {
        uint16_t status = answer(strangers[i], SECOND_MS);

        if (status == NVME_SC_SUCCESS)
            continue;
        assert_int_equal(status, NVME_SC_TRANSIENT);
        assert_true(loop_env_now_ns(sim_node_env(rig->node)) >= start_ns + PAUSE_NS);
        negotiate(strangers[i]); /* again on the same queue pair */
        assert_int_equal(answer(strangers[i], SECOND_MS), NVME_SC_SUCCESS);
        late++;
    }
    assert_in_range(late, 10, STRANGERS - 64);
    for (int i = 0; i < STRANGERS; i++)
        if (strangers[i] != NULL)
            peer_free(&strangers[i]);
    for (int i = 0; i < HOSTS; i++)
        peer_free(&hosts[i]);
    rig_run(rig, SECOND_MS);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* The rest of an authentication without a group. */
static void prove(struct peer *peer)
{
    uint8_t in[NVME_AUTH_BYTES_MAX], out[NVME_AUTH_BYTES_MAX], response[DHCHAP_DIGEST_BYTES_MAX];
    struct nvme_auth_msg msg, reply = {.id = NVME_AUTH_REPLY, .t_id = 7, .value = response};
    struct dhchap_question question = {
        .hash = KEY_HASH_SHA256, .t_id = 7, .hostnqn = peer->host, .subnqn = peer->subsys};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    peer->timeout_ms = SECOND_MS;
    for (int i = 0; i < 2; i++) {
        uint32_t bytes = sizeof(in);

        nvme_auth_cmd_encode(false, bytes, &sqe);
        assert_true(peer_command(peer, &sqe, NULL, 0, in, &bytes, &cqe));
        assert_int_equal(nvme_auth_decode(in, bytes, &msg), ICMS_OK);
        assert_int_equal(msg.id, i == 0 ? NVME_AUTH_CHALLENGE : NVME_AUTH_SUCCESS1);
        if (i == 1)
            break;
        question.challenge = msg.value;
        question.seqnum = msg.seqnum;
        assert_int_equal(dhchap_response(&key, &question, response), ICMS_OK);
        reply.value_bytes = msg.value_bytes;
        bytes = (uint32_t)nvme_auth_encode(&reply, out);
        nvme_auth_cmd_encode(true, bytes, &sqe);
        assert_true(peer_command(peer, &sqe, out, bytes, NULL, NULL, &cqe));
        assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    }
}

/* Of a host that got one place its other queues need none, also behind the address of strangers. */
static void io_queues_need_no_place(void **state)
{
    enum { STRANGERS = 100 };
    struct rig *rig = rig_new(1, without_group);
    struct peer *strangers[STRANGERS], *admin = connected(rig, rig->host, HOST, NULL), *io;

    negotiate(admin);
    assert_int_equal(answer(admin, SECOND_MS), NVME_SC_SUCCESS);
    prove(admin);
    assert_int_equal(peer_enable(admin), NVME_SC_SUCCESS);
    io = connected_to(rig, rig->host, HOST, NULL, admin);
    for (int i = 0; i < STRANGERS; i++)
        strangers[i] = connected(rig, rig->host, STRANGER, NULL);
    for (int i = 0; i < STRANGERS; i++)
        negotiate(strangers[i]);
    negotiate(io);
    assert_int_equal(answer(io, SECOND_MS), NVME_SC_SUCCESS);
    prove(io);
    for (int i = 0; i < STRANGERS; i++)
        peer_free(&strangers[i]);
    peer_free(&io);
    peer_free(&admin);
    rig_run(rig, SECOND_MS);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* ---- discovery ------------------------------------------------------------------------------ */

/* Who only names a host takes no place of it. */
static void discovery_does_not_count_to_a_host(void **state)
{
    struct rig *rig = rig_new(2, with_few_connections);
    struct peer *peers[4], *host;

    for (int i = 0; i < 4; i++)
        peers[i] = connected(rig, rig->host, HOST, NVME_DISCOVERY);
    host = connected(rig, rig->host, HOST, NULL);
    peer_free(&host);
    for (int i = 0; i < 4; i++)
        peer_free(&peers[i]);
    for (int i = 0; i < 2; i++) /* it does to one that has nothing to prove */
        peers[i] = connected(rig, rig->host, FREE_HOST, NVME_DISCOVERY);
    host = rig_peer(rig);
    (void)snprintf(host->host, sizeof(host->host), FREE_HOST);
    assert_true(peer_hello(host, 0));
    {
        struct nvme_cqe cqe;

        assert_false(peer_connect(host, 0, &cqe));
        assert_int_equal(cqe.status, NVME_SC_CONNECT_BUSY);
    }
    peer_free(&host);
    peer_free(&peers[0]);
    peer_free(&peers[1]);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* It ends in time, used or not, with a keep-alive timeout or without; that of a host which has
 * nothing to prove lasts. */
static void discovery_of_strangers_ends_in_time(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct peer *free_host = connected(rig, rig->host, FREE_HOST, NVME_DISCOVERY);
    struct peer *silent = connected(rig, rig->host, STRANGER, NVME_DISCOVERY);
    struct peer *busy = connected(rig, rig->host, HOST, NVME_DISCOVERY);
    struct nvmf_target_loss loss;
    struct nvmf_target_stats stats;
    uint64_t missed;

    for (uint32_t ms = 0; ms + SECOND_MS < LIFE_MS; ms += SECOND_MS / 2) {
        assert_int_equal(peer_enable(busy), NVME_SC_SUCCESS);
        rig_run(rig, SECOND_MS / 2);
    }
    assert_true(is_closed_in(busy, 2 * SECOND_MS));
    assert_true(is_closed_in(silent, SECOND_MS));
    rig_run(rig, 3 * LIFE_MS);
    assert_int_equal(peer_enable(free_host), NVME_SC_SUCCESS);
    assert_false(nvmf_target_loss_take(rig->target, &loss, &missed));
    rig_stats(rig, &stats);
    assert_int_equal(stats.keepalive_timeouts, 0);
    peer_free(&busy);
    peer_free(&silent);
    peer_free(&free_host);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* They have an eighth of the connections, and one more ends the oldest. */
static void strangers_have_a_part_of_the_connections_for_discovery(void **state)
{
    struct rig *rig = rig_new(1, with_two_for_discovery);
    struct peer *peers[6];

    for (int i = 0; i < 6; i++) {
        peers[i] = connected(rig, rig->host, STRANGER, NVME_DISCOVERY);
        if (i == 2) /* one leaves by itself: two are left */
            peer_free(&peers[1]);
        rig_run(rig, 10);
    }
    assert_true(is_closed_in(peers[0], 1));
    assert_true(is_closed_in(peers[2], 1));
    assert_true(is_closed_in(peers[3], 1));
    assert_int_equal(peer_enable(peers[4]), NVME_SC_SUCCESS);
    assert_int_equal(peer_enable(peers[5]), NVME_SC_SUCCESS);
    for (int i = 0; i < 6; i++)
        if (peers[i] != NULL)
            peer_free(&peers[i]);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_address_does_not_take_all_places),
        cmocka_unit_test(io_queues_need_no_place),
        cmocka_unit_test(discovery_does_not_count_to_a_host),
        cmocka_unit_test(discovery_of_strangers_ends_in_time),
        cmocka_unit_test(strangers_have_a_part_of_the_connections_for_discovery),
    };

    return cmocka_run_group_tests_name("nvmf target stranger", tests, setup, teardown);
}
