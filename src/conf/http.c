/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules between the keys of http, of both daemons: who has to prove what. Called by bind.c on the
 * caller's thread.
 */
#include "conf/conf_int.h"

#include <stdio.h>
#include <string.h>

icms_err conf_http_rules(const struct conf_source *source, const struct conf_node *map,
                         void *object)
{
    struct conf_http *http = object;
    bool is_proof = http->token[0] != '\0' || http->client_ca[0] != '\0';
    bool is_written = http->open[0] != '\0', is_all = strcmp(http->open, "all") == 0;

    if ((http->certificate[0] != '\0') != (http->key[0] != '\0'))
        return conf_fail(source, map->line,
                         "http: a certificate and its key are written together, or neither is");
    if (http->client_ca[0] != '\0' && http->certificate[0] == '\0')
        return conf_fail(source, conf_node_line(map, "client_ca"),
                         "client_ca: certificates of clients need TLS: write certificate and key");
    if (is_written && !is_all && strcmp(http->open, "metrics") != 0 &&
        strcmp(http->open, "none") != 0)
        return conf_fail(source, conf_node_line(map, "open"),
                         "open: '%s' is none of all, metrics and none", http->open);
    if (is_all && is_proof)
        return conf_fail(source, conf_node_line(map, "open"),
                         "open: all, and a token or client_ca that nobody would need; write "
                         "metrics or none, or leave them out");
    if (is_written && !is_all && !is_proof)
        return conf_fail(source, conf_node_line(map, "open"),
                         "open: %s, and nothing that proves who may read the other pages; write "
                         "token (icms key gen --type token) or client_ca",
                         http->open);
    if (!is_written && !is_proof && conf_address_is_wide(http->listen))
        return conf_fail(source, conf_node_line(map, "listen"),
                         "http.listen: other machines reach %s, and it asks for no proof: write "
                         "token (icms key gen --type token makes one) with certificate and key, "
                         "or `open: all` to show every page to whoever reaches it",
                         http->listen);
    if (!is_written)
        (void)snprintf(http->open, sizeof(http->open), "%s", is_proof ? "none" : "all");
    return ICMS_OK;
}
