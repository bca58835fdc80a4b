/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/target/test_peer.h: an NVMe/TCP host for tests, PDU by PDU, polite or not. It blocks: over
 * the simulation it lets virtual time pass, over a socket it waits.
 *
 * Test code only. One thread.
 */
#ifndef NVMF_TARGET_TEST_PEER_H
#define NVMF_TARGET_TEST_PEER_H

#include "loop/sim.h"
#include "wire/nvme_fabrics.h"
#include "wire/nvme_identify.h"
#include "wire/nvme_kv.h"
#include "wire/nvme_log.h"
#include "wire/nvme_tcp.h"

struct peer;

/* How bytes travel. */
struct peer_wire {
    /* False: the connection is over. */
    bool (*send)(struct peer *peer, const void *data, size_t bytes);
    /* Bytes received, at least 1; 0: the connection is over; -1: nothing came in time. */
    long (*recv)(struct peer *peer, void *memory, size_t bytes, uint32_t timeout_ms);
    void (*close)(struct peer *peer);
};

#define PEER_BUFFER_BYTES ((uint32_t)64 << 10)

struct peer {
    const struct peer_wire *wire;
    void *own;                    /* the wire's                                         */
    uint32_t timeout_ms;          /* of every receive                                   */
    uint8_t digests;              /* in force: NVME_TCP_FLAG_*                          */
    uint32_t h2c_max;             /* of ICResp                                          */
    uint32_t capsule_max;         /* largest data sent in a capsule; 0: none            */
    uint16_t cid;                 /* of the next command                                */
    uint16_t cntlid;              /* of the controller joined                           */
    char host[LIMIT_NQN_BYTES];   /* who we are                                      */
    char subsys[LIMIT_NQN_BYTES]; /* whom we connect to                              */
    uint32_t kato_ms;             /* in Connect                                         */
    uint16_t entries;             /* in Connect                                         */
    uint8_t attributes;           /* in Connect: NVME_CATTR_*                           */
    uint32_t r2ts, data_pdus;     /* seen since the peer was made                       */
    uint8_t buffer[PEER_BUFFER_BYTES];
    uint32_t buffer_at, buffer_end;
};

/* A peer on a loop of a simulated node, connected; NULL: refused. */
struct peer *peer_new_sim(struct sim *sim, struct sim_node *node, const struct loop_addr *addr);

/* A peer on a socket of this machine, connected; NULL: refused. */
struct peer *peer_new_socket(const struct loop_addr *addr);

/* Closes and frees. */
void peer_free(struct peer **peer);

/* Lets time pass without receiving. */
void peer_sleep(struct peer *peer, uint32_t ms);

/* ---- bytes and PDUs ------------------------------------------------------------------------- */

bool peer_send_bytes(struct peer *peer, const void *data, size_t bytes);

/* Frames, digests, sends. */
bool peer_send_pdu(struct peer *peer, union nvme_tcp_pdu *pdu, const void *data, uint32_t bytes);

enum peer_got {
    PEER_PDU,     /* a PDU                       */
    PEER_CLOSED,  /* the connection is over      */
    PEER_SILENCE, /* nothing came in time        */
    PEER_BROKEN,  /* what came was no valid PDU  */
};

/* Receives one PDU; its data goes to data (room bytes; more is PEER_BROKEN). */
enum peer_got peer_recv_pdu(struct peer *peer, union nvme_tcp_pdu *out_pdu, void *data,
                            uint32_t room, uint32_t *out_bytes);

/* ---- conversations -------------------------------------------------------------------------- */

/* ICReq and ICResp. */
bool peer_hello(struct peer *peer, uint8_t digests);

/* Connect to queue qid; false with the status in *out_cqe when refused, or 0xffff when the
 * connection ended. */
bool peer_connect(struct peer *peer, uint16_t qid, struct nvme_cqe *out_cqe);

/* Sets CC.EN; the status, or 0xffff when there is no answer. */
uint16_t peer_enable(struct peer *peer);

/* The next thing that comes is the end of the connection. */
bool peer_closed(struct peer *peer);

/* hello, Connect to the admin queue, enable the controller. */
bool peer_admin(struct peer *peer, uint8_t digests);

/* hello, Connect to I/O queue qid of the controller that admin joined. */
bool peer_io(struct peer *peer, const struct peer *admin, uint16_t qid, uint8_t digests);

/* One command, with its data out (sent in the capsule if it fits, else after R2T) and in. The
 * entry's cid and sgl are set here. *io_in_bytes: room, then what came. False: no answer. */
bool peer_command(struct peer *peer, struct nvme_sqe_wf *sqe, const void *out, uint32_t out_bytes,
                  void *in, uint32_t *io_in_bytes, struct nvme_cqe *out_cqe);

/* A command without data. */
bool peer_plain(struct peer *peer, struct nvme_sqe_wf *sqe, struct nvme_cqe *out_cqe);

/* Only sends the capsule of a command, its data to come by R2T; returns its cid. */
uint16_t peer_submit(struct peer *peer, struct nvme_sqe_wf *sqe, uint32_t data_bytes);

/* Receives until the completion of cid; R2Ts meanwhile are answered from out. */
bool peer_complete(struct peer *peer, uint16_t cid, const void *out, uint32_t out_bytes, void *in,
                   uint32_t *io_in_bytes, struct nvme_cqe *out_cqe);

/* KV commands; the status (SCT << 8 | SC), 0xffff when there was no answer. */
uint16_t peer_store(struct peer *peer, uint32_t nsid, const char *key, const void *value,
                    uint32_t bytes, uint8_t options, struct nvme_cqe *out_cqe);
uint16_t peer_retrieve(struct peer *peer, uint32_t nsid, const char *key, void *value,
                       uint32_t *io_bytes, struct nvme_cqe *out_cqe);
uint16_t peer_exist(struct peer *peer, uint32_t nsid, const char *key, struct nvme_cqe *out_cqe);
uint16_t peer_delete(struct peer *peer, uint32_t nsid, const char *key, struct nvme_cqe *out_cqe);

/* The key that a text stands for. */
struct key peer_key(const char *text);

#endif
