/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl/guard.h: who may read the pages of a daemon: private to the module. A bearer token, or a
 * certificate of a client that an authority signed; either is enough.
 *
 * The HTTP thread asks; it is made and freed by who starts the server.
 */
#ifndef CTL_GUARD_H
#define CTL_GUARD_H

#include <microhttpd.h>

#include "crypt/secret.h"
#include "ctl/audit.h"
#include "ctl/ctl.h"

struct ctl_guard {
    enum ctl_http_open open;
    struct secret *token; /* owned; NULL: none                                                  */
    char *certificate;    /* owned; PEM of the server and its chain; NULL: no TLS               */
    struct secret *key;   /* owned; PEM; NULL once the server has read it                       */
    char *client_ca;      /* owned; PEM; NULL: no client can prove a certificate                */
    const struct ctl_audit *audit; /* the caller's; NULL: none                                 */
    uint64_t refused;              /* requests, since the start; HTTP thread                    */
    uint64_t said;                 /* of those, before the last line                            */
    uint64_t said_ns;              /* when that was; 0: never                                   */
};

/* Reads the files of opts and checks that they belong together. Fails as ctl_http_check; nothing is
 * held then. */
icms_err ctl_guard_init(const struct ctl_http_opts *opts, struct err_why *why,
                        struct ctl_guard *guard) ICMS_MUST_CHECK;
void ctl_guard_fini(struct ctl_guard *guard);

/* Whether both have read the same; a certificate has one key, so that one is not compared. */
bool ctl_guard_equal(const struct ctl_guard *a, const struct ctl_guard *b);

/* Whether who sent this request proves that it may read every page. */
bool ctl_guard_is_proven(const struct ctl_guard *guard, struct MHD_Connection *connection);

/* Counts a request that is refused; at most one a minute is logged and audited. */
void ctl_guard_refused(struct ctl_guard *guard, struct MHD_Connection *connection);

#endif
