/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/check.h: the impossible, always on.
 *
 * check() is for mistakes of our own. What a peer, a disk, a file or a user can cause is an error
 * and never a check. A failed check prints the place and the expression to standard error and
 * aborts; check_dump() adds what the current thread registered.
 */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

#define check(expression)                                                                          \
    do {                                                                                           \
        if (__builtin_expect(!(expression), 0))                                                    \
            check_failed(__FILE__, __LINE__, __func__, #expression);                               \
    } while (0)

_Noreturn void check_failed(const char *file, int line, const char *function, const char *text);

/* A function that prints the state of its module to standard error; called once before the abort,
 * on the failing thread. NULL removes it. Per thread. */
void check_dump(void (*dump)(void *arg), void *arg);

/* The struct that embeds a member: container_of(pointer, struct target_req, read). */
#define container_of(pointer, type, member)                                                        \
    ((type *)(void *)((char *)(pointer) - __builtin_offsetof(type, member)))

#endif
