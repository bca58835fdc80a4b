/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl/ctl.h: what operators ask a running daemon: /metrics, /healthz, /readyz, /status, /trace; and
 * what routers and gateways ask and tell an agent: POST of the paths that its main() names.
 * Over libmicrohttpd, on a thread of its own; it never touches a data loop and only calls functions
 * that are marked "any thread". Who may read is proven by a bearer token or a certificate.
 */
#ifndef CTL_CTL_H
#define CTL_CTL_H

#include <stdbool.h>

#include "base/err.h"
#include "base/hist.h"
#include "base/json.h"
#include "base/types.h"

struct ctl_audit;
struct ctl_http;

/* A text that grows to a bound while a page is made. */
struct ctl_page;

/* Prometheus text format. kind: "counter", "gauge" or "histogram"; help: one sentence. Write a
 * family once, then all of its samples; labels is `key="value",...` or "" (make values with
 * ctl_label). A counter's name ends in _total. */
void ctl_family(struct ctl_page *page, const char *name, const char *kind, const char *help);
void ctl_sample(struct ctl_page *page, const char *name, const char *labels, double value);

/* A family of one sample without labels. */
void ctl_metric(struct ctl_page *page, const char *name, const char *kind, const char *help,
                double value);

/* A histogram of nanoseconds as seconds, with cumulative buckets: of latencies, from a microsecond
 * to a minute, and of ages, from a second to a year; family kind "histogram". */
void ctl_histogram(struct ctl_page *page, const char *name, const char *labels,
                   const struct hist *hist);
void ctl_histogram_ages(struct ctl_page *page, const char *name, const char *labels,
                        const struct hist *hist);

/* A histogram of thousandths as ratios, from 0.06 to 4: a bucket is 12 to 25 % of its bound. */
void ctl_histogram_ratios(struct ctl_page *page, const char *name, const char *labels,
                          const struct hist *hist);

/* A histogram of whole numbers that were counted by bit length: counts[i] of those with i bits, the
 * last one of all longer ones as well. So the bounds of the buckets are 0, 1, 3, 7, ... and none.
 * sum: of all of them. */
void ctl_histogram_lengths(struct ctl_page *page, const char *name, const char *labels,
                           const uint64_t *counts, unsigned buckets, uint64_t sum);

/* Appends to a page. */
void ctl_text(struct ctl_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Escapes a label's value into out, cut to the room there is; returns out. */
const char *ctl_label(const char *value, char *out, unsigned bytes);

/* Appends the JSON that write makes. It is called twice, and writes the same both times. */
void ctl_json(struct ctl_page *page, void (*write)(void *arg, struct json *json), void *arg);

/* Which pages need neither token nor certificate of a client. /healthz and /readyz never do; with
 * less than all they say their reason to those alone that may read /status. */
enum ctl_http_open {
    CTL_HTTP_OPEN_ALL,
    CTL_HTTP_OPEN_METRICS, /* /metrics alone */
    CTL_HTTP_OPEN_NONE,
};

/* A path that takes a POST of JSON. take gets the body, LIMIT_HTTP_BODY_BYTES at most, with a zero
 * byte behind it, and otherwise unchecked; it writes one JSON object and returns the status of
 * HTTP. */
struct ctl_post {
    const char *path; /* "/v1/prestage" */
    unsigned (*take)(void *arg, const char *body, size_t bytes, struct ctl_page *page);
};

struct ctl_http_opts {
    const char *listen;  /* "127.0.0.1:9420"; port 0 picks one                                  */
    const char *program; /* "icms-target": for the build information in /metrics                 */
    const char *version; /* "0.1.0"                                                              */
    void *arg;           /* of the functions below                                               */
    /* Called on the HTTP thread, one at a time; what they look at must be marked "any thread". */
    void (*metrics)(void *arg, struct ctl_page *page); /* Prometheus text                        */
    void (*status)(void *arg, struct ctl_page *page);  /* one JSON object                        */
    /* One JSON object about what was asked for lately, of a key (/trace?key=hex) or, key NULL,
     * about what took longest. NULL: there is no such page. */
    void (*trace)(void *arg, const struct key *key, struct ctl_page *page);
    const struct ctl_post *posts; /* [post_count], kept by the caller; their arg is this one      */
    size_t post_count;
    bool (*ready)(void *arg, struct err_why *why);   /* false: not ready, and why              */
    bool (*healthy)(void *arg, struct err_why *why); /* false: restart me; NULL: always        */
    enum ctl_http_open open;
    /* Files, "" or NULL where there is none: a bearer token; certificate and key of the server
     * (PEM, both or none), with which it speaks TLS 1.3 alone; authorities of clients'
     * certificates. */
    const char *token, *certificate, *key, *client_ca;
    const struct ctl_audit *audit; /* where refusals go, kept by the caller; NULL: nowhere       */
};

/* Whether the files of opts can be used: what ctl_http_start would say of them. CONFIG, NOT_FOUND
 * or PERMISSION with a sentence that names the file. */
icms_err ctl_http_check(const struct ctl_http_opts *opts, struct err_why *why) ICMS_MUST_CHECK;

/* Starts serving GET and HEAD of /metrics, /healthz, /readyz, /status and /trace, and POST of
 * opts->posts. ADDRESS_IN_USE and the like with a sentence that says what to do. */
icms_err ctl_http_start(const struct ctl_http_opts *opts, struct err_why *why,
                        struct ctl_http **out_http) ICMS_MUST_CHECK;

/* Reads the files of opts again. When they have something else it is used from now on: the port
 * stays open, requests that are being answered get up to a second to end. Fails as ctl_http_check,
 * and then all stays as it was; LIMIT: it could not go on, and serves nothing any more. *out_new:
 * something was replaced. The thread that started it; blocking. */
icms_err ctl_http_read_again(struct ctl_http *http, struct err_why *why,
                             bool *out_new) ICMS_MUST_CHECK;

/* The port it listens on (listen ended in :0). */
unsigned ctl_http_port(const struct ctl_http *http);

/* Ends open connections and the thread. No function of opts runs any more. *http may be NULL. */
void ctl_http_stop(struct ctl_http **http);

#endif
