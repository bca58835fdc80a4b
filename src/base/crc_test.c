/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C and copies with it. Built twice: with the widest way of this processor, and without it
 * (CRC_NARROW), so that the way of other processors is tested, too.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/crc.h"
#include "base/hash.h"

static uint8_t from[100003 + 64], to[100003 + 64];

static int setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)hash64_mix(i);
    return 0;
}

static void crc_has_the_known_value_and_chains(void **state)
{
    char copy[64];
    uint32_t whole = crc32c("123456789", 9);

    assert_int_equal(whole, 0xe3069283);
    assert_int_equal(crc32c_add(crc32c("1234", 4), "56789", 5), whole);
    assert_int_equal(crc32c_copy(0, copy, "123456789", 9), whole);
    assert_memory_equal(copy, "123456789", 9);
    assert_int_equal(crc32c("", 0), 0);
}

static void crc_of_a_long_value_is_that_of_its_bytes(void **state)
{
    uint32_t crc = 0;

    for (size_t i = 0; i < 100003; i++)
        crc = crc32c_add(crc, from + i, 1);
    assert_int_equal(crc32c(from, 100003), crc);
}

static void copies(size_t bytes, size_t to_at, size_t from_at, uint32_t before)
{
    uint32_t wanted = crc32c_add(before, from + from_at, bytes);

    for (int steady = 0; steady < 2; steady++) {
        uint32_t crc;

        memset(to, 0x5a, bytes + 64);
        crc = steady ? crc32c_copy_steady(before, to + to_at, from + from_at, bytes)
                     : crc32c_copy(before, to + to_at, from + from_at, bytes);
        assert_int_equal(crc, wanted);
        assert_memory_equal(to + to_at, from + from_at, bytes);
        for (size_t i = 0; i < to_at; i++)
            assert_int_equal(to[i], 0x5a);
        for (size_t i = to_at + bytes; i < bytes + 64; i++)
            assert_int_equal(to[i], 0x5a);
    }
}

/* Whatever is moved at a time: 64 bytes, 256, or pieces of 8 KiB. */
static void a_copy_of_any_length_is_exact(void **state)
{
    for (size_t bytes = 0; bytes < 1100; bytes++)
        copies(bytes, bytes % 7, bytes % 11, (uint32_t)bytes * 0x9e3779b9u);
    for (size_t bytes = 8190; bytes < 8452; bytes++)
        copies(bytes, 0, 1, 7);
    copies(100003, 0, 0, 7);
    copies(100003, 63, 1, 0xffffffff);
}

/* Damage anywhere is seen: no part of the sum is left out. */
static void a_flipped_bit_changes_the_sum_of_a_copy(void **state)
{
    uint32_t whole = crc32c_copy(0, to, from, 1024 + 17);

    for (size_t bit = 0; bit < 8 * (1024 + 17); bit++) {
        from[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_not_equal(crc32c_copy(0, to, from, 1024 + 17), whole);
        from[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_has_the_known_value_and_chains),
        cmocka_unit_test(crc_of_a_long_value_is_that_of_its_bytes),
        cmocka_unit_test(a_copy_of_any_length_is_exact),
        cmocka_unit_test(a_flipped_bit_changes_the_sum_of_a_copy),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
