/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A handle whose agent is optional: opened before the agent is there, it misses until that comes,
 * uses it then, and says so once. What is wrong whatever agent comes is an error at once.
 */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "client/client_int.h"
#include "client/client_rig.h"
#include "client/fake_agent.h"

/* ---- what the handle says ------------------------------------------------------------------- */

#define LINES 16

static pthread_mutex_t lines_lock = PTHREAD_MUTEX_INITIALIZER;
static char lines[LINES][768];
static unsigned line_count;

static void take_line(void *arg, const char *line)
{
    check(pthread_mutex_lock(&lines_lock) == 0);
    check(line_count < LINES);
    (void)snprintf(lines[line_count++], sizeof(lines[0]), "%s", line);
    check(pthread_mutex_unlock(&lines_lock) == 0);
}

/* Lines with this text, so far. */
static unsigned said(const char *text)
{
    unsigned count = 0;

    check(pthread_mutex_lock(&lines_lock) == 0);
    for (unsigned i = 0; i < line_count; i++)
        count += strstr(lines[i], text) != NULL;
    check(pthread_mutex_unlock(&lines_lock) == 0);
    return count;
}

static void wait_said(const char *text, unsigned times)
{
    uint64_t begin = client_now_ns();

    while (said(text) < times) {
        assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
        (void)usleep(1000);
    }
}

/* ---- fixtures ------------------------------------------------------------------------------- */

/* An agent without a socket, and a handle that waits for it. */
static int setup(void **state)
{
    struct client_rig *f = calloc(1, sizeof(*f));

    check(f != NULL);
    *state = f;
    line_count = 0;
    fake_reset();
    (void)snprintf(f->path, sizeof(f->path), "/tmp/icms-absent-test-%d.sock", (int)getpid());
    (void)snprintf(f->where, sizeof(f->where), "unix:%s", f->path);
    (void)unlink(f->path);
    f->agent = fake_agent_start();
    return 0;
}

static int teardown(void **state)
{
    client_rig_close(*state);
    free(*state);
    return 0;
}

static icms_err open_optional(struct client_rig *f, char *why, size_t why_bytes)
{
    struct icms_options options;

    icms_options_init(&options);
    options.load_deadline_ms = options.store_deadline_ms = RIG_GRACE_MS;
    options.log = take_line;
    options.agent_optional = 1;
    options.keys = "";
    return icms_open(f->where, &options, why, why_bytes, &f->icms);
}

static void open_absent(struct client_rig *f)
{
    assert_int_equal(open_optional(f, NULL, 0), ICMS_OK);
    assert_int_equal(icms_volume_open(f->icms, "kv", NULL, 0, &f->kv), ICMS_OK);
    assert_int_equal(icms_volume_open(f->icms, "raw", NULL, 0, &f->raw), ICMS_OK);
}

static bool is_known(const struct icms_volume *volume)
{
    static const uint8_t nil[16];
    struct icms_volume_info info;

    icms_volume_info(volume, &info);
    return memcmp(info.uuid, nil, sizeof(nil)) != 0;
}

static uint8_t chain_key_bytes(const struct icms_volume *volume)
{
    const struct icms_layout layout = {.model = "m", .block_tokens = 16};
    struct icms_chain chain;
    struct icms_key key;

    icms_chain_init(&chain, volume, &layout);
    icms_chain_next(&chain, "tokens", 6, &key);
    return key.length;
}

/* ---- before the agent is there -------------------------------------------------------------- */

static void every_call_misses_until_the_agent_comes(void **state)
{
    struct client_rig *f = *state;
    struct icms_key key = rig_key(1);
    struct icms_block block = {.key = key};
    struct icms_volume_info info;
    struct icms_request *request;
    struct icms_lease lease;
    char text[256];
    size_t matched = 9, bytes;
    void *buffer;

    open_absent(f);
    assert_int_equal(said("no agent: "), 1);
    assert_int_equal(icms_volume_state(f->kv), ICMS_PEER_DOWN);
    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_PEER_DOWN);
    assert_int_equal(rig_get_one(f->kv, 1, 64, &block), ICMS_PEER_DOWN);
    assert_int_equal(block.status, ICMS_PEER_DOWN);
    assert_int_equal(icms_exists(f->kv, &block, 1, NULL), ICMS_PEER_DOWN);
    assert_int_equal(icms_remove(f->kv, &block, 1, NULL), ICMS_PEER_DOWN);
    assert_int_equal(icms_match(f->kv, &key, 1, NULL, &matched), ICMS_PEER_DOWN);
    assert_int_equal(icms_prestage(f->kv, &key, 1, NULL, NULL), ICMS_PEER_DOWN);
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_PEER_DOWN);
    assert_int_equal(icms_get_start(f->kv, &block, 1, NULL, &request), ICMS_PEER_DOWN);
    assert_int_equal(icms_lease_take(f->kv, &key, NULL, NULL, &lease), ICMS_PEER_DOWN);
    assert_int_equal(icms_buffer_take(f->icms, 64, &buffer), ICMS_PEER_DOWN);
    assert_int_not_equal(icms_status(f->icms, text, sizeof(text), &bytes), ICMS_OK);
    assert_true(icms_event_fd(f->icms) >= 0);
    assert_null(icms_poll(f->icms));
    icms_volume_info(f->kv, &info);
    assert_string_equal(info.name, "kv");
    assert_int_equal(info.value_bytes_max, 0);
    assert_false(is_known(f->kv));
    assert_int_equal(chain_key_bytes(f->kv), 0);
    wait_said("no agent: ", 1);
    assert_int_equal(said("start icms-agent"), 1);

    f->socket = fake_socket_start(f->agent, f->path);
    assert_int_equal(rig_put_one_soon(f->kv, 1, 64), ICMS_OK);
    assert_int_equal(rig_get_one(f->kv, 1, 64, NULL), ICMS_OK);
    assert_int_equal(rig_put_one(f->raw, 1, 64), ICMS_OK);
    assert_int_equal(icms_match(f->kv, &key, 1, NULL, &matched), ICMS_OK);
    assert_int_equal(matched, 1);
    assert_int_equal(icms_volume_state(f->kv), ICMS_OK);
    assert_true(is_known(f->kv));
    icms_volume_info(f->kv, &info);
    assert_int_equal(info.value_bytes_max, 65536);
    assert_int_equal(chain_key_bytes(f->kv), ICMS_KEY_BYTES);
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_OK);
    wait_said("attached to the agent", 1);
    assert_int_equal(said("no agent: "), 1);
    assert_int_equal(line_count, 2);
}

/* Nobody calls: the handle finds it by itself, the first time and after each end. */
static void an_idle_handle_finds_its_agent(void **state)
{
    struct client_rig *f = *state;

    open_absent(f);
    for (unsigned round = 1; round <= 3; round++) {
        wait_said("no agent: ", round);
        f->socket = fake_socket_start(f->agent, f->path);
        wait_said("attached to the agent", round);
        assert_int_equal(icms_volume_state(f->kv), ICMS_OK);
        assert_true(is_known(f->kv));
        assert_int_equal(rig_put_one(f->kv, round, 64), ICMS_OK);
        fake_socket_stop(&f->socket);
    }
    wait_said("no agent: ", 4);
    assert_int_equal(icms_volume_state(f->kv), ICMS_PEER_DOWN);
    assert_true(is_known(f->kv)); /* as it was */
    assert_int_equal(said("attached to the agent"), 3);
}

/* A volume that is opened while the agent is away counts its puts as any other. */
static void a_flush_says_what_a_dead_agent_may_have_lost(void **state)
{
    struct client_rig *f = *state;
    struct icms_volume *second;

    open_absent(f);
    wait_said("no agent: ", 1);
    f->socket = fake_socket_start(f->agent, f->path);
    assert_int_equal(rig_put_one_soon(f->kv, 1, 64), ICMS_OK);
    fake_socket_stop(&f->socket);
    wait_said("no agent: ", 2);
    assert_int_equal(icms_volume_open(f->icms, "kv", NULL, 0, &second), ICMS_OK);
    f->socket = fake_socket_start(f->agent, f->path);
    assert_int_equal(rig_get_one_soon(second, 1, 64), ICMS_OK);
    assert_int_equal(icms_flush(f->raw, NULL), ICMS_OK);
    assert_int_equal(icms_flush(second, NULL), ICMS_IO);
    assert_int_equal(icms_flush(f->kv, NULL), ICMS_OK);
}

/* An agent that attaches clients and hangs up is attached to ever less often, and what a volume
 * keeps of it uses nothing up. */
static void an_agent_that_flaps_is_not_attached_to_all_the_time(void **state)
{
    struct client_rig *f = *state;
    uint64_t begin = 0;

    open_absent(f);
    for (unsigned round = 1; round <= 5; round++) {
        f->socket = fake_socket_start(f->agent, f->path);
        wait_said("attached to the agent", round);
        if (round == 1)
            begin = client_now_ns();
        fake_socket_stop(&f->socket);
    }
    assert_true(rig_elapsed_ms(begin) >= 1200); /* at 100 ms each it was 400 */
    client_lock(f->icms);
    f->kv->view_count = CLIENT_VIEWS_MAX;
    client_unlock(f->icms);
    f->socket = fake_socket_start(f->agent, f->path);
    assert_int_equal(rig_put_one_soon(f->kv, 1, 64), ICMS_OK);
}

static void closing_waits_for_no_agent(void **state)
{
    struct client_rig *f = *state;
    uint64_t begin = client_now_ns();

    for (int i = 0; i < 50; i++) {
        open_absent(f);
        icms_close(&f->icms);
        line_count = 0;
    }
    assert_true(rig_elapsed_ms(begin) < RIG_GRACE_MS);
}

/* Of the handle that this program's `log` tries to close. */
static void close_in_log(void *arg, const char *line)
{
    struct icms *same = *(struct icms *const *)arg;

    take_line(arg, line);
    if (strstr(line, "attached to the agent") == NULL)
        return;
    icms_close(&same);
    check(same != NULL);
    take_line(arg, "did not close");
}

static void a_handle_is_not_closed_by_its_own_log(void **state)
{
    struct client_rig *f = *state;
    struct icms_options options;

    icms_options_init(&options);
    options.log = close_in_log;
    options.log_arg = &f->icms;
    options.agent_optional = 1;
    options.keys = "";
    assert_int_equal(icms_open(f->where, &options, NULL, 0, &f->icms), ICMS_OK);
    assert_int_equal(icms_volume_open(f->icms, "kv", NULL, 0, &f->kv), ICMS_OK);
    f->socket = fake_socket_start(f->agent, f->path);
    wait_said("did not close", 1);
    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_OK);
    fake_socket_stop(&f->socket);
    wait_said("no agent: ", 2);
}

/* ---- what is wrong -------------------------------------------------------------------------- */

static void what_no_agent_mends_is_an_error_at_once(void **state)
{
    struct client_rig *f = *state;
    struct icms_options options;
    struct icms_volume *volume = NULL;
    struct icms *icms = NULL;
    char why[512] = "", name[ICMS_NAME_BYTES + 1];

    assert_int_equal(icms_open(f->where, NULL, why, sizeof(why), &icms), ICMS_NOT_FOUND);
    icms_options_init(&options);
    options.agent_optional = 1;
    options.keys = "/nonexistent/keys.yaml";
    assert_int_not_equal(icms_open(f->where, &options, why, sizeof(why), &icms), ICMS_OK);
    assert_non_null(strstr(why, "/nonexistent/keys.yaml"));
    options.keys = "";
    assert_int_equal(icms_open("unx:/tmp/x", &options, why, sizeof(why), &icms), ICMS_INVALID);
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    open_absent(f);
    assert_int_equal(icms_volume_open(f->icms, "", why, sizeof(why), &volume), ICMS_INVALID);
    assert_int_equal(icms_volume_open(f->icms, name, why, sizeof(why), &volume), ICMS_INVALID);
    assert_null(volume);
}

static void an_agent_without_the_volume_is_told(void **state)
{
    struct client_rig *f = *state;
    struct icms_volume *none = NULL, *vault = NULL, *late = NULL;

    open_absent(f);
    assert_int_equal(icms_volume_open(f->icms, "nosuch", NULL, 0, &none), ICMS_OK);
    assert_int_equal(icms_volume_open(f->icms, "vault", NULL, 0, &vault), ICMS_OK);
    assert_int_equal(rig_put_one(none, 1, 64), ICMS_PEER_DOWN);
    f->socket = fake_socket_start(f->agent, f->path);
    assert_int_equal(rig_put_one_soon(f->kv, 1, 64), ICMS_OK);
    assert_int_equal(rig_put_one(none, 1, 64), ICMS_NO_VOLUME);
    assert_int_equal(rig_get_one(none, 1, 64, NULL), ICMS_NO_VOLUME);
    assert_int_equal(rig_put_one(vault, 1, 64), ICMS_NO_KEY);
    assert_int_equal(icms_volume_state(vault), ICMS_NO_KEY);
    assert_int_equal(icms_volume_state(none), ICMS_NO_VOLUME);
    wait_said("cannot open volume nosuch: no such volume", 1);
    wait_said("cannot open volume vault: it is encrypted", 1);
    assert_int_equal(said("kv, raw, big, vault"), 1);
    assert_false(is_known(none));
    assert_int_equal(chain_key_bytes(none), 0);
    assert_int_equal(icms_volume_open(f->icms, "nosuch", NULL, 0, &late), ICMS_NO_VOLUME);
}

/* No enclosure has it: where the agent knows when it comes, the handle says so, and in each case
 * its state does, without a call that asks the agent, until an enclosure has it. */
static void a_volume_that_no_enclosure_has_is_told(void **state)
{
    struct client_rig *f = *state;

    open_absent(f);
    fake_agent_volume_missing_set(f->agent, 1, true);
    f->socket = fake_socket_start(f->agent, f->path);
    wait_said("no enclosure of the pod has the volume raw", 1);
    assert_int_equal(icms_volume_state(f->raw), ICMS_NO_VOLUME);
    assert_int_equal(icms_volume_state(f->kv), ICMS_OK);
    assert_true(is_known(f->raw));
    fake_agent_volume_missing_set(f->agent, 1, false);
    assert_int_equal(icms_volume_state(f->raw), ICMS_OK);
    assert_int_equal(rig_put_one(f->raw, 1, 64), ICMS_OK);

    fake_agent_volume_missing_set(f->agent, 0, true); /* found out later */
    assert_int_equal(icms_volume_state(f->kv), ICMS_NO_VOLUME);
    fake_socket_stop(&f->socket);
    wait_said("no agent: ", 2);
    assert_int_equal(icms_volume_state(f->kv), ICMS_PEER_DOWN);
    f->socket = fake_socket_start(f->agent, f->path);
    wait_said("no enclosure of the pod has the volume kv", 1);
    assert_int_equal(icms_volume_state(f->kv), ICMS_NO_VOLUME);
    assert_int_equal(said("no enclosure of the pod has the volume raw"), 1);
}

/* Somebody at the socket who refuses everybody with this error, until it is over. */
struct refuser {
    const struct client_rig *f;
    icms_err err;
    int listener;
    pthread_t thread;
};

static void *refuse(void *arg)
{
    struct refuser *r = arg;
    struct shm_welcome welcome = {
        .magic = SHM_HELLO_MAGIC, .version = SHM_VERSION, .error = (uint32_t)r->err};
    struct shm_hello hello;
    int sock;

    while ((sock = accept(r->listener, NULL, NULL)) >= 0) {
        if (recv(sock, &hello, sizeof(hello), 0) == (ssize_t)sizeof(hello))
            (void)!send(sock, &welcome, sizeof(welcome), MSG_NOSIGNAL);
        (void)close(sock);
    }
    return NULL;
}

static void refuse_start(struct refuser *r, const struct client_rig *f, icms_err err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    *r = (struct refuser){.f = f, .err = err};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", f->path);
    r->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    check(r->listener >= 0);
    check(bind(r->listener, (const struct sockaddr *)&address, sizeof(address)) == 0);
    check(listen(r->listener, 4) == 0);
    check(pthread_create(&r->thread, NULL, refuse, r) == 0);
}

static void refuse_stop(struct refuser *r)
{
    (void)shutdown(r->listener, SHUT_RDWR);
    check(pthread_join(r->thread, NULL) == 0);
    (void)close(r->listener);
    (void)unlink(r->f->path);
}

static void an_agent_of_another_release_is_an_error_as_soon_as_it_is_known(void **state)
{
    struct client_rig *f = *state;
    struct icms_block block = {.key = rig_key(1)};
    struct icms_volume *volume = NULL;
    struct refuser refuser;
    char why[512] = "";

    refuse_start(&refuser, f, ICMS_VERSION);
    assert_int_equal(open_optional(f, why, sizeof(why)), ICMS_VERSION);
    assert_non_null(strstr(why, "refused"));
    assert_int_equal(line_count, 0);
    refuse_stop(&refuser);

    open_absent(f);
    wait_said("no such socket", 1);
    refuse_start(&refuser, f, ICMS_VERSION);
    wait_said("refused", 1);
    assert_int_equal(icms_exists(f->kv, &block, 1, NULL), ICMS_VERSION);
    assert_int_equal(block.status, ICMS_VERSION);
    assert_int_equal(icms_volume_state(f->kv), ICMS_VERSION);
    assert_int_equal(icms_volume_open(f->icms, "big", why, sizeof(why), &volume), ICMS_VERSION);
    (void)usleep(500000); /* some attempts */
    assert_int_equal(said("refused"), 1);
    refuse_stop(&refuser);
    f->socket = fake_socket_start(f->agent, f->path);
    wait_said("attached to the agent", 1);
    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_OK);
}

/* A handle that is opened at an agent that refuses, as it will not for ever. */
static void refused_and_waited_for(struct client_rig *f, icms_err err)
{
    struct refuser refuser;

    refuse_start(&refuser, f, err);
    open_absent(f);
    wait_said("no agent: ", 1);
    assert_int_equal(rig_put_one(f->kv, 1, 64), ICMS_PEER_DOWN);
    refuse_stop(&refuser);
    f->socket = fake_socket_start(f->agent, f->path);
    assert_int_equal(rig_put_one_soon(f->kv, 1, 64), ICMS_OK);
    assert_int_equal(said("no agent: "), 1);
}

/* Its users' connections are used up: that ends. */
static void a_busy_agent_is_waited_for(void **state)
{
    refused_and_waited_for(*state, ICMS_LIMIT);
}

/* It listens while it drains, and another one takes its place. */
static void an_agent_that_shuts_down_is_waited_for(void **state)
{
    refused_and_waited_for(*state, ICMS_CLOSED);
}

static void options_that_the_agent_refuses_are_an_error_at_once(void **state)
{
    struct client_rig *f = *state;
    struct refuser refuser;
    char why[512] = "";

    refuse_start(&refuser, f, ICMS_INVALID);
    assert_int_equal(open_optional(f, why, sizeof(why)), ICMS_INVALID);
    assert_non_null(strstr(why, "refused"));
    refuse_stop(&refuser);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_call_misses_until_the_agent_comes),
        TEST(an_idle_handle_finds_its_agent),
        TEST(a_flush_says_what_a_dead_agent_may_have_lost),
        TEST(an_agent_that_flaps_is_not_attached_to_all_the_time),
        TEST(closing_waits_for_no_agent),
        TEST(a_handle_is_not_closed_by_its_own_log),
        TEST(what_no_agent_mends_is_an_error_at_once),
        TEST(an_agent_without_the_volume_is_told),
        TEST(a_volume_that_no_enclosure_has_is_told),
        TEST(an_agent_of_another_release_is_an_error_as_soon_as_it_is_known),
        TEST(a_busy_agent_is_waited_for),
        TEST(an_agent_that_shuts_down_is_waited_for),
        TEST(options_that_the_agent_refuses_are_an_error_at_once),
    };

    return cmocka_run_group_tests_name("client-absent", tests, NULL, NULL);
}
