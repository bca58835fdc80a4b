/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/match.c: many keys of one request, looked for at once: exists and the longest prefix.
 *
 * Called by req.c on the reactor's loop; answers come back there by match_cmd_answered
 * (exist-many, up to 64 keys of one enclosure a command) and match_op_done (an operation a
 * key, where the enclosure does not offer that).
 *
 * Life of a batch: agent_match_new -> agent_match_start -> match_run (asks for every key that can
 * be asked for, before any answer) -> match_cmd_answered, match_run again for keys that
 * somebody else has to be asked for -> match->done -> agent_match_leave. A request that
 * ends by its deadline leaves earlier; the batch is free when the last answer is back.
 *
 * Who is asked, and what the answers mean together, is as in op.c, key by key.
 *
 * Invariants: a key in MATCH_OUT is in one command or operation, and in no other; `left` counts the
 * keys that are not KNOWN, `out` the commands and operations in flight.
 */
#include "agent/agent_int.h"

#include <stdlib.h>

#include "base/fault.h"

/* ---- memory --------------------------------------------------------------------------------- */

icms_err agent_reactor_matches_init(struct agent_reactor *reactor)
{
    list_init(&reactor->free_matches);
    list_init(&reactor->free_match_cmds);
    reactor->matches = calloc(AGENT_MATCHES, sizeof(reactor->matches[0]));
    reactor->match_cmds = calloc(AGENT_MATCH_CMDS, sizeof(reactor->match_cmds[0]));
    if (reactor->matches == NULL || reactor->match_cmds == NULL)
        return ICMS_NO_MEMORY;
    for (int i = 0; i < AGENT_MATCHES; i++)
        list_push(&reactor->free_matches, &reactor->matches[i].waiter.link);
    for (int i = 0; i < AGENT_MATCH_CMDS; i++)
        list_push(&reactor->free_match_cmds, &reactor->match_cmds[i].link);
    return ICMS_OK;
}

void agent_reactor_matches_fini(struct agent_reactor *reactor)
{
    free(reactor->matches);
    free(reactor->match_cmds);
}

static uint64_t match_wake(struct agent_waiter *waiter, struct agent_op *op);

struct agent_match *agent_match_new(struct agent_shard *shard, struct agent_user_share *user)
{
    struct agent_reactor *reactor = shard->reactor;
    struct agent_match *match;
    struct list *link;

    if (!reactor->waking && line_has_others(&reactor->wait_match, agent_share(shard, user)))
        return NULL;
    link = list_pop(&reactor->free_matches);
    if (link == NULL)
        return NULL;
    match = container_of(link, struct agent_match, waiter.link);
    match->shard = shard;
    match->req = NULL;
    match->user = user;
    match->identity = shard->identity;
    match->count = match->left = match->out = match->next = match->looked = 0;
    match->more_sent = false;
    memset(match->open, 0, sizeof(match->open));
    list_init(&match->waiter.link);
    match->waiter.wake = match_wake;
    return match;
}

/* Nobody waits for it and nothing of it is in flight. */
static void match_free(struct agent_match *match)
{
    struct agent_reactor *reactor = match->shard->reactor;

    check(match->req == NULL && match->out == 0);
    agent_waiter_leave(&match->waiter);
    list_push(&reactor->free_matches, &match->waiter.link);
    agent_reactor_wake(reactor);
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
    if (match->searches[i].owner_down)
        match_known(match, i, ICMS_MISS_ENCLOSURE_DOWN);
    else if (match->searches[i].owner_lacks)
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

static void match_cmd_answered(struct agent_match_cmd *cmd);
static void match_op_done(struct agent_op *op);

/* ---- asking --------------------------------------------------------------------------------- */

/* With an operation of its own. NULL, or where to wait for one. */
static struct line *match_ask_alone(struct agent_match *match, uint32_t i)
{
    struct agent_op *op =
        agent_op_new(match->shard, match->user, AGENT_OP_EXIST, &match->keys[i], IO_CLASS_LOAD);

    if (op == NULL)
        return &match->shard->reactor->wait_alone;
    op->done = match_op_done;
    op->match = match;
    op->match_key = i;
    op->deadline_ns = match->deadline_ns;
    op->search = match->searches[i];
    op->first_reason =
        op->search.is_missed && op->search.passed == 0 ? ICMS_MISS_ABSENT : ICMS_MISS_NONE;
    match->state[i] = MATCH_OUT;
    match->out++;
    match->took_bytes += AGENT_KEY_COST_BYTES;
    agent_op_start(op);
    return NULL;
}

/* Puts a key into the open command of its enclosure, which goes when it is full. NULL, or where to
 * wait for a command. */
static struct line *match_ask_cmd(struct agent_match *match, uint32_t i,
                                  struct agent_enclosure *enclosure,
                                  struct agent_match_cmd **io_cmd)
{
    struct agent_match_cmd *cmd = *io_cmd;

    if (cmd == NULL) {
        struct agent_reactor *reactor = match->shard->reactor;
        bool is_next = reactor->waking ||
                       !line_has_others(&reactor->wait_cmd, agent_share(match->shard, match->user));
        struct list *link = is_next ? list_pop(&reactor->free_match_cmds) : NULL;

        if (link == NULL)
            return &reactor->wait_cmd;
        cmd = *io_cmd = container_of(link, struct agent_match_cmd, link);
        list_init(&cmd->link);
        list_init(&cmd->asked.link);
        cmd->answered = match_cmd_answered;
        cmd->match = match;
        cmd->enclosure = enclosure;
        cmd->count = 0;
        match->out++;
        match->took_bytes += NVME_KV_EXIST_MANY_KEYS * AGENT_KEY_COST_BYTES;
    }
    cmd->index[cmd->count] = (uint16_t)i;
    cmd->keys[cmd->count] = match->keys[i];
    cmd->count++;
    match->state[i] = MATCH_OUT;
    agent_search_asked(&match->searches[i], enclosure);
    if (cmd->count == NVME_KV_EXIST_MANY_KEYS) {
        *io_cmd = NULL;
        agent_enclosure_ask_match(enclosure, cmd);
    }
    return NULL;
}

/* Asks for a key, or knows its answer: NULL. Else there is nothing to ask with: where to wait. */
static struct line *match_ask(struct agent_match *match, uint32_t i)
{
    struct agent_shard *shard = match->shard;
    struct agent_enclosure *enclosure;

    if (match->identity != shard->identity) { /* reset meanwhile */
        match_known(match, i, ICMS_MISS_NO_VOLUME);
        return NULL;
    }
    match->from[i] = MATCH_FROM_LOCAL;
    if (shard->agent->local != NULL) {
        match_known(match, i, agent_local_exists(shard->agent->local, shard, &match->keys[i]));
        return NULL;
    }
    if (agent_tier_has(shard, &match->keys[i])) {
        match_known(match, i, ICMS_MISS_NONE);
        return NULL;
    }
    enclosure = agent_op_pick(shard, &match->keys[i], &match->searches[i]);
    if (enclosure != NULL && atomic_load_explicit(&enclosure->exist_many, memory_order_relaxed))
        return match_ask_cmd(match, i, enclosure, &match->open[enclosure->number]);
    if (enclosure != NULL)
        return match_ask_alone(match, i);
    if (match->searches[i].tried == 0 && !match->searches[i].owner_down &&
        !match->searches[i].owner_lacks)
        match_known(match, i, ICMS_MISS_ENCLOSURE_DOWN); /* there is no enclosure at all */
    else
        match_absent(match, i);
    return NULL;
}

static void match_more(struct loop_msg *msg);

/* Everything is known: whoever waits is told. Nothing is in flight and nobody waits: free. */
static void match_settle(struct agent_match *match)
{
    if (match->req != NULL && match->left == 0)
        match->done(match);
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
        if ((there >> i & 1) != 0) {
            match->from[begin + i] = MATCH_FROM_DRAM;
            match_known(match, begin + i, ICMS_MISS_NONE);
        }
    match->looked = begin + count;
}

/* Parts that are not full go as they are. */
static void match_parts_send(struct agent_match *match)
{
    for (uint32_t j = 0; j < LIMIT_ENCLOSURES; j++) {
        struct agent_match_cmd *cmd = match->open[j];

        match->open[j] = NULL;
        if (cmd != NULL)
            agent_enclosure_ask_match(cmd->enclosure, cmd);
    }
}

/* Asks for keys that are to be asked for; what there is nothing to ask with for waits. What was
 * asked for goes out when the loop comes to it, so it is let go now and then: the first enclosures
 * answer while the last ones are not asked yet. Returns the bytes of what it took to ask with. */
static uint64_t match_run(struct agent_match *match)
{
    struct agent_reactor *reactor = match->shard->reactor;
    uint32_t end = match->next + AGENT_MATCH_SLICE;
    struct line *wait = NULL;
    uint64_t took_bytes;

    agent_waiter_leave(&match->waiter);
    match->took_bytes = 0;
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
    took_bytes = match->took_bytes;
    if (wait == NULL && match->next < match->count) {
        match->more_sent = true;
        match->out++;
        loop_send(reactor->loop, &match->more, match_more);
        return took_bytes;
    }
    match_parts_send(match);
    if (wait != NULL)
        agent_line_wait(&match->waiter, wait, agent_share(match->shard, match->user));
    match_settle(match);
    return took_bytes;
}

static void match_more(struct loop_msg *msg)
{
    struct agent_match *match = container_of(msg, struct agent_match, more);

    match->more_sent = false;
    match->out--;
    (void)match_run(match);
}

/* There may be something to ask with. */
static uint64_t match_wake(struct agent_waiter *waiter, struct agent_op *op)
{
    return match_run(container_of(waiter, struct agent_match, waiter));
}

void agent_match_start(struct agent_match *match, uint64_t deadline_ns)
{
    match->deadline_ns = deadline_ns;
    match->left = match->count;
    match->next = match->looked = 0;
    memset(match->searches, 0, match->count * sizeof(match->searches[0]));
    memset(match->state, MATCH_ASK, match->count * sizeof(match->state[0]));
    (void)match_run(match);
}

/* ---- answers -------------------------------------------------------------------------------- */

/* What the answer of a command means for its key k. */
static void cmd_key_answered(const struct agent_match_cmd *cmd, uint32_t k, icms_err err,
                             enum icms_miss reason)
{
    struct agent_match *match = cmd->match;
    uint32_t i = cmd->index[k];
    struct agent_search *search = &match->searches[i];
    bool is_there = (cmd->map >> k & 1) != 0;

    if (match->identity != match->shard->identity) { /* reset since it was asked */
        match_known(match, i, ICMS_MISS_NO_VOLUME);
        return;
    }
    if (err == ICMS_OK)
        agent_search_count(match->shard, search, is_there);
    if (err == ICMS_OK && is_there) {
        match->from[i] = (uint8_t)cmd->enclosure->number;
        match_known(match, i, ICMS_MISS_NONE);
    } else if (err == ICMS_OK) {
        if (agent_search_missed(match->shard, search, cmd->enclosure))
            match_again(match, i);
        else
            match_absent(match, i);
    } else if (agent_err_is_lost(err) || err == ICMS_NO_VOLUME) {
        agent_search_lost(search, err == ICMS_NO_VOLUME);
        match_again(match, i);
    } else if (err == ICMS_UNSUPPORTED) { /* it has no exist-many after all */
        search->tried &= ~((uint64_t)1 << cmd->enclosure->number);
        search->may_be_next = search->is_missed && !search->at_former;
        match_again(match, i);
    } else {
        match_known(match, i, reason != ICMS_MISS_NONE ? reason : ICMS_MISS_DRIVE_DOWN);
    }
}

static void match_cmd_answered(struct agent_match_cmd *cmd)
{
    struct agent_match *match = cmd->match;
    struct agent_reactor *reactor = match->shard->reactor;
    icms_err err = cmd->err;
    enum icms_miss reason = cmd->reason;

    if (fault_hit("agent.answer"))
        err = ICMS_PEER_DOWN;
    if (err != ICMS_UNSUPPORTED && err != ICMS_NO_VOLUME)
        agent_answer_read(&err, &reason);
    for (uint32_t k = 0; k < cmd->count; k++)
        cmd_key_answered(cmd, k, err, reason);
    match->out--;
    list_push(&reactor->free_match_cmds, &cmd->link);
    agent_reactor_wake(reactor);
    if (match->next < match->count && !match->more_sent)
        (void)match_run(match);
    else
        match_settle(match);
}

static void match_op_done(struct agent_op *op)
{
    struct agent_match *match = op->match;
    enum icms_miss reason = op->reason;

    if (op->err != ICMS_OK && reason == ICMS_MISS_NONE)
        reason = op->err == ICMS_NO_VOLUME ? ICMS_MISS_NO_VOLUME : ICMS_MISS_DRIVE_DOWN;
    if (op->enclosure != NULL)
        match->from[op->match_key] = (uint8_t)op->enclosure->number;
    match_known(match, op->match_key, op->err == ICMS_OK ? ICMS_MISS_NONE : reason);
    match->out--;
    match_settle(match);
}

/* ---- estimates ------------------------------------------------------------------------------ */

/* The server that a key would be loaded from; NULL: memory. */
static const struct estimate *match_server(const struct agent_match *match, uint8_t from)
{
    const struct agent *agent = match->shard->agent;

    if (from == MATCH_FROM_DRAM)
        return NULL;
    if (from == MATCH_FROM_LOCAL)
        return agent->local != NULL ? &agent->local->estimate : &agent->tier->estimate;
    return &match->shard->reactor->enclosures[from].estimate;
}

/* About what the stored block of a key has. */
static uint64_t match_bytes(const struct agent_match *match, uint32_t i)
{
    const struct agent_shard *shard = match->shard;
    const struct key *key = &match->keys[i];
    uint64_t bytes = 0;

    if (match->from[i] == MATCH_FROM_LOCAL)
        bytes = shard->agent->local != NULL ? agent_local_bytes(shard->agent->local, shard, key)
                                            : agent_tier_bytes(shard, key);
    return bytes != 0 ? u64_min(bytes, shard->stored_bytes_max) : agent_shard_expected_bytes(shard);
}

/* Whether it is in flight where it comes from, as the estimate of that counts it: loads of hints
 * count at own drives only (ask.c). */
static bool match_is_in_flight(const struct agent_match *match, uint32_t i)
{
    const struct agent_op *op = agent_op_find(match->shard, &match->keys[i], AGENT_OP_LOAD);

    return op != NULL && (op->io_class != IO_CLASS_PRESTAGE || match->from[i] == MATCH_FROM_LOCAL);
}

static enum icms_source match_source(uint8_t from)
{
    return from == MATCH_FROM_DRAM    ? ICMS_SOURCE_DRAM
           : from == MATCH_FROM_LOCAL ? ICMS_SOURCE_LOCAL
                                      : ICMS_SOURCE_POD;
}

void agent_match_estimate(const struct agent_match *match, uint8_t *out)
{
    uint64_t now_ns = reactor_now_ns(match->shard->reactor);
    uint64_t ahead[MATCH_FROMS] = {0}; /* bytes of the keys before, by where they are */
    uint64_t all_ns = 0, error = 0;

    for (uint32_t i = 0; i < match->count; i++) {
        const struct estimate *server;
        struct shm_estimate estimate;
        uint64_t bytes, ns;

        if (match->state[i] != MATCH_KNOWN || match->reason[i] != ICMS_MISS_NONE)
            return;
        server = match_server(match, match->from[i]);
        bytes = match_bytes(match, i);
        if (server != NULL && !match_is_in_flight(match, i))
            ahead[match->from[i]] += bytes;
        ns = server == NULL ? 0 : estimate_ns(server, ahead[match->from[i]], now_ns);
        if (ns > all_ns || all_ns == 0) {
            error = server == NULL ? 0 : estimate_error(server);
            all_ns = ns;
        }
        estimate = (struct shm_estimate){
            .us = (uint32_t)u64_min(all_ns / 1000, SHM_ESTIMATE_UNKNOWN), /* an hour fits */
            .error = (uint32_t)error,
            .bytes = (uint32_t)u64_min(bytes, UINT32_MAX),
            .source = (uint8_t)match_source(match->from[i]),
        };
        memcpy(out + match->at[i] * sizeof(estimate), &estimate, sizeof(estimate));
    }
}
