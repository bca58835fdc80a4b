/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator and a target that asks for authentication without having a secret: whatever it
 * answers, the association does not come up when the host wants a proof, nothing is read past a
 * message, and the next attempt begins anew. Right conversations are in nvmf/auth_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/check.h"
#include "crypt/key_text.h"
#include "crypt/secret.h"
#include "nvmf/host/host_bed.h"

#define SECOND ((uint64_t)1000000000)

static struct secret *key, *controller_key; /* struct key_plain */

static int setup(void **state)
{
    struct key_plain *plain;

    check(secret_new(sizeof(*plain), NULL, &key) == ICMS_OK);
    plain = (struct key_plain *)(void *)secret_bytes(key);
    *plain = (struct key_plain){.hash = KEY_HASH_SHA256, .bytes = 32, .key = {1}};
    check(secret_new(sizeof(*plain), NULL, &controller_key) == ICMS_OK);
    plain = (struct key_plain *)(void *)secret_bytes(controller_key);
    *plain = (struct key_plain){.hash = KEY_HASH_NONE, .bytes = 32, .key = {2}};
    return 0;
}

static int teardown(void **state)
{
    secret_free(&key);
    secret_free(&controller_key);
    return 0;
}

/* One attempt after the other; is_mutual: the target has to prove itself. */
static struct bed *auth_bed(enum fake_auth auth, bool is_mutual)
{
    struct bed *bed = bed_new(0);
    struct nvmf_ctrl_opts opts;

    bed->fake->auth = auth;
    nvmf_ctrl_opts_init(&opts);
    opts.auth_key = key;
    opts.require = REQUIRE_CHAP;
    if (is_mutual)
        opts.auth_controller_key = controller_key;
    bed_ctrl(bed, &opts);
    for (int i = 0; i < 2; i++) {
        bed_open_within(bed, SECOND);
        bed_run(bed, 2 * SECOND);
    }
    return bed;
}

static void refused(enum fake_auth auth, bool is_mutual, icms_err err, const char *says)
{
    struct bed *bed = auth_bed(auth, is_mutual);

    if (bed->ups != 0 || bed->downs != 2 || bed->closes != 2 || bed->down_err != err ||
        strstr(bed->why, says) == NULL)
        fail_msg("%d: ups %u downs %u closes %u: %s: %s", auth, bed->ups, bed->downs, bed->closes,
                 icms_err_name(bed->down_err), bed->why);
    bed_free(bed);
}

static void a_target_that_lies_gets_no_association(void **state)
{
    static const struct {
        enum fake_auth auth;
        icms_err err;
        const char *says;
    } lies[] = {
        {FAKE_AUTH_CHANNEL, ICMS_AUTH, "secure channel"},
        {FAKE_AUTH_REFUSE, ICMS_AUTH, "refused the secret of host"},
        {FAKE_AUTH_NOTHING, ICMS_PROTOCOL, "makes no sense"},
        {FAKE_AUTH_CUT, ICMS_PROTOCOL, "makes no sense"},
        {FAKE_AUTH_TRANSACTION, ICMS_PROTOCOL, "makes no sense"},
        {FAKE_AUTH_HASH, ICMS_PROTOCOL, "not offered"},
        {FAKE_AUTH_LENGTH, ICMS_PROTOCOL, "not offered"},
        {FAKE_AUTH_GROUP, ICMS_PROTOCOL, "not offered"},
        {FAKE_AUTH_DH_LENGTH, ICMS_PROTOCOL, "not offered"},
        {FAKE_AUTH_DH_ZERO, ICMS_PROTOCOL, "Diffie-Hellman value"},
        {FAKE_AUTH_DH_LARGE, ICMS_PROTOCOL, "Diffie-Hellman value"},
        {FAKE_AUTH_SUCCESS_FIRST, ICMS_PROTOCOL, "out of order"},
        {FAKE_AUTH_CHALLENGE_TWICE, ICMS_PROTOCOL, "out of order"},
        {FAKE_AUTH_STATUS, ICMS_AUTH, "AUTH Send"},
    };

    for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++)
        for (int mutual = 0; mutual < 2; mutual++)
            refused(lies[i].auth, mutual != 0, lies[i].err, lies[i].says);
}

/* A response that the host cannot check proves nothing: only a controller_secret does. */
static void a_target_has_to_prove_itself_when_that_is_wanted(void **state)
{
    static const enum fake_auth lies[] = {FAKE_AUTH_BLIND, FAKE_AUTH_WRONG};

    for (size_t i = 0; i < 2; i++) {
        struct bed *bed = auth_bed(lies[i], true);

        assert_int_equal(bed->ups, 0);
        assert_int_equal(bed->down_err, ICMS_AUTH);
        assert_non_null(strstr(bed->why, "did not prove"));
        assert_int_equal(bed->fake->auth_failures, 2); /* it was told */
        assert_int_equal(nvmf_ctrl_stats(bed->ctrl)->auths, 0);
        bed_free(bed);
    }
}

static void a_target_that_does_not_answer_is_given_up_in_time(void **state)
{
    struct bed *bed = bed_new(0);
    struct nvmf_ctrl_opts opts;

    bed->fake->auth = FAKE_AUTH_BLIND;
    nvmf_ctrl_opts_init(&opts);
    opts.auth_key = key;
    bed_ctrl(bed, &opts);
    bed->fake->silent = true;
    bed_open_within(bed, SECOND);
    bed_run(bed, 2 * SECOND);
    assert_int_equal(bed->ups, 0);
    assert_int_equal(bed->down_err, ICMS_DEADLINE);
    assert_int_equal(bed->closes, 1);
    bed_free(bed);
}

/* A target that has too many hosts is asked again on the same queue pair, so often and no more. */
static void a_busy_target_is_asked_again(void **state)
{
    static const struct {
        uint32_t busy, left, ups;
    } tries[] = {{7, 0, 1}, {100, 92, 0}};

    for (size_t i = 0; i < sizeof(tries) / sizeof(*tries); i++) {
        struct bed *bed = bed_new(0);
        struct nvmf_ctrl_opts opts;

        bed->fake->auth = FAKE_AUTH_BUSY;
        bed->fake->auth_busy = tries[i].busy;
        nvmf_ctrl_opts_init(&opts);
        opts.auth_key = key;
        opts.require = REQUIRE_CHAP;
        bed_ctrl(bed, &opts);
        bed_open_within(bed, 2 * SECOND);
        bed_run(bed, 3 * SECOND);
        assert_int_equal(bed->ups, tries[i].ups);
        assert_int_equal(bed->fake->auth_busy, tries[i].left);
        if (tries[i].ups == 0) {
            assert_int_equal(bed->down_err, ICMS_BUSY);
            assert_non_null(strstr(bed->why, "too many hosts"));
        }
        bed_free(bed);
    }
}

/* The end comes while it waits to ask again. */
static void the_end_comes_between_tries(void **state)
{
    struct bed *bed = bed_new(0);
    struct nvmf_ctrl_opts opts;

    bed->fake->auth = FAKE_AUTH_BUSY;
    bed->fake->auth_busy = 100;
    nvmf_ctrl_opts_init(&opts);
    opts.auth_key = key;
    bed_ctrl(bed, &opts);
    bed_open_within(bed, SECOND / 4);
    bed_run(bed, 3 * SECOND);
    assert_int_equal(bed->ups, 0);
    assert_int_equal(bed->down_err, ICMS_DEADLINE);
    assert_int_equal(bed->closes, 1);
    assert_in_range(bed->fake->auth_busy, 96, 98);
    bed_free(bed);
}

static void a_host_without_a_secret_says_so(void **state)
{
    struct bed *bed = bed_new(0);

    bed->fake->auth = FAKE_AUTH_BLIND;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    bed_run(bed, SECOND);
    assert_int_equal(bed->ups, 0);
    assert_int_equal(bed->down_err, ICMS_AUTH);
    assert_non_null(strstr(bed->why, "has no secret"));
    assert_int_equal(bed->fake->auth_replies, 0);
    bed_free(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_target_that_lies_gets_no_association),
        cmocka_unit_test(a_target_has_to_prove_itself_when_that_is_wanted),
        cmocka_unit_test(a_target_that_does_not_answer_is_given_up_in_time),
        cmocka_unit_test(a_busy_target_is_asked_again),
        cmocka_unit_test(the_end_comes_between_tries),
        cmocka_unit_test(a_host_without_a_secret_says_so),
    };

    return cmocka_run_group_tests_name("nvmf host auth", tests, setup, teardown);
}
