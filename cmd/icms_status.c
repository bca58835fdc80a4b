/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_status.c: icms status: the tier's own JSON, or a table of it.
 *
 * The table shows what it knows and passes over the rest, so an agent of another version is shown
 * as far as it agrees.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "icms_status.h"

const char *status_bytes(double bytes, char text[STATUS_BYTES_TEXT])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;

    while (bytes >= 1024 && unit < 5) {
        bytes /= 1024;
        unit++;
    }
    (void)snprintf(text, STATUS_BYTES_TEXT, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return text;
}

const json_t *status_entry(const json_t *object, const char *list, const char *key,
                           const char *text)
{
    const json_t *entry;
    size_t i;

    json_array_foreach(json_object_get(object, list), i, entry)
    {
        const char *is = json_string_value(json_object_get(entry, key));

        if (strcmp(is != NULL ? is : "", text) == 0)
            return entry;
    }
    return NULL;
}

const char *status_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text == NULL ? "-" : text;
}

double status_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

const char *status_whole(const json_t *object, const char *key, char text[STATUS_WHOLE_TEXT])
{
    const json_t *number = json_object_get(object, key);

    (void)snprintf(text, STATUS_WHOLE_TEXT, "-");
    if (json_is_integer(number))
        (void)snprintf(text, STATUS_WHOLE_TEXT, "%lld", (long long)json_integer_value(number));
    return text;
}

/* Volumes that an enclosure does not have, under its line. */
static void status_lacks(const json_t *lacks)
{
    const json_t *name;
    size_t i;

    if (json_array_size(lacks) == 0)
        return;
    (void)printf("%-20s missing, not allowed for this host, or of another generation or encrypted:",
                 "");
    json_array_foreach(lacks, i, name)
    {
        (void)printf("%s %s", i == 0 ? "" : ",", json_string_value(name));
    }
    (void)printf("; using the next enclosure\n");
}

/* Settings in which an enclosure or its other hosts differ, under its line. */
static void status_differ(const json_t *settings)
{
    const json_t *text;
    size_t i;

    json_array_foreach(settings, i, text)
    {
        (void)printf("%-20s settings differ: %s\n", "", json_string_value(text));
    }
}

/* What comes is not believed: seconds since something, in which a machine can have been there. */
static bool is_age(const json_t *number)
{
    double value = json_number_value(number);

    return json_is_number(number) && value >= 0 && value < 1e12;
}

const char *status_age(const json_t *number, char text[STATUS_AGE_TEXT])
{
    static const struct {
        unsigned long long seconds;
        const char *name;
    } units[] = {{86400, "d"}, {3600, "h"}, {60, "min"}, {1, "s"}};
    unsigned long long seconds = is_age(number) ? (unsigned long long)json_number_value(number) : 0;
    int unit = 0;

    (void)snprintf(text, STATUS_AGE_TEXT, "-");
    while (unit < 3 && seconds < units[unit].seconds)
        unit++;
    if (is_age(number))
        (void)snprintf(text, STATUS_AGE_TEXT, "%llu %s", seconds / units[unit].seconds,
                       units[unit].name);
    return text;
}

double status_read(const json_t *status, char text[STATUS_READ_TEXT])
{
    const json_t *since = json_object_get(status, "last_load_age_seconds");
    const json_t *up = json_object_get(status, "uptime_seconds");
    bool is_none = json_is_null(since);
    char age[STATUS_AGE_TEXT];

    (void)snprintf(text, STATUS_READ_TEXT, "-");
    if (!is_age(is_none ? up : since))
        return -1;
    (void)snprintf(text, STATUS_READ_TEXT, "%s%s ago", is_none ? "not since its start " : "",
                   status_age(is_none ? up : since, age));
    return json_number_value(is_none ? up : since);
}

const char *status_epoch(const json_t *host, char text[STATUS_EPOCH_TEXT])
{
    const json_t *epoch = json_object_get(host, "epoch"), *max = json_object_get(host, "epoch_max");
    long long low = json_integer_value(epoch);

    if (!json_is_integer(epoch))
        (void)snprintf(text, STATUS_EPOCH_TEXT, "-");
    else if (json_is_integer(max))
        (void)snprintf(text, STATUS_EPOCH_TEXT, "%lld-%lld", low,
                       (long long)json_integer_value(max));
    else if (low == 0)
        (void)snprintf(text, STATUS_EPOCH_TEXT, "none");
    else
        (void)snprintf(text, STATUS_EPOCH_TEXT, "%lld", low);
    return text;
}

const char *status_error(const json_t *enclosure, char text[STATUS_ERROR_BYTES])
{
    const json_t *age = json_object_get(enclosure, "last_error_age_seconds");
    const json_t *links = json_object_get(enclosure, "links"), *link;
    const char *error = status_text(enclosure, "last_error");
    char ago[STATUS_AGE_TEXT];
    size_t i;

    if (error[0] == 0)
        return "-";
    json_array_foreach(links, i, link)
    {
        if (json_array_size(links) > 1 && strcmp(status_text(link, "last_error"), error) == 0)
            return "-";
    }
    if (!json_is_number(age))
        return error;
    (void)snprintf(text, STATUS_ERROR_BYTES, "%s ago: %s", status_age(age, ago), error);
    return text;
}

/* "-": who asks may not know it. */
static const char *status_bytes_of(const json_t *object, const char *name, char text[32])
{
    if (json_object_get(object, name) == NULL)
        return "-";
    return status_bytes(status_number(object, name), text);
}

/* The links of an enclosure that has several, under its line. */
static void status_links(const json_t *links)
{
    char in[32], out[32], error[STATUS_ERROR_BYTES];
    const json_t *link;
    size_t i;

    if (json_array_size(links) < 2)
        return;
    json_array_foreach(links, i, link)
    {
        (void)printf(
            "  %-18s %-12s %-12s %-8s %-9s %12s %12s %8.0fx  %s\n", status_text(link, "address"),
            status_text(link, "state"), status_text(link, "auth"), status_text(link, "tls"), "",
            status_bytes_of(link, "load_bytes", in), status_bytes_of(link, "store_bytes", out),
            status_number(link, "exclusions"), status_error(link, error));
    }
}

/* What an enclosure takes of its new blocks, under its line. */
static void status_share(const json_t *enclosure)
{
    char share[STATUS_WHOLE_TEXT];

    if (json_is_integer(json_object_get(enclosure, "share_percent")) &&
        json_integer_value(json_object_get(enclosure, "share_percent")) < 100)
        (void)printf("%-20s late now and then: takes %s %% of its new blocks; using the next "
                     "enclosure for the others\n",
                     "", status_whole(enclosure, "share_percent", share));
}

static void status_enclosures(const json_t *enclosures)
{
    char in[32], out[32], error[STATUS_ERROR_BYTES];
    const json_t *e;
    size_t i;

    if (json_array_size(enclosures) == 0)
        return;
    (void)printf("\n%-20s %-12s %-12s %-8s %-9s %12s %12s %9s  %s\n", "ENCLOSURE", "STATE",
                 "PROVEN", "TLS", "POD", "LOADED", "STORED", "EXCLUDED", "LAST ERROR");
    json_array_foreach(enclosures, i, e)
    {
        (void)printf("%-20s %-12s %-12s %-8s %-9s %12s %12s %8.0fx  %s\n", status_text(e, "name"),
                     status_text(e, "state"), status_text(e, "auth"), status_text(e, "tls"),
                     status_text(e, "pod_state"), status_bytes_of(e, "load_bytes", in),
                     status_bytes_of(e, "store_bytes", out), status_number(e, "exclusions"),
                     status_error(e, error));
        status_links(json_object_get(e, "links"));
        status_share(e);
        status_lacks(json_object_get(e, "lacks"));
        status_differ(json_object_get(e, "settings_differ"));
    }
}

static void status_misses(const json_t *misses)
{
    const char *reason;
    json_t *count;
    int shown = 0;

    json_object_foreach((json_t *)(uintptr_t)misses, reason, count)
    {
        if (json_number_value(count) != 0)
            (void)printf("%s%s %.0f", shown++ == 0 ? "" : ", ", reason, json_number_value(count));
    }
    (void)printf("%s\n", shown == 0 ? "none" : "");
}

/* What enclosures that join or drain cost, if there was any. */
static void status_moves(const json_t *volume)
{
    char bytes[32];

    if (status_number(volume, "former_found") + status_number(volume, "former_missed") > 0)
        (void)printf("%-20s missed by the owner: %.0f at the former owner, %.0f not; moved %.0f, "
                     "%s; not moved %.0f\n",
                     "", status_number(volume, "former_found"),
                     status_number(volume, "former_missed"), status_number(volume, "moved"),
                     status_bytes(status_number(volume, "moved_bytes"), bytes),
                     status_number(volume, "moves_shed"));
}

/* What became of hints, if there were any. */
static void status_prestage(const json_t *prestage)
{
    char loaded[32], unused[32];

    if (status_number(prestage, "taken") + status_number(prestage, "refused_full") +
            status_number(prestage, "refused_passed") + status_number(prestage, "pins_refused") ==
        0)
        return;
    (void)printf(
        "%-20s hints: in time %.0f, late %.0f, dropped %.0f, unused %.0f, absent %.0f, "
        "failed %.0f, over the write budget %.0f, canceled %.0f, refused %.0f; not over %.0f; "
        "loaded %s, unused %s\n",
        "", status_number(prestage, "in_time"), status_number(prestage, "late"),
        status_number(prestage, "dropped"), status_number(prestage, "unused"),
        status_number(prestage, "absent"), status_number(prestage, "failed"),
        status_number(prestage, "over_budget"), status_number(prestage, "canceled"),
        status_number(prestage, "refused_full") + status_number(prestage, "refused_passed"),
        status_number(prestage, "queued") + status_number(prestage, "loading") +
            status_number(prestage, "waiting"),
        status_bytes(status_number(prestage, "load_bytes"), loaded),
        status_bytes(status_number(prestage, "unused_bytes"), unused));
    if (status_number(prestage, "pins") + status_number(prestage, "pins_refused") == 0)
        return;
    (void)printf(
        "%-20s pins: %.0f, with %s of memory and %s of the own drive reserved; refused %.0f, "
        "brought again %.0f\n",
        "", status_number(prestage, "pins"),
        status_bytes(status_number(prestage, "pinned_bytes"), loaded),
        status_bytes(status_number(prestage, "pinned_local_bytes"), unused),
        status_number(prestage, "pins_refused"), status_number(prestage, "pins_again"));
}

static void status_volumes(const json_t *volumes)
{
    char used[32], whole[32], generation[STATUS_WHOLE_TEXT];
    const json_t *v;
    size_t i;

    if (json_array_size(volumes) == 0)
        return;
    (void)printf("\n%-20s %-9s %10s %10s %10s %10s %10s %10s %10s %10s  %s\n", "VOLUME",
                 "ENCRYPTED", "GENERATION", "HITS DRAM", "LOCAL", "POD", "KEYS FOUND", "NOT FOUND",
                 "ARENA", "OF", "MISSES");
    json_array_foreach(volumes, i, v)
    {
        const json_t *hits = json_object_get(v, "hits");
        bool is_in_pod = !json_is_false(json_object_get(v, "in_pod"));

        (void)printf(
            "%-20s %-9s %10s %10.0f %10.0f %10.0f %10.0f %10.0f %10s %10s  ",
            status_text(v, "name"), json_is_true(json_object_get(v, "encrypted")) ? "yes" : "no",
            is_in_pod ? status_whole(v, "generation", generation) : "-",
            status_number(hits, "dram"), status_number(hits, "local"), status_number(hits, "pod"),
            status_number(v, "keys_found"), status_number(v, "keys_missed"),
            status_bytes(status_number(v, "arena_used_bytes"), used),
            status_bytes(status_number(v, "arena_bytes"), whole));
        status_misses(json_object_get(v, "misses"));
        if (status_number(v, "local_blocks") > 0)
            (void)printf("%-20s own drive: %.0f blocks, %s\n", "", status_number(v, "local_blocks"),
                         status_bytes(status_number(v, "local_bytes"), used));
        status_moves(v);
        status_prestage(json_object_get(v, "prestage"));
        if (json_object_get(v, "events") != NULL)
            (void)printf("  events: published %.0f, lost %.0f\n",
                         status_number(json_object_get(v, "events"), "published"),
                         status_number(json_object_get(v, "events"), "lost"));
    }
}

/* What memory evicted blocks for, if it did. */
static void status_evicted(const json_t *dram)
{
    const json_t *reasons = json_object_get(dram, "evicted_for");

    if (status_number(dram, "evicted") == 0 || reasons == NULL)
        return;
    (void)printf("dram: evicted: for space %.0f; of those read once at most %.0f; of large ones "
                 "%.0f; for another volume %.0f\n",
                 status_number(reasons, "space"), status_number(reasons, "once"),
                 status_number(reasons, "large"), status_number(reasons, "volume"));
}

/* Where blocks are, and what moved why. */
static void status_tiers(const json_t *tiers)
{
    static const char *const names[] = {"dram", "local", "pod"};
    const json_t *local = json_object_get(tiers, "local");
    char bytes[32], of[32];

    if (tiers == NULL)
        return;
    (void)printf("\n%-6s %-6s %12s %12s %10s %10s %10s\n", "TIER", "STATE", "HITS", "BLOCKS",
                 "BYTES", "OF", "EVICTED");
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *tier = json_object_get(tiers, names[i]);

        if (tier == NULL)
            continue;
        (void)printf("%-6s %-6s %12.0f", names[i],
                     json_object_get(tier, "state") != NULL ? status_text(tier, "state") : "",
                     status_number(tier, "hits"));
        if (json_object_get(tier, "blocks") != NULL)
            (void)printf(" %12.0f %10s %10s %10.0f", status_number(tier, "blocks"),
                         status_bytes(status_number(tier, "bytes"), bytes),
                         status_bytes(status_number(tier, "bytes_max"), of),
                         status_number(tier, "evicted"));
        (void)printf("\n");
    }
    status_evicted(json_object_get(tiers, "dram"));
    if (local == NULL)
        return;
    if (json_string_length(json_object_get(local, "why")) > 0)
        (void)printf("local: %s\n", status_text(local, "why"));
    if (json_object_get(local, "demoted") == NULL || json_object_get(tiers, "pod") == NULL)
        return;
    (void)printf(
        "local: of what memory evicted: written %.0f, %s; there already %.0f; not read %.0f; "
        "over the write budget %.0f; busy %.0f; failed %.0f\n",
        status_number(local, "demoted"), status_bytes(status_number(local, "demoted_bytes"), bytes),
        status_number(local, "kept"), status_number(local, "unread"),
        status_number(local, "refused"), status_number(local, "shed"),
        status_number(local, "failed_writes"));
    if (status_number(local, "forgotten") > 0)
        (void)printf("local: deleted for puts and removes: %.0f\n",
                     status_number(local, "forgotten"));
    if (status_number(local, "prestaged") > 0)
        (void)printf("local: blocks brought for hints: %.0f, %s\n",
                     status_number(local, "prestaged"),
                     status_bytes(status_number(local, "prestaged_bytes"), bytes));
    if (status_number(local, "stored") > 0)
        (void)printf("local: stores that it has instead of the pod: %.0f, %s\n",
                     status_number(local, "stored"),
                     status_bytes(status_number(local, "stored_bytes"), bytes));
    (void)printf("local: loads: answered %.0f, %s; asked of the pod: late %.0f, busy %.0f, failed "
                 "%.0f\n",
                 status_number(local, "promoted"),
                 status_bytes(status_number(local, "promoted_bytes"), bytes),
                 status_number(local, "given_up"), status_number(local, "passed"),
                 status_number(local, "failed_reads"));
}

static void status_users(const json_t *users)
{
    char in[32], drive[32], pod[32], out[32];
    const json_t *u;
    size_t i;

    if (json_array_size(users) == 0)
        return;
    (void)printf("\n%-12s %-20s %6s %7s %10s %12s %12s %12s %12s %10s %10s %8s\n", "USER", "VOLUME",
                 "WEIGHT", "CLIENTS", "REQUESTS", "LOADED", "FROM DRIVE", "FROM POD", "STORED",
                 "WAITED", "SECONDS", "SHED");
    json_array_foreach(users, i, u)
    {
        (void)printf("%-12s %-20s %6.0f %7.0f %10.0f %12s %12s %12s %12s %10.0f %10.1f %8.0f\n",
                     status_text(u, "user"), status_text(u, "volume"), status_number(u, "weight"),
                     status_number(u, "clients"), status_number(u, "requests"),
                     status_bytes(status_number(u, "load_bytes"), in),
                     status_bytes(status_number(u, "load_local_bytes"), drive),
                     status_bytes(status_number(u, "load_pod_bytes"), pod),
                     status_bytes(status_number(u, "store_bytes"), out), status_number(u, "waits"),
                     status_number(u, "wait_seconds"), status_number(u, "sheds"));
    }
}

void status_ready(const json_t *root)
{
    const json_t *ready = json_object_get(root, "ready");

    (void)printf("%s", status_text(root, "name"));
    if (json_is_boolean(ready))
        (void)printf(": %s", json_is_true(ready) ? "ready" : "not ready: ");
    if (json_is_false(ready))
        (void)printf("%s", status_text(root, "why"));
    (void)printf("\n");
}

/* The object's own words and numbers. */
static void status_head(const json_t *root)
{
    static const char *const shown[] = {"epoch", "clients",         "requests",
                                        "sheds", "deadline_misses", "checksum_errors"};
    const char *host = status_text(root, "host_nqn");

    status_ready(root);
    if (host[0] != 0 && host[0] != '-')
        (void)printf("host NQN: %s\n", host);
    for (size_t i = 0; i < sizeof(shown) / sizeof(*shown); i++)
        if (json_is_number(json_object_get(root, shown[i])))
            (void)printf("%s%s %.0f", i == 0 ? "" : ", ", shown[i], status_number(root, shown[i]));
    (void)printf("\n");
}

static int status_print(const struct cli *cli, const json_t *root)
{
    if (cli->json) {
        cli_json_print(root);
    } else {
        status_head(root);
        status_enclosures(json_object_get(root, "enclosures"));
        status_tiers(json_object_get(root, "tiers"));
        status_volumes(json_object_get(root, "volumes"));
        status_users(json_object_get(root, "users"));
    }
    return json_is_false(json_object_get(root, "ready")) ? CLI_MISSED : CLI_DONE;
}

static int status_run(int argc, char **argv)
{
    struct cli cli;
    json_t *root;
    int status = cli_parse(&cli_status, argc, argv, &cli);

    if (status >= 0)
        return status;
    if (cli.argc != 0)
        return cli_usage(&cli, "it has no argument '%s'", cli.argv[0]);
    if (cli.target != NULL && strstr(cli.target, "://") == NULL &&
        (cli.token != NULL || cli.ca != NULL))
        return cli_usage(&cli,
                         "--token and --ca are for a URL: the file of a target names its own");
    if (cli.target != NULL)
        return status_target(&cli);
    if (cli.token != NULL || cli.ca != NULL || cli.cert != NULL)
        return cli_usage(&cli, "--token, --ca, --cert and --key are for --target");
    status = cli_open_tier(&cli);
    if (status >= 0)
        return status;
    root = cli_ask(&cli, false, NULL, &status);
    if (root != NULL)
        status = status_print(&cli, root);
    json_decref(root);
    cli_close(&cli);
    return status;
}

const struct cli_command cli_status = {
    .name = "status",
    .summary = "show readiness, enclosures, volumes, hits and misses, users",
    .takes = CLI_TAKES_TIER | CLI_TAKES_TARGET | CLI_TAKES_PROOF,
    .run = status_run,
    .help =
        "usage: icms status [options]\n"
        "       icms status --target WHERE [options]\n"
        "Show what the agent knows: whether it is ready, its host NQN, enclosures and their state "
        "and last\nerror, tiers and what moved between them, volumes, hits by tier, misses by "
        "reason,\nand what users did with "
        "volumes.\nWith --target, what an icms-target knows: portals, hosts, drives, volumes, "
        "tenants.\n\n"
        "  -o, --open WHERE     unix:SOCKET, pod:FILE or dir:DIRECTORY; default $ICMS_OPEN, "
        "else\n"
        "                       the agent at $ICMS_SOCKET or at the default socket\n"
        "      --target WHERE   the configuration of a target on this machine, such as\n"
        "                       /etc/icms/target.yaml, whose http port, token and certificate are\n"
        "                       used; or http://ADDRESS:PORT or https://ADDRESS:PORT\n"
        "      --token FILE     of a URL: the token of its http port; sent over https, and over\n"
        "                       http to a loopback address alone\n"
        "      --ca FILE        of a URL: authorities of its certificate; default those of this\n"
        "                       machine\n"
        "      --cert FILE      the certificate of a client that its http port takes\n"
        "      --key FILE       the private key of --cert\n"
        "      --json           print the agent's or the target's JSON\n"
        "  -h, --help           print this\n\n"
        "Exit status: 0 ready, 1 not ready or no status, 2 usage or connection.\n",
};
