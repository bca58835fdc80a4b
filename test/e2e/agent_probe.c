/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that a test steers: puts and gets blocks as told, and says what came and how long it
 * took.
 *
 * usage: agent_probe WHERE VOLUME COUNT BYTES
 *
 * Standard input: "put" (on flash), "get DEADLINE_MS", "mend DEADLINE_MS" (puts what the last get
 * missed), "walk FIRST NUMBER STEP" (so many gets from one block on, one after the other) or "hang"
 * (holds leases and starts gets, then waits to be killed), a line each. Each answers with one line
 * of JSON: seconds, ok, wrong, dram, local, pod, and the misses by reason; walk with p50_us and
 * p99_us of its gets.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "icms/icms.h"

static struct icms *icms;
static struct icms_volume *volume;
static struct icms_block *blocks;
static uint8_t *memory;
static size_t count, bytes;

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint8_t byte_of(size_t block, size_t at)
{
    return (uint8_t)(block * 37 + at * 11 + (at >> 9));
}

static void blocks_set(void)
{
    for (size_t i = 0; i < count; i++) {
        char name[64];

        (void)snprintf(name, sizeof(name), "a block with a long name, number %zu", i);
        blocks[i] = (struct icms_block){.data = memory + i * bytes, .bytes = bytes};
        icms_key_from_name(name, strlen(name), &blocks[i].key);
    }
}

static size_t wrong_bytes(void)
{
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; blocks[i].status == ICMS_OK && j < bytes; j++)
            wrong += memory[i * bytes + j] != byte_of(i, j);
    return wrong;
}

static void say(const char *more, double seconds, size_t wrong)
{
    size_t ok = 0, sources[4] = {0}, misses[ICMS_MISS_COUNT] = {0}, others = 0;

    for (size_t i = 0; i < count; i++) {
        if (blocks[i].status == ICMS_OK) {
            ok++;
            sources[blocks[i].source & 3]++;
        } else if (blocks[i].reason > ICMS_MISS_NONE && blocks[i].reason < ICMS_MISS_COUNT) {
            misses[blocks[i].reason]++;
        } else {
            others++;
        }
    }
    printf("{%s\"seconds\": %.4f, \"ok\": %zu, \"wrong\": %zu, \"dram\": %zu, "
           "\"local\": %zu, \"pod\": %zu, \"other\": %zu",
           more, seconds, ok, wrong, sources[ICMS_SOURCE_DRAM], sources[ICMS_SOURCE_LOCAL],
           sources[ICMS_SOURCE_POD], others);
    for (int i = ICMS_MISS_ABSENT; i < ICMS_MISS_COUNT; i++)
        printf(", \"%s\": %zu", icms_miss_name((enum icms_miss)i), misses[i]);
    printf("}\n");
    (void)fflush(stdout);
}

static void put(void)
{
    struct icms_request_options options;
    double begin;

    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    options.deadline_ms = 20000;
    blocks_set();
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < bytes; j++)
            memory[i * bytes + j] = byte_of(i, j);
    begin = now();
    (void)!icms_put(volume, blocks, count, &options);
    say("", now() - begin, 0);
}

static void get(uint32_t deadline_ms)
{
    struct icms_request_options options;
    double begin = now(), seconds;

    icms_request_options_init(&options);
    options.deadline_ms = deadline_ms;
    memset(memory, 0, count * bytes);
    blocks_set();
    (void)!icms_get(volume, blocks, count, &options);
    seconds = now() - begin;
    say("", seconds, wrong_bytes());
}

static int us_order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void walk(size_t first, size_t number, size_t step)
{
    struct icms_request_options options;
    double begin = now(), *us = calloc(number, sizeof(*us));
    char more[96];

    if (us == NULL || number == 0)
        exit(2);
    icms_request_options_init(&options);
    options.deadline_ms = 5000;
    memset(memory, 0, count * bytes);
    blocks_set();
    for (size_t i = 0; i < count; i++)
        blocks[i].status = ICMS_CANCELED; /* not asked for */
    for (size_t i = 0; i < number; i++) {
        double asked = now();

        (void)!icms_get(volume, &blocks[(first + i * step) % count], 1, &options);
        us[i] = (now() - asked) * 1e6;
    }
    qsort(us, number, sizeof(*us), us_order);
    (void)snprintf(more, sizeof(more), "\"p50_us\": %.1f, \"p99_us\": %.1f, ", us[number / 2],
                   us[number * 99 / 100]);
    say(more, now() - begin, wrong_bytes());
    free(us);
}

static void mend(uint32_t deadline_ms)
{
    struct icms_request_options options;
    size_t missed = 0;
    double begin;

    icms_request_options_init(&options);
    options.deadline_ms = deadline_ms;
    options.put_if_absent = 1;
    for (size_t i = 0; i < count; i++) {
        if (blocks[i].status == ICMS_OK)
            continue;
        blocks[i].data = memory + i * bytes;
        blocks[i].bytes = bytes;
        for (size_t j = 0; j < bytes; j++)
            memory[i * bytes + j] = byte_of(i, j);
        if (missed != i) {
            struct icms_block moved = blocks[missed];

            blocks[missed] = blocks[i];
            blocks[i] = moved;
        }
        missed++;
    }
    begin = now();
    (void)!icms_put(volume, blocks, missed, &options);
    say("", now() - begin, 0);
}

static void hang(void)
{
    struct icms_request *request;
    struct icms_lease lease;

    blocks_set();
    for (size_t i = 0; i < 4; i++)
        (void)!icms_lease_take(volume, &blocks[i].key, NULL, NULL, &lease);
    (void)!icms_get_start(volume, blocks, count, NULL, &request);
    printf("{}\n");
    (void)fflush(stdout);
    (void)pause();
}

int main(int argc, char **argv)
{
    char why[512] = "", line[64];
    size_t first, number, step;

    if (argc != 5)
        return 2;
    count = strtoul(argv[3], NULL, 10);
    bytes = strtoul(argv[4], NULL, 10);
    blocks = calloc(count, sizeof(blocks[0]));
    memory = malloc(count * bytes);
    if (blocks == NULL || memory == NULL)
        return 2;
    if (icms_open(argv[1], NULL, why, sizeof(why), &icms) != ICMS_OK ||
        icms_volume_open(icms, argv[2], why, sizeof(why), &volume) != ICMS_OK) {
        (void)fprintf(stderr, "agent_probe: %s\n", why);
        return 1;
    }
    while (fgets(line, sizeof(line), stdin) != NULL) {
        if (strncmp(line, "put", 3) == 0)
            put();
        else if (strncmp(line, "get ", 4) == 0)
            get((uint32_t)strtoul(line + 4, NULL, 10));
        else if (strncmp(line, "mend ", 5) == 0)
            mend((uint32_t)strtoul(line + 5, NULL, 10));
        else if (sscanf(line, "walk %zu %zu %zu", &first, &number, &step) == 3)
            walk(first, number, step);
        else if (strncmp(line, "hang", 4) == 0)
            hang();
    }
    icms_volume_close(&volume);
    icms_close(&icms);
    free(blocks);
    free(memory);
    return 0;
}
