/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmf/mem_transport.h: a transport of loop messages and memcpy, for tests: both sides in one
 * simulation. As with RDMA a host does not see its data move, and a withdraw takes a while.
 */
#ifndef NVMF_MEM_TRANSPORT_H
#define NVMF_MEM_TRANSPORT_H

#include "nvmf/transport.h"

extern const struct nvmf_host_transport nvmf_host_mem;
extern const struct nvmf_target_transport nvmf_target_mem;

/* What it moved, ever. */
struct mem_counts {
    uint32_t commands;  /* capsules                                         */
    uint32_t waits;     /* capsules that waited for a slot or memory        */
    uint32_t own;       /* capsules whose data came in the target's own memory */
    uint32_t reads;     /* transfers to the target                          */
    uint32_t writes;    /* transfers to the host before the command's end   */
    uint32_t withdraws; /* data that was not wanted any more                */
};

extern struct mem_counts mem_counts;

#endif
