/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator against a small target, in the simulation: what works.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "nvmf/host/host_bed.h"
#include "nvmf/host/host_int.h"
#include "wire/nvme_identify.h"

/* ---- what works ----------------------------------------------------------------------------- */

static void finds_volumes_and_comes_up(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    struct uuid uuid;

    assert_int_equal(bed->ctrl->volume_count, 2);
    bed_uuid(&uuid, 2);
    assert_non_null(nvmf_ctrl_volume(bed->ctrl, &uuid));
    assert_int_equal(nvmf_ctrl_volume(bed->ctrl, &uuid)->nsid, 2);
    assert_false(nvmf_ctrl_volume(bed->ctrl, &uuid)->sealed);
    assert_int_equal(nvmf_ctrl_volume(bed->ctrl, &uuid)->value_bytes_max, 8 << 20);
    bed_uuid(&uuid, 9);
    assert_null(nvmf_ctrl_volume(bed->ctrl, &uuid));
    assert_int_equal(bed->fake->conn_count, 4);
    bed_on_loop(bed, 0, bed_do_close, bed);
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
    uint8_t *data = bed_pattern(sizes[0], 3);
    struct op ops[3];

    bed->fake->hold_stores = true;
    bed->fake->h2c_bytes = 32 << 10;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    for (int i = 0; i < 3; i++) {
        bed_op(&ops[i], bed, keys[i], data, sizes[i], i == 1 ? 1 * MS : 5000 * MS);
        assert_int_equal(bed_go(&ops[i], nvmf_store), ICMS_OK);
    }
    bed_run(bed, 100 * MS);
    bed_on_loop(bed, 1, bed_do_release, bed);
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
        uint8_t *value = bed_pattern(sizes[i], (uint8_t)i);
        uint8_t *room = calloc(1, sizes[i] + 100);
        struct op op;

        bed_op(&op, bed, "key", value, sizes[i], 2000 * MS);
        if (sizes[i] > 10) { /* in two pieces */
            op.req.data[0].iov_len = 10;
            op.req.data[1] = (struct iovec){value + 10, sizes[i] - 10};
        }
        op.req.io_class = IO_CLASS_STORE;
        assert_int_equal(bed_go(&op, nvmf_store), ICMS_OK);
        bed_run(bed, 500 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(op.req.err, ICMS_OK);
        bed_op(&op, bed, "key", room, sizes[i] + 100, 2000 * MS);
        if (sizes[i] > 7) {
            op.req.data[0].iov_len = 7;
            op.req.data[1] = (struct iovec){room + 7, sizes[i] + 93};
        }
        assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
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

static struct {
    const uint8_t *value, *room;
    uint32_t bytes, count;
} came;

static void more_came(struct nvmf_req *req)
{
    assert_true(req->came_bytes > came.bytes);
    assert_memory_equal(came.room, came.value, req->came_bytes);
    came.bytes = req->came_bytes;
    came.count++;
}

/* What is told is there, whole, and its digest is right. Who does not ask is not told; nor is who
 * has his memory back. */
static void what_came_of_a_value_is_told_before_the_end(void **state)
{
    enum { BYTES = 100000 };
    uint8_t *value = bed_pattern(BYTES, 3), *room = calloc(1, BYTES);
    struct nvmf_ctrl_opts opts;
    struct bed *bed = bed_new(0);
    struct op op;

    nvmf_ctrl_opts_init(&opts);
    opts.data_digest = true;
    tune_pieces(bed->fake);
    bed_ctrl(bed, &opts);
    bed_open(bed);
    bed_op(&op, bed, "key", value, BYTES, 2000 * MS);
    op.req.io_class = IO_CLASS_STORE;
    op.req.came = more_came;
    assert_int_equal(bed_go(&op, nvmf_store), ICMS_OK);
    bed_run(bed, 500 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    came.value = value;
    came.room = room;
    assert_int_equal(came.count, 0); /* a store has nothing to tell */
    for (int bad = 0; bad < 2; bad++) {
        came.bytes = came.count = 0;
        bed->fake->bad_digest = bad != 0;
        bed_op(&op, bed, "key", room, BYTES, 2000 * MS);
        op.req.came = more_came;
        assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
        bed_run(bed, 500 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(op.req.err, bad != 0 ? ICMS_CORRUPT : ICMS_OK);
        if (bad != 0)
            assert_true(came.count < 9);
        else
            assert_in_range(came.count, 9, 10);
        memset(room, 0, BYTES);
    }
    free(value);
    free(room);
    bed_free(bed);
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

    bed_op(&op, bed, "nope", room, sizeof(room), 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_MISS);
    assert_int_equal(op.req.reason, ICMS_MISS_NONE);
    bed->fake->reason = ICMS_MISS_EVICTED;
    bed_op(&op, bed, "nope", NULL, 0, 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_exist), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_MISS);
    assert_int_equal(op.req.reason, ICMS_MISS_EVICTED);
    bed->fake->reason = 77; /* not one of ours */
    bed_put(bed, "a", "hello", 5);
    bed_put(bed, "bb", "hello!", 6);
    bed_op(&op, bed, "a", room, 3, 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(op.req.value_bytes, 5);
    assert_memory_equal(room, "hel\0", 4);
    bed_op(&op, bed, "a", room, 3, 100 * MS);
    op.req.options = NVME_KV_STORE_IF_ABSENT;
    assert_int_equal(bed_go(&op, nvmf_store), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_EXISTS);
    assert_int_equal(op.req.reason, ICMS_MISS_NONE);
    bed_op(&op, bed, "", room, sizeof(room), 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_list), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(nvme_kv_list_read_begin(&reader, room, op.req.value_bytes), ICMS_OK);
    assert_true(nvme_kv_list_read_key(&reader, &key));
    assert_true(nvme_kv_list_read_key(&reader, &key));
    assert_int_equal(key.length, 2);
    bed_op(&op, bed, "a", NULL, 0, 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_delete), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    bed_op(&op, bed, "a", NULL, 0, 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_delete), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_MISS);
    bed_op(&op, bed, "", NULL, 0, 100 * MS);
    op.req.io_class = IO_CLASS_STORE;
    assert_int_equal(bed_go(&op, nvmf_flush), ICMS_OK);
    bed_run(bed, 50 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(bed->fake->flushes, 1);
    bed_op(&op, bed, "", room, 8, 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_KEY_SIZE);
    bed_op(&op, bed, "k", room, 0, 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_store), ICMS_VALUE_SIZE);
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
    bed_op(&op, bed, "", NULL, 0, 100 * MS);
    assert_int_equal(bed_go(&op, nvmf_flush), ICMS_OK);
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
        bed_op(&op[i], bed, "k", NULL, 0, 100 * MS);
        op[i].req.io_class = (enum io_class)i;
        assert_int_equal(bed_go(&op[i], nvmf_exist), ICMS_OK);
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

/* Also where loads end without a completion. */
static void one_record_is_named_and_deleted(void **state)
{
    for (int flags = 0; flags < 4; flags++) {
        struct bed *bed = bed_new(0);
        bool records = (flags & 1) != 0;
        uint8_t back[16];
        struct op op;

        bed->fake->records = records;
        bed->fake->timed = (flags & 2) != 0;
        bed_ctrl(bed, NULL);
        bed_open(bed);
        bed_put(bed, "k", "value", 5);
        bed_op(&op, bed, "k", back, sizeof(back), 100 * MS);
        op.req.want_record = true;
        assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
        bed_run(bed, 20 * MS);
        assert_int_equal(op.req.err, ICMS_OK);
        assert_int_equal(op.req.record, records ? 1 : 0);
        for (uint32_t record = 3; record >= 1; record -= 2) {
            bed_op(&op, bed, "k", NULL, 0, 100 * MS);
            op.req.only_record = record;
            assert_int_equal(bed_go(&op, nvmf_delete), records ? ICMS_OK : ICMS_UNSUPPORTED);
            bed_run(bed, 20 * MS);
            assert_int_equal(op.done, records);
            if (records)
                assert_int_equal(op.req.err, record == 1 ? ICMS_OK : ICMS_MISS);
            if (record == 1)
                break;
        }
        assert_int_equal(bed->fake->record_deletes, records ? 2 : 0);
        assert_int_equal(bed->fake->deletes, bed->fake->record_deletes);
        bed_free(bed);
    }
}

static void exist_many_asks_for_many_keys_at_once(void **state)
{
    struct bed *bed = bed_new(0);
    struct op op;

    many_bed_open(bed, true, 8192);
    bed_put(bed, "0", "x", 1);
    bed_put(bed, "40", "x", 1);
    bed_put(bed, "63", "x", 1);
    assert_true(nvmf_ctrl_has_exist_many(bed->ctrl));
    for (many_count = 1; many_count <= NVME_KV_EXIST_MANY_KEYS; many_count++) {
        uint64_t map = 1;

        map |= many_count > 40 ? (uint64_t)1 << 40 : 0;
        map |= many_count > 63 ? (uint64_t)1 << 63 : 0;
        bed_op(&op, bed, "", NULL, 0, 100 * MS);
        assert_int_equal(bed_go(&op, exist_many), ICMS_OK);
        bed_run(bed, 20 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(op.req.err, ICMS_OK);
        assert_true(nvmf_exist_map(&op.req) == map);
    }
    assert_int_equal(bed->fake->exist_manys, NVME_KV_EXIST_MANY_KEYS);
    assert_int_equal(bed->fake->exists, 0);
    many_count = 3;
    bed->fake->status = NVME_SC_NAMESPACE;
    bed_op(&op, bed, "", NULL, 0, 100 * MS);
    assert_int_equal(bed_go(&op, exist_many), ICMS_OK);
    bed_run(bed, 20 * MS);
    assert_int_equal(op.req.err, ICMS_NO_VOLUME);
    bed->fake->status = 0;
    bed->fake->hold = true;
    bed_op(&op, bed, "", NULL, 0, 100 * MS);
    assert_int_equal(bed_go(&op, exist_many), ICMS_OK);
    bed_run(bed, 200 * MS);
    assert_int_equal(op.req.err, ICMS_DEADLINE);
    bed_op(&op, bed, "", NULL, 0, 1000 * MS);
    assert_int_equal(bed_go(&op, exist_many), ICMS_OK);
    bed_on_loop(bed, 1, bed_do_drop, bed);
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
        bed_op(&op, bed, "", NULL, 0, 100 * MS);
        assert_int_equal(bed_go(&op, exist_many), ICMS_UNSUPPORTED);
        bed_run(bed, 20 * MS);
        assert_int_equal(op.done, 0);
        bed_free(bed);
    }
}

#define LARGE_BYTES NVME_ICMS_STORE_DATA_BYTES

static struct bed *large_bed(void)
{
    struct bed *bed = bed_new(0);

    bed->fake->timed = bed->fake->store_data = true;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    assert_int_equal(bed->ups, 1);
    return bed;
}

/* Stores a value and looks whether it is there; how the store ended. */
static icms_err large_store(struct bed *bed, uint8_t *value, uint32_t bytes)
{
    struct fake_block *block;
    struct op op;

    bed_op(&op, bed, "k", value, bytes, 500 * MS);
    assert_int_equal(bed_go(&op, nvmf_store), ICMS_OK);
    bed_run(bed, 100 * MS);
    assert_int_equal(op.done, 1);
    block = fake_target_find(bed->fake, 1, &op.req.key);
    if (op.req.err == ICMS_OK) {
        assert_int_equal(block->bytes, bytes);
        assert_memory_equal(block->data, value, bytes);
    }
    return op.req.err;
}

static void a_store_brings_its_data_where_the_target_says_so(void **state)
{
    uint8_t *value = bed_pattern(LARGE_BYTES + 1, 1);
    struct bed *bed = large_bed();

    assert_int_equal(large_store(bed, value, 4097), ICMS_OK);
    assert_int_equal(large_store(bed, value, LARGE_BYTES), ICMS_OK);
    assert_int_equal(bed->fake->r2ts, 0);
    assert_int_equal(large_store(bed, value, LARGE_BYTES + 1), ICMS_OK);
    assert_true(bed->fake->r2ts > 0);
    assert_int_equal(bed->fake->stores, 3);
    bed_free(bed);
    free(value);
}

static void a_store_without_room_goes_again_and_others_ask(void **state)
{
    uint8_t *value = bed_pattern(LARGE_BYTES, 1);
    struct bed *bed = large_bed();
    uint32_t asked;

    bed->fake->no_room = 1;
    for (uint32_t i = 1; i <= NVMF_ASK_FIRST; i++) {
        asked = bed->fake->r2ts;
        assert_int_equal(large_store(bed, value, LARGE_BYTES), ICMS_OK);
        assert_true(bed->fake->r2ts > asked);
        assert_int_equal(bed->fake->stores, i + 1);
    }
    asked = bed->fake->r2ts;
    assert_int_equal(large_store(bed, value, LARGE_BYTES), ICMS_OK);
    assert_int_equal(bed->fake->r2ts, asked);
    /* One that any target takes along does so, too. */
    bed->fake->no_room = 1;
    asked = bed->fake->r2ts;
    assert_int_equal(large_store(bed, value, 4096), ICMS_OK);
    assert_int_equal(bed->fake->r2ts, asked + 1);
    assert_int_equal(bed->fake->stores, NVMF_ASK_FIRST + 4);
    /* One that asked is not sent twice, whatever the target says. */
    bed->fake->status = NVME_SC_TRANSIENT;
    bed->fake->reason = NVME_ICMS_ASK;
    assert_int_equal(large_store(bed, value, LARGE_BYTES), ICMS_BUSY);
    assert_int_equal(bed->fake->stores, NVMF_ASK_FIRST + 5);
    bed_free(bed);
    free(value);
}

/* Its deadline, or the end of the association, comes while it is on its way again. */
static void a_store_that_goes_again_ends_once(void **state)
{
    uint8_t *value = bed_pattern(LARGE_BYTES, 1);

    for (uint64_t us = 0; us < 3000; us += 100) {
        struct bed *bed = large_bed();
        struct op ops[4];

        bed->fake->no_room = 2;
        for (int i = 0; i < 4; i++) {
            bed_op(&ops[i], bed, "k", value, LARGE_BYTES, us % 200 == 0 ? us * 1000 : 500 * MS);
            assert_int_equal(bed_go(&ops[i], nvmf_store), ICMS_OK);
        }
        if (us % 200 != 0) {
            bed_run(bed, us * 1000);
            bed_on_loop(bed, 1, bed_do_drop, bed);
        }
        bed_run(bed, 600 * MS);
        for (int i = 0; i < 4; i++)
            assert_int_equal(ops[i].done, 1);
        bed_free(bed);
    }
    free(value);
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
        bed_op(&ops[i], bed, "k", NULL, 0, 1000 * MS);
        assert_int_equal(bed_go(&ops[i], nvmf_exist), ICMS_OK);
    }
    bed_run(bed, 500 * MS);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(ops[i].done, 1);
        assert_true(i == 0 || ops[i].done_ns >= ops[i - 1].done_ns);
    }
    bed_free(bed);
    free(ops);
}

/* Retrieves of class PRESTAGE, more than the queue pair has entries, of which somebody waits for
 * some. */
struct expedite {
    struct bed *bed;
    struct op *ops;
    uint32_t first, count; /* which are waited for now */
    uint32_t known;        /* how many calls said so   */
};

enum { EXPEDITE_OPS = 40 };

static void expedite_ops(void *arg)
{
    struct expedite *expedite = arg;

    for (uint32_t i = 0; i < expedite->count; i++)
        expedite->known += nvmf_expedite(&expedite->ops[expedite->first + i].req);
}

/* Those of the range that are done now. */
static uint32_t expedite_go(struct expedite *expedite, uint32_t first, uint32_t count)
{
    uint32_t done = 0;

    expedite->first = first;
    expedite->count = count;
    expedite->known = 0;
    bed_on_loop(expedite->bed, 0, expedite_ops, expedite);
    bed_run(expedite->bed, 50 * MS);
    for (uint32_t i = 0; i < EXPEDITE_OPS; i++) {
        assert_in_range(expedite->ops[i].done, 0, 1);
        done += expedite->ops[i].done;
    }
    return done;
}

static struct expedite expedite_new(bool knows, uint32_t entries, uint8_t *room)
{
    struct expedite expedite = {.bed = bed_new(0), .ops = calloc(EXPEDITE_OPS, sizeof(struct op))};
    struct nvmf_ctrl_opts opts;

    nvmf_ctrl_opts_init(&opts);
    opts.queue_entries = entries;
    expedite.bed->fake->timed = true;
    expedite.bed->fake->expedites = knows;
    expedite.bed->fake->hold_prestage = true;
    bed_ctrl(expedite.bed, &opts);
    bed_open(expedite.bed);
    bed_put(expedite.bed, "k", "value", 5);
    for (uint32_t i = 0; i < EXPEDITE_OPS; i++) {
        bed_op(&expedite.ops[i], expedite.bed, "k", room, 5, 60000 * MS);
        expedite.ops[i].req.io_class = IO_CLASS_PRESTAGE;
        assert_int_equal(bed_go(&expedite.ops[i], nvmf_retrieve), ICMS_OK);
    }
    bed_run(expedite.bed, 50 * MS);
    return expedite;
}

static void expedite_end(struct expedite *expedite)
{
    bed_on_loop(expedite->bed, 1, bed_do_release, expedite->bed);
    assert_int_equal(expedite_go(expedite, 0, 0), EXPEDITE_OPS);
    for (uint32_t i = 0; i < EXPEDITE_OPS; i++) {
        assert_int_equal(expedite->ops[i].req.err, ICMS_OK);
        assert_int_equal(expedite->ops[i].req.value_bytes, 5);
    }
    assert_int_equal(expedite->bed->fake->retrieves, EXPEDITE_OPS); /* each was asked for once */
    assert_int_equal(expedite->bed->downs, 0);
    bed_free(expedite->bed);
    free(expedite->ops);
}

static void what_is_waited_for_goes_on_as_a_load(void **state)
{
    enum { SENT = 13 }; /* of 15, one for this and one for signs of life are kept */
    uint8_t room[8];
    struct expedite expedite = expedite_new(true, 16, room);
    const struct fake_target *fake = expedite.bed->fake;

    assert_int_equal(fake->by_class[IO_CLASS_PRESTAGE], SENT);
    assert_int_equal(expedite_go(&expedite, 1, SENT - 2), SENT - 2); /* in two commands */
    assert_int_equal(expedite.known, SENT - 2);
    assert_int_equal(fake->expedited, SENT - 2);
    assert_int_equal(fake->by_class[IO_CLASS_PRESTAGE], 2 * SENT - 2);
    assert_int_equal(expedite_go(&expedite, 35, 2), SENT); /* they were parked */
    assert_int_equal(fake->by_class[IO_CLASS_LOAD], 2);
    assert_int_equal(fake->expedited, SENT - 2);
    assert_int_equal(expedite_go(&expedite, 1, 1), SENT); /* it is done */
    assert_int_equal(fake->expedited, SENT - 2);
    expedite_end(&expedite);
}

/* The association ends while what was said first is not answered, and more is to be said. */
static void what_is_waited_for_ends_with_the_association(void **state)
{
    uint8_t room[8];
    struct expedite expedite = expedite_new(true, 16, room);

    assert_int_equal(expedite_go(&expedite, 0, 5), 5); /* now its place is before some of others */
    expedite.bed->fake->silent = true;
    expedite.first = 5;
    expedite.count = 13;
    bed_on_loop(expedite.bed, 0, expedite_ops, &expedite);
    bed_run(expedite.bed, 10 * MS);
    bed_on_loop(expedite.bed, 1, bed_do_drop, expedite.bed);
    bed_run(expedite.bed, 2000 * MS);
    assert_int_equal(expedite.bed->downs, 1);
    for (uint32_t i = 0; i < EXPEDITE_OPS; i++)
        assert_int_equal(expedite.ops[i].done, 1);
    expedite.bed->fake->silent = false;
    bed_open(expedite.bed);
    assert_int_equal(expedite.bed->ups, 2);
    bed_op(&expedite.ops[0], expedite.bed, "k", room, 5, 60000 * MS);
    expedite.ops[0].req.io_class = IO_CLASS_PRESTAGE;
    assert_int_equal(bed_go(&expedite.ops[0], nvmf_retrieve), ICMS_OK);
    bed_run(expedite.bed, 50 * MS);
    assert_int_equal(expedite.ops[0].done, 0);
    assert_int_equal(expedite_go(&expedite, 0, 1), EXPEDITE_OPS);
    assert_int_equal(expedite.ops[0].req.err, ICMS_OK);
    bed_free(expedite.bed);
    free(expedite.ops);
}

/* Where the target does not know it, or has no entry for it, what was sent stays where it is. */
static void what_is_waited_for_stays_where_nobody_knows_that(void **state)
{
    uint8_t room[8];
    struct expedite expedite = expedite_new(false, 16, room);

    assert_int_equal(expedite_go(&expedite, 0, 10), 0);
    assert_int_equal(expedite.known, 0);
    assert_int_equal(expedite_go(&expedite, 20, 10), 10);
    assert_int_equal(expedite.known, 10);
    expedite_end(&expedite);
    expedite = expedite_new(true, 3, room);
    assert_int_equal(expedite_go(&expedite, 0, 1), 0);
    assert_int_equal(expedite.known, 0);
    expedite_end(&expedite);
}

static void looks_again_when_namespaces_changed(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    struct uuid uuid;

    bed_uuid(&uuid, 3);
    bed->fake->volumes[2] = (struct fake_volume){.uuid = uuid, .value_bytes_max = 4096};
    bed->fake->volume_count = 3;
    bed_on_loop(bed, 1, bed_do_event, bed);
    bed_run(bed, 100 * MS);
    assert_int_equal(bed->changes, 1);
    assert_non_null(nvmf_ctrl_volume(bed->ctrl, &uuid));
    bed->fake->volume_count = 1;
    bed_on_loop(bed, 1, bed_do_event, bed);
    bed_run(bed, 100 * MS);
    assert_int_equal(bed->changes, 2);
    assert_int_equal(bed->ctrl->volume_count, 1);
    bed_free(bed);
}

static struct uuid numbered(uint32_t n)
{
    return (struct uuid){{(uint8_t)n, (uint8_t)(n >> 8), 1}};
}

static void many_volumes(struct fake_target *fake)
{
    fake->volume_count = LIMIT_VOLUMES;
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        fake->volumes[i] =
            (struct fake_volume){.uuid = numbered(i + 1), .value_bytes_max = 4096 + i};
}

/* A subsystem shows 1,024 volumes, and the last of those that are wanted is the last one. */
static void finds_its_volumes_among_1024(void **state)
{
    struct uuid wanted[LIMIT_AGENT_VOLUMES], absent = numbered(2000);
    struct nvmf_ctrl_opts opts;
    struct bed *bed = bed_new(0);

    assert_int_equal(LIMIT_VOLUMES, 1024);
    many_volumes(bed->fake);
    for (uint32_t i = 0; i < LIMIT_AGENT_VOLUMES; i++)
        wanted[i] = numbered(1024 - i);
    wanted[7] = absent;
    bed->fake->timed = true; /* as an icms target: one command a namespace */
    nvmf_ctrl_opts_init(&opts);
    opts.volumes = wanted;
    opts.volume_count = LIMIT_AGENT_VOLUMES;
    bed_ctrl(bed, &opts);
    bed_open(bed);
    assert_string_equal(bed->why, "");
    assert_int_equal(bed->ups, 1);
    assert_int_equal(bed->ctrl->volume_count, LIMIT_AGENT_VOLUMES - 1);
    for (uint32_t i = 0; i < LIMIT_AGENT_VOLUMES; i++) {
        const struct nvmf_volume *volume = nvmf_ctrl_volume(bed->ctrl, &wanted[i]);

        if (i == 7) {
            assert_null(volume);
            continue;
        }
        assert_non_null(volume);
        assert_int_equal(volume->nsid, 1024 - i);
        assert_int_equal(volume->value_bytes_max, 4096 + 1023 - i);
    }
    /* It comes, in place of another: the list that is full is followed by an empty piece. */
    bed->fake->volumes[0].uuid = absent;
    bed_on_loop(bed, 1, bed_do_event, bed);
    bed_run(bed, 1000 * MS);
    assert_int_equal(bed->changes, 1);
    assert_int_equal(bed->ctrl->volume_count, LIMIT_AGENT_VOLUMES);
    assert_int_equal(nvmf_ctrl_volume(bed->ctrl, &absent)->nsid, 1);
    bed_free(bed);
}

/* Two namespaces of one name: the first counts, and neither takes the place of another. */
static void a_name_that_comes_twice_is_found_once(void **state)
{
    struct uuid wanted[2] = {numbered(3), numbered(900)};
    struct nvmf_ctrl_opts opts;
    struct bed *bed = bed_new(0);

    many_volumes(bed->fake);
    bed->fake->volumes[10].uuid = wanted[0];
    nvmf_ctrl_opts_init(&opts);
    opts.volumes = wanted;
    opts.volume_count = 2;
    bed_ctrl(bed, &opts);
    bed_open(bed);
    bed_run(bed, 400 * MS);
    assert_int_equal(bed->ups, 1);
    assert_int_equal(bed->ctrl->volume_count, 2);
    assert_int_equal(nvmf_ctrl_volume(bed->ctrl, &wanted[0])->nsid, 3);
    assert_int_equal(nvmf_ctrl_volume(bed->ctrl, &wanted[1])->nsid, 900);
    bed_free(bed);
}

static void keeps_the_first_volumes_when_none_are_named(void **state)
{
    struct uuid last = numbered(LIMIT_AGENT_VOLUMES), next = numbered(LIMIT_AGENT_VOLUMES + 1);
    struct bed *bed = bed_new(0);

    many_volumes(bed->fake);
    bed_ctrl(bed, NULL);
    bed_open(bed);
    assert_int_equal(bed->ups, 1);
    assert_int_equal(bed->ctrl->volume_count, LIMIT_AGENT_VOLUMES);
    assert_non_null(nvmf_ctrl_volume(bed->ctrl, &last));
    assert_int_equal(nvmf_ctrl_volume(bed->ctrl, &last)->nsid, LIMIT_AGENT_VOLUMES);
    assert_null(nvmf_ctrl_volume(bed->ctrl, &next));
    bed_free(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_volumes_and_comes_up),
        cmocka_unit_test(finds_its_volumes_among_1024),
        cmocka_unit_test(a_name_that_comes_twice_is_found_once),
        cmocka_unit_test(keeps_the_first_volumes_when_none_are_named),
        cmocka_unit_test(stores_go_one_after_the_other),
        cmocka_unit_test(stores_and_retrieves_values_of_all_sizes),
        cmocka_unit_test(what_came_of_a_value_is_told_before_the_end),
        cmocka_unit_test(works_with_small_pieces_digests_and_vendor_commands),
        cmocka_unit_test(works_when_the_target_declines_digests_and_says_success_in_data),
        cmocka_unit_test(answers_of_each_command),
        cmocka_unit_test(a_target_without_a_write_cache_is_not_asked_to_flush),
        cmocka_unit_test(each_class_has_its_own_queue),
        cmocka_unit_test(one_record_is_named_and_deleted),
        cmocka_unit_test(exist_many_asks_for_many_keys_at_once),
        cmocka_unit_test(exist_many_is_refused_where_the_target_does_not_offer_it),
        cmocka_unit_test(a_store_brings_its_data_where_the_target_says_so),
        cmocka_unit_test(a_store_without_room_goes_again_and_others_ask),
        cmocka_unit_test(a_store_that_goes_again_ends_once),
        cmocka_unit_test(more_requests_than_entries_are_parked_in_order),
        cmocka_unit_test(what_is_waited_for_goes_on_as_a_load),
        cmocka_unit_test(what_is_waited_for_stays_where_nobody_knows_that),
        cmocka_unit_test(what_is_waited_for_ends_with_the_association),
        cmocka_unit_test(looks_again_when_namespaces_changed),
    };

    return cmocka_run_group_tests_name("nvmf-host", tests, NULL, NULL);
}
