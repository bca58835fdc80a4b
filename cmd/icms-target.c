/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms-target: an enclosure. Reads a configuration, opens the drives, serves until it is told to
 * end.
 *
 * The main thread starts everything, waits and ends it; data runs on the loops of target/, metrics
 * and health on the thread of ctl/.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "connections_log.h"
#include "daemon.h"
#include "drive_health.h"
#include "drive_log.h"
#include "target_page.h"
#include "target_auth.h"
#include "target_epochs.h"
#include "target_reload.h"
#include "crypt/dhchap.h"
#include "ctl/ctl.h"
#include "target/target.h"
#include "wire/nvme.h"

static const struct daemon_program program = {
    .name = "icms-target",
    .summary = "serve the drives of an enclosure as NVMe Key-Value namespaces",
    .config_default = "/etc/icms/target.yaml",
    .example = conf_target_example,
    .format = true,
};

/* How often the main thread looks at the drives, and at the end of a drain. */
#define MAIN_LOOK_MS   500
#define MAIN_DRAIN_MS  20
#define MAIN_CHANGE_MS 10 /* while a change of the configuration is being applied */

/* The drives that --format names: drive0 and so on, paths as they are written in the configuration,
 * or all. */
static icms_err main_format(const struct conf_target *conf, const struct daemon_opts *opts,
                            struct target_drive_opts *drives, struct err_why *why)
{
    for (uint32_t i = 0; i < opts->format_count; i++) {
        const char *name = opts->format[i];
        bool found = false;

        for (uint32_t d = 0; d < conf->drive_count; d++) {
            char number[16];

            (void)snprintf(number, sizeof(number), "drive%u", d);
            if (strcmp(name, "all") != 0 && strcmp(name, number) != 0 &&
                strcmp(name, conf->drives[d].path) != 0)
                continue;
            found = true;
            drives[d].format = TARGET_FORMAT_ANY;
        }
        if (!found)
            return err_set(why, ICMS_CONFIG,
                           "cannot format %.200s: no such drive in %.200s; name drive0 to drive%u, "
                           "a path as it is written there, or all",
                           name, opts->config, conf->drive_count - 1);
    }
    return ICMS_OK;
}

/* At once: also of a start that fails, which may have formatted a drive. */
static void main_warned(const char *sentence)
{
    log_line(LOG_WARN, "%s", sentence);
}

/* Hosts and their keys, as target takes them; the caller frees it. */
static icms_err main_hosts(const struct conf_target *conf, struct nvmf_target_opts *out,
                           struct err_why *why)
{
    struct nvmf_target_host *hosts = calloc(conf->host_count + 1, sizeof(*hosts));

    if (hosts == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    for (uint32_t i = 0; i < conf->host_count; i++) {
        const struct conf_host *from = &conf->hosts[i];

        memcpy(hosts[i].nqn, from->nqn, sizeof(hosts[i].nqn));
        hosts[i].require = from->require;
        hosts[i].psks = (const char(*)[LIMIT_PATH_BYTES])from->psks;
        hosts[i].psk_count = from->psk_count;
        hosts[i].secrets = (const char(*)[LIMIT_PATH_BYTES])from->secrets;
        hosts[i].secret_count = from->secret_count;
        hosts[i].controller_secret =
            from->controller_secret[0] != '\0' ? from->controller_secret : NULL;
    }
    out->hosts = hosts;
    out->host_count = conf->host_count;
    out->require = conf->require;
    if (conf->chap_hash_count > 0) /* else nvmf/target's */
        out->auth_hash_count = conf->chap_hash_count;
    for (uint32_t i = 0; i < conf->chap_hash_count; i++) {
        out->auth_hashes[i] = 1; /* conf knows the names */
        while (strcmp(conf->chap_hashes[i], dhchap_hash_name(out->auth_hashes[i])) != 0)
            out->auth_hashes[i]++;
    }
    if (conf->chap_group_count > 0)
        out->auth_group_count = conf->chap_group_count;
    for (uint32_t i = 0; i < conf->chap_group_count; i++) {
        out->auth_groups[i] = 0;
        while (strcmp(conf->chap_groups[i], dhchap_group_name(out->auth_groups[i])) != 0)
            out->auth_groups[i]++;
    }
    return ICMS_OK;
}

/* A whole number of what conf says, as target takes it. */
static icms_err main_opts(const struct target_reload *reload, const struct daemon_opts *opts,
                          struct target_drive_opts *drives, struct err_why *why,
                          struct target_opts *out)
{
    const struct conf_target *conf = target_reload_conf(reload);
    icms_err err;

    target_opts_init(out);
    target_reload_pod(reload->started, out);
    out->env = loop_env_uring();
    out->name = conf->name;
    out->nvmf.enclosure = conf->uuid;
    out->nvmf.nqn = conf->nqn;
    out->loops = conf->loops;
    out->busy_poll = conf->busy_poll;
    out->poll_us = conf->poll_us;
    out->segment_bytes = conf->segment_bytes;
    out->discard = conf->discard;
    out->nvmf.memory_bytes = conf->memory_bytes;
    out->nvmf.connections_max = conf->connections_max;
    out->nvmf.queue_entries_max = conf->queue_entries_max;
    out->nvmf.in_capsule_bytes = (uint32_t)conf->in_capsule_bytes;
    out->nvmf.header_timeout_ms = conf->header_timeout_ms;
    out->nvmf.marks = conf_marks(&conf->dscp, &conf->priority);
    out->ready_quota_percent_max = conf->ready_quota_percent_max;
    out->ready_out_percent_max = conf->ready_out_percent_max;
    out->warned = main_warned;
    target_reload_drives(conf, drives);
    out->drives = drives;
    out->drive_count = conf->drive_count;
    out->tenants = conf->tenants;
    out->tenant_count = conf->tenant_count;
    out->volumes = conf->volumes;
    out->volume_count = conf->volume_count;
    err = main_format(conf, opts, drives, why);
    if (err == ICMS_OK)
        err = main_hosts(conf, &out->nvmf, why);
    out->nvmf.portal_count = conf->listen_count;
    for (uint32_t i = 0; i < conf->listen_count && err == ICMS_OK; i++) {
        err = loop_addr_parse(conf->listen[i], why, &out->nvmf.portals[i].listen);
        if (err == ICMS_OK)
            err = loop_addr_parse(conf->advertise[i], why, &out->nvmf.portals[i].advertise);
    }
    return err;
}

static struct ctl_heartbeat main_heartbeat;

static struct ctl_audit main_audit;

static bool main_alive(void *arg, struct err_why *why)
{
    return ctl_heartbeat_alive(&main_heartbeat, why);
}

static icms_err main_http(const struct conf_target *conf, struct target *target,
                          struct err_why *why, struct ctl_http **out_http)
{
    struct ctl_http_opts opts = {
        .program = program.name,
        .version = DAEMON_VERSION,
        .arg = target,
        .metrics = target_page_metrics,
        .status = target_page_status,
        .trace = target_page_trace,
        .ready = target_page_ready,
        .healthy = main_alive,
        .audit = &main_audit,
    };

    *out_http = NULL;
    daemon_http(&conf->http, &opts);
    ctl_heartbeat_init(&main_heartbeat, loop_env_uring(), CTL_HEARTBEAT_LATE_NS);
    for (uint32_t i = 0; i < conf->loops; i++)
        ctl_heartbeat_add(&main_heartbeat, target_loop(target, i));
    return conf->http.listen[0] == '\0' ? ICMS_OK : ctl_http_start(&opts, why, out_http);
}

/* Says which host was cut off last, when some were since the last time. */
static void main_slow_hosts(const struct target *target, const struct nvmf_target_stats *nvmf)
{
    static uint64_t slow_hosts;
    char host[LIMIT_NQN_BYTES];

    if (nvmf->slow_hosts == slow_hosts)
        return;
    nvmf_target_slow_host(target_nvmf(target), host);
    log_line(LOG_WARN,
             "host %s: connection closed: it moved the data of a command too slowly, under "
             "%llu MB/s for %d s; check that host and its network path; connections=%llu",
             host, (unsigned long long)(LIMIT_DATA_BYTES_PER_SECOND / 1000000), LIMIT_DATA_SECONDS,
             (unsigned long long)(nvmf->slow_hosts - slow_hosts));
    slow_hosts = nvmf->slow_hosts;
}

/* Until it is called again. */
static const char *main_volume_name(const struct target *target, uint32_t number)
{
    static char name[LIMIT_NAME_BYTES];

    target_volume_name(target, number, name);
    return name;
}

/* Says which host told settings that others do not have, when some did since the last time. */
static void main_settings_differ(const struct target *target, const struct target_stats *stats)
{
    static uint64_t settings_differ;
    const struct nvmf_target_stats *nvmf = &stats->nvmf;
    struct nvmf_target_differs differs;

    if (nvmf->settings_differ == settings_differ)
        return;
    nvmf_target_differs(target_nvmf(target), &differs);
    if (differs.feature == NVME_FEATURE_ICMS_RUN_BLOCKS)
        log_line(LOG_WARN,
                 "host %s: run_blocks of volume %s is %u, and %u at other hosts: they do not find "
                 "each other's blocks; set it alike in the configuration of each icms-agent; "
                 "hosts=%llu",
                 differs.hostnqn, main_volume_name(target, differs.ns), differs.value, differs.kept,
                 (unsigned long long)(nvmf->settings_differ - settings_differ));
    else
        log_line(LOG_WARN,
                 "host %s: its %s of enclosures are not those of other hosts: they do not find "
                 "each other's blocks; compare `enclosures` in the configuration of each "
                 "icms-agent; hosts=%llu",
                 differs.hostnqn,
                 differs.feature == NVME_FEATURE_ICMS_WEIGHTS ? "weights" : "UUIDs",
                 (unsigned long long)(nvmf->settings_differ - settings_differ));
    settings_differ = nvmf->settings_differ;
}

/* How often hosts' epochs are looked at. */
#define MAIN_EPOCHS_NS ((uint64_t)5 * 1000 * 1000 * 1000)

/* Says which hosts have used another epoch of the pod map for long. */
static void main_epochs(const struct target *target, const struct target_reload *reload)
{
    static struct nvmf_target_connected hosts[NVMF_TARGET_CONNECTED];
    static struct target_epochs epochs;
    static uint64_t next_ns;
    const struct conf_pod *pod = conf_live_pod(reload->runs);
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());
    const struct nvmf_target_connected *host;
    uint32_t count, more;

    if (pod == NULL || now_ns < next_ns)
        return;
    next_ns = now_ns + MAIN_EPOCHS_NS;
    count = target_connected(target, hosts, &more);
    count = target_epochs_look(&epochs, pod->epoch, hosts, count, now_ns, &host);
    if (count != 0)
        log_line(
            LOG_WARN,
            "pod %s: epoch %u is in use here, and another one at %u hosts for a minute, such as "
            "%u at %s: one of both has an old file, or refuses a newer one; compare: `icms pod "
            "status`",
            pod->name, pod->epoch, count,
            host->epoch_min != pod->epoch ? host->epoch_min : host->epoch_max, host->hostnqn);
}

/* Lines about lost controllers at once, and the interval after which there may be one more. */
#define MAIN_LOSS_LINES 10
#define MAIN_LOSS_NS    ((uint64_t)10 * 1000 * 1000 * 1000)

static const char *main_loss_cause(const struct nvmf_target_loss *loss)
{
    if (loss->keep_alive)
        return "no command within the keep-alive timeout";
    switch (loss->why) {
    case ICMS_PROTOCOL:
        return "protocol error";
    case ICMS_DEADLINE:
        return "the host stopped sending or receiving";
    case ICMS_RESET:
        return "the host closed the connection without a shutdown";
    case ICMS_LIMIT:
        return "the key of its TLS made as many records as it may, and this kernel cannot change "
               "it "
               "(Linux 6.14 can)";
    default:
        return icms_err_text(loss->why);
    }
}

/* Says which hosts lost their controller. A host that does so all the time cannot fill the log. */
static void main_losses(struct target *target)
{
    static uint32_t lines = MAIN_LOSS_LINES;
    static uint64_t unsaid, line_ns;
    uint64_t now = loop_env_now_ns(loop_env_uring());
    struct nvmf_target_loss loss;
    char portal[64];
    uint64_t missed;

    if (now >= line_ns + MAIN_LOSS_NS) {
        line_ns = now;
        lines += lines < MAIN_LOSS_LINES;
    }
    while (lines > 0 && nvmf_target_loss_take(target_nvmf(target), &loss, &missed)) {
        unsaid += missed;
        lines--;
        log_line(LOG_WARN,
                 "host %s: controller lost: %s; portal=%s cntlid=%u queue=%u unlogged=%llu",
                 loss.hostnqn, main_loss_cause(&loss),
                 loop_addr_format(&loss.portal, portal, sizeof(portal)), loss.cntlid, loss.qid,
                 (unsigned long long)unsaid);
        unsaid = 0;
    }
}

/* Whose errors are taken. */
struct main_drive {
    struct target *target;
    uint32_t number;
};

static bool main_error_take(void *arg, struct store_error *out_error, uint64_t *out_missed)
{
    const struct main_drive *drive = arg;

    return target_error_take(drive->target, drive->number, out_error, out_missed);
}

static const char *main_volume(void *arg, uint32_t volume)
{
    return main_volume_name(((const struct main_drive *)arg)->target, volume);
}

/* Says what the drives did wrong. */
static void main_errors(struct target *target, const struct target_stats *stats)
{
    static struct drive_log logs[LIMIT_DRIVES];
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());

    for (uint32_t i = 0; i < stats->drive_count; i++) {
        struct main_drive drive = {target, stats->drives[i].number};
        char name[LIMIT_PATH_BYTES + 32];
        const struct drive_log_source source = {name, main_error_take, main_volume, &drive};

        (void)snprintf(name, sizeof(name), "drive %u (%s)", drive.number, stats->drives[i].path);
        drive_log_look(&logs[drive.number], now_ns, &source, &stats->drives[i].store);
    }
}

/* Says when a drive stops draining for want of space at the others, and when it goes on. */
static void main_drain(const struct target_drive_stats *drive)
{
    static uint32_t stuck;
    uint32_t bit = (uint32_t)1 << drive->number;

    if (drive->is_stuck && (stuck & bit) == 0)
        log_line(LOG_WARN,
                 "drive %u (%s): draining stopped: the other drives have less than an eighth of "
                 "their space free; blocks that are loaded still move, removing it loses the rest; "
                 "add a drive: `icms drive add`; blocks=%llu",
                 drive->number, drive->path, (unsigned long long)drive->store.blocks);
    else if (!drive->is_stuck && (stuck & bit) != 0 && drive->drains && drive->store.blocks > 0)
        log_line(LOG_INFO, "drive %u (%s): draining goes on; blocks=%llu", drive->number,
                 drive->path, (unsigned long long)drive->store.blocks);
    stuck = drive->is_stuck ? stuck | bit : stuck & ~bit;
}

/* Says once which drives went out of service, or became slow, since the last look, which hosts
 * were lost, and that all connections are in use. */
static void main_look(struct target *target, bool say, bool weigh, uint32_t *io_out)
{
    static struct target_stats stats;
    static uint64_t slow_total[LIMIT_DRIVES];
    static struct connections_log connections;
    uint32_t out = 0;

    target_stats(target, &stats);
    connections_log_look(&connections, loop_env_now_ns(loop_env_uring()), &stats.nvmf);
    main_slow_hosts(target, &stats.nvmf);
    main_settings_differ(target, &stats);
    main_losses(target);
    main_errors(target, &stats);
    if (weigh)
        drive_health_look(target, &stats);
    target_auths(target, &main_audit);
    for (uint32_t i = 0; i < stats.drive_count; i++) {
        const struct target_drive_stats *drive = &stats.drives[i];

        if (say && drive->slow_total > slow_total[drive->number])
            log_line(LOG_WARN,
                     "drive %u (%s): slow: using other drives until it answers in time again",
                     drive->number, drive->path);
        slow_total[drive->number] = drive->slow_total;
        main_drain(drive);
        if (!drive->out || (drive->why[0] == 0 && !drive->store.down)) /* it may be coming */
            continue;
        out |= (uint32_t)1 << drive->number;
        if (say && (*io_out >> drive->number & 1) == 0)
            log_line(LOG_ERROR,
                     "drive %u (%s): out of service after device errors: its blocks are lost; "
                     "replace it: `icms drive replace`",
                     drive->number, drive->path);
    }
    *io_out = out;
}

static void main_keys_said(void *arg, const char *hostnqn, const char *why)
{
    (void)arg;
    daemon_keys_said(&main_audit, "host", hostnqn, "those that proved replaced ones end", why);
}

static void main_keys_read_again(const struct conf_target *conf, struct target *target)
{
    struct nvmf_target_opts nvmf;
    struct err_why why = {""};
    icms_err err;

    nvmf_target_opts_init(&nvmf);
    nvmf.nqn = conf->nqn;
    err = main_hosts(conf, &nvmf, &why);
    if (err == ICMS_OK)
        err = nvmf_target_keys_read_again(target_nvmf(target), &nvmf, main_keys_said, NULL, &why);
    free((void *)(uintptr_t)nvmf.hosts);
    if (err != ICMS_OK)
        log_line(LOG_ERROR, "keys stay as they were: %s; send SIGHUP again", why.text);
}

/* Where it listens: addresses with commas between them. */
#define MAIN_PORTALS_BYTES (LIMIT_PORTALS * 65)
static void main_portals(const struct target *target, uint32_t count, char out[MAIN_PORTALS_BYTES])
{
    size_t used = 0;

    for (uint32_t i = 0; i < count; i++) {
        struct loop_addr addr;
        char text[64];

        nvmf_target_addr(target_nvmf(target), i, &addr);
        used += (size_t)snprintf(out + used, MAIN_PORTALS_BYTES - used, "%s%s", i > 0 ? "," : "",
                                 loop_addr_format(&addr, text, sizeof(text)));
    }
}

static void main_serve(const struct daemon_opts *opts, const struct conf_target *conf,
                       struct target_reload *reload, struct ctl_http *http)
{
    struct target *target = reload->target;
    enum daemon_signal number;
    struct timespec pause = {.tv_nsec = MAIN_DRAIN_MS * 1000000L};
    char portals[MAIN_PORTALS_BYTES];
    uint32_t out = 0;
    bool changing = false;

    main_look(target, false, false, &out); /* those have their warning */
    main_portals(target, conf->listen_count, portals);
    if (http != NULL)
        daemon_ready(opts, "nvme=%s http=%u", portals, ctl_http_port(http));
    else
        daemon_ready(opts, "nvme=%s", portals);
    while ((number = daemon_wait(changing ? MAIN_CHANGE_MS : MAIN_LOOK_MS, &main_heartbeat)) !=
           DAEMON_END) {
        if (number == DAEMON_READ_AGAIN) {
            main_keys_read_again(conf, target);
            target_reload_begin(reload);
            daemon_http_read_again(http, conf->http.listen, &main_audit);
        }
        changing = target_reload_look(reload);
        main_epochs(target, reload);
        main_look(target, true, !changing, &out); /* drives change in one way at a time */
    }
    target_drain(target);
    while (!nvmf_target_idle(target_nvmf(target)))
        nanosleep(&pause, NULL);
}

static icms_err main_memory_check(const struct daemon_opts *opts,
                                  const struct target_opts *target_opts, struct err_why *why)
{
    return daemon_memory_check(opts, program.name, target_memory_bytes(target_opts),
                               "memory, and indexes of the drives by bytes_per_block", why);
}

/* All that the start would refuse, but for what depends on other processes. */
static int main_check(const struct daemon_opts *opts, const struct target_reload *reload)
{
    const struct conf_target *conf = target_reload_conf(reload);
    struct target_drive_opts drives[LIMIT_DRIVES];
    struct target_opts target_opts;
    struct err_why why = {""};
    icms_err err = main_opts(reload, opts, drives, &why, &target_opts);

    if (err == ICMS_OK)
        err = target_check(&target_opts, &why);
    if (err == ICMS_OK)
        err = nvmf_target_keys_check(&target_opts.nvmf, &why);
    if (err == ICMS_OK)
        err = target_reload_check(reload, &target_opts, &why);
    if (err == ICMS_OK)
        err = daemon_http_check(&conf->http, &why);
    free((void *)(uintptr_t)target_opts.nvmf.hosts);
    target_opts.nvmf.hosts = NULL;
    if (err != ICMS_OK)
        return daemon_failed(err, &why, "icms-target cannot start");
    target_check_here(&target_opts, daemon_here_warn, NULL);
    if (main_memory_check(opts, &target_opts, &why) != ICMS_OK)
        return DAEMON_FAILED;
    return daemon_config_right(opts);
}

static int main_run(const struct daemon_opts *opts, struct target_reload *reload)
{
    const struct conf_target *conf = target_reload_conf(reload);
    struct target_drive_opts drives[LIMIT_DRIVES];
    struct target_opts target_opts;
    struct target *target = NULL;
    struct ctl_http *http = NULL;
    struct err_why why = {""};
    icms_err err = main_opts(reload, opts, drives, &why, &target_opts);

    if (err == ICMS_OK) /* before a drive is made or formatted */
        err = nvmf_target_keys_check(&target_opts.nvmf, &why);
    if (err == ICMS_OK)
        err = target_reload_check(reload, &target_opts, &why);
    if (err == ICMS_OK)
        err = daemon_http_check(&conf->http, &why);
    if (err == ICMS_OK)
        err = main_memory_check(opts, &target_opts, &why);
    if (err == ICMS_OK)
        err = daemon_begin(opts, conf->memory_bytes, &why);
    if (err == ICMS_OK)
        err = target_new(&target_opts, &why, &target);
    free((void *)(uintptr_t)target_opts.nvmf.hosts);
    if (err == ICMS_OK)
        err = ctl_audit_init(&main_audit, program.name, conf->audit, &why);
    if (err == ICMS_OK)
        err = target_reload_start(reload, target, &main_audit, &why);
    if (err == ICMS_OK) {
        target_auth_conf(conf, &main_audit);
        err = main_http(conf, target, &why, &http);
    }
    drive_health_conf(conf);
    if (err == ICMS_OK)
        err = drive_health_start(&why);
    if (err == ICMS_OK)
        err = target_start(target, &why);
    if (err == ICMS_OK) {
        main_serve(opts, conf, reload, http);
        target_stop(target);
    }
    ctl_http_stop(&http);
    target_reload_stop(reload);
    target_free(&target);
    return err == ICMS_OK ? DAEMON_DONE : daemon_failed(err, &why, "icms-target cannot start");
}

int main(int argc, char **argv)
{
    static struct target_reload reload;
    struct daemon_opts opts;
    const struct conf_target *conf;
    struct err_why why = {""};
    int status = daemon_options(&program, argc, argv, &opts);

    if (status >= 0)
        return status;
    if (target_reload_init(&reload, &opts, &why) != ICMS_OK) {
        target_reload_fini(&reload);
        return daemon_failed(ICMS_CONFIG, &why, "icms-target cannot read its configuration");
    }
    conf = target_reload_conf(&reload);
    daemon_warnings(&conf->warnings);
    for (uint32_t i = 0; i < conf->drive_count; i++)
        daemon_drive_warn(conf->drives[i].path);
    status = opts.check_config ? main_check(&opts, &reload) : main_run(&opts, &reload);
    target_reload_fini(&reload);
    return status;
}
