/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/resolve.c: see resolve.h.
 *
 * A question that cannot be cancelled any more is written to by the C library when its resolver
 * gives up: until then it lies in a list of left questions, which is looked through each time that
 * one is freed. Nothing of ours runs on the C library's threads.
 */
#include "inprocess/resolve.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/list.h"

struct resolve {
    struct gaicb ask;     /* the C library's until it is answered */
    struct addrinfo what; /* of it                                */
    char host[256], port[8];
    struct list link; /* in resolve_left */
};

/* Questions that nobody waits for any more; lock. */
static pthread_mutex_t resolve_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list resolve_left = {&resolve_left, &resolve_left};

icms_err resolve_start(const char *address, struct err_why *why, struct resolve **out_resolve)
{
    const char *colon = strrchr(address, ':');
    struct resolve *resolve = calloc(1, sizeof(*resolve));
    struct gaicb *asks[1];
    int error;

    check(colon != NULL);
    if (resolve == NULL)
        return err_set(why, ICMS_NO_MEMORY, "cannot resolve %s: out of memory", address);
    (void)snprintf(resolve->host, sizeof(resolve->host), "%.*s", (int)(colon - address), address);
    (void)snprintf(resolve->port, sizeof(resolve->port), "%s", colon + 1);
    resolve->what =
        (struct addrinfo){.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG};
    resolve->ask.ar_name = resolve->host;
    resolve->ask.ar_service = resolve->port;
    resolve->ask.ar_request = &resolve->what;
    list_init(&resolve->link);
    asks[0] = &resolve->ask;
    error = getaddrinfo_a(GAI_NOWAIT, asks, 1, NULL);
    if (error != 0) {
        free(resolve);
        return err_set(why, ICMS_LIMIT, "cannot resolve %s: %s", address, gai_strerror(error));
    }
    *out_resolve = resolve;
    return ICMS_OK;
}

static bool addr_of(const struct sockaddr *from, struct loop_addr *out_addr)
{
    const void *host = NULL;
    uint16_t port = 0;

    if (from->sa_family == AF_INET) {
        host = &((const struct sockaddr_in *)(const void *)from)->sin_addr;
        port = ntohs(((const struct sockaddr_in *)(const void *)from)->sin_port);
    } else if (from->sa_family == AF_INET6) {
        host = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
        port = ntohs(((const struct sockaddr_in6 *)(const void *)from)->sin6_port);
    }
    if (host == NULL ||
        inet_ntop(from->sa_family, host, out_addr->host, sizeof(out_addr->host)) == NULL)
        return false;
    out_addr->port = port;
    return true;
}

bool resolve_poll(struct resolve *resolve, struct resolve_answer *out_answer)
{
    int error = gai_error(&resolve->ask);

    if (error == EAI_INPROGRESS)
        return false;
    *out_answer = (struct resolve_answer){.count = 0};
    if (error == 0)
        for (const struct addrinfo *at = resolve->ask.ar_result;
             at != NULL && out_answer->count < RESOLVE_ADDRS; at = at->ai_next)
            out_answer->count += addr_of(at->ai_addr, &out_answer->addrs[out_answer->count]);
    if (out_answer->count == 0)
        (void)err_set(&out_answer->why, ICMS_NOT_FOUND, "cannot resolve %s: %s", resolve->host,
                      error != 0 ? gai_strerror(error) : "it has no address");
    return true;
}

void resolve_free(struct resolve **resolve)
{
    struct resolve *own = *resolve;

    *resolve = NULL;
    if (own == NULL)
        return;
    check(pthread_mutex_lock(&resolve_lock) == 0);
    list_push(&resolve_left, &own->link);
    list_for_each_safe (at, &resolve_left) {
        struct resolve *left = container_of(at, struct resolve, link);

        if (gai_cancel(&left->ask) == EAI_NOTCANCELED)
            continue;
        list_remove(at);
        if (gai_error(&left->ask) == 0)
            freeaddrinfo(left->ask.ar_result);
        free(left);
    }
    check(pthread_mutex_unlock(&resolve_lock) == 0);
}
