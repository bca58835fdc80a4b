/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutations: store_write, store_delete and evictions for a quota, from the call to done.
 *
 *   store_write   -> mutation_start: MUTATION_KEY while an earlier mutation of the key is in
 * flight,
 *                 -> MUTATION_PARKED in the queue of its volume,
 *   store_run     -> write_try: capacity of the open segment, the index, the quota, the device,
 *                 -> MUTATION_DEVICE: one device write from the caller's memory,
 *   store_mutation_written -> MUTATION_KILL when the key has an older record, or the write failed,
 *   mutation_published -> index, summary, live bytes,
 *   mutation_end  -> the next mutation of the key; done.
 *
 *   store_delete  -> MUTATION_KEY, then MUTATION_KILL at once.
 *
 * Loop's thread. Invariants: mutations of one key run one after the other; a key that is stored or
 * deleted has no other record that counts when done is called; a record that could not be written
 * is killed like one that was deleted, since it may be on flash all the same; what is placed has
 * its index entry and its summary entry promised, so a completed write cannot fail; live and placed
 * bytes of all drives that share it never exceed the volume's quota (quota.c).
 */
#include "base/hash.h"
#include "store/store_int.h"

static struct store_write *mutation_write(struct store_mutation *mutation)
{
    check(mutation->magic == STORE_MUTATION_MAGIC && mutation->kind == MUTATION_WRITE);
    return container_of((uint64_t *)(void *)mutation, struct store_write, private_words);
}

static struct store_delete *mutation_delete(struct store_mutation *mutation)
{
    check(mutation->magic == STORE_MUTATION_MAGIC && mutation->kind == MUTATION_DELETE);
    return container_of((uint64_t *)(void *)mutation, struct store_delete, private_words);
}

/* ---- one mutation of a key at a time ----------------------------------------------------------
 */

static struct list *mutation_chain(struct store *store, uint32_t volume, const struct key *key)
{
    uint64_t hash =
        hash64_seed(key->bytes, sizeof(key->bytes), store->key_seed ^ hash64_mix(volume));

    return &store->keys[hash % STORE_KEY_CHAINS];
}

/* The first mutation of a key in its chain has the key, the others wait, oldest first. NULL: there
 * is none. */
static struct store_mutation *mutation_find(struct store *store, uint32_t volume,
                                            const struct key *key)
{
    list_for_each (link, mutation_chain(store, volume, key)) {
        struct store_mutation *mutation = container_of(link, struct store_mutation, key_link);

        if (mutation->volume == volume && key_equal(&mutation->key, key))
            return mutation;
    }
    return NULL;
}

static void mutation_park(struct store_mutation *mutation, bool front)
{
    struct store *store = mutation->store;
    struct store_volume *volume = &store->volumes[mutation->volume];

    mutation->state = MUTATION_PARKED;
    if (front)
        list_push_front(&volume->parked, &mutation->link);
    else
        list_push(&volume->parked, &mutation->link);
    if (list_empty(&volume->link))
        list_push(&store->parked, &volume->link);
}

static void mutation_unpark(struct store_mutation *mutation)
{
    struct store_volume *volume = &mutation->store->volumes[mutation->volume];

    list_remove(&mutation->link);
    if (list_empty(&volume->parked))
        list_remove(&volume->link);
}

static void mutation_init(struct store *store, struct store_mutation *mutation,
                          enum store_mutation_kind kind, uint32_t volume, const struct key *key)
{
    memset(mutation, 0, sizeof(*mutation));
    mutation->magic = STORE_MUTATION_MAGIC;
    mutation->store = store;
    mutation->kind = (uint8_t)kind;
    mutation->volume = volume;
    mutation->key = *key;
    list_init(&mutation->link);
    list_init(&mutation->key_link);
}

/* The first of its key is parked; store_run takes it from there. */
static void mutation_start(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    bool is_held = mutation_find(store, mutation->volume, &mutation->key) != NULL;

    list_push(mutation_chain(store, mutation->volume, &mutation->key), &mutation->key_link);
    mutation->state = MUTATION_KEY;
    if (is_held)
        return;
    /* a deletion needs no capacity, so it does not wait behind writes that do */
    mutation_park(mutation, mutation->kind == MUTATION_DELETE);
    store->run(store);
}

static void mutation_done(struct store_mutation *mutation)
{
    struct store *store = mutation->store;

    switch ((enum store_mutation_kind)mutation->kind) {
    case MUTATION_WRITE: {
        struct store_write *write = mutation_write(mutation);

        write->err = mutation->err;
        if (mutation->err == ICMS_OK && write->only_record == 0) {
            counter_add(&store->stats.writes, 1);
            counter_add(&store->stats.write_bytes, write->value_bytes);
        }
        mutation->magic = 0;
        write->done(write);
        break;
    }
    case MUTATION_DELETE: {
        struct store_delete *delete = mutation_delete(mutation);

        delete->err = mutation->err;
        counter_add(&store->stats.deletes, 1);
        mutation->magic = 0;
        delete->done(delete);
        break;
    }
    case MUTATION_EVICT:
        mutation->magic = 0;
        mutation->evicted(store);
        break;
    }
}

/* Lets the next mutation of the key go on, answers, and forgets the mutation. */
static void mutation_end(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    struct store_mutation *next;

    list_remove(&mutation->key_link);
    next = mutation_find(store, mutation->volume, &mutation->key);
    if (next != NULL && next->state == MUTATION_KEY)
        mutation_park(next, true);
    mutation_done(mutation);
    store->run(store);
}

static void store_mutation_answer(struct loop_msg *msg)
{
    struct store_mutation *mutation = container_of(msg, struct store_mutation, msg);

    check(mutation->magic == STORE_MUTATION_MAGIC && mutation->state == MUTATION_ANSWER);
    mutation_end(mutation);
}

/* Gives back what the budget was charged for a record that is not written after all. */
static void mutation_refund(struct store_mutation *mutation)
{
    if (mutation->admitted)
        policy_admit_undo(mutation->store->policy, (uint64_t)mutation->pages * STORE_PAGE_BYTES);
    mutation->admitted = false;
}

/* The answer is known without the device. */
static void mutation_answer(struct store_mutation *mutation, icms_err err)
{
    mutation_refund(mutation);
    mutation->err = err;
    mutation->state = MUTATION_ANSWER;
    loop_send(mutation->store->loop, &mutation->msg, store_mutation_answer);
}

/* ---- the end of a write -----------------------------------------------------------------------
 */

/* The new record is the only one that counts: the index gets it. */
static void write_published(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    struct store_write *write = mutation_write(mutation);
    struct store_location old,
        location = {.segment = store_segment_number(store, mutation->segment),
                    .page = mutation->page,
                    .pages = mutation->pages};
    struct store_record record = {.key = mutation->key,
                                  .volume = store->volumes[mutation->volume].uuid,
                                  .value_bytes = write->value_bytes};
    uint64_t bytes = (uint64_t)mutation->pages * STORE_PAGE_BYTES;
    bool was_there;

    check(store_summary_add(mutation->segment->summary, &record, mutation->page));
    was_there = store_index_put(store->index, mutation->volume, &mutation->key, &location, &old);
    if (was_there)
        store_segment_live_sub(store, mutation->volume, &old);
    store_segment_live_add(store, mutation->volume, &location);
    if (!was_there || old.damaged)
        store_index_tell(store, mutation->volume, &mutation->key, true);
    store_recency(store, mutation->segment, mutation->volume, &mutation->key);
    policy_written(store->policy, store_policy_hash(mutation->volume, &mutation->key),
                   write->only_record == 0 ? bytes : 0);
    counter_add(&store->stats.device_write_bytes, bytes);
    counter_add(&store->stats.admitted_bytes, write->only_record == 0 ? bytes : 0);
}

/* The record is on flash and published, or dead. */
static void write_end(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    struct store_volume *volume = &store->volumes[mutation->volume];
    struct store_segment *segment = mutation->segment;
    uint64_t bytes = (uint64_t)mutation->pages * STORE_PAGE_BYTES;

    store->writes--;
    store->write_bytes -= bytes;
    volume->flight_bytes -= bytes;
    if (mutation->err != ICMS_OK || store->down)
        store_quota_give(store, volume, bytes);
    if (mutation->err == ICMS_OK) {
        write_published(mutation);
    } else {
        store_index_unreserve(store->index);
        mutation_refund(mutation);
    }
    store_segment_written(store, segment);
    mutation_end(mutation);
}

static void mutation_killed(struct store_mutation *mutation, icms_err err);

static void mutation_kill(struct store_mutation *mutation, const struct store_location *target)
{
    mutation->state = MUTATION_KILL;
    mutation->target = *target;
    mutation->killed = mutation_killed;
    store_kill_add(mutation);
}

/* Whether the one record that was to be replaced is gone: its segment was evicted while the write
 * or the kill was under way, and the block counts as evicted. */
static bool write_is_late(struct store_mutation *mutation)
{
    struct store_location old;

    return mutation_write(mutation)->only_record != 0 &&
           !store_index_find(mutation->store->index, mutation->volume, &mutation->key, &old);
}

/* The new record is not to count. */
static void write_kill_own(struct store_mutation *mutation, icms_err err)
{
    struct store_location own = {.segment =
                                     store_segment_number(mutation->store, mutation->segment),
                                 .page = mutation->page,
                                 .pages = mutation->pages};

    mutation->err = err;
    mutation_kill(mutation, &own);
}

static void store_mutation_written(struct loop_op *op)
{
    struct store_mutation *mutation = container_of(op, struct store_mutation, op);
    struct store *store = mutation->store;
    icms_err err = store_answer(op, "store.write");
    struct store_location old;

    check(mutation->magic == STORE_MUTATION_MAGIC && mutation->state == MUTATION_DEVICE);
    store_write_outcome(store, err,
                        (struct store_error){.what = "write of a value",
                                             .offset = store_segment_offset(
                                                 store, mutation->segment, mutation->page),
                                             .volume = mutation->volume,
                                             .key = mutation->key});
    if (err != ICMS_OK)
        write_kill_own(mutation, err);
    else if (write_is_late(mutation))
        write_kill_own(mutation, ICMS_MISS);
    else if (store_index_find(store->index, mutation->volume, &mutation->key, &old))
        mutation_kill(mutation, &old);
    else
        write_end(mutation);
}

/* ---- the end of a kill ------------------------------------------------------------------------
 */

/* A deletion or an eviction: the block leaves the index, where it is unless its segment was evicted
 * meanwhile. */
static void killed_removed(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    struct store_block block = {.volume = mutation->volume, .key = mutation->key};
    struct store_location old;

    if (!store_index_find(store->index, block.volume, &block.key, &block.location))
        return;
    if (mutation->kind == MUTATION_EVICT) {
        if (!block.location.damaged)
            store->segments[block.location.segment].evicted++;
        store_segment_evict(store, &block);
    } else {
        check(store_index_remove(store->index, block.volume, &block.key, &old));
        store_segment_live_sub(store, block.volume, &old);
        if (!old.damaged)
            store_index_tell(store, block.volume, &block.key, false);
    }
}

static void mutation_killed(struct store_mutation *mutation, icms_err err)
{
    check(mutation->magic == STORE_MUTATION_MAGIC && mutation->state == MUTATION_KILL);
    if (err != ICMS_OK)
        mutation->err = err;
    else if (!mutation->placed)
        killed_removed(mutation);
    if (mutation->placed && mutation->err == ICMS_OK && write_is_late(mutation))
        write_kill_own(mutation, ICMS_MISS);
    else if (mutation->placed)
        write_end(mutation);
    else
        mutation_end(mutation);
}

/* ---- placing ----------------------------------------------------------------------------------
 */

/* Makes the record in the caller's memory; the value is in place. */
static uint8_t *write_record(struct store_mutation *mutation)
{
    const struct store *store = mutation->store;
    const struct store_write *write = mutation_write(mutation);
    uint64_t nonce = mutation->segment->nonce;
    uint64_t tail = (uint64_t)mutation->pages * STORE_PAGE_BYTES - STORE_HEADER_BYTES;
    uint8_t *value = write->memory + STORE_HEADER_BYTES, *pieces = value + write->value_bytes;
    struct store_record record = {.key = mutation->key,
                                  .volume = store->volumes[mutation->volume].uuid,
                                  .value_bytes = write->value_bytes};
    struct store_value_crc crc;

    store_value_crc_begin(&crc, nonce, mutation->page);
    store_value_crc_add(&crc, value, record.value_bytes, pieces);
    record.value_crc = store_value_crc_end(&crc, pieces);
    pieces += sizeof(le32) * store_pieces(record.value_bytes);
    memset(pieces, 0, (size_t)(write->memory + tail - pieces));
    store_record_make(nonce, mutation->page, &record,
                      (struct store_record_df *)(void *)write->memory);
    memcpy(write->memory + tail, write->memory, STORE_HEADER_BYTES);
    return write->memory;
}

static_assert(sizeof(struct store_record_df) == STORE_HEADER_BYTES, "what callers leave in front");

static void write_place(struct store_mutation *mutation, struct store_segment *segment)
{
    struct store *store = mutation->store;
    uint64_t bytes = (uint64_t)mutation->pages * STORE_PAGE_BYTES;

    mutation->state = MUTATION_DEVICE;
    mutation->placed = true;
    mutation->segment = segment;
    mutation->page = segment->next_page;
    segment->next_page += mutation->pages;
    segment->summary->placed++;
    segment->writes++;
    store->writes++;
    store->write_bytes += bytes;
    store->volumes[mutation->volume].flight_bytes += bytes;
    loop_file_write(store->loop, &mutation->op, store->file, store_segment_hint(store, segment),
                    store_segment_offset(store, segment, mutation->page), write_record(mutation),
                    (uint32_t)bytes, store_mutation_written);
}

/* Whether the write budget allows it; asked once. */
static bool write_admitted(struct store_mutation *mutation)
{
    struct store *store = mutation->store;

    if (mutation->admitted)
        return true;
    mutation->admitted =
        policy_admit(store->policy, store_policy_hash(mutation->volume, &mutation->key),
                     store_policy_run(mutation->volume, &mutation->key),
                     (uint64_t)mutation->pages * STORE_PAGE_BYTES, store_now_ms(store));
    if (!mutation->admitted)
        counter_add(&store->stats.refused, 1);
    return mutation->admitted;
}

/* The open segment of the stream when the record fits; else the stream wants one. */
static struct store_segment *write_segment(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    uint32_t number = store->volumes[mutation->volume].stream;
    struct store_stream *stream = &store->streams[number];

    if (stream->open != NULL &&
        store_segment_fits(store, stream->open, mutation->volume, mutation->pages))
        return stream->open;
    if (stream->open != NULL)
        store_segment_seal(store, stream->open);
    if (stream->open != NULL)
        return stream->open; /* opened ahead, and empty */
    if (store->opener.segment == NULL || store->opener.stream != number) {
        list_remove(&stream->link);
        list_push(&store->wanting, &stream->link);
    }
    return NULL;
}

/* A stream whose open segment is half full gets its next one, so that no write waits for that. */
static void write_ahead(struct store *store, struct store_segment *segment)
{
    struct store_stream *stream = &store->streams[segment->stream];

    if (stream->next == NULL && segment->next_page > store->segment_pages / 2 &&
        list_empty(&stream->link) &&
        (store->opener.segment == NULL || store->opener.stream != segment->stream))
        list_push(&store->ahead, &stream->link);
}

/* Whether the answer is known without I/O. */
static bool write_answered(struct store_mutation *mutation, const struct store_location *location,
                           bool present)
{
    struct store *store = mutation->store;
    const struct store_write *write = mutation_write(mutation);

    if (present && write->if_absent) {
        store_accessed(store, &store->segments[location->segment], mutation->volume,
                       &mutation->key);
        mutation_answer(mutation, ICMS_EXISTS);
    } else if (write->only_record != 0 &&
               (!present || write->only_record != store_record_id(store, location))) {
        mutation_answer(mutation, ICMS_MISS);
    } else if (!write_admitted(mutation)) {
        mutation_answer(mutation, ICMS_BUSY);
    } else {
        return false;
    }
    return true;
}

/* Bytes of writes that the device has at a time: enough to keep it busy, and few enough that a read
 * that comes then does not wait long. */
#define WRITE_BYTES_MAX ((uint64_t)16 << 20)

/* The same while values are read, or were within WRITE_READ_NS: what a device does at once is what
 * a read has to wait for. */
#define WRITE_BYTES_BESIDE_READS ((uint64_t)256 << 10)
#define WRITE_READ_NS            ((uint64_t)100 * 1000 * 1000)

/* Whether the device takes one more write; it always takes one. */
static bool write_device_full(const struct store *store, uint64_t bytes)
{
    bool reads = store->reads > 0 ||
                 (store->read_ns != 0 && loop_now_ns(store->loop) < store->read_ns + WRITE_READ_NS);

    return store->writes > 0 &&
           (store->writes >= store->writes_max ||
            store->write_bytes + bytes > (reads ? WRITE_BYTES_BESIDE_READS : WRITE_BYTES_MAX));
}

/* Tries to go on with a parked write; false: it has to wait. */
static bool write_try(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    struct store_volume *volume = &store->volumes[mutation->volume];
    uint64_t bytes = (uint64_t)mutation->pages * STORE_PAGE_BYTES;
    struct store_location location;
    bool present = store_index_find(store->index, mutation->volume, &mutation->key, &location) &&
                   !location.damaged;
    struct store_segment *segment;

    if (write_answered(mutation, &location, present))
        return true;
    if (volume->quota != NULL && bytes > volume->quota->bytes_max) {
        mutation_answer(mutation, ICMS_QUOTA); /* it was lowered */
        return true;
    }
    if (write_device_full(store, bytes) || !store_quota_fits(store, volume, bytes))
        return false;
    if (!store_index_reserve(store->index)) {
        store->tight = true;
        return false;
    }
    segment = write_segment(mutation);
    if (segment == NULL || !store_quota_take(store, volume, bytes)) {
        if (segment != NULL) /* another drive was faster: waiting is told at the next look */
            store->run_again = true;
        store_index_unreserve(store->index);
        return false;
    }
    write_place(mutation, segment);
    write_ahead(store, segment);
    return true;
}

/* A deletion never waits. */
static void delete_try(struct store_mutation *mutation)
{
    struct store *store = mutation->store;
    uint64_t only = mutation_delete(mutation)->only_record;
    struct store_location location;

    if (!store_index_find(store->index, mutation->volume, &mutation->key, &location) ||
        (only != 0 && only != store_record_id(store, &location)))
        mutation_answer(mutation, ICMS_MISS);
    else
        mutation_kill(mutation, &location);
}

static bool mutation_try(struct store_mutation *mutation)
{
    if (mutation->store->down) {
        mutation_answer(mutation, ICMS_DRIVE_DOWN);
        return true;
    }
    if (mutation->kind == MUTATION_WRITE)
        return write_try(mutation);
    delete_try(mutation);
    return true;
}

bool store_mutations_run(struct store *store)
{
    struct list round;
    struct list *link;
    bool moved = false;

    list_init(&round);
    while ((link = list_pop(&store->parked)) != NULL)
        list_push(&round, link);
    while ((link = list_pop(&round)) != NULL) {
        struct store_volume *volume = container_of(link, struct store_volume, link);
        struct list *first = list_pop(&volume->parked);

        check(first != NULL);
        if (mutation_try(container_of(first, struct store_mutation, link))) {
            store_quota_wait_end(volume);
            moved = true;
        } else {
            list_push_front(&volume->parked, first);
        }
        if (!list_empty(&volume->parked) && list_empty(&volume->link))
            list_push(&store->parked, &volume->link);
    }
    return moved;
}

/* ---- the calls --------------------------------------------------------------------------------
 */

bool store_evict_start(struct store *store, struct store_mutation *mutation,
                       const struct store_block *block, void (*evicted)(struct store *store))
{
    struct store_mutation *first = mutation_find(store, block->volume, &block->key);

    if (first != NULL && first->state != MUTATION_PARKED)
        return false;
    mutation_init(store, mutation, MUTATION_EVICT, block->volume, &block->key);
    mutation->evicted = evicted;
    if (first != NULL) { /* it waits for capacity, perhaps for this very block's */
        mutation_unpark(first);
        first->state = MUTATION_KEY;
    }
    list_push_front(mutation_chain(store, block->volume, &block->key), &mutation->key_link);
    mutation_kill(mutation, &block->location);
    return true;
}

icms_err store_write(struct store *store, struct store_write *write)
{
    struct store_mutation *mutation = (struct store_mutation *)(void *)write->private_words;
    const struct store_volume *volume;

    check(store->magic == STORE_MAGIC && write->done != NULL);
    if (write->volume >= store->volume_count || write->memory == NULL ||
        (uintptr_t)write->memory % STORE_PAGE_BYTES != 0 || write->key.length > LIMIT_KEY_BYTES)
        return ICMS_INVALID;
    if (write->key.length == 0)
        return ICMS_KEY_SIZE;
    if (write->value_bytes == 0 || write->value_bytes > store->value_bytes_max)
        return ICMS_VALUE_SIZE;
    volume = &store->volumes[write->volume];
    mutation_init(store, mutation, MUTATION_WRITE, write->volume, &write->key);
    mutation->pages = store_record_pages(write->value_bytes);
    if (volume->quota != NULL &&
        (uint64_t)mutation->pages * STORE_PAGE_BYTES > volume->quota->bytes_max)
        mutation_answer(mutation, ICMS_QUOTA);
    else
        mutation_start(mutation);
    return ICMS_OK;
}

icms_err store_delete(struct store *store, struct store_delete *delete)
{
    struct store_mutation *mutation = (struct store_mutation *)(void *)delete->private_words;

    check(store->magic == STORE_MAGIC && delete->done != NULL);
    if (delete->volume >= store->volume_count || delete->key.length > LIMIT_KEY_BYTES)
        return ICMS_INVALID;
    if (delete->key.length == 0)
        return ICMS_KEY_SIZE;
    mutation_init(store, mutation, MUTATION_DELETE, delete->volume, &delete->key);
    mutation_start(mutation);
    return ICMS_OK;
}
