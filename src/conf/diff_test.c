/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kind a configuration file is, and where two of one kind differ in meaning.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "conf/conf_int.h"

static char folder[64], paths[2][96], told[4096];
static struct err_why why;

static int folder_make(void **state)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/icms-diff-XXXXXX");
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < 2; i++)
        (void)snprintf(paths[i], sizeof(paths[i]), "%s/%d", folder, i);
    return 0;
}

static int folder_remove(void **state)
{
    (void)unlink(paths[0]);
    (void)unlink(paths[1]);
    return rmdir(folder);
}

static void file_write(int number, const char *text)
{
    FILE *file = fopen(paths[number], "w");

    assert_non_null(file);
    assert_int_equal(fputs(text, file) < 0, 0);
    assert_int_equal(fclose(file), 0);
}

static void tell(void *arg, const char *key, const char *was, const char *is)
{
    size_t used = strlen(told);

    (void)snprintf(told + used, sizeof(told) - used, "%s: %s -> %s\n", key, was, is);
}

static icms_err diff(const char *was, const char *is)
{
    file_write(0, was);
    file_write(1, is);
    told[0] = '\0';
    return conf_diff(paths[0], paths[1], tell, NULL, &why);
}

static void differs(const char *was, const char *is, const char *want)
{
    if (diff(was, is) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_string_equal(told, want);
}

static void is_kind(const char *text, enum conf_file_kind want)
{
    enum conf_file_kind kind = CONF_FILE_TARGET;

    file_write(0, text);
    if (conf_check(paths[0], &why, &kind) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_int_equal(kind, want);
}

#define POD    "name: p\nepoch: 1\nenclosures:\n- {name: a, address: b:1}\n...\n"
#define TARGET "name: e0\ndrives:\n- {path: /d0, size: 1GiB}\n"
#define VOLUME "volumes:\n- {name: kv, value_max: 1MiB}\n"
#define AGENT  "enclosures: [{name: a, address: 127.0.0.1:1}]\n"

static void test_a_file_says_what_it_is(void **state)
{
    enum conf_file_kind kind;

    is_kind(TARGET VOLUME, CONF_FILE_TARGET);
    is_kind(AGENT VOLUME, CONF_FILE_AGENT);
    is_kind("pod: /p\n" VOLUME, CONF_FILE_AGENT);
    is_kind("local: {path: /l, size: 1GiB}\n" VOLUME, CONF_FILE_AGENT);
    is_kind(POD, CONF_FILE_POD);
    is_kind("volumes: [{name: kv, keys: [{id: 1, file: /k}]}]\n", CONF_FILE_SEAL);
    is_kind("devices: [{device_name: d, connection: \"unix:/s\", volumes: [{nguid: "
            "00000000000000000000000000000000, volume: kv}]}]\n",
            CONF_FILE_NIXL);
    file_write(0, "enclosures:\n- {name: a, address: b:1}\n"); /* a map without its epoch */
    assert_int_equal(conf_check(paths[0], &why, &kind), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "the pod map needs the key"));
    file_write(0, "name: p\nepoch: 1\nenclosures:\n- {name: a, address: b:1}\n");
    assert_int_equal(conf_check(paths[0], &why, &kind), ICMS_CONFIG);
    assert_non_null(strstr(why.text, ":4: the last line is not `...`"));
    file_write(0, "[]\n");
    assert_int_equal(conf_check(paths[0], &why, &kind), ICMS_CONFIG);
    file_write(0, TARGET "volumes:\n- {name: kv, quota: 2GiB}\n");
    assert_int_equal(conf_check(paths[0], &why, &kind), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "quota"));
}

static void test_what_means_the_same_is_no_difference(void **state)
{
    differs(TARGET VOLUME,
            "# other words\nvolumes:\n- value_max: 1024KiB\n  name: kv\n  run_blocks: 8\n"
            "segment: 64MiB\ndrives: [{size: 1024MiB, path: /d0}]\nname: e0\n",
            "");
    differs("enclosures:\n- {name: a, address: 127.0.0.1:1}\n- {name: b, address: "
            "127.0.0.2:1}\n" VOLUME,
            "enclosures:\n- {name: b, address: 127.0.0.2:1, weight: 1}\n"
            "- {name: a, address: 127.0.0.1:1}\n" VOLUME,
            "");
}

static void test_differences_are_told_by_key(void **state)
{
    differs(TARGET VOLUME, TARGET "memory: 1GiB\nvolumes:\n- {name: kv, value_max: 2MiB}\n",
            "memory: 256MiB (default) -> 1GiB\nvolumes[kv].value_max: 1MiB -> 2MiB\n");
    differs(POD,
            "name: p\nepoch: 2\nenclosures:\n- {name: a, address: b:1, state: draining}\n"
            "- {name: c, address: c:1}\n...\n",
            "epoch: 1 -> 2\nenclosures[a].state: up (default) -> draining\n"
            "enclosures[c]: not listed -> listed\n");
    differs(AGENT VOLUME "http:\n  listen: 127.0.0.1:1\n", AGENT VOLUME,
            "http.listen: 127.0.0.1:1 -> 127.0.0.1:9421 (default)\n");
    differs(AGENT VOLUME, "pod: /p\n" VOLUME,
            "enclosures[a]: listed -> not listed\npod: none (default) -> /p\n");
    differs(TARGET VOLUME,
            "name: e0\ndrives:\n- {path: /d0, size: 1GiB, write_budget: 1DWPD}\n"
            "volumes:\n- name: kv\n  value_max: 1MiB\n  hosts: [nqn.2020-01.org.a:b, "
            "nqn.2020-01.org.a:c]\n",
            "drives[/d0].write_budget: 0 (default) -> 1DWPD\n"
            "volumes[kv].hosts: any host (default) -> nqn.2020-01.org.a:b, nqn.2020-01.org.a:c\n");
    differs(TARGET VOLUME "hosts: [{nqn: nqn.2020-01.org.a:b, psks: [/k]}]\n",
            TARGET VOLUME "hosts: [{nqn: nqn.2020-01.org.a:b, psks: [/k, /l]}]\n",
            "hosts[nqn.2020-01.org.a:b].psks: /k -> /k, /l\n");
    assert_int_equal(diff(TARGET VOLUME, AGENT VOLUME), ICMS_INVALID);
    assert_non_null(strstr(why.text, "another kind (icms-agent)"));
    assert_int_equal(diff(TARGET VOLUME, TARGET "nonsense: 1\n" VOLUME), ICMS_CONFIG);
    assert_string_equal(told, "");
}

/* What a target that runs may find in its file: OK, or the end of the sentence. */
static void live(const char *was, const char *is, const char *end)
{
    struct conf_live *before = NULL, *after = NULL;
    icms_err err;

    why.text[0] = '\0';
    file_write(0, was);
    file_write(1, is);
    assert_int_equal(conf_live_read(paths[0], "x", &why, &before), ICMS_OK);
    err = conf_live_read(paths[1], "x", &why, &after);
    if (err == ICMS_OK)
        err = conf_live_check(before, after, &why);
    if (err != (end == NULL ? ICMS_OK : ICMS_CONFIG))
        fail_msg("%s", why.text);
    if (end != NULL && strstr(why.text, end) == NULL)
        fail_msg("%s", why.text);
    conf_live_free(&before);
    conf_live_free(&after);
}

static void test_only_volumes_and_tenants_change_while_a_target_runs(void **state)
{
    struct conf_live *is = NULL;
    const char *file;

    live(TARGET VOLUME, TARGET VOLUME, NULL);
    live(TARGET VOLUME, TARGET "volumes:\n- {name: kv, quota: 512MiB}\n- name: other\n", NULL);
    live(TARGET VOLUME, TARGET "tenants: [{name: a, weight: 2}]\n" VOLUME, NULL);
    live(TARGET VOLUME, TARGET "volumes: [{name: b}]\n", NULL);
    live(TARGET VOLUME, TARGET VOLUME "memory: 1GiB\n",
         ":6: memory is 1GiB, and 256MiB (default) in");
    live(TARGET VOLUME, TARGET VOLUME "hosts: [{nqn: nqn.2020-01.org.a:b}]\n", "restart it");
    live(TARGET VOLUME, AGENT VOLUME, "it belongs in that of icms-agent");
    live(TARGET VOLUME, TARGET VOLUME "nonsense: 1\n", "nonsense");
    live(TARGET VOLUME "...\n", TARGET VOLUME "...\n", NULL);
    live(TARGET VOLUME, TARGET VOLUME "...\n", NULL);
    live(TARGET VOLUME "...\n", TARGET VOLUME, ":5: the last line is not `...`: the file may be");
    live(TARGET VOLUME "...", TARGET "volumes:\n- name: kv\n", "written halfway");
    file_write(0, TARGET "volumes:\n- name: kv\n  quota: 512MiB\n- name: b\n");
    assert_int_equal(conf_live_read(paths[0], "x", &why, &is), ICMS_OK);
    assert_int_equal(conf_live_line(is, 0, "quota", &file) + 1,
                     conf_live_line(is, 1, "quota", &file));
    assert_int_equal(conf_live_line(is, UINT32_MAX, "", &file), 1);
    assert_int_equal(conf_live_line(is, UINT32_MAX, "volumes", &file) + 1,
                     conf_live_line(is, 0, "", &file));
    assert_true(conf_live_line(is, 0, "", &file) > 2);
    conf_live_free(&is);
}

/* Nobody will ever write into it. */
static void test_a_pipe_is_refused_at_once(void **state)
{
    enum conf_file_kind kind;

    (void)unlink(paths[0]);
    assert_int_equal(mkfifo(paths[0], 0600), 0);
    assert_int_equal(conf_check(paths[0], &why, &kind), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "not a regular file"));
    assert_int_equal(unlink(paths[0]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_file_says_what_it_is),
        cmocka_unit_test(test_what_means_the_same_is_no_difference),
        cmocka_unit_test(test_differences_are_told_by_key),
        cmocka_unit_test(test_only_volumes_and_tenants_change_while_a_target_runs),
        cmocka_unit_test(test_a_pipe_is_refused_at_once),
    };

    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
