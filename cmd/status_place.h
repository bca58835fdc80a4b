/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/status_place.h: asks daemons for /status over HTTP: a target by its file, with the token and
 * the key of the certificate that are named there, or any daemon by its URL, with what the command
 * line gives as a proof. Blocking; one thread; inside curl_global_init().
 *
 * A token goes to who has shown a certificate (TLS 1.3), or to a loopback address in numbers: other
 * machines do not see it, and a name may lead anywhere. Redirects are not followed.
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

/* What the command line gives for daemons that are named by a URL: --token, --ca, --cert, --key. */
struct status_proof {
    struct secret *token;  /* NULL: none                                                        */
    struct secret *key;    /* PEM, of the certificate; NULL: none                               */
    const char *ca, *cert; /* files; NULL: the authorities of this machine, no certificate      */
};

/* Whom to ask, and what came. */
struct status_place {
    char url[LIMIT_PATH_BYTES];
    const struct status_proof *proof; /* NULL: none                                              */
    struct secret *token;      /* of a target's file; NULL: none                                 */
    char pin[PLACE_PIN_BYTES]; /* of the public key that has to answer; "": none, or authorities */
    bool is_of_file;           /* a target's file named it: token and pin are all there is       */
    CURL *curl;                /* while it is asked                                              */
    struct curl_slist *headers;
    char *text; /* the answer, with a zero byte; NULL: nothing came                              */
    size_t bytes, room;
    char reason[CURL_ERROR_SIZE];
};

/* Reads the files of the command line; any of them may be NULL. PERMISSION and the like with a
 * sentence: the token and the key are files that no other user may read. */
icms_err status_proof_read(struct status_proof *proof, const char *token, const char *ca,
                           const char *cert, const char *key, struct err_why *why) ICMS_MUST_CHECK;
void status_proof_fini(struct status_proof *proof);

/* Whom to ask: the file of a target on this machine, or http://ADDRESS:PORT of any daemon, for
 * which proof is, kept by the caller; NULL: none. AUTH: it would send the token in clear text to
 * another machine. */
icms_err status_place_find(struct status_place *place, const char *where,
                           const struct status_proof *proof, struct err_why *why) ICMS_MUST_CHECK;

/* Asks it. AUTH: it wants another proof. */
icms_err status_place_ask(struct status_place *place, uint32_t timeout_ms,
                          struct err_why *why) ICMS_MUST_CHECK;
void status_place_fini(struct status_place *place);

/* Whom to ask, and the answer. */
struct status_answer {
    const char *where; /* as of status_place_find                                        */
    json_t *status;    /* texts without control characters; NULL: why has the reason     */
    struct err_why why;
};

/* Asks all of them at the same time: it takes timeout_ms at most, however many do not answer. The
 * answers are the caller's. trim makes what is kept of an answer, which it takes; NULL: all. */
void status_ask_all(struct status_answer *answers, size_t count, const struct status_proof *proof,
                    uint32_t timeout_ms, json_t *(*trim)(json_t *status));

/* One, of what the file of a target says: JSON as above; NULL: why has the reason. */
json_t *status_ask_http(const struct conf_http *http, const char *file, uint32_t timeout_ms,
                        struct err_why *why);

/* Replaces control characters of all texts: a terminal obeys them. Keys are not printed. */
void status_texts_clean(json_t *json);

#endif
