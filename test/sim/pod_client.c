/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process beside an agent, as libicms is one: it looks into the arenas itself, sends what it does
 * not find through its ring, holds leases, verifies trailers. It lives on a node of its own, so an
 * agent can die under it and it can die beside an agent.
 *
 * On the client's loop, but for what pod.h says control calls.
 *
 * Life: OUT -> pod_client_attach -> IN -> pod_client_leave -> LEAVING, until its wait for the event
 * is over -> LEFT -> pod_client_drive detaches -> DETACH -> OUT. When the agent dies: OUT at once.
 *
 * What it proves. Each operation has one answer, of a kind that makes sense, in time. The bytes of
 * a hit were put under that key at some time. Staging memory is as it was left, before the answer
 * and after it (then it is poisoned). A leased block does not change until it is given back.
 */
#include <stdio.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "pod.h"
#include "wire/sealed.h"

#define CLIENT_TAKE 32

const bool pod_clients_verify = false;
const uint32_t pod_client_leases = POD_CLIENT_OPS;
const uint64_t pod_agent_pause_ns = 150 * MS;

static void client_turn(struct pod_client *client);

static uint64_t client_chance(struct pod_client *client, uint64_t n)
{
    return loop_random(client->loop) % n;
}

static uint64_t client_now(const struct pod_client *client)
{
    return sim_now_ns(client->world->sim);
}

static const struct pod_key *client_key(const struct pod_client *client, uint32_t key)
{
    return &client->world->model.keys[key];
}

static uint8_t *client_stage(const struct pod_client *client, const struct pod_op *op)
{
    return client->ring.staging + (uint64_t)(op - client->ops) * POD_STAGE_BYTES;
}

/* ---- the end of an operation ---------------------------------------------------------------- */

/* What an operation may be told. */
static bool client_makes_sense(const struct pod_world *world, const struct pod_op *op)
{
    const struct pod_job *job = &op->job;
    bool reads = job->op == SHM_OP_GET || job->op == SHM_OP_EXISTS;

    switch (job->status) {
    case ICMS_OK:
        return true;
    case ICMS_MISS:
        return (reads && job->reason != ICMS_MISS_NONE) || job->op == SHM_OP_REMOVE;
    case ICMS_CANCELED:
        return op->canceled;
    case ICMS_EXISTS:
        return job->op == SHM_OP_PUT && (job->flags & SHM_FLAG_IF_ABSENT) != 0;
    case ICMS_QUOTA:
    case ICMS_NO_SPACE:
        return job->op == SHM_OP_PUT;
    case ICMS_DEADLINE:
    case ICMS_BUSY:
    case ICMS_LIMIT:
    case ICMS_IO:
    case ICMS_DRIVE_DOWN:
    case ICMS_PEER_DOWN:
    case ICMS_REFUSED:
    case ICMS_RESET:
        return !reads;
    case ICMS_NO_VOLUME: /* nobody was ever asked which volumes there are; or no enclosure was told
                            of a reset yet */
        return !reads || world->resets > 0;
    default:
        return false;
    }
}

static void client_count(struct pod_client *client, struct pod_op *op)
{
    struct pod_world *world = client->world;
    struct pod_counts *counts = &world->counts;
    const struct pod_job *job = &op->job;

    if (job->status == ICMS_OK) {
        counts->ok[job->op]++;
        if (job->op == SHM_OP_GET)
            counts->source[job->source]++;
    } else if (job->status == ICMS_MISS) {
        counts->miss[job->reason]++;
    } else {
        counts->error[job->status]++;
    }
    world->history = hash64_mix(world->history ^ client_now(client) ^ (uint64_t)job->op << 56 ^
                                (uint64_t)job->status << 48 ^ (uint64_t)job->reason << 40);
    world->history = hash64_mix(world->history ^ job->key ^ (uint64_t)job->version << 32);
}

static void client_free(struct pod_client *client, struct pod_op *op)
{
    atomic_store_explicit(&client->ring.leases[op - client->ops], 0, memory_order_release);
    op->state = POD_OP_FREE;
    op->report = NULL;
}

/* In fair weather what is on flash is there, until the first block had to be evicted, or an agent
 * stored some at the next in order, where other agents do not look. */
static void client_judge_miss(struct pod_client *client, uint32_t key, enum icms_miss reason)
{
    if (reason == ICMS_MISS_DEADLINE || reason == ICMS_MISS_SHED || client->world->was_lowered ||
        client_key(client, key)->removed || pod_world_evictions(client->world) > 0)
        return;
    pod_fail(client->world, POD_FAULT_FORGOT,
             "nothing went wrong, but key %u on flash is missed: %s", key, icms_miss_name(reason));
}

static void client_judge_sure(struct pod_client *client, const struct pod_op *op)
{
    if (op->sure && op->job.status == ICMS_MISS)
        client_judge_miss(client, op->job.key, op->job.reason);
}

/* The answer is known: tells whoever wants to know. HELD stays, everything else is over. */
static void client_done(struct pod_client *client, struct pod_op *op)
{
    if (!client_makes_sense(client->world, op))
        pod_fail(client->world, POD_FAULT_ANSWER, "operation %u of client %u ends with %s, %s",
                 op->job.op, client->number, icms_err_name(op->job.status),
                 icms_miss_name(op->job.reason));
    client_count(client, op);
    client_judge_sure(client, op);
    if (op->job.op == SHM_OP_PUT && op->job.status == ICMS_OK &&
        (op->job.flags & (SHM_FLAG_ON_FLASH | SHM_FLAG_IF_ABSENT)) != 0)
        client->world->model.keys[op->job.key].flash = true;
    op->job.done = true;
    op->job.took_ns = client_now(client) - op->sent_ns;
    if (op->report != NULL)
        *op->report = op->job;
    if (op->state != POD_OP_HELD)
        client_free(client, op);
}

/* ---- reading -------------------------------------------------------------------------------- */

static uint32_t client_stored_bytes(const struct shm_arena *arena, uint32_t value_bytes)
{
    return value_bytes + (arena->sealed ? LIMIT_TRAILER_BYTES : 0);
}

static uint32_t client_reactor(const struct pod_client *client, const struct pod_key *key)
{
    return shm_reactor(&key->key, client->shards[0][key->volume].sealed, client->world->reactors);
}

/* Takes the identity that the volume has now at all reactors, as libicms does before each call.
 * False: somewhere it is changing. */
static bool client_identify(struct pod_client *client, uint32_t volume)
{
    bool known = true;

    for (uint32_t r = 0; r < client->world->reactors; r++) {
        struct shm_arena *shard = &client->shards[r][volume];

        known = (shm_arena_is_current(shard) || shm_arena_identify(shard)) && known;
    }
    return known;
}

/* Where a block of the key lies. */
static const struct shm_arena *client_shard(const struct pod_client *client,
                                            const struct pod_key *key)
{
    return &client->shards[client_reactor(client, key)][key->volume];
}

/* The block is leased in the operation's entry: looks at it, and holds it for a while. */
static void client_take(struct pod_client *client, struct pod_op *op, uint32_t slot, uint32_t bytes)
{
    const struct pod_key *key = client_key(client, op->job.key);
    const struct shm_arena *arena = client_shard(client, key);
    const uint8_t *value = shm_arena_value(arena, slot, bytes);

    op->job.status = ICMS_OK;
    if (op->job.source < ICMS_SOURCE_DRAM || op->job.source > ICMS_SOURCE_POD)
        pod_fail(client->world, POD_FAULT_ANSWER, "a hit from source %d", (int)op->job.source);
    if (arena->sealed &&
        (sealed_trailer_check(&(struct sealed_place){&op->uuid, &key->key, false}, bytes,
                              crc32c(value, bytes), value + bytes) != ICMS_OK ||
         !sealed_trailer_is(value + bytes, key->digest)))
        pod_fail(client->world, POD_FAULT_BYTES,
                 "key %u of volume %u: the trailer of a block in the arena does not match",
                 op->job.key, key->volume);
    op->job.version = pod_model_version(client->world, op->job.key, value, bytes);
    if (op->job.version == 0)
        pod_fail(client->world, POD_FAULT_BYTES,
                 "key %u of volume %u: %u bytes that were never put under it", op->job.key,
                 key->volume, bytes);
    if (pod_model_generation(op->job.version) != pod_world_generation(key->volume, &op->uuid))
        pod_fail(client->world, POD_FAULT_GHOST,
                 "key %u of volume %u: a block of generation %u is read in generation %u",
                 op->job.key, key->volume, pod_model_generation(op->job.version),
                 pod_world_generation(key->volume, &op->uuid));
    op->value = value;
    op->bytes = client_stored_bytes(arena, bytes);
    op->hash = crc32c(value, op->bytes);
    op->release_ns = client_now(client) + op->job.lease_ns;
    op->state = POD_OP_HELD;
    client_done(client, op);
}

/* Gives a lease back: the block is what it was. */
static void client_release(struct pod_client *client, struct pod_op *op)
{
    const struct pod_key *key = client_key(client, op->job.key);

    if (crc32c(op->value, op->bytes) != op->hash)
        pod_fail(client->world, POD_FAULT_BUFFER,
                 "key %u of volume %u: the block changed while it was leased", op->job.key,
                 key->volume);
    client_free(client, op);
}

static void client_release_due(struct pod_client *client)
{
    for (uint32_t i = 0; i < POD_CLIENT_OPS; i++) {
        struct pod_op *op = &client->ops[i];

        if (op->state == POD_OP_HELD && op->release_ns <= client_now(client))
            client_release(client, op);
    }
}

/* ---- answers -------------------------------------------------------------------------------- */

static void client_answer_put(struct pod_client *client, struct pod_op *op)
{
    uint8_t *stage = client_stage(client, op);

    if (crc32c(stage, POD_STAGE_BYTES) != op->hash)
        pod_fail(client->world, POD_FAULT_BUFFER, "staging memory changed before the answer");
    memset(stage, POD_POISON, POD_STAGE_BYTES);
    client_done(client, op);
}

static void client_answer_get(struct pod_client *client, struct pod_op *op,
                              const struct shm_complete *answer)
{
    const struct shm_arena *arena = client_shard(client, client_key(client, op->job.key));
    uint32_t lease =
        atomic_load_explicit(&client->ring.leases[op - client->ops], memory_order_acquire);

    if (op->job.status != ICMS_OK) {
        if (lease != 0)
            pod_fail(client->world, POD_FAULT_LIMIT, "a miss with a lease");
        client_done(client, op);
        return;
    }
    if (answer->value_bytes == 0 || answer->value_bytes > arena->value_bytes_max ||
        shm_arena_value(arena, answer->slot, answer->value_bytes) == NULL ||
        lease != answer->slot + 1)
        pod_fail(client->world, POD_FAULT_ANSWER, "a hit in slot %u of %u, %u bytes, lease %u",
                 answer->slot, arena->slot_count, answer->value_bytes, lease);
    client_take(client, op, answer->slot, answer->value_bytes);
}

/* A byte for each key; the first one is the job's. */
static void client_answer_batch(struct pod_client *client, struct pod_op *op)
{
    uint8_t *stage = client_stage(client, op);
    const uint8_t *reasons = stage + op->batch * sizeof(struct shm_key);

    for (uint32_t i = 0; op->job.status == ICMS_OK && i < op->batch; i++) {
        if (reasons[i] >= ICMS_MISS_COUNT)
            pod_fail(client->world, POD_FAULT_ANSWER, "reason %u of key %u in a batch", reasons[i],
                     op->batch_keys[i]);
        if (op->batch_sure[i] && reasons[i] != ICMS_MISS_NONE)
            client_judge_miss(client, op->batch_keys[i], (enum icms_miss)reasons[i]);
    }
    if (op->job.status == ICMS_OK && reasons[0] != ICMS_MISS_NONE) {
        op->job.status = ICMS_MISS;
        op->job.reason = (enum icms_miss)reasons[0];
    }
    memset(stage, POD_POISON, POD_STAGE_BYTES);
    client_done(client, op);
}

static void client_answer(struct pod_client *client, const struct shm_complete *answer)
{
    uint32_t index = (uint32_t)answer->tag;
    struct pod_op *op = index < POD_CLIENT_OPS ? &client->ops[index] : NULL;

    if (op == NULL || op->state != POD_OP_SENT || op->generation != answer->tag >> 32)
        pod_fail(client->world, POD_FAULT_ANSWER, "an answer to nothing, or the second one");
    client->answer_tag_last = answer->tag;
    if (op->job.status == ICMS_OK) { /* of those that answered before */
        op->job.status = (icms_err)answer->status;
        op->job.reason = (enum icms_miss)answer->reason;
    }
    op->job.source = (enum icms_source)answer->source;
    if (op->job.reason >= ICMS_MISS_COUNT)
        pod_fail(client->world, POD_FAULT_ANSWER, "reason %u", answer->reason);
    if (--op->answers_left > 0)
        return;
    if (op->job.op == SHM_OP_PUT)
        client_answer_put(client, op);
    else if (op->job.op == SHM_OP_GET)
        client_answer_get(client, op, answer);
    else if (op->batch > 0)
        client_answer_batch(client, op);
    else
        client_done(client, op);
}

static void client_reap_ring(struct pod_client *client, struct shm_ring *ring)
{
    struct shm_complete answers[CLIENT_TAKE];
    uint32_t count;

    do {
        if (shm_complete_take(ring, answers, CLIENT_TAKE, &count) != ICMS_OK)
            pod_fail(client->world, POD_FAULT_ANSWER, "a ring of completions makes no sense");
        for (uint32_t i = 0; i < count; i++) {
            client_answer(client, &answers[i]);
            if (client->world->options.canary == POD_CANARY_TWICE && client_chance(client, 50) == 0)
                client_answer(client, &answers[i]);
        }
    } while (count > 0 || !shm_client_sleep(ring));
}

static void client_reap(struct pod_client *client)
{
    for (uint32_t r = 0; r < client->world->reactors; r++)
        client_reap_ring(client, &client->rings[r]);
}

/* ---- sending -------------------------------------------------------------------------------- */

static struct pod_op *client_op_new(struct pod_client *client)
{
    for (uint32_t i = 0; i < POD_CLIENT_OPS; i++) {
        struct pod_op *op = &client->ops[i];

        if (op->state != POD_OP_FREE)
            continue;
        op->generation++;
        op->canceled = op->sure = false;
        return op;
    }
    return NULL;
}

static void client_push(struct pod_client *client, uint32_t reactor, const struct shm_submit *entry)
{
    struct shm_ring *ring = &client->rings[reactor];

    check(shm_submit_push(ring, entry)); /* far fewer operations than entries */
    if (shm_submit_publish(ring))
        loop_event_signal(client->attached.agent_events[reactor]);
}

/* To its reactor, or to all of them. */
static void client_push_op(struct pod_client *client, const struct pod_op *op,
                           struct shm_submit *entry)
{
    for (uint32_t i = 0; i < op->reactors; i++) {
        entry->identity = (uint8_t)client->shards[op->reactor + i][entry->volume].identity;
        client_push(client, op->reactor + i, entry);
    }
}

/* The value and its trailer into staging memory, which was poison until now. */
static void client_stage_fill(struct pod_client *client, struct pod_op *op)
{
    const struct pod_key *key = client_key(client, op->job.key);
    const struct shm_arena *arena = client_shard(client, key);
    uint32_t bytes = pod_model_bytes(client->world, op->job.key, op->job.version);
    uint8_t *stage = client_stage(client, op);

    for (uint32_t i = 0; i < POD_STAGE_BYTES; i++)
        if (stage[i] != POD_POISON)
            pod_fail(client->world, POD_FAULT_BUFFER, "staging memory changed after the answer");
    pod_model_fill(client->world, op->job.key, op->job.version, stage);
    if (arena->sealed)
        sealed_trailer_make(&op->uuid, &key->key, key->digest, bytes, crc32c(stage, bytes),
                            stage + bytes);
    op->hash = crc32c(stage, POD_STAGE_BYTES);
    op->bytes = bytes;
}

/* What needs no message. True: it is over. */
static bool client_local(struct pod_client *client, struct pod_op *op)
{
    const struct pod_key *key = client_key(client, op->job.key);
    uint32_t entry = (uint32_t)(op - client->ops), slot, bytes;
    struct shm_submit touch = {
        .volume = key->volume, .op = SHM_OP_TOUCH, .key_length = key->key.length};
    const struct shm_arena *shard = client_shard(client, key);
    uint64_t version;

    if (op->job.op == SHM_OP_EXISTS && shm_arena_has_first(shard, &key->key, 1) == 1) {
        op->job.status = ICMS_OK;
        client_done(client, op);
        return true;
    }
    if (op->job.op != SHM_OP_GET)
        return false;
    atomic_store_explicit(&client->ring.lease_shards[entry], shard->shard, memory_order_release);
    if (!shm_arena_lease(shard, &key->key, &client->ring.leases[entry], &slot, &version, &bytes))
        return false;
    if (!shm_arena_is_current(shard)) { /* reset since it was looked at */
        atomic_store_explicit(&client->ring.leases[entry], 0, memory_order_release);
        return false;
    }
    op->job.source = ICMS_SOURCE_DRAM;
    client_take(client, op, slot, bytes);
    memcpy(touch.key, key->key.bytes, sizeof(touch.key));
    touch.identity = (uint8_t)shard->identity;
    client_push(client, client_reactor(client, key), &touch);
    return true;
}

/* Half of the looks are for many keys of the volume at once: into staging memory. */
static void client_batch_fill(struct pod_client *client, struct pod_op *op)
{
    const struct pod_model *model = &client->world->model;
    uint8_t *stage = client_stage(client, op);
    uint32_t wanted = 2 + (uint32_t)client_chance(client, POD_BATCH_KEYS - 1);
    uint32_t at = op->job.key, volume = client_key(client, at)->volume;

    op->batch = 0;
    for (uint32_t i = 0; i < model->storm_count && op->batch < wanted; i++) {
        const struct pod_key *key = &model->keys[at];
        struct shm_key copy = {.length = key->key.length};

        if (key->volume == volume) {
            memcpy(copy.bytes, key->key.bytes, sizeof(copy.bytes));
            memcpy(stage + op->batch * sizeof(copy), &copy, sizeof(copy));
            op->batch_keys[op->batch] = at;
            op->batch_sure[op->batch++] = client->world->weather.fair && key->flash;
        }
        at = at + 1 < model->storm_count ? at + 1 : 0;
    }
}

/* False: no operation is free. */
static bool client_send(struct pod_client *client, const struct pod_job *job,
                        struct pod_job *report)
{
    struct pod_op *op = client_op_new(client);
    struct shm_submit entry = {.op = job->op, .flags = job->flags};

    if (op == NULL)
        return false;
    op->job = *job;
    op->report = report;
    op->job.status = ICMS_OK;
    op->job.reason = ICMS_MISS_NONE;
    op->batch = op->reactor = 0;
    op->reactors = client->world->reactors;
    op->sent_ns = client_now(client);
    op->deadline_ns = op->sent_ns + job->deadline_ns;
    client->world->counts.sent[job->op]++;
    if (job->op == SHM_OP_FLUSH) {
        entry.volume = job->key;
        (void)client_identify(client, job->key);
    } else {
        struct pod_key *key = &client->world->model.keys[job->key];

        if (!client_identify(client, key->volume)) {
            op->job.status =
                job->op == SHM_OP_GET || job->op == SHM_OP_EXISTS ? ICMS_MISS : ICMS_NO_VOLUME;
            op->job.reason = ICMS_MISS_NO_VOLUME;
            client_done(client, op);
            return true;
        }
        op->uuid = client_shard(client, key)->uuid;
        op->sure = job->op == SHM_OP_GET && client->world->weather.fair && key->flash;
        key->removed = key->removed || job->op == SHM_OP_REMOVE;
        if (client_local(client, op))
            return true;
        op->reactor = client_reactor(client, key);
        op->reactors = 1;
        entry.volume = key->volume;
        entry.key_length = key->key.length;
        memcpy(entry.key, key->key.bytes, sizeof(entry.key));
    }
    if (job->op == SHM_OP_EXISTS && client_chance(client, 2) == 0) {
        client_batch_fill(client, op);
        op->reactor = 0;
        op->reactors = client->world->reactors;
        entry.op = SHM_OP_EXISTS_MANY;
        entry.bytes = op->batch;
        entry.offset = (uint64_t)(op - client->ops) * POD_STAGE_BYTES;
    }
    if (job->op == SHM_OP_PUT) {
        client_stage_fill(client, op);
        entry.bytes = op->bytes;
        entry.offset = (uint64_t)(op - client->ops) * POD_STAGE_BYTES;
    }
    entry.tag = (uint64_t)op->generation << 32 | (uint64_t)(op - client->ops);
    entry.deadline_ns = loop_env_now_ns(sim_node_env(client->agent->node)) + job->deadline_ns;
    entry.lease = (uint32_t)(op - client->ops);
    op->state = POD_OP_SENT;
    op->answers_left = op->reactors;
    client_push_op(client, op, &entry);
    return true;
}

/* ---- by chance ------------------------------------------------------------------------------ */

/* Half of all keys asked for are hot ones; written: at some time. */
static uint32_t client_any_key(struct pod_client *client, bool written)
{
    const struct pod_model *model = &client->world->model;
    bool hot = client_chance(client, 2) == 0;
    uint32_t key = (uint32_t)client_chance(client, model->storm_count);

    for (int i = 0; i < 40; i++) {
        if ((!hot || model->keys[key].hot) && (!written || model->keys[key].versions > 0))
            break;
        key = (uint32_t)client_chance(client, model->storm_count);
    }
    return key;
}

static void client_any_put(struct pod_client *client, struct pod_job *job)
{
    uint64_t kind = client_chance(client, 10);

    job->op = SHM_OP_PUT;
    if (kind < 4)
        job->flags = SHM_FLAG_ON_FLASH;
    else if (kind == 4)
        job->flags = SHM_FLAG_IF_ABSENT;
    if (client_chance(client, 4) == 0)
        job->flags |= SHM_FLAG_ONCE;
    (void)client_identify(client, client_key(client, job->key)->volume);
    job->version = pod_model_put(
        client->world, job->key,
        pod_world_generation(client_key(client, job->key)->volume,
                             &client_shard(client, client_key(client, job->key))->uuid));
    job->deadline_ns = client_chance(client, 8) == 0 ? MS / 4 + client_chance(client, 2 * MS)
                                                     : 20 * MS + client_chance(client, 300 * MS);
}

/* Cancels any of those under way. */
static void client_any_cancel(struct pod_client *client)
{
    struct pod_op *op = &client->ops[client_chance(client, POD_CLIENT_OPS)];
    struct shm_submit entry = {.op = SHM_OP_CANCEL};

    if (op->state != POD_OP_SENT)
        return;
    op->canceled = true;
    entry.tag = (uint64_t)op->generation << 32 | (uint64_t)(op - client->ops);
    client_push_op(client, op, &entry);
}

static void client_any(struct pod_client *client)
{
    uint64_t kind = client_chance(client, 100);
    struct pod_job job = {.key = client_any_key(client, kind < 45 || kind >= 78)};

    job.deadline_ns = client_chance(client, 8) == 0 ? MS / 5 + client_chance(client, 2 * MS)
                                                    : 5 * MS + client_chance(client, 120 * MS);
    job.lease_ns = client_chance(client, 10) == 0 ? client_chance(client, 60 * MS)
                                                  : client_chance(client, 2 * MS);
    if (kind < 50) {
        job.op = SHM_OP_GET;
        job.flags = kind < 5 ? SHM_FLAG_PRESTAGE : kind < 15 ? SHM_FLAG_ONCE : 0;
    } else if (kind < 78) {
        client_any_put(client, &job);
    } else if (kind < 86) {
        job.op = SHM_OP_EXISTS;
    } else if (kind < 90) {
        job.op = SHM_OP_REMOVE;
        job.deadline_ns += 50 * MS;
    } else if (kind < 92) {
        job.op = SHM_OP_FLUSH;
        job.key = (uint32_t)client_chance(client, POD_VOLUMES);
        job.deadline_ns += 50 * MS;
    } else if (kind < 99) {
        client_any_cancel(client);
        return;
    } else {
        client->lazy_until_ns = client_now(client) + client_chance(client, 100 * MS);
        return;
    }
    (void)client_send(client, &job, NULL);
}

/* ---- turns ---------------------------------------------------------------------------------- */

static uint32_t client_under_way(const struct pod_client *client)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < POD_CLIENT_OPS; i++)
        count += client->ops[i].state == POD_OP_SENT;
    return count;
}

static void client_jobs_send(struct pod_client *client)
{
    while (client->job_next < client->job_count &&
           client_under_way(client) < client->job_parallel) {
        struct pod_job *job = &client->jobs[client->job_next];

        if (!client_send(client, job, job))
            return;
        client->job_next++;
    }
}

/* Answers are looked at when the event rang and never otherwise: an agent that forgets to ring is
 * late. */
static void client_turn(struct pod_client *client)
{
    if (client->rang && client_now(client) >= client->lazy_until_ns) {
        client->rang = false;
        client_reap(client);
    }
    client_release_due(client);
    if (client->jobs != NULL)
        client_jobs_send(client);
    client_release_due(client);
}

static void client_timer(struct loop_timer *timer)
{
    struct pod_client *client = container_of(timer, struct pod_client, timer);
    uint64_t pace_ns = client->pace_ns;

    if (client->state != POD_CLIENT_IN)
        return;
    if (client->jobs == NULL && pace_ns > 0 && client_now(client) >= client->lazy_until_ns) {
        uint64_t burst = client_chance(client, 8) == 0 ? client_chance(client, 12) : 1;

        for (uint64_t i = 0; i < burst; i++)
            client_any(client);
    }
    client_turn(client);
    loop_timer_start(client->loop, &client->timer,
                     loop_now_ns(client->loop) +
                         (pace_ns > 0 ? 1 + client_chance(client, 2 * pace_ns) : MS));
}

static void client_event(struct loop_op *op)
{
    struct pod_client *client = container_of(op, struct pod_client, event_op);

    if (client->state == POD_CLIENT_LEAVING)
        client->state = POD_CLIENT_LEFT;
    if (client->state != POD_CLIENT_IN)
        return;
    loop_event_wait(client->loop, &client->event_op, client->attached.client_event, client_event);
    client->rang = true;
    client_turn(client);
}

/* ---- coming and going ----------------------------------------------------------------------- */

static void client_forget(struct pod_client *client)
{
    for (uint32_t i = 0; i < POD_CLIENT_OPS; i++) {
        client->world->counts.dropped += client->ops[i].state == POD_OP_SENT;
        client->ops[i].state = POD_OP_FREE;
        client->ops[i].report = NULL;
    }
}

static void client_begin_msg(struct loop_msg *msg)
{
    struct pod_client *client = container_of(msg, struct pod_client, msg);

    client->msg_out = false;
    if (client->state != POD_CLIENT_IN)
        return;
    loop_event_wait(client->loop, &client->event_op, client->attached.client_event, client_event);
    loop_timer_start(client->loop, &client->timer, loop_now_ns(client->loop));
}

static void client_leave_msg(struct loop_msg *msg)
{
    struct pod_client *client = container_of(msg, struct pod_client, msg);

    client->msg_out = false;
    if (client->state != POD_CLIENT_IN)
        return;
    client_forget(client);
    loop_timer_stop(client->loop, &client->timer);
    client->state = POD_CLIENT_LEAVING;
    loop_op_cancel(&client->event_op);
}

static void client_detached(void *arg)
{
    struct pod_client *client = arg;

    check(client->state == POD_CLIENT_DETACH);
    client->state = POD_CLIENT_OUT;
}

/* The queue pair and the shards of a reactor. */
static void client_view(struct pod_client *client, uint32_t reactor)
{
    const struct agent_client_map *attached = &client->attached;

    if (shm_ring_view(loop_region_base(attached->region), loop_region_bytes(attached->region),
                      reactor, &client->rings[reactor]) != ICMS_OK)
        pod_fail(client->world, POD_FAULT_ANSWER, "the client region makes no sense");
    check(attached->volume_count == POD_VOLUMES);
    for (uint32_t i = 0; i < POD_VOLUMES; i++)
        if (shm_arena_view(loop_region_base(attached->arenas[i]),
                           loop_region_bytes(attached->arenas[i]), reactor, client->world->reactors,
                           client->rings[reactor].header->arena_offsets[i],
                           &client->shards[reactor][i]) != ICMS_OK)
            pod_fail(client->world, POD_FAULT_ANSWER, "the arena of volume %u makes no sense", i);
}

void pod_client_attach(struct pod_client *client)
{
    struct err_why why = {""};
    icms_err err;

    if (client->state != POD_CLIENT_OUT || client->msg_out || loop_op_busy(&client->event_op) ||
        client->agent->state != POD_MACHINE_UP)
        return;
    sim_node_as(client->agent->node);
    err = agent_client_attach(client->agent->agent, POD_CLIENT_OPS * POD_STAGE_BYTES, &why,
                              &client->attached);
    sim_node_as(NULL);
    if (err == ICMS_NO_MEMORY)
        return;
    if (err != ICMS_OK)
        pod_fail(client->world, POD_FAULT_HEAL, "client %u cannot attach: %s", client->number,
                 why.text);
    check(client->attached.reactor_count == client->world->reactors);
    for (uint32_t r = 0; r < client->world->reactors; r++)
        client_view(client, r);
    memset(client->ring.staging, POD_POISON, POD_CLIENT_OPS * POD_STAGE_BYTES);
    client->lazy_until_ns = 0;
    client->rang = true; /* the first look announces that it sleeps */
    client->state = POD_CLIENT_IN;
    client->msg_out = true;
    loop_send(client->loop, &client->msg, client_begin_msg);
}

void pod_client_leave(struct pod_client *client)
{
    if (client->state != POD_CLIENT_IN || client->msg_out)
        return;
    client->msg_out = true;
    loop_send(client->loop, &client->msg, client_leave_msg);
}

void pod_client_drive(struct pod_client *client)
{
    enum pod_machine_state agent = client->agent->state;

    if (agent == POD_MACHINE_UP)
        pod_client_attach(client);
    else
        pod_client_leave(client);
    if (agent == POD_MACHINE_DEAD) {
        if (client->state == POD_CLIENT_LEFT || client->state == POD_CLIENT_DETACH)
            client->state = POD_CLIENT_OUT; /* nobody is there to be told */
    } else if (client->state == POD_CLIENT_LEFT) {
        client->state = POD_CLIENT_DETACH;
        agent_client_detach(client->agent->agent, client->attached.client, client_detached, client);
    }
}

void pod_client_judge(struct pod_client *client)
{
    const struct pod_agent *agent = client->agent;
    uint64_t now = client_now(client);

    if (client->state != POD_CLIENT_IN || agent->state == POD_MACHINE_DEAD || agent->paused)
        return;
    for (uint32_t i = 0; i < POD_CLIENT_OPS; i++) {
        const struct pod_op *op = &client->ops[i];
        uint64_t limit_ns =
            u64_max(u64_max(op->deadline_ns, agent->resumed_ns), client->lazy_until_ns) +
            POD_GRACE_NS;

        if (op->state == POD_OP_SENT && now > limit_ns)
            pod_fail(client->world, POD_FAULT_LATE,
                     "operation %u of client %u: sent at %.3f ms with %.3f ms to live, no answer "
                     "at %.3f ms",
                     op->job.op, client->number, (double)op->sent_ns / MS,
                     (double)op->job.deadline_ns / MS, (double)now / MS);
    }
}

/* The timer sends the first of them. */
void pod_client_jobs(struct pod_client *client, struct pod_job *jobs, uint32_t count,
                     uint32_t parallel)
{
    client->jobs = jobs;
    client->job_count = count;
    client->job_next = 0;
    client->job_parallel = parallel;
    client->pace_ns = 0;
}

bool pod_client_idle(const struct pod_client *client)
{
    if (client->state != POD_CLIENT_IN ||
        (client->jobs != NULL && client->job_next < client->job_count))
        return false;
    for (uint32_t i = 0; i < POD_CLIENT_OPS; i++)
        if (client->ops[i].state != POD_OP_FREE)
            return false;
    return true;
}

bool pod_client_break_lease(struct pod_client *client)
{
    for (uint32_t i = 0; client->state == POD_CLIENT_IN && i < POD_CLIENT_OPS; i++) {
        struct pod_op *op = &client->ops[i];

        if (op->state == POD_OP_HELD) {
            *(uint8_t *)(uintptr_t)(op->value + op->bytes / 2) ^= 1;
            return true;
        }
    }
    return false;
}

void pod_client_init(struct pod_client *client, struct pod_world *world, uint32_t number)
{
    struct loop_opts opts;
    char host[48];

    client->world = world;
    client->number = number;
    client->agent = &world->agents[number / POD_CLIENTS];
    (void)snprintf(host, sizeof(host), "10.3.%u.%u", client->agent->number + 1,
                   number % POD_CLIENTS + 1);
    client->node = sim_node_new(world->sim, host);
    loop_opts_init(&opts);
    check(loop_new(sim_node_env(client->node), &opts, NULL, &client->loop) == ICMS_OK);
    loop_timer_init(&client->timer, client_timer);
    check(loop_start(client->loop, NULL) == ICMS_OK);
}

void pod_client_fini(struct pod_client *client)
{
    sim_node_crash(client->node, false, false);
}

void pod_client_run(struct pod_world *world, uint64_t until_ns)
{
    (void)sim_run(world->sim, until_ns);
}

/* Its clients let go before. */
void pod_client_agent_free(struct pod_agent *agent)
{
    agent_free(&agent->agent);
}
