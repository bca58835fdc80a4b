/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completion queue entries and SGL descriptors.
 *
 * Called by nvmf (both sides) for every command, on its loop. Pure.
 */
#include "wire/nvme.h"

#define CQE_STATUS_SHIFT 1      /* bit 0 is the phase tag, not used on fabrics */
#define CQE_STATUS_MASK  0x7ffu /* SCT 11:9 and SC 8:1 of the field            */
#define CQE_DNR          0x8000u

void nvme_cqe_encode(const struct nvme_cqe *cqe, struct nvme_cqe_wf *out_cqe)
{
    uint32_t status = (uint32_t)(cqe->status & CQE_STATUS_MASK) << CQE_STATUS_SHIFT;

    *out_cqe = (struct nvme_cqe_wf){
        .dw0 = le32_of(cqe->dw0),
        .dw1 = le32_of(cqe->dw1),
        .sqhd = le16_of(cqe->sqhd),
        .cid = le16_of(cqe->cid),
        .status = le16_of((uint16_t)(status | (cqe->dnr ? CQE_DNR : 0))),
    };
}

void nvme_cqe_decode(const struct nvme_cqe_wf *wf, struct nvme_cqe *out_cqe)
{
    uint16_t status = le16_get(wf->status);

    *out_cqe = (struct nvme_cqe){
        .cid = le16_get(wf->cid),
        .sqhd = le16_get(wf->sqhd),
        .status = (uint16_t)(status >> CQE_STATUS_SHIFT & CQE_STATUS_MASK),
        .dnr = status & CQE_DNR,
        .dw0 = le32_get(wf->dw0),
        .dw1 = le32_get(wf->dw1),
    };
}

void nvme_sgl_encode(const struct nvme_sgl *sgl, struct nvme_sgl_wf *out_sgl)
{
    *out_sgl = (struct nvme_sgl_wf){
        .address = le64_of(sgl->in_capsule ? sgl->offset : 0),
        .length = le32_of(sgl->bytes),
        .type = sgl->in_capsule ? NVME_SGL_IN_CAPSULE : NVME_SGL_TRANSPORT,
    };
}

icms_err nvme_sgl_decode(const struct nvme_sgl_wf *wf, struct nvme_sgl *out_sgl,
                         uint16_t *out_status)
{
    struct nvme_sgl sgl = {.bytes = le32_get(wf->length)};
    uint64_t address = le64_get(wf->address);

    switch (wf->type) {
    case NVME_SGL_IN_CAPSULE:
        sgl.in_capsule = true;
        sgl.offset = address;
        break;
    case NVME_SGL_TRANSPORT:
        if (address != 0) {
            *out_status = NVME_SC_SGL_OFFSET;
            return ICMS_INVALID;
        }
        break;
    case 0:
        /* What a host that has no data may leave there. */
        if (address == 0 && sgl.bytes == 0)
            break;
        *out_status = NVME_SC_SGL_TYPE;
        return ICMS_INVALID;
    default:
        *out_status = NVME_SC_SGL_TYPE;
        return ICMS_INVALID;
    }
    *out_sgl = sgl;
    return ICMS_OK;
}
