/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the fabrics commands.
 */
#include "wire/test_bytes.h"

#include "wire/nvme_fabrics.h"

static struct nvme_connect example(void)
{
    struct nvme_connect connect = {.qid = 2,
                                   .entries = 128,
                                   .kato_ms = 5000,
                                   .cntlid = 7,
                                   .subnqn = "nqn.2026-01.io.icms:encl0",
                                   .hostnqn = "nqn.2014-08.org.nvmexpress:uuid:0"};

    memset(connect.hostid, 0x5a, sizeof(connect.hostid));
    return connect;
}

static void names_are_checked(void **state)
{
    char text[300];

    assert_true(nvme_nqn_valid("nqn.a", 6));
    assert_true(nvme_nqn_valid(NVME_DISCOVERY, sizeof(NVME_DISCOVERY)));
    assert_false(nvme_nqn_valid("nqn.a", 5));
    assert_false(nvme_nqn_valid("nqn.", 5));
    assert_false(nvme_nqn_valid("", 1));
    assert_false(nvme_nqn_valid("iqn.2001-04.com.example", 24));
    assert_false(nvme_nqn_valid("nqn.a b", 8));
    assert_false(nvme_nqn_valid("nqn.a\n", 8));
    assert_false(nvme_nqn_valid("nqn.\xc3\xa4", 8));
    memset(text, 'x', sizeof(text));
    memcpy(text, "nqn.", 4);
    text[223] = '\0';
    assert_true(nvme_nqn_valid(text, 256));
    text[223] = 'x';
    text[224] = '\0';
    assert_false(nvme_nqn_valid(text, 256));
}

/* Hosts that name no priority are as urgent as loads. */
static void a_priority_names_the_class_of_a_queue_pair(void **state)
{
    (void)state;
    for (enum io_class i = 0; i < IO_CLASS_COUNT; i++)
        assert_int_equal(nvme_cattr_class(nvme_cattr_priority(i) | NVME_CATTR_NO_SQ_FLOW), i);
    assert_int_equal(nvme_cattr_priority(IO_CLASS_LOAD), 0); /* urgent */
    assert_int_equal(nvme_cattr_class(1), IO_CLASS_LOAD);    /* high   */
}

static void connect_has_its_golden_bytes_and_round_trips(void **state)
{
    struct nvme_connect connect = example(), back;
    uint8_t data[NVME_CONNECT_DATA_BYTES], data_again[NVME_CONNECT_DATA_BYTES];
    struct nvme_sqe_wf sqe, again;
    uint32_t dw0;

    nvme_connect_encode(&connect, &sqe, data);
    test_bytes_are(&sqe, "7f400000 01000000");
    test_bytes_are(&sqe.cdw10, "0000 0200 7f00 00 00 88130000 00000000");
    test_bytes_are(data, "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a 0700 0000");
    assert_string_equal((char *)data + 256, connect.subnqn);
    assert_string_equal((char *)data + 512, connect.hostnqn);
    assert_int_equal(nvme_connect_decode(&sqe, data, sizeof(data), &back, &dw0), NVME_SC_SUCCESS);
    nvme_connect_encode(&back, &again, data_again);
    assert_memory_equal(&again, &sqe, sizeof(sqe));
    assert_memory_equal(data_again, data, sizeof(data));
}

static void connect_of_linux_is_read(void **state)
{
    /* As nvme-tcp of Linux 6.12 sends it on the admin queue: 32 entries, keep alive 5 s. */
    uint8_t data[NVME_CONNECT_DATA_BYTES] = {0};
    struct nvme_connect back;
    struct nvme_sqe_wf sqe;
    uint32_t dw0;

    assert_int_equal(test_hex("7f400000 01000000 0000000000000000 0000000000000000"
                              "0000000000000000 00040000 00000001"
                              "00000000 1f000000 88130000 00000000 00000000 00000000",
                              (uint8_t *)&sqe, sizeof(sqe)),
                     64);
    data[0] = 0x1b;
    data[16] = data[17] = 0xff;
    strcpy((char *)data + 256, "nqn.2026-01.io.icms:encl0");
    strcpy((char *)data + 512, "nqn.2014-08.org.nvmexpress:uuid:1b4e28ba");
    assert_int_equal(nvme_connect_decode(&sqe, data, sizeof(data), &back, &dw0), 0);
    assert_int_equal(back.qid, 0);
    assert_int_equal(back.entries, 32);
    assert_int_equal(back.kato_ms, 5000);
    assert_int_equal(back.cntlid, NVME_CNTLID_ANY);
}

static void bad_connects_have_status_and_place(void **state)
{
    struct nvme_connect connect = example(), back;
    uint8_t data[NVME_CONNECT_DATA_BYTES];
    struct nvme_sqe_wf sqe, bad;
    uint32_t dw0;

    nvme_connect_encode(&connect, &sqe, data);
    for (size_t cut = 0; cut < sizeof(data); cut++) {
        uint8_t *part = test_exact(data, cut);

        assert_int_equal(nvme_connect_decode(&sqe, part, cut, &back, &dw0), NVME_SC_SGL_LENGTH);
        free(part);
    }
    bad = sqe;
    bad.cdw10.byte[0] = 1;
    assert_int_equal(nvme_connect_decode(&bad, data, 1024, &back, &dw0), NVME_SC_CONNECT_FORMAT);
    bad = sqe;
    bad.cdw11 = le32_of(0);
    assert_int_equal(nvme_connect_decode(&bad, data, 1024, &back, &dw0), NVME_SC_CONNECT_PARAM);
    assert_int_equal(dw0, 44);
    bad.cdw11 = le32_of(0xffff);
    assert_int_equal(nvme_connect_decode(&bad, data, 1024, &back, &dw0), NVME_SC_CONNECT_PARAM);
    data[256] = 'x';
    assert_int_equal(nvme_connect_decode(&sqe, data, 1024, &back, &dw0), NVME_SC_CONNECT_PARAM);
    assert_int_equal(dw0, 0x10000 | 256);
    data[256] = 'n';
    memset(data + 512 + 4, 'a', 252);
    assert_int_equal(nvme_connect_decode(&sqe, data, 1024, &back, &dw0), NVME_SC_CONNECT_PARAM);
    assert_int_equal(dw0, 0x10000 | 512);
    memset(connect.hostid, 0, sizeof(connect.hostid));
    nvme_connect_encode(&connect, &sqe, data);
    assert_int_equal(nvme_connect_decode(&sqe, data, 1024, &back, &dw0), NVME_SC_CONNECT_PARAM);
    assert_int_equal(dw0, 0x10000);
}

static void properties_round_trip(void **state)
{
    struct nvme_property set = {.set = true, .offset = NVME_REG_CC, .value = NVME_CC_START}, back;
    struct nvme_property get = {.wide = true, .offset = NVME_REG_CAP};
    struct nvme_sqe_wf sqe, again;

    nvme_property_encode(&set, &sqe);
    assert_int_equal(nvme_fctype(&sqe), NVME_FCTYPE_PROPERTY_SET);
    test_bytes_are(&sqe.cdw10, "00000000 14000000 61004600 00000000");
    assert_int_equal(nvme_property_decode(&sqe, &back), ICMS_OK);
    nvme_property_encode(&back, &again);
    assert_memory_equal(&again, &sqe, sizeof(sqe));
    assert_true(back.value == NVME_CC_START);
    nvme_property_encode(&get, &sqe);
    test_bytes_are(&sqe.cdw10, "01000000 00000000 00000000 00000000");
    assert_int_equal(nvme_property_decode(&sqe, &back), ICMS_OK);
    nvme_property_encode(&back, &again);
    assert_memory_equal(&again, &sqe, sizeof(sqe));
    sqe.cdw10.byte[0] = 2;
    assert_int_equal(nvme_property_decode(&sqe, &back), ICMS_INVALID);
    nvme_disconnect_encode(&sqe);
    assert_int_equal(nvme_fctype(&sqe), NVME_FCTYPE_DISCONNECT);
    assert_int_equal(nvme_property_decode(&sqe, &back), ICMS_INVALID);
}

static void capabilities_say_what_kv_needs(void **state)
{
    uint64_t cap = nvme_cap(128, 15);

    assert_true(cap == (127 | 1u << 16 | 15u << 24 | (uint64_t)1 << 37 | (uint64_t)1 << 43));
    assert_int_equal(nvme_cap_queue_entries(cap), 128);
    assert_true(cap & NVME_CAP_CSS_IO);
    assert_int_equal(NVME_CC_CSS(NVME_CC_START), 6);
    assert_int_equal(NVME_CC_SHN(NVME_CC_START | NVME_CC_SHN_NORMAL), 1);
}

static void features_round_trip(void **state)
{
    struct nvme_feature set = {
        .set = true, .fid = NVME_FEATURE_QUEUES, .save = true, .value = 0x30003};
    struct nvme_feature get = {.fid = NVME_FEATURE_KEEP_ALIVE, .select = 3, .nsid = 9}, back;
    struct nvme_sqe_wf sqe, again;

    nvme_feature_encode(&set, &sqe);
    test_bytes_are(&sqe.cdw10, "07000080 03000300");
    nvme_feature_decode(&sqe, &back);
    nvme_feature_encode(&back, &again);
    assert_memory_equal(&again, &sqe, sizeof(sqe));
    assert_true(back.set && back.save && back.value == 0x30003);
    nvme_feature_encode(&get, &sqe);
    nvme_feature_decode(&sqe, &back);
    assert_true(!back.set && back.fid == get.fid && back.select == 3 && back.nsid == 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_checked),
        cmocka_unit_test(a_priority_names_the_class_of_a_queue_pair),
        cmocka_unit_test(connect_has_its_golden_bytes_and_round_trips),
        cmocka_unit_test(connect_of_linux_is_read),
        cmocka_unit_test(bad_connects_have_status_and_place),
        cmocka_unit_test(properties_round_trip),
        cmocka_unit_test(capabilities_say_what_kv_needs),
        cmocka_unit_test(features_round_trip),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
