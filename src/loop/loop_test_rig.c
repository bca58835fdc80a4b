/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of loop.h share on every rig, see loop_test.h. Called by them on the main thread.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "loop/loop_test.h"

void rig_loops(struct rig *rig, unsigned count, uint32_t entries_max)
{
    struct loop_opts opts;
    struct err_why why = {""};

    loop_opts_init(&opts);
    opts.entries_max = entries_max;
    for (unsigned i = 0; i < count; i++) {
        icms_err err = loop_new(rig->env, &opts, &why, &rig->loop[i]);

        if (err != ICMS_OK)
            print_message("%s\n", why.text);
        assert_int_equal(err, ICMS_OK);
    }
}

void rig_start(struct rig *rig)
{
    for (unsigned i = 0; i < 2 && rig->loop[i] != NULL; i++)
        assert_int_equal(loop_start(rig->loop[i], NULL), ICMS_OK);
}

void rig_end(struct rig *rig)
{
    for (unsigned i = 0; i < 2 && rig->loop[i] != NULL; i++)
        loop_stop(rig->loop[i]);
    for (unsigned i = 0; i < 2 && rig->loop[i] != NULL; i++)
        loop_join(rig->loop[i]);
    for (unsigned i = 0; i < 2; i++)
        loop_free(&rig->loop[i]);
}

bool rig_flag_is_up(void *arg)
{
    return atomic_load((atomic_int *)arg) != 0;
}

void rig_call_run(struct loop_msg *msg)
{
    struct rig_call *call = container_of(msg, struct rig_call, msg);

    check(loop_is_mine(call->loop));
    call->run(call->loop, call->arg);
    atomic_store(&call->ran, 1);
}

/* Runs a function on a loop and waits for its end. */
void rig_call(struct rig *rig, struct loop *loop, void (*run)(struct loop *loop, void *arg),
              void *arg)
{
    struct rig_call call = {.run = run, .loop = loop, .arg = arg};

    loop_send(loop, &call.msg, rig_call_run);
    assert_true(rig->until(rig, rig_flag_is_up, &call.ran));
}

void rig_wait_done(struct loop_op *op)
{
    struct rig_wait *wait = container_of(op, struct rig_wait, op);

    check(loop_is_mine(op->loop));
    check(!loop_op_busy(op));
    wait->err = op->err;
    wait->bytes = op->bytes;
    wait->sock = op->sock;
    wait->calls++;
    atomic_fetch_add(&wait->done, 1);
}

void rig_wait_for(struct rig *rig, struct rig_wait *wait)
{
    assert_true(rig->until(rig, rig_flag_is_up, &wait->done));
    assert_int_equal(wait->calls, 1);
    wait->calls = 0;
    atomic_store(&wait->done, 0);
}

void rig_fill(uint8_t *memory, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (uint8_t)(hash64_mix(seed + i / 8) >> (8 * (i % 8)));
}

struct loop_file *rig_file(struct rig *rig, bool direct)
{
    struct loop_file_opts opts = {.path = rig->path,
                                  .create = true,
                                  .write = true,
                                  .direct = direct,
                                  .exclusive = true,
                                  .bytes = RIG_FILE_BYTES};
    struct loop_file *file = NULL;
    struct err_why why = {""};
    icms_err err = loop_file_open(rig->env, &opts, &why, &file);

    if (err != ICMS_OK)
        print_message("%s\n", why.text);
    if (err == ICMS_UNSUPPORTED)
        skip(); /* /var/tmp has no direct I/O */
    assert_int_equal(err, ICMS_OK);
    assert_int_equal(loop_file_bytes(file), RIG_FILE_BYTES);
    return file;
}

void rig_disk_write(struct loop *loop, void *arg)
{
    struct rig_disk *d = arg;

    loop_file_write(loop, &d->wait.op, d->file, 0, d->offset, d->memory, d->bytes, rig_wait_done);
    check(loop_op_busy(&d->wait.op));
}
