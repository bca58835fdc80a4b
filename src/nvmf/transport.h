/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/transport.h: what a queue pair asks of the connection below it. One table of
 * functions for a host, one for a target; TCP is host/tcp.c and target/tcp.c over pdu.h. Another
 * transport is another such pair, and nothing in front of it changes.
 *
 * A queue pair knows commands, completions and buffers. A transport knows how a capsule and the
 * data of a command travel: as PDUs and R2Ts, or by reads and writes of registered memory.
 *
 * Threads. All calls and callbacks of a connection are on its loop. Callbacks never run inside a
 * call of the owner; inside a callback every call is allowed.
 *
 * Memory. Data is sent from where it lies and received where it belongs: a transport copies none.
 * It reads or writes the memory of a command from the call that names it until the callback that
 * says it is over, or closed(), whichever comes first.
 */
#ifndef NVMF_TRANSPORT_H
#define NVMF_TRANSPORT_H

#include "net/net.h"
#include "wire/nvme.h"

/* Data of a command lies in this many pieces of memory (value, trailer). */
#define NVMF_DATA_VECTORS 2

/* A connection. First member of the transport's own struct. */
struct nvmf_conn {
    void *owner;            /* the queue pair; not touched by the transport                     */
    bool is_paused;         /* target: it receives nothing now, for want of a slot or memory    */
    uint64_t digest_errors; /* target, in closed(): checksums of the transport that were wrong  */
    enum net_tls_how tls;   /* from opened() to closed(): how it is encrypted                   */
    const char *hostnqn;    /* target, the same: what the host proved to be; "": nothing        */
    const char *subnqn;     /* target, the same: for which subsystem                            */
    uint64_t key_id;        /* target, the same: of the key that it proved; 0: none             */
    struct loop_addr peer;  /* target, from opened() on: from where; no host: that has no name  */
    struct loop_addr local; /* target, the same: the address that the host connected to         */
};

/* ---- the host's side ------------------------------------------------------------------------ */

/* One command of a host. The owner embeds it. */
struct nvmf_host_io {
    /* in: set before send, kept until completed() */
    uint16_t slot;        /* its place among the commands of the connection; never changes       */
    uint16_t cid;         /* command identifier                                                  */
    uint8_t direction;    /* NVME_DIRECTION_*                                                    */
    bool in_capsule;      /* H2C: the data goes with the command                                 */
    bool result_is_bytes; /* DW0 of a success is the size of the value that the data begins      */
    uint32_t data_bytes;  /* of the transfer                                                     */
    struct iovec data[NVMF_DATA_VECTORS]; /* H2C: only read. C2H: room. Zeroed by withdraw        */
    /* out, valid in completed() */
    uint32_t moved; /* bytes of the data that were moved                                          */
    icms_err err;   /* OK; CORRUPT: the data came, and damaged                                    */
};

struct nvmf_host_conn_ops {
    /* The peer is there and takes capsules. At most once a connect. */
    void (*opened)(struct nvmf_conn *conn);

    /* The command that the peer names; NULL: there is none. */
    struct nvmf_host_io *(*find)(struct nvmf_conn *conn, uint16_t cid);

    /* More of the data of a C2H command is in its memory, whole: io->moved bytes from its begin. A
     * transport may leave it out, and does for what came with the answer or was withdrawn. */
    void (*progress)(struct nvmf_conn *conn, struct nvmf_host_io *io);

    /* The end of a withdraw that returned OK. */
    void (*withdrawn)(struct nvmf_conn *conn, struct nvmf_host_io *io);

    /* The answer is there, its data too, and nothing touches the memory any more. */
    void (*completed)(struct nvmf_conn *conn, struct nvmf_host_io *io, const struct nvme_cqe *cqe);

    /* The peer broke the protocol; text says how. The connection is closing. */
    void (*broken)(struct nvmf_conn *conn, const char *text);

    /* Nothing is in flight: once for each connect, last. Commands without completed() have none.
     * err and text: REFUSED, DEADLINE, RESET, ..., PROTOCOL, or what close was given. */
    void (*closed)(struct nvmf_conn *conn, icms_err err, const char *text);
};

struct nvmf_connect_opts {
    struct loop_addr addr;    /* whom                                                             */
    uint64_t deadline_ns;     /* until the peer accepted                                          */
    uint64_t send_timeout_ns; /* a send without progress for this long closes; 0: no limit        */
    bool header_digest;       /* checksums of the transport, where it has them: asked for, the    */
    bool data_digest;         /* peer may decline                                                 */
    struct crypt_tls *tls;    /* begin with TLS; NULL: plain. Kept by the caller               */
    struct net_mark mark;     /* of what is sent                                               */
};

struct nvmf_host_transport {
    /* A closed connection for so many commands. Takes all memory. */
    icms_err (*conn_new)(struct loop *loop, uint32_t slots, const struct nvmf_host_conn_ops *ops,
                         void *owner, struct nvmf_conn **out_conn) ICMS_MUST_CHECK;

    /* After closed(), or after the loop was freed. */
    void (*conn_free)(struct nvmf_conn **conn);

    /* Connects a closed connection: opened(), then closed(); or closed() alone. */
    void (*connect)(struct nvmf_conn *conn, const struct nvmf_connect_opts *opts);

    /* Sends a command, behind those sent before; the transport makes its SGL. completed() comes
     * once, unless the connection closes. */
    void (*send)(struct nvmf_conn *conn, struct nvmf_host_io *io, const struct nvme_sqe_wf *sqe);

    /* The memory of a command is wanted back; its CID is out until completed() all the same.
     * ICMS_OK: withdrawn() comes once, before completed() and closed(), when nothing touches the
     * memory. NOT_FOUND: nothing does, and nothing will. BUSY: the peer may still ask for the data,
     * all goes on as before. */
    icms_err (*withdraw)(struct nvmf_conn *conn, struct nvmf_host_io *io) ICMS_MUST_CHECK;

    /* C2H: none of the data has come, and it will come to this memory, of as many bytes; nothing
     * touches what io->data named before. False: something may, and all goes on as before. */
    bool (*redirect)(struct nvmf_conn *conn, struct nvmf_host_io *io,
                     const struct iovec data[NVMF_DATA_VECTORS]) ICMS_MUST_CHECK;

    /* Ends it: closed() comes. Idempotent; harmless on a closed one. */
    void (*close)(struct nvmf_conn *conn, icms_err why);

    /* Bytes received since connect, also after closed(): a peer that lives sends some. */
    uint64_t (*received)(const struct nvmf_conn *conn);
};

extern const struct nvmf_host_transport nvmf_host_tcp;

/* ---- the target's side ---------------------------------------------------------------------- */

/* One command of a target. The owner embeds it. */
struct nvmf_target_io {
    /* in: the owner's */
    void *area;   /* io_bytes of the transport's own; zeroed before the first command here */
    uint16_t tag; /* its place among the commands of the connection                       */
    uint16_t cid; /* the host's name for it; not trusted to be unique                     */
    bool in_own;  /* its data came in the transport's own memory, until responded()       */
    bool result_is_bytes; /* DW0 of its success is data_bytes, and the host needs nothing else    */
    uint8_t *data;        /* read: where it goes. write, respond: where it is; only read          */
    uint32_t data_bytes;  /* of the transfer                                                      */
    uint32_t data_moved;  /* of them, received or handed on; the owner sets 0, then the transport */
    /* out */
    bool data_busy; /* data to the host is not all in its hands                                   */
    icms_err err;   /* read: CORRUPT: the data came, and damaged                                  */
};

struct nvmf_target_conn_ops {
    /* The host agreed on all that the transport needs. Once an open, before anything else. */
    void (*opened)(struct nvmf_conn *conn);

    /* A command with data is about to come: where does the data go? ICMS_OK: to *out_memory +
     * *out_offset, or nowhere (as it came: NULL), from now on. BUSY: the owner has no memory; to
     * *out_offset of the transport's own, when that is free. LIMIT: no slot is free. VALUE_SIZE:
     * more data than may come. It may be asked again for the same command. */
    icms_err (*capsule)(struct nvmf_conn *conn, const struct nvme_sqe_wf *sqe, uint32_t data_bytes,
                        uint8_t **out_memory, uint32_t *out_offset) ICMS_MUST_CHECK;

    /* A command, with data_bytes of data where capsule() said. data_err: CORRUPT: damaged. own: the
     * transport's own memory, when the data is there. LIMIT: no slot is free (without data: else
     * capsule() said so). */
    icms_err (*command)(struct nvmf_conn *conn, const struct nvme_sqe_wf *sqe, uint32_t data_bytes,
                        icms_err data_err, uint8_t *own) ICMS_MUST_CHECK;

    /* The command of a tag that comes back from the host; NULL: there is none. */
    struct nvmf_target_io *(*find)(struct nvmf_conn *conn, uint16_t tag);

    /* The host moved something of a read; data_moved says whether it is all there. Then the
     * transport does not touch it any more. */
    void (*progress)(struct nvmf_conn *conn, struct nvmf_target_io *io);

    /* Its completion goes out now. */
    void (*completion)(struct nvmf_conn *conn, struct nvmf_target_io *io, struct nvme_cqe *out_cqe);

    /* All of it is on its way: the transport does not touch the command or its data any more, and
     * goes on with what waited for a slot when this returns. */
    void (*responded)(struct nvmf_conn *conn, struct nvmf_target_io *io);

    /* Nothing is in flight; no command is touched any more. Once an open, last. why: PROTOCOL (the
     * host broke it), DEADLINE (timeouts), RESET (it left), or what close was given. */
    void (*closed)(struct nvmf_conn *conn, icms_err why);
};

/* First member of the transport's own struct. */
struct nvmf_listener {
    void *owner;                                      /* the owner's                         */
    void (*accepted)(struct nvmf_listener *listener); /* the owner's: a host is there; take it */
};

struct nvmf_accept_opts {
    uint32_t capsule_bytes_max; /* data that may come with a command                            */
    uint64_t header_timeout_ns; /* what began to come has to be whole within this               */
    uint64_t send_timeout_ns;   /* a send without progress for this long closes                 */
    struct net_tls_side *tls;   /* it begins with TLS, or may; NULL: plain                      */
};

struct nvmf_target_transport {
    uint32_t io_bytes; /* what it needs of memory for each command */

    /* Listens at once, on loop's thread or before it runs; at most open_max connections that were
     * taken and not released. with: another listener of the loop, for whose limit these count, too,
     * and which is freed later; NULL: none. *out_addr: where (the port, when 0 was asked for). */
    icms_err (*listen)(struct loop *loop, const struct loop_addr *addr, uint32_t open_max,
                       struct nvmf_listener *with, void (*accepted)(struct nvmf_listener *listener),
                       void *owner, struct err_why *why, struct nvmf_listener **out_listener,
                       struct loop_addr *out_addr) ICMS_MUST_CHECK;

    /* Inside accepted(), once: conn, closed and of any loop, is for the host that is there. */
    void (*take)(struct nvmf_listener *listener, struct nvmf_conn *conn);

    /* A connection that was taken is over. Any thread. */
    void (*release)(struct nvmf_listener *listener);

    /* No accepted() after it. */
    void (*listen_close)(struct nvmf_listener *listener);

    /* After its loop was freed. */
    void (*listen_free)(struct nvmf_listener **listener);

    /* A closed connection. own: memory for the data of one capsule, kept by the caller. */
    icms_err (*conn_new)(struct loop *loop, uint8_t *own, const struct nvmf_target_conn_ops *ops,
                         void *owner, struct nvmf_conn **out_conn) ICMS_MUST_CHECK;

    /* After closed(), or after the loop was freed. */
    void (*conn_free)(struct nvmf_conn **conn);

    /* Begins to serve the host that it was taken for. */
    void (*open)(struct nvmf_conn *conn, const struct nvmf_accept_opts *opts);

    /* Marks what is sent from now on. */
    void (*mark)(struct nvmf_conn *conn, struct net_mark mark);

    /* Gets data_bytes of data from the host. progress() comes. */
    void (*read)(struct nvmf_conn *conn, struct nvmf_target_io *io);

    /* The first bytes of the data, and never all, may go to the host. Any number of times before
     * respond, with more each time. */
    void (*write)(struct nvmf_conn *conn, struct nvmf_target_io *io, uint32_t bytes);

    /* The first bytes of the data go to the host, unless they did, and then the completion: 0 for a
     * failure, all for a success. responded() comes once, unless the connection closes. */
    void (*respond)(struct nvmf_conn *conn, struct nvmf_target_io *io, uint32_t bytes);

    /* Ends it: closed() comes. Idempotent. */
    void (*close)(struct nvmf_conn *conn, icms_err why);
};

extern const struct nvmf_target_transport nvmf_target_tcp;

#endif
