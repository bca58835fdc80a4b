/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/nvme_tcp.h: the PDUs of NVMe/TCP.
 *
 * A PDU is: header (hlen bytes), header digest (4, when on), pad up to pdo, data, data digest (4,
 * when on); plen counts all of it. A union nvme_tcp_pdu is the header as it travels; encoders fill
 * its type's fields, nvme_tcp_frame_encode the common header. Receivers check the common header
 * first (nvme_tcp_hdr_check: where everything is), then the header of its type
 * (nvme_tcp_pdu_check); both name the TermReq status when they refuse.
 *
 * Pure; any thread.
 */
#ifndef WIRE_NVME_TCP_H
#define WIRE_NVME_TCP_H

#include "wire/nvme.h"

/* ---- common header -------------------------------------------------------------------------- */

enum nvme_tcp_type {
    NVME_TCP_IC_REQ = 0x00,       /* host: first PDU of a connection             */
    NVME_TCP_IC_RESP = 0x01,      /* controller: answer to it                    */
    NVME_TCP_H2C_TERM = 0x02,     /* host: protocol error, the connection ends   */
    NVME_TCP_C2H_TERM = 0x03,     /* controller: likewise                        */
    NVME_TCP_CAPSULE_CMD = 0x04,  /* host: a command, perhaps with data          */
    NVME_TCP_CAPSULE_RESP = 0x05, /* controller: a completion                    */
    NVME_TCP_H2C_DATA = 0x06,     /* host: data that an R2T asked for            */
    NVME_TCP_C2H_DATA = 0x07,     /* controller: data of a command               */
    NVME_TCP_R2T = 0x09,          /* controller: asks for data                   */
};

#define NVME_TCP_FLAG_HDGST   0x01 /* a header digest follows the header                         */
#define NVME_TCP_FLAG_DDGST   0x02 /* a data digest follows the data                             */
#define NVME_TCP_FLAG_LAST    0x04 /* data PDUs: the last of its R2T or command                  */
#define NVME_TCP_FLAG_SUCCESS 0x08 /* C2HData, with LAST: no CapsuleResp comes, all is well */

#define NVME_TCP_COMMON_BYTES 8
#define NVME_TCP_DIGEST_BYTES 4
#define NVME_TCP_HEADER_MAX   128 /* header, digest and pad of any PDU                           */

struct nvme_tcp_common_wf {
    uint8_t type;  /* @0 enum nvme_tcp_type                            */
    uint8_t flags; /* @1 NVME_TCP_FLAG_*                               */
    uint8_t hlen;  /* @2 bytes of the header, common part included     */
    uint8_t pdo;   /* @3 where the data starts; 0 without data         */
    le32 plen;     /* @4 bytes of the whole PDU                        */
};
static_assert(sizeof(struct nvme_tcp_common_wf) == NVME_TCP_COMMON_BYTES, "common header");

/* ICReq and ICResp */
struct nvme_tcp_ic_wf {
    struct nvme_tcp_common_wf common;
    le16 pfv;              /* @8  format version: 0                                              */
    uint8_t pda;           /* @10 HPDA, CPDA: data the sender gets starts at (pda + 1) * 4        */
    uint8_t digests;       /* @11 NVME_TCP_FLAG_HDGST, _DDGST                                    */
    le32 limit;            /* @12 ICReq: MAXR2T, 0's based; ICResp: MAXH2CDATA, bytes            */
    uint8_t reserved[112]; /* @16 0                                                              */
};
static_assert(sizeof(struct nvme_tcp_ic_wf) == 128, "ICReq, ICResp");

/* H2CTermReq and C2HTermReq; up to 128 bytes of the bad header follow as data. */
struct nvme_tcp_term_wf {
    struct nvme_tcp_common_wf common;
    le16 fes;             /* @8  enum nvme_tcp_fes                               */
    uint8_t fei[4];       /* @10 little-endian; what it says depends on fes      */
    uint8_t reserved[10]; /* @14 0                                               */
};
static_assert(sizeof(struct nvme_tcp_term_wf) == 24, "TermReq");
static_assert(offsetof(struct nvme_tcp_term_wf, fei) == 10, "TermReq: fei");

#define NVME_TCP_TERM_DATA_MAX 128

struct nvme_tcp_cmd_wf {
    struct nvme_tcp_common_wf common;
    struct nvme_sqe_wf sqe; /* @8 the command */
};
static_assert(sizeof(struct nvme_tcp_cmd_wf) == 72, "CapsuleCmd");

struct nvme_tcp_resp_wf {
    struct nvme_tcp_common_wf common;
    struct nvme_cqe_wf cqe; /* @8 the completion */
};
static_assert(sizeof(struct nvme_tcp_resp_wf) == 24, "CapsuleResp");

/* H2CData and C2HData */
struct nvme_tcp_data_wf {
    struct nvme_tcp_common_wf common;
    le16 cid;            /* @8  of the command                                     */
    le16 ttag;           /* @10 H2CData: of the R2T; C2HData: 0                    */
    le32 offset;         /* @12 first byte within the command's data               */
    le32 length;         /* @16 bytes of data in this PDU                          */
    uint8_t reserved[4]; /* @20 0                                                  */
};
static_assert(sizeof(struct nvme_tcp_data_wf) == 24, "data PDU");

struct nvme_tcp_r2t_wf {
    struct nvme_tcp_common_wf common;
    le16 cid;            /* @8  of the command                                     */
    le16 ttag;           /* @10 comes back in H2CData                              */
    le32 offset;         /* @12 first byte asked for                               */
    le32 length;         /* @16 bytes asked for                                    */
    uint8_t reserved[4]; /* @20 0                                                  */
};
static_assert(sizeof(struct nvme_tcp_r2t_wf) == 24, "R2T");

/* The header of any PDU as it travels, with room for its digest and pad. */
union nvme_tcp_pdu {
    struct nvme_tcp_common_wf common;
    struct nvme_tcp_ic_wf ic;
    struct nvme_tcp_term_wf term;
    struct nvme_tcp_cmd_wf cmd;
    struct nvme_tcp_resp_wf resp;
    struct nvme_tcp_data_wf data;
    struct nvme_tcp_r2t_wf r2t;
    uint8_t bytes[NVME_TCP_HEADER_MAX];
};
static_assert(sizeof(union nvme_tcp_pdu) == NVME_TCP_HEADER_MAX, "PDU header");

/* ---- encode: all but plen, pdo and the digest flags, which nvme_tcp_frame_encode sets -------- */

/* digests: NVME_TCP_FLAG_HDGST | NVME_TCP_FLAG_DDGST as wished. */
void nvme_tcp_ic_req_encode(union nvme_tcp_pdu *pdu, uint8_t hpda, uint8_t digests,
                            uint32_t r2t_max);

/* h2c_data_max: multiple of 4, at least 4096. */
void nvme_tcp_ic_resp_encode(union nvme_tcp_pdu *pdu, uint8_t cpda, uint8_t digests,
                             uint32_t h2c_data_max);
void nvme_tcp_cmd_encode(union nvme_tcp_pdu *pdu, const struct nvme_sqe_wf *sqe);
void nvme_tcp_resp_encode(union nvme_tcp_pdu *pdu, const struct nvme_cqe *cqe);

/* type is NVME_TCP_H2C_DATA or NVME_TCP_C2H_DATA; flags NVME_TCP_FLAG_LAST and _SUCCESS. */
void nvme_tcp_data_encode(union nvme_tcp_pdu *pdu, enum nvme_tcp_type type, uint8_t flags,
                          uint16_t cid, uint16_t ttag, uint32_t offset, uint32_t length);
void nvme_tcp_r2t_encode(union nvme_tcp_pdu *pdu, uint16_t cid, uint16_t ttag, uint32_t offset,
                         uint32_t length);

/* What a receiver found wrong; fes as TermReq carries it. */
enum nvme_tcp_fes {
    NVME_TCP_FES_NONE = 0,        /* nothing wrong                                     */
    NVME_TCP_FES_HEADER = 1,      /* invalid header field; fei: its offset             */
    NVME_TCP_FES_SEQUENCE = 2,    /* a PDU that may not come now                       */
    NVME_TCP_FES_HDGST = 3,       /* header digest; fei: the digest received           */
    NVME_TCP_FES_RANGE = 4,       /* data outside the command or R2T                   */
    NVME_TCP_FES_LIMIT = 5,       /* more data or R2Ts than allowed                    */
    NVME_TCP_FES_UNSUPPORTED = 6, /* parameter not supported; fei: its offset          */
};

struct nvme_tcp_bad {
    enum nvme_tcp_fes fes; /* fatal error status                              */
    uint32_t fei;          /* fatal error information: see the enum           */
};

/* type is NVME_TCP_H2C_TERM or NVME_TCP_C2H_TERM. */
void nvme_tcp_term_encode(union nvme_tcp_pdu *pdu, enum nvme_tcp_type type,
                          struct nvme_tcp_bad bad);
void nvme_tcp_term_decode(const union nvme_tcp_pdu *pdu, struct nvme_tcp_bad *out_bad);

/* Sets hlen, pdo, plen and the digest flags for data_bytes of data; writes the header digest and
 * the pad's zeros into pdu->bytes. digests and pda as negotiated: pda is what the receiver asked
 * for in its ICReq or ICResp. IC and TermReq PDUs never have digests. Returns the bytes of
 * pdu->bytes to send in front of the data; a data digest has to follow when NVME_TCP_FLAG_DDGST is
 * set in pdu->common.flags afterwards. */
uint32_t nvme_tcp_frame_encode(union nvme_tcp_pdu *pdu, uint32_t data_bytes, uint8_t digests,
                               uint8_t pda);

/* ---- decode --------------------------------------------------------------------------------- */

enum nvme_tcp_role {
    NVME_TCP_HOST,       /* sends commands     */
    NVME_TCP_CONTROLLER, /* executes them      */
};

/* What a receiver accepts now. */
struct nvme_tcp_rules {
    enum nvme_tcp_role role;   /* the receiver's own                                              */
    bool connected;            /* the peer's IC PDU arrived; before it nothing else may come      */
    uint8_t digests;           /* negotiated: NVME_TCP_FLAG_HDGST, _DDGST                         */
    uint8_t pda;               /* what the receiver asked for                                     */
    uint32_t capsule_data_max; /* controller: largest in-capsule data                             */
    uint32_t data_max;         /* largest data of one H2CData or C2HData PDU                      */
};

/* Where everything of a PDU is. */
struct nvme_tcp_frame {
    enum nvme_tcp_type type; /* known and allowed now                                   */
    uint8_t flags;           /* as they came                                            */
    uint32_t header_bytes;   /* header with its digest and the pad: read these first    */
    uint32_t hlen;           /* header alone: what the header digest covers             */
    uint32_t data_bytes;     /* data; 0: none                                           */
    uint32_t plen;           /* all                                                     */
    bool hdgst;              /* header digest at hlen                                   */
    bool ddgst;              /* data digest behind the data                             */
};

/* Checks the first NVME_TCP_COMMON_BYTES: type, direction, order, hlen, flags, plen and pdo, in
 * this order. PROTOCOL fills out_bad, ICMS_OK fills out_frame; all sizes in it are bounded by the
 * rules. */
icms_err nvme_tcp_hdr_check(const struct nvme_tcp_common_wf *common,
                            const struct nvme_tcp_rules *rules, struct nvme_tcp_frame *out_frame,
                            struct nvme_tcp_bad *out_bad) ICMS_MUST_CHECK;

/* Checks the whole header (frame->header_bytes in pdu): its digest, then the fields of its type
 * that no state is needed for: IC version, alignment, digests and limits; length of data PDUs
 * against the frame; R2T of nothing. PROTOCOL fills out_bad. */
icms_err nvme_tcp_pdu_check(const union nvme_tcp_pdu *pdu, const struct nvme_tcp_frame *frame,
                            struct nvme_tcp_bad *out_bad) ICMS_MUST_CHECK;

/* ---- digests -------------------------------------------------------------------------------- */

/* True when received is the digest of data with CRC32C crc and a length of bytes. Where the length
 * is no multiple of 4, hosts differ: Linux sends the CRC of the data, SPDK that of the data padded
 * with zeros to a multiple of 4; both pass. We send the CRC of the data. */
bool nvme_tcp_ddgst_matches(uint32_t crc, uint32_t bytes, uint32_t received);

#endif
