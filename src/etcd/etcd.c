/* SPDX-License-Identifier: Apache-2.0 */
/*
 * etcd/etcd.c: see etcd.h.
 *
 * Life of a call: the question is one JSON object, its keys and values in base64; etcd_ask() sends
 * it to one endpoint after the other until one answers with an object, or refuses for good. An
 * endpoint that cannot be reached, is late or has no leader is passed over.
 */
#include "etcd/etcd.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <inttypes.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Connecting takes no longer than this part of the time. */
#define ETCD_CONNECT_PART 2

#define ETCD_LIST_MAX  1000
#define ETCD_URL_BYTES 512

/* Codes of gRPC, as the gateway writes them into errors. */
enum grpc_code {
    GRPC_INVALID_ARGUMENT = 3,
    GRPC_NOT_FOUND = 5,
    GRPC_PERMISSION_DENIED = 7,
    GRPC_FAILED_PRECONDITION = 9,
    GRPC_UNAUTHENTICATED = 16,
};

struct etcd {
    struct etcd_opts opts;
    char endpoints[ETCD_ENDPOINTS_MAX][ETCD_URL_BYTES];
    uint32_t endpoint_count;
    uint32_t last; /* the endpoint that answered last                                      */
    CURL *curl;
    char *token; /* of etcd_login; NULL                                                  */
    char *text;  /* the answer, with a zero byte                                         */
    size_t bytes;
    char reason[CURL_ERROR_SIZE];
};

/* ---- endpoints ------------------------------------------------------------------------------ */

/* An address of this machine, of http://HOST:PORT. */
static bool endpoint_is_near(const char *url)
{
    const char *host = url + strlen("http://");
    char name[64];
    struct in_addr addr;
    size_t bytes = host[0] == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");

    if (bytes >= sizeof(name))
        return false;
    memcpy(name, host, bytes);
    name[bytes] = '\0';
    return strcmp(name, "localhost") == 0 || strcmp(name, "[::1]") == 0 ||
           (inet_pton(AF_INET, name, &addr) == 1 && ntohl(addr.s_addr) >> 24 == 127);
}

static icms_err endpoint_add(struct etcd *etcd, const char *url, size_t bytes, struct err_why *why)
{
    char *to = etcd->endpoints[etcd->endpoint_count];

    if (etcd->endpoint_count == ETCD_ENDPOINTS_MAX)
        return err_set(why, ICMS_INVALID, "more than %d endpoints of etcd", ETCD_ENDPOINTS_MAX);
    if (memchr(url, '@', bytes) != NULL) /* not shown: it may hold a password */
        return err_set(why, ICMS_INVALID,
                       "endpoint %u of etcd holds a user: name it with --user and --password-file",
                       etcd->endpoint_count + 1);
    if (bytes >= ETCD_URL_BYTES ||
        (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0) ||
        memchr(url, '?', bytes) != NULL)
        return err_set(why, ICMS_INVALID,
                       "endpoint %.*s: write http://HOST:PORT or https://HOST:PORT",
                       (int)(bytes < 200 ? bytes : 200), url);
    memcpy(to, url, bytes);
    to[bytes] = '\0';
    while (bytes > 0 && to[bytes - 1] == '/')
        to[--bytes] = '\0';
    if (etcd->opts.user != NULL && strncmp(to, "http://", 7) == 0 && !endpoint_is_near(to))
        return err_set(why, ICMS_INVALID,
                       "endpoint %s: a password goes over https:// alone, but on this machine", to);
    etcd->endpoint_count++;
    return ICMS_OK;
}

static icms_err endpoints_take(struct etcd *etcd, struct err_why *why)
{
    const char *at = etcd->opts.endpoints;
    icms_err err = ICMS_OK;

    while (err == ICMS_OK && *at != '\0') {
        size_t bytes = strcspn(at, ",");

        if (bytes > 0)
            err = endpoint_add(etcd, at, bytes, why);
        at += bytes + (at[bytes] == ',');
    }
    if (err == ICMS_OK && etcd->endpoint_count == 0)
        err = err_set(why, ICMS_INVALID, "no endpoint of etcd is named");
    return err;
}

const char *etcd_endpoint(const struct etcd *etcd)
{
    return etcd->endpoints[etcd->last];
}

/* ---- one question, one endpoint ------------------------------------------------------------- */

static size_t answer_take(char *data, size_t size, size_t count, void *arg)
{
    struct etcd *etcd = arg;
    size_t bytes = size * count;

    if (bytes > ETCD_ANSWER_MAX - etcd->bytes)
        return 0; /* ends the transfer */
    memcpy(etcd->text + etcd->bytes, data, bytes);
    etcd->bytes += bytes;
    return bytes;
}

static icms_err no_memory(struct err_why *why)
{
    return err_set(why, ICMS_NO_MEMORY, "no memory for etcd's answer");
}

/* Everything but the address, once. */
static icms_err curl_begin(struct etcd *etcd, struct err_why *why)
{
    const struct etcd_opts *opts = &etcd->opts;
    CURL *curl = curl_easy_init();
    bool is_set;

    etcd->curl = curl;
    if (curl == NULL)
        return no_memory(why);
    is_set =
        curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, etcd->reason) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_PROXY, "") == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, (long)opts->timeout_ms) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                         (long)(opts->timeout_ms / ETCD_CONNECT_PART)) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, answer_take) == CURLE_OK &&
        curl_easy_setopt(curl, CURLOPT_WRITEDATA, etcd) == CURLE_OK &&
        (opts->cacert == NULL ||
         curl_easy_setopt(curl, CURLOPT_CAINFO, opts->cacert) == CURLE_OK) &&
        (opts->cert == NULL || curl_easy_setopt(curl, CURLOPT_SSLCERT, opts->cert) == CURLE_OK) &&
        (opts->key == NULL || curl_easy_setopt(curl, CURLOPT_SSLKEY, opts->key) == CURLE_OK);
    return is_set ? ICMS_OK
                  : err_set(why, ICMS_UNSUPPORTED, "libcurl lacks HTTP or TLS with OpenSSL");
}

/* The headers of a question; NULL: no memory. */
static struct curl_slist *headers_make(const struct etcd *etcd)
{
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json"), *more;
    char *line;

    if (headers == NULL || etcd->token == NULL)
        return headers;
    line = malloc(strlen(etcd->token) + sizeof("Authorization: "));
    more = NULL;
    if (line != NULL) {
        (void)sprintf(line, "Authorization: %s", etcd->token);
        more = curl_slist_append(headers, line);
    }
    free(line);
    if (more == NULL)
        curl_slist_free_all(headers);
    return more;
}

/* What came, or why nothing did, of one endpoint. PEER_DOWN: the next one may answer. */
static icms_err endpoint_ask(struct etcd *etcd, uint32_t i, const char *path, const char *question,
                             long *out_status, struct err_why *why)
{
    char url[ETCD_URL_BYTES + 64];
    struct curl_slist *headers = headers_make(etcd);
    CURLcode code = CURLE_OUT_OF_MEMORY;

    etcd->bytes = 0;
    etcd->reason[0] = '\0';
    (void)snprintf(url, sizeof(url), "%s%s", etcd->endpoints[i], path);
    if (headers != NULL && curl_easy_setopt(etcd->curl, CURLOPT_URL, url) == CURLE_OK &&
        curl_easy_setopt(etcd->curl, CURLOPT_POSTFIELDS, question) == CURLE_OK &&
        curl_easy_setopt(etcd->curl, CURLOPT_HTTPHEADER, headers) == CURLE_OK)
        code = curl_easy_perform(etcd->curl);
    (void)curl_easy_setopt(etcd->curl, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    etcd->text[etcd->bytes] = '\0';
    if (code == CURLE_OUT_OF_MEMORY)
        return no_memory(why);
    if (code == CURLE_WRITE_ERROR)
        return err_set(why, ICMS_PROTOCOL, "etcd %s: its answer is larger than 4 MiB",
                       etcd->endpoints[i]);
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CERTPROBLEM ||
        code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_CONNECT_ERROR)
        return err_set(why, ICMS_PEER_DOWN, "etcd %s: TLS failed: %s", etcd->endpoints[i],
                       etcd->reason[0] != '\0' ? etcd->reason : curl_easy_strerror(code));
    if (code == CURLE_OPERATION_TIMEDOUT ||
        code == CURLE_COULDNT_CONNECT) /* no numbers: said once */
        return err_set(why, ICMS_PEER_DOWN, "etcd %s: %s", etcd->endpoints[i],
                       code == CURLE_COULDNT_CONNECT ? "it does not take connections"
                                                     : "timed out");
    if (code != CURLE_OK)
        return err_set(why, ICMS_PEER_DOWN, "etcd %s: %s", etcd->endpoints[i],
                       etcd->reason[0] != '\0' ? etcd->reason : curl_easy_strerror(code));
    (void)curl_easy_getinfo(etcd->curl, CURLINFO_RESPONSE_CODE, out_status);
    return ICMS_OK;
}

/* A sentence of a server, made harmless, and short. */
static const char *said(const json_t *answer, char out[160])
{
    const char *text = json_string_value(json_object_get(answer, "message"));
    size_t n = 0;

    if (text == NULL)
        text = json_string_value(json_object_get(answer, "error"));
    for (; text != NULL && text[n] != '\0' && n < 159; n++)
        out[n] = text[n] < ' ' || text[n] > '~' ? '?' : text[n];
    out[n] = '\0';
    return n > 0 ? out : "no reason given";
}

/* An answer with an error of etcd. */
static icms_err refused(const struct etcd *etcd, const json_t *answer, long status,
                        struct err_why *why)
{
    const char *endpoint = etcd_endpoint(etcd);
    json_int_t code = json_integer_value(json_object_get(answer, "code"));
    char text[160];

    (void)said(answer, text);
    if (code == GRPC_UNAUTHENTICATED || code == GRPC_PERMISSION_DENIED ||
        (code == GRPC_INVALID_ARGUMENT && strstr(text, "authentication failed") != NULL) ||
        (code == GRPC_INVALID_ARGUMENT && strstr(text, "user name is empty") != NULL) ||
        (code == GRPC_INVALID_ARGUMENT && strstr(text, "revision of auth store is old") != NULL))
        return err_set(why, ICMS_PERMISSION, "etcd %s refuses %s: %s", endpoint,
                       etcd->opts.user != NULL ? etcd->opts.user : "who names no user", text);
    if (code == GRPC_NOT_FOUND)
        return err_set(why, ICMS_NOT_FOUND, "etcd %s: %s", endpoint, text);
    if (code == GRPC_INVALID_ARGUMENT || code == GRPC_FAILED_PRECONDITION ||
        (status >= 400 && status < 500))
        return err_set(why, ICMS_PROTOCOL, "etcd %s refuses the question: %s (HTTP %ld)", endpoint,
                       text, status);
    return err_set(why, ICMS_PEER_DOWN, "etcd %s: %s (HTTP %ld)", endpoint, text, status);
}

/* ---- all endpoints -------------------------------------------------------------------------- */

/* out_answer: an object, for json_decref. An endpoint that is no etcd is passed over like one that
 * is down; when none answers, the first one's reason counts, and it is the first again. */
static icms_err ask_once(struct etcd *etcd, const char *path, const char *question,
                         json_t **out_answer, struct err_why *why)
{
    uint32_t first = etcd->last;
    icms_err err = ICMS_PEER_DOWN, first_err = ICMS_OK;
    struct err_why first_why = {""};
    bool is_over = false;

    for (uint32_t n = 0; n < etcd->endpoint_count && !is_over; n++) {
        uint32_t i = (first + n) % etcd->endpoint_count;
        json_t *answer = NULL;
        long status = 0;

        etcd->last = i;
        err = endpoint_ask(etcd, i, path, question, &status, why);
        if (err == ICMS_OK) {
            answer = json_loadb(etcd->text, etcd->bytes, JSON_DISABLE_EOF_CHECK, NULL);
            if (!json_is_object(answer))
                err =
                    err_set(why, status >= 500 ? ICMS_PEER_DOWN : ICMS_PROTOCOL,
                            "etcd %s: the answer is not JSON (HTTP %ld): is it etcd 3.4 or later?",
                            etcd->endpoints[i], status);
            else if (status != 200)
                err = refused(etcd, answer, status, why);
            is_over = json_is_object(answer) && err != ICMS_PEER_DOWN;
        }
        if (err == ICMS_OK)
            *out_answer = answer;
        else
            json_decref(answer);
        if (n == 0) {
            first_err = err;
            first_why = *why;
        }
    }
    if (!is_over) {
        etcd->last = first;
        *why = first_why;
        err = first_err;
    }
    return err;
}

/* Takes a token for the user. */
static icms_err etcd_login(struct etcd *etcd, struct err_why *why)
{
    json_t *asks = json_pack("{s:s, s:s}", "name", etcd->opts.user, "password",
                             etcd->opts.password != NULL ? etcd->opts.password : "");
    char *question = asks != NULL ? json_dumps(asks, JSON_COMPACT) : NULL;
    json_t *answer = NULL;
    icms_err err;

    free(etcd->token);
    etcd->token = NULL;
    err = question == NULL ? err_set(why, ICMS_INVALID, "etcd's user or password is not UTF-8")
                           : ask_once(etcd, "/v3/auth/authenticate", question, &answer, why);
    if (question != NULL)
        explicit_bzero(question, strlen(question));
    free(question);
    json_decref(asks);
    /* A server may say in its answer what it was asked. */
    if (err != ICMS_OK && etcd->opts.password != NULL && etcd->opts.password[0] != '\0' &&
        strstr(why->text, etcd->opts.password) != NULL)
        (void)err_set(why, err, "etcd %s refuses %s", etcd_endpoint(etcd), etcd->opts.user);
    if (err == ICMS_OK) {
        const char *token = json_string_value(json_object_get(answer, "token"));

        if (token == NULL || strpbrk(token, "\r\n") != NULL)
            err =
                err_set(why, ICMS_PROTOCOL, "etcd %s: no token for the user", etcd_endpoint(etcd));
        else if ((etcd->token = strdup(token)) == NULL)
            err = no_memory(why);
    }
    json_decref(answer);
    return err;
}

/* The question is freed. A token that is too old is replaced once. */
static icms_err etcd_ask(struct etcd *etcd, const char *path, json_t *asks, json_t **out_answer,
                         struct err_why *why)
{
    char *question = asks != NULL ? json_dumps(asks, JSON_COMPACT) : NULL;
    bool is_fresh = false;
    icms_err err = ICMS_OK;

    json_decref(asks);
    if (question == NULL)
        return no_memory(why);
    if (etcd->opts.user != NULL && etcd->token == NULL) {
        err = etcd_login(etcd, why);
        is_fresh = true;
    }
    if (err == ICMS_OK)
        err = ask_once(etcd, path, question, out_answer, why);
    if (err == ICMS_PERMISSION && etcd->token != NULL && !is_fresh) {
        err = etcd_login(etcd, why);
        if (err == ICMS_OK)
            err = ask_once(etcd, path, question, out_answer, why);
    }
    free(question);
    return err;
}

/* ---- texts and numbers in JSON -------------------------------------------------------------- */

/* As base64; NULL: no memory. */
static json_t *b64_json(const char *text, size_t bytes)
{
    char *out = malloc((bytes + 2) / 3 * 4 + 1);
    json_t *json;

    if (out == NULL)
        return NULL;
    (void)EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)text, (int)bytes);
    json = json_string(out);
    free(out);
    return json;
}

/* A text of base64, with a zero byte behind it; NULL: it is none, or too long, or no memory. */
static char *b64_text(const json_t *json, size_t *out_bytes)
{
    size_t bytes = json_string_length(json);
    const char *text = json_string_value(json);
    char *out;
    int got;

    if (json == NULL)
        text = ""; /* protobuf leaves out what is empty */
    if (text == NULL || bytes % 4 != 0 || bytes > ETCD_ANSWER_MAX ||
        (out = malloc(bytes / 4 * 3 + 1)) == NULL)
        return NULL;
    got = EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)text, (int)bytes);
    if (got < 0) {
        free(out);
        return NULL;
    }
    while (bytes > 0 && text[bytes - 1] == '=' && got > 0)
        bytes--, got--;
    out[got] = '\0';
    *out_bytes = (size_t)got;
    return out;
}

/* 64-bit numbers are texts in the JSON of protobuf; 0: there is none. */
static uint64_t number_of(const json_t *object, const char *key)
{
    const json_t *json = json_object_get(object, key);

    if (json_is_integer(json))
        return json_integer_value(json) > 0 ? (uint64_t)json_integer_value(json) : 0;
    if (!json_is_string(json) || json_string_value(json)[0] < '0' ||
        json_string_value(json)[0] > '9')
        return 0;
    return strtoull(json_string_value(json), NULL, 10);
}

static json_t *number_json(uint64_t number)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%" PRIu64, number);
    return json_string(text);
}

static icms_err not_etcd(const struct etcd *etcd, struct err_why *why)
{
    return err_set(why, ICMS_PROTOCOL, "etcd %s: the answer is not one of etcd",
                   etcd_endpoint(etcd));
}

/* ---- keys ----------------------------------------------------------------------------------- */

icms_err etcd_get(struct etcd *etcd, const char *key, struct etcd_value *out_value,
                  struct err_why *why)
{
    json_t *answer = NULL, *found;
    icms_err err = etcd_ask(etcd, "/v3/kv/range",
                            json_pack("{s:o}", "key", b64_json(key, strlen(key))), &answer, why);

    *out_value = (struct etcd_value){.text = NULL};
    if (err != ICMS_OK)
        return err;
    found = json_array_get(json_object_get(answer, "kvs"), 0);
    if (found != NULL) {
        out_value->revision = number_of(found, "mod_revision");
        out_value->lease = number_of(found, "lease");
        out_value->text = b64_text(json_object_get(found, "value"), &out_value->bytes);
        if (out_value->text == NULL || out_value->revision == 0) {
            free(out_value->text);
            *out_value = (struct etcd_value){.text = NULL};
            err = not_etcd(etcd, why);
        }
    } else if (number_of(json_object_get(answer, "header"), "revision") == 0) {
        err = not_etcd(etcd, why); /* "there is no such key" is believed of etcd alone */
    }
    json_decref(answer);
    return err;
}

icms_err etcd_list(struct etcd *etcd, const char *prefix,
                   void (*visit)(void *arg, const char *key, const char *text, size_t bytes),
                   void *arg, struct err_why *why)
{
    char end[ETCD_KEY_BYTES];
    json_t *answer = NULL, *one;
    size_t bytes = strlen(prefix), i;
    icms_err err;

    if (bytes == 0 || bytes >= sizeof(end) || (unsigned char)prefix[bytes - 1] == 0xff)
        return err_set(why, ICMS_INVALID, "a prefix has 1 to %d bytes", ETCD_KEY_BYTES - 1);
    memcpy(end, prefix, bytes + 1);
    end[bytes - 1]++; /* the first key behind all of the prefix */
    err = etcd_ask(etcd, "/v3/kv/range",
                   json_pack("{s:o, s:o, s:i}", "key", b64_json(prefix, bytes), "range_end",
                             b64_json(end, bytes), "limit", ETCD_LIST_MAX),
                   &answer, why);
    if (err != ICMS_OK)
        return err;
    json_array_foreach(json_object_get(answer, "kvs"), i, one)
    {
        size_t key_bytes = 0, text_bytes = 0;
        char *key = b64_text(json_object_get(one, "key"), &key_bytes);
        char *text = b64_text(json_object_get(one, "value"), &text_bytes);

        if (key != NULL && text != NULL && strncmp(key, prefix, bytes) == 0)
            visit(arg, key, text, text_bytes);
        else
            err = not_etcd(etcd, why);
        free(key);
        free(text);
    }
    json_decref(answer);
    return err;
}

/* A put whose answer was lost, and that was sent to the next endpoint, finds its own. */
static icms_err put_lost(struct etcd *etcd, const char *key, const char *text, size_t bytes,
                         uint64_t *out_revision, struct err_why *why)
{
    struct etcd_value value;
    icms_err err = etcd_get(etcd, key, &value, why);
    bool is_own = err == ICMS_OK && value.text != NULL && value.bytes == bytes &&
                  memcmp(value.text, text, bytes) == 0;

    free(value.text);
    if (err != ICMS_OK)
        return err;
    *out_revision = value.revision;
    return is_own ? ICMS_OK
                  : err_set(why, ICMS_EXISTS, "etcd %s: somebody else has changed %s meanwhile",
                            etcd_endpoint(etcd), key);
}

icms_err etcd_put(struct etcd *etcd, const char *key, const char *text, size_t bytes,
                  uint64_t was_revision, uint64_t lease, uint64_t *out_revision,
                  struct err_why *why)
{
    json_t *answer = NULL;
    icms_err err;

    if (bytes == 0 || bytes > ETCD_VALUE_MAX)
        return err_set(why, ICMS_INVALID, "a value of etcd has 1 byte to 1 MiB");
    err = etcd_ask(etcd, "/v3/kv/txn",
                   json_pack("{s:[{s:o, s:s, s:o, s:s}], s:[{s:{s:o, s:o, s:o}}]}", "compare",
                             "key", b64_json(key, strlen(key)), "target", "MOD", "mod_revision",
                             number_json(was_revision), "result", "EQUAL", "success", "requestPut",
                             "key", b64_json(key, strlen(key)), "value", b64_json(text, bytes),
                             "lease", number_json(lease)),
                   &answer, why);
    if (err != ICMS_OK)
        return err;
    *out_revision = number_of(json_object_get(answer, "header"), "revision");
    if (*out_revision == 0)
        err = not_etcd(etcd, why);
    else if (!json_is_true(json_object_get(answer, "succeeded")))
        err = put_lost(etcd, key, text, bytes, out_revision, why);
    json_decref(answer);
    return err;
}

/* ---- leases --------------------------------------------------------------------------------- */

icms_err etcd_lease(struct etcd *etcd, uint32_t seconds, uint64_t *out_lease, struct err_why *why)
{
    json_t *answer = NULL;
    icms_err err = etcd_ask(
        etcd, "/v3/lease/grant",
        json_pack("{s:o, s:o}", "TTL", number_json(seconds), "ID", number_json(0)), &answer, why);

    if (err != ICMS_OK)
        return err;
    *out_lease = number_of(answer, "ID");
    json_decref(answer);
    return *out_lease != 0 ? ICMS_OK : not_etcd(etcd, why);
}

icms_err etcd_lease_keep(struct etcd *etcd, uint64_t lease, struct err_why *why)
{
    json_t *answer = NULL;
    uint64_t seconds;
    icms_err err = etcd_ask(etcd, "/v3/lease/keepalive",
                            json_pack("{s:o}", "ID", number_json(lease)), &answer, why);

    if (err != ICMS_OK)
        return err;
    seconds = number_of(json_object_get(answer, "result"), "TTL");
    json_decref(answer);
    return seconds > 0
               ? ICMS_OK
               : err_set(why, ICMS_NOT_FOUND, "etcd %s: the lease is over", etcd_endpoint(etcd));
}

icms_err etcd_lease_end(struct etcd *etcd, uint64_t lease, struct err_why *why)
{
    json_t *answer = NULL;
    icms_err err = etcd_ask(etcd, "/v3/lease/revoke", json_pack("{s:o}", "ID", number_json(lease)),
                            &answer, why);

    json_decref(answer);
    return err;
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err etcd_new(const struct etcd_opts *opts, struct err_why *why, struct etcd **out_etcd)
{
    struct etcd *etcd = calloc(1, sizeof(*etcd));
    icms_err err;

    if (etcd == NULL)
        return no_memory(why);
    etcd->opts = *opts;
    etcd->text = malloc(ETCD_ANSWER_MAX + 1);
    err = etcd->text == NULL ? no_memory(why) : endpoints_take(etcd, why);
    if (err == ICMS_OK)
        err = curl_begin(etcd, why);
    if (err != ICMS_OK) {
        etcd_free(&etcd);
        return err;
    }
    *out_etcd = etcd;
    return ICMS_OK;
}

void etcd_free(struct etcd **etcd_)
{
    struct etcd *etcd = *etcd_;

    *etcd_ = NULL;
    if (etcd == NULL)
        return;
    if (etcd->curl != NULL)
        curl_easy_cleanup(etcd->curl);
    free(etcd->token);
    free(etcd->text);
    free(etcd);
}
