/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/reader.h: a way to read a file that is not the loop's: into memory of a device, from where
 * the bytes are copied to the host as well, to be verified there.
 *
 *   read -> done(came) -> end: 0, or where the verified value begins
 *        \-> late: it goes on for nobody, done is not called
 *
 * Who owns the file asks (src/agent/direct.c), src/device has the way (cufile.c), and src/client
 * joins them: none of them knows another.
 */
#ifndef BASE_READER_H
#define BASE_READER_H

#include <stdbool.h>
#include <stdint.h>

/* One read. */
struct reader_ask {
    int fd; /* of the file, open with O_DIRECT. Used before read returns, not after it          */
    uint64_t offset; /* whole pages, as bytes                                              */
    void *memory;    /* where the bytes are copied to on the host, before done(true)       */
    uint32_t bytes;
    void (*done)(void *arg, bool came); /* once, on any thread; false: memory was not written to */
    void *arg;
};

#define READER_WRONG UINT64_MAX

/* Any thread; nothing here waits. */
struct block_reader {
    /* Whether a read for `to` would be taken now, or would decide whether others are. */
    bool (*would_read)(const void *to);

    /* Reads what lies at `to` in the end: NULL, there is no other way to read it now. Else end or
     * late has to follow. */
    void *(*read)(const void *to, const struct reader_ask *ask);

    /* Who asked does not wait any more. True: done is not called, and memory not written to; the
     * reading is not the caller's any more. False: done was called, or is about to be. */
    bool (*late)(void *reading);

    /* After done. at: of the bytes that were read, where the value begins that `to` has, too; 0:
     * it is none that may be used; READER_WRONG: and the file has other bytes. */
    void (*end)(void *reading, uint64_t at);
};

#endif
