/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop/loop_test.h: the contract tests run on a rig: one back end with what a test needs of it.
 *
 * Test bodies run on the main thread; what happens on loops is recorded there with check(), and
 * asserted by the body afterwards.
 */
#ifndef LOOP_LOOP_TEST_H
#define LOOP_LOOP_TEST_H

#include <stdatomic.h>

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

/* ---- loop_test_rig.c: for the tests of the contract alone -------------------------------------
 */

#define RIG_FILE_BYTES ((uint32_t)4 << 20) /* of rig_file */

/* Makes so many loops (2 at most), starts them; ends and frees them. */
void rig_loops(struct rig *rig, unsigned count, uint32_t entries_max);
void rig_start(struct rig *rig);
void rig_end(struct rig *rig);

/* Whether an atomic_int is not 0: a condition for until. */
bool rig_flag_is_up(void *arg);

/* A function that is to run on a loop; the run of its message. */
struct rig_call {
    struct loop_msg msg;                       /* rig_call_run            */
    void (*run)(struct loop *loop, void *arg); /* the function            */
    struct loop *loop;                         /* where                   */
    void *arg;                                 /* its argument            */
    atomic_int ran;                            /* 1: it is over           */
};
void rig_call_run(struct loop_msg *msg);

/* Runs a function on a loop and waits for its end. */
void rig_call(struct rig *rig, struct loop *loop, void (*run)(struct loop *loop, void *arg),
              void *arg);

/* An operation with its result, to wait for on the main thread. */
struct rig_wait {
    struct loop_op op;      /* started with rig_wait_done    */
    icms_err err;           /* as op had it in done          */
    uint32_t bytes;         /* likewise                      */
    struct loop_sock *sock; /* likewise                      */
    unsigned calls;         /* of done, since the last wait  */
    atomic_int done;        /* the same, for other threads   */
};

/* The done of its op; waits on the main thread until it was called, once. */
void rig_wait_done(struct loop_op *op);
void rig_wait_for(struct rig *rig, struct rig_wait *wait);

/* Bytes that follow from a seed. */
void rig_fill(uint8_t *memory, size_t bytes, uint64_t seed);

/* A new file of RIG_FILE_BYTES at the rig's path; skips the test where direct is not possible. */
struct loop_file *rig_file(struct rig *rig, bool direct);

/* A read or write of a file. */
struct rig_disk {
    struct loop_file *file; /* which           */
    struct rig_wait wait;   /* its operation   */
    uint8_t *memory;        /* of bytes        */
    uint64_t offset;        /* in the file     */
    uint32_t bytes;         /* how many        */
};

/* On a loop: writes it. */
void rig_disk_write(struct loop *loop, void *arg);

#endif
