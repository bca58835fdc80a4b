/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON writer: what it writes is JSON whatever the strings are, and never longer than its
 * memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <locale.h>
#include <math.h>

#include <cmocka.h>

#include "base/json.h"

/* A string as the only value of a text. */
static const char *text_of(const char *string)
{
    static char out[256];
    struct json json;

    json_init(&json, out, sizeof(out));
    json_put_string(&json, NULL, string);
    assert_int_equal(json_finish(&json), strlen(out));
    return out;
}

static const char *real_of(double value)
{
    static char out[64];
    struct json json;

    json_init(&json, out, sizeof(out));
    json_put_real(&json, NULL, value);
    assert_int_equal(json_finish(&json), strlen(out));
    return out;
}

static void write_all(struct json *json)
{
    json_put_object(json, NULL);
    json_put_array(json, "none");
    json_put_end(json);
    json_put_array(json, "some");
    json_put_uint(json, NULL, 0);
    json_put_uint(json, NULL, UINT64_MAX);
    json_put_object(json, NULL);
    json_put_end(json);
    json_put_array(json, NULL);
    json_put_bool(json, NULL, true);
    json_put_end(json);
    json_put_end(json);
    json_put_bool(json, "no", false);
    json_put_object(json, "in");
    json_put_string(json, "a\"b", "c\\d");
    json_put_real(json, "x", 1.5);
    json_put_end(json);
    json_put_string(json, "last", "");
    json_put_end(json);
}

static const char all[] = "{\"none\":[],\"some\":[0,18446744073709551615,{},[true]],\"no\":false,"
                          "\"in\":{\"a\\\"b\":\"c\\\\d\",\"x\":1.500},\"last\":\"\"}";

static void commas_and_brackets_are_where_they_belong(void **state)
{
    char out[256];
    struct json json;

    (void)state;
    json_init(&json, out, sizeof(out));
    assert_string_equal(out, "");
    write_all(&json);
    assert_string_equal(out, all);
    assert_int_equal(json_finish(&json), sizeof(all) - 1);
}

/* Into as many bytes as there are, from none to enough: the beginning, a zero, and nothing behind
 * it; the length is that of the whole. */
static void a_text_is_cut_where_its_memory_ends(void **state)
{
    char out[sizeof(all) + 8];
    struct json json;

    (void)state;
    json_init(&json, NULL, 0);
    write_all(&json);
    assert_int_equal(json_finish(&json), sizeof(all) - 1);
    for (size_t bytes = 1; bytes <= sizeof(all); bytes++) {
        memset(out, '#', sizeof(out));
        json_init(&json, out, bytes);
        write_all(&json);
        assert_int_equal(json_finish(&json), sizeof(all) - 1);
        assert_memory_equal(out, all, bytes - 1);
        assert_int_equal(out[bytes - 1], 0);
        for (size_t i = bytes; i < sizeof(out); i++)
            assert_int_equal(out[i], '#');
    }
}

static void what_json_does_not_allow_in_strings_is_escaped(void **state)
{
    (void)state;
    assert_string_equal(text_of("plain /path"), "\"plain /path\"");
    assert_string_equal(text_of("a\"\\/"), "\"a\\\"\\\\/\"");
    assert_string_equal(text_of("\n\t\x01\x1f \x7f"), "\"\\u000a\\u0009\\u0001\\u001f \x7f\"");
}

static void utf8_stays_and_all_else_is_replaced_byte_by_byte(void **state)
{
    static const char *const good[] = {
        "\xc2\x80",     "\xdf\xbf",     "\xe0\xa0\x80",     "\xed\x9f\xbf",
        "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf",
    };
    static const struct {
        const char *bytes;
        int count; /* that are replaced: all */
    } bad[] = {
        {"\x80", 1}, /* nothing that it continues        */
        {"\xbf\xbf", 2},
        {"\xc0\x80", 2}, /* longer than needed               */
        {"\xc1\xbf", 2},
        {"\xe0\x9f\xbf", 3},
        {"\xf0\x8f\xbf\xbf", 4},
        {"\xed\xa0\x80", 3},     /* half of a surrogate pair         */
        {"\xf4\x90\x80\x80", 4}, /* above U+10FFFF                   */
        {"\xf5\x80\x80\x80", 4},
        {"\xff", 1},
        {"\xc2", 1}, /* the text ends in the middle      */
        {"\xe2\x82", 2},
        {"\xf0\x9f\x98", 3},
    };
    char in[16], expected[64];

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(in, sizeof(in), "<%s>", good[i]);
        snprintf(expected, sizeof(expected), "\"<%s>\"", good[i]);
        assert_string_equal(text_of(in), expected);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int at = snprintf(expected, sizeof(expected), "\"<");

        for (int k = 0; k < bad[i].count; k++)
            at += snprintf(expected + at, sizeof(expected) - (size_t)at, "\\ufffd");
        snprintf(expected + at, sizeof(expected) - (size_t)at, "\"");
        snprintf(in, sizeof(in), "<%s", bad[i].bytes); /* at the end, */
        assert_string_equal(text_of(in), expected);
        snprintf(expected + at, sizeof(expected) - (size_t)at, ">\\\"\"");
        snprintf(in, sizeof(in), "<%s>\"", bad[i].bytes); /* and before what needs an escape */
        assert_string_equal(text_of(in), expected);
    }
}

static void numbers_have_three_decimals_and_a_point(void **state)
{
    (void)state;
    (void)setlocale(LC_ALL, "de_DE.UTF-8"); /* if there is one: a comma for printf */
    assert_string_equal(real_of(0), "0.000");
    assert_string_equal(real_of(1.0625), "1.063");
    assert_string_equal(real_of(0.9996), "1.000");
    assert_string_equal(real_of(123456.789), "123456.789");
    assert_string_equal(real_of(1e15), "null");
    assert_string_equal(real_of(-0.5), "null");
    assert_string_equal(real_of((double)NAN), "null");
    assert_string_equal(real_of((double)INFINITY), "null");
    (void)setlocale(LC_ALL, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commas_and_brackets_are_where_they_belong),
        cmocka_unit_test(a_text_is_cut_where_its_memory_ends),
        cmocka_unit_test(what_json_does_not_allow_in_strings_is_escaped),
        cmocka_unit_test(utf8_stays_and_all_else_is_replaced_byte_by_byte),
        cmocka_unit_test(numbers_have_three_decimals_and_a_point),
    };

    return cmocka_run_group_tests_name("json", tests, NULL, NULL);
}
