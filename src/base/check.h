/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/check.h: the impossible, always on.
 *
 * check() is for mistakes of our own. What a peer, a disk, a file or a user can cause is an error
 * and never a check. A failed check prints the place and the expression to standard error and
 * aborts; check_dump() adds what the current thread registered. A library that runs inside a
 * program of somebody else may catch it instead (check_catch_set(); src/client/guard.c).
 */
#ifndef BASE_CHECK_H
#define BASE_CHECK_H

#include <stdbool.h>

/* Sources of a test that are compiled with CHECK_INJECT: true makes a check fail that holds. */
#ifdef CHECK_INJECT
bool check_inject(void);
#else
#define check_inject() false
#endif

#define check(expression)                                                                          \
    do {                                                                                           \
        if (__builtin_expect(!(expression) || check_inject(), 0))                                  \
            check_failed(__FILE__, __LINE__, __func__, #expression);                               \
    } while (0)

_Noreturn void check_failed(const char *file, int line, const char *function, const char *text);

/* A function that prints the state of its module to standard error; called once before the abort,
 * on the failing thread. NULL removes it. Per thread. */
void check_dump(void (*dump)(void *arg), void *arg);

/* Who catches failed checks of one thread, instead of the print and the abort. `caught` must not
 * return. */
struct check_catch {
    void (*caught)(struct check_catch *self, const char *file, int line, const char *function,
                   const char *text) __attribute__((noreturn));
};

/* From now on on this thread; NULL: nobody. The struct is the caller's and stays until then. */
void check_catch_set(struct check_catch *catch_);

/* NULL: nobody catches checks of this thread. */
struct check_catch *check_catch_get(void);

/* The struct that embeds a member: container_of(pointer, struct target_req, read). */
#define container_of(pointer, type, member)                                                        \
    ((type *)(void *)((char *)(pointer) - __builtin_offsetof(type, member)))

#endif
