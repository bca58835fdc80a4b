/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target/target_test_rig.h: an enclosure on simulated loops and drives, used over NVMe/TCP and from
 * inside. Tests only; a failed step ends the test.
 */
#ifndef TARGET_TARGET_TEST_RIG_H
#define TARGET_TARGET_TEST_RIG_H

#include "nvmf/target/test_peer.h"
#include "target/target_int.h"

#define VALUE_MAX ((uint32_t)256 << 10)
#define MIB       ((uint64_t)1 << 20)

struct rig {
    struct sim *sim;
    struct sim_node *node, *host;
    struct target_drive_opts drives[8];
    char paths[8][32];
    struct volume_spec volumes[2];
    struct target_opts opts;
    struct target *target;
    const char *host_nqn; /* who connects; NULL: the peer's own name */
    struct peer *admin, *io;
    uint8_t value[VALUE_MAX], back[VALUE_MAX];
};

/* A call from inside, with its answer. */
struct inside {
    struct target_call call;
    struct target *target;
    struct loop_msg msg; /* carries it to loop 0 */
    bool over;
};

/* What the target of the last rig_try told (opts.warned); NULL after the last sentence. */
const char *rig_warning(uint32_t index);

/* Starts the target of the options, and connects to it; rig_try: the error, if that fails. */
void rig_up(struct rig *rig);
icms_err rig_try(struct rig *rig, struct err_why *why);

/* Stops it. */
void rig_down(struct rig *rig);

/* Ends it as a crash does, or as a power failure. */
void rig_crash(struct rig *rig);
void rig_crash_power(struct rig *rig, bool power);

/* An enclosure with so many loops and drives that is not up. */
struct rig *rig_new(uint32_t loops, uint32_t drives);
void rig_free(struct rig **rig_ref);

/* One whose loops hear each other late, by up to so long. */
struct rig *rig_new_far(uint32_t loops, uint32_t drives, uint64_t message_ns);

/* How long a value is; makes it in rig->value. */
uint32_t value_bytes(uint64_t seed);
void value_make(struct rig *rig, uint64_t seed);

/* Sixteen characters, of which the first four are the run. */
const char *key_text(uint32_t run, uint32_t block);
uint16_t put(struct rig *rig, uint32_t nsid, const char *key, uint64_t seed);

/* The status; with success the bytes have to be right. */
uint16_t get(struct rig *rig, uint32_t nsid, const char *key, uint64_t seed,
             struct nvme_cqe *out_cqe);

/* How many of a number of keys are there; stores them all. */
uint32_t hits(struct rig *rig, uint32_t nsid, uint32_t count);
void fill(struct rig *rig, uint32_t nsid, uint32_t count);

/* The end of a call; its begin, as a message on loop 0. */
void inside_done(struct target_call *call);
void inside_begin(struct loop_msg *msg);

/* Begins one with memory of its own, all ones, which is freed by whoever looks at the answer. */
void inside_send(struct rig *rig, struct inside *inside, enum nvmf_target_op op, const char *key,
                 uint64_t memory_bytes, uint32_t value_bytes);

/* Runs one; its error. */
icms_err inside_run(struct rig *rig, struct inside *inside);

/* Passed over from now on, so slow that no probe says otherwise; in use again. */
void drive_slow(struct rig *rig, uint32_t drive);
void drive_well(struct rig *rig, uint32_t drive);

/* Stores value n under a key for each n from first on until so many went to the drive; their
 * numbers. */
void fill_drive(struct rig *rig, uint32_t drive, uint32_t first, uint32_t *out_n, uint32_t count);

#endif
