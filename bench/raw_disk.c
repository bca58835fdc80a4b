/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/raw_disk.c: the ceiling of what uses disks: io_uring on files opened with O_DIRECT, buffers
 * and files registered, one thread that waits for completions, nothing looked at (unless
 * bench_disk_check says so: then a checksum is taken of every value, of a read one before the next
 * read starts in its place, of a written one before).
 *
 * Values lie one after the other in the files, each file holding an equal part of them. Reads walk
 * over all of them in an order that no read-ahead could use, writes go on where the last one ended,
 * as a log does.
 *
 * Called on the thread of bench_run.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/crc.h"
#include "bench/bench_int.h"

#define DISK_FILES_MAX  8
#define DISK_DEPTH_MAX  64
#define DISK_BUFFER_MAX ((uint32_t)4 << 20)
#define DISK_ENTRIES    128

struct bench_disk {
    struct io_uring ring;           /* of the one thread                      */
    bool ring_made;                 /* ring is set                            */
    bool pinned;                    /* the buffers are registered             */
    bool checks;                    /* takes checksums                        */
    uint32_t crc;                   /* of all of them: nobody leaves them out */
    int fd[DISK_FILES_MAX];         /* the files                              */
    uint32_t files;                 /* of fd                                  */
    uint64_t bytes;                 /* of each                                */
    struct loop_region *region;     /* DISK_DEPTH_MAX buffers                 */
    uint8_t *memory;                /* where it begins                        */
    uint32_t buffers;               /* of DISK_BUFFER_MAX in memory           */
    struct bench_trail trail;       /* over the values that were written      */
    uint64_t next_write;            /* which one comes next                   */
    uint64_t begin[DISK_DEPTH_MAX]; /* when the operation of a buffer started */
};

struct bench_trail *bench_disk_trail(struct bench_disk *disk)
{
    return &disk->trail;
}

void bench_disk_check(struct bench_disk *disk, bool checks)
{
    disk->checks = checks;
}

static void disk_sum(struct bench_disk *disk, uint32_t i, uint32_t size)
{
    if (disk->checks)
        disk->crc ^= crc32c(disk->memory + (uint64_t)i * DISK_BUFFER_MAX, size);
}

uint64_t bench_disk_extents(const struct bench_disk *disk, uint32_t size)
{
    return disk->bytes / size * disk->files;
}

/* One transfer of value n through buffer i. */
static void disk_start(struct bench_disk *disk, enum bench_op op, uint32_t size, uint64_t n,
                       uint32_t i)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&disk->ring);
    uint8_t *buffer = disk->memory + (uint64_t)i * DISK_BUFFER_MAX;
    int file = (int)(n % disk->files);
    uint64_t offset = n / disk->files % (disk->bytes / size) * size;

    check(sqe != NULL);
    disk->begin[i] = bench_now_ns();
    if (op == BENCH_GET) {
        io_uring_prep_read(sqe, file, buffer, size, offset);
    } else {
        disk_sum(disk, i, size);
        io_uring_prep_write(sqe, file, buffer, size, offset);
    }
    if (disk->pinned) {
        sqe->opcode = op == BENCH_GET ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
        sqe->buf_index = (uint16_t)i;
    }
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, i);
}

/* The number of the next value; reads meet only what was written. */
static uint64_t disk_next(struct bench_disk *disk, enum bench_op op, uint32_t size)
{
    if (op == BENCH_PUT)
        return disk->next_write++ % bench_disk_extents(disk, size);
    return bench_walk(disk->trail.next++, disk->trail.count);
}

icms_err bench_disk_run(struct bench_side *side, const struct bench_work *work, uint64_t ns,
                        struct bench_slice *slice, struct err_why *why)
{
    struct bench_disk *disk = side->owner;
    uint64_t begin = bench_now_ns(), now = begin;
    uint32_t busy = 0;

    check(work->depth > 0 && work->depth <= disk->buffers && work->size_bytes <= DISK_BUFFER_MAX);
    check(work->op == BENCH_PUT || disk->trail.count > 0);
    for (; busy < work->depth; busy++)
        disk_start(disk, work->op, work->size_bytes, disk_next(disk, work->op, work->size_bytes),
                   busy);
    while (busy > 0) {
        struct io_uring_cqe *cqe;
        unsigned head, seen = 0;
        int n = io_uring_submit_and_wait(&disk->ring, 1);

        if (n < 0 && n != -EINTR)
            return err_set(why, err_from_errno(-n), "raw disk: io_uring: %s", strerror(-n));
        now = bench_now_ns();
        io_uring_for_each_cqe(&disk->ring, head, cqe)
        {
            uint32_t i = (uint32_t)io_uring_cqe_get_data64(cqe);

            seen++;
            if (work->op == BENCH_GET) {
                disk_sum(disk, i, work->size_bytes);
                now = disk->checks ? bench_now_ns() : now;
            }
            bench_slice_add(slice, cqe->res == (int)work->size_bytes ? ICMS_OK : ICMS_IO,
                            work->size_bytes, 0, now - disk->begin[i]);
            if (now - begin < ns)
                disk_start(disk, work->op, work->size_bytes,
                           disk_next(disk, work->op, work->size_bytes), i);
            else
                busy--;
        }
        io_uring_cq_advance(&disk->ring, seen);
    }
    slice->wall_ns = now - begin;
    return ICMS_OK;
}

icms_err bench_disk_fill(struct bench_disk *disk, uint32_t size, uint64_t first, uint64_t count,
                         struct err_why *why)
{
    uint8_t *buffer = disk->memory;

    if (first == 0) {
        bench_value_noise(buffer, size);
        disk->trail = (struct bench_trail){0};
        disk->next_write = 0;
    }
    for (uint64_t n = first; n < first + count && n < bench_disk_extents(disk, size); n++) {
        ssize_t done;

        bench_value_stamp(buffer, size, n, 0);
        done = pwrite(disk->fd[n % disk->files], buffer, size, (off_t)(n / disk->files * size));
        if (done != (ssize_t)size)
            return err_set(why, done < 0 ? err_from_errno(errno) : ICMS_NO_SPACE,
                           "raw disk: could not write value %llu of %u bytes",
                           (unsigned long long)n, size);
        disk->trail.count = n + 1;
    }
    return ICMS_OK;
}

icms_err bench_file_make(const char *path, uint64_t bytes, struct err_why *why)
{
    uint8_t *zeros = aligned_alloc(LIMIT_DISK_ALIGN, DISK_BUFFER_MAX);
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    icms_err err = ICMS_OK;

    if (fd < 0 || zeros == NULL) {
        err = fd < 0 ? err_from_errno(errno) : ICMS_NO_MEMORY;
        free(zeros);
        if (fd >= 0)
            (void)close(fd);
        return err_set(why, err,
                       "%s: cannot be made with O_DIRECT: %s; name a directory on a "
                       "disk with --dir",
                       path, icms_err_text(err));
    }
    memset(zeros, 0, DISK_BUFFER_MAX);
    if (posix_fallocate(fd, 0, (off_t)bytes) != 0)
        err = err_set(why, ICMS_NO_SPACE,
                      "%s: no room for %llu MiB; use less with --space, or "
                      "another directory with --dir",
                      path, (unsigned long long)(bytes >> 20));
    for (uint64_t at = 0; err == ICMS_OK && at < bytes; at += DISK_BUFFER_MAX) {
        size_t part = bytes - at < DISK_BUFFER_MAX ? (size_t)(bytes - at) : DISK_BUFFER_MAX;

        err = bench_go_on(why);
        if (err == ICMS_OK && pwrite(fd, zeros, part, (off_t)at) != (ssize_t)part)
            err = err_set(why, ICMS_IO, "%s: could not be written", path);
    }
    free(zeros);
    (void)close(fd);
    return err;
}

static icms_err disk_ring(struct bench_disk *disk, struct err_why *why)
{
    struct iovec buffers[DISK_DEPTH_MAX];
    int n = io_uring_queue_init(DISK_ENTRIES, &disk->ring,
                                IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
    icms_err err;

    if (n < 0)
        return err_set(why, ICMS_UNSUPPORTED, "raw disk: no io_uring: %s", strerror(-n));
    disk->ring_made = true;
    err = loop_region_new(loop_env_uring(), "raw-disk", (uint64_t)DISK_DEPTH_MAX * DISK_BUFFER_MAX,
                          true, why, &disk->region);
    if (err != ICMS_OK)
        return err;
    disk->memory = loop_region_base(disk->region);
    disk->buffers = DISK_DEPTH_MAX;
    for (uint32_t i = 0; i < DISK_DEPTH_MAX; i++)
        buffers[i] = (struct iovec){disk->memory + (uint64_t)i * DISK_BUFFER_MAX, DISK_BUFFER_MAX};
    /* Where few locked pages are allowed both sides go without. */
    disk->pinned = io_uring_register_buffers(&disk->ring, buffers, DISK_DEPTH_MAX) == 0;
    n = io_uring_register_files(&disk->ring, disk->fd, disk->files);
    if (n < 0)
        return err_set(why, err_from_errno(-n), "raw disk: cannot register files: %s",
                       strerror(-n));
    return ICMS_OK;
}

icms_err bench_disk_new(const char *dir, uint32_t count, uint64_t bytes, struct err_why *why,
                        struct bench_disk **out_disk)
{
    struct bench_disk *disk = calloc(1, sizeof(*disk));
    icms_err err = ICMS_OK;

    check(count > 0 && count <= DISK_FILES_MAX);
    if (disk == NULL)
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    disk->bytes = bytes;
    while (err == ICMS_OK && disk->files < count) {
        char path[4096];

        (void)snprintf(path, sizeof(path), "%s/raw-%u", dir, disk->files);
        err = bench_file_make(path, bytes, why);
        if (err != ICMS_OK)
            break;
        disk->fd[disk->files] = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
        if (disk->fd[disk->files] < 0)
            err = err_set(why, ICMS_IO, "%s: cannot be opened", path);
        else
            disk->files++;
    }
    if (err == ICMS_OK)
        err = disk_ring(disk, why);
    if (err != ICMS_OK) {
        bench_disk_free(&disk);
        return err;
    }
    *out_disk = disk;
    return ICMS_OK;
}

void bench_disk_free(struct bench_disk **disk)
{
    struct bench_disk *mine = *disk;

    if (mine == NULL)
        return;
    if (mine->ring_made)
        io_uring_queue_exit(&mine->ring);
    for (uint32_t i = 0; i < mine->files; i++)
        (void)close(mine->fd[i]);
    loop_region_free(&mine->region);
    free(mine);
    *disk = NULL;
}
