/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop/loop_test.h: the contract tests run on a rig: one back end with what a test needs of it.
 *
 * Test bodies run on the main thread; what happens on loops is recorded there with check(), and
 * asserted by the body afterwards.
 */
#ifndef LOOP_LOOP_TEST_H
#define LOOP_LOOP_TEST_H

#include "loop/loop.h"

struct rig {
    struct loop_env *env;
    const char *host;     /* address that listens and connects reach             */
    const char *path;     /* a file that does not exist yet                      */
    bool threads;         /* loops run by themselves                             */
    struct loop *loop[2]; /* made by rig_loops                                   */
    void *own;            /* of the back end                                     */

    /* Lets loops work until condition(arg); false when that took too long. */
    bool (*until)(struct rig *rig, bool (*condition)(void *arg), void *arg);

    /* Lets loops work for a while. */
    void (*idle)(struct rig *rig);
};

/* cmocka fixtures: *state is the rig. */
int rig_uring_setup(void **state);
int rig_uring_teardown(void **state);
int rig_sim_setup(void **state);
int rig_sim_teardown(void **state);

#endif
