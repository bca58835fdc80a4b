/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms-agent: what runs on a GPU server. Reads a configuration, keeps blocks in shared memory,
 * loads and stores them at the enclosures, serves the processes of this machine until it is told to
 * end.
 *
 * The main thread starts everything, waits and ends it; data runs on the loops of agent/, clients
 * are attached on the thread of agent/attach, metrics and health on the thread of ctl/.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent.h"
#include "agent/attach.h"
#include "agent_events.h"
#include "agent_match.h"
#include "agent_page.h"
#include "agent_prestage.h"
#include "base/bytes.h"
#include "base/log.h"
#include "inprocess/agent_opts.h"
#include "inprocess/pod_watch.h"
#include "ctl/audit.h"
#include "ctl/ctl.h"
#include "daemon.h"
#include "drive_log.h"
#include "version_log.h"

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

static struct ctl_audit main_audit;

/* Of the pod map's file; NULL: there is none. */
static struct pod_watch *main_watch;

static bool main_alive(void *arg, struct err_why *why)
{
    return ctl_heartbeat_alive(&main_heartbeat, why);
}

static const struct ctl_post main_posts[] = {
    {"/v1/prestage", agent_prestage_post},
    {"/v1/match", agent_match_post},
};

static icms_err main_http(const struct conf_agent *conf, struct agent *agent, struct err_why *why,
                          struct ctl_http **out_http)
{
    struct ctl_http_opts opts = {
        .program = program.name,
        .version = DAEMON_VERSION,
        .arg = &main_page,
        .metrics = agent_page_metrics,
        .status = agent_page_status,
        .posts = main_posts,
        .post_count = sizeof(main_posts) / sizeof(main_posts[0]),
        .ready = agent_page_ready,
        .healthy = main_alive,
        .audit = &main_audit,
    };

    *out_http = NULL;
    daemon_http(&conf->http, &opts);
    ctl_heartbeat_init(&main_heartbeat, loop_env_uring(), CTL_HEARTBEAT_LATE_NS);
    for (uint32_t i = 0; agent_loop(agent, i) != NULL; i++)
        ctl_heartbeat_add(&main_heartbeat, agent_loop(agent, i));
    main_page.agent = agent;
    main_page.conf = conf;
    main_page.is_open = opts.open == CTL_HTTP_OPEN_ALL;
    main_page.memory_percent_max = conf->ready_memory_percent_max;
    return conf->http.listen[0] == '\0' ? ICMS_OK : ctl_http_start(&opts, why, out_http);
}

/* What was logged of the enclosures, by their numbers. */
struct main_seen {
    struct uuid uuid[LIMIT_ENCLOSURES];      /* of enclosure i                             */
    uint64_t excluded;                       /* bit i: enclosure i is down                 */
    uint64_t slow_total[LIMIT_ENCLOSURES];   /* of enclosure i                             */
    uint64_t slow;                           /* bit i: enclosure i is slow                 */
    uint8_t lowered_looks[LIMIT_ENCLOSURES]; /* that saw its share lowered, in halves      */
    uint64_t lowered_ns[LIMIT_ENCLOSURES];   /* when that was logged; 0: never             */
    uint64_t lowered;                        /* bit i: it is logged, and its end is not    */
    bool enclosures_differ;                  /* from those of other hosts                  */
    bool weights_differ;                     /* likewise                                   */
    uint64_t epoch, epoch_ns; /* in use; since when no enclosure had a later one, or it is in use */
    bool epoch_said;          /* that enclosures have a later one                          */
    uint64_t run_blocks_differ;               /* bit j: of volume j                         */
    uint64_t value_max_differ;                /* likewise                                   */
    uint64_t up;                              /* bit i: enclosure i is up                   */
    uint64_t users_refused, user_ns;          /* that were told; when                       */
    uint64_t missing[LIMIT_ENCLOSURES];       /* bit j of [i]: enclosure i misses volume j  */
    uint64_t damaged[LIMIT_ENCLOSURES];       /* checksum errors of enclosure i             */
    uint64_t damaged_ns[LIMIT_ENCLOSURES];    /* when that was logged                    */
    uint64_t auths_refused[LIMIT_ENCLOSURES]; /* of enclosure i                        */
    struct loop_addr addrs[LIMIT_ENCLOSURES][LIMIT_LINKS]; /* of its links, by number   */
    uint8_t links_down[LIMIT_ENCLOSURES];           /* bit k of [i]: link k is down, alone     */
    uint8_t links_slow[LIMIT_ENCLOSURES];           /* bit k of [i]: link k is slow            */
    struct drive_log drive;                         /* the agent's own                            */
    enum agent_tier_state tier;                     /* what it was when it was told               */
    bool emptied;                                   /* that it was formatted was told             */
    char why[LIMIT_ENCLOSURES][LIMIT_REASON_BYTES]; /* why enclosure i is down, as told        */
    uint64_t why_ns[LIMIT_ENCLOSURES]; /* when another reason was told; 0: never              */
    struct version_log versions;
    struct agent_events_seen events;
};

/* Reasons that change are logged so often at most. */
#define MAIN_DOWN_NS ((uint64_t)30 * 1000 * 1000 * 1000)

/* An enclosure whose share is lowered is logged when half as many looks saw that; each look that
 * did not takes half of one back. So often at most. */
#define MAIN_LOWERED_LOOKS 12
#define MAIN_LOWERED_NS    ((uint64_t)60 * 1000 * 1000 * 1000)

/* An enclosure whose blocks are damaged is logged at once, and then so often. */
#define MAIN_DAMAGE_NS ((uint64_t)10 * 1000 * 1000 * 1000)

static void main_damage(const struct agent_stats *stats,
                        const struct agent_enclosure_stats *enclosure, struct main_seen *io_seen)
{
    uint32_t i = enclosure->number;
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());
    char key[2 * LIMIT_KEY_BYTES + 1] = "";

    if (enclosure->checksum_errors == io_seen->damaged[i] ||
        (io_seen->damaged_ns[i] != 0 && now_ns < io_seen->damaged_ns[i] + MAIN_DAMAGE_NS))
        return;
    for (uint32_t at = 0; at < enclosure->damaged_key.length; at++)
        (void)snprintf(key + (size_t)2 * at, 3, "%02x", enclosure->damaged_key.bytes[at]);
    log_line(LOG_WARN,
             "enclosure %s: blocks did not match their checksum and are misses; if this goes on, "
             "look at the log of its icms-target, and at the network; volume=%s key=%s new=%llu "
             "checksum_errors=%llu",
             enclosure->name, stats->volumes[enclosure->damaged_volume].name, key,
             (unsigned long long)(enclosure->checksum_errors - io_seen->damaged[i]),
             (unsigned long long)enclosure->checksum_errors);
    io_seen->damaged[i] = enclosure->checksum_errors;
    io_seen->damaged_ns[i] = now_ns;
}

static bool main_error_take(void *arg, struct store_error *out_error, uint64_t *out_missed)
{
    return agent_drive_error_take(arg, out_error, out_missed);
}

/* For main_volume. */
static const struct agent_stats *main_stats;

static const char *main_volume(void *arg, uint32_t volume)
{
    return main_stats->volumes[volume].name;
}

/* Says what the agent's own drive did wrong. */
static void main_drive(struct agent *agent, const struct agent_stats *stats, const char *path,
                       struct main_seen *io_seen)
{
    char name[LIMIT_PATH_BYTES + 16];
    const struct drive_log_source source = {name, main_error_take, main_volume, agent};
    struct store_stats drive;

    if (!agent_drive_stats(agent, &drive))
        return;
    main_stats = stats;
    (void)snprintf(name, sizeof(name), "drive (%s)", path);
    drive_log_look(&io_seen->drive, loop_env_now_ns(loop_env_uring()), &source, &drive);
}

/* Says when the own drive beside the pod is not used, and when it is again. */
static void main_tier(const struct agent_stats *stats, const char *path, struct main_seen *io_seen)
{
    const struct agent_tier_stats *tier = &stats->tier;

    if (stats->has_tier && tier->emptied != NULL && !io_seen->emptied)
        log_line(LOG_WARN, "drive (%s): formatted, it holds no blocks now: %s", path,
                 tier->emptied);
    io_seen->emptied = stats->has_tier && tier->emptied != NULL;
    if (!stats->has_tier || tier->state == io_seen->tier)
        return;
    if (tier->state == AGENT_TIER_DOWN)
        log_line(LOG_WARN,
                 "drive (%s): not used until the next start, the pod is used without it: %s", path,
                 tier->why);
    else if (tier->state == AGENT_TIER_SLOW)
        log_line(
            LOG_WARN,
            "drive (%s): slow, passed over while an enclosure can be asked: %s; slow_total=%llu",
            path, tier->why, (unsigned long long)tier->slow_total);
    else
        log_line(LOG_INFO, "drive (%s): recovered", path);
    io_seen->tier = tier->state;
}

/* An enclosure that becomes slow again and again is logged each time: less and less often. */
static void main_slow(const struct agent_enclosure_stats *enclosure, const struct conf_agent *conf,
                      struct main_seen *io_seen)
{
    uint32_t i = enclosure->number;
    uint64_t bit = (uint64_t)1 << i;

    if (enclosure->slow_total > io_seen->slow_total[i]) {
        log_line(LOG_WARN,
                 "enclosure %s: slow: %s; using the next enclosure, probing every %u ms; look at "
                 "the network and at the drives of its icms-target; slow_total=%llu",
                 enclosure->name, enclosure->last_error, conf->probe_ms,
                 (unsigned long long)enclosure->slow_total);
        io_seen->slow |= bit;
    }
    io_seen->slow_total[i] = enclosure->slow_total;
    if ((io_seen->slow & bit) != 0 && enclosure->state == AGENT_ENCLOSURE_UP)
        log_line(LOG_INFO, "enclosure %s: in time again", enclosure->name);
    if (enclosure->state != AGENT_ENCLOSURE_SLOW)
        io_seen->slow &= ~bit;
}

/* Its share is lowered for more than a third of the time. */
static void main_share(const struct agent_enclosure_stats *enclosure, struct main_seen *io_seen)
{
    uint32_t i = enclosure->number;
    uint64_t bit = (uint64_t)1 << i, now_ns = loop_env_now_ns(loop_env_uring());
    uint8_t *looks = &io_seen->lowered_looks[i];

    if (enclosure->share_percent < 100)
        *looks = (uint8_t)u64_min(*looks + 2u, MAIN_LOWERED_LOOKS);
    else if (*looks > 0)
        *looks -= 1;
    if (*looks == 0 && (io_seen->lowered & bit) != 0) {
        if (enclosure->state == AGENT_ENCLOSURE_UP)
            log_line(LOG_INFO, "enclosure %s: takes all of its new blocks again", enclosure->name);
        io_seen->lowered &= ~bit;
    }
    if (*looks < MAIN_LOWERED_LOOKS || (io_seen->lowered & bit) != 0 ||
        (io_seen->lowered_ns[i] != 0 && now_ns < io_seen->lowered_ns[i] + MAIN_LOWERED_NS))
        return;
    log_line(LOG_WARN,
             "enclosure %s: late now and then: part of its new blocks go to the next enclosure; "
             "look at the network and at the drives of its icms-target; share_percent=%u",
             enclosure->name, enclosure->share_percent);
    io_seen->lowered_ns[i] = now_ns;
    io_seen->lowered |= bit;
}

/* A link that fails or is late alone: the enclosure's other ones are used. */
static void main_link(const struct agent_enclosure_stats *enclosure,
                      const struct agent_link_stats *link, const struct conf_agent *conf,
                      struct main_seen *io_seen)
{
    uint8_t bit = (uint8_t)(1u << link->number);
    uint8_t *down = &io_seen->links_down[enclosure->number];
    uint8_t *slow = &io_seen->links_slow[enclosure->number];
    struct loop_addr *addr = &io_seen->addrs[enclosure->number][link->number];
    bool is_used = /* each reactor reaches it, so this link is not the only one */
        enclosure->state == AGENT_ENCLOSURE_UP || enclosure->state == AGENT_ENCLOSURE_SLOW;
    bool is_alone = enclosure->link_count > 1 && is_used;
    bool is_down = is_alone && link->state == AGENT_ENCLOSURE_EXCLUDED;
    bool is_slow = is_alone && link->state == AGENT_ENCLOSURE_SLOW;
    char text[LIMIT_ADDRESS_BYTES];

    if (!loop_addr_equal(addr, &link->addr)) {
        *addr = link->addr; /* what was seen is another address's */
        *down &= (uint8_t)~bit;
        *slow &= (uint8_t)~bit;
    }
    loop_addr_format(addr, text, sizeof(text));
    if (is_down && (*down & bit) == 0)
        log_line(LOG_WARN,
                 "enclosure %s: link %s marked down: %s; using its other addresses; retrying every "
                 "%u ms; excluded_total=%llu",
                 enclosure->name, text, link->last_error, conf->probe_ms,
                 (unsigned long long)link->excluded_count);
    if (is_slow && (*slow & bit) == 0)
        log_line(LOG_WARN,
                 "enclosure %s: link %s slow: %s; using its other addresses, probing every %u ms; "
                 "look at the network; slow_total=%llu",
                 enclosure->name, text, link->last_error, conf->probe_ms,
                 (unsigned long long)link->slow_total);
    if (link->state == AGENT_ENCLOSURE_UP && ((*down | *slow) & bit) != 0)
        log_line(LOG_INFO, "enclosure %s: link %s %s", enclosure->name, text,
                 (*down & bit) != 0 ? "recovered" : "in time again");
    *down = (uint8_t)(is_down ? *down | bit : *down & ~bit);
    *slow = (uint8_t)(is_slow ? *slow | bit : *slow & ~bit);
}

/* A value_max that an enclosure has otherwise is logged once, not once for each enclosure. */
static void main_value_max(const struct agent_stats *stats, struct main_seen *io_seen)
{
    uint64_t differ = 0;

    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        const struct agent_enclosure_stats *enclosure = &stats->enclosures[i];
        uint64_t new = enclosure->value_max_differ & ~differ & ~io_seen->value_max_differ;

        for (uint32_t j = 0; j < stats->volume_count; j++)
            if ((new >> j & 1) != 0)
                log_line(LOG_WARN,
                         "volume %s: value_max is %llu bytes here, and %llu at enclosure %s: "
                         "blocks that do not fit are neither stored nor found; set it alike at "
                         "targets and agents",
                         stats->volumes[j].name, (unsigned long long)stats->volumes[j].value_max,
                         (unsigned long long)enclosure->value_max_there[j], enclosure->name);
        differ |= enclosure->value_max_differ;
    }
    io_seen->value_max_differ = differ;
}

/* Settings in which other agents differ are logged once, not once for each enclosure. */
static void main_settings(const struct agent_stats *stats, struct main_seen *io_seen)
{
    bool enclosures_differ = false, weights_differ = false;
    uint64_t run_blocks_differ = 0;

    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        const struct agent_enclosure_stats *enclosure = &stats->enclosures[i];

        enclosures_differ |= enclosure->enclosures_differ;
        weights_differ |= enclosure->weights_differ;
        for (uint32_t j = 0; j < stats->volume_count; j++)
            if (((enclosure->run_blocks_differ & ~run_blocks_differ &
                  ~io_seen->run_blocks_differ) >>
                     j &
                 1) != 0)
                log_line(LOG_WARN,
                         "volume %s: run_blocks is %u here, and %u at other hosts of enclosure %s: "
                         "they do not find each other's blocks; set it alike in the configuration "
                         "of each icms-agent",
                         stats->volumes[j].name, stats->volumes[j].run_blocks,
                         enclosure->run_blocks_others[j], enclosure->name);
        run_blocks_differ |= enclosure->run_blocks_differ;
    }
    if ((enclosures_differ && !io_seen->enclosures_differ) ||
        (weights_differ && !enclosures_differ && !io_seen->weights_differ))
        log_line(LOG_WARN,
                 "enclosures: their %s are not those that other hosts have: they do not find each "
                 "other's blocks; compare `enclosures` in the configuration of each icms-agent",
                 enclosures_differ ? "UUIDs" : "weights");
    io_seen->enclosures_differ = enclosures_differ;
    io_seen->weights_differ = weights_differ;
    io_seen->run_blocks_differ = run_blocks_differ;
}

/* Maps reach one server after the other: a later one elsewhere is logged when it stays so. */
#define MAIN_EPOCH_NS ((uint64_t)10 * 1000 * 1000 * 1000)

/* Enclosures whose targets have a later epoch are logged once for each epoch of our own. */
static void main_epoch(const struct agent_stats *stats, struct main_seen *io_seen)
{
    const struct agent_enclosure_stats *latest = NULL;
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());
    uint32_t count = 0;

    for (uint32_t i = 0; i < stats->enclosure_count; i++) {
        const struct agent_enclosure_stats *enclosure = &stats->enclosures[i];

        count += enclosure->epoch_there != 0;
        if (latest == NULL || latest->epoch_there < enclosure->epoch_there)
            latest = enclosure;
    }
    if (count == 0 || io_seen->epoch != stats->epoch) {
        io_seen->epoch = stats->epoch;
        io_seen->epoch_ns = now_ns;
        io_seen->epoch_said = false;
    }
    if (io_seen->epoch_said || now_ns - io_seen->epoch_ns < MAIN_EPOCH_NS)
        return;
    io_seen->epoch_said = true;
    log_line(LOG_WARN,
             "pod map: epoch %llu is in use here, and a later one at %u of %u enclosures, such as "
             "%u at %s: the map of this server is old, and what changed since then is missed; copy "
             "the newer map here; compare: `icms pod status`",
             (unsigned long long)stats->epoch, count, stats->enclosure_count, latest->epoch_there,
             latest->name);
}

/* How something is proven; NULL: not at all. */
static const char *main_method(bool chap, bool tls)
{
    return chap && tls ? "chap+tls" : chap ? "chap" : tls ? "tls" : NULL;
}

/* An enclosure came up, or went down, where keys are used. One that goes up and down tells so at
 * most as often as it is looked at. */
static void main_enclosure_audit(const struct agent_enclosure_stats *enclosure,
                                 struct main_seen *io_seen)
{
    uint32_t i = enclosure->number;
    uint64_t bit = (uint64_t)1 << i, refused = enclosure->auths_refused - io_seen->auths_refused[i];
    const char *method = main_method(enclosure->has_secret, enclosure->has_psk);
    const char *proven =
        main_method(strcmp(enclosure->auth, "none") != 0, strcmp(enclosure->tls, "none") != 0);
    bool all = proven != NULL && method != NULL && strcmp(proven, method) == 0;
    const char *result = all ? "passed" : "the enclosure asked for less than is configured here";
    bool is_up = enclosure->state == AGENT_ENCLOSURE_UP || enclosure->state == AGENT_ENCLOSURE_SLOW;
    bool was_up = (io_seen->up & bit) != 0;
    bool is_down = enclosure->state == AGENT_ENCLOSURE_EXCLUDED;
    char address[LIMIT_ADDRESS_BYTES];

    loop_addr_format(&enclosure->links[0].addr, address, sizeof(address));
    io_seen->up = is_up ? io_seen->up | bit : io_seen->up & ~bit;
    if (method != NULL && is_up && !was_up)
        ctl_audit_write(&main_audit, &(struct ctl_audit_event){.event = "authentication",
                                                               .method = proven,
                                                               .host = enclosure->name,
                                                               .peer = address,
                                                               .result = result});
    if (method != NULL && is_down && (io_seen->excluded & bit) == 0)
        ctl_audit_write(&main_audit, &(struct ctl_audit_event){
                                         .event = refused > 0 ? "authentication" : "enclosure",
                                         .method = refused > 0 ? "chap" : method,
                                         .host = enclosure->name,
                                         .peer = address,
                                         .result = enclosure->last_error,
                                         .missed = refused > 0 ? refused - 1 : 0});
}

/* One line a minute about users that were refused, whoever they are. */
#define MAIN_USER_NS ((uint64_t)60 * 1000 * 1000 * 1000)

static void main_users(const struct agent_stats *stats, struct main_seen *io_seen)
{
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());
    uint64_t refused = stats->clients_refused - io_seen->users_refused;
    char user[16];

    if (refused == 0 || (io_seen->user_ns != 0 && now_ns < io_seen->user_ns + MAIN_USER_NS))
        return;
    (void)snprintf(user, sizeof(user), "%u", stats->refused_user);
    log_line(LOG_WARN,
             "user %s: refused: it may use no volume, or has too many clients; unlogged=%llu", user,
             (unsigned long long)(refused - 1));
    ctl_audit_write(&main_audit, &(struct ctl_audit_event){
                                     .event = "refusal",
                                     .user = user,
                                     .result = "it may use no volume, or has too many clients",
                                     .missed = refused - 1});
    io_seen->users_refused = stats->clients_refused;
    io_seen->user_ns = now_ns;
}

/* What the configuration says of volumes, at the start: an auditor compares it with the start
 * before. */
static void main_volumes_audit(const struct conf_agent *conf)
{
    char text[160], uuid[UUID_TEXT_BYTES];

    for (uint32_t i = 0; i < conf->volume_count; i++) {
        const struct volume_spec *volume = &conf->volumes[i];

        (void)snprintf(
            text, sizeof(text), "served: uuid=%s generation=%u encrypted=%s users=%u groups=%u",
            uuid_format(&volume->uuid, uuid), volume->generation,
            volume->encrypted ? "true" : "false", volume->user_count, volume->group_count);
        ctl_audit_write(
            &main_audit,
            &(struct ctl_audit_event){.event = "volume", .volume = volume->name, .result = text});
    }
}

/* What another enclosure had under this number says nothing of this one. */
static void main_seen_forget(const struct agent_enclosure_stats *enclosure,
                             struct main_seen *io_seen)
{
    uint32_t i = enclosure->number;
    uint64_t bit = (uint64_t)1 << i;

    if (uuid_equal(&io_seen->uuid[i], &enclosure->uuid))
        return;
    io_seen->uuid[i] = enclosure->uuid;
    io_seen->excluded &= ~bit;
    io_seen->slow &= ~bit;
    io_seen->lowered &= ~bit;
    io_seen->lowered_looks[i] = 0;
    io_seen->lowered_ns[i] = 0;
    io_seen->up &= ~bit;
    io_seen->links_down[i] = io_seen->links_slow[i] = 0;
    io_seen->slow_total[i] = io_seen->missing[i] = io_seen->damaged[i] = 0;
    io_seen->damaged_ns[i] = io_seen->auths_refused[i] = 0;
}

/* None of its links is up: each of them with its reason. */
static void main_down(const struct agent_enclosure_stats *enclosure, const struct conf_agent *conf)
{
    char text[LIMIT_ADDRESS_BYTES];

    if (enclosure->link_count < 2) {
        log_line(LOG_WARN, "enclosure %s: marked down: %s; retrying every %u ms", enclosure->name,
                 enclosure->last_error, conf->probe_ms);
        return;
    }
    for (uint32_t i = 0; i < enclosure->link_count; i++) {
        const struct agent_link_stats *link = &enclosure->links[i];

        log_line(LOG_WARN, "enclosure %s: link %s is down: %s", enclosure->name,
                 loop_addr_format(&link->addr, text, sizeof(text)), link->last_error);
    }
    log_line(LOG_WARN,
             "enclosure %s: marked down: none of its %u addresses is left; retrying "
             "every %u ms",
             enclosure->name, enclosure->link_count, conf->probe_ms);
}

/* It is down since the last call, or for another reason than the one that was logged, which may be
 * one of this machine. */
static void main_excluded(const struct agent_enclosure_stats *enclosure,
                          const struct conf_agent *conf, struct main_seen *io_seen)
{
    uint32_t i = enclosure->number;
    bool was_down = (io_seen->excluded >> i & 1) != 0;
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());

    if (was_down && (strcmp(io_seen->why[i], enclosure->last_error) == 0 ||
                     (io_seen->why_ns[i] != 0 && now_ns < io_seen->why_ns[i] + MAIN_DOWN_NS)))
        return;
    if (was_down)
        log_line(LOG_WARN, "enclosure %s: still down: %s", enclosure->name, enclosure->last_error);
    else
        main_down(enclosure, conf);
    (void)snprintf(io_seen->why[i], sizeof(io_seen->why[i]), "%s", enclosure->last_error);
    io_seen->why_ns[i] = was_down ? now_ns : 0;
}

/* Logs what changed at the enclosures since the last call. */
static void main_look(struct agent *agent, const struct conf_agent *conf, struct main_seen *io_seen)
{
    static struct agent_stats stats;
    uint64_t excluded = 0;

    agent_stats(agent, &stats);
    for (uint32_t i = 0; i < stats.enclosure_count; i++) {
        const struct agent_enclosure_stats *enclosure = &stats.enclosures[i];
        uint64_t bit = (uint64_t)1 << enclosure->number;

        main_seen_forget(enclosure, io_seen);
        if (enclosure->state == AGENT_ENCLOSURE_EXCLUDED ||
            (enclosure->state == AGENT_ENCLOSURE_CONNECTING && (io_seen->excluded & bit) != 0))
            excluded |= bit; /* another address of it is not an answer yet */
        if ((excluded & bit) != 0)
            main_excluded(enclosure, conf, io_seen);
        else if ((io_seen->excluded & bit) != 0)
            log_line(LOG_INFO, "enclosure %s: recovered", enclosure->name);
        main_enclosure_audit(enclosure, io_seen);
        io_seen->auths_refused[enclosure->number] = enclosure->auths_refused;
        for (uint32_t j = 0; j < stats.volume_count; j++)
            if (((enclosure->missing & ~io_seen->missing[enclosure->number]) >> j & 1) != 0)
                log_line(
                    LOG_WARN,
                    "enclosure %s: volume %s missing, not allowed for this host, or of another "
                    "generation or encrypted; using the next enclosure; will retry",
                    enclosure->name, stats.volumes[j].name);
        io_seen->missing[enclosure->number] = enclosure->missing;
        main_slow(enclosure, conf, io_seen);
        main_share(enclosure, io_seen);
        for (uint32_t j = 0; j < enclosure->link_count; j++)
            main_link(enclosure, &enclosure->links[j], conf, io_seen);
        main_damage(&stats, enclosure, io_seen);
    }
    main_epoch(&stats, io_seen);
    main_settings(&stats, io_seen);
    main_value_max(&stats, io_seen);
    version_log_look(&io_seen->versions, loop_env_now_ns(loop_env_uring()), &stats);
    main_users(&stats, io_seen);
    agent_events_look(main_page.events, loop_env_now_ns(loop_env_uring()), &io_seen->events);
    main_drive(agent, &stats, conf->local_path, io_seen);
    main_tier(&stats, conf->local_path, io_seen);
    io_seen->excluded = excluded;
}

static void main_keys_said(void *arg, const char *enclosure, const char *why)
{
    (void)arg;
    daemon_keys_said(&main_audit, "enclosure", enclosure, "connections that are up stay", why);
}

static void main_serve(const struct daemon_opts *opts, const struct conf_agent *conf,
                       const struct agent_opts *agent_opts, struct agent *agent,
                       struct ctl_http *http)
{
    static struct main_seen seen;
    enum daemon_signal number;

    main_look(agent, conf, &seen);
    if (http != NULL)
        daemon_ready(opts, "socket=%s http=%u", conf->socket, ctl_http_port(http));
    else
        daemon_ready(opts, "socket=%s", conf->socket);
    while ((number = daemon_wait(MAIN_LOOK_MS, &main_heartbeat)) != DAEMON_END) {
        if (number == DAEMON_READ_AGAIN && main_watch != NULL)
            pod_watch_look(main_watch);
        else if (number == DAEMON_READ_AGAIN)
            agent_keys_read_again(agent, agent_opts, main_keys_said, NULL);
        if (number == DAEMON_READ_AGAIN)
            daemon_http_read_again(http, conf->http.listen, &main_audit);
        main_look(agent, conf, &seen);
    }
    if (!agent_drain(agent, MAIN_DRAIN_MS))
        log_line(LOG_WARN, "not drained within %d s: accepted blocks may not be on flash",
                 MAIN_DRAIN_MS / 1000);
}

/* What the pod map came to. */
static void main_pod_say(void *arg, enum pod_map_say how, const char *sentence)
{
    (void)arg;
    log_line(how == POD_MAP_TAKEN ? LOG_INFO : LOG_WARN, "%s", sentence);
}

static const struct pod_watch_told main_pod_told = {.say = main_pod_say, .keys = main_keys_said};

/* Whether its own drive is one. */
static icms_err main_drive_check(const struct daemon_opts *opts, const struct conf_agent *conf,
                                 struct err_why *why)
{
    icms_err err;

    if (!opts->check_config || conf->local_path[0] == '\0')
        return ICMS_OK;
    err = daemon_drive_check(opts->config, conf->local_path, conf->local_bytes, why);
    if (err != ICMS_NOT_FOUND)
        return err;
    daemon_here_warn(NULL, why->text);
    return ICMS_OK;
}

/* The agent's options, and whether it could start with them. */
static icms_err main_check(const struct daemon_opts *opts, const struct conf_agent *conf,
                           struct pod_watch *watch, struct err_why *why,
                           struct agent_opts *out_opts)
{
    static struct agent_enclosure_opts enclosures[LIMIT_ENCLOSURES];
    uint64_t memory_bytes = 0;
    icms_err err = agent_opts_from_conf(conf, enclosures, why, out_opts);

    if (err == ICMS_OK) {
        pod_watch_opts(watch, out_opts);
        out_opts->events = agent_events_volumes(conf);
        err = agent_check(out_opts, why, &memory_bytes);
    }
    if (err == ICMS_OK)
        err = daemon_http_check(&conf->http, why);
    if (err == ICMS_OK)
        err = main_drive_check(opts, conf, why);
    if (err == ICMS_OK)
        err = daemon_memory_check(opts, program.name, memory_bytes, "memory, with its tables", why);
    return err;
}

/* Keys of models are made with the run_blocks that clients make keys with: the pod map's, where the
 * configuration leaves it to that. */
static void main_models(const struct agent_opts *agent_opts, struct conf_agent *conf)
{
    for (uint32_t i = 0; i < conf->volume_count; i++)
        conf->volumes[i].run_blocks = agent_opts->volumes[i].run_blocks;
}

/* What the agent's own drive held before agent_new, which formats one that is empty. */
static enum store_holds main_drive_holds(const struct conf_agent *conf)
{
    struct store_contents contents = {.holds = STORE_HOLDS_STORE};

    if (conf->local_path[0] == '\0' ||
        store_look(loop_env_uring(), conf->local_path, NULL, &contents) != ICMS_OK)
        return STORE_HOLDS_STORE;
    return contents.holds;
}

static void main_drive_formatted(struct agent *agent, const struct conf_agent *conf,
                                 enum store_holds before)
{
    struct store_stats drive;

    if (before != STORE_HOLDS_STORE && agent_drive_stats(agent, &drive))
        log_line(LOG_WARN, "drive (%s): formatted: %s; it holds no blocks now", conf->local_path,
                 before == STORE_HOLDS_NO_FILE ? "the file was missing, and is made"
                                               : "it held nothing");
}

static int main_run(const struct daemon_opts *opts, struct conf_agent *conf)
{
    enum store_holds before = main_drive_holds(conf);
    struct agent_opts agent_opts;
    struct agent *agent = NULL;
    struct attach *attach = NULL;
    struct ctl_http *http = NULL;
    struct events *events = NULL;
    struct pod_watch *watch;
    struct err_why why = {""};
    icms_err err = pod_watch_new(conf, &main_pod_told, &why, &watch);

    if (err != ICMS_OK)
        return daemon_failed(ICMS_CONFIG, &why, "icms-agent cannot read its pod map");
    err = main_check(opts, conf, watch, &why, &agent_opts);
    if (err == ICMS_OK && opts->check_config) {
        pod_watch_free(&watch);
        return daemon_config_right(opts);
    }
    if (err == ICMS_OK)
        err = daemon_begin(opts, 0, &why);
    if (err == ICMS_OK)
        err = agent_new(loop_env_uring(), &agent_opts, &why, &agent);
    if (err == ICMS_OK)
        main_drive_formatted(agent, conf, before);
    if (err == ICMS_OK)
        err = ctl_audit_init(&main_audit, program.name, conf->audit, &why);
    if (err == ICMS_OK)
        err = agent_events_start(conf, agent, &why, &events);
    if (err == ICMS_OK) {
        main_volumes_audit(conf);
        main_models(&agent_opts, conf);
        main_page.events = events;
        err = main_http(conf, agent, &why, &http);
    }
    if (err == ICMS_OK)
        err = agent_start(agent, &why);
    if (err == ICMS_OK) {
        agent_wait_tried(agent, MAIN_TRIED_MS);
        main_watch = watch;
        err = pod_watch_start(watch, agent, &why);
        if (err == ICMS_OK)
            err = attach_start(agent, conf->socket, conf->socket_mode, &why, &attach);
        if (err == ICMS_OK) {
            atomic_store(&main_page.attaching, true);
            main_serve(opts, conf, &agent_opts, agent, http);
        } else {
            (void)agent_drain(agent, MAIN_DRAIN_MS); /* its drive is left in order */
        }
        attach_stop(&attach);
        pod_watch_free(&watch);
        agent_stop(agent);
    }
    ctl_http_stop(&http);
    events_stop(&events);
    agent_free(&agent);
    pod_watch_free(&watch);
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
    if (conf->local_path[0] != '\0')
        daemon_drive_warn(conf->local_path);
    status = main_run(&opts, conf);
    conf_agent_fini(conf);
    free(conf);
    return status;
}
