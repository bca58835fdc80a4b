/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/socket.h: a unix socket that listens at a path of this machine, where others may have been
 * before: in a directory that somebody else made, over a file, or a socket of a process that lives.
 */
#ifndef AGENT_SOCKET_H
#define AGENT_SOCKET_H

#include <stdint.h>

#include "base/err.h"

/* Listens at path, with these permission bits from the first moment; makes the directory that the
 * file is in, and takes the place of a socket that nobody listens on. type: SOCK_SEQPACKET or
 * SOCK_STREAM; the descriptor does not block, and is the caller's, as the file is. Errors with a
 * sentence: ADDRESS_IN_USE, EXISTS (it is no socket), PERMISSION, CONFIG (the path is too long). */
icms_err agent_socket_listen(const char *path, int type, uint32_t mode, struct err_why *why,
                             int *out_sock) ICMS_MUST_CHECK;

#endif
