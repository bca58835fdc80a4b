/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Authentication, seen by a host that is scripted message by message: the right one passes, and
 * nothing else reaches a namespace, on any queue pair, whatever it sends in whatever order.
 */
#include <stdio.h>

#include "nvmf/target/target_auth_rig.h"
#include "nvmf/target/target_int.h"

#define NOBODY "nqn.2026-01.io.icms:nobody"

/* ---- what passes ---------------------------------------------------------------------------- */

static void the_right_secret_passes_on_each_queue_pair(void **state)
{
    for (int mutual = 0; mutual < 2; mutual++) {
        struct rig *rig = rig_new(2, with_auth);
        struct talk admin = talk_new(rig, NULL, 0, HOST), io;
        struct nvmf_target_connected *hosts = calloc(NVMF_TARGET_CONNECTED, sizeof(*hosts));
        struct nvmf_target_stats stats;
        struct nvme_cqe cqe;
        uint32_t more;

        assert_int_equal(peer_enable(admin.peer), NVME_SC_AUTH_REQUIRED);
        assert_int_equal(nvmf_target_connected(rig->target, 0, hosts, &more),
                         0); /* it may be anyone */
        assert_true(talk_all(&admin, &auth_keys[KEY_HOST], mutual != 0));
        assert_int_equal(event_last(rig, HOST),
                         mutual ? NVMF_TARGET_AUTH_MUTUAL : NVMF_TARGET_AUTH_PASSED);
        assert_int_equal(peer_enable(admin.peer), NVME_SC_SUCCESS);
        io = talk_new(rig, admin.peer, 1, HOST);
        assert_int_equal(peer_store(io.peer, 1, "key", "value", 5, 0, &cqe), NVME_SC_AUTH_REQUIRED);
        assert_int_equal(rig->executed, 0);
        assert_true(talk_all(&io, &auth_keys[KEY_OLD], mutual != 0)); /* the other of its secrets */
        assert_int_equal(peer_store(io.peer, 1, "key", "value", 5, 0, &cqe), NVME_SC_SUCCESS);
        assert_int_equal(peer_exist(io.peer, 1, "key", &cqe), NVME_SC_SUCCESS);
        rig_run(rig, 3 * AUTH_MS); /* the time to authenticate is over: it did */
        assert_int_equal(peer_exist(io.peer, 1, "key", &cqe), NVME_SC_SUCCESS);
        assert_int_equal(nvmf_target_connected(rig->target, 0, hosts, &more), 1);
        assert_string_equal(hosts[0].hostnqn, HOST);
        assert_int_equal(hosts[0].proven, REQUIRE_CHAP);
        assert_int_equal(hosts[0].connections, 2);
        free(hosts);
        rig_stats(rig, &stats);
        assert_int_equal(stats.auths_passed, 2);
        assert_int_equal(stats.auths_failed, 0);
        assert_int_equal(stats.auths_wanted, 2);
        peer_free(&io.peer);
        peer_free(&admin.peer);
        rig_expect_clean(rig);
        rig_free(&rig);
    }
}

static void every_hash_and_group_passes(void **state)
{
    for (uint8_t hash = 1; hash < DHCHAP_HASHES; hash++)
        for (uint8_t group = 0; group < DHCHAP_GROUPS; group++) {
            struct rig *rig;
            struct talk talk;

            only_hash = hash;
            only_group = group;
            rig = rig_new(1, with_auth);
            talk = talk_new(rig, NULL, 0, HOST);
            assert_true(talk_all(&talk, &auth_keys[KEY_HOST], (hash + group) % 2 != 0));
            assert_int_equal(talk.challenge.hash, hash);
            assert_int_equal(talk.challenge.group, group);
            assert_int_equal(peer_enable(talk.peer), NVME_SC_SUCCESS);
            peer_free(&talk.peer);
            rig_free(&rig);
        }
    only_hash = 0;
    only_group = DHCHAP_2048;
}

/* Again and again on a queue pair that works; a wrong answer then ends it. */
static void a_host_may_authenticate_again_and_must_not_fail(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct talk talk = talk_new(rig, NULL, 0, HOST);

    for (int i = 0; i < 3; i++) {
        talk.t_id++;
        assert_true(talk_all(&talk, &auth_keys[KEY_HOST], i == 1));
        assert_int_equal(peer_enable(talk.peer), NVME_SC_SUCCESS);
    }
    talk_challenge(&talk); /* meanwhile it stays what it is */
    assert_int_equal(peer_enable(talk.peer), NVME_SC_SUCCESS);
    peer_free(&talk.peer);
    talk = talk_new(rig, NULL, 0, HOST);
    assert_true(talk_all(&talk, &auth_keys[KEY_HOST], false));
    assert_false(talk_all(&talk, &auth_keys[KEY_OTHER], false));
    assert_true(peer_closed(talk.peer));
    peer_free(&talk.peer);
    rig_free(&rig);
}

/* ---- what does not -------------------------------------------------------------------------- */

/* Whoever it is and whatever is wrong: the same messages, the same bytes but for what is random. */
static void wrong_secrets_and_unknown_hosts_look_alike(void **state)
{
    static const struct {
        const char *host;
        int key;
        bool is_mutual;
        enum nvmf_target_auth_result result;
    } bad[] = {
        {HOST, KEY_OTHER, false, NVMF_TARGET_AUTH_WRONG},
        {HOST, KEY_CTRL, false, NVMF_TARGET_AUTH_WRONG}, /* our own, turned around */
        {HOST, KEY_OTHER, true, NVMF_TARGET_AUTH_WRONG},
        {NOBODY, KEY_NONE, false, NVMF_TARGET_AUTH_UNKNOWN}, /* all zeros */
        {HOST, KEY_NONE, false, NVMF_TARGET_AUTH_WRONG},
        {NOBODY, KEY_HOST, false, NVMF_TARGET_AUTH_UNKNOWN},
        {NOBODY, KEY_HOST, true, NVMF_TARGET_AUTH_UNKNOWN},
        {OTHER, KEY_HOST, false, NVMF_TARGET_AUTH_WRONG},
        {OTHER, KEY_OTHER, true, NVMF_TARGET_AUTH_NO_ANSWER},
    };
    struct rig *rig = rig_new(1, with_auth);
    struct nvmf_target_stats stats;

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct talk talk = talk_new(rig, NULL, 0, bad[i].host);

        assert_false(talk_all(&talk, &auth_keys[bad[i].key], bad[i].is_mutual));
        assert_true(peer_closed(talk.peer));
        assert_int_equal(event_last(rig, bad[i].host), bad[i].result);
        peer_free(&talk.peer);
    }
    rig_stats(rig, &stats);
    assert_int_equal(stats.auths_failed, sizeof(bad) / sizeof(*bad));
    assert_int_equal(stats.auths_passed, 0);
    assert_int_equal(rig->executed, 0);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* The key of a host that says it is another one. */
static void a_response_for_another_name_fails(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct talk talk = talk_new(rig, NULL, 0, HOST);

    talk.host = OTHER;
    assert_false(talk_all(&talk, &auth_keys[KEY_HOST], false));
    peer_free(&talk.peer);
    rig_free(&rig);
}

/* Every command that there is, on the admin queue and on an I/O queue of a controller that is
 * enabled: nothing reaches the owner, and nothing is told. */
static void nothing_but_authentication_is_served_before(void **state)
{
    struct rig *rig = rig_new(2, with_auth);
    struct talk admin = talk_new(rig, NULL, 0, HOST), bare = talk_new(rig, NULL, 0, HOST), io;
    struct peer *peers[2];

    assert_true(talk_all(&admin, &auth_keys[KEY_HOST], false));
    assert_int_equal(peer_enable(admin.peer), NVME_SC_SUCCESS);
    io = talk_new(rig, admin.peer, 1, HOST);
    peers[0] = bare.peer;
    peers[1] = io.peer;
    rig_put(rig, 0, "key", 100);
    for (size_t p = 0; p < 2; p++)
        for (unsigned opcode = 0; opcode < 256; opcode++) {
            struct nvme_sqe_wf sqe = {.opcode = (uint8_t)opcode, .flags = NVME_SQE_FLAGS_SGL};
            uint8_t data[4096];
            uint32_t bytes = sizeof(data);
            struct nvme_cqe cqe;

            sqe.nsid.byte[0] = opcode == NVME_FABRICS ? NVME_FCTYPE_PROPERTY_GET : 1;
            assert_true(peer_command(peers[p], &sqe, NULL, 0, data, &bytes, &cqe));
            assert_int_equal(cqe.status, NVME_SC_AUTH_REQUIRED);
            assert_int_equal(bytes, 0);
            memset(data, 0, sizeof(data)); /* with data in the capsule as well */
            assert_true(peer_command(peers[p], &sqe, data, 512, NULL, NULL, &cqe));
            assert_int_equal(cqe.status, NVME_SC_AUTH_REQUIRED);
        }
    for (unsigned type = 0; type < 256; type++) {
        struct nvme_sqe_wf sqe = {.opcode = NVME_FABRICS, .flags = NVME_SQE_FLAGS_SGL};
        struct nvme_cqe cqe;

        if (type == NVME_FCTYPE_AUTH_SEND || type == NVME_FCTYPE_AUTH_RECEIVE)
            continue;
        sqe.nsid.byte[0] = (uint8_t)type;
        assert_true(peer_plain(bare.peer, &sqe, &cqe));
        assert_int_not_equal(cqe.status, NVME_SC_SUCCESS);
    }
    assert_int_equal(rig->executed, 0);
    peer_free(&io.peer);
    peer_free(&bare.peer);
    peer_free(&admin.peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* An I/O queue needs a controller that is enabled, which takes an admin queue that passed. */
static void an_io_queue_of_a_stranger_finds_no_controller(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct talk admin = talk_new(rig, NULL, 0, HOST);
    struct peer *io = rig_peer(rig);
    struct nvme_cqe cqe;

    io->cntlid = admin.peer->cntlid;
    assert_true(peer_hello(io, 0));
    assert_false(peer_connect(io, 1, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SEQUENCE);
    peer_free(&io);
    peer_free(&admin.peer);
    rig_free(&rig);
}

/* ---- wrong messages ------------------------------------------------------------------------- */

static void failure_is(struct rig *rig, struct talk *talk, enum nvme_auth_why why)
{
    struct nvme_auth_msg msg;

    assert_int_equal(talk_receive(talk, &msg), NVME_SC_SUCCESS);
    assert_int_equal(msg.id, NVME_AUTH_FAILURE1);
    assert_int_equal(msg.why, why);
    assert_true(peer_closed(talk->peer));
    peer_free(&talk->peer);
    assert_int_equal(rig->executed, 0);
}

static void messages_out_of_order_fail(void **state)
{
    static const enum nvme_auth_id ids[] = {NVME_AUTH_REPLY,    NVME_AUTH_SUCCESS2,
                                            NVME_AUTH_SUCCESS1, NVME_AUTH_CHALLENGE,
                                            NVME_AUTH_FAILURE1, NVME_AUTH_FAILURE2};
    struct rig *rig = rig_new(1, with_auth);
    uint8_t value[64] = {1};
    struct nvme_auth_msg msg;
    struct talk talk;

    for (size_t i = 0; i < sizeof(ids) / sizeof(*ids); i++) { /* as the first one */
        msg = (struct nvme_auth_msg){.id = ids[i], .value_bytes = 32, .value = value};
        talk = talk_new(rig, NULL, 0, HOST);
        assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
        failure_is(rig, &talk, NVME_AUTH_WHY_MESSAGE);
    }
    talk = talk_new(rig, NULL, 0, HOST); /* a second negotiation */
    talk_challenge(&talk);
    msg = talk_negotiation(&talk);
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    failure_is(rig, &talk, NVME_AUTH_WHY_MESSAGE);
    talk = talk_new(rig, NULL, 0, HOST); /* the same before its challenge was taken */
    msg = talk_negotiation(&talk);
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    failure_is(rig, &talk, NVME_AUTH_WHY_MESSAGE);
    talk = talk_new(rig, NULL, 0, HOST); /* SUCCESS2 instead of a reply */
    talk_challenge(&talk);
    msg = (struct nvme_auth_msg){.id = NVME_AUTH_SUCCESS2, .t_id = talk.t_id};
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    failure_is(rig, &talk, NVME_AUTH_WHY_MESSAGE);
    talk = talk_new(rig, NULL, 0, HOST); /* the challenge is given once */
    talk_challenge(&talk);
    failure_is(rig, &talk, NVME_AUTH_WHY_MESSAGE);
    talk = talk_new(rig, NULL, 0, HOST); /* nothing to receive */
    assert_int_equal(talk_receive(&talk, &msg), NVME_SC_SEQUENCE);
    peer_free(&talk.peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* A right reply of another conversation, or to another transaction. */
static void replayed_replies_fail(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct talk first = talk_new(rig, NULL, 0, HOST), talk = talk_new(rig, NULL, 0, HOST);
    uint8_t kept[NVME_AUTH_BYTES_MAX];
    struct nvme_auth_msg msg;
    uint32_t bytes;

    talk_challenge(&first);
    msg = talk_reply(&first, &auth_keys[KEY_HOST], false);
    bytes = (uint32_t)nvme_auth_encode(&msg, kept);
    assert_int_equal(talk_send(&first, kept, bytes), NVME_SC_SUCCESS);
    assert_int_equal(talk_receive(&first, &msg), NVME_SC_SUCCESS);
    assert_int_equal(msg.id, NVME_AUTH_SUCCESS1);
    assert_int_equal(talk_send(&first, kept, bytes), NVME_SC_SUCCESS); /* once more */
    assert_int_equal(talk_receive(&first, &msg), NVME_SC_SUCCESS);
    assert_int_equal(msg.id, NVME_AUTH_FAILURE1);
    peer_free(&first.peer);
    talk_challenge(&talk);
    assert_int_equal(talk_send(&talk, kept, bytes), NVME_SC_SUCCESS);
    failure_is(rig, &talk, NVME_AUTH_WHY_FAILED);
    talk = talk_new(rig, NULL, 0, HOST);
    talk_challenge(&talk);
    msg = talk_reply(&talk, &auth_keys[KEY_HOST], false);
    msg.t_id++;
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    failure_is(rig, &talk, NVME_AUTH_WHY_PAYLOAD);
    rig_free(&rig);
}

static void values_that_do_not_fit_fail(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    uint8_t value[DHCHAP_VALUE_BYTES_MAX] = {0};

    for (int i = 0; i < 8; i++) {
        struct talk talk = talk_new(rig, NULL, 0, HOST);
        struct nvme_auth_msg msg;

        talk_challenge(&talk);
        msg = talk_reply(&talk, &auth_keys[KEY_HOST], i == 7);
        memset(value, 0, sizeof(value));
        switch (i) {
        case 0: /* a DH value of 0 */
            msg.dh = value;
            break;
        case 1: /* 1 */
            value[msg.dh_bytes - 1] = 1;
            msg.dh = value;
            break;
        case 2: /* above p */
            memset(value, 0xff, sizeof(value));
            msg.dh = value;
            break;
        case 3: /* none */
            msg.dh_bytes = 0;
            break;
        case 4: /* of another group */
            msg.dh_bytes = 384;
            msg.dh = value;
            break;
        case 5: /* a digest of another hash */
            msg.value_bytes = msg.value_bytes == 32 ? 48 : 32;
            break;
        case 6: /* a digest that is too long for it */
            msg.value_bytes = msg.value_bytes == 64 ? 48 : 64;
            break;
        default: /* the target's own challenge, to be answered by itself */
            msg.challenge = talk.challenge.value;
        }
        assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
        failure_is(rig, &talk, NVME_AUTH_WHY_PAYLOAD);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void offers_without_anything_in_common_fail(void **state)
{
    static const enum nvme_auth_why whys[] = {NVME_AUTH_WHY_HASH, NVME_AUTH_WHY_GROUP,
                                              NVME_AUTH_WHY_PROTOCOL, NVME_AUTH_WHY_CONCAT};
    struct rig *rig = rig_new(1, with_auth);

    for (int i = 0; i < 4; i++) {
        struct talk talk = talk_new(rig, NULL, 0, HOST);
        struct nvme_auth_msg msg = talk_negotiation(&talk);

        if (i == 0)
            memset(msg.hashes, 9, sizeof(msg.hashes));
        else if (i == 1)
            memset(msg.groups, 5, sizeof(msg.groups)); /* only ffdhe2048 is allowed */
        else if (i == 2)
            msg.hash_count = 0;
        else
            msg.concat = 1;
        assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
        failure_is(rig, &talk, whys[i]);
    }
    rig_free(&rig);
}

/* Every message cut at every length, and commands whose lengths lie. */
static void truncated_messages_fail(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    for (uint32_t cut = 1; cut < 72; cut += 7) {
        struct talk talk = talk_new(rig, NULL, 0, HOST);
        struct nvme_auth_msg msg = talk_negotiation(&talk);
        uint8_t out[NVME_AUTH_BYTES_MAX];

        (void)nvme_auth_encode(&msg, out);
        assert_int_equal(talk_send(&talk, out, cut), NVME_SC_SUCCESS);
        failure_is(rig, &talk, NVME_AUTH_WHY_PAYLOAD);
    }
    for (int i = 0; i < 4; i++) {
        struct talk talk = talk_new(rig, NULL, 0, HOST);
        struct nvme_auth_msg msg = talk_negotiation(&talk);
        uint8_t out[8192] = {0};

        (void)nvme_auth_encode(&msg, out);
        nvme_auth_cmd_encode(true, i == 0 ? 0 : i == 1 ? 73 : i == 3 ? 8192 : 72, &sqe);
        if (i == 2)
            sqe.cdw10.byte[3] = 1; /* another security protocol */
        assert_true(peer_command(talk.peer, &sqe, out, i == 3 ? 8192 : 72, NULL, NULL, &cqe));
        assert_int_equal(cqe.status, i == 0 || i == 2 ? NVME_SC_FIELD : NVME_SC_SGL_LENGTH);
        assert_true(talk_all(&talk, &auth_keys[KEY_HOST], false)); /* nothing happened */
        peer_free(&talk.peer);
    }
    for (int i = 0; i < 2; i++) { /* no room for the answer */
        struct talk talk = talk_new(rig, NULL, 0, HOST);
        struct nvme_auth_msg msg = talk_negotiation(&talk);
        uint32_t bytes = 100;

        assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
        nvme_auth_cmd_encode(false, i == 0 ? 100 : 4096, &sqe);
        assert_true(peer_command(talk.peer, &sqe, NULL, 0, talk.in, &bytes, &cqe));
        assert_int_equal(cqe.status, i == 0 ? NVME_SC_FIELD : NVME_SC_SGL_LENGTH);
        assert_int_equal(bytes, 0);
        peer_free(&talk.peer);
    }
    rig_free(&rig);
}

static void a_host_that_refuses_our_answer_is_closed(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct talk talk = talk_new(rig, NULL, 0, HOST);
    struct nvme_auth_msg msg, answer;

    talk_challenge(&talk);
    msg = talk_reply(&talk, &auth_keys[KEY_HOST], true);
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    assert_int_equal(talk_receive(&talk, &answer), NVME_SC_SUCCESS);
    assert_int_equal(peer_enable(talk.peer), NVME_SC_AUTH_REQUIRED); /* not before SUCCESS2 */
    msg =
        (struct nvme_auth_msg){.id = NVME_AUTH_FAILURE2, .t_id = talk.t_id, .reason = 1, .why = 1};
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    assert_true(peer_closed(talk.peer));
    assert_int_equal(event_last(rig, HOST), NVMF_TARGET_AUTH_REFUSED);
    peer_free(&talk.peer);
    rig_free(&rig);
}

/* ---- time and number ------------------------------------------------------------------------ */

/* At each step of the conversation: it has to be over within the header timeout, also the one of a
 * host that passed before. Nobody hears of a lost controller. */
static void half_an_authentication_is_not_kept(void **state)
{
    for (int step = 0; step < 5; step++) {
        struct rig *rig = rig_new(1, with_auth);
        struct talk talk = talk_new(rig, NULL, 0, HOST);
        struct nvmf_target_loss loss;
        struct nvme_auth_msg msg;
        uint64_t missed;

        if (step == 4)
            assert_true(talk_all(&talk, &auth_keys[KEY_HOST], false));
        if (step > 0) {
            msg = talk_negotiation(&talk);
            assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
        }
        if (step == 2 || step == 3)
            assert_int_equal(talk_receive(&talk, &talk.challenge), NVME_SC_SUCCESS);
        if (step == 3) {
            msg = talk_reply(&talk, &auth_keys[KEY_HOST], true);
            assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
            assert_int_equal(talk_receive(&talk, &msg), NVME_SC_SUCCESS);
        }
        talk.peer->timeout_ms = AUTH_MS + 1000;
        assert_true(peer_closed(talk.peer));
        assert_int_equal(event_last(rig, HOST), NVMF_TARGET_AUTH_TIMEOUT);
        assert_false(nvmf_target_loss_take(rig->target, &loss, &missed));
        peer_free(&talk.peer);
        rig_expect_clean(rig);
        rig_free(&rig);
    }
}

/* It may compute for longer than its keep-alive timeout, which begins when it has authenticated. */
static void a_host_that_authenticates_slowly_is_not_lost(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct nvmf_target_stats stats;
    struct nvme_auth_msg msg;
    struct talk talk;

    host_kato_ms = AUTH_MS / 8;
    talk = talk_new(rig, NULL, 0, HOST);
    host_kato_ms = 0;
    talk_challenge(&talk);
    rig_run(rig, AUTH_MS / 2);
    msg = talk_reply(&talk, &auth_keys[KEY_HOST], false);
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    assert_int_equal(talk_receive(&talk, &msg), NVME_SC_SUCCESS);
    assert_int_equal(event_last(rig, HOST), NVMF_TARGET_AUTH_PASSED);
    rig_stats(rig, &stats);
    assert_int_equal(stats.keepalive_timeouts, 0);
    talk.peer->timeout_ms = AUTH_MS / 2;
    assert_true(peer_closed(talk.peer)); /* now it is silent */
    rig_stats(rig, &stats);
    assert_int_equal(stats.keepalive_timeouts, 1);
    peer_free(&talk.peer);
    rig_free(&rig);
}

static void with_two_connections(struct nvmf_target_opts *opts)
{
    with_auth(opts);
    opts->host_connections_max = 2;
}

/* Who names a host and proves nothing takes no place of that host; who proves it does. */
static void half_connections_keep_no_host_out(void **state)
{
    struct rig *rig = rig_new(2, with_two_connections);
    struct talk half[4];
    struct nvme_auth_msg msg;
    struct nvme_cqe cqe;
    struct peer *more;

    for (int i = 0; i < 4; i++)
        half[i] = talk_new(rig, NULL, 0, HOST);
    assert_true(talk_all(&half[0], &auth_keys[KEY_HOST], false));
    assert_true(talk_all(&half[1], &auth_keys[KEY_HOST], true));
    assert_true(talk_all(&half[1], &auth_keys[KEY_HOST], true)); /* again: it counts once */
    rig_run(rig, 10);
    more = rig_peer(rig);
    (void)snprintf(more->host, sizeof(more->host), HOST);
    assert_true(peer_hello(more, 0));
    assert_false(peer_connect(more, 0, &cqe));
    assert_int_equal(cqe.status, NVME_SC_CONNECT_BUSY);
    talk_challenge(&half[2]); /* it came before there were two */
    msg = talk_reply(&half[2], &auth_keys[KEY_HOST], false);
    assert_int_equal(talk_send_msg(&half[2], &msg), NVME_SC_SUCCESS);
    assert_true(peer_closed(half[2].peer));
    peer_free(&half[1].peer);
    rig_run(rig, 10);
    assert_true(talk_all(&half[3], &auth_keys[KEY_HOST], false));
    assert_int_equal(peer_enable(half[3].peer), NVME_SC_SUCCESS);
    assert_int_equal(peer_enable(half[0].peer), NVME_SC_SUCCESS);
    peer_free(&more);
    peer_free(&half[0].peer);
    peer_free(&half[2].peer);
    peer_free(&half[3].peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* More strangers than the worker takes at a time, who leave at once or stay: each of them is
 * answered, and a host that comes then passes. */
static void a_storm_of_strangers_ends(void **state)
{
    enum { STRANGERS = 99 }; /* more than may wait: the last ones are told to try again */
    struct rig *rig = rig_new(1, with_auth);
    uint32_t busy = 0;
    struct talk talks[STRANGERS], host;
    struct nvmf_target_auth auth;
    struct nvmf_target_stats stats;
    uint64_t missed = 0;

    for (int i = 0; i < STRANGERS; i++) {
        char name[LIMIT_NQN_BYTES];

        (void)snprintf(name, sizeof(name), NOBODY "%d", i);
        talks[i] = talk_new(rig, NULL, 0, name);
    }
    for (int i = 0; i < STRANGERS; i++) {
        struct nvme_auth_msg msg;
        uint8_t out[NVME_AUTH_BYTES_MAX];
        union nvme_tcp_pdu pdu;
        struct nvme_sqe_wf sqe;
        struct nvme_sgl sgl = {.in_capsule = true};

        msg = talk_negotiation(&talks[i]);
        sgl.bytes = (uint32_t)nvme_auth_encode(&msg, out);
        nvme_auth_cmd_encode(true, sgl.bytes, &sqe);
        nvme_sgl_encode(&sgl, &sqe.sgl);
        nvme_tcp_cmd_encode(&pdu, &sqe);
        assert_true(peer_send_pdu(talks[i].peer, &pdu, out, sgl.bytes));
        if (i % 3 == 0)
            peer_free(&talks[i].peer);
    }
    host = talk_new(rig, NULL, 0, HOST);
    assert_true(talk_all(&host, &auth_keys[KEY_HOST], false));
    assert_int_equal(peer_enable(host.peer), NVME_SC_SUCCESS);
    for (int i = 0; i < STRANGERS; i++) {
        if (talks[i].peer != NULL) {
            talks[i].peer->timeout_ms = 2 * AUTH_MS;
            while (!peer_closed(talks[i].peer))
                ;
        }
        peer_free(&talks[i].peer);
    }
    assert_int_equal(peer_enable(host.peer), NVME_SC_SUCCESS);
    rig_stats(rig, &stats);
    assert_int_equal(stats.auths_passed, 1);
    assert_true(stats.auths_failed >= 2 * STRANGERS / 3);
    while (nvmf_target_auth_take(rig->target, &auth, &missed))
        busy += auth.result == NVMF_TARGET_AUTH_BUSY;
    assert_in_range(busy, 1, STRANGERS - 64);
    peer_free(&host.peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* A host that comes in while others fail without end is among what is told. */
static void failures_hide_no_pass(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct nvmf_target_auth auth = {.result = NVMF_TARGET_AUTH_WRONG};
    uint64_t missed = 0, sum = 0;
    uint32_t passed = 0, taken = 0;

    for (int i = 0; i < 300; i++) {
        auth.result = i % 100 == 99 ? NVMF_TARGET_AUTH_TLS : NVMF_TARGET_AUTH_WRONG;
        nvmft_auth_event(rig->target, &auth);
    }
    while (nvmf_target_auth_take(rig->target, &auth, &missed)) {
        passed += auth.result == NVMF_TARGET_AUTH_TLS;
        sum += missed;
        taken++;
    }
    assert_int_equal(passed, 3);
    assert_int_equal(taken + sum, 300);
    rig_free(&rig);
}

/* ---- policy --------------------------------------------------------------------------------- */

static void with_one_that_must(struct nvmf_target_opts *opts)
{
    with_auth(opts);
    opts->require = 0;
}

static void who_need_not_is_not_asked(void **state)
{
    struct rig *rig = rig_new(1, with_one_that_must);
    struct peer *peer = rig_peer(rig);
    struct talk talk;
    struct nvme_auth_msg msg;
    struct nvme_cqe cqe;

    (void)snprintf(peer->host, sizeof(peer->host), NOBODY);
    assert_true(peer_hello(peer, 0));
    assert_true(peer_connect(peer, 0, &cqe));
    assert_int_equal(cqe.dw0 & ~0xffffu, 0);
    assert_int_equal(peer_enable(peer), NVME_SC_SUCCESS);
    talk = (struct talk){.peer = peer};
    msg = talk_negotiation(&talk);
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_OPCODE); /* there is nothing to prove */
    assert_int_equal(talk_receive(&talk, &msg), NVME_SC_OPCODE);
    peer_free(&peer);
    talk = talk_new(rig, NULL, 0, HOST);
    assert_int_equal(peer_enable(talk.peer), NVME_SC_AUTH_REQUIRED);
    peer_free(&talk.peer);
    rig_free(&rig);
}

static void with_tls_of_others(struct nvmf_target_opts *opts)
{
    with_auth(opts);
    opts->require = REQUIRE_TLS;
}

/* Where hosts that are listed authenticate without TLS, one that is not is asked as they are: the
 * answer tells nobody which names are listed. */
static void a_stranger_without_tls_is_asked_like_a_listed_host(void **state)
{
    struct rig *rig = rig_new(1, with_tls_of_others);
    struct talk talk = talk_new(rig, NULL, 0, NOBODY);

    assert_false(talk_all(&talk, &auth_keys[KEY_HOST], false));
    assert_true(peer_closed(talk.peer));
    peer_free(&talk.peer);
    talk = talk_new(rig, NULL, 0, HOST);
    assert_true(talk_all(&talk, &auth_keys[KEY_HOST], false));
    assert_int_equal(peer_enable(talk.peer), NVME_SC_SUCCESS);
    peer_free(&talk.peer);
    rig_free(&rig);
}

static void with_a_volume_that_must(struct nvmf_target_opts *opts)
{
    with_one_that_must(opts);
    ((struct nvmf_target_ns *)(uintptr_t)opts->namespaces)[0].require = REQUIRE_CHAP;
}

/* A volume that asks for more than its target is not there for who gave less. */
static void a_volume_may_ask_for_more(void **state)
{
    struct rig *rig = rig_new(1, with_a_volume_that_must);
    struct peer *admin = rig_peer(rig), *io = rig_peer(rig);
    struct talk talk, queue;
    struct nvme_cqe cqe;

    (void)snprintf(admin->host, sizeof(admin->host), NOBODY);
    assert_true(peer_admin(admin, 0));
    assert_true(peer_io(io, admin, 1, 0));
    assert_int_equal(peer_store(io, 1, "key", "value", 5, 0, &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(peer_store(io, 99, "key", "value", 5, 0, &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(rig->executed, 0);
    peer_free(&io);
    peer_free(&admin);
    talk = talk_new(rig, NULL, 0, HOST);
    assert_true(talk_all(&talk, &auth_keys[KEY_HOST], false));
    assert_int_equal(peer_enable(talk.peer), NVME_SC_SUCCESS);
    queue = talk_new(rig, talk.peer, 1, HOST);
    assert_true(talk_all(&queue, &auth_keys[KEY_HOST], false));
    assert_int_equal(peer_store(queue.peer, 1, "key", "value", 5, 0, &cqe), NVME_SC_SUCCESS);
    peer_free(&queue.peer);
    peer_free(&talk.peer);
    rig_free(&rig);
}

static void kv_nothing(void *owner, struct nvmf_target_req *req)
{
    nvmf_target_req_done(req);
}

static uint64_t buffer_bytes_same(uint64_t value_bytes)
{
    return value_bytes;
}

static void secrets_that_cannot_be_used_are_refused_at_the_start(void **state)
{
    static const struct nvmf_target_ops ops = {.kv = kv_nothing, .buffer_bytes = buffer_bytes_same};
    struct nvmf_target_host host = {.nqn = HOST, .require = REQUIRE_CHAP};
    struct loop *loops[1];
    struct rig *rig = rig_new(1, NULL);
    struct nvmf_target_opts opts;
    struct nvmf_target *target = NULL;
    static char twice[2][LIMIT_PATH_BYTES];
    struct err_why why;

    nvmf_target_opts_init(&opts);
    loops[0] = rig->loops[0];
    opts.loops = loops;
    opts.loop_count = 1;
    opts.nqn = SUB;
    opts.hosts = &host;
    opts.host_count = 1;
    opts.ops = &ops;
    assert_int_equal(nvmf_target_new(&opts, &why, &target), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "has no secret"));
    (void)snprintf(twice[0], sizeof(twice[0]), "/nonexistent/key");
    host.secrets = (const char(*)[LIMIT_PATH_BYTES])twice;
    host.secret_count = 1;
    assert_int_equal(nvmf_target_new(&opts, &why, &target), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, "/nonexistent/key"));
    memcpy(twice[0], auth_paths[KEY_HOST], sizeof(twice[0]));
    host.controller_secret = auth_paths[KEY_HOST];
    assert_int_equal(nvmf_target_new(&opts, &why, &target), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "controller_secret"));
    assert_null(target);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_right_secret_passes_on_each_queue_pair),
        cmocka_unit_test(every_hash_and_group_passes),
        cmocka_unit_test(a_host_may_authenticate_again_and_must_not_fail),
        cmocka_unit_test(wrong_secrets_and_unknown_hosts_look_alike),
        cmocka_unit_test(a_response_for_another_name_fails),
        cmocka_unit_test(nothing_but_authentication_is_served_before),
        cmocka_unit_test(an_io_queue_of_a_stranger_finds_no_controller),
        cmocka_unit_test(messages_out_of_order_fail),
        cmocka_unit_test(replayed_replies_fail),
        cmocka_unit_test(values_that_do_not_fit_fail),
        cmocka_unit_test(offers_without_anything_in_common_fail),
        cmocka_unit_test(truncated_messages_fail),
        cmocka_unit_test(a_host_that_refuses_our_answer_is_closed),
        cmocka_unit_test(half_an_authentication_is_not_kept),
        cmocka_unit_test(a_host_that_authenticates_slowly_is_not_lost),
        cmocka_unit_test(half_connections_keep_no_host_out),
        cmocka_unit_test(a_storm_of_strangers_ends),
        cmocka_unit_test(failures_hide_no_pass),
        cmocka_unit_test(who_need_not_is_not_asked),
        cmocka_unit_test(a_stranger_without_tls_is_asked_like_a_listed_host),
        cmocka_unit_test(a_volume_may_ask_for_more),
        cmocka_unit_test(secrets_that_cannot_be_used_are_refused_at_the_start),
    };

    return cmocka_run_group_tests_name("nvmf target auth", tests, auth_setup, auth_teardown);
}
