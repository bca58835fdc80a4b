/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines: turns of groups and of their members, order within a share, and who leaves.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/line.h"

#define GROUPS  3
#define MEMBERS 4
#define ITEMS   4000

struct item {
    struct list link;
    uint32_t number;
};

static struct item items[ITEMS];

static struct line line_new(const uint32_t *weights)
{
    void *memory = malloc(line_bytes(GROUPS, MEMBERS));
    struct line line;

    check(memory != NULL);
    line_init(&line, memory, GROUPS, MEMBERS, weights);
    for (uint32_t i = 0; i < ITEMS; i++) {
        list_init(&items[i].link);
        items[i].number = i;
    }
    return line;
}

static void line_free(struct line *line)
{
    free(line->group);
}

static uint32_t pop_number(struct line *line, uint32_t *out_share)
{
    struct list *link = line_pop(line, out_share);

    assert_non_null(link);
    return container_of(link, struct item, link)->number;
}

/* Two groups that always have something get bytes by their weights, however many members each has
 * and however large their things are; the members of one get the same. */
static void groups_by_weight_and_members_alike(void **state)
{
    static const uint32_t weights[GROUPS] = {3, 1, 1};
    struct line line = line_new(weights);
    uint64_t got[GROUPS * MEMBERS] = {0};
    uint32_t share;

    for (uint32_t i = 0; i < ITEMS; i++)
        line_push(&line, i % 2 == 0 ? 0 : MEMBERS + i / 2 % 3, &items[i].link);
    for (int i = 0; i < 1000; i++) {
        uint64_t bytes;

        (void)pop_number(&line, &share);
        bytes = share == 0 ? 4096 : 4096 * (1 + share);
        line_charge(&line, share, bytes);
        got[share] += bytes;
    }
    assert_true(got[0] >= 29 * (got[4] + got[5] + got[6]) / 10);
    assert_true(got[0] <= 31 * (got[4] + got[5] + got[6]) / 10);
    assert_true(got[4] <= got[6] * 11 / 10 && got[6] <= got[4] * 11 / 10);
    line_free(&line);
}

static void one_share_goes_in_order_and_the_front_first(void **state)
{
    struct line line = line_new(NULL);
    uint32_t share;

    for (uint32_t i = 0; i < 10; i++)
        line_push(&line, 5, &items[i].link);
    line_push_front(&line, 5, &items[10].link);
    line_leave(&line, 5, &items[3].link);
    assert_int_equal(pop_number(&line, &share), 10);
    for (uint32_t i = 0; i < 10; i++)
        if (i != 3)
            assert_int_equal(pop_number(&line, &share), i);
    assert_int_equal(share, 5);
    assert_null(line_pop(&line, &share));
    assert_null(line_first(&line));
    line_free(&line);
}

/* A share that is held, or from which all have left, is passed over; and it is known who else
 * waits. */
static void who_left_or_is_held_is_passed_over(void **state)
{
    struct line line = line_new(NULL);
    uint32_t share;

    assert_false(line_has_others(&line, 0));
    line_push(&line, 0, &items[0].link);
    assert_false(line_has_others(&line, 0));
    assert_true(line_has_others(&line, 1));
    line_push(&line, 9, &items[1].link);
    assert_true(line_has_others(&line, 0));
    line_hold(&line, 0);
    line_push(&line, 0, &items[2].link); /* held all the same */
    assert_int_equal(pop_number(&line, &share), 1);
    assert_int_equal(share, 9);
    assert_null(line_pop(&line, &share));
    assert_true(line_has_others(&line, 9)); /* it waits, though it is held */
    line_release(&line, 0);
    assert_ptr_equal(line_first(&line), &items[0].link);
    line_leave(&line, 0, &items[0].link);
    line_leave(&line, 0, &items[2].link);
    assert_null(line_first(&line));
    assert_false(line_has_others(&line, 9));
    line_free(&line);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_by_weight_and_members_alike),
        cmocka_unit_test(one_share_goes_in_order_and_the_front_first),
        cmocka_unit_test(who_left_or_is_held_is_passed_over),
    };

    return cmocka_run_group_tests_name("line", tests, NULL, NULL);
}
