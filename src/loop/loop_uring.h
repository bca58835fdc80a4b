/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop/loop_uring.h: what the files of the io_uring back end share. Private to src/loop.
 */
#ifndef LOOP_LOOP_URING_H
#define LOOP_LOOP_URING_H

#include <assert.h>
#include <liburing.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "base/check.h"
#include "loop/loop_int.h"

/* Slots of the registered buffer table of a loop; one holds at most 1 GiB. */
#define URING_BUFFERS_MAX  1024
#define URING_BUFFER_BYTES ((uint64_t)1 << 30)

/* Part of a region that is registered with a ring. */
struct uring_buffer {
    uint8_t *base;  /* first byte                */
    uint64_t bytes; /* length, 1 GiB at most     */
    int slot;       /* index in the ring's table */
};

/* The thread that runs the jobs of a loop. */
struct uring_worker {
    bool running;          /* the thread was made; by the loop's thread            */
    pthread_t thread;      /* uring_worker_run                                     */
    cpu_set_t cpus;        /* where the loop's maker may run: not only loop.cpu    */
    pthread_mutex_t lock;  /* of what follows                                      */
    pthread_cond_t wanted; /* jobs or is_stopped became true                       */
    struct list jobs;      /* struct loop_job that wait, oldest first              */
    bool is_stopped;       /* the thread shall end after the job that it runs      */
};

struct uring_loop {
    struct loop loop;             /* first                                                      */
    struct io_uring ring;         /* submitted to by the loop's thread alone                    */
    struct list parked;           /* operations that wait for room in the ring, oldest first    */
    struct list kernel;           /* operations the kernel works on                             */
    struct list ending;           /* the same, but a cancel for them has yet to be submitted    */
    struct list ready;            /* operations whose done is to be called                      */
    uint32_t kernel_ops;          /* answers the kernel owes for operations                     */
    uint32_t kernel_aux;          /* answers it owes for cancels and the wake read              */
    int wake_fd;                  /* eventfd: a message or a stop came                          */
    uint64_t wake_value;          /* the kernel reads the eventfd into this                     */
    bool wake_armed;              /* that read is in flight                                     */
    atomic_bool asleep;           /* in the kernel, or about to: senders have to wake it        */
    bool busy_poll;               /* never sleeps                                               */
    uint64_t poll_ns;             /* spins for so long after work                               */
    uint64_t work;                /* operations and messages when it worked last                */
    uint64_t work_ns;             /* when that was                                              */
    bool disabled;                /* the ring was made disabled; its thread enables it          */
    int cpu;                      /* to pin to; -1: any                                         */
    char name[16];                /* of the thread                                              */
    pthread_t thread;             /* runs the loop                                              */
    sem_t started;                /* posted when start_err is set                               */
    icms_err start_err;           /* whether the thread could take the ring                     */
    struct uring_worker worker;   /* runs jobs                                            */
    struct uring_buffer *buffers; /* registered memory, ordered by address                */
    uint32_t buffer_count;        /* of them                                              */
    struct __kernel_timespec slow[2]; /* faults loop.read, loop.write: how much longer            */
};

struct uring_file {
    struct loop_file file; /* first                                       */
    int fd;
    bool locked;      /* holds the lock, is in uring_locked          */
    uint64_t device;  /* which file it is                            */
    uint64_t inode;   /* which file it is                            */
    struct list link; /* in uring_locked                             */
};

struct uring_sock {
    struct loop_sock sock; /* first */
    int fd;
};

/* What the kernel reads while an operation is in flight: lives in loop_op.words. */
union uring_words {
    struct msghdr message; /* LOOP_SENDV */
    struct {
        struct sockaddr_in6 addr; /* LOOP_CONNECT: where to; IPv4 is stored in it too */
        socklen_t addr_bytes;     /* its length                                       */
        struct uring_sock *sock;  /* the socket that is to be connected               */
    } connect;
};

static_assert(sizeof(union uring_words) <= sizeof(((struct loop_op *)0)->words), "fits");

static inline union uring_words *uring_words(struct loop_op *op)
{
    return (union uring_words *)(void *)op->words;
}

static inline struct uring_loop *uring_of(struct loop *loop)
{
    return container_of(loop, struct uring_loop, loop);
}

static inline struct uring_file *uring_file_of(struct loop_file *file)
{
    return container_of(file, struct uring_file, file);
}

static inline struct uring_sock *uring_sock_of(struct loop_sock *sock)
{
    return container_of(sock, struct uring_sock, sock);
}

/* loop_uring_op.c: one operation's way through the kernel. */
void uring_op_start(struct loop *loop, struct loop_op *op);
void uring_op_cancel(struct loop *loop, struct loop_op *op);

/* Fills an empty submission entry. */
void uring_op_prepare(struct uring_loop *loop, struct loop_op *op, struct io_uring_sqe *sqe);

/* Takes the kernel's answer: parks it again when it has to go on, or calls done. */
void uring_op_answer(struct uring_loop *loop, struct loop_op *op, int result);

/* Takes the kernel's answer, or none (-ECANCELED), of a loop that calls nothing any more. */
void uring_op_discard(struct uring_loop *loop, struct loop_op *op, int result);

/* loop_uring_job.c: jobs and their thread. The free one waits for the job that runs and forgets the
 * others; the loop was joined. */
void uring_worker_init(struct uring_worker *worker);
void uring_worker_free(struct uring_worker *worker);
icms_err uring_job_start(struct loop *loop, struct loop_job *job);

/* A thread that leaves signals to the others, except those that its own mistakes raise; 0 or errno.
 */
int uring_thread_new(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *arg),
                     void *arg);

/* loop_uring_mem.c */
icms_err uring_region_new(struct loop_env *env, const char *name, uint64_t bytes, bool prefault,
                          struct err_why *why, struct loop_region **out_region);
icms_err uring_region_register(struct loop *loop, struct loop_region *region, struct err_why *why);
icms_err uring_region_touch(struct loop_region *region);
icms_err uring_region_seal(struct loop_region *region, struct err_why *why);
void uring_region_free(struct loop_region *region);

/* The slot that holds all of the memory, -1 when none does. */
int uring_buffer_slot(const struct uring_loop *loop, const void *memory, uint64_t bytes);

/* loop_uring_file.c */
icms_err uring_file_open(struct loop_env *env, const struct loop_file_opts *opts,
                         struct err_why *why, struct loop_file **out_file);
icms_err uring_file_read_now(struct loop_file *file, uint64_t offset, void *memory, size_t bytes);
icms_err uring_file_write_now(struct loop_file *file, uint64_t offset, const void *memory,
                              size_t bytes);
icms_err uring_file_flush_now(struct loop_file *file);
int uring_file_fd(struct loop_file *file);
void uring_file_close(struct loop_file *file);

/* loop_uring_reads.c */
icms_err uring_reads_new(struct loop_file *file, uint32_t depth, struct err_why *why,
                         struct loop_reads **out_reads);
void uring_reads_start(struct loop_reads *reads, struct loop_read *read);
struct loop_read *uring_reads_wait(struct loop_reads *reads);
void uring_reads_free(struct loop_reads *reads);

/* loop_uring_sock.c */
icms_err uring_listen(struct loop_env *env, const struct loop_addr *addr, struct err_why *why,
                      struct loop_sock **out_sock);
void uring_sock_addr(const struct loop_sock *sock, struct loop_addr *out_addr);
void uring_sock_peer(const struct loop_sock *sock, struct loop_addr *out_addr);
void uring_sock_mark(struct loop_sock *sock, struct net_mark mark);
void uring_sock_shutdown(struct loop_sock *sock);

/* loop_uring_tls.c */
void uring_sock_send_now(struct loop_sock *sock, const void *bytes, size_t count);
icms_err uring_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys);
icms_err uring_sock_tls_recv(struct loop_sock *sock, uint8_t *out_type, void *memory, size_t bytes,
                             size_t *out_bytes);
icms_err uring_sock_tls_records(struct loop_sock *sock, bool is_send, uint64_t *out_records);
bool uring_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes, size_t count);
void uring_sock_close(struct loop_sock *sock);

/* Makes the socket of a connect that begins and fills in its words. */
icms_err uring_connect_start(struct loop_op *op);

/* A socket around a descriptor, which it owns from here on also on failure; NULL: no memory. */
struct uring_sock *uring_sock_new(struct loop_env *env, int fd);

struct uring_event {
    struct loop_event event; /* its fd: WAIT: the eventfd; SIGNAL: the other process's end */
    enum loop_event_role role;
    int own; /* SIGNAL: our end, which is never passed on; -1: none */
};

/* As loop_fd_own and loop_fd_close for a ring, whose memory a child of fork() does not inherit; 0
 * or -errno. */
int uring_ring_own(struct io_uring *ring);
void uring_ring_exit(struct io_uring *ring);

/* The locks that files of this process hold: they stay as they are from files_hold to files_rele; a
 * child of fork() forgets them. */
void uring_files_hold(void);
void uring_files_forget(void);
void uring_files_rele(void);

static inline struct uring_event *uring_event_of(struct loop_target *target)
{
    return container_of(target, struct uring_event, event.target);
}

icms_err uring_event_new(struct loop_env *env, enum loop_event_role role,
                         struct loop_event **out_event);
void uring_event_signal(struct loop_event *event);
void uring_event_free(struct loop_event *event);

/* Takes what was raised, after the descriptor became readable. */
void uring_event_take(struct loop_event *event);

#endif
