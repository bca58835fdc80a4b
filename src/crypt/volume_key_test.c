/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of volumes: their two forms, key wrap with the vector of RFC 3394, and commands that answer,
 * fail, talk too much and never end. No sentence of an error has anything of a key.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "crypt/volume_key.h"

#define DIGITS "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"

static char folder[64], path[128];
static struct err_why why;

static int setup(void **state)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/icms-volume-key-test-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof(path), "%s/file", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(path);
    return rmdir(folder);
}

static void file_write(const void *data, size_t bytes, mode_t mode)
{
    int fd;

    (void)unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(close(fd), 0);
}

static struct secret *key_of(const char *text)
{
    struct secret *key = NULL;

    file_write(text, strlen(text), 0600);
    assert_int_equal(volume_key_read(path, &why, &key), ICMS_OK);
    return key;
}

static void a_key_is_bytes_or_digits(void **state)
{
    uint8_t bytes[SEAL_KEY_BYTES];
    struct secret *key = NULL;

    for (int i = 0; i < SEAL_KEY_BYTES; i++)
        bytes[i] = (uint8_t)i;
    key = key_of("\n " DIGITS " \r\n");
    assert_int_equal(secret_length(key), SEAL_KEY_BYTES);
    assert_memory_equal(secret_bytes(key), bytes, SEAL_KEY_BYTES);
    secret_free(&key);
    bytes[0] = bytes[31] = '\n'; /* bytes of a key are no blanks */
    file_write(bytes, sizeof(bytes), 0400);
    assert_int_equal(volume_key_read(path, &why, &key), ICMS_OK);
    assert_memory_equal(secret_bytes(key), bytes, SEAL_KEY_BYTES);
    secret_free(&key);
}

static void refused(const void *data, size_t bytes, mode_t mode, icms_err err)
{
    struct secret *key = NULL;

    file_write(data, bytes, mode);
    assert_int_equal(volume_key_read(path, &why, &key), err);
    assert_null(key);
    assert_non_null(strstr(why.text, path));
    assert_null(strstr(why.text, "0001020304"));
}

static void what_is_no_key_is_refused(void **state)
{
    refused(DIGITS, 62, 0600, ICMS_CONFIG);
    refused(DIGITS "00", 66, 0600, ICMS_CONFIG);
    refused("g" DIGITS, 64, 0600, ICMS_CONFIG);
    refused(DIGITS, 31, 0600, ICMS_CONFIG);
    refused(DIGITS, 33, 0600, ICMS_CONFIG);
    refused(DIGITS DIGITS DIGITS, 192, 0600, ICMS_CONFIG);
    refused((uint8_t[SEAL_KEY_BYTES]){0}, SEAL_KEY_BYTES, 0600, ICMS_CONFIG);
    assert_non_null(strstr(why.text, "zero"));
    refused("0000000000000000000000000000000000000000000000000000000000000000\n", 65, 0600,
            ICMS_CONFIG);
    refused(DIGITS, 64, 0644, ICMS_PERMISSION);
    refused(DIGITS, 64, 0660, ICMS_PERMISSION);
}

/* RFC 3394, 4.6: 256 bits of key data under a key of 256 bits. */
static void a_wrapped_key_is_that_of_rfc_3394(void **state)
{
    static const char wrapped_text[] =
        "28c9f404c4b810f4cbccb35cfb87f8263f5786e2d80ed326cbc7f0e71a99f43bfb988b9b7a02dd21\n";
    struct secret *kek = key_of(DIGITS), *key, *back = NULL;
    uint8_t wrapped[WRAPPED_KEY_BYTES];

    key = key_of("00112233445566778899AABBCCDDEEFF000102030405060708090A0B0C0D0E0F");
    assert_true(volume_key_wrap(key, kek, wrapped));
    for (size_t i = 0; i < sizeof(wrapped); i++) {
        char digits[3];

        (void)snprintf(digits, sizeof(digits), "%02x", wrapped[i]);
        assert_memory_equal(digits, wrapped_text + 2 * i, 2);
    }
    file_write(wrapped_text, strlen(wrapped_text), 0600);
    assert_int_equal(volume_key_unwrap(path, kek, &why, &back), ICMS_OK);
    assert_memory_equal(secret_bytes(back), secret_bytes(key), SEAL_KEY_BYTES);
    secret_free(&back);
    file_write(wrapped, sizeof(wrapped), 0600);
    assert_int_equal(volume_key_unwrap(path, kek, &why, &back), ICMS_OK);
    assert_memory_equal(secret_bytes(back), secret_bytes(key), SEAL_KEY_BYTES);
    secret_free(&back);
    for (size_t i = 0; i < sizeof(wrapped); i++) {
        wrapped[i] ^= 1;
        file_write(wrapped, sizeof(wrapped), 0600);
        assert_int_equal(volume_key_unwrap(path, kek, &why, &back), ICMS_AUTH);
        assert_null(back);
        wrapped[i] ^= 1;
    }
    file_write(wrapped, sizeof(wrapped), 0600);
    assert_int_equal(volume_key_unwrap(path, key, &why, &back), ICMS_AUTH); /* another kek */
    secret_free(&kek);
    secret_free(&key);
}

static icms_err command(const char *text, uint32_t timeout_ms, struct secret **out_key)
{
    why.text[0] = 0;
    return volume_key_command(text, timeout_ms, &why, out_key);
}

static void a_command_prints_the_key(void **state)
{
    struct secret *key = NULL;

    assert_int_equal(command("/bin/echo  " DIGITS, 20000, &key), ICMS_OK);
    assert_int_equal(secret_bytes(key)[31], 31);
    secret_free(&key);
    /* No shell: this is one word that is printed. */
    assert_int_equal(command("/bin/echo $(echo)", 20000, &key), ICMS_CONFIG);
}

static void a_command_that_fails_says_why(void **state)
{
    static const char script[] = "#!/bin/sh\necho " DIGITS "\necho the vault is \001sealed >&2\n"
                                 "exit 3\n";
    struct secret *key = NULL;

    file_write(script, strlen(script), 0700);
    assert_int_equal(command(path, 20000, &key), ICMS_IO);
    assert_non_null(strstr(why.text, "the vault is ?sealed"));
    assert_null(strstr(why.text, "0001020304"));
    assert_int_equal(command("/nonexistent/program", 20000, &key), ICMS_NOT_FOUND);
    assert_int_equal(command("echo " DIGITS, 20000, &key), ICMS_CONFIG);
    assert_int_equal(command("", 20000, &key), ICMS_CONFIG);
    assert_null(key);
}

/* Also what it started, which has its pipes. */
static void a_command_that_does_not_end_is_killed(void **state)
{
    static const char script[] = "#!/bin/sh\nsleep 1000 &\necho $! >&2\nwait\n";
    struct secret *key = NULL;
    const char *at;
    int pid;

    file_write(script, strlen(script), 0700);
    assert_int_equal(command(path, 1500, &key), ICMS_IO);
    assert_non_null(strstr(why.text, "did not end in time"));
    at = strrchr(why.text, ' ');
    assert_non_null(at);
    pid = atoi(at);
    assert_true(pid > 1);
    for (int tries = 0; kill(pid, 0) == 0 && tries < 1000; tries++) {
        struct timespec pause = {.tv_nsec = 10000000};
        char state_path[64], line[256] = "";
        FILE *file;

        (void)snprintf(state_path, sizeof(state_path), "/proc/%d/stat", pid);
        file = fopen(state_path, "re");
        if (file == NULL || fgets(line, sizeof(line), file) == NULL || strstr(line, ") Z") != NULL)
            tries = 1001; /* a zombie that nobody waits for */
        if (file != NULL)
            (void)fclose(file);
        (void)nanosleep(&pause, NULL);
        if (tries == 999)
            fail_msg("process %d lives", pid);
    }
}

static void a_command_that_talks_too_much_is_refused(void **state)
{
    static const char script[] = "#!/bin/sh\nhead -c 1000000 /dev/zero\n";
    struct secret *key = NULL;

    file_write(script, strlen(script), 0700);
    assert_int_equal(command(path, 20000, &key), ICMS_CONFIG);
    assert_non_null(strstr(why.text, "printed more than"));
}

/* A program that ignores its children learns nothing of how one ended: what it printed decides. */
static void a_command_works_where_children_are_not_waited_for(void **state)
{
    struct secret *key = NULL;

    assert_true(signal(SIGCHLD, SIG_IGN) != SIG_ERR);
    assert_int_equal(command("/bin/echo " DIGITS, 20000, &key), ICMS_OK);
    secret_free(&key);
    assert_true(signal(SIGCHLD, SIG_DFL) != SIG_ERR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_bytes_or_digits),
        cmocka_unit_test(what_is_no_key_is_refused),
        cmocka_unit_test(a_wrapped_key_is_that_of_rfc_3394),
        cmocka_unit_test(a_command_prints_the_key),
        cmocka_unit_test(a_command_that_fails_says_why),
        cmocka_unit_test(a_command_that_does_not_end_is_killed),
        cmocka_unit_test(a_command_that_talks_too_much_is_refused),
        cmocka_unit_test(a_command_works_where_children_are_not_waited_for),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
