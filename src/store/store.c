/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store's life: open, volumes, questions that need no I/O, statistics, out of service, close.
 *
 *   store_open -> store_volume_limit ... -> (loop runs: operations) -> loop_free -> store_close
 *
 * Open takes all the memory the store will ever use. Close writes nothing: a store that ends is a
 * store that crashed, and recovery is the only way in.
 *
 * Threads: the store's loop; the two statistics functions from any.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "store/format.h"
#include "store/store_int.h"

/* Index entries for drives whose configuration does not say: one a 64 KiB. */
#define STORE_BLOCK_BYTES_USUAL ((uint64_t)64 << 10)
#define STORE_BLOCKS_MIN        1024

/* Evictions that are remembered: a quarter of the blocks. */
#define STORE_GHOST_KEYS_MIN ((uint64_t)4096)
#define STORE_GHOST_KEYS_MAX ((uint64_t)1 << 20)

uint64_t store_record_bytes(uint64_t value_bytes)
{
    return (uint64_t)store_record_pages((uint32_t)value_bytes) * STORE_PAGE_BYTES;
}

void store_opts_init(struct store_opts *opts)
{
    *opts = (struct store_opts){.segment_bytes = (uint64_t)64 << 20,
                                .value_bytes_max = LIMIT_VALUE_BYTES_DEFAULT + LIMIT_TRAILER_BYTES,
                                .writes_max = 64,
                                .discard = true};
}

/* ---- open and close ---------------------------------------------------------------------------
 */

void *store_pages_new(struct store *store, uint64_t pages)
{
    void *memory;

    if (store->buffer_count == sizeof(store->buffers) / sizeof(store->buffers[0]))
        return NULL;
    memory = aligned_alloc(STORE_PAGE_BYTES, pages * STORE_PAGE_BYTES);
    if (memory == NULL)
        return NULL;
    memset(memory, 0, pages * STORE_PAGE_BYTES);
    store->buffers[store->buffer_count++] = memory;
    return memory;
}

static icms_err store_open_file(struct store *store, const struct store_opts *opts,
                                struct err_why *why)
{
    struct loop_file_opts open = {
        .path = opts->path, .write = true, .direct = true, .exclusive = true};
    struct store_opts sizes = *opts;
    icms_err err = loop_file_open(loop_env(store->loop), &open, why, &store->file);

    if (err != ICMS_OK)
        return err;
    err = store_super_read(store->file, opts->path, why, &store->super);
    if (err != ICMS_OK)
        return err;
    if (loop_file_bytes(store->file) < store->super.bytes)
        return err_set(why, ICMS_IO,
                       "%s is truncated: %llu bytes of %llu are left; restore it, or format it",
                       opts->path, (unsigned long long)loop_file_bytes(store->file),
                       (unsigned long long)store->super.bytes);
    sizes.segment_bytes = store->super.segment_bytes; /* as it was formatted */
    return store_opts_check(&sizes, why);
}

/* Bytes a day of a budget on a drive of this size. */
static uint64_t store_budget_day(const struct write_budget *budget, uint64_t drive_bytes)
{
    double bytes = budget->drive_writes * (double)drive_bytes;

    if (budget->bytes_day != 0 || bytes <= 0)
        return budget->bytes_day;
    return bytes < 0x1p60 ? u64_max((uint64_t)bytes, 1) : (uint64_t)1 << 60;
}

static icms_err store_open_budget(struct store *store, const struct store_opts *opts,
                                  struct err_why *why)
{
    uint64_t day = store_budget_day(&opts->budget, store->super.bytes);
    uint64_t burst = opts->budget.burst_bytes != 0 ? opts->budget.burst_bytes : day;
    uint64_t record = store_record_bytes(opts->value_bytes_max);

    if (day != 0 && burst < record)
        return err_set(why, ICMS_INVALID,
                       "%s: a write budget that saves up %llu bytes never lets the largest value, "
                       "a record of %llu bytes, through: raise the budget or its burst",
                       opts->path, (unsigned long long)burst, (unsigned long long)record);
    policy_opts_init(&store->policy_opts);
    store->policy_opts.budget_bytes_day = day;
    store->policy_opts.burst_bytes = burst;
    store->stats.budget_bytes_day = day;
    return ICMS_OK;
}

static icms_err store_open_memory(struct store *store, const struct store_opts *opts,
                                  struct err_why *why)
{
    uint64_t blocks =
        opts->blocks_max != 0
            ? opts->blocks_max
            : u64_max(store->super.bytes / (opts->bytes_per_block != 0 ? opts->bytes_per_block
                                                                       : STORE_BLOCK_BYTES_USUAL),
                      STORE_BLOCKS_MIN);
    uint64_t seeds[2];
    uint8_t *maps;
    icms_err err;

    loop_entropy(store->loop, seeds, sizeof(seeds));
    store->key_seed = seeds[0];
    store->hash_seed = opts->hash_seed != 0 ? opts->hash_seed : seeds[1];
    err = store_volumes_new(store, opts, why);
    if (err != ICMS_OK)
        return err;
    store->policy_opts.ghost_keys =
        u64_max(u64_min(blocks / 4, STORE_GHOST_KEYS_MAX), STORE_GHOST_KEYS_MIN);
    if (store_index_new(blocks, store->salts, &store->index) != ICMS_OK ||
        policy_new(&store->policy_opts, store_now_ms(store), &store->policy) != ICMS_OK)
        return ICMS_NO_MEMORY;
    store->segments = calloc(store->super.segments, sizeof(store->segments[0]));
    store->reclaim.mutations = calloc(STORE_QUOTA_EVICTIONS, sizeof(store->reclaim.mutations[0]));
    store->opener.header = store_pages_new(store, 1);
    store->reclaim.page_memory = store_pages_new(store, STORE_DEAD_MAP_PAGES_MAX);
    store->dead = calloc((size_t)store->super.segments * store_dead_sectors(store->segment_pages),
                         sizeof(store->dead[0]));
    maps = store_pages_new(store, (uint64_t)STORE_KILL_SEGMENTS * store->map_pages);
    if (store->segments == NULL || store->reclaim.mutations == NULL ||
        store->opener.header == NULL || store->reclaim.page_memory == NULL || store->dead == NULL ||
        maps == NULL)
        return ICMS_NO_MEMORY;
    for (uint32_t i = 0; i < STORE_KILL_SEGMENTS; i++)
        store->kill.map[i].pages = maps + (size_t)i * store->map_pages * STORE_PAGE_BYTES;
    for (int i = 0; i < 5; i++) { /* the shared stream: open, next, sealing, one more; reclaim */
        if (!store_summary_pool_add(store))
            return ICMS_NO_MEMORY;
    }
    store->reclaim.summary = container_of(list_pop(&store->summaries), struct store_summary, link);
    return ICMS_OK;
}

static void store_init(struct store *store, struct loop *loop, const struct store_opts *opts)
{
    store->magic = STORE_MAGIC;
    store->loop = loop;
    store->writes_max = opts->writes_max != 0 ? opts->writes_max : 1;
    store->value_bytes_max = (uint32_t)opts->value_bytes_max;
    store->discard.on = opts->discard;
    store->stream_count = 1;
    list_init(&store->free);
    list_init(&store->ready);
    list_init(&store->wanting);
    list_init(&store->ahead);
    list_init(&store->parked);
    list_init(&store->over);
    list_init(&store->summaries);
    list_init(&store->deferred);
    list_init(&store->kill.waiting);
    for (uint32_t i = 0; i < STORE_KILL_SEGMENTS; i++) {
        store->kill.map[i].store = store;
        list_init(&store->kill.map[i].mutations);
    }
    for (uint32_t i = 0; i < STORE_KEY_CHAINS; i++)
        list_init(&store->keys[i]);
    for (uint32_t i = 0; i < STORE_STREAMS; i++) {
        list_init(&store->streams[i].segments);
        list_init(&store->streams[i].link);
    }
}

static void store_limits_set(struct store *store)
{
    store->segment_pages = (uint32_t)(store->super.segment_bytes / STORE_PAGE_BYTES);
    store->map_pages = store_dead_map_pages(store->segment_pages);
    store_reserve_set(store);
    store->stats.segments = store->super.segments;
    store->stats.capacity_bytes = (uint64_t)store->super.segments *
                                  store_segment_record_pages(store->segment_pages) *
                                  STORE_PAGE_BYTES;
}

static void store_first_run(struct store_deferred *deferred)
{
    store_run(container_of(deferred, struct store, first_run));
}

icms_err store_open(struct loop *loop, const struct store_opts *opts, struct err_why *why,
                    struct store **out_store)
{
    uint64_t begin_ns = loop_env_now_ns(loop_env(loop));
    struct store *store = calloc(1, sizeof(*store));
    icms_err err;

    if (store == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: no memory", opts->path);
    store_init(store, loop, opts);
    err = store_open_file(store, opts, why);
    if (err == ICMS_OK) {
        store_limits_set(store);
        err = store_open_budget(store, opts, why);
    }
    if (err == ICMS_OK) {
        err = store_open_memory(store, opts, why);
        if (err == ICMS_NO_MEMORY)
            err =
                err_set(why, err, "%s: no memory for the index: raise bytes_per_block", opts->path);
    }
    if (err == ICMS_OK)
        err = store_note_open(store, why);
    if (err == ICMS_OK)
        err = store_recover(store, why);
    if (err != ICMS_OK) {
        store_close(&store);
        return err;
    }
    store->stats.blocks_max = store_index_blocks_max(store->index);
    store->stats.index_bytes = store_index_bytes(store->index);
    store->stats.recovered_blocks = store->stats.blocks;
    store->stats.recovery_ns = loop_env_now_ns(loop_env(loop)) - begin_ns;
    store->since_ns = loop_env_now_ns(loop_env(loop));
    store_budget_note(store);
    /* a full drive makes room as soon as its loop runs */
    store_defer(store, &store->first_run, store_first_run);
    *out_store = store;
    return ICMS_OK;
}

void store_close(struct store **store)
{
    struct store *own = *store;

    if (own == NULL)
        return;
    check(own->magic == STORE_MAGIC);
    loop_file_close(&own->file);
    store_index_free(&own->index);
    policy_free(&own->policy);
    while (!list_empty(&own->summaries))
        free(container_of(list_pop(&own->summaries), struct store_summary, link));
    for (uint32_t i = 0; own->segments != NULL && i < own->super.segments; i++)
        free(own->segments[i].summary);
    for (uint32_t i = 0; i < own->buffer_count; i++)
        free(own->buffers[i]);
    free(own->segments);
    free(own->dead);
    free(own->reclaim.mutations);
    free(own->reclaim.summary);
    free(own->volumes);
    free(own->salts);
    own->magic = 0;
    free(own);
    *store = NULL;
}

/* ---- the write budget -------------------------------------------------------------------------
 */

uint64_t store_policy_hash(uint32_t volume, const struct key *key)
{
    return hash64_seed(key->bytes, sizeof(key->bytes), (uint64_t)volume << 8 | key->length);
}

uint64_t store_policy_run(uint32_t volume, const struct key *key)
{
    return hash64_seed(
        key->bytes, key->length == LIMIT_KEY_BYTES ? LIMIT_RUN_BYTES : sizeof(key->bytes), volume);
}

void store_accessed(struct store *store, struct store_segment *segment, uint32_t volume,
                    const struct key *key)
{
    policy_access(store->policy, &segment->recency);
    policy_read(store->policy, store_policy_run(volume, key));
}

uint64_t store_now_ms(const struct store *store)
{
    return loop_now_ns(store->loop) / 1000000;
}

void store_overhead_written(struct store *store, uint64_t bytes)
{
    counter_add(&store->stats.device_write_bytes, bytes);
    policy_charge(store->policy, bytes, store_now_ms(store));
    store_budget_note(store);
}

void store_budget_note(struct store *store)
{
    uint64_t now_ms = store_now_ms(store);

    if (store->policy_opts.budget_bytes_day == 0)
        return;
    counter_set(&store->budget_left_bytes, (uint64_t)policy_budget_left(store->policy, now_ms));
    counter_set(&store->budget_ms, now_ms);
}

/* What is left by now, if nothing was written since it was noted. */
static uint64_t store_budget_left(const struct store *store)
{
    const struct policy_opts *opts = &store->policy_opts;
    uint64_t now_ms = loop_env_now_ns(loop_env(store->loop)) / 1000000;
    uint64_t then_ms = counter_get(&store->budget_ms);
    double gained = (double)(now_ms > then_ms ? now_ms - then_ms : 0) *
                    ((double)opts->budget_bytes_day / (24.0 * 3600 * 1000));
    double left = (double)(int64_t)counter_get(&store->budget_left_bytes) + gained;

    if (left <= 0)
        return 0;
    return left < (double)opts->burst_bytes ? (uint64_t)left : opts->burst_bytes;
}

/* ---- deferred
 * ------------------------------------------------------------------------------------
 */

static void store_deferred_run(struct loop_msg *msg)
{
    struct store *store = container_of(msg, struct store, deferred_msg);
    struct list batch;

    /* what is added from here on runs in a later iteration */
    list_init(&batch);
    while (!list_empty(&store->deferred))
        list_push(&batch, list_pop(&store->deferred));
    store->deferred_sent = false;
    while (!list_empty(&batch)) {
        struct store_deferred *deferred =
            container_of(list_pop(&batch), struct store_deferred, link);

        deferred->run(deferred);
    }
}

void store_defer(struct store *store, struct store_deferred *deferred,
                 void (*run)(struct store_deferred *))
{
    deferred->run = run;
    list_push(&store->deferred, &deferred->link);
    if (!store->deferred_sent) {
        store->deferred_sent = true;
        loop_send(store->loop, &store->deferred_msg, store_deferred_run);
    }
}

/* ---- out of service ---------------------------------------------------------------------------
 */

void store_down(struct store *store)
{
    if (store->down)
        return;
    __atomic_store_n(&store->down, true, __ATOMIC_RELAXED);
    if (store->on_down != NULL) /* the owner knows before it gets an answer that comes of it */
        store->on_down(store->on_down_arg);
    store_run(store); /* answers what is parked */
}

void store_write_outcome(struct store *store, icms_err err)
{
    if (err == ICMS_OK) {
        store->write_errors = 0;
        return;
    }
    counter_add(&store->stats.io_errors, 1);
    if (++store->write_errors >= STORE_WRITE_ERRORS_MAX)
        store_down(store);
}

void store_read_outcome(struct store *store, icms_err err)
{
    if (err == ICMS_OK) {
        store->read_errors = 0;
        return;
    }
    counter_add(&store->stats.io_errors, 1);
    if (++store->read_errors >= STORE_READ_ERRORS_MAX)
        store_down(store);
}

void store_on_down(struct store *store, void (*down)(void *arg), void *arg)
{
    store->on_down = down;
    store->on_down_arg = arg;
}

/* ---- questions --------------------------------------------------------------------------------
 */

bool store_exists(struct store *store, uint32_t volume, const struct key *key,
                  uint64_t *out_bytes_max)
{
    struct store_location location;

    check(store->magic == STORE_MAGIC);
    if (volume >= store->volume_count || store->down ||
        !store_index_find(store->index, volume, key, &location) || location.damaged)
        return false;
    if (out_bytes_max != NULL) { /* its record has no more pages than this one */
        uint32_t bytes = location.pages * STORE_PAGE_BYTES;

        *out_bytes_max = bytes - 2 * STORE_HEADER_BYTES - sizeof(le32) * store_pieces(bytes);
    }
    return true;
}

uint64_t store_record_now(struct store *store, uint32_t volume, const struct key *key)
{
    struct store_location location;

    check(store->magic == STORE_MAGIC);
    if (volume >= store->volume_count || store->down ||
        !store_index_find(store->index, volume, key, &location))
        return 0;
    return store_record_id(store, &location);
}

void store_touch(struct store *store, uint32_t volume, const struct key *key)
{
    struct store_location location;

    check(store->magic == STORE_MAGIC);
    if (volume < store->volume_count && store_index_find(store->index, volume, key, &location))
        store_accessed(store, &store->segments[location.segment], volume, key);
}

enum icms_miss store_miss_reason(struct store *store, uint32_t volume, const struct key *key)
{
    struct store_location location;

    check(store->magic == STORE_MAGIC);
    if (store->down)
        return ICMS_MISS_DRIVE_DOWN;
    if (volume >= store->volume_count)
        return ICMS_MISS_ABSENT;
    if (store_index_find(store->index, volume, key, &location) && location.damaged)
        return ICMS_MISS_CHECKSUM;
    return policy_was_evicted(store->policy, store_policy_hash(volume, key)) ? ICMS_MISS_EVICTED
                                                                             : ICMS_MISS_ABSENT;
}

/* ---- statistics -------------------------------------------------------------------------------
 */

void store_stats(const struct store *store, struct store_stats *out_stats)
{
    const struct store_stats *s = &store->stats;

    *out_stats = (struct store_stats){
        .segments = counter_get(&s->segments),
        .segments_free = counter_get(&s->segments_free),
        .segments_open = counter_get(&s->segments_open),
        .capacity_bytes = counter_get(&s->capacity_bytes),
        .drive_bytes = store->super.bytes,
        .used_bytes = counter_get(&s->used_bytes),
        .blocks = counter_get(&s->blocks),
        .blocks_max = counter_get(&s->blocks_max),
        .index_bytes = counter_get(&s->index_bytes),
        .reads = counter_get(&s->reads),
        .writes = counter_get(&s->writes),
        .deletes = counter_get(&s->deletes),
        .read_bytes = counter_get(&s->read_bytes),
        .write_bytes = counter_get(&s->write_bytes),
        .device_write_bytes = counter_get(&s->device_write_bytes),
        .admitted_bytes = counter_get(&s->admitted_bytes),
        .discarded_bytes = counter_get(&s->discarded_bytes),
        .write_streams = loop_file_streams(store->file),
        .refused = counter_get(&s->refused),
        .budget_bytes_day = s->budget_bytes_day,
        .budget_left_bytes = store_budget_left(store),
        .evictions = counter_get(&s->evictions),
        .checksum_errors = counter_get(&s->checksum_errors),
        .io_errors = counter_get(&s->io_errors),
        .recovered_blocks = counter_get(&s->recovered_blocks),
        .recovery_ns = counter_get(&s->recovery_ns),
        .evicted_age_ns = &store->evicted_age_ns,
        .down = __atomic_load_n(&store->down, __ATOMIC_RELAXED),
        .list_steps = counter_get(&s->list_steps),
        .free_low = __atomic_load_n(&store->free_low, __ATOMIC_RELAXED),
    };
}

void store_volume_stats(const struct store *store, uint32_t volume,
                        struct store_volume_stats *out_stats)
{
    const struct store_volume *v = &store->volumes[volume];

    check(volume < store->volume_count);
    *out_stats = (struct store_volume_stats){
        .blocks = counter_get(&v->blocks),
        .bytes = counter_get(&v->bytes),
        .quota_bytes = v->quota_bytes,
        .evictions = counter_get(&v->evictions),
    };
}
