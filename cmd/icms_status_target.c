/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_status_target.c: icms status --target: /status of a target as JSON, or as tables.
 *
 * status_target() has one life: place_find() makes the URL, the token and the key that the target
 * has to have, of its configuration or of a URL alone; place_ask() reads the page; the rest prints
 * it. What came is not believed: it is bounded, control characters are replaced, and what is
 * missing or of another type is shown as "-" or 0.
 */
#include <curl/curl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/limits.h"
#include "conf/conf.h"
#include "crypt/secret.h"
#include "icms_status.h"
#include "loop/loop.h"

#define PLACE_TIMEOUT_MS 10000L
#define PLACE_PIN_BYTES  64 /* "sha256//", 44 characters of base64, a zero byte */

/* Whom to ask, and what came. */
struct place {
    char url[LIMIT_PATH_BYTES];
    struct secret *token;      /* NULL: none                                                     */
    char pin[PLACE_PIN_BYTES]; /* of the public key that has to answer; "": none, or authorities */
    bool wants_certificate;    /* of a client, and takes no token                                */
    char *text;                /* the answer, with a zero byte                                   */
    size_t bytes;
    char reason[CURL_ERROR_SIZE];
};

/* ---- where ---------------------------------------------------------------------------------- */

/* The key of the certificate that the target's file names: this one has to answer, whoever signed
 * it and whatever names it has. */
static icms_err place_pin(struct place *place, const char *path, struct err_why *why)
{
    uint8_t *der = NULL, hash[EVP_MAX_MD_SIZE];
    FILE *file = fopen(path, "re");
    X509 *cert = file == NULL ? NULL : PEM_read_X509(file, NULL, NULL, NULL);
    int bytes = cert == NULL ? 0 : i2d_X509_PUBKEY(X509_get_X509_PUBKEY(cert), &der);
    unsigned length = 0;
    bool is_made =
        bytes > 0 && EVP_Digest(der, (size_t)bytes, hash, &length, EVP_sha256(), NULL) == 1;

    if (is_made) {
        memcpy(place->pin, "sha256//", 8);
        (void)EVP_EncodeBlock((uint8_t *)place->pin + 8, hash, (int)length);
    }
    OPENSSL_free(der);
    X509_free(cert);
    if (file != NULL)
        (void)fclose(file);
    return is_made
               ? ICMS_OK
               : err_set(why, ICMS_CONFIG, "cannot read http.certificate %.300s: %s", path,
                         file == NULL ? "no such file, or not allowed" : "no certificate (PEM)");
}

static icms_err place_of_http(struct place *place, const struct conf_http *http, const char *path,
                              struct err_why *why)
{
    struct loop_addr addr;
    char text[LIMIT_ADDRESS_BYTES];
    icms_err err;

    if (http->listen[0] == '\0')
        return err_set(why, ICMS_CONFIG,
                       "%.300s has no http.listen, so its target shows no status; set it, and "
                       "restart icms-target",
                       path);
    err = loop_addr_parse(http->listen, why, &addr);
    if (err != ICMS_OK)
        return err;
    if (addr.port == 0)
        return err_set(why, ICMS_CONFIG,
                       "http.listen of %.300s has port 0, and the target picks one at each start; "
                       "name http://ADDRESS:PORT as its log says",
                       path);
    if (strcmp(addr.host, "0.0.0.0") == 0)
        (void)snprintf(addr.host, sizeof(addr.host), "127.0.0.1");
    if (strcmp(addr.host, "::") == 0)
        (void)snprintf(addr.host, sizeof(addr.host), "::1");
    (void)snprintf(place->url, sizeof(place->url), "%s://%s/status",
                   http->certificate[0] != '\0' ? "https" : "http",
                   loop_addr_format(&addr, text, sizeof(text)));
    place->wants_certificate = http->token[0] == '\0' && http->client_ca[0] != '\0';
    if (http->certificate[0] != '\0')
        err = place_pin(place, http->certificate, why);
    if (err == ICMS_OK && http->token[0] != '\0')
        err = secret_read_line(http->token, why, &place->token);
    return err;
}

static icms_err place_of_file(struct place *place, const char *path, struct err_why *why)
{
    struct conf_target *conf = calloc(1, sizeof(*conf));
    icms_err err = conf == NULL ? err_set(why, ICMS_NO_MEMORY, "out of memory")
                                : conf_target_read(path, why, conf);

    if (err == ICMS_NOT_FOUND)
        err = err_set(why, err,
                      "cannot read %.300s: no such file; name the file of a target, such as "
                      "/etc/icms/target.yaml",
                      path);
    if (err == ICMS_OK) {
        err = place_of_http(place, &conf->http, path, why);
        conf_target_fini(conf);
    }
    free(conf);
    return err;
}

static icms_err place_find(struct place *place, const char *where, struct err_why *why)
{
    size_t bytes = strlen(where);

    if (strstr(where, "://") == NULL)
        return place_of_file(place, where, why);
    while (bytes > 0 && where[bytes - 1] == '/')
        bytes--;
    if ((strncasecmp(where, "http://", 7) != 0 && strncasecmp(where, "https://", 8) != 0) ||
        strpbrk(where, "@?#") != NULL || bytes > sizeof(place->url) - sizeof("/status"))
        return err_set(why, ICMS_INVALID,
                       "cannot ask %.300s: write http://ADDRESS:PORT, https://ADDRESS:PORT or the "
                       "file of a target",
                       where);
    (void)snprintf(place->url, sizeof(place->url), "%.*s/status", (int)bytes, where);
    return ICMS_OK;
}

/* ---- asking --------------------------------------------------------------------------------- */

static size_t answer_take(char *data, size_t size, size_t count, void *arg)
{
    struct place *place = arg;
    size_t bytes = size * count;

    if (bytes > LIMIT_HTTP_PAGE_BYTES - place->bytes)
        return 0; /* ends the transfer */
    memcpy(place->text + place->bytes, data, bytes);
    place->bytes += bytes;
    return bytes;
}

/* The header with the token, for curl_slist_free_all(); NULL: no memory. */
static struct curl_slist *token_header(struct secret *token)
{
    char line[SECRET_LINE_BYTES_MAX + 32];
    struct curl_slist *headers;

    (void)snprintf(line, sizeof(line), "Authorization: Bearer %s",
                   (const char *)secret_bytes(token));
    headers = curl_slist_append(NULL, line);
    OPENSSL_cleanse(line, sizeof(line));
    return headers;
}

static bool curl_is_set(CURL *curl, struct place *place)
{
    bool is_set =
        curl_easy_setopt(curl, CURLOPT_URL, place->url) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, place->reason) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_PROXY, "") == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, PLACE_TIMEOUT_MS) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, answer_take) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, place) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_3) == CURLE_OK;

    /* The key is compared before anything is sent: no name or authority proves more. */
    if (is_set && place->pin[0] != '\0')
        is_set = curl_easy_setopt(curl, CURLOPT_PINNEDPUBLICKEY, place->pin) == CURLE_OK &&
                 curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L) == CURLE_OK &&
                 curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L) == CURLE_OK;
    return is_set;
}

static icms_err place_said(const struct place *place, CURLcode code, long status,
                           struct err_why *why)
{
    const char *reason = place->reason[0] != '\0' ? place->reason : curl_easy_strerror(code);

    if (code == CURLE_OUT_OF_MEMORY)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    if (code == CURLE_SSL_PINNEDPUBKEYNOTMATCH)
        return err_set(why, ICMS_AUTH,
                       "cannot ask %s: it has another key than http.certificate; after a change "
                       "of the file reload icms-target",
                       place->url);
    if (code == CURLE_WRITE_ERROR)
        return err_set(why, ICMS_PROTOCOL, "cannot read %s: more than %zu bytes", place->url,
                       LIMIT_HTTP_PAGE_BYTES);
    if (code != CURLE_OK)
        return err_set(why, ICMS_PEER_DOWN,
                       "cannot ask %s: %.200s; start the daemon, or name the file of a target, or "
                       "another http port",
                       place->url, reason);
    if (status == 401)
        return err_set(why, ICMS_AUTH, "cannot read %s: it needs %s", place->url,
                       place->wants_certificate
                           ? "the certificate of a client: read it with curl --cert, or give the "
                             "target http.token, too"
                       : place->token != NULL
                           ? "another token than http.token has now; reload icms-target"
                           : "a token: name the target's file instead of a URL");
    if (status != 200)
        return err_set(why, ICMS_PROTOCOL, "cannot read %s: HTTP status %ld", place->url, status);
    return ICMS_OK;
}

static icms_err place_ask(struct place *place, struct err_why *why)
{
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = place->token == NULL ? NULL : token_header(place->token);
    CURLcode code = CURLE_OUT_OF_MEMORY;
    icms_err err;
    long status = 0;

    place->text = malloc(LIMIT_HTTP_PAGE_BYTES + 1);
    if (curl != NULL && place->text != NULL && (headers != NULL) == (place->token != NULL) &&
        curl_is_set(curl, place) &&
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers) == CURLE_OK) {
        code = curl_easy_perform(curl);
        (void)curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
        place->text[place->bytes] = '\0';
    }
    err = place_said(place, code, status, why);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return err;
}

/* ---- tables --------------------------------------------------------------------------------- */

/* Replaces control characters of all texts, C0 and C1: a terminal obeys them. Keys are not printed.
 */
static void texts_clean(json_t *json)
{
    const char *key;
    json_t *value;
    size_t i;

    if (json_is_string(json)) {
        char *text = strdup(json_string_value(json));

        for (char *at = text; at != NULL && *at != '\0'; at++) {
            bool is_c1 = (uint8_t)at[0] == 0xc2 && (uint8_t)at[1] < 0xa0;

            if ((uint8_t)*at < ' ' || *at == 127 || is_c1)
                *at = '?';
            if (is_c1)
                *++at = '?';
        }
        (void)json_string_set_nocheck(json, text == NULL ? "" : text);
        free(text);
    } else if (json_is_array(json)) {
        json_array_foreach(json, i, value)
        {
            texts_clean(value);
        }
    } else {
        json_object_foreach(json, key, value)
        {
            texts_clean(value);
        }
    }
}

static void target_head(const json_t *root)
{
    const json_t *tls = json_object_get(root, "tls_connections");
    char used[STATUS_BYTES_TEXT], whole[STATUS_BYTES_TEXT];

    status_ready(root);
    (void)printf("subsystem NQN: %s\n", status_text(root, "nqn"));
    (void)printf("controllers %.0f, connections %.0f, with TLS %.0f, used %s of %s\n",
                 status_number(root, "controllers"), status_number(root, "connections"),
                 status_number(tls, "kernel") + status_number(tls, "mixed") +
                     status_number(tls, "openssl"),
                 status_bytes(status_number(root, "used_bytes"), used),
                 status_bytes(status_number(root, "capacity_bytes"), whole));
}

static void target_portals(const json_t *portals)
{
    const json_t *p;
    size_t i;

    if (json_array_size(portals) == 0)
        return;
    (void)printf("\n%-32s %11s\n", "PORTAL", "CONNECTIONS");
    json_array_foreach(portals, i, p)
    {
        (void)printf("%-32s %11.0f\n", status_text(p, "address"), status_number(p, "connections"));
    }
}

static void target_hosts(const json_t *root)
{
    const json_t *hosts = json_object_get(root, "hosts"), *h;
    size_t i;

    if (json_array_size(hosts) == 0)
        return;
    (void)printf("\n%-9s %11s %11s  %s\n", "PROVEN", "CONTROLLERS", "CONNECTIONS", "HOST");
    json_array_foreach(hosts, i, h)
    {
        (void)printf("%-9s %11.0f %11.0f  %s\n", status_text(h, "proven"),
                     status_number(h, "controllers"), status_number(h, "connections"),
                     status_text(h, "nqn"));
    }
    if (status_number(root, "controllers_more") > 0)
        (void)printf("and %.0f controllers of other hosts\n",
                     status_number(root, "controllers_more"));
}

static void target_drives(const json_t *drives)
{
    char used[STATUS_BYTES_TEXT], whole[STATUS_BYTES_TEXT], written[STATUS_BYTES_TEXT];
    char part[STATUS_WHOLE_TEXT];
    const json_t *d;
    size_t i;

    (void)printf("\n%-24s %-14s %5s %10s %10s %10s %14s %12s %10s  %s\n", "DRIVE", "STATE", "PART",
                 "USED", "OF", "BLOCKS", "SEGMENTS FREE", "WRITTEN", "ERRORS", "WHY");
    json_array_foreach(drives, i, d)
    {
        (void)printf(
            "%-24s %-14s %5s %10s %10s %10.0f %6.0f of %4.0f %12s %10.0f  %s\n",
            status_text(d, "path"), status_text(d, "state"), status_whole(d, "part_percent", part),
            status_bytes(status_number(d, "used_bytes"), used),
            status_bytes(status_number(d, "capacity_bytes"), whole), status_number(d, "blocks"),
            status_number(d, "segments_free"), status_number(d, "segments"),
            status_bytes(status_number(d, "written_bytes"), written),
            status_number(d, "checksum_errors") + status_number(d, "io_errors") +
                status_number(d, "no_space_errors"),
            status_text(d, "why")[0] == '\0' ? "-" : status_text(d, "why"));
    }
}

static void target_volumes(const json_t *volumes)
{
    char used[STATUS_BYTES_TEXT], quota[STATUS_BYTES_TEXT], generation[STATUS_WHOLE_TEXT];
    const json_t *v;
    size_t i;

    if (json_array_size(volumes) == 0)
        return;
    (void)printf("\n%-20s %-9s %10s %-9s %10s %10s %10s %10s %10s\n", "VOLUME", "ENCRYPTED",
                 "GENERATION", "REQUIRE", "USED", "QUOTA", "BLOCKS", "HITS", "EVICTIONS");
    json_array_foreach(volumes, i, v)
    {
        const json_t *encrypted = json_object_get(v, "encrypted");
        bool is_limited = status_number(v, "quota_bytes") > 0;

        (void)printf(
            "%-20s %-9s %10s %-9s %10s %10s %10.0f %10.0f %10.0f\n", status_text(v, "name"),
            json_is_true(encrypted)    ? "yes"
            : json_is_false(encrypted) ? "no"
                                       : "-",
            status_whole(v, "generation", generation), status_text(v, "require"),
            status_bytes(status_number(v, "used_bytes"), used),
            is_limited ? status_bytes(status_number(v, "quota_bytes"), quota) : "all",
            status_number(v, "blocks"), status_number(v, "hits"), status_number(v, "evictions"));
    }
}

static void target_tenants(const json_t *tenants)
{
    char in[STATUS_BYTES_TEXT], out[STATUS_BYTES_TEXT];
    const json_t *t;
    size_t i;

    if (json_array_size(tenants) == 0)
        return;
    (void)printf("\n%-20s %6s %12s %12s %10s %10s %8s\n", "TENANT", "WEIGHT", "LOADED", "STORED",
                 "WAITED", "SECONDS", "SHED");
    json_array_foreach(tenants, i, t)
    {
        const json_t *load = json_object_get(t, "load"), *store = json_object_get(t, "store");

        (void)printf("%-20s %6.0f %12s %12s %10.0f %10.1f %8.0f\n", status_text(t, "name"),
                     status_number(t, "weight"), status_bytes(status_number(load, "bytes"), in),
                     status_bytes(status_number(store, "bytes"), out),
                     status_number(load, "waits") + status_number(store, "waits"),
                     status_number(load, "wait_seconds") + status_number(store, "wait_seconds"),
                     status_number(t, "sheds"));
    }
}

static int target_print(const struct cli *cli, const struct place *place)
{
    json_error_t error;
    json_t *root = json_loadb(place->text, place->bytes, 0, &error);
    int status = CLI_MISSED;

    if (!json_is_array(json_object_get(root, "drives"))) {
        (void)cli_fail(cli, ICMS_PROTOCOL,
                       "cannot read %s: its answer is not the status of a target; name the http "
                       "port of icms-target",
                       place->url);
    } else {
        status = json_is_false(json_object_get(root, "ready")) ? CLI_MISSED : CLI_DONE;
        if (cli->json) {
            cli_json_print(root);
        } else {
            texts_clean(root);
            target_head(root);
            target_portals(json_object_get(root, "portals"));
            target_hosts(root);
            target_drives(json_object_get(root, "drives"));
            target_volumes(json_object_get(root, "volumes"));
            target_tenants(json_object_get(root, "tenants"));
        }
    }
    json_decref(root);
    return status;
}

json_t *status_ask(const char *where, struct err_why *why)
{
    struct place place = {.text = NULL};
    json_t *root = NULL;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        (void)err_set(why, ICMS_NO_MEMORY, "libcurl does not start");
        return NULL;
    }
    if (place_find(&place, where, why) == ICMS_OK && place_ask(&place, why) == ICMS_OK) {
        root = json_loadb(place.text, place.bytes, 0, NULL);
        if (json_is_object(root))
            texts_clean(root);
        else
            (void)err_set(why, ICMS_PROTOCOL, "cannot read %s: its answer is no status", place.url);
    }
    if (!json_is_object(root)) {
        json_decref(root);
        root = NULL;
    }
    secret_free(&place.token);
    free(place.text);
    curl_global_cleanup();
    return root;
}

int status_target(const struct cli *cli)
{
    struct place place = {.text = NULL};
    struct err_why why = {""};
    int status = CLI_USAGE;
    icms_err err;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return cli_fail(cli, ICMS_NO_MEMORY, "libcurl does not start");
    err = place_find(&place, cli->target, &why);
    if (err != ICMS_OK)
        (void)cli_fail(cli, err, "%s", why.text);
    else if ((err = place_ask(&place, &why)) != ICMS_OK)
        status = cli_fail(cli, err, "%s", why.text);
    else
        status = target_print(cli, &place);
    secret_free(&place.token);
    free(place.text);
    curl_global_cleanup();
    return status;
}
