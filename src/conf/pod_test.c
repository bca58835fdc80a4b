/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pod map: what is right is taken, what is wrong is refused with its line, and what a map is to
 * the one before. pod_change_test.c has how its file is changed.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "conf/pod_rig.h"

static struct conf_agent agent;

static void test_a_map_is_taken_as_written(void **state)
{
    struct uuid uuid;

    accepted("# ours\nname: pod0\nepoch: 4294967295\nshrink_epoch: 7\nenclosures:\n" E0
             "- {name: e1, address: \"[2001:db8::1]:4420\", weight: 2.5, state: joining}\n"
             "- name: e2\n  address: e2.storage.svc.cluster.local:4420\n  uuid: " UUID7
             "\n  nqn: nqn.2026-01.io.icms:e2\n  state: draining\n  http: "
             "https://e2.storage.svc:9420\n",
             &pod);
    assert_string_equal(pod.name, "pod0");
    assert_int_equal(pod.epoch, UINT32_MAX);
    assert_int_equal(pod.shrink_epoch, 7);
    assert_int_equal(pod.enclosure_count, 3);
    assert_string_equal(pod.enclosures[0].address, "10.0.0.1:4420");
    assert_true(pod.enclosures[0].weight == 1.0);
    assert_int_equal(pod.enclosures[0].state, CONF_ENCLOSURE_UP);
    conf_enclosure_uuid("e0", &uuid);
    assert_true(uuid_equal(&uuid, &pod.enclosures[0].uuid));
    assert_true(pod.enclosures[1].weight == 2.5);
    assert_int_equal(pod.enclosures[1].state, CONF_ENCLOSURE_JOINING);
    assert_string_equal(pod.enclosures[2].address, "e2.storage.svc.cluster.local:4420");
    assert_string_equal(pod.enclosures[2].nqn, "nqn.2026-01.io.icms:e2");
    assert_int_equal(pod.enclosures[2].state, CONF_ENCLOSURE_DRAINING);
    assert_string_equal(pod.enclosures[0].http, "");
    assert_string_equal(pod.enclosures[2].http, "https://e2.storage.svc:9420");
    accepted(HEAD E0 "  http: http://[2001:db8::1]:1\n" E1 "  http: http://10.0.0.1:9420\n", &pod);
    assert_string_equal(pod.enclosures[0].http, "http://[2001:db8::1]:1");
    accepted(HEAD E0, &pod);
    assert_int_equal(pod.shrink_epoch, 0);
}

static void test_a_wrong_map_is_refused_with_its_line(void **state)
{
    refused("", "p.yaml:1: ", "empty");
    refused("name: pod0\nepoch: 4\nenclosures: []\n", "p.yaml:3: ", "the list is empty");
    refused("name: pod0\nepoch: 1\n", "p.yaml:1: ", "enclosures");
    refused("epoch: 1\nenclosures:\n" E0, "p.yaml:1: ", "'name'");
    refused("name: pod0\nenclosures:\n" E0, "p.yaml:1: ", "'epoch'");
    refused("name: pod0\nepoch: 0\nenclosures:\n" E0, "p.yaml:2: epoch", "out of range");
    refused("name: pod0\nepoch: 4\nshrink_epoch: 9\nenclosures:\n" E0, "p.yaml:3: shrink_epoch",
            "9 is above epoch 4");
    refused("name: pod0\nepoch: -1\nenclosures:\n" E0, "p.yaml:2: epoch", "whole number");
    refused(HEAD E0 E1 "- name: e0\n  address: 10.0.0.3:1\n", "p.yaml:8: name", "line 4");
    refused(HEAD E0 "- name: e1\n  address: 10.0.0.1:4420\n", "p.yaml:7: address", "'e0' has it");
    refused(HEAD "- {name: a, address: 10.0.0.1:1, uuid: " UUID7 "}\n"
                 "- {name: b, address: 10.0.0.2:1, uuid: " UUID7 "}\n",
            "p.yaml:5: uuid", "'a' has it");
    refused(HEAD E0 "  state: drainin\n", "p.yaml:6: state", "did you mean 'draining'?");
    refused(HEAD E0 "  state: away\n", "p.yaml:6: state", "none of up, joining, draining");
    refused(HEAD E0 "  state: draining\n", "p.yaml:3: enclosures", "none of them is up");
    refused(HEAD E0 "  weight: 0\n", "p.yaml:6: weight", "more than 0");
    refused(HEAD E0 "  weight: -1\n", "p.yaml:6: weight", "not a number");
    refused(HEAD E0 "  weight: NaN\n", "p.yaml:6: weight", "not a number");
    refused(HEAD E0 "  wieght: 1\n", "p.yaml:6: ", "did you mean 'weight'?");
    refused(HEAD E0 "  secret: /s\n", "p.yaml:6: ", "no key 'secret'");
    refused(HEAD "- name: e0\n  address: 10.0", "p.yaml:5: address", "not an address and port");
}

static void test_where_an_enclosure_shows_its_status_is_a_url(void **state)
{
    static const char *const wrong[] = {
        "10.0.0.1:9420",        "http://10.0.0.1",       "\"http://10.0.0.1:\"",
        "http://10.0.0.1:0",    "http://10.0.0.1:65536", "http://10.0.0.1:9420/",
        "http://a:9420/status", "http://user:pw@a:9420", "HTTP://a:9420",
        "https:/a:9420",        "ftp://a:9420",          "http://:9420",
        "http://[::1:9420",     "http://a b:9420",       "http://a:9420#x",
        "\"http://a:9420\\n\"", "http://1.2.3:9420",     "https://",
        "file:///etc/passwd:1", "\"http://a\\tb:1\"",    "http://a:9420?x=1:2",
    };
    char text[512], name[300];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        (void)snprintf(text, sizeof(text), HEAD E0 "  http: %s\n...\n", wrong[i]);
        refused(text, "p.yaml:6: http", "is not the URL of a daemon");
    }
    refused(HEAD E0 "  http: http://0.0.0.0:9420\n...\n", "p.yaml:6: http", "stands for all");
    refused(HEAD E0 "  http: \"\"\n...\n", "p.yaml:6: http", "");
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    (void)snprintf(text, sizeof(text), HEAD E0 "  http: http://%s:1\n...\n", name);
    refused(text, "p.yaml:6: http", "is not the URL of a daemon");
    refused(HEAD E0 "  http: http://a:1\n" E1 "  http: http://a:1\n...\n", "p.yaml:9: http",
            "'e0' has it already");
    refused(HEAD E0 "  http: http://a:1\n  http: http://b:1\n...\n", "p.yaml:7: ", "http");
    refused(HEAD E0 "  htpp: http://a:1\n...\n", "p.yaml:6: ", "did you mean 'http'?");
}

static void test_a_map_that_is_cut_anywhere_is_refused(void **state)
{
    static const char whole[] = "---\n" HEAD E0 E1 "  state: draining\n" E2 "# end\n...\n";
    char cut[sizeof(whole)];

    for (size_t bytes = 0; bytes + 2 < sizeof(whole); bytes++) { /* its line end may be missing */
        memcpy(cut, whole, bytes);
        cut[bytes] = '\0';
        refused(cut, "p.yaml:", "");
    }
    assert_int_equal(parse(whole, &pod), ICMS_OK);
    assert_int_equal(parse(HEAD E0 "...", &pod), ICMS_OK);
    assert_int_equal(parse("name: pod0\r\nepoch: 4\r\nenclosures:\r\n- {name: e0, address: a:1}\r\n"
                           "...\r\n",
                           &pod),
                     ICMS_OK);
    refused(HEAD E0 E1 "  state: up\n", "p.yaml:8: ", "the last line is not `...`");
    refused(HEAD E0 E1 "  state: up\n...\n# end\n", "p.yaml:10: ", "written halfway");
    refused(HEAD E0 "# ...\n", "p.yaml:6: ", "written halfway");
    refused(HEAD E0 "...\n" E1 "...\n", "p.yaml:", "");
}

static void test_an_address_is_numeric_or_a_name(void **state)
{
    static const char *const bad[] = {"10.0.0.1",   "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.256:1",
                                      "e0",         "e0:",        "e0:http",        ":4420",
                                      "e..0:1",     ".e0:1",      "-e0:1",          "e 0:1",
                                      "e0.1:4420",  "[::1:4420",  "e0/x:1",         "e0:-1",
                                      "e0:4420000", "é:1",        "e0:4294967297"};
    static const char *const good[] = {"e0:1", "e0.example.com:65535", "e_0-1.a:4420",
                                       "localhost:4420"};
    char text[256];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(text, sizeof(text), HEAD "- name: e0\n  address: \"%s\"\n", bad[i]);
        refused(text, "p.yaml:5: address", "");
    }
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        (void)snprintf(text, sizeof(text), HEAD "- name: e0\n  address: %s\n", good[i]);
        accepted(text, &pod);
    }
}

/* ---- files ---------------------------------------------------------------------------------- */

static void unreadable(const char *file, const char *word)
{
    assert_int_not_equal(conf_pod_read(file, &why, &pod), ICMS_OK);
    if (strstr(why.text, file) == NULL || strstr(why.text, word) == NULL)
        fail_msg("'%s' is not about %s", why.text, word);
}

static void test_what_is_no_file_is_refused_at_once(void **state)
{
    unreadable(special, "No such file");
    assert_int_equal(mkfifo(special, 0600), 0);
    unreadable(special, "not a regular file");
    assert_int_equal(unlink(special), 0);
    assert_int_equal(mkdir(special, 0700), 0);
    unreadable(special, "not a regular file");
    file_write(HEAD E0);
    assert_int_equal(truncate(path, 100 << 20), 0);
    unreadable(path, "larger than 1 MiB");
    file_write(ended(HEAD E0));
    assert_int_equal(conf_pod_read(path, &why, &pod), ICMS_OK);
    if (geteuid() != 0) {
        assert_int_equal(chmod(path, 0), 0);
        unreadable(path, "Permission denied");
    }
    assert_int_equal(unlink(path), 0);
}

/* ---- a map and the one before ---------------------------------------------------------------- */

static void test_a_map_is_compared_with_the_one_before(void **state)
{
    uint64_t gone = 7;

    assert_int_equal(compare(HEAD E0 E1, "# c\n" HEAD E1 E0, &gone), CONF_POD_SAME);
    assert_int_equal(gone, 0);
    assert_int_equal(compare(HEAD E0 E1, EPOCH(5) E0 E1 E2, &gone), CONF_POD_NEW);
    assert_int_equal(compare(HEAD E0 E1, EPOCH(3) E0 E1 E2, &gone), CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "its epoch 3 is lower than 4"));
    assert_int_equal(compare(HEAD E0 E1, HEAD E0 E1 "  weight: 2\n", &gone), CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "e1 weight 1 -> 2) and has its epoch, 4: raise it"));
    assert_int_equal(compare(HEAD E0 E1, HEAD E0 E1 "  http: http://b:1\n", &gone),
                     CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "e1 http none -> http://b:1) and has its epoch, 4: raise"));
    assert_int_equal(compare(EPOCH(4294967295) E0 E1, EPOCH(5) E0, &gone), CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "until who uses it is started again"));
    assert_int_equal(compare(EPOCH(4294967295) E0 E1, EPOCH(4294967295) E0, &gone),
                     CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "the last one there can be; write a low one"));
    assert_int_equal(compare(HEAD E0, "name: pod1\nepoch: 9\nenclosures:\n" E0, &gone),
                     CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "pod 'pod1'; the one in use is of 'pod0'"));
}

static void test_a_shrunken_map_is_told_apart(void **state)
{
    uint64_t gone;

    assert_int_equal(compare(HEAD E0 E1 E2, EPOCH(5) E0 E2, &gone), CONF_POD_SHRUNKEN);
    assert_int_equal(gone, 2);
    assert_non_null(strstr(why.text, "lacks 1 of 3 enclosures, e1, which was not drained"));
    assert_int_equal(compare(HEAD E0 E1 E2, EPOCH(5) E1, &gone), CONF_POD_SHRUNKEN);
    assert_int_equal(gone, 5);
    assert_non_null(strstr(why.text, "lacks 2 of 3 enclosures, e0 among them"));
    assert_non_null(strstr(why.text, "shrink_epoch: 5"));
    assert_int_equal(compare(HEAD E0 E1 E2, "shrink_epoch: 5\n" EPOCH(5) E1, &gone), CONF_POD_NEW);
    assert_int_equal(compare(HEAD E0 E1 E2, "shrink_epoch: 5\n" EPOCH(9) E1, &gone),
                     CONF_POD_NEW); /* who has epoch 4 has missed that one */
    assert_int_equal(compare(EPOCH(5) E0 E1 E2, "shrink_epoch: 5\n" EPOCH(6) E1, &gone),
                     CONF_POD_SHRUNKEN); /* it was for another epoch */
    assert_int_equal(compare(HEAD E0 E1 E2, "shrink_epoch: 4\n" EPOCH(5) E1, &gone),
                     CONF_POD_SHRUNKEN);
    assert_int_equal(compare(HEAD E0 "  state: draining\n" E1 E2, EPOCH(5) E1 E2, &gone),
                     CONF_POD_NEW); /* it was to leave */
    assert_int_equal(gone, 0);
    assert_int_equal(compare(HEAD E0 "  state: draining\n" E1 E2, EPOCH(5) E1, &gone),
                     CONF_POD_SHRUNKEN);
    assert_int_equal(gone, 4);
    assert_int_equal(
        compare(HEAD E0 "  state: draining\n" E1 "  state: draining\n" E2, EPOCH(5) E0 E1, &gone),
        CONF_POD_SHRUNKEN); /* those that are to leave make up for none */
}

static void test_capacities_are_weights(void **state)
{
    const char *sized = HEAD E0 "  capacity: 14TiB\n" E1 "  capacity: 1535MiB\n" E2
                                "  capacity: 7TiB\n  weight: 0.5\n";
    char text[256];

    accepted(sized, &pod);
    assert_true(pod.enclosures[0].weight == 14336 && pod.enclosures[1].weight == 1 &&
                pod.enclosures[2].weight == 0.5);
    assert_true(pod.enclosures[2].capacity_bytes == (uint64_t)7 << 40);
    accepted(HEAD E0 "  capacity: 1536MiB\n" E1 "  capacity: 1GiB\n  weight: 3\n", &pod);
    assert_true(pod.enclosures[0].weight == 2 && pod.enclosures[1].weight == 3);
    accepted(HEAD E0 "  capacity: 14TiB\n  weight: 2\n" E1, &pod); /* of the target's sake alone */
    assert_true(pod.enclosures[0].weight == 2 && pod.enclosures[1].weight == 1);
    accepted(HEAD E0 E1 "  capacity: 65536TiB\n  weight: 1\n", &other);
    assert_string_equal(
        conf_pod_differs(&pod, &other, text, sizeof(text)),
        "e0 weight 2 -> 1, e0 capacity 14TiB -> none, e1 capacity none -> 65536TiB");
    refused(ended(HEAD E0 "  capacity: 14TiB\n" E1),
            "p.yaml:7: ", "capacity: other enclosures have their weight from it");
    refused(ended(HEAD E0 E1 "  capacity: 14TiB\n" E2 "  weight: 1\n"),
            "p.yaml:4: ", "and this one has none: write it, or weight of those, too");
    /* 2 is 2 GiB beside 14 TiB */
    refused(ended(HEAD E0 "  weight: 2\n" E1 "  weight: 2\n" E2 "  capacity: 14TiB\n"),
            "p.yaml:4: ", "capacity: other enclosures have their weight from it");
    accepted(HEAD E0 "  weight: 2\n" E1 E2 "  capacity: 14TiB\n  weight: 2\n", &pod);
    refused(ended(HEAD E0 "  capacity: 1023MiB\n" E1), "p.yaml:6: ", "capacity");
    refused(ended(HEAD E0 "  capacity: 0\n" E1), "p.yaml:6: ", "capacity");
    refused(ended(HEAD E0 "  capacity: 14 TB of flash\n" E1), "p.yaml:6: ", "capacity");
    refused(ended(HEAD E0 "  capacity: 65537TiB\n" E1), "p.yaml:6: ", "capacity");
    refused(ended(HEAD E0 "  weight: 0\n" E1), "p.yaml:6: ", "weight");
}

static void test_differences_are_words(void **state)
{
    char text[512];

    accepted(HEAD E0 E1, &pod);
    accepted(EPOCH(5) "- name: e1\n  address: b:1\n  state: draining\n  weight: 2\n" E2
                      "  state: up\n",
             &other);
    assert_string_equal(conf_pod_differs(&pod, &other, text, sizeof(text)),
                        "e1 draining, e1 weight 1 -> 2, e1 address 10.0.0.2:4420 -> b:1, e2 added "
                        "(up), e0 removed");
    assert_string_equal(conf_pod_differs(&pod, &other, text, 12), "e1 draining");
    assert_true(conf_pod_share(&pod, 0) == 0.5);
    accepted(HEAD E0 "  state: draining\n" E1, &pod);
    assert_true(conf_pod_share(&pod, 0) == 0.0 && conf_pod_share(&pod, 1) == 1.0);
    accepted(HEAD E0 "  capacity: 1400TiB\n" V_KV V_B, &pod);
    accepted(EPOCH(5) E0 "  weight: 1433599.5\n  former_weight: 14336000\n"
                         "volumes:\n" V_B,
             &other);
    assert_string_equal(conf_pod_differs(&pod, &other, text, sizeof(text)),
                        "e0 weight 1433600 -> 1433599.5, e0 former weight 14336000, e0 capacity "
                        "1400TiB -> none, volume kv deleted (generation 3)");
}

/* ---- the agent's part ------------------------------------------------------------------------ */

static icms_err agent_parse(const char *text)
{
    conf_agent_fini(&agent);
    return conf_agent_parse(text, strlen(text), "a.yaml", &why, &agent);
}

static void agent_refused(const char *text, const char *place, const char *word)
{
    if (agent_parse(text) != ICMS_CONFIG || strncmp(why.text, place, strlen(place)) != 0 ||
        strstr(why.text, word) == NULL)
        fail_msg("%s\nanswered '%s', wanted '%s ... %s'", text, why.text, place, word);
}

#define REST "volumes: [{name: kv}]\n"

static void test_keys_stay_with_the_agent(void **state)
{
    assert_int_equal(agent_parse("pod: /p\nsecret: /s\npsk: /k\nrequire: chap\nenclosure_keys:\n"
                                 "- {name: e1, secret: /s1, require: chap+tls}\n" REST),
                     ICMS_OK);
    assert_string_equal(agent.pod, "/p");
    accepted(HEAD E0 E1, &pod);
    assert_int_equal(conf_pod_join(&agent, &pod, "p.yaml", &why), ICMS_OK);
    assert_string_equal(pod.enclosures[0].secret, "/s");
    assert_string_equal(pod.enclosures[0].psk, "/k");
    assert_int_equal(pod.enclosures[0].require, REQUIRE_CHAP);
    assert_string_equal(pod.enclosures[1].secret, "/s1");
    assert_string_equal(pod.enclosures[1].psk, "/k");
    assert_int_equal(pod.enclosures[1].require, REQUIRE_CHAP | REQUIRE_TLS);
    assert_string_equal(conf_agent_keys_of(&agent, "e1")->secret, "/s1");
    agent_refused("pod: /p\nrequire: tls\n" REST, "a.yaml:2: psk", "of the pod map");
    agent_refused("pod: /p\nenclosure_keys:\n- {name: e1, require: chap}\n" REST,
                  "a.yaml:3: secret", "'e1'");
    agent_refused("pod: /p\nenclosure_keys:\n- {name: e1, psk: /a}\n- {name: e1, psk: /b}\n" REST,
                  "a.yaml:4: name", "line 3");
}

/* A map with an enclosure of another machine, beside what the agent's file says of proofs. */
static icms_err joins(const char *enclosures, const char *keys)
{
    char text[512];

    (void)snprintf(text, sizeof(text), "pod: /p\n%s" REST, keys);
    if (agent_parse(text) != ICMS_OK)
        fail_msg("%s", why.text);
    (void)snprintf(text, sizeof(text), HEAD "%s", enclosures);
    accepted(text, &pod);
    return conf_pod_join(&agent, &pod, "p.yaml", &why);
}

static void test_a_map_names_other_machines_that_prove_something(void **state)
{
#define HOST(name, host) "- {name: " name ", address: '" host "'}\n"
    assert_int_equal(joins(HOST("e0", "127.0.0.1:1") HOST("e1", "192.0.2.1:1"), ""), ICMS_CONFIG);
    if (strstr(why.text, "p.yaml: other machines can answer at 192.0.2.1:1, and the enclosure "
                         "'e1'") == NULL ||
        strstr(why.text, "in a.yaml, or `require: none`") == NULL)
        fail_msg("%s", why.text);
    assert_int_equal(joins(HOST("e0", "e0.example.com:1"), ""), ICMS_CONFIG); /* wherever it is */
    assert_int_equal(joins(HOST("e0", "localhost.example.com:1"), ""), ICMS_CONFIG);
    assert_int_equal(joins(HOST("e0", "localhost:1") HOST("e1", "[::1]:1"), ""), ICMS_OK);
    assert_int_equal(joins(HOST("e0", "e0.example.com:1"), "require: none\n"), ICMS_OK);
    assert_int_equal(pod.enclosures[0].require, 0);
    assert_int_equal(joins(HOST("e0", "e0.example.com:1"), "psk: /k\n"), ICMS_OK);
    assert_int_equal(pod.enclosures[0].require, REQUIRE_TLS);
    assert_int_equal(joins(HOST("e0", "192.0.2.1:1"), "secret: /s\n"), ICMS_OK);
    assert_int_equal(pod.enclosures[0].require, REQUIRE_CHAP);
    assert_int_equal(joins(HOST("e0", "192.0.2.1:1") HOST("e1", "192.0.2.2:1"),
                           "enclosure_keys: [{name: e1, require: none}]\n"),
                     ICMS_CONFIG);
    assert_non_null(strstr(why.text, "'e0'"));
    assert_int_equal(joins(HOST("e0", "192.0.2.1:1") HOST("e1", "192.0.2.2:1"),
                           "enclosure_keys: [{name: e1, require: none}, {name: e0, psk: /k}]\n"),
                     ICMS_OK);
#undef HOST
}

static void test_a_map_stands_for_the_list(void **state)
{
    agent_refused("pod: /p\nenclosures: [{name: a, address: 127.0.0.1:1}]\n" REST, "a.yaml:1: pod",
                  "either it or enclosures");
    agent_refused("pod: /p\nlocal: {path: /l}\nloops: 2\n" REST, "a.yaml:3: loops", "has one");
    agent_refused("enclosures: [{name: a, address: 127.0.0.1:1}]\n"
                  "enclosure_keys: [{name: a, psk: /k}]\n" REST,
                  "a.yaml:2: enclosure_keys", "pod map");
    agent_refused(REST, "a.yaml:1: ", "'pod: /etc/icms/pod.yaml'");
}

#define AGENT_ONE "enclosures: [{name: a, address: 127.0.0.1:1}]\n" REST

static void test_a_drive_beside_the_pod(void **state)
{
    assert_int_equal(
        agent_parse("local: {path: /x, write_budget: 1 DWPD, write_burst: 1GiB}\n" AGENT_ONE),
        ICMS_OK);
    assert_true(agent.local_budget.drive_writes == 1 &&
                agent.local_budget.burst_bytes == (uint64_t)1 << 30);
    agent_refused("local: {path: /x, exclusive: 20%}\n" REST, "a.yaml:1: exclusive: ", "no pod");
    agent_refused("local: {path: /x}\nloops: 2\n" AGENT_ONE, "a.yaml:2: loops: ", "has one");
    agent_refused("local: {path: /x, write_burst: 1GiB}\n" AGENT_ONE,
                  "a.yaml:1: write_burst: ", "write_budget");
    agent_refused("local: {path: /x, write_budget: 8MiB}\n" AGENT_ONE,
                  "a.yaml:1: write_budget: ", "8196KiB");
}

/* ---- addresses ------------------------------------------------------------------------------ */

static void test_an_enclosure_may_have_several_addresses(void **state)
{
    static const char agents[] = "enclosures:\n- name: e0\n  address: [10.0.0.1:1, '[::1]:2']\n"
                                 "require: none\nvolumes: [{name: kv}]\n";

    accepted(HEAD LINKS E1 "- name: e2\n  address:\n  - 10.0.1.1:1\n  - '[2001:db8::1]:1'\n", &pod);
    assert_int_equal(pod.enclosures[0].address_count, 2);
    assert_string_equal(pod.enclosures[0].address[0], "10.0.0.1:4420");
    assert_string_equal(pod.enclosures[0].address[1], "e0-b.example:4420");
    assert_int_equal(pod.enclosures[1].address_count, 1);
    assert_string_equal(pod.enclosures[1].address[0], "10.0.0.2:4420");
    assert_int_equal(pod.enclosures[2].address_count, 2);
    assert_string_equal(pod.enclosures[2].address[1], "[2001:db8::1]:1");
    accepted(HEAD "- name: e0\n  address: [a:1, a:2, a:3, a:4, a:5, a:6, a:7, a:8]\n", &pod);
    assert_int_equal(pod.enclosures[0].address_count, LIMIT_LINKS);
    assert_int_equal(conf_agent_parse(agents, strlen(agents), "a.yaml", &why, &agent), ICMS_OK);
    assert_int_equal(agent.enclosures[0].address_count, 2);
    assert_string_equal(agent.enclosures[0].address[1], "[::1]:2");
    conf_agent_fini(&agent);
}

static void test_wrong_addresses_are_refused_with_their_line(void **state)
{
    static const char name[] = "enclosures:\n- name: e0\n  address: [10.0.0.1:1, e0.example:1]\n"
                               "volumes: [{name: kv}]\n";
    static const char twice[] = "enclosures:\n- name: e0\n  address: [10.0.0.1:1, 10.0.0.2:1]\n"
                                "- name: e1\n  address:\n  - 10.0.0.3:1\n  - 10.0.0.2:1\n"
                                "volumes: [{name: kv}]\n";

    refused(HEAD "- name: e0\n  address: [a:1, a:2, a:3, a:4, a:5, a:6, a:7, a:8, a:9]\n",
            "p.yaml:5: address", "more than 8");
    refused(HEAD "- name: e0\n  address: []\n", "p.yaml:5: address", "the list is empty");
    refused(HEAD "- name: e0\n  address: {a: 1}\n", "p.yaml:5: address", "not a map");
    refused(HEAD "- name: e0\n  address: [[a:1]]\n", "p.yaml:5: address", "not a list");
    refused(HEAD "- name: e0\n  address:\n  - a:1\n  - a:0\n", "p.yaml:7: address",
            "'a:0' has port 0, on which nothing listens");
    refused(HEAD "- name: e0\n  address: a:1, b:1\n", "p.yaml:5: address",
            "write several as a list in brackets");
    refused(HEAD "- name: e0\n  address: 0.0.0.0:4420\n", "p.yaml:5: address",
            "0.0.0.0:4420 stands for all addresses");
    refused(HEAD "- name: e0\n  address:\n  - a:1\n  - '[::]:4420'\n", "p.yaml:7: address",
            "stands for all addresses");
    refused(HEAD "- name: e0\n  address: [a:1, 224.0.0.1:4420]\n", "p.yaml:5: address",
            "is a multicast");
    refused(HEAD "- name: e0\n  address: ['[::1]:1', '[0::1]:1']\n", "p.yaml:5: address",
            "[0::1]:1 is listed twice");
    refused(HEAD "- name: e0\n  address: '[::ffff:10.0.0.1]:1'\n- name: e1\n  address:\n"
                 "  - b:1\n  - 10.0.0.1:1\n",
            "p.yaml:9: address", "the enclosure 'e0' has it already");
    refused(HEAD "- name: e0\n  address: E0.example:1\n- name: e1\n  address: e0.EXAMPLE.:01\n",
            "p.yaml:7: address", "the enclosure 'e0' has it already");
    refused(HEAD "- name: e0\n  address:\n  - a:1\n  - b:1\n  - a:1\n", "p.yaml:8: address",
            "a:1 is listed twice");
    refused(HEAD LINKS "- name: e1\n  address: [b:1,\n    e0-b.example:4420]\n",
            "p.yaml:8: address", "the enclosure 'e0' has it already");
    refused(HEAD "- name: e0\n  address: a:1\n  addresses: [a:1]\n",
            "p.yaml:6: ", "did you mean 'address'?");
    assert_int_equal(conf_agent_parse(name, strlen(name), "a.yaml", &why, &agent), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "a.yaml:3: address: 'e0.example:1' is not a numeric address"));
    assert_int_equal(conf_agent_parse(twice, strlen(twice), "a.yaml", &why, &agent), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "a.yaml:7: address: the enclosure 'e0' has it already"));
    conf_agent_fini(&agent);
}

static void test_addresses_that_come_and_go_are_words(void **state)
{
    char text[256];

    accepted(HEAD E0 E1, &pod);
    accepted(HEAD LINKS E1, &other);
    assert_string_equal(conf_pod_differs(&pod, &other, text, sizeof(text)),
                        "e0 address e0-b.example:4420 added");
    assert_string_equal(conf_pod_differs(&other, &pod, text, sizeof(text)),
                        "e0 address e0-b.example:4420 removed");
    accepted(HEAD "- name: e0\n  address: 10.0.0.9:4420\n" E1, &other);
    assert_string_equal(conf_pod_differs(&pod, &other, text, sizeof(text)),
                        "e0 address 10.0.0.1:4420 -> 10.0.0.9:4420");
    accepted(HEAD "- name: e0\n  address: [10.0.0.1:4420]\n" E1, &other);
    assert_string_equal(conf_pod_differs(&pod, &other, text, sizeof(text)), "");
}

/* What the file of an agent says of a volume of the map. */
static void joined(const char *config, const char *volumes, icms_err err, const char *words)
{
    static struct conf_agent conf;
    static struct conf_pod joined_pod;
    static struct volume_spec specs[LIMIT_AGENT_VOLUMES];
    char map[1024];

    (void)snprintf(map, sizeof(map), HEAD E0 "%s...\n", volumes);
    assert_int_equal(conf_agent_parse(config, strlen(config), "a.yaml", &why, &conf), ICMS_OK);
    assert_int_equal(conf_pod_parse(map, strlen(map), "p", &why, &joined_pod), ICMS_OK);
    why.text[0] = 0;
    assert_int_equal(conf_pod_volumes(&conf, &joined_pod, &why, specs), err);
    if (strstr(why.text, words) == NULL)
        fail_msg("%s", why.text);
    conf_agent_fini(&conf);
}

static void test_two_places_never_disagree(void **state)
{
    joined("pod: /p\nvolumes: [{name: kv, memory_max: 1GiB}]\n", V_KV, ICMS_OK, "");
    joined("pod: /p\nvolumes:\n- name: kv\n  value_max: 8MiB\n  run_blocks: 8\n", V_KV, ICMS_OK,
           "");
    joined("pod: /p\nvolumes:\n- name: kv\n  generation: 3\n", V_KV, ICMS_CONFIG,
           "a.yaml:4: generation: the pod map /p says what it is of volume kv");
    joined("pod: /p\nvolumes:\n- name: kv\n  value_max: 4MiB\n", V_KV, ICMS_CONFIG,
           "a.yaml:4: value_max");
    joined("pod: /p\nvolumes:\n- name: kv\n\n  run_blocks: 4\n", V_KV, ICMS_CONFIG,
           "a.yaml:5: run_blocks");
    joined("pod: /p\nvolumes:\n- name: kv\n  sealed: false\n", V_KV, ICMS_CONFIG, ":4: sealed");
    joined("pod: /p\nvolumes:\n- name: kv\n  encrypted: true\n", V_KV, ICMS_CONFIG,
           ":4: encrypted");
    joined("pod: /p\nvolumes:\n- name: kv\n  uuid: " UUID7 "\n", V_KV, ICMS_CONFIG, ":4: uuid");
    joined("pod: /p\nvolumes:\n- name: kv\n  generation: 9\n", "", ICMS_OK, "");
}

/* A new file, one with a mode of its own, behind a link; what is no file stays. No litter. */
static void test_a_file_is_put_whole(void **state)
{
    char where[] = "/tmp/icms-put-XXXXXX", put[64], link[64], text[32] = "";
    struct stat status;
    FILE *file;

    assert_non_null(mkdtemp(where));
    (void)snprintf(put, sizeof(put), "%s/map", where);
    (void)snprintf(link, sizeof(link), "%s/link", where);
    assert_int_equal(conf_file_put(put, "one", 3, &why), ICMS_OK);
    assert_int_equal(stat(put, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0644);
    assert_int_equal(chmod(put, 0640), 0);
    assert_int_equal(symlink("map", link), 0);
    assert_int_equal(conf_file_put(link, "second", 6, &why), ICMS_OK);
    assert_int_equal(lstat(link, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(stat(put, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0640);
    file = fopen(put, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    assert_int_equal(fclose(file), 0);
    assert_string_equal(text, "second");
    assert_int_equal(unlink(link), 0);
    assert_int_equal(conf_file_put(where, "three", 5, &why), ICMS_INVALID);
    (void)snprintf(link, sizeof(link), "%s/none/map", where);
    assert_int_equal(conf_file_put(link, "four", 4, &why), ICMS_NOT_FOUND);
    assert_int_equal(unlink(put), 0);
    assert_int_equal(rmdir(where), 0); /* nothing else was in it */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_places_never_disagree),
        cmocka_unit_test(test_a_map_is_taken_as_written),
        cmocka_unit_test(test_a_wrong_map_is_refused_with_its_line),
        cmocka_unit_test(test_where_an_enclosure_shows_its_status_is_a_url),
        cmocka_unit_test(test_a_map_that_is_cut_anywhere_is_refused),
        cmocka_unit_test(test_an_address_is_numeric_or_a_name),
        cmocka_unit_test(test_what_is_no_file_is_refused_at_once),
        cmocka_unit_test(test_a_map_is_compared_with_the_one_before),
        cmocka_unit_test(test_a_shrunken_map_is_told_apart),
        cmocka_unit_test(test_capacities_are_weights),
        cmocka_unit_test(test_differences_are_words),
        cmocka_unit_test(test_keys_stay_with_the_agent),
        cmocka_unit_test(test_a_map_names_other_machines_that_prove_something),
        cmocka_unit_test(test_a_map_stands_for_the_list),
        cmocka_unit_test(test_a_drive_beside_the_pod),
        cmocka_unit_test(test_an_enclosure_may_have_several_addresses),
        cmocka_unit_test(test_wrong_addresses_are_refused_with_their_line),
        cmocka_unit_test(test_addresses_that_come_and_go_are_words),
        cmocka_unit_test(test_a_file_is_put_whole),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
