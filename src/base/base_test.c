/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of the words that all files use.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/err.h"
#include "base/fault_arm.h"
#include "base/hash.h"
#include "base/test_hist.h"
#include "base/list.h"
#include "base/types.h"

static void little_endian_round_trips(void **state)
{
    le64 wide = le64_of(0x0102030405060708u);

    assert_int_equal(wide.byte[0], 8);
    assert_true(le64_get(wide) == 0x0102030405060708u);
    assert_int_equal(le32_get(le32_of(0xdeadbeefu)), 0xdeadbeefu);
    assert_int_equal(le16_get(le16_of(0xbeefu)), 0xbeefu);
    assert_int_equal(bytes_align(4097, 4096), 8192);
    assert_int_equal(bytes_align(4096, 4096), 4096);
}

static void errors_have_names_texts_and_mappings(void **state)
{
    assert_string_equal(icms_err_name(ICMS_REFUSED), "REFUSED");
    assert_string_equal(icms_err_name((icms_err)9999), "UNKNOWN");
    assert_string_equal(icms_miss_name(ICMS_MISS_ENCLOSURE_DOWN), "enclosure_down");
    assert_string_equal(icms_miss_name((enum icms_miss)999), "unknown");
    assert_int_equal(err_to_nvme(ICMS_MISS), 0x087);
    assert_int_equal(err_from_nvme(0x087), ICMS_MISS);
    assert_int_equal(err_from_nvme(0x7ff), ICMS_IO);
    assert_int_equal(err_from_peer(ICMS_QUOTA), ICMS_QUOTA);
    assert_int_equal(err_from_peer(9999), ICMS_PROTOCOL);
    assert_true(icms_err_retry(ICMS_BUSY));
    assert_false(icms_err_retry(ICMS_EXISTS));
}

static void why_is_cut_at_its_room(void **state)
{
    struct err_why why;
    char longer[2 * ERR_WHY_BYTES_MAX];

    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(err_set(&why, ICMS_IO, "%s", longer), ICMS_IO);
    assert_int_equal(strlen(why.text), ERR_WHY_BYTES_MAX - 1);
    assert_int_equal(err_set(NULL, ICMS_IO, "nobody listens"), ICMS_IO);
}

static void list_keeps_order_and_removal_is_idempotent(void **state)
{
    struct list list, a, b;

    list_init(&list);
    list_init(&a);
    list_init(&b);
    assert_null(list_pop(&list));
    list_push(&list, &a);
    list_push(&list, &b);
    assert_ptr_equal(list_first(&list), &a);
    list_remove(&a);
    list_remove(&a);
    assert_ptr_equal(list_pop(&list), &b);
    assert_true(list_empty(&list));
}

static void uuid_round_trips_and_refuses_everything_else(void **state)
{
    const char *text = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    char out[UUID_TEXT_BYTES];
    struct uuid uuid;

    assert_true(uuid_parse(text, &uuid));
    assert_string_equal(uuid_format(&uuid, out), text);
    assert_false(uuid_parse("6ba7b810-9dad-11d1-80b4-00c04fd430c", &uuid));
    assert_false(uuid_parse("6ba7b810-9dad-11d1-80b4-00c04fd430c8x", &uuid));
    assert_false(uuid_parse("6ba7b810x9dad-11d1-80b4-00c04fd430c8", &uuid));
    assert_false(uuid_parse("", &uuid));
}

static void a_key_in_hex_is_read_or_refused(void **state)
{
    static const char *const wrong[] = {
        "", "0", "000", "0g", "g0", " 00", "0x00", "00 ", "000102030405060708090a0b0c0d0e0f10"};
    struct key key = {.length = 7};

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_false(key_parse(wrong[i], &key));
        assert_int_equal(key.length, 7);
    }
    assert_true(key_parse("00aBfF", &key));
    assert_int_equal(key.length, 3);
    assert_memory_equal(key.bytes, "\x00\xab\xff\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    assert_true(key_parse("000102030405060708090a0b0c0d0e0f", &key));
    assert_int_equal(key.length, 16);
    assert_int_equal(key.bytes[15], 15);
}

static void hist_quantile_is_within_a_quarter(void **state)
{
    struct hist hist = {0};
    struct hist sum = {0};

    assert_int_equal(hist_quantile(&hist, 0.5), 0);
    for (uint64_t i = 1; i <= 100000; i++)
        hist_add(&hist, i);
    assert_in_range(hist_quantile(&hist, 0.5), 50000, 62500);
    assert_in_range(hist_quantile(&hist, 0.99), 99000, 123750);
    hist_add(&hist, UINT64_MAX);
    assert_true(hist_quantile(&hist, 1.0) == UINT64_MAX);
    hist_merge(&sum, &hist);
    assert_int_equal(sum.total, 100001);
    for (unsigned i = 1; i < HIST_BUCKETS; i++)
        assert_true(hist_bucket_max(i) > hist_bucket_max(i - 1));
    assert_true(hist_bucket_max(HIST_BUCKETS - 1) == UINT64_MAX);
}

static void fault_points_act_on_their_visit(void **state)
{
    struct err_why why;

    assert_int_equal(fault_arm("disk.write:2:fail,net.send:1:fail+", &why), ICMS_OK);
    assert_false(fault_hit("disk.write"));
    assert_true(fault_hit("disk.write"));
    assert_false(fault_hit("disk.write"));
    assert_true(fault_hit("net.send"));
    assert_true(fault_hit("net.send"));
    assert_false(fault_hit("elsewhere"));
    assert_int_equal(fault_arm("disk.write", &why), ICMS_CONFIG);
    assert_int_equal(fault_arm("disk.write:0:fail", &why), ICMS_CONFIG);
    assert_int_equal(fault_arm("disk.write:1:explode", &why), ICMS_CONFIG);
    assert_int_equal(fault_arm("disk.write:1:kill=1", &why), ICMS_CONFIG);
    assert_int_equal(fault_arm("disk.write:2:slow=1500", &why), ICMS_OK);
    assert_int_equal(fault_slow_us("disk.write"), 0);
    assert_int_equal(fault_slow_us("disk.write"), 1500);
    assert_int_equal(fault_slow_us("disk.write"), 1500);
    assert_int_equal(fault_slow_us("elsewhere"), 0);
    assert_false(fault_hit("disk.write"));
    assert_int_equal(fault_arm("disk.write:1:slow", &why), ICMS_CONFIG);
    assert_int_equal(fault_arm("disk.write:1:slow=1ms", &why), ICMS_CONFIG);
    assert_int_equal(fault_arm("", &why), ICMS_OK);
    assert_false(fault_hit("disk.write"));
}

static void fault_points_act_while_a_file_is_there(void **state)
{
    char folder[] = "/tmp/icms-fault-XXXXXX", path[64], text[256], longer[400];
    struct err_why why;

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/on", folder);
    (void)snprintf(text, sizeof(text), "disk.write:%s:fail,net.send:%s:slow=20", path, path);
    assert_int_equal(fault_arm(text, &why), ICMS_OK);
    for (int turn = 0; turn < 2; turn++) {
        assert_false(fault_hit("disk.write"));
        assert_int_equal(fault_slow_us("net.send"), 0);
        assert_int_equal(close(creat(path, 0600)), 0);
        assert_true(fault_hit("disk.write"));
        assert_true(fault_hit("disk.write"));
        assert_int_equal(fault_slow_us("net.send"), 20);
        assert_int_equal(unlink(path), 0);
    }
    assert_false(fault_hit("disk.write"));
    (void)snprintf(longer, sizeof(longer), "disk.write:/%0300d:fail", 0);
    assert_int_equal(fault_arm(longer, &why), ICMS_CONFIG);
    assert_int_equal(fault_arm("", &why), ICMS_OK);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(little_endian_round_trips),
        cmocka_unit_test(errors_have_names_texts_and_mappings),
        cmocka_unit_test(why_is_cut_at_its_room),
        cmocka_unit_test(list_keeps_order_and_removal_is_idempotent),
        cmocka_unit_test(uuid_round_trips_and_refuses_everything_else),
        cmocka_unit_test(a_key_in_hex_is_read_or_refused),
        cmocka_unit_test(hist_quantile_is_within_a_quarter),
        cmocka_unit_test(fault_points_act_on_their_visit),
        cmocka_unit_test(fault_points_act_while_a_file_is_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
