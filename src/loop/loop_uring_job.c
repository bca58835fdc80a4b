/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of the io_uring back end: one thread a loop, made by the loop's first job.
 *
 * uring_job_start runs on the loop's thread, uring_worker_run on the worker, the others on the
 * thread that makes and frees the loop. The worker may use every CPU that the loop's maker could,
 * at low priority, so that jobs take what loops leave.
 *
 * Life of a job: in worker->jobs -> work, without the lock -> loop_send -> loop_job_finish.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "loop/loop_uring.h"

/* Of setpriority(2): a ninth of the weight that a loop has. */
#define WORKER_NICE 10

void uring_worker_init(struct uring_worker *worker)
{
    worker->running = false;
    worker->is_stopped = false;
    list_init(&worker->jobs);
    check(pthread_mutex_init(&worker->lock, NULL) == 0);
    check(pthread_cond_init(&worker->wanted, NULL) == 0);
    if (pthread_getaffinity_np(pthread_self(), sizeof(worker->cpus), &worker->cpus) != 0)
        CPU_ZERO(&worker->cpus);
}

/* The next job, or NULL when the thread is to end. */
static struct loop_job *worker_next(struct uring_worker *worker)
{
    struct list *link = NULL;

    check(pthread_mutex_lock(&worker->lock) == 0);
    while (!worker->is_stopped && list_empty(&worker->jobs))
        check(pthread_cond_wait(&worker->wanted, &worker->lock) == 0);
    if (!worker->is_stopped)
        link = list_pop(&worker->jobs);
    check(pthread_mutex_unlock(&worker->lock) == 0);
    return link != NULL ? container_of(link, struct loop_job, link) : NULL;
}

static void *uring_worker_run(void *arg)
{
    struct uring_loop *uring = arg;
    struct loop_job *job;
    char name[16];

    (void)snprintf(name, sizeof(name), "%.11s-job", uring->name);
    (void)pthread_setname_np(pthread_self(), name);
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), WORKER_NICE);
    while ((job = worker_next(&uring->worker)) != NULL) {
        job->work(job);
        loop_send(&uring->loop, &job->msg, loop_job_finish);
    }
    return NULL;
}

static icms_err worker_start(struct uring_loop *uring)
{
    struct uring_worker *worker = &uring->worker;
    pthread_attr_t attributes;
    int error;

    if (worker->running)
        return ICMS_OK;
    check(pthread_attr_init(&attributes) == 0);
    if (CPU_COUNT(&worker->cpus) > 0)
        (void)pthread_attr_setaffinity_np(&attributes, sizeof(worker->cpus), &worker->cpus);
    error = uring_thread_new(&worker->thread, &attributes, uring_worker_run, uring);
    (void)pthread_attr_destroy(&attributes);
    worker->running = error == 0;
    return error == 0 ? ICMS_OK : ICMS_LIMIT;
}

icms_err uring_job_start(struct loop *loop, struct loop_job *job)
{
    struct uring_loop *uring = uring_of(loop);
    icms_err err = worker_start(uring);

    if (err != ICMS_OK)
        return err;
    check(pthread_mutex_lock(&uring->worker.lock) == 0);
    list_push(&uring->worker.jobs, &job->link);
    check(pthread_cond_signal(&uring->worker.wanted) == 0);
    check(pthread_mutex_unlock(&uring->worker.lock) == 0);
    return ICMS_OK;
}

void uring_worker_free(struct uring_worker *worker)
{
    check(pthread_mutex_lock(&worker->lock) == 0);
    worker->is_stopped = true;
    check(pthread_cond_signal(&worker->wanted) == 0);
    check(pthread_mutex_unlock(&worker->lock) == 0);
    if (worker->running)
        check(pthread_join(worker->thread, NULL) == 0);
    worker->running = false;
    list_init(&worker->jobs); /* nobody is told of those that did not run */
    (void)pthread_cond_destroy(&worker->wanted);
    (void)pthread_mutex_destroy(&worker->lock);
}
