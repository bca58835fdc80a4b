/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/pod_map.h: which pod map an agent uses, and whether it takes the next one.
 *
 * Where maps come from is another's business: texts are offered (pod_map_offer), as often as one
 * likes, and pod_map_turn goes on with what takes time: names that are resolved, a map that is not
 * believed yet, an agent that is busy. Nothing here waits or reads a clock. What is refused changes
 * nothing, and is said once.
 *
 * One thread at a time.
 */
#ifndef INPROCESS_POD_MAP_H
#define INPROCESS_POD_MAP_H

#include "agent/agent.h"
#include "conf/pod.h"

struct pod_map;

/* How bad something is that is said. */
enum pod_map_say {
    POD_MAP_TAKEN,   /* the agent uses another map or address     */
    POD_MAP_WAITS,   /* it will, when something has changed       */
    POD_MAP_REFUSED, /* it will not                               */
};

struct pod_map_opts {
    const struct conf_agent *conf; /* keys of enclosures; stays                            */
    /* agent_pod_apply; OK with a sentence is asked again with the same map, now and then */
    icms_err (*apply)(void *arg, uint64_t epoch, const struct agent_enclosure_opts *enclosures,
                      uint32_t count, const struct agent_identity *volumes, struct err_why *why);
    /* Whether the enclosure does not answer, by this address, or (NULL) by any. */
    bool (*is_down)(void *arg, const struct uuid *uuid, const struct loop_addr *addr);
    /* Whether it answers; one that the agent does not use does not. */
    bool (*answers)(void *arg, const struct uuid *uuid);
    /* One sentence without an end, for a log; not twice in a row. */
    void (*say)(void *arg, enum pod_map_say how, const char *sentence);
    void *arg; /* of all four */
};

/* With the map that the agent starts with. NO_MEMORY; CONFIG: the agent's file says other things of
 * a volume than the map. */
icms_err pod_map_new(const struct pod_map_opts *opts, const struct conf_pod *pod,
                     struct err_why *why, struct pod_map **out_map) ICMS_MUST_CHECK;
void pod_map_free(struct pod_map **map);

/* The enclosures to start the agent with; an enclosure whose name is not resolved has an address
 * where nothing listens. False: names are being resolved still: ask again. The options stay as
 * long as the map, until pod_map_turn. */
bool pod_map_first(struct pod_map *map, const struct agent_enclosure_opts **out_enclosures,
                   uint32_t *out_count);

/* The volumes to start the agent with, [conf->volume_count]; they stay as long as the map. */
const struct volume_spec *pod_map_volumes(const struct pod_map *map);

/* The text of a map; name: of its source, for sentences. The same text again is harmless. */
void pod_map_offer(struct pod_map *map, const char *text, size_t bytes, const char *name);

/* The source gives no text: said, and nothing changes. */
void pod_map_unreadable(struct pod_map *map, const char *sentence);

/* What was said is said again if it still holds. */
void pod_map_again(struct pod_map *map);

/* Goes on. True: call it again soon, something is under way. */
bool pod_map_turn(struct pod_map *map, uint64_t now_ns);

/* The map that is in use. */
const struct conf_pod *pod_map_used(const struct pod_map *map);

/* Why what was offered last is not in use, refused or waiting; "": it is, or will be soon. It is
 * valid until the next call. */
const char *pod_map_refused(const struct pod_map *map);

#endif
