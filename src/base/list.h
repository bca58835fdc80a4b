/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/list.h: circular doubly linked list, links embedded in the members.
 *
 * A link that is in no list points to itself (list_init); list_remove leaves it so, and removing
 * it again is harmless. Not thread-safe.
 */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next;
    struct list *prev;
};

static inline void list_init(struct list *list)
{
    list->next = list->prev = list;
}

static inline bool list_empty(const struct list *list)
{
    return list->next == list;
}

static inline void list_insert(struct list *prev, struct list *link)
{
    link->prev = prev;
    link->next = prev->next;
    prev->next->prev = link;
    prev->next = link;
}

static inline void list_push(struct list *list, struct list *link)
{
    list_insert(list->prev, link);
}

static inline void list_push_front(struct list *list, struct list *link)
{
    list_insert(list, link);
}

static inline void list_remove(struct list *link)
{
    link->prev->next = link->next;
    link->next->prev = link->prev;
    list_init(link);
}

/* Takes the first member off; NULL when the list is empty. */
static inline struct list *list_pop(struct list *list)
{
    struct list *link = list->next;

    if (link == list)
        return NULL;
    list_remove(link);
    return link;
}

/* The first member, left in place; NULL when the list is empty. */
static inline struct list *list_first(const struct list *list)
{
    return list->next == list ? NULL : list->next;
}

#define list_for_each(link, head)                                                                  \
    for (struct list *link = (head)->next; link != (head); link = link->next)

/* The body may remove link. */
#define list_for_each_safe(link, head)                                                             \
    for (struct list *link = (head)->next, *link##_next = link->next; link != (head);              \
         link = link##_next, link##_next = link->next)

#endif
