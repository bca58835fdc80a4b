/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events as others read them: with libzmq's own SUB, REQ and DEALER sockets, and by those who only
 * do harm. What vLLM's decoder says of the same bytes is a case of test/engines/vllm.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h>

#include "base/check.h"
#include "events/batch.h"
#include "events/publish.h"
#include "events/window.h"

/* ---- msgpack as text ------------------------------------------------------------------------ */

struct reader {
    const uint8_t *at, *end;
    char text[65536];
    size_t length;
};

#define TOPIC "kv@server-0@kv"

static void say(struct reader *reader, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct reader *reader, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    reader->length += (size_t)vsnprintf(reader->text + reader->length,
                                        sizeof(reader->text) - reader->length, format, args);
    va_end(args);
    assert_true(reader->length < sizeof(reader->text));
}

static uint64_t take(struct reader *reader, int bytes)
{
    uint64_t value = 0;

    for (int i = 0; i < bytes; i++) {
        assert_true(reader->at < reader->end);
        value = value << 8 | *reader->at++;
    }
    return value;
}

static void read_value(struct reader *reader)
{
    uint8_t type = (uint8_t)take(reader, 1);
    uint64_t count, bits;
    double real;

    if (type < 0x80) {
        say(reader, "%u", type);
    } else if (type < 0x90) {
        say(reader, "{");
        for (int i = 0; i < (type & 15); i++) {
            read_value(reader);
            say(reader, ":");
            read_value(reader);
            say(reader, " ");
        }
        say(reader, "}");
    } else if (type < 0xa0 || type == 0xdc) {
        count = type < 0xa0 ? (uint64_t)(type & 15) : take(reader, 2);
        say(reader, "[");
        for (uint64_t i = 0; i < count; i++) {
            read_value(reader);
            say(reader, " ");
        }
        say(reader, "]");
    } else if (type < 0xc0) {
        for (int i = type & 31; i > 0; i--)
            say(reader, "%c", (char)take(reader, 1));
    } else if (type == 0xc0) {
        say(reader, "nil");
    } else if (type == 0xcb) {
        bits = take(reader, 8);
        memcpy(&real, &bits, sizeof(real));
        say(reader, "%.2f", real);
    } else {
        assert_int_equal(type, 0xcf);
        say(reader, "%llx", (unsigned long long)take(reader, 8));
    }
}

static const char *text_of(const void *payload, size_t bytes)
{
    static struct reader reader;

    reader = (struct reader){.at = payload, .end = (const uint8_t *)payload + bytes};
    read_value(&reader);
    assert_true(reader.at == reader.end);
    return reader.text;
}

#define STORED(hashes, medium)                                                                     \
    "{type:BlockStored block_hashes:[" hashes "] parent_block_hash:nil token_ids:[] block_size:0 " \
    "lora_id:nil medium:" medium " lora_name:nil locality:LOCAL ownership:icms }"
#define REMOVED(hashes, medium)                                                                    \
    "{type:BlockRemoved block_hashes:[" hashes "] medium:" medium " locality:LOCAL "               \
    "ownership:icms }"

static struct agent_event event_of(uint64_t hash, enum agent_event_kind kind,
                                   enum agent_event_tier tier)
{
    return (struct agent_event){.hash = hash, .kind = (uint8_t)kind, .tier = (uint8_t)tier};
}

static void neighbours_share_a_map(void **state)
{
    static struct events_batch batch;
    const struct agent_event events[] = {
        event_of(0x10, AGENT_EVENT_STORED, AGENT_EVENT_DRAM),
        event_of(UINT64_MAX, AGENT_EVENT_STORED, AGENT_EVENT_DRAM),
        event_of(0x10, AGENT_EVENT_REMOVED, AGENT_EVENT_DRAM),
        event_of(0x10, AGENT_EVENT_STORED, AGENT_EVENT_LOCAL),
        event_of(0, AGENT_EVENT_CLEARED, AGENT_EVENT_DRAM),
        event_of(0x11, AGENT_EVENT_REMOVED, AGENT_EVENT_LOCAL),
    };

    events_batch_begin(&batch, 12.25);
    assert_true(events_batch_is_empty(&batch));
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        assert_true(events_batch_add(&batch, &events[i]));
    assert_false(events_batch_is_empty(&batch));
    events_batch_end(&batch);
    assert_string_equal(
        text_of(batch.bytes, batch.length),
        "[12.25 [" STORED("10 ffffffffffffffff ", "CPU") " " REMOVED("10 ", "CPU") " " STORED(
            "10 ", "STORAGE") " {type:AllBlocksCleared } " REMOVED("11 ", "STORAGE") " ] 0 ]");
}

/* Whatever comes, a batch that says that it has space has it. */
static void a_full_batch_says_so(void **state)
{
    static struct events_batch batch;
    struct agent_event event = {0};

    srand(7);
    for (int round = 0; round < 60; round++) {
        uint32_t count = 0;

        events_batch_begin(&batch, 1);
        do {
            event.hash = (uint64_t)rand();
            if (rand() % 60 < round)
                event.kind = (uint8_t)(rand() % 3);
            event.tier = (uint8_t)(rand() % 2);
        } while (events_batch_add(&batch, &event) && ++count > 0);
        assert_true(count > 300);
        events_batch_end(&batch);
        assert_true(batch.length <= EVENTS_BATCH_BYTES);
    }
}

static void a_window_keeps_the_last(void **state)
{
    struct events_window window;
    static uint8_t payload[4096];
    uint64_t seq = 3, got, oldest, last_seq = 0, kept_bytes;
    const void *at;
    uint32_t bytes;

    assert_int_equal(events_window_init(&window, 8192), ICMS_OK);
    assert_false(events_window_from(&window, 0, &got, &at, &bytes));
    srand(3);
    for (int i = 0; i < 20000; i++) {
        bytes = i % 7 == 0 ? 1 : 1 + (uint32_t)rand() % (i % 2 != 0 ? 60 : 4096);
        memset(payload, (int)(seq % 251), bytes);
        memcpy(payload, &seq, bytes < 8 ? bytes : 8);
        events_window_add(&window, seq, payload, bytes);
        last_seq = seq;
        seq += 1 + (uint64_t)rand() % 3; /* with numbers left out */
        assert_true(events_window_from(&window, 0, &oldest, &at, &bytes));
        kept_bytes = 0;
        for (uint64_t from = oldest;
             i % 100 == 0 && events_window_from(&window, from, &got, &at, &bytes); from = got + 1) {
            assert_true(got >= from);
            assert_memory_equal(at, &got, bytes < 8 ? bytes : 8);
            for (uint32_t b = 8; b < bytes; b++)
                assert_int_equal(((const uint8_t *)at)[b], got % 251);
            kept_bytes += bytes;
            if (got == last_seq)
                break;
        }
        assert_true(kept_bytes <= 8192);
        assert_true(events_window_from(&window, last_seq, &got, &at, &bytes) && got == last_seq);
        assert_false(events_window_from(&window, seq, &got, &at, &bytes));
        assert_false(events_window_from(&window, UINT64_MAX, &got, &at, &bytes));
    }
    events_window_fini(&window);
}

/* ---- a publisher ---------------------------------------------------------------------------- */

/* What the agent has: written by the test, taken by the thread. */
struct source {
    atomic_uint_fast64_t made, taken; /* events 0 .. made - 1: of hash i, stored */
    atomic_uint_fast64_t lost;
    atomic_bool is_held; /* the thread waits */
};

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static size_t source_take(void *arg, struct agent_event *out, size_t count)
{
    struct source *source = arg;
    size_t i = 0;

    while (atomic_load(&source->is_held))
        pause_ms(1);
    for (; i < count && atomic_load(&source->taken) < atomic_load(&source->made); i++)
        out[i] =
            event_of(atomic_fetch_add(&source->taken, 1), AGENT_EVENT_STORED, AGENT_EVENT_DRAM);
    return i;
}

static uint64_t source_lost(void *arg, uint32_t volume)
{
    return atomic_load(&((struct source *)arg)->lost);
}

struct world {
    char folder[32], pub[80], replay[80];
    const char *agent; /* its name */
    struct source source;
    struct events *events;
    void *context;
};

static icms_err world_start(struct world *world, uint64_t window_bytes, struct err_why *why)
{
    const struct events_stream_opts stream = {.name = "kv",
                                              .endpoint = world->pub,
                                              .replay = world->replay,
                                              .window_bytes = window_bytes,
                                              .mode = 0600};
    const struct events_opts opts = {.agent = world->agent,
                                     .stream_count = 1,
                                     .streams = &stream,
                                     .take = source_take,
                                     .lost = source_lost,
                                     .arg = &world->source};

    return events_start(&opts, why, &world->events);
}

static void world_begin(struct world *world)
{
    *world = (struct world){.folder = "/tmp/icms-events-XXXXXX", .agent = "server-0"};
    assert_non_null(mkdtemp(world->folder));
    snprintf(world->pub, sizeof(world->pub), "ipc://%s/pub", world->folder);
    snprintf(world->replay, sizeof(world->replay), "ipc://%s/replay", world->folder);
    world->context = zmq_ctx_new();
}

static void world_new(struct world *world, uint64_t window_bytes)
{
    struct err_why why = {""};

    world_begin(world);
    assert_int_equal(world_start(world, window_bytes, &why), ICMS_OK);
}

static void world_end(struct world *world)
{
    events_stop(&world->events);
    zmq_ctx_term(world->context);
    assert_int_equal(rmdir(world->folder), 0); /* no socket is left */
}

static struct events_stats stats_of(struct world *world)
{
    struct events_stats stats;

    events_stats(world->events, 0, &stats);
    return stats;
}

/* Makes so many events, and waits until they were sent, as batches of any number. */
static void make(struct world *world, uint64_t count)
{
    uint64_t hashes = stats_of(world).hashes + count;

    atomic_fetch_add(&world->source.made, count);
    while (stats_of(world).hashes < hashes)
        pause_ms(5);
    pause_ms(2 * EVENTS_TAKE_MS);
}

static void *connect_to(struct world *world, int type, const char *endpoint)
{
    void *socket = zmq_socket(world->context, type);
    int wait_ms = 20000, linger = 200; /* 0: libzmq may abort this process, see publish.c */

    assert_non_null(socket);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &wait_ms, sizeof(wait_ms));
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &wait_ms, sizeof(wait_ms));
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    assert_int_equal(zmq_connect(socket, endpoint), 0);
    return socket;
}

/* A subscriber that gets what is sent from now on: events are made until one comes. */
static void *subscribe(struct world *world)
{
    void *sub = connect_to(world, ZMQ_SUB, world->pub);
    zmq_pollitem_t item = {.socket = sub, .events = ZMQ_POLLIN};
    uint8_t frame[70000];

    while (zmq_poll(&item, 1, 0) == 0)
        make(world, 1);
    while (zmq_poll(&item, 1, 3 * EVENTS_TAKE_MS) > 0)
        assert_true(zmq_recv(sub, frame, sizeof(frame), 0) >= 0);
    return sub;
}

static uint64_t number_of(const uint8_t *frame)
{
    uint64_t number = 0;

    for (int i = 0; i < 8; i++)
        number = number << 8 | frame[i];
    return number;
}

static bool is_more(void *socket)
{
    int more;
    size_t bytes = sizeof(more);

    assert_int_equal(zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &bytes), 0);
    return more != 0;
}

/* The next batch of a SUB socket, as text. */
static uint64_t next_batch(void *sub, const char **out_text)
{
    static uint8_t payload[EVENTS_BATCH_BYTES];
    char topic[64] = "";
    uint8_t number[9];
    int bytes;

    assert_int_equal(zmq_recv(sub, topic, sizeof(topic), 0), strlen(TOPIC));
    assert_memory_equal(topic, TOPIC, strlen(TOPIC));
    assert_true(is_more(sub));
    assert_int_equal(zmq_recv(sub, number, sizeof(number), 0), 8);
    assert_true(is_more(sub));
    bytes = zmq_recv(sub, payload, sizeof(payload), 0);
    assert_true(bytes > 0 && !is_more(sub));
    *out_text = text_of(payload, (size_t)bytes);
    return number_of(number);
}

/* One answer of a replay to a DEALER socket; returns its number. */
static uint64_t next_replayed(void *dealer, const char **out_text)
{
    static uint8_t payload[EVENTS_BATCH_BYTES];
    uint8_t number[9], empty[1];
    char topic[32];
    int bytes, topic_bytes;

    assert_int_equal(zmq_recv(dealer, empty, sizeof(empty), 0), 0);
    topic_bytes = zmq_recv(dealer, topic, sizeof(topic), 0);
    assert_int_equal(zmq_recv(dealer, number, sizeof(number), 0), 8);
    bytes = zmq_recv(dealer, payload, sizeof(payload), 0);
    assert_true(bytes >= 0 && !is_more(dealer));
    assert_int_equal(topic_bytes, bytes > 0 ? strlen(TOPIC) : 0);
    assert_memory_equal(topic, TOPIC, (size_t)topic_bytes);
    *out_text = bytes > 0 ? text_of(payload, (size_t)bytes) : "";
    return number_of(number);
}

static void ask(void *dealer, uint64_t seq)
{
    uint8_t number[8];

    for (int i = 0; i < 8; i++)
        number[i] = (uint8_t)(seq >> (56 - 8 * i));
    assert_int_equal(zmq_send(dealer, "", 0, ZMQ_SNDMORE), 0);
    assert_int_equal(zmq_send(dealer, number, 8, 0), 8);
}

/* A whole replay: numbers rise by one from its first, which is returned; then comes -1. */
static uint64_t replay(struct world *world, uint64_t from, uint64_t *out_count)
{
    void *dealer = connect_to(world, ZMQ_DEALER, world->replay);
    uint64_t first = UINT64_MAX, seq, count = 0;
    const char *text;

    ask(dealer, from);
    while ((seq = next_replayed(dealer, &text)) != UINT64_MAX) {
        if (count == 0)
            first = seq;
        assert_int_equal(seq, first + count);
        count++;
    }
    assert_string_equal(text, "");
    zmq_close(dealer);
    *out_count = count;
    return first;
}

static void a_subscriber_hears_everything_in_order(void **state)
{
    struct world world;
    const char *text;
    void *sub, *req;
    uint64_t seq, next, hash;
    uint8_t number[8] = {0}, payload[256];
    char want[32];
    int bytes;

    world_new(&world, 1 << 20);
    sub = subscribe(&world);
    next = stats_of(&world).next_seq;
    hash = atomic_load(&world.source.made);
    make(&world, 1);
    seq = next_batch(sub, &text);
    assert_int_equal(seq, next);
    snprintf(want, sizeof(want), "block_hashes:[%llx ]", (unsigned long long)hash);
    assert_non_null(strstr(text, want));
    make(&world, 100000);
    for (next = seq + 1; next < stats_of(&world).next_seq; next++)
        assert_int_equal(next_batch(sub, &text), next);
    assert_int_equal(stats_of(&world).subscribers, 1);
    zmq_close(sub);
    /* As REQ asks, vLLM's own example: the first batch says that nothing of before counts. */
    req = connect_to(&world, ZMQ_REQ, world.replay);
    assert_int_equal(zmq_send(req, number, sizeof(number), 0), 8);
    assert_int_equal(zmq_recv(req, payload, sizeof(payload), 0), strlen(TOPIC));
    assert_int_equal(zmq_recv(req, payload, sizeof(payload), 0), 8);
    assert_int_equal(number_of(payload), 0);
    bytes = zmq_recv(req, payload, sizeof(payload), 0);
    assert_true(bytes > 0);
    assert_non_null(strstr(text_of(payload, (size_t)bytes), " [{type:AllBlocksCleared } ] 0 ]"));
    zmq_close(req);
    world_end(&world);
}

static void a_replay_has_what_is_kept(void **state)
{
    struct world world;
    uint64_t count, first, next;

    world_new(&world, EVENTS_WINDOW_MIN);
    for (int i = 0; i < 8; i++)
        make(&world, 5);
    next = stats_of(&world).next_seq;
    assert_int_equal(replay(&world, 0, &count), 0);
    assert_int_equal(count, next);
    assert_int_equal(replay(&world, next - 2, &count), next - 2);
    assert_int_equal(count, 2);
    (void)replay(&world, next, &count); /* nothing yet */
    assert_int_equal(count, 0);
    (void)replay(&world, UINT64_MAX - 1, &count); /* of the future */
    assert_int_equal(count, 0);
    make(&world, 200000); /* 1.8 MB: the window has the end of it */
    next = stats_of(&world).next_seq;
    first = replay(&world, 0, &count);
    assert_true(first > 8);
    assert_int_equal(first + count, next);
    while (stats_of(&world).replays != 5) /* the thread counts behind the last frame */
        pause_ms(1);
    world_end(&world);
}

static void what_was_lost_leaves_a_number_out(void **state)
{
    struct world world;
    const char *text;
    uint64_t next;
    void *sub;

    world_new(&world, 1 << 20);
    sub = subscribe(&world);
    next = stats_of(&world).next_seq;
    atomic_store(&world.source.lost, 9);
    while (stats_of(&world).lost != 9)
        pause_ms(5);
    make(&world, 1);
    assert_int_equal(next_batch(sub, &text), next + 1);
    zmq_close(sub);
    world_end(&world);
}

/* One subscriber never reads: another one hears all, and nothing waits. */
static void who_does_not_read_holds_nobody_up(void **state)
{
    struct world world;
    const char *text;
    void *deaf, *sub;
    int hwm = 1, many = 0;
    uint64_t next;

    world_new(&world, 1 << 20);
    deaf = connect_to(&world, ZMQ_SUB, world.pub);
    zmq_setsockopt(deaf, ZMQ_RCVHWM, &hwm, sizeof(hwm));
    sub = zmq_socket(world.context, ZMQ_SUB);
    zmq_close(sub);
    sub = subscribe(&world);
    zmq_setsockopt(sub, ZMQ_RCVHWM, &many, sizeof(many));
    next = stats_of(&world).next_seq;
    for (int i = 0; i < 40; i++) {
        uint64_t end;

        make(&world, 50000); /* 18 MB of hashes together */
        for (end = stats_of(&world).next_seq; next < end; next++)
            assert_int_equal(next_batch(sub, &text), next);
    }
    zmq_close(deaf);
    zmq_close(sub);
    world_end(&world);
}

/* Requests that are none, and more of them than anybody needs. */
static void garbage_is_refused(void **state)
{
    static const size_t sizes[] = {0, 1, 7, 9, 64, 65, 300, 100000};
    static uint8_t garbage[100000];
    struct world world;
    uint64_t count;

    world_new(&world, 1 << 20);
    make(&world, 3);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int parts = 1; parts <= 6; parts++) {
            void *dealer = connect_to(&world, ZMQ_DEALER, world.replay);

            for (int part = 1; part <= parts; part++)
                (void)zmq_send(dealer, garbage, sizes[i], part < parts ? ZMQ_SNDMORE : 0);
            if (i % 2 == 0)
                (void)zmq_send(dealer, "", 0, 0);
            pause_ms(1);
            zmq_close(dealer);
        }
    assert_int_equal(replay(&world, 0, &count), 0);
    assert_true(stats_of(&world).replays_refused > 0);
    world_end(&world);
}

static void ten_thousand_requests_are_bounded(void **state)
{
    struct world world;
    void *dealer;
    uint64_t count;
    int no_wait = 0;

    world_new(&world, EVENTS_WINDOW_MIN);
    make(&world, 200000);
    dealer = connect_to(&world, ZMQ_DEALER, world.replay);
    zmq_setsockopt(dealer, ZMQ_SNDTIMEO, &no_wait, sizeof(no_wait));
    for (int i = 0; i < 10000; i++) { /* and reads no answer */
        if (zmq_send(dealer, "", 0, ZMQ_SNDMORE) == 0)
            (void)zmq_send(dealer, "\0\0\0\0\0\0\0\0", 8, 0);
    }
    assert_true(replay(&world, 0, &count) > 0); /* another one is served meanwhile */
    make(&world, 10);
    zmq_close(dealer);
    assert_true(replay(&world, stats_of(&world).next_seq - 1, &count) > 0);
    assert_int_equal(count, 1);
    world_end(&world);
}

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;

    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

/* ---- sockets -------------------------------------------------------------------------------- */

static int raw_connect(const char *endpoint)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM, 0);

    assert_true(sock >= 0);
    assert_true(strlen(endpoint) < sizeof(address.sun_path));
    strcpy(address.sun_path, endpoint + strlen("ipc://"));
    if (connect(sock, (struct sockaddr *)&address, sizeof(address)) == 0)
        return sock;
    close(sock);
    return -1;
}

/* Whoever connects again and again takes a bounded number of descriptors; who reads comes again. */
static void connections_are_bounded(void **state)
{
    struct world world;
    int socks[4 * EVENTS_PEERS_MAX];
    const char *text;
    uint64_t next;
    void *sub;

    world_new(&world, 1 << 20);
    sub = subscribe(&world);
    for (int i = 0; i < 4 * EVENTS_PEERS_MAX; i++) {
        socks[i] = raw_connect(world.pub); /* or fails, while nobody listens */
        pause_ms(2);
        assert_true(descriptors() < 4 * EVENTS_PEERS_MAX + 2 * EVENTS_PEERS_MAX + 64);
    }
    while (stats_of(&world).floods == 0)
        pause_ms(5);
    for (int i = 0; i < 4 * EVENTS_PEERS_MAX; i++)
        if (socks[i] >= 0)
            close(socks[i]);
    while (stats_of(&world).subscribers != 1)
        pause_ms(5);
    do {
        next = stats_of(&world).next_seq;
        make(&world, 1);
    } while (zmq_poll(&(zmq_pollitem_t){.socket = sub, .events = ZMQ_POLLIN}, 1, 0) == 0);
    while (next_batch(sub, &text) < next)
        ;
    zmq_close(sub);
    world_end(&world);
}

/* As many as there may be went before the thread saw any, and one more stayed: it is counted. */
static void a_connection_behind_too_many_is_ended(void **state)
{
    struct world world;
    int socks[EVENTS_PEERS_MAX + 1];

    world_new(&world, 1 << 20);
    atomic_store(&world.source.is_held, true);
    pause_ms(2 * EVENTS_TAKE_MS);
    for (int i = 0; i <= EVENTS_PEERS_MAX; i++)
        socks[i] = raw_connect(world.pub);
    pause_ms(100);
    for (int i = 0; i < EVENTS_PEERS_MAX; i++)
        close(socks[i]);
    pause_ms(100);
    atomic_store(&world.source.is_held, false);
    for (int i = 0; i < 1000 && stats_of(&world).floods == 0; i++)
        pause_ms(5);
    assert_int_equal(stats_of(&world).floods, 1);
    close(socks[EVENTS_PEERS_MAX]);
    zmq_close(subscribe(&world));
    world_end(&world);
}

static void raw_read(int sock, void *to, size_t bytes)
{
    assert_int_equal(recv(sock, to, bytes, MSG_WAITALL), bytes);
}

/* What a SUB socket says first, the greeting and READY, and what it waits for. */
static void raw_hello(int sock)
{
    static const char ready[] = "\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
    uint8_t greeting[64] = {[0] = 0xff, [9] = 0x7f, [10] = 3, [12] = 'N', 'U', 'L', 'L'};
    uint8_t answer[256];

    assert_int_equal(write(sock, greeting, sizeof(greeting)), sizeof(greeting));
    assert_int_equal(write(sock, ready, sizeof(ready) - 1), sizeof(ready) - 1);
    raw_read(sock, answer, sizeof(greeting));
    raw_read(sock, answer, 2);
    raw_read(sock, answer + 2, answer[1]);
    assert_memory_equal(answer + 2, "\x05READY", 6);
}

/* To what nobody publishes, until the connection ends; cancels: and between them the end of what it
 * never subscribed to. */
static void subscribe_endlessly(struct world *world, int sock, bool cancels)
{
    uint8_t frames[67] = {[1] = 61, [2] = 1, [64] = 2};
    const size_t first = 63, size = cancels ? sizeof(frames) : first;
    size_t at = 0, all = 0;

    srand(5);
    while (stats_of(world).floods == 0) {
        ssize_t sent;

        for (size_t b = 3; b < first && at == 0; b++)
            frames[b] = (uint8_t)rand();
        sent = send(sock, frames + at, size - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) { /* it waits until what came is read, or it is ended */
            atomic_fetch_add(&world->source.made, 1);
            pause_ms(1);
            continue;
        }
        at = (at + (size_t)sent) % size;
        all += (size_t)sent;
        assert_true(all < 4 * EVENTS_HEARD_MAX * size); /* with what sockets keep */
    }
}

/* Names may be as long as they may be: who subscribes to the whole topic is no peer that lies. */
static void a_long_topic_can_be_subscribed(void **state)
{
    static const char agent[] = "server-0123456789-0123456789-0123456789-0123456789-012345678901";
    struct err_why why = {""};
    char topic[80], got[80];
    struct world world;
    void *sub;

    (void)state;
    assert_int_equal(sizeof(agent), LIMIT_NAME_BYTES); /* the longest */
    world_begin(&world);
    world.agent = agent;
    assert_int_equal(world_start(&world, 1 << 20, &why), ICMS_OK);
    snprintf(topic, sizeof(topic), "kv@%s@kv", agent);
    sub = zmq_socket(world.context, ZMQ_SUB);
    assert_int_equal(zmq_setsockopt(sub, ZMQ_LINGER, &(int){200}, sizeof(int)), 0);
    assert_int_equal(zmq_setsockopt(sub, ZMQ_SUBSCRIBE, topic, strlen(topic)), 0);
    assert_int_equal(zmq_connect(sub, world.pub), 0);
    for (int i = 0; i < 200; i++) {
        make(&world, 1);
        if (zmq_poll(&(zmq_pollitem_t){.socket = sub, .events = ZMQ_POLLIN}, 1, 0) > 0)
            break;
    }
    assert_int_equal(zmq_recv(sub, got, sizeof(got), ZMQ_DONTWAIT), strlen(topic));
    assert_memory_equal(got, topic, strlen(topic));
    assert_int_equal(stats_of(&world).floods, 0);
    zmq_close(sub);
    world_end(&world);
}

/* Whoever subscribes without end has his connection ended before that takes much memory. */
static void subscriptions_end(bool cancels)
{
    static struct world worlds[2]; /* its thread goes on if this fails */
    struct world *world = &worlds[cancels];
    const char *text;
    uint64_t next, seq = 0;
    void *sub;
    int sock;

    world_new(world, 1 << 20);
    sub = subscribe(world);
    sock = raw_connect(world->pub);
    assert_true(sock >= 0);
    raw_hello(sock);
    subscribe_endlessly(world, sock, cancels);
    close(sock);
    do { /* who reads comes again */
        next = stats_of(world).next_seq;
        make(world, 1);
        while (zmq_poll(&(zmq_pollitem_t){.socket = sub, .events = ZMQ_POLLIN}, 1, 0) > 0)
            seq = next_batch(sub, &text);
    } while (seq < next);
    assert_int_equal(stats_of(world).floods, 1); /* the ends of his subscriptions are no flood */
    zmq_close(sub);
    world_end(world);
}

static void subscriptions_are_bounded(void **state)
{
    subscriptions_end(false);
}

/* ZeroMQ tells of that end as of any other one, and of the subscriptions nothing is given back. */
static void ends_of_what_nobody_has_give_nothing_back(void **state)
{
    subscriptions_end(true);
}

static void subscribe_to(void *sub, int option, const char *topic, size_t bytes)
{
    assert_int_equal(zmq_setsockopt(sub, option, topic, bytes), 0);
}

/* Who comes and goes for days is no flood: what the topic begins with takes no memory, and what
 * ended with all connections takes none any more. */
static void subscriptions_that_ended_do_not_count(void **state)
{
    struct world world;
    void *sub;

    world_new(&world, 1 << 20);
    sub = subscribe(&world);
    for (int i = 0; i < EVENTS_HEARD_MAX + 64; i++) {
        size_t bytes = 1 + (size_t)i % strlen(TOPIC);

        subscribe_to(sub, ZMQ_SUBSCRIBE, TOPIC, bytes);
        subscribe_to(sub, ZMQ_UNSUBSCRIBE, TOPIC, bytes);
        if (i % 64 == 0)
            pause_ms(5);
    }
    pause_ms(100);
    for (int i = 0; i < 3 * (EVENTS_HEARD_MAX / 2); i++) {
        char topic[16];
        size_t bytes = (size_t)snprintf(topic, sizeof(topic), "t%d", i);

        subscribe_to(sub, ZMQ_SUBSCRIBE, topic, bytes);
        if (i % (EVENTS_HEARD_MAX / 2) != EVENTS_HEARD_MAX / 2 - 1)
            continue;
        pause_ms(100);
        zmq_close(sub);
        while (stats_of(&world).subscribers != 0)
            pause_ms(5);
        sub = subscribe(&world);
    }
    assert_int_equal(stats_of(&world).floods, 0);
    zmq_close(sub);
    world_end(&world);
}

/* After a flood something is in the way. That is told, and is over when it is gone. */
static void an_endpoint_that_cannot_be_bound_is_told(void **state)
{
    struct world world;
    int socks[EVENTS_PEERS_MAX];
    char aside[40], endpoint[80];
    FILE *file;

    world_new(&world, 1 << 20);
    assert_int_equal(stats_of(&world).bound, 1);
    snprintf(aside, sizeof(aside), "%s-", world.folder);
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/pub", aside);
    assert_int_equal(rename(world.folder, aside), 0);
    file = fopen(world.folder, "w");
    assert_non_null(file);
    fclose(file);
    for (int i = 0; i < EVENTS_PEERS_MAX; i++)
        socks[i] = raw_connect(endpoint);
    for (int i = 0; i < 4000 && stats_of(&world).bound == 1; i++)
        pause_ms(5);
    assert_int_equal(stats_of(&world).bound, 0);
    assert_int_equal(stats_of(&world).floods, 1);
    assert_int_equal(stats_of(&world).unbound, ICMS_NOT_FOUND);
    pause_ms(3 * EVENTS_TAKE_MS);
    assert_int_equal(stats_of(&world).bound, 0);
    assert_int_equal(unlink(world.folder), 0);
    assert_int_equal(rename(aside, world.folder), 0);
    while (stats_of(&world).bound == 0)
        pause_ms(5);
    zmq_close(subscribe(&world));
    for (int i = 0; i < EVENTS_PEERS_MAX; i++)
        close(socks[i]);
    world_end(&world);
}

static void sockets_are_where_nobody_else_is(void **state)
{
    struct world world, other;
    struct err_why why = {""};
    struct stat stat_of;
    char path[64];
    FILE *file;

    world_new(&world, 1 << 20);
    snprintf(path, sizeof(path), "%s/pub", world.folder);
    assert_int_equal(stat(path, &stat_of), 0);
    assert_int_equal(stat_of.st_mode & 07777, 0600);
    other = world;
    assert_int_equal(world_start(&other, 1 << 20, &why), ICMS_ADDRESS_IN_USE);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(stat(path, &stat_of), 0); /* it is that of the first one still */
    events_stop(&world.events);

    file = fopen(path, "w");
    assert_non_null(file);
    fclose(file);
    assert_int_equal(world_start(&world, 1 << 20, &why), ICMS_EXISTS);
    assert_int_equal(stat(path, &stat_of), 0);
    assert_true(S_ISREG(stat_of.st_mode));
    unlink(path);
    snprintf(world.pub, sizeof(world.pub), "tcp://127.0.0.1:1");
    snprintf(world.replay, sizeof(world.replay), "ipc://%s", path);
    if (geteuid() != 0) /* root may listen there */
        assert_int_not_equal(world_start(&world, 1 << 20, &why), ICMS_OK);
    snprintf(world.pub, sizeof(world.pub),
             "tcp://192.0.2.1:5557"); /* not an address of this machine */
    assert_int_equal(world_start(&world, 1 << 20, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "tcp://192.0.2.1:5557"));
    world_end(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_share_a_map),
        cmocka_unit_test(a_full_batch_says_so),
        cmocka_unit_test(a_window_keeps_the_last),
        cmocka_unit_test(a_subscriber_hears_everything_in_order),
        cmocka_unit_test(a_replay_has_what_is_kept),
        cmocka_unit_test(what_was_lost_leaves_a_number_out),
        cmocka_unit_test(who_does_not_read_holds_nobody_up),
        cmocka_unit_test(garbage_is_refused),
        cmocka_unit_test(ten_thousand_requests_are_bounded),
        cmocka_unit_test(connections_are_bounded),
        cmocka_unit_test(a_connection_behind_too_many_is_ended),
        cmocka_unit_test(a_long_topic_can_be_subscribed),
        cmocka_unit_test(subscriptions_are_bounded),
        cmocka_unit_test(ends_of_what_nobody_has_give_nothing_back),
        cmocka_unit_test(subscriptions_that_ended_do_not_count),
        cmocka_unit_test(an_endpoint_that_cannot_be_bound_is_told),
        cmocka_unit_test(sockets_are_where_nobody_else_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
