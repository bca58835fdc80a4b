/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_volume_file.c: icms volume list, create, set, reset and delete: the volumes of a
 * target's file. A change is planned and shown before it is written, and with --dry-run it is not
 * written. icms-target reads the file again at SIGHUP.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/conf.h"
#include "icms_cli.h"

#define TARGET_FILE "/etc/icms/target.yaml"

/* ---- list ----------------------------------------------------------------------------------- */

static json_t *volume_json(const struct volume_spec *volume)
{
    char uuid[UUID_TEXT_BYTES];
    json_t *hosts = json_array();

    for (uint32_t i = 0; i < volume->host_count; i++)
        (void)json_array_append_new(hosts, json_string(volume->host_nqn[i]));
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:b, s:b, s:s, s:o}", "name", volume->name, "uuid",
                     uuid_format(&volume->uuid, uuid), "generation", (json_int_t)volume->generation,
                     "quota_bytes", (json_int_t)volume->quota_bytes, "value_max_bytes",
                     (json_int_t)volume->value_bytes_max, "sealed", volume->sealed, "encrypted",
                     volume->encrypted, "tenant",
                     volume->tenant[0] != '\0' ? volume->tenant : volume->name, "hosts", hosts);
}

static int volumes_list(const struct cli *cli, const char *path)
{
    struct conf_live *live = NULL;
    struct err_why why = {""};
    icms_err err = conf_live_read(path, &why, &live);
    const struct conf_target *conf;

    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    conf = conf_live_target(live);
    if (cli->json) {
        json_t *list = json_array();

        for (uint32_t i = 0; i < conf->volume_count; i++)
            (void)json_array_append_new(list, volume_json(&conf->volumes[i]));
        cli_json("{s:s, s:s, s:o}", "file", path, "target", conf->name, "volumes", list);
    }
    for (uint32_t i = 0; i < conf->volume_count && !cli->json && !cli->quiet; i++) {
        const struct volume_spec *volume = &conf->volumes[i];

        (void)printf("%s: generation %u, ", volume->name, volume->generation);
        if (volume->quota_bytes > 0)
            (void)printf("quota %.1f GiB, ", (double)volume->quota_bytes / (1 << 30));
        else
            (void)printf("no quota, ");
        if (volume->host_count > 0)
            (void)printf("%u hosts%s\n", volume->host_count,
                         volume->encrypted ? ", encrypted" : "");
        else
            (void)printf("any host%s\n", volume->encrypted ? ", encrypted" : "");
    }
    conf_live_free(&live);
    return CLI_DONE;
}

/* ---- what a change leaves behind ------------------------------------------------------------ */

char *cli_volume_deleted(const char *name, uint32_t generation, char out[CLI_NOTE_BYTES])
{
    if (generation == UINT32_MAX)
        (void)snprintf(out, CLI_NOTE_BYTES,
                       "volume %.63s has the last generation, %u: create none of that name again, "
                       "or its old blocks are found again",
                       name, generation);
    else
        (void)snprintf(out, CLI_NOTE_BYTES,
                       "volume %.63s has generation %u: one of that name that is created later "
                       "needs a higher one (generation=%u), or its old blocks are found again",
                       name, generation, generation + 1);
    return out;
}

/* ---- changes -------------------------------------------------------------------------------- */

/* The differences of a change, as they are told. */
struct plan {
    const struct cli *cli;
    json_t *list;
    uint32_t generation;       /* that the volume had                  */
    char note[CLI_NOTE_BYTES]; /* what the operator has to know; ""    */
};

static void plan_visit(void *arg, const char *key, const char *was, const char *is)
{
    struct plan *plan = arg;

    (void)json_array_append_new(plan->list,
                                json_pack("{s:s, s:s, s:s}", "key", key, "was", was, "is", is));
    if (!plan->cli->json && !plan->cli->quiet)
        (void)printf("%s: %s -> %s\n", key, was, is);
}

static void changed_json(const struct plan *plan, const char *path,
                         const struct conf_volume_change *asked, bool is_written)
{
    json_t *answer = json_pack("{s:s, s:s, s:O, s:b}", "file", path, "volume", asked->name,
                               "changes", plan->list, "written", is_written);

    if (asked->what == CONF_VOLUME_DELETE)
        (void)json_object_set_new(answer, "generation", json_integer(plan->generation));
    if (plan->note[0] != '\0')
        (void)json_object_set_new(answer, "note", json_string(plan->note));
    cli_json_print(answer);
    json_decref(answer);
}

static void changed_text(const struct plan *plan, const char *path, bool is_same)
{
    if (plan->note[0] != '\0')
        (void)printf("%s\n", plan->note);
    if (is_same)
        (void)printf("it is so already\n");
    else if (plan->cli->dry_run)
        (void)printf("nothing was written, for --dry-run was given\n");
    else
        (void)printf("%s was written; send SIGHUP to its icms-target, as `systemctl reload "
                     "icms-target` does\n",
                     path);
}

static bool has_hosts(const struct conf_volume_change *asked)
{
    for (uint32_t i = 0; i < asked->value_count; i++)
        if (strncmp(asked->values[i], "hosts=", strlen("hosts=")) == 0)
            return asked->values[i][strlen("hosts=")] != '\0';
    return false;
}

/* Plans, writes, answers. */
static int volumes_change(struct plan *plan, const char *path,
                          const struct conf_volume_change *asked)
{
    const struct cli *cli = plan->cli;
    struct conf_edit edit = {0};
    struct err_why why = {""};
    icms_err err = conf_volume_change(path, asked, plan_visit, plan, &why, &edit);
    bool is_same = json_array_size(plan->list) == 0;

    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    plan->generation = edit.from;
    if (asked->what == CONF_VOLUME_DELETE)
        (void)cli_volume_deleted(asked->name, edit.from, plan->note);
    if (asked->what == CONF_VOLUME_CREATE && !has_hosts(asked))
        (void)snprintf(plan->note, sizeof(plan->note),
                       "any host may use volume %.63s: hosts=[NQN, ...] says which may",
                       asked->name);
    if (!cli->dry_run && !is_same)
        err = conf_edit_write(path, &edit, &why);
    conf_edit_fini(&edit);
    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s; nothing was changed", why.text);
    if (cli->json)
        changed_json(plan, path, asked, !cli->dry_run && !is_same);
    else if (!cli->quiet)
        changed_text(plan, path, is_same);
    return CLI_DONE;
}

static const struct file_word {
    const char *word;
    enum conf_volume_what what;
    bool has_values;
} file_words[] = {
    {"list", CONF_VOLUME_SET, false},      {"create", CONF_VOLUME_CREATE, true},
    {"set", CONF_VOLUME_SET, true},        {"reset", CONF_VOLUME_RESET, false},
    {"delete", CONF_VOLUME_DELETE, false},
};

bool cli_volume_is_of_file(const char *word)
{
    for (size_t i = 0; i < sizeof(file_words) / sizeof(file_words[0]); i++)
        if (strcmp(word, file_words[i].word) == 0)
            return true;
    return false;
}

int cli_volume_file(const struct cli *cli)
{
    const char *path = cli->file != NULL ? cli->file : TARGET_FILE;
    const struct file_word *word = file_words;
    struct conf_volume_change asked = {.yes = cli->yes};
    struct plan plan = {.cli = cli};
    int status;

    while (strcmp(cli->argv[0], word->word) != 0)
        word++;
    if (cli->volume_named || cli->keys != NULL || cli->config_count > 0)
        return cli_usage(cli, "--volume, --keys and --config are for erase; %s takes %s",
                         word->word,
                         word == file_words ? "--file" : "the name of a volume, and --file");
    if (word == file_words)
        return cli->argc == 1 ? volumes_list(cli, path) : cli_usage(cli, "list takes no name");
    if (cli->argc < 2)
        return cli_usage(cli, "%s takes the name of a volume", word->word);
    asked.what = word->what;
    asked.name = cli->argv[1];
    asked.values = (const char *const *)cli->argv + 2;
    asked.value_count = (uint32_t)cli->argc - 2;
    if (!word->has_values && asked.value_count > 0)
        return cli_usage(cli, "%s takes the name of one volume", word->word);
    if (word->what == CONF_VOLUME_SET && asked.value_count == 0)
        return cli_usage(cli, "set takes what is to be set: KEY=VALUE, as in quota=1TiB");
    plan.list = json_array();
    status = volumes_change(&plan, path, &asked);
    json_decref(plan.list);
    return status;
}
