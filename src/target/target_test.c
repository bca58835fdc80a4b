/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An enclosure on simulated loops and drives, used over NVMe/TCP: values over restarts and crashes,
 * quotas, List over drives, readiness. Drives that fail or are slow: drives_test.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "target/target_test_rig.h"

/* ---- tests ---------------------------------------------------------------------------------- */

static void values_survive_a_restart_and_a_crash(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct nvme_cqe cqe;
    uint64_t reads = 0;

    rig_up(rig);
    fill(rig, 1, 60);
    assert_int_equal(put(rig, 2, key_text(0, 0), 1000), NVME_SC_SUCCESS);
    assert_int_equal(hits(rig, 1, 60), 60);
    rig_down(rig);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 60), 60);
    rig_crash(rig);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 60), 60);
    assert_int_equal(get(rig, 2, key_text(0, 0), 1000, &cqe), NVME_SC_SUCCESS);
    target_stats(rig->target, stats);
    for (int i = 0; i < 3; i++) {
        assert_false(stats->drives[i].out);
        assert_true(stats->drives[i].store.blocks > 5); /* all take part */
        assert_true(stats->drives[i].store.recovered_blocks > 5);
        assert_true(stats->drives[i].read_ns.total > 5 && stats->drives[i].read_ns.sum > 0);
        reads += stats->drives[i].read_ns.total;
    }
    assert_int_equal(reads, 61);
    assert_int_equal(stats->volumes[0].hits, 60);
    assert_int_equal(stats->volumes[1].hits, 1);
    assert_int_equal(stats->volumes[0].store.blocks, 60);
    assert_int_equal(stats->volumes[1].store.blocks, 1);
    assert_int_equal(stats->nvmf.ops[NVMF_TARGET_RETRIEVE][ICMS_OK], 61);
    free(stats);
    rig_free(&rig);
}

static uint64_t last_load_ns(struct rig *rig, uint32_t volume, uint64_t *out_up_ns)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));
    uint64_t ns;

    check(stats != NULL);
    target_stats(rig->target, stats);
    *out_up_ns = stats->up_ns;
    ns = volume == UINT32_MAX ? stats->loaded_age_ns : stats->volumes[volume].loaded_age_ns;
    free(stats);
    return ns;
}

/* Loads of hosts that got all of the value, and nothing else. */
static void the_last_load_of_a_whole_value_is_told(void **state)
{
    const uint64_t s = 1000000000;
    struct rig *rig = rig_new(2, 3);
    uint64_t up_ns = 0, before_ns;
    uint32_t bytes = 100;
    struct nvme_cqe cqe;

    rig_up(rig);
    fill(rig, 1, 10);
    assert_int_equal(put(rig, 2, key_text(1, 0), 1000), NVME_SC_SUCCESS);
    assert_int_equal(peer_exist(rig->io, 1, key_text(3, 0), &cqe), NVME_SC_SUCCESS);
    assert_int_not_equal(get(rig, 1, key_text(77, 0), 77, &cqe), NVME_SC_SUCCESS);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 5 * s);
    assert_true(last_load_ns(rig, UINT32_MAX, &up_ns) == UINT64_MAX);
    assert_in_range(up_ns, 5 * s, 3600 * s);
    assert_int_equal(hits(rig, 1, 10), 10);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 20 * s);
    before_ns = last_load_ns(rig, 0, &up_ns);
    assert_in_range(before_ns, 20 * s, 25 * s);
    assert_true(before_ns == last_load_ns(rig, UINT32_MAX, &up_ns));
    assert_true(last_load_ns(rig, 1, &up_ns) == UINT64_MAX);
    /* as the probe of a link, which has less memory than the value */
    assert_true(value_bytes(1000) > bytes);
    assert_int_equal(peer_retrieve(rig->io, 2, key_text(1, 0), rig->back, &bytes, &cqe),
                     NVME_SC_SUCCESS);
    assert_true(last_load_ns(rig, 1, &up_ns) == UINT64_MAX);
    assert_true(last_load_ns(rig, UINT32_MAX, &up_ns) >= before_ns);
    assert_int_equal(get(rig, 2, key_text(1, 0), 1000, &cqe), NVME_SC_SUCCESS);
    assert_in_range(last_load_ns(rig, 1, &up_ns), 0, s);
    assert_in_range(last_load_ns(rig, UINT32_MAX, &up_ns), 0, s);
    assert_true(last_load_ns(rig, 0, &up_ns) >= before_ns);
    rig_free(&rig);
}

/* All are for the first host; number 1,000 is also for the second. */
static char two_hosts[2][LIMIT_NQN_BYTES] = {"nqn.2026-01.io.icms:peer",
                                             "nqn.2026-01.io.icms:friend"};

/* Namespaces that a host sees; the last of their numbers. */
static uint32_t namespaces_seen(struct peer *peer, uint32_t *out_last)
{
    struct nvme_identify what = {.cns = NVME_CNS_NS_ACTIVE};
    uint32_t nsids[NVME_NS_LIST_MAX], count = 0, bytes = NVME_PAGE_BYTES;
    uint8_t page[NVME_PAGE_BYTES];
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    nvme_identify_encode(&what, &sqe);
    assert_true(peer_command(peer, &sqe, NULL, 0, page, &bytes, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(nvme_ns_list_decode(page, bytes, nsids, NVME_NS_LIST_MAX, &count), ICMS_OK);
    *out_last = count > 0 ? nsids[count - 1] : 0;
    return count;
}

static void an_enclosure_has_1024_volumes(void **state)
{
    struct rig *rig = rig_new(2, 2);
    struct volume_spec *volumes = calloc(LIMIT_VOLUMES + 1, sizeof(*volumes));
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct err_why why = {""};
    struct nvme_cqe cqe;
    struct peer *friend;
    struct loop_addr addr;
    uint32_t last;

    assert_int_equal(LIMIT_VOLUMES, 1024);
    for (uint32_t i = 0; i <= LIMIT_VOLUMES; i++) {
        volumes[i] = rig->volumes[0];
        volumes[i].uuid = (struct uuid){{7, (uint8_t)i, (uint8_t)(i >> 8)}};
        snprintf(volumes[i].name, sizeof(volumes[i].name), "volume%u", i);
        volumes[i].host_count = i == 999 ? 2 : 1;
        volumes[i].host_nqn = two_hosts;
    }
    rig->opts.volumes = volumes;
    rig->opts.volume_count = LIMIT_VOLUMES + 1;
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_string_equal(why.text, "1025 volumes: 1024 are possible");
    rig->opts.volume_count = LIMIT_VOLUMES;
    rig->host_nqn = two_hosts[0];
    rig_up(rig);
    assert_int_equal(namespaces_seen(rig->admin, &last), 1024);
    assert_int_equal(last, 1024);
    fill(rig, 1024, 20);
    assert_int_equal(put(rig, 1, key_text(3, 0), 3000), NVME_SC_SUCCESS);
    assert_int_equal(hits(rig, 1024, 20), 20);
    assert_int_equal(hits(rig, 960, 20), 0); /* 1024 - 64 */
    rig_crash(rig);
    rig_up(rig);
    assert_int_equal(hits(rig, 1024, 20), 20);
    assert_int_equal(get(rig, 1, key_text(3, 0), 3000, &cqe), NVME_SC_SUCCESS);
    target_stats(rig->target, stats);
    assert_int_equal(stats->volume_count, 1024);
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        assert_int_equal(stats->volumes[i].store.blocks, i == 1023 ? 20 : i == 0);
        assert_int_equal(stats->volumes[i].hits, i == 1023 ? 20 : i == 0);
    }
    nvmf_target_addr(target_nvmf(rig->target), 0, &addr);
    friend = peer_new_sim(rig->sim, rig->host, &addr);
    strcpy(friend->host, two_hosts[1]);
    assert_true(peer_admin(friend, 0));
    assert_int_equal(namespaces_seen(friend, &last), 1);
    assert_int_equal(last, 1000);
    peer_free(&friend);
    rig_free(&rig);
    free(stats);
    free(volumes);
}

static void the_blocks_of_a_run_lie_on_one_drive(void **state)
{
    struct rig *rig = rig_new(2, 4);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    int drives = 0;

    rig_up(rig);
    for (uint32_t block = 0; block < 30; block++)
        assert_int_equal(put(rig, 1, key_text(5, block), block), NVME_SC_SUCCESS);
    target_stats(rig->target, stats);
    for (int i = 0; i < 4; i++)
        drives += stats->drives[i].store.blocks > 0;
    assert_int_equal(drives, 1);
    free(stats);
    rig_free(&rig);
}

/* In a raw volume hosts call their blocks what they like: names that begin alike lie apart. */
static void the_blocks_of_a_raw_volume_lie_apart(void **state)
{
    struct rig *rig = rig_new(2, 4);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct nvme_cqe cqe;

    rig->volumes[1].sealed = false;
    rig_up(rig);
    for (uint32_t block = 0; block < 80; block++)
        assert_int_equal(put(rig, 2, key_text(5, block), block), NVME_SC_SUCCESS);
    target_stats(rig->target, stats);
    for (int i = 0; i < 4; i++)
        assert_true(stats->drives[i].store.blocks >= 8);
    for (uint32_t block = 0; block < 80; block++) {
        assert_int_equal(peer_exist(rig->io, 2, key_text(5, block), &cqe), NVME_SC_SUCCESS);
        assert_int_equal(get(rig, 2, key_text(5, block), block, &cqe), NVME_SC_SUCCESS);
    }
    free(stats);
    rig_free(&rig);
}

/* The same blocks whether a command comes over the network or from inside. */
static void calls_from_inside_go_the_same_way(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct inside *inside = calloc(1, sizeof(*inside));
    uint64_t room = store_record_bytes(VALUE_MAX);
    uint8_t *memory = aligned_alloc(LIMIT_DISK_ALIGN, room);
    struct nvme_cqe cqe;

    rig_up(rig);
    fill(rig, 1, 30);
    for (uint32_t i = 0; i < 40; i++) {
        inside->call.req = (struct nvmf_target_req){
            .op = NVMF_TARGET_RETRIEVE,
            .key = peer_key(key_text(i, 0)),
            .memory = memory,
            .memory_bytes = room,
        };
        assert_int_equal(inside_run(rig, inside), i < 30 ? ICMS_OK : ICMS_MISS);
        if (i >= 30)
            continue;
        value_make(rig, i);
        assert_int_equal(inside->call.req.done_bytes, value_bytes(i));
        assert_memory_equal(inside->call.req.value, rig->value, value_bytes(i));
    }
    for (uint32_t i = 30; i < 40; i++) {
        value_make(rig, i);
        memcpy(memory + STORE_HEADER_BYTES, rig->value, value_bytes(i));
        inside->call.req = (struct nvmf_target_req){
            .op = NVMF_TARGET_STORE,
            .key = peer_key(key_text(i, 0)),
            .memory = memory,
            .memory_bytes = room,
            .value_bytes = value_bytes(i),
        };
        assert_int_equal(inside_run(rig, inside), ICMS_OK);
        assert_int_equal(get(rig, 1, key_text(i, 0), i, &cqe), NVME_SC_SUCCESS);
    }
    free(memory);
    free(inside);
    rig_free(&rig);
}

static void a_foreign_drive_is_left_out_and_left_as_it_is(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct loop_file_opts file_opts = {
        .path = "/drive/1", .create = true, .write = true, .bytes = 40 * MIB};
    struct loop_file *file;
    struct err_why why = {""};
    uint8_t page[4096];
    uint8_t *medium;
    uint64_t bytes;

    memset(page, 0xab, sizeof(page));
    assert_int_equal(loop_file_open(rig->opts.env, &file_opts, &why, &file), ICMS_OK);
    assert_int_equal(loop_file_write_now(file, 0, page, sizeof(page)), ICMS_OK);
    assert_int_equal(loop_file_flush_now(file), ICMS_OK);
    loop_file_close(&file);
    rig_up(rig); /* with the other one */
    assert_non_null(strstr(rig_warning(1),
                           "drive 1 is out of service: drive1: not formatted: /drive/1 holds data "
                           "of another program, or its beginning is damaged; to erase it, start "
                           "with `--format drive1`"));
    assert_true(put(rig, 1, key_text(1, 0), 1) == NVME_SC_SUCCESS);
    rig_down(rig);
    rig->opts.drives = &rig->drives[1]; /* nothing else is left */
    rig->opts.drive_count = 1;
    assert_int_equal(rig_try(rig, &why), ICMS_FOREIGN);
    rig->opts.drives = rig->drives;
    rig->opts.drive_count = 2;
    medium = sim_file_medium(rig->node, "/drive/1", &bytes);
    assert_memory_equal(medium, page, sizeof(page));
    rig->drives[1].format = TARGET_FORMAT_ANY;
    rig_up(rig);
    rig_free(&rig);
}

static void configuration_mistakes_are_told(void **state)
{
    struct rig *rig = rig_new(1, 2);
    struct err_why why = {""};

    rig->drives[1].path = rig->drives[0].path;
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "twice"));
    rig->drives[1].path = rig->paths[1];
    rig->opts.nvmf.memory_bytes = 100000;
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "at least"));
    rig->opts.nvmf.memory_bytes = 8 * MIB;
    rig->drives[0].bytes = rig->drives[1].bytes = 0;
    assert_int_not_equal(rig_try(rig, &why), ICMS_OK); /* no such files */
    rig->drives[0].bytes = 40 * MIB;
    rig_up(rig); /* one of them is enough */
    assert_non_null(rig_warning(0));
    rig_down(rig);
    rig->drives[1].bytes = 40 * MIB;
    rig->volumes[1].quota_bytes = 80 * MIB + 1;
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "volume volume1: its quota of 83886081 bytes is larger than "
                                     "the drives of the enclosure together, 83886080 bytes"));
    rig->volumes[1].quota_bytes = 0;
    rig_up(rig);
    rig_free(&rig);
}

static void a_full_volume_evicts_its_own_oldest(void **state)
{
    struct rig *rig = rig_new(2, 2);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct nvme_cqe cqe;
    uint32_t n;

    rig->volumes[0].quota_bytes = 16 * MIB;
    rig_up(rig);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(put(rig, 2, key_text(i, 0), i), NVME_SC_SUCCESS);
    memset(rig->value, 5, VALUE_MAX);
    for (uint32_t i = 0; i < 300; i++)
        assert_int_equal(peer_store(rig->io, 1, key_text(1000 + i, 0), rig->value, 200000, 0, &cqe),
                         NVME_SC_SUCCESS);
    target_stats(rig->target, stats);
    n = (uint32_t)stats->volumes[0].store.blocks;
    assert_in_range(n, 30, 16 * MIB / 200000);
    assert_int_equal(stats->volumes[0].store.evictions, 300 - n);
    assert_true(stats->volumes[0].store.bytes <= 16 * MIB);
    assert_int_equal(hits(rig, 2, 20), 20);
    assert_int_equal(peer_exist(rig->io, 1, key_text(1299, 0), &cqe), NVME_SC_SUCCESS);
    assert_int_equal(peer_exist(rig->io, 1, key_text(1000, 0), &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(cqe.dw1, ICMS_MISS_EVICTED);
    free(stats);
    rig_free(&rig);
}

/* A store that the write budget does not allow is shed: no error of a drive, and it may come again.
 */
static void a_short_write_budget_sheds_stores(void **state)
{
    struct rig *rig = rig_new(1, 1);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    const struct store_stats *store = &stats->drives[0].store;
    uint64_t stored = 0, shed = 0;
    struct nvme_cqe cqe;
    uint32_t last = 0;

    (void)state;
    rig->drives[0].budget.bytes_day =
        96 * 40 * MIB; /* begins with 40 MiB, a tenth of it for anything */
    rig_up(rig);
    for (uint32_t i = 0; i < 40; i++) {
        uint16_t status = peer_store(rig->io, 1, key_text(i, 0), rig->value, 200000, 0, &cqe);

        if (status == NVME_SC_SUCCESS) {
            stored++;
            continue;
        }
        assert_int_equal(status, NVME_SC_TRANSIENT);
        assert_int_equal(cqe.dw1, ICMS_MISS_SHED);
        shed++;
        last = i;
    }
    assert_in_range(stored, 15, 22);
    assert_int_equal(peer_exist(rig->io, 1, key_text(last, 0), &cqe), NVME_SC_KV_NO_KEY);
    assert_int_equal(peer_store(rig->io, 1, key_text(last, 0), rig->value, 200000, 0, &cqe),
                     NVME_SC_SUCCESS);
    target_stats(rig->target, stats);
    assert_int_equal(store->refused, shed);
    assert_int_equal(store->writes, stored + 1);
    assert_int_equal(store->io_errors, 0);
    assert_false(stats->drives[0].out || stats->drives[0].slow);
    assert_int_equal(stats->quota_errors, 0);
    free(stats);
    rig_free(&rig);
}

static int key_order(const void *a, const void *b)
{
    return memcmp(a, b, LIMIT_KEY_BYTES);
}

/* Walks List the way a host does, in buffers of so many bytes; returns how many keys. */
static uint32_t walk(struct rig *rig, uint32_t bytes, uint8_t (*out)[LIMIT_KEY_BYTES],
                     uint32_t room)
{
    uint8_t *data = malloc(bytes);
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_LIST, .nsid = 1, .bytes = bytes};
    uint32_t count = 0;

    check(data != NULL);
    for (;;) {
        struct nvme_kv_list_reader reader;
        struct nvme_sqe_wf sqe;
        struct nvme_cqe cqe;
        uint32_t got = bytes;
        uint32_t fresh = 0;
        struct key key;

        nvme_kv_cmd_encode(&cmd, &sqe);
        assert_true(peer_command(rig->io, &sqe, NULL, 0, data, &got, &cqe));
        assert_int_equal(cqe.status, NVME_SC_SUCCESS);
        assert_int_equal(nvme_kv_list_read_begin(&reader, data, got), ICMS_OK);
        while (nvme_kv_list_read_key(&reader, &key)) {
            if (cmd.key.length > 0 && key_equal(&key, &cmd.key))
                continue; /* where the last one ended */
            assert_true(count < room);
            memcpy(out[count++], key.bytes, LIMIT_KEY_BYTES);
            fresh++;
        }
        if (fresh == 0)
            break;
        cmd.key = (struct key){.length = LIMIT_KEY_BYTES};
        memcpy(cmd.key.bytes, out[count - 1], LIMIT_KEY_BYTES);
    }
    free(data);
    return count;
}

static void list_gives_each_key_of_all_drives_once_in_one_order(void **state)
{
    enum { KEYS = 5000 };
    struct rig *rig = rig_new(2, 4);
    uint8_t(*expected)[LIMIT_KEY_BYTES] = calloc(KEYS, LIMIT_KEY_BYTES);
    uint8_t(*listed)[LIMIT_KEY_BYTES] = calloc(KEYS, LIMIT_KEY_BYTES);
    uint8_t(*again)[LIMIT_KEY_BYTES] = calloc(KEYS, LIMIT_KEY_BYTES);
    struct nvme_cqe cqe;

    for (int i = 0; i < 4; i++)
        rig->drives[i].bytes = 120 * MIB;
    rig_up(rig);
    for (uint32_t i = 0; i < KEYS; i++) {
        const char *text = key_text((uint32_t)(hash64_mix(i) % 100000), i);

        memcpy(expected[i], text, LIMIT_KEY_BYTES);
        assert_int_equal(peer_store(rig->io, 1, text, "v", 1, 0, &cqe), NVME_SC_SUCCESS);
    }
    qsort(expected, KEYS, LIMIT_KEY_BYTES, key_order);
    /* More than a pass holds in one answer, and in small pieces. */
    assert_int_equal(walk(rig, 200000, listed, KEYS), KEYS);
    assert_int_equal(walk(rig, 4000, again, KEYS), KEYS);
    assert_memory_equal(listed, again, KEYS * LIMIT_KEY_BYTES);
    qsort(listed, KEYS, LIMIT_KEY_BYTES, key_order);
    assert_memory_equal(listed, expected, KEYS * LIMIT_KEY_BYTES);
    free(expected);
    free(listed);
    free(again);
    rig_free(&rig);
}

/* Places of indexes that Lists looked at; commands of a kind that were answered. */
static uint64_t list_steps(struct rig *rig, enum nvmf_target_op op, uint64_t *out_answered)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));
    uint64_t steps = 0;

    check(stats != NULL);
    target_stats(rig->target, stats);
    for (uint32_t i = 0; i < stats->drive_count; i++)
        steps += stats->drives[i].store.list_steps;
    *out_answered = stats->nvmf.ops[op][ICMS_OK];
    free(stats);
    return steps;
}

static void submit(struct peer *io, uint8_t opcode, const char *key)
{
    struct nvme_kv_cmd cmd = {.opcode = opcode, .nsid = 1, .key = peer_key(key), .bytes = 100000};
    struct nvme_sqe_wf sqe;

    nvme_kv_cmd_encode(&cmd, &sqe);
    (void)peer_submit(io, &sqe, opcode == NVME_KV_LIST ? cmd.bytes : 0);
}

/* Few keys in an index of 2,816 chains: a List takes six slices, which are two passes. */
#define LARGE_INDEX_STEPS 2816

/* Two queues ask for a List each, and both commands are there at once: the enclosure stands still
 * until resume. */
static struct rig *rig_with_two_lists(struct peer *lister[2])
{
    struct rig *rig = rig_new(1, 1);
    struct loop_addr addr;

    rig->drives[0].bytes = 256 * MIB;
    rig_up(rig);
    fill(rig, 1, 50);
    nvmf_target_addr(target_nvmf(rig->target), 0, &addr);
    for (uint16_t i = 0; i < 2; i++) {
        lister[i] = peer_new_sim(rig->sim, rig->host, &addr);
        assert_non_null(lister[i]);
        assert_true(peer_io(lister[i], rig->admin, (uint16_t)(2 + i), 0));
    }
    sim_node_pause(rig->node, true);
    for (int i = 0; i < 2; i++)
        submit(lister[i], NVME_KV_LIST, "");
    return rig;
}

static void resume(struct rig *rig)
{
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 10000000);
    sim_node_pause(rig->node, false);
}

static void rig_with_two_lists_free(struct rig **rig, struct peer *lister[2])
{
    for (int i = 0; i < 2; i++)
        peer_free(&lister[i]);
    rig_free(rig);
}

static void a_list_takes_a_slice_a_turn_and_others_go_on(void **state)
{
    struct peer *lister[2];
    struct rig *rig = rig_with_two_lists(lister);
    uint64_t answered = 0, steps = 0, before;

    submit(rig->io, NVME_KV_EXIST, key_text(0, 0));
    resume(rig);
    while (steps < LARGE_INDEX_STEPS) {
        before = steps;
        assert_true(sim_step(rig->sim));
        steps = list_steps(rig, NVMF_TARGET_EXIST, &answered);
        assert_in_range(steps - before, 0, TARGET_LIST_STEPS + 20);
        assert_true(steps < (uint64_t)4 * TARGET_LIST_STEPS || answered == 1);
    }
    rig_with_two_lists_free(&rig, lister);
}

static void lists_take_turns(void **state)
{
    struct peer *lister[2];
    struct rig *rig = rig_with_two_lists(lister);
    uint64_t answered = 0;

    resume(rig);
    do
        assert_true(sim_step(rig->sim));
    while (list_steps(rig, NVMF_TARGET_LIST, &answered) < (uint64_t)LARGE_INDEX_STEPS * 3 / 2);
    assert_int_equal(answered, 0); /* both have come equally far */
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 10000000);
    (void)list_steps(rig, NVMF_TARGET_LIST, &answered);
    assert_int_equal(answered, 2);
    rig_with_two_lists_free(&rig, lister);
}

static void a_list_ends_when_its_host_is_gone(void **state)
{
    struct peer *lister[2];
    struct rig *rig = rig_with_two_lists(lister);
    uint64_t answered;

    for (int i = 0; i < 2; i++)
        peer_free(&lister[i]);
    resume(rig);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 1000000000);
    assert_in_range(list_steps(rig, NVMF_TARGET_LIST, &answered), 1, LARGE_INDEX_STEPS);
    rig_with_two_lists_free(&rig, lister);
}

static void readiness_says_why_not(void **state)
{
    struct rig *rig = rig_new(1, 1);
    struct err_why why = {""};

    rig->volumes[0].quota_bytes = 8 * MIB;
    rig->opts.ready_quota_percent_max = 10;
    rig_up(rig);
    assert_true(target_ready(rig->target, &why));
    fill(rig, 1, 100);
    assert_false(target_ready(rig->target, &why));
    assert_non_null(strstr(why.text, "volume0 uses"));
    target_drain(rig->target);
    assert_false(target_ready(rig->target, &why));
    assert_string_equal(why.text, "draining");
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 1000000000);
    assert_true(nvmf_target_idle(target_nvmf(rig->target)));
    rig_free(&rig);
}

/* Writes use up the free segments of a drive that is slow to make others. For TARGET_LOW_NS that is
 * nothing, then the enclosure is not ready, and it is again once there is a free one. */
static void few_free_segments_for_long_are_not_ready(void **state)
{
    enum { CALLS = 80 };
    struct rig *rig = rig_new(1, 1);
    struct inside *inside = calloc(CALLS, sizeof(*inside));
    const uint64_t step_ns = (uint64_t)100 * 1000 * 1000;
    struct store_stats stats;
    struct err_why why = {""};
    bool ready;

    check(inside != NULL);
    rig->drives[0].bytes = 16 * MIB;
    rig->opts.nvmf.memory_bytes = 64 * MIB;
    rig_up(rig);
    for (uint32_t i = 0; i < 2000; i++) /* more than the drive holds */
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
    assert_true(target_ready(rig->target, &why));
    sim_file_slow(rig->node, rig->paths[0], 30000);
    for (uint32_t i = 0; i < CALLS; i++)
        inside_send(rig, &inside[i], NVMF_TARGET_STORE, key_text(i, 1), store_record_bytes(100000),
                    100000);
    do {
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + step_ns);
        store_stats(rig->target->drives[0].store, &stats);
        ready = target_ready(rig->target, &why);
        assert_int_equal(ready, stats.free_low_ns == 0 || loop_env_now_ns(rig->opts.env) <
                                                              stats.free_low_ns + TARGET_LOW_NS);
    } while (ready && sim_now_ns(rig->sim) < 600 * (uint64_t)1000000000);
    assert_string_equal(why.text, "free segments are under the low-water mark");
    sim_file_slow(rig->node, rig->paths[0], 1);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 60 * (uint64_t)1000000000);
    assert_true(target_ready(rig->target, &why));
    for (uint32_t i = 0; i < CALLS; i++) {
        assert_true(inside[i].over);
        free(inside[i].call.req.memory);
    }
    free(inside);
    rig_free(&rig);
}

/* ---- against a model ------------------------------------------------------------------------ */

#define MODEL_KEYS 200

/* Random commands, crashes and restarts; hits equal the model's exactly. */
static void model_run(uint32_t loops, uint32_t drives, uint64_t seed)
{
    struct rig *rig = rig_new(loops, drives);
    uint64_t model[MODEL_KEYS] = {0}; /* seed of the value + 1; 0: not there */
    uint64_t random = seed;
    struct nvme_cqe cqe;

    rig_up(rig);
    for (uint32_t step = 0; step < 1500; step++) {
        uint32_t i = (uint32_t)((random = hash64_mix(random)) % MODEL_KEYS);
        const char *key = key_text(i / 4, i);
        uint64_t fresh = random >> 20;

        switch (random >> 12 & 15) {
        case 0:
            (void)peer_delete(rig->io, 1, key, &cqe);
            model[i] = 0;
            break;
        case 1:
            assert_int_equal(peer_exist(rig->io, 1, key, &cqe),
                             model[i] ? NVME_SC_SUCCESS : NVME_SC_KV_NO_KEY);
            break;
        case 2:
            if (step % 40 == 0) {
                rig_crash(rig);
                rig_up(rig);
            }
            break;
        case 3:
        case 4:
        case 5:
        case 6:
            assert_int_equal(put(rig, 1, key, fresh), NVME_SC_SUCCESS);
            model[i] = fresh + 1;
            break;
        default:
            assert_int_equal(get(rig, 1, key, model[i] - 1, &cqe),
                             model[i] ? NVME_SC_SUCCESS : NVME_SC_KV_NO_KEY);
        }
    }
    for (uint32_t i = 0; i < MODEL_KEYS; i++)
        assert_int_equal(get(rig, 1, key_text(i / 4, i), model[i] - 1, &cqe),
                         model[i] ? NVME_SC_SUCCESS : NVME_SC_KV_NO_KEY);
    rig_free(&rig);
}

static void hits_equal_the_model(void **state)
{
    model_run(1, 1, 1);
    model_run(2, 3, 2);
    model_run(4, 2, 3);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_survive_a_restart_and_a_crash),
        cmocka_unit_test(the_last_load_of_a_whole_value_is_told),
        cmocka_unit_test(an_enclosure_has_1024_volumes),
        cmocka_unit_test(the_blocks_of_a_run_lie_on_one_drive),
        cmocka_unit_test(the_blocks_of_a_raw_volume_lie_apart),
        cmocka_unit_test(calls_from_inside_go_the_same_way),
        cmocka_unit_test(a_foreign_drive_is_left_out_and_left_as_it_is),
        cmocka_unit_test(configuration_mistakes_are_told),
        cmocka_unit_test(a_full_volume_evicts_its_own_oldest),
        cmocka_unit_test(a_short_write_budget_sheds_stores),
        cmocka_unit_test(list_gives_each_key_of_all_drives_once_in_one_order),
        cmocka_unit_test(a_list_takes_a_slice_a_turn_and_others_go_on),
        cmocka_unit_test(lists_take_turns),
        cmocka_unit_test(a_list_ends_when_its_host_is_gone),
        cmocka_unit_test(readiness_says_why_not),
        cmocka_unit_test(few_free_segments_for_long_are_not_ready),
        cmocka_unit_test(hits_equal_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
