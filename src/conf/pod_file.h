/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/pod_file.h: the file of a pod map, watched on a thread of its own, for agents
 * (inprocess/pod_watch.h) and targets (cmd/target_reload.h).
 *
 *     conf_pod_file_new(&opts, &why, &file);      reads it: conf_pod_file_text()
 *     conf_pod_file_start(file, &why);            from here on opts' functions are called, on the
 * thread conf_pod_file_look(file);                   on SIGHUP, where the thread is to look at once
 *     conf_pod_file_free(&file);                  none of them is called after that
 *
 * The file is read, not asked for notifications: half a second is soon enough, and a rename, a
 * symbolic link that is swapped, a file system of another machine or of FUSE all look the same. A
 * text counts when two looks in a row have found it, so that a file that is being written is not
 * taken halfway; after conf_pod_file_look() at once. What it says is for others: nothing is parsed
 * here.
 *
 * The owner's thread. Each function does nothing where file is NULL.
 */
#ifndef CONF_POD_FILE_H
#define CONF_POD_FILE_H

#include "conf/pod.h"

/* How often the file is looked at; and turn is called while it asks for that. */
#define CONF_POD_FILE_LOOK_MS 500
#define CONF_POD_FILE_SOON_MS 20

struct conf_pod_file;

/* On the thread of the watch. */
struct conf_pod_file_opts {
    const char *path; /* stays */

    /* What counts: a text that is another one than before, or, with is_asked, whatever there is:
     * conf_pod_file_look() was called. The text of conf_pod_file_new() is not told again. */
    void (*text)(void *arg, bool is_asked, const char *text, size_t bytes);

    /* The same when the file cannot be read: why. */
    void (*unreadable)(void *arg, bool is_asked, const char *sentence);

    /* After each of the looks, and in between while it returns true: something is under way.
     * NULL: nothing is done then. */
    bool (*turn)(void *arg, bool is_asked);

    void *arg; /* of all three */
};

/* Errors of reading; NO_MEMORY. */
icms_err conf_pod_file_new(const struct conf_pod_file_opts *opts, struct err_why *why,
                           struct conf_pod_file **out_file) ICMS_MUST_CHECK;

/* What conf_pod_file_new() read, until conf_pod_file_start(). */
const char *conf_pod_file_text(const struct conf_pod_file *file, size_t *out_bytes);

icms_err conf_pod_file_start(struct conf_pod_file *file, struct err_why *why) ICMS_MUST_CHECK;

/* The thread looks at once. */
void conf_pod_file_look(struct conf_pod_file *file);

/* Waits for the thread, which may be reading. */
void conf_pod_file_free(struct conf_pod_file **file);

#endif
