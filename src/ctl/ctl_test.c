/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages and the HTTP server: what Prometheus would read is read here by a strict parser, and what a
 * rude client sends is answered with a refusal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <ctype.h>
#include <math.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/limits.h"
#include "ctl/ctl_int.h"

/* ---- a strict parser of the Prometheus text format ------------------------------------------ */

#define PROM_FAMILIES 64
#define PROM_SAMPLES  1024

struct prom_sample {
    char series[256]; /* name and labels, without le                  */
    char full[256];   /* name and labels as written                   */
    char name[64];
    double le; /* of a bucket; NAN when there is none          */
    double value;
};

struct prom {
    char family[PROM_FAMILIES][64]; /* names with a TYPE, in order                  */
    char kind[PROM_FAMILIES][16];
    unsigned families;
    struct prom_sample samples[PROM_SAMPLES];
    unsigned count;
};

static size_t prom_name(const char *at)
{
    size_t n = 0;

    if (isdigit((unsigned char)at[0]))
        return 0;
    while (isalnum((unsigned char)at[n]) || at[n] == '_' || at[n] == ':')
        n++;
    return n;
}

/* Reads {a="b",...}; returns what follows, NULL when it is wrong. */
static const char *prom_labels(const char *at, struct prom_sample *sample)
{
    size_t used = strlen(sample->series);

    at++;
    while (*at != '}') {
        const char *label = at;
        size_t n = prom_name(at);
        bool le = n == 2 && strncmp(at, "le", 2) == 0;

        at += n;
        if (n == 0 || at[0] != '=' || at[1] != '"')
            return NULL;
        for (at += 2; *at != '"'; at++) {
            if (*at == '\0' || *at == '\n')
                return NULL;
            if (*at == '\\') {
                at++;
                if (*at != '\\' && *at != '"' && *at != 'n')
                    return NULL;
            }
        }
        if (le)
            sample->le = strtod(label + 4, NULL);
        else
            used += (size_t)snprintf(sample->series + used, sizeof(sample->series) - used, "|%.*s",
                                     (int)(at - label), label);
        at++;
        if (*at == ',')
            at++;
        else if (*at != '}')
            return NULL;
    }
    return at + 1;
}

static bool prom_sample(struct prom *prom, const char *line)
{
    struct prom_sample *sample = &prom->samples[prom->count];
    const char *family = prom->families > 0 ? prom->family[prom->families - 1] : "";
    size_t n = prom_name(line);
    const char *at = line + n;
    char *end;

    if (n == 0 || prom->count == PROM_SAMPLES)
        return false;
    *sample = (struct prom_sample){.le = NAN};
    (void)snprintf(sample->name, sizeof(sample->name), "%.*s", (int)n, line);
    memcpy(sample->series, sample->name, sizeof(sample->name));
    if (*at == '{')
        at = prom_labels(at, sample);
    if (at == NULL || *at != ' ')
        return false;
    (void)snprintf(sample->full, sizeof(sample->full), "%.*s", (int)(at - line), line);
    sample->value = strtod(at + 1, &end);
    if (end == at + 1 || *end != '\0')
        return false;
    /* A sample belongs to the family above it. */
    if (strncmp(sample->name, family, strlen(family)) != 0)
        return false;
    at = sample->name + strlen(family);
    if (*at != '\0' &&
        (strcmp(prom->kind[prom->families - 1], "histogram") != 0 ||
         (strcmp(at, "_bucket") != 0 && strcmp(at, "_sum") != 0 && strcmp(at, "_count") != 0)))
        return false;
    for (unsigned i = 0; i < prom->count; i++)
        if (strcmp(prom->samples[i].full, sample->full) == 0)
            return false;
    prom->count++;
    return true;
}

static bool prom_comment(struct prom *prom, const char *line)
{
    static char helped[64];
    char name[64], kind[16];

    if (sscanf(line, "# HELP %63s %15s", name, kind) == 2) {
        (void)snprintf(helped, sizeof(helped), "%s", name);
        return true;
    }
    if (sscanf(line, "# TYPE %63s %15s", name, kind) != 2 || strcmp(helped, name) != 0)
        return false;
    for (unsigned i = 0; i < prom->families; i++)
        if (strcmp(prom->family[i], name) == 0)
            return false;
    if (strcmp(kind, "counter") == 0 &&
        (strlen(name) < 6 || strcmp(name + strlen(name) - 6, "_total") != 0))
        return false;
    strcpy(prom->family[prom->families], name);
    strcpy(prom->kind[prom->families++], kind);
    return true;
}

/* Buckets of one series grow, end in +Inf, and agree with the count. */
static bool prom_histograms(const struct prom *prom)
{
    for (unsigned i = 0; i < prom->count; i++) {
        const struct prom_sample *a = &prom->samples[i], *b = a + 1;

        if (isnan(a->le))
            continue;
        if (i + 1 == prom->count)
            return false;
        if (isinf(a->le)) {
            /* _sum, then _count, follow. */
            if (i + 2 >= prom->count || b[1].value != a->value)
                return false;
        } else if (strcmp(a->series, b->series) != 0 || !(b->le > a->le) || b->value < a->value) {
            return false;
        }
    }
    return true;
}

/* Parses a page or fails the test. */
static void prom_parse(struct prom *prom, const char *text)
{
    memset(prom, 0, sizeof(*prom));
    assert_true(text[0] != '\0' && text[strlen(text) - 1] == '\n');
    while (*text != '\0') {
        char line[512];
        size_t n = strcspn(text, "\n");

        (void)snprintf(line, sizeof(line), "%.*s", (int)n, text);
        if (!(line[0] == '#' ? prom_comment(prom, line) : prom_sample(prom, line)))
            fail_msg("Prometheus would not read: %s", line);
        text += n + 1;
    }
    assert_true(prom_histograms(prom));
}

static double prom_value(const struct prom *prom, const char *full)
{
    for (unsigned i = 0; i < prom->count; i++)
        if (strcmp(prom->samples[i].full, full) == 0)
            return prom->samples[i].value;
    fail_msg("no sample %s", full);
    return 0;
}

static struct prom prom;

/* ---- pages ---------------------------------------------------------------------------------- */

static void test_a_page_is_what_prometheus_reads(void **state)
{
    struct ctl_page page = {0};
    char label[32], labels[64];

    ctl_family(&page, "icms_loads_total", "counter", "Loads.");
    (void)snprintf(labels, sizeof(labels), "volume=\"%s\"",
                   ctl_label("a\"b\\c\nd", label, sizeof(label)));
    ctl_sample(&page, "icms_loads_total", labels, 12345678901234.0);
    ctl_sample(&page, "icms_loads_total", "volume=\"x\"", 0.1);
    ctl_family(&page, "icms_ratio", "gauge", "A ratio.");
    ctl_sample(&page, "icms_ratio", "", NAN);
    ctl_process(&page, "icms-test", "1.2.3");
    prom_parse(&prom, page.text);
    assert_true(prom_value(&prom, "icms_loads_total{volume=\"a\\\"b\\\\c\\nd\"}") ==
                12345678901234.0);
    assert_true(prom_value(&prom, "icms_loads_total{volume=\"x\"}") == 0.1);
    assert_true(isnan(prom_value(&prom, "icms_ratio")));
    assert_true(prom_value(&prom, "icms_build_info{program=\"icms-test\",version=\"1.2.3\"}") == 1);
    assert_true(prom_value(&prom, "process_open_fds") >= 3);
    assert_in_range((uint64_t)prom_value(&prom, "process_start_time_seconds"), time(NULL) - 3600,
                    time(NULL) + 2);
    assert_true(prom_value(&prom, "process_resident_memory_bytes") > 0);
    ctl_page_fini(&page);
}

static void test_a_histogram_is_cumulative_and_exact(void **state)
{
    struct ctl_page page = {0};
    static struct hist hist;

    hist_add(&hist, 0);
    hist_add(&hist, 1023);
    hist_add(&hist, 1024);
    hist_add(&hist, 1000000);
    hist_add(&hist, (uint64_t)1 << 40);
    ctl_family(&page, "icms_load_seconds", "histogram", "Time of loads.");
    ctl_histogram(&page, "icms_load_seconds", "class=\"load\"", &hist);
    ctl_family(&page, "icms_plain_seconds", "histogram", "Without labels.");
    ctl_histogram(&page, "icms_plain_seconds", "", &hist);
    prom_parse(&prom, page.text);
    assert_true(prom_value(&prom, "icms_load_seconds_bucket{class=\"load\",le=\"1.023e-06\"}") ==
                2);
    assert_true(prom_value(&prom, "icms_load_seconds_bucket{class=\"load\",le=\"2.047e-06\"}") ==
                3);
    assert_true(prom_value(&prom, "icms_load_seconds_bucket{class=\"load\",le=\"+Inf\"}") == 5);
    assert_true(prom_value(&prom, "icms_load_seconds_count{class=\"load\"}") == 5);
    assert_true(prom_value(&prom, "icms_plain_seconds_count") == 5);
    assert_true(prom_value(&prom, "icms_plain_seconds_sum") > 1099.5);
    ctl_page_fini(&page);
}

static void test_ages_and_lengths_have_their_own_buckets(void **state)
{
    const uint64_t lengths[4] = {1, 0, 2, 5}; /* of 0; 1; 2 and 3; 4 or more */
    struct ctl_page page = {0};
    static struct hist hist;

    hist_add(&hist, 500000000);                          /* half a second */
    hist_add(&hist, (uint64_t)7 * 86400 * 1000000000);   /* a week        */
    hist_add(&hist, (uint64_t)800 * 86400 * 1000000000); /* over two years */
    ctl_family(&page, "icms_age_seconds", "histogram", "Ages.");
    ctl_histogram_ages(&page, "icms_age_seconds", "", &hist);
    ctl_family(&page, "icms_blocks", "histogram", "Lengths.");
    ctl_histogram_lengths(&page, "icms_blocks", "volume=\"kv\"", lengths, 4, 31);
    prom_parse(&prom, page.text);
    assert_true(prom_value(&prom, "icms_age_seconds_bucket{le=\"1.073741823\"}") == 1);
    assert_true(prom_value(&prom, "icms_age_seconds_bucket{le=\"1125899.906842623\"}") == 2);
    assert_true(prom_value(&prom, "icms_age_seconds_count") == 3);
    assert_true(prom_value(&prom, "icms_blocks_bucket{volume=\"kv\",le=\"0\"}") == 1);
    assert_true(prom_value(&prom, "icms_blocks_bucket{volume=\"kv\",le=\"1\"}") == 1);
    assert_true(prom_value(&prom, "icms_blocks_bucket{volume=\"kv\",le=\"3\"}") == 3);
    assert_true(prom_value(&prom, "icms_blocks_bucket{volume=\"kv\",le=\"+Inf\"}") == 8);
    assert_true(prom_value(&prom, "icms_blocks_count{volume=\"kv\"}") == 8);
    assert_true(prom_value(&prom, "icms_blocks_sum{volume=\"kv\"}") == 31);
    ctl_page_fini(&page);
}

/* Thousandths, told as ratios; an error of 30 % has a bucket close by. */
static void test_ratios_have_their_own_buckets(void **state)
{
    struct ctl_page page = {0};
    static struct hist hist;

    hist_add(&hist, 10);
    hist_add(&hist, 300);
    hist_add(&hist, 60000);
    ctl_family(&page, "icms_error_ratio", "histogram", "Errors.");
    ctl_histogram_ratios(&page, "icms_error_ratio", "", &hist);
    prom_parse(&prom, page.text);
    assert_true(prom_value(&prom, "icms_error_ratio_bucket{le=\"0.063\"}") == 1);
    assert_true(prom_value(&prom, "icms_error_ratio_bucket{le=\"0.255\"}") == 1);
    assert_true(prom_value(&prom, "icms_error_ratio_bucket{le=\"0.319\"}") == 2);
    assert_true(prom_value(&prom, "icms_error_ratio_bucket{le=\"4.095\"}") == 2);
    assert_true(prom_value(&prom, "icms_error_ratio_count") == 3);
    assert_true(prom_value(&prom, "icms_error_ratio_sum") == 60.31);
    ctl_page_fini(&page);
}

static void test_escapes_are_cut_whole(void **state)
{
    char out[4];

    assert_string_equal(ctl_label("ab\"", out, sizeof(out)), "ab");
    assert_string_equal(ctl_label("a\"b", out, sizeof(out)), "a\\\"");
}

static void write_numbers(void *arg, struct json *json)
{
    json_put_array(json, NULL);
    for (uint32_t i = *(uint32_t *)arg; i > 0; i--)
        json_put_uint(json, NULL, i);
    json_put_end(json);
}

/* Behind what is there; of what does not fit nothing is seen. */
static void test_json_is_appended_to_a_page(void **state)
{
    struct ctl_page page = {0};
    uint32_t count = 3;

    ctl_text(&page, "a ");
    ctl_json(&page, write_numbers, &count);
    ctl_text(&page, " b");
    assert_string_equal(page.text, "a [3,2,1] b");
    count = 20000; /* more than the page had memory for */
    ctl_json(&page, write_numbers, &count);
    assert_false(page.full);
    assert_int_equal(page.bytes, strlen(page.text));
    assert_memory_equal(page.text, "a [3,2,1] b[20000,19999,", 24);
    assert_string_equal(page.text + page.bytes - 5, ",2,1]");
    count = LIMIT_HTTP_PAGE_BYTES / 2;
    ctl_json(&page, write_numbers, &count);
    assert_true(page.full);
    ctl_page_fini(&page);
}

static void test_a_page_has_a_bound(void **state)
{
    struct ctl_page page = {0};
    char *text = malloc(100000);

    memset(text, 'x', 99999);
    text[99999] = '\0';
    for (int i = 0; i < 83; i++)
        ctl_text(&page, "%s", text);
    assert_false(page.full);
    assert_int_equal(page.bytes, 83 * 99999);
    ctl_text(&page, "%s", text);
    assert_true(page.full);
    assert_true(page.bytes_max <= LIMIT_HTTP_PAGE_BYTES);
    ctl_page_clear(&page);
    ctl_text(&page, "again");
    assert_string_equal(page.text, "again");
    ctl_page_fini(&page);
    free(text);
}

/* ---- the server ----------------------------------------------------------------------------- */

static bool is_ready, is_huge, is_large;

static void make_metrics(void *arg, struct ctl_page *page)
{
    ctl_family(page, "icms_up", "gauge", "Always 1.");
    ctl_sample(page, "icms_up", "", 1);
    /* 3 MB are more than the buffers of a socket take. */
    for (int i = 0; i < (is_huge ? 100 : is_large ? 30 : 0); i++)
        ctl_text(page, "#%99998s\n", "more");
}

static void make_status(void *arg, struct ctl_page *page)
{
    ctl_text(page, "{\"ready\": %s}\n", is_ready ? "true" : "false");
}

static void make_trace(void *arg, const struct key *key, struct ctl_page *page)
{
    ctl_text(page, key == NULL ? "slowest" : "key %u:", key == NULL ? 0 : key->length);
    for (unsigned i = 0; key != NULL && i < LIMIT_KEY_BYTES; i++)
        ctl_text(page, "%02x", key->bytes[i]);
}

static bool tell_ready(void *arg, struct err_why *why)
{
    if (!is_ready)
        (void)err_set(why, ICMS_BUSY, "draining");
    return is_ready;
}

static struct ctl_http *http;

static int serve(void **state)
{
    struct ctl_http_opts opts = {
        .listen = "127.0.0.1:0",
        .program = "icms-test",
        .version = "0",
        .metrics = make_metrics,
        .status = make_status,
        .trace = make_trace,
        .ready = tell_ready,
    };
    struct err_why why = {""};

    is_ready = true;
    is_huge = false;
    return ctl_http_start(&opts, &why, &http) == ICMS_OK ? 0 : -1;
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
    struct timeval limit = {8, 0}; /* less than LIMIT_HTTP_SILENCE_SECONDS */
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

static char reply[65536];

/* Sends a request whole, reads until the server closes; returns the status, 0 for no answer. */
static int request(const char *text)
{
    int fd = dial(), status = 0;
    size_t used = 0;
    ssize_t n;

    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    while ((n = recv(fd, reply + used, sizeof(reply) - 1 - used, 0)) > 0)
        used += (size_t)n;
    reply[used] = '\0';
    (void)close(fd);
    (void)sscanf(reply, "HTTP/1.%*d %d", &status);
    return status;
}

static int get(const char *path)
{
    char text[512];

    (void)snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                   path);
    return request(text);
}

static const char *reply_body(void)
{
    const char *body = strstr(reply, "\r\n\r\n");

    assert_non_null(body);
    return body + 4;
}

static void test_metrics_are_served(void **state)
{
    assert_int_equal(get("/metrics"), 200);
    assert_non_null(strstr(reply, "text/plain; version=0.0.4"));
    prom_parse(&prom, reply_body());
    assert_true(prom_value(&prom, "icms_up") == 1);
    assert_int_equal(get("/metrics?x=y"), 200);
}

static void test_readiness_says_why_not(void **state)
{
    assert_int_equal(get("/readyz"), 200);
    assert_string_equal(reply_body(), "ready\n");
    is_ready = false;
    assert_int_equal(get("/readyz"), 503);
    assert_string_equal(reply_body(), "draining\n");
    assert_int_equal(get("/healthz"), 200);
    assert_int_equal(get("/status"), 200);
    assert_string_equal(reply_body(), "{\"ready\": false}\n");
    assert_non_null(strstr(reply, "application/json"));
}

static void test_head_has_no_body(void **state)
{
    assert_int_equal(request("HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
                     200);
    assert_string_equal(reply_body(), "");
    assert_non_null(strstr(reply, "Content-Length: "));
}

static void test_everything_else_is_refused(void **state)
{
    assert_int_equal(get("/"), 404);
    assert_int_equal(get("/metrics/../etc/passwd"), 404);
    assert_int_equal(get("/metricsx"), 404);
    assert_int_equal(request("POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                             "Content-Length: 5\r\n\r\nhello"),
                     405);
    assert_non_null(strstr(reply, "Allow: GET, HEAD"));
    assert_int_equal(request("DELETE /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
                     405);
    assert_int_equal(request("PUT /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                             "Content-Length: 99999999999\r\n\r\n"),
                     405);
    assert_true(request("nonsense\r\n\r\n") != 200);
}

static void test_a_request_without_end_is_bounded(void **state)
{
    size_t bytes = 60000;
    char *text = malloc(bytes + 1);
    int fd = dial();

    (void)snprintf(text, bytes, "GET /metrics HTTP/1.1\r\nX: ");
    memset(text + 26, 'x', bytes - 26);
    /* The server answers or closes after what a connection may hold; it never takes it all in. */
    (void)send(fd, text, bytes, MSG_NOSIGNAL);
    ssize_t n = recv(fd, reply, 15, 0);
    if (n > 0) {
        reply[n] = '\0';
        assert_int_equal(strncmp(reply, "HTTP/1.1 4", 10), 0);
    }
    (void)close(fd);
    free(text);
    assert_int_equal(get("/healthz"), 200);
}

static void test_too_large_a_page_is_an_error(void **state)
{
    is_huge = true;
    assert_int_equal(get("/metrics"), 500);
    is_huge = false;
    assert_int_equal(get("/metrics"), 200);
}

static void test_connections_are_bounded(void **state)
{
    int fd[LIMIT_HTTP_CONNECTIONS + 4];

    for (size_t i = 0; i < sizeof(fd) / sizeof(fd[0]); i++)
        fd[i] = dial(); /* the rest waits in the backlog */
    for (size_t i = 0; i < sizeof(fd) / sizeof(fd[0]); i++)
        (void)close(fd[i]);
    assert_int_equal(get("/healthz"), 200);
}

/* However many connections others hold, and whatever they did with them, who asks is answered. */
static void test_held_connections_keep_nobody_out(void **state)
{
    static const char *const held[] = {
        "",                                         /* says nothing            */
        "GET /metrics HTTP/1.1\r\nX: ",             /* never ends its request  */
        "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", /* keeps it for the next   */
        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", /* does not read 3 MB      */
    };
    int fd[3 * LIMIT_HTTP_CONNECTIONS];

    is_large = true;
    for (size_t kind = 0; kind < sizeof(held) / sizeof(held[0]); kind++) {
        size_t count = sizeof(fd) / sizeof(fd[0]);

        for (size_t i = 0; i < count; i++) {
            fd[i] = dial();
            assert_int_equal(send(fd[i], held[kind], strlen(held[kind]), MSG_NOSIGNAL),
                             strlen(held[kind]));
        }
        for (int i = 0; i < 5; i++)
            assert_int_equal(get("/healthz"), 200);
        for (size_t i = 0; i < count; i++)
            (void)close(fd[i]);
    }
    is_large = false;
}

/* When all are in use, the oldest that has no request goes; the others stay. */
static void test_the_oldest_idle_connection_goes_first(void **state)
{
    static const char ask[] = "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n";
    int fd[LIMIT_HTTP_CONNECTIONS - 1];

    for (size_t i = 0; i < sizeof(fd) / sizeof(fd[0]); i++)
        fd[i] = dial();
    assert_int_equal(get("/healthz"), 200);
    assert_int_equal(recv(fd[0], reply, sizeof(reply), 0), 0); /* closed */
    for (size_t i = 1; i < sizeof(fd) / sizeof(fd[0]); i++) {
        assert_int_equal(send(fd[i], ask, strlen(ask), MSG_NOSIGNAL), strlen(ask));
        assert_true(recv(fd[i], reply, sizeof(reply), 0) > 0);
    }
    for (size_t i = 0; i < sizeof(fd) / sizeof(fd[0]); i++)
        (void)close(fd[i]);
}

/* ---- who may read --------------------------------------------------------------------------- */

#define TOKEN "0123456789abcdef0123456789abcdef"

static char token_path[64];

static void token_file(const char *text, mode_t mode)
{
    FILE *file;

    (void)snprintf(token_path, sizeof(token_path), "/tmp/icms-ctl-%d", (int)getpid());
    (void)unlink(token_path);
    file = fopen(token_path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(token_path, mode), 0);
}

static void serve_guarded(enum ctl_http_open open)
{
    struct ctl_http_opts opts = {.listen = "127.0.0.1:0",
                                 .metrics = make_metrics,
                                 .status = make_status,
                                 .trace = make_trace,
                                 .ready = tell_ready,
                                 .open = open,
                                 .token = token_path};
    struct err_why why = {""};

    token_file(TOKEN "\n", 0600);
    is_ready = true;
    assert_int_equal(ctl_http_start(&opts, &why, &http), ICMS_OK);
    (void)unlink(token_path);
}

static int get_with(const char *path, const char *header)
{
    char text[512];

    (void)snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n", path, header);
    return request(text);
}

static const char *const pages[] = {"/metrics",      "/status", "/trace",
                                    "/trace?key=00", "/",       "/healthz/"};

static void test_without_the_token_nothing_is_told(void **state)
{
    static const char *const wrong[] = {
        "X: y",
        "Authorization: Bearer",
        "Authorization: Bearer ",
        "Authorization: " TOKEN,
        "Authorization: Basic " TOKEN,
        "Authorization: Bearer 0123456789abcdef0123456789abcde",
        "Authorization: Bearer " TOKEN "0",
        "Authorization: Bearer 1123456789abcdef0123456789abcdef",
        "Authorization: Bearer 0123456789abcdef0123456789abcdeF",
        "Authorization: Bearer  " TOKEN,
    };

    serve_guarded(CTL_HTTP_OPEN_NONE);
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        for (size_t j = 0; j < sizeof(wrong) / sizeof(wrong[0]); j++) {
            assert_int_equal(get_with(pages[i], wrong[j]), 401);
            assert_non_null(strstr(reply, "WWW-Authenticate: Bearer"));
            assert_null(strstr(reply_body(), "icms_up"));
        }
    assert_int_equal(get_with("/metrics", "Authorization: Bearer " TOKEN), 200);
    prom_parse(&prom, reply_body());
    assert_true(prom_value(&prom, "icms_http_refused_total") == 60);
    assert_int_equal(get_with("/status", "authorization: bearer " TOKEN), 200);
    assert_int_equal(get_with("/trace", "Authorization: Bearer " TOKEN), 200);
    assert_int_equal(get_with("/", "Authorization: Bearer " TOKEN), 404);
    ctl_http_stop(&http);
}

/* Probes have no token: they learn the status, and nothing else. */
static void test_probes_need_no_token(void **state)
{
    serve_guarded(CTL_HTTP_OPEN_NONE);
    assert_int_equal(get("/healthz"), 200);
    assert_int_equal(get("/readyz"), 200);
    is_ready = false;
    assert_int_equal(get("/readyz"), 503);
    assert_string_equal(reply_body(), "unavailable\n");
    assert_int_equal(get_with("/readyz", "Authorization: Bearer " TOKEN), 503);
    assert_string_equal(reply_body(), "draining\n");
    ctl_http_stop(&http);
}

static void test_metrics_alone_can_be_open(void **state)
{
    serve_guarded(CTL_HTTP_OPEN_METRICS);
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++)
        assert_int_equal(get(pages[i]), i == 0 ? 200 : 401);
    assert_int_equal(get_with("/status", "Authorization: Bearer " TOKEN), 200);
    ctl_http_stop(&http);
}

/* A token that is replaced counts from then on; a file that is wrong changes nothing. */
static void test_a_token_can_be_replaced(void **state)
{
    static const char other[] = "Authorization: Bearer fedcba9876543210fedcba9876543210";
    struct err_why why = {""};
    unsigned port;
    bool is_new;

    serve_guarded(CTL_HTTP_OPEN_NONE);
    port = ctl_http_port(http);
    token_file(TOKEN "\n", 0600);
    assert_int_equal(ctl_http_read_again(http, &why, &is_new), ICMS_OK);
    assert_false(is_new);
    token_file("short", 0600);
    assert_int_equal(ctl_http_read_again(http, &why, &is_new), ICMS_CONFIG);
    assert_non_null(strstr(why.text, token_path));
    assert_int_equal(get_with("/status", "Authorization: Bearer " TOKEN), 200);
    assert_int_equal(get_with("/status", other), 401);
    token_file("fedcba9876543210fedcba9876543210\n", 0600);
    assert_int_equal(ctl_http_read_again(http, &why, &is_new), ICMS_OK);
    assert_true(is_new);
    assert_int_equal(ctl_http_port(http), port);
    assert_int_equal(get_with("/status", "Authorization: Bearer " TOKEN), 401);
    assert_int_equal(get_with("/metrics", other), 200);
    prom_parse(&prom, reply_body());
    assert_true(prom_value(&prom, "icms_http_refused_total") == 2);
    (void)unlink(token_path);
    ctl_http_stop(&http);
}

static void test_a_bad_token_file_is_an_error_at_the_start(void **state)
{
    static const struct {
        const char *text;
        mode_t mode;
        icms_err err;
    } bad[] = {
        {TOKEN, 0640, ICMS_PERMISSION},   {"", 0600, ICMS_CONFIG},
        {"short", 0600, ICMS_CONFIG},     {"0123456789 0123456789", 0600, ICMS_CONFIG},
        {TOKEN "\nx", 0600, ICMS_CONFIG},
    };
    struct ctl_http_opts opts = {
        .listen = "127.0.0.1:0", .open = CTL_HTTP_OPEN_NONE, .token = token_path};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err_why why = {""};

        token_file(bad[i].text, bad[i].mode);
        assert_int_equal(ctl_http_check(&opts, &why), bad[i].err);
        assert_non_null(strstr(why.text, token_path));
        assert_null(strstr(why.text, "0123"));
        assert_int_equal(ctl_http_start(&opts, &why, &http), bad[i].err);
    }
    (void)unlink(token_path);
}

/* Whoever can write client_ca could let himself in. */
static void test_certificates_that_all_can_write_are_refused(void **state)
{
    char certificate[80], authority[80];
    struct ctl_http_opts opts = {.listen = "127.0.0.1:0",
                                 .certificate = certificate,
                                 .key = token_path,
                                 .client_ca = authority};
    const char *const files[] = {certificate, authority};

    token_file("no key\n", 0600);
    (void)snprintf(certificate, sizeof(certificate), "%s.certificate", token_path);
    (void)snprintf(authority, sizeof(authority), "%s.authority", token_path);
    for (size_t i = 0; i < 2; i++) {
        FILE *file = fopen(files[i], "we");

        assert_non_null(file);
        assert_int_equal(fclose(file), 0);
    }
    for (size_t i = 0; i < 2; i++) {
        struct err_why why = {""};

        assert_int_equal(chmod(files[i], 0646), 0);
        assert_int_equal(ctl_http_check(&opts, &why), ICMS_PERMISSION);
        assert_non_null(strstr(why.text, files[i]));
        assert_non_null(strstr(why.text, "0646"));
        assert_int_equal(chmod(files[i], 0644), 0);
        assert_int_equal(ctl_http_check(&opts, &why), ICMS_CONFIG); /* it has no certificate */
    }
    for (size_t i = 0; i < 2; i++)
        (void)unlink(files[i]);
    (void)unlink(token_path);
}

/* [::] is for both: whoever scrapes over IPv4 reaches it. */
static void test_a_trace_is_of_a_key_or_of_all(void **state)
{
    assert_int_equal(get("/trace"), 200);
    assert_non_null(strstr(reply_body(), "slowest"));
    assert_int_equal(get("/trace?key=00aBff"), 200);
    assert_non_null(strstr(reply_body(), "key 3:00abff00000000000000000000000000"));
    assert_int_equal(get("/trace?key=000102030405060708090a0b0c0d0e0f"), 200);
    assert_non_null(strstr(reply_body(), "key 16:000102030405060708090a0b0c0d0e0f"));
    assert_int_equal(get("/trace?key=000102030405060708090a0b0c0d0e0f10"), 400);
    assert_int_equal(get("/trace?key=0"), 400);
    assert_int_equal(get("/trace?key="), 400);
    assert_int_equal(get("/trace?key=0x"), 400);
}

static void test_any_address_of_ipv6_takes_ipv4(void **state)
{
    struct ctl_http_opts opts = {.listen = "[::]:0", .ready = tell_ready};
    struct err_why why = {""};

    if (ctl_http_start(&opts, &why, &http) != ICMS_OK) {
        print_message("no IPv6 here: %s\n", why.text);
        skip();
    }
    is_ready = true;
    assert_int_equal(get("/readyz"), 200);
    ctl_http_stop(&http);
}

static void test_a_port_in_use_is_named(void **state)
{
    struct ctl_http_opts opts = {0};
    struct ctl_http *second = NULL;
    struct err_why why = {""};
    char listen_text[32];

    (void)snprintf(listen_text, sizeof(listen_text), "127.0.0.1:%u", ctl_http_port(http));
    opts.listen = listen_text;
    assert_int_equal(ctl_http_start(&opts, &why, &second), ICMS_ADDRESS_IN_USE);
    assert_non_null(strstr(why.text, listen_text));
    assert_non_null(strstr(why.text, "http.listen"));
    opts.listen = "192.0.2.1:0";
    assert_int_equal(ctl_http_start(&opts, &why, &second), ICMS_NOT_FOUND);
    opts.listen = "localhost:1";
    assert_int_equal(ctl_http_start(&opts, &why, &second), ICMS_CONFIG);
    assert_null(second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_page_is_what_prometheus_reads),
        cmocka_unit_test(test_a_histogram_is_cumulative_and_exact),
        cmocka_unit_test(test_ages_and_lengths_have_their_own_buckets),
        cmocka_unit_test(test_ratios_have_their_own_buckets),
        cmocka_unit_test(test_escapes_are_cut_whole),
        cmocka_unit_test(test_json_is_appended_to_a_page),
        cmocka_unit_test(test_a_page_has_a_bound),
        cmocka_unit_test(test_any_address_of_ipv6_takes_ipv4),
        cmocka_unit_test(test_without_the_token_nothing_is_told),
        cmocka_unit_test(test_probes_need_no_token),
        cmocka_unit_test(test_a_token_can_be_replaced),
        cmocka_unit_test(test_metrics_alone_can_be_open),
        cmocka_unit_test(test_a_bad_token_file_is_an_error_at_the_start),
        cmocka_unit_test(test_certificates_that_all_can_write_are_refused),
        cmocka_unit_test_setup_teardown(test_metrics_are_served, serve, stop),
        cmocka_unit_test_setup_teardown(test_readiness_says_why_not, serve, stop),
        cmocka_unit_test_setup_teardown(test_a_trace_is_of_a_key_or_of_all, serve, stop),
        cmocka_unit_test_setup_teardown(test_head_has_no_body, serve, stop),
        cmocka_unit_test_setup_teardown(test_everything_else_is_refused, serve, stop),
        cmocka_unit_test_setup_teardown(test_a_request_without_end_is_bounded, serve, stop),
        cmocka_unit_test_setup_teardown(test_too_large_a_page_is_an_error, serve, stop),
        cmocka_unit_test_setup_teardown(test_connections_are_bounded, serve, stop),
        cmocka_unit_test_setup_teardown(test_held_connections_keep_nobody_out, serve, stop),
        cmocka_unit_test_setup_teardown(test_the_oldest_idle_connection_goes_first, serve, stop),
        cmocka_unit_test_setup_teardown(test_a_port_in_use_is_named, serve, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
