/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of PDU framing: a stream of bytes from a hostile peer, through the simulated network.
 *
 * Byte 0: role, digests, what the owner does. Byte 1: seed of the network (sizes of pieces,
 * delays). The rest is what the peer sends behind its IC PDU, then it leaves. Whatever it was, the
 * connection must be closed once, everything be given back, and no memory be written after a
 * redirect.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "loop/sim.h"
#include "nvmf/pdu.h"

#define DATA_MAX    65536u
#define CAPSULE_MAX 8192u
#define OWNER_BUSY  0x10 /* header() answers BUSY first                 */
#define OWNER_TAKES 0x20 /* redirects soon after header()               */
#define OWNER_SENDS 0x40 /* answers each PDU                            */
#define OWNER_DROPS 0x80 /* payload goes nowhere                        */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct fuzz {
    struct loop *loop;            /* the only one                                        */
    uint8_t how;                  /* byte 0                                              */
    struct net_listener listener; /* of the tested side                                  */
    struct net_dial dial;         /* of the peer                                         */
    struct nvmf_pdu_conn conn;    /* tested                                              */
    struct net_conn peer;         /* hostile                                             */
    struct net_send send;         /* all its bytes                                       */
    const uint8_t *bytes;         /* to send                                             */
    size_t count;                 /* of them                                             */
    union nvme_tcp_pdu ic;        /* sent first                                          */
    uint8_t sink[4096];           /* what the peer gets                                  */
    uint8_t memory[DATA_MAX];     /* for payload                                         */
    struct nvmf_pdu_tx tx;        /* of the tested side                                  */
    bool tx_busy;                 /* in flight                                           */
    bool owned;                   /* header() gave memory away                           */
    bool taken;                   /* redirect asked, not done                            */
    bool poisoned;                /* redirect done, memory is 0x55                       */
    bool was_busy;                /* header() answered BUSY for this PDU                 */
    struct loop_timer timer;      /* resumes, takes back                                 */
    struct loop_timer leave;      /* the end of the peer                                 */
    unsigned closed;              /* calls                                               */
};

static void fuzz_tx_done(struct nvmf_pdu_tx *tx, icms_err err)
{
    struct fuzz *fuzz = tx->owner;

    check(fuzz->tx_busy);
    fuzz->tx_busy = false;
}

static void fuzz_poisoned(struct fuzz *fuzz)
{
    if (!fuzz->poisoned)
        return;
    for (uint32_t i = 0; i < DATA_MAX; i++)
        check(fuzz->memory[i] == 0x55);
}

static void fuzz_redirected(struct nvmf_pdu_conn *conn, void *arg)
{
    struct fuzz *fuzz = arg;

    check(fuzz->taken);
    fuzz->taken = false;
    fuzz->poisoned = true;
    memset(fuzz->memory, 0x55, DATA_MAX);
}

static void fuzz_timer(struct loop_timer *timer)
{
    struct fuzz *fuzz = container_of(timer, struct fuzz, timer);

    nvmf_pdu_recv_resume(&fuzz->conn);
    if (fuzz->owned && !fuzz->taken && !fuzz->poisoned && (fuzz->how & OWNER_TAKES) &&
        nvmf_pdu_recv_redirect(&fuzz->conn, fuzz->memory, fuzz_redirected, fuzz) == ICMS_OK)
        fuzz->taken = true;
}

static icms_err fuzz_header(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                            uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct fuzz *fuzz = container_of(conn, struct fuzz, conn);

    check(data_bytes > 0 && data_bytes <= DATA_MAX && !fuzz->owned);
    loop_timer_start(fuzz->loop, &fuzz->timer, loop_now_ns(fuzz->loop) + 100000);
    if ((fuzz->how & OWNER_BUSY) && !fuzz->was_busy) {
        fuzz->was_busy = true;
        return ICMS_BUSY;
    }
    fuzz->was_busy = false;
    fuzz_poisoned(fuzz);
    fuzz->poisoned = false;
    if (fuzz->how & OWNER_DROPS)
        return ICMS_OK;
    fuzz->owned = true;
    out_data[0] = (struct iovec){fuzz->memory, data_bytes - data_bytes / 3};
    out_data[1] = (struct iovec){fuzz->memory + data_bytes - data_bytes / 3, data_bytes / 3};
    return ICMS_OK;
}

static void fuzz_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu, uint32_t data_bytes,
                     icms_err status)
{
    struct fuzz *fuzz = container_of(conn, struct fuzz, conn);
    struct nvme_cqe cqe = {0};
    struct nvme_sqe_wf sqe = {0};

    check(fuzz->closed == 0 && !fuzz->taken);
    check(status == ICMS_OK || status == ICMS_CORRUPT || status == ICMS_CANCELED);
    check(pdu->common.type != NVME_TCP_H2C_TERM && pdu->common.type != NVME_TCP_C2H_TERM);
    if (pdu->common.type == NVME_TCP_IC_REQ || pdu->common.type == NVME_TCP_IC_RESP)
        nvmf_pdu_digests_set(conn, pdu->ic.digests, pdu->ic.pda);
    fuzz_poisoned(fuzz);
    fuzz->owned = false;
    if (!(fuzz->how & OWNER_SENDS) || fuzz->tx_busy)
        return;
    fuzz->tx = (struct nvmf_pdu_tx){.owner = fuzz, .done = fuzz_tx_done};
    if (conn->rules.role == NVME_TCP_HOST)
        nvme_tcp_cmd_encode(&fuzz->tx.pdu, &sqe);
    else
        nvme_tcp_resp_encode(&fuzz->tx.pdu, &cqe);
    fuzz->tx_busy = true;
    nvmf_pdu_send(conn, &fuzz->tx);
}

static void fuzz_closed(struct nvmf_pdu_conn *conn, icms_err why)
{
    struct fuzz *fuzz = container_of(conn, struct fuzz, conn);

    check(why != ICMS_OK && !fuzz->tx_busy && !fuzz->taken);
    fuzz_poisoned(fuzz);
    fuzz->closed++;
}

static const struct nvmf_pdu_ops fuzz_ops = {fuzz_header, fuzz_pdu, fuzz_closed};

static void fuzz_accepted(struct net_listener *listener, struct loop_sock *sock)
{
    struct fuzz *fuzz = listener->arg;
    struct nvmf_pdu_opts opts = {.ops = &fuzz_ops,
                                 .role = fuzz->how & 1 ? NVME_TCP_HOST : NVME_TCP_CONTROLLER,
                                 .capsule_data_max = CAPSULE_MAX,
                                 .data_max = DATA_MAX,
                                 .pdu_timeout_ns = 1000000000,
                                 .send_timeout_ns = 1000000000};

    nvmf_pdu_open(&fuzz->conn, fuzz->loop, sock, &opts);
}

static void peer_sent(struct net_send *send, icms_err err)
{
}

static void peer_received(struct net_conn *conn, icms_err err, uint32_t bytes)
{
    struct fuzz *fuzz = container_of(conn, struct fuzz, peer);

    if (err == ICMS_OK)
        net_conn_recv(conn, fuzz->sink, sizeof(fuzz->sink), false);
}

static void peer_closed(struct net_conn *conn, icms_err why)
{
}

static const struct net_conn_ops peer_ops = {peer_received, peer_closed};

/* What was sent had its time. */
static void fuzz_leave(struct loop_timer *timer)
{
    net_conn_close(&container_of(timer, struct fuzz, leave)->peer, ICMS_CLOSED);
}

static void fuzz_dialed(struct net_dial *dial, icms_err err, struct loop_sock *sock)
{
    struct fuzz *fuzz = container_of(dial, struct fuzz, dial);
    struct net_conn_opts opts = {.ops = &peer_ops};
    uint8_t digests = fuzz->how >> 1 & 3;

    check(err == ICMS_OK);
    if (fuzz->how & 1)
        nvme_tcp_ic_resp_encode(&fuzz->ic, 0, digests, 4096);
    else
        nvme_tcp_ic_req_encode(&fuzz->ic, 0, digests, 1);
    (void)nvme_tcp_frame_encode(&fuzz->ic, 0, 0, 0);
    net_conn_open(&fuzz->peer, fuzz->loop, sock, &opts);
    net_conn_recv(&fuzz->peer, fuzz->sink, sizeof(fuzz->sink), false);
    fuzz->send = (struct net_send){.count = fuzz->count > 0 ? 2 : 1, .done = peer_sent};
    fuzz->send.vectors[0] = (struct iovec){fuzz->ic.bytes, sizeof(fuzz->ic)};
    fuzz->send.vectors[1] = (struct iovec){(void *)(uintptr_t)fuzz->bytes, fuzz->count};
    net_conn_send(&fuzz->peer, &fuzz->send);
    loop_timer_init(&fuzz->leave, fuzz_leave);
    loop_timer_start(fuzz->loop, &fuzz->leave, loop_now_ns(fuzz->loop) + 2000000000);
}

/* Everything happens inside: virtual time runs until both sides are quiet or timed out. */
static void fuzz_run(struct fuzz *fuzz, struct sim *sim)
{
    struct loop_addr addr = {.host = "10.1.0.1", .port = 4420};
    struct loop_opts opts;

    loop_opts_init(&opts);
    check(loop_new(sim_node_env(sim_node_new(sim, addr.host)), &opts, NULL, &fuzz->loop) ==
          ICMS_OK);
    loop_timer_init(&fuzz->timer, fuzz_timer);
    check(net_listener_open(&fuzz->listener, fuzz->loop, &addr, 1, fuzz_accepted, fuzz, NULL) ==
          ICMS_OK);
    net_dial_start(&fuzz->dial, fuzz->loop, &addr, UINT64_MAX / 2, fuzz_dialed);
    check(loop_start(fuzz->loop, NULL) == ICMS_OK);
    /* The peer falls silent, and leaves. */
    for (int i = 0; i < 1000000 && fuzz->closed == 0; i++)
        if (!sim_step(sim))
            break;
    check(fuzz->closed == 1);
    (void)sim_run(sim, sim_now_ns(sim) + 100000000);
    check(fuzz->closed == 1);
    loop_stop(fuzz->loop);
    loop_join(fuzz->loop);
    loop_free(&fuzz->loop);
    net_conn_fini(&fuzz->peer);
    net_listener_fini(&fuzz->listener);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct sim_opts opts;
    struct fuzz *fuzz;
    struct sim *sim;

    if (bytes < 2)
        return 0;
    fuzz = calloc(1, sizeof(*fuzz));
    check(fuzz != NULL);
    fuzz->how = data[0];
    fuzz->bytes = data + 2;
    fuzz->count = bytes - 2;
    sim_opts_init(&opts, data[1]);
    sim = sim_new(&opts);
    fuzz_run(fuzz, sim);
    sim_free(&sim);
    free(fuzz);
    return 0;
}
