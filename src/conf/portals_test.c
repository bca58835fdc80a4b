/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `listen` and `advertise` of a target: one address or a list of them, and how the two go together.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "conf/conf_int.h"

#define FILE_TEXT                                                                                  \
    "name: e0\ndrives: [{path: /d0, size: 1GiB}]\nvolumes: [{name: kv}]\nrequire: none\n"

static struct conf_target target;
static struct err_why why;

static icms_err target_parse(const char *keys)
{
    char text[2048];

    why.text[0] = '\0';
    conf_target_fini(&target);
    (void)snprintf(text, sizeof(text), FILE_TEXT "%s", keys);
    return conf_target_parse(text, strlen(text), "t.yaml", &why, &target);
}

static void accepted(const char *keys)
{
    if (target_parse(keys) != ICMS_OK)
        fail_msg("%s\nrefused: %s", keys, why.text);
}

static void refused(const char *keys, const char *place, const char *word)
{
    icms_err err = target_parse(keys);

    if (err != ICMS_CONFIG || strncmp(why.text, place, strlen(place)) != 0 ||
        strstr(why.text, word) == NULL)
        fail_msg("%s\nanswered %s '%s', wanted '%s ... %s'", keys, icms_err_name(err), why.text,
                 place, word);
}

static void one_address_is_a_list_of_one(void **state)
{
    accepted("");
    assert_int_equal(target.listen_count, 1);
    assert_string_equal(target.listen[0], "127.0.0.1:4420");
    assert_int_equal(target.advertise_count, 1);
    assert_string_equal(target.advertise[0], "127.0.0.1:4420");
    accepted("listen: 192.0.2.1:4420\nadvertise: [192.0.2.2:4421]\n");
    assert_int_equal(target.listen_count, 1);
    assert_string_equal(target.listen[0], "192.0.2.1:4420");
    assert_int_equal(target.advertise_count, 1);
    assert_string_equal(target.advertise[0], "192.0.2.2:4421");
}

static void a_list_is_taken_in_order(void **state)
{
    accepted("listen: [192.0.2.1:4420, '[2001:db8::1]:4420', 192.0.2.1:4421]\n");
    assert_int_equal(target.listen_count, 3);
    assert_string_equal(target.listen[0], "192.0.2.1:4420");
    assert_string_equal(target.listen[1], "[2001:db8::1]:4420");
    assert_string_equal(target.listen[2], "192.0.2.1:4421");
    assert_int_equal(target.advertise_count, 3);
    assert_string_equal(target.advertise[2], "192.0.2.1:4421");
    accepted("listen: [192.0.2.1:1, 192.0.2.1:2]\nadvertise: [10.0.2.2:1, 0.0.0.0:2]\n");
    assert_string_equal(target.advertise[0], "10.0.2.2:1");
    assert_string_equal(target.advertise[1], "0.0.0.0:2");
}

static void eight_is_the_most(void **state)
{
    accepted("listen: [127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3, 127.0.0.1:4, 127.0.0.1:5,\n"
             "  127.0.0.1:6, 127.0.0.1:7, 127.0.0.1:8]\n");
    assert_int_equal(target.listen_count, LIMIT_PORTALS);
    assert_string_equal(target.listen[7], "127.0.0.1:8");
    refused("listen: [127.0.0.1:1, 127.0.0.1:2, 127.0.0.1:3, 127.0.0.1:4, 127.0.0.1:5,\n"
            "  127.0.0.1:6, 127.0.0.1:7, 127.0.0.1:8, 127.0.0.1:9]\n",
            "t.yaml:6: ", "listen: more than 8");
}

static void lists_that_are_wrong_are_refused(void **state)
{
    refused("listen: []\n", "t.yaml:5: ", "listen: the list is empty");
    refused("listen: {a: b}\n", "t.yaml:5: ", "listen: ");
    refused("listen: [[127.0.0.1:1]]\n", "t.yaml:5: ", "listen: ");
    refused("listen:\n- 127.0.0.1:1\n- here:2\n", "t.yaml:7: ", "'here:2' is not a numeric");
    refused("listen: [127.0.0.1:1, none]\n", "t.yaml:5: ", "'none'");
    refused("listen:\n- 127.0.0.1:1\n- 127.0.0.1:2\n- 127.0.0.1:1\n",
            "t.yaml:8: ", "listen: '127.0.0.1:1' is listed twice");
    refused("listen: [127.0.0.1:1, 127.0.0.1:2]\nadvertise: 127.0.0.1:1\n",
            "t.yaml:6: ", "advertise: 1 addresses, and listen has 2");
    refused("listen: 127.0.0.1:1\nadvertise: [127.0.0.1:1, 127.0.0.1:2]\n",
            "t.yaml:6: ", "advertise: 2 addresses, and listen has 1");
    refused("listen: [127.0.0.1:1, 127.0.0.1:2]\nadvertise: [10.0.0.1:1, 10.0.0.1:1]\n",
            "t.yaml:6: ", "advertise: '10.0.0.1:1' is listed twice");
    refused("listen: [127.0.0.1:1, 127.0.0.1:2]\nadvertise: [10.0.0.1:1, 10.0.0.1:0]\n",
            "t.yaml:6: ", "port 0, on which nothing listens");
    refused("listen:\n- '[::1]:1'\n- '[0::1]:01'\n", "t.yaml:7: ", "'[0::1]:01' is listed twice");
    refused("listen: ['[::ffff:127.0.0.1]:1', 127.0.0.1:1]\n", "t.yaml:5: ", "twice");
    refused("listen: 224.0.0.1:4420\n", "t.yaml:5: ", "listen: 224.0.0.1:4420 is a multicast");
    refused("listen:\n- 127.0.0.1:1\n- '[ff02::1]:4420'\n", "t.yaml:7: ", "is a multicast");
    refused("listen: 192.0.2.1:1, 192.0.2.2:1\n", "t.yaml:5: ", "write several as a list");
    accepted("listen: 0.0.0.0:4420\n");
    accepted("listen: '[::]:4420'\n");
}

/* Brackets without quotes are a list. */
static void an_ipv6_address_needs_quotes(void **state)
{
    accepted("listen: \"[::1]:4420\"\n");
    refused("listen: [::1]:4420\n", "t.yaml:5: ", "in quotes, as in \"[2001:db8::10]:4420\"");
    refused("listen:\n- 127.0.0.1:1\n- [2001:db8::10]:4420\n", "t.yaml:7: ", "in quotes");
    refused("listen: [[::1]:4420, 127.0.0.1:1]\n", "t.yaml:5: ", "in quotes");
    refused("listen: ::1:4420\n", "t.yaml:5: ", "\"[::1]:4420\" (with the quotes)");
}

static void a_list_that_is_not_closed(void **state)
{
    refused("listen: [127.0.0.1:1, 127.0.0.1:2\nloops: 1\n", "t.yaml:5: ", "is not closed");
    refused("listen: [127.0.0.1:1,\n\n", "t.yaml:5: ", "is not closed");
}

/* Ports that are picked are not the same. */
static void port_0_may_be_there_twice(void **state)
{
    accepted("listen: [127.0.0.1:0, 127.0.0.1:0]\n");
    assert_int_equal(target.listen_count, 2);
}

/* It is enough that other machines reach one of them. */
static void any_address_that_others_reach_counts(void **state)
{
    const char text[] = "name: e0\ndrives: [{path: /d0, size: 1GiB}]\nvolumes: [{name: kv}]\n"
                        "listen: [127.0.0.1:1, 192.0.2.1:1]\n";

    accepted("listen: [127.0.0.1:1, 192.0.2.1:1, 192.0.2.2:1]\n");
    assert_int_equal(target.warnings.count, 1);
    assert_non_null(strstr(target.warnings.text[0], "listen: 192.0.2.1:1 can be reached"));
    accepted("listen: [127.0.0.1:1, 127.0.0.2:1]\n");
    assert_int_equal(target.warnings.count, 0);
    conf_target_fini(&target);
    assert_int_equal(conf_target_parse(text, strlen(text), "t.yaml", &why, &target), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "other machines reach 192.0.2.1:1, and no host has a secret"));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_address_is_a_list_of_one),
        cmocka_unit_test(a_list_is_taken_in_order),
        cmocka_unit_test(eight_is_the_most),
        cmocka_unit_test(lists_that_are_wrong_are_refused),
        cmocka_unit_test(an_ipv6_address_needs_quotes),
        cmocka_unit_test(a_list_that_is_not_closed),
        cmocka_unit_test(port_0_may_be_there_twice),
        cmocka_unit_test(any_address_that_others_reach_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
