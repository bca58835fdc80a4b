/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lives of commands as /trace shows them, on simulated loops and drives.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "target/target_test_rig.h"

static char *trace_of(struct rig *rig, const char *name)
{
    struct key key = peer_key(name);
    char *text = target_trace(rig->target, &key);

    assert_non_null(text);
    return text;
}

static void in_order(const char *text, const char *const *parts, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        text = strstr(text, parts[i]);
        if (text == NULL)
            fail_msg("%s is missing, or before %s", parts[i], i == 0 ? "all" : parts[i - 1]);
    }
}

/* Several loops: states are set on those of the drives, and told by the one of the connection. */
static void commands_say_where_their_time_went(void **state)
{
    static const char *const store[] = {"{\"op\":\"store\",\"volume\":",
                                        "\"status\":\"OK\"",
                                        "\"drive\":",
                                        "\"new\"",
                                        "\"key\"",
                                        "\"append\"",
                                        "\"write\"",
                                        "\"key_end\"",
                                        "\"reply\"",
                                        "]}"};
    static const char *const both[] = {"\"op\":\"retrieve\"", "\"look\"", "\"read\"", "\"reply\"",
                                       "\"op\":\"store\""};
    static const char *const missed[] = {"\"op\":\"retrieve\"", "\"status\":\"MISS\"",
                                         "\"reason\":\"absent\"", "\"look\"", "\"reply\""};
    struct rig *rig = rig_new(2, 3);
    struct target_stats *stats = malloc(sizeof(*stats));
    struct nvme_cqe cqe;
    bool seen = false;
    char *text;

    assert_non_null(stats);
    rig_up(rig);
    assert_int_equal(put(rig, 1, key_text(7, 1), 7), 0);
    text = trace_of(rig, key_text(7, 1));
    in_order(text, store, sizeof(store) / sizeof(store[0]));
    free(text);
    assert_int_equal(get(rig, 1, key_text(7, 1), 7, &cqe), 0);
    text = trace_of(rig, key_text(7, 1)); /* the last one first */
    in_order(text, both, sizeof(both) / sizeof(both[0]));
    free(text);
    assert_int_not_equal(get(rig, 1, key_text(8, 1), 8, &cqe), 0);
    text = trace_of(rig, key_text(8, 1));
    in_order(text, missed, sizeof(missed) / sizeof(missed[0]));
    assert_null(strstr(text, "\"drive\""));
    free(text);
    target_stats(rig->target, stats);
    for (int i = 0; i < TARGET_STATS_STATES; i++)
        if (stats->states[i].name != NULL && strcmp(stats->states[i].name, "write") == 0) {
            assert_int_equal(stats->states[i].count, 1);
            assert_true(stats->states[i].us > 0);
            seen = true;
        }
    assert_true(seen);
    free(stats);
    rig_down(rig);
    rig_free(&rig);
}

/* Who reads a page of numbers learns of no key what it does not know. */
static void a_key_is_shown_whole_to_who_knows_it(void **state)
{
    struct rig *rig = rig_new(1, 1);
    char *text;

    rig_up(rig);
    assert_int_equal(put(rig, 1, "sixteen letters.", 7), 0);
    text = target_trace(rig->target, NULL);
    assert_non_null(strstr(text, "\"key\":\"73697874\""));
    free(text);
    text = trace_of(rig, "sixteen letters.");
    assert_non_null(strstr(text, "\"key\":\"7369787465656e206c6574746572732e\""));
    free(text);
    rig_down(rig);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_say_where_their_time_went),
        cmocka_unit_test(a_key_is_shown_whole_to_who_knows_it),
    };

    return cmocka_run_group_tests_name("target-trace", tests, NULL, NULL);
}
