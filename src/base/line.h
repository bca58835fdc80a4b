/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/line.h: who waits for something of which there is not enough, and who has it next.
 *
 * What waits belongs to a share, which is a member of a group. Groups take turns by their weights,
 * the members of a group alike (base/fair.h), and what waits of one share goes in order. Who does
 * not wait is not in line, and pays nothing for what it has.
 *
 * No memory is taken: the owner brings it. Not thread-safe.
 */
#ifndef BASE_LINE_H
#define BASE_LINE_H

#include <stddef.h>

#include "base/fair.h"
#include "base/list.h"

/* A member of a group. */
struct line_share {
    struct fair_member turn; /* among the members of its group                     */
    struct list waiting;     /* what waits, in order                               */
    bool is_held;            /* not its turn, whatever waits: line_hold            */
    uint32_t passed;         /* the owner's: things of it that were passed over    */
};

struct line_group {
    struct fair_member turn; /* among the groups                                   */
    struct fair members;     /* those that have something that waits               */
};

struct line {
    struct fair groups;        /* those with members                               */
    struct line_group *group;  /* [group_count]                                    */
    struct line_share *shares; /* [group_count * member_count]                     */
    uint32_t group_count, member_count;
    uint32_t busy; /* shares that wait                                             */
};

/* Bytes of memory for a line. */
static inline size_t line_bytes(uint32_t groups, uint32_t members)
{
    return groups * sizeof(struct line_group) +
           (size_t)groups * members * sizeof(struct line_share);
}

/* In memory that the owner keeps; NULL is no line, and nothing may be in it. weights: of the
 * groups; NULL: all have 1. */
void line_init(struct line *line, void *memory, uint32_t groups, uint32_t members,
               const uint32_t *weights);

/* Shares have numbers: group * member_count + member. Something of a share waits, behind all that
 * waits of it already, or before that. */
void line_push(struct line *line, uint32_t share, struct list *link);
void line_push_front(struct line *line, uint32_t share, struct list *link);

/* It does not wait any more. */
void line_leave(struct line *line, uint32_t share, struct list *link);

/* Takes out what is next, and tells whose it is; NULL: nothing waits. */
struct list *line_pop(struct line *line, uint32_t *out_share);

/* What is next, which stays; NULL: nothing waits. */
struct list *line_first(const struct line *line);

/* What was taken out went, and took so many bytes. */
void line_charge(struct line *line, uint32_t share, uint64_t bytes);

/* It is not the turn of a share until it is released, whatever waits of it. */
void line_hold(struct line *line, uint32_t share);
void line_release(struct line *line, uint32_t share);

/* Whether something of another share waits. */
static inline bool line_has_others(const struct line *line, uint32_t share)
{
    return line->busy > !list_empty(&line->shares[share].waiting);
}

#endif
