/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of the messages of authentication: an entry, then a message. What is decoded lies inside
 * the input, and says the same when it is encoded and decoded again.
 */
#include "base/check.h"
#include "wire/nvme_auth.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void fuzz_inside(const uint8_t *value, size_t length, const uint8_t *data, size_t bytes)
{
    check(value == NULL || (value >= data && value + length <= data + bytes));
}

static bool fuzz_same(const uint8_t *a, const uint8_t *b, size_t bytes)
{
    return (a == NULL) == (b == NULL) && (a == NULL || memcmp(a, b, bytes) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct nvme_auth_msg msg, again;
    uint8_t out[NVME_AUTH_BYTES_MAX];
    struct nvme_sqe_wf sqe;
    uint32_t length;

    if (bytes < sizeof(sqe))
        return 0;
    memcpy(&sqe, data, sizeof(sqe));
    data += sizeof(sqe);
    bytes -= sizeof(sqe);
    if (nvme_auth_cmd_decode(&sqe, &length) == ICMS_OK)
        nvme_auth_cmd_encode(true, length, &sqe);
    if (nvme_auth_decode(data, bytes, &msg) != ICMS_OK)
        return 0;
    fuzz_inside(msg.value, msg.value_bytes, data, bytes);
    fuzz_inside(msg.challenge, msg.value_bytes, data, bytes);
    fuzz_inside(msg.dh, msg.dh_bytes, data, bytes);
    check(nvme_auth_decode(out, nvme_auth_encode(&msg, out), &again) == ICMS_OK);
    check(msg.id == again.id && msg.t_id == again.t_id && msg.concat == again.concat);
    check(msg.hash == again.hash && msg.group == again.group && msg.seqnum == again.seqnum);
    check(msg.value_bytes == again.value_bytes && msg.dh_bytes == again.dh_bytes);
    check(msg.why == again.why && msg.reason == again.reason);
    check(fuzz_same(msg.value, again.value, msg.value_bytes));
    check(fuzz_same(msg.challenge, again.challenge, msg.value_bytes));
    check(fuzz_same(msg.dh, again.dh, msg.dh_bytes));
    check(msg.hash_count == again.hash_count && msg.group_count == again.group_count);
    check(memcmp(msg.hashes, again.hashes, sizeof(msg.hashes)) == 0);
    check(memcmp(msg.groups, again.groups, sizeof(msg.groups)) == 0);
    return 0;
}
