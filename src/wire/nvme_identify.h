/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/nvme_identify.h: the data of Identify, all but the KV namespace (nvme_kv.h).
 *
 * Pure: bytes to structs and back. Any thread. Decoders take hostile bytes. Every encoder writes a
 * whole page of NVME_PAGE_BYTES.
 */
#ifndef WIRE_NVME_IDENTIFY_H
#define WIRE_NVME_IDENTIFY_H

#include "base/types.h"
#include "wire/nvme.h"

/* CDW10 7:0 of Identify; CDW10 31:16 is the controller, CDW11 31:24 the command set. */
#define NVME_CNS_NS           0x00
#define NVME_CNS_CTRL         0x01
#define NVME_CNS_NS_ACTIVE    0x02
#define NVME_CNS_NS_IDS       0x03
#define NVME_CNS_NS_CSI       0x05
#define NVME_CNS_CTRL_CSI     0x06
#define NVME_CNS_NS_ACTIVE_CS 0x07
#define NVME_CNS_NS_COMMON    0x08
#define NVME_CNS_IO_SETS      0x1c

/* The parameters of an Identify command. */
struct nvme_identify {
    uint8_t cns;   /* NVME_CNS_*                                       */
    uint8_t csi;   /* NVME_CSI_*; where the CNS takes one              */
    uint32_t nsid; /* namespace, or "greater than" for lists           */
};

/* Writes the whole entry but cid and sgl. */
void nvme_identify_encode(const struct nvme_identify *identify, struct nvme_sqe_wf *out_sqe);
void nvme_identify_decode(const struct nvme_sqe_wf *sqe, struct nvme_identify *out_identify);

/* ---- controller, CNS 01h -------------------------------------------------------------------- */

enum nvme_ctrl_type {
    NVME_CTRL_IO = 1,        /* serves namespaces    */
    NVME_CTRL_DISCOVERY = 2, /* serves the log 70h   */
};

/* Extensions of icms in the vendor bytes of Identify Controller. */
#define NVME_ICMS_EXT_EXIST_MANY 0x1u  /* NVME_ICMS_EXIST_MANY                     */
#define NVME_ICMS_EXT_TIMED      0x2u  /* NVME_ICMS_STORE and NVME_ICMS_RETRIEVE   */
#define NVME_ICMS_EXT_STORE_DATA 0x4u  /* NVME_ICMS_STORE_DATA_BYTES               */
#define NVME_ICMS_EXT_RECORD     0x8u  /* NVME_ICMS_DELETE; DW1 of a Retrieve      */
#define NVME_ICMS_EXT_SETTINGS   0x10u /* NVME_FEATURE_ICMS_*                      */
#define NVME_ICMS_EXT_EXPEDITE   0x20u /* NVME_ICMS_EXPEDITE                       */

#define NVME_OAES_NS_CHANGED 0x00000100u /* OAES b8: namespace attribute notices  */
#define NVME_OAES_ANA        0x00000800u /* OAES b11: asymmetric access notices   */
#define NVME_OAES_DISCOVERY  0x80000000u /* OAES b31: discovery log notices       */

struct nvme_ctrl {
    char serial[21];  /* zero-terminated; sent padded with spaces                          */
    char model[41];   /* likewise                                                          */
    char firmware[9]; /* likewise                                                          */
    char subnqn[LIMIT_NQN_BYTES]; /* of the subsystem                                           */
    enum nvme_ctrl_type type;     /* I/O or discovery                                           */
    uint16_t cntlid;      /* as Connect answered                                               */
    uint32_t version;     /* VS register                                                       */
    uint32_t oaes;        /* NVME_OAES_*                                                       */
    uint8_t mdts;         /* largest transfer: 2^mdts pages of 4 KiB; 0: no limit              */
    uint8_t async_events; /* AERL + 1: async event requests in flight, at least 1              */
    uint16_t keep_alive_100ms; /* KAS granularity; not 0 for hosts that keep alive              */
    uint16_t commands_max; /* MAXCMD: queue entries, not 0                                      */
    uint32_t nsid_max;     /* NN                                                                */
    uint32_t in_capsule_bytes; /* largest in-capsule data of I/O queues, multiple of 16; IOCCSZ */
    bool write_cache;    /* VWC: Flush makes values durable                                   */
    bool multi_ctrl;     /* CMIC: several ports and controllers                               */
    uint32_t ana_groups; /* ANAGRPMAX, NANAGRPID: of asymmetric access; 0: it is not reported   */
    uint32_t icms_ext;   /* vendor: NVME_ICMS_EXT_*; 0 when foreign                           */
    uint64_t icms_instance; /* vendor: a random number of the target's process; 0: not told    */
};

/* The struct must be valid (MUST-haves of a host: cntlid, keep_alive, commands_max). */
void nvme_ctrl_encode(const struct nvme_ctrl *ctrl, uint8_t out_page[NVME_PAGE_BYTES]);

/* PROTOCOL when bytes are fewer than a page or fields that we need are not possible: the capsule
 * size, SGL support, a subsystem name that does not end. Names are cut of their padding. */
icms_err nvme_ctrl_decode(const void *page, size_t bytes,
                          struct nvme_ctrl *out_ctrl) ICMS_MUST_CHECK;

/* ---- namespaces ----------------------------------------------------------------------------- */

/* CNS 00h of a KV namespace: a plausible block namespace with one format of 512-byte blocks,
 * because hosts look there whether it is active. What the KV namespace (nvme_kv_ns) says too is the
 * same. */
struct nvme_ns {
    uint64_t size_bytes; /* NSZE, NCAP                                   */
    uint64_t used_bytes; /* NUSE                                         */
    bool shared;         /* NMIC b0: reachable through several controllers */
    uint32_t ana_group;  /* 0: none                                      */
    uint8_t nguid[16];   /* world-wide name                              */
};

void nvme_ns_encode(const struct nvme_ns *ns, uint8_t out_page[NVME_PAGE_BYTES]);

#define NVME_NS_LIST_MAX 1024

/* CNS 02h and 07h: those of the ascending nsids greater than after, as many as fit. */
void nvme_ns_list_encode(const uint32_t *nsids, uint32_t count, uint32_t after,
                         uint8_t out_page[NVME_PAGE_BYTES]);

/* PROTOCOL: not a page, or not ascending. LIMIT: more than nsids_max. */
icms_err nvme_ns_list_decode(const void *page, size_t bytes, uint32_t *out_nsids,
                             uint32_t nsids_max, uint32_t *out_count) ICMS_MUST_CHECK;

/* CNS 03h: names and command set of a namespace. */
struct nvme_ns_ids {
    bool has_nguid;    /* NIDT 2                         */
    bool has_eui64;    /* NIDT 1                         */
    bool has_uuid;     /* NIDT 3                         */
    bool has_csi;      /* NIDT 4                         */
    uint8_t nguid[16]; /* world-wide name                */
    uint8_t eui64[8];  /* likewise, short                */
    struct uuid uuid;  /* likewise, random               */
    uint8_t csi;       /* NVME_CSI_*                     */
};

void nvme_ns_ids_encode(const struct nvme_ns_ids *ids, uint8_t out_page[NVME_PAGE_BYTES]);

/* Unknown descriptors are skipped. PROTOCOL for lengths that are not possible. */
icms_err nvme_ns_ids_decode(const void *page, size_t bytes,
                            struct nvme_ns_ids *out_ids) ICMS_MUST_CHECK;

/* CNS 08h: what a namespace of any command set has. */
struct nvme_ns_common {
    bool shared;        /* NMIC b0                                      */
    bool ready;         /* NSTAT b0                                     */
    uint32_t ana_group; /* 0: none                                      */
};

void nvme_ns_common_encode(const struct nvme_ns_common *common, uint8_t out_page[NVME_PAGE_BYTES]);
icms_err nvme_ns_common_decode(const void *page, size_t bytes,
                               struct nvme_ns_common *out_common) ICMS_MUST_CHECK;

/* CNS 06h: the controller for one command set: KV 1.3, or zeros for NVM. */
void nvme_ctrl_csi_encode(uint8_t csi, uint8_t out_page[NVME_PAGE_BYTES]);

/* CNS 1Ch: the one combination of command sets: NVM and KV. */
void nvme_io_sets_encode(uint8_t out_page[NVME_PAGE_BYTES]);

#endif
