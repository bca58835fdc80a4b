/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/direct.h: loads from an own drive into the memory of a client in this process, past the
 * arena, and reads of that drive by another way than the loop's (base/reader.h), as cuFile.
 *
 * Such a read is one of a store_read that its owner embeds beside it:
 *
 *   begin -> store_read.done -> end        it came, or the store has read by the loop
 *        \-> leave -> store_read.done -> end     the owner waits no longer: the loop reads
 *
 * The record comes to the memory of the store_read all the same, is verified there, and the reader
 * is told whether what it has may be used. It is told so only where that is what is answered.
 */
#ifndef AGENT_DIRECT_H
#define AGENT_DIRECT_H

#include <stdatomic.h>

#include "base/reader.h"
#include "loop/loop.h"
#include "store/store.h"

struct agent;
struct agent_op;
struct agent_req;

struct agent_reading {
    struct agent *agent;
    struct store_read *read;
    void *reader;        /* of agent->opts.reader; NULL: the loop reads                           */
    bool came;           /* it did                                                                */
    _Atomic bool called; /* the reader has called, and is out of here again                       */
    struct loop_msg msg;
};

/* From store_read.instead, for the memory of a request, which stays its own until end or leave.
 * False: the loop has to read. */
bool agent_reading_begin(struct agent_reading *reading, const struct agent_req *req,
                         struct store_read *read, int fd, uint64_t offset, uint32_t bytes);

/* The store_read is done. err: OK when its value is what the request has. */
void agent_reading_end(struct agent_reading *reading, const struct store_read *read, icms_err err);

/* Nobody waits for another way any more: the loop reads, unless it is about to come. False: there
 * is none. */
bool agent_reading_leave(struct agent_reading *reading);

/* After the loops ended: no reader comes back to it. */
void agent_reading_stop(struct agent_reading *reading);

/* Copies what was read into the memory of op->direct, the end into its space for a trailer, and
 * checks the trailer in the same pass: OK, CORRUPT; VALUE_SIZE: nothing is copied. What is too
 * short for a trailer is OK, and not copied. Of another version: OK with op->is_unknown, whoever
 * asked checks it. */
icms_err agent_direct_deliver(struct agent_op *op, const struct store_read *read);

#endif
