/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a target requires of hosts, and an agent of enclosures: proofs, and the secrets and keys for
 * them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "conf/conf_rig.h"

#define HOST_A "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
#define HOST_B "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-4333-8444-555555555555"

static void test_require_and_keys_of_hosts_go_together(void **state)
{
    target_accepted(TARGET_MIN "    require: tls\n"
                               "require: tls\n"
                               "hosts:\n"
                               "  - nqn: " HOST_A "\n"
                               "    psks: [/etc/a, /etc/b]\n"
                               "  - nqn: " HOST_B "\n"
                               "    require: none\n");
    assert_int_equal(target.require, REQUIRE_TLS);
    assert_int_equal(target.volumes[0].require, REQUIRE_TLS);
    assert_int_equal(target.host_count, 2);
    assert_string_equal(target.hosts[0].nqn, HOST_A);
    assert_int_equal(target.hosts[0].require, REQUIRE_TLS); /* the target's */
    assert_int_equal(target.hosts[0].psk_count, 2);
    assert_string_equal(target.hosts[0].psks[1], "/etc/b");
    assert_int_equal(target.hosts[1].require, 0);
    target_accepted(TARGET_MIN);
    assert_int_equal(target.require, 0);
    assert_int_equal(target.host_count, 0);
    target_refused(TARGET_MIN "require: tls\n", "t.yaml:7:", "nobody could connect");
    target_refused(TARGET_MIN "require: yes\n", "t.yaml:7:", "not none, chap, tls or chap+tls");
    target_refused(TARGET_MIN "hosts:\n"
                              "  - nqn: " HOST_A "\n"
                              "    require: tls\n",
                   "t.yaml:8:", "has no key");
    target_refused(TARGET_MIN "hosts:\n"
                              "  - nqn: " HOST_A "\n"
                              "  - nqn: " HOST_B "\n"
                              "  - nqn: " HOST_A "\n",
                   "t.yaml:", "listed twice");
    target_refused(TARGET_MIN "hosts:\n"
                              "  - nqn: " HOST_A "\n"
                              "    psks: [/a, /b, /c, /d, /e]\n",
                   "t.yaml:9:", "more than 4");
    target_refused(TARGET_MIN "hosts:\n"
                              "  - nqn: " HOST_A "\n"
                              "    psks: [/a, /a]\n",
                   "t.yaml:9:", "twice");
    target_refused(TARGET_MIN "hosts: [{psks: [/a]}]\n", "t.yaml:7:", "nqn");
}

/* Where other machines come in, strangers are kept out unless a line says otherwise. */
static void test_a_target_that_others_reach_asks_for_a_proof(void **state)
{
#define WIDE "listen: 10.0.0.1:4420\n" TARGET_MIN
#define TWO(first, second)                                                                         \
    "hosts: [{nqn: " HOST_A ", " first "}, {nqn: nqn.2026-01.io.icms:b, " second "}]\n"
    target_refused(WIDE, "t.yaml:1: listen: ", "`require: none`");
    target_refused(WIDE "hosts: [{nqn: " HOST_A "}]\n", "t.yaml:8: secrets: ", "icms key gen");
    target_accepted(WIDE "require: none\n");
    assert_int_equal(target.require, 0);
    assert_int_equal(target.warnings.count, 1);
    target_accepted(WIDE "hosts: [{nqn: " HOST_A ", secrets: [/a]}]\n");
    assert_int_equal(target.require, REQUIRE_CHAP); /* of strangers, too */
    assert_int_equal(target.hosts[0].require, REQUIRE_CHAP);
    assert_int_equal(target.warnings.count, 0);
    target_accepted(WIDE TWO("psks: [/a]", "secrets: [/b], psks: [/a], require: chap+tls"));
    assert_int_equal(target.require, REQUIRE_CHAP);
    assert_int_equal(target.hosts[0].require, REQUIRE_TLS);
    assert_int_equal(target.hosts[1].require, REQUIRE_CHAP | REQUIRE_TLS);
    target_accepted(TARGET_MIN TWO("secrets: [/a]", "psks: [/a]")); /* loopback; may use TLS */
    assert_int_equal(target.hosts[0].require, REQUIRE_CHAP);
    assert_int_equal(target.hosts[1].require, 0);
    target_accepted(TARGET_MIN "require: tls\n" TWO("secrets: [/b], psks: [/a]",
                                                    "secrets: [/b], psks: [/a], require: tls"));
    assert_int_equal(target.hosts[0].require, REQUIRE_CHAP | REQUIRE_TLS); /* it has secrets */
    assert_int_equal(target.hosts[1].require, REQUIRE_TLS);
#undef WIDE
}

static void test_secrets_of_hosts_go_together(void **state)
{
#define HOST(text) TARGET_MIN "hosts:\n  - nqn: " HOST_A "\n" text
    target_accepted(HOST(
        "    secrets: [/a, /b]\n    controller_secret: /c\n") "chap_hashes: [sha384]\nchap_groups: "
                                                              "[ffdhe8192, 'null']\n"
                                                              "audit: /var/log/audit\n");
    assert_int_equal(target.hosts[0].secret_count, 2);
    assert_string_equal(target.hosts[0].secrets[1], "/b");
    assert_string_equal(target.hosts[0].controller_secret, "/c");
    assert_int_equal(target.chap_hash_count, 1);
    assert_string_equal(target.chap_groups[1], "null");
    assert_string_equal(target.audit, "/var/log/audit");
    target_refused(TARGET_MIN "require: chap\n", "t.yaml:7: require: ", "nobody could connect");
    target_refused(HOST("    require: chap\n"), "t.yaml:8: secrets: ", "icms key gen");
    target_refused(HOST("    controller_secret: /c\n"),
                   "t.yaml:9: controller_secret: ", "no secrets");
    target_refused(HOST("    secrets: [/a]\n    controller_secret: /a\n"),
                   "t.yaml:10: controller_secret: ", "the host's own");
    target_refused(HOST("    secrets: [/a, /a]\n"), "t.yaml:9: secrets: ", "twice");
    target_refused(TARGET_MIN "chap_hashes: [md5]\n", "t.yaml:7: chap_hashes: ", "md5");
    target_refused(TARGET_MIN "chap_groups: [ffdhe2048, ffdhe2048]\n",
                   "t.yaml:7: chap_groups: ", "twice");
    target_refused(TARGET_MIN "chap_hashes: []\n", "t.yaml:7:", "");
#undef HOST
}

static void test_an_agent_has_secrets_for_what_it_requires(void **state)
{
    agent_accepted(AGENT_MIN "secret: /s\ncontroller_secret: /c\nrequire: chap\naudit: journal\n");
    assert_string_equal(agent.enclosures[0].secret, "/s");
    assert_string_equal(agent.enclosures[0].controller_secret, "/c");
    assert_int_equal(agent.enclosures[0].require, REQUIRE_CHAP);
    assert_string_equal(agent.audit, "journal");
    agent_refused(AGENT_MIN "require: chap\n", "a.yaml:2: secret: ", "icms key gen");
    agent_refused(AGENT_MIN "controller_secret: /c\n", "a.yaml:2: secret: ", "has no secret");
    agent_refused(AGENT_MIN "secret: /s\ncontroller_secret: /s\n",
                  "a.yaml:2: controller_secret: ", "another one");
    agent_accepted(
        "enclosures: [{name: e0, address: '127.0.0.1:4420', secret: /e, require: none}]\n"
        "secret: /s\nrequire: chap\nvolumes: [{name: kv}]\n");
    assert_string_equal(agent.enclosures[0].secret, "/e");
    assert_int_equal(agent.enclosures[0].require, 0);
}

static void test_an_agent_has_keys_for_what_it_requires(void **state)
{
    agent_accepted(AGENT_MIN "psk: /etc/agent.psk\n"
                             "require: tls\n");
    assert_string_equal(agent.enclosures[0].psk, "/etc/agent.psk");
    assert_int_equal(agent.enclosures[0].require, REQUIRE_TLS);
    agent_accepted(AGENT_MIN);
    assert_string_equal(agent.enclosures[0].psk, "");
    agent_refused(AGENT_MIN "require: tls\n", "a.yaml:2:", "has no key");
    agent_refused("enclosures: [{name: e0, address: '127.0.0.1:4420', require: tls}]\n"
                  "volumes: [{name: kv}]\n",
                  "a.yaml:1:", "has no key");
    agent_accepted("enclosures: [{name: e0, address: '127.0.0.1:4420', psk: /a}]\n"
                   "require: tls\n"
                   "volumes: [{name: kv}]\n");
    assert_string_equal(agent.enclosures[0].psk, "/a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_require_and_keys_of_hosts_go_together),
        cmocka_unit_test(test_a_target_that_others_reach_asks_for_a_proof),
        cmocka_unit_test(test_secrets_of_hosts_go_together),
        cmocka_unit_test(test_an_agent_has_secrets_for_what_it_requires),
        cmocka_unit_test(test_an_agent_has_keys_for_what_it_requires),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
