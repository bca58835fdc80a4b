/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carrying over: a block of a segment under reclaim that was read lately is written again.
 *
 *   store_carry_start (reclaim asks) -> the policy says yes -> store_read_again
 *   store_carry_read_done -> carry_place -> store_write_again -> store_carry_written
 *                                        -> or waits for store_pump, or is evicted
 *   carry_over -> store_reclaim_go
 *
 * Loop's thread; one block at a time, through one buffer. Invariants: the old record stays where it
 * is, and its segment is not freed, until the new one is on flash and in the index, so a crash
 * leaves one of them; before it is written over the device is flushed, so a power cut does, too.
 * The new record has a sequence of its own and hides the old one. A change of the key by anybody
 * else has precedence: the block is not carried over then. What waits for room gives up when none
 * is on its way, so reclaim always comes to an end.
 */
#include "base/hash.h"
#include "store/store_int.h"

uint64_t store_policy_hash(uint32_t volume, const struct key *key)
{
    return hash64_seed(key->bytes, sizeof(key->bytes), (uint64_t)volume << 8 | key->length);
}

uint64_t store_policy_run(uint32_t volume, const struct key *key)
{
    return hash64_seed(
        key->bytes, key->length == LIMIT_KEY_BYTES ? STORE_RUN_BYTES : sizeof(key->bytes), volume);
}

uint64_t store_now_ms(const struct store *store)
{
    return loop_now_ns(store->loop) / 1000000;
}

/* Index entries that are short end a drive before its flash does: then a volume's share is written
 * so much sooner. */
static double policy_part(const struct store *store)
{
    double capacity = (double)store->super.segments * (double)store->super.segment_bytes;

    if (store_index_has_room(store))
        return 1;
    return (double)store_stat_get(&store->stats.used_bytes) / capacity;
}

void store_policy_shares(struct store *store)
{
    double part = policy_part(store);

    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) {
        if (store->volumes[i].added)
            policy_volume_share(store->policy, i, (uint64_t)(part * store_volume_share(store, i)));
    }
}

static uint64_t carry_bytes(const struct store_carry *carry)
{
    return (uint64_t)carry->block.spot.pages * STORE_PAGE_BYTES;
}

/* The block has a new place, or it goes. */
static void carry_over(struct store *store, bool written)
{
    struct store_carry *carry = &store->carry;
    struct store_spot spot;

    carry->active = carry->waits = false;
    if (!written) {
        policy_carry_undo(store->policy, carry_bytes(carry));
        if (store_index_find(store->index, carry->block.volume, &carry->block.key, &spot) &&
            spot.segment == carry->block.spot.segment && spot.page == carry->block.spot.page)
            store_segment_evict(store, &carry->block);
    }
    store_reclaim_go(store);
}

static void store_carry_written(struct store_write *write)
{
    struct store *store = container_of(write, struct store, carry.write);
    struct store_carry *carry = &store->carry;
    struct store_spot spot;
    uint8_t *state;

    check(carry->active);
    if (write->err == ICMS_OK) {
        check(store_index_find(store->index, write->volume, &write->key, &spot));
        state = store_index_state(store->index, write->volume, &write->key);
        *state = carry->state;
        policy_segment_add(&store->segments[spot.segment].wanted, carry->state);
        store_stat_add(&store->stats.carried_bytes, carry_bytes(carry));
        store_segment_moved(store, carry->block.spot.segment);
    }
    carry_over(store, write->err == ICMS_OK);
}

static void carry_place(struct store *store)
{
    struct store_carry *carry = &store->carry;

    carry->waits = false;
    switch (store_write_again(store, &carry->write, &carry->block.spot)) {
    case STORE_AGAIN_STARTED:
        break;
    case STORE_AGAIN_LATER:
        carry->waits = true;
        break;
    case STORE_AGAIN_NEVER:
        carry_over(store, false);
        break;
    }
}

void store_carry_kick(struct store *store)
{
    if (store->carry.waits)
        carry_place(store);
}

static void store_carry_read_done(struct store_read *read)
{
    struct store *store = container_of(read, struct store, carry.read);
    struct store_carry *carry = &store->carry;

    check(carry->active);
    if (read->err != ICMS_OK) {
        carry_over(store, false);
        return;
    }
    carry->write = (struct store_write){.volume = read->volume,
                                        .key = read->key,
                                        .memory = carry->memory,
                                        .value_bytes = read->value_bytes,
                                        .done = store_carry_written};
    carry->waits = true;
    store_pump(store);
}

bool store_carry_start(struct store *store, const struct store_block *block)
{
    struct store_carry *carry = &store->carry;
    const struct store_segment *segment = &store->segments[block->spot.segment];
    const uint8_t *state = store_index_state(store->index, block->volume, &block->key);

    check(!carry->active && state != NULL);
    if (!store->reclaim.whole || store->down || store->tight || block->spot.damaged ||
        store->reclaim.segment != segment || !store->volumes[block->volume].added ||
        block->spot.pages > store_record_pages(store->value_bytes_max))
        return false;
    carry->block = *block;
    carry->state = *state;
    if (!policy_carry(store->policy, block->volume, *state, carry_bytes(carry),
                      store_now_ms(store)))
        return false;
    carry->active = true;
    carry->read = (struct store_read){.volume = block->volume,
                                      .key = block->key,
                                      .memory = carry->memory,
                                      .memory_bytes = carry_bytes(carry),
                                      .done = store_carry_read_done};
    check(store_read_again(store, &carry->read) == ICMS_OK);
    return true;
}
