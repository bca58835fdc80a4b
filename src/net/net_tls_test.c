/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What peers that do not behave get from a server's connection with TLS: each case is one peer that
 * makes its handshake and records by itself, over both back ends of the loop.
 */
#include "base/fault_arm.h"
#include "net/net_tls_rig.h"

#include <stdio.h>
#include <stdlib.h>

#define ROOM 65536u

struct piece {
    struct net_send send;
    uint8_t bytes[CRYPT_RECORD_BODY_MAX + CRYPT_RECORD_HEADER_BYTES];
};

struct scene {
    struct rig *rig;
    struct tls_rig tls;
    struct net_rig_pair pair;
    struct net_conn conn[2]; /* 0: the peer, which is a plain connection; 1: the server */
    /* the peer */
    struct crypt_tls_handshake *handshake; /* NULL: it makes none                       */
    struct crypt_record seal, open;        /* after it                                  */
    uint8_t in[ROOM];                      /* what arrived and was not taken            */
    uint32_t in_bytes;                     /* of it                                     */
    uint8_t got[ROOM];                     /* data that the server sent                 */
    uint32_t got_bytes;                    /* of it                                     */
    uint8_t control[64];                   /* the last record that was no data          */
    enum crypt_record_type control_type;   /* its type                                  */
    uint32_t updates;                      /* the server changed its key so often       */
    /* the server */
    uint8_t memory[ROOM];
    uint32_t received;
    struct piece answer;
    icms_err why[2]; /* of closed()                             */
    char host[LIMIT_NQN_BYTES];
    char words[96];          /* of failed()                     */
    atomic_int shaken;       /* the peer's handshake is over    */
    atomic_int arrived;      /* bytes that the server received  */
    atomic_int sent;         /* answers of the server           */
    int asked;               /* of them: that were begun        */
    atomic_int answered;     /* bytes that the peer received    */
    atomic_int closed;       /* connections                     */
    atomic_int server_ended; /* of them the server's            */
};

static struct scene *scene_of(struct net_conn *conn, int i)
{
    return container_of(conn - i, struct scene, conn[0]);
}

static void piece_sent(struct net_send *send, icms_err err)
{
    free(container_of(send, struct piece, send));
}

/* The peer sends bytes as they are. */
static void peer_send(struct scene *scene, const void *bytes, size_t count)
{
    struct piece *piece = calloc(1, sizeof(*piece));

    check(piece != NULL && count <= sizeof(piece->bytes));
    memcpy(piece->bytes, bytes, count);
    piece->send.vectors[0] = (struct iovec){piece->bytes, count};
    piece->send.count = 1;
    piece->send.done = piece_sent;
    net_conn_send(&scene->conn[0], &piece->send);
}

static void peer_record(struct scene *scene, enum crypt_record_type type, const void *content,
                        size_t count)
{
    uint8_t record[CRYPT_RECORD_DATA_MAX + CRYPT_RECORD_SEALED_EXTRA];
    struct iovec data = {(void *)(uintptr_t)content, count};

    peer_send(scene, record, crypt_record_seal(&scene->seal, type, &data, 1, record));
}

static void peer_recv(struct scene *scene)
{
    net_conn_recv(&scene->conn[0], scene->in + scene->in_bytes, ROOM - scene->in_bytes, false);
}

static void peer_step(struct scene *scene, const uint8_t *record, size_t bytes)
{
    struct crypt_tls_result result;
    uint8_t out[CRYPT_TLS_OUT_MAX];
    size_t count;
    bool done;

    if (crypt_tls_step(scene->handshake, record, bytes, out, &count, &done) != ICMS_OK)
        return;
    if (count > 0)
        peer_send(scene, out, count);
    if (!done)
        return;
    crypt_tls_result(scene->handshake, &result);
    check(crypt_record_init(&scene->seal, true, result.hash, result.send) == ICMS_OK);
    check(crypt_record_init(&scene->open, false, result.hash, result.receive) == ICMS_OK);
    crypt_tls_handshake_free(&scene->handshake);
    atomic_store(&scene->shaken, 1);
}

static void peer_record_in(struct scene *scene, uint8_t *record, uint32_t bytes)
{
    enum crypt_record_type type;
    enum crypt_alert alert;
    uint32_t n;

    if (scene->handshake != NULL) {
        peer_step(scene, record, bytes + CRYPT_RECORD_HEADER_BYTES);
        return;
    }
    check(crypt_record_open(&scene->open, record, record + 5, bytes, record + 5, &type, &n,
                            &alert) == ICMS_OK);
    if (type == CRYPT_RECORD_DATA) {
        memcpy(scene->got + scene->got_bytes, record + 5, n);
        scene->got_bytes += n;
        atomic_store(&scene->answered, (int)scene->got_bytes);
        return;
    }
    check(n <= sizeof(scene->control));
    memcpy(scene->control, record + 5, n);
    scene->control_type = type;
    if (type == CRYPT_RECORD_HANDSHAKE) {
        check(crypt_record_update(&scene->open) == ICMS_OK);
        scene->updates++;
    }
}

static void peer_received(struct net_conn *conn, icms_err err, uint32_t bytes)
{
    struct scene *scene = scene_of(conn, 0);
    uint32_t at = 0;

    scene->in_bytes += bytes;
    while (scene->in_bytes - at >= 5) {
        uint32_t body = (uint32_t)scene->in[at + 3] << 8 | scene->in[at + 4];

        if (scene->in_bytes - at < 5 + body)
            break;
        peer_record_in(scene, scene->in + at, body);
        at += 5 + body;
    }
    memmove(scene->in, scene->in + at, scene->in_bytes - at);
    scene->in_bytes -= at;
    if (err == ICMS_OK)
        peer_recv(scene);
}

static void server_received(struct net_conn *conn, icms_err err, uint32_t bytes)
{
    struct scene *scene = scene_of(conn, 1);

    scene->received += bytes;
    atomic_store(&scene->arrived, (int)scene->received);
    if (err == ICMS_OK)
        net_conn_recv(conn, scene->memory + scene->received, ROOM - scene->received, false);
}

static void peer_closed(struct net_conn *conn, icms_err why)
{
    scene_of(conn, 0)->why[0] = why;
    atomic_fetch_add(&scene_of(conn, 0)->closed, 1);
}

static void server_closed(struct net_conn *conn, icms_err why)
{
    scene_of(conn, 1)->why[1] = why;
    atomic_store(&scene_of(conn, 1)->server_ended, 1);
    atomic_fetch_add(&scene_of(conn, 1)->closed, 1);
}

static const struct net_conn_ops peer_ops = {.recv_done = peer_received, .closed = peer_closed};
static const struct net_conn_ops server_ops = {.recv_done = server_received,
                                               .closed = server_closed};

static void scene_failed(struct net_tls_side *side, const char *hostnqn,
                         const struct loop_addr *peer, const char *why)
{
    struct scene *scene = side->arg;

    (void)snprintf(scene->host, sizeof(scene->host), "%s", hostnqn);
    (void)snprintf(scene->words, sizeof(scene->words), "%s", why);
}

static void scene_open_run(void *arg)
{
    struct scene *scene = arg;
    struct net_conn_opts peer = {.ops = &peer_ops};
    struct net_conn_opts server = {.ops = &server_ops, .tls = &scene->tls.side[1]};

    net_conn_open(&scene->conn[0], scene->rig->loop[0], scene->pair.sock[0], &peer);
    net_conn_open(&scene->conn[1], scene->rig->loop[0], scene->pair.sock[1], &server);
    net_conn_recv(&scene->conn[1], scene->memory, ROOM, false);
    peer_recv(scene);
    if (scene->handshake != NULL)
        peer_step(scene, NULL, 0);
}

/* A server, and a peer that shakes hands or does not. */
static struct scene *scene_new(struct rig *rig, bool shakes)
{
    struct scene *scene = calloc(1, sizeof(*scene));

    check(scene != NULL);
    scene->rig = rig;
    tls_rig_init(&scene->tls, KEY_HASH_SHA384);
    scene->tls.side[1].arg = scene;
    scene->tls.side[1].failed = scene_failed;
    if (shakes)
        check(crypt_tls_handshake_new(scene->tls.settings[0], &scene->handshake) == ICMS_OK);
    net_rig_start(rig);
    net_rig_pair(rig, &scene->pair);
    return scene;
}

static bool scene_is_open(void *arg)
{
    struct scene *scene = arg;

    return atomic_load(&scene->tls.side[1].succeeded) == 1;
}

static void scene_open(struct scene *scene)
{
    bool shakes = scene->handshake != NULL;

    net_rig_call(scene->rig, scene_open_run, scene);
    if (shakes) {
        net_rig_wait(scene->rig, &scene->shaken, 1);
        assert_true(scene->rig->until(scene->rig, scene_is_open, scene));
    }
}

static void scene_close_run(void *arg)
{
    struct scene *scene = arg;

    net_conn_close(&scene->conn[0], ICMS_CLOSED);
    net_conn_close(&scene->conn[1], ICMS_CLOSED);
}

static void scene_free(struct scene *scene)
{
    net_rig_call(scene->rig, scene_close_run, scene);
    net_rig_wait(scene->rig, &scene->closed, 2);
    assert_int_equal(scene->tls.side[1].pending, 0);
    assert_int_equal(scene->tls.side[1].open_user, 0);
    assert_int_equal(scene->tls.side[1].open_kernel, 0);
    net_rig_end(scene->rig);
    crypt_tls_handshake_free(&scene->handshake);
    crypt_record_fini(&scene->seal);
    crypt_record_fini(&scene->open);
    tls_rig_fini(&scene->tls);
    free(scene);
}

/* The server closes for this reason, with so many bytes handed on. */
static void server_ends(struct scene *scene, icms_err why, uint32_t received)
{
    net_rig_wait(scene->rig, &scene->server_ended, 1);
    assert_int_equal(scene->why[1], why);
    assert_int_equal(scene->received, received);
}

struct tls_asked {
    const struct scene *scene;
    enum net_tls_how how;
};

static void tls_ask(void *arg)
{
    struct tls_asked *asked = arg;

    asked->how = net_conn_tls(&asked->scene->conn[1]);
}

/* Of the server's connection. */
static enum net_tls_how tls_how(const struct scene *scene)
{
    struct tls_asked asked = {.scene = scene};

    net_rig_call(scene->rig, tls_ask, &asked);
    return asked.how;
}

/* The kernel opens the server's records: what it does not tell is not known here. */
static bool kernel_opens(const struct scene *scene)
{
    return tls_how(scene) == NET_TLS_KERNEL;
}

/* ---- records --------------------------------------------------------------------------------- */

static void send_empty_run(void *arg)
{
    for (int i = 0; i < 32; i++)
        peer_record(arg, CRYPT_RECORD_DATA, "", 0);
    peer_record(arg, CRYPT_RECORD_DATA, "data", 4);
}

static void send_empty_more_run(void *arg)
{
    for (int i = 0; i < 33; i++)
        peer_record(arg, CRYPT_RECORD_DATA, "", 0);
}

static void empty_records_pass_and_a_flood_of_them_does_not(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    net_rig_call(scene->rig, send_empty_run, scene);
    net_rig_wait(scene->rig, &scene->arrived, 4);
    assert_memory_equal(scene->memory, "data", 4);
    if (!kernel_opens(scene)) { /* it drops empty records itself */
        net_rig_call(scene->rig, send_empty_more_run, scene);
        server_ends(scene, ICMS_PROTOCOL, 4);
    }
    scene_free(scene);
}

static void send_oversize_run(void *arg)
{
    static const uint8_t header[] = {23, 3, 3, 0x41, 1, 0};

    peer_record(arg, CRYPT_RECORD_DATA, "data", 4);
    peer_send(arg, header, sizeof(header));
}

static void an_oversize_record_ends_the_connection(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    net_rig_call(scene->rig, send_oversize_run, scene);
    server_ends(scene, ICMS_PROTOCOL, 4);
    scene_free(scene);
}

static void send_random_run(void *arg)
{
    uint8_t bytes[4096];

    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = net_rig_byte(i);
    bytes[0] = CRYPT_RECORD_DATA; /* as near as a stranger can come */
    bytes[3] = 1;
    peer_send(arg, bytes, sizeof(bytes));
}

static void random_bytes_after_the_handshake_end_the_connection(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    net_rig_call(scene->rig, send_random_run, scene);
    server_ends(scene, ICMS_PROTOCOL, 0);
    scene_free(scene);
}

static void send_plain_after_run(void *arg)
{
    peer_send(arg, "\0\0\200\0\200\0\0\0 an NVMe/TCP header", 27);
}

static void plain_bytes_after_the_handshake_end_the_connection(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    net_rig_call(scene->rig, send_plain_after_run, scene);
    server_ends(scene, ICMS_PROTOCOL, 0);
    scene_free(scene);
}

static void send_flipped_run(void *arg)
{
    uint8_t content[8000], record[8000 + CRYPT_RECORD_SEALED_EXTRA];
    struct scene *scene = arg;
    struct iovec data = {content, sizeof(content)};
    size_t bytes;

    memset(content, 'x', sizeof(content));
    peer_record(scene, CRYPT_RECORD_DATA, "data", 4);
    bytes = crypt_record_seal(&scene->seal, CRYPT_RECORD_DATA, &data, 1, record);
    record[bytes / 2] ^= 1;
    peer_send(scene, record, bytes);
}

static void a_changed_record_is_not_handed_on(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    net_rig_call(scene->rig, send_flipped_run, scene);
    server_ends(scene, ICMS_PROTOCOL, 4);
    scene_free(scene);
}

static void send_cut_run(void *arg)
{
    uint8_t content[8000], record[8000 + CRYPT_RECORD_SEALED_EXTRA];
    struct scene *scene = arg;
    struct iovec data = {content, sizeof(content)};
    size_t bytes;

    memset(content, 'x', sizeof(content));
    bytes = crypt_record_seal(&scene->seal, CRYPT_RECORD_DATA, &data, 1, record);
    peer_send(scene, record, bytes - 1);
}

static void end_peer_run(void *arg)
{
    struct scene *scene = arg;

    net_conn_close(&scene->conn[0], ICMS_CLOSED);
}

static void a_cut_record_is_not_handed_on(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    net_rig_call(scene->rig, send_cut_run, scene);
    scene->rig->idle(scene->rig);
    net_rig_call(scene->rig, end_peer_run, scene);
    server_ends(scene, ICMS_RESET, 0);
    scene_free(scene);
}

/* ---- alerts and key updates ------------------------------------------------------------------ */

static void send_close_notify_run(void *arg)
{
    peer_record(arg, CRYPT_RECORD_DATA, "data", 4);
    peer_record(arg, CRYPT_RECORD_ALERT, "\1\132", 2); /* user_canceled: no end */
    peer_record(arg, CRYPT_RECORD_DATA, "data", 4);
    peer_record(arg, CRYPT_RECORD_ALERT, "\1\0", 2);
    peer_record(arg, CRYPT_RECORD_DATA, "never", 5);
}

static void close_notify_is_the_end_of_the_stream(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    net_rig_call(scene->rig, send_close_notify_run, scene);
    server_ends(scene, ICMS_RESET, 8);
    scene_free(scene);
}

static void send_update_run(void *arg)
{
    struct scene *scene = arg;

    peer_record(scene, CRYPT_RECORD_DATA, "one", 3);
    peer_record(scene, CRYPT_RECORD_HANDSHAKE, "\30\0\0\1\1", 5);
    check(crypt_record_update(&scene->seal) == ICMS_OK);
    peer_record(scene, CRYPT_RECORD_DATA, "two", 3);
}

static void answer_sent(struct net_send *send, icms_err err)
{
    atomic_fetch_add(&container_of(send, struct scene, answer.send)->sent, 1);
}

static void answer_run(void *arg)
{
    struct scene *scene = arg;

    scene->answer.send = (struct net_send){.count = 1, .done = answer_sent};
    scene->answer.send.vectors[0] = (struct iovec){(void *)(uintptr_t) "answer", 6};
    net_conn_send(&scene->conn[1], &scene->answer.send);
}

/* The connection may end by itself meanwhile. */
static void answer_if_open_run(void *arg)
{
    struct scene *scene = arg;

    if (scene->conn[1].state != NET_CONN_CLOSED)
        answer_run(scene);
}

static bool sent_or_ended(void *arg)
{
    struct scene *scene = arg;

    return atomic_load(&scene->sent) == scene->asked || atomic_load(&scene->server_ended) != 0;
}

static bool updated_or_ended(void *arg)
{
    struct scene *scene = arg;

    return atomic_load(&scene->arrived) == 6 || atomic_load(&scene->server_ended) != 0;
}

static void key_updates_are_followed_and_answered(void **state)
{
    struct scene *scene = scene_new(*state, true);
    bool was_kernel;

    scene_open(scene);
    net_rig_call(scene->rig, answer_run, scene);
    net_rig_wait(scene->rig, &scene->answered, 6);
    was_kernel = kernel_opens(scene);
    net_rig_call(scene->rig, send_update_run, scene);
    assert_true(scene->rig->until(scene->rig, updated_or_ended, scene));
    if (was_kernel && atomic_load(&scene->server_ended) != 0) { /* before Linux 6.14 */
        assert_int_equal(scene->why[1], ICMS_RESET);
        assert_memory_equal(scene->memory, "one", scene->received);
    } else {
        assert_memory_equal(scene->memory, "onetwo", 6);
        net_rig_call(scene->rig, answer_run, scene);
        net_rig_wait(scene->rig, &scene->answered, 12);
        assert_int_equal(scene->updates, 1);
        assert_memory_equal(scene->control, "\30\0\0\1\0", 5);
        assert_memory_equal(scene->got, "answeranswer", 12);
    }
    scene_free(scene);
}

static void a_key_makes_so_many_records_and_no_more(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    if (kernel_opens(scene)) { /* below */
        scene_free(scene);
        return;
    }
    assert_int_equal(fault_arm("net.tls_key:1:fail+", NULL), ICMS_OK);
    for (int i = 1; i <= 60; i++) {
        net_rig_call(scene->rig, answer_run, scene);
        net_rig_wait(scene->rig, &scene->answered, 6 * i);
    }
    assert_int_equal(fault_arm("", NULL), ICMS_OK);
    /* of 16 records, each send keeps ten: eight that it may make, and two */
    assert_true(scene->updates >= 60 / 16 && scene->updates <= 60 / 6);
    assert_memory_equal(scene->got + 59 * 6, "answer", 6);
    scene_free(scene);
}

/* A kernel that makes records, or so it says: they come as they are. */
static struct {
    bool is_there, can_change, tells;
    uint32_t keys, updates;
    uint64_t records; /* of the key */
} kernel;

icms_err __real_loop_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys);
icms_err __wrap_loop_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys);
icms_err __wrap_loop_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys)
{
    if (!kernel.is_there)
        return __real_loop_sock_tls(sock, keys);
    if (!keys->is_send)
        return ICMS_UNSUPPORTED;
    kernel.records = 0;
    return kernel.keys++ == 0 || kernel.can_change ? ICMS_OK : ICMS_UNSUPPORTED;
}

icms_err __real_loop_sock_tls_records(struct loop_sock *sock, bool is_send, uint64_t *out_records);
icms_err __wrap_loop_sock_tls_records(struct loop_sock *sock, bool is_send, uint64_t *out_records);
icms_err __wrap_loop_sock_tls_records(struct loop_sock *sock, bool is_send, uint64_t *out_records)
{
    if (!kernel.is_there)
        return __real_loop_sock_tls_records(sock, is_send, out_records);
    if (!kernel.tells)
        return ICMS_UNSUPPORTED;
    *out_records = kernel.records;
    return ICMS_OK;
}

bool __real_loop_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes,
                               size_t count);
bool __wrap_loop_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes,
                               size_t count);
bool __wrap_loop_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes,
                               size_t count)
{
    if (!kernel.is_there)
        return __real_loop_sock_tls_send(sock, type, bytes, count);
    kernel.updates += type == CRYPT_RECORD_HANDSHAKE;
    return true;
}

static void a_key_of_the_kernel_is_changed_or_the_connection_ends(void **state)
{
    for (int way = 0; way < 4; way++) {
        struct scene *scene = scene_new(*state, true);
        bool can_change = way % 2 == 1;
        int sent = 0;

        kernel =
            (__typeof__(kernel)){.is_there = true, .can_change = can_change, .tells = way >= 2};
        scene_open(scene);
        assert_int_equal(tls_how(scene), NET_TLS_MIXED);
        assert_int_equal(fault_arm("net.tls_key:1:fail+", NULL), ICMS_OK);
        while (sent < 60 && atomic_load(&scene->server_ended) == 0) {
            scene->asked = ++sent;
            net_rig_call(scene->rig, answer_if_open_run, scene);
            assert_true(scene->rig->until(scene->rig, sent_or_ended, scene));
            kernel.records++;
        }
        assert_int_equal(fault_arm("", NULL), ICMS_OK);
        if (can_change) {
            assert_int_equal(sent, 60);
            assert_true(kernel.updates >= 60 / 16 && kernel.keys == 1 + kernel.updates);
            if (kernel.tells) /* as many as there were, not as there may have been */
                assert_true(kernel.updates <= 60 / 13);
        } else {
            net_rig_wait(scene->rig, &scene->server_ended, 1);
            assert_int_equal(scene->why[1], ICMS_LIMIT);
            assert_true(sent > (kernel.tells ? 13 : 4) && sent <= 16);
        }
        kernel.is_there = false;
        scene_free(scene);
    }
}

static void send_many_run(void *arg)
{
    for (int i = 0; i < 40; i++)
        peer_record(arg, CRYPT_RECORD_DATA, "x", 1);
}

/* A peer that never changes its key is not listened to for ever. */
static void a_peer_makes_so_many_records_with_a_key(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    assert_int_equal(fault_arm("net.tls_key:1:fail+", NULL), ICMS_OK);
    net_rig_call(scene->rig, send_many_run, scene);
    net_rig_wait(scene->rig, &scene->server_ended, 1);
    assert_int_equal(fault_arm("", NULL), ICMS_OK);
    assert_int_equal(scene->why[1], ICMS_LIMIT);
    assert_in_range(scene->received, 0, 40);
    scene_free(scene);
}

static void send_large_run(void *arg)
{
    struct scene *scene = arg;

    scene->answer.send = (struct net_send){.count = 1, .done = answer_sent};
    scene->answer.send.vectors[0] = (struct iovec){scene->memory, 40000};
    net_conn_send(&scene->conn[1], &scene->answer.send);
}

static void expect_counts_run(void *arg)
{
    struct scene *scene = arg;
    uint64_t records;

    assert_int_equal(loop_sock_tls_records(scene->conn[1].sock, true, &records), ICMS_OK);
    assert_int_equal(records, 5 + 3); /* 40,000 bytes are three */
    assert_int_equal(loop_sock_tls_records(scene->conn[1].sock, false, &records), ICMS_OK);
    assert_int_equal(records, 33);
}

/* Where the kernel has TLS, which is in the guest of test/interop/ktls.py. */
static void a_kernel_tells_how_many_records_there_were(void **state)
{
    struct scene *scene = scene_new(*state, true);

    scene_open(scene);
    if (kernel_opens(scene)) {
        net_rig_call(scene->rig, send_empty_run, scene);
        net_rig_wait(scene->rig, &scene->arrived, 4);
        for (int i = 1; i <= 5; i++) {
            net_rig_call(scene->rig, answer_run, scene);
            net_rig_wait(scene->rig, &scene->answered, 6 * i);
        }
        net_rig_call(scene->rig, send_large_run, scene);
        net_rig_wait(scene->rig, &scene->answered, 30 + 40000);
        net_rig_call(scene->rig, expect_counts_run, scene);
    }
    scene_free(scene);
}

static void send_updates_run(void *arg)
{
    struct scene *scene = arg;

    for (int i = 0; i < 40; i++) {
        peer_record(scene, CRYPT_RECORD_HANDSHAKE, "\30\0\0\1\0", 5);
        check(crypt_record_update(&scene->seal) == ICMS_OK);
    }
}

static void a_flood_of_key_updates_ends_the_connection(void **state)
{
    struct scene *scene = scene_new(*state, true);
    bool was_kernel;

    scene_open(scene);
    was_kernel = kernel_opens(scene);
    net_rig_call(scene->rig, send_updates_run, scene);
    net_rig_wait(scene->rig, &scene->server_ended, 1);
    assert_true(scene->why[1] == ICMS_PROTOCOL || (was_kernel && scene->why[1] == ICMS_RESET));
    scene_free(scene);
}

static void send_hello_again_run(void *arg)
{
    peer_record(arg, CRYPT_RECORD_HANDSHAKE, "\1\0\0\1\0", 5); /* renegotiation */
}

static void send_ticket_run(void *arg)
{
    peer_record(arg, CRYPT_RECORD_HANDSHAKE, "\4\0\0\1\0", 5);
}

static void send_update_wrong_run(void *arg)
{
    peer_record(arg, CRYPT_RECORD_HANDSHAKE, "\30\0\0\1\2", 5);
}

static void send_update_cut_run(void *arg)
{
    peer_record(arg, CRYPT_RECORD_HANDSHAKE, "\30\0\0", 3);
}

static void other_messages_after_the_handshake_end_the_connection(void **state)
{
    static void (*const runs[])(void *arg) = {send_hello_again_run, send_ticket_run,
                                              send_update_wrong_run, send_update_cut_run};
    struct rig *rig = *state;

    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        struct scene *scene = scene_new(rig, true);

        scene_open(scene);
        net_rig_call(scene->rig, runs[i], scene);
        server_ends(scene, ICMS_PROTOCOL, 0);
        scene_free(scene);
    }
}

static void the_server_says_goodbye(void **state)
{
    struct rig *rig = *state;
    struct scene *scene;
    bool was_kernel;

    if (!rig->threads)
        skip(); /* the simulation sends nothing without waiting */
    scene = scene_new(rig, true);
    scene_open(scene);
    was_kernel = kernel_opens(scene);
    net_rig_call(scene->rig, send_oversize_run, scene);
    server_ends(scene, ICMS_PROTOCOL, 4);
    net_rig_wait(scene->rig, &scene->closed, 2);
    assert_int_equal(scene->control_type, CRYPT_RECORD_ALERT);
    assert_memory_equal(scene->control, was_kernel ? "\2\24" : "\2\26", 2);
    scene_free(scene);
}

/* ---- handshakes ------------------------------------------------------------------------------ */

static void send_ic_req_run(void *arg)
{
    uint8_t ic[128] = {0, 0, 128, 0, 128};

    peer_send(arg, ic, sizeof(ic));
}

static void plain_is_refused_where_tls_is_required(void **state)
{
    struct scene *scene = scene_new(*state, false);

    scene_open(scene);
    net_rig_call(scene->rig, send_ic_req_run, scene);
    server_ends(scene, ICMS_PROTOCOL, 0);
    assert_int_equal(scene->tls.side[1].plain, 1);
    assert_string_equal(scene->words, "it does not begin with TLS, which is required");
    assert_string_equal(scene->host, "");
    scene_free(scene);
}

static void plain_passes_whole_where_it_is_allowed(void **state)
{
    struct scene *scene = scene_new(*state, false);

    scene->tls.side[1].allows_plain = true;
    scene_open(scene);
    net_rig_call(scene->rig, send_ic_req_run, scene);
    net_rig_wait(scene->rig, &scene->arrived, 128);
    assert_memory_equal(scene->memory, "\0\0\200\0\200\0\0", 7);
    assert_string_equal(net_conn_hostnqn(&scene->conn[1]), "");
    assert_int_equal(net_conn_tls(&scene->conn[1]), NET_TLS_NONE);
    scene_free(scene);
}

static void a_wrong_key_is_refused_and_named(void **state)
{
    struct scene *scene = scene_new(*state, true);

    struct crypt_tls *other;

    scene->tls.psk.key[7] ^= 1; /* the server's; the peer's is made */
    other = tls_rig_server(&scene->tls);
    assert_true(crypt_tls_replace(scene->tls.settings[1], &other));
    net_rig_call(scene->rig, scene_open_run, scene);
    server_ends(scene, ICMS_AUTH, 0);
    assert_int_equal(scene->tls.side[1].refused, 1);
    assert_string_equal(scene->host, TLS_RIG_HOST);
    assert_string_equal(scene->words, "no key of this host has that identity");
    scene_free(scene);
}

static void a_handshake_that_does_not_end_is_ended(void **state)
{
    struct scene *scene = scene_new(*state, false);

    scene->tls.side[1].timeout_ns = 20 * NET_RIG_MS;
    scene_open(scene);
    net_rig_call(scene->rig, send_random_run, scene); /* begins with 23: no TLS handshake */
    server_ends(scene, ICMS_PROTOCOL, 0);
    scene_free(scene);
    scene = scene_new(*state, false);
    scene->tls.side[1].timeout_ns = 20 * NET_RIG_MS;
    scene_open(scene); /* says nothing */
    server_ends(scene, ICMS_DEADLINE, 0);
    assert_int_equal(scene->tls.side[1].timeouts, 1);
    scene_free(scene);
}

static void send_half_run(void *arg)
{
    static const uint8_t half[] = {22, 3, 1, 1, 0, 1};

    peer_send(arg, half, sizeof(half));
}

static void send_long_run(void *arg)
{
    static const uint8_t too_long[] = {22, 3, 1, 0x40, 0, 1};

    peer_send(arg, too_long, sizeof(too_long));
}

static void a_long_handshake_costs_no_more_memory(void **state)
{
    struct scene *scene = scene_new(*state, false);

    scene_open(scene);
    net_rig_call(scene->rig, send_long_run, scene);
    server_ends(scene, ICMS_PROTOCOL, 0);
    scene_free(scene);
}

/* ---- a flood of them ------------------------------------------------------------------------- */

#define FLOOD 5

struct flood {
    struct scene *scene;
    struct net_rig_pair pair[FLOOD];
    struct net_conn conn[FLOOD][2];
    icms_err why[FLOOD][2];
    atomic_int closed;
};

static struct flood *the_flood;

static void flood_received(struct net_conn *conn, icms_err err, uint32_t bytes)
{
}

static void flood_closed(struct net_conn *conn, icms_err why)
{
    size_t i = (size_t)(conn - &the_flood->conn[0][0]);

    the_flood->why[i / 2][i % 2] = why;
    atomic_fetch_add(&the_flood->closed, 1);
}

static const struct net_conn_ops flood_ops = {.recv_done = flood_received, .closed = flood_closed};

static void flood_open_run(void *arg)
{
    struct flood *flood = arg;

    for (int i = 0; i < FLOOD; i++) {
        struct net_conn_opts peer = {.ops = &flood_ops};
        struct net_conn_opts server = {.ops = &flood_ops, .tls = &flood->scene->tls.side[1]};

        net_conn_open(&flood->conn[i][0], flood->scene->rig->loop[0], flood->pair[i].sock[0],
                      &peer);
        net_conn_open(&flood->conn[i][1], flood->scene->rig->loop[0], flood->pair[i].sock[1],
                      &server);
    }
}

static void flood_close_run(void *arg)
{
    struct flood *flood = arg;

    for (int i = 0; i < 2 * FLOOD; i++)
        net_conn_close(&flood->conn[i / 2][i % 2], ICMS_CLOSED);
}

static void a_flood_ends_its_oldest_and_others_get_through(void **state)
{
    struct scene *scene = scene_new(*state, true);
    struct flood *flood = calloc(1, sizeof(*flood));

    check(flood != NULL);
    the_flood = flood;
    flood->scene = scene;
    scene->tls.side[1].pending_max = 3;
    for (int i = 0; i < FLOOD; i++)
        net_rig_pair(scene->rig, &flood->pair[i]);
    net_rig_call(scene->rig, flood_open_run, flood);
    net_rig_wait(scene->rig, &flood->closed, FLOOD - 3);
    assert_int_equal(scene->tls.side[1].evicted, FLOOD - 3);
    assert_int_equal(scene->tls.side[1].pending, 3);
    assert_int_equal(flood->why[0][1], ICMS_BUSY);
    scene_open(scene); /* an honest one */
    net_rig_call(scene->rig, send_empty_run, scene);
    net_rig_wait(scene->rig, &scene->arrived, 4);
    assert_int_equal(scene->tls.side[1].succeeded, 1);
    assert_int_equal(scene->tls.side[1].pending, 2);
    net_rig_call(scene->rig, flood_close_run, flood);
    net_rig_wait(scene->rig, &flood->closed, 2 * FLOOD);
    scene_free(scene);
    free(flood);
}

static void a_handshake_may_end_with_the_loop(void **state)
{
    struct scene *scene = scene_new(*state, false);

    scene_open(scene);
    net_rig_call(scene->rig, send_half_run, scene);
    scene->rig->idle(scene->rig);
    net_rig_end(scene->rig);
    net_conn_fini(&scene->conn[0]);
    net_conn_fini(&scene->conn[1]);
    tls_rig_fini(&scene->tls);
    free(scene);
}

#define BOTH(test)                                                                                 \
    {"uring: " #test, test, rig_uring_setup, rig_uring_teardown, NULL},                            \
    {                                                                                              \
        "sim: " #test, test, rig_sim_setup, rig_sim_teardown, NULL                                 \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(empty_records_pass_and_a_flood_of_them_does_not),
        BOTH(an_oversize_record_ends_the_connection),
        BOTH(random_bytes_after_the_handshake_end_the_connection),
        BOTH(plain_bytes_after_the_handshake_end_the_connection),
        BOTH(a_changed_record_is_not_handed_on),
        BOTH(a_cut_record_is_not_handed_on),
        BOTH(close_notify_is_the_end_of_the_stream),
        BOTH(key_updates_are_followed_and_answered),
        BOTH(a_key_makes_so_many_records_and_no_more),
        BOTH(a_key_of_the_kernel_is_changed_or_the_connection_ends),
        BOTH(a_peer_makes_so_many_records_with_a_key),
        BOTH(a_kernel_tells_how_many_records_there_were),
        BOTH(a_flood_of_key_updates_ends_the_connection),
        BOTH(other_messages_after_the_handshake_end_the_connection),
        BOTH(the_server_says_goodbye),
        BOTH(plain_is_refused_where_tls_is_required),
        BOTH(plain_passes_whole_where_it_is_allowed),
        BOTH(a_wrong_key_is_refused_and_named),
        BOTH(a_handshake_that_does_not_end_is_ended),
        BOTH(a_long_handshake_costs_no_more_memory),
        BOTH(a_flood_ends_its_oldest_and_others_get_through),
        BOTH(a_handshake_may_end_with_the_loop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
