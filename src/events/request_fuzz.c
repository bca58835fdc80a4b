/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any frames at a replay socket: who asks rightly has one place and the number that he asked for,
 * and nobody another's. A window answers as publish.c asks it.
 *
 * An input is messages: the number of frames, then of each its length and bytes; or 0xff and the
 * number of a place that becomes free.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "events/request.h"
#include "events/window.h"

#define WINDOW_BYTES 4096
#define LONG_BYTES   300 /* what length 255 stands for: longer than what is kept of a frame */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

struct input {
    const uint8_t *at, *end;
};

static uint8_t next(struct input *input)
{
    return input->at < input->end ? *input->at++ : 0;
}

/* As replay_read() of publish.c has them. */
static void request_read(struct input *input, uint8_t frames, struct events_request *out_request)
{
    *out_request = (struct events_request){.count = 0};
    for (uint8_t i = 0; i < frames; i++) {
        size_t bytes = next(input);

        bytes = bytes == UINT8_MAX ? LONG_BYTES : bytes;
        for (size_t b = 0; b < bytes; b++) {
            uint8_t byte = next(input);

            if (i < EVENTS_FRAMES && b < EVENTS_FRAME_BYTES)
                out_request->frames[i][b] = byte;
        }
        if (i < EVENTS_FRAMES)
            out_request->bytes[i] = bytes;
        out_request->count++;
    }
}

static uint64_t asked(const struct events_request *request)
{
    uint64_t seq = 0;

    for (int i = 0; i < 8; i++)
        seq = seq * 256 + request->frames[2][i];
    return seq;
}

static void one_place_each(const struct events_replay *replays)
{
    for (int i = 0; i < EVENTS_REPLAYS_MAX; i++)
        for (int j = 0; j < i && replays[i].peer_bytes != 0; j++)
            check(replays[i].peer_bytes != replays[j].peer_bytes ||
                  memcmp(replays[i].peer, replays[j].peer, replays[i].peer_bytes) != 0);
}

static void answer(const struct events_window *window, const struct events_replay *replay)
{
    const void *payload;
    uint32_t bytes;
    uint64_t seq;

    if (!events_window_from(window, replay->next_seq, &seq, &payload, &bytes))
        return;
    check(seq >= replay->next_seq && bytes <= WINDOW_BYTES);
    check((const uint8_t *)payload >= window->memory &&
          (const uint8_t *)payload + bytes <= window->memory + window->size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct input input = {.at = data, .end = data + bytes};
    struct events_replay replays[EVENTS_REPLAYS_MAX] = {0};
    struct events_window window;
    uint64_t seq = 0;

    check(events_window_init(&window, WINDOW_BYTES) == ICMS_OK);
    while (input.at < input.end) {
        uint8_t what = next(&input);
        struct events_request request;
        struct events_replay *place;

        if (what == UINT8_MAX) {
            replays[next(&input) % EVENTS_REPLAYS_MAX].peer_bytes = 0;
            continue;
        }
        events_window_add(&window, seq++, data, (uint32_t)(bytes % (WINDOW_BYTES / 8)));
        request_read(&input, what % 6, &request);
        place = events_request_place(&request, replays);
        if (place != NULL) {
            check(request.count == 3 && request.bytes[1] == 0 && request.bytes[2] == 8);
            check(place->peer_bytes == request.bytes[0] && place->peer_bytes > 0 &&
                  place->peer_bytes <= sizeof(place->peer));
            check(memcmp(place->peer, request.frames[0], place->peer_bytes) == 0);
            check(place->next_seq == asked(&request));
            answer(&window, place);
        }
        one_place_each(replays);
    }
    events_window_fini(&window);
    return 0;
}
