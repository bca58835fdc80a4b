/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is due first, beside a plain search, while members come, go and move.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/due.h"

#define MEMBERS 300
#define STEPS   40000

static uint64_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* The smallest rank and time of those that are queued. */
static const struct due_member *first_of(const struct due_member *members)
{
    const struct due_member *first = NULL;

    for (int i = 0; i < MEMBERS; i++)
        if (members[i].link.queued &&
            (first == NULL || members[i].rank < first->rank ||
             (members[i].rank == first->rank && members[i].at_ns < first->at_ns)))
            first = &members[i];
    return first;
}

static void the_first_is_due_before_all_others(void **state)
{
    static struct due_member members[MEMBERS];
    struct due due = {NULL};
    uint64_t seed = 5;

    for (int step = 0; step < STEPS; step++) {
        struct due_member *member = &members[random_next(&seed) % MEMBERS];
        const struct due_member *first;

        if (random_next(&seed) % 3 == 0 && due_first(&due) != NULL)
            member = due_first(&due);
        if (member->link.queued) {
            due_remove(&due, member);
            due_remove(&due, member); /* harmless */
        } else {
            member->rank = (uint32_t)(random_next(&seed) % 3);
            member->at_ns = random_next(&seed) % 1000;
            due_push(&due, member);
        }
        first = first_of(members);
        assert_int_equal(first == NULL, due_first(&due) == NULL);
        if (first == NULL)
            continue;
        assert_int_equal(due_first(&due)->rank, first->rank);
        assert_int_equal(due_first(&due)->at_ns, first->at_ns);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_first_is_due_before_all_others)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
