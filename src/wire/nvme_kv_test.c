/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the entries and of the Key-Value command set.
 */
#include "wire/test_bytes.h"

#include "wire/nvme_kv.h"

static struct key key_of(const char *text)
{
    struct key key = {.length = (uint8_t)strlen(text)};

    memcpy(key.bytes, text, key.length);
    return key;
}

static struct key random_key(uint64_t *seed)
{
    struct key key = {.length = (uint8_t)(1 + test_random(seed) % LIMIT_KEY_BYTES)};

    test_random_bytes(seed, key.bytes, key.length);
    return key;
}

static void cqe_has_its_golden_bytes_and_round_trips(void **state)
{
    struct nvme_cqe cqe = {.cid = 0x1234,
                           .sqhd = 7,
                           .status = NVME_SC_KV_NO_KEY,
                           .dnr = true,
                           .dw0 = 0x1001,
                           .dw1 = 2};
    struct nvme_cqe_wf wf;
    struct nvme_cqe back;

    nvme_cqe_encode(&cqe, &wf);
    /* 8Eh 0Ch style: SC 87h << 1 = 10Eh, DNR 8000h. */
    test_bytes_are(&wf, "01100000 02000000 0700 0000 3412 0e81");
    nvme_cqe_decode(&wf, &back);
    assert_memory_equal(&back, &cqe, sizeof(cqe));
    cqe = (struct nvme_cqe){.cid = 1, .status = NVME_SC_CONNECT_PARAM};
    nvme_cqe_encode(&cqe, &wf);
    assert_int_equal(le16_get(wf.status), 0x182 << 1);
}

static void sgl_knows_two_types_and_refuses_the_others(void **state)
{
    struct nvme_sgl sgl = {.in_capsule = true, .bytes = 1024};
    struct nvme_sgl_wf wf;
    struct nvme_sgl back;
    uint16_t status;

    nvme_sgl_encode(&sgl, &wf);
    test_bytes_are(&wf, "0000000000000000 00040000 000000 01");
    assert_int_equal(nvme_sgl_decode(&wf, &back, &status), ICMS_OK);
    assert_true(back.in_capsule && back.bytes == 1024 && back.offset == 0);
    sgl = (struct nvme_sgl){.bytes = 8u << 20};
    nvme_sgl_encode(&sgl, &wf);
    test_bytes_are(&wf, "0000000000000000 00008000 000000 5a");
    assert_int_equal(nvme_sgl_decode(&wf, &back, &status), ICMS_OK);
    assert_true(!back.in_capsule && back.bytes == 8u << 20);
    wf.address = le64_of(1);
    assert_int_equal(nvme_sgl_decode(&wf, &back, &status), ICMS_INVALID);
    assert_int_equal(status, NVME_SC_SGL_OFFSET);
    for (unsigned type = 0; type < 256; type++) {
        if (type == NVME_SGL_IN_CAPSULE || type == NVME_SGL_TRANSPORT)
            continue;
        wf.type = (uint8_t)type;
        assert_int_equal(nvme_sgl_decode(&wf, &back, &status), ICMS_INVALID);
        assert_int_equal(status, NVME_SC_SGL_TYPE);
    }
    memset(&wf, 0, sizeof(wf));
    assert_int_equal(nvme_sgl_decode(&wf, &back, &status), ICMS_OK);
    assert_int_equal(back.bytes, 0);
}

static void store_has_its_golden_bytes(void **state)
{
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_STORE,
                              .options = NVME_KV_STORE_IF_ABSENT,
                              .nsid = 3,
                              .key = key_of("abcdefghijklmnop"),
                              .bytes = 0x1001};
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    /* key[0] is the lowest byte of CDW2; bytes 8..15 are in CDW14, 15. */
    test_bytes_are(&sqe, "01400000 03000000 61626364 65666768 0000000000000000"
                         "0000000000000000 00000000 00000000"
                         "01100000 10020000 00000000 00000000 696a6b6c 6d6e6f70");
}

static void unused_key_bytes_do_not_matter(void **state)
{
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_EXIST, .nsid = 1, .key = key_of("k")};
    struct nvme_kv_cmd back;
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    memset(sqe.cdw14.byte, 0xee, 4);
    sqe.cdw2.byte[1] = 0x77;
    sqe.cdw12 = le32_of(0xffffffffu);
    assert_int_equal(nvme_kv_cmd_decode(&sqe, &back), ICMS_OK);
    assert_true(key_equal(&back.key, &cmd.key));
}

static void commands_round_trip(void **state)
{
    static const uint8_t opcodes[] = {NVME_KV_STORE,      NVME_KV_RETRIEVE, NVME_KV_LIST,
                                      NVME_KV_DELETE,     NVME_KV_EXIST,    NVME_ICMS_STORE,
                                      NVME_ICMS_RETRIEVE, NVME_ICMS_DELETE};
    uint64_t seed = 1;

    for (int i = 0; i < 10000; i++) {
        struct nvme_kv_cmd cmd = {0}, back;
        struct nvme_sqe_wf sqe;

        cmd.opcode = opcodes[test_random(&seed) % sizeof(opcodes)];
        cmd.nsid = (uint32_t)test_random(&seed);
        cmd.key = random_key(&seed);
        if (cmd.opcode == NVME_ICMS_DELETE)
            cmd.record = (uint32_t)test_random(&seed) | 1;
        else if (cmd.opcode != NVME_KV_DELETE && cmd.opcode != NVME_KV_EXIST)
            cmd.bytes = (uint32_t)test_random(&seed);
        if (cmd.opcode != NVME_KV_LIST && cmd.bytes != 0)
            cmd.options = test_random(&seed) & 1;
        if (cmd.opcode == NVME_ICMS_STORE || cmd.opcode == NVME_ICMS_RETRIEVE) {
            cmd.time_left_us = (uint32_t)test_random(&seed);
            cmd.io_class = (uint8_t)(test_random(&seed) % IO_CLASS_COUNT);
            cmd.may_ask = (test_random(&seed) & 1) != 0;
        }
        nvme_kv_cmd_encode(&cmd, &sqe);
        assert_int_equal(nvme_kv_cmd_decode(&sqe, &back), ICMS_OK);
        assert_int_equal(back.opcode, cmd.opcode);
        assert_int_equal(back.nsid, cmd.nsid);
        assert_true(key_equal(&back.key, &cmd.key));
        assert_int_equal(back.bytes, cmd.bytes);
        assert_int_equal(back.options, cmd.options);
        assert_int_equal(back.time_left_us, cmd.time_left_us);
        assert_int_equal(back.io_class, cmd.io_class);
        assert_int_equal(back.may_ask, cmd.may_ask);
        assert_int_equal(back.record, cmd.record);
    }
}

static void expedites_round_trip(void **state)
{
    uint64_t seed = 1;

    for (uint32_t count = 1; count <= NVME_KV_EXPEDITE_CIDS; count++) {
        uint16_t cids[NVME_KV_EXPEDITE_CIDS], back[NVME_KV_EXPEDITE_CIDS];
        struct nvme_sqe_wf sqe;
        uint32_t back_count;

        for (uint32_t i = 0; i < count; i++)
            cids[i] = (uint16_t)test_random(&seed);
        nvme_kv_expedite_encode(cids, count, &sqe);
        assert_int_equal(sqe.opcode, NVME_ICMS_EXPEDITE);
        assert_int_equal(nvme_kv_expedite_decode(&sqe, back, &back_count), ICMS_OK);
        assert_int_equal(back_count, count);
        assert_memory_equal(back, cids, count * sizeof(cids[0]));
        sqe.cdw10 = le32_of(0);
        assert_int_equal(nvme_kv_expedite_decode(&sqe, back, &back_count), ICMS_INVALID);
        sqe.cdw10 = le32_of(NVME_KV_EXPEDITE_CIDS + 1);
        assert_int_equal(nvme_kv_expedite_decode(&sqe, back, &back_count), ICMS_INVALID);
    }
}

static void bad_commands_have_their_status(void **state)
{
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_STORE, .nsid = 1, .key = key_of("k"), .bytes = 1};
    struct nvme_kv_cmd back;
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    sqe.opcode = NVME_ICMS_DELETE; /* of which record? */
    assert_int_equal(err_to_nvme(nvme_kv_cmd_decode(&sqe, &back)), NVME_SC_FIELD);
    sqe.opcode = NVME_KV_STORE;
    sqe.cdw11.byte[0] = 0;
    assert_int_equal(err_to_nvme(nvme_kv_cmd_decode(&sqe, &back)), NVME_SC_KV_KEY_SIZE);
    sqe.cdw11.byte[0] = 17;
    assert_int_equal(err_to_nvme(nvme_kv_cmd_decode(&sqe, &back)), NVME_SC_KV_KEY_SIZE);
    sqe.cdw11.byte[0] = 1;
    sqe.cdw11.byte[1] = NVME_KV_STORE_IF_ABSENT | NVME_KV_STORE_IF_EXISTS;
    assert_int_equal(err_to_nvme(nvme_kv_cmd_decode(&sqe, &back)), NVME_SC_FIELD);
    sqe.cdw11.byte[1] = 0x08;
    assert_int_equal(err_to_nvme(nvme_kv_cmd_decode(&sqe, &back)), NVME_SC_FIELD);
    sqe.cdw11.byte[1] = 0;
    sqe.opcode = 0x03;
    assert_int_equal(err_to_nvme(nvme_kv_cmd_decode(&sqe, &back)), NVME_SC_OPCODE);
    sqe.opcode = NVME_ICMS_STORE;
    sqe.cdw13.byte[0] = IO_CLASS_COUNT;
    assert_int_equal(nvme_kv_cmd_decode(&sqe, &back), ICMS_INVALID);
    sqe.opcode = NVME_KV_LIST;
    sqe.cdw11.byte[0] = 0;
    assert_int_equal(nvme_kv_cmd_decode(&sqe, &back), ICMS_OK);
}

static void list_has_its_golden_bytes(void **state)
{
    struct nvme_kv_list_writer writer;
    struct key a = key_of("a"), bc = key_of("bc"), def = key_of("def");
    uint8_t memory[64];

    nvme_kv_list_write_begin(&writer, memory, sizeof(memory));
    assert_true(nvme_kv_list_write_key(&writer, &a));
    assert_true(nvme_kv_list_write_key(&writer, &bc));
    assert_true(nvme_kv_list_write_key(&writer, &def));
    assert_int_equal(nvme_kv_list_write_end(&writer), 20);
    test_bytes_are(memory, "03000000 01006100 02006263 03006465 66000000");
}

static void list_counts_only_whole_entries_that_fit(void **state)
{
    uint64_t seed = 2;

    for (uint32_t room = NVME_KV_LIST_HEADER_BYTES; room < 200; room++) {
        uint8_t *memory = test_exact(&seed, 0);
        struct nvme_kv_list_writer writer;
        struct nvme_kv_list_reader reader;
        struct key keys[64], key;
        uint32_t n = 0, bytes;

        memory = realloc(memory, room);
        nvme_kv_list_write_begin(&writer, memory, room);
        do
            keys[n] = random_key(&seed);
        while (nvme_kv_list_write_key(&writer, &keys[n]) && ++n < 64);
        bytes = nvme_kv_list_write_end(&writer);
        assert_true(bytes <= room);
        assert_int_equal(nvme_kv_list_read_begin(&reader, memory, bytes), ICMS_OK);
        for (uint32_t i = 0; i < n; i++) {
            assert_true(nvme_kv_list_read_key(&reader, &key));
            assert_true(key_equal(&key, &keys[i]));
        }
        assert_false(nvme_kv_list_read_key(&reader, &key));
        for (uint32_t cut = 0; cut < bytes; cut++) {
            uint8_t *part = test_exact(memory, cut);

            assert_int_equal(nvme_kv_list_read_begin(&reader, part, cut), ICMS_PROTOCOL);
            free(part);
        }
        free(memory);
    }
}

static void list_that_lies_is_refused(void **state)
{
    struct nvme_kv_list_reader reader;
    uint8_t memory[64];

    assert_int_equal(test_hex("ffffffff 01006100", memory, 64), 8);
    assert_int_equal(nvme_kv_list_read_begin(&reader, memory, 8), ICMS_PROTOCOL);
    test_hex("01000000 00000000", memory, 64);
    assert_int_equal(nvme_kv_list_read_begin(&reader, memory, 8), ICMS_PROTOCOL);
    test_hex("01000000 11006100 00000000 00000000 00000000 00000000", memory, 64);
    assert_int_equal(nvme_kv_list_read_begin(&reader, memory, 24), ICMS_PROTOCOL);
}

static void exist_many_round_trips_at_every_count(void **state)
{
    uint64_t seed = 3;

    for (uint32_t n = 1; n <= NVME_KV_EXIST_MANY_KEYS; n++) {
        struct key keys[NVME_KV_EXIST_MANY_KEYS], back[NVME_KV_EXIST_MANY_KEYS];
        uint8_t data[NVME_KV_EXIST_MANY_BYTES];
        struct nvme_sqe_wf sqe;
        uint32_t bytes, count;

        for (uint32_t i = 0; i < n; i++)
            keys[i] = random_key(&seed);
        bytes = nvme_kv_exist_many_encode(5, keys, n, &sqe, data);
        assert_int_equal(bytes, n * 20);
        assert_int_equal(NVME_DIRECTION(sqe.opcode), NVME_DIRECTION_H2C);
        assert_int_equal(nvme_kv_exist_many_count(&sqe, &count), ICMS_OK);
        assert_int_equal(count, n);
        assert_int_equal(nvme_kv_exist_many_decode(data, bytes, count, back), ICMS_OK);
        for (uint32_t i = 0; i < n; i++)
            assert_true(key_equal(&keys[i], &back[i]));
        assert_int_equal(nvme_kv_exist_many_decode(data, bytes - 1, count, back), ICMS_INVALID);
        data[16] = 0;
        assert_int_equal(nvme_kv_exist_many_decode(data, bytes, count, back), ICMS_KEY_SIZE);
        sqe.cdw10 = le32_of(65);
        assert_int_equal(nvme_kv_exist_many_count(&sqe, &count), ICMS_INVALID);
    }
}

static void namespace_has_its_golden_bytes_and_round_trips(void **state)
{
    struct nvme_kv_ns ns = {.size_bytes = (uint64_t)1 << 40,
                            .used_bytes = 12345,
                            .value_bytes_max = 8u << 20,
                            .granularity = 4096,
                            .key_bytes_max = 16,
                            .shared = true,
                            .icms = true,
                            .sealed = true};
    uint8_t page[NVME_PAGE_BYTES];
    struct nvme_kv_ns back;

    memset(ns.nguid, 0xab, sizeof(ns.nguid));
    memset(ns.volume.bytes, 0xcd, sizeof(ns.volume.bytes));
    nvme_kv_ns_encode(&ns, page);
    test_bytes_are(page, "0000000000010000 0000000000000000 3930000000000000"
                         "00 00 01 00 00 00 0000 00100000 00000000");
    test_bytes_are(page + 48, "abababababababababababababababab 0000000000000000");
    test_bytes_are(page + 72, "1000 00 00 00008000 00000000 00000000 0000");
    test_bytes_are(page + 3840, "49434d53 01 01 0000 cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd");
    assert_int_equal(nvme_kv_ns_decode(page, sizeof(page), &back), ICMS_OK);
    assert_memory_equal(back.nguid, ns.nguid, 16);
    assert_true(back.icms && back.sealed && back.shared);
    assert_true(uuid_equal(&back.volume, &ns.volume));
    assert_true(back.size_bytes == ns.size_bytes && back.used_bytes == ns.used_bytes);
    assert_int_equal(back.value_bytes_max, ns.value_bytes_max);
    for (size_t cut = 0; cut < sizeof(page); cut += 97)
        assert_int_equal(nvme_kv_ns_decode(page, cut, &back), ICMS_PROTOCOL);
    page[72] = 17;
    assert_int_equal(nvme_kv_ns_decode(page, sizeof(page), &back), ICMS_PROTOCOL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cqe_has_its_golden_bytes_and_round_trips),
        cmocka_unit_test(sgl_knows_two_types_and_refuses_the_others),
        cmocka_unit_test(store_has_its_golden_bytes),
        cmocka_unit_test(unused_key_bytes_do_not_matter),
        cmocka_unit_test(commands_round_trip),
        cmocka_unit_test(expedites_round_trip),
        cmocka_unit_test(bad_commands_have_their_status),
        cmocka_unit_test(list_has_its_golden_bytes),
        cmocka_unit_test(list_counts_only_whole_entries_that_fit),
        cmocka_unit_test(list_that_lies_is_refused),
        cmocka_unit_test(exist_many_round_trips_at_every_count),
        cmocka_unit_test(namespace_has_its_golden_bytes_and_round_trips),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
