/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net/net_int.h: what a connection and the TLS below it ask of each other. Private to src/net.
 *
 * All on the connection's loop. A connection with conn->tls reaches its socket through these
 * functions alone; one without does not come here.
 */
#ifndef NET_NET_INT_H
#define NET_NET_INT_H

#include "net/net.h"

/* net_conn.c, for net_tls.c */

/* The owner's receive ended. The connection may be gone afterwards: nothing of it is touched. */
void net_conn_recv_end(struct net_conn *conn, icms_err err, uint32_t bytes);

/* The kernel has so many more bytes of what the owner sends (also 0: it goes on). */
void net_conn_send_end(struct net_conn *conn, icms_err err, uint32_t bytes);

/* Sends what is queued, when it may. */
void net_conn_flush(struct net_conn *conn);

/* Ends the close when nothing is in flight any more. */
void net_conn_closing(struct net_conn *conn);

/* net_tls.c, for net_conn.c */

/* Begins: a handshake, or a look at what the peer begins with. NULL: out of memory. */
struct net_tls *net_tls_new(struct net_conn *conn, struct net_tls_side *side);

/* Handshake over: bytes of the owner may go out. */
bool net_tls_is_open(const struct net_tls *tls);

/* As net_conn_recv on an open connection; it ends with net_conn_recv_end. */
void net_tls_recv(struct net_tls *tls, void *memory, uint32_t bytes, bool whole);
void net_tls_recv_cancel(struct net_tls *tls);

/* Sends of conn->vectors what fits; it ends with net_conn_send_end. */
void net_tls_send(struct net_tls *tls, uint32_t vectors);

/* The connection closes: tells the peer, as far as the socket takes it. Once. */
void net_tls_shutdown(struct net_tls *tls);

/* Something of it is in flight: net_conn_closing is called again when it ended. */
bool net_tls_busy(const struct net_tls *tls);

/* Bytes of the owner's receive so far. */
uint32_t net_tls_received(const struct net_tls *tls);

/* Nothing is in flight (or the loop was freed). *tls may be NULL. */
void net_tls_free(struct net_tls **tls);

#endif
