/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/attach.c: see attach.h. One thread polls the listening socket and all connections.
 *
 * Life of a connection: accept -> HELLO (waits for one message, at most ATTACH_HELLO_MS) -> CLIENT,
 * until its end, which detaches the client; or the text that it asked for is sent and it ends.
 *
 * The file's permission bits say who may connect, the lists of each volume who may use it. What
 * comes from them is hostile: one message of a fixed size is read, and nothing else ever; nothing
 * they do blocks the thread (attach_peer.c), and a user has a share of the connections only.
 */
#include "agent/attach.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "agent/attach_peer.h"
#include "agent/socket.h"
#include "base/check.h"

/* Connections at a time: every client, and some that are saying hello. */
#define ATTACH_CONNS (LIMIT_CLIENTS + 32)

/* Of one user, that are no clients. */
#define ATTACH_USER_HELLOS 8

#define ATTACH_HELLO_MS   2000
#define ATTACH_TEXT_PIECE (32 << 10)

/* Out of descriptors or connections: nobody is accepted for this long. */
#define ATTACH_PAUSE_MS 100

enum attach_state {
    ATTACH_FREE,    /* no connection                              */
    ATTACH_HELLO,   /* waits for its hello; woken by poll         */
    ATTACH_CLIENT,  /* attached; woken by poll when it ends       */
    ATTACH_CLOSING, /* a thread closes it                         */
};

struct attach_conn {
    enum attach_state state;
    int sock;
    uint32_t uid;                   /* of who connected                       */
    uint32_t client;                /* CLIENT: its number                     */
    uint64_t until_ns;              /* HELLO: closed then                     */
    struct attach_closing *closing; /* CLOSING                                */
};

struct attach {
    struct agent *agent;
    struct sockaddr_un address;
    int listener;
    int wake; /* eventfd: end                          */
    pthread_t thread;
    bool running; /* thread was made                       */
    bool bound;   /* the file is ours                      */
    bool paused;  /* the next round accepts nobody         */
    struct attach_conn conns[ATTACH_CONNS];
    uint32_t groups[ATTACH_GROUPS_MAX]; /* of who says hello now */
};

static uint64_t attach_now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Sends a message with descriptors; false when the other side does not take it at once. */
static bool attach_send(int sock, const void *message, size_t bytes, const int *fds,
                        uint32_t fd_count)
{
    union {
        char bytes[CMSG_SPACE(SHM_HELLO_FDS * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    /* sendmsg does not write it */
    struct iovec vector = {(void *)(uintptr_t)message, bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};

    if (fd_count > 0) {
        struct cmsghdr *c;

        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, fd_count * sizeof(int));
    }
    return sendmsg(sock, &header, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

static void attach_refuse(int sock, icms_err err, const char *why)
{
    struct shm_welcome welcome = {
        .magic = SHM_HELLO_MAGIC, .version = SHM_VERSION, .error = (uint32_t)err};

    snprintf(welcome.why, sizeof(welcome.why), "%s", why);
    (void)attach_send(sock, &welcome, sizeof(welcome), NULL, 0);
}

/* Everything the client needs, in messages of up to SHM_HELLO_FDS descriptors. */
static bool attach_welcome(struct attach_conn *conn, const struct agent_client_map *client)
{
    const struct shm_welcome welcome = {.magic = SHM_HELLO_MAGIC,
                                        .version = SHM_VERSION,
                                        .volume_count = client->volume_count,
                                        .reactor_count = client->reactor_count};
    const uint64_t more = SHM_HELLO_MAGIC;
    int fds[2 + LIMIT_LOOPS + LIMIT_AGENT_VOLUMES];
    uint32_t count = 0, sent;

    fds[count++] = loop_region_fd(client->region);
    fds[count++] = loop_event_fd(client->client_event);
    for (uint32_t i = 0; i < client->reactor_count; i++)
        fds[count++] = loop_event_fd(client->agent_events[i]);
    for (uint32_t i = 0; i < client->volume_count; i++)
        fds[count++] = loop_region_fd(client->arenas[i]);
    sent = count < SHM_HELLO_FDS ? count : SHM_HELLO_FDS;
    if (!attach_send(conn->sock, &welcome, sizeof(welcome), fds, sent))
        return false;
    while (sent < count) {
        uint32_t n = count - sent < SHM_HELLO_FDS ? count - sent : SHM_HELLO_FDS;

        if (!attach_send(conn->sock, &more, sizeof(more), fds + sent, n))
            return false;
        sent += n;
    }
    return true;
}

/* Sends a text and frees it. NULL: there was no memory; the end of the stream says so. */
static void attach_text(const struct attach_conn *conn, char *text)
{
    size_t length = text == NULL ? 0 : strlen(text), at = 0;

    while (at < length) {
        size_t n = length - at < ATTACH_TEXT_PIECE ? length - at : ATTACH_TEXT_PIECE;

        if (!attach_send(conn->sock, text + at, n, NULL, 0))
            break;
        at += n;
    }
    free(text);
}

static char *attach_status(const struct attach *attach, const struct agent_user *user)
{
    size_t bytes = agent_status_as(attach->agent, user, NULL, 0) + 4096; /* it may grow meanwhile */
    char *text = malloc(bytes);

    if (text != NULL)
        (void)agent_status_as(attach->agent, user, text, bytes);
    return text;
}

static char *attach_trace(const struct attach *attach, const struct agent_user *user,
                          const struct shm_key *asked)
{
    struct key key = {.length = asked->length};

    memcpy(key.bytes, asked->bytes, key.length);
    return agent_trace(attach->agent, user, key.length == 0 ? NULL : &key);
}

/* ---- connections ---------------------------------------------------------------------------- */

static void attach_conn_close(struct attach *attach, struct attach_conn *conn)
{
    if (conn->state == ATTACH_CLIENT)
        agent_client_detach(attach->agent, conn->client, NULL, NULL);
    conn->closing = attach_peer_close(conn->sock);
    conn->state = conn->closing == NULL ? ATTACH_FREE : ATTACH_CLOSING;
}

/* Makes the connection a client; false: it ends. */
static bool attach_client(struct attach *attach, struct attach_conn *conn,
                          const struct agent_user *user, uint64_t staging_bytes)
{
    struct agent_client_map client;
    struct err_why why = {""};
    icms_err err = agent_client_attach_as(attach->agent, user, staging_bytes, &why, &client);

    if (err != ICMS_OK) {
        attach_refuse(conn->sock, err, why.text);
        return false;
    }
    conn->state = ATTACH_CLIENT;
    conn->client = client.client;
    return attach_welcome(conn, &client);
}

/* The hello is there, or the end; false: the connection ends. */
static bool attach_hello(struct attach *attach, struct attach_conn *conn)
{
    struct agent_user user;
    struct shm_hello hello;
    icms_err err = attach_peer_take(conn->sock, &hello, sizeof(hello));

    if (err == ICMS_BUSY)
        return true;
    if (err != ICMS_OK || hello.magic != SHM_HELLO_MAGIC)
        return false;
    if (hello.version != SHM_VERSION) {
        attach_refuse(conn->sock, ICMS_VERSION,
                      "client and agent are of different releases: install the same of both");
        return false;
    }
    if (attach_peer_user(conn->sock, attach->groups, &user) != ICMS_OK)
        return false;
    if (hello.op == SHM_HELLO_ATTACH)
        return attach_client(attach, conn, &user, hello.staging_bytes);
    if (hello.op == SHM_HELLO_STATUS)
        attach_text(conn, attach_status(attach, &user));
    else if (hello.op == SHM_HELLO_TRACE && hello.key.length > LIMIT_KEY_BYTES)
        attach_refuse(conn->sock, ICMS_KEY_SIZE, "a key has 1 to 16 bytes");
    else if (hello.op == SHM_HELLO_TRACE)
        attach_text(conn, attach_trace(attach, &user, &hello.key));
    else
        attach_refuse(conn->sock, ICMS_UNSUPPORTED, "the agent does not know this request");
    return false;
}

/* A connection that is free; NULL: none. */
static struct attach_conn *attach_conn_free(struct attach *attach)
{
    struct attach_conn *free = NULL;

    for (int i = 0; i < ATTACH_CONNS; i++) {
        struct attach_conn *conn = &attach->conns[i];

        if (conn->state == ATTACH_CLOSING && attach_peer_closed(&conn->closing))
            conn->state = ATTACH_FREE;
        if (conn->state == ATTACH_FREE)
            free = conn;
    }
    return free;
}

/* True when this user has more connections that are no clients than its share. */
static bool attach_is_over(const struct attach *attach, const struct agent_user *user)
{
    unsigned used = 0;

    for (int i = 0; i < ATTACH_CONNS; i++) {
        const struct attach_conn *conn = &attach->conns[i];

        if (conn->state != ATTACH_FREE && conn->state != ATTACH_CLIENT)
            used += conn->uid == user->uid;
    }
    return !user->owner && used > ATTACH_USER_HELLOS;
}

/* With no connection left nobody is accepted: whoever closes a socket needs one. */
static void attach_accept(struct attach *attach)
{
    struct attach_conn *conn = attach_conn_free(attach);
    struct agent_user user;
    int sock;

    attach->paused = conn == NULL;
    if (conn == NULL)
        return;
    sock = accept4(attach->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (sock < 0) { /* gone again; or out of descriptors: it waits in the backlog */
        attach->paused = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return;
    }
    conn->state = ATTACH_HELLO;
    conn->sock = sock;
    conn->until_ns = attach_now_ns() + (uint64_t)ATTACH_HELLO_MS * 1000000;
    if (attach_peer_user(sock, attach->groups, &user) == ICMS_OK) {
        conn->uid = user.uid;
        if (!attach_is_over(attach, &user))
            return;
        attach_refuse(sock, ICMS_LIMIT, "this user has too many connections");
    }
    attach_conn_close(attach, conn);
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void attach_serve(struct attach *attach, struct attach_conn *conn, short events)
{
    bool goes_on = true;

    if (conn->state == ATTACH_HELLO && events != 0)
        goes_on = attach_hello(attach, conn);
    else if (conn->state == ATTACH_HELLO)
        goes_on = attach_now_ns() < conn->until_ns;
    else if (events != 0)
        goes_on = false; /* of an attached client nothing may come but its end */
    if (!goes_on)
        attach_conn_close(attach, conn);
}

static void *attach_run(void *arg)
{
    struct attach *attach = arg;
    struct pollfd fds[2 + ATTACH_CONNS];
    struct attach_conn *who[2 + ATTACH_CONNS];

    for (;;) {
        nfds_t count = 2;
        bool hellos = false;
        int timeout_ms;

        fds[0] = (struct pollfd){.fd = attach->wake, .events = POLLIN};
        fds[1] = (struct pollfd){.fd = attach->paused ? -1 : attach->listener, .events = POLLIN};
        for (int i = 0; i < ATTACH_CONNS; i++) {
            struct attach_conn *conn = &attach->conns[i];

            if (conn->state == ATTACH_FREE || conn->state == ATTACH_CLOSING)
                continue;
            hellos = hellos || conn->state == ATTACH_HELLO;
            fds[count] = (struct pollfd){.fd = conn->sock, .events = POLLIN};
            who[count++] = conn;
        }
        timeout_ms = attach->paused ? ATTACH_PAUSE_MS : hellos ? ATTACH_HELLO_MS / 4 : -1;
        if (poll(fds, count, timeout_ms) < 0)
            continue; /* a signal */
        attach->paused = false;
        if (fds[0].revents != 0)
            return NULL;
        for (nfds_t i = 2; i < count; i++)
            attach_serve(attach, who[i], fds[i].revents);
        if (fds[1].revents != 0)
            attach_accept(attach);
    }
}

/* ---- life ----------------------------------------------------------------------------------- */

static icms_err attach_listen(struct attach *attach, uint32_t mode, struct err_why *why)
{
    const char *path = attach->address.sun_path;
    icms_err err = agent_socket_listen(path, SOCK_SEQPACKET, mode, why, &attach->listener);

    if (err != ICMS_OK)
        return err;
    attach->bound = true;
    attach->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (attach->wake < 0)
        return err_set(why, err_from_errno(errno), "cannot make an event for %s", path);
    return ICMS_OK;
}

icms_err attach_start(struct agent *agent, const char *path, uint32_t mode, struct err_why *why,
                      struct attach **out_attach)
{
    struct attach *attach;
    icms_err err;

    if (path[0] == 0 || strlen(path) >= sizeof(attach->address.sun_path))
        return err_set(why, ICMS_CONFIG, "a socket's path has 1 to %zu bytes: %s",
                       sizeof(attach->address.sun_path) - 1, path);
    attach = calloc(1, sizeof(*attach));
    if (attach == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the socket %s", path);
    attach->agent = agent;
    attach->listener = attach->wake = -1;
    attach->address.sun_family = AF_UNIX;
    memcpy(attach->address.sun_path, path, strlen(path) + 1);
    err = attach_listen(attach, mode, why);
    if (err == ICMS_OK && pthread_create(&attach->thread, NULL, attach_run, attach) != 0)
        err = err_set(why, ICMS_LIMIT, "cannot make a thread for the socket %s", path);
    attach->running = err == ICMS_OK;
    if (err != ICMS_OK) {
        attach_stop(&attach);
        return err;
    }
    *out_attach = attach;
    return ICMS_OK;
}

void attach_stop(struct attach **attach_)
{
    struct attach *attach = *attach_;
    uint64_t one = 1;

    if (attach == NULL)
        return;
    if (attach->running) {
        check(write(attach->wake, &one, sizeof(one)) == sizeof(one));
        check(pthread_join(attach->thread, NULL) == 0);
    }
    if (attach->bound)
        (void)unlink(attach->address.sun_path);
    for (int i = 0; i < ATTACH_CONNS; i++) {
        struct attach_conn *conn = &attach->conns[i];

        if (conn->state == ATTACH_HELLO || conn->state == ATTACH_CLIENT)
            conn->closing = attach_peer_close(conn->sock);
        attach_peer_leave(&conn->closing);
    }
    if (attach->listener >= 0)
        (void)close(attach->listener);
    if (attach->wake >= 0)
        (void)close(attach->wake);
    free(attach);
    *attach_ = NULL;
}
