/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of loop.h, the same tests for every back end: time, messages, files, addresses. What
 * it says of sockets, events and the end is in loop_sock_test.c.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <limits.h>
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

#define MS 1000000u

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
    assert_true(rig->until(rig, rig_flag_is_up, &t.done));
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
    assert_true(rig->until(rig, rig_flag_is_up, &past.done));
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
    struct rig_call calls[2] = {{.run = post_send_0, .arg = post},
                                {.run = post_send_1, .arg = post}};

    assert_non_null(post);
    rig_loops(rig, 2, 64);
    for (unsigned i = 0; i < 2; i++)
        post->loop[i] = calls[i].loop = rig->loop[i];
    atomic_store(&post->left, 3 * MESSAGES);
    rig_start(rig);
    for (unsigned i = 0; i < 2; i++)
        loop_send(rig->loop[i], &calls[i].msg, rig_call_run);
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
    assert_true(rig->until(rig, rig_flag_is_up, &ball.done));
    loop_stats(rig->loop[0], &stats);
    assert_true(stats.messages > 0 && stats.iterations > 0);
    rig_end(rig);
}

#define CROWD_THREADS 4

static void *post_thread(void *arg)
{
    struct rig_call *call = arg;

    for (unsigned i = 0; i < 500; i++) {
        atomic_store(&call->ran, 0);
        loop_send(call->loop, &call->msg, rig_call_run);
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
    struct rig_call calls[CROWD_THREADS];
    pthread_t threads[CROWD_THREADS];
    unsigned count = 0;

    if (!rig->threads)
        return;
    rig_loops(rig, 1, 64);
    rig_start(rig);
    for (unsigned i = 0; i < CROWD_THREADS; i++) {
        calls[i] = (struct rig_call){.run = post_count, .loop = rig->loop[0], .arg = &count};
        assert_int_equal(pthread_create(&threads[i], NULL, post_thread, &calls[i]), 0);
    }
    for (unsigned i = 0; i < CROWD_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    rig_end(rig);
    assert_int_equal(count, CROWD_THREADS * 500);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

/* Jobs of a loop, and what became of them. */
struct jobs {
    struct rig *rig;
    struct loop_job job[LIMIT_LOOP_JOBS + 1];
    unsigned worked[LIMIT_LOOP_JOBS + 1]; /* calls of work                  */
    unsigned works;                       /* by the worker alone            */
    unsigned dones;                       /* by the loop alone              */
    unsigned want;                        /* dones after which is_over is 1 */
    unsigned refused;                     /* starts that failed             */
    atomic_int is_over;
    atomic_int may_end; /* what a job waits for that takes long */
    atomic_int began;   /* that it runs                         */
};

static struct jobs *job_owner; /* of the one test that runs */

static size_t job_index(const struct loop_job *job)
{
    return (size_t)(job - job_owner->job);
}

static void job_work(struct loop_job *job)
{
    check(!loop_is_mine(job->loop));
    check(job_index(job) == job_owner->works); /* in order */
    check(loop_job_busy(job));
    job_owner->works++;
    job_owner->worked[job_index(job)]++;
}

static void job_done(struct loop_job *job)
{
    check(loop_is_mine(job->loop));
    check(!loop_job_busy(job));
    check(job_owner->worked[job_index(job)] == 1);
    check(job_index(job) == job_owner->dones);
    if (++job_owner->dones == job_owner->want)
        atomic_store(&job_owner->is_over, 1);
}

static void jobs_start(struct loop *loop, void *arg)
{
    struct jobs *jobs = arg;

    for (size_t i = 0; i < LIMIT_LOOP_JOBS + 1; i++)
        if (loop_job_start(loop, &jobs->job[i], job_work, job_done) != ICMS_OK)
            jobs->refused++;
    check(jobs->dones == 0); /* never from inside the call */
}

static void jobs_start_last(struct loop *loop, void *arg)
{
    struct jobs *jobs = arg;

    check(loop_job_start(loop, &jobs->job[LIMIT_LOOP_JOBS], job_work, job_done) == ICMS_OK);
}

static void jobs_run_in_order_and_within_their_limit(void **state)
{
    struct rig *rig = *state;
    struct jobs jobs = {.rig = rig, .want = LIMIT_LOOP_JOBS};

    job_owner = &jobs;
    rig_loops(rig, 1, 64);
    rig_start(rig);
    rig_call(rig, rig->loop[0], jobs_start, &jobs);
    assert_true(rig->until(rig, rig_flag_is_up, &jobs.is_over));
    assert_int_equal(jobs.refused, 1);
    assert_false(loop_job_busy(&jobs.job[LIMIT_LOOP_JOBS]));
    assert_int_equal(jobs.worked[LIMIT_LOOP_JOBS], 0);

    atomic_store(&jobs.is_over, 0);
    jobs.want = LIMIT_LOOP_JOBS + 1;
    rig_call(rig, rig->loop[0], jobs_start_last, &jobs);
    assert_true(rig->until(rig, rig_flag_is_up, &jobs.is_over));
    rig_end(rig);
}

static void job_work_long(struct loop_job *job)
{
    atomic_store(&job_owner->began, 1);
    while (atomic_load(&job_owner->may_end) == 0)
        sched_yield();
}

static void job_done_long(struct loop_job *job)
{
    atomic_store(&job_owner->is_over, 1);
}

static void jobs_start_long(struct loop *loop, void *arg)
{
    struct jobs *jobs = arg;

    check(loop_job_start(loop, &jobs->job[0], job_work_long, job_done_long) == ICMS_OK);
    check(loop_job_start(loop, &jobs->job[1], job_work, job_done) == ICMS_OK);
}

static void job_let_end(struct loop *loop, void *arg)
{
    atomic_store(&job_owner->may_end, 1);
}

static void a_loop_works_on_while_a_job_runs(void **state)
{
    struct rig *rig = *state;
    struct jobs jobs = {.rig = rig};

    if (!rig->threads)
        return;
    job_owner = &jobs;
    rig_loops(rig, 1, 64);
    rig_start(rig);
    jobs.want = UINT_MAX;
    jobs.works = 1; /* the long one counts nothing */
    jobs.dones = 1;
    rig_call(rig, rig->loop[0], jobs_start_long, &jobs);
    assert_true(rig->until(rig, rig_flag_is_up, &jobs.began));
    rig_call(rig, rig->loop[0], job_let_end, NULL); /* the loop is not held up */
    assert_true(rig->until(rig, rig_flag_is_up, &jobs.is_over));
    rig_end(rig);
}

static void *jobs_let_end_soon(void *arg)
{
    struct jobs *jobs = arg;

    for (unsigned i = 0; i < 100; i++)
        sched_yield();
    jobs->rig->idle(jobs->rig);
    check(jobs->dones == 0);
    atomic_store(&jobs->may_end, 1);
    return NULL;
}

/* The memory of jobs is the caller's again when the loop was freed, and nobody is told. */
static void freeing_a_loop_waits_for_its_job_and_calls_nothing(void **state)
{
    struct rig *rig = *state;
    struct jobs jobs = {.rig = rig, .want = UINT_MAX};
    pthread_t thread;

    if (!rig->threads)
        atomic_store(&jobs.may_end, 1); /* one thread: work may not wait */
    job_owner = &jobs;
    rig_loops(rig, 1, 64);
    rig_start(rig);
    rig_call(rig, rig->loop[0], jobs_start_long, &jobs);
    if (rig->threads) {
        assert_true(rig->until(rig, rig_flag_is_up, &jobs.began));
        assert_int_equal(pthread_create(&thread, NULL, jobs_let_end_soon, &jobs), 0);
    }
    rig_end(rig);
    if (rig->threads) {
        assert_int_equal(atomic_load(&jobs.may_end), 1);
        assert_int_equal(pthread_join(thread, NULL), 0);
    }
    assert_int_equal(jobs.works, 0);
    assert_int_equal(jobs.dones, 0);
    assert_int_equal(atomic_load(&jobs.is_over), 0);
}

/* ---- files ---------------------------------------------------------------------------------- */

static void disk_read(struct loop *loop, void *arg)
{
    struct rig_disk *d = arg;

    loop_file_read(loop, &d->wait.op, d->file, d->offset, d->memory, d->bytes, rig_wait_done);
}

static void disk_flush(struct loop *loop, void *arg)
{
    struct rig_disk *d = arg;

    loop_file_flush(loop, &d->wait.op, d->file, rig_wait_done);
}

static void disk_do(struct rig *rig, struct rig_disk *d, void (*run)(struct loop *loop, void *arg))
{
    rig_call(rig, rig->loop[0], run, d);
    rig_wait_for(rig, &d->wait);
}

static void files_move_whole_transfers(void **state)
{
    struct rig *rig = *state;
    uint8_t *copy = malloc(RIG_FILE_BYTES);

    assert_non_null(copy);
    for (int registered = 0; registered < 2; registered++) {
        struct rig_disk d = {.file = rig_file(rig, true), .bytes = RIG_FILE_BYTES};
        struct loop_region *region = NULL;

        rig_loops(rig, 1, 64);
        assert_int_equal(
            loop_region_new(rig->env, "test", 2 * RIG_FILE_BYTES, registered, NULL, &region),
            ICMS_OK);
        assert_int_equal(loop_region_bytes(region), 2 * RIG_FILE_BYTES);
        if (registered)
            assert_int_equal(loop_region_register(rig->loop[0], region, NULL), ICMS_OK);
        d.memory = loop_region_base(region);
        assert_int_equal((uintptr_t)d.memory % LIMIT_DISK_ALIGN, 0);
        rig_start(rig);
        rig_fill(d.memory, RIG_FILE_BYTES, 7);
        memcpy(copy, d.memory, RIG_FILE_BYTES);
        disk_do(rig, &d, rig_disk_write);
        assert_int_equal(d.wait.err, ICMS_OK);
        assert_int_equal(d.wait.bytes, RIG_FILE_BYTES);
        disk_do(rig, &d, disk_flush);
        assert_int_equal(d.wait.err, ICMS_OK);
        d.memory += RIG_FILE_BYTES - LIMIT_DISK_ALIGN;
        disk_do(rig, &d, disk_read);
        assert_int_equal(d.wait.err, ICMS_OK);
        assert_int_equal(d.wait.bytes, RIG_FILE_BYTES);
        assert_memory_equal(d.memory, copy, RIG_FILE_BYTES);
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
    struct rig_disk d = {.file = rig_file(rig, false),
                         .memory = memory,
                         .bytes = sizeof(memory),
                         .offset = RIG_FILE_BYTES - 1000};

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

    rig_fill(a, sizeof(a), 3);
    assert_int_equal(loop_file_write_now(file, 12345, a, sizeof(a)), ICMS_OK);
    assert_int_equal(loop_file_flush_now(file), ICMS_OK);
    assert_int_equal(loop_file_read_now(file, 12345, b, sizeof(b)), ICMS_OK);
    assert_memory_equal(a, b, sizeof(a));
    assert_int_not_equal(loop_file_read_now(file, RIG_FILE_BYTES - 1, b, 2), ICMS_OK);
    loop_file_close(&file);
    assert_int_equal(loop_file_open(rig->env, &opts, NULL, &file), ICMS_OK);
    assert_int_equal(loop_file_bytes(file), RIG_FILE_BYTES);
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

    rig_fill(all, sizeof(all), 5);
    assert_int_equal(loop_file_write_now(file, 0, all, sizeof(all)), ICMS_OK);
    assert_int_equal(loop_reads_new(file, DEPTH, &why, &reads), ICMS_OK);
    assert_null(loop_reads_wait(reads));
    while (ended < READS) {
        struct loop_read *one;

        for (; started < READS && started - ended < DEPTH; started++) {
            read[started] = (struct loop_read){.offset = started == 17 ? RIG_FILE_BYTES - 10
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
        rig_fill(c->memory[i], 512, i);
        loop_file_write(rig->loop[0], &c->op[i], c->file, 0, (uint64_t)i * 512, c->memory[i], 512,
                        crowd_write_done);
    }
    rig_start(rig);
    assert_true(rig->until(rig, crowd_is_gone, c));
    rig_end(rig);
    for (unsigned i = 0; i < CROWD; i++) {
        rig_fill(expected, 512, i);
        assert_memory_equal(c->memory[i], expected, 512);
    }
    loop_file_close(&c->file);
    free(c);
}

/* ---- addresses ------------------------------------------------------------------------------ */

static void addresses_parse_and_print(void **state)
{
    static const char *const bad[] = {"",       "127.0.0.1",  "127.0.0.1:",  "127.0.0.1:65536",
                                      ":1",     "::1:5",      "[::1]",       "[::1]:x",
                                      "host:1", "1.2.3.4:-1", "[1.2.3.4]:1", "1.2.3.4:000001"};
    static const char *const good[] = {"127.0.0.1:4420", "[::1]:65535", "[fe80::1:2]:0"};
    static const char *const plain[][2] = {{"[0::1]:1", "[::1]:1"},
                                           {"[2001:0DB8:0:0::A]:04420", "[2001:db8::a]:4420"},
                                           {"[::ffff:192.0.2.1]:1", "192.0.2.1:1"},
                                           {"[::ffff:c000:0201]:1", "192.0.2.1:1"}};
    struct err_why why = {""};
    struct loop_addr addr, other = {{0}, 0};
    char text[64];

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(loop_addr_parse(good[i], &why, &addr), ICMS_OK);
        assert_string_equal(loop_addr_format(&addr, text, sizeof(text)), good[i]);
        assert_false(loop_addr_equal(&addr, &other));
        other = addr;
        assert_true(loop_addr_equal(&addr, &other));
        other.port++;
        assert_false(loop_addr_equal(&addr, &other));
    }
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        assert_int_equal(loop_addr_parse(plain[i][0], &why, &addr), ICMS_OK);
        assert_string_equal(loop_addr_format(&addr, text, sizeof(text)), plain[i][1]);
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
        ON(back_end, jobs_run_in_order_and_within_their_limit),                                    \
        ON(back_end, a_loop_works_on_while_a_job_runs),                                            \
        ON(back_end, freeing_a_loop_waits_for_its_job_and_calls_nothing),                          \
        ON(back_end, files_move_whole_transfers),                                                  \
        ON(back_end, a_read_past_the_end_fails_with_what_there_was),                               \
        ON(back_end, blocking_file_calls_work_at_start),                                           \
        ON(back_end, many_blocking_reads_end_with_their_bytes),                                    \
        ON(back_end, a_locked_file_names_its_holder),                                              \
        ON(back_end, a_missing_file_is_an_error_with_its_path),                                    \
        ON(back_end, more_operations_than_entries_wait_their_turn)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_parse_and_print),
        CONTRACT(uring),
        CONTRACT(sim),
    };

    return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
