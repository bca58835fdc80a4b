/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/slow.c: see the header for the rule.
 */
#include "base/slow.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"

void slow_init(struct slow *slow, uint32_t count)
{
    check(count >= 1 && count <= SLOW_PEERS_MAX);
    memset(slow, 0, sizeof(*slow));
    slow->count = slow->all = count;
    for (uint32_t i = 0; i < count; i++)
        list_init(&slow->peers[i].waiting);
}

void slow_all_set(struct slow *slow, uint32_t all)
{
    check(all <= slow->count);
    slow->all = all;
}

void slow_forget(struct slow *slow, uint32_t peer)
{
    struct slow_peer *self = &slow->peers[peer];

    self->typical_ns = self->in_time_ns = self->streak_ns = 0;
    self->late_halves = self->probes_good = 0;
}

/* ---- what is late --------------------------------------------------------------------------- */

static int slow_compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return left < right ? -1 : left > right;
}

/* The median of what is typical of the others in use; 0: nobody knows. */
static uint64_t slow_typical_ns(const struct slow *slow, uint32_t but, uint64_t in_use)
{
    uint64_t typical_ns[SLOW_PEERS_MAX];
    uint32_t count = 0;

    for (uint32_t i = 0; i < slow->count; i++)
        if (i != but && (in_use >> i & 1) != 0 && slow->peers[i].typical_ns != 0)
            typical_ns[count++] = slow->peers[i].typical_ns;
    if (count == 0)
        return 0;
    qsort(typical_ns, count, sizeof(typical_ns[0]), slow_compare);
    return typical_ns[count / 2];
}

static uint64_t slow_limit_from_ns(const struct slow *slow, uint32_t peer, uint64_t in_use,
                                   uint64_t bytes, uint64_t floor_ns)
{
    return u64_max(SLOW_FACTOR * slow_typical_ns(slow, peer, in_use), floor_ns) +
           bytes / SLOW_BYTES_PER_MS * 1000000;
}

uint64_t slow_limit_ns(const struct slow *slow, uint32_t peer, uint64_t in_use, uint64_t bytes)
{
    check(peer < slow->count);
    return slow_limit_from_ns(slow, peer, in_use, bytes, SLOW_FLOOR_NS);
}

/* Nothing takes longer than the floor in a pod that is well: the others are not looked at. */
static bool slow_is_late(const struct slow *slow, uint32_t peer, uint64_t in_use, enum slow_end end,
                         uint64_t bytes, uint64_t took_ns)
{
    uint64_t floor_ns = end == SLOW_MISSED ? SLOW_MISSED_FLOOR_NS : SLOW_FLOOR_NS;

    return end != SLOW_SHED && took_ns > floor_ns &&
           took_ns > slow_limit_from_ns(slow, peer, in_use, bytes, floor_ns);
}

/* ---- verdicts ------------------------------------------------------------------------------- */

/* Have so many others answered in time since then that this one is to blame? */
static bool slow_others_are_well(const struct slow *slow, uint32_t but, uint64_t in_use,
                                 uint64_t since_ns)
{
    uint32_t well = 0;

    for (uint32_t i = 0; i < slow->count; i++) {
        const struct slow_peer *other = &slow->peers[i];

        well += i != but && (in_use >> i & 1) != 0 && other->late_halves == 0 &&
                other->in_time_ns >= since_ns;
    }
    return 2 * well >= slow->all;
}

/* So many halves of late ones: is the peer slow now? */
static bool slow_judge(struct slow *slow, uint32_t peer, uint64_t in_use, uint32_t halves,
                       uint64_t now_ns)
{
    struct slow_peer *self = &slow->peers[peer];
    bool again = self->back_ns != 0 && now_ns - self->back_ns < SLOW_CALM_NS;

    if (halves < 2 * SLOW_LATES || now_ns - self->streak_ns < SLOW_STREAK_NS ||
        !slow_others_are_well(slow, peer, in_use, self->streak_ns))
        return false;
    self->hold_ns = again ? u64_max(self->hold_ns * 2, SLOW_HOLD_NS) : 0;
    if (self->hold_ns > SLOW_HOLD_NS_MAX)
        self->hold_ns = SLOW_HOLD_NS_MAX;
    self->slow_ns = now_ns;
    self->probes_good = 0;
    self->late_halves = 0;
    return true;
}

/* Two pauses that are far apart are no streak. */
static void slow_streak_look(struct slow_peer *self, uint64_t now_ns)
{
    if (now_ns - self->late_end_ns > SLOW_STALE_NS)
        self->late_halves = 0;
}

void slow_sent(struct slow *slow, uint32_t peer, struct slow_op *op)
{
    check(peer < slow->count);
    list_push(&slow->peers[peer].waiting, &op->link);
}

bool slow_seen(struct slow *slow, uint32_t peer, uint64_t in_use, enum slow_end end,
               const struct slow_op *op, uint64_t now_ns)
{
    struct slow_peer *self = &slow->peers[peer];
    uint64_t took_ns = u64_max(now_ns - op->sent_ns, 1);
    bool late = slow_is_late(slow, peer, in_use, end, op->bytes, took_ns);

    check(peer < slow->count && (in_use >> peer & 1) != 0);
    if (end == SLOW_ANSWERED || late)
        self->typical_ns = self->typical_ns == 0
                               ? took_ns
                               : u64_max(self->typical_ns - self->typical_ns / 8 + took_ns / 8, 1);
    if (!late) {
        if (end == SLOW_MISSED)
            return false;
        self->late_halves -= self->late_halves != 0;
        self->in_time_ns = u64_max(self->in_time_ns, op->sent_ns);
        return false;
    }
    slow_streak_look(self, now_ns);
    self->late_end_ns = now_ns;
    if (self->late_halves == 0) {
        self->streak_ns = now_ns;
        self->late_ns = 0;
    }
    self->late_halves = (uint32_t)u64_min(self->late_halves + 2, (uint64_t)2 * SLOW_LATES);
    self->late_ns = u64_max(self->late_ns, took_ns);
    return true;
}

bool slow_ended(struct slow *slow, uint32_t peer, uint64_t in_use, enum slow_end end,
                const struct slow_op *op, uint64_t now_ns)
{
    return slow_seen(slow, peer, in_use, end, op, now_ns) &&
           slow_judge(slow, peer, in_use, slow->peers[peer].late_halves, now_ns);
}

uint64_t slow_late_ns(const struct slow *slow, uint32_t peer)
{
    return slow->peers[peer].late_ns;
}

uint64_t slow_look_ns(const struct slow *slow, uint32_t peer, uint64_t now_ns)
{
    const struct slow_peer *self = &slow->peers[peer];

    if (self->late_halves == 0 || list_empty(&self->waiting))
        return 0;
    return u64_max(self->streak_ns + SLOW_STREAK_NS, now_ns + SLOW_FLOOR_NS);
}

bool slow_look(struct slow *slow, uint32_t peer, uint64_t in_use, uint64_t blind_ns,
               uint64_t now_ns)
{
    struct slow_peer *self = &slow->peers[peer];
    uint32_t waiting = 0;

    check(peer < slow->count && (in_use >> peer & 1) != 0);
    slow_streak_look(self, now_ns);
    if (self->late_halves == 0)
        return false;
    list_for_each (link, &self->waiting) {
        const struct slow_op *op = container_of(link, struct slow_op, link);

        if (op->sent_ns <= blind_ns ||
            !slow_is_late(slow, peer, in_use, SLOW_ANSWERED, op->bytes, now_ns - op->sent_ns))
            continue;
        self->late_ns = u64_max(self->late_ns, now_ns - op->sent_ns);
        waiting++;
    }
    return waiting != 0 && slow_judge(slow, peer, in_use, self->late_halves + 2 * waiting, now_ns);
}

/* ---- shares --------------------------------------------------------------------------------- */

static_assert(SLOW_SHARE_STEP * 2 * (SLOW_LATES - 1) < 100, "a share is never nothing");

uint32_t slow_share(struct slow *slow, uint32_t peer, uint64_t in_use, uint64_t blind_ns,
                    uint64_t now_ns)
{
    struct slow_peer *self = &slow->peers[peer];
    bool is_stale = now_ns - self->late_end_ns > SLOW_STALE_NS;
    uint32_t halves = is_stale ? 0 : self->late_halves, looked = 0;
    uint64_t since_ns = self->streak_ns;

    check(peer < slow->count && (in_use >> peer & 1) != 0);
    /* the oldest say what all of them do */
    list_for_each (link, &self->waiting) {
        const struct slow_op *op = container_of(link, struct slow_op, link);

        if (looked++ == SLOW_LATES)
            break;
        if (op->sent_ns <= blind_ns ||
            !slow_is_late(slow, peer, in_use, SLOW_ANSWERED, op->bytes, now_ns - op->sent_ns))
            continue;
        since_ns = halves == 0 ? op->sent_ns : since_ns;
        halves += 2;
    }
    if (halves <= 2 || !slow_others_are_well(slow, peer, in_use, since_ns))
        return 100;
    return 100 - SLOW_SHARE_STEP * ((uint32_t)u64_min(halves, (uint64_t)2 * SLOW_LATES) - 2);
}

/* ---- probes --------------------------------------------------------------------------------- */

bool slow_probed(struct slow *slow, uint32_t peer, uint64_t in_use, bool answered, uint64_t bytes,
                 uint64_t sent_ns, uint64_t now_ns)
{
    struct slow_peer *self = &slow->peers[peer];

    check(peer < slow->count && (in_use >> peer & 1) == 0);
    if (!answered || now_ns - sent_ns > slow_limit_ns(slow, peer, in_use, bytes)) {
        self->probes_good = 0;
        return false;
    }
    if (++self->probes_good < SLOW_PROBES || now_ns - self->slow_ns < self->hold_ns)
        return false;
    slow_forget(slow, peer);
    self->back_ns = now_ns;
    return true;
}
