/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_trace.c: icms trace: how long requests were in which state, the slowest ones or those of
 * a key.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "icms_cli.h"

#define TRACE_BYTES 32 /* of a number for people */

static const char *trace_text(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text == NULL ? "-" : text;
}

/* A time for people. */
static const char *trace_time(const json_t *us, char out[TRACE_BYTES])
{
    double number = json_number_value(us);

    if (number < 1000)
        (void)snprintf(out, TRACE_BYTES, "%.0f us", number);
    else if (number < 1000000)
        (void)snprintf(out, TRACE_BYTES, "%.2f ms", number / 1e3);
    else
        (void)snprintf(out, TRACE_BYTES, "%.2f s", number / 1e6);
    return out;
}

static const char *trace_bytes(const json_t *bytes, char out[TRACE_BYTES])
{
    double number = json_number_value(bytes);

    if (number == 0)
        return "-";
    if (number < 1024)
        (void)snprintf(out, TRACE_BYTES, "%.0f B", number);
    else if (number < 1024 * 1024)
        (void)snprintf(out, TRACE_BYTES, "%.1f KiB", number / 1024);
    else
        (void)snprintf(out, TRACE_BYTES, "%.1f MiB", number / (1024 * 1024));
    return out;
}

/* "OK", or "MISS deadline". */
static const char *trace_answer(const json_t *request, char out[2 * TRACE_BYTES])
{
    const char *status = trace_text(request, "status"), *reason = trace_text(request, "reason");

    (void)snprintf(out, 2 * TRACE_BYTES, "%s%s%s", status, strcmp(reason, "none") == 0 ? "" : " ",
                   strcmp(reason, "none") == 0 ? "" : reason);
    return out;
}

static void trace_request(const json_t *request)
{
    char age[TRACE_BYTES], bytes[TRACE_BYTES], whole[TRACE_BYTES], answer[2 * TRACE_BYTES];
    const json_t *states = json_object_get(request, "states"), *step;
    const char *key = trace_text(request, "key");
    unsigned shown = 0;
    size_t i;

    (void)printf("%10s  %-11s %-12s %-32s %10s  %-20s %10s ",
                 trace_time(json_object_get(request, "age_us"), age), trace_text(request, "op"),
                 trace_text(request, "volume"), key[0] == 0 ? "-" : key,
                 trace_bytes(json_object_get(request, "bytes"), bytes),
                 trace_answer(request, answer), trace_time(json_object_get(request, "us"), whole));
    json_array_foreach(states, i, step)
    {
        char time[TRACE_BYTES];
        const char *state = trace_text(step, "state");
        const char *enclosure = json_string_value(json_object_get(request, "enclosure"));

        if (json_number_value(json_object_get(step, "us")) < 1)
            continue;
        (void)printf("%s %s %s", shown++ == 0 ? "" : ",", state,
                     trace_time(json_object_get(step, "us"), time));
        if (enclosure != NULL && strcmp(state, "pod") == 0)
            (void)printf(" (%s)", enclosure);
    }
    (void)printf("\n");
}

static size_t trace_count(const json_t *root)
{
    return json_array_size(json_object_get(root, "requests"));
}

static int trace_print(const struct cli *cli, const json_t *root)
{
    const json_t *request;
    size_t i;

    if (cli->json) {
        cli_json_print(root);
    } else if (trace_count(root) > 0) {
        (void)printf("%10s  %-11s %-12s %-32s %10s  %-20s %10s  %s\n", "AGO", "OPERATION", "VOLUME",
                     "KEY", "VALUE", "ANSWER", "TOOK", "STATES");
        json_array_foreach(json_object_get(root, "requests"), i, request)
        {
            trace_request(request);
        }
    } else if (!cli->quiet) {
        (void)printf("%s\n", cli->argc == 0
                                 ? "no request in the last one to two minutes"
                                 : "no request of this key is remembered: gets that find their "
                                   "block in mapped memory ask no agent");
    }
    return trace_count(root) > 0 ? CLI_DONE : CLI_MISSED;
}

/* The slowest requests; NULL after *out_status was set. */
static json_t *trace_slowest(struct cli *cli, int *out_status)
{
    *out_status = cli_open_tier(cli);
    return *out_status >= 0 ? NULL : cli_ask(cli, true, NULL, out_status);
}

/* The requests of a key: what stands for it in the volume or, when nothing of that is remembered,
 * the key as icms trace itself shows it. NULL after *out_status was set. */
static json_t *trace_key(struct cli *cli, int *out_status)
{
    struct icms_block block = {0};
    struct icms_key shown;
    json_t *root;

    *out_status = cli_block_key(cli, cli->argv[0], &block.key);
    shown = block.key;
    if (*out_status < 0)
        *out_status = cli_open(cli, &block, 1);
    if (*out_status >= 0)
        return NULL;
    root = cli_ask(cli, true, &block.key, out_status);
    if (root == NULL || trace_count(root) > 0 || shown.length != ICMS_KEY_BYTES)
        return root;
    json_decref(root);
    return cli_ask(cli, true, &shown, out_status);
}

static int trace_run(int argc, char **argv)
{
    struct cli cli;
    json_t *root;
    int status = cli_parse(&cli_trace, argc, argv, &cli);

    if (status >= 0)
        return status;
    if (cli.argc > 1)
        return cli_usage(&cli, "one key at most; '%s' is another", cli.argv[1]);
    root = cli.argc == 0 ? trace_slowest(&cli, &status) : trace_key(&cli, &status);
    if (root != NULL)
        status = trace_print(&cli, root);
    json_decref(root);
    cli_close(&cli);
    return status;
}

const struct cli_command cli_trace = {
    .name = "trace",
    .summary = "show where the time of requests went",
    .takes = CLI_TAKES_TIER | CLI_TAKES_KEYS,
    .run = trace_run,
    .help =
        "usage: icms trace [options] [KEY]\n"
        "Show requests that the agent has answered lately, and how long each was in which state:\n"
        "without KEY the slowest 32 of the last one to two minutes, else the last ones of KEY.\n"
        "Gets that find their block in mapped memory ask no agent, and are not shown.\n\n"
        "KEY is what other commands take, or 0x and the 32 digits that are shown here.\n\n"
        "  -o, --open WHERE     unix:SOCKET; default $ICMS_OPEN, else the agent at $ICMS_SOCKET\n"
        "                       or at the default socket\n"
        "  -v, --volume NAME    of the key; default $ICMS_VOLUME, else kv\n"
        "      --keys FILE      keys of encrypted volumes; default $ICMS_KEYS\n"
        "  -d, --deadline TIME  500ms, 2s; default: the agent's\n"
        "      --hex            the key is hex, as with 0x in front\n"
        "      --name           the key is a name of any length\n"
        "      --json           print the agent's JSON\n"
        "  -q, --quiet          say nothing when there is nothing\n"
        "  -h, --help           print this\n\n"
        "Exit status: 0 shown, 1 no such request, 2 usage or connection.\n",
};
