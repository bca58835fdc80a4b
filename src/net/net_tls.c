/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 below a connection: handshake, then records by the kernel (kTLS) or by OpenSSL.
 *
 * Called by net_conn.c, by the loop and its worker; all but tls_work on the connection's loop.
 * Life:
 *
 *   net_tls_new      -> HEADER (server), WORK (client)
 *   tls_header       HEADER -> BODY, PLAIN (server that allows it)
 *   tls_body         BODY -> WORK
 *   tls_worked       WORK -> FLIGHT, HEADER, OPEN
 *   tls_flown        FLIGHT -> HEADER, OPEN
 *   net_conn_close   ends each of them
 *
 * A handshake reads record by record, and no byte more, so the kernel can take over behind it. Who
 * has not proven a key costs one struct tls_begin and what OpenSSL needs for a handshake; a side
 * has at most pending_max of them, of which the oldest goes when one more begins.
 *
 * Receiving without the kernel: records are received into a buffer, and opened straight to the
 * owner's memory when the content fits there, else where they lie. Nothing of a record is handed
 * on, or counted as received, before all of it verified. Sending: up to TLS_RECORDS records are
 * sealed from where the data lies into a buffer, and go out with one call.
 *
 * Invariants: recv_op and send_op are in flight for one purpose at a time; the owner's memory is
 * written only while its receive is wanted; the owner's callbacks run from events of the loop.
 */
#include "net/net_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/fault.h"
#include "crypt/secret.h"
#include "crypt/tls.h"

/* Records that are received, and sealed, at a time without the kernel. With 4 loads of 1 MiB took
 * 10 % more of the processor's time for TLS, with 16 as much as with 8. */
#define TLS_RECORDS   8
#define TLS_IN_BYTES  (TLS_RECORDS * (CRYPT_RECORD_HEADER_BYTES + CRYPT_RECORD_BODY_MAX))
#define TLS_OUT_BYTES (TLS_RECORDS * (CRYPT_RECORD_DATA_MAX + CRYPT_RECORD_SEALED_EXTRA) + 64)

/* Smaller records are opened where they lie: they may be no data. */
#define TLS_DIRECT_MIN 1024

/* Records without data in a row that a peer may send. */
#define TLS_QUIET_MAX 32

/* A message of a handshake, or an alert, after the handshake. */
#define TLS_CONTROL_BYTES 2048

#define TLS_KEY_UPDATE_BYTES 5

/* With the fault point net.tls_key a key makes so few records. */
#define TLS_KEY_RECORDS_FAULT  16
#define TLS_PEER_RECORDS_FAULT 24

/* The kernel is asked how many records it opened each time that so many bytes came: each record
 * that counts has one at least. */
#define TLS_LOOK_BYTES ((uint32_t)4 << 20)

enum tls_state {
    TLS_HEADER, /* waits for the header of a handshake's record; woken by tls_received     */
    TLS_BODY,   /* waits for the rest of it; woken by tls_received                         */
    TLS_WORK,   /* the worker computes; woken by tls_worked                                */
    TLS_FLIGHT, /* the socket takes our records of the handshake; woken by tls_sent        */
    TLS_PLAIN,  /* server: the peer does not speak TLS and need not                        */
    TLS_OPEN,   /* moves data                                                              */
};

/* What only a handshake needs. */
struct tls_begin {
    struct crypt_tls_handshake *handshake;
    uint32_t bytes;                       /* of record                                    */
    uint8_t record[CRYPT_TLS_RECORD_MAX]; /* of the peer                                  */
    size_t out_bytes;                     /* of out                                       */
    uint8_t out[CRYPT_TLS_OUT_MAX];       /* ours                                         */
    icms_err err;                         /* of the step                                  */
    bool is_done;                         /* it was the last one                          */
};

/* What only a connection without the kernel's help needs. */
struct tls_in {
    uint32_t at, end;             /* ciphertext that was not opened yet                    */
    uint32_t plain_at, plain_end; /* content, opened, not handed on: in front of at        */
    uint8_t bytes[TLS_IN_BYTES];
};

struct tls_out {
    uint32_t at, end; /* sealed, not sent yet           */
    uint32_t plain;   /* bytes of the owner's in it     */
    uint8_t bytes[TLS_OUT_BYTES];
};

struct net_tls {
    struct net_conn *conn;     /* whose                                                    */
    struct net_tls_side *side; /* shared settings                                          */
    enum tls_state state;
    struct list link;              /* in side->waiting, while the handshake lasts              */
    struct loop_timer timer;       /* of the handshake                                         */
    struct loop_job job;           /* of the handshake                                         */
    struct loop_msg msg;           /* runs tls_run from the loop                               */
    bool msg_sent;                 /* msg is on its way                                        */
    bool running;                  /* inside tls_run: calls only leave marks                   */
    enum crypt_alert alert;        /* what it is told                                          */
    enum net_tls_how how;          /* in state OPEN                                            */
    struct tls_begin *begin;       /* owned; during a handshake                                */
    char hostnqn[LIMIT_NQN_BYTES]; /* server: proven                                       */
    char subnqn[LIMIT_NQN_BYTES];  /* server: proven                                       */
    uint64_t key_id;               /* server: with which key                               */
    /* the owner's receive */
    bool wanted;     /* it waits                                                 */
    bool canceled;   /* its end was asked for                                    */
    bool direct;     /* recv_op writes its memory                                */
    bool whole;      /* all of its bytes                                         */
    uint8_t *memory; /* where to                                                 */
    uint32_t bytes;  /* how many                                                 */
    uint32_t done;   /* of them, there                                           */
    /* receiving */
    bool kernel_receives; /* the kernel opens records                                 */
    uint64_t unlooked;    /* bytes that came since it was asked how many              */
    struct crypt_record receive;
    struct tls_in *in;  /* owned; NULL: not needed                                  */
    uint32_t quiet;     /* records without data in a row                            */
    uint32_t prefix_at; /* PLAIN: of prefix that was handed on                      */
    uint8_t prefix[CRYPT_RECORD_HEADER_BYTES]; /* what the peer began with                 */
    /* sending */
    bool kernel_sends;       /* the kernel makes records                                 */
    bool update_owed;        /* a KeyUpdate is to be sent                                */
    uint64_t kernel_records; /* that the kernel made with this key, at most: what it told
                                when it was asked last, and an estimate of the others    */
    struct crypt_record send;
    struct tls_out *out; /* owned; NULL: not needed                                  */
    struct iovec vector; /* of what is sent of out, or of the handshake              */
};

static void tls_received(struct loop_op *op);
static void tls_sent(struct loop_op *op);
static void tls_run(struct net_tls *tls);
static void tls_wake(struct net_tls *tls);

/* ---- handshakes of a side -------------------------------------------------------------------- */

/* Its handshake lasts no longer. */
static void tls_pending_end(struct net_tls *tls)
{
    if (list_empty(&tls->link))
        return;
    list_remove(&tls->link);
    check(tls->side->pending > 0);
    tls->side->pending--;
    loop_timer_stop(tls->conn->loop, &tls->timer);
}

static void tls_pending_begin(struct net_tls *tls)
{
    struct net_tls_side *side = tls->side;

    if (!side->is_ready) {
        list_init(&side->waiting);
        side->is_ready = true;
    }
    if (side->pending == side->pending_max) {
        struct net_tls *oldest = container_of(list_first(&side->waiting), struct net_tls, link);

        atomic_fetch_add_explicit(&side->evicted, 1, memory_order_relaxed);
        tls_pending_end(oldest);
        net_conn_close(oldest->conn, ICMS_BUSY);
    }
    side->pending++;
    list_push(&side->waiting, &tls->link);
}

static void tls_timeout(struct loop_timer *timer)
{
    struct net_tls *tls = container_of(timer, struct net_tls, timer);

    atomic_fetch_add_explicit(&tls->side->timeouts, 1, memory_order_relaxed);
    tls_pending_end(tls);
    net_conn_close(tls->conn, ICMS_DEADLINE);
}

/* The handshake failed for a reason that is worth words. */
static void tls_refuse(struct net_tls *tls, icms_err err, const char *why)
{
    struct net_tls_side *side = tls->side;
    struct crypt_tls_result result = {.hostnqn = ""};

    atomic_fetch_add_explicit(&side->refused, 1, memory_order_relaxed);
    if (tls->begin != NULL && tls->begin->handshake != NULL)
        crypt_tls_result(tls->begin->handshake, &result);
    tls_pending_end(tls);
    net_conn_close(tls->conn, err);
    if (side->failed != NULL)
        side->failed(side, result.hostnqn, &tls->conn->peer, why);
    crypt_tls_result_wipe(&result);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void tls_begin_free(struct net_tls *tls)
{
    if (tls->begin == NULL)
        return;
    crypt_tls_handshake_free(&tls->begin->handshake);
    free(tls->begin);
    tls->begin = NULL;
}

/* Gives the keys of a direction to the kernel; false: it does not take them. */
static bool tls_kernel(struct net_tls *tls, bool is_send)
{
    const struct crypt_record *record = is_send ? &tls->send : &tls->receive;
    struct loop_tls_keys keys = {.is_send = is_send, .is_256 = record->hash == CRYPT_SHA384};
    bool ok = !fault_hit("net.ktls") && crypt_record_keys(record, keys.key, keys.iv) > 0;

    keys.sequence = record->sequence;
    ok = ok && loop_sock_tls(tls->conn->sock, &keys) == ICMS_OK;
    secret_wipe(&keys, sizeof(keys));
    return ok;
}

static _Atomic uint32_t *tls_counter(struct net_tls *tls)
{
    return tls->how == NET_TLS_KERNEL  ? &tls->side->open_kernel
           : tls->how == NET_TLS_MIXED ? &tls->side->open_mixed
                                       : &tls->side->open_user;
}

/* Takes over from the handshake. */
static icms_err tls_take(struct net_tls *tls)
{
    struct crypt_tls_result result;
    icms_err err;

    crypt_tls_result(tls->begin->handshake, &result);
    memcpy(tls->hostnqn, result.hostnqn, sizeof(tls->hostnqn));
    memcpy(tls->subnqn, result.subnqn, sizeof(tls->subnqn));
    tls->key_id = result.key_id;
    err = crypt_record_init(&tls->send, true, result.hash, result.send);
    if (err == ICMS_OK)
        err = crypt_record_init(&tls->receive, false, result.hash, result.receive);
    crypt_tls_result_wipe(&result);
    if (err != ICMS_OK)
        return err;
    tls->kernel_sends = tls_kernel(tls, true);
    tls->kernel_receives = tls->kernel_sends && tls_kernel(tls, false);
    if (!tls->kernel_sends)
        tls->out = calloc(1, sizeof(*tls->out));
    if (!tls->kernel_receives)
        tls->in = calloc(1, sizeof(*tls->in));
    if ((!tls->kernel_sends && tls->out == NULL) || (!tls->kernel_receives && tls->in == NULL))
        return ICMS_NO_MEMORY;
    return ICMS_OK;
}

static void tls_opened(struct net_tls *tls)
{
    icms_err err = tls_take(tls);

    tls_begin_free(tls);
    tls_pending_end(tls);
    if (err != ICMS_OK) {
        net_conn_close(tls->conn, err);
        return;
    }
    tls->state = TLS_OPEN;
    tls->how = tls->kernel_receives ? NET_TLS_KERNEL
               : tls->kernel_sends  ? NET_TLS_MIXED
                                    : NET_TLS_USER;
    atomic_fetch_add_explicit(tls_counter(tls), 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&tls->side->succeeded, 1, memory_order_relaxed);
    net_conn_flush(tls->conn);
    tls_wake(tls);
}

/* ---- the handshake --------------------------------------------------------------------------- */

static void tls_read(struct net_tls *tls, enum tls_state state, uint32_t from, uint32_t bytes)
{
    tls->state = state;
    loop_recv(tls->conn->loop, &tls->conn->recv_op, tls->conn->sock, tls->begin->record + from,
              bytes, true, tls_received);
}

static void tls_next_record(struct net_tls *tls)
{
    tls_read(tls, TLS_HEADER, 0, CRYPT_RECORD_HEADER_BYTES);
}

/* On the worker. */
static void tls_work(struct loop_job *job)
{
    struct tls_begin *begin = container_of(job, struct net_tls, job)->begin;

    begin->err = crypt_tls_step(begin->handshake, begin->record, begin->bytes, begin->out,
                                &begin->out_bytes, &begin->is_done);
}

/* Our answer is sent, or there is none. */
static void tls_flown(struct net_tls *tls)
{
    if (tls->begin->is_done)
        tls_opened(tls);
    else
        tls_next_record(tls);
}

static void tls_worked(struct loop_job *job)
{
    struct net_tls *tls = container_of(job, struct net_tls, job);
    struct tls_begin *begin = tls->begin;
    struct net_conn *conn = tls->conn;

    if (conn->state != NET_CONN_OPEN) {
        net_conn_closing(conn);
        return;
    }
    if (begin->err != ICMS_OK) {
        if (begin->out_bytes > 0)
            loop_sock_send_now(conn->sock, begin->out, begin->out_bytes);
        tls_refuse(tls, begin->err, crypt_tls_why(begin->handshake));
        return;
    }
    if (begin->out_bytes == 0) {
        tls_flown(tls);
        return;
    }
    tls->state = TLS_FLIGHT;
    tls->vector = (struct iovec){begin->out, begin->out_bytes};
    loop_sendv(conn->loop, &conn->send_op, conn->sock, &tls->vector, 1, tls_sent);
}

static void tls_step(struct net_tls *tls)
{
    tls->state = TLS_WORK;
    if (loop_job_start(tls->conn->loop, &tls->job, tls_work, tls_worked) != ICMS_OK) {
        atomic_fetch_add_explicit(&tls->side->evicted, 1, memory_order_relaxed);
        tls_pending_end(tls);
        net_conn_close(tls->conn, ICMS_BUSY);
    }
}

static void tls_header(struct net_tls *tls)
{
    const uint8_t *header = tls->begin->record;
    uint32_t bytes = (uint32_t)header[3] << 8 | header[4];
    bool is_first = tls->begin->bytes == 0;

    if (tls->side->is_server && is_first && header[0] != CRYPT_RECORD_HANDSHAKE) {
        if (!tls->side->allows_plain) {
            atomic_fetch_add_explicit(&tls->side->plain, 1, memory_order_relaxed);
            tls_refuse(tls, ICMS_PROTOCOL, "it does not begin with TLS, which is required");
            return;
        }
        memcpy(tls->prefix, header, sizeof(tls->prefix));
        tls_begin_free(tls);
        tls_pending_end(tls);
        tls->state = TLS_PLAIN;
        net_conn_flush(tls->conn);
        tls_wake(tls);
        return;
    }
    if (header[0] < CRYPT_RECORD_CHANGE_CIPHER || header[0] > CRYPT_RECORD_DATA) {
        tls_refuse(tls, ICMS_PROTOCOL, "it does not speak TLS");
        return;
    }
    if (bytes == 0 || bytes > CRYPT_TLS_RECORD_MAX - CRYPT_RECORD_HEADER_BYTES) {
        tls_refuse(tls, ICMS_PROTOCOL, "a record of its handshake has a wrong length");
        return;
    }
    tls->begin->bytes = CRYPT_RECORD_HEADER_BYTES + bytes;
    tls_read(tls, TLS_BODY, CRYPT_RECORD_HEADER_BYTES, bytes);
}

struct net_tls *net_tls_new(struct net_conn *conn, struct net_tls_side *side)
{
    struct net_tls *tls = calloc(1, sizeof(*tls));
    struct tls_begin *begin = calloc(1, sizeof(*begin));

    if (tls == NULL || begin == NULL ||
        crypt_tls_handshake_new(side->settings, &begin->handshake) != ICMS_OK) {
        free(begin);
        free(tls);
        return NULL;
    }
    tls->conn = conn;
    tls->side = side;
    tls->begin = begin;
    list_init(&tls->link);
    loop_timer_init(&tls->timer, tls_timeout);
    tls_pending_begin(tls);
    loop_timer_start(conn->loop, &tls->timer, loop_now_ns(conn->loop) + side->timeout_ns);
    conn->tls = tls;
    if (side->is_server)
        tls_next_record(tls);
    else
        tls_step(tls);
    return tls;
}

bool net_tls_is_open(const struct net_tls *tls)
{
    return tls->state == TLS_OPEN || tls->state == TLS_PLAIN;
}

bool net_tls_busy(const struct net_tls *tls)
{
    return tls->running || tls->msg_sent || loop_job_busy(&tls->job);
}

void net_tls_free(struct net_tls **tls)
{
    if (*tls == NULL)
        return;
    tls_begin_free(*tls);
    crypt_record_fini(&(*tls)->send);
    crypt_record_fini(&(*tls)->receive);
    if ((*tls)->in != NULL)
        secret_wipe((*tls)->in, sizeof(*(*tls)->in));
    free((*tls)->in);
    free((*tls)->out);
    free(*tls);
    *tls = NULL;
}

enum net_tls_how net_conn_tls(const struct net_conn *conn)
{
    return conn->tls == NULL ? NET_TLS_NONE : conn->tls->how;
}

const char *net_conn_hostnqn(const struct net_conn *conn)
{
    return conn->tls == NULL || conn->tls->state != TLS_OPEN ? "" : conn->tls->hostnqn;
}

const char *net_conn_subnqn(const struct net_conn *conn)
{
    return conn->tls == NULL || conn->tls->state != TLS_OPEN ? "" : conn->tls->subnqn;
}

uint64_t net_conn_key_id(const struct net_conn *conn)
{
    return conn->tls == NULL || conn->tls->state != TLS_OPEN ? 0 : conn->tls->key_id;
}

/* ---- closing --------------------------------------------------------------------------------- */

void net_tls_shutdown(struct net_tls *tls)
{
    uint8_t alert[2] = {tls->alert == CRYPT_ALERT_CLOSE_NOTIFY ? 1 : 2, (uint8_t)tls->alert};
    uint8_t record[2 + CRYPT_RECORD_SEALED_EXTRA];
    struct iovec content = {alert, sizeof(alert)};
    size_t bytes;

    tls_pending_end(tls);
    if (tls->state != TLS_OPEN)
        return;
    atomic_fetch_sub_explicit(tls_counter(tls), 1, memory_order_relaxed);
    tls->how = NET_TLS_NONE;
    if (loop_op_busy(&tls->conn->send_op))
        return; /* it would fall into the middle of a record */
    if (tls->kernel_sends) {
        (void)loop_sock_tls_send(tls->conn->sock, CRYPT_RECORD_ALERT, alert, sizeof(alert));
        return;
    }
    bytes = crypt_record_seal(&tls->send, CRYPT_RECORD_ALERT, &content, 1, record);
    loop_sock_send_now(tls->conn->sock, record, bytes);
}

/* The peer did something that no peer does. */
static void tls_violated(struct net_tls *tls, enum crypt_alert alert)
{
    tls->alert = alert;
    net_conn_close(tls->conn, ICMS_PROTOCOL);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Changes the key of what we send, after a record that says so. false: it cannot be done. */
static bool tls_update_kernel(struct net_tls *tls)
{
    static const uint8_t update[TLS_KEY_UPDATE_BYTES] = {24, 0, 0, 1, 0};

    tls->kernel_records = 0;
    return loop_sock_tls_send(tls->conn->sock, CRYPT_RECORD_HANDSHAKE, update, sizeof(update)) &&
           crypt_record_update(&tls->send) == ICMS_OK && tls_kernel(tls, true);
}

static bool tls_update_user(struct net_tls *tls)
{
    static const uint8_t update[TLS_KEY_UPDATE_BYTES] = {24, 0, 0, 1, 0};
    struct iovec content = {(void *)(uintptr_t)update, sizeof(update)};
    struct tls_out *out = tls->out;
    size_t bytes =
        crypt_record_seal(&tls->send, CRYPT_RECORD_HANDSHAKE, &content, 1, out->bytes + out->end);

    out->end += (uint32_t)bytes;
    return bytes > 0 && crypt_record_update(&tls->send) == ICMS_OK;
}

/* Whether the key of what we send has to change before so many records more; two are kept for a
 * KeyUpdate and an alert. */
static bool tls_key_spent(const struct net_tls *tls, uint64_t records)
{
    uint64_t most = fault_hit("net.tls_key") ? TLS_KEY_RECORDS_FAULT : CRYPT_RECORD_KEY_RECORDS;
    uint64_t made = tls->kernel_sends ? tls->kernel_records : tls->send.sequence;

    return made + records + 2 > most;
}

/* How many records the kernel made; a kernel that does not tell leaves the estimate. */
static void tls_kernel_ask(struct net_tls *tls)
{
    uint64_t records;

    if (loop_sock_tls_records(tls->conn->sock, true, &records) == ICMS_OK)
        tls->kernel_records = records;
}

/* The peer's key made more than any peer's may. */
static bool tls_peer_spent(const struct net_tls *tls, uint64_t records)
{
    return records >=
           (fault_hit("net.tls_key") ? TLS_PEER_RECORDS_FAULT : CRYPT_RECORD_PEER_RECORDS);
}

/* Before the kernel makes records of conn->vectors; false: the connection is closing. It makes one
 * of each send of up to 16 KiB, or two where a send was cut short; when they may be too many it is
 * asked how many there are. A key that made as many as it may is changed, which kernels before
 * Linux 6.14 cannot: the connection ends. */
static bool tls_kernel_ready(struct net_tls *tls, uint32_t vectors)
{
    uint64_t bytes = 0, records;
    bool is_spent;

    for (uint32_t i = 0; i < vectors; i++)
        bytes += tls->conn->vectors[i].iov_len;
    records = bytes / CRYPT_RECORD_DATA_MAX + 2; /* a part at the end, and of a send cut short */
    if (tls_key_spent(tls, records))
        tls_kernel_ask(tls);
    is_spent = tls_key_spent(tls, records);
    if ((is_spent || tls->update_owed) && !tls_update_kernel(tls)) {
        net_conn_close(tls->conn, is_spent ? ICMS_LIMIT : ICMS_RESET);
        return false;
    }
    tls->update_owed = false;
    tls->kernel_records += records;
    return true;
}

/* Seals the next record of conn->vectors; false: OpenSSL failed. */
static bool tls_seal(struct net_tls *tls, struct iovec *at, const struct iovec *end)
{
    struct tls_out *out = tls->out;
    struct iovec part[NET_CONN_VECTORS];
    uint32_t n = 0, bytes = 0;
    size_t sealed;

    for (; at < end && bytes < CRYPT_RECORD_DATA_MAX; at++) {
        size_t take = u64_min(at->iov_len, CRYPT_RECORD_DATA_MAX - bytes);

        if (take == 0)
            continue;
        part[n++] = (struct iovec){at->iov_base, take};
        at->iov_base = (uint8_t *)at->iov_base + take;
        at->iov_len -= take;
        bytes += (uint32_t)take;
        if (at->iov_len > 0)
            break;
    }
    if (bytes == 0)
        return true;
    sealed = crypt_record_seal(&tls->send, CRYPT_RECORD_DATA, part, n, out->bytes + out->end);
    out->end += (uint32_t)sealed;
    out->plain += bytes;
    return sealed > 0;
}

static void tls_send_out(struct net_tls *tls)
{
    struct net_conn *conn = tls->conn;

    tls->vector = (struct iovec){tls->out->bytes + tls->out->at, tls->out->end - tls->out->at};
    loop_sendv(conn->loop, &conn->send_op, conn->sock, &tls->vector, 1, tls_sent);
}

void net_tls_send(struct net_tls *tls, uint32_t vectors)
{
    struct net_conn *conn = tls->conn;
    bool ok = true;

    check(net_tls_is_open(tls) && !loop_op_busy(&conn->send_op));
    if (tls->state == TLS_PLAIN || tls->kernel_sends) {
        if (tls->kernel_sends && !tls_kernel_ready(tls, vectors))
            return;
        loop_sendv(conn->loop, &conn->send_op, conn->sock, conn->vectors, vectors, tls_sent);
        return;
    }
    tls->out->at = tls->out->end = tls->out->plain = 0;
    if (tls->update_owed || tls_key_spent(tls, TLS_RECORDS))
        ok = tls_update_user(tls);
    tls->update_owed = false;
    for (int i = 0; ok && i < TLS_RECORDS; i++)
        ok = tls_seal(tls, conn->vectors, conn->vectors + vectors);
    if (!ok)
        net_conn_close(conn, ICMS_NO_MEMORY);
    else if (tls->out->end > 0)
        tls_send_out(tls);
}

static void tls_sent(struct loop_op *op)
{
    struct net_conn *conn = container_of(op, struct net_conn, send_op);
    struct net_tls *tls = conn->tls;
    uint32_t bytes = op->bytes;

    if (!net_tls_is_open(tls)) { /* of the handshake */
        tls->vector.iov_base = (uint8_t *)tls->vector.iov_base + bytes;
        tls->vector.iov_len -= bytes;
        if (op->err != ICMS_OK)
            net_conn_close(conn, op->err);
        if (conn->state != NET_CONN_OPEN)
            net_conn_closing(conn);
        else if (tls->vector.iov_len > 0)
            loop_sendv(conn->loop, op, conn->sock, &tls->vector, 1, tls_sent);
        else
            tls_flown(tls);
        return;
    }
    if (tls->state == TLS_OPEN && !tls->kernel_sends) {
        tls->out->at += bytes;
        if (op->err == ICMS_OK && conn->state == NET_CONN_OPEN && tls->out->at < tls->out->end) {
            conn->send_at_ns = loop_now_ns(conn->loop);
            tls_send_out(tls);
            return;
        }
        bytes = op->err == ICMS_OK && tls->out->at == tls->out->end ? tls->out->plain : 0;
    }
    net_conn_send_end(conn, op->err, bytes);
}

/* ---- receiving: what is no data -------------------------------------------------------------- */

/* The peer's next records are under its next key, and it may want ours to be, too. */
static void tls_key_update(struct net_tls *tls, bool requested)
{
    struct net_conn *conn = tls->conn;

    if (crypt_record_update(&tls->receive) != ICMS_OK ||
        (tls->kernel_receives && !tls_kernel(tls, false))) {
        /* Kernels before 6.14 cannot change a key. */
        tls->alert = CRYPT_ALERT_INTERNAL_ERROR;
        net_conn_close(conn, ICMS_RESET);
        return;
    }
    if (!requested)
        return;
    tls->update_owed = true;
    if (!loop_op_busy(&conn->send_op) && list_empty(&conn->sends)) {
        if (!tls->kernel_sends) {
            net_tls_send(tls, 0);
        } else if (tls_update_kernel(tls)) {
            tls->update_owed = false;
        } else {
            net_conn_close(conn, ICMS_RESET);
        }
    }
}

/* Messages of a handshake after it: KeyUpdate, alone in its record, and tickets of a server, which
 * nobody needs. */
static void tls_messages(struct net_tls *tls, const uint8_t *content, uint32_t bytes)
{
    while (bytes >= 4) {
        uint32_t length = (uint32_t)content[1] << 16 | (uint32_t)content[2] << 8 | content[3];

        if (content[0] == 24 && bytes == TLS_KEY_UPDATE_BYTES && length == 1 && content[4] <= 1) {
            tls_key_update(tls, content[4] == 1);
            return;
        }
        if (content[0] != 4 || tls->side->is_server || length > bytes - 4)
            break;
        content += 4 + length;
        bytes -= 4 + length;
        if (bytes == 0)
            return;
    }
    tls_violated(tls, CRYPT_ALERT_UNEXPECTED_MESSAGE);
}

static void tls_control(struct net_tls *tls, enum crypt_record_type type, const uint8_t *content,
                        uint32_t bytes)
{
    if (++tls->quiet > TLS_QUIET_MAX)
        tls_violated(tls, CRYPT_ALERT_UNEXPECTED_MESSAGE);
    else if (type == CRYPT_RECORD_HANDSHAKE)
        tls_messages(tls, content, bytes);
    else if (type != CRYPT_RECORD_ALERT || bytes != 2)
        tls_violated(tls, CRYPT_ALERT_DECODE_ERROR);
    else if (content[1] != CRYPT_ALERT_USER_CANCELED)
        net_conn_close(tls->conn, ICMS_RESET);
}

/* ---- receiving: data ------------------------------------------------------------------------- */

/* The owner's receive ended. */
static void tls_deliver(struct net_tls *tls, icms_err err)
{
    check(tls->running && tls->wanted);
    tls->wanted = tls->canceled = false;
    net_conn_recv_end(tls->conn, err, tls->done);
}

static void tls_filled(struct net_tls *tls, uint32_t bytes)
{
    tls->done += bytes;
    tls->quiet = 0;
}

/* Hands on what was opened where it lies. */
static void tls_copy(struct net_tls *tls)
{
    struct tls_in *in = tls->in;
    uint32_t n = (uint32_t)u64_min(in->plain_end - in->plain_at, tls->bytes - tls->done);

    memcpy(tls->memory + tls->done, in->bytes + in->plain_at, n);
    in->plain_at += n;
    tls_filled(tls, n);
}

/* Opens the next record, if all of it is there. false: it is not. */
static bool tls_open_record(struct net_tls *tls)
{
    struct tls_in *in = tls->in;
    uint8_t *header = in->bytes + in->at;
    uint8_t *body = header + CRYPT_RECORD_HEADER_BYTES, *out = body;
    enum crypt_record_type type;
    enum crypt_alert alert;
    uint32_t bytes, n;

    if (in->end - in->at < CRYPT_RECORD_HEADER_BYTES)
        return false;
    if (crypt_record_header(header, &bytes, &alert) != ICMS_OK) {
        tls_violated(tls, alert);
        return true;
    }
    if (in->end - in->at < CRYPT_RECORD_HEADER_BYTES + bytes)
        return false;
    if (tls_peer_spent(tls, tls->receive.sequence)) {
        net_conn_close(tls->conn, ICMS_LIMIT);
        return true;
    }
    if (bytes - 17 >= TLS_DIRECT_MIN && bytes - 17 <= tls->bytes - tls->done)
        out = tls->memory + tls->done;
    if (crypt_record_open(&tls->receive, header, body, bytes, out, &type, &n, &alert) != ICMS_OK) {
        tls_violated(tls, alert);
        return true;
    }
    in->at += CRYPT_RECORD_HEADER_BYTES + bytes;
    if (type != CRYPT_RECORD_DATA || n == 0) {
        if (type != CRYPT_RECORD_DATA)
            tls_control(tls, type, out, n);
        else if (++tls->quiet > TLS_QUIET_MAX)
            tls_violated(tls, CRYPT_ALERT_UNEXPECTED_MESSAGE);
    } else if (out == body) {
        in->plain_at = (uint32_t)(body - in->bytes);
        in->plain_end = in->plain_at + n;
    } else {
        tls_filled(tls, n);
    }
    return true;
}

/* Receives more of what is not opened yet. */
static void tls_fill(struct net_tls *tls)
{
    struct net_conn *conn = tls->conn;
    struct tls_in *in = tls->in;

    if (loop_op_busy(&conn->recv_op))
        return;
    memmove(in->bytes, in->bytes + in->at, in->end - in->at);
    in->end -= in->at;
    in->at = in->plain_at = in->plain_end = 0;
    loop_recv(conn->loop, &conn->recv_op, conn->sock, in->bytes + in->end,
              (uint32_t)sizeof(in->bytes) - in->end, false, tls_received);
}

/* Receives to the owner's memory. */
static void tls_fill_direct(struct net_tls *tls)
{
    struct net_conn *conn = tls->conn;

    tls->direct = true;
    loop_recv(conn->loop, &conn->recv_op, conn->sock, tls->memory + tls->done,
              tls->bytes - tls->done, tls->whole, tls_received);
}

/* Goes on with the owner's receive. true: again, something changed. */
static bool tls_run_once(struct net_tls *tls)
{
    if (!tls->wanted || tls->direct || tls->conn->state != NET_CONN_OPEN)
        return false;
    if (tls->done == tls->bytes || (tls->done > 0 && !tls->whole) || tls->canceled) {
        tls_deliver(tls, tls->done == tls->bytes || (tls->done > 0 && !tls->whole) ? ICMS_OK
                                                                                   : ICMS_CANCELED);
        return true;
    }
    if (!net_tls_is_open(tls))
        return false;
    if (tls->state == TLS_PLAIN && tls->prefix_at < sizeof(tls->prefix)) {
        uint32_t n = (uint32_t)u64_min(sizeof(tls->prefix) - tls->prefix_at, tls->bytes);

        memcpy(tls->memory, tls->prefix + tls->prefix_at, n);
        tls->prefix_at += n;
        tls_filled(tls, n);
        return true;
    }
    if (tls->in == NULL) {
        tls_fill_direct(tls);
        return false;
    }
    if (tls->in->plain_at < tls->in->plain_end) {
        tls_copy(tls);
        return true;
    }
    if (tls_open_record(tls))
        return true;
    tls_fill(tls);
    return false;
}

static void tls_run(struct net_tls *tls)
{
    struct net_conn *conn = tls->conn;

    check(!tls->running);
    tls->running = true;
    while (tls_run_once(tls))
        ;
    tls->running = false;
    if (conn->state == NET_CONN_CLOSING)
        net_conn_closing(conn);
}

static void tls_woken(struct loop_msg *msg)
{
    struct net_tls *tls = container_of(msg, struct net_tls, msg);

    tls->msg_sent = false;
    tls_run(tls);
}

/* Runs it soon, from the loop. */
static void tls_wake(struct net_tls *tls)
{
    if (tls->msg_sent || tls->running || tls->conn->state != NET_CONN_OPEN)
        return;
    tls->msg_sent = true;
    loop_send(tls->conn->loop, &tls->msg, tls_woken);
}

/* The kernel opened records of so many bytes; closes when they are too many of one key. */
static void tls_kernel_opened(struct net_tls *tls, uint32_t bytes)
{
    uint64_t records;

    tls->unlooked += bytes;
    if (tls->unlooked < (fault_hit("net.tls_key") ? 1 : TLS_LOOK_BYTES))
        return;
    tls->unlooked = 0;
    if (loop_sock_tls_records(tls->conn->sock, false, &records) == ICMS_OK &&
        tls_peer_spent(tls, records))
        net_conn_close(tls->conn, ICMS_LIMIT);
}

/* The end of a receive to the owner's memory. */
static void tls_received_direct(struct net_tls *tls, icms_err err, uint32_t bytes)
{
    uint8_t content[TLS_CONTROL_BYTES], type = 0;
    size_t count = 0;

    tls->direct = false;
    if (bytes > 0)
        tls_filled(tls, bytes);
    if (tls->kernel_receives && tls->conn->state == NET_CONN_OPEN && bytes > 0)
        tls_kernel_opened(tls, bytes);
    if (tls->kernel_receives && tls->conn->state == NET_CONN_OPEN && err != ICMS_OK &&
        err != ICMS_CANCELED && err != ICMS_RESET) {
        /* A record that is no data; or one that is wrong, which the next call says, too. */
        if (err == ICMS_IO)
            err = loop_sock_tls_recv(tls->conn->sock, &type, content, sizeof(content), &count);
        if (err == ICMS_OK) {
            tls_control(tls, (enum crypt_record_type)type, content, (uint32_t)count);
        } else {
            tls->alert = CRYPT_ALERT_BAD_RECORD_MAC;
            err = ICMS_PROTOCOL;
        }
    }
    tls->running = true;
    if (err == ICMS_CANCELED)
        tls->canceled = true;
    else if (err != ICMS_OK)
        tls_deliver(tls, err);
    tls->running = false;
    tls_run(tls);
}

static void tls_received(struct loop_op *op)
{
    struct net_conn *conn = container_of(op, struct net_conn, recv_op);
    struct net_tls *tls = conn->tls;

    conn->bytes_in += op->bytes;
    if (tls->direct) {
        tls_received_direct(tls, op->err, op->bytes);
        return;
    }
    if (op->err != ICMS_OK)
        net_conn_close(conn, op->err);
    if (conn->state != NET_CONN_OPEN) {
        net_conn_closing(conn);
        return;
    }
    if (tls->state == TLS_HEADER) {
        tls_header(tls);
    } else if (tls->state == TLS_BODY) {
        tls_step(tls);
    } else {
        tls->in->end += op->bytes;
        tls_run(tls);
    }
}

void net_tls_recv(struct net_tls *tls, void *memory, uint32_t bytes, bool whole)
{
    check(!tls->wanted);
    tls->wanted = true;
    tls->canceled = false;
    tls->memory = memory;
    tls->bytes = bytes;
    tls->whole = whole;
    tls->done = 0;
    if (tls->running)
        return;
    if (net_tls_is_open(tls) && tls->in == NULL &&
        (tls->state == TLS_OPEN || tls->prefix_at == sizeof(tls->prefix)))
        tls_fill_direct(tls);
    else if (net_tls_is_open(tls))
        tls_wake(tls);
}

void net_tls_recv_cancel(struct net_tls *tls)
{
    if (!tls->wanted)
        return;
    if (tls->direct) {
        loop_op_cancel(&tls->conn->recv_op);
        return;
    }
    tls->canceled = true;
    tls_wake(tls);
}

uint32_t net_tls_received(const struct net_tls *tls)
{
    return tls->wanted ? tls->done : 0;
}
