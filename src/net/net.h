/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net/net.h: listeners, dialers and connections over loop.
 *
 * All structs are embedded by their owner and belong to one loop: every call and every callback
 * runs on that loop's thread (exceptions say so). Fields are private unless their comment says
 * otherwise.
 *
 * The contract: *returns ICMS_OK (or nothing): done is called exactly once, later, on the same
 * loop, even on failure; returns anything else: done is never called.* Callbacks never run inside
 * the call that caused them.
 */
#ifndef NET_NET_H
#define NET_NET_H

#include <stdatomic.h>

#include "base/limits.h"
#include "loop/loop.h"

struct crypt_tls;

/* ---- dialer --------------------------------------------------------------------------------- */

/* One connection attempt with a deadline. */
struct net_dial {
    struct loop *loop;       /* where it runs                                       */
    struct loop_addr addr;   /* whom                                                */
    struct loop_op op;       /* the connect                                         */
    struct loop_timer timer; /* the deadline                                        */
    icms_err why;            /* what ended it early; ICMS_OK: nothing               */
    void (*done)(struct net_dial *dial, icms_err err, struct loop_sock *sock); /* owner's */
};

/* Ends with ICMS_OK and a socket that is the owner's, or REFUSED, DEADLINE, CANCELED, ... and NULL.
 * done comes shortly after deadline_ns (loop_now_ns time) at the latest. */
void net_dial_start(struct net_dial *dial, struct loop *loop, const struct loop_addr *addr,
                    uint64_t deadline_ns,
                    void (*done)(struct net_dial *dial, icms_err err, struct loop_sock *sock));

/* done still comes, with CANCELED; a connection made meanwhile is closed. Harmless when done ran.
 */
void net_dial_cancel(struct net_dial *dial);

/* ---- listener ------------------------------------------------------------------------------- */

enum net_listener_state {
    NET_LISTENER_CLOSED,  /* nothing in flight                                             */
    NET_LISTENER_ACCEPT,  /* waits for a connection; woken by net_listener_accept_done     */
    NET_LISTENER_PAUSE,   /* at its limit or out of descriptors; woken by the timer        */
    NET_LISTENER_CLOSING, /* the accept is being canceled; woken by its done               */
};

struct net_listener {
    enum net_listener_state state;
    struct loop *loop;          /* where it runs                                             */
    struct loop_sock *sock;     /* owned                                                     */
    struct loop_op op;          /* the accept                                                */
    struct loop_timer timer;    /* back-off                                                  */
    struct loop_msg msg;        /* brings closed                                             */
    struct loop_sock *held;     /* accepted at the limit: handed over when it may be; owned  */
    uint32_t open_max;          /* connections at a time                                     */
    _Atomic uint32_t open;      /* handed out and not given back by net_listener_rele        */
    struct net_listener *limit; /* whose open_max and open count: itself, or another      */
    uint64_t backoff_ns;        /* next pause after an error                                 */
    uint64_t accepted;          /* counter, owner may read                                   */
    void *arg;                  /* the owner's                                               */
    void (*accept)(struct net_listener *listener, struct loop_sock *sock); /* owner's         */
    void (*closed)(struct net_listener *listener);                         /* owner's         */
};

/* Listens at once. Each connection is handed to accept(), which owns the socket (on any loop) and
 * counts as open until net_listener_rele(). At open_max connections no more are accepted; they wait
 * in the kernel's backlog. Out of descriptors: pauses and tries again. */
icms_err net_listener_open(struct net_listener *listener, struct loop *loop,
                           const struct loop_addr *addr, uint32_t open_max,
                           void (*accept)(struct net_listener *listener, struct loop_sock *sock),
                           void *arg, struct err_why *why) ICMS_MUST_CHECK;

/* From now on both count for the limit of other, which lives longer and is of the same loop. Right
 * after net_listener_open. */
void net_listener_share(struct net_listener *listener, struct net_listener *other);

/* Where it listens (the port, when 0 was asked for). */
void net_listener_addr(const struct net_listener *listener, struct loop_addr *out_addr);

/* A connection of this listener is over. Any thread. */
void net_listener_rele(struct net_listener *listener);

/* No accept() after it; closed() once when the struct may be reused. closed may be NULL: then the
 * loop must be joined before the struct goes. */
void net_listener_close(struct net_listener *listener,
                        void (*closed)(struct net_listener *listener));

/* After the loop was joined: gives the socket back, calls nothing. Harmless when closed. */
void net_listener_fini(struct net_listener *listener);

/* ---- TLS ------------------------------------------------------------------------------------ */

/* Connections of one loop that begin with a handshake of TLS 1.3: what they share. The owner zeroes
 * it, fills in the first part and keeps it while a connection of it is open. */
struct net_tls_side {
    struct crypt_tls *settings; /* keys                                                          */
    bool is_server;             /* the peer begins                                         */
    bool allows_plain;          /* server: a peer that does not begin with TLS is served
                                   without                                                 */
    uint64_t timeout_ns;        /* a handshake has to be over by then                      */
    uint32_t pending_max;       /* handshakes at a time: one more ends the oldest of them  */
    void *arg;                  /* the owner's                                             */
    /* A handshake failed: of which host, as far as it was named ("": not at all; it is not proven),
     * from where, and why. NULL: not of interest. Not from inside a call. */
    void (*failed)(struct net_tls_side *side, const char *hostnqn, const struct loop_addr *peer,
                   const char *why);
    /* counters, written on the loop; owner may read them there, others relaxed                  */
    _Atomic uint64_t succeeded;   /* handshakes                                                  */
    _Atomic uint64_t refused;     /* that failed: wrong key, not TLS 1.3, garbage                */
    _Atomic uint64_t timeouts;    /* that took too long                                          */
    _Atomic uint64_t evicted;     /* that were ended because too many were there                 */
    _Atomic uint64_t plain;       /* server: refused because they did not begin with TLS         */
    _Atomic uint32_t open_kernel; /* connections now whose records the kernel makes and opens    */
    _Atomic uint32_t open_mixed;  /* that it only makes                                          */
    _Atomic uint32_t open_user;   /* whose records OpenSSL makes and opens                       */
    /* private */
    bool is_ready;       /* pending is initialized       */
    uint32_t pending;    /* handshakes                   */
    struct list waiting; /* struct net_tls, oldest first */
};

/* Where the records of a connection are made and opened. */
enum net_tls_how {
    NET_TLS_NONE,   /* no TLS, or not yet                                   */
    NET_TLS_KERNEL, /* kTLS                                                 */
    NET_TLS_MIXED,  /* kTLS makes them, OpenSSL opens them                  */
    NET_TLS_USER,   /* OpenSSL                                              */
};

/* ---- connection ----------------------------------------------------------------------------- */

#define NET_SEND_VECTORS 4  /* of one net_send                    */
#define NET_CONN_VECTORS 16 /* of one system call                 */

/* Bytes to send, in order behind those queued before. Embedded by the owner, who keeps it and what
 * it names unchanged until done. */
struct net_send {
    struct iovec vectors[NET_SEND_VECTORS]; /* owner fills before net_conn_send                */
    uint32_t count;                         /* owner fills: vectors used, 1..NET_SEND_VECTORS   */
    void (*done)(struct net_send *send, icms_err err); /* owner fills: the kernel has the bytes */
    uint64_t bytes;   /* private: all of it                              */
    struct list link; /* private: queue                                  */
};

enum net_conn_state {
    NET_CONN_CLOSED,  /* holds nothing; closed() ran or it was never opened                  */
    NET_CONN_OPEN,    /* receives and sends                                                  */
    NET_CONN_CLOSING, /* shut down; waits for what is in flight; woken by recv and send done */
};

struct net_conn;

struct net_conn_ops {
    /* The receive ended: bytes were written to its memory, also when err is set. CANCELED after
     * net_conn_recv_cancel: the connection goes on. Any other error: the connection is closing. */
    void (*recv_done)(struct net_conn *conn, icms_err err, uint32_t bytes);

    /* Nothing is in flight any more, every net_send was given back; the struct may be reused. Once
     * for each net_conn_open. why: what net_conn_close was given, or RESET, DEADLINE (of a send).
     */
    void (*closed)(struct net_conn *conn, icms_err why);
};

struct net_conn_opts {
    const struct net_conn_ops *ops; /* the owner's                                               */
    uint64_t send_timeout_ns; /* close when a send makes no progress for this long; 0: never     */
    struct net_tls_side *tls; /* begin with TLS: nothing is received or sent before the peer proved
                                 itself; NULL: plain                                             */
};

struct net_conn {
    enum net_conn_state state;
    struct loop *loop;              /* where it runs                                          */
    struct loop_sock *sock;         /* owned                                                  */
    struct loop_addr peer;          /* owner may read: the other side, also after closed()    */
    struct loop_addr local;         /* owner may read: this side, likewise                    */
    const struct net_conn_ops *ops; /* owner's                                               */
    uint64_t send_timeout_ns;       /* 0: none                                                */
    uint64_t send_at_ns;            /* last time the kernel took bytes, or a queue began      */
    icms_err why;                   /* of the close                                           */
    bool closed_pending;            /* msg is on its way to end the close                     */
    bool receiving;                 /* recv_done is to come                                   */
    struct net_tls *tls;            /* owned; NULL: plain                                     */
    uint32_t corked;                /* net_conn_cork calls without their uncork               */
    struct loop_op recv_op;         /* one receive at a time                                  */
    struct loop_op send_op;         /* one vectored send at a time                            */
    struct loop_timer timer;        /* of the send                                            */
    struct loop_msg msg;            /* brings closed() when nothing else does                 */
    struct list sends;              /* struct net_send, oldest first                          */
    uint64_t head_sent;             /* bytes of the oldest that the kernel took               */
    struct iovec vectors[NET_CONN_VECTORS]; /* of the send in flight                         */
    uint64_t bytes_in; /* counter, owner may read                                */
};

/* Takes the socket. The struct must be closed or zeroed. With TLS the connection is open at once:
 * receives and sends wait for the handshake; when that fails, the connection closes with AUTH
 * (no proof), PROTOCOL (something else than TLS 1.3), DEADLINE, BUSY (ended in favour of others),
 * RESET or NO_MEMORY. A record that is not right closes with PROTOCOL, the peer's close_notify and
 * a stream that was cut with RESET; LIMIT: the kernel makes the records, its key made as many as
 * one may, and it cannot change it; or the peer's key made more than one may. */
void net_conn_open(struct net_conn *conn, struct loop *loop, struct loop_sock *sock,
                   const struct net_conn_opts *opts);

/* Receives into the caller's memory: 1..bytes bytes, or all of them (whole). recv_done comes once.
 * One at a time. On a closing connection it ends with the connection's error; after recv_done said
 * so, no more. */
void net_conn_recv(struct net_conn *conn, void *memory, uint32_t bytes, bool whole);

/* Ends the receive early: recv_done comes soon with CANCELED and the bytes that had arrived (or
 * ICMS_OK when it was faster); nothing writes its memory after that. Harmless when there is none.
 */
void net_conn_recv_cancel(struct net_conn *conn);

static inline bool net_conn_receiving(const struct net_conn *conn)
{
    return conn->receiving;
}

/* How its records are made; also after closed(): NONE. */
enum net_tls_how net_conn_tls(const struct net_conn *conn);

/* Server: NQNs that the peer proved with its key, of the host and of the subsystem; "" without TLS.
 * Valid while the connection is open. */
const char *net_conn_hostnqn(const struct net_conn *conn);
const char *net_conn_subnqn(const struct net_conn *conn);

/* Server: key_id() of the key that it proved; 0 without TLS. Likewise. */
uint64_t net_conn_key_id(const struct net_conn *conn);

/* Queues; sends at once when nothing is in flight, else together with its neighbours. send->done
 * comes once, in order. On a closing connection it comes with the connection's error. */
void net_conn_send(struct net_conn *conn, struct net_send *send);

/* Between them sends are only queued, so that what belongs together leaves together. Nests. */
void net_conn_cork(struct net_conn *conn);
void net_conn_uncork(struct net_conn *conn);

/* Marks what is sent from now on; nothing on one that is closing or closed. */
void net_conn_mark(struct net_conn *conn, struct net_mark mark);

/* Shuts the socket down; closed() comes when nothing is in flight. Idempotent: the first why stays.
 * Harmless on a closed one. */
void net_conn_close(struct net_conn *conn, icms_err why);

/* After the loop was freed (nothing in flight, no callback comes): closes the socket, calls
 * nothing. Harmless when closed. */
void net_conn_fini(struct net_conn *conn);

#endif
