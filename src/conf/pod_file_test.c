/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch of a pod map's file: what is another text is told once, what is asked for is told
 * always, and nothing is told after the end. Waits are for what has to happen, without a limit on
 * how fast.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "conf/pod_file.h"

#define WAIT_MS 60000

static char path[64], beside[80];
static struct err_why why;
static struct conf_pod_file *file;

/* What was told: counters, and the last text. */
static _Atomic uint32_t texts, unreadables, turns, asked;
static pthread_mutex_t told_lock = PTHREAD_MUTEX_INITIALIZER;
static char told[64]; /* told_lock */

static void told_set(const char *text, size_t bytes)
{
    (void)pthread_mutex_lock(&told_lock);
    (void)snprintf(told, sizeof(told), "%.*s", (int)bytes, text);
    (void)pthread_mutex_unlock(&told_lock);
}

static const char *last(void)
{
    static char copy[sizeof(told)];

    (void)pthread_mutex_lock(&told_lock);
    memcpy(copy, told, sizeof(copy));
    (void)pthread_mutex_unlock(&told_lock);
    return copy;
}

static void text_told(void *arg, bool is_asked, const char *text, size_t bytes)
{
    (void)arg;
    told_set(text, bytes);
    asked += is_asked;
    texts++;
}

static void unreadable_told(void *arg, bool is_asked, const char *sentence)
{
    (void)arg;
    (void)is_asked;
    told_set(sentence, strlen(sentence));
    unreadables++;
}

static void file_put(const char *text);

/* Whether the file is another one after each look. */
static _Atomic bool is_changing;

static bool turned(void *arg, bool is_asked)
{
    char text[32];

    (void)arg;
    (void)is_asked;
    if (is_changing) {
        (void)snprintf(text, sizeof(text), "version %u", turns);
        file_put(text);
    }
    return turns++ % 4 != 0 && !is_changing; /* now and then something is under way */
}

static void until(_Atomic uint32_t *counter, uint32_t value)
{
    const struct timespec pause = {.tv_nsec = 5000000};

    for (uint32_t ms = 0; *counter < value; ms += 5) {
        if (ms > WAIT_MS)
            fail_msg("%u, not %u", *counter, value);
        (void)nanosleep(&pause, NULL);
    }
}

/* As an editor does. */
static void file_put(const char *text)
{
    FILE *made = fopen(beside, "we");

    assert_non_null(made);
    assert_true(fputs(text, made) >= 0);
    assert_int_equal(fclose(made), 0);
    assert_int_equal(rename(beside, path), 0);
}

static void begin(void)
{
    const struct conf_pod_file_opts opts = {
        .path = path, .text = text_told, .unreadable = unreadable_told, .turn = turned};
    size_t bytes;

    file_put("one");
    assert_int_equal(conf_pod_file_new(&opts, &why, &file), ICMS_OK);
    assert_int_equal(strncmp(conf_pod_file_text(file, &bytes), "one", 3), 0);
    assert_int_equal(bytes, 3);
    texts = unreadables = turns = asked = 0;
    assert_int_equal(conf_pod_file_start(file, &why), ICMS_OK);
}

static int end(void **state)
{
    (void)state;
    conf_pod_file_free(&file);
    return 0;
}

static void test_another_text_is_told_once(void **state)
{
    begin();
    until(&turns, 8);
    assert_int_equal(texts, 0); /* the first one is known */
    file_put("two");
    until(&texts, 1);
    assert_string_equal(last(), "two");
    until(&turns, turns + 8);
    assert_int_equal(texts, 1);
    assert_int_equal(unlink(path), 0);
    until(&unreadables, 1);
    assert_non_null(strstr(last(), "cannot read the pod map"));
    until(&turns, turns + 8);
    assert_int_equal(unreadables, 1);
    file_put("two"); /* as before, but it was away */
    until(&texts, 2);
}

/* Somebody writes it, and has not ended: no two looks find the same. */
static void test_a_text_counts_when_it_is_found_twice(void **state)
{
    begin();
    is_changing = true;
    until(&turns, 6);
    assert_int_equal(texts, 0);
    is_changing = false;
    until(&texts, 1);
    assert_int_equal(strncmp(last(), "version ", 8), 0);
}

static void test_who_asks_is_told(void **state)
{
    begin();
    conf_pod_file_look(file);
    until(&texts, 1);
    assert_string_equal(last(), "one");
    assert_int_equal(asked, 1);
    file_put("two");
    conf_pod_file_look(file);
    until(&asked, 2);
    assert_string_equal(last(), "two");
}

static void test_after_the_end_nothing_is_told(void **state)
{
    uint32_t before;

    begin();
    until(&turns, 1);
    conf_pod_file_free(&file);
    before = turns;
    file_put("two");
    assert_null(file);
    conf_pod_file_look(file);
    assert_int_equal(conf_pod_file_start(file, &why), ICMS_OK);
    assert_int_equal(turns, before);
    assert_int_equal(texts, 0);
}

static void test_a_file_that_is_missing_is_an_error(void **state)
{
    const struct conf_pod_file_opts opts = {.path = "/nowhere/pod.yaml"};

    assert_int_equal(conf_pod_file_new(&opts, &why, &file), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, "/nowhere/pod.yaml"));
    assert_null(file);
}

static int file_make(void **state)
{
    int fd;

    (void)state;
    (void)snprintf(path, sizeof(path), "/tmp/icms-pod-file-XXXXXX");
    fd = mkstemp(path);
    (void)snprintf(beside, sizeof(beside), "%s.new", path);
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
        cmocka_unit_test_teardown(test_another_text_is_told_once, end),
        cmocka_unit_test_teardown(test_a_text_counts_when_it_is_found_twice, end),
        cmocka_unit_test_teardown(test_who_asks_is_told, end),
        cmocka_unit_test_teardown(test_after_the_end_nothing_is_told, end),
        cmocka_unit_test(test_a_file_that_is_missing_is_an_error),
    };

    return cmocka_run_group_tests_name("conf-pod-file", tests, file_make, file_remove);
}
