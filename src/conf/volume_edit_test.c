/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `icms volume` makes of a target's file: the lines of the change and no others, and what it
 * refuses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "conf/conf.h"

static char path[] = "/tmp/icms-volume-XXXXXX";
static struct err_why why;
static char told[1024]; /* differences */

#define HEAD "# mine\nname: e0\ndrives:\n- {path: /d0, size: 1GiB}\nvolumes:\n"
#define KV   "  - name: kv  # the first\n    quota: 512MiB # half\n"
#define RAW  "  - name: raw\n    value_max: 64KiB\n    hosts: [nqn.2020-01.org.a:b]\n"
#define TAIL "memory: 1GiB\n"

static void told_visit(void *arg, const char *key, const char *was, const char *is)
{
    size_t used = strlen(told);

    (void)snprintf(told + used, sizeof(told) - used, "%s: %s -> %s\n", key, was, is);
}

static icms_err change(const char *text, const struct conf_volume_change *asked,
                       struct conf_edit *out_edit)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) >= 0 && fclose(file) == 0, 1);
    told[0] = why.text[0] = '\0';
    *out_edit = (struct conf_edit){0};
    return conf_volume_change(path, asked, told_visit, NULL, &why, out_edit);
}

/* The text that comes of it. */
static void becomes(const char *text, const struct conf_volume_change *asked, const char *after,
                    const char *differences)
{
    struct conf_edit edit;

    if (change(text, asked, &edit) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_string_equal(edit.text, after);
    assert_string_equal(told, differences);
    conf_edit_fini(&edit);
}

static void refused(const char *text, const struct conf_volume_change *asked, icms_err err,
                    const char *words)
{
    struct conf_edit edit;

    assert_int_equal(change(text, asked, &edit), err);
    if (strstr(why.text, words) == NULL)
        fail_msg("%s", why.text);
    assert_string_equal(told, "");
    assert_null(edit.text);
}

#define CHANGE(does, volume, sure, ...)                                                            \
    &(struct conf_volume_change)                                                                   \
    {                                                                                              \
        .what = (does), .name = (volume), .yes = (sure),                                           \
        .values = (const char *const[]){__VA_ARGS__ NULL},                                         \
        .value_count = sizeof((const char *const[]){__VA_ARGS__ NULL}) / sizeof(char *) - 1        \
    }

static void only_the_lines_of_the_change(void **state)
{
    becomes(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_SET, "kv", false, "quota=600MiB", ),
            HEAD "  - name: kv  # the first\n    quota: 600MiB # half\n" RAW TAIL,
            "volumes[kv].quota: 512MiB -> 600MiB\n");
    becomes(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_SET, "kv", true, "quota=", "value_max=1MiB", ),
            HEAD "  - name: kv  # the first\n    value_max: 1MiB\n" RAW TAIL,
            "volumes[kv].quota: 512MiB -> 0 (default)\n"
            "volumes[kv].value_max: 8MiB (default) -> 1MiB\n");
    becomes(
        HEAD KV RAW TAIL,
        CHANGE(CONF_VOLUME_SET, "raw", false, "hosts=[nqn.2020-01.org.a:b, nqn.2020-01.org.a:d]", ),
        HEAD KV "  - name: raw\n    value_max: 64KiB\n"
                "    hosts: [nqn.2020-01.org.a:b, nqn.2020-01.org.a:d]\n" TAIL,
        "volumes[raw].hosts: nqn.2020-01.org.a:b -> nqn.2020-01.org.a:b, "
        "nqn.2020-01.org.a:d\n");
    becomes(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_RESET, "raw", true, ),
            HEAD KV "  - name: raw\n    generation: 1\n    value_max: 64KiB\n"
                    "    hosts: [nqn.2020-01.org.a:b]\n" TAIL,
            "volumes[raw].generation: 0 (default) -> 1\n");
    becomes(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_DELETE, "kv", true, ), HEAD RAW TAIL,
            "volumes[kv]: listed -> not listed\n");
    becomes(HEAD KV "  - name: raw", CHANGE(CONF_VOLUME_CREATE, "new", false, "quota=1GiB", ),
            HEAD KV "  - name: raw\n  - name: new\n    quota: 1GiB\n",
            "volumes[new]: not listed -> listed\n");
    becomes(HEAD KV RAW, CHANGE(CONF_VOLUME_CREATE, "new", false, "generation=4", "sealed=false", ),
            HEAD KV RAW "  - name: new\n    sealed: false\n    generation: 4\n",
            "volumes[new]: not listed -> listed\n");
    becomes(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_SET, "kv", false, "quota=512MiB", ),
            HEAD KV RAW TAIL, "");
}

static void what_loses_blocks_asks(void **state)
{
    refused(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_DELETE, "kv", false, ), ICMS_INVALID, "--yes");
    refused(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_RESET, "kv", false, ), ICMS_INVALID, "--yes");
    refused(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_SET, "kv", false, "quota=500MiB", ), ICMS_INVALID,
            "--yes");
    refused(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_SET, "raw", false, "quota=500MiB", ), ICMS_INVALID,
            "--yes");
    refused(HEAD RAW, CHANGE(CONF_VOLUME_SET, "raw", false, "value_max=65535", ), ICMS_INVALID,
            "cannot be loaded after a restart");
    becomes(HEAD RAW, CHANGE(CONF_VOLUME_SET, "raw", false, "value_max=65537", ),
            HEAD "  - name: raw\n    value_max: 65537\n    hosts: [nqn.2020-01.org.a:b]\n",
            "volumes[raw].value_max: 64KiB -> 65537\n");
    refused(HEAD KV, CHANGE(CONF_VOLUME_SET, "kv", false, "quota=", "value_max=1MiB", ),
            ICMS_INVALID, "value_max becomes smaller");
    refused(HEAD RAW, CHANGE(CONF_VOLUME_DELETE, "raw", true, ), ICMS_INVALID, "last one");
}

/* "hosts=$UNSET" is enough. */
static void what_opens_a_volume_asks(void **state)
{
#define SAFE "  - name: s\n    require: chap+tls\n    hosts: [nqn.2020-01.org.a:b]\n"

    refused(HEAD SAFE, CHANGE(CONF_VOLUME_SET, "s", false, "hosts=", ), ICMS_INVALID,
            "any host may use it then; add --yes");
    becomes(HEAD SAFE, CHANGE(CONF_VOLUME_SET, "s", true, "hosts=", ),
            HEAD "  - name: s\n    require: chap+tls\n",
            "volumes[s].hosts: nqn.2020-01.org.a:b -> any host (default)\n");
    refused(HEAD SAFE, CHANGE(CONF_VOLUME_SET, "s", false, "require=chap", ), ICMS_INVALID,
            "require: ");
    refused(HEAD SAFE, CHANGE(CONF_VOLUME_SET, "s", false, "require=tls", ), ICMS_INVALID, "--yes");
    refused(HEAD SAFE, CHANGE(CONF_VOLUME_SET, "s", false, "require=", ), ICMS_INVALID, "--yes");
    becomes(HEAD SAFE, CHANGE(CONF_VOLUME_SET, "s", true, "require=tls", ),
            HEAD "  - name: s\n    require: tls\n    hosts: [nqn.2020-01.org.a:b]\n",
            "volumes[s].require: chap+tls -> tls\n");
    becomes(HEAD KV, CHANGE(CONF_VOLUME_SET, "kv", false, "require=chap", ),
            HEAD "  - name: kv  # the first\n    require: chap\n    quota: 512MiB # half\n",
            "volumes[kv].require: none (default) -> chap\n");
}

/* They have its blocks, and miss them then. */
static void hosts_that_leave_a_volume_ask(void **state)
{
    static const char two[] =
        HEAD "  - name: s\n    hosts: [nqn.2020-01.org.a:b, nqn.2020-01.org.a:c]\n";

    refused(two, CHANGE(CONF_VOLUME_SET, "s", false, "hosts=[nqn.2020-01.org.a:c]", ), ICMS_INVALID,
            "hosts: some that may use it may not any more, and miss its blocks; add --yes");
    refused(
        two,
        CHANGE(CONF_VOLUME_SET, "s", false, "hosts=[nqn.2020-01.org.a:c, nqn.2020-01.org.a:d]", ),
        ICMS_INVALID, "may not any more");
    refused(HEAD KV, CHANGE(CONF_VOLUME_SET, "kv", false, "hosts=[nqn.2020-01.org.a:b]", ),
            ICMS_INVALID, "may not any more");
    becomes(two, CHANGE(CONF_VOLUME_SET, "s", true, "hosts=[nqn.2020-01.org.a:c]", ),
            HEAD "  - name: s\n    hosts: [nqn.2020-01.org.a:c]\n",
            "volumes[s].hosts: nqn.2020-01.org.a:b, nqn.2020-01.org.a:c -> nqn.2020-01.org.a:c\n");
    becomes(
        two,
        CHANGE(CONF_VOLUME_SET, "s", false, "hosts=[nqn.2020-01.org.a:c, nqn.2020-01.org.a:b]", ),
        HEAD "  - name: s\n    hosts: [nqn.2020-01.org.a:c, nqn.2020-01.org.a:b]\n",
        "volumes[s].hosts: nqn.2020-01.org.a:b, nqn.2020-01.org.a:c -> nqn.2020-01.org.a:c, "
        "nqn.2020-01.org.a:b\n");
}

static void hosts_that_nobody_has_are_refused(void **state)
{
#define UUIDS "nqn.2014-08.org.nvmexpress:uuid:"
    static const struct {
        const char *value, *words;
    } cases[] = {
        {"hosts=[" UUIDS "...]", "hosts: " UUIDS "... does not end with a UUID; nothing was"},
        {"hosts=[nqn.2020-01.org.a:b, " UUIDS "7000-1]", "does not end with a UUID"},
        {"hosts=[nqn.2020-01.org.a:b, nqn.2020-01.org.a:c, nqn.2020-01.org.a:b]",
         "nqn.2020-01.org.a:b is listed twice"},
    };
    static const char wrong[] = HEAD "  - name: raw\n    hosts: [" UUIDS "...]\n";

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        refused(HEAD RAW, CHANGE(CONF_VOLUME_SET, "raw", true, cases[i].value, ), ICMS_INVALID,
                cases[i].words);
        refused(HEAD RAW, CHANGE(CONF_VOLUME_CREATE, "new", false, cases[i].value, ), ICMS_INVALID,
                cases[i].words);
    }
    becomes(HEAD RAW,
            CHANGE(CONF_VOLUME_CREATE, "new", false,
                   "hosts=[" UUIDS "70000000-0000-4000-8000-000000000007]", ),
            HEAD RAW "  - name: new\n    hosts: [" UUIDS "70000000-0000-4000-8000-000000000007]\n",
            "volumes[new]: not listed -> listed\n");
    becomes(wrong,
            CHANGE(CONF_VOLUME_SET, "raw", false, "require=chap", ), /* not what it has already */
            HEAD "  - name: raw\n    require: chap\n    hosts: [" UUIDS "...]\n",
            "volumes[raw].require: none (default) -> chap\n");
}

/* Blocks that are stored would be read the other way. */
static void what_a_volume_is_made_with_stays(void **state)
{
    static const char open[] = HEAD "  - name: r\n    sealed: false\n",
                      secret[] = HEAD "  - name: c\n    encrypted: true\n";

    refused(HEAD KV, CHANGE(CONF_VOLUME_SET, "kv", true, "sealed=false", ), ICMS_INVALID,
            "sealed is not set: ");
    refused(open, CHANGE(CONF_VOLUME_SET, "r", true, "sealed=", ), ICMS_INVALID, "sealed");
    refused(HEAD KV, CHANGE(CONF_VOLUME_SET, "kv", true, "encrypted=true", ), ICMS_INVALID,
            "encrypted is a part of its identity");
    refused(secret, CHANGE(CONF_VOLUME_SET, "c", true, "encrypted=", ), ICMS_INVALID, "encrypted");
    becomes(HEAD KV, CHANGE(CONF_VOLUME_SET, "kv", false, "sealed=true", ),
            HEAD "  - name: kv  # the first\n    sealed: true\n    quota: 512MiB # half\n", "");
}

/* Blocks of a deleted volume of this name have its generation: a new one starts behind it. */
static void a_deleted_volume_says_its_generation(void **state)
{
    struct conf_edit edit;

    assert_int_equal(change(HEAD KV "  - name: raw\n    generation: 3\n",
                            CHANGE(CONF_VOLUME_DELETE, "raw", true, ), &edit),
                     ICMS_OK);
    assert_int_equal(edit.from, 3);
    conf_edit_fini(&edit);
    refused(HEAD KV, CHANGE(CONF_VOLUME_CREATE, "new", true, "generation=-1", ), ICMS_CONFIG,
            "generation");
    refused(HEAD KV, CHANGE(CONF_VOLUME_CREATE, "new", true, "generation=4294967296", ),
            ICMS_CONFIG, "generation");
    refused(HEAD KV, CHANGE(CONF_VOLUME_CREATE, "new", true, "name=old", ), ICMS_INVALID, "name");
}

/* No value brings lines, keys or volumes of its own. */
static void what_is_no_value_is_refused(void **state)
{
    static const char *const values[] = {
        "quota=1GiB\n    sealed: false",
        "quota=1GiB # sealed: false",
        "quota",
        "=1",
        "generation=7",
        "name=raw",
        "uuid=4cd2d41d-90eb-854c-b294-9f6b0e74eee6",
        "quota=1GiB\r",
    };
    static const char *const wrong[] = {"quota=1GiB, sealed: false",
                                        "nonsense=1",
                                        "quota=[1GiB]",
                                        "hosts={a: b}",
                                        "tenant=a",
                                        "quota=\"1GiB\"",
                                        "sealed=maybe",
                                        "sealed: false, quota=1"};

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        refused(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_SET, "kv", true, values[i], ), ICMS_INVALID,
                "volume kv: ");
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        refused(HEAD KV RAW TAIL, CHANGE(CONF_VOLUME_SET, "kv", true, wrong[i], ), ICMS_CONFIG,
                ":");
    refused(HEAD KV, CHANGE(CONF_VOLUME_CREATE, "a\n  - name: b", false, ), ICMS_CONFIG, ":");
    refused(HEAD KV, CHANGE(CONF_VOLUME_CREATE, "a b: {}", false, ), ICMS_CONFIG, ":");
    refused(HEAD KV, CHANGE(CONF_VOLUME_CREATE, "kv", false, ), ICMS_EXISTS, "has it already");
    refused(HEAD KV RAW, CHANGE(CONF_VOLUME_SET, "rav", false, "quota=1GiB", ), ICMS_NOT_FOUND,
            "did you mean raw?");
    refused(HEAD KV RAW, CHANGE(CONF_VOLUME_RESET, "zzzzzzzz", true, ), ICMS_NOT_FOUND,
            "it has kv, raw");
}

static void a_style_that_has_no_lines_is_refused(void **state)
{
    refused("name: e0\ndrives: [{path: /d0, size: 1GiB}]\nvolumes: [{name: kv}, {name: b}]\n",
            CHANGE(CONF_VOLUME_SET, "kv", false, "quota=1GiB", ), ICMS_CONFIG, "by hand");
    refused(HEAD "  - name: kv\n    hosts:\n    - nqn.2020-01.org.a:b\n",
            CHANGE(CONF_VOLUME_SET, "kv", false, "hosts=[nqn.2020-01.org.a:c]", ), ICMS_CONFIG,
            "by hand");
    refused("enclosures: [{name: a, address: \"127.0.0.1:1\"}]\nvolumes:\n- name: kv\n",
            CHANGE(CONF_VOLUME_SET, "kv", false, "quota=1GiB", ), ICMS_CONFIG,
            "belongs in that of icms-agent");
}

static void volumes_of_a_map_are_changed_there(void **state)
{
    refused("name: e0\ndrives: [{path: /d0, size: 1GiB}]\npod: /etc/icms/pod.yaml\n",
            CHANGE(CONF_VOLUME_SET, "kv", false, "quota=1GiB", ), ICMS_INVALID,
            "use `icms pod volume` with --file /etc/icms/pod.yaml");
}

static int file_make(void **state)
{
    int fd = mkstemp(path);

    return fd < 0 ? -1 : close(fd);
}

static int file_remove(void **state)
{
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_lines_of_the_change),
        cmocka_unit_test(what_loses_blocks_asks),
        cmocka_unit_test(what_opens_a_volume_asks),
        cmocka_unit_test(hosts_that_leave_a_volume_ask),
        cmocka_unit_test(hosts_that_nobody_has_are_refused),
        cmocka_unit_test(what_a_volume_is_made_with_stays),
        cmocka_unit_test(a_deleted_volume_says_its_generation),
        cmocka_unit_test(what_is_no_value_is_refused),
        cmocka_unit_test(a_style_that_has_no_lines_is_refused),
        cmocka_unit_test(volumes_of_a_map_are_changed_there),
    };

    return cmocka_run_group_tests_name("conf-volume-edit", tests, file_make, file_remove);
}
