/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texts of NVMe keys: what nvme-cli 2.3 made (gen-dhchap-key, gen-tls-key) is read and written back
 * byte for byte; what is not exactly such a text is refused, in words that hold nothing of it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "crypt/key_text.h"

/* Of a key of the bytes 0, 1, 2, ...; the others are of nvme-cli. */
#define COUNTED "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"

static const struct {
    const char *form, *text;
    enum key_hash hash;
    size_t bytes;
} good[] = {
    {KEY_TEXT_DHCHAP, COUNTED, KEY_HASH_NONE, 32},
    {KEY_TEXT_DHCHAP, "DHHC-1:00:dhQatdxrhJ0UaLvjFhvZcHrnqRkJJcqRD6OXQvNKvkejOia2:", KEY_HASH_NONE,
     32},
    {KEY_TEXT_DHCHAP,
     "DHHC-1:01:QfgnsZs5cSVb9bQ3ystlcL4ROTsCT3O6I3U39yyaCd/z6lsq:", KEY_HASH_SHA256, 32},
    {KEY_TEXT_DHCHAP,
     "DHHC-1:02:TQUzU7sq5W40laoF8H218YxCTE2TLYO6gju98zS1CKNSbHZUU8T8BTNBeFyRgx2I69Ucnw==:",
     KEY_HASH_SHA384, 48},
    {KEY_TEXT_DHCHAP,
     "DHHC-1:03:PJV6rUXFvhhiPu6FF6UdI84Zm7GxoU+82naRanqur9wLZCIWVfHHgnuXXuaMdh0OZ+"
     "mRHXOKzS4gb+NimxyjMrEYQ1g=:",
     KEY_HASH_SHA512, 64},
    {KEY_TEXT_TLS,
     "NVMeTLSkey-1:01:UdhsA/WO5s4Z0a6bg3KNIC4lOD+numPVhcQIA4M52JfwHL8l:", KEY_HASH_SHA256, 32},
    {KEY_TEXT_TLS,
     "NVMeTLSkey-1:02:hCQvub/c/"
     "4MN0fs/cLkWiZSHtJrOQkGvKkcQSGgr9QdcNGpLKjV5Phk0oKaDbAHm1fFqhw==:",
     KEY_HASH_SHA384, 48},
};

static void keys_of_nvme_cli_are_read_and_written_back(void **state)
{
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        char text[KEY_TEXT_BYTES_MAX];
        struct err_why why = {""};
        struct key_plain key;

        assert_int_equal(
            key_text_parse(good[i].form, good[i].text, strlen(good[i].text), &why, &key), ICMS_OK);
        assert_int_equal(key.hash, good[i].hash);
        assert_int_equal(key.bytes, good[i].bytes);
        for (size_t j = 0; i == 0 && j < key.bytes; j++)
            assert_int_equal(key.key[j], j);
        for (size_t j = key.bytes; j < sizeof(key.key); j++)
            assert_int_equal(key.key[j], 0);
        assert_int_equal(key_text_make(good[i].form, &key, text), strlen(good[i].text));
        assert_string_equal(text, good[i].text);
    }
}

static void refuse(const char *form, const char *text, size_t bytes, const char *says)
{
    struct key_plain key = {.bytes = 12345};
    struct err_why why = {""};
    icms_err err = key_text_parse(form, text, bytes, &why, &key);

    if (err != ICMS_CONFIG || strstr(why.text, says) == NULL)
        fail_msg("'%.*s': %s, \"%s\"", (int)bytes, text, icms_err_name(err), why.text);
    assert_int_equal(key.bytes, 12345);
    for (size_t i = 11; i + 4 < bytes; i++) /* no four characters of what may be a key */
        assert_null(memmem(why.text, strlen(why.text), text + i, 4));
}

static void what_is_not_a_key_is_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "not a key"},
        {"DHHC-1", "not a key"},
        {"DHHC-1:00:", "not a key"},
        {"dhhc-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "not a key"},
        {" " COUNTED, "not a key"},
        {"DHHC-1:04:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "hash"},
        {"DHHC-1:10:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "hash"},
        {"DHHC-1:0x:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "hash"},
        {"DHHC-1:02:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "does not go with"},
        {"DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR", "does not end"},
        {COUNTED " ", "does not end"},
        {COUNTED ":", "base64"},
        {"DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh-KfiaR:", "base64"},
        {"DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaS:", "CRC"},
        {"DHHC-1:00:BAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", "CRC"},
        {"DHHC-1:00::", "base64"},
        {"DHHC-1:00:AAAA:", "base64"},
        {"DHHC-1:00:AAECAw==:", "base64"},
        /* bits behind the last byte: another text of the same key */
        {"DHHC-1:02:TQUzU7sq5W40laoF8H218YxCTE2TLYO6gju98zS1CKNSbHZUU8T8BTNBeFyRgx2I69Ucnx==:",
         "base64"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        refuse(KEY_TEXT_DHCHAP, bad[i].text, strlen(bad[i].text), bad[i].says);
    refuse(KEY_TEXT_TLS, good[0].text, strlen(good[0].text), "not a key");
    refuse(KEY_TEXT_DHCHAP, good[5].text, strlen(good[5].text), "not a key");
    refuse(KEY_TEXT_TLS, "NVMeTLSkey-1:03:UdhsA/WO5s4Z0a6bg3KNIC4lOD+numPVhcQIA4M52JfwHL8l:", 65,
           "hash");
}

/* A text that was never filled in is right in every other way. */
static void a_key_of_zeros_is_refused(void **state)
{
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        struct key_plain key = {.hash = good[i].hash, .bytes = good[i].bytes};
        char text[KEY_TEXT_BYTES_MAX];
        size_t bytes = key_text_make(good[i].form, &key, text);

        refuse(good[i].form, text, bytes, "zero");
        key.key[key.bytes - 1] = 1;
        bytes = key_text_make(good[i].form, &key, text);
        assert_int_equal(key_text_parse(good[i].form, text, bytes, NULL, &key), ICMS_OK);
    }
}

/* Every text that is cut anywhere, and every text with one character changed. */
static void every_typing_mistake_is_found(void **state)
{
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        size_t bytes = strlen(good[i].text);
        char text[KEY_TEXT_BYTES_MAX];

        for (size_t cut = 0; cut < bytes; cut++)
            refuse(good[i].form, good[i].text, cut, "");
        for (size_t at = 0; at < bytes; at++) {
            memcpy(text, good[i].text, bytes);
            for (int flip = 1; flip < 128; flip++) {
                struct key_plain key;

                text[at] = (char)(good[i].text[at] ^ flip);
                if (key_text_parse(good[i].form, text, bytes, NULL, &key) != ICMS_OK)
                    continue;
                /* 00 and the hash of its length are two right texts */
                assert_int_equal(at, strlen(good[i].form) + 2);
                assert_true(key.hash == KEY_HASH_NONE || good[i].hash == KEY_HASH_NONE);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_of_nvme_cli_are_read_and_written_back),
        cmocka_unit_test(what_is_not_a_key_is_refused),
        cmocka_unit_test(a_key_of_zeros_is_refused),
        cmocka_unit_test(every_typing_mistake_is_found),
    };

    return cmocka_run_group_tests_name("key_text", tests, NULL, NULL);
}
