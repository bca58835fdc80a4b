/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store's life: open, close, questions that need no I/O, statistics.
 *
 *   store_open -> store_volume_limit ... -> (loop runs: operations) -> loop_free -> store_close
 *
 * Open takes all the memory the store will ever use. Close writes nothing: a store that ends is a
 * store that crashed, and recovery is the only way in.
 *
 * Threads: the store's loop; the two statistics functions from any.
 */
#include <stdlib.h>

#include "store/format.h"
#include "store/store_int.h"

/* Index entries for drives whose configuration does not say: one a 64 KiB. */
#define STORE_BLOCK_BYTES_USUAL ((uint64_t)64 << 10)
#define STORE_BLOCKS_MIN        1024

/* Evictions that are remembered: a quarter of the blocks. */
#define STORE_GHOST_KEYS_MIN ((uint64_t)4096)
#define STORE_GHOST_KEYS_MAX ((uint64_t)1 << 20)

/* ---- open and close ---------------------------------------------------------------------------
 */

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

/* Entries of the index. */
static uint64_t store_blocks_max(const struct store_opts *opts, uint64_t drive_bytes)
{
    if (opts->blocks_max != 0)
        return opts->blocks_max;
    return u64_max(drive_bytes / (opts->bytes_per_block != 0 ? opts->bytes_per_block
                                                             : STORE_BLOCK_BYTES_USUAL),
                   STORE_BLOCKS_MIN);
}

uint64_t store_memory_bytes(const struct store_opts *opts, uint64_t drive_bytes)
{
    uint32_t pages = (uint32_t)(opts->segment_bytes / STORE_PAGE_BYTES);
    uint64_t segments = u64_min(drive_bytes / opts->segment_bytes, STORE_SEGMENTS_MAX);

    return store_index_bytes_max(store_blocks_max(opts, drive_bytes)) +
           store_record_bytes(opts->value_bytes_max) +
           segments * (sizeof(struct store_segment) +
                       store_dead_sectors(pages) * sizeof(struct store_dead_df));
}

static icms_err store_open_memory(struct store *store, const struct store_opts *opts,
                                  struct err_why *why)
{
    uint64_t blocks = store_blocks_max(opts, store->super.bytes);
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
    store->relocate.memory =
        store_pages_new(store, store_record_pages((uint32_t)opts->value_bytes_max));
    store->dead = calloc((size_t)store->super.segments * store_dead_sectors(store->segment_pages),
                         sizeof(store->dead[0]));
    maps = store_pages_new(store, (uint64_t)STORE_KILL_SEGMENTS * store->map_pages);
    if (store->segments == NULL || store->reclaim.mutations == NULL ||
        store->opener.header == NULL || store->reclaim.page_memory == NULL ||
        store->relocate.memory == NULL || store->dead == NULL || maps == NULL)
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
    store->run = store_run;
    store->loop = loop;
    store->writes_max = opts->writes_max != 0 ? opts->writes_max : 1;
    store->value_bytes_max = (uint32_t)opts->value_bytes_max;
    store->discard.on = opts->discard;
    store->ops = opts->ops;
    store->owner = opts->owner;
    store->stream_count = 1;
    list_init(&store->free);
    list_init(&store->ready);
    list_init(&store->wanting);
    list_init(&store->ahead);
    list_init(&store->parked);
    list_init(&store->over);
    list_init(&store->summaries);
    list_init(&store->kill.waiting);
    for (uint32_t i = 0; i < STORE_KILL_SEGMENTS; i++)
        list_init(&store->kill.map[i].mutations);
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
    store->stats.drive_bytes = store->super.bytes;
    store->stats.write_streams = loop_file_streams(store->file);
    store->stats.capacity_bytes = (uint64_t)store->super.segments *
                                  store_segment_record_pages(store->segment_pages) *
                                  STORE_PAGE_BYTES;
}

static void store_first_run(struct loop_msg *msg)
{
    struct store *store = container_of(msg, struct store, first_run);

    store->running = false;
    store_run(store);
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
        err = store_budget_open(store, opts, why);
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
    store->running = true;
    loop_send(loop, &store->first_run, store_first_run);
    *out_store = store;
    return ICMS_OK;
}

bool store_rest(struct store *store)
{
    bool rests;

    check(store->magic == STORE_MAGIC);
    store_down(store);
    rests = !store->running && store->relocate.segment == NULL && store->reclaim.segment == NULL &&
            store->metas == 0;
    for (uint32_t i = 0; i < STORE_KEY_CHAINS && rests; i++)
        rests = list_empty(&store->keys[i]);
    return rests && !loop_file_busy(store->file);
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
    free(own->strangers);
    own->magic = 0;
    free(own);
    *store = NULL;
}

/* ---- questions --------------------------------------------------------------------------------
 */

/* Where the record of a key is, damaged or not. */
static bool store_find(const struct store *store, uint32_t volume, const struct key *key,
                       struct store_location *out_location)
{
    check(store->magic == STORE_MAGIC);
    return volume < store->volume_count && !store->down &&
           store_index_find(store->index, volume, key, out_location);
}

bool store_exists(struct store *store, uint32_t volume, const struct key *key,
                  uint64_t *out_bytes_max)
{
    struct store_location location;

    if (!store_find(store, volume, key, &location) || location.damaged)
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

    return store_find(store, volume, key, &location) ? store_record_id(store, &location) : 0;
}

void store_touch(struct store *store, uint32_t volume, const struct key *key)
{
    struct store_location location;

    if (store_find(store, volume, key, &location))
        store_accessed(store, &store->segments[location.segment], volume, key);
}

/* ---- statistics -------------------------------------------------------------------------------
 */

void store_stats(const struct store *store, struct store_stats *out_stats)
{
    const uint64_t *from = (const uint64_t *)(const void *)&store->stats;
    uint64_t *to = (uint64_t *)(void *)out_stats;

    *out_stats = (struct store_stats){
        .full = __atomic_load_n(&store->full, __ATOMIC_RELAXED),
        .down = __atomic_load_n(&store->down, __ATOMIC_RELAXED),
        .evicted_age_ns = &store->evicted_age_ns,
    };
    for (size_t i = 0; i < offsetof(struct store_stats, full) / sizeof(*from); i++)
        to[i] = counter_get(&from[i]);
    out_stats->budget_left_bytes = store_budget_left(store);
}

void store_volume_stats(const struct store *store, uint32_t volume,
                        struct store_volume_stats *out_stats)
{
    const struct store_volume *v = &store->volumes[volume];

    check(volume < STORE_VOLUMES_MAX);
    *out_stats = (struct store_volume_stats){
        .blocks = counter_get(&v->blocks),
        .bytes = counter_get(&v->bytes),
        .quota_bytes = counter_get(&v->quota_bytes),
        .evictions = counter_get(&v->evictions),
    };
}
