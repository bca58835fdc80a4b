/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of the Identify decoders. Byte 0 chooses one; the rest is a page, filled up with zeros.
 */
#include "base/check.h"
#include "wire/nvme_fabrics.h"
#include "wire/nvme_identify.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void fuzz_controller(const uint8_t *page)
{
    struct nvme_ctrl ctrl;

    if (nvme_ctrl_decode(page, NVME_PAGE_BYTES, &ctrl) != ICMS_OK)
        return;
    check(nvme_nqn_valid(ctrl.subnqn, sizeof(ctrl.subnqn)));
    check(strlen(ctrl.serial) <= 20 && strlen(ctrl.model) <= 40 && strlen(ctrl.firmware) <= 8);
}

static void fuzz_list(const uint8_t *page)
{
    uint32_t nsids[100], count;

    if (nvme_ns_list_decode(page, NVME_PAGE_BYTES, nsids, 100, &count) != ICMS_OK)
        return;
    check(count <= 100);
    for (uint32_t i = 1; i < count; i++)
        check(nsids[i] > nsids[i - 1]);
}

static void fuzz_ids(const uint8_t *page)
{
    uint8_t first[NVME_PAGE_BYTES], second[NVME_PAGE_BYTES];
    struct nvme_ns_ids ids;

    if (nvme_ns_ids_decode(page, NVME_PAGE_BYTES, &ids) != ICMS_OK)
        return;
    nvme_ns_ids_encode(&ids, first);
    check(nvme_ns_ids_decode(first, sizeof(first), &ids) == ICMS_OK);
    nvme_ns_ids_encode(&ids, second);
    check(memcmp(first, second, sizeof(first)) == 0);
}

static void fuzz_common(const uint8_t *page)
{
    struct nvme_ns_common common;

    check(nvme_ns_common_decode(page, NVME_PAGE_BYTES, &common) == ICMS_OK);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static void (*const targets[])(const uint8_t *page) = {
        fuzz_controller,
        fuzz_list,
        fuzz_ids,
        fuzz_common,
    };
    uint8_t page[NVME_PAGE_BYTES] = {0};
    struct nvme_ns_ids ids;
    struct nvme_ctrl ctrl;

    if (bytes == 0)
        return 0;
    if (bytes - 1 < NVME_PAGE_BYTES) {
        check(nvme_ns_ids_decode(data + 1, bytes - 1, &ids) == ICMS_PROTOCOL);
        check(nvme_ctrl_decode(data + 1, bytes - 1, &ctrl) == ICMS_PROTOCOL);
    }
    memcpy(page, data + 1, u64_min(bytes - 1, sizeof(page)));
    targets[data[0] % 4](page);
    return 0;
}
