/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host and target authenticate each other, over the simulation: the association comes up with the
 * right secrets, and with no others; a host never goes on with less than it was told to ask for.
 */
#include "base/check.h"
#include "crypt/key_text.h"
#include "crypt/secret.h"
#include "loop/sim.h"
#include "nvmf/host/host_int.h"
#include "nvmf/target/target_test.h"

#include <stdio.h>
#include <unistd.h>

#define MS   ((uint64_t)1000000)
#define HOST "nqn.2026-01.io.icms:test-host"

enum { KEY_HOST, KEY_CTRL, KEY_WRONG, KEYS };

static char folder[64], paths[KEYS][LIMIT_PATH_BYTES];
static struct secret *keys[KEYS]; /* struct key_plain */

static int setup(void **state)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/icms-auth-XXXXXX");
    check(mkdtemp(folder) != NULL);
    for (int i = 0; i < KEYS; i++) {
        char text[KEY_TEXT_BYTES_MAX];

        struct key_plain *key;

        check(secret_new(sizeof(*key), NULL, &keys[i]) == ICMS_OK);
        key = (struct key_plain *)(void *)secret_bytes(keys[i]);
        key->hash = KEY_HASH_SHA384;
        key->bytes = 48;
        secret_random(key->key, key->bytes);
        (void)snprintf(paths[i], sizeof(paths[i]), "%s/key%d", folder, i);
        check(secret_write(paths[i], text, key_text_make(KEY_TEXT_DHCHAP, key, text), NULL) ==
              ICMS_OK);
    }
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < KEYS; i++) {
        (void)unlink(paths[i]);
        secret_free(&keys[i]);
    }
    return rmdir(folder);
}

/* What the two of them have; each test sets it. */
static struct {
    uint8_t target_require, host_require;
    bool target_secret, target_controller, host_other_controller;
    struct secret *host, *controller;
    uint8_t group;
} setting;

static void pair_target(struct nvmf_target_opts *opts)
{
    static struct nvmf_target_host host;

    host = (struct nvmf_target_host){.nqn = HOST, .require = setting.target_require};
    if (setting.target_secret) {
        host.secrets = (const char(*)[LIMIT_PATH_BYTES])paths;
        host.secret_count = 1;
    }
    if (setting.target_controller)
        host.controller_secret = paths[KEY_CTRL];
    opts->hosts = &host;
    opts->host_count = setting.target_secret;
    opts->require = setting.target_require;
    opts->auth_groups[0] = setting.group;
    opts->auth_group_count = 1;
}

struct pair {
    struct rig *rig;
    struct loop *loop;
    struct nvmf_ctrl *ctrl;
    uint32_t ups, downs, closes;
    icms_err err;
    char why[LIMIT_REASON_BYTES];
    icms_err done;
    bool is_done;
    struct nvmf_req req;
};

static void pair_up(struct nvmf_ctrl *ctrl)
{
    ((struct pair *)nvmf_ctrl_owner(ctrl))->ups++;
}

static void pair_changed(struct nvmf_ctrl *ctrl)
{
}

static void pair_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    struct pair *pair = nvmf_ctrl_owner(ctrl);

    pair->downs++;
    pair->err = err;
    (void)snprintf(pair->why, sizeof(pair->why), "%s", why);
}

static void pair_closed(struct nvmf_ctrl *ctrl)
{
    ((struct pair *)nvmf_ctrl_owner(ctrl))->closes++;
}

static const struct nvmf_ctrl_ops pair_ops = {
    .up = pair_up, .changed = pair_changed, .down = pair_down, .closed = pair_closed};

static void pair_do_open(void *arg)
{
    struct pair *pair = arg;

    nvmf_ctrl_open(pair->ctrl, loop_now_ns(pair->loop) + 2000 * MS);
}

static void pair_do_close(void *arg)
{
    nvmf_ctrl_close(((struct pair *)arg)->ctrl, ICMS_CLOSED);
}

static void pair_exist_done(struct nvmf_req *req)
{
    struct pair *pair = req->owner;

    pair->is_done = true;
    pair->done = req->err;
}

static void pair_do_exist(void *arg)
{
    struct pair *pair = arg;
    const struct uuid uuid = {{1}}; /* the first one of the rig */
    const struct nvmf_volume *volume = nvmf_ctrl_volume(pair->ctrl, &uuid);

    check(volume != NULL);
    pair->req = (struct nvmf_req){.nsid = volume->nsid,
                                  .key = peer_key("key"),
                                  .deadline_ns = loop_now_ns(pair->loop) + 1000 * MS,
                                  .done = pair_exist_done,
                                  .owner = pair};
    check(nvmf_exist(pair->ctrl, &pair->req) == ICMS_OK);
}

static icms_err pair_make(struct pair *pair, struct err_why *why)
{
    struct nvmf_ctrl_opts opts;
    struct loop_opts loop_opts;

    *pair = (struct pair){.rig = rig_new(2, pair_target)};
    loop_opts_init(&loop_opts);
    check(loop_new(sim_node_env(pair->rig->host), &loop_opts, NULL, &pair->loop) == ICMS_OK);
    check(loop_start(pair->loop, NULL) == ICMS_OK);
    nvmf_ctrl_opts_init(&opts);
    opts.addr = pair->rig->addr;
    opts.subnqn = "nqn.2026-01.io.icms:test";
    opts.hostnqn = HOST;
    opts.host_id = (struct uuid){{7}};
    opts.require = setting.host_require;
    opts.auth_key = setting.host;
    opts.auth_controller_key = setting.controller;
    opts.ops = &pair_ops;
    opts.owner = pair;
    return nvmf_ctrl_new(pair->loop, &opts, why, &pair->ctrl);
}

static void pair_free(struct pair *pair)
{
    if (pair->ctrl != NULL && pair->ctrl->state != NVMF_CTRL_CLOSED) {
        sim_call(pair->rig->sim, pair->loop, pair_do_close, pair);
        rig_run(pair->rig, 1000);
        assert_int_equal(pair->ctrl->state, NVMF_CTRL_CLOSED);
    }
    loop_stop(pair->loop);
    loop_join(pair->loop);
    loop_free(&pair->loop);
    nvmf_ctrl_free(&pair->ctrl);
    rig_free(&pair->rig);
}

/* Opens it twice if it fails, as an agent does; says how. */
static void pair_run(struct pair *pair)
{
    struct err_why why = {""};

    assert_int_equal(pair_make(pair, &why), ICMS_OK);
    sim_call(pair->rig->sim, pair->loop, pair_do_open, pair);
    rig_run(pair->rig, 3000);
    if (pair->ups == 0) {
        assert_int_equal(pair->closes, 1);
        sim_call(pair->rig->sim, pair->loop, pair_do_open, pair);
        rig_run(pair->rig, 3000);
    }
}

static void comes_up(void)
{
    struct pair pair;

    pair_run(&pair);
    if (pair.ups != 1)
        fail_msg("%s", pair.why);
    sim_call(pair.rig->sim, pair.loop, pair_do_exist, &pair);
    rig_run(pair.rig, 100);
    assert_true(pair.is_done);
    assert_int_equal(pair.done, ICMS_MISS);
    if (setting.host != NULL && (setting.target_require != 0 || setting.controller != NULL))
        assert_int_equal(nvmf_ctrl_stats(pair.ctrl)->auths, 1 + IO_CLASS_COUNT);
    pair_free(&pair);
}

static void stays_down(icms_err err, const char *says)
{
    struct pair pair;

    pair_run(&pair);
    assert_int_equal(pair.ups, 0);
    assert_int_equal(pair.downs, 2);
    assert_int_equal(pair.closes, 2);
    if (pair.err != err || strstr(pair.why, says) == NULL)
        fail_msg("%s: %s", icms_err_name(pair.err), pair.why);
    assert_int_equal(pair.rig->executed, 0);
    pair_free(&pair);
}

static void right_secrets_come_up(void **state)
{
    for (uint8_t group = 0; group < 6; group += 5) {
        setting = (__typeof__(setting)){.target_require = REQUIRE_CHAP,
                                        .target_secret = true,
                                        .host = keys[KEY_HOST],
                                        .group = group};
        comes_up();
        setting.host_require = REQUIRE_CHAP;
        comes_up();
        setting.target_controller = true;
        setting.controller = keys[KEY_CTRL];
        comes_up();
        setting.controller = NULL; /* the host need not ask */
        comes_up();
    }
}

static void wrong_secrets_stay_down(void **state)
{
    setting = (__typeof__(setting)){.target_require = REQUIRE_CHAP, .target_secret = true};
    stays_down(ICMS_AUTH, "it has no secret; make one with `icms key gen`");
    setting.host = keys[KEY_WRONG];
    stays_down(ICMS_AUTH, "refused the secret of host " HOST);
    setting.host = keys[KEY_HOST];
    setting.controller = keys[KEY_CTRL]; /* the target has none */
    stays_down(ICMS_AUTH, "refused the secret of host " HOST);
    setting.target_controller = true;
    setting.controller = keys[KEY_WRONG];
    stays_down(ICMS_AUTH, "did not prove that it has the controller_secret");
    setting = (__typeof__(setting)){.target_require = REQUIRE_CHAP, .host = keys[KEY_HOST]};
    stays_down(ICMS_AUTH, "refused the secret of host " HOST); /* not known there */
}

/* The target asks for nothing, the host was told to: it does not go on without. */
static void a_host_never_goes_on_with_less(void **state)
{
    setting = (__typeof__(setting)){.host = keys[KEY_HOST]};
    comes_up();
    setting.host_require = REQUIRE_CHAP;
    stays_down(ICMS_AUTH, "does not authenticate host");
    setting.host_require = 0;
    setting.controller = keys[KEY_CTRL];
    stays_down(ICMS_AUTH, "does not authenticate host");
}

static void a_host_that_must_needs_a_secret(void **state)
{
    struct err_why why = {""};
    struct pair pair;

    setting = (__typeof__(setting)){.host_require = REQUIRE_CHAP};
    assert_int_equal(pair_make(&pair, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "has no secret"));
    pair_free(&pair);
    setting = (__typeof__(setting)){.controller = keys[KEY_CTRL]};
    assert_int_equal(pair_make(&pair, &why), ICMS_CONFIG);
    pair_free(&pair);
}

/* At any moment: while the worker computes, too, whose memory stays until it is done. */
static void it_may_be_closed_at_any_moment(void **state)
{
    setting = (__typeof__(setting)){.target_require = REQUIRE_CHAP,
                                    .target_secret = true,
                                    .target_controller = true,
                                    .host = keys[KEY_HOST],
                                    .controller = keys[KEY_CTRL],
                                    .group = 1};
    for (int step = 0; step < 60; step++) {
        struct pair pair;

        assert_int_equal(pair_make(&pair, NULL), ICMS_OK);
        sim_call(pair.rig->sim, pair.loop, pair_do_open, &pair);
        (void)sim_run(pair.rig->sim, sim_now_ns(pair.rig->sim) + (uint64_t)step * step * 10000);
        sim_call(pair.rig->sim, pair.loop, pair_do_close, &pair);
        rig_run(pair.rig, 100);
        assert_int_equal(pair.closes, 1);
        pair_free(&pair);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(right_secrets_come_up),
        cmocka_unit_test(wrong_secrets_stay_down),
        cmocka_unit_test(a_host_never_goes_on_with_less),
        cmocka_unit_test(a_host_that_must_needs_a_secret),
        cmocka_unit_test(it_may_be_closed_at_any_moment),
    };

    return cmocka_run_group_tests_name("nvmf auth", tests, setup, teardown);
}
