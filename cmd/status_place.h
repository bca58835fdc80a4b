/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/status_place.h: asks a daemon for /status over HTTP: a target by its file, with the token and
 * the key of the certificate that are named there, or any daemon by its URL. Blocking; one thread.
 */
#ifndef CMD_STATUS_PLACE_H
#define CMD_STATUS_PLACE_H

#include <curl/curl.h>
#include <jansson.h>

#include "base/limits.h"
#include "conf/conf.h"
#include "crypt/secret.h"

#define STATUS_ASK_MS   10000
#define PLACE_PIN_BYTES 64 /* "sha256//", 44 characters of base64, a zero byte */

/* Whom to ask, and what came. */
struct status_place {
    char url[LIMIT_PATH_BYTES];
    struct secret *token;      /* NULL: none                                                     */
    char pin[PLACE_PIN_BYTES]; /* of the public key that has to answer; "": none, or authorities */
    bool wants_certificate;    /* of a client, and takes no token                                */
    char *text;                /* the answer, with a zero byte                                   */
    size_t bytes;
    char reason[CURL_ERROR_SIZE];
};

/* Whom to ask: the file of a target on this machine, or http://ADDRESS:PORT of any daemon. */
icms_err status_place_find(struct status_place *place, const char *where,
                           struct err_why *why) ICMS_MUST_CHECK;

/* Asks it, inside curl_global_init(). AUTH: it wants another proof. */
icms_err status_place_ask(struct status_place *place, uint32_t timeout_ms,
                          struct err_why *why) ICMS_MUST_CHECK;
void status_place_fini(struct status_place *place);

/* All of it: JSON whose texts have no control characters; NULL: why has the reason. */
json_t *status_ask(const char *where, struct err_why *why);

/* The same of what the file of a target says, inside curl_global_init(). */
json_t *status_ask_http(const struct conf_http *http, const char *file, uint32_t timeout_ms,
                        struct err_why *why);

/* Replaces control characters of all texts: a terminal obeys them. Keys are not printed. */
void status_texts_clean(json_t *json);

#endif
