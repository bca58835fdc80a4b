/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crypt/volume_key.h: keys of encrypted volumes, and the key-encryption keys that wrap them: from
 * files, from a command, unwrapped.
 *
 * A key is 32 bytes, written as such or as 64 hex digits, blanks and line ends around them left
 * out. A wrapped key is 40 bytes in the same two forms: AES-256 key wrap (RFC 3394), whose
 * integrity check tells a wrong key-encryption key. Errors name files, commands and lengths, and
 * nothing of a key. Blocking: when a volume is opened. Any thread.
 */
#ifndef CRYPT_VOLUME_KEY_H
#define CRYPT_VOLUME_KEY_H

#include "base/err.h"
#include "crypt/seal.h"
#include "crypt/secret.h"

#define WRAPPED_KEY_BYTES (SEAL_KEY_BYTES + 8)

/* A key from a secret file. CONFIG and the errors of secret_read(). */
icms_err volume_key_read(const char *path, struct err_why *why,
                         struct secret **out_key) ICMS_MUST_CHECK;

/* A key that a program prints on its standard output. command: absolute path and arguments, with
 * blanks between them; no shell. It has timeout_ms, then it and what it started is killed. IO when
 * it fails or takes longer, with what it wrote to standard error, and CONFIG when it prints no key.
 */
icms_err volume_key_command(const char *command, uint32_t timeout_ms, struct err_why *why,
                            struct secret **out_key) ICMS_MUST_CHECK;

/* A wrapped key from a secret file. AUTH: the key-encryption key is not the one that wrapped it, or
 * the file is damaged. */
icms_err volume_key_unwrap(const char *path, struct secret *kek, struct err_why *why,
                           struct secret **out_key) ICMS_MUST_CHECK;

/* Where a key comes from: a file, or one that is wrapped under a key-encryption key, which comes
 * from a file or a command. "": not from there. */
struct volume_key_source {
    const char *file;
    const char *wrapped, *kek_file, *key_command;
};

/* A key, from wherever it is; a command has VOLUME_KEY_COMMAND_MS. The errors of the others. */
icms_err volume_key_load(const struct volume_key_source *source, struct err_why *why,
                         struct secret **out_key) ICMS_MUST_CHECK;
#define VOLUME_KEY_COMMAND_MS 10000

/* Whether two keys are the same. */
bool volume_key_same(struct secret *a, struct secret *b);

/* What such a file holds. False: libcrypto has no AES-256 key wrap. */
bool volume_key_wrap(struct secret *key, struct secret *kek,
                     uint8_t out_wrapped[WRAPPED_KEY_BYTES]) ICMS_MUST_CHECK;

#endif
