/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/link.h: the attachment of a handle to one agent, for who makes one: attach.c over a
 * socket, src/inprocess for an agent in this process.
 *
 * Life: client_link_new -> regions and events are filled in -> client_link_view -> the handle has
 * it -> client_link_free. Made by one thread; what is guarded by the handle's lock afterwards says
 * "lock".
 */
#ifndef CLIENT_LINK_H
#define CLIENT_LINK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/err.h"
#include "base/list.h"
#include "base/types.h"
#include "icms/icms.h"
#include "shm/shm.h"

struct icms;

/* ---- staging memory ------------------------------------------------------------------------- */

#define STAGING_GRANULE 4096

/* Which granules of the staging memory are taken: a bit each. Guarded by the handle's lock. */
struct staging {
    uint64_t *taken;       /* bit i: granule i                            */
    uint32_t granules;     /* of the memory                               */
    uint32_t free_count;   /* granules that are not taken                 */
    uint32_t search_begin; /* where the next search begins: next fit      */
};

icms_err staging_init(struct staging *staging, uint64_t bytes) ICMS_MUST_CHECK;
void staging_fini(struct staging *staging);

/* False when there is no such room at this moment. */
bool staging_take(struct staging *staging, uint64_t bytes, uint64_t *out_offset);
void staging_give(struct staging *staging, uint64_t offset, uint64_t bytes);

/* ---- the link to an agent ------------------------------------------------------------------- */

struct client_map {
    void *base;     /* start of the mapping; an in-process agent's stay its own */
    uint64_t bytes; /* of it                */
};

/* Memory given out by icms_buffer_take; a member of link.buffers. Lock. */
struct client_buffer {
    uint64_t offset; /* in staging memory; is_private: in icms.crypt             */
    uint64_t bytes;  /* taken there: what was asked for, room for a trailer      */
    uint64_t room;   /* what was asked for                                       */
    bool used;       /* the entry is in use                                      */
    bool busy;       /* a put reads it in place: not a second one, and not freed */
    bool given;      /* given back while busy: freed when the put is answered    */
    bool is_private; /* the agent does not see it: of a handle with keys         */
};

#define CLIENT_BUFFERS 256

/* Descriptors that an agent passes: the client region, our event, those of its reactors, the
 * arenas. */
#define CLIENT_FDS (2 + LIMIT_LOOPS + LIMIT_AGENT_VOLUMES)

/* The attachment to one agent. Made by client_attach_unix or client_local_*; it stays mapped until
 * the handle lets go of it, also after its agent died. */
struct client_link {
    struct icms *icms;                           /* the handle; NULL until it has it             */
    struct list retired;                         /* in icms.retired; lock                        */
    uint32_t leases;                             /* given out by icms_lease_take; lock           */
    struct client_map region;                    /* the client region                            */
    struct client_map maps[LIMIT_AGENT_VOLUMES]; /* the arena regions                            */
    uint32_t arena_count;
    uint32_t reactor_count;             /* of the agent                                 */
    struct shm_arena *shards;           /* [arena_count][reactor_count] checked views   */
    struct shm_ring rings[LIMIT_LOOPS]; /* [reactor_count] checked views of the region; the first
                                           one also stands for what they share; lock */
    int sock;                           /* its end is the agent's end; -1: in-process   */
    int agent_events[LIMIT_LOOPS];      /* [reactor_count] eventfds; we write 1 to wake */
    int client_event;                   /* readable after the agent's signal            */
    bool events_owned;                  /* closed with the link                         */
    int fds[CLIENT_FDS];                /* received, until they are mapped or owned     */
    uint32_t fd_count;
    uint32_t load_deadline_ms, store_deadline_ms; /* the agent's defaults                     */
    struct client_inside *inside;                 /* the agent when it is in this process; NULL   */
    _Atomic uint32_t device_leases;               /* held by copies to devices                    */
    bool kept; /* a driver did not let go of its arenas: it stays for ever; lock */
    struct client_link *kept_next;                /* in links_kept */
    bool down;                                    /* the agent is gone for good; lock             */
    bool silent;                                  /* it let deadlines pass without a look; lock   */
    uint32_t silent_reactor;                      /* the one that did; lock                       */
    uint64_t silent_beat_ns;                      /* its last look when that was seen; lock       */
    uint64_t nudge_ns;                            /* when a silent agent was last woken; lock     */
    struct staging staging;                       /* lock                                         */
    struct client_buffer buffers[CLIENT_BUFFERS]; /* lock                                */
    _Atomic uint64_t leases_taken[SHM_LEASES / 64]; /* bit i: entry i                      */
    struct {
        uint64_t offset, bytes;  /* in icms.crypt; bytes 0: it lies in the arena            */
    } privates[ICMS_LEASES_MAX]; /* of the leases of icms_lease_take; lock                 */
};

/* Frees the memory, descriptors and in-process agent; *link may be NULL. */
void client_link_free(struct client_link **link);
icms_err client_link_new(struct client_link **out_link) ICMS_MUST_CHECK;

/* Looks at regions that were mapped: rings, arenas, deadlines, staging. */
icms_err client_link_view(struct client_link *link, struct err_why *why) ICMS_MUST_CHECK;

#endif
