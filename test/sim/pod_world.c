/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machines of the pod: boot, crash, orderly restart, and the limits that nobody may exceed.
 *
 * All of it is control: it runs between two events. pod_world_run gives the simulation a
 * millisecond, then looks after clients, restarts, deadlines and limits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "pod.h"
#include "store/store_verify.h"
#include "target/target_int.h"

#define WORLD_CONTROL_NS MS
#define WORLD_JUDGE_NS   (10 * MS)
#define WORLD_PORT       4420
#define WORLD_RETRY_NS   (20 * MS)

uint64_t pod_chance(struct pod_world *world, uint64_t n)
{
    return sim_random(world->sim) % n;
}

/* ---- volumes ------------------------------------------------------------------------------- */

/* The first byte of a volume's UUID has the generation. */
static uint8_t world_uuid_byte(uint32_t volume)
{
    return (uint8_t)(0x11 * (volume + 1));
}

uint32_t pod_world_generation(uint32_t volume, const struct uuid *uuid)
{
    return (uint8_t)(uuid->bytes[0] - world_uuid_byte(volume));
}

void pod_world_reset(struct pod_world *world, uint32_t volume)
{
    struct volume_spec *spec = &world->volumes[volume];

    spec->generation++;
    spec->uuid.bytes[0]++;
    world->resets++;
    pod_tell(world, "volume %u is reset: generation %u", volume, spec->generation);
    pod_world_epoch(world);
}

/* Queue pairs of a target: a few of each agent stay, after a crash, until they are missed. */
static uint32_t world_connections_max(const struct pod_world *world)
{
    return 88 + world->agent_count * 20;
}

/* ---- targets -------------------------------------------------------------------------------- */

static icms_err target_make(struct pod_target *target, struct err_why *why)
{
    struct target_drive_opts drives[POD_DRIVES_MAX];
    struct pod_world *world = target->world;
    const struct agent_enclosure_opts *self = &world->enclosures[target->number];
    struct target_opts opts;
    icms_err err;

    target_opts_init(&opts);
    opts.env = sim_node_env(target->node);
    opts.name = self->name;
    opts.nvmf.enclosure = self->uuid;
    opts.nvmf.nqn = self->nqn;
    (void)snprintf(opts.nvmf.portals[0].listen.host, sizeof(opts.nvmf.portals[0].listen.host),
                   "0.0.0.0");
    opts.nvmf.portals[0].listen.port = WORLD_PORT;
    opts.loops = 2;
    opts.segment_bytes = POD_SEGMENT_BYTES;
    opts.nvmf.memory_bytes =
        ((uint64_t)512 << 10) + world_connections_max(world) * ((uint64_t)12 << 10);
    opts.nvmf.connections_max = world_connections_max(world);
    opts.nvmf.queue_entries_max = 32;
    opts.nvmf.header_timeout_ms = 500;
    opts.drives = drives;
    opts.drive_count = pod_drives_list(target, drives);
    opts.volumes = world->volumes;
    opts.volume_count = POD_VOLUMES;
    target->format = target->changing = target->drives_changing = false;
    target->resets = world->resets;
    target->drives_told = target->drives;
    target->drains_told = target->drains;
    err = target_new(&opts, why, &target->target);
    if (err != ICMS_OK)
        return err;
    err = target_start(target->target, why);
    if (err != ICMS_OK)
        target_free(&target->target);
    return err;
}

/* Without faults every drive has to come into service, or it is beyond repair. */
static bool target_repair(struct pod_target *target)
{
    bool repaired = false;

    target_stats(target->target, target->stats);
    for (uint32_t i = 0; i < target->stats->drive_count; i++) {
        if (!target->stats->drives[i].out)
            continue;
        pod_tell(target->world, "target %u: %s", target->number, target->stats->drives[i].why);
        if (!repaired) {
            sim_node_crash(target->node, false, false);
            target_free(&target->target);
        }
        pod_drive_erase(target, target->stats->drives[i].path);
        repaired = true;
    }
    return repaired;
}

void pod_target_start(struct pod_target *target)
{
    struct pod_world *world = target->world;
    struct err_why why = {""};
    icms_err err = target_make(target, &why);

    if (err == ICMS_LIMIT) /* without locked memory it has to work as well */
        pod_fail(world, POD_FAULT_HEAL, "target %u does not start: %s", target->number, why.text);
    if (err != ICMS_OK) {
        pod_tell(world, "target %u does not start: %s", target->number, why.text);
        target->restart_ns = sim_now_ns(world->sim) + WORLD_RETRY_NS;
        for (uint32_t i = 0; i < POD_DRIVES_MAX; i++)
            if ((!world->faults && (target->drives >> i & 1) != 0) || target->copy == i + 1)
                pod_drive_erase(target, pod_drive_path(i));
        target->copy = 0;
        return;
    }
    if (!world->faults && target_repair(target))
        return; /* again, with the new drives */
    target->state = POD_MACHINE_UP;
    pod_tell(world, "target %u starts", target->number);
}

static void target_down(struct pod_target *target, uint64_t pause_ns)
{
    struct pod_world *world = target->world;

    target_free(&target->target);
    sim_memory_short(target->node, 0);
    target->state = POD_MACHINE_DOWN;
    target->paused = false;
    target->restart_ns = sim_now_ns(world->sim) + pause_ns;
}

void pod_target_crash(struct pod_target *target, bool power, bool silent)
{
    if (target->state == POD_MACHINE_DOWN)
        return;
    pod_tell(target->world, "target %u crashes%s%s", target->number, power ? ", power loss" : "",
             silent ? ", silent" : "");
    target->world->power_lost = target->world->power_lost || power;
    sim_node_crash(target->node, power, silent);
    target_down(target, MS + pod_chance(target->world, 100 * MS));
}

void pod_target_leave(struct pod_target *target)
{
    if (target->state != POD_MACHINE_UP)
        return;
    pod_tell(target->world, "target %u drains", target->number);
    target->state = POD_MACHINE_LEAVING;
    target->restart_ns = sim_now_ns(target->world->sim) + 300 * MS; /* then it has to go */
    target_drain(target->target);
}

void pod_target_pause(struct pod_target *target, bool paused)
{
    target->paused = paused;
    sim_node_pause(target->node, paused);
}

/* The target is told of resets, as by SIGHUP. */
static void target_resets_take(struct pod_target *target)
{
    struct pod_world *world = target->world;
    struct target_refused refused;
    struct err_why why = {""};
    struct target_opts opts;
    icms_err err = ICMS_OK;

    if (target->state != POD_MACHINE_UP)
        return;
    if (target->changing) {
        if (!target_volumes_changed(target->target, &err, &refused, &why))
            return;
        target->changing = false;
        if (err == ICMS_OK)
            target->resets = target->resets_next;
    } else if (target->resets != world->resets && !target->drives_changing &&
               pod_chance(world, 16) == 0) {
        target_opts_init(&opts);
        opts.volumes = world->volumes;
        opts.volume_count = POD_VOLUMES;
        sim_node_as(target->node);
        err = target_volumes_change(target->target, &opts, &refused, &why);
        sim_node_as(NULL);
        target->changing = err == ICMS_OK;
        target->resets_next = world->resets;
    }
    if (err != ICMS_OK && err != ICMS_NO_MEMORY)
        pod_fail(world, POD_FAULT_HEAL, "target %u does not reset: %s", target->number, why.text);
}

static void target_drive(struct pod_target *target)
{
    uint64_t now = sim_now_ns(target->world->sim);

    target_resets_take(target);
    pod_drives_drive(target);
    if (target->state == POD_MACHINE_DOWN && now >= target->restart_ns) {
        pod_target_start(target);
    } else if (target->state == POD_MACHINE_LEAVING &&
               (nvmf_target_idle(target_nvmf(target->target)) || now >= target->restart_ns)) {
        target_stop(target->target);
        target_down(target, MS);
    }
}

/* ---- agents --------------------------------------------------------------------------------- */

/* The pod as an agent is told of it. */
static uint32_t world_members(const struct pod_world *world,
                              struct agent_enclosure_opts out_members[POD_TARGETS_MAX])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < world->target_count; i++)
        if (!world->out[i])
            out_members[count++] = world->enclosures[i];
    return count;
}

void pod_world_epoch(struct pod_world *world)
{
    static const char *const states[] = {"up", "joining", "draining"};

    world->epoch++;
    for (uint32_t i = 0; i < world->target_count; i++)
        pod_tell(world, "epoch %llu: target %u is %s", (unsigned long long)world->epoch, i,
                 world->out[i] ? "out" : states[world->enclosures[i].state]);
}

static icms_err agent_make(struct pod_agent *agent, struct err_why *why)
{
    struct pod_world *world = agent->world;
    struct agent_enclosure_opts members[POD_TARGETS_MAX];
    struct agent_opts opts;
    icms_err err;

    agent_opts_init(&opts);
    (void)snprintf(opts.name, sizeof(opts.name), "agent-%u", agent->number);
    (void)snprintf(opts.host_nqn, sizeof(opts.host_nqn), "nqn.2026-01.org.icms:host-%u",
                   agent->number);
    opts.host_id.bytes[15] = (uint8_t)(agent->number + 1);
    opts.loops = world->reactors;
    if (world->weather.own_drives) {
        opts.local_path = POD_OWN;
        opts.local_bytes = POD_DRIVE_BYTES;
        opts.local_segment_bytes = POD_SEGMENT_BYTES;
        opts.local_share = world->weather.own_share;
    }
    opts.queue_entries = world->options.flood ? 32 : 16;
    opts.connect_timeout_ms = 200;
    opts.keep_alive_ms = 400;
    opts.silence_ms = 60;
    opts.probe_ms = 80;
    opts.store_backlog_bytes = POD_BACKLOG_BYTES;
    for (uint32_t i = 0; i < POD_VOLUMES && agent->number % 2 == 1; i++) /* they share memory */
        opts.memory_bytes += world->volumes[i].memory_bytes_max * 3 / 4;
    opts.store_deadline_ms = 300;
    opts.header_digest = world->weather.wire_flips || agent->number % 2 == 1;
    opts.data_digest = world->weather.wire_flips || agent->number % 2 == 1;
    opts.exist_many = agent->number % 2 == 0; /* the other one asks key by key */
    opts.enclosures = members;
    opts.enclosure_count = world_members(world, members);
    opts.epoch = world->epoch;
    opts.volumes = world->volumes;
    opts.volume_count = POD_VOLUMES;
    err = agent_new(sim_node_env(agent->node), &opts, why, &agent->agent);
    if (err != ICMS_OK)
        return err;
    err = agent_start(agent->agent, why);
    if (err != ICMS_OK)
        agent_free(&agent->agent);
    return err;
}

void pod_agent_start(struct pod_agent *agent)
{
    struct err_why why = {""};

    if (agent_make(agent, &why) != ICMS_OK)
        pod_fail(agent->world, POD_FAULT_HEAL, "agent %u does not start: %s", agent->number,
                 why.text);
    agent->state = POD_MACHINE_UP;
    agent->resumed_ns = sim_now_ns(agent->world->sim);
    pod_tell(agent->world, "agent %u starts", agent->number);
}

static void agent_down(struct pod_agent *agent)
{
    pod_client_agent_free(agent);
    sim_memory_short(agent->node, 0);
    agent->state = POD_MACHINE_DOWN;
}

void pod_agent_crash(struct pod_agent *agent, bool silent)
{
    struct pod_world *world = agent->world;

    if (agent->state == POD_MACHINE_DOWN || agent->state == POD_MACHINE_DEAD)
        return;
    pod_tell(world, "agent %u crashes%s", agent->number, silent ? ", silent" : "");
    sim_node_crash(agent->node, false, silent);
    agent->state = POD_MACHINE_DEAD;
    agent->paused = false;
    agent->restart_ns = sim_now_ns(world->sim) + MS + pod_chance(world, 50 * MS);
}

/* Its clients leave first (pod_client_drive sees the state). */
void pod_agent_leave(struct pod_agent *agent)
{
    if (agent->state != POD_MACHINE_UP)
        return;
    pod_tell(agent->world, "agent %u stops", agent->number);
    agent->state = POD_MACHINE_LEAVING;
}

void pod_agent_pause(struct pod_agent *agent, bool paused)
{
    if (agent->state == POD_MACHINE_DOWN || agent->state == POD_MACHINE_DEAD ||
        agent->paused == paused)
        return;
    pod_tell(agent->world, "agent %u %s", agent->number, paused ? "stands still" : "goes on");
    agent->paused = paused;
    agent->resumed_ns = sim_now_ns(agent->world->sim);
    sim_node_pause(agent->node, paused);
}

/* Some milliseconds after there is another epoch, so that agents differ for a while. */
static void agent_epoch_take(struct pod_agent *agent)
{
    struct pod_world *world = agent->world;
    struct agent_enclosure_opts members[POD_TARGETS_MAX];
    struct agent_identity volumes[POD_VOLUMES];
    uint32_t count = world_members(world, members);
    struct err_why why = {""};
    icms_err err;

    if (agent->state != POD_MACHINE_UP || agent_epoch(agent->agent) == world->epoch ||
        pod_chance(world, 16) != 0)
        return;
    for (uint32_t i = 0; i < POD_VOLUMES; i++)
        volumes[i] = (struct agent_identity){world->volumes[i].uuid, world->volumes[i].generation};
    sim_node_as(agent->node);
    err = agent_pod_apply_start(agent->agent, world->epoch, members, count, volumes, &why, NULL,
                                NULL);
    sim_node_as(NULL);
    if (err != ICMS_OK && err != ICMS_BUSY && err != ICMS_NO_MEMORY)
        pod_fail(world, POD_FAULT_HEAL, "agent %u does not take epoch %llu: %s", agent->number,
                 (unsigned long long)world->epoch, why.text);
}

static void agent_drive(struct pod_agent *agent)
{
    struct pod_world *world = agent->world;

    agent_epoch_take(agent);
    if (agent->state == POD_MACHINE_DOWN && sim_now_ns(world->sim) >= agent->restart_ns)
        pod_agent_start(agent);
    if (agent->state != POD_MACHINE_LEAVING && agent->state != POD_MACHINE_DEAD)
        return;
    for (uint32_t i = 0; i < POD_CLIENTS; i++)
        if (world->clients[agent->number * POD_CLIENTS + i].state != POD_CLIENT_OUT)
            return;
    if (agent->state == POD_MACHINE_LEAVING)
        agent_stop(agent->agent);
    agent_down(agent);
}

/* ---- limits --------------------------------------------------------------------------------- */

static void limit(struct pod_world *world, const char *what, uint64_t is, uint64_t most)
{
    if (is > most)
        pod_fail(world, POD_FAULT_LIMIT, "%s: %llu, at most %llu", what, (unsigned long long)is,
                 (unsigned long long)most);
}

static void judge_target(struct pod_target *target)
{
    struct pod_world *world = target->world;
    struct target_stats *stats = target->stats;
    bool is_down = false;

    if (target->target == NULL)
        return;
    target_stats(target->target, stats);
    limit(world, "queue pairs of a target", stats->nvmf.connections, world_connections_max(world));
    limit(world, "buffers of a target", stats->nvmf.buffers_used_bytes, stats->nvmf.buffers_bytes);
    limit(world, "flash of a target", stats->used_bytes, stats->capacity_bytes);
    for (uint32_t i = 0; i < stats->drive_count; i++) {
        const struct store_stats *store = &stats->drives[i].store;

        limit(world, "flash of a drive", store->used_bytes, store->capacity_bytes);
        limit(world, "free segments of a drive", store->segments_free + store->segments_open,
              store->segments);
        limit(world, "index entries of a drive", store->blocks, store->blocks_max);
        is_down = is_down || store->down || stats->drives[i].out;
    }
    limit(world, "volumes of a target", stats->volume_count, POD_VOLUMES);
    for (uint32_t i = 0; i < stats->volume_count; i++) {
        const struct store_volume_stats *volume = &stats->volumes[i].store;
        uint64_t most = stats->volumes[i].name[0] == 'q' ? POD_QUOTA_BYTES : 0;

        if (volume->quota_bytes > 0 && !is_down) /* what such a drive holds does not count */
            limit(world, "flash of a volume", volume->bytes, volume->quota_bytes);
        if (most > 0)
            limit(world, "quota of a volume", volume->quota_bytes, most);
    }
}

/* Pins have their part of the memory that a volume has, and a user half of what is left of what it
 * had, but for the last block that fitted: a reactor at a time. Of the drive the same, and half for
 * all volumes. */
static void judge_pins(struct pod_agent *agent, uint32_t number)
{
    struct pod_world *world = agent->world;
    const struct volume_spec *spec = &world->volumes[number];
    const struct agent_stats *stats = agent->stats;
    const struct agent_prestage_stats *hints = &stats->volumes[number].prestage;
    double part = spec->pin_percent_max / 100;
    uint64_t block = volume_stored_bytes_max(spec) + 2 * (uint64_t)LIMIT_DISK_ALIGN;
    uint64_t memory = (uint64_t)((double)spec->memory_bytes_max * part);
    uint64_t drive = (uint64_t)((double)stats->tier.bytes_max * part);
    struct agent_user_stats user;

    limit(world, "pinned bytes of a volume", hints->pinned_bytes,
          (uint64_t)((double)stats->volumes[number].arena_bytes * part));
    limit(world, "pinned bytes of a drive", hints->pinned_drive_bytes, drive);
    for (uint32_t i = 0; hints->pins > 0 && i < AGENT_USERS; i++)
        if (agent_user_stats(agent->agent, i, number, &user)) {
            limit(world, "pinned bytes of a user", user.pinned_bytes,
                  memory / 2 + world->reactors * block);
            limit(world, "pinned bytes of a user's on the drive", user.pinned_drive_bytes,
                  drive / 2 + block);
        }
}

/* Every hint that was taken waits for something, or has ended once. */
static void judge_hints(struct pod_world *world, const struct agent_volume_stats *volume)
{
    const struct agent_prestage_stats *hints = &volume->prestage;
    uint64_t ended = hints->queued + hints->loading + hints->waiting;

    for (int i = 0; i < AGENT_HINT_ENDS; i++)
        ended += hints->ended[i];
    limit(world, "hints that were taken", hints->taken, ended);
    limit(world, "hints that ended", ended, hints->taken);
    limit(world, "bytes kept for hints", hints->kept_bytes, volume->arena_bytes);
}

static void judge_agent(struct pod_agent *agent)
{
    struct pod_world *world = agent->world;
    struct agent_stats *stats = agent->stats;

    if (agent->agent == NULL || agent->state == POD_MACHINE_DEAD)
        return;
    agent_stats(agent->agent, stats);
    limit(world, "clients of an agent", stats->clients, POD_CLIENTS);
    limit(world, "stores under way of an agent", stats->backlog_bytes, POD_BACKLOG_BYTES);
    limit(world, "clients dropped by an agent", stats->clients_dropped, 0);
    for (uint32_t i = 0; i < world->target_count; i++)
        limit(world, "settings in which agents differ",
              stats->enclosures[i].enclosures_differ + stats->enclosures[i].weights_differ +
                  stats->enclosures[i].run_blocks_differ,
              0);
    for (uint32_t i = 0; i < world->target_count; i++)
        world->was_lowered |= stats->enclosures[i].share_percent < 100;
    for (uint32_t i = 0; i < POD_VOLUMES; i++) {
        const struct agent_volume_stats *volume = &stats->volumes[i];

        limit(world, "slots of an arena", volume->slots_used, volume->slots);
        limit(world, "leases in an arena", volume->slots_leased, POD_CLIENTS * pod_client_leases);
        limit(world, "bytes of an arena", volume->arena_used_bytes, volume->arena_bytes);
        judge_hints(world, volume);
        judge_pins(agent, i);
    }
}

static void world_judge(struct pod_world *world)
{
    for (uint32_t i = 0; i < world->client_count; i++)
        pod_client_judge(&world->clients[i]);
    if (sim_now_ns(world->sim) < world->judge_ns)
        return;
    world->judge_ns = sim_now_ns(world->sim) + WORLD_JUDGE_NS;
    for (uint32_t i = 0; i < world->target_count; i++)
        judge_target(&world->targets[i]);
    for (uint32_t i = 0; i < world->agent_count; i++)
        judge_agent(&world->agents[i]);
}

/* ---- time ----------------------------------------------------------------------------------- */

static void world_control(struct pod_world *world)
{
    for (uint32_t i = 0; i < world->target_count; i++)
        target_drive(&world->targets[i]);
    for (uint32_t i = 0; i < world->agent_count; i++)
        agent_drive(&world->agents[i]);
    for (uint32_t i = 0; i < world->client_count; i++)
        pod_client_drive(&world->clients[i]);
    world_judge(world);
}

void pod_world_run(struct pod_world *world, uint64_t until_ns)
{
    while (sim_now_ns(world->sim) < until_ns) {
        uint64_t next_ns = sim_now_ns(world->sim) + WORLD_CONTROL_NS;

        pod_client_run(world, u64_min(next_ns, until_ns));
        world_control(world);
    }
}

uint64_t pod_world_blocks(struct pod_world *world)
{
    uint64_t blocks = 0;

    for (uint32_t i = 0; i < world->target_count; i++) {
        target_stats(world->targets[i].target, world->targets[i].stats);
        for (uint32_t d = 0; d < world->targets[i].stats->drive_count; d++)
            blocks += world->targets[i].stats->drives[d].store.blocks;
    }
    return blocks;
}

uint64_t pod_world_evictions(struct pod_world *world)
{
    uint64_t evictions = world->evictions_gone;

    for (uint32_t i = 0; i < world->target_count; i++) {
        target_stats(world->targets[i].target, world->targets[i].stats);
        for (uint32_t d = 0; d < world->targets[i].stats->drive_count; d++)
            evictions += world->targets[i].stats->drives[d].store.evictions;
    }
    return evictions;
}

/* ---- the beginning and the end -------------------------------------------------------------- */

static void world_volume(struct pod_world *world, uint32_t number, const char *name,
                         uint64_t value_bytes_max, uint64_t arena_slots, uint64_t quota_bytes,
                         bool sealed)
{
    struct volume_spec *volume = &world->volumes[number];

    *volume = (struct volume_spec){
        .quota_bytes = quota_bytes,
        .value_bytes_max = value_bytes_max,
        .run_blocks = 8,
        .sealed = sealed,
    };
    for (int i = 0; i < 16; i++)
        volume->uuid.bytes[i] = (uint8_t)(world_uuid_byte(number) + i);
    (void)snprintf(volume->name, sizeof(volume->name), "%s", name);
    volume->pin_percent_max = number == 1 ? 0 : POD_PIN_PERCENT;
    volume->memory_bytes_max =
        arena_slots * bytes_align(volume_stored_bytes_max(volume), LIMIT_DISK_ALIGN);
}

static void world_volumes(struct pod_world *world)
{
    world_volume(world, 0, "sealed", 20 << 10, 14, 0, true);
    world_volume(world, 1, "quota", 7 << 10, 12, POD_QUOTA_BYTES, true);
    world_volume(world, 2, "raw", 16 << 10, 12, 0, false);
    world->volumes[2].host_count = world->agent_count;
    world->volumes[2].host_nqn = world->hosts;
    for (uint32_t i = 0; i < world->agent_count; i++)
        (void)snprintf(world->volumes[2].host_nqn[i], LIMIT_NQN_BYTES,
                       "nqn.2026-01.org.icms:host-%u", i);
}

static void world_target_init(struct pod_world *world, uint32_t number)
{
    struct pod_target *target = &world->targets[number];
    struct agent_enclosure_opts *self = &world->enclosures[number];
    char host[48];

    (void)snprintf(host, sizeof(host), "10.1.0.%u", number + 1);
    (void)snprintf(self->name, sizeof(self->name), "enclosure-%u", number);
    (void)snprintf(self->nqn, sizeof(self->nqn), "nqn.2026-01.org.icms:enclosure-%u", number);
    self->addr_count = POD_LINKS;
    self->weight = 1;
    if (number == 0 && world->weather.fair && world->weather.on[POD_TROUBLE_EPOCH])
        self->state = AGENT_POD_JOINING; /* storm_epoch has the reason */
    for (int i = 0; i < 16; i++)
        self->uuid.bytes[i] = (uint8_t)(number * 16 + i + 1);
    target->world = world;
    target->number = number;
    target->node = sim_node_new(world->sim, host);
    target->drives = ((uint32_t)1 << POD_DRIVES) - 1;
    for (uint32_t i = 0; i < POD_LINKS; i++) {
        (void)snprintf(host, sizeof(host), "10.1.%u.%u", i + 1, number + 1);
        target->links[i] = sim_node_address(target->node, host);
        (void)snprintf(self->addrs[i].host, sizeof(self->addrs[i].host), "%s", host);
        self->addrs[i].port = WORLD_PORT;
    }
    target->stats = calloc(1, sizeof(*target->stats));
    check(target->stats != NULL);
    pod_target_start(target);
    if (target->state != POD_MACHINE_UP)
        pod_fail(world, POD_FAULT_HEAL, "target %u does not start at all", number);
}

static void world_agent_init(struct pod_world *world, uint32_t number)
{
    struct pod_agent *agent = &world->agents[number];
    char host[48];

    (void)snprintf(host, sizeof(host), "10.2.0.%u", number + 1);
    agent->world = world;
    agent->number = number;
    agent->node = sim_node_new(world->sim, host);
    agent->stats = calloc(1, sizeof(*agent->stats));
    check(agent->stats != NULL);
    pod_agent_start(agent);
}

struct pod_world *pod_world_new(const struct pod_options *options)
{
    struct pod_world *world = calloc(1, sizeof(*world));
    struct sim_opts opts;

    check(world != NULL);
    world->options = *options;
    world->target_count = options->large ? POD_TARGETS_MAX : POD_TARGETS;
    world->agent_count = options->large ? POD_AGENTS_MAX : POD_AGENTS;
    world->client_count = world->agent_count * POD_CLIENTS;
    sim_opts_init(&opts, options->seed);
    opts.verbose = options->verbose;
    pod_weather_init(world, &opts);
    world->epoch = 1;
    pod_evict_init(world);
    world->sim = sim_new(&opts);
    sim_faults(world->sim, false);
    world_volumes(world);
    pod_model_init(world);
    for (uint32_t i = 0; i < world->target_count; i++) {
        world->targets[i].state = POD_MACHINE_DOWN;
        world_target_init(world, i);
    }
    for (uint32_t i = 0; i < world->agent_count; i++)
        world_agent_init(world, i);
    for (uint32_t i = 0; i < world->client_count; i++)
        pod_client_init(&world->clients[i], world, i);
    return world;
}

/* What drives hold that never lied, and never lost power with writes that nobody flushed, is what
 * their index says. */
static void world_target_verify(struct pod_target *target)
{
    struct err_why why = {""};

    if (target->world->weather.disk_faults || target->world->power_lost ||
        target->world->options.brief) /* a drive that died, and was not restarted, missed deletes */
        return;
    for (uint32_t i = 0; i < LIMIT_DRIVES; i++) {
        uint64_t wrong = target->target->drives[i].store == NULL
                             ? 0
                             : store_verify(target->target->drives[i].store, &why);

        if (wrong != 0)
            pod_fail(target->world, POD_FAULT_FORGOT,
                     "target %u drive %u: %llu differences between flash and index: %s",
                     target->number, i, (unsigned long long)wrong, why.text);
    }
}

void pod_world_free(struct pod_world **world_ref)
{
    struct pod_world *world = *world_ref;

    *world_ref = NULL;
    for (uint32_t i = 0; i < world->client_count; i++)
        pod_client_fini(&world->clients[i]);
    for (uint32_t i = 0; i < world->agent_count; i++) {
        if (world->agents[i].agent != NULL && world->agents[i].state != POD_MACHINE_DEAD)
            agent_stop(world->agents[i].agent);
        agent_free(&world->agents[i].agent);
        free(world->agents[i].stats);
    }
    for (uint32_t i = 0; i < world->target_count; i++) {
        target_stop(world->targets[i].target);
        world_target_verify(&world->targets[i]);
        target_free(&world->targets[i].target);
        free(world->targets[i].stats);
    }
    sim_free(&world->sim);
    free(world);
}
