/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/socket.c: see socket.h. Called by attach.c, and by the publisher of events, on control
 * threads.
 */
#include "agent/socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* Connections that wait to be accepted. */
#define SOCKET_BACKLOG 64

static icms_err socket_errno(struct err_why *why, const char *what, const char *path, int error)
{
    icms_err err = err_from_errno(error);

    return err_set(why, err, "cannot %s %s: %s", what, path, icms_err_text(err));
}

/* The directory that the socket file goes into. */
static void socket_directory(const char *path)
{
    char directory[sizeof(((struct sockaddr_un *)0)->sun_path)];
    char *slash;

    snprintf(directory, sizeof(directory), "%s", path);
    slash = strrchr(directory, '/');
    if (slash == NULL || slash == directory)
        return;
    *slash = 0;
    (void)mkdir(directory, 0755); /* bind says what is wrong */
}

/* In a directory like /tmp anybody may have made ours before us, and would then decide who is
 * connected to, and what our chmod() hits. */
static icms_err socket_owner(const char *path, struct err_why *why)
{
    char directory[sizeof(((struct sockaddr_un *)0)->sun_path)];
    struct stat own, above;
    char *slash;

    snprintf(directory, sizeof(directory), "%s", path);
    slash = strrchr(directory, '/');
    if (slash == NULL || slash == directory)
        return ICMS_OK;
    *slash = 0;
    if (lstat(directory, &own) != 0)
        return ICMS_OK; /* bind says what is wrong */
    slash = strrchr(directory, '/');
    if (slash == NULL || slash == directory)
        return ICMS_OK;
    *slash = 0;
    if (stat(directory, &above) != 0 || (above.st_mode & S_IWOTH) == 0)
        return ICMS_OK;
    if (own.st_uid == geteuid() || own.st_uid == 0)
        return ICMS_OK;
    return err_set(why, ICMS_PERMISSION,
                   "the directory of %s belongs to user %u, who would control it: remove it, or "
                   "set another socket",
                   path, (unsigned)own.st_uid);
}

/* A file is in the way: removes it when it is a socket that nobody listens on. */
static icms_err socket_stale(const struct sockaddr_un *address, int type, struct err_why *why)
{
    const char *path = address->sun_path;
    struct stat stat;
    int sock;

    if (lstat(path, &stat) != 0)
        return errno == ENOENT ? ICMS_OK : socket_errno(why, "look at", path, errno);
    if (!S_ISSOCK(stat.st_mode))
        return err_set(why, ICMS_EXISTS,
                       "%s is there and is not a socket: remove it, or set another socket", path);
    sock = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0)
        return socket_errno(why, "make a socket for", path, errno);
    if (connect(sock, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
        errno != ECONNREFUSED) {
        (void)close(sock);
        return err_set(why, ICMS_ADDRESS_IN_USE,
                       "another program listens on %s: end it, or set another socket", path);
    }
    (void)close(sock);
    if (unlink(path) != 0 && errno != ENOENT)
        return socket_errno(why, "replace", path, errno);
    return ICMS_OK;
}

/* Binds it; nobody can connect before listen(), so the permissions count from the beginning. */
static icms_err socket_bind(int sock, const struct sockaddr_un *address, uint32_t mode,
                            struct err_why *why)
{
    const char *path = address->sun_path;

    if (bind(sock, (const struct sockaddr *)address, sizeof(*address)) != 0)
        return socket_errno(why, "bind", path, errno);
    if (chmod(path, mode) == 0 && listen(sock, SOCKET_BACKLOG) == 0)
        return ICMS_OK;
    (void)socket_errno(why, "set the permissions of, or listen on", path, errno);
    (void)unlink(path);
    return err_from_errno(errno);
}

icms_err agent_socket_listen(const char *path, int type, uint32_t mode, struct err_why *why,
                             int *out_sock)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    icms_err err;
    int sock;

    if (path[0] == 0 || strlen(path) >= sizeof(address.sun_path))
        return err_set(why, ICMS_CONFIG, "a socket's path has 1 to %zu bytes: %s",
                       sizeof(address.sun_path) - 1, path);
    memcpy(address.sun_path, path, strlen(path) + 1);
    sock = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0)
        return socket_errno(why, "make a socket for", path, errno);
    socket_directory(path);
    err = socket_owner(path, why);
    if (err == ICMS_OK)
        err = socket_stale(&address, type, why);
    if (err == ICMS_OK)
        err = socket_bind(sock, &address, mode, why);
    if (err == ICMS_OK)
        *out_sock = sock;
    else
        (void)close(sock);
    return err;
}
