/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong, and when. Every seed has a weather of its own: some kinds of trouble and not
 * others, dense or rare, so that each kind is also met without the ones that would hide what it
 * does.
 *
 * Control, but for pod_weather_init, which runs before there is a simulation.
 */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/fault.h"
#include "pod.h"

/* Each takes a number of a target's. */
#define STORM_RESETS_MAX 40

/* Of packets that are lost, of a million; and how far a clock is set. */
#define STORM_LOSS_PPM 10000
#define STORM_CLOCK_NS ((int64_t)3600 * 1000 * MS)

/* ---- the weather ---------------------------------------------------------------------------- */

/* One of count values, by the seed and a name of the question. */
static uint64_t weather_draw(const struct pod_world *world, uint64_t question, uint64_t count)
{
    return hash64_mix(hash64_mix(world->options.seed) ^ question) % count;
}

void pod_weather_init(struct pod_world *world, struct sim_opts *opts)
{
    static const uint32_t reset[] = {0, 0, 200, 3000};
    static const uint32_t spike[] = {0, 500, 3000, 20000};
    static const uint64_t tick[] = {8 * MS, 20 * MS, 60 * MS, 150 * MS};
    static const uint64_t pace[] = {MS / 2, MS, 2 * MS, 4 * MS};
    static const uint64_t point[] = {2, 4, 16, 128};
    static const uint64_t stall[] = {0, 500, 5000, 50000};
    struct pod_weather *weather = &world->weather;

    weather->fair = world->options.flood || weather_draw(world, 16, 12) == 0;
    for (uint32_t i = 0; i < POD_TROUBLE_KINDS; i++)
        weather->on[i] = !weather->fair && weather_draw(world, 100 + i, 2) == 0;
    weather->power = weather_draw(world, 1, 2) == 0;
    weather->silent = weather_draw(world, 2, 2) == 0;
    weather->disk_faults = !weather->fair && weather_draw(world, 3, 2) == 0;
    weather->memory_flips = pod_clients_verify && world->options.brief && !weather->fair &&
                            weather_draw(world, 26, 2) == 0;
    weather->tick_ns = tick[weather_draw(world, 4, 4)];
    weather->pace_ns = pace[weather_draw(world, 5, 4)];
    weather->point_period = point[weather_draw(world, 17, 4)];
    weather->stall_period = weather->fair ? 0 : stall[weather_draw(world, 18, 4)];
    weather->point_site = (uint32_t)weather_draw(world, 19, 16);
    if (world->options.large) /* more machines, each with its trouble */
        weather->tick_ns /= 3;
    weather->storm_ns = 400 * MS + weather_draw(world, 6, 2000) * MS;
    weather->on[POD_TROUBLE_EPOCH] = weather_draw(world, 20, 2) == 0;
    weather->on[POD_TROUBLE_LINK] = !world->options.flood && weather_draw(world, 21, 2) == 0;
    weather->on[POD_TROUBLE_DRIVES] = !world->options.flood && weather_draw(world, 22, 3) == 0;
    if (world->options.brief)
        weather->storm_ns /= 5;
    weather->own_drives = !world->options.flood && world->options.canary == POD_CANARY_NONE &&
                          weather_draw(world, 24, 3) == 0;
    /* accounts are of the pod, and in fair weather all agents find all: not what is not there */
    weather->own_share =
        world->options.brief && !weather->fair && weather_draw(world, 25, 2) == 0 ? 0.4 : 0;
    world->reactors = weather->own_drives ? 1 : POD_REACTORS;
    opts->net_buffer_bytes = weather_draw(world, 9, 2) == 0 ? 16 << 10 : 128 << 10;
    if (world->options.flood)
        opts->disk_bytes_per_s = (uint64_t)32 << 20; /* few clients fill such a drive */
    if (weather->fair)
        return;
    weather->wire_flips = weather_draw(world, 27, 3) == 0;
    opts->net_flip_ppm = weather->wire_flips ? 300 : 0;
    opts->conn_reset_ppm = reset[weather_draw(world, 7, 4)];
    opts->delay_spike_ppm = spike[weather_draw(world, 8, 4)];
    opts->net_backlog = weather_draw(world, 10, 2) == 0 ? 8 : 64;
    if (weather->disk_faults) {
        opts->disk_read_error_ppm = weather_draw(world, 11, 2) == 0 ? 0 : 3000;
        opts->disk_write_error_ppm = weather_draw(world, 12, 2) == 0 ? 0 : 2000;
        opts->disk_write_lost_ppm = weather_draw(world, 13, 2) == 0 ? 0 : 5000;
        opts->disk_write_torn_ppm = weather_draw(world, 14, 2) == 0 ? 0 : 5000;
        opts->disk_corrupt_ppm = weather_draw(world, 15, 2) == 0 ? 0 : 10000;
    }
}

static const char *const trouble_names[POD_TROUBLE_KINDS] = {
    [POD_TROUBLE_CRASH_TARGET] = "targets crash",
    [POD_TROUBLE_CRASH_AGENT] = "agents crash",
    [POD_TROUBLE_LEAVE_TARGET] = "targets restart",
    [POD_TROUBLE_LEAVE_AGENT] = "agents restart",
    [POD_TROUBLE_KILL_CLIENT] = "clients are killed",
    [POD_TROUBLE_PAUSE_TARGET] = "targets stand still",
    [POD_TROUBLE_PAUSE_AGENT] = "agents stand still",
    [POD_TROUBLE_CUT] = "the network is cut",
    [POD_TROUBLE_SLOW] = "drives are slow",
    [POD_TROUBLE_DEAD] = "drives die",
    [POD_TROUBLE_FAR] = "the network is slow",
    [POD_TROUBLE_EPOCH] = "targets join, drain and leave",
    [POD_TROUBLE_LINK] = "links fail",
    [POD_TROUBLE_RESET] = "volumes are reset",
    [POD_TROUBLE_DRIVES] = "drives come, drain and go",
    [POD_TROUBLE_FULL] = "drives have no space",
    [POD_TROUBLE_RACK] = "many targets fail at once",
    [POD_TROUBLE_SWAP] = "drives are swapped and copied",
    [POD_TROUBLE_FILES] = "no descriptors",
    [POD_TROUBLE_LOSS] = "packets are lost",
    [POD_TROUBLE_SMALL] = "large packets are lost",
    [POD_TROUBLE_MEMORY] = "no memory",
    [POD_TROUBLE_LOCKED] = "no locked memory",
    [POD_TROUBLE_CLOCK] = "clocks jump",
};

const char *pod_trouble_name(enum pod_trouble_kind kind)
{
    return trouble_names[kind];
}

/* A machine with drives that fail: a target, or from POD_TARGETS_MAX on an agent. */
static uint32_t storm_drives(struct pod_world *world, uint32_t target, uint32_t agent)
{
    return world->weather.own_drives && pod_chance(world, 2) == 0 ? POD_TARGETS_MAX + agent
                                                                  : target;
}

static struct sim_node *drives_node(struct pod_world *world, uint32_t place)
{
    return place < POD_TARGETS_MAX ? world->targets[place].node
                                   : world->agents[place - POD_TARGETS_MAX].node;
}

/* ---- troubles that end by themselves -------------------------------------------------------- */

static struct sim_node *trouble_node(struct pod_world *world, uint32_t place)
{
    return place < world->agent_count ? world->agents[place].node
                                      : world->targets[place - world->agent_count].node;
}

static void trouble_cut(struct pod_world *world, const struct pod_trouble *trouble, bool on)
{
    static const char *const ways[] = {"both ways", "one way", "the other way"};
    struct sim_node *a = trouble_node(world, trouble->a);
    struct sim_node *b = trouble->b == POD_TARGETS_MAX ? NULL : world->targets[trouble->b].node;

    pod_tell(world, "%s between machine %u and %u, %s", on ? "a cut" : "no cut any more",
             trouble->a, trouble->b, ways[trouble->way]);
    if (trouble->way == 0)
        sim_net_cut(world->sim, a, b, on);
    else
        sim_net_cut_way(world->sim, trouble->way == 1 ? a : b, trouble->way == 1 ? b : a, on);
}

/* Agents and targets, for troubles of either. */
static bool trouble_is_up(const struct pod_world *world, uint32_t place)
{
    return (place < world->agent_count
                ? world->agents[place].state
                : world->targets[place - world->agent_count].state) == POD_MACHINE_UP;
}

/* As with RLIMIT_AS: connections are made anew without memory. A program that starts again has
 * memory. */
static void trouble_memory(struct pod_world *world, uint32_t place, bool on)
{
    static const uint32_t fails[] = {1, 2, 4, 16};
    struct sim_node *node = trouble_node(world, place);
    uint32_t one_of = on ? fails[pod_chance(world, 4)] : 0;

    if (on && !trouble_is_up(world, place))
        return;
    if (on)
        pod_tell(world, "machine %u has no memory: one of %u allocations fails", place, one_of);
    else
        pod_tell(world, "machine %u has memory again", place);
    sim_memory_short(node, one_of);
    if (on)
        sim_net_reset(node);
}

/* Memory is locked at the start, so the program is killed and starts again with that limit. */
static void trouble_locked(struct pod_world *world, uint32_t place, bool on)
{
    pod_tell(world, "machine %u may lock %s", place, on ? "no memory" : "memory again");
    sim_locked_none(trouble_node(world, place), on);
    if (on && place < world->agent_count)
        pod_agent_crash(&world->agents[place], false);
    else if (on)
        pod_target_crash(&world->targets[place - world->agent_count], false, false);
}

static void trouble_clock(struct pod_world *world, const struct pod_trouble *trouble, bool on)
{
    static const char *const whose[] = {"all machines", "all targets", "an agent"};
    int64_t ahead_ns = on ? STORM_CLOCK_NS : 0;

    pod_tell(world, "clocks of %s (%u) are %s", whose[trouble->way], trouble->a,
             on ? "an hour ahead" : "right again");
    for (uint32_t i = 0; i < world->target_count && trouble->way != 2; i++)
        sim_wall_set(world->targets[i].node, ahead_ns);
    for (uint32_t i = 0; i < world->agent_count; i++)
        if (trouble->way == 0 || (trouble->way == 2 && trouble->a == i))
            sim_wall_set(world->agents[i].node, ahead_ns);
}

static void trouble_set(struct pod_world *world, const struct pod_trouble *trouble, bool on)
{
    switch (trouble->kind) {
    case POD_TROUBLE_PAUSE_TARGET:
        pod_tell(world, "target %u %s", trouble->a, on ? "stands still" : "goes on");
        pod_target_pause(&world->targets[trouble->a], on);
        break;
    case POD_TROUBLE_PAUSE_AGENT:
        pod_agent_pause(&world->agents[trouble->a], on);
        break;
    case POD_TROUBLE_CUT:
        trouble_cut(world, trouble, on);
        break;
    case POD_TROUBLE_LOSS:
        pod_tell(world, "machine %u %s packets", trouble->a, on ? "loses" : "does not lose");
        sim_net_lossy(trouble_node(world, trouble->a), on ? STORM_LOSS_PPM : 0);
        break;
    case POD_TROUBLE_SMALL:
        pod_tell(world, "large packets of machine %u %s", trouble->a, on ? "vanish" : "arrive");
        sim_net_small(trouble_node(world, trouble->a), on);
        break;
    case POD_TROUBLE_MEMORY:
        trouble_memory(world, trouble->a, on);
        break;
    case POD_TROUBLE_LOCKED:
        trouble_locked(world, trouble->a, on);
        break;
    case POD_TROUBLE_CLOCK:
        trouble_clock(world, trouble, on);
        break;
    case POD_TROUBLE_FILES:
        pod_tell(world, "targets have %s", on ? "no descriptors" : "descriptors again");
        world->no_descriptors = on;
        break;
    case POD_TROUBLE_FULL:
        pod_tell(world, "target %u: drive %u has %s", trouble->a, trouble->b,
                 on ? "no space" : "space again");
        sim_disk_full(world->targets[trouble->a].node, pod_drive_path(trouble->b), on);
        break;
    case POD_TROUBLE_SLOW:
        pod_tell(world, "machine %u: %s drives", trouble->a, on ? "slow" : "normal");
        sim_disk_slow(drives_node(world, trouble->a), !on ? 1
                                                      : trouble->a < POD_TARGETS_MAX
                                                          ? 2 + (uint32_t)pod_chance(world, 60)
                                                          : 2 + (uint32_t)pod_chance(world, 2000));
        break;
    case POD_TROUBLE_LINK:
        pod_tell(world, "target %u: link %u %s", trouble->a, trouble->b % POD_LINKS,
                 !on                      ? "is well"
                 : trouble->b < POD_LINKS ? "is cut"
                                          : "is slow");
        if (trouble->b < POD_LINKS)
            sim_net_cut(world->sim, world->targets[trouble->a].links[trouble->b], NULL, on);
        else
            sim_net_far(world->targets[trouble->a].links[trouble->b % POD_LINKS], on ? 80 * MS : 0);
        break;
    case POD_TROUBLE_FAR:
        pod_tell(world, "target %u: %s network", trouble->a, on ? "slow" : "normal");
        sim_net_far(world->targets[trouble->a].node, on ? 26 * MS + pod_chance(world, 4) * MS : 0);
        break;
    default:
        check(trouble->kind == POD_TROUBLE_DEAD);
        pod_tell(world, "machine %u: drive %u %s", trouble->a, trouble->b,
                 on ? "dies" : "is repaired");
        sim_disk_dead(drives_node(world, trouble->a),
                      trouble->a >= POD_TARGETS_MAX ? POD_OWN : pod_drive_path(trouble->b), on);
    }
}

static void trouble_begin(struct pod_world *world, enum pod_trouble_kind kind, uint32_t a,
                          uint32_t b, uint64_t most_ns)
{
    struct pod_trouble *free = NULL;

    for (uint32_t i = 0; i < POD_TROUBLES; i++) {
        struct pod_trouble *trouble = &world->troubles[i];

        if (!trouble->on)
            free = trouble;
        else if (trouble->kind == kind && trouble->a == a)
            return; /* it has that already */
    }
    if (free == NULL)
        return;
    *free = (struct pod_trouble){
        .on = true,
        .kind = kind,
        .a = a,
        .b = b,
        .way = kind == POD_TROUBLE_CUT || kind == POD_TROUBLE_CLOCK ? (uint32_t)pod_chance(world, 3)
                                                                    : 0,
        .until_ns = sim_now_ns(world->sim) + 1 + pod_chance(world, most_ns),
    };
    trouble_set(world, free, true);
}

static void troubles_end(struct pod_world *world, bool all)
{
    for (uint32_t i = 0; i < POD_TROUBLES; i++) {
        struct pod_trouble *trouble = &world->troubles[i];

        if (!trouble->on || (!all && trouble->until_ns > sim_now_ns(world->sim)))
            continue;
        trouble->on = false;
        trouble_set(world, trouble, false);
    }
}

/* ---- the storm ------------------------------------------------------------------------------ */

/* Whether somebody would take blocks. */
static bool storm_has_owner(const struct pod_world *world)
{
    bool has = false;

    for (uint32_t i = 0; i < world->target_count; i++)
        has = has || (!world->out[i] && world->enclosures[i].state != AGENT_POD_DRAINING);
    return has;
}

/* A target is something else in the pod. Where nothing goes wrong, nothing may be missed: there one
 * target alone joins and drains in turn, so that all that an agent has not moved is with an owner
 * or a former owner, by this epoch and by the one before. */
static void storm_epoch(struct pod_world *world, uint32_t target)
{
    struct agent_enclosure_opts *enclosure = &world->enclosures[world->weather.fair ? 0 : target];
    enum agent_pod_state before = enclosure->state;
    bool was_out = world->out[target];

    if (world->weather.fair) {
        enclosure->state = before == AGENT_POD_JOINING ? AGENT_POD_DRAINING : AGENT_POD_JOINING;
    } else {
        enclosure->state = (enum agent_pod_state)pod_chance(world, 3);
        world->out[target] = pod_chance(world, 4) == 0;
    }
    if (storm_has_owner(world)) {
        pod_world_epoch(world);
        return;
    }
    enclosure->state = before;
    world->out[target] = was_out;
}

/* A link of a target fails. Where nothing else goes wrong nothing may be missed: there it is the
 * same link each time, so that the other one is well while agents have not found it again. */
static void storm_link(struct pod_world *world, uint32_t target)
{
    bool is_fair = world->weather.fair;
    uint32_t link = is_fair ? target % POD_LINKS : (uint32_t)pod_chance(world, POD_LINKS);
    bool delays = pod_chance(world, 3) == 0;

    trouble_begin(world, POD_TROUBLE_LINK, target, link + (delays ? POD_LINKS : 0),
                  delays ? 2000 * MS : 400 * MS);
}

/* Half of the targets, or all, at once: killed, or stopped. */
static void storm_rack(struct pod_world *world)
{
    uint32_t count = pod_chance(world, 2) == 0 ? world->target_count : world->target_count / 2;
    bool stops = pod_chance(world, 2) == 0;
    bool power = pod_chance(world, 2) == 0 && world->weather.power;

    for (uint32_t i = 0; i < count; i++)
        if (stops)
            trouble_begin(world, POD_TROUBLE_PAUSE_TARGET, i, 0, 200 * MS);
        else
            pod_target_crash(&world->targets[i], power, false);
}

/* Somebody takes drives of two targets out, or of one, and puts them back in the wrong places, or a
 * copy of one in place of the other. */
static void storm_swap(struct pod_world *world, uint32_t target)
{
    struct pod_target *from = &world->targets[target];
    struct pod_target *to = &world->targets[pod_chance(world, world->target_count)];
    uint32_t drive = (uint32_t)pod_chance(world, POD_DRIVES_MAX);
    bool copies = pod_chance(world, 3) == 0;

    pod_target_crash(from, false, false);
    pod_target_crash(to, false, false);
    pod_drives_swap(from, drive, to, (drive + 1) % POD_DRIVES_MAX, copies);
}

static void storm_strike(struct pod_world *world, enum pod_trouble_kind kind)
{
    uint32_t target = (uint32_t)pod_chance(world, world->target_count);
    uint32_t agent = (uint32_t)pod_chance(world, world->agent_count);
    uint32_t place = (uint32_t)pod_chance(world, world->agent_count + world->target_count);
    bool silent = pod_chance(world, 2) == 0 && world->weather.silent;
    bool power = pod_chance(world, 2) == 0 && world->weather.power;
    bool drives_come = world->weather.on[POD_TROUBLE_DRIVES];
    uint32_t drive;

    world->counts.trouble[kind]++;
    switch (kind) {
    case POD_TROUBLE_CRASH_TARGET:
        pod_target_crash(&world->targets[target], power, silent);
        break;
    case POD_TROUBLE_CRASH_AGENT:
        pod_agent_crash(&world->agents[agent], silent);
        break;
    case POD_TROUBLE_LEAVE_TARGET:
        pod_target_leave(&world->targets[target]);
        break;
    case POD_TROUBLE_LEAVE_AGENT:
        pod_agent_leave(&world->agents[agent]);
        break;
    case POD_TROUBLE_KILL_CLIENT:
        pod_client_leave(&world->clients[pod_chance(world, world->client_count)]);
        break;
    case POD_TROUBLE_PAUSE_TARGET:
        trouble_begin(world, kind, target, 0, 200 * MS);
        break;
    case POD_TROUBLE_PAUSE_AGENT:
        trouble_begin(world, kind, agent, 0, pod_agent_pause_ns);
        break;
    case POD_TROUBLE_CUT:
        trouble_begin(world, kind, place,
                      place < world->agent_count && pod_chance(world, 3) > 0 ? target
                                                                             : POD_TARGETS_MAX,
                      300 * MS);
        break;
    case POD_TROUBLE_SLOW:
        trouble_begin(world, kind, storm_drives(world, target, agent), 0, 300 * MS);
        break;
    case POD_TROUBLE_FAR:
        trouble_begin(world, kind, target, 0, 2000 * MS);
        break;
    case POD_TROUBLE_EPOCH:
        storm_epoch(world, target);
        break;
    case POD_TROUBLE_LINK:
        storm_link(world, target);
        break;
    case POD_TROUBLE_DRIVES:
        pod_drives_strike(&world->targets[target]);
        break;
    case POD_TROUBLE_FULL:
        trouble_begin(world, kind, target, (uint32_t)pod_chance(world, POD_DRIVES), 400 * MS);
        break;
    case POD_TROUBLE_RACK:
        storm_rack(world);
        break;
    case POD_TROUBLE_SWAP:
        storm_swap(world, target);
        break;
    case POD_TROUBLE_FILES:
        trouble_begin(world, kind, 0, 0, 400 * MS);
        break;
    case POD_TROUBLE_LOSS:
        trouble_begin(world, kind, place, 0, 1000 * MS);
        break;
    case POD_TROUBLE_SMALL:
    case POD_TROUBLE_LOCKED:
        trouble_begin(world, kind, place, 0, 400 * MS);
        break;
    case POD_TROUBLE_MEMORY:
        trouble_begin(world, kind, place, 0, 200 * MS);
        break;
    case POD_TROUBLE_CLOCK:
        trouble_begin(world, kind, agent, 0, 400 * MS);
        break;
    case POD_TROUBLE_RESET:
        if (world->resets < STORM_RESETS_MAX)
            pod_world_reset(world, (uint32_t)pod_chance(world, POD_VOLUMES));
        break;
    default:
        drive = (uint32_t)pod_chance(world, POD_DRIVES_MAX) %
                (drives_come ? POD_DRIVES_MAX : POD_DRIVES);
        place = storm_drives(world, target, agent);
        if (place >= POD_TARGETS_MAX || (world->targets[target].drives_told >> drive & 1) != 0)
            trouble_begin(world, POD_TROUBLE_DEAD, place, drive, 200 * MS);
    }
}

static void storm_corrupt_shard(struct pod_agent *agent, const struct shm_arena *arena)
{
    for (uint32_t i = 0; i < arena->slot_count; i++) {
        uint32_t bytes = atomic_load(&arena->slots[i].value_bytes);
        uint8_t bit = (uint8_t)(1u << pod_chance(agent->world, 8));

        if (bytes > 0 && atomic_load(&arena->slots[i].version) % 2 == 0)
            *(uint8_t *)(uintptr_t)(shm_arena_value(arena, i, bytes) + bytes / 2) ^= bit;
    }
}

/* Flips a bit in the middle of every block that a raw arena holds. */
static void storm_corrupt(struct pod_agent *agent)
{
    struct pod_client *first = &agent->world->clients[agent->number * POD_CLIENTS];

    for (struct pod_client *client = first; client < first + POD_CLIENTS; client++) {
        if (client->state != POD_CLIENT_IN)
            continue;
        for (uint32_t r = 0; r < agent->world->reactors; r++)
            storm_corrupt_shard(agent, &client->shards[r][2]);
        return; /* they all map the same */
    }
}

static void storm_canary(struct pod_world *world)
{
    struct pod_agent *agent = &world->agents[pod_chance(world, world->agent_count)];

    switch (world->options.canary) {
    case POD_CANARY_CORRUPT:
        storm_corrupt(agent);
        break;
    case POD_CANARY_LATE:
        if (agent->state == POD_MACHINE_UP && !agent->paused) {
            sim_node_pause(agent->node, true); /* nobody notes when */
            pod_world_run(world, sim_now_ns(world->sim) + 400 * MS);
            sim_node_pause(agent->node, false);
        }
        break;
    case POD_CANARY_WRITE:
        for (uint32_t i = 0; i < world->client_count; i++)
            (void)pod_client_break_lease(&world->clients[i]);
        break;
    default:
        break;
    }
}

/* The world whose targets' memory is not what it should be, and who have no descriptors. */
static struct pod_world *visit_world;

static bool storm_visit(const char *name, uint32_t *out_slow_us)
{
    if (out_slow_us != NULL)
        return false;
    if (visit_world->no_descriptors && strcmp(name, "net.accept") == 0) {
        visit_world->counts.unaccepted++;
        return true;
    }
    if (!visit_world->weather.memory_flips || strcmp(name, "target.memory") != 0 ||
        pod_chance(visit_world, 16) != 0)
        return false;
    visit_world->counts.flips++;
    return true;
}

static void storm_visits(struct pod_world *world, bool on)
{
    visit_world = on ? world : NULL;
    fault_visitor = on ? storm_visit : NULL;
}

void pod_storm(struct pod_world *world)
{
    struct pod_weather *weather = &world->weather;
    uint64_t end_ns;

    for (uint32_t i = 0; i < POD_TROUBLE_KINDS; i++)
        if (weather->on[i])
            pod_tell(world, "weather: %s", trouble_names[i]);
    pod_tell(world, "weather: power %d, silent %d, disk faults %d, a trouble each %llu ms",
             weather->power, weather->silent, weather->disk_faults,
             (unsigned long long)(weather->tick_ns / MS));
    pod_tell(world, "weather: own drives %d, share %.1f", weather->own_drives, weather->own_share);
    pod_tell(world, "weather: memory of targets flips %d, the wire %d", weather->memory_flips,
             weather->wire_flips);
    pod_world_run(world, sim_now_ns(world->sim) + 20 * MS); /* clients attach */
    for (uint32_t i = 0; i < world->client_count; i++)
        world->clients[i].pace_ns = weather->pace_ns;
    world->faults = true;
    sim_faults(world->sim, true);
    if (weather->memory_flips || weather->on[POD_TROUBLE_FILES])
        storm_visits(world, true);
    end_ns = sim_now_ns(world->sim) + weather->storm_ns;
    while (sim_now_ns(world->sim) < end_ns) {
        enum pod_trouble_kind kind = pod_chance(world, POD_TROUBLE_KINDS);

        pod_world_run(world, sim_now_ns(world->sim) + 1 + pod_chance(world, 2 * weather->tick_ns));
        troubles_end(world, false);
        storm_canary(world);
        if (pod_chance(world, 4) == 0)
            kind = POD_TROUBLE_EPOCH;
        else if (pod_chance(world, 4) == 0)
            kind = POD_TROUBLE_DRIVES;
        if (weather->on[kind])
            storm_strike(world, kind);
    }
}

void pod_storm_end(struct pod_world *world)
{
    for (uint32_t i = 0; i < world->client_count; i++)
        world->clients[i].pace_ns = 0;
    troubles_end(world, true);
    world->faults = false;
    sim_faults(world->sim, false);
    storm_visits(world, false);
    pod_tell(world, "the storm is over");
    if (world->weather.on[POD_TROUBLE_DRIVES])
        pod_drives_end(world);
    if (!world->weather.on[POD_TROUBLE_EPOCH])
        return;
    if (world->weather.fair) /* what is asked for now is with former owners */
        pod_world_run(world, sim_now_ns(world->sim) + 1000 * MS);
    for (uint32_t i = 0; i < world->target_count; i++) {
        world->out[i] = false;
        world->enclosures[i].state = AGENT_POD_UP;
    }
    pod_world_epoch(world);
}
