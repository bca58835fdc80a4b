/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms-agent: what runs on a GPU server. Reads a configuration, keeps blocks in shared memory,
 * loads and stores them at the enclosures, serves the processes of this machine until it is told to
 * end.
 *
 * The main thread starts everything, waits and ends it; data runs on the loops of agent/, clients
 * are attached on the thread of agent/attach, metrics and health on the thread of ctl/.
 */
#include <stdlib.h>

#include "agent/agent.h"
#include "agent/attach.h"
#include "agent_page.h"
#include "base/log.h"
#include "inprocess/agent_opts.h"
#include "ctl/ctl.h"
#include "daemon.h"

static const struct daemon_program program = {
    .name = "icms-agent",
    .summary = "node daemon that serves KV blocks to local processes",
    .config_default = "/etc/icms/agent.yaml",
    .example = conf_agent_example,
};

/* How often the main thread looks at the enclosures. */
#define MAIN_LOOK_MS 500

/* What is under way ends by its deadline; accepted blocks go to flash. */
#define MAIN_DRAIN_MS 20000

/* How long enclosures are tried before the agent says that it is ready. */
#define MAIN_TRIED_MS 3000

static struct agent_page main_page;

static struct ctl_heartbeat main_heartbeat;

static bool main_alive(void *arg, struct err_why *why)
{
    return ctl_heartbeat_alive(&main_heartbeat, why);
}

static icms_err main_http(const struct conf_agent *conf, struct agent *agent, struct err_why *why,
                          struct ctl_http **out_http)
{
    const struct ctl_http_opts opts = {
        .listen = conf->http.listen,
        .program = program.name,
        .version = DAEMON_VERSION,
        .arg = &main_page,
        .metrics = agent_page_metrics,
        .status = agent_page_status,
        .ready = agent_page_ready,
        .healthy = main_alive,
    };

    *out_http = NULL;
    ctl_heartbeat_init(&main_heartbeat, loop_env_uring(), CTL_HEARTBEAT_LATE_NS);
    for (uint32_t i = 0; agent_loop(agent, i) != NULL; i++)
        ctl_heartbeat_add(&main_heartbeat, agent_loop(agent, i));
    main_page.agent = agent;
    main_page.memory_percent_max = conf->ready_memory_percent_max;
    return conf->http.listen[0] == '\0' ? ICMS_OK : ctl_http_start(&opts, why, out_http);
}

/* What was logged of the enclosures. */
struct main_seen {
    uint64_t excluded;                  /* bit i: enclosure i is down                 */
    uint64_t lacking[LIMIT_ENCLOSURES]; /* bit j of [i]: enclosure i misses volume j  */
};

/* Logs what changed at the enclosures since the last call. */
static void main_look(struct agent *agent, uint32_t probe_ms, struct main_seen *io_seen)
{
    static struct agent_stats stats;
    uint64_t excluded = 0;

    agent_stats(agent, &stats);
    for (uint32_t i = 0; i < stats.enclosure_count; i++) {
        const struct agent_enclosure_stats *enclosure = &stats.enclosures[i];
        uint64_t bit = (uint64_t)1 << i;

        if (enclosure->state == AGENT_ENCLOSURE_EXCLUDED)
            excluded |= bit;
        if ((excluded & bit) != 0 && (io_seen->excluded & bit) == 0)
            log_line(LOG_WARN, "enclosure %s: marked down: %s; retrying every %u ms",
                     enclosure->name, enclosure->last_error, probe_ms);
        else if ((excluded & bit) == 0 && (io_seen->excluded & bit) != 0)
            log_line(LOG_INFO, "enclosure %s: recovered", enclosure->name);
        for (uint32_t j = 0; j < stats.volume_count; j++)
            if (((enclosure->lacking & ~io_seen->lacking[i]) >> j & 1) != 0)
                log_line(LOG_WARN,
                         "enclosure %s: volume %s missing or not allowed for this host; using the "
                         "next enclosure; will retry",
                         enclosure->name, stats.volumes[j].name);
        io_seen->lacking[i] = enclosure->lacking;
    }
    io_seen->excluded = excluded;
}

static void main_serve(const struct daemon_opts *opts, const struct conf_agent *conf,
                       struct agent *agent, const struct ctl_http *http)
{
    struct main_seen seen = {0};

    main_look(agent, conf->probe_ms, &seen);
    if (http != NULL)
        daemon_ready(opts, "socket=%s http=%u", conf->socket, ctl_http_port(http));
    else
        daemon_ready(opts, "socket=%s", conf->socket);
    while (!daemon_wait(MAIN_LOOK_MS, &main_heartbeat))
        main_look(agent, conf->probe_ms, &seen);
    if (!agent_drain(agent, MAIN_DRAIN_MS))
        log_line(LOG_WARN, "not drained within %d s: accepted blocks may not be on flash",
                 MAIN_DRAIN_MS / 1000);
}

static int main_run(const struct daemon_opts *opts, const struct conf_agent *conf)
{
    static struct agent_enclosure_opts enclosures[LIMIT_ENCLOSURES];
    struct agent_opts agent_opts;
    struct agent *agent = NULL;
    struct attach *attach = NULL;
    struct ctl_http *http = NULL;
    struct err_why why = {""};
    icms_err err = agent_opts_from_conf(conf, enclosures, &why, &agent_opts);

    if (err == ICMS_OK)
        err = daemon_begin(opts, 0, &why);
    if (err == ICMS_OK)
        err = agent_new(loop_env_uring(), &agent_opts, &why, &agent);
    if (err == ICMS_OK)
        err = main_http(conf, agent, &why, &http);
    if (err == ICMS_OK)
        err = agent_start(agent, &why);
    if (err == ICMS_OK) {
        agent_wait_tried(agent, MAIN_TRIED_MS);
        err = attach_start(agent, conf->socket, conf->socket_mode, &why, &attach);
        if (err == ICMS_OK) {
            atomic_store(&main_page.attaching, true);
            main_serve(opts, conf, agent, http);
        }
        attach_stop(&attach);
        agent_stop(agent);
    }
    ctl_http_stop(&http);
    agent_free(&agent);
    return err == ICMS_OK ? DAEMON_DONE : daemon_failed(err, &why, "icms-agent cannot start");
}

int main(int argc, char **argv)
{
    struct daemon_opts opts;
    struct conf_agent *conf;
    struct err_why why = {""};
    int status = daemon_options(&program, argc, argv, &opts);

    if (status >= 0)
        return status;
    conf = calloc(1, sizeof(*conf));
    if (conf == NULL || conf_agent_read(opts.config, &why, conf) != ICMS_OK) {
        free(conf);
        return daemon_failed(ICMS_CONFIG, &why, "icms-agent cannot read its configuration");
    }
    daemon_warnings(&conf->warnings);
    status = opts.check_config ? daemon_config_right(&opts) : main_run(&opts, conf);
    conf_agent_fini(conf);
    free(conf);
    return status;
}
