/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events/publish.c: see publish.h. The thread is the only one that uses a socket once it runs.
 *
 * Life of a replay: request -> a place of stream->replays -> replay_run, as much as the peer reads
 * -> [-1, ""], or EVENTS_REPLAY_MS passed, or the peer is gone. What no place is left for stays
 * unread in the socket, whose queue is bounded, so that the peer waits.
 *
 * Connections are counted by ZeroMQ's own monitor. When there are EVENTS_PEERS_MAX of a socket all
 * are ended, and who wants to comes again: whoever connects again and again takes no descriptors of
 * the agent's clients. So are they after EVENTS_HEARD_MAX subscriptions: ZeroMQ keeps each of them,
 * with a hundred bytes for each byte of it. What it tells of their ends says nothing: it tells of
 * an end that ended nothing, too, as when one connection cancels what another one has.
 */
#include "events/publish.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "agent/socket.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/counter.h"
#include "events/batch.h"
#include "events/request.h"
#include "events/window.h"

#define TAKE_COUNT      1024
#define TAKE_ROUNDS     64                     /* before requests have a turn */
#define HEAR_COUNT      (4 * EVENTS_HEARD_MAX) /* in a turn, of what takes no memory */
#define REPLAY_BATCHES  64                     /* of one in a turn            */
#define REQUEST_BYTES   64                     /* a longer frame ends the connection */
#define SUBSCRIBE_BYTES 10                     /* before a topic                     */
#define TOPIC_BYTES     (2 * LIMIT_NAME_BYTES + 8)
#define LINGER_MS       200 /* with 0 libzmq may abort: a message that is half with a peer that goes */

#define IPC "ipc://"

struct endpoint {
    void *socket;
    void *monitor; /* tells of connections */
    const char *text;
    uint32_t mode;
    bool is_bound;
    bool is_closing;           /* not bound any more, and ZeroMQ has not closed it yet */
    int fds[EVENTS_PEERS_MAX]; /* of connections: [0 .. peers)               */
    uint32_t heard;            /* subscriptions since nobody was connected     */
    uint64_t peers;            /* connections; a counter                       */
    uint64_t floods;           /* times that there was too much; a counter     */
    uint64_t unbound;          /* an icms_err: why it cannot be bound again; a counter */
};

struct stream {
    struct events_stream_opts opts;
    char topic[TOPIC_BYTES];
    struct endpoint pub, replay; /* replay.socket NULL: none */
    struct events_window window;
    struct events_batch batch;
    struct events_replay replays[EVENTS_REPLAYS_MAX];
    uint64_t lost_seen;
    struct events_stats stats; /* counters */
};

struct events {
    struct events_opts opts;
    void *context;
    struct stream *streams;
    uint32_t stream_count;
    zmq_pollitem_t *items; /* [0]: wake; then a replay socket each stream */
    struct agent_event taken[TAKE_COUNT];
    int wake;
    uint32_t monitors; /* made so far, for their names */
    bool is_running;
    atomic_bool is_ending;
    pthread_t thread;
};

static uint64_t now_ms(void)
{
    struct timespec now;

    check(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static double now_seconds(void)
{
    struct timespec now;

    check(clock_gettime(CLOCK_REALTIME, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void seq_put(uint64_t seq, uint8_t out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(seq >> (56 - 8 * i));
}

/* ---- endpoints ------------------------------------------------------------------------------ */

/* A unix socket is made here: ZeroMQ would remove whatever is at the path, and make one that
 * everybody may connect to. */
static icms_err endpoint_bind(struct endpoint *endpoint, struct err_why *why)
{
    bool is_ipc = strncmp(endpoint->text, IPC, strlen(IPC)) == 0;
    int sock = -1;

    if (is_ipc) {
        icms_err err = agent_socket_listen(endpoint->text + strlen(IPC), SOCK_STREAM,
                                           endpoint->mode, why, &sock);

        if (err != ICMS_OK)
            return err;
        check(zmq_setsockopt(endpoint->socket, ZMQ_USE_FD, &sock, sizeof(sock)) == 0);
    }
    if (zmq_bind(endpoint->socket, endpoint->text) != 0) {
        int error = zmq_errno();

        if (sock >= 0)
            (void)close(sock);
        return err_set(why,
                       error == EADDRINUSE                  ? ICMS_ADDRESS_IN_USE
                       : error == EMFILE || error == ENFILE ? ICMS_LIMIT
                                                            : ICMS_CONFIG,
                       "events: cannot bind %s: %s", endpoint->text, zmq_strerror(error));
    }
    endpoint->is_bound = true;
    return ICMS_OK;
}

static void option(void *socket, int name, int value)
{
    check(zmq_setsockopt(socket, name, &value, sizeof(value)) == 0);
}

/* A subscription to the topic fits into a frame, of ZMTP 3.1 too, which begins with a word. */
static icms_err endpoint_open(struct events *events, struct endpoint *endpoint, int type,
                              const char *topic, struct err_why *why)
{
    const int64_t frame_max = (int64_t)u64_max(REQUEST_BYTES, strlen(topic) + SUBSCRIBE_BYTES);
    char name[64];

    endpoint->socket = zmq_socket(events->context, type);
    endpoint->monitor = zmq_socket(events->context, ZMQ_PAIR);
    if (endpoint->socket == NULL || endpoint->monitor == NULL)
        return err_set(why, ICMS_LIMIT, "events: cannot make a socket for %s: %s", endpoint->text,
                       zmq_strerror(zmq_errno()));
    option(endpoint->socket, ZMQ_LINGER, LINGER_MS);
    option(endpoint->socket, ZMQ_SNDHWM, type == ZMQ_XPUB ? EVENTS_HWM : EVENTS_REPLAY_HWM);
    option(endpoint->socket, ZMQ_RCVHWM, EVENTS_REPLAY_HWM);
    option(endpoint->socket, ZMQ_HANDSHAKE_IVL, EVENTS_REPLAY_MS);
    option(endpoint->socket, ZMQ_IPV6, 1);
    if (type == ZMQ_ROUTER)
        option(endpoint->socket, ZMQ_ROUTER_MANDATORY, 1);
    check(zmq_setsockopt(endpoint->socket, ZMQ_MAXMSGSIZE, &frame_max, sizeof(frame_max)) == 0);
    (void)snprintf(name, sizeof(name), "inproc://monitor%u", events->monitors++);
    option(endpoint->monitor, ZMQ_RCVHWM, 0); /* else ZeroMQ's own thread would wait for ours */
    option(endpoint->monitor, ZMQ_LINGER, 0);
    if (zmq_socket_monitor(endpoint->socket, name,
                           ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED) != 0 ||
        zmq_connect(endpoint->monitor, name) != 0)
        return err_set(why, ICMS_LIMIT, "events: cannot watch %s: %s", endpoint->text,
                       zmq_strerror(zmq_errno()));
    return endpoint_bind(endpoint, why);
}

/* The file of one that listened. */
static void endpoint_unlink(const struct endpoint *endpoint)
{
    if (strncmp(endpoint->text, IPC, strlen(IPC)) == 0)
        (void)unlink(endpoint->text + strlen(IPC));
}

static void endpoint_close(struct endpoint *endpoint)
{
    if (endpoint->socket != NULL) {
        (void)zmq_socket_monitor(endpoint->socket, NULL, 0);
        (void)zmq_close(endpoint->socket);
    }
    if (endpoint->monitor != NULL)
        (void)zmq_close(endpoint->monitor);
    if (endpoint->is_bound)
        endpoint_unlink(endpoint);
}

/* Whether what an XPUB socket tells takes memory that nothing bounds: a subscription, but not to
 * what the topic begins with, of which there are few. */
static bool heard_counts(const uint8_t *frame, size_t bytes, const char *topic)
{
    return bytes == 0 || (frame[0] != 0 &&
                          (bytes - 1 > strlen(topic) || memcmp(topic, frame + 1, bytes - 1) != 0));
}

/* Counts subscriptions. An XPUB socket tells of them, and a PUB socket would not. Of what takes no
 * memory each counts that is too many for a turn. */
static void endpoint_hear(struct endpoint *endpoint, const char *topic)
{
    uint8_t frame[1 + TOPIC_BYTES];

    for (uint32_t i = 0; endpoint->heard < EVENTS_HEARD_MAX; i++) {
        int bytes = zmq_recv(endpoint->socket, frame, sizeof(frame), ZMQ_DONTWAIT);

        if (bytes < 0)
            return;
        endpoint->heard += i >= HEAR_COUNT || heard_counts(frame, (size_t)bytes, topic);
    }
}

/* What the monitor tells: a connection by its descriptor, which another one has only after it went.
 * Those that end with the socket are told by nobody. */
static void endpoint_told(struct endpoint *endpoint, uint16_t event, int fd)
{
    uint64_t i = 0;

    if (event == ZMQ_EVENT_CLOSED) {
        counter_set(&endpoint->peers, 0);
        endpoint->is_closing = false;
    } else if (event == ZMQ_EVENT_ACCEPTED && endpoint->peers < EVENTS_PEERS_MAX) {
        endpoint->fds[endpoint->peers] = fd;
        counter_add(&endpoint->peers, 1);
    } else if (event == ZMQ_EVENT_DISCONNECTED) {
        while (i < endpoint->peers && endpoint->fds[i] != fd)
            i++;
        if (i == endpoint->peers)
            return;
        endpoint->fds[i] = endpoint->fds[endpoint->peers - 1];
        counter_add(&endpoint->peers, -(uint64_t)1);
    }
}

static void endpoint_bind_again(struct endpoint *endpoint)
{
    struct err_why why;

    counter_set(&endpoint->unbound, (uint64_t)endpoint_bind(endpoint, &why));
}

/* Counts connections that came and went. ZeroMQ knows no limit: too many are ended together. */
static void endpoint_watch(struct endpoint *endpoint)
{
    uint8_t frame[256];
    uint16_t event;
    uint32_t fd;
    int bytes;

    if (endpoint->socket == NULL)
        return;
    /* When there are too many, no further one is left uncounted: all are ended first. */
    while ((!endpoint->is_bound || endpoint->peers < EVENTS_PEERS_MAX) &&
           (bytes = zmq_recv(endpoint->monitor, frame, sizeof(frame), ZMQ_DONTWAIT)) >= 0) {
        memcpy(&event, frame, sizeof(event));
        memcpy(&fd, frame + sizeof(event), sizeof(fd));
        (void)zmq_recv(endpoint->monitor, frame, sizeof(frame), 0); /* the address */
        endpoint_told(endpoint, event, (int)fd);
    }
    if (endpoint->peers == 0) /* all that was heard is of connections that went */
        endpoint->heard = 0;
    if (endpoint->is_bound &&
        (endpoint->peers >= EVENTS_PEERS_MAX || endpoint->heard >= EVENTS_HEARD_MAX) &&
        zmq_unbind(endpoint->socket, endpoint->text) == 0) { /* which ends all of them */
        endpoint->is_bound = false;
        endpoint->is_closing = true;
        endpoint->heard = 0;       /* what is left of them is taken meanwhile */
        endpoint_unlink(endpoint); /* nobody would, if this is the end */
        counter_add(&endpoint->floods, 1);
    } else if (!endpoint->is_bound && !endpoint->is_closing) {
        endpoint_bind_again(endpoint);
    }
}

/* ---- streams -------------------------------------------------------------------------------- */

static void stream_send(struct stream *stream)
{
    struct events_batch *batch = &stream->batch;
    uint64_t seq = counter_get(&stream->stats.next_seq);
    uint8_t number[8];

    events_batch_end(batch);
    seq_put(seq, number);
    /* An XPUB socket never waits: who has no space for a batch loses it. */
    (void)zmq_send(stream->pub.socket, stream->topic, strlen(stream->topic),
                   ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(stream->pub.socket, number, sizeof(number), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(stream->pub.socket, batch->bytes, batch->length, ZMQ_DONTWAIT);
    events_window_add(&stream->window, seq, batch->bytes, (uint32_t)batch->length);
    counter_set(&stream->stats.next_seq, seq + 1);
    counter_add(&stream->stats.batches, 1);
    events_batch_begin(batch, now_seconds());
}

static void stream_add(struct stream *stream, const struct agent_event *event)
{
    if (!events_batch_add(&stream->batch, event)) {
        stream_send(stream);
        check(events_batch_add(&stream->batch, event));
    }
    counter_add(&stream->stats.hashes, event->kind != AGENT_EVENT_CLEARED);
}

/* Events that were lost leave a number out, before what is sent next. */
static void stream_look_lost(struct events *events, struct stream *stream)
{
    uint64_t lost = events->opts.lost(events->opts.arg, stream->opts.volume);

    if (lost == stream->lost_seen)
        return;
    counter_add(&stream->stats.next_seq, 1);
    counter_add(&stream->stats.lost, lost - stream->lost_seen);
    stream->lost_seen = lost;
}

static struct stream *stream_of(struct events *events, uint32_t volume)
{
    for (uint32_t i = 0; i < events->stream_count; i++)
        if (events->streams[i].opts.volume == volume)
            return &events->streams[i];
    return NULL;
}

static void events_take(struct events *events)
{
    size_t count = TAKE_COUNT;

    for (uint32_t i = 0; i < events->stream_count; i++)
        events_batch_begin(&events->streams[i].batch, now_seconds());
    for (int round = 0; round < TAKE_ROUNDS && count == TAKE_COUNT; round++) {
        count = events->opts.take(events->opts.arg, events->taken, TAKE_COUNT);
        for (size_t i = 0; i < count; i++) {
            struct stream *stream = stream_of(events, events->taken[i].volume);

            if (stream != NULL)
                stream_add(stream, &events->taken[i]);
        }
    }
    for (uint32_t i = 0; i < events->stream_count; i++) {
        stream_look_lost(events, &events->streams[i]);
        if (!events_batch_is_empty(&events->streams[i].batch))
            stream_send(&events->streams[i]);
    }
}

/* ---- replays -------------------------------------------------------------------------------- */

/* As vLLM 0.32 answers: an empty frame, topic, number, payload; at the end no topic, -1, nothing.
 */
static bool replay_send(struct stream *stream, const struct events_replay *replay, uint64_t seq,
                        const void *payload, size_t bytes)
{
    const char *topic = seq == UINT64_MAX ? "" : stream->topic;
    uint8_t number[8];

    seq_put(seq, number);
    /* Only the first frame is refused, when the peer does not read, or is gone. */
    if (zmq_send(stream->replay.socket, replay->peer, replay->peer_bytes,
                 ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return false;
    (void)zmq_send(stream->replay.socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(stream->replay.socket, topic, strlen(topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(stream->replay.socket, number, sizeof(number), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    (void)zmq_send(stream->replay.socket, payload, bytes, ZMQ_DONTWAIT);
    return true;
}

/* Goes on with a replay; false: it waits for the peer. */
static bool replay_run(struct stream *stream, struct events_replay *replay)
{
    const void *payload;
    uint32_t bytes;
    uint64_t seq;

    for (int i = 0; i < REPLAY_BATCHES; i++) {
        bool is_over =
            !events_window_from(&stream->window, replay->next_seq, &seq, &payload, &bytes) ||
            seq >= replay->end_seq;

        if (!is_over && replay_send(stream, replay, seq, payload, bytes)) {
            replay->next_seq = seq + 1;
            continue;
        }
        if (is_over && replay_send(stream, replay, UINT64_MAX, "", 0)) {
            counter_add(&stream->stats.replays, 1);
            replay->peer_bytes = 0;
            return true;
        }
        if (zmq_errno() == EAGAIN && now_ms() < replay->until_ms)
            return false;
        counter_add(&stream->stats.replays_refused, 1);
        replay->peer_bytes = 0;
        return true;
    }
    return false;
}

/* Reads one request to its last frame. */
static bool replay_read(struct stream *stream)
{
    struct events_request request = {.count = 0};
    struct events_replay *replay;
    size_t more_bytes = sizeof(int);
    int more = 1;

    while (more != 0) {
        uint8_t rest[EVENTS_FRAME_BYTES];
        bool is_kept = request.count < EVENTS_FRAMES;
        int got = zmq_recv(stream->replay.socket, is_kept ? request.frames[request.count] : rest,
                           sizeof(rest), ZMQ_DONTWAIT);

        if (got < 0)
            return false;
        if (is_kept)
            request.bytes[request.count] = (size_t)got;
        request.count++;
        check(zmq_getsockopt(stream->replay.socket, ZMQ_RCVMORE, &more, &more_bytes) == 0);
    }
    replay = events_request_place(&request, stream->replays);
    if (replay == NULL) {
        counter_add(&stream->stats.replays_refused, 1);
        return true;
    }
    replay->end_seq = counter_get(&stream->stats.next_seq);
    replay->until_ms = now_ms() + EVENTS_REPLAY_MS;
    return true;
}

/* True: some are not over. Requests are read as long as there are places. */
static bool stream_replay(struct stream *stream)
{
    uint32_t waiting = 0;

    if (stream->replay.socket == NULL)
        return false;
    for (int i = 0; i < EVENTS_REPLAYS_MAX; i++)
        if (stream->replays[i].peer_bytes != 0)
            waiting += !replay_run(stream, &stream->replays[i]);
    for (uint32_t i = waiting; i < EVENTS_REPLAYS_MAX && replay_read(stream); i++)
        waiting++;
    return waiting > 0;
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void *events_run(void *arg)
{
    struct events *events = arg;
    bool is_waiting = false;

    while (!atomic_load(&events->is_ending)) {
        int count = 1;

        for (uint32_t i = 0; i < events->stream_count && !is_waiting; i++)
            if (events->streams[i].replay.socket != NULL)
                events->items[count++] = (zmq_pollitem_t){
                    .socket = events->streams[i].replay.socket, .events = ZMQ_POLLIN};
        (void)zmq_poll(events->items, count, is_waiting ? 1 : EVENTS_TAKE_MS);
        is_waiting = false;
        events_take(events);
        for (uint32_t i = 0; i < events->stream_count; i++) {
            struct stream *stream = &events->streams[i];

            endpoint_hear(&stream->pub, stream->topic);
            endpoint_watch(&stream->pub);
            endpoint_watch(&stream->replay);
            counter_set(&stream->stats.subscribers, stream->pub.peers);
            is_waiting |= stream_replay(stream);
        }
    }
    events_take(events);
    return NULL;
}

static icms_err stream_open(struct events *events, struct stream *stream, struct err_why *why)
{
    const struct agent_event cleared = {.kind = AGENT_EVENT_CLEARED};
    const struct events_stream_opts *opts = &stream->opts;
    icms_err err;

    (void)snprintf(stream->topic, sizeof(stream->topic), "kv@%s@%s", events->opts.agent,
                   opts->name);
    stream->pub.text = opts->endpoint;
    stream->replay.text = opts->replay;
    stream->pub.mode = stream->replay.mode = opts->mode;
    if (events_window_init(&stream->window, u64_max(opts->window_bytes, EVENTS_WINDOW_MIN)) !=
        ICMS_OK)
        return err_set(why, ICMS_NO_MEMORY, "events: no memory for the window of %s", opts->name);
    err = endpoint_open(events, &stream->pub, ZMQ_XPUB, stream->topic, why);
    if (err == ICMS_OK && opts->replay[0] != '\0')
        err = endpoint_open(events, &stream->replay, ZMQ_ROUTER, "", why);
    if (err != ICMS_OK)
        return err;
    events_batch_begin(&stream->batch, now_seconds());
    stream_add(stream, &cleared);
    stream_send(stream);
    return ICMS_OK;
}

icms_err events_start(const struct events_opts *opts, struct err_why *why,
                      struct events **out_events)
{
    struct events *events = calloc(1, sizeof(*events));
    icms_err err = ICMS_OK;

    if (events == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for events");
    events->opts = *opts;
    events->context = zmq_ctx_new();
    events->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    events->streams = calloc(opts->stream_count, sizeof(events->streams[0]));
    events->items = calloc(opts->stream_count + 1, sizeof(events->items[0]));
    if (events->context == NULL || events->wake < 0 || events->streams == NULL ||
        events->items == NULL)
        err = err_set(why, ICMS_NO_MEMORY, "no memory for events");
    for (uint32_t i = 0; i < opts->stream_count && err == ICMS_OK; i++) {
        events->stream_count++;
        events->streams[i].opts = opts->streams[i];
        err = stream_open(events, &events->streams[i], why);
    }
    if (err == ICMS_OK) {
        events->items[0] = (zmq_pollitem_t){.fd = events->wake, .events = ZMQ_POLLIN};
        events->is_running = pthread_create(&events->thread, NULL, events_run, events) == 0;
        if (!events->is_running)
            err = err_set(why, ICMS_LIMIT, "cannot make a thread for events");
    }
    if (err != ICMS_OK)
        events_stop(&events);
    else
        *out_events = events;
    return err;
}

void events_stop(struct events **events_)
{
    struct events *events = *events_;

    if (events == NULL)
        return;
    if (events->is_running) {
        atomic_store(&events->is_ending, true);
        check(eventfd_write(events->wake, 1) == 0);
        check(pthread_join(events->thread, NULL) == 0);
    }
    for (uint32_t i = 0; i < events->stream_count; i++) {
        endpoint_close(&events->streams[i].pub);
        endpoint_close(&events->streams[i].replay);
        events_window_fini(&events->streams[i].window);
    }
    if (events->context != NULL)
        (void)zmq_ctx_term(events->context);
    if (events->wake >= 0)
        (void)close(events->wake);
    free(events->streams);
    free(events->items);
    free(events);
    *events_ = NULL;
}

const char *events_volume(const struct events *events, uint32_t stream)
{
    return stream < events->stream_count ? events->streams[stream].opts.name : NULL;
}

void events_stats(const struct events *events, uint32_t stream, struct events_stats *out_stats)
{
    const struct events_stats *stats = &events->streams[stream].stats;
    uint64_t unbound = counter_get(&events->streams[stream].pub.unbound);

    if (unbound == ICMS_OK)
        unbound = counter_get(&events->streams[stream].replay.unbound);
    *out_stats = (struct events_stats){
        .batches = counter_get(&stats->batches),
        .hashes = counter_get(&stats->hashes),
        .lost = counter_get(&stats->lost),
        .replays = counter_get(&stats->replays),
        .replays_refused = counter_get(&stats->replays_refused),
        .next_seq = counter_get(&stats->next_seq),
        .subscribers = counter_get(&stats->subscribers),
        .floods = counter_get(&events->streams[stream].pub.floods) +
                  counter_get(&events->streams[stream].replay.floods),
        .bound = unbound == ICMS_OK,
        .unbound = (icms_err)unbound,
    };
}
