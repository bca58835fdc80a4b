/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client takes from whoever listens on the agent's socket: a welcome of its own release, as
 * many descriptors as announced, and memory that cannot shrink.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/client_int.h"
#include "client/fake_agent.h"

#define REACTORS 2
#define ARENA    (2 + REACTORS) /* before it: the client region, the events */
#define FDS      (ARENA + 3)

/* One answer to one hello, and the agent whose memory it passes on. */
struct fixture {
    struct agent *agent;
    struct agent_client_map client;
    int listener;
    char path[64];
    struct shm_welcome welcome; /* as an agent would say it */
    size_t bytes;               /* sent of it               */
    int fds[FDS + 1];           /* as an agent would pass   */
    uint32_t fd_count;
    pthread_t thread;
};

static void *answer(void *arg)
{
    struct fixture *f = arg;
    union {
        char bytes[CMSG_SPACE((FDS + 1) * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec vector = {&f->welcome, f->bytes};
    struct msghdr header = {.msg_iov = &vector,
                            .msg_iovlen = 1,
                            .msg_control = f->fd_count == 0 ? NULL : control.bytes,
                            .msg_controllen =
                                f->fd_count == 0 ? 0 : CMSG_SPACE(f->fd_count * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    struct shm_hello hello;
    int sock = accept(f->listener, NULL, NULL);

    check(sock >= 0 && recv(sock, &hello, sizeof(hello), 0) == (ssize_t)sizeof(hello));
    if (c != NULL) {
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(f->fd_count * sizeof(int));
        memcpy(CMSG_DATA(c), f->fds, f->fd_count * sizeof(int));
    }
    check(sendmsg(sock, &header, MSG_NOSIGNAL) == (ssize_t)f->bytes);
    (void)close(sock);
    return NULL;
}

/* Attaches; the link is closed again. */
static icms_err attach(struct fixture *f)
{
    struct client_link *link = NULL;
    icms_err err;

    assert_int_equal(pthread_create(&f->thread, NULL, answer, f), 0);
    err = client_attach_unix(f->path, 1 << 20, 5000, NULL, &link);
    assert_int_equal(pthread_join(f->thread, NULL), 0);
    assert_int_equal(err == ICMS_OK, link != NULL);
    client_link_free(&link);
    return err;
}

/* Back to what an agent would say. */
static void answer_right(struct fixture *f)
{
    f->welcome = (struct shm_welcome){.magic = SHM_HELLO_MAGIC,
                                      .version = SHM_VERSION,
                                      .volume_count = FDS - ARENA,
                                      .reactor_count = REACTORS};
    f->bytes = sizeof(f->welcome);
    f->fds[0] = loop_region_fd(f->client.region);
    f->fds[1] = loop_event_fd(f->client.client_event);
    for (int i = 0; i < REACTORS; i++)
        f->fds[2 + i] = loop_event_fd(f->client.agent_events[i]);
    for (int i = ARENA; i < FDS; i++)
        f->fds[i] = loop_region_fd(f->client.arenas[i - ARENA]);
    f->fds[FDS] = f->fds[FDS - 1];
    f->fd_count = FDS;
}

static int setup(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct fixture *f = calloc(1, sizeof(*f));

    check(f != NULL);
    *state = f;
    fake_reset();
    f->agent = fake_agent_start();
    check(agent_client_attach(f->agent, 1 << 20, NULL, &f->client) == ICMS_OK);
    (void)snprintf(f->path, sizeof(f->path), "/tmp/icms-attach-test-%d.sock", (int)getpid());
    strcpy(address.sun_path, f->path);
    (void)unlink(f->path);
    f->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    check(f->listener >= 0);
    check(bind(f->listener, (const struct sockaddr *)&address, sizeof(address)) == 0);
    check(listen(f->listener, 4) == 0);
    answer_right(f);
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;

    (void)close(f->listener);
    (void)unlink(f->path);
    agent_client_detach_wait(f->agent, f->client.client);
    agent_stop(f->agent);
    agent_free(&f->agent);
    free(f);
    return 0;
}

static void a_welcome_that_is_none_is_refused(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(attach(f), ICMS_OK);
    f->welcome.version++;
    assert_int_equal(attach(f), ICMS_VERSION);
    answer_right(f);
    f->welcome.magic++;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
    f->bytes--;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
    f->welcome.error = ICMS_LIMIT;
    assert_int_equal(attach(f), ICMS_LIMIT);
    f->welcome.error = 9999;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
}

static void descriptors_are_as_many_as_announced(void **state)
{
    struct fixture *f = *state;

    f->fd_count--;
    assert_int_equal(attach(f), ICMS_RESET); /* it ended before it passed the last one */
    f->fd_count = FDS + 1;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
    f->welcome.volume_count = LIMIT_AGENT_VOLUMES + 1;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    f->welcome.volume_count = UINT32_MAX - 2; /* three more are none */
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    f->fd_count = 0;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    f->welcome.volume_count = UINT32_MAX; /* and two */
    f->fd_count = 2;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
    assert_int_equal(attach(f), ICMS_OK);
}

/* A copy of a region of the agent, with these seals; -1: none can be made. */
static int region_copy(int from, int seals, off_t bytes)
{
    int fd = memfd_create("icms-attach-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    check(fd >= 0 && ftruncate(fd, bytes) == 0);
    for (off_t at = 0; at < bytes; at += 4096) {
        char page[4096];

        check(pread(from, page, sizeof(page), at) == (ssize_t)sizeof(page));
        check(pwrite(fd, page, sizeof(page), at) == (ssize_t)sizeof(page));
    }
    check(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

/* Whoever could make it smaller later would kill this process at its next look. */
static void memory_that_may_shrink_is_refused(void **state)
{
    struct fixture *f = *state;

    for (int i = 0; i < FDS; i++) {
        off_t bytes;
        int fd;

        if (i >= 1 && i < ARENA)
            continue;
        bytes = lseek(f->fds[i], 0, SEEK_END);
        fd = region_copy(f->fds[i], F_SEAL_SHRINK, bytes);
        f->fds[i] = fd;
        assert_int_equal(attach(f), ICMS_OK);
        answer_right(f);
        (void)close(fd);
        fd = region_copy(f->fds[i], F_SEAL_GROW, bytes);
        f->fds[i] = fd;
        assert_int_equal(attach(f), ICMS_PROTOCOL);
        answer_right(f);
        (void)close(fd);
        fd = region_copy(f->fds[i], F_SEAL_SHRINK, 4096); /* too small for what its header says */
        f->fds[i] = fd;
        assert_int_equal(attach(f), ICMS_PROTOCOL);
        answer_right(f);
        (void)close(fd);
        f->fds[i] = f->fds[1]; /* no memory at all */
        assert_int_not_equal(attach(f), ICMS_OK);
        answer_right(f);
    }
}

/* What holds for the first shard is believed of all. */
static void shards_that_are_not_of_one_volume_are_refused(void **state)
{
    struct fixture *f = *state;
    struct loop_region *region = f->client.arenas[0];
    struct shm_arena_header *second =
        (void *)((uint8_t *)loop_region_base(region) + loop_region_bytes(region) / REACTORS);

    assert_int_equal(attach(f), ICMS_OK);
    second->sealed ^= 1;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    second->sealed ^= 1;
    second->value_bytes_max--;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    second->value_bytes_max++;
    second->name[0] ^= 1;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    second->name[0] ^= 1;
    second->run_blocks++;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    second->run_blocks--;
    second->reactor ^= 1;
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    second->reactor ^= 1;
    assert_int_equal(attach(f), ICMS_OK);
}

/* Where the agent says that a volume's shards lie, there is none. */
static void shards_outside_of_their_arena_are_refused(void **state)
{
    struct fixture *f = *state;
    struct shm_client_header *header = loop_region_base(f->client.region);
    static const uint64_t wrong[] = {1, 4096, (uint64_t)1 << 40, (uint64_t)-4096};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        header->arena_offsets[0] = wrong[i];
        assert_int_equal(attach(f), ICMS_PROTOCOL);
    }
    header->arena_offsets[0] = 0;
    assert_int_equal(attach(f), ICMS_OK);
}

/* A call without a deadline would wait for weeks. */
static void deadlines_of_an_agent_are_bounded(void **state)
{
    struct fixture *f = *state;
    struct shm_client_header *header = loop_region_base(f->client.region);
    struct client_link *link = NULL;

    header->load_deadline_ms = header->store_deadline_ms = UINT32_MAX;
    assert_int_equal(pthread_create(&f->thread, NULL, answer, f), 0);
    assert_int_equal(client_attach_unix(f->path, 1 << 20, 5000, NULL, &link), ICMS_OK);
    assert_int_equal(pthread_join(f->thread, NULL), 0);
    assert_int_equal(link->load_deadline_ms, LIMIT_DEADLINE_MS);
    assert_int_equal(link->store_deadline_ms, LIMIT_DEADLINE_MS);
    client_link_free(&link);
}

/* A write to them must neither wait nor end this process by SIGPIPE. */
static void events_that_are_none_are_refused(void **state)
{
    struct fixture *f = *state;
    int ends[2], waits;

    check(pipe(ends) == 0);
    f->fds[2] = ends[1];
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
    f->fds[2] = f->fds[1]; /* a socket has a SIGPIPE, too */
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
    f->fds[1] = f->fds[2]; /* readable for ever, and never empty */
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
    f->fds[2] = waits = eventfd(0, EFD_CLOEXEC);
    assert_int_equal(attach(f), ICMS_PROTOCOL);
    answer_right(f);
    assert_int_equal(attach(f), ICMS_OK);
    (void)close(waits);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_welcome_that_is_none_is_refused),
        TEST(descriptors_are_as_many_as_announced),
        TEST(memory_that_may_shrink_is_refused),
        TEST(deadlines_of_an_agent_are_bounded),
        TEST(events_that_are_none_are_refused),
        TEST(shards_that_are_not_of_one_volume_are_refused),
        TEST(shards_outside_of_their_arena_are_refused),
    };

    check(setenv("FAKE_REACTORS", "2", 1) == 0);
    return cmocka_run_group_tests_name("client-attach", tests, NULL, NULL);
}
