/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a configuration file: right, or refused with a sentence that begins with the file's
 * name. The first byte chooses what the file is for.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "conf/conf.h"
#include "conf/pod.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* What `icms pod` makes of such a file. */
static void pod_edit(const char *path, size_t bytes)
{
    static const char *const values[] = {"quota=1GiB", "hosts=[nqn.2026-01.io.icms:a]"};
    static const struct conf_pod_change changes[] = {
        {.what = CONF_POD_ADD, .name = "new", .address = "10.0.0.9:4420", .weight = "2"},
        {.what = CONF_POD_DRAIN, .name = "e0"},
        {.what = CONF_POD_UNDRAIN, .name = "e0"},
        {.what = CONF_POD_WEIGHT, .name = "e0", .weight = "2.5", .yes = true},
        {.what = CONF_POD_SETTLE, .name = "e0"},
        {.what = CONF_POD_OUT, .name = "e0", .yes = true},
        {.what = CONF_POD_REMOVE, .name = "e0", .yes = true},
        {.what = CONF_POD_SHRINK},
        {.what = CONF_POD_VOLUME_SET,
         .name = "kv",
         .values = values,
         .value_count = 2,
         .yes = true},
    };
    static struct conf_pod before, after;
    struct conf_edit made = {0};
    struct err_why why = {""};

    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        if (conf_pod_change(path, &changes[i], &why, &before, &after, &made) == ICMS_OK)
            check(made.bytes <= bytes + 256 && after.epoch == before.epoch + 1);
        else
            check(strstr(why.text, path) != NULL);
        conf_edit_fini(&made);
        conf_pod_fini(&before);
        conf_pod_fini(&after);
    }
}

/* What `icms volume erase` makes of such a file. */
static void edit(const char *text, size_t bytes)
{
    static int fd = -1;
    struct conf_edit made = {0};
    struct err_why why = {""};
    char path[64];

    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    check(fd >= 0 && fchmod(fd, 0600) == 0); /* others may write to it otherwise */
    check(ftruncate(fd, 0) == 0 && pwrite(fd, text, bytes, 0) == (ssize_t)bytes);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (conf_generation_raise(path, "kv", 3, &why, &made) == ICMS_OK)
        check(made.to > made.from && made.to >= 3 && made.bytes <= bytes + 64);
    else
        check(strncmp(why.text, path, strlen(path)) == 0);
    conf_edit_fini(&made);
    if (conf_seal_remove(path, "kv", &why, &made) == ICMS_OK)
        check(made.bytes < bytes + 16);
    else
        check(strncmp(why.text, path, strlen(path)) == 0);
    conf_edit_fini(&made);
    pod_edit(path, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static struct conf_target target;
    static struct conf_agent agent;
    static struct conf_nixl nixl;
    static struct conf_seal seal;
    static struct conf_pod pod;
    struct err_why why = {""};
    const char *text = (const char *)data + 1;
    icms_err err;

    if (bytes == 0)
        return 0;
    if ((data[0] & 8) != 0)
        edit(text, bytes - 1);
    if ((data[0] & 16) != 0)
        err = conf_pod_parse(text, bytes - 1, "fuzz", &why, &pod);
    else if ((data[0] & 1) == 0)
        err = conf_target_parse(text, bytes - 1, "fuzz", &why, &target);
    else if ((data[0] & 6) == 6)
        err = conf_seal_parse(text, bytes - 1, "fuzz", &why, &seal);
    else if ((data[0] & 2) != 0)
        err = conf_nixl_parse(text, bytes - 1, "fuzz", &why, &nixl);
    else
        err = conf_agent_parse(text, bytes - 1, "fuzz", &why, &agent);
    conf_target_fini(&target);
    conf_agent_fini(&agent);
    conf_pod_fini(&pod);
    check(err == ICMS_OK || err == ICMS_CONFIG);
    check(err == ICMS_OK || strncmp(why.text, "fuzz:", 5) == 0);
    return 0;
}
