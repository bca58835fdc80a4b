/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See target_auth_rig.h.
 */
#include "nvmf/target/target_auth_rig.h"

#include <stdio.h>
#include <unistd.h>

#include "base/check.h"

uint32_t host_kato_ms;

/* ---- secrets -------------------------------------------------------------------------------- */

static char folder[64];
char auth_paths[KEYS][LIMIT_PATH_BYTES];
struct key_plain auth_keys[KEYS];

int auth_setup(void **state)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/icms-auth-XXXXXX");
    check(mkdtemp(folder) != NULL);
    for (int i = 0; i < KEYS; i++) {
        char text[KEY_TEXT_BYTES_MAX];
        size_t bytes;

        auth_keys[i].hash = (enum key_hash)(i % 4);
        auth_keys[i].bytes = key_hash_bytes(auth_keys[i].hash);
        if (i == KEY_NONE)
            auth_keys[i] = (struct key_plain){.hash = KEY_HASH_SHA256, .bytes = 32};
        else
            secret_random(auth_keys[i].key, auth_keys[i].bytes);
        (void)snprintf(auth_paths[i], sizeof(auth_paths[i]), "%s/key%d", folder, i);
        bytes = key_text_make(KEY_TEXT_DHCHAP, &auth_keys[i], text);
        check(secret_write(auth_paths[i], text, bytes, NULL) == ICMS_OK);
    }
    return 0;
}

int auth_teardown(void **state)
{
    for (int i = 0; i < KEYS; i++)
        (void)unlink(auth_paths[i]);
    return rmdir(folder);
}

uint8_t only_hash, only_group = DHCHAP_2048;

void with_auth(struct nvmf_target_opts *opts)
{
    static struct nvmf_target_host hosts[2];
    static char other[1][LIMIT_PATH_BYTES];

    (void)snprintf(hosts[0].nqn, sizeof(hosts[0].nqn), HOST);
    hosts[0].require = REQUIRE_CHAP;
    hosts[0].secrets = (const char(*)[LIMIT_PATH_BYTES])auth_paths;
    hosts[0].secret_count = 2;
    hosts[0].controller_secret = auth_paths[KEY_CTRL];
    (void)snprintf(hosts[1].nqn, sizeof(hosts[1].nqn), OTHER);
    memcpy(other[0], auth_paths[KEY_OTHER], sizeof(other[0]));
    hosts[1].require = REQUIRE_CHAP;
    hosts[1].secrets = (const char(*)[LIMIT_PATH_BYTES])other;
    hosts[1].secret_count = 1;
    opts->hosts = hosts;
    opts->host_count = 2;
    opts->require = REQUIRE_CHAP;
    opts->header_timeout_ms = AUTH_MS;
    opts->connections_max = 128;
    if (only_hash != 0) {
        opts->auth_hashes[0] = only_hash;
        opts->auth_hash_count = 1;
    }
    opts->auth_groups[0] = only_group;
    opts->auth_group_count = 1;
}

/* ---- a conversation ------------------------------------------------------------------------- */

uint16_t talk_send(struct talk *talk, const void *data, uint32_t bytes)
{
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_auth_cmd_encode(true, bytes, &sqe);
    return peer_command(talk->peer, &sqe, data, bytes, NULL, NULL, &cqe) ? cqe.status : UINT16_MAX;
}

uint16_t talk_send_msg(struct talk *talk, const struct nvme_auth_msg *msg)
{
    uint8_t out[NVME_AUTH_BYTES_MAX];

    return talk_send(talk, out, (uint32_t)nvme_auth_encode(msg, out));
}

uint16_t talk_receive(struct talk *talk, struct nvme_auth_msg *out_msg)
{
    uint32_t bytes = sizeof(talk->in);
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    memset(out_msg, 0, sizeof(*out_msg));
    nvme_auth_cmd_encode(false, bytes, &sqe);
    if (!peer_command(talk->peer, &sqe, NULL, 0, talk->in, &bytes, &cqe))
        return UINT16_MAX;
    if (cqe.status == NVME_SC_SUCCESS)
        assert_int_equal(nvme_auth_decode(talk->in, bytes, out_msg), ICMS_OK);
    return cqe.status;
}

struct nvme_auth_msg talk_negotiation(const struct talk *talk)
{
    struct nvme_auth_msg msg = {.id = NVME_AUTH_NEGOTIATE,
                                .t_id = talk->t_id,
                                .hash_count = 3,
                                .hashes = {1, 2, 3},
                                .group_count = 6,
                                .groups = {0, 1, 2, 3, 4, 5}};

    return msg;
}

void talk_challenge(struct talk *talk)
{
    struct nvme_auth_msg msg = talk_negotiation(talk);

    assert_int_equal(talk_send_msg(talk, &msg), NVME_SC_SUCCESS);
    assert_int_equal(talk_receive(talk, &talk->challenge), NVME_SC_SUCCESS);
    assert_int_equal(talk->challenge.id, NVME_AUTH_CHALLENGE);
    assert_int_equal(talk->challenge.t_id, talk->t_id);
    assert_int_equal(talk->challenge.dh_bytes, dhchap_group_bytes(talk->challenge.group));
    assert_int_equal(talk->challenge.value_bytes, dhchap_hash_bytes(talk->challenge.hash));
    assert_int_not_equal(talk->challenge.seqnum, 0);
}

static struct dhchap_question talk_question(struct talk *talk, const uint8_t *challenge,
                                            uint32_t seqnum)
{
    bool has_group = talk->challenge.group != DHCHAP_NONE;
    struct dhchap_question question = {
        .hash = (enum key_hash)talk->challenge.hash,
        .t_id = talk->t_id,
        .seqnum = seqnum,
        .challenge = challenge,
        .shared = has_group ? talk->shared : NULL,
        .shared_bytes = talk->challenge.dh_bytes,
        .hostnqn = talk->host != NULL ? talk->host : talk->peer->host,
        .subnqn = SUB,
    };

    return question;
}

struct nvme_auth_msg talk_reply(struct talk *talk, const struct key_plain *key, bool is_mutual)
{
    enum dhchap_group group = (enum dhchap_group)talk->challenge.group;
    struct dhchap_question question;
    struct nvme_auth_msg msg = {.id = NVME_AUTH_REPLY,
                                .t_id = talk->t_id,
                                .value_bytes = talk->challenge.value_bytes,
                                .value = talk->response,
                                .challenge = is_mutual ? talk->ours : NULL,
                                .seqnum = is_mutual ? 77 : 0,
                                .dh_bytes = talk->challenge.dh_bytes,
                                .dh = talk->public};

    memset(talk->private, 0x5a, sizeof(talk->private));
    memset(talk->ours, 0xc2, sizeof(talk->ours));
    if (group != DHCHAP_NONE) {
        assert_int_equal(dhchap_public(group, talk->private, talk->public), ICMS_OK);
        assert_int_equal(dhchap_shared(group, talk->private, talk->challenge.dh, talk->shared),
                         ICMS_OK);
    }
    question = talk_question(talk, talk->challenge.value, talk->challenge.seqnum);
    assert_int_equal(dhchap_response(key, &question, talk->response), ICMS_OK);
    return msg;
}

bool talk_all(struct talk *talk, const struct key_plain *key, bool is_mutual)
{
    struct nvme_auth_msg msg, answer;

    talk_challenge(talk);
    msg = talk_reply(talk, key, is_mutual);
    assert_int_equal(talk_send_msg(talk, &msg), NVME_SC_SUCCESS);
    assert_int_equal(talk_receive(talk, &answer), NVME_SC_SUCCESS);
    assert_int_equal(answer.t_id, talk->t_id);
    if (answer.id == NVME_AUTH_FAILURE1) {
        assert_int_equal(answer.reason, 1);
        assert_int_equal(answer.why, NVME_AUTH_WHY_FAILED);
        return false;
    }
    assert_int_equal(answer.id, NVME_AUTH_SUCCESS1);
    assert_int_equal(answer.value != NULL, is_mutual);
    assert_int_equal(answer.value_bytes, talk->challenge.value_bytes);
    if (is_mutual) {
        struct dhchap_question question = talk_question(talk, talk->ours, 77);
        uint8_t want[DHCHAP_DIGEST_BYTES_MAX];

        question.is_target = true;
        assert_int_equal(dhchap_response(&auth_keys[KEY_CTRL], &question, want), ICMS_OK);
        assert_memory_equal(answer.value, want, answer.value_bytes);
        msg = (struct nvme_auth_msg){.id = NVME_AUTH_SUCCESS2, .t_id = talk->t_id};
        assert_int_equal(talk_send_msg(talk, &msg), NVME_SC_SUCCESS);
    }
    return true;
}

struct talk talk_new(struct rig *rig, const struct peer *admin, uint16_t qid, const char *host)
{
    struct talk talk = {.peer = rig_peer(rig), .t_id = (uint16_t)(0x100 + qid)};
    struct nvme_cqe cqe;

    (void)snprintf(talk.peer->host, sizeof(talk.peer->host), "%s", host);
    if (admin != NULL)
        talk.peer->cntlid = admin->cntlid;
    talk.peer->kato_ms = host_kato_ms;
    assert_true(peer_hello(talk.peer, 0));
    assert_true(peer_connect(talk.peer, qid, &cqe));
    assert_int_equal(cqe.dw0 & ~0xffffu, NVME_CONNECT_ATR);
    return talk;
}

enum nvmf_target_auth_result event_last(struct rig *rig, const char *host)
{
    struct nvmf_target_auth auth = {.result = NVMF_TARGET_AUTH_PASSED}, next;
    uint64_t missed;
    bool is_any = false;

    while (nvmf_target_auth_take(rig->target, &next, &missed)) {
        auth = next;
        is_any = true;
    }
    assert_true(is_any);
    assert_string_equal(auth.hostnqn, host);
    assert_int_not_equal(auth.peer.host[0], 0);
    return auth.result;
}
