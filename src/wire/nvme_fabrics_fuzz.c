/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of the fabrics commands: an entry, then the data of a Connect.
 */
#include "base/check.h"
#include "wire/nvme_fabrics.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void fuzz_connect(const struct nvme_sqe_wf *sqe, const uint8_t *data, size_t bytes)
{
    struct nvme_connect connect, again;
    struct nvme_sqe_wf back;
    uint8_t back_data[NVME_CONNECT_DATA_BYTES];
    uint32_t dw0;

    if (nvme_connect_decode(sqe, data, bytes, &connect, &dw0) != NVME_SC_SUCCESS)
        return;
    check(dw0 == 0 && connect.entries >= 2);
    check(nvme_nqn_valid(connect.subnqn, sizeof(connect.subnqn)));
    check(nvme_nqn_valid(connect.hostnqn, sizeof(connect.hostnqn)));
    nvme_connect_encode(&connect, &back, back_data);
    check(nvme_connect_decode(&back, back_data, sizeof(back_data), &again, &dw0) == 0);
    check(connect.qid == again.qid && connect.entries == again.entries);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint8_t connect[NVME_CONNECT_DATA_BYTES] = {0};
    struct nvme_property property;
    struct nvme_feature feature;
    struct nvme_sqe_wf sqe;

    if (bytes < sizeof(sqe))
        return 0;
    memcpy(&sqe, data, sizeof(sqe));
    data += sizeof(sqe);
    bytes -= sizeof(sqe);
    fuzz_connect(&sqe, data, bytes);
    memcpy(connect, data, u64_min(bytes, sizeof(connect)));
    fuzz_connect(&sqe, connect, sizeof(connect));
    if (nvme_property_decode(&sqe, &property) == ICMS_OK)
        nvme_property_encode(&property, &sqe);
    nvme_feature_decode(&sqe, &feature);
    return 0;
}
