/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events/window.c: see window.h. A batch is contiguous: one that would reach over the end of the
 * memory begins at its start. Used by publish.c on its thread.
 */
#include "events/window.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* Memory for one entry of the table: batches are larger. */
#define WINDOW_BATCH_BYTES 64

icms_err events_window_init(struct events_window *window, uint64_t size)
{
    *window = (struct events_window){.size = size, .entry_max = size / WINDOW_BATCH_BYTES};
    window->memory = malloc(size);
    window->entries = calloc(window->entry_max, sizeof(window->entries[0]));
    if (window->memory != NULL && window->entries != NULL)
        return ICMS_OK;
    events_window_fini(window);
    return ICMS_NO_MEMORY;
}

void events_window_fini(struct events_window *window)
{
    free(window->memory);
    free(window->entries);
    *window = (struct events_window){0};
}

static struct events_window_entry *entry_at(const struct events_window *window, uint64_t number)
{
    return &window->entries[number % window->entry_max];
}

void events_window_add(struct events_window *window, uint64_t seq, const void *payload,
                       uint32_t bytes)
{
    uint64_t at = window->end;

    check(bytes <= window->size / 2);
    if (at % window->size + bytes > window->size)
        at += window->size - at % window->size;
    while (window->first < window->next &&
           (entry_at(window, window->first)->at + window->size < at + bytes ||
            window->next - window->first == window->entry_max))
        window->first++;
    memcpy(window->memory + at % window->size, payload, bytes);
    *entry_at(window, window->next++) =
        (struct events_window_entry){.seq = seq, .at = at, .bytes = bytes};
    window->end = at + bytes;
}

bool events_window_from(const struct events_window *window, uint64_t seq, uint64_t *out_seq,
                        const void **out_payload, uint32_t *out_bytes)
{
    uint64_t low = window->first, high = window->next;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;

        if (entry_at(window, middle)->seq < seq)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == window->next)
        return false;
    *out_seq = entry_at(window, low)->seq;
    *out_payload = window->memory + entry_at(window, low)->at % window->size;
    *out_bytes = entry_at(window, low)->bytes;
    return true;
}
