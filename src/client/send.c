/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/send.c: one block of a request on its way out: answered from the arena, refused, or put
 * into the ring.
 *
 * Runs on the request's thread; takes the handle's lock for the room it needs and for the ring, and
 * leaves it while a value is copied into staging memory. Requests that find no room queue up, one
 * queue a kind of room, and have turns.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "client/client_int.h"
#include "wire/sealed.h"

/* Signals the event of a reactor. */
static void send_bell(const struct icms *icms, uint32_t reactor)
{
    sys_event_raise(icms->link->agent_events[reactor]);
}

void client_publish(struct icms *icms)
{
    struct client_link *link = icms->link;

    for (uint32_t r = 0; r < link->reactor_count && !link->down; r++)
        if (shm_submit_publish(&link->rings[r]))
            send_bell(icms, r);
}

static bool send_hint_room(const struct icms *icms, uint32_t reactor)
{
    const struct shm_ring *ring = &icms->link->rings[reactor];
    uint32_t head = atomic_load_explicit(&ring->qpair->submit_head, memory_order_relaxed);

    return !icms->link->down && ring->submit_tail - head < SHM_RING_ENTRIES - CLIENT_OPS;
}

bool client_push_hint(struct icms *icms, uint32_t reactor, const struct shm_submit *entry)
{
    return send_hint_room(icms, reactor) && shm_submit_push(&icms->link->rings[reactor], entry);
}

uint32_t client_reactor(const struct icms_request *request, const struct icms_key *key)
{
    uint32_t reactor_count = request->link_used->reactor_count;
    struct key wire;

    if (reactor_count == 1)
        return 0; /* looking for many keys comes here for each */
    wire = client_key(key);
    return shm_reactor(&wire, request->view->arena.sealed, reactor_count);
}

static enum client_room send_room(const struct icms_request *request)
{
    if (request->copy_wanted)
        return ROOM_COPIES;
    if (request->op == SHM_OP_GET)
        return ROOM_LEASES;
    return request->op == SHM_OP_PUT ? ROOM_STAGING : ROOM_OPS;
}

/* True when the request may take room now: it is first in its queue, has a turn, or nobody waits.
 * Else it has looked, and has nothing to do before room comes back or it is the first.
 */
static bool send_may_take(struct icms_request *request)
{
    struct list *queue = &request->icms->rooms[send_room(request)];

    if (list_empty(queue) || list_first(queue) == &request->queue)
        return true;
    if (list_empty(&request->queue) && request->turn > 0) {
        request->turn--;
        return true;
    }
    if (list_empty(&request->queue))
        list_push(queue, &request->queue);
    request->room_epoch = request->icms->room_epoch;
    return false;
}

static enum client_step send_wait(struct icms_request *request)
{
    if (list_empty(&request->queue))
        list_push(&request->icms->rooms[send_room(request)], &request->queue);
    request->room_epoch = request->icms->room_epoch;
    return STEP_WAIT;
}

/* An operation in state FILL. Lock. */
static struct client_op *send_op_new(struct icms_request *request, size_t index)
{
    struct list *link = list_pop(&request->icms->ops_free);
    struct client_op *op;

    if (link == NULL)
        return NULL;
    op = container_of(link, struct client_op, link);
    check(op->state == OP_FREE);
    op->state = OP_FILL;
    op->generation++;
    if (op->generation == 0)
        op->generation = 1;
    op->request = request;
    op->block = index;
    op->blocks = 1;
    op->many = false;
    op->lease = CLIENT_LEASE_NONE;
    op->staging_bytes = 0;
    op->buffer = NULL;
    op->direct = false;
    op->parts = false;
    op->link_lost = false;
    op->reactor = 0;
    op->answer = (struct shm_complete){0};
    op->account = request->op == SHM_OP_FLUSH ? request->volume->account : NULL;
    return op;
}

/* The request has its room: it leaves the queue, and the next one may look. Lock. */
static void send_room_taken(struct icms_request *request)
{
    struct icms *icms = request->icms;
    struct list *queue = &icms->rooms[send_room(request)];

    if (list_empty(&request->queue))
        return;
    list_remove(&request->queue);
    request->turn = request->op == SHM_OP_PUT ? 0 : CLIENT_TURN_BLOCKS - 1;
    if (!list_empty(queue))
        client_wake(icms);
}

/* Puts the entry into the ring of its reactor, or into all; false: not into each that was meant. */
static bool send_entry(struct icms_request *request, struct client_op *op, struct shm_submit *entry)
{
    struct client_link *link = request->icms->link;
    uint32_t wanted = 1;

    op->left = 0;
    op->all = request->op == SHM_OP_FLUSH || op->many;
    if (op->all)
        wanted = link->reactor_count;
    else
        op->reactor = client_reactor(request, client_request_key(request, op->block));
    while (op->left < wanted && !link->down) {
        uint32_t reactor = op->reactor + op->left;

        entry->identity = (uint8_t)request->view->shards[reactor].identity;
        if (!shm_submit_push(&link->rings[reactor], entry))
            break;
        op->left++;
    }
    return op->left == wanted;
}

/* FILL -> SENT. Lock. */
static void send_push(struct icms_request *request, struct client_op *op)
{
    struct icms *icms = request->icms;
    const struct icms_key *key = client_request_key(request, op->block);
    struct shm_submit entry = {
        .tag = (uint64_t)op->generation << 32 | (uint64_t)(op - icms->ops),
        .deadline_ns = request->deadline_ns,
        .offset = op->staging_offset,
        .volume = request->view->arena.volume,
        .lease = op->lease,
        .op = (uint8_t)request->op,
        .flags = request->flags,
        .key_length = key->length,
    };

    if (request->op == SHM_OP_PUT)
        entry.bytes =
            (uint32_t)client_carried_bytes(request->volume, request->blocks[op->block].bytes);
    if (op->many) {
        entry.op = request->op == SHM_OP_EXISTS ? SHM_OP_EXISTS_MANY : entry.op;
        entry.bytes = op->blocks;
    }
    if (request->op == SHM_OP_PRESTAGE) {
        entry.lease = request->hint;
        entry.aside = request->need_ns;
    }
    if (op->parts)
        entry.flags |= SHM_FLAG_PARTS;
    if (op->direct) {
        entry.flags |= SHM_FLAG_DIRECT;
        entry.offset = (uint64_t)(uintptr_t)client_block_memory(request, op->block);
        entry.bytes = (uint32_t)op->room;
        entry.aside = (uint64_t)(uintptr_t)(request->op == SHM_OP_PUT ? key->digest : op->trailer);
    }
    memcpy(entry.key, key->bytes, sizeof(entry.key));
    op->state = OP_SENT;
    list_push(&request->sent, &op->link);
    /* There is room for every operation (see CLIENT_OPS), unless the agent is gone or writes
     * nonsense into the ring. */
    if (!send_entry(request, op, &entry))
        op->answer.status = ICMS_PROTOCOL;
    if (op->left == 0) { /* it was never sent, so nothing of it is in use */
        op->link_lost = icms->link->down;
        op->state = OP_ANSWERED;
        list_remove(&op->link);
        list_push(&request->answered, &op->link);
        return;
    }
    if (request->op == SHM_OP_PUT || op->many || request->next % 64 == 0)
        client_publish(icms);
}

/* ---- put ------------------------------------------------------------------------------------ */

/* The taken buffer that begins at data and has room behind the value for a trailer. Lock. */
static struct client_buffer *send_buffer(struct client_link *link, const void *data, uint64_t bytes)
{
    const uint8_t *at = data;

    if (at < link->rings[0].staging || at >= link->rings[0].staging + link->rings[0].staging_bytes)
        return NULL;
    for (uint32_t i = 0; i < CLIENT_BUFFERS; i++) {
        struct client_buffer *buffer = &link->buffers[i];

        if (buffer->used && !buffer->busy && !buffer->given &&
            at == link->rings[0].staging + buffer->offset && bytes <= buffer->room)
            return buffer;
    }
    return NULL;
}

/* Takes an operation and staging memory for one value. */
static enum client_step send_put_room(struct icms_request *request, size_t index,
                                      struct client_op **out_op)
{
    const struct icms_block *block = &request->blocks[index];
    struct icms *icms = request->icms;
    struct client_link *link = icms->link;
    struct client_op *op;

    if (!send_may_take(request))
        return STEP_WAIT;
    op = send_op_new(request, index);
    if (op == NULL)
        return send_wait(request);
    if (request->volume->keys == NULL && request->pieces == 0)
        op->buffer = send_buffer(link, block->data, block->bytes);
    if (op->buffer != NULL) {
        op->buffer->busy = true;
        op->staging_offset = op->buffer->offset;
    } else {
        uint64_t bytes = client_carried_bytes(request->volume, block->bytes) + LIMIT_TRAILER_BYTES;

        if (!staging_take(&link->staging, bytes, &op->staging_offset)) {
            op->state = OP_FREE;
            list_push_front(&icms->ops_free, &op->link);
            return send_wait(request);
        }
        op->staging_bytes = bytes;
    }
    send_room_taken(request);
    *out_op = op;
    return STEP_NEXT;
}

/* An agent in this process takes a large value from where it is, and makes its trailer. The staging
 * memory of such a put stays taken and untouched: it bounds how much is under way. */
static bool send_put_direct(struct icms_request *request, struct client_op *op)
{
    const struct icms_block *block = &request->blocks[op->block];

    if (request->link_used->inside == NULL || block->bytes < CLIENT_DIRECT_BYTES ||
        request->volume->keys != NULL || client_is_scattered(request, op->block))
        return false;
    op->direct = true;
    op->room = block->bytes;
    request->direct++;
    return true;
}

/* The same for an encrypted volume: nothing but ciphertext comes into memory that the agent sees.
 */
static void send_put_encrypt(struct icms_request *request, const struct client_op *op, uint8_t *to)
{
    const struct icms_block *block = &request->blocks[op->block];
    const struct shm_arena *arena = &request->view->arena;
    const struct client_key *volume_key = &request->volume->keys->keys[0];
    const uint32_t carried = (uint32_t)sealed_bytes(block->bytes);
    struct key key = client_key(&block->key);
    struct seal_block bound = {
        .volume = &arena->uuid, .key = &key, .digest = block->key.digest, .key_id = volume_key->id};
    uint32_t number, crc;
    struct seal *seal = client_seal_take(request->icms->crypt, &number);

    sys_random(bound.salt, sizeof(bound.salt));
    crc = seal_value(seal, secret_bytes(volume_key->secret), &bound,
                     client_block_memory(request, op->block), (uint32_t)block->bytes,
                     client_seal_memory(request), to);
    client_seal_give(request->icms->crypt, number);
    sealed_trailer_make_encrypted(&arena->uuid, &key, block->key.digest, carried, crc,
                                  to + carried);
}

/* Value and trailer into staging memory. */
static void send_put_copy(struct icms_request *request, struct client_op *op)
{
    const struct icms_block *block = &request->blocks[op->block];
    const struct shm_arena *arena = &request->view->arena;
    const uint8_t *from = client_block_memory(request, op->block);
    uint8_t *to = request->icms->link->rings[0].staging + op->staging_offset;

    if (request->volume->keys != NULL) {
        send_put_encrypt(request, op, to);
    } else if (arena->sealed) {
        struct key key = client_key(&block->key);
        uint32_t crc;

        if (op->buffer != NULL)
            crc = crc32c(to, block->bytes);
        else if (client_is_scattered(request, op->block))
            crc = client_pieces_gather(request, op->block, to);
        else
            crc = crc32c_copy_steady(0, to, from, block->bytes);
        sealed_trailer_make(&arena->uuid, &key, block->key.digest, (uint32_t)block->bytes, crc,
                            to + block->bytes);
    } else if (client_is_scattered(request, op->block)) {
        (void)client_pieces_gather(request, op->block, to); /* its checksum: it has none */
    } else if (op->buffer == NULL) {
        memcpy(to, from, block->bytes);
    }
}

static enum client_step send_put(struct icms_request *request, size_t index)
{
    struct icms *icms = request->icms;
    struct client_op *op = NULL;
    enum client_step step;

    client_lock(icms);
    step = send_put_room(request, index, &op);
    client_unlock(icms);
    if (step == STEP_WAIT)
        return step;
    request->next++;
    if (!send_put_direct(request, op))
        send_put_copy(request, op);
    client_lock(icms);
    send_push(request, op);
    client_unlock(icms);
    return STEP_NEXT;
}

/* ---- get ------------------------------------------------------------------------------------ */

/* Tells the agent that a block was used; a hint that may be lost when others hold the lock. It
 * costs no system call: the agent sees it at its next beat, or is woken when many lie there. */
static void send_touch(struct icms_request *request, const struct icms_key *key, uint32_t reactor)
{
    struct icms *icms = request->icms;
    struct shm_submit entry = {.volume = request->view->arena.volume,
                               .identity = (uint8_t)request->view->shards[reactor].identity,
                               .op = SHM_OP_TOUCH,
                               .flags = request->flags & SHM_FLAG_ONCE,
                               .key_length = key->length};

    memcpy(entry.key, key->bytes, sizeof(entry.key));
    if (!client_trylock(icms))
        return;
    if (send_hint_room(icms, reactor) && shm_submit_hint(&icms->link->rings[reactor], &entry) &&
        ++icms->touches % CLIENT_TOUCHES_WAKE == 0 && shm_submit_wake(&icms->link->rings[reactor]))
        send_bell(icms, reactor);
    client_unlock(icms);
}

/* A block in the arena needs no message: leased, copied, verified here. */
static bool send_get_local(struct icms_request *request, size_t index, uint32_t *lease)
{
    struct client_link *link = request->link_used;
    const struct icms_key *icms_key = client_request_key(request, index);
    struct key key = client_key(icms_key);
    uint32_t reactor = client_reactor(request, icms_key);
    struct client_place place = {.lease = *lease};
    const struct shm_arena *shard = &request->view->shards[reactor];
    size_t not_ok = request->not_ok;
    uint64_t version;

    atomic_store_explicit(&link->rings[0].lease_shards[*lease], shard->shard, memory_order_release);
    if (!shm_arena_lease(shard, &key, &link->rings[0].leases[*lease], &place.slot, &version,
                         &place.value_bytes))
        return false;
    client_block_load(request, index, &place, ICMS_SOURCE_DRAM);
    *lease = place.lease;
    if (request->not_ok == not_ok) {
        request->hits++;
        request->hit_bytes += place.value_bytes;
    }
    send_touch(request, icms_key, reactor);
    return true;
}

/* An agent in this process may receive a large block where the caller wants it. */
static void send_direct(struct icms_request *request, struct client_op *op)
{
    const struct icms_block *block = &request->blocks[op->block];
    const struct shm_arena *arena = &request->view->arena;

    if (request->link_used->inside == NULL || request->lease_wanted || block->data == NULL ||
        block->bytes < CLIENT_DIRECT_BYTES || !arena->sealed || request->volume->keys != NULL ||
        client_is_scattered(request, op->block))
        return;
    op->direct = true;
    op->room = u64_min(block->bytes, arena->value_bytes_max);
    request->direct++;
}

/* A value is copied, or its pieces are opened, where the caller wants it while the rest arrives. Of
 * one piece there is none before the answer. A plain value for a device is copied by the device,
 * from the arena. */
static void send_parts(struct icms_request *request, struct client_op *op)
{
    const struct icms_block *block = &request->blocks[op->block];

    op->begun = (struct client_begun){0};
    op->parts = !request->lease_wanted && block->data != NULL && block->bytes > LIMIT_PIECE_BYTES;
    if (request->volume->keys == NULL)
        op->parts = op->parts && request->view->arena.sealed &&
                    client_copy_find(request, op->block) == NULL;
    request->parts = request->parts || op->parts;
}

static enum client_step send_get(struct icms_request *request, size_t index)
{
    struct icms *icms = request->icms;
    uint32_t lease = client_lease_take(request->link_used, request->lease_wanted);
    enum client_step step = STEP_NEXT;
    struct client_op *op = NULL;

    if (lease == CLIENT_LEASE_NONE && request->lease_wanted) {
        request->next++; /* they come back when the caller gives them back: no use to wait */
        client_block_done(request, index, ICMS_LIMIT, ICMS_MISS_NONE);
        return STEP_NEXT;
    }
    if (lease != CLIENT_LEASE_NONE && send_get_local(request, index, &lease)) {
        request->next++;
        if (request->lease_wanted && request->not_ok == 0)
            request->lease_index = lease;
        else if (lease != CLIENT_LEASE_NONE)
            client_lease_give(request->link_used, lease);
        return STEP_NEXT;
    }
    client_lock(icms);
    if (!send_may_take(request))
        step = STEP_WAIT;
    else if (lease == CLIENT_LEASE_NONE || (op = send_op_new(request, index)) == NULL)
        step = send_wait(request);
    if (step == STEP_NEXT) {
        send_room_taken(request);
        op->lease = lease;
        send_direct(request, op);
        send_parts(request, op);
        request->next++;
        send_push(request, op);
    }
    client_unlock(icms);
    if (step == STEP_WAIT && lease != CLIENT_LEASE_NONE)
        client_lease_give(request->link_used, lease);
    return step;
}

/* ---- remove, flush -------------------------------------------------------------------------- */

static enum client_step send_plain(struct icms_request *request, size_t index)
{
    struct icms *icms = request->icms;
    enum client_step step = STEP_NEXT;
    struct client_op *op = NULL;

    client_lock(icms);
    if (!send_may_take(request))
        step = STEP_WAIT;
    else if ((op = send_op_new(request, index)) == NULL)
        step = send_wait(request);
    if (step == STEP_NEXT) {
        send_room_taken(request);
        request->next++;
        send_push(request, op);
    }
    client_unlock(icms);
    return step;
}

/* ---- what is wrong with a block ------------------------------------------------------------- */

static icms_err send_key_check(const struct icms_request *request, size_t index)
{
    static const uint8_t none[ICMS_DIGEST_BYTES];
    const struct icms_key *key = client_request_key(request, index);

    if (key->length == 0 || key->length > ICMS_KEY_BYTES)
        return ICMS_KEY_SIZE;
    for (uint32_t i = key->length; i < ICMS_KEY_BYTES; i++)
        if (key->bytes[i] != 0)
            return ICMS_INVALID;
    if (request->view->arena.sealed && memcmp(key->digest, none, sizeof(none)) == 0)
        return ICMS_INVALID;
    return ICMS_OK;
}

static icms_err send_check(const struct icms_request *request, size_t index)
{
    const struct icms_block *block;
    icms_err err;

    if (request->op == SHM_OP_FLUSH)
        return ICMS_OK;
    err = send_key_check(request, index);
    if (err != ICMS_OK || request->blocks == NULL)
        return err;
    block = &request->blocks[index];
    if (request->pieces > ICMS_PIECES_MAX)
        return ICMS_INVALID;
    if (request->pieces != 0 && block->data != NULL)
        err = client_pieces_check(request, index);
    if (err != ICMS_OK)
        return err;
    if (request->op == SHM_OP_GET)
        return block->data == NULL && block->bytes != 0 ? ICMS_INVALID : ICMS_OK;
    if (request->op != SHM_OP_PUT)
        return ICMS_OK;
    if (block->bytes == 0 || block->bytes > client_value_bytes_max(request->volume))
        return ICMS_VALUE_SIZE;
    if (block->data == NULL)
        return ICMS_INVALID;
    if (client_carried_bytes(request->volume, block->bytes) + LIMIT_TRAILER_BYTES >
        request->link_used->rings[0].staging_bytes)
        return ICMS_LIMIT;
    return ICMS_OK;
}

/* ---- exists --------------------------------------------------------------------------------- */

/* Keys from the next one on that belong to one reactor, SHM_PROBE_KEYS at most; 0: the next one is
 * no key. */
static size_t send_probe_keys(const struct icms_request *request, struct key *out_keys,
                              uint32_t *out_reactor)
{
    size_t n = 0;

    for (; n < SHM_PROBE_KEYS && request->next + n < request->count; n++) {
        const struct icms_key *key = client_request_key(request, request->next + n);
        uint32_t reactor;

        if (send_key_check(request, request->next + n) != ICMS_OK)
            break;
        reactor = client_reactor(request, key);
        out_keys[n] = client_key(key);
        if (n > 0 && reactor != *out_reactor)
            break;
        *out_reactor = reactor;
    }
    return n;
}

/* Blocks from the next one on that are in the arena need no message. A batch of heads is fetched
 * before it is followed, since they lie all over the arena. */
static void send_exists_local(struct icms_request *request)
{
    while (request->next < request->count) {
        struct key keys[SHM_PROBE_KEYS];
        uint32_t reactor = 0;
        size_t n = send_probe_keys(request, keys, &reactor);
        size_t found = n == 0 ? 0 : shm_arena_has_first(&request->view->shards[reactor], keys, n);

        for (size_t i = 0; i < found; i++)
            client_block_done(request, request->next++, ICMS_OK, ICMS_MISS_NONE);
        if (n == 0 || found < n)
            return;
    }
}

/* How many keys from the next one on may go in one entry: all that are keys. */
static uint32_t send_keys_count(const struct icms_request *request, uint32_t max)
{
    uint32_t n = 1;

    while (n < max && request->next + n < request->count &&
           send_key_check(request, request->next + n) == ICMS_OK)
        n++;
    return n;
}

/* Takes an operation, and staging memory for its keys; where there is none a key goes alone, so
 * that nobody who looks for blocks waits for others' puts. Lock. */
static struct client_op *send_exists_room(struct icms_request *request, uint32_t count)
{
    struct staging *staging = &request->icms->link->staging;
    struct client_op *op = send_op_new(request, request->next);
    uint32_t least = request->estimates != NULL ? 0 : 1; /* one alone is not estimated */

    if (op == NULL)
        return NULL;
    for (; count > least; count /= 4) {
        uint64_t bytes =
            request->estimates != NULL ? SHM_ESTIMATE_BYTES(count) : SHM_MATCH_BYTES(count);

        if (staging_take(staging, bytes, &op->staging_offset)) {
            op->staging_bytes = bytes;
            op->blocks = count;
            op->many = true;
            break;
        }
    }
    return op;
}

static void send_keys_fill(const struct icms_request *request, const struct client_op *op)
{
    uint8_t *to = request->icms->link->rings[0].staging + op->staging_offset;

    for (uint32_t i = 0; i < op->blocks; i++) {
        const struct icms_key *key = client_request_key(request, op->block + i);
        struct shm_key copy = {.length = key->length};

        memcpy(copy.bytes, key->bytes, sizeof(copy.bytes));
        memcpy(to + i * sizeof(copy), &copy, sizeof(copy));
    }
    if (request->estimates != NULL) /* where no reactor says anything: unknown */
        memset(to + SHM_MATCH_BYTES(op->blocks), 0xff, op->blocks * sizeof(struct shm_estimate));
}

static enum client_step send_exists(struct icms_request *request)
{
    struct icms *icms = request->icms;
    enum client_step step = STEP_NEXT;
    struct client_op *op = NULL;
    uint32_t count;

    /* A match needs nothing behind its first hole. */
    if (request->keys != NULL && request->next > request->hole) {
        client_block_done(request, request->next++, ICMS_MISS, ICMS_MISS_ABSENT);
        return STEP_NEXT;
    }
    if (request->estimates == NULL) /* else the agent is asked what they have */
        send_exists_local(request);
    if (request->next == request->count || send_key_check(request, request->next) != ICMS_OK)
        return STEP_NEXT;
    count = send_keys_count(request, SHM_MATCH_KEYS);
    client_lock(icms);
    if (!send_may_take(request))
        step = STEP_WAIT;
    else if ((op = send_exists_room(request, count)) == NULL)
        step = send_wait(request);
    else
        send_room_taken(request);
    client_unlock(icms);
    if (step == STEP_WAIT)
        return step;
    if (op->many)
        send_keys_fill(request, op);
    request->next += op->blocks;
    client_lock(icms);
    send_push(request, op);
    client_unlock(icms);
    return STEP_NEXT;
}

/* ---- device memory -------------------------------------------------------------------------- */

/* A copy for a block in a range of device memory, in turns with other requests. Lock. */
static enum client_step send_copy_room(struct icms_request *request, size_t index,
                                       struct icms_memory *memory, icms_err *out_err)
{
    struct device_copy *copy = NULL;

    /* Of leases: its block before this one was found in the arena. Who is behind it there may have
     * the copy that it waits for. */
    if (!request->copy_wanted)
        client_queue_leave(request);
    request->copy_wanted = true;
    if (!send_may_take(request))
        return STEP_WAIT;
    *out_err = client_copy_take(request, index, memory, &copy);
    if (*out_err == ICMS_OK && copy == NULL)
        return send_wait(request);
    send_room_taken(request);
    request->copy_wanted = false;
    return STEP_NEXT;
}

/* The memory of the block: a copy is taken if it is a device's. A host's: *out_err stays OK, and
 * nothing is taken. */
static enum client_step send_copy_take(struct icms_request *request, size_t index,
                                       icms_err *out_err)
{
    void *begin = client_block_begin(request, index);
    struct icms *icms = request->icms;
    enum client_step step = STEP_NEXT;
    struct icms_memory *memory;

    client_lock(icms);
    memory = client_memory_find(icms, begin);
    if (memory != NULL && memory->device != NULL)
        step = send_copy_room(request, index, memory, out_err);
    else if (request->pieces != 0)
        *out_err = client_pieces_host(request, index);
    client_unlock(icms);
    if (memory == NULL && device_is_foreign(begin))
        *out_err = ICMS_NOT_REGISTERED;
    return step;
}

/* Values of blocks behind this one come from their devices meanwhile, as long as nobody waits for
 * the room. */
static void send_copy_ahead(struct icms_request *request, size_t index)
{
    struct icms *icms = request->icms;

    for (size_t i = index + 1; i < request->count && i <= index + CLIENT_AHEAD; i++) {
        const struct icms_block *block = &request->blocks[i];
        struct device_copy *copy = NULL;
        struct icms_memory *memory;
        icms_err err = ICMS_OK;

        if (client_copy_find(request, i) != NULL)
            continue;
        if (send_check(request, i) != ICMS_OK)
            break;
        client_lock(icms);
        memory = client_memory_find(icms, client_block_begin(request, i));
        if (memory != NULL && memory->device != NULL && list_empty(&icms->rooms[ROOM_COPIES]))
            err = client_copy_take(request, i, memory, &copy);
        client_unlock(icms);
        if (err != ICMS_OK || copy == NULL)
            break; /* it is asked for again when it is its turn */
        client_copy_start(request, copy, block->bytes);
    }
}

/* What a put or get needs before its block can go: nothing in host memory; a copy, for a get where
 * its value is received, for a put that has brought the value. */
static enum client_step send_copy(struct icms_request *request, size_t index, icms_err *out_err)
{
    const struct icms_block *block = &request->blocks[index];
    struct device_copy *copy = client_copy_find(request, index);
    enum client_step step;

    request->copying = false;
    if (copy == NULL && request->pieces == 0 &&
        atomic_load_explicit(&request->icms->memory_count, memory_order_relaxed) == 0)
        *out_err = device_is_foreign(block->data) ? ICMS_NOT_REGISTERED : ICMS_OK;
    else if (copy == NULL) {
        step = send_copy_take(request, index, out_err);
        if (step == STEP_WAIT)
            return step;
        copy = client_copy_find(request, index);
    }
    if (*out_err != ICMS_OK || copy == NULL || request->op == SHM_OP_GET)
        return STEP_NEXT;
    if (!copy->started)
        client_copy_start(request, copy, block->bytes);
    send_copy_ahead(request, index);
    if (device_copy_is_over(copy) == COPY_NOT_OVER) {
        request->copying = true;
        return STEP_WAIT;
    }
    *out_err = device_copy_is_over(copy) == COPY_DONE ? ICMS_OK : ICMS_DEVICE;
    return STEP_NEXT;
}

/* ---- prestage ------------------------------------------------------------------------------- */

/* Takes an operation and staging memory for keys. Where there is no memory these hints are
 * refused: they wait for nobody's puts. Lock. */
static enum client_step send_hints_room(struct icms_request *request, uint32_t count,
                                        struct client_op **out_op)
{
    struct icms *icms = request->icms;
    struct client_op *op;

    *out_op = NULL;
    if (!send_may_take(request))
        return STEP_WAIT;
    op = send_op_new(request, request->next);
    if (op == NULL)
        return send_wait(request);
    send_room_taken(request);
    if (!staging_take(&icms->link->staging, SHM_MATCH_BYTES(count), &op->staging_offset)) {
        op->state = OP_FREE;
        list_push_front(&icms->ops_free, &op->link);
        return STEP_NEXT;
    }
    op->staging_bytes = SHM_MATCH_BYTES(count);
    op->blocks = count;
    op->many = true;
    *out_op = op;
    return STEP_NEXT;
}

static enum client_step send_hints(struct icms_request *request)
{
    uint32_t count = send_keys_count(request, SHM_HINT_KEYS);
    struct icms *icms = request->icms;
    struct client_op *op;
    enum client_step step;

    client_lock(icms);
    step = send_hints_room(request, count, &op);
    client_unlock(icms);
    if (step == STEP_WAIT)
        return step;
    if (op == NULL) {
        while (count-- > 0)
            client_block_done(request, request->next++, ICMS_BUSY, ICMS_MISS_SHED);
        return STEP_NEXT;
    }
    send_keys_fill(request, op);
    /* Refused, where no reactor says anything. */
    memset(icms->link->rings[0].staging + op->staging_offset + count * sizeof(struct shm_key),
           ICMS_MISS_SHED, count);
    request->next += count;
    client_lock(icms);
    send_push(request, op);
    client_unlock(icms);
    return STEP_NEXT;
}
/* ---- the next block ------------------------------------------------------------------------- */

enum client_step client_send_next(struct icms_request *request)
{
    size_t index = request->next;
    icms_err err = send_check(request, index);

    check(index < request->count);
    if (err == ICMS_OK && (request->op == SHM_OP_PUT || request->op == SHM_OP_GET) &&
        request->blocks[index].data != NULL && send_copy(request, index, &err) == STEP_WAIT)
        return STEP_WAIT;
    if (err != ICMS_OK) {
        request->next++;
        client_block_done(request, index, err, ICMS_MISS_NONE);
        return STEP_NEXT;
    }
    switch (request->op) {
    case SHM_OP_PUT:
        return send_put(request, index);
    case SHM_OP_GET:
        return send_get(request, index);
    case SHM_OP_EXISTS:
        return send_exists(request);
    case SHM_OP_PRESTAGE:
        return send_hints(request);
    default:
        return send_plain(request, index);
    }
}
