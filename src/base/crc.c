/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C over ISA-L, which picks the widest instructions of the processor. Pure; any thread.
 */
#include "base/crc.h"

#include <isa-l/crc.h>
#include <string.h>

/* ISA-L takes an int length and const-less data. */
#define CRC_PIECE_BYTES ((size_t)1 << 30)

/* Fits in the first-level cache together with its copy: 8 KiB of each in 32 KiB. */
#define CRC_COPY_PIECE_BYTES ((size_t)8 << 10)

uint32_t crc32c_add(uint32_t crc, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint32_t state = ~crc;

    while (bytes > 0) {
        size_t n = bytes < CRC_PIECE_BYTES ? bytes : CRC_PIECE_BYTES;

        state = crc32_iscsi((unsigned char *)(uintptr_t)at, (int)n, state);
        at += n;
        bytes -= n;
    }
    return ~state;
}

uint32_t crc32c(const void *data, size_t bytes)
{
    return crc32c_add(0, data, bytes);
}

uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;

    while (bytes > 0) {
        size_t n = bytes < CRC_COPY_PIECE_BYTES ? bytes : CRC_COPY_PIECE_BYTES;

        memcpy(out, in, n);
        crc = crc32c_add(crc, out, n);
        out += n;
        in += n;
        bytes -= n;
    }
    return crc;
}

uint32_t crc32c_copy_steady(uint32_t crc, void *to, const void *from, size_t bytes)
{
    uint8_t *out = to;
    const uint8_t *in = from;

    while (bytes > 0) {
        size_t n = bytes < CRC_COPY_PIECE_BYTES ? bytes : CRC_COPY_PIECE_BYTES;

        crc = crc32c_add(crc, in, n);
        memcpy(out, in, n);
        out += n;
        in += n;
        bytes -= n;
    }
    return crc;
}
