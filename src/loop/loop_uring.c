/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring back end: one thread, one ring.
 *
 * uring_run is the whole reactor; it runs on the loop's thread. The ring is made disabled on the
 * set-up thread and enabled by the loop's thread, which alone submits to it (SINGLE_ISSUER); where
 * the kernel knows no such flags the ring is made without them. Others reach a loop only through
 * its inbox and its wake eventfd.
 *
 * Sleeping. The loop raises asleep, looks at its inbox and its stop flag once more, and sleeps in
 * the kernel until a completion or the next timer; with loop_opts.poll_us it first goes on looking
 * for a while. A sender puts its message first and looks at asleep then; who finds it raised takes
 * it down and writes the eventfd. So no wake is lost and a busy loop is never woken.
 *
 * Life: uring_loop_new -> uring_loop_start (thread: uring_thread) -> stop -> uring_drain on the
 * thread: everything is cancelled and every answer awaited, so after the join the kernel touches no
 * buffer -> uring_loop_join -> uring_loop_free.
 */
#include "loop/loop_uring.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"

/* Answers taken from the ring at a time. */
#define URING_BATCH 128

/* user_data that is no operation. */
#define URING_AUX  1 /* the answer to a cancel     */
#define URING_WAKE 2 /* the read of the eventfd    */

#define NS_PER_S 1000000000u

/* How long uring_drain waits before it cancels once more. */
#define URING_DRAIN_NS (NS_PER_S / 10)

/* ---- submit --------------------------------------------------------------------------------- */

/* An empty entry; submits when the ring is full. NULL: the kernel takes no more at the moment. */
static struct io_uring_sqe *uring_sqe(struct uring_loop *loop)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

    if (sqe == NULL && io_uring_submit(&loop->ring) > 0)
        sqe = io_uring_get_sqe(&loop->ring);
    return sqe;
}

static void uring_submit_cancels(struct uring_loop *loop)
{
    struct list *link;
    struct io_uring_sqe *sqe;

    while ((link = list_first(&loop->ending)) != NULL && (sqe = uring_sqe(loop)) != NULL) {
        io_uring_prep_cancel(sqe, container_of(link, struct loop_op, link), 0);
        sqe->user_data = URING_AUX;
        loop->kernel_aux++;
        list_remove(link);
        list_push(&loop->kernel, link);
    }
}

/* Faults loop.read and loop.write, a slow drive: the operation waits behind a timeout. False: both
 * do not fit into the ring now. */
static bool uring_submit_slow(struct uring_loop *loop, const struct loop_op *op)
{
    struct io_uring_sqe *sqe;
    uint32_t slow_us = 0;

    if (op->kind == LOOP_READ || op->kind == LOOP_WRITE)
        slow_us = fault_slow_us(op->kind == LOOP_READ ? "loop.read" : "loop.write");
    if (slow_us == 0)
        return true;
    if (io_uring_sq_space_left(&loop->ring) < 2)
        return false;
    loop->slow[op->kind == LOOP_WRITE] = (struct __kernel_timespec){
        .tv_sec = slow_us / 1000000, .tv_nsec = slow_us % 1000000 * 1000};
    sqe = uring_sqe(loop);
    io_uring_prep_timeout(sqe, &loop->slow[op->kind == LOOP_WRITE], 0,
                          IORING_TIMEOUT_ETIME_SUCCESS);
    io_uring_sqe_set_flags(sqe, IOSQE_IO_LINK);
    sqe->user_data = URING_AUX;
    loop->kernel_aux++;
    return true;
}

/* Fills the ring. Cancels go first: the struct of an operation that ended meanwhile may be parked
 * again, and the cancel was not meant for that life of it. */
static void uring_submit(struct uring_loop *loop)
{
    struct list *link;
    struct io_uring_sqe *sqe;

    uring_submit_cancels(loop);
    if (!loop->wake_armed && (sqe = uring_sqe(loop)) != NULL) {
        io_uring_prep_read(sqe, loop->wake_fd, &loop->wake_value, sizeof(loop->wake_value), 0);
        sqe->user_data = URING_WAKE;
        loop->wake_armed = true;
        loop->kernel_aux++;
    }
    while ((link = list_first(&loop->parked)) != NULL) {
        struct loop_op *op = container_of(link, struct loop_op, link);

        if (!uring_submit_slow(loop, op) || (sqe = uring_sqe(loop)) == NULL)
            break;
        uring_op_prepare(loop, op, sqe);
        io_uring_sqe_set_data(sqe, op);
        op->state = LOOP_OP_KERNEL;
        list_remove(link);
        list_push(&loop->kernel, link);
        loop->kernel_ops++;
    }
}

/* ---- wait ----------------------------------------------------------------------------------- */

static uint64_t uring_now(struct loop_env *env)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* An environment whose clock its owner moves. */
struct uring_replay {
    struct loop_env env;      /* first                                     */
    struct loop_ops ops;      /* as uring_ops, but for now                 */
    _Atomic(uint64_t) now_ns; /* what its clock says                       */
};

static uint64_t replay_now(struct loop_env *env)
{
    return atomic_load(&container_of(env, struct uring_replay, env)->now_ns);
}

void loop_replay_to(struct loop *loop, uint64_t now_ns)
{
    check(loop_is_mine(loop) && loop_ops(loop)->now == replay_now);
    if (now_ns <= replay_now(loop->env))
        return;
    atomic_store(&container_of(loop->env, struct uring_replay, env)->now_ns, now_ns);
    loop->now_ns = now_ns;
}

static void uring_entered(int result)
{
    check(result >= 0 || result == -ETIME || result == -EINTR || result == -EAGAIN ||
          result == -EBUSY);
}

/* Submits and sleeps until an answer or until wait_ns passed (UINT64_MAX: for ever). */
static void uring_sleep(struct uring_loop *loop, uint64_t wait_ns)
{
    struct __kernel_timespec wait = {.tv_sec = (int64_t)(wait_ns / NS_PER_S),
                                     .tv_nsec = (long long)(wait_ns % NS_PER_S)};
    struct io_uring_cqe *cqe;

    uring_entered(io_uring_submit_and_wait_timeout(&loop->ring, &cqe, 1,
                                                   wait_ns == UINT64_MAX ? NULL : &wait, NULL));
}

/* Whether to look for answers and messages instead of sleeping: always, or for a while after there
 * were some. By the machine's clock. */
static bool uring_polls(struct uring_loop *uring)
{
    uint64_t work = uring->loop.stats.ops + uring->loop.stats.messages, now_ns;

    if (uring->busy_poll || uring->poll_ns == 0)
        return uring->busy_poll;
    now_ns = uring_now(uring->loop.env);
    if (work != uring->work) {
        uring->work = work;
        uring->work_ns = now_ns;
    }
    return now_ns - uring->work_ns < uring->poll_ns;
}

/* Submits what is parked; sleeps when there is nothing to do. */
static void uring_wait(struct uring_loop *uring)
{
    struct loop *loop = &uring->loop;
    uint64_t wait_ns = UINT64_MAX;
    bool idle;

    uring_submit(uring);
    idle = list_empty(&uring->ready) && list_empty(&uring->parked) && !uring_polls(uring);
    if (loop->timers != NULL) {
        uint64_t now_ns = loop_env_now_ns(loop->env);

        wait_ns = loop->timers->at_ns > now_ns ? loop->timers->at_ns - now_ns : 0;
    }
    if (idle && wait_ns > 0) {
        atomic_store(&uring->asleep, true);
        idle = atomic_load(&loop->inbox) == NULL && !atomic_load(&loop->stop);
    }
    if (idle && wait_ns > 0) {
        counter_add(&loop->stats.wakes, 1);
        uring_sleep(uring, wait_ns);
    } else {
        uring_entered(io_uring_submit(&uring->ring));
    }
    atomic_store(&uring->asleep, false);
}

static void uring_wake(struct uring_loop *uring)
{
    uint64_t one = 1;

    if (atomic_exchange(&uring->asleep, false))
        check(write(uring->wake_fd, &one, sizeof(one)) == sizeof(one));
}

static void uring_send(struct loop *to, struct loop_msg *msg)
{
    loop_inbox_push(to, msg);
    uring_wake(uring_of(to));
}

static void uring_stopped(struct loop *loop)
{
    uring_wake(uring_of(loop));
}

/* ---- reap ----------------------------------------------------------------------------------- */

static void uring_answer(struct uring_loop *uring, uint64_t data, int result)
{
    struct loop_op *op = (struct loop_op *)(uintptr_t)data;

    if (data == URING_AUX || data == URING_WAKE) {
        uring->kernel_aux--;
        if (data == URING_WAKE)
            uring->wake_armed = false;
        return;
    }
    uring->kernel_ops--;
    if (loop_stopping(&uring->loop))
        uring_op_discard(uring, op, result);
    else
        uring_op_answer(uring, op, result);
}

static void uring_reap(struct uring_loop *uring)
{
    struct io_uring_cqe *cqes[URING_BATCH];
    uint64_t data[URING_BATCH];
    int results[URING_BATCH];
    unsigned count = io_uring_peek_batch_cqe(&uring->ring, cqes, URING_BATCH);

    for (unsigned i = 0; i < count; i++) {
        data[i] = cqes[i]->user_data;
        results[i] = cqes[i]->res;
    }
    io_uring_cq_advance(&uring->ring, count);
    for (unsigned i = 0; i < count; i++)
        uring_answer(uring, data[i], results[i]);
}

/* Ends the operations that are ready now; those that get ready meanwhile wait a round. */
static void uring_ready_run(struct uring_loop *uring)
{
    struct list mark;

    list_push(&uring->ready, &mark);
    while (list_first(&uring->ready) != &mark && !loop_stopping(&uring->loop)) {
        struct loop_op *op = container_of(list_first(&uring->ready), struct loop_op, link);

        loop_op_finish(op, op->err, op->bytes);
    }
    list_remove(&mark);
}

/* ---- the reactor ---------------------------------------------------------------------------- */

static void uring_run(struct uring_loop *uring)
{
    struct loop *loop = &uring->loop;

    while (!loop_stopping(loop)) {
        uring_wait(uring);
        loop->now_ns = loop_env_now_ns(loop->env);
        uring_reap(uring);
        uring_ready_run(uring);
        loop_timers_run(loop);
        loop_inbox_run(loop);
        counter_add(&loop->stats.iterations, 1);
    }
}

static void uring_list_discard(struct uring_loop *uring, struct list *list)
{
    struct list *link;

    while ((link = list_first(list)) != NULL)
        uring_op_discard(uring, container_of(link, struct loop_op, link), -ECANCELED);
}

/* Cancels everything and waits for every answer. Calls nothing: the loop was stopped. */
static void uring_drain(struct uring_loop *uring)
{
    uring_list_discard(uring, &uring->ready);
    uring_list_discard(uring, &uring->parked);
    while (uring->kernel_ops > 0 || uring->kernel_aux > 0) {
        struct io_uring_sqe *sqe = uring_sqe(uring);

        if (sqe != NULL) {
            io_uring_prep_cancel(sqe, NULL, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
            sqe->user_data = URING_AUX;
            uring->kernel_aux++;
        }
        uring_sleep(uring, URING_DRAIN_NS);
        for (uint32_t owed = UINT32_MAX; owed != uring->kernel_ops + uring->kernel_aux;) {
            owed = uring->kernel_ops + uring->kernel_aux;
            uring_reap(uring);
        }
    }
}

static icms_err uring_thread_setup(struct uring_loop *uring)
{
    cpu_set_t cpus;

    (void)pthread_setname_np(pthread_self(), uring->name);
    if (uring->cpu >= 0) {
        CPU_ZERO(&cpus);
        if (uring->cpu >= CPU_SETSIZE)
            return ICMS_INVALID;
        CPU_SET((size_t)uring->cpu, &cpus);
        if (pthread_setaffinity_np(pthread_self(), sizeof(cpus), &cpus) != 0)
            return ICMS_INVALID;
    }
    if (uring->disabled &&
        io_uring_register((unsigned)uring->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) < 0)
        return ICMS_UNSUPPORTED;
    return ICMS_OK;
}

/* For a failed check on the loop's thread. */
static void uring_dump(void *arg)
{
    const struct uring_loop *uring = arg;

    (void)fprintf(stderr,
                  "loop %s: iterations %llu, operations done %llu, in the kernel %u+%u, parked %s, "
                  "ready %s\n",
                  uring->name, (unsigned long long)uring->loop.stats.iterations,
                  (unsigned long long)uring->loop.stats.ops, uring->kernel_ops, uring->kernel_aux,
                  list_empty(&uring->parked) ? "none" : "some",
                  list_empty(&uring->ready) ? "none" : "some");
}

static void *uring_thread(void *arg)
{
    struct uring_loop *uring = arg;

    uring->start_err = uring_thread_setup(uring);
    loop_current = &uring->loop;
    check_dump(uring_dump, uring);
    check(sem_post(&uring->started) == 0);
    if (uring->start_err == ICMS_OK) {
        uring_run(uring);
        uring_drain(uring);
    }
    loop_current = NULL;
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

static icms_err uring_refused(int error, struct err_why *why)
{
    struct utsname system = {.release = "?"};

    (void)uname(&system);
    switch (error) {
    case EPERM:
    case EACCES:
        return err_set(why, ICMS_UNSUPPORTED,
                       "io_uring is forbidden here: allow it with 'sysctl -w "
                       "kernel.io_uring_disabled=0' on the host, and in a container also the "
                       "io_uring_* system calls in its seccomp profile (docker: --security-opt "
                       "seccomp=unconfined, or a profile with them)");
    case ENOSYS:
    case EINVAL:
    case EOPNOTSUPP:
        return err_set(why, ICMS_UNSUPPORTED,
                       "this kernel (%.60s) has no io_uring or one that is too old: run Linux 6.1 "
                       "or later; if it is, a sandbox hides io_uring: allow the io_uring_* system "
                       "calls",
                       system.release);
    case ENOMEM:
        return err_set(why, ICMS_LIMIT,
                       "the kernel has no memory for an io_uring: raise the locked-memory limit "
                       "('ulimit -l', LimitMEMLOCK= in the service) or the memory of the "
                       "container");
    case EMFILE:
    case ENFILE:
        return err_set(why, ICMS_LIMIT,
                       "too many open files for another io_uring: raise 'ulimit -n' (LimitNOFILE= "
                       "in the service)");
    default:
        return err_set(why, err_from_errno(error), "cannot make an io_uring: %s", strerror(error));
    }
}

/* Makes the ring with the best flags that the kernel knows; errno of the failure or 0. */
static int uring_ring_new(struct uring_loop *uring, uint32_t entries)
{
    static const unsigned flags[] = {
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER |
            IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    };
    int result = -EINVAL;

    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && result == -EINVAL; i++) {
        struct io_uring_params params = {
            .flags = flags[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
            .cq_entries = entries * 4,
        };

        result = io_uring_queue_init_params(entries, &uring->ring, &params);
        if (result >= 0 && (result = uring_ring_own(&uring->ring)) != 0)
            io_uring_queue_exit(&uring->ring);
        uring->disabled = (flags[i] & IORING_SETUP_R_DISABLED) != 0;
    }
    return result < 0 ? -result : 0;
}

/* Whether the kernel has every operation that is used. */
static bool uring_ring_complete(struct uring_loop *uring)
{
    static const int needed[] = {IORING_OP_READ,     IORING_OP_WRITE,       IORING_OP_READ_FIXED,
                                 IORING_OP_FSYNC,    IORING_OP_WRITE_FIXED, IORING_OP_ACCEPT,
                                 IORING_OP_CONNECT,  IORING_OP_RECV,        IORING_OP_SENDMSG,
                                 IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL};
    struct io_uring_probe *probe = io_uring_get_probe_ring(&uring->ring);
    bool complete = probe != NULL && (uring->ring.features & IORING_FEAT_EXT_ARG) != 0;

    for (size_t i = 0; complete && i < sizeof(needed) / sizeof(needed[0]); i++)
        complete = io_uring_opcode_supported(probe, needed[i]);
    io_uring_free_probe(probe);
    return complete;
}

static icms_err uring_loop_new(struct loop_env *env, const struct loop_opts *opts,
                               struct err_why *why, struct loop **out_loop)
{
    struct uring_loop *uring = calloc(1, sizeof(*uring));
    int error;

    if (uring == NULL)
        return err_set(why, ICMS_NO_MEMORY, "a loop: out of memory");
    error = uring_ring_new(uring, opts->entries_max);
    if (error != 0) {
        free(uring);
        return uring_refused(error, why);
    }
    uring->wake_fd = loop_fd_own(eventfd(0, EFD_CLOEXEC));
    error = uring->wake_fd < 0 ? errno : uring_ring_complete(uring) ? 0 : EINVAL;
    if (error != 0) {
        if (uring->wake_fd >= 0)
            loop_fd_close(uring->wake_fd);
        uring_ring_exit(&uring->ring);
        free(uring);
        return uring_refused(error, why);
    }
    list_init(&uring->parked);
    list_init(&uring->kernel);
    list_init(&uring->ending);
    list_init(&uring->ready);
    atomic_init(&uring->asleep, false);
    uring->busy_poll = opts->busy_poll;
    uring->poll_ns = (uint64_t)opts->poll_us * 1000;
    uring->cpu = opts->cpu;
    (void)snprintf(uring->name, sizeof(uring->name), "%s", opts->name);
    check(sem_init(&uring->started, 0, 0) == 0);
    uring_worker_init(&uring->worker);
    loop_init(&uring->loop, env);
    *out_loop = &uring->loop;
    return ICMS_OK;
}

int uring_thread_new(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *arg),
                     void *arg)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        (void)sigdelset(&all, own[i]);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, attributes, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static icms_err uring_loop_start(struct loop *loop, struct err_why *why)
{
    struct uring_loop *uring = uring_of(loop);
    int error;

    atomic_store(&loop->phase, LOOP_RUNNING);
    error = uring_thread_new(&uring->thread, NULL, uring_thread, uring);
    if (error != 0) {
        atomic_store(&loop->phase, LOOP_NEW);
        return err_set(why, err_from_errno(error), "cannot start a thread: %s", strerror(error));
    }
    while (sem_wait(&uring->started) != 0)
        check(errno == EINTR);
    if (uring->start_err == ICMS_OK)
        return ICMS_OK;
    check(pthread_join(uring->thread, NULL) == 0);
    atomic_store(&loop->phase, LOOP_NEW);
    if (uring->start_err == ICMS_INVALID)
        return err_set(why, ICMS_INVALID,
                       "cannot run on CPU %d: this process may not use it; choose one of those "
                       "'taskset -p' lists, or none",
                       uring->cpu);
    return err_set(why, uring->start_err, "the kernel did not enable the io_uring of a loop");
}

static void uring_loop_join(struct loop *loop)
{
    check(pthread_join(uring_of(loop)->thread, NULL) == 0);
}

static void uring_loop_free(struct loop *loop)
{
    struct uring_loop *uring = uring_of(loop);

    uring_worker_free(&uring->worker);
    uring_list_discard(uring, &uring->ready);
    uring_list_discard(uring, &uring->parked);
    check(uring->kernel_ops == 0);
    check(list_empty(&uring->kernel) && list_empty(&uring->ending));
    uring_ring_exit(&uring->ring);
    loop_fd_close(uring->wake_fd);
    (void)sem_destroy(&uring->started);
    free(uring->buffers);
    free(uring);
}

static void uring_entropy(struct loop *loop, void *out, size_t bytes)
{
    uint8_t *to = out;

    while (bytes > 0) {
        ssize_t n = getrandom(to, bytes, 0);

        check(n > 0 || errno == EINTR);
        if (n > 0) {
            to += n;
            bytes -= (size_t)n;
        }
    }
}

/* The kernel is told of the first timer each time the loop sleeps. */
static void uring_timer_first(struct loop *loop)
{
}

static const struct loop_ops uring_ops = {
    .now = uring_now,
    .loop_new = uring_loop_new,
    .loop_start = uring_loop_start,
    .loop_join = uring_loop_join,
    .loop_free = uring_loop_free,
    .entropy = uring_entropy,
    .stopped = uring_stopped,
    .send = uring_send,
    .timer_first = uring_timer_first,
    .job_start = uring_job_start,
    .op_start = uring_op_start,
    .op_cancel = uring_op_cancel,
    .region_new = uring_region_new,
    .region_register = uring_region_register,
    .region_touch = uring_region_touch,
    .region_seal = uring_region_seal,
    .region_free = uring_region_free,
    .file_open = uring_file_open,
    .file_read_now = uring_file_read_now,
    .file_write_now = uring_file_write_now,
    .file_flush_now = uring_file_flush_now,
    .reads_new = uring_reads_new,
    .reads_start = uring_reads_start,
    .reads_wait = uring_reads_wait,
    .reads_free = uring_reads_free,
    .file_fd = uring_file_fd,
    .file_close = uring_file_close,
    .listen = uring_listen,
    .sock_addr = uring_sock_addr,
    .sock_peer = uring_sock_peer,
    .sock_mark = uring_sock_mark,
    .sock_shutdown = uring_sock_shutdown,
    .sock_send_now = uring_sock_send_now,
    .sock_tls = uring_sock_tls,
    .sock_tls_recv = uring_sock_tls_recv,
    .sock_tls_records = uring_sock_tls_records,
    .sock_tls_send = uring_sock_tls_send,
    .sock_close = uring_sock_close,
    .event_new = uring_event_new,
    .event_signal = uring_event_signal,
    .event_free = uring_event_free,
};

struct loop_env *loop_env_uring(void)
{
    static struct loop_env env = {&uring_ops};

    return &env;
}

struct loop_env *loop_env_replay_new(void)
{
    struct uring_replay *replay = calloc(1, sizeof(*replay));

    if (replay == NULL)
        return NULL;
    replay->ops = uring_ops;
    replay->ops.now = replay_now;
    replay->env.ops = &replay->ops;
    return &replay->env;
}

void loop_env_replay_free(struct loop_env **env)
{
    if (*env == NULL)
        return;
    free(container_of(*env, struct uring_replay, env));
    *env = NULL;
}
