/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads and flushes.
 *
 *   store_read -> index -> device reads of parts of the record -> store_read_done for each of them:
 *   header, then each piece of the value in order by its CRC, against the nonce of the segment ->
 *   more, ... -> done.
 *
 * A record is read in one part, or, when it is large and who reads it can use pieces, in several.
 * Then the first part that is begun is the tail, which has the CRCs of the pieces and the copy of
 * the header. Nothing is verified before it and the first page are there. When those CRCs do not
 * hold, the value still may: it is verified as a whole, and more is not called.
 *
 * Loop's thread. While parts are with the device the segment is pinned: it may be evicted, but none
 * of its records is written over, so the bytes that arrive are those the index meant. A read that
 * failed ends when its last part came back.
 */
#include "base/bytes.h"
#include "base/crc.h"
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

    counter_add(&private->store->stats.reads, 1);
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

/* The first page and the tail are in memory: true when this is the record that was asked for. Sets
 * value and value_bytes. */
static bool read_begin(struct store_read_private *private, struct store_read *read)
{
    const struct store *store = private->store;
    struct store_record record;
    bool whole;

    if (!read_header(private, read, &record, &whole))
        return false;
    if (!key_equal(&record.key, &read->key) ||
        !uuid_equal(&record.volume, &store->volumes[read->volume].uuid) ||
        store_record_pages(record.value_bytes) != private->location.pages)
        return false;
    private->record = record;
    read->value = read->memory + STORE_HEADER_BYTES;
    read->value_bytes = record.value_bytes;
    store_value_crc_begin(&private->crc, private->nonce, private->location.page);
    if (private->tail_page > 0)
    private->pieces_hold =
        crc32c_add(private->crc.all, read->value + record.value_bytes,
                   sizeof(le32) * store_pieces(record.value_bytes)) == record.value_crc;
    private->damaged_copy = !whole || (private->tail_page > 0 && !private->pieces_hold);
    return true;
}

/* Verifies so many bytes of the value, its next piece; of the last piece also the value. */
static bool read_verify_piece(struct store_read_private *private, const struct store_read *read,
                              uint32_t bytes)
{
    struct store_value_crc *crc = &private->crc;
    uint32_t piece = crc->done / STORE_PIECE_BYTES;
    uint32_t all =
        crc32c_add(crc->all, read->value + read->value_bytes + sizeof(le32) * piece, sizeof(le32));

    store_value_crc_add(crc, read->value + crc->done, bytes, NULL);
    if (crc->done == read->value_bytes &&
        store_value_crc_end(crc, NULL) != private->record.value_crc)
        return false;
    return !private->pieces_hold || crc->all == all;
}

/* Verifies what can be by now; false: the record is damaged. */
static bool read_verify(struct store_read_private *private, struct store_read *read)
{
    uint64_t landed = (uint64_t) private->landed_page * STORE_PAGE_BYTES;
    uint32_t bytes;

    if (landed == 0 || !private->tail_landed)
        return true;
    if (private->record.value_bytes == 0 && !read_begin(private, read))
        return false;
    for (; private->crc.done < read->value_bytes;) {
        bytes = (uint32_t)u64_min(read->value_bytes - private->crc.done, STORE_PIECE_BYTES);
        if (STORE_HEADER_BYTES + (uint64_t) private->crc.done + bytes > landed)
            break;
        if (!read_verify_piece(private, read, bytes))
            return false;
    }
    return true;
}

static struct store_error read_error(const struct store_read_private *private,
                                     const struct store_read *read, const char *what)
{
    return (struct store_error){
        .what = what,
        .offset =
            store_segment_offset(private->store, private->location.segment, private->location.page),
        .volume = read->volume,
        .key = read->key};
}

/* The block on flash is damaged: only a mark is left of it, unless it was replaced, evicted or
 * deleted meanwhile, or its eviction has begun. */
static void read_damaged(struct store_read_private *private, struct store_read *read)
{
    struct store *store = private->store;
    struct store_block block = {.volume = read->volume, .key = read->key};
    struct store_error error = read_error(private, read, "value");

    error.err = ICMS_CORRUPT;
    store_error_add(store, &error, 1);
    if (!store_index_find(store->index, block.volume, &block.key, &block.location) ||
        store_record_id(store, &block.location) != read->record ||
        store->segments[block.location.segment].state == SEGMENT_RENEWING)
        return;
    store_segment_damage(store, &block);
    store->run(store); /* its volume has room now */
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

/* Every part came back. */
static void read_finish(struct store_read_private *private)
{
    struct store_read *read = read_of(private);
    struct store *store = private->store;
    struct store_segment *segment = &store->segments[private->location.segment];
    icms_err err = private->err;
    enum icms_miss reason = ICMS_MISS_NONE;

    if (err == ICMS_MISS) {
        reason = ICMS_MISS_CHECKSUM;
        read_damaged(private, read);
    } else if (err == ICMS_DRIVE_DOWN) {
        reason = ICMS_MISS_DRIVE_DOWN;
    } else if (err == ICMS_OK) {
        check(private->crc.done == read->value_bytes);
        counter_add(&store->stats.read_bytes, read->value_bytes);
        if (private->damaged_copy)
            store_damage_add(store, "header of a value, read from its copy",
                             read_error(private, read, "").offset, 1);
    }
    store->reads--;
    store_read_outcome(store, private->device_err, read_error(private, read, "read of a value"));
    store_segment_unpin(store, segment);
    read_end(private, err, reason);
}

static void store_read_done(struct loop_op *op);

static void read_part(struct store_read_private *private, uint32_t i, uint32_t page,
                      uint32_t end_page)
{
    struct store_read *read = read_of(private);
    struct store_read_part *part = &private->part[i];

    part->private = private;
    part->page = page;
    part->end_page = end_page;
    private->busy++;
    loop_file_read(private->store->loop, &part->op, private->store->file,
                   store_segment_offset(private->store, private->location.segment,
                                        private->location.page + page),
                   read->memory + (uint64_t)page * STORE_PAGE_BYTES,
                   (end_page - page) * STORE_PAGE_BYTES, store_read_done);
}

#define READ_PIECE_PAGES (STORE_PIECE_BYTES / STORE_PAGE_BYTES)

/* Pages of a part: an eighth of the record, in whole pieces. Smaller ones would leave sooner, and
 * each costs both ends of a connection a turn. */
static uint32_t read_part_pages(uint32_t pages)
{
    return (uint32_t)u64_max(pages / 8 / READ_PIECE_PAGES, 1) * READ_PIECE_PAGES;
}

/* Begins the next parts, as many as may be with the device. A part ends with the page that the end
 * of a piece lies in: a header's size behind that of the piece's multiple. The last one is no
 * shorter than half of one. */
static void read_parts(struct store_read_private *private)
{
    uint32_t pages = read_part_pages(private->location.pages);

    for (uint32_t i = 1; i < STORE_READ_PARTS && private->asked_page < private->tail_page; i++) {
        uint32_t page = private->asked_page;
        uint32_t end = page + pages + (page == 0);

        if (private->part[i].end_page != 0)
            continue;
        if (end + pages / 2 > private->tail_page)
            end = private->tail_page;
        private->asked_page = end;
        read_part(private, i, page, end);
    }
}

static_assert(STORE_READ_SPLIT_BYTES / STORE_PAGE_BYTES >= READ_PIECE_PAGES * 3 / 2 + 4,
              "what is split has two parts before its tail");

/* Gives the parts back that are in memory without a gap before them. */
static void read_landed(struct store_read_private *private)
{
    for (uint32_t i = 0; i < STORE_READ_PARTS; i++) {
        struct store_read_part *part = &private->part[i];

        if (part->end_page == 0 || loop_op_busy(&part->op) || part->page != private->landed_page)
            continue;
        private->landed_page = part->end_page;
        part->end_page = 0;
        i = UINT32_MAX; /* from the first one again: the next may be there */
    }
}

/* A part is in memory, or the device refused it. */
static void store_read_done(struct loop_op *op)
{
    struct store_read_part *part = container_of(op, struct store_read_part, op);
    struct store_read_private *private = part->private;
    struct store_read *read = read_of(private);
    struct store *store = private->store;

    private->busy--;
    if (private->device_err == ICMS_OK)
    private->device_err = op->err;
    if (private->err == ICMS_OK)
    private->err = op->err;
    if (private->err == ICMS_OK && private->asked_page < private->tail_page && store->down)
    private->err = ICMS_DRIVE_DOWN;
    if (private->err == ICMS_OK) {
        private->tail_landed = private->tail_landed || part == &private->part[0];
        read_landed(private);
        read_parts(private); /* the device goes on while this thread verifies */
        if (!read_verify(private, read))
        private->err = ICMS_MISS;
    }
    if (private->busy == 0) {
        read_finish(private);
    } else if (private->err == ICMS_OK && private->pieces_hold &&
               private->crc.done > read->good_bytes && private->crc.done < read->value_bytes) {
        read->good_bytes = private->crc.done;
        read->more(read);
    }
}

/* Where the tail of a record begins: it has at least the CRCs of the pieces, which lie before the
 * unit that the record is rounded up to, and the copy of the header. */
static uint32_t read_tail_page(uint32_t pages)
{
    static_assert(sizeof(le32) * (LIMIT_VALUE_BYTES / STORE_PIECE_BYTES + 1) +
                          sizeof(struct store_record_df) <=
                      STORE_PAGE_BYTES,
                  "they begin in the page before that unit, or in the one before that");
    return pages - (1u << store_pages_shift(pages)) - 2;
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
    read->good_bytes = 0;
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
    store->reads++;
    store->read_ns = loop_now_ns(store->loop);
    if (read->more != NULL && private->location.pages >= STORE_READ_SPLIT_BYTES / STORE_PAGE_BYTES)
    private->tail_page = read_tail_page(private->location.pages);
    read_part(private, 0, private->tail_page, private->location.pages);
    read_parts(private);
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

    store_overhead_outcome(private->store, op->err, "flush", STORE_ERROR_NOWHERE);
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
