/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/nvme_log.h: Get Log Page and the pages that hosts ask for.
 *
 * Hosts read pages in pieces, so each page has a _read function that writes bytes
 * [offset, offset + bytes) of it: zeros past its end, and INVALID for an offset that is past its
 * end. Pure; any thread.
 */
#ifndef WIRE_NVME_LOG_H
#define WIRE_NVME_LOG_H

#include "base/types.h"
#include "wire/nvme.h"

#define NVME_LOG_ERROR      0x01
#define NVME_LOG_SMART      0x02
#define NVME_LOG_FIRMWARE   0x03
#define NVME_LOG_NS_CHANGED 0x04
#define NVME_LOG_EFFECTS    0x05
#define NVME_LOG_ANA        0x0c
#define NVME_LOG_DISCOVERY  0x70

/* The parameters of a Get Log Page command. */
struct nvme_log {
    uint8_t page;     /* NVME_LOG_*                                              */
    uint8_t csi;      /* CDW14 31:24; effects: whose commands                    */
    uint8_t specific; /* LSP, 7 bits; ANA: NVME_LOG_ANA_GROUPS                   */
    bool retain;      /* RAE: leave the event pending                            */
    uint32_t nsid;    /* namespace, 0 or NVME_NSID_ALL                           */
    uint64_t offset;  /* bytes; multiple of 4                                    */
    uint64_t bytes;   /* of this piece; NUMD + 1 dwords, so at least 4           */
};

/* Writes the whole entry but cid and sgl. */
void nvme_log_encode(const struct nvme_log *log, struct nvme_sqe_wf *out_sqe);

/* INVALID for an offset that is no multiple of 4, or counts in something else than bytes. */
icms_err nvme_log_decode(const struct nvme_sqe_wf *sqe, struct nvme_log *out_log) ICMS_MUST_CHECK;

/* ---- pages ---------------------------------------------------------------------------------- */

/* 01h, 03h: no error, one firmware slot. UNSUPPORTED for another page. */
icms_err nvme_log_quiet_read(uint8_t page, const char *firmware, uint64_t offset, void *out,
                             uint32_t bytes) ICMS_MUST_CHECK;

/* 02h: SMART / health of the subsystem. Fields that are not here are 0: nothing knows them. */
struct nvme_health {
    uint8_t warnings;        /* NVME_HEALTH_*                                        */
    uint8_t spare_percent;   /* available spare, 0..100                              */
    uint64_t read_bytes;     /* values sent to hosts                                 */
    uint64_t written_bytes;  /* values received from hosts                           */
    uint64_t reads;          /* commands that read a value                           */
    uint64_t writes;         /* commands that wrote a value                          */
    uint64_t power_on_hours; /* time in service                                      */
    uint64_t media_errors;   /* checksums that did not match                         */
};

#define NVME_HEALTH_SPARE    0x01u /* available spare is under its threshold      */
#define NVME_HEALTH_DEGRADED 0x04u /* reliability is degraded                     */

/* The threshold of the available spare that the page tells, percent. */
#define NVME_HEALTH_SPARE_THRESHOLD 10

icms_err nvme_log_health_read(const struct nvme_health *health, uint64_t offset, void *out,
                              uint32_t bytes) ICMS_MUST_CHECK;

/* 04h: changed namespaces since the last read; NVME_NSID_ALL first when there are too many. */
icms_err nvme_log_ns_changed_read(const uint32_t *nsids, uint32_t count, uint64_t offset, void *out,
                                  uint32_t bytes) ICMS_MUST_CHECK;

/* 05h: commands supported and effects, for a command set. INVALID for one that is neither NVM nor
 * KV. icms_ext (NVME_ICMS_EXT_*) adds the vendor commands to the KV set. */
icms_err nvme_log_effects_read(uint8_t csi, uint32_t icms_ext, uint64_t offset, void *out,
                               uint32_t bytes) ICMS_MUST_CHECK;

/* 0Ch: asymmetric namespace access. There is one group. */
#define NVME_LOG_ANA_GROUPS 0x1u /* LSP b0: only groups, no namespaces */

/* The one state of a group that is told: it is reached at full speed through this controller. */
#define NVME_ANA_OPTIMIZED 0x01

struct nvme_ana {
    uint64_t changes;      /* of the page, since the controller was enabled  */
    uint32_t group;        /* its id, not 0                                  */
    uint8_t state;         /* of the group: NVME_ANA_*                       */
    const uint32_t *nsids; /* in it                                          */
    uint32_t count;        /* of nsids                                       */
    uint32_t count_max;    /* how many there can be: MNAN                    */
};

/* As long as it can be: hosts read all of that, in pieces. */
icms_err nvme_log_ana_read(const struct nvme_ana *ana, uint64_t offset, void *out,
                           uint32_t bytes) ICMS_MUST_CHECK;

/* ---- discovery, 70h ------------------------------------------------------------------------- */

#define NVME_DISC_HEADER_BYTES 1024
#define NVME_DISC_ENTRY_BYTES  1024

enum nvme_disc_subtype {
    NVME_DISC_REFERRAL = 1, /* another discovery service             */
    NVME_DISC_NVM = 2,      /* a subsystem with I/O controllers      */
    NVME_DISC_CURRENT = 3,  /* the discovery service that answers    */
};

#define NVME_DISC_DUPLICATE  0x1u /* EFLAGS: its log says the same as this one           */
#define NVME_DISC_PERSISTENT 0x2u /* EFLAGS: hosts may stay connected, with a keep-alive */

/* TREQ: whether a secure channel is required. */
#define NVME_DISC_TLS_UNSPECIFIED 0
#define NVME_DISC_TLS_REQUIRED    1
#define NVME_DISC_TLS_POSSIBLE    2

struct nvme_disc_entry {
    enum nvme_disc_subtype subtype; /* what stands behind the address              */
    uint16_t port_id;               /* of the subsystem's port                     */
    uint16_t admin_entries;         /* ASQSZ: largest admin queue, at least 32     */
    uint16_t flags;                 /* NVME_DISC_*: EFLAGS                         */
    bool tls;                       /* SECTYPE 2: TLS 1.3                          */
    uint8_t treq;                   /* NVME_DISC_TLS_*: secure channel             */
    bool ipv6;                      /* ADRFAM 2 instead of 1                       */
    char address[64];               /* TRADDR: numeric address                     */
    char service[33];               /* TRSVCID: port in decimal                    */
    char subnqn[LIMIT_NQN_BYTES];   /* of the subsystem                            */
};

icms_err nvme_log_discovery_read(uint64_t generation, const struct nvme_disc_entry *entries,
                                 uint32_t count, uint64_t offset, void *out,
                                 uint32_t bytes) ICMS_MUST_CHECK;

/* The header: generation and number of entries. PROTOCOL when it is too short or a format that is
 * not known. */
icms_err nvme_disc_header_decode(const void *data, size_t bytes, uint64_t *out_generation,
                                 uint64_t *out_count) ICMS_MUST_CHECK;

/* One entry of NVME_DISC_ENTRY_BYTES. UNSUPPORTED: another transport than TCP. PROTOCOL: strings
 * that do not end, or names that are not possible. */
icms_err nvme_disc_entry_decode(const void *data, size_t bytes,
                                struct nvme_disc_entry *out_entry) ICMS_MUST_CHECK;

#endif
