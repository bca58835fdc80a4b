/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fabrics commands and features.
 *
 * Called by nvmf (both sides) while a connection is set up, on its loop. Pure.
 */
#include "wire/nvme_fabrics.h"

#include "base/check.h"

bool nvme_nqn_valid(const char *nqn, size_t bytes)
{
    size_t n = strnlen(nqn, bytes);

    if (n == bytes || n > NVME_NQN_MAX || n < 5 || memcmp(nqn, "nqn.", 4) != 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (nqn[i] <= ' ' || nqn[i] > '~')
            return false;
    return true;
}

static void fabrics_begin(uint8_t fctype, struct nvme_sqe_wf *out_sqe)
{
    *out_sqe = (struct nvme_sqe_wf){.opcode = NVME_FABRICS, .flags = NVME_SQE_FLAGS_SGL};
    out_sqe->nsid.byte[0] = fctype;
}

/* ---- Connect -------------------------------------------------------------------------------- */

struct connect_data_wf {
    uint8_t hostid[16];           /* @0   UUID of the host        */
    le16 cntlid;                  /* @16  NVME_CNTLID_ANY: new    */
    uint8_t reserved18[238];      /* @18                          */
    char subnqn[NVME_NQN_BYTES];  /* @256 ends in a zero          */
    char hostnqn[NVME_NQN_BYTES]; /* @512 ends in a zero          */
    uint8_t reserved768[256];     /* @768                         */
};
static_assert(sizeof(struct connect_data_wf) == NVME_CONNECT_DATA_BYTES, "Connect data");
static_assert(offsetof(struct connect_data_wf, hostid) == NVME_CONNECT_AT_HOSTID, "hostid");
static_assert(offsetof(struct connect_data_wf, cntlid) == NVME_CONNECT_AT_CNTLID, "cntlid");
static_assert(offsetof(struct connect_data_wf, subnqn) == NVME_CONNECT_AT_SUBNQN, "subnqn");
static_assert(offsetof(struct connect_data_wf, hostnqn) == NVME_CONNECT_AT_HOSTNQN, "hostnqn");

void nvme_connect_encode(const struct nvme_connect *connect, struct nvme_sqe_wf *out_sqe,
                         uint8_t out_data[NVME_CONNECT_DATA_BYTES])
{
    struct connect_data_wf data;

    check(connect->entries >= 2);
    fabrics_begin(NVME_FCTYPE_CONNECT, out_sqe);
    out_sqe->cdw10 = le32_of((uint32_t)connect->qid << 16);
    out_sqe->cdw11 =
        le32_of((uint32_t)(connect->entries - 1) | (uint32_t)connect->attributes << 16);
    out_sqe->cdw12 = le32_of(connect->kato_ms);
    memset(&data, 0, sizeof(data));
    memcpy(data.hostid, connect->hostid, sizeof(data.hostid));
    data.cntlid = le16_of(connect->cntlid);
    memcpy(data.subnqn, connect->subnqn, strnlen(connect->subnqn, NVME_NQN_MAX));
    memcpy(data.hostnqn, connect->hostnqn, strnlen(connect->hostnqn, NVME_NQN_MAX));
    memcpy(out_data, &data, sizeof(data));
}

uint16_t nvme_connect_decode(const struct nvme_sqe_wf *sqe, const void *data, size_t bytes,
                             struct nvme_connect *out_connect, uint32_t *out_dw0)
{
    uint32_t cdw10 = le32_get(sqe->cdw10), cdw11 = le32_get(sqe->cdw11);
    static const uint8_t no_host[sizeof(((struct connect_data_wf *)NULL)->hostid)];
    uint32_t sqsize = cdw11 & 0xffff;
    struct nvme_connect connect = {0};
    struct connect_data_wf wf;

    *out_dw0 = 0;
    if (bytes < sizeof(wf))
        return NVME_SC_SGL_LENGTH;
    memcpy(&wf, data, sizeof(wf));
    if ((cdw10 & 0xffff) != 0)
        return NVME_SC_CONNECT_FORMAT;
    /* 0's based: 0 would be a queue of one entry, FFFFh does not fit the count. */
    if (sqsize == 0 || sqsize == 0xffff) {
        *out_dw0 = NVME_CONNECT_BAD_SQE(NVME_CONNECT_AT_SQSIZE);
        return NVME_SC_CONNECT_PARAM;
    }
    if (!nvme_nqn_valid(wf.subnqn, sizeof(wf.subnqn))) {
        *out_dw0 = NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_SUBNQN);
        return NVME_SC_CONNECT_PARAM;
    }
    if (!nvme_nqn_valid(wf.hostnqn, sizeof(wf.hostnqn))) {
        *out_dw0 = NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_HOSTNQN);
        return NVME_SC_CONNECT_PARAM;
    }
    if (memcmp(wf.hostid, no_host, sizeof(no_host)) == 0) {
        *out_dw0 = NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_HOSTID);
        return NVME_SC_CONNECT_PARAM;
    }
    connect.qid = (uint16_t)(cdw10 >> 16);
    connect.entries = (uint16_t)(sqsize + 1);
    connect.attributes = (uint8_t)(cdw11 >> 16);
    connect.kato_ms = le32_get(sqe->cdw12);
    connect.cntlid = le16_get(wf.cntlid);
    memcpy(connect.hostid, wf.hostid, sizeof(connect.hostid));
    memcpy(connect.subnqn, wf.subnqn, strnlen(wf.subnqn, NVME_NQN_MAX));
    memcpy(connect.hostnqn, wf.hostnqn, strnlen(wf.hostnqn, NVME_NQN_MAX));
    *out_connect = connect;
    return NVME_SC_SUCCESS;
}

/* ---- properties and the plain commands ------------------------------------------------------- */

#define PROPERTY_SIZE_MASK 0x7
#define PROPERTY_SIZE_4    0
#define PROPERTY_SIZE_8    1

void nvme_property_encode(const struct nvme_property *property, struct nvme_sqe_wf *out_sqe)
{
    fabrics_begin(property->set ? NVME_FCTYPE_PROPERTY_SET : NVME_FCTYPE_PROPERTY_GET, out_sqe);
    out_sqe->cdw10 = le32_of(property->wide ? PROPERTY_SIZE_8 : PROPERTY_SIZE_4);
    out_sqe->cdw11 = le32_of(property->offset);
    if (property->set) {
        out_sqe->cdw12 = le32_of((uint32_t)property->value);
        out_sqe->cdw13 = le32_of((uint32_t)(property->value >> 32));
    }
}

icms_err nvme_property_decode(const struct nvme_sqe_wf *sqe, struct nvme_property *out_property)
{
    struct nvme_property property = {
        .set = nvme_fctype(sqe) == NVME_FCTYPE_PROPERTY_SET,
        .wide = (sqe->cdw10.byte[0] & PROPERTY_SIZE_MASK) == PROPERTY_SIZE_8,
        .offset = le32_get(sqe->cdw11),
    };

    if (!property.set && nvme_fctype(sqe) != NVME_FCTYPE_PROPERTY_GET)
        return ICMS_INVALID;
    if ((sqe->cdw10.byte[0] & PROPERTY_SIZE_MASK) > PROPERTY_SIZE_8)
        return ICMS_INVALID;
    if (property.set) {
        property.value = le32_get(sqe->cdw12);
        if (property.wide)
            property.value |= (uint64_t)le32_get(sqe->cdw13) << 32;
    }
    *out_property = property;
    return ICMS_OK;
}

void nvme_disconnect_encode(struct nvme_sqe_wf *out_sqe)
{
    fabrics_begin(NVME_FCTYPE_DISCONNECT, out_sqe);
}

void nvme_admin_plain_encode(uint8_t opcode, struct nvme_sqe_wf *out_sqe)
{
    *out_sqe = (struct nvme_sqe_wf){.opcode = opcode, .flags = NVME_SQE_FLAGS_SGL};
}

void nvme_flush_encode(uint32_t nsid, struct nvme_sqe_wf *out_sqe)
{
    *out_sqe = (struct nvme_sqe_wf){
        .opcode = NVME_IO_FLUSH,
        .flags = NVME_SQE_FLAGS_SGL,
        .nsid = le32_of(nsid),
    };
}

/* ---- features ------------------------------------------------------------------------------- */

#define FEATURE_SAVE 0x80 /* CDW10 b31, so b7 of its last byte */

void nvme_feature_encode(const struct nvme_feature *feature, struct nvme_sqe_wf *out_sqe)
{
    *out_sqe = (struct nvme_sqe_wf){
        .opcode = feature->set ? NVME_ADMIN_SET_FEATURES : NVME_ADMIN_GET_FEATURES,
        .flags = NVME_SQE_FLAGS_SGL,
        .nsid = le32_of(feature->nsid),
    };
    out_sqe->cdw10.byte[0] = feature->fid;
    if (feature->set) {
        out_sqe->cdw10.byte[3] = feature->save ? FEATURE_SAVE : 0;
        out_sqe->cdw11 = le32_of(feature->value);
    } else {
        out_sqe->cdw10.byte[1] = feature->select & 7;
    }
}

void nvme_feature_decode(const struct nvme_sqe_wf *sqe, struct nvme_feature *out_feature)
{
    struct nvme_feature feature = {
        .set = sqe->opcode == NVME_ADMIN_SET_FEATURES,
        .fid = sqe->cdw10.byte[0],
        .nsid = le32_get(sqe->nsid),
    };

    if (feature.set) {
        feature.save = sqe->cdw10.byte[3] & FEATURE_SAVE;
        feature.value = le32_get(sqe->cdw11);
    } else {
        feature.select = sqe->cdw10.byte[1] & 7;
    }
    *out_feature = feature;
}
