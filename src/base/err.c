/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error table as functions. Pure; any thread.
 */
#include "base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

struct err_row {
    const char *name; /* "REFUSED"                              */
    const char *text; /* a clause for people                    */
    int retry;        /* the same call may succeed later        */
    uint16_t nvme;    /* SCT << 8 | SC                          */
};

static const struct err_row err_rows[] = {
#define XX(name, number, text, retry, nvme) [number] = {#name, text, retry, nvme},
    ICMS_ERR_MAP(XX)
#undef XX
};

static const char *const miss_names[] = {
#define XX(name, number, text) [number] = text,
    ICMS_MISS_MAP(XX)
#undef XX
};

#define ERR_ROWS  (sizeof(err_rows) / sizeof(err_rows[0]))
#define MISS_ROWS (sizeof(miss_names) / sizeof(miss_names[0]))

const char *icms_err_text(icms_err err)
{
    return (size_t)err < ERR_ROWS ? err_rows[err].text : "unknown error";
}

const char *icms_err_name(icms_err err)
{
    return (size_t)err < ERR_ROWS ? err_rows[err].name : "UNKNOWN";
}

int icms_err_retry(icms_err err)
{
    return (size_t)err < ERR_ROWS ? err_rows[err].retry : 0;
}

const char *icms_miss_name(enum icms_miss reason)
{
    return (size_t)reason < MISS_ROWS ? miss_names[reason] : "unknown";
}

icms_err err_from_peer(uint32_t number)
{
    return number < ERR_ROWS && err_rows[number].name != NULL ? (icms_err)number : ICMS_PROTOCOL;
}

uint16_t err_to_nvme(icms_err err)
{
    return (size_t)err < ERR_ROWS ? err_rows[err].nvme : 0x006;
}

icms_err err_from_nvme(uint16_t status)
{
    switch (status) {
    case 0x000:
        return ICMS_OK;
    case 0x001:
        return ICMS_UNSUPPORTED;
    case 0x002:
    case 0x00f:
        return ICMS_INVALID;
    case 0x007:
        return ICMS_CANCELED;
    case 0x00b:
        return ICMS_NO_VOLUME;
    case 0x021:
        return ICMS_BUSY;
    case 0x081:
        return ICMS_NO_SPACE;
    case 0x085:
        return ICMS_VALUE_SIZE;
    case 0x086:
        return ICMS_KEY_SIZE;
    case 0x087:
        return ICMS_MISS;
    case 0x089:
        return ICMS_EXISTS;
    case 0x184:
    case 0x191:
        return ICMS_AUTH;
    case 0x281:
        return ICMS_CORRUPT;
    default:
        return ICMS_IO;
    }
}

icms_err err_from_errno(int error)
{
    switch (error) {
    case 0:
        return ICMS_OK;
    case EINVAL:
    case EFAULT:
    case EBADF:
        return ICMS_INVALID;
    case ENOMEM:
    case ENOBUFS:
        return ICMS_NO_MEMORY;
    case EMFILE:
    case ENFILE:
        return ICMS_LIMIT;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return ICMS_NO_SPACE;
    case ENOENT:
    case ENOTDIR:
    case EADDRNOTAVAIL:
        return ICMS_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return ICMS_PERMISSION;
    case EADDRINUSE:
        return ICMS_ADDRESS_IN_USE;
    case ECONNREFUSED:
        return ICMS_REFUSED;
    case ECONNRESET:
    case EPIPE:
    case ECONNABORTED:
    case ENOTCONN:
        return ICMS_RESET;
    case EHOSTUNREACH:
    case ENETUNREACH:
    case ENETDOWN:
    case EHOSTDOWN:
    case ETIMEDOUT:
        return ICMS_PEER_DOWN;
    case EAGAIN:
    case EBUSY:
        return ICMS_BUSY;
    case ECANCELED:
    case EINTR:
        return ICMS_CANCELED;
    case ENOSYS:
    case EOPNOTSUPP:
    case EAFNOSUPPORT:
        return ICMS_UNSUPPORTED;
    default:
        return ICMS_IO;
    }
}

icms_err err_set(struct err_why *why, icms_err err, const char *format, ...)
{
    va_list args;

    if (why != NULL) {
        va_start(args, format);
        (void)vsnprintf(why->text, sizeof(why->text), format, args);
        va_end(args);
    }
    return err;
}
