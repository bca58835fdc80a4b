/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/test_bytes.h: what the tests of the codecs share: hex text, seeded random bytes.
 */
#ifndef WIRE_TEST_BYTES_H
#define WIRE_TEST_BYTES_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "base/hash.h"

/* Hex digits and spaces to bytes; returns how many. */
static inline size_t test_hex(const char *text, uint8_t *out, size_t room)
{
    size_t n = 0;

    for (unsigned value; *text != '\0';) {
        if (*text == ' ') {
            text++;
            continue;
        }
        assert_int_equal(sscanf(text, "%2x", &value), 1);
        assert_true(n < room);
        out[n++] = (uint8_t)value;
        text += 2;
    }
    return n;
}

/* The bytes are these, hex. */
static inline void test_bytes_are(const void *bytes, const char *text)
{
    uint8_t want[4096];
    size_t n = test_hex(text, want, sizeof(want));

    assert_memory_equal(bytes, want, n);
}

static inline uint64_t test_random(uint64_t *seed)
{
    *seed += 0x9e3779b97f4a7c15u;
    return hash64_mix(*seed);
}

static inline void test_random_bytes(uint64_t *seed, void *out, size_t bytes)
{
    uint8_t *at = out;

    for (size_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)test_random(seed);
}

/* The same bytes in a block of exactly that size, so a sanitizer sees each step past its end. */
static inline void *test_exact(const void *bytes, size_t count)
{
    void *copy = malloc(count == 0 ? 1 : count);

    assert_non_null(copy);
    memcpy(copy, bytes, count);
    return copy;
}

#endif
