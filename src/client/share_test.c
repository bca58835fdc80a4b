/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that share a request, a handle that is closed, or a machine with others: who owns what
 * when two of them meet.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "client/client_int.h"
#include "client/fake_agent.h"

#define VALUE_BYTES 65536

struct fixture {
    struct agent *agent;
    struct fake_socket *socket;
    struct icms *icms;
    struct icms_volume *kv;
    char path[64], where[80];
};

static struct fixture f;

static int setup(void **state)
{
    memset(&f, 0, sizeof(f));
    (void)snprintf(f.path, sizeof(f.path), "/tmp/icms-share-%d.sock", (int)getpid());
    (void)snprintf(f.where, sizeof(f.where), "unix:%s", f.path);
    fake_reset();
    f.agent = fake_agent_start();
    f.socket = fake_socket_start(f.agent, f.path);
    check(icms_open(f.where, NULL, NULL, 0, &f.icms) == ICMS_OK);
    check(icms_volume_open(f.icms, "kv", NULL, 0, &f.kv) == ICMS_OK);
    return 0;
}

static int teardown(void **state)
{
    icms_close(&f.icms);
    if (f.socket != NULL)
        fake_socket_stop(&f.socket);
    agent_stop(f.agent);
    agent_free(&f.agent);
    return 0;
}

/* ---- a request that is waited for while another thread runs it ------------------------------ */

/* Memory whose first writer stops until it is let through. */
static uint8_t *slow_memory;
static atomic_bool slow_touched, slow_through;

static void slow_fault(int number, siginfo_t *info, void *context)
{
    uint8_t *at = info->si_addr;

    if (at < slow_memory || at >= slow_memory + VALUE_BYTES)
        _exit(99);
    atomic_store(&slow_touched, true);
    while (!atomic_load(&slow_through))
        (void)usleep(100);
    (void)mprotect(slow_memory, VALUE_BYTES, PROT_READ | PROT_WRITE);
}

static void *poll_once(void *arg)
{
    struct icms_request *request = NULL;

    while (!atomic_load(&slow_touched))
        request = icms_poll(f.icms);
    return request;
}

static void *wait_for(void *arg)
{
    return icms_request_wait(arg, -1) == ICMS_OK ? arg : NULL;
}

static void poll_does_not_return_what_is_waited_for_while_it_runs_it(void **state)
{
    struct sigaction action = {.sa_sigaction = slow_fault, .sa_flags = SA_SIGINFO}, before;
    struct icms_block block = {.key = {.digest = {1}, .bytes = {1}, .length = 1},
                               .bytes = VALUE_BYTES};
    struct icms_request *request;
    pthread_t poller, waiter;
    void *polled, *waited;
    bool waits = false;

    block.data = calloc(1, VALUE_BYTES);
    assert_int_equal(icms_put(f.kv, &block, 1, NULL), ICMS_OK);
    free(block.data);
    atomic_store(&fake.forget, true); /* a get goes to the agent */
    slow_memory = mmap(NULL, VALUE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(slow_memory != MAP_FAILED);
    assert_int_equal(sigaction(SIGSEGV, &action, &before), 0);
    atomic_store(&fake.swallow, true);
    block.data = slow_memory;
    assert_int_equal(icms_get_start(f.kv, &block, 1, NULL, &request), ICMS_OK);
    assert_int_equal(pthread_create(&poller, NULL, poll_once, NULL), 0);
    atomic_store(&fake.swallow, false);
    while (!atomic_load(&slow_touched))
        (void)usleep(100);
    /* the poller stands in the middle of it: now somebody waits for it */
    assert_int_equal(pthread_create(&waiter, NULL, wait_for, request), 0);
    while (!waits) {
        assert_int_equal(pthread_mutex_lock(&f.icms->lock), 0);
        waits = request->waited;
        assert_int_equal(pthread_mutex_unlock(&f.icms->lock), 0);
    }
    atomic_store(&slow_through, true);
    assert_int_equal(pthread_join(poller, &polled), 0);
    assert_int_equal(pthread_join(waiter, &waited), 0);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
    assert_ptr_equal(waited, request);
    assert_null(polled);
    assert_null(icms_poll(f.icms));
    assert_int_equal(icms_request_end(&request), ICMS_OK);
    assert_int_equal(munmap(slow_memory, VALUE_BYTES), 0);
}

/* ---- what died with an agent ---------------------------------------------------------------- */

static void the_first_flush_after_an_agent_died_says_what_it_cannot_promise(void **state)
{
    char data[2] = "kv";
    struct icms_block block = {
        .key = {.digest = {3}, .bytes = {3}, .length = 1}, .data = data, .bytes = 2};
    struct icms_volume *second;

    assert_int_equal(icms_put(f.kv, &block, 1, NULL), ICMS_OK);
    assert_int_equal(icms_flush(f.kv, NULL), ICMS_OK);
    for (int round = 0; round < 3; round++) {
        fake_socket_stop(&f.socket);
        assert_int_equal(icms_exists(f.kv, &block, 1, NULL), ICMS_PEER_DOWN);
        f.socket = fake_socket_start(f.agent, f.path);
        while (icms_exists(f.kv, &block, 1, NULL) == ICMS_PEER_DOWN)
            (void)usleep(1000); /* until it is attached */
        /* all was flushed, the first time; then it was not; at last the successor has lost
         * something, too, and that is one answer */
        assert_int_equal(icms_volume_open(f.icms, "kv", NULL, 0, &second), ICMS_OK);
        atomic_store(&fake.lossy, round == 2);
        assert_int_equal(icms_flush(second, NULL), round == 0 ? ICMS_OK : ICMS_IO);
        atomic_store(&fake.lossy, 0);
        assert_int_equal(icms_flush(f.kv, NULL), ICMS_OK);
        icms_volume_close(&second);
        assert_int_equal(icms_put(f.kv, &block, 1, NULL), ICMS_OK);
    }
}

/* ---- close while the handle looks for a new agent -------------------------------------------- */

/* A socket that takes connections and says nothing: attaching lasts until its timeout. */
static int mute_listen(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
    (void)unlink(path);
    check(sock >= 0 && bind(sock, (struct sockaddr *)&address, sizeof(address)) == 0);
    check(listen(sock, 8) == 0);
    return sock;
}

static void close_waits_for_the_thread_that_attaches_again(void **state)
{
    struct icms_block block = {.key = {.digest = {2}, .bytes = {2}, .length = 1}};
    int sock, conn;

    fake_socket_stop(&f.socket);
    assert_int_equal(icms_exists(f.kv, &block, 1, NULL), ICMS_PEER_DOWN);
    sock = mute_listen(f.path);
    conn = accept(sock, NULL, NULL);
    assert_true(conn >= 0); /* calls go on while it waits for an answer */
    assert_int_equal(icms_exists(f.kv, &block, 1, NULL), ICMS_PEER_DOWN);
    icms_close(&f.icms); /* a handle that is freed under the thread is seen by the sanitizer */
    (void)close(conn);
    (void)close(sock);
    (void)unlink(f.path);
}

/* ---- a stranger's socket -------------------------------------------------------------------- */

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes);

static bool strange; /* whoever listens is of user STRANGER */
#define STRANGER 65533

/* In front of libc's (--wrap): no test needs root to have another user. */
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *bytes)
{
    int result = __real_getsockopt(fd, level, name, value, bytes);

    if (result == 0 && strange && level == SOL_SOCKET && name == SO_PEERCRED)
        ((struct ucred *)value)->uid = STRANGER;
    return result;
}

/* Another user made the agent's socket where anybody can: it is not spoken to. */
static void a_strangers_socket_in_a_public_directory_is_refused(void **state)
{
    char path[] = "/tmp/icms-strange-XXXXXX", where[80], why[200] = "";
    struct icms *icms = NULL;
    int sock;

    assert_non_null(mkdtemp(path));
    (void)snprintf(where, sizeof(where), "unix:%s/agent.sock", path);
    sock = mute_listen(where + 5);
    strange = true;
    assert_int_equal(icms_open(where, NULL, why, sizeof(why), &icms), ICMS_PERMISSION);
    strange = false;
    assert_non_null(strstr(why, "65533"));
    (void)close(sock);
    (void)unlink(where + 5);
    (void)rmdir(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(poll_does_not_return_what_is_waited_for_while_it_runs_it,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(
            the_first_flush_after_an_agent_died_says_what_it_cannot_promise, setup, teardown),
        cmocka_unit_test_setup_teardown(close_waits_for_the_thread_that_attaches_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_strangers_socket_in_a_public_directory_is_refused, setup,
                                        teardown),
    };

    return cmocka_run_group_tests_name("client-share", tests, NULL, NULL);
}
