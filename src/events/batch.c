/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events/batch.c: see batch.h. Called by publish.c on its thread.
 */
#include "events/batch.h"

#include <string.h>

#include "base/bytes.h"
#include "base/check.h"

/* msgpack's first bytes of what is needed here. */
#define MSGPACK_NIL     0xc0
#define MSGPACK_FLOAT64 0xcb
#define MSGPACK_UINT64  0xcf
#define MSGPACK_ARRAY16 0xdc
#define MSGPACK_MAP     0x80 /* + members, up to 15 */
#define MSGPACK_ARRAY   0x90 /* likewise            */
#define MSGPACK_STRING  0xa0 /* + bytes, up to 31   */

/* More than what a map has besides hashes, and than the end of a batch. */
#define MAP_BYTES  256
#define HASH_BYTES 9
#define COUNT_AT   11 /* of the events: behind [ts, */
#define COUNT_MAX  UINT16_MAX

static void put_byte(struct events_batch *batch, uint8_t byte)
{
    check(batch->length < sizeof(batch->bytes));
    batch->bytes[batch->length++] = byte;
}

static void put_be(struct events_batch *batch, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--)
        put_byte(batch, (uint8_t)(value >> 8 * i));
}

static void put_string(struct events_batch *batch, const char *text)
{
    size_t bytes = strlen(text);

    check(bytes < 32);
    put_byte(batch, (uint8_t)(MSGPACK_STRING | bytes));
    for (size_t i = 0; i < bytes; i++)
        put_byte(batch, (uint8_t)text[i]);
}

static void put_pair(struct events_batch *batch, const char *name, const char *value)
{
    put_string(batch, name);
    if (value != NULL)
        put_string(batch, value);
    else
        put_byte(batch, MSGPACK_NIL);
}

static void patch_count(struct events_batch *batch, size_t at, uint32_t count)
{
    batch->bytes[at] = (uint8_t)(count >> 8);
    batch->bytes[at + 1] = (uint8_t)count;
}

/* What follows the hashes of a map, in vLLM's order. */
static void map_close(struct events_batch *batch)
{
    if (batch->hashes_at == 0)
        return;
    patch_count(batch, batch->hashes_at, batch->hashes);
    batch->hashes_at = 0;
    if (batch->open.kind == AGENT_EVENT_STORED) {
        put_pair(batch, "parent_block_hash", NULL);
        put_string(batch, "token_ids");
        put_byte(batch, MSGPACK_ARRAY);
        put_string(batch, "block_size");
        put_byte(batch, 0);
        put_pair(batch, "lora_id", NULL);
    }
    put_pair(batch, "medium", batch->open.tier == AGENT_EVENT_DRAM ? "CPU" : "STORAGE");
    if (batch->open.kind == AGENT_EVENT_STORED)
        put_pair(batch, "lora_name", NULL);
    put_pair(batch, "locality", "LOCAL");
    put_pair(batch, "ownership", "icms");
}

static void map_open(struct events_batch *batch, const struct agent_event *event)
{
    bool is_stored = event->kind == AGENT_EVENT_STORED;

    map_close(batch);
    batch->events++;
    if (event->kind == AGENT_EVENT_CLEARED) {
        put_byte(batch, MSGPACK_MAP | 1);
        put_pair(batch, "type", "AllBlocksCleared");
        return;
    }
    put_byte(batch, (uint8_t)(MSGPACK_MAP | (is_stored ? 10 : 5)));
    put_pair(batch, "type", is_stored ? "BlockStored" : "BlockRemoved");
    put_string(batch, "block_hashes");
    put_byte(batch, MSGPACK_ARRAY16);
    batch->open = *event;
    batch->hashes_at = batch->length;
    batch->hashes = 0;
    put_be(batch, 0, 2);
}

void events_batch_begin(struct events_batch *batch, double seconds)
{
    uint64_t bits;

    batch->length = batch->hashes_at = 0;
    batch->events = 0;
    memcpy(&bits, &seconds, sizeof(bits));
    put_byte(batch, MSGPACK_ARRAY | 3);
    put_byte(batch, MSGPACK_FLOAT64);
    put_be(batch, bits, 8);
    put_byte(batch, MSGPACK_ARRAY16);
    check(batch->length == COUNT_AT);
    put_be(batch, 0, 2);
}

bool events_batch_add(struct events_batch *batch, const struct agent_event *event)
{
    bool is_same = batch->hashes_at != 0 && batch->open.kind == event->kind &&
                   batch->open.tier == event->tier && batch->hashes < COUNT_MAX;

    if (batch->length + 2 * MAP_BYTES + HASH_BYTES > sizeof(batch->bytes) ||
        batch->events == COUNT_MAX)
        return false;
    if (!is_same)
        map_open(batch, event);
    if (event->kind == AGENT_EVENT_CLEARED)
        return true;
    put_byte(batch, MSGPACK_UINT64);
    put_be(batch, event->hash, 8);
    batch->hashes++;
    return true;
}

void events_batch_end(struct events_batch *batch)
{
    map_close(batch);
    patch_count(batch, COUNT_AT, batch->events);
    put_byte(batch, 0); /* data_parallel_rank */
}
