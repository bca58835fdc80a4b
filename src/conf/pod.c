/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/pod.c: the pod map: reading, rules, and what a new map is to the one before; what the
 * enclosures of an agent's own configuration have in common with it; and a target's volumes as the
 * map has them. Called by cmd and inprocess on control threads.
 */
#include "conf/pod.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conf/conf_int.h"

/* ---- reading -------------------------------------------------------------------------------- */

static icms_err text_fail(const char *path, icms_err err, const char *cause, struct err_why *why)
{
    return err_set(why, err, "cannot read the pod map %s: %s", path, cause);
}

/* Reads at most bytes_max, and says when there is more. */
static icms_err text_read(int fd, const char *path, struct err_why *why, char *text,
                          size_t *out_bytes)
{
    size_t bytes = 0;

    while (bytes <= CONF_POD_BYTES_MAX) {
        ssize_t n = read(fd, text + bytes, CONF_POD_BYTES_MAX + 1 - bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return text_fail(path, err_from_errno(errno), strerror(errno), why);
        if (n == 0)
            break;
        bytes += (size_t)n;
    }
    if (bytes > CONF_POD_BYTES_MAX)
        return text_fail(path, ICMS_CONFIG, "it is larger than 1 MiB", why);
    *out_bytes = bytes;
    return ICMS_OK;
}

icms_err conf_pod_text(const char *path, struct err_why *why, char **out_text, size_t *out_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat status;
    char *text = NULL;
    icms_err err = ICMS_OK;

    if (fd < 0)
        return text_fail(path, err_from_errno(errno), strerror(errno), why);
    if (fstat(fd, &status) != 0)
        err = text_fail(path, err_from_errno(errno), strerror(errno), why);
    else if (!S_ISREG(status.st_mode))
        err = text_fail(path, ICMS_CONFIG, "it is not a regular file", why);
    else if ((uint64_t)status.st_size > CONF_POD_BYTES_MAX)
        err = text_fail(path, ICMS_CONFIG, "it is larger than 1 MiB", why);
    else
        err = conf_file_check(fd, path, why);
    if (err == ICMS_OK && (text = malloc(CONF_POD_BYTES_MAX + 1)) == NULL)
        err = text_fail(path, ICMS_NO_MEMORY, "out of memory", why);
    if (err == ICMS_OK)
        err = text_read(fd, path, why, text, out_bytes);
    (void)close(fd);
    if (err != ICMS_OK) {
        free(text);
        return err;
    }
    *out_text = text;
    return ICMS_OK;
}

icms_err conf_pod_ended(const struct conf_source *source, const char *text, size_t bytes)
{
    static const char end[] = "...";
    size_t end_bytes = strlen(end), begin;
    uint32_t lines = 1;

    if (bytes > 0 && text[bytes - 1] == '\n')
        bytes--;
    if (bytes > 0 && text[bytes - 1] == '\r')
        bytes--;
    for (begin = bytes; begin > 0 && text[begin - 1] != '\n'; begin--) {
    }
    if (bytes - begin == end_bytes && memcmp(text + begin, end, end_bytes) == 0)
        return ICMS_OK;
    for (size_t i = 0; i < begin; i++)
        lines += text[i] == '\n';
    return conf_fail(source, lines,
                     "the last line is not `...`: the file may be written halfway; when all of it "
                     "is there, write this line");
}

void conf_pod_fini(struct conf_pod *pod)
{
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++) { /* also those of a map that was refused */
        free(pod->volumes[i].host_nqn);
        pod->volumes[i].host_nqn = NULL;
        pod->volumes[i].host_count = 0;
    }
}

void conf_pod_free(struct conf_pod **pod)
{
    if (*pod != NULL)
        conf_pod_fini(*pod);
    free(*pod);
    *pod = NULL;
}

icms_err conf_pod_copy(const struct conf_pod *pod, struct err_why *why, struct conf_pod *out_pod)
{
    memcpy(out_pod, pod, sizeof(*out_pod));
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        out_pod->volumes[i].host_nqn = NULL;
    for (uint32_t i = 0; i < pod->volume_count; i++) {
        const struct conf_pod_volume *from = &pod->volumes[i];
        size_t bytes = from->host_count * sizeof(from->host_nqn[0]);

        if (from->host_count == 0)
            continue;
        out_pod->volumes[i].host_nqn = malloc(bytes);
        if (out_pod->volumes[i].host_nqn == NULL) {
            conf_pod_fini(out_pod);
            return err_set(why, ICMS_NO_MEMORY, "no memory for the pod map");
        }
        memcpy(out_pod->volumes[i].host_nqn, from->host_nqn, bytes);
    }
    return ICMS_OK;
}

bool conf_pod_hosts_equal(const struct conf_pod_volume *a, const struct conf_pod_volume *b)
{
    if (a->host_count != b->host_count)
        return false;
    for (uint32_t i = 0; i < a->host_count; i++)
        if (strcmp(a->host_nqn[i], b->host_nqn[i]) != 0)
            return false;
    return true;
}

bool conf_pod_equal(const struct conf_pod *a, const struct conf_pod *b)
{
    struct conf_pod_volume left, right;

    if (memcmp(a, b, offsetof(struct conf_pod, volumes)) != 0)
        return false;
    for (uint32_t i = 0; i < a->volume_count; i++) {
        memcpy(&left, &a->volumes[i], sizeof(left));
        memcpy(&right, &b->volumes[i], sizeof(right));
        left.host_nqn = right.host_nqn = NULL;
        if (memcmp(&left, &right, sizeof(left)) != 0 ||
            !conf_pod_hosts_equal(&a->volumes[i], &b->volumes[i]))
            return false;
    }
    return true;
}

icms_err conf_pod_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                        struct conf_pod *out_pod)
{
    struct conf_source source = {.name = name, .why = why};
    struct conf_pod *pod = calloc(1, sizeof(*pod));
    struct conf_doc *doc = NULL;
    icms_err err;

    if (pod == NULL)
        return err_set(why, ICMS_NO_MEMORY, "%s: out of memory", name);
    conf_table_init(&conf_pod_table, pod);
    err = conf_doc_parse(&source, text, bytes, &doc);
    if (err == ICMS_OK)
        err = conf_table_bind(&conf_pod_table, &source, conf_doc_root(doc), pod);
    conf_doc_free(&doc);
    if (err == ICMS_OK)
        err = conf_pod_ended(&source, text, bytes);
    if (err == ICMS_OK)
        memcpy(out_pod, pod, sizeof(*pod));
    else
        conf_pod_fini(pod);
    free(pod);
    return err;
}

icms_err conf_pod_read(const char *path, struct err_why *why, struct conf_pod *out_pod)
{
    char *text = NULL;
    size_t bytes = 0;
    icms_err err = conf_pod_text(path, why, &text, &bytes);

    if (err == ICMS_OK)
        err = conf_pod_parse(text, bytes, path, why, out_pod);
    free(text);
    return err;
}

/* ---- rules ---------------------------------------------------------------------------------- */

/* Of one whose weight is not written: whole numbers, so that all agents have the same. It does not
 * depend on other enclosures: nothing moves because another one comes or goes. */
static double weight_default(uint64_t capacity_bytes)
{
    const uint64_t gib = (uint64_t)1 << 30;

    return capacity_bytes == 0 ? 1 : (double)((capacity_bytes + gib / 2) / gib);
}

icms_err conf_enclosure_rules(const struct conf_source *source, const struct conf_node *map,
                              void *object)
{
    struct conf_enclosure *enclosure = object;

    if (uuid_is_nil(&enclosure->uuid))
        conf_enclosure_uuid(enclosure->name, &enclosure->uuid);
    if (enclosure->nqn[0] == '\0')
        conf_uuid_nqn(&enclosure->uuid, enclosure->nqn);
    if (enclosure->weight <= 0)
        enclosure->weight = weight_default(enclosure->capacity_bytes);
    if (enclosure->former_weight > 0 && enclosure->state != CONF_ENCLOSURE_UP)
        return conf_fail(source, conf_node_line(map, "former_weight"),
                         "former_weight: the enclosure is %s, and only one that is up has one: "
                         "leave it out",
                         conf_enclosure_state_name((enum conf_enclosure_state)enclosure->state));
    for (uint32_t i = 0; i < enclosure->address_count; i++) {
        const char *wrong = conf_address_wrong(enclosure->address[i]);

        if (wrong != NULL)
            return conf_fail(source, conf_node_item_line(conf_node_get(map, "address"), i),
                             "address: %s %s", enclosure->address[i], wrong);
    }
    return ICMS_OK;
}

/* Where an address is written. */
static uint32_t address_line(const struct conf_node *map, uint32_t enclosure, uint32_t address)
{
    return conf_node_item_line(conf_node_get(conf_entry(map, "enclosures", enclosure), "address"),
                               address);
}

bool conf_enclosure_has(const struct conf_enclosure *enclosure, uint32_t count, const char *address)
{
    for (uint32_t i = 0; i < count; i++)
        if (conf_address_same(enclosure->address[i], address))
            return true;
    return false;
}

/* Each address is written once: in enclosure number i and those before it. */
static icms_err addresses_unique(const struct conf_source *source, const struct conf_node *map,
                                 const struct conf_enclosure *enclosures, uint32_t i)
{
    for (uint32_t k = 0; k < enclosures[i].address_count; k++) {
        const char *address = enclosures[i].address[k];

        if (conf_enclosure_has(&enclosures[i], k, address))
            return conf_fail(source, address_line(map, i, k), "address: %s is listed twice",
                             address);
        for (uint32_t j = 0; j < i; j++)
            if (conf_enclosure_has(&enclosures[j], enclosures[j].address_count, address))
                return conf_fail(source, address_line(map, i, k),
                                 "address: the enclosure '%s' has it already", enclosures[j].name);
    }
    return ICMS_OK;
}

icms_err conf_enclosures_unique(const struct conf_source *source, const struct conf_node *map,
                                const struct conf_enclosure *enclosures, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        icms_err err;

        for (uint32_t j = 0; j < i; j++) {
            const struct conf_enclosure *a = &enclosures[i], *b = &enclosures[j];
            const struct conf_node *node = conf_entry(map, "enclosures", i);

            if (strcmp(a->name, b->name) == 0)
                return conf_fail(source, conf_node_line(node, "name"),
                                 "name: the enclosure '%s' is listed twice; first in line %u",
                                 a->name, conf_entry(map, "enclosures", j)->line);
            if (uuid_equal(&a->uuid, &b->uuid))
                return conf_fail(source, conf_node_line(node, "uuid"),
                                 "uuid: the enclosure '%s' has it already", b->name);
        }
        err = addresses_unique(source, map, enclosures, i);
        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}

/* All but name and UUID. */
static void volume_copy(const struct conf_pod_volume *from, struct volume_spec *to)
{
    to->generation = from->generation;
    to->value_bytes_max = from->value_bytes_max;
    to->run_blocks = from->run_blocks;
    to->sealed = from->sealed;
    to->encrypted = from->encrypted;
}

static icms_err pod_tenants_rules(const struct conf_source *source, const struct conf_node *map,
                                  const struct conf_pod *pod)
{
    icms_err err = conf_tenants_unique(source, map, pod->tenants, pod->tenant_count);

    for (uint32_t i = 0; i < pod->volume_count && err == ICMS_OK; i++)
        err = conf_tenant_known(source, map, i, pod->volumes[i].tenant, pod->tenants,
                                pod->tenant_count);
    return err;
}

/* 1, the weight of one that says nothing, is next to nothing beside GiB, and a weight in another
 * unit may be, or takes all blocks. One that has its capacity, too, is meant so. */
static icms_err pod_weights_rules(const struct conf_source *source, const struct conf_node *map,
                                  const struct conf_pod *pod)
{
    const struct conf_node *lacks = NULL;
    bool is_derived = false;

    for (uint32_t i = 0; i < pod->enclosure_count; i++) {
        const struct conf_node *node = conf_entry(map, "enclosures", i);

        if (pod->enclosures[i].capacity_bytes > 0)
            is_derived = is_derived || conf_node_get(node, "weight") == NULL;
        else if (lacks == NULL)
            lacks = node;
    }
    if (!is_derived || lacks == NULL)
        return ICMS_OK;
    return conf_fail(
        source, lacks->line,
        "capacity: other enclosures have their weight from it, as GiB, and this one has none: "
        "write it, or weight of those, too");
}

icms_err conf_pod_rules(const struct conf_source *source, const struct conf_node *map, void *object)
{
    const struct conf_pod *pod = object;
    bool is_any_up = false;
    icms_err err = pod_tenants_rules(source, map, pod);

    if (err == ICMS_OK)
        err = pod_weights_rules(source, map, pod);
    if (err != ICMS_OK)
        return err;
    if (pod->shrink_epoch > pod->epoch)
        return conf_fail(source, conf_node_line(map, "shrink_epoch"),
                         "shrink_epoch: %u is above epoch %u: it confirms the epoch of this map; "
                         "write that one, or leave it out",
                         pod->shrink_epoch, pod->epoch);
    for (uint32_t i = 0; i < pod->enclosure_count; i++)
        is_any_up = is_any_up || pod->enclosures[i].state == CONF_ENCLOSURE_UP;
    if (!is_any_up)
        return conf_fail(source, conf_node_line(map, "enclosures"),
                         "enclosures: none of them is up: at least one takes blocks");
    for (uint32_t i = 0; i < pod->volume_count; i++)
        for (uint32_t j = 0; j < i; j++) {
            const struct conf_node *node = conf_entry(map, "volumes", i);

            if (strcmp(pod->volumes[i].name, pod->volumes[j].name) == 0)
                return conf_fail(source, conf_node_line(node, "name"),
                                 "name: the volume '%s' is listed twice; first in line %u",
                                 pod->volumes[i].name, conf_entry(map, "volumes", j)->line);
            if (uuid_equal(&pod->volumes[i].uuid, &pod->volumes[j].uuid))
                return conf_fail(source, conf_node_line(node, "uuid"),
                                 "uuid: the volume '%s' has it already", pod->volumes[j].name);
        }
    for (uint32_t i = 0; i < pod->enclosure_count; i++)
        for (uint32_t j = 0; j < i && pod->enclosures[i].http[0] != '\0'; j++)
            if (strcmp(pod->enclosures[i].http, pod->enclosures[j].http) == 0)
                return conf_fail(source, conf_node_line(conf_entry(map, "enclosures", i), "http"),
                                 "http: the enclosure '%s' has it already",
                                 pod->enclosures[j].name);
    return conf_enclosures_unique(source, map, pod->enclosures, pod->enclosure_count);
}

icms_err conf_pod_volume_rules(const struct conf_source *source, const struct conf_node *map,
                               void *object)
{
    struct conf_pod_volume *volume = object;
    struct volume_spec spec;
    icms_err err;

    conf_volume_init(&spec);
    memcpy(spec.name, volume->name, sizeof(spec.name));
    spec.uuid = volume->uuid;
    spec.quota_bytes = volume->quota_bytes;
    volume_copy(volume, &spec);
    err = conf_volume_rules(source, map, &spec);
    volume->uuid = spec.uuid;
    volume->require &= (uint8_t)~CONF_REQUIRE_WRITTEN;
    return err;
}

/* What an enclosure of another machine has to prove when nobody wrote it: what there is a key for,
 * TLS first. False: there is none, so whoever answers there would be taken for it. */
static bool proof_default(struct conf_enclosure *io_keys)
{
    if (io_keys->psk[0] != '\0')
        io_keys->require |= REQUIRE_TLS;
    else if (io_keys->secret[0] != '\0')
        io_keys->require |= REQUIRE_CHAP;
    return io_keys->require != 0;
}

/* Fills in what of the keys is not written; what is required has a key. what: "the enclosure e0".
 */
static icms_err keys_complete(const struct conf_source *source, uint32_t line, const char *what,
                              const struct conf_agent *agent, struct conf_enclosure *io_keys)
{
    io_keys->is_require_written = ((io_keys->require | agent->require) & CONF_REQUIRE_WRITTEN) != 0;
    io_keys->require =
        conf_require_of(io_keys->require, agent->require & (uint8_t)~CONF_REQUIRE_WRITTEN);
    if (io_keys->psk[0] == '\0')
        memcpy(io_keys->psk, agent->psk, sizeof(io_keys->psk));
    if (io_keys->secret[0] == '\0')
        memcpy(io_keys->secret, agent->secret, sizeof(io_keys->secret));
    if (io_keys->controller_secret[0] == '\0')
        memcpy(io_keys->controller_secret, agent->controller_secret,
               sizeof(io_keys->controller_secret));
    if (((io_keys->require & REQUIRE_CHAP) != 0 || io_keys->controller_secret[0] != '\0') &&
        io_keys->secret[0] == '\0')
        return conf_fail(source, line,
                         "secret: the agent has to authenticate at %s and has no secret; make one "
                         "with `icms key gen` and write its file here or for the agent",
                         what);
    if (io_keys->secret[0] != '\0' && strcmp(io_keys->secret, io_keys->controller_secret) == 0)
        return conf_fail(source, line,
                         "controller_secret: it is the agent's own secret; %s needs another one",
                         what);
    if ((io_keys->require & REQUIRE_TLS) != 0 && io_keys->psk[0] == '\0')
        return conf_fail(source, line,
                         "psk: %s has to be used with TLS and has no key; write psk here or for "
                         "the agent",
                         what);
    return ICMS_OK;
}

/* The entries of a list that has keys. */
static icms_err list_keys(const struct conf_source *source, const struct conf_node *map,
                          const char *list, const struct conf_agent *agent,
                          struct conf_enclosure *enclosures, uint32_t count)
{
    char what[LIMIT_NAME_BYTES + 24];

    for (uint32_t i = 0; i < count; i++) {
        icms_err err;

        (void)snprintf(what, sizeof(what), "the enclosure '%s'", enclosures[i].name);
        err = keys_complete(source, conf_entry(map, list, i)->line, what, agent, &enclosures[i]);
        for (uint32_t j = 0; j < i && err == ICMS_OK; j++)
            if (strcmp(enclosures[i].name, enclosures[j].name) == 0)
                err = conf_fail(source, conf_node_line(conf_entry(map, list, i), "name"),
                                "name: the enclosure '%s' is listed twice; first in line %u",
                                enclosures[i].name, conf_entry(map, list, j)->line);
        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}

icms_err conf_enclosure_keys_rules(const struct conf_source *source, const struct conf_node *map,
                                   struct conf_agent *agent)
{
    icms_err err;

    err = list_keys(source, map, "enclosures", agent, agent->enclosures, agent->enclosure_count);
    for (uint32_t i = 0; i < agent->enclosure_count && err == ICMS_OK; i++) {
        struct conf_enclosure *enclosure = &agent->enclosures[i];
        const char *remote = conf_enclosure_remote(enclosure);

        if (remote != NULL && !enclosure->is_require_written && !proof_default(enclosure))
            err = conf_fail(source, conf_node_line(conf_entry(map, "enclosures", i), "address"),
                            "address: other machines can answer at %s, and nothing has to be "
                            "proven there: write psk, or secret and controller_secret (icms key "
                            "gen makes them), or `require: none` to use whoever answers",
                            remote);
    }
    if (err == ICMS_OK)
        conf_warn_plain(agent);
    if (err == ICMS_OK && agent->pod[0] != '\0')
        err = list_keys(source, map, "enclosure_keys", agent, agent->enclosure_keys,
                        agent->enclosure_key_count);
    if (err == ICMS_OK && agent->pod[0] != '\0')
        err = keys_complete(source, conf_node_line(map, "require"), "the enclosures of the pod map",
                            agent, &agent->keys);
    agent->require &= (uint8_t)~CONF_REQUIRE_WRITTEN;
    return err;
}

icms_err conf_agent_pod_rules(const struct conf_source *source, const struct conf_node *map,
                              const struct conf_agent *agent)
{
    const struct conf_node *local = conf_node_get(map, "local");
    bool is_listed = agent->enclosure_count > 0, is_map = agent->pod[0] != '\0';

    if (!is_listed && !is_map && local == NULL)
        return conf_fail(source, map->line,
                         "no pod: list its enclosures, as in 'enclosures: [{name: enclosure0, "
                         "address: 127.0.0.1:4420}]', name a pod map, as in 'pod: "
                         "/etc/icms/pod.yaml', or give a drive under 'local'");
    if (is_listed && is_map)
        return conf_fail(source, conf_node_line(map, "pod"),
                         "pod: the map lists the enclosures: write either it or enclosures");
    if ((is_listed || is_map) && local != NULL && agent->loops > 1)
        return conf_fail(
            source, conf_node_line(map, "loops"),
            "loops: an agent with a drive of its own (local) has one: write 1, or leave "
            "local out");
    if (!is_listed && !is_map && agent->local_exclusive_percent > 0)
        return conf_fail(source, conf_node_line(local, "exclusive"),
                         "exclusive: there is no pod that has the other runs: leave it out");
    if (agent->enclosure_key_count > 0 && !is_map)
        return conf_fail(source, conf_node_line(map, "enclosure_keys"),
                         "enclosure_keys: they are for the enclosures of a pod map: write pod, or "
                         "the keys in enclosures");
    return ICMS_OK;
}

/* ---- a map and an agent --------------------------------------------------------------------- */

const struct conf_enclosure *conf_agent_keys_of(const struct conf_agent *agent, const char *name)
{
    bool is_map = agent->pod[0] != '\0';
    const struct conf_enclosure *list = is_map ? agent->enclosure_keys : agent->enclosures;
    uint32_t count = is_map ? agent->enclosure_key_count : agent->enclosure_count;

    for (uint32_t i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return &list[i];
    return &agent->keys;
}

icms_err conf_pod_join(const struct conf_agent *agent, struct conf_pod *pod, const char *name,
                       struct err_why *why)
{
    for (uint32_t i = 0; i < pod->enclosure_count; i++) {
        struct conf_enclosure *enclosure = &pod->enclosures[i];
        const struct conf_enclosure *keys = conf_agent_keys_of(agent, enclosure->name);
        const char *remote =
            enclosure->state == CONF_ENCLOSURE_OUT ? NULL : conf_enclosure_remote(enclosure);

        enclosure->require = keys->require;
        enclosure->is_require_written = keys->is_require_written;
        memcpy(enclosure->psk, keys->psk, sizeof(enclosure->psk));
        memcpy(enclosure->secret, keys->secret, sizeof(enclosure->secret));
        memcpy(enclosure->controller_secret, keys->controller_secret,
               sizeof(enclosure->controller_secret));
        if (remote != NULL && !enclosure->is_require_written && !proof_default(enclosure))
            return err_set(why, ICMS_CONFIG,
                           "%s: other machines can answer at %s, and the enclosure '%s' has to "
                           "prove nothing: write psk, or secret and controller_secret (icms key "
                           "gen makes them), in %s, or `require: none` there to use whoever "
                           "answers",
                           name, remote, enclosure->name, agent->file);
    }
    return ICMS_OK;
}

const char *const conf_shared_names[CONF_SHARED_COUNT] = {
    [CONF_SHARED_UUID] = "uuid",           [CONF_SHARED_GENERATION] = "generation",
    [CONF_SHARED_VALUE_MAX] = "value_max", [CONF_SHARED_SEALED] = "sealed",
    [CONF_SHARED_ENCRYPTED] = "encrypted", [CONF_SHARED_RUN_BLOCKS] = "run_blocks",
};

void conf_shared_note(const struct conf_source *source, const struct conf_node *map,
                      struct conf_agent *agent)
{
    (void)snprintf(agent->file, sizeof(agent->file), "%s", source->name);
    for (uint32_t i = 0; i < agent->volume_count; i++)
        for (uint32_t k = 0; k < CONF_SHARED_COUNT; k++) {
            const struct conf_node *node =
                conf_node_get(conf_entry(map, "volumes", i), conf_shared_names[k]);

            agent->shared_lines[i][k] = node == NULL ? 0 : node->key_line;
        }
}

/* Whether the agent's file may have written the key. */
static bool shared_is_same(const struct volume_spec *own, const struct conf_pod_volume *is,
                           enum conf_shared key)
{
    switch (key) {
    case CONF_SHARED_VALUE_MAX:
        return own->value_bytes_max == is->value_bytes_max;
    case CONF_SHARED_SEALED:
        return own->sealed == is->sealed;
    case CONF_SHARED_ENCRYPTED:
        return own->encrypted == is->encrypted;
    case CONF_SHARED_RUN_BLOCKS:
        return own->run_blocks == is->run_blocks;
    default:
        return false; /* which content a volume has is the map's alone: it changes */
    }
}

static icms_err volume_join(const struct conf_agent *agent, uint32_t i,
                            const struct conf_pod_volume *is, struct err_why *why,
                            struct volume_spec *out_volume)
{
    const struct conf_source source = {.name = agent->file, .why = why};
    const struct volume_spec *own = &agent->volumes[i];

    for (uint32_t k = 0; k < CONF_SHARED_COUNT; k++)
        if (agent->shared_lines[i][k] != 0 && !shared_is_same(own, is, (enum conf_shared)k))
            return conf_fail(&source, agent->shared_lines[i][k],
                             "%s: the pod map %s says what it is of volume %s, so that all agents "
                             "agree: write it there, if it is another one, and remove the line",
                             conf_shared_names[k], agent->pod, is->name);
    *out_volume = *own;
    out_volume->uuid = is->uuid;
    volume_copy(is, out_volume);
    return ICMS_OK;
}

const struct conf_pod_volume *conf_pod_volume_find(const struct conf_pod *pod, const char *name)
{
    for (uint32_t i = 0; i < pod->volume_count; i++)
        if (strcmp(pod->volumes[i].name, name) == 0)
            return &pod->volumes[i];
    return NULL;
}

icms_err conf_pod_volumes(const struct conf_agent *agent, const struct conf_pod *pod,
                          struct err_why *why, struct volume_spec *out_volumes)
{
    for (uint32_t i = 0; i < agent->volume_count; i++) {
        const struct conf_pod_volume *is = conf_pod_volume_find(pod, agent->volumes[i].name);
        icms_err err;

        out_volumes[i] = agent->volumes[i];
        if (pod->volume_count > 0 && is == NULL) {
            out_volumes[i].uuid = (struct uuid){{0}};
            out_volumes[i].generation = 0;
        }
        if (is == NULL)
            continue;
        err = volume_join(agent, i, is, why, &out_volumes[i]);
        if (err != ICMS_OK)
            return err;
    }
    return ICMS_OK;
}

const struct conf_enclosure *conf_pod_enclosure_find(const struct conf_pod *pod,
                                                     const struct uuid *uuid)
{
    for (uint32_t i = 0; i < pod->enclosure_count; i++)
        if (uuid_equal(&pod->enclosures[i].uuid, uuid))
            return &pod->enclosures[i];
    return NULL;
}

/* ---- a map and a target --------------------------------------------------------------------- */

/* Agents that have the map find this enclosure under another UUID or NQN, or not at all. */
static icms_err target_is_itself(const struct conf_pod *pod, const struct conf_source *source,
                                 const struct conf_node *map, struct conf_target *target)
{
    char uuid[UUID_TEXT_BYTES];

    for (uint32_t i = 0; i < pod->enclosure_count; i++) {
        const struct conf_enclosure *is = &pod->enclosures[i];
        const struct conf_node *node = conf_entry(map, "enclosures", i);
        bool is_uuid = uuid_equal(&is->uuid, &target->uuid);
        bool is_nqn = strcmp(is->nqn, target->nqn) == 0;

        if (!is_uuid && (is_nqn || strcmp(is->name, target->name) == 0))
            return conf_fail(source, conf_node_line(node, "uuid"),
                             "uuid: the map has enclosure '%s' with another one than its own file, "
                             "which says %s: write the same in both",
                             is->name, uuid_format(&target->uuid, uuid));
        if (is_uuid && !is_nqn)
            return conf_fail(source, conf_node_line(node, "nqn"),
                             "nqn: it is %.80s for enclosure '%s' here, and %.80s in its own file: "
                             "write the same in both",
                             is->nqn, is->name, target->nqn);
        if (is_uuid && strcmp(is->name, target->name) != 0)
            conf_warn(&target->warnings,
                      "pod: the map calls this enclosure '%s', and its own file '%s': operators "
                      "look for it by one name; write it in both",
                      is->name, target->name);
        if (is_uuid && is->state == CONF_ENCLOSURE_OUT)
            conf_warn(&target->warnings,
                      "pod: this enclosure, '%s', is out in the map: agents do not use it; `icms "
                      "pod undrain %s` brings it back",
                      is->name, is->name);
    }
    if (conf_pod_enclosure_find(pod, &target->uuid) == NULL)
        conf_warn(&target->warnings,
                  "pod: the map does not have this enclosure, '%s': agents do not use it; put it "
                  "there with `icms pod add %s`",
                  target->name, target->name);
    return ICMS_OK;
}

void conf_pod_volume_spec(const struct conf_pod_volume *from, struct volume_spec *to)
{
    conf_volume_init(to);
    memcpy(to->name, from->name, sizeof(to->name));
    to->uuid = from->uuid;
    volume_copy(from, to);
    memcpy(to->tenant, from->tenant, sizeof(to->tenant));
    to->quota_bytes = from->quota_bytes;
    to->require = from->require;
    to->host_count = from->host_count;
    to->host_nqn = from->host_nqn;
}

icms_err conf_pod_target(const struct conf_pod *pod, const struct conf_source *source,
                         const struct conf_node *map, struct conf_target *target)
{
    char size[32];

    if (pod->volume_count == 0)
        return conf_fail(source, map->line,
                         "volumes: the map lists none, and the volumes of an icms-target with "
                         "`pod` are those of the map: list them (icms pod volume create), or take "
                         "`pod` out of its file and list them there");
    memcpy(target->tenants, pod->tenants, sizeof(target->tenants));
    target->tenant_count = pod->tenant_count;
    for (uint32_t i = 0; i < pod->volume_count; i++) {
        const struct conf_pod_volume *is = &pod->volumes[i];
        struct volume_spec *volume = &target->volumes[i];

        conf_pod_volume_spec(is, volume);
        if (!conf_segment_holds(target->segment_bytes, volume))
            return conf_fail(source, conf_node_line(conf_entry(map, "volumes", i), "value_max"),
                             "value_max: a block of volume '%s' does not fit into a segment of "
                             "this target, %s (`segment` of its own file): make value_max smaller, "
                             "or segment larger and format its drives again",
                             is->name, conf_bytes_format(target->segment_bytes, size));
    }
    target->volume_count = pod->volume_count;
    return target_is_itself(pod, source, map, target);
}
