/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/crc.h: CRC32C (Castagnoli, reflected, as in iSCSI and NVMe/TCP). Over ISA-L.
 *
 * crc32c("123456789", 9) == 0xe3069283. Chains: crc32c_add(crc32c(a), b) == crc32c(a || b).
 * Pure; any thread.
 */
#ifndef BASE_CRC_H
#define BASE_CRC_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t bytes);
uint32_t crc32c_add(uint32_t crc, const void *data, size_t bytes);

/* Copies and returns crc32c_add(crc, from, bytes) in one pass over the cache: the checksum is taken
 * of what was copied, piece by piece, so a source that changes meanwhile cannot slip through. */
uint32_t crc32c_copy(uint32_t crc, void *to, const void *from, size_t bytes);

/* The same for a source that nobody changes meanwhile, and faster: the checksum is taken of the
 * source, which brings it into the cache for the copy. */
uint32_t crc32c_copy_steady(uint32_t crc, void *to, const void *from, size_t bytes);

#endif
