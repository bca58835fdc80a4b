/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Goal: nothing that was acknowledged is lost when the process is killed at any moment.
 *
 *   store_kill_test [ROUNDS [SEED]]
 *
 * Method: a child opens the drive and stores as fast as it can; it says on a pipe what it begins
 * and what was acknowledged. The parent kills it with SIGKILL, at a random moment or at a fault
 * point, opens the drive itself and checks, round after round on the same drive, which is many
 * times filled:
 * - volumes 0 and 1 (own stream; shared stream and a small quota) take new keys only: blocks ever
 *   acknowledged less blocks that are there equal the evictions the drive counts, exactly; so
 *   everything that was not evicted is a hit;
 * - volume 2 changes and deletes a few keys: what is there is the last acknowledged value or one
 *   that was begun later; what was deleted stays away;
 * - all bytes are right, and the index equals a full scan.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/fault_arm.h"
#include "base/hash.h"
#include "store/store_rig.h"
#include "store/store_verify.h"

#define DRIVE_BYTES   ((uint64_t)8 << 20)
#define SLOTS         24 /* changes in flight in the child                     */
#define CHANGED_KEYS  64 /* of volume 2                                        */
#define NEW_KEYS      2  /* volumes that take new keys only                    */
#define CHANGED_SHARE 8  /* one of so many changes goes to volume 2; each waits for a flush */
#define KEYS_A_ROUND  20000
#define KILL_MS_MAX   120
#define SAMPLES       64    /* blocks read in a round, of each volume that takes new keys only */
#define VALUE_BYTES   12000 /* largest */

enum word { BEGIN, ACKED };

/* One thing the child says; small enough to be written at once. */
struct say {
    uint8_t word;
    uint8_t volume;
    uint8_t deleted;
    uint8_t spare[5];
    uint64_t key;
    uint64_t version; /* volume 2 */
};

/* ---- the child --------------------------------------------------------------------------------
 */

struct slot {
    struct store_write write;
    struct store_delete delete;
    struct say say;
    uint8_t *memory;
    struct child *child;
};

struct child {
    struct rig *rig;
    int fd;
    uint64_t seed;
    uint64_t next[NEW_KEYS]; /* keys */
    uint64_t version;
    bool changes; /* some keys are replaced and deleted */
    bool busy[CHANGED_KEYS];
    struct slot slots[SLOTS];
    struct loop_msg msg;
};

static uint32_t value_bytes(uint64_t version)
{
    return 1 + (uint32_t)(hash64_mix(version ^ 0x5555) % VALUE_BYTES);
}

static uint64_t new_key_version(uint32_t volume, uint64_t key)
{
    return key * NEW_KEYS + volume + 1;
}

static void child_say(const struct slot *slot, enum word word)
{
    struct say say = slot->say;

    say.word = (uint8_t)word;
    if (write(slot->child->fd, &say, sizeof(say)) != (ssize_t)sizeof(say))
        _exit(3);
}

static void slot_go(struct slot *slot);

static void slot_done(struct slot *slot, icms_err err)
{
    if (err != ICMS_OK && !(slot->say.deleted && err == ICMS_MISS))
        _exit(4);
    child_say(slot, ACKED);
    if (slot->say.volume == NEW_KEYS)
        slot->child->busy[slot->say.key] = false;
    slot_go(slot);
}

static void slot_write_done(struct store_write *write)
{
    slot_done(container_of(write, struct slot, write), write->err);
}

static void slot_delete_done(struct store_delete *delete)
{
    slot_done(container_of(delete, struct slot, delete), delete->err);
}

static void slot_go(struct slot *slot)
{
    struct child *child = slot->child;
    uint64_t dice = hash64_mix(child->seed++);
    uint32_t row =
        child->changes && dice % CHANGED_SHARE == 0 ? NEW_KEYS : (uint32_t)(dice >> 32) % NEW_KEYS;
    uint64_t key = hash64_mix(dice) % CHANGED_KEYS;
    icms_err err;

    if (row == NEW_KEYS && child->busy[key])
        row = 0;
    slot->say = (struct say){.volume = (uint8_t)row};
    if (row < NEW_KEYS) {
        slot->say.key = child->next[row]++;
        slot->say.version = new_key_version(row, slot->say.key);
    } else {
        slot->say.key = key;
        slot->say.deleted = dice >> 40 & 1;
        slot->say.version = ++child->version;
        child->busy[key] = true;
    }
    child_say(slot, BEGIN);
    slot->write = (struct store_write){.volume = row,
                                       .key = rig_key(slot->say.key),
                                       .memory = slot->memory,
                                       .value_bytes = value_bytes(slot->say.version),
                                       .done = slot_write_done};
    slot->delete = (struct store_delete){
        .volume = slot->write.volume, .key = slot->write.key, .done = slot_delete_done};
    rig_fill(slot->memory + STORE_HEADER_BYTES, slot->write.value_bytes, slot->say.version);
    err = slot->say.deleted ? store_delete(child->rig->store, &slot->delete)
                            : store_write(child->rig->store, &slot->write);
    if (err != ICMS_OK)
        _exit(5);
}

static void child_begin(struct loop_msg *msg)
{
    struct child *child = container_of(msg, struct child, msg);

    for (uint32_t i = 0; i < SLOTS; i++)
        slot_go(&child->slots[i]);
}

static _Noreturn void child_main(struct child *child, const char *fault)
{
    struct err_why why;

    for (uint32_t i = 0; i < SLOTS; i++) {
        child->slots[i].child = child;
        child->slots[i].memory = aligned_alloc(LIMIT_DISK_ALIGN, store_record_bytes(VALUE_BYTES));
    }
    if (fault_arm(fault, &why) != ICMS_OK)
        _exit(6);
    rig_up(child->rig);
    loop_send(child->rig->loop, &child->msg, child_begin);
    for (;;)
        (void)pause();
}

/* ---- the model --------------------------------------------------------------------------------
 */

struct changed {
    uint64_t versions[4096]; /* 0: deleted; [0] is the last acknowledged one, the rest were begun
                                later                                                    */
    uint32_t count;
};

struct model {
    struct rig rig;
    bool changes; /* some keys are replaced and deleted */
    uint64_t dice;
    uint8_t *there[NEW_KEYS]; /* 1: acknowledged or found                  */
    uint64_t room;            /* in each                                   */
    uint64_t next[NEW_KEYS];  /* keys below were used                      */
    uint64_t blocks[NEW_KEYS];
    uint64_t version;
    struct changed changed[CHANGED_KEYS];
    uint64_t present[NEW_KEYS][SAMPLES]; /* keys to read, picked from those that are there  */
    uint32_t samples[NEW_KEYS];
    uint64_t acked, hits, evicted;
    uint32_t round;
};

static void model_begin(struct model *model, const struct say *say)
{
    struct changed *changed;

    if (say->volume < NEW_KEYS) {
        check(say->key < model->room);
        if (say->key >= model->next[say->volume])
            model->next[say->volume] = say->key + 1;
        return;
    }
    changed = &model->changed[say->key];
    check(changed->count < sizeof(changed->versions) / sizeof(changed->versions[0]));
    changed->versions[changed->count++] = say->deleted ? 0 : say->version;
    if (say->version > model->version)
        model->version = say->version;
}

static void model_acked(struct model *model, const struct say *say)
{
    model->acked++;
    if (say->volume < NEW_KEYS) {
        check(model->there[say->volume][say->key] == 0);
        model->there[say->volume][say->key] = 1;
        model->blocks[say->volume]++;
        return;
    }
    /* one change a key is in flight: it is the last that was begun */
    check(model->changed[say->key].count == 2);
    model->changed[say->key].versions[0] = say->deleted ? 0 : say->version;
    model->changed[say->key].count = 1;
}

/* Hears the child until it is silent for ever or the time is over; false: the pipe has ended. */
static bool model_hear(struct model *model, int fd, int timeout_ms)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    struct say say[64];
    ssize_t n;

    if (poll(&wait, 1, timeout_ms) <= 0)
        return true;
    n = read(fd, say, sizeof(say));
    if (n <= 0)
        return false;
    check(n % (ssize_t)sizeof(say[0]) == 0);
    for (ssize_t i = 0; i < n / (ssize_t)sizeof(say[0]); i++) {
        if (say[i].word == BEGIN)
            model_begin(model, &say[i]);
        else
            model_acked(model, &say[i]);
    }
    return true;
}

/* ---- rounds -----------------------------------------------------------------------------------
 */

static uint64_t now_ms(void)
{
    return loop_env_now_ns(loop_env_uring()) / 1000000;
}

/* Half of the rounds die at a fault point, if they get there in time. */
static void round_fault(struct model *model, char *text, size_t bytes)
{
    static const char *const points[] = {"store.write",  "store.seal",       "store.reclaim",
                                         "store.header", "store.kill_flush", "store.kill"};
    static const uint32_t visits[] = {2000, 200, 200, 400, 50, 100};
    enum { POINTS = sizeof(points) / sizeof(points[0]) };
    uint64_t dice = hash64_mix(model->dice++);
    uint32_t point = (uint32_t)(dice % (2 * POINTS));

    text[0] = '\0';
    if (point < POINTS)
        (void)snprintf(text, bytes, "%s:%u:kill", points[point],
                       1 + (uint32_t)(hash64_mix(dice) % visits[point]));
}

static void round_child(struct model *model)
{
    uint64_t dice = hash64_mix(model->dice++);
    uint64_t end_ms;
    char fault[64];
    int fds[2], status;
    pid_t pid;

    round_fault(model, fault, sizeof(fault));
    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        static struct child child;

        (void)close(fds[0]);
        child.rig = &model->rig;
        child.fd = fds[1];
        child.seed = dice;
        child.version = model->version;
        child.changes = model->changes;
        for (uint32_t i = 0; i < NEW_KEYS; i++)
            child.next[i] = model->next[i];
        child_main(&child, fault);
    }
    (void)close(fds[1]);
    end_ms = now_ms() + 20 + hash64_mix(dice) % KILL_MS_MAX;
    while (now_ms() < end_ms && model_hear(model, fds[0], 1))
        ;
    (void)kill(pid, SIGKILL);
    while (model_hear(model, fds[0], -1))
        ;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        fail_msg("round %u: the child ended by itself: status %#x", model->round, status);
    (void)close(fds[0]);
}

/* The kernel may still be finishing the child's writes, and holds its lock until then. */
static void round_open(struct model *model)
{
    struct rig *rig = &model->rig;
    struct loop_opts opts;
    struct err_why why = {""};
    icms_err err = ICMS_LOCKED;

    loop_opts_init(&opts);
    assert_int_equal(loop_new(rig->env, &opts, &why, &rig->loop), ICMS_OK);
    for (int i = 0; i < 2000 && err == ICMS_LOCKED; i++) {
        const struct timespec nap = {.tv_nsec = 1000000};

        err = rig_open(rig, &why);
        if (err == ICMS_LOCKED)
            (void)nanosleep(&nap, NULL);
    }
    if (err != ICMS_OK)
        fail_msg("round %u: %s", model->round, why.text);
}

/* New keys: which are there. Returns how many that were stored are gone. */
static uint64_t round_count(struct model *model, uint32_t row)
{
    struct rig *rig = &model->rig;
    struct store_volume_stats stats;
    uint64_t there = 0;

    for (uint64_t k = 0; k < model->next[row]; k++) {
        struct key key = rig_key(k);

        if (!store_exists(rig->store, row, &key, NULL))
            continue;
        model->present[row][there < SAMPLES ? there : hash64_mix(model->dice++) % SAMPLES] = k;
        there++;
        if (model->there[row][k] == 0) { /* written, and killed before it could say so */
            model->there[row][k] = 1;
            model->blocks[row]++;
        }
    }
    store_volume_stats(rig->store, row, &stats);
    if (stats.blocks != there)
        fail_msg("round %u volume %u: %llu there, %llu blocks counted", model->round, row,
                 (unsigned long long)there, (unsigned long long)stats.blocks);
    model->samples[row] = there < SAMPLES ? (uint32_t)there : SAMPLES;
    return model->blocks[row] - there;
}

/* What is gone was evicted, and counted; of changed keys nobody knows how often. */
static void round_evictions(struct model *model, uint64_t gone)
{
    struct store_stats stats;

    store_stats(model->rig.store, &stats);
    if (model->changes ? stats.evictions < gone : stats.evictions != gone)
        fail_msg("round %u: %llu blocks are gone and %llu evictions counted", model->round,
                 (unsigned long long)gone, (unsigned long long)stats.evictions);
    model->evicted = stats.evictions;
}

static void round_read_new(struct model *model, uint32_t row, uint64_t key)
{
    uint64_t version = new_key_version(row, key);
    enum icms_miss reason;
    icms_err err = rig_get(&model->rig, row, key, value_bytes(version), version, &reason);

    if (err != ICMS_OK && !(err == ICMS_MISS && reason == ICMS_MISS_EVICTED))
        fail_msg("round %u volume %u key %llu: %s %s", model->round, row, (unsigned long long)key,
                 icms_err_name(err), icms_miss_name(reason));
    model->hits += err == ICMS_OK;
}

/* A changed key: one of the values it may have. A miss is an eviction or a deletion. */
static void round_read_changed(struct model *model, uint64_t key)
{
    struct changed *changed = &model->changed[key];
    icms_err err = ICMS_CORRUPT;
    uint64_t found = 0;

    for (uint32_t i = changed->count; i-- > 0 && err == ICMS_CORRUPT;) {
        found = changed->versions[i];
        err = rig_get(&model->rig, NEW_KEYS, key, value_bytes(found), found, NULL);
        if (err == ICMS_OK && found == 0)
            err = ICMS_CORRUPT;
    }
    if (err != ICMS_OK && err != ICMS_MISS)
        fail_msg("round %u changed key %llu: %s", model->round, (unsigned long long)key,
                 icms_err_name(err));
    changed->versions[0] = err == ICMS_OK ? found : changed->versions[0];
    changed->count = 1;
}

static void round_check(struct model *model)
{
    struct rig *rig = &model->rig;
    struct err_why why = {""};
    uint64_t gone = 0;

    round_open(model);
    if (store_verify(rig->store, &why) != 0)
        fail_msg("round %u: %s", model->round, why.text);
    for (uint32_t row = 0; row < NEW_KEYS; row++)
        gone += round_count(model, row);
    round_evictions(model, gone);
    assert_int_equal(loop_start(rig->loop, &why), ICMS_OK);
    for (uint32_t row = 0; row < NEW_KEYS; row++) {
        for (uint32_t k = 0; k < model->samples[row]; k++)
            round_read_new(model, row, model->present[row][k]);
    }
    for (uint64_t k = 0; k < CHANGED_KEYS; k++)
        round_read_changed(model, k);
    rig_down(rig);
}

static uint32_t rounds = 10;
static uint64_t seed = 1;

static void survive(struct rig *rig, bool changes)
{
    struct model *model = calloc(1, sizeof(*model));

    assert_non_null(model);
    model->changes = changes;
    model->rig = *rig;
    rig = &model->rig;
    rig->opts.path = rig->path;
    rig->opts.bytes = DRIVE_BYTES;
    rig->opts.value_bytes_max = VALUE_BYTES;
    rig->volume_count = NEW_KEYS + 1;
    for (uint32_t i = 0; i <= NEW_KEYS; i++)
        rig->uuid[i] = rig_uuid(i);
    rig->quota_bytes[1] = 3 * RIG_SEGMENT_BYTES;
    model->dice = seed * 1000003;
    model->room = (uint64_t)KEYS_A_ROUND * (rounds + 1);
    for (uint32_t i = 0; i < NEW_KEYS; i++) {
        model->there[i] = calloc(model->room, 1);
        assert_non_null(model->there[i]);
    }
    for (uint32_t i = 0; i < CHANGED_KEYS; i++)
        model->changed[i].count = 1;
    rig_format(rig);
    for (model->round = 0; model->round < rounds; model->round++) {
        round_child(model);
        round_check(model);
    }
    print_message("%u rounds, %llu changes acknowledged, %llu hits checked, %llu evictions\n",
                  rounds, (unsigned long long)model->acked, (unsigned long long)model->hits,
                  (unsigned long long)model->evicted);
    assert_true(model->hits > 0);
    for (uint32_t i = 0; i < NEW_KEYS; i++)
        free(model->there[i]);
    free(model);
}

static void what_was_acknowledged_survives_kill_9(void **state)
{
    survive(*state, false);
}

static void keys_that_change_survive_kill_9(void **state)
{
    survive(*state, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_acknowledged_survives_kill_9, rig_uring_setup,
                                        rig_uring_teardown),
        cmocka_unit_test_setup_teardown(keys_that_change_survive_kill_9, rig_uring_setup,
                                        rig_uring_teardown),
    };

    if (argc > 1)
        rounds = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests_name("store-kill", tests, NULL, NULL);
}
