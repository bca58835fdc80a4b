/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store/store_rig.h: a drive, a loop and a store for tests, on either back end.
 *
 * The test's body runs on the main thread. Operations are handed to the loop and waited for; the
 * store is touched from the main thread only while the loop does not run (rig_down).
 */
#ifndef STORE_STORE_RIG_H
#define STORE_STORE_RIG_H

#include <stdatomic.h>

#include "store/store.h"

#define RIG_SEGMENT_BYTES   ((uint64_t)64 << 10)
#define RIG_VALUE_BYTES_MAX 49020 /* the largest: with its headers it fills a segment */
#define RIG_VOLUMES_MAX     1024

struct sim;
struct sim_node;
struct sim_opts;

struct rig {
    struct loop_env *env;
    struct store_opts opts;
    struct loop *loop; /* NULL: down */
    struct store *store;
    uint32_t volume_count; /* rows of uuid and quota: the volumes of the store */
    struct uuid uuid[RIG_VOLUMES_MAX];
    uint64_t quota_bytes[RIG_VOLUMES_MAX];
    atomic_int down_calls; /* of store_ops.down                */
    atomic_bool is_down;   /* it was called since the open     */
    struct sim *sim;       /* simulated back end, else NULL    */
    struct sim_node *node;
    char directory[64];
    char path[96];
};

enum rig_kind { RIG_WRITE, RIG_READ, RIG_DELETE, RIG_FLUSH };

/* One operation and its memory. */
struct rig_op {
    enum rig_kind kind;
    uint32_t volume; /* row, not number                   */
    struct key key;
    uint64_t seed;                   /* write: what the value is made of  */
    uint32_t value_bytes;            /* write                             */
    bool if_absent;                  /* write                             */
    bool prefilled;                  /* write: the value is in memory     */
    uint64_t record;                 /* read: which one it was; delete: the only one, 0: any */
    void (*more)(struct rig_op *op); /* read: in pieces; called on the loop */
    icms_err started;                /* what the call returned            */
    icms_err err;                    /* what done said                    */
    enum icms_miss reason;
    atomic_int done; /* 1: finished                       */
    struct rig *rig;
    uint8_t *memory;
    uint64_t memory_bytes;
    union {
        struct store_write write;
        struct store_read read;
        struct store_delete delete;
        struct store_flush flush;
    } u;
    struct loop_msg msg;
};

/* cmocka fixtures: *state is the rig; a fresh drive of 4 MiB in 64 KiB segments that is not
 * formatted yet. */
int rig_uring_setup(void **state);
int rig_uring_teardown(void **state);
int rig_sim_setup(void **state);
int rig_sim_teardown(void **state);

/* For main(): the argument "uring" chooses the cases whose names begin with it, "sim" all others;
 * without one all run. */
void rig_choose(int argc, char **argv);

/* A simulated machine of one's own. */
void rig_sim_init(struct rig *rig, const struct sim_opts *opts);

struct uuid rig_uuid(uint64_t n);
struct key rig_key(uint64_t n);

void rig_format(struct rig *rig);

/* One volume, all of the drive. */
void rig_one_volume(struct rig *rig);

/* Opens the store on the loop, with its volumes. */
icms_err rig_open(struct rig *rig, struct err_why *why);

/* Opens and runs; down: stops and closes. A crash looks the same: close writes nothing. */
void rig_up(struct rig *rig);
void rig_down(struct rig *rig);
void rig_restart(struct rig *rig);

/* Stops the loop, fails where the index is not what is on flash, and takes the store down. */
void rig_verify(struct rig *rig);
bool rig_until(struct rig *rig, bool (*condition)(void *arg), void *arg);

/* Fills memory with what a seed stands for; rig_check says whether memory holds it. */
void rig_fill(uint8_t *memory, uint64_t bytes, uint64_t seed);
bool rig_check(const uint8_t *memory, uint64_t bytes, uint64_t seed);

/* Takes the memory an operation needs; rig_op_free gives it back. */
struct rig_op *rig_op_new(struct rig *rig, enum rig_kind kind, uint64_t bytes);
void rig_op_free(struct rig_op *op);

/* Starts; waits for the end. */
void rig_op_start(struct rig_op *op);
void rig_op_wait(struct rig_op *op);

/* The same for one operation at a time; what done said. */
icms_err rig_put(struct rig *rig, uint32_t volume, uint64_t key, uint32_t bytes, uint64_t seed,
                 bool if_absent);
icms_err rig_delete(struct rig *rig, uint32_t volume, uint64_t key);
icms_err rig_flush(struct rig *rig);

/* Reads and compares: OK, MISS (out_reason says why), or CORRUPT when it is not the seed's value.
 */
icms_err rig_get(struct rig *rig, uint32_t volume, uint64_t key, uint32_t bytes, uint64_t seed,
                 enum icms_miss *out_reason);

/* Runs a function on the loop. */
void rig_call(struct rig *rig, void (*call)(struct rig *rig, void *arg), void *arg);

/* Waits until the segment that a block lies in has its summary on flash. */
void rig_wait_sealed(struct rig *rig, uint32_t volume, uint64_t key);

bool rig_exists(struct rig *rig, uint32_t volume, uint64_t key);

/* Taken on the loop, so that counters fit together: an eviction that goes on meanwhile is in all of
 * them or in none. */
void rig_stats(struct rig *rig, struct store_stats *out_stats);
void rig_volume_stats(struct rig *rig, uint32_t volume, struct store_volume_stats *out_stats);

/* Changes a byte of the drive behind the store's back. */
void rig_flip(struct rig *rig, uint64_t offset, uint8_t mask);

/* Copies bytes of the drive that were written; and back, while the store is down. */
void rig_peek(struct rig *rig, uint64_t offset, void *memory, uint64_t bytes);
void rig_poke(struct rig *rig, uint64_t offset, const void *memory, uint64_t bytes);

#endif
