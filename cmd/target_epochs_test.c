/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When icms-target says that hosts use another epoch of the pod map: after a minute, and once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "target_epochs.h"

#define S ((uint64_t)1000 * 1000 * 1000)

static struct target_epochs epochs;
static const struct nvmf_target_connected *named;

/* Of three hosts: one that tells no epoch, one that has no map, and this one. */
static uint32_t look(uint64_t at_s, uint32_t own, uint32_t least, uint32_t most)
{
    static struct nvmf_target_connected hosts[3];

    hosts[1].has_epoch = hosts[2].has_epoch = true;
    hosts[2].epoch_min = least;
    hosts[2].epoch_max = most;
    named = NULL;
    return target_epochs_look(&epochs, own, hosts, 3, at_s * S, &named);
}

static void what_lasts_is_said_once(void **state)
{
    epochs = (struct target_epochs){0};
    assert_int_equal(look(1000, 7, 7, 7), 0);
    assert_int_equal(look(1001, 7, 5, 5), 0);
    assert_int_equal(look(1059, 7, 5, 5), 0);
    assert_int_equal(look(1060, 7, 5, 5), 1);
    assert_int_equal(named->epoch_max, 5);
    assert_int_equal(look(1061, 7, 5, 5), 0);
    assert_int_equal(look(9000, 7, 6, 6), 0); /* still not ours */
    assert_int_equal(look(9001, 7, 7, 7), 0);
    assert_int_equal(look(9002, 7, 8, 8), 0);
    assert_int_equal(look(9061, 7, 7, 8), 1); /* or we are behind */
}

static void a_new_epoch_has_its_time(void **state)
{
    epochs = (struct target_epochs){0};
    assert_int_equal(look(1000, 7, 5, 5), 0);
    assert_int_equal(look(1050, 7, 5, 5), 0);
    assert_int_equal(look(1061, 8, 5, 5), 0);
    assert_int_equal(look(1120, 8, 5, 5), 0);
    assert_int_equal(look(1121, 8, 5, 5), 1);
}

static void a_host_without_a_map_is_left_out(void **state)
{
    epochs = (struct target_epochs){0};
    assert_int_equal(look(1000, 7, 7, 7), 0);
    assert_int_equal(look(2000, 7, 7, 7), 0);
    assert_int_equal(look(3000, 7, 0, 0), 0);
    assert_int_equal(look(4000, 7, 0, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_lasts_is_said_once),
        cmocka_unit_test(a_new_epoch_has_its_time),
        cmocka_unit_test(a_host_without_a_map_is_left_out),
    };

    return cmocka_run_group_tests_name("target epochs", tests, NULL, NULL);
}
