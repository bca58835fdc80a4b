/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public functions of the loop: they check, fill in what both back ends share, and call the
 * back end through its table. Also the inbox of messages and the end of operations.
 *
 * Called by every module, on the loop's thread unless loop.h says otherwise.
 *
 * Inbox: a stack that senders push with one compare-and-swap and the loop takes whole and reverses,
 * so messages of one sender stay in order.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/limits.h"
#include "loop/loop_int.h"

_Thread_local struct loop *loop_current;

/* ---- the loop ------------------------------------------------------------------------------- */

void loop_opts_init(struct loop_opts *opts)
{
    *opts = (struct loop_opts){.name = "icms-loop", .entries_max = 1024, .cpu = -1};
}

void loop_init(struct loop *loop, struct loop_env *env)
{
    loop->env = env;
    loop->timers = NULL;
    loop->timer_order = 0;
    loop->jobs = 0;
    loop->now_ns = env->ops->now(env);
    loop->stats = (struct loop_stats){0};
    atomic_init(&loop->inbox, NULL);
    atomic_init(&loop->phase, LOOP_NEW);
    atomic_init(&loop->stop, false);
    env->ops->entropy(loop, &loop->random, sizeof(loop->random));
}

icms_err loop_new(struct loop_env *env, const struct loop_opts *opts, struct err_why *why,
                  struct loop **out_loop)
{
    check(bytes_power_of_two(opts->entries_max));
    return env->ops->loop_new(env, opts, why, out_loop);
}

icms_err loop_start(struct loop *loop, struct err_why *why)
{
    check(atomic_load(&loop->phase) == LOOP_NEW);
    return loop_ops(loop)->loop_start(loop, why);
}

void loop_stop(struct loop *loop)
{
    if (!atomic_exchange(&loop->stop, true))
        loop_ops(loop)->stopped(loop);
}

void loop_join(struct loop *loop)
{
    check(loop_current != loop);
    if (atomic_load(&loop->phase) != LOOP_RUNNING)
        return;
    loop_ops(loop)->loop_join(loop);
    atomic_store(&loop->phase, LOOP_JOINED);
}

void loop_free(struct loop **loop)
{
    struct loop *gone = *loop;

    if (gone == NULL)
        return;
    check(atomic_load(&gone->phase) != LOOP_RUNNING);
    *loop = NULL;
    loop_ops(gone)->loop_free(gone);
}

struct loop_env *loop_env(const struct loop *loop)
{
    return loop->env;
}

bool loop_is_mine(const struct loop *loop)
{
    return loop_current == loop ||
           atomic_load_explicit(&loop->phase, memory_order_acquire) != LOOP_RUNNING;
}

void loop_stats(const struct loop *loop, struct loop_stats *out_stats)
{
    out_stats->iterations = counter_get(&loop->stats.iterations);
    out_stats->ops = counter_get(&loop->stats.ops);
    out_stats->messages = counter_get(&loop->stats.messages);
    out_stats->wakes = counter_get(&loop->stats.wakes);
}

/* ---- time and entropy ----------------------------------------------------------------------- */

uint64_t loop_now_ns(const struct loop *loop)
{
    if (loop_current == loop)
        return loop->now_ns;
    return loop_env_now_ns(loop->env);
}

uint64_t loop_env_now_ns(struct loop_env *env)
{
    return env->ops->now(env);
}

void loop_entropy(struct loop *loop, void *out, size_t bytes)
{
    loop_ops(loop)->entropy(loop, out, bytes);
}

uint64_t loop_random(struct loop *loop)
{
    check(loop_is_mine(loop));
    loop->random += 0x9e3779b97f4a7c15u; /* SplitMix64 */
    return hash64_mix(loop->random);
}

/* ---- messages ------------------------------------------------------------------------------- */

void loop_inbox_push(struct loop *loop, struct loop_msg *msg)
{
    struct loop_msg *first = atomic_load_explicit(&loop->inbox, memory_order_relaxed);

    do {
        msg->next = first;
    } while (!atomic_compare_exchange_weak(&loop->inbox, &first, msg));
}

void loop_inbox_run(struct loop *loop)
{
    struct loop_msg *last = NULL;
    struct loop_msg *msg;

    if (atomic_load_explicit(&loop->inbox, memory_order_relaxed) == NULL)
        return;
    msg = atomic_exchange(&loop->inbox, NULL);
    while (msg != NULL) {
        struct loop_msg *next = msg->next;

        msg->next = last;
        last = msg;
        msg = next;
    }
    while (last != NULL && !loop_stopping(loop)) {
        msg = last;
        last = msg->next;
        counter_add(&loop->stats.messages, 1);
        msg->run(msg);
    }
}

void loop_send(struct loop *to, struct loop_msg *msg, void (*run)(struct loop_msg *msg))
{
    msg->run = run;
    loop_ops(to)->send(to, msg);
}

/* ---- work off the loop ---------------------------------------------------------------------- */

icms_err loop_job_start(struct loop *loop, struct loop_job *job, void (*work)(struct loop_job *job),
                        void (*done)(struct loop_job *job))
{
    icms_err err;

    check(loop_is_mine(loop));
    check(!job->busy && work != NULL && done != NULL);
    if (loop->jobs == LIMIT_LOOP_JOBS)
        return ICMS_LIMIT;
    job->work = work;
    job->done = done;
    job->loop = loop;
    job->busy = true;
    err = loop_ops(loop)->job_start(loop, job);
    if (err == ICMS_OK)
        loop->jobs++;
    else
        job->busy = false;
    return err;
}

void loop_job_finish(struct loop_msg *msg)
{
    struct loop_job *job = container_of(msg, struct loop_job, msg);

    check(job->busy && job->loop->jobs > 0);
    job->loop->jobs--;
    job->busy = false;
    job->done(job);
}

/* ---- operations ----------------------------------------------------------------------------- */

static void op_start(struct loop *loop, struct loop_op *op, enum loop_kind kind,
                     struct loop_target *target, void (*done)(struct loop_op *op))
{
    check(loop_is_mine(loop));
    check(!op->busy);
    check(done != NULL);
    op->done = done;
    op->loop = loop;
    op->err = ICMS_OK;
    op->bytes = 0;
    op->sock = NULL;
    op->busy = true;
    op->cancel = false;
    op->kind = (uint8_t)kind;
    op->retries = 0;
    op->target = target;
    list_init(&op->link);
    if (target != NULL) {
        /* An event may be of another process of the machine: in the simulation, of another node. */
        check(target->env == loop->env ||
              (kind == LOOP_EVENT && target->env->ops == loop->env->ops));
        (void)__atomic_add_fetch(&target->busy, 1, __ATOMIC_RELAXED);
    }
    loop_ops(loop)->op_start(loop, op);
}

void loop_op_cancel(struct loop_op *op)
{
    if (!op->busy || op->cancel)
        return;
    check(loop_is_mine(op->loop));
    op->cancel = true;
    loop_ops(op->loop)->op_cancel(op->loop, op);
}

void loop_op_release(struct loop_op *op)
{
    struct loop_target *target = op->target;

    list_remove(&op->link);
    op->state = LOOP_OP_IDLE;
    op->target = NULL;
    if (target != NULL)
        check(__atomic_fetch_sub(&target->busy, 1, __ATOMIC_RELAXED) > 0);
}

void loop_op_finish(struct loop_op *op, icms_err err, uint32_t bytes)
{
    check(op->busy);
    loop_op_release(op);
    counter_add(&op->loop->stats.ops, 1);
    op->err = err;
    op->bytes = bytes;
    op->busy = false;
    op->done(op);
}

static void target_unused(const struct loop_target *target)
{
    check(__atomic_load_n(&target->busy, __ATOMIC_RELAXED) == 0);
}

/* ---- memory --------------------------------------------------------------------------------- */

icms_err loop_region_new(struct loop_env *env, const char *name, uint64_t bytes, bool prefault,
                         struct err_why *why, struct loop_region **out_region)
{
    check(bytes > 0);
    return env->ops->region_new(env, name, bytes, prefault, why, out_region);
}

void *loop_region_base(struct loop_region *region)
{
    return region->base;
}

uint64_t loop_region_bytes(const struct loop_region *region)
{
    return region->bytes;
}

int loop_region_fd(const struct loop_region *region)
{
    return region->fd;
}

icms_err loop_region_touch(struct loop_region *region)
{
    return region->env->ops->region_touch(region);
}

icms_err loop_region_seal(struct loop_region *region, struct err_why *why)
{
    return region->env->ops->region_seal(region, why);
}

icms_err loop_region_register(struct loop *loop, struct loop_region *region, struct err_why *why)
{
    check(atomic_load(&loop->phase) == LOOP_NEW);
    check(loop->env == region->env);
    return loop_ops(loop)->region_register(loop, region, why);
}

void loop_region_free(struct loop_region **region)
{
    struct loop_region *gone = *region;

    if (gone == NULL)
        return;
    *region = NULL;
    gone->env->ops->region_free(gone);
}

/* ---- files ---------------------------------------------------------------------------------- */

icms_err loop_file_open(struct loop_env *env, const struct loop_file_opts *opts,
                        struct err_why *why, struct loop_file **out_file)
{
    check(opts->path != NULL);
    return env->ops->file_open(env, opts, why, out_file);
}

bool loop_file_busy(const struct loop_file *file)
{
    return __atomic_load_n(&file->target.busy, __ATOMIC_RELAXED) != 0;
}

uint64_t loop_file_bytes(const struct loop_file *file)
{
    return file->bytes;
}

int loop_file_fd(struct loop_file *file)
{
    return file->target.env->ops->file_fd == NULL ? -1 : file->target.env->ops->file_fd(file);
}

uint32_t loop_file_streams(const struct loop_file *file)
{
    return file->streams;
}

static void file_aligned(const struct loop_file *file, uint64_t offset, const void *memory,
                         uint64_t bytes)
{
    if (file->direct)
        check(((offset | bytes | (uintptr_t)memory) & (LIMIT_DISK_ALIGN - 1)) == 0);
}

icms_err loop_file_read_now(struct loop_file *file, uint64_t offset, void *memory, size_t bytes)
{
    file_aligned(file, offset, memory, bytes);
    return file->target.env->ops->file_read_now(file, offset, memory, bytes);
}

icms_err loop_file_write_now(struct loop_file *file, uint64_t offset, const void *memory,
                             size_t bytes)
{
    file_aligned(file, offset, memory, bytes);
    return file->target.env->ops->file_write_now(file, offset, memory, bytes);
}

icms_err loop_file_flush_now(struct loop_file *file)
{
    return file->target.env->ops->file_flush_now(file);
}

#define LOOP_READS_MAX 1024

icms_err loop_reads_new(struct loop_file *file, uint32_t depth, struct err_why *why,
                        struct loop_reads **out_reads)
{
    icms_err err;

    check(depth >= 1 && depth <= LOOP_READS_MAX);
    err = file->target.env->ops->reads_new(file, depth, why, out_reads);
    if (err == ICMS_OK)
        __atomic_add_fetch(&file->target.busy, 1, __ATOMIC_RELAXED);
    return err;
}

void loop_reads_start(struct loop_reads *reads, struct loop_read *read)
{
    check(reads->busy < reads->depth && read->bytes > 0);
    file_aligned(reads->file, read->offset, read->memory, read->bytes);
    read->err = ICMS_OK;
    read->moved = 0;
    reads->busy++;
    reads->file->target.env->ops->reads_start(reads, read);
}

struct loop_read *loop_reads_wait(struct loop_reads *reads)
{
    struct loop_read *read;

    if (reads->busy == 0)
        return NULL;
    read = reads->file->target.env->ops->reads_wait(reads);
    reads->busy--;
    return read;
}

void loop_reads_free(struct loop_reads **reads)
{
    struct loop_reads *own = *reads;

    if (own == NULL)
        return;
    while (loop_reads_wait(own) != NULL)
        ;
    __atomic_sub_fetch(&own->file->target.busy, 1, __ATOMIC_RELAXED);
    own->file->target.env->ops->reads_free(own);
    *reads = NULL;
}

void loop_file_read(struct loop *loop, struct loop_op *op, struct loop_file *file, uint64_t offset,
                    void *memory, uint32_t bytes, void (*done)(struct loop_op *op))
{
    file_aligned(file, offset, memory, bytes);
    check(bytes > 0);
    op->memory = memory;
    op->offset = offset;
    op->length = bytes;
    op->whole = true;
    op_start(loop, op, LOOP_READ, &file->target, done);
}

void loop_file_write(struct loop *loop, struct loop_op *op, struct loop_file *file, uint32_t stream,
                     uint64_t offset, const void *memory, uint32_t bytes,
                     void (*done)(struct loop_op *op))
{
    file_aligned(file, offset, memory, bytes);
    check(bytes > 0 && stream <= file->streams);
    op->stream = (uint8_t)stream;
    op->memory = (void *)(uintptr_t)memory;
    op->offset = offset;
    op->length = bytes;
    op->whole = true;
    op_start(loop, op, LOOP_WRITE, &file->target, done);
}

void loop_file_flush(struct loop *loop, struct loop_op *op, struct loop_file *file,
                     void (*done)(struct loop_op *op))
{
    op->memory = NULL;
    op->length = 0;
    op->whole = false;
    op_start(loop, op, LOOP_FLUSH, &file->target, done);
}

void loop_file_discard(struct loop *loop, struct loop_op *op, struct loop_file *file,
                       uint64_t offset, uint32_t bytes, void (*done)(struct loop_op *op))
{
    check(offset % LIMIT_DISK_ALIGN == 0 && bytes % LIMIT_DISK_ALIGN == 0 && bytes > 0);
    op->memory = NULL;
    op->offset = offset;
    op->length = bytes;
    op->whole = false;
    op_start(loop, op, LOOP_DISCARD, &file->target, done);
}

void loop_file_close(struct loop_file **file)
{
    struct loop_file *gone = *file;

    if (gone == NULL)
        return;
    target_unused(&gone->target);
    *file = NULL;
    gone->target.env->ops->file_close(gone);
}

/* ---- sockets -------------------------------------------------------------------------------- */

icms_err loop_listen(struct loop_env *env, const struct loop_addr *addr, struct err_why *why,
                     struct loop_sock **out_sock)
{
    return env->ops->listen(env, addr, why, out_sock);
}

void loop_sock_addr(const struct loop_sock *sock, struct loop_addr *out_addr)
{
    sock->target.env->ops->sock_addr(sock, out_addr);
}

void loop_sock_peer(const struct loop_sock *sock, struct loop_addr *out_addr)
{
    sock->target.env->ops->sock_peer(sock, out_addr);
}

void loop_accept(struct loop *loop, struct loop_op *op, struct loop_sock *listener,
                 void (*done)(struct loop_op *op))
{
    op->whole = false;
    op_start(loop, op, LOOP_ACCEPT, &listener->target, done);
}

void loop_connect(struct loop *loop, struct loop_op *op, const struct loop_addr *addr,
                  void (*done)(struct loop_op *op))
{
    op->memory = (void *)(uintptr_t)addr;
    op->whole = false;
    op_start(loop, op, LOOP_CONNECT, NULL, done);
}

void loop_recv(struct loop *loop, struct loop_op *op, struct loop_sock *sock, void *memory,
               uint32_t bytes, bool whole, void (*done)(struct loop_op *op))
{
    check(bytes > 0);
    op->memory = memory;
    op->length = bytes;
    op->whole = whole;
    op_start(loop, op, LOOP_RECV, &sock->target, done);
}

void loop_sendv(struct loop *loop, struct loop_op *op, struct loop_sock *sock,
                const struct iovec *vectors, uint32_t count, void (*done)(struct loop_op *op))
{
    check(count > 0 && count <= LOOP_VECTORS_MAX);
    op->memory = (void *)(uintptr_t)vectors;
    op->length = count;
    op->whole = false;
    op_start(loop, op, LOOP_SENDV, &sock->target, done);
}

void loop_sock_send_now(struct loop_sock *sock, const void *bytes, size_t count)
{
    sock->target.env->ops->sock_send_now(sock, bytes, count);
}

icms_err loop_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys)
{
    return sock->target.env->ops->sock_tls(sock, keys);
}

icms_err loop_sock_tls_recv(struct loop_sock *sock, uint8_t *out_type, void *memory, size_t bytes,
                            size_t *out_bytes)
{
    return sock->target.env->ops->sock_tls_recv(sock, out_type, memory, bytes, out_bytes);
}

icms_err loop_sock_tls_records(struct loop_sock *sock, bool is_send, uint64_t *out_records)
{
    return sock->target.env->ops->sock_tls_records(sock, is_send, out_records);
}

bool loop_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes, size_t count)
{
    return sock->target.env->ops->sock_tls_send(sock, type, bytes, count);
}

void loop_sock_mark(struct loop_sock *sock, struct net_mark mark)
{
    sock->target.env->ops->sock_mark(sock, mark);
}

void loop_sock_shutdown(struct loop_sock *sock)
{
    sock->target.env->ops->sock_shutdown(sock);
}

void loop_sock_close(struct loop_sock **sock)
{
    struct loop_sock *gone = *sock;

    if (gone == NULL)
        return;
    target_unused(&gone->target);
    *sock = NULL;
    gone->target.env->ops->sock_close(gone);
}

/* ---- events --------------------------------------------------------------------------------- */

icms_err loop_event_new(struct loop_env *env, enum loop_event_role role,
                        struct loop_event **out_event)
{
    return env->ops->event_new(env, role, out_event);
}

int loop_event_fd(const struct loop_event *event)
{
    return event->fd;
}

void loop_event_signal(struct loop_event *event)
{
    event->target.env->ops->event_signal(event);
}

void loop_event_wait(struct loop *loop, struct loop_op *op, struct loop_event *event,
                     void (*done)(struct loop_op *op))
{
    op->whole = false;
    op_start(loop, op, LOOP_EVENT, &event->target, done);
}

void loop_event_free(struct loop_event **event)
{
    struct loop_event *gone = *event;

    if (gone == NULL)
        return;
    target_unused(&gone->target);
    *event = NULL;
    gone->target.env->ops->event_free(gone);
}
