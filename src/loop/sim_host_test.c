/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What simulated machines lack: memory, memory that may be locked, clocks that nobody sets. What
 * that does to connections is in sim_test.c.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "loop/sim.h"

#define HOUR_NS ((uint64_t)3600 * 1000000000)
#define BYTES   4096

static struct sim *sim;
static struct sim_node *nodes[2];
static struct loop *loops[2];

static int room_new(void **state)
{
    struct loop_opts opts;
    struct sim_opts room;

    loop_opts_init(&opts);
    sim_opts_init(&room, 1);
    sim = sim_new(&room);
    for (int i = 0; i < 2; i++) {
        nodes[i] = sim_node_new(sim, i == 0 ? "10.1.0.1" : "10.1.0.2");
        assert_int_equal(loop_new(sim_node_env(nodes[i]), &opts, NULL, &loops[i]), ICMS_OK);
    }
    return 0;
}

static int room_free(void **state)
{
    for (int i = 0; i < 2; i++) {
        loop_stop(loops[i]);
        loop_join(loops[i]);
        loop_free(&loops[i]);
    }
    sim_free(&sim);
    return 0;
}

static void run_allocate(void *arg)
{
    *(bool *)arg = !sim_memory_fails();
}

/* Whether the program of a machine gets memory. */
static bool gets_memory(int node)
{
    bool gets = false;

    sim_call(sim, loops[node], run_allocate, &gets);
    return gets;
}

static void a_machine_without_memory_makes_nothing_new(void **state)
{
    struct loop_file_opts file = {.path = "/file", .create = true, .write = true, .bytes = BYTES};
    struct loop_env *env = sim_node_env(nodes[0]);
    struct loop_region *region = NULL;
    struct loop_event *event = NULL;
    struct loop_file *opened = NULL;
    struct sim_stats stats;

    for (int i = 0; i < 2; i++)
        assert_int_equal(loop_start(loops[i], NULL), ICMS_OK);
    assert_true(gets_memory(0));
    sim_memory_short(nodes[0], 1);
    assert_int_equal(loop_region_new(env, "r", BYTES, false, NULL, &region), ICMS_NO_MEMORY);
    assert_int_equal(loop_event_new(env, LOOP_EVENT_WAIT, &event), ICMS_NO_MEMORY);
    assert_int_equal(loop_file_open(env, &file, NULL, &opened), ICMS_NO_MEMORY);
    assert_false(gets_memory(0));
    assert_true(gets_memory(1));
    assert_false(sim_memory_fails()); /* nobody's */
    sim_node_as(nodes[0]);
    assert_true(sim_memory_fails());
    sim_node_as(NULL);
    sim_stats(sim, &stats);
    assert_int_equal(stats.memory_refused, 5);
    sim_memory_short(nodes[0], 0);
    assert_true(gets_memory(0));
    sim_memory_short(nodes[0], 1);
    sim_node_crash(nodes[0], false, false);
    assert_int_equal(loop_event_new(env, LOOP_EVENT_WAIT, &event), ICMS_OK);
    loop_event_free(&event);
}

static void some_allocations_fail(void **state)
{
    unsigned failed = 0;

    assert_int_equal(loop_start(loops[0], NULL), ICMS_OK);
    sim_memory_short(nodes[0], 4);
    for (int i = 0; i < 400; i++)
        failed += !gets_memory(0);
    assert_in_range(failed, 50, 150);
}

static void a_machine_may_lock_no_memory(void **state)
{
    struct loop_region *region = NULL;
    struct err_why why = {""};
    struct sim_stats stats;

    assert_int_equal(loop_region_new(sim_node_env(nodes[0]), "r", BYTES, false, NULL, &region),
                     ICMS_OK);
    sim_locked_none(nodes[0], true);
    assert_int_equal(loop_region_register(loops[0], region, &why), ICMS_LIMIT);
    assert_non_null(strstr(why.text, "lock"));
    sim_locked_none(nodes[0], false);
    assert_int_equal(loop_region_register(loops[0], region, &why), ICMS_OK);
    sim_stats(sim, &stats);
    assert_int_equal(stats.locked_refused, 1);
    loop_region_free(&region);
}

static void run_read_wall(void *arg)
{
    assert_true(sim_wall_ns(arg));
}

static uint64_t wall_ns(int node)
{
    uint64_t now_ns = 0;

    sim_call(sim, loops[node], run_read_wall, &now_ns);
    return now_ns;
}

/* Of one machine, and not what loop.h says. */
static void wall_clocks_are_set_one_by_one(void **state)
{
    uint64_t first_ns, loop_ns, nobodys_ns;
    struct sim_stats stats;

    for (int i = 0; i < 2; i++)
        assert_int_equal(loop_start(loops[i], NULL), ICMS_OK);
    first_ns = wall_ns(0);
    loop_ns = loop_env_now_ns(sim_node_env(nodes[0]));
    sim_wall_set(nodes[0], (int64_t)HOUR_NS);
    assert_int_equal(loop_env_now_ns(sim_node_env(nodes[0])), loop_ns);
    assert_in_range(wall_ns(0) - first_ns, HOUR_NS, HOUR_NS + HOUR_NS / 2);
    assert_in_range(wall_ns(1) - first_ns, 0, HOUR_NS / 2);
    sim_wall_set(nodes[0], -(int64_t)HOUR_NS);
    assert_true(wall_ns(0) < first_ns);
    assert_false(sim_wall_ns(&nobodys_ns));
    sim_stats(sim, &stats);
    assert_int_equal(stats.wall_reads, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_machine_without_memory_makes_nothing_new, room_new,
                                        room_free),
        cmocka_unit_test_setup_teardown(some_allocations_fail, room_new, room_free),
        cmocka_unit_test_setup_teardown(a_machine_may_lock_no_memory, room_new, room_free),
        cmocka_unit_test_setup_teardown(wall_clocks_are_set_one_by_one, room_new, room_free),
    };

    return cmocka_run_group_tests_name("sim-host", tests, NULL, NULL);
}
