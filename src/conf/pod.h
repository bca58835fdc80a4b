/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/pod.h: the pod map: which enclosures the pod has, in which state, and perhaps which volumes
 * and tenants, under one epoch.
 *
 * A map comes as text with a name for errors, from a file today. It holds nothing private: the keys
 * of enclosures and what an agent decides for itself of volumes (users, memory, weight) stay in its
 * configuration; conf_pod_join() and conf_pod_volumes() put the two together. Of a target that has
 * a map, volumes and tenants are the map's (conf_live_join). Who has a map and is offered another
 * one asks conf_pod_compare() what that is. `icms pod` changes a file with conf_pod_change(): line
 * by line, parsed again before anybody gets it. Pure but for reading; control threads only. The
 * structs have some hundred kilobytes: keep them on the heap or static.
 */
#ifndef CONF_POD_H
#define CONF_POD_H

#include "conf/conf.h"

/* Of a map: 64 enclosures need less than 64 KiB. */
#define CONF_POD_BYTES_MAX ((size_t)1 << 20)

/* What all daemons of the pod have to agree about, of one volume. */
struct conf_pod_volume {
    char name[LIMIT_NAME_BYTES];
    struct uuid uuid; /* of this generation, as in struct volume_spec */
    uint32_t generation;
    uint64_t value_bytes_max;
    uint32_t run_blocks;
    bool sealed, encrypted;
    /* For targets; agents ignore it. */
    uint8_t require;                   /* REQUIRE_*, of each host                       */
    char tenant[LIMIT_NAME_BYTES];     /* "": a tenant of the volume's name             */
    uint64_t quota_bytes;              /* flash that each enclosure gives it; 0: all    */
    uint32_t host_count;               /* 0: any host may use it                        */
    char (*host_nqn)[LIMIT_NQN_BYTES]; /* freed by conf_pod_fini                        */
};

struct conf_pod {
    char name[LIMIT_NAME_BYTES]; /* of the pod                                             */
    uint32_t epoch;
    uint32_t shrink_epoch; /* until which what is in use may leave, or shrink; 0: none */
    uint32_t enclosure_count;
    struct conf_enclosure enclosures[LIMIT_ENCLOSURES];
    uint32_t tenant_count;
    struct tenant_spec tenants[LIMIT_TENANTS]; /* for targets                              */
    uint32_t volume_count; /* 0: each daemon says itself what its volumes are         */
    struct conf_pod_volume volumes[LIMIT_VOLUMES];
};

/* Frees the lists of hosts; harmless with a struct of zeros, and a second time. */
void conf_pod_fini(struct conf_pod *pod);

/* The same, and frees the struct, which calloc made, or NULL. */
void conf_pod_free(struct conf_pod **pod);

/* Lists of hosts of its own. What was in *out_pod is not freed. */
icms_err conf_pod_copy(const struct conf_pod *pod, struct err_why *why,
                       struct conf_pod *out_pod) ICMS_MUST_CHECK;

/* Whether two mean the same, keys of enclosures among it. */
bool conf_pod_equal(const struct conf_pod *a, const struct conf_pod *b);

/* The text of a map's file, which the caller frees. Never waits: what is not a regular file is
 * refused, and so is one that is too large. name stands for the file in errors. */
icms_err conf_pod_text(const char *path, struct err_why *why, char **out_text,
                       size_t *out_bytes) ICMS_MUST_CHECK;

/* A text whose last line is not `...`, the end of a YAML document, is refused: it may be written
 * halfway. What was in *out_pod is not freed; it is untouched after an error. */
icms_err conf_pod_parse(const char *text, size_t bytes, const char *name, struct err_why *why,
                        struct conf_pod *out_pod) ICMS_MUST_CHECK;

/* Both. */
icms_err conf_pod_read(const char *path, struct err_why *why,
                       struct conf_pod *out_pod) ICMS_MUST_CHECK;

/* The keys that an agent has for the enclosure of this name: psk, secret, controller_secret and
 * require. They stay the agent's. */
const struct conf_enclosure *conf_agent_keys_of(const struct conf_agent *agent, const char *name);

/* Puts the agent's keys into the enclosures of the map. CONFIG: one of them is at an address of
 * another machine, the agent has no key for it, and its file does not say `require: none`. name
 * stands for the map in the sentence. */
icms_err conf_pod_join(const struct conf_agent *agent, struct conf_pod *pod, const char *name,
                       struct err_why *why) ICMS_MUST_CHECK;

/* The agent's volumes as the map has them: identity and format are the map's, all else the agent's.
 * One that the map does not have has a UUID of zeros. Without volumes in the map they are as the
 * agent's file has them. CONFIG: the agent's file writes what the map says, and does not say the
 * same, or writes uuid or generation at all; with file and line. out_volumes:
 * [agent->volume_count]. */
icms_err conf_pod_volumes(const struct conf_agent *agent, const struct conf_pod *pod,
                          struct err_why *why, struct volume_spec *out_volumes) ICMS_MUST_CHECK;

/* What a map is to who has another one. */
enum conf_pod_verdict {
    CONF_POD_NEW,      /* a later epoch                                                      */
    CONF_POD_SAME,     /* the same epoch, and nothing differs                                */
    CONF_POD_SHRUNKEN, /* a later epoch that lacks an enclosure, or has one out, which was not
                          drained: to be believed when that does not answer and another does */
    CONF_POD_REFUSED,  /* of another pod, older, different under the same epoch, with a former
                          generation, without a volume, with another one in its place, with a lower
                          quota, or with less asked of hosts                                 */
};

/* REFUSED and SHRUNKEN come with a sentence. out_gone: bit i: enclosure i of `before` is not in
 * `after`, or out there, and was neither draining nor out. file: for the sentence. */
enum conf_pod_verdict conf_pod_compare(const struct conf_pod *before, const struct conf_pod *after,
                                       const char *file, struct err_why *why, uint64_t *out_gone);

/* What differs, as words for a log: "e3 added (joining), e1 draining, e0 weight 1 -> 2"; cut at
 * bytes. Returns out. */
char *conf_pod_differs(const struct conf_pod *before, const struct conf_pod *after, char *out,
                       size_t bytes);

/* What an enclosure has of the new blocks, 0 to 1. */
double conf_pod_share(const struct conf_pod *pod, uint32_t enclosure);

/* "up", "joining", "draining", "out". */
const char *conf_enclosure_state_name(enum conf_enclosure_state state);

/* ---- changing a map's file ------------------------------------------------------------------ */

enum conf_pod_what {
    CONF_POD_ADD,     /* a new enclosure, joining                              */
    CONF_POD_SETTLE,  /* joining to up; a weight that changes has changed; with yes: what was not
                         read meanwhile is missed */
    CONF_POD_WEIGHT,  /* of one that is up; its former weight is kept until it is settled */
    CONF_POD_DRAIN,   /* to draining                                           */
    CONF_POD_UNDRAIN, /* draining or out to joining: it lacks what was written meanwhile */
    CONF_POD_OUT,     /* to out; with yes, or drained and unread; sets shrink_epoch */
    CONF_POD_REMOVE,  /* with yes, or drained and unread: it may be the only one that has some
                         blocks; sets shrink_epoch */
    CONF_POD_SHRINK,  /* nothing but that what the file lacks may leave, quotas be lower, and
                         volumes be open to more hosts */
    /* Of volumes; name: of one. */
    CONF_POD_VOLUME_CREATE, /* a new one, with values                                        */
    CONF_POD_VOLUME_SET,    /* other values: agents take those of blocks at their start; what
                               loses blocks, or lets more hosts in, or some out, with yes; a
                               lower quota, no hosts where there were, and a lower require set
                               shrink_epoch                                                  */
    CONF_POD_VOLUME_RESET,  /* the next generation; with yes                                 */
    CONF_POD_VOLUME_DELETE, /* with yes; sets shrink_epoch                                   */
};

/* Texts as they are written in the file; NULL: not written. */
struct conf_pod_change {
    enum conf_pod_what what;
    const char *name;              /* of what changes; SHRINK: NULL  */
    const char *address;           /* ADD: one or more, with commas  */
    const char *uuid, *nqn, *http; /* ADD                            */
    const char *capacity;          /* ADD                            */
    const char *weight;            /* ADD, WEIGHT                    */
    const char *const *values;     /* CREATE, SET: "quota=4GiB"; "quota=": not written */
                                   /* CREATE alone: "generation=3"   */
    uint32_t value_count;
    /* OUT, REMOVE of one that drains: when it was last read, as a clause; NULL: nobody asked; and
     * whether that is long enough ago */
    const char *read;
    bool is_unread;
    bool yes; /* REMOVE, OUT: although it is not drained, or may still be read, REMOVE: or is out;
                 SETTLE; ADD, UNDRAIN, DRAIN, WEIGHT: although another one joins, or drains, or a
                 weight changes */
};

/* The file with the change and an epoch raised by one. Nothing is written (conf_edit_write).
 * NOT_FOUND: the map has no such enclosure; EXISTS: it is so already; INVALID: it would leave the
 * pod without an enclosure that takes blocks, or lose or miss blocks without yes; CONFIG: the file
 * is wrong, or written in a style that cannot be changed line by line. */
icms_err conf_pod_change(const char *path, const struct conf_pod_change *change,
                         struct err_why *why, struct conf_pod *out_before,
                         struct conf_pod *out_after, struct conf_edit *out_edit) ICMS_MUST_CHECK;

#endif
