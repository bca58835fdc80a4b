/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events/request.h: requests at a replay socket, [peer, "", eight big-endian bytes] as a REQ socket
 * sends them, and who is being answered. Pure: frames in, places out.
 */
#ifndef EVENTS_REQUEST_H
#define EVENTS_REQUEST_H

#include <stddef.h>
#include <stdint.h>

/* At a time. */
#define EVENTS_REPLAYS_MAX 16

/* What is looked at of a frame: ZeroMQ names a peer with 255 bytes at most. */
#define EVENTS_FRAME_BYTES 256
#define EVENTS_FRAMES      3

struct events_request {
    size_t count;                /* frames that came                              */
    size_t bytes[EVENTS_FRAMES]; /* of the first ones, also what did not fit      */
    uint8_t frames[EVENTS_FRAMES][EVENTS_FRAME_BYTES];
};

struct events_replay {
    uint8_t peer[EVENTS_FRAME_BYTES]; /* as the ROUTER socket names it */
    size_t peer_bytes;                /* 0: the place is free          */
    uint64_t next_seq, end_seq;
    uint64_t until_ms;
};

/* The place where the request is answered from now on, from the number that it asks for; the caller
 * sets end_seq and until_ms. NULL: it is no request, its peer has a place, or all are taken. */
struct events_replay *events_request_place(const struct events_request *request,
                                           struct events_replay replays[EVENTS_REPLAYS_MAX]);

#endif
