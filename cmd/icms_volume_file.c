/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_volume_file.c: icms volume list, create, set, reset and delete: the volumes of a
 * target's file, and with --pod of the pod map, too. A change is planned and shown before it is
 * written, and with --dry-run it is not written. icms-target reads the file again at SIGHUP.
 *
 * volumes_change: the target's file is planned -> the map is (map_plan) -> they fit together
 * (map_fits) -> both are written (files_write): a volume that comes is at the target first, and one
 * that goes leaves the map first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/pod.h"
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
    icms_err err = conf_live_read(path, "--file", &why, &live);
    const struct conf_target *conf;

    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    conf = conf_live_target(live);
    if (conf->pod[0] != '\0') {
        int status = cli_fail(cli, ICMS_INVALID,
                              "%s: its volumes are those of the pod map %s, which `pod` names: use "
                              "`icms pod volume list --file %s`",
                              path, conf->pod, conf->pod);

        conf_live_free(&live);
        return status;
    }
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

/* ---- answers -------------------------------------------------------------------------------- */

/* The differences of a change, as they are told. */
struct plan {
    const struct cli *cli;
    json_t *list;
    uint32_t generation;             /* that the volume had                  */
    struct conf_pod *before, *after; /* --pod: the map; else NULL            */
    struct conf_edit map;            /* its new text                         */
    bool is_map_same;                /* nothing is changed there             */
    char note[CLI_NOTE_BYTES];       /* what the operator has to know; ""    */
};

static void plan_visit(void *arg, const char *key, const char *was, const char *is)
{
    struct plan *plan = arg;

    cli_difference(plan->cli, plan->list, key, was, is);
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
    if (plan->before != NULL)
        (void)json_object_set_new(
            answer, "pod",
            json_pack("{s:s, s:s, s:I, s:I, s:b}", "file", plan->cli->pod, "pod",
                      plan->before->name, "former_epoch", (json_int_t)plan->before->epoch, "epoch",
                      (json_int_t)(plan->is_map_same ? plan->before : plan->after)->epoch,
                      "written", !plan->cli->dry_run && !plan->is_map_same));
    cli_json_print(answer);
    json_decref(answer);
}

static void changed_text(const struct plan *plan, const char *path, bool is_same)
{
    char differs[512];

    if (plan->before != NULL && !plan->is_map_same) {
        (void)conf_pod_differs(plan->before, plan->after, differs, sizeof(differs));
        (void)printf("pod %s: epoch %u -> %u: %s\n", plan->before->name, plan->before->epoch,
                     plan->after->epoch, differs);
        if (!plan->cli->dry_run)
            (void)printf("%s was written; copy it to the other servers of the pod\n",
                         plan->cli->pod);
    }
    if (plan->note[0] != '\0')
        (void)printf("%s\n", plan->note);
    if (is_same && (plan->before == NULL || plan->is_map_same))
        (void)printf("it is so already\n");
    else if (plan->cli->dry_run)
        (void)printf("nothing was written, for --dry-run was given\n");
    else if (!is_same)
        (void)printf("%s was written; send SIGHUP to its icms-target, as `systemctl reload "
                     "icms-target` does\n",
                     path);
}

static bool has_value(const struct conf_volume_change *asked, const char *key)
{
    for (uint32_t i = 0; i < asked->value_count; i++)
        if (strncmp(asked->values[i], key, strlen(key)) == 0)
            return asked->values[i][strlen(key)] != '\0';
    return false;
}

/* ---- the map, too --------------------------------------------------------------------------- */

/* Which of the two files has a key of a volume. */
static bool is_of_map(const char *value)
{
    static const char *const keys[] = {
        "generation=", "value_max=", "sealed=", "encrypted=", "run_blocks="};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strncmp(value, keys[i], strlen(keys[i])) == 0)
            return true;
    return false;
}

static bool is_of_target(const char *value)
{
    return strncmp(value, "run_blocks=", strlen("run_blocks=")) != 0;
}

/* Those of the values that one of the files has. */
static uint32_t values_of(const struct conf_volume_change *asked, bool (*is_of)(const char *value),
                          const char **out_values)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < asked->value_count; i++)
        if (is_of(asked->values[i]))
            out_values[count++] = asked->values[i];
    return count;
}

static uint32_t map_generation(const struct conf_pod *map, const char *name)
{
    for (uint32_t i = 0; i < map->volume_count; i++)
        if (strcmp(map->volumes[i].name, name) == 0)
            return map->volumes[i].generation;
    return 0;
}

/* Another generation in the map is another volume: whoever resets both has to have the same one. */
static icms_err map_fits(const struct plan *plan, const char *path,
                         const struct conf_volume_change *asked, struct err_why *why)
{
    uint32_t generation = map_generation(plan->before, asked->name);

    if (asked->what == CONF_VOLUME_CREATE || generation == plan->generation)
        return ICMS_OK;
    return err_set(why, ICMS_CONFIG,
                   "volume %.63s has generation %u in %.200s and %u in %.200s: bring the lower one "
                   "up first, with icms volume reset or icms pod volume reset; nothing was changed",
                   asked->name, plan->generation, path, generation, plan->cli->pod);
}

static icms_err map_plan(struct plan *plan, const struct conf_volume_change *asked,
                         struct err_why *why)
{
    static const enum conf_pod_what whats[] = {[CONF_VOLUME_CREATE] = CONF_POD_VOLUME_CREATE,
                                               [CONF_VOLUME_SET] = CONF_POD_VOLUME_SET,
                                               [CONF_VOLUME_RESET] = CONF_POD_VOLUME_RESET,
                                               [CONF_VOLUME_DELETE] = CONF_POD_VOLUME_DELETE};
    const char **values = calloc(asked->value_count + 1, sizeof(*values));
    struct conf_pod_change change = {
        .what = whats[asked->what], .name = asked->name, .yes = asked->yes, .values = values};
    icms_err err;

    plan->before = calloc(1, sizeof(*plan->before));
    plan->after = calloc(1, sizeof(*plan->after));
    if (values == NULL || plan->before == NULL || plan->after == NULL) {
        free(values);
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    }
    change.value_count = values_of(asked, is_of_map, values);
    if (asked->what == CONF_VOLUME_SET && change.value_count == 0) {
        plan->is_map_same = true;
        err = conf_pod_read(plan->cli->pod, why, plan->before);
    } else {
        err = conf_pod_change(plan->cli->pod, &change, why, plan->before, plan->after, &plan->map);
        if (err == ICMS_EXISTS && asked->what != CONF_VOLUME_CREATE) {
            plan->is_map_same = true;
            err = ICMS_OK;
        }
    }
    free(values);
    return err;
}

/* What comes is at the target first, what goes leaves the map first. */
static icms_err files_write(const struct plan *plan, const char *path, const struct conf_edit *edit,
                            bool is_same, bool is_map_first, struct err_why *why)
{
    bool has_map = plan->before != NULL && !plan->is_map_same;
    const char *paths[2] = {is_map_first ? plan->cli->pod : path,
                            is_map_first ? path : plan->cli->pod};
    const struct conf_edit *edits[2] = {is_map_first ? &plan->map : edit,
                                        is_map_first ? edit : &plan->map};
    bool wanted[2] = {is_map_first ? has_map : !is_same, is_map_first ? !is_same : has_map};
    struct err_why cause = {""};

    for (int i = 0; i < 2; i++) {
        icms_err err = wanted[i] ? conf_edit_write(paths[i], edits[i], &cause) : ICMS_OK;

        if (err != ICMS_OK && i == 1 && wanted[0])
            return err_set(why, err, "%.400s; %.200s was written, and this one was not: repeat it",
                           cause.text, paths[0]);
        if (err != ICMS_OK)
            return err_set(why, err, "%.400s; nothing was changed", cause.text);
    }
    return ICMS_OK;
}

/* ---- changes -------------------------------------------------------------------------------- */

/* Plans one file or both; *out_is_same: nothing is to be written into that of the target. */
static icms_err change_plan(struct plan *plan, const char *path,
                            const struct conf_volume_change *asked, struct conf_edit *out_edit,
                            bool *out_is_same, struct err_why *why)
{
    const char **values = calloc(asked->value_count + 1, sizeof(*values));
    struct conf_volume_change own = *asked;
    icms_err err = ICMS_OK;

    if (values == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    if (plan->cli->pod != NULL) {
        own.values = values;
        own.value_count = values_of(asked, is_of_target, values);
    }
    if (own.value_count > 0 || asked->what != CONF_VOLUME_SET)
        err = conf_volume_change(path, &own, plan_visit, plan, why, out_edit);
    *out_is_same = json_array_size(plan->list) == 0;
    plan->generation = out_edit->from;
    free(values);
    if (err == ICMS_OK && plan->cli->pod != NULL)
        err = map_plan(plan, asked, why);
    if (err == ICMS_OK && plan->cli->pod != NULL &&
        (asked->what != CONF_VOLUME_SET || own.value_count > 0))
        err = map_fits(plan, path, asked, why);
    return err;
}

/* Plans, writes, answers. */
static int volumes_change(struct plan *plan, const char *path,
                          const struct conf_volume_change *asked)
{
    const struct cli *cli = plan->cli;
    struct conf_edit edit = {0};
    struct err_why why = {""};
    bool is_same = true;
    icms_err err = change_plan(plan, path, asked, &edit, &is_same, &why);

    if (err == ICMS_OK && asked->what == CONF_VOLUME_DELETE)
        (void)cli_volume_deleted(asked->name, edit.from, plan->note);
    if (err == ICMS_OK && asked->what != CONF_VOLUME_DELETE && has_value(asked, "value_max="))
        (void)snprintf(plan->note, sizeof(plan->note),
                       "a target that runs refuses the file when value_max is larger than that of "
                       "all volumes it started with: its log says so; restart it then");
    if (err == ICMS_OK && asked->what == CONF_VOLUME_CREATE && !has_value(asked, "hosts="))
        (void)snprintf(plan->note, sizeof(plan->note),
                       "any host may use volume %.63s: hosts=[NQN, ...] says which may",
                       asked->name);
    if (err == ICMS_OK && !cli->dry_run)
        err = files_write(plan, path, &edit, is_same, asked->what == CONF_VOLUME_DELETE, &why);
    conf_edit_fini(&edit);
    conf_edit_fini(&plan->map);
    if (err == ICMS_OK && cli->json)
        changed_json(plan, path, asked, !cli->dry_run && !is_same);
    else if (err == ICMS_OK && !cli->quiet)
        changed_text(plan, path, is_same);
    conf_pod_free(&plan->before);
    conf_pod_free(&plan->after);
    return err == ICMS_OK ? CLI_DONE : cli_fail(cli, err, "%s", why.text);
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
    if (word == file_words && cli->pod != NULL)
        return cli_usage(cli, "--pod is for changes; `icms pod volume list` shows the map's");
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
