/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/prestage.c: hints that blocks will be asked for soon: see prestage.h.
 *
 * Called by req.c on the reactor's loop, and by slot.c through the shard's hint_read and hint_gone;
 * agent_prestage by any thread.
 *
 * Life of a hint: FREE -> agent_hint_take -> QUEUED -> prestage_run -> LOADING, with an operation
 * of its own or another's -> hint_wake -> READY -> hint_end -> FREE. A block that is in the arena
 * makes it READY at once; a get that comes first makes it LOADING with the load of the get. What
 * ends it earlier: its deadline (hint_timer), agent_hint_cancel, and misses.
 *
 * Whose turn it is: each user of a volume (struct hint_share) has a heap of its hints, and waits in
 * the line with one link while the heap is not empty. One that cannot go on is held until the retry
 * timer or until something that it keeps is given back.
 *
 * Invariants: what was taken is in one state, and ends once: taken = sum of ended + queued +
 * loading + waiting. A slot's chain of hints (meta.hint, hint.also) has those that are READY with
 * it; it is kept while one of them keeps bytes.
 */
#include "agent/agent_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/due.h"

/* Lists of hints by key, of a reactor. */
#define HINT_KEY_LISTS 4096

/* Hints that are looked at before others have their turn. */
#define HINT_RUN_MAX 32

/* Loads of hints in flight, in bytes of the arena, while there are other loads, and while there are
 * none; one of any size goes. A load counts as HINT_LOAD_BYTES at least, so that hints of blocks
 * that do not exist are few, too. */
#define HINT_BUSY_BYTES ((uint64_t)2 << 20)
#define HINT_IDLE_BYTES ((uint64_t)16 << 20)
#define HINT_LOAD_BYTES ((uint64_t)64 << 10)

/* How soon it is looked again for what hints wait for. */
#define HINT_RETRY_NS ((uint64_t)2 * 1000 * 1000)

/* The time that a load takes is an average of so many. */
#define HINT_AVERAGE 8

enum hint_state {
    HINT_FREE,    /* holds nothing                                                                */
    HINT_QUEUED,  /* in its share's heap; woken by prestage_run                                   */
    HINT_LOADING, /* waits for a load; woken by op_done                                           */
    HINT_READY,   /* its block is in a slot; woken by hint_read, hint_gone, its timer             */
};

/* A user of a volume. */
struct hint_share {
    struct list link;      /* in the line, while something is QUEUED                            */
    struct list held_link; /* in prestage->held, while it cannot go on                          */
    struct due queue;      /* of its hints                                                      */
    uint32_t number;       /* of the share in the line                                          */
    uint32_t count;        /* hints, in any state                                               */
    uint64_t kept_bytes;   /* of the arena                                                      */
};

struct agent_hint {
    enum hint_state state;
    bool is_own;    /* LOADING: its load was begun for it                                */
    bool is_loaded; /* READY: the block was loaded for it                                */
    struct agent_shard *shard;
    struct agent_user_share *user;
    struct hint_share *share;
    struct key key;
    uint32_t identity;       /* the shard's, when it was taken                                    */
    uint32_t wanted;         /* how often it was taken and not canceled                           */
    uint32_t slot;           /* READY                                                             */
    uint64_t need_ns;        /* the deadline: the latest of all who want it */
    uint64_t first_ns;       /* the earliest of theirs, by which it has its turn */
    uint64_t asked_ns;       /* when a get came before the block; 0: none did                     */
    uint64_t begun_ns;       /* LOADING, is_own: when                                             */
    uint64_t late_ns;        /* READY: it arrived so long after its deadline                      */
    uint64_t space;          /* bytes that the stored block needs; 0: nobody said                 */
    uint64_t window_bytes;   /* LOADING, is_own: of the window                                    */
    uint64_t kept_bytes;     /* of the arena: reserved, LOADING; or kept, READY                   */
    struct agent_hint *also; /* READY: the next one with this slot                                */
    struct due_member due;   /* QUEUED                                                            */
    struct list link;        /* in a list of prestage->keys, or prestage->free                    */
    struct agent_waiter waiter; /* LOADING: in op->waiters                                        */
    struct loop_timer timer; /* QUEUED: deadline; READY: until when it is kept                    */
};

struct agent_prestage {
    struct agent_reactor *reactor;
    struct agent_hint *hints; /* [AGENT_HINTS]                                                   */
    uint32_t made;            /* hints from this one on were never used, and are not in free     */
    uint32_t used;            /* not FREE                                                        */
    uint32_t user_counts[AGENT_MEMBERS]; /* of them, by user: of all volumes                    */
    struct list free;
    struct list keys[HINT_KEY_LISTS];
    struct hint_share *shares; /* [volumes * AGENT_MEMBERS]                                       */
    struct line line;          /* shares that have something QUEUED                               */
    void *line_memory;
    struct list held;      /* shares that cannot go on                                        */
    uint64_t window_bytes; /* of loads in flight                                              */
    uint64_t load_ns;      /* about what a load takes                                         */
    struct loop_msg run;
    bool run_sent; /* it is in flight                                                 */
    struct loop_timer retry;
};

const char *agent_hint_end_name(enum agent_hint_end end)
{
    static const char *const names[] = {
#define AGENT_HINT_END_XX(name, text) [AGENT_HINT_##name] = (text),
        AGENT_HINT_END_MAP(AGENT_HINT_END_XX)
#undef AGENT_HINT_END_XX
    };

    return (unsigned)end < AGENT_HINT_ENDS ? names[end] : "?";
}

/* ---- turns ---------------------------------------------------------------------------------- */

static void prestage_run(struct loop_msg *msg);

static void prestage_run_send(struct agent_prestage *prestage)
{
    if (prestage->run_sent || line_first(&prestage->line) == NULL)
        return;
    prestage->run_sent = true;
    loop_send(prestage->reactor->loop, &prestage->run, prestage_run);
}

static void prestage_retry_arm(struct agent_prestage *prestage)
{
    if (!loop_timer_armed(&prestage->retry))
        loop_timer_start(prestage->reactor->loop, &prestage->retry,
                         reactor_now_ns(prestage->reactor) + HINT_RETRY_NS);
}

static void share_hold(struct agent_prestage *prestage, struct hint_share *share)
{
    line_hold(&prestage->line, share->number);
    list_push(&prestage->held, &share->held_link);
    prestage_retry_arm(prestage);
}

static void share_release(struct agent_prestage *prestage, struct hint_share *share)
{
    if (list_empty(&share->held_link))
        return;
    list_remove(&share->held_link);
    line_release(&prestage->line, share->number);
}

static void prestage_retry(struct loop_timer *timer)
{
    struct agent_prestage *prestage = container_of(timer, struct agent_prestage, retry);
    struct list *link;

    while ((link = list_first(&prestage->held)) != NULL)
        share_release(prestage, container_of(link, struct hint_share, held_link));
    prestage_run_send(prestage);
}

/* ---- memory that is kept -------------------------------------------------------------------- */

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

static void hint_keep(struct agent_hint *hint, uint64_t bytes)
{
    check(hint->kept_bytes == 0);
    hint->kept_bytes = bytes;
    hint->share->kept_bytes += bytes;
    counter_add(&hint->shard->prestage.kept_bytes, bytes);
}

static void hint_keep_no_more(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;

    if (hint->kept_bytes == 0)
        return;
    check(hint->share->kept_bytes >= hint->kept_bytes);
    hint->share->kept_bytes -= hint->kept_bytes;
    counter_add(&hint->shard->prestage.kept_bytes, -hint->kept_bytes);
    hint->kept_bytes = 0;
    share_release(prestage, hint->share);
    prestage_run_send(prestage);
}

/* ---- finding -------------------------------------------------------------------------------- */

static struct list *hint_key_list(const struct agent_shard *shard, const struct key *key)
{
    return &shard->reactor->prestage->keys[shm_arena_head(shard->secret, HINT_KEY_LISTS, key)];
}

static bool hint_is_for(const struct agent_hint *hint, const struct agent_shard *shard,
                        const struct key *key)
{
    return hint->shard == shard && hint->identity == shard->identity && key_equal(&hint->key, key);
}

static struct agent_hint *hint_find(const struct agent_shard *shard, const struct hint_share *share,
                                    const struct key *key)
{
    list_for_each (link, hint_key_list(shard, key)) {
        struct agent_hint *hint = container_of(link, struct agent_hint, link);

        if (hint->share == share && hint_is_for(hint, shard, key))
            return hint;
    }
    return NULL;
}

/* ---- states --------------------------------------------------------------------------------- */

static uint64_t *hint_state_count(struct agent_hint *hint)
{
    struct agent_prestage_stats *stats = &hint->shard->prestage;

    return hint->state == HINT_QUEUED    ? &stats->queued
           : hint->state == HINT_LOADING ? &stats->loading
                                         : &stats->waiting;
}

static void hint_state_set(struct agent_hint *hint, enum hint_state state)
{
    if (hint->state != HINT_FREE)
        counter_add(hint_state_count(hint), -(uint64_t)1);
    hint->state = state;
    if (state != HINT_FREE)
        counter_add(hint_state_count(hint), 1);
}

static void hint_queue(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct hint_share *share = hint->share;

    hint_state_set(hint, HINT_QUEUED);
    hint->due.at_ns = hint->first_ns;
    due_push(&share->queue, &hint->due);
    if (list_empty(&share->link))
        line_push(&prestage->line, share->number, &share->link);
    loop_timer_start(prestage->reactor->loop, &hint->timer, hint->need_ns);
    prestage_run_send(prestage);
}

static void hint_dequeue(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct hint_share *share = hint->share;

    if (!hint->due.link.queued)
        return;
    loop_timer_stop(prestage->reactor->loop, &hint->timer);
    due_remove(&share->queue, &hint->due);
    if (due_first(&share->queue) != NULL)
        return;
    share_release(prestage, share);
    line_leave(&prestage->line, share->number, &share->link);
}

/* Takes it out of its slot's chain. */
static void hint_leave_slot(struct agent_hint *hint)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct agent_slot *meta = &hint->shard->meta[hint->slot];
    struct agent_hint *first = &prestage->hints[meta->hint - 1], **from = &first;

    check(hint->state == HINT_READY && meta->hint != 0);
    loop_timer_stop(prestage->reactor->loop, &hint->timer);
    hint_keep_no_more(hint);
    while (*from != hint)
        from = &(*from)->also;
    *from = hint->also;
    meta->hint = first == NULL ? 0 : (uint32_t)(first - prestage->hints) + 1;
    meta->kept = false;
    for (; first != NULL; first = first->also)
        meta->kept = meta->kept || first->kept_bytes != 0;
}

static void hint_end(struct agent_hint *hint, enum agent_hint_end end)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct agent_shard *shard = hint->shard;

    if (hint->state == HINT_QUEUED)
        hint_dequeue(hint);
    else if (hint->state == HINT_READY)
        hint_leave_slot(hint);
    check(hint->kept_bytes == 0 && list_empty(&hint->waiter.link));
    counter_add(&shard->prestage.ended[end], 1);
    hint_state_set(hint, HINT_FREE);
    hint->share->count--;
    prestage->user_counts[hint->share->number % AGENT_MEMBERS]--;
    shard->hint_users -= hint->share->count == 0;
    list_remove(&hint->link);
    list_push(&prestage->free, &hint->link);
    prestage->used--;
}

/* Its block will not be read in time, though it was brought for it. */
static void hint_end_wasted(struct agent_hint *hint, enum agent_hint_end end)
{
    if (hint->state == HINT_READY && hint->is_loaded)
        counter_add(&hint->shard->prestage.unused_bytes, hint->shard->meta[hint->slot].value_bytes);
    hint_end(hint, end);
}

static void hint_end_late(struct agent_hint *hint, uint64_t late_ns)
{
    hist_add(&hint->shard->prestage.late_ns, late_ns);
    hint_end(hint, AGENT_HINT_LATE);
}

/* The block is in this slot. */
static void hint_ready(struct agent_hint *hint, uint32_t slot, bool is_loaded)
{
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct agent_shard *shard = hint->shard;
    struct agent_slot *meta = &shard->meta[slot];
    uint64_t now_ns = reactor_now_ns(shard->reactor);
    uint64_t bytes = agent_shard_slot_bytes(shard, slot);

    if (hint->asked_ns != 0) {
        hint_end_late(hint, now_ns - hint->asked_ns);
        return;
    }
    hint_state_set(hint, HINT_READY);
    hint->slot = slot;
    hint->is_loaded = is_loaded;
    hint->late_ns = now_ns > hint->need_ns ? now_ns - hint->need_ns : 0;
    hint->also = meta->hint == 0 ? NULL : &prestage->hints[meta->hint - 1];
    meta->hint = (uint32_t)(hint - prestage->hints) + 1;
    if (share_may_keep(shard, hint->share, bytes)) {
        hint_keep(hint, bytes);
        meta->kept = true;
    }
    loop_timer_start(prestage->reactor->loop, &hint->timer,
                     u64_max(hint->need_ns, now_ns) + AGENT_HINT_GRACE_NS);
    if (hint->wanted == 0)
        hint_end_wasted(hint, AGENT_HINT_CANCELED);
}

/* QUEUED: too late. READY: nobody asked for it. */
static void hint_timer(struct loop_timer *timer)
{
    struct agent_hint *hint = container_of(timer, struct agent_hint, timer);

    if (hint->state == HINT_QUEUED)
        hint_end(hint, AGENT_HINT_DROPPED);
    else
        hint_end_wasted(hint, AGENT_HINT_UNUSED);
}

static void shard_hint_read(struct agent_shard *shard, uint32_t slot)
{
    while (shard->meta[slot].hint != 0) {
        struct agent_hint *hint = &shard->reactor->prestage->hints[shard->meta[slot].hint - 1];

        if (hint->late_ns != 0)
            hint_end_late(hint, hint->late_ns);
        else
            hint_end(hint, AGENT_HINT_IN_TIME);
    }
}

static void shard_hint_gone(struct agent_shard *shard, uint32_t slot)
{
    while (shard->meta[slot].hint != 0)
        hint_end_wasted(&shard->reactor->prestage->hints[shard->meta[slot].hint - 1],
                        AGENT_HINT_UNUSED);
}

/* ---- loading -------------------------------------------------------------------------------- */

/* Waits for a load. */
static void hint_wait(struct agent_hint *hint, struct agent_op *op, bool is_own)
{
    hint_dequeue(hint);
    hint_state_set(hint, HINT_LOADING);
    hint->is_own = is_own;
    list_push(&op->waiters, &hint->waiter.link);
}

/* The load did not bring the block. */
static void hint_missed(struct agent_hint *hint, const struct agent_op *op)
{
    uint64_t now_ns = reactor_now_ns(hint->shard->reactor);
    bool is_again =
        op->too_small || op->drop ||
        (op->reason == ICMS_MISS_DEADLINE && op->deadline_ns < hint->need_ns); /* another's */

    if (hint->wanted == 0)
        hint_end(hint, AGENT_HINT_CANCELED);
    else if (is_again && now_ns < hint->need_ns && !agent_op_is_stale(op))
        hint_queue(hint);
    else if (is_again || op->reason == ICMS_MISS_DEADLINE)
        hint_end(hint, AGENT_HINT_DROPPED);
    else
        hint_end(hint, op->reason == ICMS_MISS_ABSENT || op->reason == ICMS_MISS_EVICTED
                           ? AGENT_HINT_ABSENT
                           : AGENT_HINT_FAILED);
}

/* A load is over. */
static uint64_t hint_wake(struct agent_waiter *waiter, struct agent_op *op)
{
    struct agent_hint *hint = container_of(waiter, struct agent_hint, waiter);
    struct agent_prestage *prestage = hint->shard->reactor->prestage;
    struct agent_shard *shard = hint->shard;
    uint64_t took_ns = reactor_now_ns(shard->reactor) - hint->begun_ns;

    check(hint->state == HINT_LOADING && op != NULL);
    hint_keep_no_more(hint);
    if (hint->is_own) {
        check(prestage->window_bytes >= hint->window_bytes);
        prestage->window_bytes -= hint->window_bytes;
        if (op->err == ICMS_OK) {
            prestage->load_ns += took_ns / HINT_AVERAGE - prestage->load_ns / HINT_AVERAGE;
            counter_add(&shard->prestage.load_bytes, op->value_bytes);
        }
    }
    if (op->too_small)
        hint->space = op->space;
    if (op->err == ICMS_OK && !op->drop && op->slot != SHM_SLOT_NONE) {
        check(shard->meta[op->slot].state == AGENT_SLOT_LIVE);
        hint_ready(hint, op->slot, hint->is_own);
    } else {
        hint_missed(hint, op);
    }
    prestage_run_send(prestage);
    return 0;
}

/* Whether a load of so many bytes may go now. */
static bool prestage_has_credit(const struct agent_prestage *prestage, uint64_t bytes)
{
    const struct agent_reactor *reactor = prestage->reactor;
    uint64_t bytes_max = reactor->ops_used[IO_CLASS_LOAD] > 0 ? HINT_BUSY_BYTES : HINT_IDLE_BYTES;

    if (line_first(&reactor->wait_op[IO_CLASS_LOAD]) != NULL ||
        line_first(&reactor->wait_op[IO_CLASS_PRESTAGE]) != NULL)
        return false;
    return prestage->window_bytes == 0 || prestage->window_bytes + bytes <= bytes_max;
}

/* Begins a load for a hint. False: there is nothing to do it with now. */
static bool hint_load(struct agent_prestage *prestage, struct agent_hint *hint)
{
    struct agent_shard *shard = hint->shard;
    uint64_t space = hint->space != 0 ? hint->space : agent_shard_load_bytes(shard, &hint->key);
    uint64_t bytes = agent_shard_extent_bytes(shard, space);
    uint64_t window_bytes = u64_max(bytes, HINT_LOAD_BYTES);
    struct agent_op *op;
    uint32_t slot;

    if (!prestage_has_credit(prestage, window_bytes))
        return false;
    slot = SHM_SLOT_NONE;
    if (share_may_keep(shard, hint->share, bytes) && line_first(&shard->wait_slot) == NULL)
        slot = agent_shard_slot_take_hint(shard, space);
    if (slot == SHM_SLOT_NONE) {
        share_hold(prestage, hint->share);
        return true;
    }
    op = agent_op_new(shard, hint->user, AGENT_OP_LOAD, &hint->key, IO_CLASS_PRESTAGE);
    if (op == NULL) {
        agent_shard_slot_give(shard, slot);
        return false;
    }
    op->slot = slot;
    op->space = space;
    op->is_reload = hint->space != 0;
    hint->begun_ns = reactor_now_ns(shard->reactor);
    /* a get may join it, and has to wait no longer than for a load of its own */
    op->deadline_ns = hint->begun_ns + (uint64_t)shard->agent->opts.load_deadline_ms * 1000000;
    hint->window_bytes = window_bytes;
    prestage->window_bytes += window_bytes;
    hint_wait(hint, op, true);
    hint_keep(hint, agent_shard_slot_bytes(shard, slot));
    line_charge(&prestage->line, hint->share->number, bytes);
    agent_op_start(op);
    return true;
}

/* The next hint of a share. False: none can go on now. */
static bool share_run(struct agent_prestage *prestage, struct hint_share *share)
{
    struct agent_hint *hint = container_of(due_first(&share->queue), struct agent_hint, due);
    struct agent_shard *shard = hint->shard;
    uint32_t slot;
    struct agent_op *op;

    if (hint->identity != shard->identity || !agent_shard_is_there(shard)) {
        hint_end(hint, AGENT_HINT_FAILED);
        return true;
    }
    slot = agent_shard_find(shard, &hint->key);
    if (slot != SHM_SLOT_NONE) {
        hint_dequeue(hint);
        hint_ready(hint, slot, false);
        return true;
    }
    if (agent_op_find(shard, &hint->key, AGENT_OP_DELETE) != NULL) {
        hint_end(hint, AGENT_HINT_ABSENT);
        return true;
    }
    op = agent_op_find(shard, &hint->key, AGENT_OP_LOAD);
    if (op != NULL) {
        hint_wait(hint, op, false);
        return true;
    }
    if (reactor_now_ns(shard->reactor) + prestage->load_ns >= hint->need_ns) {
        prestage->load_ns -= prestage->load_ns / HINT_AVERAGE; /* it is tried again some time */
        hint_end(hint, AGENT_HINT_DROPPED);
        return true;
    }
    return hint_load(prestage, hint);
}

static void prestage_run(struct loop_msg *msg)
{
    struct agent_prestage *prestage = container_of(msg, struct agent_prestage, run);
    struct list *link;

    prestage->run_sent = false;
    for (int i = 0; i < HINT_RUN_MAX && (link = line_first(&prestage->line)) != NULL; i++)
        if (!share_run(prestage, container_of(link, struct hint_share, link))) {
            prestage_retry_arm(prestage);
            return;
        }
    prestage_run_send(prestage);
}

/* ---- taking --------------------------------------------------------------------------------- */

static struct agent_hint *hint_new(struct agent_prestage *prestage)
{
    struct list *link = list_pop(&prestage->free);

    prestage->used++;
    if (link != NULL)
        return container_of(link, struct agent_hint, link);
    check(prestage->made < AGENT_HINTS);
    return &prestage->hints[prestage->made++];
}

/* Somebody wants what there is a hint for already. */
static void hint_join(struct agent_hint *hint, uint64_t need_ns, uint32_t rank)
{
    hint->wanted++;
    hint->first_ns = u64_min(hint->first_ns, need_ns);
    hint->need_ns = u64_max(hint->need_ns, need_ns);
    if (hint->state == HINT_READY) {
        loop_timer_start(hint->shard->reactor->loop, &hint->timer,
                         hint->need_ns + AGENT_HINT_GRACE_NS);
        return;
    }
    if (hint->state != HINT_QUEUED)
        return;
    hint_dequeue(hint);
    hint->due.rank = rank < hint->due.rank ? rank : hint->due.rank;
    hint_queue(hint);
}

enum icms_miss agent_hint_take(struct agent_shard *shard, struct agent_user_share *user,
                               const struct key *key, uint64_t need_ns, uint32_t priority)
{
    struct agent_prestage *prestage = shard->reactor->prestage;
    struct hint_share *share = &prestage->shares[agent_share(shard, user)];
    struct agent_hint *hint = hint_find(shard, share, key);
    uint64_t now_ns = reactor_now_ns(shard->reactor);
    uint32_t *user_count = &prestage->user_counts[share->number % AGENT_MEMBERS];
    uint32_t slot;

    check(priority <= ICMS_PRIORITY_MAX);
    if (need_ns <= now_ns) {
        counter_add(&shard->prestage.passed, 1);
        return ICMS_MISS_DEADLINE;
    }
    if (hint == NULL && *user_count >= AGENT_HINTS - prestage->used) {
        counter_add(&shard->prestage.full, 1);
        return ICMS_MISS_SHED;
    }
    need_ns = u64_min(need_ns, now_ns + AGENT_DEADLINE_MAX_NS);
    counter_add(&shard->prestage.taken, 1);
    if (hint != NULL) {
        counter_add(&shard->prestage.ended[AGENT_HINT_JOINED], 1);
        hint_join(hint, need_ns, ICMS_PRIORITY_MAX - priority);
        return ICMS_MISS_NONE;
    }
    hint = hint_new(prestage);
    *hint = (struct agent_hint){.shard = shard,
                                .user = user,
                                .share = share,
                                .key = *key,
                                .identity = shard->identity,
                                .wanted = 1,
                                .need_ns = need_ns,
                                .first_ns = need_ns,
                                .due = {.rank = ICMS_PRIORITY_MAX - priority},
                                .waiter = {.wake = hint_wake}};
    list_init(&hint->waiter.link);
    list_init(&hint->link);
    list_push(hint_key_list(shard, key), &hint->link);
    loop_timer_init(&hint->timer, hint_timer);
    shard->hint_users += share->count++ == 0;
    (*user_count)++;
    slot = agent_shard_find(shard, key);
    if (slot != SHM_SLOT_NONE)
        hint_ready(hint, slot, false);
    else
        hint_queue(hint);
    return ICMS_MISS_NONE;
}

enum icms_miss agent_hint_cancel(struct agent_shard *shard, const struct agent_user_share *user,
                                 const struct key *key)
{
    const struct hint_share *share = &shard->reactor->prestage->shares[agent_share(shard, user)];
    struct agent_hint *hint = hint_find(shard, share, key);

    if (hint == NULL || hint->wanted == 0)
        return ICMS_MISS_ABSENT;
    if (--hint->wanted == 0 && hint->state != HINT_LOADING)
        hint_end_wasted(hint, AGENT_HINT_CANCELED);
    return ICMS_MISS_NONE;
}

void agent_hint_asked(struct agent_shard *shard, const struct key *key, struct agent_op *op)
{
    if (shard->reactor->prestage->used == 0)
        return;
    list_for_each (link, hint_key_list(shard, key)) {
        struct agent_hint *hint = container_of(link, struct agent_hint, link);

        if (!hint_is_for(hint, shard, key))
            continue;
        if (hint->state == HINT_QUEUED)
            hint_wait(hint, op, false);
        if (hint->state == HINT_LOADING && hint->asked_ns == 0)
            hint->asked_ns = reactor_now_ns(shard->reactor);
    }
}

bool agent_hint_waits(const struct agent_shard *shard, const struct key *key)
{
    if (shard->reactor->prestage->used == 0)
        return false;
    list_for_each (link, hint_key_list(shard, key)) {
        const struct agent_hint *hint = container_of(link, struct agent_hint, link);

        if (hint->state == HINT_QUEUED && hint_is_for(hint, shard, key))
            return true;
    }
    return false;
}

/* ---- from other threads --------------------------------------------------------------------- */

/* A reactor's part of a batch. */
struct hint_part {
    struct loop_msg msg;
    struct hint_batch *batch;
    struct agent_shard *shard;
    size_t next; /* keys before it were looked at */
};

struct hint_batch {
    struct agent *agent;
    uint32_t place;        /* in agent->hint_batches    */
    _Atomic uint32_t left; /* parts that are not over   */
    struct hint_part parts[LIMIT_LOOPS];
    uint64_t need_ns;
    uint32_t priority;
    size_t count;
    struct key keys[];
};

static void hint_batch_free(struct hint_batch *batch)
{
    atomic_store(&batch->agent->hint_batches[batch->place], NULL);
    free(batch);
}

/* Takes some of the keys; the last part that has taken all frees the batch. */
static void hint_part_run(struct loop_msg *msg)
{
    struct hint_part *part = container_of(msg, struct hint_part, msg);
    struct hint_batch *batch = part->batch;
    size_t end = u64_min(part->next + SHM_HINT_KEYS, batch->count);

    for (; part->next < end; part->next++)
        if (agent_shard_owns(part->shard, &batch->keys[part->next]))
            (void)agent_hint_take(part->shard, &batch->agent->users[0], &batch->keys[part->next],
                                  batch->need_ns, batch->priority);
    if (part->next < batch->count)
        loop_send(part->shard->reactor->loop, &part->msg, hint_part_run);
    else if (atomic_fetch_sub(&batch->left, 1) == 1)
        hint_batch_free(batch);
}

/* What is wrong with hints; *out_volume: the number of their volume. */
static icms_err hints_check(const struct agent *agent, const struct agent_hints *hints,
                            struct err_why *why, uint32_t *out_volume)
{
    uint64_t volumes = agent_access(agent, hints->user);
    uint32_t volume = 0;

    if (hints->count == 0)
        return err_set(why, ICMS_INVALID, "no keys");
    for (size_t i = 0; i < hints->count; i++)
        if (hints->keys[i].length < 1 || hints->keys[i].length > LIMIT_KEY_BYTES)
            return err_set(why, ICMS_INVALID, "key %zu: a key has 1 to %d bytes", i,
                           LIMIT_KEY_BYTES);
    if (hints->priority > ICMS_PRIORITY_MAX)
        return err_set(why, ICMS_INVALID, "priority %u: 0 to %d are possible", hints->priority,
                       ICMS_PRIORITY_MAX);
    if (hints->deadline_ms == 0 || hints->deadline_ms > AGENT_DEADLINE_MAX_NS / 1000000)
        return err_set(why, ICMS_INVALID, "a deadline of %u ms: 1 to %llu are possible",
                       hints->deadline_ms, (unsigned long long)AGENT_DEADLINE_MAX_NS / 1000000);
    if (hints->tier != ICMS_TIER_DRAM)
        return err_set(why, ICMS_UNSUPPORTED, "this agent prestages into its memory (dram) alone");
    while (volume < agent->volume_count &&
           ((volumes >> volume & 1) == 0 ||
            strcmp(agent->volumes[volume].spec.name, hints->volume) != 0))
        volume++;
    if (volume == agent->volume_count)
        return err_set(why, ICMS_NO_VOLUME, "this agent has no volume %.63s", hints->volume);
    if (atomic_load_explicit(&agent->draining, memory_order_relaxed))
        return err_set(why, ICMS_CLOSED, "the agent is draining");
    *out_volume = volume;
    return ICMS_OK;
}

/* A place for the batch; false: all are taken. */
static bool hint_batch_place(struct agent *agent, struct hint_batch *batch)
{
    for (batch->place = 0; batch->place < AGENT_HINT_BATCHES; batch->place++) {
        void *none = NULL;

        if (atomic_compare_exchange_strong(&agent->hint_batches[batch->place], &none, batch))
            return true;
    }
    return false;
}

icms_err agent_prestage(struct agent *agent, const struct agent_hints *hints, struct err_why *why)
{
    uint32_t volume = 0, reactor_count = agent->reactor_count;
    icms_err err = hints_check(agent, hints, why, &volume);
    struct hint_batch *batch;

    if (err != ICMS_OK)
        return err;
    batch = malloc(sizeof(*batch) + hints->count * sizeof(hints->keys[0]));
    if (batch == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for %zu hints", hints->count);
    batch->agent = agent;
    batch->left = reactor_count;
    batch->need_ns = loop_env_now_ns(agent->env) + (uint64_t)hints->deadline_ms * 1000000;
    batch->priority = hints->priority;
    batch->count = hints->count;
    memcpy(batch->keys, hints->keys, hints->count * sizeof(hints->keys[0]));
    for (uint32_t i = 0; i < reactor_count; i++)
        batch->parts[i] =
            (struct hint_part){.batch = batch, .shard = &agent->reactors[i].shards[volume]};
    if (!hint_batch_place(agent, batch)) {
        free(batch);
        return err_set(why, ICMS_BUSY, "hints of %d requests wait already; try again later",
                       AGENT_HINT_BATCHES);
    }
    for (uint32_t i = 0; i < reactor_count; i++)
        loop_send(agent->reactors[i].loop, &batch->parts[i].msg, hint_part_run);
    return ICMS_OK;
}

void agent_prestage_forget(struct agent *agent)
{
    for (uint32_t i = 0; i < AGENT_HINT_BATCHES; i++)
        free(atomic_load(&agent->hint_batches[i]));
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err agent_prestage_init(struct agent_reactor *reactor)
{
    const struct agent *agent = reactor->agent;
    uint32_t share_count = agent->volume_count * AGENT_MEMBERS;
    struct agent_prestage *prestage = calloc(1, sizeof(*prestage));

    reactor->prestage = prestage;
    if (prestage == NULL)
        return ICMS_NO_MEMORY;
    prestage->reactor = reactor;
    prestage->hints = calloc(AGENT_HINTS, sizeof(prestage->hints[0]));
    prestage->shares = calloc(share_count, sizeof(prestage->shares[0]));
    prestage->line_memory = malloc(line_bytes(agent->volume_count, AGENT_MEMBERS));
    if (prestage->hints == NULL || prestage->shares == NULL || prestage->line_memory == NULL)
        return ICMS_NO_MEMORY;
    line_init(&prestage->line, prestage->line_memory, agent->volume_count, AGENT_MEMBERS,
              agent->weights);
    list_init(&prestage->free);
    list_init(&prestage->held);
    for (int i = 0; i < HINT_KEY_LISTS; i++)
        list_init(&prestage->keys[i]);
    for (uint32_t i = 0; i < share_count; i++) {
        list_init(&prestage->shares[i].link);
        list_init(&prestage->shares[i].held_link);
        prestage->shares[i].number = i;
    }
    loop_timer_init(&prestage->retry, prestage_retry);
    for (uint32_t i = 0; i < agent->volume_count; i++) {
        reactor->shards[i].hint_read = shard_hint_read;
        reactor->shards[i].hint_gone = shard_hint_gone;
    }
    return ICMS_OK;
}

void agent_prestage_fini(struct agent_reactor *reactor)
{
    struct agent_prestage *prestage = reactor->prestage;

    if (prestage == NULL)
        return;
    free(prestage->hints);
    free(prestage->shares);
    free(prestage->line_memory);
    free(prestage);
    reactor->prestage = NULL;
}
