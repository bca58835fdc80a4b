/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/fake_cufile.c: libcufile.so.0 over the fake GPU of libcuda.so.1: reads with O_DIRECT into
 * memory that the CPU of who asks may not touch. Called by what is tested.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "device/fake_device.h"

struct fake_error {
    int error, cuda;
};

struct fake_file {
    int type;
    union {
        int fd;
        void *handle;
    };
    const void *ops;
};

FAKE_API struct fake_error cuFileDriverOpen(void);
FAKE_API struct fake_error cuFileHandleRegister(void **handle, struct fake_file *file);
FAKE_API void cuFileHandleDeregister(void *handle);
FAKE_API struct fake_error cuFileBufRegister(const void *device, size_t bytes, int flags);
FAKE_API struct fake_error cuFileBufDeregister(const void *device);
FAKE_API ssize_t cuFileRead(void *handle, void *device, size_t bytes, off_t offset,
                            off_t device_offset);

static const struct fake_device *gpu(void)
{
    const struct fake_device *found = fake_device_load("libcuda.so.1");

    if (found == NULL)
        abort();
    return found;
}

/* The library looks at the context of its caller. */
static void want_context(void)
{
    if (!gpu()->is_inside())
        abort();
}

struct fake_error cuFileDriverOpen(void)
{
    want_context();
    return (struct fake_error){.error = gpu()->get(FAKE_DEVICE_FILE_OPEN)};
}

struct fake_error cuFileHandleRegister(void **handle, struct fake_file *file)
{
    int *fd = malloc(sizeof(*fd));

    if (fd == NULL || file->type != 1 || (fcntl(file->fd, F_GETFL) & O_DIRECT) == 0)
        abort();
    if (gpu()->get(FAKE_DEVICE_FILE_TAKE) != 0) {
        free(fd);
        return (struct fake_error){.error = gpu()->get(FAKE_DEVICE_FILE_TAKE)};
    }
    *fd = file->fd;
    *handle = fd;
    gpu()->add(FAKE_DEVICE_FILES, 1);
    return (struct fake_error){0};
}

void cuFileHandleDeregister(void *handle)
{
    free(handle);
    gpu()->add(FAKE_DEVICE_FILES, -1);
}

struct fake_error cuFileBufRegister(const void *device, size_t bytes, int flags)
{
    int code = gpu()->get(FAKE_DEVICE_FILE_MEMORY);

    want_context();
    if (device == NULL || bytes == 0 || flags != 0)
        abort();
    gpu()->add(FAKE_DEVICE_FILE_MEMORIES, code == 0);
    return (struct fake_error){.error = code};
}

struct fake_error cuFileBufDeregister(const void *device)
{
    want_context();
    if (device == NULL)
        abort();
    gpu()->add(FAKE_DEVICE_FILE_MEMORIES, -1);
    return (struct fake_error){0};
}

ssize_t cuFileRead(void *handle, void *device, size_t bytes, off_t offset, off_t device_offset)
{
    int fd = *(int *)handle, wrong = gpu()->get(FAKE_DEVICE_FILE_READ);
    ssize_t length = -1;
    uint8_t *data = NULL;

    gpu()->add(FAKE_DEVICE_FILE_ASKED, 1);
    while (gpu()->get(FAKE_DEVICE_FILE_HANG) != 0)
        (void)usleep(200);
    (void)usleep((useconds_t)gpu()->get(FAKE_DEVICE_FILE_DELAY_US));
    if (wrong < 0)
        return wrong;
    if (posix_memalign((void **)&data, 4096, bytes) == 0)
        length = pread(fd, data, bytes, offset);
    if (length > 0 && gpu()->get(FAKE_DEVICE_FILE_FLIP) != 0)
        data[(size_t)gpu()->get(FAKE_DEVICE_FILE_FLIP) % (size_t)length] ^= 0x10;
    if (length > 0 && !gpu()->write_if((uint64_t)(uintptr_t)device + (uint64_t)device_offset, data,
                                       (size_t)length))
        length = -1;
    free(data);
    gpu()->add(FAKE_DEVICE_FILE_READS, length > 0);
    return wrong > 0 && length > wrong ? wrong : length; /* short */
}
