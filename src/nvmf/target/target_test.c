/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a polite host sees of the target: connecting, Identify, features, logs, KV commands and
 * their statuses, drain. Over the simulation; the owner keeps values in memory.
 */
#include "base/bytes.h"
#include "nvmf/target/target_test.h"

static uint16_t identify(struct peer *peer, uint8_t cns, uint8_t csi, uint32_t nsid, uint8_t *page)
{
    struct nvme_identify what = {.cns = cns, .csi = csi, .nsid = nsid};
    uint32_t bytes = NVME_PAGE_BYTES;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_identify_encode(&what, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, page, &bytes, &cqe));
    assert_int_equal(bytes, cqe.status == NVME_SC_SUCCESS ? NVME_PAGE_BYTES : 0);
    return cqe.status;
}

static uint16_t feature(struct peer *peer, bool set, uint8_t fid, uint32_t nsid, uint32_t value,
                        uint32_t *out_value)
{
    struct nvme_feature what = {.set = set, .fid = fid, .nsid = nsid, .value = value};
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_feature_encode(&what, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    *out_value = cqe.dw0;
    return cqe.status;
}

static void a_host_connects_and_sees_the_controller(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *peer = rig_admin(rig, 0);
    uint8_t page[NVME_PAGE_BYTES];
    struct nvme_ctrl ctrl;

    assert_int_equal(identify(peer, NVME_CNS_CTRL, 0, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ctrl_decode(page, sizeof(page), &ctrl), ICMS_OK);
    assert_int_equal(ctrl.cntlid, peer->cntlid);
    assert_int_equal(ctrl.type, NVME_CTRL_IO);
    assert_string_equal(ctrl.subnqn, "nqn.2026-01.io.icms:test");
    assert_int_equal(ctrl.in_capsule_bytes, 8192);
    assert_int_equal(ctrl.mdts, 0);
    assert_true(ctrl.write_cache);
    assert_int_equal(ctrl.icms_ext, NVME_ICMS_EXT_EXIST_MANY | NVME_ICMS_EXT_TIMED |
                                        NVME_ICMS_EXT_STORE_DATA | NVME_ICMS_EXT_RECORD |
                                        NVME_ICMS_EXT_SETTINGS | NVME_ICMS_EXT_EXPEDITE);
    assert_int_equal(identify(peer, NVME_CNS_CTRL_CSI, NVME_CSI_NVM, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(identify(peer, NVME_CNS_CTRL_CSI, NVME_CSI_KV, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(identify(peer, NVME_CNS_CTRL_CSI, 2, 0, page), NVME_SC_FIELD);
    assert_int_equal(identify(peer, NVME_CNS_IO_SETS, 0, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(identify(peer, 0x77, 0, 0, page), NVME_SC_FIELD);
    peer_free(&peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_host_sees_the_namespaces_it_may_use_and_no_others(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *peer = rig_admin(rig, 0);
    uint8_t page[NVME_PAGE_BYTES];
    uint32_t nsids[8];
    uint32_t count;
    struct nvme_kv_ns ns;
    struct nvme_ns_ids ids;
    struct nvme_ns_common common;

    assert_int_equal(identify(peer, NVME_CNS_NS_ACTIVE, 0, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), nsids, 8, &count), ICMS_OK);
    assert_int_equal(count, 2);
    assert_int_equal(nsids[0], 1);
    assert_int_equal(nsids[1], 3);
    assert_int_equal(identify(peer, NVME_CNS_NS_CSI, NVME_CSI_KV, 1, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_kv_ns_decode(page, sizeof(page), &ns), ICMS_OK);
    assert_int_equal(ns.value_bytes_max, RIG_VALUE_MAX);
    assert_int_equal(ns.used_bytes, 12345);
    assert_int_equal(ns.size_bytes, 1 << 30);
    assert_true(ns.icms && ns.sealed);
    assert_int_equal(ns.volume.bytes[0], 1);
    assert_int_equal(identify(peer, NVME_CNS_NS_IDS, 0, 3, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ns_ids_decode(page, sizeof(page), &ids), ICMS_OK);
    assert_true(ids.has_csi && ids.has_nguid);
    assert_int_equal(ids.csi, NVME_CSI_KV);
    assert_memory_not_equal(ids.nguid, ns.nguid, 16);
    assert_int_equal(identify(peer, NVME_CNS_NS_COMMON, 0, 1, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ns_common_decode(page, sizeof(page), &common), ICMS_OK);
    assert_true(common.ready);
    /* Somebody else's namespace, and one that does not exist, look the same. */
    for (uint32_t nsid = 2; nsid <= 4; nsid += 2) {
        assert_int_equal(identify(peer, NVME_CNS_NS_CSI, NVME_CSI_KV, nsid, page),
                         NVME_SC_NAMESPACE);
        assert_int_equal(identify(peer, NVME_CNS_NS_IDS, 0, nsid, page), NVME_SC_NAMESPACE);
        assert_int_equal(identify(peer, NVME_CNS_NS, 0, nsid, page), NVME_SC_SUCCESS);
        assert_int_equal(page[0] | page[8], 0);
    }
    assert_int_equal(identify(peer, NVME_CNS_NS, 0, 1, page), NVME_SC_SUCCESS);
    assert_int_not_equal(page[0] | page[1] | page[2] | page[3], 0);
    assert_int_equal(identify(peer, NVME_CNS_NS, 0, LIMIT_VOLUMES + 1, page), NVME_SC_NAMESPACE);
    peer_free(&peer);
    peer = rig_peer(rig);
    memcpy(peer->host, "nqn.2026-01.io.icms:friend", 27);
    assert_true(peer_admin(peer, 0));
    assert_int_equal(identify(peer, NVME_CNS_NS_ACTIVE, 0, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), nsids, 8, &count), ICMS_OK);
    assert_int_equal(count, 3);
    peer_free(&peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Hosts of the 1,024 namespaces: all are for the first, number 1,000 for the second as well. */
static char two_hosts[2][LIMIT_NQN_BYTES] = {"nqn.2026-01.io.icms:peer",
                                             "nqn.2026-01.io.icms:friend"};

static void many_namespaces(struct nvmf_target_opts *opts)
{
    static struct nvmf_target_ns namespaces[LIMIT_VOLUMES];

    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        namespaces[i] = (struct nvmf_target_ns){
            .volume = {{(uint8_t)i, (uint8_t)(i >> 8), 1}},
            .size_bytes = 1 << 20,
            .value_bytes_max = 10000,
            .host_count = i == 999 ? 2 : 1,
            .host_nqn = (const char(*)[LIMIT_NQN_BYTES])two_hosts,
        };
    opts->namespaces = namespaces;
    opts->namespace_count = LIMIT_VOLUMES;
}

static void a_subsystem_has_1024_namespaces(void **state)
{
    struct rig *rig = rig_new(2, many_namespaces);
    struct peer *admin = rig_peer(rig), *io;
    uint8_t page[NVME_PAGE_BYTES];
    uint32_t nsids[NVME_NS_LIST_MAX];
    uint32_t count, value, bytes = 4;
    struct nvme_sqe_wf flush = {.opcode = NVME_IO_FLUSH, .flags = NVME_SQE_FLAGS_SGL};
    struct nvme_kv_ns ns;
    struct nvme_cqe cqe;
    char back[4];

    assert_int_equal(LIMIT_VOLUMES, 1024);
    strcpy(admin->host, two_hosts[0]);
    assert_true(peer_admin(admin, 0));
    assert_int_equal(identify(admin, NVME_CNS_NS_ACTIVE, 0, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), nsids, 1024, &count), ICMS_OK);
    assert_int_equal(count, 1024);
    for (uint32_t i = 0; i < 1024; i++)
        assert_int_equal(nsids[i], i + 1);
    assert_int_equal(identify(admin, NVME_CNS_NS_ACTIVE, 0, 1024, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), nsids, 1024, &count), ICMS_OK);
    assert_int_equal(count, 0);
    assert_int_equal(identify(admin, NVME_CNS_NS_CSI, NVME_CSI_KV, 1024, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_kv_ns_decode(page, sizeof(page), &ns), ICMS_OK);
    assert_int_equal(ns.volume.bytes[0], 1023 & 0xff);
    assert_int_equal(ns.volume.bytes[1], 1023 >> 8);
    assert_int_equal(identify(admin, NVME_CNS_NS_CSI, NVME_CSI_KV, 1025, page), NVME_SC_NAMESPACE);
    io = rig_peer(rig);
    assert_true(peer_io(io, admin, 1, 0));
    assert_int_equal(peer_store(io, 1024, "key", "last", 4, 0, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_retrieve(io, 1024, "key", back, &bytes, &cqe), NVME_SC_SUCCESS);
    assert_memory_equal(back, "last", 4);
    assert_int_equal(peer_exist(io, 1024 - 64, "key", &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(peer_exist(io, 1025, "key", &cqe), NVME_SC_NAMESPACE);
    /* The feature of one, and of all at once. */
    assert_int_equal(feature(admin, true, NVME_FEATURE_KV, 1024, 1, &value), NVME_SC_SUCCESS);
    assert_int_equal(peer_delete(io, 1024, "gone", &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(peer_delete(io, 1024 - 64, "gone", &cqe), NVME_SC_SUCCESS);
    assert_int_equal(feature(admin, false, NVME_FEATURE_KV, NVME_NSID_ALL, 0, &value),
                     NVME_SC_SUCCESS);
    assert_int_equal(value, 0);
    assert_int_equal(feature(admin, true, NVME_FEATURE_KV, NVME_NSID_ALL, 1, &value),
                     NVME_SC_SUCCESS);
    assert_int_equal(feature(admin, false, NVME_FEATURE_KV, NVME_NSID_ALL, 0, &value),
                     NVME_SC_SUCCESS);
    assert_int_equal(value, 1);
    assert_int_equal(peer_delete(io, 500, "gone", &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(feature(admin, true, NVME_FEATURE_KV, 500, 0, &value), NVME_SC_SUCCESS);
    assert_int_equal(peer_delete(io, 500, "gone", &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_delete(io, 500 + 64, "gone", &cqe), NVME_SC_KV_NO_KEY);
    peer_free(&io);
    peer_free(&admin);
    rig_run(rig, 2000);
    /* Who may use only number 1,000 sees only that one. */
    admin = rig_peer(rig);
    strcpy(admin->host, two_hosts[1]);
    assert_true(peer_admin(admin, 0));
    assert_int_equal(identify(admin, NVME_CNS_NS_ACTIVE, 0, 0, page), NVME_SC_SUCCESS);
    assert_int_equal(nvme_ns_list_decode(page, sizeof(page), nsids, 1024, &count), ICMS_OK);
    assert_int_equal(count, 1);
    assert_int_equal(nsids[0], 1000);
    assert_int_equal(feature(admin, true, NVME_FEATURE_KV, 999, 1, &value), NVME_SC_NAMESPACE);
    assert_int_equal(feature(admin, false, NVME_FEATURE_KV, 1000, 0, &value), NVME_SC_SUCCESS);
    assert_int_equal(value, 0); /* not what the controller of before set */
    io = rig_peer(rig);
    assert_true(peer_io(io, admin, 1, 0));
    assert_int_equal(peer_store(io, 1000, "key", "only", 4, 0, &cqe), NVME_SC_SUCCESS);
    for (uint32_t nsid = 1000 - 64; nsid <= 1024; nsid += 8)
        assert_int_equal(peer_exist(io, nsid, "key", &cqe),
                         nsid == 1000 ? NVME_SC_SUCCESS : NVME_SC_NAMESPACE);
    flush.nsid = le32_of(NVME_NSID_ALL);
    assert_true(peer_plain(io, &flush, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* A command without a namespace asks whether the target lives, and counts as none. */
static void a_command_without_a_namespace_is_not_counted(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_peer(rig), *io = rig_peer(rig);
    struct nvmf_target_stats stats;
    uint64_t counted = 0;
    struct nvme_cqe cqe;

    assert_true(peer_admin(admin, 0));
    assert_true(peer_io(io, admin, 1, 0));
    assert_int_equal(peer_exist(io, 9, "k", &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(peer_exist(io, 0, "k", &cqe), NVME_SC_NAMESPACE);
    rig_stats(rig, &stats);
    for (int err = 0; err < NVMF_TARGET_ERRS; err++)
        counted += stats.ops[NVMF_TARGET_EXIST][err];
    assert_int_equal(counted, 1);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void values_of_every_size_come_back(void **state)
{
    static const uint32_t sizes[] = {1,
                                     3,
                                     5,
                                     511,
                                     4095,
                                     4096,
                                     8128,
                                     8192,
                                     8193,
                                     65536,
                                     262144,
                                     262145,
                                     1000003,
                                     1 << 20,
                                     RIG_VALUE_MAX - 1,
                                     RIG_VALUE_MAX};
    uint8_t *value = malloc(RIG_VALUE_MAX);
    uint8_t *back = malloc(RIG_VALUE_MAX);

    for (int variant = 0; variant < 3; variant++) {
        uint8_t digests = variant == 0 ? 0 : BOTH_DIGESTS;
        struct rig *rig = rig_new(2, NULL);
        struct peer *admin = rig_admin(rig, digests);
        struct peer *io = rig_io(rig, admin, 1, digests);
        struct nvme_cqe cqe;

        io->capsule_max = variant == 1 ? 0 : 8192;
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            uint32_t bytes = RIG_VALUE_MAX;

            rig_fill(value, sizes[i], i);
            assert_int_equal(peer_store(io, 1, "key", value, sizes[i], 0, &cqe), NVME_SC_SUCCESS);
            assert_int_equal(peer_retrieve(io, 1, "key", back, &bytes, &cqe), NVME_SC_SUCCESS);
            assert_int_equal(bytes, sizes[i]);
            assert_int_equal(cqe.dw0, sizes[i]);
            assert_memory_equal(back, value, bytes);
            /* Exactly the room that is needed, and too little of it. */
            assert_int_equal(peer_retrieve(io, 1, "key", back, &bytes, &cqe), NVME_SC_SUCCESS);
            assert_int_equal(bytes, sizes[i]);
            bytes = sizes[i] / 3;
            assert_int_equal(peer_retrieve(io, 1, "key", back, &bytes, &cqe), NVME_SC_SUCCESS);
            assert_int_equal(bytes, sizes[i] / 3);
            assert_int_equal(cqe.dw0, sizes[i]);
            assert_memory_equal(back, value, bytes);
        }
        peer_free(&io);
        peer_free(&admin);
        rig_expect_clean(rig);
        rig_free(&rig);
    }
    free(value);
    free(back);
}

static void each_kv_status_is_answered(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    uint8_t value[20001] = {1};
    struct nvme_sqe_wf sqe;
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_KV_STORE, .nsid = 3, .key = peer_key("k"), .bytes = 10};
    struct nvme_cqe cqe;
    uint32_t bytes = 100;

    assert_int_equal(peer_retrieve(io, 3, "k", value, &bytes, &cqe), NVME_SC_KV_NO_KEY);
    assert_true(cqe.dnr);
    assert_int_equal(cqe.dw1, ICMS_MISS_EVICTED);
    assert_int_equal(peer_exist(io, 3, "k", &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(cqe.dw1, ICMS_MISS_ABSENT);
    assert_int_equal(peer_store(io, 3, "k", value, 10, NVME_KV_STORE_IF_EXISTS, &cqe),
                     NVME_SC_KV_NO_KEY);
    assert_int_equal(peer_store(io, 3, "k", value, 10, NVME_KV_STORE_IF_ABSENT, &cqe),
                     NVME_SC_SUCCESS);
    assert_int_equal(peer_store(io, 3, "k", value, 10, NVME_KV_STORE_IF_ABSENT, &cqe),
                     NVME_SC_KV_EXISTS);
    assert_int_equal(peer_store(io, 3, "k", value, 10, NVME_KV_STORE_IF_EXISTS, &cqe),
                     NVME_SC_SUCCESS);
    assert_int_equal(peer_store(io, 3, "k", value, 20000, 0, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_store(io, 3, "k", value, 20001, 0, &cqe), NVME_SC_KV_VALUE_SIZE);
    assert_true(cqe.dnr);
    assert_int_equal(peer_store(io, 3, "k", value, 0, 0, &cqe), NVME_SC_KV_VALUE_SIZE);
    assert_int_equal(peer_store(io, 2, "k", value, 10, 0, &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(peer_store(io, 9, "k", value, 10, 0, &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(peer_exist(io, 3, "k", &cqe), NVME_SC_SUCCESS);
    /* Value size larger than the data, in the capsule and not. */
    nvme_kv_cmd_encode(&cmd, &sqe);
    sqe.cdw10 = le32_of(11);
    assert_true(peer_command(io, &sqe, value, 10, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SGL_LENGTH);
    sqe.cdw10 = le32_of(9001);
    assert_true(peer_command(io, &sqe, value, 9000, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SGL_LENGTH);
    /* Key lengths 0 and 17. */
    nvme_kv_cmd_encode(&cmd, &sqe);
    sqe.cdw11.byte[0] = 0;
    assert_true(peer_command(io, &sqe, value, 10, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_KV_KEY_SIZE);
    sqe.cdw11.byte[0] = 17;
    assert_true(peer_command(io, &sqe, value, 10, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_KV_KEY_SIZE);
    sqe.opcode = 0x3d;
    assert_true(peer_command(io, &sqe, value, 10, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_OPCODE);
    nvme_flush_encode(NVME_NSID_ALL, &sqe);
    assert_true(peer_plain(io, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void delete_of_a_missing_key_fails_only_when_asked_to(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_cqe cqe;
    uint32_t value;

    assert_int_equal(peer_delete(io, 1, "gone", &cqe), NVME_SC_SUCCESS);
    assert_int_equal(feature(admin, true, NVME_FEATURE_KV, 1, 1, &value), NVME_SC_SUCCESS);
    assert_int_equal(feature(admin, false, NVME_FEATURE_KV, 1, 0, &value), NVME_SC_SUCCESS);
    assert_int_equal(value, 1);
    assert_int_equal(peer_delete(io, 1, "gone", &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(peer_delete(io, 3, "gone", &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_store(io, 1, "there", "abcd", 4, 0, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_delete(io, 1, "there", &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_exist(io, 1, "there", &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(feature(admin, true, NVME_FEATURE_KV, 2, 1, &value), NVME_SC_NAMESPACE);
    peer_free(&io);
    peer_free(&admin);
    rig_free(&rig);
}

static void keys_are_listed_and_asked_for_in_bulk(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    uint8_t data[4096];
    uint32_t bytes = sizeof(data);
    struct nvme_kv_cmd list = {.opcode = NVME_KV_LIST, .nsid = 1, .bytes = sizeof(data)};
    struct nvme_kv_list_reader reader;
    struct key keys[3] = {peer_key("one"), peer_key("two"), peer_key("0123456789abcdef")};
    struct key key;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    assert_int_equal(peer_store(io, 1, "one", "1", 1, 0, &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_store(io, 1, "0123456789abcdef", "2", 1, 0, &cqe), NVME_SC_SUCCESS);
    nvme_kv_cmd_encode(&list, &sqe);
    assert_true(peer_command(io, &sqe, NULL, 0, data, &bytes, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(nvme_kv_list_read_begin(&reader, data, bytes), ICMS_OK);
    assert_true(nvme_kv_list_read_key(&reader, &key));
    assert_true(nvme_kv_list_read_key(&reader, &key));
    assert_false(nvme_kv_list_read_key(&reader, &key));
    bytes = nvme_kv_exist_many_encode(1, keys, 3, &sqe, data);
    assert_true(peer_command(io, &sqe, data, bytes, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(cqe.dw0, 5);
    assert_int_equal(cqe.dw1, 0);
    peer_free(&io);
    peer_free(&admin);
    rig_free(&rig);
}

static void timed_commands_end_by_their_deadline(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_kv_cmd cmd = {
        .opcode = NVME_ICMS_STORE,
        .nsid = 1,
        .key = peer_key("timed"),
        .bytes = 9000,
        .io_class = IO_CLASS_STORE,
        .time_left_us = 5000000,
    };
    uint8_t value[9000] = {7};
    uint32_t bytes = sizeof(value);
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    assert_true(peer_command(io, &sqe, value, sizeof(value), NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    cmd.opcode = NVME_ICMS_RETRIEVE;
    cmd.io_class = IO_CLASS_LOAD;
    nvme_kv_cmd_encode(&cmd, &sqe);
    assert_true(peer_command(io, &sqe, NULL, 0, value, &bytes, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(bytes, sizeof(value));
    /* The data comes after the time is up. */
    cmd.opcode = NVME_ICMS_STORE;
    cmd.time_left_us = 1000;
    nvme_kv_cmd_encode(&cmd, &sqe);
    {
        uint16_t cid = peer_submit(io, &sqe, sizeof(value));

        peer_sleep(io, 50);
        assert_true(peer_complete(io, cid, value, sizeof(value), NULL, NULL, &cqe));
    }
    assert_int_equal(cqe.status, NVME_SC_ABORT_REQUESTED);
    assert_int_equal(cqe.dw1, ICMS_MISS_DEADLINE);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void discovery_tells_where_the_subsystem_is(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *peer = rig_peer(rig);
    struct nvme_log log = {.page = NVME_LOG_DISCOVERY, .bytes = 1024};
    struct nvme_disc_entry entry;
    uint8_t data[4096];
    uint32_t bytes = 1024;
    uint64_t generation, count;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    memcpy(peer->subsys, NVME_DISCOVERY, sizeof(NVME_DISCOVERY));
    assert_true(peer_admin(peer, 0));
    nvme_log_encode(&log, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, data, &bytes, &cqe));
    assert_int_equal(nvme_disc_header_decode(data, bytes, &generation, &count), ICMS_OK);
    assert_int_equal(count, 2);
    log.offset = 2048;
    nvme_log_encode(&log, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, data, &bytes, &cqe));
    assert_int_equal(nvme_disc_entry_decode(data, bytes, &entry), ICMS_OK);
    assert_string_equal(entry.subnqn, "nqn.2026-01.io.icms:test");
    assert_string_equal(entry.address, "10.1.0.1");
    assert_string_equal(entry.service, "4420");
    log.page = NVME_LOG_EFFECTS;
    nvme_log_encode(&log, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, data, &bytes, &cqe));
    assert_int_equal(cqe.status, NVME_SC_LOG_PAGE);
    peer_free(&peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void admin_commands_are_answered_as_hosts_expect(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *peer = rig_admin(rig, BOTH_DIGESTS);
    struct nvme_log log = {.page = NVME_LOG_EFFECTS, .csi = NVME_CSI_KV, .bytes = 4096};
    struct nvme_property property = {.wide = true, .offset = NVME_REG_CAP};
    uint8_t data[4096];
    uint32_t bytes = 4096;
    uint32_t value;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    assert_int_equal(feature(peer, true, NVME_FEATURE_QUEUES, 0, 3 | 7 << 16, &value), 0);
    assert_int_equal(value, 3 | 3 << 16);
    assert_int_equal(feature(peer, true, NVME_FEATURE_QUEUES, 0, 0xffff, &value), NVME_SC_FIELD);
    assert_int_equal(feature(peer, true, NVME_FEATURE_ASYNC_EVENT, 0, 0x100, &value), 0);
    assert_int_equal(feature(peer, false, NVME_FEATURE_ASYNC_EVENT, 0, 0, &value), 0);
    assert_int_equal(value, 0x100);
    assert_int_equal(feature(peer, true, NVME_FEATURE_KEEP_ALIVE, 0, 30000, &value), 0);
    assert_int_equal(feature(peer, false, NVME_FEATURE_KEEP_ALIVE, 0, 0, &value), 0);
    assert_int_equal(value, 30000);
    assert_int_equal(feature(peer, false, NVME_FEATURE_WRITE_CACHE, 0, 0, &value), 0);
    assert_int_equal(value, 1);
    assert_int_equal(feature(peer, false, 0x77, 0, 0, &value), NVME_SC_FIELD);
    nvme_log_encode(&log, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, data, &bytes, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(bytes, 4096);
    log.page = 0x99;
    nvme_log_encode(&log, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, data, &bytes, &cqe));
    assert_int_equal(cqe.status, NVME_SC_LOG_PAGE);
    log.page = NVME_LOG_SMART;
    log.bytes = (uint64_t)1 << 33;
    nvme_log_encode(&log, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_FIELD);
    nvme_property_encode(&property, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    assert_true((((uint64_t)cqe.dw1 << 32 | cqe.dw0) & NVME_CAP_CSS_IO) != 0);
    assert_int_equal(nvme_cap_queue_entries((uint64_t)cqe.dw1 << 32 | cqe.dw0), 128);
    property.offset = NVME_REG_VS;
    property.wide = false;
    nvme_property_encode(&property, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    assert_int_equal(cqe.dw0, NVME_VERSION_2_0);
    nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    /* Four event requests are held, the fifth is one too many. */
    nvme_admin_plain_encode(NVME_ADMIN_ASYNC_EVENT, &sqe);
    for (int i = 0; i < 4; i++)
        (void)peer_submit(peer, &sqe, 0);
    assert_true(peer_plain(peer, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_AER_LIMIT);
    nvme_admin_plain_encode(NVME_ADMIN_ABORT, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    assert_int_equal(cqe.dw0, 1);
    nvme_admin_plain_encode(0xc9, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_OPCODE);
    peer_free(&peer);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void connect_is_refused_with_the_place_of_the_mistake(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *peer = rig_peer(rig);
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    assert_true(peer_hello(peer, 0));
    nvme_admin_plain_encode(NVME_ADMIN_KEEP_ALIVE, &sqe);
    assert_true(peer_plain(peer, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SEQUENCE);
    memcpy(peer->subsys, "nqn.2026-01.io.icms:other", 26);
    assert_false(peer_connect(peer, 0, &cqe));
    assert_int_equal(cqe.status, NVME_SC_CONNECT_PARAM);
    assert_int_equal(cqe.dw0, NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_SUBNQN));
    memcpy(peer->subsys, admin->subsys, sizeof(peer->subsys));
    peer->cntlid = 77;
    assert_false(peer_connect(peer, 1, &cqe));
    assert_int_equal(cqe.dw0, NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_CNTLID));
    peer->cntlid = admin->cntlid;
    memcpy(peer->host, "nqn.2026-01.io.icms:impostor", 29);
    assert_false(peer_connect(peer, 1, &cqe));
    assert_int_equal(cqe.dw0, NVME_CONNECT_BAD_DATA(NVME_CONNECT_AT_HOSTNQN));
    memcpy(peer->host, admin->host, sizeof(peer->host));
    assert_false(peer_connect(peer, 65, &cqe));
    assert_int_equal(cqe.dw0, NVME_CONNECT_BAD_SQE(NVME_CONNECT_AT_QID));
    peer->entries = 1000;
    assert_false(peer_connect(peer, 1, &cqe));
    assert_int_equal(cqe.dw0, NVME_CONNECT_BAD_SQE(NVME_CONNECT_AT_SQSIZE));
    peer->entries = 64;
    assert_true(peer_connect(peer, 1, &cqe));
    assert_int_equal(peer_exist(peer, 1, "k", &cqe), NVME_SC_KV_NO_KEY);
    /* Once is enough, and the queue is taken. */
    assert_false(peer_connect(peer, 1, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SEQUENCE);
    peer_free(&peer);
    rig_run(rig, 100);
    peer = rig_io(rig, admin, 1, 0);
    {
        struct peer *second = rig_peer(rig);

        second->cntlid = admin->cntlid;
        assert_true(peer_hello(second, 0));
        assert_false(peer_connect(second, 1, &cqe));
        assert_int_equal(cqe.dw0, NVME_CONNECT_BAD_SQE(NVME_CONNECT_AT_QID));
        peer_free(&second);
    }
    peer_free(&peer);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_host_gets_only_so_many_connections(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io[40] = {NULL};
    struct peer *other;
    struct nvme_cqe cqe;
    int made = 0;

    for (int i = 0; i < 40; i++) {
        io[i] = rig_peer(rig);
        io[i]->cntlid = admin->cntlid;
        assert_true(peer_hello(io[i], 0));
        if (peer_connect(io[i], (uint16_t)(i + 1), &cqe))
            made++;
        else
            assert_int_equal(cqe.status, NVME_SC_CONNECT_BUSY);
    }
    assert_int_equal(made, 31);
    other = rig_peer(rig);
    memcpy(other->host, "nqn.2026-01.io.icms:friend", 27);
    assert_true(peer_admin(other, 0));
    peer_free(&other);
    for (int i = 0; i < 40; i++)
        peer_free(&io[i]);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_controller_dies_with_its_admin_queue(void **state)
{
    struct rig *rig = rig_new(3, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io[4];
    union nvme_tcp_pdu pdu;
    uint32_t bytes;

    for (int i = 0; i < 4; i++)
        io[i] = rig_io(rig, admin, (uint16_t)(i + 1), 0);
    peer_free(&admin);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(peer_recv_pdu(io[i], &pdu, NULL, 0, &bytes), PEER_CLOSED);
        peer_free(&io[i]);
    }
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_silent_controller_dies_and_a_busy_one_lives(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *silent = rig_peer(rig);
    struct peer *busy = rig_peer(rig);
    struct nvmf_target_stats stats;
    union nvme_tcp_pdu pdu;
    struct peer *io;
    struct nvme_cqe cqe;
    uint32_t bytes;

    silent->kato_ms = busy->kato_ms = 1000;
    assert_true(peer_admin(silent, 0));
    assert_true(peer_admin(busy, 0));
    io = rig_io(rig, busy, 1, 0);
    for (int i = 0; i < 40; i++) {
        /* Traffic on any queue counts. */
        assert_int_equal(peer_exist(io, 1, "k", &cqe), NVME_SC_KV_NO_KEY);
        peer_sleep(io, 100);
    }
    assert_int_equal(peer_recv_pdu(silent, &pdu, NULL, 0, &bytes), PEER_CLOSED);
    rig_stats(rig, &stats);
    assert_int_equal(stats.keepalive_timeouts, 1);
    assert_int_equal(stats.controllers, 1);
    assert_int_equal(peer_exist(io, 1, "k", &cqe), NVME_SC_KV_NO_KEY);
    peer_free(&io);
    peer_free(&busy);
    peer_free(&silent);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* The timeout may be changed at any time; from then on the new one counts. */
static void a_keep_alive_timeout_that_is_changed_counts_at_once(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *peers[3];
    struct nvmf_target_stats stats;
    uint32_t value;

    for (uint32_t i = 0; i < 3; i++) {
        peers[i] = rig_peer(rig);
        peers[i]->kato_ms = i == 0 ? 0 : i == 1 ? 100000 : 1000; /* none, longer, shorter */
        assert_true(peer_admin(peers[i], 0));
        assert_int_equal(
            feature(peers[i], true, NVME_FEATURE_KEEP_ALIVE, 0, i == 2 ? 0 : 1000, &value), 0);
    }
    rig_run(rig, 1000);
    rig_stats(rig, &stats);
    assert_int_equal(stats.keepalive_timeouts, 0);
    rig_run(rig, 1000);
    rig_stats(rig, &stats);
    assert_int_equal(stats.keepalive_timeouts, 2);
    rig_run(rig, 3000);
    rig_stats(rig, &stats);
    assert_int_equal(stats.controllers, 1);
    for (int i = 0; i < 3; i++)
        peer_free(&peers[i]);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* Not even the loop that watches over keep-alive wakes for controllers that are idle. */
static void idle_controllers_cost_nothing(void **state)
{
    enum { PEERS = 12 };
    struct rig *rig = rig_new(2, NULL);
    struct loop_stats before, after;
    struct peer *peers[PEERS];

    for (int i = 0; i < PEERS; i++) {
        peers[i] = rig_peer(rig);
        peers[i]->kato_ms = 60000;
        assert_true(peer_admin(peers[i], 0));
    }
    rig_run(rig, 30000);
    loop_stats(rig->loops[0], &before);
    rig_run(rig, 20000);
    loop_stats(rig->loops[0], &after);
    assert_int_equal(after.iterations, before.iterations);
    for (int i = 0; i < PEERS; i++)
        peer_free(&peers[i]);
    rig_expect_clean(rig);
    rig_free(&rig);
}

/* A large pod has thousands of connections that say nothing most of the time. */
static void a_loop_whose_connections_are_quiet_sleeps(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct loop_stats before, after;
    struct nvme_cqe cqe;
    struct peer *io[4];
    uint8_t value[20000];

    rig_fill(value, sizeof(value), 3);
    for (uint16_t i = 0; i < 4; i++) {
        io[i] = rig_io(rig, admin, (uint16_t)(i + 1), 0);
        assert_int_equal(peer_store(io[i], 1, "k", value, sizeof(value), 0, &cqe), NVME_SC_SUCCESS);
    }
    rig_run(rig, 500);
    loop_stats(rig->loops[1], &before);
    assert_true(before.iterations > 0);
    rig_run(rig, 3000);
    loop_stats(rig->loops[1], &after);
    assert_int_equal(after.iterations, before.iterations);
    for (int i = 0; i < 4; i++)
        peer_free(&io[i]);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void a_queue_may_be_disconnected_and_a_controller_shut_down(void **state)
{
    struct rig *rig = rig_new(1, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct peer *second = rig_io(rig, admin, 2, 0);
    struct nvme_property property = {
        .set = true, .offset = NVME_REG_CC, .value = NVME_CC_START | NVME_CC_SHN_NORMAL};
    union nvme_tcp_pdu pdu;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint32_t bytes;

    nvme_disconnect_encode(&sqe);
    assert_true(peer_plain(io, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(peer_recv_pdu(io, &pdu, NULL, 0, &bytes), PEER_CLOSED);
    nvme_property_encode(&property, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    property = (struct nvme_property){.offset = NVME_REG_CSTS};
    nvme_property_encode(&property, &sqe);
    assert_true(peer_plain(admin, &sqe, &cqe));
    assert_int_equal(NVME_CSTS_SHST(cqe.dw0), 2);
    assert_int_equal(peer_exist(second, 1, "k", &cqe), NVME_SC_SEQUENCE);
    peer_free(&second);
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

static void drain_answers_what_is_there_and_closes(void **state)
{
    struct rig *rig = rig_new(2, NULL);
    struct peer *admin = rig_admin(rig, 0);
    struct peer *io = rig_io(rig, admin, 1, 0);
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_EXIST, .nsid = 1, .key = peer_key("k")};
    union nvme_tcp_pdu pdu;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint32_t bytes;
    uint16_t cid;

    rig->hold = true;
    nvme_kv_cmd_encode(&cmd, &sqe);
    cid = peer_submit(io, &sqe, 0);
    rig_run(rig, 10);
    nvmf_target_drain(rig->target);
    rig_run(rig, 300);
    assert_false(nvmf_target_idle(rig->target));
    rig_let_go(rig);
    assert_true(peer_complete(io, cid, NULL, 0, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_KV_NO_KEY);
    assert_int_equal(peer_recv_pdu(admin, &pdu, NULL, 0, &bytes), PEER_CLOSED);
    assert_null(peer_new_sim(rig->sim, rig->host, &rig->addr));
    peer_free(&io);
    peer_free(&admin);
    rig_expect_clean(rig);
    rig_free(&rig);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_connects_and_sees_the_controller),
        cmocka_unit_test(a_host_sees_the_namespaces_it_may_use_and_no_others),
        cmocka_unit_test(a_subsystem_has_1024_namespaces),
        cmocka_unit_test(a_command_without_a_namespace_is_not_counted),
        cmocka_unit_test(values_of_every_size_come_back),
        cmocka_unit_test(each_kv_status_is_answered),
        cmocka_unit_test(delete_of_a_missing_key_fails_only_when_asked_to),
        cmocka_unit_test(keys_are_listed_and_asked_for_in_bulk),
        cmocka_unit_test(timed_commands_end_by_their_deadline),
        cmocka_unit_test(discovery_tells_where_the_subsystem_is),
        cmocka_unit_test(admin_commands_are_answered_as_hosts_expect),
        cmocka_unit_test(connect_is_refused_with_the_place_of_the_mistake),
        cmocka_unit_test(a_host_gets_only_so_many_connections),
        cmocka_unit_test(a_controller_dies_with_its_admin_queue),
        cmocka_unit_test(a_silent_controller_dies_and_a_busy_one_lives),
        cmocka_unit_test(a_keep_alive_timeout_that_is_changed_counts_at_once),
        cmocka_unit_test(idle_controllers_cost_nothing),
        cmocka_unit_test(a_loop_whose_connections_are_quiet_sleeps),
        cmocka_unit_test(a_queue_may_be_disconnected_and_a_controller_shut_down),
        cmocka_unit_test(drain_answers_what_is_there_and_closes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
