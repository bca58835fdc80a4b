/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One of several clients that offer more stores than an enclosure takes, and load meanwhile.
 *
 * usage: overload_client WHERE VOLUME SEED BYTES
 *
 * Standard input, a line each, answered by one line of JSON:
 *   storm SECONDS RATE   offers RATE new blocks a second, acknowledged on flash, whether or not
 *                        earlier ones were; loads blocks that were acknowledged, LOADS at a time
 *   check                loads every block that was ever acknowledged, with time enough
 * Every byte of a hit is compared with what was stored. One thread; operations are asynchronous.
 */
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "icms/icms.h"

#define BLOCKS_MAX 200000 /* ever offered                              */
#define STORES     1000   /* under way; what is due meanwhile waits    */
#define LOADS      4      /* under way                                 */
#define LOADS_S    200    /* started a second                          */

/* A block under way. */
struct slot {
    struct icms_block block;      /* of request                        */
    struct icms_request *request; /* NULL: idle                        */
    uint64_t n;                   /* which block                       */
    double begin;                 /* when it was started               */
    bool load;                    /* else a store                      */
};

/* What came of it all since the last answer. */
struct tally {
    uint64_t offered, acked, shed, store_deadline, store_other;
    uint64_t loads, hits, wrong, misses[ICMS_MISS_COUNT], load_other;
    double load_max; /* seconds, of one load */
};

static struct icms *icms;
static struct icms_volume *volume;
static struct slot slots[STORES + LOADS];
static struct tally tally;
static uint64_t seed, bytes, offered, acked_count;
static uint64_t acked[BLOCKS_MAX]; /* numbers of blocks that are on flash */

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what, icms_err err)
{
    (void)fprintf(stderr, "overload_client: %s: %s\n", what, icms_err_text(err));
    exit(1);
}

/* Word i of block n; no two are alike. */
static uint64_t word_of(uint64_t n, uint64_t i)
{
    uint64_t x = (seed << 48) + (n << 20) + i;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static bool is_right(const struct slot *slot)
{
    const uint64_t *words = slot->block.data;

    for (uint64_t i = 0; i < bytes / 8; i++)
        if (words[i] != word_of(slot->n, i))
            return false;
    return slot->block.bytes == bytes;
}

static void slot_start(struct slot *slot, uint64_t n, uint32_t deadline_ms)
{
    struct icms_request_options options;
    uint64_t *words = slot->block.data;
    char name[64];
    icms_err err;

    icms_request_options_init(&options);
    options.tag = slot;
    options.deadline_ms = deadline_ms;
    options.put_ack = ICMS_PUT_ON_FLASH;
    slot->n = n;
    slot->begin = now();
    slot->block = (struct icms_block){.data = words, .bytes = bytes};
    (void)snprintf(name, sizeof(name), "block %llu of client %llu", (unsigned long long)n,
                   (unsigned long long)seed);
    icms_key_from_name(name, strlen(name), &slot->block.key);
    for (uint64_t i = 0; i < bytes / 8; i++)
        words[i] = slot->load ? 0 : word_of(n, i);
    do /* an agent that was restarted is attached to within a second */
        err = slot->load ? icms_get_start(volume, &slot->block, 1, &options, &slot->request)
                         : icms_put_start(volume, &slot->block, 1, &options, &slot->request);
    while (err == ICMS_PEER_DOWN && now() - slot->begin < 10 && usleep(1000) == 0);
    if (err != ICMS_OK)
        die("a request does not start", err);
}

static void load_over(const struct slot *slot)
{
    double seconds = now() - slot->begin;

    tally.loads++;
    tally.load_max = seconds > tally.load_max ? seconds : tally.load_max;
    if (slot->block.status == ICMS_OK) {
        tally.hits++;
        tally.wrong += !is_right(slot);
    } else if (slot->block.status == ICMS_MISS && slot->block.reason < ICMS_MISS_COUNT) {
        tally.misses[slot->block.reason]++;
    } else {
        tally.load_other++;
    }
}

static void store_over(const struct slot *slot)
{
    if (slot->block.status == ICMS_OK) {
        tally.acked++;
        acked[acked_count++] = slot->n;
    } else if (slot->block.status == ICMS_BUSY) {
        tally.shed++;
    } else if (slot->block.status == ICMS_DEADLINE) {
        tally.store_deadline++;
    } else {
        tally.store_other++;
    }
}

/* Takes what is over; waits up to wait_ms for something. True: something was. */
static bool slots_take(int wait_ms)
{
    struct pollfd event = {.fd = icms_event_fd(icms), .events = POLLIN};
    struct icms_request *request;
    bool some = false;

    (void)poll(&event, 1, wait_ms);
    while ((request = icms_poll(icms)) != NULL) {
        struct slot *slot = icms_request_tag(request);

        (void)!icms_request_end(&slot->request);
        if (slot->load)
            load_over(slot);
        else
            store_over(slot);
        some = true;
    }
    return some;
}

static struct slot *slot_idle(bool load)
{
    struct slot *first = load ? &slots[STORES] : slots;

    for (uint32_t i = 0; i < (load ? LOADS : STORES); i++)
        if (first[i].request == NULL)
            return &first[i];
    return NULL;
}

static void slots_drain(void)
{
    for (uint32_t i = 0; i < STORES + LOADS; i++)
        while (slots[i].request != NULL)
            (void)slots_take(100);
}

static void say(void)
{
    printf("{\"offered\": %llu, \"acked\": %llu, \"shed\": %llu, \"store_deadline\": %llu, "
           "\"store_other\": %llu, \"loads\": %llu, \"hits\": %llu, \"wrong\": %llu, "
           "\"load_other\": %llu, \"load_max\": %.3f, \"misses\": {",
           (unsigned long long)tally.offered, (unsigned long long)tally.acked,
           (unsigned long long)tally.shed, (unsigned long long)tally.store_deadline,
           (unsigned long long)tally.store_other, (unsigned long long)tally.loads,
           (unsigned long long)tally.hits, (unsigned long long)tally.wrong,
           (unsigned long long)tally.load_other, tally.load_max);
    for (int i = ICMS_MISS_ABSENT; i < ICMS_MISS_COUNT; i++)
        printf("%s\"%s\": %llu", i > ICMS_MISS_ABSENT ? ", " : "",
               icms_miss_name((enum icms_miss)i), (unsigned long long)tally.misses[i]);
    printf("}}\n");
    (void)fflush(stdout);
    tally = (struct tally){0};
}

static void storm(double seconds, double rate)
{
    double begin = now();
    uint64_t loads = 0;
    struct slot *slot;

    while (now() - begin < seconds) {
        while (tally.offered < (now() - begin) * rate && offered < BLOCKS_MAX &&
               (slot = slot_idle(false)) != NULL) {
            tally.offered++;
            slot_start(slot, offered++, 0);
        }
        while (acked_count > 0 && loads < (now() - begin) * LOADS_S &&
               (slot = slot_idle(true)) != NULL) {
            loads++;
            slot_start(slot, acked[(uint64_t)rand() % acked_count], 0);
        }
        (void)slots_take(1);
    }
    slots_drain();
    say();
}

/* Until the agent serves again: one that was started anew is found by asking. */
static void agent_wait(void)
{
    struct slot *slot = slot_idle(true);

    do {
        slot_start(slot, acked[0], 1000);
        while (slot->request != NULL)
            (void)slots_take(100);
    } while (slot->block.status == ICMS_PEER_DOWN);
    tally = (struct tally){0};
}

static void check_all(void)
{
    struct slot *slot;

    if (acked_count > 0)
        agent_wait();
    for (uint64_t i = 0; i < acked_count; i++) {
        while ((slot = slot_idle(true)) == NULL)
            (void)slots_take(100);
        slot_start(slot, acked[i], 60000);
    }
    slots_drain();
    say();
}

int main(int argc, char **argv)
{
    char why[512] = "", line[64];
    double seconds, rate;
    icms_err err;

    if (argc != 5)
        return 2;
    seed = strtoull(argv[3], NULL, 10);
    bytes = strtoull(argv[4], NULL, 10) / 8 * 8;
    srand((unsigned)seed);
    err = icms_open(argv[1], NULL, why, sizeof(why), &icms);
    if (err == ICMS_OK)
        err = icms_volume_open(icms, argv[2], why, sizeof(why), &volume);
    if (err != ICMS_OK)
        die(why, err);
    for (uint32_t i = 0; i < STORES + LOADS; i++) {
        slots[i].load = i >= STORES;
        slots[i].block.data = malloc(bytes);
        if (slots[i].block.data == NULL)
            die("memory", ICMS_NO_MEMORY);
    }
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (sscanf(line, "storm %lf %lf", &seconds, &rate) == 2)
            storm(seconds, rate);
        else if (strncmp(line, "check", 5) == 0)
            check_all();
    }
    icms_volume_close(&volume);
    icms_close(&icms);
    for (uint32_t i = 0; i < STORES + LOADS; i++)
        free(slots[i].block.data);
    return 0;
}
