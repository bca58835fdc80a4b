/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of the entries and of the Key-Value command set. Byte 0 chooses the decoder; what a
 * decoder accepts has to survive a round trip.
 */
#include "base/check.h"
#include "wire/nvme_kv.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void fuzz_command(const uint8_t *data, size_t bytes)
{
    struct nvme_kv_cmd cmd, again;
    struct nvme_sqe_wf sqe = {0}, back;
    struct nvme_sgl sgl;
    uint16_t status;

    memcpy(&sqe, data, u64_min(bytes, sizeof(sqe)));
    if (nvme_sgl_decode(&sqe.sgl, &sgl, &status) != ICMS_OK)
        check(status == NVME_SC_SGL_TYPE || status == NVME_SC_SGL_OFFSET);
    if (nvme_kv_cmd_decode(&sqe, &cmd) != ICMS_OK)
        return;
    nvme_kv_cmd_encode(&cmd, &back);
    check(nvme_kv_cmd_decode(&back, &again) == ICMS_OK);
    check(key_equal(&cmd.key, &again.key) && cmd.bytes == again.bytes);
    check(cmd.options == again.options && cmd.time_left_us == again.time_left_us);
    check(cmd.record == again.record);
}

static void fuzz_list(const uint8_t *data, size_t bytes)
{
    struct nvme_kv_list_reader reader;
    struct key key;
    uint32_t n = 0, left;

    if (nvme_kv_list_read_begin(&reader, data, (uint32_t)bytes) != ICMS_OK)
        return;
    left = reader.left;
    while (nvme_kv_list_read_key(&reader, &key)) {
        check(key.length >= 1 && key.length <= LIMIT_KEY_BYTES);
        n++;
    }
    check(n == left);
}

static void fuzz_exist(const uint8_t *data, size_t bytes)
{
    struct key keys[NVME_KV_EXIST_MANY_KEYS];
    uint32_t count = bytes > 0 ? data[0] : 0;

    if (bytes == 0 ||
        nvme_kv_exist_many_decode(data + 1, (uint32_t)bytes - 1, count, keys) != ICMS_OK)
        return;
    for (uint32_t i = 0; i < count; i++)
        check(keys[i].length >= 1 && keys[i].length <= LIMIT_KEY_BYTES);
}

static void fuzz_namespace(const uint8_t *data, size_t bytes)
{
    uint8_t page[NVME_PAGE_BYTES] = {0}, first[NVME_PAGE_BYTES], second[NVME_PAGE_BYTES];
    struct nvme_kv_ns ns;

    (void)!nvme_kv_ns_decode(data, bytes, &ns);
    memcpy(page, data, u64_min(bytes, sizeof(page)));
    if (nvme_kv_ns_decode(page, sizeof(page), &ns) != ICMS_OK)
        return;
    nvme_kv_ns_encode(&ns, first);
    check(nvme_kv_ns_decode(first, sizeof(first), &ns) == ICMS_OK);
    nvme_kv_ns_encode(&ns, second);
    check(memcmp(first, second, sizeof(first)) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static void (*const targets[])(const uint8_t *data, size_t bytes) = {
        fuzz_command,
        fuzz_list,
        fuzz_exist,
        fuzz_namespace,
    };

    if (bytes > 0)
        targets[data[0] % 4](data + 1, bytes - 1);
    return 0;
}
