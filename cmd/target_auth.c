/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_auth.c: what icms-target says of authentications and refusals, see target_auth.h.
 *
 * A stranger chooses its name, so names cannot bound the lines: there is a budget for all of them,
 * which passes do not use up for failures: each has its own.
 */
#include "target_auth.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

#define AUTH_MINUTE_NS ((uint64_t)60 * 1000 * 1000 * 1000)

/* Hosts and results that were said lately; more than that are said again. */
#define AUTH_KEPT 64

/* Lines at once, and the interval after which there may be one more. */
#define AUTH_LINES 10
#define AUTH_NS    ((uint64_t)10 * 1000 * 1000 * 1000)

struct auth_kept {
    char hostnqn[LIMIT_NQN_BYTES];
    enum nvmf_target_auth_result result;
    uint64_t said_ns; /* 0: unused */
};

/* Passes and failures. */
struct auth_budget {
    struct auth_kept kept[AUTH_KEPT];
    uint32_t lines;   /* that may still be said   */
    uint64_t line_ns; /* when it grew last        */
    uint64_t missed;  /* since the last that was said */
};

bool target_auth_said(const struct nvmf_target_auth *auth, uint64_t now_ns, uint64_t *out_missed)
{
    static struct auth_budget budgets[2] = {{.lines = AUTH_LINES}, {.lines = AUTH_LINES}};
    struct auth_budget *budget = &budgets[nvmf_target_auth_is_pass(auth->result)];
    struct auth_kept *oldest = &budget->kept[0];

    if (now_ns >= budget->line_ns + AUTH_NS) {
        uint64_t more = budget->line_ns == 0 ? AUTH_LINES : (now_ns - budget->line_ns) / AUTH_NS;

        budget->lines =
            (uint32_t)(budget->lines + more > AUTH_LINES ? AUTH_LINES : budget->lines + more);
        budget->line_ns = now_ns;
    }
    for (uint32_t i = 0; i < AUTH_KEPT; i++) {
        struct auth_kept *kept = &budget->kept[i];

        if (kept->said_ns < oldest->said_ns)
            oldest = kept;
        if (kept->said_ns != 0 && now_ns < kept->said_ns + AUTH_MINUTE_NS &&
            kept->result == auth->result && strcmp(kept->hostnqn, auth->hostnqn) == 0) {
            budget->missed++;
            return false;
        }
    }
    if (budget->lines == 0) {
        budget->missed++;
        return false;
    }
    budget->lines--;
    (void)snprintf(oldest->hostnqn, sizeof(oldest->hostnqn), "%s", auth->hostnqn);
    oldest->result = auth->result;
    oldest->said_ns = now_ns;
    *out_missed = budget->missed;
    budget->missed = 0;
    return true;
}

static void auth_tell(const struct nvmf_target_auth *auth, uint64_t missed,
                      const struct ctl_audit *audit)
{
    const char *method = nvmf_target_auth_method(auth->result);
    const char *host = auth->hostnqn[0] != '\0' ? auth->hostnqn : "(not named)";
    const char *what = nvmf_target_auth_text(auth->result);
    char peer[64] = "";

    if (auth->peer.host[0] != '\0')
        loop_addr_format(&auth->peer, peer, sizeof(peer));
    ctl_audit_write(audit, &(struct ctl_audit_event){
                               .event = method != NULL ? "authentication" : "refusal",
                               .method = method,
                               .host = auth->hostnqn,
                               .peer = peer[0] != '\0' ? peer : NULL,
                               .result = auth->why[0] != '\0' ? auth->why : what,
                               .queue = auth->qid,
                               .missed = missed,
                           });
    if (!nvmf_target_auth_is_pass(auth->result))
        log_line(LOG_WARN, "host %s: %s: %s%s%s; peer=%s queue=%u unlogged=%llu", host,
                 method != NULL ? "not authenticated" : "refused", what,
                 auth->why[0] != '\0' ? ": " : "", auth->why, peer[0] != '\0' ? peer : "unknown",
                 auth->qid, (unsigned long long)missed);
}

void target_auths(struct target *target, const struct ctl_audit *audit)
{
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());
    static uint64_t lost; /* found no place in the target */
    struct nvmf_target_auth auth;
    uint64_t missed;

    while (nvmf_target_auth_take(target_nvmf(target), &auth, &missed)) {
        lost += missed;
        if (!target_auth_said(&auth, now_ns, &missed))
            continue;
        missed += lost;
        lost = 0;
        auth_tell(&auth, missed, audit);
    }
}

static const char *auth_require(uint8_t require)
{
    static const char *const names[] = {"none", "chap", "tls", "chap+tls"};

    return names[require & (REQUIRE_CHAP | REQUIRE_TLS)];
}

void target_auth_volume(const struct ctl_audit *audit, const struct volume_spec *volume,
                        const char *what)
{
    char text[256], uuid[UUID_TEXT_BYTES];

    (void)snprintf(text, sizeof(text), "%s: uuid=%s generation=%u encrypted=%s require=%s hosts=%u",
                   what, uuid_format(&volume->uuid, uuid), volume->generation,
                   volume->encrypted ? "true" : "false", auth_require(volume->require),
                   volume->host_count);
    ctl_audit_write(audit, &(struct ctl_audit_event){
                               .event = "volume", .volume = volume->name, .result = text});
}

void target_auth_conf(const struct conf_target *conf, const struct ctl_audit *audit)
{
    char text[256];

    for (uint32_t i = 0; i < conf->volume_count; i++)
        target_auth_volume(audit, &conf->volumes[i], "served");
    for (uint32_t i = 0; i < conf->host_count; i++) {
        const struct conf_host *host = &conf->hosts[i];

        (void)snprintf(text, sizeof(text),
                       "known: require=%s secrets=%u controller_secret=%s psks=%u",
                       auth_require(host->require), host->secret_count,
                       host->controller_secret[0] != '\0' ? "true" : "false", host->psk_count);
        ctl_audit_write(
            audit, &(struct ctl_audit_event){.event = "host", .host = host->nqn, .result = text});
    }
}
