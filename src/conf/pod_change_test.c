/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of a pod map by icms pod: line by line in the file, as somebody would write them, with
 * its comments; what is refused or asked for, who else writes the file meanwhile, and what is left
 * of it when the writer is killed.
 */
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "conf/pod_rig.h"

static struct conf_pod after;

static icms_err change(const char *text, const struct conf_pod_change *asked,
                       struct conf_edit *out_edit)
{
    file_write(ended(text));
    why.text[0] = '\0';
    return conf_pod_change(path, asked, &why, &pod, &after, out_edit);
}

static void changed(const char *text, struct conf_pod_change asked, const char *want)
{
    struct conf_edit edit = {0};

    if (change(text, &asked, &edit) != ICMS_OK)
        fail_msg("%s\nrefused: %s", text, why.text);
    want = ended(want);
    if (edit.bytes != strlen(want) || memcmp(edit.text, want, edit.bytes) != 0)
        fail_msg("made\n%.*s\nwanted\n%s", (int)edit.bytes, edit.text, want);
    assert_int_equal(edit.to, edit.from + 1);
    assert_int_equal(after.epoch, pod.epoch + 1);
    assert_int_equal(conf_edit_write(path, &edit, &why), ICMS_OK);
    conf_edit_fini(&edit);
    assert_int_equal(conf_pod_read(path, &why, &other), ICMS_OK);
    assert_memory_equal(&other, &after, sizeof(other));
}

static void not_changed(const char *text, struct conf_pod_change asked, icms_err err,
                        const char *word)
{
    struct conf_edit edit = {0};
    icms_err answer = change(text, &asked, &edit);

    if (answer != err || strstr(why.text, word) == NULL)
        fail_msg("%s\nanswered %s '%s', wanted '%s'", text, icms_err_name(answer), why.text, word);
    assert_null(edit.text);
}

/* An editor saves while the file is synced, or who writes it is killed. */
static const char *save_at_sync;
static bool is_killed_at_sync;

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    const char *text = save_at_sync;

    save_at_sync = NULL;
    if (text != NULL)
        file_write(text);
    if (is_killed_at_sync)
        raise(SIGKILL);
    return __real_fsync(fd);
}

#define ADD(...)    ((struct conf_pod_change){.what = CONF_POD_ADD, __VA_ARGS__})
#define MAKE(w, n)  ((struct conf_pod_change){.what = CONF_POD_##w, .name = (n)})
#define FLOW        "- {name: e0, address: 10.0.0.1:4420}\n"
#define COMMENTED   "# the pod of row 7\nname: pod0\nepoch:  4 # raise it\nenclosures:\n"
#define COMMENTED_5 "# the pod of row 7\nname: pod0\nepoch:  5 # raise it\nenclosures:\n"

static void test_an_enclosure_is_added_behind_the_last(void **state)
{
    changed(COMMENTED "  # first\n  - name: e0 # rack 1\n    address: 10.0.0.1:4420\n# end\n",
            ADD(.name = "e1", .address = "10.0.0.2:4420"),
            COMMENTED_5 "  # first\n  - name: e0 # rack 1\n    address: 10.0.0.1:4420\n"
                        "  - name: e1\n    address: 10.0.0.2:4420\n    state: joining\n# end\n");
    changed(HEAD FLOW,
            ADD(.name = "e1", .address = "[::1]:1", .uuid = UUID7, .nqn = "nqn.2026-01.io.icms:e1",
                .weight = "2.5"),
            EPOCH(5) FLOW "- name: e1\n  address: \"[::1]:1\"\n  uuid: " UUID7
                          "\n  nqn: nqn.2026-01.io.icms:e1\n  weight: 2.5\n  state: joining\n");
    changed(HEAD LINKS, ADD(.name = "e1", .address = "10.0.0.2:1,[::1]:1,b.example:1"),
            EPOCH(5) LINKS "- name: e1\n  address: [10.0.0.2:1, \"[::1]:1\", b.example:1]\n"
                           "  state: joining\n");
    not_changed(HEAD LINKS, ADD(.name = "e1", .address = "b:1,e0-b.example:4420"), ICMS_CONFIG,
                "'e0' has it already");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1,b:1"), ICMS_CONFIG, "listed twice");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "[::ffff:10.0.0.1]:4420"), ICMS_CONFIG,
                "'e0' has it already");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "[::1]:1,[0::1]:1"), ICMS_CONFIG,
                "listed twice");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "0.0.0.0:4420"), ICMS_CONFIG,
                "stands for all addresses");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1,"), ICMS_INVALID, "address: ''");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1,c:1]\n  weight: 9"), ICMS_INVALID,
                "address: ");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1,b:2,b:3,b:4,b:5,b:6,b:7,b:8,b:9"),
                ICMS_INVALID, "address: more than 8");
    not_changed(HEAD E0, ADD(.name = "e0", .address = "10.0.0.2:1"), ICMS_EXISTS, "has it already");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "10.0.0.1:4420"), ICMS_CONFIG,
                "'e0' has it already");
    not_changed(HEAD E0, ADD(.name = "e 1", .address = "10.0.0.2:1"), ICMS_INVALID, "not a name");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1\n  weight: 9"), ICMS_INVALID, "address");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1", .weight = "0"), ICMS_INVALID,
                "more than 0");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1", .weight = "nan"), ICMS_INVALID,
                "not a number");
    changed(HEAD E0, ADD(.name = "e1", .address = "b:1", .http = "https://[::1]:9420"),
            EPOCH(5) E0
            "- name: e1\n  address: b:1\n  http: https://[::1]:9420\n  state: joining\n");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1", .http = "b:9420"), ICMS_INVALID,
                "http: 'b:9420' is not the URL");
    not_changed(HEAD E0, ADD(.name = "e1", .address = "b:1", .http = "http://b:1\n  weight: 9"),
                ICMS_INVALID, "http: ");
    not_changed(HEAD E0 "  http: http://b:2\n",
                ADD(.name = "e1", .address = "b:1", .http = "http://b:2"), ICMS_CONFIG,
                "'e0' has it already");
    not_changed("name: pod0\nepoch: 4\nenclosures: [{name: e0, address: 10.0.0.1:1}]\n",
                ADD(.name = "e1", .address = "b:1"), ICMS_CONFIG, "by hand");
    not_changed("name: pod0\nepoch: 4294967295\nenclosures:\n" E0,
                ADD(.name = "e1", .address = "b:1"), ICMS_CONFIG, "restart every agent of the pod");
}

static void test_an_enclosure_is_added_with_its_capacity(void **state)
{
    changed(HEAD E0 "  capacity: 2TiB\n" E1 "  capacity: 2TiB\n  weight: 1024\n",
            ADD(.name = "e2", .address = "10.0.0.3:4420", .capacity = "4TiB"),
            EPOCH(5) E0 "  capacity: 2TiB\n" E1 "  capacity: 2TiB\n  weight: 1024\n" E2
                        "  capacity: 4TiB\n  state: joining\n");
    not_changed(HEAD E0 "  capacity: 2TiB\n", ADD(.name = "e2", .address = "10.0.0.3:4420"),
                ICMS_CONFIG, "and this one has none");
    not_changed(HEAD E0 "  capacity: 2TiB\n",
                ADD(.name = "e2", .address = "10.0.0.3:4420", .weight = "1"), ICMS_CONFIG,
                "and this one has none");
    not_changed(HEAD E0, ADD(.name = "e2", .address = "10.0.0.3:4420", .capacity = "4TiB"),
                ICMS_CONFIG, "and this one has none");
    not_changed(HEAD E0 "  weight: 2\n",
                ADD(.name = "e2", .address = "10.0.0.3:4420", .capacity = "4TiB"), ICMS_CONFIG,
                "write it, or weight of those, too");
    changed(HEAD E0 "  weight: 2\n",
            ADD(.name = "e2", .address = "10.0.0.3:4420", .capacity = "4TiB", .weight = "2"),
            EPOCH(5) E0 "  weight: 2\n" E2 "  capacity: 4TiB\n  weight: 2\n  state: joining\n");
    not_changed(HEAD E0, ADD(.name = "e2", .address = "10.0.0.3:4420", .capacity = "4 GB"),
                ICMS_INVALID, "capacity: ");
    not_changed(HEAD E0, ADD(.name = "e2", .address = "10.0.0.3:4420", .capacity = "1"),
                ICMS_INVALID, "capacity: ");
}

#define SETTLE(name_)   ((struct conf_pod_change){CONF_POD_SETTLE, .name = name_, .yes = true})
#define OUT(name_, ...) ((struct conf_pod_change){CONF_POD_OUT, .name = name_, __VA_ARGS__})
#define WEIGHT(name_, weight_, ...)                                                                \
    ((struct conf_pod_change){CONF_POD_WEIGHT, .name = name_, .weight = weight_, __VA_ARGS__})

static void test_a_weight_changes_with_its_former_one(void **state)
{
    const char *changes = HEAD E0 "  weight: 2.5\n  former_weight: 3\n" E1;
    char text[256];

    changed(HEAD E0 E1, WEIGHT("e1", "2"),
            EPOCH(5) E0 "- name: e1\n  former_weight: 1\n  weight: 2\n  address: 10.0.0.2:4420\n");
    changed(HEAD E0 "  weight: 3 # racks\n" E1, WEIGHT("e0", "2.5"),
            EPOCH(5) "- name: e0\n  former_weight: 3\n  address: 10.0.0.1:4420\n"
                     "  weight: 2.5 # racks\n" E1);
    changed(HEAD E0 "  weight: 0.000001\n" E1, WEIGHT("e0", "1000000.000001"),
            EPOCH(5) "- name: e0\n  former_weight: 0.000001\n  address: 10.0.0.1:4420\n"
                     "  weight: 1000000.000001\n" E1);
    changed(HEAD E0 "  capacity: 2TiB\n" E1 "  weight: 9\n  capacity: 2TiB\n", WEIGHT("e0", "1000"),
            EPOCH(5) "- name: e0\n  former_weight: 2048\n  weight: 1000\n"
                     "  address: 10.0.0.1:4420\n  capacity: 2TiB\n" E1
                     "  weight: 9\n  capacity: 2TiB\n");
    not_changed(changes, MAKE(SETTLE, "e0"), ICMS_INVALID,
                "e0: blocks that were not read since its weight changed are missed then");
    changed(changes, SETTLE("e0"), EPOCH(5) E0 "  weight: 2.5\n" E1);
    not_changed(changes, MAKE(SETTLE, "e1"), ICMS_EXISTS, "up already");
    not_changed(changes, WEIGHT("e0", "4"), ICMS_INVALID, "its weight is changing");
    changed(changes, WEIGHT("e0", "4", .yes = true),
            EPOCH(5) E0 "  weight: 4\n  former_weight: 2.5\n" E1);
    /* back, after a slip: what was written meanwhile is found by the weight of meanwhile */
    changed(changes, WEIGHT("e0", "3"), EPOCH(5) E0 "  weight: 3\n  former_weight: 2.5\n" E1);
    not_changed(HEAD E0 "  weight: 2.5\n  former_weight: 3\n" E1 "  state: draining\n" E2,
                WEIGHT("e0", "3"), ICMS_INVALID, "another one is draining");
    not_changed(changes, WEIGHT("e1", "3"), ICMS_INVALID, "the weight of another one is changing");
    not_changed(changes, MAKE(DRAIN, "e1"), ICMS_INVALID, "the weight of another one is changing");
    not_changed(changes, MAKE(DRAIN, "e0"), ICMS_INVALID, "its weight is changing");
    not_changed(changes, ADD(.name = "e2", .address = "10.0.0.3:4420"), ICMS_INVALID,
                "the weight of another one is changing");
    changed(changes, ((struct conf_pod_change){CONF_POD_DRAIN, .name = "e0", .yes = true}),
            EPOCH(5) "- name: e0\n  state: draining\n  address: 10.0.0.1:4420\n  weight: 2.5\n" E1);
    changed(changes, OUT("e0", .yes = true),
            SHRUNK(5) "- name: e0\n  state: out\n  address: 10.0.0.1:4420\n  weight: 2.5\n" E1);
    not_changed(HEAD E0 E1 "  state: joining\n", WEIGHT("e0", "3"), ICMS_INVALID,
                "another one is joining");
    not_changed(HEAD E0 E1 "  state: draining\n", WEIGHT("e0", "3"), ICMS_INVALID,
                "another one is draining");
    not_changed(HEAD E0 E1 "  state: joining\n", WEIGHT("e1", "3"), ICMS_INVALID,
                "settle it first");
    not_changed(HEAD E0 E1 "  state: out\n", WEIGHT("e1", "3"), ICMS_INVALID, "it is not up");
    not_changed(HEAD E0 E1, WEIGHT("e1", "1.0"), ICMS_EXISTS, "that already");
    not_changed(HEAD E0 E1, WEIGHT("e7", "2"), ICMS_NOT_FOUND, "none of this name");
    for (uint32_t i = 0; i < 5; i++) {
        static const char *const wrong[] = {"0", "-1", "nan", "2\n  state: out", "1TiB"};

        not_changed(HEAD E0 E1, WEIGHT("e1", wrong[i]), ICMS_INVALID, "weight: ");
    }
    refused(ended(HEAD E0 "  state: draining\n  former_weight: 2\n" E1),
            "p.yaml:7: ", "only one that is up has one");
    refused(ended(HEAD E0 "  former_weight: 0\n" E1), "p.yaml:6: ", "former_weight");
    accepted(HEAD E0 E1, &pod);
    accepted(changes, &other);
    assert_string_equal(conf_pod_differs(&pod, &other, text, sizeof(text)),
                        "e0 weight 1 -> 2.5, e0 former weight 3");
    assert_string_equal(conf_pod_differs(&other, &pod, text, sizeof(text)),
                        "e0 weight 2.5 -> 1, e0 no former weight");
}

static void test_states_are_changed_in_their_line(void **state)
{
    not_changed(HEAD E0 E1 "  state: joining\n", MAKE(SETTLE, "e1"), ICMS_INVALID,
                "e1: blocks that were not read since it joined are missed then, and all of its "
                "share while it is down, as who had them before is not asked any more; when it is "
                "up (icms pod status), and icms_agent_former_found_total of the agents (icms "
                "status) does not rise any more, add --yes; nothing was changed");
    changed(HEAD E0 E1 "  state: joining  # since May\n", SETTLE("e1"),
            EPOCH(5) E0 E1 "  state: up  # since May\n");
    changed(HEAD E0 E1, MAKE(DRAIN, "e0"),
            EPOCH(5) "- name: e0\n  state: draining\n  address: 10.0.0.1:4420\n" E1);
    changed(HEAD "- state: draining\n  name: e0\n  address: 10.0.0.1:4420\n" E1,
            MAKE(UNDRAIN, "e0"),
            EPOCH(5) "- state: joining\n  name: e0\n  address: 10.0.0.1:4420\n" E1);
    not_changed(HEAD E0 E1, MAKE(SETTLE, "e1"), ICMS_EXISTS, "up already");
    not_changed(HEAD E0 E1, SETTLE("e1"), ICMS_EXISTS, "up already");
    not_changed(HEAD E0 E1 "  state: draining\n", SETTLE("e1"), ICMS_INVALID, "undrain");
    not_changed(HEAD E0 E1 "  state: draining\n", MAKE(DRAIN, "e1"), ICMS_EXISTS,
                "draining already");
    not_changed(HEAD E0 E1 "  state: draining\n", MAKE(SETTLE, "e1"), ICMS_INVALID, "undrain");
    not_changed(HEAD E0 E1 "  state: joining\n", MAKE(UNDRAIN, "e1"), ICMS_INVALID, "settle");
    not_changed(HEAD E0, MAKE(DRAIN, "e0"), ICMS_INVALID, "no other one is up");
    not_changed(HEAD E0 E1 "  state: joining\n", MAKE(DRAIN, "e0"), ICMS_INVALID,
                "no other one is up");
    not_changed(HEAD E0 E1, MAKE(DRAIN, "e7"), ICMS_NOT_FOUND, "did you mean e");
    not_changed(HEAD FLOW E1, MAKE(DRAIN, "e0"), ICMS_CONFIG, ":4: ");
    not_changed("{name: pod0, epoch: 4, enclosures: [{name: e0, address: 10.0.0.1:1},\n"
                "{name: e1, address: 10.0.0.2:1}]}\n",
                MAKE(DRAIN, "e0"), ICMS_CONFIG, ":1: ");
}

static void test_one_that_is_out_stays_listed(void **state)
{
    const char *out = HEAD E0 "  state: out\n" E1;
    uint64_t gone;
    char text[256];

    not_changed(HEAD E0 E1, OUT("e0"), ICMS_INVALID, "it is not drained: the blocks that it has");
    not_changed(HEAD E0 "  state: joining\n" E1, OUT("e0"), ICMS_INVALID, "not drained");
    changed(HEAD E0 "  state: up\n" E1, OUT("e0", .yes = true), SHRUNK(5) E0 "  state: out\n" E1);
    not_changed(HEAD E0 E1 "  state: joining\n", OUT("e0", .yes = true), ICMS_INVALID,
                "no other one is up");
    not_changed(out, OUT("e1", .yes = true), ICMS_INVALID, "no other one is up");
    not_changed(out, OUT("e0"), ICMS_EXISTS, "it is out already");
    not_changed(out, MAKE(SETTLE, "e0"), ICMS_INVALID, "out, not joining: see undrain");
    not_changed(out, MAKE(DRAIN, "e0"), ICMS_INVALID, "nobody reads it: see undrain");
    not_changed(out, MAKE(DRAIN, "e1"), ICMS_INVALID, "no other one is up");
    not_changed(out, ADD(.name = "e0", .address = "10.0.0.9:1"), ICMS_EXISTS, "has it already");
    not_changed(out, ADD(.name = "e9", .address = "10.0.0.1:4420"), ICMS_CONFIG, "has it already");
    changed(out, MAKE(UNDRAIN, "e0"), EPOCH(5) E0 "  state: joining\n" E1);
    not_changed(HEAD E0 "  state: out\n" E1 E2 "  state: joining\n", MAKE(UNDRAIN, "e0"),
                ICMS_INVALID, "another one is joining");
    not_changed(out, MAKE(REMOVE, "e0"), ICMS_INVALID,
                "e0: it is out, and could come back with its blocks (undrain): what is there is "
                "lost for the pod; add --yes; nothing was");
    not_changed(out, ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .is_unread = true}),
                ICMS_INVALID, "it is out");
    changed(out, ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .yes = true}),
            SHRUNK(5) E1);
    changed(HEAD E0 "  state: out\n" E1 "  state: draining\n" E2,
            ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .yes = true}),
            SHRUNK(5) E1 "  state: draining\n" E2);
    refused(ended(HEAD E0 "  state: out\n"), "p.yaml:3: ", "none of them is up");
    refused(ended(HEAD E0 "  state: outt\n" E1), "p.yaml:6: ", "state");
    accepted(out, &pod);
    assert_true(conf_pod_share(&pod, 0) == 0.0 && conf_pod_share(&pod, 1) == 1.0);
    /* one that is out may leave the map */
    assert_int_equal(compare(HEAD E0 "  state: out\n" E1 E2, EPOCH(5) E1 E2, &gone), CONF_POD_NEW);
    assert_int_equal(compare(HEAD E0 "  state: out\n" E1 E2, EPOCH(5) E2, &gone),
                     CONF_POD_SHRUNKEN);
    assert_int_equal(gone, 2);
    accepted(out, &pod);
    accepted(HEAD E0 E1, &other);
    assert_string_equal(conf_pod_differs(&other, &pod, text, sizeof(text)), "e0 out");
    assert_string_equal(conf_pod_differs(&pod, &other, text, sizeof(text)), "e0 up");
}

/* What is missed meanwhile is asked about by `out`, as by `remove`, and what is lost then by
 * `remove`. */
static void test_what_is_set_to_out_is_asked_for(void **state)
{
    const char *drains = HEAD E0 "  state: draining\n" E1;
    const char *out = SHRUNK(5) E0 "  state: out\n" E1;

    not_changed(drains, OUT("e0"), ICMS_INVALID,
                "e0: nobody asked its icms-target when it was read: blocks that no other enclosure "
                "has are misses while it is out; set it to out when it was not read for 10 min, or "
                "add --yes; nothing was");
    not_changed(drains, OUT("e0", .read = "last read: 3 s ago"), ICMS_INVALID,
                "e0: last read: 3 s ago: blocks that no other");
    changed(drains, OUT("e0", .read = "last read: 2 h ago", .is_unread = true), out);
    changed(drains, OUT("e0", .yes = true), out);
    not_changed(HEAD E0 E1, OUT("e0", .is_unread = true), ICMS_INVALID, "not drained");
    not_changed(out, MAKE(REMOVE, "e0"), ICMS_INVALID, "lost for the pod");
    changed(out, ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .yes = true}),
            "name: pod0\nepoch: 6\nshrink_epoch: 6\nenclosures:\n" E1);
}

static void test_one_that_is_set_to_out_leaves(void **state)
{
    const char *out = "  state: out\n";
    char next[512];
    uint64_t gone;

    (void)snprintf(next, sizeof(next), EPOCH(5) E0 "%s" E1 "%s" E2, out, out);
    assert_int_equal(compare(HEAD E0 E1 "  state: joining\n" E2, next, &gone), CONF_POD_SHRUNKEN);
    assert_int_equal(gone, 3);
    assert_non_null(
        strstr(why.text, "epoch 5 sets to out 2 of 3 enclosures, e0 among them, which"));
    assert_non_null(strstr(why.text, "shrink_epoch: 5"));
    assert_int_equal(compare(HEAD E0 "  state: draining\n" E1 "  state: out\n" E2, next, &gone),
                     CONF_POD_NEW);
    assert_int_equal(gone, 0);
    (void)snprintf(next, sizeof(next), "shrink_epoch: 5\n" EPOCH(5) E0 "%s" E1 "%s" E2, out, out);
    assert_int_equal(compare(HEAD E0 E1 E2, next, &gone), CONF_POD_NEW);
    assert_int_equal(compare(HEAD E0 E1 E2, EPOCH(5) E0 "  state: out\n" E2, &gone),
                     CONF_POD_SHRUNKEN);
    assert_int_equal(gone, 3);
    assert_non_null(strstr(why.text, "epoch 5 lacks or sets to out 2 of 3 enclosures"));
}

static void test_one_at_a_time_joins_or_drains(void **state)
{
    const char *joins = HEAD E0 E1 "  state: joining\n";
    const char *both = HEAD E0 "  state: draining\n" E1 "  state: joining\n" E2;

    not_changed(joins, ADD(.name = "e2", .address = "10.0.0.3:4420"), ICMS_INVALID,
                "another one is joining: blocks that only that one has would be missed");
    changed(joins, ADD(.name = "e2", .address = "10.0.0.3:4420", .yes = true),
            EPOCH(5) E0 E1 "  state: joining\n" E2 "  state: joining\n");
    not_changed(both, MAKE(UNDRAIN, "e0"), ICMS_INVALID, "settle it first, or add --yes");
    /* what was written since e0 drains, at an enclosure that is up, is neither at the new one nor
     * at e0 */
    not_changed(HEAD E0 "  state: draining\n" E1, ADD(.name = "e2", .address = "10.0.0.3:4420"),
                ICMS_INVALID,
                "another one is draining: blocks that were written since then would be missed");
    changed(HEAD E0 "  state: draining\n" E1,
            ADD(.name = "e2", .address = "10.0.0.3:4420", .yes = true),
            EPOCH(5) E0 "  state: draining\n" E1 E2 "  state: joining\n");
    not_changed(HEAD E0 "  state: draining\n" E1 "  state: out\n" E2, MAKE(UNDRAIN, "e1"),
                ICMS_INVALID, "another one is draining");
    changed(HEAD E0 "  state: draining\n" E1, MAKE(UNDRAIN, "e0"), /* there is no other */
            EPOCH(5) E0 "  state: joining\n" E1);
    /* a drain takes no block from one that joins */
    changed(HEAD E0 E1 E2 "  state: joining\n", MAKE(DRAIN, "e0"),
            EPOCH(5) "- name: e0\n  state: draining\n  address: 10.0.0.1:4420\n" E1 E2
                     "  state: joining\n");
    not_changed(HEAD E0 "  state: draining\n" E1 E2, MAKE(DRAIN, "e1"), ICMS_INVALID,
                "another one is draining: blocks that were written since then would be missed");
    changed(HEAD E0 "  state: draining\n" E1 "  state: up\n" E2,
            ((struct conf_pod_change){CONF_POD_DRAIN, .name = "e1", .yes = true}),
            EPOCH(5) E0 "  state: draining\n" E1 "  state: draining\n" E2);
}

static void test_what_is_removed_is_asked_for(void **state)
{
    changed(HEAD E0 "  state: draining # bye\n# next\n" E1,
            ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .yes = true}),
            SHRUNK(5) "# next\n" E1);
    not_changed(HEAD E0 "  state: draining\n" E1, MAKE(REMOVE, "e0"), ICMS_INVALID,
                "nobody asked its icms-target when it was read: blocks that no other enclosure");
    not_changed(
        HEAD E0 "  state: draining\n" E1,
        ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .read = "last read: 3 s ago"}),
        ICMS_INVALID,
        "e0: last read: 3 s ago: blocks that no other enclosure has become misses; remove it "
        "when it was not read for 10 min, or add --yes; nothing was");
    changed(HEAD E0 "  state: draining\n" E1,
            ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .is_unread = true}),
            SHRUNK(5) E1);
    not_changed(HEAD E0 E1,
                ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .is_unread = true}),
                ICMS_INVALID, "not drained");
    changed(HEAD E1 FLOW, ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .yes = true}),
            SHRUNK(5) E1);
    not_changed(HEAD E0 E1, MAKE(REMOVE, "e0"), ICMS_INVALID, "not drained");
    not_changed(HEAD E0, ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .yes = true}),
                ICMS_INVALID, "the last one");
    not_changed(HEAD E0 E1 "  state: draining\n",
                ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e0", .yes = true}),
                ICMS_INVALID, "no other one is up");
    not_changed(HEAD E0 "  state: draining\n" E1 E2,
                ((struct conf_pod_change){CONF_POD_REMOVE, .name = "e1", .yes = true}),
                ICMS_INVALID, "another one is: is that the one?");
    not_changed(HEAD E0 E1, MAKE(REMOVE, "mars"), ICMS_NOT_FOUND, "none of this name");
}

static void test_what_an_editor_saved_meanwhile_stays(void **state)
{
    static const char saved[] = HEAD E0 E1 E2 "# saved\n...\n";
    struct conf_edit edit = {0};
    char text[sizeof(saved) + 1], beside[sizeof(path) + 8];
    glob_t found;
    FILE *file;

    assert_int_equal(change(HEAD E0 E1, &MAKE(DRAIN, "e0"), &edit), ICMS_OK);
    save_at_sync = saved;
    assert_int_equal(conf_edit_write(path, &edit, &why), ICMS_EXISTS);
    assert_non_null(strstr(why.text, "was changed since it was read"));
    conf_edit_fini(&edit);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_int_equal(fread(text, 1, sizeof(text), file), strlen(saved));
    assert_int_equal(fclose(file), 0);
    assert_memory_equal(text, saved, strlen(saved));
    (void)snprintf(beside, sizeof(beside), "%s.*", path);
    assert_int_equal(glob(beside, 0, NULL, &found), GLOB_NOMATCH);
}

/* One operator at a time; one who is killed stops no other. */
static void test_who_changes_the_file_at_the_same_time_has_to_try_again(void **state)
{
    struct conf_edit edit = {0}, begun = {.text = NULL};
    struct conf_edit_text text = {0};
    char beside[sizeof(path) + 8];
    glob_t found;
    pid_t child;
    int fd, status;

    assert_int_equal(change(HEAD E0 E1, &MAKE(DRAIN, "e0"), &edit), ICMS_OK);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(conf_edit_write(path, &edit, &why), ICMS_EXISTS);
    assert_non_null(strstr(why.text, "somebody else changes it now; try again"));
    assert_int_equal(close(fd), 0);
    is_killed_at_sync = true;
    child = fork();
    if (child == 0)
        _exit(conf_edit_write(path, &edit, &why) == ICMS_OK);
    is_killed_at_sync = false;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(conf_edit_write(path, &edit, &why), ICMS_OK);
    (void)snprintf(beside, sizeof(beside), "%s.*", path);
    assert_int_equal(glob(beside, 0, NULL, &found), 0);
    assert_int_equal(unlink(found.gl_pathv[0]), 0); /* what it left was in nobody's way */
    globfree(&found);
    conf_edit_fini(&edit);
    conf_edit_begin(path, &begun);
    file_write(ended(HEAD E0));
    assert_int_equal(conf_edit_open(&text, path, "enclosures", &why, &begun), ICMS_EXISTS);
    assert_non_null(strstr(why.text, "was changed since it was read"));
}

static void test_a_shrunken_map_is_confirmed_for_one_epoch(void **state)
{
    changed(HEAD E0, MAKE(SHRINK, NULL), "name: pod0\nepoch: 5\nshrink_epoch: 5\nenclosures:\n" E0);
    changed("shrink_epoch: 2\n" HEAD E0, MAKE(SHRINK, NULL), "shrink_epoch: 5\n" EPOCH(5) E0);
}

#define SET(w, n, ...)                                                                             \
    ((struct conf_pod_change){.what = CONF_POD_VOLUME_##w,                                         \
                              .name = (n),                                                         \
                              .values = (const char *[]){__VA_ARGS__},                             \
                              .value_count = sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)})
#define SURE(w, n) ((struct conf_pod_change){.what = CONF_POD_VOLUME_##w, .name = (n), .yes = true})

static void test_volumes_are_changed_line_by_line(void **state)
{
    char create[] = "value_max=4MiB", runs[] = "run_blocks=16", raw[] = "sealed=false",
         fourth[] = "generation=4", larger[] = "value_max=16MiB";
    struct conf_pod_change smaller;

    changed(HEAD E0, SET(CREATE, "kv", create, runs),
            EPOCH(5) E0 "volumes:\n- name: kv\n  value_max: 4MiB\n  run_blocks: 16\n");
    changed(HEAD E0 V_KV "# end\n", SET(CREATE, "b", raw),
            EPOCH(5) E0 V_KV "- name: b\n  sealed: false\n# end\n");
    changed(HEAD E0 V_KV "# end\n", SET(CREATE, "b", fourth, runs),
            EPOCH(5) E0 V_KV "- name: b\n  generation: 4\n  run_blocks: 16\n# end\n");
    changed(HEAD E0 V_KV V_B, SURE(RESET, "kv"),
            EPOCH(5) E0 "volumes:\n# of llama\n- name: kv # chat\n  generation: 4\n" V_B);
    changed(HEAD E0 V_KV V_B, SURE(RESET, "b"),
            EPOCH(5) E0 V_KV "- name: b\n  generation: 1\n  run_blocks: 4\n");
    changed(HEAD E0 V_KV V_B, SET(SET, "b", runs, larger),
            EPOCH(5) E0 V_KV "- name: b\n  value_max: 16MiB\n  run_blocks: 16\n");
    smaller = SET(SET, "b", runs, create);
    not_changed(HEAD E0 V_KV V_B, smaller, ICMS_INVALID, "cannot be loaded after a restart");
    smaller.yes = true;
    changed(HEAD E0 V_KV V_B, smaller,
            EPOCH(5) E0 V_KV "- name: b\n  value_max: 4MiB\n  run_blocks: 16\n");
    changed(HEAD E0 V_KV V_B, SURE(DELETE, "b"), SHRUNK(5) E0 V_KV);
    changed("shrink_epoch: 3\n" HEAD E0 V_KV V_B, SURE(DELETE, "b"),
            "shrink_epoch: 5\n" EPOCH(5) E0 V_KV);
    changed("shrink_epoch: 3\n" HEAD E0 V_KV V_B, SURE(RESET, "b"),
            "shrink_epoch: 3\n" EPOCH(5) E0 V_KV "- name: b\n  generation: 1\n  run_blocks: 4\n");
    changed(HEAD "- name: e0\n  address: 10.0.0.1:4420\n" V_KV, MAKE(SHRINK, NULL),
            "name: pod0\nepoch: 5\nshrink_epoch: 5\nenclosures:\n" E0 V_KV);
}

static void test_changes_of_volumes_that_are_refused(void **state)
{
    char named[] = "name=x", generation[] = "generation=9", none[] = "run_blocks", wrong[] = "a=b",
         many[] = "run_blocks=0", lines[] = "run_blocks=4\n  generation: 7",
         beyond[] = "generation=4294967296", raw[] = "sealed=false", secret[] = "encrypted=true";

    not_changed(HEAD E0 V_KV V_B, MAKE(VOLUME_RESET, "kv"), ICMS_INVALID, "add --yes");
    not_changed(HEAD E0 V_KV V_B, MAKE(VOLUME_DELETE, "kv"), ICMS_INVALID, "add --yes");
    not_changed(HEAD E0 V_KV, SURE(DELETE, "kv"), ICMS_INVALID, "the last one");
    not_changed(HEAD E0 V_KV, SURE(RESET, "kw"), ICMS_NOT_FOUND, "did you mean kv?");
    not_changed(HEAD E0, SURE(RESET, "kv"), ICMS_NOT_FOUND, "none of this name");
    not_changed(HEAD E0 V_KV, MAKE(VOLUME_CREATE, "kv"), ICMS_EXISTS, "has it already");
    not_changed(HEAD E0 V_KV, MAKE(VOLUME_CREATE, "a b"), ICMS_INVALID, "not a name");
    not_changed(HEAD E0 V_KV, MAKE(VOLUME_SET, "kv"), ICMS_INVALID, "say what changes");
    not_changed(HEAD E0 V_KV, SET(SET, "kv", named), ICMS_INVALID, "it is not set");
    not_changed(HEAD E0 V_KV, SET(SET, "kv", generation), ICMS_INVALID, "reset gives");
    not_changed(HEAD E0 V_KV, SET(CREATE, "b", beyond), ICMS_INVALID, "generation");
    not_changed(HEAD E0 V_KV, SET(CREATE, "b", generation, generation), ICMS_CONFIG, "generation");
    not_changed(HEAD E0 V_KV, SET(SET, "kv", raw), ICMS_INVALID, "sealed is not set: ");
    not_changed(HEAD E0 V_KV, SET(SET, "kv", secret), ICMS_INVALID,
                "encrypted is a part of its identity");
    not_changed(HEAD E0 V_KV, SET(SET, "kv", none), ICMS_INVALID, "a key and its value");
    not_changed(HEAD E0 V_KV, SET(SET, "kv", wrong), ICMS_INVALID, "has no key 'a'");
    not_changed(HEAD E0 V_KV, SET(SET, "kv", many), ICMS_INVALID, "run_blocks");
    not_changed(HEAD E0 V_KV, SET(SET, "kv", lines), ICMS_INVALID, "run_blocks");
    not_changed(HEAD E0 "volumes: [{name: kv}]\n", SURE(RESET, "kv"), ICMS_CONFIG, "by hand");
    not_changed(HEAD E0 "volumes:\n- name: kv\n  generation: 4294967295\n", SURE(RESET, "kv"),
                ICMS_CONFIG, "the last one");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_enclosure_is_added_behind_the_last),
        cmocka_unit_test(test_an_enclosure_is_added_with_its_capacity),
        cmocka_unit_test(test_a_weight_changes_with_its_former_one),
        cmocka_unit_test(test_states_are_changed_in_their_line),
        cmocka_unit_test(test_one_that_is_out_stays_listed),
        cmocka_unit_test(test_what_is_set_to_out_is_asked_for),
        cmocka_unit_test(test_one_that_is_set_to_out_leaves),
        cmocka_unit_test(test_one_at_a_time_joins_or_drains),
        cmocka_unit_test(test_what_is_removed_is_asked_for),
        cmocka_unit_test(test_what_an_editor_saved_meanwhile_stays),
        cmocka_unit_test(test_who_changes_the_file_at_the_same_time_has_to_try_again),
        cmocka_unit_test(test_a_shrunken_map_is_confirmed_for_one_epoch),
        cmocka_unit_test(test_volumes_are_changed_line_by_line),
        cmocka_unit_test(test_changes_of_volumes_that_are_refused),
    };

    return cmocka_run_group_tests_name("pod_change", tests, folder_make, folder_remove);
}
