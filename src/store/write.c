/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes: store_write and store_delete, from the call to done.
 *
 *   store_write   -> change_start: CHANGE_KEY while an earlier change of the key is under way,
 *                 -> CHANGE_PARKED in the queue of its volume,
 *   store_pump    -> change_try: room in the open segment, the index, the quota, the device,
 *                 -> CHANGE_DEVICE: one device write from the caller's memory,
 *   store_change_written -> when it replaces a value, to witness.c and back,
 *   store_change_stored   -> index, summary, live bytes,
 *   store_change_end -> the next change of the key; done.
 *
 * Loop's thread. Invariants: changes of one key run one after the other, so of two the later one
 * wins in memory and on flash; what is placed has its index entry and its summary entry promised,
 * so a completed write cannot fail; live and placed bytes never exceed the volume's quota.
 */
#include "base/crc.h"
#include "base/fault.h"
#include "base/hash.h"
#include "store/store_int.h"

/* ---- the two faces of a change ----------------------------------------------------------------
 */

static struct store_delete *change_delete(struct store_change *change)
{
    check(change->magic == STORE_CHANGE_MAGIC && change->is_delete);
    return container_of((uint64_t *)(void *)change, struct store_delete, private_words);
}

static uint32_t change_volume(struct store_change *change)
{
    return change->is_delete ? change_delete(change)->volume : store_change_write(change)->volume;
}

static const struct key *change_key(struct store_change *change)
{
    return change->is_delete ? &change_delete(change)->key : &store_change_write(change)->key;
}

/* ---- one change of a key at a time ------------------------------------------------------------
 */

static struct list *change_chain(struct store *store, uint32_t volume, const struct key *key)
{
    uint64_t hash =
        hash64_seed(key->bytes, sizeof(key->bytes), store->key_seed ^ hash64_mix(volume));

    return &store->keys[hash % STORE_KEY_CHAINS];
}

static struct store_change *change_find(struct store *store, uint32_t volume, const struct key *key)
{
    list_for_each (link, change_chain(store, volume, key)) {
        struct store_change *change = container_of(link, struct store_change, key_link);

        if (change_volume(change) == volume && key_equal(change_key(change), key))
            return change;
    }
    return NULL;
}

static void change_park(struct store_change *change, bool front)
{
    struct store *store = change->store;
    struct store_volume *volume = &store->volumes[change_volume(change)];

    change->state = CHANGE_PARKED;
    if (front)
        list_push_front(&volume->parked, &change->link);
    else
        list_push(&volume->parked, &change->link);
    store->parked_map |= store_volume_bit(change_volume(change));
}

static void change_start(struct store *store, struct store_change *change)
{
    struct store_change *first = change_find(store, change_volume(change), change_key(change));

    list_init(&change->link);
    list_init(&change->waiters);
    list_init(&change->key_link);
    if (first != NULL) {
        change->state = CHANGE_KEY;
        list_push(&first->waiters, &change->link);
        return;
    }
    list_push(change_chain(store, change_volume(change), change_key(change)), &change->key_link);
    change_park(change, false);
    store_pump(store);
}

/* Lets the next change of the key go on, answers, and forgets the change. */
static void store_change_end(struct store_change *change)
{
    struct store *store = change->store;
    struct list *link = list_pop(&change->waiters);

    list_remove(&change->key_link);
    if (link != NULL) {
        struct store_change *next = container_of(link, struct store_change, link);

        check(next->state == CHANGE_KEY);
        while (!list_empty(&change->waiters))
            list_push(&next->waiters, list_pop(&change->waiters));
        list_push(change_chain(store, change_volume(next), change_key(next)), &next->key_link);
        change_park(next, true);
    }
    if (change->is_delete) {
        struct store_delete *delete = change_delete(change);

        delete->err = change->err;
        store_stat_add(&store->stats.deletes, 1);
        change->magic = 0;
        delete->done(delete);
    } else {
        struct store_write *write = store_change_write(change);

        write->err = change->err;
        if (change->err == ICMS_OK) {
            store_stat_add(&store->stats.writes, 1);
            store_stat_add(&store->stats.write_bytes, write->value_bytes);
        }
        change->magic = 0;
        write->done(write);
    }
    store_pump(store);
}

static void store_change_answer(struct store_later *later)
{
    struct store_change *change = container_of(later, struct store_change, later);

    check(change->magic == STORE_CHANGE_MAGIC && change->state == CHANGE_ANSWER);
    store_change_end(change);
}

/* Gives back what the budget was charged for a record that is not written after all. */
static void change_refund(struct store_change *change)
{
    if (change->admitted)
        policy_admit_undo(change->store->policy, (uint64_t)change->pages * STORE_PAGE_BYTES);
    change->admitted = false;
}

/* The answer is known without the device. */
static void change_answer(struct store_change *change, icms_err err)
{
    change_refund(change);
    change->err = err;
    change->state = CHANGE_ANSWER;
    store_later_run(change->store, &change->later, store_change_answer);
}

/* ---- the record is on flash -------------------------------------------------------------------
 */

static void change_index(struct store_change *change)
{
    struct store *store = change->store;
    uint32_t volume = change_volume(change);
    struct store_spot spot = {.segment = store_segment_number(store, change->segment),
                              .page = change->page,
                              .pages = change->pages};
    struct store_spot old;

    if (change->is_delete) {
        store_index_unreserve(store->index);
        if (store_index_remove(store->index, volume, change_key(change), &old))
            store_segment_live_sub(store, volume, &old);
        return;
    }
    if (store_index_put(store->index, volume, change_key(change), &spot, &old))
        store_segment_live_sub(store, volume, &old);
    store_segment_live_add(store, volume, &spot);
    policy_access(store->policy, &change->segment->recency);
    policy_written(store->policy, store_policy_hash(volume, change_key(change)));
}

/* Counts the bytes of a record; the budget was asked about values before. */
static void change_count(struct store_change *change)
{
    struct store *store = change->store;
    uint64_t bytes = (uint64_t)change->pages * STORE_PAGE_BYTES;

    if (change->is_delete) {
        store_overhead_written(store, bytes);
        return;
    }
    if (change->witness)
        store_overhead_written(store, STORE_PAGE_BYTES);
    store_stat_add(&store->stats.device_write_bytes, bytes);
    store_stat_add(&store->stats.admitted_bytes, bytes);
}

void store_change_stored(struct store_change *change, icms_err err)
{
    struct store *store = change->store;
    struct store_volume *volume = &store->volumes[change_volume(change)];
    struct store_segment *segment = change->segment;

    store->writes--;
    volume->flight_bytes -= (uint64_t)change->pages * STORE_PAGE_BYTES;
    change->err = err;
    if (err == ICMS_OK) {
        struct store_record record = {
            .type = change->is_delete ? STORE_RECORD_TOMBSTONE : STORE_RECORD_VALUE,
            .key = *change_key(change),
            .sequence = change->sequence,
            .fresh = change->fresh,
            .value_bytes = change->is_delete ? 0 : store_change_write(change)->value_bytes};

        store_summary_add(segment->summary, &record, change->page, change_volume(change));
        change_count(change);
        change_index(change);
        if (change->is_delete && !change->was_there)
            change->err = ICMS_MISS;
    } else {
        store_index_unreserve(store->index);
        change_refund(change);
        if (!change->is_delete) { /* it may be there all the same, for a scan */
            store_segment_partial_begin(store, segment, change_volume(change));
            store_segment_forget(store, segment);
        }
    }
    store_segment_written(store, segment);
    store_change_end(change);
}

static void change_written(struct store_change *change, icms_err err)
{
    check(change->magic == STORE_CHANGE_MAGIC && change->state == CHANGE_DEVICE);
    if (fault_hit("store.write_done"))
        err = ICMS_IO;
    store_write_outcome(change->store, err);
    if (err == ICMS_OK && change->witness)
        store_witness_add(change);
    else
        store_change_stored(change, err);
}

static void store_change_written(struct loop_op *op)
{
    change_written(container_of(op, struct store_change, op), op->err);
}

static void store_change_fault(struct store_later *later)
{
    change_written(container_of(later, struct store_change, later), ICMS_IO);
}

/* ---- placing ----------------------------------------------------------------------------------
 */

static uint32_t change_stream(const struct store *store, uint32_t volume)
{
    return store->volumes[volume].own ? volume : STORE_SHARED;
}

/* Makes the record in the caller's memory; the value is in place. */
static uint8_t *change_record(struct store_change *change)
{
    const struct store *store = change->store;
    struct store_record record = {.key = *change_key(change),
                                  .volume = store->volumes[change_volume(change)].uuid,
                                  .sequence = change->sequence,
                                  .fresh = change->fresh};
    uint64_t nonce = change->segment->nonce;
    uint8_t *memory, *value;
    uint64_t tail = (uint64_t)change->pages * STORE_PAGE_BYTES - STORE_HEADER_BYTES;

    memory = change->is_delete ? change_delete(change)->memory : store_change_write(change)->memory;
    value = memory + STORE_HEADER_BYTES;
    record.type = change->is_delete ? STORE_RECORD_TOMBSTONE : STORE_RECORD_VALUE;
    if (!change->is_delete) {
        record.value_bytes = store_change_write(change)->value_bytes;
        record.value_crc =
            crc32c_add(store_value_crc_seed(nonce, change->page), value, record.value_bytes);
    }
    memset(value + record.value_bytes, 0, tail - STORE_HEADER_BYTES - record.value_bytes);
    store_record_make(nonce, change->page, &record, (struct store_record_df *)(void *)memory);
    memcpy(memory + tail, memory, STORE_HEADER_BYTES);
    return memory;
}

static_assert(sizeof(struct store_record_df) == STORE_HEADER_BYTES, "the room callers leave");

/* Pages that the change takes in its segment. */
static uint32_t change_pages(const struct store_change *change)
{
    return change->pages + change->witness;
}

/* hides: older records of the key; covers: in segments that may live on, too. */
static void change_place(struct store_change *change, struct store_segment *segment, bool hides,
                         bool covers)
{
    struct store *store = change->store;
    uint32_t volume = change_volume(change);
    uint64_t bytes = (uint64_t)change->pages * STORE_PAGE_BYTES;

    change->state = CHANGE_DEVICE;
    change->segment = segment;
    change->page = segment->next_page;
    change->sequence = ++store->sequence;
    segment->next_page += change_pages(change);
    segment->summary->placed++;
    segment->writes++;
    segment->present |= store_volume_bit(volume);
    if (hides)
        segment->hides |= store_volume_bit(volume);
    if (covers)
        segment->covers |= store_volume_bit(volume);
    store->writes++;
    store->volumes[volume].flight_bytes += bytes;
    if (fault_hit("store.write")) {
        store_later_run(store, &change->later, store_change_fault);
        return;
    }
    loop_file_write_stream(
        store->loop, &change->op, store->file, store_segment_hint(store, segment),
        store_segment_offset(store, store_segment_number(store, segment), change->page),
        change_record(change), (uint32_t)bytes, store_change_written);
}

/* Whether the answer is known without writing anything. there: it can be read; trace: something of
 * it may be on flash. */
static bool change_answered(struct store_change *change, const struct store_spot *spot, bool there,
                            bool trace)
{
    struct store *store = change->store;

    if (store->down)
        change_answer(change, ICMS_DRIVE_DOWN);
    else if (change->is_delete && !there && !trace)
        change_answer(change, ICMS_MISS);
    else if (!change->is_delete && there &&
             (store_change_write(change)->options & STORE_WRITE_IF_ABSENT) != 0) {
        store_accessed(store, &store->segments[spot->segment], change_volume(change),
                       change_key(change));
        change_answer(change, ICMS_EXISTS);
    } else if (!change->is_delete && !there &&
               (store_change_write(change)->options & STORE_WRITE_IF_EXISTS) != 0)
        change_answer(change, ICMS_MISS);
    else
        return false;
    return true;
}

/* Whether the write budget allows it; asked once. */
static bool change_admitted(struct store_change *change)
{
    struct store *store = change->store;
    uint32_t volume = change_volume(change);
    const struct key *key = change_key(change);

    if (change->is_delete || change->admitted)
        return true;
    change->admitted =
        policy_admit(store->policy, store_policy_hash(volume, key), store_policy_run(volume, key),
                     (uint64_t)change->pages * STORE_PAGE_BYTES, store_now_ms(store));
    if (!change->admitted)
        store_stat_add(&store->stats.refused, 1);
    return change->admitted;
}

/* Room in the volume's quota; when there is none reclaim is asked for it. */
static bool change_quota(struct store_change *change)
{
    struct store_volume *volume = &change->store->volumes[change_volume(change)];
    uint64_t bytes = (uint64_t)change->pages * STORE_PAGE_BYTES;

    if (change->is_delete || volume->quota_bytes == 0 ||
        volume->bytes + volume->flight_bytes + bytes <= volume->quota_bytes)
        return true;
    volume->over = true;
    volume->need_bytes = bytes;
    return false;
}

/* The open segment of the stream when the record fits; else one that does is asked for. */
static struct store_segment *change_segment(struct store_change *change)
{
    struct store *store = change->store;
    struct store_stream *stream = &store->streams[change_stream(store, change_volume(change))];

    if (stream->open != NULL && store_segment_fits(store, stream->open, change_pages(change)))
        return stream->open;
    if (stream->open != NULL)
        store_segment_seal(store, stream->open);
    if (stream->open != NULL)
        return stream->open; /* opened ahead, and empty */
    if (store->opener.segment == NULL || &store->streams[store->opener.stream] != stream)
        stream->wants = true;
    return NULL;
}

/* Tries to go on with a parked change; false: it has to wait. */
static bool change_try(struct store_change *change)
{
    struct store *store = change->store;
    uint32_t volume = change_volume(change);
    struct store_spot spot;
    bool found = store_index_find(store->index, volume, change_key(change), &spot);
    bool there = found && !spot.damaged;
    bool partial = store->volumes[volume].partial > 0;
    bool trace = found || store_segment_trace(store, volume, change_key(change));
    struct store_segment *segment;

    if (change_answered(change, &spot, there, trace))
        return true;
    if (!change_admitted(change)) {
        change_answer(change, ICMS_BUSY);
        return true;
    }
    if (store->writes >= store->writes_max || !change_quota(change))
        return false;
    if (!store_index_reserve(store->index)) {
        store->tight = true;
        return false;
    }
    change->was_there = found;
    change->witness = there && !change->is_delete;
    change->fresh = !there && !change->is_delete;
    segment = change_segment(change);
    if (segment == NULL) {
        store_index_unreserve(store->index);
        return false;
    }
    change_place(change, segment, change->is_delete || trace,
                 change->is_delete || found || partial);
    return true;
}

/* One round over the volumes that have parked changes, one change of each; true: one went on. */
static bool pump_round(struct store *store)
{
    bool moved = false;

    for (uint32_t i = 0; i < LIMIT_VOLUMES && store->parked_map != 0; i++) {
        uint32_t number = (store->pump_cursor + i) % LIMIT_VOLUMES;
        struct store_volume *volume = &store->volumes[number];
        struct list *link;

        if ((store->parked_map & store_volume_bit(number)) == 0)
            continue;
        link = list_pop(&volume->parked);
        check(link != NULL);
        if (change_try(container_of(link, struct store_change, link)))
            moved = true;
        else
            list_push_front(&volume->parked, link);
        if (list_empty(&volume->parked))
            store->parked_map &= ~store_volume_bit(number);
    }
    store->pump_cursor = (store->pump_cursor + 1) % LIMIT_VOLUMES;
    return moved;
}

void store_pump(struct store *store)
{
    check(store->magic == STORE_MAGIC);
    if (store->pumping) {
        store->pump_more = true;
        return;
    }
    store->pumping = true;
    do {
        store->pump_more = false;
        while (pump_round(store))
            ;
        store_reclaim_kick(store);
        store_opener_kick(store);
        store_discard_kick(store);
    } while (store->pump_more);
    store->pumping = false;
    store_budget_note(store);
}

/* ---- the calls --------------------------------------------------------------------------------
 */

static bool change_arguments(const struct store *store, uint32_t volume, const struct key *key,
                             const void *memory)
{
    return volume < LIMIT_VOLUMES && store->volumes[volume].added && memory != NULL &&
           (uintptr_t)memory % STORE_PAGE_BYTES == 0 && key->length <= LIMIT_KEY_BYTES;
}

static struct store_change *change_init(struct store *store, uint64_t *words, bool is_delete,
                                        uint32_t value_bytes)
{
    struct store_change *change = (struct store_change *)(void *)words;

    memset(change, 0, sizeof(*change));
    change->magic = STORE_CHANGE_MAGIC;
    change->store = store;
    change->is_delete = is_delete;
    change->pages = store_record_pages(value_bytes);
    return change;
}

icms_err store_write(struct store *store, struct store_write *write)
{
    const uint32_t both = STORE_WRITE_IF_EXISTS | STORE_WRITE_IF_ABSENT;
    const struct store_volume *volume;
    struct store_change *change;

    check(store->magic == STORE_MAGIC && write->done != NULL);
    if (!change_arguments(store, write->volume, &write->key, write->memory) ||
        (write->options & ~both) != 0 || (write->options & both) == both)
        return ICMS_INVALID;
    if (write->key.length == 0)
        return ICMS_KEY_SIZE;
    if (write->value_bytes == 0 || write->value_bytes > store->value_bytes_max)
        return ICMS_VALUE_SIZE;
    volume = &store->volumes[write->volume];
    change = change_init(store, write->private_words, false, write->value_bytes);
    if (volume->quota_bytes != 0 &&
        (uint64_t)change->pages * STORE_PAGE_BYTES > volume->quota_bytes) {
        list_init(&change->link);
        list_init(&change->waiters);
        list_init(&change->key_link);
        change_answer(change, ICMS_QUOTA);
        return ICMS_OK;
    }
    change_start(store, change);
    return ICMS_OK;
}

icms_err store_delete(struct store *store, struct store_delete *delete)
{
    check(store->magic == STORE_MAGIC && delete->done != NULL);
    if (!change_arguments(store, delete->volume, &delete->key, delete->memory))
        return ICMS_INVALID;
    if (delete->key.length == 0)
        return ICMS_KEY_SIZE;
    change_start(store, change_init(store, delete->private_words, true, 0));
    return ICMS_OK;
}
