/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/pod_map.c: see pod_map.h.
 *
 * Life: pod_map_new -> pod_map_first until true -> agent_new with that -> pod_map_offer and
 * pod_map_turn. A map that is offered and passes conf_pod_compare() is `next`; pod_map_turn gives
 * it to the agent when it is believed and its names are resolved, and it is `used` then. While
 * there is no next one the names of addresses that are down are resolved again.
 */
#include "inprocess/pod_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inprocess/agent_opts.h"
#include "inprocess/resolve.h"

/* A resolver that does not answer by then is not waited for: the map counts without the address. */
#define POD_RESOLVE_NS ((uint64_t)2 * 1000 * 1000 * 1000)

/* How often the name of an enclosure that is down is resolved, and what the agent did not take is
 * offered to it again. */
#define POD_AGAIN_NS ((uint64_t)2 * 1000 * 1000 * 1000)

/* A sentence, with one of another module in it. */
#define POD_SAID_BYTES (ERR_WHY_BYTES_MAX + 256)

/* Where an address of an enclosure is. */
struct pod_place {
    struct loop_addr addr;   /* port 0: not known                                         */
    bool is_name;            /* its address is a DNS name                                 */
    bool is_unresolved;      /* it was said that its name is not                          */
    struct resolve *resolve; /* a question is under way                                   */
    uint64_t again_ns;       /* of the map in use it is not asked for before              */
};

/* A map with addresses. */
struct pod_one {
    struct conf_pod pod;
    struct pod_place places[LIMIT_ENCLOSURES][LIMIT_LINKS];
};

struct pod_map {
    struct pod_map_opts opts;
    struct pod_one *used, *next, *offered; /* offered: scratch                                */
    bool is_started; /* the agent has `used`                                        */
    bool has_next;
    bool is_shrunken;             /* next is believed when all of `gone` are down, and one that
                                     stays answers                                               */
    uint64_t gone;                /* bit i: enclosure i of used is not in next, or out           */
    struct err_why shrunken;      /* says so                                                     */
    uint64_t seen_ns;             /* since when that is so; 0: it is not                         */
    uint64_t resolve_until_ns;    /* of next; 0: not set yet                                     */
    uint64_t again_ns;            /* the map in use is not offered to the agent again before     */
    uint64_t next_again_ns;       /* the next one is not offered to the agent before             */
    bool is_moved;                /* an address of used is another one, and the agent does not
                                     know it                                                 */
    struct err_why lacks;         /* what the agent cannot use of used yet; "": nothing          */
    char said[POD_SAID_BYTES];    /* the last sentence about a map                               */
    char refused[POD_SAID_BYTES]; /* why what was offered last is not in use; "": it is         */
    struct agent_enclosure_opts enclosures[LIMIT_ENCLOSURES];
    struct volume_spec volumes[LIMIT_AGENT_VOLUMES]; /* that the agent was started with          */
    uint32_t highest[LIMIT_AGENT_VOLUMES];           /* generation that each of them had         */
    struct volume_spec joined[LIMIT_AGENT_VOLUMES];  /* of a map and the agent's file: scratch   */
    struct agent_identity identities[LIMIT_AGENT_VOLUMES];
};

static void map_say(struct pod_map *map, enum pod_map_say how, const char *sentence)
{
    if (strcmp(map->said, sentence) == 0)
        return;
    (void)snprintf(map->said, sizeof(map->said), "%s", sentence);
    map->opts.say(map->opts.arg, how, map->said);
}

/* The same of what was offered, which is not in use. */
static void map_refuse(struct pod_map *map, enum pod_map_say how, const char *sentence)
{
    (void)snprintf(map->refused, sizeof(map->refused), "%s", sentence);
    map_say(map, how, sentence);
}

/* ---- places --------------------------------------------------------------------------------- */

/* An address of an enclosure: by the numbers of both. */
struct pod_at {
    uint32_t enclosure, address;
};

static struct pod_place *place_of(struct pod_one *one, struct pod_at at)
{
    return &one->places[at.enclosure][at.address];
}

static const char *address_of(const struct pod_one *one, struct pod_at at)
{
    return one->pod.enclosures[at.enclosure].address[at.address];
}

/* Goes to the next address of a map; false: there is none. */
static bool at_next(const struct conf_pod *pod, struct pod_at *io_at)
{
    if (++io_at->address < pod->enclosures[io_at->enclosure].address_count)
        return true;
    io_at->address = 0;
    return ++io_at->enclosure < pod->enclosure_count;
}

/* Until a name is resolved it has an address of its own where nothing listens. */
static void place_addr_forget(struct pod_one *one, struct pod_at at)
{
    struct loop_addr *addr = &place_of(one, at)->addr;

    addr->port = 0;
    (void)snprintf(addr->host, sizeof(addr->host), "127.254.%u.%u", at.address, at.enclosure + 1);
}

/* When the names of a map in use may be asked for next. */
static void places_again(struct pod_one *one, uint64_t again_ns)
{
    struct pod_at at = {0, 0};

    do
        place_of(one, at)->again_ns = again_ns;
    while (at_next(&one->pod, &at));
}

/* Whether the agent does not use the enclosure: it is nowhere. */
static bool is_out(const struct pod_one *one, uint32_t enclosure)
{
    return one->pod.enclosures[enclosure].state == CONF_ENCLOSURE_OUT;
}

static void place_init(struct pod_one *one, struct pod_at at)
{
    struct pod_place *place = place_of(one, at);

    *place = (struct pod_place){.is_name = !is_out(one, at.enclosure)};
    place_addr_forget(one, at);
    if (place->is_name && loop_addr_parse(address_of(one, at), NULL, &place->addr) == ICMS_OK)
        place->is_name = false;
}

static void places_fini(struct pod_one *one)
{
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++)
        for (uint32_t k = 0; k < LIMIT_LINKS; k++)
            resolve_free(&one->places[i][k].resolve);
}

/* Says once that a name has no address. */
static void place_failed(struct pod_map *map, struct pod_one *one, struct pod_at at,
                         const char *cause)
{
    char sentence[POD_SAID_BYTES];

    (void)snprintf(sentence, sizeof(sentence), "enclosure %s: %s",
                   one->pod.enclosures[at.enclosure].name, cause);
    if (!place_of(one, at)->is_unresolved)
        map->opts.say(map->opts.arg, POD_MAP_WAITS, sentence);
    place_of(one, at)->is_unresolved = true;
}

/* Says that an enclosure is somewhere else. */
static void place_moved(struct pod_map *map, struct pod_at at, const struct loop_addr *addr)
{
    const struct pod_place *place = place_of(map->used, at);
    char sentence[POD_SAID_BYTES], old[64], new[64];

    (void)snprintf(sentence, sizeof(sentence), "enclosure %s: %s is %s%s%s",
                   map->used->pod.enclosures[at.enclosure].name, address_of(map->used, at),
                   loop_addr_format(addr, new, sizeof(new)), place->addr.port != 0 ? ", was " : "",
                   place->addr.port != 0 ? loop_addr_format(&place->addr, old, sizeof(old)) : "");
    map->opts.say(map->opts.arg, POD_MAP_TAKEN, sentence);
    map->is_moved = true;
}

/* Asks for a name. */
static void place_ask(struct pod_map *map, struct pod_one *one, struct pod_at at)
{
    struct pod_place *place = place_of(one, at);
    struct err_why why = {""};

    if (place->is_name && place->resolve == NULL &&
        resolve_start(address_of(one, at), &why, &place->resolve) != ICMS_OK)
        place_failed(map, one, at, why.text);
}

/* Which of the addresses is used: the one that is, as long as it is right and the enclosure is not
 * down; else the one behind it. */
static struct loop_addr place_pick(const struct pod_place *place,
                                   const struct resolve_answer *answer, bool is_down)
{
    for (uint32_t i = 0; i < answer->count; i++)
        if (loop_addr_equal(&answer->addrs[i], &place->addr))
            return answer->addrs[is_down ? (i + 1) % answer->count : i];
    return answer->addrs[0];
}

static bool place_is_down(struct pod_map *map, struct pod_one *one, struct pod_at at)
{
    return map->opts.is_down(map->opts.arg, &one->pod.enclosures[at.enclosure].uuid,
                             &place_of(one, at)->addr);
}

/* Whether another place of the map is at this address; out_other: which one. */
static bool addr_is_taken(struct pod_one *one, struct pod_at at, const struct loop_addr *addr,
                          struct pod_at *out_other)
{
    struct pod_at other = {0, 0};

    do {
        if ((other.enclosure == at.enclosure && other.address == at.address) ||
            !loop_addr_equal(&place_of(one, other)->addr, addr))
            continue;
        *out_other = other;
        return true;
    } while (at_next(&one->pod, &other));
    return false;
}

/* Leaves out where another place of the map is: an address leads to one enclosure, once. */
static void answer_part(struct pod_one *one, struct pod_at at, struct resolve_answer *io_answer)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < io_answer->count; i++) {
        struct loop_addr addr = io_answer->addrs[i];
        struct pod_at other;
        char text[LIMIT_ADDRESS_BYTES];

        if (!addr_is_taken(one, at, &addr, &other)) {
            io_answer->addrs[count++] = addr;
            continue;
        }
        (void)err_set(&io_answer->why, ICMS_CONFIG,
                      "cannot use %s: it is %s, which enclosure %s has already, as %s; correct the "
                      "name, or the map",
                      address_of(one, at), loop_addr_format(&addr, text, sizeof(text)),
                      one->pod.enclosures[other.enclosure].name, address_of(one, other));
    }
    io_answer->count = count;
}

/* Takes the answer, if there is one; true: none is waited for. */
static bool place_poll(struct pod_map *map, struct pod_one *one, struct pod_at at)
{
    struct pod_place *place = place_of(one, at);
    struct resolve_answer answer;
    struct loop_addr addr;
    struct pod_at other;

    if (place->resolve == NULL)
        return true;
    if (!resolve_poll(place->resolve, &answer))
        return false;
    resolve_free(&place->resolve);
    answer_part(one, at, &answer);
    if (answer.count == 0) {
        if (addr_is_taken(one, at, &place->addr, &other))
            place_addr_forget(one, at);
        place_failed(map, one, at, answer.why.text);
        return true;
    }
    place->is_unresolved = false;
    addr = place_pick(place, &answer, place_is_down(map, one, at));
    if (one == map->used && map->is_started && !loop_addr_equal(&addr, &place->addr))
        place_moved(map, at, &addr);
    place->addr = addr;
    return true;
}

/* Polls all; true: none is waited for. */
static bool places_poll(struct pod_map *map, struct pod_one *one)
{
    bool is_over = true;
    struct pod_at at = {0, 0};

    do
        is_over = place_poll(map, one, at) && is_over;
    while (at_next(&one->pod, &at));
    return is_over;
}

/* ---- the agent ------------------------------------------------------------------------------ */

/* Those that the agent uses; how many. */
static uint32_t enclosures_make(struct pod_map *map, const struct pod_one *one)
{
    struct loop_addr addrs[LIMIT_LINKS];
    uint32_t count = 0;

    for (uint32_t i = 0; i < one->pod.enclosure_count; i++) {
        if (is_out(one, i))
            continue;
        for (uint32_t k = 0; k < LIMIT_LINKS; k++)
            addrs[k] = one->places[i][k].addr;
        agent_enclosure_opts_from_conf(&one->pod.enclosures[i], addrs, &map->enclosures[count++]);
    }
    return count;
}

static const char *volume_changed(const struct volume_spec *was, const struct volume_spec *is)
{
    if (was->value_bytes_max != is->value_bytes_max)
        return "value_max";
    if (was->sealed != is->sealed)
        return "sealed";
    if (was->encrypted != is->encrypted)
        return "encrypted";
    return was->run_blocks != is->run_blocks ? "run_blocks" : NULL;
}

/* A former generation, also of a volume that was deleted meanwhile: what a reset had made
 * unreachable would be found again. */
static bool volume_goes_back(const struct pod_map *map, uint32_t i)
{
    const struct volume_spec *is = &map->joined[i];

    return !uuid_is_nil(&is->uuid) && is->generation < map->highest[i];
}

static bool volumes_fit(struct pod_map *map, const struct conf_pod *pod, const char *name,
                        struct err_why *why)
{
    const struct conf_agent *conf = map->opts.conf;

    if (conf_pod_volumes(conf, pod, why, map->joined) != ICMS_OK)
        return false;
    for (uint32_t i = 0; i < conf->volume_count; i++) {
        if (!volume_goes_back(map, i))
            continue;
        (void)err_set(
            why, ICMS_CONFIG,
            "%s: volume %s had generation %u since this agent started, and %u would bring "
            "back what was reset: write %u or more",
            name, conf->volumes[i].name, map->highest[i], map->joined[i].generation,
            map->highest[i] + 1);
        return false;
    }
    return true;
}

/* Which content each volume has. Memory and rings are as at the start: a volume that would need
 * others stays as it is served, or, when its content is another one, is not served. */
static const struct agent_identity *identities_make(struct pod_map *map, const struct conf_pod *pod)
{
    (void)!conf_pod_volumes(map->opts.conf, pod, NULL, map->joined); /* it was fit when it came */
    for (uint32_t i = 0; i < map->opts.conf->volume_count; i++) {
        const struct volume_spec *is = &map->joined[i];
        bool is_new = !uuid_equal(&is->uuid, &map->identities[i].uuid);

        if (is_new && volume_changed(&map->volumes[i], is) != NULL)
            map->identities[i] = (struct agent_identity){.generation = 0};
        else
            map->identities[i] = (struct agent_identity){is->uuid, is->generation};
    }
    return map->identities;
}

/* The agent has them now. */
static void volumes_taken(struct pod_map *map, const struct conf_pod *pod)
{
    char sentence[POD_SAID_BYTES];

    for (uint32_t i = 0; i < map->opts.conf->volume_count; i++) {
        const struct volume_spec *is = &map->joined[i];
        const char *key = volume_changed(&map->volumes[i], is);

        if (uuid_is_nil(&is->uuid))
            continue;
        if (is->generation > map->highest[i])
            map->highest[i] = is->generation;
        if (key == NULL)
            continue;
        (void)snprintf(sentence, sizeof(sentence),
                       "pod %s: volume %s: its %s is another one than when this agent started: %s "
                       "until the agent is restarted",
                       pod->name, is->name, key,
                       uuid_is_nil(&map->identities[i].uuid) ? "it is not served"
                                                             : "it is served as it was");
        map->opts.say(map->opts.arg, POD_MAP_WAITS, sentence);
    }
}

/* The agent gets it; false: not this time, and it is said why. */
static bool map_apply(struct pod_map *map, const struct pod_one *one)
{
    char sentence[POD_SAID_BYTES];
    uint32_t count = enclosures_make(map, one);
    struct err_why why = {""};

    if (map->opts.apply(map->opts.arg, one->pod.epoch, map->enclosures, count,
                        identities_make(map, &one->pod), &why) == ICMS_OK) {
        map->lacks = why;
        return true;
    }
    (void)snprintf(sentence, sizeof(sentence), "pod map %s: epoch %u is not in use: %s",
                   one->pod.name, one->pod.epoch, why.text);
    if (one == map->next)
        map_refuse(map, POD_MAP_WAITS, sentence);
    else
        map_say(map, POD_MAP_WAITS, sentence);
    return false;
}

/* Says what the agent cannot use of the map that it has. */
static void lacks_say(struct pod_map *map)
{
    if (map->lacks.text[0] != '\0')
        map_say(map, POD_MAP_WAITS, map->lacks.text);
}

/* ---- the next map --------------------------------------------------------------------------- */

static void next_drop(struct pod_map *map)
{
    places_fini(map->next);
    conf_pod_fini(&map->next->pod);
    map->has_next = false;
}

/* What is known of an enclosure's address stays while it is asked for again. */
static void next_places(struct pod_map *map)
{
    struct pod_one *next = map->next, *used = map->used;
    struct pod_at at = {0, 0}, other;

    do {
        struct pod_at was = {0, 0};

        place_init(next, at);
        do
            if (place_of(used, was)->addr.port != 0 && !is_out(next, at.enclosure) &&
                strcmp(address_of(next, at), address_of(used, was)) == 0)
                place_of(next, at)->addr = place_of(used, was)->addr;
        while (at_next(&used->pod, &was));
        place_ask(map, next, at);
    } while (at_next(&next->pod, &at));
    /* a name that is not resolved in time may be where another enclosure is now */
    at = (struct pod_at){0, 0};
    do
        if (place_of(next, at)->is_name &&
            addr_is_taken(next, at, &place_of(next, at)->addr, &other))
            place_addr_forget(next, at);
    while (at_next(&next->pod, &at));
}

static bool pod_has(const struct conf_pod *pod, const char *name)
{
    for (uint32_t i = 0; i < pod->enclosure_count; i++)
        if (strcmp(pod->enclosures[i].name, name) == 0)
            return true;
    return false;
}

static bool addresses_meet(const struct conf_enclosure *a, const struct conf_enclosure *b)
{
    for (uint32_t i = 0; i < a->address_count; i++)
        for (uint32_t k = 0; k < b->address_count; k++)
            if (conf_address_same(a->address[i], b->address[k]))
                return true;
    return false;
}

/* enclosure_keys of the agent go by name. An enclosure that has another one at the same address
 * would lose what it has to prove. */
static bool keys_stay(const struct pod_map *map, const struct conf_pod *pod, const char *name,
                      struct err_why *why)
{
    const struct conf_agent *conf = map->opts.conf;

    for (uint32_t i = 0; i < map->used->pod.enclosure_count; i++) {
        const struct conf_enclosure *was = &map->used->pod.enclosures[i];

        if (conf_agent_keys_of(conf, was->name) == &conf->keys || pod_has(pod, was->name))
            continue;
        for (uint32_t j = 0; j < pod->enclosure_count; j++) {
            const struct conf_enclosure *is = &pod->enclosures[j];

            if (!addresses_meet(is, was) || conf_agent_keys_of(conf, is->name) != &conf->keys)
                continue;
            (void)err_set(why, ICMS_CONFIG,
                          "%s: enclosure %s is called %s now, and enclosure_keys of the agent has "
                          "keys for %s alone: add them for %s first, and restart the agent",
                          name, was->name, is->name, was->name, is->name);
            return false;
        }
    }
    return true;
}

void pod_map_offer(struct pod_map *map, const char *text, size_t bytes, const char *name)
{
    struct conf_pod *pod = &map->offered->pod;
    struct err_why why = {""};
    enum conf_pod_verdict verdict;
    uint64_t gone;

    conf_pod_fini(pod);
    if (conf_pod_parse(text, bytes, name, &why, pod) != ICMS_OK ||
        conf_pod_join(map->opts.conf, pod, name, &why) != ICMS_OK) {
        next_drop(map);
        map_refuse(map, POD_MAP_REFUSED, why.text);
        return;
    }
    verdict = conf_pod_compare(&map->used->pod, pod, name, &why, &gone);
    if ((verdict == CONF_POD_NEW || verdict == CONF_POD_SHRUNKEN) &&
        (!volumes_fit(map, pod, name, &why) || !keys_stay(map, pod, name, &why)))
        verdict = CONF_POD_REFUSED;
    if (verdict == CONF_POD_SAME || verdict == CONF_POD_REFUSED)
        next_drop(map);
    if (verdict == CONF_POD_REFUSED)
        map_refuse(map, POD_MAP_REFUSED, why.text);
    if (verdict == CONF_POD_SAME) /* what was said of another text is over */
        map->said[0] = map->refused[0] = '\0';
    if (verdict != CONF_POD_NEW && verdict != CONF_POD_SHRUNKEN)
        return;
    if (map->has_next && conf_pod_equal(&map->next->pod, pod))
        return;
    next_drop(map);
    map->refused[0] = '\0';
    memcpy(&map->next->pod, pod, sizeof(*pod));
    memset(pod, 0, sizeof(*pod)); /* its lists are next's */
    map->has_next = true;
    map->is_shrunken = verdict == CONF_POD_SHRUNKEN;
    map->shrunken = why;
    map->gone = gone;
    map->seen_ns = 0;
    map->resolve_until_ns = 0;
    map->next_again_ns = 0;
    next_places(map);
}

void pod_map_unreadable(struct pod_map *map, const char *sentence)
{
    next_drop(map);
    map_refuse(map, POD_MAP_REFUSED, sentence);
}

void pod_map_again(struct pod_map *map)
{
    map->said[0] = '\0';
    map->again_ns = map->next_again_ns = 0;
    places_again(map->used, 0);
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++)
        for (uint32_t k = 0; k < LIMIT_LINKS; k++)
            map->used->places[i][k].is_unresolved = map->next->places[i][k].is_unresolved = false;
}

/* Whether an enclosure answers that the next map goes on with: an agent that reaches nobody learns
 * nothing from who is down. */
static bool next_answers(struct pod_map *map)
{
    for (uint32_t i = 0; i < map->next->pod.enclosure_count; i++)
        if (!is_out(map->next, i) &&
            map->opts.answers(map->opts.arg, &map->next->pod.enclosures[i].uuid))
            return true;
    return false;
}

/* Whether what the next map lacks is down, all of it, and the agent is not cut off itself. */
static bool next_is_seen(struct pod_map *map)
{
    for (uint32_t i = 0; i < map->used->pod.enclosure_count; i++)
        if ((map->gone >> i & 1) != 0 &&
            !map->opts.is_down(map->opts.arg, &map->used->pod.enclosures[i].uuid, NULL))
            return false;
    return next_answers(map);
}

/* Who is cut off notices it at one enclosure after the other: by a keep-alive, twice in its time,
 * to which there is silence. An enclosure that is up when that time has passed has answered since
 * the others were down. */
static bool next_is_believed(struct pod_map *map, uint64_t now_ns)
{
    const struct conf_agent *conf = map->opts.conf;
    uint64_t notice_ns = ((uint64_t)conf->keep_alive_ms + conf->silence_ms) * 1000000;

    if (!map->is_shrunken)
        return true;
    if (!next_is_seen(map)) {
        map->seen_ns = 0;
        return false;
    }
    if (map->seen_ns == 0)
        map->seen_ns = now_ns;
    return now_ns - map->seen_ns >= notice_ns;
}

static void next_taken(struct pod_map *map)
{
    struct pod_one *old = map->used;
    char differs[ERR_WHY_BYTES_MAX], sentence[POD_SAID_BYTES];

    (void)conf_pod_differs(&old->pod, &map->next->pod, differs, sizeof(differs));
    (void)snprintf(sentence, sizeof(sentence), "pod %s: epoch %u -> %u: %s", old->pod.name,
                   old->pod.epoch, map->next->pod.epoch,
                   differs[0] != '\0' ? differs : "nothing differs");
    map->used = map->next;
    map->next = old;
    map->is_moved = false;
    map->refused[0] = '\0';
    next_drop(map);
    map_say(map, POD_MAP_TAKEN, sentence);
    volumes_taken(map, &map->used->pod);
    lacks_say(map);
}

static bool next_turn(struct pod_map *map, uint64_t now_ns)
{
    if (!next_is_believed(map, now_ns)) {
        map_refuse(map, POD_MAP_WAITS, map->shrunken.text);
        return false;
    }
    if (map->resolve_until_ns == 0)
        map->resolve_until_ns = now_ns + POD_RESOLVE_NS;
    if (!places_poll(map, map->next) && now_ns < map->resolve_until_ns)
        return true;
    if (now_ns < map->next_again_ns)
        return false;
    map->next_again_ns = now_ns + POD_AGAIN_NS;
    if (map_apply(map, map->next)) {
        next_taken(map);
        map->again_ns = now_ns + POD_AGAIN_NS;
        places_again(map->used, now_ns + POD_AGAIN_NS); /* it connects first */
    }
    return false;
}

/* ---- the map in use ------------------------------------------------------------------------- */

/* Asks for the names of places that are down, each by itself: a resolver that does not answer for
 * one of them holds no other up. */
static void used_ask(struct pod_map *map, uint64_t now_ns)
{
    struct pod_at at = {0, 0};

    do {
        struct pod_place *place = place_of(map->used, at);

        if (!place->is_name || place->resolve != NULL || now_ns < place->again_ns ||
            !place_is_down(map, map->used, at))
            continue;
        place_ask(map, map->used, at);
        place->again_ns = now_ns + POD_AGAIN_NS;
    } while (at_next(&map->used->pod, &at));
}

/* What came of it is given to the agent. */
static void used_give(struct pod_map *map, uint64_t now_ns)
{
    if (now_ns < map->again_ns || !(map->is_moved || map->lacks.text[0] != '\0'))
        return;
    map->again_ns = now_ns + POD_AGAIN_NS;
    if (!map_apply(map, map->used))
        return;
    lacks_say(map);
    map->is_moved = false;
}

static bool used_turn(struct pod_map *map, uint64_t now_ns)
{
    bool is_over = places_poll(map, map->used);

    used_give(map, now_ns);
    used_ask(map, now_ns);
    return !is_over;
}

/* Names of the map in use are resolved while the next one waits, for as long as that may be. */
bool pod_map_turn(struct pod_map *map, uint64_t now_ns)
{
    bool is_soon;

    map->is_started = true;
    is_soon = map->has_next && next_turn(map, now_ns);
    return used_turn(map, now_ns) || is_soon;
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err pod_map_new(const struct pod_map_opts *opts, const struct conf_pod *pod,
                     struct err_why *why, struct pod_map **out_map)
{
    struct pod_map *map = calloc(1, sizeof(*map));
    struct pod_at at = {0, 0};
    icms_err err;

    if (map != NULL) {
        map->opts = *opts;
        map->used = calloc(1, sizeof(*map->used));
        map->next = calloc(1, sizeof(*map->next));
        map->offered = calloc(1, sizeof(*map->offered));
    }
    if (map == NULL || map->used == NULL || map->next == NULL || map->offered == NULL) {
        pod_map_free(&map);
        return err_set(why, ICMS_NO_MEMORY, "no memory for the pod map");
    }
    err = conf_pod_copy(pod, why, &map->used->pod);
    if (err == ICMS_OK)
        err = conf_pod_join(opts->conf, &map->used->pod, opts->conf->pod, why);
    if (err == ICMS_OK)
        err = conf_pod_volumes(opts->conf, pod, why, map->volumes);
    if (err != ICMS_OK) {
        pod_map_free(&map);
        return err;
    }
    for (uint32_t i = 0; i < opts->conf->volume_count; i++) {
        const struct volume_spec *is = &map->volumes[i];

        map->identities[i] = (struct agent_identity){is->uuid, is->generation};
        map->highest[i] = uuid_is_nil(&is->uuid) ? 0 : is->generation;
    }
    do {
        place_init(map->used, at);
        place_ask(map, map->used, at);
    } while (at_next(&map->used->pod, &at));
    *out_map = map;
    return ICMS_OK;
}

bool pod_map_first(struct pod_map *map, const struct agent_enclosure_opts **out_enclosures,
                   uint32_t *out_count)
{
    bool is_over = places_poll(map, map->used);

    *out_count = enclosures_make(map, map->used);
    *out_enclosures = map->enclosures;
    return is_over;
}

const struct volume_spec *pod_map_volumes(const struct pod_map *map)
{
    return map->volumes;
}

const struct conf_pod *pod_map_used(const struct pod_map *map)
{
    return &map->used->pod;
}

const char *pod_map_refused(const struct pod_map *map)
{
    return map->refused;
}

static void one_free(struct pod_one *one)
{
    if (one == NULL)
        return;
    places_fini(one);
    conf_pod_fini(&one->pod);
    free(one);
}

void pod_map_free(struct pod_map **map_)
{
    struct pod_map *map = *map_;

    *map_ = NULL;
    if (map == NULL)
        return;
    one_free(map->used);
    one_free(map->next);
    one_free(map->offered);
    free(map);
}
