/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often icms-target says that an authentication failed: once a minute for a host, and not more
 * often when a stranger changes its name; what was left out is counted.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "target_auth.h"

#define S ((uint64_t)1000 * 1000 * 1000)

static bool said(const char *host, enum nvmf_target_auth_result result, uint64_t now_s,
                 uint64_t *out_missed)
{
    struct nvmf_target_auth auth = {.result = result};

    (void)snprintf(auth.hostnqn, sizeof(auth.hostnqn), "%s", host);
    return target_auth_said(&auth, now_s * S, out_missed);
}

static void lines_are_bounded(void **state)
{
    uint64_t missed = 0;
    unsigned lines = 0;
    char name[32];

    assert_true(said("nqn.a", NVMF_TARGET_AUTH_WRONG, 1000, &missed));
    for (int i = 0; i < 100; i++)
        assert_false(said("nqn.a", NVMF_TARGET_AUTH_WRONG, 1000 + i % 60, &missed));
    assert_true(said("nqn.a", NVMF_TARGET_AUTH_TIMEOUT, 1059, &missed)); /* something else */
    assert_int_equal(missed, 100);
    assert_true(said("nqn.a", NVMF_TARGET_AUTH_WRONG, 1060, &missed));
    assert_int_equal(missed, 0);
    for (int i = 0; i < 10000; i++) { /* 100 s of a stranger with many names */
        (void)snprintf(name, sizeof(name), "nqn.s%d", i);
        lines += said(name, NVMF_TARGET_AUTH_UNKNOWN, 1060 + (uint64_t)i / 100, &missed);
    }
    assert_in_range(lines, 15, 20);
    assert_true(said("nqn.b", NVMF_TARGET_AUTH_PASSED, 1160, &missed)); /* passes have their own */
    assert_int_equal(missed, 0);
    assert_true(said("nqn.c", NVMF_TARGET_AUTH_WRONG, 2000, &missed));
    assert_true(missed > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_bounded),
    };

    return cmocka_run_group_tests_name("target auth", tests, NULL, NULL);
}
