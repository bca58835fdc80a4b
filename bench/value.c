/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench/value.c: what is stored: values that no layer can compress, cache by content or mix up.
 *
 * A value is noise between two stamps. The noise is the same in every value, so making one costs
 * nothing; whoever reads checks the stamps, and the checksum that the tested side keeps has the
 * rest. Pure.
 */
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "bench/bench_int.h"

/* In front and at the end of a value. */
struct stamp {
    uint64_t magic; /* STAMP_MAGIC                        */
    uint64_t n;     /* which value                        */
    uint64_t age;   /* which of those with this number    */
    uint64_t size;  /* bytes                              */
};

_Static_assert(2 * sizeof(struct stamp) == BENCH_STAMP_BYTES, "one in front, one at the end");

#define STAMP_MAGIC 0x6d74732d686e6362 /* "bcnh-stm" */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9;
    x ^= x >> 27;
    x *= 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

void bench_value_noise(uint8_t *memory, uint64_t size)
{
    uint64_t word, i;

    for (i = 0; i + sizeof(word) <= size; i += sizeof(word)) {
        word = mix(i + 1);
        memcpy(memory + i, &word, sizeof(word));
    }
    memset(memory + i, 0x5a, size - i);
}

void bench_value_stamp(uint8_t *memory, uint64_t size, uint64_t n, uint64_t age)
{
    struct stamp stamp = {.magic = STAMP_MAGIC, .n = n, .age = age, .size = size};

    check(size >= 2 * sizeof(stamp));
    memcpy(memory, &stamp, sizeof(stamp));
    memcpy(memory + size - sizeof(stamp), &stamp, sizeof(stamp));
}

bool bench_value_is(const uint8_t *memory, uint64_t size, uint64_t n, uint64_t age)
{
    struct stamp stamp = {.magic = STAMP_MAGIC, .n = n, .age = age, .size = size};

    return memcmp(memory, &stamp, sizeof(stamp)) == 0 &&
           memcmp(memory + size - sizeof(stamp), &stamp, sizeof(stamp)) == 0;
}

/* Steps by a number that has no divisor in common with count. */
uint64_t bench_walk(uint64_t n, uint64_t count)
{
    uint64_t step = count / 2 + count / 8 + 1;

    check(count > 0 && count <= UINT32_MAX);
    for (;; step++) {
        uint64_t a = step, b = count;

        while (b != 0) {
            uint64_t rest = a % b;

            a = b;
            b = rest;
        }
        if (a == 1)
            return n % count * step % count;
    }
}

struct key bench_key(uint64_t n, uint64_t age)
{
    uint64_t half[2] = {mix(n ^ (age << 40)), mix(~n)};
    struct key key = {.length = sizeof(half)};

    memcpy(key.bytes, half, sizeof(half));
    return key;
}
