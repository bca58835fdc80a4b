/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/prestage_kept.c: the part of a shard's memory that is kept for hints, and who gives its
 * place there: see prestage.h, Kept.
 *
 * Called by prestage.c on the reactor's loop.
 *
 * Invariants: shard->prestage.kept_bytes is the sum of its shares' kept_bytes, and that of their
 * hints'. A share's heap has those of its hints that are READY and keep bytes.
 */
#include "agent/agent_int.h"
#include "agent/prestage_int.h"

/* Whether a share may keep so many bytes more. One block is always possible. */
static bool share_may_keep(const struct agent_shard *shard, const struct hint_share *share,
                           uint64_t bytes)
{
    uint64_t kept_bytes = counter_get(&shard->prestage.kept_bytes);
    uint64_t bytes_max = counter_get(&shard->bytes) / AGENT_KEPT_SHARE;

    if (kept_bytes == 0)
        return true;
    if (kept_bytes + bytes > bytes_max)
        return false;
    return share->kept_bytes == 0 || share->kept_bytes + bytes <= bytes_max / shard->hint_users;
}

void agent_hint_keep(struct agent_hint *hint, uint64_t bytes)
{
    check(hint->kept_bytes == 0);
    hint->kept_bytes = bytes;
    hint->share->kept_bytes += bytes;
    counter_add(&hint->shard->prestage.kept_bytes, bytes);
}

void agent_hint_kept_push(struct agent_hint *hint)
{
    hint->due.rank = HINT_RANK_GUEST - hint->rank;
    hint->due.at_ns = UINT64_MAX - hint->first_ns;
    due_push(&hint->share->kept, &hint->due);
}

void agent_hint_keep_no_more(struct agent_hint *hint)
{
    if (hint->kept_bytes == 0)
        return;
    due_remove(&hint->share->kept, &hint->due);
    check(hint->share->kept_bytes >= hint->kept_bytes);
    hint->share->kept_bytes -= hint->kept_bytes;
    counter_add(&hint->shard->prestage.kept_bytes, -hint->kept_bytes);
    hint->kept_bytes = 0;
}

void agent_hint_slot_set(struct agent_shard *shard, uint32_t slot)
{
    struct agent_hint *hints = shard->reactor->prestage->hints;
    struct agent_slot *meta = &shard->meta[slot];
    const struct agent_hint *hint = meta->hint == 0 ? NULL : &hints[meta->hint - 1];

    meta->kept = AGENT_KEPT_NOT;
    for (; hint != NULL; hint = hint->also)
        if (hint->pin_ns != 0 && hint->share->tier == ICMS_TIER_DRAM)
            meta->kept = AGENT_KEPT_PIN;
        else if (hint->kept_bytes != 0 && meta->kept == AGENT_KEPT_NOT)
            meta->kept = AGENT_KEPT_HINT;
}

static bool hint_is_before(const struct agent_hint *a, const struct agent_hint *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->first_ns < b->first_ns;
}

static struct agent_hint *share_last_kept(const struct hint_share *share)
{
    struct due_member *last = due_first(&share->kept);

    return last == NULL ? NULL : container_of(last, struct agent_hint, due);
}

/* Of the other users of the shard who has more than its part of what may be kept: the one with the
 * most. NULL: none has. */
static struct hint_share *share_over(const struct agent_shard *shard, uint64_t part_bytes)
{
    struct hint_share *shares = &shard->reactor->prestage->shares[shard->number * AGENT_MEMBERS];
    struct hint_share *over = NULL;

    for (uint32_t i = 0; i < AGENT_MEMBERS; i++)
        if (shares[i].kept_bytes > part_bytes && due_first(&shares[i].kept) != NULL &&
            (over == NULL || shares[i].kept_bytes > over->kept_bytes))
            over = &shares[i];
    return over;
}

/* The hint that gives its place to this one, which has so many bytes: of a user with more than its
 * part, while this one's has less; or of the same user one that has its turn later. One of who gave
 * no proof takes the place of such alone. NULL: none. */
static struct agent_hint *hint_gives(const struct agent_hint *hint, uint64_t bytes)
{
    const struct agent_shard *shard = hint->shard;
    uint64_t part_bytes =
        counter_get(&shard->bytes) / AGENT_KEPT_SHARE / u64_max(shard->hint_users, 1);
    struct hint_share *over = NULL;
    struct agent_hint *last = share_last_kept(hint->share);

    if (hint->rank != HINT_RANK_GUEST && hint->share->kept_bytes + bytes <= part_bytes)
        over = share_over(shard, part_bytes);
    if (over != NULL)
        return share_last_kept(over);
    return last != NULL && hint_is_before(hint, last) ? last : NULL;
}

bool agent_hint_may_keep(const struct agent_hint *hint, uint64_t bytes)
{
    struct agent_shard *shard = hint->shard;
    struct agent_hint *gives;

    while (!share_may_keep(shard, hint->share, bytes)) {
        gives = hint_gives(hint, bytes);
        if (gives == NULL)
            return false;
        agent_hint_keep_no_more(gives);
        agent_hint_slot_set(shard, gives->slot);
    }
    return true;
}
