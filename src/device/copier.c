/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/copier.c: the thread that copies to and from one context of a device.
 *
 * copier_run() takes copies off the queue in the order in which they were started, gives each to
 * the driver on the stream of its direction with an event behind it (copier_order), and asks for
 * the oldest event of each stream until it has happened (copier_reap). A driver has no descriptor
 * to wait for: small copies have ended after some microseconds, for which the thread stays awake;
 * then it sleeps a little between two looks (copier_rest).
 *
 * QUEUED -> ORDERED -> HELD (over, its owner's), or ORDERED -> LOST -> FREE. When the driver fails
 * to say whether a copy has ended, the copier has failed: no copy starts, and the owners of those
 * that the driver has see them as over and failed. They stay ORDERED or LOST, and counted, until
 * their own events happen or the context is known to be destroyed: until then the device may use
 * their memory. A copy without an event gets one as soon as the driver records one behind it.
 *
 * The pinned memory is our own mapping that the driver pins, never memory of the driver: a context
 * that is destroyed takes its memory along. It is not inherited by fork(), so that no page of it is
 * copied on a write, and not dumped.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/check.h"
#include "device/copier_int.h"

/* How long the thread looks at events without sleeping, once copies were given to the driver and
 * until it has none any more: as long as a few small copies take. */
#define AWAKE_NS ((uint64_t)50 * 1000)
/* How long it sleeps between two looks then: an eighth of the copy's age, within these. */
#define LOOK_NS_MIN ((uint64_t)5 * 1000)
#define LOOK_NS_MAX ((uint64_t)1000 * 1000)
/* The same once the driver has failed. */
#define LOOK_NS_FAILED ((uint64_t)10 * 1000 * 1000)

/* No code of a driver: an address is not what it was when it was registered. */
#define DEVICE_GONE (-1)

static uint64_t copier_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void copier_sleep(struct device_copier *copier, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                             .tv_nsec = (long)(until_ns % 1000000000u)};

    (void)pthread_cond_timedwait(&copier->changed, &copier->lock, &until);
}

/* ---- states of a copy ------------------------------------------------------------------------ */

/* One holder less. Lock. */
static void mark_put(struct device_mark *mark)
{
    if (mark == NULL || --mark->holders != 0)
        return;
    (void)atomic_fetch_sub(mark->users, 1);
    mark->users = NULL;
}

/* The copy needs its mark no longer. Lock. */
static void copy_unmark(struct device_copy *copy)
{
    mark_put(copy->mark);
    copy->mark = NULL;
}

/* Any state -> FREE; nothing uses its memory. Lock. */
static void copy_free(struct device_copy *copy)
{
    struct device_copier *copier = copy->copier;

    list_remove(&copy->queue);
    copy_unmark(copy);
    copier_lane_part(copy);
    if (copy->pin == NULL) {
        copier_memory_give(copier, copy->memory, copy->bytes);
    } else {
        copy->let_go(copy->let_go_arg, copy->let_go_number);
        if (--copy->pin->copies == 0 && copy->pin->leaving)
            (void)pthread_cond_broadcast(&copier->changed);
        copy->pin = NULL;
    }
    for (uint32_t i = 0; i < copy->piece_count; i++)
        if (copy->pieces[i].users != NULL)
            (void)atomic_fetch_sub(copy->pieces[i].users, 1);
    copy->piece_count = 0;
    copy->state = COPY_FREE;
    if (copy->users != NULL)
        (void)atomic_fetch_sub(copy->users, 1);
    copy->users = NULL;
    list_push_front(&copier->free_, &copy->queue);
}

/* Its owner sees that it is over. */
static void copy_over(struct device_copy *copy, enum device_copy_over over)
{
    atomic_store_explicit(&copy->over, (int)over, memory_order_release);
}

/* ORDERED or LOST, and has ended. Lock. */
static void copy_ended(struct device_copy *copy)
{
    struct device_copier *copier = copy->copier;

    copier->busy--;
    copier->since_ns = copier_now_ns();
    if (copy->state == COPY_LOST) {
        copy_free(copy);
        return;
    }
    list_remove(&copy->queue);
    copy->state = COPY_HELD;
    if (device_copy_is_over(copy) == COPY_NOT_OVER)
        copy_over(copy, COPY_DONE);
}

/* The driver never had it. Lock. */
static void copy_refused(struct device_copy *copy)
{
    list_remove(&copy->queue);
    copy_unmark(copy);
    copy->state = COPY_HELD;
    copy_over(copy, COPY_FAILED);
}

struct device_copy *device_copy_take(struct device_copier *copier, uint64_t bytes,
                                     _Atomic uint32_t *users)
{
    struct device_copy *copy = NULL;
    struct list *at;
    uint8_t *memory = NULL;

    copier_lock(copier);
    at = list_first(&copier->free_);
    if (at != NULL && bytes <= copier->bytes && !copier->halted && !copier->failed)
        memory = copier_memory_take(copier, bytes);
    if (memory != NULL) {
        copy = container_of(at, struct device_copy, queue);
        list_remove(&copy->queue);
        list_init(&copy->link);
        copy->index = 0;
        copy->started = copy->followed = false;
        copy->mark = NULL;
        copy->pin = NULL;
        copy->lane = NULL;
        copy->memory = memory;
        copy->bytes = bytes;
        copy->state = COPY_HELD;
        copy->users = users;
        (void)atomic_fetch_add(users, 1);
        copy_over(copy, COPY_NOT_OVER);
    }
    copier_unlock(copier);
    return copy;
}

void device_copy_pieces(struct device_copy *copy, const struct device_piece *pieces, uint32_t count)
{
    check(!copy->started && copy->piece_count == 0 && count > 0 && count <= DEVICE_PIECES);
    memcpy(copy->pieces, pieces, count * sizeof(*pieces));
    copy->piece_count = count;
    for (uint32_t i = 0; i < count; i++)
        if (pieces[i].users != NULL)
            (void)atomic_fetch_add(pieces[i].users, 1);
}

void device_copy_fill(struct device_copy *copy)
{
    check(!copy->started);
    copier_lock(copy->copier);
    copier_lane_part(copy);
    copier_unlock(copy->copier);
}

void device_copy_start(struct device_copy *copy, const struct device_order *order)
{
    struct device_copier *copier = copy->copier;

    check(!copy->started && order->bytes <= copy->bytes); /* never with the lock held */
    check(copy->pin == NULL || order->direction == DEVICE_IN);
    copier_lock(copier);
    copy->started = true;
    copy->order = *order;
    if (!copier_lane_has(copy) || copy->pin != NULL)
        copier_lane_part(copy);
    if (copy->piece_count == 0) {
        copy->pieces[0] = (struct device_piece){
            .address = order->address, .bytes = order->bytes, .id = order->id};
        copy->piece_count = 1;
    }
    if (copier->halted || atomic_load(&copier->failed)) {
        copy_refused(copy);
    } else {
        copy->state = COPY_QUEUED;
        copy->mark = order->mark;
        if (copy->mark != NULL)
            copy->mark->holders++;
        list_push(&copier->queue, &copy->queue);
        (void)pthread_cond_broadcast(&copier->changed);
    }
    copier_unlock(copier);
}

void device_copy_give(struct device_copy *copy)
{
    struct device_copier *copier = copy->copier;

    copier_lock(copier);
    if (copy->state == COPY_ORDERED)
        copy->state = COPY_LOST;
    else
        copy_free(copy);
    copier_unlock(copier);
}

/* ---- the thread ------------------------------------------------------------------------------ */

void copier_call(struct device_copier *copier, const char *line)
{
    if (copier->closed)
        return;
    copier->calling++;
    copier_unlock(copier);
    if (line != NULL)
        copier->options.failed(copier->options.arg, line);
    else
        copier->options.landed(copier->options.arg);
    copier_lock(copier);
    copier->calling--;
    (void)pthread_cond_broadcast(&copier->changed);
}

/* Says once what the driver said. Lock; not held meanwhile. */
static void copier_say(struct device_copier *copier, const char *what, int code)
{
    const struct device_driver *driver = copier->options.driver;
    char text[DEVICE_TEXT_BYTES], line[DEVICE_TEXT_BYTES + 160];

    if (copier->refused)
        return;
    copier->refused = true;
    if (code == DEVICE_GONE)
        (void)snprintf(text, sizeof(text), "it was unregistered too late");
    else
        device_ops(driver)->text(driver, code, text, sizeof(text));
    (void)snprintf(line, sizeof(line),
                   "device memory: cannot %s on %s device %d: %s; register the memory again, of a "
                   "context that is alive",
                   what, device_ops(driver)->name, copier->options.place.ordinal, text);
    copier_call(copier, line);
}

/* The driver does not say what has ended: no copy starts, and none that it has is believed. Lock.
 */
static void copier_fail(struct device_copier *copier)
{
    struct list *at;

    atomic_store(&copier->failed, true);
    for (int d = 0; d < 2; d++)
        list_for_each (ordered, &copier->ordered[d]) {
            struct device_copy *copy = container_of(ordered, struct device_copy, queue);

            if (device_copy_is_over(copy) == COPY_NOT_OVER)
                copy_over(copy, COPY_FAILED);
        }
    while ((at = list_first(&copier->queue)) != NULL)
        copy_refused(container_of(at, struct device_copy, queue));
}

/* How far a copy came with the driver. */
enum copier_reach {
    REACH_NOTHING, /* the driver does not have it                    */
    REACH_COPIED,  /* it runs, and has no event yet                  */
    REACH_ALL,     /* it runs, and its event happens when it ends    */
    REACH_STREAM,  /* the same, and the caller's stream waits for it */
};

/* Its owner gave it back meanwhile: the stream that the call named may be gone. No lock. */
static bool copy_is_lost(struct device_copier *copier, const struct device_copy *copy)
{
    bool lost;

    copier_lock(copier);
    lost = copy->state == COPY_LOST;
    copier_unlock(copier);
    return lost;
}

/* Whether an address is still what was registered. */
static bool copier_has(const struct device_copier *copier, uint64_t address, uint64_t id)
{
    const struct device_driver *driver = copier->options.driver;
    struct device_pointer pointer;

    return device_ops(driver)->identify(driver, address, &pointer) && pointer.on_device &&
           pointer.ordinal == copier->options.place.ordinal && (id == 0 || pointer.id == id);
}

/* Whether device memory is still what was registered. Pieces of one range that has an id lie in one
 * allocation, which is asked for once; a piece without an id may lie in several, of which the first
 * and the last one are asked for. */
static bool copier_pieces_are_there(const struct device_copier *copier,
                                    const struct device_copy *copy)
{
    for (uint32_t i = 0; i < copy->piece_count; i++) {
        const struct device_piece *piece = &copy->pieces[i];

        if (i > 0 && piece->id != 0 && piece->id == piece[-1].id && piece->users == piece[-1].users)
            continue;
        if (!copier_has(copier, piece->address, piece->id) ||
            (piece->id == 0 && !copier_has(copier, piece->address + piece->bytes - 1, 0)))
            return false;
    }
    return true;
}

/* Gives the copy of each piece to the driver. 0, or its code; *out_some: the driver has some. */
static int copier_pieces_copy(const struct device_copier *copier, const struct device_copy *copy,
                              void *stream, bool *out_some)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);
    uint64_t at = 0, bytes;
    int code = 0;

    for (uint32_t i = 0; i < copy->piece_count && at < copy->order.bytes; i++, at += bytes) {
        const struct device_piece *piece = &copy->pieces[i];

        bytes = piece->bytes < copy->order.bytes - at ? piece->bytes : copy->order.bytes - at;
        if (copy->lane != NULL)
            code = ops->copy_between(driver, piece->address, copier_lane_address(copy) + at, bytes,
                                     stream);
        else if (copy->order.direction == DEVICE_IN)
            code = ops->copy_in(driver, piece->address, copy->memory + at, bytes, stream);
        else
            code = ops->copy_out(driver, copy->memory + at, piece->address, bytes, stream);
        if (code != 0)
            return code;
        *out_some = true;
    }
    return code;
}

/* What the driver is asked for one copy. No lock. 0, or its code and *out_what. */
static int copier_drive(struct device_copier *copier, const struct device_copy *copy,
                        const char **out_what, enum copier_reach *out_reach)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);
    const struct device_order *order = &copy->order;
    void *stream = copier->streams[order->direction];
    bool some = false;
    int code, event_code;

    *out_reach = REACH_NOTHING;
    *out_what = "use memory that was freed";
    if (!copier_pieces_are_there(copier, copy))
        return DEVICE_GONE;
    *out_what = "wait for the caller's stream";
    code = copy->mark == NULL ? 0 : ops->stream_wait(driver, stream, copy->mark->event);
    if (code != 0)
        return code;
    *out_what = "copy";
    code = copier_pieces_copy(copier, copy, stream, &some);
    if (code != 0 && !some)
        return code;
    *out_reach = REACH_COPIED;
    event_code = ops->event_record(driver, copy->event, stream);
    if (event_code == 0)
        *out_reach = REACH_ALL;
    if (code != 0) /* some pieces are copied: it has failed, and its memory is in use */
        return device_is_capture(code) ? DEVICE_NOT_SUPPORTED : code;
    *out_what = "follow a copy";
    if (event_code != 0)
        return event_code;
    *out_what = "let the caller's stream wait";
    /* Without the wait it is over when it has ended. */
    if (order->stream == NULL || copy_is_lost(copier, copy) ||
        ops->stream_captures(driver, order->stream))
        return 0;
    code = ops->stream_wait(driver, order->stream, copy->event);
    if (code == 0)
        *out_reach = REACH_STREAM;
    return device_is_capture(code) ? 0 : code;
}

/* QUEUED -> ORDERED. Lock; not held while the driver is asked. True: it is over already. */
static bool copier_order(struct device_copier *copier, struct device_copy *copy)
{
    enum copier_reach reach;
    const char *what;
    int code;

    list_remove(&copy->queue);
    list_push(&copier->ordered[copy->order.direction], &copy->queue);
    copy->state = COPY_ORDERED;
    if (copier->busy++ == 0)
        copier->since_ns = copier_now_ns();
    copier_unlock(copier);
    code = copier_drive(copier, copy, &what, &reach);
    copier_lock(copier);
    copy_unmark(copy);
    copy->followed = reach >= REACH_ALL;
    if (reach == REACH_COPIED && device_is_capture(code))
        code = 0; /* its event is recorded later */
    if (code == 0) {
        if (reach == REACH_STREAM)
            copy_over(copy, COPY_DONE);
        return reach == REACH_STREAM;
    }
    if (reach == REACH_ALL) {
        copy_over(copy, COPY_FAILED); /* its memory is free when its event happens */
    } else if (reach == REACH_COPIED) {
        copier_fail(copier);
    } else {
        copier->busy--;
        if (copy->state == COPY_LOST)
            copy_free(copy);
        else
            copy_refused(copy);
    }
    copier_say(copier, what, code);
    return true;
}

/* Asks for the event of a copy, which it gets first where it has none. No lock. */
static int copier_ask(const struct device_copier *copier, struct device_copy *copy)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);
    struct device_before before;
    int code = 0, entered;

    if (!copy->followed)
        code = ops->event_record(driver, copy->event, copier->streams[copy->order.direction]);
    if (code == 0) {
        copy->followed = true;
        code = ops->event_query(driver, copy->event);
    }
    if (device_is_capture(code))
        return DEVICE_NOT_READY;
    if (code == 0 || code == DEVICE_NOT_READY || code == DEVICE_DESTROYED)
        return code;
    /* A driver may not know an event of a context that is gone: that one is asked for itself. */
    entered = ops->enter(driver, &copier->options.place, &before);
    if (entered == 0)
        ops->leave(driver, &before);
    return device_is_gone(entered) ? DEVICE_DESTROYED : code;
}

/* Ends copies whose events have happened, and those of a context that is destroyed, which copies
 * nothing any more. Lock; not held while the driver is asked. True: some are over. */
static bool copier_reap(struct device_copier *copier)
{
    bool over = false;

    for (int d = 0; d < 2; d++)
        /* Only this thread puts copies into these lists and takes them out. */
        list_for_each_safe (at, &copier->ordered[d]) {
            struct device_copy *copy = container_of(at, struct device_copy, queue);
            int code;

            copier_unlock(copier);
            code = copier_ask(copier, copy);
            copier_lock(copier);
            if (code == DEVICE_NOT_READY)
                break;
            if (code != 0 && !copier->failed) {
                copier_fail(copier);
                copier_say(copier, "follow a copy", code);
                over = true;
            }
            if (code == 0 || code == DEVICE_DESTROYED) {
                copy_ended(copy);
                over = true;
            }
        }
    return over;
}

/* Until something is to be done. Lock. */
static void copier_rest(struct device_copier *copier)
{
    uint64_t now = copier_now_ns(), rest = (now - copier->since_ns) / 8;

    if (copier->busy == 0) {
        copier->awake_until_ns = 0;
        (void)pthread_cond_wait(&copier->changed, &copier->lock);
        return;
    }
    if (copier->awake_until_ns == 0)
        copier->awake_until_ns = now + AWAKE_NS;
    if (now < copier->awake_until_ns && !copier->failed)
        return;
    if (rest < LOOK_NS_MIN)
        rest = LOOK_NS_MIN;
    if (rest > LOOK_NS_MAX)
        rest = LOOK_NS_MAX;
    copier_sleep(copier, now + (copier->failed ? LOOK_NS_FAILED : rest));
}

void copier_sleep_exactly(void)
{
    (void)prctl(PR_SET_TIMERSLACK, 1ul); /* nanoseconds; the kernel adds 50 us where nobody says */
}

/* Gives back what the driver made. In the place. */
static void copier_unmake(struct device_copier *copier)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);

    for (uint32_t i = 0; i < DEVICE_COPIES; i++)
        if (copier->copies[i].event != NULL)
            ops->event_free(driver, copier->copies[i].event);
    for (uint32_t i = 0; i < DEVICE_MARKS; i++)
        if (copier->marks[i].event != NULL)
            ops->event_free(driver, copier->marks[i].event);
    for (int d = 0; d < 2; d++)
        if (copier->streams[d] != NULL)
            ops->stream_free(driver, copier->streams[d]);
    if (copier->memory != NULL)
        (void)ops->unpin(driver, copier->memory);
}

/* No thread is in the place. */
static void copier_rele(struct device_copier *copier)
{
    if (copier->is_held)
        device_ops(copier->options.driver)->rele(copier->options.driver, &copier->options.place);
    copier->is_held = false;
}

/* The driver gets back what it made, on this thread: a driver may wait for all that the engine has
 * on the device before it unpins or frees, and who frees the copier does not wait so long. Lock;
 * not held meanwhile. */
static void copier_end(struct device_copier *copier)
{
    const struct device_driver *driver = copier->options.driver;
    struct device_before before;
    bool let_go;
    int code;

    while (!copier->left && (copier->pinning || copier_cufile_is_busy(copier)))
        copier_sleep(copier, copier_now_ns() + LOOK_NS_FAILED);
    if (copier->left)
        return;
    copier_unlock(copier);
    code = device_ops(driver)->enter(driver, &copier->options.place, &before);
    copier_cufile_unmake(copier, code == 0);
    let_go = copier_pins_drop(copier, code);
    if (code == 0) {
        copier_unmake(copier);
        device_ops(driver)->leave(driver, &before);
    }
    copier_rele(copier);
    copier_lock(copier);
    copier->let_go = let_go;
}

static void *copier_run(void *arg)
{
    struct device_copier *copier = arg;
    const struct device_driver *driver = copier->options.driver;
    struct device_before before;
    int code = device_ops(driver)->enter(driver, &copier->options.place, &before);

    copier_sleep_exactly();
    copier_lock(copier);
    if (code != 0) {
        copier_fail(copier);
        copier_say(copier, "enter the context", code);
    }
    while (!copier->closed || copier->busy != 0) {
        struct list *at;
        bool over = false;

        while ((at = list_first(&copier->queue)) != NULL)
            over = copier_order(copier, container_of(at, struct device_copy, queue)) || over;
        over = copier_reap(copier) || over;
        over = copier_pins_leave(copier) || over;
        if (over) {
            copier_call(copier, NULL);
            (void)pthread_cond_broadcast(&copier->changed); /* who frees it looks at busy */
        }
        if (list_empty(&copier->queue) && copier_pin_leaving(copier) == NULL &&
            !(copier->closed && copier->busy == 0))
            copier_rest(copier);
    }
    copier_unlock(copier);
    if (code == 0)
        device_ops(driver)->leave(driver, &before);
    copier_lock(copier);
    copier_end(copier);
    copier->ended = true;
    (void)pthread_cond_broadcast(&copier->changed);
    copier_unlock(copier);
    return NULL;
}

/* ---- marks ----------------------------------------------------------------------------------- */

static struct device_mark *mark_find(struct device_copier *copier, _Atomic uint32_t *users)
{
    struct device_mark *found = NULL;

    copier_lock(copier);
    for (uint32_t i = 0; i < DEVICE_MARKS && found == NULL; i++)
        if (copier->marks[i].holders == 0)
            found = &copier->marks[i];
    if (found != NULL) {
        found->copier = copier;
        found->holders = 1;
        found->users = users;
        (void)atomic_fetch_add(users, 1);
    }
    copier_unlock(copier);
    return found;
}

bool device_mark_take(struct device_copier *copier, void *stream, _Atomic uint32_t *users,
                      struct device_mark **out_mark, int *out_code)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);
    struct device_mark *mark = mark_find(copier, users);
    struct device_before before;

    *out_code = 0;
    if (mark == NULL)
        return false;
    *out_code = ops->enter(driver, &copier->options.place, &before);
    if (*out_code == 0) {
        if (mark->event == NULL)
            *out_code = ops->event_new(driver, &mark->event);
        if (*out_code == 0 && ops->stream_captures(driver, stream))
            *out_code = DEVICE_CAPTURE_FIRST;
        if (*out_code == 0)
            *out_code = ops->event_record(driver, mark->event, stream);
        ops->leave(driver, &before);
    }
    if (*out_code != 0) {
        device_mark_give(mark);
        return false;
    }
    *out_mark = mark;
    return true;
}

void device_mark_give(struct device_mark *mark)
{
    struct device_copier *copier = mark->copier;

    copier_lock(copier);
    mark_put(mark);
    copier_unlock(copier);
}

/* ---- the life of a copier -------------------------------------------------------------------- */

bool device_copier_is_failed(const struct device_copier *copier)
{
    return atomic_load(&copier->failed);
}

uint64_t device_copier_bytes(const struct device_copier *copier)
{
    return copier->bytes;
}

/* Maps and pins as much as there is. In the place. */
static int copier_pin(struct device_copier *copier)
{
    const struct device_driver *driver = copier->options.driver;
    int code = 0;

    for (uint64_t bytes = DEVICE_PINNED_BYTES; bytes >= DEVICE_PINNED_BYTES_MIN; bytes /= 2) {
        void *memory =
            mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        if (memory == MAP_FAILED)
            continue;
        (void)madvise(memory, bytes, MADV_DONTFORK);
        (void)madvise(memory, bytes, MADV_DONTDUMP);
        code = device_ops(driver)->pin(driver, memory, bytes, false);
        if (code == 0) {
            copier->memory = memory;
            copier->bytes = bytes;
            return 0;
        }
        (void)munmap(memory, bytes);
    }
    return code;
}

/* Makes streams, events and pinned memory. In the place. */
static icms_err copier_make(struct device_copier *copier, struct err_why *why)
{
    const struct device_driver *driver = copier->options.driver;
    const struct device_ops *ops = device_ops(driver);
    char text[DEVICE_TEXT_BYTES];
    int code = 0;

    for (int d = 0; d < 2 && code == 0; d++)
        code = ops->stream_new(driver, &copier->streams[d]);
    for (uint32_t i = 0; i < DEVICE_COPIES && code == 0; i++)
        code = ops->event_new(driver, &copier->copies[i].event);
    if (code != 0) {
        ops->text(driver, code, text, sizeof(text));
        return err_set(why, ICMS_DEVICE,
                       "cannot use memory of %s device %d: %s; look at its driver", ops->name,
                       copier->options.place.ordinal, text);
    }
    code = copier_pin(copier);
    if (copier->memory != NULL)
        return ICMS_OK;
    ops->text(driver, code, text, sizeof(text));
    return err_set(why, ICMS_NO_MEMORY,
                   "cannot pin %llu MiB of host memory for %s device %d: %s; free memory, or raise "
                   "the limit of locked memory (ulimit -l)",
                   (unsigned long long)(DEVICE_PINNED_BYTES_MIN >> 20), ops->name,
                   copier->options.place.ordinal, text);
}

static void copier_delete(struct device_copier *copier)
{
    copier_rele(copier);
    if (copier->memory != NULL)
        (void)munmap(copier->memory, copier->bytes);
    (void)pthread_mutex_destroy(&copier->lock);
    (void)pthread_cond_destroy(&copier->changed);
    free(copier);
}

static void copier_init(struct device_copier *copier)
{
    pthread_condattr_t attributes;

    (void)pthread_mutex_init(&copier->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&copier->changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    list_init(&copier->free_);
    list_init(&copier->queue);
    list_init(&copier->ordered[DEVICE_IN]);
    list_init(&copier->ordered[DEVICE_OUT]);
    for (uint32_t i = 0; i < DEVICE_COPIES; i++) {
        copier->copies[i].copier = copier;
        list_push(&copier->free_, &copier->copies[i].queue);
    }
}

bool copier_thread(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    int error;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(thread, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0;
}

icms_err device_copier_new(const struct device_copier_options *options, struct err_why *why,
                           struct device_copier **out_copier)
{
    const struct device_ops *ops = device_ops(options->driver);
    struct device_copier *copier = calloc(1, sizeof(*copier));
    char text[DEVICE_TEXT_BYTES];
    struct device_before before;
    icms_err err;
    int code;

    if (copier == NULL)
        return err_set(why, ICMS_NO_MEMORY, "cannot use memory of a device: out of memory");
    copier->options = *options;
    copier_init(copier);
    copier->is_held = ops->hold(options->driver, &copier->options.place);
    code = ops->enter(options->driver, &copier->options.place, &before);
    if (code != 0) {
        ops->text(options->driver, code, text, sizeof(text));
        err = err_set(why, ICMS_DEVICE,
                      "cannot enter the context of %s device %d: %s; look whether "
                      "it was destroyed",
                      ops->name, options->place.ordinal, text);
        copier_delete(copier);
        return err;
    }
    err = copier_make(copier, why);
    if (err == ICMS_OK && !copier_thread(&copier->thread, copier_run, copier))
        err =
            err_set(why, ICMS_NO_MEMORY,
                    "cannot use memory of %s device %d: no thread can be made; raise the limit of "
                    "threads (ulimit -u)",
                    ops->name, options->place.ordinal);
    if (err != ICMS_OK)
        copier_unmake(copier);
    ops->leave(options->driver, &before);
    if (err != ICMS_OK) {
        copier_delete(copier);
        return err;
    }
    copier_cufile_new(copier);
    *out_copier = copier;
    return ICMS_OK;
}

bool device_copier_halt(struct device_copier *copier)
{
    struct list *at;
    bool quiet;

    copier_lock(copier);
    copier->halted = true;
    while ((at = list_first(&copier->queue)) != NULL)
        copy_refused(container_of(at, struct device_copy, queue));
    quiet = copier->busy == 0;
    copier_unlock(copier);
    return quiet;
}

/* Waits for copies that are with the driver. Lock. */
static void copier_drain(struct device_copier *copier)
{
    uint64_t until_ns = copier_now_ns() + (uint64_t)DEVICE_DRAIN_MS * 1000000;

    while (copier->busy != 0 && copier_now_ns() < until_ns)
        copier_sleep(copier, until_ns);
}

bool device_copier_free(struct device_copier **copier)
{
    struct device_copier *c = *copier;
    uint64_t until_ns;
    bool ended, let_go;

    *copier = NULL;
    if (c == NULL)
        return true;
    copier_cufile_leave(c);
    (void)device_copier_halt(c); /* looked at below */
    copier_lock(c);
    copier_drain(c);
    c->closed = true;
    (void)pthread_cond_broadcast(&c->changed);
    while (c->calling != 0) /* it waits for nobody but the owner's locks */
        (void)pthread_cond_wait(&c->changed, &c->lock);
    until_ns = copier_now_ns() + (c->busy == 0 ? (uint64_t)DEVICE_DRAIN_MS * 1000000 : 0);
    while (!c->ended && copier_now_ns() < until_ns)
        copier_sleep(c, until_ns);
    ended = c->ended;
    c->left = !ended;
    copier_unlock(c);
    if (!ended) {
        copier_cufile_detach(c);
        (void)pthread_detach(c->thread);
        if (c->has_pinner)
            (void)pthread_detach(c->pinner);
        return false; /* all of it is the driver's */
    }
    (void)pthread_join(c->thread, NULL);
    if (c->has_pinner)
        (void)pthread_join(c->pinner, NULL);
    copier_cufile_free(c);
    let_go = c->let_go;
    copier_delete(c);
    return let_go;
}
