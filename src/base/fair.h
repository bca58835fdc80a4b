/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/fair.h: whose turn it is, and who has to wait for a rate.
 *
 * Start-time fair queueing (Goyal, Vin, Cheng, 1996). A member of a queue has a weight. Each of its
 * commands has a cost, and moves the member's virtual time on by cost / weight; the member with the
 * least virtual time is next. So members that always have commands waiting get parts in proportion
 * to their weights, whatever the sizes of their commands: between any two of them, what each got,
 * divided by its weight, differs by one command of each at most. One that has nothing waiting is
 * not in the queue, and what it does not use goes to the others; it saves nothing up.
 *
 * A member may itself be a queue: a tenant among tenants, a host among the hosts of a tenant.
 *
 * A queue is a pairing heap of links in its members: no memory is taken, and a turn costs as many
 * comparisons as the logarithm of the members that wait. Not thread-safe, but for struct fair_rate.
 */
#ifndef BASE_FAIR_H
#define BASE_FAIR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/check.h"
#include "base/heap.h"

/* Weights that are possible. */
#define FAIR_WEIGHT_MAX 1000

/* Costs are counted in pages of so many bytes; a command costs one at least. */
#define FAIR_PAGE_BYTES 4096

/* A member. Embedded by its owner. */
struct fair_member {
    struct heap_link link; /* in the queue                                  */
    uint64_t start;        /* virtual time at which its next command begins */
    uint32_t weight;       /* 1..FAIR_WEIGHT_MAX                            */
};

struct fair {
    struct heap heap; /* of fair_member.link: the next member is first         */
    uint64_t now;     /* virtual time: start of the command that went last     */
};

void fair_init(struct fair *fair);
void fair_member_init(struct fair_member *member, uint32_t weight);

/* The member has a command that waits. It must not be in the queue. */
void fair_push(struct fair *fair, struct fair_member *member);

/* The member that is next, which stays in the queue; NULL: there is none. */
static inline struct fair_member *fair_first(const struct fair *fair)
{
    return fair->heap.root == NULL ? NULL : container_of(fair->heap.root, struct fair_member, link);
}

/* The member has nothing more that could go now. Harmless when it is not in the queue. */
void fair_remove(struct fair *fair, struct fair_member *member);

/* A command of the member goes now, and takes so many bytes. The member, in the queue or not, stays
 * so. */
void fair_charge(struct fair *fair, struct fair_member *member, uint64_t bytes);

/* ---- rates ---------------------------------------------------------------------------------- */

/* At most so many units a second, over any time longer than FAIR_BURST_NS. Any thread. */
struct fair_rate {
    _Atomic uint64_t per_s; /* bytes, or operations; 0: no limit                         */
    _Atomic uint64_t at_ns; /* what went until now is paid for by then                   */
};

/* A command may go while what went before is paid for in so much time. */
#define FAIR_BURST_NS ((uint64_t)10 * 1000 * 1000)

/* When the next command may go; up to now_ns: now. */
uint64_t fair_rate_ready_ns(const struct fair_rate *rate);

/* So many units go now. */
void fair_rate_charge(struct fair_rate *rate, uint64_t units, uint64_t now_ns);

#endif
