/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/match.c: many keys of one request, looked for at once: exists and the longest prefix.
 *
 * Called by req.c on the reactor's loop; answers come back there by agent_part_answered
 * (exist-many, up to 64 keys of one enclosure a command) and agent_match_op_over (an operation a
 * key, where the enclosure does not offer that).
 *
 * Life of a batch: agent_match_new -> agent_match_start -> match_run (asks for every key that can
 * be asked for, before any answer) -> agent_part_answered, match_run again for keys that somebody
 * else has to be asked for -> agent_req_match_over -> agent_match_leave. A request that ends by its
 * deadline leaves earlier; the batch is free when the last answer is back.
 *
 * Who is asked, and what the answers mean together, is as in op.c, key by key.
 *
 * Invariants: a key in MATCH_OUT is in one part or operation, and in no other; `left` counts the
 * keys that are not KNOWN, `out` the parts and operations under way.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

#include "base/fault.h"

/* ---- memory --------------------------------------------------------------------------------- */

icms_err agent_reactor_matches_init(struct agent_reactor *reactor)
{
    list_init(&reactor->free_matches);
    list_init(&reactor->free_parts);
    list_init(&reactor->wait_match);
    list_init(&reactor->wait_part);
    list_init(&reactor->wait_alone);
    reactor->matches = calloc(AGENT_MATCHES, sizeof(reactor->matches[0]));
    reactor->parts = calloc(AGENT_PARTS, sizeof(reactor->parts[0]));
    if (reactor->matches == NULL || reactor->parts == NULL)
        return ICMS_NO_MEMORY;
    for (int i = 0; i < AGENT_MATCHES; i++)
        list_push(&reactor->free_matches, &reactor->matches[i].link);
    for (int i = 0; i < AGENT_PARTS; i++)
        list_push(&reactor->free_parts, &reactor->parts[i].link);
    return ICMS_OK;
}

void agent_reactor_matches_fini(struct agent_reactor *reactor)
{
    free(reactor->matches);
    free(reactor->parts);
}

struct agent_match *agent_match_new(struct agent_shard *shard)
{
    struct list *link = list_pop(&shard->reactor->free_matches);
    struct agent_match *match;

    if (link == NULL)
        return NULL;
    match = container_of(link, struct agent_match, link);
    match->shard = shard;
    match->req = NULL;
    match->count = match->left = match->out = match->next = match->looked = 0;
    match->more_sent = false;
    memset(match->open, 0, sizeof(match->open));
    list_init(&match->link);
    return match;
}

/* Nobody waits for it and nothing of it is under way. */
static void match_free(struct agent_match *match)
{
    struct agent_reactor *reactor = match->shard->reactor;

    check(match->req == NULL && match->out == 0);
    list_remove(&match->link);
    list_push(&reactor->free_matches, &match->link);
    agent_reactor_kick(reactor);
}

void agent_match_leave(struct agent_match *match)
{
    match->req = NULL;
    if (match->out == 0)
        match_free(match);
}

/* ---- one key -------------------------------------------------------------------------------- */

static void match_known(struct agent_match *match, uint32_t i, enum icms_miss reason)
{
    check(match->state[i] != MATCH_KNOWN && match->left > 0);
    match->state[i] = MATCH_KNOWN;
    match->reason[i] = (uint8_t)reason;
    match->left--;
}

/* Nobody has it, as far as somebody could be asked. */
static void match_absent(struct agent_match *match, uint32_t i)
{
    if (match->owner_down[i])
        match_known(match, i, ICMS_MISS_ENCLOSURE_DOWN);
    else if (match->owner_lacks[i])
        match_known(match, i, ICMS_MISS_NO_VOLUME);
    else
        match_known(match, i, ICMS_MISS_ABSENT);
}

/* Somebody else has to be asked, if there is one. */
static void match_again(struct agent_match *match, uint32_t i)
{
    match->state[i] = MATCH_ASK;
    if (i < match->next)
        match->next = i;
}

/* ---- asking --------------------------------------------------------------------------------- */

/* With an operation of its own. NULL, or where to wait for one. */
static struct list *match_ask_alone(struct agent_match *match, uint32_t i)
{
    struct agent_op *op =
        agent_op_new(match->shard, AGENT_OP_EXIST, &match->keys[i], IO_CLASS_LOAD);

    if (op == NULL)
        return &match->shard->reactor->wait_alone;
    op->match = match;
    op->match_key = i;
    op->deadline_ns = match->deadline_ns;
    op->tried = match->tried[i];
    op->owner_down = match->owner_down[i];
    op->owner_lacks = match->owner_lacks[i];
    op->first_reason = match->asked_next[i] ? ICMS_MISS_ABSENT : ICMS_MISS_NONE;
    match->state[i] = MATCH_OUT;
    match->out++;
    agent_op_start(op);
    return NULL;
}

/* Puts a key into the open part of its enclosure, which goes when it is full. NULL, or where to
 * wait for a part. */
static struct list *match_ask_part(struct agent_match *match, uint32_t i, struct agent_path *path,
                                   struct agent_part **io_part)
{
    struct agent_part *part = *io_part;

    if (part == NULL) {
        struct list *link = list_pop(&match->shard->reactor->free_parts);

        if (link == NULL)
            return &match->shard->reactor->wait_part;
        part = *io_part = container_of(link, struct agent_part, link);
        list_init(&part->link);
        part->match = match;
        part->path = path;
        part->count = 0;
        match->out++;
    }
    part->index[part->count] = (uint16_t)i;
    part->keys[part->count] = match->keys[i];
    part->count++;
    match->state[i] = MATCH_OUT;
    match->tried[i] |= (uint64_t)1 << path->number;
    if (part->count == NVME_KV_EXIST_MANY_KEYS) {
        *io_part = NULL;
        agent_path_ask_part(path, part);
    }
    return NULL;
}

/* Asks for a key, or knows its answer: NULL. Else there is nothing to ask with: where to wait. */
static struct list *match_ask(struct agent_match *match, uint32_t i)
{
    struct agent_shard *shard = match->shard;
    struct agent_path *path;

    if (shard->agent->local != NULL) {
        match_known(match, i, agent_local_exists(shard->agent->local, shard, &match->keys[i]));
        return NULL;
    }
    path = agent_op_pick(shard, &match->keys[i], match->tried[i], &match->owner_down[i],
                         &match->owner_lacks[i]);
    if (path != NULL && atomic_load_explicit(&path->exist_many, memory_order_relaxed))
        return match_ask_part(match, i, path, &match->open[path->number]);
    if (path != NULL)
        return match_ask_alone(match, i);
    if (match->tried[i] == 0 && !match->owner_down[i] && !match->owner_lacks[i])
        match_known(match, i, ICMS_MISS_ENCLOSURE_DOWN); /* there is no enclosure at all */
    else
        match_absent(match, i);
    return NULL;
}

static void match_more(struct loop_msg *msg);

/* Everything is known: whoever waits is told. Nothing is under way and nobody waits: free. */
static void match_settle(struct agent_match *match)
{
    if (match->req != NULL && match->left == 0)
        agent_req_match_over(match->req);
    else if (match->req == NULL && match->out == 0)
        match_free(match);
}

/* Looks in the arena for the next keys that were not looked for there. */
static void match_look(struct agent_match *match)
{
    uint32_t begin = match->looked;
    uint32_t count = (uint32_t)u64_min(match->count - begin, SHM_PROBE_KEYS);
    uint32_t there = agent_shard_find_many(match->shard, &match->keys[begin], count);

    for (uint32_t i = 0; i < count; i++)
        if ((there >> i & 1) != 0)
            match_known(match, begin + i, ICMS_MISS_NONE);
    match->looked = begin + count;
}

/* Parts that are not full go as they are. */
static void match_parts_send(struct agent_match *match)
{
    for (uint32_t j = 0; j < match->shard->agent->path_count; j++) {
        struct agent_part *part = match->open[j];

        match->open[j] = NULL;
        if (part != NULL)
            agent_path_ask_part(part->path, part);
    }
}

/* Asks for keys that are to be asked for; what there is nothing to ask with for waits. What was
 * asked for goes out when the loop comes to it, so it is let go now and then: the first enclosures
 * answer while the last ones are not asked yet. */
static void match_run(struct agent_match *match)
{
    struct agent_reactor *reactor = match->shard->reactor;
    uint32_t end = match->next + AGENT_MATCH_SLICE;
    struct list *wait = NULL;

    list_remove(&match->link);
    if (match->req == NULL)
        match->next = match->count; /* nobody wants to know */
    while (match->next < match->count && match->next < end) {
        if (match->next >= match->looked)
            match_look(match);
        if (match->state[match->next] == MATCH_ASK)
            wait = match_ask(match, match->next);
        if (wait != NULL)
            break;
        match->next++;
    }
    if (wait == NULL && match->next < match->count) {
        match->more_sent = true;
        match->out++;
        loop_send(reactor->loop, &match->more, match_more);
        return;
    }
    match_parts_send(match);
    if (wait != NULL)
        list_push(wait, &match->link);
    match_settle(match);
}

static void match_more(struct loop_msg *msg)
{
    struct agent_match *match = container_of(msg, struct agent_match, more);

    match->more_sent = false;
    match->out--;
    match_run(match);
}

void agent_match_start(struct agent_match *match, uint64_t deadline_ns)
{
    match->deadline_ns = deadline_ns;
    match->left = match->count;
    match->next = match->looked = 0;
    memset(match->owner_down, 0, match->count * sizeof(match->owner_down[0]));
    memset(match->owner_lacks, 0, match->count * sizeof(match->owner_lacks[0]));
    memset(match->asked_next, 0, match->count * sizeof(match->asked_next[0]));
    memset(match->tried, 0, match->count * sizeof(match->tried[0]));
    memset(match->state, MATCH_ASK, match->count * sizeof(match->state[0]));
    match_run(match);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* What the answer of a part means for its key k. */
static void part_key_answered(const struct agent_part *part, uint32_t k, icms_err err,
                              enum icms_miss reason)
{
    struct agent_match *match = part->match;
    uint32_t i = part->index[k];

    if (err == ICMS_OK && (part->map >> k & 1) != 0) {
        match_known(match, i, ICMS_MISS_NONE);
    } else if (err == ICMS_OK) {
        if (!match->asked_next[i] && agent_path_was_away(part->path, match->shard)) {
            match->asked_next[i] = true;
            match_again(match, i);
        } else {
            match_absent(match, i);
        }
    } else if (agent_err_is_lost(err)) {
        match->owner_down[i] = true;
        match_again(match, i);
    } else if (err == ICMS_NO_VOLUME) {
        match->owner_lacks[i] = true;
        match_again(match, i);
    } else if (err == ICMS_UNSUPPORTED) { /* it has no exist-many after all */
        match->tried[i] &= ~((uint64_t)1 << part->path->number);
        match_again(match, i);
    } else {
        match_known(match, i, reason != ICMS_MISS_NONE ? reason : ICMS_MISS_DRIVE_DOWN);
    }
}

void agent_part_answered(struct agent_part *part)
{
    struct agent_match *match = part->match;
    struct agent_reactor *reactor = match->shard->reactor;
    icms_err err = part->err;
    enum icms_miss reason = part->reason;

    if (fault_hit("agent.answer"))
        err = ICMS_PEER_DOWN;
    if (err != ICMS_UNSUPPORTED && err != ICMS_NO_VOLUME)
        agent_answer_read(&err, &reason);
    for (uint32_t k = 0; k < part->count; k++)
        part_key_answered(part, k, err, reason);
    match->out--;
    list_push(&reactor->free_parts, &part->link);
    agent_reactor_kick(reactor);
    if (match->next < match->count && !match->more_sent)
        match_run(match);
    else
        match_settle(match);
}

void agent_match_op_over(struct agent_op *op)
{
    struct agent_match *match = op->match;
    enum icms_miss reason = op->reason;

    if (op->err != ICMS_OK && reason == ICMS_MISS_NONE)
        reason = op->err == ICMS_NO_VOLUME ? ICMS_MISS_NO_VOLUME : ICMS_MISS_DRIVE_DOWN;
    match_known(match, op->match_key, op->err == ICMS_OK ? ICMS_MISS_NONE : reason);
    match->out--;
    match_settle(match);
}

/* ---- waiting -------------------------------------------------------------------------------- */

bool agent_match_waits(const struct agent_reactor *reactor)
{
    return (!list_empty(&reactor->wait_part) && !list_empty(&reactor->free_parts)) ||
           (!list_empty(&reactor->wait_alone) && agent_reactor_has_op(reactor, IO_CLASS_LOAD)) ||
           (!list_empty(&reactor->wait_match) && !list_empty(&reactor->free_matches));
}

/* The batches of one list, oldest first, until one finds no room. */
static void match_kick(struct list *wait)
{
    struct list *link;

    while ((link = list_first(wait)) != NULL) {
        match_run(container_of(link, struct agent_match, link));
        /* Only the pointer is looked at: when it found room, the batch may be another's. */
        if (wait->prev == link) {
            list_remove(link);
            list_push_front(wait, link);
            break;
        }
    }
}

/* Who waits for an operation does not hold up who waits for a part, nor the other way round. */
void agent_match_kick(struct agent_reactor *reactor)
{
    struct list *link;

    match_kick(&reactor->wait_part);
    match_kick(&reactor->wait_alone);
    while (!list_empty(&reactor->free_matches) && (link = list_first(&reactor->wait_match)) != NULL)
        agent_req_again(container_of(link, struct agent_req, link));
}
