/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl/guard.c: who may read the pages of a daemon, see guard.h. Asked on the HTTP thread.
 *
 * TLS is GnuTLS's, behind libmicrohttpd. It asks a client for its certificate and lets it in
 * without one; what a certificate is worth is decided here, for each request, so that probes and an
 * open /metrics need none.
 */
#include "ctl/guard.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/log.h"
#include "loop/loop.h"

#define GUARD_TOKEN_BYTES_MIN 16
#define GUARD_MINUTE_NS       ((uint64_t)60 * 1000 * 1000 * 1000)

static bool guard_is_named(const char *path)
{
    return path != NULL && path[0] != '\0';
}

/* ---- files ---------------------------------------------------------------------------------- */

/* Who can write authorities decides who is let in. */
static icms_err guard_file_check(const char *what, FILE *file, const char *path,
                                 struct err_why *why)
{
    struct stat status;
    char key[64];

    if (fstat(fileno(file), &status) != 0)
        return err_set(why, err_from_errno(errno), "cannot read http.%s %.300s: %s", what, path,
                       strerror(errno));
    if (!S_ISREG(status.st_mode))
        return err_set(why, ICMS_CONFIG, "cannot read http.%s %.300s: it is not a regular file",
                       what, path);
    (void)snprintf(key, sizeof(key), "http.%s ", what);
    return file_mode_check(&status, key, path, why);
}

/* A file of certificates, which are no secrets; what: its key of the configuration. */
static icms_err guard_read(const char *what, const char *path, struct err_why *why, char **out_pem)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* a pipe is refused */
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
    char *pem;
    size_t bytes;
    icms_err err;

    if (file == NULL) {
        err = err_set(why, err_from_errno(errno), "cannot read http.%s %.300s: %s", what, path,
                      strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        return err;
    }
    err = guard_file_check(what, file, path, why);
    if (err != ICMS_OK) {
        (void)fclose(file);
        return err;
    }
    pem = malloc(LIMIT_HTTP_PEM_BYTES + 1);
    if (pem == NULL) {
        (void)fclose(file);
        return err_set(why, ICMS_NO_MEMORY, "http: out of memory");
    }
    bytes = fread(pem, 1, LIMIT_HTTP_PEM_BYTES, file);
    if (ferror(file) != 0 || fgetc(file) != EOF) {
        (void)fclose(file);
        free(pem);
        return err_set(why, ICMS_CONFIG,
                       "cannot use http.%s %.300s: it cannot be read, or has more than %zu bytes",
                       what, path, LIMIT_HTTP_PEM_BYTES);
    }
    (void)fclose(file);
    pem[bytes] = '\0';
    *out_pem = pem;
    return ICMS_OK;
}

static gnutls_datum_t guard_datum(const char *text)
{
    return (gnutls_datum_t){.data = (unsigned char *)(uintptr_t)text,
                            .size = (unsigned)strlen(text)};
}

/* A certificate that is over is served: monitoring would be lost with it, and who asks refuses it.
 */
static void guard_expiry_warn(const struct ctl_guard *guard, const char *path)
{
    gnutls_datum_t pem = guard_datum(guard->certificate);
    gnutls_x509_crt_t certificate;
    time_t now = time(NULL);

    if (gnutls_x509_crt_init(&certificate) != GNUTLS_E_SUCCESS)
        return;
    if (gnutls_x509_crt_import(certificate, &pem, GNUTLS_X509_FMT_PEM) == GNUTLS_E_SUCCESS &&
        (gnutls_x509_crt_get_expiration_time(certificate) < now ||
         gnutls_x509_crt_get_activation_time(certificate) > now))
        log_line(LOG_WARN,
                 "http.certificate %.300s: not valid at this time; clients will refuse it: replace "
                 "it, or set the clock",
                 path);
    gnutls_x509_crt_deinit(certificate);
}

/* Whether certificate, key and authorities are what they have to be. */
static icms_err guard_pems_check(const struct ctl_guard *guard, const struct ctl_http_opts *opts,
                                 struct err_why *why)
{
    gnutls_datum_t certificate = guard_datum(guard->certificate);
    gnutls_datum_t key = guard_datum((const char *)secret_bytes(guard->key));
    gnutls_certificate_credentials_t credentials;
    icms_err err = ICMS_OK;
    int result;

    if (gnutls_certificate_allocate_credentials(&credentials) != GNUTLS_E_SUCCESS)
        return err_set(why, ICMS_NO_MEMORY, "http: out of memory");
    result =
        gnutls_certificate_set_x509_key_mem(credentials, &certificate, &key, GNUTLS_X509_FMT_PEM);
    if (result < 0)
        err = err_set(why, ICMS_CONFIG,
                      "cannot use http.certificate %.200s with http.key %.200s: %s; both are PEM, "
                      "and the key is that of the first certificate",
                      opts->certificate, opts->key, gnutls_strerror(result));
    if (err == ICMS_OK && guard->client_ca != NULL) {
        gnutls_datum_t authorities = guard_datum(guard->client_ca);

        result =
            gnutls_certificate_set_x509_trust_mem(credentials, &authorities, GNUTLS_X509_FMT_PEM);
        if (result <= 0)
            err = err_set(why, ICMS_CONFIG,
                          "cannot use http.client_ca %.300s: it has no certificate in PEM",
                          opts->client_ca);
    }
    gnutls_certificate_free_credentials(credentials);
    if (err == ICMS_OK)
        guard_expiry_warn(guard, opts->certificate);
    return err;
}

/* A token that can stand behind "Bearer", and is not guessed. */
static icms_err guard_token_read(const char *path, struct err_why *why, struct secret **out_token)
{
    icms_err err = secret_read_line(path, why, out_token);

    if (err != ICMS_OK)
        return err;
    if (secret_length(*out_token) >= GUARD_TOKEN_BYTES_MIN &&
        memchr(secret_bytes(*out_token), ' ', secret_length(*out_token)) == NULL)
        return ICMS_OK;
    secret_free(out_token);
    return err_set(why, ICMS_CONFIG,
                   "cannot use http.token %.300s: a token has at least %d characters and no "
                   "blanks; make one with `icms key gen --type token`",
                   path, GUARD_TOKEN_BYTES_MIN);
}

icms_err ctl_guard_init(const struct ctl_http_opts *opts, struct err_why *why,
                        struct ctl_guard *guard)
{
    icms_err err = ICMS_OK;

    *guard = (struct ctl_guard){.open = opts->open, .audit = opts->audit};
    if (guard_is_named(opts->token))
        err = guard_token_read(opts->token, why, &guard->token);
    if (err == ICMS_OK && guard_is_named(opts->certificate)) {
        err = guard_read("certificate", opts->certificate, why, &guard->certificate);
        if (err == ICMS_OK)
            err = secret_read(opts->key, LIMIT_HTTP_PEM_BYTES, why, &guard->key);
        if (err == ICMS_OK && guard_is_named(opts->client_ca))
            err = guard_read("client_ca", opts->client_ca, why, &guard->client_ca);
        if (err == ICMS_OK)
            err = guard_pems_check(guard, opts, why);
    }
    if (err != ICMS_OK)
        ctl_guard_fini(guard);
    return err;
}

void ctl_guard_fini(struct ctl_guard *guard)
{
    secret_free(&guard->token);
    secret_free(&guard->key);
    free(guard->certificate);
    free(guard->client_ca);
    guard->certificate = guard->client_ca = NULL;
}

static bool guard_text_equal(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

bool ctl_guard_equal(const struct ctl_guard *a, const struct ctl_guard *b)
{
    bool same_token = a->token == NULL || b->token == NULL
                          ? a->token == b->token
                          : secret_equal(a->token, secret_bytes(b->token), secret_length(b->token));

    return same_token && guard_text_equal(a->certificate, b->certificate) &&
           guard_text_equal(a->client_ca, b->client_ca);
}

icms_err ctl_http_check(const struct ctl_http_opts *opts, struct err_why *why)
{
    struct ctl_guard guard;
    icms_err err = ctl_guard_init(opts, why, &guard);

    if (err == ICMS_OK)
        ctl_guard_fini(&guard);
    return err;
}

/* ---- requests ------------------------------------------------------------------------------- */

static bool guard_has_token(const struct ctl_guard *guard, struct MHD_Connection *connection)
{
    static const char scheme[] = "Bearer ";
    const char *said =
        MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);

    if (guard->token == NULL || said == NULL || strncasecmp(said, scheme, strlen(scheme)) != 0)
        return false;
    said += strlen(scheme);
    return secret_equal(guard->token, said, strlen(said));
}

/* Whether the connection proved a certificate for a client, of an authority in client_ca. */
static bool guard_has_certificate(const struct ctl_guard *guard, struct MHD_Connection *connection)
{
    gnutls_typed_vdata_st client = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                    .data = (unsigned char *)(uintptr_t)GNUTLS_KP_TLS_WWW_CLIENT};
    const union MHD_ConnectionInfo *info;
    unsigned status = 0;

    if (guard->client_ca == NULL)
        return false;
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    return info != NULL &&
           gnutls_certificate_verify_peers(info->tls_session, &client, 1, &status) ==
               GNUTLS_E_SUCCESS &&
           status == 0;
}

bool ctl_guard_is_proven(const struct ctl_guard *guard, struct MHD_Connection *connection)
{
    return guard->open == CTL_HTTP_OPEN_ALL || guard_has_token(guard, connection) ||
           guard_has_certificate(guard, connection);
}

static void guard_peer(struct MHD_Connection *connection, char out[INET6_ADDRSTRLEN])
{
    const struct sockaddr *peer =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;

    if (peer->sa_family == AF_INET6)
        (void)inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)(const void *)peer)->sin6_addr,
                        out, INET6_ADDRSTRLEN);
    else
        (void)inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)peer)->sin_addr, out,
                        INET6_ADDRSTRLEN);
}

void ctl_guard_refused(struct ctl_guard *guard, struct MHD_Connection *connection)
{
    uint64_t now_ns = loop_env_now_ns(loop_env_uring());
    char peer[INET6_ADDRSTRLEN] = "";

    guard->refused++;
    if (guard->said_ns != 0 && now_ns < guard->said_ns + GUARD_MINUTE_NS)
        return;
    guard_peer(connection, peer);
    log_line(LOG_WARN, "http: %s is refused: it has neither token nor certificate; unlogged=%llu",
             peer, (unsigned long long)(guard->refused - guard->said - 1));
    if (guard->audit != NULL)
        ctl_audit_write(guard->audit,
                        &(struct ctl_audit_event){.event = "http",
                                                  .peer = peer,
                                                  .result = "no proof",
                                                  .missed = guard->refused - guard->said - 1});
    guard->said = guard->refused;
    guard->said_ns = now_ns;
}
