/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main() of a fuzzer without libFuzzer: replays a corpus and mutations of it.
 *
 *   NAME CORPUS_DIRECTORY MUTATIONS_PER_FILE [SEED]
 *   NAME FILE                                          one input, as it is
 *
 * The same seed makes the same inputs. When one crashes, its bytes are left in crash-input and its
 * file and number are printed. One thread.
 */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_BYTES_MAX ((size_t)64 << 10)
#define FILES_MAX       4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Of the sanitizers, where they are linked. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* What runs now, for the last words. */
static uint8_t *input;
static size_t input_bytes;
static const char *input_file;
static unsigned long input_number;
static uint64_t random_state;

static void last_words(void)
{
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd >= 0) {
        if (write(fd, input, input_bytes) != (ssize_t)input_bytes)
            (void)fputs("fuzz: crash-input is not whole\n", stderr);
        (void)close(fd);
    }
    (void)fprintf(stderr, "fuzz: crashed on %s, mutation %lu; the input is in crash-input\n",
                  input_file, input_number);
}

static void on_signal(int number)
{
    last_words();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static uint64_t next_random(void)
{
    random_state += 0x9e3779b97f4a7c15u;
    uint64_t x = random_state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static size_t below(size_t limit)
{
    return limit == 0 ? 0 : (size_t)(next_random() % limit);
}

/* Runs the input in memory of exactly its size, so that a step past its end is seen. */
static void run_one(const uint8_t *bytes, size_t count)
{
    uint8_t *exact = malloc(count == 0 ? 1 : count);

    if (exact == NULL)
        abort();
    memcpy(exact, bytes, count);
    input = exact;
    input_bytes = count;
    (void)LLVMFuzzerTestOneInput(exact, count);
    free(exact);
}

/* One change; returns the new length. */
static size_t mutate(uint8_t *bytes, size_t count)
{
    static const uint32_t numbers[] = {0,      1,      2,      3,          4,          0x7f,
                                       0x80,   0xff,   0x100,  0xfff,      0x1000,     0x1001,
                                       0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff};
    size_t at = below(count), n;

    switch (next_random() % 7) {
    case 0:
        if (count > 0)
            bytes[at] ^= (uint8_t)(1u << below(8));
        return count;
    case 1:
        if (count > 0)
            bytes[at] = (uint8_t)next_random();
        return count;
    case 2: {
        uint32_t number = numbers[below(sizeof(numbers) / sizeof(numbers[0]))];
        size_t width = (size_t)1 << below(3);

        if (count >= width)
            memcpy(bytes + below(count - width + 1), &number, width);
        return count;
    }
    case 3: /* cut */
        return at;
    case 4: /* take out */
        n = below(count - at);
        memmove(bytes + at, bytes + at + n, count - at - n);
        return count - n;
    case 5: /* put in twice */
        n = below(count - at);
        if (n > INPUT_BYTES_MAX - count)
            n = INPUT_BYTES_MAX - count;
        memmove(bytes + at + n, bytes + at, count - at);
        return count + n;
    default: /* append */
        n = below(64);
        if (n > INPUT_BYTES_MAX - count)
            n = INPUT_BYTES_MAX - count;
        for (size_t i = 0; i < n; i++)
            bytes[count + i] = (uint8_t)next_random();
        return count + n;
    }
}

static size_t read_file(const char *path, uint8_t *out)
{
    FILE *file = fopen(path, "rb");
    size_t n;

    if (file == NULL) {
        perror(path);
        exit(2);
    }
    n = fread(out, 1, INPUT_BYTES_MAX, file);
    (void)fclose(file);
    return n;
}

static void run_file(const char *path, unsigned long mutations, uint64_t seed)
{
    static uint8_t original[INPUT_BYTES_MAX], bytes[INPUT_BYTES_MAX];
    size_t count = read_file(path, original);

    input_file = path;
    input_number = 0;
    run_one(original, count);
    for (unsigned long i = 1; i <= mutations; i++) {
        size_t n = count;

        input_number = i;
        random_state = seed ^ i * 0xd1342543de82ef95u;
        memcpy(bytes, original, count);
        for (size_t changes = 1 + below(4); changes > 0; changes--)
            n = mutate(bytes, n);
        run_one(bytes, n);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(int argc, char **argv)
{
    unsigned long mutations = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    static char *files[FILES_MAX];
    struct dirent *entry;
    size_t count = 0;
    DIR *directory;

    if (argc < 2 || argc > 4) {
        (void)fprintf(stderr, "usage: %s CORPUS_DIRECTORY MUTATIONS_PER_FILE [SEED] | FILE\n",
                      argv[0]);
        return 2;
    }
    (void)signal(SIGABRT, on_signal);
    (void)signal(SIGSEGV, on_signal);
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(last_words);
    directory = opendir(argv[1]);
    if (directory == NULL) {
        run_file(argv[1], mutations, seed);
        return 0;
    }
    while ((entry = readdir(directory)) != NULL && count < FILES_MAX) {
        char path[PATH_MAX];

        if (entry->d_name[0] == '.')
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", argv[1], entry->d_name);
        files[count++] = strdup(path);
    }
    (void)closedir(directory);
    qsort(files, count, sizeof(files[0]), by_name);
    for (size_t i = 0; i < count; i++) {
        run_file(files[i], mutations, seed + i);
        free(files[i]);
    }
    (void)printf("%zu files, %lu mutations each\n", count, mutations);
    return count > 0 ? 0 : 1;
}
