/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/icms_pod.c: icms pod: what the pod is, in the file of its map and at the agent of this
 * machine, and changes of that file.
 *
 * A change is planned and shown before it is written, and with --dry-run it is not written. Copying
 * the file to the other servers of the pod is the operator's; each agent watches its copy.
 */
#include <curl/curl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "conf/pod_file.h"
#include "icms_cli.h"
#include "icms_status.h"
#include "inprocess/names.h"
#include "loop/loop.h"
#include "status_place.h"

#define POD_FILE "/etc/icms/pod.yaml"

/* How long status waits for daemons without --deadline; they are asked at the same time. */
#define POD_STATUS_MS 2000

/* How long reload waits for the agent without --deadline, and how often it asks. */
#define POD_RELOAD_MS 10000
#define POD_ASK_MS    100

/* How long an agent may take to see a file that changed: two looks, and some. */
#define POD_SEEN_MS (3 * CONF_POD_FILE_LOOK_MS)

struct pod {
    struct cli *cli;
    const char *path;
    struct conf_pod *before, *after; /* of the file; status: before alone */
};

/* ---- answers -------------------------------------------------------------------------------- */

static json_t *enclosure_json(const struct conf_pod *map, uint32_t i)
{
    const struct conf_enclosure *enclosure = &map->enclosures[i];
    char uuid[UUID_TEXT_BYTES];
    json_t *addresses = json_array();

    for (uint32_t k = 0; k < enclosure->address_count; k++)
        (void)json_array_append_new(addresses, json_string(enclosure->address[k]));
    return json_pack("{s:s, s:s, s:o, s:s, s:f, s:f, s:s, s:s, s:s}", "name", enclosure->name,
                     "address", enclosure->address[0], "addresses", addresses, "state",
                     conf_enclosure_state_name((enum conf_enclosure_state)enclosure->state),
                     "weight", enclosure->weight, "share", conf_pod_share(map, i), "uuid",
                     uuid_format(&enclosure->uuid, uuid), "nqn", enclosure->nqn, "http",
                     enclosure->http);
}

static json_t *enclosures_json(const struct conf_pod *map)
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

static json_t *volumes_json(const struct conf_pod *map)
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
                 pod->after->epoch, differs[0] != '\0' ? differs : "more than half may leave");
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
        return "what it does not have is a miss from now on";
    case CONF_POD_DRAIN:
        return "it is read and takes no new blocks; remove it when its blocks are not needed any "
               "more";
    case CONF_POD_UNDRAIN:
        return "it takes blocks again; until it is settled, what was written elsewhere "
               "meanwhile is asked of the enclosures that have it";
    case CONF_POD_REMOVE:
        return "blocks that it alone has are misses from now on";
    case CONF_POD_SHRINK:
        return "agents believe this epoch without asking the enclosures that it lacks";
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

static void plan_json(const struct pod *pod, const struct conf_pod_change *asked,
                      const char *differs, bool is_written)
{
    json_t *root =
        json_pack("{s:s, s:s, s:I, s:I, s:s, s:b, s:o, s:o}", "file", pod->path, "pod",
                  pod->after->name, "epoch", (json_int_t)pod->after->epoch, "former_epoch",
                  (json_int_t)pod->before->epoch, "changes", differs, "written", is_written,
                  "enclosures", enclosures_json(pod->after), "volumes", volumes_json(pod->after));
    char note[CLI_NOTE_BYTES];

    if (asked->what == CONF_POD_VOLUME_DELETE) {
        uint32_t generation = generation_before(pod, asked->name);

        (void)json_object_set_new(root, "generation", json_integer(generation));
        (void)json_object_set_new(root, "note",
                                  json_string(cli_volume_deleted(asked->name, generation, note)));
    }
    cli_json_print(root);
    json_decref(root);
}

static void plan_answer(const struct pod *pod, const struct conf_pod_change *asked, bool is_written)
{
    const struct cli *cli = pod->cli;
    char differs[512], note[CLI_NOTE_BYTES];

    (void)conf_pod_differs(pod->before, pod->after, differs, sizeof(differs));
    if (cli->json) {
        plan_json(pod, asked, differs, is_written);
        return;
    }
    if (cli->quiet)
        return;
    if (!is_written) {
        plan_text(pod, differs);
        (void)printf("  %s\n", plan_note(asked->what));
        if (asked->what == CONF_POD_VOLUME_DELETE)
            (void)printf("  %s\n", cli_volume_deleted(asked->name,
                                                      generation_before(pod, asked->name), note));
    }
    if (cli->dry_run)
        (void)printf("%s: nothing was changed (--dry-run)\n", pod->path);
    else if (is_written)
        (void)printf("%s: written; copy it to the other servers of the pod\n", pod->path);
}

/* ---- changes -------------------------------------------------------------------------------- */

/* Plans, shows, writes. */
static int pod_change(struct pod *pod, const struct conf_pod_change *asked)
{
    const struct cli *cli = pod->cli;
    struct conf_edit edit = {0};
    struct err_why why = {""};
    icms_err err = conf_pod_change(pod->path, asked, &why, pod->before, pod->after, &edit);

    if (err == ICMS_EXISTS && asked->what != CONF_POD_ADD &&
        asked->what != CONF_POD_VOLUME_CREATE) { /* it is so already */
        if (cli->json)
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

/* ---- the agent ------------------------------------------------------------------------------ */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text != NULL ? text : "";
}

static uint32_t agent_epoch_of(const json_t *root)
{
    return (uint32_t)json_integer_value(json_object_get(root, "epoch"));
}

/* What the agent says of an enclosure; NULL: nothing. */
static const json_t *agent_enclosure(const json_t *root, const char *name)
{
    const json_t *enclosure;
    size_t i;

    json_array_foreach(json_object_get(root, "enclosures"), i, enclosure)
    {
        if (strcmp(text_of(enclosure, "name"), name) == 0)
            return enclosure;
    }
    return NULL;
}

static void difference_add(json_t *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void difference_add(json_t *list, const char *format, ...)
{
    char text[512];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)json_array_append_new(list, json_string(text));
}

/* What a text of the file is at the agent, where that tells it. */
static void text_compare(json_t *list, const char *name, const char *what, const char *used,
                         const char *is)
{
    if (used[0] != '\0' && strcmp(used, is) != 0)
        difference_add(list, "%s: its %s is %s for the agent, %s in the file", name, what, used,
                       is);
}

/* What the agent says of the link to an address; NULL: it has none. */
static const json_t *agent_link(const json_t *known, const char *address)
{
    const json_t *link;
    size_t i;

    json_array_foreach(json_object_get(known, "links"), i, link)
    {
        if (strcmp(text_of(link, "address"), address) == 0)
            return link;
    }
    return NULL;
}

/* A DNS name says nothing of the address that is in use. */
static void addresses_compare(json_t *list, const struct conf_enclosure *is, const json_t *known)
{
    size_t used = json_array_size(json_object_get(known, "links"));
    char address[LIMIT_ADDRESS_BYTES];
    struct err_why why;
    struct loop_addr addr;

    if (used == 0)
        return;
    if (used != is->address_count)
        difference_add(list, "%s: it has %zu addresses for the agent, %u in the file", is->name,
                       used, is->address_count);
    for (uint32_t k = 0; k < is->address_count; k++)
        if (loop_addr_parse(is->address[k], &why, &addr) == ICMS_OK &&
            agent_link(known, loop_addr_format(&addr, address, sizeof(address))) == NULL)
            difference_add(list, "%s: its address %s is not one that the agent uses", is->name,
                           address);
}

/* The values of an enclosure. */
static void values_compare(json_t *list, const struct conf_enclosure *is, const json_t *known)
{
    const char *weight = text_of(known, "weight");
    double used = strtod(weight, NULL);
    char uuid[UUID_TEXT_BYTES];

    text_compare(list, is->name, "state", text_of(known, "pod_state"),
                 conf_enclosure_state_name((enum conf_enclosure_state)is->state));
    if (weight[0] != '\0' && (used < is->weight || used > is->weight))
        difference_add(list, "%s: its weight is %g for the agent, %g in the file", is->name, used,
                       is->weight);
    text_compare(list, is->name, "uuid", text_of(known, "uuid"), uuid_format(&is->uuid, uuid));
    text_compare(list, is->name, "nqn", text_of(known, "nqn"), is->nqn);
    addresses_compare(list, is, known);
}

static void epoch_compare(json_t *list, const struct conf_pod *map, uint32_t epoch)
{
    if (epoch == 0)
        difference_add(list, "the agent has no pod map: it lists its enclosures itself");
    else if (epoch != map->epoch)
        difference_add(list, "the agent uses epoch %u, the file has %u%s", epoch, map->epoch,
                       epoch > map->epoch ? ": the file is too old"
                                          : ": see the log of icms-agent when that stays so");
}

/* What the agent says of a volume; NULL: nothing. */
static const json_t *agent_volume(const json_t *root, const char *name)
{
    const json_t *volume;
    size_t i;

    json_array_foreach(json_object_get(root, "volumes"), i, volume)
    {
        if (strcmp(text_of(volume, "name"), name) == 0)
            return volume;
    }
    return NULL;
}

/* Volumes that the agent serves. What its own file does not list it does not know. */
static void volumes_compare(json_t *list, const struct conf_pod *map, const json_t *root)
{
    char uuid[UUID_TEXT_BYTES];

    for (uint32_t i = 0; i < map->volume_count; i++) {
        const struct conf_pod_volume *is = &map->volumes[i];
        const json_t *known = agent_volume(root, is->name);
        const char *used = text_of(known, "uuid");

        if (used[0] != '\0' && strcmp(used, uuid_format(&is->uuid, uuid)) != 0)
            difference_add(list, "volume %s: generation %lld at the agent, %u in the file",
                           is->name,
                           (long long)json_integer_value(json_object_get(known, "generation")),
                           is->generation);
    }
}

/* Where the agent does not have what the file says. */
static json_t *differences(const struct conf_pod *map, const json_t *root)
{
    json_t *list = json_array();
    const json_t *enclosure;
    size_t at;

    if (text_of(root, "pod")[0] != '\0' && strcmp(text_of(root, "pod"), map->name) != 0)
        difference_add(list, "the agent uses the map of pod %s, the file is that of pod %s",
                       text_of(root, "pod"), map->name);
    epoch_compare(list, map, agent_epoch_of(root));
    for (uint32_t i = 0; i < map->enclosure_count; i++) {
        const struct conf_enclosure *is = &map->enclosures[i];
        const json_t *known = agent_enclosure(root, is->name);

        if (known == NULL)
            difference_add(list, "%s: the agent does not know it", is->name);
        else
            values_compare(list, is, known);
    }
    volumes_compare(list, map, root);
    json_array_foreach(json_object_get(root, "enclosures"), at, enclosure)
    {
        uint32_t i = 0;

        while (i < map->enclosure_count &&
               strcmp(map->enclosures[i].name, text_of(enclosure, "name")) != 0)
            i++;
        if (i == map->enclosure_count)
            difference_add(list, "%s: the agent has it, the file does not",
                           text_of(enclosure, "name"));
    }
    return list;
}

/* ---- status --------------------------------------------------------------------------------- */

/* "-": the agent's own file does not list it. */
static void volumes_text(const struct conf_pod *map, const json_t *root)
{
    if (map->volume_count > 0)
        (void)printf("\n%-20s %11s %9s %10s %-9s %s\n", "VOLUME", "GENERATION", "AT AGENT",
                     "RUN BLOCKS", "ENCRYPTED", "UUID");
    for (uint32_t i = 0; i < map->volume_count; i++) {
        const struct conf_pod_volume *is = &map->volumes[i];
        const json_t *known = root == NULL ? NULL : agent_volume(root, is->name);
        char uuid[UUID_TEXT_BYTES], used[24] = "-";

        if (known != NULL && text_of(known, "uuid")[0] != '\0')
            (void)snprintf(used, sizeof(used), "%lld",
                           (long long)json_integer_value(json_object_get(known, "generation")));
        (void)printf("%-20s %11u %9s %10u %-9s %s\n", is->name, is->generation, used,
                     is->run_blocks, is->encrypted ? "yes" : "no", uuid_format(&is->uuid, uuid));
    }
}

/* The links of enclosures that have several, as the agent of this machine sees them. */
static void links_text(const struct conf_pod *map, const json_t *root)
{
    char error[STATUS_ERROR_BYTES];
    bool is_first = true;
    const json_t *link;
    size_t at;

    for (uint32_t i = 0; i < map->enclosure_count; i++) {
        const char *name = map->enclosures[i].name;
        const json_t *links = json_object_get(agent_enclosure(root, name), "links");

        if (json_array_size(links) < 2)
            continue;
        if (is_first)
            (void)printf("\n%-20s %-28s %-11s %9s %12s %s\n", "ENCLOSURE", "LINK", "HEALTH",
                         "IN FLIGHT", "COMMANDS", "LAST ERROR");
        is_first = false;
        json_array_foreach(links, at, link)
        {
            (void)printf("%-20s %-28s %-11s %9lld %12lld %s\n", name, text_of(link, "address"),
                         text_of(link, "state"),
                         (long long)json_integer_value(json_object_get(link, "in_flight")),
                         (long long)json_integer_value(json_object_get(link, "commands")),
                         status_error(link, error));
        }
    }
}

/* What status found. */
struct found {
    const json_t *root; /* of the agent; NULL: it does not answer */
    json_t *differ, *asked, *agents;
};

static void pod_text(const struct pod *pod, const struct found *found)
{
    const struct conf_pod *map = pod->before;
    const json_t *root = found->root;
    char error[STATUS_ERROR_BYTES], epoch[STATUS_EPOCH_TEXT];
    const json_t *line;
    size_t at;

    (void)printf("pod %s: epoch %u in %s", map->name, map->epoch, pod->path);
    if (root != NULL)
        (void)printf(", epoch %u at %s", agent_epoch_of(root), text_of(root, "name"));
    (void)printf("\n\n%-20s %-28s %-9s %8s %7s %-11s %10s  %s\n", "ENCLOSURE", "ADDRESS", "STATE",
                 "WEIGHT", "SHARE", "HEALTH", "EPOCH", "LAST ERROR");
    for (uint32_t i = 0; i < map->enclosure_count; i++) {
        const struct conf_enclosure *is = &map->enclosures[i];
        const json_t *known = agent_enclosure(root, is->name);
        const json_t *target = json_object_get(pod_asked_of(found->asked, is->name), "status");

        (void)printf("%-20s %-28s %-9s %8g %6.1f%% %-11s %10s  %s\n", is->name, is->address[0],
                     conf_enclosure_state_name((enum conf_enclosure_state)is->state), is->weight,
                     100 * conf_pod_share(map, i), status_text(known, "state"),
                     status_epoch(target, epoch), status_error(known, error));
        for (uint32_t k = 1; k < is->address_count; k++)
            (void)printf("%-20s %s\n", "", is->address[k]);
    }
    links_text(map, root);
    pod_asked_text(found->asked, found->agents, map);
    volumes_text(map, root);
    json_array_foreach(found->differ, at, line)(void)
        printf("%s%s\n", at == 0 ? "\n" : "", json_string_value(line));
}

/* What the target of an enclosure says, by its http or where the operator named it, and why its
 * http says nothing; neither: it was not asked. */
static void target_json(const json_t *asked, json_t *enclosure)
{
    const char *name = text_of(enclosure, "name");
    json_t *target = json_copy(json_object_get(pod_asked_of(asked, name), "status"));
    const json_t *entry;
    size_t i;

    (void)json_object_del(target, "hosts");
    if (target != NULL)
        (void)json_object_set_new(enclosure, "target", target);
    json_array_foreach(asked, i, entry)
    {
        if (strcmp(text_of(entry, "enclosure"), name) == 0 &&
            json_object_get(entry, "error") != NULL)
            (void)json_object_set(enclosure, "error", json_object_get(entry, "error"));
    }
}

static void pod_json(const struct pod *pod, const struct found *found)
{
    const json_t *root = found->root;
    json_t *agent = root == NULL ? json_null()
                                 : json_pack("{s:s, s:I}", "name", text_of(root, "name"), "epoch",
                                             (json_int_t)agent_epoch_of(root));
    size_t at, named = (size_t)pod->cli->argc - 1;
    json_t *list = enclosures_json(pod->before), *enclosure;

    json_array_foreach(list, at, enclosure)
    {
        const json_t *known = agent_enclosure(root, text_of(enclosure, "name"));

        (void)json_object_set_new(enclosure, "health", json_string(text_of(known, "state")));
        (void)json_object_set_new(enclosure, "last_error",
                                  json_string(text_of(known, "last_error")));
        if (json_object_get(known, "links") != NULL)
            (void)json_object_set(enclosure, "links", json_object_get(known, "links"));
        if (json_object_get(known, "last_error_age_seconds") != NULL)
            (void)json_object_set(enclosure, "last_error_age_seconds",
                                  json_object_get(known, "last_error_age_seconds"));
        target_json(found->asked, enclosure);
    }
    cli_json("{s:s, s:s, s:I, s:o, s:o, s:o, s:O, s:O, s:o}", "file", pod->path, "pod",
             pod->before->name, "epoch", (json_int_t)pod->before->epoch, "agent", agent,
             "enclosures", list, "volumes", volumes_json(pod->before), "differences", found->differ,
             "agents", found->agents, "asked",
             pod_asked_json(found->asked, json_array_size(found->asked) - named));
}

static bool is_all_up(const struct conf_pod *map, const json_t *root)
{
    for (uint32_t i = 0; i < map->enclosure_count; i++)
        if (strcmp(text_of(agent_enclosure(root, map->enclosures[i].name), "state"), "up") != 0)
            return false;
    return true;
}

/* Whether there is anybody to ask but the agent of this machine. */
static bool are_others_asked(const struct pod *pod)
{
    bool are_any = pod->cli->argc > 1;

    for (uint32_t i = 0; i < pod->before->enclosure_count; i++)
        are_any = are_any || pod->before->enclosures[i].http[0] != '\0';
    return are_any;
}

/* status: the exit status where the agent did not answer, which was said. */
static int pod_show(struct pod *pod, const struct status_proof *proof, const json_t *root,
                    int status)
{
    const struct cli *cli = pod->cli;
    const struct conf_pod *map = pod->before;
    uint32_t timeout_ms = cli->deadline_ms != 0 ? cli->deadline_ms : POD_STATUS_MS;
    struct found found = {.root = root};

    found.asked = pod_ask(map, cli->argv + 1, (size_t)cli->argc - 1, proof, timeout_ms);
    found.agents = pod_agents(found.asked, root, map);
    found.differ = root != NULL ? differences(map, root) : json_array();
    if (root == NULL)
        difference_add(found.differ, "the agent of this machine does not answer");
    if (text_of(root, "map_refused")[0] != '\0')
        difference_add(found.differ, "the agent does not use the map of its file: %s",
                       text_of(root, "map_refused"));
    if (cli->json)
        pod_json(pod, &found);
    else if (!cli->quiet)
        pod_text(pod, &found);
    if (root != NULL)
        status = json_array_size(found.differ) == 0 && is_all_up(map, root) &&
                         pod_asked_is_well(found.asked, found.agents, map)
                     ? CLI_DONE
                     : CLI_MISSED;
    json_decref(found.differ);
    json_decref(found.agents);
    json_decref(found.asked);
    return status;
}

static int pod_status(struct pod *pod)
{
    struct cli *cli = pod->cli;
    struct status_proof proof = {.token = NULL};
    struct err_why why = {""};
    icms_err err = conf_pod_read(pod->path, &why, pod->before);
    json_t *root = NULL;
    int status;

    if (err != ICMS_OK)
        return cli_fail(cli, err, "%s", why.text);
    if (status_proof_read(&proof, cli->token, cli->ca, cli->cert, cli->cert_key, &why) != ICMS_OK) {
        (void)cli_fail(cli, ICMS_CONFIG, "%s", why.text);
        return CLI_USAGE;
    }
    status = cli_open_tier(cli);
    if (status < 0)
        root = cli_ask(cli, false, NULL, &status);
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        status = cli_fail(cli, ICMS_NO_MEMORY, "libcurl does not start");
    else if (root != NULL || are_others_asked(pod))
        status = pod_show(pod, &proof, root, status);
    curl_global_cleanup();
    json_decref(root);
    cli_close(cli);
    status_proof_fini(&proof);
    return status;
}

/* ---- reload --------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* What the agent answered, that uses this epoch, is what the file says, or it fails. */
static int reload_answer(const struct pod *pod, const char *name, const json_t *differ)
{
    const struct cli *cli = pod->cli;
    const struct conf_pod *map = pod->after;
    size_t count = json_array_size(differ);

    if (count > 0)
        return cli_fail(cli, ICMS_CONFIG,
                        "agent %s uses epoch %u with other contents than %s (%s%s): raise the "
                        "epoch of the file",
                        name, map->epoch, pod->path, json_string_value(json_array_get(differ, 0)),
                        count > 1 ? ", and more" : "");
    if (cli->json)
        cli_json("{s:s, s:s, s:I}", "file", pod->path, "agent", name, "epoch",
                 (json_int_t)map->epoch);
    else if (!cli->quiet)
        (void)printf("agent %s: epoch %u is in use\n", name, map->epoch);
    return CLI_DONE;
}

/* It uses another epoch. */
static int reload_failed(const struct pod *pod, const json_t *root)
{
    uint32_t used = agent_epoch_of(root), epoch = pod->after->epoch;
    const char *refused = text_of(root, "map_refused");

    return cli_fail(pod->cli, ICMS_CONFIG, "agent %s uses epoch %u, not epoch %u of %s: %s",
                    text_of(root, "name"), used, epoch, pod->path,
                    used == 0            ? "it has no pod map"
                    : used > epoch       ? "the file is too old"
                    : refused[0] != '\0' ? refused
                                         : "its log says why");
}

/* Whether the last answer was given; *out_status: which. is_seen: the agent had the time to see the
 * file as it is now; is_late: nothing more is waited for. */
static bool reload_over(const struct pod *pod, const json_t *root, bool is_seen, bool is_late,
                        int *out_status)
{
    uint32_t used = agent_epoch_of(root), epoch = pod->after->epoch;
    bool is_refused = text_of(root, "map_refused")[0] != '\0';
    json_t *differ;

    if (used != epoch) {
        if (used < epoch && used != 0 && !is_late)
            return false;
        *out_status = reload_failed(pod, root);
        return true;
    }
    differ = differences(pod->after, root);
    if (json_array_size(differ) == 0 && (is_refused || !is_seen) && !is_late) {
        json_decref(differ); /* what it refuses may be the file of before, or is not seen yet */
        return false;
    }
    if (json_array_size(differ) == 0 && is_refused)
        *out_status = cli_fail(pod->cli, ICMS_CONFIG,
                               "agent %s uses epoch %u, and not the map of its file: %s",
                               text_of(root, "name"), used, text_of(root, "map_refused"));
    else
        *out_status = reload_answer(pod, text_of(root, "name"), differ);
    json_decref(differ);
    return true;
}

/* Asks the agent until it uses the epoch, or the time is over. An epoch that it takes while it is
 * asked it has from the file; one that it had before, the file may have with other contents. */
static int reload_wait(const struct pod *pod)
{
    const struct cli *cli = pod->cli;
    uint64_t began_ms = now_ms();
    uint64_t until_ms = began_ms + (cli->deadline_ms != 0 ? cli->deadline_ms : POD_RELOAD_MS);
    struct timespec pause = {.tv_nsec = POD_ASK_MS * 1000000L};
    bool is_seen = false, is_over;
    int status = CLI_MISSED;

    do {
        uint64_t asked_ms = now_ms();
        json_t *root = cli_ask(cli, false, NULL, &status);

        if (root == NULL)
            return status;
        is_seen = is_seen || agent_epoch_of(root) < pod->after->epoch ||
                  asked_ms >= began_ms + POD_SEEN_MS;
        is_over = reload_over(pod, root, is_seen, asked_ms >= until_ms, &status);
        json_decref(root);
        if (!is_over)
            (void)nanosleep(&pause, NULL);
    } while (!is_over);
    return status;
}

static int pod_reload(struct pod *pod)
{
    const struct conf_pod_change shrink = {.what = CONF_POD_SHRINK};
    struct cli *cli = pod->cli;
    struct err_why why = {""};
    icms_err err = conf_pod_read(pod->path, &why, pod->after);
    int status = err == ICMS_OK ? CLI_DONE : cli_fail(cli, err, "%s", why.text);

    if (err == ICMS_OK && cli->yes) {
        conf_pod_fini(pod->after);
        status = pod_change(pod, &shrink);
    }
    if (status != CLI_DONE || cli->dry_run)
        return status;
    status = cli_open_tier(cli);
    if (status >= 0)
        return status;
    status = reload_wait(pod);
    cli_close(cli);
    return status;
}

/* ---- volumes -------------------------------------------------------------------------------- */

/* The volumes of the file. */
static int pod_volume_list(struct pod *pod)
{
    const struct cli *cli = pod->cli;
    struct err_why why = {""};

    if (conf_pod_read(pod->path, &why, pod->before) != ICMS_OK)
        return cli_fail(cli, ICMS_CONFIG, "%s", why.text);
    if (cli->json)
        cli_json("{s:s, s:s, s:I, s:o}", "file", pod->path, "pod", pod->before->name, "epoch",
                 (json_int_t)pod->before->epoch, "volumes", volumes_json(pod->before));
    else if (!cli->quiet && pod->before->volume_count == 0)
        (void)printf("%s: it lists no volumes: each agent's file says what they are\n", pod->path);
    else if (!cli->quiet)
        volumes_text(pod->before, NULL);
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
        if (cli->argc > 2 || cli->yes || cli->dry_run)
            return cli_usage(cli, "volume list takes no name, --yes or --dry-run");
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
        return pod_change(pod, &(struct conf_pod_change){.what = volume_words[i].what,
                                                         .name = cli->argv[2],
                                                         .values = cli->argv + 3,
                                                         .value_count = (uint32_t)cli->argc - 3,
                                                         .yes = cli->yes});
    }
    return cli_usage(cli, "volume takes 'list', 'create', 'set', 'reset' or 'delete'");
}

/* ---- the command ---------------------------------------------------------------------------- */

static const struct pod_word {
    const char *word;
    int names;               /* of enclosures that follow; -1: any  */
    enum conf_pod_what what; /* with a name                         */
    int (*run)(struct pod *pod);
} pod_words[] = {
    {"status", -1, CONF_POD_ADD, pod_status}, {"reload", 0, CONF_POD_ADD, pod_reload},
    {"add", 1, CONF_POD_ADD, NULL},           {"settle", 1, CONF_POD_SETTLE, NULL},
    {"drain", 1, CONF_POD_DRAIN, NULL},       {"undrain", 1, CONF_POD_UNDRAIN, NULL},
    {"remove", 1, CONF_POD_REMOVE, NULL},     {"volume", -1, CONF_POD_ADD, pod_volume},
};

/* Options of another word are mistakes. */
static int words_check(const struct cli *cli, const struct pod_word *word)
{
    bool is_add = word->names == 1 && word->what == CONF_POD_ADD;

    if (word->names >= 0 && cli->argc != 1 + word->names)
        return cli_usage(cli, "%s takes %s", word->word,
                         word->names == 0 ? "no name" : "the name of one enclosure");
    if (is_add && cli->address == NULL)
        return cli_usage(cli, "add needs --address, as in --address 192.0.2.10:4420");
    if (!is_add && (cli->address != NULL || cli->weight != NULL || cli->uuid != NULL ||
                    cli->nqn != NULL || cli->http != NULL))
        return cli_usage(cli, "--address, --weight, --uuid, --nqn and --http are for add");
    if (word->run != pod_status && (cli->token != NULL || cli->ca != NULL || cli->cert != NULL))
        return cli_usage(cli, "--token, --ca, --cert and --key are for status");
    if (cli->yes && (word->run == pod_status || word->what == CONF_POD_SETTLE))
        return cli_usage(cli, "--yes is for add, drain, undrain, remove and reload");
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
        return cli_usage(&cli, "it takes 'status', 'add', 'settle', 'drain', 'undrain', 'remove', "
                               "'volume' or 'reload'");
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
        status = pod_change(&pod, &(struct conf_pod_change){.what = word->what,
                                                            .name = cli.argv[1],
                                                            .address = cli.address,
                                                            .uuid = cli.uuid,
                                                            .nqn = cli.nqn,
                                                            .weight = cli.weight,
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
        "       icms pod settle|drain|undrain|remove NAME [options]\n"
        "       icms pod volume list|create|set|reset|delete [NAME [KEY=VALUE ...]] [options]\n"
        "Show the pod map and what the agent of this machine makes of it, or change the map's\n"
        "file: what would change is shown, then the file is written, with its epoch raised by\n"
        "one. Copy it to the other servers of the pod; agents watch it.\n\n"
        "  status   enclosures with state, share of new blocks, health and links; what differs\n"
        "           between file and agent; of each enclosure whose http is in the map its\n"
        "           drives, its epoch and the agents that are connected to it, with theirs.\n"
        "           WHERE: one more to ask, the file of a target on this machine, or\n"
        "           http://ADDRESS:PORT or https://ADDRESS:PORT of a target or an agent\n"
        "  add      a new enclosure, joining\n"
        "  settle   a joining enclosure is up\n"
        "  drain    it is read and takes no new blocks\n"
        "  undrain  it takes blocks again, joining\n"
        "  remove   a drained enclosure leaves; it needs --yes\n"
        "  volume   what all daemons agree about of each volume: list it; create NAME with\n"
        "           value_max, sealed, encrypted, run_blocks, and for targets with `pod` quota,\n"
        "           hosts=[NQN,...], tenant, require; set all but sealed and encrypted; KEY= is\n"
        "           the default; reset: the next generation, all blocks are misses at once;\n"
        "           delete. Create one of a deleted volume's name with generation=N, higher than\n"
        "           it had, or its old blocks are found again\n"
        "  reload   wait until the agent uses the file's epoch\n\n"
        "      --file FILE      the pod map; default /etc/icms/pod.yaml\n"
        "      --address ADDR   add: address or DNS name, and port; several: with commas\n"
        "      --weight NUMBER  add: its share relative to the others; default 1\n"
        "      --uuid UUID      add: when the target's configuration has one\n"
        "      --nqn NQN        add: when the target's configuration has one\n"
        "      --http URL       add: where its target shows its status, as in\n"
        "                       https://192.0.2.10:9420\n"
        "      --dry-run        show what would change, and change nothing\n"
        "      --yes            add, undrain: although another one is joining; drain: although\n"
        "                       another one is draining; remove: although it may have blocks\n"
        "                       that no other one has;\n"
        "                       reload: more than half of the enclosures may leave, although\n"
        "                       they may answer; volume reset, delete: its blocks are misses;\n"
        "                       volume set: although quota or value_max becomes smaller, or\n"
        "                       more hosts may use it, or some may not any more\n"
        "  -o, --open WHERE     status, reload: unix:SOCKET or pod:FILE; default $ICMS_OPEN, else\n"
        "                       the agent at $ICMS_SOCKET or at the default socket\n"
        "  -d, --deadline TIME  reload: how long it waits; default 10s. status: how long it waits\n"
        "                       for targets and agents, all at the same time; default 2s\n"
        "      --token FILE     status: the token of http ports; sent over https, and over http\n"
        "                       to a loopback address alone\n"
        "      --ca FILE        status: authorities of their certificates; default those of this\n"
        "                       machine\n"
        "      --cert FILE      status: the certificate of a client that http ports take\n"
        "      --key FILE       status: the private key of --cert\n"
        "      --json           answer with JSON\n"
        "  -q, --quiet          no answer but the exit status\n"
        "  -h, --help           print this\n"
        "\nExit status: 0 done; 1 it failed, or status found differences, an enclosure that is "
        "not\n"
        "up, no answer, a drive out of service, or an agent or a target with another epoch, with\n"
        "the map of another pod, or that does not use the map of its file;\n"
        "2 usage, or the agent of this machine does not answer.\n",
};
