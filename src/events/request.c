/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events/request.c: see request.h. Used by publish.c on its thread.
 */
#include "events/request.h"

#include <stdbool.h>
#include <string.h>

#define SEQ_BYTES 8

static bool is_request(const struct events_request *request)
{
    return request->count == EVENTS_FRAMES && request->bytes[0] > 0 &&
           request->bytes[0] <= EVENTS_FRAME_BYTES && request->bytes[1] == 0 &&
           request->bytes[2] == SEQ_BYTES;
}

struct events_replay *events_request_place(const struct events_request *request,
                                           struct events_replay replays[EVENTS_REPLAYS_MAX])
{
    const uint8_t *peer = request->frames[0];
    struct events_replay *place = NULL;
    size_t bytes = request->bytes[0];

    if (!is_request(request))
        return NULL;
    for (int i = 0; i < EVENTS_REPLAYS_MAX; i++) {
        struct events_replay *replay = &replays[i];

        if (replay->peer_bytes == bytes && memcmp(replay->peer, peer, bytes) == 0)
            return NULL;
        if (replay->peer_bytes == 0)
            place = replay;
    }
    if (place == NULL)
        return NULL;
    *place = (struct events_replay){.peer_bytes = bytes};
    memcpy(place->peer, peer, bytes);
    for (int i = 0; i < SEQ_BYTES; i++)
        place->next_seq = place->next_seq << 8 | request->frames[2][i];
    return place;
}
