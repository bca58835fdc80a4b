/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/transport.h: what a queue pair asks of the connection below it. TCP is one table of
 * functions (host/tcp.c over pdu.h); another transport is another file, with nothing to change in
 * front of it.
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

#include "loop/loop.h"
#include "wire/nvme.h"

/* Data of a command lies in this many pieces of memory (value, trailer). */
#define NVMF_DATA_VECTORS 2

/* A connection. First member of the transport's own struct. */
struct nvmf_conn {
    void *owner; /* the queue pair; not touched by the transport */
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

struct nvmf_host_ops {
    /* The peer is there and takes capsules. At most once a connect. */
    void (*opened)(struct nvmf_conn *conn);

    /* The command that the peer names; NULL: there is none. */
    struct nvmf_host_io *(*find)(struct nvmf_conn *conn, uint16_t cid);

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
};

struct nvmf_host_transport {
    /* A closed connection for so many commands. Takes all memory. */
    icms_err (*conn_new)(struct loop *loop, uint32_t slots, const struct nvmf_host_ops *ops,
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

    /* Ends it: closed() comes. Idempotent; harmless on a closed one. */
    void (*close)(struct nvmf_conn *conn, icms_err why);

    /* Bytes received and sent since connect, also after closed(): a peer that lives sends some. */
    void (*bytes)(const struct nvmf_conn *conn, uint64_t *out_received, uint64_t *out_sent);
};

extern const struct nvmf_host_transport nvmf_host_tcp;

#endif
