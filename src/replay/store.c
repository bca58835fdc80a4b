/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real drive of a replay: src/store on a file, O_DIRECT, with values of real bytes of which
 * every one that is read is compared. Called by replay_run on its thread; the store lives on a loop
 * of its own whose clock stands at the time of the request, so its policy sees the trace's time.
 *
 *   flash_new -> flash_file, flash_open -> for each request: flash_request -> (on the loop)
 *   flash_begin: what is there -> flash_pump: all blocks offered, the last one first, each by
 *   slot_offer: read and compared, or written -> flash_pause -> flash_free
 *
 * A trace's engine computes between its stores and pauses between its requests; a replay does
 * neither. So nothing is offered while reclaim has not caught up: else the store, which gives what
 * comes precedence over what it carries over, would evict what on that day it would have kept.
 *
 * The file's name is gone as soon as it is open, so nothing is left of a replay that is killed.
 */
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/hash.h"
#include "replay/replay_int.h"
#include "store/store.h"

/* Blocks that are read or written at a time. */
#define SLOTS 16

/* Entries of the index for a block that fits: the store remembers a quarter as many that left, and
 * the drives of log.c twice as many as fit. */
#define INDEX_ENTRIES 8

/* How long the replay's thread sleeps before it looks again whether reclaim has caught up. */
#define PAUSE_NS 100000

#define FILE_NAME "icms-replay.drive"

struct flash;

/* A block on its way. */
struct flash_slot {
    struct flash *flash; /* whose                        */
    uint8_t *memory;     /* room for a record            */
    uint32_t block;      /* which                        */
    bool busy;           /* its operation is not over    */
    union {
        struct store_read read;
        struct store_write write;
    } u; /* the operation */
};

struct flash {
    struct loop_env *env;              /* with the trace's clock                               */
    struct loop *loop;                 /* of the store                                         */
    struct loop_region *region;        /* memory of all slots                                  */
    struct store *store;               /* the drive                                            */
    struct loop_msg msg;               /* begins a request on the loop, or goes on with it     */
    sem_t paused;                      /* the request is over, or waits for reclaim            */
    struct replay *replay;             /* its result is filled                                 */
    const struct replay_request *work; /* the request under way                                */
    uint32_t first;                    /* number of the loop's block 0                         */
    uint32_t left;                     /* blocks of it that were not offered yet               */
    uint32_t busy;                     /* slots under way                                      */
    uint32_t reserve;                  /* segments that reclaim keeps free                     */
    uint32_t value_bytes;              /* of each value                                        */
    icms_err err;                      /* what ends the replay                                 */
    struct err_why why;                /* with err                                             */
    char path[4096];                   /* of the file, while it has a name                     */
    struct flash_slot slot[SLOTS];
};

/* ---- values ------------------------------------------------------------------------------------
 */

/* The bytes of a block's value are numbers that follow from its number; none is like another. */
static uint64_t value_word(uint32_t block, uint64_t at)
{
    return hash64_mix((uint64_t)block << 32 ^ at);
}

static void value_make(uint8_t *value, uint64_t bytes, uint32_t block)
{
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = value_word(block, at);

        memcpy(value + at, &word, bytes - at < sizeof(word) ? bytes - at : sizeof(word));
    }
}

static bool value_is(const uint8_t *value, uint64_t bytes, uint32_t block)
{
    for (uint64_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = value_word(block, at);

        if (memcmp(value + at, &word, bytes - at < sizeof(word) ? bytes - at : sizeof(word)) != 0)
            return false;
    }
    return true;
}

/* As of a chain: the run, then the block. */
static struct key block_key(const struct flash *flash, uint32_t block)
{
    uint64_t half[2] = {hash64_mix(replay_run_of(flash->replay, block)), block};
    struct key key = {.length = sizeof(half)};

    memcpy(key.bytes, half, sizeof(half));
    return key;
}

/* ---- one request, on the loop ------------------------------------------------------------------
 */

static void flash_pump(struct flash *flash);

/* The replay ends with this. */
static void flash_fail(struct flash *flash, icms_err err, const char *what, uint32_t block)
{
    if (flash->err == ICMS_OK)
        flash->err =
            err_set(&flash->why, err, "%s of block %u failed: %s", what, block, icms_err_text(err));
}

static void slot_over(struct flash_slot *slot)
{
    slot->busy = false;
    slot->flash->busy--;
    flash_pump(slot->flash);
}

static void slot_written(struct store_write *write)
{
    struct flash_slot *slot = container_of(write, struct flash_slot, u.write);

    if (write->err == ICMS_BUSY) /* the write budget */
        slot->flash->replay->result->refused++;
    else if (write->err != ICMS_OK)
        flash_fail(slot->flash, write->err, "the store", slot->block);
    slot_over(slot);
}

static void slot_write(struct flash_slot *slot)
{
    struct flash *flash = slot->flash;
    icms_err err;

    value_make(slot->memory + STORE_HEADER_BYTES, flash->value_bytes, slot->block);
    slot->u.write = (struct store_write){.volume = 0,
                                         .key = block_key(flash, slot->block),
                                         .memory = slot->memory,
                                         .value_bytes = flash->value_bytes,
                                         .done = slot_written};
    err = store_write(flash->store, &slot->u.write);
    check(err == ICMS_OK);
}

static void slot_was_read(struct store_read *read)
{
    struct flash_slot *slot = container_of(read, struct flash_slot, u.read);
    struct flash *flash = slot->flash;

    if (read->err == ICMS_MISS && read->reason == ICMS_MISS_EVICTED) {
        slot_write(slot); /* it left after it was found: offered like a new one */
        return;
    }
    if (read->err != ICMS_OK)
        flash_fail(flash, read->err == ICMS_MISS ? ICMS_CORRUPT : read->err, "the load",
                   slot->block);
    else if (read->value_bytes != flash->value_bytes ||
             !value_is(read->value, read->value_bytes, slot->block))
        flash_fail(flash, ICMS_CORRUPT, "comparing the bytes", slot->block);
    else
        flash->replay->result->compared_bytes += read->value_bytes;
    slot_over(slot);
}

/* Reads a block that is there, writes one that is not. */
static void slot_offer(struct flash_slot *slot, uint32_t block)
{
    struct flash *flash = slot->flash;
    struct key key = block_key(flash, block);
    icms_err err;

    slot->block = block;
    slot->busy = true;
    flash->busy++;
    if (!store_exists(flash->store, 0, &key, NULL)) {
        slot_write(slot);
        return;
    }
    slot->u.read = (struct store_read){.volume = 0,
                                       .key = key,
                                       .memory = slot->memory,
                                       .memory_bytes = store_record_bytes(flash->value_bytes),
                                       .done = slot_was_read};
    err = store_read(flash->store, &slot->u.read);
    check(err == ICMS_OK);
}

/* A slot for a block that is not on its way already; NULL: it has to wait. */
static struct flash_slot *slot_for(struct flash *flash, uint32_t block)
{
    struct flash_slot *found = NULL;

    for (uint32_t i = 0; i < SLOTS; i++) {
        if (!flash->slot[i].busy)
            found = &flash->slot[i];
        else if (flash->slot[i].block == block)
            return NULL;
    }
    return found;
}

/* Nothing is under way. What the store counted so far is the result. */
static void flash_pause(struct flash *flash, const struct store_stats *stats)
{
    struct replay_result *result = flash->replay->result;
    uint64_t record_bytes = store_record_bytes(flash->value_bytes);

    result->written_bytes = stats->device_write_bytes;
    result->admitted_bytes = stats->admitted_bytes / record_bytes * flash->value_bytes;
    check(sem_post(&flash->paused) == 0);
}

/* Nothing waits for reclaim. A segment that was opened ahead is a part of what it keeps free, of
 * which half may be such. */
static bool flash_rests(const struct flash *flash, const struct store_stats *stats)
{
    uint64_t ahead = stats->segments_open > 1 ? stats->segments_open - 1 : 0;

    return stats->down ||
           stats->segments_free + u64_min(ahead, flash->reserve / 2) >= flash->reserve;
}

static void flash_pump(struct flash *flash)
{
    const uint32_t *refs = flash->replay->trace->refs + flash->work->first;
    struct flash_slot *slot;
    struct store_stats stats;

    store_stats(flash->store, &stats);
    if (flash->err != ICMS_OK)
        flash->left = 0;
    while (flash->left > 0 && flash_rests(flash, &stats) &&
           (slot = slot_for(flash, flash->first + refs[flash->left - 1])) != NULL) {
        flash->left--;
        slot_offer(slot, flash->first + refs[flash->left]);
        store_stats(flash->store, &stats);
    }
    if (flash->busy == 0)
        flash_pause(flash, &stats);
}

static void flash_go_on(struct loop_msg *msg)
{
    flash_pump(container_of(msg, struct flash, msg));
}

static void flash_begin(struct loop_msg *msg)
{
    struct flash *flash = container_of(msg, struct flash, msg);
    const uint32_t *refs = flash->replay->trace->refs + flash->work->first;

    loop_replay_to(flash->loop, flash->replay->now_ms * 1000000);
    for (uint32_t i = 0; i < flash->work->count; i++) {
        struct key key = block_key(flash, flash->first + refs[i]);

        flash->replay->there[i] = store_exists(flash->store, 0, &key, NULL);
    }
    flash->left = flash->work->count;
    flash_pump(flash);
}

static icms_err flash_request(void *cache, struct replay *replay,
                              const struct replay_request *request, uint32_t first,
                              struct err_why *why)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    struct flash *flash = cache;

    flash->replay = replay;
    flash->work = request;
    flash->first = first;
    loop_send(flash->loop, &flash->msg, flash_begin);
    for (;;) {
        while (sem_wait(&flash->paused) != 0)
            check(errno == EINTR);
        if (flash->left == 0)
            break;
        (void)nanosleep(&pause, NULL);
        loop_send(flash->loop, &flash->msg, flash_go_on);
    }
    return flash->err == ICMS_OK ? ICMS_OK : err_set(why, flash->err, "%s", flash->why.text);
}

/* ---- start and end -----------------------------------------------------------------------------
 */

static void flash_free(void *cache)
{
    struct flash *flash = cache;

    if (flash == NULL)
        return;
    if (flash->loop != NULL) {
        loop_stop(flash->loop);
        loop_join(flash->loop);
    }
    loop_free(&flash->loop);
    store_close(&flash->store);
    loop_region_free(&flash->region);
    loop_env_replay_free(&flash->env);
    if (flash->path[0] != '\0')
        (void)unlink(flash->path);
    check(sem_destroy(&flash->paused) == 0);
    free(flash);
}

/* The name of the file, which nobody else may have. */
static icms_err flash_file(struct flash *flash, const char *dir, struct err_why *why)
{
    char path[sizeof(flash->path)];
    struct stat found;

    if ((size_t)snprintf(path, sizeof(path), "%s/" FILE_NAME, dir) >= sizeof(path))
        return err_set(why, ICMS_INVALID, "the name of the directory is too long");
    if (stat(dir, &found) != 0)
        return err_set(why, err_from_errno(errno),
                       "%s cannot be used: %s; make the directory, or take another one", dir,
                       strerror(errno));
    if (!S_ISDIR(found.st_mode))
        return err_set(why, ICMS_INVALID, "%s is not a directory: take one with room for the drive",
                       dir);
    if (lstat(path, &found) == 0)
        return err_set(why, ICMS_EXISTS,
                       "%s is there already and was left as it is: remove it, or take another "
                       "directory",
                       path);
    memcpy(flash->path, path, sizeof(path));
    return ICMS_OK;
}

/* Memory of the slots. */
static icms_err flash_memory(struct flash *flash, struct err_why *why)
{
    uint64_t record_bytes = store_record_bytes(flash->value_bytes);
    struct err_why ignored;
    icms_err err =
        loop_region_new(flash->env, "replay", SLOTS * record_bytes, true, why, &flash->region);

    if (err != ICMS_OK)
        return err;
    (void)loop_region_register(flash->loop, flash->region, &ignored); /* works unpinned, too */
    for (uint32_t i = 0; i < SLOTS; i++) {
        flash->slot[i].flash = flash;
        flash->slot[i].memory = (uint8_t *)loop_region_base(flash->region) + i * record_bytes;
    }
    return ICMS_OK;
}

/* Makes the drive and opens it. */
static icms_err flash_open(struct flash *flash, const struct replay_setup *setup,
                           const struct replay_drive *drive, struct err_why *why)
{
    struct uuid uuid = {.bytes = {1}};
    struct loop_opts loop_opts;
    struct store_opts opts;
    icms_err err;

    loop_opts_init(&loop_opts);
    err = loop_new(flash->env, &loop_opts, why, &flash->loop);
    if (err == ICMS_OK)
        err = flash_memory(flash, why);
    if (err != ICMS_OK)
        return err;
    store_opts_init(&opts);
    opts.path = flash->path;
    opts.bytes = replay_drive_bytes(setup, drive);
    opts.segment_bytes = setup->segment_bytes;
    opts.value_bytes_max = setup->block_bytes;
    opts.blocks_max = INDEX_ENTRIES * setup->capacity_blocks;
    opts.budget.bytes_day = setup->budget_bytes_day;
    opts.volumes = &uuid;
    opts.volume_count = 1;
    err = store_format(loop_env_uring(), &opts, false, why);
    if (err == ICMS_OK)
        err = store_open(flash->loop, &opts, why, &flash->store);
    if (err != ICMS_OK)
        return err;
    (void)unlink(flash->path);
    flash->path[0] = '\0';
    err = store_volume_limit(flash->store, 0, 0, NULL, why);
    return err == ICMS_OK ? loop_start(flash->loop, why) : err;
}

static icms_err flash_new(const struct replay *replay, struct err_why *why, void **out_cache)
{
    const struct replay_setup *setup = replay->setup;
    struct flash *flash = calloc(1, sizeof(*flash));
    struct replay_drive drive;
    icms_err err;

    if (flash == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a drive");
    check(sem_init(&flash->paused, 0, 0) == 0);
    *out_cache = flash;
    err = replay_drive_sizes(setup, why, &drive);
    if (err != ICMS_OK)
        return err;
    flash->value_bytes = (uint32_t)setup->block_bytes;
    flash->env = loop_env_replay_new();
    if (flash->env == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a drive");
    flash->reserve = drive.reserve;
    replay->result->segments = drive.segment_count;
    err = flash_file(flash, setup->dir, why);
    return err == ICMS_OK ? flash_open(flash, setup, &drive, why) : err;
}

const struct replay_cache replay_store = {
    .new = flash_new, .free = flash_free, .request = flash_request};
