/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/sys.h: what libicms asks of the machine: time, sleep, entropy, events, waiting for an
 * agent.
 *
 * sys.c does it with Linux; test/sim/lib_sys.c does it in virtual time, from a seed. Everything in
 * libicms that makes a system call while a handle is open is here, but for the hello to an agent
 * (attach.c, which the simulation replaces as a whole) and the lock of a handle (guard.c), which is
 * pthread's. What makes no system call does not come here.
 *
 * Descriptors are the caller's; -1 is none. Any thread.
 */
#ifndef CLIENT_SYS_H
#define CLIENT_SYS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Monotonic nanoseconds: the clock of deadlines, condition variables and timers. */
uint64_t client_now_ns(void);

/* Does nothing for so long, or less after a signal. */
void sys_sleep(uint64_t ns);

/* Bytes that nobody can predict. */
void sys_random(void *out, size_t bytes);

/* A thread that gets no signals of the process; it is joined. False: there is none. */
bool sys_thread_new(pthread_t *out_thread, void *(*run)(void *arg), void *arg) ICMS_MUST_CHECK;
void sys_thread_join(pthread_t thread);

/* ---- events of the handle ------------------------------------------------------------------- */

/* An event that is raised by hand, and one that time raises. -1: errno says why. */
int sys_event_new(void);
int sys_timer_new(void);

/* Raises an event of the handle, or the one that wakes a reactor of the agent. */
void sys_event_raise(int event);

/* An event or a timer is not raised any more, whether or not it was. False: it is neither. */
bool sys_event_drain(int event) ICMS_MUST_CHECK;

/* Raises the timer at a time, instead of at the one before; UINT64_MAX: never. */
bool sys_timer_set(int timer, uint64_t at_ns) ICMS_MUST_CHECK;

/* A set is readable while one of its members is: what icms_event_fd gives to a program. A socket is
 * readable when it ended, too. Removing what is no member changes nothing. */
int sys_set_new(void);
icms_err sys_set_add(int set, int event) ICMS_MUST_CHECK;
void sys_set_remove(int set, int event);

/* ---- the agent ------------------------------------------------------------------------------ */

/* What sys_wait saw. */
enum sys_ready {
    SYS_SIGNAL = 1, /* the agent signalled answers                             */
    SYS_ENDED = 2,  /* its socket: it says nothing there, so this is its end   */
    SYS_WOKEN = 4,  /* the handle's event that wakes who waits                 */
};

/* Sleeps until one of the three is readable (-1: is not looked at), until_ns, or a signal of the
 * process; 0: only looks. Takes nothing away. Returns enum sys_ready. */
uint32_t sys_wait(int signal, int sock, int wake, uint64_t until_ns);

/* Takes the agent's signals away, so that the next one is seen. False: there will be none. */
bool sys_signal_take(int signal) ICMS_MUST_CHECK;

/* Ends the conversation; the socket stays a descriptor. */
void sys_hangup(int sock);

/* Memory that was mapped from an agent. */
void sys_unmap(void *base, uint64_t bytes);

/* Any descriptor of a handle or link. */
void sys_close(int fd);

#endif
