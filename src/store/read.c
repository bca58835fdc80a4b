/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and flushes.
 *
 *   store_read -> index -> one device read of the whole record -> store_read_done: header and CRC
 *   against the nonce of the segment -> done.
 *
 * Loop's thread. While the read is in flight its segment is pinned: it may be evicted, but none of
 * its records is written over, so the bytes that arrive are those the index meant.
 */
#include "base/fault.h"
#include "store/store_int.h"

static struct store_read *read_of(struct store_read_private *private)
{
    check(private->magic == STORE_READ_MAGIC);
    return container_of((uint64_t *)(void *)private, struct store_read, private_words);
}

static struct store_read_private *read_private(struct store_read *read)
{
    return (struct store_read_private *)(void *)read->private_words;
}

static void read_end(struct store_read_private *private, icms_err err, enum icms_miss reason)
{
    struct store_read *read = read_of(private);

    store_stat_add(&private->store->stats.reads, 1);
    private->magic = 0;
    read->err = err;
    read->reason = reason;
    read->done(read);
}

static void store_read_answer(struct store_deferred *deferred)
{
    struct store_read_private *private =
        container_of(deferred, struct store_read_private, deferred);
    struct store_read *read = read_of(private);

    read_end(private, read->err, read->reason);
}

/* The answer is known without the device. */
static void read_answer(struct store_read_private *private, icms_err err, enum icms_miss reason)
{
    struct store_read *read = read_of(private);

    read->err = err;
    read->reason = reason;
    store_defer(private->store, &private->deferred, store_read_answer);
}

/* The record in memory by its header or, when that is damaged, by the copy at the end. */
static bool read_header(const struct store_read_private *private, const struct store_read *read,
                        struct store_record *out_record, bool *out_whole)
{
    const struct store *store = private->store;
    const struct store_location *location = &private->location;
    uint64_t nonce = private->nonce;
    const uint8_t *tail =
        read->memory + (uint64_t)(location->pages - 1) * STORE_PAGE_BYTES + STORE_TAIL_OFFSET;
    uint32_t page;

    *out_whole = store_record_check(nonce, location->page, store->segment_pages,
                                    (const struct store_record_df *)(const void *)read->memory,
                                    out_record) == ICMS_OK;
    return *out_whole ||
           (store_tail_check(nonce, location->page + location->pages - 1, store->segment_pages,
                             (const struct store_record_df *)(const void *)tail, out_record,
                             &page) == ICMS_OK &&
            page == location->page);
}

/* True when the memory holds the record that was asked for; sets value and value_bytes. */
static bool read_verify(struct store_read_private *private, struct store_read *read)
{
    struct store *store = private->store;
    uint64_t nonce = private->nonce;
    uint32_t page = private->location.page;
    struct store_record record;
    struct store_value_crc crc;
    uint8_t *value = read->memory + STORE_HEADER_BYTES;
    bool whole;

    if (!read_header(private, read, &record, &whole))
        return false;
    if (!key_equal(&record.key, &read->key) ||
        !uuid_equal(&record.volume, &store->volumes[read->volume].uuid) ||
        store_record_pages(record.value_bytes) != private->location.pages)
        return false;
    store_value_crc_begin(&crc, nonce, page);
    store_value_crc_add(&crc, value, record.value_bytes, NULL);
    if (store_value_crc_end(&crc, NULL) != record.value_crc)
        return false;
    if (!whole)
        store_stat_add(&store->stats.checksum_errors, 1);
    read->value = value;
    read->value_bytes = record.value_bytes;
    return true;
}

/* The block on flash is damaged: only a mark is left of it, unless it was replaced, evicted or
 * deleted meanwhile, or its eviction has begun. */
static void read_damaged(struct store_read_private *private, struct store_read *read)
{
    struct store *store = private->store;
    struct store_block block = {.volume = read->volume, .key = read->key};

    store_stat_add(&store->stats.checksum_errors, 1);
    if (!store_index_find(store->index, block.volume, &block.key, &block.location) ||
        store_record_id(store, &block.location) != read->record ||
        store->segments[block.location.segment].state == SEGMENT_RENEWING)
        return;
    store_segment_damage(store, &block);
    store_run(store); /* its volume has room now */
}

static void store_read_done(struct loop_op *op)
{
    struct store_read_private *private = container_of(op, struct store_read_private, op);
    struct store_read *read = read_of(private);
    struct store *store = private->store;
    struct store_segment *segment = &store->segments[private->location.segment];
    icms_err err = op->err;
    enum icms_miss reason = ICMS_MISS_NONE;

    if (err == ICMS_OK && !read_verify(private, read)) {
        err = ICMS_MISS;
        reason = ICMS_MISS_CHECKSUM;
        read_damaged(private, read);
    }
    if (err == ICMS_OK)
        store_stat_add(&store->stats.read_bytes, read->value_bytes);
    store_read_outcome(store, op->err);
    store_segment_unpin(store, segment);
    read_end(private, err, reason);
}

icms_err store_read(struct store *store, struct store_read *read)
{
    struct store_read_private *private = read_private(read);

    check(store->magic == STORE_MAGIC && read->done != NULL);
    if (read->volume >= store->volume_count || read->memory == NULL ||
        (uintptr_t)read->memory % STORE_PAGE_BYTES != 0 || read->key.length > LIMIT_KEY_BYTES)
        return ICMS_INVALID;
    if (read->key.length == 0)
        return ICMS_KEY_SIZE;
    memset(private, 0, sizeof(*private));
    private->magic = STORE_READ_MAGIC;
    private->store = store;
    read->value = NULL;
    read->value_bytes = 0;
    read->record = 0;
    if (store->down) {
        read_answer(private, ICMS_DRIVE_DOWN, ICMS_MISS_DRIVE_DOWN);
        return ICMS_OK;
    }
    if (!store_index_find(store->index, read->volume, &read->key, &private->location) ||
        private->location.damaged) {
        read_answer(private, ICMS_MISS, store_miss_reason(store, read->volume, &read->key));
        return ICMS_OK;
    }
    if ((uint64_t) private->location.pages * STORE_PAGE_BYTES > read->memory_bytes) {
        read_answer(private, ICMS_VALUE_SIZE, ICMS_MISS_NONE);
        return ICMS_OK;
    }
    read->record = store_record_id(store, &private->location);
    private->nonce = store->segments[private->location.segment].nonce;
    store_accessed(store, &store->segments[private->location.segment], read->volume, &read->key);
    store->segments[private->location.segment].pins++;
    loop_file_read(store->loop, &private->op, store->file,
                   store_segment_offset(store, private->location.segment, private->location.page),
                   read->memory, private->location.pages * STORE_PAGE_BYTES, store_read_done);
    return ICMS_OK;
}

/* ---- flush ------------------------------------------------------------------------------------
 */

static void flush_end(struct store_flush_private *private, icms_err err)
{
    struct store_flush *flush =
        container_of((uint64_t *)(void *)private, struct store_flush, private_words);

    check(private->magic == STORE_FLUSH_MAGIC);
    private->magic = 0;
    flush->err = err;
    flush->done(flush);
}

static void store_flush_done(struct loop_op *op)
{
    struct store_flush_private *private = container_of(op, struct store_flush_private, op);

    store_overhead_outcome(private->store, op->err);
    flush_end(private, op->err);
}

static void store_flush_answer(struct store_deferred *deferred)
{
    struct store_flush_private *private =
        container_of(deferred, struct store_flush_private, deferred);

    flush_end(private, private->store->down ? ICMS_DRIVE_DOWN : ICMS_IO);
}

icms_err store_flush(struct store *store, struct store_flush *flush)
{
    struct store_flush_private *private =
        (struct store_flush_private *)(void *)flush->private_words;

    check(store->magic == STORE_MAGIC && flush->done != NULL);
    memset(private, 0, sizeof(*private));
    private->magic = STORE_FLUSH_MAGIC;
    private->store = store;
    if (store->down || fault_hit("store.flush")) {
        store_defer(store, &private->deferred, store_flush_answer);
        return ICMS_OK;
    }
    loop_file_flush(store->loop, &private->op, store->file, store_flush_done);
    return ICMS_OK;
}

/* ---- probe ------------------------------------------------------------------------------------
 */

static_assert(sizeof(struct loop_op) <= sizeof(((struct store_probe *)0)->private_words), "fits");

static void store_probe_done(struct loop_op *op)
{
    struct store_probe *probe =
        container_of((uint64_t *)(void *)op, struct store_probe, private_words);

    probe->err = op->err;
    probe->done(probe);
}

icms_err store_probe(struct store *store, struct store_probe *probe)
{
    struct loop_op *op = (struct loop_op *)(void *)probe->private_words;

    check(store->magic == STORE_MAGIC && probe->done != NULL);
    if (store->down)
        return ICMS_DRIVE_DOWN;
    memset(op, 0, sizeof(*op));
    loop_file_read(store->loop, op, store->file, 0, probe->memory, STORE_PAGE_BYTES,
                   store_probe_done);
    return ICMS_OK;
}
