/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/host/host_bed.h: the initiator and a small target, each on a simulated machine, for tests.
 *
 * Life: bed_new -> bed_ctrl -> bed_open (bed_ready does all three) -> bed_op, bed_go, bed_run ...
 * -> bed_free. One thread; assertions are cmocka's.
 */
#ifndef NVMF_HOST_HOST_BED_H
#define NVMF_HOST_HOST_BED_H

#include "loop/sim.h"
#include "nvmf/host.h"
#include "nvmf/host/fake_target.h"

#define MS        ((uint64_t)1000000)
#define BIG_BYTES (1u << 20)

/* Two machines and what the association between them told. */
struct bed {
    struct sim *sim;                      /* all of it                           */
    struct sim_node *node[2];             /* 0: host, 1: target                  */
    struct loop *loop[2];                 /* likewise                            */
    struct fake_target *fake;             /* on loop[1]                          */
    struct nvmf_ctrl *ctrl;               /* on loop[0]                          */
    uint64_t timeout_ns;                  /* of the next open                    */
    uint32_t ups, changes, downs, closes; /* calls of bed_ctrl's ops             */
    icms_err down_err;                    /* of the last down                    */
    char why[LIMIT_REASON_BYTES];         /* its sentence                        */
};

/* A request, and how it ended. */
struct op {
    struct nvmf_req req;                                             /* the request */
    icms_err (*start)(struct nvmf_ctrl *ctrl, struct nvmf_req *req); /* its verb    */
    icms_err start_err;                                              /* of start    */
    uint32_t done, done_in_call; /* calls of done; inside start           */
    uint64_t done_ns;            /* when, by the host's clock */
    struct bed *bed;             /* whose       */
};

/* Two machines and a target with two volumes, the first sealed; bytes_per_s: of the network, 0: the
 * usual. */
struct bed *bed_new(uint64_t bytes_per_s);
void bed_free(struct bed *bed);

/* Makes the association; opts may be NULL. */
void bed_ctrl(struct bed *bed, struct nvmf_ctrl_opts *opts);

/* Opens it, with a second or so much time; bed_open runs until that is over. */
void bed_open(struct bed *bed);
void bed_open_within(struct bed *bed, uint64_t timeout_ns);

/* All of that; it is up. */
struct bed *bed_ready(struct nvmf_ctrl_opts *opts, uint64_t bytes_per_s);

/* The host's time. */
uint64_t bed_now_ns(const struct bed *bed);
void bed_run(struct bed *bed, uint64_t ns);

/* Runs a function on one of the two loops: any one, or one of those below, which take the bed. */
void bed_on_loop(struct bed *bed, int i, void (*run)(void *arg), void *arg);
void bed_do_close(void *arg);
void bed_do_release(void *arg);
void bed_do_event(void *arg);
void bed_do_drop(void *arg);

/* Prepares a request for volume 1. */
void bed_op(struct op *op, struct bed *bed, const char *key, void *data, uint32_t bytes,
            uint64_t timeout_ns);

/* Starts it on the association's loop. */
icms_err bed_go(struct op *op, icms_err (*start)(struct nvmf_ctrl *ctrl, struct nvmf_req *req));

/* Bytes that depend on their place and the seed, from malloc. */
uint8_t *bed_pattern(uint32_t bytes, uint8_t seed);

/* Puts a block into volume 1 of the target. */
void bed_put(struct bed *bed, const char *key, const void *data, uint32_t bytes);

/* A uuid of sixteen times n. */
void bed_uuid(struct uuid *uuid, uint8_t n);

#endif
