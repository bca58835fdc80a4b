/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open tier: a connection, a volume, and the thread that moves transfers. Called by plugin.cpp,
 * on any thread.
 *
 *   nixl_tier_open -> [nixl_tier_query, transfers] -> nixl_tier_close
 *
 * An agent may come later: libicms attaches to it (agent_optional). What it cannot know is looked
 * at here, when the volume is known: whether it is the one that the settings name
 * (nixl_tier_state).
 *
 * The thread sleeps in poll(2) on the connection's event and on wake_fd, which whoever posts or
 * cancels writes to. The lock guards lists and flags alone: nobody copies or sleeps with it.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/err.h"
#include "nixl/nixl_int.h"

uint64_t nixl_now_ns(void)
{
    struct timespec now;

    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

size_t nixl_piece_blocks_max(const struct nixl_tier *tier)
{
    return tier->settings.blocks_max < ICMS_BATCH_MAX ? tier->settings.blocks_max : ICMS_BATCH_MAX;
}

const struct nixl_settings *nixl_tier_settings(const struct nixl_tier *tier)
{
    return &tier->settings;
}

uint64_t nixl_tier_value_bytes_max(struct nixl_tier *tier)
{
    struct icms_volume_info info;

    if (nixl_tier_state(tier) != ICMS_OK)
        return UINT64_MAX;
    icms_volume_info(tier->volume, &info);
    return info.value_bytes_max;
}

/* ---- the thread ----------------------------------------------------------------------------- */

void nixl_tier_wake(struct nixl_tier *tier)
{
    uint64_t one = 1;

    while (write(tier->wake_fd, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
}

/* Sleeps until something may have to be done, at most until until_ns. */
static void tier_sleep(struct nixl_tier *tier, uint64_t until_ns)
{
    struct pollfd fds[2] = {{.fd = icms_event_fd(tier->icms), .events = POLLIN},
                            {.fd = tier->wake_fd, .events = POLLIN}};
    uint64_t now = nixl_now_ns(), wakes, left_ns = until_ns > now ? until_ns - now : 0;
    struct timespec timeout = {.tv_sec = (time_t)(left_ns / 1000000000u),
                               .tv_nsec = (long)(left_ns % 1000000000u)};

    if (ppoll(fds, 2, until_ns == UINT64_MAX ? NULL : &timeout, NULL) <= 0)
        return;
    if ((fds[1].revents & POLLIN) != 0 && read(tier->wake_fd, &wakes, sizeof(wakes)) < 0)
        check(errno == EAGAIN || errno == EINTR);
}

static bool tier_stops(struct nixl_tier *tier)
{
    bool stops;

    check(pthread_mutex_lock(&tier->lock) == 0);
    stops = tier->stop && list_empty(&tier->under_way);
    check(pthread_mutex_unlock(&tier->lock) == 0);
    return stops;
}

static void *tier_main(void *arg)
{
    struct nixl_tier *tier = arg;

    check(tier->magic == NIXL_TIER_MAGIC);
    for (;;) {
        uint64_t until_ns = nixl_xfers_run(tier);
        struct icms_request *request;
        bool over = false;

        while ((request = icms_poll(tier->icms)) != NULL) {
            nixl_piece_over(icms_request_tag(request));
            over = true;
        }
        if (tier_stops(tier)) /* after the last look: what ended in it wakes nobody */
            return NULL;
        if (!over)
            tier_sleep(tier, until_ns);
    }
}

/* Starts the thread with all signals blocked: they are the application's. */
static icms_err tier_start(struct nixl_tier *tier)
{
    sigset_t all, before;
    int error;

    check(sigfillset(&all) == 0);
    check(pthread_sigmask(SIG_SETMASK, &all, &before) == 0);
    error = pthread_create(&tier->thread, NULL, tier_main, tier);
    check(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
    return error == 0 ? ICMS_OK : err_from_errno(error);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* Looks whether the volume, which is known, is the one of the settings. */
static icms_err tier_check(struct nixl_tier *tier, char *why, size_t why_bytes)
{
    static const uint8_t any[sizeof(tier->settings.uuid)];
    const struct nixl_settings *settings = &tier->settings;
    struct icms_volume_info info;

    icms_volume_info(tier->volume, &info);
    if (memcmp(settings->uuid, any, sizeof(any)) != 0 &&
        memcmp(settings->uuid, info.uuid, sizeof(any)) != 0) {
        (void)snprintf(why, why_bytes,
                       "the volume %s has another UUID than the configuration says: correct either",
                       settings->volume);
        return ICMS_CONFIG;
    }
    atomic_store(&tier->is_checked, true);
    return ICMS_OK;
}

icms_err nixl_tier_state(struct nixl_tier *tier)
{
    icms_err err = icms_volume_state(tier->volume);
    char why[256];

    if (err != ICMS_OK || atomic_load(&tier->is_checked))
        return err;
    err = tier_check(tier, why, sizeof(why));
    if (err != ICMS_OK && !atomic_exchange(&tier->is_told, true))
        tier->log(NULL, why);
    return err;
}

/* Connection and volume; *why has a sentence when it fails. */
static icms_err tier_connect(struct nixl_tier *tier, char *why, size_t why_bytes)
{
    const struct nixl_settings *settings = &tier->settings;
    struct icms_options options;
    icms_err err;

    icms_options_init(&options);
    options.load_deadline_ms = settings->load_deadline_ms;
    options.store_deadline_ms = settings->store_deadline_ms;
    options.keys = settings->keys[0] != '\0' ? settings->keys : NULL;
    options.agent_optional = 1;
    options.log = tier->log;
    err = icms_open(settings->connection, &options, why, why_bytes, &tier->icms);
    if (err == ICMS_OK)
        err = icms_volume_open(tier->icms, settings->volume, why, why_bytes, &tier->volume);
    if (err == ICMS_OK && icms_volume_state(tier->volume) == ICMS_OK)
        err = tier_check(tier, why, why_bytes);
    return err;
}

/* Frees what there is; no thread runs. */
static void tier_free(struct nixl_tier *tier)
{
    icms_volume_close(&tier->volume);
    icms_close(&tier->icms);
    nixl_memories_free(tier);
    if (tier->wake_fd >= 0)
        (void)close(tier->wake_fd);
    check(pthread_cond_destroy(&tier->changed) == 0);
    check(pthread_mutex_destroy(&tier->lock) == 0);
    check(pthread_mutex_destroy(&tier->memory_lock) == 0);
    tier->magic = 0;
    free(tier);
}

/* The tier without a connection and without threads. */
static struct nixl_tier *tier_new(const struct nixl_settings *settings, nixl_log log)
{
    struct nixl_tier *tier = calloc(1, sizeof(*tier));
    pthread_condattr_t attributes;

    if (tier == NULL)
        return NULL;
    tier->magic = NIXL_TIER_MAGIC;
    tier->owner = getpid();
    tier->settings = *settings;
    tier->log = log;
    check(pthread_mutex_init(&tier->lock, NULL) == 0);
    check(pthread_mutex_init(&tier->memory_lock, NULL) == 0);
    check(pthread_condattr_init(&attributes) == 0);
    check(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    check(pthread_cond_init(&tier->changed, &attributes) == 0);
    check(pthread_condattr_destroy(&attributes) == 0);
    list_init(&tier->loads);
    list_init(&tier->stores);
    list_init(&tier->under_way);
    list_init(&tier->memories);
    tier->wake_fd = -1;
    return tier;
}

/* Tells the thread to end, and cancels what is under way. */
static void tier_stop(struct nixl_tier *tier)
{
    check(pthread_mutex_lock(&tier->lock) == 0);
    tier->stop = true;
    list_for_each (at, &tier->under_way)
        container_of(at, struct nixl_xfer, all)->cancel = true;
    check(pthread_mutex_unlock(&tier->lock) == 0);
    nixl_tier_wake(tier);
}

icms_err nixl_tier_open(const struct nixl_settings *settings, nixl_log log, char *why,
                        size_t why_bytes, struct nixl_tier **out_tier)
{
    struct nixl_tier *tier = tier_new(settings, log);
    icms_err err;

    if (tier == NULL)
        return ICMS_NO_MEMORY;
    tier->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    err = tier->wake_fd < 0 ? err_from_errno(errno) : tier_connect(tier, why, why_bytes);
    if (err == ICMS_OK)
        err = tier_start(tier);
    if (err != ICMS_OK) {
        tier_free(tier);
        return err;
    }
    *out_tier = tier;
    return ICMS_OK;
}

void nixl_tier_close(struct nixl_tier **tier_pointer)
{
    struct nixl_tier *tier = *tier_pointer;

    *tier_pointer = NULL;
    if (tier == NULL || tier->owner != getpid())
        return;
    check(tier->magic == NIXL_TIER_MAGIC);
    tier_stop(tier);
    check(pthread_join(tier->thread, NULL) == 0);
    tier_free(tier);
}

/* ---- queries -------------------------------------------------------------------------------- */

/* One call of libicms. */
static icms_err query_batch(struct nixl_tier *tier, const struct icms_key *keys, size_t count,
                            struct icms_block *blocks, uint64_t deadline_ns, uint8_t *out_found)
{
    uint64_t now = nixl_now_ns();
    struct icms_request_options options;
    icms_err err;

    if (now >= deadline_ns)
        return ICMS_DEADLINE;
    icms_request_options_init(&options);
    options.deadline_ms = (uint32_t)((deadline_ns - now) / 1000000u) + 1;
    for (size_t i = 0; i < count; i++)
        blocks[i] = (struct icms_block){.key = keys[i]};
    err = icms_exists(tier->volume, blocks, count, &options);
    if (err != ICMS_OK && err != ICMS_MISS)
        return err;
    for (size_t i = 0; i < count; i++)
        if (blocks[i].status != ICMS_OK && blocks[i].status != ICMS_MISS)
            return blocks[i].status;
    for (size_t i = 0; i < count; i++)
        out_found[i] = blocks[i].status == ICMS_OK;
    return ICMS_OK;
}

icms_err nixl_tier_query(struct nixl_tier *tier, const struct icms_key *keys, size_t count,
                         uint8_t *out_found)
{
    uint64_t deadline_ns = nixl_now_ns() + (uint64_t)tier->settings.load_deadline_ms * 1000000u;
    struct icms_block *blocks;
    uint8_t *found;
    icms_err err = ICMS_OK;

    check(tier->magic == NIXL_TIER_MAGIC);
    if (count == 0)
        return ICMS_OK;
    err = nixl_tier_state(tier);
    if (err != ICMS_OK)
        return err;
    blocks = calloc(count < ICMS_BATCH_MAX ? count : ICMS_BATCH_MAX, sizeof(*blocks));
    found = malloc(count);
    if (blocks == NULL || found == NULL)
        err = ICMS_NO_MEMORY;
    for (size_t at = 0; at < count && err == ICMS_OK; at += ICMS_BATCH_MAX) {
        size_t batch = count - at < ICMS_BATCH_MAX ? count - at : ICMS_BATCH_MAX;

        err = query_batch(tier, keys + at, batch, blocks, deadline_ns, found + at);
    }
    if (err == ICMS_OK)
        memcpy(out_found, found, count);
    free(found);
    free(blocks);
    return err;
}
