/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of a page: Prometheus text format (version 0.0.4) and JSON pieces. Called on the HTTP
 * thread by the functions that a daemon gave to ctl_http_start().
 *
 * A page that would outgrow LIMIT_HTTP_PAGE_BYTES, or the memory there is, is marked full and
 * answered as an error: half a page would be read as a whole one.
 */
#include "ctl/ctl_int.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/json.h"
#include "base/limits.h"

#define PAGE_BYTES_FIRST 16384

void ctl_page_clear(struct ctl_page *page)
{
    page->bytes = 0;
    page->full = false;
}

void ctl_page_fini(struct ctl_page *page)
{
    free(page->text);
    *page = (struct ctl_page){0};
}

/* Makes room for bytes more and a zero; false, and the page is full, when there is none. */
static bool page_reserve(struct ctl_page *page, size_t bytes)
{
    size_t wanted = page->bytes + bytes + 1;
    size_t room = page->bytes_max != 0 ? page->bytes_max : PAGE_BYTES_FIRST;
    char *text;

    if (wanted > LIMIT_HTTP_PAGE_BYTES || page->full) {
        page->full = true;
        return false;
    }
    while (room < wanted)
        room *= 2;
    if (room == page->bytes_max)
        return true;
    text = realloc(page->text, room);
    if (text == NULL) {
        page->full = true;
        return false;
    }
    page->text = text;
    page->bytes_max = room;
    return true;
}

static void page_add(struct ctl_page *page, const char *text, size_t bytes)
{
    if (!page_reserve(page, bytes))
        return;
    memcpy(page->text + page->bytes, text, bytes);
    page->bytes += bytes;
    page->text[page->bytes] = '\0';
}

void ctl_text(struct ctl_page *page, const char *format, ...)
{
    char text[1024];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    check(n >= 0);
    if ((size_t)n < sizeof(text)) {
        page_add(page, text, (size_t)n);
        return;
    }
    if (!page_reserve(page, (size_t)n))
        return;
    va_start(args, format);
    (void)vsnprintf(page->text + page->bytes, (size_t)n + 1, format, args);
    va_end(args);
    page->bytes += (size_t)n;
}

/* ---- escapes -------------------------------------------------------------------------------- */

/* Appends an escape whole or not at all; false when the room is used up. */
static bool escape_add(char *out, unsigned bytes, unsigned *used, const char *escape)
{
    size_t length = strlen(escape);

    if (*used + length + 1 > bytes)
        return false;
    memcpy(out + *used, escape, length);
    *used += (unsigned)length;
    return true;
}

const char *ctl_label(const char *value, char *out, unsigned bytes)
{
    unsigned used = 0;

    check(bytes > 0);
    for (; *value != '\0'; value++) {
        char one[2] = {*value, '\0'};
        const char *escape = *value == '\\'   ? "\\\\"
                             : *value == '"'  ? "\\\""
                             : *value == '\n' ? "\\n"
                                              : one;

        if (!escape_add(out, bytes, &used, escape))
            break;
    }
    out[used] = '\0';
    return out;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

void ctl_json(struct ctl_page *page, void (*write)(void *arg, struct json *json), void *arg)
{
    struct json json;
    size_t length;

    json_init(&json, NULL, 0);
    write(arg, &json);
    length = json_finish(&json);
    if (!page_reserve(page, length))
        return;
    json_init(&json, page->text + page->bytes, length + 1);
    write(arg, &json);
    check(json_finish(&json) == length);
    page->bytes += length;
}

/* ---- families and samples ------------------------------------------------------------------- */

static bool name_valid(const char *name)
{
    if (isdigit((unsigned char)name[0]) || name[0] == '\0')
        return false;
    for (; *name != '\0'; name++)
        if (!isalnum((unsigned char)*name) && *name != '_' && *name != ':')
            return false;
    return true;
}

void ctl_family(struct ctl_page *page, const char *name, const char *kind, const char *help)
{
    check(name_valid(name));
    check(strcmp(kind, "counter") == 0 || strcmp(kind, "gauge") == 0 ||
          strcmp(kind, "histogram") == 0);
    check(strpbrk(help, "\\\n") == NULL);
    ctl_text(page, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind);
}

/* The shortest decimal that reads back as the same number. */
static const char *number_text(double value, char out[32])
{
    if (isnan(value))
        return "NaN";
    if (isinf(value))
        return value > 0 ? "+Inf" : "-Inf";
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return out;
}

void ctl_sample(struct ctl_page *page, const char *name, const char *labels, double value)
{
    char number[32];

    if (labels[0] == '\0')
        ctl_text(page, "%s %s\n", name, number_text(value, number));
    else
        ctl_text(page, "%s{%s} %s\n", name, labels, number_text(value, number));
}

void ctl_metric(struct ctl_page *page, const char *name, const char *kind, const char *help,
                double value)
{
    ctl_family(page, name, kind, help);
    ctl_sample(page, name, "", value);
}

/* Exponents of the buckets that are shown of latencies: 2^10 ns is a microsecond, 2^36 ns over a
 * minute; of ages: 2^30 ns is a second, 2^55 ns more than a year. */
#define LATENCY_FIRST 10
#define LATENCY_LAST  36
#define AGE_FIRST     30
#define AGE_LAST      55

/* Bounds of the buckets that are shown of ratios, in thousandths. */
#define RATIO_FIRST 63
#define RATIO_LAST  4095

static void histogram_bucket(struct ctl_page *page, const char *name, const char *labels,
                             const char *bound, uint64_t count)
{
    ctl_text(page, "%s_bucket{%s%sle=\"%s\"} %" PRIu64 "\n", name, labels,
             labels[0] != '\0' ? "," : "", bound, count);
}

/* The last bucket, the sum and the count, which is what the buckets make together. */
static void histogram_end(struct ctl_page *page, const char *name, const char *labels,
                          uint64_t count, double sum)
{
    char series[128];

    histogram_bucket(page, name, labels, "+Inf", count);
    (void)snprintf(series, sizeof(series), "%s_sum", name);
    ctl_sample(page, series, labels, sum);
    (void)snprintf(series, sizeof(series), "%s_count", name);
    ctl_sample(page, series, labels, (double)count);
}

/* The counters move while they are read. */
static void histogram_ns(struct ctl_page *page, const char *name, const char *labels,
                         const struct hist *hist, unsigned first, unsigned last)
{
    char number[32];
    uint64_t seen = 0;
    unsigned i = 0;

    for (unsigned power = first; power <= last; power++) {
        uint64_t most = ((uint64_t)1 << power) - 1;

        for (; i < HIST_BUCKETS && hist_bucket_max(i) <= most; i++)
            seen += counter_get(&hist->count[i]);
        histogram_bucket(page, name, labels, number_text((double)most / 1e9, number), seen);
    }
    for (; i < HIST_BUCKETS; i++)
        seen += counter_get(&hist->count[i]);
    histogram_end(page, name, labels, seen, (double)counter_get(&hist->sum) / 1e9);
}

void ctl_histogram(struct ctl_page *page, const char *name, const char *labels,
                   const struct hist *hist)
{
    histogram_ns(page, name, labels, hist, LATENCY_FIRST, LATENCY_LAST);
}

void ctl_histogram_ages(struct ctl_page *page, const char *name, const char *labels,
                        const struct hist *hist)
{
    histogram_ns(page, name, labels, hist, AGE_FIRST, AGE_LAST);
}

void ctl_histogram_ratios(struct ctl_page *page, const char *name, const char *labels,
                          const struct hist *hist)
{
    char number[32];
    uint64_t seen = 0;

    for (unsigned i = 0; i < HIST_BUCKETS; i++) {
        seen += counter_get(&hist->count[i]);
        if (hist_bucket_max(i) >= RATIO_FIRST && hist_bucket_max(i) <= RATIO_LAST)
            histogram_bucket(page, name, labels,
                             number_text((double)hist_bucket_max(i) / 1000, number), seen);
    }
    histogram_end(page, name, labels, seen, (double)counter_get(&hist->sum) / 1000);
}

void ctl_histogram_lengths(struct ctl_page *page, const char *name, const char *labels,
                           const uint64_t *counts, unsigned buckets, uint64_t sum)
{
    char number[32];
    uint64_t seen = 0;

    for (unsigned i = 0; i + 1 < buckets; i++) {
        seen += counts[i];
        histogram_bucket(page, name, labels, number_text((double)(((uint64_t)1 << i) - 1), number),
                         seen);
    }
    histogram_end(page, name, labels, seen + counts[buckets - 1], (double)sum);
}

/* ---- the process ---------------------------------------------------------------------------- */

/* Resident bytes of this process; 0 when /proc does not tell. */
static uint64_t process_resident(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");

    if (file == NULL)
        return 0;
    if (fscanf(file, "%*u %llu", &pages) != 1)
        pages = 0;
    (void)fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static unsigned process_fds(void)
{
    unsigned count = 0;
    DIR *dir = opendir("/proc/self/fd");

    if (dir == NULL)
        return 0;
    while (readdir(dir) != NULL)
        count++;
    (void)closedir(dir);
    return count > 3 ? count - 3 : 0; /* ".", ".." and the directory's own */
}

/* When this process started, in seconds since 1970; 0 when /proc does not tell. */
static double process_start(void)
{
    unsigned long long ticks = 0, boot = 0;
    char line[1024];
    const char *at;
    FILE *file = fopen("/proc/self/stat", "re");

    if (file == NULL)
        return 0;
    /* The 22nd word; the second one is a name in parentheses that may hold anything. */
    at = fgets(line, sizeof(line), file) == NULL ? NULL : strrchr(line, ')');
    (void)fclose(file);
    if (at == NULL || sscanf(at + 1,
                             " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d "
                             "%*d %*d %llu",
                             &ticks) != 1)
        return 0;
    file = fopen("/proc/stat", "re");
    if (file == NULL)
        return 0;
    while (boot == 0 && fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "btime %llu", &boot) != 1)
            boot = 0;
    (void)fclose(file);
    return boot == 0 ? 0 : (double)boot + (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

void ctl_process(struct ctl_page *page, const char *program, const char *version)
{
    struct rusage usage = {0};
    struct rlimit files = {0};
    char labels[128];

    (void)getrusage(RUSAGE_SELF, &usage);
    (void)getrlimit(RLIMIT_NOFILE, &files);
    (void)snprintf(labels, sizeof(labels), "program=\"%s\",version=\"%s\"", program, version);
    ctl_family(page, "icms_build_info", "gauge", "Program and version; always 1.");
    ctl_sample(page, "icms_build_info", labels, 1);
    ctl_metric(page, "process_cpu_seconds_total", "counter", "User and system CPU time.",
               (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    ctl_metric(page, "process_start_time_seconds", "gauge",
               "When the process started, since the epoch.", process_start());
    ctl_metric(page, "process_resident_memory_bytes", "gauge", "Resident memory.",
               (double)process_resident());
    ctl_metric(page, "process_open_fds", "gauge", "Open file descriptors.", process_fds());
    ctl_metric(page, "process_max_fds", "gauge", "Most file descriptors that may be open.",
               (double)files.rlim_cur);
}
