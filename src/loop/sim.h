/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loop/sim.h: the simulated machine room. Everything in it follows from one seed.
 *
 * One thread runs every loop of every node in virtual time. A node is a machine: it has an address,
 * files and loops; a daemon on it has one or more loops. Faults are drawn from the seed with the
 * probabilities of sim_opts, or commanded by a test.
 *
 * Not thread-safe: one sim, one thread.
 */
#ifndef LOOP_SIM_H
#define LOOP_SIM_H

#include "loop/loop.h"

struct sim;
struct sim_node;

struct sim_opts {
    uint64_t seed;
    uint64_t net_delay_min_ns;  /* one way, each piece                                   */
    uint64_t net_delay_max_ns;  /* pieces of one connection stay in order                */
    uint64_t net_bytes_per_s;   /* of one connection                                     */
    uint32_t net_buffer_bytes;  /* of each socket, for sending and again for receiving   */
    uint32_t net_backlog;       /* connections that wait at a listener                   */
    uint64_t disk_delay_min_ns; /* each read or write                                    */
    uint64_t disk_delay_max_ns;
    uint64_t disk_bytes_per_s;
    bool disk_discard;             /* disks take discards                                   */
    uint32_t disk_streams;         /* write streams of each disk                            */
    uint64_t message_delay_max_ns; /* between loops of one daemon                          */
    bool strict;  /* the kernel scribbles into memory it may write, and checks that what it reads
                     does not change meanwhile: finds buffers that are used too early */
    bool verbose; /* a line on standard error for all that goes into the trace hash */
    /* per million operations, while faults are on */
    uint32_t disk_read_error_ppm;
    uint32_t disk_write_error_ppm;
    uint32_t disk_write_lost_ppm; /* answered, never on the medium                        */
    uint32_t disk_write_torn_ppm; /* answered, only some 512-byte pieces on the medium    */
    uint32_t disk_corrupt_ppm;    /* a byte of what is read is flipped on the medium      */
    uint32_t conn_reset_ppm;      /* a piece kills its connection                         */
    uint32_t net_flip_ppm;        /* a bit of a piece flips on the way, but for the first
                                     SIM_FLIP_FROM bytes of a stream                      */
    uint32_t delay_spike_ppm;     /* an operation takes up to 100 times longer            */
};

/* In which both sides of a connection agree how they protect all that follows. */
#define SIM_FLIP_FROM 512

/* Sensible speeds, strict, no faults. */
void sim_opts_init(struct sim_opts *opts, uint64_t seed);

struct sim *sim_new(const struct sim_opts *opts);

/* Frees everything, also what crashed daemons left open. */
void sim_free(struct sim **sim);

/* The random faults of sim_opts: on at start; off ends them (commanded ones stay). */
void sim_faults(struct sim *sim, bool on);

/* Runs until virtual time or until nothing is left to do; false when until was reached with work
 * left. */
bool sim_run(struct sim *sim, uint64_t until_ns);

/* Runs one event; false when there is none. */
bool sim_step(struct sim *sim);

/* Runs a function on a loop, and events until it ran; checks that it does. */
void sim_call(struct sim *sim, struct loop *loop, void (*run)(void *arg), void *arg);
uint64_t sim_now_ns(const struct sim *sim);
uint64_t sim_random(struct sim *sim);

/* A machine with an address ("10.1.0.1") and a clock of its own. */
struct sim_node *sim_node_new(struct sim *sim, const char *host);

/* Another address of a machine, for sim_net_cut and sim_net_far: they concern what is connected to
 * it alone, and those of the machine all of its addresses. Nothing runs on it: what listens on any
 * address of the machine can be reached by it, too. */
struct sim_node *sim_node_address(struct sim_node *node, const char *host);
struct loop_env *sim_node_env(struct sim_node *node);

/* Ends the loops of the node at once: no callback runs any more and nothing touches the daemon's
 * memory; locks are released; connections reset after a network delay (silent: never, and until the
 * next listener or connect of the node nothing that is sent to it arrives). power: writes that were
 * not flushed are each kept, lost or torn at random; without power loss all completed writes stay,
 * those in flight are each kept, lost or torn. The daemon's memory is the caller's to free, with or
 * without closing its handles and freeing its loops. Files stay for the next daemon of the node.
 * Not from a callback. */
void sim_node_crash(struct sim_node *node, bool power, bool silent);

/* A stopped process (SIGSTOP): its loops stand still, the kernel of the node still accepts and
 * buffers. */
void sim_node_pause(struct sim_node *node, bool paused);

/* A black hole: packets between the two vanish, nothing is reset. b NULL: from and to everybody. */
void sim_net_cut(struct sim *sim, struct sim_node *a, struct sim_node *b, bool cut);

/* One way: what the first sends to the second vanishes. One of them may be NULL: everybody. */
void sim_net_cut_way(struct sim *sim, struct sim_node *from, struct sim_node *to, bool cut);

/* Everything that the node sends and receives by connections takes so much longer, each way; 0 is
 * normal. */
void sim_net_far(struct sim_node *node, uint64_t ns);

/* Of the packets that the machine sends and receives by connections so many of a million are lost
 * and sent again: at once when others behind them tell, else after 200 ms, then 400 ms and so on;
 * what is behind them waits. A connect asks again after a second. 0 is normal. */
void sim_net_lossy(struct sim_node *node, uint32_t ppm);

/* A switch on the machine's way takes no packet larger than an Ethernet frame: where a connection
 * has more to send than fits into one, that and what is behind it waits until the switch is normal
 * again, or for ever, when the connection ends before. */
void sim_net_small(struct sim_node *node, bool on);

/* Resets all connections of the machine. */
void sim_net_reset(struct sim_node *node);

/* Multiplies a node's disk delays (1 is normal). */
void sim_disk_slow(struct sim_node *node, uint32_t factor);

/* The same for one file of the node, on top of that. */
void sim_file_slow(struct sim_node *node, const char *path, uint32_t factor);

/* A drive that died: every read, write and flush of the file fails from now on. */
void sim_disk_dead(struct sim_node *node, const char *path, bool dead);

/* The file system has no space: every write of the file fails with NO_SPACE, whatever it wrote
 * before. */
void sim_disk_full(struct sim_node *node, const char *path, bool full);

/* The medium of a file of the node, for tests that look or flip; NULL when there is none. */
uint8_t *sim_file_medium(struct sim_node *node, const char *path, uint64_t *out_bytes);

/* The write stream to which the page of the file at this offset was written last; 0: to none. */
uint32_t sim_file_stream(struct sim_node *node, const char *path, uint64_t offset);

/* ---- what a machine lacks ------------------------------------------------------------------- */

/* Of so many allocations of the machine's programs one fails, by chance; 1: each; 0: none. That is
 * a socket, region, event or file, and what they allocate themselves where the allocator is wrapped
 * and asks sim_memory_fails (test/sim/pod_host.c). Ends with a crash as well: the limit was that of
 * the process. */
void sim_memory_short(struct sim_node *node, uint32_t one_of);

/* Whether an allocation of who runs at this moment has to fail, counted when it is so: a loop that
 * has its turn, or control for a machine (sim_node_as). Never for what the simulation allocates. */
bool sim_memory_fails(void);

/* The programs of the machine may lock no memory: regions are not registered any more. */
void sim_locked_none(struct sim_node *node, bool on);

/* The wall clock of the machine is set so much ahead (or back). loop.h has no such clock: who wraps
 * clock_gettime() asks sim_wall_ns, which is false when nobody's program runs, and counts. */
void sim_wall_set(struct sim_node *node, int64_t ahead_ns);
bool sim_wall_ns(uint64_t *out_ns);

/* What control calls from now on is done by a program of the machine; NULL: by nobody's. */
void sim_node_as(struct sim_node *node);

/* What the troubles above did. */
struct sim_stats {
    uint64_t packets_lost;   /* each time that one was               */
    uint64_t streams_held;   /* by packets that were too large       */
    uint64_t memory_refused; /* allocations that failed              */
    uint64_t locked_refused; /* regions that were not registered     */
    uint64_t wall_reads;     /* of wall clocks, by programs          */
};

void sim_stats(const struct sim *sim, struct sim_stats *out_stats);

/* ---- what happened -------------------------------------------------------------------------- */

/* Events run so far: two runs of one seed agree. */
uint64_t sim_events(const struct sim *sim);

/* A hash over all that happened (time, kind, node, bytes): equal for equal seeds. */
uint64_t sim_trace_hash(const struct sim *sim);

#endif
