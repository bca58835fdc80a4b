/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the PDUs.
 */
#include "wire/test_bytes.h"

#include "base/crc.h"
#include "wire/nvme_tcp.h"

#define BOTH (NVME_TCP_FLAG_HDGST | NVME_TCP_FLAG_DDGST)

static const struct nvme_tcp_rules controller = {
    .role = NVME_TCP_CONTROLLER, .connected = true, .capsule_data_max = 8192, .data_max = 262144};
static const struct nvme_tcp_rules host = {
    .role = NVME_TCP_HOST, .connected = true, .data_max = 262144};

static void icreq_of_linux_is_read(void **state)
{
    /* Linux 6.12 with header and data digest: pfv 0, hpda 0, dgst 3, maxr2t 0. */
    union nvme_tcp_pdu pdu = {0}, ours;
    struct nvme_tcp_rules rules = controller;
    struct nvme_tcp_frame frame;
    struct nvme_tcp_bad bad;

    test_hex("00 00 80 00 80000000 0000 00 03 00000000", pdu.bytes, sizeof(pdu.bytes));
    rules.connected = false;
    assert_int_equal(nvme_tcp_hdr_check(&pdu.common, &rules, &frame, &bad), ICMS_OK);
    assert_int_equal(frame.header_bytes, 128);
    assert_int_equal(frame.data_bytes, 0);
    assert_int_equal(nvme_tcp_pdu_check(&pdu, &frame, &bad), ICMS_OK);
    nvme_tcp_ic_req_encode(&ours, 0, BOTH, 1);
    assert_int_equal(nvme_tcp_frame_encode(&ours, 0, BOTH, 0), 128);
    assert_memory_equal(&ours, &pdu, sizeof(pdu));
}

static void pdus_have_their_golden_bytes(void **state)
{
    struct nvme_cqe cqe = {.cid = 0x11, .sqhd = 5};
    struct nvme_tcp_bad bad = {NVME_TCP_FES_HDGST, 0x01020304};
    union nvme_tcp_pdu pdu;

    nvme_tcp_ic_resp_encode(&pdu, 0, BOTH, 131072);
    assert_int_equal(nvme_tcp_frame_encode(&pdu, 0, BOTH, 0), 128);
    test_bytes_are(&pdu, "01 00 80 00 80000000 0000 00 03 00000200 00000000");
    nvme_tcp_resp_encode(&pdu, &cqe);
    assert_int_equal(nvme_tcp_frame_encode(&pdu, 0, 0, 0), 24);
    test_bytes_are(&pdu, "05 00 18 00 18000000 0000000000000000 0500 0000 1100 0000");
    nvme_tcp_r2t_encode(&pdu, 0x11, 7, 4096, 131072);
    assert_int_equal(nvme_tcp_frame_encode(&pdu, 0, 0, 0), 24);
    test_bytes_are(&pdu, "09 00 18 00 18000000 1100 0700 00100000 00000200 00000000");
    nvme_tcp_data_encode(&pdu, NVME_TCP_C2H_DATA, NVME_TCP_FLAG_LAST, 0x11, 0, 0, 5);
    assert_int_equal(nvme_tcp_frame_encode(&pdu, 5, BOTH, 0), 28);
    /* 24 + 4 + 5 + 4 = 37 */
    test_bytes_are(&pdu, "07 07 18 1c 25000000 1100 0000 00000000 05000000 00000000");
    nvme_tcp_term_encode(&pdu, NVME_TCP_C2H_TERM, bad);
    assert_int_equal(nvme_tcp_frame_encode(&pdu, 24, BOTH, 0), 24);
    test_bytes_are(&pdu, "03 00 18 00 30000000 0300 04030201 0000 0000000000000000");
    nvme_tcp_term_decode(&pdu, &bad);
    assert_true(bad.fes == NVME_TCP_FES_HDGST && bad.fei == 0x01020304);
}

static void digests_are_crc32c(void **state)
{
    struct nvme_tcp_frame frame;
    struct nvme_tcp_rules rules = host;
    struct nvme_tcp_bad bad;
    union nvme_tcp_pdu pdu;
    le32 digest;

    rules.digests = BOTH;
    nvme_tcp_r2t_encode(&pdu, 1, 1, 0, 4096);
    assert_int_equal(nvme_tcp_frame_encode(&pdu, 0, BOTH, 0), 28);
    memcpy(&digest, pdu.bytes + 24, 4);
    assert_int_equal(le32_get(digest), crc32c(pdu.bytes, 24));
    assert_int_equal(nvme_tcp_hdr_check(&pdu.common, &rules, &frame, &bad), ICMS_OK);
    assert_int_equal(nvme_tcp_pdu_check(&pdu, &frame, &bad), ICMS_OK);
    pdu.bytes[12] ^= 1;
    assert_int_equal(nvme_tcp_pdu_check(&pdu, &frame, &bad), ICMS_PROTOCOL);
    assert_int_equal(bad.fes, NVME_TCP_FES_HDGST);
    assert_int_equal(bad.fei, le32_get(digest));
}

static void data_digest_may_cover_the_pad(void **state)
{
    uint8_t data[8] = "12345";

    assert_true(nvme_tcp_ddgst_matches(crc32c(data, 5), 5, crc32c(data, 5)));
    assert_true(nvme_tcp_ddgst_matches(crc32c(data, 5), 5, crc32c(data, 8)));
    assert_false(nvme_tcp_ddgst_matches(crc32c(data, 5), 5, crc32c(data, 7)));
    assert_false(nvme_tcp_ddgst_matches(crc32c(data, 4), 4, crc32c(data, 8)));
    assert_true(nvme_tcp_ddgst_matches(crc32c("123456789", 9), 9, 0xe3069283u));
}

static void data_starts_where_the_receiver_asked(void **state)
{
    for (uint8_t pda = 0; pda < 32; pda++) {
        for (uint8_t digests = 0; digests < 4; digests++) {
            uint32_t align = (pda + 1u) * 4, head;
            struct nvme_tcp_rules rules = host;
            struct nvme_tcp_frame frame;
            struct nvme_tcp_bad bad;
            union nvme_tcp_pdu pdu;

            nvme_tcp_data_encode(&pdu, NVME_TCP_C2H_DATA, 0, 1, 0, 0, 4096);
            head = nvme_tcp_frame_encode(&pdu, 4096, digests, pda);
            assert_int_equal(head % align, 0);
            assert_int_equal(pdu.common.pdo, head);
            rules.digests = digests;
            rules.pda = pda;
            assert_int_equal(nvme_tcp_hdr_check(&pdu.common, &rules, &frame, &bad), ICMS_OK);
            assert_int_equal(frame.header_bytes, head);
            assert_int_equal(frame.data_bytes, 4096);
            assert_int_equal(nvme_tcp_pdu_check(&pdu, &frame, &bad), ICMS_OK);
        }
    }
}

/* What a header with one field set is refused with. */
static void refused(const struct nvme_tcp_rules *rules, union nvme_tcp_pdu pdu, unsigned at,
                    unsigned value, enum nvme_tcp_fes fes, uint32_t fei)
{
    struct nvme_tcp_frame frame;
    struct nvme_tcp_bad bad = {0};

    pdu.bytes[at] = (uint8_t)value;
    assert_int_equal(nvme_tcp_hdr_check(&pdu.common, rules, &frame, &bad), ICMS_PROTOCOL);
    assert_int_equal(bad.fes, fes);
    assert_int_equal(bad.fei, fei);
}

static void bad_common_headers_have_their_status(void **state)
{
    struct nvme_tcp_rules fresh = controller, digests = controller, aligned = controller;
    struct nvme_sqe_wf sqe = {0};
    union nvme_tcp_pdu cmd, data;

    fresh.connected = false;
    digests.digests = BOTH;
    aligned.pda = 3;
    nvme_tcp_cmd_encode(&cmd, &sqe);
    nvme_tcp_frame_encode(&cmd, 0, 0, 0);
    nvme_tcp_data_encode(&data, NVME_TCP_H2C_DATA, 0, 1, 1, 0, 64);
    nvme_tcp_frame_encode(&data, 64, 0, 0);
    refused(&controller, cmd, 0, 0x08, NVME_TCP_FES_HEADER, 0);
    refused(&controller, cmd, 0, 0xff, NVME_TCP_FES_HEADER, 0);
    refused(&controller, cmd, 0, NVME_TCP_CAPSULE_RESP, NVME_TCP_FES_HEADER, 0);
    refused(&controller, cmd, 0, NVME_TCP_R2T, NVME_TCP_FES_HEADER, 0);
    refused(&controller, cmd, 0, NVME_TCP_IC_REQ, NVME_TCP_FES_SEQUENCE, 0);
    refused(&fresh, cmd, 0, NVME_TCP_CAPSULE_CMD, NVME_TCP_FES_SEQUENCE, 0);
    refused(&controller, cmd, 1, 0x10, NVME_TCP_FES_HEADER, 1);
    refused(&controller, cmd, 1, NVME_TCP_FLAG_LAST, NVME_TCP_FES_HEADER, 1);
    refused(&controller, cmd, 1, NVME_TCP_FLAG_HDGST, NVME_TCP_FES_HEADER, 1);
    refused(&digests, cmd, 1, 0, NVME_TCP_FES_HEADER, 1);
    refused(&digests, data, 1, NVME_TCP_FLAG_DDGST, NVME_TCP_FES_HEADER, 1);
    refused(&controller, cmd, 2, 71, NVME_TCP_FES_HEADER, 2);
    refused(&controller, cmd, 2, 0, NVME_TCP_FES_HEADER, 2);
    refused(&controller, cmd, 4, 71, NVME_TCP_FES_HEADER, 4);
    refused(&controller, cmd, 4, 76, NVME_TCP_FES_HEADER, 3);
    refused(&controller, data, 3, 23, NVME_TCP_FES_HEADER, 3);
    refused(&controller, data, 3, 26, NVME_TCP_FES_HEADER, 3);
    refused(&controller, data, 3, 132, NVME_TCP_FES_HEADER, 3);
    refused(&controller, data, 3, 88, NVME_TCP_FES_HEADER, 4);
    refused(&aligned, data, 3, 24, NVME_TCP_FES_HEADER, 3);
    refused(&controller, data, 4, 24, NVME_TCP_FES_HEADER, 4);
    refused(&controller, data, 7, 0xff, NVME_TCP_FES_LIMIT, 4);
}

static void too_much_data_has_its_own_status(void **state)
{
    struct nvme_sqe_wf sqe = {0};
    struct nvme_tcp_frame frame;
    struct nvme_tcp_bad bad;
    union nvme_tcp_pdu pdu;

    nvme_tcp_cmd_encode(&pdu, &sqe);
    nvme_tcp_frame_encode(&pdu, 8192, 0, 0);
    assert_int_equal(nvme_tcp_hdr_check(&pdu.common, &controller, &frame, &bad), ICMS_OK);
    nvme_tcp_frame_encode(&pdu, 8193, 0, 0);
    assert_int_equal(nvme_tcp_hdr_check(&pdu.common, &controller, &frame, &bad), ICMS_PROTOCOL);
    assert_int_equal(bad.fes, NVME_TCP_FES_LIMIT);
}

static void bad_fields_of_a_type_have_their_status(void **state)
{
    static const struct {
        const char *hex;       /* header                     */
        enum nvme_tcp_role to; /* receiver                   */
        bool connected;        /* its state                  */
        enum nvme_tcp_fes fes; /* wanted                     */
        uint32_t fei;          /* wanted                     */
    } cases[] = {
        {"00008000 80000000 0100 00 00", NVME_TCP_CONTROLLER, false, NVME_TCP_FES_UNSUPPORTED, 8},
        {"00008000 80000000 0000 20 00", NVME_TCP_CONTROLLER, false, NVME_TCP_FES_HEADER, 10},
        {"00008000 80000000 0000 00 04", NVME_TCP_CONTROLLER, false, NVME_TCP_FES_HEADER, 11},
        {"01008000 80000000 0000 00 00 00080000", NVME_TCP_HOST, false, NVME_TCP_FES_HEADER, 12},
        {"01008000 80000000 0000 00 00 02100000", NVME_TCP_HOST, false, NVME_TCP_FES_HEADER, 12},
        {"06001818 58000000 0100 0100 00000000 3f000000", NVME_TCP_CONTROLLER, true,
         NVME_TCP_FES_HEADER, 16},
        {"06001818 58000000 0100 0100 02000000 40000000", NVME_TCP_CONTROLLER, true,
         NVME_TCP_FES_HEADER, 12},
        {"06001818 58000000 0100 0100 f0ffffff 40000000", NVME_TCP_CONTROLLER, true,
         NVME_TCP_FES_RANGE, 12},
        {"09001800 18000000 0100 0100 00000000 00000000", NVME_TCP_HOST, true, NVME_TCP_FES_HEADER,
         16},
        {"09001800 18000000 0100 0100 fcffffff 00100000", NVME_TCP_HOST, true, NVME_TCP_FES_RANGE,
         12},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct nvme_tcp_rules rules = controller;
        union nvme_tcp_pdu pdu = {0};
        struct nvme_tcp_frame frame;
        struct nvme_tcp_bad bad = {0};

        rules.role = cases[i].to;
        rules.connected = cases[i].connected;
        test_hex(cases[i].hex, pdu.bytes, sizeof(pdu.bytes));
        assert_int_equal(nvme_tcp_hdr_check(&pdu.common, &rules, &frame, &bad), ICMS_OK);
        assert_int_equal(nvme_tcp_pdu_check(&pdu, &frame, &bad), ICMS_PROTOCOL);
        assert_int_equal(bad.fes, cases[i].fes);
        assert_int_equal(bad.fei, cases[i].fei);
    }
}

static void accepted_headers_are_bounded_whatever_the_bytes(void **state)
{
    uint64_t seed = 5;
    unsigned accepted = 0;

    for (int i = 0; i < 300000; i++) {
        struct nvme_tcp_common_wf common;
        struct nvme_tcp_rules rules = i & 1 ? controller : host;
        struct nvme_tcp_frame frame;
        struct nvme_tcp_bad bad;

        test_random_bytes(&seed, &common, sizeof(common));
        common.type %= 10;
        common.hlen = (uint8_t[]){24, 72, 128, 25}[common.hlen % 4];
        common.flags &= common.flags & 0x80 ? 0x0f : 0x03;
        if (test_random(&seed) & 1)
            common.pdo = (uint8_t)(common.hlen + (common.flags & 1) * 4);
        common.plen = le32_of(le32_get(common.plen) >> (common.pdo % 32));
        rules.digests = (uint8_t)(test_random(&seed) & 3);
        rules.connected = test_random(&seed) & 1;
        if (nvme_tcp_hdr_check(&common, &rules, &frame, &bad) != ICMS_OK) {
            assert_in_range(bad.fes, NVME_TCP_FES_HEADER, NVME_TCP_FES_UNSUPPORTED);
            continue;
        }
        accepted++;
        assert_true(frame.header_bytes <= NVME_TCP_HEADER_MAX);
        assert_true(frame.data_bytes <= 262144);
        assert_int_equal(frame.plen, frame.header_bytes + frame.data_bytes + (frame.ddgst ? 4 : 0));
        assert_true(frame.hlen + (frame.hdgst ? 4 : 0) <= frame.header_bytes);
    }
    assert_true(accepted > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(icreq_of_linux_is_read),
        cmocka_unit_test(pdus_have_their_golden_bytes),
        cmocka_unit_test(digests_are_crc32c),
        cmocka_unit_test(data_digest_may_cover_the_pad),
        cmocka_unit_test(data_starts_where_the_receiver_asked),
        cmocka_unit_test(bad_common_headers_have_their_status),
        cmocka_unit_test(too_much_data_has_its_own_status),
        cmocka_unit_test(bad_fields_of_a_type_have_their_status),
        cmocka_unit_test(accepted_headers_are_bounded_whatever_the_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
