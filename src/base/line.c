/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of what waits, by share, and turns in two levels.
 *
 * Called on data paths, by the thread that owns the line.
 *
 * Invariants: a share is in the queue of its group while something of it waits and it is not held;
 * a group is in the queue of groups while it has such shares; busy counts shares with something
 * that waits.
 */
#include "base/line.h"

#include "base/check.h"

void line_init(struct line *line, void *memory, uint32_t groups, uint32_t members,
               const uint32_t *weights)
{
    check(groups > 0 && members > 0 && memory != NULL);
    *line = (struct line){.group = memory, .group_count = groups, .member_count = members};
    line->shares = (struct line_share *)(line->group + groups);
    fair_init(&line->groups);
    for (uint32_t i = 0; i < groups; i++) {
        fair_member_init(&line->group[i].turn, weights == NULL ? 1 : weights[i]);
        fair_init(&line->group[i].members);
    }
    for (uint32_t i = 0; i < groups * members; i++) {
        fair_member_init(&line->shares[i].turn, 1);
        list_init(&line->shares[i].waiting);
        line->shares[i].is_held = false;
        line->shares[i].passed = 0;
    }
}

static struct line_group *line_group(struct line *line, uint32_t share)
{
    check(share < line->group_count * line->member_count);
    return &line->group[share / line->member_count];
}

/* The share stands in line if it may, and does not if it may not. */
static void line_settle(struct line *line, uint32_t number)
{
    struct line_group *group = line_group(line, number);
    struct line_share *share = &line->shares[number];
    bool waits = !list_empty(&share->waiting) && !share->is_held;

    if (waits && !share->turn.link.queued)
        fair_push(&group->members, &share->turn);
    else if (!waits)
        fair_remove(&group->members, &share->turn);
    if (fair_first(&group->members) == NULL)
        fair_remove(&line->groups, &group->turn);
    else if (!group->turn.link.queued)
        fair_push(&line->groups, &group->turn);
}

static void line_add(struct line *line, uint32_t number, struct list *link, bool in_front)
{
    struct line_share *share = &line->shares[number];

    line->busy += list_empty(&share->waiting);
    if (in_front)
        list_push_front(&share->waiting, link);
    else
        list_push(&share->waiting, link);
    line_settle(line, number);
}

void line_push(struct line *line, uint32_t share, struct list *link)
{
    line_add(line, share, link, false);
}

void line_push_front(struct line *line, uint32_t share, struct list *link)
{
    line_add(line, share, link, true);
}

void line_leave(struct line *line, uint32_t share, struct list *link)
{
    check(!list_empty(link));
    list_remove(link);
    line->busy -= list_empty(&line->shares[share].waiting);
    line_settle(line, share);
}

/* The share whose turn it is; NULL: none. */
static struct line_share *line_next(const struct line *line)
{
    struct fair_member *first = fair_first(&line->groups);

    if (first == NULL)
        return NULL;
    first = fair_first(&container_of(first, struct line_group, turn)->members);
    return container_of(first, struct line_share, turn);
}

struct list *line_first(const struct line *line)
{
    struct line_share *share = line_next(line);

    return share == NULL ? NULL : list_first(&share->waiting);
}

struct list *line_pop(struct line *line, uint32_t *out_share)
{
    struct line_share *share = line_next(line);
    struct list *link;

    if (share == NULL)
        return NULL;
    *out_share = (uint32_t)(share - line->shares);
    link = list_first(&share->waiting);
    line_leave(line, *out_share, link);
    return link;
}

void line_charge(struct line *line, uint32_t share, uint64_t bytes)
{
    struct line_group *group = line_group(line, share);

    fair_charge(&group->members, &line->shares[share].turn, bytes);
    fair_charge(&line->groups, &group->turn, bytes);
}

void line_hold(struct line *line, uint32_t share)
{
    line->shares[share].is_held = true;
    line_settle(line, share);
}

void line_release(struct line *line, uint32_t share)
{
    line->shares[share].is_held = false;
    line_settle(line, share);
}
