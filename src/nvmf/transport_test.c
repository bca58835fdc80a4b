/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue pairs of host and target over another transport than TCP.
 *
 * Goal: what is in front of nvmf/transport.h knows nothing of TCP. Method: the initiator and the
 * target, with an owner that keeps values in memory, talk through mem_transport.h on simulated
 * loops: no socket, no PDU.
 */
#include "base/check.h"
#include "loop/sim.h"
#include "nvmf/host/host_int.h"
#include "nvmf/mem_transport.h"
#include "nvmf/target/target_test.h"

#define MS    ((uint64_t)1000000)
#define LARGE (3u << 20)

struct pair {
    struct rig *rig;
    struct loop *loop; /* the host's */
    struct nvmf_ctrl *ctrl;
    uint32_t ups, downs, closes;
    icms_err down_err;
};

/* A request, and how it ended. */
struct op {
    struct nvmf_req req;
    struct pair *pair;
    icms_err (*start)(struct nvmf_ctrl *ctrl, struct nvmf_req *req);
    uint32_t done;
};

static void pair_up(struct nvmf_ctrl *ctrl)
{
    ((struct pair *)nvmf_ctrl_owner(ctrl))->ups++;
}

static void pair_changed(struct nvmf_ctrl *ctrl)
{
}

static void pair_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    struct pair *pair = nvmf_ctrl_owner(ctrl);

    pair->downs++;
    pair->down_err = err;
}

static void pair_closed(struct nvmf_ctrl *ctrl)
{
    ((struct pair *)nvmf_ctrl_owner(ctrl))->closes++;
}

static const struct nvmf_ctrl_ops pair_ops = {
    .up = pair_up, .changed = pair_changed, .down = pair_down, .closed = pair_closed};

/* Runs a function on the host's loop. */
static void pair_on_loop(struct pair *pair, void (*run)(void *arg), void *arg)
{
    sim_call(pair->rig->sim, pair->loop, run, arg);
}

static void pair_do_open(void *arg)
{
    struct pair *pair = arg;

    nvmf_ctrl_open(pair->ctrl, loop_now_ns(pair->loop) + 1000 * MS);
}

static void pair_do_close(void *arg)
{
    nvmf_ctrl_close(((struct pair *)arg)->ctrl, ICMS_CLOSED);
}

static void pair_target(struct nvmf_target_opts *opts)
{
    opts->transport = &nvmf_target_mem;
}

/* On each loop memory for two of the largest values, which is one store. */
static void pair_small_target(struct nvmf_target_opts *opts)
{
    opts->transport = &nvmf_target_mem;
    opts->connections_max = 4;
    opts->memory_bytes = (uint64_t)34 << 20;
}

/* An association that is up. */
static struct pair *pair_new(void (*change)(struct nvmf_target_opts *opts))
{
    struct pair *pair = calloc(1, sizeof(*pair));
    struct nvmf_ctrl_opts opts;
    struct loop_opts loop_opts;

    check(pair != NULL);
    memset(&mem_counts, 0, sizeof(mem_counts));
    pair->rig = rig_new(2, change);
    loop_opts_init(&loop_opts);
    assert_int_equal(loop_new(sim_node_env(pair->rig->node), &loop_opts, NULL, &pair->loop),
                     ICMS_OK);
    nvmf_ctrl_opts_init(&opts);
    opts.transport = &nvmf_host_mem;
    opts.addr = pair->rig->addr;
    opts.subnqn = "nqn.2026-01.io.icms:test";
    opts.hostnqn = "nqn.2026-01.io.icms:friend";
    opts.host_id = (struct uuid){{1}};
    opts.ops = &pair_ops;
    opts.owner = pair;
    assert_int_equal(nvmf_ctrl_new(pair->loop, &opts, NULL, &pair->ctrl), ICMS_OK);
    assert_int_equal(loop_start(pair->loop, NULL), ICMS_OK);
    pair_on_loop(pair, pair_do_open, pair);
    rig_run(pair->rig, 500);
    assert_int_equal(pair->ups, 1);
    return pair;
}

/* Ends the association, if it has not ended, and all is given back. */
static void pair_free(struct pair *pair)
{
    pair_on_loop(pair, pair_do_close, pair);
    rig_expect_clean(pair->rig);
    assert_int_equal(pair->closes, pair->ups);
    loop_stop(pair->loop);
    loop_join(pair->loop);
    loop_free(&pair->loop);
    nvmf_ctrl_free(&pair->ctrl);
    rig_free(&pair->rig);
    free(pair);
}

static void op_done(struct nvmf_req *req)
{
    container_of(req, struct op, req)->done++;
}

static void op_do_start(void *arg)
{
    struct op *op = arg;

    assert_int_equal(op->start(op->pair->ctrl, &op->req), ICMS_OK);
}

/* Starts a request for the first namespace. */
static void op_go(struct op *op, struct pair *pair,
                  icms_err (*start)(struct nvmf_ctrl *ctrl, struct nvmf_req *req), const char *key,
                  void *data, uint32_t bytes, uint32_t timeout_ms)
{
    memset(op, 0, sizeof(*op));
    op->pair = pair;
    op->start = start;
    op->req.nsid = 1;
    op->req.io_class = start == nvmf_store ? IO_CLASS_STORE : IO_CLASS_LOAD;
    op->req.key = peer_key(key);
    op->req.data[0] = (struct iovec){data, bytes};
    op->req.deadline_ns = loop_env_now_ns(loop_env(pair->loop)) + timeout_ms * MS;
    op->req.done = op_done;
    pair_on_loop(pair, op_do_start, op);
}

/* The same, and waits for its end. */
static icms_err op_run(struct op *op, struct pair *pair,
                       icms_err (*start)(struct nvmf_ctrl *ctrl, struct nvmf_req *req),
                       const char *key, void *data, uint32_t bytes)
{
    op_go(op, pair, start, key, data, bytes, 1000);
    rig_run(pair->rig, 100);
    assert_int_equal(op->done, 1);
    return op->req.err;
}

static uint8_t *bytes_of(uint32_t bytes, uint64_t seed)
{
    uint8_t *data = malloc(bytes);

    check(data != NULL);
    rig_fill(data, bytes, seed);
    return data;
}

static void values_are_stored_and_loaded(void **state)
{
    static const uint32_t sizes[] = {1, 4096, 100000, LARGE};
    struct pair *pair = pair_new(pair_target);
    struct nvmf_ctrl_stats stats;
    struct op op;

    assert_int_equal(pair->ctrl->volume_count, 3);
    for (int i = 0; i < 4; i++) {
        uint8_t *data = bytes_of(sizes[i], (uint64_t)i), *back = calloc(1, sizes[i]);

        assert_int_equal(op_run(&op, pair, nvmf_retrieve, "key", back, sizes[i]),
                         i == 0 ? ICMS_MISS : ICMS_OK);
        assert_int_equal(op_run(&op, pair, nvmf_store, "key", data, sizes[i]), ICMS_OK);
        memset(back, 0, sizes[i]);
        assert_int_equal(op_run(&op, pair, nvmf_retrieve, "key", back, sizes[i]), ICMS_OK);
        assert_int_equal(op.req.value_bytes, sizes[i]);
        assert_memory_equal(back, data, sizes[i]);
        free(data);
        free(back);
    }
    /* The first three came with their command. */
    assert_int_equal(mem_counts.reads, 1);
    assert_int_equal(op_run(&op, pair, nvmf_exist, "key", NULL, 0), ICMS_OK);
    assert_int_equal(op_run(&op, pair, nvmf_delete, "key", NULL, 0), ICMS_OK);
    assert_int_equal(op_run(&op, pair, nvmf_exist, "key", NULL, 0), ICMS_MISS);
    stats = *nvmf_ctrl_stats(pair->ctrl);
    assert_int_equal(stats.commands, stats.answers);
    assert_int_equal(stats.violations, 0);
    pair_free(pair);
}

static void a_value_is_sent_while_it_is_read(void **state)
{
    struct pair *pair = pair_new(pair_target);
    uint8_t *data = bytes_of(LARGE, 5), *back = calloc(1, LARGE);
    struct op op;

    assert_int_equal(op_run(&op, pair, nvmf_store, "key", data, LARGE), ICMS_OK);
    pair->rig->hold = true;
    op_go(&op, pair, nvmf_retrieve, "key", back, LARGE, 1000);
    rig_run(pair->rig, 20);
    rig_more(pair->rig, 1 << 20);
    assert_int_equal(mem_counts.writes, 1);
    assert_memory_equal(back, data, 1 << 20);
    assert_int_equal(back[LARGE - 1], 0);
    assert_int_equal(op.done, 0);
    rig_let_go(pair->rig);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_memory_equal(back, data, LARGE);

    /* A bad piece ends it: no word of success. */
    pair->rig->hold = true;
    op_go(&op, pair, nvmf_retrieve, "key", back, LARGE, 1000);
    rig_run(pair->rig, 20);
    rig_more(pair->rig, 1 << 20);
    rig_break(pair->rig, ICMS_MISS, ICMS_MISS_CHECKSUM);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_MISS);
    assert_int_equal(op.req.reason, ICMS_MISS_CHECKSUM);
    pair->rig->hold = false;
    free(data);
    free(back);
    pair_free(pair);
}

/* After the deadline the memory is the caller's, whatever the target still does. */
static void a_late_value_is_not_written(void **state)
{
    struct pair *pair = pair_new(pair_target);
    uint8_t *data = bytes_of(LARGE, 6), *back = calloc(1, LARGE);
    struct op op, next;

    assert_int_equal(op_run(&op, pair, nvmf_store, "key", data, LARGE), ICMS_OK);
    pair->rig->hold = true;
    op_go(&op, pair, nvmf_retrieve, "key", back, LARGE, 30);
    rig_run(pair->rig, 20);
    rig_more(pair->rig, 1 << 20);
    rig_run(pair->rig, 20);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_DEADLINE);
    assert_int_equal(mem_counts.withdraws, 1);
    memset(back, 0, LARGE);
    rig_let_go(pair->rig);
    for (uint32_t i = 0; i < LARGE; i++)
        assert_int_equal(back[i], 0);
    assert_int_equal(op.done, 1);
    assert_int_equal(op_run(&next, pair, nvmf_retrieve, "key", back, LARGE), ICMS_OK);
    assert_memory_equal(back, data, LARGE);
    free(data);
    free(back);
    pair_free(pair);
}

/* A store that went out ends when the target has its data, or with the association. */
static void a_late_store_keeps_its_memory(void **state)
{
    struct pair *pair = pair_new(pair_small_target);
    uint8_t *data = bytes_of(RIG_VALUE_MAX, 7);
    struct op op[4];

    pair->rig->hold = true;
    for (int i = 0; i < 4; i++)
        op_go(&op[i], pair, nvmf_store, "key", data, RIG_VALUE_MAX, 50);
    rig_run(pair->rig, 40);
    assert_int_equal(mem_counts.reads, 1); /* the others wait for memory of the target */
    rig_run(pair->rig, 400);
    assert_int_equal(op[0].done, 1);
    assert_int_equal(op[0].req.err, ICMS_DEADLINE);
    for (int i = 0; i < 10; i++)
        rig_let_go(pair->rig);
    rig_run(pair->rig, 400);
    for (int i = 0; i < 4; i++)
        assert_int_equal(op[i].done, 1);
    pair_free(pair);
    free(data);
}

/* Commands whose data has no place wait, and no command is lost: a host that may be asked for it
 * again keeps it, that of others is in memory of the transport. */
static void commands_wait(bool may_ask)
{
    struct pair *pair = pair_new(pair_small_target);
    uint8_t *data = bytes_of(4096, 8), *large = bytes_of(RIG_VALUE_MAX, 9);
    struct op big[2], op[64];

    if (!may_ask)
        pair->ctrl->info.icms_ext &= ~NVME_ICMS_EXT_STORE_DATA;
    pair->rig->hold = true;
    for (int i = 0; i < 2; i++)
        op_go(&big[i], pair, nvmf_store, i == 0 ? "a" : "b", large, RIG_VALUE_MAX, 1000);
    rig_run(pair->rig, 20);
    for (int i = 0; i < 64; i++)
        op_go(&op[i], pair, nvmf_store, "small", data, 4096, 1000);
    rig_run(pair->rig, 20);
    assert_int_equal(mem_counts.own > 0, !may_ask);
    assert_int_equal(mem_counts.waits > 0, !may_ask);
    for (int i = 0; i < 10; i++)
        rig_let_go(pair->rig);
    for (int i = 0; i < 64; i++) {
        assert_int_equal(op[i].done, 1);
        assert_int_equal(op[i].req.err, ICMS_OK);
    }
    assert_int_equal(big[0].req.err, ICMS_OK);
    assert_int_equal(big[1].req.err, ICMS_OK);
    free(data);
    free(large);
    pair_free(pair);
}

static void commands_wait_for_slots_and_memory(void **state)
{
    commands_wait(false);
}

static void commands_that_may_be_asked_wait_for_slots_and_memory(void **state)
{
    commands_wait(true);
}

/* Both sides end in the middle, with a command at the owner; then the host comes again. */
static void an_association_ends_and_comes_again(void **state)
{
    struct pair *pair = pair_new(pair_target);
    uint8_t *data = bytes_of(4096, 10), *back = calloc(1, 4096);
    struct op op;

    assert_int_equal(op_run(&op, pair, nvmf_store, "key", data, 4096), ICMS_OK);
    pair->rig->hold = true;
    op_go(&op, pair, nvmf_retrieve, "key", back, 4096, 1000);
    rig_run(pair->rig, 20);
    pair_on_loop(pair, pair_do_close, pair);
    rig_run(pair->rig, 20);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_CLOSED);
    assert_int_equal(pair->closes, 1);
    assert_false(nvmf_target_idle(pair->rig->target)); /* the owner has a command of it */
    rig_let_go(pair->rig);
    rig_expect_clean(pair->rig);

    pair_on_loop(pair, pair_do_open, pair);
    rig_run(pair->rig, 500);
    assert_int_equal(pair->ups, 2);
    assert_int_equal(op_run(&op, pair, nvmf_retrieve, "key", back, 4096), ICMS_OK);
    assert_memory_equal(back, data, 4096);
    nvmf_target_drain(pair->rig->target);
    rig_run(pair->rig, 1000);
    assert_int_equal(pair->downs, 1);
    assert_int_equal(pair->down_err, ICMS_RESET);
    assert_int_equal(pair->closes, 2);

    pair_on_loop(pair, pair_do_open, pair);
    rig_run(pair->rig, 500);
    assert_int_equal(pair->downs, 2);
    assert_int_equal(pair->down_err, ICMS_REFUSED);
    pair->ups++; /* it closed without having been up */
    free(data);
    free(back);
    pair_free(pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_stored_and_loaded),
        cmocka_unit_test(a_value_is_sent_while_it_is_read),
        cmocka_unit_test(a_late_value_is_not_written),
        cmocka_unit_test(a_late_store_keeps_its_memory),
        cmocka_unit_test(commands_wait_for_slots_and_memory),
        cmocka_unit_test(commands_that_may_be_asked_wait_for_slots_and_memory),
        cmocka_unit_test(an_association_ends_and_comes_again),
    };

    return cmocka_run_group_tests_name("nvmf-transport", tests, NULL, NULL);
}
