/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reclaim: new lives for segments, ahead of need, and evictions for quotas of volumes that share a
 * stream. One job at a time.
 *
 * A new life of a segment, FREE or SEALED -> RENEWING -> READY:
 *   reclaim_renew      the new header is written over the old one; it counts the evictions
 *   store_life_begun   it is durable: an open finds an empty life. An empty dead map is written
 *   store_life_mapped  the life before is over, without the header, too
 *   reclaim_entries    its blocks leave the index: those that its summary names, or, without a good
 *                      one, those that a sweep of the index finds
 *   store_life_ready   a footer without records is written; the device may be told what is free
 *
 * An eviction for a quota, in the oldest segment that has blocks of the volume:
 *   reclaim_entries    its blocks of that volume, some at a time, are mutations (MUTATION_EVICT),
 *                      until the volume has room
 *
 * Loop's thread. Invariants: blocks of the life before are read until their eviction is durable,
 * and none of their keys is stored elsewhere without a kill before; no record of them is killed
 * while the segment is RENEWING, so the number in the header is the number that is evicted. A crash
 * at any step leaves the life before or an empty one. Nobody knows what a write that failed left on
 * flash: it is repeated (meta.c), and no other life begins before it succeeded, so at most one has
 * begun.
 */
#include <math.h>

#include "store/store_int.h"

/* ---- which segment ----------------------------------------------------------------------------
 */

/* How far over its share a stream is; segments of volumes that are not configured, or retired, go
 * first. */
static double stream_excess(const struct store *store, uint32_t stream)
{
    double held = store->streams[stream].segment_count * (double)store->super.segment_bytes;
    double share = 0;

    for (uint32_t i = 0; stream != STORE_STRANGERS && i < store->volume_count; i++) {
        if (store->volumes[i].stream == stream)
            share += store_volume_share(store, i);
    }
    return share > 0 ? held / share : INFINITY;
}

static bool segment_may_go(const struct store_segment *segment)
{
    return segment->state == SEGMENT_SEALED && segment->kills == 0;
}

/* The sealed segment of a stream whose last access is oldest; NULL: none may go. */
static struct store_segment *stream_victim(struct store *store, uint32_t stream)
{
    struct store_segment *best = NULL;

    list_for_each (link, &store->streams[stream].segments) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment_may_go(segment) &&
            (best == NULL || policy_before(&segment->recency, &best->recency)))
            best = segment;
    }
    return best;
}

/* The segment to evict: of the stream that is most over its share. NULL: none may go. */
static struct store_segment *reclaim_victim(struct store *store)
{
    struct store_segment *best = NULL;
    double best_excess = -1;

    for (uint32_t i = 0; i < STORE_STREAMS; i++) {
        struct store_segment *segment;
        double excess;

        if (list_empty(&store->streams[i].segments))
            continue;
        excess = stream_excess(store, i);
        if (excess <= best_excess)
            continue;
        segment = stream_victim(store, i);
        if (segment == NULL)
            continue;
        best = segment;
        best_excess = excess;
    }
    return best;
}

/* A free segment, or NULL. used: one that the device keeps the records of. */
static struct store_segment *reclaim_free(struct store *store, bool used)
{
    list_for_each (link, &store->free) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (!used || segment->sequence != 0)
            return segment;
    }
    return NULL;
}

/* ---- the end of a job -------------------------------------------------------------------------
 */

static void reclaim_end(struct store *store)
{
    store->reclaim.segment = NULL;
    store->run(store);
}

/* ---- evictions --------------------------------------------------------------------------------
 */

static bool reclaim_is_whole(const struct store *store)
{
    return store->reclaim.volume == STORE_ALL_VOLUMES;
}

static uint64_t quota_evicting_bytes(const struct store_reclaim *reclaim)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < STORE_QUOTA_EVICTIONS; i++) {
        if (reclaim->mutations[i].magic == STORE_MUTATION_MAGIC)
            bytes += (uint64_t)reclaim->mutations[i].target.pages * STORE_PAGE_BYTES;
    }
    return bytes;
}

static void reclaim_evicted(struct store *store);

/* Evicts one block for a quota; false: enough was evicted, or as many as go at a time, or the drive
 * is out of service. */
static bool quota_evict(struct store *store, const struct store_block *block)
{
    struct store_reclaim *reclaim = &store->reclaim;
    const struct store_volume *volume = &store->volumes[reclaim->volume];

    if (block->volume != reclaim->volume || block->location.damaged)
        return true;
    if (store->down || store_quota_is_fine(volume, quota_evicting_bytes(reclaim)))
        return false;
    for (uint32_t i = 0; i < STORE_QUOTA_EVICTIONS; i++) {
        if (reclaim->mutations[i].magic == STORE_MUTATION_MAGIC)
            continue;
        if (store_evict_start(store, &reclaim->mutations[i], block, reclaim_evicted)) {
            reclaim->evicted = true;
            reclaim->evicting++;
        } else {
            reclaim->skipped = true;
        }
        return true;
    }
    return false;
}

/* ---- entries ----------------------------------------------------------------------------------
 */

static void life_footer_write(struct store *store);
static void reclaim_entries_run(struct store *store);

/* All of its blocks were seen. */
static void reclaim_entries_end(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    struct store_segment *segment = reclaim->segment;

    if (!reclaim_is_whole(store)) {
        reclaim->segment = NULL;
        if (!reclaim->skipped)
            segment->volumes &= ~store_volume_bit(reclaim->volume);
        if (!reclaim->skipped || reclaim->evicted)
            store->run(store); /* else the mutations that were in the way come here again */
        return;
    }
    check(segment->live_blocks == 0);
    segment->nonce = reclaim->life.nonce;
    store_dead_make(segment->nonce, store->segment_pages, store_segment_dead(store, segment));
    segment->sequence = reclaim->life.sequence;
    segment->recency = (struct policy_segment){0};
    store->stranger_segments -= segment->strangers;
    segment->strangers = false;
    segment->evicted = 0;
    segment->volumes = 0;
    life_footer_write(store);
}

/* Makes entries of a part of the blocks that are in the index and lie in the segment. */
static void store_reclaim_sweep(struct loop_msg *msg)
{
    struct store *store = container_of(msg, struct store, reclaim.msg);
    struct store_reclaim *reclaim = &store->reclaim;
    uint32_t number = store_segment_number(store, reclaim->segment);
    uint32_t end = reclaim->sweep_cursor + STORE_SWEEP_STEPS;
    struct store_block block;

    while (store_index_next(store->index, &reclaim->sweep_cursor, end - reclaim->sweep_cursor,
                            &block)) {
        struct store_record record = {
            .key = block.key, .volume = store->volumes[block.volume].uuid, .value_bytes = 1};

        if (block.location.segment == number &&
            (reclaim_is_whole(store) || block.volume == reclaim->volume))
            (void)store_summary_add(reclaim->summary, &record, block.location.page);
    }
    if (reclaim->sweep_cursor < store_index_end(store->index))
        loop_send(store->loop, &reclaim->msg, store_reclaim_sweep);
    else
        reclaim_entries_run(store);
}

static void reclaim_sweep(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;

    reclaim->summary->count = reclaim->summary->volume_count = 0;
    reclaim->entry = reclaim->sweep_cursor = 0;
    loop_send(store->loop, &reclaim->msg, store_reclaim_sweep);
}

static void store_reclaim_read_done(struct loop_op *op)
{
    struct store *store = container_of(op, struct store, reclaim.op);
    struct store_reclaim *reclaim = &store->reclaim;
    bool good = op->err == ICMS_OK && store_summary_load(store, reclaim->segment, reclaim->summary);
    uint64_t offset = store_segment_offset(
        store, reclaim->segment, store->segment_pages - reclaim->segment->summary_pages - 1);

    store_read_outcome(store, op->err, store_error_at("read of a summary", op->err, offset));
    store_damage_add(store, "summary", offset, op->err == ICMS_OK && !good);
    if (good)
        reclaim_entries_run(store);
    else
        reclaim_sweep(store);
}

static void reclaim_entries(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    struct store_segment *segment = reclaim->segment;
    uint32_t pages = segment->summary_pages + 1;

    reclaim->entry = 0;
    reclaim->skipped = reclaim->evicted = false;
    reclaim->open = segment->summary != NULL;
    if (segment->live_blocks == 0)
        reclaim_entries_end(store);
    else if (reclaim->open)
        reclaim_entries_run(store);
    else if (segment->summary_pages == STORE_NO_SUMMARY || fault_hit("store.reclaim"))
        reclaim_sweep(store);
    else
        loop_file_read(store->loop, &reclaim->op, store->file,
                       store_segment_offset(store, segment, store->segment_pages - pages),
                       reclaim->summary->pages, pages * STORE_PAGE_BYTES, store_reclaim_read_done);
}

/* The block that an entry names; false: it is not in the index, or elsewhere. */
static bool reclaim_find(const struct store *store, const struct store_entry_df *df, int volume,
                         struct store_block *out_block)
{
    struct store_record record;
    uint32_t page;
    uint8_t row;

    if (volume < 0)
        return false;
    check(store_entry_check(df, store->segment_pages, &record, &page, &row) == ICMS_OK);
    out_block->volume = (uint32_t)volume;
    out_block->key = record.key;
    return store_index_find(store->index, out_block->volume, &record.key, &out_block->location) &&
           out_block->location.segment == store_segment_number(store, store->reclaim.segment) &&
           out_block->location.page == page;
}

static void store_reclaim_go_on(struct loop_msg *msg)
{
    reclaim_entries_run(container_of(msg, struct store, reclaim.msg));
}

/* Evicts the blocks of the entries, from the one on where it was: in slices, or until evictions for
 * a quota have to be waited for. */
static void reclaim_entries_run(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;
    const struct store_summary *summary =
        reclaim->open ? reclaim->segment->summary : reclaim->summary;
    uint32_t end = reclaim->entry + STORE_RECLAIM_STEPS;
    int rows[STORE_SEGMENT_VOLUMES];

    for (uint32_t i = 0; summary != NULL && i < summary->volume_count; i++)
        rows[i] = store_volume_find(store, &summary->volume[i]);
    for (; summary != NULL && reclaim->entry < summary->count; reclaim->entry++) {
        const struct store_entry_df *df = &summary->pages[reclaim->entry / STORE_SUMMARY_ENTRIES]
                                               .entry[reclaim->entry % STORE_SUMMARY_ENTRIES];
        struct store_block block;

        if (reclaim->entry == end && reclaim_is_whole(store)) {
            loop_send(store->loop, &reclaim->msg, store_reclaim_go_on);
            return;
        }
        if (!reclaim_find(store, df, rows[df->volume], &block))
            continue;
        if (reclaim_is_whole(store)) {
            store_segment_evict(store, &block);
        } else if (!quota_evict(store, &block)) {
            if (reclaim->evicting == 0)
                reclaim_end(store);
            return;
        }
    }
    if (reclaim->evicting > 0)
        return;
    if (summary == NULL)
        reclaim_end(store); /* sealed meanwhile: the next job reads the rest */
    else if (reclaim_is_whole(store) && reclaim->segment->live_blocks > 0)
        reclaim_sweep(store); /* the entries did not name all of them */
    else
        reclaim_entries_end(store);
}

static void reclaim_evicted(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;

    check(reclaim->evicting > 0);
    if (--reclaim->evicting > 0)
        return;
    if (store->down)
        reclaim_end(store);
    else
        reclaim_entries_run(store);
}

/* ---- a new life -------------------------------------------------------------------------------
 */

/* Writes reclaim->page_memory at a page of the segment. */
static void life_write(struct store *store, uint32_t page, uint32_t pages, bool flush,
                       void (*done)(struct store_meta *meta, icms_err err))
{
    struct store_reclaim *reclaim = &store->reclaim;

    check(reclaim->segment->state == SEGMENT_RENEWING);
    reclaim->write =
        (struct store_meta_write){.offset = store_segment_offset(store, reclaim->segment, page),
                                  .memory = reclaim->page_memory,
                                  .bytes = pages * STORE_PAGE_BYTES};
    reclaim->meta = (struct store_meta){.what = "new life of a segment",
                                        .fault = "store.header",
                                        .writes = &reclaim->write,
                                        .count = 1,
                                        .flush = flush,
                                        .done = done};
    store_meta_start(store, &reclaim->meta);
}

/* A device that does not take discards is not asked again; that is no fault of it. */
static void store_life_discarded(struct loop_op *op)
{
    struct store *store = container_of(op, struct store, discard.op);
    struct store_discard *discard = &store->discard;
    struct store_segment *segment = discard->segment;

    check(segment != NULL && segment->state == SEGMENT_DISCARDING);
    discard->segment = NULL;
    discard->next_ns = loop_now_ns(store->loop) + STORE_DISCARD_PAUSE_NS;
    segment->state = SEGMENT_READY;
    if (op->err == ICMS_OK)
        counter_add(&store->stats.discarded_bytes,
                    (uint64_t)store_segment_record_pages(store->segment_pages) * STORE_PAGE_BYTES);
    if (op->err == ICMS_UNSUPPORTED)
        discard->on = false;
    else
        store_overhead_outcome(store, op->err, "discard of a segment",
                               store_segment_offset(store, segment, 0));
    store->run(store);
}

static bool discard_may_begin(const struct store *store)
{
    const struct store_discard *discard = &store->discard;

    return discard->on && discard->segment == NULL && loop_now_ns(store->loop) >= discard->next_ns;
}

/* The device is told that the segment is empty, so that it need not keep what it held until that is
 * written over. Nothing between header and footer of an empty life is looked at, so what a
 * discarded page reads as does not matter. Only what the opener can do without is taken, and only
 * what nobody reads. Reclaim goes on beside it. A file keeps the space that it was promised. */
static void life_discard(struct store *store, struct store_segment *segment)
{
    uint32_t first = store_first_page(store->segment_pages);

    if (!store->reclaim.used || segment->pins > 0 || !discard_may_begin(store) ||
        store->ready_count <= store->free_low_mark)
        return;
    store->discard.segment = segment;
    segment->state = SEGMENT_DISCARDING;
    loop_file_discard(store->loop, &store->discard.op, store->file,
                      store_segment_offset(store, segment, first),
                      (uint64_t)store_segment_record_pages(store->segment_pages) * STORE_PAGE_BYTES,
                      store_life_discarded);
}

/* Its footer is on flash. */
static void store_life_ready(struct store_meta *meta, icms_err err)
{
    struct store *store = meta->store;

    if (err == ICMS_OK) {
        store_segment_ready(store, store->reclaim.segment);
        life_discard(store, store->reclaim.segment);
    }
    reclaim_end(store);
}

static void life_footer_write(struct store *store)
{
    struct store_reclaim *reclaim = &store->reclaim;

    store_footer_make(&store->super.drive, &reclaim->life, 0, NULL, 0, reclaim->page_memory);
    life_write(store, store->segment_pages - 1, 1, false, store_life_ready);
}

/* The life before is over. */
static void store_life_mapped(struct store_meta *meta, icms_err err)
{
    struct store *store = meta->store;

    if (err != ICMS_OK) {
        reclaim_end(store);
        return;
    }
    store->evictions_ended = store->reclaim.life.evictions;
    reclaim_entries(store);
}

/* Its header is durable. */
static void store_life_begun(struct store_meta *meta, icms_err err)
{
    struct store *store = meta->store;
    struct store_reclaim *reclaim = &store->reclaim;
    struct store_dead_df *map = reclaim->page_memory;

    if (err != ICMS_OK) {
        reclaim_end(store);
        return;
    }
    memset(map, 0, (size_t)store->map_pages * STORE_PAGE_BYTES);
    store_dead_make(reclaim->life.nonce, store->segment_pages, map);
    store_dead_make(reclaim->life.nonce, store->segment_pages,
                    map + store_dead_sectors(store->segment_pages));
    life_write(store, 1, store->map_pages, false, store_life_mapped);
}

/* Begins a new life of a segment: FREE, or SEALED, whose blocks are evicted. */
static void reclaim_renew(struct store *store, struct store_segment *segment)
{
    struct store_reclaim *reclaim = &store->reclaim;

    check(segment->writes == 0 && segment->kills == 0);
    if (segment->state == SEGMENT_FREE) {
        list_remove(&segment->link);
        store->free_count--;
        store_free_count_note(store);
    } else {
        store_relocate_for(store, segment);
        store_stream_remove(store, segment);
    }
    reclaim->segment = segment;
    reclaim->volume = STORE_ALL_VOLUMES;
    reclaim->life = (struct store_life){.segment = store_segment_number(store, segment),
                                        .sequence = ++store->sequence,
                                        .evictions = store->evictions_ended + segment->live_blocks -
                                                     segment->marks + segment->evicted};
    loop_entropy(store->loop, &reclaim->life.nonce, sizeof(reclaim->life.nonce));
    reclaim->used = segment->sequence != 0;
    segment->state = SEGMENT_RENEWING;
    store_header_make(&store->super.drive, &reclaim->life, reclaim->page_memory);
    life_write(store, 0, 1, true, store_life_begun);
}

/* ---- what is short ----------------------------------------------------------------------------
 */

/* The oldest segment of the shared stream that may hold live blocks of a volume. */
static struct store_segment *quota_oldest(const struct store *store, uint32_t volume)
{
    const struct store_stream *stream = &store->streams[STORE_SHARED];
    uint64_t bit = store_volume_bit(volume);

    list_for_each (link, &stream->segments) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if ((segment->volumes & bit) != 0)
            return segment;
    }
    return stream->open != NULL && (stream->open->volumes & bit) != 0 ? stream->open : NULL;
}

/* A segment that a volume had when its stream was taken (volume.c); NULL: none may go. */
static struct store_segment *quota_stranger(const struct store *store, uint32_t volume)
{
    list_for_each (link, &store->streams[STORE_STRANGERS].segments) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->volume == volume && segment_may_go(segment))
            return segment;
    }
    return NULL;
}

/* Makes space in one volume's quota; true when a job was begun. */
static bool quota_run(struct store *store, uint32_t number)
{
    struct store_volume *volume = &store->volumes[number];
    struct store_reclaim *reclaim = &store->reclaim;
    struct store_segment *segment;

    if (volume->stream != STORE_SHARED) {
        struct store_stream *stream = &store->streams[volume->stream];

        segment = stream_victim(store, volume->stream);
        if (segment != NULL)
            reclaim_renew(store, segment);
        else if (list_empty(&stream->segments) && stream->open != NULL &&
                 stream->open->summary->placed > 0)
            store_segment_seal(store, stream->open); /* the quota was lowered below a segment */
        return segment != NULL; /* else one is being sealed, and the end of that comes here again */
    }
    segment = quota_stranger(store, number);
    if (segment != NULL) {
        reclaim_renew(store, segment);
        return true;
    }
    segment = quota_oldest(store, number);
    if (segment == NULL)
        return false; /* all of it is being written; the ends of writes come here again */
    reclaim->segment = segment;
    reclaim->volume = number;
    reclaim_entries(store);
    return true;
}

/* Nothing sealed is left to give up: the fullest open segment is sealed early. */
static void reclaim_seal_one(struct store *store)
{
    struct store_segment *best = NULL;

    for (uint32_t i = 0; i < STORE_STREAMS; i++) {
        struct store_segment *open = store->streams[i].open;

        if (!list_empty(&store->streams[i].segments))
            return; /* one is being sealed already */
        if (open != NULL && open->summary->placed > 0 &&
            (best == NULL || open->summary->placed > best->summary->placed))
            best = open;
    }
    if (best != NULL)
        store_segment_seal(store, best);
}

/* Segments that were or are being opened ahead are a part of the reserve, half of it at most. */
static bool reserve_is_short(const struct store *store)
{
    const struct store_opener *opener = &store->opener;
    uint32_t ahead = store->next_count, half = store->reserve / 2;

    if (opener->segment != NULL && store->streams[opener->stream].open != NULL)
        ahead++;
    return store->ready_count + (ahead < half ? ahead : half) < store->reserve;
}

/* The segment that gets a new life next; NULL: none has to, or none can. */
static struct store_segment *reclaim_next(struct store *store)
{
    bool is_short = reserve_is_short(store), tight = store->tight;
    struct store_segment *segment = NULL;

    store->tight = false;
    if (!is_short && !tight) /* what is free is discarded, which wants an empty life */
        return discard_may_begin(store) ? reclaim_free(store, true) : NULL;
    if (!tight)
        segment = reclaim_free(store, false);
    if (segment == NULL)
        segment = reclaim_victim(store);
    if (segment == NULL && (tight || store->ready_count == 0))
        reclaim_seal_one(store);
    return segment;
}

void store_reclaim_run(struct store *store)
{
    struct store_segment *segment;
    struct list *link, *first = NULL;

    check(store->running);
    if (store->down || store->reclaim.segment != NULL)
        return;
    while ((link = list_first(&store->over)) != NULL && link != first) {
        struct store_volume *volume = container_of(link, struct store_volume, over_link);

        list_remove(link);
        if (store_quota_is_fine(volume, 0)) {
            store->run_again = true;
            continue;
        }
        list_push(&store->over, link); /* until it is, and behind the others */
        first = first == NULL ? link : first;
        if (quota_run(store, (uint32_t)(volume - store->volumes)))
            return;
    }
    segment = reclaim_next(store);
    if (segment != NULL)
        reclaim_renew(store, segment);
}
