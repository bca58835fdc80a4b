/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the log pages.
 */
#include "wire/test_bytes.h"

#include "wire/nvme_identify.h"
#include "wire/nvme_kv.h"
#include "wire/nvme_log.h"

static const struct nvme_disc_entry entries[] = {
    {.subtype = NVME_DISC_CURRENT,
     .flags = NVME_DISC_DUPLICATE | NVME_DISC_PERSISTENT,
     .port_id = 1,
     .admin_entries = 32,
     .address = "10.0.2.2",
     .service = "4420",
     .subnqn = NVME_DISCOVERY},
    {.subtype = NVME_DISC_NVM,
     .port_id = 1,
     .admin_entries = 32,
     .tls = true,
     .treq = NVME_DISC_TLS_REQUIRED,
     .ipv6 = true,
     .address = "fd00::1",
     .service = "4420",
     .subnqn = "nqn.2026-01.io.icms:encl0"},
};

static void command_round_trips(void **state)
{
    struct nvme_log log = {.page = NVME_LOG_EFFECTS,
                           .csi = NVME_CSI_KV,
                           .retain = true,
                           .nsid = NVME_NSID_ALL,
                           .offset = 0x123456789cu,
                           .bytes = 0x80000};
    struct nvme_log back;
    struct nvme_sqe_wf sqe, again;

    nvme_log_encode(&log, &sqe);
    test_bytes_are(&sqe.cdw10, "0580ffff 01000000 9c785634 12000000 00000001");
    assert_int_equal(nvme_log_decode(&sqe, &back), ICMS_OK);
    nvme_log_encode(&back, &again);
    assert_memory_equal(&again, &sqe, sizeof(sqe));
    assert_true(back.offset == log.offset && back.bytes == log.bytes && back.retain);
    sqe.cdw12 = le32_of(2);
    assert_int_equal(nvme_log_decode(&sqe, &back), ICMS_INVALID);
    sqe.cdw12 = le32_of(4);
    sqe.cdw14.byte[2] = 0x80; /* an index, not bytes */
    assert_int_equal(nvme_log_decode(&sqe, &back), ICMS_INVALID);
}

/* LSP lies between the page and RAE. */
static void what_is_specific_to_a_page_round_trips(void **state)
{
    struct nvme_log log = {.page = NVME_LOG_ANA, .specific = NVME_LOG_ANA_GROUPS, .bytes = 4};
    struct nvme_log back;
    struct nvme_sqe_wf sqe;

    nvme_log_encode(&log, &sqe);
    test_bytes_are(&sqe.cdw10, "0c010000");
    assert_int_equal(nvme_log_decode(&sqe, &back), ICMS_OK);
    assert_true(back.specific == NVME_LOG_ANA_GROUPS && !back.retain);
    log.specific = 0x7f;
    log.retain = true;
    nvme_log_encode(&log, &sqe);
    assert_int_equal(nvme_log_decode(&sqe, &back), ICMS_OK);
    assert_true(back.specific == 0x7f && back.retain && back.page == NVME_LOG_ANA);
}

static void access_has_its_golden_bytes(void **state)
{
    static const uint32_t nsids[] = {1, 3, 0x01020304};
    struct nvme_ana ana = {.changes = 0x0102,
                           .group = 1,
                           .state = NVME_ANA_OPTIMIZED,
                           .nsids = nsids,
                           .count = 3,
                           .count_max = 5};
    uint8_t page[80], part[80];

    assert_int_equal(nvme_log_ana_read(&ana, 0, page, sizeof(page)), ICMS_OK);
    test_bytes_are(page, "0201000000000000 0100 000000000000"
                         "01000000 03000000 0201000000000000 01 000000000000000000000000000000"
                         "01000000 03000000 04030201 00000000 00000000 000000000000000000000000");
    for (uint32_t at = 0; at <= 68; at += 4) { /* hosts read as much as there can be */
        memset(part, 1, sizeof(part));
        assert_int_equal(nvme_log_ana_read(&ana, at, part, 12), ICMS_OK);
        assert_memory_equal(part, page + at, at > 68 ? 80 - at : 12);
    }
    assert_int_equal(nvme_log_ana_read(&ana, 72, part, 4), ICMS_INVALID);
    ana.count = 0;
    assert_int_equal(nvme_log_ana_read(&ana, 16, part, 36), ICMS_OK);
    test_bytes_are(part, "01000000 00000000 0201000000000000 01 000000000000000000000000000000"
                         "00000000");
}

static void effects_exist_for_both_command_sets(void **state)
{
    uint8_t page[4096];
    le32 entry;

    assert_int_equal(nvme_log_effects_read(NVME_CSI_KV, NVME_ICMS_EXT_TIMED, 0, page, 4096),
                     ICMS_OK);
    memcpy(&entry, page + 1024 + 4 * NVME_KV_STORE, 4);
    assert_int_equal(le32_get(entry), 3);
    memcpy(&entry, page + 1024 + 4 * NVME_KV_RETRIEVE, 4);
    assert_int_equal(le32_get(entry), 1);
    memcpy(&entry, page + 1024 + 4 * NVME_ICMS_STORE, 4);
    assert_int_equal(le32_get(entry), 3);
    memcpy(&entry, page + 1024 + 4 * NVME_ICMS_EXIST_MANY, 4);
    assert_int_equal(le32_get(entry), 0);
    memcpy(&entry, page + 1024 + 4 * NVME_ICMS_DELETE, 4);
    assert_int_equal(le32_get(entry), 0);
    memcpy(&entry, page + 1024 + 4 * NVME_ICMS_EXPEDITE, 4);
    assert_int_equal(le32_get(entry), 0);
    memcpy(&entry, page + 4 * NVME_ADMIN_IDENTIFY, 4);
    assert_int_equal(le32_get(entry), 1);
    assert_int_equal(nvme_log_effects_read(NVME_CSI_NVM, 0, 0, page, 4096), ICMS_OK);
    memcpy(&entry, page + 1024 + 4 * NVME_KV_STORE, 4);
    assert_int_equal(le32_get(entry), 0);
    assert_int_equal(nvme_log_effects_read(2, 0, 0, page, 4096), ICMS_INVALID);
}

static void pages_read_in_pieces_are_the_page(void **state)
{
    uint8_t whole[3 * 1024 + 64], part[64];

    assert_int_equal(nvme_log_discovery_read(7, entries, 2, 0, whole, sizeof(whole)), ICMS_OK);
    for (uint32_t at = 0; at + 60 < sizeof(whole); at += 4) {
        assert_int_equal(nvme_log_discovery_read(7, entries, 2, at, part, 60), ICMS_OK);
        assert_memory_equal(part, whole + at, 60);
    }
    assert_int_equal(nvme_log_effects_read(NVME_CSI_KV, 3, 0, whole, 3072), ICMS_OK);
    for (uint32_t at = 0; at + 60 < 3072; at += 52) {
        assert_int_equal(nvme_log_effects_read(NVME_CSI_KV, 3, at, part, 60), ICMS_OK);
        assert_memory_equal(part, whole + at, 60);
    }
}

static void past_the_end_nothing_is_read(void **state)
{
    static const struct nvme_health health = {0};
    static const uint64_t far[] = {1u << 20, UINT64_MAX - 3, UINT64_MAX - 63};
    uint8_t part[64], untouched[64], zeros[64] = {0};
    uint32_t nsid = 5;

    memset(part, 1, 64);
    memcpy(untouched, part, 64);
    for (size_t i = 0; i < 4; i++) {
        /* The first offset past the end, then absurd ones. */
        assert_int_equal(nvme_log_discovery_read(7, entries, 2, i == 3 ? 3076 : far[i], part, 64),
                         ICMS_INVALID);
        assert_int_equal(nvme_log_ns_changed_read(&nsid, 1, i == 3 ? 4100 : far[i], part, 64),
                         ICMS_INVALID);
        assert_int_equal(nvme_log_effects_read(1, 0, i == 3 ? 4100 : far[i], part, 64),
                         ICMS_INVALID);
        assert_int_equal(nvme_log_health_read(&health, i == 3 ? 516 : far[i], part, 64),
                         ICMS_INVALID);
        assert_int_equal(
            nvme_log_quiet_read(NVME_LOG_FIRMWARE, "", i == 3 ? 516 : far[i], part, 64),
            ICMS_INVALID);
        assert_int_equal(nvme_log_quiet_read(NVME_LOG_ERROR, "", i == 3 ? 68 : far[i], part, 64),
                         ICMS_INVALID);
    }
    assert_memory_equal(part, untouched, 64);
    assert_int_equal(nvme_log_health_read(&health, 512, part, 64), ICMS_OK);
    assert_memory_equal(part, zeros, 64);
}

static void quiet_pages_are_quiet(void **state)
{
    uint8_t part[64];

    assert_int_equal(nvme_log_quiet_read(NVME_LOG_FIRMWARE, "0.1.0", 0, part, 64), ICMS_OK);
    test_bytes_are(part, "0100000000000000 302e312e30202020 00");
    assert_int_equal(nvme_log_quiet_read(NVME_LOG_ERROR, "0.1.0", 0, part, 64), ICMS_OK);
    test_bytes_are(part, "0000000000000000 0000000000000000");
    assert_int_equal(nvme_log_quiet_read(0x0c, "0.1.0", 0, part, 64), ICMS_UNSUPPORTED);
}

static void health_has_its_golden_bytes(void **state)
{
    struct nvme_health health = {
        .warnings = NVME_HEALTH_DEGRADED,
        .spare_percent = 75,
        .read_bytes = 512001,
        .written_bytes = 512000,
        .reads = 3,
        .writes = 258,
        .power_on_hours = 9,
        .media_errors = 7,
    };
    uint8_t page[512];

    assert_int_equal(nvme_log_health_read(&health, 0, page, sizeof(page)), ICMS_OK);
    test_bytes_are(page, "04 0000 4b 0a 00 00");
    test_bytes_are(page + 32, "02000000000000000000000000000000 01000000000000000000000000000000"
                              "03000000000000000000000000000000 02010000000000000000000000000000");
    test_bytes_are(page + 128, "09000000000000000000000000000000");
    test_bytes_are(page + 160, "07000000000000000000000000000000 00000000");
}

static void changed_namespaces_overflow_to_all(void **state)
{
    static uint32_t nsids[1025];
    uint8_t part[8];

    for (uint32_t i = 0; i < 1025; i++)
        nsids[i] = i + 1;
    assert_int_equal(nvme_log_ns_changed_read(nsids, 1024, 4092, part, 8), ICMS_OK);
    test_bytes_are(part, "00040000 00000000");
    assert_int_equal(nvme_log_ns_changed_read(nsids, 1025, 0, part, 8), ICMS_OK);
    test_bytes_are(part, "ffffffff 00000000");
}

static void discovery_has_its_golden_bytes_and_round_trips(void **state)
{
    uint64_t generation, count;
    struct nvme_disc_entry back;
    uint8_t page[3072], again[1024];

    assert_int_equal(nvme_log_discovery_read(7, entries, 2, 0, page, sizeof(page)), ICMS_OK);
    test_bytes_are(page, "0700000000000000 0200000000000000 0000 0000");
    test_bytes_are(page + 1024, "03 01 03 00 0100 ffff 2000 0300");
    test_bytes_are(page + 1024 + 32, "34343230 20202020");
    test_bytes_are(page + 1024 + 512, "31302e302e322e32 20202020");
    test_bytes_are(page + 1024 + 768, "00");
    test_bytes_are(page + 2048, "03 02 02 01");
    test_bytes_are(page + 2048 + 768, "02");
    assert_int_equal(nvme_disc_header_decode(page, 1024, &generation, &count), ICMS_OK);
    assert_true(generation == 7 && count == 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(nvme_disc_entry_decode(page + 1024 + 1024 * i, 1024, &back), ICMS_OK);
        assert_int_equal(nvme_log_discovery_read(7, &back, 1, 1024, again, 1024), ICMS_OK);
        assert_memory_equal(again, page + 1024 + 1024 * i, 1024);
        assert_int_equal(back.ipv6, i == 1);
        assert_int_equal(back.tls, i == 1);
        assert_int_equal(back.treq, i == 1 ? NVME_DISC_TLS_REQUIRED : NVME_DISC_TLS_UNSPECIFIED);
    }
    for (size_t cut = 0; cut < 1024; cut++)
        assert_int_equal(nvme_disc_entry_decode(page + 1024, cut, &back), ICMS_PROTOCOL);
    for (size_t cut = 0; cut < 18; cut++)
        assert_int_equal(nvme_disc_header_decode(page, cut, &generation, &count), ICMS_PROTOCOL);
}

static void hostile_discovery_entries_are_refused(void **state)
{
    struct nvme_disc_entry back;
    uint8_t page[2048], bad[1024];

    assert_int_equal(nvme_log_discovery_read(7, entries, 1, 0, page, sizeof(page)), ICMS_OK);
    memcpy(bad, page + 1024, 1024);
    bad[0] = 1;
    assert_int_equal(nvme_disc_entry_decode(bad, 1024, &back), ICMS_UNSUPPORTED);
    memcpy(bad, page + 1024, 1024);
    memset(bad + 512, '1', 256);
    assert_int_equal(nvme_disc_entry_decode(bad, 1024, &back), ICMS_PROTOCOL);
    memcpy(bad, page + 1024, 1024);
    memset(bad + 256, 'n', 256);
    assert_int_equal(nvme_disc_entry_decode(bad, 1024, &back), ICMS_PROTOCOL);
    memcpy(bad, page + 1024, 1024);
    memset(bad + 32, ' ', 32);
    assert_int_equal(nvme_disc_entry_decode(bad, 1024, &back), ICMS_PROTOCOL);
    memcpy(bad, page + 1024, 1024);
    bad[514] = '\n';
    assert_int_equal(nvme_disc_entry_decode(bad, 1024, &back), ICMS_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(command_round_trips),
        cmocka_unit_test(what_is_specific_to_a_page_round_trips),
        cmocka_unit_test(access_has_its_golden_bytes),
        cmocka_unit_test(effects_exist_for_both_command_sets),
        cmocka_unit_test(pages_read_in_pieces_are_the_page),
        cmocka_unit_test(past_the_end_nothing_is_read),
        cmocka_unit_test(quiet_pages_are_quiet),
        cmocka_unit_test(health_has_its_golden_bytes),
        cmocka_unit_test(changed_namespaces_overflow_to_all),
        cmocka_unit_test(discovery_has_its_golden_bytes_and_round_trips),
        cmocka_unit_test(hostile_discovery_entries_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
