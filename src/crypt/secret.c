/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/secret.c: secrets in memory, and the files they come from, see secret.h.
 *
 * Called by who reads configurations and makes keys, on any thread. A secret is one mapping: the
 * struct, then its bytes. What is read from a file goes straight there, through no other buffer.
 */
#include "crypt/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"

struct secret {
    size_t mapped;                /* bytes of the mapping, this struct among them */
    size_t length;                /* of the secret                                */
    pthread_mutex_t lock;         /* of bytes, while they are replaced            */
    _Alignas(64) uint8_t bytes[]; /* and a zero byte behind them          */
};

/* ---- memory --------------------------------------------------------------------------------- */

icms_err secret_new(size_t bytes, struct err_why *why, struct secret **out_secret)
{
    size_t mapped = bytes_align(sizeof(struct secret) + bytes + 1, (size_t)sysconf(_SC_PAGESIZE));
    struct secret *secret =
        mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (secret == MAP_FAILED)
        return err_set(why, ICMS_NO_MEMORY, "cannot hold a secret: out of memory");
    (void)madvise(secret, mapped, MADV_DONTDUMP);
    (void)madvise(secret, mapped, MADV_WIPEONFORK);
    (void)mlock(secret, mapped); /* as far as RLIMIT_MEMLOCK allows */
    check(pthread_mutex_init(&secret->lock, NULL) == 0);
    secret->mapped = mapped;
    secret->length = bytes;
    *out_secret = secret;
    return ICMS_OK;
}

void secret_free(struct secret **secret)
{
    struct secret *gone = *secret;
    size_t mapped;

    if (gone == NULL)
        return;
    *secret = NULL;
    mapped = gone->mapped;
    if (mapped == 0)
        return; /* in a child of fork(), which has zeros here */
    check(pthread_mutex_destroy(&gone->lock) == 0);
    secret_wipe(gone, mapped);
    check(munmap(gone, mapped) == 0);
}

uint8_t *secret_bytes(struct secret *secret)
{
    return secret->bytes;
}

size_t secret_length(const struct secret *secret)
{
    return secret->length;
}

bool secret_replace(struct secret *secret, struct secret **from)
{
    bool is_new;

    check((*from)->length == secret->length);
    is_new = CRYPTO_memcmp(secret->bytes, (*from)->bytes, secret->length) != 0;
    if (is_new) {
        check(pthread_mutex_lock(&secret->lock) == 0);
        memcpy(secret->bytes, (*from)->bytes, secret->length);
        check(pthread_mutex_unlock(&secret->lock) == 0);
    }
    secret_free(from);
    return is_new;
}

void secret_copy(struct secret *secret, void *out, size_t bytes)
{
    check(bytes == secret->length);
    check(pthread_mutex_lock(&secret->lock) == 0);
    memcpy(out, secret->bytes, bytes);
    check(pthread_mutex_unlock(&secret->lock) == 0);
}

bool secret_equal(const struct secret *secret, const void *bytes, size_t count)
{
    return count == secret->length && CRYPTO_memcmp(secret->bytes, bytes, count) == 0;
}

void secret_random(void *out, size_t bytes)
{
    uint8_t *to = out;

    while (bytes > 0) {
        ssize_t n = getrandom(to, bytes, 0);

        check(n > 0 || errno == EINTR);
        if (n > 0) {
            to += n;
            bytes -= (size_t)n;
        }
    }
}

bool secret_is_zero(const void *bytes, size_t count)
{
    uint8_t any = 0;

    for (size_t i = 0; i < count; i++)
        any |= ((const uint8_t *)bytes)[i];
    return any == 0;
}

void secret_wipe(void *memory, size_t bytes)
{
    OPENSSL_cleanse(memory, bytes);
}

/* ---- files ---------------------------------------------------------------------------------- */

static icms_err secret_open(const char *path, struct err_why *why, int *out_fd)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    int error = errno;

    if (fd >= 0) {
        *out_fd = fd;
        return ICMS_OK;
    }
    if (error == ELOOP)
        return err_set(
            why, ICMS_CONFIG,
            "cannot read secret file %.300s: it is a symbolic link; name the file itself", path);
    return err_set(why, err_from_errno(error), "cannot read secret file %.300s: %s%s", path,
                   strerror(error),
                   error == ENOENT   ? "; make it with `icms key gen`"
                   : error == EACCES ? "; its owner must be the user of this process"
                                     : "");
}

/* Whether it is a file that nobody else could have read or written. */
static icms_err secret_check(const char *path, const struct stat *status, size_t bytes_max,
                             struct err_why *why)
{
    unsigned mode = status->st_mode & 07777;

    if (!S_ISREG(status->st_mode))
        return err_set(why, ICMS_CONFIG, "cannot read secret file %.300s: it is not a regular file",
                       path);
    if (status->st_uid != geteuid() && status->st_uid != 0)
        return err_set(why, ICMS_PERMISSION,
                       "cannot use secret file %.300s: its owner is user %u; it must be user %u, "
                       "who runs this, or root: see chown(1)",
                       path, (unsigned)status->st_uid, (unsigned)geteuid());
    if (mode != 0600 && mode != 0400)
        return err_set(why, ICMS_PERMISSION,
                       "cannot use secret file %.300s: its mode is 0%03o, it must be 0600 or 0400; "
                       "if others may have read it, replace the secret, else `chmod 600` it",
                       path, mode);
    if (status->st_size == 0 || (uintmax_t)status->st_size > bytes_max)
        return err_set(why, ICMS_CONFIG,
                       "cannot use secret file %.300s: it has %lld bytes; 1 to %zu are allowed",
                       path, (long long)status->st_size, bytes_max);
    return ICMS_OK;
}

/* Reads until the end of the file or of the memory, which has room for a byte too many. */
static icms_err secret_fill(int fd, const char *path, struct secret *secret, struct err_why *why)
{
    size_t had = 0;

    for (;;) {
        ssize_t n = read(fd, secret->bytes + had, secret->length + 1 - had);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(why, err_from_errno(errno), "cannot read secret file %.300s: %s", path,
                           strerror(errno));
        if (n == 0)
            break;
        had += (size_t)n;
        if (had > secret->length)
            return err_set(why, ICMS_CONFIG,
                           "cannot read secret file %.300s: it grew meanwhile; try again", path);
    }
    if (had < secret->length)
        return err_set(why, ICMS_CONFIG,
                       "cannot read secret file %.300s: it shrank meanwhile; try again", path);
    return ICMS_OK;
}

/* Whoever may write in the folder of a file may put another one of ours in its place, unless the
 * folder is sticky. Without a folder there is no file, which is said elsewhere. */
static icms_err folder_check(const char *path, struct err_why *why)
{
    char folder[PATH_MAX];
    struct stat status;
    const char *name;

    (void)snprintf(folder, sizeof(folder), "%s", path);
    name = dirname(folder);
    if (stat(name, &status) != 0 || (status.st_mode & S_IWOTH) == 0 ||
        (status.st_mode & S_ISVTX) != 0)
        return ICMS_OK;
    return err_set(
        why, ICMS_PERMISSION,
        "cannot use secret file %.300s: the mode of its folder is 0%03o, so every user of "
        "this machine can replace it; look whether it is as it was, and `chmod o-w` the "
        "folder",
        path, (unsigned)status.st_mode & 07777);
}

icms_err secret_read(const char *path, size_t bytes_max, struct err_why *why,
                     struct secret **out_secret)
{
    struct secret *secret = NULL;
    struct stat status;
    icms_err err;
    int fd = -1;

    err = secret_open(path, why, &fd);
    if (err != ICMS_OK)
        return err;
    if (fstat(fd, &status) != 0)
        err = err_set(why, err_from_errno(errno), "cannot read secret file %.300s: %s", path,
                      strerror(errno));
    if (err == ICMS_OK)
        err = secret_check(path, &status, bytes_max, why);
    if (err == ICMS_OK)
        err = folder_check(path, why);
    if (err == ICMS_OK)
        err = secret_new((size_t)status.st_size, why, &secret);
    if (err == ICMS_OK)
        err = secret_fill(fd, path, secret, why);
    (void)close(fd);
    if (err != ICMS_OK)
        secret_free(&secret);
    else
        *out_secret = secret;
    return err;
}

static bool byte_is_blank(uint8_t byte)
{
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

icms_err secret_read_line(const char *path, struct err_why *why, struct secret **out_secret)
{
    struct secret *secret = NULL;
    icms_err err = secret_read(path, SECRET_LINE_BYTES_MAX, why, &secret);
    size_t begin = 0, end;

    if (err != ICMS_OK)
        return err;
    end = secret->length;
    while (begin < end && byte_is_blank(secret->bytes[begin]))
        begin++;
    while (end > begin && byte_is_blank(secret->bytes[end - 1]))
        end--;
    if (begin == end)
        err = err_set(why, ICMS_CONFIG, "cannot use secret file %.300s: it is empty", path);
    for (size_t i = begin; i < end && err == ICMS_OK; i++) {
        if (secret->bytes[i] == '\n')
            err = err_set(
                why, ICMS_CONFIG,
                "cannot use secret file %.300s: it has several lines; one file, one secret", path);
        else if (secret->bytes[i] < 0x20 || secret->bytes[i] > 0x7e)
            err = err_set(why, ICMS_CONFIG,
                          "cannot use secret file %.300s: it has bytes that are not printable text",
                          path);
    }
    if (err != ICMS_OK) {
        secret_free(&secret);
        return err;
    }
    memmove(secret->bytes, secret->bytes + begin, end - begin);
    secret_wipe(secret->bytes + (end - begin), secret->length - (end - begin));
    secret->length = end - begin;
    *out_secret = secret;
    return ICMS_OK;
}

static int fd_write_all(int fd, const uint8_t *from, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, from, bytes);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : EIO;
        from += n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* Random bytes in the place of those of the file behind fd, by a descriptor that may write. An
 * errno, or 0. */
static int file_overwrite(int fd, size_t bytes)
{
    struct secret *noise = NULL;
    char again[64];
    int writer, error;

    if (fchmod(fd, 0600) != 0)
        return errno;
    (void)snprintf(again, sizeof(again), "/proc/self/fd/%d", fd); /* that file, and no other */
    writer = open(again, O_WRONLY | O_CLOEXEC);
    if (writer < 0)
        return errno;
    error = secret_new(bytes, NULL, &noise) != ICMS_OK ? ENOMEM : 0;
    if (error == 0) {
        secret_random(noise->bytes, bytes);
        error = fd_write_all(writer, noise->bytes, bytes);
    }
    secret_free(&noise);
    if (fsync(writer) != 0 && error == 0)
        error = errno;
    (void)close(writer);
    return error;
}

/* Makes names in the folder of a file durable. An errno, or 0. */
static int folder_sync(const char *path)
{
    char folder[PATH_MAX];
    int fd, error;

    (void)snprintf(folder, sizeof(folder), "%s", path);
    fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    error = fsync(fd) != 0 ? errno : 0;
    (void)close(fd);
    return error;
}

/* The file that it is, judged; overwritten when that is asked for. */
static icms_err file_judge(const char *path, size_t bytes_max, bool overwrites, struct err_why *why)
{
    struct stat status;
    icms_err err;
    int fd = -1, error;

    err = secret_open(path, why, &fd);
    if (err != ICMS_OK)
        return err;
    if (fstat(fd, &status) != 0)
        err = err_set(why, err_from_errno(errno), "cannot read secret file %.300s: %s", path,
                      strerror(errno));
    if (err == ICMS_OK)
        err = secret_check(path, &status, bytes_max, why);
    error = err == ICMS_OK && overwrites ? file_overwrite(fd, (size_t)status.st_size) : 0;
    if (error != 0)
        err = err_set(why, err_from_errno(error), "cannot erase secret file %.300s: %s", path,
                      strerror(error));
    (void)close(fd);
    return err;
}

/* Its name while it is erased. False: too long. */
static bool erased_name(const char *path, char out[PATH_MAX])
{
    return (size_t)snprintf(out, PATH_MAX, "%s" SECRET_ERASED, path) < PATH_MAX;
}

icms_err secret_erase(const char *path, size_t bytes_max, struct err_why *why)
{
    char erased[PATH_MAX];
    struct stat status;
    icms_err err;

    if (!erased_name(path, erased))
        return err_set(why, ICMS_CONFIG, "cannot erase secret file %.300s: its name is too long",
                       path);
    if (lstat(erased, &status) == 0) { /* of a run that was cut short */
        err = file_judge(erased, bytes_max, true, why);
        if (err != ICMS_OK || lstat(path, &status) != 0)
            return err;
    }
    err = file_judge(path, bytes_max, false, why);
    if (err != ICMS_OK)
        return err;
    if (rename(path, erased) != 0)
        return err_set(why, err_from_errno(errno), "cannot rename secret file %.300s: %s", path,
                       strerror(errno));
    if (folder_sync(path) != 0)
        return err_set(why, ICMS_IO, "cannot rename secret file %.300s durably: %s", path,
                       strerror(errno));
    return file_judge(erased, bytes_max, true, why);
}

bool secret_is_erased(const char *path)
{
    char erased[PATH_MAX];
    struct stat status;

    return lstat(path, &status) != 0 && errno == ENOENT && erased_name(path, erased) &&
           lstat(erased, &status) == 0;
}

icms_err secret_erased_remove(const char *path, struct err_why *why)
{
    char erased[PATH_MAX];
    int error;

    if (!erased_name(path, erased))
        return err_set(why, ICMS_CONFIG, "cannot remove secret file %.300s: its name is too long",
                       path);
    error = unlink(erased) != 0 ? errno : folder_sync(path);
    return error == 0 ? ICMS_OK
                      : err_set(why, err_from_errno(error), "cannot remove %.300s: %s", erased,
                                strerror(error));
}

icms_err secret_write(const char *path, const void *data, size_t bytes, struct err_why *why)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int error = errno;

    if (fd < 0 && error == EEXIST)
        return err_set(
            why, ICMS_EXISTS,
            "cannot write secret file %.300s: it exists; choose another name, or remove it "
            "when nobody uses it any more",
            path);
    if (fd < 0)
        return err_set(why, err_from_errno(error), "cannot write secret file %.300s: %s", path,
                       strerror(error));
    error = fchmod(fd, 0600) != 0 ? errno : fd_write_all(fd, data, bytes);
    if (error == 0 && fsync(fd) != 0)
        error = errno;
    if (close(fd) != 0 && error == 0)
        error = errno;
    if (error == 0)
        return ICMS_OK;
    (void)unlink(path);
    return err_set(why, err_from_errno(error), "cannot write secret file %.300s: %s", path,
                   strerror(error));
}
