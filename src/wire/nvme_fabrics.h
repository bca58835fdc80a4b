/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/nvme_fabrics.h: fabrics commands: Connect, Property Get and Set, Disconnect; keep alive and
 * features as far as they are numbers in an entry.
 *
 * Pure: bytes to structs and back. Any thread. Decoders take hostile bytes.
 */
#ifndef WIRE_NVME_FABRICS_H
#define WIRE_NVME_FABRICS_H

#include "base/types.h"
#include "wire/nvme.h"

/* Byte 4 of a command with opcode NVME_FABRICS. */
#define NVME_FCTYPE_PROPERTY_SET 0x00
#define NVME_FCTYPE_CONNECT      0x01
#define NVME_FCTYPE_PROPERTY_GET 0x04
#define NVME_FCTYPE_AUTH_SEND    0x05
#define NVME_FCTYPE_AUTH_RECEIVE 0x06
#define NVME_FCTYPE_DISCONNECT   0x08

/* The type of a fabrics command. */
static inline uint8_t nvme_fctype(const struct nvme_sqe_wf *sqe)
{
    return sqe->nsid.byte[0];
}

/* True for 1..223 printable ASCII characters without space that begin with "nqn." and end in a zero
 * byte within bytes. */
bool nvme_nqn_valid(const char *nqn, size_t bytes);

/* ---- Connect -------------------------------------------------------------------------------- */

#define NVME_CONNECT_DATA_BYTES 1024

#define NVME_CATTR_PRIORITY   0x03 /* of the queue pair: 0 urgent, 1 high, 2 medium, 3 low */
#define NVME_CATTR_NO_SQ_FLOW 0x04 /* host asks to disable SQ flow control */

/* Loads are urgent, and so is what says nothing. */
static inline uint8_t nvme_cattr_priority(enum io_class io_class)
{
    return io_class == IO_CLASS_LOAD ? 0 : io_class == IO_CLASS_PRESTAGE ? 2 : 3;
}

static inline enum io_class nvme_cattr_class(uint8_t attributes)
{
    switch (attributes & NVME_CATTR_PRIORITY) {
    case 2:
        return IO_CLASS_PRESTAGE;
    case 3:
        return IO_CLASS_STORE;
    default:
        return IO_CLASS_LOAD;
    }
}

struct nvme_connect {
    uint16_t qid;                  /* 0: admin queue                                              */
    uint16_t entries;              /* queue entries, at least 2 (travels 0's based)               */
    uint8_t attributes;            /* NVME_CATTR_*                                                */
    uint32_t kato_ms;              /* keep-alive timeout, admin queue; 0: none                    */
    uint16_t cntlid;               /* NVME_CNTLID_ANY on the admin queue                          */
    uint8_t hostid[16];            /* UUID of the host                                            */
    char subnqn[LIMIT_NQN_BYTES];  /* whom                                             */
    char hostnqn[LIMIT_NQN_BYTES]; /* who                                              */
};

/* Writes the whole entry but cid and sgl, and the data. */
void nvme_connect_encode(const struct nvme_connect *connect, struct nvme_sqe_wf *out_sqe,
                         uint8_t out_data[NVME_CONNECT_DATA_BYTES]);

/* Returns the status to answer; NVME_SC_SUCCESS fills out_connect. Otherwise *out_dw0 is the DW0 of
 * the completion: for NVME_SC_CONNECT_PARAM IATTR << 16 | IPO, the place of the bad parameter.
 * A discovery host may send any cntlid; whether it and the names fit is the target's to judge. */
uint16_t nvme_connect_decode(const struct nvme_sqe_wf *sqe, const void *data, size_t bytes,
                             struct nvme_connect *out_connect, uint32_t *out_dw0) ICMS_MUST_CHECK;

/* The DW0 of NVME_SC_CONNECT_PARAM. */
#define NVME_CONNECT_BAD_SQE(offset)  ((uint32_t)(offset))            /* IATTR 0: in the entry */
#define NVME_CONNECT_BAD_DATA(offset) (0x10000u | (uint32_t)(offset)) /* IATTR 1: in the data  */

/* Places in entry and data that the target names when it refuses. */
#define NVME_CONNECT_AT_QID     42
#define NVME_CONNECT_AT_SQSIZE  44
#define NVME_CONNECT_AT_HOSTID  0
#define NVME_CONNECT_AT_CNTLID  16
#define NVME_CONNECT_AT_SUBNQN  256
#define NVME_CONNECT_AT_HOSTNQN 512

/* DW0 of a successful Connect. */
static inline uint16_t nvme_connect_cntlid(uint32_t dw0)
{
    return (uint16_t)dw0;
}

#define NVME_CONNECT_ATR  0x00020000u /* the host must authenticate                       */
#define NVME_CONNECT_ASCR 0x00040000u /* and make a secure channel of the same connection */

/* ---- properties ----------------------------------------------------------------------------- */

struct nvme_property {
    bool set;        /* Property Set; false: Get                                     */
    bool wide;       /* 8 bytes; false: 4                                            */
    uint32_t offset; /* NVME_REG_*                                                   */
    uint64_t value;  /* Set: what to write                                           */
};

void nvme_property_encode(const struct nvme_property *property, struct nvme_sqe_wf *out_sqe);

/* INVALID for a size or type that does not exist. */
icms_err nvme_property_decode(const struct nvme_sqe_wf *sqe,
                              struct nvme_property *out_property) ICMS_MUST_CHECK;

/* Disconnect of an I/O queue; nothing to decode but its type. */
void nvme_disconnect_encode(struct nvme_sqe_wf *out_sqe);

/* Keep Alive, and Async Event Request: entries without parameters. */
void nvme_admin_plain_encode(uint8_t opcode, struct nvme_sqe_wf *out_sqe);

/* Flush of a namespace, or of all with NVME_NSID_ALL. */
void nvme_flush_encode(uint32_t nsid, struct nvme_sqe_wf *out_sqe);

/* ---- features ------------------------------------------------------------------------------- */

struct nvme_feature {
    bool set;       /* Set Features; false: Get                                        */
    uint8_t fid;    /* NVME_FEATURE_*                                                  */
    uint8_t select; /* Get: 0 current, 1 default, 2 saved, 3 supported capabilities    */
    bool save;      /* Set: keep over resets                                           */
    uint32_t nsid;  /* where the feature belongs to a namespace                        */
    uint32_t value; /* Set: CDW11                                                      */
};

void nvme_feature_encode(const struct nvme_feature *feature, struct nvme_sqe_wf *out_sqe);
void nvme_feature_decode(const struct nvme_sqe_wf *sqe, struct nvme_feature *out_feature);

#endif
