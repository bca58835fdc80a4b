/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of libicms: its memory before it, and what came of it, held against the model.
 *
 * What it proves of each call: it is over in time; its statuses make sense and agree with what it
 * returned; the bytes of a hit were put under that key at some time; nothing was written into the
 * caller's memory behind the room that was given, or after the call; a value that is put stays as
 * it was.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "lib.h"
#include "wire/sealed.h"

/* Beside its deadline and the grace of libicms: a time-out is seen late, and threads take turns. */
#define JUDGE_SLACK_NS (2 * POD_GRACE_NS)

/* And of each block: its answer is taken with the lock, which two threads may have first, away at a
 * point that this seed has chosen. */
#define JUDGE_BLOCK_NS (200 * US)

/* Looks of control, LIB_LOOK_NS apart. A signal takes less than that. */
#define JUDGE_LOOKS 5

/* The network may write into a caller's memory until the agent says that it does not. */
#define JUDGE_DIRECT_NS (3000 * MS)

/* ---- what libicms copies and checks --------------------------------------------------------- */

uint32_t lib_copy_steady(uint32_t crc, void *to, const void *from, size_t bytes)
{
    size_t half = bytes / 2;

    crc = crc32c_copy_steady(crc, to, from, half);
    lib_point();
    return crc32c_copy_steady(crc, (uint8_t *)to + half, (const uint8_t *)from + half,
                              bytes - half);
}

icms_err lib_trailer_check(const struct sealed_place *place, uint32_t value_bytes,
                           uint32_t value_crc, const uint8_t *trailer)
{
    icms_err err = sealed_trailer_check(place, value_bytes, value_crc, trailer);

    if (err != ICMS_OK && !lib_world->weather.memory_flips)
        pod_fail(lib_world, POD_FAULT_BYTES,
                 "the trailer of a block does not match at client %u: %u bytes",
                 lib_current->process->client->number, value_bytes);
    return err;
}

bool lib_trailer_is(const uint8_t *trailer, const uint8_t *digest)
{
    if (!sealed_trailer_is(trailer, digest))
        pod_fail(lib_world, POD_FAULT_BYTES, "a block of another key at client %u",
                 lib_current->process->client->number);
    return true;
}

/* ---- before a call -------------------------------------------------------------------------- */

static const struct pod_key *judge_key(uint32_t key)
{
    return &lib_world->model.keys[key];
}

static bool judge_poisoned(const uint8_t *memory, uint64_t bytes)
{
    return bytes == 0 || (memory[0] == POD_POISON && memcmp(memory, memory + 1, bytes - 1) == 0);
}

/* Blocks whose memory a call has. */
static uint32_t call_blocks(const struct lib_call *call)
{
    bool moves = call->op == SHM_OP_PUT || call->op == SHM_OP_GET;

    return moves && call->count <= LIB_CALL_BLOCKS ? call->count : 0;
}

static uint8_t *call_memory(const struct lib_call *call, uint32_t i)
{
    return call->memory + i * POD_STAGE_BYTES;
}

static void call_put_begin(struct lib_process *process, struct lib_call *call, uint32_t i)
{
    struct icms_block *block = &call->blocks[i];
    void *buffer;

    block->data = call_memory(call, i);
    block->bytes = pod_model_bytes(lib_world, call->keys[i], call->versions[i]);
    if (i == 0 && lib_chance(4) == 0 &&
        icms_buffer_take(process->icms, block->bytes, &buffer) == ICMS_OK)
        block->data = call->buffer = buffer;
    pod_model_fill(lib_world, call->keys[i], call->versions[i], block->data);
    call->crcs[i] = crc32c(block->data, block->bytes);
}

void lib_call_begin(struct lib_process *process, struct lib_call *call)
{
    call->buffer = NULL;
    call->polled = call->canceled = false;
    if (!judge_poisoned(call->memory, call_blocks(call) * POD_STAGE_BYTES))
        pod_fail(lib_world, POD_FAULT_BUFFER, "the memory of a call was written to after it");
    for (uint32_t i = 0; i < call->count && call->op != SHM_OP_FLUSH; i++) {
        struct pod_key *key = &lib_world->model.keys[call->keys[i]];
        struct icms_key wire = {.length = key->key.length};

        memcpy(wire.bytes, key->key.bytes, sizeof(wire.bytes));
        memcpy(wire.digest, key->digest, sizeof(wire.digest));
        call->match_keys[i] = wire;
        call->blocks[i] = (struct icms_block){.key = wire, .status = ICMS_INVALID};
        call->sure[i] = lib_world->weather.fair && key->flash;
        key->removed = key->removed || call->op == SHM_OP_REMOVE;
        if (call->op == SHM_OP_PUT) {
            call_put_begin(process, call, i);
        } else if (i < call_blocks(call)) {
            call->rooms[i] = call->report == NULL && lib_chance(16) == 0
                                 ? lib_chance(POD_STAGE_BYTES)
                                 : POD_STAGE_BYTES;
            call->blocks[i].data = call_memory(call, i);
            call->blocks[i].bytes = call->rooms[i];
        }
    }
}

/* ---- in time -------------------------------------------------------------------------------- */

/* A thread that stands still may keep libicms from reading the clock, where the time of a call
 * begins. */
void lib_call_judge(const struct lib_process *process, const struct lib_call *call)
{
    uint64_t limit_ns =
        u64_max(call->deadline_ns, process->stalled_ns + call->left_ns) + CLIENT_GRACE_NS;

    if (process->inside)
        limit_ns = u64_max(limit_ns, process->client->agent->resumed_ns) + JUDGE_DIRECT_NS;
    limit_ns += JUDGE_SLACK_NS + call->count * JUDGE_BLOCK_NS;
    if (process->inside && process->client->agent->paused)
        return;
    if (call->active && sim_now_ns(lib_world->sim) > limit_ns)
        pod_fail(lib_world, POD_FAULT_LATE,
                 "operation %u of client %u, %u blocks%s: deadline at %.3f ms, not over", call->op,
                 process->client->number, call->count,
                 call->async ? call->waited ? ", waited for" : ", polled" : "",
                 (double)call->deadline_ns / MS);
}

/* All threads sleep because they want to, somebody is in a call, and nobody stands still. */
static bool rings_all_sleep(const struct lib_process *process)
{
    bool active = false;

    for (uint32_t i = 0; i < LIB_CALLS; i++)
        active = active || process->calls[i].active;
    for (uint32_t i = 0; i < LIB_THREADS; i++) {
        const struct lib_thread *thread = &process->threads[i];

        if (thread->state == LIB_LOCK || thread->away || lib_thread_due(thread))
            return false;
    }
    return active && process->state == LIB_PROCESS_RUNS && !process->icms->link->down &&
           sim_now_ns(lib_world->sim) > process->stalled_ns &&
           !(process->inside && process->client->agent->paused);
}

/* Counts that it is there, still; fails when nobody takes it. */
static void rings_look(const struct lib_process *process, bool there, uint32_t which,
                       uint32_t *last, uint8_t *looks)
{
    if (!there || which != *last)
        *looks = 0;
    *last = which;
    if (there && ++*looks > JUDGE_LOOKS)
        pod_fail(lib_world, POD_FAULT_LATE,
                 "client %u: all threads sleep, and what they wait for is there",
                 process->client->number);
}

/* A deadline hides a wake-up that is lost: the call is over in time, only without its answer. */
void lib_rings_judge(struct lib_process *process, bool ops)
{
    const struct icms *icms = process->icms;
    bool sleep = icms != NULL && icms->link != NULL && rings_all_sleep(process) &&
                 lib_fd_listens(icms->link->client_event);

    for (uint32_t r = 0; r < POD_REACTORS && r < lib_world->reactors; r++) {
        const struct shm_ring *ring = sleep ? &icms->link->rings[r] : NULL;

        rings_look(
            process, sleep && atomic_load(&ring->qpair->complete_tail) != ring->complete_head,
            sleep ? ring->complete_head : 0, &process->ring_heads[r], &process->ring_looks[r]);
    }
    for (uint32_t i = 0; i < LIB_OPS && sleep && ops; i++)
        rings_look(process, icms->ops[i].state == OP_ANSWERED, icms->ops[i].generation,
                   &process->op_generations[i], &process->op_looks[i]);
}

/* ---- what came of it ------------------------------------------------------------------------ */

/* What a block may be told. */
static bool judge_makes_sense(const struct lib_process *process, const struct lib_call *call,
                              uint32_t i)
{
    const struct icms_block *block = &call->blocks[i];
    bool reads = call->op == SHM_OP_GET || call->op == SHM_OP_EXISTS;

    switch (block->status) {
    case ICMS_OK:
        return true;
    case ICMS_MISS:
        return (reads && block->reason != ICMS_MISS_NONE) || call->op == SHM_OP_REMOVE;
    case ICMS_CANCELED:
        return call->canceled;
    case ICMS_EXISTS:
        return call->op == SHM_OP_PUT && (call->flags & SHM_FLAG_IF_ABSENT) != 0;
    case ICMS_VALUE_SIZE:
        return call->op == SHM_OP_GET && call->count <= LIB_CALL_BLOCKS &&
               block->bytes > call->rooms[i];
    case ICMS_QUOTA:
    case ICMS_NO_SPACE:
        return call->op == SHM_OP_PUT;
    case ICMS_PEER_DOWN: /* while all is well, its agent does not go */
        return !lib_world->weather.fair || !lib_world->faults;
    case ICMS_DEADLINE:
    case ICMS_BUSY:
    case ICMS_LIMIT:
    case ICMS_IO:
    case ICMS_DRIVE_DOWN:
    case ICMS_REFUSED:
    case ICMS_RESET:
        return !reads;
    case ICMS_NO_VOLUME: /* or no enclosure was told of a reset yet */
        return !reads || lib_world->resets > 0;
    default:
        return false;
    }
}

/* The bytes of a hit; the version that they are. */
static void judge_hit(const struct lib_call *call, uint32_t i)
{
    const struct icms_block *block = &call->blocks[i];
    uint32_t key = call->keys[i];

    if (block->source < ICMS_SOURCE_DRAM || block->source > ICMS_SOURCE_POD)
        pod_fail(lib_world, POD_FAULT_ANSWER, "a hit from source %d", (int)block->source);
    if (block->data == NULL)
        return;
    if (block->bytes > call->rooms[i] ||
        pod_model_version(lib_world, key, block->data, (uint32_t)block->bytes) == 0)
        pod_fail(lib_world, POD_FAULT_BYTES,
                 "key %u of volume %u: %llu bytes that were never put under it", key, call->volume,
                 (unsigned long long)block->bytes);
}

/* In fair weather what is on flash is there, until the first block had to be evicted. */
static void judge_miss(const struct lib_call *call, uint32_t i)
{
    const struct icms_block *block = &call->blocks[i];

    if (!call->sure[i] || block->reason == ICMS_MISS_DEADLINE || block->reason == ICMS_MISS_SHED ||
        lib_world->was_lowered || judge_key(call->keys[i])->removed ||
        pod_world_evictions(lib_world) > 0)
        return;
    pod_fail(lib_world, POD_FAULT_FORGOT, "nothing went wrong, but key %u on flash is missed: %s",
             call->keys[i], icms_miss_name(block->reason));
}

static void judge_block(const struct lib_process *process, const struct lib_call *call, uint32_t i)
{
    const struct icms_block *block = &call->blocks[i];
    struct pod_key *key = &lib_world->model.keys[call->keys[i]];
    bool reads = call->op == SHM_OP_GET || call->op == SHM_OP_EXISTS;

    if ((unsigned)block->reason >= ICMS_MISS_COUNT || !judge_makes_sense(process, call, i))
        pod_fail(lib_world, POD_FAULT_ANSWER, "operation %u of client %u ends with %s, %s",
                 call->op, process->client->number, icms_err_name(block->status),
                 icms_miss_name(block->reason));
    if (reads && block->status == ICMS_OK && key->versions == 0)
        pod_fail(lib_world, POD_FAULT_GHOST, "key %u is there, which nobody put", call->keys[i]);
    if (call->op == SHM_OP_GET && block->status == ICMS_OK)
        judge_hit(call, i);
    if (reads && block->status == ICMS_MISS)
        judge_miss(call, i);
    if (call->op == SHM_OP_PUT && crc32c(block->data, block->bytes) != call->crcs[i])
        pod_fail(lib_world, POD_FAULT_BUFFER, "a value changed while it was put");
    if (call->op == SHM_OP_PUT && block->status == ICMS_OK &&
        (call->flags & (SHM_FLAG_ON_FLASH | SHM_FLAG_IF_ABSENT)) != 0)
        key->flash = true;
    if (call->op == SHM_OP_GET && call->count <= LIB_CALL_BLOCKS &&
        !judge_poisoned(call_memory(call, i) + call->rooms[i], POD_STAGE_BYTES - call->rooms[i]))
        pod_fail(lib_world, POD_FAULT_BUFFER, "a get wrote behind the room that it had");
}

static void judge_count(const struct lib_call *call, uint32_t i)
{
    struct pod_counts *counts = &lib_world->counts;
    const struct icms_block *block = &call->blocks[i];

    counts->sent[call->op]++;
    if (block->status == ICMS_MISS)
        counts->miss[block->reason]++;
    else if (block->status != ICMS_OK)
        counts->error[block->status]++;
    else
        counts->ok[call->op]++;
    if (call->op == SHM_OP_GET && block->status == ICMS_OK)
        counts->source[block->source]++;
    lib_world->history =
        hash64_mix(lib_world->history ^ sim_now_ns(lib_world->sim) ^ (uint64_t)call->op << 56 ^
                   (uint64_t)block->status << 48 ^ (uint64_t)block->reason << 40);
    lib_world->history = hash64_mix(lib_world->history ^ call->keys[i]);
}

/* What the call returned and what its blocks say agree. */
static void judge_err(const struct lib_call *call, icms_err err)
{
    icms_err should = ICMS_PEER_DOWN;
    uint32_t ok = 0, down = 0, gone = 0;

    for (uint32_t i = 0; i < call->count; i++) {
        gone += call->blocks[i].status == ICMS_NO_VOLUME;
        ok += call->blocks[i].status == ICMS_OK;
        down += call->blocks[i].status == ICMS_PEER_DOWN;
    }
    if (ok == call->count)
        should = ICMS_OK;
    else if (down < call->count)
        should = ICMS_MISS;
    if (down == call->count && call->op != SHM_OP_GET && call->op != SHM_OP_EXISTS &&
        err == ICMS_MISS)
        return; /* it is the enclosure that went down, and the agent that says so */
    if (err == ICMS_NO_VOLUME && gone == call->count && lib_world->resets > 0)
        return; /* while the agent forgets the blocks, nothing is asked */
    if (err != should)
        pod_fail(lib_world, POD_FAULT_ANSWER,
                 "operation %u returns %s; %u of %u blocks are OK, %u "
                 "PEER_DOWN",
                 call->op, icms_err_name(err), ok, call->count, down);
}

/* What a longer prefix takes is no less, and every block of it is somewhere, or nothing is known.
 */
static void judge_estimates(const struct lib_call *call)
{
    for (size_t i = 0; i < call->matched; i++) {
        const struct icms_estimate *one = &call->estimates[i], *before = i == 0 ? one : one - 1;
        bool is_known = one->load_us != ICMS_ESTIMATE_UNKNOWN;

        if (one->load_us < before->load_us || one->bytes < before->bytes ||
            one->source > ICMS_SOURCE_POD || (is_known && one->source == ICMS_SOURCE_NONE) ||
            (is_known && one->load_us > (uint64_t)3600 * 1000000 * call->matched))
            pod_fail(lib_world, POD_FAULT_ANSWER, "block %zu of a prefix of %zu: %llu us", i,
                     call->matched, (unsigned long long)one->load_us);
    }
}

/* A match is as long as the first key that nobody put, at most. */
static void judge_match(const struct lib_call *call, icms_err err)
{
    if (err == ICMS_PEER_DOWN || (err == ICMS_NO_VOLUME && lib_world->resets > 0))
        return;
    if (err != ICMS_OK)
        pod_fail(lib_world, POD_FAULT_ANSWER, "icms_match returns %s", icms_err_name(err));
    if (call->matched > call->count)
        pod_fail(lib_world, POD_FAULT_ANSWER, "%zu of %u keys match", call->matched, call->count);
    else if (call->count % 2 == 0)
        judge_estimates(call);
    for (size_t i = 0; i < call->matched; i++)
        if (judge_key(call->keys[i])->versions == 0)
            pod_fail(lib_world, POD_FAULT_GHOST, "key %u matches, which nobody put", call->keys[i]);
}

static void judge_report(struct lib_call *call, icms_err err)
{
    struct pod_job *job = call->report;

    call->report = NULL;
    if (job == NULL)
        return;
    job->status = call->op == SHM_OP_FLUSH ? err : call->blocks[0].status;
    job->reason = call->op == SHM_OP_FLUSH ? ICMS_MISS_NONE : call->blocks[0].reason;
    job->source = call->blocks[0].source;
    job->done = true;
}

void lib_call_end(struct lib_process *process, struct lib_call *call, icms_err err)
{
    bool blocks = call->op != SHM_OP_FLUSH && call->op != SHM_OP_EXISTS_MANY;

    call->active = false;
    if (call->op == SHM_OP_FLUSH)
        call->blocks[0] = (struct icms_block){.status = err};
    if (call->op == SHM_OP_EXISTS_MANY)
        judge_match(call, err);
    else
        judge_err(call, call->op == SHM_OP_FLUSH && err != ICMS_OK && err != ICMS_PEER_DOWN
                            ? ICMS_MISS
                            : err);
    for (uint32_t i = 0; i < call->count && call->op != SHM_OP_EXISTS_MANY; i++) {
        if (blocks)
            judge_block(process, call, i);
        else if (!judge_makes_sense(process, call, i))
            pod_fail(lib_world, POD_FAULT_ANSWER, "a flush ends with %s", icms_err_name(err));
        judge_count(call, i);
    }
    if (call->buffer != NULL)
        icms_buffer_give(process->icms, call->buffer);
    judge_report(call, err);
    memset(call->memory, POD_POISON, call_blocks(call) * POD_STAGE_BYTES);
    call->used = false;
}

void lib_lease_judge(uint32_t key, const struct icms_lease *lease)
{
    if (pod_model_version(lib_world, key, lease->data, (uint32_t)lease->bytes) == 0)
        pod_fail(lib_world, POD_FAULT_BYTES, "key %u: a lease of bytes that were never put", key);
}
