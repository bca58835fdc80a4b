/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/prestage.h: hints that blocks will be asked for soon, and what becomes of them.
 *
 * A hint belongs to a user of a volume, and has a key, a time by which the block will be asked for,
 * a priority, and a tier where the block is to be by then: the agent's memory, or the own drive
 * under it. On a reactor's loop.
 *
 * Order. Users of volumes take turns by the weights of volumes and by bytes (base/line.h); of one
 * user the hint with the highest priority goes first, then the one with the earliest deadline.
 *
 * Never ahead of loads. A hint is loaded with class prestage, in a queue pair of its own, while no
 * request waits for an operation or for space, within a window of bytes that is smaller while loads
 * are in flight, and a part of it for each enclosure. It evicts no block that another hint keeps. A
 * load of a key that is in flight is joined, whoever began it; a get joins the load of a hint,
 * which goes on as a load then.
 *
 * In time. A hint whose block cannot arrive by its deadline, by what loads from that server take,
 * is dropped before it is loaded (prestage_pace.c). The load of a hint may last as long as the hint
 * has time, and not only as long as that of a get: on a slow path large blocks arrive, too. After a
 * second it is out of the window, and further hints from that server rest: one that does not answer
 * holds up the others of its users for a second.
 *
 * Kept. A block that arrived is not evicted until it is read, or until AGENT_HINT_GRACE_NS after
 * its deadline. Such blocks take 1 / AGENT_KEPT_SHARE of the shard's memory at most, its users with
 * hints equal parts. A hint for which there is no place takes that of a user with more than its
 * part, or of one of the same user that has its turn later; else it waits. Who gave its place stays
 * in memory while nothing else needs it, and is loaded again after that. A load or a store that
 * finds no other space evicts also what is kept.
 *
 * To the own drive (tier.h). Such hints have turns of their own, behind those for memory, and
 * within the same window. The block is loaded into memory, where a get finds it and where nothing
 * keeps it, and is copied to the drive from there. No more are begun than the drive has buffers
 * for. When its write budget refuses one, nothing is begun for HINT_BUDGET_NS, and one at a time
 * until one is taken. Such a hint was in time when a get, or a hint for memory, finds the block
 * there or still in memory. Without the drive, or while it is down or slow, such hints fail.
 *
 * Pins. A hint with a time to stay is a pin: it is not over when its block is read, but at that
 * time, when it is taken back, or when the place of its user goes to another user. It belongs to
 * the user, not to a process: the end of a client ends no pin. A block that goes all the same (it
 * is replaced, or the drive evicts it) is brought again; one that is removed, that the pod does not
 * have, or of another identity of the volume, ends its pin. While the drive is down or slow or over
 * its budget, or the enclosure is away, a pin rests, and has its turn again every
 * AGENT_PIN_LOOK_NS. Eviction passes over pinned blocks in memory, but when the space for a load or
 * a store cannot be made of others, kept blocks included, that lie beside each other, and when
 * another volume takes a slab beyond the floor: so pins can stop nobody. On the drive, where what a
 * segment has goes together, pins are accesses, every AGENT_PIN_LOOK_NS. Bytes of pins are limited
 * by volume and tier (volume_spec.pin_percent_max) and, on the drive, by half of it for all; their
 * number by AGENT_PINS. Of each of these a user may have as much as is free. What is more is
 * refused. When another volume takes a slab, pins that have more than their part of what is left
 * become hints, the latest of the user with the most first.
 *
 * Limits. A reactor has AGENT_HINTS. A user may have as many as are free, so one alone may have
 * half of them, and who comes later finds some. What is more is refused and counted.
 *
 * Guests. Whoever gives no proof has his hints with those of the owner, behind all of them: such a
 * hint takes the place of such alone, and where there is another for its block it changes nothing.
 *
 * What becomes of a hint: one of enum agent_hint_end, counted once.
 */
#ifndef AGENT_PRESTAGE_H
#define AGENT_PRESTAGE_H

#include "agent/agent.h"
#include "base/err.h"
#include "base/types.h"

struct agent_op;
struct agent_reactor;
struct agent_shard;
struct agent_user_share;

#define AGENT_HINTS 16384 /* of a reactor                                      */
#define AGENT_PINS  8192  /* of these                                          */

/* Who gives no proof (HTTP without a token) gives hints while their user has fewer than these. */
#define AGENT_HINTS_GUEST (AGENT_HINTS / 8)

/* Of a shard's memory: blocks that wait to be read take a part at most. */
#define AGENT_KEPT_SHARE 2

/* A deadline is somebody's estimate: blocks are kept for so long after it. */
#define AGENT_HINT_GRACE_NS ((uint64_t)1000 * 1000 * 1000)

/* How often a pin looks for its block and its user. */
#define AGENT_PIN_LOOK_NS ((uint64_t)10 * 1000 * 1000 * 1000)

/* What keeps a block in memory; the larger goes later. */
enum agent_kept {
    AGENT_KEPT_NOT,
    AGENT_KEPT_HINT, /* evicted when nothing else can be                                    */
    AGENT_KEPT_PIN,  /* nor what hints keep; and with a slab that another volume takes      */
};

/* What is asked for of a block. once: if it is loaded for the hint, it is not kept when it was read
 * (agent_shard_touch). */
struct agent_wish {
    uint64_t need_ns;  /* absolute: by when                                     */
    uint64_t pin_ns;   /* how long it stays from then on; 0: it is no pin       */
    uint32_t priority; /* up to ICMS_PRIORITY_MAX                               */
    uint32_t tier;     /* enum icms_tier                                        */
    bool once;         /* DRAM, no pin: it will be read once at most            */
    bool guest;        /* from who gave no proof                                */
};

icms_err agent_prestage_init(struct agent_reactor *reactor) ICMS_MUST_CHECK;
void agent_prestage_fini(struct agent_reactor *reactor);

/* Whether there is such a tier (enum icms_tier). */
bool agent_hint_has_tier(const struct agent *agent, uint32_t tier);

/* Takes a hint. NONE: taken; SHED: there are too many; DEADLINE: its time has passed; QUOTA: it is
 * a pin, and there are too many. */
enum icms_miss agent_hint_take(struct agent_shard *shard, struct agent_user_share *user,
                               const struct key *key, const struct agent_wish *wish);

/* Takes one hint of a user back for each tier, a pin at once. NONE: there was one; ABSENT: there
 * was none. */
enum icms_miss agent_hint_cancel(struct agent_shard *shard, const struct agent_user_share *user,
                                 const struct key *key);

/* A get did not find the block, and waits for this load of it. */
void agent_hint_asked(struct agent_shard *shard, const struct key *key, struct agent_op *op);

/* Whether there is a hint that is not served yet: the block is loaded into the arena. */
bool agent_hint_waits(const struct agent_shard *shard, const struct key *key);

#endif
