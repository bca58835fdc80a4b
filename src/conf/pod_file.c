/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/pod_file.c: see pod_file.h. Everything but starting and ending is done on the thread of the
 * watch.
 */
#include "conf/pod_file.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/check.h"

/* What the file said. */
struct file_text {
    char *text; /* NULL: it cannot be read; why says the reason */
    size_t bytes;
    struct err_why why;
};

struct conf_pod_file {
    struct conf_pod_file_opts opts;
    struct file_text seen; /* by the last look                                            */
    bool is_told;          /* seen counts, and was told                                   */
    bool is_started;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows                                             */
    pthread_cond_t wake;  /* something of it changed                                     */
    bool is_ending, is_asked;
};

static bool text_equal(const struct file_text *a, const struct file_text *b)
{
    if (a->text == NULL || b->text == NULL)
        return a->text == b->text && strcmp(a->why.text, b->why.text) == 0;
    return a->bytes == b->bytes && memcmp(a->text, b->text, a->bytes) == 0;
}

/* Reads the file. What is new counts when it is found once more, or now. */
static void file_look(struct conf_pod_file *file, bool is_asked)
{
    struct file_text text = {.text = NULL};
    bool is_same;

    if (conf_pod_text(file->opts.path, &text.why, &text.text, &text.bytes) != ICMS_OK)
        text.text = NULL;
    is_same = text_equal(&text, &file->seen);
    if (is_same) {
        free(text.text);
    } else {
        free(file->seen.text);
        file->seen = text;
        file->is_told = false;
    }
    if (!is_asked && (!is_same || file->is_told))
        return;
    file->is_told = true;
    if (file->seen.text != NULL)
        file->opts.text(file->opts.arg, is_asked, file->seen.text, file->seen.bytes);
    else
        file->opts.unreadable(file->opts.arg, is_asked, file->seen.why.text);
}

/* Waits for the time, or for being asked; true: to end. */
static bool file_wait(struct conf_pod_file *file, uint32_t ms, bool *out_is_asked)
{
    struct timespec until;
    bool is_ending;

    check(clock_gettime(CLOCK_MONOTONIC, &until) == 0);
    until.tv_nsec += (long)ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    check(pthread_mutex_lock(&file->lock) == 0);
    while (!file->is_ending && !file->is_asked &&
           pthread_cond_timedwait(&file->wake, &file->lock, &until) == 0) {
    }
    is_ending = file->is_ending;
    *out_is_asked = file->is_asked;
    file->is_asked = false;
    check(pthread_mutex_unlock(&file->lock) == 0);
    return is_ending;
}

static void *file_run(void *arg)
{
    struct conf_pod_file *file = arg;
    bool is_asked = false, is_soon = false;
    uint32_t since_ms = 0;

    while (!file_wait(file, is_soon ? CONF_POD_FILE_SOON_MS : CONF_POD_FILE_LOOK_MS, &is_asked)) {
        since_ms += is_soon ? CONF_POD_FILE_SOON_MS : CONF_POD_FILE_LOOK_MS;
        if (is_asked || since_ms >= CONF_POD_FILE_LOOK_MS) {
            file_look(file, is_asked);
            since_ms = 0;
        }
        is_soon = file->opts.turn != NULL && file->opts.turn(file->opts.arg, is_asked);
    }
    return NULL;
}

static void file_init(struct conf_pod_file *file)
{
    pthread_condattr_t attributes;

    check(pthread_mutex_init(&file->lock, NULL) == 0);
    check(pthread_condattr_init(&attributes) == 0);
    check(pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0);
    check(pthread_cond_init(&file->wake, &attributes) == 0);
    (void)pthread_condattr_destroy(&attributes);
}

icms_err conf_pod_file_new(const struct conf_pod_file_opts *opts, struct err_why *why,
                           struct conf_pod_file **out_file)
{
    struct conf_pod_file *file = calloc(1, sizeof(*file));
    icms_err err;

    *out_file = NULL;
    if (file == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for the pod map");
    file->opts = *opts;
    file_init(file);
    file->is_told = true;
    err = conf_pod_text(opts->path, why, &file->seen.text, &file->seen.bytes);
    if (err == ICMS_OK) {
        *out_file = file;
        return ICMS_OK;
    }
    file->seen.text = NULL;
    conf_pod_file_free(&file);
    return err;
}

const char *conf_pod_file_text(const struct conf_pod_file *file, size_t *out_bytes)
{
    *out_bytes = file->seen.bytes;
    return file->seen.text;
}

icms_err conf_pod_file_start(struct conf_pod_file *file, struct err_why *why)
{
    sigset_t all, before;
    int error;

    if (file == NULL)
        return ICMS_OK;
    (void)sigfillset(&all); /* signals are for threads of the program */
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&file->thread, NULL, file_run, file);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return err_set(why, err_from_errno(error), "no thread to watch %s: %s", file->opts.path,
                       strerror(error));
    file->is_started = true;
    return ICMS_OK;
}

static void file_tell(struct conf_pod_file *file, bool *flag)
{
    check(pthread_mutex_lock(&file->lock) == 0);
    *flag = true;
    check(pthread_cond_signal(&file->wake) == 0);
    check(pthread_mutex_unlock(&file->lock) == 0);
}

void conf_pod_file_look(struct conf_pod_file *file)
{
    if (file != NULL)
        file_tell(file, &file->is_asked);
}

void conf_pod_file_free(struct conf_pod_file **file_)
{
    struct conf_pod_file *file = *file_;

    *file_ = NULL;
    if (file == NULL)
        return;
    if (file->is_started) {
        file_tell(file, &file->is_ending);
        check(pthread_join(file->thread, NULL) == 0);
    }
    free(file->seen.text);
    check(pthread_cond_destroy(&file->wake) == 0);
    check(pthread_mutex_destroy(&file->lock) == 0);
    free(file);
}
