/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bed of host_bed.h: two simulated machines, an association between them, requests that note
 * how they ended. Called by the tests of the initiator on their thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/check.h"
#include "nvmf/host/host_bed.h"

static void bed_up(struct nvmf_ctrl *ctrl)
{
    ((struct bed *)nvmf_ctrl_owner(ctrl))->ups++;
}

static void bed_changed(struct nvmf_ctrl *ctrl)
{
    ((struct bed *)nvmf_ctrl_owner(ctrl))->changes++;
}

static void bed_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    struct bed *bed = nvmf_ctrl_owner(ctrl);

    bed->downs++;
    bed->down_err = err;
    strncpy(bed->why, why, sizeof(bed->why) - 1);
}

static void bed_closed(struct nvmf_ctrl *ctrl)
{
    ((struct bed *)nvmf_ctrl_owner(ctrl))->closes++;
}

static const struct nvmf_ctrl_ops bed_ops = {
    .up = bed_up, .changed = bed_changed, .down = bed_down, .closed = bed_closed};

void bed_uuid(struct uuid *uuid, uint8_t n)
{
    memset(uuid->bytes, n, sizeof(uuid->bytes));
}

struct bed *bed_new(uint64_t bytes_per_s)
{
    struct bed *bed = calloc(1, sizeof(*bed));
    struct sim_opts sim_opts;
    struct loop_opts loop_opts;

    check(bed != NULL);
    sim_opts_init(&sim_opts, 7);
    if (bytes_per_s != 0)
        sim_opts.net_bytes_per_s = bytes_per_s;
    bed->sim = sim_new(&sim_opts);
    bed->node[0] = sim_node_new(bed->sim, "10.1.0.1");
    bed->node[1] = sim_node_new(bed->sim, "10.1.0.2");
    for (int i = 0; i < 2; i++) {
        loop_opts_init(&loop_opts);
        assert_int_equal(loop_new(sim_node_env(bed->node[i]), &loop_opts, NULL, &bed->loop[i]),
                         ICMS_OK);
    }
    bed->fake = calloc(1, sizeof(*bed->fake));
    check(bed->fake != NULL);
    bed->fake->volume_count = 2;
    for (uint8_t i = 0; i < 2; i++) {
        bed_uuid(&bed->fake->volumes[i].uuid, (uint8_t)(i + 1));
        bed->fake->volumes[i].value_bytes_max = 8 << 20;
        bed->fake->volumes[i].sealed = i == 0;
    }
    fake_target_open(bed->fake, bed->loop[1], "10.1.0.2", 4420);
    for (int i = 0; i < 2; i++)
        assert_int_equal(loop_start(bed->loop[i], NULL), ICMS_OK);
    return bed;
}

void bed_ctrl(struct bed *bed, struct nvmf_ctrl_opts *opts)
{
    struct nvmf_ctrl_opts defaults;

    if (opts == NULL) {
        nvmf_ctrl_opts_init(&defaults);
        opts = &defaults;
    }
    opts->addr = bed->fake->addr;
    opts->subnqn = "nqn.2014-08.org.nvmexpress:uuid:fake";
    opts->hostnqn = "nqn.2014-08.org.nvmexpress:uuid:host";
    opts->host_id = (struct uuid){{1}};
    opts->ops = &bed_ops;
    opts->owner = bed;
    assert_int_equal(nvmf_ctrl_new(bed->loop[0], opts, NULL, &bed->ctrl), ICMS_OK);
}

/* The host's time. */
uint64_t bed_now_ns(const struct bed *bed)
{
    return loop_env_now_ns(sim_node_env(bed->node[0]));
}

void bed_run(struct bed *bed, uint64_t ns)
{
    (void)sim_run(bed->sim, sim_now_ns(bed->sim) + ns);
}

void bed_on_loop(struct bed *bed, int i, void (*run)(void *arg), void *arg)
{
    sim_call(bed->sim, bed->loop[i], run, arg);
}

static void bed_do_open(void *arg)
{
    struct bed *bed = arg;

    nvmf_ctrl_open(bed->ctrl, loop_now_ns(bed->loop[0]) + bed->timeout_ns);
}

void bed_do_close(void *arg)
{
    struct bed *bed = arg;

    nvmf_ctrl_close(bed->ctrl, ICMS_CLOSED);
    check(bed->closes == 0);
}

void bed_do_release(void *arg)
{
    fake_target_release(((struct bed *)arg)->fake);
}

void bed_do_event(void *arg)
{
    fake_target_event(((struct bed *)arg)->fake);
}

void bed_do_drop(void *arg)
{
    fake_target_drop(((struct bed *)arg)->fake);
}

void bed_open_within(struct bed *bed, uint64_t timeout_ns)
{
    bed->timeout_ns = timeout_ns;
    bed_on_loop(bed, 0, bed_do_open, bed);
}

void bed_open(struct bed *bed)
{
    bed_open_within(bed, 1000 * MS);
    bed_run(bed, 500 * MS);
}

struct bed *bed_ready(struct nvmf_ctrl_opts *opts, uint64_t bytes_per_s)
{
    struct bed *bed = bed_new(bytes_per_s);

    bed_ctrl(bed, opts);
    bed_open(bed);
    assert_string_equal(bed->why, "");
    assert_int_equal(bed->ups, 1);
    return bed;
}

void bed_free(struct bed *bed)
{
    for (int i = 0; i < 2; i++) {
        loop_stop(bed->loop[i]);
        loop_join(bed->loop[i]);
    }
    for (int i = 0; i < 2; i++)
        loop_free(&bed->loop[i]);
    nvmf_ctrl_free(&bed->ctrl);
    fake_target_fini(bed->fake);
    free(bed->fake);
    sim_free(&bed->sim);
    free(bed);
}

static void op_done(struct nvmf_req *req)
{
    struct op *op = container_of(req, struct op, req);

    op->done++;
    op->done_ns = bed_now_ns(op->bed);
}

void bed_op(struct op *op, struct bed *bed, const char *key, void *data, uint32_t bytes,
            uint64_t timeout_ns)
{
    memset(op, 0, sizeof(*op));
    op->bed = bed;
    op->req.nsid = 1;
    op->req.key.length = (uint8_t)strlen(key);
    memcpy(op->req.key.bytes, key, strlen(key));
    op->req.data[0] = (struct iovec){data, bytes};
    op->req.deadline_ns = bed_now_ns(bed) + timeout_ns;
    op->req.done = op_done;
}

static void bed_do_start(void *arg)
{
    struct op *op = arg;

    uint32_t done = op->done;

    op->start_err = op->start(op->bed->ctrl, &op->req);
    op->done_in_call = op->done - done;
}

/* Starts a request on the association's loop. */
icms_err bed_go(struct op *op, icms_err (*start)(struct nvmf_ctrl *ctrl, struct nvmf_req *req))
{
    op->start = start;
    bed_on_loop(op->bed, 0, bed_do_start, op);
    assert_int_equal(op->done_in_call, 0);
    return op->start_err;
}

uint8_t *bed_pattern(uint32_t bytes, uint8_t seed)
{
    uint8_t *data = malloc(bytes);

    check(data != NULL);
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
    return data;
}

void bed_put(struct bed *bed, const char *key, const void *data, uint32_t bytes)
{
    struct key k = {.length = (uint8_t)strlen(key)};

    memcpy(k.bytes, key, strlen(key));
    fake_target_put(bed->fake, 1, &k, data, bytes);
}
