/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events/batch.h: events as the msgpack of vLLM 0.32's KVEventBatch
 * (vllm/distributed/kv_events.py).
 *
 *   [ts, [event, ...], 0]   an event is a map with its "type":
 *   BlockStored  block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium,
 * lora_name, locality, ownership BlockRemoved block_hashes, medium, locality, ownership
 *   AllBlocksCleared
 *
 * An agent knows neither tokens nor parents: token_ids is empty and block_size 0, as vLLM itself
 * writes them of blocks whose tokens it does not know. medium is "CPU" of its memory and "STORAGE"
 * of its own drive, locality "LOCAL", ownership "icms". Pure: events in, bytes out.
 */
#ifndef EVENTS_BATCH_H
#define EVENTS_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/agent.h"

/* The most that one takes. */
#define EVENTS_BATCH_BYTES 65536u

struct events_batch {
    uint8_t bytes[EVENTS_BATCH_BYTES];
    size_t length;
    uint32_t events;         /* maps that began                                  */
    uint32_t hashes;         /* in the one that is open                          */
    size_t hashes_at;        /* where their number goes; 0: none is open         */
    struct agent_event open; /* kind and tier of the one that is open     */
};

/* An empty one; seconds: since the epoch. */
void events_batch_begin(struct events_batch *batch, double seconds);

/* Adds an event; neighbours of the same kind and tier share a map. False: there is no space. */
bool events_batch_add(struct events_batch *batch, const struct agent_event *event);

static inline bool events_batch_is_empty(const struct events_batch *batch)
{
    return batch->events == 0;
}

/* Ends it: bytes[0 .. length) is the payload. */
void events_batch_end(struct events_batch *batch);

#endif
