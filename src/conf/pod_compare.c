/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/pod_compare.c: what a pod map is to another one: how they differ in words, and whether who
 * has the one may take the other. Called by cmd and inprocess on control threads.
 */
#include "conf/pod.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "conf/conf_int.h"

/* ---- a map and another one ------------------------------------------------------------------ */

/* Words that are added to a text, which is cut where it is full. */
struct words {
    char *out;
    size_t bytes, used;
};

static void words_add(struct words *words, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void words_add(struct words *words, const char *format, ...)
{
    va_list args;
    int n;

    if (words->used >= words->bytes)
        return;
    if (words->used > 0)
        words->used += (size_t)snprintf(words->out + words->used, words->bytes - words->used, ", ");
    if (words->used >= words->bytes)
        return;
    va_start(args, format);
    n = vsnprintf(words->out + words->used, words->bytes - words->used, format, args);
    va_end(args);
    words->used += n > 0 ? (size_t)n : 0;
}

static void addresses_differ(const struct conf_enclosure *was, const struct conf_enclosure *is,
                             struct words *words)
{
    if (was->address_count == 1 && is->address_count == 1) {
        if (strcmp(was->address[0], is->address[0]) != 0)
            words_add(words, "%s address %s -> %s", is->name, was->address[0], is->address[0]);
        return;
    }
    for (uint32_t i = 0; i < is->address_count; i++)
        if (!conf_enclosure_has(was, was->address_count, is->address[i]))
            words_add(words, "%s address %s added", is->name, is->address[i]);
    for (uint32_t i = 0; i < was->address_count; i++)
        if (!conf_enclosure_has(is, is->address_count, was->address[i]))
            words_add(words, "%s address %s removed", is->name, was->address[i]);
}

static void capacity_differs(const struct conf_enclosure *was, const struct conf_enclosure *is,
                             struct words *words)
{
    char before[32], after[32];

    if (was->capacity_bytes == is->capacity_bytes)
        return;
    words_add(words, "%s capacity %s -> %s", is->name,
              was->capacity_bytes > 0 ? conf_bytes_format(was->capacity_bytes, before) : "none",
              is->capacity_bytes > 0 ? conf_bytes_format(is->capacity_bytes, after) : "none");
}

static void enclosure_differs(const struct conf_enclosure *was, const struct conf_enclosure *is,
                              struct words *words)
{
    if (strcmp(was->name, is->name) != 0)
        words_add(words, "%s is %s now", was->name, is->name);
    if (was->state != is->state)
        words_add(words, "%s %s", is->name,
                  conf_enclosure_state_name((enum conf_enclosure_state)is->state));
    if (was->weight < is->weight || was->weight > is->weight)
        words_add(words, "%s weight %.8g -> %.8g", is->name, was->weight, is->weight);
    if (was->former_weight <= 0 && is->former_weight > 0)
        words_add(words, "%s former weight %.8g", is->name, is->former_weight);
    else if (was->former_weight > 0 && is->former_weight <= 0)
        words_add(words, "%s no former weight", is->name);
    else if (was->former_weight < is->former_weight || was->former_weight > is->former_weight)
        words_add(words, "%s former weight %.8g -> %.8g", is->name, was->former_weight,
                  is->former_weight);
    capacity_differs(was, is, words);
    addresses_differ(was, is, words);
    if (strcmp(was->nqn, is->nqn) != 0)
        words_add(words, "%s nqn %s -> %s", is->name, was->nqn, is->nqn);
    if (strcmp(was->http, is->http) != 0)
        words_add(words, "%s http %s -> %s", is->name, was->http[0] != '\0' ? was->http : "none",
                  is->http[0] != '\0' ? is->http : "none");
}

static const char *tenant_of(const struct conf_pod_volume *volume)
{
    return volume->tenant[0] != '\0' ? volume->tenant : volume->name;
}

static void volume_differs(const struct conf_pod_volume *was, const struct conf_pod_volume *is,
                           struct words *words)
{
    if (was->generation != is->generation)
        words_add(words, "volume %s generation %u -> %u", is->name, was->generation,
                  is->generation);
    else if (!uuid_equal(&was->uuid, &is->uuid))
        words_add(words, "volume %s has another uuid", is->name);
    if (was->value_bytes_max != is->value_bytes_max)
        words_add(words, "volume %s value_max %llu -> %llu", is->name,
                  (unsigned long long)was->value_bytes_max,
                  (unsigned long long)is->value_bytes_max);
    if (was->run_blocks != is->run_blocks)
        words_add(words, "volume %s run_blocks %u -> %u", is->name, was->run_blocks,
                  is->run_blocks);
    if (was->sealed != is->sealed)
        words_add(words, "volume %s is %s", is->name, is->sealed ? "sealed" : "raw");
    if (was->encrypted != is->encrypted)
        words_add(words, "volume %s is %s", is->name, is->encrypted ? "encrypted" : "plain");
    if (was->quota_bytes != is->quota_bytes)
        words_add(words, "volume %s quota %llu -> %llu", is->name,
                  (unsigned long long)was->quota_bytes, (unsigned long long)is->quota_bytes);
    if (!conf_pod_hosts_equal(was, is))
        words_add(words, "volume %s has other hosts (%u -> %u, 0: any)", is->name, was->host_count,
                  is->host_count);
    if (strcmp(was->tenant, is->tenant) != 0)
        words_add(words, "volume %s tenant %s -> %s", is->name, tenant_of(was), tenant_of(is));
    if (was->require != is->require)
        words_add(words, "volume %s require %s -> %s", is->name, conf_require_name(was->require),
                  conf_require_name(is->require));
}

static const struct tenant_spec *tenant_find(const struct conf_pod *pod, const char *name)
{
    for (uint32_t i = 0; i < pod->tenant_count; i++)
        if (strcmp(pod->tenants[i].name, name) == 0)
            return &pod->tenants[i];
    return NULL;
}

static void tenants_differ(const struct conf_pod *before, const struct conf_pod *after,
                           struct words *words)
{
    for (uint32_t i = 0; i < after->tenant_count; i++) {
        const struct tenant_spec *is = &after->tenants[i];
        const struct tenant_spec *was = tenant_find(before, is->name);

        if (was == NULL)
            words_add(words, "tenant %s added", is->name);
        else if (memcmp(was, is, sizeof(*is)) != 0)
            words_add(words, "tenant %s has another weight or limit", is->name);
    }
    for (uint32_t i = 0; i < before->tenant_count; i++)
        if (tenant_find(after, before->tenants[i].name) == NULL)
            words_add(words, "tenant %s removed", before->tenants[i].name);
}

static void volumes_differ(const struct conf_pod *before, const struct conf_pod *after,
                           struct words *words)
{
    for (uint32_t i = 0; i < after->volume_count; i++) {
        const struct conf_pod_volume *is = &after->volumes[i];
        const struct conf_pod_volume *was = conf_pod_volume_find(before, is->name);

        if (was == NULL)
            words_add(words, "volume %s added (generation %u)", is->name, is->generation);
        else
            volume_differs(was, is, words);
    }
    for (uint32_t i = 0; i < before->volume_count; i++)
        if (conf_pod_volume_find(after, before->volumes[i].name) == NULL)
            words_add(words, "volume %s deleted (generation %u)", before->volumes[i].name,
                      before->volumes[i].generation);
}

char *conf_pod_differs(const struct conf_pod *before, const struct conf_pod *after, char *out,
                       size_t bytes)
{
    struct words words = {.out = out, .bytes = bytes};

    out[0] = '\0';
    if (strcmp(before->name, after->name) != 0)
        words_add(&words, "the pod is %s, not %s", after->name, before->name);
    for (uint32_t i = 0; i < after->enclosure_count; i++) {
        const struct conf_enclosure *is = &after->enclosures[i];
        const struct conf_enclosure *was = conf_pod_enclosure_find(before, &is->uuid);

        if (was == NULL)
            words_add(&words, "%s added (%s)", is->name,
                      conf_enclosure_state_name((enum conf_enclosure_state)is->state));
        else
            enclosure_differs(was, is, &words);
    }
    for (uint32_t i = 0; i < before->enclosure_count; i++)
        if (conf_pod_enclosure_find(after, &before->enclosures[i].uuid) == NULL)
            words_add(&words, "%s removed", before->enclosures[i].name);
    volumes_differ(before, after, &words);
    tenants_differ(before, after, &words);
    return out;
}

/* The enclosures that agents do not use any more, neither draining nor out before: `after` lacks
 * them, or has them out. */
static uint64_t enclosures_gone(const struct conf_pod *before, const struct conf_pod *after)
{
    uint64_t gone = 0;

    for (uint32_t i = 0; i < before->enclosure_count; i++) {
        const struct conf_enclosure *was = &before->enclosures[i];
        const struct conf_enclosure *is = conf_pod_enclosure_find(after, &was->uuid);

        if (was->state != CONF_ENCLOSURE_DRAINING && was->state != CONF_ENCLOSURE_OUT &&
            (is == NULL || is->state == CONF_ENCLOSURE_OUT))
            gone |= (uint64_t)1 << i;
    }
    return gone;
}

/* What `after` does with those that are gone. */
static const char *gone_how(const struct conf_pod *before, const struct conf_pod *after,
                            uint64_t gone)
{
    bool is_any_out = false, is_any_missing = false;

    for (uint32_t i = 0; i < before->enclosure_count; i++) {
        if ((gone >> i & 1) == 0)
            continue;
        if (conf_pod_enclosure_find(after, &before->enclosures[i].uuid) == NULL)
            is_any_missing = true;
        else
            is_any_out = true;
    }
    return !is_any_out ? "lacks" : is_any_missing ? "lacks or sets to out" : "sets to out";
}

/* A volume with a former generation: what a reset had made unreachable would be found again. */
static bool volume_goes_back(const struct conf_pod *before, const struct conf_pod *after,
                             const char *file, struct err_why *why)
{
    for (uint32_t i = 0; i < after->volume_count; i++) {
        const struct conf_pod_volume *is = &after->volumes[i];
        const struct conf_pod_volume *was = conf_pod_volume_find(before, is->name);

        if (was == NULL || is->generation >= was->generation)
            continue;
        (void)err_set(why, ICMS_CONFIG,
                      "%s: generation %u of volume %s is lower than %u, which is in use: it would "
                      "bring back what was reset; write a higher one",
                      file, is->generation, is->name, was->generation);
        return true;
    }
    return false;
}

/* Whether the operator let something leave since the map in use: who has an older one than that
 * epoch has not seen it yet, however many came after it. A map has none above its own epoch. */
static bool may_shrink(const struct conf_pod *before, const struct conf_pod *after)
{
    return after->shrink_epoch > before->epoch;
}

/* Without a volume: rather a slip, half a map or another pod's than a change that somebody meant.
 * Agents would serve misses, and targets give up the blocks. */
static bool volumes_shrink(const struct conf_pod *before, const struct conf_pod *after,
                           const char *file, struct err_why *why)
{
    const char *first = NULL;
    uint32_t gone = 0;

    for (uint32_t i = before->volume_count; i-- > 0;)
        if (conf_pod_volume_find(after, before->volumes[i].name) == NULL) {
            first = before->volumes[i].name;
            gone++;
        }
    if (gone == 0)
        return false;
    (void)err_set(why, ICMS_CONFIG,
                  "%s: epoch %u lacks %u of %u volumes, %s%s, whose blocks would be lost: if it is "
                  "right, write 'shrink_epoch: %u' (icms pod reload --yes)",
                  file, after->epoch, gone, before->volume_count, first,
                  gone > 1 ? " among them" : "", after->epoch);
    return true;
}

/* Another volume of the same name and generation, as after a line `uuid` that was lost: its blocks
 * would be misses at all agents, and targets would evict them. A higher generation is a reset. */
static bool volumes_replaced(const struct conf_pod *before, const struct conf_pod *after,
                             const char *file, struct err_why *why)
{
    for (uint32_t i = 0; i < after->volume_count; i++) {
        const struct conf_pod_volume *is = &after->volumes[i];
        const struct conf_pod_volume *was = conf_pod_volume_find(before, is->name);
        const char *how;

        if (was == NULL || is->generation != was->generation)
            continue;
        if (is->encrypted != was->encrypted)
            how = is->encrypted ? "is encrypted now" : "is not encrypted any more";
        else if (is->sealed != was->sealed)
            how = is->sealed ? "is sealed now" : "is not sealed any more";
        else if (!uuid_equal(&is->uuid, &was->uuid))
            how = "has another uuid";
        else
            continue;
        (void)err_set(why, ICMS_CONFIG,
                      "%s: epoch %u: volume %s %s under the same generation, %u, and its blocks "
                      "would be lost: correct it, or raise its generation to begin anew; if it is "
                      "right, write 'shrink_epoch: %u' (icms pod reload --yes)",
                      file, after->epoch, is->name, how, is->generation, after->epoch);
        return true;
    }
    return false;
}

/* A lower quota: targets would evict what is above it at once. */
static bool quotas_shrink(const struct conf_pod *before, const struct conf_pod *after,
                          const char *file, struct err_why *why)
{
    char was_text[32] = "none", is_text[32];

    for (uint32_t i = 0; i < after->volume_count; i++) {
        const struct conf_pod_volume *is = &after->volumes[i];
        const struct conf_pod_volume *was = conf_pod_volume_find(before, is->name);

        if (was == NULL || !conf_quota_is_lower(was->quota_bytes, is->quota_bytes))
            continue;
        if (was->quota_bytes > 0)
            (void)conf_bytes_format(was->quota_bytes, was_text);
        (void)err_set(why, ICMS_CONFIG,
                      "%s: epoch %u lowers the quota of volume %s, %s -> %s, and blocks above it "
                      "would be evicted: if it is right, write 'shrink_epoch: %u' (icms pod reload "
                      "--yes)",
                      file, after->epoch, is->name, was_text,
                      conf_bytes_format(is->quota_bytes, is_text), after->epoch);
        return true;
    }
    return false;
}

/* A line `hosts` or `require` that is not there any more: others may use the volume at every
 * target, also what is written after a reset. */
static bool volumes_open(const struct conf_pod *before, const struct conf_pod *after,
                         const char *file, struct err_why *why)
{
    for (uint32_t i = 0; i < after->volume_count; i++) {
        const struct conf_pod_volume *is = &after->volumes[i];
        const struct conf_pod_volume *was = conf_pod_volume_find(before, is->name);
        char how[96];

        if (was == NULL)
            continue;
        if (conf_hosts_open(was->host_count, is->host_count))
            (void)snprintf(how, sizeof(how), "%s",
                           "lists no hosts any more, so any host may use it");
        else if (conf_require_is_lower(was->require, is->require))
            (void)snprintf(how, sizeof(how), "requires %s, not %s, so hosts have to prove less",
                           conf_require_name(is->require), conf_require_name(was->require));
        else
            continue;
        (void)err_set(why, ICMS_CONFIG,
                      "%s: epoch %u: volume %s %s: if it is right, write 'shrink_epoch: %u' (icms "
                      "pod reload --yes)",
                      file, after->epoch, is->name, how, after->epoch);
        return true;
    }
    return false;
}

enum conf_pod_verdict conf_pod_compare(const struct conf_pod *before, const struct conf_pod *after,
                                       const char *file, struct err_why *why, uint64_t *out_gone)
{
    char differs[256];
    uint32_t gone;

    *out_gone = 0;
    if (strcmp(before->name, after->name) != 0) {
        (void)err_set(why, ICMS_CONFIG,
                      "%s: it is the map of the pod '%s'; the one in use is of '%s'", file,
                      after->name, before->name);
        return CONF_POD_REFUSED;
    }
    if (after->epoch < before->epoch) {
        (void)err_set(why, ICMS_CONFIG, "%s: its epoch %u is lower than %u, which is in use: %s",
                      file, after->epoch, before->epoch,
                      before->epoch < UINT32_MAX
                          ? "write a higher one"
                          : "no other can follow that, the last one there can be, until who uses "
                            "it is started again");
        return CONF_POD_REFUSED;
    }
    (void)conf_pod_differs(before, after, differs, sizeof(differs));
    if (after->epoch == before->epoch && differs[0] == '\0')
        return CONF_POD_SAME;
    if (after->epoch == before->epoch) {
        (void)err_set(why, ICMS_CONFIG,
                      "%s: it differs from the map in use (%s) and has its epoch, %u: %s", file,
                      differs, after->epoch,
                      before->epoch < UINT32_MAX
                          ? "raise it"
                          : "the last one there can be; write a low one, and start who uses it "
                            "again");
        return CONF_POD_REFUSED;
    }
    if (before->volume_count > 0 && after->volume_count == 0) {
        (void)err_set(why, ICMS_CONFIG,
                      "%s: it lists no volumes, and the map in use does: daemons would have to "
                      "know themselves what their volumes are; list one",
                      file);
        return CONF_POD_REFUSED;
    }
    if (volume_goes_back(before, after, file, why) ||
        (!may_shrink(before, after) &&
         (volumes_shrink(before, after, file, why) || volumes_replaced(before, after, file, why) ||
          quotas_shrink(before, after, file, why) || volumes_open(before, after, file, why))))
        return CONF_POD_REFUSED;
    *out_gone = enclosures_gone(before, after);
    if (*out_gone == 0 || may_shrink(before, after))
        return CONF_POD_NEW;
    gone = (uint32_t)__builtin_popcountll(*out_gone);
    (void)err_set(why, ICMS_CONFIG,
                  "%s: epoch %u %s %u of %u enclosures, %s%s, which %s not drained: it waits until "
                  "%s not answer and one that stays does; if it is right, write 'shrink_epoch: %u' "
                  "(icms pod reload --yes)",
                  file, after->epoch, gone_how(before, after, *out_gone), gone,
                  before->enclosure_count, before->enclosures[__builtin_ctzll(*out_gone)].name,
                  gone > 1 ? " among them" : "", gone > 1 ? "were" : "was",
                  gone > 1 ? "they do" : "it does", after->epoch);
    return CONF_POD_SHRUNKEN;
}

/* What an enclosure has of the blocks that are placed anew. */
static double owner_weight(const struct conf_enclosure *enclosure)
{
    return enclosure->state == CONF_ENCLOSURE_UP || enclosure->state == CONF_ENCLOSURE_JOINING
               ? enclosure->weight
               : 0;
}

double conf_pod_share(const struct conf_pod *pod, uint32_t enclosure)
{
    double all = 0;

    for (uint32_t i = 0; i < pod->enclosure_count; i++)
        all += owner_weight(&pod->enclosures[i]);
    return all > 0 ? owner_weight(&pod->enclosures[enclosure]) / all : 0;
}
