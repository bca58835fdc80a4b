/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator against a small target, in the simulation: what works, what ends when, and what a
 * target that breaks the protocol can do (nothing but lose its connection).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "loop/sim.h"
#include "nvmf/host.h"
#include "nvmf/host/fake_target.h"
#include "wire/nvme_identify.h"

#define MS        ((uint64_t)1000000)
#define BIG_BYTES (1u << 20)

struct bed {
    struct sim *sim;
    struct sim_node *node[2]; /* 0: host, 1: target                    */
    struct loop *loop[2];
    struct fake_target *fake;
    struct nvmf_ctrl *ctrl;
    uint64_t timeout_ns; /* of the next open                    */
    uint32_t ups, changes, downs, closes;
    icms_err down_err;
    char why[256];
};

struct op {
    struct nvmf_req req;
    icms_err (*start)(struct nvmf_ctrl *ctrl, struct nvmf_req *req);
    icms_err start_err;
    uint32_t done, done_in_call;
    uint64_t done_ns;
    struct bed *bed;
};

/* ---- bed ------------------------------------------------------------------------------------ */

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

static void uuid_of(struct uuid *uuid, uint8_t n)
{
    memset(uuid->bytes, n, sizeof(uuid->bytes));
}

static struct bed *bed_new(uint64_t bytes_per_s)
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
        uuid_of(&bed->fake->volumes[i].uuid, (uint8_t)(i + 1));
        bed->fake->volumes[i].value_bytes_max = 8 << 20;
        bed->fake->volumes[i].sealed = i == 0;
    }
    fake_target_open(bed->fake, bed->loop[1], "10.1.0.2", 4420);
    for (int i = 0; i < 2; i++)
        assert_int_equal(loop_start(bed->loop[i], NULL), ICMS_OK);
    return bed;
}

static void bed_ctrl(struct bed *bed, struct nvmf_ctrl_opts *opts)
{
    struct nvmf_ctrl_opts defaults;

    if (opts == NULL) {
        nvmf_ctrl_opts_init(&defaults);
        opts = &defaults;
    }
    opts->addr = bed->fake->addr;
    opts->subnqn = "nqn.2014-08.org.nvmexpress:uuid:fake";
    opts->hostnqn = "nqn.2014-08.org.nvmexpress:uuid:host";
    opts->ops = &bed_ops;
    opts->owner = bed;
    assert_int_equal(nvmf_ctrl_new(bed->loop[0], opts, NULL, &bed->ctrl), ICMS_OK);
}

/* The host's time. */
static uint64_t now_ns(const struct bed *bed)
{
    return loop_env_now_ns(sim_node_env(bed->node[0]));
}

static void bed_run(struct bed *bed, uint64_t ns)
{
    (void)sim_run(bed->sim, sim_now_ns(bed->sim) + ns);
}

/* Runs a function on one of the two loops. */
struct call {
    struct loop_msg msg;
    void (*run)(void *arg);
    void *arg;
    bool ran;
};

static void call_run(struct loop_msg *msg)
{
    struct call *call = container_of(msg, struct call, msg);

    call->run(call->arg);
    call->ran = true;
}

static void on_loop(struct bed *bed, int i, void (*run)(void *arg), void *arg)
{
    struct call call = {.run = run, .arg = arg};

    loop_send(bed->loop[i], &call.msg, call_run);
    while (!call.ran)
        assert_true(sim_step(bed->sim));
}

static void run_open(void *arg)
{
    struct bed *bed = arg;

    nvmf_ctrl_open(bed->ctrl, loop_now_ns(bed->loop[0]) + bed->timeout_ns);
}

static void run_close(void *arg)
{
    struct bed *bed = arg;

    nvmf_ctrl_close(bed->ctrl, ICMS_CLOSED);
    check(bed->closes == 0);
}

static void run_release(void *arg)
{
    fake_target_release(((struct bed *)arg)->fake);
}

static void run_event(void *arg)
{
    fake_target_event(((struct bed *)arg)->fake);
}

static void run_drop(void *arg)
{
    fake_target_drop(((struct bed *)arg)->fake);
}

static void open_within(struct bed *bed, uint64_t timeout_ns)
{
    bed->timeout_ns = timeout_ns;
    on_loop(bed, 0, run_open, bed);
}

static void bed_open(struct bed *bed)
{
    open_within(bed, 1000 * MS);
    bed_run(bed, 500 * MS);
}

static struct bed *bed_ready(struct nvmf_ctrl_opts *opts, uint64_t bytes_per_s)
{
    struct bed *bed = bed_new(bytes_per_s);

    bed_ctrl(bed, opts);
    bed_open(bed);
    assert_string_equal(bed->why, "");
    assert_int_equal(bed->ups, 1);
    return bed;
}

static void bed_free(struct bed *bed)
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
    op->done_ns = now_ns(op->bed);
}

static void op_init(struct op *op, struct bed *bed, const char *key, void *data, uint32_t bytes,
                    uint64_t timeout_ns)
{
    memset(op, 0, sizeof(*op));
    op->bed = bed;
    op->req.nsid = 1;
    op->req.key.length = (uint8_t)strlen(key);
    memcpy(op->req.key.bytes, key, strlen(key));
    op->req.data[0] = (struct iovec){data, bytes};
    op->req.deadline_ns = now_ns(bed) + timeout_ns;
    op->req.done = op_done;
}

static void run_start(void *arg)
{
    struct op *op = arg;

    uint32_t done = op->done;

    op->start_err = op->start(op->bed->ctrl, &op->req);
    op->done_in_call = op->done - done;
}

/* Starts a request on the association's loop. */
static icms_err go(struct op *op, icms_err (*start)(struct nvmf_ctrl *ctrl, struct nvmf_req *req))
{
    op->start = start;
    on_loop(op->bed, 0, run_start, op);
    assert_int_equal(op->done_in_call, 0);
    return op->start_err;
}

static void run_cancel(void *arg)
{
    struct op *op = arg;
    uint32_t done = op->done;

    nvmf_req_cancel(&op->req);
    op->done_in_call = op->done - done;
}

static uint8_t *pattern(uint32_t bytes, uint8_t seed)
{
    uint8_t *data = malloc(bytes);

    check(data != NULL);
    for (uint32_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
    return data;
}

static void put(struct bed *bed, const char *key, const void *data, uint32_t bytes)
{
    struct key k = {.length = (uint8_t)strlen(key)};

    memcpy(k.bytes, key, strlen(key));
    fake_target_put(bed->fake, 1, &k, data, bytes);
}

/* ---- what works ----------------------------------------------------------------------------- */

static void finds_volumes_and_comes_up(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    struct uuid uuid;

    assert_int_equal(nvmf_ctrl_volumes(bed->ctrl), 2);
    uuid_of(&uuid, 2);
    assert_non_null(nvmf_ctrl_volume(bed->ctrl, &uuid));
    assert_int_equal(nvmf_ctrl_volume(bed->ctrl, &uuid)->nsid, 2);
    assert_false(nvmf_ctrl_volume(bed->ctrl, &uuid)->sealed);
    assert_int_equal(nvmf_ctrl_volume(bed->ctrl, &uuid)->value_bytes_max, 8 << 20);
    uuid_of(&uuid, 9);
    assert_null(nvmf_ctrl_volume(bed->ctrl, &uuid));
    assert_int_equal(bed->fake->conn_count, 4);
    on_loop(bed, 0, run_close, bed);
    bed_run(bed, 100 * MS);
    assert_int_equal(bed->closes, 1);
    assert_int_equal(bed->downs, 0);
    assert_int_equal(bed->fake->conn_count, 0);
    /* and again */
    bed_open(bed);
    assert_int_equal(bed->ups, 2);
    bed_free(bed);
}

/* Two stores at a time: the older one is sent as a whole before the data of the other, a small one,
 * begins; a third one whose deadline passed among them changes nothing. */
static void stores_go_one_after_the_other(void **state)
{
    struct bed *bed = bed_new(0);
    uint32_t sizes[3] = {4 << 20, 64 << 10, 128 << 10};
    static const char *const keys[3] = {"a", "b", "c"};
    uint8_t *data = pattern(sizes[0], 3);
    struct op ops[3];

    bed->fake->hold_stores = true;
    bed->fake->h2c_bytes = 32 << 10;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    for (int i = 0; i < 3; i++) {
        op_init(&ops[i], bed, keys[i], data, sizes[i], i == 1 ? 1 * MS : 5000 * MS);
        assert_int_equal(go(&ops[i], nvmf_store), ICMS_OK);
    }
    bed_run(bed, 100 * MS);
    on_loop(bed, 1, run_release, bed);
    bed_run(bed, 2000 * MS);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ops[i].done, 1);
        assert_int_equal(ops[i].req.err, ICMS_OK);
        assert_true(i == 0 || ops[i].done_ns >= ops[i - 1].done_ns);
    }
    assert_true(ops[0].done_ns < ops[2].done_ns);
    bed_free(bed);
    free(data);
}

/* Values of many sizes there and back, whatever was agreed on. */
static void round_trip(struct nvmf_ctrl_opts *opts, void (*tune)(struct fake_target *fake))
{
    static const uint32_t sizes[] = {1, 3, 4, 511, 4096, 4097, 131072, 131073, 300001, 2 << 20};
    struct bed *bed = bed_new(0);

    tune(bed->fake);
    bed_ctrl(bed, opts);
    bed_open(bed);
    assert_int_equal(bed->ups, 1);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint8_t *value = pattern(sizes[i], (uint8_t)i);
        uint8_t *room = calloc(1, sizes[i] + 100);
        struct op op;

        op_init(&op, bed, "key", value, sizes[i], 2000 * MS);
        if (sizes[i] > 10) { /* in two pieces */
            op.req.data[0].iov_len = 10;
            op.req.data[1] = (struct iovec){value + 10, sizes[i] - 10};
        }
        op.req.io_class = IO_CLASS_STORE;
        assert_int_equal(go(&op, nvmf_store), ICMS_OK);
        bed_run(bed, 500 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(op.req.err, ICMS_OK);
        op_init(&op, bed, "key", room, sizes[i] + 100, 2000 * MS);
        if (sizes[i] > 7) {
            op.req.data[0].iov_len = 7;
            op.req.data[1] = (struct iovec){room + 7, sizes[i] + 93};
        }
        assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
        bed_run(bed, 500 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(op.req.err, ICMS_OK);
        assert_int_equal(op.req.value_bytes, sizes[i]);
        assert_memory_equal(room, value, sizes[i]);
        for (int j = 0; j < 100; j++)
            assert_int_equal(room[sizes[i] + (uint32_t)j], 0);
        free(value);
        free(room);
    }
    bed_free(bed);
}

static void tune_plain(struct fake_target *fake)
{
}

static void tune_pieces(struct fake_target *fake)
{
    fake->c2h_bytes = 10000;
    fake->r2t_bytes = 30000;
    fake->h2c_bytes = 4096;
    fake->in_capsule_bytes = 0;
    fake->timed = true;
}

static void tune_success_flag(struct fake_target *fake)
{
    fake->success_flag = true;
    fake->digests = 0;
}

static void stores_and_retrieves_values_of_all_sizes(void **state)
{
    round_trip(NULL, tune_plain);
}

static void works_with_small_pieces_digests_and_vendor_commands(void **state)
{
    struct nvmf_ctrl_opts opts;

    nvmf_ctrl_opts_init(&opts);
    opts.header_digest = opts.data_digest = true;
    round_trip(&opts, tune_pieces);
}

static void works_when_the_target_declines_digests_and_says_success_in_data(void **state)
{
    struct nvmf_ctrl_opts opts;

    nvmf_ctrl_opts_init(&opts);
    opts.header_digest = opts.data_digest = true;
    round_trip(&opts, tune_success_flag);
}

static void answers_of_each_command(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint8_t room[200] = {0};
    struct nvme_kv_list_reader reader;
    struct key key;
    struct op op;

    op_init(&op, bed, "nope", room, sizeof(room), 100 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_MISS);
    assert_int_equal(op.req.reason, ICMS_MISS_NONE);
    bed->fake->reason = ICMS_MISS_EVICTED;
    op_init(&op, bed, "nope", NULL, 0, 100 * MS);
    assert_int_equal(go(&op, nvmf_exist), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_MISS);
    assert_int_equal(op.req.reason, ICMS_MISS_EVICTED);
    bed->fake->reason = 77; /* not one of ours */
    put(bed, "a", "hello", 5);
    put(bed, "bb", "hello!", 6);
    op_init(&op, bed, "a", room, 3, 100 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(op.req.value_bytes, 5);
    assert_memory_equal(room, "hel\0", 4);
    op_init(&op, bed, "a", room, 3, 100 * MS);
    op.req.options = NVME_KV_STORE_IF_ABSENT;
    assert_int_equal(go(&op, nvmf_store), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_EXISTS);
    assert_int_equal(op.req.reason, ICMS_MISS_NONE);
    op_init(&op, bed, "", room, sizeof(room), 100 * MS);
    assert_int_equal(go(&op, nvmf_list), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(nvme_kv_list_read_begin(&reader, room, op.req.value_bytes), ICMS_OK);
    assert_true(nvme_kv_list_read_key(&reader, &key));
    assert_true(nvme_kv_list_read_key(&reader, &key));
    assert_int_equal(key.length, 2);
    op_init(&op, bed, "a", NULL, 0, 100 * MS);
    assert_int_equal(go(&op, nvmf_delete), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    op_init(&op, bed, "a", NULL, 0, 100 * MS);
    assert_int_equal(go(&op, nvmf_delete), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_MISS);
    op_init(&op, bed, "", NULL, 0, 100 * MS);
    op.req.io_class = IO_CLASS_STORE;
    assert_int_equal(go(&op, nvmf_flush), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(bed->fake->flushes, 1);
    op_init(&op, bed, "", room, 8, 100 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_KEY_SIZE);
    op_init(&op, bed, "k", room, 0, 100 * MS);
    assert_int_equal(go(&op, nvmf_store), ICMS_VALUE_SIZE);
    assert_int_equal(bed->downs, 0);
    bed_free(bed);
}

static void a_target_without_a_write_cache_is_not_asked_to_flush(void **state)
{
    struct bed *bed = bed_new(0);
    struct op op;

    bed->fake->no_write_cache = true;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    op_init(&op, bed, "", NULL, 0, 100 * MS);
    assert_int_equal(go(&op, nvmf_flush), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(bed->fake->flushes, 0);
    bed_free(bed);
}

static void each_class_has_its_own_queue(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    struct op op[3];

    for (int i = 0; i < 3; i++) {
        op_init(&op[i], bed, "k", NULL, 0, 100 * MS);
        op[i].req.io_class = (enum io_class)i;
        assert_int_equal(go(&op[i], nvmf_exist), ICMS_OK);
    }
    bed_run(bed, 50 * MS);
    for (int i = 0; i < 3; i++)
        assert_int_equal(bed->fake->by_class[i], 1);
    bed_free(bed);
}

/* exist-many of count keys "0", "1", ... */
static uint32_t many_count;
static uint8_t many_memory[NVME_KV_EXIST_MANY_BYTES];

static icms_err exist_many(struct nvmf_ctrl *ctrl, struct nvmf_req *req)
{
    struct key keys[NVME_KV_EXIST_MANY_KEYS] = {0};
    icms_err err;

    for (uint32_t i = 0; i < many_count; i++)
        keys[i].length = (uint8_t)snprintf((char *)keys[i].bytes, sizeof(keys[i].bytes), "%u", i);
    err = nvmf_exist_many(ctrl, req, keys, many_count, many_memory);
    memset(keys, 0xff, sizeof(keys)); /* not needed any longer */
    return err;
}

static void many_bed_open(struct bed *bed, bool many, uint32_t in_capsule_bytes)
{
    bed->fake->many = many;
    bed->fake->in_capsule_bytes = in_capsule_bytes;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    assert_int_equal(bed->ups, 1);
}

static void exist_many_asks_for_many_keys_at_once(void **state)
{
    struct bed *bed = bed_new(0);
    struct op op;

    many_bed_open(bed, true, 8192);
    put(bed, "0", "x", 1);
    put(bed, "40", "x", 1);
    put(bed, "63", "x", 1);
    assert_true(nvmf_ctrl_has_exist_many(bed->ctrl));
    for (many_count = 1; many_count <= NVME_KV_EXIST_MANY_KEYS; many_count++) {
        uint64_t map = 1;

        map |= many_count > 40 ? (uint64_t)1 << 40 : 0;
        map |= many_count > 63 ? (uint64_t)1 << 63 : 0;
        op_init(&op, bed, "", NULL, 0, 100 * MS);
        assert_int_equal(go(&op, exist_many), ICMS_OK);
        bed_run(bed, 20 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(op.req.err, ICMS_OK);
        assert_true(nvmf_exist_map(&op.req) == map);
    }
    assert_int_equal(bed->fake->exist_manys, NVME_KV_EXIST_MANY_KEYS);
    assert_int_equal(bed->fake->exists, 0);
    many_count = 3;
    bed->fake->status = NVME_SC_NAMESPACE;
    op_init(&op, bed, "", NULL, 0, 100 * MS);
    assert_int_equal(go(&op, exist_many), ICMS_OK);
    bed_run(bed, 20 * MS);
    assert_int_equal(op.req.err, ICMS_NO_VOLUME);
    bed->fake->status = 0;
    bed->fake->hold = true;
    op_init(&op, bed, "", NULL, 0, 100 * MS);
    assert_int_equal(go(&op, exist_many), ICMS_OK);
    bed_run(bed, 200 * MS);
    assert_int_equal(op.req.err, ICMS_DEADLINE);
    op_init(&op, bed, "", NULL, 0, 1000 * MS);
    assert_int_equal(go(&op, exist_many), ICMS_OK);
    on_loop(bed, 1, run_drop, bed);
    bed_run(bed, 100 * MS);
    assert_int_equal(op.done, 1);
    assert_int_not_equal(op.req.err, ICMS_OK);
    bed_free(bed);
}

static void exist_many_is_refused_where_the_target_does_not_offer_it(void **state)
{
    const struct {
        bool many;
        uint32_t in_capsule_bytes;
    } targets[] = {{false, 8192}, {true, 0}, {true, NVME_KV_EXIST_MANY_BYTES - 16}};

    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        struct bed *bed = bed_new(0);
        struct op op;

        many_bed_open(bed, targets[i].many, targets[i].in_capsule_bytes);
        assert_false(nvmf_ctrl_has_exist_many(bed->ctrl));
        many_count = 2;
        op_init(&op, bed, "", NULL, 0, 100 * MS);
        assert_int_equal(go(&op, exist_many), ICMS_UNSUPPORTED);
        bed_run(bed, 20 * MS);
        assert_int_equal(op.done, 0);
        bed_free(bed);
    }
}

static void more_requests_than_entries_are_parked_in_order(void **state)
{
    struct nvmf_ctrl_opts opts;
    struct bed *bed;
    struct op *ops = calloc(200, sizeof(*ops));

    nvmf_ctrl_opts_init(&opts);
    opts.queue_entries = 4;
    bed = bed_ready(&opts, 0);
    for (int i = 0; i < 200; i++) {
        op_init(&ops[i], bed, "k", NULL, 0, 1000 * MS);
        assert_int_equal(go(&ops[i], nvmf_exist), ICMS_OK);
    }
    bed_run(bed, 500 * MS);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(ops[i].done, 1);
        assert_true(i == 0 || ops[i].done_ns >= ops[i - 1].done_ns);
    }
    bed_free(bed);
    free(ops);
}

static void looks_again_when_namespaces_changed(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    struct uuid uuid;

    uuid_of(&uuid, 3);
    bed->fake->volumes[2] = (struct fake_volume){.uuid = uuid, .value_bytes_max = 4096};
    bed->fake->volume_count = 3;
    on_loop(bed, 1, run_event, bed);
    bed_run(bed, 100 * MS);
    assert_int_equal(bed->changes, 1);
    assert_non_null(nvmf_ctrl_volume(bed->ctrl, &uuid));
    bed->fake->volume_count = 1;
    on_loop(bed, 1, run_event, bed);
    bed_run(bed, 100 * MS);
    assert_int_equal(bed->changes, 2);
    assert_int_equal(nvmf_ctrl_volumes(bed->ctrl), 1);
    bed_free(bed);
}

/* ---- deadlines ------------------------------------------------------------------------------ */

static void unanswered_requests_end_by_their_deadline(void **state)
{
    struct nvmf_ctrl_opts opts;
    struct op op[3];
    uint8_t room[64];
    struct bed *bed;
    uint64_t began_ns;

    nvmf_ctrl_opts_init(&opts);
    opts.queue_entries = 3; /* two at a time: the third is parked */
    opts.silence_ns = 0;
    bed = bed_ready(&opts, 0);
    put(bed, "k", "value", 5);
    bed->fake->hold = true;
    began_ns = now_ns(bed);
    for (int i = 0; i < 3; i++) {
        op_init(&op[i], bed, "k", room, sizeof(room), 50 * MS);
        assert_int_equal(go(&op[i], nvmf_retrieve), ICMS_OK);
    }
    memset(room, 0xee, sizeof(room));
    bed_run(bed, 100 * MS);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(op[i].done, 1);
        assert_int_equal(op[i].req.err, ICMS_DEADLINE);
        assert_true(op[i].done_ns - began_ns <= 52 * MS);
    }
    assert_int_equal(bed->fake->retrieves, 2);
    /* Their commands are kept: nothing goes out before they are answered, nor is the late data
     * written anywhere. */
    op_init(&op[0], bed, "k", room, sizeof(room), 50 * MS);
    assert_int_equal(go(&op[0], nvmf_retrieve), ICMS_OK);
    bed_run(bed, 100 * MS);
    assert_int_equal(op[0].req.err, ICMS_DEADLINE);
    assert_int_equal(bed->fake->retrieves, 2);
    on_loop(bed, 1, run_release, bed);
    bed_run(bed, 100 * MS);
    for (int i = 0; i < 64; i++)
        assert_int_equal(room[i], 0xee);
    op_init(&op[0], bed, "k", room, sizeof(room), 50 * MS);
    assert_int_equal(go(&op[0], nvmf_retrieve), ICMS_OK);
    bed_run(bed, 100 * MS);
    assert_int_equal(op[0].req.err, ICMS_OK);
    assert_int_equal(bed->downs, 0);
    bed_free(bed);
}

/* The data is on its way into the buffer when the deadline comes: it goes elsewhere. */
static void a_retrieve_in_mid_data_ends_when_nothing_writes_its_buffer(void **state)
{
    struct bed *bed = bed_ready(NULL, 10u << 20); /* 1 MiB takes 100 ms */
    uint8_t *value = pattern(BIG_BYTES, 1);
    uint8_t *room = calloc(1, BIG_BYTES);
    uint8_t *copy = malloc(BIG_BYTES);
    struct op op;

    put(bed, "k", value, BIG_BYTES);
    op_init(&op, bed, "k", room, BIG_BYTES, 50 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
    while (op.done == 0)
        assert_true(sim_step(bed->sim));
    assert_int_equal(op.req.err, ICMS_DEADLINE);
    assert_true(op.done_ns <= op.req.deadline_ns + 5 * MS);
    assert_memory_equal(room, value, 100000); /* it had begun */
    memcpy(copy, room, BIG_BYTES);
    bed_run(bed, 300 * MS);
    assert_memory_equal(room, copy, BIG_BYTES);
    assert_int_equal(nvmf_ctrl_stats(bed->ctrl)->redirects, 1);
    assert_int_equal(bed->downs, 0);
    op_init(&op, bed, "k", room, BIG_BYTES, 500 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 300 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_memory_equal(room, value, BIG_BYTES);
    bed_free(bed);
    free(value);
    free(room);
    free(copy);
}

/* A store that went out keeps its buffer until the target has taken all of it. */
static void a_late_store_keeps_its_buffer_until_it_is_over(void **state)
{
    struct nvmf_ctrl_opts opts;
    uint8_t *value = pattern(BIG_BYTES, 1);
    struct bed *bed;
    struct op op;

    nvmf_ctrl_opts_init(&opts);
    bed = bed_ready(&opts, 0);
    bed->fake->hold_stores = true;
    op_init(&op, bed, "k", value, BIG_BYTES, 50 * MS);
    assert_int_equal(go(&op, nvmf_store), ICMS_OK);
    bed_run(bed, 1000 * MS);
    assert_int_equal(op.done, 0);
    on_loop(bed, 1, run_release, bed);
    bed_run(bed, 100 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_OK); /* it is there: that is the truth */
    assert_memory_equal(fake_target_find(bed->fake, 1, &op.req.key)->data, value, BIG_BYTES);
    /* and not for ever */
    bed->fake->hold_stores = true;
    op_init(&op, bed, "k", value, BIG_BYTES, 50 * MS);
    assert_int_equal(go(&op, nvmf_store), ICMS_OK);
    bed_run(bed, NVMF_STORE_LATE_NS + 200 * MS);
    assert_int_equal(op.done, 1);
    assert_int_not_equal(op.req.err, ICMS_OK);
    assert_int_equal(bed->closes, 1);
    bed_free(bed);
    free(value);
}

static void canceled_requests_end_soon_and_never_inside_the_call(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint8_t room[64];
    struct op op;

    put(bed, "k", "value", 5);
    bed->fake->hold = true;
    op_init(&op, bed, "k", room, sizeof(room), 1000 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 20 * MS);
    on_loop(bed, 0, run_cancel, &op);
    assert_int_equal(op.done_in_call, 0);
    bed_run(bed, 20 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_CANCELED);
    on_loop(bed, 0, run_cancel, &op);
    on_loop(bed, 1, run_release, bed);
    bed_run(bed, 20 * MS);
    assert_int_equal(op.done, 1);
    bed_free(bed);
}

/* ---- dead or busy --------------------------------------------------------------------------- */

static void requests_end_at_once_when_the_connection_is_lost(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint8_t room[64];
    struct op op;

    bed->fake->hold = true;
    op_init(&op, bed, "k", room, sizeof(room), 1000 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 20 * MS);
    on_loop(bed, 1, run_drop, bed);
    bed_run(bed, 20 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_RESET);
    assert_int_equal(bed->downs, 1);
    assert_int_equal(bed->closes, 1);
    assert_non_null(strstr(bed->why, "10.1.0.2:4420"));
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_PEER_DOWN);
    bed_free(bed);
}

static void a_stopped_target_is_dead_after_the_silence(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint8_t room[64];
    uint64_t began_ns;
    struct op op;

    sim_node_pause(bed->node[1], true);
    began_ns = now_ns(bed);
    op_init(&op, bed, "k", room, sizeof(room), 5000 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 2000 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_PEER_DOWN);
    assert_true(op.done_ns - began_ns < 600 * MS);
    assert_int_equal(bed->closes, 1);
    bed_free(bed);
}

static void a_black_hole_is_found_when_quiet_too(void **state)
{
    struct nvmf_ctrl_opts opts;
    struct bed *bed;

    nvmf_ctrl_opts_init(&opts);
    opts.keep_alive_ns = 1000 * MS;
    bed = bed_ready(&opts, 0);
    sim_net_cut(bed->sim, bed->node[0], bed->node[1], true);
    bed_run(bed, 1500 * MS);
    assert_int_equal(bed->closes, 1);
    assert_int_equal(bed->down_err, ICMS_PEER_DOWN);
    bed_free(bed);
}

/* Commands take three times the silence, but the target lives: its keep-alives come back. */
static void a_busy_target_is_not_dead(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint8_t room[64];
    struct op op;

    put(bed, "k", "value", 5);
    bed->fake->delay_ns = 1600 * MS;
    op_init(&op, bed, "k", room, sizeof(room), 5000 * MS);
    assert_int_equal(go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 2000 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(bed->downs, 0);
    assert_true(bed->fake->keep_alives > 0);
    bed_free(bed);
}

static void keeps_alive_when_quiet(void **state)
{
    struct nvmf_ctrl_opts opts;
    struct bed *bed;

    nvmf_ctrl_opts_init(&opts);
    opts.keep_alive_ns = 400 * MS;
    bed = bed_ready(&opts, 0);
    bed_run(bed, 2000 * MS);
    assert_in_range(bed->fake->keep_alives, 8, 14);
    assert_int_equal(bed->downs, 0);
    bed_free(bed);
}

static void opening_ends_by_its_deadline(void **state)
{
    struct bed *bed = bed_new(0);

    bed->fake->silent = true;
    bed_ctrl(bed, NULL);
    open_within(bed, 300 * MS);
    bed_run(bed, 400 * MS);
    assert_int_equal(bed->ups, 0);
    assert_int_equal(bed->downs, 1);
    assert_int_equal(bed->closes, 1);
    assert_int_equal(bed->down_err, ICMS_DEADLINE);
    bed_free(bed);
}

static void a_refused_connection_and_a_refused_host_say_so(void **state)
{
    struct bed *bed = bed_new(0);

    bed->fake->refuse_connect = true;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    assert_int_equal(bed->closes, 1);
    assert_int_equal(bed->down_err, ICMS_AUTH);
    assert_non_null(strstr(bed->why, "does not allow host"));
    nvmf_ctrl_free(&bed->ctrl);
    bed->fake->addr.port = 4421;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    assert_int_equal(bed->closes, 2);
    assert_int_equal(bed->down_err, ICMS_REFUSED);
    bed_free(bed);
}

static void closing_while_it_opens_is_closed_once(void **state)
{
    for (uint64_t after = 0; after < 12; after++) {
        struct bed *bed = bed_new(0);

        bed_ctrl(bed, NULL);
        open_within(bed, 300 * MS);
        bed_run(bed, after * MS / 10);
        on_loop(bed, 0, run_close, bed);
        bed_run(bed, 100 * MS);
        assert_int_equal(bed->closes, 1);
        assert_int_equal(bed->downs, 0);
        assert_int_equal(bed->fake->conn_count, 0);
        bed_free(bed);
    }
}

/* ---- hostile targets ------------------------------------------------------------------------ */

static void a_target_that_breaks_the_protocol_loses_its_connection(void **state)
{
    for (enum fake_wrong wrong = FAKE_RIGHT + 1; wrong < FAKE_WRONGS; wrong++) {
        bool store = wrong >= FAKE_R2T_RANGE && wrong <= FAKE_STORE_UNREAD;
        struct bed *bed = bed_ready(NULL, 0);
        uint8_t *value = pattern(20000, 5);
        uint8_t *room = malloc(20064);
        struct op op, other;

        memset(room, 0xee, 20064);
        put(bed, "k", value, 20000);
        bed->fake->wrong = wrong;
        op_init(&op, bed, store ? "new" : "k", store ? value : room, 20000, 1000 * MS);
        op.req.io_class = store ? IO_CLASS_STORE : IO_CLASS_LOAD;
        assert_int_equal(go(&op, store ? nvmf_store : nvmf_retrieve), ICMS_OK);
        op_init(&other, bed, "k", NULL, 0, 1000 * MS);
        other.req.io_class = IO_CLASS_PRESTAGE;
        assert_int_equal(go(&other, nvmf_exist), ICMS_OK);
        bed_run(bed, 900 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(other.done, 1);
        if (wrong != FAKE_CQE_TWICE)
            assert_int_not_equal(op.req.err, ICMS_OK);
        for (int i = 0; i < 64; i++)
            assert_int_equal(room[20000 + i], 0xee);
        assert_int_equal(bed->downs, 1);
        assert_int_equal(bed->closes, 1);
        if (wrong != FAKE_RESET && wrong != FAKE_TERM) {
            assert_int_equal(bed->down_err, ICMS_PROTOCOL);
            assert_int_equal(nvmf_ctrl_stats(bed->ctrl)->violations, 1);
            assert_int_equal(bed->fake->terms_in, 1);
        }
        /* it may come back */
        bed_open(bed);
        assert_int_equal(bed->ups, 2);
        bed_free(bed);
        free(value);
        free(room);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_volumes_and_comes_up),
        cmocka_unit_test(stores_go_one_after_the_other),
        cmocka_unit_test(stores_and_retrieves_values_of_all_sizes),
        cmocka_unit_test(works_with_small_pieces_digests_and_vendor_commands),
        cmocka_unit_test(works_when_the_target_declines_digests_and_says_success_in_data),
        cmocka_unit_test(answers_of_each_command),
        cmocka_unit_test(a_target_without_a_write_cache_is_not_asked_to_flush),
        cmocka_unit_test(each_class_has_its_own_queue),
        cmocka_unit_test(exist_many_asks_for_many_keys_at_once),
        cmocka_unit_test(exist_many_is_refused_where_the_target_does_not_offer_it),
        cmocka_unit_test(more_requests_than_entries_are_parked_in_order),
        cmocka_unit_test(looks_again_when_namespaces_changed),
        cmocka_unit_test(unanswered_requests_end_by_their_deadline),
        cmocka_unit_test(a_retrieve_in_mid_data_ends_when_nothing_writes_its_buffer),
        cmocka_unit_test(a_late_store_keeps_its_buffer_until_it_is_over),
        cmocka_unit_test(canceled_requests_end_soon_and_never_inside_the_call),
        cmocka_unit_test(requests_end_at_once_when_the_connection_is_lost),
        cmocka_unit_test(a_stopped_target_is_dead_after_the_silence),
        cmocka_unit_test(a_black_hole_is_found_when_quiet_too),
        cmocka_unit_test(a_busy_target_is_not_dead),
        cmocka_unit_test(keeps_alive_when_quiet),
        cmocka_unit_test(opening_ends_by_its_deadline),
        cmocka_unit_test(a_refused_connection_and_a_refused_host_say_so),
        cmocka_unit_test(closing_while_it_opens_is_closed_once),
        cmocka_unit_test(a_target_that_breaks_the_protocol_loses_its_connection),
    };

    return cmocka_run_group_tests_name("nvmf-host", tests, NULL, NULL);
}
