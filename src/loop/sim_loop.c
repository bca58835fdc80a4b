/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops of simulated nodes: turns, messages, events, regions.
 *
 * A loop that has reason to (an ended operation, a message, a due timer) gets a turn: one iteration
 * of the reactor, in the same order as on the machine. Between two turns passes a little virtual
 * time. A paused node's loops get no turns; a crashed one's never again.
 */
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "loop/sim_int.h"

/* A turn begins up to this long after its reason, and takes up to this long. */
#define SIM_TURN_NS 2000

/* How long a job takes, without spikes. */
#define SIM_JOB_MIN_NS 10000
#define SIM_JOB_MAX_NS 5000000

/* ---- turns ---------------------------------------------------------------------------------- */

static uint64_t sim_env_now(struct loop_env *env)
{
    struct sim_node *node = sim_node_of(env);

    return node->sim->now_ns + node->offset_ns;
}

void sim_loop_poke(struct sim_loop *own)
{
    struct loop *loop = &own->loop;
    struct sim *sim = own->node->sim;
    uint64_t at_ns = UINT64_MAX;

    if (loop_current == loop)
        return; /* at the end of its turn */
    if (own->node->paused || atomic_load(&loop->phase) != LOOP_RUNNING || loop_stopping(loop)) {
        sim_not(sim, &own->turn);
        return;
    }
    if (!list_empty(&own->ready) || atomic_load(&loop->inbox) != NULL)
        at_ns = sim->now_ns;
    else if (loop->timers != NULL)
        at_ns = u64_max(loop->timers->at_ns, own->node->offset_ns) - own->node->offset_ns;
    at_ns = u64_max(at_ns, own->busy_ns);
    if (own->turn.armed && own->turn.at_ns <= at_ns)
        return;
    if (at_ns != UINT64_MAX)
        sim_at(sim, &own->turn, at_ns);
}

static void sim_ready_run(struct sim_loop *own)
{
    struct list mark;

    list_push(&own->ready, &mark);
    while (list_first(&own->ready) != &mark && !loop_stopping(&own->loop)) {
        struct loop_op *op = container_of(list_first(&own->ready), struct loop_op, link);

        sim_trace(own->node->sim, SIM_TRACE_OP, own->node, op->kind, (uint64_t)op->err);
        loop_op_finish(op, op->err, op->bytes);
    }
    list_remove(&mark);
}

static void sim_turn(struct loop_timer *event)
{
    struct sim_loop *own = container_of(event, struct sim_loop, turn);
    struct sim *sim = own->node->sim;
    struct loop *loop = &own->loop;

    check(!own->node->paused);
    sim_trace(sim, SIM_TRACE_TURN, own->node, own->id, 0);
    loop_current = loop;
    loop->now_ns = sim_env_now(loop->env);
    sim_ready_run(own);
    loop_timers_run(loop);
    loop_inbox_run(loop);
    counter_add(&loop->stats.iterations, 1);
    counter_add(&loop->stats.wakes, 1);
    loop_current = NULL;
    own->busy_ns = sim->now_ns + 1 + sim_below(sim, SIM_TURN_NS);
    sim_loop_poke(own);
}

static void sim_timer_first(struct loop *loop)
{
    sim_loop_poke(sim_loop_of(loop));
}

/* ---- messages ------------------------------------------------------------------------------- */

static void sim_mail_arrive(struct loop_timer *event)
{
    struct sim_mail *mail = container_of(event, struct sim_mail, event);
    struct sim_loop *to = mail->to;

    sim_trace(to->node->sim, SIM_TRACE_MAIL, to->node, to->id, 0);
    loop_inbox_push(&to->loop, mail->msg);
    list_remove(&mail->link);
    free(mail);
    sim_loop_poke(to);
}

static struct sim_route *sim_route_of(struct sim_loop *to, uint32_t from)
{
    struct sim_route *route;

    list_for_each (link, &to->routes) {
        route = container_of(link, struct sim_route, link);
        if (route->from == from)
            return route;
    }
    route = sim_alloc(sizeof(*route));
    route->from = from;
    list_push(&to->routes, &route->link);
    return route;
}

static void sim_send(struct loop *loop, struct loop_msg *msg)
{
    struct sim_loop *to = sim_loop_of(loop);
    struct sim *sim = to->node->sim;
    uint32_t from = loop_current != NULL ? sim_loop_of(loop_current)->id : 0;
    struct sim_route *route = sim_route_of(to, from);
    struct sim_mail *mail;
    uint64_t delay_ns = 0;

    check(loop_current == NULL || loop_current->env == loop->env);
    if (atomic_load(&loop->phase) == LOOP_JOINED)
        return;
    if (loop_current != loop)
        delay_ns = sim_delay(sim, 0, sim->opts.message_delay_max_ns);
    mail = sim_alloc(sizeof(*mail));
    mail->event.fire = sim_mail_arrive;
    mail->to = to;
    mail->msg = msg;
    list_push(&to->mails, &mail->link);
    route->last_ns = u64_max(route->last_ns, sim->now_ns + delay_ns);
    sim_at(sim, &mail->event, route->last_ns);
}

/* ---- jobs ----------------------------------------------------------------------------------- */

static void sim_job_next(struct sim_loop *own)
{
    struct list *link = list_first(&own->jobs);
    struct sim *sim = own->node->sim;
    struct sim_job *record;

    if (link == NULL)
        return;
    record = container_of(link, struct sim_job, link);
    sim_at(sim, &record->event, sim->now_ns + sim_delay(sim, SIM_JOB_MIN_NS, SIM_JOB_MAX_NS));
}

static void sim_job_end(struct loop_timer *event)
{
    struct sim_job *record = container_of(event, struct sim_job, event);
    struct sim_loop *own = record->loop;
    struct loop_job *job = record->job;

    sim_trace(own->node->sim, SIM_TRACE_JOB, own->node, own->id, 0);
    list_remove(&record->link);
    free(record);
    job->work(job);
    loop_send(&own->loop, &job->msg, loop_job_finish);
    sim_job_next(own);
}

static icms_err sim_job_start(struct loop *loop, struct loop_job *job)
{
    struct sim_loop *own = sim_loop_of(loop);
    struct sim_job *record = sim_alloc(sizeof(*record));
    bool is_first = list_empty(&own->jobs);

    record->event.fire = sim_job_end;
    record->loop = own;
    record->job = job;
    list_push(&own->jobs, &record->link);
    if (is_first)
        sim_job_next(own);
    return ICMS_OK;
}

/* ---- operations ----------------------------------------------------------------------------- */

void sim_op_ready(struct loop_op *op, icms_err err, uint32_t bytes)
{
    struct sim_loop *own = sim_loop_of(op->loop);

    check(op->state != LOOP_OP_READY);
    list_remove(&op->link);
    op->err = err;
    op->bytes = bytes;
    op->state = LOOP_OP_READY;
    list_push(&own->ready, &op->link);
    sim_loop_poke(own);
}

static bool sim_is_disk(const struct loop_op *op)
{
    return op->kind == LOOP_READ || op->kind == LOOP_WRITE || op->kind == LOOP_FLUSH ||
           op->kind == LOOP_DISCARD;
}

static void sim_op_start(struct loop *loop, struct loop_op *op)
{
    op->state = LOOP_OP_KERNEL;
    if (sim_is_disk(op)) {
        sim_disk_start(op);
    } else if (op->kind != LOOP_EVENT) {
        sim_net_start(op);
    } else {
        struct sim_bell *bell = container_of(op->target, struct sim_bell, event);

        check(bell->waiter == NULL);
        bell->waiter = op;
        if (bell->raised)
            loop_event_signal(&bell->event);
    }
}

static void sim_op_cancel(struct loop *loop, struct loop_op *op)
{
    if (op->state == LOOP_OP_READY || sim_is_disk(op))
        return;
    if (op->kind != LOOP_EVENT) {
        sim_net_cancel(op);
    } else {
        container_of(op->target, struct sim_bell, event)->waiter = NULL;
        sim_op_ready(op, ICMS_CANCELED, 0);
    }
}

/* Waits for events of the node: another process of the machine may wait for them as well, and goes
 * on waiting. */
static void sim_bells_drop(struct sim_node *of, struct sim_node *node, struct loop *loop)
{
    list_for_each (link, &of->bells) {
        struct sim_bell *bell = container_of(link, struct sim_bell, link);
        struct loop_op *op = bell->waiter;

        if (op != NULL && sim_op_of(op, loop) && sim_loop_of(op->loop)->node == node) {
            loop_op_release(op);
            bell->waiter = NULL;
        }
    }
}

void sim_ops_drop(struct sim_node *node, struct loop *loop)
{
    sim_disk_drop(node, loop);
    sim_net_drop(node, loop);
    list_for_each (link, &node->sim->nodes)
        sim_bells_drop(container_of(link, struct sim_node, link), node, loop);
    list_for_each (link, &node->loops) {
        struct sim_loop *own = container_of(link, struct sim_loop, link);

        list_for_each_safe (ready, &own->ready) {
            struct loop_op *op = container_of(ready, struct loop_op, link);

            if (sim_op_of(op, loop)) {
                if (op->sock != NULL && loop != NULL) /* nobody learns of the connection */
                    sim_sock_close(op->sock);
                loop_op_release(op);
            }
        }
    }
}

/* ---- life ----------------------------------------------------------------------------------- */

static void sim_entropy(struct loop *loop, void *out, size_t bytes)
{
    struct sim_node *node = sim_node_of(loop->env);
    uint8_t *to = out;

    for (size_t i = 0; i < bytes; i++) {
        node->random += 0x9e3779b97f4a7c15u;
        to[i] = (uint8_t)hash64_mix(node->random);
    }
}

static icms_err sim_loop_new(struct loop_env *env, const struct loop_opts *opts,
                             struct err_why *why, struct loop **out_loop)
{
    struct sim_loop *own = sim_alloc(sizeof(*own));

    own->node = sim_node_of(env);
    own->id = ++own->node->sim->loop_count;
    own->turn.fire = sim_turn;
    list_init(&own->ready);
    list_init(&own->mails);
    list_init(&own->routes);
    list_init(&own->jobs);
    loop_init(&own->loop, env);
    list_push(&own->node->loops, &own->link);
    *out_loop = &own->loop;
    return ICMS_OK;
}

static icms_err sim_loop_start(struct loop *loop, struct err_why *why)
{
    atomic_store(&loop->phase, LOOP_RUNNING);
    sim_loop_poke(sim_loop_of(loop));
    return ICMS_OK;
}

/* No turn any more, no message; the caller sees to the operations. */
static void sim_loop_end(struct sim_loop *own)
{
    struct list *link;

    atomic_store(&own->loop.stop, true);
    sim_not(own->node->sim, &own->turn);
    while ((link = list_pop(&own->mails)) != NULL) {
        struct sim_mail *mail = container_of(link, struct sim_mail, link);

        sim_not(own->node->sim, &mail->event);
        free(mail);
    }
    while ((link = list_pop(&own->jobs)) != NULL) {
        struct sim_job *record = container_of(link, struct sim_job, link);

        sim_not(own->node->sim, &record->event);
        free(record);
    }
}

static void sim_loop_join(struct loop *loop)
{
    sim_loop_end(sim_loop_of(loop));
}

static void sim_loop_free(struct loop *loop)
{
    struct sim_loop *own = sim_loop_of(loop);
    struct list *link;

    sim_loop_end(own);
    sim_ops_drop(own->node, loop);
    check(list_empty(&own->ready));
    list_remove(&own->link);
    while ((link = list_pop(&own->routes)) != NULL)
        free(container_of(link, struct sim_route, link));
    free(own);
}

static void sim_stopped(struct loop *loop)
{
    sim_loop_poke(sim_loop_of(loop));
}

void sim_loop_crash(struct sim_node *node)
{
    list_for_each (link, &node->loops) {
        struct sim_loop *own = container_of(link, struct sim_loop, link);

        sim_loop_end(own);
        own->loop.timers = NULL;
        atomic_store(&own->loop.inbox, NULL);
        atomic_store(&own->loop.phase, LOOP_JOINED);
    }
}

static void sim_region_free(struct loop_region *region);
static void sim_event_free(struct loop_event *event);

void sim_loop_fini(struct sim_node *node)
{
    struct list *link;

    while ((link = list_first(&node->regions)) != NULL)
        sim_region_free(&container_of(link, struct sim_region, link)->region);
    while ((link = list_first(&node->bells)) != NULL)
        sim_event_free(&container_of(link, struct sim_bell, link)->event);
    while ((link = list_first(&node->loops)) != NULL)
        sim_loop_free(&container_of(link, struct sim_loop, link)->loop);
}

/* ---- regions and events --------------------------------------------------------------------- */

static icms_err sim_region_new(struct loop_env *env, const char *name, uint64_t bytes,
                               bool prefault, struct err_why *why, struct loop_region **out_region)
{
    struct sim_region *own;

    if (sim_memory_refused(sim_node_of(env)))
        return err_set(why, ICMS_NO_MEMORY, "memory '%s': out of memory", name);
    own = sim_alloc(sizeof(*own));
    own->region.env = env;
    own->region.bytes = bytes_align(bytes, SIM_PAGE);
    own->region.fd = -1;
    own->region.base = sim_alloc_pages(own->region.bytes);
    list_push(&sim_node_of(env)->regions, &own->link);
    *out_region = &own->region;
    return ICMS_OK;
}

static icms_err sim_region_register(struct loop *loop, struct loop_region *region,
                                    struct err_why *why)
{
    struct sim_node *node = sim_node_of(loop->env);

    if (!node->no_locked)
        return ICMS_OK;
    node->sim->stats.locked_refused++;
    sim_trace(node->sim, SIM_TRACE_REFUSED, node, true, region->bytes);
    return err_set(why, ICMS_LIMIT, "%s may lock no memory", node->host);
}

static icms_err sim_region_touch(struct loop_region *region)
{
    return ICMS_OK;
}

static icms_err sim_region_seal(struct loop_region *region, struct err_why *why)
{
    return ICMS_OK;
}

static void sim_region_free(struct loop_region *region)
{
    struct sim_region *own = container_of(region, struct sim_region, region);

    list_remove(&own->link);
    free(own->region.base);
    free(own);
}

static icms_err sim_event_new(struct loop_env *env, enum loop_event_role role,
                              struct loop_event **out_event)
{
    struct sim_bell *bell;

    if (sim_memory_refused(sim_node_of(env)))
        return ICMS_NO_MEMORY;
    bell = sim_alloc(sizeof(*bell));
    bell->event.target.env = env;
    bell->event.fd = -1;
    list_push(&sim_node_of(env)->bells, &bell->link);
    *out_event = &bell->event;
    return ICMS_OK;
}

static void sim_event_signal(struct loop_event *event)
{
    struct sim_bell *bell = container_of(event, struct sim_bell, event);
    struct loop_op *op = bell->waiter;

    bell->raised = op == NULL;
    bell->waiter = NULL;
    if (op != NULL)
        sim_op_ready(op, ICMS_OK, 0);
}

static void sim_event_free(struct loop_event *event)
{
    struct sim_bell *bell = container_of(event, struct sim_bell, event);

    list_remove(&bell->link);
    free(bell);
}

const struct loop_ops sim_ops = {
    .now = sim_env_now,
    .loop_new = sim_loop_new,
    .loop_start = sim_loop_start,
    .loop_join = sim_loop_join,
    .loop_free = sim_loop_free,
    .entropy = sim_entropy,
    .stopped = sim_stopped,
    .send = sim_send,
    .timer_first = sim_timer_first,
    .job_start = sim_job_start,
    .op_start = sim_op_start,
    .op_cancel = sim_op_cancel,
    .region_new = sim_region_new,
    .region_register = sim_region_register,
    .region_touch = sim_region_touch,
    .region_seal = sim_region_seal,
    .region_free = sim_region_free,
    .file_open = sim_file_open,
    .file_read_now = sim_file_read_now,
    .file_write_now = sim_file_write_now,
    .file_flush_now = sim_file_flush_now,
    .reads_new = sim_reads_new,
    .reads_start = sim_reads_start,
    .reads_wait = sim_reads_wait,
    .reads_free = sim_reads_free,
    .file_close = sim_file_close,
    .listen = sim_listen,
    .sock_addr = sim_sock_addr,
    .sock_peer = sim_sock_peer,
    .sock_mark = sim_sock_mark,
    .sock_shutdown = sim_sock_shutdown,
    .sock_send_now = sim_sock_send_now,
    .sock_tls = sim_sock_tls,
    .sock_tls_recv = sim_sock_tls_recv,
    .sock_tls_records = sim_sock_tls_records,
    .sock_tls_send = sim_sock_tls_send,
    .sock_close = sim_sock_close,
    .event_new = sim_event_new,
    .event_signal = sim_event_signal,
    .event_free = sim_event_free,
};
