/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/file.h: what is wrong with a file that was opened. No state; any thread.
 */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <sys/stat.h>

#include "base/err.h"

/* PERMISSION, with a sentence, where every user of the machine may write the file. what: what
 * stands before its path, as "the audit log ", or "". */
icms_err file_mode_check(const struct stat *status, const char *what, const char *path,
                         struct err_why *why) ICMS_MUST_CHECK;

#endif
