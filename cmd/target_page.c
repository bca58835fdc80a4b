/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of an enclosure as metrics and as JSON.
 *
 * Called by ctl's HTTP thread, one page at a time. Everything comes from one target_stats.
 */
#include "target_page.h"
#include "page_states.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "target/target.h"

/* Large, and used by one thread at a time. */
static struct target_stats stats;

static struct target_page_pod page_pod;
static pthread_mutex_t page_pod_lock = PTHREAD_MUTEX_INITIALIZER;

void target_page_pod_set(const struct target_page_pod *pod)
{
    check(pthread_mutex_lock(&page_pod_lock) == 0);
    page_pod = *pod;
    check(pthread_mutex_unlock(&page_pod_lock) == 0);
}

static struct target_page_pod pod_now(void)
{
    struct target_page_pod pod;

    check(pthread_mutex_lock(&page_pod_lock) == 0);
    pod = page_pod;
    check(pthread_mutex_unlock(&page_pod_lock) == 0);
    return pod;
}

static void page_ops(struct ctl_page *page)
{
    const struct nvmf_target_stats *nvmf = &stats.nvmf;
    char labels[128];

    ctl_family(page, "icms_target_ops_total", "counter", "Commands finished, by how they ended.");
    for (int op = 0; op < NVMF_TARGET_OP_COUNT; op++)
        for (int err = 0; err < NVMF_TARGET_ERRS; err++) {
            if (nvmf->ops[op][err] == 0 && err != ICMS_OK)
                continue;
            snprintf(labels, sizeof(labels), "op=\"%s\",status=\"%s\"",
                     nvmf_target_op_name((enum nvmf_target_op)op), icms_err_name((icms_err)err));
            ctl_sample(page, "icms_target_ops_total", labels, (double)nvmf->ops[op][err]);
        }
    ctl_family(page, "icms_target_op_seconds", "histogram", "From a command's arrival to its end.");
    for (int op = 0; op < NVMF_TARGET_OP_COUNT; op++) {
        snprintf(labels, sizeof(labels), "op=\"%s\"", nvmf_target_op_name((enum nvmf_target_op)op));
        ctl_histogram(page, "icms_target_op_seconds", labels, &nvmf->op_ns[op]);
    }
    ctl_family(page, "icms_target_bytes_total", "counter", "Bytes of values received and sent.");
    ctl_sample(page, "icms_target_bytes_total", "dir=\"in\"", (double)nvmf->bytes_in);
    ctl_sample(page, "icms_target_bytes_total", "dir=\"out\"", (double)nvmf->bytes_out);
    ctl_family(page, "icms_target_misses_total", "counter",
               "Loads and exists that missed, by reason.");
    for (int reason = ICMS_MISS_ABSENT; reason < ICMS_MISS_COUNT; reason++) {
        snprintf(labels, sizeof(labels), "reason=\"%s\"", icms_miss_name((enum icms_miss)reason));
        ctl_sample(page, "icms_target_misses_total", labels, (double)nvmf->misses[reason]);
    }
    ctl_metric(page, "icms_target_sheds_total", "counter",
               "Stores refused because too much was waiting for memory.", (double)nvmf->sheds);
    ctl_metric(page, "icms_target_quota_errors_total", "counter",
               "Stores refused because the quota or the drive has no room for the value.",
               (double)stats.quota_errors);
}

static void page_volumes(struct ctl_page *page)
{
    static const struct {
        const char *name, *kind, *help;
    } families[] = {
        {"icms_target_hits_total", "counter", "Loads that found the block."},
        {"icms_target_used_bytes", "gauge", "Flash held by live blocks of a volume."},
        {"icms_target_quota_bytes", "gauge", "What a volume may use; 0: all there is."},
        {"icms_target_blocks", "gauge", "Live blocks of a volume."},
        {"icms_target_evictions_total", "counter",
         "Blocks evicted since the drives were formatted."},
        {"icms_target_volume_generation", "gauge", "The generation of a volume."},
    };

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        ctl_family(page, families[i].name, families[i].kind, families[i].help);
        for (uint32_t v = 0; v < stats.volume_count; v++) {
            const struct target_volume_stats *volume = &stats.volumes[v];
            const uint64_t values[] = {
                volume->hits,         volume->store.bytes,     volume->store.quota_bytes,
                volume->store.blocks, volume->store.evictions, volume->generation};
            char name[2 * LIMIT_NAME_BYTES];
            char labels[sizeof(name) + 16];

            snprintf(labels, sizeof(labels), "volume=\"%s\"",
                     ctl_label(volume->name, name, sizeof(name)));
            ctl_sample(page, families[i].name, labels, (double)values[i]);
        }
    }
}

static const char *const class_names[NVMF_TARGET_CLASSES] = {
    [NVMF_TARGET_LOADS] = "load", [NVMF_TARGET_STORES] = "store"};

static void page_tenants(struct ctl_page *page)
{
    static const struct {
        const char *name, *help;
    } families[] = {
        {"icms_target_tenant_ops_total",
         "Loads and stores of a tenant that succeeded, and as loads keys that it looked for."},
        {"icms_target_tenant_bytes_total", "Bytes of their values."},
        {"icms_target_tenant_waits_total",
         "Commands of a tenant that waited for their turn or for memory."},
        {"icms_target_tenant_wait_seconds_total", "Time that they waited."},
    };
    char name[2 * LIMIT_NAME_BYTES];
    char labels[sizeof(name) + 48];

    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        ctl_family(page, families[i].name, "counter", families[i].help);
        for (uint32_t t = 0; t < stats.tenant_count; t++)
            for (int class = 0; class < NVMF_TARGET_CLASSES; class ++) {
                const struct nvmf_target_tenant_stats *nvmf = &stats.tenants[t].nvmf;
                const double values[] = {(double)nvmf->ops[class], (double)nvmf->bytes[class],
                                         (double)nvmf->waits[class],
                                         (double)nvmf->wait_ns[class] / 1e9};

                (void)snprintf(labels, sizeof(labels), "tenant=\"%s\",class=\"%s\"",
                               ctl_label(stats.tenants[t].spec.name, name, sizeof(name)),
                               class_names[class]);
                ctl_sample(page, families[i].name, labels, values[i]);
            }
    }
    ctl_family(page, "icms_target_tenant_sheds_total", "counter",
               "Stores of a tenant that were refused because too much of it was waiting.");
    for (uint32_t t = 0; t < stats.tenant_count; t++) {
        (void)snprintf(labels, sizeof(labels), "tenant=\"%s\"",
                       ctl_label(stats.tenants[t].spec.name, name, sizeof(name)));
        ctl_sample(page, "icms_target_tenant_sheds_total", labels,
                   (double)stats.tenants[t].nvmf.sheds);
    }
}

/* Bytes that went to the device for each byte of a record that was stored. */
static double page_amplification(const struct store_stats *store)
{
    return store->admitted_bytes == 0
               ? 0
               : (double)store->device_write_bytes / (double)store->admitted_bytes;
}

#define DRIVE_LABELS (LIMIT_PATH_BYTES + 96)

static const char *drive_labels(const struct target_drive_stats *drive, const char *more,
                                char out[DRIVE_LABELS])
{
    char path[LIMIT_PATH_BYTES + 64];

    (void)snprintf(out, DRIVE_LABELS, "drive=\"%s\"%s", ctl_label(drive->path, path, sizeof(path)),
                   more);
    return out;
}

static void page_drives(struct ctl_page *page)
{
    static const struct {
        const char *name, *kind, *help;
    } families[] = {
        {"icms_target_drive_state", "gauge", "1: in service, 0: out of service."},
        {"icms_target_drive_slow", "gauge", "1: passed over for new loads and stores, for now."},
        {"icms_target_drive_draining", "gauge", "1: takes no new blocks, and gives what it has."},
        {"icms_target_drive_drain_stopped", "gauge",
         "1: a draining drive keeps what is not loaded, because the others are full."},
        {"icms_target_drive_part", "gauge",
         "Part of its share of new blocks that a drive gets for its health; 1 is all of it."},
        {"icms_target_drive_moved_total", "counter",
         "Blocks that went from a draining drive to others."},
        {"icms_target_drive_blocks", "gauge", "Blocks on the drive."},
        {"icms_target_drive_slow_total", "counter", "How often a drive became slow."},
        {"icms_target_drive_written_bytes_total", "counter", "Bytes written to the device."},
        {"icms_target_drive_admitted_bytes_total", "counter",
         "Bytes of records of values that were stored."},
        {"icms_target_drive_discarded_bytes_total", "counter",
         "Bytes the device was told are free."},
        {"icms_target_drive_write_streams", "gauge",
         "Write streams of the device, into which volumes are sorted; 0: it has none."},
        {"icms_target_drive_refused_total", "counter",
         "Stores that the write budget did not allow."},
        {"icms_target_drive_budget_bytes", "gauge",
         "What may be written a day; 0: any number of bytes."},
        {"icms_target_drive_budget_left_bytes", "gauge", "What of it may be written at once."},
        {"icms_target_drive_write_amplification", "gauge",
         "Bytes written to the device per admitted byte."},
        {"icms_target_drive_segments_free", "gauge", "Segments that hold nothing."},
        {"icms_target_drive_segments", "gauge", "Segments in all."},
        {"icms_target_drive_checksum_errors_total", "counter",
         "Damage met on the drive: values, headers, summaries."},
        {"icms_target_drive_io_errors_total", "counter",
         "Reads and writes that the device failed."},
        {"icms_target_drive_no_space_errors_total", "counter",
         "Writes for which the file system, or the pool below it, had no space."},
        {"icms_target_drive_recovery_seconds", "gauge",
         "What the last start took to read the drive."},
        {"icms_target_drive_recovered_blocks", "gauge", "Blocks that the last start found."},
    };

    for (unsigned i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        ctl_family(page, families[i].name, families[i].kind, families[i].help);
        for (uint32_t d = 0; d < stats.drive_count; d++) {
            const struct target_drive_stats *drive = &stats.drives[d];
            const struct store_stats *store = &drive->store;
            const double values[] = {
                drive->out ? 0 : 1,
                drive->slow ? 1 : 0,
                drive->drains ? 1 : 0,
                drive->is_stuck ? 1 : 0,
                drive->part_percent / 100.0,
                (double)drive->moved,
                (double)store->blocks,
                (double)drive->slow_total,
                (double)store->device_write_bytes,
                (double)store->admitted_bytes,
                (double)store->discarded_bytes,
                (double)store->write_streams,
                (double)store->refused,
                (double)store->budget_bytes_day,
                (double)store->budget_left_bytes,
                page_amplification(store),
                (double)store->segments_free,
                (double)store->segments,
                (double)store->checksum_errors,
                (double)store->io_errors,
                (double)store->no_space_errors,
                (double)store->recovery_ns / 1e9,
                (double)store->recovered_blocks,
            };
            char labels[DRIVE_LABELS];

            ctl_sample(page, families[i].name, drive_labels(drive, "", labels), values[i]);
        }
    }
}

static void page_drive_histograms(struct ctl_page *page)
{
    char labels[DRIVE_LABELS];

    ctl_family(page, "icms_target_drive_op_seconds", "histogram",
               "Of a read or a write of a block, the time at its drive.");
    for (uint32_t d = 0; d < stats.drive_count; d++) {
        const struct target_drive_stats *drive = &stats.drives[d];

        ctl_histogram(page, "icms_target_drive_op_seconds",
                      drive_labels(drive, ",op=\"read\"", labels), &drive->read_ns);
        ctl_histogram(page, "icms_target_drive_op_seconds",
                      drive_labels(drive, ",op=\"write\"", labels), &drive->write_ns);
    }
    ctl_family(page, "icms_target_drive_eviction_age_seconds", "histogram",
               "Time on the drive of evicted blocks, since their segment or the store was opened.");
    for (uint32_t d = 0; d < stats.drive_count; d++)
        if (stats.drives[d].store.segments != 0)
            ctl_histogram_ages(page, "icms_target_drive_eviction_age_seconds",
                               drive_labels(&stats.drives[d], "", labels),
                               &stats.drives[d].evicted_age_ns);
}

static double page_usage(void)
{
    return stats.capacity_bytes == 0 ? 0 : (double)stats.used_bytes / (double)stats.capacity_bytes;
}

static void page_tls(struct ctl_page *page)
{
    const struct nvmf_target_stats *nvmf = &stats.nvmf;

    ctl_family(page, "icms_target_tls_connections", "gauge",
               "Connections with TLS, by where their records are made and opened: kernel (kTLS), "
               "mixed (the kernel only makes them), openssl.");
    ctl_sample(page, "icms_target_tls_connections", "records=\"kernel\"", (double)nvmf->tls_kernel);
    ctl_sample(page, "icms_target_tls_connections", "records=\"mixed\"", (double)nvmf->tls_mixed);
    ctl_sample(page, "icms_target_tls_connections", "records=\"openssl\"", (double)nvmf->tls_user);
    ctl_family(page, "icms_target_tls_handshakes_total", "counter",
               "TLS handshakes by their end: succeeded, refused (wrong key, no TLS 1.3, garbage), "
               "timeout, evicted (too many at a time).");
    ctl_sample(page, "icms_target_tls_handshakes_total", "result=\"succeeded\"",
               (double)nvmf->tls_succeeded);
    ctl_sample(page, "icms_target_tls_handshakes_total", "result=\"refused\"",
               (double)nvmf->tls_refused);
    ctl_sample(page, "icms_target_tls_handshakes_total", "result=\"timeout\"",
               (double)nvmf->tls_timeouts);
    ctl_sample(page, "icms_target_tls_handshakes_total", "result=\"evicted\"",
               (double)nvmf->tls_evicted);
    ctl_metric(page, "icms_target_tls_plain_refused_total", "counter",
               "Connections refused because they did not begin with TLS, which is required.",
               (double)nvmf->tls_plain);
}

static void page_auth(struct ctl_page *page)
{
    const struct nvmf_target_stats *nvmf = &stats.nvmf;

    ctl_family(page, "icms_target_auths_total", "counter",
               "Authentications of connections by their end: passed, failed (wrong or no secret, "
               "broken protocol, not in time).");
    ctl_sample(page, "icms_target_auths_total", "result=\"passed\"", (double)nvmf->auths_passed);
    ctl_sample(page, "icms_target_auths_total", "result=\"failed\"", (double)nvmf->auths_failed);
    ctl_metric(page, "icms_target_auths_wanted_total", "counter",
               "Commands refused because their host has to authenticate first.",
               (double)nvmf->auths_wanted);
}

static void page_portals(struct ctl_page *page)
{
    const struct nvmf_target_stats *nvmf = &stats.nvmf;
    char text[64], labels[sizeof(text) + 16];

    for (int total = 0; total <= 1; total++) {
        const char *name =
            total ? "icms_target_portal_connections_total" : "icms_target_portal_connections";

        ctl_family(page, name, total ? "counter" : "gauge",
                   total ? "Connections ever accepted on an address of listen."
                         : "Connections on an address of listen.");
        for (uint32_t i = 0; i < nvmf->portal_count; i++) {
            const struct nvmf_target_portal_stats *portal = &nvmf->portals[i];

            (void)snprintf(labels, sizeof(labels), "portal=\"%s\"",
                           loop_addr_format(&portal->addr, text, sizeof(text)));
            ctl_sample(page, name, labels,
                       (double)(total ? portal->connections_total : portal->connections));
        }
    }
}

static void page_nvmf(struct ctl_page *page)
{
    const struct nvmf_target_stats *nvmf = &stats.nvmf;

    ctl_metric(page, "icms_target_connections", "gauge", "Queue pairs, each a TCP connection.",
               (double)nvmf->connections);
    ctl_metric(page, "icms_target_connections_total", "counter", "Connections ever accepted.",
               (double)nvmf->connections_total);
    ctl_metric(page, "icms_target_connections_max", "gauge",
               "connections_max of the configuration.", (double)nvmf->connections_max);
    ctl_metric(page, "icms_target_connections_full_total", "counter",
               "Times that the last connection was taken: hosts that connect then wait.",
               (double)nvmf->connections_full);
    page_portals(page);
    ctl_metric(page, "icms_target_nvmf_controllers", "gauge", "Connected NVMe controllers.",
               (double)nvmf->controllers);
    ctl_metric(page, "icms_target_nvmf_connects_refused_total", "counter",
               "Connect commands refused.", (double)nvmf->connects_refused);
    ctl_metric(page, "icms_target_nvmf_keepalive_timeouts_total", "counter",
               "Controllers ended because their host went silent.",
               (double)nvmf->keepalive_timeouts);
    ctl_metric(page, "icms_target_nvmf_protocol_errors_total", "counter",
               "Connections ended because the peer broke the protocol.",
               (double)nvmf->protocol_errors);
    ctl_metric(page, "icms_target_nvmf_timeouts_total", "counter",
               "Connections ended because the peer stalled.", (double)nvmf->timeouts);
    ctl_metric(page, "icms_target_nvmf_slow_hosts_total", "counter",
               "Connections ended because their host moved data too slowly.",
               (double)nvmf->slow_hosts);
    ctl_metric(
        page, "icms_target_nvmf_settings_differ_total", "counter",
        "Controllers whose host has other enclosures, weights or run_blocks than other hosts.",
        (double)nvmf->settings_differ);
    ctl_metric(page, "icms_target_nvmf_digest_errors_total", "counter",
               "Digests that did not match.", (double)nvmf->digest_errors);
    ctl_metric(page, "icms_target_nvmf_admin_commands_total", "counter",
               "Admin and fabrics commands.", (double)nvmf->admin_commands);
    ctl_metric(page, "icms_target_buffers_bytes", "gauge", "Memory for data buffers.",
               (double)nvmf->buffers_bytes);
    ctl_metric(page, "icms_target_buffers_used_bytes", "gauge", "Data buffers in use.",
               (double)nvmf->buffers_used_bytes);
    ctl_metric(page, "icms_target_buffers_parked", "gauge", "Commands that wait for a buffer.",
               (double)nvmf->buffers_parked);
    ctl_metric(page, "icms_target_prestage_parks_total", "counter",
               "Loads of class prestage that had to wait for their turn.",
               (double)nvmf->prestage_parks);
    ctl_metric(page, "icms_target_prestage_expedites_total", "counter",
               "Of those: that went on as loads, because somebody waited by then.",
               (double)nvmf->prestage_expedites);
    ctl_metric(page, "icms_target_buffers_parks_total", "counter",
               "Commands that had to wait for a buffer.", (double)nvmf->buffers_parks);
}

void target_page_metrics(void *arg, struct ctl_page *page)
{
    const struct target_page_pod pod = pod_now();
    struct err_why why = {""};

    target_stats(arg, &stats);
    ctl_metric(page, "icms_target_ready", "gauge", "1: /readyz answers 200, 0: it answers 503.",
               target_page_ready(arg, &why));
    ctl_metric(page, "icms_target_epoch", "gauge",
               "Epoch of the pod map that is in use; 0: the target has none.", pod.epoch);
    ctl_metric(page, "icms_target_map_refused", "gauge",
               "1: the map in the file of `pod` is refused, and not in use.",
               pod.refused[0] != '\0');
    ctl_metric(page, "icms_target_capacity_bytes", "gauge", "Capacity of the drives in service.",
               (double)stats.capacity_bytes);
    ctl_metric(page, "icms_target_last_load_age_seconds", "gauge",
               "Since the last load of a whole block by a host, or since the start.",
               (double)u64_min(stats.loaded_age_ns, stats.up_ns) / 1e9);
    ctl_metric(page, "kv_cache_usage_perc", "gauge",
               "Share of the capacity that live blocks hold; 1 is all of it.", page_usage());
    page_ops(page);
    page_states(page, stats.states, TARGET_STATS_STATES,
                (struct page_states_names){"icms_target_commands_in_state_total",
                                           "Commands that were in this state and are answered.",
                                           "icms_target_command_state_seconds_total"});
    page_volumes(page);
    page_tenants(page);
    page_drives(page);
    page_drive_histograms(page);
    page_nvmf(page);
    page_tls(page);
    page_auth(page);
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static void status_drive(struct json *json, const struct target_drive_stats *drive)
{
    const struct store_stats *store = &drive->store;

    json_put_object(json, NULL);
    json_put_string(json, "path", drive->path);
    json_put_string(json, "state",
                    drive->out        ? "out of service"
                    : drive->is_stuck ? "draining, others full"
                    : drive->drains   ? "draining"
                                      : "in service");
    json_put_uint(json, "part_percent", drive->part_percent);
    json_put_uint(json, "moved", drive->moved);
    json_put_string(json, "why", drive->why);
    json_put_uint(json, "capacity_bytes", store->capacity_bytes);
    json_put_uint(json, "used_bytes", store->used_bytes);
    json_put_uint(json, "blocks", store->blocks);
    json_put_uint(json, "segments", store->segments);
    json_put_uint(json, "segments_free", store->segments_free);
    json_put_uint(json, "checksum_errors", store->checksum_errors);
    json_put_uint(json, "io_errors", store->io_errors);
    json_put_uint(json, "no_space_errors", store->no_space_errors);
    json_put_uint(json, "recovered_blocks", store->recovered_blocks);
    json_put_real(json, "recovery_seconds", (double)store->recovery_ns / 1e9);
    json_put_uint(json, "written_bytes", store->device_write_bytes);
    json_put_uint(json, "admitted_bytes", store->admitted_bytes);
    json_put_uint(json, "discarded_bytes", store->discarded_bytes);
    json_put_uint(json, "write_streams", store->write_streams);
    json_put_real(json, "write_amplification", page_amplification(store));
    json_put_uint(json, "refused", store->refused);
    json_put_uint(json, "budget_bytes_day", store->budget_bytes_day);
    json_put_uint(json, "budget_left_bytes", store->budget_left_bytes);
    json_put_end(json);
}

/* As the configuration writes it. */
static const char *page_require(uint8_t require)
{
    static const char *const names[] = {"none", "chap", "tls", "chap+tls"};

    return names[require & (REQUIRE_CHAP | REQUIRE_TLS)];
}

/* Null: there was none. */
static void status_load_age(struct json *json, uint64_t age_ns)
{
    json_put_real(json, "last_load_age_seconds", age_ns == UINT64_MAX ? -1 : (double)age_ns / 1e9);
}

static void status_volume(struct json *json, const struct target_volume_stats *volume)
{
    char uuid[UUID_TEXT_BYTES];

    json_put_object(json, NULL);
    json_put_string(json, "name", volume->name);
    json_put_string(json, "uuid", uuid_format(&volume->uuid, uuid));
    json_put_uint(json, "generation", volume->generation);
    json_put_uint(json, "nsid", volume->number + 1);
    json_put_bool(json, "encrypted", volume->encrypted);
    json_put_string(json, "require", page_require(volume->require));
    json_put_uint(json, "hits", volume->hits);
    json_put_uint(json, "blocks", volume->store.blocks);
    json_put_uint(json, "used_bytes", volume->store.bytes);
    json_put_uint(json, "quota_bytes", volume->store.quota_bytes);
    json_put_uint(json, "evictions", volume->store.evictions);
    status_load_age(json, volume->loaded_age_ns);
    json_put_end(json);
}

static void status_tenant(struct json *json, const struct target_tenant_stats *tenant)
{
    const struct nvmf_target_tenant_stats *nvmf = &tenant->nvmf;
    const uint64_t bytes_per_s[] = {tenant->spec.load_bytes_per_s, tenant->spec.store_bytes_per_s};
    const uint64_t ops_per_s[] = {tenant->spec.load_ops_per_s, tenant->spec.store_ops_per_s};

    json_put_object(json, NULL);
    json_put_string(json, "name", tenant->spec.name);
    json_put_uint(json, "weight", tenant->spec.weight);
    for (int class = 0; class < NVMF_TARGET_CLASSES; class ++) {
        json_put_object(json, class_names[class]);
        json_put_uint(json, "bytes_per_s", bytes_per_s[class]);
        json_put_uint(json, "ops_per_s", ops_per_s[class]);
        json_put_uint(json, "ops", nvmf->ops[class]);
        json_put_uint(json, "bytes", nvmf->bytes[class]);
        json_put_uint(json, "waits", nvmf->waits[class]);
        json_put_real(json, "wait_seconds", (double)nvmf->wait_ns[class] / 1e9);
        json_put_end(json);
    }
    json_put_uint(json, "sheds", nvmf->sheds);
    json_put_end(json);
}

static void status_portal(struct json *json, const struct nvmf_target_portal_stats *portal)
{
    char text[64];

    json_put_object(json, NULL);
    json_put_string(json, "address", loop_addr_format(&portal->addr, text, sizeof(text)));
    json_put_uint(json, "connections", portal->connections);
    json_put_end(json);
}

static void status_host(struct json *json, const struct nvmf_target_connected *host)
{
    json_put_object(json, NULL);
    json_put_string(json, "nqn", host->hostnqn);
    json_put_string(json, "proven", page_require(host->proven));
    json_put_uint(json, "controllers", host->controllers);
    json_put_uint(json, "connections", host->connections);
    json_put_real(json, "connected_seconds", (double)host->age_ns / 1e9);
    if (host->has_epoch)
        json_put_uint(json, "epoch", host->epoch_min);
    if (host->epoch_max != host->epoch_min)
        json_put_uint(json, "epoch_max", host->epoch_max);
    json_put_end(json);
}

struct page_readiness {
    struct target_page_pod pod;
    struct nvmf_target_connected *hosts;
    uint32_t host_count, controllers_more;
    bool ready;
    struct err_why why;
};

static void status_write(void *arg, struct json *json)
{
    const struct page_readiness *readiness = arg;
    char uuid[UUID_TEXT_BYTES];

    json_put_object(json, NULL);
    json_put_string(json, "name", stats.name);
    json_put_string(json, "nqn", stats.nqn);
    json_put_string(json, "uuid", uuid_format(&stats.uuid, uuid));
    json_put_bool(json, "ready", readiness->ready);
    json_put_string(json, "why", readiness->why.text);
    if (readiness->pod.epoch != 0) { /* it has a map */
        json_put_string(json, "pod", readiness->pod.name);
        json_put_uint(json, "epoch", readiness->pod.epoch);
        json_put_string(json, "map_refused", readiness->pod.refused);
    }
    json_put_real(json, "uptime_seconds", (double)stats.up_ns / 1e9);
    status_load_age(json, stats.loaded_age_ns);
    json_put_uint(json, "connections", stats.nvmf.connections);
    json_put_uint(json, "connections_max", stats.nvmf.connections_max);
    json_put_array(json, "portals");
    for (uint32_t i = 0; i < stats.nvmf.portal_count; i++)
        status_portal(json, &stats.nvmf.portals[i]);
    json_put_end(json);
    json_put_array(json, "hosts");
    for (uint32_t i = 0; i < readiness->host_count; i++)
        status_host(json, &readiness->hosts[i]);
    json_put_end(json);
    json_put_uint(json, "controllers_more", readiness->controllers_more);
    json_put_object(json, "tls_connections");
    json_put_uint(json, "kernel", stats.nvmf.tls_kernel);
    json_put_uint(json, "mixed", stats.nvmf.tls_mixed);
    json_put_uint(json, "openssl", stats.nvmf.tls_user);
    json_put_end(json);
    json_put_uint(json, "controllers", stats.nvmf.controllers);
    json_put_uint(json, "capacity_bytes", stats.capacity_bytes);
    json_put_uint(json, "used_bytes", stats.used_bytes);
    json_put_array(json, "drives");
    for (uint32_t d = 0; d < stats.drive_count; d++)
        status_drive(json, &stats.drives[d]);
    json_put_end(json);
    json_put_array(json, "volumes");
    for (uint32_t v = 0; v < stats.volume_count; v++)
        status_volume(json, &stats.volumes[v]);
    json_put_end(json);
    json_put_array(json, "tenants");
    for (uint32_t t = 0; t < stats.tenant_count; t++)
        status_tenant(json, &stats.tenants[t]);
    json_put_end(json);
    json_put_end(json);
}

void target_page_status(void *arg, struct ctl_page *page)
{
    static struct nvmf_target_connected hosts[NVMF_TARGET_CONNECTED]; /* one thread */
    struct page_readiness readiness = {.why = {""}, .hosts = hosts, .pod = pod_now()};

    readiness.ready = target_ready(arg, &readiness.why);
    readiness.host_count = target_connected(arg, hosts, &readiness.controllers_more);
    target_stats(arg, &stats);
    ctl_json(page, status_write, &readiness);
    ctl_text(page, "\n");
}

void target_page_trace(void *arg, const struct key *key, struct ctl_page *page)
{
    char *text = target_trace(arg, key);

    ctl_text(page, "%s\n", text != NULL ? text : "{}");
    free(text);
}

bool target_page_ready(void *arg, struct err_why *why)
{
    return target_ready(arg, why);
}
