/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/due.h: what is due first.
 *
 * A pairing heap of links in its members: no memory is taken. The member with the smallest rank is
 * first; of those with the same rank the one with the smallest time; of these any. Not thread-safe.
 */
#ifndef BASE_DUE_H
#define BASE_DUE_H

#include <stdbool.h>
#include <stdint.h>

/* A member. Embedded by its owner. */
struct due_member {
    uint64_t at_ns;           /* when it is due; set by the owner before due_push */
    uint32_t rank;            /* before that; likewise                            */
    bool queued;              /* in the heap                                      */
    struct due_member *child; /* its first child                                  */
    struct due_member *next;  /* its next sibling                                 */
    struct due_member *prev;  /* its previous sibling, or its parent              */
};

/* Zeroed: empty. */
struct due {
    struct due_member *root; /* the first; NULL: there is none */
};

/* It must not be in the heap. */
void due_push(struct due *due, struct due_member *member);

/* Harmless when it is not in the heap. */
void due_remove(struct due *due, struct due_member *member);

/* The first member, which stays; NULL: there is none. */
static inline struct due_member *due_first(const struct due *due)
{
    return due->root;
}

#endif
