/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pod map of a target: what of volumes and tenants it says, that the target's file says nothing
 * else, what is refused and where, and how `icms pod volume` writes it.
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

#include "conf/conf_int.h"
#include "conf/pod.h"

static struct conf_pod pod, other;
static struct err_why why;
static char path[64];

#define HEAD   "name: pod0\nepoch: 4\nenclosures:\n- name: e0\n  address: 10.0.0.1:4420\n"
#define NEXT   "name: pod0\nepoch: 5\nenclosures:\n- name: e0\n  address: 10.0.0.1:4420\n"
#define VOLUME "volumes:\n- name: kv\n"
#define HOST   "nqn.2026-01.io.icms:a"
#define UUID7  "70000000-0000-4000-8000-000000000007"
#define TARGET "name: e0\ndrives: [{path: /d0, size: 1GiB}]\npod: /p.yaml\n"

/* NEXT, in which something may shrink */
#define CONFIRMED                                                                                  \
    "name: pod0\nepoch: 5\nshrink_epoch: 5\nenclosures:\n- name: e0\n  address: 10.0.0.1:4420\n"

static int forget(void **state)
{
    (void)state;
    conf_pod_fini(&pod);
    conf_pod_fini(&other);
    return 0;
}

/* With the line that ends a map. */
static void accepted(const char *text, struct conf_pod *out)
{
    char whole[4096];

    (void)snprintf(whole, sizeof(whole), "%s...\n", text);
    conf_pod_fini(out);
    if (conf_pod_parse(whole, strlen(whole), "p.yaml", &why, out) != ICMS_OK)
        fail_msg("%s\nrefused: %s", text, why.text);
}

static void refused(const char *text, const char *place, const char *word)
{
    icms_err err = conf_pod_parse(text, strlen(text), "p.yaml", &why, &pod);

    if (err != ICMS_CONFIG || strncmp(why.text, place, strlen(place)) != 0 ||
        strstr(why.text, word) == NULL)
        fail_msg("%s\nanswered %s '%s', wanted '%s ... %s'", text, icms_err_name(err), why.text,
                 place, word);
}

static void test_every_key_is_taken_as_written(void **state)
{
    accepted(HEAD
             "tenants:\n- {name: a, weight: 3, load_bytes_per_s: 1GiB, load_ops_per_s: 5, "
             "store_bytes_per_s: 2GiB, store_ops_per_s: 6}\n"
             "volumes:\n- {name: kv, tenant: a, quota: 2GiB, require: chap+tls, generation: 3, "
             "hosts: [" HOST ", nqn.2026-01.org.b:c]}\n- name: b\n",
             &pod);
    assert_int_equal(pod.tenant_count, 1);
    assert_int_equal(pod.tenants[0].weight, 3);
    assert_int_equal(pod.tenants[0].load_bytes_per_s, (uint64_t)1 << 30);
    assert_int_equal(pod.tenants[0].load_ops_per_s, 5);
    assert_int_equal(pod.tenants[0].store_bytes_per_s, (uint64_t)2 << 30);
    assert_int_equal(pod.tenants[0].store_ops_per_s, 6);
    assert_string_equal(pod.volumes[0].tenant, "a");
    assert_int_equal(pod.volumes[0].quota_bytes, (uint64_t)2 << 30);
    assert_int_equal(pod.volumes[0].require, REQUIRE_CHAP | REQUIRE_TLS);
    assert_int_equal(pod.volumes[0].host_count, 2);
    assert_string_equal(pod.volumes[0].host_nqn[1], "nqn.2026-01.org.b:c");
    assert_int_equal(pod.volumes[1].host_count, 0);
    assert_int_equal(pod.volumes[1].quota_bytes, 0);
    assert_int_equal(pod.volumes[1].require, 0);
    assert_string_equal(pod.volumes[1].tenant, "");
}

static void test_what_is_wrong_is_refused_with_its_line(void **state)
{
    refused(HEAD VOLUME "  tenant: a\n...\n", "p.yaml:8: tenant", "there is no tenant 'a'");
    refused(HEAD "tenants: [{name: a}, {name: a}]\n" VOLUME "...\n", "p.yaml:6: name",
            "the tenant 'a' is listed twice");
    refused(HEAD VOLUME "  quota: -1\n...\n", "p.yaml:8: quota", "-1");
    refused(HEAD VOLUME "  quota: 1GB\n...\n", "p.yaml:8: quota", "1GB");
    refused(HEAD VOLUME "  quota: 4KiB\n...\n", "p.yaml:8: quota", "too small for one block");
    refused(HEAD VOLUME "  hosts: []\n...\n", "p.yaml:8: hosts", "the list is empty");
    refused(HEAD VOLUME "  hosts: [a]\n...\n", "p.yaml:8: hosts", "nqn.");
    refused(HEAD VOLUME "  hosts: " HOST "\n...\n", "p.yaml:8: hosts", "a list is wanted");
    refused(HEAD VOLUME "  hosts: [" HOST "]\n- name: kv\n...\n", "p.yaml:9: name", "twice");
    refused(HEAD VOLUME "  require: maybe\n...\n", "p.yaml:8: require", "maybe");
    refused(HEAD VOLUME "  users: [root]\n...\n", "p.yaml:8: ", "has no key 'users'");
    refused(HEAD "tenants: [{name: a, wieght: 2}]\n" VOLUME "...\n", "p.yaml:6: ", "'weight'?");
    refused(HEAD VOLUME "  hosts: [" HOST "]\n", "p.yaml:8: ", "the last line is not `...`");
}

/* ---- the target's file ----------------------------------------------------------------------- */

static struct conf_live *live_of(const char *config, const char *map, icms_err err,
                                 const char *words)
{
    struct conf_live *live = NULL;
    char whole[4096];
    icms_err is = conf_live_parse("t.yaml", config, strlen(config), &why, &live);

    (void)snprintf(whole, sizeof(whole), "%s...\n", map);
    if (is == ICMS_OK)
        is = conf_live_join(live, whole, strlen(whole), "p.yaml", &why);
    if (is != err || (err != ICMS_OK && strstr(why.text, words) == NULL))
        fail_msg("answered %s '%s', wanted '%s'", icms_err_name(is), why.text, words);
    if (err == ICMS_OK)
        return live;
    conf_live_free(&live);
    return NULL;
}

static void live_refused(const char *config, const char *map, const char *words)
{
    assert_null(live_of(config, map, ICMS_CONFIG, words));
}

static void test_volumes_are_those_of_the_map(void **state)
{
    struct conf_live *live =
        live_of(TARGET,
                HEAD "tenants: [{name: a, weight: 2}]\n" VOLUME "  quota: 512MiB\n  tenant: a\n"
                     "  hosts: [" HOST "]\n  require: tls\n  generation: 2\n  value_max: 1MiB\n",
                ICMS_OK, "");
    const struct conf_target *target = conf_live_target(live);
    const struct volume_spec *volume = &target->volumes[0];

    assert_string_equal(target->pod, "/p.yaml");
    assert_int_equal(target->volume_count, 1);
    assert_string_equal(volume->name, "kv");
    assert_int_equal(volume->quota_bytes, 512 << 20);
    assert_int_equal(volume->value_bytes_max, 1 << 20);
    assert_int_equal(volume->generation, 2);
    assert_int_equal(volume->require, REQUIRE_TLS);
    assert_string_equal(volume->tenant, "a");
    assert_int_equal(volume->host_count, 1);
    assert_string_equal(volume->host_nqn[0], HOST);
    assert_true(volume->sealed);
    assert_true(uuid_equal(&volume->uuid, &conf_live_pod(live)->volumes[0].uuid));
    assert_int_equal(target->tenants[0].weight, 2);
    assert_int_equal(conf_live_pod(live)->epoch, 4);
    conf_live_free(&live);
}

static void test_the_file_says_nothing_of_them(void **state)
{
    struct conf_live *live = NULL;
    const char *none = "name: e0\ndrives: [{path: /d0}]\n";

    live_refused(TARGET VOLUME, HEAD VOLUME,
                 "t.yaml:4: volumes: with pod they are those of the "
                 "pod map /p.yaml");
    live_refused(TARGET "tenants: [{name: a}]\n", HEAD VOLUME, "t.yaml:4: tenants: with pod");
    live_refused(TARGET, HEAD, "p.yaml:1: volumes: the map lists none");
    assert_int_equal(conf_live_parse("t.yaml", none, strlen(none), &why, &live), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "t.yaml:1: the configuration of icms-target needs the key "
                                     "'volumes'"));
    assert_non_null(strstr(why.text, "or the key pod"));
}

static void test_what_does_not_fit_is_refused_where_it_is_written(void **state)
{
    live_refused(TARGET, HEAD VOLUME "  quota: 2GiB\n", "p.yaml:8: quota: 2GiB is larger than");
    live_refused(TARGET "segment: 1MiB\n", HEAD VOLUME "  value_max: 4MiB\n",
                 "p.yaml:8: value_max: a block of volume 'kv' does not fit into a segment of this "
                 "target, 1MiB (`segment`");
    live_refused(TARGET "segment: 1MiB\n", HEAD VOLUME,
                 "p.yaml:7: value_max: a block of volume 'kv' does not fit into a segment of this "
                 "target, 1MiB (`segment`"); /* the default is too large */
    live_refused(TARGET "memory: 1MiB\n", HEAD VOLUME, "t.yaml:4: memory: too small");
    live_refused(TARGET, HEAD VOLUME "  tenant: a\n", "p.yaml:8: tenant");
    live_refused(TARGET, "drives: 1\n", "p.yaml:1: ");
}

/* ---- the enclosure in the map ---------------------------------------------------------------- */

static void warned(const char *map, const char *words)
{
    struct conf_live *live = live_of(TARGET, map, ICMS_OK, "");
    const struct conf_warnings *warnings = &conf_live_target(live)->warnings;

    if (words == NULL)
        assert_int_equal(warnings->count, 0);
    else if (warnings->count != 1 || strstr(warnings->text[0], words) == NULL)
        fail_msg("%u: %s", warnings->count, warnings->text[0]);
    conf_live_free(&live);
}

static void test_the_map_has_the_enclosure_as_it_is(void **state)
{
    struct uuid uuid;
    char text[UUID_TEXT_BYTES], map[1024];

    conf_enclosure_uuid("e0", &uuid);
    uuid_format(&uuid, text);
    warned(HEAD VOLUME, NULL);
    warned("name: p\nepoch: 1\nenclosures:\n- {name: e0, address: a:1, state: out}\n"
           "- {name: e1, address: b:1}\n" VOLUME,
           "this enclosure, 'e0', is out in the map: agents do not use it");
    warned("name: p\nepoch: 1\nenclosures: [{name: e1, address: a:1}]\n" VOLUME,
           "the map does not have this enclosure, 'e0'");
    (void)snprintf(map, sizeof(map),
                   "name: p\nepoch: 1\nenclosures: [{name: e9, address: a:1, uuid: %s}]\n" VOLUME,
                   text);
    warned(map, "the map calls this enclosure 'e9'");
    live_refused(TARGET, HEAD "  uuid: 70000000-0000-4000-8000-000000000007\n" VOLUME,
                 "p.yaml:6: uuid: the map has enclosure 'e0' with another one");
    live_refused(TARGET, HEAD "  nqn: nqn.2026-01.org.b:c\n" VOLUME,
                 "p.yaml:6: nqn: it is nqn.2026");
    live_refused(TARGET "nqn: nqn.2026-01.org.b:c\n",
                 "name: p\nepoch: 1\nenclosures:\n- {name: e1, address: a:1, nqn: "
                 "nqn.2026-01.org.b:c}\n" VOLUME,
                 "p.yaml:4: uuid: the map has enclosure 'e1'");
}

/* ---- one map and the next -------------------------------------------------------------------- */

static void visit(void *arg, const char *key, const char *was, const char *is)
{
    char *all = arg;

    (void)snprintf(all + strlen(all), 1024 - strlen(all), "%s: %s, %s; ", key, was, is);
}

static void test_differences_have_the_lines_of_the_map(void **state)
{
    struct conf_live *was = live_of(TARGET, HEAD VOLUME "  quota: 512MiB\n", ICMS_OK, "");
    struct conf_live *is =
        live_of(TARGET, NEXT VOLUME "  quota: 256MiB\n  hosts: [" HOST "]\n", ICMS_OK, "");
    struct conf_live *again = NULL;
    char all[1024] = "";
    const char *file;

    assert_int_equal(conf_live_check(was, is, &why), ICMS_OK);
    conf_live_diff(was, is, visit, all);
    assert_string_equal(all, "epoch: 4, 5; volumes[kv].quota: 512MiB, 256MiB; volumes[kv].hosts: "
                             "any host (default), " HOST "; ");
    assert_int_equal(conf_live_line(is, 0, "hosts", &file), 9);
    assert_string_equal(file, "p.yaml");
    assert_int_equal(conf_live_line(is, UINT32_MAX, "", &file), 1);
    assert_string_equal(file, "t.yaml");
    assert_int_equal(conf_live_again(is, &why, &again), ICMS_OK);
    assert_int_equal(conf_live_target(again)->volume_count, 0);
    assert_null(conf_live_pod(again));
    conf_live_free(&again);
    conf_live_free(&was);
    conf_live_free(&is);
}

/* The map's file is the target's for as long as it runs. */
static void test_another_file_of_the_map_needs_a_restart(void **state)
{
    struct conf_live *was = live_of(TARGET, HEAD VOLUME, ICMS_OK, "");
    struct conf_live *is = NULL;
    const char *moved = "name: e0\ndrives: [{path: /d0, size: 1GiB}]\npod: /q.yaml\n";
    const char *own = "name: e0\ndrives: [{path: /d0, size: 1GiB}]\n" VOLUME;

    assert_int_equal(conf_live_parse("t.yaml", moved, strlen(moved), &why, &is), ICMS_OK);
    assert_int_equal(conf_live_check(was, is, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "t.yaml:3: pod is /q.yaml, and /p.yaml in"));
    conf_live_free(&is);
    assert_int_equal(conf_live_parse("t.yaml", own, strlen(own), &why, &is), ICMS_OK);
    assert_int_equal(conf_live_check(was, is, &why), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "pod is none (default), and /p.yaml in"));
    conf_live_free(&is);
    conf_live_free(&was);
}

static enum conf_pod_verdict compare(const char *before, const char *next)
{
    uint64_t gone;

    accepted(before, &pod);
    accepted(next, &other);
    why.text[0] = '\0';
    return conf_pod_compare(&pod, &other, "p.yaml", &why, &gone);
}

static void differ(const char *before, const char *next, const char *words)
{
    assert_int_equal(compare(before, next), CONF_POD_REFUSED);
    if (strstr(why.text, words) == NULL || strstr(why.text, "raise it") == NULL)
        fail_msg("%s", why.text);
    assert_false(conf_pod_equal(&pod, &other));
}

static void test_all_that_differs_needs_another_epoch(void **state)
{
    differ(HEAD VOLUME, HEAD VOLUME "  quota: 1GiB\n", "volume kv quota 0 -> 1073741824");
    differ(HEAD VOLUME "  hosts: [" HOST "]\n", HEAD VOLUME "  hosts: [" HOST "b]\n",
           "volume kv has other hosts (1 -> 1");
    differ(HEAD VOLUME "  hosts: [" HOST "]\n", HEAD VOLUME, "volume kv has other hosts (1 -> 0");
    differ(HEAD VOLUME "  require: chap\n", HEAD VOLUME, "volume kv require chap -> none");
    differ(HEAD "tenants: [{name: a}]\n" VOLUME,
           HEAD "tenants: [{name: a}]\n" VOLUME "  tenant: a\n", "volume kv tenant kv -> a");
    differ(HEAD VOLUME, HEAD "tenants: [{name: kv}]\n" VOLUME, "tenant kv added");
    differ(HEAD "tenants: [{name: kv}]\n" VOLUME, HEAD VOLUME, "tenant kv removed");
    differ(HEAD "tenants: [{name: kv}]\n" VOLUME, HEAD "tenants: [{name: kv, weight: 2}]\n" VOLUME,
           "tenant kv has another weight");
    assert_int_equal(compare(HEAD VOLUME "  hosts: [" HOST "]\n",
                             HEAD "volumes: [{name: kv, hosts: "
                                  "[" HOST "]}]\n"),
                     CONF_POD_SAME);
    assert_true(conf_pod_equal(&pod, &other));
}

static void test_a_map_without_a_volume_is_not_believed(void **state)
{
    assert_int_equal(compare(HEAD VOLUME "- name: b\n- name: c\n", NEXT VOLUME), CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "p.yaml: epoch 5 lacks 2 of 3 volumes, b among them"));
    assert_non_null(strstr(why.text, "shrink_epoch: 5"));
    assert_int_equal(compare(HEAD VOLUME "- name: b\n- name: c\n", "shrink_epoch: 5\n" NEXT VOLUME),
                     CONF_POD_NEW);
    assert_int_equal(compare(HEAD VOLUME "- name: b\n- name: c\n", "shrink_epoch: 4\n" NEXT VOLUME),
                     CONF_POD_REFUSED); /* what has epoch 4 has seen that */
    assert_int_equal(compare(HEAD VOLUME "- name: b\n", NEXT VOLUME), CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "lacks 1 of 2 volumes, b, whose blocks would be lost"));
    assert_int_equal(compare(HEAD VOLUME, NEXT "volumes: [{name: kw}]\n"), CONF_POD_REFUSED);
    assert_int_equal(compare(HEAD VOLUME, NEXT), CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "it lists no volumes"));
}

/* A volume that has the lines was, and is in the next epoch: refused with words, taken when that is
 * confirmed, and not when it is the map's last epoch that was. */
static void needs_confirmation(const char *was, const char *is, const char *words)
{
    char map[512], next[512];

    (void)snprintf(map, sizeof(map), HEAD VOLUME "%s- name: b\n", was);
    (void)snprintf(next, sizeof(next), NEXT VOLUME "%s- name: b\n", is);
    assert_int_equal(compare(map, next), CONF_POD_REFUSED);
    if (strstr(why.text, words) == NULL)
        fail_msg("%s", why.text);
    (void)snprintf(next, sizeof(next), CONFIRMED VOLUME "%s- name: b\n", is);
    assert_int_equal(compare(map, next), CONF_POD_NEW);
    (void)snprintf(next, sizeof(next), "shrink_epoch: 4\n" NEXT VOLUME "%s- name: b\n", is);
    assert_int_equal(compare(map, next), CONF_POD_REFUSED); /* what has epoch 4 has seen that */
}

/* The name is there, and another volume behind it: a line is lost, or one too many. */
static void test_another_volume_of_its_name_is_not_believed(void **state)
{
    static const struct {
        const char *was, *is, *words;
    } cases[] = {
        {"  uuid: " UUID7 "\n", "", "volume kv has another uuid under the same generation, 0, "},
        {"", "  uuid: " UUID7 "\n", "volume kv has another uuid"},
        {"  uuid: " UUID7 "\n  generation: 2\n", "  generation: 2\n",
         "has another uuid under the same generation, 2, and its blocks would be lost: correct it, "
         "or raise its generation to begin anew; if it is right, write 'shrink_epoch: 5'"},
        {"  encrypted: true\n", "", "volume kv is not encrypted any more under"},
        {"", "  encrypted: true\n", "volume kv is encrypted now under"},
        {"  sealed: false\n", "", "volume kv is sealed now under"},
        {"", "  sealed: false\n", "volume kv is not sealed any more under"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        needs_confirmation(cases[i].was, cases[i].is, cases[i].words);
    /* a reset */
    assert_int_equal(compare(HEAD VOLUME "  uuid: " UUID7 "\n", NEXT VOLUME "  generation: 1\n"),
                     CONF_POD_NEW);
    assert_int_equal(compare(HEAD VOLUME, NEXT VOLUME "  generation: 1\n  encrypted: true\n"),
                     CONF_POD_NEW);
    assert_int_equal(compare(HEAD VOLUME, NEXT VOLUME "  generation: 1\n  sealed: false\n"),
                     CONF_POD_NEW);
}

/* It would evict blocks at every target, at once. */
static void test_a_lower_quota_is_not_believed(void **state)
{
    const char *quota = HEAD VOLUME "  quota: 2GiB\n- name: b\n";

    assert_int_equal(compare(quota, NEXT VOLUME "  quota: 1GiB\n- name: b\n"), CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "p.yaml: epoch 5 lowers the quota of volume kv, 2GiB -> 1GiB, "
                                     "and blocks above it would be evicted: if it is right, write "
                                     "'shrink_epoch: 5' (icms pod reload --yes)"));
    assert_int_equal(compare(quota, NEXT VOLUME "  quota: 2GiB\n- name: b\n  quota: 9GiB\n"),
                     CONF_POD_REFUSED);
    assert_non_null(strstr(why.text, "lowers the quota of volume b, none -> 9GiB"));
    assert_int_equal(compare(quota, "shrink_epoch: 5\n" NEXT VOLUME "  quota: 1GiB\n- name: b\n"),
                     CONF_POD_NEW);
    assert_int_equal(compare(quota, "shrink_epoch: 4\n" NEXT VOLUME "  quota: 1GiB\n- name: b\n"),
                     CONF_POD_REFUSED); /* what has epoch 4 has seen that */
    assert_int_equal(compare(quota, NEXT VOLUME "  quota: 3GiB\n- name: b\n- name: c\n"
                                                "  quota: 1GiB\n"),
                     CONF_POD_NEW);
    assert_int_equal(compare(quota, NEXT VOLUME "- name: b\n"), CONF_POD_NEW);
}

/* A line that is lost would open it to every host at every target. */
static void test_a_volume_that_is_opened_is_not_believed(void **state)
{
    static const struct {
        const char *was, *is, *words;
    } cases[] = {
        {"  hosts: [" HOST "]\n", "",
         "p.yaml: epoch 5: volume kv lists no hosts any more, so any host may use it: if it is "
         "right, write 'shrink_epoch: 5' (icms pod reload --yes)"},
        {"  hosts: [" HOST "]\n", "  generation: 1\n", "lists no hosts any more"},
        {"  require: chap\n", "", "volume kv requires none, not chap, so hosts have to prove less"},
        {"  require: chap+tls\n", "  require: chap\n", "requires chap, not chap+tls"},
        {"  require: chap\n", "  require: tls\n", "requires tls, not chap"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        needs_confirmation(cases[i].was, cases[i].is, cases[i].words);
    assert_int_equal(compare(HEAD VOLUME, NEXT VOLUME "  hosts: [" HOST "]\n  require: chap\n"),
                     CONF_POD_NEW);
    assert_int_equal(compare(HEAD VOLUME "  hosts: [" HOST "]\n",
                             NEXT VOLUME "  hosts: [" HOST "b, " HOST "]\n"),
                     CONF_POD_NEW);
}

static void test_a_copy_has_lists_of_its_own(void **state)
{
    accepted(HEAD VOLUME "  hosts: [" HOST "]\n- name: b\n", &pod);
    assert_int_equal(conf_pod_copy(&pod, &why, &other), ICMS_OK);
    assert_true(conf_pod_equal(&pod, &other));
    assert_ptr_not_equal(pod.volumes[0].host_nqn, other.volumes[0].host_nqn);
}

/* ---- icms pod volume ------------------------------------------------------------------------- */

static void file_write(const char *text)
{
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_true(fprintf(file, "%s...\n", text) > 0);
    assert_int_equal(fclose(file), 0);
}

/* What becomes of a volume; NULL: it is refused, with these words. */
static void change(const char *text, enum conf_pod_what what, bool yes, const char *value,
                   const char *becomes, const char *words)
{
    char written[256], whole[4096];
    const char *values[] = {written};
    const struct conf_pod_change asked = {
        .what = what, .name = "kv", .values = values, .value_count = 1, .yes = yes};
    struct conf_edit edit = {0};
    icms_err err;

    forget(NULL);
    file_write(text);
    (void)snprintf(written, sizeof(written), "%s", value);
    err = conf_pod_change(path, &asked, &why, &pod, &other, &edit);
    if (becomes == NULL && (err == ICMS_OK || strstr(why.text, words) == NULL))
        fail_msg("%s: %s", value, why.text);
    if (becomes != NULL) {
        if (err != ICMS_OK)
            fail_msg("%s: %s", value, why.text);
        (void)snprintf(whole, sizeof(whole), "%s...\n", becomes);
        assert_string_equal(edit.text, whole);
    }
    conf_edit_fini(&edit);
}

static void test_keys_of_targets_are_set_in_their_line(void **state)
{
    const enum conf_pod_what set = CONF_POD_VOLUME_SET;

    change(HEAD, CONF_POD_VOLUME_CREATE, false, "hosts=[" HOST ", " HOST "b]",
           NEXT "volumes:\n- name: kv\n  hosts: [" HOST ", " HOST "b]\n", NULL);
    change(HEAD, CONF_POD_VOLUME_CREATE, false, "hosts=", NEXT VOLUME, NULL);
    change(HEAD VOLUME "  quota: 1GiB # of chat\n", set, false, "quota=2GiB",
           NEXT VOLUME "  quota: 2GiB # of chat\n", NULL);
    change(HEAD VOLUME "  quota: 1GiB\n", set, false, "quota=", NEXT VOLUME, NULL);
    change(HEAD VOLUME "  hosts: [" HOST "]\n", set, true, "hosts=[" HOST "b]",
           NEXT VOLUME "  hosts: [" HOST "b]\n", NULL);
    change(HEAD VOLUME "  hosts: [" HOST "]\n", set, false, "hosts=[" HOST "b, " HOST "]",
           NEXT VOLUME "  hosts: [" HOST "b, " HOST "]\n", NULL);
    change(HEAD "tenants:\n- name: a # ours\n" VOLUME, set, false, "tenant=a",
           NEXT "tenants:\n- name: a # ours\n" VOLUME "  tenant: a\n", NULL);
    change(HEAD VOLUME, set, false, "require=chap", NEXT VOLUME "  require: chap\n", NULL);
}

/* Daemons believe what was confirmed here, and nothing else: the line says which epoch that was. */
static void test_a_lower_quota_is_confirmed_in_the_map(void **state)
{
    const enum conf_pod_what set = CONF_POD_VOLUME_SET;
    const char *quota = HEAD VOLUME "  quota: 2GiB\n";

    change(quota, set, true, "quota=1GiB", CONFIRMED VOLUME "  quota: 1GiB\n", NULL);
    assert_int_equal(compare(quota, CONFIRMED VOLUME "  quota: 1GiB\n"), CONF_POD_NEW);
    change(HEAD VOLUME, set, true, "quota=1GiB", CONFIRMED VOLUME "  quota: 1GiB\n", NULL);
    change(quota, set, true, "quota=3GiB", NEXT VOLUME "  quota: 3GiB\n", NULL);
    change(quota, set, true, "quota=", NEXT VOLUME, NULL);
    change(quota, set, true, "quota=2GiB", NULL, "it is so already");
}

static void test_what_loses_blocks_or_lets_hosts_in_asks(void **state)
{
    static const struct {
        const char *before, *value, *words;
    } cases[] = {
        {"  quota: 2GiB\n", "quota=1GiB", "its quota becomes lower"},
        {"", "quota=1GiB", "its quota becomes lower"},
        {"  hosts: [" HOST "]\n", "hosts=", "any host may use it"},
        {"  hosts: [" HOST ", " HOST "b]\n", "hosts=[" HOST "b]", "may not any more"},
        {"  hosts: [" HOST "]\n", "hosts=[" HOST "b]", "may not any more"},
        {"", "hosts=[" HOST "]", "may not any more"},
        {"  require: chap\n", "require=none", "hosts have to prove less"},
        {"  require: chap+tls\n", "require=", "hosts have to prove less"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];

        (void)snprintf(text, sizeof(text), HEAD VOLUME "%s", cases[i].before);
        change(text, CONF_POD_VOLUME_SET, false, cases[i].value, NULL, cases[i].words);
        change(text, CONF_POD_VOLUME_SET, false, cases[i].value, NULL, "--yes");
    }
}

/* What lets more hosts in is confirmed in the map, as what loses blocks is. */
static void test_a_volume_that_is_opened_is_confirmed_in_the_map(void **state)
{
    const enum conf_pod_what set = CONF_POD_VOLUME_SET;

    change(HEAD VOLUME "  hosts: [" HOST "]\n", set, true, "hosts=", CONFIRMED VOLUME, NULL);
    change(HEAD VOLUME "  require: chap+tls\n", set, true, "require=tls",
           CONFIRMED VOLUME "  require: tls\n", NULL);
    change(HEAD VOLUME "  require: chap\n", set, true, "require=", CONFIRMED VOLUME, NULL);
    change(HEAD VOLUME "  require: chap\n", set, true, "require=none",
           CONFIRMED VOLUME "  require: none\n", NULL);
    change(HEAD VOLUME "  require: chap\n", set, true, "require=chap+tls",
           NEXT VOLUME "  require: chap+tls\n", NULL);
    change(HEAD VOLUME "  hosts: [" HOST "]\n", set, true, "hosts=[" HOST "b]",
           NEXT VOLUME "  hosts: [" HOST "b]\n", NULL);
    change(HEAD VOLUME "  hosts: [" HOST "]\n", set, false, "run_blocks=4",
           NEXT VOLUME "  run_blocks: 4\n  hosts: [" HOST "]\n", NULL);
}

/* Nothing is written, and no epoch is used up. */
static void test_what_is_so_already_is_no_change(void **state)
{
    static const struct {
        const char *before, *value;
    } cases[] = {
        {"", "quota="},
        {"", "quota=0"},
        {"", "hosts="},
        {"  quota: 1GiB\n", "quota=1GiB"},
        {"  quota: 1GiB\n", "quota=1024MiB"},
        {"  hosts: [" HOST "]\n", "hosts=[" HOST "]"},
        {"  require: chap\n", "require=chap"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];

        (void)snprintf(text, sizeof(text), HEAD VOLUME "%s", cases[i].before);
        change(text, CONF_POD_VOLUME_SET, false, cases[i].value, NULL, "it is so already");
    }
}

static void test_hosts_that_nobody_has_are_refused(void **state)
{
    static const char *const wrong[][2] = {
        {"hosts=[nqn.2014-08.org.nvmexpress:uuid:...]", "does not end with a UUID"},
        {"hosts=[" HOST ", nqn.2014-08.org.nvmexpress:uuid:7000-1]", "does not end with a UUID"},
        {"hosts=[" HOST ", " HOST "b, " HOST "]", HOST " is listed twice"},
    };

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        change(HEAD VOLUME, CONF_POD_VOLUME_SET, true, wrong[i][0], NULL, wrong[i][1]);
        change(HEAD, CONF_POD_VOLUME_CREATE, false, wrong[i][0], NULL, wrong[i][1]);
    }
    change(HEAD VOLUME, CONF_POD_VOLUME_SET, true,
           "hosts=[nqn.2014-08.org.nvmexpress:uuid:70000000-0000-4000-8000-000000000007]",
           NEXT VOLUME
           "  hosts: [nqn.2014-08.org.nvmexpress:uuid:70000000-0000-4000-8000-000000000007]\n",
           NULL);
    change(HEAD VOLUME "  hosts: [" HOST ", " HOST "]\n", CONF_POD_VOLUME_SET, true, "quota=1GiB",
           CONFIRMED VOLUME "  quota: 1GiB\n  hosts: [" HOST ", " HOST "]\n", NULL); /* as it was */
}

static void test_what_is_no_value_is_refused(void **state)
{
    static const char *const wrong[] = {"hosts=" HOST,
                                        "hosts=[]",
                                        "hosts=[a]",
                                        "hosts=[" HOST "]\n  generation: 9",
                                        "hosts=[" HOST "], generation: [9]",
                                        "hosts=[" HOST "] # all",
                                        "tenant=nobody",
                                        "quota=-1",
                                        "quota=1GiB # x",
                                        "qouta=",
                                        "name=",
                                        "users=[root]"};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        change(HEAD VOLUME, CONF_POD_VOLUME_SET, true, wrong[i], NULL, "");
    change(HEAD VOLUME, CONF_POD_VOLUME_SET, true, "qouta=1GiB", NULL, "it has quota, hosts");
}

/* `icms volume erase` and `icms drive` with the file of such a target. */
static void test_other_commands_know_the_file(void **state)
{
    const char *values[] = {"size=1GiB"};
    const struct conf_drive_change drive = {
        .what = CONF_DRIVE_ADD, .path = "/d1", .values = values, .value_count = 1};
    struct conf_edit edit = {0};
    FILE *file = fopen(path, "we");

    assert_non_null(file);
    assert_true(fputs("name: e0\npod: /p.yaml\ndrives:\n- path: /d0\n  size: 1GiB\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(conf_generation_raise(path, "kv", 0, &why, &edit), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "`icms pod volume reset`"));
    assert_int_equal(conf_drive_change(path, &drive, NULL, NULL, &why, &edit), ICMS_OK);
    assert_non_null(strstr(edit.text, "- path: /d1\n  size: 1GiB\n"));
    conf_edit_fini(&edit);
}

static int file_make(void **state)
{
    int fd;

    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/icms-pod-target-XXXXXX");
    fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int file_remove(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_every_key_is_taken_as_written, forget),
        cmocka_unit_test_teardown(test_what_is_wrong_is_refused_with_its_line, forget),
        cmocka_unit_test(test_volumes_are_those_of_the_map),
        cmocka_unit_test(test_the_file_says_nothing_of_them),
        cmocka_unit_test(test_what_does_not_fit_is_refused_where_it_is_written),
        cmocka_unit_test(test_the_map_has_the_enclosure_as_it_is),
        cmocka_unit_test(test_differences_have_the_lines_of_the_map),
        cmocka_unit_test(test_another_file_of_the_map_needs_a_restart),
        cmocka_unit_test_teardown(test_all_that_differs_needs_another_epoch, forget),
        cmocka_unit_test_teardown(test_a_map_without_a_volume_is_not_believed, forget),
        cmocka_unit_test_teardown(test_another_volume_of_its_name_is_not_believed, forget),
        cmocka_unit_test_teardown(test_a_lower_quota_is_not_believed, forget),
        cmocka_unit_test_teardown(test_a_volume_that_is_opened_is_not_believed, forget),
        cmocka_unit_test_teardown(test_a_volume_that_is_opened_is_confirmed_in_the_map, forget),
        cmocka_unit_test_teardown(test_a_copy_has_lists_of_its_own, forget),
        cmocka_unit_test_teardown(test_keys_of_targets_are_set_in_their_line, forget),
        cmocka_unit_test_teardown(test_a_lower_quota_is_confirmed_in_the_map, forget),
        cmocka_unit_test_teardown(test_what_loses_blocks_or_lets_hosts_in_asks, forget),
        cmocka_unit_test_teardown(test_what_is_so_already_is_no_change, forget),
        cmocka_unit_test_teardown(test_hosts_that_nobody_has_are_refused, forget),
        cmocka_unit_test_teardown(test_what_is_no_value_is_refused, forget),
        cmocka_unit_test(test_other_commands_know_the_file),
    };

    return cmocka_run_group_tests_name("conf-pod-target", tests, file_make, file_remove);
}
