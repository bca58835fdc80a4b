/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stress of PDU framing: many seeds of two simulated machines, one sending a long row of PDUs, the
 * other an owner that is busy, pauses, drops, and takes memory back, over a network that delays and
 * resets.
 *
 *   pdu_stress SEEDS [FIRST_SEED]
 *
 * For every seed: what arrives is a prefix of what was sent, in order; payloads that were not taken
 * back are the bytes sent; nothing writes memory that was taken back; every tx, redirect and
 * closed() comes exactly once. Without a reset all of it arrives. A failure prints its seed.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "loop/sim.h"
#include "nvmf/pdu.h"

#define PDUS       120u
#define DATA_MAX   200000u
#define MEMORY     4 /* places for payload                              */
#define TXS        8 /* in flight                                       */
#define PORT       4420
#define STEPS_MAX  20000000u
#define TAKEN_BYTE 0x55

struct place {
    uint8_t bytes[DATA_MAX];
    bool receiving; /* given in header(), pdu() has not come            */
    bool taking;    /* redirect asked, done has not come                */
    bool taken;     /* redirect done: nothing may write it              */
    uint32_t cid;   /* of the PDU                                       */
};

struct stress {
    uint64_t seed;
    uint64_t random; /* state                                              */
    struct sim *sim;
    struct loop *loop[2]; /* 0 sends (controller), 1 receives (host)            */
    struct net_listener listener;
    struct net_dial dial;
    struct nvmf_pdu_conn conn[2]; /* likewise                                           */
    bool opened[2];               /* likewise                                           */
    unsigned closed[2];           /* calls                                              */
    struct nvmf_pdu_tx tx[TXS];
    bool tx_busy[TXS];
    uint8_t out[TXS][DATA_MAX];
    uint32_t next_out; /* PDU to send                                        */
    uint32_t next_in;  /* PDU that must come next                            */
    struct place place[MEMORY];
    struct place *current;   /* payload goes there; NULL: dropped                  */
    struct loop_timer timer; /* of the receiver: resumes, takes back               */
    unsigned redirects;
};

static uint64_t stress_random(struct stress *stress)
{
    stress->random += 0x9e3779b97f4a7c15u;
    return hash64_mix(stress->random);
}

/* Sizes follow from the seed, so both sides know them. */
static uint32_t pdu_size(const struct stress *stress, uint32_t cid)
{
    uint64_t random = hash64_mix(stress->seed ^ hash64_mix(cid));
    uint32_t limits[] = {8, 300, 5000, DATA_MAX};

    return 1 + (uint32_t)((random >> 8) % limits[random & 3]);
}

static uint8_t pdu_byte(const struct stress *stress, uint32_t cid, uint32_t i)
{
    return (uint8_t)(hash64_mix(stress->seed + cid + (i >> 3)) >> (i % 8 * 8));
}

/* ---- the sender ------------------------------------------------------------------------------ */

static void sender_fill(struct stress *stress);

static void sender_done(struct nvmf_pdu_tx *tx, icms_err err)
{
    struct stress *stress = tx->owner;
    size_t slot = (size_t)(tx - stress->tx);

    check(stress->tx_busy[slot] && stress->closed[0] == 0);
    stress->tx_busy[slot] = false;
    if (err == ICMS_OK && stress->conn[0].rules.connected)
        sender_fill(stress);
}

static void sender_fill(struct stress *stress)
{
    for (int slot = 0; slot < TXS && stress->next_out < PDUS; slot++) {
        struct nvmf_pdu_tx *tx = &stress->tx[slot];
        uint32_t cid = stress->next_out, bytes = pdu_size(stress, cid), cut;

        if (stress->tx_busy[slot])
            continue;
        for (uint32_t i = 0; i < bytes; i++)
            stress->out[slot][i] = pdu_byte(stress, cid, i);
        cut = (uint32_t)(stress_random(stress) % (bytes + 1));
        memset(tx, 0, sizeof(*tx));
        nvme_tcp_data_encode(&tx->pdu, NVME_TCP_C2H_DATA, 0, (uint16_t)cid, 0, 0, bytes);
        tx->data[0] = (struct iovec){stress->out[slot], cut};
        tx->data[1] = (struct iovec){stress->out[slot] + cut, bytes - cut};
        tx->owner = stress;
        tx->done = sender_done;
        stress->tx_busy[slot] = true;
        stress->next_out++;
        nvmf_pdu_send(&stress->conn[0], tx);
    }
}

static icms_err sender_header(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                              uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    check(false);
    return ICMS_INVALID;
}

static void sender_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                       uint32_t data_bytes, icms_err status)
{
    struct stress *stress = container_of(conn, struct stress, conn[0]);
    struct nvmf_pdu_tx *tx = &stress->tx[0];

    check(pdu->common.type == NVME_TCP_IC_REQ);
    tx->owner = stress;
    tx->done = sender_done;
    nvme_tcp_ic_resp_encode(&tx->pdu, 0, pdu->ic.digests, 4096);
    nvmf_pdu_digests_set(conn, pdu->ic.digests, pdu->ic.pda);
    stress->tx_busy[0] = true;
    nvmf_pdu_send(conn, tx);
    sender_fill(stress);
}

static void sender_closed(struct nvmf_pdu_conn *conn, icms_err why)
{
    struct stress *stress = container_of(conn, struct stress, conn[0]);

    for (int slot = 0; slot < TXS; slot++)
        check(!stress->tx_busy[slot]);
    stress->closed[0]++;
}

/* ---- the receiver ---------------------------------------------------------------------------- */

static void place_untouched(const struct place *place)
{
    if (place->taken)
        for (uint32_t i = 0; i < DATA_MAX; i++)
            check(place->bytes[i] == TAKEN_BYTE);
}

static void receiver_redirected(struct nvmf_pdu_conn *conn, void *arg)
{
    struct place *place = arg;

    check(place->taking);
    place->taking = false;
    place->taken = true;
    memset(place->bytes, TAKEN_BYTE, DATA_MAX);
}

static void receiver_later(struct stress *stress)
{
    uint64_t within_ns = stress_random(stress) % 4 == 0 ? 2000000 : 100000;

    loop_timer_start(stress->loop[1], &stress->timer,
                     loop_now_ns(stress->loop[1]) + stress_random(stress) % within_ns);
}

static void receiver_timer(struct loop_timer *timer)
{
    struct stress *stress = container_of(timer, struct stress, timer);
    struct place *place = stress->current;

    nvmf_pdu_recv_resume(&stress->conn[1]);
    if (place == NULL || place->taking || place->taken || stress_random(stress) % 2 == 0)
        return;
    if (nvmf_pdu_recv_redirect(&stress->conn[1], place->bytes, receiver_redirected, place) ==
        ICMS_OK) {
        place->taking = true;
        stress->redirects++;
    } else {
        check(!place->receiving || stress->conn[1].state == NVMF_PDU_CLOSING ||
              stress->closed[1] > 0);
    }
}

static icms_err receiver_header(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                                uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct stress *stress = container_of(conn, struct stress, conn[1]);
    struct place *place = &stress->place[stress->next_in % MEMORY];
    uint32_t cut;

    check(le16_get(pdu->data.cid) == stress->next_in);
    check(data_bytes == pdu_size(stress, stress->next_in));
    check(stress->current == NULL);
    if (stress_random(stress) % 4 == 0) {
        receiver_later(stress);
        return ICMS_BUSY;
    }
    if (stress_random(stress) % 8 == 0)
        return ICMS_OK;
    place_untouched(place);
    check(!place->receiving && !place->taking);
    place->taken = false;
    place->receiving = true;
    place->cid = stress->next_in;
    stress->current = place;
    cut = data_bytes == 1 ? 1 : 1 + (uint32_t)(stress_random(stress) % data_bytes);
    out_data[0] = (struct iovec){place->bytes, cut};
    out_data[1] = (struct iovec){place->bytes + cut, data_bytes - cut};
    if (stress_random(stress) % 3 == 0)
        receiver_later(stress);
    return ICMS_OK;
}

static void receiver_data(struct stress *stress, uint32_t data_bytes, icms_err status)
{
    struct place *place = stress->current;

    check(stress->next_in < PDUS);
    if (place != NULL) {
        check(place->receiving && !place->taking && place->taken == (status == ICMS_CANCELED));
        check(place->cid == stress->next_in);
        for (uint32_t i = 0; !place->taken && i < data_bytes; i++)
            check(place->bytes[i] == pdu_byte(stress, place->cid, i));
        place_untouched(place);
        place->receiving = false;
    }
    stress->current = NULL;
    stress->next_in++;
    if (stress_random(stress) % 10 == 0) {
        nvmf_pdu_recv_pause(&stress->conn[1]);
        receiver_later(stress);
    }
}

static void receiver_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                         uint32_t data_bytes, icms_err status)
{
    struct stress *stress = container_of(conn, struct stress, conn[1]);

    check(status == ICMS_OK || status == ICMS_CANCELED);
    if (pdu->common.type == NVME_TCP_IC_RESP)
        nvmf_pdu_digests_set(conn, pdu->ic.digests, pdu->ic.pda);
    else
        receiver_data(stress, data_bytes, status);
}

static void receiver_closed(struct nvmf_pdu_conn *conn, icms_err why)
{
    struct stress *stress = container_of(conn, struct stress, conn[1]);

    for (int i = 0; i < MEMORY; i++) {
        check(!stress->place[i].taking);
        place_untouched(&stress->place[i]);
    }
    stress->closed[1]++;
}

/* ---- both ----------------------------------------------------------------------------------- */

static const struct nvmf_pdu_ops sender_ops = {sender_header, sender_pdu, sender_closed};
static const struct nvmf_pdu_ops receiver_ops = {receiver_header, receiver_pdu, receiver_closed};

static void stress_open(struct stress *stress, int side, struct loop_sock *sock)
{
    struct nvmf_pdu_opts opts = {.ops = side == 0 ? &sender_ops : &receiver_ops,
                                 .role = side == 0 ? NVME_TCP_CONTROLLER : NVME_TCP_HOST,
                                 .capsule_data_max = 8192,
                                 .data_max = DATA_MAX};

    nvmf_pdu_open(&stress->conn[side], stress->loop[side], sock, &opts);
    stress->opened[side] = true;
}

static void stress_accepted(struct net_listener *listener, struct loop_sock *sock)
{
    stress_open(listener->arg, 0, sock);
}

static struct nvmf_pdu_tx ic_tx;

static void stress_dialed(struct net_dial *dial, icms_err err, struct loop_sock *sock)
{
    struct stress *stress = container_of(dial, struct stress, dial);

    if (err != ICMS_OK)
        return;
    stress_open(stress, 1, sock);
    memset(&ic_tx, 0, sizeof(ic_tx));
    nvme_tcp_ic_req_encode(&ic_tx.pdu, (uint8_t)(stress->seed % 4),
                           (uint8_t)(stress->seed >> 2 & 3), 1);
    stress->conn[1].rules.pda = (uint8_t)(stress->seed % 4);
    nvmf_pdu_send(&stress->conn[1], &ic_tx);
}

static bool stress_over(const struct stress *stress)
{
    if (stress->next_in == PDUS)
        return true;
    return (stress->opened[0] || stress->opened[1]) &&
           (!stress->opened[0] || stress->closed[0] > 0) &&
           (!stress->opened[1] || stress->closed[1] > 0);
}

static struct stress *dumped;

static void stress_dump(void *arg)
{
    (void)fprintf(stderr, "pdu_stress: seed %" PRIu64 " failed\n", dumped->seed);
}

static void stress_start(struct stress *stress, bool faults)
{
    struct loop_addr addr = {.host = "10.1.0.1", .port = PORT};
    struct loop_opts loop_opts;
    struct sim_opts opts;

    sim_opts_init(&opts, stress->seed);
    opts.conn_reset_ppm = faults ? 3000 : 0;
    opts.delay_spike_ppm = 10000;
    stress->sim = sim_new(&opts);
    loop_opts_init(&loop_opts);
    for (int side = 0; side < 2; side++) {
        struct sim_node *node = sim_node_new(stress->sim, side == 0 ? "10.1.0.1" : "10.1.0.2");

        check(loop_new(sim_node_env(node), &loop_opts, NULL, &stress->loop[side]) == ICMS_OK);
    }
    loop_timer_init(&stress->timer, receiver_timer);
    check(net_listener_open(&stress->listener, stress->loop[0], &addr, 1, stress_accepted, stress,
                            NULL) == ICMS_OK);
    net_dial_start(&stress->dial, stress->loop[1], &addr, UINT64_MAX / 2, stress_dialed);
    for (int side = 0; side < 2; side++)
        check(loop_start(stress->loop[side], NULL) == ICMS_OK);
}

/* Returns the PDUs that arrived. */
static uint32_t stress_run(uint64_t seed, bool faults, unsigned *out_redirects)
{
    struct stress *stress = calloc(1, sizeof(*stress));
    uint32_t arrived;

    check(stress != NULL);
    dumped = stress;
    stress->seed = stress->random = seed;
    stress_start(stress, faults);
    for (uint32_t i = 0; !stress_over(stress); i++) {
        check(i < STEPS_MAX);
        if (!sim_step(stress->sim))
            break;
    }
    arrived = stress->next_in;
    *out_redirects += stress->redirects;
    check(faults || arrived == PDUS);
    (void)sim_run(stress->sim, sim_now_ns(stress->sim) + 1000000000);
    for (int side = 0; side < 2; side++)
        check(stress->closed[side] <= 1);
    for (int side = 0; side < 2; side++) {
        loop_stop(stress->loop[side]);
        loop_join(stress->loop[side]);
        loop_free(&stress->loop[side]);
        nvmf_pdu_fini(&stress->conn[side]);
    }
    net_listener_fini(&stress->listener);
    sim_free(&stress->sim);
    free(stress);
    return arrived;
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : 10;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint32_t whole = 0, cut = 0;
    unsigned redirects = 0;

    check_dump(stress_dump, NULL);
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        bool faults = seed % 2 == 0;

        if (stress_run(seed, faults, &redirects) == PDUS)
            whole++;
        else
            cut++;
    }
    (void)printf("%" PRIu64 " seeds: %u whole, %u cut by resets, %u redirects\n", seeds, whole, cut,
                 redirects);
    check(redirects > 0 && (seeds < 10 || cut > 0));
    return 0;
}
