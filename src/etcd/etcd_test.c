/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server that answers what the test says, one connection a question, and what the client makes of
 * it. The real etcd is in test/e2e/etcd.py.
 */
#include "etcd/etcd.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define TIMEOUT_MS  400
#define ANSWERS_MAX 8

/* "/icms/map" and "text" */
#define FOUND                                                                                      \
    "{\"header\":{\"revision\":\"12\"},\"kvs\":[{\"key\":\"L2ljbXMvbWFw\",\"mod_revision\":"       \
    "\"9\",\"value\":\"dGV4dA==\",\"lease\":\"77\"}],\"count\":\"1\"}"
#define NOTHING "{\"header\":{\"revision\":\"12\"}}"

/* One endpoint too many. */
#define FOUR "http://a,http://a,http://a,http://a"
#define NINE FOUR "," FOUR ",http://a"

/* What it does with the questions, in their order; the last one again for more. */
struct answer {
    int status;       /* 0: close without a word; -1: be silent; -2: write without end */
    const char *text; /* the body                                                      */
    size_t fill;      /* bytes of blanks behind it                                     */
};

struct server {
    int sock;
    uint16_t port;
    struct answer answers[ANSWERS_MAX];
    uint32_t count;
    atomic_uint asked;
    atomic_bool is_ending;
    char questions[ANSWERS_MAX][2048];
    pthread_t thread;
};

static void send_all(int fd, const char *text, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(fd, text + done, bytes - done, MSG_NOSIGNAL);

        if (n <= 0)
            return;
        done += (size_t)n;
    }
}

static void server_silent(const struct server *server, int fd)
{
    struct pollfd end = {.fd = fd, .events = POLLRDHUP};

    while (!atomic_load(&server->is_ending) && poll(&end, 1, 20) == 0) {
    }
}

static void server_answer(struct server *server, int fd, const struct answer *answer)
{
    static char blanks[4096];
    char head[256];

    memset(blanks, ' ', sizeof(blanks));
    if (answer->status == -1)
        server_silent(server, fd);
    if (answer->status <= 0 && answer->status != -2)
        return;
    (void)snprintf(head, sizeof(head),
                   "HTTP/1.1 %d x\r\nContent-Type: application/json\r\nLocation: "
                   "http://127.0.0.1:1/\r\nConnection: close\r\n\r\n",
                   answer->status == -2 ? 200 : answer->status);
    send_all(fd, head, strlen(head));
    send_all(fd, answer->text, strlen(answer->text));
    for (size_t n = answer->fill; n > 0; n -= sizeof(blanks) < n ? sizeof(blanks) : n)
        send_all(fd, blanks, sizeof(blanks) < n ? sizeof(blanks) : n);
    while (answer->status == -2 && !atomic_load(&server->is_ending) &&
           send(fd, blanks, 1, MSG_NOSIGNAL) == 1)
        (void)usleep(5000);
}

/* Reads a question: its header, and as much as that says. */
static void server_read(int fd, char *out, size_t room)
{
    size_t bytes = 0, wanted = SIZE_MAX;

    while (bytes < room - 1 && bytes < wanted) {
        ssize_t n = recv(fd, out + bytes, room - 1 - bytes, 0);
        const char *end, *length;

        if (n <= 0)
            break;
        bytes += (size_t)n;
        out[bytes] = '\0';
        end = strstr(out, "\r\n\r\n");
        length = strstr(out, "Content-Length: ");
        if (end != NULL && length != NULL)
            wanted = (size_t)(end + 4 - out) + strtoul(length + 16, NULL, 10);
    }
    out[bytes] = '\0';
}

static void *server_run(void *arg)
{
    struct server *server = arg;

    while (!atomic_load(&server->is_ending)) {
        struct pollfd ready = {.fd = server->sock, .events = POLLIN};
        uint32_t n;
        int fd;

        if (poll(&ready, 1, 20) != 1)
            continue;
        fd = accept(server->sock, NULL, NULL);
        n = atomic_load(&server->asked);
        server_read(fd, server->questions[n < ANSWERS_MAX ? n : ANSWERS_MAX - 1],
                    sizeof(server->questions[0]));
        atomic_fetch_add(&server->asked, 1);
        server_answer(server, fd, &server->answers[n < server->count ? n : server->count - 1]);
        (void)close(fd);
    }
    return NULL;
}

static void server_begin(struct server *server, uint32_t count, ...)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(addr);
    va_list list;

    memset(server, 0, sizeof(*server));
    va_start(list, count);
    for (uint32_t i = 0; i < count; i++)
        server->answers[i] = va_arg(list, struct answer);
    va_end(list);
    server->count = count;
    server->sock = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(server->sock, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(server->sock, 8), 0);
    assert_int_equal(getsockname(server->sock, (struct sockaddr *)&addr, &bytes), 0);
    server->port = ntohs(addr.sin_port);
    assert_int_equal(pthread_create(&server->thread, NULL, server_run, server), 0);
}

static void server_end(struct server *server)
{
    atomic_store(&server->is_ending, true);
    assert_int_equal(pthread_join(server->thread, NULL), 0);
    (void)close(server->sock);
}

static struct etcd *client(const struct server *server, const char *before, const char *user)
{
    static char endpoints[128];
    struct etcd_opts opts = {
        .endpoints = endpoints, .timeout_ms = TIMEOUT_MS, .user = user, .password = "sesame"};
    struct err_why why = {""};
    struct etcd *etcd;

    (void)snprintf(endpoints, sizeof(endpoints), "%shttp://127.0.0.1:%u", before, server->port);
    assert_int_equal(etcd_new(&opts, &why, &etcd), ICMS_OK);
    return etcd;
}

/* Asks for a key; what comes of it. */
static icms_err got(struct answer answer, char *out, size_t bytes)
{
    struct server server;
    struct etcd *etcd;
    struct etcd_value value;
    struct err_why why = {""};
    icms_err err;

    server_begin(&server, 1, answer);
    etcd = client(&server, "", NULL);
    err = etcd_get(etcd, "/icms/map", &value, &why);
    (void)snprintf(out, bytes, "%s",
                   err != ICMS_OK       ? why.text
                   : value.text == NULL ? "nothing"
                                        : value.text);
    assert_true(err == ICMS_OK || value.text == NULL);
    free(value.text);
    etcd_free(&etcd);
    server_end(&server);
    return err;
}

static void a_key_is_read(void **state)
{
    struct server server;
    struct etcd *etcd;
    struct etcd_value value;
    struct err_why why = {""};
    char text[ERR_WHY_BYTES_MAX];

    server_begin(&server, 1, (struct answer){200, FOUND, 0});
    etcd = client(&server, "", NULL);
    assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_OK);
    assert_string_equal(value.text, "text");
    assert_int_equal(value.bytes, 4);
    assert_int_equal(value.revision, 9);
    assert_int_equal(value.lease, 77);
    free(value.text);
    assert_non_null(strstr(server.questions[0], "POST /v3/kv/range "));
    assert_non_null(strstr(server.questions[0], "{\"key\":\"L2ljbXMvbWFw\"}"));
    etcd_free(&etcd);
    server_end(&server);
    assert_int_equal(got((struct answer){200, NOTHING, 0}, text, sizeof(text)), ICMS_OK);
    assert_string_equal(text, "nothing");
}

/* Nothing of it is a value, nor the word that there is none. */
static void what_no_etcd_says_is_refused(void **state)
{
    static const struct {
        struct answer answer;
        icms_err err;
        const char *said;
    } cases[] = {
        {{0, "", 0}, ICMS_PEER_DOWN, "Empty reply"},
        {{-1, "", 0}, ICMS_PEER_DOWN, "timed out"},
        {{-2, FOUND, 0}, ICMS_PEER_DOWN, "timed out"},
        {{200, "", 0}, ICMS_PROTOCOL, "not JSON"},
        {{200, "{}", 0}, ICMS_PROTOCOL, "not one of etcd"},
        {{200, "[]", 0}, ICMS_PROTOCOL, "not JSON"},
        {{200, "{\"kvs\":[{}]}", 0}, ICMS_PROTOCOL, "not one of etcd"},
        {{200, "{\"kvs\":[{\"mod_revision\":\"1\",\"value\":\"?\"}]}", 0},
         ICMS_PROTOCOL,
         "not one of etcd"},
        {{200, "{\"kvs\":[{\"mod_revision\":\"1\",\"value\":\"!!!!\"}]}", 0},
         ICMS_PROTOCOL,
         "not one of etcd"},
        {{200, "{\"kvs\":[{\"mod_revision\":\"-1\",\"value\":7}]}", 0}, ICMS_PROTOCOL, NULL},
        {{200, FOUND, ETCD_ANSWER_MAX}, ICMS_PROTOCOL, "larger than 4 MiB"},
        {{302, "{}", 0}, ICMS_PEER_DOWN, "HTTP 302"},
        {{404, "page not found", 0}, ICMS_PROTOCOL, "HTTP 404"},
        {{503, "{\"error\":\"etcdserver: no leader\",\"code\":14}", 0},
         ICMS_PEER_DOWN,
         "no leader"},
        {{400, "{\"error\":\"a\\u0007b\",\"code\":3}", 0}, ICMS_PROTOCOL, "a?b"},
        {{401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}", 0},
         ICMS_PERMISSION,
         "who names no user"},
    };
    char text[ERR_WHY_BYTES_MAX];

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        icms_err err = got(cases[i].answer, text, sizeof(text));

        if (err != cases[i].err)
            fail_msg("case %zu: %d: %s", i, (int)err, text);
        if (cases[i].said != NULL && strstr(text, cases[i].said) == NULL)
            fail_msg("case %zu: %s", i, text);
    }
}

static void the_next_endpoint_is_asked(void **state)
{
    struct server server;
    struct etcd *etcd;
    struct etcd_value value;
    struct err_why why = {""};

    server_begin(&server, 1, (struct answer){200, FOUND, 0});
    etcd = client(&server, "http://127.0.0.1:1,,http://127.0.0.1:2/,", NULL);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_OK);
        free(value.text);
        assert_int_equal(strncmp(etcd_endpoint(etcd), "http://127.0.0.1:", 17), 0);
        assert_int_equal(atoi(etcd_endpoint(etcd) + 17), server.port);
    }
    etcd_free(&etcd);
    server_end(&server);
}

/* Nor does one that is no etcd keep the others away; when none answers, the first one's reason
 * counts. */
static void another_server_is_passed_over(void **state)
{
    struct server other, server;
    char before[64];
    struct etcd *etcd;
    struct etcd_value value;
    struct err_why why = {""};

    server_begin(&other, 1, (struct answer){404, "page not found", 0});
    server_begin(&server, 1, (struct answer){200, FOUND, 0});
    (void)snprintf(before, sizeof(before), "http://127.0.0.1:%u,", other.port);
    etcd = client(&server, before, NULL);
    assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_OK);
    free(value.text);
    etcd_free(&etcd);
    server_end(&server);
    etcd = client(&other, "http://127.0.0.1:1,http://127.0.0.1:2,", NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_PEER_DOWN);
        assert_string_equal(why.text, "etcd http://127.0.0.1:1: it does not take connections");
    }
    etcd_free(&etcd);
    server_end(&other);
}

/* A token is taken first, goes with each question, and is replaced once when it is too old. */
static void a_user_has_a_token(void **state)
{
    const struct answer old = {401, "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}",
                               0};
    struct server server;
    struct etcd *etcd;
    struct etcd_value value;
    struct err_why why = {""};

    server_begin(
        &server, 6, (struct answer){200, "{\"token\":\"one\"}", 0}, (struct answer){200, FOUND, 0},
        old, (struct answer){200, "{\"token\":\"two\"}", 0}, (struct answer){200, FOUND, 0}, old);
    etcd = client(&server, "", "icms");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_OK);
        free(value.text);
    }
    assert_non_null(strstr(server.questions[0], "/v3/auth/authenticate"));
    assert_non_null(strstr(server.questions[0], "sesame"));
    assert_null(strstr(server.questions[0], "Authorization"));
    assert_non_null(strstr(server.questions[1], "Authorization: one"));
    assert_non_null(strstr(server.questions[2], "Authorization: one"));
    assert_non_null(strstr(server.questions[4], "Authorization: two"));
    assert_null(strstr(server.questions[4], "sesame"));
    assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_PERMISSION);
    assert_null(strstr(why.text, "sesame"));
    etcd_free(&etcd);
    server_end(&server);

    server_begin(&server, 1, (struct answer){200, "{\"token\":\"a\\r\\nX-Evil: b\"}", 0});
    etcd = client(&server, "", "icms");
    assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_PROTOCOL);
    etcd_free(&etcd);
    server_end(&server);

    /* Users have changed: a new token. Who says what it was asked is not quoted. */
    server_begin(
        &server, 5, (struct answer){200, "{\"token\":\"one\"}", 0}, (struct answer){200, FOUND, 0},
        (struct answer){400, "{\"error\":\"etcdserver: revision of auth store is old\",\"code\":3}",
                        0},
        (struct answer){200, "{\"token\":\"two\"}", 0}, (struct answer){200, FOUND, 0});
    etcd = client(&server, "", "icms");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_OK);
        free(value.text);
    }
    etcd_free(&etcd);
    server_end(&server);
    server_begin(&server, 1,
                 (struct answer){401, "{\"error\":\"{'password':'sesame'}\",\"code\":16}", 0});
    etcd = client(&server, "", "icms");
    assert_int_equal(etcd_get(etcd, "/icms/map", &value, &why), ICMS_PERMISSION);
    assert_null(strstr(why.text, "sesame"));
    etcd_free(&etcd);
    server_end(&server);
}

static void a_put_is_for_one_revision(void **state)
{
    struct server server;
    struct etcd *etcd;
    struct err_why why = {""};
    uint64_t revision = 0;

    server_begin(&server, 5,
                 (struct answer){200, "{\"header\":{\"revision\":\"13\"},\"succeeded\":true}", 0},
                 (struct answer){200, NOTHING, 0}, (struct answer){200, FOUND, 0},
                 (struct answer){200, NOTHING, 0}, (struct answer){200, FOUND, 0});
    etcd = client(&server, "", NULL);
    assert_int_equal(etcd_put(etcd, "/icms/map", "text", 4, 9, 5, &revision, &why), ICMS_OK);
    assert_int_equal(revision, 13);
    assert_non_null(strstr(server.questions[0], "\"mod_revision\":\"9\""));
    assert_non_null(strstr(server.questions[0], "\"lease\":\"5\""));
    /* Its own, of which the answer was lost; then somebody else's. */
    assert_int_equal(etcd_put(etcd, "/icms/map", "text", 4, 8, 0, &revision, &why), ICMS_OK);
    assert_int_equal(revision, 9);
    assert_int_equal(etcd_put(etcd, "/icms/map", "mine", 4, 8, 0, &revision, &why), ICMS_EXISTS);
    etcd_free(&etcd);
    server_end(&server);
}

static void leases_are_given_kept_and_lost(void **state)
{
    struct server server;
    struct etcd *etcd;
    struct err_why why = {""};
    uint64_t lease = 0;

    server_begin(&server, 5, (struct answer){200, "{\"ID\":\"7587\",\"TTL\":\"10\"}", 0},
                 (struct answer){200, "{\"result\":{\"ID\":\"7587\",\"TTL\":\"10\"}}\n", 0},
                 (struct answer){200, "{\"result\":{\"ID\":\"7587\"}}\n", 0},
                 (struct answer){404, "{\"error\":\"requested lease not found\",\"code\":5}", 0},
                 (struct answer){200, "{}", 0});
    etcd = client(&server, "", NULL);
    assert_int_equal(etcd_lease(etcd, 10, &lease, &why), ICMS_OK);
    assert_int_equal(lease, 7587);
    assert_int_equal(etcd_lease_keep(etcd, lease, &why), ICMS_OK);
    assert_int_equal(etcd_lease_keep(etcd, lease, &why), ICMS_NOT_FOUND);
    assert_int_equal(etcd_lease_end(etcd, lease, &why), ICMS_NOT_FOUND);
    assert_int_equal(etcd_lease(etcd, 10, &lease, &why), ICMS_PROTOCOL);
    etcd_free(&etcd);
    server_end(&server);
}

static void list_count(void *arg, const char *key, const char *text, size_t bytes)
{
    assert_string_equal(key, "/icms/map");
    assert_int_equal(bytes, 4);
    assert_string_equal(text, "text");
    (*(uint32_t *)arg)++;
}

static void keys_of_others_are_not_listed(void **state)
{
    struct server server;
    struct etcd *etcd;
    struct err_why why = {""};
    uint32_t count = 0;

    server_begin(&server, 1, (struct answer){200, FOUND, 0});
    etcd = client(&server, "", NULL);
    assert_int_equal(etcd_list(etcd, "/icms/", list_count, &count, &why), ICMS_OK);
    assert_int_equal(count, 1);
    assert_non_null(strstr(server.questions[0], "L2ljbXMv\"")); /* "/icms/" */
    assert_non_null(strstr(server.questions[0], "L2ljbXMw\"")); /* "/icms0" */
    assert_int_equal(etcd_list(etcd, "/other/", list_count, &count, &why), ICMS_PROTOCOL);
    assert_int_equal(count, 1);
    etcd_free(&etcd);
    server_end(&server);
}

static void endpoints_are_checked(void **state)
{
    static const char *const wrong[] = {
        "", ",", "127.0.0.1:2379", "ftp://a:1", "http://user:hunter2@a:1", "http://a:1/?b", NINE};
    struct etcd_opts opts = {.timeout_ms = 10};
    struct err_why why = {""};
    struct etcd *etcd;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        opts.endpoints = wrong[i];
        assert_int_equal(etcd_new(&opts, &why, &etcd), ICMS_INVALID);
        assert_null(strstr(why.text, "hunter2"));
    }
    opts.user = "icms";
    opts.endpoints = "http://192.0.2.1:2379"; /* a password in clear text */
    assert_int_equal(etcd_new(&opts, &why, &etcd), ICMS_INVALID);
    opts.endpoints = "http://127.evil.example:2379";
    assert_int_equal(etcd_new(&opts, &why, &etcd), ICMS_INVALID);
    opts.endpoints = "https://192.0.2.1:2379,http://[::1]:2379,http://localhost:2379";
    assert_int_equal(etcd_new(&opts, &why, &etcd), ICMS_OK);
    etcd_free(&etcd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_read),
        cmocka_unit_test(what_no_etcd_says_is_refused),
        cmocka_unit_test(the_next_endpoint_is_asked),
        cmocka_unit_test(another_server_is_passed_over),
        cmocka_unit_test(a_user_has_a_token),
        cmocka_unit_test(a_put_is_for_one_revision),
        cmocka_unit_test(leases_are_given_kept_and_lost),
        cmocka_unit_test(keys_of_others_are_not_listed),
        cmocka_unit_test(endpoints_are_checked),
    };
    int failed;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    curl_global_cleanup();
    return failed;
}
