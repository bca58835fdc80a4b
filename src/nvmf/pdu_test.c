/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of nvmf/pdu.h over both back ends: two of them talking to each other. One against raw
 * bytes is in pdu_raw_test.c.
 */
#include <stdlib.h>

#include "nvmf/pdu_rig.h"

#define COMMANDS 7

/* ---- two that talk -------------------------------------------------------------------------- */

struct duo {
    struct rig *rig;
    struct net_rig_pair pair;
    struct nvmf_pdu_conn host;
    struct nvmf_pdu_conn controller;
    uint8_t digests;                    /* that the host asks for                      */
    uint8_t hpda;                       /* likewise                                    */
    struct nvmf_pdu_tx tx[64];          /* used once each                              */
    uint32_t tx_used;                   /* of them                                     */
    uint32_t tx_done;                   /* given back                                  */
    uint32_t tx_failed;                 /* with an error                               */
    uint8_t out[2][COMMANDS][DATA_MAX]; /* payloads sent: by the host, the controller  */
    uint8_t in[2][DATA_MAX];            /* payload received                            */
    uint32_t busy_left;                 /* header() answers BUSY so often              */
    struct loop_timer timer;            /* resumes                                     */
    atomic_int responses;               /* that the host got                           */
    atomic_int closed;                  /* ends                                        */
};

static const uint32_t capsule_sizes[COMMANDS] = {0, 1, 3, 5, 511, 4096, 8192};
static const uint32_t data_sizes[COMMANDS] = {1, 3, 5, 511, 4097, 70000, DATA_MAX};

static void duo_tx_done(struct nvmf_pdu_tx *tx, icms_err err)
{
    struct duo *duo = tx->owner;

    duo->tx_done++;
    duo->tx_failed += err != ICMS_OK;
}

static struct nvmf_pdu_tx *duo_tx(struct duo *duo)
{
    struct nvmf_pdu_tx *tx = &duo->tx[duo->tx_used++];

    check(duo->tx_used <= 64);
    tx->owner = duo;
    tx->done = duo_tx_done;
    return tx;
}

/* In two pieces where it can be cut. */
static void duo_split(struct iovec vector[NVMF_PDU_VECTORS], uint8_t *memory, uint32_t bytes)
{
    uint32_t first = bytes > 64 ? bytes - 64 : bytes;

    vector[0] = (struct iovec){memory, first};
    vector[1] = (struct iovec){bytes > first ? memory + first : NULL, bytes - first};
}

static void duo_command(struct duo *duo, uint16_t cid)
{
    struct nvmf_pdu_tx *tx = duo_tx(duo);
    struct nvme_sqe_wf sqe = {.opcode = NVME_KV_STORE, .cid = le16_of(cid)};

    pdu_fill(duo->out[0][cid], cid, capsule_sizes[cid]);
    nvme_tcp_cmd_encode(&tx->pdu, &sqe);
    if (capsule_sizes[cid] > 0)
        duo_split(tx->data, duo->out[0][cid], capsule_sizes[cid]);
    nvmf_pdu_send(&duo->host, tx);
}

static icms_err host_header(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                            uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct duo *duo = container_of(conn, struct duo, host);

    check(pdu->common.type == NVME_TCP_C2H_DATA);
    memset(duo->in[0], 0, data_bytes);
    duo_split(out_data, duo->in[0], data_bytes);
    return ICMS_OK;
}

static void host_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu, uint32_t data_bytes,
                     icms_err status)
{
    struct duo *duo = container_of(conn, struct duo, host);

    check(status == ICMS_OK);
    switch (pdu->common.type) {
    case NVME_TCP_IC_RESP:
        check(pdu->ic.digests == duo->digests);
        nvmf_pdu_digests_set(conn, pdu->ic.digests, pdu->ic.pda);
        for (uint16_t cid = 0; cid < COMMANDS; cid++)
            duo_command(duo, cid);
        break;
    case NVME_TCP_C2H_DATA:
        check(data_bytes == data_sizes[le16_get(pdu->data.cid)]);
        check(pdu_is(duo->in[0], (uint16_t)(le16_get(pdu->data.cid) + 100), data_bytes));
        break;
    case NVME_TCP_CAPSULE_RESP:
        check(le16_get(pdu->resp.cqe.cid) == atomic_load(&duo->responses));
        atomic_fetch_add(&duo->responses, 1);
        break;
    default:
        check(false);
    }
}

static void host_closed(struct nvmf_pdu_conn *conn, icms_err why)
{
    atomic_fetch_add(&container_of(conn, struct duo, host)->closed, 1);
}

static void controller_resume(struct loop_timer *timer)
{
    struct duo *duo = container_of(timer, struct duo, timer);

    nvmf_pdu_recv_resume(&duo->controller);
}

static icms_err controller_header(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                                  uint32_t data_bytes, struct iovec out_data[NVMF_PDU_VECTORS])
{
    struct duo *duo = container_of(conn, struct duo, controller);

    check(pdu->common.type == NVME_TCP_CAPSULE_CMD);
    if (duo->busy_left > 0) {
        duo->busy_left--;
        loop_timer_start(conn->loop, &duo->timer, loop_now_ns(conn->loop) + NET_RIG_MS);
        return ICMS_BUSY;
    }
    memset(duo->in[1], 0, data_bytes);
    duo_split(out_data, duo->in[1], data_bytes);
    return ICMS_OK;
}

static void controller_answer(struct duo *duo, uint16_t cid)
{
    struct nvme_cqe cqe = {.cid = cid};
    struct nvmf_pdu_tx *tx = duo_tx(duo);

    pdu_fill(duo->out[1][cid], (uint16_t)(cid + 100), data_sizes[cid]);
    nvme_tcp_data_encode(&tx->pdu, NVME_TCP_C2H_DATA, NVME_TCP_FLAG_LAST, cid, 0, 0,
                         data_sizes[cid]);
    duo_split(tx->data, duo->out[1][cid], data_sizes[cid]);
    nvmf_pdu_send(&duo->controller, tx);
    tx = duo_tx(duo);
    nvme_tcp_resp_encode(&tx->pdu, &cqe);
    nvmf_pdu_send(&duo->controller, tx);
}

static void controller_pdu(struct nvmf_pdu_conn *conn, const union nvme_tcp_pdu *pdu,
                           uint32_t data_bytes, icms_err status)
{
    struct duo *duo = container_of(conn, struct duo, controller);
    struct nvmf_pdu_tx *tx;
    uint16_t cid;

    check(status == ICMS_OK);
    switch (pdu->common.type) {
    case NVME_TCP_IC_REQ:
        tx = duo_tx(duo);
        nvme_tcp_ic_resp_encode(&tx->pdu, 0, pdu->ic.digests, 131072);
        nvmf_pdu_digests_set(conn, pdu->ic.digests, pdu->ic.pda);
        nvmf_pdu_send(conn, tx);
        break;
    case NVME_TCP_CAPSULE_CMD:
        cid = le16_get(pdu->cmd.sqe.cid);
        check(data_bytes == capsule_sizes[cid]);
        check(pdu_is(duo->in[1], cid, data_bytes));
        controller_answer(duo, cid);
        break;
    default:
        check(false);
    }
}

static void controller_closed(struct nvmf_pdu_conn *conn, icms_err why)
{
    atomic_fetch_add(&container_of(conn, struct duo, controller)->closed, 1);
}

static const struct nvmf_pdu_ops host_ops = {host_header, host_pdu, host_closed};
static const struct nvmf_pdu_ops controller_ops = {controller_header, controller_pdu,
                                                   controller_closed};

static void duo_run(void *arg)
{
    struct duo *duo = arg;
    struct nvmf_pdu_opts opts = {.ops = &host_ops,
                                 .role = NVME_TCP_HOST,
                                 .data_max = DATA_MAX,
                                 .pdu_timeout_ns = (uint64_t)5000 * NET_RIG_MS};
    struct nvmf_pdu_tx *tx = duo_tx(duo);

    nvmf_pdu_open(&duo->host, duo->rig->loop[0], duo->pair.sock[0], &opts);
    /* What the receiver of data asked for. */
    duo->host.rules.pda = duo->hpda;
    opts.ops = &controller_ops;
    opts.role = NVME_TCP_CONTROLLER;
    opts.capsule_data_max = CAPSULE_MAX;
    nvmf_pdu_open(&duo->controller, duo->rig->loop[0], duo->pair.sock[1], &opts);
    nvme_tcp_ic_req_encode(&tx->pdu, duo->hpda, duo->digests, 1);
    nvmf_pdu_send(&duo->host, tx);
}

static void duo_close_run(void *arg)
{
    struct duo *duo = arg;

    nvmf_pdu_close(&duo->host, ICMS_CLOSED);
    nvmf_pdu_close(&duo->host, ICMS_CLOSED);
    nvmf_pdu_close(&duo->controller, ICMS_CLOSED);
}

static struct duo *duo_new(struct rig *rig)
{
    struct duo *duo = calloc(1, sizeof(*duo));

    check(duo != NULL);
    duo->rig = rig;
    loop_timer_init(&duo->timer, controller_resume);
    net_rig_start(rig);
    net_rig_pair(rig, &duo->pair);
    return duo;
}

static void duo_free(struct duo *duo)
{
    net_rig_call(duo->rig, duo_close_run, duo);
    net_rig_wait(duo->rig, &duo->closed, 2);
    assert_int_equal(duo->tx_done, duo->tx_used);
    net_rig_end(duo->rig);
    free(duo);
}

static void pdus_and_payloads_arrive_with_any_digests(void **state)
{
    for (uint8_t digests = 0; digests < 4; digests++) {
        struct duo *duo = duo_new(*state);

        duo->digests = digests;
        duo->hpda = digests == 3 ? 5 : 0;
        net_rig_call(duo->rig, duo_run, duo);
        net_rig_wait(duo->rig, &duo->responses, COMMANDS);
        assert_int_equal(duo->host.stats.pdus_in, 1 + 2 * COMMANDS);
        assert_int_equal(duo->controller.stats.pdus_in, 1 + COMMANDS);
        assert_int_equal(duo->tx_failed, 0);
        duo_free(duo);
    }
}

static void a_header_without_memory_waits_for_the_owner(void **state)
{
    struct duo *duo = duo_new(*state);

    duo->digests = 3;
    duo->busy_left = 10;
    net_rig_call(duo->rig, duo_run, duo);
    net_rig_wait(duo->rig, &duo->responses, COMMANDS);
    assert_int_equal(duo->busy_left, 0);
    duo_free(duo);
}

static void duo_pause_run(void *arg)
{
    struct duo *duo = arg;

    duo_run(duo);
    nvmf_pdu_recv_pause(&duo->controller);
    nvmf_pdu_recv_pause(&duo->controller);
}

static void duo_resume_run(void *arg)
{
    struct duo *duo = arg;

    nvmf_pdu_recv_resume(&duo->controller);
    nvmf_pdu_recv_resume(&duo->controller);
}

static void a_paused_connection_delivers_nothing_and_goes_on(void **state)
{
    struct duo *duo = duo_new(*state);

    net_rig_call(duo->rig, duo_pause_run, duo);
    duo->rig->idle(duo->rig);
    assert_int_equal(duo->controller.stats.pdus_in, 0);
    net_rig_call(duo->rig, duo_resume_run, duo);
    net_rig_wait(duo->rig, &duo->responses, COMMANDS);
    duo_free(duo);
}

static void duo_flood_run(void *arg)
{
    struct duo *duo = arg;

    duo_run(duo);
    for (uint16_t cid = 0; cid < COMMANDS; cid++)
        controller_answer(duo, cid);
    nvmf_pdu_close(&duo->controller, ICMS_CANCELED);
    /* Also what comes after the close is given back. */
    controller_answer(duo, 0);
}

static void a_close_gives_every_tx_back(void **state)
{
    struct duo *duo = duo_new(*state);

    net_rig_call(duo->rig, duo_flood_run, duo);
    net_rig_wait(duo->rig, &duo->closed, 2);
    assert_true(duo->tx_failed >= 2);
    duo_free(duo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(pdus_and_payloads_arrive_with_any_digests),
        BOTH(a_header_without_memory_waits_for_the_owner),
        BOTH(a_paused_connection_delivers_nothing_and_goes_on),
        BOTH(a_close_gives_every_tx_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
