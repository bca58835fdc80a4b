/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of an agent as metrics.
 *
 * Called by ctl's HTTP thread, one page at a time. Everything comes from one agent_stats.
 */
#include "agent_page.h"

#include <stdio.h>
#include <stdlib.h>

static void page_one(struct ctl_page *page, const char *name, const char *kind, const char *help,
                     double value)
{
    ctl_family(page, name, kind, help);
    ctl_sample(page, name, "", value);
}

/* ---- requests ------------------------------------------------------------------------------- */

static const struct {
    uint8_t op;
    const char *name;
} page_op_names[] = {
    {SHM_OP_GET, "get"},       {SHM_OP_PUT, "put"},     {SHM_OP_EXISTS, "exists"},
    {SHM_OP_REMOVE, "remove"}, {SHM_OP_FLUSH, "flush"}, {SHM_OP_EXISTS_MANY, "exists_many"},
};
#define PAGE_OPS (sizeof(page_op_names) / sizeof(page_op_names[0]))

static void page_ops(struct ctl_page *page, const struct agent_stats *stats)
{
    char labels[128];

    ctl_family(page, "icms_ops_total", "counter",
               "Requests answered, by how they ended; hits without the agent are not among them.");
    for (size_t i = 0; i < PAGE_OPS; i++)
        for (int err = 0; err < AGENT_STATS_ERRS; err++) {
            uint64_t count = stats->ops[page_op_names[i].op][err];

            if (count == 0 && err != ICMS_OK)
                continue;
            snprintf(labels, sizeof(labels), "op=\"%s\",status=\"%s\"", page_op_names[i].name,
                     icms_err_name((icms_err)err));
            ctl_sample(page, "icms_ops_total", labels, (double)count);
        }
    ctl_family(page, "icms_op_seconds", "histogram", "From taken out of the ring to answered.");
    ctl_histogram(page, "icms_op_seconds", "op=\"get\"", &stats->get_ns);
    ctl_histogram(page, "icms_op_seconds", "op=\"put\"", &stats->put_ns);
    ctl_histogram(page, "icms_op_seconds", "op=\"exists\"", &stats->exists_ns);
}

/* ---- tiers ---------------------------------------------------------------------------------- */

static void page_tiers(struct ctl_page *page, const struct agent_stats *stats)
{
    uint64_t dram = 0, local = 0, pod = 0, gets = 0, puts = 0, pod_in = 0, pod_out = 0;
    uint64_t misses[AGENT_STATS_MISSES] = {0};
    char labels[64];

    for (uint32_t i = 0; i < stats->volume_count; i++) {
        const struct agent_volume_stats *volume = &stats->volumes[i];

        dram += volume->hits_dram;
        local += volume->hits_local;
        pod += volume->hits_pod;
        gets += volume->get_bytes;
        puts += volume->put_bytes;
        for (int j = 0; j < AGENT_STATS_MISSES; j++)
            misses[j] += volume->misses[j];
    }
    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        pod_in += stats->enclosures[i].load_bytes;
        pod_out += stats->enclosures[i].store_bytes;
    }
    ctl_family(page, "icms_hits_total", "counter", "Gets that found the block, by where it was.");
    ctl_sample(page, "icms_hits_total", "tier=\"dram\"", (double)dram);
    ctl_sample(page, "icms_hits_total", "tier=\"local\"", (double)local);
    ctl_sample(page, "icms_hits_total", "tier=\"pod\"", (double)pod);
    ctl_family(page, "icms_misses_total", "counter", "Gets that missed, by reason.");
    for (int reason = ICMS_MISS_ABSENT; reason < ICMS_MISS_COUNT; reason++) {
        snprintf(labels, sizeof(labels), "reason=\"%s\"", icms_miss_name((enum icms_miss)reason));
        ctl_sample(page, "icms_misses_total", labels, (double)misses[reason]);
    }
    ctl_family(page, "icms_bytes_total", "counter",
               "Bytes of values; dram: handed to and taken from clients.");
    ctl_sample(page, "icms_bytes_total", "dir=\"load\",tier=\"dram\"", (double)gets);
    ctl_sample(page, "icms_bytes_total", "dir=\"load\",tier=\"local\"",
               (double)stats->local_load_bytes);
    ctl_sample(page, "icms_bytes_total", "dir=\"load\",tier=\"pod\"", (double)pod_in);
    ctl_sample(page, "icms_bytes_total", "dir=\"store\",tier=\"dram\"", (double)puts);
    ctl_sample(page, "icms_bytes_total", "dir=\"store\",tier=\"local\"",
               (double)stats->local_store_bytes);
    ctl_sample(page, "icms_bytes_total", "dir=\"store\",tier=\"pod\"", (double)pod_out);
}

static void page_limits(struct ctl_page *page, const struct agent_stats *stats)
{
    page_one(page, "icms_sheds_total", "counter", "Requests refused because too much was waiting.",
             (double)stats->sheds);
    page_one(page, "icms_deadline_misses_total", "counter",
             "Requests that ended by their deadline.", (double)stats->deadline_misses);
    page_one(page, "icms_checksum_errors_total", "counter",
             "Blocks that did not match their checksum.", (double)stats->checksum_errors);
    page_one(page, "icms_requests_under_way", "gauge", "Requests taken and not answered.",
             (double)stats->under_way);
    page_one(page, "icms_store_backlog_bytes", "gauge", "Bytes of stores under way.",
             (double)stats->backlog_bytes);
    page_one(page, "icms_clients", "gauge", "Attached client processes.", (double)stats->clients);
    page_one(page, "icms_clients_dropped_total", "counter",
             "Clients not served any more because of what they wrote into their ring.",
             (double)stats->clients_dropped);
}

/* ---- enclosures ----------------------------------------------------------------------------- */

static void page_enclosure(struct ctl_page *page, const struct agent_stats *stats, const char *name,
                           const char *kind, const char *help,
                           double (*value)(const struct agent_enclosure_stats *enclosure))
{
    char text[2 * LIMIT_NAME_BYTES];
    char labels[sizeof(text) + 32];

    ctl_family(page, name, kind, help);
    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        const struct agent_enclosure_stats *enclosure = &stats->enclosures[i];

        snprintf(labels, sizeof(labels), "enclosure=\"%s\"",
                 ctl_label(enclosure->name, text, sizeof(text)));
        ctl_sample(page, name, labels, value(enclosure));
    }
}

static double enclosure_state(const struct agent_enclosure_stats *enclosure)
{
    return enclosure->state == AGENT_ENCLOSURE_UP;
}

static double enclosure_exclusions(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->excluded_count;
}

static double enclosure_probes(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->probes;
}

static double enclosure_loads(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->load_bytes;
}

static double enclosure_stores(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->store_bytes;
}

static double enclosure_lacks(const struct agent_enclosure_stats *enclosure)
{
    return __builtin_popcountll(enclosure->lacking);
}

static void page_enclosures(struct ctl_page *page, const struct agent_stats *stats)
{
    page_enclosure(page, stats, "icms_enclosure_state", "gauge",
                   "1: takes loads and stores, 0: excluded, or not reached yet.", enclosure_state);
    page_enclosure(page, stats, "icms_enclosure_exclusions_total", "counter",
                   "Times it was excluded.", enclosure_exclusions);
    page_enclosure(page, stats, "icms_probes_total", "counter",
                   "Times it was tried again while excluded.", enclosure_probes);
    page_enclosure(page, stats, "icms_enclosure_load_bytes_total", "counter",
                   "Bytes loaded from it.", enclosure_loads);
    page_enclosure(page, stats, "icms_enclosure_store_bytes_total", "counter",
                   "Bytes stored to it.", enclosure_stores);
    page_enclosure(page, stats, "icms_enclosure_lacking_volumes", "gauge",
                   "Volumes of this agent that it lacks, or hides from this host.",
                   enclosure_lacks);
}

/* ---- volumes -------------------------------------------------------------------------------- */

static void page_volumes(struct ctl_page *page, const struct agent_stats *stats)
{
    static const struct {
        const char *name, *kind, *help;
    } families[] = {
        {"icms_arena_slots", "gauge", "Slots of a volume's arena."},
        {"icms_arena_used_slots", "gauge", "Slots that hold a block."},
        {"icms_arena_leased_slots", "gauge", "Lease entries of clients in use."},
        {"icms_arena_bytes", "gauge", "Memory of a volume's arena."},
        {"icms_arena_used_bytes", "gauge", "Bytes of the blocks in it."},
        {"icms_arena_evictions_total", "counter", "Blocks that made room for others."},
        {"icms_puts_total", "counter", "Blocks taken for storing."},
        {"icms_store_failures_total", "counter", "Accepted blocks that did not reach flash."},
    };

    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        ctl_family(page, families[f].name, families[f].kind, families[f].help);
        for (uint32_t i = 0; i < stats->volume_count; i++) {
            const struct agent_volume_stats *volume = &stats->volumes[i];
            const uint64_t values[] = {
                volume->slots,       volume->slots_used,       volume->slots_leased,
                volume->arena_bytes, volume->arena_used_bytes, volume->arena_evictions,
                volume->puts,        volume->store_failures};
            char text[2 * LIMIT_NAME_BYTES];
            char labels[sizeof(text) + 32];

            snprintf(labels, sizeof(labels), "volume=\"%s\"",
                     ctl_label(volume->name, text, sizeof(text)));
            ctl_sample(page, families[f].name, labels, (double)values[f]);
        }
    }
}

static void page_usage(struct ctl_page *page, const struct agent_stats *stats)
{
    uint64_t slots = 0, used = 0;

    for (uint32_t i = 0; i < stats->volume_count; i++) {
        slots += stats->volumes[i].slots;
        used += stats->volumes[i].slots_used;
    }
    page_one(page, "kv_cache_usage_perc", "gauge",
             "Share of the arenas' slots that hold a block; 1 is all of them.",
             slots == 0 ? 0 : (double)used / (double)slots);
}

/* ---- pages ---------------------------------------------------------------------------------- */

void agent_page_metrics(void *arg, struct ctl_page *page)
{
    struct agent_page *own = arg;

    agent_stats(own->agent, &own->stats);
    page_ops(page, &own->stats);
    page_tiers(page, &own->stats);
    page_limits(page, &own->stats);
    page_enclosures(page, &own->stats);
    page_volumes(page, &own->stats);
    page_usage(page, &own->stats);
}

void agent_page_status(void *arg, struct ctl_page *page)
{
    struct agent_page *own = arg;
    size_t bytes = agent_status(own->agent, NULL, 0) + 4096; /* it may grow meanwhile */
    char *text = malloc(bytes);

    if (text == NULL) {
        ctl_text(page, "{}");
        return;
    }
    (void)agent_status(own->agent, text, bytes);
    ctl_text(page, "%s", text);
    free(text);
}

bool agent_page_ready(void *arg, struct err_why *why)
{
    struct agent_page *own = arg;

    if (!atomic_load(&own->attaching)) {
        (void)err_set(why, ICMS_BUSY, "starting: enclosures are tried before clients are let in");
        return false;
    }
    return agent_ready(own->agent, own->arena_percent_max, why);
}
