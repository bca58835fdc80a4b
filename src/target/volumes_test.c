/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes that change while the enclosure runs: what hosts find before and after, also after a
 * restart, on drives that were away, and with commands in flight.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/hash.h"
#include "target/target_int.h"
#include "target/target_test_rig.h"

#define VOLUMES 6

/* What is configured. */
static struct volume_spec specs[VOLUMES];

/* UUID by volume and generation, as a configuration has it. */
static void spec_make(uint32_t i, uint32_t volume, uint32_t generation)
{
    specs[i] = (struct volume_spec){.uuid = {{7, (uint8_t)volume, (uint8_t)generation}},
                                    .generation = generation,
                                    .value_bytes_max = VALUE_MAX - LIMIT_TRAILER_BYTES,
                                    .sealed = true};
    snprintf(specs[i].name, sizeof(specs[i].name), "volume%u", volume);
}

/* The same volume, encrypted: its UUID is another one then, as conf_volume_rules() makes it. */
static void spec_encrypt(uint32_t i)
{
    specs[i].encrypted = true;
    specs[i].value_bytes_max -= 1024; /* with what encryption adds to it in the same buffers */
    specs[i].uuid.bytes[8] ^= 0xff;
}

static struct rig *volumes_rig(uint32_t loops, uint32_t drives)
{
    struct rig *rig = rig_new(loops, drives);

    spec_make(0, 0, 0);
    spec_make(1, 1, 0);
    rig->opts.volumes = specs;
    rig->opts.volume_count = 2;
    rig_up(rig);
    return rig;
}

/* Waits for a change that was begun; how it ended. */
static icms_err changed(struct rig *rig, struct target_refused *out_refused)
{
    struct err_why why = {""};
    icms_err err = ICMS_OK;

    for (int i = 0; i < 1000; i++) {
        if (target_volumes_changed(rig->target, &err, out_refused, &why))
            return err;
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 1000000);
    }
    fail_msg("the change does not end");
    return err;
}

static icms_err change_as(struct rig *rig, struct target_refused *out_refused)
{
    struct err_why why = {""};
    icms_err err = target_volumes_change(rig->target, &rig->opts, out_refused, &why);

    return err == ICMS_OK ? changed(rig, out_refused) : err;
}

static void change(struct rig *rig)
{
    struct target_refused refused;

    assert_int_equal(change_as(rig, &refused), ICMS_OK);
}

static void refused_for(struct rig *rig, icms_err err, uint32_t volume, const char *key)
{
    struct target_refused refused;

    assert_int_equal(change_as(rig, &refused), err);
    assert_int_equal(refused.volume, volume);
    assert_string_equal(refused.key, key);
}

static uint32_t live(struct rig *rig)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));
    uint32_t count;

    check(stats != NULL);
    target_stats(rig->target, stats);
    count = stats->volume_count;
    free(stats);
    return count;
}

static void a_volume_comes_goes_and_is_back(void **state)
{
    struct rig *rig = volumes_rig(2, 3);
    struct nvme_cqe cqe;

    fill(rig, 1, 50);
    assert_int_equal(put(rig, 3, "key", 1), NVME_SC_NAMESPACE);
    spec_make(2, 2, 0);
    rig->opts.volume_count = 3;
    change(rig);
    assert_int_equal(hits(rig, 3, 50), 0);
    fill(rig, 3, 60);
    assert_int_equal(hits(rig, 3, 60), 60);
    assert_int_equal(live(rig), 3);
    spec_make(0, 2, 0); /* without the first */
    rig->opts.volume_count = 2;
    change(rig);
    assert_int_equal(live(rig), 2);
    assert_int_equal(get(rig, 1, key_text(0, 0), 0, &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(hits(rig, 3, 60), 60);
    spec_make(2, 0, 0);
    rig->opts.volume_count = 3;
    change(rig);
    assert_int_equal(hits(rig, 1, 50), 50);
    rig_down(rig);
    rig_up(rig); /* numbers follow the configuration again */
    assert_int_equal(hits(rig, 1, 60), 60);
    assert_int_equal(hits(rig, 3, 50), 50);
    rig_free(&rig);
}

/* Another generation is another UUID: nothing of before is found, now or after a restart. */
static void a_reset_forgets_for_good(void **state)
{
    struct rig *rig = volumes_rig(2, 3);
    struct nvme_cqe cqe;

    fill(rig, 1, 50);
    fill(rig, 2, 20);
    spec_make(0, 0, 1);
    change(rig);
    assert_int_equal(get(rig, 1, key_text(0, 0), 0, &cqe), NVME_SC_NAMESPACE);
    assert_int_equal(hits(rig, 3, 50), 0);
    assert_int_equal(hits(rig, 2, 50), 20);
    fill(rig, 3, 10);
    rig_crash(rig);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 50), 10);
    spec_make(0, 0, 0); /* not known as older since the start, and on the drives from before it */
    refused_for(rig, ICMS_CONFIG, 0, "generation");
    rig_free(&rig);
}

static void start_refused(struct rig *rig, const char *words)
{
    struct err_why why = {""};

    assert_int_equal(rig_try(rig, &why), ICMS_CONFIG);
    if (strstr(why.text, words) == NULL)
        fail_msg("%s", why.text);
}

/* A file of before, at a start: drives know better, also when the power failed right after the
 * reset, when some of them are away, and of a volume that was deleted since. */
static void an_older_generation_is_refused_at_the_start(void **state)
{
    for (uint32_t crash = 0; crash < 3; crash++) {
        struct rig *rig = volumes_rig(2, 3);

        fill(rig, 1, 20);
        spec_make(0, 0, 3);
        change(rig);
        if (crash == 0)
            rig_down(rig);
        else
            rig_crash_power(rig, crash == 2);
        spec_make(0, 0, 2);
        start_refused(rig, "volume volume0: generation 2 is older than 3");
        for (uint32_t i = 0; i < 2; i++) { /* one drive is enough */
            sim_disk_dead(rig->node, rig->paths[i], true);
            start_refused(rig, "is older than 3");
        }
        spec_make(0, 0, 3);
        rig_up(rig);
        spec_make(0, 1, 0);
        rig->opts.volume_count = 1;
        change(rig);
        rig_down(rig);
        spec_make(1, 0, 0);
        rig->opts.volume_count = 2;
        start_refused(rig, "is older than 3");
        spec_make(1, 0, 4);
        sim_disk_dead(rig->node, rig->paths[0], false);
        sim_disk_dead(rig->node, rig->paths[1], false);
        rig_up(rig);
        assert_int_equal(hits(rig, 2, 20), 0);
        rig_free(&rig);
    }
}

/* Blocks of one format are not read as those of the other one. */
static void another_format_is_refused_at_the_start(void **state)
{
    struct rig *rig = volumes_rig(1, 2);

    fill(rig, 1, 5);
    rig_down(rig);
    specs[0].sealed = false;
    start_refused(rig, "volume volume0: its blocks on these drives are sealed; raise");
    specs[0].uuid.bytes[5]++; /* another volume */
    rig_up(rig);
    rig_down(rig);
    spec_make(0, 0, 1);
    specs[0].sealed = false;
    rig_up(rig);
    rig_free(&rig);
}

/* A change that is refused raised nothing. */
static void a_generation_that_never_began_is_not_known(void **state)
{
    struct rig *rig = volumes_rig(2, 3);

    spec_make(0, 0, 9);
    specs[1].value_bytes_max = (uint64_t)VALUE_MAX * 2;
    refused_for(rig, ICMS_CONFIG, 1, "value_max");
    rig_down(rig);
    spec_make(0, 0, 0);
    spec_make(1, 1, 0);
    rig_up(rig);
    rig_free(&rig);
}

/* A drive that comes knows what the others know. */
static void a_drive_that_comes_knows_generations(void **state)
{
    struct rig *rig = volumes_rig(1, 2);
    struct target_drive_opts drives[2];
    struct err_why why = {""};
    uint32_t drive;

    spec_make(0, 0, 5);
    rig->opts.pod = "a";
    rig->opts.pod_epoch = 3;
    change(rig);
    (void)snprintf(rig->paths[2], sizeof(rig->paths[2]), "/drive/2");
    drives[0] = rig->drives[0];
    drives[1] = (struct target_drive_opts){.path = rig->paths[2], .bytes = 40 * MIB};
    rig->opts.drives = drives;
    assert_int_equal(target_drives_change(rig->target, &rig->opts, &drive, &why), ICMS_OK);
    target_drives_commit(rig->target);
    for (int i = 0; i < 1000 && !target_drives_changed(rig->target, &why); i++)
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 1000000);
    rig_down(rig);
    rig->opts.drives = &drives[1];
    rig->opts.drive_count = 1;
    assert_int_equal(target_epoch_known(&rig->opts), 3);
    spec_make(0, 0, 4);
    start_refused(rig, "is older than 5");
    rig_free(&rig);
}

/* A drive that was out while a volume was reset comes back with the blocks of before. */
static void a_drive_that_was_away(void **state)
{
    struct rig *rig = volumes_rig(1, 2);

    fill(rig, 1, 60);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[1], true);
    rig_up(rig);
    spec_make(0, 0, 1);
    change(rig);
    assert_int_equal(hits(rig, 3, 60), 0);
    rig_down(rig);
    sim_disk_dead(rig->node, rig->paths[1], false);
    rig_up(rig);
    assert_int_equal(hits(rig, 1, 60), 0);
    rig_free(&rig);
}

/* Loads that wait for their device, each on a queue pair of its own, end as they would have. */
static void loads_in_flight_end(void **state)
{
    enum { LOADS = 5 };
    struct rig *rig = volumes_rig(3, 3);
    struct nvme_kv_cmd cmd = {.opcode = NVME_KV_RETRIEVE, .nsid = 1, .bytes = VALUE_MAX};
    struct peer *peers[LOADS];
    struct target_refused refused;
    struct err_why why = {""};
    struct loop_addr addr;
    uint16_t cids[LOADS];
    uint32_t served = 0;
    struct nvme_sqe_wf sqe;
    struct nvme_cqe cqe;

    fill(rig, 1, LOADS);
    nvmf_target_addr(target_nvmf(rig->target), 0, &addr);
    for (uint32_t i = 0; i < LOADS; i++) {
        peers[i] = peer_new_sim(rig->sim, rig->host, &addr);
        assert_true(peers[i] != NULL && peer_io(peers[i], rig->admin, (uint16_t)(2 + i), 0));
    }
    for (uint32_t d = 0; d < 3; d++)
        sim_file_slow(rig->node, rig->paths[d], 200);
    for (uint32_t i = 0; i < LOADS; i++) {
        cmd.key = peer_key(key_text(i, 0));
        nvme_kv_cmd_encode(&cmd, &sqe);
        cids[i] = peer_submit(peers[i], &sqe, VALUE_MAX);
    }
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 2000000); /* they are at the drives */
    spec_make(0, 0, 1);
    assert_int_equal(target_volumes_change(rig->target, &rig->opts, &refused, &why), ICMS_OK);
    assert_int_equal(changed(rig, &refused), ICMS_OK);
    assert_int_equal(get(rig, 1, key_text(0, 0), 0, &cqe), NVME_SC_NAMESPACE);
    for (uint32_t i = 0; i < LOADS; i++) {
        uint32_t bytes = VALUE_MAX;

        assert_true(peer_complete(peers[i], cids[i], NULL, 0, rig->back, &bytes, &cqe));
        assert_int_equal(cqe.status, NVME_SC_SUCCESS);
        value_make(rig, i);
        assert_int_equal(bytes, value_bytes(i));
        assert_memory_equal(rig->back, rig->value, bytes);
        served++;
        peer_free(&peers[i]);
    }
    assert_int_equal(served, LOADS);
    for (uint32_t d = 0; d < 3; d++)
        sim_file_slow(rig->node, rig->paths[d], 1);
    assert_int_equal(hits(rig, 3, LOADS), 0);
    rig_free(&rig);
}

static uint64_t held(struct rig *rig, uint32_t i)
{
    struct target_stats *stats = calloc(1, sizeof(*stats));
    uint64_t bytes;

    check(stats != NULL);
    target_stats(rig->target, stats);
    bytes = stats->volumes[i].store.bytes;
    assert_int_equal(stats->volumes[i].store.quota_bytes, specs[i].quota_bytes);
    free(stats);
    return bytes;
}

/* Up, down and away, with blocks on all drives. */
static void a_quota_changes(void **state)
{
    static const uint64_t quotas[] = {8 * MIB, 2 * MIB, 0, 3 * MIB, 1 * MIB, 6 * MIB};
    struct rig *rig = volumes_rig(2, 3);

    fill(rig, 1, 500);
    for (uint32_t i = 0; i < sizeof(quotas) / sizeof(quotas[0]); i++) {
        specs[0].quota_bytes = quotas[i];
        change(rig);
        (void)sim_run(rig->sim, sim_now_ns(rig->sim) + 3 * (uint64_t)1000000000);
        assert_true(quotas[i] == 0 || held(rig, 0) <= quotas[i]);
        fill(rig, 1, 500);
        assert_true(quotas[i] == 0 || held(rig, 0) <= quotas[i]);
        assert_true(held(rig, 0) > MIB / 2);
    }
    rig_down(rig);
    rig_up(rig);
    assert_true(hits(rig, 1, 500) > 100);
    rig_free(&rig);
}

/* Nothing is changed when anything cannot be. */
static void what_cannot_be_is_refused_as_a_whole(void **state)
{
    struct rig *rig = volumes_rig(2, 2);
    struct target_refused refused;
    struct err_why why = {""};

    fill(rig, 1, 30);
    spec_make(0, 2, 0); /* the first would go, another one would come, ... */
    specs[1].sealed = false;
    refused_for(rig, ICMS_CONFIG, 1, "sealed");
    spec_make(1, 1, 0);
    specs[1].encrypted = true;
    refused_for(rig, ICMS_CONFIG, 1, "encrypted");
    spec_make(1, 1, 0);
    specs[1].value_bytes_max = VALUE_MAX;
    refused_for(rig, ICMS_CONFIG, 1, "value_max");
    spec_make(1, 1, 0);
    specs[1].quota_bytes = 81 * MIB;
    refused_for(rig, ICMS_CONFIG, 1, "quota");
    assert_int_equal(live(rig), 2);
    assert_int_equal(hits(rig, 1, 30), 30);
    spec_make(0, 0, 0);
    spec_make(1, 1, 3);
    change(rig);
    spec_make(1, 1, 2);
    refused_for(rig, ICMS_CONFIG, 1, "generation");
    rig->opts.volume_count = 1;
    change(rig);
    rig->opts.volume_count = 2; /* also after it was gone for a while */
    spec_make(1, 1, 0);
    refused_for(rig, ICMS_CONFIG, 1, "generation");
    spec_make(1, 1, 4);
    assert_int_equal(target_volumes_change(rig->target, &rig->opts, &refused, &why), ICMS_OK);
    assert_int_equal(target_volumes_change(rig->target, &rig->opts, &refused, &why), ICMS_BUSY);
    assert_int_equal(changed(rig, &refused), ICMS_OK);
    assert_int_equal(hits(rig, 1, 30), 30);
    rig_free(&rig);
}

/* Another UUID behind a name that is live is no volume that comes: the one of before would go, with
 * all of its blocks. */
static void another_volume_of_its_name_is_refused(void **state)
{
    struct rig *rig = volumes_rig(2, 2);

    fill(rig, 1, 30);
    spec_encrypt(0);
    refused_for(rig, ICMS_CONFIG, 0, "encrypted");
    spec_make(0, 0, 0);
    specs[0].uuid.bytes[9]++;
    refused_for(rig, ICMS_CONFIG, 0, "uuid");
    specs[0].sealed = false;
    refused_for(rig, ICMS_CONFIG, 0, "sealed");
    spec_make(0, 0, 0);
    change(rig);
    assert_int_equal(live(rig), 2);
    assert_int_equal(hits(rig, 1, 30), 30);
    /* of a map it was asked before, but blocks are not read the other way */
    rig->opts.pod = "a";
    rig->opts.pod_epoch = 3;
    specs[0].sealed = false;
    refused_for(rig, ICMS_CONFIG, 0, "sealed");
    spec_make(0, 0, 0);
    spec_encrypt(0);
    change(rig);
    assert_int_equal(live(rig), 2);
    assert_int_equal(put(rig, 1, "key", 1), NVME_SC_NAMESPACE);
    assert_int_equal(hits(rig, 3, 30), 0);
    rig->opts.pod = NULL;
    spec_make(0, 0, 0); /* back: the one of now would go */
    refused_for(rig, ICMS_CONFIG, 0, "encrypted");
    spec_make(0, 0, 1); /* and so does another generation */
    change(rig);
    assert_int_equal(live(rig), 2);
    /* one that is not there any more has no place */
    spec_make(0, 1, 0);
    rig->opts.volume_count = 1;
    change(rig);
    spec_make(1, 0, 1);
    spec_encrypt(1);
    rig->opts.volume_count = 2;
    change(rig);
    assert_int_equal(live(rig), 2);
    rig_free(&rig);
}

/* One drive has blocks of it that it did not read at the start: on none does it begin. */
static void old_blocks_refuse_it_on_all_drives(void **state)
{
    struct rig *rig = volumes_rig(2, 3);

    fill(rig, 2, 40);
    fill(rig, 1, 30);
    rig_down(rig);
    rig->opts.volume_count = 1;
    rig_up(rig);
    rig->opts.volume_count = 3;
    spec_make(2, 2, 0); /* it could begin */
    refused_for(rig, ICMS_BUSY, 1, "");
    assert_int_equal(live(rig), 1);
    assert_int_equal(put(rig, 3, "key", 1), NVME_SC_NAMESPACE);
    assert_int_equal(hits(rig, 1, 30), 30);
    spec_make(1, 2, 0);
    rig->opts.volume_count = 2;
    change(rig);
    assert_int_equal(live(rig), 2);
    rig_down(rig);
    spec_make(1, 1, 0);
    rig_up(rig);
    assert_int_equal(hits(rig, 2, 40), 40);
    rig_free(&rig);
}

/* What a refused change would have begun is no volume of before: a typo in its generation or its
 * flags binds nobody. */
static void a_refused_change_is_forgotten(void **state)
{
    struct rig *rig = volumes_rig(2, 2);

    fill(rig, 2, 40);
    fill(rig, 1, 30);
    rig_down(rig);
    rig->opts.volume_count = 1;
    rig_up(rig);
    rig->opts.volume_count = 2;
    spec_make(0, 0, 100);
    spec_make(1, 1, 0); /* drives have blocks of it */
    refused_for(rig, ICMS_BUSY, 1, "");
    assert_int_equal(hits(rig, 1, 30), 30);
    spec_make(0, 0, 1);
    specs[0].sealed = false;
    refused_for(rig, ICMS_BUSY, 1, "");
    spec_make(0, 0, 1);
    rig->opts.volume_count = 1;
    change(rig);
    assert_int_equal(hits(rig, 4, 30), 0);
    fill(rig, 4, 10);
    assert_int_equal(hits(rig, 4, 30), 10);
    specs[0].sealed = false; /* by now it has blocks */
    refused_for(rig, ICMS_CONFIG, 0, "sealed");
    spec_make(0, 0, 0);
    refused_for(rig, ICMS_CONFIG, 0, "generation");
    rig_free(&rig);
}

/* Nor does it bring back a volume that is gone: what is left of that is still evicted first. */
static void a_refused_change_leaves_what_is_gone_retired(void **state)
{
    struct rig *rig = volumes_rig(2, 2);

    rig_down(rig);
    spec_make(2, 2, 0);
    rig->opts.volume_count = 3;
    rig_up(rig);
    fill(rig, 3, 20);
    rig_down(rig);
    rig->opts.volume_count = 2; /* drives have blocks of the third, which a start alone reads */
    rig_up(rig);
    fill(rig, 2, 600);
    rig->opts.volume_count = 1; /* the second is gone */
    change(rig);
    rig->opts.volume_count = 3; /* it begins, the third cannot */
    refused_for(rig, ICMS_BUSY, 2, "");
    assert_int_equal(live(rig), 1);
    fill(rig, 1, 7000); /* more than the drives hold beside the second */
    rig->opts.volume_count = 2;
    change(rig);
    assert_true(hits(rig, 2, 600) < 200); /* those of the segments that are open */
    rig_free(&rig);
}

/* Numbers run out; nothing else does. */
static void as_many_as_there_are_numbers(void **state)
{
    struct rig *rig = volumes_rig(1, 2);

    fill(rig, 2, 10);
    for (uint32_t i = 1; i <= LIMIT_VOLUMES - 2; i++) {
        spec_make(0, 0, i);
        specs[0].uuid.bytes[2] = (uint8_t)i;
        specs[0].uuid.bytes[3] = (uint8_t)(i >> 8);
        change(rig);
        if (i % 100 == 0)
            assert_int_equal(put(rig, 2 + i, "key", i), NVME_SC_SUCCESS);
    }
    specs[0].generation++;
    specs[0].uuid.bytes[4] = 1;
    refused_for(rig, ICMS_LIMIT, 0, "");
    assert_int_equal(live(rig), 2);
    assert_int_equal(hits(rig, 2, 10), 10);
    rig_free(&rig);
}

/* Tenants keep their counters, and those whose volumes are gone are not shown. */
static void tenants_follow(void **state)
{
    struct tenant_spec tenants[2] = {{.name = "gold", .weight = 3}, {.name = "iron", .weight = 1}};
    struct rig *rig = volumes_rig(2, 2);
    struct target_stats *stats = calloc(1, sizeof(*stats));

    check(stats != NULL);
    fill(rig, 1, 10);
    rig->opts.tenants = tenants;
    rig->opts.tenant_count = 2;
    strcpy(specs[0].tenant, "gold");
    change(rig);
    fill(rig, 1, 10);
    target_stats(rig->target, stats);
    assert_int_equal(stats->tenant_count, 3);
    assert_string_equal(stats->tenants[0].spec.name, "volume1");
    assert_string_equal(stats->tenants[1].spec.name, "gold");
    assert_int_equal(stats->tenants[1].spec.weight, 3);
    assert_int_equal(stats->tenants[1].nvmf.ops[NVMF_TARGET_STORES], 10);
    tenants[0].weight = 7;
    rig->opts.tenant_count = 1;
    change(rig);
    target_stats(rig->target, stats);
    assert_int_equal(stats->tenant_count, 2);
    assert_int_equal(stats->tenants[1].spec.weight, 7);
    assert_int_equal(stats->tenants[1].nvmf.ops[NVMF_TARGET_STORES], 10);
    free(stats);
    rig_free(&rig);
}

/* Volumes that name no tenant: as many as there are numbers may come and go. */
static void each_volume_may_be_a_tenant(void **state)
{
    struct rig *rig = volumes_rig(1, 1);

    rig->opts.volume_count = 3;
    for (uint32_t i = 2; i < 200; i++) {
        spec_make(2, i, 0);
        change(rig);
        assert_int_equal(put(rig, 1 + i, "key", i), NVME_SC_SUCCESS);
    }
    rig_free(&rig);
}

/* Tenants run out: it is said of which volume, and a tenant of before will do. */
static void as_many_tenants_as_there_are_places(void **state)
{
    struct tenant_spec *tenants = calloc(LIMIT_TENANTS, sizeof(*tenants));
    struct rig *rig = volumes_rig(1, 1);

    check(tenants != NULL);
    for (uint32_t i = 0; i < LIMIT_TENANTS; i++) {
        snprintf(tenants[i].name, sizeof(tenants[i].name), "tenant%u", i);
        tenants[i].weight = 1;
    }
    rig->opts.tenants = tenants;
    rig->opts.tenant_count = LIMIT_TENANTS;
    change(rig);
    spec_make(2, 2, 0);
    rig->opts.volume_count = 3;
    refused_for(rig, ICMS_LIMIT, 2, "tenant");
    strcpy(specs[2].tenant, "tenant7");
    change(rig);
    assert_int_equal(live(rig), 3);
    strcpy(tenants[3].name, "another");
    refused_for(rig, ICMS_LIMIT, UINT32_MAX, "tenants");
    rig->opts.tenants = NULL;
    rig->opts.tenant_count = 0;
    rig_free(&rig);
    free(tenants);
}

/* Changes, stores, loads, crashes: what is found is what was stored in this life of the volume. */
static void anything_in_any_order(void **state)
{
    enum { KEYS = 40 };
    static uint64_t stored[VOLUMES][KEYS]; /* seed of what may be found; 0: nothing */
    uint32_t generation[VOLUMES] = {0}, found = 0;
    struct rig *rig = volumes_rig(3, 3);
    struct target_stats *stats = calloc(1, sizeof(*stats));
    bool listed[VOLUMES] = {true, true};

    check(stats != NULL);
    memset(stored, 0, sizeof(stored));
    for (uint32_t turn = 1; turn < 400; turn++) {
        uint64_t draw = hash64_mix(turn);
        uint32_t v = (uint32_t)(draw >> 8) % VOLUMES, count = 0;
        struct target_refused refused;
        icms_err err;

        if (draw % 8 == 0) {
            listed[v] = !listed[v];
        } else if (draw % 8 == 1 && listed[v]) {
            generation[v]++;
            memset(stored[v], 0, sizeof(stored[v]));
        }
        for (uint32_t i = 0; i < VOLUMES; i++)
            if (listed[i]) {
                spec_make(count, i, generation[i]);
                specs[count++].quota_bytes = draw >> (16 + i) & 1 ? 4 * MIB : 0;
            }
        rig->opts.volume_count = count;
        if (turn % 50 == 0) {
            rig_crash(rig);
            rig_up(rig);
        } else if (draw % 8 < 3) {
            err = change_as(rig, &refused);
            if (err == ICMS_BUSY) { /* it has old blocks: with a restart */
                rig_down(rig);
                rig_up(rig);
            } else {
                assert_int_equal(err, ICMS_OK);
            }
        }
        target_stats(rig->target, stats);
        assert_int_equal(stats->volume_count, count);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t volume = stats->volumes[i].uuid.bytes[1], nsid = stats->volumes[i].number + 1;
            uint32_t key = (uint32_t)(draw >> 24) % KEYS;
            struct nvme_cqe cqe;

            assert_int_equal(stats->volumes[i].generation, generation[volume]);
            assert_int_equal(put(rig, nsid, key_text(key, 0), turn), NVME_SC_SUCCESS);
            stored[volume][key] = turn;
            key = (uint32_t)(draw >> 32) % KEYS;
            if (get(rig, nsid, key_text(key, 0), stored[volume][key], &cqe) == NVME_SC_SUCCESS) {
                assert_true(stored[volume][key] > 0);
                found++;
            }
        }
    }
    assert_true(found > 100);
    free(stats);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_volume_comes_goes_and_is_back),
        cmocka_unit_test(a_reset_forgets_for_good),
        cmocka_unit_test(an_older_generation_is_refused_at_the_start),
        cmocka_unit_test(another_format_is_refused_at_the_start),
        cmocka_unit_test(a_generation_that_never_began_is_not_known),
        cmocka_unit_test(a_drive_that_comes_knows_generations),
        cmocka_unit_test(a_drive_that_was_away),
        cmocka_unit_test(loads_in_flight_end),
        cmocka_unit_test(a_quota_changes),
        cmocka_unit_test(what_cannot_be_is_refused_as_a_whole),
        cmocka_unit_test(another_volume_of_its_name_is_refused),
        cmocka_unit_test(old_blocks_refuse_it_on_all_drives),
        cmocka_unit_test(a_refused_change_is_forgotten),
        cmocka_unit_test(a_refused_change_leaves_what_is_gone_retired),
        cmocka_unit_test(as_many_as_there_are_numbers),
        cmocka_unit_test(tenants_follow),
        cmocka_unit_test(each_volume_may_be_a_tenant),
        cmocka_unit_test(as_many_tenants_as_there_are_places),
        cmocka_unit_test(anything_in_any_order),
    };

    return cmocka_run_group_tests_name("target-volumes", tests, NULL, NULL);
}
