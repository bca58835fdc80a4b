/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/target/target_test.h: the rig of the target's tests: a target on simulated loops whose
 * owner keeps values in memory. Test code only; one thread.
 */
#ifndef NVMF_TARGET_TARGET_TEST_H
#define NVMF_TARGET_TARGET_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "nvmf/target.h"
#include "nvmf/target/test_peer.h"

#define BOTH_DIGESTS (NVME_TCP_FLAG_HDGST | NVME_TCP_FLAG_DDGST)

#define RIG_LOOPS_MAX 4
#define RIG_VALUE_MAX ((uint32_t)8 << 20)
#define RIG_HEADROOM  64

struct rig_value {
    struct rig_value *next;
    uint32_t ns;
    struct key key;
    uint32_t bytes;
    uint8_t *data;
};

struct rig {
    struct sim *sim;
    struct sim_node *node, *host;
    struct loop *loops[RIG_LOOPS_MAX];
    uint32_t loop_count;
    struct nvmf_target *target;
    struct loop_addr addr;
    struct rig_value *values; /* what was stored                                   */
    bool hold;                /* commands stay with the owner until rig_let_go     */
    struct nvmf_target_req *held[1024];
    struct rig_msg {
        struct loop_msg msg;
        struct rig *rig;
        struct nvmf_target_req *req;
        uint32_t bytes;
        icms_err err;
        enum icms_miss reason;
    } let_go[1024];
    uint32_t held_count;
    uint32_t executed; /* commands that reached the owner                   */
    uint32_t sent;     /* calls of ops.sent                                 */
    struct nvmf_target_health health;
    bool direct; /* retrieves answer from the owner's own memory      */
};

/* Changes the options before the target is made; NULL: defaults. */
struct rig *rig_new(uint32_t loops, void (*change)(struct nvmf_target_opts *opts));
void rig_free(struct rig **rig);

/* Answers what was held. */
void rig_let_go(struct rig *rig);

/* Of the first command held, a Retrieve: so many bytes of its value are ready. */
void rig_more(struct rig *rig, uint32_t bytes);

/* The first command held ends with this error, after so many bytes. */
void rig_break(struct rig *rig, icms_err err, enum icms_miss reason);

/* The owner has a value of zeros, made or overwritten. */
void rig_put(struct rig *rig, uint32_t ns, const char *key, uint32_t bytes);

/* A connected peer; it must succeed. */
struct peer *rig_peer(struct rig *rig);

/* One that will connect to the discovery service. */
struct peer *rig_discovery_peer(struct rig *rig);

/* Writes the register CC of a controller: the status. */
uint16_t rig_cc_set(struct peer *admin, uint32_t cc);

/* A peer that is the admin queue of an enabled controller; an I/O queue of it. */
struct peer *rig_admin(struct rig *rig, uint8_t digests);
struct peer *rig_io(struct rig *rig, const struct peer *admin, uint16_t qid, uint8_t digests);

/* Lets time pass. */
void rig_run(struct rig *rig, uint32_t ms);

void rig_stats(struct rig *rig, struct nvmf_target_stats *out_stats);

/* Bytes that depend on seed. */
void rig_fill(uint8_t *data, uint32_t bytes, uint64_t seed);

/* Checks that nothing is left over: no buffer, no connection. */
void rig_expect_clean(struct rig *rig);

#endif
