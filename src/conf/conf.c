/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doors of the module: read a file, or a text, to a struct. Called by cmd and client at start,
 * on control threads. The caller's struct is touched only when everything was right.
 */
#include "conf/conf_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"

/* Parses and binds; object holds the defaults. */
static icms_err text_bind(const struct conf_table *table, const char *text, size_t bytes,
                          const char *name, struct err_why *why, void *object)
{
    struct conf_source source = {.name = name, .why = why};
    struct conf_doc *doc = NULL;
    icms_err err;

    err = conf_doc_parse(&source, text, bytes, &doc);
    if (err != ICMS_OK)
        return err;
    err = conf_table_bind(table, &source, conf_doc_root(doc), object);
    conf_doc_free(&doc);
    return err;
}

static void volumes_fini(struct volume_spec *volumes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free(volumes[i].host_nqn);
        volumes[i].host_nqn = NULL;
        volumes[i].host_count = 0;
    }
}

void conf_target_fini(struct conf_target *conf)
{
    volumes_fini(conf->volumes, LIMIT_VOLUMES);
    free(conf->hosts);
    conf->hosts = NULL;
    conf->host_count = 0;
}

void conf_agent_fini(struct conf_agent *conf)
{
    volumes_fini(conf->volumes, LIMIT_AGENT_VOLUMES);
}

icms_err conf_target_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                           struct conf_target *out_conf)
{
    struct conf_target *conf = malloc(sizeof(*conf));
    icms_err err;

    if (conf == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", name);
    conf_target_init(conf);
    err = text_bind(&conf_target_table, text, bytes, name, why, conf);
    if (err == ICMS_OK)
        memcpy(out_conf, conf, sizeof(*conf));
    else
        conf_target_fini(conf);
    free(conf);
    return err;
}

icms_err conf_agent_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                          struct conf_agent *out_conf)
{
    struct conf_agent *conf = calloc(1, sizeof(*conf));
    icms_err err;

    if (conf == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", name);
    /* Not conf_agent_init: names that are computed follow from what is written. */
    conf_table_init(&conf_agent_table, conf);
    err = text_bind(&conf_agent_table, text, bytes, name, why, conf);
    if (err == ICMS_OK)
        memcpy(out_conf, conf, sizeof(*conf));
    else
        conf_agent_fini(conf);
    free(conf);
    return err;
}

icms_err conf_nixl_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                         struct conf_nixl *out_conf)
{
    struct conf_nixl *conf = calloc(1, sizeof(*conf));
    icms_err err;

    if (conf == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", name);
    err = text_bind(&conf_nixl_table, text, bytes, name, why, conf);
    if (err == ICMS_OK)
        memcpy(out_conf, conf, sizeof(*conf));
    free(conf);
    return err;
}

icms_err conf_seal_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                         struct conf_seal *out_conf)
{
    struct conf_seal *conf = calloc(1, sizeof(*conf));
    icms_err err;

    if (conf == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", name);
    err = text_bind(&conf_seal_table, text, bytes, name, why, conf);
    if (err == ICMS_OK)
        memcpy(out_conf, conf, sizeof(*conf));
    free(conf);
    return err;
}

static icms_err file_open(const char *path, const char *remedy, struct err_why *why, int *out_fd)
{
    icms_err err;

    *out_fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe is refused */
    err = *out_fd < 0 ? err_from_errno(errno) : ICMS_OK;
    if (err != ICMS_OK)
        return err_set(why, err, "cannot read %s: %s; give the file with %s", path, strerror(errno),
                       remedy);
    return ICMS_OK;
}

/* Reads what there is and closes the file. */
static icms_err file_take(int fd, const char *path, struct err_why *why, char **out_text,
                          size_t *out_bytes)
{
    size_t bytes = 0;
    char *text = malloc(CONF_FILE_BYTES_MAX + 1);

    if (text == NULL) {
        (void)close(fd);
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", path);
    }
    while (bytes <= CONF_FILE_BYTES_MAX) {
        ssize_t n = read(fd, text + bytes, CONF_FILE_BYTES_MAX + 1 - bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            icms_err err =
                err_set(why, err_from_errno(errno), "cannot read %s: %s", path, strerror(errno));

            (void)close(fd);
            free(text);
            return err;
        }
        if (n == 0)
            break;
        bytes += (size_t)n;
    }
    (void)close(fd);
    *out_text = text;
    *out_bytes = bytes;
    return ICMS_OK;
}

icms_err conf_file_check(int fd, const char *path, struct err_why *why)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return err_set(why, err_from_errno(errno), "cannot read %s: %s", path, strerror(errno));
    return S_ISREG(status.st_mode)
               ? file_mode_check(&status, "", path, why)
               : err_set(why, ICMS_CONFIG, "cannot read %s: it is not a regular file", path);
}

icms_err conf_file_read(const char *path, const char *remedy, struct err_why *why, char **out_text,
                        size_t *out_bytes)
{
    int fd;
    icms_err err = file_open(path, remedy, why, &fd);

    if (err != ICMS_OK)
        return err;
    err = conf_file_check(fd, path, why);
    if (err != ICMS_OK) {
        (void)close(fd);
        return err;
    }
    return file_take(fd, path, why, out_text, out_bytes);
}

icms_err conf_target_read(const char *path, struct err_why *why, struct conf_target *out_conf)
{
    char *text = NULL;
    size_t bytes = 0;
    icms_err err =
        conf_file_read(path, "--config (--print-config prints an example)", why, &text, &bytes);

    if (err != ICMS_OK)
        return err;
    err = conf_target_parse(text, bytes, path, why, out_conf);
    free(text);
    return err;
}

icms_err conf_agent_read(const char *path, struct err_why *why, struct conf_agent *out_conf)
{
    char *text = NULL;
    size_t bytes = 0;
    icms_err err =
        conf_file_read(path, "--config (--print-config prints an example)", why, &text, &bytes);

    if (err != ICMS_OK)
        return err;
    err = conf_agent_parse(text, bytes, path, why, out_conf);
    free(text);
    return err;
}

icms_err conf_nixl_read(const char *path, struct err_why *why, struct conf_nixl *out_conf)
{
    char *text = NULL;
    size_t bytes = 0;
    icms_err err = conf_file_read(path, "ICMS_NIXL_CONFIG", why, &text, &bytes);

    if (err != ICMS_OK)
        return err;
    err = conf_nixl_parse(text, bytes, path, why, out_conf);
    free(text);
    return err;
}

/* A file that is not absolute lies beside the list. */
static icms_err seal_path(const char *path, char file[LIMIT_PATH_BYTES], struct err_why *why)
{
    const char *name = strrchr(path, '/');
    char whole[LIMIT_PATH_BYTES];

    if (file[0] == 0 || file[0] == '/' || name == NULL)
        return ICMS_OK;
    if ((size_t)snprintf(whole, sizeof(whole), "%.*s/%s", (int)(name - path), path, file) >=
        sizeof(whole))
        return err_set(why, ICMS_CONFIG, "%s: the path of %s, beside it, is too long", path, file);
    memcpy(file, whole, sizeof(whole));
    return ICMS_OK;
}

static icms_err seal_paths(struct conf_seal *conf, const char *path, struct err_why *why)
{
    icms_err err = ICMS_OK;

    for (uint32_t i = 0; i < conf->volume_count; i++)
        for (uint32_t j = 0; j < conf->volumes[i].key_count && err == ICMS_OK; j++) {
            struct conf_seal_key *key = &conf->volumes[i].keys[j];

            err = seal_path(path, key->file, why);
            if (err == ICMS_OK)
                err = seal_path(path, key->wrapped, why);
            if (err == ICMS_OK)
                err = seal_path(path, key->kek_file, why);
        }
    return err;
}

/* Who can write a list of keys chooses what encrypts, and programs that its readers run. */
static icms_err seal_file_check(int fd, const char *path, struct err_why *why)
{
    struct stat status;

    if (fstat(fd, &status) != 0)
        return err_set(why, err_from_errno(errno), "cannot read %s: %s", path, strerror(errno));
    if (status.st_uid != geteuid() && status.st_uid != 0)
        return err_set(why, ICMS_PERMISSION,
                       "cannot use the list of keys %s: its owner is user %u; it must be user %u, "
                       "who runs this, or root: see chown(1)",
                       path, (unsigned)status.st_uid, (unsigned)geteuid());
    if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return err_set(
            why, ICMS_PERMISSION,
            "cannot use the list of keys %s: its mode is 0%03o, so others can change it; "
            "look whether it is as it was, and `chmod go-w` it",
            path, (unsigned)status.st_mode & 07777);
    return ICMS_OK;
}

icms_err conf_seal_read(const char *path, struct err_why *why, struct conf_seal *out_conf)
{
    char *text = NULL;
    size_t bytes = 0;
    int fd;
    icms_err err = file_open(path, "the option keys or ICMS_KEYS", why, &fd);

    if (err != ICMS_OK)
        return err;
    err = seal_file_check(fd, path, why);
    if (err != ICMS_OK) {
        (void)close(fd);
        return err;
    }
    err = file_take(fd, path, why, &text, &bytes);
    if (err != ICMS_OK)
        return err;
    err = conf_seal_parse(text, bytes, path, why, out_conf);
    free(text);
    return err == ICMS_OK ? seal_paths(out_conf, path, why) : err;
}
