/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_pod.c: icms pod: what the pod is, in the file of its map and at the agent of this
 * machine, and changes of that file.
 *
 * A change is planned and shown before it is written, and with --dry-run it is not written. Copying
 * the file to the other servers of the pod is the operator's; each agent watches its copy.
 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "icms_pod.h"
#include "icms_status.h"
#include "inprocess/names.h"
#include "status_place.h"

#define POD_FILE "/etc/icms/pod.yaml"

/* ---- answers -------------------------------------------------------------------------------- */

static json_t *enclosure_json(const struct conf_pod *map, uint32_t i)
{
    const struct conf_enclosure *enclosure = &map->enclosures[i];
    char uuid[UUID_TEXT_BYTES];
    json_t *addresses = json_array(), *json;

    for (uint32_t k = 0; k < enclosure->address_count; k++)
        (void)json_array_append_new(addresses, json_string(enclosure->address[k]));
    json = json_pack("{s:s, s:s, s:o, s:s, s:f, s:f, s:s, s:s, s:s, s:I}", "name", enclosure->name,
                     "address", enclosure->address[0], "addresses", addresses, "state",
                     conf_enclosure_state_name((enum conf_enclosure_state)enclosure->state),
                     "weight", enclosure->weight, "share", conf_pod_share(map, i), "uuid",
                     uuid_format(&enclosure->uuid, uuid), "nqn", enclosure->nqn, "http",
                     enclosure->http, "capacity", (json_int_t)enclosure->capacity_bytes);
    if (enclosure->former_weight > 0)
        (void)json_object_set_new(json, "former_weight", json_real(enclosure->former_weight));
    return json;
}

json_t *pod_enclosures_json(const struct conf_pod *map)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < map->enclosure_count; i++)
        (void)json_array_append_new(list, enclosure_json(map, i));
    return list;
}

static json_t *volume_json(const struct conf_pod_volume *volume)
{
    char uuid[UUID_TEXT_BYTES];
    json_t *hosts = json_array();

    for (uint32_t i = 0; i < volume->host_count; i++)
        (void)json_array_append_new(hosts, json_string(volume->host_nqn[i]));
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:b, s:b, s:I, s:s, s:s, s:o}", "name",
                     volume->name, "uuid", uuid_format(&volume->uuid, uuid), "generation",
                     (json_int_t)volume->generation, "quota", (json_int_t)volume->quota_bytes,
                     "value_max", (json_int_t)volume->value_bytes_max, "sealed", volume->sealed,
                     "encrypted", volume->encrypted, "run_blocks", (json_int_t)volume->run_blocks,
                     "tenant", volume->tenant[0] != '\0' ? volume->tenant : volume->name, "require",
                     conf_require_name(volume->require), "hosts", hosts);
}

json_t *pod_volumes_json(const struct conf_pod *map)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < map->volume_count; i++)
        (void)json_array_append_new(list, volume_json(&map->volumes[i]));
    return list;
}

/* The share that an enclosure has in a map; 0 where it is not in it. */
static double share_of(const struct conf_pod *map, const char *name)
{
    for (uint32_t i = 0; i < map->enclosure_count; i++)
        if (strcmp(map->enclosures[i].name, name) == 0)
            return conf_pod_share(map, i);
    return 0;
}

/* The enclosures of one map whose share is another one in the other map. */
static void shares_text(const struct conf_pod *map, const struct conf_pod *was,
                        const struct conf_pod *is, bool only_leaving)
{
    for (uint32_t i = 0; i < map->enclosure_count; i++) {
        const char *name = map->enclosures[i].name;
        double before = share_of(was, name), after = share_of(is, name);

        if ((before < after || after < before) && (!only_leaving || after <= 0))
            (void)printf("  %s: %.1f %% of new blocks, was %.1f %%\n", name, 100 * after,
                         100 * before);
    }
}

static void plan_text(const struct pod *pod, const char *differs)
{
    (void)printf("pod %s: epoch %u -> %u: %s\n", pod->after->name, pod->before->epoch,
                 pod->after->epoch, differs[0] != '\0' ? differs : "what it lacks may leave");
    shares_text(pod->after, pod->before, pod->after, false);
    if (pod->after->enclosure_count < pod->before->enclosure_count)
        shares_text(pod->before, pod->before, pod->after, true);
}

/* What the operator has to know about the change. */
static const char *plan_note(enum conf_pod_what what)
{
    switch (what) {
    case CONF_POD_ADD:
        return "until it is settled, what it does not have is asked of the enclosures that had it "
               "before";
    case CONF_POD_SETTLE:
        return "what it does not have, or others by its new weight, is a miss from now on";
    case CONF_POD_WEIGHT:
        return "until it is settled, what an enclosure does not have is asked of the one that had "
               "it "
               "before";
    case CONF_POD_DRAIN:
        return "it is read and takes no new blocks; remove it when its blocks are not needed any "
               "more";
    case CONF_POD_UNDRAIN:
        return "it takes blocks again; until it is settled, what was written elsewhere "
               "meanwhile is asked of the enclosures that have it";
    case CONF_POD_OUT:
        return "agents do not use it; blocks that it alone has are misses until it is back "
               "(undrain); remove gives them up, and asks for --yes";
    case CONF_POD_REMOVE:
        return "blocks that it alone has are misses from now on";
    case CONF_POD_SHRINK:
        return "daemons take this epoch although it lacks enclosures or volumes, lowers quotas, or "
               "opens volumes to more hosts";
    case CONF_POD_VOLUME_CREATE:
        return "targets with `pod` begin it, and agents serve it that list it in their own files; "
               "give other targets the same volume";
    case CONF_POD_VOLUME_SET:
        return "targets with `pod` take quota, hosts, tenant and require while they run; agents "
               "that run serve the volume as before until they are restarted; give other targets "
               "the same values first";
    case CONF_POD_VOLUME_RESET:
        return "all of its blocks are misses from now on; targets with `pod` begin the next "
               "generation; give others the same one";
    case CONF_POD_VOLUME_DELETE:
        return "agents end its use; targets with `pod` evict its blocks first, others keep them "
               "until it leaves their files, too";
    }
    return "";
}

/* The generation of a volume that the map has before; it has it. */
static uint32_t generation_before(const struct pod *pod, const char *name)
{
    uint32_t i = 0;

    while (i + 1 < pod->before->volume_count && strcmp(pod->before->volumes[i].name, name) != 0)
        i++;
    return pod->before->volumes[i].generation;
}

/* What is said of a change besides; NULL: nothing. */
static const char *plan_more(const struct pod *pod, const struct conf_pod_change *asked,
                             char note[CLI_NOTE_BYTES])
{
    if (asked->what == CONF_POD_VOLUME_DELETE)
        return cli_volume_deleted(asked->name, generation_before(pod, asked->name), note);
    return asked->read;
}

static void plan_json(const struct pod *pod, const struct conf_pod_change *asked,
                      const char *differs, bool is_written)
{
    json_t *root = json_pack("{s:s, s:s, s:I, s:I, s:s, s:b, s:o, s:o}", "file", pod->path, "pod",
                             pod->after->name, "epoch", (json_int_t)pod->after->epoch,
                             "former_epoch", (json_int_t)pod->before->epoch, "changes", differs,
                             "written", is_written, "enclosures", pod_enclosures_json(pod->after),
                             "volumes", pod_volumes_json(pod->after));
    char note[CLI_NOTE_BYTES];

    if (asked->what == CONF_POD_VOLUME_DELETE)
        (void)json_object_set_new(root, "generation",
                                  json_integer(generation_before(pod, asked->name)));
    if (plan_more(pod, asked, note) != NULL)
        (void)json_object_set_new(root, "note", json_string(plan_more(pod, asked, note)));
    cli_json_print(root);
    json_decref(root);
}

static void plan_answer(const struct pod *pod, const struct conf_pod_change *asked, bool is_written)
{
    const struct cli *cli = pod->cli;
    char differs[512], note[CLI_NOTE_BYTES];

    if (cli->quiet)
        return;
    (void)conf_pod_differs(pod->before, pod->after, differs, sizeof(differs));
    if (cli->json) {
        plan_json(pod, asked, differs, is_written);
        return;
    }
    if (!is_written) {
        plan_text(pod, differs);
        (void)printf("  %s\n", plan_note(asked->what));
        if (plan_more(pod, asked, note) != NULL)
            (void)printf("  %s\n", plan_more(pod, asked, note));
    }
    if (cli->dry_run)
        (void)printf("%s: nothing was changed (--dry-run)\n", pod->path);
    else if (is_written)
        (void)printf("%s: written; copy it to the other servers of the pod\n", pod->path);
}

/* ---- changes -------------------------------------------------------------------------------- */

/* Whether the file is as new as what targets use: an epoch that is raised from an older one is
 * refused by all. Those that the map has no http of, or that do not answer, are not asked. */
static icms_err later_check(const struct pod *pod, const struct status_proof *proof,
                            struct err_why *why)
{
    const struct cli *cli = pod->cli;
    const char *name = "";
    uint32_t later;
    json_t *asked;

    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(why, ICMS_NO_MEMORY, "libcurl does not start");
    asked = pod_ask(pod->before, NULL, 0, proof,
                    cli->deadline_ms != 0 ? cli->deadline_ms : POD_STATUS_MS);
    later = pod_asked_later(asked, pod->before, &name);
    if (later != 0)
        (void)err_set(
            why, ICMS_CONFIG,
            "%.200s has epoch %u, and the target of %.63s uses epoch %u of pod %s: copy the "
            "newer map here first; if that target is wrong, take its `http` out of the map",
            pod->path, pod->before->epoch, name, later, pod->before->name);
    json_decref(asked);
    curl_global_cleanup();
    return later != 0 ? ICMS_CONFIG : ICMS_OK;
}

/* Plans, shows, writes. */
int pod_change(struct pod *pod, const struct conf_pod_change *asked)
{
    const struct cli *cli = pod->cli;
    struct status_proof proof = {.token = NULL};
    struct conf_edit edit = {0};
    struct err_why why = {""};
    icms_err err = conf_pod_change(pod->path, asked, &why, pod->before, pod->after, &edit);

    if (err == ICMS_EXISTS && asked->what != CONF_POD_ADD &&
        asked->what != CONF_POD_VOLUME_CREATE) { /* it is so already */
        if (cli->json && !cli->quiet)
            cli_json("{s:s, s:I, s:b, s:s}", "file", pod->path, "epoch",
                     (json_int_t)pod->before->epoch, "written", false, "why", why.text);
        else if (!cli->quiet)
            (void)printf("%s\n", why.text);
        return CLI_DONE;
    }
    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    if (asked->what == CONF_POD_ADD && !cli->yes && names_meet(pod->after, &why)) {
        conf_edit_fini(&edit);
        return cli_fail(cli, ICMS_CONFIG,
                        "%s; nothing was changed; add --yes if the names lead "
                        "elsewhere on the servers of the pod",
                        why.text);
    }
    err = status_proof_read(&proof, cli->token, cli->ca, cli->cert, cli->cert_key, &why);
    if (err != ICMS_OK) {
        conf_edit_fini(&edit);
        (void)cli_fail(cli, ICMS_CONFIG, "%s", why.text);
        return CLI_USAGE;
    }
    err = later_check(pod, &proof, &why);
    status_proof_fini(&proof);
    if (err != ICMS_OK) {
        conf_edit_fini(&edit);
        return cli_fail(cli, err, "%s; nothing was changed", why.text);
    }
    if (asked->what == CONF_POD_ADD)
        err = pod_add_look(pod, asked->name, &why);
    if (err != ICMS_OK) {
        conf_edit_fini(&edit);
        return cli_fail(cli, ICMS_CONFIG, "%s", why.text);
    }
    if (!cli->json || cli->dry_run)
        plan_answer(pod, asked, false);
    if (!cli->dry_run)
        err = conf_edit_write(pod->path, &edit, &why);
    conf_edit_fini(&edit);
    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s; nothing was changed", why.text);
    if (!cli->dry_run)
        plan_answer(pod, asked, true);
    return CLI_DONE;
}

/* ---- out and remove ------------------------------------------------------------------------- */

/* The enclosure that is to be used no more, if its target is worth asking: it drains, or leaves
 * whatever it says, and is not out, where nothing is read. NULL: none; conf_pod_change() says why.
 */
static const struct conf_enclosure *leave_asks(const struct pod *pod)
{
    struct err_why why;

    if (conf_pod_read(pod->path, &why, pod->before) != ICMS_OK)
        return NULL;
    for (uint32_t i = 0; i < pod->before->enclosure_count; i++) {
        const struct conf_enclosure *enclosure = &pod->before->enclosures[i];

        if (strcmp(enclosure->name, pod->cli->argv[1]) == 0 &&
            (enclosure->state == CONF_ENCLOSURE_DRAINING ||
             (pod->cli->yes && enclosure->state != CONF_ENCLOSURE_OUT)))
            return enclosure;
    }
    return NULL;
}

static int pod_leave(struct pod *pod, enum conf_pod_what what)
{
    const struct cli *cli = pod->cli;
    struct conf_pod_change asked = {.what = what, .name = cli->argv[1], .yes = cli->yes};
    const struct conf_enclosure *enclosure = leave_asks(pod);
    struct status_proof proof = {.token = NULL};
    struct err_why why = {""};
    struct pod_read read;

    if (status_proof_read(&proof, cli->token, cli->ca, cli->cert, cli->cert_key, &why) != ICMS_OK) {
        conf_pod_fini(pod->before);
        (void)cli_fail(cli, ICMS_CONFIG, "%s", why.text);
        return CLI_USAGE;
    }
    if (curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        if (enclosure != NULL) {
            pod_ask_read(enclosure, &proof,
                         cli->deadline_ms != 0 ? cli->deadline_ms : POD_STATUS_MS, &read);
            asked.read = read.text;
            asked.is_unread = read.is_unread;
        }
        curl_global_cleanup();
    }
    status_proof_fini(&proof);
    conf_pod_fini(pod->before);
    return pod_change(pod, &asked);
}

static int pod_out(struct pod *pod)
{
    return pod_leave(pod, CONF_POD_OUT);
}

static int pod_remove(struct pod *pod)
{
    return pod_leave(pod, CONF_POD_REMOVE);
}

/* What proves to targets that they may be asked. */
static bool pod_has_proof(const struct cli *cli)
{
    return cli->token != NULL || cli->ca != NULL || cli->cert != NULL;
}

/* ---- volumes -------------------------------------------------------------------------------- */

/* So many hosts of a volume are named; of more their number says enough. */
#define HOSTS_NAMED 4

/* A volume in lines of 80 columns, where its name and sizes are as long as usual. */
static void volume_text(const struct conf_pod_volume *is)
{
    const char *kind = is->encrypted ? "encrypted" : is->sealed ? "sealed" : "raw";
    char quota[32] = "none", value_max[32], hosts[16] = "any";

    if (is->quota_bytes > 0)
        (void)conf_bytes_format(is->quota_bytes, quota);
    if (is->host_count > 0)
        (void)snprintf(hosts, sizeof(hosts), "%u", is->host_count);
    (void)printf("%-20s %10u %8s %9s %4u %-9s %-8s %5s\n", is->name, is->generation, quota,
                 conf_bytes_format(is->value_bytes_max, value_max), is->run_blocks, kind,
                 conf_require_name(is->require), hosts);
    if (is->tenant[0] != '\0')
        (void)printf("  tenant %s\n", is->tenant);
    for (uint32_t i = 0; i < is->host_count && is->host_count <= HOSTS_NAMED; i++)
        (void)printf("  host %s\n", is->host_nqn[i]);
}

static void volumes_text(const struct conf_pod *map)
{
    (void)printf("%-20s %10s %8s %9s %4s %-9s %-8s %5s\n", "VOLUME", "GENERATION", "QUOTA",
                 "VALUE MAX", "RUN", "KIND", "REQUIRE", "HOSTS");
    for (uint32_t i = 0; i < map->volume_count; i++)
        volume_text(&map->volumes[i]);
}

/* The volumes of the file. */
static int pod_volume_list(struct pod *pod)
{
    const struct cli *cli = pod->cli;
    struct err_why why = {""};

    if (conf_pod_read(pod->path, &why, pod->before) != ICMS_OK)
        return cli_fail(cli, ICMS_CONFIG, "%s", why.text);
    if (cli->json)
        cli_json("{s:s, s:s, s:I, s:o}", "file", pod->path, "pod", pod->before->name, "epoch",
                 (json_int_t)pod->before->epoch, "volumes", pod_volumes_json(pod->before));
    else if (!cli->quiet && pod->before->volume_count == 0)
        (void)printf("%s: it lists no volumes: each agent's file says what they are\n", pod->path);
    else if (!cli->quiet)
        volumes_text(pod->before);
    return CLI_DONE;
}

static const struct {
    const char *word;
    enum conf_pod_what what;
    bool has_values;
} volume_words[] = {
    {"create", CONF_POD_VOLUME_CREATE, true},
    {"set", CONF_POD_VOLUME_SET, true},
    {"reset", CONF_POD_VOLUME_RESET, false},
    {"delete", CONF_POD_VOLUME_DELETE, false},
};

/* volume list|create|set|reset|delete [NAME [KEY=VALUE ...]] */
static int pod_volume(struct pod *pod)
{
    const struct cli *cli = pod->cli;

    if (cli->argc >= 2 && strcmp(cli->argv[1], "list") == 0) {
        if (cli->argc > 2 || cli->yes || cli->dry_run || pod_has_proof(cli))
            return cli_usage(cli, "volume list takes no name, --yes, --dry-run or --token");
        return pod_volume_list(pod);
    }
    for (size_t i = 0; i < sizeof(volume_words) / sizeof(volume_words[0]); i++) {
        if (cli->argc < 2 || strcmp(cli->argv[1], volume_words[i].word) != 0)
            continue;
        if (cli->argc < 3 || (cli->argc > 3 && !volume_words[i].has_values))
            return cli_usage(cli, "volume %s takes the name of one volume%s", volume_words[i].word,
                             volume_words[i].has_values ? ", and keys as in quota=1TiB" : "");
        if (cli->yes && volume_words[i].what == CONF_POD_VOLUME_CREATE)
            return cli_usage(cli, "--yes is for volume set, reset and delete");
        return pod_change(pod,
                          &(struct conf_pod_change){.what = volume_words[i].what,
                                                    .name = cli->argv[2],
                                                    .values = (const char *const *)cli->argv + 3,
                                                    .value_count = (uint32_t)cli->argc - 3,
                                                    .yes = cli->yes});
    }
    return cli_usage(cli, "volume takes 'list', 'create', 'set', 'reset' or 'delete'");
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct pod_word {
    const char *word;
    int names;               /* how many words follow; -1: any      */
    enum conf_pod_what what; /* with a name                         */
    int (*run)(struct pod *pod);
} pod_words[] = {
    {"status", -1, CONF_POD_ADD, pod_status},
    {"reload", 0, CONF_POD_ADD, pod_reload},
    {"add", 1, CONF_POD_ADD, NULL},
    {"settle", 1, CONF_POD_SETTLE, NULL},
    {"weight", 2, CONF_POD_WEIGHT, NULL},
    {"drain", 1, CONF_POD_DRAIN, NULL},
    {"undrain", 1, CONF_POD_UNDRAIN, NULL},
    {"out", 1, CONF_POD_OUT, pod_out},
    {"remove", 1, CONF_POD_REMOVE, pod_remove},
    {"volume", -1, CONF_POD_ADD, pod_volume},
};

/* Options of another word are mistakes. */
static int words_check(const struct cli *cli, const struct pod_word *word)
{
    bool is_add = word->names == 1 && word->what == CONF_POD_ADD;

    if (word->names >= 0 && cli->argc != 1 + word->names)
        return cli_usage(cli, "%s takes %s", word->word,
                         word->names == 0   ? "no name"
                         : word->names == 1 ? "the name of one enclosure"
                                            : "the name of one enclosure, and a number");
    if (is_add && cli->address == NULL)
        return cli_usage(cli, "add needs --address, as in --address 192.0.2.10:4420");
    if (!is_add && (cli->address != NULL || cli->capacity != NULL || cli->weight != NULL ||
                    cli->uuid != NULL || cli->nqn != NULL || cli->http != NULL))
        return cli_usage(cli,
                         "--address, --capacity, --weight, --uuid, --nqn and --http are for add");
    if (word->run == pod_reload && !cli->yes && pod_has_proof(cli))
        return cli_usage(cli, "--token, --ca, --cert and --key are for status and changes");
    if (cli->yes && word->run == pod_status)
        return cli_usage(cli, "--yes is for changes and reload");
    if (cli->dry_run && word->run == pod_status)
        return cli_usage(cli, "--dry-run is for changes");
    return -1;
}

static int pod_run(int argc, char **argv)
{
    struct cli cli;
    struct pod pod = {.cli = &cli};
    const struct pod_word *word = NULL;
    int status = cli_parse(&cli_pod, argc, argv, &cli);

    if (status >= 0)
        return status;
    for (size_t i = 0; i < sizeof(pod_words) / sizeof(pod_words[0]); i++)
        if (cli.argc > 0 && strcmp(cli.argv[0], pod_words[i].word) == 0)
            word = &pod_words[i];
    if (word == NULL)
        return cli_usage(&cli,
                         "it takes 'status', 'add', 'settle', 'weight', 'drain', 'undrain', 'out', "
                         "'remove', 'volume' or 'reload'");
    status = words_check(&cli, word);
    if (status >= 0)
        return status;
    pod.path = cli.file != NULL ? cli.file : POD_FILE;
    pod.before = calloc(1, sizeof(*pod.before));
    pod.after = calloc(1, sizeof(*pod.after));
    if (pod.before == NULL || pod.after == NULL)
        status = cli_fail(&cli, ICMS_NO_MEMORY, "out of memory");
    else if (word->run != NULL)
        status = word->run(&pod);
    else
        status = pod_change(
            &pod, &(struct conf_pod_change){.what = word->what,
                                            .name = cli.argv[1],
                                            .address = cli.address,
                                            .uuid = cli.uuid,
                                            .nqn = cli.nqn,
                                            .capacity = cli.capacity,
                                            .weight = word->names == 2 ? cli.argv[2] : cli.weight,
                                            .http = cli.http,
                                            .yes = cli.yes});
    conf_pod_free(&pod.before);
    conf_pod_free(&pod.after);
    return status;
}

const struct cli_command cli_pod = {
    .name = "pod",
    .summary = "show and change the enclosures and volumes of the pod",
    .takes = CLI_TAKES_POD | CLI_TAKES_PROOF,
    .run = pod_run,
    .help =
        "usage: icms pod status [WHERE ...] [options]\n"
        "       icms pod reload [options]\n"
        "       icms pod add NAME --address HOST:PORT[,HOST:PORT...] [options]\n"
        "       icms pod weight NAME NUMBER [options]\n"
        "       icms pod settle|drain|undrain|out|remove NAME [options]\n"
        "       icms pod volume list|create|set|reset|delete [NAME [KEY=VALUE ...]] [options]\n"
        "Show the pod map and what the agent of this machine makes of it, or change the map's\n"
        "file: what would change is shown, then the file is written, with its epoch raised by\n"
        "one. Copy it to the other servers of the pod; agents watch it.\n"
        "\n"
        "  status   enclosures with state, share of new blocks, health and links; what differs\n"
        "           between file and agent; of each enclosure whose http is in the map its\n"
        "           drives, when it was last read, its epoch, its agents. WHERE: one more to\n"
        "           ask, the file of a target on this machine, or http[s]://ADDRESS:PORT\n"
        "  add      a new enclosure, joining; --yes if no target answers\n"
        "  weight   another share; what moves is found where it was until it is settled\n"
        "  settle   a joining enclosure is up, a weight that changes has changed: what was not\n"
        "           read meanwhile is missed from then on; needs --yes\n"
        "  drain    it is read and takes no new blocks\n"
        "  undrain  it takes blocks again, joining; also one that is out\n"
        "  out      a drained enclosure stays listed and is not used; --yes as for remove\n"
        "  remove   a drained enclosure leaves; --yes if its target says that it was read\n"
        "           within 10 minutes, or cannot be asked, or if it is out\n"
        "  volume   what all daemons agree about of each volume: list it; create NAME with\n"
        "           value_max, sealed, encrypted, run_blocks, and for targets with `pod` quota,\n"
        "           hosts=[NQN,...], tenant, require; set all but sealed and encrypted; KEY= is\n"
        "           the default; reset: the next generation, all blocks are misses; delete.\n"
        "           Create one of a deleted volume's name with generation=N, higher than it\n"
        "           had, or its old blocks are found again\n"
        "  reload   wait until the agent uses the file's epoch\n"
        "\n"
        "      --file FILE      the pod map; default /etc/icms/pod.yaml\n"
        "      --address ADDR   add: address or DNS name, and port; several: with commas\n"
        "      --capacity SIZE  add: what its drives hold, as in 14TiB\n"
        "      --weight NUMBER  add: its share relative to the others; default 1, or the GiB of\n"
        "                       --capacity\n"
        "      --uuid UUID      add: when the target's configuration has one\n"
        "      --nqn NQN        add: when the target's configuration has one\n"
        "      --http URL       add: where its target shows its status\n"
        "      --dry-run        show what would change, and change nothing\n"
        "      --yes            add, weight, drain, undrain: although another one joins or\n"
        "                       drains, or a weight is changing; settle; remove, out: although it\n"
        "                       is not drained, may still be read, or (remove) is out; reload:\n"
        "                       also what was not drained, and volumes, may leave, quotas become\n"
        "                       lower and volumes open to more hosts; volume reset, delete, set:\n"
        "                       although blocks are lost, or more or fewer hosts may use it\n"
        "  -o, --open WHERE     status, reload: unix:SOCKET or pod:FILE; default $ICMS_OPEN, else\n"
        "                       the agent at $ICMS_SOCKET or at the default socket\n"
        "  -d, --deadline TIME  reload: how long it waits; default 10s. status and changes: for\n"
        "                       the targets and agents; default 2s\n"
        "      --token FILE     status, changes: the token of http ports; sent over https or to "
        "loopback\n"
        "      --ca FILE        authorities of their certificates; default those of this machine\n"
        "      --cert FILE      the certificate of a client that http ports take\n"
        "      --key FILE       the private key of --cert\n"
        "      --json           answer with JSON\n"
        "  -q, --quiet          no answer but the exit status\n"
        "  -h, --help           print this\n"
        "\n"
        "Exit status: 0 done; 1 it failed, or status found what is not as the map has it\n"
        "(icms-pod(1)); 2 usage, or the agent of this machine does not answer.\n",
};
