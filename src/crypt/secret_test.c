/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Secret files: what others could have read or written is refused, in words; nothing of a secret
 * stays in memory that was given back, or in a core dump.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "crypt/secret.h"

#define NOBODY 65534

static char directory[64];
static char path[96];

static int setup(void **state)
{
    (void)snprintf(directory, sizeof(directory), "/tmp/icms-secret-XXXXXX");
    check(mkdtemp(directory) != NULL);
    (void)snprintf(path, sizeof(path), "%s/key", directory);
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(path);
    (void)rmdir(path);
    return rmdir(directory);
}

static void file_make(const void *data, size_t bytes, mode_t mode)
{
    int fd;

    (void)unlink(path);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, bytes), bytes);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(close(fd), 0);
}

static void refused(icms_err want, const char *says)
{
    struct secret *secret = NULL;
    struct err_why why = {""};
    icms_err err = secret_read_line(path, &why, &secret);

    if (err != want || strstr(why.text, says) == NULL || strstr(why.text, path) == NULL)
        fail_msg("%s, \"%s\"", icms_err_name(err), why.text);
    assert_null(strstr(why.text, "hunter2"));
    assert_null(secret);
}

static void a_file_of_ours_is_read(void **state)
{
    struct secret *secret = NULL;

    file_make(" \r\n hunter2\n", 12, 0600);
    assert_int_equal(secret_read_line(path, NULL, &secret), ICMS_OK);
    assert_int_equal(secret_length(secret), 7);
    assert_string_equal((char *)secret_bytes(secret), "hunter2");
    for (size_t i = 7; i < 12; i++)
        assert_int_equal(secret_bytes(secret)[i], 0);
    secret_free(&secret);
    assert_null(secret);
    file_make("\0\xff\n", 3, 0400); /* any bytes, as they are */
    assert_int_equal(secret_read(path, 3, NULL, &secret), ICMS_OK);
    assert_int_equal(secret_length(secret), 3);
    assert_memory_equal(secret_bytes(secret), "\0\xff\n\0", 4);
    secret_free(&secret);
    secret_free(&secret);
}

static void a_file_that_others_may_read_or_write_is_refused(void **state)
{
    static const mode_t modes[] = {0604, 0640, 0660, 0606, 0620, 0601,
                                   0700, 0500, 0444, 0200, 04600};

    for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++) {
        file_make("hunter2\n", 8, modes[i]);
        if (geteuid() == 0 || (modes[i] & 0400) != 0)
            refused(ICMS_PERMISSION, "its mode is 0");
    }
}

/* Whoever may rename it away may put another file of the same user in its place. */
static void a_file_that_others_may_replace_is_refused(void **state)
{
    static const mode_t open_modes[] = {0777, 0703, 0702}, closed[] = {01777, 0775, 0755, 0700};
    struct secret *secret;
    struct err_why why = {""};

    file_make("hunter2\n", 8, 0600);
    for (size_t i = 0; i < sizeof(open_modes) / sizeof(*open_modes); i++) {
        assert_int_equal(chmod(directory, open_modes[i]), 0);
        refused(ICMS_PERMISSION, "the mode of its folder is 07");
        refused(ICMS_PERMISSION, "chmod o-w");
    }
    for (size_t i = 0; i < sizeof(closed) / sizeof(*closed); i++) {
        assert_int_equal(chmod(directory, closed[i]), 0);
        assert_int_equal(secret_read(path, 64, &why, &secret), ICMS_OK);
        secret_free(&secret);
    }
}

static void a_file_of_another_user_is_refused(void **state)
{
    if (geteuid() != 0) {
        print_message("needs root\n");
        skip();
    }
    file_make("hunter2\n", 8, 0600);
    assert_int_equal(chown(path, NOBODY, NOBODY), 0);
    refused(ICMS_PERMISSION, "its owner is user 65534");
}

static void what_is_no_file_is_refused(void **state)
{
    char other[128];

    (void)unlink(path);
    refused(ICMS_NOT_FOUND, "icms key gen");
    (void)snprintf(other, sizeof(other), "%s/other", directory);
    file_make("hunter2\n", 8, 0600);
    assert_int_equal(rename(path, other), 0);
    assert_int_equal(symlink(other, path), 0);
    refused(ICMS_CONFIG, "symbolic link");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes: must not wait */
    refused(ICMS_CONFIG, "not a regular file");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    refused(ICMS_CONFIG, "not a regular file");
    assert_int_equal(rmdir(path), 0);
}

static void what_is_not_one_line_of_text_is_refused(void **state)
{
    char large[SECRET_LINE_BYTES_MAX + 1];

    file_make("", 0, 0600);
    refused(ICMS_CONFIG, "it has 0 bytes");
    file_make(" \n", 2, 0600);
    refused(ICMS_CONFIG, "it is empty");
    file_make("hunter2\nhunter2\n", 16, 0600);
    refused(ICMS_CONFIG, "several lines");
    file_make("hunter2\0", 8, 0600);
    refused(ICMS_CONFIG, "not printable");
    file_make("hunter2\xc3\xa4", 9, 0600);
    refused(ICMS_CONFIG, "not printable");
    memset(large, 'x', sizeof(large));
    file_make(large, sizeof(large), 0600);
    refused(ICMS_CONFIG, "it has 1025 bytes");
    file_make(large, sizeof(large) - 1, 0600);
    struct secret *secret = NULL;
    assert_int_equal(secret_read_line(path, NULL, &secret), ICMS_OK);
    assert_int_equal(secret_length(secret), SECRET_LINE_BYTES_MAX);
    secret_free(&secret);
}

static void a_file_is_written_once_with_its_mode(void **state)
{
    struct secret *secret = NULL;
    struct err_why why = {""};
    struct stat status;
    mode_t before = umask(0);

    (void)unlink(path);
    assert_int_equal(secret_write(path, "hunter2\n", 8, &why), ICMS_OK);
    (void)umask(before);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0600);
    assert_int_equal(secret_write(path, "other\n", 6, &why), ICMS_EXISTS);
    assert_non_null(strstr(why.text, path));
    assert_int_equal(secret_read_line(path, &why, &secret), ICMS_OK);
    assert_string_equal((char *)secret_bytes(secret), "hunter2");
    secret_free(&secret);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/null", path), 0); /* nor through a link */
    assert_int_equal(secret_write(path, "other\n", 6, &why), ICMS_EXISTS);
    assert_int_equal(unlink(path), 0);
}

static void a_full_disk_leaves_no_half_of_a_secret(void **state)
{
    struct err_why why = {""};
    struct rlimit before, small = {.rlim_cur = 4};
    struct stat status;

    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_not_equal(secret_write(path, "hunter2", 7, &why), ICMS_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_non_null(strstr(why.text, path));
    assert_int_not_equal(stat(path, &status), 0);
    assert_int_equal(secret_write("/nowhere/key", "x", 1, &why), ICMS_NOT_FOUND);
    assert_non_null(strstr(why.text, "/nowhere/key"));
}

static void an_erased_file_is_overwritten_and_gone(void **state)
{
    uint8_t text[] = "hunter2 hunter2 hunter2 hunter2\n", seen[sizeof(text)];
    struct err_why why = {""};
    struct stat status;
    char linked[112];
    int fd;

    (void)snprintf(linked, sizeof(linked), "%s-linked", path);
    file_make(text, sizeof(text), 0400); /* its owner may change that */
    assert_int_equal(link(path, linked), 0);
    assert_int_equal(secret_erase(path, sizeof(text), &why), ICMS_OK);
    assert_int_not_equal(lstat(path, &status), 0);
    assert_true(secret_is_erased(path));
    assert_int_equal(secret_erased_remove(path, &why), ICMS_OK);
    assert_false(secret_is_erased(path));
    assert_int_equal(secret_erased_remove(path, &why), ICMS_NOT_FOUND);
    fd = open(linked, O_RDONLY);
    assert_int_equal(read(fd, seen, sizeof(seen)), sizeof(seen));
    assert_int_equal(close(fd), 0);
    for (size_t i = 0; i + 4 <= sizeof(text); i += 4) /* 2^-32 for each by chance */
        assert_memory_not_equal(seen + i, text + i, 4);
    assert_int_equal(unlink(linked), 0);
    assert_int_equal(secret_erase(path, sizeof(text), &why), ICMS_NOT_FOUND);
    file_make(text, sizeof(text), 0644); /* what is judged wrong stays as it is */
    assert_int_equal(secret_erase(path, sizeof(text), &why), ICMS_PERMISSION);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 07777, 0644);
    file_make(text, sizeof(text), 0600);
    assert_int_equal(secret_erase(path, sizeof(text) - 1, &why), ICMS_CONFIG);
    assert_int_equal(rename(path, linked), 0);
    assert_int_equal(symlink(linked, path), 0);
    assert_int_equal(secret_erase(path, sizeof(text), &why), ICMS_CONFIG);
    assert_int_equal(stat(linked, &status), 0);
    assert_int_equal(unlink(linked), 0);
}

/* Wherever a power loss ended it, the next run goes on: the key may be there under the other name,
 * whole or overwritten; beside it a new one under its name. */
static void an_erasure_that_was_cut_short_goes_on(void **state)
{
    uint8_t text[] = "hunter2 hunter2 hunter2 hunter2\n", seen[sizeof(text)];
    struct err_why why = {""};
    char erased[112], linked[112];
    struct stat status;

    (void)snprintf(erased, sizeof(erased), "%s" SECRET_ERASED, path);
    (void)snprintf(linked, sizeof(linked), "%s-linked", path);
    for (int round = 0; round < 2; round++) {
        int fd;

        file_make(text, sizeof(text), 0600);
        assert_int_equal(link(path, linked), 0);
        assert_int_equal(rename(path, erased), 0); /* it has the other name, and nothing more */
        if (round == 1)
            file_make("another", 7, 0600);
        assert_int_equal(secret_is_erased(path), round == 0);
        assert_int_equal(secret_erase(path, sizeof(text), &why), ICMS_OK);
        assert_int_equal(secret_erase(path, sizeof(text), &why), ICMS_OK); /* again, any time */
        assert_true(secret_is_erased(path));
        fd = open(linked, O_RDONLY);
        assert_int_equal(read(fd, seen, sizeof(seen)), sizeof(seen));
        assert_int_equal(close(fd), 0);
        assert_memory_not_equal(seen, text, 8);
        assert_int_equal(stat(erased, &status), 0);
        assert_int_equal(status.st_size, round == 0 ? (off_t)sizeof(text) : 7);
        assert_int_equal(secret_erased_remove(path, &why), ICMS_OK);
        assert_int_equal(unlink(linked), 0);
    }
}

/* What the kernel says of the mapping that holds an address: "dd" is never dumped. */
static bool flag_is_set(const void *address, const char *flag)
{
    FILE *file = fopen("/proc/self/smaps", "r");
    unsigned long first, end, at = (unsigned long)(uintptr_t)address;
    bool inside = false, is_set = false;
    char line[512];

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &first, &end) == 2)
            inside = at >= first && at < end;
        else if (inside && strncmp(line, "VmFlags:", 8) == 0 && strstr(line, flag) != NULL)
            is_set = true;
    }
    (void)fclose(file);
    return is_set;
}

/* Nor in a child, nor on a disk for swapping, where as much may be locked. */
static void a_secret_is_in_no_core_dump(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct secret *secret = NULL;
    void *probe;

    assert_int_equal(secret_new(32, NULL, &secret), ICMS_OK);
    assert_true(flag_is_set(secret_bytes(secret), " dd"));
    assert_true(flag_is_set(secret_bytes(secret), " wf"));
    assert_false(flag_is_set(path, " dd"));
    probe = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(probe != MAP_FAILED);
    if (mlock(probe, page) == 0 && flag_is_set(probe, " lo"))
        assert_true(flag_is_set(secret_bytes(secret), " lo"));
    secret_free(&secret);
}

/* munmap() keeps the pages here, so that the test sees what was left in them. */
static uint8_t *kept;
int __real_munmap(void *memory, size_t bytes);
int __wrap_munmap(void *memory, size_t bytes);
int __wrap_munmap(void *memory, size_t bytes)
{
    kept = memory;
    return 0;
}

static void a_secret_is_overwritten_when_it_is_freed(void **state)
{
    struct secret *secret = NULL;
    uint8_t *bytes;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    assert_int_equal(secret_new(100, NULL, &secret), ICMS_OK);
    bytes = secret_bytes(secret);
    memset(bytes, 'k', 100);
    secret_free(&secret);
    assert_true(bytes > kept && bytes < kept + page);
    for (size_t i = 0; i < page; i++)
        assert_int_equal(kept[i], 0);
    assert_int_equal(__real_munmap(kept, page), 0);
}

static void a_secret_is_replaced_as_a_whole(void **state)
{
    struct secret *secret, *other;
    char out[5];

    assert_int_equal(secret_new(5, NULL, &secret), ICMS_OK);
    memcpy(secret_bytes(secret), "first", 5);
    assert_int_equal(secret_new(5, NULL, &other), ICMS_OK);
    memcpy(secret_bytes(other), "first", 5);
    assert_false(secret_replace(secret, &other));
    assert_null(other);
    assert_int_equal(secret_new(5, NULL, &other), ICMS_OK);
    memcpy(secret_bytes(other), "other", 5);
    assert_true(secret_replace(secret, &other));
    assert_null(other);
    secret_copy(secret, out, sizeof(out));
    assert_memory_equal(out, "other", 5);
    secret_free(&secret);
}

static void only_the_same_bytes_are_equal(void **state)
{
    struct secret *secret = NULL;

    assert_int_equal(secret_new(4, NULL, &secret), ICMS_OK);
    memcpy(secret_bytes(secret), "abcd", 4);
    assert_true(secret_equal(secret, "abcd", 4));
    assert_false(secret_equal(secret, "abcd", 3));
    assert_false(secret_equal(secret, "abcde", 5));
    assert_false(secret_equal(secret, "abce", 4));
    assert_false(secret_equal(secret, "bbcd", 4));
    assert_false(secret_equal(secret, "", 0));
    secret_free(&secret);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_same_bytes_are_equal),
        cmocka_unit_test(a_secret_is_replaced_as_a_whole),
        cmocka_unit_test(a_file_of_ours_is_read),
        cmocka_unit_test(a_file_that_others_may_read_or_write_is_refused),
        cmocka_unit_test(a_file_that_others_may_replace_is_refused),
        cmocka_unit_test(a_file_of_another_user_is_refused),
        cmocka_unit_test(what_is_no_file_is_refused),
        cmocka_unit_test(what_is_not_one_line_of_text_is_refused),
        cmocka_unit_test(a_file_is_written_once_with_its_mode),
        cmocka_unit_test(a_full_disk_leaves_no_half_of_a_secret),
        cmocka_unit_test(an_erased_file_is_overwritten_and_gone),
        cmocka_unit_test(an_erasure_that_was_cut_short_goes_on),
        cmocka_unit_test(a_secret_is_in_no_core_dump),
        cmocka_unit_test(a_secret_is_overwritten_when_it_is_freed),
    };

    return cmocka_run_group_tests_name("secret", tests, setup, teardown);
}
