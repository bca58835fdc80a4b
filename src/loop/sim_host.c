/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a simulated machine lacks: memory for its programs, memory that they may lock, a wall clock
 * that nobody sets.
 *
 * Who is meant is who runs: the loop that has its turn, or the machine that control named
 * (sim_node_as). What the simulation allocates is memory of its kernels, of which there is always
 * enough.
 */
#include <stdlib.h>
#include <string.h>

#include "loop/sim_int.h"

/* 2026-01-01T00:00:00Z */
#define SIM_WALL_NS ((uint64_t)1767225600 * 1000000000)

static struct sim_node *host_acting; /* of sim_node_as */

/* The simulation allocates for itself. Compilers know that allocators read nothing of a program,
 * which is not so where they are wrapped. */
static volatile bool host_is_kernel;

static struct sim_node *host_running(void)
{
    return loop_current != NULL ? sim_node_of(loop_current->env) : host_acting;
}

void sim_node_as(struct sim_node *node)
{
    check(loop_current == NULL);
    host_acting = node;
}

/* ---- memory --------------------------------------------------------------------------------- */

void *sim_alloc(size_t bytes)
{
    void *memory;

    host_is_kernel = true;
    memory = calloc(1, bytes);
    host_is_kernel = false;
    check(memory != NULL);
    return memory;
}

void *sim_alloc_pages(size_t bytes)
{
    void *memory;

    host_is_kernel = true;
    memory = aligned_alloc(SIM_PAGE, bytes);
    host_is_kernel = false;
    check(memory != NULL);
    memset(memory, 0, bytes);
    return memory;
}

void sim_memory_short(struct sim_node *node, uint32_t one_of)
{
    node->short_of = one_of;
}

bool sim_memory_refused(struct sim_node *node)
{
    if (node->short_of == 0 || sim_below(node->sim, node->short_of) != 0)
        return false;
    node->sim->stats.memory_refused++;
    sim_trace(node->sim, SIM_TRACE_REFUSED, node, false, 0);
    return true;
}

bool sim_memory_fails(void)
{
    struct sim_node *node = host_is_kernel ? NULL : host_running();

    return node != NULL && sim_memory_refused(node);
}

void sim_locked_none(struct sim_node *node, bool on)
{
    node->no_locked = on;
}

/* ---- the wall clock ------------------------------------------------------------------------- */

void sim_wall_set(struct sim_node *node, int64_t ahead_ns)
{
    node->ahead_ns = ahead_ns;
}

bool sim_wall_ns(uint64_t *out_ns)
{
    struct sim_node *node = host_running();

    if (node == NULL)
        return false;
    node->sim->stats.wall_reads++;
    *out_ns = SIM_WALL_NS + node->sim->now_ns + (uint64_t)node->ahead_ns;
    return true;
}
