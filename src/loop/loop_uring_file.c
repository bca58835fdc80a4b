/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files and block devices of the io_uring back end: open, preallocate, lock, and blocking I/O.
 *
 * Called at start, from any thread.
 *
 * The lock of an exclusive file has three parts. A lock of the open file description over the first
 * 2^62 bytes keeps others out; it belongs to this descriptor alone. A lock of the process on the
 * byte behind only says who holds it, because the first kind does not know its process. The second
 * would vanish if this process closed another descriptor of the file, so a list of the files this
 * process has locked turns a second open away before it makes a descriptor. Block devices are also
 * opened with O_EXCL, which fails on mounted ones, and for a moment on those of a process that was
 * killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <linux/blkzoned.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/limits.h"
#include "loop/loop_uring.h"

#define LOCK_BYTES ((off_t)1 << 62)

/* How long a lock without a holder may take to go away. */
#define LOCK_WAIT_MS  5000
#define LOCK_RETRY_MS 10

static pthread_mutex_t uring_locked_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct list uring_locked = {&uring_locked, &uring_locked};

/* ---- the lock ------------------------------------------------------------------------------- */

static bool file_locked_here(const struct stat *stat)
{
    list_for_each (link, &uring_locked) {
        const struct uring_file *file = container_of(link, struct uring_file, link);

        if (file->device == stat->st_dev && file->inode == stat->st_ino)
            return true;
    }
    return false;
}

void uring_files_hold(void)
{
    check(pthread_mutex_lock(&uring_locked_mutex) == 0);
}

void uring_files_forget(void)
{
    list_init(&uring_locked);
}

void uring_files_rele(void)
{
    check(pthread_mutex_unlock(&uring_locked_mutex) == 0);
}

static icms_err file_locked_error(const char *path, int pid, struct err_why *why)
{
    if (pid == 0)
        return err_set(why, ICMS_LOCKED, "%s is in use by another process: stop it first", path);
    return err_set(why, ICMS_LOCKED, "%s is in use by %s %d: stop it first, or use another path",
                   path, pid == (int)getpid() ? "this process," : "process", pid);
}

/* Takes the lock of the description. A process that was killed keeps it for a moment: its ring
 * holds the file until the kernel has ended what was in flight, although the process and its mark
 * are gone. So as long as no process has the mark, it is tried again. The errno, and whose mark it
 * is.
 */
static int file_lock_take(int fd, short type, int *out_pid)
{
    struct timespec pause = {.tv_nsec = LOCK_RETRY_MS * 1000000L};

    for (int waited_ms = 0;; waited_ms += LOCK_RETRY_MS) {
        struct flock whole = {.l_type = type, .l_whence = SEEK_SET, .l_len = LOCK_BYTES};
        struct flock mark = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BYTES, .l_len = 1};
        int error;

        if (fcntl(fd, F_OFD_SETLK, &whole) == 0)
            return 0;
        error = errno;
        *out_pid = 0;
        if (error != EAGAIN && error != EACCES)
            return error;
        if (fcntl(fd, F_GETLK, &mark) == 0 && mark.l_type != F_UNLCK) {
            *out_pid = mark.l_pid;
            return error;
        }
        if (waited_ms >= LOCK_WAIT_MS)
            return error;
        (void)nanosleep(&pause, NULL);
    }
}

static icms_err file_lock(struct uring_file *file, const struct loop_file_opts *opts,
                          struct err_why *why)
{
    short type = opts->write ? F_WRLCK : F_RDLCK;
    struct flock mark = {.l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_BYTES, .l_len = 1};
    int pid = 0;
    int error = file_lock_take(file->fd, type, &pid);

    if (error == EAGAIN || error == EACCES)
        return file_locked_error(opts->path, pid, why);
    if (error != 0)
        return err_set(why, err_from_errno(error), "cannot lock %s: %s", opts->path,
                       strerror(error));
    (void)fcntl(file->fd, F_SETLK, &mark);
    file->locked = true;
    list_push(&uring_locked, &file->link);
    return ICMS_OK;
}

/* ---- open ----------------------------------------------------------------------------------- */

static icms_err file_open_error(const struct loop_file_opts *opts, int error, struct err_why *why)
{
    const char *remedy = "check the path";
    icms_err err = err_from_errno(error);

    if (error == EACCES || error == EPERM)
        remedy = "give this user access to it";
    else if (error == EBUSY) {
        remedy = "a file system, swap, LVM, RAID or another process has it: unmount it or stop "
                 "that first, or use another device";
        err = ICMS_LOCKED;
    } else if (error == EINVAL && opts->direct) {
        remedy = "its file system has no direct I/O; put it on ext4, xfs or a block device";
        err = ICMS_UNSUPPORTED;
    } else if (error == ENOENT)
        remedy = opts->create ? "make its directory first" : "check the path, or create it first";
    return err_set(why, err, "cannot open %s: %s: %s", opts->path, strerror(error), remedy);
}

/* Whether a file system of the block device is mounted. */
static bool device_is_mounted(dev_t device)
{
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    unsigned at_major, at_minor;
    bool mounted = false;
    char line[4096];

    if (mounts == NULL)
        return false;
    while (!mounted && fgets(line, sizeof(line), mounts) != NULL)
        mounted = sscanf(line, "%*u %*u %u:%u ", &at_major, &at_minor) == 2 &&
                  at_major == major(device) && at_minor == minor(device);
    (void)fclose(mounts);
    return mounted;
}

/* Opens a block device for this process alone. As with locks (file_lock_take), a process that was
 * killed has it for a moment, until its ring has ended; a mounted one is never waited for. -1: see
 * errno. */
static int device_open(const char *path, int flags, dev_t device)
{
    struct timespec pause = {.tv_nsec = LOCK_RETRY_MS * 1000000L};

    for (int waited_ms = 0;; waited_ms += LOCK_RETRY_MS) {
        int fd = open(path, flags | O_EXCL);

        if (fd >= 0 || errno != EBUSY)
            return fd;
        if (waited_ms >= LOCK_WAIT_MS || device_is_mounted(device)) {
            errno = EBUSY;
            return -1;
        }
        (void)nanosleep(&pause, NULL);
    }
}

/* Opens the descriptor; *out_new when the file was made. device: of a block device, else 0. The
 * errno of what failed, or 0. */
static int file_descriptor(const struct loop_file_opts *opts, dev_t device, int *out_fd,
                           bool *out_new)
{
    int flags = (opts->write ? O_RDWR : O_RDONLY) | O_CLOEXEC | (opts->direct ? O_DIRECT : 0);
    int fd = -1;

    *out_new = false;
    if (device != 0 && opts->exclusive && opts->write) {
        fd = device_open(opts->path, flags, device);
    } else {
        if (opts->create)
            fd = open(opts->path, flags | O_CREAT | O_EXCL, 0600);
        if (fd >= 0)
            *out_new = true;
        else if (!opts->create || errno == EEXIST)
            fd = open(opts->path, flags);
    }
    if (fd < 0)
        return errno;
    *out_fd = loop_fd_own(fd);
    return 0;
}

/* The name of a new file survives a power loss only once its directory was flushed. */
static void file_directory_flush(const char *path)
{
    char copy[LIMIT_PATH_BYTES];
    int fd;

    if (strlen(path) >= sizeof(copy))
        return;
    memcpy(copy, path, strlen(path) + 1);
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        (void)close(fd);
    }
}

static icms_err file_preallocate(struct uring_file *file, const struct loop_file_opts *opts,
                                 struct err_why *why)
{
    int result;

    do { /* rings that are torn down interrupt their process, too */
        result = opts->sparse ? -1 : fallocate(file->fd, 0, 0, (off_t)opts->bytes);
    } while (!opts->sparse && result != 0 && errno == EINTR);
    if (opts->sparse || (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)))
        result = ftruncate(file->fd, (off_t)opts->bytes);
    if (result != 0)
        return err_set(why, err_from_errno(errno),
                       "cannot take %llu MiB for %s: %s: free space, or configure it smaller",
                       (unsigned long long)(opts->bytes >> 20), opts->path, strerror(errno));
    (void)fsync(file->fd);
    return ICMS_OK;
}

/* One word that Linux says of a block device; false where it says nothing. folder: "queue" for a
 * whole device, "../queue" for the device of a partition. */
static bool device_word(const struct stat *stat, const char *folder, const char *name,
                        char word[32])
{
    char path[128];
    FILE *said;
    bool known;

    (void)snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/%s", major(stat->st_rdev),
                   minor(stat->st_rdev), folder, name);
    said = fopen(path, "re");
    if (said == NULL)
        return false;
    known = fscanf(said, "%31s", word) == 1;
    (void)fclose(said);
    return known;
}

/* Zones are written in order, from their beginning; records and headers here are not. Where /sys is
 * not mounted the device is asked for the size of its zones, of which others have none. */
static icms_err file_zoned(const struct uring_file *file, const struct stat *stat,
                           const struct loop_file_opts *opts, struct err_why *why)
{
    uint32_t sectors = 0;
    char model[32];

    if (!device_word(stat, "queue", "zoned", model) &&
        !device_word(stat, "../queue", "zoned", model)) {
        if (ioctl(file->fd, BLKGETZONESZ, &sectors) != 0 || sectors == 0)
            return ICMS_OK;
        (void)snprintf(model, sizeof(model), "zones of %u MiB", sectors >> 11);
    }
    if (strcmp(model, "none") == 0)
        return ICMS_OK;
    return err_set(why, ICMS_UNSUPPORTED,
                   "cannot open %s: it is a zoned block device (%s), which takes writes only in "
                   "order within a zone: use a device or a namespace that is not zoned",
                   opts->path, model);
}

/* How the device may sort what it is told. Linux says how many write streams a whole block device
 * has; a partition takes none. Where there are none, a device or a file system may still heed how
 * long the file's bytes live: longer than a journal, not as long as what others keep. Neither is
 * needed. */
static void file_hints(struct uring_file *file, const struct stat *stat)
{
    uint64_t life = RWH_WRITE_LIFE_MEDIUM;
    unsigned long streams = 0;
    char word[32];

    if (S_ISBLK(stat->st_mode) && device_word(stat, "queue", "max_write_streams", word))
        streams = strtoul(word, NULL, 10);
    file->file.streams = (uint32_t)u64_min(streams, LIMIT_WRITE_STREAMS);
    if (streams == 0)
        (void)fcntl(file->fd, F_SET_RW_HINT, &life);
}

static icms_err file_size(struct uring_file *file, const struct loop_file_opts *opts,
                          struct err_why *why)
{
    off_t end = lseek(file->fd, 0, SEEK_END);

    if (end < 0)
        return file_open_error(opts, errno, why);
    file->file.bytes = (uint64_t)end;
    return ICMS_OK;
}

/* Nothing else has a size and keeps what is written; opening a pipe would wait for its writer. */
static icms_err file_kind(const struct stat *stat, const char *path, struct err_why *why)
{
    return S_ISREG(stat->st_mode) || S_ISBLK(stat->st_mode)
               ? ICMS_OK
               : err_set(why, ICMS_INVALID, "%s is neither a file nor a block device", path);
}

/* From an open descriptor to a file that is locked and as long as it should be. */
static icms_err file_setup(struct uring_file *file, const struct loop_file_opts *opts, bool new,
                           struct err_why *why)
{
    struct stat stat;
    icms_err err;

    if (fstat(file->fd, &stat) != 0)
        return file_open_error(opts, errno, why);
    err = file_kind(&stat, opts->path, why);
    if (err != ICMS_OK)
        return err;
    if (opts->exclusive && opts->write && (stat.st_mode & S_IWOTH) != 0)
        return err_set(why, ICMS_PERMISSION,
                       "cannot use %s: its mode is 0%03o, so every user of this machine can change "
                       "what is stored there: `chmod o-w` it",
                       opts->path, (unsigned)stat.st_mode & 07777);
    file->device = stat.st_dev;
    file->inode = stat.st_ino;
    if (S_ISBLK(stat.st_mode))
        err = file_zoned(file, &stat, opts, why);
    if (err == ICMS_OK && opts->exclusive)
        err = file_lock(file, opts, why);
    if (err == ICMS_OK && S_ISREG(stat.st_mode) && opts->create && opts->bytes > 0 &&
        stat.st_size == 0)
        err = file_preallocate(file, opts, why);
    if (err == ICMS_OK)
        err = file_size(file, opts, why);
    if (err == ICMS_OK && opts->write)
        file_hints(file, &stat);
    if (err != ICMS_OK && new)
        (void)unlink(opts->path);
    if (err == ICMS_OK && new)
        file_directory_flush(opts->path);
    return err;
}

static icms_err file_open_locked(struct loop_env *env, const struct loop_file_opts *opts,
                                 struct err_why *why, struct uring_file *file)
{
    struct stat known = {0};
    bool exists = stat(opts->path, &known) == 0;
    bool new;
    int error;

    if (exists && file_kind(&known, opts->path, why) != ICMS_OK)
        return ICMS_INVALID;
    if (exists && opts->exclusive && file_locked_here(&known))
        return file_locked_error(opts->path, (int)getpid(), why);
    error = file_descriptor(opts, exists && S_ISBLK(known.st_mode) ? known.st_rdev : 0, &file->fd,
                            &new);
    if (error != 0)
        return file_open_error(opts, error, why);
    file->file.target.env = env;
    file->file.direct = opts->direct;
    return file_setup(file, opts, new, why);
}

icms_err uring_file_open(struct loop_env *env, const struct loop_file_opts *opts,
                         struct err_why *why, struct loop_file **out_file)
{
    struct uring_file *file = calloc(1, sizeof(*file));
    icms_err err;

    if (file == NULL)
        return err_set(why, ICMS_NO_MEMORY, "open %s: out of memory", opts->path);
    file->fd = -1;
    list_init(&file->link);
    check(pthread_mutex_lock(&uring_locked_mutex) == 0);
    err = file_open_locked(env, opts, why, file);
    check(pthread_mutex_unlock(&uring_locked_mutex) == 0);
    if (err != ICMS_OK)
        uring_file_close(&file->file);
    else
        *out_file = &file->file;
    return err;
}

int uring_file_fd(struct loop_file *file)
{
    return uring_file_of(file)->fd;
}

void uring_file_close(struct loop_file *file)
{
    struct uring_file *own = uring_file_of(file);

    check(pthread_mutex_lock(&uring_locked_mutex) == 0);
    list_remove(&own->link);
    if (own->fd >= 0)
        loop_fd_close(own->fd);
    check(pthread_mutex_unlock(&uring_locked_mutex) == 0);
    free(own);
}

/* ---- blocking I/O --------------------------------------------------------------------------- */

icms_err uring_file_read_now(struct loop_file *file, uint64_t offset, void *memory, size_t bytes)
{
    uint8_t *to = memory;

    while (bytes > 0) {
        ssize_t n = pread(uring_file_of(file)->fd, to, bytes, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_from_errno(errno);
        if (n == 0)
            return ICMS_IO;
        to += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return ICMS_OK;
}

icms_err uring_file_write_now(struct loop_file *file, uint64_t offset, const void *memory,
                              size_t bytes)
{
    const uint8_t *from = memory;

    while (bytes > 0) {
        ssize_t n = pwrite(uring_file_of(file)->fd, from, bytes, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_from_errno(errno);
        from += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return ICMS_OK;
}

icms_err uring_file_flush_now(struct loop_file *file)
{
    int result;

    do {
        result = fdatasync(uring_file_of(file)->fd);
    } while (result != 0 && errno == EINTR);
    return result != 0 ? err_from_errno(errno) : ICMS_OK;
}
