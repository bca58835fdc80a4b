/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A failed check() in libicms ends a unix: handle, and neither the process nor another handle.
 *
 * This program has its own libicms, in which every check asks check_inject() (base/check.h). A tour
 * through all calls is repeated, and each time the next check that it meets fails.
 */
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"

#define VALUE 5000

/* ---- failing checks ------------------------------------------------------------------------- */

static atomic_uint visits;            /* of checks, since inject_arm        */
static atomic_uint inject_at;         /* the visit that fails; 0: none does */
static _Thread_local bool inject_off; /* not on this thread                 */
static atomic_bool inject_all;        /* later ones fail as well            */
static char line[512];                /* what was logged last               */
static atomic_uint lines;

static struct icms_request *_Atomic hold_request; /* its thread stops before it takes an answer */
static atomic_bool holds;

/* True between the moment an answer was taken off the request and the moment it is copied. */
static bool hold_is_here(struct icms_request *request)
{
    struct icms *icms = request->icms;
    bool here;

    if (!inject_off || pthread_mutex_trylock(&icms->lock) != 0)
        return false;
    here = request->held && request->done == 0 && list_empty(&request->sent) &&
           list_empty(&request->answered);
    (void)pthread_mutex_unlock(&icms->lock);
    return here;
}

/* Only calls of guarded handles: not the agent, which is in this process, too. */
bool check_inject(void)
{
    unsigned at = atomic_load(&inject_at), visit;
    struct icms_request *request = atomic_load(&hold_request);

    if (request != NULL && hold_is_here(request)) {
        atomic_store(&holds, true);
        while (atomic_load(&hold_request) != NULL)
            usleep(100);
    }
    if (at == 0 || inject_off || check_catch_get() == NULL)
        return false;
    visit = atomic_fetch_add(&visits, 1) + 1;
    return atomic_load(&inject_all) ? visit >= at : visit == at;
}

static void inject_arm(unsigned at)
{
    atomic_store(&lines, 0);
    atomic_store(&visits, 0);
    atomic_store(&inject_at, at);
}

static bool injected(void)
{
    return atomic_load(&inject_at) != 0 && atomic_load(&visits) >= atomic_load(&inject_at);
}

static void take_line(void *arg, const char *text)
{
    if (strstr(text, "internal error") == NULL)
        return; /* its agent is gone, or there is another one */
    (void)snprintf(line, sizeof(line), "%s", text);
    assert_string_equal(arg, "here");
    atomic_fetch_add(&lines, 1);
}

/* OK before the check failed, CLOSED after; the agent does nothing wrong. */
static void call_is_at(icms_err err, icms_err wanted, int at)
{
    if (err == wanted)
        return;
    _assert_int_equal(err, ICMS_CLOSED, __FILE__, at);
    _assert_true(injected(), "injected", __FILE__, at);
}

#define call_is(err, wanted) call_is_at(err, wanted, __LINE__)

static unsigned descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(directory);
    while (readdir(directory) != NULL)
        count++;
    (void)closedir(directory);
    return count;
}

/* The handle's own thread sleeps from here on: it meets no check. */
static void watch_rests(struct icms *icms)
{
    uint64_t begin = client_now_ns();
    struct pollfd event = {.fd = icms->watch_fd, .events = POLLIN};

    for (client_watch_wake(icms); poll(&event, 1, 0) != 0 || atomic_load(&icms->inside) != 0;) {
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        usleep(100);
    }
}

static int guard_setup(void **state)
{
    int error = client_rig_setup(state);

    if (error == 0)
        watch_rests(((struct client_rig *)*state)->icms);
    return error;
}

/* ---- a tour through all calls --------------------------------------------------------------- */

static struct icms_options tour_options(void)
{
    static char here[] = "here";
    struct icms_options options;

    icms_options_init(&options);
    options.load_deadline_ms = options.store_deadline_ms = RIG_GRACE_MS;
    options.log = take_line;
    options.log_arg = here;
    return options;
}

static void tour_sync(struct icms *icms, struct icms_volume *volume)
{
    uint8_t data[VALUE], copy[VALUE];
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = VALUE};
    struct icms_key keys[2] = {rig_key(1), rig_key(1)};
    char text[256];
    size_t matched = 9, bytes = 0;
    icms_err err;

    rig_fill(data, VALUE, 1);
    err = icms_put(volume, &block, 1, NULL);
    call_is(err, ICMS_OK);
    assert_int_equal(block.status, err);
    for (int i = 0; i < 2; i++) {
        block = (struct icms_block){.key = rig_key(1), .data = copy, .bytes = VALUE};
        err = icms_get(volume, &block, 1, NULL);
        call_is(err, ICMS_OK);
        assert_int_equal(block.status, err);
        if (err == ICMS_OK)
            assert_memory_equal(copy, data, VALUE);
    }
    block = (struct icms_block){.key = rig_key(1), .data = copy, .bytes = VALUE};
    call_is(icms_exists(volume, &block, 1, NULL), ICMS_OK);
    atomic_store(&fake.forget, true); /* by messages */
    err = icms_match(volume, keys, 2, NULL, &matched);
    call_is(err, ICMS_OK);
    assert_int_equal(matched, err == ICMS_OK ? 2 : 9);
    block = (struct icms_block){.key = rig_key(1), .data = copy, .bytes = VALUE};
    call_is(icms_get(volume, &block, 1, NULL), ICMS_OK);
    block = (struct icms_block){.key = rig_key(1000), .data = copy, .bytes = VALUE};
    err = icms_get(volume, &block, 1, NULL);
    call_is(err, ICMS_MISS);
    assert_int_equal(block.status, err);
    block = (struct icms_block){.key = rig_key(1000)};
    call_is(icms_remove(volume, &block, 1, NULL), ICMS_MISS);
    call_is(icms_flush(volume, NULL), ICMS_OK);
    do
        err = icms_status(icms, text, sizeof(text), &bytes);
    while (err == ICMS_PEER_DOWN);
    call_is(err, ICMS_OK);
    do
        err = icms_trace(icms, &keys[0], text, sizeof(text), &bytes);
    while (err == ICMS_PEER_DOWN);
    call_is(err, ICMS_OK);
    atomic_store(&fake.forget, false);
}

static void tour_memory(struct icms *icms, struct icms_volume *volume)
{
    struct icms_key key = rig_key(1);
    struct icms_block block = {.key = rig_key(2), .bytes = VALUE};
    struct icms_lease lease;
    uint8_t wanted[VALUE];
    void *buffer = NULL;
    icms_err err;

    rig_fill(wanted, VALUE, 1);
    err = icms_lease_take(volume, &key, NULL, NULL, &lease);
    call_is(err, ICMS_OK);
    if (err == ICMS_OK) {
        call_is(icms_buffer_take(icms, VALUE, &buffer), ICMS_OK);
        if (buffer != NULL) {
            rig_fill(buffer, VALUE, 2);
            block.data = buffer;
            call_is(icms_put(volume, &block, 1, NULL), ICMS_OK);
            icms_buffer_give(icms, buffer);
        }
        /* It stays as it is, whatever happened. */
        for (uint64_t i = 3; i < 20; i++)
            (void)rig_put_one(volume, i, 64);
        assert_memory_equal(lease.data, wanted, VALUE);
        icms_lease_give(&lease);
    }
}

/* Whether a check failed, and the handle with it: that may be on its own thread. */
static bool injected_over(void)
{
    uint64_t begin = client_now_ns();

    if (!injected())
        return false;
    for (; atomic_load(&lines) == 0; (void)usleep(100))
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    return true;
}

#define ASYNC 6

/* Every request that was started is returned once, by icms_poll or by a wait. */
static void tour_async(struct icms *icms, struct icms_volume *volume)
{
    static uint8_t data[ASYNC][VALUE];
    struct icms_block blocks[ASYNC];
    struct icms_request *requests[ASYNC] = {NULL}, *at;
    struct icms_request_options options;
    unsigned started = 0, ended = 0;
    bool gone[ASYNC] = {false};

    icms_request_options_init(&options);
    for (uintptr_t i = 0; i < ASYNC; i++) {
        icms_err err;

        options.tag = (void *)i;
        memset(data[i], 7, VALUE);
        blocks[i] = (struct icms_block){.key = rig_key(1), .data = data[i], .bytes = VALUE};
        err = icms_get_start(volume, &blocks[i], 1, &options, &requests[i]);
        call_is(err, ICMS_OK);
        started += err == ICMS_OK;
        if (err != ICMS_OK)
            break;
    }
    if (started > 0 && icms_request_wait(requests[0], RIG_GRACE_MS) == ICMS_OK) {
        assert_true(icms_request_over(requests[0]));
        gone[0] = true;
        call_is(icms_request_end(&requests[0]), ICMS_OK);
        ended++;
    }
    if (started > 1)
        icms_request_cancel(requests[1]);
    if (started > 2) { /* without a wait */
        gone[2] = true;
        call_is(icms_request_end(&requests[2]), ICMS_OK);
        ended++;
    }
    while (ended < started) {
        uintptr_t i;
        icms_err err;

        at = rig_poll_next(icms);
        assert_non_null(at);
        i = (uintptr_t)icms_request_tag(at);
        assert_true(i < ASYNC && !gone[i] && at == requests[i]);
        gone[i] = true;
        assert_true(icms_request_over(at));
        call_is(icms_request_wait(at, 0), ICMS_OK);
        err = icms_request_end(&at);
        if (err != ICMS_OK && i == 1)
            err = err == ICMS_MISS && blocks[i].status == ICMS_CANCELED ? ICMS_OK : err;
        call_is(err, ICMS_OK);
        if (err == ICMS_CLOSED)
            assert_int_equal(blocks[i].status, ICMS_CLOSED);
        ended++;
    }
    for (unsigned i = 0; i < started; i++)
        memset(data[i], 9, VALUE);
    assert_null(icms_poll(icms));
    /* Nothing is left to poll for: an event loop sleeps, as soon as the handle's own thread is out,
     * which may have failed just now. */
    if (injected_over()) {
        struct pollfd event = {.fd = icms_event_fd(icms), .events = POLLIN};

        for (int i = 0; i < RIG_GRACE_MS && poll(&event, 1, 0) != 0; i++) {
            assert_null(icms_poll(icms));
            (void)usleep(1000);
        }
        assert_int_equal(poll(&event, 1, 0), 0);
    }
}

/* True when the check that was to fail was met. */
static bool tour(struct client_rig *rig, unsigned at)
{
    struct icms_options options = tour_options();
    struct icms_volume *volume = NULL;
    struct icms *icms = NULL;
    char why[256] = "";
    icms_err err;

    inject_arm(at);
    do
        err = icms_open(rig->where, &options, why, sizeof(why), &icms);
    while (err == ICMS_PEER_DOWN); /* it has two seconds, as icms_status */
    call_is(err, ICMS_OK);
    if (err == ICMS_OK) {
        err = icms_volume_open(icms, "kv", why, sizeof(why), &volume);
        call_is(err, ICMS_OK);
        if (err == ICMS_OK) {
            tour_sync(icms, volume);
            tour_memory(icms, volume);
            tour_async(icms, volume);
            icms_volume_close(&volume);
        }
        if (injected_over())
            assert_int_equal(icms_volume_open(icms, "kv", NULL, 0, &volume), ICMS_CLOSED);
    }
    icms_close(&icms);
    if (!injected())
        return false;
    assert_int_equal(atomic_load(&lines), 1);
    assert_int_equal(strncmp(line, rig->where, strlen(rig->where)), 0);
    assert_non_null(strstr(line, "check=\""));
    assert_null(strchr(line, '\n'));
    inject_arm(0);
    return true;
}

static void other_handle_works(struct client_rig *rig)
{
    assert_int_equal(rig_put_one(rig->kv, 100, VALUE), ICMS_OK);
    assert_int_equal(rig_get_one(rig->kv, 100, VALUE, NULL), ICMS_OK);
}

/* What a handle had is given back: in this process, and in the agent. */
static void nothing_is_left(struct client_rig *rig, unsigned fds)
{
    uint64_t begin = client_now_ns();

    /* A connection that was given up may be seen late. */
    while (descriptors() != fds || fake_agent_leases(rig->agent) != 0) {
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        usleep(100);
    }
}

static void any_check_of_any_call_ends_the_handle_alone(void **state)
{
    struct client_rig *rig = *state;
    unsigned at = 1, fds;

    assert_int_equal(rig_put_one(rig->kv, 100, VALUE), ICMS_OK);
    fds = descriptors();
    for (int all = 0; all < 2; all++) {
        atomic_store(&inject_all, all);
        for (at = 1; tour(rig, at); at += all ? 5 : 1) {
            nothing_is_left(rig, fds);
            other_handle_works(rig);
        }
        inject_arm(0);
        assert_true(at > 100); /* there are that many to meet */
    }
    atomic_store(&inject_all, false);
}

/* ---- the agent comes back ------------------------------------------------------------------- */

static bool reattach(struct client_rig *rig, unsigned at)
{
    struct icms_options options = tour_options();
    struct icms_volume *volume = NULL;
    struct icms *icms = NULL;
    struct icms_lease lease;
    struct icms_key key = rig_key(1);
    icms_err err;

    inject_arm(0);
    assert_int_equal(icms_open(rig->where, &options, NULL, 0, &icms), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "kv", NULL, 0, &volume), ICMS_OK);
    assert_int_equal(rig_put_one(volume, 1, VALUE), ICMS_OK);
    assert_int_equal(icms_lease_take(volume, &key, NULL, NULL, &lease), ICMS_OK);
    fake_socket_stop(&rig->socket);
    rig->socket = fake_socket_start(rig->agent, rig->path);
    inject_arm(at);
    do { /* until its thread has attached */
        usleep(1000);
        err = rig_put_one(volume, 1, VALUE);
    } while (err == ICMS_PEER_DOWN);
    call_is(err, ICMS_OK);
    icms_lease_give(&lease);
    icms_close(&icms);
    return injected();
}

static void any_check_while_the_agent_comes_back(void **state)
{
    struct client_rig *rig = *state;
    unsigned at = 1, fds;

    icms_close(&rig->icms); /* it would see the end, too */
    fake_socket_stop(&rig->socket);
    rig->socket = fake_socket_start(rig->agent, rig->path);
    fds = descriptors();
    for (; reattach(rig, at); at++) {
        assert_int_equal(atomic_load(&lines), 1);
        inject_arm(0);
        nothing_is_left(rig, fds);
    }
    inject_arm(0);
    assert_true(at > 30);
}

/* ---- threads -------------------------------------------------------------------------------- */

#define THREADS 4

struct worker {
    struct client_rig *rig;
    struct icms *icms;
    struct icms_volume *volume;
    uint64_t number;
    int kind;
    pthread_t thread;
};

/* Works until the handle is closed; after that nothing writes into its memory. */
static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    static _Thread_local uint8_t data[ASYNC][VALUE];
    struct icms_block blocks[ASYNC];
    struct icms_key key = rig_key(worker->number);
    icms_err err = ICMS_OK;
    size_t matched;

    while (err != ICMS_CLOSED) {
        for (int i = 0; i < ASYNC; i++)
            blocks[i] = (struct icms_block){.key = key, .data = data[i], .bytes = VALUE};
        if (worker->kind == 0)
            err = icms_put(worker->volume, blocks, ASYNC, NULL);
        else if (worker->kind == 1)
            err = icms_get(worker->volume, blocks, ASYNC, NULL);
        else if (worker->kind == 2)
            err = icms_match(worker->volume, &key, 1, NULL, &matched);
        else {
            struct icms_request *request;

            err = icms_get_start(worker->volume, blocks, ASYNC, NULL, &request);
            if (err == ICMS_OK) {
                if (icms_request_wait(request, RIG_GRACE_MS) != ICMS_OK)
                    return arg; /* it hangs */
                err = icms_request_end(&request);
            }
        }
        if (err == ICMS_CLOSED)
            memset(data, 9, sizeof(data));
    }
    usleep(2000);
    for (size_t i = 0; i < sizeof(data); i++)
        if (data[i / VALUE][i % VALUE] != 9)
            return arg;
    return NULL;
}

static void threads_round(struct client_rig *rig, unsigned at)
{
    struct icms_options options = tour_options();
    struct worker workers[THREADS];
    struct icms_volume *volume = NULL;
    struct icms *icms = NULL;
    void *result;

    assert_int_equal(icms_open(rig->where, &options, NULL, 0, &icms), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "kv", NULL, 0, &volume), ICMS_OK);
    inject_arm(at);
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){
            .rig = rig, .icms = icms, .volume = volume, .number = 1 + (uint64_t)i / 2, .kind = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, &result), 0);
        assert_null(result);
    }
    icms_close(&icms);
    assert_int_equal(atomic_load(&lines), 1);
    inject_arm(0);
    other_handle_works(rig);
}

static void all_threads_leave_a_handle_that_failed(void **state)
{
    struct client_rig *rig = *state;
    unsigned fds = descriptors();

    for (unsigned at = 1; at < 40000; at = at * 5 / 4 + 7) {
        atomic_store(&fake.forget, at % 2 != 0);
        threads_round(rig, at);
    }
    atomic_store(&fake.forget, false);
    nothing_is_left(rig, fds);
}

static void *sleeper_main(void *arg)
{
    struct worker *worker = arg;
    static uint8_t data[VALUE];
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = VALUE};

    inject_off = true;
    return icms_get(worker->volume, &block, 1, NULL) == ICMS_CLOSED ? NULL : arg;
}

/* Two that wait for an agent which does not answer: one sleeps in poll(2), one for the other. */
static void who_sleeps_is_woken(void **state)
{
    struct client_rig *rig = *state;
    struct icms_options options = tour_options();
    struct worker workers[2];
    struct icms_volume *volume = NULL;
    struct icms *icms = NULL;
    struct icms_request *request, *same;
    struct icms_block block = {.key = rig_key(1)};
    uint64_t begin;
    void *result;

    options.load_deadline_ms = RIG_GRACE_MS * 3 / 2;
    assert_int_equal(icms_open(rig->where, &options, NULL, 0, &icms), ICMS_OK);
    assert_int_equal(icms_volume_open(icms, "kv", NULL, 0, &volume), ICMS_OK);
    atomic_store(&fake.mute, true);
    usleep(2000);
    assert_int_equal(icms_exists_start(volume, &block, 1, NULL, &request), ICMS_OK);
    for (int i = 0; i < 2; i++) {
        workers[i] = (struct worker){.rig = rig, .icms = icms, .volume = volume};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, sleeper_main, &workers[i]), 0);
    }
    usleep(100000);
    assert_null(icms_poll(icms));
    begin = client_now_ns();
    inject_arm(1);
    same = icms_poll(icms); /* NULL, unless the sleepers have left by now */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(workers[i].thread, &result), 0);
        assert_null(result);
    }
    if (same == NULL)
        same = rig_poll_next(icms);
    assert_ptr_equal(same, request);
    assert_null(icms_poll(icms));
    assert_int_equal(icms_request_end(&same), ICMS_CLOSED);
    assert_int_equal(block.status, ICMS_CLOSED);
    icms_close(&icms);
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
    assert_int_equal(atomic_load(&lines), 1);
    inject_arm(0);
    atomic_store(&fake.mute, false);
    other_handle_works(rig);
}

static void *poller_main(void *arg)
{
    struct worker *worker = arg;

    inject_off = true;
    return rig_poll_next(worker->icms);
}

/* While another thread may still write into the memory of a request it is not over. */
static void a_request_is_not_over_while_a_thread_runs_it(void **state)
{
    struct client_rig *rig = *state;
    struct icms_options options = tour_options();
    struct worker worker = {.rig = rig};
    struct icms_request *request = NULL, *before;
    uint8_t data[VALUE] = {0}, wanted[VALUE];
    struct icms_block block = {.key = rig_key(1), .data = data, .bytes = VALUE};
    struct icms_block first = {.key = rig_key(1)};
    void *result;

    rig_fill(wanted, VALUE, 1);
    assert_int_equal(icms_open(rig->where, &options, NULL, 0, &worker.icms), ICMS_OK);
    assert_int_equal(icms_volume_open(worker.icms, "kv", NULL, 0, &worker.volume), ICMS_OK);
    watch_rests(worker.icms);
    assert_int_equal(rig_put_one(worker.volume, 1, VALUE), ICMS_OK);
    assert_int_equal(icms_exists_start(worker.volume, &first, 1, NULL, &before), ICMS_OK);
    assert_ptr_equal(rig_poll_next(worker.icms), before);
    atomic_store(&fake.forget, true);
    do { /* until it goes to the agent */
        if (request != NULL)
            assert_int_equal(icms_request_end(&request), ICMS_OK);
        memset(data, 0, VALUE);
        assert_int_equal(icms_get_start(worker.volume, &block, 1, NULL, &request), ICMS_OK);
    } while (icms_request_over(request));
    atomic_store(&holds, false);
    atomic_store(&hold_request, request);
    assert_int_equal(pthread_create(&worker.thread, NULL, poller_main, &worker), 0);
    while (!atomic_load(&holds))
        usleep(100);
    inject_arm(1);
    assert_false(icms_request_over(request)); /* its check fails */
    assert_int_equal(atomic_load(&lines), 1);
    assert_false(icms_request_over(request));
    assert_int_equal(icms_request_wait(request, 20), ICMS_DEADLINE);
    assert_null(icms_poll(worker.icms));
    /* One that was over before the handle failed waits for nobody. */
    assert_int_equal(icms_request_wait(before, 0), ICMS_OK);
    assert_true(icms_request_over(before));
    assert_int_equal(icms_request_end(&before), ICMS_OK);
    assert_int_equal(data[0] | data[VALUE - 1], 0);
    atomic_store(&hold_request, NULL); /* and now it writes */
    assert_int_equal(pthread_join(worker.thread, &result), 0);
    assert_ptr_equal(result, request);
    assert_memory_equal(data, wanted, VALUE);
    assert_true(icms_request_over(request));
    assert_int_equal(icms_request_end(&request), ICMS_CLOSED);
    assert_int_equal(block.status, ICMS_CLOSED);
    icms_close(&worker.icms);
    inject_arm(0);
    atomic_store(&fake.forget, false);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, guard_setup, client_rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(any_check_of_any_call_ends_the_handle_alone),
        TEST(any_check_while_the_agent_comes_back),
        TEST(all_threads_leave_a_handle_that_failed),
        TEST(who_sleeps_is_woken),
        TEST(a_request_is_not_over_while_a_thread_runs_it),
    };

    return cmocka_run_group_tests_name("client-guard", tests, NULL, NULL);
}
