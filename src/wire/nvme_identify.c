/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data of Identify.
 *
 * Called by nvmf while a connection is set up, on its loop. Pure. What Linux and SPDK hosts insist
 * on is in the encoders; what we insist on as a host is in the decoders.
 */
#include "wire/nvme_identify.h"

#include "base/check.h"
#include "wire/nvme_fabrics.h"
#include "wire/vendor_wf.h"

/* ---- the command ---------------------------------------------------------------------------- */

void nvme_identify_encode(const struct nvme_identify *identify, struct nvme_sqe_wf *out_sqe)
{
    *out_sqe = (struct nvme_sqe_wf){
        .opcode = NVME_ADMIN_IDENTIFY,
        .flags = NVME_SQE_FLAGS_SGL,
        .nsid = le32_of(identify->nsid),
        .cdw10 = le32_of(identify->cns),
        .cdw11 = le32_of((uint32_t)identify->csi << 24),
    };
}

void nvme_identify_decode(const struct nvme_sqe_wf *sqe, struct nvme_identify *out_identify)
{
    *out_identify = (struct nvme_identify){
        .cns = sqe->cdw10.byte[0],
        .csi = sqe->cdw11.byte[3],
        .nsid = le32_get(sqe->nsid),
    };
}

/* ---- controller ----------------------------------------------------------------------------- */

struct ctrl_wf {
    le16 vid;                     /* @0                                                     */
    le16 ssvid;                   /* @2                                                     */
    char serial[20];              /* @4    padded with spaces                               */
    char model[40];               /* @24                                                    */
    char firmware[8];             /* @64                                                    */
    uint8_t rab;                  /* @72                                                    */
    uint8_t ieee[3];              /* @73                                                    */
    uint8_t cmic;                 /* @76   CTRL_CMIC_*                                      */
    uint8_t mdts;                 /* @77                                                    */
    le16 cntlid;                  /* @78                                                    */
    le32 version;                 /* @80                                                    */
    le32 rtd3r;                   /* @84                                                    */
    le32 rtd3e;                   /* @88                                                    */
    le32 oaes;                    /* @92                                                    */
    le32 ctratt;                  /* @96   b0: host id of 16 bytes                          */
    uint8_t reserved100[11];      /* @100                                                   */
    uint8_t type;                 /* @111                                                   */
    uint8_t reserved112[144];     /* @112                                                   */
    le16 oacs;                    /* @256                                                   */
    uint8_t acl;                  /* @258  0's based                                        */
    uint8_t aerl;                 /* @259  0's based                                        */
    uint8_t frmw;                 /* @260  b0 slot 1 read only, 3:1 slots                   */
    uint8_t lpa;                  /* @261  CTRL_LPA_*                                       */
    uint8_t elpe;                 /* @262  0's based                                        */
    uint8_t npss;                 /* @263  0's based                                        */
    uint8_t reserved264[56];      /* @264                                                   */
    le16 kas;                     /* @320  100 ms                                           */
    uint8_t reserved322[20];      /* @322                                                   */
    uint8_t anatt;                /* @342  s                                                */
    uint8_t anacap;               /* @343  CTRL_ANACAP_*                                    */
    le32 anagrpmax;               /* @344                                                   */
    le32 nanagrpid;               /* @348                                                   */
    uint8_t reserved352[160];     /* @352                                                   */
    uint8_t sqes;                 /* @512                                                   */
    uint8_t cqes;                 /* @513                                                   */
    le16 maxcmd;                  /* @514                                                   */
    le32 nn;                      /* @516                                                   */
    le16 oncs;                    /* @520                                                   */
    le16 fuses;                   /* @522                                                   */
    uint8_t fna;                  /* @524                                                   */
    uint8_t vwc;                  /* @525  b0 there is one, 2:1 Flush of all namespaces     */
    uint8_t reserved526[10];      /* @526                                                   */
    le32 sgls;                    /* @536  1:0 SGLs, b20 offsets                            */
    le32 mnan;                    /* @540                                                   */
    uint8_t reserved544[224];     /* @544                                                   */
    char subnqn[NVME_NQN_BYTES];  /* @768                                                   */
    uint8_t reserved1024[768];    /* @1024                                                  */
    le32 ioccsz;                  /* @1792 16 bytes                                         */
    le32 iorcsz;                  /* @1796 16 bytes                                         */
    le16 icdoff;                  /* @1800 16 bytes                                         */
    uint8_t fcatt;                /* @1802                                                  */
    uint8_t msdbd;                /* @1803 SGL descriptors                                  */
    le16 ofcs;                    /* @1804                                                  */
    uint8_t reserved1806[242];    /* @1806                                                  */
    uint8_t power[1024];          /* @2048                                                  */
    struct vendor_ctrl_wf vendor; /* @3072                                                  */
};
static_assert(sizeof(struct ctrl_wf) == NVME_PAGE_BYTES, "Identify Controller");
static_assert(offsetof(struct ctrl_wf, cntlid) == 78, "Identify Controller: cntlid");
static_assert(offsetof(struct ctrl_wf, oaes) == 92, "Identify Controller: oaes");
static_assert(offsetof(struct ctrl_wf, type) == 111, "Identify Controller: type");
static_assert(offsetof(struct ctrl_wf, oacs) == 256, "Identify Controller: oacs");
static_assert(offsetof(struct ctrl_wf, kas) == 320, "Identify Controller: kas");
static_assert(offsetof(struct ctrl_wf, anatt) == 342, "Identify Controller: anatt");
static_assert(offsetof(struct ctrl_wf, sqes) == 512, "Identify Controller: sqes");
static_assert(offsetof(struct ctrl_wf, vwc) == 525, "Identify Controller: vwc");
static_assert(offsetof(struct ctrl_wf, sgls) == 536, "Identify Controller: sgls");
static_assert(offsetof(struct ctrl_wf, subnqn) == 768, "Identify Controller: subnqn");
static_assert(offsetof(struct ctrl_wf, ioccsz) == 1792, "Identify Controller: ioccsz");
static_assert(offsetof(struct ctrl_wf, vendor) == 3072, "Identify Controller: vendor");

#define CTRL_CMIC_MULTI    0x03 /* several ports, several controllers            */
#define CTRL_CMIC_ANA      0x08 /* asymmetric access is reported                 */
#define CTRL_ANACAP        0x41 /* optimized; the group of a namespace stays     */
#define CTRL_ANATT         10   /* no state changes, and 0 may not be said       */
#define CTRL_CTRATT_HOSTID 0x1u
#define CTRL_FRMW_ONE      0x03       /* one slot, read only                           */
#define CTRL_LPA_EFFECTS   0x02       /* the log of commands supported and effects     */
#define CTRL_LPA_OFFSETS   0x04       /* offsets and lengths over 4 KiB                */
#define CTRL_SQES          0x66       /* 64 bytes, and only so                         */
#define CTRL_CQES          0x44       /* 16 bytes, and only so                         */
#define CTRL_VWC           0x07       /* there is one; Flush takes NVME_NSID_ALL       */
#define CTRL_SGLS          0x00100001 /* SGLs of any alignment, with offsets           */
#define CTRL_SGLS_MASK     0x3u
#define CTRL_UNIT          16 /* of capsule sizes                                      */

/* Copies text and pads it with spaces. */
static void text_encode(char *out, size_t out_bytes, const char *text)
{
    size_t n = strnlen(text, out_bytes);

    memset(out, ' ', out_bytes);
    memcpy(out, text, n);
}

/* Copies a padded text without its padding; what is not printable becomes '?'. */
static void text_decode(char *out, const char *in, size_t in_bytes)
{
    size_t n = strnlen(in, in_bytes);

    while (n > 0 && in[n - 1] == ' ')
        n--;
    for (size_t i = 0; i < n; i++)
        out[i] = in[i] >= ' ' && in[i] <= '~' ? in[i] : '?';
    out[n] = '\0';
}

void nvme_ctrl_encode(const struct nvme_ctrl *ctrl, uint8_t out_page[NVME_PAGE_BYTES])
{
    struct ctrl_wf page;

    check(ctrl->async_events >= 1 && ctrl->keep_alive_100ms > 0 && ctrl->commands_max > 0);
    check(ctrl->in_capsule_bytes % CTRL_UNIT == 0);
    memset(&page, 0, sizeof(page));
    text_encode(page.serial, sizeof(page.serial), ctrl->serial);
    text_encode(page.model, sizeof(page.model), ctrl->model);
    text_encode(page.firmware, sizeof(page.firmware), ctrl->firmware);
    page.cmic = ctrl->multi_ctrl ? CTRL_CMIC_MULTI : 0;
    if (ctrl->ana_groups != 0) {
        page.cmic |= CTRL_CMIC_ANA;
        page.anatt = CTRL_ANATT;
        page.anacap = CTRL_ANACAP;
        page.anagrpmax = page.nanagrpid = le32_of(ctrl->ana_groups);
        page.mnan = le32_of(ctrl->nsid_max);
    }
    page.mdts = ctrl->mdts;
    page.cntlid = le16_of(ctrl->cntlid);
    page.version = le32_of(ctrl->version);
    page.oaes = le32_of(ctrl->oaes);
    page.ctratt = le32_of(CTRL_CTRATT_HOSTID);
    page.type = (uint8_t)ctrl->type;
    page.acl = 3;
    page.aerl = (uint8_t)(ctrl->async_events - 1);
    page.frmw = CTRL_FRMW_ONE;
    page.lpa =
        ctrl->type == NVME_CTRL_DISCOVERY ? CTRL_LPA_OFFSETS : CTRL_LPA_OFFSETS | CTRL_LPA_EFFECTS;
    page.kas = le16_of(ctrl->keep_alive_100ms);
    page.sqes = CTRL_SQES;
    page.cqes = CTRL_CQES;
    page.maxcmd = le16_of(ctrl->commands_max);
    page.nn = le32_of(ctrl->nsid_max);
    page.vwc = ctrl->write_cache ? CTRL_VWC : 0;
    page.sgls = le32_of(CTRL_SGLS);
    memcpy(page.subnqn, ctrl->subnqn, strnlen(ctrl->subnqn, NVME_NQN_MAX));
    page.ioccsz = le32_of((NVME_SQE_BYTES + ctrl->in_capsule_bytes) / CTRL_UNIT);
    page.iorcsz = le32_of(NVME_CQE_BYTES / CTRL_UNIT);
    page.msdbd = 1;
    if (ctrl->icms_ext != 0) {
        page.vendor.magic = le32_of(VENDOR_MAGIC);
        page.vendor.version = VENDOR_VERSION;
        page.vendor.extensions = le32_of(ctrl->icms_ext);
        page.vendor.instance = le64_of(ctrl->icms_instance);
    }
    memcpy(out_page, &page, sizeof(page));
}

icms_err nvme_ctrl_decode(const void *page, size_t bytes, struct nvme_ctrl *out_ctrl)
{
    struct nvme_ctrl ctrl = {0};
    struct ctrl_wf wf;
    uint32_t capsule;

    if (bytes < sizeof(wf))
        return ICMS_PROTOCOL;
    memcpy(&wf, page, sizeof(wf));
    capsule = le32_get(wf.ioccsz);
    ctrl.type = wf.type;
    if (ctrl.type != NVME_CTRL_DISCOVERY &&
        (capsule < NVME_SQE_BYTES / CTRL_UNIT || capsule > UINT32_MAX / CTRL_UNIT ||
         le32_get(wf.iorcsz) < 1 || le16_get(wf.icdoff) != 0 ||
         (le32_get(wf.sgls) & CTRL_SGLS_MASK) == 0))
        return ICMS_PROTOCOL;
    if (!nvme_nqn_valid(wf.subnqn, sizeof(wf.subnqn)))
        return ICMS_PROTOCOL;
    memcpy(ctrl.subnqn, wf.subnqn, strnlen(wf.subnqn, NVME_NQN_MAX));
    text_decode(ctrl.serial, wf.serial, sizeof(wf.serial));
    text_decode(ctrl.model, wf.model, sizeof(wf.model));
    text_decode(ctrl.firmware, wf.firmware, sizeof(wf.firmware));
    ctrl.multi_ctrl = wf.cmic & CTRL_CMIC_MULTI;
    ctrl.ana_groups = wf.cmic & CTRL_CMIC_ANA ? le32_get(wf.nanagrpid) : 0;
    ctrl.mdts = wf.mdts;
    ctrl.cntlid = le16_get(wf.cntlid);
    ctrl.version = le32_get(wf.version);
    ctrl.oaes = le32_get(wf.oaes);
    ctrl.async_events = wf.aerl < UINT8_MAX ? (uint8_t)(wf.aerl + 1) : UINT8_MAX;
    ctrl.keep_alive_100ms = le16_get(wf.kas);
    ctrl.commands_max = le16_get(wf.maxcmd);
    ctrl.nsid_max = le32_get(wf.nn);
    ctrl.write_cache = wf.vwc & 1;
    if (capsule >= NVME_SQE_BYTES / CTRL_UNIT && capsule <= UINT32_MAX / CTRL_UNIT)
        ctrl.in_capsule_bytes = capsule * CTRL_UNIT - NVME_SQE_BYTES;
    if (le32_get(wf.vendor.magic) == VENDOR_MAGIC && wf.vendor.version == VENDOR_VERSION) {
        ctrl.icms_ext = le32_get(wf.vendor.extensions);
        ctrl.icms_instance = le64_get(wf.vendor.instance);
    }
    *out_ctrl = ctrl;
    return ICMS_OK;
}

/* ---- namespaces ----------------------------------------------------------------------------- */

#define NS_AT_NSZE     0
#define NS_AT_NCAP     8
#define NS_AT_NUSE     16
#define NS_AT_NMIC     30
#define NS_AT_ANA      92
#define NS_AT_NGUID    104
#define NS_NMIC_SHARED 0x01
#define NS_AT_LBADS    130 /* of format 0: log2 of the block size */
#define NS_LBADS_512   9

void nvme_ns_encode(const struct nvme_ns *ns, uint8_t out_page[NVME_PAGE_BYTES])
{
    le64 blocks = le64_of(u64_max(ns->size_bytes >> NS_LBADS_512, 1));
    le64 used = le64_of(bytes_align(ns->used_bytes, 1 << NS_LBADS_512) >> NS_LBADS_512);
    le32 group = le32_of(ns->ana_group);

    memset(out_page, 0, NVME_PAGE_BYTES);
    memcpy(out_page + NS_AT_NSZE, &blocks, sizeof(blocks));
    memcpy(out_page + NS_AT_NCAP, &blocks, sizeof(blocks));
    memcpy(out_page + NS_AT_NUSE, &used, sizeof(used));
    out_page[NS_AT_NMIC] = ns->shared ? NS_NMIC_SHARED : 0;
    memcpy(out_page + NS_AT_ANA, &group, sizeof(group));
    memcpy(out_page + NS_AT_NGUID, ns->nguid, sizeof(ns->nguid));
    out_page[NS_AT_LBADS] = NS_LBADS_512;
}

void nvme_ns_list_encode(const uint32_t *nsids, uint32_t count, uint32_t after,
                         uint8_t out_page[NVME_PAGE_BYTES])
{
    uint32_t n = 0;

    memset(out_page, 0, NVME_PAGE_BYTES);
    for (uint32_t i = 0; i < count && n < NVME_NS_LIST_MAX; i++) {
        le32 nsid = le32_of(nsids[i]);

        check(i == 0 || nsids[i] > nsids[i - 1]);
        if (nsids[i] <= after)
            continue;
        memcpy(out_page + n * sizeof(nsid), &nsid, sizeof(nsid));
        n++;
    }
}

icms_err nvme_ns_list_decode(const void *page, size_t bytes, uint32_t *out_nsids,
                             uint32_t nsids_max, uint32_t *out_count)
{
    const uint8_t *at = page;
    uint32_t last = 0, n = 0;

    if (bytes < NVME_PAGE_BYTES)
        return ICMS_PROTOCOL;
    for (uint32_t i = 0; i < NVME_NS_LIST_MAX; i++) {
        le32 wf;
        uint32_t nsid;

        memcpy(&wf, at + i * sizeof(wf), sizeof(wf));
        nsid = le32_get(wf);
        if (nsid == 0)
            break;
        if (nsid <= last || nsid == NVME_NSID_ALL)
            return ICMS_PROTOCOL;
        if (n == nsids_max)
            return ICMS_LIMIT;
        out_nsids[n++] = last = nsid;
    }
    *out_count = n;
    return ICMS_OK;
}

#define NS_ID_EUI64  1
#define NS_ID_NGUID  2
#define NS_ID_UUID   3
#define NS_ID_CSI    4
#define NS_ID_HEADER 4 /* type, length, two reserved bytes */

static uint8_t *ns_id_put(uint8_t *at, uint8_t type, const void *bytes, uint8_t length)
{
    at[0] = type;
    at[1] = length;
    memcpy(at + NS_ID_HEADER, bytes, length);
    return at + NS_ID_HEADER + length;
}

void nvme_ns_ids_encode(const struct nvme_ns_ids *ids, uint8_t out_page[NVME_PAGE_BYTES])
{
    uint8_t *at = out_page;

    memset(out_page, 0, NVME_PAGE_BYTES);
    if (ids->has_eui64)
        at = ns_id_put(at, NS_ID_EUI64, ids->eui64, sizeof(ids->eui64));
    if (ids->has_nguid)
        at = ns_id_put(at, NS_ID_NGUID, ids->nguid, sizeof(ids->nguid));
    if (ids->has_uuid)
        at = ns_id_put(at, NS_ID_UUID, ids->uuid.bytes, sizeof(ids->uuid.bytes));
    if (ids->has_csi)
        ns_id_put(at, NS_ID_CSI, &ids->csi, 1);
}

/* Takes one descriptor; false when its length is not its type's. */
static bool ns_id_take(struct nvme_ns_ids *ids, uint8_t type, const uint8_t *bytes, uint8_t length)
{
    switch (type) {
    case NS_ID_EUI64:
        if (length != sizeof(ids->eui64))
            return false;
        ids->has_eui64 = true;
        memcpy(ids->eui64, bytes, length);
        return true;
    case NS_ID_NGUID:
        if (length != sizeof(ids->nguid))
            return false;
        ids->has_nguid = true;
        memcpy(ids->nguid, bytes, length);
        return true;
    case NS_ID_UUID:
        if (length != sizeof(ids->uuid.bytes))
            return false;
        ids->has_uuid = true;
        memcpy(ids->uuid.bytes, bytes, length);
        return true;
    case NS_ID_CSI:
        if (length != 1)
            return false;
        ids->has_csi = true;
        ids->csi = bytes[0];
        return true;
    default:
        return length > 0;
    }
}

icms_err nvme_ns_ids_decode(const void *page, size_t bytes, struct nvme_ns_ids *out_ids)
{
    const uint8_t *in = page;
    struct nvme_ns_ids ids = {0};
    size_t at = 0;

    if (bytes < NVME_PAGE_BYTES)
        return ICMS_PROTOCOL;
    while (at + NS_ID_HEADER <= NVME_PAGE_BYTES && in[at] != 0) {
        uint8_t length = in[at + 1];

        if (length > NVME_PAGE_BYTES - at - NS_ID_HEADER ||
            !ns_id_take(&ids, in[at], in + at + NS_ID_HEADER, length))
            return ICMS_PROTOCOL;
        at += NS_ID_HEADER + length;
    }
    *out_ids = ids;
    return ICMS_OK;
}

#define COMMON_AT_NMIC  1
#define COMMON_AT_ANA   4
#define COMMON_AT_NSTAT 14
#define COMMON_SHARED   0x01
#define COMMON_READY    0x01

void nvme_ns_common_encode(const struct nvme_ns_common *common, uint8_t out_page[NVME_PAGE_BYTES])
{
    le32 group = le32_of(common->ana_group);

    memset(out_page, 0, NVME_PAGE_BYTES);
    out_page[COMMON_AT_NMIC] = common->shared ? COMMON_SHARED : 0;
    memcpy(out_page + COMMON_AT_ANA, &group, sizeof(group));
    out_page[COMMON_AT_NSTAT] = common->ready ? COMMON_READY : 0;
}

icms_err nvme_ns_common_decode(const void *page, size_t bytes, struct nvme_ns_common *out_common)
{
    const uint8_t *in = page;
    le32 group;

    if (bytes < NVME_PAGE_BYTES)
        return ICMS_PROTOCOL;
    memcpy(&group, in + COMMON_AT_ANA, sizeof(group));
    *out_common = (struct nvme_ns_common){
        .shared = in[COMMON_AT_NMIC] & COMMON_SHARED,
        .ready = in[COMMON_AT_NSTAT] & COMMON_READY,
        .ana_group = le32_get(group),
    };
    return ICMS_OK;
}

#define CTRL_CSI_KV_1_3 0x00010300u
#define IO_SET_NVM      0x1u
#define IO_SET_KV       0x2u

void nvme_ctrl_csi_encode(uint8_t csi, uint8_t out_page[NVME_PAGE_BYTES])
{
    le32 version = le32_of(CTRL_CSI_KV_1_3);

    memset(out_page, 0, NVME_PAGE_BYTES);
    if (csi == NVME_CSI_KV)
        memcpy(out_page, &version, sizeof(version));
}

void nvme_io_sets_encode(uint8_t out_page[NVME_PAGE_BYTES])
{
    le64 sets = le64_of(IO_SET_NVM | IO_SET_KV);

    memset(out_page, 0, NVME_PAGE_BYTES);
    memcpy(out_page, &sets, sizeof(sets));
}
