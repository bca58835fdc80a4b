/* SPDX-License-Identifier: Apache-2.0 */
/*
 * icms/err.h: every error that icms reports, in one table.
 *
 * The table makes the enum, the strings, the manual page and the mapping to NVMe.
 * A miss is not an error: a block that is not there has status ICMS_MISS and a reason from
 * ICMS_MISS_MAP. Numbers are part of the ABI: append, never renumber.
 */
#ifndef ICMS_ERR_H
#define ICMS_ERR_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* clang-format off */
/*    name          number  text                                              retry  NVMe */
#define ICMS_ERR_MAP(XX)                                                                           \
    XX(OK,             0,   "done",                                             0,   0x000)        \
    XX(MISS,           1,   "the block is not available",                       0,   0x087)        \
    XX(INVALID,        2,   "invalid argument",                                 0,   0x002)        \
    XX(KEY_SIZE,       3,   "key length is not 1 to 16 bytes",                  0,   0x086)        \
    XX(VALUE_SIZE,     4,   "value is empty or larger than the volume allows",  0,   0x085)        \
    XX(EXISTS,         5,   "the key exists already",                           0,   0x089)        \
    XX(NO_VOLUME,      6,   "no such volume",                                   0,   0x00b)        \
    XX(QUOTA,          7,   "value is larger than the volume's quota",          0,   0x081)        \
    XX(NO_SPACE,       8,   "no space can be made",                             1,   0x081)        \
    XX(DEADLINE,       9,   "the deadline passed",                              1,   0x007)        \
    XX(CANCELED,      10,   "canceled",                                         0,   0x007)        \
    XX(BUSY,          11,   "the other side is busy",                           1,   0x021)        \
    XX(LIMIT,         12,   "a configured limit is used up",                    1,   0x021)        \
    XX(NO_MEMORY,     13,   "out of memory",                                    1,   0x006)        \
    XX(IO,            14,   "the device reported an error",                     0,   0x006)        \
    XX(CORRUPT,       15,   "stored bytes do not match their checksum",         0,   0x281)        \
    XX(DRIVE_DOWN,    16,   "the drive is out of service",                      0,   0x006)        \
    XX(PEER_DOWN,     17,   "unavailable (no response)",                        1,   0x006)        \
    XX(REFUSED,       18,   "connection refused",                               1,   0x006)        \
    XX(RESET,         19,   "connection lost",                                  1,   0x006)        \
    XX(PROTOCOL,      20,   "the other side broke the protocol",                0,   0x006)        \
    XX(AUTH,          21,   "not authorized",                                   0,   0x191)        \
    XX(NOT_FOUND,     22,   "no such file or address",                          0,   0x006)        \
    XX(PERMISSION,    23,   "permission denied",                                0,   0x006)        \
    XX(FOREIGN,       24,   "holds data of another program or format",          0,   0x006)        \
    XX(LOCKED,        25,   "in use by another process",                        1,   0x006)        \
    XX(VERSION,       26,   "format or protocol version is not supported",      0,   0x006)        \
    XX(CONFIG,        27,   "configuration is wrong",                           0,   0x002)        \
    XX(UNSUPPORTED,   28,   "not supported here",                               0,   0x001)        \
    XX(FORKED,        29,   "handle was opened by another process",             0,   0x006)        \
    XX(CLOSED,        30,   "handle is closed",                                 0,   0x008)        \
    XX(ADDRESS_IN_USE,31,   "address is in use",                                1,   0x006)        \
    XX(NO_KEY,        32,   "the volume is encrypted, and there is no key",     0,   0x006)        \
    XX(NOT_REGISTERED,33,   "this device memory is not registered",             0,   0x006)        \
    XX(DEVICE,        34,   "the device's driver reported an error",            0,   0x006)

/* Why a block is not available. 0 is "no miss".
 *    name          number  text */
#define ICMS_MISS_MAP(XX)                                                                          \
    XX(NONE,           0,   "none")                                                                \
    XX(ABSENT,         1,   "absent")                                                              \
    XX(EVICTED,        2,   "evicted")                                                             \
    XX(QUOTA,          3,   "quota")                                                               \
    XX(DEADLINE,       4,   "deadline")                                                            \
    XX(DRIVE_DOWN,     5,   "drive_down")                                                          \
    XX(ENCLOSURE_DOWN, 6,   "enclosure_down")                                                      \
    XX(CHECKSUM,       7,   "checksum")                                                            \
    XX(SHED,           8,   "shed")                                                                \
    XX(NO_VOLUME,      9,   "no_volume")                                                           \
    XX(COLLISION,     10,   "collision")                                                           \
    XX(NO_KEY,        11,   "no_key")                                                              \
    XX(VERSION,       12,   "version")
/* clang-format on */

typedef enum icms_err {
#define XX(name, number, text, retry, nvme) ICMS_##name = number,
    ICMS_ERR_MAP(XX)
#undef XX
} icms_err;

enum icms_miss {
#define XX(name, number, text) ICMS_MISS_##name = number,
    ICMS_MISS_MAP(XX)
#undef XX
        ICMS_MISS_COUNT, /* not a reason: how many there are */
};

/* The result must be looked at. */
#define ICMS_MUST_CHECK __attribute__((warn_unused_result))

/* What the shared library exports. */
#define ICMS_API __attribute__((visibility("default")))

/* Returns the text of an error ("connection refused"); never NULL, also for unknown numbers. */
ICMS_API const char *icms_err_text(icms_err err);

/* Returns the name of an error ("REFUSED"); never NULL. */
ICMS_API const char *icms_err_name(icms_err err);

/* Returns non-zero when the same call may succeed later. */
ICMS_API int icms_err_retry(icms_err err);

/* Returns the name of a miss reason ("enclosure_down"), as in metrics; never NULL. */
ICMS_API const char *icms_miss_name(enum icms_miss reason);

#ifdef __cplusplus
}
#endif

#endif
