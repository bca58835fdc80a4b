/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim/lib_preempt.h: stands in front of every source of libicms that the simulation compiles, and
 * of src/shm/shm.c. It puts a point, where another thread may run or time may pass, before each
 * operation on an atomic variable, around each one on a lock, and into each copy of a value.
 *
 * What it does not see: plain memory, and orders that only a weaker memory than this one shows.
 * ThreadSanitizer looks for these (make check-deep).
 */
#ifndef SIM_LIB_PREEMPT_H
#define SIM_LIB_PREEMPT_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/crc.h"
#include "wire/sealed.h"

/* A thread may stop here. Sites are told apart by their lines: a seed has some where threads are
 * away more often, and longer. */
void lib_point_at(unsigned site);

/* ---- atomic variables ----------------------------------------------------------------------- */

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_exchange
#undef atomic_exchange_explicit
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_weak_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_and_explicit
#undef atomic_fetch_or

#ifdef __clang__
#define lib_load(p, order)            __c11_atomic_load(p, order)
#define lib_store(p, v, order)        __c11_atomic_store(p, v, order)
#define lib_exchange(p, v, order)     __c11_atomic_exchange(p, v, order)
#define lib_compare(p, e, v, yes, no) __c11_atomic_compare_exchange_weak(p, e, v, yes, no)
#define lib_fetch_add(p, v, order)    __c11_atomic_fetch_add(p, v, order)
#define lib_fetch_sub(p, v, order)    __c11_atomic_fetch_sub(p, v, order)
#define lib_fetch_and(p, v, order)    __c11_atomic_fetch_and(p, v, order)
#define lib_fetch_or(p, v, order)     __c11_atomic_fetch_or(p, v, order)
#else
#define lib_load(p, order)            __atomic_load_n(p, order)
#define lib_store(p, v, order)        __atomic_store_n(p, v, order)
#define lib_exchange(p, v, order)     __atomic_exchange_n(p, v, order)
#define lib_compare(p, e, v, yes, no) __atomic_compare_exchange_n(p, e, v, 1, yes, no)
#define lib_fetch_add(p, v, order)    __atomic_fetch_add(p, v, order)
#define lib_fetch_sub(p, v, order)    __atomic_fetch_sub(p, v, order)
#define lib_fetch_and(p, v, order)    __atomic_fetch_and(p, v, order)
#define lib_fetch_or(p, v, order)     __atomic_fetch_or(p, v, order)
#endif

#define atomic_load_explicit(p, order)         (lib_point_at(__LINE__), lib_load(p, order))
#define atomic_store_explicit(p, v, order)     (lib_point_at(__LINE__), lib_store(p, v, order))
#define atomic_exchange_explicit(p, v, order)  (lib_point_at(__LINE__), lib_exchange(p, v, order))
#define atomic_fetch_add_explicit(p, v, order) (lib_point_at(__LINE__), lib_fetch_add(p, v, order))
#define atomic_fetch_and_explicit(p, v, order) (lib_point_at(__LINE__), lib_fetch_and(p, v, order))
#define atomic_compare_exchange_weak_explicit(p, e, v, yes, no)                                    \
    (lib_point_at(__LINE__), lib_compare(p, e, v, yes, no))

#define atomic_load(p)         atomic_load_explicit(p, memory_order_seq_cst)
#define atomic_store(p, v)     atomic_store_explicit(p, v, memory_order_seq_cst)
#define atomic_exchange(p, v)  atomic_exchange_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_add(p, v) atomic_fetch_add_explicit(p, v, memory_order_seq_cst)
#define atomic_fetch_sub(p, v) (lib_point_at(__LINE__), lib_fetch_sub(p, v, memory_order_seq_cst))
#define atomic_fetch_or(p, v)  (lib_point_at(__LINE__), lib_fetch_or(p, v, memory_order_seq_cst))
#define atomic_compare_exchange_weak(p, e, v)                                                      \
    atomic_compare_exchange_weak_explicit(p, e, v, memory_order_seq_cst, memory_order_seq_cst)

/* ---- locks ---------------------------------------------------------------------------------- */

int lib_mutex_lock(pthread_mutex_t *mutex);
int lib_mutex_trylock(pthread_mutex_t *mutex);
int lib_mutex_unlock(pthread_mutex_t *mutex);
int lib_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int lib_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int lib_cond_broadcast(pthread_cond_t *cond);

#define pthread_mutex_lock     lib_mutex_lock
#define pthread_mutex_trylock  lib_mutex_trylock
#define pthread_mutex_unlock   lib_mutex_unlock
#define pthread_cond_wait      lib_cond_wait
#define pthread_cond_timedwait lib_cond_timedwait
#define pthread_cond_broadcast lib_cond_broadcast

/* ---- values --------------------------------------------------------------------------------- */

/* In two pieces, with a point between them. */
uint32_t lib_copy_steady(uint32_t crc, void *to, const void *from, size_t bytes);

/* A value that does not pass at the client fails the run: somebody before it had to notice. */
icms_err lib_trailer_check(const struct sealed_place *place, uint32_t value_bytes,
                           uint32_t value_crc, const uint8_t *trailer);
bool lib_trailer_is(const uint8_t *trailer, const uint8_t *digest);

#define crc32c_copy_steady   lib_copy_steady
#define sealed_trailer_check lib_trailer_check
#define sealed_trailer_is    lib_trailer_is

#endif
