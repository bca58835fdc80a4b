/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_agent.h: an agent for the tests of libicms: agent.h and the unix socket, over a table in
 * memory, with switches for everything an agent may do wrong.
 *
 * It keeps the rules of shm/shm.h as the real one does, but has one thread, no deadlines and no
 * enclosures. Switches may be thrown from any thread at any time.
 */
#ifndef CLIENT_FAKE_AGENT_H
#define CLIENT_FAKE_AGENT_H

#include <stdatomic.h>
#include <stdbool.h>

#include "agent/agent.h"
#include "shm/shm.h"

/* The most reactors that an agent has, and the most clients. */
#define FAKE_REACTORS 8
#define FAKE_CLIENTS  16

/* A value that is in its slot, or in the client's memory, and is said to arrive there. */
struct fake_arriving {
    uint8_t *stored; /* value and trailer */
    uint32_t value_bytes;
    struct shm_complete *answer;
    struct shm_ring *ring;    /* of the client    */
    struct loop_event *event; /* that it waits for */
};

struct fake_switches {
    atomic_bool mute;      /* does not look at its rings at all: SIGSTOP            */
    atomic_bool swallow;   /* takes submissions and keeps them until it is off      */
    atomic_bool forget;    /* evicts everything that is not leased after each round */
    atomic_bool corrupt;   /* flips a byte of every value it loads into the arena   */
    atomic_bool lie;       /* answers gets with slots far outside of the arena      */
    atomic_bool echo;      /* gives each client its last answer again before the next */
    atomic_bool flood;     /* has answers to nothing, more as soon as the client took them */
    atomic_bool babble;    /* answers a hello or a question for its status with messages for ever */
    atomic_bool bad_tail;  /* writes a completion tail that makes no sense          */
    atomic_uint status;    /* answers everything with this number, when it is not 0  */
    atomic_uint delay_us;  /* before each answer                                    */
    atomic_bool checks;    /* says of what it delivers to a client's memory that it is whole */
    atomic_uint lossy;     /* reactor lossy - 1 answers flushes with IO; 0: none            */
    atomic_uint stuck;     /* reactor stuck - 1 does not look at its rings; 0: all do */
    atomic_uint damage;    /* flips byte damage - 1 of every value, trailer included, that it hands
                              out; 0: none                                          */
    atomic_uint version;   /* says that every value that it hands out is of this format version, in
                              a trailer that is whole; 0: of its own                  */
    atomic_uint hints_max; /* hints that it takes, all together                             */
    /* Called with each get of a client that takes parts, by the agent's thread; NULL: there are
     * none. What it puts into the ring comes before the answer, which it may change, too. False:
     * there is no answer. */
    bool (*_Atomic arriving)(struct fake_arriving *arriving);
    /* seen */
    atomic_uint prestages, hints; /* entries of PRESTAGE; hints that it has                  */
    atomic_uint gets, puts, exists, exists_manys, removes, flushes, cancels, touches, suspects;
    atomic_uint directs;                    /* gets into the memory of a client in this process */
    atomic_uint parted;                     /* gets of clients that take parts                    */
    atomic_uint onces[SHM_OP_PRESTAGE + 1]; /* entries with SHM_FLAG_ONCE, by op */
};

extern struct fake_switches fake;

/* All switches off, all counts zero. */
void fake_reset(void);

/* Serves agents' clients on a socket, until stop. Volumes: those of the agent. */
struct fake_socket;
struct fake_socket *fake_socket_start(struct agent *agent, const char *path);

/* Closes the listening socket and every client's: what a crash looks like. */
void fake_socket_stop(struct fake_socket **socket);

/* How many reactors agents have: FAKE_REACTORS of the environment; 1 without it. */
uint32_t fake_reactors(void);

/* An agent with volumes "kv" (sealed, values up to 64 KiB, 8 slots), "raw", "big" (8 MiB) and
 * "vault" (encrypted, number FAKE_VAULT, plain values up to FAKE_VAULT_BYTES). */
#define FAKE_VAULT       3
#define FAKE_VAULT_BYTES (((uint64_t)1 << 20) + 1000)
struct agent *fake_agent_start(void);

/* Says of a volume that no enclosure has it, or that one does. */
void fake_agent_volume_missing_set(struct agent *agent, uint32_t volume, bool missing);

/* The volume is being reset: its blocks are gone, and it has no identity. With a UUID that is over;
 * zeros: the pod has no such volume any more. */
void fake_agent_reset(struct agent *agent, uint32_t volume, const struct uuid *uuid);

/* Says of a volume that it is encrypted, or that it is not, to who attaches from now on. */
void fake_agent_encrypted_set(struct agent *agent, uint32_t volume, bool encrypted);

/* A value of its table with the trailer, copied; returns the value's bytes, 0: it has none, or one
 * that does not fit. And one put there as it is. */
uint32_t fake_agent_value_take(struct agent *agent, uint32_t volume, const struct key *key,
                               uint8_t *out, uint32_t bytes);
void fake_agent_value_give(struct agent *agent, uint32_t volume, const struct key *key,
                           const uint8_t *value, uint32_t value_bytes);

/* Whether these bytes are anywhere in memory that it shares with clients. */
bool fake_agent_memory_has(struct agent *agent, const void *bytes, size_t count);

/* Blocks that its table holds. */
unsigned fake_agent_blocks(struct agent *agent);

/* Entries of all lease tables that are in use. */
unsigned fake_agent_leases(struct agent *agent);

#endif
