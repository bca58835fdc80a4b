/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of loop.h, the same tests for every back end.
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

/* ---- helpers -------------------------------------------------------------------------------- */

#define MS 1000000u

static void rig_loops(struct rig *rig, unsigned count, uint32_t entries_max)
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

static void rig_start(struct rig *rig)
{
    for (unsigned i = 0; i < 2 && rig->loop[i] != NULL; i++)
        assert_int_equal(loop_start(rig->loop[i], NULL), ICMS_OK);
}

static void rig_end(struct rig *rig)
{
    for (unsigned i = 0; i < 2 && rig->loop[i] != NULL; i++)
        loop_stop(rig->loop[i]);
    for (unsigned i = 0; i < 2 && rig->loop[i] != NULL; i++)
        loop_join(rig->loop[i]);
    for (unsigned i = 0; i < 2; i++)
        loop_free(&rig->loop[i]);
}

static bool flag_is_up(void *arg)
{
    return atomic_load((atomic_int *)arg) != 0;
}

struct call {
    struct loop_msg msg;
    void (*run)(struct loop *loop, void *arg);
    struct loop *loop;
    void *arg;
    atomic_int ran;
};

static void call_run(struct loop_msg *msg)
{
    struct call *call = container_of(msg, struct call, msg);

    check(loop_is_mine(call->loop));
    call->run(call->loop, call->arg);
    atomic_store(&call->ran, 1);
}

/* Runs a function on a loop and waits for its end. */
static void rig_call(struct rig *rig, struct loop *loop, void (*run)(struct loop *loop, void *arg),
                     void *arg)
{
    struct call call = {.run = run, .loop = loop, .arg = arg};

    loop_send(loop, &call.msg, call_run);
    assert_true(rig->until(rig, flag_is_up, &call.ran));
}

/* An operation with its result, to wait for on the main thread. */
struct wait {
    struct loop_op op;
    icms_err err;
    uint32_t bytes;
    struct loop_sock *sock;
    unsigned calls;
    atomic_int done;
};

static void wait_done(struct loop_op *op)
{
    struct wait *wait = container_of(op, struct wait, op);

    check(loop_is_mine(op->loop));
    check(!loop_op_busy(op));
    wait->err = op->err;
    wait->bytes = op->bytes;
    wait->sock = op->sock;
    wait->calls++;
    atomic_fetch_add(&wait->done, 1);
}

static void wait_for(struct rig *rig, struct wait *wait)
{
    assert_true(rig->until(rig, flag_is_up, &wait->done));
    assert_int_equal(wait->calls, 1);
    wait->calls = 0;
    atomic_store(&wait->done, 0);
}

static void fill(uint8_t *memory, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (uint8_t)(hash64_mix(seed + i / 8) >> (8 * (i % 8)));
}

/* ---- time ----------------------------------------------------------------------------------- */

#define TIMERS 40

struct timers {
    struct loop *loop;
    struct loop_timer timer[TIMERS];
    uint64_t at_ns[TIMERS];
    unsigned order[TIMERS];
    unsigned fired;
    bool early;
    bool inside;
    atomic_int done;
};

static struct timers *timers_now;

static void timers_fire(struct loop_timer *timer)
{
    struct timers *t = timers_now;
    unsigned i = (unsigned)(timer - t->timer);

    check(!t->inside);
    check(!loop_timer_armed(timer));
    if (loop_now_ns(t->loop) < t->at_ns[i])
        t->early = true;
    t->order[t->fired++] = i;
    if (i == 0) { /* the first takes one out, and moves another behind all */
        loop_timer_stop(t->loop, &t->timer[7]);
        loop_timer_stop(t->loop, &t->timer[7]);
        t->at_ns[3] = loop_now_ns(t->loop) + 40 * MS;
        t->inside = true;
        loop_timer_start(t->loop, &t->timer[3], t->at_ns[3]);
        t->inside = false;
    }
    if (i == 3)
        atomic_store(&t->done, 1);
}

static void timers_arm(struct loop *loop, void *arg)
{
    struct timers *t = arg;
    uint64_t now_ns = loop_now_ns(loop);

    for (unsigned i = 0; i < TIMERS; i++) {
        unsigned at = i * 17 % TIMERS; /* armed out of order */

        loop_timer_init(&t->timer[at], timers_fire);
        t->at_ns[at] = now_ns + 2 * MS + at / 2 * (MS / 4); /* pairs of equal times */
    }
    for (unsigned i = 0; i < TIMERS; i++)
        loop_timer_start(loop, &t->timer[i], t->at_ns[i]);
}

static void timers_fire_in_order_and_obey_inside_callbacks(void **state)
{
    struct rig *rig = *state;
    struct timers t = {.fired = 0};
    unsigned expected = 0;

    timers_now = &t;
    rig_loops(rig, 1, 64);
    t.loop = rig->loop[0];
    rig_start(rig);
    rig_call(rig, t.loop, timers_arm, &t);
    assert_true(rig->until(rig, flag_is_up, &t.done));
    rig_end(rig);
    assert_false(t.early);
    assert_int_equal(t.fired, TIMERS - 1);
    for (unsigned i = 0; i < TIMERS - 2; i++, expected++) {
        while (expected == 3 || expected == 7)
            expected++;
        assert_int_equal(t.order[i], expected);
    }
    assert_int_equal(t.order[TIMERS - 2], 3);
}

struct past {
    struct loop_timer timer;
    struct loop *loop;
    unsigned fired;
    atomic_int done;
};

static void past_fire(struct loop_timer *timer)
{
    struct past *past = container_of(timer, struct past, timer);

    if (++past->fired == 100)
        atomic_store(&past->done, 1);
    else
        loop_timer_start(past->loop, timer, 0);
}

static void a_timer_in_the_past_fires_but_starves_nothing(void **state)
{
    struct rig *rig = *state;
    struct past past = {.fired = 0};

    rig_loops(rig, 1, 64);
    past.loop = rig->loop[0];
    loop_timer_init(&past.timer, past_fire);
    loop_timer_start(rig->loop[0], &past.timer, 0); /* before the start */
    rig_start(rig);
    assert_true(rig->until(rig, flag_is_up, &past.done));
    rig_end(rig);
}

static void random_numbers_differ(void **state)
{
    struct rig *rig = *state;
    uint64_t a[4] = {0};
    uint64_t b[4] = {0};

    rig_loops(rig, 1, 64);
    loop_entropy(rig->loop[0], a, sizeof(a));
    loop_entropy(rig->loop[0], b, sizeof(b));
    assert_memory_not_equal(a, b, sizeof(a));
    assert_true(loop_random(rig->loop[0]) != loop_random(rig->loop[0]));
    rig_end(rig);
}

/* ---- messages ------------------------------------------------------------------------------- */

#define MESSAGES 5000

struct letter {
    struct loop_msg msg;
    struct post *post;
    unsigned from;   /* 0, 1: a loop; 2: no loop */
    unsigned number; /* of its sender            */
};

struct post {
    struct loop *loop[2];
    struct letter letter[3][MESSAGES];
    unsigned next[2][3]; /* expected number, by receiver and sender */
    atomic_int left;
};

static bool post_is_empty(void *arg)
{
    return atomic_load(&((struct post *)arg)->left) == 0;
}

static void letter_run(struct loop_msg *msg)
{
    struct letter *letter = container_of(msg, struct letter, msg);
    struct post *post = letter->post;
    unsigned to = letter->number % 2;

    check(loop_is_mine(post->loop[to]));
    check(letter->number >= post->next[to][letter->from]);
    post->next[to][letter->from] = letter->number + 1;
    atomic_fetch_sub(&post->left, 1);
}

static void post_send(struct post *post, unsigned from)
{
    for (unsigned i = 0; i < MESSAGES; i++) {
        struct letter *letter = &post->letter[from][i];

        letter->post = post;
        letter->from = from;
        letter->number = i;
        loop_send(post->loop[i % 2], &letter->msg, letter_run);
    }
}

static void post_send_0(struct loop *loop, void *arg)
{
    post_send(arg, 0);
}

static void post_send_1(struct loop *loop, void *arg)
{
    post_send(arg, 1);
}

static void messages_of_a_sender_stay_in_order(void **state)
{
    struct rig *rig = *state;
    struct post *post = calloc(1, sizeof(*post));
    struct call calls[2] = {{.run = post_send_0, .arg = post}, {.run = post_send_1, .arg = post}};

    assert_non_null(post);
    rig_loops(rig, 2, 64);
    for (unsigned i = 0; i < 2; i++)
        post->loop[i] = calls[i].loop = rig->loop[i];
    atomic_store(&post->left, 3 * MESSAGES);
    rig_start(rig);
    for (unsigned i = 0; i < 2; i++)
        loop_send(rig->loop[i], &calls[i].msg, call_run);
    post_send(post, 2);
    assert_true(rig->until(rig, post_is_empty, post));
    rig_end(rig);
    free(post);
}

struct ball {
    struct loop_msg msg;
    struct rig *rig;
    unsigned hits;
    atomic_int done;
};

static void ball_hit(struct loop_msg *msg)
{
    struct ball *ball = container_of(msg, struct ball, msg);

    if (++ball->hits == 1000)
        atomic_store(&ball->done, 1);
    else /* every third hit stays on its loop */
        loop_send(ball->rig->loop[ball->hits * 2 / 3 % 2], msg, ball_hit);
}

static void a_message_may_be_sent_again_from_inside(void **state)
{
    struct rig *rig = *state;
    struct ball ball = {.rig = rig};
    struct loop_stats stats;

    rig_loops(rig, 2, 64);
    loop_send(rig->loop[0], &ball.msg, ball_hit); /* before the start */
    rig_start(rig);
    assert_true(rig->until(rig, flag_is_up, &ball.done));
    loop_stats(rig->loop[0], &stats);
    assert_true(stats.messages > 0 && stats.iterations > 0);
    rig_end(rig);
}

#define CROWD_THREADS 4

static void *post_thread(void *arg)
{
    struct call *call = arg;

    for (unsigned i = 0; i < 500; i++) {
        atomic_store(&call->ran, 0);
        loop_send(call->loop, &call->msg, call_run);
        while (atomic_load(&call->ran) == 0)
            sched_yield();
    }
    return NULL;
}

static void post_count(struct loop *loop, void *arg)
{
    ++*(unsigned *)arg; /* plain: one loop, no lock */
}

static void threads_without_a_loop_wake_a_sleeping_one(void **state)
{
    struct rig *rig = *state;
    struct call calls[CROWD_THREADS];
    pthread_t threads[CROWD_THREADS];
    unsigned count = 0;

    if (!rig->threads)
        return;
    rig_loops(rig, 1, 64);
    rig_start(rig);
    for (unsigned i = 0; i < CROWD_THREADS; i++) {
        calls[i] = (struct call){.run = post_count, .loop = rig->loop[0], .arg = &count};
        assert_int_equal(pthread_create(&threads[i], NULL, post_thread, &calls[i]), 0);
    }
    for (unsigned i = 0; i < CROWD_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    rig_end(rig);
    assert_int_equal(count, CROWD_THREADS * 500);
}

/* ---- files ---------------------------------------------------------------------------------- */

#define FILE_BYTES ((uint32_t)4 << 20)

static struct loop_file *rig_file(struct rig *rig, bool direct)
{
    struct loop_file_opts opts = {.path = rig->path,
                                  .create = true,
                                  .write = true,
                                  .direct = direct,
                                  .exclusive = true,
                                  .bytes = FILE_BYTES};
    struct loop_file *file = NULL;
    struct err_why why = {""};
    icms_err err = loop_file_open(rig->env, &opts, &why, &file);

    if (err != ICMS_OK)
        print_message("%s\n", why.text);
    if (err == ICMS_UNSUPPORTED)
        skip(); /* /var/tmp has no direct I/O */
    assert_int_equal(err, ICMS_OK);
    assert_int_equal(loop_file_bytes(file), FILE_BYTES);
    return file;
}

struct disk {
    struct loop_file *file;
    struct wait wait;
    uint8_t *memory;
    uint64_t offset;
    uint32_t bytes;
};

static void disk_write(struct loop *loop, void *arg)
{
    struct disk *d = arg;

    loop_file_write(loop, &d->wait.op, d->file, d->offset, d->memory, d->bytes, wait_done);
    check(loop_op_busy(&d->wait.op));
}

static void disk_read(struct loop *loop, void *arg)
{
    struct disk *d = arg;

    loop_file_read(loop, &d->wait.op, d->file, d->offset, d->memory, d->bytes, wait_done);
}

static void disk_flush(struct loop *loop, void *arg)
{
    struct disk *d = arg;

    loop_file_flush(loop, &d->wait.op, d->file, wait_done);
}

static void disk_do(struct rig *rig, struct disk *d, void (*run)(struct loop *loop, void *arg))
{
    rig_call(rig, rig->loop[0], run, d);
    wait_for(rig, &d->wait);
}

static void files_move_whole_transfers(void **state)
{
    struct rig *rig = *state;
    uint8_t *copy = malloc(FILE_BYTES);

    assert_non_null(copy);
    for (int registered = 0; registered < 2; registered++) {
        struct disk d = {.file = rig_file(rig, true), .bytes = FILE_BYTES};
        struct loop_region *region = NULL;

        rig_loops(rig, 1, 64);
        assert_int_equal(
            loop_region_new(rig->env, "test", 2 * FILE_BYTES, registered, NULL, &region), ICMS_OK);
        assert_int_equal(loop_region_bytes(region), 2 * FILE_BYTES);
        if (registered)
            assert_int_equal(loop_region_register(rig->loop[0], region, NULL), ICMS_OK);
        d.memory = loop_region_base(region);
        assert_int_equal((uintptr_t)d.memory % LIMIT_DISK_ALIGN, 0);
        rig_start(rig);
        fill(d.memory, FILE_BYTES, 7);
        memcpy(copy, d.memory, FILE_BYTES);
        disk_do(rig, &d, disk_write);
        assert_int_equal(d.wait.err, ICMS_OK);
        assert_int_equal(d.wait.bytes, FILE_BYTES);
        disk_do(rig, &d, disk_flush);
        assert_int_equal(d.wait.err, ICMS_OK);
        d.memory += FILE_BYTES - LIMIT_DISK_ALIGN;
        disk_do(rig, &d, disk_read);
        assert_int_equal(d.wait.err, ICMS_OK);
        assert_int_equal(d.wait.bytes, FILE_BYTES);
        assert_memory_equal(d.memory, copy, FILE_BYTES);
        rig_end(rig);
        loop_file_close(&d.file);
        loop_region_free(&region);
        assert_null(region);
    }
    free(copy);
}

static void a_read_past_the_end_fails_with_what_there_was(void **state)
{
    struct rig *rig = *state;
    uint8_t memory[3000];
    struct disk d = {.file = rig_file(rig, false),
                     .memory = memory,
                     .bytes = sizeof(memory),
                     .offset = FILE_BYTES - 1000};

    rig_loops(rig, 1, 64);
    rig_start(rig);
    disk_do(rig, &d, disk_read);
    assert_int_equal(d.wait.err, ICMS_IO);
    assert_int_equal(d.wait.bytes, 1000);
    rig_end(rig);
    loop_file_close(&d.file);
}

static void blocking_file_calls_work_at_start(void **state)
{
    struct rig *rig = *state;
    struct loop_file *file = rig_file(rig, false);
    struct loop_file_opts opts = {.path = rig->path, .write = false};
    uint8_t a[5000];
    uint8_t b[5000];

    fill(a, sizeof(a), 3);
    assert_int_equal(loop_file_write_now(file, 12345, a, sizeof(a)), ICMS_OK);
    assert_int_equal(loop_file_flush_now(file), ICMS_OK);
    assert_int_equal(loop_file_read_now(file, 12345, b, sizeof(b)), ICMS_OK);
    assert_memory_equal(a, b, sizeof(a));
    assert_int_not_equal(loop_file_read_now(file, FILE_BYTES - 1, b, 2), ICMS_OK);
    loop_file_close(&file);
    assert_int_equal(loop_file_open(rig->env, &opts, NULL, &file), ICMS_OK);
    assert_int_equal(loop_file_bytes(file), FILE_BYTES);
    memset(b, 0, sizeof(b));
    assert_int_equal(loop_file_read_now(file, 12345, b, sizeof(b)), ICMS_OK);
    assert_memory_equal(a, b, sizeof(a));
    loop_file_close(&file);
}

/* More reads than fit at once, in any order; one of them reaches behind the end. */
static void many_blocking_reads_end_with_their_bytes(void **state)
{
    enum { READS = 40, DEPTH = 8, BYTES = 700 };
    struct rig *rig = *state;
    struct loop_file *file = rig_file(rig, false);
    struct loop_reads *reads = NULL;
    struct loop_read read[READS];
    struct err_why why = {""};
    static uint8_t memory[READS][BYTES], all[READS * BYTES];
    uint32_t started = 0, ended = 0, failed = 0;

    fill(all, sizeof(all), 5);
    assert_int_equal(loop_file_write_now(file, 0, all, sizeof(all)), ICMS_OK);
    assert_int_equal(loop_reads_new(file, DEPTH, &why, &reads), ICMS_OK);
    assert_null(loop_reads_wait(reads));
    while (ended < READS) {
        struct loop_read *one;

        for (; started < READS && started - ended < DEPTH; started++) {
            read[started] = (struct loop_read){.offset = started == 17 ? FILE_BYTES - 10
                                                                       : (uint64_t)started * BYTES,
                                               .memory = memory[started],
                                               .bytes = BYTES};
            loop_reads_start(reads, &read[started]);
        }
        one = loop_reads_wait(reads);
        assert_non_null(one);
        ended++;
        if (one == &read[17]) {
            assert_int_equal(one->err, ICMS_IO);
            failed++;
            continue;
        }
        assert_int_equal(one->err, ICMS_OK);
        assert_memory_equal(one->memory, all + one->offset, BYTES);
    }
    assert_int_equal(failed, 1);
    assert_null(loop_reads_wait(reads));
    loop_reads_start(reads, &read[0]); /* freeing waits for it */
    loop_reads_free(&reads);
    assert_null(reads);
    loop_reads_free(&reads);
    loop_file_close(&file);
}

static void a_locked_file_names_its_holder(void **state)
{
    struct rig *rig = *state;
    struct loop_file *file = rig_file(rig, false);
    struct loop_file *second = NULL;
    struct loop_file_opts opts = {.path = rig->path, .write = true, .exclusive = true};
    struct err_why why = {""};
    char pid[32];

    (void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        assert_int_equal(loop_file_open(rig->env, &opts, &why, &second), ICMS_LOCKED);
        assert_non_null(strstr(why.text, rig->path));
        if (rig->threads)
            assert_non_null(strstr(why.text, pid));
    }
    loop_file_close(&file);
    assert_int_equal(loop_file_open(rig->env, &opts, &why, &second), ICMS_OK);
    loop_file_close(&second);
}

static void a_missing_file_is_an_error_with_its_path(void **state)
{
    struct rig *rig = *state;
    struct loop_file_opts opts = {.path = rig->path, .write = true};
    struct loop_file *file = NULL;
    struct err_why why = {""};

    assert_int_equal(loop_file_open(rig->env, &opts, &why, &file), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, rig->path));
    assert_null(file);
}

#define CROWD 300

struct crowd {
    struct loop_file *file;
    struct loop_op op[CROWD];
    uint8_t memory[CROWD][512];
    struct rig *rig;
    atomic_int left;
};

static struct crowd *crowd_now;

static void crowd_read_done(struct loop_op *op)
{
    check(op->err == ICMS_OK && op->bytes == 512);
    atomic_fetch_sub(&crowd_now->left, 1);
}

static void crowd_write_done(struct loop_op *op)
{
    struct crowd *c = crowd_now;
    unsigned i = (unsigned)(op - c->op);

    check(op->err == ICMS_OK);
    memset(c->memory[i], 0, 512);
    loop_file_read(op->loop, op, c->file, (uint64_t)i * 512, c->memory[i], 512, crowd_read_done);
}

static bool crowd_is_gone(void *arg)
{
    return atomic_load(&((struct crowd *)arg)->left) == 0;
}

static void more_operations_than_entries_wait_their_turn(void **state)
{
    struct rig *rig = *state;
    struct crowd *c = calloc(1, sizeof(*c));
    uint8_t expected[512];

    assert_non_null(c);
    crowd_now = c;
    c->file = rig_file(rig, false);
    atomic_store(&c->left, CROWD);
    rig_loops(rig, 1, 8);
    for (unsigned i = 0; i < CROWD; i++) { /* started before the loop */
        fill(c->memory[i], 512, i);
        loop_file_write(rig->loop[0], &c->op[i], c->file, (uint64_t)i * 512, c->memory[i], 512,
                        crowd_write_done);
    }
    rig_start(rig);
    assert_true(rig->until(rig, crowd_is_gone, c));
    rig_end(rig);
    for (unsigned i = 0; i < CROWD; i++) {
        fill(expected, 512, i);
        assert_memory_equal(c->memory[i], expected, 512);
    }
    loop_file_close(&c->file);
    free(c);
}

/* ---- sockets -------------------------------------------------------------------------------- */

/* Two connected sockets: [0] accepted by loop[0], [1] connected by loop[1]. */
struct pair {
    struct loop_sock *listener;
    struct loop_sock *sock[2];
    struct wait wait[2];
    struct loop_addr addr;
};

static void pair_accept(struct loop *loop, void *arg)
{
    struct pair *pair = arg;

    loop_accept(loop, &pair->wait[0].op, pair->listener, wait_done);
}

static void pair_connect(struct loop *loop, void *arg)
{
    struct pair *pair = arg;

    loop_connect(loop, &pair->wait[1].op, &pair->addr, wait_done);
}

static void pair_listen(struct rig *rig, struct pair *pair)
{
    struct loop_addr addr = {{0}, 0};

    (void)snprintf(addr.host, sizeof(addr.host), "%s", rig->host);
    assert_int_equal(loop_listen(rig->env, &addr, NULL, &pair->listener), ICMS_OK);
    loop_sock_addr(pair->listener, &pair->addr);
    assert_string_equal(pair->addr.host, rig->host);
    assert_int_not_equal(pair->addr.port, 0);
}

static void pair_open(struct rig *rig, struct pair *pair)
{
    pair_listen(rig, pair);
    rig_loops(rig, 2, 64);
    rig_start(rig);
    rig_call(rig, rig->loop[0], pair_accept, pair);
    rig_call(rig, rig->loop[1], pair_connect, pair);
    for (unsigned i = 0; i < 2; i++) {
        wait_for(rig, &pair->wait[i]);
        assert_int_equal(pair->wait[i].err, ICMS_OK);
        pair->sock[i] = pair->wait[i].sock;
        assert_non_null(pair->sock[i]);
    }
}

static void pair_close(struct rig *rig, struct pair *pair)
{
    rig_end(rig);
    loop_sock_close(&pair->sock[0]);
    loop_sock_close(&pair->sock[1]);
    loop_sock_close(&pair->listener);
}

#define ECHO_BYTES ((uint32_t)6 << 20)

struct echo {
    struct loop_op recv;
    struct loop_op send;
    struct loop_sock *sock;
    struct iovec vectors[3];
    uint8_t *out;
    uint8_t *in;
    uint32_t sent;
    uint32_t received;
    bool server; /* sends what it received; the client the other way round */
    bool sending;
    bool shorts; /* a send was cut short */
    atomic_int done;
};

static void echo_send(struct loop *loop, struct echo *echo);

static void echo_sent(struct loop_op *op)
{
    struct echo *echo = container_of(op, struct echo, send);
    uint32_t asked = 0;

    check(op->err == ICMS_OK && op->bytes > 0);
    for (unsigned i = 0; i < 3; i++)
        asked += (uint32_t)echo->vectors[i].iov_len;
    if (op->bytes < asked)
        echo->shorts = true;
    echo->sent += op->bytes;
    echo->sending = false;
    if (echo->server && echo->sent == ECHO_BYTES)
        atomic_store(&echo->done, 1);
    else
        echo_send(op->loop, echo);
}

/* Sends what there is in three vectors of different lengths. */
static void echo_send(struct loop *loop, struct echo *echo)
{
    uint32_t end = echo->server ? echo->received : ECHO_BYTES;
    uint32_t bytes = end - echo->sent;
    uint32_t part = bytes / 7;

    if (echo->sending || bytes == 0)
        return;
    echo->vectors[0] = (struct iovec){echo->out + echo->sent, part};
    echo->vectors[1] = (struct iovec){echo->out + echo->sent + part, 2 * part};
    echo->vectors[2] = (struct iovec){echo->out + echo->sent + 3 * part, bytes - 3 * part};
    echo->sending = true;
    loop_sendv(loop, &echo->send, echo->sock, echo->vectors, 3, echo_sent);
}

static void echo_received(struct loop_op *op)
{
    struct echo *echo = container_of(op, struct echo, recv);

    check(op->err == ICMS_OK && op->bytes > 0);
    echo->received += op->bytes;
    if (echo->server) {
        echo_send(op->loop, echo);
        if (echo->received < ECHO_BYTES)
            loop_recv(op->loop, op, echo->sock, echo->in + echo->received, 100000, false,
                      echo_received);
        return;
    }
    check(echo->received == ECHO_BYTES);
    atomic_store(&echo->done, 1);
}

static void echo_start(struct loop *loop, void *arg)
{
    struct echo *echo = arg;

    loop_recv(loop, &echo->recv, echo->sock, echo->in, echo->server ? 100000 : ECHO_BYTES,
              !echo->server, echo_received);
    if (!echo->server)
        echo_send(loop, echo);
}

static void sockets_carry_streams_with_partial_sends_and_whole_receives(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct echo echo[2] = {{.server = true}, {.server = false}};

    pair_open(rig, &pair);
    for (unsigned i = 0; i < 2; i++) {
        echo[i].sock = pair.sock[i];
        echo[i].in = calloc(1, ECHO_BYTES + 100000);
        echo[i].out = i == 0 ? echo[i].in : malloc(ECHO_BYTES);
        assert_non_null(echo[i].in);
        assert_non_null(echo[i].out);
    }
    fill(echo[1].out, ECHO_BYTES, 5);
    rig_call(rig, rig->loop[0], echo_start, &echo[0]);
    rig_call(rig, rig->loop[1], echo_start, &echo[1]);
    assert_true(rig->until(rig, flag_is_up, &echo[0].done));
    assert_true(rig->until(rig, flag_is_up, &echo[1].done));
    if (!rig->threads) /* on the machine it depends on the receiver's speed */
        assert_true(echo[1].shorts);
    assert_memory_equal(echo[1].in, echo[1].out, ECHO_BYTES);
    pair_close(rig, &pair);
    free(echo[0].in);
    free(echo[1].in);
    free(echo[1].out);
}

static void a_connect_without_listener_is_refused(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};

    pair_listen(rig, &pair);
    loop_sock_close(&pair.listener);
    rig_loops(rig, 2, 64);
    rig_start(rig);
    rig_call(rig, rig->loop[1], pair_connect, &pair);
    wait_for(rig, &pair.wait[1]);
    assert_int_equal(pair.wait[1].err, ICMS_REFUSED);
    assert_null(pair.wait[1].sock);
    pair_close(rig, &pair);
}

struct transfer {
    struct wait wait;
    struct loop_sock *sock;
    uint8_t memory[4096];
    uint32_t bytes;
    bool whole;
    struct iovec vector;
};

static void transfer_recv(struct loop *loop, void *arg)
{
    struct transfer *t = arg;

    loop_recv(loop, &t->wait.op, t->sock, t->memory, t->bytes, t->whole, wait_done);
}

static void transfer_send(struct loop *loop, void *arg)
{
    struct transfer *t = arg;

    t->vector = (struct iovec){t->memory, t->bytes};
    loop_sendv(loop, &t->wait.op, t->sock, &t->vector, 1, wait_done);
}

static void transfer_shutdown(struct loop *loop, void *arg)
{
    loop_sock_shutdown(((struct transfer *)arg)->sock);
    loop_sock_shutdown(((struct transfer *)arg)->sock);
}

static void op_cancel(struct loop *loop, void *arg)
{
    loop_op_cancel(arg);
    loop_op_cancel(arg);
}

static void the_end_of_a_stream_is_a_reset(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct transfer in = {.bytes = 1000, .whole = true};
    struct transfer out = {.bytes = 300};
    uint32_t sent;

    pair_open(rig, &pair);
    in.sock = pair.sock[0];
    out.sock = pair.sock[1];
    rig_call(rig, rig->loop[0], transfer_recv, &in);
    rig_call(rig, rig->loop[1], transfer_send, &out);
    wait_for(rig, &out.wait);
    assert_int_equal(out.wait.err, ICMS_OK);
    sent = out.wait.bytes; /* a send may be short */
    assert_true(sent > 0 && sent <= 300);
    rig->idle(rig);
    assert_int_equal(atomic_load(&in.wait.done), 0);
    rig_call(rig, rig->loop[1], transfer_shutdown, &out);
    wait_for(rig, &in.wait);
    assert_int_equal(in.wait.err, ICMS_RESET);
    assert_int_equal(in.wait.bytes, sent);
    in.whole = false;
    rig_call(rig, rig->loop[0], transfer_recv, &in);
    wait_for(rig, &in.wait);
    assert_int_equal(in.wait.err, ICMS_RESET);
    assert_int_equal(in.wait.bytes, 0);
    rig_call(rig, rig->loop[1], transfer_send, &out);
    wait_for(rig, &out.wait);
    assert_int_equal(out.wait.err, ICMS_RESET);
    pair_close(rig, &pair);
}

static void a_shutdown_ends_pending_receives_of_both_sides(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct transfer in[2] = {{.bytes = 10}, {.bytes = 10}};

    pair_open(rig, &pair);
    for (unsigned i = 0; i < 2; i++) {
        in[i].sock = pair.sock[i];
        rig_call(rig, rig->loop[i], transfer_recv, &in[i]);
    }
    rig_call(rig, rig->loop[0], transfer_shutdown, &in[0]);
    for (unsigned i = 0; i < 2; i++) {
        wait_for(rig, &in[i].wait);
        assert_int_equal(in[i].wait.err, ICMS_RESET);
    }
    pair_close(rig, &pair);
}

static void a_canceled_receive_ends_and_writes_nothing_any_more(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct transfer in = {.bytes = 1000};
    struct transfer out = {.bytes = 300};
    static const uint8_t zeros[1000];

    for (int whole = 0; whole < 2; whole++) {
        memset(&in, 0, sizeof(in));
        pair_open(rig, &pair);
        in.bytes = 1000;
        in.whole = whole;
        in.sock = pair.sock[0];
        out.sock = pair.sock[1];
        rig_call(rig, rig->loop[0], transfer_recv, &in);
        rig->idle(rig);
        rig_call(rig, rig->loop[0], op_cancel, &in.wait.op);
        wait_for(rig, &in.wait);
        assert_int_equal(in.wait.err, ICMS_CANCELED);
        assert_int_equal(in.wait.bytes, 0);
        memset(in.memory, 0, sizeof(in.memory));
        fill(out.memory, out.bytes, 2);
        rig_call(rig, rig->loop[1], transfer_send, &out);
        wait_for(rig, &out.wait);
        rig->idle(rig);
        assert_memory_equal(in.memory, zeros, sizeof(zeros));
        rig_call(rig, rig->loop[0], op_cancel, &in.wait.op); /* not in flight: harmless */
        in.whole = false;
        rig_call(rig, rig->loop[0], transfer_recv, &in);
        wait_for(rig, &in.wait);
        assert_int_equal(in.wait.err, ICMS_OK);
        assert_true(in.wait.bytes > 0 && in.wait.bytes <= out.wait.bytes);
        assert_memory_equal(in.memory, out.memory, in.wait.bytes);
        pair_close(rig, &pair);
    }
}

static void accept_and_cancel(struct loop *loop, void *arg)
{
    pair_accept(loop, arg);
    loop_op_cancel(&((struct pair *)arg)->wait[0].op);
}

static void connect_and_cancel(struct loop *loop, void *arg)
{
    pair_connect(loop, arg);
    loop_op_cancel(&((struct pair *)arg)->wait[1].op);
}

static void accepts_and_connects_can_be_canceled(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};

    pair_listen(rig, &pair);
    rig_loops(rig, 2, 64);
    rig_start(rig);
    rig_call(rig, rig->loop[0], pair_accept, &pair);
    rig->idle(rig);
    rig_call(rig, rig->loop[0], op_cancel, &pair.wait[0].op);
    wait_for(rig, &pair.wait[0]);
    assert_int_equal(pair.wait[0].err, ICMS_CANCELED);
    rig_call(rig, rig->loop[0], accept_and_cancel, &pair);
    wait_for(rig, &pair.wait[0]);
    assert_int_equal(pair.wait[0].err, ICMS_CANCELED);
    rig_call(rig, rig->loop[1], connect_and_cancel, &pair);
    wait_for(rig, &pair.wait[1]);
    assert_int_equal(pair.wait[1].err, ICMS_CANCELED);
    assert_null(pair.wait[1].sock);
    pair_close(rig, &pair);
}

static void a_busy_port_is_an_error_with_a_remedy(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};
    struct loop_sock *second = NULL;
    struct err_why why = {""};
    char text[64];

    pair_listen(rig, &pair);
    assert_int_equal(loop_listen(rig->env, &pair.addr, &why, &second), ICMS_ADDRESS_IN_USE);
    assert_non_null(strstr(why.text, loop_addr_format(&pair.addr, text, sizeof(text))));
    loop_sock_close(&pair.listener);
}

/* ---- events --------------------------------------------------------------------------------- */

struct bell {
    struct loop_event *event;
    struct wait wait;
};

static void bell_wait(struct loop *loop, void *arg)
{
    struct bell *bell = arg;

    loop_event_wait(loop, &bell->wait.op, bell->event, wait_done);
}

static void events_wake_a_loop_once_for_all_signals(void **state)
{
    struct rig *rig = *state;
    struct bell bell = {0};

    assert_int_equal(loop_event_new(rig->env, &bell.event), ICMS_OK);
    rig_loops(rig, 1, 64);
    rig_start(rig);
    for (int early = 0; early < 2; early++) {
        for (int i = 0; early && i < 3; i++)
            loop_event_signal(bell.event);
        rig_call(rig, rig->loop[0], bell_wait, &bell);
        if (!early) {
            rig->idle(rig);
            assert_int_equal(atomic_load(&bell.wait.done), 0);
            loop_event_signal(bell.event);
        }
        wait_for(rig, &bell.wait);
        assert_int_equal(bell.wait.err, ICMS_OK);
    }
    rig_call(rig, rig->loop[0], bell_wait, &bell);
    rig->idle(rig);
    assert_int_equal(atomic_load(&bell.wait.done), 0);
    rig_call(rig, rig->loop[0], op_cancel, &bell.wait.op);
    wait_for(rig, &bell.wait);
    assert_int_equal(bell.wait.err, ICMS_CANCELED);
    rig_end(rig);
    loop_event_free(&bell.event);
}

/* ---- the end -------------------------------------------------------------------------------- */

struct last {
    struct pair pair;
    struct transfer in[2];
    struct bell bell;
    struct disk disk;
    struct wait accept;
    struct wait connect;
    struct loop_timer timer;
    struct loop_msg msg;
};

static void last_timer(struct loop_timer *timer)
{
    check(false);
}

static void last_msg(struct loop_msg *msg)
{
    check(false);
}

static void last_start(struct loop *loop, void *arg)
{
    struct last *last = arg;

    transfer_recv(loop, &last->in[0]);
    loop_recv(loop, &last->in[1].wait.op, last->pair.listener, last->in[1].memory, 5, true,
              wait_done); /* an operation that fails at once */
    loop_op_cancel(&last->in[1].wait.op);
    bell_wait(loop, &last->bell);
    disk_write(loop, &last->disk);
    loop_accept(loop, &last->accept.op, last->pair.listener, wait_done);
    loop_connect(loop, &last->connect.op, &last->pair.addr, wait_done);
    loop_timer_init(&last->timer, last_timer);
    loop_timer_start(loop, &last->timer, loop_now_ns(loop) + 20 * MS);
    loop_stop(loop);
    loop_send(loop, &last->msg, last_msg);
}

static void a_loop_stops_with_work_in_flight_and_calls_nothing_more(void **state)
{
    struct rig *rig = *state;
    struct last last = {.in = {{.bytes = 100}}};

    pair_open(rig, &last.pair);
    assert_int_equal(loop_event_new(rig->env, &last.bell.event), ICMS_OK);
    last.disk.file = rig_file(rig, false);
    last.disk.bytes = FILE_BYTES;
    last.disk.memory = calloc(1, FILE_BYTES);
    last.in[0].sock = last.pair.sock[0];
    rig_call(rig, rig->loop[0], last_start, &last);
    loop_join(rig->loop[0]);
    assert_true(loop_is_mine(rig->loop[0]));
    rig_end(rig);
    assert_int_equal(last.in[0].wait.calls + last.in[1].wait.calls + last.accept.calls +
                         last.connect.calls + last.bell.wait.calls + last.disk.wait.calls,
                     0);
    loop_file_close(&last.disk.file);
    loop_event_free(&last.bell.event);
    free(last.disk.memory);
    pair_close(rig, &last.pair);
}

static void a_loop_that_never_ran_is_freed_with_its_operations(void **state)
{
    struct rig *rig = *state;
    struct pair pair = {0};

    pair_listen(rig, &pair);
    rig_loops(rig, 1, 64);
    pair_accept(rig->loop[0], &pair);
    pair_connect(rig->loop[0], &pair);
    rig_end(rig);
    assert_int_equal(pair.wait[0].calls + pair.wait[1].calls, 0);
    loop_sock_close(&pair.listener);
}

/* ---- addresses ------------------------------------------------------------------------------ */

static void addresses_parse_and_print(void **state)
{
    static const char *const bad[] = {"",       "127.0.0.1",  "127.0.0.1:",  "127.0.0.1:65536",
                                      ":1",     "::1:5",      "[::1]",       "[::1]:x",
                                      "host:1", "1.2.3.4:-1", "[1.2.3.4]:1", "1.2.3.4:000001"};
    static const char *const good[] = {"127.0.0.1:4420", "[::1]:65535", "[fe80::1:2]:0"};
    struct err_why why = {""};
    struct loop_addr addr;
    char text[64];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(loop_addr_parse(good[i], &why, &addr), ICMS_OK);
        assert_string_equal(loop_addr_format(&addr, text, sizeof(text)), good[i]);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(loop_addr_parse(bad[i], &why, &addr), ICMS_CONFIG);
        assert_non_null(strstr(why.text, bad[i]));
    }
}

#define ON(back_end, test)                                                                         \
    {                                                                                              \
#back_end ": " #test, test, rig_##back_end##_setup, rig_##back_end##_teardown, NULL        \
    }

#define CONTRACT(back_end)                                                                         \
    ON(back_end, timers_fire_in_order_and_obey_inside_callbacks),                                  \
        ON(back_end, a_timer_in_the_past_fires_but_starves_nothing),                               \
        ON(back_end, random_numbers_differ), ON(back_end, messages_of_a_sender_stay_in_order),     \
        ON(back_end, a_message_may_be_sent_again_from_inside),                                     \
        ON(back_end, threads_without_a_loop_wake_a_sleeping_one),                                  \
        ON(back_end, files_move_whole_transfers),                                                  \
        ON(back_end, a_read_past_the_end_fails_with_what_there_was),                               \
        ON(back_end, blocking_file_calls_work_at_start),                                           \
        ON(back_end, many_blocking_reads_end_with_their_bytes),                                    \
        ON(back_end, a_locked_file_names_its_holder),                                              \
        ON(back_end, a_missing_file_is_an_error_with_its_path),                                    \
        ON(back_end, more_operations_than_entries_wait_their_turn),                                \
        ON(back_end, sockets_carry_streams_with_partial_sends_and_whole_receives),                 \
        ON(back_end, a_connect_without_listener_is_refused),                                       \
        ON(back_end, the_end_of_a_stream_is_a_reset),                                              \
        ON(back_end, a_shutdown_ends_pending_receives_of_both_sides),                              \
        ON(back_end, a_canceled_receive_ends_and_writes_nothing_any_more),                         \
        ON(back_end, accepts_and_connects_can_be_canceled),                                        \
        ON(back_end, a_busy_port_is_an_error_with_a_remedy),                                       \
        ON(back_end, events_wake_a_loop_once_for_all_signals),                                     \
        ON(back_end, a_loop_stops_with_work_in_flight_and_calls_nothing_more),                     \
        ON(back_end, a_loop_that_never_ran_is_freed_with_its_operations)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_parse_and_print),
        CONTRACT(uring),
        CONTRACT(sim),
    };

    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
