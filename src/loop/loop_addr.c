/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text of network addresses. Pure; any thread.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loop/loop.h"

/* "1".."65535" or "0" without sign, space or leading text; false when it is anything else. */
static bool addr_port_parse(const char *text, uint16_t *out_port)
{
    unsigned long port = 0;

    if (text[0] == '\0' || strlen(text) > 5)
        return false;
    for (const char *c = text; *c != '\0'; c++) {
        if (*c < '0' || *c > '9')
            return false;
        port = port * 10 + (unsigned long)(*c - '0');
    }
    if (port > 65535)
        return false;
    *out_port = (uint16_t)port;
    return true;
}

/* Each address has one text, so that texts can be compared: the shortest one of IPv6, and that of
 * IPv4 for one that is mapped into IPv6. */
static bool addr_host_plain(int family, char host[static LOOP_HOST_BYTES])
{
    struct in6_addr six;
    struct in_addr four;

    if (family == AF_INET)
        return inet_pton(AF_INET, host, &four) == 1;
    if (inet_pton(AF_INET6, host, &six) != 1)
        return false;
    return inet_ntop(IN6_IS_ADDR_V4MAPPED(&six) ? AF_INET : AF_INET6,
                     IN6_IS_ADDR_V4MAPPED(&six) ? (const void *)(six.s6_addr + 12) : &six, host,
                     LOOP_HOST_BYTES) != NULL;
}

icms_err loop_addr_parse(const char *text, struct err_why *why, struct loop_addr *out_addr)
{
    struct loop_addr addr = {{0}, 0};
    bool six = text[0] == '[';
    const char *end = six ? strstr(text, "]:") : strrchr(text, ':');
    const char *host = six ? text + 1 : text;
    size_t length = end != NULL ? (size_t)(end - host) : 0;

    if (end != NULL && length > 0 && length < sizeof(addr.host)) {
        memcpy(addr.host, host, length);
        if (addr_port_parse(end + (six ? 2 : 1), &addr.port) &&
            addr_host_plain(six ? AF_INET6 : AF_INET, addr.host)) {
            *out_addr = addr;
            return ICMS_OK;
        }
    }
    return err_set(why, ICMS_CONFIG,
                   "'%.64s' is not an address: write ADDRESS:PORT with a numeric address, like "
                   "127.0.0.1:4420 or [::1]:4420",
                   text);
}

char *loop_addr_format(const struct loop_addr *addr, char *out, size_t bytes)
{
    bool six = strchr(addr->host, ':') != NULL;

    (void)snprintf(out, bytes, six ? "[%s]:%u" : "%s:%u", addr->host, addr->port);
    return out;
}

bool loop_addr_equal(const struct loop_addr *a, const struct loop_addr *b)
{
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}
