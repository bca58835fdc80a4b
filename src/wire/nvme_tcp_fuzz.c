/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of the PDU checks. Byte 0 is the receiver's state (role, connected, digests), byte 1 its
 * alignment; then a header.
 */
#include "base/check.h"
#include "wire/nvme_tcp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct nvme_tcp_rules rules = {.capsule_data_max = 8192, .data_max = 262144};
    struct nvme_tcp_bad bad = {0};
    struct nvme_tcp_frame frame;
    union nvme_tcp_pdu pdu = {0};

    if (bytes < 2 + NVME_TCP_COMMON_BYTES)
        return 0;
    rules.role = data[0] & 1 ? NVME_TCP_HOST : NVME_TCP_CONTROLLER;
    rules.connected = data[0] & 2;
    rules.digests = data[0] >> 2 & 3;
    rules.pda = data[1] & 31;
    memcpy(pdu.bytes, data + 2, u64_min(bytes - 2, sizeof(pdu)));
    if (nvme_tcp_hdr_check(&pdu.common, &rules, &frame, &bad) != ICMS_OK) {
        check(bad.fes >= NVME_TCP_FES_HEADER && bad.fes <= NVME_TCP_FES_UNSUPPORTED);
        return 0;
    }
    check(frame.header_bytes <= NVME_TCP_HEADER_MAX && frame.hlen <= frame.header_bytes);
    check(frame.data_bytes <= rules.data_max);
    check(frame.plen ==
          frame.header_bytes + frame.data_bytes + (frame.ddgst ? NVME_TCP_DIGEST_BYTES : 0));
    if (nvme_tcp_pdu_check(&pdu, &frame, &bad) != ICMS_OK) {
        check(bad.fes >= NVME_TCP_FES_HEADER && bad.fes <= NVME_TCP_FES_UNSUPPORTED);
        return 0;
    }
    /* What we accept we could have sent: framed again it is accepted again. */
    check(nvme_tcp_frame_encode(&pdu, frame.data_bytes, rules.digests, rules.pda) <=
          NVME_TCP_HEADER_MAX);
    check(nvme_tcp_hdr_check(&pdu.common, &rules, &frame, &bad) == ICMS_OK);
    check(nvme_tcp_pdu_check(&pdu, &frame, &bad) == ICMS_OK);
    return 0;
}
