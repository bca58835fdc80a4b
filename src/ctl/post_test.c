/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST of the HTTP server: a body comes whole, of who has proven who he is, and within its bound;
 * no other path and no other server has it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/limits.h"
#include "ctl/ctl_int.h"

#define TOKEN "0123456789abcdef0123456789abcdef"
#define PROOF "Authorization: Bearer " TOKEN "\r\n"
#define JSON  "Content-Type: application/json\r\n"
#define POST  "POST /v1/prestage HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"

static struct ctl_http *http;
static char reply[8192];
static size_t body_bytes; /* of the last one that was taken     */
static char body_first, body_last;
static unsigned bodies; /* that were taken                    */

static unsigned take(void *arg, const char *body, size_t bytes, struct ctl_page *page)
{
    assert_int_equal(body[bytes], '\0');
    bodies++;
    body_bytes = bytes;
    body_first = body[0];
    body_last = bytes == 0 ? '\0' : body[bytes - 1];
    ctl_text(page, "{\"bytes\": %zu}", bytes);
    return 202;
}

static unsigned take_other(void *arg, const char *body, size_t bytes, struct ctl_page *page)
{
    ctl_text(page, "{\"other\": true}");
    return 200;
}

static const struct ctl_post posts[] = {{"/v1/prestage", take}, {"/v1/match", take_other}};

static int serve(void **state)
{
    char path[64];
    struct ctl_http_opts opts = {.listen = "127.0.0.1:0",
                                 .posts = posts,
                                 .post_count = 2,
                                 .open = CTL_HTTP_OPEN_METRICS,
                                 .token = path};
    struct err_why why = {""};
    FILE *file;
    icms_err err;

    (void)snprintf(path, sizeof(path), "/tmp/icms-ctl-post-%d", (int)getpid());
    file = fopen(path, "we");
    check(file != NULL && fputs(TOKEN "\n", file) >= 0 && fclose(file) == 0);
    check(chmod(path, 0600) == 0);
    err = ctl_http_start(&opts, &why, &http);
    (void)unlink(path);
    bodies = 0;
    return err == ICMS_OK ? 0 : -1;
}

static int stop(void **state)
{
    ctl_http_stop(&http);
    return 0;
}

static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)ctl_http_port(http)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {8, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* The status of the answer; 0: there was none. */
static int answer_of(int fd)
{
    size_t used = 0;
    int status = 0;
    ssize_t n;

    while (used < sizeof(reply) - 1 &&
           (n = recv(fd, reply + used, sizeof(reply) - 1 - used, 0)) > 0)
        used += (size_t)n;
    reply[used] = '\0';
    (void)close(fd);
    (void)sscanf(reply, "HTTP/1.%*d %d", &status);
    return status;
}

static int ask(const char *text)
{
    int fd = dial();

    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return answer_of(fd);
}

/* Headers, then so many bytes of body in pieces; they may be refused meanwhile. */
static int ask_with(const char *headers, size_t bytes, size_t piece)
{
    char *body = malloc(bytes + 1), text[512];
    int fd = dial(), length;

    check(body != NULL);
    memset(body, 'b', bytes + 1);
    body[0] = 'a';
    body[bytes == 0 ? 0 : bytes - 1] = 'z';
    length = snprintf(text, sizeof(text), "%sContent-Length: %zu\r\n\r\n", headers, bytes);
    assert_int_equal(send(fd, text, (size_t)length, MSG_NOSIGNAL), length);
    for (size_t at = 0; at < bytes; at += piece)
        if (send(fd, body + at, bytes - at < piece ? bytes - at : piece, MSG_NOSIGNAL) < 0)
            break;
    free(body);
    return answer_of(fd);
}

static void a_body_comes_whole(void **state)
{
    const size_t sizes[] = {0, 1, 2, 4095, 4096, 5000, 100000, LIMIT_HTTP_BODY_BYTES};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(ask_with(POST PROOF JSON, sizes[i], 3000), 202);
        assert_int_equal(body_bytes, sizes[i]);
        assert_non_null(strstr(reply, "Content-Type: application/json"));
        assert_non_null(strstr(reply, "{\"bytes\": "));
        if (sizes[i] > 1)
            assert_true(body_first == 'a' && body_last == 'z');
    }
    assert_int_equal(ask_with(POST PROOF "content-type: Application/JSON; charset=utf-8\r\n", 9, 1),
                     202);
    assert_int_equal(ask(POST PROOF JSON "Transfer-Encoding: chunked\r\n\r\n"
                                         "3\r\nabc\r\n2\r\ndz\r\n0\r\n\r\n"),
                     202);
    assert_int_equal(body_bytes, 5);
}

static void a_body_that_is_too_large_is_refused(void **state)
{
    char *text = malloc(LIMIT_HTTP_BODY_BYTES + 4096);
    int fd = dial(), length;

    check(text != NULL);
    assert_int_equal(ask_with(POST PROOF JSON, LIMIT_HTTP_BODY_BYTES + 1, 3000), 413);
    assert_int_equal(ask(POST PROOF JSON "Content-Length: 99999999999999999999999999\r\n\r\n"),
                     413);
    length = sprintf(text, POST PROOF JSON "Transfer-Encoding: chunked\r\n\r\n%zx\r\n",
                     LIMIT_HTTP_BODY_BYTES + 1);
    memset(text + length, 'b', LIMIT_HTTP_BODY_BYTES + 1);
    memcpy(text + (size_t)length + LIMIT_HTTP_BODY_BYTES + 1, "\r\n0\r\n\r\n", 8);
    assert_true(send(fd, text, (size_t)length + LIMIT_HTTP_BODY_BYTES + 8, MSG_NOSIGNAL) > 0);
    assert_int_equal(answer_of(fd), 413);
    assert_int_equal(bodies, 0);
    free(text);
}

/* A large body, but for its end. */
static int large_begin(const char *text)
{
    static const char head[] = POST PROOF JSON "Content-Length: 6291456\r\n\r\n";
    int fd = dial();

    assert_int_equal(send(fd, head, sizeof(head) - 1, MSG_NOSIGNAL), sizeof(head) - 1);
    for (size_t sent = 0; sent < LIMIT_HTTP_BODY_BYTES - 1;) {
        ssize_t more = send(fd, text, LIMIT_HTTP_BODY_BYTES - 1 - sent, MSG_NOSIGNAL);

        assert_true(more > 0);
        sent += (size_t)more;
    }
    return fd;
}

/* Memory of large bodies is bounded for all together; small ones come all the same. */
static void large_bodies_are_bounded_together(void **state)
{
    char *text = calloc(1, LIMIT_HTTP_BODY_BYTES);
    int fd[2];

    check(text != NULL);
    for (int i = 0; i < 2; i++)
        fd[i] = large_begin(text);
    usleep(300000); /* until they were read */
    assert_int_equal(ask_with(POST PROOF JSON, LIMIT_HTTP_JSON_BYTES, 300000), 202);
    assert_int_equal(ask_with(POST PROOF JSON, LIMIT_HTTP_BODY_BYTES, 300000), 503);
    assert_int_equal(body_bytes, LIMIT_HTTP_JSON_BYTES);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(send(fd[i], "}", 1, MSG_NOSIGNAL), 1);
        assert_int_equal(answer_of(fd[i]), 202);
        assert_int_equal(body_bytes, LIMIT_HTTP_BODY_BYTES);
    }
    assert_int_equal(ask_with(POST PROOF JSON, LIMIT_HTTP_BODY_BYTES, 300000), 202);
    free(text);
}

/* Before a byte of the body is taken. */
static void nobody_else_gives_a_body(void **state)
{
    assert_int_equal(ask(POST JSON "Content-Length: 10\r\n\r\n"), 401);
    assert_non_null(strstr(reply, "WWW-Authenticate: Bearer"));
    assert_int_equal(
        ask(POST "Authorization: Bearer " TOKEN "0\r\n" JSON "Content-Length: 10\r\n\r\n"), 401);
    /* what a page of a browser may send to a port of this machine without asking it first */
    assert_int_equal(ask(POST PROOF "Content-Type: text/plain\r\nContent-Length: 10\r\n\r\n"), 415);
    assert_int_equal(ask(POST PROOF "Content-Length: 10\r\n\r\n"), 415);
    assert_int_equal(ask(POST PROOF "Content-Type: application/jsonx\r\nContent-Length: 1\r\n\r\n"),
                     415);
    assert_int_equal(
        ask("GET /v1/prestage HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" PROOF "\r\n"), 405);
    assert_non_null(strstr(reply, "Allow: POST"));
    assert_int_equal(ask("POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" PROOF JSON
                         "Content-Length: 10\r\n\r\n"),
                     405);
    assert_int_equal(bodies, 0);
}

static void each_path_has_its_own(void **state)
{
    assert_int_equal(ask("POST /v1/match HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" PROOF JSON
                         "Content-Length: 2\r\n\r\n{}"),
                     200);
    assert_non_null(strstr(reply, "{\"other\": true}"));
    assert_int_equal(bodies, 0);
    assert_int_equal(ask("POST /v1/match HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" JSON
                         "Content-Length: 2\r\n\r\n{}"),
                     401);
    assert_int_equal(ask("GET /v1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" PROOF "\r\n"), 404);
    assert_non_null(strstr(reply, "/status, /v1/prestage, /v1/match\n"));
}

/* Bodies that do not end hold their connections for a while, and keep nobody out. */
static void a_body_without_end_keeps_nobody_out(void **state)
{
    static const char half[] = POST PROOF JSON "Content-Length: 1000\r\n\r\nhalf";
    int fd[2 * LIMIT_HTTP_CONNECTIONS];
    size_t count = sizeof(fd) / sizeof(fd[0]);

    for (size_t i = 0; i < count; i++) {
        fd[i] = dial();
        assert_int_equal(send(fd[i], half, sizeof(half) - 1, MSG_NOSIGNAL), sizeof(half) - 1);
    }
    assert_int_equal(ask_with(POST PROOF JSON, 100, 10), 202);
    for (size_t i = 0; i < count; i++)
        (void)close(fd[i]);
    assert_int_equal(ask_with(POST PROOF JSON, 100, 10), 202);
    assert_int_equal(bodies, 2);
}

/* Who gives up in the middle leaves his memory to others at once. */
static void who_gives_up_keeps_nobody_out(void **state)
{
    char *text = calloc(1, LIMIT_HTTP_BODY_BYTES);

    check(text != NULL);
    for (int i = 0; i < 10; i++) {
        int fd[2];

        for (int j = 0; j < 2; j++)
            fd[j] = large_begin(text);
        for (int j = 0; j < 2; j++)
            (void)close(fd[j]);
        usleep(300000); /* until that was read */
        assert_int_equal(ask_with(POST PROOF JSON, LIMIT_HTTP_BODY_BYTES, 300000), 202);
    }
    free(text);
}

static bool too_long(const char *name, uint32_t *out_slow_us)
{
    return out_slow_us == NULL && strcmp(name, "ctl.body") == 0;
}

/* A byte now and then keeps a connection, and not for longer than LIMIT_HTTP_BODY_SECONDS. */
static void a_body_that_drips_is_ended(void **state)
{
    char *text = calloc(1, LIMIT_HTTP_BODY_BYTES);
    int fd[2];

    check(text != NULL);
    for (int i = 0; i < 2; i++)
        fd[i] = large_begin(text);
    usleep(300000); /* until they were read */
    __atomic_store_n(&fault_visitor, too_long, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(send(fd[i], "}", 1, MSG_NOSIGNAL), 1);
        assert_int_equal(answer_of(fd[i]), 0);
    }
    __atomic_store_n(&fault_visitor, NULL, __ATOMIC_RELAXED);
    assert_int_equal(ask_with(POST PROOF JSON, LIMIT_HTTP_BODY_BYTES, 300000), 202);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_body_comes_whole, serve, stop),
        cmocka_unit_test_setup_teardown(a_body_that_is_too_large_is_refused, serve, stop),
        cmocka_unit_test_setup_teardown(large_bodies_are_bounded_together, serve, stop),
        cmocka_unit_test_setup_teardown(who_gives_up_keeps_nobody_out, serve, stop),
        cmocka_unit_test_setup_teardown(a_body_that_drips_is_ended, serve, stop),
        cmocka_unit_test_setup_teardown(nobody_else_gives_a_body, serve, stop),
        cmocka_unit_test_setup_teardown(each_path_has_its_own, serve, stop),
        cmocka_unit_test_setup_teardown(a_body_without_end_keeps_nobody_out, serve, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
