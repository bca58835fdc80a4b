/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/nvme_kv.h: the NVMe Key-Value command set: commands, key lists, Identify Namespace.
 *
 * Pure: bytes to structs and back; no I/O, memory or clock. Any thread. Decoders take hostile
 * bytes.
 */
#ifndef WIRE_NVME_KV_H
#define WIRE_NVME_KV_H

#include "base/types.h"
#include "wire/nvme.h"

/* ---- commands ------------------------------------------------------------------------------- */

/* Options of Store and Retrieve. */
#define NVME_KV_STORE_IF_EXISTS    0x01 /* only over an existing key                          */
#define NVME_KV_STORE_IF_ABSENT    0x02 /* only when the key does not exist                   */
#define NVME_KV_STORE_UNCOMPRESSED 0x04
#define NVME_KV_RETRIEVE_RAW       0x01 /* no decompression                                   */

/* One KV command. For NVME_ICMS_STORE, _RETRIEVE and _DELETE what is of the vendor travels too. */
struct nvme_kv_cmd {
    uint8_t opcode;        /* NVME_KV_*, NVME_ICMS_STORE, _RETRIEVE, _DELETE                    */
    uint8_t options;       /* NVME_KV_STORE_* or NVME_KV_RETRIEVE_*                             */
    uint8_t io_class;      /* vendor: enum io_class                                             */
    bool may_ask;          /* vendor, Store: NVME_ICMS_ASK is understood, whatever its size     */
    uint32_t nsid;         /* namespace                                                         */
    struct key key;        /* length 1..16; 0 for List: from the first key                      */
    uint32_t bytes;        /* Store: value size; Retrieve, List: host buffer; others: 0         */
    uint32_t time_left_us; /* vendor: the command is worthless after it; 0: no limit            */
    uint32_t record;       /* NVME_ICMS_DELETE: which one, as DW1 of a Retrieve's completion    */
};

/* Records. A controller with NVME_ICMS_EXT_RECORD names the record that a Retrieve read in DW1 of
 * its completion, if that succeeded: never 0, and another number for each value that the key ever
 * has, but for one in 2^32. NVME_ICMS_DELETE deletes only the record of that number (CDW12). So a
 * host that found a value damaged does not delete the one that replaced it meanwhile. */

/* Writes the whole entry; the caller sets cid and sgl afterwards. The command must be valid. */
void nvme_kv_cmd_encode(const struct nvme_kv_cmd *cmd, struct nvme_sqe_wf *out_sqe);

/* UNSUPPORTED: no KV opcode; KEY_SIZE: key length; INVALID: options that contradict or unknown, a
 * class or record that does not exist. Reserved dwords are ignored, unused key bytes come out as
 * zero. err_to_nvme(err) is the status to answer. */
icms_err nvme_kv_cmd_decode(const struct nvme_sqe_wf *sqe,
                            struct nvme_kv_cmd *out_cmd) ICMS_MUST_CHECK;

/* ---- data of List --------------------------------------------------------------------------- */

/* u32 number of keys, then each key: u16 length, bytes, zeros up to a multiple of 4. */
#define NVME_KV_LIST_HEADER_BYTES 4

/* Writes list data piece by piece into the caller's memory. */
struct nvme_kv_list_writer {
    uint8_t *memory;    /* caller's                                              */
    uint32_t bytes_max; /* room                                                  */
    uint32_t bytes;     /* used so far, header included                          */
    uint32_t count;     /* keys so far                                           */
};

/* bytes_max must be at least NVME_KV_LIST_HEADER_BYTES. */
void nvme_kv_list_write_begin(struct nvme_kv_list_writer *writer, void *memory, uint32_t bytes_max);

/* False when the entry does not fit; nothing is written then. */
bool nvme_kv_list_write_key(struct nvme_kv_list_writer *writer, const struct key *key);

/* Writes the count; returns the bytes used. */
uint32_t nvme_kv_list_write_end(struct nvme_kv_list_writer *writer);

/* Reads list data that stays unchanged meanwhile. */
struct nvme_kv_list_reader {
    const uint8_t *memory; /* caller's                                           */
    uint32_t bytes;        /* what there is                                      */
    uint32_t at;           /* next entry                                         */
    uint32_t left;         /* entries not read yet                               */
};

/* Walks all of it once: PROTOCOL when a count, a length or a pad is not possible. */
icms_err nvme_kv_list_read_begin(struct nvme_kv_list_reader *reader, const void *memory,
                                 uint32_t bytes) ICMS_MUST_CHECK;

/* False after the last key. */
bool nvme_kv_list_read_key(struct nvme_kv_list_reader *reader, struct key *out_key);

/* ---- data with a store (vendor) ------------------------------------------------------------- */

/* So much data may come in the capsule of NVME_ICMS_STORE, whatever IOCCSZ says: a value of 256 KiB
 * and its trailer. A controller without room for it drops it, and says with "command interrupted"
 * and this in DW1 that the command is to be sent again without: then it asks with R2Ts when there
 * is room. Data within IOCCSZ it drops only where the command says that the host knows that answer
 * (nvme_kv_cmd.may_ask): else the connection waits for room. */
#define NVME_ICMS_STORE_DATA_BYTES ((uint32_t)(256 << 10) + 64)
#define NVME_ICMS_ASK              0x10000u

/* ---- data of exist-many (vendor) ------------------------------------------------------------ */

/* In capsule: entries of 20 bytes; CDW10 is the number of keys; the answer is a map, bit i for key
 * i, low half in DW0, high half in DW1. */
#define NVME_KV_EXIST_MANY_KEYS  64
#define NVME_KV_EXIST_MANY_BYTES (NVME_KV_EXIST_MANY_KEYS * 20)

struct nvme_kv_exist_key_wf {
    uint8_t bytes[16];   /* key, zeros behind it     */
    uint8_t length;      /* 1..16                    */
    uint8_t reserved[3]; /* 0                        */
};
static_assert(sizeof(struct nvme_kv_exist_key_wf) == 20, "exist-many key");

/* Writes the command (without cid and sgl) and its data; returns the bytes of data. count is
 * 1..NVME_KV_EXIST_MANY_KEYS. */
uint32_t nvme_kv_exist_many_encode(uint32_t nsid, const struct key *keys, uint32_t count,
                                   struct nvme_sqe_wf *out_sqe, void *out_data);

/* The count of the command, before its data is there: INVALID when it is not 1..64. */
icms_err nvme_kv_exist_many_count(const struct nvme_sqe_wf *sqe,
                                  uint32_t *out_count) ICMS_MUST_CHECK;

/* Reads count keys; bytes must be count * 20, else INVALID; KEY_SIZE for a bad length. */
icms_err nvme_kv_exist_many_decode(const void *data, uint32_t bytes, uint32_t count,
                                   struct key *out_keys) ICMS_MUST_CHECK;

/* ---- expedite (vendor) ---------------------------------------------------------------------- */

/* A host waits now for what it asked for ahead of need: CDW10 is how many Retrieves of this queue
 * pair are meant, CDW11 to CDW15 their command ids, two a dword, the lower half first. Those of
 * class PRESTAGE that have not had their turn go on as class LOAD, with all that they had; ids of
 * others, or of none, change nothing. No namespace, no data, and it succeeds at once. */
#define NVME_KV_EXPEDITE_CIDS 10

/* Writes the command (without cid and sgl). count is 1..NVME_KV_EXPEDITE_CIDS. */
void nvme_kv_expedite_encode(const uint16_t *cids, uint32_t count, struct nvme_sqe_wf *out_sqe);

/* INVALID when the count is not 1..NVME_KV_EXPEDITE_CIDS. */
icms_err nvme_kv_expedite_decode(const struct nvme_sqe_wf *sqe,
                                 uint16_t out_cids[NVME_KV_EXPEDITE_CIDS],
                                 uint32_t *out_count) ICMS_MUST_CHECK;

/* ---- Identify Namespace, CNS 05h CSI 01h ---------------------------------------------------- */

struct nvme_kv_ns {
    uint64_t size_bytes;      /* NSZE: quota                                                 */
    uint64_t used_bytes;      /* NUSE                                                        */
    uint32_t value_bytes_max; /* KVVML: largest value as the enclosure sees it, trailer too  */
    uint32_t keys_max;        /* MNKS; 0: no limit                                           */
    uint32_t granularity;     /* NOVG: values best are a multiple of this; 0: any            */
    uint16_t key_bytes_max;   /* KVKML: 1..16                                                */
    bool shared;              /* NMIC b0: reachable through several controllers              */
    uint32_t ana_group;       /* 0: none                                                     */
    uint8_t nguid[16];        /* world-wide name of the namespace                            */
    uint8_t eui64[8];         /* zeros: none                                                 */
    bool icms;                /* the vendor part is there: volume and sealed are valid       */
    struct uuid volume;       /* vendor: the volume this namespace holds a part of           */
    bool sealed;              /* vendor: values end in a trailer (sealed.h)                  */
    bool encrypted;           /* vendor: clients encrypt them                                */
};

void nvme_kv_ns_encode(const struct nvme_kv_ns *ns, uint8_t out_page[NVME_PAGE_BYTES]);

/* PROTOCOL when bytes are fewer than a page or the KV format is not possible. */
icms_err nvme_kv_ns_decode(const void *page, size_t bytes,
                           struct nvme_kv_ns *out_ns) ICMS_MUST_CHECK;

#endif
