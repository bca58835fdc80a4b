/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes of a drive: those of the options, by their number. On flash a volume is its uuid.
 *
 * Records of other volumes are not in the index; their segments, in the stream STORE_STRANGERS, are
 * evicted first. Before the loop starts.
 */
#include <stdlib.h>

#include "base/hash.h"
#include "store/store_int.h"

static_assert(LIMIT_VOLUMES <= STORE_VOLUMES_MAX, "a drive takes what is configured");

int store_volume_find(const struct store *store, const struct uuid *uuid)
{
    for (uint32_t i = 0; i < store->volume_count; i++) {
        if (uuid_equal(&store->volumes[i].uuid, uuid))
            return (int)i;
    }
    return -1;
}

icms_err store_volumes_new(struct store *store, const struct store_opts *opts, struct err_why *why)
{
    char text[UUID_TEXT_BYTES];

    if (opts->volume_count > STORE_VOLUMES_MAX)
        return err_set(why, ICMS_LIMIT, "%s: a drive holds %d volumes at most, not %u", opts->path,
                       STORE_VOLUMES_MAX, opts->volume_count);
    store->volumes = calloc(opts->volume_count + 1, sizeof(store->volumes[0]));
    store->salts = calloc(opts->volume_count + 1, sizeof(store->salts[0]));
    if (store->volumes == NULL || store->salts == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: no memory for %u volumes", opts->path,
                       opts->volume_count);
    for (uint32_t i = 0; i < opts->volume_count; i++) {
        struct store_volume *volume = &store->volumes[i];

        if (store_volume_find(store, &opts->volumes[i]) >= 0)
            return err_set(why, ICMS_EXISTS, "%s: volume %s is configured twice", opts->path,
                           uuid_format(&opts->volumes[i], text));
        volume->uuid = opts->volumes[i];
        volume->stream = STORE_SHARED;
        list_init(&volume->parked);
        list_init(&volume->link);
        list_init(&volume->over_link);
        store->salts[i] =
            hash64_seed(volume->uuid.bytes, sizeof(volume->uuid.bytes), store->hash_seed);
        store->volume_count = i + 1;
    }
    return ICMS_OK;
}

double store_volume_share(const struct store *store, uint32_t volume)
{
    double capacity = (double)store->super.segments * (double)store->super.segment_bytes;

    if (store->volumes[volume].quota_bytes != 0)
        return (double)store->volumes[volume].quota_bytes;
    return capacity / store->volume_count;
}

void store_reserve_set(struct store *store)
{
    uint64_t most = u64_max(u64_min(store->super.segments / 16, STORE_RESERVE_MAX), 1);

    store->reserve = (uint32_t)u64_min(u64_max(store->stream_count, 2), most);
    store->free_low_mark = store->reserve / 2 > 1 ? store->reserve / 2 : 1;
}

/* Whether one more volume, of this quota, gets a stream of its own. */
static bool volume_may_own(const struct store *store, uint64_t quota_bytes)
{
    uint32_t own = store->stream_count - 1;

    return own < STORE_OWN_MAX && own < store->super.segments / STORE_SEGMENTS_A_STREAM &&
           (quota_bytes == 0 || quota_bytes >= STORE_OWN_SEGMENTS_MIN * store->super.segment_bytes);
}

/* Gives a volume its stream, with the segments that recovery found to be its alone. */
static void volume_stream(struct store *store, uint32_t number)
{
    uint32_t stream = store->stream_count++, hints = loop_file_streams(store->file);

    store->volumes[number].stream = stream;
    store_reserve_set(store);
    if (hints > 0) { /* they take turns where there are fewer */
        store->streams[STORE_SHARED].hint = 1;
        store->streams[stream].hint = 1 + stream % hints;
    }
    list_for_each_safe (link, &store->streams[STORE_SHARED].segments) {
        struct store_segment *segment = container_of(link, struct store_segment, link);

        if (segment->volume != number)
            continue;
        store_stream_remove(store, segment);
        store_stream_add(store, stream, segment);
    }
}

icms_err store_volume_limit(struct store *store, uint32_t number, uint64_t quota_bytes,
                            struct store_quota *shared, struct err_why *why)
{
    struct store_volume *volume = &store->volumes[number];
    char text[UUID_TEXT_BYTES];

    check(store->magic == STORE_MAGIC && number < store->volume_count && !volume->limited);
    volume->limited = true;
    volume->quota_bytes = quota_bytes;
    volume->own = (struct store_quota){.bytes_max = quota_bytes, .share_min = quota_bytes};
    if (quota_bytes != 0) {
        volume->quota = shared != NULL ? shared : &volume->own;
        atomic_fetch_add(&volume->quota->bytes, volume->bytes);
    }
    if (volume_may_own(store, quota_bytes)) {
        if (!store_summary_pool_add(store) || !store_summary_pool_add(store))
            return err_set(why, ICMS_NO_MEMORY, "no memory for volume %s",
                           uuid_format(&volume->uuid, text));
        volume_stream(store, number);
    }
    if (quota_bytes != 0 && volume->bytes > quota_bytes)
        list_push(&store->over, &volume->over_link); /* when the loop runs */
    return ICMS_OK;
}
