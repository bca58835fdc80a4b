/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration files: what is right is taken as written, what is wrong is refused with file, line
 * and remedy.
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

#include "base/hash.h"
#include "conf/conf_rig.h"

static void test_a_short_target_file_gets_every_default(void **state)
{
    target_accepted(TARGET_MIN);
    assert_string_equal(target.name, "e0");
    assert_string_equal(target.listen, "127.0.0.1:4420");
    assert_string_equal(target.advertise[0], "127.0.0.1:4420");
    assert_string_equal(target.http.listen, "127.0.0.1:9420");
    assert_int_equal(target.loops, 1);
    assert_int_equal(target.segment_bytes, 64 << 20);
    assert_int_equal(target.memory_bytes, 256 << 20);
    assert_int_equal(target.drive_count, 1);
    assert_int_equal(target.drives[0].bytes, 1 << 30);
    assert_int_equal(target.volume_count, 1);
    assert_int_equal(target.volumes[0].value_bytes_max, 8 << 20);
    assert_int_equal(target.volumes[0].run_blocks, 8);
    assert_true(target.volumes[0].sealed);
    assert_int_equal(target.warnings.count, 0);
    assert_int_equal(strncmp(target.nqn, "nqn.2014-08.org.nvmexpress:uuid:", 32), 0);
}

static void test_a_short_agent_file_gets_every_default(void **state)
{
    agent_accepted(AGENT_MIN);
    assert_true(agent.name[0] != '\0');
    assert_string_equal(agent.http.listen, "127.0.0.1:9421");
    assert_int_equal(agent.socket_mode, 0600);
    assert_int_equal(agent.load_deadline_ms, 2000);
    assert_int_equal(agent.store_deadline_ms, 10000);
    assert_int_equal(agent.keep_alive_ms, 5000);
    assert_int_equal(agent.silence_ms, 500);
    assert_int_equal(agent.probe_ms, 500);
    assert_int_equal(agent.memory_bytes, 1 << 30);
    assert_int_equal(agent.volumes[0].memory_bytes_min, 0);
    assert_int_equal(agent.volumes[0].memory_bytes_max, 0);
    assert_false(agent.header_digest || agent.data_digest);
    assert_true(agent.exist_many);
    assert_false(agent.prefault);
    assert_true(agent.enclosures[0].weight == 1);
    assert_int_equal(strncmp(agent.host_nqn, "nqn.2014-08.org.nvmexpress:uuid:", 32), 0);
    assert_non_null(strstr(agent.socket, "/agent.sock"));
}

static void test_target_and_agent_make_the_same_names(void **state)
{
    struct uuid uuid;

    target_accepted(TARGET_MIN);
    agent_accepted(AGENT_MIN);
    assert_true(uuid_equal(&target.uuid, &agent.enclosures[0].uuid));
    assert_string_equal(target.nqn, agent.enclosures[0].nqn);
    assert_true(uuid_equal(&target.volumes[0].uuid, &agent.volumes[0].uuid));
    assert_false(uuid_equal(&target.uuid, &target.volumes[0].uuid));
    conf_volume_uuid("kv", &uuid);
    assert_true(uuid_equal(&uuid, &agent.volumes[0].uuid));
    /* The names are part of the format: these bytes may never change. */
    char text[UUID_TEXT_BYTES];
    assert_string_equal(uuid_format(&uuid, text), "4cd2d41d-90eb-854c-b294-9f6b0e74eee6");
    conf_enclosure_uuid("kv", &uuid);
    assert_false(uuid_equal(&uuid, &agent.volumes[0].uuid));
}

/* Each generation is another volume, the same in both daemons, whether the UUID is given or not. */
static void test_a_generation_is_another_volume(void **state)
{
    static const char *const texts[] = {
        TARGET_MIN,
        TARGET_MIN "    generation: 0\n",
        TARGET_MIN "    generation: 1\n",
        TARGET_MIN "    generation: 2\n",
        TARGET_MIN "    uuid: 4cd2d41d-90eb-854c-b294-9f6b0e74eee6\n    generation: 1\n",
    };
    struct uuid uuid[5];

    for (int i = 0; i < 5; i++) {
        target_accepted(texts[i]);
        uuid[i] = target.volumes[0].uuid;
    }
    assert_true(uuid_equal(&uuid[0], &uuid[1]));
    assert_false(uuid_equal(&uuid[0], &uuid[2]));
    assert_false(uuid_equal(&uuid[2], &uuid[3]));
    assert_true(uuid_equal(&uuid[2], &uuid[4])); /* of the UUID, however that was made */
    agent_accepted(AGENT_MIN "    generation: 1\n");
    assert_true(uuid_equal(&uuid[2], &agent.volumes[0].uuid));
}

static void test_two_agents_of_one_machine_differ(void **state)
{
    struct uuid first;

    agent_accepted("name: one\n" AGENT_MIN);
    first = agent.host_id;
    agent_accepted("name: two\n" AGENT_MIN);
    assert_false(uuid_equal(&first, &agent.host_id));
    agent_accepted("name: one\n" AGENT_MIN);
    assert_true(uuid_equal(&first, &agent.host_id));
}

static void test_keys_of_drives_at_the_start_are_taken_as_written(void **state)
{
    target_accepted("name: e\ndrives: [{path: a}, {path: b, format_empty: true}]\n"
                    "ready_drives_out_max: 50%\nvolumes: [{name: v}]\n");
    assert_true(target.ready_out_percent_max == 50);
    assert_true(target.drives[1].format_empty && !target.drives[0].format_empty);
}

static void test_every_key_is_taken_as_written(void **state)
{
    target_accepted("name: e1\n"
                    "uuid: 01234567-89ab-cdef-0123-456789abcdef\n"
                    "nqn: nqn.2026-01.org.example:e1\n"
                    "listen: '[::1]:0'\n"
                    "advertise: 10.0.2.2:4420\n"
                    "loops: 4\n"
                    "busy_poll: true\n"
                    "poll_us: 50\n"
                    "segment: 128KiB\n"
                    "discard: false\n"
                    "memory: 1.5GiB\n"
                    "connections_max: 12\n"
                    "queue_entries_max: 256\n"
                    "header_timeout: 1.5s\n"
                    "in_capsule: 4096\n"
                    "ready_quota_max: 95%\n"
                    "http: {listen: none}\n"
                    "drives: [{path: a, size: 1MiB, write_budget: 500GiB, write_burst: 1GiB},\n"
                    "  {path: b, write_budget: 0.5 DWPD}, {path: c, bytes_per_block: 8KiB}]\n"
                    "tenants: [{name: t1, weight: 3, load_bytes_per_s: 1MiB, load_ops_per_s: 10,\n"
                    "  store_bytes_per_s: 2MiB, store_ops_per_s: 20}, {name: v2}]\n"
                    "volumes:\n"
                    "- name: v1\n"
                    "  uuid: 11234567-89ab-cdef-0123-456789abcdef\n"
                    "  tenant: t1\n"
                    "  quota: 3 MiB\n"
                    "  value_max: 64KiB\n"
                    "  sealed: false\n"
                    "  memory_min: 1MiB\n"
                    "  memory_max: 2MiB\n"
                    "  run_blocks: 2\n"
                    "  hosts: [nqn.2026-01.org.example:h0, 'nqn.2026-01.org.example:h1']\n"
                    "- {name: v2, value_max: 1KiB}\n");
    assert_int_equal(target.uuid.bytes[15], 0xef);
    assert_string_equal(target.nqn, "nqn.2026-01.org.example:e1");
    assert_string_equal(target.listen[0], "[::1]:0");
    assert_string_equal(target.advertise[0], "10.0.2.2:4420");
    assert_int_equal(target.loops, 4);
    assert_true(target.busy_poll);
    assert_int_equal(target.poll_us, 50);
    assert_int_equal(target.segment_bytes, 131072);
    assert_false(target.discard);
    assert_int_equal(target.memory_bytes, 3u << 29);
    assert_int_equal(target.connections_max, 12);
    assert_int_equal(target.queue_entries_max, 256);
    assert_int_equal(target.header_timeout_ms, 1500);
    assert_int_equal(target.in_capsule_bytes, 4096);
    assert_true(target.ready_quota_percent_max == 95);
    assert_string_equal(target.http.listen, "");
    assert_int_equal(target.tenant_count, 2);
    assert_string_equal(target.tenants[0].name, "t1");
    assert_int_equal(target.tenants[0].weight, 3);
    assert_int_equal(target.tenants[0].load_bytes_per_s, 1 << 20);
    assert_int_equal(target.tenants[0].load_ops_per_s, 10);
    assert_int_equal(target.tenants[0].store_bytes_per_s, 2 << 20);
    assert_int_equal(target.tenants[0].store_ops_per_s, 20);
    assert_int_equal(target.tenants[1].weight, 1);
    assert_int_equal(target.tenants[1].load_bytes_per_s, 0);
    assert_string_equal(target.volumes[0].tenant, "t1");
    assert_string_equal(target.volumes[1].tenant, "");
    assert_int_equal(target.drive_count, 3);
    assert_string_equal(target.drives[1].path, "b");
    assert_true(target.drives[0].budget.bytes_day == (uint64_t)500 << 30);
    assert_true(target.drives[0].budget.burst_bytes == 1 << 30);
    assert_true(target.drives[0].budget.drive_writes == 0);
    assert_true(target.drives[1].budget.bytes_day == 0);
    assert_true(target.drives[1].budget.drive_writes == 0.5);
    assert_true(target.drives[2].budget.bytes_day == 0);
    assert_true(target.drives[2].budget.drive_writes == 0);
    assert_int_equal(target.drives[1].bytes_per_block, 64 << 10);
    assert_int_equal(target.drives[2].bytes_per_block, 8 << 10);
    assert_int_equal(target.volume_count, 2);
    assert_int_equal(target.volumes[0].quota_bytes, 3 << 20);
    assert_int_equal(target.volumes[0].value_bytes_max, 65536);
    assert_false(target.volumes[0].sealed);
    assert_int_equal(target.volumes[0].host_count, 2);
    assert_string_equal(target.volumes[0].host_nqn[1], "nqn.2026-01.org.example:h1");
    assert_true(target.volumes[1].sealed);

    agent_accepted("socket: /tmp/x.sock\nsocket_mode: 0660\ndata_digest: true\nprefault: true\n"
                   "exist_many: false\n"
                   "user_clients_max: 5\n"
                   "local: {path: /tmp/l, size: 1GiB, segment: 16MiB}\n"
                   "volumes: [{name: v, users: [root, 1001], groups: ['70000', root]}]\n");
    assert_int_equal(agent.user_clients_max, 5);
    assert_int_equal(agent.volumes[0].user_count, 2);
    assert_int_equal(agent.volumes[0].users[0].id, 0);
    assert_int_equal(agent.volumes[0].users[1].id, 1001);
    assert_int_equal(agent.volumes[0].group_count, 2);
    assert_int_equal(agent.volumes[0].groups[0].id, 70000);
    assert_int_equal(agent.volumes[0].groups[1].id, 0);
    assert_string_equal(agent.socket, "/tmp/x.sock");
    assert_int_equal(agent.socket_mode, 0660);
    assert_true(agent.data_digest && agent.prefault);
    assert_false(agent.exist_many);
    assert_string_equal(agent.local_path, "/tmp/l");
    assert_int_equal(agent.local_segment_bytes, 16 << 20);
    assert_int_equal(agent.enclosure_count, 0);
}

static void test_an_unknown_key_names_the_nearest(void **state)
{
    target_refused("name: e\nlisen: 127.0.0.1:1\n", "t.yaml:2: ", "did you mean 'listen'?");
    target_refused("name: e\ndrives:\n  - pth: /x\n", "t.yaml:3: ", "did you mean 'path'?");
    target_refused("enclosures: []\n", "t.yaml:1: ", "icms-agent");
    target_refused("qqqqqqqq: 1\n", "t.yaml:1: ", "it has name, uuid");
    target_refused("http: {port: 1}\n", "t.yaml:1: ", "listen");
    agent_refused("drives: []\n", "a.yaml:1: ", "icms-target");
    target_refused("<<: {name: x}\n", "t.yaml:1: ", "no key");
}

static void test_a_duplicate_key_names_both_lines(void **state)
{
    target_refused("name: e\nloops: 1\nname: f\n", "t.yaml:3: ", "first in line 1");
    target_refused("name: e\nvolumes:\n- name: a\n  quota: 0\n  quota: 0\n",
                   "t.yaml:5: ", "first in line 4");
}

static void test_a_wrong_unit_names_the_right_ones(void **state)
{
    target_refused("segment: 64MB\n", "t.yaml:1: segment: ", "KiB, MiB, GiB or TiB");
    target_refused("segment: 64m\n", "t.yaml:1: ", "MiB");
    target_refused("\n\nheader_timeout: 500\n", "t.yaml:3: ", "ms, s or min");
    target_refused("header_timeout: 5 hours\n", "t.yaml:1: ", "ms, s or min");
    target_refused("memory: 1.5\n", "t.yaml:1: ", "unit");
    target_refused("memory: -1\n", "t.yaml:1: ", "not a size");
    target_refused("memory: 99999999999999999999\n", "t.yaml:1: ", "not a size");
    target_refused("memory: 17000000TiB\n", "t.yaml:1: ", "64 bits");
    target_refused("drives:\n- path: a\n  write_budget: 1 DPWD\n",
                   "t.yaml:3: write_budget: ", "DWPD");
    target_refused("drives:\n- path: a\n  write_budget: lots\n", "t.yaml:3: ", "500GiB");
    target_refused("loops: 2s\n", "t.yaml:1: ", "whole number");
    target_refused("busy_poll: yes\n", "t.yaml:1: ", "true nor false");
    target_refused("ready_quota_max: 101%\n", "t.yaml:1: ", "100%");
    agent_refused("socket_mode: 888\n", "a.yaml:1: ", "octal");
}

static void test_a_value_out_of_range_names_the_range(void **state)
{
    target_refused("segment: 1GiB\n", "t.yaml:1: ", "64KiB to 256MiB");
    target_refused("loops: 0\n", "t.yaml:1: ", "1 to 32");
    target_refused("queue_entries_max: 100000\n", "t.yaml:1: ", "2 to 1024");
    target_refused("connections_max: 65535\n", "t.yaml:1: ", "4 to 65534");
    target_refused("drives:\n- path: a\n  write_budget: 1001DWPD\n", "t.yaml:3: ", "1000DWPD");
    target_refused("drives:\n- path: a\n  write_budget: 0DWPD\n", "t.yaml:3: ", "0.001DWPD");
    target_refused("volumes:\n- name: a\n  value_max: 65MiB\n", "t.yaml:3: ", "64MiB");
    agent_refused("probe: 1ms\n", "a.yaml:1: ", "50ms");
    agent_refused("enclosures:\n- name: a\n  address: 127.0.0.1:1\n  weight: 0\n",
                  "a.yaml:4: ", "more than 0");
}

static void test_what_is_missing_is_named(void **state)
{
    target_refused("drives: [{path: a}]\nvolumes: [{name: v}]\n", "t.yaml:1: ", "'name'");
    target_refused("name: e\nvolumes: [{name: v}]\n", "t.yaml:1: ", "'drives'");
    target_refused("name: e\ndrives: [{path: a}]\n", "t.yaml:1: ", "'volumes'");
    target_refused("name: e\ndrives:\n  - size: 1GiB\n", "t.yaml:3: ", "'path'");
    target_refused("name: e\nvolumes:\n  - quota: 1GiB\n", "t.yaml:3: ", "'name'");
    target_refused("name: e\ndrives: []\n", "t.yaml:2: ", "empty");
    target_refused("name:\n", "t.yaml:1: ", "empty");
    agent_refused("volumes: [{name: v}]\n", "a.yaml:1: ", "enclosures");
    target_refused("", "t.yaml:1: ", "empty");
    target_refused("# nothing\n", "t.yaml:1: ", "empty");
}

static void test_names_addresses_and_nqns_have_their_form(void **state)
{
    target_refused("listen: localhost:4420\n", "t.yaml:1: ", "numeric");
    target_refused("listen: 127.0.0.1\n", "t.yaml:1: ", "numeric");
    target_refused("listen: 127.0.0.1:99999\n", "t.yaml:1: ", "numeric");
    target_refused("listen: '::1:80'\n", "t.yaml:1: ", "numeric");
    target_refused("listen: none\n", "t.yaml:1: ", "numeric");
    target_refused("http: {listen: '*:80'}\n", "t.yaml:1: ", "or none");
    target_refused("name: a b\n", "t.yaml:1: ", "letters");
    target_refused("name: \"x\\ny\"\n", "t.yaml:1: ", "'x?y'");
    target_refused("uuid: 0123\n", "t.yaml:1: ", "uuidgen");
    target_refused("uuid: 00000000-0000-0000-0000-000000000000\n", "t.yaml:1: ", "UUID");
    target_refused("nqn: iqn.2020-01.a:b\n", "t.yaml:1: ", "nqn.YYYY-MM");
    target_refused("nqn: nqn.2020-13.org.a:b\n", "t.yaml:1: ", "nqn.YYYY-MM");
    target_refused("nqn: nqn.2020-01.org.a\n", "t.yaml:1: ", "nqn.YYYY-MM");
    target_refused("nqn: nqn.2020-01.org.a:b c\n", "t.yaml:1: ", "nqn.YYYY-MM");
    agent_refused("enclosures:\n- name: a\n  address: 10.0.0.1:0\n", "a.yaml:3: ", "port 0");
    char text[512] = "nqn: nqn.2020-01.org.a:";
    memset(text + strlen(text), 'x', 300);
    target_refused(text, "t.yaml:1: ", "longer than 223");
}

static void test_what_may_be_listed_once_is_listed_once(void **state)
{
    target_refused("name: e\ndrives: [{path: a}]\nvolumes:\n- name: v\n- name: v\n",
                   "t.yaml:5: name: ", "first in line 4");
    target_refused("name: e\ndrives: [{path: a}]\nvolumes:\n"
                   "- {name: v, uuid: 11234567-89ab-cdef-0123-456789abcdef}\n"
                   "- {name: w, uuid: 11234567-89ab-cdef-0123-456789abcdef}\n",
                   "t.yaml:5: uuid: ", "'v' has it");
    target_refused("name: e\ndrives:\n- path: a\n- path: a\nvolumes: [{name: v}]\n",
                   "t.yaml:4: path: ", "first in line 3");
    agent_refused("enclosures:\n- {name: a, address: 127.0.0.1:1}\n"
                  "- {name: a, address: 127.0.0.1:2}\nvolumes: [{name: v}]\n",
                  "a.yaml:3: name: ", "line 2");
    agent_refused("enclosures:\n- {name: a, address: 127.0.0.1:1}\n"
                  "- {name: b, address: 127.0.0.1:1}\nvolumes: [{name: v}]\n",
                  "a.yaml:3: address: ", "'a'");
}

static void test_tenants_are_listed_once_and_volumes_name_them(void **state)
{
    static const char rest[] = "name: e\ndrives: [{path: a}]\n";
    char text[300];

    (void)snprintf(text, sizeof(text), "%stenants:\n- name: t\n- name: t\nvolumes: [{name: v}]\n",
                   rest);
    target_refused(text, "t.yaml:5: name: the tenant 't' is listed twice", "first in line 4");
    (void)snprintf(text, sizeof(text), "%stenants: [{name: t}]\nvolumes:\n- name: v\n  tenant: u\n",
                   rest);
    target_refused(text, "t.yaml:6: tenant: there is no tenant 'u'", "list it");
    (void)snprintf(text, sizeof(text), "%stenants: [{name: t, weight: 0}]\nvolumes: [{name: v}]\n",
                   rest);
    target_refused(text, "t.yaml:3: weight: 0 is out of range: 1 to 1000", "");
    (void)snprintf(text, sizeof(text), "%stenants: [{name: t}, {name: v}]\nvolumes: [{name: v}]\n",
                   rest);
    target_accepted(text);
    assert_int_equal(target.warnings.count, 1);
    assert_non_null(strstr(target.warnings.text[0], "'t'"));
}

static void test_sizes_fit_each_other(void **state)
{
    target_refused("name: e\ndrives: [{path: a, size: 2GiB}, {path: b, size: 1GiB}]\n"
                   "volumes:\n- name: v\n  quota: 3TiB\n",
                   "t.yaml:5: quota: 3TiB is larger than the drives together, 3GiB", "write 0");
    target_refused("name: e\ndrives: [{path: a}]\nvolumes:\n- name: v\n  quota: 1MiB\n",
                   "t.yaml:5: quota: ", "8196KiB");
    target_refused("name: e\nsegment: 4MiB\ndrives: [{path: a}]\nvolumes:\n- name: v\n",
                   "t.yaml:2: segment: ", "'v'");
    target_refused("name: e\nsegment: 3MiB\ndrives: [{path: a}]\nvolumes:\n- name: v\n",
                   "t.yaml:2: segment: ", "power of two");
    target_refused("name: e\nmemory: 8MiB\ndrives: [{path: a}]\nvolumes:\n- name: v\n",
                   "t.yaml:2: memory: ", "16392KiB");
    target_refused("name: e\ndrives:\n- path: a\n  size: 64MiB\nvolumes:\n- name: v\n",
                   "t.yaml:4: size: ", "256MiB");
    target_refused("name: e\ndrives:\n- path: a\n  write_budget: 8MiB\nvolumes:\n- name: v\n",
                   "t.yaml:4: write_budget: ", "8196KiB");
    target_refused("name: e\ndrives:\n- path: a\n  write_budget: 1DWPD\n  write_burst: 1MiB\n"
                   "volumes:\n- name: v\n",
                   "t.yaml:5: write_burst: ", "8196KiB");
    target_refused("name: e\ndrives:\n- path: a\n  write_burst: 1GiB\nvolumes:\n- name: v\n",
                   "t.yaml:4: write_burst: ", "write_budget");
    target_refused("name: e\nin_capsule: 100\ndrives: [{path: a}]\nvolumes:\n- name: v\n",
                   "t.yaml:2: in_capsule: ", "16");
    agent_refused("enclosures: [{name: a, address: 127.0.0.1:1}]\nvolumes:\n- name: v\n"
                  "  users: [root, no-such-user]\n",
                  "a.yaml:4: users: ", "no user 'no-such-user'");
    agent_refused("enclosures: [{name: a, address: 127.0.0.1:1}]\nvolumes:\n- name: v\n"
                  "  groups: ['4294967295']\n",
                  "a.yaml:4: groups: ", "write its number");
    /* Nobody is what an empty list says, and everybody is what no list means. */
    agent_refused("enclosures: [{name: a, address: 127.0.0.1:1}]\nvolumes:\n- name: v\n"
                  "  users: []\n",
                  "a.yaml:4: users: ", "empty");
    agent_refused("enclosures: [{name: a, address: 127.0.0.1:1}]\nvolumes:\n- name: v\n"
                  "  groups: []\n",
                  "a.yaml:4: groups: ", "empty");
    target_refused("name: e\ndrives: [{path: a}]\nvolumes:\n- name: v\n  hosts: []\n",
                   "t.yaml:5: hosts: ", "empty");
}

static void test_memory_that_does_not_add_up_is_refused(void **state)
{
#define ONE "enclosures: [{name: a, address: 127.0.0.1:1}]\nvolumes:\n- name: v\n"
    agent_refused(ONE "  memory_max: 1MiB\n", "a.yaml:4: memory_max: too small for one block",
                  "8196KiB");
    agent_refused(ONE "  memory_max: 16MiB\nloops: 2\n",
                  "a.yaml:4: memory_max: too small for 2 loops", "16392KiB");
    agent_refused(ONE "  memory_max: 32MiB\nmemory: 31MiB\n",
                  "a.yaml:4: memory_max: more than the agent's memory", "31MiB");
    agent_refused(ONE "  memory_max: 32MiB\n  memory_min: 33MiB\n",
                  "a.yaml:4: memory_max: less than memory_min", "33MiB");
    agent_refused(ONE "memory: 8MiB\n", "a.yaml:4: memory: too small for what", "8196KiB");
    agent_refused(ONE "- name: w\n  memory_min: 20MiB\nmemory: 28MiB\n",
                  "a.yaml:6: memory: too small for what", "28676KiB");
    agent_accepted(ONE "- name: w\n  memory_min: 20MiB\nmemory: 28676KiB\n");
    agent_accepted(
        "local: {path: /x, size: 1GiB}\nvolumes:\n- name: v\n  memory_max: 16MiB\nloops: 2\n");
#undef ONE
}

static void test_wide_ports_are_warned_about(void **state)
{
    target_accepted(
        "listen: 0.0.0.0:4420\nrequire: none\nhttp: {listen: '[::]:80', open: all}\n" TARGET_MIN);
    assert_int_equal(target.warnings.count, 2);
    assert_non_null(strstr(target.warnings.text[0], "0.0.0.0:4420"));
    agent_accepted("socket_mode: 0666\n" AGENT_MIN);
    assert_int_equal(agent.warnings.count, 1);
    agent_accepted("socket_mode: 0666\nenclosures: [{name: a, address: 127.0.0.1:1}]\n"
                   "volumes: [{name: v, users: [1001]}]\n");
    assert_int_equal(agent.warnings.count, 0);
}

/* An HTTP port that others reach asks for a proof, or a line says that it does not. */
static void test_http_that_others_reach_asks_for_a_proof(void **state)
{
    target_refused("http: {listen: '0.0.0.0:80'}\n" TARGET_MIN, "t.yaml:1: ", "open: all");
    agent_refused("http: {listen: '[::]:80'}\n" AGENT_MIN, "a.yaml:1: ", "open: all");
    target_refused("http: {open: metrics}\n" TARGET_MIN, "t.yaml:1: ", "token");
    target_refused("http: {open: all, token: /t}\n" TARGET_MIN, "t.yaml:1: ", "nobody would need");
    target_refused("http: {open: some}\n" TARGET_MIN, "t.yaml:1: ", "all, metrics and none");
    target_refused("http: {token: /t, certificate: /c}\n" TARGET_MIN, "t.yaml:1: ", "together");
    target_refused("http: {token: /t, key: /k}\n" TARGET_MIN, "t.yaml:1: ", "together");
    target_refused("http: {client_ca: /c}\n" TARGET_MIN, "t.yaml:1: ", "need TLS");
    target_accepted("http: {token: /t}\n" TARGET_MIN);
    assert_string_equal(target.http.token, "/t");
    assert_string_equal(target.http.open, "none");
    assert_int_equal(target.warnings.count, 0);
    target_accepted("http: {listen: '0.0.0.0:80', token: /t}\n" TARGET_MIN);
    assert_string_equal(target.http.open, "none");
    assert_int_equal(target.warnings.count, 1);
    assert_non_null(strstr(target.warnings.text[0], "clear text"));
    target_accepted("http: {listen: '0.0.0.0:80', open: metrics, certificate: /c, key: /k,\n"
                    "  client_ca: /a}\n" TARGET_MIN);
    assert_string_equal(target.http.open, "metrics");
    assert_string_equal(target.http.certificate, "/c");
    assert_string_equal(target.http.key, "/k");
    assert_string_equal(target.http.client_ca, "/a");
    assert_int_equal(target.warnings.count, 0);
    agent_accepted("http: {listen: '127.0.0.2:80'}\n" AGENT_MIN);
    assert_string_equal(agent.http.open, "all");
}

static void test_a_silence_that_loads_do_not_live_to_see_is_warned_about(void **state)
{
    agent_accepted("silence: 500ms\nload_deadline: 500ms\n" AGENT_MIN);
    assert_int_equal(agent.warnings.count, 0);
    agent_accepted("silence: 501ms\nload_deadline: 500ms\n" AGENT_MIN);
    assert_int_equal(agent.warnings.count, 1);
    assert_non_null(strstr(agent.warnings.text[0], "silence: 501 ms"));
}

static void test_yaml_that_multiplies_or_nests_is_refused(void **state)
{
    target_refused("name: &a e\n", "t.yaml:1: ", "anchors");
    target_refused("name: e\nnqn: *a\n", "t.yaml:2: ", "aliases");
    target_refused("name: !!str e\n", "t.yaml:1: ", "tags");
    target_refused("- a\n", "t.yaml:1: ", "map");
    target_refused("just text\n", "t.yaml:1: ", "map");
    target_refused("[a]: b\n", "t.yaml:1: ", "plain word");
    target_refused("name: e\n---\nname: f\n", "t.yaml:2: ", "second document");
    target_refused("name: e\n  bad: [\n", "t.yaml:2: ", "not YAML");
    target_refused("name: \"a\\0b\"\n", "t.yaml:1: ", "zero byte");
    target_refused("name: {a: b}\n", "t.yaml:1: ", "one value");
    target_refused("name: [b]\n", "t.yaml:1: ", "one value");
    target_refused("drives: {path: a}\n", "t.yaml:1: ", "list");
    target_refused("name: [[[[[[[[[[[[[1]]]]]]]]]]]]]\n", "t.yaml:1: ", "levels");
}

/* A volume with so many hosts, by name. */
static char *hosts_text(uint32_t count)
{
    char *text = malloc(256 + (size_t)count * 64);
    size_t bytes = (size_t)sprintf(
        text, "name: e0\ndrives: [{path: /tmp/d0}]\nvolumes:\n  - name: kv\n    hosts:\n");

    for (uint32_t i = 0; i < count; i++)
        bytes += (size_t)sprintf(text + bytes, "      - nqn.2026-01.org.example:host-%u\n", i);
    return text;
}

static void test_a_volume_has_4096_hosts(void **state)
{
    char *text = hosts_text(4096);

    target_accepted(text);
    assert_int_equal(target.volumes[0].host_count, 4096);
    assert_string_equal(target.volumes[0].host_nqn[0], "nqn.2026-01.org.example:host-0");
    assert_string_equal(target.volumes[0].host_nqn[4095], "nqn.2026-01.org.example:host-4095");
    free(text);
    text = hosts_text(4097);
    target_refused(text, "t.yaml:4102: ", "hosts: more than 4096 entries");
    free(text);
    conf_target_fini(&target);
    assert_null(target.volumes[0].host_nqn);
}

/* A file with so many volumes, behind a head. */
static char *volumes_text(const char *head, uint32_t count)
{
    char *text = malloc(strlen(head) + 64 + (size_t)count * 64);
    size_t bytes = (size_t)sprintf(text, "%s", head);

    for (uint32_t i = 0; i < count; i++)
        bytes += (size_t)sprintf(text + bytes, "  - name: volume-%u\n    quota: 1GiB\n", i);
    return text;
}

static void test_a_target_has_1024_volumes_and_an_agent_64(void **state)
{
    static const char target_head[] = "name: e0\ndrives: [{path: /tmp/d0}]\nvolumes:\n";
    static const char agent_head[] =
        "enclosures: [{name: e0, address: 127.0.0.1:4420}]\nvolumes:\n";
    char *text = volumes_text(target_head, 1024);

    target_accepted(text);
    assert_int_equal(target.volume_count, 1024);
    assert_string_equal(target.volumes[1023].name, "volume-1023");
    free(text);
    text = volumes_text(target_head, 1025);
    target_refused(text, "t.yaml:2052: ", "volumes: more than 1024 entries");
    free(text);
    text = volumes_text(agent_head, 64);
    agent_accepted(text);
    assert_int_equal(agent.volume_count, 64);
    free(text);
    text = volumes_text(agent_head, 65);
    agent_refused(text, "a.yaml:131: ", "volumes: more than 64 entries");
    free(text);
}

static void test_large_files_are_refused(void **state)
{
    size_t bytes = CONF_FILE_BYTES_MAX + 1;
    char *text = malloc(bytes + 1);

    memset(text, '\n', bytes);
    text[bytes] = '\0';
    target_refused(text, "t.yaml:1: ", "larger than 31 MiB");
    memset(text, '[', bytes);
    text[1 << 20] = '\0';
    target_refused(text, "t.yaml:1: ", "levels");
    for (size_t i = 0; i + 1 < 1 << 20; i += 2)
        memcpy(text + i, i == 0 ? "[a" : ",a", 2);
    target_refused(text, "t.yaml:1: ", "values");
    memset(text, 'a', 1 << 20);
    target_refused(text, "t.yaml:1: ", "map");
    free(text);
}

/* SplitMix64: the same mutations in every run. */
static uint64_t draw(uint64_t *seed)
{
    *seed += 0x9e3779b97f4a7c15u;
    return hash64_mix(*seed);
}

/* Changes a few places of a text: other bytes, pieces left out, pieces said twice. */
static size_t mutate(char *text, size_t bytes, size_t bytes_max, uint64_t *seed)
{
    static const char marks[] = "\n :-[]{}#&*!|>'\"%@`\t\0\xff\xc3\\x0kMGiBs.,?~=";

    for (uint64_t changes = 1 + draw(seed) % 4; changes > 0; changes--) {
        size_t at = draw(seed) % bytes, piece = draw(seed) % 64;

        if (piece > bytes - at)
            piece = bytes - at;
        switch (draw(seed) % 4) {
        case 0:
            text[at] = (char)draw(seed);
            break;
        case 1:
            text[at] = marks[draw(seed) % (sizeof(marks) - 1)];
            break;
        case 2:
            if (bytes - piece > 0) {
                memmove(text + at, text + at + piece, bytes - at - piece);
                bytes -= piece;
            }
            break;
        case 3:
            if (bytes + piece <= bytes_max) {
                memmove(text + at + piece, text + at, bytes - at);
                bytes += piece;
            }
            break;
        }
    }
    return bytes;
}

static void test_damaged_files_are_refused_with_their_line(void **state)
{
    uint64_t seed = 1;
    unsigned right = 0, wrong = 0;
    char *text = malloc(32768);

    for (int i = 0; i < 2000; i++) {
        const char *from = i % 2 == 0 ? conf_target_example() : conf_agent_example();
        size_t bytes = strlen(from);
        icms_err err;

        memcpy(text, from, bytes);
        bytes = mutate(text, bytes, 32768, &seed);
        why.text[0] = '\0';
        conf_target_fini(&target);
        conf_agent_fini(&agent);
        err = i % 2 == 0 ? conf_target_parse(text, bytes, "t.yaml", &why, &target)
                         : conf_agent_parse(text, bytes, "t.yaml", &why, &agent);
        if (err == ICMS_OK)
            right++;
        else
            wrong++;
        if (err != ICMS_OK && (err != ICMS_CONFIG || strncmp(why.text, "t.yaml:", 7) != 0))
            fail_msg("mutation %d: %s '%s'", i, icms_err_name(err), why.text);
        for (const char *at = why.text; *at != '\0'; at++)
            assert_true(*at >= ' ' && *at <= '~');
    }
    assert_true(right > 100 && wrong > 100);
    free(text);
}

static void test_a_refused_file_leaves_the_struct(void **state)
{
    target_accepted(TARGET_MIN);
    assert_int_equal(target_parse("name: other\nloops: x\n"), ICMS_CONFIG);
    assert_string_equal(target.name, "e0");
}

static void test_a_file_is_read_and_a_missing_one_named(void **state)
{
    char path[] = "/tmp/conf_test.XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, TARGET_MIN, strlen(TARGET_MIN)), strlen(TARGET_MIN));
    (void)close(fd);
    conf_target_fini(&target);
    assert_int_equal(conf_target_read(path, &why, &target), ICMS_OK);
    assert_int_equal(conf_agent_read(path, &why, &agent), ICMS_CONFIG);
    assert_int_equal(strncmp(why.text, path, strlen(path)), 0);
    assert_int_equal(conf_agent_read("/", &why, &agent), ICMS_CONFIG);
    (void)unlink(path);
    assert_int_equal(conf_target_read(path, &why, &target), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, path));
}

static void test_the_examples_are_right_and_hold_the_defaults(void **state)
{
    static struct conf_target target_default;
    static struct conf_agent agent_default;

    conf_target_init(&target_default);
    conf_agent_init(&agent_default);
    target_accepted(conf_target_example());
    agent_accepted(conf_agent_example());
    assert_int_equal(target.segment_bytes, target_default.segment_bytes);
    assert_string_equal(target.listen, target_default.listen);
    assert_string_equal(target.advertise[0], target_default.advertise[0]);
    assert_int_equal(agent.probe_ms, agent_default.probe_ms);
    assert_string_equal(agent.socket, agent_default.socket);
    assert_true(uuid_equal(&agent.host_id, &agent_default.host_id));
    assert_int_equal(agent.enclosure_count, 1);
}

/* A file of the source tree; $SOURCE_ROOT is set by the build. */
static void shipped(const char *name, char path[512])
{
    const char *root = getenv("SOURCE_ROOT");

    if (root == NULL)
        skip();
    (void)snprintf(path, 512, "%s/%s", root, name);
}

static void test_the_shipped_files_are_right(void **state)
{
    char path[512];

    conf_target_fini(&target);
    conf_agent_fini(&agent);
    shipped("deploy/target.yaml", path);
    if (conf_target_read(path, &why, &target) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_int_equal(target.warnings.count, 0);
    shipped("deploy/agent.yaml", path);
    if (conf_agent_read(path, &why, &agent) != ICMS_OK)
        fail_msg("%s", why.text);
    assert_int_equal(agent.warnings.count, 0);
    assert_string_equal(agent.enclosures[0].nqn, target.nqn);
    assert_true(uuid_equal(&agent.volumes[0].uuid, &target.volumes[0].uuid));
}

static void key_in_example(void *arg, const struct conf_key_doc *doc)
{
    const char *last = strrchr(doc->name, '.');
    char line[64];

    (void)snprintf(line, sizeof(line), "%s:", last != NULL ? last + 1 : doc->name);
    if (strstr(arg, line) == NULL)
        fail_msg("%s is not in the example", doc->name);
    assert_true(doc->doc[0] != '\0' && doc->fallback != NULL);
    if (strstr(arg, doc->doc) == NULL)
        fail_msg("what %s is for is not whole in the example", doc->name);
}

/* An example with each comment in one line, without "# " in front; for free(). */
static char *example_unfolded(const char *example)
{
    char *text = strdup(example), *to = text;

    for (const char *at = text; *at != '\0'; at++) {
        size_t gap = *at == '\n' ? strspn(at + 1, " ") : 0;

        if (*at == '\n' && strncmp(at + 1 + gap, "# ", 2) == 0) {
            *to++ = ' ';
            at += gap + 2;
        } else {
            *to++ = *at;
        }
    }
    *to = '\0';
    return text;
}

static void test_every_key_is_in_its_example(void **state)
{
    char *text = example_unfolded(conf_target_example());

    conf_target_keys(key_in_example, text);
    free(text);
    text = example_unfolded(conf_agent_example());
    conf_agent_keys(key_in_example, text);
    free(text);
}

/* Encrypted or not, and each generation, is a volume of its own. */
static void test_an_encrypted_volume_is_another_one(void **state)
{
    struct uuid plain, encrypted;

    agent_accepted("local: {path: /tmp/l, size: 1GiB}\nvolumes: [{name: v}]\n");
    plain = agent.volumes[0].uuid;
    assert_false(agent.volumes[0].encrypted);
    agent_accepted("local: {path: /tmp/l, size: 1GiB}\nvolumes: [{name: v, encrypted: true}]\n");
    encrypted = agent.volumes[0].uuid;
    assert_true(agent.volumes[0].encrypted && agent.volumes[0].sealed);
    assert_false(uuid_equal(&plain, &encrypted));
    agent_accepted("local: {path: /tmp/l, size: 1GiB}\n"
                   "volumes: [{name: v, encrypted: true, generation: 1}]\n");
    assert_false(uuid_equal(&agent.volumes[0].uuid, &encrypted));
    agent_accepted("local: {path: /tmp/l, size: 1GiB}\nvolumes: [{name: v, generation: 1}]\n");
    assert_false(uuid_equal(&agent.volumes[0].uuid, &encrypted));
    agent_refused("local: {path: /tmp/l, size: 1GiB}\n"
                  "volumes: [{name: v, encrypted: true, sealed: false}]\n",
                  "a.yaml:2: ", "sealed: true");
    agent_refused("local: {path: /tmp/l, size: 1GiB, segment: 128MiB}\n"
                  "volumes: [{name: v, encrypted: true, value_max: 64MiB}]\n",
                  "a.yaml:2: ", "67104736");
    agent_accepted("local: {path: /tmp/l, size: 1GiB, segment: 128MiB}\n"
                   "volumes: [{name: v, encrypted: true, value_max: 67104736}]\n");
}

/* A size that no drive has, and a quota that none can keep, are named with their lines. */
static void test_an_own_drive_holds_segments_and_quotas(void **state)
{
    agent_refused("local:\n  path: /x\n  size: 128\nvolumes: [{name: v}]\n", "a.yaml:3: ", "unit");
    agent_refused("local: {path: /x, size: 4MiB}\nvolumes: [{name: v}]\n",
                  "a.yaml:1: ", "local.size: 4MiB is too small: a drive holds at least 4 segments");
    agent_refused("local: {path: /x, size: 256MiB}\nvolumes: [{name: v}]\n",
                  "a.yaml:1: ", "262208KiB");
    agent_accepted("local: {path: /x, size: 262208KiB}\nvolumes: [{name: v}]\n");
    agent_accepted("local: {path: /x, size: 128MiB, segment: 16MiB}\nvolumes: [{name: v}]\n");
    agent_refused("local: {path: /x, size: 1GiB}\nvolumes:\n- name: v\n  quota: 2GiB\n",
                  "a.yaml:4: ", "quota: 2GiB is larger than the own drive, 1GiB");
    agent_accepted("local: {path: /x, size: 1GiB}\nvolumes:\n- name: v\n  quota: 1GiB\n");
    agent_accepted("local: {path: /x}\nvolumes:\n- name: v\n  quota: 2GiB\n");
    agent_accepted("enclosures: [{name: e, address: 127.0.0.1:1}]\n"
                   "volumes:\n- name: v\n  quota: 2GiB\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_short_target_file_gets_every_default),
        cmocka_unit_test(test_a_short_agent_file_gets_every_default),
        cmocka_unit_test(test_target_and_agent_make_the_same_names),
        cmocka_unit_test(test_a_generation_is_another_volume),
        cmocka_unit_test(test_two_agents_of_one_machine_differ),
        cmocka_unit_test(test_keys_of_drives_at_the_start_are_taken_as_written),
        cmocka_unit_test(test_every_key_is_taken_as_written),
        cmocka_unit_test(test_an_unknown_key_names_the_nearest),
        cmocka_unit_test(test_a_duplicate_key_names_both_lines),
        cmocka_unit_test(test_a_wrong_unit_names_the_right_ones),
        cmocka_unit_test(test_a_value_out_of_range_names_the_range),
        cmocka_unit_test(test_what_is_missing_is_named),
        cmocka_unit_test(test_names_addresses_and_nqns_have_their_form),
        cmocka_unit_test(test_what_may_be_listed_once_is_listed_once),
        cmocka_unit_test(test_tenants_are_listed_once_and_volumes_name_them),
        cmocka_unit_test(test_sizes_fit_each_other),
        cmocka_unit_test(test_memory_that_does_not_add_up_is_refused),
        cmocka_unit_test(test_wide_ports_are_warned_about),
        cmocka_unit_test(test_http_that_others_reach_asks_for_a_proof),
        cmocka_unit_test(test_a_silence_that_loads_do_not_live_to_see_is_warned_about),
        cmocka_unit_test(test_yaml_that_multiplies_or_nests_is_refused),
        cmocka_unit_test(test_a_volume_has_4096_hosts),
        cmocka_unit_test(test_a_target_has_1024_volumes_and_an_agent_64),
        cmocka_unit_test(test_large_files_are_refused),
        cmocka_unit_test(test_damaged_files_are_refused_with_their_line),
        cmocka_unit_test(test_a_refused_file_leaves_the_struct),
        cmocka_unit_test(test_a_file_is_read_and_a_missing_one_named),
        cmocka_unit_test(test_the_examples_are_right_and_hold_the_defaults),
        cmocka_unit_test(test_the_shipped_files_are_right),
        cmocka_unit_test(test_every_key_is_in_its_example),
        cmocka_unit_test(test_an_encrypted_volume_is_another_one),
        cmocka_unit_test(test_an_own_drive_holds_segments_and_quotas),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
