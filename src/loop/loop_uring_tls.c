/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS records by the kernel (kTLS) on sockets of the io_uring back end, and what is sent without
 * waiting.
 *
 * Called on the loop's thread by net. None of these calls blocks.
 */
#include <errno.h>
#include <linux/tls.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "loop/loop_uring.h"

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef SOL_TLS
#define SOL_TLS 282
#endif

void uring_sock_send_now(struct loop_sock *sock, const void *bytes, size_t count)
{
    (void)!send(uring_sock_of(sock)->fd, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* What the kernel knows of a direction's key. */
union tls_crypto {
    struct tls_crypto_info info;
    struct tls12_crypto_info_aes_gcm_128 gcm_128;
    struct tls12_crypto_info_aes_gcm_256 gcm_256;
};

/* The sequence number of a kernel's key is in network order. */
static void tls_sequence(uint64_t sequence, unsigned char out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(sequence >> 8 * (7 - i));
}

icms_err uring_sock_tls(struct loop_sock *sock, const struct loop_tls_keys *keys)
{
    union tls_crypto crypto = {.info = {.version = TLS_1_3_VERSION}};
    int fd = uring_sock_of(sock)->fd;
    socklen_t bytes;
    bool ok;

    static_assert(sizeof(crypto.gcm_128.salt) == 4 && sizeof(crypto.gcm_128.iv) == 8, "12 of IV");
    if (keys->is_256) {
        crypto.info.cipher_type = TLS_CIPHER_AES_GCM_256;
        memcpy(crypto.gcm_256.key, keys->key, sizeof(crypto.gcm_256.key));
        memcpy(crypto.gcm_256.salt, keys->iv, 4);
        memcpy(crypto.gcm_256.iv, keys->iv + 4, 8);
        tls_sequence(keys->sequence, crypto.gcm_256.rec_seq);
        bytes = sizeof(crypto.gcm_256);
    } else {
        crypto.info.cipher_type = TLS_CIPHER_AES_GCM_128;
        memcpy(crypto.gcm_128.key, keys->key, sizeof(crypto.gcm_128.key));
        memcpy(crypto.gcm_128.salt, keys->iv, 4);
        memcpy(crypto.gcm_128.iv, keys->iv + 4, 8);
        tls_sequence(keys->sequence, crypto.gcm_128.rec_seq);
        bytes = sizeof(crypto.gcm_128);
    }
    ok = (setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) == 0 || errno == EEXIST) &&
         setsockopt(fd, SOL_TLS, keys->is_send ? TLS_TX : TLS_RX, &crypto, bytes) == 0;
    explicit_bzero(&crypto, sizeof(crypto));
    return ok ? ICMS_OK : ICMS_UNSUPPORTED;
}

icms_err uring_sock_tls_recv(struct loop_sock *sock, uint8_t *out_type, void *memory, size_t bytes,
                             size_t *out_bytes)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(unsigned char))];
    } control;
    struct iovec vector = {.iov_base = memory, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
    ssize_t got = recvmsg(uring_sock_of(sock)->fd, &message, MSG_DONTWAIT);
    const struct cmsghdr *header = got >= 0 ? CMSG_FIRSTHDR(&message) : NULL;

    /* One that fills the memory may not be all of the record. */
    if (header == NULL || header->cmsg_level != SOL_TLS ||
        header->cmsg_type != TLS_GET_RECORD_TYPE || (size_t)got >= bytes)
        return ICMS_PROTOCOL;
    memcpy(out_type, CMSG_DATA(header), 1);
    *out_bytes = (size_t)got;
    return ICMS_OK;
}

/* It tells the key with the number of the next record: the key is wiped. */
icms_err uring_sock_tls_records(struct loop_sock *sock, bool is_send, uint64_t *out_records)
{
    union tls_crypto crypto = {.info = {.version = 0}};
    int fd = uring_sock_of(sock)->fd, which = is_send ? TLS_TX : TLS_RX;
    const unsigned char *next = crypto.gcm_128.rec_seq;
    socklen_t bytes = sizeof(crypto.info);
    uint64_t records = 0;
    bool ok = getsockopt(fd, SOL_TLS, which, &crypto, &bytes) == 0;

    bytes = sizeof(crypto.gcm_128);
    if (crypto.info.cipher_type == TLS_CIPHER_AES_GCM_256) {
        bytes = sizeof(crypto.gcm_256);
        next = crypto.gcm_256.rec_seq;
    }
    ok = ok && getsockopt(fd, SOL_TLS, which, &crypto, &bytes) == 0;
    for (int i = 0; i < 8; i++)
        records = records << 8 | next[i];
    explicit_bzero(&crypto, sizeof(crypto));
    if (!ok)
        return ICMS_UNSUPPORTED;
    *out_records = records;
    return ICMS_OK;
}

bool uring_sock_tls_send(struct loop_sock *sock, uint8_t type, const void *bytes, size_t count)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(unsigned char))];
    } control = {.header = {.cmsg_level = SOL_TLS,
                            .cmsg_type = TLS_SET_RECORD_TYPE,
                            .cmsg_len = CMSG_LEN(sizeof(unsigned char))}};
    struct iovec vector = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = count};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};

    memcpy(CMSG_DATA(&control.header), &type, 1);
    return sendmsg(uring_sock_of(sock)->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) ==
           (ssize_t)count;
}
