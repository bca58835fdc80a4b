/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_cli.h: what the subcommands of icms share: options, keys, opening, answers.
 *
 * One thread. Values go to standard output, answers too unless a value does, complaints to standard
 * error; with --json answers and complaints are one JSON object a line on standard output.
 */
#ifndef CMD_ICMS_CLI_H
#define CMD_ICMS_CLI_H

#include <jansson.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "icms/icms.h"

/* Exit statuses. */
enum cli_exit {
    CLI_DONE = 0,   /* done                              */
    CLI_MISSED = 1, /* a key was missed, or it failed    */
    CLI_USAGE = 2,  /* wrong usage, or no connection     */
};

/* --config of one call. */
#define CLI_CONFIGS_MAX 64

/* Which options a subcommand has besides --help. */
enum cli_takes {
    CLI_TAKES_TIER = 1,        /* --open --volume --keys --deadline --json --quiet */
    CLI_TAKES_KEYS = 2,        /* --hex --name                               */
    CLI_TAKES_FILE = 4,        /* --output --once                            */
    CLI_TAKES_STORE = 8,       /* --input --on-flash --if-absent --once      */
    CLI_TAKES_DEV = 16,        /* --dir --size --port --volume --json        */
    CLI_TAKES_GEN = 32,        /* --type --hash --kek --json                 */
    CLI_TAKES_ERASE = 64,      /* --config --pod --yes                      */
    CLI_TAKES_JSON = 256,      /* --json --quiet                            */
    CLI_TAKES_VOLUMES = 512,   /* --file --dry-run                       */
    CLI_TAKES_TARGET = 1024,   /* --target, instead of --open                 */
    CLI_TAKES_DRIVES = 2048,   /* --format --yes --cert --key            */
    CLI_TAKES_HINT = 4096,     /* --priority --tier --cancel --pin --once   */
    CLI_TAKES_ESTIMATE = 8192, /* --estimate                               */
    CLI_TAKES_PROOF = 16384,   /* --token --ca --cert --key               */
    CLI_TAKES_POD = 128, /* --file --address --capacity --weight --uuid --nqn --http --dry-run --yes
                            --open --deadline --json --quiet                 */
};

/* A subcommand. */
struct cli_command {
    const char *name;    /* "put"                                        */
    const char *summary; /* of `icms help`                               */
    const char *help;    /* the whole text of `icms put --help`          */
    unsigned takes;      /* enum cli_takes                               */
    int (*run)(int argc, char **argv);
};

extern const struct cli_command cli_put, cli_get, cli_exists, cli_match, cli_rm, cli_status,
    cli_trace, cli_prestage, cli_dev, cli_bench, cli_replay, cli_key, cli_volume, cli_pod,
    cli_config, cli_drive;

/* What the command line said, and what was opened for it. */
struct cli {
    const struct cli_command *command;
    const char *where;    /* --open, $ICMS_OPEN, "unix:"            */
    const char *volume;   /* --volume, $ICMS_VOLUME, "kv"           */
    const char *keys;     /* --keys; NULL: $ICMS_KEYS               */
    const char *target;   /* status: --target; NULL                 */
    uint32_t deadline_ms; /* 0: the default                         */
    bool volume_named;    /* by --volume                            */
    bool opened;          /* by --open                              */
    bool json, quiet;     /* how to answer                          */
    bool hex, name;       /* what keys are                          */
    bool on_flash, if_absent, once;
    bool cancel;                          /* prestage: --cancel                     */
    bool estimate;                        /* match: --estimate                      */
    uint32_t priority;                    /* prestage: --priority                   */
    uint32_t pin_s;                       /* prestage: --pin; 0: none               */
    const char *file;                     /* --input, --output, --file; NULL        */
    const char *dir;                      /* dev: --dir; NULL: a temporary one      */
    uint64_t size;                        /* dev: of the drive                      */
    uint32_t tier;                        /* prestage: --tier, enum icms_tier       */
    unsigned port;                        /* dev: of the target; 0: a free one      */
    const char *type;                     /* key: --type; NULL: the default         */
    const char *hash;                     /* key: --hash; NULL: the default         */
    const char *kek;                      /* key: --kek; NULL                       */
    bool yes;                             /* volume, drive, pod: --yes              */
    bool dry_run;                         /* volume, drive, pod: --dry-run          */
    const char *pod;                      /* volume: --pod; NULL                    */
    bool format;                          /* drive: --format                        */
    const char *address, *capacity;       /* pod: of the new enclosure; NULL        */
    const char *weight;                   /* likewise                               */
    const char *uuid, *nqn, *http;        /* likewise                               */
    const char *token, *ca;               /* for http ports: --token, --ca; NULL    */
    const char *cert, *cert_key;          /* --cert and --key, both or none         */
    const char *configs[CLI_CONFIGS_MAX]; /* volume erase: --config            */
    uint32_t config_count;
    int argc; /* what is left                           */
    char **argv;
    struct icms *icms; /* cli_open                        */
    struct icms_volume *handle;
    struct icms_volume_info info;
};

/* Reads the command line. Returns an exit status when the program ends here, else -1. */
int cli_parse(const struct cli_command *command, int argc, char **argv, struct cli *cli);

/* Says what is wrong with the command line; returns CLI_USAGE. */
int cli_usage(const struct cli *cli, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Says what failed; returns CLI_USAGE where there was no tier to talk to, else CLI_MISSED. */
int cli_fail(const struct cli *cli, icms_err err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Opens the tier and the volume, and makes the blocks' keys those of the volume: in a sealed one
 * bytes are a name. -1, or an exit status when that failed (and was said). */
int cli_open(struct cli *cli, struct icms_block *blocks, size_t count);
void cli_close(struct cli *cli);

/* Makes one key that of the opened volume, as cli_open does. */
void cli_key_of_volume(const struct cli *cli, struct icms_key *key);

/* Opens the tier alone. -1, or an exit status when that failed (and was said). */
int cli_open_tier(struct cli *cli);

/* What icms_status says or, asked, icms_trace of a key (NULL: of the slowest requests); for who has
 * to json_decref() it. NULL after it was said what failed and *out_status was set. */
json_t *cli_ask(const struct cli *cli, bool trace, const struct icms_key *key, int *out_status);

/* Prints it as one line. */
void cli_json_print(const json_t *root);

/* A difference that a change makes: into the list of the answer, and as a line of text. */
void cli_difference(const struct cli *cli, json_t *list, const char *key, const char *was,
                    const char *is);

/* The options of a request. */
struct icms_request_options cli_options(const struct cli *cli);

/* An argument as a key, for cli_open; -1, or an exit status. */
int cli_block_key(const struct cli *cli, const char *text, struct icms_key *out_key);

/* All arguments (none and use_stdin: the lines of standard input) as blocks with keys; NULL after
 * *out_status was set. The texts stay valid; both arrays are freed with cli_blocks_free. */
struct cli_blocks {
    struct icms_block *blocks;
    char **texts;
    size_t count, room;
};
int cli_blocks_read(const struct cli *cli, bool use_stdin, struct cli_blocks *out_blocks);
void cli_blocks_free(struct cli_blocks *blocks);

/* Their keys; malloc's and the caller's; NULL: no memory. */
struct icms_key *cli_blocks_keys(const struct cli_blocks *blocks);

/* A subcommand about keys: reads the command line and the keys (none and use_stdin: from standard
 * input), opens the volume, runs, closes; returns the exit status. */
int cli_run_keys(const struct cli_command *command, int argc, char **argv, bool use_stdin,
                 int (*run)(struct cli *cli, struct cli_blocks *blocks));

/* One more, with the key of a name. -1, or an exit status. */
int cli_blocks_add_name(const struct cli *cli, struct cli_blocks *blocks, const char *name);

/* A line on a terminal while something takes longer than a second, unless --quiet or --json. Every
 * begin needs its end; nothing else is printed between them. */
struct cli_progress {
    const char *what;       /* "opening"                                        */
    bool running;           /* there is a thread                                */
    bool over, shown;       /* the thread shall end; it wrote a line; lock      */
    pthread_t thread;       /* writes the line                                  */
    pthread_mutex_t lock;   /* of over and shown                                */
    pthread_cond_t changed; /* over was set                                     */
};
void cli_progress_begin(struct cli_progress *progress, const struct cli *cli, const char *what);
void cli_progress_end(struct cli_progress *progress);

/* Waits for a started request, with a line of progress on a terminal when it takes longer than a
 * second; returns what icms_request_end does. */
icms_err cli_wait(const struct cli *cli, struct icms_request *request, const char *what);

/* One answer about one key: text or JSON. what: "stored". bytes is said when it is not 0. */
void cli_answer(const struct cli *cli, const char *key, const struct icms_block *block,
                const char *what);

/* --json: answers about a block that was not stored or loaded; returns the exit status. */
int cli_miss(const struct cli *cli, const char *key, const struct icms_block *block);

/* icms volume: whether a word is one that changes or shows the file of a target; runs it. */
bool cli_volume_is_of_file(const char *word);
int cli_volume_file(const struct cli *cli);

/* What the operator has to know of a volume that is deleted: its blocks stay on drives until their
 * space is reused, and a volume of its name and generation finds them. Returns out. */
#define CLI_NOTE_BYTES 320
char *cli_volume_deleted(const char *name, uint32_t generation, char out[CLI_NOTE_BYTES]);

/* Prints one JSON object, made by json_pack's format (jansson). */
void cli_json(const char *format, ...);

#endif
