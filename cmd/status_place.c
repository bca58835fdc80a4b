/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/status_place.c: the status of daemons over HTTP, see status_place.h.
 *
 * Life of a place: status_place_find() or place_of_http() makes the URL, and what is proven to
 * whom; place_begin() makes a transfer of it, which status_place_ask() or status_ask_all()
 * performs; place_end() says what came of it. What comes is bounded, in bytes and in time.
 */
#include "status_place.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "loop/loop.h"

/* ---- proofs --------------------------------------------------------------------------------- */

/* libcurl says of a file that it cannot read no more than that. */
static icms_err file_check(const char *option, const char *path, struct err_why *why)
{
    return path == NULL || access(path, R_OK) == 0
               ? ICMS_OK
               : err_set(why, err_from_errno(errno), "cannot read %s %.300s: %s", option, path,
                         strerror(errno));
}

icms_err status_proof_read(struct status_proof *proof, const char *token, const char *ca,
                           const char *cert, const char *key, struct err_why *why)
{
    icms_err err = file_check("--ca", ca, why);

    *proof = (struct status_proof){.ca = ca, .cert = cert};
    if (err == ICMS_OK)
        err = file_check("--cert", cert, why);
    if (err == ICMS_OK && token != NULL)
        err = secret_read_line(token, why, &proof->token);
    if (err == ICMS_OK && key != NULL)
        err = secret_read(key, LIMIT_HTTP_PEM_BYTES, why, &proof->key);
    if (err != ICMS_OK)
        status_proof_fini(proof);
    return err;
}

void status_proof_fini(struct status_proof *proof)
{
    secret_free(&proof->token);
    secret_free(&proof->key);
}

/* ---- where ---------------------------------------------------------------------------------- */

/* The key of the certificate that the target's file names: this one has to answer, whoever signed
 * it and whatever names it has. */
static icms_err place_pin(struct status_place *place, const char *path, struct err_why *why)
{
    uint8_t *der = NULL, hash[EVP_MAX_MD_SIZE];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe has nothing */
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
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
    else if (fd >= 0)
        (void)close(fd);
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
    place->is_of_file = true;
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

/* Whether a URL leads to a loopback address that is written in numbers. */
static bool url_is_loopback(const char *url)
{
    const char *begin = strstr(url, "://") + 3;
    bool is_six = begin[0] == '[';
    size_t bytes = strcspn(begin += is_six, is_six ? "]" : ":/");
    char host[INET6_ADDRSTRLEN];
    struct in6_addr six;
    struct in_addr four;

    if (bytes >= sizeof(host))
        return false;
    memcpy(host, begin, bytes);
    host[bytes] = '\0';
    if (is_six)
        return inet_pton(AF_INET6, host, &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
    return inet_pton(AF_INET, host, &four) == 1 && ntohl(four.s_addr) >> 24 == 127;
}

icms_err status_place_find(struct status_place *place, const char *where,
                           const struct status_proof *proof, struct err_why *why)
{
    size_t bytes = strlen(where);
    bool is_tls = strncasecmp(where, "https://", 8) == 0;

    place->proof = proof;
    if (strstr(where, "://") == NULL)
        return place_of_file(place, where, why);
    while (bytes > 0 && where[bytes - 1] == '/')
        bytes--;
    if ((!is_tls && strncasecmp(where, "http://", 7) != 0) || strpbrk(where, "@?#") != NULL ||
        bytes > sizeof(place->url) - sizeof("/status"))
        return err_set(why, ICMS_INVALID,
                       "cannot ask %.300s: write http://ADDRESS:PORT, https://ADDRESS:PORT or the "
                       "file of a target",
                       where);
    if (!is_tls && proof != NULL && proof->token != NULL && !url_is_loopback(where))
        return err_set(why, ICMS_AUTH,
                       "cannot ask %.300s: the token of --token would be sent in clear text to "
                       "another machine; write https:// when the daemon has http.certificate, or "
                       "leave --token out",
                       where);
    (void)snprintf(place->url, sizeof(place->url), "%.*s/status", (int)bytes, where);
    return ICMS_OK;
}

/* ---- asking --------------------------------------------------------------------------------- */

#define ANSWER_BYTES ((size_t)64 << 10) /* of memory, at first */

static size_t answer_take(char *data, size_t size, size_t count, void *arg)
{
    struct status_place *place = arg;
    size_t bytes = size * count, room = place->room;

    if (bytes > LIMIT_HTTP_PAGE_BYTES - place->bytes)
        return 0; /* ends the transfer */
    while (room < place->bytes + bytes + 1)
        room = room == 0 ? ANSWER_BYTES : 2 * room;
    if (room != place->room) {
        char *text = realloc(place->text, room);

        if (text == NULL)
            return 0;
        place->text = text;
        place->room = room;
    }
    memcpy(place->text + place->bytes, data, bytes);
    place->bytes += bytes;
    place->text[place->bytes] = '\0';
    return bytes;
}

/* What is sent, if anything is. */
static struct secret *place_token(const struct status_place *place)
{
    return place->is_of_file ? place->token : place->proof != NULL ? place->proof->token : NULL;
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

/* The key of a file answers, with any signature and names; else the authorities of
 * --ca, or of this machine, have signed a certificate for the name or address of the URL. */
static bool curl_is_trusting(CURL *curl, const struct status_place *place)
{
    const struct status_proof *proof = place->proof;
    struct curl_blob key = {.flags = CURL_BLOB_NOCOPY};

    if (place->pin[0] != '\0' &&
        (curl_easy_setopt(curl, CURLOPT_PINNEDPUBLICKEY, place->pin) != CURLE_OK ||
         curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L) != CURLE_OK ||
         curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L) != CURLE_OK))
        return false;
    if (proof == NULL)
        return true;
    if (proof->ca != NULL && place->pin[0] == '\0' &&
        curl_easy_setopt(curl, CURLOPT_CAINFO, proof->ca) != CURLE_OK)
        return false;
    if (proof->cert == NULL)
        return true;
    key.data = secret_bytes(proof->key);
    key.len = secret_length(proof->key);
    return curl_easy_setopt(curl, CURLOPT_SSLCERT, proof->cert) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_SSLKEY_BLOB, &key) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_KEYPASSWD, "") == CURLE_OK; /* there is no prompt */
}

static bool curl_is_set(CURL *curl, struct status_place *place, uint32_t timeout_ms)
{
    return curl_easy_setopt(curl, CURLOPT_URL, place->url) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, place->reason) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_PROXY, "") == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)timeout_ms) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, answer_take) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_WRITEDATA, place) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_HTTPHEADER, place->headers) == CURLE_OK &&
           curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_3) == CURLE_OK &&
#if LIBCURL_VERSION_NUM >= 0x075700
           /* a resolver that does not answer is not waited for at the end either */
           curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L) == CURLE_OK &&
#endif
           curl_is_trusting(curl, place);
}

/* False: no memory. place_end() follows either way. */
static bool place_begin(struct status_place *place, uint32_t timeout_ms)
{
    struct secret *token = place_token(place);

    place->headers = token == NULL ? NULL : token_header(token);
    place->curl = curl_easy_init();
    return place->curl != NULL && (place->headers != NULL) == (token != NULL) &&
           curl_is_set(place->curl, place, timeout_ms);
}

/* Of who answers 401. */
static const char *place_wants(const struct status_place *place)
{
    bool has_cert = place->proof != NULL && place->proof->cert != NULL;

    if (place_token(place) != NULL)
        return place->is_of_file ? "another token than http.token has now; reload icms-target"
                                 : "another token than that of --token: the one of its http.token";
    if (has_cert)
        return "another certificate than that of --cert, signed by its http.client_ca, or a token "
               "(--token)";
    return place->is_of_file
               ? "the certificate of a client: add --cert and --key, or give the target "
                 "http.token, too"
               : "a token: add --token, or --cert and --key, or name the target's file instead of "
                 "a URL";
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
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        return err_set(why, ICMS_PEER_DOWN,
                       "cannot ask %s: %.200s; name the authority of its certificate with --ca, "
                       "and an address that is in it; replace it where its time is over",
                       place->url, reason);
    if (code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_CACERT_BADFILE)
        return err_set(why, ICMS_CONFIG, "cannot ask %s: %.200s; look at %s", place->url, reason,
                       code == CURLE_SSL_CERTPROBLEM ? "--cert and --key" : "--ca");
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
                       place_wants(place));
    if (status != 200)
        return err_set(why, ICMS_PROTOCOL, "cannot read %s: HTTP status %ld", place->url, status);
    return ICMS_OK;
}

static icms_err place_end(struct status_place *place, CURLcode code, struct err_why *why)
{
    icms_err err;
    long status = 0;

    if (code == CURLE_OK)
        (void)curl_easy_getinfo(place->curl, CURLINFO_RESPONSE_CODE, &status);
    err = place_said(place, code, status, why);
    curl_slist_free_all(place->headers);
    curl_easy_cleanup(place->curl);
    place->headers = NULL;
    place->curl = NULL;
    return err;
}

icms_err status_place_ask(struct status_place *place, uint32_t timeout_ms, struct err_why *why)
{
    CURLcode code = CURLE_OUT_OF_MEMORY;

    if (place_begin(place, timeout_ms))
        code = curl_easy_perform(place->curl);
    return place_end(place, code, why);
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

/* ---- asking many ---------------------------------------------------------------------------- */

struct asking {
    struct status_place *places;
    bool *are_asked;
    CURLM *multi;
};

static void asking_begin(const struct asking *all, struct status_answer *answers, size_t i,
                         const struct status_proof *proof, uint32_t timeout_ms)
{
    struct status_place *place = &all->places[i];

    if (status_place_find(place, answers[i].where, proof, &answers[i].why) != ICMS_OK)
        return;
    if (place_begin(place, timeout_ms) &&
        curl_multi_add_handle(all->multi, place->curl) == CURLM_OK)
        all->are_asked[i] = true;
    else
        (void)!place_end(place, CURLE_OUT_OF_MEMORY, &answers[i].why);
}

/* The transfer of a place is over. One answer after the other is taken apart, and what is not kept
 * of it is freed: together they may be large. */
static void asking_end(const struct asking *all, struct status_answer *answer, size_t i,
                       CURLcode code, json_t *(*trim)(json_t *status))
{
    struct status_place *place = &all->places[i];

    all->are_asked[i] = false;
    (void)curl_multi_remove_handle(all->multi, place->curl);
    if (place_end(place, code, &answer->why) == ICMS_OK)
        answer->status = place_json(place, &answer->why);
    if (answer->status != NULL && trim != NULL)
        answer->status = trim(answer->status);
    free(place->text);
    place->text = NULL;
}

static void asking_run(const struct asking *all, struct status_answer *answers, size_t count,
                       json_t *(*trim)(json_t *status))
{
    int running = 1, left;

    while (running > 0) {
        const CURLMsg *said;

        if (curl_multi_perform(all->multi, &running) != CURLM_OK)
            break;
        while ((said = curl_multi_info_read(all->multi, &left)) != NULL)
            for (size_t i = 0; i < count; i++)
                if (said->msg == CURLMSG_DONE && all->are_asked[i] &&
                    all->places[i].curl == said->easy_handle) {
                    asking_end(all, &answers[i], i, said->data.result, trim);
                    break; /* what it points at is gone */
                }
        if (running > 0 && curl_multi_poll(all->multi, NULL, 0, 1000, NULL) != CURLM_OK)
            break;
    }
    for (size_t i = 0; i < count; i++)
        if (all->are_asked[i])
            asking_end(all, &answers[i], i, CURLE_OUT_OF_MEMORY, trim);
}

void status_ask_all(struct status_answer *answers, size_t count, const struct status_proof *proof,
                    uint32_t timeout_ms, json_t *(*trim)(json_t *status))
{
    struct asking all = {.places = calloc(count + 1, sizeof(all.places[0])),
                         .are_asked = calloc(count + 1, sizeof(all.are_asked[0])),
                         .multi = curl_multi_init()};
    bool is_ready = all.places != NULL && all.are_asked != NULL && all.multi != NULL;

    for (size_t i = 0; i < count; i++) {
        answers[i].status = NULL;
        (void)err_set(&answers[i].why, ICMS_NO_MEMORY, "out of memory");
        if (is_ready)
            asking_begin(&all, answers, i, proof, timeout_ms);
    }
    if (is_ready)
        asking_run(&all, answers, count, trim);
    for (size_t i = 0; i < count && all.places != NULL; i++)
        status_place_fini(&all.places[i]);
    if (all.multi != NULL)
        (void)curl_multi_cleanup(all.multi);
    free(all.places);
    free(all.are_asked);
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
