/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the Identify data.
 */
#include "wire/test_bytes.h"

#include "wire/nvme_identify.h"

static const struct nvme_ctrl example = {
    .serial = "ICMS0001",
    .model = "icms enclosure",
    .firmware = "0.1.0",
    .subnqn = "nqn.2026-01.io.icms:encl0",
    .type = NVME_CTRL_IO,
    .cntlid = 0x0102,
    .version = NVME_VERSION_2_0,
    .oaes = NVME_OAES_NS_CHANGED,
    .async_events = 4,
    .keep_alive_100ms = 10,
    .commands_max = 128,
    .nsid_max = 64,
    .in_capsule_bytes = 8192,
    .write_cache = true,
    .icms_ext = NVME_ICMS_EXT_EXIST_MANY,
    .icms_instance = 0x123456789abcdef1,
};

static void command_round_trips(void **state)
{
    struct nvme_identify identify = {.cns = NVME_CNS_NS_CSI, .csi = NVME_CSI_KV, .nsid = 9}, back;
    struct nvme_sqe_wf sqe;

    nvme_identify_encode(&identify, &sqe);
    test_bytes_are(&sqe.cdw10, "05000000 00000001");
    nvme_identify_decode(&sqe, &back);
    assert_true(back.cns == identify.cns && back.csi == identify.csi && back.nsid == 9);
}

static void controller_has_what_linux_insists_on(void **state)
{
    uint8_t page[NVME_PAGE_BYTES];

    nvme_ctrl_encode(&example, page);
    test_bytes_are(page + 4, "49434d5330303031202020202020202020202020");
    test_bytes_are(page + 76, "00 00 0201 00000200");
    test_bytes_are(page + 92, "00010000 01000000");
    assert_int_equal(page[111], 1);
    test_bytes_are(page + 258, "03 03 03 06");
    test_bytes_are(page + 320, "0a00");
    test_bytes_are(page + 512, "66 44 8000 40000000");
    assert_int_equal(page[525], 7);
    test_bytes_are(page + 536, "01001000 00000000");
    assert_string_equal((char *)page + 768, example.subnqn);
    /* (64 + 8192) / 16 = 516 */
    test_bytes_are(page + 1792, "04020000 01000000 0000 00 01 0000");
    test_bytes_are(page + 3072, "49434d53 01000000 01000000");
}

/* What Linux checks before it reads the log of asymmetric access. */
static void controller_says_how_access_is_reported(void **state)
{
    struct nvme_ctrl ana = example, back;
    uint8_t page[NVME_PAGE_BYTES], again[NVME_PAGE_BYTES];

    ana.multi_ctrl = true;
    ana.ana_groups = 1;
    ana.oaes |= NVME_OAES_ANA;
    nvme_ctrl_encode(&ana, page);
    assert_int_equal(page[76], 0x0b);
    test_bytes_are(page + 92, "00090000");
    test_bytes_are(page + 342, "0a 41 01000000 01000000");
    test_bytes_are(page + 516, "40000000"); /* NN, and as many as can be: MNAN */
    test_bytes_are(page + 540, "40000000");
    assert_int_equal(nvme_ctrl_decode(page, sizeof(page), &back), ICMS_OK);
    assert_int_equal(back.ana_groups, 1);
    nvme_ctrl_encode(&back, again);
    assert_memory_equal(page, again, sizeof(page));
    page[76] = 0x03; /* what stands there means nothing then */
    assert_int_equal(nvme_ctrl_decode(page, sizeof(page), &back), ICMS_OK);
    assert_int_equal(back.ana_groups, 0);
}

/* Get Log Page of a discovery controller has no log of effects. */
static void discovery_claims_no_effects_log(void **state)
{
    struct nvme_ctrl discovery = example;
    uint8_t page[NVME_PAGE_BYTES];

    discovery.type = NVME_CTRL_DISCOVERY;
    nvme_ctrl_encode(&discovery, page);
    assert_int_equal(page[261], 4);
}

static void controller_round_trips(void **state)
{
    uint8_t page[NVME_PAGE_BYTES], again[NVME_PAGE_BYTES];
    struct nvme_ctrl back;

    nvme_ctrl_encode(&example, page);
    assert_int_equal(nvme_ctrl_decode(page, sizeof(page), &back), ICMS_OK);
    assert_string_equal(back.serial, example.serial);
    assert_string_equal(back.model, example.model);
    assert_string_equal(back.firmware, example.firmware);
    assert_int_equal(back.in_capsule_bytes, 8192);
    assert_int_equal(back.async_events, 4);
    assert_int_equal(back.icms_ext, example.icms_ext);
    assert_int_equal(back.icms_instance, example.icms_instance);
    nvme_ctrl_encode(&back, again);
    assert_memory_equal(page, again, sizeof(page));
}

static void hostile_controller_is_refused(void **state)
{
    uint8_t page[NVME_PAGE_BYTES], bad[NVME_PAGE_BYTES];
    struct nvme_ctrl back;

    nvme_ctrl_encode(&example, page);
    for (size_t cut = 0; cut < sizeof(page); cut += 61)
        assert_int_equal(nvme_ctrl_decode(page, cut, &back), ICMS_PROTOCOL);
    memcpy(bad, page, sizeof(page));
    memset(bad + 768, 'n', 256);
    assert_int_equal(nvme_ctrl_decode(bad, sizeof(bad), &back), ICMS_PROTOCOL);
    memcpy(bad, page, sizeof(page));
    memset(bad + 1792, 0, 4);
    assert_int_equal(nvme_ctrl_decode(bad, sizeof(bad), &back), ICMS_PROTOCOL);
    memcpy(bad, page, sizeof(page));
    memset(bad + 1792, 0xff, 4);
    assert_int_equal(nvme_ctrl_decode(bad, sizeof(bad), &back), ICMS_PROTOCOL);
    memcpy(bad, page, sizeof(page));
    bad[1800] = 1;
    assert_int_equal(nvme_ctrl_decode(bad, sizeof(bad), &back), ICMS_PROTOCOL);
    memcpy(bad, page, sizeof(page));
    bad[536] = 0;
    assert_int_equal(nvme_ctrl_decode(bad, sizeof(bad), &back), ICMS_PROTOCOL);
    memset(page + 4, 0xff, 68);
    assert_int_equal(nvme_ctrl_decode(page, sizeof(page), &back), ICMS_OK);
    assert_int_equal(strlen(back.serial), 20);
}

static void namespace_0_says_what_the_kv_namespace_says(void **state)
{
    struct nvme_ns ns = {.size_bytes = 1 << 20, .used_bytes = 513, .shared = true, .nguid = {7, 8}};
    uint8_t page[NVME_PAGE_BYTES];

    nvme_ns_encode(&ns, page);
    test_bytes_are(page, "0008000000000000 0008000000000000 0200000000000000 00 00");
    assert_int_equal(page[30], 1);
    assert_memory_equal(page + 104, ns.nguid, 16);
    assert_int_equal(page[130], 9);
    ns = (struct nvme_ns){.size_bytes = 1};
    nvme_ns_encode(&ns, page);
    assert_int_equal(page[0], 1);
    assert_int_equal(page[30], 0);
}

static void lists_are_cut_after_and_checked(void **state)
{
    uint32_t nsids[1500], back[1500], count;
    uint8_t page[NVME_PAGE_BYTES];

    for (uint32_t i = 0; i < 1500; i++)
        nsids[i] = 3 * i + 1;
    nvme_ns_list_encode(nsids, 3, 1, page);
    test_bytes_are(page, "04000000 07000000 00000000");
    nvme_ns_list_encode(nsids, 1500, 0, page);
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), back, 1500, &count), ICMS_OK);
    assert_int_equal(count, 1024);
    assert_memory_equal(back, nsids, 4 * 1024);
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), back, 1023, &count), ICMS_LIMIT);
    assert_int_equal(nvme_ns_list_decode(page, 4095, back, 1500, &count), ICMS_PROTOCOL);
    page[0] = 9;
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), back, 1500, &count), ICMS_PROTOCOL);
    memset(page, 0xff, 4);
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), back, 1500, &count), ICMS_PROTOCOL);
}

static void descriptors_have_their_golden_bytes_and_round_trip(void **state)
{
    struct nvme_ns_ids ids = {.has_nguid = true, .has_uuid = true, .has_csi = true, .csi = 1};
    uint8_t page[NVME_PAGE_BYTES], again[NVME_PAGE_BYTES];
    struct nvme_ns_ids back;

    memset(ids.nguid, 0x11, 16);
    memset(ids.uuid.bytes, 0x22, 16);
    nvme_ns_ids_encode(&ids, page);
    test_bytes_are(page, "02100000 11111111111111111111111111111111"
                         "03100000 22222222222222222222222222222222 04010000 01 00000000");
    assert_int_equal(nvme_ns_ids_decode(page, sizeof(page), &back), ICMS_OK);
    nvme_ns_ids_encode(&back, again);
    assert_memory_equal(page, again, sizeof(page));
    page[1] = 15;
    assert_int_equal(nvme_ns_ids_decode(page, sizeof(page), &back), ICMS_PROTOCOL);
}

static void descriptors_stay_inside_their_page(void **state)
{
    uint64_t seed = 4;

    for (int i = 0; i < 2000; i++) {
        uint8_t page[NVME_PAGE_BYTES];
        struct nvme_ns_ids back;
        uint8_t *exact;

        for (size_t at = 0; at < sizeof(page); at += 4 + page[at + 1]) {
            if (at + 4 > sizeof(page))
                break;
            memset(page + at, 0, sizeof(page) - at);
            page[at] = (uint8_t)(5 + test_random(&seed) % 250);
            page[at + 1] = (uint8_t)test_random(&seed);
        }
        exact = test_exact(page, sizeof(page));
        (void)!nvme_ns_ids_decode(exact, sizeof(page), &back);
        free(exact);
    }
}

static void common_csi_and_sets_have_their_bytes(void **state)
{
    struct nvme_ns_common common = {.shared = true, .ready = true, .ana_group = 1}, back;
    uint8_t page[NVME_PAGE_BYTES];

    nvme_ns_common_encode(&common, page);
    test_bytes_are(page, "00 01 00 00 01000000 00000000 0000 01 00");
    assert_int_equal(nvme_ns_common_decode(page, sizeof(page), &back), ICMS_OK);
    assert_true(back.shared && back.ready && back.ana_group == 1);
    nvme_ctrl_csi_encode(NVME_CSI_KV, page);
    test_bytes_are(page, "00030100 00000000");
    nvme_ctrl_csi_encode(NVME_CSI_NVM, page);
    test_bytes_are(page, "00000000 00000000");
    nvme_io_sets_encode(page);
    test_bytes_are(page, "0300000000000000 0000000000000000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(command_round_trips),
        cmocka_unit_test(controller_has_what_linux_insists_on),
        cmocka_unit_test(controller_says_how_access_is_reported),
        cmocka_unit_test(discovery_claims_no_effects_log),
        cmocka_unit_test(controller_round_trips),
        cmocka_unit_test(hostile_controller_is_refused),
        cmocka_unit_test(namespace_0_says_what_the_kv_namespace_says),
        cmocka_unit_test(lists_are_cut_after_and_checked),
        cmocka_unit_test(descriptors_have_their_golden_bytes_and_round_trip),
        cmocka_unit_test(descriptors_stay_inside_their_page),
        cmocka_unit_test(common_csi_and_sets_have_their_bytes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
