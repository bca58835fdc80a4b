/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers: handed over by nixl_xfer_post, then the tier's thread's until they are over.
 *
 *   IDLE, OVER -> UNDER_WAY   nixl_xfer_post         any thread
 *   UNDER_WAY                 xfer_start_piece       thread: as long as there is room
 *   UNDER_WAY                 xfer_cut               thread: late, canceled or impossible
 *   UNDER_WAY -> OVER         xfer_finish            thread: every piece is over
 *
 * A transfer whose state is OVER is the caller's again and may be freed at once: the thread does
 * not look at it after it has said so.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "nixl/nixl_int.h"

static void tier_lock(struct nixl_tier *tier)
{
    check(pthread_mutex_lock(&tier->lock) == 0);
}

static void tier_unlock(struct nixl_tier *tier)
{
    check(pthread_mutex_unlock(&tier->lock) == 0);
}

static enum nixl_xfer_state xfer_state(const struct nixl_xfer *xfer)
{
    return atomic_load_explicit(&xfer->state, memory_order_acquire);
}

/* ---- the caller's side ---------------------------------------------------------------------- */

struct nixl_xfer *nixl_xfer_new(struct nixl_tier *tier, bool store, size_t count)
{
    struct nixl_xfer *xfer = calloc(1, sizeof(*xfer));
    size_t piece_max = nixl_piece_blocks_max(tier);

    check(tier->magic == NIXL_TIER_MAGIC && count != 0);
    if (xfer == NULL)
        return NULL;
    xfer->magic = NIXL_XFER_MAGIC;
    xfer->tier = tier;
    xfer->store = store;
    xfer->count = count;
    xfer->blocks = calloc(count, sizeof(*xfer->blocks));
    xfer->bytes = calloc(count, sizeof(*xfer->bytes));
    xfer->pieces = calloc((count + piece_max - 1) / piece_max, sizeof(*xfer->pieces));
    list_init(&xfer->queue);
    list_init(&xfer->all);
    if (xfer->blocks == NULL || xfer->bytes == NULL || xfer->pieces == NULL)
        nixl_xfer_free(&xfer);
    return xfer;
}

void nixl_xfer_set(struct nixl_xfer *xfer, size_t index, const struct icms_key *key, void *data,
                   uint64_t bytes)
{
    check(xfer->magic == NIXL_XFER_MAGIC && xfer_state(xfer) != NIXL_XFER_UNDER_WAY);
    check(index < xfer->count);
    xfer->blocks[index].key = *key;
    xfer->blocks[index].data = data;
    xfer->bytes[index] = bytes;
}

icms_err nixl_xfer_post(struct nixl_xfer *xfer)
{
    struct nixl_tier *tier = xfer->tier;
    const struct nixl_settings *settings = &tier->settings;
    uint32_t deadline_ms = xfer->store ? settings->store_deadline_ms : settings->load_deadline_ms;

    check(xfer->magic == NIXL_XFER_MAGIC && tier->magic == NIXL_TIER_MAGIC);
    if (tier->owner != getpid())
        return ICMS_FORKED;
    if (xfer_state(xfer) == NIXL_XFER_UNDER_WAY)
        return ICMS_BUSY;
    for (size_t i = 0; i < xfer->count; i++)
        xfer->blocks[i].bytes = xfer->bytes[i];
    xfer->cancel = xfer->canceled = false;
    xfer->next = xfer->pieces_started = xfer->pieces_over = 0;
    xfer->deadline_ns = nixl_now_ns() + (uint64_t)deadline_ms * 1000000u;
    atomic_store_explicit(&xfer->state, NIXL_XFER_UNDER_WAY, memory_order_relaxed);
    tier_lock(tier);
    list_push(&tier->under_way, &xfer->all);
    list_push(xfer->store ? &tier->stores : &tier->loads, &xfer->queue);
    tier_unlock(tier);
    nixl_tier_wake(tier);
    return ICMS_OK;
}

bool nixl_xfer_under_way(const struct nixl_xfer *xfer)
{
    check(xfer->magic == NIXL_XFER_MAGIC);
    return xfer_state(xfer) == NIXL_XFER_UNDER_WAY;
}

bool nixl_xfer_over(const struct nixl_xfer *xfer, struct nixl_outcome *out_outcome)
{
    check(xfer->magic == NIXL_XFER_MAGIC);
    if (xfer_state(xfer) != NIXL_XFER_OVER)
        return false;
    *out_outcome = xfer->outcome;
    return true;
}

void nixl_xfer_free(struct nixl_xfer **xfer_pointer)
{
    struct nixl_xfer *xfer = *xfer_pointer;
    struct nixl_tier *tier;

    *xfer_pointer = NULL;
    if (xfer == NULL)
        return;
    check(xfer->magic == NIXL_XFER_MAGIC);
    if (xfer_state(xfer) == NIXL_XFER_UNDER_WAY) {
        tier = xfer->tier;
        check(tier->magic == NIXL_TIER_MAGIC);
        if (tier->owner != getpid())
            return; /* the parent's; its memory here is a copy that nobody writes to */
        tier_lock(tier);
        xfer->cancel = true;
        nixl_tier_wake(tier);
        while (xfer_state(xfer) == NIXL_XFER_UNDER_WAY)
            check(pthread_cond_wait(&tier->changed, &tier->lock) == 0);
        tier_unlock(tier);
    }
    xfer->magic = 0;
    free(xfer->blocks);
    free(xfer->bytes);
    free(xfer->pieces);
    free(xfer);
}

/* ---- how it ended --------------------------------------------------------------------------- */

static bool block_absent(const struct icms_block *block)
{
    return block->status == ICMS_MISS &&
           (block->reason == ICMS_MISS_ABSENT || block->reason == ICMS_MISS_EVICTED);
}

/* The graver, the more it tells: what was not found is usual, a late answer less so. */
static int block_gravity(const struct icms_block *block)
{
    if (block->status == ICMS_OK)
        return 0;
    if (block_absent(block))
        return 1;
    return block->status == ICMS_MISS ? 2 : 3;
}

static void xfer_judge(struct nixl_xfer *xfer)
{
    struct nixl_outcome *outcome = &xfer->outcome;
    int gravest = 0;

    *outcome = (struct nixl_outcome){.err = ICMS_OK};
    for (size_t i = 0; i < xfer->count; i++) {
        struct icms_block *block = &xfer->blocks[i];

        if (!xfer->store && block->status == ICMS_OK && block->bytes != xfer->bytes[i])
            block->status = ICMS_VALUE_SIZE;
        if (!xfer->store && block_absent(block) && xfer->tier->settings.absent_is_zeros) {
            memset(block->data, 0, xfer->bytes[i]);
            continue;
        }
        outcome->failed += block->status != ICMS_OK;
        if (block_gravity(block) <= gravest)
            continue;
        gravest = block_gravity(block);
        outcome->err = block->status;
        outcome->reason = block->reason;
        outcome->block = i;
        outcome->bytes = block->bytes;
    }
}

/* UNDER_WAY -> OVER when nothing of it is left to do. */
static void xfer_finish(struct nixl_xfer *xfer)
{
    struct nixl_tier *tier = xfer->tier;

    if (xfer->next != xfer->count || xfer->pieces_over != xfer->pieces_started)
        return;
    xfer_judge(xfer);
    tier_lock(tier);
    list_remove(&xfer->queue);
    list_remove(&xfer->all);
    atomic_store_explicit(&xfer->state, NIXL_XFER_OVER, memory_order_release);
    check(pthread_cond_broadcast(&tier->changed) == 0);
    tier_unlock(tier);
}

void nixl_piece_over(struct nixl_piece *piece)
{
    struct nixl_xfer *xfer = piece->xfer;

    check(xfer->magic == NIXL_XFER_MAGIC && xfer->tier->blocks >= piece->count);
    (void)!icms_request_end(&piece->request); /* what it says is in the blocks, too */
    xfer->tier->blocks -= piece->count;
    xfer->pieces_over++;
    xfer_finish(xfer);
}

/* ---- starting and giving up ----------------------------------------------------------------- */

/* The blocks that were not started end so. */
static void xfer_cut(struct nixl_xfer *xfer, icms_err why)
{
    for (; xfer->next < xfer->count; xfer->next++) {
        xfer->blocks[xfer->next].status = why;
        xfer->blocks[xfer->next].reason = ICMS_MISS_NONE;
    }
}

/* The next piece; false when it has to wait for others to be over. */
static bool xfer_start_piece(struct nixl_xfer *xfer, uint64_t now)
{
    struct nixl_tier *tier = xfer->tier;
    size_t count = xfer->count - xfer->next;
    struct nixl_piece *piece = &xfer->pieces[xfer->pieces_started];
    struct icms_request_options options;
    icms_err err = nixl_tier_state(tier);

    if (err != ICMS_OK) {
        xfer_cut(xfer, err);
        return true;
    }
    count = count < nixl_piece_blocks_max(tier) ? count : nixl_piece_blocks_max(tier);
    if (tier->blocks + count > tier->settings.blocks_max && tier->blocks != 0)
        return false;
    icms_request_options_init(&options);
    options.deadline_ms = (uint32_t)((xfer->deadline_ns - now + 999999u) / 1000000u);
    options.put_ack = (uint32_t)tier->settings.put_ack;
    options.tag = piece;
    *piece = (struct nixl_piece){.xfer = xfer, .count = count};
    if (xfer->store)
        err = icms_put_start(tier->volume, xfer->blocks + xfer->next, count, &options,
                             &piece->request);
    else
        err = icms_get_start(tier->volume, xfer->blocks + xfer->next, count, &options,
                             &piece->request);
    if (err == ICMS_LIMIT && tier->blocks != 0)
        return false;
    if (err != ICMS_OK) {
        xfer_cut(xfer, err);
        return true;
    }
    tier->blocks += count;
    xfer->next += count;
    xfer->pieces_started++;
    return true;
}

/* The first transfer of a list, or NULL. */
static struct nixl_xfer *queue_first(struct nixl_tier *tier, struct list *queue)
{
    struct list *first;

    tier_lock(tier);
    first = list_first(queue);
    tier_unlock(tier);
    return first == NULL ? NULL : container_of(first, struct nixl_xfer, queue);
}

/* Starts what there is room for, in order; false when the first one has to wait. */
static bool queue_start(struct nixl_tier *tier, struct list *queue)
{
    struct nixl_xfer *xfer;

    while ((xfer = queue_first(tier, queue)) != NULL) {
        uint64_t now = nixl_now_ns();

        if (now >= xfer->deadline_ns)
            xfer_cut(xfer, ICMS_DEADLINE);
        else if (!xfer_start_piece(xfer, now))
            return false;
        if (xfer->next != xfer->count)
            continue;
        tier_lock(tier);
        list_remove(&xfer->queue);
        tier_unlock(tier);
        xfer_finish(xfer);
    }
    return true;
}

/* Acts on a cancel that was asked for. */
static void xfer_cancel(struct nixl_xfer *xfer)
{
    struct nixl_tier *tier = xfer->tier;

    xfer->canceled = true;
    xfer_cut(xfer, ICMS_CANCELED);
    tier_lock(tier);
    list_remove(&xfer->queue);
    tier_unlock(tier);
    for (size_t i = 0; i < xfer->pieces_started; i++)
        if (xfer->pieces[i].request != NULL)
            icms_request_cancel(xfer->pieces[i].request);
    xfer_finish(xfer);
}

/* A transfer that is to be canceled and was not yet, or NULL. */
static struct nixl_xfer *cancel_first(struct nixl_tier *tier)
{
    struct nixl_xfer *found = NULL;

    tier_lock(tier);
    list_for_each (at, &tier->under_way) {
        struct nixl_xfer *xfer = container_of(at, struct nixl_xfer, all);

        if (xfer->cancel && !xfer->canceled) {
            found = xfer;
            break;
        }
    }
    tier_unlock(tier);
    return found;
}

/* Gives up transfers that wait in a list and are late; the earliest deadline of the others. */
static uint64_t queue_expire(struct nixl_tier *tier, struct list *queue)
{
    uint64_t earliest_ns = UINT64_MAX;
    struct nixl_xfer *late;

    do {
        uint64_t now = nixl_now_ns();

        late = NULL;
        earliest_ns = UINT64_MAX;
        tier_lock(tier);
        list_for_each (at, queue) {
            struct nixl_xfer *xfer = container_of(at, struct nixl_xfer, queue);

            if (xfer->deadline_ns <= now)
                late = xfer;
            earliest_ns = u64_min(earliest_ns, xfer->deadline_ns);
        }
        if (late != NULL)
            list_remove(&late->queue);
        tier_unlock(tier);
        if (late != NULL) {
            xfer_cut(late, ICMS_DEADLINE);
            xfer_finish(late);
        }
    } while (late != NULL);
    return earliest_ns;
}

uint64_t nixl_xfers_run(struct nixl_tier *tier)
{
    struct nixl_xfer *xfer;
    uint64_t until_ns = UINT64_MAX;

    while ((xfer = cancel_first(tier)) != NULL)
        xfer_cancel(xfer);
    if (!queue_start(tier, &tier->loads))
        until_ns = queue_expire(tier, &tier->loads);
    if (until_ns == UINT64_MAX)
        (void)queue_start(tier, &tier->stores);
    return u64_min(until_ns, queue_expire(tier, &tier->stores));
}
