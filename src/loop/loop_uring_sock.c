/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP sockets of the io_uring back end: all that is not an operation of the ring.
 *
 * Sockets are blocking descriptors: io_uring itself never blocks on them, and waits by itself only
 * when they are. Listeners are made on the set-up thread, the others on their loop's.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "loop/loop_uring.h"

#define URING_BACKLOG 1024

/* A socket address; false when the host is not a numeric address. */
static bool sock_address(const struct loop_addr *addr, struct sockaddr_in6 *out_addr,
                         socklen_t *out_bytes)
{
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(addr->port)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(addr->port)};

    if (inet_pton(AF_INET, addr->host, &four.sin_addr) == 1) {
        memcpy(out_addr, &four, sizeof(four));
        *out_bytes = sizeof(four);
        return true;
    }
    if (inet_pton(AF_INET6, addr->host, &six.sin6_addr) == 1) {
        *out_addr = six;
        *out_bytes = sizeof(six);
        return true;
    }
    return false;
}

struct uring_sock *uring_sock_new(struct loop_env *env, int fd)
{
    struct uring_sock *sock = calloc(1, sizeof(*sock));
    int on = 1;

    if (sock == NULL) {
        (void)close(fd);
        return NULL;
    }
    sock->sock.target.env = env;
    sock->fd = loop_fd_own(fd);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return sock;
}

icms_err uring_connect_start(struct loop_op *op)
{
    union uring_words *words = uring_words(op);
    int fd;

    if (!sock_address(op->memory, &words->connect.addr, &words->connect.addr_bytes))
        return ICMS_INVALID;
    fd = socket(words->connect.addr.sin6_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_from_errno(errno);
    words->connect.sock = uring_sock_new(op->loop->env, fd);
    return words->connect.sock != NULL ? ICMS_OK : ICMS_NO_MEMORY;
}

/* The other way. */
static void sock_text(const struct sockaddr_in6 *from, struct loop_addr *out_addr)
{
    struct sockaddr_in6 six = *from;
    struct sockaddr_in four;

    if (six.sin6_family == AF_INET6) {
        out_addr->port = ntohs(six.sin6_port);
        (void)inet_ntop(AF_INET6, &six.sin6_addr, out_addr->host, sizeof(out_addr->host));
        return;
    }
    memcpy(&four, &six, sizeof(four));
    out_addr->port = ntohs(four.sin_port);
    (void)inet_ntop(AF_INET, &four.sin_addr, out_addr->host, sizeof(out_addr->host));
}

/* Where a socket is bound. */
static void sock_name(int fd, struct loop_addr *out_addr)
{
    struct sockaddr_in6 six = {0};
    socklen_t bytes = sizeof(six);

    memset(out_addr, 0, sizeof(*out_addr));
    if (getsockname(fd, (struct sockaddr *)(void *)&six, &bytes) == 0)
        sock_text(&six, out_addr);
}

/* The errno of what failed, 0 when it listens. */
static int listen_start(int fd, const struct sockaddr_in6 *address, socklen_t bytes, int backlog,
                        bool is_dual)
{
    int on = 1, six_only = !is_dual;

    if (fd < 0)
        return errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
        return errno;
    if (address->sin6_family == AF_INET6 &&
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &six_only, sizeof(six_only)) != 0)
        return errno;
    if (bind(fd, (const struct sockaddr *)(const void *)address, bytes) != 0)
        return errno;
    return listen(fd, backlog) != 0 ? errno : 0;
}

icms_err loop_listen_fd(struct loop_addr *addr, int backlog, bool is_dual, struct err_why *why,
                        int *out_fd)
{
    struct sockaddr_in6 address;
    char text[64];
    socklen_t bytes;
    int error;
    int fd;

    (void)loop_addr_format(addr, text, sizeof(text));
    if (!sock_address(addr, &address, &bytes))
        return err_set(why, ICMS_CONFIG, "listen on %s: not a numeric address", text);
    fd = socket(address.sin6_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    error = listen_start(fd, &address, bytes, backlog, is_dual);
    if (error != 0) {
        if (fd >= 0)
            (void)close(fd);
        return err_set(why, err_from_errno(error), "cannot listen on %s: %s: %s", text,
                       strerror(error),
                       error == EADDRINUSE
                           ? "stop the program that has the port ('ss -ltnp' shows it), or choose "
                             "another port"
                           : "choose an address of this machine and a port that may be used");
    }
    sock_name(fd, addr);
    *out_fd = fd;
    return ICMS_OK;
}

icms_err uring_listen(struct loop_env *env, const struct loop_addr *addr, struct err_why *why,
                      struct loop_sock **out_sock)
{
    struct loop_addr bound = *addr;
    struct uring_sock *sock;
    int fd = -1;
    icms_err err = loop_listen_fd(&bound, URING_BACKLOG, false, why, &fd);

    if (err != ICMS_OK)
        return err;
    sock = uring_sock_new(env, fd);
    if (sock == NULL)
        return err_set(why, ICMS_NO_MEMORY, "listen on %s: out of memory", addr->host);
    *out_sock = &sock->sock;
    return ICMS_OK;
}

void uring_sock_peer(const struct loop_sock *sock, struct loop_addr *out_addr)
{
    struct sockaddr_in6 six = {0};
    socklen_t bytes = sizeof(six);

    memset(out_addr, 0, sizeof(*out_addr));
    if (getpeername(((const struct uring_sock *)sock)->fd, (struct sockaddr *)(void *)&six,
                    &bytes) == 0)
        sock_text(&six, out_addr);
}

void uring_sock_addr(const struct loop_sock *sock, struct loop_addr *out_addr)
{
    sock_name(((const struct uring_sock *)sock)->fd, out_addr);
}

/* An IPv6 socket may speak IPv4, so both kinds are asked for. IP_TOS sets a priority, too: the one
 * that was asked for comes after it. */
void uring_sock_mark(struct loop_sock *sock, struct net_mark mark)
{
    int fd = uring_sock_of(sock)->fd, tos = mark.dscp << 2, priority = mark.priority;

    if (tos != 0) {
        (void)setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof(tos));
    }
    if (priority != 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof(priority));
}

void uring_sock_shutdown(struct loop_sock *sock)
{
    (void)shutdown(uring_sock_of(sock)->fd, SHUT_RDWR);
}

void uring_sock_close(struct loop_sock *sock)
{
    loop_fd_close(uring_sock_of(sock)->fd);
    free(uring_sock_of(sock));
}
