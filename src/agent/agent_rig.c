/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/agent_rig.c: see agent_rig.h.
 */
#include "agent/agent_rig.h"

#include <stdio.h>
#include <stdlib.h>

#include "agent/agent_int.h"
#include "agent/extent.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/crc.h"
#include "base/hash.h"
#include "icms/icms.h"
#include "store/store.h"
#include "wire/sealed.h"

/* Arenas that hold so many blocks, and no more. */
static uint64_t rig_arena_bytes(const struct volume_spec *spec, const struct rig_opts *opts)
{
    uint64_t value_bytes =
        opts->block_bytes != 0 ? opts->block_bytes : volume_carried_bytes_max(spec);
    uint64_t stored_bytes = value_bytes + (spec->sealed ? LIMIT_TRAILER_BYTES : 0);
    uint64_t block_bytes = opts->own_process && opts->enclosures == 0
                               ? store_record_bytes(stored_bytes)
                               : bytes_align(stored_bytes, EXTENT_UNIT);

    return (opts->loops == 0 ? 1 : opts->loops) *
           bytes_align((opts->slots == 0 ? 64 : opts->slots) * block_bytes, LIMIT_DISK_ALIGN);
}

/* So many of the largest blocks for each reactor. */
static uint64_t rig_memory_bytes(const struct agent_rig *rig, uint32_t blocks,
                                 const struct rig_opts *opts)
{
    return (uint64_t)blocks * (opts->loops == 0 ? 1 : opts->loops) *
           bytes_align(volume_stored_bytes_max(&rig->volumes[0]), LIMIT_DISK_ALIGN);
}

static void rig_volumes(struct agent_rig *rig, const struct rig_opts *opts)
{
    static const char *const names[RIG_VOLUMES] = {"kv", "raw", "none"};
    uint32_t value_bytes = opts->value_bytes == 0 ? RIG_VALUE_BYTES : opts->value_bytes;

    for (uint8_t i = 0; i < RIG_VOLUMES; i++) {
        struct volume_spec *spec = &rig->volumes[i];

        memset(spec->uuid.bytes, i + 1, sizeof(spec->uuid.bytes));
        strcpy(spec->name, names[i]);
        spec->value_bytes_max = value_bytes;
        spec->encrypted = i == 0 && opts->encrypted;
        spec->run_blocks = 32;
        spec->weight = i == 0 && opts->kv_weight != 0 ? opts->kv_weight : 1;
        spec->sealed = i != 1;
        spec->pin_percent_max = opts->pin_percent;
        spec->quota_bytes = opts->quota_bytes;
        spec->memory_bytes_max = rig_arena_bytes(spec, opts);
        if (opts->memory != 0) {
            spec->memory_bytes_min = rig_memory_bytes(rig, opts->memory_min[i], opts);
            spec->memory_bytes_max = rig_memory_bytes(rig, opts->memory_max[i], opts);
        }
        if (i == 1 && opts->raw_uid != 0) {
            spec->user_count = spec->group_count = 1;
            spec->users[0].id = opts->raw_uid;
            spec->groups[0].id = opts->raw_gid;
        }
    }
}

static void rig_fake(struct agent_rig *rig, uint32_t i, bool many, uint32_t links)
{
    struct agent_enclosure_opts *opts = &rig->enclosures[i];
    struct fake_target *fake = calloc(1, sizeof(*fake));
    struct loop_opts loop_opts;
    char host[48];

    check(fake != NULL);
    snprintf(host, sizeof(host), "10.1.1.%u", i + 1);
    rig->fake_node[i] = sim_node_new(rig->sim, host);
    loop_opts_init(&loop_opts);
    check(loop_new(sim_node_env(rig->fake_node[i]), &loop_opts, NULL, &rig->fake_loop[i]) ==
          ICMS_OK);
    fake->volume_count = 2;
    fake->many = many;
    fake->records = fake->timed = true;
    fake->in_capsule_bytes = many ? 8192 : 0;
    for (uint32_t j = 0; j < 2; j++)
        fake->volumes[j] = (struct fake_volume){
            .uuid = rig->volumes[j].uuid,
            .value_bytes_max = (uint32_t)volume_stored_bytes_max(&rig->volumes[j]),
            .sealed = rig->volumes[j].sealed,
            .encrypted = rig->volumes[j].encrypted,
        };
    fake_target_open(fake, rig->fake_loop[i], host, 4420);
    check(loop_start(rig->fake_loop[i], NULL) == ICMS_OK);
    rig->fake[i] = fake;
    snprintf(opts->name, sizeof(opts->name), "e%u", i);
    memset(opts->uuid.bytes, (int)i + 16, sizeof(opts->uuid.bytes));
    strcpy(opts->nqn, "nqn.2014-08.org.nvmexpress:uuid:fake");
    opts->addrs[0] = fake->addr;
    opts->addr_count = 1;
    for (uint32_t l = 0; l < links; l++) {
        snprintf(host, sizeof(host), "10.1.%u.%u", l + 2, i + 1);
        rig->link_node[i][l] = sim_node_address(rig->fake_node[i], host);
        opts->addrs[l] = fake->addr;
        snprintf(opts->addrs[l].host, sizeof(opts->addrs[l].host), "%s", host);
        opts->addr_count = links;
    }
    opts->weight = 1;
}

static void rig_name_lengthen(char nqn[LIMIT_NQN_BYTES], char with)
{
    size_t length = strlen(nqn);

    memset(nqn + length, with, LIMIT_NQN_BYTES - 1 - length);
    nqn[LIMIT_NQN_BYTES - 1] = 0;
}

static void rig_agent_new(struct agent_rig *rig)
{
    struct err_why why = {""};

    if (agent_new(sim_node_env(rig->node), &rig->opts, &why, &rig->agent) != ICMS_OK) {
        fprintf(stderr, "%s\n", why.text);
        check(false);
    }
    check(agent_start(rig->agent, NULL) == ICMS_OK);
    rig_run(rig, 500 * RIG_MS);
}

struct agent_rig *rig_new(const struct rig_opts *opts)
{
    struct agent_rig *rig = calloc(1, sizeof(*rig));
    struct sim_opts sim_opts;

    check(rig != NULL);
    sim_opts_init(&sim_opts, opts->seed == 0 ? 1 : opts->seed);
    if (opts->net_bytes_per_s != 0)
        sim_opts.net_bytes_per_s = opts->net_bytes_per_s;
    rig->sim = sim_new(&sim_opts);
    rig->node = sim_node_new(rig->sim, "10.1.0.1");
    rig_volumes(rig, opts);
    rig->enclosure_count = opts->enclosures;
    for (uint32_t i = 0; i < opts->enclosures; i++) {
        rig_fake(rig, i, opts->many, opts->links);
        rig->fake[i]->expedites = !opts->no_expedite;
    }
    agent_opts_init(&rig->opts);
    strcpy(rig->opts.host_nqn, "nqn.2014-08.org.nvmexpress:uuid:host");
    if (opts->long_names) {
        rig_name_lengthen(rig->opts.host_nqn, 'h');
        for (uint32_t i = 0; i < opts->enclosures; i++)
            rig_name_lengthen(rig->enclosures[i].nqn, 's');
    }
    if (opts->swapped) {
        struct agent_enclosure_opts first = rig->enclosures[0];

        rig->enclosures[0] = rig->enclosures[1];
        rig->enclosures[1] = first;
    }
    if (opts->heavy)
        rig->enclosures[0].weight *= 2;
    rig->opts.host_id = (struct uuid){{1}};
    rig->opts.loops = opts->loops == 0 ? 1 : opts->loops;
    rig->opts.client_bytes = 4 << 20;
    rig->opts.enclosure_count = opts->members != 0 ? opts->members : opts->enclosures;
    rig->opts.epoch = opts->epoch;
    rig->opts.pod_name = opts->pod_name;
    rig->opts.enclosures = rig->enclosures;
    rig->opts.volume_count = RIG_VOLUMES;
    rig->opts.volumes = rig->volumes;
    rig->opts.memory_bytes = rig_memory_bytes(rig, opts->memory, opts);
    rig->opts.probe_ms = 300;
    rig->opts.exist_many = !opts->one_by_one;
    rig->opts.own_process = opts->own_process;
    rig->opts.events = opts->events;
    if (opts->user_clients_max != 0)
        rig->opts.user_clients_max = opts->user_clients_max;
    if (opts->backlog_bytes != 0)
        rig->opts.store_backlog_bytes = opts->backlog_bytes;
    if (opts->enclosures == 0) {
        rig->opts.local_path = RIG_DRIVE;
        rig->opts.local_bytes = 64 << 20;
        rig->opts.local_segment_bytes = 1 << 20;
    } else if (opts->own_drive_bytes != 0) {
        rig->opts.local_path = RIG_DRIVE;
        rig->opts.local_bytes = opts->own_drive_bytes;
        rig->opts.local_segment_bytes = 256 << 10;
        rig->opts.local_budget.bytes_day = opts->own_drive_day;
        rig->opts.local_share = opts->own_drive_share;
    }
    if (opts->prepare != NULL)
        opts->prepare(rig->node);
    rig_agent_new(rig);
    return rig;
}

void rig_restart(struct agent_rig *rig, bool drained)
{
    for (int i = 0; drained && !agent_drain(rig->agent, 0); i++) {
        check(i < 1000);
        rig_run(rig, RIG_MS);
    }
    agent_stop(rig->agent);
    agent_free(&rig->agent);
    rig_agent_new(rig);
}

void rig_free(struct agent_rig *rig)
{
    agent_stop(rig->agent);
    for (uint32_t i = 0; i < rig->enclosure_count; i++) {
        loop_stop(rig->fake_loop[i]);
        loop_join(rig->fake_loop[i]);
    }
    agent_free(&rig->agent);
    for (uint32_t i = 0; i < rig->enclosure_count; i++) {
        loop_free(&rig->fake_loop[i]);
        fake_target_fini(rig->fake[i]);
        free(rig->fake[i]);
    }
    sim_free(&rig->sim);
    free(rig);
}

void rig_run(struct agent_rig *rig, uint64_t ns)
{
    (void)sim_run(rig->sim, sim_now_ns(rig->sim) + ns);
}

uint64_t rig_now_ns(const struct agent_rig *rig)
{
    return loop_env_now_ns(sim_node_env(rig->node));
}

struct rig_call {
    void (*run)(struct fake_target *target);
    struct fake_target *target;
};

static void rig_call_run(void *arg)
{
    const struct rig_call *call = arg;

    call->run(call->target);
}

void rig_on_fake(struct agent_rig *rig, uint32_t enclosure, void (*run)(struct fake_target *target))
{
    struct rig_call call = {.run = run, .target = rig->fake[enclosure]};

    sim_call(rig->sim, rig->fake_loop[enclosure], rig_call_run, &call);
}

static void rig_pod_done(void *arg)
{
    *(volatile bool *)arg = true;
}

icms_err rig_pod(struct agent_rig *rig, uint64_t epoch,
                 const struct agent_enclosure_opts *enclosures, uint32_t count, struct err_why *why)
{
    volatile bool over = false;
    icms_err err = agent_pod_apply_start(rig->agent, epoch, enclosures, count, rig->identities, why,
                                         rig_pod_done, (void *)(uintptr_t)&over);

    for (uint32_t steps = 0; err == ICMS_OK && !over; steps++)
        check(steps < 3000000 && sim_step(rig->sim));
    return err;
}

/* ---- clients -------------------------------------------------------------------------------- */

static void rig_client_view(struct rig_client *client, uint32_t reactor)
{
    const struct agent_client_map *attached = &client->attached;

    check(shm_ring_view(loop_region_base(attached->region), loop_region_bytes(attached->region),
                        reactor, &client->rings[reactor]) == ICMS_OK);
    for (uint32_t i = 0; i < attached->volume_count; i++) {
        struct shm_arena arena;

        check(shm_arena_view(loop_region_base(attached->arenas[i]),
                             loop_region_bytes(attached->arenas[i]), reactor,
                             attached->reactor_count,
                             client->rings[reactor].header->arena_offsets[i], &arena) == ICMS_OK);
        client->shards[reactor][arena.volume] = arena;
    }
}

void rig_identify(struct rig_client *client)
{
    for (uint32_t r = 0; r < client->attached.reactor_count; r++)
        for (uint32_t i = 0; i < RIG_VOLUMES; i++)
            if (client->shards[r][i].header != NULL)
                check(shm_arena_identify(&client->shards[r][i]));
}

struct rig_client *rig_client_as(struct agent_rig *rig, const struct agent_user *user,
                                 icms_err *out_err)
{
    struct rig_client *client = calloc(1, sizeof(*client));

    check(client != NULL);
    client->rig = rig;
    client->next_tag = 1;
    *out_err = agent_client_attach_as(rig->agent, user, 0, NULL, &client->attached);
    if (*out_err != ICMS_OK) {
        free(client);
        return NULL;
    }
    check(client->attached.reactor_count <= RIG_REACTORS);
    for (uint32_t r = 0; r < client->attached.reactor_count; r++)
        rig_client_view(client, r);
    return client;
}

struct rig_client *rig_client_new(struct agent_rig *rig)
{
    icms_err err;
    struct rig_client *client = rig_client_as(rig, NULL, &err);

    check(client != NULL);
    return client;
}

static void rig_detached(void *arg)
{
    *(volatile bool *)arg = true;
}

void rig_client_free(struct rig_client *client)
{
    volatile bool over = false;
    uint32_t steps = 0;

    agent_client_detach(client->rig->agent, client->attached.client, rig_detached,
                        (void *)(uintptr_t)&over);
    while (!over) {
        check(steps++ < 3000000);
        check(sim_step(client->rig->sim));
    }
    free(client);
}

void rig_key(uint32_t n, struct key *out_key)
{
    uint64_t words[2] = {hash64_mix(n / 4), hash64_mix(n + 1000000)};

    memset(out_key, 0, sizeof(*out_key));
    memcpy(out_key->bytes, words, sizeof(words));
    out_key->length = 16;
}

void rig_put_key(uint8_t *keys, uint32_t i, uint32_t n)
{
    struct shm_key copy = {0};
    struct key key;

    rig_key(n, &key);
    memcpy(copy.bytes, key.bytes, sizeof(copy.bytes));
    copy.length = key.length;
    memcpy(keys + i * sizeof(copy), &copy, sizeof(copy));
}

const uint8_t *rig_digest(uint32_t n)
{
    static uint8_t digest[LIMIT_DIGEST_BYTES];

    for (uint32_t i = 0; i < sizeof(digest) / 8; i++) {
        uint64_t word = hash64_mix((uint64_t)n << 8 | i);

        memcpy(digest + 8 * (size_t)i, &word, sizeof(word));
    }
    return digest;
}

void rig_value(uint32_t n, uint32_t bytes, uint8_t *out)
{
    for (uint32_t i = 0; i < bytes; i++)
        out[i] = (uint8_t)(n * 31 + i * 7 + (i >> 9));
}

static uint32_t rig_key_reactor(const struct rig_client *client, uint32_t volume,
                                const struct key *key)
{
    return shm_reactor(key, volume_has_runs(&client->rig->volumes[volume]),
                       client->attached.reactor_count);
}

uint32_t rig_reactor(const struct rig_client *client, uint32_t volume, uint32_t n)
{
    struct key key;

    rig_key(n, &key);
    return rig_key_reactor(client, volume, &key);
}

const struct shm_arena *rig_shard(const struct rig_client *client, uint32_t volume, uint32_t n)
{
    return &client->shards[rig_reactor(client, volume, n)][volume];
}

void rig_publish(struct rig_client *client)
{
    for (uint32_t r = 0; r < client->attached.reactor_count; r++)
        if (shm_submit_publish(&client->rings[r]))
            loop_event_signal(client->attached.agent_events[r]);
}

uint64_t rig_submit(struct rig_client *client, struct shm_submit *entry)
{
    struct key key = {.length = entry->key_length};
    uint64_t tag = entry->tag = client->next_tag++;

    check(tag < RIG_ANSWERS);
    memcpy(key.bytes, entry->key, sizeof(key.bytes));
    if (entry->volume < RIG_VOLUMES)
        entry->identity = (uint8_t)client->arenas[entry->volume].identity;
    client->wanted[tag] = 1;
    if (entry->op == SHM_OP_FLUSH || entry->op == SHM_OP_EXISTS_MANY ||
        entry->op == SHM_OP_PRESTAGE) {
        client->wanted[tag] = client->attached.reactor_count;
        for (uint32_t r = 0; r < client->attached.reactor_count; r++)
            check(shm_submit_push(&client->rings[r], entry));
    } else {
        bool placed =
            entry->volume < RIG_VOLUMES && key.length >= 1 && key.length <= LIMIT_KEY_BYTES;

        client->reactor[tag] = placed ? rig_key_reactor(client, entry->volume, &key) : 0;
        check(shm_submit_push(&client->rings[client->reactor[tag]], entry));
    }
    rig_publish(client);
    return tag;
}

void rig_cancel(struct rig_client *client, uint64_t tag)
{
    struct shm_submit entry = {.op = SHM_OP_CANCEL, .tag = tag};

    check(shm_submit_push(&client->rings[client->reactor[tag]], &entry));
}

static void rig_entry(struct rig_client *client, struct shm_submit *entry, uint8_t op,
                      uint32_t volume, uint32_t n, uint64_t timeout_ns)
{
    struct key key;

    rig_key(n, &key);
    *entry = (struct shm_submit){
        .op = op,
        .volume = volume,
        .key_length = key.length,
        .deadline_ns = timeout_ns == 0 ? 0 : rig_now_ns(client->rig) + timeout_ns,
    };
    memcpy(entry->key, key.bytes, sizeof(entry->key));
}

uint64_t rig_get(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t lease,
                 uint64_t timeout_ns)
{
    struct shm_submit entry;

    rig_entry(client, &entry, SHM_OP_GET, volume, n, timeout_ns);
    entry.lease = lease;
    return rig_submit(client, &entry);
}

uint64_t rig_prestage(struct rig_client *client, uint32_t n, uint64_t timeout_ns)
{
    struct shm_submit entry;

    rig_entry(client, &entry, SHM_OP_GET, 0, n, timeout_ns);
    entry.flags = SHM_FLAG_PRESTAGE;
    entry.lease = SHM_SLOT_NONE;
    return rig_submit(client, &entry);
}

bool rig_hint(struct rig_client *client, uint32_t n, uint64_t need_ns, uint32_t hint, uint8_t flags)
{
    enum { AT = 3u << 20 }; /* in staging memory, behind what puts use */
    const struct shm_complete *answer;
    struct shm_submit entry;
    uint8_t *memory = client->ring.staging + AT;

    rig_entry(client, &entry, SHM_OP_PRESTAGE, 0, n, 2000 * RIG_MS);
    entry.key_length = 0;
    memset(entry.key, 0, sizeof(entry.key));
    entry.offset = AT;
    entry.bytes = 1;
    entry.lease = hint;
    entry.flags = flags;
    entry.aside = rig_now_ns(client->rig) + need_ns;
    rig_put_key(memory, 0, n);
    memory[sizeof(struct shm_key)] = 0xee;
    answer = rig_wait(client, rig_submit(client, &entry));
    check(answer != NULL && answer->status == ICMS_OK);
    return memory[sizeof(struct shm_key)] == ICMS_MISS_NONE;
}

const struct agent_prestage_stats *rig_hints(struct agent_rig *rig)
{
    return &rig_stats(rig)->volumes[0].prestage;
}

uint64_t rig_hints_left(struct agent_rig *rig)
{
    const struct agent_prestage_stats *stats = rig_hints(rig);
    uint64_t left = stats->queued + stats->loading + stats->waiting, ended = 0;

    for (int i = 0; i < AGENT_HINT_ENDS; i++)
        ended += stats->ended[i];
    check(stats->taken == ended + left);
    check(left != 0 || stats->kept_bytes == 0);
    return left;
}

uint64_t rig_put(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t bytes,
                 uint8_t flags, uint64_t timeout_ns)
{
    const struct volume_spec *spec = &client->rig->volumes[volume];
    struct shm_submit entry;
    struct key key;
    uint8_t *staging;

    rig_entry(client, &entry, SHM_OP_PUT, volume, n, timeout_ns);
    rig_key(n, &key);
    entry.flags = flags;
    entry.bytes = bytes;
    /* the stretches of staging are used in turn */
    entry.offset = client->next_tag % 32 * (RIG_VALUE_BYTES + 4096);
    staging = client->ring.staging + entry.offset;
    rig_value(n, bytes, staging);
    if (spec->sealed)
        sealed_trailer_make(&spec->uuid, &key, rig_digest(n), bytes, crc32c(staging, bytes),
                            staging + bytes);
    return rig_submit(client, &entry);
}

uint64_t rig_op(struct rig_client *client, uint8_t op, uint32_t volume, uint32_t n,
                uint64_t timeout_ns)
{
    struct shm_submit entry;

    rig_entry(client, &entry, op, volume, n, timeout_ns);
    return rig_submit(client, &entry);
}

/* An answer of one of the reactors that were asked. */
static void rig_answer(struct rig_client *client, const struct shm_complete *answer)
{
    uint64_t tag = answer->tag;

    if (answer->part != 0) { /* none after the answer */
        check(tag < RIG_ANSWERS && client->got[tag] == 0 && client->wanted[tag] > 0);
        client->parts[tag] = *answer;
        client->part_count[tag]++;
        return;
    }
    check(tag < RIG_ANSWERS && client->got[tag] == 0 && client->wanted[tag] > 0);
    if (client->answers[tag].tag == 0 || client->answers[tag].status == ICMS_OK)
        client->answers[tag] = *answer;
    if (--client->wanted[tag] > 0)
        return;
    client->got[tag]++;
    client->got_ns[tag] = rig_now_ns(client->rig);
}

void rig_take(struct rig_client *client)
{
    struct shm_complete answers[64];
    uint32_t count;

    for (uint32_t r = 0; r < client->attached.reactor_count; r++)
        do {
            check(shm_complete_take(&client->rings[r], answers, 64, &count) == ICMS_OK);
            for (uint32_t i = 0; i < count; i++)
                rig_answer(client, &answers[i]);
        } while (count > 0);
}

const struct shm_complete *rig_wait(struct rig_client *client, uint64_t tag)
{
    uint64_t end_ns = rig_now_ns(client->rig) + 60000 * RIG_MS;

    for (;;) {
        rig_take(client);
        if (client->got[tag] != 0)
            return &client->answers[tag];
        if (rig_now_ns(client->rig) > end_ns || !sim_step(client->rig->sim))
            return NULL;
    }
}

const uint8_t *rig_leased(struct rig_client *client, uint32_t volume,
                          const struct shm_complete *answer)
{
    const struct shm_arena *arena = &client->shards[client->reactor[answer->tag]][volume];

    check(answer->status == ICMS_OK && answer->slot < arena->slot_count);
    /* the next version when the key was written meanwhile: the leased bytes stay */
    check(atomic_load(&arena->slots[answer->slot].version) - answer->version <= 1);
    return shm_arena_value(arena, answer->slot, answer->value_bytes);
}

void rig_lease_give(struct rig_client *client, uint32_t lease)
{
    atomic_store(&client->ring.leases[lease], 0);
}

void rig_flash(struct agent_rig *rig, uint32_t enclosure, uint32_t volume, uint32_t n,
               uint32_t bytes)
{
    const struct volume_spec *spec = &rig->volumes[volume];
    uint8_t *data = malloc(bytes + LIMIT_TRAILER_BYTES);
    struct key key;

    check(data != NULL);
    rig_key(n, &key);
    rig_value(n, bytes, data);
    if (spec->encrypted)
        sealed_trailer_make_encrypted(&spec->uuid, &key, rig_digest(n), bytes, crc32c(data, bytes),
                                      data + bytes);
    else if (spec->sealed)
        sealed_trailer_make(&spec->uuid, &key, rig_digest(n), bytes, crc32c(data, bytes),
                            data + bytes);
    fake_target_put(rig->fake[enclosure], volume + 1, &key, data,
                    bytes + (spec->sealed ? LIMIT_TRAILER_BYTES : 0));
    free(data);
}

uint32_t rig_owner(struct agent_rig *rig, uint32_t volume, uint32_t n)
{
    const struct agent_view *view = rig->agent->pod.view;
    const struct uuid *uuid;
    struct key key;
    uint32_t owner;

    rig_key(n, &key);
    owner = place_owner(view->owners, &key, volume_has_runs(&rig->agent->volumes[volume].spec), 0);
    uuid = &rig->agent->pod.members[view->numbers[owner]].opts.uuid;
    for (owner = 0; !uuid_equal(&rig->enclosures[owner].uuid, uuid); owner++)
        check(owner + 1 < rig->enclosure_count);
    return owner;
}

bool rig_value_is(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t bytes,
                  const struct shm_complete *answer)
{
    uint8_t *value = malloc(bytes);
    bool is;

    check(value != NULL);
    rig_value(n, bytes, value);
    is = answer != NULL && answer->status == ICMS_OK && answer->value_bytes == bytes &&
         memcmp(rig_leased(client, volume, answer), value, bytes) == 0;
    free(value);
    return is;
}

bool rig_load(struct rig_client *client, uint32_t volume, uint32_t n, uint32_t bytes)
{
    const struct shm_complete *answer =
        rig_wait(client, rig_get(client, volume, n, 9, 1000 * RIG_MS));
    bool hit = answer->source == ICMS_SOURCE_DRAM;

    check(rig_value_is(client, volume, n, bytes, answer));
    rig_lease_give(client, 9);
    return hit;
}

const struct agent_stats *rig_stats(struct agent_rig *rig)
{
    static struct agent_stats stats;

    agent_stats(rig->agent, &stats);
    return &stats;
}
