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
#include "store/store_int.h"

static struct store_read *read_of(struct store_reading *reading)
{
    check(reading->magic == STORE_READ_MAGIC);
    return container_of((uint64_t *)(void *)reading, struct store_read, private_words);
}

static struct store_reading *reading_of(struct store_read *read)
{
    return (struct store_reading *)(void *)read->private_words;
}

/* Where a page of the record lies on the drive. */
static uint64_t reading_offset(const struct store_reading *reading, uint32_t page)
{
    const struct store *store = reading->store;

    return store_segment_offset(store, &store->segments[reading->location.segment],
                                reading->location.page + page);
}

static void read_end(struct store_reading *reading, icms_err err, enum icms_miss reason)
{
    struct store_read *read = read_of(reading);

    counter_add(&reading->store->stats.reads, 1);
    reading->magic = 0;
    read->err = err;
    read->reason = reason;
    read->done(read);
}

static void store_read_answer(struct loop_msg *msg)
{
    struct store_reading *reading = container_of(msg, struct store_reading, msg);
    struct store_read *read = read_of(reading);

    read_end(reading, read->err, read->reason);
}

/* The answer is known without the device. */
static void read_answer(struct store_reading *reading, icms_err err, enum icms_miss reason)
{
    struct store_read *read = read_of(reading);

    read->err = err;
    read->reason = reason;
    loop_send(reading->store->loop, &reading->msg, store_read_answer);
}

/* The record in memory by its header or, when that is damaged, by the copy at the end. */
static bool read_header(const struct store_reading *reading, const struct store_read *read,
                        struct store_record *out_record, bool *out_whole)
{
    const struct store *store = reading->store;
    const struct store_location *location = &reading->location;
    uint64_t nonce = reading->nonce;
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
static bool read_begin(struct store_reading *reading, struct store_read *read)
{
    const struct store *store = reading->store;
    struct store_record record;
    bool whole;

    if (!read_header(reading, read, &record, &whole))
        return false;
    if (!key_equal(&record.key, &read->key) ||
        !uuid_equal(&record.volume, &store->volumes[read->volume].uuid) ||
        store_record_pages(record.value_bytes) != reading->location.pages)
        return false;
    reading->record = record;
    read->value = read->memory + STORE_HEADER_BYTES;
    read->value_bytes = record.value_bytes;
    store_value_crc_begin(&reading->crc, reading->nonce, reading->location.page);
    if (reading->tail_page > 0)
        reading->pieces_hold =
            crc32c_add(reading->crc.all, read->value + record.value_bytes,
                       sizeof(le32) * store_pieces(record.value_bytes)) == record.value_crc;
    reading->damaged_copy = !whole || (reading->tail_page > 0 && !reading->pieces_hold);
    return true;
}

/* Verifies so many bytes of the value, its next piece; of the last piece also the value. */
static bool read_verify_piece(struct store_reading *reading, const struct store_read *read,
                              uint32_t bytes)
{
    struct store_value_crc *crc = &reading->crc;
    uint32_t piece = crc->done / STORE_PIECE_BYTES;
    uint32_t all =
        crc32c_add(crc->all, read->value + read->value_bytes + sizeof(le32) * piece, sizeof(le32));

    store_value_crc_add(crc, read->value + crc->done, bytes, NULL);
    if (crc->done == read->value_bytes &&
        store_value_crc_end(crc, NULL) != reading->record.value_crc)
        return false;
    return !reading->pieces_hold || crc->all == all;
}

/* Verifies what can be by now; false: the record is damaged. */
static bool read_verify(struct store_reading *reading, struct store_read *read)
{
    uint64_t landed = (uint64_t)reading->landed_page * STORE_PAGE_BYTES;
    uint32_t bytes;

    if (landed == 0 || !reading->tail_landed)
        return true;
    if (reading->record.value_bytes == 0 && !read_begin(reading, read))
        return false;
    for (; reading->crc.done < read->value_bytes;) {
        bytes = (uint32_t)u64_min(read->value_bytes - reading->crc.done, STORE_PIECE_BYTES);
        if (STORE_HEADER_BYTES + (uint64_t)reading->crc.done + bytes > landed)
            break;
        if (!read_verify_piece(reading, read, bytes))
            return false;
    }
    return true;
}

static struct store_error read_error(const struct store_reading *reading,
                                     const struct store_read *read, const char *what)
{
    return (struct store_error){.what = what,
                                .offset = reading_offset(reading, 0),
                                .volume = read->volume,
                                .key = read->key};
}

/* The block on flash is damaged: only a mark is left of it, unless it was replaced, evicted or
 * deleted meanwhile, or its eviction has begun. */
static void read_damaged(struct store_reading *reading, struct store_read *read)
{
    struct store *store = reading->store;
    struct store_block block = {.volume = read->volume, .key = read->key};
    struct store_error error = read_error(reading, read, "value");

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
static void read_finish(struct store_reading *reading)
{
    struct store_read *read = read_of(reading);
    struct store *store = reading->store;
    struct store_segment *segment = &store->segments[reading->location.segment];
    icms_err err = reading->err;
    enum icms_miss reason = ICMS_MISS_NONE;

    if (err == ICMS_MISS) {
        reason = ICMS_MISS_CHECKSUM;
        read_damaged(reading, read);
    } else if (err == ICMS_DRIVE_DOWN) {
        reason = ICMS_MISS_DRIVE_DOWN;
    } else if (err == ICMS_OK) {
        check(reading->crc.done == read->value_bytes);
        counter_add(&store->stats.read_bytes, read->value_bytes);
        if (reading->damaged_copy)
            store_damage_add(store, "header of a value, read from its copy",
                             read_error(reading, read, "").offset, 1);
    }
    store->reads--;
    store_read_outcome(store, reading->device_err, read_error(reading, read, "read of a value"));
    store_segment_unpin(store, segment);
    read_end(reading, err, reason);
}

static void store_read_done(struct loop_op *op);

static void read_part_start(struct store_reading *reading, const struct store_read *read,
                            struct store_read_part *part)
{
    loop_file_read(reading->store->loop, &part->op, reading->store->file,
                   reading_offset(reading, part->page),
                   read->memory + (uint64_t)part->page * STORE_PAGE_BYTES,
                   (part->end_page - part->page) * STORE_PAGE_BYTES, store_read_done);
}

static void read_part(struct store_reading *reading, uint32_t i, uint32_t page, uint32_t end_page)
{
    struct store_read *read = read_of(reading);
    struct store_read_part *part = &reading->part[i];

    part->reading = reading;
    part->page = page;
    part->end_page = end_page;
    reading->busy++;
    read_part_start(reading, read, part);
}

/* All of the record, another way than by the loop. False: there is none. */
static bool read_instead(struct store_reading *reading, struct store_read *read)
{
    int fd = loop_file_fd(reading->store->file);
    struct store_read_part *part = &reading->part[0];

    if (read->instead == NULL || read->more != NULL || fd < 0)
        return false;
    part->reading = reading;
    part->end_page = reading->location.pages;
    reading->busy++;
    if (read->instead(read, fd, reading_offset(reading, 0),
                      reading->location.pages * STORE_PAGE_BYTES))
        return reading->instead = true;
    reading->busy--;
    return false;
}

/* What came another way does not hold. Whether the drive is to blame is for the store to see. */
static void read_again(struct store_reading *reading, struct store_read *read)
{
    reading->instead = reading->damaged_copy = reading->pieces_hold = reading->tail_landed = false;
    reading->record = (struct store_record){0};
    reading->landed_page = 0;
    read->instead_wrong = true;
    read_part(reading, 0, 0, reading->location.pages);
}

void store_read_came(struct store_read *read, bool came)
{
    struct store_reading *reading = reading_of(read);

    check(reading->magic == STORE_READ_MAGIC && reading->busy == 1);
    reading->instead = came;
    if (came)
        store_read_done(&reading->part[0].op);
    else
        read_part_start(reading, read, &reading->part[0]);
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
static void read_parts(struct store_reading *reading)
{
    uint32_t pages = read_part_pages(reading->location.pages);

    for (uint32_t i = 1; i < STORE_READ_PARTS && reading->asked_page < reading->tail_page; i++) {
        uint32_t page = reading->asked_page;
        uint32_t end = page + pages + (page == 0);

        if (reading->part[i].end_page != 0)
            continue;
        if (end + pages / 2 > reading->tail_page)
            end = reading->tail_page;
        reading->asked_page = end;
        read_part(reading, i, page, end);
    }
}

static_assert(STORE_READ_SPLIT_BYTES / STORE_PAGE_BYTES >= READ_PIECE_PAGES * 3 / 2 + 4,
              "what is split has two parts before its tail");

/* Gives the parts back that are in memory without a gap before them. */
static void read_landed(struct store_reading *reading)
{
    for (uint32_t i = 0; i < STORE_READ_PARTS; i++) {
        struct store_read_part *part = &reading->part[i];

        if (part->end_page == 0 || loop_op_busy(&part->op) || part->page != reading->landed_page)
            continue;
        reading->landed_page = part->end_page;
        part->end_page = 0;
        i = UINT32_MAX; /* from the first one again: the next may be there */
    }
}

/* A part is in memory, or the device refused it. */
static void store_read_done(struct loop_op *op)
{
    struct store_read_part *part = container_of(op, struct store_read_part, op);
    struct store_reading *reading = part->reading;
    struct store_read *read = read_of(reading);
    struct store *store = reading->store;

    reading->busy--;
    if (reading->device_err == ICMS_OK)
        reading->device_err = op->err;
    if (reading->err == ICMS_OK)
        reading->err = op->err;
    if (reading->err == ICMS_OK && reading->asked_page < reading->tail_page && store->down)
        reading->err = ICMS_DRIVE_DOWN;
    if (reading->err == ICMS_OK) {
        reading->tail_landed = reading->tail_landed || part == &reading->part[0];
        read_landed(reading);
        read_parts(reading); /* the device goes on while this thread verifies */
        if (!read_verify(reading, read))
            reading->err = ICMS_MISS;
        if (reading->instead && (reading->err != ICMS_OK || reading->damaged_copy)) {
            reading->err = ICMS_OK;
            read_again(reading, read);
            return;
        }
    }
    if (reading->busy == 0) {
        read_finish(reading);
    } else if (reading->err == ICMS_OK && reading->pieces_hold &&
               reading->crc.done > read->good_bytes && reading->crc.done < read->value_bytes) {
        read->good_bytes = reading->crc.done;
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
    struct store_reading *reading = reading_of(read);

    check(store->magic == STORE_MAGIC && read->done != NULL);
    if (read->volume >= store->volume_count || read->memory == NULL ||
        (uintptr_t)read->memory % STORE_PAGE_BYTES != 0 || read->key.length > LIMIT_KEY_BYTES)
        return ICMS_INVALID;
    if (read->key.length == 0)
        return ICMS_KEY_SIZE;
    memset(reading, 0, sizeof(*reading));
    reading->magic = STORE_READ_MAGIC;
    reading->store = store;
    read->value = NULL;
    read->value_bytes = 0;
    read->record = 0;
    read->good_bytes = 0;
    read->instead_wrong = false;
    if (store->down) {
        read_answer(reading, ICMS_DRIVE_DOWN, ICMS_MISS_DRIVE_DOWN);
        return ICMS_OK;
    }
    if (!store_index_find(store->index, read->volume, &read->key, &reading->location) ||
        reading->location.damaged) {
        read_answer(reading, ICMS_MISS, store_miss_reason(store, read->volume, &read->key));
        return ICMS_OK;
    }
    if ((uint64_t)reading->location.pages * STORE_PAGE_BYTES > read->memory_bytes) {
        read_answer(reading, ICMS_VALUE_SIZE, ICMS_MISS_NONE);
        return ICMS_OK;
    }
    read->record = store_record_id(store, &reading->location);
    reading->nonce = store->segments[reading->location.segment].nonce;
    store_accessed(store, &store->segments[reading->location.segment], read->volume, &read->key);
    store->segments[reading->location.segment].pins++;
    store->reads++;
    store->read_ns = loop_now_ns(store->loop);
    if (read->more != NULL && reading->location.pages >= STORE_READ_SPLIT_BYTES / STORE_PAGE_BYTES)
        reading->tail_page = read_tail_page(reading->location.pages);
    if (read_instead(reading, read))
        return ICMS_OK;
    read_part(reading, 0, reading->tail_page, reading->location.pages);
    read_parts(reading);
    return ICMS_OK;
}

/* ---- flush ------------------------------------------------------------------------------------
 */

static void store_flush_done(struct loop_op *op)
{
    struct store_flushing *flushing = container_of(op, struct store_flushing, op);
    struct store_flush *flush =
        container_of((uint64_t *)(void *)flushing, struct store_flush, private_words);

    flush->err = store_answer(op, "store.flush");
    store_overhead_outcome(flushing->store, flush->err, "flush", STORE_ERROR_NOWHERE);
    flush->done(flush);
}

icms_err store_flush(struct store *store, struct store_flush *flush)
{
    struct store_flushing *flushing = (struct store_flushing *)(void *)flush->private_words;

    check(store->magic == STORE_MAGIC && flush->done != NULL);
    if (store->down)
        return ICMS_DRIVE_DOWN;
    *flushing = (struct store_flushing){.store = store};
    loop_file_flush(store->loop, &flushing->op, store->file, store_flush_done);
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
