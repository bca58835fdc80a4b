/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/etcd_register.c: icms-etcd register.
 *
 * The target is asked whether its data port takes a connection, and where it has an HTTP port for
 * /healthz, and for /status, whether it is this one. While it answers its key lives under a lease;
 * when it does not, or this program ends, the lease is ended, and when this program or its machine
 * dies, the lease runs out.
 */
#include <curl/curl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/conf.h"
#include "icms_etcd.h"
#include "status_place.h"

#define REGISTER_LEASE_S 10
#define REGISTER_MS      3000
#define REGISTER_ASK_MS  1000

struct registered {
    const struct etcd_run *run;
    struct conf_target *target;
    char key[ETCD_KEY_BYTES];
    char *text;     /* the value */
    uint64_t lease; /* 0: none   */
    struct etcd_talk talk;
};

static size_t page_drop(char *data, size_t size, size_t count, void *arg)
{
    (void)data;
    (void)arg;
    return size * count;
}

/* One question to this machine. path NULL: whether the port takes a connection. */
static bool answers(const char *scheme, const char *address, const char *path)
{
    CURL *curl = curl_easy_init();
    char url[160];
    long status = 0;
    bool is_there;

    if (curl == NULL)
        return false;
    (void)snprintf(url, sizeof(url), "%s://%s%s", scheme, address, path != NULL ? path : "");
    (void)curl_easy_setopt(curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(curl, CURLOPT_PROXY, "");
    (void)curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)REGISTER_ASK_MS);
    (void)curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, page_drop);
    /* It is asked whether somebody answers on this machine, not who. */
    (void)curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
    (void)curl_easy_setopt(curl, CURLOPT_CONNECT_ONLY, path != NULL ? 0L : 1L);
    is_there = curl_easy_perform(curl) == CURLE_OK;
    (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(curl);
    return is_there && (path == NULL || status == 200);
}

/* Whether it is this target that answers, and not another one of this machine whose file has the
 * same ports. Not asked where a proof is needed that would be a stranger's, too: a token goes only
 * to who has the key of http.certificate, as anybody here may listen while the target does not. */
static bool target_is_itself(const struct conf_target *target, const char *file,
                             struct err_why *why)
{
    const struct conf_http *http = &target->http;
    bool is_closed =
        http->token[0] != '\0' ? http->certificate[0] == '\0' : http->client_ca[0] != '\0';
    json_t *status = is_closed ? NULL : status_ask_http(http, file, REGISTER_ASK_MS, why);
    const char *nqn = json_string_value(json_object_get(status, "nqn"));
    bool is_same = is_closed || (nqn != NULL && strcmp(nqn, target->nqn) == 0);

    if (status != NULL && !is_same)
        (void)err_set(why, ICMS_EXISTS,
                      "another one answers at %s, with the NQN %.100s: give each target of a "
                      "machine its own listen and http.listen",
                      http->listen, nqn != NULL ? nqn : "(none)");
    json_decref(status);
    return is_same;
}

/* One of its data ports, and its health, by default at a port that is another target's when two run
 * on a machine without saying so. */
static bool target_answers(const struct conf_target *target, const char *file, struct err_why *why)
{
    const struct conf_http *http = &target->http;
    bool is_there = false;

    for (uint32_t i = 0; i < target->listen_count && !is_there; i++)
        is_there = answers("http", target->listen[i], NULL);
    if (is_there && http->listen[0] != '\0')
        is_there =
            answers(http->certificate[0] != '\0' ? "https" : "http", http->listen, "/healthz");
    if (!is_there)
        (void)err_set(why, ICMS_PEER_DOWN, "it does not answer");
    return is_there && (http->listen[0] == '\0' || target_is_itself(target, file, why));
}

static bool is_wildcard(const char *address)
{
    return strncmp(address, "0.0.0.0:", 8) == 0 || strncmp(address, "[::]:", 5) == 0;
}

/* Where agents connect: a text, or with several portals a list, as in a pod map. NULL: nowhere. */
static json_t *target_addresses(const struct conf_target *target)
{
    json_t *list = json_array(), *one;

    for (uint32_t i = 0; i < target->advertise_count; i++)
        if (!is_wildcard(target->advertise[i]))
            (void)json_array_append_new(list, json_string(target->advertise[i]));
    if (json_array_size(list) > 1)
        return list;
    one = json_incref(json_array_get(list, 0));
    json_decref(list);
    return one;
}

/* The value of a target's key; freed by the caller. */
static icms_err target_text(const struct conf_target *target, const char *file, char **out_text,
                            struct err_why *why)
{
    char uuid[UUID_TEXT_BYTES];
    json_t *address = target_addresses(target), *json;

    if (address == NULL)
        return err_set(why, ICMS_CONFIG,
                       "%s: agents cannot connect to %s: write advertise, the address for them",
                       file, target->advertise[0]);
    json = json_pack("{s:s, s:o, s:s, s:s}", "name", target->name, "address", address, "uuid",
                     uuid_format(&target->uuid, uuid), "nqn", target->nqn);
    *out_text = json != NULL ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return *out_text != NULL ? ICMS_OK : err_set(why, ICMS_NO_MEMORY, "out of memory");
}

/* The lease goes on, or there is a new one. */
static icms_err registered_lease(struct registered *reg, struct err_why *why)
{
    icms_err err = ICMS_NOT_FOUND;

    if (reg->lease != 0)
        err = etcd_lease_keep(reg->run->etcd, reg->lease, why);
    if (err == ICMS_NOT_FOUND)
        err = etcd_lease(reg->run->etcd, REGISTER_LEASE_S, &reg->lease, why);
    return err;
}

/* What another machine wrote, for a log. */
static const char *plain(char *text)
{
    for (size_t i = 0; text[i] != '\0'; i++)
        if (text[i] < ' ' || text[i] > '~')
            text[i] = '?';
    return text;
}

/* The key is there, under the lease. EXISTS: another target has the name. */
static icms_err registered_put(struct registered *reg, struct err_why *why)
{
    struct etcd *etcd = reg->run->etcd;
    struct etcd_value value = {.text = NULL};
    uint64_t revision;
    icms_err err = registered_lease(reg, why);

    if (err == ICMS_OK)
        err = etcd_get(etcd, reg->key, &value, why);
    if (err == ICMS_OK && value.text != NULL && strcmp(value.text, reg->text) != 0)
        err = err_set(why, ICMS_EXISTS, "another target is registered as %s: %.200s",
                      reg->target->name, plain(value.text));
    if (err == ICMS_OK && (value.text == NULL || value.lease != reg->lease))
        err = etcd_put(etcd, reg->key, reg->text, strlen(reg->text), value.revision, reg->lease,
                       &revision, why);
    free(value.text);
    return err;
}

static void registered_end(struct registered *reg)
{
    struct err_why why = {""};

    if (reg->lease != 0 && etcd_lease_end(reg->run->etcd, reg->lease, &why) != ICMS_OK)
        log_line(LOG_WARN, "target %s: its lease of %u s runs out by itself: %s", reg->target->name,
                 REGISTER_LEASE_S, why.text);
    reg->lease = 0;
}

static void registered_turn(struct registered *reg)
{
    char sentence[ERR_WHY_BYTES_MAX + 128];
    struct err_why why = {""};
    icms_err err;

    if (!target_answers(reg->target, reg->run->file, &why)) {
        registered_end(reg);
        (void)snprintf(sentence, sizeof(sentence), "target %s: %s; not registered",
                       reg->target->name, why.text);
        etcd_said(&reg->talk, LOG_WARN, sentence);
        return;
    }
    err = registered_put(reg, &why);
    if (err == ICMS_OK)
        (void)snprintf(sentence, sizeof(sentence), "target %s: registered as %s", reg->target->name,
                       reg->key);
    else
        (void)snprintf(sentence, sizeof(sentence), "target %s: %s", reg->target->name, why.text);
    if (err == ICMS_EXISTS)
        registered_end(reg);
    etcd_said(&reg->talk, err == ICMS_OK ? LOG_INFO : LOG_WARN, sentence);
}

/* Reads the configuration. What was registered of another one ends; after an error it stays. */
static icms_err registered_read(struct registered *reg, struct err_why *why)
{
    struct conf_target *target = calloc(1, sizeof(*target));
    char *text = NULL;
    icms_err err = target != NULL ? conf_target_read(reg->run->file, why, target)
                                  : err_set(why, ICMS_NO_MEMORY, "out of memory");

    if (err == ICMS_OK)
        err = target_text(target, reg->run->file, &text, why);
    if (err != ICMS_OK) {
        if (target != NULL)
            conf_target_fini(target);
        free(target);
        return err;
    }
    if (reg->target != NULL) {
        if (strcmp(reg->text, text) != 0)
            registered_end(reg);
        conf_target_fini(reg->target);
        free(reg->target);
        free(reg->text);
    }
    reg->target = target;
    reg->text = text;
    (void)snprintf(reg->key, sizeof(reg->key), "%s/targets/%s", reg->run->prefix, target->name);
    return ICMS_OK;
}

icms_err etcd_register(const struct etcd_run *run, struct err_why *why)
{
    struct registered reg = {.run = run};
    enum etcd_wake wake = etcd_sleep(0); /* signals come there alone from here on */
    icms_err err = registered_read(&reg, why);

    if (err != ICMS_OK)
        return err;
    while (wake != ETCD_WAKE_END) {
        if (wake == ETCD_WAKE_ASKED) {
            reg.talk.said[0] = '\0';
            if (registered_read(&reg, why) != ICMS_OK)
                log_line(LOG_WARN, "target %s: registered as before: %s", reg.target->name,
                         why->text);
        }
        registered_turn(&reg);
        wake = etcd_sleep(etcd_soon(REGISTER_MS));
    }
    registered_end(&reg);
    log_line(LOG_INFO, "target %s: not registered any more", reg.target->name);
    conf_target_fini(reg.target);
    free(reg.target);
    free(reg.text);
    return ICMS_OK;
}
