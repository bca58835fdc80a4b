/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: what is alive in them, their opening and their sealing. Their new lives are in
 * reclaim.c, their kills in kill.c.
 *
 * Loop's thread. Invariants:
 * - A stream takes a segment that is READY and that no read pins. The copy of its header, over the
 *   footer without records, is on flash before its first record: a footer on flash always belongs
 * to the header's life or does not pass, and one damaged page never hides an open segment.
 * - The device is flushed between the records and their summary, so a summary names nothing that a
 *   power loss takes away.
 */
#include <stdlib.h>

#include "store/store_int.h"

/* ---- lists ------------------------------------------------------------------------------------
 */

void store_free_count_note(struct store *store)
{
    counter_set(&store->stats.segments_free, store->free_count + store->ready_count);
}

void store_segment_free(struct store *store, struct store_segment *segment)
{
    check(segment->live_blocks == 0 && segment->writes == 0);
    segment->state = SEGMENT_FREE;
    segment->volumes = 0;
    list_push(&store->free, &segment->link);
    store->free_count++;
    store_free_count_note(store);
}

void store_segment_ready(struct store *store, struct store_segment *segment)
{
    segment->state = SEGMENT_READY;
    list_push(&store->ready, &segment->link);
    store->ready_count++;
    store_free_count_note(store);
}

void store_stream_add(struct store *store, uint32_t stream, struct store_segment *segment)
{
    segment->stream = (uint8_t)stream;
    list_push(&store->streams[stream].segments, &segment->link);
    store->streams[stream].segment_count++;
}

void store_stream_remove(struct store *store, struct store_segment *segment)
{
    list_remove(&segment->link);
    store->streams[segment->stream].segment_count--;
}

/* ---- what is alive ----------------------------------------------------------------------------
 */

void store_segment_live_add(struct store *store, uint32_t volume,
                            const struct store_location *location)
{
    struct store_segment *segment = &store->segments[location->segment];
    uint64_t bytes = (uint64_t)location->pages * STORE_PAGE_BYTES;

    segment->live_blocks++;
    if (location->damaged) {
        segment->marks++;
        return;
    }
    segment->volumes |= store_volume_bit(volume);
    counter_add(&store->volumes[volume].blocks, 1);
    counter_add(&store->volumes[volume].bytes, bytes);
    counter_add(&store->stats.blocks, 1);
    counter_add(&store->stats.used_bytes, bytes);
}

/* When all of its records are dead, for good, it needs no eviction. */
static void segment_free_dead(struct store *store, struct store_segment *segment)
{
    if (segment->state != SEGMENT_SEALED || segment->live_blocks > 0 || segment->strangers)
        return;
    store_stream_remove(store, segment);
    store_segment_free(store, segment);
}

void store_segment_live_sub(struct store *store, uint32_t volume,
                            const struct store_location *location)
{
    struct store_segment *segment = &store->segments[location->segment];
    uint64_t bytes = (uint64_t)location->pages * STORE_PAGE_BYTES;

    check(segment->live_blocks > 0);
    segment->live_blocks--;
    if (location->damaged) {
        check(segment->marks > 0);
        segment->marks--;
    } else {
        check(store->volumes[volume].bytes >= bytes);
        counter_add(&store->volumes[volume].blocks, (uint64_t)-1);
        counter_add(&store->volumes[volume].bytes, -bytes);
        counter_add(&store->stats.blocks, (uint64_t)-1);
        counter_add(&store->stats.used_bytes, -bytes);
        if (!store->down)
            store_quota_give(store, &store->volumes[volume], bytes);
    }
    segment_free_dead(store, segment);
}

void store_segment_damage(struct store *store, const struct store_block *block)
{
    struct store_location mark = block->location;

    if (mark.damaged)
        return;
    mark.damaged = true;
    store_segment_live_add(store, block->volume, &mark);
    store_segment_live_sub(store, block->volume, &block->location);
    store_index_damage(store->index, block->volume, &block->key);
    store_index_tell(store, block->volume, &block->key, false);
}

/* What recovery evicts has no age. */
static void segment_age_count(struct store *store, const struct store_segment *segment)
{
    uint64_t since_ns = segment->since_ns != 0 ? segment->since_ns : store->since_ns;
    uint64_t now_ns = loop_now_ns(store->loop); /* of a loop that was not started: the past */

    if (store->since_ns != 0)
        hist_add(&store->evicted_age_ns, now_ns > since_ns ? now_ns - since_ns : 0);
}

void store_segment_evict(struct store *store, const struct store_block *block)
{
    struct store_location old;

    check(store_index_remove(store->index, block->volume, &block->key, &old));
    check(old.segment == block->location.segment && old.page == block->location.page);
    if (!old.damaged) { /* a mark stood for nothing that could be read */
        policy_evicted(store->policy, store_policy_hash(block->volume, &block->key));
        counter_add(&store->volumes[block->volume].evictions, 1);
        counter_add(&store->stats.evictions, 1);
        segment_age_count(store, &store->segments[old.segment]);
        store_index_tell(store, block->volume, &block->key, false);
    }
    store_segment_live_sub(store, block->volume, &old);
}

void store_segment_unpin(struct store *store, struct store_segment *segment)
{
    check(segment->pins > 0);
    segment->pins--;
    if (segment->pins == 0 && segment->state == SEGMENT_READY)
        store->run(store);
}

/* ---- opening ----------------------------------------------------------------------------------
 */

struct store_life store_segment_life(const struct store *store, const struct store_segment *segment)
{
    return (struct store_life){.segment = store_segment_number(store, segment),
                               .nonce = segment->nonce,
                               .sequence = segment->sequence,
                               .evictions = store->evictions_ended};
}

struct store_summary *store_summary_take(struct store *store, struct store_segment *segment)
{
    struct store_summary *summary =
        container_of(list_pop(&store->summaries), struct store_summary, link);

    summary->segment = segment;
    summary->count = summary->placed = summary->volume_count = 0;
    segment->summary = summary;
    return summary;
}

/* The copy of its header is on flash, or the drive is out of service. */
static void store_opener_done(struct store_meta *meta, icms_err err)
{
    struct store *store = meta->store;
    struct store_opener *opener = &store->opener;
    struct store_segment *segment = opener->segment;
    struct store_stream *stream = &store->streams[opener->stream];

    check(segment != NULL && segment->state == SEGMENT_OPENING && stream->next == NULL);
    opener->segment = NULL;
    if (err != ICMS_OK)
        return;
    segment->state = SEGMENT_OPEN;
    segment->since_ns = loop_now_ns(store->loop);
    segment->next_page = store_first_page(store->segment_pages);
    if (stream->open == NULL)
        stream->open = segment;
    else
        stream->next = segment;
    store->next_count += stream->next != NULL;
    counter_add(&store->stats.segments_open, 1);
    store->run(store); /* a stream that still wants one says so again */
}

/* The first ready segment that nothing reads or discards. */
static struct store_segment *opener_segment(struct store *store)
{
    list_for_each (link, &store->ready) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->state == SEGMENT_READY && segment->pins == 0)
            return segment;
    }
    return NULL;
}

void store_opener_run(struct store *store)
{
    struct store_opener *opener = &store->opener;
    struct store_segment *segment;
    struct store_stream *stream;
    struct list *wants = NULL;
    struct store_life life;

    if (opener->segment != NULL || store->down || list_empty(&store->summaries))
        return;
    /* the last ready one is not taken ahead */
    if (!list_empty(&store->wanting))
        wants = &store->wanting;
    else if (!list_empty(&store->ahead) && store->ready_count > 1)
        wants = &store->ahead;
    segment = wants != NULL ? opener_segment(store) : NULL;
    if (segment == NULL)
        return;
    stream = container_of(list_pop(wants), struct store_stream, link);
    list_remove(&segment->link);
    store->ready_count--;
    store_free_count_note(store);
    segment->state = SEGMENT_OPENING;
    segment->stream = (uint8_t)(stream - store->streams);
    segment->volume = STORE_NO_VOLUME;
    (void)store_summary_take(store, segment);
    opener->segment = segment;
    opener->stream = segment->stream;
    life = store_segment_life(store, segment);
    store_header_make(&store->super.drive, &life, opener->header);
    opener->write = (struct store_meta_write){
        .offset = store_segment_offset(store, segment, store->segment_pages - 1),
        .memory = opener->header,
        .bytes = STORE_PAGE_BYTES,
        .hint = store_segment_hint(store, segment)};
    opener->meta = (struct store_meta){.what = "write of a header",
                                       .fault = "store.header",
                                       .writes = &opener->write,
                                       .count = 1,
                                       .done = store_opener_done};
    store_meta_start(store, &opener->meta);
}

/* ---- summaries and sealing --------------------------------------------------------------------
 */

bool store_summary_pool_add(struct store *store)
{
    struct store_summary *summary = calloc(1, sizeof(*summary));

    if (summary == NULL)
        return false;
    summary->pages = store_pages_new(store, store_summary_pages(store->segment_pages) + 1);
    if (summary->pages == NULL) {
        free(summary);
        return false;
    }
    summary->store = store;
    list_push(&store->summaries, &summary->link);
    return true;
}

/* The row of a volume; volume_count when it has none. */
static uint32_t summary_row(const struct store_summary *summary, const struct uuid *volume)
{
    uint32_t row = 0;

    while (row < summary->volume_count && !uuid_equal(&summary->volume[row], volume))
        row++;
    return row;
}

bool store_summary_add(struct store_summary *summary, const struct store_record *record,
                       uint32_t page)
{
    uint32_t at = summary->count, row = summary_row(summary, &record->volume);

    if (row == STORE_SEGMENT_VOLUMES)
        return false;
    if (row == summary->volume_count)
        summary->volume[summary->volume_count++] = record->volume;
    check(at < summary->store->segment_pages);
    summary->count++;
    store_entry_make(record, page, (uint8_t)row,
                     &summary->pages[at / STORE_SUMMARY_ENTRIES].entry[at % STORE_SUMMARY_ENTRIES]);
    return true;
}

bool store_segment_fits(const struct store *store, const struct store_segment *segment,
                        uint32_t volume, uint32_t pages)
{
    const struct store_summary *summary = segment->summary;

    if (segment->next_page + pages + store_summary_pages(summary->placed + 1) + 1 >
        store->segment_pages)
        return false;
    /* records in flight may still bring rows of their own */
    return summary->volume_count + segment->writes < STORE_SEGMENT_VOLUMES ||
           summary_row(summary, &store->volumes[volume].uuid) < summary->volume_count;
}

uint32_t store_summary_make(struct store *store, struct store_summary *summary)
{
    struct store_segment *segment = summary->segment;
    uint32_t pages = store_summary_pages(summary->count);
    uint32_t first = store->segment_pages - 1 - pages;
    struct store_life life = store_segment_life(store, segment);

    for (uint32_t i = 0; i < pages; i++) {
        uint32_t left = summary->count - i * STORE_SUMMARY_ENTRIES;

        store_summary_finish(segment->nonce, first + i,
                             left < STORE_SUMMARY_ENTRIES ? left : STORE_SUMMARY_ENTRIES,
                             &summary->pages[i]);
    }
    store_footer_make(&store->super.drive, &life, summary->count, summary->volume,
                      summary->volume_count,
                      (struct store_footer_df *)(void *)&summary->pages[pages]);
    return pages;
}

/* One page of a summary, of which the others are known. */
static bool summary_page_load(const struct store *store, const struct store_segment *segment,
                              const struct store_summary *summary, uint32_t i)
{
    const struct store_summary_df *df = &summary->pages[i];
    uint32_t first = store->segment_pages - 1 - segment->summary_pages, count;
    uint32_t left = summary->count - i * STORE_SUMMARY_ENTRIES;

    if (store_summary_check(segment->nonce, first + i, df, &count) != ICMS_OK ||
        count != (left < STORE_SUMMARY_ENTRIES ? left : STORE_SUMMARY_ENTRIES))
        return false;
    for (uint32_t n = 0; n < count; n++) {
        struct store_record record;
        uint32_t page;
        uint8_t row;

        if (store_entry_check(&df->entry[n], store->segment_pages, &record, &page, &row) !=
                ICMS_OK ||
            row >= summary->volume_count)
            return false;
    }
    return true;
}

bool store_summary_load(const struct store *store, const struct store_segment *segment,
                        struct store_summary *summary)
{
    const struct store_footer_df *footer =
        (const struct store_footer_df *)(const void *)&summary->pages[segment->summary_pages];
    struct store_life life;

    if (store_footer_check(&store->super.drive, store_segment_number(store, segment),
                           store->segment_pages, footer, &life) != ICMS_OK ||
        life.nonce != segment->nonce || le32_get(footer->summary_pages) != segment->summary_pages)
        return false;
    summary->count = le32_get(footer->records);
    summary->volume_count = le32_get(footer->volumes);
    memcpy(summary->volume, footer->volume, summary->volume_count * sizeof(summary->volume[0]));
    for (uint32_t i = 0; i < segment->summary_pages; i++)
        if (!summary_page_load(store, segment, summary, i))
            return false;
    return true;
}

/* Its summary and its footer are on flash, or a scan has to find its records. */
static void store_seal_done(struct store_meta *meta, icms_err err)
{
    struct store_summary *summary = container_of(meta, struct store_summary, meta);
    struct store_segment *segment = summary->segment;
    struct store *store = summary->store;

    check(segment->state == SEGMENT_SEALING && segment->summary == summary);
    segment->summary_pages =
        err == ICMS_OK ? store_summary_pages(summary->count) : STORE_NO_SUMMARY;
    segment->summary = NULL;
    segment->state = SEGMENT_SEALED;
    list_push(&store->summaries, &summary->link);
    segment_free_dead(store, segment);
    store->run(store);
}

/* Its records completed: they are flushed, then the summary and the footer are written in one go.
 * Not on a drive that is out of service: it may have a record that was neither published nor
 * killed, which only a scan finds. */
static void seal_start(struct store *store, struct store_segment *segment)
{
    struct store_summary *summary = segment->summary;
    uint32_t pages;

    if (store->down)
        return;
    pages = store_summary_make(store, summary);
    summary->write = (struct store_meta_write){
        .offset = store_segment_offset(store, segment, store->segment_pages - 1 - pages),
        .memory = summary->pages,
        .bytes = (pages + 1) * STORE_PAGE_BYTES,
        .hint = store_segment_hint(store, segment)};
    summary->meta = (struct store_meta){.what = "write of a summary",
                                        .flush_first = true,
                                        .flush_fault = "store.seal",
                                        .writes = &summary->write,
                                        .count = 1,
                                        .once = true,
                                        .done = store_seal_done};
    store_meta_start(store, &summary->meta);
}

void store_segment_seal(struct store *store, struct store_segment *segment)
{
    struct store_stream *stream = &store->streams[segment->stream];

    check(segment->state == SEGMENT_OPEN && stream->open == segment);
    store->next_count -= stream->next != NULL;
    stream->open = stream->next;
    stream->next = NULL;
    store_stream_add(store, segment->stream, segment);
    segment->state = SEGMENT_SEALING;
    counter_add(&store->stats.segments_open, (uint64_t)-1);
    if (segment->writes == 0)
        seal_start(store, segment);
}

void store_segment_written(struct store *store, struct store_segment *segment)
{
    check(segment->writes > 0);
    segment->writes--;
    if (segment->state == SEGMENT_SEALING && segment->writes == 0)
        seal_start(store, segment);
}
