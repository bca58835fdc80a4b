/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/bytes.h: little-endian numbers in byte formats, and arithmetic on sizes.
 *
 * Formats (names ending in _wf and _df) are made of these byte-array types, so they have no
 * padding and no alignment, and read the same on every machine.
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint8_t byte[2];
} le16;

typedef struct {
    uint8_t byte[4];
} le32;

typedef struct {
    uint8_t byte[8];
} le64;

static inline uint16_t le16_get(le16 v)
{
    return (uint16_t)(v.byte[0] | v.byte[1] << 8);
}

static inline uint32_t le32_get(le32 v)
{
    return (uint32_t)v.byte[0] | (uint32_t)v.byte[1] << 8 | (uint32_t)v.byte[2] << 16 |
           (uint32_t)v.byte[3] << 24;
}

static inline uint64_t le64_get(le64 v)
{
    uint64_t x = 0;

    for (int i = 7; i >= 0; i--)
        x = x << 8 | v.byte[i];
    return x;
}

static inline le16 le16_of(uint16_t x)
{
    return (le16){{(uint8_t)x, (uint8_t)(x >> 8)}};
}

static inline le32 le32_of(uint32_t x)
{
    return (le32){{(uint8_t)x, (uint8_t)(x >> 8), (uint8_t)(x >> 16), (uint8_t)(x >> 24)}};
}

static inline le64 le64_of(uint64_t x)
{
    le64 v;

    for (int i = 0; i < 8; i++)
        v.byte[i] = (uint8_t)(x >> (8 * i));
    return v;
}

/* Rounds up to a multiple of align, a power of two. */
static inline uint64_t bytes_align(uint64_t n, uint64_t align)
{
    return (n + align - 1) & ~(align - 1);
}

static inline bool bytes_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

static inline uint64_t u64_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t u64_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
