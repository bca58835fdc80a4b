/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Secrets that are replaced while hosts are connected: what they proved ends, and nothing else.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/check.h"
#include "nvmf/target/target_auth_rig.h"

static void key_file(int which, const struct key_plain *key)
{
    char text[KEY_TEXT_BYTES_MAX];
    size_t bytes = key_text_make(KEY_TEXT_DHCHAP, key, text);

    check(unlink(auth_paths[which]) == 0 &&
          secret_write(auth_paths[which], text, bytes, NULL) == ICMS_OK);
}

/* What reading again said: of how many hosts there are others, and why the last one has not. */
struct said {
    uint32_t replaced, kept;
    char nqn[LIMIT_NQN_BYTES];
    char why[ERR_WHY_BYTES_MAX];
};

static void keys_said(void *arg, const char *hostnqn, const char *why)
{
    struct said *said = arg;

    said->replaced += why == NULL;
    said->kept += why != NULL;
    (void)snprintf(said->nqn, sizeof(said->nqn), "%s", hostnqn);
    (void)snprintf(said->why, sizeof(said->why), "%s", why != NULL ? why : "");
}

static struct said read_again(struct rig *rig)
{
    struct nvmf_target_opts opts;
    struct said said = {.replaced = 0};
    struct err_why why = {""};

    nvmf_target_opts_init(&opts);
    opts.nqn = SUB;
    with_auth(&opts);
    assert_int_equal(nvmf_target_keys_read_again(rig->target, &opts, keys_said, &said, &why),
                     ICMS_OK);
    rig_run(rig, 100);
    return said;
}

static struct key_plain key_fresh(void)
{
    struct key_plain key = {.hash = KEY_HASH_SHA256, .bytes = 32};

    secret_random(key.key, key.bytes);
    return key;
}

/* Two secrets of a host, of which one is replaced, in its own place or by the other one's. */
static void connections_end_with_the_secret_that_they_proved(void **state)
{
    struct rig *rig = rig_new(2, with_auth);
    struct talk lost = talk_new(rig, NULL, 0, HOST), stays = talk_new(rig, NULL, 0, HOST);
    struct talk other = talk_new(rig, NULL, 0, OTHER), again;
    struct key_plain fresh = key_fresh();
    struct nvme_cqe cqe;
    struct talk io;

    assert_true(talk_all(&lost, &auth_keys[KEY_OLD], false));
    assert_true(talk_all(&stays, &auth_keys[KEY_OLD], false));
    stays.t_id++;
    assert_true(talk_all(&stays, &auth_keys[KEY_HOST], true)); /* it authenticates once more */
    assert_true(talk_all(&other, &auth_keys[KEY_OTHER], false));
    assert_int_equal(peer_enable(stays.peer), NVME_SC_SUCCESS);
    io = talk_new(rig, stays.peer, 1, HOST);
    assert_true(talk_all(&io, &auth_keys[KEY_HOST], false));
    assert_int_equal(read_again(rig).replaced, 0);
    assert_int_equal(peer_enable(lost.peer), NVME_SC_SUCCESS);
    (void)event_last(rig, HOST);

    key_file(KEY_OLD, &fresh);
    assert_int_equal(read_again(rig).replaced, 1);
    assert_true(peer_closed(lost.peer));
    assert_int_equal(event_last(rig, HOST), NVMF_TARGET_AUTH_REPLACED);
    assert_int_equal(peer_store(io.peer, 1, "key", "value", 5, 0, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_enable(other.peer), NVME_SC_SUCCESS);
    again = talk_new(rig, NULL, 0, HOST);
    assert_false(talk_all(&again, &auth_keys[KEY_OLD], false));
    peer_free(&again.peer);
    again = talk_new(rig, NULL, 0, HOST);
    assert_true(talk_all(&again, &fresh, false));

    key_file(KEY_HOST, &fresh); /* the new one in both places, as a rotation ends */
    assert_int_equal(read_again(rig).replaced, 1);
    assert_int_equal(peer_enable(again.peer), NVME_SC_SUCCESS);
    assert_true(peer_closed(stays.peer));
    assert_true(peer_closed(io.peer));
    key_file(KEY_HOST, &auth_keys[KEY_HOST]);
    key_file(KEY_OLD, &auth_keys[KEY_OLD]);
    peer_free(&lost.peer);
    peer_free(&stays.peer);
    peer_free(&io.peer);
    peer_free(&other.peer);
    peer_free(&again.peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Between the target's answer and the host's: the response was right, and is not any more. */
static void a_secret_that_is_replaced_meanwhile_passes_nobody(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct talk talk = talk_new(rig, NULL, 0, HOST);
    struct key_plain fresh = key_fresh();
    struct nvme_auth_msg msg, answer;

    talk_challenge(&talk);
    msg = talk_reply(&talk, &auth_keys[KEY_OLD], true);
    assert_int_equal(talk_send_msg(&talk, &msg), NVME_SC_SUCCESS);
    assert_int_equal(talk_receive(&talk, &answer), NVME_SC_SUCCESS);
    assert_int_equal(answer.id, NVME_AUTH_SUCCESS1);
    key_file(KEY_OLD, &fresh);
    assert_int_equal(read_again(rig).replaced, 1);
    msg = (struct nvme_auth_msg){.id = NVME_AUTH_SUCCESS2, .t_id = talk.t_id};
    (void)talk_send_msg(&talk, &msg);
    assert_true(peer_closed(talk.peer));
    assert_int_equal(event_last(rig, HOST), NVMF_TARGET_AUTH_WRONG);
    key_file(KEY_OLD, &auth_keys[KEY_OLD]);
    peer_free(&talk.peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* As at the start: who knows how the target proves itself to another host could be this one. */
static void secrets_that_are_read_again_stay_apart(void **state)
{
    struct rig *rig = rig_new(1, with_auth);
    struct talk talk = talk_new(rig, NULL, 0, OTHER);
    struct key_plain fresh = key_fresh();
    struct said said;

    assert_true(talk_all(&talk, &auth_keys[KEY_OTHER], false));
    key_file(KEY_OTHER, &auth_keys[KEY_CTRL]); /* HOST's controller_secret */
    said = read_again(rig);
    assert_int_equal(said.replaced, 0);
    assert_int_equal(said.kept, 1);
    assert_string_equal(said.nqn, OTHER);
    assert_non_null(strstr(said.why, "could pass for it"));
    assert_int_equal(peer_enable(talk.peer), NVME_SC_SUCCESS);
    key_file(KEY_OTHER, &auth_keys[KEY_OTHER]);
    key_file(KEY_CTRL, &auth_keys[KEY_OTHER]); /* and the other way round: HOST keeps its own */
    said = read_again(rig);
    assert_int_equal(said.replaced, 0);
    assert_int_equal(said.kept, 1);
    assert_string_equal(said.nqn, HOST);
    key_file(KEY_OTHER,
             &auth_keys[KEY_CTRL]); /* they change places: nobody is mistaken for another */
    key_file(KEY_CTRL, &fresh);
    said = read_again(rig);
    assert_int_equal(said.replaced, 2);
    assert_int_equal(said.kept, 0);
    assert_true(peer_closed(talk.peer));
    key_file(KEY_OTHER, &auth_keys[KEY_OTHER]);
    key_file(KEY_CTRL, &auth_keys[KEY_CTRL]);
    peer_free(&talk.peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_end_with_the_secret_that_they_proved),
        cmocka_unit_test(a_secret_that_is_replaced_meanwhile_passes_nobody),
        cmocka_unit_test(secrets_that_are_read_again_stay_apart),
    };

    return cmocka_run_group_tests_name("nvmf target secrets replaced", tests, auth_setup,
                                       auth_teardown);
}
