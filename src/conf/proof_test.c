/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Proofs that a configuration forgets: it is refused where whoever answers would be taken for an
 * enclosure; else it is right, and a line of the log says what it lets happen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "conf/conf_int.h"

static struct conf_target target;
static struct conf_agent agent;
static struct err_why why;

/* The number of warnings, and that the first one has the word. */
static void warned(const struct conf_warnings *warnings, uint32_t count, const char *word)
{
    assert_int_equal(warnings->count, count);
    if (count != 0 && strstr(warnings->text[0], word) == NULL)
        fail_msg("%s", warnings->text[0]);
}

static void agent_warned(const char *keys, const char *word)
{
    char text[1024];

    conf_agent_fini(&agent);
    (void)snprintf(text, sizeof(text), "volumes: [{name: kv}]\n%s", keys);
    if (conf_agent_parse(text, strlen(text), "a.yaml", &why, &agent) != ICMS_OK)
        fail_msg("%s", why.text);
    warned(&agent.warnings, word != NULL, word);
}

static void agent_refused(const char *keys, const char *word)
{
    char text[1024];

    conf_agent_fini(&agent);
    (void)snprintf(text, sizeof(text), "volumes: [{name: kv}]\n%s", keys);
    assert_int_equal(conf_agent_parse(text, strlen(text), "a.yaml", &why, &agent), ICMS_CONFIG);
    if (strstr(why.text, word) == NULL || strstr(why.text, "`require: none`") == NULL)
        fail_msg("%s", why.text);
}

static void target_warned(const char *keys, const char *word)
{
    char text[1024];

    conf_target_fini(&target);
    (void)snprintf(text, sizeof(text), "name: e0\ndrives: [{path: /d0, size: 1GiB}]\n%s", keys);
    if (conf_target_parse(text, strlen(text), "t.yaml", &why, &target) != ICMS_OK)
        fail_msg("%s", why.text);
    warned(&target.warnings, word != NULL, word);
}

#define FAR(text)                                                                                  \
    "enclosures:\n- {name: near, address: '127.0.0.1:1'}\n- {name: far, address: "                 \
    "'192.0.2.1:1'" text "}\n"

static void an_agent_says_whom_it_believes(void **state)
{
    agent_warned(FAR("") "secret: /s\n", /* proves the agent, and nothing of the enclosure */
                 "whoever asks for a proof at 192.0.2.1:1 is taken for the enclosure 'far'");
    agent_warned(FAR("") "secret: /s\ncontroller_secret: /c\n", NULL);
    agent_warned(FAR("") "psk: /p\n", NULL);
    agent_warned(FAR(", psk: /p"), NULL);
    agent_warned(FAR("") "require: none\n", NULL);
    agent_warned(FAR("") "secret: /s\nrequire: chap\n", NULL);
    agent_warned(FAR(", require: none"), NULL);
    agent_warned("enclosures: [{name: near, address: '127.0.0.1:1'}]\n", NULL);
}

/* Whoever answers would be taken for it. */
static void an_agent_asks_other_machines_for_a_proof(void **state)
{
    agent_refused(FAR(""), "a.yaml:4: address: other machines can answer at 192.0.2.1:1");
    agent_refused("enclosures:\n- {name: e, address: ['127.0.0.1:1', '[2001:db8::1]:1']}\n",
                  "a.yaml:3: address: other machines can answer at [2001:db8::1]:1");
    agent_refused("enclosures: [{name: e, address: '[::ffff:192.0.2.1]:1'}]\n", "192.0.2.1");
    agent_warned("enclosures: [{name: e, address: ['127.9.9.9:1', '[::1]:1']}]\n", NULL);
    agent_warned(FAR(", require: none"), NULL);
    assert_int_equal(agent.enclosures[1].require, 0);
    agent_warned(FAR(", psk: /p"), NULL); /* what there is a key for is required */
    assert_int_equal(agent.enclosures[0].require, 0);
    assert_int_equal(agent.enclosures[1].require, REQUIRE_TLS);
    agent_warned(FAR("") "secret: /s\ncontroller_secret: /c\n", NULL);
    assert_int_equal(agent.enclosures[0].require, 0);
    assert_int_equal(agent.enclosures[1].require, REQUIRE_CHAP);
    agent_warned(FAR("") "secret: /s\npsk: /p\nrequire: none\n", NULL);
    assert_int_equal(agent.enclosures[1].require, 0);
}
#undef FAR

static void a_target_says_which_volume_nobody_can_use(void **state)
{
#define HOST(text)   "hosts: [{nqn: nqn.2026-01.io.icms:h" text "}]\n"
#define VOLUME(text) "volumes: [{name: kv, require: " text "}]\n"
    target_warned(VOLUME("tls"), "volumes: 'kv' requires tls, and no host has a key: list psks");
    target_warned(VOLUME("tls") HOST(", secrets: [/s]"), "requires tls");
    target_warned(VOLUME("chap"), "volumes: 'kv' requires chap, and no host has a secret");
    target_warned(VOLUME("chap+tls") HOST(", psks: [/p]"), "requires chap");
    target_warned(VOLUME("tls") HOST(", psks: [/p]"), NULL);
    target_warned(VOLUME("chap+tls") HOST(", secrets: [/s], psks: [/p]"), NULL);
    target_warned(VOLUME("none"), NULL);
#undef HOST
#undef VOLUME
    conf_target_fini(&target);
    conf_agent_fini(&agent);
}

static void a_target_says_which_hosts_can_be_each_other(void **state)
{
#define TWO(a, b)                                                                                  \
    "volumes: [{name: kv}]\nhosts:\n- {nqn: nqn.2026-01.io.icms:a, " a "}\n"                       \
    "- {nqn: nqn.2026-01.io.icms:b, " b "}\n"
    target_warned(TWO("secrets: [/s, /t]", "secrets: [/u, /s]"),
                  "hosts: nqn.2026-01.io.icms:a and nqn.2026-01.io.icms:b have the same key /s");
    target_warned(TWO("psks: [/p]", "psks: [/p]"), "the same key /p");
    target_warned(
        TWO("secrets: [/s], controller_secret: /c", "secrets: [/t], controller_secret: /c"),
        NULL); /* told of in doc/security.md: each proves the target to one of them */
#undef TWO
    conf_target_fini(&target);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_agent_says_whom_it_believes),
        cmocka_unit_test(an_agent_asks_other_machines_for_a_proof),
        cmocka_unit_test(a_target_says_which_volume_nobody_can_use),
        cmocka_unit_test(a_target_says_which_hosts_can_be_each_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
