/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Key-Value command set: commands, key lists, Identify Namespace.
 *
 * Called by nvmf (both sides) on its loop. Pure. Invariant: a decoded key has zeros behind its
 * length, so keys compare as 16 bytes and a length.
 */
#include "wire/nvme_kv.h"

#include "base/check.h"
#include "wire/vendor_wf.h"

/* ---- commands ------------------------------------------------------------------------------- */

/* Key bytes into and out of CDW2, 3, 14, 15; the length is CDW11 7:0 and not touched here. */
static void nvme_kv_key_encode(const struct key *key, struct nvme_sqe_wf *sqe)
{
    uint8_t bytes[LIMIT_KEY_BYTES] = {0};

    check(key->length <= LIMIT_KEY_BYTES);
    memcpy(bytes, key->bytes, key->length);
    memcpy(sqe->cdw2.byte, bytes, 4);
    memcpy(sqe->cdw3.byte, bytes + 4, 4);
    memcpy(sqe->cdw14.byte, bytes + 8, 4);
    memcpy(sqe->cdw15.byte, bytes + 12, 4);
}

static void nvme_kv_key_decode(const struct nvme_sqe_wf *sqe, uint8_t length, struct key *out_key)
{
    uint8_t bytes[LIMIT_KEY_BYTES];

    check(length <= LIMIT_KEY_BYTES);
    memcpy(bytes, sqe->cdw2.byte, 4);
    memcpy(bytes + 4, sqe->cdw3.byte, 4);
    memcpy(bytes + 8, sqe->cdw14.byte, 4);
    memcpy(bytes + 12, sqe->cdw15.byte, 4);
    *out_key = (struct key){.length = length};
    memcpy(out_key->bytes, bytes, length);
}

/* In CDW13, behind the class. */
#define KV_MAY_ASK 0x100u

/* Which parts an opcode has. */
struct kv_shape {
    uint8_t options;  /* bits that may be set            */
    bool has_options; /* else the byte is reserved       */
    bool has_bytes;   /* CDW10 is a size                 */
    bool has_time;    /* CDW12, 13 are time and class    */
    bool has_record;  /* CDW12 is a record               */
    bool any_key;     /* a key of length 0 is allowed    */
};

static bool kv_shape(uint8_t opcode, struct kv_shape *out_shape)
{
    struct kv_shape shape = {0};

    switch (opcode) {
    case NVME_KV_STORE:
    case NVME_ICMS_STORE:
        shape.has_options = true;
        shape.options =
            NVME_KV_STORE_IF_EXISTS | NVME_KV_STORE_IF_ABSENT | NVME_KV_STORE_UNCOMPRESSED;
        shape.has_bytes = true;
        shape.has_time = opcode == NVME_ICMS_STORE;
        break;
    case NVME_KV_RETRIEVE:
    case NVME_ICMS_RETRIEVE:
        shape.has_options = true;
        shape.options = NVME_KV_RETRIEVE_RAW;
        shape.has_bytes = true;
        shape.has_time = opcode == NVME_ICMS_RETRIEVE;
        break;
    case NVME_KV_LIST:
        shape.has_bytes = true;
        shape.any_key = true;
        break;
    case NVME_ICMS_DELETE:
        shape.has_record = true;
        break;
    case NVME_KV_DELETE:
    case NVME_KV_EXIST:
        break;
    default:
        return false;
    }
    *out_shape = shape;
    return true;
}

void nvme_kv_cmd_encode(const struct nvme_kv_cmd *cmd, struct nvme_sqe_wf *out_sqe)
{
    struct kv_shape shape;

    check(kv_shape(cmd->opcode, &shape));
    check(cmd->key.length <= LIMIT_KEY_BYTES && (cmd->key.length > 0 || shape.any_key));
    *out_sqe = (struct nvme_sqe_wf){
        .opcode = cmd->opcode,
        .flags = NVME_SQE_FLAGS_SGL,
        .nsid = le32_of(cmd->nsid),
    };
    out_sqe->cdw11.byte[0] = cmd->key.length;
    if (shape.has_options)
        out_sqe->cdw11.byte[1] = cmd->options;
    if (shape.has_bytes)
        out_sqe->cdw10 = le32_of(cmd->bytes);
    if (shape.has_time) {
        out_sqe->cdw12 = le32_of(cmd->time_left_us);
        out_sqe->cdw13 = le32_of(cmd->io_class | (cmd->may_ask ? KV_MAY_ASK : 0));
    }
    if (shape.has_record)
        out_sqe->cdw12 = le32_of(cmd->record);
    nvme_kv_key_encode(&cmd->key, out_sqe);
}

icms_err nvme_kv_cmd_decode(const struct nvme_sqe_wf *sqe, struct nvme_kv_cmd *out_cmd)
{
    struct nvme_kv_cmd cmd = {.opcode = sqe->opcode, .nsid = le32_get(sqe->nsid)};
    const uint8_t both = NVME_KV_STORE_IF_EXISTS | NVME_KV_STORE_IF_ABSENT;
    uint8_t length = sqe->cdw11.byte[0];
    struct kv_shape shape;

    if (!kv_shape(sqe->opcode, &shape))
        return ICMS_UNSUPPORTED;
    if (length > LIMIT_KEY_BYTES || (length == 0 && !shape.any_key))
        return ICMS_KEY_SIZE;
    if (shape.has_options) {
        cmd.options = sqe->cdw11.byte[1];
        if ((cmd.options & ~shape.options) != 0 || (cmd.options & both) == both)
            return ICMS_INVALID;
    }
    if (shape.has_bytes)
        cmd.bytes = le32_get(sqe->cdw10);
    if (shape.has_time) {
        cmd.time_left_us = le32_get(sqe->cdw12);
        cmd.io_class = sqe->cdw13.byte[0];
        cmd.may_ask = (le32_get(sqe->cdw13) & KV_MAY_ASK) != 0;
        if (cmd.io_class >= IO_CLASS_COUNT)
            return ICMS_INVALID;
    }
    if (shape.has_record) {
        cmd.record = le32_get(sqe->cdw12);
        if (cmd.record == 0)
            return ICMS_INVALID;
    }
    nvme_kv_key_decode(sqe, length, &cmd.key);
    *out_cmd = cmd;
    return ICMS_OK;
}

/* ---- data of List --------------------------------------------------------------------------- */

static uint32_t list_entry_bytes(uint32_t key_length)
{
    return (uint32_t)bytes_align(2 + key_length, 4);
}

void nvme_kv_list_write_begin(struct nvme_kv_list_writer *writer, void *memory, uint32_t bytes_max)
{
    check(bytes_max >= NVME_KV_LIST_HEADER_BYTES);
    *writer = (struct nvme_kv_list_writer){
        .memory = memory,
        .bytes_max = bytes_max,
        .bytes = NVME_KV_LIST_HEADER_BYTES,
    };
}

bool nvme_kv_list_write_key(struct nvme_kv_list_writer *writer, const struct key *key)
{
    uint32_t entry = list_entry_bytes(key->length);
    uint8_t *at = writer->memory + writer->bytes;

    check(key->length >= 1 && key->length <= LIMIT_KEY_BYTES);
    if (entry > writer->bytes_max - writer->bytes)
        return false;
    memset(at, 0, entry);
    at[0] = key->length;
    memcpy(at + 2, key->bytes, key->length);
    writer->bytes += entry;
    writer->count++;
    return true;
}

uint32_t nvme_kv_list_write_end(struct nvme_kv_list_writer *writer)
{
    le32 count = le32_of(writer->count);

    memcpy(writer->memory, &count, sizeof(count));
    return writer->bytes;
}

/* Reads the entry at reader->at; false when it is not possible. */
static bool list_entry_read(struct nvme_kv_list_reader *reader, struct key *out_key)
{
    const uint8_t *at = reader->memory + reader->at;
    uint32_t room = reader->bytes - reader->at;
    uint32_t length;

    if (room < 2)
        return false;
    length = (uint32_t)at[0] | (uint32_t)at[1] << 8;
    if (length < 1 || length > LIMIT_KEY_BYTES || list_entry_bytes(length) > room)
        return false;
    *out_key = (struct key){.length = (uint8_t)length};
    memcpy(out_key->bytes, at + 2, length);
    reader->at += list_entry_bytes(length);
    return true;
}

icms_err nvme_kv_list_read_begin(struct nvme_kv_list_reader *reader, const void *memory,
                                 uint32_t bytes)
{
    struct nvme_kv_list_reader walk = {.memory = memory, .bytes = bytes};
    struct key key;
    le32 count;

    if (bytes < NVME_KV_LIST_HEADER_BYTES)
        return ICMS_PROTOCOL;
    memcpy(&count, memory, sizeof(count));
    walk.at = NVME_KV_LIST_HEADER_BYTES;
    walk.left = le32_get(count);
    *reader = walk;
    /* Each entry takes at least 4 bytes, so a count that lies ends the walk soon. */
    for (uint32_t i = 0; i < walk.left; i++)
        if (!list_entry_read(&walk, &key))
            return ICMS_PROTOCOL;
    return ICMS_OK;
}

bool nvme_kv_list_read_key(struct nvme_kv_list_reader *reader, struct key *out_key)
{
    if (reader->left == 0 || !list_entry_read(reader, out_key))
        return false;
    reader->left--;
    return true;
}

/* ---- data of exist-many --------------------------------------------------------------------- */

uint32_t nvme_kv_exist_many_encode(uint32_t nsid, const struct key *keys, uint32_t count,
                                   struct nvme_sqe_wf *out_sqe, void *out_data)
{
    uint8_t *at = out_data;

    check(count >= 1 && count <= NVME_KV_EXIST_MANY_KEYS);
    *out_sqe = (struct nvme_sqe_wf){
        .opcode = NVME_ICMS_EXIST_MANY,
        .flags = NVME_SQE_FLAGS_SGL,
        .nsid = le32_of(nsid),
        .cdw10 = le32_of(count),
    };
    for (uint32_t i = 0; i < count; i++) {
        struct nvme_kv_exist_key_wf entry = {.length = keys[i].length};

        check(keys[i].length >= 1 && keys[i].length <= LIMIT_KEY_BYTES);
        if (keys[i].length == LIMIT_KEY_BYTES) /* a length that the compiler knows */
            memcpy(entry.bytes, keys[i].bytes, LIMIT_KEY_BYTES);
        else
            memcpy(entry.bytes, keys[i].bytes, keys[i].length);
        memcpy(at + i * sizeof(entry), &entry, sizeof(entry));
    }
    return count * (uint32_t)sizeof(struct nvme_kv_exist_key_wf);
}

icms_err nvme_kv_exist_many_count(const struct nvme_sqe_wf *sqe, uint32_t *out_count)
{
    uint32_t count = le32_get(sqe->cdw10);

    if (count < 1 || count > NVME_KV_EXIST_MANY_KEYS)
        return ICMS_INVALID;
    *out_count = count;
    return ICMS_OK;
}

icms_err nvme_kv_exist_many_decode(const void *data, uint32_t bytes, uint32_t count,
                                   struct key *out_keys)
{
    const uint8_t *at = data;

    if (count < 1 || count > NVME_KV_EXIST_MANY_KEYS ||
        bytes != count * sizeof(struct nvme_kv_exist_key_wf))
        return ICMS_INVALID;
    for (uint32_t i = 0; i < count; i++) {
        struct nvme_kv_exist_key_wf entry;

        memcpy(&entry, at + i * sizeof(entry), sizeof(entry));
        if (entry.length < 1 || entry.length > LIMIT_KEY_BYTES)
            return ICMS_KEY_SIZE;
        out_keys[i] = (struct key){.length = entry.length};
        memcpy(out_keys[i].bytes, entry.bytes, entry.length);
    }
    return ICMS_OK;
}

/* ---- expedite ------------------------------------------------------------------------------- */

void nvme_kv_expedite_encode(const uint16_t *cids, uint32_t count, struct nvme_sqe_wf *out_sqe)
{
    le32 *const dwords[] = {&out_sqe->cdw11, &out_sqe->cdw12, &out_sqe->cdw13, &out_sqe->cdw14,
                            &out_sqe->cdw15};

    check(count >= 1 && count <= NVME_KV_EXPEDITE_CIDS);
    *out_sqe = (struct nvme_sqe_wf){
        .opcode = NVME_ICMS_EXPEDITE,
        .flags = NVME_SQE_FLAGS_SGL,
        .cdw10 = le32_of(count),
    };
    for (uint32_t i = 0; i < count; i++)
        *dwords[i / 2] = le32_of(le32_get(*dwords[i / 2]) | (uint32_t)cids[i] << i % 2 * 16);
}

icms_err nvme_kv_expedite_decode(const struct nvme_sqe_wf *sqe,
                                 uint16_t out_cids[NVME_KV_EXPEDITE_CIDS], uint32_t *out_count)
{
    const le32 dwords[] = {sqe->cdw11, sqe->cdw12, sqe->cdw13, sqe->cdw14, sqe->cdw15};
    uint32_t count = le32_get(sqe->cdw10);

    if (count < 1 || count > NVME_KV_EXPEDITE_CIDS)
        return ICMS_INVALID;
    for (uint32_t i = 0; i < count; i++)
        out_cids[i] = (uint16_t)(le32_get(dwords[i / 2]) >> i % 2 * 16);
    *out_count = count;
    return ICMS_OK;
}

/* ---- Identify Namespace --------------------------------------------------------------------- */

/* One KV format. */
struct kv_format_wf {
    le16 key_bytes_max;   /* @0 KVKML                    */
    uint8_t reserved2;    /* @2                          */
    uint8_t options;      /* @3 AFO                      */
    le32 value_bytes_max; /* @4 KVVML                    */
    le32 keys_max;        /* @8 MNKS                     */
    uint8_t reserved12[4];
};
static_assert(sizeof(struct kv_format_wf) == 16, "KV format");

/* The page of CNS 05h, CSI 01h. */
struct kv_ns_wf {
    le64 nsze;                      /* @0   bytes                     */
    uint8_t reserved8[8];           /* @8                             */
    le64 nuse;                      /* @16  bytes                     */
    uint8_t nsfeat;                 /* @24                            */
    uint8_t nkvf;                   /* @25  formats, 0's based        */
    uint8_t nmic;                   /* @26  b0: shared                */
    uint8_t rescap;                 /* @27                            */
    uint8_t fpi;                    /* @28                            */
    uint8_t kvfc;                   /* @29  format in use, 3:0        */
    uint8_t reserved30[2];          /* @30                            */
    le32 novg;                      /* @32  best value granularity    */
    le32 anagrpid;                  /* @36                            */
    uint8_t reserved40[3];          /* @40                            */
    uint8_t nsattr;                 /* @43                            */
    le16 nvmsetid;                  /* @44                            */
    le16 endgid;                    /* @46                            */
    uint8_t nguid[16];              /* @48                            */
    uint8_t eui64[8];               /* @64                            */
    struct kv_format_wf format[16]; /* @72                            */
    uint8_t reserved328[3512];      /* @328                           */
    struct vendor_ns_wf vendor;     /* @3840                          */
};
static_assert(sizeof(struct kv_ns_wf) == NVME_PAGE_BYTES, "KV namespace");
static_assert(offsetof(struct kv_ns_wf, novg) == 32, "KV namespace: novg");
static_assert(offsetof(struct kv_ns_wf, nguid) == 48, "KV namespace: nguid");
static_assert(offsetof(struct kv_ns_wf, format) == 72, "KV namespace: formats");
static_assert(offsetof(struct kv_ns_wf, vendor) == 3840, "KV namespace: vendor");

#define KV_NMIC_SHARED 0x01

void nvme_kv_ns_encode(const struct nvme_kv_ns *ns, uint8_t out_page[NVME_PAGE_BYTES])
{
    struct kv_ns_wf page;

    check(ns->key_bytes_max >= 1 && ns->key_bytes_max <= LIMIT_KEY_BYTES);
    memset(&page, 0, sizeof(page));
    page.nsze = le64_of(ns->size_bytes);
    page.nuse = le64_of(ns->used_bytes);
    page.nmic = ns->shared ? KV_NMIC_SHARED : 0;
    page.novg = le32_of(ns->granularity);
    page.anagrpid = le32_of(ns->ana_group);
    memcpy(page.nguid, ns->nguid, sizeof(page.nguid));
    memcpy(page.eui64, ns->eui64, sizeof(page.eui64));
    page.format[0].key_bytes_max = le16_of(ns->key_bytes_max);
    page.format[0].value_bytes_max = le32_of(ns->value_bytes_max);
    page.format[0].keys_max = le32_of(ns->keys_max);
    if (ns->icms) {
        page.vendor.magic = le32_of(VENDOR_MAGIC);
        page.vendor.version = VENDOR_VERSION;
        page.vendor.flags = (uint8_t)((ns->sealed ? VENDOR_NS_SEALED : 0) |
                                      (ns->encrypted ? VENDOR_NS_ENCRYPTED : 0));
        memcpy(page.vendor.volume, ns->volume.bytes, sizeof(page.vendor.volume));
    }
    memcpy(out_page, &page, sizeof(page));
}

icms_err nvme_kv_ns_decode(const void *page, size_t bytes, struct nvme_kv_ns *out_ns)
{
    struct kv_ns_wf wf;
    const struct kv_format_wf *format;
    struct nvme_kv_ns ns = {0};

    if (bytes < sizeof(wf))
        return ICMS_PROTOCOL;
    memcpy(&wf, page, sizeof(wf));
    format = &wf.format[wf.kvfc & 0xf];
    ns.size_bytes = le64_get(wf.nsze);
    ns.used_bytes = le64_get(wf.nuse);
    ns.value_bytes_max = le32_get(format->value_bytes_max);
    ns.keys_max = le32_get(format->keys_max);
    ns.key_bytes_max = le16_get(format->key_bytes_max);
    ns.granularity = le32_get(wf.novg);
    ns.shared = wf.nmic & KV_NMIC_SHARED;
    ns.ana_group = le32_get(wf.anagrpid);
    memcpy(ns.nguid, wf.nguid, sizeof(ns.nguid));
    memcpy(ns.eui64, wf.eui64, sizeof(ns.eui64));
    if (ns.key_bytes_max < 1 || ns.key_bytes_max > LIMIT_KEY_BYTES)
        return ICMS_PROTOCOL;
    ns.icms = le32_get(wf.vendor.magic) == VENDOR_MAGIC && wf.vendor.version == VENDOR_VERSION;
    if (ns.icms) {
        ns.sealed = wf.vendor.flags & VENDOR_NS_SEALED;
        ns.encrypted = wf.vendor.flags & VENDOR_NS_ENCRYPTED;
        memcpy(ns.volume.bytes, wf.vendor.volume, sizeof(ns.volume.bytes));
    }
    *out_ns = ns;
    return ICMS_OK;
}
