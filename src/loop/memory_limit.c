/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that this process may use; see memory_limit.h. Called at the start.
 *
 * Control groups are looked for by the path that /proc/self/cgroup gives, and in each folder above
 * it. In a container that path may be one of the host, which does not exist there: then the top of
 * /sys/fs/cgroup is the container's own group, and it is the last folder that is looked at.
 */
#include "loop/memory_limit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES (LIMIT_PATH_BYTES + 256)

/* The machine's memory; 0: not known. */
static uint64_t machine_bytes(const char *root)
{
    char path[LINE_BYTES], line[LINE_BYTES];
    unsigned long long kib = 0;
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (fgets(line, sizeof(line), file) != NULL)
        if (sscanf(line, "MemTotal: %llu kB", &kib) == 1)
            break;
    (void)fclose(file);
    return kib << 10;
}

/* The number in a file; UINT64_MAX where there is none, or the word "max". */
static uint64_t group_bytes(const char *path)
{
    uint64_t bytes = UINT64_MAX;
    char line[64], *end;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return UINT64_MAX;
    if (fgets(line, sizeof(line), file) != NULL) {
        errno = 0;
        bytes = strtoull(line, &end, 10);
        if (errno != 0 || end == line)
            bytes = UINT64_MAX;
    }
    (void)fclose(file);
    return bytes;
}

/* The limits in a group and in all above it, up to the mount. */
static void groups_look(const char *root, const char *mount, const char *group, const char *name,
                        struct loop_memory_limit *limit)
{
    char at[LIMIT_PATH_BYTES], path[2 * LINE_BYTES];

    (void)snprintf(at, sizeof(at), "%s", strcmp(group, "/") == 0 ? "" : group);
    for (;;) {
        char *slash = strrchr(at, '/');
        uint64_t bytes;

        (void)snprintf(path, sizeof(path), "%s%s%s/%s", root, mount, at, name);
        bytes = group_bytes(path);
        if (bytes < limit->bytes) {
            limit->bytes = bytes;
            (void)snprintf(limit->what, sizeof(limit->what), "control group %.*s", LIMIT_PATH_BYTES,
                           at[0] == '\0' ? "/" : at);
        }
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

void loop_memory_limit(const char *root, struct loop_memory_limit *out_limit)
{
    struct loop_memory_limit limit = {.bytes = machine_bytes(root), .what = "this machine"};
    char path[LINE_BYTES], line[LINE_BYTES];
    FILE *file;

    if (limit.bytes == 0)
        limit.bytes = UINT64_MAX;
    (void)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        /* NUMBER:CONTROLLERS:PATH, with version 2 0::PATH */
        char *controllers = strchr(line, ':'), *group;

        line[strcspn(line, "\n")] = '\0';
        group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL || group[1] != '/')
            continue;
        *group++ = '\0';
        if (controllers[1] == '\0')
            groups_look(root, "/sys/fs/cgroup", group, "memory.max", &limit);
        else if (strcmp(controllers + 1, "memory") == 0)
            groups_look(root, "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", &limit);
    }
    if (file != NULL)
        (void)fclose(file);
    *out_limit = limit;
}

icms_err loop_memory_check(const struct loop_memory_limit *limit, const char *program,
                           uint64_t need_bytes, const char *where, struct err_why *why)
{
    if (need_bytes <= limit->bytes)
        return ICMS_OK;
    return err_set(
        why, ICMS_LIMIT,
        "cannot run %s with %llu MiB of memory (%s): %.200s has %llu MiB; configure less, "
        "or give it more memory",
        program, (unsigned long long)(need_bytes >> 20), where, limit->what,
        (unsigned long long)(limit->bytes >> 20));
}
