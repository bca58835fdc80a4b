/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace/trace.c: books of requests that are over, and the text about them.
 */
#include "trace/trace.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/json.h"

/* ---- life ----------------------------------------------------------------------------------- */

icms_err trace_book_init(struct trace_book *book)
{
    *book = (struct trace_book){.lock = PTHREAD_MUTEX_INITIALIZER};
    book->slow = calloc(2, sizeof(*book->slow));
    book->recent = calloc(TRACE_RECENT, sizeof(*book->recent));
    return book->slow != NULL && book->recent != NULL ? ICMS_OK : ICMS_NO_MEMORY;
}

void trace_book_fini(struct trace_book *book)
{
    free(book->slow);
    free(book->recent);
    *book = (struct trace_book){0};
}

/* ---- a request is over ---------------------------------------------------------------------- */

static uint64_t entry_us(const struct trace_entry *entry)
{
    return entry->end_ns > entry->trace.begin_ns ? (entry->end_ns - entry->trace.begin_ns) / 1000
                                                 : 0;
}

/* How long the request was in step i. */
static uint64_t entry_step_us(const struct trace_entry *entry, unsigned i)
{
    const struct trace *trace = &entry->trace;
    uint64_t end_us = i + 1 < trace->steps ? trace->since_us[i + 1] : entry_us(entry);

    return end_us > trace->since_us[i] ? end_us - trace->since_us[i] : 0;
}

static void slow_add(struct trace_slow *slow, const struct trace_entry *entry)
{
    if (slow->count < TRACE_SLOW)
        slow->entries[slow->count++] = *entry;
    else if (entry_us(entry) > entry_us(&slow->entries[slow->least]))
        slow->entries[slow->least] = *entry;
    else
        return;
    for (uint32_t i = slow->least = 0; i < slow->count; i++)
        if (entry_us(&slow->entries[i]) < entry_us(&slow->entries[slow->least]))
            slow->least = i;
}

/* A window is over; after two without a request nothing of them is left. */
static void book_window(struct trace_book *book, uint64_t now_ns)
{
    uint64_t age_ns = now_ns > book->window_ns ? now_ns - book->window_ns : 0;

    if (age_ns < TRACE_WINDOW_NS)
        return;
    if (age_ns < 2 * TRACE_WINDOW_NS)
        book->slow[1] = book->slow[0];
    else
        book->slow[1].count = 0;
    book->slow[0].count = book->slow[0].least = 0;
    book->window_ns = now_ns;
}

void trace_add(struct trace_book *book, const struct trace_entry *entry)
{
    check(entry->trace.steps > 0);
    for (unsigned i = 0; i < entry->trace.steps; i++) {
        struct trace_sum *sum = &book->sums[entry->trace.state[i] % TRACE_STATES];

        counter_add(&sum->count, 1);
        counter_add(&sum->us, entry_step_us(entry, i));
    }
    if (pthread_mutex_trylock(&book->lock) != 0) {
        counter_add(&book->missed, 1);
        return;
    }
    book->recent[book->added++ % TRACE_RECENT] = *entry;
    book_window(book, entry->end_ns);
    slow_add(&book->slow[0], entry);
    (void)pthread_mutex_unlock(&book->lock);
}

void trace_stats_add(const struct trace_book *book, const char *const *names, unsigned count,
                     struct trace_stats *io_stats)
{
    for (unsigned i = 0; i < count; i++) {
        io_stats[i].name = names[i];
        io_stats[i].count += counter_get(&book->sums[i].count);
        io_stats[i].us += counter_get(&book->sums[i].us);
    }
}

/* ---- what is remembered --------------------------------------------------------------------- */

/* Copies of entries, while they are sorted. */
struct found {
    struct trace_entry *entries;
    unsigned count, room;
    bool whole; /* there was memory for all of them */
};

static bool entry_is_same(const struct trace_entry *a, const struct trace_entry *b)
{
    return a->trace.begin_ns == b->trace.begin_ns && a->end_ns == b->end_ns && a->op == b->op &&
           a->volume == b->volume && key_equal(&a->key, &b->key);
}

static void found_add(struct found *found, const struct trace_entry *entry)
{
    if (found->count == found->room) {
        unsigned room = found->room == 0 ? 2 * TRACE_SLOW : 2 * found->room;
        struct trace_entry *more = realloc(found->entries, room * sizeof(*more));

        if (more == NULL) {
            found->whole = false;
            return;
        }
        found->entries = more;
        found->room = room;
    }
    found->entries[found->count++] = *entry;
}

/* Whether it is among entries first to end. */
static bool found_has(const struct found *found, unsigned first, unsigned end,
                      const struct trace_entry *entry)
{
    for (unsigned i = first; i < end; i++)
        if (entry_is_same(&found->entries[i], entry))
            return true;
    return false;
}

/* Whether the reader asked for it, and may see it. */
static bool entry_is_wanted(const struct trace_entry *entry, const struct key *key,
                            const struct trace_names *names)
{
    return (key == NULL || key_equal(key, &entry->key)) &&
           names->volume(names->arg, entry->volume) != NULL;
}

/* The requests that a book remembers, of a key or of the last two windows. The last ones are among
 * them in any case: the slowest may all be of volumes that the reader does not see. */
static void book_find(struct trace_book *book, const struct key *key,
                      const struct trace_names *names, uint64_t now_ns, struct found *found)
{
    const uint64_t recent = book->added < TRACE_RECENT ? book->added : TRACE_RECENT;
    unsigned first = found->count, end;

    for (unsigned window = 0; window < 2; window++)
        for (uint32_t i = 0; i < book->slow[window].count; i++)
            if (entry_is_wanted(&book->slow[window].entries[i], key, names))
                found_add(found, &book->slow[window].entries[i]);
    end = found->count;
    for (uint64_t i = 0; i < recent; i++) {
        const struct trace_entry *entry = &book->recent[i];

        if (entry_is_wanted(entry, key, names) && !found_has(found, first, end, entry) &&
            (key != NULL || entry->end_ns + 2 * TRACE_WINDOW_NS > now_ns))
            found_add(found, entry);
    }
}

static int slowest_first(const void *a, const void *b)
{
    uint64_t one = entry_us(a), other = entry_us(b);

    return one < other ? 1 : one > other ? -1 : 0;
}

static int last_first(const void *a, const void *b)
{
    const struct trace_entry *one = a, *other = b;

    return one->end_ns < other->end_ns ? 1 : one->end_ns > other->end_ns ? -1 : 0;
}

/* ---- the text ------------------------------------------------------------------------------- */

static const char *name_of(const char *const *names, unsigned count, unsigned i)
{
    return i < count && names[i] != NULL ? names[i] : "?";
}

static void entry_write(struct json *json, const struct trace_entry *entry,
                        const struct trace_names *names, bool whole_key, uint64_t now_ns)
{
    char key[2 * LIMIT_KEY_BYTES + 1] = "";
    unsigned shown;

    check(entry->key.length <= LIMIT_KEY_BYTES);
    shown =
        whole_key || entry->key.length < names->key_bytes ? entry->key.length : names->key_bytes;
    for (unsigned i = 0; i < shown; i++)
        (void)snprintf(key + 2 * (size_t)i, 3, "%02x", entry->key.bytes[i]);

    json_put_object(json, NULL);
    json_put_string(json, "op", name_of(names->ops, names->op_count, entry->op));
    json_put_string(json, "volume", names->volume(names->arg, entry->volume));
    json_put_string(json, "key", key);
    json_put_uint(json, "bytes", entry->bytes);
    json_put_string(json, "status", icms_err_name(entry->err));
    json_put_string(json, "reason", icms_miss_name(entry->reason));
    if (entry->place != TRACE_NOWHERE)
        json_put_string(json, names->place_is, names->place(names->arg, entry->place));
    json_put_uint(json, "age_us", now_ns > entry->end_ns ? (now_ns - entry->end_ns) / 1000 : 0);
    json_put_uint(json, "us", entry_us(entry));
    json_put_array(json, "states");
    for (unsigned i = 0; i < entry->trace.steps; i++) {
        json_put_object(json, NULL);
        json_put_string(json, "state",
                        name_of(names->states, names->state_count, entry->trace.state[i]));
        json_put_uint(json, "us", entry_step_us(entry, i));
        json_put_end(json);
    }
    json_put_end(json);
    json_put_end(json);
}

/* Returns the length of the whole text. */
static size_t found_write(const struct found *found, const struct key *key,
                          const struct trace_names *names, uint64_t missed, uint64_t now_ns,
                          char *out, size_t bytes)
{
    unsigned most = key == NULL ? TRACE_SLOW : TRACE_SHOWN;
    unsigned count = found->count < most ? found->count : most;
    struct json json;

    json_init(&json, out, bytes);
    json_put_object(&json, NULL);
    json_put_array(&json, "requests");
    for (unsigned i = 0; i < count; i++)
        entry_write(&json, &found->entries[i], names, key != NULL, now_ns);
    json_put_end(&json);
    json_put_uint(&json, "missed", missed);
    json_put_end(&json);
    return json_finish(&json);
}

static char *found_text(const struct found *found, const struct key *key,
                        const struct trace_names *names, uint64_t missed, uint64_t now_ns)
{
    size_t bytes = found_write(found, key, names, missed, now_ns, NULL, 0) + 1;
    char *text = malloc(bytes);

    if (text != NULL)
        check(found_write(found, key, names, missed, now_ns, text, bytes) < bytes);
    return text;
}

char *trace_text(struct trace_book *const *books, unsigned count, const struct key *key,
                 const struct trace_names *names, uint64_t now_ns)
{
    struct found found = {.whole = true};
    uint64_t missed = 0;
    char *text = NULL;

    for (unsigned i = 0; i < count; i++) {
        (void)pthread_mutex_lock(&books[i]->lock);
        book_window(books[i], now_ns);
        book_find(books[i], key, names, now_ns, &found);
        (void)pthread_mutex_unlock(&books[i]->lock);
        missed += counter_get(&books[i]->missed);
    }
    if (found.count > 0)
        qsort(found.entries, found.count, sizeof(*found.entries),
              key == NULL ? slowest_first : last_first);
    if (found.whole)
        text = found_text(&found, key, names, missed, now_ns);
    free(found.entries);
    return text;
}
