/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What part of its share a drive gets for what is known of its health, and when that changes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "drive_health.h"

#define SECOND ((uint64_t)1000 * 1000 * 1000)

void target_drives_weigh(struct target *target, const uint8_t percent[LIMIT_DRIVES])
{
    (void)target;
    (void)percent;
}

static struct conf_health parsed(const char *text)
{
    struct conf_health health;
    struct err_why why = {""};

    if (conf_health_parse(text, strlen(text), "smart.json", &why, &health) != ICMS_OK)
        fail_msg("%s", why.text);
    return health;
}

static void is(const char *text, uint8_t percent, const char *words)
{
    struct conf_health health = parsed(text);
    char why[128];

    assert_int_equal(drive_health_wanted(&health, 0, why), percent);
    if (strstr(why, words) == NULL || (percent == 100) != (why[0] == '\0'))
        fail_msg("%s", why);
}

static void what_smartctl_writes(void **state)
{
    is("{\n  \"json_format_version\": [1, 0],\n  \"smartctl\": {\"version\": [7, 4], \"argv\": "
       "[\"a\"]},\n"
       "  \"nvme_smart_health_information_log\": {\"critical_warning\": 0, \"temperature\": 38,\n"
       "    \"percentage_used\": 3, \"data_units_read\": 123456789012345},\n"
       "  \"temperature\": {\"current\": 38}\n}\n",
       100, "");
    is("{\"nvme_smart_health_information_log\":{\"percentage_used\":90}}", 50, "90 %");
    is("{\"nvme_smart_health_information_log\":{\"percentage_used\":117}}", 25, "117 %");
    is("{\"nvme_smart_health_information_log\":{\"critical_warning\":1}}", 25, "spare");
    is("{\"nvme_smart_health_information_log\":{\"critical_warning\":4}}", 25, "reliability");
    is("{\"nvme_smart_health_information_log\":{\"critical_warning\":2}}", 50, "hot");
    is("{\"nvme_smart_health_information_log\":{\"critical_warning\":8}}", 0, "read-only");
    is("{\"temperature\":{\"current\":71,\"op_limit_max\":70}}", 50, "71 C");
    is("{\"temperature\":{\"current\":86},\"nvme_composite_temperature_threshold\":"
       "{\"warning\":80,\"critical\":85}}",
       25, "critical temperature is 85");
    is("{\"temperature\":{\"current\":300}}", 100, "");
}

/* Whatever is in the file, it is an error or a health. */
static void what_it_does_not_write(void **state)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "nothing",
        "{\"temperature\": 5}",
        "{\"nvme_smart_health_information_log\": [1]",
        "{\"temperature\": {\"current\": \"hot\"}}",
        "{\"temperature\": {\"current\": 99999999999999999999}}",
    };
    struct conf_health health;
    struct err_why why;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        why.text[0] = '\0';
        assert_int_equal(conf_health_parse(texts[i], strlen(texts[i]), "smart.json", &why, &health),
                         ICMS_CONFIG);
        assert_non_null(strstr(why.text, "smart.json:"));
    }
    is("{\"nvme_smart_health_information_log\": {\"percentage_used\": -1}}", 100, "");
}

static void the_page_of_a_device(void **state)
{
    uint8_t page[512] = {[0] = 2, [1] = 0x5f, [2] = 0x01, [5] = 91}; /* 351 K */
    struct conf_health health;
    char why[128];

    drive_health_page(page, 343, 353, &health);
    assert_int_equal(health.temperature_c, 78);
    assert_int_equal(health.warning_c, 70);
    assert_int_equal(health.critical_c, 80);
    assert_int_equal(health.used_percent, 91);
    assert_int_equal(drive_health_wanted(&health, 0, why), 50);
    page[0] = 0;
    page[5] = 1;
    page[1] = 0x54; /* 340 K */
    drive_health_page(page, 0, 0, &health);
    assert_int_equal(drive_health_wanted(&health, 0, why), 100);
}

static void a_part_falls_at_once_and_rises_late(void **state)
{
    struct drive_health drive = {.part_percent = 100};
    uint64_t now = SECOND;

    assert_false(drive_health_step(&drive, 100, now));
    assert_true(drive_health_step(&drive, 50, now));
    assert_int_equal(drive.part_percent, 50);
    for (int i = 0; i < 1000; i++) { /* up and down for hours */
        now += 60 * SECOND;
        assert_false(drive_health_step(&drive, i % 5 == 4 ? 50 : 100, now));
    }
    assert_true(drive_health_step(&drive, 25, now));
    now += SECOND;
    assert_false(drive_health_step(&drive, 100, now));
    assert_false(drive_health_step(&drive, 50, now + HEALTH_RISE_NS / 2));
    assert_true(drive_health_step(&drive, 100, now + HEALTH_RISE_NS));
    assert_int_equal(drive.part_percent, 50); /* the worst of those */
    now += 2 * HEALTH_RISE_NS;
    assert_false(drive_health_step(&drive, 100, now));
    assert_false(drive_health_step(&drive, 100, now + HEALTH_RISE_NS - 1));
    assert_true(drive_health_step(&drive, 100, now + HEALTH_RISE_NS));
    assert_int_equal(drive.part_percent, 100);
}

static void slowness_is_forgotten(void **state)
{
    struct drive_health drive = {.part_percent = 100};
    char why[128];

    for (uint64_t i = 1; i <= 3; i++)
        drive_health_slow(&drive, i, i * SECOND);
    assert_int_equal(drive_health_wanted(NULL, drive.slow_points, why), 50);
    drive_health_slow(&drive, 6, 10 * SECOND);
    assert_int_equal(drive_health_wanted(NULL, drive.slow_points, why), 25);
    for (uint64_t i = 1; i <= 4; i++)
        drive_health_slow(&drive, 6, 10 * SECOND + i * HEALTH_SLOW_NS);
    assert_int_equal(drive_health_wanted(NULL, drive.slow_points, why), 100);
    /* and so is any number of episodes: after 40 minutes it is better, after 70 it is well */
    drive = (struct drive_health){.part_percent = 100};
    drive_health_slow(&drive, 100, SECOND);
    assert_int_equal(drive_health_wanted(NULL, drive.slow_points, why), 25);
    assert_non_null(strstr(why, "lately"));
    for (uint64_t i = 1; i <= 4; i++)
        drive_health_slow(&drive, 100, SECOND + i * HEALTH_SLOW_NS);
    assert_int_equal(drive_health_wanted(NULL, drive.slow_points, why), 50);
    for (uint64_t i = 5; i <= 7; i++)
        drive_health_slow(&drive, 100, SECOND + i * HEALTH_SLOW_NS);
    assert_int_equal(drive_health_wanted(NULL, drive.slow_points, why), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_smartctl_writes),
        cmocka_unit_test(what_it_does_not_write),
        cmocka_unit_test(the_page_of_a_device),
        cmocka_unit_test(a_part_falls_at_once_and_rises_late),
        cmocka_unit_test(slowness_is_forgotten),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
