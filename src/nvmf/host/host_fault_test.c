/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The initiator against a small target, in the simulation: what ends when, who is taken for dead,
 * and what a target that breaks the protocol can do (nothing but lose its connection).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "base/check.h"
#include "nvmf/host/host_bed.h"

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
    bed_put(bed, "k", "value", 5);
    bed->fake->hold = true;
    began_ns = bed_now_ns(bed);
    for (int i = 0; i < 3; i++) {
        bed_op(&op[i], bed, "k", room, sizeof(room), 50 * MS);
        assert_int_equal(bed_go(&op[i], nvmf_retrieve), ICMS_OK);
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
    bed_op(&op[0], bed, "k", room, sizeof(room), 50 * MS);
    assert_int_equal(bed_go(&op[0], nvmf_retrieve), ICMS_OK);
    bed_run(bed, 100 * MS);
    assert_int_equal(op[0].req.err, ICMS_DEADLINE);
    assert_int_equal(bed->fake->retrieves, 2);
    bed_on_loop(bed, 1, bed_do_release, bed);
    bed_run(bed, 100 * MS);
    for (int i = 0; i < 64; i++)
        assert_int_equal(room[i], 0xee);
    bed_op(&op[0], bed, "k", room, sizeof(room), 50 * MS);
    assert_int_equal(bed_go(&op[0], nvmf_retrieve), ICMS_OK);
    bed_run(bed, 100 * MS);
    assert_int_equal(op[0].req.err, ICMS_OK);
    assert_int_equal(bed->downs, 0);
    bed_free(bed);
}

/* The data is on its way into the buffer when the deadline comes: it goes elsewhere. */
static void a_retrieve_in_mid_data_ends_when_nothing_writes_its_buffer(void **state)
{
    struct bed *bed = bed_ready(NULL, 10u << 20); /* 1 MiB takes 100 ms */
    uint8_t *value = bed_pattern(BIG_BYTES, 1);
    uint8_t *room = calloc(1, BIG_BYTES);
    uint8_t *copy = malloc(BIG_BYTES);
    struct op op;

    bed_put(bed, "k", value, BIG_BYTES);
    bed_op(&op, bed, "k", room, BIG_BYTES, 50 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
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
    bed_op(&op, bed, "k", room, BIG_BYTES, 500 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 300 * MS);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_memory_equal(room, value, BIG_BYTES);
    bed_free(bed);
    free(value);
    free(room);
    free(copy);
}

/* A retrieve that wants its value elsewhere after its deadline. */
struct elsewhere {
    struct op op;
    uint8_t room[BIG_BYTES], other[BIG_BYTES];
    uint8_t at_deadline[BIG_BYTES]; /* what room had */
    bool went;
    uint32_t stayed;
};

static uint64_t go_elsewhere(struct nvmf_req *req)
{
    struct elsewhere *where = container_of(req, struct elsewhere, op.req);

    memcpy(where->at_deadline, where->room, BIG_BYTES);
    where->went = nvmf_redirect(req, (struct iovec[]){{where->other, BIG_BYTES}, {NULL, 0}});
    return where->went ? 500 * MS : 0;
}

/* Between two PDUs of it nothing is being received. What came stays where it is. */
static void stays_here(struct nvmf_req *req)
{
    struct elsewhere *where = container_of(req, struct elsewhere, op.req);

    assert_true(req->came_bytes > 0);
    assert_false(nvmf_redirect(req, (struct iovec[]){{where->other, BIG_BYTES}, {NULL, 0}}));
    where->stayed++;
}

/* Of several that are on their way at the deadline the first has begun, which then ends as any
 * other. Of the rest nothing came, and it comes elsewhere: whole values, in one PDU and in many. */
static void what_has_not_begun_at_the_deadline_comes_elsewhere(void **state)
{
    for (uint32_t c2h_bytes = 0; c2h_bytes <= 10000; c2h_bytes += 5000) {
        struct bed *bed = bed_ready(NULL, 10u << 20); /* 1 MiB takes 100 ms */
        uint8_t *value = bed_pattern(BIG_BYTES, 1);
        struct elsewhere *where = calloc(3, sizeof(*where));

        bed->fake->c2h_bytes = c2h_bytes;
        bed_put(bed, "k", value, BIG_BYTES);
        for (int i = 0; i < 3; i++) {
            bed_op(&where[i].op, bed, "k", where[i].room, BIG_BYTES, 50 * MS);
            where[i].op.req.overdue = go_elsewhere;
            where[i].op.req.came = stays_here;
            assert_int_equal(bed_go(&where[i].op, nvmf_retrieve), ICMS_OK);
        }
        bed_run(bed, 400 * MS);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(where[i].op.done, 1);
            assert_int_equal(where[i].went, i > 0);
            assert_int_equal(where[i].stayed > 1, c2h_bytes != 0);
            assert_int_equal(where[i].op.req.err, i == 0 ? ICMS_DEADLINE : ICMS_OK);
            if (i > 0)
                assert_memory_equal(where[i].other, value, BIG_BYTES);
            if (i > 0)
                assert_memory_equal(where[i].room, where[i].at_deadline, BIG_BYTES);
        }
        assert_int_equal(bed->downs, 0);
        bed_free(bed);
        free(where);
        free(value);
    }
}

/* A store that went out keeps its buffer until the target has taken all of it. */
static void a_late_store_keeps_its_buffer_until_it_is_over(void **state)
{
    struct nvmf_ctrl_opts opts;
    uint8_t *value = bed_pattern(BIG_BYTES, 1);
    struct bed *bed;
    struct op op;

    nvmf_ctrl_opts_init(&opts);
    bed = bed_ready(&opts, 0);
    bed->fake->hold_stores = true;
    bed_op(&op, bed, "k", value, BIG_BYTES, 50 * MS);
    assert_int_equal(bed_go(&op, nvmf_store), ICMS_OK);
    bed_run(bed, 1000 * MS);
    assert_int_equal(op.done, 0);
    bed_on_loop(bed, 1, bed_do_release, bed);
    bed_run(bed, 100 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_OK); /* it is there: that is the truth */
    assert_memory_equal(fake_target_find(bed->fake, 1, &op.req.key)->data, value, BIG_BYTES);
    /* and not for ever */
    bed->fake->hold_stores = true;
    bed_op(&op, bed, "k", value, BIG_BYTES, 50 * MS);
    assert_int_equal(bed_go(&op, nvmf_store), ICMS_OK);
    bed_run(bed, NVMF_STORE_LATE_NS + 200 * MS);
    assert_int_equal(op.done, 1);
    assert_int_not_equal(op.req.err, ICMS_OK);
    assert_int_equal(bed->closes, 1);
    bed_free(bed);
    free(value);
}

/* A store that went out with its data: the deadline comes while the kernel still reads the value.
 */
static void a_store_with_its_data_ends_when_its_memory_is_free(void **state)
{
    enum { BYTES = 256 << 10 }; /* takes 25 ms */
    struct bed *bed = bed_new(10u << 20);
    uint8_t *value = bed_pattern(BYTES, 1), *copy = malloc(BYTES);
    const struct fake_block *block;
    uint64_t began_ns;
    struct op op;

    memcpy(copy, value, BYTES);
    bed->fake->timed = bed->fake->store_data = true;
    bed->fake->in_capsule_bytes = 8192;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    assert_int_equal(bed->ups, 1);
    began_ns = bed_now_ns(bed);
    bed_op(&op, bed, "k", value, BYTES, 5 * MS);
    assert_int_equal(bed_go(&op, nvmf_store), ICMS_OK);
    while (op.done == 0)
        assert_true(sim_step(bed->sim));
    memset(value, 0xee, BYTES); /* it is ours again: nothing of this goes out */
    assert_int_equal(op.req.err, ICMS_DEADLINE);
    assert_true(op.done_ns - began_ns > 5 * MS);
    bed_run(bed, 300 * MS);
    assert_int_equal(bed->fake->r2ts, 0);
    block = fake_target_find(bed->fake, 1, &op.req.key);
    assert_non_null(block);
    assert_memory_equal(block->data, copy, BYTES);
    assert_int_equal(bed->downs, 0);
    bed_free(bed);
    free(value);
    free(copy);
}

static void vendor_commands_say_how_much_time_is_left(void **state)
{
    struct bed *bed = bed_new(0);
    uint8_t room[64];
    struct op op;

    bed->fake->timed = true;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    bed_put(bed, "k", "value", 5);
    for (int i = 0; i < 2; i++) {
        bed_op(&op, bed, "k", room, sizeof(room), 80 * MS);
        assert_int_equal(bed_go(&op, i == 0 ? nvmf_retrieve : nvmf_store), ICMS_OK);
        bed_run(bed, 100 * MS);
        assert_int_equal(op.req.err, ICMS_OK);
        assert_in_range(bed->fake->time_left_us, 70000, 80000);
        bed_op(&op, bed, "k", room, sizeof(room), 80 * MS);
        op.req.deadline_ns = 0; /* none */
        assert_int_equal(bed_go(&op, i == 0 ? nvmf_retrieve : nvmf_store), ICMS_OK);
        bed_run(bed, 100 * MS);
        assert_int_equal(op.req.err, ICMS_OK);
        assert_int_equal(bed->fake->time_left_us, 0);
    }
    bed_free(bed);
}

/* More than the target takes in a command is refused here: there it would end the connection. */
static void more_than_a_transfer_is_refused(void **state)
{
    enum { MDTS = 4, BYTES = NVME_PAGE_BYTES << MDTS };
    uint8_t *value = bed_pattern(BYTES + 1, 1);
    struct bed *bed = bed_new(0);
    struct op op;

    bed->fake->mdts = MDTS;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    for (int i = 0; i < 2; i++) {
        bed_op(&op, bed, "k", value, BYTES + 1, 80 * MS);
        assert_int_equal(bed_go(&op, i == 0 ? nvmf_store : nvmf_retrieve), ICMS_VALUE_SIZE);
        bed_op(&op, bed, "k", value, BYTES, 80 * MS);
        assert_int_equal(bed_go(&op, i == 0 ? nvmf_store : nvmf_retrieve), ICMS_OK);
        bed_run(bed, 100 * MS);
        assert_int_equal(op.req.err, ICMS_OK);
    }
    assert_int_equal(bed->fake->stores, 1);
    assert_int_equal(bed->fake->retrieves, 1);
    bed_free(bed);
    free(value);
}

/* ---- dead or busy --------------------------------------------------------------------------- */

static void requests_end_at_once_when_the_connection_is_lost(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint8_t room[64];
    struct op op;

    bed->fake->hold = true;
    bed_op(&op, bed, "k", room, sizeof(room), 1000 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 20 * MS);
    bed_on_loop(bed, 1, bed_do_drop, bed);
    bed_run(bed, 20 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_RESET);
    assert_int_equal(bed->downs, 1);
    assert_int_equal(bed->closes, 1);
    assert_non_null(strstr(bed->why, "10.1.0.2:4420"));
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_PEER_DOWN);
    bed_free(bed);
}

static void a_stopped_target_is_dead_after_the_silence(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint8_t room[64];
    uint64_t began_ns;
    struct op op;

    sim_node_pause(bed->node[1], true);
    began_ns = bed_now_ns(bed);
    bed_op(&op, bed, "k", room, sizeof(room), 5000 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
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

    bed_put(bed, "k", "value", 5);
    bed->fake->delay_ns = 1600 * MS;
    bed_op(&op, bed, "k", room, sizeof(room), 5000 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 2000 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(bed->downs, 0);
    assert_true(bed->fake->keep_alives > 0);
    bed_free(bed);
}

/* Its sisters live, one of them has work all the time. */
static void one_silent_connection_is_dead_within_a_second(void **state)
{
    struct bed *bed = bed_new(0);
    uint64_t began_ns;
    uint8_t room[64];
    struct op mute, op;

    bed->fake->timed = true;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    bed_put(bed, "k", "value", 5);
    bed->fake->mute = 1 + IO_CLASS_LOAD;
    began_ns = bed_now_ns(bed);
    bed_op(&mute, bed, "k", room, sizeof(room), 5000 * MS);
    assert_int_equal(bed_go(&mute, nvmf_retrieve), ICMS_OK);
    for (int i = 0; i < 20 && mute.done == 0; i++) {
        bed_op(&op, bed, "k", room, sizeof(room), 5000 * MS);
        op.req.io_class = IO_CLASS_PRESTAGE;
        assert_int_equal(bed_go(&op, nvmf_exist), ICMS_OK);
        bed_run(bed, 100 * MS);
    }
    assert_int_equal(mute.done, 1);
    assert_int_equal(mute.req.err, ICMS_PEER_DOWN);
    assert_in_range(mute.done_ns - began_ns, 500 * MS, 1000 * MS);
    assert_non_null(strstr(bed->why, "on the load for"));
    bed_free(bed);
}

/* All commands of the queue are out, and none will be answered. */
static void a_full_queue_that_is_silent_is_dead_within_a_second(void **state)
{
    static struct op op[8];
    struct nvmf_ctrl_opts opts;
    struct bed *bed = bed_new(0);
    uint8_t room[64];

    nvmf_ctrl_opts_init(&opts);
    opts.queue_entries = 4;
    bed->fake->timed = true;
    bed_ctrl(bed, &opts);
    bed_open(bed);
    bed->fake->mute = 1 + IO_CLASS_LOAD;
    for (int i = 0; i < 8; i++) {
        bed_op(&op[i], bed, "k", room, sizeof(room), 200 * MS);
        assert_int_equal(bed_go(&op[i], nvmf_exist), ICMS_OK);
    }
    bed_run(bed, 1000 * MS);
    assert_int_equal(bed->downs, 1);
    assert_int_equal(bed->fake->asked, 1);
    bed_free(bed);
}

/* It answers the question on that connection, and works on the commands for long. */
static void a_queue_that_is_busy_for_long_is_not_dead(void **state)
{
    struct bed *bed = bed_new(0);
    uint8_t room[64];
    struct op op;

    bed->fake->timed = true;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    bed_put(bed, "k", "value", 5);
    bed->fake->delay_ns = 10000 * MS;
    bed_op(&op, bed, "k", room, sizeof(room), 15000 * MS);
    assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
    bed_run(bed, 11000 * MS);
    assert_int_equal(op.done, 1);
    assert_int_equal(op.req.err, ICMS_OK);
    assert_int_equal(bed->downs, 0);
    assert_true(bed->fake->asked > 10);
    bed_free(bed);
}

/* It answers everything else, on the same connection, too. */
static void a_command_that_is_never_answered_ends_the_association(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint64_t end_ns;
    uint8_t room[64];
    struct op lost, op;

    bed_put(bed, "k", "value", 5);
    bed->fake->hold = true;
    bed_op(&lost, bed, "k", room, sizeof(room), 100 * MS);
    assert_int_equal(bed_go(&lost, nvmf_exist), ICMS_OK);
    bed_run(bed, 200 * MS);
    assert_int_equal(lost.req.err, ICMS_DEADLINE);
    bed->fake->hold = false; /* what it holds it keeps */
    for (end_ns = bed_now_ns(bed) + NVMF_ANSWER_NS - 200 * MS; bed_now_ns(bed) < end_ns;) {
        bed_op(&op, bed, "k", room, sizeof(room), 5000 * MS);
        assert_int_equal(bed_go(&op, nvmf_exist), ICMS_OK);
        bed_run(bed, 100 * MS);
        assert_int_equal(op.req.err, ICMS_OK);
    }
    assert_int_equal(bed->downs, 0);
    bed_run(bed, 500 * MS);
    assert_int_equal(bed->downs, 1);
    assert_non_null(strstr(bed->why, "load queue was not answered for 30 s"));
    bed_free(bed);
}

/* One that may not know the question is not asked. */
static void a_foreign_queue_may_be_silent_for_longer(void **state)
{
    struct bed *bed = bed_ready(NULL, 0);
    uint8_t room[64];
    struct op op;

    bed->fake->mute = 1 + IO_CLASS_LOAD;
    bed_op(&op, bed, "k", room, sizeof(room), 20000 * MS);
    assert_int_equal(bed_go(&op, nvmf_exist), ICMS_OK);
    bed_run(bed, 7000 * MS);
    assert_int_equal(bed->downs, 0);
    bed_run(bed, 2000 * MS);
    assert_int_equal(bed->downs, 1);
    assert_int_equal(bed->fake->asked, 0);
    bed_free(bed);
}

/* Both machines get their turn now and then only. */
static void starved_machines_do_not_take_each_other_for_dead(void **state)
{
    struct bed *bed = bed_new(0);
    uint8_t room[64];
    struct op op;

    bed->fake->timed = true;
    bed_ctrl(bed, NULL);
    bed_open(bed);
    bed->fake->delay_ns = 3000 * MS;
    bed_op(&op, bed, "k", room, sizeof(room), 60000 * MS);
    assert_int_equal(bed_go(&op, nvmf_exist), ICMS_OK);
    for (int i = 0; i < 40; i++) {
        sim_node_pause(bed->node[i % 2], true);
        bed_run(bed, 300 * MS);
        sim_node_pause(bed->node[i % 2], false);
        bed_run(bed, 30 * MS);
    }
    assert_int_equal(bed->downs, 0);
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
    bed_open_within(bed, 300 * MS);
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
        bed_open_within(bed, 300 * MS);
        bed_run(bed, after * MS / 10);
        bed_on_loop(bed, 0, bed_do_close, bed);
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
        uint8_t *value = bed_pattern(20000, 5);
        uint8_t *room = malloc(20064), *copy = bed_pattern(20000, 5);
        struct op op, other;

        memset(room, 0xee, 20064);
        bed_put(bed, "k", value, 20000);
        bed->fake->wrong = wrong;
        bed_op(&op, bed, store ? "new" : "k", store ? value : room, 20000, 1000 * MS);
        op.req.io_class = store ? IO_CLASS_STORE : IO_CLASS_LOAD;
        assert_int_equal(bed_go(&op, store ? nvmf_store : nvmf_retrieve), ICMS_OK);
        bed_op(&other, bed, "k", NULL, 0, 1000 * MS);
        other.req.io_class = IO_CLASS_PRESTAGE;
        assert_int_equal(bed_go(&other, nvmf_exist), ICMS_OK);
        bed_run(bed, 900 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(other.done, 1);
        if (wrong != FAKE_CQE_TWICE)
            assert_int_not_equal(op.req.err, ICMS_OK);
        for (int i = 0; i < 64; i++)
            assert_int_equal(room[20000 + i], 0xee);
        assert_memory_equal(value, copy, 20000); /* nothing comes into what is stored */
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
        free(copy);
        free(room);
    }
}

/* The data is not believed, and its connection goes on: TCP's checksum let something through. */
static void data_with_a_wrong_digest_is_corrupt(void **state)
{
    uint8_t *value = bed_pattern(20000, 5), *room = malloc(20000);
    struct bed *bed = bed_new(0);
    struct nvmf_ctrl_opts opts;
    struct op op;

    nvmf_ctrl_opts_init(&opts);
    opts.data_digest = true;
    bed->fake->digests = NVME_TCP_FLAG_DDGST;
    bed_ctrl(bed, &opts);
    bed_open(bed);
    assert_int_equal(bed->ups, 1);
    bed_put(bed, "k", value, 20000);
    for (int i = 0; i < 4; i++) {
        bed->fake->bad_digest = i % 2 == 0;
        bed->fake->success_flag = i >= 2; /* the data itself says that the command succeeded */
        bed_op(&op, bed, "k", room, 20000, 1000 * MS);
        assert_int_equal(bed_go(&op, nvmf_retrieve), ICMS_OK);
        bed_run(bed, 100 * MS);
        assert_int_equal(op.done, 1);
        assert_int_equal(op.req.err, i % 2 == 0 ? ICMS_CORRUPT : ICMS_OK);
    }
    assert_memory_equal(room, value, 20000);
    assert_int_equal(nvmf_ctrl_stats(bed->ctrl)->digest_errors, 2);
    assert_int_equal(bed->downs, 0);
    bed_free(bed);
    free(value);
    free(room);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unanswered_requests_end_by_their_deadline),
        cmocka_unit_test(a_retrieve_in_mid_data_ends_when_nothing_writes_its_buffer),
        cmocka_unit_test(what_has_not_begun_at_the_deadline_comes_elsewhere),
        cmocka_unit_test(a_late_store_keeps_its_buffer_until_it_is_over),
        cmocka_unit_test(a_store_with_its_data_ends_when_its_memory_is_free),
        cmocka_unit_test(vendor_commands_say_how_much_time_is_left),
        cmocka_unit_test(more_than_a_transfer_is_refused),
        cmocka_unit_test(requests_end_at_once_when_the_connection_is_lost),
        cmocka_unit_test(a_stopped_target_is_dead_after_the_silence),
        cmocka_unit_test(a_command_that_is_never_answered_ends_the_association),
        cmocka_unit_test(a_black_hole_is_found_when_quiet_too),
        cmocka_unit_test(a_busy_target_is_not_dead),
        cmocka_unit_test(one_silent_connection_is_dead_within_a_second),
        cmocka_unit_test(a_full_queue_that_is_silent_is_dead_within_a_second),
        cmocka_unit_test(a_queue_that_is_busy_for_long_is_not_dead),
        cmocka_unit_test(a_foreign_queue_may_be_silent_for_longer),
        cmocka_unit_test(starved_machines_do_not_take_each_other_for_dead),
        cmocka_unit_test(keeps_alive_when_quiet),
        cmocka_unit_test(opening_ends_by_its_deadline),
        cmocka_unit_test(a_refused_connection_and_a_refused_host_say_so),
        cmocka_unit_test(closing_while_it_opens_is_closed_once),
        cmocka_unit_test(a_target_that_breaks_the_protocol_loses_its_connection),
        cmocka_unit_test(data_with_a_wrong_digest_is_corrupt),
    };

    return cmocka_run_group_tests_name("nvmf-host-fault", tests, NULL, NULL);
}
