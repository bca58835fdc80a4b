/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_drive.c: icms drive list, add, drain, undrain, remove and replace: the drives of a
 * target's file. A change is planned and shown before it is written, and with --dry-run it is not
 * written. icms-target reads the file again at SIGHUP. With --format a drive that comes is erased
 * first, unless a process has it open. The icms-target is asked what a drive that leaves holds.
 */
#include <curl/curl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "conf/conf.h"
#include "icms_cli.h"
#include "icms_status.h"
#include "status_place.h"
#include "store/store.h"

#define TARGET_FILE "/etc/icms/target.yaml"

static const char *state_name(const struct conf_drive *drive)
{
    return drive->state == CONF_DRIVE_DRAINING ? "draining" : "up";
}

/* ---- list ----------------------------------------------------------------------------------- */

static int drives_list(const struct cli *cli, const char *path)
{
    struct conf_live *live = NULL;
    struct err_why why = {""};
    icms_err err = conf_live_read(path, "--file", &why, &live);
    const struct conf_target *conf;

    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    conf = conf_live_target(live);
    if (cli->json) {
        json_t *list = json_array();

        for (uint32_t i = 0; i < conf->drive_count; i++)
            (void)json_array_append_new(
                list, json_pack("{s:s, s:s, s:I, s:b}", "path", conf->drives[i].path, "state",
                                state_name(&conf->drives[i]), "size_bytes",
                                (json_int_t)conf->drives[i].bytes, "format_empty",
                                conf->drives[i].format_empty));
        cli_json("{s:s, s:s, s:o}", "file", path, "target", conf->name, "drives", list);
    }
    for (uint32_t i = 0; i < conf->drive_count && !cli->json && !cli->quiet; i++)
        (void)printf("%s: %s\n", conf->drives[i].path, state_name(&conf->drives[i]));
    conf_live_free(&live);
    return CLI_DONE;
}

/* ---- changes -------------------------------------------------------------------------------- */

/* The differences of a change, as they are told. */
struct plan {
    const struct cli *cli;
    const char *path; /* of the file */
    json_t *list;
    const char *note; /* what the operator has to know */
};

static void plan_visit(void *arg, const char *key, const char *was, const char *is)
{
    struct plan *plan = arg;

    cli_difference(plan->cli, plan->list, key, was, is);
}

static const struct conf_drive *drive_find(const struct conf_target *conf, const char *path)
{
    for (uint32_t i = 0; i < conf->drive_count; i++)
        if (strcmp(conf->drives[i].path, path) == 0)
            return &conf->drives[i];
    return NULL;
}

/* Erases what is on the drive that comes: its size and segments as the new file has them. */
static int drive_format(const struct plan *plan, const struct conf_target *conf, const char *drive)
{
    const struct cli *cli = plan->cli;
    struct err_why why = {""};
    struct store_opts opts;
    icms_err err;

    store_opts_init(&opts);
    opts.path = drive;
    opts.bytes = drive_find(conf, drive)->bytes;
    opts.segment_bytes = conf->segment_bytes;
    opts.value_bytes_max = 1;
    err = store_format(loop_env_uring(), &opts, true, &why);
    return err == ICMS_OK
               ? -1
               : cli_fail(cli, err, "cannot format %s: %s; nothing was changed", drive, why.text);
}

/* Whether two paths lead to one file or device. */
static bool is_same(const char *a, const char *b)
{
    struct stat x, y;

    if (stat(a, &x) != 0 || stat(b, &y) != 0)
        return false;
    if (S_ISBLK(x.st_mode) && S_ISBLK(y.st_mode))
        return x.st_rdev == y.st_rdev;
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Whether the store on a drive was in use: its owner kept a note there. */
static bool is_used(const char *drive)
{
    static uint8_t note[STORE_NOTE_BYTES];
    bool lost = false, noted = false;
    struct err_why why;
    struct uuid uuid;
    icms_err err = store_note_read(loop_env_uring(), drive, &why, &uuid, note, &lost);

    if (err != ICMS_OK)
        return err == ICMS_LOCKED; /* of all else icms-target says why it cannot be opened */
    for (size_t i = 0; i < sizeof(note); i++)
        noted = noted || note[i] != 0;
    return noted || lost;
}

/* Whether a file can be made at a path: it is no link to nothing, and there is a folder for it. */
static bool can_be_made(const char *path)
{
    char folder[LIMIT_PATH_BYTES];
    struct stat status;

    (void)snprintf(folder, sizeof(folder), "%s", path);
    return lstat(path, &status) != 0 && stat(dirname(folder), &status) == 0 &&
           S_ISDIR(status.st_mode);
}

/* Whether icms-target will take what there is at a path; a mistyped one is not made silently. What
 * this user may not look at is left to icms-target, which may erase drives that it does not know
 * when it starts with one that was in use. */
static int drive_look(const struct plan *plan, const struct conf_target *conf,
                      enum conf_drive_what what, const char *drive)
{
    const struct cli *cli = plan->cli;
    bool is_made = drive_find(conf, drive)->format_empty;
    struct store_contents found;
    struct err_why why = {""};
    icms_err err = store_look(loop_env_uring(), drive, &why, &found);

    if (err == ICMS_PERMISSION) {
        if (!cli->json && !cli->quiet)
            (void)printf("%s could not be looked at: %s\n", drive, why.text);
        return -1;
    }
    if (err != ICMS_OK)
        return cli_fail(cli, err,
                        "%s: drive %s: %s; or add --format to erase what is there; nothing was "
                        "changed",
                        plan->path, drive, why.text);
    if (found.holds == STORE_HOLDS_STORE && is_used(drive))
        return cli_fail(cli, ICMS_FOREIGN,
                        "%s: drive %s holds blocks of an enclosure or an agent; add --format to "
                        "erase them; nothing was changed",
                        plan->path, drive);
    if (found.holds == STORE_HOLDS_NO_FILE && (what == CONF_DRIVE_REPLACE || !is_made))
        return cli_fail(cli, ICMS_NOT_FOUND,
                        "%s: drive %s: there is no such file; check the path, or add --format to "
                        "have it made; nothing was changed",
                        plan->path, drive);
    if (found.holds == STORE_HOLDS_NO_FILE && !can_be_made(drive))
        return cli_fail(cli, ICMS_NOT_FOUND,
                        "%s: drive %s cannot be made: its folder is missing, or it is a link to "
                        "nothing; nothing was changed",
                        plan->path, drive);
    if (found.holds == STORE_HOLDS_ZEROS && !is_made)
        return cli_fail(cli, ICMS_NOT_FOUND,
                        "%s: drive %s is empty: add --format to make it a drive; nothing was "
                        "changed",
                        plan->path, drive);
    return -1;
}

/* Whether the file has the drive that comes by another name. */
static int drive_check(const struct plan *plan, const char *drive)
{
    const struct cli *cli = plan->cli;
    struct conf_live *live = NULL;
    struct err_why why = {""};
    icms_err err = conf_live_read(plan->path, "--file", &why, &live);
    const char *same = NULL;
    int status = -1;

    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    for (uint32_t i = 0; i < conf_live_target(live)->drive_count && same == NULL; i++)
        if (is_same(conf_live_target(live)->drives[i].path, drive))
            same = conf_live_target(live)->drives[i].path;
    if (same != NULL)
        status = cli_fail(cli, ICMS_EXISTS,
                          "%s: drive %s is %s, which the file has; nothing was "
                          "changed",
                          plan->path, drive, same);
    conf_live_free(&live);
    return status;
}

/* Whether a drive that leaves holds blocks, by the status of its target. BUSY: it does; PROTOCOL:
 * the status does not say. */
static icms_err blocks_check(const struct conf_target *conf, const json_t *status, const char *path,
                             struct err_why *why)
{
    /* NULL: the target does not have it, so it has no blocks there */
    const json_t *drive = status_entry(status, "drives", "path", path);
    const json_t *blocks = json_object_get(drive, "blocks");
    const char *state = status_text(drive, "state"), *first = "";

    if (strcmp(status_text(status, "nqn"), conf->nqn) != 0)
        return err_set(why, ICMS_PROTOCOL,
                       "another one answers at %s, with the NQN %.100s, and the file has %.100s: "
                       "start the target of the file",
                       conf->http.listen, status_text(status, "nqn"), conf->nqn);
    if (!json_is_array(json_object_get(status, "drives")) ||
        (drive != NULL && !json_is_integer(blocks)))
        return err_set(why, ICMS_PROTOCOL, "what answers at %s does not say it", conf->http.listen);
    if (drive == NULL || strcmp(state, "out of service") == 0 ||
        (strcmp(state, "draining") == 0 && json_integer_value(blocks) == 0))
        return ICMS_OK;
    if (strncmp(state, "draining", strlen("draining")) != 0)
        first = ", and its target does not drain it yet: send SIGHUP to that";
    else if (strcmp(state, "draining") != 0)
        first = ", and the others are full: add a drive";
    return err_set(why, ICMS_BUSY, "it still holds %lld blocks%s",
                   (long long)json_integer_value(blocks), first);
}

/* Whether a drive may leave: without --yes its target is asked how many blocks it holds. */
static int drive_leaves(const struct plan *plan, const struct conf_target *conf, const char *path)
{
    const struct cli *cli = plan->cli;
    struct status_answer answer = {.where = plan->path};
    struct status_proof proof = {.token = NULL};
    struct err_why why = {""};
    icms_err err = status_proof_read(&proof, NULL, NULL, cli->cert, cli->cert_key, &why);

    if (err != ICMS_OK) {
        (void)cli_fail(cli, ICMS_CONFIG, "%s; nothing was changed", why.text);
        return CLI_USAGE;
    }
    (void)err_set(&answer.why, ICMS_NO_MEMORY, "libcurl does not start");
    if (curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        status_ask_all(&answer, 1, &proof, STATUS_ASK_MS, NULL);
        curl_global_cleanup();
    }
    err = answer.status != NULL ? blocks_check(conf, answer.status, path, &answer.why)
                                : ICMS_PEER_DOWN;
    json_decref(answer.status);
    status_proof_fini(&proof);
    if (err == ICMS_OK)
        return -1;
    if (err == ICMS_BUSY)
        return cli_fail(cli, ICMS_INVALID,
                        "%s: drive %s: %s; wait until it holds none (`icms status --target %s`), "
                        "or add --yes to lose them; nothing was changed",
                        plan->path, path, answer.why.text, plan->path);
    return cli_fail(cli, ICMS_INVALID,
                    "%s: drive %s: its target cannot be asked how many blocks it holds: %s; or add "
                    "--yes to lose them; nothing was changed",
                    plan->path, path, answer.why.text);
}

static int change_answer(const struct plan *plan, const struct conf_drive_change *asked)
{
    const struct cli *cli = plan->cli;

    if (cli->json) {
        json_t *answer =
            json_pack("{s:s, s:s, s:O, s:b, s:s}", "file", plan->path, "drive", asked->path,
                      "changes", plan->list, "written", !cli->dry_run, "note", plan->note);

        cli_json_print(answer);
        json_decref(answer);
    } else if (!cli->quiet && cli->dry_run) {
        (void)printf("nothing was written, for --dry-run was given\n");
    } else if (!cli->quiet) {
        (void)printf("%s was written; send SIGHUP to its icms-target, as `systemctl reload "
                     "icms-target` does\n%s%s",
                     plan->path, plan->note, plan->note[0] != '\0' ? "\n" : "");
    }
    return CLI_DONE;
}

/* Plans, formats, writes, answers. */
static int drives_change(struct plan *plan, const struct conf_drive_change *asked)
{
    const struct cli *cli = plan->cli;
    const char *comes = asked->what == CONF_DRIVE_REPLACE ? asked->other : asked->path;
    bool is_leaving = asked->what == CONF_DRIVE_REMOVE || asked->what == CONF_DRIVE_REPLACE;
    struct conf_live *live = NULL; /* the file as it will be */
    struct conf_edit edit = {0};
    struct err_why why = {""};
    icms_err err = conf_drive_change(plan->path, asked, plan_visit, plan, &why, &edit);
    int status = -1;

    if (err == ICMS_OK)
        err = conf_live_parse(plan->path, edit.text, edit.bytes, &why, &live);
    if (err != ICMS_OK) {
        conf_edit_fini(&edit);
        return cli_fail(cli, err, "%s", why.text);
    }
    if (is_leaving && !asked->yes)
        status = drive_leaves(plan, conf_live_target(live), asked->path);
    if (status < 0 && (asked->what == CONF_DRIVE_ADD || asked->what == CONF_DRIVE_REPLACE)) {
        status = drive_check(plan, comes);
        if (status < 0 && !cli->format)
            status = drive_look(plan, conf_live_target(live), asked->what, comes);
        if (status < 0 && cli->format && !cli->dry_run)
            status = drive_format(plan, conf_live_target(live), comes);
    }
    if (status < 0 && !cli->dry_run)
        err = conf_edit_write(plan->path, &edit, &why);
    conf_live_free(&live);
    conf_edit_fini(&edit);
    if (status >= 0)
        return status;
    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s; the file was not changed%s%s", why.text,
                        cli->format ? ", but erased was " : "", cli->format ? comes : "");
    return change_answer(plan, asked);
}

static const struct drive_word {
    const char *word;
    enum conf_drive_what what;
    int arguments; /* at least; at most the same but for values */
    const char *note;
} words[] = {
    {"add", CONF_DRIVE_ADD, 1, ""},
    {"drain", CONF_DRIVE_DRAIN, 1,
     "then wait until `icms status --target` shows 0 blocks of the drive, and remove it"},
    {"undrain", CONF_DRIVE_UNDRAIN, 1, ""},
    {"remove", CONF_DRIVE_REMOVE, 1,
     "the drive may be pulled when icms-target has logged that the configuration was read"},
    {"replace", CONF_DRIVE_REPLACE, 2,
     "the drive may be pulled when icms-target has logged that the configuration was read"},
};

static int drive_run(int argc, char **argv)
{
    const size_t count = sizeof(words) / sizeof(words[0]);
    struct conf_drive_change asked = {.path = NULL};
    struct plan plan;
    struct cli cli;
    size_t at = 0;
    int status = cli_parse(&cli_drive, argc, argv, &cli);

    if (status >= 0)
        return status;
    plan = (struct plan){.cli = &cli, .path = cli.file != NULL ? cli.file : TARGET_FILE};
    if (cli.argc == 1 && strcmp(cli.argv[0], "list") == 0)
        return drives_list(&cli, plan.path);
    while (cli.argc > 0 && at < count && strcmp(cli.argv[0], words[at].word) != 0)
        at++;
    if (cli.argc == 0 || at == count)
        return cli_usage(&cli, "it takes 'list', 'add', 'drain', 'undrain', 'remove' or 'replace'");
    if (cli.argc - 1 < words[at].arguments ||
        (cli.argc - 1 > words[at].arguments && words[at].what != CONF_DRIVE_ADD))
        return cli_usage(&cli, "%s takes %s, as the file has %s", words[at].word,
                         words[at].arguments == 2 ? "the paths of two drives, the old one"
                                                  : "the path of one drive",
                         words[at].arguments == 2 ? "it, and the new one" : "it");
    if (cli.format && words[at].what != CONF_DRIVE_ADD && words[at].what != CONF_DRIVE_REPLACE)
        return cli_usage(&cli, "--format is for add and replace");
    if (cli.cert != NULL && words[at].what != CONF_DRIVE_REMOVE &&
        words[at].what != CONF_DRIVE_REPLACE)
        return cli_usage(&cli, "--cert and --key are for remove and replace");
    asked.what = words[at].what;
    asked.path = cli.argv[1];
    asked.yes = cli.yes;
    if (asked.what == CONF_DRIVE_REPLACE)
        asked.other = cli.argv[2];
    asked.values = (const char *const *)cli.argv + 2;
    asked.value_count = asked.what == CONF_DRIVE_ADD ? (uint32_t)cli.argc - 2 : 0;
    plan.note = words[at].note;
    plan.list = json_array();
    status = drives_change(&plan, &asked);
    json_decref(plan.list);
    return status;
}

const struct cli_command cli_drive = {
    .name = "drive",
    .summary = "add, drain, remove and replace drives of an enclosure",
    .takes = CLI_TAKES_JSON | CLI_TAKES_VOLUMES | CLI_TAKES_DRIVES,
    .run = drive_run,
    .help =
        "usage: icms drive list [--file FILE] [options]\n"
        "       icms drive add PATH [KEY=VALUE ...] [--format] [--file FILE] [options]\n"
        "       icms drive drain|undrain|remove PATH [--file FILE] [options]\n"
        "       icms drive replace PATH NEWPATH [--format] [--file FILE] [options]\n"
        "Show or change the drives of a target's file: what would change is shown, then the\n"
        "file is written. Send SIGHUP to its icms-target, which applies it while it runs.\n\n"
        "  list     the drives of the file\n"
        "  add      a new drive, with values as in its configuration: size=1TiB; one that is\n"
        "           empty or missing needs format_empty=true, or --format\n"
        "  drain    the drive is read and takes no new blocks; what it has goes to the others\n"
        "  undrain  it takes blocks again\n"
        "  remove   the drive goes: without a miss when it was drained and is empty, which its\n"
        "           target is asked, at the http.listen of the file\n"
        "  replace  another drive takes its place, with the same values; --format makes a file\n\n"
        "      --file FILE      of the target; default /etc/icms/target.yaml\n"
        "      --format         erase what is on the drive that comes\n"
        "      --yes            remove and replace a drive that holds blocks, or whose target\n"
        "                       cannot be asked: its blocks become misses\n"
        "      --cert FILE      remove, replace: the certificate of a client that the http port\n"
        "                       of the target takes\n"
        "      --key FILE       the private key of --cert\n"
        "      --dry-run        show what would change, and change nothing\n"
        "      --json           answer with JSON\n"
        "  -q, --quiet          no answer but the exit status\n"
        "  -h, --help           print this\n"
        "\nExit status: 0 done, 1 it was refused, 2 usage.\n",
};
