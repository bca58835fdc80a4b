/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Books of requests: what is summed, what is remembered, and what a reader is shown.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trace/trace.h"

#define MS UINT64_C(1000000)
#define S  (1000 * MS)

static const char *const ops[] = {NULL, "get", "put"};
static const char *const states[] = {"new", "waits", "runs"};

static const char *volume_name(void *arg, uint32_t volume)
{
    const uint32_t *hidden = arg;

    return volume == *hidden ? NULL : volume == 0 ? "kv" : "other";
}

static const char *place_name(void *arg, uint32_t place)
{
    (void)arg;
    return place == 3 ? "enclosure3" : "?";
}

static struct trace_names names_of(uint32_t *hidden)
{
    return (struct trace_names){.ops = ops,
                                .op_count = 3,
                                .states = states,
                                .state_count = 3,
                                .volume = volume_name,
                                .place = place_name,
                                .place_is = "enclosure",
                                .key_bytes = LIMIT_KEY_BYTES,
                                .arg = hidden};
}

static struct key key_of(uint8_t n)
{
    return (struct key){.bytes = {0xab, n}, .length = 2};
}

/* A get of key n that began at begin_ns, and waited for us microseconds. */
static void add(struct trace_book *book, uint8_t n, uint64_t begin_ns, uint64_t us)
{
    struct trace_entry entry = {
        .end_ns = begin_ns + us * 1000, .key = key_of(n), .place = TRACE_NOWHERE, .op = 1};

    trace_begin(&entry.trace, 0, begin_ns);
    trace_state(&entry.trace, 1, begin_ns);
    trace_state(&entry.trace, 2, entry.end_ns);
    trace_add(book, &entry);
}

static unsigned requests(const char *text)
{
    unsigned count = 0;

    while ((text = strstr(text, "\"op\":")) != NULL) {
        text++;
        count++;
    }
    return count;
}

static char *ask(struct trace_book *book, const struct key *key, uint64_t now_ns)
{
    uint32_t hidden = 1;
    struct trace_names names = names_of(&hidden);
    char *text = trace_text(&book, 1, key, &names, now_ns);

    assert_non_null(text);
    return text;
}

static int setup(void **state)
{
    struct trace_book *book = malloc(sizeof(*book));

    *state = book;
    return book == NULL || trace_book_init(book) != ICMS_OK;
}

static int teardown(void **state)
{
    trace_book_fini(*state);
    free(*state);
    return 0;
}

static void a_life_is_told_in_order(void **state)
{
    struct trace_book *book = *state;
    struct trace_entry entry = {.end_ns = 5 * S + 7 * MS,
                                .key = key_of(1),
                                .place = 3,
                                .bytes = 77,
                                .err = ICMS_MISS,
                                .reason = ICMS_MISS_DEADLINE,
                                .op = 1};
    char *text;

    trace_begin(&entry.trace, 0, 5 * S);
    trace_state(&entry.trace, 0, 5 * S + MS); /* is in it already */
    trace_state(&entry.trace, 1, 5 * S + 2 * MS);
    trace_state(&entry.trace, 2, 5 * S + 6 * MS);
    trace_state(&entry.trace, 1, 5 * S + 5 * MS); /* by another clock */
    trace_add(book, &entry);
    text = ask(book, NULL, 6 * S);
    assert_string_equal(
        text, "{\"requests\":[{\"op\":\"get\",\"volume\":\"kv\",\"key\":\"ab01\",\"bytes\":77,"
              "\"status\":\"MISS\",\"reason\":\"deadline\",\"enclosure\":\"enclosure3\","
              "\"age_us\":993000,\"us\":7000,\"states\":[{\"state\":\"new\",\"us\":2000},"
              "{\"state\":\"waits\",\"us\":4000},{\"state\":\"runs\",\"us\":0},"
              "{\"state\":\"waits\",\"us\":1000}]}],\"missed\":0}");
    free(text);
    assert_int_equal(book->sums[0].count, 1);
    assert_int_equal(book->sums[0].us, 2000);
    assert_int_equal(book->sums[1].count, 2);
    assert_int_equal(book->sums[1].us, 5000);
}

/* States beyond the room that there is: their time is in the last one that is told. */
static void a_long_life_keeps_its_beginning(void **state)
{
    struct trace_book *book = *state;
    struct trace_entry entry = {
        .end_ns = S + 100 * MS, .key = key_of(1), .place = TRACE_NOWHERE, .op = 1};

    trace_begin(&entry.trace, 0, S);
    for (uint64_t i = 1; i < 40; i++)
        trace_state(&entry.trace, (uint8_t)(i % 2), S + i * MS);
    assert_int_equal(entry.trace.steps, TRACE_STEPS);
    trace_add(book, &entry);
    assert_int_equal(book->sums[0].us + book->sums[1].us, 100000);
}

static void the_slowest_of_a_window_stay(void **state)
{
    struct trace_book *book = *state;
    char *text;

    for (unsigned i = 0; i < 5000; i++) /* slow ones here and there */
        add(book, (uint8_t)i, 100 * S + i * MS, i % 100 == 50 ? 10000 + i : i % 100);
    text = ask(book, NULL, 106 * S);
    assert_int_equal(requests(text), TRACE_SLOW);
    assert_non_null(strstr(text, "\"us\":14950"));
    assert_true(strstr(text, "\"us\":14950") < strstr(text, "\"us\":14850"));
    assert_non_null(strstr(text, "\"us\":11850")); /* the 32nd */
    assert_null(strstr(text, "\"us\":11750"));
    free(text);
    text = ask(book, NULL, 106 * S + TRACE_WINDOW_NS); /* the window before */
    assert_int_equal(requests(text), TRACE_SLOW);
    free(text);
    text = ask(book, NULL, 106 * S + 2 * TRACE_WINDOW_NS);
    assert_int_equal(requests(text), 0);
    free(text);
}

/* A slow one of a minute ago is not driven out by what is slower than nothing now. */
static void two_windows_are_one_list(void **state)
{
    struct trace_book *book = *state;
    char *text;

    add(book, 1, 100 * S, 50000);
    add(book, 2, 100 * S + TRACE_WINDOW_NS + S, 60000);
    text = ask(book, NULL, 170 * S);
    assert_int_equal(requests(text), 2);
    assert_true(strstr(text, "ab02") < strstr(text, "ab01"));
    free(text);
}

static void a_key_has_its_last_requests(void **state)
{
    struct trace_book *book = *state;
    struct key key = key_of(9), never = key_of(200);
    char *text;

    for (unsigned i = 0; i < 3; i++)
        add(book, 9, 10 * S + i * MS, 10 + i);
    for (unsigned i = 0; i < TRACE_RECENT - 2; i++) /* the first one is not among the last */
        add(book, (uint8_t)(i % 8), 11 * S + i * MS, 20000);
    text = ask(book, &key, 20 * S);
    assert_int_equal(requests(text), 2);
    assert_true(strstr(text, "\"us\":12") < strstr(text, "\"us\":11")); /* the last one first */
    free(text);
    text = ask(book, &never, 20 * S);
    assert_int_equal(requests(text), 0);
    free(text);
    for (unsigned i = 0; i < TRACE_RECENT; i++)
        add(book, 9, 30 * S + i * MS, 10);
    text = ask(book, &key, 40 * S);
    assert_int_equal(requests(text), TRACE_SHOWN);
    free(text);
}

static void a_reader_sees_its_volumes_and_what_it_may_of_keys(void **state)
{
    struct trace_book *book = *state;
    uint32_t hidden = 0;
    struct trace_names names = names_of(&hidden);
    struct key key = key_of(1);
    char *text;

    add(book, 1, S, 1000);
    text = trace_text(&book, 1, &key, &names, 2 * S);
    assert_int_equal(requests(text), 0);
    free(text);
    text = trace_text(&book, 1, NULL, &names, 2 * S);
    assert_int_equal(requests(text), 0);
    free(text);
    hidden = 1;
    names.key_bytes = 1;
    text = trace_text(&book, 1, NULL, &names, 2 * S);
    assert_non_null(strstr(text, "\"key\":\"ab\""));
    free(text);
    text = trace_text(&book, 1, &key, &names, 2 * S); /* it knows the key */
    assert_non_null(strstr(text, "\"key\":\"ab01\""));
    free(text);
}

/* While the book is read a request is summed and forgotten; nobody waits. */
static void a_reader_is_not_waited_for(void **state)
{
    struct trace_book *book = *state;
    char *text;

    assert_int_equal(pthread_mutex_lock(&book->lock), 0);
    add(book, 1, S, 1000);
    assert_int_equal(pthread_mutex_unlock(&book->lock), 0);
    assert_int_equal(book->sums[1].count, 1);
    text = ask(book, NULL, 2 * S);
    assert_int_equal(requests(text), 0);
    assert_non_null(strstr(text, "\"missed\":1}"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_life_is_told_in_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_life_keeps_its_beginning, setup, teardown),
        cmocka_unit_test_setup_teardown(the_slowest_of_a_window_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(two_windows_are_one_list, setup, teardown),
        cmocka_unit_test_setup_teardown(a_key_has_its_last_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reader_sees_its_volumes_and_what_it_may_of_keys, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_reader_is_not_waited_for, setup, teardown),
    };

    return cmocka_run_group_tests_name("trace", tests, NULL, NULL);
}
