/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/fake_agent.c: see fake_agent.h. Tests only; a failed step ends the test.
 */
#include "client/fake_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "icms/icms.h"
#include "wire/sealed.h"

#define FAKE_BLOCKS 8192
#define FAKE_KEPT   4096

struct fake_switches fake;

struct fake_block {
    bool used;
    uint32_t volume;
    struct key key;
    uint8_t *value; /* with its trailer */
    uint32_t bytes; /* plain            */
};

struct fake_client {
    bool used;
    bool flooded; /* its ring is good for nothing any more */
    struct loop_region *region;
    struct loop_event *agent_event, *client_event;
    union { /* one a reactor; the first one also stands for what they share */
        struct shm_ring ring;
        struct shm_ring rings[FAKE_REACTORS];
    };
    struct shm_submit kept[FAKE_KEPT];     /* swallowed */
    struct shm_ring *kept_ring[FAKE_KEPT]; /* and where */
    uint32_t kept_count;
    struct shm_complete last; /* answer */
};

struct agent {
    pthread_mutex_t lock;
    pthread_t thread;
    atomic_bool stop;
    bool running;
    uint32_t volume_count;
    struct volume_spec volumes[LIMIT_AGENT_VOLUMES];
    struct loop_region *arenas[LIMIT_AGENT_VOLUMES];
    uint32_t reactor_count;
    struct shm_arena views[LIMIT_AGENT_VOLUMES * FAKE_REACTORS]; /* by number of the shard */
    uint64_t client_bytes;
    struct fake_client clients[FAKE_CLIENTS];
    struct fake_block blocks[FAKE_BLOCKS];
    uint32_t hand; /* of eviction */
};

void fake_reset(void)
{
    atomic_bool *off[] = {&fake.mute,     &fake.swallow, &fake.forget, &fake.corrupt, &fake.lie,
                          &fake.bad_tail, &fake.echo,    &fake.checks, &fake.flood,   &fake.babble};
    atomic_uint *zero[] = {&fake.status,  &fake.delay_us, &fake.gets,         &fake.puts,
                           &fake.exists,  &fake.removes,  &fake.flushes,      &fake.cancels,
                           &fake.touches, &fake.suspects, &fake.exists_manys, &fake.directs,
                           &fake.damage,  &fake.stuck,    &fake.lossy,        &fake.prestages,
                           &fake.hints,   &fake.parted};

    for (size_t i = 0; i < sizeof(off) / sizeof(*off); i++)
        atomic_store(off[i], false);
    for (size_t i = 0; i < sizeof(zero) / sizeof(*zero); i++)
        atomic_store(zero[i], 0);
    for (size_t i = 0; i < sizeof(fake.onces) / sizeof(fake.onces[0]); i++)
        atomic_store(&fake.onces[i], 0);
    atomic_store(&fake.hints_max, UINT32_MAX);
    atomic_store(&fake.arriving, NULL);
}

static uint64_t fake_now(void)
{
    struct timespec now;

    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- the table ------------------------------------------------------------------------------ */

static struct fake_block *block_find(struct agent *agent, uint32_t volume, const struct key *key)
{
    for (int i = 0; i < FAKE_BLOCKS; i++)
        if (agent->blocks[i].used && agent->blocks[i].volume == volume &&
            key_equal(&agent->blocks[i].key, key))
            return &agent->blocks[i];
    return NULL;
}

static struct fake_block *block_new(struct agent *agent)
{
    for (int i = 0; i < FAKE_BLOCKS; i++)
        if (!agent->blocks[i].used)
            return &agent->blocks[i];
    return NULL;
}

/* Where in its region a volume's shards lie: not at the same place in all. */
static uint64_t shard_offset(uint32_t volume)
{
    return (uint64_t)volume * LIMIT_DISK_ALIGN;
}

/* ---- the arenas ----------------------------------------------------------------------------- */

/* Where blocks of the key lie: the number of the shard. */
static uint32_t shard_of(const struct agent *agent, uint32_t volume, const struct key *key)
{
    return volume * agent->reactor_count +
           shm_reactor(key, agent->volumes[volume].sealed, agent->reactor_count);
}

static struct shm_slot *slot_of(struct agent *agent, uint32_t shard, uint32_t i)
{
    return (struct shm_slot *)(uintptr_t)&agent->views[shard].slots[i];
}

/* Its slots have the largest value's size: slot i lies at i of these. */
static uint64_t slot_bytes(const struct shm_arena *view)
{
    return bytes_align(view->value_bytes_max + LIMIT_TRAILER_BYTES, LIMIT_DISK_ALIGN);
}

static uint32_t slot_count(const struct shm_arena *view)
{
    return (uint32_t)(view->data_bytes / slot_bytes(view));
}

static _Atomic uint32_t *head_of(struct agent *agent, uint32_t shard, const struct key *key)
{
    const struct shm_arena *view = &agent->views[shard];

    return (_Atomic uint32_t *)(uintptr_t)&view
        ->heads[shm_arena_head(view->hash_seed, view->head_count, key)];
}

static bool slot_leased(struct agent *agent, uint32_t shard, uint32_t i)
{
    for (int c = 0; c < FAKE_CLIENTS; c++) {
        struct fake_client *client = &agent->clients[c];

        for (int l = 0; client->used && l < SHM_LEASES; l++)
            if (atomic_load(&client->ring.leases[l]) == i + 1 &&
                atomic_load(&client->ring.lease_shards[l]) == shard)
                return true;
    }
    return false;
}

/* Takes the slot out of its chain and makes it free; false when it is leased, and then it is free
 * for nobody until it is tried again. */
static bool slot_evict(struct agent *agent, uint32_t shard, uint32_t i)
{
    struct shm_slot *slot = slot_of(agent, shard, i);
    struct key key = {.length = slot->key_length};

    if (atomic_load(&slot->version) % 2 == 0) {
        _Atomic uint32_t *at;

        memcpy(key.bytes, slot->key, sizeof(key.bytes));
        at = head_of(agent, shard, &key);
        atomic_fetch_add(&slot->version, 1);
        while (atomic_load(at) != i)
            at = (_Atomic uint32_t *)(uintptr_t)&slot_of(agent, shard, atomic_load(at))->next;
        atomic_store(at, atomic_load(&slot->next));
    }
    return !slot_leased(agent, shard, i);
}

static uint32_t slot_find(struct agent *agent, uint32_t shard, const struct key *key)
{
    for (uint32_t i = 0; i < slot_count(&agent->views[shard]); i++) {
        struct shm_slot *slot = slot_of(agent, shard, i);

        if (atomic_load(&slot->version) % 2 == 0 && shm_slot_key_equal(slot, key))
            return i;
    }
    return SHM_SLOT_NONE;
}

/* What happens to a value on its way to the client: some of its bytes change. */
static void value_damage(uint8_t *stored, uint32_t bytes)
{
    uint32_t at = atomic_load(&fake.damage), version = atomic_load(&fake.version);
    uint8_t *trailer = stored + bytes;
    le32 crc;

    if (version != 0) {
        trailer[4] = (uint8_t)version;
        crc = le32_of(crc32c(trailer, LIMIT_TRAILER_BYTES - sizeof(crc)));
        memcpy(trailer + LIMIT_TRAILER_BYTES - sizeof(crc), &crc, sizeof(crc));
    }
    if (atomic_load(&fake.corrupt))
        stored[bytes / 2] ^= 1;
    if (at != 0)
        stored[at - 1] ^= 1;
}

static uint32_t slot_load(struct agent *agent, const struct fake_block *block)
{
    uint32_t shard = shard_of(agent, block->volume, &block->key);
    const struct shm_arena *view = &agent->views[shard];
    uint32_t i = slot_find(agent, shard, &block->key);
    struct shm_slot *slot;
    uint8_t *memory;

    if (i != SHM_SLOT_NONE)
        return i;
    for (uint32_t tries = 0;; tries++) {
        if (tries == slot_count(view))
            return SHM_SLOT_NONE;
        i = agent->hand++ % slot_count(view);
        if (slot_evict(agent, shard, i))
            break;
    }
    slot = slot_of(agent, shard, i);
    atomic_store(&slot->offset, i * slot_bytes(view));
    memory = (uint8_t *)(uintptr_t)shm_arena_value(view, i, block->bytes);
    memcpy(memory, block->value, block->bytes + (view->sealed ? LIMIT_TRAILER_BYTES : 0));
    value_damage(memory, block->bytes);
    shm_slot_key_set(slot, &block->key);
    atomic_store(&slot->value_bytes, block->bytes);
    atomic_store(&slot->next, atomic_load(head_of(agent, shard, &block->key)));
    atomic_fetch_add(&slot->version, 1);
    atomic_store(head_of(agent, shard, &block->key), i);
    return i;
}

/* ---- serving -------------------------------------------------------------------------------- */

/* The value lies in the memory of a client in this process, without a trailer. */
static void put_direct(struct agent *agent, const struct shm_submit *in, const struct key *key,
                       uint8_t *to)
{
    const struct shm_arena *view = &agent->views[in->volume * agent->reactor_count];

    memcpy(to, (const void *)(uintptr_t)in->offset, in->bytes);
    if (view->sealed)
        sealed_trailer_make(&view->uuid, key, (const uint8_t *)(uintptr_t)in->aside, in->bytes,
                            crc32c(to, in->bytes), to + in->bytes);
}

static void serve_put(struct agent *agent, struct fake_client *client, const struct shm_submit *in,
                      const struct key *key, struct shm_complete *out)
{
    struct fake_block *block = block_find(agent, in->volume, key);
    uint32_t shard = shard_of(agent, in->volume, key);
    uint64_t stored = in->bytes + (agent->volumes[in->volume].sealed ? LIMIT_TRAILER_BYTES : 0);
    uint32_t slot;

    atomic_fetch_add(&fake.puts, 1);
    check((in->flags & SHM_FLAG_DIRECT) != 0 || in->offset + stored <= client->ring.staging_bytes);
    if (block != NULL && (in->flags & SHM_FLAG_IF_ABSENT) != 0) {
        out->status = ICMS_EXISTS;
        return;
    }
    if (block == NULL) {
        block = block_new(agent);
        if (block == NULL) {
            out->status = ICMS_NO_SPACE;
            return;
        }
    }
    free(block->value);
    block->used = true;
    block->volume = in->volume;
    block->key = *key;
    block->bytes = in->bytes;
    block->value = malloc(stored);
    check(block->value != NULL);
    if ((in->flags & SHM_FLAG_DIRECT) != 0)
        put_direct(agent, in, key, block->value);
    else
        memcpy(block->value, client->ring.staging + in->offset, stored);
    slot = slot_find(agent, shard, key);
    if (slot != SHM_SLOT_NONE)
        (void)slot_evict(agent, shard, slot);
}

/* Value and trailer go where the client wants them: one behind the other, over the end of the room
 * that it has; it checks them itself. */
static void get_direct(const struct fake_block *block, const struct shm_submit *in,
                       struct shm_complete *out)
{
    uint32_t stored = block->bytes + LIMIT_TRAILER_BYTES;
    uint32_t inside = in->bytes < stored ? in->bytes : stored;
    uint8_t *value;

    atomic_fetch_add(&fake.directs, 1);
    out->slot = SHM_SLOT_NONE;
    out->value_bytes = block->bytes;
    out->source = ICMS_SOURCE_POD;
    out->checked = atomic_load(&fake.checks);
    if (in->bytes < block->bytes) {
        out->status = ICMS_VALUE_SIZE;
        return;
    }
    value = malloc(stored);
    memcpy(value, block->value, stored);
    value_damage(value, block->bytes);
    memcpy((void *)(uintptr_t)in->offset, value, inside);
    memcpy((void *)(uintptr_t)in->aside, value + inside, stored - inside);
    free(value);
}

/* False: it is never answered. */
static bool get_arrives(struct agent *agent, struct fake_client *client, struct shm_ring *ring,
                        const struct shm_submit *in, struct shm_complete *out)
{
    bool (*arrives)(struct fake_arriving * arriving) = atomic_load(&fake.arriving);
    const struct shm_arena *view =
        &agent->views[in->volume * agent->reactor_count + (uint32_t)(ring - client->rings)];
    const uint8_t *stored = shm_arena_value(view, out->slot, out->value_bytes);
    struct fake_arriving arriving = {
        .stored = (uint8_t *)(stored != NULL ? (uintptr_t)stored : in->offset),
        .value_bytes = out->value_bytes,
        .answer = out,
        .ring = ring,
        .event = client->client_event};

    if ((in->flags & SHM_FLAG_PARTS) == 0 || out->status != ICMS_OK)
        return true;
    atomic_fetch_add(&fake.parted, 1);
    return arrives == NULL || arrives(&arriving);
}

static void serve_get(struct agent *agent, struct fake_client *client, const struct shm_submit *in,
                      const struct key *key, struct shm_complete *out)
{
    struct fake_block *block = block_find(agent, in->volume, key);
    uint32_t slot;

    atomic_fetch_add(&fake.gets, 1);
    if (block == NULL) {
        out->status = ICMS_MISS;
        out->reason = ICMS_MISS_ABSENT;
        return;
    }
    if ((in->flags & SHM_FLAG_DIRECT) != 0) {
        get_direct(block, in, out);
        return;
    }
    slot = slot_load(agent, block);
    if (slot == SHM_SLOT_NONE) {
        out->status = ICMS_MISS;
        out->reason = ICMS_MISS_SHED;
        return;
    }
    check(in->lease < SHM_LEASES);
    atomic_store(&client->ring.lease_shards[in->lease], shard_of(agent, in->volume, key));
    atomic_store(&client->ring.leases[in->lease], slot + 1);
    out->slot = slot;
    out->value_bytes = block->bytes;
    out->source = ICMS_SOURCE_POD;
    if (atomic_load(&fake.lie)) {
        out->slot = 0x7fffffff;
        atomic_store(&client->ring.leases[in->lease], out->slot + 1);
    }
}

static void serve_remove(struct agent *agent, const struct shm_submit *in, const struct key *key,
                         struct shm_complete *out)
{
    struct fake_block *block = block_find(agent, in->volume, key);
    uint32_t shard = shard_of(agent, in->volume, key), slot = slot_find(agent, shard, key);

    atomic_fetch_add(&fake.removes, 1);
    if (slot != SHM_SLOT_NONE)
        (void)slot_evict(agent, shard, slot);
    if (block == NULL) {
        out->status = ICMS_MISS;
        out->reason = ICMS_MISS_ABSENT;
        return;
    }
    free(block->value);
    *block = (struct fake_block){0};
}

/* Key i takes i + 1 milliseconds, and has 1,000 bytes. */
static void serve_estimate(uint8_t *out, uint32_t i)
{
    struct shm_estimate estimate = {
        .us = (i + 1) * 1000, .error = 100, .bytes = 1000, .source = ICMS_SOURCE_POD};

    if (atomic_load(&fake.lie))
        estimate = (struct shm_estimate){
            .us = UINT32_MAX - 1, .error = UINT32_MAX, .bytes = UINT32_MAX, .source = 0xfe};
    memcpy(out + i * sizeof(estimate), &estimate, sizeof(estimate));
}

/* A reactor answers for its own keys. */
static void serve_exists_many(struct agent *agent, struct fake_client *client, uint32_t reactor,
                              const struct shm_submit *in)
{
    uint8_t *keys = client->ring.staging + in->offset;

    check(in->bytes > 0 && in->bytes <= SHM_MATCH_KEYS);
    check(in->offset + ((in->flags & SHM_FLAG_ESTIMATE) != 0 ? SHM_ESTIMATE_BYTES(in->bytes)
                                                             : SHM_MATCH_BYTES(in->bytes)) <=
          client->ring.staging_bytes);
    for (uint32_t i = 0; i < in->bytes; i++) {
        struct shm_key from;
        struct key key = {0};

        memcpy(&from, keys + i * sizeof(from), sizeof(from));
        key.length = from.length;
        memcpy(key.bytes, from.bytes, sizeof(key.bytes));
        if (shard_of(agent, in->volume, &key) != in->volume * agent->reactor_count + reactor)
            continue;
        keys[in->bytes * sizeof(from) + i] =
            block_find(agent, in->volume, &key) != NULL ? ICMS_MISS_NONE : ICMS_MISS_EVICTED;
        if ((in->flags & SHM_FLAG_ESTIMATE) != 0)
            serve_estimate(keys + SHM_MATCH_BYTES(in->bytes), i);
    }
    if (atomic_load(&fake.lie))
        memset(keys + in->bytes * sizeof(struct shm_key), 0xfe, in->bytes);
}

/* Takes hints, or takes them back, without looking whether it knows them. */
static uint8_t serve_hint(const struct shm_submit *in)
{
    if ((in->flags & SHM_FLAG_FORGET) != 0) {
        if (atomic_load(&fake.hints) == 0)
            return ICMS_MISS_ABSENT;
        atomic_fetch_sub(&fake.hints, 1);
        return ICMS_MISS_NONE;
    }
    if (in->aside <= fake_now())
        return ICMS_MISS_DEADLINE;
    if (atomic_load(&fake.hints) >= atomic_load(&fake.hints_max))
        return ICMS_MISS_SHED;
    atomic_fetch_add(&fake.hints, 1);
    return ICMS_MISS_NONE;
}

/* A reactor answers for its own keys. */
static void serve_prestage(struct agent *agent, struct fake_client *client, uint32_t reactor,
                           const struct shm_submit *in)
{
    uint8_t *keys = client->ring.staging + in->offset;

    check(in->bytes > 0 && in->bytes <= SHM_HINT_KEYS);
    check(in->offset + SHM_MATCH_BYTES(in->bytes) <= client->ring.staging_bytes);
    for (uint32_t i = 0; i < in->bytes; i++) {
        struct shm_key from;
        struct key key = {0};

        memcpy(&from, keys + i * sizeof(from), sizeof(from));
        key.length = from.length;
        memcpy(key.bytes, from.bytes, sizeof(key.bytes));
        if (shard_of(agent, in->volume, &key) == in->volume * agent->reactor_count + reactor)
            keys[in->bytes * sizeof(from) + i] = serve_hint(in);
    }
    if (atomic_load(&fake.lie))
        memset(keys + in->bytes * sizeof(struct shm_key), 0xfe, in->bytes);
}

static void serve_cancel(struct fake_client *client, const struct shm_ring *ring, uint64_t tag)
{
    atomic_fetch_add(&fake.cancels, 1);
    for (uint32_t i = 0; i < client->kept_count; i++)
        if (client->kept[i].tag == tag && client->kept_ring[i] == ring) {
            struct shm_complete out = {.tag = tag, .status = ICMS_CANCELED};

            check(shm_complete_push(client->kept_ring[i], &out));
            client->kept[i] = client->kept[--client->kept_count];
            client->kept_ring[i] = client->kept_ring[client->kept_count];
            return;
        }
}

static void serve_one(struct agent *agent, struct fake_client *client, struct shm_ring *ring,
                      const struct shm_submit *in)
{
    struct shm_complete out = {.tag = in->tag, .status = atomic_load(&fake.status)};
    struct key key = {.length = in->key_length};
    uint32_t slot;

    memcpy(key.bytes, in->key, sizeof(key.bytes));
    check(in->op == SHM_OP_CANCEL || in->volume < agent->volume_count);
    if (key.length != 0 && in->op != SHM_OP_EXISTS_MANY &&
        in->op != SHM_OP_PRESTAGE) /* every entry of a key is in its owner's ring */
        check(shard_of(agent, in->volume, &key) ==
              in->volume * agent->reactor_count + (uint32_t)(ring - client->rings));
    if (in->op <= SHM_OP_FLUSH || in->op == SHM_OP_EXISTS_MANY ||
        in->op == SHM_OP_PRESTAGE) /* hints may come late */
        check(in->identity ==
              (uint8_t)atomic_load(
                  &agent->views[in->volume * agent->reactor_count + (ring - client->rings)]
                       .header->identity));
    if ((in->flags & SHM_FLAG_ONCE) != 0 && in->op <= SHM_OP_PRESTAGE)
        atomic_fetch_add(&fake.onces[in->op], 1);
    if (atomic_load(&fake.delay_us) != 0)
        usleep(atomic_load(&fake.delay_us));
    switch (in->op) {
    case SHM_OP_TOUCH:
        atomic_fetch_add(&fake.touches, 1);
        return;
    case SHM_OP_SUSPECT:
        atomic_fetch_add(&fake.suspects, 1);
        slot = slot_find(agent, shard_of(agent, in->volume, &key), &key);
        if (slot != SHM_SLOT_NONE)
            (void)slot_evict(agent, shard_of(agent, in->volume, &key), slot);
        return;
    case SHM_OP_CANCEL:
        serve_cancel(client, ring, in->tag);
        return;
    case SHM_OP_PUT:
        if (out.status == 0)
            serve_put(agent, client, in, &key, &out);
        break;
    case SHM_OP_GET:
        if (out.status == 0)
            serve_get(agent, client, in, &key, &out);
        if (!get_arrives(agent, client, ring, in, &out))
            return;
        break;
    case SHM_OP_EXISTS:
        atomic_fetch_add(&fake.exists, 1);
        if (out.status == 0 && block_find(agent, in->volume, &key) == NULL) {
            out.status = ICMS_MISS;
            out.reason = ICMS_MISS_EVICTED;
        }
        break;
    case SHM_OP_EXISTS_MANY:
        atomic_fetch_add(&fake.exists_manys, 1);
        if (out.status == 0)
            serve_exists_many(agent, client, (uint32_t)(ring - client->rings), in);
        break;
    case SHM_OP_PRESTAGE:
        atomic_fetch_add(&fake.prestages, 1);
        if (out.status == 0)
            serve_prestage(agent, client, (uint32_t)(ring - client->rings), in);
        break;
    case SHM_OP_REMOVE:
        serve_remove(agent, in, &key, &out);
        break;
    case SHM_OP_FLUSH:
        atomic_fetch_add(&fake.flushes, 1);
        if (atomic_load(&fake.lossy) == (uint32_t)(ring - client->rings) + 1)
            out.status = ICMS_IO;
        break;
    default:
        out.status = ICMS_PROTOCOL;
    }
    if (atomic_load(&fake.echo) && client->last.tag != 0)
        check(shm_complete_push(ring, &client->last));
    client->last = out;
    check(shm_complete_push(ring, &out));
}

/* The ring is full whenever the client looks. */
static void serve_flood(struct agent *agent, struct fake_client *client)
{
    struct shm_qpair *qpair = client->ring.qpair;

    client->flooded = true;
    while (atomic_load(&fake.flood) && !atomic_load(&agent->stop)) {
        atomic_store(&qpair->complete_tail, atomic_load(&qpair->complete_head) + SHM_RING_ENTRIES);
        if (atomic_exchange(&qpair->client_sleeps, 0) != 0)
            loop_event_signal(client->client_event);
    }
}

static void serve_ring(struct agent *agent, struct fake_client *client, struct shm_ring *ring)
{
    struct shm_submit in[64];
    uint32_t count;

    do {
        bool swallow = atomic_load(&fake.swallow); /* once: what is kept is served once */

        atomic_store(&ring->qpair->agent_heartbeat_ns, fake_now());
        check(shm_submit_take(ring, in, 64, &count) == ICMS_OK);
        for (uint32_t i = 0; i < count; i++) {
            bool keep = swallow && in[i].op != SHM_OP_CANCEL && in[i].op != SHM_OP_TOUCH &&
                        in[i].op != SHM_OP_SUSPECT;

            if (keep && client->kept_count < FAKE_KEPT) {
                client->kept_ring[client->kept_count] = ring;
                client->kept[client->kept_count++] = in[i];
            } else {
                serve_one(agent, client, ring, &in[i]);
            }
        }
        for (uint32_t i = 0; !swallow && i < client->kept_count; i++)
            serve_one(agent, client, client->kept_ring[i], &client->kept[i]);
        if (!swallow)
            client->kept_count = 0;
        if (atomic_load(&fake.bad_tail)) {
            atomic_store(&ring->qpair->complete_tail, 1u << 30);
            loop_event_signal(client->client_event);
        }
        for (uint32_t r = 0; r < agent->reactor_count && !atomic_load(&fake.bad_tail); r++)
            if (shm_complete_publish(&client->rings[r]))
                loop_event_signal(client->client_event);
    } while (count != 0 || !shm_agent_sleep(ring));
}

static void serve_client(struct agent *agent, struct fake_client *client)
{
    uint64_t signals;

    if (atomic_load(&fake.flood))
        serve_flood(agent, client);
    if (client->flooded)
        return;
    (void)!read(loop_event_fd(client->agent_event), &signals, sizeof(signals));
    for (uint32_t r = 0; r < agent->reactor_count; r++)
        if (atomic_load(&fake.stuck) != r + 1)
            serve_ring(agent, client, &client->rings[r]);
}

static void *serve(void *arg)
{
    struct agent *agent = arg;

    while (!atomic_load(&agent->stop)) {
        bool any = false;

        check(pthread_mutex_lock(&agent->lock) == 0);
        for (int c = 0; !atomic_load(&fake.mute) && c < FAKE_CLIENTS; c++)
            if (agent->clients[c].used) {
                serve_client(agent, &agent->clients[c]);
                any = true;
            }
        if (any && atomic_load(&fake.forget))
            for (uint32_t v = 0; v < agent->volume_count * agent->reactor_count; v++)
                for (uint32_t i = 0; i < slot_count(&agent->views[v]); i++)
                    (void)slot_evict(agent, v, i);
        check(pthread_mutex_unlock(&agent->lock) == 0);
        usleep(20);
    }
    return NULL;
}

/* ---- agent.h -------------------------------------------------------------------------------- */

void agent_opts_init(struct agent_opts *opts)
{
    *opts = (struct agent_opts){.client_bytes = (uint64_t)1 << 20};
}

uint32_t fake_reactors(void)
{
    const char *reactors = secure_getenv("FAKE_REACTORS");
    uint32_t count = reactors == NULL ? 1 : (uint32_t)strtoul(reactors, NULL, 10);

    check(count >= 1 && count <= FAKE_REACTORS);
    return count;
}

static void agent_volume_make(struct agent *agent, struct loop_env *env, uint32_t number,
                              const struct volume_spec *spec)
{
    uint64_t data_bytes = bytes_align(spec->memory_bytes_max, LIMIT_DISK_ALIGN);
    struct shm_shard shard = {.number = number,
                              .reactor_count = agent->reactor_count,
                              .bytes_max = data_bytes,
                              .data_offset = shm_shard_bytes(data_bytes),
                              .data_bytes = data_bytes,
                              .hash_seed = 7};
    uint64_t offset = shard_offset(number);
    uint64_t bytes = shm_part_bytes(offset + shard.data_offset, data_bytes);
    uint8_t *base;

    agent->volumes[number] = *spec;
    check(loop_region_new(env, "arena", agent->reactor_count * bytes, false, NULL,
                          &agent->arenas[number]) == ICMS_OK);
    base = loop_region_base(agent->arenas[number]);
    for (uint32_t r = 0; r < agent->reactor_count; r++) {
        shard.reactor = r;
        shm_shard_format(base + r * bytes + offset, spec, &shard);
        check(shm_arena_view(base, loop_region_bytes(agent->arenas[number]), r,
                             agent->reactor_count, offset,
                             &agent->views[number * agent->reactor_count + r]) == ICMS_OK);
    }
}

icms_err agent_new(struct loop_env *env, const struct agent_opts *opts, struct err_why *why,
                   struct agent **out_agent)
{
    struct agent *agent = calloc(1, sizeof(*agent));

    check(agent != NULL && pthread_mutex_init(&agent->lock, NULL) == 0);
    agent->volume_count = opts->volume_count;
    agent->client_bytes = opts->client_bytes;
    agent->reactor_count = fake_reactors();
    for (uint32_t i = 0; i < opts->volume_count; i++)
        agent_volume_make(agent, env, i, &opts->volumes[i]);
    *out_agent = agent;
    return ICMS_OK;
}

icms_err agent_start(struct agent *agent, struct err_why *why)
{
    check(pthread_create(&agent->thread, NULL, serve, agent) == 0);
    agent->running = true;
    return ICMS_OK;
}

bool agent_drain(struct agent *agent, uint32_t timeout_ms)
{
    return true;
}

void agent_wait_tried(struct agent *agent, uint32_t timeout_ms)
{
}

icms_err agent_pod_apply(struct agent *agent, uint64_t epoch,
                         const struct agent_enclosure_opts *enclosures, uint32_t count,
                         const struct agent_identity *volumes, struct err_why *why)
{
    return ICMS_OK;
}

void agent_map_refused_set(struct agent *agent, const char *sentence)
{
}

void agent_keys_read_again(struct agent *agent, const struct agent_opts *opts,
                           void (*said)(void *arg, const char *enclosure, const char *why),
                           void *arg)
{
}

void agent_stats(struct agent *agent, struct agent_stats *out_stats)
{
    memset(out_stats, 0, sizeof(*out_stats));
}

void agent_stop(struct agent *agent)
{
    atomic_store(&agent->stop, true);
    if (agent->running)
        check(pthread_join(agent->thread, NULL) == 0);
    agent->running = false;
}

void agent_free(struct agent **agent)
{
    struct agent *a = *agent;

    *agent = NULL;
    if (a == NULL)
        return;
    for (uint32_t i = 0; i < a->volume_count; i++)
        loop_region_free(&a->arenas[i]);
    for (int i = 0; i < FAKE_BLOCKS; i++)
        free(a->blocks[i].value);
    free(a);
}

void agent_client_trust(struct agent *agent, uint32_t client)
{
    (void)agent;
    (void)client;
}

icms_err agent_client_attach(struct agent *agent, uint64_t staging_bytes, struct err_why *why,
                             struct agent_client_map *out_client)
{
    struct loop_env *env = loop_env_uring();
    struct fake_client *client = NULL;
    uint32_t number = 0;

    if (staging_bytes == 0)
        staging_bytes = agent->client_bytes;
    check(pthread_mutex_lock(&agent->lock) == 0);
    while (number < FAKE_CLIENTS && agent->clients[number].used)
        number++;
    check(number < FAKE_CLIENTS);
    client = &agent->clients[number];
    check(loop_region_new(env, "client",
                          shm_client_region_bytes(agent->reactor_count, staging_bytes), false, why,
                          &client->region) == ICMS_OK);
    shm_client_format(loop_region_base(client->region), number, agent->reactor_count,
                      staging_bytes);
    for (uint32_t i = 0; i < agent->volume_count; i++)
        ((struct shm_client_header *)loop_region_base(client->region))->arena_offsets[i] =
            shard_offset(i);
    for (uint32_t r = 0; r < agent->reactor_count; r++)
        check(shm_ring_view(loop_region_base(client->region), loop_region_bytes(client->region), r,
                            &client->rings[r]) == ICMS_OK);
    check(loop_event_new(env, LOOP_EVENT_WAIT, &client->agent_event) == ICMS_OK);
    check(loop_event_new(env, LOOP_EVENT_SIGNAL, &client->client_event) == ICMS_OK);
    client->kept_count = 0;
    client->flooded = false;
    client->used = true;
    check(pthread_mutex_unlock(&agent->lock) == 0);
    *out_client = (struct agent_client_map){.client = number,
                                            .region = client->region,
                                            .reactor_count = agent->reactor_count,
                                            .client_event = client->client_event,
                                            .volume_count = agent->volume_count};
    for (uint32_t r = 0; r < agent->reactor_count; r++) /* one thread, so one event does */
        out_client->agent_events[r] = client->agent_event;
    memcpy(out_client->arenas, agent->arenas, sizeof(agent->arenas));
    return ICMS_OK;
}

void agent_client_detach_wait(struct agent *agent, uint32_t number)
{
    struct fake_client *client = &agent->clients[number];

    check(pthread_mutex_lock(&agent->lock) == 0);
    client->used = false;
    loop_region_free(&client->region);
    loop_event_free(&client->agent_event);
    loop_event_free(&client->client_event);
    check(pthread_mutex_unlock(&agent->lock) == 0);
}

size_t agent_status(struct agent *agent, char *out, size_t bytes)
{
    return (size_t)snprintf(out, bytes, "{\"fake\":true,\"blocks\":%u}", fake_agent_blocks(agent));
}

char *agent_trace(struct agent *agent, const struct agent_user *user, const struct key *key)
{
    char *text = NULL;

    (void)agent;
    (void)user;
    check(asprintf(&text, "{\"fake\":true,\"key\":%u}", key == NULL ? 0 : key->bytes[0]) > 0);
    return text;
}

/* ---- what tests set and see ------------------------------------------------------------------ */

static void volume_make(struct volume_spec *volume, const char *name, uint64_t value_bytes_max,
                        uint64_t slots, bool sealed)
{
    *volume = (struct volume_spec){.value_bytes_max = value_bytes_max,
                                   .memory_bytes_max = slots * (value_bytes_max + 4096),
                                   .run_blocks = 4,
                                   .sealed = sealed};
    (void)snprintf(volume->name, sizeof(volume->name), "%s", name);
    memset(volume->uuid.bytes, name[0], sizeof(volume->uuid.bytes));
}

struct agent *fake_agent_start(void)
{
    static struct volume_spec volumes[4];
    struct agent_opts opts;
    struct agent *agent;

    volume_make(&volumes[0], "kv", 65536, 8, true);
    volume_make(&volumes[1], "raw", 65536, 8, false);
    volume_make(&volumes[2], "big", (uint64_t)8 << 20, 2, true);
    volume_make(&volumes[3], "vault", FAKE_VAULT_BYTES, 4, true);
    volumes[3].encrypted = true;
    agent_opts_init(&opts);
    opts.volumes = volumes;
    opts.volume_count = 4;
    check(agent_new(loop_env_uring(), &opts, NULL, &agent) == ICMS_OK);
    check(agent_start(agent, NULL) == ICMS_OK);
    return agent;
}

unsigned fake_agent_blocks(struct agent *agent)
{
    unsigned count = 0;

    check(pthread_mutex_lock(&agent->lock) == 0);
    for (int i = 0; i < FAKE_BLOCKS; i++)
        count += agent->blocks[i].used;
    check(pthread_mutex_unlock(&agent->lock) == 0);
    return count;
}

void fake_agent_volume_missing_set(struct agent *agent, uint32_t volume, bool missing)
{
    uint64_t shard_bytes = loop_region_bytes(agent->arenas[volume]) / agent->reactor_count;
    uint8_t *base = (uint8_t *)loop_region_base(agent->arenas[volume]) + shard_offset(volume);

    for (uint32_t r = 0; r < agent->reactor_count; r++)
        atomic_store(&((struct shm_arena_header *)(void *)(base + r * shard_bytes))->volume_missing,
                     missing);
}

void fake_agent_encrypted_set(struct agent *agent, uint32_t volume, bool encrypted)
{
    uint64_t shard_bytes = loop_region_bytes(agent->arenas[volume]) / agent->reactor_count;
    uint8_t *base = (uint8_t *)loop_region_base(agent->arenas[volume]) + shard_offset(volume);

    for (uint32_t r = 0; r < agent->reactor_count; r++)
        ((struct shm_arena_header *)(void *)(base + r * shard_bytes))->encrypted = encrypted;
}

/* The slot goes, so that the next get loads what the table has. */
static void block_unload(struct agent *agent, const struct fake_block *block)
{
    uint32_t shard = shard_of(agent, block->volume, &block->key);
    uint32_t slot = slot_find(agent, shard, &block->key);

    if (slot != SHM_SLOT_NONE)
        (void)slot_evict(agent, shard, slot);
}

void fake_agent_reset(struct agent *agent, uint32_t volume, const struct uuid *uuid)
{
    check(pthread_mutex_lock(&agent->lock) == 0);
    for (uint32_t r = 0; r < agent->reactor_count; r++) {
        uint32_t shard = volume * agent->reactor_count + r;
        const struct shm_arena *view = &agent->views[shard];
        struct shm_arena_header *header = (void *)(uintptr_t)view->header;

        if (atomic_load(&header->identity) % 2 == 0)
            shm_arena_identity_begin(header);
        for (uint32_t i = 0; i < slot_count(view); i++)
            (void)slot_evict(agent, shard, i);
        if (uuid != NULL)
            shm_arena_identity_end(header, uuid);
    }
    for (int i = 0; i < FAKE_BLOCKS; i++)
        if (agent->blocks[i].used && agent->blocks[i].volume == volume)
            agent->blocks[i].used = false;
    check(pthread_mutex_unlock(&agent->lock) == 0);
}

uint32_t fake_agent_value_take(struct agent *agent, uint32_t volume, const struct key *key,
                               uint8_t *out, uint32_t bytes)
{
    struct fake_block *block;
    uint32_t value_bytes = 0;

    check(pthread_mutex_lock(&agent->lock) == 0);
    block = block_find(agent, volume, key);
    if (block != NULL && block->bytes + LIMIT_TRAILER_BYTES <= bytes) {
        value_bytes = block->bytes;
        memcpy(out, block->value, block->bytes + LIMIT_TRAILER_BYTES);
    }
    check(pthread_mutex_unlock(&agent->lock) == 0);
    return value_bytes;
}

void fake_agent_value_give(struct agent *agent, uint32_t volume, const struct key *key,
                           const uint8_t *value, uint32_t value_bytes)
{
    struct fake_block *block;

    check(pthread_mutex_lock(&agent->lock) == 0);
    block = block_find(agent, volume, key);
    if (block == NULL)
        block = block_new(agent);
    check(block != NULL);
    free(block->value);
    *block = (struct fake_block){.used = true, .volume = volume, .key = *key, .bytes = value_bytes};
    block->value = malloc(value_bytes + LIMIT_TRAILER_BYTES);
    check(block->value != NULL);
    memcpy(block->value, value, value_bytes + LIMIT_TRAILER_BYTES);
    block_unload(agent, block);
    check(pthread_mutex_unlock(&agent->lock) == 0);
}

bool fake_agent_memory_has(struct agent *agent, const void *bytes, size_t count)
{
    bool found = false;

    check(pthread_mutex_lock(&agent->lock) == 0);
    for (uint32_t i = 0; i < agent->volume_count; i++)
        found = found || memmem(loop_region_base(agent->arenas[i]),
                                loop_region_bytes(agent->arenas[i]), bytes, count) != NULL;
    for (uint32_t i = 0; i < FAKE_CLIENTS; i++)
        found =
            found || (agent->clients[i].used &&
                      memmem(loop_region_base(agent->clients[i].region),
                             loop_region_bytes(agent->clients[i].region), bytes, count) != NULL);
    check(pthread_mutex_unlock(&agent->lock) == 0);
    return found;
}

unsigned fake_agent_leases(struct agent *agent)
{
    unsigned count = 0;

    check(pthread_mutex_lock(&agent->lock) == 0);
    for (int c = 0; c < FAKE_CLIENTS; c++)
        for (int l = 0; agent->clients[c].used && l < SHM_LEASES; l++)
            count += atomic_load(&agent->clients[c].ring.leases[l]) != 0;
    check(pthread_mutex_unlock(&agent->lock) == 0);
    return count;
}
