/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that were ended at an endpoint of events as lines: of which volume, and one an
 * episode; and endpoints that cannot be bound again. The publisher is a fake.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent_events.h"
#include "stderr_rig.h"

#define S ((uint64_t)1000 * 1000 * 1000)

static uint64_t floods[2];
static icms_err unbound[2];

icms_err events_start(const struct events_opts *opts, struct err_why *why,
                      struct events **out_events)
{
    return ICMS_UNSUPPORTED;
}

const char *events_volume(const struct events *events, uint32_t stream)
{
    static const char *const names[] = {"kv", "other", NULL};

    return names[stream];
}

void events_stats(const struct events *events, uint32_t stream, struct events_stats *out_stats)
{
    *out_stats = (struct events_stats){
        .floods = floods[stream], .bound = unbound[stream] == ICMS_OK, .unbound = unbound[stream]};
}

static struct agent_events_seen seen;

/* The lines of one look. */
static char *look(uint64_t now_ns)
{
    static char text[4096];
    struct stderr_rig rig;

    stderr_begin(&rig);
    agent_events_look((const struct events *)&floods, now_ns, &seen);
    return stderr_end(&rig, text, sizeof(text));
}

static void an_episode_has_one_line(void **state)
{
    const char *text;

    assert_string_equal(look(1 * S), "");
    floods[0] = 2;
    text = look(2 * S);
    assert_non_null(strstr(text, "events of volume kv: all connections to an endpoint were ended"));
    assert_non_null(strstr(text, "as 64 connections or 2048 subscriptions were reached"));
    assert_non_null(strstr(text, "have fewer of them"));
    assert_non_null(strstr(text, "floods=2\n"));
    assert_null(strstr(text, "volume other"));
    for (uint64_t i = 3; i < 200; i++) { /* it goes on for minutes */
        floods[0]++;
        assert_string_equal(look(i * S), "");
    }
    assert_string_equal(look(1000 * S), ""); /* its end has none */
    floods[0]++;
    assert_non_null(strstr(look(1001 * S), "floods=200\n"));
}

static void each_volume_has_its_own(void **state)
{
    const char *text;

    floods[0]++;
    floods[1] = 1;
    text = look(1002 * S);
    assert_non_null(strstr(text, "events of volume other: "));
    assert_null(strstr(text, "volume kv"));
    agent_events_look(NULL, 1003 * S, &seen); /* nothing is published */
}

static void what_cannot_be_bound_has_a_line_and_its_end_too(void **state)
{
    const char *text;

    unbound[1] = ICMS_ADDRESS_IN_USE;
    text = look(2000 * S);
    assert_non_null(strstr(text, "events of volume other: an endpoint cannot be bound again"));
    assert_non_null(strstr(text, ": address is in use; "));
    assert_null(strstr(text, "volume kv"));
    assert_string_equal(look(2001 * S), "");
    unbound[1] = ICMS_OK;
    text = look(2002 * S);
    assert_non_null(strstr(text, "events of volume other: its endpoints are bound again\n"));
    assert_null(strstr(text, "volume kv"));
    assert_string_equal(look(2003 * S), "");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_episode_has_one_line),
        cmocka_unit_test(each_volume_has_its_own),
        cmocka_unit_test(what_cannot_be_bound_has_a_line_and_its_end_too),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
