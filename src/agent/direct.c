/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/direct.c: see direct.h.
 *
 * Called by local.c and tier.c on the loop of reactor 0; the reader calls on a thread of its own.
 */
#include "agent/agent_int.h"

#include <time.h>

#include "base/crc.h"
#include "base/fault.h"
#include "wire/sealed.h"

static const struct block_reader *reading_by(const struct agent_reading *reading)
{
    return reading->agent->opts.reader;
}

static void reading_came(struct loop_msg *msg)
{
    struct agent_reading *reading = container_of(msg, struct agent_reading, msg);

    if (!reading->came) {
        reading_by(reading)->end(reading->reader, 0);
        reading->reader = NULL;
    }
    store_read_came(reading->read, reading->came);
}

/* On a thread of the reader. */
static void reading_done(void *arg, bool came)
{
    struct agent_reading *reading = arg;

    reading->came = came;
    loop_send(reading->agent->reactors[0].loop, &reading->msg, reading_came);
    atomic_store_explicit(&reading->called, true, memory_order_release);
}

bool agent_reading_begin(struct agent_reading *reading, const struct agent_req *req,
                         struct store_read *read, int fd, uint64_t offset, uint32_t bytes)
{
    const struct reader_ask ask = {.fd = fd,
                                   .offset = offset,
                                   .memory = read->memory,
                                   .bytes = bytes,
                                   .done = reading_done,
                                   .arg = reading};

    reading->agent = req->shard->agent;
    reading->read = read;
    atomic_store_explicit(&reading->called, false, memory_order_relaxed);
    reading->reader = reading_by(reading)->read((const void *)(uintptr_t)req->offset, &ask);
    return reading->reader != NULL;
}

void agent_reading_end(struct agent_reading *reading, const struct store_read *read, icms_err err)
{
    uint64_t at = err != ICMS_OK        ? 0
                  : read->instead_wrong ? READER_WRONG
                                        : (uint64_t)(read->value - read->memory);

    if (reading->reader != NULL)
        reading_by(reading)->end(reading->reader, at);
    reading->reader = NULL;
}

bool agent_reading_leave(struct agent_reading *reading)
{
    if (reading->reader == NULL)
        return false;
    if (reading_by(reading)->late(reading->reader)) {
        reading->reader = NULL;
        store_read_came(reading->read, false);
    }
    return true;
}

void agent_reading_stop(struct agent_reading *reading)
{
    const struct timespec pause = {.tv_nsec = 1000000};

    if (reading->reader == NULL)
        return;
    if (!reading_by(reading)->late(reading->reader)) {
        /* It copies a record that it has: that ends. */
        while (!atomic_load_explicit(&reading->called, memory_order_acquire))
            (void)nanosleep(&pause, NULL);
        reading_by(reading)->end(reading->reader, 0);
    }
    reading->reader = NULL;
}

icms_err agent_direct_deliver(struct agent_op *op, const struct store_read *read)
{
    const struct agent_req *req = op->direct;
    uint64_t plain = read->value_bytes - LIMIT_TRAILER_BYTES, inside;
    const struct sealed_place place = agent_shard_sealed_place(req->shard, &req->key);
    uint8_t *to = (uint8_t *)(uintptr_t)req->offset;
    icms_err err;
    uint32_t crc;

    if (read->value_bytes <= LIMIT_TRAILER_BYTES)
        return ICMS_OK; /* op_done_load() says what this is */
    if (plain > req->bytes)
        return ICMS_VALUE_SIZE;
    crc = crc32c_copy_steady(0, to, read->value, plain);
    inside = u64_min(req->bytes - plain, LIMIT_TRAILER_BYTES);
    memcpy(to + plain, read->value + plain, inside);
    memcpy((uint8_t *)(uintptr_t)req->aside, read->value + plain + inside,
           LIMIT_TRAILER_BYTES - inside);
    if (fault_hit("agent.local"))
        crc++;
    err = sealed_trailer_check(&place, (uint32_t)plain, crc, read->value + plain);
    op->is_unknown = err == ICMS_VERSION;
    return op->is_unknown ? ICMS_OK : err;
}
