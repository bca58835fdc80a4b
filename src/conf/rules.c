/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What concerns several keys: computed defaults, uniqueness, one size against another, and what is
 * worth a warning. Runs when a map is bound. Called by bind.c on the caller's thread.
 */
#include "conf/conf_int.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/hash.h"

/* Bytes that the flash engine puts around a value, beside the alignment of its records. A little
 * more than it needs is harmless here. */
#define RECORD_EXTRA_BYTES 128

/* ---- names made of names -------------------------------------------------------------------- */

/* A UUID of version 8 (RFC 9562: made as the application likes) from two keyed hashes of a text.
 * The seeds are part of the format: changing one renames everything. */
static void uuid_of(const char *space, const char *name, struct uuid *out_uuid)
{
    char text[LIMIT_NAME_BYTES + 256];
    size_t bytes = (size_t)snprintf(text, sizeof(text), "icms:%s:%s", space, name);
    uint64_t high = hash64_seed(text, bytes, 0x69636d732d756964u);
    uint64_t low = hash64_seed(text, bytes, 0x2d6e616d65737061u);

    for (int i = 0; i < 8; i++) {
        out_uuid->bytes[i] = (uint8_t)(high >> (56 - 8 * i));
        out_uuid->bytes[8 + i] = (uint8_t)(low >> (56 - 8 * i));
    }
    out_uuid->bytes[6] = (uint8_t)(0x80 | (out_uuid->bytes[6] & 0x0f));
    out_uuid->bytes[8] = (uint8_t)(0x80 | (out_uuid->bytes[8] & 0x3f));
}

void conf_volume_uuid(const char *name, struct uuid *out_uuid)
{
    uuid_of("volume", name, out_uuid);
}

void conf_enclosure_uuid(const char *name, struct uuid *out_uuid)
{
    uuid_of("enclosure", name, out_uuid);
}

void conf_uuid_nqn(const struct uuid *uuid, char out[LIMIT_NQN_BYTES])
{
    char text[UUID_TEXT_BYTES];

    (void)snprintf(out, LIMIT_NQN_BYTES, "nqn.2014-08.org.nvmexpress:uuid:%s",
                   uuid_format(uuid, text));
}

/* ---- this machine and user ------------------------------------------------------------------ */

/* Of the agent that root or the service manager runs. */
#define MACHINE_SOCKET "/run/icms/agent.sock"

void conf_socket_find(char out[104])
{
    conf_socket_default(out);
    if (access(out, F_OK) != 0 && access(MACHINE_SOCKET, F_OK) == 0)
        (void)snprintf(out, 104, "%s", MACHINE_SOCKET);
}

void conf_socket_default(char out[104])
{
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
    int n = -1;

    if (geteuid() == 0)
        n = snprintf(out, 104, "%s", MACHINE_SOCKET);
    else if (runtime != NULL && runtime[0] == '/')
        n = snprintf(out, 104, "%s/icms/agent.sock", runtime);
    if (n < 0 || n >= 104)
        (void)snprintf(out, 104, "/tmp/icms-%u/agent.sock", (unsigned)geteuid());
}

/* The host's name with what a name may not hold made '-'; "icms" when there is none. */
static void host_name(char out[LIMIT_NAME_BYTES])
{
    if (gethostname(out, LIMIT_NAME_BYTES) != 0 || out[0] == '\0')
        (void)snprintf(out, LIMIT_NAME_BYTES, "icms");
    out[LIMIT_NAME_BYTES - 1] = '\0';
    for (char *at = out; *at != '\0'; at++)
        if (strchr("._-0123456789abcdefghijklmnopqrstuvwxyz"
                   "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
                   *at) == NULL)
            *at = '-';
}

/* From the machine id (the host's name where there is none) and the agent's name: stable across
 * restarts, and different for two agents of one machine. */
static void host_id_of(const char *name, struct uuid *out_uuid)
{
    char text[256] = "";
    char id[64] = "";
    FILE *file = fopen("/etc/machine-id", "re");

    if (file != NULL) {
        if (fgets(id, sizeof(id), file) == NULL)
            id[0] = '\0';
        (void)fclose(file);
    }
    id[strcspn(id, "\n")] = '\0';
    if (id[0] == '\0')
        host_name(id);
    (void)snprintf(text, sizeof(text), "%s:%s", id, name);
    uuid_of("host", text, out_uuid);
}

/* Fills in what of the agent is not written. */
static void agent_complete(struct conf_agent *agent)
{
    if (agent->name[0] == '\0')
        host_name(agent->name);
    if (uuid_is_nil(&agent->host_id))
        host_id_of(agent->name, &agent->host_id);
    if (agent->host_nqn[0] == '\0')
        conf_uuid_nqn(&agent->host_id, agent->host_nqn);
    if (agent->socket[0] == '\0')
        conf_socket_default(agent->socket);
}

void conf_target_init(struct conf_target *conf)
{
    memset(conf, 0, sizeof(*conf));
    conf_table_init(&conf_target_table, conf);
    memcpy(conf->advertise, conf->listen, sizeof(conf->advertise));
    conf->advertise_count = conf->listen_count;
}

void conf_agent_init(struct conf_agent *conf)
{
    memset(conf, 0, sizeof(*conf));
    conf_table_init(&conf_agent_table, conf);
    agent_complete(conf);
}

/* ---- entries -------------------------------------------------------------------------------- */

/* Another generation is another volume: keys, trailers, NGUIDs and what drives hold follow the
 * UUID. Generation 0 leaves it as it is. */
static void volume_generation_apply(struct volume_spec *volume)
{
    char first[UUID_TEXT_BYTES], text[UUID_TEXT_BYTES + 16];

    if (volume->generation == 0)
        return;
    (void)snprintf(text, sizeof(text), "%s:%u", uuid_format(&volume->uuid, first),
                   volume->generation);
    uuid_of("generation", text, &volume->uuid);
}

/* Encrypted or not is another volume, too: else values that were written before would be there for
 * exists and put_if_absent, and nobody could read them. */
static void volume_encrypted_apply(struct volume_spec *volume)
{
    char text[UUID_TEXT_BYTES];

    if (volume->encrypted)
        uuid_of("encrypted", uuid_format(&volume->uuid, text), &volume->uuid);
}

static icms_err volume_encrypted_rules(const struct conf_source *source,
                                       const struct conf_node *map,
                                       const struct volume_spec *volume)
{
    if (!volume->encrypted)
        return ICMS_OK;
    if (!volume->sealed)
        return conf_fail(source, conf_node_line(map, "encrypted"),
                         "encrypted: a raw volume cannot be: write 'sealed: true'");
    if (volume_carried_bytes_max(volume) > LIMIT_VALUE_BYTES)
        return conf_fail(
            source, conf_node_line(map, "value_max"),
            "value_max: of an encrypted volume at most %llu bytes: it has a head of 32 "
            "bytes, and each 256KiB a tag of 16",
            (unsigned long long)sealed_plain_bytes(LIMIT_VALUE_BYTES));
    return ICMS_OK;
}

/* What its largest block takes, of a drive and of an arena. */
static uint64_t record_bytes_max(const struct volume_spec *volume)
{
    return bytes_align(RECORD_EXTRA_BYTES + volume_stored_bytes_max(volume), LIMIT_DISK_ALIGN);
}

icms_err conf_volume_rules(const struct conf_source *source, const struct conf_node *map,
                           void *object)
{
    struct volume_spec *volume = object;
    uint64_t record = record_bytes_max(volume);
    icms_err err = volume_encrypted_rules(source, map, volume);
    char size[32];

    if (err != ICMS_OK)
        return err;
    if (uuid_is_nil(&volume->uuid))
        conf_volume_uuid(volume->name, &volume->uuid);
    volume->require &= (uint8_t)~CONF_REQUIRE_WRITTEN;
    volume_generation_apply(volume);
    volume_encrypted_apply(volume);
    if (volume->quota_bytes != 0 && volume->quota_bytes < record)
        return conf_fail(source, conf_node_line(map, "quota"),
                         "quota: too small for one block of value_max; give it %s or more",
                         conf_bytes_format(record, size));
    if (volume->memory_bytes_max != 0 && volume->memory_bytes_max < volume->memory_bytes_min)
        return conf_fail(source, conf_node_line(map, "memory_max"),
                         "memory_max: less than memory_min; give it %s or more",
                         conf_bytes_format(volume->memory_bytes_min, size));
    if (volume->memory_bytes_max != 0 && volume->memory_bytes_max < record)
        return conf_fail(source, conf_node_line(map, "memory_max"),
                         "memory_max: too small for one block of value_max; give it %s or more",
                         conf_bytes_format(record, size));
    if (volume->pin_percent_max > 50)
        return conf_fail(source, conf_node_line(map, "pin_max"),
                         "pin_max: more than 50%%, which leaves too little to loads and stores");
    return ICMS_OK;
}

icms_err conf_host_rules(const struct conf_source *source, const struct conf_node *map,
                         void *object)
{
    const struct conf_host *host = object;

    for (uint32_t i = 0; i < host->psk_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(host->psks[i], host->psks[j]) == 0)
                return conf_fail(source, conf_node_line(map, "psks"),
                                 "psks: a file is listed twice");
    return ICMS_OK;
}

const struct conf_node *conf_entry(const struct conf_node *map, const char *list, uint32_t i)
{
    const struct conf_node *node = conf_node_get(map, list)->first;

    while (i-- > 0)
        node = node->next;
    return node;
}

static icms_err volumes_unique(const struct conf_source *source, const struct conf_node *map,
                               const struct volume_spec *volumes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(volumes[i].name, volumes[j].name) == 0)
                return conf_fail(source, conf_node_line(conf_entry(map, "volumes", i), "name"),
                                 "name: the volume '%s' is listed twice; first in line %u",
                                 volumes[i].name, conf_entry(map, "volumes", j)->line);
            if (uuid_equal(&volumes[i].uuid, &volumes[j].uuid))
                return conf_fail(source, conf_node_line(conf_entry(map, "volumes", i), "uuid"),
                                 "uuid: the volume '%s' has it already", volumes[j].name);
        }
    return ICMS_OK;
}

/* ---- the daemons ---------------------------------------------------------------------------- */

static icms_err segment_rules(const struct conf_source *source, const struct conf_node *map,
                              uint64_t segment, const struct volume_spec *volumes, uint32_t count)
{
    char size[32];

    if (!bytes_power_of_two(segment))
        return conf_fail(source, conf_node_line(map, "segment"),
                         "segment: %s is not a power of two", conf_bytes_format(segment, size));
    for (uint32_t i = 0; i < count; i++)
        if (!conf_segment_holds(segment, &volumes[i]))
            return conf_fail(source, conf_node_line(map, "segment"),
                             "segment: %s is too small for a block of volume '%s': make segment "
                             "larger or its value_max smaller",
                             conf_bytes_format(segment, size), volumes[i].name);
    return ICMS_OK;
}

/* Of the largest block, on flash and in a buffer. */
static uint64_t target_record_bytes(const struct conf_target *target)
{
    uint64_t largest = 0;

    for (uint32_t i = 0; i < target->volume_count; i++)
        largest = u64_max(largest, volume_stored_bytes_max(&target->volumes[i]));
    return bytes_align(largest + RECORD_EXTRA_BYTES, LIMIT_DISK_ALIGN);
}

static uint64_t local_record_bytes(const struct conf_agent *agent)
{
    uint64_t largest = 0;

    for (uint32_t i = 0; i < agent->volume_count; i++)
        largest = u64_max(largest, volume_stored_bytes_max(&agent->volumes[i]));
    return bytes_align(largest + RECORD_EXTRA_BYTES, LIMIT_DISK_ALIGN);
}

/* A budget has to let the largest block through. Of one in DWPD the drive's size, which is known
 * when it is opened, says more. */
static icms_err budget_rules(const struct conf_source *source, const struct conf_node *node,
                             const struct write_budget *budget, uint64_t record)
{
    uint64_t saved = budget->burst_bytes != 0 ? budget->burst_bytes : budget->bytes_day;
    bool none = budget->bytes_day == 0 && budget->drive_writes <= 0;
    char size[32];

    if (none && budget->burst_bytes != 0)
        return conf_fail(source, conf_node_line(node, "write_burst"),
                         "write_burst: there is no write_budget that it could save of");
    if (!none && saved != 0 && saved < record)
        return conf_fail(
            source, conf_node_line(node, budget->burst_bytes != 0 ? "write_burst" : "write_budget"),
            "%s: too small for one of the largest blocks; give it %s or more",
            budget->burst_bytes != 0 ? "write_burst" : "write_budget",
            conf_bytes_format(record, size));
    return ICMS_OK;
}

static icms_err drives_rules(const struct conf_source *source, const struct conf_node *map,
                             const struct conf_target *target)
{
    char size[32];
    uint32_t up = 0;
    icms_err err;

    for (uint32_t i = 0; i < target->drive_count; i++) {
        const struct conf_drive *drive = &target->drives[i];
        const struct conf_node *node = conf_entry(map, "drives", i);

        up += drive->state == CONF_DRIVE_UP;
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(drive->path, target->drives[j].path) == 0)
                return conf_fail(source, conf_node_line(node, "path"),
                                 "path: this drive is listed twice; first in line %u",
                                 conf_entry(map, "drives", j)->line);
        if (drive->bytes != 0 && drive->bytes < CONF_DRIVE_SEGMENTS_MIN * target->segment_bytes)
            return conf_fail(
                source, conf_node_line(node, "size"),
                "size: a drive holds at least %d segments, %s; or write a smaller segment",
                CONF_DRIVE_SEGMENTS_MIN,
                conf_bytes_format(CONF_DRIVE_SEGMENTS_MIN * target->segment_bytes, size));
        err = budget_rules(source, node, &drive->budget, target_record_bytes(target));
        if (err != ICMS_OK)
            return err;
    }
    if (up == 0)
        return conf_fail(source, conf_node_line(conf_entry(map, "drives", 0), "state"),
                         "state: all drives are draining, and none would take blocks; leave one "
                         "up");
    return ICMS_OK;
}

/* Where the sizes of all drives are written: a quota above them limits nothing. */
static icms_err quota_rules(const struct conf_source *source, const struct conf_node *map,
                            const struct conf_target *target)
{
    char quota[32], size[32];
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < target->drive_count; i++) {
        if (target->drives[i].bytes == 0)
            return ICMS_OK;
        bytes += target->drives[i].bytes;
    }
    for (uint32_t i = 0; i < target->volume_count && bytes > 0; i++)
        if (target->volumes[i].quota_bytes > bytes)
            return conf_fail(source, conf_node_line(conf_entry(map, "volumes", i), "quota"),
                             "quota: %s is larger than the drives together, %s; lower it, or "
                             "write 0 for all of them",
                             conf_bytes_format(target->volumes[i].quota_bytes, quota),
                             conf_bytes_format(bytes, size));
    return ICMS_OK;
}

icms_err conf_tenants_unique(const struct conf_source *source, const struct conf_node *map,
                             const struct tenant_spec *tenants, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(tenants[i].name, tenants[j].name) == 0)
                return conf_fail(source, conf_node_line(conf_entry(map, "tenants", i), "name"),
                                 "name: the tenant '%s' is listed twice; first in line %u",
                                 tenants[i].name, conf_entry(map, "tenants", j)->line);
    return ICMS_OK;
}

icms_err conf_tenant_known(const struct conf_source *source, const struct conf_node *map,
                           uint32_t i, const char *tenant, const struct tenant_spec *tenants,
                           uint32_t count)
{
    uint32_t at = 0;

    while (at < count && strcmp(tenants[at].name, tenant) != 0)
        at++;
    if (tenant[0] == '\0' || at < count)
        return ICMS_OK;
    return conf_fail(source, conf_node_line(conf_entry(map, "volumes", i), "tenant"),
                     "tenant: there is no tenant '%s'; list it, as in 'tenants: [{name: %s}]', or "
                     "leave the key out",
                     tenant, tenant);
}

/* A tenant is listed once; a volume's tenant is listed. */
static icms_err tenants_rules(const struct conf_source *source, const struct conf_node *map,
                              struct conf_target *target)
{
    icms_err err = conf_tenants_unique(source, map, target->tenants, target->tenant_count);

    for (uint32_t v = 0; v < target->volume_count && err == ICMS_OK; v++)
        err = conf_tenant_known(source, map, v, target->volumes[v].tenant, target->tenants,
                                target->tenant_count);
    if (err != ICMS_OK)
        return err;
    for (uint32_t i = 0; i < target->tenant_count; i++) {
        const char *name = target->tenants[i].name;
        bool is_used = false;

        for (uint32_t v = 0; v < target->volume_count && !is_used; v++) {
            const struct volume_spec *volume = &target->volumes[v];

            is_used = strcmp(volume->tenant[0] != '\0' ? volume->tenant : volume->name, name) == 0;
        }
        if (!is_used)
            conf_warn(&target->warnings, "tenants: no volume belongs to the tenant '%s'", name);
    }
    return ICMS_OK;
}

uint8_t conf_require_of(uint8_t written, uint8_t above)
{
    return (written & CONF_REQUIRE_WRITTEN) != 0 ? (uint8_t)(written & ~CONF_REQUIRE_WRITTEN)
                                                 : above;
}

static int host_order(const void *a, const void *b)
{
    const struct conf_host *const *left = a, *const *right = b;

    return strcmp((*left)->nqn, (*right)->nqn);
}

/* Line of a host of the list. */
static uint32_t host_line(const struct conf_node *map, const struct conf_target *target,
                          const struct conf_host *host)
{
    return conf_entry(map, "hosts", (uint32_t)(host - target->hosts))->line;
}

static icms_err hosts_unique(const struct conf_source *source, const struct conf_node *map,
                             const struct conf_target *target)
{
    const struct conf_host **order = calloc(target->host_count + 1, sizeof(*order));
    icms_err err = ICMS_OK;

    if (order == NULL)
        return err_set(source->why, ICMS_NO_MEMORY, "%s: out of memory", source->name);
    for (uint32_t i = 0; i < target->host_count; i++)
        order[i] = &target->hosts[i];
    qsort(order, target->host_count, sizeof(*order), host_order);
    for (uint32_t i = 1; i < target->host_count && err == ICMS_OK; i++)
        if (strcmp(order[i]->nqn, order[i - 1]->nqn) == 0)
            err = conf_fail(source, host_line(map, target, order[i]),
                            "nqn: the host '%.100s' is listed twice; also in line %u",
                            order[i]->nqn, host_line(map, target, order[i - 1]));
    free(order);
    return err;
}

/* What a host that says nothing has to prove: what is required of all, and what it has secrets for.
 * is_default: nobody wrote what is required, and others reach the target; then its key is enough.
 */
static uint8_t host_require(const struct conf_host *host, uint8_t required, bool is_default)
{
    if (host->secret_count > 0)
        return required | REQUIRE_CHAP;
    return is_default && host->psk_count > 0 ? REQUIRE_TLS : required;
}

static icms_err host_secrets_rules(const struct conf_source *source, const struct conf_node *map,
                                   const struct conf_host *host)
{
    if ((host->require & REQUIRE_CHAP) != 0 && host->secret_count == 0)
        return conf_fail(source, map->line,
                         "secrets: the host has to authenticate and has no secret; make one with "
                         "`icms key gen` and list its file");
    if (host->controller_secret[0] != '\0' && host->secret_count == 0)
        return conf_fail(
            source, conf_node_line(map, "controller_secret"),
            "controller_secret: the host has no secrets; it has to authenticate before "
            "it can ask the target to");
    for (uint32_t i = 0; i < host->secret_count; i++) {
        if (strcmp(host->secrets[i], host->controller_secret) == 0)
            return conf_fail(source, conf_node_line(map, "controller_secret"),
                             "controller_secret: it is the host's own; make another one");
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(host->secrets[i], host->secrets[j]) == 0)
                return conf_fail(source, conf_node_line(map, "secrets"),
                                 "secrets: a file is listed twice");
    }
    return ICMS_OK;
}

/* Names of a list: each one known, none twice. */
static icms_err chap_names(const struct conf_source *source, const struct conf_node *map,
                           const char *key, const char (*names)[16], uint32_t count,
                           const char *const *known)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = 0;

        while (known[at] != NULL && strcmp(known[at], names[i]) != 0)
            at++;
        if (known[at] == NULL)
            return conf_fail(source, conf_node_line(map, key), "%s: no such thing as '%s'", key,
                             names[i]);
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(names[i], names[j]) == 0)
                return conf_fail(source, conf_node_line(map, key), "%s: '%s' is listed twice", key,
                                 names[i]);
    }
    return ICMS_OK;
}

static icms_err chap_rules(const struct conf_source *source, const struct conf_node *map,
                           const struct conf_target *target)
{
    static const char *const hashes[] = {"sha256", "sha384", "sha512", NULL};
    static const char *const groups[] = {"null",      "ffdhe2048", "ffdhe3072", "ffdhe4096",
                                         "ffdhe6144", "ffdhe8192", NULL};
    icms_err err = chap_names(source, map, "chap_hashes", target->chap_hashes,
                              target->chap_hash_count, hashes);

    return err != ICMS_OK ? err
                          : chap_names(source, map, "chap_groups", target->chap_groups,
                                       target->chap_group_count, groups);
}

/* ---- portals -------------------------------------------------------------------------------- */

/* The first address that other machines reach; NULL: there is none. */
static const char *portal_wide(const struct conf_target *target)
{
    for (uint32_t i = 0; i < target->listen_count; i++)
        if (conf_address_is_wide(target->listen[i]))
            return target->listen[i];
    return NULL;
}

/* No address of a list is there twice, but those that are picked. */
static icms_err portals_unique(const struct conf_source *source, const struct conf_node *map,
                               const char *key, char (*address)[64], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *port = strrchr(address[i], ':');
        const char *wrong = conf_address_wrong_listen(address[i]);

        if (wrong != NULL)
            return conf_fail(source, conf_node_item_line(conf_node_get(map, key), i), "%s: %s %s",
                             key, address[i], wrong);
        for (uint32_t j = 0; j < i && strtoul(port + 1, NULL, 10) != 0; j++)
            if (conf_address_same(address[i], address[j]))
                return conf_fail(source, conf_node_item_line(conf_node_get(map, key), i),
                                 "%s: '%s' is listed twice", key, address[i]);
    }
    return ICMS_OK;
}

static icms_err portals_rules(const struct conf_source *source, const struct conf_node *map,
                              struct conf_target *target)
{
    icms_err err = portals_unique(source, map, "listen", target->listen, target->listen_count);

    if (err != ICMS_OK)
        return err;
    if (conf_node_get(map, "advertise") == NULL) {
        memcpy(target->advertise, target->listen, sizeof(target->advertise));
        target->advertise_count = target->listen_count;
        return ICMS_OK;
    }
    if (target->advertise_count != target->listen_count)
        return conf_fail(source, conf_node_line(map, "advertise"),
                         "advertise: %u addresses, and listen has %u: write one for each of them, "
                         "in the same order",
                         target->advertise_count, target->listen_count);
    return portals_unique(source, map, "advertise", target->advertise, target->advertise_count);
}

static icms_err hosts_rules(const struct conf_source *source, const struct conf_node *map,
                            struct conf_target *target)
{
    bool keys = false, secrets = false, is_written = (target->require & CONF_REQUIRE_WRITTEN) != 0;
    const char *wide = portal_wide(target);
    bool is_wide = wide != NULL;
    icms_err err = chap_rules(source, map, target);

    if (err != ICMS_OK)
        return err;
    target->require &= (uint8_t)~CONF_REQUIRE_WRITTEN;
    if (!is_written && is_wide)
        target->require = REQUIRE_CHAP;
    for (uint32_t i = 0; i < target->host_count; i++) {
        struct conf_host *host = &target->hosts[i];

        host->require = conf_require_of(
            host->require, host_require(host, target->require, !is_written && is_wide));
        keys = keys || host->psk_count > 0;
        secrets = secrets || host->secret_count > 0;
        err = host_secrets_rules(source, conf_entry(map, "hosts", i), host);
        if (err != ICMS_OK)
            return err;
        if ((host->require & REQUIRE_TLS) != 0 && host->psk_count == 0)
            return conf_fail(source, conf_entry(map, "hosts", i)->line,
                             "psks: the host has to use TLS and has no key; list the file of its "
                             "key");
    }
    if ((target->require & REQUIRE_TLS) != 0 && !keys)
        return conf_fail(source, conf_node_line(map, "require"),
                         "require: tls, and no host has a key: nobody could connect; list hosts "
                         "with psks");
    if (!is_written && is_wide && !secrets && !keys)
        return conf_fail(source, conf_node_line(map, "listen"),
                         "listen: other machines reach %s, and no host has a secret: list hosts "
                         "with secrets (icms key gen makes them), or write `require: none` to let "
                         "in whoever reaches it",
                         wide);
    if ((target->require & REQUIRE_CHAP) != 0 && is_written && !secrets)
        return conf_fail(
            source, conf_node_line(map, "require"),
            "require: chap, and no host has a secret: nobody could connect; list hosts "
            "with secrets");
    return hosts_unique(source, map, target);
}

icms_err conf_target_lists_rules(const struct conf_target_lists *lists, struct conf_target *target)
{
    char size[32];
    uint64_t record = target_record_bytes(target);
    icms_err err =
        volumes_unique(lists->map, lists->map_root, target->volumes, target->volume_count);

    if (err == ICMS_OK)
        err = segment_rules(lists->own, lists->own_root, target->segment_bytes, target->volumes,
                            target->volume_count);
    if (err == ICMS_OK)
        err = drives_rules(lists->own, lists->own_root, target);
    if (err == ICMS_OK)
        err = quota_rules(lists->map, lists->map_root, target);
    if (err == ICMS_OK)
        err = tenants_rules(lists->map, lists->map_root, target);
    if (err != ICMS_OK)
        return err;
    if (target->memory_bytes < 2 * record)
        return conf_fail(lists->own, conf_node_line(lists->own_root, "memory"),
                         "memory: too small for two of the largest blocks; give it %s or more",
                         conf_bytes_format(2 * record, size));
    conf_warn_volumes(target);
    return ICMS_OK;
}

/* With a map volumes and tenants are the map's, and nobody can say otherwise. */
static icms_err target_pod_rules(const struct conf_source *source, const struct conf_node *map,
                                 const struct conf_target *target)
{
    static const char *const keys[] = {"volumes", "tenants"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (target->pod[0] != '\0' && conf_node_get(map, keys[i]) != NULL)
            return conf_fail(source, conf_node_line(map, keys[i]),
                             "%s: with pod they are those of the pod map %s: write them there "
                             "(icms pod volume), and remove them here",
                             keys[i], target->pod);
    return ICMS_OK;
}

icms_err conf_target_rules(const struct conf_source *source, const struct conf_node *map,
                           void *object)
{
    const struct conf_target_lists lists = {source, map, source, map};
    struct conf_target *target = object;
    icms_err err;

    if (uuid_is_nil(&target->uuid))
        conf_enclosure_uuid(target->name, &target->uuid);
    if (target->nqn[0] == '\0')
        conf_uuid_nqn(&target->uuid, target->nqn);
    err = portals_rules(source, map, target);
    if (err == ICMS_OK)
        err = target_pod_rules(source, map, target);
    if (err == ICMS_OK)
        err = hosts_rules(source, map, target);
    if (err == ICMS_OK) /* with a map once more, when its volumes are there */
        err = conf_target_lists_rules(&lists, target);
    if (err != ICMS_OK)
        return err;
    if (target->in_capsule_bytes % 16 != 0)
        return conf_fail(source, conf_node_line(map, "in_capsule"),
                         "in_capsule: not a multiple of 16 bytes");
    if (target->require == 0 && portal_wide(target) != NULL)
        conf_warn_wide(&target->warnings, "listen", portal_wide(target),
                       "hosts there are told apart by the NQN they claim, without proof");
    conf_warn_shared_keys(target);
    conf_warn_http(&target->warnings, &target->http);
    return ICMS_OK;
}

/* ---- users and groups ----------------------------------------------------------------------- */

#define USER_BYTES 16384 /* of one record of the user database */

/* The number of a name, or of digits; false: there is none. */
static bool id_find(const char *name, bool group, uint32_t *out_id)
{
    char memory[USER_BYTES];
    char *end = NULL;
    unsigned long long number;
    struct passwd user, *user_found = NULL;
    struct group one, *found = NULL;

    if (strspn(name, "0123456789") == strlen(name)) {
        errno = 0;
        number = strtoull(name, &end, 10);
        *out_id = (uint32_t)number;
        return errno == 0 && number < UINT32_MAX; /* the last one means nobody */
    }
    if (group && getgrnam_r(name, &one, memory, sizeof(memory), &found) == 0 && found != NULL)
        *out_id = one.gr_gid;
    else if (!group && getpwnam_r(name, &user, memory, sizeof(memory), &user_found) == 0 &&
             user_found != NULL)
        *out_id = user.pw_uid;
    else
        return false;
    return true;
}

static icms_err ids_rules(const struct conf_source *source, const struct conf_node *volume,
                          bool group, struct local_id *ids, uint32_t count)
{
    const char *key = group ? "groups" : "users", *what = group ? "group" : "user";
    char shown[CONF_SHOW_BYTES];

    for (uint32_t i = 0; i < count; i++)
        if (!id_find(ids[i].name, group, &ids[i].id))
            return conf_fail(source, conf_node_line(volume, key),
                             "%s: this machine has no %s '%s': make it, or write its number", key,
                             what, conf_show(ids[i].name, shown));
    return ICMS_OK;
}

/* Who may use which volume, and what is left to the permission bits of the socket. */
static icms_err users_rules(const struct conf_source *source, const struct conf_node *map,
                            struct conf_agent *agent)
{
    bool open = false;

    for (uint32_t i = 0; i < agent->volume_count; i++) {
        struct volume_spec *volume = &agent->volumes[i];
        const struct conf_node *node = conf_entry(map, "volumes", i);
        icms_err err = ids_rules(source, node, false, volume->users, volume->user_count);

        if (err == ICMS_OK)
            err = ids_rules(source, node, true, volume->groups, volume->group_count);
        if (err != ICMS_OK)
            return err;
        open = open || (volume->user_count == 0 && volume->group_count == 0);
    }
    if ((agent->socket_mode & 07) != 0 && open)
        conf_warn(
            &agent->warnings,
            "socket_mode: %04o lets every user of this machine read and write all volumes that "
            "list neither users nor groups",
            agent->socket_mode);
    return ICMS_OK;
}

/* Reactors have equal parts of the memory, and a block lies in one of them. */
static icms_err memory_rules(const struct conf_source *source, const struct conf_node *map,
                             const struct conf_agent *agent, uint32_t loops)
{
    uint64_t floors = 0;
    char size[32];

    for (uint32_t i = 0; i < agent->volume_count; i++) {
        const struct volume_spec *volume = &agent->volumes[i];
        const struct conf_node *node = conf_entry(map, "volumes", i);
        uint64_t least = loops * record_bytes_max(volume);

        if (volume->memory_bytes_max > agent->memory_bytes)
            return conf_fail(source, conf_node_line(node, "memory_max"),
                             "memory_max: more than the agent's memory; give it %s or less",
                             conf_bytes_format(agent->memory_bytes, size));
        if (volume->memory_bytes_max != 0 && volume->memory_bytes_max < least)
            return conf_fail(source, conf_node_line(node, "memory_max"),
                             "memory_max: too small for %u loops, each of which needs room for one "
                             "block of value_max; give it %s or more, or take fewer loops",
                             loops, conf_bytes_format(least, size));
        floors += u64_max(volume->memory_bytes_min, least);
    }
    if (floors > agent->memory_bytes)
        return conf_fail(source, conf_node_line(map, "memory"),
                         "memory: too small for what the volumes always have, memory_min and one "
                         "block of value_max for each of %u loops at least; give it %s or more, or "
                         "take fewer loops",
                         loops, conf_bytes_format(floors, size));
    return ICMS_OK;
}

icms_err conf_agent_rules(const struct conf_source *source, const struct conf_node *map,
                          void *object)
{
    struct conf_agent *agent = object;
    const struct conf_node *local = conf_node_get(map, "local");
    icms_err err;

    agent_complete(agent);
    if (strlen(agent->socket) >= sizeof(agent->socket) - 1)
        return conf_fail(source, conf_node_line(map, "socket"), "socket: the path is too long");
    err = conf_agent_pod_rules(source, map, agent);
    if (err != ICMS_OK)
        return err;
    conf_shared_note(source, map, agent);
    err = volumes_unique(source, map, agent->volumes, agent->volume_count);
    if (err == ICMS_OK)
        err = conf_enclosures_unique(source, map, agent->enclosures, agent->enclosure_count);
    if (err == ICMS_OK)
        err = conf_enclosure_keys_rules(source, map, agent);
    if (err == ICMS_OK)
        err = conf_events_rules(source, map, agent);
    if (err == ICMS_OK)
        err = conf_models_rules(source, map, agent);
    if (err == ICMS_OK) /* an agent with a drive of its own has one loop */
        err = memory_rules(source, map, agent, local != NULL ? 1 : agent->loops);
    if (err == ICMS_OK && local != NULL)
        err = segment_rules(source, local, agent->local_segment_bytes, agent->volumes,
                            agent->volume_count);
    if (err == ICMS_OK && local != NULL)
        err = budget_rules(source, local, &agent->local_budget, local_record_bytes(agent));
    if (err == ICMS_OK && local != NULL)
        err = conf_local_rules(source, map, agent);
    if (err != ICMS_OK)
        return err;
    conf_warn_models(agent);
    conf_warn_seeds(agent);
    conf_warn_http(&agent->warnings, &agent->http);
    if (agent->enclosure_count + strlen(agent->pod) > 0 &&
        agent->silence_ms > agent->load_deadline_ms)
        conf_warn(
            &agent->warnings,
            "silence: %u ms is longer than load_deadline, %u ms: loads from an enclosure that "
            "does not answer miss by their deadline until it is marked down; lower silence",
            agent->silence_ms, agent->load_deadline_ms);
    return users_rules(source, map, agent);
}

void conf_volume_init(struct volume_spec *volume)
{
    memset(volume, 0, sizeof(*volume));
    conf_table_init(&conf_volume_table, volume);
}

void conf_volume_encrypt(struct volume_spec *volume)
{
    volume->encrypted = true;
    volume_encrypted_apply(volume);
}

/* ---- the keys of clients -------------------------------------------------------------------- */

icms_err conf_seal_key_rules(const struct conf_source *source, const struct conf_node *map,
                             void *object)
{
    const struct conf_seal_key *key = object;

    if ((key->file[0] != 0) == (key->wrapped[0] != 0))
        return conf_fail(source, map->line, "key %u: give it either file or wrapped", key->id);
    if (key->file[0] != 0 && (key->kek_file[0] != 0 || key->key_command[0] != 0))
        return conf_fail(source, map->line,
                         "key %u: kek_file and key_command are for wrapped keys; file is plain",
                         key->id);
    if (key->wrapped[0] != 0 && (key->kek_file[0] != 0) == (key->key_command[0] != 0))
        return conf_fail(source, map->line, "key %u: wrapped needs either kek_file or key_command",
                         key->id);
    if (key->key_command[0] != 0 && key->key_command[0] != '/')
        return conf_fail(source, conf_node_line(map, "key_command"),
                         "key_command: it begins with the absolute path of the program");
    return ICMS_OK;
}

icms_err conf_seal_volume_rules(const struct conf_source *source, const struct conf_node *map,
                                void *object)
{
    const struct conf_seal_volume *volume = object;

    for (uint32_t i = 0; i < volume->key_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (volume->keys[i].id == volume->keys[j].id)
                return conf_fail(source, conf_entry(map, "keys", i)->line,
                                 "id: two keys of the volume '%s' have the id %u", volume->name,
                                 volume->keys[i].id);
    return ICMS_OK;
}

icms_err conf_seal_rules(const struct conf_source *source, const struct conf_node *map,
                         void *object)
{
    const struct conf_seal *seal = object;

    for (uint32_t i = 0; i < seal->volume_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(seal->volumes[i].name, seal->volumes[j].name) == 0)
                return conf_fail(source, conf_entry(map, "volumes", i)->line,
                                 "name: the volume '%s' is listed twice", seal->volumes[i].name);
    return ICMS_OK;
}

/* ---- the NIXL plugin ------------------------------------------------------------------------ */

bool conf_nguid_parse(const char *text, struct uuid *out_nguid)
{
    static const char digits[] = "0123456789abcdef";
    struct uuid nguid = {0};

    if (strlen(text) != 2 * sizeof(nguid.bytes))
        return false;
    for (size_t i = 0; text[i] != '\0'; i++) {
        char lower = text[i] >= 'A' && text[i] <= 'F' ? (char)(text[i] - 'A' + 'a') : text[i];
        const char *digit = strchr(digits, lower);

        if (digit == NULL)
            return false;
        nguid.bytes[i / 2] = (uint8_t)(nguid.bytes[i / 2] << 4 | (digit - digits));
    }
    *out_nguid = nguid;
    return true;
}

icms_err conf_nixl_volume_rules(const struct conf_source *source, const struct conf_node *map,
                                void *object)
{
    struct conf_nixl_volume *volume = object;

    if (!conf_nguid_parse(volume->nguid, &volume->nguid_bytes))
        return conf_fail(source, conf_node_line(map, "nguid"), "nguid: it has 32 hex digits");
    return ICMS_OK;
}

icms_err conf_nixl_device_rules(const struct conf_source *source, const struct conf_node *map,
                                void *object)
{
    const struct conf_nixl_device *device = object;

    if (strncmp(device->connection, "unix:", 5) != 0 &&
        strncmp(device->connection, "pod:", 4) != 0 && strncmp(device->connection, "dir:", 4) != 0)
        return conf_fail(source, conf_node_line(map, "connection"),
                         "connection: it begins with unix:, pod: or dir:");
    for (uint32_t i = 0; i < device->volume_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (uuid_equal(&device->volumes[i].nguid_bytes, &device->volumes[j].nguid_bytes))
                return conf_fail(source, conf_node_line(map, "volumes"),
                                 "volumes: two have the nguid %s", device->volumes[i].nguid);
    return ICMS_OK;
}

icms_err conf_nixl_rules(const struct conf_source *source, const struct conf_node *map,
                         void *object)
{
    const struct conf_nixl *nixl = object;
    char shown[CONF_SHOW_BYTES];

    for (uint32_t i = 0; i < nixl->device_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(nixl->devices[i].name, nixl->devices[j].name) == 0)
                return conf_fail(source, conf_node_line(map, "devices"),
                                 "devices: two have the device_name %s",
                                 conf_show(nixl->devices[i].name, shown));
    return ICMS_OK;
}
