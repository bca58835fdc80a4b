/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_status_target.c: icms status --target: /status of a target as JSON, or as tables.
 *
 * status_target() has one life: status_place_find() makes the URL, the token and the key that the
 * target has to have, of its configuration or of a URL alone; place_ask() reads the page; the rest
 * prints it. What came is not believed: it is bounded, control characters are replaced, and what is
 * missing or of another type is shown as "-" or 0.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "icms_status.h"
#include "status_place.h"

/* ---- tables --------------------------------------------------------------------------------- */

static bool has_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL && text[0] != '\0';
}

static void target_head(const json_t *root)
{
    const json_t *tls = json_object_get(root, "tls_connections");
    char used[STATUS_BYTES_TEXT], whole[STATUS_BYTES_TEXT], read[STATUS_READ_TEXT];
    char most[STATUS_WHOLE_TEXT];

    status_ready(root);
    (void)printf("subsystem NQN: %s\n", status_text(root, "nqn"));
    if (status_number(root, "epoch") > 0)
        (void)printf("pod %s, epoch %.0f\n", status_text(root, "pod"),
                     status_number(root, "epoch"));
    if (has_text(root, "map_refused"))
        (void)printf("pod map refused: %s\n", status_text(root, "map_refused"));
    (void)status_read(root, read);
    (void)printf("last read: %s\n", read);
    (void)printf("controllers %.0f, connections %.0f of %s, with TLS %.0f, used %s of %s\n",
                 status_number(root, "controllers"), status_number(root, "connections"),
                 status_whole(root, "connections_max", most),
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
    char epoch[STATUS_EPOCH_TEXT], age[STATUS_AGE_TEXT];
    size_t i;

    if (json_array_size(hosts) == 0)
        return;
    (void)printf("\n%-9s %11s %11s %10s %10s  %s\n", "PROVEN", "CONTROLLERS", "CONNECTIONS",
                 "SINCE", "EPOCH", "HOST");
    json_array_foreach(hosts, i, h)
    {
        (void)printf("%-9s %11.0f %11.0f %10s %10s  %s\n", status_text(h, "proven"),
                     status_number(h, "controllers"), status_number(h, "connections"),
                     status_age(json_object_get(h, "connected_seconds"), age),
                     status_epoch(h, epoch), status_text(h, "nqn"));
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
    char age[STATUS_AGE_TEXT];
    const json_t *v;
    size_t i;

    if (json_array_size(volumes) == 0)
        return;
    (void)printf("\n%-20s %-9s %10s %-9s %10s %10s %10s %10s %10s %9s\n", "VOLUME", "ENCRYPTED",
                 "GENERATION", "REQUIRE", "USED", "QUOTA", "BLOCKS", "HITS", "EVICTIONS",
                 "LAST READ");
    json_array_foreach(volumes, i, v)
    {
        const json_t *encrypted = json_object_get(v, "encrypted");
        bool is_limited = status_number(v, "quota_bytes") > 0;

        (void)printf(
            "%-20s %-9s %10s %-9s %10s %10s %10.0f %10.0f %10.0f %9s\n", status_text(v, "name"),
            json_is_true(encrypted)    ? "yes"
            : json_is_false(encrypted) ? "no"
                                       : "-",
            status_whole(v, "generation", generation), status_text(v, "require"),
            status_bytes(status_number(v, "used_bytes"), used),
            is_limited ? status_bytes(status_number(v, "quota_bytes"), quota) : "all",
            status_number(v, "blocks"), status_number(v, "hits"), status_number(v, "evictions"),
            status_age(json_object_get(v, "last_load_age_seconds"), age));
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

static int target_print(const struct cli *cli, const struct status_place *place)
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
            status_texts_clean(root);
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

int status_target(const struct cli *cli)
{
    struct status_place place = {.text = NULL};
    struct status_proof proof;
    struct err_why why = {""};
    int status = CLI_USAGE;
    icms_err err;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return cli_fail(cli, ICMS_NO_MEMORY, "libcurl does not start");
    err = status_proof_read(&proof, cli->token, cli->ca, cli->cert, cli->cert_key, &why);
    if (err == ICMS_OK)
        err = status_place_find(&place, cli->target, &proof, &why);
    if (err != ICMS_OK)
        (void)cli_fail(cli, err, "%s", why.text);
    else if ((err = status_place_ask(&place, STATUS_ASK_MS, &why)) != ICMS_OK)
        status = cli_fail(cli, err, "%s", why.text);
    else
        status = target_print(cli, &place);
    status_place_fini(&place);
    status_proof_fini(&proof);
    curl_global_cleanup();
    return status;
}
