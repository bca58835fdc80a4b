/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_device.c: the GPU of fake_device.h. Called by tests and by what they test, on any
 * thread; one lock for all. Its own thread runs what streams have, one thing at a time.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/fake_int.h"

#define CONTEXTS 64
#define DEVICES  2
#define STREAMS  256
#define EVENTS   8192
#define PINS     256
#define STACK    16

struct event {
    struct context *context;
    bool used;
    uint64_t recorded, happened;
};

enum action {
    ACTION_COPY_IN,
    ACTION_COPY_OUT,
    ACTION_COPY_BETWEEN,
    ACTION_RECORD,
    ACTION_WAIT,
    ACTION_WRITE
};

struct step {
    struct step *next;
    enum action action;
    uint64_t device, from; /* from: on the device */
    uint8_t *host;
    size_t bytes;
    int byte;
    struct event *event;
    uint64_t recorded; /* of the event, that is meant */
};

struct stream {
    struct context *context;
    bool used, held, running, captures;
    struct step *first, *last;
};

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct context contexts[CONTEXTS]; /* the first ones are the primary ones */
static struct stream streams[STREAMS];
static struct event events[EVENTS];
static struct {
    const uint8_t *memory;
    size_t bytes;
    struct context *context;
} pins[PINS];
static int settings[FAKE_DEVICE_SETS], counts[FAKE_DEVICE_COUNTS];
static pid_t owner; /* process that started the driver */
static bool engine_started;
static unsigned seed = 1;

static __thread struct context *stack[STACK];
static __thread int depth;
static __thread int capture_mode; /* 0: what it calls breaks captures of other threads; 2: not */

int fake_setting(int what)
{
    int value;

    (void)pthread_mutex_lock(&fake_lock);
    value = settings[what];
    (void)pthread_mutex_unlock(&fake_lock);
    return value;
}

/* ---- what exists (lock) ---------------------------------------------------------------------- */

static bool pin_has(const uint8_t *memory, size_t bytes)
{
    for (int i = 0; i < PINS; i++)
        if (pins[i].bytes != 0 && memory >= pins[i].memory &&
            memory + bytes <= pins[i].memory + pins[i].bytes)
            return true;
    return false;
}

/* What is wrong with a context; 0: nothing. */
static int context_wrong(const struct context *context)
{
    if (owner != getpid())
        return FAKE_NOT_INITIALIZED;
    if (context == NULL || context < contexts || context >= contexts + CONTEXTS)
        return FAKE_BAD_CONTEXT;
    if (!context->used || context->destroyed)
        return settings[FAKE_DEVICE_GONE] != 0 ? settings[FAKE_DEVICE_GONE] : FAKE_DESTROYED;
    return context->error;
}

/* What a call does to captures; 0: nothing. stream: that it puts something on; NULL. Lock. */
static int capture_wrong(const struct stream *stream)
{
    if (stream != NULL && stream->captures) {
        counts[FAKE_DEVICE_BROKEN]++;
        return FAKE_UNCAPTURED;
    }
    if (settings[FAKE_DEVICE_CAPTURE] == 0 || capture_mode == 2)
        return FAKE_OK;
    counts[FAKE_DEVICE_BROKEN]++;
    return FAKE_UNCAPTURED;
}

/* A stream as callers name it; 1 is the one that every context has. */
static struct stream *stream_of(void *handle)
{
    if (handle == (void *)1 || handle == NULL)
        for (int i = 0; i < STREAMS; i++)
            if (depth > 0 && streams[i].context == stack[depth - 1])
                return &streams[i]; /* good enough: any of the context */
    for (int i = 0; i < STREAMS; i++)
        if (handle == &streams[i] && streams[i].used)
            return &streams[i];
    return NULL;
}

static void stream_clear(struct stream *stream)
{
    while (stream->first != NULL) {
        struct step *step = stream->first;

        stream->first = step->next;
        free(step);
    }
    stream->last = NULL;
}

/* ---- the engine --------------------------------------------------------------------------------
 */

static bool step_is_ready(const struct step *step)
{
    return step->action != ACTION_WAIT || !step->event->used ||
           step->event->happened >= step->recorded;
}

/* Copies or writes, an allocation at a time. Lock. */
static void step_move(const struct step *step)
{
    size_t bytes;

    for (size_t at = 0; at < step->bytes; at += bytes) {
        uint8_t *device = fake_part(step->device + at, (bytes = step->bytes - at, &bytes));
        const uint8_t *from =
            step->action == ACTION_COPY_BETWEEN ? fake_part(step->from + at, &bytes) : NULL;

        if (step->action == ACTION_COPY_IN)
            memcpy(device, step->host + at, bytes);
        else if (step->action == ACTION_COPY_OUT)
            memcpy(step->host + at, device, bytes);
        else if (from != NULL)
            memcpy(device, from, bytes);
        else
            memset(device, step->byte, bytes);
    }
}

static void step_run(const struct stream *stream, const struct step *step)
{
    if (step->action == ACTION_RECORD) {
        if (step->event->used && step->recorded > step->event->happened)
            step->event->happened = step->recorded;
        return;
    }
    if (step->action == ACTION_WAIT)
        return;
    counts[FAKE_DEVICE_COPIES] += step->action != ACTION_WRITE;
    if (!fake_has(step->device, step->bytes)) {
        counts[FAKE_DEVICE_BAD]++;
        stream->context->error = FAKE_ILLEGAL;
        return;
    }
    /* Between two places; what lies at the first one is gone, or was never there. */
    if (step->action == ACTION_COPY_BETWEEN && !fake_has(step->from, step->bytes))
        counts[FAKE_DEVICE_BAD]++;
    else
        step_move(step);
}

/* A stream that can go on, at random; NULL: none. */
static struct stream *engine_pick(void)
{
    struct stream *found = NULL;
    unsigned among = 0;

    for (int i = 0; i < STREAMS && settings[FAKE_DEVICE_STUCK] == 0; i++) {
        struct stream *stream = &streams[i];

        if (!stream->used || stream->held || stream->first == NULL || stream->context->error != 0 ||
            !step_is_ready(stream->first))
            continue;
        seed = seed * 1103515245u + 12345u;
        if ((seed >> 16) % ++among == 0)
            found = stream;
    }
    return found;
}

static void *engine_run(void *arg)
{
    (void)pthread_mutex_lock(&fake_lock);
    for (;;) {
        struct stream *stream = engine_pick();
        struct step *step;

        if (stream == NULL) {
            (void)pthread_cond_wait(&changed, &fake_lock);
            continue;
        }
        if (settings[FAKE_DEVICE_DELAY_US] != 0) {
            int delay = settings[FAKE_DEVICE_DELAY_US];

            (void)pthread_mutex_unlock(&fake_lock);
            (void)usleep((useconds_t)delay);
            (void)pthread_mutex_lock(&fake_lock);
            if (!stream->used || stream->held || stream->first == NULL ||
                settings[FAKE_DEVICE_STUCK] != 0)
                continue;
        }
        step = stream->first;
        step_run(stream, step);
        stream->first = step->next;
        if (stream->first == NULL)
            stream->last = NULL;
        free(step);
        (void)pthread_cond_broadcast(&changed); /* see fake_sync() */
    }
    return arg;
}

/* Puts a step behind what the stream has. Lock. */
static int stream_push(struct stream *stream, const struct step *what)
{
    struct step *step = malloc(sizeof(*step));
    pthread_t thread;

    if (step == NULL)
        return FAKE_NO_MEMORY;
    *step = *what;
    step->next = NULL;
    if (stream->last != NULL)
        stream->last->next = step;
    else
        stream->first = step;
    stream->last = step;
    if (!engine_started) {
        engine_started = true;
        if (pthread_create(&thread, NULL, engine_run, NULL) != 0)
            abort();
        (void)pthread_detach(thread);
    }
    (void)pthread_cond_broadcast(&changed);
    return FAKE_OK;
}

/* ---- the driver --------------------------------------------------------------------------------
 */

int fake_init(void)
{
    int code;

    (void)pthread_mutex_lock(&fake_lock);
    code = settings[FAKE_DEVICE_INIT];
    if (code == 0 && owner != 0 && owner != getpid())
        code = FAKE_NOT_INITIALIZED;
    if (code == 0) {
        owner = getpid();
        for (int i = 0; i < DEVICES; i++) {
            contexts[i].ordinal = i;
            contexts[i].used = true;
        }
    }
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

int fake_start_wrong(void)
{
    return owner == getpid() ? FAKE_OK : FAKE_NOT_INITIALIZED;
}

struct context *fake_here(void)
{
    return depth == 0 ? NULL : stack[depth - 1];
}

/* The engine has the primary contexts, or only who retained them. Lock. */
static bool context_is_active(const struct context *context)
{
    return context->retained > 0 || settings[FAKE_DEVICE_INACTIVE] == 0;
}

int fake_is_active(int ordinal, int *active)
{
    if (ordinal < 0 || ordinal >= DEVICES)
        return FAKE_NO_DEVICE;
    (void)pthread_mutex_lock(&fake_lock);
    *active = context_is_active(&contexts[ordinal]);
    (void)pthread_mutex_unlock(&fake_lock);
    return FAKE_OK;
}

int fake_retain(void **context, int ordinal)
{
    if (ordinal < 0 || ordinal >= DEVICES)
        return FAKE_NO_DEVICE;
    (void)pthread_mutex_lock(&fake_lock);
    counts[FAKE_DEVICE_MADE] += !context_is_active(&contexts[ordinal]);
    contexts[ordinal].retained++;
    counts[FAKE_DEVICE_RETAINED]++;
    *context = &contexts[ordinal];
    (void)pthread_mutex_unlock(&fake_lock);
    return FAKE_OK;
}

int fake_release(int ordinal)
{
    (void)pthread_mutex_lock(&fake_lock);
    contexts[ordinal].retained--;
    counts[FAKE_DEVICE_RETAINED]--;
    (void)pthread_mutex_unlock(&fake_lock);
    return FAKE_OK;
}

int fake_push(void *context)
{
    int code;

    (void)pthread_mutex_lock(&fake_lock);
    code = context_wrong(context);
    (void)pthread_mutex_unlock(&fake_lock);
    if (code == FAKE_OK && depth == STACK)
        code = FAKE_INVALID;
    if (code == FAKE_OK)
        stack[depth++] = context;
    return code;
}

int fake_pop(void **context)
{
    if (depth == 0)
        return FAKE_BAD_CONTEXT;
    *context = stack[--depth];
    return FAKE_OK;
}

int fake_ordinal(void)
{
    return depth == 0 ? 0 : stack[depth - 1]->ordinal;
}

/* What is wrong with the thread's context. Lock. */
static int here_wrong(void)
{
    return depth == 0 ? FAKE_BAD_CONTEXT : context_wrong(stack[depth - 1]);
}

/* Whether the CPU may write to all of a range, which lies in one mapping or in several. */
static bool memory_is_writable(const void *memory, size_t bytes)
{
    uint64_t at = (uint64_t)(uintptr_t)memory, end = at + bytes;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], write;

    while (maps != NULL && at < end && fgets(line, sizeof(line), maps) != NULL) {
        unsigned long from = 0, to = 0;

        if (sscanf(line, "%lx-%lx %*c%c", &from, &to, &write) == 3 && at >= from && at < to &&
            write == 'w')
            at = to;
    }
    if (maps != NULL)
        (void)fclose(maps);
    return at >= end;
}

int fake_pin(void *memory, size_t bytes, bool read_only)
{
    bool writable = read_only || memory_is_writable(memory, bytes);
    int code, limit;

    (void)pthread_mutex_lock(&fake_lock);
    while (read_only && settings[FAKE_DEVICE_PIN_HANG] != 0)
        (void)pthread_cond_wait(&changed, &fake_lock);
    code = here_wrong();
    if (code == FAKE_OK)
        code = capture_wrong(NULL);
    if (code == FAKE_OK && !writable)
        code = FAKE_INVALID;
    if (code == FAKE_OK && read_only)
        code = settings[FAKE_DEVICE_PIN_READ];
    if (code == FAKE_OK && pin_has(memory, 1)) /* for all contexts, whoever pinned it */
        code = FAKE_ALREADY_PINNED;
    limit = settings[FAKE_DEVICE_PIN_MAX];
    if (code == FAKE_OK && limit != 0 && bytes > (size_t)limit)
        code = FAKE_NO_MEMORY;
    for (int i = 0; i < PINS && code == FAKE_OK; i++)
        if (pins[i].bytes == 0) {
            pins[i].memory = memory;
            pins[i].bytes = bytes;
            pins[i].context = stack[depth - 1];
            counts[FAKE_DEVICE_PINS]++;
            break;
        }
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

static bool streams_are_idle(void)
{
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].used && streams[i].first != NULL)
            return false;
    return true;
}

void fake_sync(void)
{
    (void)pthread_mutex_lock(&fake_lock);
    while (settings[FAKE_DEVICE_SYNC] != 0 && !streams_are_idle())
        (void)pthread_cond_wait(&changed, &fake_lock);
    (void)pthread_mutex_unlock(&fake_lock);
}

int fake_unpin(const void *memory)
{
    int code = FAKE_INVALID;

    fake_sync();
    (void)pthread_mutex_lock(&fake_lock);
    if (settings[FAKE_DEVICE_UNPIN] != 0)
        code = settings[FAKE_DEVICE_UNPIN];
    for (int i = 0; i < PINS && code == FAKE_INVALID; i++)
        if (pins[i].bytes != 0 && pins[i].memory == memory) {
            pins[i].bytes = 0;
            counts[FAKE_DEVICE_PINS]--;
            code = FAKE_OK;
        }
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

static void *stream_make(struct context *context)
{
    static unsigned next; /* a handle of a context that is gone is nobody else's at once */

    for (int i = 0; i < STREAMS; i++) {
        struct stream *stream = &streams[next++ % STREAMS];

        if (stream->used)
            continue;
        *stream = (struct stream){.context = context, .used = true};
        counts[FAKE_DEVICE_STREAMS]++;
        return stream;
    }
    return NULL;
}

int fake_stream_new(void **stream)
{
    int code;

    (void)pthread_mutex_lock(&fake_lock);
    code = here_wrong();
    if (code == FAKE_OK)
        code = settings[FAKE_DEVICE_STREAM];
    if (code == FAKE_OK) {
        *stream = stream_make(stack[depth - 1]);
        code = *stream == NULL ? FAKE_NO_MEMORY : FAKE_OK;
    }
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

int fake_stream_free(void *stream)
{
    struct stream *s;

    (void)pthread_mutex_lock(&fake_lock);
    s = stream_of(stream);
    if (s != NULL) {
        stream_clear(s);
        s->used = false;
        s->context = NULL;
        counts[FAKE_DEVICE_STREAMS]--;
    }
    (void)pthread_mutex_unlock(&fake_lock);
    return s == NULL ? FAKE_BAD_HANDLE : FAKE_OK;
}

int fake_stream_captures(void *stream, int *status)
{
    const struct stream *s;

    (void)pthread_mutex_lock(&fake_lock);
    s = stream_of(stream);
    *status = s != NULL && s->captures;
    (void)pthread_mutex_unlock(&fake_lock);
    return s == NULL ? FAKE_BAD_HANDLE : FAKE_OK;
}

int fake_capture_mode(int *mode)
{
    int before = capture_mode;

    capture_mode = *mode;
    *mode = before;
    return FAKE_OK;
}

int fake_event_new(void **event)
{
    static unsigned next; /* as in stream_make */
    int code;

    (void)pthread_mutex_lock(&fake_lock);
    code = here_wrong();
    if (code == FAKE_OK) {
        code = FAKE_NO_MEMORY;
        for (int i = 0; i < EVENTS && code != FAKE_OK; i++) {
            struct event *e = &events[next++ % EVENTS];

            if (e->used)
                continue;
            *e = (struct event){.context = stack[depth - 1], .used = true};
            counts[FAKE_DEVICE_EVENTS]++;
            *event = e;
            code = FAKE_OK;
        }
    }
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

static struct event *event_of(void *handle)
{
    struct event *event = handle;

    return event >= events && event < events + EVENTS && event->used ? event : NULL;
}

int fake_event_free(void *event)
{
    struct event *e;

    (void)pthread_mutex_lock(&fake_lock);
    e = event_of(event);
    if (e != NULL) {
        e->used = false;
        counts[FAKE_DEVICE_EVENTS]--;
    }
    (void)pthread_mutex_unlock(&fake_lock);
    return e == NULL ? FAKE_BAD_HANDLE : FAKE_OK;
}

int fake_event_record(void *event, void *stream)
{
    struct stream *s;
    struct event *e;
    int code;

    (void)pthread_mutex_lock(&fake_lock);
    s = stream_of(stream);
    e = event_of(event);
    code = settings[FAKE_DEVICE_RECORD];
    if (code == FAKE_OK)
        code = capture_wrong(s);
    if (code == FAKE_OK)
        code = s == NULL || e == NULL ? FAKE_BAD_HANDLE : context_wrong(s->context);
    if (code == FAKE_OK && s->context != e->context)
        code = FAKE_BAD_HANDLE;
    if (code == FAKE_OK) {
        e->recorded++;
        code = stream_push(
            s, &(struct step){.action = ACTION_RECORD, .event = e, .recorded = e->recorded});
    }
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

int fake_event_query(void *event)
{
    const struct event *e;
    int code;

    (void)pthread_mutex_lock(&fake_lock);
    counts[FAKE_DEVICE_QUERIES]++;
    e = event_of(event);
    code = e == NULL ? FAKE_BAD_HANDLE : context_wrong(e->context);
    if (code == FAKE_OK)
        code = settings[FAKE_DEVICE_QUERY];
    if (code == FAKE_OK)
        code = capture_wrong(NULL);
    if (code == FAKE_OK && e->happened < e->recorded)
        code = FAKE_NOT_READY;
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

int fake_stream_wait(void *stream, void *event)
{
    struct stream *s;
    struct event *e;
    int code;

    (void)pthread_mutex_lock(&fake_lock);
    s = stream_of(stream);
    e = event_of(event);
    code = s == NULL || e == NULL ? FAKE_BAD_HANDLE : context_wrong(s->context);
    if (code == FAKE_OK)
        code = capture_wrong(s);
    if (code == FAKE_OK)
        code = stream_push(
            s, &(struct step){.action = ACTION_WAIT, .event = e, .recorded = e->recorded});
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

int fake_copy_between(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    struct stream *s;
    int code;

    (void)pthread_mutex_lock(&fake_lock);
    s = stream_of(stream);
    code = settings[FAKE_DEVICE_COPY];
    if (code == FAKE_OK)
        code = capture_wrong(s);
    if (code == FAKE_OK)
        code = s == NULL ? FAKE_BAD_HANDLE : context_wrong(s->context);
    if (code == FAKE_OK && (!fake_has(to, bytes) || !fake_has(from, bytes)))
        code = FAKE_INVALID;
    if (code == FAKE_OK)
        code = stream_push(
            s, &(struct step){
                   .action = ACTION_COPY_BETWEEN, .device = to, .from = from, .bytes = bytes});
    counts[FAKE_DEVICE_BETWEEN] += code == FAKE_OK;
    counts[FAKE_DEVICE_ASKED] += code == FAKE_OK;
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

int fake_copy(uint64_t device, void *host, size_t bytes, void *stream, bool to_device)
{
    struct stream *s;
    int code = FAKE_OK;

    if (to_device)
        (void)usleep((useconds_t)fake_setting(FAKE_DEVICE_IN_DELAY_US));
    (void)pthread_mutex_lock(&fake_lock);
    while (settings[FAKE_DEVICE_HANG] != 0)
        (void)pthread_cond_wait(&changed, &fake_lock);
    s = stream_of(stream);
    if (settings[FAKE_DEVICE_COPY_AFTER] > 1)
        settings[FAKE_DEVICE_COPY_AFTER]--;
    else
        code = settings[FAKE_DEVICE_COPY];
    if (code == FAKE_OK)
        code = capture_wrong(s);
    if (code == FAKE_OK)
        code = s == NULL ? FAKE_BAD_HANDLE : context_wrong(s->context);
    if (code == FAKE_OK && !pin_has(host, bytes)) {
        counts[FAKE_DEVICE_UNPINNED]++;
        code = FAKE_INVALID;
    }
    if (code == FAKE_OK && !fake_has(device, bytes))
        code = FAKE_INVALID;
    if (code == FAKE_OK)
        code = stream_push(s, &(struct step){.action = to_device ? ACTION_COPY_IN : ACTION_COPY_OUT,
                                             .device = device,
                                             .host = host,
                                             .bytes = bytes});
    counts[FAKE_DEVICE_ASKED] += code == FAKE_OK;
    (void)pthread_mutex_unlock(&fake_lock);
    return code;
}

/* ---- what tests do ------------------------------------------------------------------------------
 */

static void table_set(int what, int value)
{
    (void)pthread_mutex_lock(&fake_lock);
    settings[what] = value;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&fake_lock);
}

static int table_count(int what)
{
    int value;

    (void)pthread_mutex_lock(&fake_lock);
    value = counts[what];
    (void)pthread_mutex_unlock(&fake_lock);
    return value;
}

static void table_add(int what, int count)
{
    (void)pthread_mutex_lock(&fake_lock);
    counts[what] += count;
    (void)pthread_mutex_unlock(&fake_lock);
}

static void *table_context(int ordinal)
{
    (void)!fake_init();
    return &contexts[ordinal];
}

static void *table_context_new(int ordinal)
{
    void *found = NULL;

    (void)!fake_init();
    (void)pthread_mutex_lock(&fake_lock);
    for (int i = DEVICES; i < CONTEXTS && found == NULL; i++)
        if (!contexts[i].used) {
            contexts[i] = (struct context){.ordinal = ordinal, .used = true};
            found = &contexts[i];
        }
    (void)pthread_mutex_unlock(&fake_lock);
    return found;
}

static void table_context_destroy(void *context)
{
    (void)pthread_mutex_lock(&fake_lock);
    ((struct context *)context)->destroyed = true;
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].used && streams[i].context == context) {
            stream_clear(&streams[i]);
            streams[i].used = false;
            counts[FAKE_DEVICE_STREAMS]--;
        }
    for (int i = 0; i < EVENTS; i++)
        if (events[i].used && events[i].context == context) {
            events[i].used = false;
            counts[FAKE_DEVICE_EVENTS]--;
        }
    for (int i = 0; i < PINS; i++)
        if (pins[i].bytes != 0 && pins[i].context == context) {
            pins[i].bytes = 0;
            counts[FAKE_DEVICE_PINS]--;
        }
    (void)pthread_mutex_unlock(&fake_lock);
}

static void table_reset(void)
{
    (void)pthread_mutex_lock(&fake_lock);
    memset(settings, 0, sizeof(settings));
    for (int i = 0; i < DEVICES; i++)
        contexts[i].error = 0;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&fake_lock);
    fake_memory_reset();
}

static void *table_stream_new(void *context)
{
    void *stream;

    (void)pthread_mutex_lock(&fake_lock);
    stream = stream_make(context);
    (void)pthread_mutex_unlock(&fake_lock);
    return stream;
}

static void table_stream_free(void *stream)
{
    (void)fake_stream_free(stream);
}

static void table_stream_capture(void *stream, bool capture)
{
    (void)pthread_mutex_lock(&fake_lock);
    ((struct stream *)stream)->captures = capture;
    (void)pthread_mutex_unlock(&fake_lock);
}

static void table_stream_hold(void *stream, bool hold)
{
    (void)pthread_mutex_lock(&fake_lock);
    ((struct stream *)stream)->held = hold;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&fake_lock);
}

static void table_stream_write(void *stream, uint64_t address, int byte, size_t bytes)
{
    (void)pthread_mutex_lock(&fake_lock);
    (void)stream_push(
        stream,
        &(struct step){.action = ACTION_WRITE, .device = address, .byte = byte, .bytes = bytes});
    (void)pthread_mutex_unlock(&fake_lock);
}

static bool table_stream_idle(void *stream)
{
    bool idle;

    (void)pthread_mutex_lock(&fake_lock);
    idle = ((struct stream *)stream)->first == NULL;
    (void)pthread_mutex_unlock(&fake_lock);
    return idle;
}

static void table_unpin_all(void)
{
    (void)pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < PINS; i++) {
        counts[FAKE_DEVICE_PINS] -= pins[i].bytes != 0;
        pins[i].bytes = 0;
    }
    (void)pthread_mutex_unlock(&fake_lock);
}

static bool table_is_inside(void)
{
    return depth != 0;
}

const struct fake_device *fake_device_table(void)
{
    static const struct fake_device table = {
        .reset = table_reset,
        .set = table_set,
        .count = table_count,
        .context = table_context,
        .context_new = table_context_new,
        .context_destroy = table_context_destroy,
        .alloc = fake_memory_new,
        .alloc_free = fake_memory_free,
        .alloc_pool = fake_memory_pool,
        .alloc_at = fake_memory_at,
        .pinned = fake_memory_pinned,
        .write = fake_memory_write,
        .read = fake_memory_read,
        .stream_new = table_stream_new,
        .stream_free = table_stream_free,
        .stream_capture = table_stream_capture,
        .stream_hold = table_stream_hold,
        .stream_write = table_stream_write,
        .stream_idle = table_stream_idle,
        .unpin_all = table_unpin_all,
        .get = fake_setting,
        .add = table_add,
        .write_if = fake_memory_write_if,
        .reserve = fake_memory_reserve,
        .map = fake_memory_map,
        .is_inside = table_is_inside,
    };

    return &table;
}
