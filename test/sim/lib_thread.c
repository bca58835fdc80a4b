/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of which one runs at a time. Each is a coroutine with a stack; at its points, chance
 * decides whether it goes on, whether another one runs, and whether it stands still for so long
 * that deadlines pass. Time passes between two turns of threads, and the loops of the pod with it.
 *
 * A mutex is the real one: all threads are one to the system, so that trylock() tells whether
 * another one has it. Conditions are who waits for them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/check.h"
#include "lib.h"

#if defined(__SANITIZE_ADDRESS__)
#define LIB_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LIB_ASAN 1
#endif
#endif
#ifdef LIB_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

/* Without a thread that is ready, time passes in steps of this: how late one may be woken. */
#define THREAD_IDLE_NS (20 * US)

/* Who gives its turn away is sometimes away for up to so long: agents do much in this. */
#define THREAD_AWAY_NS (100 * US)

/* In a seed the sites of one residue are those where threads are away often, and for so long. */
#define THREAD_SITES    16
#define THREAD_FOCUS_NS MS

struct lib_thread *lib_current;
struct pod_world *lib_world;

static ucontext_t thread_control; /* where control goes on */

uint64_t lib_chance(uint64_t n)
{
    return pod_chance(lib_world, n);
}

static uint64_t thread_now(void)
{
    return sim_now_ns(lib_world->sim);
}

/* ---- turns ---------------------------------------------------------------------------------- */

#ifdef LIB_ASAN
static const void *thread_control_stack;
static size_t thread_control_bytes;
#endif

static void thread_to_control(struct lib_thread *thread)
{
#ifdef LIB_ASAN
    __sanitizer_start_switch_fiber(thread->state == LIB_OVER ? NULL : &thread->fake_stack,
                                   thread_control_stack, thread_control_bytes);
#endif
    check(swapcontext(&thread->context, &thread_control) == 0);
#ifdef LIB_ASAN
    __sanitizer_finish_switch_fiber(thread->fake_stack, &thread_control_stack,
                                    &thread_control_bytes);
#endif
}

static void thread_begin(void)
{
    struct lib_thread *thread = lib_current;

#ifdef LIB_ASAN
    __sanitizer_finish_switch_fiber(NULL, &thread_control_stack, &thread_control_bytes);
#endif
    thread->run(thread);
    thread->state = LIB_OVER;
    thread_to_control(thread);
    abort();
}

static void thread_turn(struct lib_thread *thread)
{
#ifdef LIB_ASAN
    void *fake_stack = NULL;
#endif

    lib_current = thread;
    check_catch_set(thread->catch_);
#ifdef LIB_ASAN
    __sanitizer_start_switch_fiber(&fake_stack, thread->stack, LIB_STACK);
#endif
    check(swapcontext(&thread_control, &thread->context) == 0);
#ifdef LIB_ASAN
    __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
#endif
    thread->catch_ = check_catch_get();
    check_catch_set(NULL);
    lib_current = NULL;
}

void lib_thread_start(struct lib_thread *thread, struct lib_process *process,
                      void (*run)(struct lib_thread *thread))
{
    check(thread->state == LIB_FREE || thread->state == LIB_OVER);
    if (thread->stack == NULL)
        thread->stack =
            mmap(NULL, LIB_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(thread->stack != MAP_FAILED);
    thread->process = process;
    thread->number = (uint32_t)(thread - process->threads);
    thread->run = run;
    thread->catch_ = NULL;
    thread->away = false;
    check(getcontext(&thread->context) == 0);
    thread->context.uc_stack.ss_sp = thread->stack;
    thread->context.uc_stack.ss_size = LIB_STACK;
    thread->context.uc_link = NULL;
    makecontext(&thread->context, thread_begin, 0);
    thread->state = LIB_READY;
}

void lib_thread_kill(struct lib_thread *thread)
{
    check(lib_current == NULL);
    if (thread->stack != NULL)
        check(munmap(thread->stack, LIB_STACK) == 0);
    thread->stack = NULL;
    thread->state = LIB_FREE;
}

/* Gives the turn back; goes on when somebody made it ready. */
static void thread_block(enum lib_state state, const void *on, uint64_t wake_ns)
{
    struct lib_thread *thread = lib_current;

    thread->state = state;
    thread->on = on;
    thread->wake_ns = wake_ns;
    thread_to_control(thread);
}

/* Makes those ready that wait for this. */
static void thread_wake(enum lib_state state, const void *on)
{
    for (uint32_t i = 0; i < lib_world->client_count; i++) {
        struct lib_process *process = lib_world->clients[i].process;

        for (uint32_t t = 0; t < LIB_THREADS; t++)
            if (process->threads[t].state == state && process->threads[t].on == on)
                process->threads[t].state = LIB_READY;
    }
}

bool lib_thread_due(const struct lib_thread *thread)
{
    if (thread->state == LIB_READY)
        return true;
    if (thread->state == LIB_WAIT)
        for (int i = 0; i < LIB_WAIT_FDS; i++)
            if (thread->fds[i] >= 0 && lib_fd_readable(thread->fds[i]))
                return true;
    return (thread->state == LIB_COND || thread->state == LIB_WAIT || thread->state == LIB_SLEEP) &&
           thread->wake_ns <= thread_now();
}

/* One of those that can run; NULL: none. The threads of a process with its agent inside stand still
 * with the agent. */
static struct lib_thread *thread_pick(void)
{
    struct lib_thread *due[POD_AGENTS_MAX * POD_CLIENTS * LIB_THREADS];
    uint32_t count = 0;

    for (uint32_t i = 0; i < lib_world->client_count; i++) {
        struct lib_process *process = lib_world->clients[i].process;

        if (process->inside && process->client->agent->paused)
            continue;
        for (uint32_t t = 0; t < LIB_THREADS; t++)
            if (lib_thread_due(&process->threads[t]))
                due[count++] = &process->threads[t];
    }
    return count == 0 ? NULL : due[lib_chance(count)];
}

/* Control: from time to time. */
static void thread_rings_look(void)
{
    static uint64_t look_ns;

    if (thread_now() - look_ns < LIB_LOOK_NS) /* not less when time began anew */
        return;
    look_ns = thread_now();
    for (uint32_t i = 0; i < lib_world->client_count; i++)
        lib_rings_judge(lib_world->clients[i].process, false);
}

void pod_client_run(struct pod_world *world, uint64_t until_ns)
{
    while (sim_now_ns(world->sim) < until_ns) {
        struct lib_thread *thread = thread_pick();
        uint64_t step_ns = THREAD_IDLE_NS;

        thread_rings_look();
        if (thread != NULL) {
            thread->state = LIB_READY;
            thread_turn(thread);
            step_ns = lib_chance(16) == 0 ? lib_chance(20 * US) : lib_chance(US / 2);
        }
        (void)sim_run(world->sim, u64_min(sim_now_ns(world->sim) + step_ns, until_ns));
    }
}

/* ---- where a thread may stop ---------------------------------------------------------------- */

void lib_sleep(uint64_t ns)
{
    thread_block(LIB_SLEEP, NULL, thread_now() + ns);
}

bool lib_wait_fds(const int *fds, uint64_t wake_ns)
{
    struct lib_thread *thread = lib_current;

    memcpy(thread->fds, fds, sizeof(thread->fds));
    thread_block(LIB_WAIT, NULL, wake_ns);
    for (int i = 0; i < LIB_WAIT_FDS; i++)
        if (fds[i] >= 0 && lib_fd_readable(fds[i]))
            return true;
    return false;
}

/* At a point, for at most so long. */
static void thread_away(uint64_t most_ns)
{
    lib_current->away = true;
    lib_sleep(lib_chance(most_ns));
    lib_current->away = false;
}

void lib_point_at(unsigned site)
{
    const struct pod_weather *weather;
    struct lib_process *process;
    uint64_t stall_ns;

    if (lib_current == NULL)
        return; /* an agent */
    weather = &lib_world->weather;
    process = lib_current->process;
    if (lib_world->faults && weather->stall_period != 0 && lib_chance(weather->stall_period) == 0) {
        stall_ns = lib_chance(2) == 0 ? 2 * MS : 200 * MS;
        process->stalled_ns = u64_max(process->stalled_ns, thread_now() + stall_ns);
        thread_away(stall_ns);
    } else if (site % THREAD_SITES == weather->point_site && lib_chance(8) == 0) {
        thread_away(THREAD_FOCUS_NS);
    } else if (lib_chance(weather->point_period) == 0) {
        if (lib_chance(8) == 0)
            thread_away(THREAD_AWAY_NS);
        else
            thread_block(LIB_READY, NULL, 0);
    }
}

void lib_point(void)
{
    lib_point_at(0);
}

/* ---- locks ---------------------------------------------------------------------------------- */

int lib_mutex_trylock(pthread_mutex_t *mutex)
{
    lib_point();
    return pthread_mutex_trylock(mutex);
}

int lib_mutex_lock(pthread_mutex_t *mutex)
{
    lib_point();
    while (pthread_mutex_trylock(mutex) != 0)
        thread_block(LIB_LOCK, mutex, 0);
    return 0;
}

int lib_mutex_unlock(pthread_mutex_t *mutex)
{
    int error = pthread_mutex_unlock(mutex);

    thread_wake(LIB_LOCK, mutex);
    lib_point();
    return error;
}

/* Some wake up without a reason. */
static int thread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t wake_ns)
{
    if (lib_chance(64) == 0)
        wake_ns = u64_min(wake_ns, thread_now() + lib_chance(MS));
    check(pthread_mutex_unlock(mutex) == 0);
    thread_wake(LIB_LOCK, mutex);
    thread_block(LIB_COND, cond, wake_ns);
    return lib_mutex_lock(mutex);
}

int lib_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    return thread_cond_wait(cond, mutex, LIB_EVER);
}

int lib_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    uint64_t until_ns = (uint64_t)until->tv_sec * 1000000000u + (uint64_t)until->tv_nsec;
    uint64_t wake_ns = lib_virtual_ns(lib_current->process, until_ns);
    int error = thread_cond_wait(cond, mutex, wake_ns);

    return error == 0 && thread_now() >= wake_ns ? ETIMEDOUT : error;
}

int lib_cond_broadcast(pthread_cond_t *cond)
{
    lib_point();
    thread_wake(LIB_COND, cond);
    return 0;
}
