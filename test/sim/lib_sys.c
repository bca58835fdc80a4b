/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine below libicms: src/client/sys.h in virtual time, the hello to an agent
 * (src/client/attach.c), an agent in the process (src/client/local.h).
 *
 * Descriptors are numbers into a table. A connection (struct lib_conn) is what a hello makes: the
 * agent's regions, mapped; the event by which it signals; a socket whose end says that the process
 * or the agent ended. It lives as long as either side has something of it:
 *
 *   attached -> the process closes its socket (or is killed) -> the wait for its event is canceled
 *   -> the agent, if it lives, lets go of the client -> gone
 *
 * An agent that ended is freed when no connection maps its memory any more, as a kernel would.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "lib.h"

#define SYS_FDS     2048
#define SYS_MEMBERS 8
#define SYS_RETRY   (200 * US) /* how often a hello looks whether somebody answers */

enum sys_kind {
    SYS_NONE,
    SYS_EVENT,
    SYS_TIMER,
    SYS_SET,
    SYS_AGENT_SIGNALS, /* of a connection: the agent signals         */
    SYS_AGENT_WAITS,   /* of a connection: wakes one of its reactors */
    SYS_SOCK,          /* of a connection                            */
};

struct lib_conn {
    struct list link; /* in sys_conns                                         */
    struct lib_process *process;
    struct pod_agent *pod_agent;
    struct agent *agent; /* this instance; NULL: it ended                        */
    struct agent *ended; /* it ended, and its memory is kept for this            */
    struct agent_client_map attached;
    struct loop_op op;        /* the wait for its signal                              */
    struct loop_msg msg;      /* begins or cancels it                                 */
    bool msg_out;             /* it is on its way                                     */
    bool waits;               /* the wait is to go on                                 */
    bool signalled;           /* not taken yet                                        */
    bool hung;                /* sys_hangup: both sides see the end                   */
    bool mapped, open;        /* by the process: memory, socket                       */
    bool detaching, detached; /* the agent was told; it let go                        */
};

struct sys_fd {
    enum sys_kind kind;
    struct lib_process *process;
    bool raised;              /* EVENT                                   */
    uint64_t at_ns;           /* TIMER: virtual time                     */
    int members[SYS_MEMBERS]; /* SET; -1: none                       */
    struct lib_conn *conn;
    uint32_t reactor; /* AGENT_WAITS                             */
};

static struct sys_fd sys_fds[SYS_FDS];
static struct list sys_conns = {&sys_conns, &sys_conns};

/* ---- time ----------------------------------------------------------------------------------- */

uint64_t lib_node_now_ns(const struct lib_process *process)
{
    return loop_env_now_ns(sim_node_env(process->client->agent->node));
}

uint64_t lib_virtual_ns(const struct lib_process *process, uint64_t node_ns)
{
    uint64_t ahead_ns = lib_node_now_ns(process) - sim_now_ns(lib_world->sim);

    return node_ns == LIB_EVER || node_ns < ahead_ns ? node_ns : node_ns - ahead_ns;
}

uint64_t client_now_ns(void)
{
    lib_point();
    return lib_node_now_ns(lib_current->process);
}

void sys_sleep(uint64_t ns)
{
    lib_sleep(ns);
}

void sys_random(void *out, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)out)[i] = (uint8_t)lib_chance(256);
}

static void sys_thread_run(struct lib_thread *thread)
{
    (void)thread->own(thread->arg);
}

bool sys_thread_new(pthread_t *out_thread, void *(*run)(void *arg), void *arg)
{
    struct lib_process *process = lib_current->process;
    struct lib_thread *thread = &process->threads[LIB_CALLERS];

    thread->own = run;
    thread->arg = arg;
    lib_thread_start(thread, process, sys_thread_run);
    *out_thread = (pthread_t)LIB_CALLERS;
    return true;
}

void sys_thread_join(pthread_t thread)
{
    while (lib_current->process->threads[thread].state != LIB_OVER)
        lib_sleep(SYS_RETRY);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static int sys_fd_new(enum sys_kind kind, struct lib_conn *conn)
{
    for (int fd = 0; fd < SYS_FDS; fd++) {
        struct sys_fd *own = &sys_fds[fd];

        if (own->kind != SYS_NONE)
            continue;
        *own = (struct sys_fd){
            .kind = kind, .process = lib_current->process, .at_ns = LIB_EVER, .conn = conn};
        for (int i = 0; i < SYS_MEMBERS; i++)
            own->members[i] = -1;
        return fd;
    }
    pod_fail(lib_world, POD_FAULT_LIMIT, "a process leaves descriptors open");
}

static struct sys_fd *sys_fd_of(int fd)
{
    check(fd >= 0 && fd < SYS_FDS && sys_fds[fd].kind != SYS_NONE);
    return &sys_fds[fd];
}

bool lib_fd_listens(int fd)
{
    return !sys_fd_of(fd)->conn->msg_out;
}

bool lib_fd_readable(int fd)
{
    const struct sys_fd *own = sys_fd_of(fd);
    bool readable = false;

    switch (own->kind) {
    case SYS_EVENT:
        return own->raised;
    case SYS_TIMER:
        return own->at_ns <= sim_now_ns(lib_world->sim);
    case SYS_AGENT_SIGNALS:
        return own->conn->signalled || own->conn->agent == NULL;
    case SYS_SOCK:
        return own->conn->hung || own->conn->agent == NULL;
    case SYS_SET:
        for (int i = 0; i < SYS_MEMBERS; i++)
            readable = readable || (own->members[i] >= 0 && lib_fd_readable(own->members[i]));
        return readable;
    default:
        return false;
    }
}

int sys_event_new(void)
{
    return sys_fd_new(SYS_EVENT, NULL);
}

int sys_timer_new(void)
{
    return sys_fd_new(SYS_TIMER, NULL);
}

int sys_set_new(void)
{
    return sys_fd_new(SYS_SET, NULL);
}

void sys_event_raise(int event)
{
    struct sys_fd *own = sys_fd_of(event);

    lib_point();
    if (own->kind == SYS_EVENT)
        own->raised = true;
    else if (own->conn->agent != NULL)
        loop_event_signal(own->conn->attached.agent_events[own->reactor]);
    lib_point();
}

bool sys_event_drain(int event)
{
    struct sys_fd *own = sys_fd_of(event);

    lib_point();
    if (own->kind == SYS_TIMER && own->at_ns <= sim_now_ns(lib_world->sim))
        own->at_ns = LIB_EVER;
    own->raised = false;
    return own->kind == SYS_EVENT || own->kind == SYS_TIMER;
}

bool sys_timer_set(int timer, uint64_t at_ns)
{
    lib_point();
    sys_fd_of(timer)->at_ns = lib_virtual_ns(lib_current->process, at_ns);
    return true;
}

icms_err sys_set_add(int set, int event)
{
    struct sys_fd *own = sys_fd_of(set);

    check(sys_fd_of(event)->kind != SYS_NONE);
    for (int i = 0; i < SYS_MEMBERS; i++)
        if (own->members[i] < 0) {
            own->members[i] = event;
            return ICMS_OK;
        }
    return ICMS_LIMIT;
}

void sys_set_remove(int set, int event)
{
    struct sys_fd *own = sys_fd_of(set);

    for (int i = 0; i < SYS_MEMBERS; i++)
        if (own->members[i] == event)
            own->members[i] = -1;
}

/* A closed descriptor leaves every set. */
static void sys_fd_close(int fd)
{
    struct sys_fd *own = sys_fd_of(fd);

    for (int i = 0; i < SYS_FDS; i++)
        if (sys_fds[i].kind == SYS_SET)
            sys_set_remove(i, fd);
    if (own->kind == SYS_SOCK)
        own->conn->open = false;
    own->kind = SYS_NONE;
}

void sys_close(int fd)
{
    lib_point();
    sys_fd_close(fd);
}

void lib_fds_close(const struct lib_process *process)
{
    for (int fd = 0; fd < SYS_FDS; fd++)
        if (sys_fds[fd].kind != SYS_NONE && sys_fds[fd].process == process)
            sys_fd_close(fd);
    list_for_each (at, &sys_conns) {
        struct lib_conn *conn = container_of(at, struct lib_conn, link);

        if (conn->process == process)
            conn->mapped = conn->open = false;
    }
}

/* ---- waiting -------------------------------------------------------------------------------- */

uint32_t sys_wait(int signal, int sock, int wake, uint64_t until_ns)
{
    const int fds[LIB_WAIT_FDS] = {signal, sock, wake};
    uint64_t wake_ns = lib_virtual_ns(lib_current->process, until_ns);
    uint32_t ready = 0;

    lib_point();
    if (until_ns != 0 && lib_chance(64) == 0)
        wake_ns = sim_now_ns(lib_world->sim) + lib_chance(MS); /* a signal of the process */
    if (until_ns != 0)
        (void)lib_wait_fds(fds, wake_ns);
    ready |= signal >= 0 && lib_fd_readable(signal) ? SYS_SIGNAL : 0;
    ready |= sock >= 0 && lib_fd_readable(sock) ? SYS_ENDED : 0;
    ready |= wake >= 0 && lib_fd_readable(wake) ? SYS_WOKEN : 0;
    lib_point();
    return ready;
}

bool sys_signal_take(int signal)
{
    struct lib_conn *conn = sys_fd_of(signal)->conn;
    bool more = conn->signalled || conn->agent != NULL;

    lib_point();
    conn->signalled = false;
    return more;
}

void sys_hangup(int sock)
{
    sys_fd_of(sock)->conn->hung = true;
}

void sys_unmap(void *base, uint64_t bytes)
{
    list_for_each (at, &sys_conns) {
        struct lib_conn *conn = container_of(at, struct lib_conn, link);

        if (conn->process == lib_current->process && conn->mapped &&
            loop_region_base(conn->attached.region) == base)
            conn->mapped = false; /* the client region: nothing is read after it */
    }
}

/* ---- a connection --------------------------------------------------------------------------- */

static void conn_signalled(struct loop_op *op)
{
    struct lib_conn *conn = container_of(op, struct lib_conn, op);

    if (!conn->waits)
        return;
    conn->signalled = true;
    loop_event_wait(conn->process->client->loop, &conn->op, conn->attached.client_event,
                    conn_signalled);
}

static void conn_begin_msg(struct loop_msg *msg)
{
    struct lib_conn *conn = container_of(msg, struct lib_conn, msg);

    conn->msg_out = false;
    if (conn->waits)
        loop_event_wait(conn->process->client->loop, &conn->op, conn->attached.client_event,
                        conn_signalled);
}

static void conn_cancel_msg(struct loop_msg *msg)
{
    struct lib_conn *conn = container_of(msg, struct lib_conn, msg);

    conn->msg_out = false;
    if (loop_op_busy(&conn->op))
        loop_op_cancel(&conn->op);
}

static void conn_detached(void *arg)
{
    struct lib_conn *conn = arg;

    conn->detached = true;
}

/* Neither side uses it. */
static bool conn_is_gone(const struct lib_conn *conn)
{
    return !conn->open && !conn->mapped && !conn->msg_out && !loop_op_busy(&conn->op) &&
           (conn->agent == NULL || conn->detached);
}

/* The process, or the agent, is done with it. */
static void conn_drive(struct lib_conn *conn)
{
    bool over = !conn->open && !conn->mapped;

    if (!over || conn->msg_out || (conn->detaching && !conn->detached))
        return;
    conn->waits = false;
    if (loop_op_busy(&conn->op)) {
        conn->msg_out = true;
        loop_send(conn->process->client->loop, &conn->msg, conn_cancel_msg);
    } else if (conn->agent != NULL && !conn->detaching &&
               conn->pod_agent->state == POD_MACHINE_UP) {
        conn->detaching = true;
        agent_client_detach(conn->agent, conn->attached.client, conn_detached, conn);
    }
}

/* Frees what ended when nobody has its memory. */
static void conns_agent_free(struct agent *ended)
{
    list_for_each (at, &sys_conns) {
        struct lib_conn *conn = container_of(at, struct lib_conn, link);

        if (conn->ended == ended && !conn_is_gone(conn))
            return;
    }
    list_for_each (at, &sys_conns) {
        struct lib_conn *conn = container_of(at, struct lib_conn, link);

        if (conn->ended == ended)
            conn->ended = NULL;
    }
    agent_free(&ended);
}

void lib_conns_drive(void)
{
    list_for_each (at, &sys_conns)
        conn_drive(container_of(at, struct lib_conn, link));
    for (struct list *at = list_first(&sys_conns), *next; at != NULL; at = next) {
        struct lib_conn *conn = container_of(at, struct lib_conn, link);

        next = at->next == &sys_conns ? NULL : at->next;
        if (!conn_is_gone(conn))
            continue;
        if (conn->ended != NULL)
            conns_agent_free(conn->ended);
        if (conn->ended == NULL) {
            list_remove(&conn->link);
            free(conn);
        }
    }
}

void lib_agent_free(struct pod_agent *agent)
{
    struct agent *ended = agent->agent;

    agent->agent = NULL;
    list_for_each (at, &sys_conns) {
        struct lib_conn *conn = container_of(at, struct lib_conn, link);

        if (conn->agent != ended)
            continue;
        conn->agent = NULL;
        conn->ended = ended;
    }
    conns_agent_free(ended);
}

bool lib_conns_gone(const struct lib_process *process)
{
    list_for_each (at, &sys_conns)
        if (container_of(at, struct lib_conn, link)->process == process)
            return false;
    return true;
}

void lib_conns_free(void)
{
    struct list *at;

    list_for_each (link, &sys_conns) {
        struct lib_conn *conn = container_of(link, struct lib_conn, link);

        conn->msg_out = conn->open = conn->mapped = false;
        conn->agent = NULL;             /* the world has it                        */
        conn->op = (struct loop_op){0}; /* its loop is crashed, and calls it never */
    }
    while ((at = list_first(&sys_conns)) != NULL) {
        struct lib_conn *conn = container_of(at, struct lib_conn, link);

        if (conn->ended != NULL)
            conns_agent_free(conn->ended);
        list_remove(&conn->link);
        free(conn);
    }
    memset(sys_fds, 0, sizeof(sys_fds));
}

/* ---- the hello ------------------------------------------------------------------------------ */

/* Another connection of the process to this agent is not gone yet: an agent counts its clients. */
static bool hello_is_early(const struct lib_process *process)
{
    list_for_each (at, &sys_conns) {
        const struct lib_conn *conn = container_of(at, struct lib_conn, link);

        if (conn->process == process && conn->agent != NULL)
            return true;
    }
    return false;
}

/* Fills a new link with what the agent gives. */
static icms_err hello_attach(struct client_link *link, uint64_t staging_bytes, struct err_why *why,
                             struct lib_conn **out_conn)
{
    struct lib_process *process = lib_current->process;
    struct pod_agent *agent = process->client->agent;
    struct lib_conn *conn = calloc(1, sizeof(*conn));
    icms_err err;

    check(conn != NULL);
    conn->process = process;
    conn->pod_agent = agent;
    conn->agent = agent->agent;
    sim_node_as(agent->node);
    err = agent_client_attach(agent->agent, staging_bytes, why, &conn->attached);
    sim_node_as(NULL);
    if (err != ICMS_OK) {
        free(conn);
        return err;
    }
    list_push(&sys_conns, &conn->link);
    conn->open = conn->mapped = conn->waits = conn->msg_out = true;
    loop_send(process->client->loop, &conn->msg, conn_begin_msg);

    link->region.base = loop_region_base(conn->attached.region);
    link->region.bytes = loop_region_bytes(conn->attached.region);
    link->arena_count = conn->attached.volume_count;
    for (uint32_t i = 0; i < link->arena_count; i++) {
        link->maps[i].base = loop_region_base(conn->attached.arenas[i]);
        link->maps[i].bytes = loop_region_bytes(conn->attached.arenas[i]);
    }
    link->reactor_count = conn->attached.reactor_count;
    for (uint32_t r = 0; r < link->reactor_count; r++) {
        link->agent_events[r] = sys_fd_new(SYS_AGENT_WAITS, conn);
        sys_fds[link->agent_events[r]].reactor = r;
    }
    link->client_event = sys_fd_new(SYS_AGENT_SIGNALS, conn);
    link->events_owned = true;
    *out_conn = conn;
    return ICMS_OK;
}

icms_err client_attach_unix(const char *path, uint64_t staging_bytes, uint32_t timeout_ms,
                            struct err_why *why, struct client_link **out_link)
{
    const struct lib_process *process = lib_current->process;
    const struct pod_agent *agent = process->client->agent;
    uint64_t until_ns = client_now_ns() + timeout_ms * MS;
    icms_err err = client_link_new(out_link);
    struct lib_conn *conn;

    check(err == ICMS_OK);
    while (agent->paused || hello_is_early(process)) {
        if (client_now_ns() >= until_ns)
            break;
        lib_sleep(SYS_RETRY);
    }
    if (agent->state != POD_MACHINE_UP)
        err = err_set(why, ICMS_REFUSED, "nobody listens");
    else if (agent->paused || hello_is_early(process))
        err = err_set(why, ICMS_PEER_DOWN, "no response");
    if (err == ICMS_OK)
        err = hello_attach(*out_link, staging_bytes, why, &conn);
    if (err == ICMS_OK) {
        (*out_link)->sock = sys_fd_new(SYS_SOCK, conn);
        err = client_link_view(*out_link, why);
    }
    if (err != ICMS_OK)
        client_link_free(out_link);
    return err;
}

/* Asked by icms_status and icms_trace, which nobody calls here. */
icms_err client_text_unix(const char *path, struct client_link *link,
                          const struct client_question *question, char *out, size_t bytes,
                          size_t *out_bytes)
{
    return ICMS_UNSUPPORTED;
}

/* ---- an agent in the process ---------------------------------------------------------------- */

/* It is one of the pod's: what crashes or stops it ends the process as well (lib_client.c). */
struct client_local {
    uint64_t staging_bytes;
};

struct client_inside {
    const struct lib_conn *conn;
};

icms_err client_local_open_pod(const char *path, const struct icms_options *options,
                               struct err_why *why, struct client_local **out_local)
{
    struct client_local *local = calloc(1, sizeof(*local));

    check(local != NULL);
    local->staging_bytes = options->buffer_bytes;
    *out_local = local;
    return ICMS_OK;
}

icms_err client_local_start(struct client_local *local, struct err_why *why,
                            struct client_link **out_link)
{
    struct client_link *link;
    struct lib_conn *conn;
    icms_err err = client_link_new(&link);

    check(err == ICMS_OK);
    if (lib_current->process->client->agent->state != POD_MACHINE_UP)
        err = ICMS_REFUSED;
    if (err == ICMS_OK)
        err = hello_attach(link, local->staging_bytes, why, &conn);
    if (err == ICMS_OK) {
        agent_client_trust(conn->agent, conn->attached.client);
        link->inside = calloc(1, sizeof(*link->inside));
        check(link->inside != NULL);
        link->inside->conn = conn;
        err = client_link_view(link, why);
    }
    if (err != ICMS_OK)
        client_link_free(&link);
    else
        *out_link = link;
    return err;
}

void client_inside_free(struct client_inside **inside)
{
    const struct client_inside *own = *inside;

    list_for_each (at, &sys_conns) {
        struct lib_conn *conn = container_of(at, struct lib_conn, link);

        if (conn == own->conn)
            conn->open = conn->mapped = false;
    }
    /* agent_client_detach_wait(). Not by the connection's address, which the next one may get. */
    while (!lib_conns_gone(lib_current->process))
        lib_sleep(SYS_RETRY);
    free(*inside);
    *inside = NULL;
}

size_t client_inside_status(struct client_inside *inside, char *out, size_t bytes)
{
    return agent_status(inside->conn->agent, out, bytes);
}

icms_err client_inside_trace(struct client_inside *inside, const struct icms_key *key, char *out,
                             size_t bytes, size_t *out_bytes)
{
    return ICMS_UNSUPPORTED;
}

void client_local_close(struct client_local **local)
{
    free(*local);
    *local = NULL;
}

/* "dir:" is this with a drive of its own; here all agents have a pod. */
icms_err client_local_open_dir(const char *path, const struct icms_options *options,
                               struct err_why *why, struct client_local **out_local)
{
    return ICMS_UNSUPPORTED;
}

bool client_local_makes_volumes(const struct client_local *local)
{
    return false;
}

bool client_local_has_drive(const struct client_local *local)
{
    (void)local;
    return false;
}

uint32_t client_local_volumes(const struct client_local *local)
{
    return POD_VOLUMES;
}

icms_err client_local_volume_add(struct client_local *local, const char *name, bool encrypted,
                                 struct err_why *why)
{
    return ICMS_UNSUPPORTED;
}

void client_local_volume_drop(struct client_local *local)
{
}
