/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/nvme.h: the words of NVMe: submission and completion queue entries, opcodes, statuses.
 *
 * Structs ending in _wf are bytes as they travel: little-endian byte arrays, no padding, any
 * alignment. Pure; any thread.
 */
#ifndef WIRE_NVME_H
#define WIRE_NVME_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/err.h"

/* ---- sizes ---------------------------------------------------------------------------------- */

#define NVME_SQE_BYTES   64
#define NVME_CQE_BYTES   16
#define NVME_PAGE_BYTES  4096 /* every Identify data structure                  */
#define NVME_NQN_BYTES   256  /* field of an NQN, its zero byte included        */
#define NVME_NQN_MAX     223  /* longest NQN                                    */
#define NVME_NSID_ALL    0xffffffffu
#define NVME_CNTLID_ANY  0xffff /* Connect: the controller picks its id          */
#define NVME_DISCOVERY   "nqn.2014-08.org.nvmexpress.discovery"
#define NVME_VERSION_2_0 0x00020000u

/* Command set identifiers (CSI). */
#define NVME_CSI_NVM 0x00
#define NVME_CSI_KV  0x01

/* ---- SGL descriptor ------------------------------------------------------------------------- */

struct nvme_sgl_wf {
    le64 address;        /* offset into the capsule's data, or 0            */
    le32 length;         /* bytes                                           */
    uint8_t reserved[3]; /* 0                                               */
    uint8_t type;        /* NVME_SGL_*                                      */
};
static_assert(sizeof(struct nvme_sgl_wf) == 16, "SGL descriptor");

#define NVME_SGL_IN_CAPSULE 0x01 /* data block, address is an offset: data is in the capsule   */
#define NVME_SGL_TRANSPORT  0x5a /* transport data block: data comes by R2T or C2HData         */

/* What a command's one SGL descriptor says. */
struct nvme_sgl {
    bool in_capsule; /* data follows the command in its capsule             */
    uint64_t offset; /* in_capsule: where in the capsule's data it starts   */
    uint32_t bytes;  /* length of the transfer                              */
};

/* ---- submission queue entry ----------------------------------------------------------------- */

struct nvme_sqe_wf {
    uint8_t opcode;         /* @0  NVME_ADMIN_*, NVME_FABRICS, NVME_KV_*, NVME_ICMS_*  */
    uint8_t flags;          /* @1  FUSE 1:0, PSDT 7:6                                  */
    le16 cid;               /* @2  chosen by the host; comes back in the completion    */
    le32 nsid;              /* @4  namespace; fabrics: byte 4 is the command type      */
    le32 cdw2;              /* @8  KV: key bytes 0..3                                  */
    le32 cdw3;              /* @12 KV: key bytes 4..7                                  */
    le64 mptr;              /* @16 0                                                   */
    struct nvme_sgl_wf sgl; /* @24 where the data is                                   */
    le32 cdw10;             /* @40                                                     */
    le32 cdw11;             /* @44                                                     */
    le32 cdw12;             /* @48                                                     */
    le32 cdw13;             /* @52                                                     */
    le32 cdw14;             /* @56 KV: key bytes 8..11                                 */
    le32 cdw15;             /* @60 KV: key bytes 12..15                                */
};
static_assert(sizeof(struct nvme_sqe_wf) == NVME_SQE_BYTES, "SQE");
static_assert(offsetof(struct nvme_sqe_wf, sgl) == 24, "SQE: data pointer");
static_assert(offsetof(struct nvme_sqe_wf, cdw10) == 40, "SQE: CDW10");
static_assert(offsetof(struct nvme_sqe_wf, cdw14) == 56, "SQE: CDW14");

#define NVME_SQE_FLAGS_SGL 0x40 /* PSDT 01b: the data pointer is an SGL; always so on fabrics */

/* PSDT says SGL and FUSE says nothing: the only flags that a command over fabrics may have here. */
static inline bool nvme_sqe_flags_valid(const struct nvme_sqe_wf *sqe)
{
    return (sqe->flags & 0xc3) == NVME_SQE_FLAGS_SGL;
}

/* ---- completion queue entry ----------------------------------------------------------------- */

struct nvme_cqe_wf {
    le32 dw0;    /* @0  result                                        */
    le32 dw1;    /* @4  result; KV misses: enum icms_miss             */
    le16 sqhd;   /* @8  submission queue head                         */
    le16 sqid;   /* @10 reserved on fabrics                           */
    le16 cid;    /* @12 of the command                                */
    le16 status; /* @14 P b0, SC 8:1, SCT 11:9, CRD, M b14, DNR b15   */
};
static_assert(sizeof(struct nvme_cqe_wf) == NVME_CQE_BYTES, "CQE");
static_assert(offsetof(struct nvme_cqe_wf, status) == 14, "CQE: status");

struct nvme_cqe {
    uint16_t cid;    /* of the command                                       */
    uint16_t sqhd;   /* submission queue head                                */
    uint16_t status; /* SCT << 8 | SC: NVME_SC_*, as in base/err.h           */
    bool dnr;        /* do not retry                                         */
    uint32_t dw0;    /* result                                               */
    uint32_t dw1;    /* result                                               */
};

void nvme_cqe_encode(const struct nvme_cqe *cqe, struct nvme_cqe_wf *out_cqe);
void nvme_cqe_decode(const struct nvme_cqe_wf *wf, struct nvme_cqe *out_cqe);

/* The descriptor of a command's data. in_capsule false with 0 bytes: a command without data. */
void nvme_sgl_encode(const struct nvme_sgl *sgl, struct nvme_sgl_wf *out_sgl);

/* Strict: one of the two known types, address 0 where it has no meaning. INVALID otherwise, and the
 * status to answer is NVME_SC_SGL_TYPE or NVME_SC_SGL_OFFSET in *out_status. An all-zero descriptor
 * is a command without data. */
icms_err nvme_sgl_decode(const struct nvme_sgl_wf *wf, struct nvme_sgl *out_sgl,
                         uint16_t *out_status) ICMS_MUST_CHECK;

/* ---- opcodes -------------------------------------------------------------------------------- */

#define NVME_ADMIN_GET_LOG_PAGE 0x02
#define NVME_ADMIN_IDENTIFY     0x06
#define NVME_ADMIN_ABORT        0x08
#define NVME_ADMIN_SET_FEATURES 0x09
#define NVME_ADMIN_GET_FEATURES 0x0a
#define NVME_ADMIN_ASYNC_EVENT  0x0c
#define NVME_ADMIN_KEEP_ALIVE   0x18
#define NVME_FABRICS            0x7f

#define NVME_IO_FLUSH    0x00
#define NVME_KV_STORE    0x01
#define NVME_KV_RETRIEVE 0x02
#define NVME_KV_LIST     0x06
#define NVME_KV_DELETE   0x10
#define NVME_KV_EXIST    0x14

/* Vendor commands of icms, advertised in Identify Controller (nvme_identify.h). Bits 1:0 are the
 * data direction, as for every opcode. */
/* Retrieve with time left and class. When the whole value goes to a host that asked for no SQ flow
 * control, its last data says success and no completion follows: the result, the value's size, is
 * that of the data. */
#define NVME_ICMS_RETRIEVE   0x82
#define NVME_ICMS_EXIST_MANY 0x81 /* up to 64 keys in capsule, 64-bit map in DW0..1            */
#define NVME_ICMS_STORE      0x85 /* Store with time left and class                            */
/* Delete of one record: KV_NO_KEY when it is not there any more, though the key may have another
 * one. */
#define NVME_ICMS_DELETE   0x84
#define NVME_ICMS_EXPEDITE 0x88 /* Retrieves of this queue pair that somebody waits for now    */

/* Direction of the data of an opcode, bits 1:0. */
#define NVME_DIRECTION(opcode) ((opcode)&3)
#define NVME_DIRECTION_NONE    0
#define NVME_DIRECTION_H2C     1
#define NVME_DIRECTION_C2H     2

/* ---- statuses, SCT << 8 | SC ---------------------------------------------------------------- */

#define NVME_SC_SUCCESS           0x000
#define NVME_SC_OPCODE            0x001 /* invalid command opcode          */
#define NVME_SC_FIELD             0x002 /* invalid field in command        */
#define NVME_SC_CID_CONFLICT      0x003
#define NVME_SC_DATA_TRANSFER     0x004 /* a digest did not match          */
#define NVME_SC_INTERNAL          0x006
#define NVME_SC_ABORT_REQUESTED   0x007
#define NVME_SC_ABORT_SQ_DELETED  0x008
#define NVME_SC_NAMESPACE         0x00b /* invalid namespace or format     */
#define NVME_SC_SEQUENCE          0x00c /* command sequence error          */
#define NVME_SC_SGL_COUNT         0x00e /* invalid number of descriptors   */
#define NVME_SC_SGL_LENGTH        0x00f /* data SGL length invalid         */
#define NVME_SC_SGL_TYPE          0x011 /* SGL descriptor type invalid     */
#define NVME_SC_SGL_OFFSET        0x016 /* SGL offset invalid              */
#define NVME_SC_TRANSIENT         0x021 /* command interrupted: retry      */
#define NVME_SC_TRANSPORT         0x022 /* transient transport error       */
#define NVME_SC_CAPACITY          0x081 /* capacity exceeded               */
#define NVME_SC_NS_NOT_READY      0x082
#define NVME_SC_KV_VALUE_SIZE     0x085
#define NVME_SC_KV_KEY_SIZE       0x086
#define NVME_SC_KV_NO_KEY         0x087
#define NVME_SC_KV_UNRECOVERED    0x088
#define NVME_SC_KV_EXISTS         0x089
#define NVME_SC_LOG_PAGE          0x109 /* invalid log page                */
#define NVME_SC_AER_LIMIT         0x105 /* too many async event requests   */
#define NVME_SC_FEATURE_READ_ONLY 0x10e /* feature not changeable          */
#define NVME_SC_CONNECT_FORMAT    0x180 /* Connect: record format          */
#define NVME_SC_CONNECT_BUSY      0x181
#define NVME_SC_CONNECT_PARAM     0x182 /* Connect: DW0 says which         */
#define NVME_SC_CONNECT_RESTART   0x183
#define NVME_SC_CONNECT_HOST      0x184 /* host may not use the subsystem  */
#define NVME_SC_AUTH_REQUIRED     0x191
#define NVME_SC_UNRECOVERED_READ  0x281

/* ---- features ------------------------------------------------------------------------------- */

#define NVME_FEATURE_ARBITRATION 0x01
#define NVME_FEATURE_POWER       0x02
#define NVME_FEATURE_TEMPERATURE 0x04
#define NVME_FEATURE_ERROR       0x05
#define NVME_FEATURE_WRITE_CACHE 0x06
#define NVME_FEATURE_QUEUES      0x07 /* DW0: NCQR << 16 | NSQR, 0's based       */
#define NVME_FEATURE_ASYNC_EVENT 0x0b
#define NVME_FEATURE_KEEP_ALIVE  0x0f /* ms                                      */
#define NVME_FEATURE_IO_SETS     0x19 /* I/O command set profile                 */
#define NVME_FEATURE_KV          0x20 /* b0 EDNEK: delete of a missing key fails */

/* Of icms, with NVME_ICMS_EXT_SETTINGS: what all hosts that share blocks have to agree about. Set
 * tells one; DW0 is the value that the other hosts have (nvmf/target.h). They cannot be got. EPOCH
 * is kept for each controller. A target that follows a pod map answers it with the epoch of that in
 * DW0, and pod_name_hash() of its pod in DW1; one that does not, or did not yet, with the same
 * epoch and 0. Targets that do not know EPOCH answer Invalid Field, which says nothing. */
#define NVME_FEATURE_ICMS_ENCLOSURES 0xc0 /* a hash of the UUIDs of all enclosures      */
#define NVME_FEATURE_ICMS_WEIGHTS    0xc1 /* a hash of them with their weights          */
#define NVME_FEATURE_ICMS_RUN_BLOCKS 0xc2 /* of a namespace: blocks placed together     */
#define NVME_FEATURE_ICMS_EPOCH      0xc3 /* of the host's pod map; 0: it has none      */

#define NVME_ASYNC_CRITICAL_WARNINGS 0x1fu /* feature 0Bh: a bit for each warning of log 02h */

/* ---- async events: DW0 = type 2:0 | info 15:8 | log page 23:16 ------------------------------- */

#define NVME_AEN_DEGRADED   0x00020001u /* SMART, reliability, log 02h        */
#define NVME_AEN_SPARE      0x00020201u /* SMART, spare under threshold       */
#define NVME_AEN_NS_CHANGED 0x00040002u /* notice, info 00h, log 04h          */

/* ---- registers by Property Get and Set ------------------------------------------------------ */

#define NVME_REG_CAP  0x00 /* 8 bytes */
#define NVME_REG_VS   0x08
#define NVME_REG_CC   0x14
#define NVME_REG_CSTS 0x1c

/* CAP of a fabrics controller: queue entries (at least 2), ready within timeout_500ms half seconds,
 * command sets NVM and "others" (needed for KV). */
static inline uint64_t nvme_cap(uint16_t queue_entries_max, uint8_t timeout_500ms)
{
    return (uint64_t)(queue_entries_max - 1) | (uint64_t)1 << 16 | (uint64_t)timeout_500ms << 24 |
           (uint64_t)1 << 37 | (uint64_t)1 << 43;
}

static inline uint32_t nvme_cap_queue_entries(uint64_t cap)
{
    return (uint32_t)(cap & 0xffff) + 1;
}

#define NVME_CAP_CSS_IO      ((uint64_t)1 << 43) /* I/O command sets other than NVM can be enabled */
#define NVME_CC_ENABLE       0x1u
#define NVME_CC_CSS(cc)      ((cc) >> 4 & 7)
#define NVME_CC_MPS(cc)      ((cc) >> 7 & 15)
#define NVME_CC_AMS(cc)      ((cc) >> 11 & 7)
#define NVME_CC_SHN(cc)      ((cc) >> 14 & 3)  /* 0: no shutdown asked */
#define NVME_CC_IOSQES(cc)   ((cc) >> 16 & 15) /* log2 of the size of an entry */
#define NVME_CC_IOCQES(cc)   ((cc) >> 20 & 15)
#define NVME_CC_START        0x00460061u /* enable, all command sets, entry sizes 64 and 16 */
#define NVME_CC_SHN_NORMAL   0x00004000u
#define NVME_CSTS_READY      0x1u
#define NVME_CSTS_FATAL      0x2u
#define NVME_CSTS_SHUTDOWN   0x8u /* SHST 10b: shutdown complete */
#define NVME_CSTS_SHST(csts) ((csts) >> 2 & 3)

#endif
