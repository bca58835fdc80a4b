/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/volume_change.c: which changes of a volume are refused, and which ask for --yes, whether it
 * is in the file of a target (volume_edit.c) or in a pod map (pod_edit.c), which call this.
 */
#include <stdio.h>
#include <string.h>

#include "conf/conf_int.h"

#define OTHER_VOLUME                                                                               \
    "create another volume, or delete this one and create it again with a higher generation"

static bool host_is_of(const struct volume_spec *volume, const char *nqn, uint32_t before)
{
    for (uint32_t i = 0; i < before; i++)
        if (strcmp(volume->host_nqn[i], nqn) == 0)
            return true;
    return false;
}

/* Whether a host that may use the volume may not any more. */
static bool hosts_leave(const struct volume_spec *was, const struct volume_spec *is)
{
    if (is->host_count == 0 || was->host_count == 0)
        return is->host_count > 0 && was->host_count == 0;
    for (uint32_t i = 0; i < was->host_count; i++)
        if (!host_is_of(is, was->host_nqn[i], is->host_count))
            return true;
    return false;
}

/* Blocks that are stored would be read the other way. NULL: the format is as before. */
static const char *format_refusal(const struct volume_spec *was, const struct volume_spec *is)
{
    if (was->encrypted != is->encrypted)
        return "encrypted is a part of its identity: all of its blocks would become "
               "misses; " OTHER_VOLUME;
    if (was->sealed != is->sealed)
        return "sealed is not set: the blocks that are stored would be read the other "
               "way; " OTHER_VOLUME;
    return NULL;
}

bool conf_quota_is_lower(uint64_t was_bytes, uint64_t is_bytes)
{
    return is_bytes != 0 && (was_bytes == 0 || is_bytes < was_bytes);
}

bool conf_hosts_open(uint32_t was_count, uint32_t is_count)
{
    return was_count > 0 && is_count == 0;
}

bool conf_require_is_lower(uint8_t was, uint8_t is)
{
    return (was & ~is) != 0;
}

/* What loses blocks, or lets more hosts in, or some out. NULL: nothing. */
static const char *loss_of(const struct volume_spec *was, const struct volume_spec *is)
{
    if (conf_quota_is_lower(was->quota_bytes, is->quota_bytes))
        return "its quota becomes lower: blocks that it holds beyond it are evicted; add --yes";
    if (conf_hosts_open(was->host_count, is->host_count))
        return "hosts: none are listed, so any host may use it then; add --yes";
    if (hosts_leave(was, is))
        return "hosts: some that may use it may not any more, and miss its blocks; add --yes";
    if (conf_require_is_lower(was->require, is->require))
        return "require: hosts have to prove less than before; add --yes";
    if (is->value_bytes_max < was->value_bytes_max)
        return "its value_max becomes smaller: stores of larger blocks fail, and those that it "
               "holds cannot be loaded after a restart of targets or agents; add --yes";
    return NULL;
}

/* NQNs that are written by hand: one that is there twice, or that nobody has who follows the
 * specification, is a mistake. NULL: none is. */
static const char *hosts_refusal(const struct volume_spec *is, char text[CONF_VOLUME_REFUSAL_BYTES])
{
    static const char prefix[] = "nqn.2014-08.org.nvmexpress:uuid:";
    struct uuid uuid;

    for (uint32_t i = 0; i < is->host_count; i++) {
        const char *nqn = is->host_nqn[i];
        const char *wrong = NULL;

        if (host_is_of(is, nqn, i))
            wrong = "is listed twice";
        else if (strncmp(nqn, prefix, strlen(prefix)) == 0 &&
                 !uuid_parse(nqn + strlen(prefix), &uuid))
            wrong = "does not end with a UUID";
        if (wrong == NULL)
            continue;
        (void)snprintf(text, CONF_VOLUME_REFUSAL_BYTES, "hosts: %s %s", nqn, wrong);
        return text;
    }
    return NULL;
}

const char *conf_volume_refusal(const struct conf_volume_step *step,
                                char text[CONF_VOLUME_REFUSAL_BYTES])
{
    const char *refusal = NULL;

    /* Of a file only what is changed is looked at. */
    for (uint32_t i = 0; i < step->value_count && refusal == NULL; i++)
        if (strncmp(step->values[i], "hosts=", strlen("hosts=")) == 0)
            refusal = hosts_refusal(step->is, text);
    if (refusal == NULL && step->was != NULL)
        refusal = format_refusal(step->was, step->is);
    if (refusal == NULL && step->was != NULL && !step->yes)
        refusal = loss_of(step->was, step->is);
    return refusal;
}
