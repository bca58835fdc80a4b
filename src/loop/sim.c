/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated machine room: virtual time, chance, nodes, and what a test commands.
 *
 * Called by tests, on one thread. sim_step takes the first event of the heap, sets the time to its
 * own and runs it; an event changes the state of a simulated kernel or gives a loop a turn.
 *
 * Determinism: all chance comes from sim->random and from one generator a node; nothing depends on
 * addresses of memory, on the machine's time or on anything else outside the seed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "loop/sim_int.h"

#define US 1000u
#define MS 1000000u

/* A spike makes a delay up to this many times longer. */
#define SIM_SPIKE 100

void sim_opts_init(struct sim_opts *opts, uint64_t seed)
{
    *opts = (struct sim_opts){
        .seed = seed,
        .net_delay_min_ns = 20 * US,
        .net_delay_max_ns = 200 * US,
        .net_bytes_per_s = (uint64_t)1 << 30,
        .net_buffer_bytes = 128 << 10,
        .net_backlog = 64,
        .disk_delay_min_ns = 20 * US,
        .disk_delay_max_ns = 300 * US,
        .disk_bytes_per_s = (uint64_t)2 << 30,
        .disk_discard = true,
        .message_delay_max_ns = 20 * US,
        .strict = true,
    };
}

/* ---- chance --------------------------------------------------------------------------------- */

uint64_t sim_random(struct sim *sim)
{
    sim->random += 0x9e3779b97f4a7c15u;
    return hash64_mix(sim->random);
}

uint64_t sim_below(struct sim *sim, uint64_t n)
{
    return n == 0 ? 0 : sim_random(sim) % n;
}

uint64_t sim_between(struct sim *sim, uint64_t min, uint64_t max)
{
    check(min <= max);
    return min + sim_below(sim, max - min + 1);
}

bool sim_fault(struct sim *sim, uint32_t ppm)
{
    return sim->faults && ppm > 0 && sim_below(sim, 1000000) < ppm;
}

uint64_t sim_delay(struct sim *sim, uint64_t min_ns, uint64_t max_ns)
{
    uint64_t delay_ns = sim_between(sim, min_ns, max_ns);

    if (sim_fault(sim, sim->opts.delay_spike_ppm))
        delay_ns *= sim_between(sim, 2, SIM_SPIKE);
    return delay_ns;
}

uint64_t sim_net_delay(struct sim *sim)
{
    return sim_delay(sim, sim->opts.net_delay_min_ns, sim->opts.net_delay_max_ns);
}

void sim_scribble(struct sim *sim, void *memory, size_t bytes)
{
    uint8_t *to = memory;

    for (int i = 0; sim->opts.strict && bytes > 0 && i < 4; i++)
        to[sim_below(sim, bytes)] = (uint8_t)sim_random(sim);
}

/* ---- events --------------------------------------------------------------------------------- */

void sim_at(struct sim *sim, struct loop_timer *event, uint64_t at_ns)
{
    check(event->fire != NULL);
    sim_not(sim, event);
    event->at_ns = at_ns > sim->now_ns ? at_ns : sim->now_ns;
    event->order = sim->order++;
    loop_heap_insert(&sim->events, event);
}

void sim_not(struct sim *sim, struct loop_timer *event)
{
    if (event->armed)
        loop_heap_remove(&sim->events, event);
}

static const char *const sim_trace_names[] = {
    [SIM_TRACE_TURN] = "turn of loop",
    [SIM_TRACE_OP] = "done: kind, error",
    [SIM_TRACE_MAIL] = "message for loop",
    [SIM_TRACE_DISK] = "disk: offset, bytes",
    [SIM_TRACE_FAULT] = "fault",
    [SIM_TRACE_PIECE] = "piece: kind, bytes",
    [SIM_TRACE_DIAL] = "dial: state, reaches",
    [SIM_TRACE_CRASH] = "crash: power, silent",
    [SIM_TRACE_JOB] = "job of loop",
    [SIM_TRACE_LOST] = "packets lost: bytes, ns late",
    [SIM_TRACE_HELD] = "held, too large: port, bytes",
    [SIM_TRACE_REFUSED] = "refused: locked",
};

void sim_trace(struct sim *sim, enum sim_trace_kind kind, const struct sim_node *node, uint64_t a,
               uint64_t b)
{
    uint64_t word = (uint64_t)kind << 56 ^ (uint64_t)node->id << 48;

    sim->trace = hash64_mix(sim->trace ^ sim->now_ns);
    sim->trace = hash64_mix(sim->trace ^ word ^ a);
    sim->trace = hash64_mix(sim->trace ^ b);
    if (sim->opts.verbose)
        (void)fprintf(stderr, "%12.6f ms %s %s %llu %llu\n", (double)sim->now_ns / MS, node->host,
                      sim_trace_names[kind], (unsigned long long)a, (unsigned long long)b);
}

bool sim_step(struct sim *sim)
{
    struct loop_timer *event = sim->events;

    check(loop_current == NULL);
    if (event == NULL)
        return false;
    loop_heap_remove(&sim->events, event);
    check(event->at_ns >= sim->now_ns);
    sim->now_ns = event->at_ns;
    sim->events_run++;
    event->fire(event);
    return true;
}

struct sim_call {
    struct loop_msg msg;
    void (*run)(void *arg);
    void *arg;
    bool ran;
};

static void sim_call_run(struct loop_msg *msg)
{
    struct sim_call *call = container_of(msg, struct sim_call, msg);

    call->run(call->arg);
    call->ran = true;
}

void sim_call(struct sim *sim, struct loop *loop, void (*run)(void *arg), void *arg)
{
    struct sim_call call = {.run = run, .arg = arg};

    loop_send(loop, &call.msg, sim_call_run);
    while (!call.ran)
        check(sim_step(sim));
}

bool sim_run(struct sim *sim, uint64_t until_ns)
{
    while (sim->events != NULL && sim->events->at_ns <= until_ns)
        (void)sim_step(sim);
    if (sim->now_ns < until_ns)
        sim->now_ns = until_ns;
    return sim->events == NULL;
}

uint64_t sim_now_ns(const struct sim *sim)
{
    return sim->now_ns;
}

void sim_stats(const struct sim *sim, struct sim_stats *out_stats)
{
    *out_stats = sim->stats;
}

uint64_t sim_events(const struct sim *sim)
{
    return sim->events_run;
}

uint64_t sim_trace_hash(const struct sim *sim)
{
    return sim->trace;
}

void sim_faults(struct sim *sim, bool on)
{
    sim->faults = on;
}

/* ---- life ----------------------------------------------------------------------------------- */

struct sim *sim_new(const struct sim_opts *opts)
{
    struct sim *sim = sim_alloc(sizeof(*sim));

    check(opts->net_buffer_bytes > 0 && opts->net_bytes_per_s > 0 && opts->disk_bytes_per_s > 0);
    sim->opts = *opts;
    sim->random = hash64_mix(opts->seed);
    sim->trace = opts->seed;
    sim->faults = true;
    list_init(&sim->nodes);
    list_init(&sim->conns);
    list_init(&sim->cuts);
    return sim;
}

void sim_free(struct sim **sim)
{
    struct sim *gone = *sim;
    struct list *link;

    if (gone == NULL)
        return;
    check(loop_current == NULL);
    *sim = NULL;
    sim_conn_fini(gone);
    while ((link = list_pop(&gone->nodes)) != NULL) {
        struct sim_node *node = container_of(link, struct sim_node, link);

        sim_net_fini(node);
        sim_disk_fini(node);
        sim_loop_fini(node);
        free(node);
    }
    while ((link = list_pop(&gone->cuts)) != NULL)
        free(container_of(link, struct sim_cut, link));
    free(gone);
}

struct sim_node *sim_node_new(struct sim *sim, const char *host)
{
    struct sim_node *node = sim_alloc(sizeof(*node));

    check(strlen(host) < sizeof(node->host));
    node->env.ops = &sim_ops;
    node->sim = sim;
    node->home = node;
    node->id = ++sim->node_count;
    node->offset_ns = sim_below(sim, (uint64_t)1 << 50);
    node->random = sim_random(sim);
    node->disk_slow = 1;
    node->port_next = 32768;
    (void)snprintf(node->host, sizeof(node->host), "%s", host);
    list_init(&node->loops);
    list_init(&node->files);
    list_init(&node->handles);
    list_init(&node->socks);
    list_init(&node->dials);
    list_init(&node->bells);
    list_init(&node->regions);
    list_push(&sim->nodes, &node->link);
    return node;
}

struct sim_node *sim_node_address(struct sim_node *node, const char *host)
{
    struct sim_node *address = sim_node_new(node->sim, host);

    address->home = node;
    return address;
}

struct loop_env *sim_node_env(struct sim_node *node)
{
    return &node->env;
}

/* ---- commanded faults ----------------------------------------------------------------------- */

void sim_node_crash(struct sim_node *node, bool power, bool silent)
{
    check(loop_current == NULL);
    sim_trace(node->sim, SIM_TRACE_CRASH, node, power, silent);
    sim_disk_crash(node, power);
    sim_ops_drop(node, NULL);
    sim_net_crash(node, silent);
    sim_loop_crash(node);
    node->paused = false;
    node->short_of = 0;
    node->dark = silent;
}

void sim_node_pause(struct sim_node *node, bool paused)
{
    node->paused = paused;
    list_for_each (link, &node->loops)
        sim_loop_poke(container_of(link, struct sim_loop, link));
}

void sim_disk_slow(struct sim_node *node, uint32_t factor)
{
    node->disk_slow = factor;
}

void sim_net_far(struct sim_node *node, uint64_t ns)
{
    node->far_ns = ns;
}

void sim_net_lossy(struct sim_node *node, uint32_t ppm)
{
    node->lossy_ppm = ppm;
}

bool sim_packet_lost(struct sim *sim, const struct sim_node *a, const struct sim_node *b)
{
    uint32_t ppm = a->lossy_ppm > b->lossy_ppm ? a->lossy_ppm : b->lossy_ppm;

    if (ppm == 0 || sim_below(sim, 1000000) >= ppm)
        return false;
    sim->stats.packets_lost++;
    return true;
}

static bool cut_is(const struct sim_cut *cut, const struct sim_cut *other)
{
    return cut->one_way == other->one_way &&
           ((cut->a == other->a && cut->b == other->b) ||
            (!cut->one_way && cut->b != NULL && cut->a == other->b && cut->b == other->a));
}

static void cut_set(struct sim *sim, const struct sim_cut *what, bool cut)
{
    list_for_each_safe (link, &sim->cuts) {
        struct sim_cut *old = container_of(link, struct sim_cut, link);

        if (cut_is(old, what)) {
            list_remove(link);
            free(old);
        }
    }
    if (cut) {
        struct sim_cut *new = sim_alloc(sizeof(*new));

        *new = *what;
        list_push(&sim->cuts, &new->link);
    }
}

void sim_net_cut(struct sim *sim, struct sim_node *a, struct sim_node *b, bool cut)
{
    cut_set(sim, &(struct sim_cut){.a = a, .b = b}, cut);
}

void sim_net_cut_way(struct sim *sim, struct sim_node *from, struct sim_node *to, bool cut)
{
    cut_set(sim, &(struct sim_cut){.a = from, .b = to, .one_way = true}, cut);
}

/* Whether nothing comes from one to the other. */
static bool cut_hits(const struct sim_cut *cut, const struct sim_node *from,
                     const struct sim_node *to)
{
    if (cut->one_way)
        return (cut->a == NULL || cut->a == from) && (cut->b == NULL || cut->b == to);
    return (cut->a == from && cut->b == to) || (cut->a == to && cut->b == from) ||
           (cut->b == NULL && (cut->a == from || cut->a == to));
}

bool sim_reaches(struct sim *sim, const struct sim_node *a, const struct sim_node *b)
{
    if (a->home == b->home)
        return true;
    list_for_each (link, &sim->cuts) {
        const struct sim_cut *cut = container_of(link, struct sim_cut, link);

        if (cut_hits(cut, a, b) || cut_hits(cut, a->home, b) || cut_hits(cut, a, b->home) ||
            cut_hits(cut, a->home, b->home))
            return false;
    }
    return true;
}
