/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of clients: the table of the NIXL plugin, and the list of keys of encrypted volumes; and
 * how `icms volume erase` changes that list and the files of daemons.
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

#include "conf/conf_rig.h"

/* ---- the NIXL plugin ------------------------------------------------------------------------ */

static struct conf_nixl nixl;

static icms_err nixl_parse(const char *text)
{
    why.text[0] = '\0';
    return conf_nixl_parse(text, strlen(text), "n.yaml", &why, &nixl);
}

static void nixl_refused(const char *text, const char *place, const char *word)
{
    icms_err err = nixl_parse(text);

    if (err != ICMS_CONFIG || strncmp(why.text, place, strlen(place)) != 0 ||
        strstr(why.text, word) == NULL)
        fail_msg("%s\nanswered %s '%s', wanted '%s ... %s'", text, icms_err_name(err), why.text,
                 place, word);
}

#define NIXL_DEVICE(name, connection)                                                              \
    "  - device_name: " name "\n"                                                                  \
    "    connection: \"" connection "\"\n"                                                         \
    "    volumes:\n"

static void test_every_key_of_the_nixl_table_is_taken_as_written(void **state)
{
    static const struct uuid zero;
    struct uuid nguid;
    char text[UUID_TEXT_BYTES];

    assert_int_equal(
        nixl_parse("devices:\n" NIXL_DEVICE(
            "/dev/nvme0n1",
            "unix:") "      - nguid: 000102030405060708090A0b0c0d0e0f\n"
                     "        volume: kv\n"
                     "        uuid: 6ba7b810-9dad-11d1-80b4-00c04fd430c8\n"
                     "      - nguid: 00000000000000000000000000000000\n"
                     "        volume: other\n" NIXL_DEVICE(
                         "b", "dir:/tmp/x") "      - nguid: 00000000000000000000000000000000\n"
                                            "        volume: kv\n"
                                            "    keys: /etc/icms/keys.yaml\n"
                                            "    load_deadline: 250ms\n"
                                            "    store_deadline: 3s\n"),
        ICMS_OK);
    assert_int_equal(nixl.device_count, 2);
    assert_string_equal(nixl.devices[0].name, "/dev/nvme0n1");
    assert_string_equal(nixl.devices[0].connection, "unix:");
    assert_int_equal(nixl.devices[0].load_deadline_ms, 2000);
    assert_int_equal(nixl.devices[0].store_deadline_ms, 10000);
    assert_int_equal(nixl.devices[0].volume_count, 2);
    assert_string_equal(nixl.devices[0].volumes[0].name, "kv");
    for (uint8_t i = 0; i < 16; i++)
        assert_int_equal(nixl.devices[0].volumes[0].nguid_bytes.bytes[i], i);
    assert_string_equal(uuid_format(&nixl.devices[0].volumes[0].uuid, text),
                        "6ba7b810-9dad-11d1-80b4-00c04fd430c8");
    assert_true(uuid_equal(&nixl.devices[0].volumes[1].uuid, &zero));
    assert_string_equal(nixl.devices[0].keys, "");
    assert_string_equal(nixl.devices[1].keys, "/etc/icms/keys.yaml");
    assert_int_equal(nixl.devices[1].load_deadline_ms, 250);
    assert_int_equal(nixl.devices[1].store_deadline_ms, 3000);
    assert_false(conf_nguid_parse("000102030405060708090a0b0c0d0e", &nguid));
    assert_false(conf_nguid_parse("000102030405060708090a0b0c0d0e0g", &nguid));
}

static void test_a_wrong_nixl_table_is_refused(void **state)
{
    nixl_refused("{}\n", "n.yaml:1: ", "devices");
    nixl_refused("devices:\n" NIXL_DEVICE("a", "unix:") "      - nguid: 00\n        volume: kv\n",
                 "n.yaml:5: ", "32 hex digits");
    nixl_refused(
        "devices:\n" NIXL_DEVICE(
            "a",
            "tcp:host") "      - nguid: 00000000000000000000000000000000\n        volume: kv\n",
        "n.yaml:3: ", "unix:, pod: or dir:");
    nixl_refused(
        "devices:\n" NIXL_DEVICE(
            "a",
            "unix:") "      - nguid: 0000000000000000000000000000000a\n        volume: kv\n"
                     "      - nguid: 0000000000000000000000000000000A\n        volume: other\n",
        "n.yaml:4: ", "two have the nguid");
    nixl_refused(
        "devices:\n" NIXL_DEVICE("a", "unix:") "      - nguid: 00000000000000000000000000000000\n  "
                                               "      volume: kv\n" NIXL_DEVICE(
                                                   "a", "unix:/x") "      - nguid: "
                                                                   "0000000000000000000000000000000"
                                                                   "0\n        volume: kv\n",
        "n.yaml:1: ", "two have the device_name a");
    nixl_refused("devices:\n  - device_name: a\n    conection: x\n",
                 "n.yaml:3: ", "did you mean 'connection'?");
}

static void test_the_shipped_nixl_table_is_right(void **state)
{
    static const struct uuid zero;
    const char *root = getenv("SOURCE_ROOT"); /* set by the build */
    char path[512];

    if (root == NULL)
        skip();
    (void)snprintf(path, sizeof(path), "%s/deploy/nixl.yaml", root);
    if (conf_nixl_read(path, &why, &nixl) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_true(uuid_equal(&nixl.devices[0].volumes[0].nguid_bytes, &zero));
    assert_int_equal(conf_nixl_read("/nonexistent", &why, &nixl), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, "ICMS_NIXL_CONFIG"));
}

/* ---- the list of keys ------------------------------------------------------------------------ */

static struct conf_seal seal;

static void seal_refused(const char *text, const char *place, const char *word)
{
    assert_int_equal(conf_seal_parse(text, strlen(text), "k.yaml", &why, &seal), ICMS_CONFIG);
    if (strstr(why.text, place) != why.text || strstr(why.text, word) == NULL)
        fail_msg("\"%s\" is not at %s about %s", why.text, place, word);
}

#define SEAL(keys) "volumes:\n  - name: kv\n    keys:\n" keys

static void test_a_list_of_keys_says_what_is_wrong_with_it(void **state)
{
    static const char right[] = SEAL("      - {id: 2, file: /k/2}\n"
                                     "      - {id: 1, wrapped: /k/1, kek_file: /k/kek}\n"
                                     "      - {id: 4294967295, wrapped: /k/3,\n"
                                     "         key_command: /bin/fetch kv 3}\n");
    assert_int_equal(conf_seal_parse(right, strlen(right), "k.yaml", &why, &seal), ICMS_OK);
    assert_int_equal(seal.volume_count, 1);
    assert_string_equal(seal.volumes[0].name, "kv");
    assert_int_equal(seal.volumes[0].key_count, 3);
    assert_int_equal(seal.volumes[0].keys[0].id, 2);
    assert_string_equal(seal.volumes[0].keys[0].file, "/k/2");
    assert_string_equal(seal.volumes[0].keys[1].wrapped, "/k/1");
    assert_string_equal(seal.volumes[0].keys[1].kek_file, "/k/kek");
    assert_int_equal(seal.volumes[0].keys[2].id, UINT32_MAX);
    assert_string_equal(seal.volumes[0].keys[2].key_command, "/bin/fetch kv 3");
    seal_refused("{}\n", "k.yaml:1: ", "volumes");
    seal_refused("volumes:\n  - name: kv\n", "k.yaml:2: ", "keys");
    seal_refused(SEAL("      - {id: 0, file: /k}\n"), "k.yaml:4: ", "id");
    seal_refused(SEAL("      - {id: 1}\n"), "k.yaml:4: ", "file or wrapped");
    seal_refused(SEAL("      - {id: 1, file: /k, wrapped: /k}\n"), "k.yaml:4: ", "file or wrapped");
    seal_refused(SEAL("      - {id: 1, file: /k, kek_file: /k}\n"), "k.yaml:4: ", "wrapped");
    seal_refused(SEAL("      - {id: 1, wrapped: /k}\n"), "k.yaml:4: ", "kek_file or key_command");
    seal_refused(SEAL("      - {id: 1, wrapped: /k, kek_file: /k, key_command: /k}\n"),
                 "k.yaml:4: ", "either");
    seal_refused(SEAL("      - {id: 1, wrapped: /k, key_command: fetch}\n"),
                 "k.yaml:4: ", "absolute path");
    seal_refused(SEAL("      - {id: 1, file: /k}\n      - {id: 1, file: /l}\n"),
                 "k.yaml:5: ", "the id 1");
    seal_refused(SEAL("      - {id: 1, file: /k}\n") "  - {name: kv, keys: [{id: 1, file: /k}]}\n",
                 "k.yaml:5: ", "twice");
}

/* ---- files that `icms volume erase` changes -------------------------------------------------- */

static char edited[64];

static void edited_write(const char *text)
{
    FILE *file;

    if (edited[0] == 0) {
        (void)snprintf(edited, sizeof(edited), "/tmp/icms-conf-XXXXXX");
        assert_int_equal(close(mkstemp(edited)), 0);
    }
    file = fopen(edited, "w");
    assert_non_null(file);
    assert_int_equal(fputs(text, file) < 0, 0);
    assert_int_equal(fclose(file), 0);
}

static void raised(const char *text, uint32_t at_least, uint32_t to, const char *want)
{
    struct conf_edit edit = {0};

    edited_write(text);
    if (conf_generation_raise(edited, "kv", at_least, &why, &edit) != ICMS_OK)
        fail_msg("%s: %s", text, why.text);
    assert_int_equal(edit.to, to);
    assert_int_equal(edit.bytes, strlen(want));
    assert_memory_equal(edit.text, want, edit.bytes);
    assert_int_equal(conf_edit_write(edited, &edit, &why), ICMS_OK);
    conf_edit_fini(&edit);
}

static void not_raised(const char *text, icms_err err, const char *word)
{
    struct conf_edit edit = {0};

    edited_write(text);
    assert_int_equal(conf_generation_raise(edited, "kv", 0, &why, &edit), err);
    if (strstr(why.text, edited) != why.text || strstr(why.text, word) == NULL)
        fail_msg("\"%s\" is not about %s", why.text, word);
    assert_null(edit.text);
}

#define LOCAL "local: {path: /tmp/l, size: 1GiB}\n"

static void test_a_generation_is_raised_in_its_line(void **state)
{
    raised(LOCAL "volumes:\n  - name: a\n    generation: 7\n  - name: kv  # of all\n"
                 "    generation:  9 # the tenth\n    quota: 1GiB\n",
           0, 10,
           LOCAL "volumes:\n  - name: a\n    generation: 7\n  - name: kv  # of all\n"
                 "    generation:  10 # the tenth\n    quota: 1GiB\n");
    raised(LOCAL "volumes:\n- generation: 1\n  name: kv\n", 5, 5,
           LOCAL "volumes:\n- generation: 5\n  name: kv\n");
    raised(LOCAL "volumes:\n- name: kv", 0, 1, LOCAL "volumes:\n- name: kv\n  generation: 1\n");
    raised(LOCAL "volumes:\n  - quota: 1GiB\n    name: kv\n  - name: b\n", 0, 1,
           LOCAL "volumes:\n  - quota: 1GiB\n    name: kv\n    generation: 1\n  - name: b\n");
    raised(TARGET_MIN, 0, 1, TARGET_MIN "    generation: 1\n");
    not_raised(LOCAL "volumes: [{name: kv}]\n", ICMS_CONFIG, ":2: ");
    not_raised(LOCAL "volumes:\n  - {generation: 1, name: kv}\n", ICMS_CONFIG, ":3: ");
    not_raised(LOCAL "volumes:\n  - name: kv\n    generation:\n      1\n", ICMS_CONFIG, ":4: ");
    not_raised(LOCAL "volumes:\n  - name: kv\n    generation: \"1\"\n", ICMS_CONFIG,
               ":4: cannot change");
    not_raised(LOCAL "volumes:\n  - name: kv\n    generation: 4294967295\n", ICMS_CONFIG, "last");
    not_raised(LOCAL "volumes:\n  - name: b\n", ICMS_NO_VOLUME, "'kv'");
    not_raised("volumes:\n  - name: kv\nnonsense: 1\n", ICMS_CONFIG, "nonsense");
    not_raised("[]\n", ICMS_CONFIG, "no list of volumes");
    not_raised("volumes: [[], a, {name: [kv]}]\n", ICMS_NO_VOLUME, "'kv'");
}

static void removed(const char *text, const char *want)
{
    struct conf_edit edit = {0};

    edited_write(text);
    if (conf_seal_remove(edited, "kv", &why, &edit) != ICMS_OK)
        fail_msg("%s: %s", text, why.text);
    assert_int_equal(edit.bytes, strlen(want));
    assert_memory_equal(edit.text, want, edit.bytes);
    conf_edit_fini(&edit);
}

static void not_removed(const char *text, const char *word)
{
    struct conf_edit edit = {0};

    edited_write(text);
    assert_int_equal(conf_seal_remove(edited, "kv", &why, &edit), ICMS_CONFIG);
    if (strstr(why.text, edited) != why.text || strstr(why.text, word) == NULL)
        fail_msg("\"%s\" is not about %s", why.text, word);
    assert_null(edit.text);
}

/* What somebody else wrote meanwhile stays. */
static void test_what_changed_since_is_not_written_over(void **state)
{
    struct conf_edit edit = {0};
    char text[64] = "";
    FILE *file;

    edited_write(LOCAL "volumes:\n  - name: kv\n");
    assert_int_equal(conf_generation_raise(edited, "kv", 0, &why, &edit), ICMS_OK);
    edited_write("# mine\n" LOCAL "volumes:\n  - name: kv\n");
    assert_int_equal(conf_edit_write(edited, &edit, &why), ICMS_EXISTS);
    assert_non_null(strstr(why.text, "was changed since it was read"));
    file = fopen(edited, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    assert_string_equal(text, "# mine\n");
    assert_int_equal(fclose(file), 0);
    conf_edit_fini(&edit);
    edited_write(LOCAL "volumes:\n  - name: kv\n"); /* and nothing is left beside it */
    assert_int_equal(conf_generation_raise(edited, "kv", 0, &why, &edit), ICMS_OK);
    assert_int_equal(conf_edit_write(edited, &edit, &why), ICMS_OK);
    conf_edit_fini(&edit);
}

static void test_a_volume_goes_from_a_list_of_keys(void **state)
{
#define A "  - {name: a, keys: [{id: 1, file: /a}]}\n"
#define B "  # b\n  - name: b\n    keys: # its\n      - {id: 1,\n         file: /b}\n"
#define KV                                                                                         \
    "  - name: kv\n    keys:\n      - id: 1\n        file: /k # 1\n      - {id: 2, file: /l}\n"
    removed("volumes:\n" A KV B, "volumes:\n" A B);
    removed("volumes:\n" KV B A, "volumes:\n" B A);
    removed("volumes:\n" A KV, "volumes:\n" A);
    removed("# all\nvolumes: # of them\n" KV "# end\n", "# all\nvolumes: []\n# end\n");
    not_removed("volumes: [{name: kv, keys: [{id: 1, file: /a}]}]\n", ":1: ");
    not_removed("volumes: [{name: kv, keys: [{id: 1, file: /a}]},\n"
                " {name: b, keys: [{id: 1, file: /a}]}]\n",
                ":1: ");
    not_removed("volumes:\n" A "  -\n    name: kv\n    keys: [{id: 1, file: /a}]\n", ":4: ");
    not_removed("{\"volumes\":\n" KV "}\n", edited);
    not_removed("volumes:\n" /* what would be left continues another value */
                "  - name: a\n    keys:\n      - id: 1\n        file: /a\n"
                "  - name: kv\n    keys:\n      - id: 1\n        file: /k\n          tail\n",
                ":6: cannot change");
    edited_write("volumes: []\n");
    assert_int_equal(conf_seal_read(edited, &why, &seal), ICMS_OK);
    assert_int_equal(seal.volume_count, 0);
    assert_int_equal(unlink(edited), 0);
}

/* Who can change the list chooses keys and commands. */
static void test_a_list_of_keys_that_others_can_write_is_refused(void **state)
{
    edited_write("volumes: []\n");
    for (unsigned mode = 0; mode < 01000; mode++) {
        icms_err want = (mode & 022) != 0 ? ICMS_PERMISSION : ICMS_OK;

        if ((mode & 0400) == 0)
            continue; /* only root could read it */
        assert_int_equal(chmod(edited, mode), 0);
        assert_int_equal(conf_seal_read(edited, &why, &seal), want);
        assert_true(want == ICMS_OK || strstr(why.text, "chmod go-w") != NULL);
    }
    if (geteuid() == 0) { /* only root can give a file away */
        assert_int_equal(chmod(edited, 0600), 0);
        assert_int_equal(chown(edited, 12345, 0), 0);
        assert_int_equal(conf_seal_read(edited, &why, &seal), ICMS_PERMISSION);
        assert_non_null(strstr(why.text, "12345"));
    }
    assert_int_equal(unlink(edited), 0);
    edited[0] = 0;
}

/* ---- the command line ------------------------------------------------------------------------ */

static void test_sizes_and_times_are_parsed(void **state)
{
    uint64_t bytes;
    uint32_t ms;
    char out[32];

    assert_int_equal(conf_bytes_parse("4096", &why, &bytes), ICMS_OK);
    assert_int_equal(bytes, 4096);
    assert_int_equal(conf_bytes_parse("0.5KiB", &why, &bytes), ICMS_OK);
    assert_int_equal(bytes, 512);
    assert_int_equal(conf_bytes_parse("16777215TiB", &why, &bytes), ICMS_OK);
    assert_int_equal(conf_bytes_parse("16777216TiB", &why, &bytes), ICMS_CONFIG);
    assert_int_equal(conf_bytes_parse("", &why, &bytes), ICMS_CONFIG);
    assert_int_equal(conf_bytes_parse("1.KiB", &why, &bytes), ICMS_CONFIG);
    assert_int_equal(conf_duration_parse("2min", &why, &ms), ICMS_OK);
    assert_int_equal(ms, 120000);
    assert_int_equal(conf_duration_parse("0.25s", &why, &ms), ICMS_OK);
    assert_int_equal(ms, 250);
    assert_int_equal(conf_duration_parse("4294967296ms", &why, &ms), ICMS_CONFIG);
    assert_int_equal(conf_duration_parse("100000min", &why, &ms), ICMS_CONFIG);
    assert_string_equal(conf_bytes_format(65536, out), "64KiB");
    assert_string_equal(conf_bytes_format(0, out), "0B");
    assert_string_equal(conf_bytes_format(1000, out), "1000B");
}

static void test_the_socket_is_the_users(void **state)
{
    char socket[104], found[104];

    conf_socket_default(socket);
    conf_socket_find(found);
    assert_true(strcmp(socket, found) == 0 || access("/run/icms/agent.sock", F_OK) == 0);
    if (geteuid() == 0) {
        conf_socket_default(socket);
        assert_string_equal(socket, "/run/icms/agent.sock");
        return;
    }
    assert_int_equal(setenv("XDG_RUNTIME_DIR", "/run/user/7", 1), 0);
    conf_socket_default(socket);
    assert_string_equal(socket, "/run/user/7/icms/agent.sock");
    assert_int_equal(unsetenv("XDG_RUNTIME_DIR"), 0);
    conf_socket_default(socket);
    assert_int_equal(strncmp(socket, "/tmp/icms-", 10), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_key_of_the_nixl_table_is_taken_as_written),
        cmocka_unit_test(test_a_wrong_nixl_table_is_refused),
        cmocka_unit_test(test_the_shipped_nixl_table_is_right),
        cmocka_unit_test(test_a_list_of_keys_says_what_is_wrong_with_it),
        cmocka_unit_test(test_a_generation_is_raised_in_its_line),
        cmocka_unit_test(test_what_changed_since_is_not_written_over),
        cmocka_unit_test(test_a_volume_goes_from_a_list_of_keys),
        cmocka_unit_test(test_a_list_of_keys_that_others_can_write_is_refused),
        cmocka_unit_test(test_sizes_and_times_are_parsed),
        cmocka_unit_test(test_the_socket_is_the_users),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
