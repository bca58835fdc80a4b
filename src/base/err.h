/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/err.h: inside helpers of the error table.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stddef.h>
#include <stdint.h>

#include "icms/err.h"

/* Room for one sentence that tells a user what was tried, what happened and what to do. */
#define ERR_WHY_BYTES_MAX 512

/* The sentence that goes with an icms_err of a start-up call. Caller's memory; "" when unset. */
struct err_why {
    char text[ERR_WHY_BYTES_MAX];
};

/* Maps an errno of a system call; call it on the line of that call, errno travels no further. */
icms_err err_from_errno(int error);

/* The error whose number another process gave; PROTOCOL when no error has it. */
icms_err err_from_peer(uint32_t number);

/* Writes the sentence (printf style, cut at the room there is) and returns err. why may be NULL. */
icms_err err_set(struct err_why *why, icms_err err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* NVMe status field (SCT << 8 | SC) of an error, as the target answers it. */
uint16_t err_to_nvme(icms_err err);

/* The error for an NVMe status field (SCT << 8 | SC); ICMS_IO where the table has none. */
icms_err err_from_nvme(uint16_t status);

#endif
