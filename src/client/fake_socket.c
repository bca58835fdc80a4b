/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/fake_socket.c: the unix socket of an agent of tests, see fake_agent.h. A thread of its own
 * accepts clients and attaches them; a failed step ends the test.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "client/fake_agent.h"
#include "shm/shm.h"

struct fake_socket {
    struct agent *agent;
    pthread_t thread;
    atomic_bool stop;
    int listener;
    int socks[FAKE_CLIENTS];
    uint32_t clients[FAKE_CLIENTS];
    uint32_t count;
    char path[108];
};

/* A client that is gone does not matter: its end is seen in time. */
static void socket_send(int sock, const void *data, size_t bytes, const int *fds, uint32_t count)
{
    union {
        char bytes[CMSG_SPACE(SHM_HELLO_FDS * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec vector = {(void *)(uintptr_t)data, bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    struct cmsghdr *c;

    if (count != 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(count * sizeof(int));
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    check(sendmsg(sock, &header, MSG_NOSIGNAL) == (ssize_t)bytes || errno == EPIPE ||
          errno == ECONNRESET);
}

static void socket_attach(struct fake_socket *s, int sock, uint64_t staging_bytes)
{
    struct shm_welcome welcome = {.magic = SHM_HELLO_MAGIC, .version = SHM_VERSION};
    uint64_t magic = SHM_HELLO_MAGIC;
    int fds[2 + FAKE_REACTORS + LIMIT_AGENT_VOLUMES];
    struct agent_client_map client;
    uint32_t at = 0, count = 0;

    check(agent_client_attach(s->agent, staging_bytes, NULL, &client) == ICMS_OK);
    welcome.volume_count = client.volume_count;
    welcome.reactor_count = client.reactor_count;
    fds[count++] = loop_region_fd(client.region);
    fds[count++] = loop_event_fd(client.client_event);
    for (uint32_t r = 0; r < client.reactor_count; r++)
        fds[count++] = loop_event_fd(client.agent_events[r]);
    /* In two messages, so that the second kind is seen by tests, too. */
    socket_send(sock, &welcome, sizeof(welcome), fds, count);
    for (uint32_t i = 0; i < client.volume_count; i++)
        fds[i] = loop_region_fd(client.arenas[i]);
    if (client.volume_count != 0)
        socket_send(sock, &magic, sizeof(magic), fds, client.volume_count);
    while (at < s->count && s->socks[at] >= 0)
        at++;
    check(at < FAKE_CLIENTS);
    s->count += at == s->count;
    s->socks[at] = sock;
    s->clients[at] = client.client;
}

/* Messages without end, the first one of them a welcome; until the client has enough. */
static void socket_babble(int sock)
{
    struct shm_welcome welcome = {
        .magic = SHM_HELLO_MAGIC, .version = SHM_VERSION, .volume_count = 1, .reactor_count = 1};
    uint64_t magic = SHM_HELLO_MAGIC;

    socket_send(sock, &welcome, sizeof(welcome), NULL, 0);
    while (atomic_load(&fake.babble) && send(sock, &magic, sizeof(magic), MSG_NOSIGNAL) > 0) {
    }
}

static void socket_accept(struct fake_socket *s)
{
    int sock = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);
    struct shm_hello hello;
    char text[256];

    check(sock >= 0);
    if (recv(sock, &hello, sizeof(hello), 0) != (ssize_t)sizeof(hello)) {
        (void)close(sock);
    } else if (atomic_load(&fake.babble)) {
        socket_babble(sock);
        (void)close(sock);
    } else if (hello.op == SHM_HELLO_STATUS) {
        size_t bytes = agent_status(s->agent, text, sizeof(text));

        socket_send(sock, text, bytes, NULL, 0);
        (void)close(sock);
    } else if (hello.op == SHM_HELLO_TRACE) {
        struct key key = {.length = hello.key.length};
        char *answer;

        memcpy(key.bytes, hello.key.bytes, sizeof(key.bytes));
        answer = agent_trace(s->agent, NULL, key.length == 0 ? NULL : &key);
        socket_send(sock, answer, strlen(answer), NULL, 0);
        free(answer);
        (void)close(sock);
    } else {
        socket_attach(s, sock, hello.staging_bytes);
    }
}

static void *socket_serve(void *arg)
{
    struct fake_socket *s = arg;

    while (!atomic_load(&s->stop)) {
        struct pollfd fds[1 + FAKE_CLIENTS] = {{.fd = s->listener, .events = POLLIN}};

        for (uint32_t i = 0; i < s->count; i++)
            fds[1 + i] = (struct pollfd){.fd = s->socks[i], .events = POLLIN};
        (void)poll(fds, 1 + s->count, 10);
        if (fds[0].revents != 0)
            socket_accept(s);
        for (uint32_t i = 0; i < s->count; i++)
            if (s->socks[i] >= 0 && fds[1 + i].fd == s->socks[i] && fds[1 + i].revents != 0) {
                agent_client_detach_wait(s->agent, s->clients[i]);
                (void)close(s->socks[i]);
                s->socks[i] = -1;
            }
    }
    return NULL;
}

struct fake_socket *fake_socket_start(struct agent *agent, const char *path)
{
    struct fake_socket *s = calloc(1, sizeof(*s));
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    check(s != NULL && strlen(path) < sizeof(address.sun_path));
    memcpy(address.sun_path, path, strlen(path) + 1);
    memcpy(s->path, path, strlen(path) + 1);
    s->agent = agent;
    s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    check(s->listener >= 0);
    (void)unlink(path);
    check(bind(s->listener, (const struct sockaddr *)&address, sizeof(address)) == 0);
    check(listen(s->listener, 16) == 0);
    check(pthread_create(&s->thread, NULL, socket_serve, s) == 0);
    return s;
}

void fake_socket_stop(struct fake_socket **socket)
{
    struct fake_socket *s = *socket;

    *socket = NULL;
    atomic_store(&s->stop, true);
    check(pthread_join(s->thread, NULL) == 0);
    (void)close(s->listener);
    for (uint32_t i = 0; i < s->count; i++)
        if (s->socks[i] >= 0) {
            (void)close(s->socks[i]);
            agent_client_detach_wait(s->agent, s->clients[i]);
        }
    (void)unlink(s->path);
    free(s);
}
