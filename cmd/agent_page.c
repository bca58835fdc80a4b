/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of an agent as metrics.
 *
 * Called by ctl's HTTP thread, one page at a time. Everything comes from one agent_stats.
 */
#include "agent_page.h"
#include "agent_events.h"
#include "page_states.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- requests ------------------------------------------------------------------------------- */

static const struct {
    uint8_t op;
    const char *name;
} page_op_names[] = {
    {SHM_OP_GET, "get"},           {SHM_OP_PUT, "put"},     {SHM_OP_EXISTS, "exists"},
    {SHM_OP_REMOVE, "remove"},     {SHM_OP_FLUSH, "flush"}, {SHM_OP_EXISTS_MANY, "exists_many"},
    {SHM_OP_PRESTAGE, "prestage"},
};
#define PAGE_OPS (sizeof(page_op_names) / sizeof(page_op_names[0]))

static void page_ops(struct ctl_page *page, const struct agent_stats *stats)
{
    char labels[128];

    ctl_family(page, "icms_agent_ops_total", "counter",
               "Requests answered, by how they ended; hits without the agent are not among them.");
    for (size_t i = 0; i < PAGE_OPS; i++)
        for (int err = 0; err < AGENT_STATS_ERRS; err++) {
            uint64_t count = stats->ops[page_op_names[i].op][err];

            if (count == 0 && err != ICMS_OK)
                continue;
            snprintf(labels, sizeof(labels), "op=\"%s\",status=\"%s\"", page_op_names[i].name,
                     icms_err_name((icms_err)err));
            ctl_sample(page, "icms_agent_ops_total", labels, (double)count);
        }
    ctl_family(page, "icms_agent_op_seconds", "histogram",
               "From taken out of the ring to answered.");
    ctl_histogram(page, "icms_agent_op_seconds", "op=\"get\"", &stats->get_ns);
    ctl_histogram(page, "icms_agent_op_seconds", "op=\"put\"", &stats->put_ns);
    ctl_histogram(page, "icms_agent_op_seconds", "op=\"exists\"", &stats->exists_ns);
}

/* ---- hits and misses ------------------------------------------------------------------------ */

/* A volume's label, behind another one or alone; text has PAGE_LABELS bytes. */
#define PAGE_LABELS (2 * LIMIT_NAME_BYTES + 64)

static const char *volume_labels(const struct agent_volume_stats *volume, const char *key,
                                 const char *value, char *out)
{
    char name[2 * LIMIT_NAME_BYTES];

    (void)ctl_label(volume->name, name, sizeof(name));
    if (key == NULL)
        (void)snprintf(out, PAGE_LABELS, "volume=\"%s\"", name);
    else
        (void)snprintf(out, PAGE_LABELS, "%s=\"%s\",volume=\"%s\"", key, value, name);
    return out;
}

static void page_hits(struct ctl_page *page, const struct agent_stats *stats)
{
    static const char *const tiers[] = {"dram", "local", "pod"};
    char labels[PAGE_LABELS];

    ctl_family(page, "icms_agent_hits_total", "counter",
               "Gets that found the block, by where it was.");
    for (uint32_t i = 0; i < stats->volume_count; i++) {
        const struct agent_volume_stats *volume = &stats->volumes[i];
        const uint64_t hits[] = {volume->hits_dram, volume->hits_local, volume->hits_pod};

        for (int tier = 0; tier < 3; tier++)
            ctl_sample(page, "icms_agent_hits_total",
                       volume_labels(volume, "tier", tiers[tier], labels), (double)hits[tier]);
    }
    ctl_family(page, "icms_agent_misses_total", "counter", "Gets that missed, by reason.");
    for (uint32_t i = 0; i < stats->volume_count; i++)
        for (int reason = ICMS_MISS_ABSENT; reason < ICMS_MISS_COUNT; reason++)
            ctl_sample(page, "icms_agent_misses_total",
                       volume_labels(&stats->volumes[i], "reason",
                                     icms_miss_name((enum icms_miss)reason), labels),
                       (double)stats->volumes[i].misses[reason]);
}

static void page_matches(struct ctl_page *page, const struct agent_stats *stats)
{
    char labels[PAGE_LABELS];

    ctl_family(page, "icms_agent_keys_total", "counter",
               "Keys of exists and match; those of match are found up to the first hole.");
    for (uint32_t i = 0; i < stats->volume_count; i++) {
        const struct agent_volume_stats *volume = &stats->volumes[i];

        ctl_sample(page, "icms_agent_keys_total", volume_labels(volume, "result", "found", labels),
                   (double)volume->keys_found);
        ctl_sample(page, "icms_agent_keys_total", volume_labels(volume, "result", "missed", labels),
                   (double)volume->keys_missed);
    }
    ctl_family(page, "icms_agent_match_blocks", "histogram", "Blocks of matched prefixes.");
    for (uint32_t i = 0; i < stats->volume_count; i++)
        ctl_histogram_lengths(
            page, "icms_agent_match_blocks", volume_labels(&stats->volumes[i], NULL, NULL, labels),
            stats->volumes[i].matches, SHM_MATCH_BUCKETS, stats->volumes[i].matched);
}

static void page_bytes(struct ctl_page *page, const struct agent_stats *stats)
{
    uint64_t gets = 0, puts = 0;

    for (uint32_t i = 0; i < stats->volume_count; i++) {
        gets += stats->volumes[i].get_bytes;
        puts += stats->volumes[i].put_bytes;
    }
    ctl_family(page, "icms_agent_bytes_total", "counter",
               "Bytes of values; dram: handed to and taken from clients.");
    ctl_sample(page, "icms_agent_bytes_total", "dir=\"load\",tier=\"dram\"", (double)gets);
    ctl_sample(page, "icms_agent_bytes_total", "dir=\"load\",tier=\"local\"",
               (double)stats->local_load_bytes);
    ctl_sample(page, "icms_agent_bytes_total", "dir=\"load\",tier=\"pod\"",
               (double)stats->pod_load_bytes);
    ctl_sample(page, "icms_agent_bytes_total", "dir=\"store\",tier=\"dram\"", (double)puts);
    ctl_sample(page, "icms_agent_bytes_total", "dir=\"store\",tier=\"local\"",
               (double)stats->local_store_bytes);
    ctl_sample(page, "icms_agent_bytes_total", "dir=\"store\",tier=\"pod\"",
               (double)stats->pod_store_bytes);
}

/* What memory and the own drive have, and what that drive, beside a pod, did for loads and with
 * what memory evicted. */
static void page_tiers(struct ctl_page *page, const struct agent_stats *stats)
{
    const struct agent_tier_stats *tier = &stats->tier;
    const struct {
        const char *label;
        uint64_t count;
    } offers[] = {{"result=\"written\"", tier->demoted},
                  {"result=\"present\"", tier->kept},
                  {"result=\"unread\"", tier->unread},
                  {"result=\"budget\"", tier->refused},
                  {"result=\"busy\"", tier->shed},
                  {"result=\"failed\"", tier->failed_writes}},
      loads[] = {{"result=\"answered\"", tier->promoted},
                 {"result=\"late\"", tier->given_up},
                 {"result=\"busy\"", tier->passed},
                 {"result=\"failed\"", tier->failed_reads}};
    static const char *const states[] = {"state=\"up\"", "state=\"slow\"", "state=\"down\""};
    bool is_drive = stats->has_tier || stats->enclosure_count == 0;
    uint64_t blocks = 0, bytes = 0, evicted = 0;

    for (uint32_t i = 0; i < stats->volume_count; i++) {
        evicted += stats->volumes[i].arena_evictions;
        blocks += stats->volumes[i].slots_used;
        bytes += stats->volumes[i].arena_used_bytes;
    }
    ctl_family(page, "icms_agent_tier_blocks", "gauge", "Blocks in memory and on the own drive.");
    ctl_sample(page, "icms_agent_tier_blocks", "tier=\"dram\"", (double)blocks);
    if (is_drive)
        ctl_sample(page, "icms_agent_tier_blocks", "tier=\"local\"", (double)tier->blocks);
    ctl_family(page, "icms_agent_tier_bytes", "gauge", "What these blocks take.");
    ctl_sample(page, "icms_agent_tier_bytes", "tier=\"dram\"", (double)bytes);
    if (is_drive)
        ctl_sample(page, "icms_agent_tier_bytes", "tier=\"local\"", (double)tier->bytes);
    ctl_family(page, "icms_agent_tier_evictions_total", "counter",
               "Blocks that memory and the own drive evicted.");
    ctl_sample(page, "icms_agent_tier_evictions_total", "tier=\"dram\"", (double)evicted);
    if (is_drive)
        ctl_sample(page, "icms_agent_tier_evictions_total", "tier=\"local\"",
                   (double)tier->evicted);
    ctl_family(page, "icms_agent_drive_state", "gauge", "1, with the state of the own drive.");
    ctl_sample(page, "icms_agent_drive_state", is_drive ? states[tier->state] : "state=\"none\"",
               1);
    ctl_metric(page, "icms_agent_drive_slow_total", "counter", "Times that it became slow.",
               (double)tier->slow_total);
    ctl_family(page, "icms_agent_drive_offers_total", "counter",
               "Blocks that memory evicted, by what the own drive beside a pod did with them.");
    for (size_t i = 0; i < sizeof(offers) / sizeof(offers[0]); i++)
        ctl_sample(page, "icms_agent_drive_offers_total", offers[i].label, (double)offers[i].count);
    ctl_metric(page, "icms_agent_drive_deletions_total", "counter",
               "Blocks that the own drive beside a pod deleted for puts and removes.",
               (double)tier->forgotten);
    ctl_metric(page, "icms_agent_drive_prestaged_total", "counter",
               "Blocks that were written to the own drive beside a pod for hints.",
               (double)tier->prestaged);
    ctl_metric(page, "icms_agent_drive_stores_total", "counter",
               "Blocks of exclusive runs that it has instead of the pod.", (double)tier->stored);
    ctl_metric(page, "icms_agent_drive_budget_bytes", "gauge",
               "Its write budget, bytes a day; 0: none.", (double)tier->budget_bytes_day);
    ctl_metric(page, "icms_agent_drive_budget_left_bytes", "gauge",
               "What of it may be written at once.", (double)tier->budget_left_bytes);
    ctl_family(page, "icms_agent_drive_loads_total", "counter",
               "Loads of blocks that the own drive beside a pod had, by what became of them.");
    for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++)
        ctl_sample(page, "icms_agent_drive_loads_total", loads[i].label, (double)loads[i].count);
}

static void page_limits(struct ctl_page *page, const struct agent_stats *stats)
{
    ctl_metric(page, "icms_agent_sheds_total", "counter",
               "Requests refused because too much was waiting.", (double)stats->sheds);
    ctl_metric(page, "icms_agent_deadline_misses_total", "counter",
               "Requests that ended by their deadline.", (double)stats->deadline_misses);
    ctl_metric(page, "icms_agent_checksum_errors_total", "counter",
               "Blocks that did not match their checksum.", (double)stats->checksum_errors);
    ctl_metric(page, "icms_agent_requests_in_flight", "gauge", "Requests taken and not answered.",
               (double)stats->in_flight);
    ctl_metric(page, "icms_agent_store_backlog_bytes", "gauge", "Bytes of stores in flight.",
               (double)stats->backlog_bytes);
    ctl_metric(page, "icms_agent_clients", "gauge", "Attached client processes.",
               (double)stats->clients);
    ctl_metric(page, "icms_agent_clients_dropped_total", "counter",
               "Clients not served any more because of what they wrote into their ring.",
               (double)stats->clients_dropped);
    ctl_metric(page, "icms_agent_clients_refused_total", "counter",
               "Users that asked to attach and may use no volume, or had too many clients.",
               (double)stats->clients_refused);
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

static double enclosure_slow(const struct agent_enclosure_stats *enclosure)
{
    return enclosure->state == AGENT_ENCLOSURE_SLOW;
}

static double enclosure_slow_total(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->slow_total;
}

static double enclosure_share(const struct agent_enclosure_stats *enclosure)
{
    return enclosure->share_percent / 100.0;
}

static double enclosure_auths(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->auths;
}

static double enclosure_auths_refused(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->auths_refused;
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
    return __builtin_popcountll(enclosure->missing);
}

static double enclosure_settings_differ(const struct agent_enclosure_stats *enclosure)
{
    return enclosure->enclosures_differ + enclosure->weights_differ +
           (enclosure->epoch_there != 0) + __builtin_popcountll(enclosure->run_blocks_differ) +
           __builtin_popcountll(enclosure->value_max_differ);
}

static double enclosure_checksum_errors(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->checksum_errors;
}

/* ---- links ---------------------------------------------------------------------------------- */

static void page_link(struct ctl_page *page, const struct agent_stats *stats, const char *name,
                      const char *kind, const char *help,
                      double (*value)(const struct agent_link_stats *link))
{
    char text[2 * LIMIT_NAME_BYTES], address[LIMIT_ADDRESS_BYTES];
    char labels[sizeof(text) + sizeof(address) + 32];

    ctl_family(page, name, kind, help);
    for (uint32_t i = 0; i < stats->enclosure_count; i++)
        for (uint32_t k = 0; k < stats->enclosures[i].link_count; k++) {
            const struct agent_link_stats *link = &stats->enclosures[i].links[k];

            snprintf(labels, sizeof(labels), "enclosure=\"%s\",address=\"%s\"",
                     ctl_label(stats->enclosures[i].name, text, sizeof(text)),
                     loop_addr_format(&link->addr, address, sizeof(address)));
            ctl_sample(page, name, labels, value(link));
        }
}

static double link_up(const struct agent_link_stats *link)
{
    return link->state == AGENT_ENCLOSURE_UP;
}

static double link_slow(const struct agent_link_stats *link)
{
    return link->state == AGENT_ENCLOSURE_SLOW;
}

static double link_exclusions(const struct agent_link_stats *link)
{
    return (double)link->excluded_count;
}

static double link_slow_total(const struct agent_link_stats *link)
{
    return (double)link->slow_total;
}

static double link_commands(const struct agent_link_stats *link)
{
    return (double)link->commands;
}

static double link_in_flight(const struct agent_link_stats *link)
{
    return (double)link->in_flight;
}

static double link_in_flight_bytes(const struct agent_link_stats *link)
{
    return (double)link->in_flight_bytes;
}

static double link_loads(const struct agent_link_stats *link)
{
    return (double)link->load_bytes;
}

static double link_stores(const struct agent_link_stats *link)
{
    return (double)link->store_bytes;
}

/* One for each address of an enclosure: LIMIT_ENCLOSURES * LIMIT_LINKS at most. */
static void page_links(struct ctl_page *page, const struct agent_stats *stats)
{
    page_link(page, stats, "icms_agent_link_state", "gauge",
              "1 when commands are sent to the enclosure by this address, else 0.", link_up);
    page_link(page, stats, "icms_agent_link_slow", "gauge",
              "1 when commands by this address take much longer than by the others, else 0.",
              link_slow);
    page_link(page, stats, "icms_agent_link_exclusions_total", "counter",
              "Times the address was lost.", link_exclusions);
    page_link(page, stats, "icms_agent_link_slow_total", "counter", "Times it became slow.",
              link_slow_total);
    page_link(page, stats, "icms_agent_link_commands_total", "counter", "Commands sent by it.",
              link_commands);
    page_link(page, stats, "icms_agent_link_in_flight", "gauge",
              "Commands sent by it that are not answered.", link_in_flight);
    page_link(page, stats, "icms_agent_link_in_flight_bytes", "gauge",
              "Bytes of their values, and 1024 for each command: the next one goes by the address "
              "with the least.",
              link_in_flight_bytes);
    page_link(page, stats, "icms_agent_link_load_bytes_total", "counter", "Bytes loaded by it.",
              link_loads);
    page_link(page, stats, "icms_agent_link_store_bytes_total", "counter", "Bytes stored by it.",
              link_stores);
}

static double enclosure_failovers(const struct agent_enclosure_stats *enclosure)
{
    return (double)enclosure->failovers;
}

static void page_enclosure_latency(struct ctl_page *page, const struct agent_stats *stats)
{
    static const char *const ops[AGENT_LATENCY_COUNT] = {"load", "store", "exist"};
    char text[2 * LIMIT_NAME_BYTES];
    char labels[sizeof(text) + 32];

    ctl_family(page, "icms_agent_enclosure_op_seconds", "histogram",
               "From a command sent to the enclosure to its answer.");
    for (uint32_t i = 0; i < stats->enclosure_count; i++)
        for (int op = 0; op < AGENT_LATENCY_COUNT; op++) {
            snprintf(labels, sizeof(labels), "enclosure=\"%s\",op=\"%s\"",
                     ctl_label(stats->enclosures[i].name, text, sizeof(text)), ops[op]);
            ctl_histogram(page, "icms_agent_enclosure_op_seconds", labels,
                          &stats->enclosures[i].op_ns[op]);
        }
}

/* Of what was expected of a load when it was asked for. */
static void page_estimates(struct ctl_page *page, const struct agent_stats *stats)
{
    static const struct hist none;
    char text[2 * LIMIT_NAME_BYTES];
    char labels[sizeof(text) + 32];
    struct hist pod = none;

    for (uint32_t i = 0; i < stats->enclosure_count; i++)
        hist_merge(&pod, &stats->enclosures[i].estimate.errors);
    ctl_family(page, "icms_agent_estimate_error_ratio", "histogram",
               "What loads that were asked for together took more, or less, than was expected.");
    ctl_histogram_ratios(page, "icms_agent_estimate_error_ratio", "tier=\"local\"",
                         &stats->tier.estimate.errors);
    ctl_histogram_ratios(page, "icms_agent_estimate_error_ratio", "tier=\"pod\"", &pod);
    ctl_family(page, "icms_agent_enclosure_estimate_bytes_per_second", "gauge",
               "Bandwidth of loads that is expected; 0: nothing is known.");
    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        (void)snprintf(labels, sizeof(labels), "enclosure=\"%s\"",
                       ctl_label(stats->enclosures[i].name, text, sizeof(text)));
        ctl_sample(page, "icms_agent_enclosure_estimate_bytes_per_second", labels,
                   (double)stats->enclosures[i].estimate.bytes_per_s);
    }
}

static void page_pod(struct ctl_page *page, const struct agent_stats *stats)
{
    char text[2 * LIMIT_NAME_BYTES];
    char labels[sizeof(text) + 48];

    ctl_metric(page, "icms_agent_epoch", "gauge", "Epoch of the set of enclosures that is in use.",
               (double)stats->epoch);
    ctl_metric(page, "icms_agent_map_refused", "gauge",
               "1: the map in the file of `pod` is refused, and not in use.",
               stats->is_map_refused);
    ctl_family(page, "icms_agent_enclosure_pod_state", "gauge", "1, with its state in the pod.");
    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        const struct agent_enclosure_stats *enclosure = &stats->enclosures[i];

        snprintf(labels, sizeof(labels), "enclosure=\"%s\",state=\"%s\"",
                 ctl_label(enclosure->name, text, sizeof(text)),
                 agent_pod_state_name(enclosure->pod_state));
        ctl_sample(page, "icms_agent_enclosure_pod_state", labels, 1);
    }
}

static void page_enclosures(struct ctl_page *page, const struct agent_stats *stats)
{
    page_pod(page, stats);
    page_enclosure(page, stats, "icms_agent_enclosure_state", "gauge",
                   "1: takes loads and stores, 0: excluded, slow, or not reached yet.",
                   enclosure_state);
    page_enclosure(page, stats, "icms_agent_enclosure_exclusions_total", "counter",
                   "Times it was excluded.", enclosure_exclusions);
    page_enclosure(page, stats, "icms_agent_enclosure_settings_differ", "gauge",
                   "Settings in which it or its other hosts differ: blocks are not found, or do "
                   "not fit; or its target has a later pod map.",
                   enclosure_settings_differ);
    page_enclosure(page, stats, "icms_agent_enclosure_probes_total", "counter",
                   "Times it was tried again while excluded or slow.", enclosure_probes);
    page_enclosure(page, stats, "icms_agent_enclosure_slow", "gauge",
                   "1: passed over for new loads and stores, for it is much later than the others.",
                   enclosure_slow);
    page_enclosure(page, stats, "icms_agent_enclosure_slow_total", "counter",
                   "Times it became slow.", enclosure_slow_total);
    page_enclosure(page, stats, "icms_agent_enclosure_share", "gauge",
                   "Part of its new blocks that it takes: less than 1 while it is late now and "
                   "then.",
                   enclosure_share);
    page_enclosure(page, stats, "icms_agent_enclosure_auths_total", "counter",
                   "Connections to it that authenticated.", enclosure_auths);
    page_enclosure(
        page, stats, "icms_agent_enclosure_auths_refused_total", "counter",
        "Attempts that ended because it refused this host's secret, or did not prove its "
        "own.",
        enclosure_auths_refused);
    page_enclosure(page, stats, "icms_agent_enclosure_load_bytes_total", "counter",
                   "Bytes loaded from it.", enclosure_loads);
    page_enclosure(page, stats, "icms_agent_enclosure_store_bytes_total", "counter",
                   "Bytes stored to it.", enclosure_stores);
    page_enclosure(page, stats, "icms_agent_enclosure_missing_volumes", "gauge",
                   "Volumes of this agent that it does not have, or does not allow for this host.",
                   enclosure_lacks);
    page_enclosure(page, stats, "icms_agent_enclosure_checksum_errors_total", "counter",
                   "Blocks of it that did not match their checksum, here or there.",
                   enclosure_checksum_errors);
    page_enclosure(page, stats, "icms_agent_enclosure_failovers_total", "counter",
                   "Commands that another of its addresses took over from one that was lost.",
                   enclosure_failovers);
    page_links(page, stats);
    page_enclosure_latency(page, stats);
    page_estimates(page, stats);
}

/* ---- volumes -------------------------------------------------------------------------------- */

static void page_volumes(struct ctl_page *page, const struct agent_stats *stats)
{
    static const struct {
        const char *name, *kind, *help;
    } families[] = {
        {"icms_agent_arena_slots", "gauge", "Blocks that a volume's arena holds at most."},
        {"icms_agent_arena_used_slots", "gauge", "Blocks in it."},
        {"icms_agent_arena_leased_slots", "gauge", "Lease entries of clients in use."},
        {"icms_agent_arena_bytes", "gauge", "Memory that a volume has now."},
        {"icms_agent_arena_used_bytes", "gauge", "Bytes of their values."},
        {"icms_agent_drive_blocks", "gauge", "Blocks of a volume on the own drive."},
        {"icms_agent_drive_bytes", "gauge", "What these blocks take."},
        {"icms_agent_puts_total", "counter", "Blocks taken for storing."},
        {"icms_agent_store_failures_total", "counter", "Accepted blocks that did not reach flash."},
        {"icms_agent_former_found_total", "counter",
         "Keys that their owner missed and their former owner had."},
        {"icms_agent_former_missed_total", "counter", "Keys that the former owner missed as well."},
        {"icms_agent_moved_total", "counter", "Blocks stored at their owner for that."},
        {"icms_agent_moved_bytes_total", "counter", "Bytes of their values."},
        {"icms_agent_moves_shed_total", "counter",
         "Blocks that were not: more urgent work, or no success."},
        {"icms_agent_volume_generation", "gauge", "The generation of a volume."},
    };

    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        ctl_family(page, families[f].name, families[f].kind, families[f].help);
        for (uint32_t i = 0; i < stats->volume_count; i++) {
            const struct agent_volume_stats *volume = &stats->volumes[i];
            const uint64_t values[] = {volume->slots,
                                       volume->slots_used,
                                       volume->slots_leased,
                                       volume->arena_bytes,
                                       volume->arena_used_bytes,
                                       volume->drive_blocks,
                                       volume->drive_bytes,
                                       volume->puts,
                                       volume->store_failures,
                                       volume->former_found,
                                       volume->former_missed,
                                       volume->moved,
                                       volume->moved_bytes,
                                       volume->moves_shed,
                                       volume->identity.generation};
            char labels[PAGE_LABELS];

            ctl_sample(page, families[f].name, volume_labels(volume, NULL, NULL, labels),
                       (double)values[f]);
        }
    }
    ctl_family(page, "icms_agent_arena_evictions_total", "counter",
               "Blocks that memory evicted, by what for.");
    for (uint32_t i = 0; i < stats->volume_count; i++)
        for (int k = 0; k < AGENT_EVICTED_COUNT; k++) {
            char labels[PAGE_LABELS];

            ctl_sample(page, "icms_agent_arena_evictions_total",
                       volume_labels(&stats->volumes[i], "reason",
                                     agent_evicted_name((enum agent_evicted)k), labels),
                       (double)stats->volumes[i].arena_evicted[k]);
        }
    ctl_family(page, "icms_agent_arena_eviction_age_seconds", "histogram",
               "Time in the arena of the blocks that made room for others.");
    for (uint32_t i = 0; i < stats->volume_count; i++) {
        char labels[PAGE_LABELS];

        ctl_histogram_ages(page, "icms_agent_arena_eviction_age_seconds",
                           volume_labels(&stats->volumes[i], NULL, NULL, labels),
                           &stats->volumes[i].evicted_age_ns);
    }
}

/* ---- hints ---------------------------------------------------------------------------------- */

static void page_hint_results(struct ctl_page *page, const struct agent_stats *stats)
{
    static const char name[] = "icms_agent_prestage_hints_total";
    char labels[PAGE_LABELS];

    ctl_family(page, name, "counter", "Hints that blocks will be asked for soon, by their end.");
    for (uint32_t i = 0; i < stats->volume_count; i++) {
        const struct agent_volume_stats *volume = &stats->volumes[i];

        for (int end = 0; end < AGENT_HINT_ENDS; end++)
            ctl_sample(page, name,
                       volume_labels(volume, "result",
                                     agent_hint_end_name((enum agent_hint_end)end), labels),
                       (double)volume->prestage.ended[end]);
        ctl_sample(page, name, volume_labels(volume, "result", "refused_full", labels),
                   (double)volume->prestage.full);
        ctl_sample(page, name, volume_labels(volume, "result", "refused_passed", labels),
                   (double)volume->prestage.passed);
    }
}

static void page_prestage(struct ctl_page *page, const struct agent_stats *stats)
{
    static const struct {
        const char *name, *kind, *help;
    } families[] = {
        {"icms_agent_prestage_queued", "gauge", "Hints that are not begun."},
        {"icms_agent_prestage_loading", "gauge", "Hints whose blocks are being loaded."},
        {"icms_agent_prestage_waiting", "gauge", "Hints whose blocks wait to be asked for."},
        {"icms_agent_prestage_kept_bytes", "gauge", "Memory that is kept for them."},
        {"icms_agent_prestage_load_bytes_total", "counter", "Bytes loaded for hints alone."},
        {"icms_agent_prestage_unused_bytes_total", "counter",
         "Bytes of these that were not asked for in time."},
        {"icms_agent_pins", "gauge", "Blocks that are pinned, or that pins wait for."},
        {"icms_agent_pins_refused_total", "counter",
         "Pins that were refused, or became hints, for a limit."},
        {"icms_agent_pins_again_total", "counter",
         "Times that a pinned block went, and was brought again."},
    };
    char labels[PAGE_LABELS];

    page_hint_results(page, stats);
    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        ctl_family(page, families[f].name, families[f].kind, families[f].help);
        for (uint32_t i = 0; i < stats->volume_count; i++) {
            const struct agent_prestage_stats *prestage = &stats->volumes[i].prestage;
            const uint64_t values[] = {
                prestage->queued,     prestage->loading,      prestage->waiting,
                prestage->kept_bytes, prestage->load_bytes,   prestage->unused_bytes,
                prestage->pins,       prestage->pins_refused, prestage->pins_again};

            ctl_sample(page, families[f].name,
                       volume_labels(&stats->volumes[i], NULL, NULL, labels), (double)values[f]);
        }
    }
    ctl_family(page, "icms_agent_prestage_late_seconds", "histogram",
               "How much later than asked for, or than their deadline, late blocks arrived.");
    for (uint32_t i = 0; i < stats->volume_count; i++)
        ctl_histogram(page, "icms_agent_prestage_late_seconds",
                      volume_labels(&stats->volumes[i], NULL, NULL, labels),
                      &stats->volumes[i].prestage.late_ns);
}

/* ---- users ---------------------------------------------------------------------------------- */

/* Users that did something with a volume, and the owner: AGENT_USERS at most for each. */
static void page_users(struct ctl_page *page, struct agent *agent, const struct agent_stats *stats)
{
    static const struct {
        const char *name, *help;
    } families[] = {
        {"icms_agent_user_requests_total", "Requests of a user that were answered."},
        {"icms_agent_user_load_bytes_total", "Bytes of values that it loaded."},
        {"icms_agent_user_load_local_bytes_total",
         "Bytes of these that came from the agent's own drive."},
        {"icms_agent_user_load_pod_bytes_total", "Bytes of these that came from the pod."},
        {"icms_agent_user_store_bytes_total", "Bytes of values that it put."},
        {"icms_agent_user_waits_total",
         "Requests of it that waited for an operation or for space in the arena."},
        {"icms_agent_user_wait_seconds_total", "Time that they waited."},
        {"icms_agent_user_sheds_total",
         "Requests of it that were refused because too much was waiting."},
    };
    struct agent_user_stats user;
    char labels[PAGE_LABELS], name[16];

    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        ctl_family(page, families[f].name, "counter", families[f].help);
        for (uint32_t place = 0; place < AGENT_USERS; place++)
            for (uint32_t i = 0; i < stats->volume_count; i++) {
                if (!agent_user_stats(agent, place, i, &user))
                    continue;
                const double values[] = {(double)user.requests,         (double)user.load_bytes,
                                         (double)user.load_local_bytes, (double)user.load_pod_bytes,
                                         (double)user.store_bytes,      (double)user.waits,
                                         (double)user.wait_us / 1e6,    (double)user.sheds};

                (void)snprintf(name, sizeof(name), "%u", user.uid);
                ctl_sample(
                    page, families[f].name,
                    volume_labels(&stats->volumes[i], "user", user.owner ? "owner" : name, labels),
                    values[f]);
            }
    }
}

/* What users have pinned, in which tier. */
static void page_pins(struct ctl_page *page, struct agent *agent, const struct agent_stats *stats)
{
    static const char *const names[] = {"icms_agent_user_pinned_memory_bytes",
                                        "icms_agent_user_pinned_drive_bytes"};
    static const char *const help[] = {"Bytes of the agent's memory that a user has pinned.",
                                       "Bytes of the agent's own drive that a user has pinned."};
    struct agent_user_stats user;
    char labels[PAGE_LABELS], name[16];

    for (int tier = 0; tier < 2; tier++) {
        ctl_family(page, names[tier], "gauge", help[tier]);
        for (uint32_t place = 0; place < AGENT_USERS; place++)
            for (uint32_t i = 0; i < stats->volume_count; i++) {
                if (!agent_user_stats(agent, place, i, &user))
                    continue;
                (void)snprintf(name, sizeof(name), "%u", user.uid);
                ctl_sample(
                    page, names[tier],
                    volume_labels(&stats->volumes[i], "user", user.owner ? "owner" : name, labels),
                    (double)(tier == 0 ? user.pinned_bytes : user.pinned_drive_bytes));
            }
    }
}

static void page_usage(struct ctl_page *page, const struct agent_stats *stats)
{
    uint64_t used = 0;

    for (uint32_t i = 0; i < stats->volume_count; i++)
        used += stats->volumes[i].arena_used_bytes;
    ctl_metric(page, "icms_agent_memory_bytes", "gauge", "Memory for blocks of all volumes.",
               (double)stats->memory_bytes);
    ctl_metric(page, "icms_agent_memory_usage_ratio", "gauge",
               "Share of this memory that values take.",
               stats->memory_bytes == 0 ? 0 : (double)used / (double)stats->memory_bytes);
}

/* ---- pages ---------------------------------------------------------------------------------- */

void agent_page_metrics(void *arg, struct ctl_page *page)
{
    struct agent_page *own = arg;
    struct err_why why = {""};

    agent_stats(own->agent, &own->stats);
    ctl_metric(page, "icms_agent_ready", "gauge", "1: /readyz answers 200, 0: it answers 503.",
               agent_page_ready(own, &why));
    page_ops(page, &own->stats);
    page_states(page, own->stats.states, AGENT_STATS_STATES,
                (struct page_states_names){"icms_agent_requests_in_state_total",
                                           "Requests that were in this state and are answered.",
                                           "icms_agent_request_state_seconds_total"});
    page_hits(page, &own->stats);
    page_matches(page, &own->stats);
    page_bytes(page, &own->stats);
    page_tiers(page, &own->stats);
    page_limits(page, &own->stats);
    page_enclosures(page, &own->stats);
    page_volumes(page, &own->stats);
    page_prestage(page, &own->stats);
    agent_events_metrics(own->events, page);
    page_users(page, own->agent, &own->stats);
    page_pins(page, own->agent, &own->stats);
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
    return agent_ready(own->agent, own->memory_percent_max, why);
}
