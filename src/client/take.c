/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/take.c: one answer on its way in; a value from the arena into the caller's memory.
 *
 * Runs on the request's thread without the handle's lock. A value is copied and its checksum taken
 * in one pass; it is checked exactly once, here. The slot cannot change meanwhile: its lease is in
 * the table of this client. A value that is read in place, by the caller or by a device, is checked
 * when that is wanted first.
 *
 * A value of an encrypted volume is decrypted on its way: a tag that does not pass is a miss with
 * reason checksum, and what was decrypted so far is overwritten. If what is stored is whole all the
 * same, by its CRC32C, the agent is not told: another client may have the key that opens it.
 *
 * The first bytes of a value may be copied and summed, or its first pieces decrypted, while the
 * rest arrives (client_op_take_part), from memory that nothing holds: what is there may be of a
 * load that failed and begins anew, of another value, or of another block by now. That needs no
 * rule between us and the agent. The sum is of what was copied: if it passes together with the
 * rest, the copy is the value of the answer. A piece that passes its tag is the piece of this block
 * that was sealed under the head that was read with it: it is good for the answer if the value that
 * this brings has the same head. What does not pass means nothing: the answer is taken as if
 * nothing had been begun. What an agent in this process receives in the caller's memory is summed
 * there, and the sum counts for the arrival that it is of alone: the next one writes there again.
 *
 * Slots, operations and answers are found by the key's 16 bytes. That it is the block of this key
 * is decided here alone, by the digest in its trailer, at each get, whether or not the value was
 * checked before. A block of another digest is left where it is: it is whole.
 */
#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "base/fault.h"
#include "client/client_int.h"
#include "wire/sealed.h"

void client_block_done(struct icms_request *request, size_t index, icms_err status,
                       enum icms_miss reason)
{
    if (!list_empty(&request->copies) && client_copy_hold(request, index, status))
        return; /* client_copies_take comes back */
    if (status == ICMS_OK || (unsigned)reason >= ICMS_MISS_COUNT)
        reason = ICMS_MISS_NONE;
    if (status == ICMS_MISS && reason == ICMS_MISS_NONE)
        reason = ICMS_MISS_ABSENT;
    if (request->blocks != NULL) {
        request->blocks[index].status = status;
        request->blocks[index].reason = reason;
    }
    if (status != ICMS_OK) {
        request->not_ok++;
        request->missed += status == ICMS_MISS;
        if (index < request->hole) {
            request->hole = index;
            request->hole_status = status;
        }
    }
    request->done++;
    check(request->done <= request->count);
}

static uint32_t count_bits(uint64_t n)
{
    return n == 0 ? 0 : 64 - (uint32_t)__builtin_clzll(n);
}

void client_count(struct icms_request *request)
{
    struct shm_ring *ring = &request->link_used->rings[0];
    uint32_t volume = request->view->arena.volume, bucket;
    bool match = request->keys != NULL;
    uint64_t found;

    shm_count_add(ring, volume, SHM_COUNT_HITS, request->hits);
    shm_count_add(ring, volume, SHM_COUNT_HIT_BYTES, request->hit_bytes);
    shm_count_add(ring, volume, SHM_COUNT_COLLISIONS, request->collisions);
    shm_count_add(ring, volume, SHM_COUNT_TAG_ERRORS, request->tag_errors);
    shm_count_add(ring, volume, SHM_COUNT_NO_KEYS, request->no_keys);
    shm_count_add(ring, volume, SHM_COUNT_VERSIONS, request->versions);
    if (match && request->hole == request->count && request->behind != 0)
        return; /* it goes on; its last request counts all of it */
    /* Of one that failed, some blocks have no answer. */
    if (request->op != SHM_OP_EXISTS || request->not_ok != request->missed)
        return;
    found = match ? request->before + request->hole : request->count - request->missed;
    shm_count_add(ring, volume, SHM_COUNT_FOUND, found);
    shm_count_add(ring, volume, SHM_COUNT_MISSED,
                  request->before + request->count + request->behind - found);
    if (!match)
        return;
    shm_count_add(ring, volume, SHM_COUNT_MATCHED, found);
    bucket = count_bits(found);
    bucket = bucket < SHM_MATCH_BUCKETS ? bucket : SHM_MATCH_BUCKETS - 1;
    shm_count_add(ring, volume, SHM_COUNT_MATCHES + bucket, 1);
}

/* The slot's version while it is leased: what its value is the value of. 0: none that lasts. */
static uint64_t take_version(const struct shm_arena *arena, uint32_t slot)
{
    uint64_t version = atomic_load_explicit(&arena->slots[slot].version, memory_order_acquire);

    return version % 2 == 0 ? version : 0;
}

/* What is wrong with a value whose CRC32C is value_crc, in a sealed volume; NONE: it is the block
 * of the key. */
static enum icms_miss take_check(const struct icms_request *request, const struct icms_key *key,
                                 uint32_t value_bytes, uint32_t value_crc, const uint8_t *trailer)
{
    struct key wire = client_key(key);
    const struct sealed_place place = {.volume = &request->view->arena.uuid,
                                       .key = &wire,
                                       .encrypted = request->volume->keys != NULL};

    icms_err err = sealed_trailer_check(&place, value_bytes, value_crc, trailer);

    if (err != ICMS_OK)
        return err == ICMS_VERSION ? ICMS_MISS_VERSION : ICMS_MISS_CHECKSUM;
    return sealed_trailer_is(trailer, key->digest) ? ICMS_MISS_NONE : ICMS_MISS_COLLISION;
}

/* A value that stays in place, for icms_lease_take: summed once by this handle for as long as it is
 * in its slot, however often it is leased. */
static enum icms_miss take_verify(struct icms_request *request, const struct icms_key *key,
                                  const uint8_t *value, uint32_t slot, uint32_t value_bytes)
{
    uint32_t reactor = client_reactor(request, key);
    const struct shm_arena *arena = &request->view->shards[reactor];
    const uint8_t *trailer = value + value_bytes;
    _Atomic uint64_t *checked = request->volume->checked;
    uint64_t version = take_version(arena, slot);
    enum icms_miss wrong;

    if (!arena->sealed)
        return ICMS_MISS_NONE;
    if (checked != NULL)
        checked += (size_t)reactor * arena->slot_count + slot;
    if (checked != NULL && version != 0 &&
        atomic_load_explicit(checked, memory_order_acquire) == version)
        return sealed_trailer_is(trailer, key->digest) ? ICMS_MISS_NONE : ICMS_MISS_COLLISION;
    wrong = take_check(request, key, value_bytes, crc32c(value, value_bytes), trailer);
    if ((wrong == ICMS_MISS_NONE || wrong == ICMS_MISS_COLLISION) && checked != NULL)
        atomic_store_explicit(checked, version, memory_order_release);
    return wrong;
}

/* Copies and sums bytes [begun.bytes, end) of a value, which may change meanwhile. */
static void take_more(const struct icms_request *request, size_t index, const uint8_t *value,
                      uint64_t end, struct client_begun *begun)
{
    uint64_t at = begun->bytes;

    if (client_is_scattered(request, index))
        begun->crc = client_pieces_scatter(request, index, begun->crc, value, at, end);
    else
        begun->crc =
            crc32c_copy(begun->crc, client_block_memory(request, index) + at, value + at, end - at);
    begun->bytes = end;
}

/* What is wrong with the copy. What was begun may be of another load, or of another value: when it
 * does not pass together with the rest, that means nothing, and all is copied. */
static enum icms_miss take_copy(const struct icms_request *request, size_t index,
                                const uint8_t *value, struct client_place *place)
{
    const struct shm_arena *arena = &request->view->arena;
    const struct icms_key *key = &request->blocks[index].key;
    struct client_begun all = {0};
    uint8_t trailer[LIMIT_TRAILER_BYTES];

    if (arena->sealed)
        memcpy(trailer, value + place->value_bytes, sizeof(trailer));
    if (place->begun != NULL && place->begun->bytes != 0 &&
        place->begun->bytes <= place->value_bytes) {
        struct client_begun begun = *place->begun;
        enum icms_miss wrong;

        take_more(request, index, value, place->value_bytes, &begun);
        wrong = take_check(request, key, place->value_bytes, begun.crc, trailer);
        if (wrong != ICMS_MISS_CHECKSUM) {
            place->kept = place->begun->bytes;
            return wrong;
        }
    }
    if (client_is_scattered(request, index))
        take_more(request, index, value, place->value_bytes, &all);
    else if (arena->sealed)
        all.crc =
            crc32c_copy_steady(0, client_block_memory(request, index), value, place->value_bytes);
    else
        memcpy(client_block_memory(request, index), value, place->value_bytes);
    return arena->sealed ? take_check(request, key, place->value_bytes, all.crc, trailer)
                         : ICMS_MISS_NONE;
}

/* A value of an encrypted volume, and what it is to become. */
struct take_sealed {
    const uint8_t *value;
    uint32_t value_bytes;
    uint8_t trailer[LIMIT_TRAILER_BYTES];
    uint8_t *to;
    uint32_t plain_bytes;
    const struct client_begun *begun; /* before; NULL: nothing */
    uint64_t kept;                    /* out: of that, as in client_place */
    bool is_whole; /* out: what is stored is as it was sealed, whatever is wrong with it for us */
};

/* Decrypts pieces of a value with a key that we have. False: one did not pass, and all of `to` is
 * zeros. */
static bool take_decrypt(const struct icms_request *request, const struct icms_key *key,
                         const struct client_key *volume_key, const struct sealed_head *head,
                         const struct seal_sealed *pieces, uint8_t *to)
{
    struct key wire = client_key(key);
    struct seal_block bound = {.volume = &request->view->arena.uuid,
                               .key = &wire,
                               .digest = key->digest,
                               .key_id = head->key_id};
    uint32_t number;
    struct seal *seal = client_seal_take(request->icms->crypt, &number);
    bool passed;

    memcpy(bound.salt, head->salt, sizeof(bound.salt));
    passed = seal_open_pieces(seal, secret_bytes(volume_key->secret), &bound, pieces, to);
    client_seal_give(request->icms->crypt, number);
    return passed;
}

/* What is wrong with a value that does not open: its checksum tells what is damaged from what is
 * whole and was sealed for another block, or as `whole` says. */
static enum icms_miss take_closed(const struct icms_request *request, const struct icms_key *key,
                                  struct take_sealed *sealed, enum icms_miss whole)
{
    uint32_t crc = crc32c(sealed->value, sealed->value_bytes);
    enum icms_miss wrong = take_check(request, key, sealed->value_bytes, crc, sealed->trailer);

    sealed->is_whole = wrong != ICMS_MISS_CHECKSUM;
    return wrong == ICMS_MISS_NONE ? whole : wrong;
}

/* What was opened before is of no value that is delivered. NULL: nothing was. */
static void opened_wipe(const struct client_begun *begun, uint8_t *to)
{
    if (begun != NULL && begun->pieces != 0)
        secret_wipe(to, begun->pieces * LIMIT_PIECE_BYTES);
}

/* How many pieces of the value with this head were opened before. What was opened of another one is
 * wiped. */
static uint32_t take_opened(const struct take_sealed *sealed, const uint8_t *head)
{
    const struct client_begun *begun = sealed->begun;

    if (begun == NULL || begun->pieces == 0)
        return 0;
    if (memcmp(begun->head, head, sizeof(begun->head)) == 0)
        return begun->pieces;
    opened_wipe(begun, sealed->to);
    return 0;
}

/* The tags have in them all that the trailer's checksum covers: only when one does not pass is that
 * checksum looked at. */
static enum icms_miss take_open(const struct icms_request *request, const struct icms_key *key,
                                struct take_sealed *sealed)
{
    struct seal_sealed pieces = {.from = sealed->value,
                                 .plain_bytes = sealed->plain_bytes,
                                 .end = sealed_pieces(sealed->plain_bytes),
                                 .memory = client_seal_memory(request)};
    const struct client_key *volume_key;
    uint8_t bytes[LIMIT_SEALED_HEAD_BYTES];
    struct sealed_head head;

    memcpy(bytes, sealed->value, sizeof(bytes));
    pieces.first = take_opened(sealed, bytes);
    if (sealed_trailer_encrypted(sealed->trailer) != ICMS_OK ||
        sealed_head_read(bytes, &head) != ICMS_OK || head.length != sealed->plain_bytes) {
        secret_wipe(sealed->to, pieces.first * LIMIT_PIECE_BYTES);
        return take_closed(request, key, sealed, ICMS_MISS_CHECKSUM);
    }
    volume_key = client_keys_find(request->volume->keys, head.key_id);
    if (volume_key == NULL)
        return take_closed(request, key, sealed, ICMS_MISS_NO_KEY);
    if (take_decrypt(request, key, volume_key, &head, &pieces, sealed->to)) {
        sealed->kept = (uint64_t)pieces.first * LIMIT_PIECE_BYTES;
        return ICMS_MISS_NONE;
    }
    return take_closed(request, key, sealed, ICMS_MISS_CHECKSUM);
}

/* The key of pieces that arrived; NULL: they are not of what the caller has space for and was
 * opened before, or the key is not ours. */
static const struct client_key *take_part_key(const struct icms_request *request,
                                              const struct client_op *op, const uint8_t *bytes,
                                              struct sealed_head *out_head)
{
    if (sealed_head_read(bytes, out_head) != ICMS_OK ||
        out_head->length > client_block_room(request, op->block) ||
        out_head->length > client_value_bytes_max(request->volume))
        return NULL;
    if (op->begun.pieces != 0 && memcmp(bytes, op->begun.head, sizeof(op->begun.head)) != 0)
        return NULL;
    return client_keys_find(request->volume->keys, out_head->key_id);
}

/* What is wrong here the answer tells; until then there is no other attempt. The last piece is left
 * to the answer. */
static void take_part_open(const struct icms_request *request, struct client_op *op,
                           const struct shm_complete *part)
{
    const struct shm_arena *shard = &request->view->shards[op->reactor];
    struct client_begun *begun = &op->begun;
    struct seal_sealed pieces = {
        .from = shm_arena_value(shard, part->slot, part->value_bytes),
        .first = begun->pieces,
        .end = sealed_pieces_in(part->value_bytes),
        .memory = SEAL_SHARED, /* whoever it is that writes there now */
    };
    const struct client_key *volume_key;
    uint8_t bytes[LIMIT_SEALED_HEAD_BYTES];
    struct sealed_head head;

    if (begun->is_over || pieces.from == NULL || pieces.end <= pieces.first)
        return;
    memcpy(bytes, pieces.from, sizeof(bytes));
    volume_key = take_part_key(request, op, bytes, &head);
    begun->is_over = true;
    if (volume_key == NULL)
        return;
    pieces.plain_bytes = head.length;
    pieces.end = (uint32_t)u64_min(pieces.end, sealed_pieces(head.length) - 1);
    if (pieces.end <= pieces.first)
        return;
    memcpy(begun->head, bytes, sizeof(bytes));
    begun->is_over = !take_decrypt(request, &request->blocks[op->block].key, volume_key, &head,
                                   &pieces, client_block_memory(request, op->block));
    begun->pieces = begun->is_over ? 0 : pieces.end;
}

/* The caller's memory has all that is told, as far as there is space for it, and the sum of just
 * that: whether it is of the value that the answer brings is seen by the sum of all. */
static void take_part_copy(const struct icms_request *request, struct client_op *op,
                           const struct shm_complete *part)
{
    const struct shm_arena *shard = &request->view->shards[op->reactor];
    uint64_t end = u64_min(part->value_bytes, client_block_room(request, op->block));
    const uint8_t *from = shm_arena_value(shard, part->slot, (uint32_t)end);

    if (op->begun.arrival != 0) /* it was to come here, and goes through the arena now */
        op->begun = (struct client_begun){0};
    if (from == NULL || end <= op->begun.bytes)
        return;
    take_more(request, op->block, from, end, &op->begun);
}

/* An agent in this process receives it in the caller's memory, where what one arrival brought stays
 * as it is: the sum of that is begun. The next arrival writes there again. */
static void take_part_sum(const struct icms_request *request, struct client_op *op,
                          const struct shm_complete *part)
{
    struct client_begun *begun = &op->begun;
    uint64_t end = u64_min(part->value_bytes, op->room);

    if (part->version != begun->arrival)
        *begun = (struct client_begun){.arrival = part->version};
    if (end <= begun->bytes)
        return;
    begun->crc = crc32c_add(begun->crc, client_block_memory(request, op->block) + begun->bytes,
                            end - begun->bytes);
    begun->bytes = end;
}

void client_op_take_part(struct icms_request *request, struct client_op *op,
                         const struct shm_complete *part)
{
    if (request->volume->keys != NULL)
        take_part_open(request, op, part);
    else if (op->direct && part->slot == SHM_SLOT_NONE)
        take_part_sum(request, op, part);
    else
        take_part_copy(request, op, part);
}

/* Tells the agent that a block does not pass, so that it looks itself: it forgets its copy, and has
 * a bad record deleted. A put that follows is behind this in the ring, and repairs the block. */
static void take_suspect(struct icms_request *request, const struct icms_key *key)
{
    struct icms *icms = request->icms;
    uint32_t reactor = client_reactor(request, key);
    struct shm_submit entry = {.volume = request->view->arena.volume,
                               .identity = (uint8_t)request->view->shards[reactor].identity,
                               .op = SHM_OP_SUSPECT,
                               .key_length = key->length};

    memcpy(entry.key, key->bytes, sizeof(entry.key));
    client_lock(icms);
    if (client_push_hint(icms, reactor, &entry))
        client_publish(icms);
    client_unlock(icms);
}

/* A block that is not what was asked for, or not whole. is_whole: nobody has to repair it. */
static void take_wrong(struct icms_request *request, size_t index, enum icms_miss wrong,
                       bool is_whole)
{
    if (wrong == ICMS_MISS_CHECKSUM && !is_whole)
        take_suspect(request, &request->blocks[index].key);
    request->tag_errors += wrong == ICMS_MISS_CHECKSUM && is_whole;
    request->no_keys += wrong == ICMS_MISS_NO_KEY;
    request->versions += wrong == ICMS_MISS_VERSION;
    request->blocks[index].source = ICMS_SOURCE_NONE;
    request->collisions += wrong == ICMS_MISS_COLLISION;
    client_block_done(request, index, ICMS_MISS, wrong);
}

/* Memory of this process for a lease. False: all of it is taken. */
static bool take_private(struct icms_request *request, uint64_t bytes)
{
    struct icms *icms = request->icms;
    bool taken;

    client_lock(icms);
    taken = staging_take(&icms->crypt->staging, bytes, &request->private_offset);
    client_unlock(icms);
    if (!taken)
        return false;
    request->private_bytes = bytes;
    request->lease_data = icms->crypt->base + request->private_offset;
    return true;
}

/* client_block_load() in an encrypted volume. */
static void take_encrypted(struct icms_request *request, size_t index, const uint8_t *value,
                           struct client_place *place)
{
    struct icms_block *block = &request->blocks[index];
    struct take_sealed sealed = {.value = value,
                                 .value_bytes = place->value_bytes,
                                 .to = client_block_memory(request, index),
                                 .plain_bytes = (uint32_t)sealed_plain_bytes(place->value_bytes),
                                 .begun = place->begun};
    enum icms_miss wrong = ICMS_MISS_NONE;
    uint64_t room = client_block_room(request, index);

    block->bytes = sealed.plain_bytes;
    memcpy(sealed.trailer, value + place->value_bytes, sizeof(sealed.trailer));
    if (sealed_trailer_encrypted(sealed.trailer) == ICMS_VERSION) { /* nor is its length known */
        wrong = ICMS_MISS_VERSION;
        opened_wipe(place->begun, sealed.to);
    } else if (sealed.plain_bytes == 0) { /* nobody sealed that */
        wrong = ICMS_MISS_CHECKSUM;
        opened_wipe(place->begun, sealed.to);
    } else if (request->lease_wanted) {
        if (!take_private(request, sealed.plain_bytes)) {
            client_block_done(request, index, ICMS_LIMIT, ICMS_MISS_NONE);
            return;
        }
        sealed.to = request->icms->crypt->base + request->private_offset;
    } else if (block->data != NULL && room < sealed.plain_bytes) {
        client_block_done(request, index, ICMS_VALUE_SIZE, ICMS_MISS_NONE);
        return;
    }
    if (wrong == ICMS_MISS_NONE && sealed.to != NULL)
        wrong = take_open(request, &block->key, &sealed);
    place->kept = sealed.kept;
    if (fault_hit("client.get_done"))
        wrong = ICMS_MISS_CHECKSUM;
    if (wrong != ICMS_MISS_NONE)
        take_wrong(request, index, wrong, sealed.is_whole);
    else
        client_block_done(request, index, ICMS_OK, ICMS_MISS_NONE);
}

/* Bytes that were copied, or decrypted, since begin_ns: for estimates. Threads that do so together
 * may lose what one of them adds. */
static void take_timed(struct icms *icms, uint64_t bytes, uint64_t begin_ns)
{
    uint64_t took_ns = client_now_ns() - begin_ns;
    uint64_t all_bytes = atomic_load_explicit(&icms->copy_bytes, memory_order_relaxed);
    uint64_t all_ns = atomic_load_explicit(&icms->copy_ns, memory_order_relaxed);

    if (all_bytes >= CLIENT_COPY_BYTES) {
        all_bytes /= 2;
        all_ns /= 2;
    }
    atomic_store_explicit(&icms->copy_bytes, all_bytes + bytes, memory_order_relaxed);
    atomic_store_explicit(&icms->copy_ns, all_ns + took_ns, memory_order_relaxed);
}

/* The value to where the caller wants it: verified on the way, or in the arena when it is copied to
 * a device from there. */
static enum icms_miss take_value(struct icms_request *request, size_t index, const uint8_t *value,
                                 struct client_place *place)
{
    const struct icms_key *key = &request->blocks[index].key;
    struct device_copy *copy =
        list_empty(&request->copies) ? NULL : client_copy_find(request, index);

    if (copy != NULL &&
        client_copy_from_arena(request, copy, value, place->value_bytes, &place->lease))
        return take_verify(request, key, value, place->slot, place->value_bytes);
    return take_copy(request, index, value, place);
}

/* Of another version, which alone knows how long the value is. */
static bool take_is_unknown(const struct shm_arena *arena, const uint8_t *from)
{
    uint8_t trailer[LIMIT_TRAILER_BYTES];

    if (!arena->sealed)
        return false;
    memcpy(trailer, from, sizeof(trailer));
    return sealed_trailer_encrypted(trailer) == ICMS_VERSION;
}

void client_block_load(struct icms_request *request, size_t index, struct client_place *place,
                       enum icms_source source)
{
    uint64_t begin_ns = client_now_ns();
    struct icms_block *block = &request->blocks[index];
    uint32_t slot = place->slot, value_bytes = place->value_bytes;
    const struct shm_arena *shard = &request->view->shards[client_reactor(request, &block->key)];
    const uint8_t *value = shm_arena_value(shard, slot, value_bytes);
    enum icms_miss wrong = ICMS_MISS_NONE;
    uint64_t room = client_block_room(request, index);
    struct device_copy *copy =
        list_empty(&request->copies) ? NULL : client_copy_find(request, index);

    if (value == NULL) {
        client_block_give_up(request, index, ICMS_PROTOCOL);
        return;
    }
    if (copy != NULL) /* the agent may have had another value read for it, before this one came */
        device_copy_fill(copy);
    block->source = source;
    if (request->volume->keys != NULL) {
        take_encrypted(request, index, value, place);
        if (block->data != NULL)
            take_timed(request->icms, value_bytes - place->kept, begin_ns);
        return;
    }
    block->bytes = value_bytes;
    if (request->lease_wanted) {
        wrong = take_verify(request, &block->key, value, slot, value_bytes);
        request->lease_data = value;
    } else if (block->data == NULL || room < value_bytes) {
        if (take_is_unknown(shard, value + value_bytes)) {
            wrong = ICMS_MISS_VERSION;
        } else if (block->data != NULL) {
            client_block_done(request, index, ICMS_VALUE_SIZE, ICMS_MISS_NONE);
            return;
        }
    } else {
        wrong = take_value(request, index, value, place);
        take_timed(request->icms, value_bytes - place->kept, begin_ns);
    }
    if (fault_hit("client.get_done"))
        wrong = ICMS_MISS_CHECKSUM;
    if (wrong != ICMS_MISS_NONE)
        take_wrong(request, index, wrong, false);
    else
        client_block_done(request, index, ICMS_OK, ICMS_MISS_NONE);
}

void client_block_give_up(struct icms_request *request, size_t index, icms_err why)
{
    bool load = request->op == SHM_OP_GET || request->op == SHM_OP_EXISTS;

    if (request->blocks != NULL && request->op == SHM_OP_GET)
        request->blocks[index].source = ICMS_SOURCE_NONE;
    if (why == ICMS_PEER_DOWN)
        request->peer_down++;
    if (load && why == ICMS_DEADLINE)
        client_block_done(request, index, ICMS_MISS, ICMS_MISS_DEADLINE);
    else
        client_block_done(request, index, why, ICMS_MISS_NONE);
}

/* The CRC32C of a value in the caller's memory, of which the first bytes may have been summed when
 * they arrived. */
static uint32_t take_direct_crc(const struct client_op *op, const uint8_t *memory)
{
    const struct client_begun *begun = &op->begun;
    uint32_t value_bytes = op->answer.value_bytes;

    if (begun->arrival == 0 || begun->arrival != op->answer.version || begun->bytes > value_bytes)
        return crc32c(memory, value_bytes);
    return crc32c_add(begun->crc, memory + begun->bytes, value_bytes - begun->bytes);
}

/* The agent received the block, with its trailer, in the caller's memory and what is behind, or
 * copied and checked it there: the value is not summed a second time then. */
static void take_direct(struct icms_request *request, struct client_op *op)
{
    struct icms_block *block = &request->blocks[op->block];
    uint32_t value_bytes = op->answer.value_bytes;
    uint64_t inside = u64_min(op->room - value_bytes, LIMIT_TRAILER_BYTES);
    const uint8_t *memory = client_block_memory(request, op->block);
    struct device_copy *copy =
        list_empty(&request->copies) ? NULL : client_copy_find(request, op->block);
    uint8_t trailer[LIMIT_TRAILER_BYTES];
    enum icms_miss wrong;

    if (copy != NULL && op->answer.checked == 0) /* as in client_block_load() */
        device_copy_fill(copy);
    memcpy(trailer, memory + value_bytes, inside);
    memcpy(trailer + inside, op->trailer, LIMIT_TRAILER_BYTES - inside);
    if (fault_hit("client.get_done"))
        wrong = ICMS_MISS_CHECKSUM;
    else if (op->answer.checked == 0)
        wrong = take_check(request, &block->key, value_bytes, take_direct_crc(op, memory), trailer);
    else
        wrong =
            sealed_trailer_is(trailer, block->key.digest) ? ICMS_MISS_NONE : ICMS_MISS_COLLISION;
    block->bytes = value_bytes;
    block->source = (enum icms_source)op->answer.source;
    if (wrong != ICMS_MISS_NONE)
        take_wrong(request, op->block, wrong, false);
    else
        client_block_done(request, op->block, ICMS_OK, ICMS_MISS_NONE);
}

/* The agent found the block and holds its slot in our lease entry. */
static void take_get(struct icms_request *request, struct client_op *op)
{
    const struct shm_arena *arena = &request->view->arena;
    const struct shm_complete *answer = &op->answer;
    enum icms_source source = answer->source;
    struct client_place place;

    if (op->direct && answer->slot == SHM_SLOT_NONE && answer->value_bytes != 0 &&
        answer->value_bytes <= op->room) {
        take_direct(request, op);
        return;
    }
    if (answer->value_bytes == 0 || answer->value_bytes > arena->value_bytes_max ||
        atomic_load_explicit(&request->link_used->rings[0].leases[op->lease],
                             memory_order_acquire) != answer->slot + 1) {
        opened_wipe(&op->begun, client_block_memory(request, op->block));
        client_block_give_up(request, op->block, ICMS_PROTOCOL);
        return;
    }
    if (source > ICMS_SOURCE_POD)
        source = ICMS_SOURCE_NONE;
    if (op->begun.arrival != 0)
        op->begun = (struct client_begun){0};
    place = (struct client_place){.slot = answer->slot,
                                  .value_bytes = answer->value_bytes,
                                  .lease = op->lease,
                                  .begun = &op->begun};
    client_block_load(request, op->block, &place, source);
    op->lease = place.lease;
    if (request->lease_wanted && request->not_ok == 0) {
        request->lease_index = op->lease; /* it is the caller's now */
        op->lease = CLIENT_LEASE_NONE;
    }
}

/* The agent has flushed what it knows of; IO: of which some is lost. What an agent before it took
 * along is told together with that, and not a second time. */
static icms_err take_flush(struct icms_request *request, icms_err status)
{
    struct client_account *account = request->volume->account;
    uint64_t flushed = atomic_load(&account->flushed);

    if (status != ICMS_OK && status != ICMS_IO)
        return status;
    while (status == ICMS_OK && flushed < request->flush_puts &&
           !atomic_compare_exchange_weak(&account->flushed, &flushed, request->flush_puts)) {
    }
    return atomic_exchange(&account->lost, false) ? ICMS_IO : status;
}

/* What an answer about a hint says. */
static icms_err take_hint(uint8_t reason)
{
    switch (reason) {
    case ICMS_MISS_NONE:
        return ICMS_OK;
    case ICMS_MISS_SHED:
        return ICMS_BUSY;
    case ICMS_MISS_DEADLINE:
        return ICMS_DEADLINE;
    case ICMS_MISS_QUOTA:
        return ICMS_LIMIT;
    default:
        return ICMS_MISS;
    }
}

/* Behind them lies what each key takes, of its reactor and entry alone; client_estimates_settle
 * makes of it what the caller sees. */
static void take_estimates(struct icms_request *request, const struct client_op *op)
{
    const uint8_t *from =
        request->link_used->rings[0].staging + op->staging_offset + SHM_MATCH_BYTES(op->blocks);

    for (uint32_t i = 0; i < op->blocks; i++) {
        struct icms_estimate *to = &request->estimates[op->block + i];
        struct shm_estimate said;

        memcpy(&said, from + i * sizeof(said), sizeof(said));
        to->load_us = said.us == SHM_ESTIMATE_UNKNOWN ? ICMS_ESTIMATE_UNKNOWN : said.us;
        to->error_us = (uint64_t)said.us * said.error / 1000;
        to->bytes = said.bytes;
        to->source = said.source > ICMS_SOURCE_POD ? ICMS_SOURCE_NONE : said.source;
    }
    request->estimates[op->block].source |= ESTIMATE_BEGINS;
}

/* No sum is larger: thirty years. */
#define ESTIMATE_US_MAX 1e15

void client_estimates_init(struct icms_estimate *estimates, size_t count)
{
    for (size_t i = 0; i < count; i++)
        estimates[i] = (struct icms_estimate){.load_us = ICMS_ESTIMATE_UNKNOWN,
                                              .error_us = ICMS_ESTIMATE_UNKNOWN};
}

/* Blocks arrive when the agent says, each entry's behind those of the entries before, and are
 * copied one after the other. */
void client_estimates_settle(const struct icms *icms, struct icms_estimate *estimates, size_t count)
{
    double copy_ns = (double)atomic_load_explicit(&icms->copy_ns, memory_order_relaxed);
    double copy_bytes = (double)atomic_load_explicit(&icms->copy_bytes, memory_order_relaxed);
    double us_a_byte = copy_bytes == 0 ? 0 : copy_ns / copy_bytes / 1000;
    double us = 0, before_us = 0;
    uint64_t bytes = 0, error_us = 0;
    bool is_known = true;

    for (size_t i = 0; i < count; i++) {
        struct icms_estimate *one = &estimates[i];
        double came_us;

        if ((one->source & ESTIMATE_BEGINS) != 0)
            before_us = us;
        one->source &= ~(unsigned)ESTIMATE_BEGINS;
        is_known = is_known && one->load_us != ICMS_ESTIMATE_UNKNOWN;
        came_us = before_us + (double)one->load_us;
        if (is_known && came_us >= us) {
            us = came_us;
            error_us = one->error_us;
        }
        us += (double)one->bytes * us_a_byte;
        us = us > ESTIMATE_US_MAX ? ESTIMATE_US_MAX : us; /* whatever an agent says */
        one->bytes = bytes += one->bytes;
        one->load_us = is_known ? (uint64_t)us : ICMS_ESTIMATE_UNKNOWN;
        one->error_us = is_known ? error_us : ICMS_ESTIMATE_UNKNOWN;
    }
}

/* The answers lie behind the keys, a byte each, and are read once each. */
static void take_many(struct icms_request *request, const struct client_op *op)
{
    const volatile uint8_t *reasons = request->link_used->rings[0].staging + op->staging_offset +
                                      op->blocks * sizeof(struct shm_key);

    for (uint32_t i = 0; i < op->blocks; i++) {
        uint8_t reason = reasons[i];
        icms_err status = reason == ICMS_MISS_NONE ? ICMS_OK : ICMS_MISS;

        if (request->op == SHM_OP_PRESTAGE)
            status = take_hint(reason);
        client_block_done(request, op->block + i, status, (enum icms_miss)reason);
    }
    if (request->estimates != NULL)
        take_estimates(request, op);
}

void client_op_give_up(struct icms_request *request, const struct client_op *op, icms_err why)
{
    for (uint32_t i = 0; i < op->blocks; i++)
        client_block_give_up(request, op->block + i, why);
}

void client_op_take(struct icms_request *request, struct client_op *op)
{
    const struct shm_complete *answer = &op->answer;
    icms_err status = err_from_peer(answer->status);

    check(op->request == request);
    if (op->direct)
        request->direct--;
    if (op->direct && status == ICMS_VALUE_SIZE && request->op == SHM_OP_GET)
        request->blocks[op->block].bytes = answer->value_bytes;
    if (status == ICMS_OK && !op->link_lost && request->op == SHM_OP_PUT)
        atomic_fetch_add(&request->volume->account->puts, 1);
    if (!op->link_lost && request->op == SHM_OP_FLUSH)
        status = take_flush(request, status);
    if (op->parts && (op->link_lost || status != ICMS_OK))
        opened_wipe(&op->begun, client_block_memory(request, op->block));
    if (op->link_lost || status == ICMS_CLOSED) /* closed: the agent is about to end */
        client_op_give_up(request, op, ICMS_PEER_DOWN);
    else if (status == ICMS_OK && request->op == SHM_OP_GET)
        take_get(request, op);
    else if (status == ICMS_OK && op->many)
        take_many(request, op);
    else if (status == ICMS_DEADLINE)
        client_op_give_up(request, op, status);
    else
        for (uint32_t i = 0; i < op->blocks; i++)
            client_block_done(request, op->block + i, status, (enum icms_miss)answer->reason);
}
