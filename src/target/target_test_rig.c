/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The enclosure of target_test_rig.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "target/target_test_rig.h"

static char warnings[300][ERR_WHY_BYTES_MAX];
static uint32_t warning_count;

static void rig_warned(const char *sentence)
{
    assert_true(warning_count < sizeof(warnings) / sizeof(warnings[0]));
    strcpy(warnings[warning_count++], sentence);
}

const char *rig_warning(uint32_t index)
{
    return index < warning_count ? warnings[index] : NULL;
}

icms_err rig_try(struct rig *rig, struct err_why *why)
{
    struct loop_addr addr;
    icms_err err;

    warning_count = 0;
    err = target_new(&rig->opts, why, &rig->target);
    if (err != ICMS_OK)
        return err;
    assert_false(target_ready(rig->target, why)); /* nobody listens yet */
    assert_int_equal(target_start(rig->target, why), ICMS_OK);
    nvmf_target_addr(target_nvmf(rig->target), 0, &addr);
    rig->admin = peer_new_sim(rig->sim, rig->host, &addr);
    assert_non_null(rig->admin);
    if (rig->host_nqn != NULL)
        strcpy(rig->admin->host, rig->host_nqn);
    assert_true(peer_admin(rig->admin, 0));
    rig->io = peer_new_sim(rig->sim, rig->host, &addr);
    assert_non_null(rig->io);
    assert_true(peer_io(rig->io, rig->admin, 1, 0));
    return ICMS_OK;
}

void rig_up(struct rig *rig)
{
    struct err_why why = {""};

    if (rig_try(rig, &why) != ICMS_OK)
        fail_msg("%s", why.text);
}

void rig_down(struct rig *rig)
{
    peer_free(&rig->io);
    peer_free(&rig->admin);
    target_stop(rig->target);
    target_free(&rig->target);
}

void rig_crash(struct rig *rig)
{
    rig_crash_power(rig, false);
}

void rig_crash_power(struct rig *rig, bool power)
{
    sim_node_crash(rig->node, power, false);
    target_free(&rig->target);
    peer_free(&rig->io);
    peer_free(&rig->admin);
}

struct rig *rig_new(uint32_t loops, uint32_t drives)
{
    return rig_new_far(loops, drives, 0);
}

struct rig *rig_new_far(uint32_t loops, uint32_t drives, uint64_t message_ns)
{
    struct rig *rig = calloc(1, sizeof(*rig));
    struct sim_opts sim_opts;

    check(rig != NULL);
    sim_opts_init(&sim_opts, 11);
    if (message_ns > 0)
        sim_opts.message_delay_max_ns = message_ns;
    rig->sim = sim_new(&sim_opts);
    rig->node = sim_node_new(rig->sim, "10.1.0.1");
    rig->host = sim_node_new(rig->sim, "10.1.0.2");
    target_opts_init(&rig->opts);
    rig->opts.warned = rig_warned;
    rig->opts.env = sim_node_env(rig->node);
    rig->opts.nvmf.nqn = "nqn.2026-01.io.icms:test";
    rig->opts.nvmf.enclosure = (struct uuid){{1, 2, 3}};
    check(loop_addr_parse("10.1.0.1:4420", NULL, &rig->opts.nvmf.portals[0].listen) == ICMS_OK);
    rig->opts.loops = loops;
    rig->opts.segment_bytes = MIB;
    rig->opts.nvmf.memory_bytes = loops * 4 * MIB;
    rig->opts.nvmf.connections_max = 16;
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
        rig->volumes[i].value_bytes_max = VALUE_MAX - LIMIT_TRAILER_BYTES;
        rig->volumes[i].sealed = true; /* their keys have runs */
    }
    return rig;
}

void rig_free(struct rig **rig_ref)
{
    struct rig *rig = *rig_ref;

    if (rig->target != NULL)
        rig_down(rig);
    sim_free(&rig->sim);
    free(rig);
    *rig_ref = NULL;
}

uint32_t value_bytes(uint64_t seed)
{
    return 1 + (uint32_t)(hash64_mix(seed) % 20000);
}

void value_make(struct rig *rig, uint64_t seed)
{
    uint64_t random = seed;

    for (uint32_t i = 0; i < value_bytes(seed); i++) {
        if (i % 8 == 0)
            random = hash64_mix(random);
        rig->value[i] = (uint8_t)(random >> i % 8 * 8);
    }
}

const char *key_text(uint32_t run, uint32_t block)
{
    static char text[32];

    snprintf(text, sizeof(text), "%c%c%c%c-block-%05u", 'a' + run / 17576 % 26,
             'a' + run / 676 % 26, 'a' + run / 26 % 26, 'a' + run % 26, block % 100000);
    return text;
}

uint16_t put(struct rig *rig, uint32_t nsid, const char *key, uint64_t seed)
{
    struct nvme_cqe cqe;

    value_make(rig, seed);
    return peer_store(rig->io, nsid, key, rig->value, value_bytes(seed), 0, &cqe);
}

uint16_t get(struct rig *rig, uint32_t nsid, const char *key, uint64_t seed,
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

uint32_t hits(struct rig *rig, uint32_t nsid, uint32_t count)
{
    struct nvme_cqe cqe;
    uint32_t n = 0;

    for (uint32_t i = 0; i < count; i++)
        n += get(rig, nsid, key_text(i, 0), i, &cqe) == NVME_SC_SUCCESS;
    return n;
}

void fill(struct rig *rig, uint32_t nsid, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(put(rig, nsid, key_text(i, 0), i), NVME_SC_SUCCESS);
}

void inside_done(struct target_call *call)
{
    struct inside *inside = container_of(call, struct inside, call);

    assert_true(loop_is_mine(target_loop(inside->target, 0)));
    assert_false(inside->over);
    inside->over = true;
}

void inside_begin(struct loop_msg *msg)
{
    struct inside *inside = container_of(msg, struct inside, msg);

    target_call(inside->target, target_loop(inside->target, 0), &inside->call);
}

static void inside_post(struct rig *rig, struct inside *inside)
{
    inside->target = rig->target;
    inside->call.done = inside_done;
    loop_send(target_loop(rig->target, 0), &inside->msg, inside_begin);
}

void inside_send(struct rig *rig, struct inside *inside, enum nvmf_target_op op, const char *key,
                 uint64_t memory_bytes, uint32_t value_bytes)
{
    void *memory = aligned_alloc(LIMIT_DISK_ALIGN, bytes_align(memory_bytes, LIMIT_DISK_ALIGN));

    check(memory != NULL);
    memset(memory, 1, memory_bytes);
    inside->call.req = (struct nvmf_target_req){.op = op,
                                                .key = peer_key(key),
                                                .memory = memory,
                                                .memory_bytes = memory_bytes,
                                                .value_bytes = value_bytes};
    inside_post(rig, inside);
}

icms_err inside_run(struct rig *rig, struct inside *inside)
{
    inside->over = false;
    inside_post(rig, inside);
    for (int i = 0; i < 1000 && !inside->over; i++)
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 1000000);
    assert_true(inside->over);
    return inside->call.req.err;
}

void drive_slow(struct rig *rig, uint32_t drive)
{
    sim_file_slow(rig->node, rig->paths[drive], 3000);
    atomic_fetch_or(&rig->target->slow, (uint32_t)1 << drive);
}

void drive_well(struct rig *rig, uint32_t drive)
{
    sim_file_slow(rig->node, rig->paths[drive], 1);
    for (int i = 0; i < 100 && target_drive_slow(rig->target, drive); i++)
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 100000000);
    assert_false(target_drive_slow(rig->target, drive));
}

void fill_drive(struct rig *rig, uint32_t drive, uint32_t first, uint32_t *out_n, uint32_t count)
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
