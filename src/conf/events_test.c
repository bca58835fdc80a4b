/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which events of an agent can be published, and where.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "conf/conf_int.h"

static struct conf_agent agent;
static struct err_why why;

static icms_err parse(const char *events)
{
    char text[4096];

    conf_agent_fini(&agent);
    (void)snprintf(text, sizeof(text),
                   "socket: /run/icms/agent.sock\nenclosures: [{name: e, address: '127.0.0.1:1'}]\n"
                   "volumes: [{name: kv}, {name: b}]\nevents:\n%s\n",
                   events);
    return conf_agent_parse(text, strlen(text), "a.yaml", &why, &agent);
}

static void refused(const char *events, uint32_t line, const char *word)
{
    char begin[32];

    assert_int_equal(parse(events), ICMS_CONFIG);
    (void)snprintf(begin, sizeof(begin), "a.yaml:%u: ", line);
    if (strncmp(why.text, begin, strlen(begin)) != 0 || strstr(why.text, word) == NULL)
        fail_msg("%s, not %s ... %s", why.text, begin, word);
}

static void what_is_written_is_taken(void **state)
{
    assert_int_equal(parse("- volume: b\n  endpoint: ipc:///run/b\n  replay: ipc:///run/b-replay\n"
                           "  window: 1MiB\n  mode: 0660\n"
                           "- {volume: kv, endpoint: 'tcp://[::1]:5557', open: true}"),
                     ICMS_OK);
    assert_int_equal(agent.events_count, 2);
    assert_string_equal(agent.events[0].volume, "b");
    assert_string_equal(agent.events[0].endpoint, "ipc:///run/b");
    assert_string_equal(agent.events[0].replay, "ipc:///run/b-replay");
    assert_true(agent.events[0].window_bytes == 1 << 20);
    assert_int_equal(agent.events[0].mode, 0660);
    assert_string_equal(agent.events[1].endpoint, "tcp://[::1]:5557");
    assert_string_equal(agent.events[1].replay, "");
    assert_true(agent.events[1].window_bytes == 4 << 20);
    assert_int_equal(agent.events[1].mode, 0600);
}

static void modes_for_others_are_warned_about(void **state)
{
    assert_int_equal(parse("- {volume: kv, endpoint: 'ipc:///e', mode: 0660}\n"
                           "- {volume: b, endpoint: 'tcp://127.0.0.1:1', open: true, mode: 0666}"),
                     ICMS_OK);
    assert_int_equal(agent.warnings.count, 0);
    assert_int_equal(parse("- {volume: kv, endpoint: 'ipc:///e', mode: 0660}\n"
                           "- {volume: b, endpoint: 'tcp://127.0.0.1:1', open: true,\n"
                           "   replay: 'ipc:///f', mode: 0602}"),
                     ICMS_OK);
    assert_int_equal(agent.warnings.count, 1);
    assert_string_equal(agent.warnings.text[0],
                        "events: mode 0602 lets every user of this machine read which blocks of "
                        "volume b come and go");
}

static void what_is_wrong_is_named(void **state)
{
    char text[512];

    refused("- {volume: other, endpoint: 'ipc:///e'}", 5, "no volume other");
    refused("- {volume: kv}", 5, "endpoint");
    refused("- {volume: kv, endpoint: 'ipc:///e'}\n- {volume: kv, endpoint: 'ipc:///f'}", 6,
            "two entries");
    refused("- {volume: kv, endpoint: 'tcp://127.0.0.1:5557'}", 5, "open: true");
    refused("- {volume: kv, endpoint: 'ipc:///e', replay: 'tcp://0.0.0.0:5557'}", 5,
            "replay: every");
    refused("- {volume: kv, endpoint: 'tcp://*:5557', open: true}", 5, "endpoint: ");
    refused("- {volume: kv, endpoint: 'tcp://127.0.0.1:0', open: true}", 5, "endpoint: ");
    refused("- {volume: kv, endpoint: 'ipc://e'}", 5, "neither");
    refused("- {volume: kv, endpoint: 'inproc://e'}", 5, "neither");
    refused("- {volume: kv, endpoint: /run/e}", 5, "neither");
    refused("- {volume: kv, endpoint: 'ipc:///run/icms/agent.sock'}", 5, "clients connect there");
    refused("- {volume: kv, endpoint: 'ipc:///e', replay: 'ipc:///e'}", 5, "already");
    refused("- {volume: kv, endpoint: 'ipc:///e'}\n"
            "- {volume: b, endpoint: 'ipc:///f', replay: 'ipc:///e'}",
            6, "already");
    refused("- {volume: kv, endpoint: 'ipc:///e', replay: 'ipc:///f'}\n"
            "- {volume: b, endpoint: 'ipc:///f'}",
            6, "another entry");
    refused("- {volume: kv, endpoint: 'ipc:///e', window: 1KiB}", 5, "window");
    refused("- {volume: kv, endpoint: 'ipc:///e', mode: 0999}", 5, "mode");
    (void)snprintf(text, sizeof(text), "- {volume: kv, endpoint: 'ipc:///%0110d'}", 0);
    refused(text, 5, "longer than 107 bytes");
    conf_agent_fini(&agent);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_taken),
        cmocka_unit_test(modes_for_others_are_warned_about),
        cmocka_unit_test(what_is_wrong_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
