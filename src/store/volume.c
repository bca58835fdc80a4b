/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes of a drive by their number: those of the options, and those that began since (store.h has
 * the life of one). On flash a volume is its uuid.
 *
 * Records of volumes that had no number at the open are not in the index; their segments, in the
 * stream STORE_STRANGERS, are evicted first. While there are any, such a volume cannot begin: the
 * next open would find those records beside newer ones, or instead of deleted ones.
 *
 * A volume keeps its stream until it is retired and another one needs a stream. So however many
 * begin one after the other, those that are live have streams of their own. Segments of the retired
 * one become strangers with its number (segment->volume), and go back to it should it begin again.
 *
 * The open, then the loop's thread.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "store/store_int.h"

static_assert(LIMIT_VOLUMES <= STORE_VOLUMES_MAX, "a drive takes what is configured");

int store_volume_find(const struct store *store, const struct uuid *uuid)
{
    for (uint32_t i = 0; i < store->volume_count; i++) {
        if (store->volumes[i].used && uuid_equal(&store->volumes[i].uuid, uuid))
            return (int)i;
    }
    return -1;
}

/* FREE -> LIVE. */
static void volume_init(struct store *store, uint32_t number, const struct uuid *uuid)
{
    struct store_volume *volume = &store->volumes[number];

    volume->uuid = *uuid;
    volume->used = true;
    volume->stream = STORE_SHARED;
    list_init(&volume->parked);
    list_init(&volume->link);
    list_init(&volume->over_link);
    store->salts[number] = hash64_seed(uuid->bytes, sizeof(uuid->bytes), store->hash_seed);
    store->volumes_live++;
    if (number >= store->volume_count)
        store->volume_count = number + 1;
}

icms_err store_volumes_new(struct store *store, const struct store_opts *opts, struct err_why *why)
{
    char text[UUID_TEXT_BYTES];

    if (opts->volume_count > STORE_VOLUMES_MAX)
        return err_set(why, ICMS_LIMIT, "%s: a drive holds %d volumes at most, not %u", opts->path,
                       STORE_VOLUMES_MAX, opts->volume_count);
    store->volumes = calloc(STORE_VOLUMES_MAX, sizeof(store->volumes[0]));
    store->salts = calloc(STORE_VOLUMES_MAX, sizeof(store->salts[0]));
    store->strangers = calloc(STORE_STRANGERS_MAX, sizeof(store->strangers[0]));
    if (store->volumes == NULL || store->salts == NULL || store->strangers == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: no memory for %u volumes", opts->path,
                       STORE_VOLUMES_MAX);
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        if (store_volume_find(store, &opts->volumes[i]) >= 0)
            return err_set(why, ICMS_EXISTS, "%s: volume %s is configured twice", opts->path,
                           uuid_format(&opts->volumes[i], text));
        volume_init(store, i, &opts->volumes[i]);
    }
    return ICMS_OK;
}

/* Whether the open may have met records of a volume that has no number. */
static bool volume_is_stranger(const struct store *store, const struct uuid *uuid)
{
    bool found = store->stranger_count == STORE_STRANGERS_MAX;

    for (uint32_t i = 0; i < store->stranger_count && !found; i++)
        found = uuid_equal(&store->strangers[i], uuid);
    return found;
}

void store_stranger_add(struct store *store, const struct uuid *uuid)
{
    if (!volume_is_stranger(store, uuid))
        store->strangers[store->stranger_count++] = *uuid;
}

icms_err store_volume_begin(struct store *store, uint32_t number, const struct uuid *uuid,
                            struct err_why *why)
{
    int found = store_volume_find(store, uuid);
    char text[UUID_TEXT_BYTES];

    check(store->magic == STORE_MAGIC && number < STORE_VOLUMES_MAX);
    (void)uuid_format(uuid, text);
    if (found >= 0 ? (uint32_t)found != number : store->volumes[number].used)
        return err_set(why, ICMS_EXISTS, "volume %s: number %u is another volume's", text, number);
    if (found < 0 && store->stranger_segments > 0 && volume_is_stranger(store, uuid))
        return err_set(why, ICMS_BUSY,
                       "volume %s: the drive has blocks of it from before the start, which only a "
                       "start reads",
                       text);
    if (found < 0)
        volume_init(store, number, uuid);
    else
        store->volumes_live += store->volumes[number].retired;
    store->volumes[number].retired = false;
    return ICMS_OK;
}

void store_volume_retire(struct store *store, uint32_t number)
{
    struct store_volume *volume = &store->volumes[number];

    check(store->magic == STORE_MAGIC && number < STORE_VOLUMES_MAX);
    store->volumes_live -= volume->used && !volume->retired;
    volume->retired = volume->used;
}

double store_volume_share(const struct store *store, uint32_t volume)
{
    double capacity = (double)store->super.segments * (double)store->super.segment_bytes;

    if (!store->volumes[volume].used || store->volumes[volume].retired)
        return 0;
    if (store->volumes[volume].quota_bytes != 0)
        return (double)store->volumes[volume].quota_bytes;
    return capacity / store->volumes_live;
}

void store_reserve_set(struct store *store)
{
    uint64_t most = u64_max(u64_min(store->super.segments / 16, STORE_RESERVE_MAX), 1);

    store->reserve = (uint32_t)u64_min(u64_max(store->stream_count, 2), most);
    store->free_low_mark = store->reserve / 2 > 1 ? store->reserve / 2 : 1;
}

/* Whether a volume of this quota may have a stream of its own. */
static bool volume_may_own(const struct store *store, uint64_t quota_bytes)
{
    return quota_bytes == 0 || quota_bytes >= STORE_OWN_SEGMENTS_MIN * store->super.segment_bytes;
}

/* Whether there may be one more stream. */
static bool stream_may_be(const struct store *store)
{
    uint32_t own = store->stream_count - 1;

    return own < STORE_OWN_MAX && own < store->super.segments / STORE_SEGMENTS_A_STREAM;
}

/* Moves the segments that have only records of one volume. */
static void stream_move(struct store *store, uint32_t from, uint32_t to, uint32_t volume)
{
    list_for_each_safe (link, &store->streams[from].segments) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->volume != volume || (from == STORE_STRANGERS && segment->strangers))
            continue; /* records of volumes without a number go first, with all beside them */
        store_stream_remove(store, segment);
        store_stream_add(store, to, segment);
    }
}

/* A stream whose volume is retired, which loses it: what it holds goes to the strangers, and what
 * it still writes to the shared stream. Should it begin again, it is limited as a new one. SHARED:
 * there is none. */
static uint32_t stream_take(struct store *store)
{
    struct store_stream *stream;
    uint32_t number = 0, taken;

    while (number < store->volume_count &&
           !(store->volumes[number].retired && store->volumes[number].stream != STORE_SHARED))
        number++;
    if (number == store->volume_count)
        return STORE_SHARED;
    taken = store->volumes[number].stream;
    stream = &store->streams[taken];
    if (stream->open != NULL && stream->open->summary->placed > 0)
        store_segment_seal(store, stream->open);
    list_for_each (link, &stream->segments)
        container_of(link, struct store_segment, link)->volume = number;
    stream_move(store, taken, STORE_STRANGERS, number);
    store->volumes[number].stream = STORE_SHARED;
    store->volumes[number].limited = false;
    return taken;
}

/* One more; SHARED: there is no memory. */
static uint32_t stream_new(struct store *store)
{
    uint32_t stream = store->stream_count, hints = loop_file_streams(store->file);

    if (!store_summary_pool_add(store) || !store_summary_pool_add(store))
        return STORE_SHARED;
    store->stream_count++;
    store_reserve_set(store);
    if (hints > 0) { /* they take turns where there are fewer */
        store->streams[STORE_SHARED].hint = 1;
        store->streams[stream].hint = 1 + stream % hints;
    }
    return stream;
}

/* Gives a volume a stream, if there is one, with the segments that recovery found to be its alone,
 * or that it had before its stream was taken. */
static icms_err volume_stream(struct store *store, uint32_t number, struct err_why *why)
{
    uint32_t stream = stream_take(store);
    char text[UUID_TEXT_BYTES];

    if (stream == STORE_SHARED && stream_may_be(store)) {
        stream = stream_new(store);
        if (stream == STORE_SHARED)
            return err_set(why, ICMS_NO_MEMORY, "no memory for volume %s",
                           uuid_format(&store->volumes[number].uuid, text));
    }
    if (stream == STORE_SHARED)
        return ICMS_OK;
    store->volumes[number].stream = stream;
    stream_move(store, STORE_SHARED, stream, number); /* one that begins later has none */
    stream_move(store, STORE_STRANGERS, stream, number);
    return ICMS_OK;
}

/* The volume's bytes count in this quota from now on, and not in the one before. */
static void volume_quota(struct store *store, struct store_volume *volume,
                         struct store_quota *quota)
{
    /* a drive that went out of service has given back what it held (store_quota_leave) */
    uint64_t held = volume->flight_bytes + (store->down ? 0 : volume->bytes);

    if (volume->quota == quota)
        return;
    if (volume->quota != NULL) {
        store_quota_wait_end(volume);
        store_quota_give(store, volume, held);
    }
    volume->quota = quota;
    if (quota != NULL)
        atomic_fetch_add(&quota->bytes, held);
}

icms_err store_volume_limit(struct store *store, uint32_t number, uint64_t quota_bytes,
                            struct store_quota *shared, struct err_why *why)
{
    struct store_volume *volume = &store->volumes[number];
    struct store_quota *quota = shared != NULL ? shared : &volume->own;

    check(store->magic == STORE_MAGIC && number < store->volume_count && volume->used);
    if (!volume->limited && volume_may_own(store, quota_bytes)) {
        icms_err err = volume_stream(store, number, why);

        if (err != ICMS_OK)
            return err;
    }
    volume->limited = true;
    counter_set(&volume->quota_bytes, quota_bytes);
    atomic_store(&volume->own.bytes_max, quota_bytes);
    atomic_store(&volume->own.share_min, quota_bytes);
    volume_quota(store, volume, quota_bytes != 0 ? quota : NULL);
    if (quota_bytes != 0 && volume->bytes > quota_bytes && list_empty(&volume->over_link))
        list_push(&store->over, &volume->over_link); /* when the loop runs */
    return ICMS_OK;
}
