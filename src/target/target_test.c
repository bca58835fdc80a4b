/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An enclosure on simulated loops and drives, used over NVMe/TCP: values over restarts and crashes,
 * drives that fail, quotas, List over drives, readiness.
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
#include "nvmf/target/test_peer.h"
#include "target/target_int.h"

#define VALUE_MAX ((uint32_t)256 << 10)
#define MIB       ((uint64_t)1 << 20)

struct rig {
    struct sim *sim;
    struct sim_node *node, *host;
    struct target_drive_opts drives[4];
    char paths[4][32];
    struct volume_spec volumes[2];
    struct target_opts opts;
    struct target *target;
    struct peer *admin, *io;
    uint8_t value[VALUE_MAX], back[VALUE_MAX];
};

static icms_err rig_try(struct rig *rig, struct err_why *why)
{
    struct loop_addr addr;
    icms_err err = target_new(&rig->opts, why, &rig->target);

    if (err != ICMS_OK)
        return err;
    assert_int_equal(target_start(rig->target, why), ICMS_OK);
    target_addr(rig->target, &addr);
    rig->admin = peer_new_sim(rig->sim, rig->host, &addr);
    assert_non_null(rig->admin);
    assert_true(peer_admin(rig->admin, 0));
    rig->io = peer_new_sim(rig->sim, rig->host, &addr);
    assert_non_null(rig->io);
    assert_true(peer_io(rig->io, rig->admin, 1, 0));
    return ICMS_OK;
}

static void rig_up(struct rig *rig)
{
    struct err_why why = {""};

    if (rig_try(rig, &why) != ICMS_OK)
        fail_msg("%s", why.text);
}

static void rig_down(struct rig *rig)
{
    peer_free(&rig->io);
    peer_free(&rig->admin);
    target_stop(rig->target);
    target_free(&rig->target);
}

static void rig_crash(struct rig *rig)
{
    sim_node_crash(rig->node, false, false);
    target_free(&rig->target);
    peer_free(&rig->io);
    peer_free(&rig->admin);
}

static struct rig *rig_new(uint32_t loops, uint32_t drives)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct sim_opts sim_opts;

    check(rig != NULL);
    sim_opts_init(&sim_opts, 11);
    rig->sim = sim_new(&sim_opts);
    rig->node = sim_node_new(rig->sim, "10.1.0.1");
    rig->host = sim_node_new(rig->sim, "10.1.0.2");
    target_opts_init(&rig->opts);
    rig->opts.env = sim_node_env(rig->node);
    rig->opts.nqn = "nqn.2026-01.io.icms:test";
    rig->opts.uuid = (struct uuid){{1, 2, 3}};
    check(loop_addr_parse("10.1.0.1:4420", NULL, &rig->opts.listen) == ICMS_OK);
    rig->opts.loops = loops;
    rig->opts.segment_bytes = MIB;
    rig->opts.memory_bytes = loops * 4 * MIB;
    rig->opts.connections_max = 16;
    rig->opts.drives = rig->drives;
    rig->opts.drive_count = drives;
    rig->opts.volumes = rig->volumes;
    rig->opts.volume_count = 2;
    for (uint32_t i = 0; i < drives; i++) {
        snprintf(rig->paths[i], sizeof(rig->paths[i]), "/drive/%u", i);
        rig->drives[i] = (struct target_drive_opts){.path = rig->paths[i], .bytes = 40 * MIB};
    }
    for (uint32_t i = 0; i < 2; i++) {
        rig->volumes[i].uuid = (struct uuid){{7, (uint8_t)i}};
        snprintf(rig->volumes[i].name, sizeof(rig->volumes[i].name), "volume%u", i);
        rig->volumes[i].value_bytes_max = VALUE_MAX;
    }
    return rig;
}

static void rig_free(struct rig **rig_ref)
{
    struct rig *rig = *rig_ref;

    if (rig->target != NULL)
        rig_down(rig);
    sim_free(&rig->sim);
    free(rig);
    *rig_ref = NULL;
}

/* ---- values --------------------------------------------------------------------------------- */

static uint32_t value_bytes(uint64_t seed)
{
    return 1 + (uint32_t)(hash64_mix(seed) % 20000);
}

static void value_make(struct rig *rig, uint64_t seed)
{
    uint64_t random = seed;

    for (uint32_t i = 0; i < value_bytes(seed); i++) {
        if (i % 8 == 0)
            random = hash64_mix(random);
        rig->value[i] = (uint8_t)(random >> i % 8 * 8);
    }
}

/* Sixteen characters, so that the first eight are the run. */
static const char *key_text(uint32_t run, uint32_t block)
{
    static char text[32];

    snprintf(text, sizeof(text), "run%05u-blk%04u", run % 100000, block % 10000);
    return text;
}

static uint16_t put(struct rig *rig, uint32_t nsid, const char *key, uint64_t seed)
{
    struct nvme_cqe cqe;

    value_make(rig, seed);
    return peer_store(rig->io, nsid, key, rig->value, value_bytes(seed), 0, &cqe);
}

/* The status; with success the bytes have to be right. */
static uint16_t get(struct rig *rig, uint32_t nsid, const char *key, uint64_t seed,
                    struct nvme_cqe *out_cqe)
{
    uint32_t bytes = VALUE_MAX;
    uint16_t status = peer_retrieve(rig->io, nsid, key, rig->back, &bytes, out_cqe);

    if (status != NVME_SC_SUCCESS)
        return status;
    value_make(rig, seed);
    assert_int_equal(bytes, value_bytes(seed));
    assert_memory_equal(rig->back, rig->value, bytes);
    return status;
}

/* How many of a number of keys are there. */
static uint32_t hits(struct rig *rig, uint32_t nsid, uint32_t count)
{
    struct nvme_cqe cqe;
    uint32_t n = 0;

    for (uint32_t i = 0; i < count; i++)
        n += get(rig, nsid, key_text(i, 0), i, &cqe) == NVME_SC_SUCCESS;
    return n;
}

static void fill(struct rig *rig, uint32_t nsid, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(put(rig, nsid, key_text(i, 0), i), NVME_SC_SUCCESS);
}

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
        assert_true(stats->drives[i].read_ns->total > 5 && stats->drives[i].read_ns->sum > 0);
        reads += stats->drives[i].read_ns->total;
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

/* A call from inside, with its answer. */
struct inside {
    struct target_call call;
    struct target *target;
    struct loop_msg msg; /* carries it to loop 0 */
    bool over;
};

static void inside_done(struct target_call *call)
{
    struct inside *inside = container_of(call, struct inside, call);

    assert_true(loop_is_mine(target_loop(inside->target, 0)));
    assert_false(inside->over);
    inside->over = true;
}

static void inside_begin(struct loop_msg *msg)
{
    struct inside *inside = container_of(msg, struct inside, msg);

    target_call(inside->target, target_loop(inside->target, 0), &inside->call);
}

static icms_err inside_run(struct rig *rig, struct inside *inside)
{
    inside->target = rig->target;
    inside->over = false;
    inside->call.done = inside_done;
    loop_send(target_loop(rig->target, 0), &inside->msg, inside_begin);
    for (int i = 0; i < 1000 && !inside->over; i++)
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 1000000);
    assert_true(inside->over);
    return inside->call.req.err;
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

/* Passed over from now on; it is so slow that no probe says otherwise. */
static void drive_slow(struct rig *rig, uint32_t drive)
{
    sim_file_slow(rig->node, rig->paths[drive], 3000);
    atomic_fetch_or(&rig->target->slow, (uint32_t)1 << drive);
}

static void drive_well(struct rig *rig, uint32_t drive)
{
    sim_file_slow(rig->node, rig->paths[drive], 1);
    for (int i = 0; i < 100 && target_drive_slow(rig->target, drive); i++)
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 100000000);
    assert_false(target_drive_slow(rig->target, drive));
}

/* Stores value n under a key for each n from first on until so many went to the drive; their
 * numbers. */
static void fill_drive(struct rig *rig, uint32_t drive, uint32_t first, uint32_t *out_n,
                       uint32_t count)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));

    check(stats != NULL);
    for (uint32_t n = first; count > 0; n++) {
        uint64_t before;

        target_stats(rig->target, stats);
        before = stats->drives[drive].store.writes;
        assert_int_equal(put(rig, 1, key_text(n, 0), n), NVME_SC_SUCCESS);
        target_stats(rig->target, stats);
        if (stats->drives[drive].store.writes > before) {
            *out_n++ = n;
            count--;
        }
    }
    free(stats);
}

/* A store that passes over a slow drive has to make it forget the older value. When that fails the
 * store is no success, because the older value is found first when the drive is well. */
static void an_older_value_on_a_slow_drive_never_hides_a_newer_one(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct nvme_cqe cqe;
    const char *key;
    uint32_t n;

    rig_up(rig);
    fill_drive(rig, 0, 0, &n, 1);
    key = key_text(n, 0);
    drive_slow(rig, 0);
    sim_disk_dead(rig->node, rig->paths[0], true);
    assert_int_not_equal(put(rig, 1, key, 1000), NVME_SC_SUCCESS);
    sim_disk_dead(rig->node, rig->paths[0], false);
    assert_int_equal(put(rig, 1, key, 2000), NVME_SC_SUCCESS);
    assert_int_equal(get(rig, 1, key, 2000, &cqe), NVME_SC_SUCCESS);
    drive_well(rig, 0);
    assert_int_equal(get(rig, 1, key, 2000, &cqe), NVME_SC_SUCCESS);
    rig_free(&rig);
}

/* A block that went to the next drive while its own one was slow is there, for a condition too,
 * though the write itself goes to its own drive again. */
static void conditions_see_a_block_on_the_next_drive(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct nvme_cqe cqe;
    uint32_t n[4];

    rig_up(rig);
    fill_drive(rig, 0, 0, n, 4);
    for (int i = 0; i < 4; i++) {
        const char *key = key_text(n[i], 0);

        assert_int_equal(peer_delete(rig->io, 1, key, &cqe), NVME_SC_SUCCESS);
        drive_slow(rig, 0);
        assert_int_equal(put(rig, 1, key, n[i]), NVME_SC_SUCCESS);
        drive_well(rig, 0);
        value_make(rig, 5000);
        assert_int_equal(peer_store(rig->io, 1, key, rig->value, value_bytes(5000),
                                    NVME_KV_STORE_IF_ABSENT, &cqe),
                         NVME_SC_KV_EXISTS);
        assert_int_equal(get(rig, 1, key, n[i], &cqe), NVME_SC_SUCCESS);
        value_make(rig, 5000);
        assert_int_equal(peer_store(rig->io, 1, key, rig->value, value_bytes(5000),
                                    NVME_KV_STORE_IF_EXISTS, &cqe),
                         NVME_SC_SUCCESS);
        assert_int_equal(get(rig, 1, key, 5000, &cqe), NVME_SC_SUCCESS);
    }
    rig_free(&rig);
}

/* What waits for a slow drive to forget holds buffers like any other store there, and is bounded
 * like it. */
static void stores_that_wait_for_a_slow_drive_to_forget_are_bounded(void **state)
{
    enum { CALLS = 6, SHARE = 4 };
    struct rig *rig = rig_new(1, 3);
    struct inside *inside = calloc(CALLS, sizeof(*inside));
    uint64_t room = 4 * MIB / TARGET_SHARE / (SHARE - 1); /* so many are more than a share */
    uint32_t n[CALLS], shed = 0;

    check(inside != NULL);
    rig_up(rig);
    fill_drive(rig, 0, 0, n, CALLS);
    drive_slow(rig, 0);
    for (uint32_t i = 0; i < CALLS; i++) {
        inside[i].target = rig->target;
        inside[i].call.done = inside_done;
        inside[i].call.req = (struct nvmf_target_req){
            .op = NVMF_TARGET_STORE,
            .key = peer_key(key_text(n[i], 0)),
            .memory = aligned_alloc(LIMIT_DISK_ALIGN, bytes_align(room, LIMIT_DISK_ALIGN)),
            .memory_bytes = room,
            .value_bytes = 1000,
        };
        memset(inside[i].call.req.memory, 1, room);
        if (i == SHARE) /* those before are at the drive for a while */
            (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 150000000);
        loop_send(target_loop(rig->target, 0), &inside[i].msg, inside_begin);
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 5000000);
        assert_int_equal(atomic_load(&rig->target->flying_bytes[1]),
                         (i < SHARE ? i + 1 : SHARE) * room);
    }
    for (uint32_t i = 0; i < CALLS; i++)
        shed += inside[i].over && inside[i].call.req.err == ICMS_BUSY &&
                inside[i].call.req.reason == ICMS_MISS_SHED;
    assert_int_equal(shed, CALLS - SHARE);
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 30 * (uint64_t)1000000000);
    for (uint32_t i = 0; i < CALLS; i++) {
        assert_true(inside[i].over);
        assert_int_equal(inside[i].call.req.err, i < SHARE ? ICMS_OK : ICMS_BUSY);
        free(inside[i].call.req.memory);
    }
    assert_int_equal(atomic_load(&rig->target->flying_bytes[1]), 0);
    free(inside);
    rig_free(&rig);
}

static void conditions_delete_and_exist_see_all_drives(void **state)
{
    struct rig *rig = rig_new(3, 3);
    struct key keys[64];
    uint8_t data[NVME_KV_EXIST_MANY_BYTES];
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;
    uint32_t bytes;

    rig_up(rig);
    fill(rig, 1, 32);
    for (uint32_t i = 0; i < 64; i++)
        keys[i] = peer_key(key_text(i, 0));
    bytes = nvme_kv_exist_many_encode(1, keys, 64, &sqe, data);
    assert_true(peer_command(rig->io, &sqe, data, bytes, NULL, NULL, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    assert_int_equal(cqe.dw0, UINT32_MAX);
    assert_int_equal(cqe.dw1, 0);
    for (uint32_t i = 0; i < 40; i++) {
        value_make(rig, i);
        assert_int_equal(
            peer_store(rig->io, 1, key_text(i, 0), rig->value, 10, NVME_KV_STORE_IF_ABSENT, &cqe),
            i < 32 ? NVME_SC_KV_EXISTS : NVME_SC_SUCCESS);
        assert_int_equal(peer_store(rig->io, 1, key_text(100 + i, 0), rig->value, 10,
                                    NVME_KV_STORE_IF_EXISTS, &cqe),
                         NVME_SC_KV_NO_KEY);
    }
    assert_int_equal(hits(rig, 1, 32), 32);
    for (uint32_t i = 0; i < 40; i++) {
        assert_int_equal(peer_exist(rig->io, 1, key_text(i, 0), &cqe), NVME_SC_SUCCESS);
        assert_int_equal(peer_delete(rig->io, 1, key_text(i, 0), &cqe), NVME_SC_SUCCESS);
        assert_int_equal(peer_exist(rig->io, 1, key_text(i, 0), &cqe), NVME_SC_KV_NO_KEY);
        assert_int_equal(cqe.dw1, ICMS_MISS_ABSENT);
    }
    nvme_flush_encode(1, &sqe);
    assert_true(peer_plain(rig->io, &sqe, &cqe));
    assert_int_equal(cqe.status, NVME_SC_SUCCESS);
    rig_crash(rig);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 40), 0);
    rig_free(&rig);
}

static void a_drive_that_fails_is_out_and_the_rest_goes_on(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    struct err_why why = {""};
    struct nvme_cqe cqe;
    uint32_t lost = 0;
    uint32_t failed = 0;

    rig_up(rig);
    fill(rig, 1, 90);
    sim_disk_dead(rig->node, rig->paths[1], true);
    for (uint32_t i = 0; i < 90; i++) {
        if (get(rig, 1, key_text(i, 0), i, &cqe) == NVME_SC_SUCCESS)
            continue;
        assert_int_equal(cqe.status, NVME_SC_KV_NO_KEY);
        assert_int_equal(cqe.dw1, ICMS_MISS_DRIVE_DOWN);
        lost++;
    }
    assert_in_range(lost, 15, 45); /* its share, once */
    /* Stores fail until the drive is out of service, then its runs go to the next. */
    for (uint32_t i = 0; i < 90; i++)
        failed += put(rig, 1, key_text(i, 0), i + 500) != NVME_SC_SUCCESS;
    assert_true(failed <= 10);
    target_stats(rig->target, stats);
    assert_true(stats->drives[1].out);
    assert_true(target_ready(rig->target, &why));
    assert_string_equal(why.text, "1 of 3 drives are out of service");
    for (uint32_t i = 0; i < 90; i++)
        (void)put(rig, 1, key_text(i, 0), i);
    assert_int_equal(hits(rig, 1, 90), 90);
    /* All drives out: misses and errors, no more. */
    sim_disk_dead(rig->node, rig->paths[0], true);
    sim_disk_dead(rig->node, rig->paths[2], true);
    for (uint32_t i = 0; i < 90; i++) {
        (void)get(rig, 1, key_text(i, 0), i, &cqe);
        (void)put(rig, 1, key_text(i, 0), i);
    }
    assert_int_equal(hits(rig, 1, 90), 0);
    assert_int_not_equal(put(rig, 1, key_text(0, 0), 0), NVME_SC_SUCCESS);
    assert_false(target_ready(rig->target, &why));
    assert_string_equal(why.text, "no drive is in service");
    free(stats);
    rig_free(&rig);
}

static void a_drive_that_is_missing_at_start_is_filled_around(void **state)
{
    struct rig *rig = rig_new(2, 3);
    struct nvme_cqe cqe;
    struct err_why why = {""};

    rig_up(rig);
    fill(rig, 1, 40);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[2], true);
    rig_up(rig);
    assert_non_null(target_warning(rig->target, 0));
    assert_true(target_ready(rig->target, &why));
    /* What it held is computed again and stored elsewhere. */
    for (uint32_t i = 0; i < 40; i++) {
        uint16_t status = get(rig, 1, key_text(i, 0), i, &cqe);

        if (status == NVME_SC_SUCCESS)
            continue;
        assert_int_equal(cqe.dw1, ICMS_MISS_DRIVE_DOWN);
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
    }
    assert_int_equal(hits(rig, 1, 40), 40);
    for (uint32_t i = 40; i < 80; i++)
        assert_int_equal(put(rig, 1, key_text(i, 0), i), NVME_SC_SUCCESS);
    rig_down(rig);
    /* It comes back: what was stored further down the order is still found, a new value replaces
     * what lies there, and a delete reaches both. */
    sim_disk_dead(rig->node, rig->paths[2], false);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 80), 80);
    for (uint32_t i = 0; i < 80; i++)
        assert_int_equal(put(rig, 1, key_text(i, 0), i + 700), NVME_SC_SUCCESS);
    for (uint32_t i = 0; i < 80; i++)
        assert_int_equal(get(rig, 1, key_text(i, 0), i + 700, &cqe), NVME_SC_SUCCESS);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[2], true);
    rig_up(rig);
    for (uint32_t i = 0; i < 80; i++) /* never the old value */
        (void)get(rig, 1, key_text(i, 0), i + 700, &cqe);
    rig_free(&rig);
}

static void a_foreign_drive_is_refused_and_left_as_it_is(void **state)
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
    assert_int_equal(rig_try(rig, &why), ICMS_FOREIGN);
    assert_non_null(strstr(why.text,
                           "drive1: not formatted: /drive/1 holds data of another program; "
                           "to erase it, start with `--format drive1`"));
    medium = sim_file_medium(rig->node, "/drive/1", &bytes);
    assert_memory_equal(medium, page, sizeof(page));
    rig->drives[1].format = true;
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
    rig->opts.memory_bytes = 100000;
    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "at least"));
    rig->opts.memory_bytes = 8 * MIB;
    rig->drives[0].bytes = rig->drives[1].bytes = 0;
    assert_int_not_equal(rig_try(rig, &why), ICMS_OK); /* no such files */
    rig->drives[0].bytes = 40 * MIB;
    rig_up(rig); /* one of them is enough */
    assert_non_null(target_warning(rig->target, 0));
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
        480 * 8 * MIB; /* begins with 8 MiB, half of it for anything */
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
    target_addr(rig->target, &addr);
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
    assert_true(target_idle(rig->target));
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
        cmocka_unit_test(the_blocks_of_a_run_lie_on_one_drive),
        cmocka_unit_test(calls_from_inside_go_the_same_way),
        cmocka_unit_test(an_older_value_on_a_slow_drive_never_hides_a_newer_one),
        cmocka_unit_test(conditions_see_a_block_on_the_next_drive),
        cmocka_unit_test(stores_that_wait_for_a_slow_drive_to_forget_are_bounded),
        cmocka_unit_test(conditions_delete_and_exist_see_all_drives),
        cmocka_unit_test(a_drive_that_fails_is_out_and_the_rest_goes_on),
        cmocka_unit_test(a_drive_that_is_missing_at_start_is_filled_around),
        cmocka_unit_test(a_foreign_drive_is_refused_and_left_as_it_is),
        cmocka_unit_test(configuration_mistakes_are_told),
        cmocka_unit_test(a_full_volume_evicts_its_own_oldest),
        cmocka_unit_test(a_short_write_budget_sheds_stores),
        cmocka_unit_test(list_gives_each_key_of_all_drives_once_in_one_order),
        cmocka_unit_test(a_list_takes_a_slice_a_turn_and_others_go_on),
        cmocka_unit_test(lists_take_turns),
        cmocka_unit_test(a_list_ends_when_its_host_is_gone),
        cmocka_unit_test(readiness_says_why_not),
        cmocka_unit_test(hits_equal_the_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
