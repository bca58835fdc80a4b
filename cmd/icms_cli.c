/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_cli.c: options, keys, opening and answers of the icms subcommands.
 */
#include "icms_cli.h"

#include <ctype.h>
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/types.h"
#include "conf/conf.h"

/* ---- the command line ----------------------------------------------------------------------- */

enum option_code {
    OPTION_HEX = 256,
    OPTION_NAME,
    OPTION_ON_FLASH,
    OPTION_IF_ABSENT,
    OPTION_JSON,
    OPTION_DIR,
    OPTION_SIZE,
    OPTION_PORT,
    OPTION_INPUT,
    OPTION_OUTPUT,
    OPTION_TYPE,
    OPTION_HASH,
    OPTION_KEK,
    OPTION_KEYS,
    OPTION_CONFIG,
    OPTION_YES,
    OPTION_FILE,
    OPTION_ADDRESS,
    OPTION_CAPACITY,
    OPTION_WEIGHT,
    OPTION_UUID,
    OPTION_NQN,
    OPTION_HTTP,
    OPTION_TOKEN,
    OPTION_CA,
    OPTION_CERT,
    OPTION_CERT_KEY,
    OPTION_DRY_RUN,
    OPTION_TARGET,
    OPTION_FORMAT,
    OPTION_POD,
    OPTION_PRIORITY,
    OPTION_TIER,
    OPTION_CANCEL,
    OPTION_PIN,
    OPTION_ESTIMATE,
    OPTION_ONCE,
};

static const struct option option_table[] = {
    {"open", required_argument, NULL, 'o'},
    {"volume", required_argument, NULL, 'v'},
    {"deadline", required_argument, NULL, 'd'},
    {"json", no_argument, NULL, OPTION_JSON},
    {"quiet", no_argument, NULL, 'q'},
    {"hex", no_argument, NULL, OPTION_HEX},
    {"name", no_argument, NULL, OPTION_NAME},
    {"on-flash", no_argument, NULL, OPTION_ON_FLASH},
    {"if-absent", no_argument, NULL, OPTION_IF_ABSENT},
    {"input", required_argument, NULL, OPTION_INPUT},
    {"output", required_argument, NULL, OPTION_OUTPUT},
    {"dir", required_argument, NULL, OPTION_DIR},
    {"size", required_argument, NULL, OPTION_SIZE},
    {"port", required_argument, NULL, OPTION_PORT},
    {"type", required_argument, NULL, OPTION_TYPE},
    {"hash", required_argument, NULL, OPTION_HASH},
    {"kek", required_argument, NULL, OPTION_KEK},
    {"keys", required_argument, NULL, OPTION_KEYS},
    {"config", required_argument, NULL, OPTION_CONFIG},
    {"yes", no_argument, NULL, OPTION_YES},
    {"file", required_argument, NULL, OPTION_FILE},
    {"address", required_argument, NULL, OPTION_ADDRESS},
    {"capacity", required_argument, NULL, OPTION_CAPACITY},
    {"weight", required_argument, NULL, OPTION_WEIGHT},
    {"uuid", required_argument, NULL, OPTION_UUID},
    {"nqn", required_argument, NULL, OPTION_NQN},
    {"http", required_argument, NULL, OPTION_HTTP},
    {"token", required_argument, NULL, OPTION_TOKEN},
    {"ca", required_argument, NULL, OPTION_CA},
    {"cert", required_argument, NULL, OPTION_CERT},
    {"key", required_argument, NULL, OPTION_CERT_KEY},
    {"dry-run", no_argument, NULL, OPTION_DRY_RUN},
    {"target", required_argument, NULL, OPTION_TARGET},
    {"format", no_argument, NULL, OPTION_FORMAT},
    {"pod", required_argument, NULL, OPTION_POD},
    {"priority", required_argument, NULL, OPTION_PRIORITY},
    {"tier", required_argument, NULL, OPTION_TIER},
    {"cancel", no_argument, NULL, OPTION_CANCEL},
    {"pin", required_argument, NULL, OPTION_PIN},
    {"estimate", no_argument, NULL, OPTION_ESTIMATE},
    {"once", no_argument, NULL, OPTION_ONCE},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* Which commands have an option. */
static unsigned option_taken_by(int code)
{
    switch (code) {
    case 'o':
    case 'd':
        return CLI_TAKES_TIER | CLI_TAKES_POD;
    case 'q':
        return CLI_TAKES_TIER | CLI_TAKES_POD | CLI_TAKES_JSON;
    case OPTION_KEYS:
        return CLI_TAKES_TIER;
    case 'v':
        return CLI_TAKES_TIER | CLI_TAKES_DEV;
    case OPTION_JSON:
        return CLI_TAKES_TIER | CLI_TAKES_DEV | CLI_TAKES_GEN | CLI_TAKES_POD | CLI_TAKES_JSON;
    case OPTION_HEX:
    case OPTION_NAME:
        return CLI_TAKES_KEYS;
    case OPTION_ON_FLASH:
    case OPTION_IF_ABSENT:
    case OPTION_INPUT:
        return CLI_TAKES_STORE;
    case OPTION_OUTPUT:
        return CLI_TAKES_FILE;
    case OPTION_DIR:
    case OPTION_SIZE:
    case OPTION_PORT:
        return CLI_TAKES_DEV;
    case OPTION_TYPE:
    case OPTION_HASH:
    case OPTION_KEK:
        return CLI_TAKES_GEN;
    case OPTION_CONFIG:
    case OPTION_POD:
        return CLI_TAKES_ERASE;
    case OPTION_YES:
        return CLI_TAKES_ERASE | CLI_TAKES_POD | CLI_TAKES_DRIVES;
    case OPTION_FORMAT:
        return CLI_TAKES_DRIVES;
    case OPTION_FILE:
    case OPTION_DRY_RUN:
        return CLI_TAKES_POD | CLI_TAKES_VOLUMES;
    case OPTION_ADDRESS:
    case OPTION_CAPACITY:
    case OPTION_WEIGHT:
    case OPTION_UUID:
    case OPTION_NQN:
    case OPTION_HTTP:
        return CLI_TAKES_POD;
    case OPTION_TOKEN:
    case OPTION_CA:
        return CLI_TAKES_PROOF;
    case OPTION_CERT:
    case OPTION_CERT_KEY:
        return CLI_TAKES_PROOF | CLI_TAKES_DRIVES;
    case OPTION_TARGET:
        return CLI_TAKES_TARGET;
    case OPTION_PRIORITY:
    case OPTION_TIER:
    case OPTION_CANCEL:
    case OPTION_PIN:
        return CLI_TAKES_HINT;
    case OPTION_ESTIMATE:
        return CLI_TAKES_ESTIMATE;
    case OPTION_ONCE:
        return CLI_TAKES_FILE | CLI_TAKES_STORE | CLI_TAKES_HINT;
    default:
        return 0;
    }
}

static int option_number(struct cli *cli, int code)
{
    struct err_why why = {{0}};
    uint32_t milliseconds;
    char *end;
    unsigned long port;

    if (code == 'd' &&
        (conf_duration_parse(optarg, &why, &cli->deadline_ms) != ICMS_OK || cli->deadline_ms == 0))
        return cli_usage(cli, "--deadline %s: a time is written 500ms or 2s, and is not 0", optarg);
    if (code == OPTION_SIZE && conf_bytes_parse(optarg, &why, &cli->size) != ICMS_OK)
        return cli_usage(cli, "--size %s: a size is written 64MiB or 1GiB", optarg);
    if (code == OPTION_PORT) {
        port = strtoul(optarg, &end, 10);
        if (end == optarg || *end != 0 || port > 65535)
            return cli_usage(cli, "--port %s: a port is a number from 0 to 65535", optarg);
        cli->port = (unsigned)port;
    }
    if (code == OPTION_PRIORITY) {
        if (optarg[0] < '0' || optarg[0] > '0' + ICMS_PRIORITY_MAX || optarg[1] != 0)
            return cli_usage(cli, "--priority %s: it is a number from 0 to %d", optarg,
                             ICMS_PRIORITY_MAX);
        cli->priority = (uint32_t)(optarg[0] - '0');
    }
    if (code == OPTION_PIN) {
        if (conf_duration_parse(optarg, &why, &milliseconds) != ICMS_OK || milliseconds < 1000 ||
            milliseconds / 1000 > ICMS_PIN_SECONDS_MAX)
            return cli_usage(cli, "--pin %s: a time is written 90s or 30min; 1s to 1440min",
                             optarg);
        cli->pin_s = milliseconds / 1000;
    }
    if (code == OPTION_TIER) {
        if (strcmp(optarg, "dram") != 0 && strcmp(optarg, "local") != 0)
            return cli_usage(cli, "--tier %s: it is dram or local", optarg);
        cli->tier = strcmp(optarg, "local") == 0 ? ICMS_TIER_LOCAL : ICMS_TIER_DRAM;
    }
    return -1;
}

/* Of enclosures, and of who is asked over HTTP. */
static int option_place(struct cli *cli, int code)
{
    switch (code) {
    case OPTION_ADDRESS:
        cli->address = optarg;
        return -1;
    case OPTION_CAPACITY:
        cli->capacity = optarg;
        return -1;
    case OPTION_WEIGHT:
        cli->weight = optarg;
        return -1;
    case OPTION_UUID:
        cli->uuid = optarg;
        return -1;
    case OPTION_NQN:
        cli->nqn = optarg;
        return -1;
    case OPTION_HTTP:
        cli->http = optarg;
        return -1;
    case OPTION_TOKEN:
        cli->token = optarg;
        return -1;
    case OPTION_CA:
        cli->ca = optarg;
        return -1;
    case OPTION_CERT:
        cli->cert = optarg;
        return -1;
    case OPTION_CERT_KEY:
        cli->cert_key = optarg;
        return -1;
    case OPTION_TARGET:
        cli->target = optarg;
        return -1;
    default:
        return option_number(cli, code);
    }
}

/* One option; an exit status to end with, or -1. */
static int option_take(struct cli *cli, int code)
{
    switch (code) {
    case 'o':
        cli->where = optarg;
        cli->opened = true;
        return -1;
    case 'v':
        cli->volume = optarg;
        cli->volume_named = true;
        return -1;
    case 'q':
        cli->quiet = true;
        return -1;
    case OPTION_JSON:
        cli->json = true;
        return -1;
    case OPTION_HEX:
        cli->hex = true;
        return -1;
    case OPTION_NAME:
        cli->name = true;
        return -1;
    case OPTION_ON_FLASH:
        cli->on_flash = true;
        return -1;
    case OPTION_IF_ABSENT:
        cli->if_absent = true;
        return -1;
    case OPTION_INPUT:
    case OPTION_OUTPUT:
    case OPTION_FILE:
        cli->file = optarg;
        return -1;
    case OPTION_DIR:
        cli->dir = optarg;
        return -1;
    case OPTION_TYPE:
        cli->type = optarg;
        return -1;
    case OPTION_HASH:
        cli->hash = optarg;
        return -1;
    case OPTION_KEK:
        cli->kek = optarg;
        return -1;
    case OPTION_KEYS:
        cli->keys = optarg;
        return -1;
    case OPTION_YES:
        cli->yes = true;
        return -1;
    case OPTION_CONFIG:
        if (cli->config_count == CLI_CONFIGS_MAX)
            return cli_usage(cli, "more than %d --config", CLI_CONFIGS_MAX);
        cli->configs[cli->config_count++] = optarg;
        return -1;
    case OPTION_DRY_RUN:
        cli->dry_run = true;
        return -1;
    case OPTION_POD:
        cli->pod = optarg;
        return -1;
    case OPTION_FORMAT:
        cli->format = true;
        return -1;
    case OPTION_CANCEL:
        cli->cancel = true;
        return -1;
    case OPTION_ESTIMATE:
        cli->estimate = true;
        return -1;
    case OPTION_ONCE:
        cli->once = true;
        return -1;
    default:
        return option_place(cli, code);
    }
}

static const char *environment(const char *name, const char *otherwise)
{
    const char *value = secure_getenv(name);

    return value != NULL && value[0] != 0 ? value : otherwise;
}

int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli *cli)
{
    int code, status;

    *cli = (struct cli){.command = command,
                        .where = environment("ICMS_OPEN", "unix:"),
                        .volume = environment("ICMS_VOLUME", "kv"),
                        .size = (uint64_t)1 << 30};
    for (int i = 1; i < argc; i++) /* so that mistakes of the command line are JSON, too */
        if (strcmp(argv[i], "--json") == 0 && (command->takes & option_taken_by(OPTION_JSON)) != 0)
            cli->json = true;
    optind = 0;
    while ((code = getopt_long(argc, argv, ":o:v:d:qh", option_table, NULL)) != -1) {
        if (code == 'h') {
            (void)fputs(command->help, stdout);
            return CLI_DONE;
        }
        if (code == ':')
            return cli_usage(cli, "'%s' needs a value", argv[optind - 1]);
        if ((option_taken_by(code) & command->takes) == 0)
            return cli_usage(cli, "unknown option '%s'", argv[optind - 1]);
        status = option_take(cli, code);
        if (status >= 0)
            return status;
    }
    if (cli->hex && cli->name)
        return cli_usage(cli, "--hex and --name: a key is one or the other");
    if ((command->takes & CLI_TAKES_HINT) != 0 && cli->deadline_ms > 600000)
        return cli_usage(cli, "--deadline: 600s at most");
    if (cli->pin_s != 0 && cli->cancel)
        return cli_usage(cli, "--pin and --cancel: blocks are pinned, or pins are taken back");
    if ((cli->cert == NULL) != (cli->cert_key == NULL))
        return cli_usage(cli, "--cert and --key: a certificate and its key are given together");
    if (cli->target != NULL && cli->opened)
        return cli_usage(cli, "--open and --target: one of them is asked");
    cli->argc = argc - optind;
    cli->argv = argv + optind;
    return -1;
}

/* ---- complaints ----------------------------------------------------------------------------- */

void cli_json(const char *format, ...)
{
    json_error_t error;
    va_list args;
    json_t *object;

    va_start(args, format);
    object = json_vpack_ex(&error, 0, format, args);
    va_end(args);
    if (object == NULL) {
        (void)fprintf(stderr, "icms: cannot make JSON: %s\n", error.text);
        return;
    }
    (void)json_dumpf(object, stdout, JSON_COMPACT);
    (void)putchar('\n');
    json_decref(object);
}

static void complain(const struct cli *cli, const char *error, const char *text)
{
    if (cli->json)
        cli_json("{s:s, s:s}", "error", error, "why", text);
    else
        (void)fprintf(stderr, "icms %s: %s\n", cli->command->name, text);
}

int cli_usage(const struct cli *cli, const char *format, ...)
{
    char text[1024];
    size_t n;
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    n = strlen(text);
    (void)snprintf(text + n, sizeof(text) - n, "; see icms %s --help", cli->command->name);
    complain(cli, "USAGE", text);
    return CLI_USAGE;
}

static int cli_status_of(icms_err err)
{
    switch (err) {
    case ICMS_PEER_DOWN:
    case ICMS_REFUSED:
    case ICMS_RESET:
        return CLI_USAGE;
    default:
        return CLI_MISSED;
    }
}

int cli_fail(const struct cli *cli, icms_err err, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    complain(cli, icms_err_name(err), text);
    return cli_status_of(err);
}

/* ---- opening -------------------------------------------------------------------------------- */

static bool key_has_digest(const struct icms_key *key)
{
    static const uint8_t none[ICMS_DIGEST_BYTES];

    return memcmp(key->digest, none, sizeof(none)) != 0;
}

static struct icms_options cli_open_options(const struct cli *cli)
{
    struct icms_options options;

    icms_options_init(&options);
    options.keys = cli->keys;
    return options;
}

int cli_open(struct cli *cli, struct icms_block *blocks, size_t count)
{
    char why[ERR_WHY_BYTES_MAX] = "";
    struct icms_options options = cli_open_options(cli);
    struct cli_progress progress;
    icms_err err;

    cli_progress_begin(&progress, cli, "opening");
    err = icms_open(cli->where, &options, why, sizeof(why), &cli->icms);
    if (err == ICMS_OK)
        err = icms_volume_open(cli->icms, cli->volume, why, sizeof(why), &cli->handle);
    cli_progress_end(&progress);
    if (err != ICMS_OK) {
        (void)cli_fail(cli, err, "%s", why);
        cli_close(cli);
        return CLI_USAGE;
    }
    icms_volume_info(cli->handle, &cli->info);
    for (size_t i = 0; i < count; i++)
        cli_key_of_volume(cli, &blocks[i].key);
    return -1;
}

void cli_key_of_volume(const struct cli *cli, struct icms_key *key)
{
    struct icms_key raw = *key;

    if (cli->info.sealed && !key_has_digest(key))
        icms_key_from_name(raw.bytes, raw.length, key);
}

void cli_close(struct cli *cli)
{
    icms_close(&cli->icms);
}

int cli_open_tier(struct cli *cli)
{
    char why[ERR_WHY_BYTES_MAX] = "";
    struct icms_options options = cli_open_options(cli);
    icms_err err = icms_open(cli->where, &options, why, sizeof(why), &cli->icms);

    if (err == ICMS_OK)
        return -1;
    (void)cli_fail(cli, err, "%s", why);
    return CLI_USAGE;
}

/* ---- what an agent says of itself ----------------------------------------------------------- */

#define ASK_BYTES ((size_t)64 << 10) /* first guess                                 */
#define ASK_TRIES 8                  /* to have room for a text that grows meanwhile */

/* The text, for who has to free() it; NULL after *out_err was set. */
static char *ask_text(const struct cli *cli, bool trace, const struct icms_key *key,
                      icms_err *out_err)
{
    size_t bytes = ASK_BYTES, needed = 0;

    for (int i = 0; i < ASK_TRIES; i++) {
        char *text = malloc(bytes);

        *out_err = text == NULL ? ICMS_NO_MEMORY
                   : trace      ? icms_trace(cli->icms, key, text, bytes, &needed)
                                : icms_status(cli->icms, text, bytes, &needed);
        if (*out_err == ICMS_OK && needed <= bytes)
            return text;
        free(text);
        if (*out_err != ICMS_OK)
            return NULL;
        bytes = needed + 4096;
    }
    *out_err = ICMS_PROTOCOL;
    return NULL;
}

json_t *cli_ask(const struct cli *cli, bool trace, const struct icms_key *key, int *out_status)
{
    json_error_t error;
    icms_err err;
    char *text = ask_text(cli, trace, key, &err);
    json_t *root = text == NULL ? NULL : json_loads(text, 0, &error);

    if (text == NULL)
        *out_status = cli_fail(cli, err, "%s gives no %s: %s", cli->where,
                               trace ? "trace" : "status", icms_err_text(err));
    else if (root == NULL)
        *out_status =
            cli_fail(cli, ICMS_PROTOCOL, "what %s answers is not JSON: %s", cli->where, error.text);
    free(text);
    return root;
}

void cli_json_print(const json_t *root)
{
    (void)json_dumpf(root, stdout, JSON_COMPACT);
    (void)putchar('\n');
}

void cli_difference(const struct cli *cli, json_t *list, const char *key, const char *was,
                    const char *is)
{
    (void)json_array_append_new(list,
                                json_pack("{s:s, s:s, s:s}", "key", key, "was", was, "is", is));
    if (!cli->json && !cli->quiet)
        (void)printf("%s: %s -> %s\n", key, was, is);
}

struct icms_request_options cli_options(const struct cli *cli)
{
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.deadline_ms = cli->deadline_ms;
    options.put_ack = cli->on_flash ? ICMS_PUT_ON_FLASH : ICMS_PUT_ACCEPTED;
    options.put_if_absent = cli->if_absent;
    options.once = cli->once;
    return options;
}

/* ---- keys ----------------------------------------------------------------------------------- */

/* Up to 16 bytes, or the run and the digest of a key, as the Python package writes it. */
static int key_hex(const struct cli *cli, const char *text, struct icms_key *out_key)
{
    uint8_t bytes[ICMS_RUN_BYTES + ICMS_DIGEST_BYTES];
    size_t length = strlen(text);

    if (length == 0 || length % 2 != 0 ||
        (length > (size_t)2 * ICMS_KEY_BYTES && length != 2 * sizeof(bytes)))
        return cli_usage(cli, "'%s': a key in hex has 2 to 32 digits, two a byte, or 72", text);
    if (!hex_read(text, length / 2, bytes))
        return cli_usage(cli, "'%s' is not hex", text);
    if (length == 2 * sizeof(bytes)) {
        icms_key_from_digest(bytes, bytes + ICMS_RUN_BYTES, out_key);
        return -1;
    }
    return icms_key_raw(bytes, length / 2, out_key) == ICMS_OK ? -1 : CLI_USAGE;
}

int cli_block_key(const struct cli *cli, const char *text, struct icms_key *out_key)
{
    if (cli->name) {
        icms_key_from_name(text, strlen(text), out_key);
        return -1;
    }
    if (cli->hex)
        return key_hex(cli, text, out_key);
    if (strncmp(text, "0x", 2) == 0)
        return key_hex(cli, text + 2, out_key);
    if (icms_key_raw(text, strlen(text), out_key) == ICMS_OK)
        return -1;
    if (text[0] == 0)
        return cli_usage(cli, "a key has 1 to 16 bytes; this one is empty");
    return cli_usage(
        cli, "'%s': a key has 1 to 16 bytes; --name takes names of any length, 0x... hex", text);
}

/* Adds an empty block; the arrays double. False: no memory. */
static bool blocks_grow(struct cli_blocks *b)
{
    struct icms_block *blocks;
    char **texts;

    if (b->count == b->room) {
        size_t room = b->room == 0 ? 64 : 2 * b->room;

        blocks = realloc(b->blocks, room * sizeof(*blocks));
        if (blocks != NULL)
            b->blocks = blocks;
        texts = realloc(b->texts, room * sizeof(*texts));
        if (texts != NULL)
            b->texts = texts;
        if (blocks == NULL || texts == NULL)
            return false;
        b->room = room;
    }
    b->blocks[b->count] = (struct icms_block){.data = NULL};
    return true;
}

static int blocks_add(const struct cli *cli, struct cli_blocks *b, const char *text)
{
    int status;

    if (b->count == ICMS_BATCH_MAX && cli->command != &cli_match)
        return cli_usage(cli, "more than %d keys", ICMS_BATCH_MAX);
    if (!blocks_grow(b))
        return cli_fail(cli, ICMS_NO_MEMORY, "out of memory");
    status = cli_block_key(cli, text, &b->blocks[b->count].key);
    if (status >= 0)
        return status;
    b->texts[b->count] = strdup(text);
    if (b->texts[b->count] == NULL)
        return cli_fail(cli, ICMS_NO_MEMORY, "out of memory");
    b->count++;
    return -1;
}

int cli_blocks_add_name(const struct cli *cli, struct cli_blocks *b, const char *name)
{
    if (!blocks_grow(b) || (b->texts[b->count] = strdup(name)) == NULL)
        return cli_fail(cli, ICMS_NO_MEMORY, "out of memory");
    icms_key_from_name(name, strlen(name), &b->blocks[b->count++].key);
    return -1;
}

int cli_blocks_read(const struct cli *cli, bool use_stdin, struct cli_blocks *out_blocks)
{
    size_t line_room = 0;
    char *line = NULL;
    int status = -1;
    ssize_t n;

    *out_blocks = (struct cli_blocks){0};
    for (int i = 0; i < cli->argc && status < 0; i++)
        status = blocks_add(cli, out_blocks, cli->argv[i]);
    while (cli->argc == 0 && use_stdin && status < 0 &&
           (n = getline(&line, &line_room, stdin)) >= 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = 0;
        if (n > 0)
            status = blocks_add(cli, out_blocks, line);
    }
    free(line);
    if (status < 0 && out_blocks->count == 0)
        status = cli_usage(cli, "no key given");
    if (status >= 0)
        cli_blocks_free(out_blocks);
    return status;
}

void cli_blocks_free(struct cli_blocks *blocks)
{
    for (size_t i = 0; i < blocks->count; i++)
        free(blocks->texts[i]);
    free(blocks->texts);
    free(blocks->blocks);
    *blocks = (struct cli_blocks){0};
}

struct icms_key *cli_blocks_keys(const struct cli_blocks *blocks)
{
    struct icms_key *keys = calloc(blocks->count, sizeof(*keys));

    for (size_t i = 0; keys != NULL && i < blocks->count; i++)
        keys[i] = blocks->blocks[i].key;
    return keys;
}

int cli_run_keys(const struct cli_command *command, int argc, char **argv, bool use_stdin,
                 int (*run)(struct cli *cli, struct cli_blocks *blocks))
{
    struct cli_blocks blocks;
    struct cli cli;
    int status = cli_parse(command, argc, argv, &cli);

    if (status < 0)
        status = cli_blocks_read(&cli, use_stdin, &blocks);
    if (status >= 0)
        return status;
    status = cli_open(&cli, blocks.blocks, blocks.count);
    if (status < 0) {
        status = run(&cli, &blocks);
        cli_close(&cli);
    }
    cli_blocks_free(&blocks);
    return status;
}

/* ---- waiting and answering ------------------------------------------------------------------ */

/* Its own thread: shows that the program is alive while the other one waits. */
static void *progress_run(void *arg)
{
    struct cli_progress *progress = arg;
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    (void)pthread_mutex_lock(&progress->lock);
    for (unsigned quarters = 0; !progress->over; quarters++) {
        if (quarters > 4) {
            (void)fprintf(stderr, "\r%s ... %u s", progress->what, quarters / 4);
            progress->shown = true;
        }
        until.tv_nsec += 250000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        while (!progress->over &&
               pthread_cond_timedwait(&progress->changed, &progress->lock, &until) == 0) {
        }
    }
    (void)pthread_mutex_unlock(&progress->lock);
    return NULL;
}

void cli_progress_begin(struct cli_progress *progress, const struct cli *cli, const char *what)
{
    pthread_condattr_t attr;

    *progress = (struct cli_progress){.what = what};
    if (cli->quiet || cli->json || isatty(STDERR_FILENO) == 0)
        return;
    (void)pthread_mutex_init(&progress->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&progress->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    progress->running = pthread_create(&progress->thread, NULL, progress_run, progress) == 0;
}

void cli_progress_end(struct cli_progress *progress)
{
    if (!progress->running)
        return;
    (void)pthread_mutex_lock(&progress->lock);
    progress->over = true;
    (void)pthread_cond_signal(&progress->changed);
    (void)pthread_mutex_unlock(&progress->lock);
    (void)pthread_join(progress->thread, NULL);
    (void)pthread_cond_destroy(&progress->changed);
    (void)pthread_mutex_destroy(&progress->lock);
    if (progress->shown)
        (void)fprintf(stderr, "\r\033[K");
    progress->running = false;
}

icms_err cli_wait(const struct cli *cli, struct icms_request *request, const char *what)
{
    struct cli_progress progress;
    icms_err err;

    cli_progress_begin(&progress, cli, what);
    err = icms_request_end(&request); /* waits */
    cli_progress_end(&progress);
    return err;
}

static const char *source_name(enum icms_source source)
{
    switch (source) {
    case ICMS_SOURCE_DRAM:
        return "dram";
    case ICMS_SOURCE_LOCAL:
        return "local";
    case ICMS_SOURCE_POD:
        return "pod";
    default:
        return "none";
    }
}

static void answer_json(const char *key, const struct icms_block *block)
{
    json_t *object = json_object();

    (void)json_object_set_new(object, "key", json_stringn_nocheck(key, strlen(key)));
    (void)json_object_set_new(object, "status", json_string(icms_err_name(block->status)));
    if (block->status == ICMS_MISS)
        (void)json_object_set_new(object, "reason", json_string(icms_miss_name(block->reason)));
    if (block->status == ICMS_OK && block->bytes != 0)
        (void)json_object_set_new(object, "bytes", json_integer((json_int_t)block->bytes));
    if (block->source != ICMS_SOURCE_NONE)
        (void)json_object_set_new(object, "source", json_string(source_name(block->source)));
    (void)json_dumpf(object, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    (void)putchar('\n');
    json_decref(object);
}

void cli_answer(const struct cli *cli, const char *key, const struct icms_block *block,
                const char *what)
{
    if (cli->json) {
        answer_json(key, block);
        return;
    }
    if (cli->quiet)
        return;
    if (block->status == ICMS_MISS)
        (void)printf("%s: missing (%s)\n", key, icms_miss_name(block->reason));
    else if (block->status != ICMS_OK)
        (void)fprintf(stderr, "icms %s: %s: %s\n", cli->command->name, key,
                      icms_err_text(block->status));
    else if (block->source != ICMS_SOURCE_NONE)
        (void)printf("%s: %s, %llu bytes from %s\n", key, what, (unsigned long long)block->bytes,
                     source_name(block->source));
    else if (block->bytes != 0)
        (void)printf("%s: %s, %llu bytes\n", key, what, (unsigned long long)block->bytes);
    else
        (void)printf("%s: %s\n", key, what);
}

int cli_miss(const struct cli *cli, const char *key, const struct icms_block *block)
{
    cli_answer(cli, key, block, "");
    /* With a reason the agent answered: then there is a connection. */
    return block->reason == ICMS_MISS_NONE ? cli_status_of(block->status) : CLI_MISSED;
}
