/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop/sim_int.h: what the files of the simulation share. Private to src/loop.
 *
 * Everything that happens is an event (struct loop_timer in sim->events), ordered by virtual time,
 * then by the order of scheduling. Events live in the records of the simulated kernels, never in a
 * daemon's memory, so a crash can take the daemon away between any two of them.
 *
 *   daemon side (handles, freed by close)      kernel side (records, freed by the simulation)
 *   sim_loop   turn, ready operations          sim_mail   a message on its way
 *   sim_handle file                            sim_file, sim_io (an operation on the disk)
 *   sim_sock   listener or end of connection   sim_conn, sim_piece, sim_dial
 *   sim_bell   event
 */
#ifndef LOOP_SIM_INT_H
#define LOOP_SIM_INT_H

#include "base/check.h"
#include "loop/loop_int.h"
#include "loop/sim.h"

#define SIM_SECTOR 512
#define SIM_PAGE   4096 /* of a machine */

enum sim_trace_kind {
    SIM_TRACE_TURN,
    SIM_TRACE_OP,
    SIM_TRACE_MAIL,
    SIM_TRACE_DISK,
    SIM_TRACE_FAULT,
    SIM_TRACE_PIECE,
    SIM_TRACE_DIAL,
    SIM_TRACE_CRASH,
    SIM_TRACE_JOB,
    SIM_TRACE_LOST,
    SIM_TRACE_HELD,
    SIM_TRACE_REFUSED,
};

struct sim {
    struct sim_opts opts;
    struct loop_timer *events; /* heap of what is to come                        */
    uint64_t order;            /* events scheduled so far                        */
    uint64_t now_ns;           /* virtual time                                   */
    uint64_t random;           /* state of the generator                         */
    uint64_t events_run;       /* events so far                                  */
    uint64_t trace;            /* hash over what happened                        */
    uint32_t node_count;       /* nodes made so far                              */
    uint32_t loop_count;       /* loops made so far                              */
    bool faults;               /* random faults are on                           */
    struct list nodes;         /* struct sim_node                                */
    struct list conns;         /* struct sim_conn                                */
    struct list cuts;          /* struct sim_cut                                 */
    struct sim_stats stats;    /* of troubles                                    */
};

struct sim_node {
    struct loop_env env; /* first                                                  */
    struct sim *sim;
    struct list link;      /* in sim->nodes                                          */
    char host[48];         /* its address                                            */
    struct sim_node *home; /* whose address it is; itself: a machine               */
    uint32_t id;           /* from 1                                                 */
    uint64_t offset_ns;    /* its clock is this much ahead of virtual time           */
    uint64_t random;       /* state of its entropy                                   */
    uint32_t disk_slow;    /* factor on its disks' delays                            */
    uint64_t far_ns;       /* added to its network's delays                          */
    uint32_t lossy_ppm;    /* of a million of its packets are lost and sent again    */
    bool small;            /* packets larger than an Ethernet frame do not pass      */
    uint32_t short_of;     /* one of so many allocations of its programs fails; 0: none */
    bool no_locked;        /* its programs may lock none                             */
    int64_t ahead_ns;      /* its wall clock is this much ahead of others            */
    uint16_t port_next;    /* next port that is tried when one is picked             */
    bool paused;           /* its loops stand still                                  */
    bool dark;             /* crashed silently: nothing answers                      */
    struct list loops;     /* struct sim_loop                                        */
    struct list files;     /* struct sim_file                                        */
    struct list handles;   /* struct sim_handle                                      */
    struct list socks;     /* struct sim_sock                                        */
    struct list dials;     /* struct sim_dial                                        */
    struct list bells;     /* struct sim_bell                                        */
    struct list regions;   /* struct sim_region                                      */
};

/* ---- loops and messages ---- */

/* When the last message of one sender to one loop arrives. */
struct sim_route {
    struct list link;
    uint32_t from;    /* id of the sending loop; 0: none */
    uint64_t last_ns; /* no later message arrives before */
};

struct sim_loop {
    struct loop loop; /* first                                          */
    struct sim_node *node;
    struct list link;       /* in node->loops                                 */
    uint32_t id;            /* from 1, in the whole simulation                */
    struct loop_timer turn; /* its next iteration                             */
    uint64_t busy_ns;       /* virtual time before which no turn begins       */
    struct list ready;      /* operations whose done is to be called          */
    struct list mails;      /* struct sim_mail on their way to it             */
    struct list routes;     /* struct sim_route                               */
    struct list jobs;       /* struct sim_job; the first one runs             */
};

struct sim_job {
    struct loop_timer event; /* its end; armed for the first one */
    struct list link;        /* in loop->jobs                    */
    struct sim_loop *loop;
    struct loop_job *job;
};

struct sim_mail {
    struct loop_timer event;
    struct list link; /* in to->mails */
    struct sim_loop *to;
    struct loop_msg *msg;
};

struct sim_bell {
    struct loop_event event; /* first                         */
    struct list link;        /* in node->bells                */
    bool raised;             /* since the last wait ended     */
    struct loop_op *waiter;  /* or NULL                       */
};

struct sim_region {
    struct loop_region region; /* first */
    struct list link;          /* in node->regions */
};

/* ---- disk ---- */

/* A write that completed and was not flushed. */
struct sim_unflushed {
    struct list link; /* in file->unflushed, oldest first */
    uint64_t number;  /* which write of the file */
    uint64_t offset;
    uint32_t bytes;
    uint8_t data[]; /* what was written */
};

struct sim_file {
    struct sim_node *node;
    struct list link; /* in node->files                                     */
    char *path;
    uint64_t bytes;            /* length                                             */
    uint8_t *view;             /* what reads see                                     */
    uint8_t *medium;           /* what survives a power loss, where unflushed        */
    uint8_t *streams;          /* of each page: to which it was written last         */
    struct list unflushed;     /* struct sim_unflushed                               */
    uint64_t unflushed_bytes;  /* sum of them                                        */
    uint64_t writes;           /* that completed so far                              */
    struct list ios;           /* struct sim_io in flight                            */
    uint64_t busy_ns;          /* virtual time until which its bandwidth is taken    */
    bool dead;                 /* everything on it fails                             */
    bool full;                 /* writes find no space                               */
    uint32_t slow;             /* factor on its delays, on top of the node's          */
    struct sim_handle *holder; /* who locked it, or NULL                            */
};

struct sim_handle {
    struct loop_file file; /* first            */
    struct list link;      /* in node->handles */
    struct sim_file *disk; /* NULL: its daemon crashed */
    bool write;            /* may write        */
};

/* One operation in the disk's queue. */
struct sim_io {
    struct loop_timer event; /* its end                                            */
    struct list link;        /* in file->ios                                       */
    struct sim_file *file;
    struct loop_op *op;
    uint64_t hash;         /* of what is to be written, when it was asked for     */
    uint64_t flush_number; /* flush: writes that completed when it was asked for  */
};

/* ---- network ---- */

enum sim_piece_kind {
    SIM_PIECE_DATA,
    SIM_PIECE_FIN,
    SIM_PIECE_RST,
};

struct sim_piece {
    struct loop_timer event; /* its arrival        */
    struct list link;        /* in stream->pieces  */
    struct sim_stream *stream;
    enum sim_piece_kind kind;
    uint32_t bytes;
    uint8_t data[];
};

/* A bounded queue of bytes. */
struct sim_bytes {
    uint8_t *data;
    uint32_t capacity;
    uint32_t head;  /* index of the first byte */
    uint32_t count; /* bytes in it             */
};

/* One direction of a connection, with the socket buffers at both of its ends. */
struct sim_stream {
    struct sim_conn *conn;
    uint32_t from;         /* which end sends                                    */
    struct sim_bytes out;  /* given by the sender, not on its way yet            */
    struct sim_bytes in;   /* arrived, not received yet                          */
    uint32_t flying_bytes; /* on their way                                       */
    uint64_t sent_bytes;   /* so far                                             */
    struct list pieces;    /* struct sim_piece on their way                      */
    uint64_t busy_ns;      /* virtual time until which its bandwidth is taken    */
    uint64_t last_ns;      /* no later piece arrives before                      */
    bool fin_wanted;       /* the sender ends the stream behind out              */
    bool fin_sent;         /* and that is on its way                             */
    bool fin_arrived;      /* the receiver saw the end                           */
    bool stuck;            /* a piece vanished: nothing arrives any more         */
    bool held;             /* by a packet that is too large                      */
};

struct sim_end {
    struct sim_node *node;
    struct sim_node *at;   /* which of its addresses; `node`: its own               */
    struct sim_sock *sock; /* its handle; NULL: not accepted yet, or closed        */
    uint16_t port;
    bool closed;       /* no process has it any more                           */
    bool shut;         /* ended by its process                                 */
    bool reset;        /* the other side killed it, or itself did              */
    struct list recvs; /* operations that wait for bytes, oldest first         */
    struct list sends; /* operations that wait for room                        */
    struct list link;  /* in listener->backlog while not accepted              */
    struct sim_conn *conn;
};

struct sim_conn {
    struct sim *sim;
    struct list link;            /* in sim->conns                              */
    struct sim_end end[2];       /* [0] connected, [1] accepted                */
    struct sim_stream stream[2]; /* stream[i] goes from end[i] to the other   */
};

struct sim_sock {
    struct loop_sock sock; /* first                                         */
    struct list link;      /* in node->socks                                */
    struct loop_addr addr; /* local                                         */
    struct sim_end *end;   /* of a connection; NULL: listener, or crashed   */
    bool listener;
    struct list backlog; /* listener: ends that nobody accepted yet       */
    uint32_t waiting;    /* number of them                                */
    struct list accepts; /* listener: operations that wait                */
};

enum sim_dial_state {
    SIM_DIAL_ASK,     /* the request travels; woken by its arrival          */
    SIM_DIAL_REFUSED, /* a refusal travels back; woken by its arrival       */
    SIM_DIAL_AGREED,  /* the agreement travels back; woken by its arrival   */
    SIM_DIAL_LOST,    /* nothing will come; woken when it takes too long    */
};

struct sim_dial {
    struct loop_timer event;
    struct list link; /* in node->dials                             */
    struct sim_node *node;
    enum sim_dial_state state;
    struct loop_op *op;    /* NULL: canceled                             */
    struct loop_addr to;   /* whom                                       */
    uint64_t end_ns;       /* when the kernel gives up                   */
    struct sim_conn *conn; /* AGREED                                     */
};

struct sim_cut {
    struct list link;   /* in sim->cuts */
    struct sim_node *a; /* one_way: NULL: everybody */
    struct sim_node *b; /* NULL: everybody */
    bool one_way;       /* from a to b              */
};

/* ---- sim.c ---- */

void sim_at(struct sim *sim, struct loop_timer *event, uint64_t at_ns);
void sim_not(struct sim *sim, struct loop_timer *event);
void sim_trace(struct sim *sim, enum sim_trace_kind kind, const struct sim_node *node, uint64_t a,
               uint64_t b);

/* 0..n-1, 0 for 0. */
uint64_t sim_below(struct sim *sim, uint64_t n);
uint64_t sim_between(struct sim *sim, uint64_t min, uint64_t max);

/* A random fault of this probability happens. */
bool sim_fault(struct sim *sim, uint32_t ppm);

/* A delay between the two, or a spike. */
uint64_t sim_delay(struct sim *sim, uint64_t min_ns, uint64_t max_ns);
uint64_t sim_net_delay(struct sim *sim);
bool sim_reaches(struct sim *sim, const struct sim_node *a, const struct sim_node *b);

/* A packet between the two is lost. */
bool sim_packet_lost(struct sim *sim, const struct sim_node *a, const struct sim_node *b);

/* Writes some random bytes, when the simulation is strict: the kernel may. */
void sim_scribble(struct sim *sim, void *memory, size_t bytes);

static inline struct sim_node *sim_node_of(struct loop_env *env)
{
    return container_of(env, struct sim_node, env);
}

/* ---- sim_host.c ---- */

/* Memory of the simulation: zeroed. */
void *sim_alloc(size_t bytes);

/* The same in whole pages; bytes is a multiple of them. */
void *sim_alloc_pages(size_t bytes);

/* The machine gives its programs no memory for this: counted. */
bool sim_memory_refused(struct sim_node *node);

/* ---- sim_loop.c ---- */

extern const struct loop_ops sim_ops;

static inline struct sim_loop *sim_loop_of(struct loop *loop)
{
    return container_of(loop, struct sim_loop, loop);
}

/* The kernel ended an operation; done runs in a turn of its loop. */
void sim_op_ready(struct loop_op *op, icms_err err, uint32_t bytes);

/* Lets the loop have a turn if there is reason for one. */
void sim_loop_poke(struct sim_loop *loop);

/* Forgets the operations of one loop (NULL: of all loops of the node). */
void sim_ops_drop(struct sim_node *node, struct loop *loop);

/* The daemon of the node is gone: ends its loops, events and regions' books. */
void sim_loop_crash(struct sim_node *node);
void sim_loop_fini(struct sim_node *node);

static inline bool sim_op_of(const struct loop_op *op, const struct loop *loop)
{
    return loop == NULL || op->loop == loop;
}

/* ---- sim_disk.c ---- */

icms_err sim_file_open(struct loop_env *env, const struct loop_file_opts *opts, struct err_why *why,
                       struct loop_file **out_file);
icms_err sim_file_read_now(struct loop_file *file, uint64_t offset, void *memory, size_t bytes);
icms_err sim_file_write_now(struct loop_file *file, uint64_t offset, const void *memory,
                            size_t bytes);
icms_err sim_file_flush_now(struct loop_file *file);
void sim_file_close(struct loop_file *file);
icms_err sim_reads_new(struct loop_file *file, uint32_t depth, struct err_why *why,
                       struct loop_reads **out_reads);
void sim_reads_start(struct loop_reads *reads, struct loop_read *read);
struct loop_read *sim_reads_wait(struct loop_reads *reads);
void sim_reads_free(struct loop_reads *reads);
void sim_disk_start(struct loop_op *op);
void sim_disk_drop(struct sim_node *node, struct loop *loop);
void sim_disk_crash(struct sim_node *node, bool power);
void sim_disk_fini(struct sim_node *node);

/* ---- sim_net.c: listeners, dials, handles ---- */

icms_err sim_listen(struct loop_env *env, const struct loop_addr *addr, struct err_why *why,
                    struct loop_sock **out_sock);
void sim_sock_addr(const struct loop_sock *sock, struct loop_addr *out_addr);
void sim_sock_peer(const struct loop_sock *sock, struct loop_addr *out_addr);
void sim_sock_mark(struct loop_sock *sock, struct net_mark mark);
void sim_sock_shutdown(struct loop_sock *sock);

/* What a simulated socket cannot do. */
void sim_sock_send_now(struct loop_sock *sock, const void *bytes, size_t count);
icms_err sim_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys);
icms_err sim_sock_tls_recv(struct loop_sock *sock, uint8_t *out_type, void *memory, size_t bytes,
                           size_t *out_bytes);
icms_err sim_sock_tls_records(struct loop_sock *sock, bool is_send, uint64_t *out_records);
bool sim_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes, size_t count);
void sim_sock_close(struct loop_sock *sock);
void sim_net_start(struct loop_op *op);
void sim_net_cancel(struct loop_op *op);
void sim_net_drop(struct sim_node *node, struct loop *loop);
void sim_net_crash(struct sim_node *node, bool silent);
void sim_net_fini(struct sim_node *node);

/* ---- sim_stream.c: connections ---- */

struct sim_conn *sim_conn_new(struct sim *sim, struct sim_node *from, struct sim_node *to,
                              uint16_t from_port, uint16_t to_port);
void sim_conn_fini(struct sim *sim);
void sim_end_recv(struct sim_end *end, struct loop_op *op);
void sim_end_send(struct sim_end *end, struct loop_op *op);
void sim_end_shutdown(struct sim_end *end);

/* No process has the end any more. quiet: it says nothing to the other side. The connection may be
 * gone afterwards. */
void sim_end_close(struct sim_end *end, bool quiet);

/* Kills the connection from one end: that end at once, the other when the word arrives. */
void sim_end_reset(struct sim_end *end);

#endif
