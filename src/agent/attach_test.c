/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's unix socket, on the real machine: who may listen, who is let in, and what becomes of
 * those that say something else, or nothing.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "agent/attach.h"
#include "base/check.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

#define VOLUMES  40 /* more than one message of descriptors */
#define REACTORS 2
#define FDS      (2 + REACTORS) /* before the arenas */

/* The first volume is for this user and this group. */
#define USER  1001
#define GROUP 2002

/* ---- the other user ------------------------------------------------------------------------- */

/* Who connects, instead of this process. Functions in front of libc's (--wrap) say so: no test
 * needs root. */
static struct peer {
    bool on;
    uint32_t uid, gid;
    uint32_t groups[3];
} peer;

/* Whom the agent takes itself for; 0: the truth. */
static uint32_t agent_uid;

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes);
uid_t __real_geteuid(void);
uid_t __wrap_geteuid(void);

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
    int result = __real_getsockopt(fd, level, name, value, bytes);

    if (result != 0 || !peer.on || level != SOL_SOCKET)
        return result;
    if (name == SO_PEERCRED)
        *(struct ucred *)value = (struct ucred){.uid = peer.uid, .gid = peer.gid};
    if (name == SO_PEERGROUPS) {
        memcpy(value, peer.groups, sizeof(peer.groups));
        *bytes = sizeof(peer.groups);
    }
    return result;
}

uid_t __wrap_geteuid(void)
{
    return agent_uid != 0 ? agent_uid : __real_geteuid();
}

/* The thread of the socket does not go on from poll(2). */
static _Atomic bool held;

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    int result = __real_poll(fds, count, timeout_ms);

    while (held)
        usleep(1000);
    return result;
}

/* ---- an agent ------------------------------------------------------------------------------- */

struct bed {
    char folder[32];
    char path[64];
    struct agent *agent;
    struct attach *attach;
};

static struct agent *agent_make(void)
{
    static struct volume_spec volumes[VOLUMES];
    struct err_why why = {""};
    struct agent_opts opts;
    struct agent *agent;

    for (int i = 0; i < VOLUMES; i++) {
        memset(volumes[i].uuid.bytes, i + 1, 16);
        snprintf(volumes[i].name, sizeof(volumes[i].name), "v%d", i);
        volumes[i].value_bytes_max = 4096;
        volumes[i].memory_bytes_max = 16384;
        volumes[i].run_blocks = 1;
        volumes[i].sealed = true;
    }
    volumes[0].user_count = volumes[0].group_count = 1;
    volumes[0].users[0].id = USER;
    volumes[0].groups[0].id = GROUP;
    agent_opts_init(&opts);
    opts.loops = REACTORS;
    opts.client_bytes = 65536;
    opts.volumes = volumes;
    opts.volume_count = VOLUMES;
    if (agent_new(loop_env_uring(), &opts, &why, &agent) != ICMS_OK) {
        fprintf(stderr, "%s\n", why.text);
        abort();
    }
    check(agent_start(agent, NULL) == ICMS_OK);
    return agent;
}

static void an_agent_has_64_volumes_at_most(void **state)
{
    struct volume_spec *volumes = calloc(LIMIT_AGENT_VOLUMES + 1, sizeof(*volumes));
    struct err_why why = {""};
    struct agent_opts opts;
    struct agent *agent = NULL;

    agent_opts_init(&opts);
    opts.volumes = volumes;
    opts.volume_count = LIMIT_AGENT_VOLUMES + 1;
    assert_int_equal(agent_new(loop_env_uring(), &opts, &why, &agent), ICMS_CONFIG);
    assert_string_equal(why.text, "65 volumes: an agent has 1 to 64");
    free(volumes);
}

static int setup(void **state)
{
    struct bed *bed = calloc(1, sizeof(*bed));

    check(bed != NULL);
    strcpy(bed->folder, "/tmp/icms-attach-XXXXXX");
    check(mkdtemp(bed->folder) != NULL);
    snprintf(bed->path, sizeof(bed->path), "%s/run/a.sock", bed->folder);
    bed->agent = agent_make();
    check(attach_start(bed->agent, bed->path, 0620, NULL, &bed->attach) == ICMS_OK);
    *state = bed;
    return 0;
}

static int teardown(void **state)
{
    struct bed *bed = *state;
    char run[64];

    attach_stop(&bed->attach);
    check(access(bed->path, F_OK) != 0);
    agent_stop(bed->agent);
    agent_free(&bed->agent);
    snprintf(run, sizeof(run), "%s/run", bed->folder);
    (void)rmdir(run);
    (void)rmdir(bed->folder);
    free(bed);
    return 0;
}

static int dial(const struct bed *bed)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    strcpy(address.sun_path, bed->path);
    check(sock >= 0);
    check(connect(sock, (const struct sockaddr *)&address, sizeof(address)) == 0);
    return sock;
}

static void hello_asking(int sock, uint32_t op, uint32_t version, uint64_t staging_bytes)
{
    struct shm_hello message = {
        .magic = SHM_HELLO_MAGIC, .version = version, .op = op, .staging_bytes = staging_bytes};

    check(send(sock, &message, sizeof(message), MSG_NOSIGNAL) == sizeof(message));
}

static void hello(int sock, uint32_t op, uint32_t version)
{
    hello_asking(sock, op, version, 0);
}

/* One message and the descriptors with it. */
static ssize_t take(int sock, void *message, size_t bytes, int *fds, uint32_t *count)
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
    ssize_t n = recvmsg(sock, &header, MSG_CMSG_CLOEXEC);

    for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&header); c != NULL;
         c = CMSG_NXTHDR(&header, c)) {
        uint32_t more = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));

        memcpy(fds + *count, CMSG_DATA(c), more * sizeof(int));
        *count += more;
    }
    return n;
}

static uint32_t clients(const struct bed *bed)
{
    static struct agent_stats stats;

    agent_stats(bed->agent, &stats);
    return stats.clients;
}

static void wait_clients(const struct bed *bed, uint32_t want)
{
    struct timespec ms = {.tv_nsec = 1000000};

    for (int i = 0; i < 5000 && clients(bed) != want; i++)
        nanosleep(&ms, NULL);
    assert_int_equal(clients(bed), want);
}

/* Attaches; returns the socket. */
static int attach_to(const struct bed *bed, uint32_t volumes, int *fds, uint32_t *count)
{
    int sock = dial(bed);
    struct shm_welcome welcome;
    uint64_t more;

    *count = 0;
    hello(sock, SHM_HELLO_ATTACH, SHM_VERSION);
    assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, count), sizeof(welcome));
    assert_int_equal(welcome.error, ICMS_OK);
    assert_int_equal(welcome.volume_count, volumes);
    assert_int_equal(welcome.reactor_count, REACTORS);
    while (*count < FDS + volumes) {
        assert_int_equal(take(sock, &more, sizeof(more), fds, count), sizeof(more));
        assert_int_equal(more, SHM_HELLO_MAGIC);
    }
    return sock;
}

static int attach_one(const struct bed *bed, int *fds, uint32_t *count)
{
    return attach_to(bed, VOLUMES, fds, count);
}

/* The same without the descriptors. */
static int attach_as(const struct bed *bed, uint32_t volumes)
{
    int fds[128];
    uint32_t count;
    int sock = attach_to(bed, volumes, fds, &count);

    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
    return sock;
}

static void a_client_gets_its_region_the_events_and_every_arena(void **state)
{
    const struct bed *bed = *state;
    int fds[128];
    uint32_t count;
    int sock = attach_one(bed, fds, &count);
    struct shm_arena arena;
    struct shm_ring ring;
    struct stat stat;
    void *base;

    assert_int_equal(clients(bed), 1);
    assert_int_equal(fstat(fds[0], &stat), 0);
    base = mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    assert_ptr_not_equal(base, MAP_FAILED);
    assert_int_equal(shm_ring_view(base, (uint64_t)stat.st_size, REACTORS, &ring), ICMS_PROTOCOL);
    for (uint32_t i = 0; i < REACTORS; i++)
        assert_int_equal(shm_ring_view(base, (uint64_t)stat.st_size, i, &ring), ICMS_OK);
    munmap(base, (size_t)stat.st_size);
    for (uint32_t i = FDS; i < count; i++) {
        assert_int_equal(fstat(fds[i], &stat), 0);
        /* nobody else can write to it */
        assert_ptr_equal(
            mmap(NULL, (size_t)stat.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0),
            MAP_FAILED);
        base = mmap(NULL, (size_t)stat.st_size, PROT_READ, MAP_SHARED, fds[i], 0);
        assert_ptr_not_equal(base, MAP_FAILED);
        for (uint32_t r = 0; r < REACTORS; r++) {
            assert_int_equal(shm_arena_view(base, (uint64_t)stat.st_size, r, REACTORS, 0, &arena),
                             ICMS_OK);
            assert_int_equal(arena.volume, i - FDS);
            assert_int_equal(arena.shard, (i - FDS) * REACTORS + r);
        }
        munmap(base, (size_t)stat.st_size);
    }
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
    close(sock);
    wait_clients(bed, 0);
}

static void the_end_of_the_socket_is_the_end_of_the_client(void **state)
{
    const struct bed *bed = *state;
    int socks[LIMIT_CLIENTS], fds[128];
    struct shm_welcome welcome;
    uint32_t count;
    int sock;

    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < LIMIT_CLIENTS; i++) {
            socks[i] = attach_one(bed, fds, &count);
            for (uint32_t j = 0; j < count; j++)
                close(fds[j]);
        }
        /* one more is refused, with a sentence */
        sock = dial(bed);
        hello(sock, SHM_HELLO_ATTACH, SHM_VERSION);
        count = 0;
        assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, &count), sizeof(welcome));
        assert_int_equal(welcome.error, ICMS_LIMIT);
        assert_non_null(strstr(welcome.why, "64 clients"));
        assert_int_equal(count, 0);
        close(sock);
        /* an attached client has nothing to say */
        assert_int_equal(send(socks[0], "x", 1, MSG_NOSIGNAL), 1);
        wait_clients(bed, LIMIT_CLIENTS - 1);
        for (int i = 0; i < LIMIT_CLIENTS; i++)
            close(socks[i]);
        wait_clients(bed, 0);
    }
}

static void status_is_one_json_object(void **state)
{
    const struct bed *bed = *state;
    static char text[1 << 17];
    int sock = dial(bed), fds[8];
    size_t length = 0;
    uint32_t count = 0;
    ssize_t n;

    hello(sock, SHM_HELLO_STATUS, SHM_VERSION);
    while ((n = take(sock, text + length, sizeof(text) - 1 - length, fds, &count)) > 0)
        length += (size_t)n;
    assert_int_equal(n, 0);
    assert_int_equal(text[0], '{');
    assert_int_equal(text[length - 1], '}');
    assert_non_null(strstr(text, "\"v39\""));
    close(sock);
}

static void a_trace_of_no_key_is_refused(void **state)
{
    const struct bed *bed = *state;
    struct shm_hello message = {
        .magic = SHM_HELLO_MAGIC, .version = SHM_VERSION, .op = SHM_HELLO_TRACE};
    struct shm_welcome welcome = {0};
    int fds[SHM_HELLO_FDS], sock = dial(bed);
    uint32_t count = 0;
    char text[256];

    message.key.length = LIMIT_KEY_BYTES + 1;
    check(send(sock, &message, sizeof(message), MSG_NOSIGNAL) == sizeof(message));
    assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, &count), sizeof(welcome));
    assert_int_equal(welcome.error, ICMS_KEY_SIZE);
    close(sock);
    message.key.length = LIMIT_KEY_BYTES;
    sock = dial(bed);
    check(send(sock, &message, sizeof(message), MSG_NOSIGNAL) == sizeof(message));
    assert_true(take(sock, text, sizeof(text), fds, &count) > 0);
    assert_int_equal(text[0], '{');
    close(sock);
}

static void who_says_something_else_is_shown_out(void **state)
{
    const struct bed *bed = *state;
    struct shm_welcome welcome;
    char long_text[200] = "a text that is longer than a hello";
    int sock = dial(bed), fds[8];
    uint32_t count = 0;
    char byte;

    hello(sock, SHM_HELLO_ATTACH, SHM_VERSION + 1);
    assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, &count), sizeof(welcome));
    assert_int_equal(welcome.error, ICMS_VERSION);
    assert_int_equal(recv(sock, &byte, 1, 0), 0);
    close(sock);
    sock = dial(bed);
    hello(sock, 77, SHM_VERSION);
    assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, &count), sizeof(welcome));
    assert_int_equal(welcome.error, ICMS_UNSUPPORTED);
    close(sock);
    sock = dial(bed); /* 64 KiB is what the configuration gives */
    hello_asking(sock, SHM_HELLO_ATTACH, SHM_VERSION, 65537);
    assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, &count), sizeof(welcome));
    assert_int_equal(welcome.error, ICMS_INVALID);
    assert_non_null(strstr(welcome.why, "client_memory"));
    close(sock);
    sock = dial(bed);
    assert_int_equal(send(sock, long_text, sizeof(long_text), MSG_NOSIGNAL), sizeof(long_text));
    assert_int_equal(recv(sock, &byte, 1, 0), 0);
    close(sock);
    sock = dial(bed);
    assert_int_equal(send(sock, "x", 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(sock, &byte, 1, 0), 0);
    close(sock);
    /* who says nothing is shown out too, and keeps nobody waiting */
    sock = dial(bed);
    close(attach_one(bed, (int[128]){0}, &count));
    assert_int_equal(recv(sock, &byte, 1, 0), 0);
    close(sock);
    wait_clients(bed, 0);
}

static void a_socket_file_has_one_listener(void **state)
{
    const struct bed *bed = *state;
    struct attach *other = NULL;
    struct err_why why;
    char path[64];
    struct stat stat;
    FILE *file;
    int sock;

    assert_int_equal(lstat(bed->path, &stat), 0);
    assert_int_equal(stat.st_mode & 0777, 0620);
    assert_int_equal(attach_start(bed->agent, bed->path, 0600, &why, &other), ICMS_ADDRESS_IN_USE);
    assert_non_null(strstr(why.text, bed->path));
    assert_int_equal(lstat(bed->path, &stat), 0);
    /* one that a crashed agent left is replaced */
    snprintf(path, sizeof(path), "%s/stale.sock", bed->folder);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    sock = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    check(bind(sock, (const struct sockaddr *)&address, sizeof(address)) == 0);
    close(sock);
    assert_int_equal(attach_start(bed->agent, path, 0600, &why, &other), ICMS_OK);
    attach_stop(&other);
    /* a file that is something else is not touched */
    file = fopen(path, "w");
    check(file != NULL && fclose(file) == 0);
    assert_int_equal(attach_start(bed->agent, path, 0600, &why, &other), ICMS_EXISTS);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(attach_start(bed->agent, "", 0600, &why, &other), ICMS_CONFIG);
}

/* A user who is not root cannot give a directory away: for that one the agent is another user. */
static void a_directory_of_somebody_else_in_a_public_one_is_not_used(void **state)
{
    const struct bed *bed = *state;
    struct attach *attach = NULL;
    struct err_why why = {""};
    char folder[64], path[80], uid[16];

    check(chmod(bed->folder, 01777) == 0);
    snprintf(folder, sizeof(folder), "%s/theirs", bed->folder);
    snprintf(path, sizeof(path), "%s/a.sock", folder);
    check(mkdir(folder, 0755) == 0);
    if (geteuid() == 0)
        check(chown(folder, 65534, 65534) == 0);
    else
        agent_uid = geteuid() + 1;
    snprintf(uid, sizeof(uid), "%u", geteuid() == 0 ? 65534 : getuid());
    assert_int_equal(attach_start(bed->agent, path, 0600, &why, &attach), ICMS_PERMISSION);
    agent_uid = 0;
    assert_non_null(strstr(why.text, uid));
    check(rmdir(folder) == 0);
}

/* ---- users ---------------------------------------------------------------------------------- */

static icms_err welcome_of(int sock)
{
    struct shm_welcome welcome = {.error = ICMS_OK};
    int fds[128];
    uint32_t count = 0;

    assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, &count), sizeof(welcome));
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
    return (icms_err)welcome.error;
}

/* Attaches as the peer that is played; the volumes that it gets, or the refusal. */
static uint32_t volumes_of(const struct bed *bed, icms_err *out_err)
{
    struct shm_welcome welcome = {.error = ICMS_OK};
    int sock = dial(bed), fds[128];
    uint32_t count = 0;

    hello(sock, SHM_HELLO_ATTACH, SHM_VERSION);
    assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, &count), sizeof(welcome));
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
    close(sock);
    wait_clients(bed, 0);
    *out_err = (icms_err)welcome.error;
    return welcome.volume_count;
}

static void who_connects_gets_the_volumes_of_its_user_and_groups(void **state)
{
    const struct bed *bed = *state;
    icms_err err;

    peer = (struct peer){.on = true, .uid = USER, .gid = USER};
    assert_int_equal(volumes_of(bed, &err), VOLUMES);
    peer = (struct peer){.on = true, .uid = USER + 1, .gid = GROUP};
    assert_int_equal(volumes_of(bed, &err), VOLUMES);
    peer = (struct peer){.on = true, .uid = USER + 1, .gid = USER, .groups = {5, GROUP, 6}};
    assert_int_equal(volumes_of(bed, &err), VOLUMES);
    peer = (struct peer){.on = true, .uid = USER + 1, .gid = USER, .groups = {5, 6, USER}};
    assert_int_equal(volumes_of(bed, &err), VOLUMES - 1);
    assert_int_equal(err, ICMS_OK);
    peer = (struct peer){.on = true};
    assert_int_equal(volumes_of(bed, &err), VOLUMES);
    peer.on = false;
}

/* One user that connects and says nothing leaves space for others. */
static void one_user_cannot_have_all_connections(void **state)
{
    const struct bed *bed = *state;
    int socks[40];

    peer = (struct peer){.on = true, .uid = USER, .gid = USER};
    for (int i = 0; i < 40; i++)
        socks[i] = dial(bed);
    assert_int_equal(welcome_of(socks[39]), ICMS_LIMIT);
    peer.uid = USER + 1;
    close(attach_as(bed, VOLUMES - 1));
    for (int i = 0; i < 40; i++)
        close(socks[i]);
    wait_clients(bed, 0);
    peer.on = false;
}

/* ---- descriptors ---------------------------------------------------------------------------- */

/* A TCP socket whose close lasts half a minute: it lingers, and nobody reads what was sent. */
static int lingering(int *out_other)
{
    struct linger linger = {.l_onoff = 1, .l_linger = 30};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int sock = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char block[65536] = {0};

    check(listener >= 0 && sock >= 0);
    check(bind(listener, (const struct sockaddr *)&address, sizeof(address)) == 0);
    check(listen(listener, 1) == 0);
    check(getsockname(listener, (struct sockaddr *)&address, &bytes) == 0);
    check(connect(sock, (const struct sockaddr *)&address, sizeof(address)) == 0);
    *out_other = accept(listener, NULL, NULL);
    check(*out_other >= 0);
    check(setsockopt(sock, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
    while (send(sock, block, sizeof(block), MSG_DONTWAIT) > 0)
        ;
    close(listener);
    return sock;
}

/* Sends a message with a descriptor, whose last reference it is then. */
static void send_with(int sock, const void *message, size_t bytes, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec vector = {(void *)(uintptr_t)message, bytes};
    struct msghdr header = {.msg_iov = &vector,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);

    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    check(sendmsg(sock, &header, MSG_NOSIGNAL) == (ssize_t)bytes);
}

/* With the hello, instead of it, from a client. */
enum hostile_way { HOSTILE_HELLO, HOSTILE_EMPTY, HOSTILE_CLIENT, HOSTILE_WAYS };

/* The thread of the socket stands still until the message is the last that has the descriptor. */
static void hostile_run(const struct bed *bed, enum hostile_way way, int slow)
{
    struct shm_hello message = {
        .magic = SHM_HELLO_MAGIC, .version = SHM_VERSION, .op = SHM_HELLO_ATTACH};
    int sock = way == HOSTILE_CLIENT ? attach_as(bed, VOLUMES) : -1;

    held = true;
    if (sock < 0)
        sock = dial(bed);
    send_with(sock, &message, way == HOSTILE_HELLO ? sizeof(message) : 0, slow);
    close(slow);
    close(sock);
    held = false;
}

static void descriptors_that_close_slowly_keep_nobody_waiting(void **state)
{
    const struct bed *bed = *state;
    int others[HOSTILE_WAYS];

    alarm(15); /* a thread that waits for one of them does so for 30 s */
    for (enum hostile_way way = 0; way < HOSTILE_WAYS; way++) {
        hostile_run(bed, way, lingering(&others[way]));
        close(attach_as(bed, VOLUMES));
    }
    wait_clients(bed, 0);
    alarm(0);
    for (int i = 0; i < HOSTILE_WAYS; i++)
        close(others[i]); /* its unread bytes make it a reset: that ends the close */
}

/* Nobody can be accepted: the thread sleeps meanwhile, and goes on later. */
static void without_descriptors_it_waits_and_goes_on(void **state)
{
    const struct bed *bed = *state;
    struct rlimit before, none;
    struct timespec begin, end;
    struct shm_welcome welcome;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock, fds[128], spare;
    uint32_t count = 0;
    uint64_t ns;

    sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    spare = dup(0);
    check(sock >= 0 && spare >= 0 && getrlimit(RLIMIT_NOFILE, &before) == 0);
    close(spare);
    none = (struct rlimit){.rlim_cur = (rlim_t)spare, .rlim_max = before.rlim_max};
    check(setrlimit(RLIMIT_NOFILE, &none) == 0);
    check(dup(0) < 0);
    strcpy(address.sun_path, bed->path);
    check(connect(sock, (const struct sockaddr *)&address, sizeof(address)) == 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
    usleep(400000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    check(setrlimit(RLIMIT_NOFILE, &before) == 0);
    ns = (uint64_t)(end.tv_sec - begin.tv_sec) * 1000000000 + (uint64_t)end.tv_nsec -
         (uint64_t)begin.tv_nsec;
    assert_true(ns < 40000000);
    hello(sock, SHM_HELLO_ATTACH, SHM_VERSION);
    assert_int_equal(take(sock, &welcome, sizeof(welcome), fds, &count), sizeof(welcome));
    assert_int_equal(welcome.error, ICMS_OK);
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
    close(sock);
    wait_clients(bed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_agent_has_64_volumes_at_most),
        cmocka_unit_test_setup_teardown(a_client_gets_its_region_the_events_and_every_arena, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_end_of_the_socket_is_the_end_of_the_client, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(status_is_one_json_object, setup, teardown),
        cmocka_unit_test_setup_teardown(a_trace_of_no_key_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(who_says_something_else_is_shown_out, setup, teardown),
        cmocka_unit_test_setup_teardown(a_socket_file_has_one_listener, setup, teardown),
        cmocka_unit_test_setup_teardown(a_directory_of_somebody_else_in_a_public_one_is_not_used,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(who_connects_gets_the_volumes_of_its_user_and_groups, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(one_user_cannot_have_all_connections, setup, teardown),
        cmocka_unit_test_setup_teardown(descriptors_that_close_slowly_keep_nobody_waiting, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(without_descriptors_it_waits_and_goes_on, setup, teardown),
    };

    return cmocka_run_group_tests_name("agent-attach", tests, NULL, NULL);
}
