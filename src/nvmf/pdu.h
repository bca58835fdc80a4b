/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/pdu.h: one NVMe/TCP connection of either side: whole, checked PDUs in and out.
 *
 * It frames PDUs, checks header digests, makes and verifies data digests, ends connections that
 * break the protocol with a TermReq of the right status, and puts payload straight where the owner
 * says. It knows nothing of commands.
 *
 * Owners (nvmf/target, nvmf/host) embed struct nvmf_pdu_conn and struct nvmf_pdu_tx; all calls and
 * callbacks are on the connection's loop. Callbacks never run inside a call to this module, but
 * inside a callback every call is allowed, nvmf_pdu_close included. Fields are private unless their
 * comment says otherwise.
 *
 * Order of callbacks for a PDU: header() when it has data, then pdu(). For a connection: closed()
 * last, once for each nvmf_pdu_open, when nothing is in flight and every tx and redirect is done.
 */
#ifndef NVMF_PDU_H
#define NVMF_PDU_H

#include "net/net.h"
#include "wire/nvme_tcp.h"

/* Receive buffer of a connection: 56 command capsules. It holds headers and small payloads; of a
 * large payload only what arrived together with its header is copied out of it. */
#define NVMF_PDU_BUFFER_BYTES 4096

/* A payload goes to, or comes from, this many pieces of memory (value, trailer). */
#define NVMF_PDU_VECTORS 2

/* How long a TermReq may take, with the peer's close, before the connection is cut. */
#define NVMF_PDU_TERM_NS ((uint64_t)500 * 1000 * 1000)

struct nvmf_pdu_conn;

struct nvmf_pdu_ops {
    /* A PDU with data: its header is valid for its type, direction and the sizes agreed on. The
     * owner writes into out_data where the data_bytes go; the two lengths must add up to
     * data_bytes. Left as it came (all zero): the data is received and dropped. Returns ICMS_OK
     * receive it; the memory is ours until pdu() or a redirect; ICMS_BUSY  no memory now: the
     * connection stops reading until nvmf_pdu_recv_resume, then header() is asked again; else
     * TermReq with NVME_TCP_FES_HEADER, unless the owner called nvmf_pdu_term. */
    icms_err (*header)(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                       uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS]);

    /* The whole PDU is there. data_status: ICMS_OK; CORRUPT: the data digest does not match, which
     * is the command's failure and not the connection's; CANCELED: the data was redirected. TermReq
     * PDUs never come here: they close the connection with PROTOCOL. pdu is valid only inside the
     * call; data_bytes as in header(). */
    void (*pdu)(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu, uint32_t data_bytes,
                icms_err data_status);

    /* Nothing is in flight, every tx was given back; the struct may be reused. why: PROTOCOL
     * (either side broke it), DEADLINE (timeouts), RESET (the peer left), or what nvmf_pdu_close
     * was given. */
    void (*closed)(struct nvmf_pdu_conn *conn, icms_err why);
};

struct nvmf_pdu_opts {
    const struct nvmf_pdu_ops *ops; /* the owner's                                               */
    enum nvme_tcp_role role;        /* which side we are                                         */
    uint32_t capsule_data_max;      /* controller: largest in-capsule data that is accepted      */
    uint32_t data_max;              /* largest data of one H2CData or C2HData that is accepted   */
    uint64_t pdu_timeout_ns;        /* a started PDU must be whole within this; 0: no limit      */
    uint64_t send_timeout_ns;       /* no progress of a send for this long closes; 0: no limit   */
    struct net_tls_side *tls;       /* as in net_conn_opts                                       */
};

/* A PDU to send. Embedded by the owner, who fills the first four fields and keeps all of it, and
 * the data, unchanged until done. */
struct nvmf_pdu_tx {
    union nvme_tcp_pdu pdu;              /* by nvme_tcp_*_encode; digest and lengths are added    */
    struct iovec data[NVMF_PDU_VECTORS]; /* payload; unused ones have length 0                    */
    void (*done)(struct nvmf_pdu_tx *tx, icms_err err); /* the kernel has all of it; may be NULL  */
    void *owner;                /* the owner's                                          */
    struct nvmf_pdu_conn *conn; /* private                                              */
    struct net_send send;       /* private                                              */
    le32 ddgst;                 /* private: behind the data                             */
};

enum nvmf_pdu_state {
    NVMF_PDU_CLOSED,  /* holds nothing                                                          */
    NVMF_PDU_HEADER,  /* waits for the rest of a header; woken by recv_done                     */
    NVMF_PDU_PARKED,  /* paused, or header() answered BUSY; woken by nvmf_pdu_recv_resume       */
    NVMF_PDU_DATA,    /* waits for payload; woken by recv_done                                  */
    NVMF_PDU_DIGEST,  /* waits for the data digest; woken by recv_done                          */
    NVMF_PDU_TERM,    /* TermReq queued; reads and drops until the peer leaves or a timer fires */
    NVMF_PDU_CLOSING, /* waits for net_conn's closed()                                          */
};

struct nvmf_pdu_stats {
    uint64_t pdus_in;      /* whole PDUs received                     */
    uint64_t ddgst_errors; /* data digests that did not match         */
    uint64_t hdgst_errors; /* header digests that did not match       */
    uint64_t term_in;      /* TermReqs received                       */
    uint64_t term_out;     /* TermReqs sent                           */
};

struct nvmf_pdu_conn {
    enum nvmf_pdu_state state;
    struct net_conn net;            /* the byte stream                                          */
    struct loop *loop;              /* where it runs                                            */
    const struct nvmf_pdu_ops *ops; /* owner's                                                  */
    void *owner;                    /* owner's: not touched here                                */
    struct nvmf_pdu_stats stats;    /* owner may read                                           */
    struct nvme_tcp_rules rules;    /* what is accepted now                                     */
    uint8_t peer_pda;               /* alignment of data that we send                           */
    uint64_t pdu_timeout_ns;        /* 0: none                                                  */
    struct loop_timer timer;        /* of the started PDU, or of the TermReq                    */
    struct loop_msg msg;            /* runs the machine after a resume or redirect              */
    bool msg_sent;                  /* msg is on its way                                        */
    bool running;                   /* inside pdu_run: calls only leave marks                   */
    bool paused;                    /* owner asked to stop before the next PDU                  */
    bool net_closed;                /* net is closed, msg is awaited                            */
    icms_err why;                   /* of the close, when we or the owner began it              */
    /* the PDU that is being received */
    union nvme_tcp_pdu pdu;              /* its header                                          */
    uint32_t pdu_bytes;                  /* of it that arrived                                  */
    bool framed;                         /* frame is valid                                      */
    struct nvme_tcp_frame frame;         /* where everything is                                 */
    struct iovec data[NVMF_PDU_VECTORS]; /* where the payload goes; NULL: dropped               */
    uint32_t data_done;                  /* payload bytes that arrived                          */
    uint32_t data_crc;                   /* over them                                           */
    icms_err data_status;                /* CANCELED after a redirect                           */
    le32 ddgst;                          /* as received                                         */
    uint32_t ddgst_bytes;                /* of it that arrived                                  */
    uint8_t *recv_direct; /* owner's memory that the receive in flight writes; NULL: buffer     */
    const void *redirect_data;                                    /* what is given up           */
    void (*redirect_done)(struct nvmf_pdu_conn *conn, void *arg); /* owner's; NULL: none        */
    void *redirect_arg;                                           /* owner's                    */
    /* small receive buffer: [buffer_at, buffer_end) is not parsed yet */
    uint32_t buffer_at;
    uint32_t buffer_end;
    uint8_t buffer[NVMF_PDU_BUFFER_BYTES];
    /* our TermReq */
    struct nvmf_pdu_tx term;                   /* in use in state TERM                          */
    uint8_t term_data[NVME_TCP_TERM_DATA_MAX]; /* the bad header                                */
    struct list refused;                       /* txs queued behind the TermReq: never sent     */
};

/* Takes the socket and starts to receive. The peer's ICReq (controller) or ICResp (host) is the
 * first pdu(); until then no other PDU is accepted. The struct must be closed or zeroed. */
void nvmf_pdu_open(struct nvmf_pdu_conn *conn, struct loop *loop, struct loop_sock *sock,
                   const struct nvmf_pdu_opts *opts);

/* What ICReq and ICResp agreed on, from the next PDU on, both ways: NVME_TCP_FLAG_HDGST and _DDGST,
 * and the alignment (HPDA, CPDA) that the peer asked for. Call it inside pdu() of the IC PDU; a
 * controller sends its ICResp before or after, IC PDUs have no digests. */
void nvmf_pdu_digests_set(struct nvmf_pdu_conn *conn, uint8_t digests, uint8_t peer_pda);

/* Queues a PDU behind those queued before; tx->done comes exactly once, later. On a connection that
 * closes it comes with the connection's error. */
void nvmf_pdu_send(struct nvmf_pdu_conn *conn, struct nvmf_pdu_tx *tx);

/* Nothing shall be written to the memory named data (vector 0 of header()) any more. Returns
 * ICMS_OK: done is called exactly once, later, before closed(), when nothing writes into it; the
 * rest of the payload is dropped, and pdu() of it has CANCELED. NOT_FOUND: no payload goes there
 * now, nothing writes into it, done is never called. */
icms_err nvmf_pdu_recv_redirect(struct nvmf_pdu_conn *conn, const void *data,
                                void (*done)(struct nvmf_pdu_conn *conn, void *arg),
                                void *arg) ICMS_MUST_CHECK;

/* Stops reading before the next PDU (the current one is finished); the kernel's buffers and the
 * peer wait. Both idempotent. */
void nvmf_pdu_recv_pause(struct nvmf_pdu_conn *conn);
void nvmf_pdu_recv_resume(struct nvmf_pdu_conn *conn);

/* The peer broke the protocol: sends a TermReq with the header of the current PDU, behind what is
 * queued, and closes with PROTOCOL. */
void nvmf_pdu_term(struct nvmf_pdu_conn *conn, enum nvme_tcp_fes fes, uint32_t fei);

/* Closes at once; what is queued is given back with why. Idempotent. Harmless on a closed one. */
void nvmf_pdu_close(struct nvmf_pdu_conn *conn, icms_err why);

/* After the loop was freed (no callback comes any more): closes the socket, calls nothing. */
void nvmf_pdu_fini(struct nvmf_pdu_conn *conn);

#endif
