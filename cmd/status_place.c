/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/status_place.c: the status of a daemon over HTTP, see status_place.h.
 *
 * status_place_find() or place_of_http() makes the URL, the token and the key that the target has
 * to have, of its configuration or of a URL alone; status_place_ask() reads the page. What comes is
 * bounded.
 */
#include "status_place.h"

#include <curl/curl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "loop/loop.h"

/* ---- where ---------------------------------------------------------------------------------- */

/* The key of the certificate that the target's file names: this one has to answer, whoever signed
 * it and whatever names it has. */
static icms_err place_pin(struct status_place *place, const char *path, struct err_why *why)
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

static icms_err place_of_http(struct status_place *place, const struct conf_http *http,
                              const char *path, struct err_why *why)
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

static icms_err place_of_file(struct status_place *place, const char *path, struct err_why *why)
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

icms_err status_place_find(struct status_place *place, const char *where, struct err_why *why)
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
    struct status_place *place = arg;
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

static bool curl_is_set(CURL *curl, struct status_place *place, uint32_t timeout_ms)
{
    bool is_set =
        curl_easy_setopt(curl, CURLOPT_URL, place->url) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, place->reason) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_PROXY, "") == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)timeout_ms) == CURLE_OK &&
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

static icms_err place_said(const struct status_place *place, CURLcode code, long status,
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

icms_err status_place_ask(struct status_place *place, uint32_t timeout_ms, struct err_why *why)
{
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = place->token == NULL ? NULL : token_header(place->token);
    CURLcode code = CURLE_OUT_OF_MEMORY;
    icms_err err;
    long status = 0;

    place->text = malloc(LIMIT_HTTP_PAGE_BYTES + 1);
    if (curl != NULL && place->text != NULL && (headers != NULL) == (place->token != NULL) &&
        curl_is_set(curl, place, timeout_ms) &&
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

static json_t *place_json(struct status_place *place, struct err_why *why)
{
    json_t *root = json_loadb(place->text, place->bytes, 0, NULL);

    if (json_is_object(root)) {
        status_texts_clean(root);
        return root;
    }
    json_decref(root);
    (void)err_set(why, ICMS_PROTOCOL, "cannot read %s: its answer is no status", place->url);
    return NULL;
}

void status_place_fini(struct status_place *place)
{
    secret_free(&place->token);
    free(place->text);
}

json_t *status_ask(const char *where, struct err_why *why)
{
    struct status_place place = {.text = NULL};
    json_t *root = NULL;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        (void)err_set(why, ICMS_NO_MEMORY, "libcurl does not start");
        return NULL;
    }
    if (status_place_find(&place, where, why) == ICMS_OK &&
        status_place_ask(&place, STATUS_ASK_MS, why) == ICMS_OK)
        root = place_json(&place, why);
    status_place_fini(&place);
    curl_global_cleanup();
    return root;
}

json_t *status_ask_http(const struct conf_http *http, const char *file, uint32_t timeout_ms,
                        struct err_why *why)
{
    struct status_place place = {.text = NULL};
    json_t *root = NULL;

    if (place_of_http(&place, http, file, why) == ICMS_OK &&
        status_place_ask(&place, timeout_ms, why) == ICMS_OK)
        root = place_json(&place, why);
    status_place_fini(&place);
    return root;
}

/* ---- texts ---------------------------------------------------------------------------------- */

/* C0 and C1. */
void status_texts_clean(json_t *json)
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
            status_texts_clean(value);
        }
    } else {
        json_object_foreach(json, key, value)
        {
            status_texts_clean(value);
        }
    }
}
