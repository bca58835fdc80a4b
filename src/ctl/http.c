/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server of a daemon, over libmicrohttpd, on one thread of its own. Started and stopped by
 * main(); it calls the daemon's functions one at a time, so they share one page.
 *
 * Bounded: connections, memory a connection, silence of a peer, the page, and the body of a
 * request. GET and HEAD of five paths; POST of opts.posts, whose body is taken when its sender has
 * proven who it is and has said that it is JSON, which no page of a browser says without asking
 * first. Everything else is refused before a byte of a body is taken.
 *
 * A connection ends with its answer. When all are in use, the oldest one that has sent no request
 * is shut down, so whoever holds connections keeps nobody else out.
 *
 * Life: ctl_http_start() listens as every port of ours does, for errors that say what to do, and
 * hands the socket to libmicrohttpd, which closes it in ctl_http_stop(). ctl_http_read_again() ends
 * libmicrohttpd's daemon and starts another one on the same socket.
 */
#include "ctl/ctl_int.h"

#include <fcntl.h>
#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/fault.h"
#include "base/limits.h"
#include "base/log.h"
#include "ctl/guard.h"
#include "loop/loop.h"

/* A connection; libmicrohttpd's socket context. */
struct http_connection {
    struct list link; /* free or open                                       */
    int fd;           /* libmicrohttpd's; only shut down here               */
    bool is_busy;     /* its request is being answered                      */
    bool is_ended;    /* was shut down; libmicrohttpd closes it next        */
};

struct ctl_http {
    struct ctl_http_opts opts; /* texts are the caller's and stay            */
    struct ctl_guard guard;    /* who may read                               */
    struct MHD_Daemon *daemon; /* owns the listening socket                  */
    unsigned port;             /* where it listens                           */
    struct ctl_page page;      /* of the HTTP thread; reused                 */
    struct list free;          /* struct http_connection                     */
    struct list open;          /* oldest first                               */
    struct http_connection connections[LIMIT_HTTP_CONNECTIONS];
    size_t bodies_bytes; /* memory of all struct http_post; LIMIT_HTTP_BODIES_BYTES at most */
};

/* The request of a POST, from its headers until it is over; libmicrohttpd's request context. */
struct http_post {
    char *body;   /* [capacity], malloc                                 */
    size_t bytes; /* of it, that came                                   */
    size_t capacity;
    uint64_t begun_ns; /* when its first byte came; 0: not yet              */
    unsigned refused;  /* status: more came than LIMIT_HTTP_BODY_BYTES, or there is no memory */
};

/* libmicrohttpd has had several names for it. */
#define STATUS_TOO_LARGE 413

#define TYPE_TEXT    "text/plain; charset=utf-8"
#define TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"
#define TYPE_JSON    "application/json"

/* How long connections may go on when keys are replaced, and how often they are looked at. */
#define HTTP_SETTLE_MS      1000
#define HTTP_SETTLE_STEP_MS 10

/* Memory of a connection: request line and headers have to fit. */
#define CONNECTION_BYTES 16384

/* ---- connections ---------------------------------------------------------------------------- */

/* Shuts the oldest connection down that has sent no request, or, when all have, the oldest. Not the
 * newest: it has not had the time to ask. */
static void connection_evict(struct ctl_http *http, const struct http_connection *newest)
{
    struct http_connection *victim = NULL;

    list_for_each (link, &http->open) {
        struct http_connection *connection = container_of(link, struct http_connection, link);

        if (connection->is_ended)
            return; /* there is room as soon as libmicrohttpd comes to it */
        if (connection == newest || (victim != NULL && connection->is_busy))
            continue;
        if (victim == NULL || victim->is_busy)
            victim = connection;
    }
    if (victim == NULL)
        return;
    victim->is_ended = true;
    (void)shutdown(victim->fd, SHUT_RDWR);
}

/* libmicrohttpd accepts no more than LIMIT_HTTP_CONNECTIONS. */
static void connection_notified(void *arg, struct MHD_Connection *mhd, void **context,
                                enum MHD_ConnectionNotificationCode code)
{
    struct http_connection *connection;
    struct ctl_http *http = arg;

    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        connection = *context;
        list_remove(&connection->link);
        list_push(&http->free, &connection->link);
        return;
    }
    check(!list_empty(&http->free));
    connection = container_of(list_pop(&http->free), struct http_connection, link);
    connection->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    connection->is_busy = connection->is_ended = false;
    list_push(&http->open, &connection->link);
    *context = connection;
    if (list_empty(&http->free))
        connection_evict(http, connection);
}

static struct http_connection *connection_of(struct MHD_Connection *mhd)
{
    return MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* ---- answers -------------------------------------------------------------------------------- */

/* Answers with a copy of the text: a slow peer may read it while the page is made anew. allowed:
 * the methods of its path. */
static enum MHD_Result answer_as(struct MHD_Connection *connection, unsigned status,
                                 const char *type, const char *text, size_t bytes,
                                 const char *allowed)
{
    struct MHD_Response *response;
    enum MHD_Result result;

    /* libmicrohttpd copies and does not write; its interface has no const. */
    response =
        MHD_create_response_from_buffer(bytes, (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    if (response == NULL)
        return MHD_NO; /* closes the connection */
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    (void)MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_UNAUTHORIZED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        (void)MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, allowed);
    result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *type,
                              const char *text, size_t bytes)
{
    return answer_as(connection, status, type, text, bytes, "GET, HEAD");
}

static enum MHD_Result answer_line(struct MHD_Connection *connection, unsigned status,
                                   const char *line)
{
    return answer(connection, status, TYPE_TEXT, line, strlen(line));
}

static enum MHD_Result answer_page(struct MHD_Connection *connection, const struct ctl_page *page,
                                   const char *type)
{
    if (page->full)
        return answer_line(connection, MHD_HTTP_INTERNAL_SERVER_ERROR,
                           "the page is larger than the limit\n");
    return answer(connection, MHD_HTTP_OK, type, page->bytes > 0 ? page->text : "", page->bytes);
}

/* ---- pages ---------------------------------------------------------------------------------- */

static enum MHD_Result page_metrics(struct ctl_http *http, struct MHD_Connection *connection)
{
    ctl_page_clear(&http->page);
    if (http->opts.metrics != NULL)
        http->opts.metrics(http->opts.arg, &http->page);
    ctl_family(&http->page, "icms_http_refused_total", "counter",
               "Requests without the token or the certificate that the page needs.");
    ctl_sample(&http->page, "icms_http_refused_total", "", (double)http->guard.refused);
    ctl_process(&http->page, http->opts.program != NULL ? http->opts.program : "icms",
                http->opts.version != NULL ? http->opts.version : "");
    return answer_page(connection, &http->page, TYPE_METRICS);
}

static enum MHD_Result page_status(struct ctl_http *http, struct MHD_Connection *connection)
{
    ctl_page_clear(&http->page);
    if (http->opts.status != NULL)
        http->opts.status(http->opts.arg, &http->page);
    else
        ctl_text(&http->page, "{}\n");
    return answer_page(connection, &http->page, TYPE_JSON);
}

static enum MHD_Result page_trace(struct ctl_http *http, struct MHD_Connection *connection)
{
    const char *asked = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "key");
    struct key key;

    if (asked != NULL && !key_parse(asked, &key))
        return answer_line(connection, MHD_HTTP_BAD_REQUEST,
                           "key: 2 to 32 digits of hex, two a byte\n");
    ctl_page_clear(&http->page);
    http->opts.trace(http->opts.arg, asked == NULL ? NULL : &key, &http->page);
    return answer_page(connection, &http->page, TYPE_JSON);
}

/* 200 and the word, with what is not as it should be, or 503 and the reason; what is not as it
 * should be is for those alone who may read every page. */
static enum MHD_Result page_verdict(struct ctl_http *http, struct MHD_Connection *connection,
                                    bool (*verdict)(void *arg, struct err_why *why),
                                    const char *word, bool is_proven)
{
    struct err_why why = {""};
    bool good = verdict == NULL || verdict(http->opts.arg, &why);

    if (good && (why.text[0] == '\0' || !is_proven))
        return answer_line(connection, MHD_HTTP_OK, word);
    if (!is_proven)
        return answer_line(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "unavailable\n");
    ctl_page_clear(&http->page);
    if (good)
        ctl_text(&http->page, "%.*s: ", (int)strcspn(word, "\n"), word);
    ctl_text(&http->page, "%s\n", why.text[0] != '\0' ? why.text : "no reason given");
    return answer_line(connection, good ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                       http->page.text);
}

/* ---- POST ----------------------------------------------------------------------------------- */

/* One more byte than there is in the body is always there, for a zero. */
static bool post_grow(struct ctl_http *http, struct http_post *post, size_t bytes)
{
    size_t capacity = post->capacity == 0 ? 4096 : post->capacity;
    char *body;

    while (capacity <= bytes)
        capacity *= 2;
    if (capacity == post->capacity)
        return true;
    if (capacity > 2 * LIMIT_HTTP_JSON_BYTES && /* small ones find memory whatever others send */
        http->bodies_bytes + capacity - post->capacity > LIMIT_HTTP_BODIES_BYTES)
        return false;
    body = realloc(post->body, capacity);
    if (body == NULL)
        return false;
    http->bodies_bytes += capacity - post->capacity;
    post->body = body;
    post->capacity = capacity;
    return true;
}

static void post_drop(struct ctl_http *http, struct http_post *post)
{
    http->bodies_bytes -= post->capacity;
    free(post->body);
    *post = (struct http_post){.body = NULL};
}

/* False: it drips, and would keep its memory from others for ever. */
static bool post_take(struct ctl_http *http, struct http_post *post, const char *upload,
                      size_t bytes)
{
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());
    unsigned refused = 0;

    if (post->begun_ns == 0)
        post->begun_ns = now_ns;
    if (now_ns - post->begun_ns > (uint64_t)LIMIT_HTTP_BODY_SECONDS * 1000000000 ||
        fault_hit("ctl.body"))
        return false;
    if (post->refused != 0)
        return true;
    if (bytes > LIMIT_HTTP_BODY_BYTES - post->bytes)
        refused = STATUS_TOO_LARGE;
    else if (!post_grow(http, post, post->bytes + bytes))
        refused = MHD_HTTP_SERVICE_UNAVAILABLE;
    if (refused != 0) {
        post_drop(http, post);
        post->refused = refused; /* what follows is read, and forgotten, until the answer goes */
        return true;
    }
    memcpy(post->body + post->bytes, upload, bytes);
    post->bytes += bytes;
    return true;
}

/* What is wrong with a POST before its body comes; 0: nothing. */
static unsigned post_wrong(struct MHD_Connection *connection)
{
    const char *type =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE);
    const char *length =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    size_t name = strlen(TYPE_JSON);

    if (type == NULL || strncasecmp(type, TYPE_JSON, name) != 0 ||
        (type[name] != '\0' && type[name] != ';' && type[name] != ' '))
        return MHD_HTTP_UNSUPPORTED_MEDIA_TYPE;
    if (length != NULL && strtoull(length, NULL, 10) > LIMIT_HTTP_BODY_BYTES)
        return STATUS_TOO_LARGE;
    return 0;
}

static enum MHD_Result post_refuse(struct MHD_Connection *connection, unsigned status)
{
    char line[96];

    if (status == MHD_HTTP_UNSUPPORTED_MEDIA_TYPE)
        return answer_line(connection, status, "the body has to be " TYPE_JSON "\n");
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        return answer_line(connection, status, "too many large bodies at a time\n");
    (void)snprintf(line, sizeof(line), "a body has %zu bytes at most\n", LIMIT_HTTP_BODY_BYTES);
    return answer_line(connection, status, line);
}

/* Called with the headers, with each piece of the body, and at its end. */
static enum MHD_Result post_handle(struct ctl_http *http, const struct ctl_post *to,
                                   struct MHD_Connection *connection, const char *upload,
                                   size_t *upload_bytes, void **request)
{
    struct http_post *post = *request;
    unsigned status;

    if (post == NULL) {
        if (!ctl_guard_is_proven(&http->guard, connection)) {
            ctl_guard_refused(&http->guard, connection);
            return answer_line(connection, MHD_HTTP_UNAUTHORIZED,
                               "a bearer token or a client certificate is needed\n");
        }
        status = post_wrong(connection);
        if (status != 0)
            return post_refuse(connection, status);
        *request = calloc(1, sizeof(*post));
        return *request != NULL ? MHD_YES : MHD_NO;
    }
    if (*upload_bytes != 0) {
        size_t bytes = *upload_bytes;

        *upload_bytes = 0;
        return post_take(http, post, upload, bytes) ? MHD_YES : MHD_NO;
    }
    if (post->refused == 0 && !post_grow(http, post, post->bytes))
        post->refused = MHD_HTTP_SERVICE_UNAVAILABLE;
    if (post->refused != 0)
        return post_refuse(connection, post->refused);
    post->body[post->bytes] = '\0';
    ctl_page_clear(&http->page);
    status = to->take(http->opts.arg, post->body, post->bytes, &http->page);
    return answer(connection, status, TYPE_JSON, http->page.text, http->page.bytes);
}

static void post_completed(void *arg, struct MHD_Connection *connection, void **request,
                           enum MHD_RequestTerminationCode code)
{
    struct http_post *post = *request;

    if (post != NULL)
        post_drop(arg, post);
    free(post);
    *request = NULL;
}

/* Who takes a POST of this path; NULL: nobody. */
static const struct ctl_post *post_find(const struct ctl_http *http, const char *url)
{
    for (size_t i = 0; i < http->opts.post_count; i++)
        if (strcmp(url, http->opts.posts[i].path) == 0)
            return &http->opts.posts[i];
    return NULL;
}

static enum MHD_Result answer_not_found(struct ctl_http *http, struct MHD_Connection *connection)
{
    ctl_page_clear(&http->page);
    ctl_text(&http->page, "here are /metrics, /healthz, /readyz, /status%s",
             http->opts.trace != NULL ? ", /trace" : "");
    for (size_t i = 0; i < http->opts.post_count; i++)
        ctl_text(&http->page, ", %s", http->opts.posts[i].path);
    ctl_text(&http->page, "\n");
    return answer_line(connection, MHD_HTTP_NOT_FOUND, http->page.text);
}

static enum MHD_Result handle(void *arg, struct MHD_Connection *connection, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_bytes, void **request)
{
    struct ctl_http *http = arg;
    const struct ctl_post *post = post_find(http, url);
    bool is_proven;

    connection_of(connection)->is_busy = true;
    if (post != NULL) {
        if (strcmp(method, MHD_HTTP_METHOD_POST) == 0)
            return post_handle(http, post, connection, upload, upload_bytes, request);
        return answer_as(connection, MHD_HTTP_METHOD_NOT_ALLOWED, TYPE_TEXT, "only POST\n", 10,
                         "POST");
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return answer_line(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    is_proven = ctl_guard_is_proven(&http->guard, connection);
    if (strcmp(url, "/healthz") == 0)
        return page_verdict(http, connection, http->opts.healthy, "ok\n", is_proven);
    if (strcmp(url, "/readyz") == 0)
        return page_verdict(http, connection, http->opts.ready, "ready\n", is_proven);
    if (!is_proven && (strcmp(url, "/metrics") != 0 || http->guard.open != CTL_HTTP_OPEN_METRICS)) {
        ctl_guard_refused(&http->guard, connection);
        return answer_line(connection, MHD_HTTP_UNAUTHORIZED,
                           "a bearer token or a client certificate is needed\n");
    }
    if (strcmp(url, "/metrics") == 0)
        return page_metrics(http, connection);
    if (strcmp(url, "/status") == 0)
        return page_status(http, connection);
    if (strcmp(url, "/trace") == 0 && http->opts.trace != NULL)
        return page_trace(http, connection);
    return answer_not_found(http, connection);
}

/* ---- the socket ----------------------------------------------------------------------------- */

/* Binds and listens; the port is told when it was 0. */
static icms_err listen_open(const char *text, struct err_why *why, int *out_fd, unsigned *out_port)
{
    struct loop_addr addr;
    struct err_why cause = {""};
    icms_err err = loop_addr_parse(text, &cause, &addr);

    if (err == ICMS_OK)
        err = loop_listen_fd(&addr, LIMIT_HTTP_BACKLOG, true, &cause, out_fd);
    if (err != ICMS_OK)
        return err_set(why, err, "http.listen: %s", cause.text);
    (void)fcntl(*out_fd, F_SETFL, O_NONBLOCK);
    *out_port = addr.port;
    return ICMS_OK;
}

static void server_log(void *arg, const char *format, va_list args)
    __attribute__((format(printf, 2, 0)));

static void server_log(void *arg, const char *format, va_list args)
{
    char text[256];

    (void)vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = '\0';
    log_line(LOG_DEBUG, "http: %s", text);
}

/* Starts libmicrohttpd's thread on a listening socket; false: it does not. */
static bool server_start(struct ctl_http *http, int fd)
{
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t) "NORMAL:-VERS-ALL:+VERS-TLS1.3"},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, http->guard.certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, NULL},
        {MHD_OPTION_END, 0, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    /* with epoll an end that comes right behind data may be missed until the connection times out
     */
    unsigned flags =
        MHD_USE_POLL | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG | MHD_USE_ITC;

    if (http->guard.certificate == NULL) {
        tls[0].option = MHD_OPTION_END;
    } else {
        flags |= MHD_USE_TLS;
        tls[2].ptr_value = secret_bytes(http->guard.key);
        if (http->guard.client_ca != NULL)
            tls[3] = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_TRUST, 0, http->guard.client_ca};
    }
    http->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle, http, MHD_OPTION_EXTERNAL_LOGGER, server_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)LIMIT_HTTP_CONNECTIONS,
        MHD_OPTION_NOTIFY_CONNECTION, connection_notified, http, MHD_OPTION_NOTIFY_COMPLETED,
        post_completed, http, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)LIMIT_HTTP_SILENCE_SECONDS,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_ARRAY, tls,
        MHD_OPTION_END);
    secret_free(&http->guard.key); /* GnuTLS has it now */
    return http->daemon != NULL;
}

icms_err ctl_http_start(const struct ctl_http_opts *opts, struct err_why *why,
                        struct ctl_http **out_http)
{
    struct ctl_http *http = calloc(1, sizeof(*http));
    int fd = -1;
    icms_err err;

    if (http == NULL)
        return err_set(why, ICMS_NO_MEMORY, "http: out of memory");
    http->opts = *opts;
    list_init(&http->free);
    list_init(&http->open);
    for (int i = 0; i < LIMIT_HTTP_CONNECTIONS; i++)
        list_push(&http->free, &http->connections[i].link);
    err = ctl_guard_init(opts, why, &http->guard);
    if (err == ICMS_OK)
        err = listen_open(opts->listen, why, &fd, &http->port);
    if (err == ICMS_OK && !server_start(http, fd)) {
        (void)close(fd);
        err = err_set(why, ICMS_LIMIT, "http: cannot start a thread for %s", opts->listen);
    }
    if (err != ICMS_OK) {
        ctl_guard_fini(&http->guard);
        free(http);
        return err;
    }
    *out_http = http;
    return ICMS_OK;
}

/* Accepts no more, lets open connections end, and ends the thread. The listening socket; below 0:
 * libmicrohttpd does not hand it back. */
static int server_pause(struct ctl_http *http)
{
    struct timespec pause = {.tv_nsec = HTTP_SETTLE_STEP_MS * 1000000L};
    int fd = MHD_quiesce_daemon(http->daemon);
    const union MHD_DaemonInfo *info;

    if (fd < 0)
        return fd;
    for (int ms = 0; ms < HTTP_SETTLE_MS; ms += HTTP_SETTLE_STEP_MS) {
        info = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_CURRENT_CONNECTIONS);
        if (info == NULL || info->num_connections == 0)
            break;
        (void)nanosleep(&pause, NULL);
    }
    MHD_stop_daemon(http->daemon);
    http->daemon = NULL;
    return fd;
}

icms_err ctl_http_read_again(struct ctl_http *http, struct err_why *why, bool *out_new)
{
    struct ctl_guard guard;
    icms_err err = ctl_guard_init(&http->opts, why, &guard);
    int fd;

    *out_new = false;
    if (err != ICMS_OK)
        return err;
    if (http->daemon == NULL) { /* since a time before */
        ctl_guard_fini(&guard);
        return err_set(why, ICMS_LIMIT,
                       "http: the port is closed, as no thread could be started "
                       "when keys were replaced; restart");
    }
    if (ctl_guard_equal(&http->guard, &guard)) {
        ctl_guard_fini(&guard);
        return ICMS_OK;
    }
    fd = server_pause(http);
    if (fd < 0) {
        ctl_guard_fini(&guard);
        return err_set(why, ICMS_LIMIT,
                       "http: the port cannot be kept open while keys are replaced; restart");
    }
    guard.refused = http->guard.refused;
    guard.said = http->guard.said;
    guard.said_ns = http->guard.said_ns;
    ctl_guard_fini(&http->guard);
    http->guard = guard;
    if (!server_start(http, fd)) {
        (void)close(fd);
        return err_set(why, ICMS_LIMIT, "http: cannot start a thread for %s again; restart",
                       http->opts.listen);
    }
    *out_new = true;
    return ICMS_OK;
}

unsigned ctl_http_port(const struct ctl_http *http)
{
    return http->port;
}

void ctl_http_stop(struct ctl_http **http)
{
    if (*http == NULL)
        return;
    if ((*http)->daemon != NULL)
        MHD_stop_daemon((*http)->daemon);
    ctl_guard_fini(&(*http)->guard);
    ctl_page_fini(&(*http)->page);
    free(*http);
    *http = NULL;
}
