/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/secret.h: secrets in memory, and the files they come from.
 *
 * A secret lies in pages of its own: never in a core dump (MADV_DONTDUMP), zeros in a child of
 * fork() (MADV_WIPEONFORK), never swapped where the limit of locked memory allows that, and
 * overwritten before they are given back. Errors name the file, never what is in it. Blocking: at
 * start and when files are read again. Any thread; a secret that is not written any more may be
 * read by several, one that may be replaced by secret_copy() alone.
 */
#ifndef CRYPT_SECRET_H
#define CRYPT_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct secret;

/* The longest line of text that a secret file holds. */
#define SECRET_LINE_BYTES_MAX 1024

/* Zeroed memory of that many bytes, aligned for any struct, and one more that stays 0. NO_MEMORY.
 */
icms_err secret_new(size_t bytes, struct err_why *why, struct secret **out_secret) ICMS_MUST_CHECK;

/* Overwrites and frees it; *secret becomes NULL, and may be NULL. */
void secret_free(struct secret **secret);

uint8_t *secret_bytes(struct secret *secret);
size_t secret_length(const struct secret *secret);

/* Replaces the bytes of a secret by those of another one of the same length, which is freed;
 * *from becomes NULL. Who uses a secret that may be replaced meanwhile takes its bytes with
 * secret_copy(). False: they were the same. One thread replaces. */
bool secret_replace(struct secret *secret, struct secret **from);

/* All bytes of a secret, as they are now; the caller wipes them. bytes: its length. */
void secret_copy(struct secret *secret, void *out, size_t bytes);

/* Reads a file of 1 to bytes_max bytes. It must be a regular file, not a symbolic link, of this
 * process's user or root, with mode 0600 or 0400, and not in a folder where every user may replace
 * it. NOT_FOUND, PERMISSION, IO, NO_MEMORY or CONFIG with a sentence that says what to do. */
icms_err secret_read(const char *path, size_t bytes_max, struct err_why *why,
                     struct secret **out_secret) ICMS_MUST_CHECK;

/* The same for a file that holds one line of text, of SECRET_LINE_BYTES_MAX at most: blanks and
 * line ends around it are left out. CONFIG: nothing but those, a second line, or bytes that are not
 * printable ASCII. The text ends with a zero byte that secret_length does not count. */
icms_err secret_read_line(const char *path, struct err_why *why,
                          struct secret **out_secret) ICMS_MUST_CHECK;

/* Writes a new file with mode 0600, durably. EXISTS: there is a file of that name, which stays as
 * it is. After any other failure no file is left. */
icms_err secret_write(const char *path, const void *data, size_t bytes,
                      struct err_why *why) ICMS_MUST_CHECK;

/* Erases a secret file of up to bytes_max bytes: gives it a name that ends in SECRET_ERASED, then
 * overwrites it with random bytes, both durably. So whatever a power loss leaves is known by its
 * name, and the call can be repeated: a file that has that name already is overwritten again. The
 * file is judged as by secret_read(), whose errors it has; other names of the file (hard links)
 * find the random bytes. What a file system or a drive keeps of former contents is out of reach. */
icms_err secret_erase(const char *path, size_t bytes_max, struct err_why *why) ICMS_MUST_CHECK;

/* What the name of a file that is being erased ends in. */
#define SECRET_ERASED ".erased"

/* Whether a file of that name was being erased: there is none, but one with SECRET_ERASED. */
bool secret_is_erased(const char *path);

/* Removes what secret_erase() left, durably. NOT_FOUND: nothing. */
icms_err secret_erased_remove(const char *path, struct err_why *why) ICMS_MUST_CHECK;

/* Whether it is these bytes; the time that takes tells their number at most. */
bool secret_equal(const struct secret *secret, const void *bytes, size_t count);

/* Whether all bytes are zero: a key that was never made. The time tells their number alone. What to
 * say of it. */
bool secret_is_zero(const void *bytes, size_t count);
#define SECRET_ZERO                                                                                \
    "all bytes of the key are zero, which anybody can guess: make a new one with `icms key gen`"

/* Unpredictable bytes of the machine, for new keys. */
void secret_random(void *out, size_t bytes);

/* Overwrites memory, also where nobody reads it afterwards. */
void secret_wipe(void *memory, size_t bytes);

#endif
