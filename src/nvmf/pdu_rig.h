/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/pdu_rig.h: sizes, and payloads that follow from the number of their command, for the tests
 * of nvmf/pdu.h. Pure.
 */
#ifndef NVMF_PDU_RIG_H
#define NVMF_PDU_RIG_H

#include "net/net_rig.h"
#include "nvmf/pdu.h"

#define BOTH_DIGESTS (NVME_TCP_FLAG_HDGST | NVME_TCP_FLAG_DDGST)
#define DATA_MAX     262144u
#define CAPSULE_MAX  8192u

/* Byte i of the payload of a command. */
static inline uint8_t pdu_byte(uint16_t cid, uint32_t i)
{
    return net_rig_byte((uint64_t)cid * 1000003 + i);
}

static inline void pdu_fill(uint8_t *out, uint16_t cid, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = pdu_byte(cid, i);
}

static inline bool pdu_is(const uint8_t *in, uint16_t cid, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        if (in[i] != pdu_byte(cid, i))
            return false;
    return true;
}

/* A test on both back ends. */
#define BOTH(test)                                                                                 \
    {"uring: " #test, test, rig_uring_setup, rig_uring_teardown, NULL},                            \
    {                                                                                              \
        "sim: " #test, test, rig_sim_setup, rig_sim_teardown, NULL                                 \
    }

#endif
