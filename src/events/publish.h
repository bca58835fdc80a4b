/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events/publish.h: what happens to blocks in an agent's tiers, published as vLLM 0.32 publishes
 * its own KV events (ZmqEventPublisher), so that whoever reads those reads these.
 *
 * Each volume has a stream: a PUB socket (XPUB, to SUB the same) that sends [topic, sequence,
 * payload], the sequence eight big-endian bytes from 0 on, the topic "kv@AGENT@VOLUME", the payload
 * of batch.h; and a ROUTER socket, where a sequence number asks for what is kept from there on:
 * [sequence, payload] each, and then [-1, ""]. A stream begins with AllBlocksCleared: what another
 * process of this agent said before counts no more. Events that were lost are a number that no
 * batch has, and AllBlocksCleared soon after it, with all that there is behind that.
 *
 * A thread of its own takes the events, every EVENTS_TAKE_MS. It waits for nobody: a subscriber
 * that does not read loses batches, a replay that nobody reads is given up.
 *
 * ZeroMQ asks nobody who he is. Whoever can connect reads: which blocks of the volume come and go,
 * by 64 bits of hash, and when. Sockets of files have permission bits.
 */
#ifndef EVENTS_PUBLISH_H
#define EVENTS_PUBLISH_H

#include <stddef.h>
#include <stdint.h>

#include "agent/agent.h"

struct events;

/* How often the thread looks. */
#define EVENTS_TAKE_MS 20

/* Of a stream: batches that wait for one subscriber; connections of each of its sockets, and
 * subscriptions to other topics than its own since nobody was connected, before all have to connect
 * again; batches of a replay that wait,
 * and until when it has to be read. */
#define EVENTS_HWM        256
#define EVENTS_PEERS_MAX  64
#define EVENTS_HEARD_MAX  2048
#define EVENTS_REPLAY_HWM 16
#define EVENTS_REPLAY_MS  5000
#define EVENTS_WINDOW_MIN ((uint64_t)128 << 10)

struct events_stream_opts {
    uint32_t volume;       /* its number in the agent              */
    const char *name;      /* its name                             */
    const char *endpoint;  /* ipc://PATH or tcp://ADDRESS:PORT     */
    const char *replay;    /* likewise; "": no replay              */
    uint64_t window_bytes; /* of batches that are kept for that    */
    uint32_t mode;         /* permission bits of ipc               */
};

struct events_opts {
    const char *agent; /* its name */
    uint32_t stream_count;
    const struct events_stream_opts *streams; /* copied, but for their texts, which stay */
    /* As agent_events_take and agent_events_lost; on the thread. */
    size_t (*take)(void *arg, struct agent_event *out, size_t count);
    uint64_t (*lost)(void *arg, uint32_t volume);
    void *arg;
};

struct events_stats {
    uint64_t batches, hashes; /* sent: events are of one hash each, or CLEARED     */
    uint64_t lost;            /* events that found no space                        */
    uint64_t replays;         /* that were answered to their end                   */
    uint64_t replays_refused; /* not a request, or given up                        */
    uint64_t next_seq;        /* of the next batch                                 */
    uint64_t subscribers;     /* connections to the endpoint now                   */
    uint64_t floods;          /* times that there was too much, and all were ended */
    uint64_t bound;           /* 1; 0: after that an endpoint could not be bound   */
    icms_err unbound;         /* why                                               */
};

/* Binds all sockets and starts the thread. CONFIG, ADDRESS_IN_USE, PERMISSION, ... with a sentence.
 */
icms_err events_start(const struct events_opts *opts, struct err_why *why,
                      struct events **out_events) ICMS_MUST_CHECK;

/* Sends what was taken, ends the thread, closes and removes the sockets. NULL is fine. */
void events_stop(struct events **events);

/* The name of the volume of stream number i of events_opts; NULL: there are fewer. Any thread. */
const char *events_volume(const struct events *events, uint32_t stream);

/* Of that stream, which there is. Any thread. */
void events_stats(const struct events *events, uint32_t stream, struct events_stats *out_stats);

#endif
