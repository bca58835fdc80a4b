/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file.h"

icms_err file_mode_check(const struct stat *status, const char *what, const char *path,
                         struct err_why *why)
{
    if ((status->st_mode & S_IWOTH) == 0)
        return ICMS_OK;
    return err_set(why, ICMS_PERMISSION,
                   "cannot use %s%.300s: its mode is 0%03o, so every user of this machine can "
                   "change it; look whether it is as it was, and `chmod o-w` it",
                   what, path, (unsigned)status->st_mode & 07777);
}
