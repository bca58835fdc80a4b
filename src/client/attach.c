/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/attach.c: the hello to an agent on its unix socket.
 *
 * Called by icms_open, icms_status and icms_trace; blocking, for at most its timeout a step. The
 * agent is another process: descriptors are checked for their kind, size and seals before they are
 * mapped, since a region that shrinks under us would kill this process.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "client/client_int.h"

/* Where anybody may make a file somebody may have made the agent's: only our own user's agent, or
 * root's, is one there. */
static icms_err attach_trust(int sock, const char *path, struct err_why *why)
{
    char directory[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct ucred peer;
    socklen_t bytes = sizeof(peer);
    struct stat stat_;
    char *slash;

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        return err_from_errno(errno);
    if (peer.uid == geteuid() || peer.uid == 0)
        return ICMS_OK;
    memcpy(directory, path, strlen(path) + 1);
    for (int above = 0; above < 2 && (slash = strrchr(directory, '/')) != NULL; above++) {
        *slash = 0;
        if (stat(directory[0] == 0 ? "/" : directory, &stat_) == 0 &&
            (stat_.st_mode & S_IWOTH) != 0)
            return err_set(why, ICMS_PERMISSION,
                           "cannot trust the agent at %s: it runs as user %u, and any user can "
                           "create a socket there; use a directory that only its owner writes to",
                           path, (unsigned)peer.uid);
    }
    return ICMS_OK;
}

static void attach_timeout(int sock, uint64_t until_ns)
{
    uint64_t now = client_now_ns(), left_us = until_ns > now ? (until_ns - now) / 1000 : 0;
    struct timeval timeout = {.tv_sec = (time_t)(left_us / 1000000),
                              .tv_usec = (suseconds_t)(left_us % 1000000)};

    if (left_us == 0)
        timeout.tv_usec = 1; /* 0 would be for ever */
    (void)setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    (void)setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
}

/* True when a call on the socket failed only because of a signal, and has to be repeated. Signals
 * may come more often than a timeout lasts, so each time what is left becomes the timeout; where
 * nothing is, errno says so as the socket would. */
static bool attach_again(int sock, uint64_t until_ns)
{
    if (errno != EINTR)
        return false;
    if (client_now_ns() >= until_ns) {
        errno = EAGAIN;
        return false;
    }
    attach_timeout(sock, until_ns);
    return true;
}

/* The socket is the link's, also after errors. */
static icms_err attach_connect(struct client_link *link, const char *path, uint64_t until_ns,
                               struct err_why *why)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    icms_err err;
    int sock, result;

    if (strlen(path) >= sizeof(address.sun_path))
        return err_set(why, ICMS_INVALID, "the socket's path is longer than %zu bytes: %s",
                       sizeof(address.sun_path) - 1, path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    sock = link->sock = loop_fd_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (sock < 0) {
        err = err_from_errno(errno);
        return err_set(why, err, "cannot make a socket: %s", icms_err_text(err));
    }
    attach_timeout(sock, until_ns);
    do
        result = connect(sock, (const struct sockaddr *)&address, sizeof(address));
    while (result != 0 && attach_again(sock, until_ns));
    if (result == 0)
        return attach_trust(sock, path, why);
    err = errno == EAGAIN ? ICMS_PEER_DOWN : err_from_errno(errno);
    if (err == ICMS_NOT_FOUND)
        return err_set(why, err,
                       "cannot connect to the agent at %s: no such socket; start icms-agent "
                       "(or `icms dev`), or name its socket with unix:PATH or $ICMS_SOCKET",
                       path);
    if (err == ICMS_REFUSED)
        return err_set(why, err,
                       "cannot connect to the agent at %s: connection refused, nothing listens "
                       "there; start icms-agent",
                       path);
    if (err == ICMS_PERMISSION)
        return err_set(why, err,
                       "cannot connect to the agent at %s: permission denied; add this user to "
                       "the socket's group, or see socket_mode in icms-agent.yaml(5)",
                       path);
    return err_set(why, err, "cannot connect to the agent at %s: %s", path, icms_err_text(err));
}

/* Sends the hello, whose magic and version are set here. */
static icms_err attach_hello(int sock, uint64_t until_ns, struct shm_hello hello)
{
    ssize_t n;

    hello.magic = SHM_HELLO_MAGIC;
    hello.version = SHM_VERSION;

    do
        n = send(sock, &hello, sizeof(hello), MSG_NOSIGNAL);
    while (n < 0 && attach_again(sock, until_ns));
    if (n != (ssize_t)sizeof(hello))
        return errno == EAGAIN ? ICMS_PEER_DOWN : err_from_errno(errno);
    return ICMS_OK;
}

/* One message; its descriptors are the link's. 0 bytes: the agent hung up. An agent that sends
 * message after message has until_ns for all of them. */
static icms_err attach_receive(struct client_link *link, uint64_t until_ns, void *message,
                               size_t bytes, size_t *out_bytes)
{
    union {
        char bytes[CMSG_SPACE(SHM_HELLO_FDS * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec vector = {message, bytes};
    struct msghdr header = {.msg_iov = &vector,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    bool fits = true;
    ssize_t n;

    if (client_now_ns() >= until_ns)
        return ICMS_PEER_DOWN;
    attach_timeout(link->sock, until_ns);
    do
        n = recvmsg(link->sock, &header, MSG_CMSG_CLOEXEC);
    while (n < 0 && attach_again(link->sock, until_ns));
    if (n < 0)
        return errno == EAGAIN ? ICMS_PEER_DOWN : err_from_errno(errno);
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c != NULL; c = CMSG_NXTHDR(&header, c)) {
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (size_t i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (link->fd_count < CLIENT_FDS) {
                link->fds[link->fd_count++] = loop_fd_own(fd);
            } else {
                (void)close(fd);
                fits = false;
            }
        }
    }
    if (!fits || (header.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0)
        return ICMS_PROTOCOL;
    *out_bytes = (size_t)n;
    return ICMS_OK;
}

/* Receives the welcome and as many descriptors as it announces. */
static icms_err attach_welcome(struct client_link *link, uint64_t until_ns, const char *path,
                               struct err_why *why)
{
    struct shm_welcome welcome;
    icms_err err;
    size_t bytes;

    err = attach_receive(link, until_ns, &welcome, sizeof(welcome), &bytes);
    if (err == ICMS_PEER_DOWN)
        return err_set(
            why, err, "cannot attach to the agent at %s: no response; check that it is not stopped",
            path);
    if (err != ICMS_OK || bytes == 0)
        return err_set(why, err == ICMS_OK ? ICMS_RESET : err,
                       "cannot attach to the agent at %s: it closed the connection; see its log",
                       path);
    if (bytes != sizeof(welcome) || welcome.magic != SHM_HELLO_MAGIC)
        return err_set(why, ICMS_PROTOCOL, "cannot attach to %s: it is not an icms-agent", path);
    welcome.why[sizeof(welcome.why) - 1] = 0;
    err = err_from_peer(welcome.error);
    if (err != ICMS_OK)
        return err_set(why, err, "cannot attach to the agent at %s: refused: %s", path,
                       welcome.why[0] != 0 ? welcome.why : icms_err_text(err));
    if (welcome.version != SHM_VERSION)
        return err_set(why, ICMS_VERSION,
                       "cannot attach to the agent at %s: its protocol version is %u, that of "
                       "this program %u; install the same release of both",
                       path, welcome.version, SHM_VERSION);
    if (welcome.volume_count > LIMIT_AGENT_VOLUMES)
        return err_set(why, ICMS_PROTOCOL,
                       "cannot attach to the agent at %s: it announces %u volumes, the most are %d",
                       path, welcome.volume_count, LIMIT_AGENT_VOLUMES);
    if (welcome.reactor_count == 0 || welcome.reactor_count > LIMIT_LOOPS)
        return err_set(why, ICMS_PROTOCOL,
                       "cannot attach to the agent at %s: it announces %u reactors, 1 to %d are "
                       "possible",
                       path, welcome.reactor_count, LIMIT_LOOPS);
    link->reactor_count = welcome.reactor_count;
    while (link->fd_count < 2 + welcome.reactor_count + welcome.volume_count) {
        uint64_t magic;

        err = attach_receive(link, until_ns, &magic, sizeof(magic), &bytes);
        if (err == ICMS_OK && bytes == 0)
            err = ICMS_RESET; /* it ended meanwhile */
        else if (err == ICMS_OK && (bytes != sizeof(magic) || magic != SHM_HELLO_MAGIC))
            err = ICMS_PROTOCOL;
        if (err != ICMS_OK)
            return err_set(why, err, "cannot attach to the agent at %s: its answer was cut off",
                           path);
    }
    if (link->fd_count != 2 + welcome.reactor_count + welcome.volume_count)
        return err_set(why, ICMS_PROTOCOL, "the agent at %s passed %u descriptors for %u volumes",
                       path, link->fd_count, welcome.volume_count);
    return ICMS_OK;
}

/* What is written to and read from without waiting, and without a signal for this process: a file
 * of no type (an eventfd) that does not block, and a socket. Their flags stay as the agent made
 * them: they are flags of its descriptors, too. */
static icms_err attach_events(struct client_link *link, const char *path, struct err_why *why)
{
    struct stat stat;
    bool fits = fstat(link->fds[1], &stat) == 0 && S_ISSOCK(stat.st_mode);

    for (uint32_t i = 0; i < link->reactor_count; i++)
        fits = fits && fstat(link->fds[2 + i], &stat) == 0 && (stat.st_mode & S_IFMT) == 0 &&
               (fcntl(link->fds[2 + i], F_GETFL) & O_NONBLOCK) != 0;
    if (!fits)
        return err_set(why, ICMS_PROTOCOL,
                       "cannot attach to the agent at %s: what it passed for events are none",
                       path);
    link->client_event = link->fds[1];
    link->fds[1] = -1;
    for (uint32_t i = 0; i < link->reactor_count; i++) {
        link->agent_events[i] = link->fds[2 + i];
        link->fds[2 + i] = -1;
    }
    link->events_owned = true;
    return ICMS_OK;
}

/* Maps a region that cannot shrink any more; a child of fork() does not inherit it. */
static icms_err attach_map(int fd, bool write, struct client_map *out_map)
{
    struct stat stat;
    int seals;
    void *base;

    if (fstat(fd, &stat) != 0)
        return err_from_errno(errno);
    seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || stat.st_size <= 0)
        return ICMS_PROTOCOL;
    base = mmap(NULL, (size_t)stat.st_size, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                fd, 0);
    if (base == MAP_FAILED)
        return err_from_errno(errno);
    (void)madvise(base, (size_t)stat.st_size, MADV_DONTFORK);
    out_map->base = base;
    out_map->bytes = (uint64_t)stat.st_size;
    return ICMS_OK;
}

static icms_err attach_regions(struct client_link *link, const char *path, struct err_why *why)
{
    icms_err err = attach_map(link->fds[0], true, &link->region);
    uint32_t arenas = 2 + link->reactor_count;

    link->arena_count = link->fd_count - arenas;
    for (uint32_t i = 0; i < link->arena_count && err == ICMS_OK; i++)
        err = attach_map(link->fds[arenas + i], false, &link->maps[i]);
    if (err != ICMS_OK)
        return err_set(why, err, "cannot map the memory of the agent at %s: %s", path,
                       icms_err_text(err));
    return client_link_view(link, why);
}

/* Descriptors that were mapped, or that nobody needs. */
static void attach_fds_close(struct client_link *link)
{
    while (link->fd_count != 0) {
        int fd = link->fds[--link->fd_count];

        if (fd >= 0)
            loop_fd_close(fd);
    }
}

icms_err client_attach_unix(const char *path, uint64_t staging_bytes, uint32_t timeout_ms,
                            struct err_why *why, struct client_link **out_link)
{
    uint64_t until_ns = client_now_ns() + (uint64_t)timeout_ms * 1000000;
    icms_err err = client_link_new(out_link);
    struct client_link *link = *out_link;

    if (err != ICMS_OK)
        return err_set(why, err, "out of memory");
    err = attach_connect(link, path, until_ns, why);
    if (err == ICMS_OK) {
        err = attach_hello(
            link->sock, until_ns,
            (struct shm_hello){.op = SHM_HELLO_ATTACH, .staging_bytes = staging_bytes});
        if (err != ICMS_OK)
            (void)err_set(why, err, "cannot attach to the agent at %s: %s", path,
                          icms_err_text(err));
    }
    if (err == ICMS_OK)
        err = attach_welcome(link, until_ns, path, why);
    if (err == ICMS_OK)
        err = attach_events(link, path, why);
    if (err == ICMS_OK)
        err = attach_regions(link, path, why);
    attach_fds_close(link);
    if (err != ICMS_OK)
        client_link_free(out_link);
    return err;
}

icms_err client_text_unix(const char *path, struct client_link *link,
                          const struct client_question *question, char *out, size_t bytes,
                          size_t *out_bytes)
{
    struct shm_hello hello = {.op = question->trace ? SHM_HELLO_TRACE : SHM_HELLO_STATUS};
    char piece[32 << 10];
    struct shm_welcome welcome;
    size_t total = 0, n;
    uint64_t until_ns = client_now_ns() + (uint64_t)CLIENT_ATTACH_MS * 1000000;
    icms_err err = attach_connect(link, path, until_ns, NULL);

    if (question->key != NULL) {
        hello.key.length = question->key->length;
        memcpy(hello.key.bytes, question->key->bytes, sizeof(hello.key.bytes));
    }
    if (err == ICMS_OK)
        err = attach_hello(link->sock, until_ns, hello);
    while (err == ICMS_OK) {
        err = attach_receive(link, until_ns, piece, sizeof(piece), &n);
        if (err != ICMS_OK || n == 0)
            break;
        if (total == 0 && n == sizeof(welcome)) {
            memcpy(&welcome, piece, sizeof(welcome));
            if (welcome.magic == SHM_HELLO_MAGIC && welcome.error != ICMS_OK)
                return err_from_peer(welcome.error); /* it was refused */
        }
        if (total < bytes)
            memcpy(out + total, piece, u64_min(n, bytes - total));
        total += n;
    }
    if (err != ICMS_OK)
        return err;
    if (total == 0)
        return ICMS_RESET;
    if (bytes != 0)
        out[u64_min(total, bytes - 1)] = 0;
    *out_bytes = total + 1;
    return ICMS_OK;
}
