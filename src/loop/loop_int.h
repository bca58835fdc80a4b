/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop/loop_int.h: what the two back ends share. Private to src/loop.
 *
 * Each object begins with its common part, which the back end embeds first in a struct of its own.
 * loop_core.c checks and fills in what is common, then calls the back end through struct loop_ops.
 */
#ifndef LOOP_LOOP_INT_H
#define LOOP_LOOP_INT_H

#include <stdatomic.h>

#include "loop/loop.h"
#include "base/counter.h"

enum loop_kind {
    LOOP_READ,
    LOOP_WRITE,
    LOOP_FLUSH,
    LOOP_DISCARD,
    LOOP_ACCEPT,
    LOOP_CONNECT,
    LOOP_RECV,
    LOOP_SENDV,
    LOOP_EVENT,
    LOOP_KIND_COUNT,
};

enum loop_op_state {
    LOOP_OP_IDLE,   /* not started, or done ran; its owner starts it again          */
    LOOP_OP_PARKED, /* waits for room in the submission ring; the loop picks it up  */
    LOOP_OP_KERNEL, /* the kernel (or its model) works on it; woken by its answer   */
    LOOP_OP_ENDING, /* the same, and it was told to end early                       */
    LOOP_OP_READY,  /* its end is decided; done runs in this or the next iteration  */
};

enum loop_phase {
    LOOP_NEW,     /* set up by its maker; loop_start goes on     */
    LOOP_RUNNING, /* its thread runs it; loop_join goes on       */
    LOOP_JOINED,  /* calls nothing any more; loop_free goes on   */
};

#define LOOP_VECTORS_MAX 16

/* What the back ends do. Each function has the contract of the public one of its name. */
struct loop_ops {
    uint64_t (*now)(struct loop_env *env);
    icms_err (*loop_new)(struct loop_env *env, const struct loop_opts *opts, struct err_why *why,
                         struct loop **out_loop);
    icms_err (*loop_start)(struct loop *loop, struct err_why *why);
    void (*loop_join)(struct loop *loop);
    void (*loop_free)(struct loop *loop);
    void (*entropy)(struct loop *loop, void *out, size_t bytes);

    void (*stopped)(struct loop *loop);                  /* loop->stop was set; any thread     */
    void (*send)(struct loop *to, struct loop_msg *msg); /* msg->run is set; any thread        */
    void (*timer_first)(struct loop *loop);              /* another timer is the first one now */
    icms_err (*job_start)(struct loop *loop, struct loop_job *job); /* then loop_job_finish()  */
    void (*op_start)(struct loop *loop, struct loop_op *op);  /* the common fields are set       */
    void (*op_cancel)(struct loop *loop, struct loop_op *op); /* busy, canceled the first time  */

    icms_err (*region_new)(struct loop_env *env, const char *name, uint64_t bytes, bool prefault,
                           struct err_why *why, struct loop_region **out_region);
    icms_err (*region_register)(struct loop *loop, struct loop_region *region, struct err_why *why);
    icms_err (*region_touch)(struct loop_region *region);
    icms_err (*region_seal)(struct loop_region *region, struct err_why *why);
    void (*region_free)(struct loop_region *region);

    icms_err (*file_open)(struct loop_env *env, const struct loop_file_opts *opts,
                          struct err_why *why, struct loop_file **out_file);
    icms_err (*file_read_now)(struct loop_file *file, uint64_t offset, void *memory, size_t bytes);
    icms_err (*file_write_now)(struct loop_file *file, uint64_t offset, const void *memory,
                               size_t bytes);
    icms_err (*file_flush_now)(struct loop_file *file);
    icms_err (*reads_new)(struct loop_file *file, uint32_t depth, struct err_why *why,
                          struct loop_reads **out_reads);
    void (*reads_start)(struct loop_reads *reads, struct loop_read *read);
    struct loop_read *(*reads_wait)(struct loop_reads *reads); /* some are in flight */
    void (*reads_free)(struct loop_reads *reads);              /* none is in flight  */
    int (*file_fd)(struct loop_file *file);                    /* NULL: files have none */
    void (*file_close)(struct loop_file *file);

    icms_err (*listen)(struct loop_env *env, const struct loop_addr *addr, struct err_why *why,
                       struct loop_sock **out_sock);
    void (*sock_addr)(const struct loop_sock *sock, struct loop_addr *out_addr);
    void (*sock_peer)(const struct loop_sock *sock, struct loop_addr *out_addr);
    void (*sock_mark)(struct loop_sock *sock, struct net_mark mark);
    void (*sock_shutdown)(struct loop_sock *sock);
    void (*sock_send_now)(struct loop_sock *sock, const void *bytes, size_t count);
    icms_err (*sock_tls)(struct loop_sock *sock, const struct loop_tls_keys *keys);
    icms_err (*sock_tls_recv)(struct loop_sock *sock, uint8_t *out_type, void *memory, size_t bytes,
                              size_t *out_bytes);
    icms_err (*sock_tls_records)(struct loop_sock *sock, bool is_send, uint64_t *out_records);
    bool (*sock_tls_send)(struct loop_sock *sock, uint8_t type, const void *bytes, size_t count);
    void (*sock_close)(struct loop_sock *sock);

    icms_err (*event_new)(struct loop_env *env, enum loop_event_role role,
                          struct loop_event **out_event);
    void (*event_signal)(struct loop_event *event);
    void (*event_free)(struct loop_event *event);
};

struct loop_env {
    const struct loop_ops *ops; /* the back end */
};

/* What an operation works on. */
struct loop_target {
    struct loop_env *env; /* where it came from                                */
    uint32_t busy;        /* operations in flight on it; atomic, for checks    */
};

struct loop_file {
    struct loop_target target;
    uint64_t bytes;   /* length                              */
    uint32_t streams; /* write streams of the device         */
    bool direct;      /* everything aligned to LIMIT_DISK_ALIGN */
};

struct loop_reads {
    struct loop_file *file; /* what is read                   */
    uint32_t depth;         /* in flight at most              */
    uint32_t busy;          /* in flight                      */
};

struct loop_sock {
    struct loop_target target;
};

struct loop_event {
    struct loop_target target;
    int fd; /* to pass on; -1: none */
};

struct loop_region {
    struct loop_env *env;
    uint8_t *base;  /* page-aligned         */
    uint64_t bytes; /* its length           */
    int fd;         /* to pass on; -1: none */
};

struct loop {
    struct loop_env *env;
    struct loop_timer *timers; /* root of the pairing heap: the first to fire; or NULL        */
    uint64_t timer_order;      /* armings so far                                              */
    uint64_t now_ns;           /* time of this iteration                                      */
    uint64_t random;           /* state of loop_random                                        */
    uint32_t jobs;             /* started, done has not run; LIMIT_LOOP_JOBS at most          */
    struct loop_stats stats;   /* written by the loop's thread, relaxed                       */
    _Atomic(struct loop_msg *) inbox; /* messages, last sent first; taken whole               */
    atomic_int phase;                 /* enum loop_phase                                      */
    atomic_bool stop;                 /* loop_stop was called                                 */
};

/* The loop whose thread this is, or NULL. */
extern _Thread_local struct loop *loop_current;

/* Fills in the common part. */
void loop_init(struct loop *loop, struct loop_env *env);

static inline const struct loop_ops *loop_ops(const struct loop *loop)
{
    return loop->env->ops;
}

static inline bool loop_stopping(struct loop *loop)
{
    return atomic_load_explicit(&loop->stop, memory_order_acquire);
}

/* A pairing heap of timers, ordered by at_ns, then order; both set by the caller. */
void loop_heap_insert(struct loop_timer **root, struct loop_timer *timer);
void loop_heap_remove(struct loop_timer **root, struct loop_timer *timer);

/* Runs the timers that are due at loop->now_ns; ends early when the loop is stopped. */
void loop_timers_run(struct loop *loop);

/* Puts a message into the inbox. Any thread. */
void loop_inbox_push(struct loop *loop, struct loop_msg *msg);

/* Runs what the inbox holds now; ends early when the loop is stopped. */
void loop_inbox_run(struct loop *loop);

/* The run of job->msg, which the back end sends when the work is over: counts it, calls done. */
void loop_job_finish(struct loop_msg *msg);

/* The operation does not name its target any more. */
void loop_op_release(struct loop_op *op);

/* Ends an operation: counts it and calls done. The struct may be gone afterwards. */
void loop_op_finish(struct loop_op *op, icms_err err, uint32_t bytes);

#endif
