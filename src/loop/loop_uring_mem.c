/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes share (sealed memfds), and its registration with rings.
 *
 * Regions are made and registered on the set-up thread; uring_buffer_slot runs on the loop's
 * thread. Invariant: a loop's table of registered memory is ordered by address, does not overlap
 * and does not change once the loop runs.
 *
 * What a drive reads into lies in large pages where the kernel has some: a value in pages of 4 KiB
 * is hundreds of pieces to a drive, and to a virtual one each piece costs time; in a large page it
 * is one. Memory of a memfd gets none by itself (shmem_enabled is "never" by default), so they are
 * asked for, before anything else touches it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "loop/loop_uring.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define LARGE_PAGE_BYTES ((uint64_t)2 << 20)

/* ---- regions -------------------------------------------------------------------------------- */

/* Maps the region where large pages can lie: at a multiple of their size. */
static icms_err region_map(struct loop_region *region)
{
    uint64_t room_bytes = region->bytes + LARGE_PAGE_BYTES, before;
    uint8_t *room, *base;
    icms_err err = ICMS_OK;

    room = mmap(NULL, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return err_from_errno(errno);
    before = bytes_align((uintptr_t)room, LARGE_PAGE_BYTES) - (uintptr_t)room;
    base = room + before;
    if (mmap(base, region->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, region->fd, 0) ==
        MAP_FAILED)
        err = err_from_errno(errno);
    if (err != ICMS_OK) {
        (void)munmap(room, room_bytes);
        return err;
    }
    if (before > 0)
        (void)munmap(room, before);
    if (before < LARGE_PAGE_BYTES)
        (void)munmap(base + region->bytes, LARGE_PAGE_BYTES - before);
    (void)madvise(base, region->bytes, MADV_DONTFORK);
    region->base = base;
    return ICMS_OK;
}

/* Puts its memory into large pages, as many as the kernel has. What is in one already is left
 * alone; a kernel before 6.1 leaves all as it is, one without memory in whole large pages those
 * that it has none for. */
static void region_enlarge(struct loop_region *region)
{
    for (uint64_t at = 0; at + LARGE_PAGE_BYTES <= region->bytes; at += LARGE_PAGE_BYTES) {
        /* Only what has a page can be enlarged. */
        if (madvise(region->base + at, 1, MADV_POPULATE_WRITE) != 0)
            return;
        if (madvise(region->base + at, LARGE_PAGE_BYTES, MADV_COLLAPSE) != 0 && errno == EINVAL)
            return;
    }
}

icms_err uring_region_touch(struct loop_region *region)
{
    int result;

    do {
        result = madvise(region->base, region->bytes, MADV_POPULATE_WRITE);
    } while (result != 0 && errno == EINTR);
    return result != 0 ? ICMS_NO_MEMORY : ICMS_OK;
}

static icms_err region_fill(struct loop_region *region, const char *name, bool prefault)
{
    icms_err err;

    region->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (region->fd < 0)
        return err_from_errno(errno);
    (void)loop_fd_own(region->fd);
    /* Who gets it passed needs no permission to map it. Who has one may leave attributes on it,
     * kernel memory without a limit that stays as long as the region. */
    if (fchmod(region->fd, S_IRUSR | S_IWUSR) != 0 ||
        ftruncate(region->fd, (off_t)region->bytes) != 0)
        return err_from_errno(errno);
    if (fcntl(region->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
        return err_from_errno(errno);
    err = region_map(region);
    if (err != ICMS_OK || !prefault)
        return err;
    region_enlarge(region);
    return uring_region_touch(region);
}

icms_err uring_region_new(struct loop_env *env, const char *name, uint64_t bytes, bool prefault,
                          struct err_why *why, struct loop_region **out_region)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct loop_region *region = calloc(1, sizeof(*region));
    icms_err err;

    if (region == NULL)
        return err_set(why, ICMS_NO_MEMORY, "memory '%s': out of memory", name);
    region->env = env;
    region->bytes = bytes_align(bytes, page);
    region->fd = -1;
    err = region_fill(region, name, prefault);
    if (err != ICMS_OK) {
        uring_region_free(region);
        if (err == ICMS_LIMIT)
            return err_set(why, err,
                           "cannot open shared memory for '%s': the process has no file descriptor "
                           "left; raise their number with 'ulimit -n' or LimitNOFILE= in the unit",
                           name);
        return err_set(why, err,
                       "cannot take %llu MiB of shared memory for '%s' (%s): make it smaller, or "
                       "allow the process more memory",
                       (unsigned long long)(bytes >> 20), name, icms_err_text(err));
    }
    *out_region = region;
    return ICMS_OK;
}

icms_err uring_region_seal(struct loop_region *region, struct err_why *why)
{
    if (fcntl(region->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0)
        return err_set(why, err_from_errno(errno), "cannot seal shared memory (%s)",
                       strerror(errno));
    return ICMS_OK;
}

void uring_region_free(struct loop_region *region)
{
    if (region->base != NULL)
        (void)munmap(region->base, region->bytes);
    if (region->fd >= 0)
        loop_fd_close(region->fd);
    free(region);
}

/* ---- registered buffers --------------------------------------------------------------------- */

int uring_buffer_slot(const struct uring_loop *loop, const void *memory, uint64_t bytes)
{
    const uint8_t *first = memory;
    uint32_t low = 0;
    uint32_t high = loop->buffer_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct uring_buffer *buffer = &loop->buffers[middle];

        if (first < buffer->base)
            high = middle;
        else if (first >= buffer->base + buffer->bytes)
            low = middle + 1;
        else
            return first + bytes <= buffer->base + buffer->bytes ? buffer->slot : -1;
    }
    return -1;
}

static void buffer_insert(struct uring_loop *loop, const struct uring_buffer *buffer)
{
    uint32_t i = loop->buffer_count++;

    for (; i > 0 && loop->buffers[i - 1].base > buffer->base; i--)
        loop->buffers[i] = loop->buffers[i - 1];
    loop->buffers[i] = *buffer;
}

static icms_err buffer_register(struct uring_loop *loop, uint8_t *base, uint64_t bytes)
{
    struct uring_buffer buffer = {base, bytes, (int)loop->buffer_count};
    struct iovec vector = {base, bytes};
    __u64 tag = 0;
    int result;

    if (loop->buffer_count == URING_BUFFERS_MAX)
        return ICMS_LIMIT;
    result =
        io_uring_register_buffers_update_tag(&loop->ring, (unsigned)buffer.slot, &vector, &tag, 1);
    if (result < 0)
        return result == -ENOMEM ? ICMS_LIMIT : err_from_errno(-result);
    buffer_insert(loop, &buffer);
    return ICMS_OK;
}

icms_err uring_region_register(struct loop *loop, struct loop_region *region, struct err_why *why)
{
    struct uring_loop *uring = uring_of(loop);
    struct rlimit limit = {0, 0};
    icms_err err = ICMS_OK;

    if (uring->buffers == NULL) {
        uring->buffers = calloc(URING_BUFFERS_MAX, sizeof(uring->buffers[0]));
        if (uring->buffers == NULL)
            err = ICMS_NO_MEMORY;
        else if (io_uring_register_buffers_sparse(&uring->ring, URING_BUFFERS_MAX) < 0)
            err = ICMS_UNSUPPORTED;
        if (err != ICMS_OK) {
            free(uring->buffers);
            uring->buffers = NULL;
        }
    }
    if (err == ICMS_OK) /* pinned pages stay as they are */
        region_enlarge(region);
    for (uint64_t at = 0; err == ICMS_OK && at < region->bytes; at += URING_BUFFER_BYTES)
        err = buffer_register(uring, region->base + at,
                              u64_min(region->bytes - at, URING_BUFFER_BYTES));
    if (err == ICMS_OK)
        return ICMS_OK;
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    return err_set(why, err,
                   "cannot lock %llu MiB of memory for disk I/O (%s; the limit is %llu KiB): raise "
                   "it with 'ulimit -l' or LimitMEMLOCK= in the service; without it I/O is slower",
                   (unsigned long long)(region->bytes >> 20), icms_err_text(err),
                   (unsigned long long)(limit.rlim_cur >> 10));
}
