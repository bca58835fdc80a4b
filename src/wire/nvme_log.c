/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Get Log Page and the pages that hosts ask for.
 *
 * Called by nvmf while a connection is set up and when discovery asks, on its loop. Pure. Pages are
 * made piece by piece where they are long, so no buffer grows with their number of entries.
 */
#include "wire/nvme_log.h"

#include "base/check.h"
#include "wire/nvme_fabrics.h"
#include "wire/nvme_identify.h"

/* ---- the command ---------------------------------------------------------------------------- */

#define LOG_RAE 0x80 /* CDW10 b15, so b7 of its second byte                   */
#define LOG_LSP 0x7f /* CDW10 14:8: the rest of it                             */
#define LOG_OT  0x80 /* CDW14 b23: the offset is an index, so b7 of its third */

void nvme_log_encode(const struct nvme_log *log, struct nvme_sqe_wf *out_sqe)
{
    uint32_t dwords = (uint32_t)(log->bytes / 4 - 1);

    check(log->bytes >= 4 && log->bytes % 4 == 0 && log->bytes <= (uint64_t)UINT32_MAX * 4);
    *out_sqe = (struct nvme_sqe_wf){
        .opcode = NVME_ADMIN_GET_LOG_PAGE,
        .flags = NVME_SQE_FLAGS_SGL,
        .nsid = le32_of(log->nsid),
        .cdw10 = le32_of(log->page | dwords << 16),
        .cdw11 = le32_of(dwords >> 16),
        .cdw12 = le32_of((uint32_t)log->offset),
        .cdw13 = le32_of((uint32_t)(log->offset >> 32)),
        .cdw14 = le32_of((uint32_t)log->csi << 24),
    };
    out_sqe->cdw10.byte[1] = log->specific & LOG_LSP;
    if (log->retain)
        out_sqe->cdw10.byte[1] |= LOG_RAE;
}

icms_err nvme_log_decode(const struct nvme_sqe_wf *sqe, struct nvme_log *out_log)
{
    uint32_t dwords = le32_get(sqe->cdw10) >> 16 | (le32_get(sqe->cdw11) & 0xffff) << 16;
    uint64_t offset = le32_get(sqe->cdw12) | (uint64_t)le32_get(sqe->cdw13) << 32;

    if (offset % 4 != 0 || (sqe->cdw14.byte[2] & LOG_OT) != 0)
        return ICMS_INVALID;
    *out_log = (struct nvme_log){
        .page = sqe->cdw10.byte[0],
        .csi = sqe->cdw14.byte[3],
        .specific = sqe->cdw10.byte[1] & LOG_LSP,
        .retain = sqe->cdw10.byte[1] & LOG_RAE,
        .nsid = le32_get(sqe->nsid),
        .offset = offset,
        .bytes = ((uint64_t)dwords + 1) * 4,
    };
    return ICMS_OK;
}

/* ---- pages ---------------------------------------------------------------------------------- */

/* A window [offset, offset + bytes) of a page that is put together from parts. */
struct window {
    uint8_t *out;    /* the window's memory, zeroed                     */
    uint64_t offset; /* of its first byte in the page                   */
    uint64_t bytes;  /* of the window                                   */
};

/* INVALID when the window begins past the end of the page. */
static icms_err window_begin(struct window *window, uint64_t page_bytes, uint64_t offset, void *out,
                             uint32_t bytes)
{
    if (offset > page_bytes)
        return ICMS_INVALID;
    memset(out, 0, bytes);
    *window = (struct window){.out = out, .offset = offset, .bytes = bytes};
    return ICMS_OK;
}

static bool window_touches(const struct window *window, uint64_t at, uint64_t bytes)
{
    return at < window->offset + window->bytes && window->offset < at + bytes;
}

/* Puts a part of the page that starts at its byte at; what lies outside the window is left out. */
static void window_put(const struct window *window, uint64_t at, const void *part, uint64_t bytes)
{
    const uint8_t *in = part;
    uint64_t begin = u64_max(at, window->offset);
    uint64_t end = u64_min(at + bytes, window->offset + window->bytes);

    if (begin < end)
        memcpy(window->out + (begin - window->offset), in + (begin - at), end - begin);
}

#define ERROR_BYTES        64 /* one entry: ELPE is 0      */
#define FIRMWARE_BYTES     512
#define FIRMWARE_AT_ACTIVE 0 /* slot in 2:0                */
#define FIRMWARE_AT_SLOT1  8

icms_err nvme_log_quiet_read(uint8_t page, const char *firmware, uint64_t offset, void *out,
                             uint32_t bytes)
{
    uint8_t whole[FIRMWARE_BYTES] = {0};
    struct window window;
    icms_err err;

    if (page == NVME_LOG_ERROR)
        return window_begin(&window, ERROR_BYTES, offset, out, bytes);
    if (page != NVME_LOG_FIRMWARE)
        return ICMS_UNSUPPORTED;
    whole[FIRMWARE_AT_ACTIVE] = 1;
    memset(whole + FIRMWARE_AT_SLOT1, ' ', 8);
    memcpy(whole + FIRMWARE_AT_SLOT1, firmware, strnlen(firmware, 8));
    err = window_begin(&window, sizeof(whole), offset, out, bytes);
    if (err == ICMS_OK)
        window_put(&window, 0, whole, sizeof(whole));
    return err;
}

/* A counter of 16 bytes. */
struct smart_count_wf {
    le64 low;
    le64 high; /* 0 */
};

struct smart_wf {
    uint8_t warnings;                    /* @0   NVME_HEALTH_*                                  */
    uint8_t temperature[2];              /* @1   kelvin, any alignment                          */
    uint8_t spare;                       /* @3   percent                                        */
    uint8_t spare_threshold;             /* @4   percent                                        */
    uint8_t used;                        /* @5   percent of the estimated life                  */
    uint8_t reserved6[26];               /* @6                                                  */
    struct smart_count_wf units_read;    /* @32  thousands of 512 bytes, rounded up             */
    struct smart_count_wf units_written; /* @48                                                 */
    struct smart_count_wf reads;         /* @64                                                 */
    struct smart_count_wf writes;        /* @80                                                 */
    struct smart_count_wf busy;          /* @96  minutes                                        */
    struct smart_count_wf power_cycles;  /* @112                                                */
    struct smart_count_wf hours;         /* @128                                                */
    struct smart_count_wf unsafe;        /* @144 shutdowns                                      */
    struct smart_count_wf media_errors;  /* @160                                                */
    struct smart_count_wf error_entries; /* @176 of log 01h                                     */
    uint8_t reserved192[320];            /* @192                                                */
};
static_assert(sizeof(struct smart_wf) == 512, "SMART log");
static_assert(offsetof(struct smart_wf, units_read) == 32, "SMART log: data units read");
static_assert(offsetof(struct smart_wf, media_errors) == 160, "SMART log: media errors");

#define SMART_UNIT_BYTES ((uint64_t)512 * 1000)

static le64 smart_units(uint64_t bytes)
{
    return le64_of(bytes / SMART_UNIT_BYTES + (bytes % SMART_UNIT_BYTES != 0));
}

icms_err nvme_log_health_read(const struct nvme_health *health, uint64_t offset, void *out,
                              uint32_t bytes)
{
    struct smart_wf page = {
        .warnings = health->warnings,
        .spare = health->spare_percent,
        .spare_threshold = NVME_HEALTH_SPARE_THRESHOLD,
        .units_read.low = smart_units(health->read_bytes),
        .units_written.low = smart_units(health->written_bytes),
        .reads.low = le64_of(health->reads),
        .writes.low = le64_of(health->writes),
        .hours.low = le64_of(health->power_on_hours),
        .media_errors.low = le64_of(health->media_errors),
    };
    struct window window;
    icms_err err = window_begin(&window, sizeof(page), offset, out, bytes);

    if (err == ICMS_OK)
        window_put(&window, 0, &page, sizeof(page));
    return err;
}

icms_err nvme_log_ns_changed_read(const uint32_t *nsids, uint32_t count, uint64_t offset, void *out,
                                  uint32_t bytes)
{
    struct window window;
    icms_err err = window_begin(&window, NVME_PAGE_BYTES, offset, out, bytes);

    if (err != ICMS_OK)
        return err;
    if (count > NVME_NS_LIST_MAX) {
        le32 all = le32_of(NVME_NSID_ALL);

        window_put(&window, 0, &all, sizeof(all));
        return ICMS_OK;
    }
    for (uint32_t i = 0; i < count; i++) {
        le32 nsid = le32_of(nsids[i]);

        window_put(&window, i * sizeof(nsid), &nsid, sizeof(nsid));
    }
    return ICMS_OK;
}

#define EFFECTS_BYTES     4096
#define EFFECTS_AT_ADMIN  0
#define EFFECTS_AT_IO     1024
#define EFFECTS_SUPPORTED 0x1u
#define EFFECTS_CHANGES   0x2u /* LBCC: changes what is stored */

static void effects_put(const struct window *window, uint32_t table, uint8_t opcode,
                        uint32_t effects)
{
    le32 wf = le32_of(effects);

    window_put(window, table + opcode * sizeof(wf), &wf, sizeof(wf));
}

icms_err nvme_log_effects_read(uint8_t csi, uint32_t icms_ext, uint64_t offset, void *out,
                               uint32_t bytes)
{
    static const uint8_t admin[] = {
        NVME_ADMIN_GET_LOG_PAGE, NVME_ADMIN_IDENTIFY,     NVME_ADMIN_ABORT,
        NVME_ADMIN_SET_FEATURES, NVME_ADMIN_GET_FEATURES, NVME_ADMIN_ASYNC_EVENT,
        NVME_ADMIN_KEEP_ALIVE,
    };
    const uint32_t changes = EFFECTS_SUPPORTED | EFFECTS_CHANGES;
    struct window window;

    if (csi != NVME_CSI_NVM && csi != NVME_CSI_KV)
        return ICMS_INVALID;
    if (window_begin(&window, EFFECTS_BYTES, offset, out, bytes) != ICMS_OK)
        return ICMS_INVALID;
    for (size_t i = 0; i < sizeof(admin); i++)
        effects_put(&window, EFFECTS_AT_ADMIN, admin[i], EFFECTS_SUPPORTED);
    effects_put(&window, EFFECTS_AT_IO, NVME_IO_FLUSH, EFFECTS_SUPPORTED);
    if (csi == NVME_CSI_NVM)
        return ICMS_OK;
    effects_put(&window, EFFECTS_AT_IO, NVME_KV_STORE, changes);
    effects_put(&window, EFFECTS_AT_IO, NVME_KV_RETRIEVE, EFFECTS_SUPPORTED);
    effects_put(&window, EFFECTS_AT_IO, NVME_KV_LIST, EFFECTS_SUPPORTED);
    effects_put(&window, EFFECTS_AT_IO, NVME_KV_DELETE, changes);
    effects_put(&window, EFFECTS_AT_IO, NVME_KV_EXIST, EFFECTS_SUPPORTED);
    if (icms_ext & NVME_ICMS_EXT_EXIST_MANY)
        effects_put(&window, EFFECTS_AT_IO, NVME_ICMS_EXIST_MANY, EFFECTS_SUPPORTED);
    if (icms_ext & NVME_ICMS_EXT_TIMED) {
        effects_put(&window, EFFECTS_AT_IO, NVME_ICMS_STORE, changes);
        effects_put(&window, EFFECTS_AT_IO, NVME_ICMS_RETRIEVE, EFFECTS_SUPPORTED);
    }
    if (icms_ext & NVME_ICMS_EXT_RECORD)
        effects_put(&window, EFFECTS_AT_IO, NVME_ICMS_DELETE, changes);
    if (icms_ext & NVME_ICMS_EXT_EXPEDITE)
        effects_put(&window, EFFECTS_AT_IO, NVME_ICMS_EXPEDITE, EFFECTS_SUPPORTED);
    return ICMS_OK;
}

struct ana_header_wf {
    le64 changes;        /* @0             */
    le16 groups;         /* @8             */
    uint8_t reserved[6]; /* @10            */
};
static_assert(sizeof(struct ana_header_wf) == 16, "ANA log: header");

struct ana_group_wf {
    le32 group;           /* @0            */
    le32 count;           /* @4  of nsids  */
    le64 changes;         /* @8            */
    uint8_t state;        /* @16 3:0       */
    uint8_t reserved[15]; /* @17           */
};
static_assert(sizeof(struct ana_group_wf) == 32, "ANA log: group");

icms_err nvme_log_ana_read(const struct nvme_ana *ana, uint64_t offset, void *out, uint32_t bytes)
{
    const uint64_t nsids_at = sizeof(struct ana_header_wf) + sizeof(struct ana_group_wf);
    const struct ana_header_wf header = {.changes = le64_of(ana->changes), .groups = le16_of(1)};
    const struct ana_group_wf group = {
        .group = le32_of(ana->group),
        .count = le32_of(ana->count),
        .changes = le64_of(ana->changes),
        .state = ana->state,
    };
    struct window window;
    icms_err err;

    check(ana->group != 0 && ana->count <= ana->count_max);
    err = window_begin(&window, nsids_at + (uint64_t)ana->count_max * sizeof(le32), offset, out,
                       bytes);
    if (err != ICMS_OK)
        return err;
    window_put(&window, 0, &header, sizeof(header));
    window_put(&window, sizeof(header), &group, sizeof(group));
    for (uint32_t i = 0; i < ana->count; i++) {
        le32 nsid = le32_of(ana->nsids[i]);

        window_put(&window, nsids_at + i * sizeof(nsid), &nsid, sizeof(nsid));
    }
    return ICMS_OK;
}

/* ---- discovery ------------------------------------------------------------------------------ */

struct disc_header_wf {
    le64 generation;        /* @0                    */
    le64 count;             /* @8                    */
    le16 format;            /* @16 0                 */
    uint8_t reserved[1006]; /* @18                   */
};
static_assert(sizeof(struct disc_header_wf) == NVME_DISC_HEADER_BYTES, "discovery header");

struct disc_entry_wf {
    uint8_t transport;            /* @0   3: TCP                                       */
    uint8_t family;               /* @1   1: IPv4, 2: IPv6                             */
    uint8_t subtype;              /* @2   enum nvme_disc_subtype                       */
    uint8_t treq;                 /* @3   NVME_DISC_TLS_*                              */
    le16 port_id;                 /* @4                                                */
    le16 cntlid;                  /* @6   NVME_CNTLID_ANY: dynamic                     */
    le16 admin_entries;           /* @8   at least 32                                  */
    le16 flags;                   /* @10  EFLAGS                                       */
    uint8_t reserved12[20];       /* @12                                               */
    char service[32];             /* @32  padded with spaces                           */
    uint8_t reserved64[192];      /* @64                                               */
    char subnqn[NVME_NQN_BYTES];  /* @256 ends in a zero                               */
    char address[NVME_NQN_BYTES]; /* @512 padded with spaces                           */
    uint8_t security[256];        /* @768 SECTYPE: 0 none, 2 TLS 1.3                   */
};
static_assert(sizeof(struct disc_entry_wf) == NVME_DISC_ENTRY_BYTES, "discovery entry");
static_assert(offsetof(struct disc_entry_wf, service) == 32, "discovery entry: service");
static_assert(offsetof(struct disc_entry_wf, address) == 512, "discovery entry: address");

#define DISC_TRANSPORT_TCP 3
#define DISC_FAMILY_IPV4   1
#define DISC_FAMILY_IPV6   2

#define DISC_SECTYPE_TLS_1_3 2
#define DISC_TREQ_MASK       3

static void disc_entry_encode(const struct nvme_disc_entry *entry, struct disc_entry_wf *out)
{
    memset(out, 0, sizeof(*out));
    out->transport = DISC_TRANSPORT_TCP;
    out->family = entry->ipv6 ? DISC_FAMILY_IPV6 : DISC_FAMILY_IPV4;
    out->subtype = (uint8_t)entry->subtype;
    out->port_id = le16_of(entry->port_id);
    out->cntlid = le16_of(NVME_CNTLID_ANY);
    out->admin_entries = le16_of(entry->admin_entries);
    out->flags = le16_of(entry->flags);
    memset(out->service, ' ', sizeof(out->service));
    memcpy(out->service, entry->service, strnlen(entry->service, sizeof(out->service)));
    memset(out->address, ' ', sizeof(out->address));
    memcpy(out->address, entry->address, strnlen(entry->address, sizeof(entry->address)));
    memcpy(out->subnqn, entry->subnqn, strnlen(entry->subnqn, NVME_NQN_MAX));
    out->treq = entry->treq;
    out->security[0] = entry->tls ? DISC_SECTYPE_TLS_1_3 : 0;
}

icms_err nvme_log_discovery_read(uint64_t generation, const struct nvme_disc_entry *entries,
                                 uint32_t count, uint64_t offset, void *out, uint32_t bytes)
{
    uint64_t whole = NVME_DISC_HEADER_BYTES + (uint64_t)count * NVME_DISC_ENTRY_BYTES;
    struct disc_header_wf header;
    struct window window;

    if (window_begin(&window, whole, offset, out, bytes) != ICMS_OK)
        return ICMS_INVALID;
    memset(&header, 0, sizeof(header));
    header.generation = le64_of(generation);
    header.count = le64_of(count);
    window_put(&window, 0, &header, sizeof(header));
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = NVME_DISC_HEADER_BYTES + (uint64_t)i * NVME_DISC_ENTRY_BYTES;
        struct disc_entry_wf entry;

        if (!window_touches(&window, at, sizeof(entry)))
            continue;
        disc_entry_encode(&entries[i], &entry);
        window_put(&window, at, &entry, sizeof(entry));
    }
    return ICMS_OK;
}

icms_err nvme_disc_header_decode(const void *data, size_t bytes, uint64_t *out_generation,
                                 uint64_t *out_count)
{
    const struct disc_header_wf *header = data;

    if (bytes < offsetof(struct disc_header_wf, reserved) || le16_get(header->format) != 0)
        return ICMS_PROTOCOL;
    *out_generation = le64_get(header->generation);
    *out_count = le64_get(header->count);
    return ICMS_OK;
}

/* Copies a text that is padded with spaces or zeros; false when it is empty, too long or not
 * printable. */
static bool disc_text(const char *in, size_t in_bytes, char *out, size_t out_bytes)
{
    size_t n = strnlen(in, in_bytes);

    while (n > 0 && in[n - 1] == ' ')
        n--;
    if (n == 0 || n >= out_bytes)
        return false;
    for (size_t i = 0; i < n; i++)
        if (in[i] <= ' ' || in[i] > '~')
            return false;
    memcpy(out, in, n);
    out[n] = '\0';
    return true;
}

icms_err nvme_disc_entry_decode(const void *data, size_t bytes, struct nvme_disc_entry *out_entry)
{
    struct nvme_disc_entry entry = {0};
    struct disc_entry_wf wf;

    if (bytes < sizeof(wf))
        return ICMS_PROTOCOL;
    memcpy(&wf, data, sizeof(wf));
    if (wf.transport != DISC_TRANSPORT_TCP ||
        (wf.family != DISC_FAMILY_IPV4 && wf.family != DISC_FAMILY_IPV6))
        return ICMS_UNSUPPORTED;
    if (wf.subtype < NVME_DISC_REFERRAL || wf.subtype > NVME_DISC_CURRENT)
        return ICMS_PROTOCOL;
    entry.subtype = wf.subtype;
    entry.port_id = le16_get(wf.port_id);
    entry.admin_entries = le16_get(wf.admin_entries);
    entry.flags = le16_get(wf.flags);
    entry.treq = wf.treq & DISC_TREQ_MASK;
    entry.tls = wf.security[0] == DISC_SECTYPE_TLS_1_3;
    entry.ipv6 = wf.family == DISC_FAMILY_IPV6;
    if (!disc_text(wf.address, sizeof(wf.address), entry.address, sizeof(entry.address)) ||
        !disc_text(wf.service, sizeof(wf.service), entry.service, sizeof(entry.service)) ||
        !nvme_nqn_valid(wf.subnqn, sizeof(wf.subnqn)))
        return ICMS_PROTOCOL;
    memcpy(entry.subnqn, wf.subnqn, strnlen(wf.subnqn, NVME_NQN_MAX));
    *out_entry = entry;
    return ICMS_OK;
}
