/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/engine.c: a small inference engine that keeps its KV cache in the tier.
 *
 * It reads a prompt, computes or loads the KV of it, generates a few tokens greedily and prints
 * one line of JSON. demo/run.py starts it in one of four modes:
 *   none   computes everything: the reference
 *   store  computes everything and gives each whole block to the tier (server A)
 *   load   takes from the tier what it has and computes the rest (server B)
 *   serve  the same, and gives the tier what it had to compute: what a server does
 * With --think the user has not sent the prompt yet: the engine tells the tier that it will come,
 * says so, and begins when there is a line on its standard input.
 *
 * One thread. All that concerns the tier is examples/llama/prefix_cache.h; what it promises shows
 * here: the tokens and logits are those of mode none, whatever the tier answers.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "options.h"
#include "prefix_cache.h"

enum {
    BLOCKS_MAX = MODEL_TOKENS_MAX / MODEL_BLOCK_TOKENS,
    PROMPT_BYTES_MAX = 1 << 20,
    DEADLINE_MS = 4000, /* of a load: less than computing half of the prompt         */
    THINK_MS = 20000,   /* a user who thinks sends the prompt within this             */
};

enum mode {
    MODE_NONE,  /* no tier                  */
    MODE_STORE, /* compute and store        */
    MODE_LOAD,  /* load what is there       */
    MODE_SERVE, /* load, then store         */
    MODE_COUNT,
};

static const char *const mode_names[MODE_COUNT] = {"none", "store", "load", "serve"};

struct engine {
    /* From the command line. */
    enum mode mode;
    const char *model_path;
    const char *prompt_path;
    const char *tier_path; /* of the tier: unix:..., pod:..., dir:...                 */
    const char *volume_name;
    int generate_count; /* tokens to generate                                      */
    int tokens_max;     /* of the prompt; the rest is cut                          */
    bool thinks;        /* the prompt will be sent when there is a line to read    */

    struct model *model;
    struct prefix_cache *cache; /* NULL in mode none                           */
    int token_count;            /* of the prompt                               */
    double begin_s;             /* the prompt is known                         */
    struct model_output output; /* the answer                                  */

    struct prefix_cache_report loaded;            /* of modes load and serve              */
    struct prefix_cache_report stored;            /* of modes store and serve             */
    struct prefix_cache_block blocks[BLOCKS_MAX]; /* of the first of these     */
};

static bool read_prompt(struct engine *engine)
{
    char *text = malloc(PROMPT_BYTES_MAX);
    FILE *file = fopen(engine->prompt_path, "rb");
    size_t bytes = 0;

    if (text == NULL || file == NULL) {
        fprintf(stderr, "engine: cannot read %s: %s\n", engine->prompt_path, strerror(errno));
        if (file != NULL)
            fclose(file);
        free(text);
        return false;
    }
    bytes = fread(text, 1, PROMPT_BYTES_MAX, file);
    fclose(file);
    engine->token_count = model_prompt(engine->model, text, bytes, engine->tokens_max);
    free(text);
    if (engine->token_count < 2) {
        fprintf(stderr, "engine: %s makes no prompt\n", engine->prompt_path);
        return false;
    }
    return true;
}

static bool open_cache(struct engine *engine)
{
    uint8_t digest[PREFIX_CACHE_DIGEST_BYTES];
    const struct prefix_cache_options options = {
        .where = engine->tier_path,
        .volume = engine->volume_name,
        .tenant = "demo",
        .model = "SmolLM2-135M-Instruct Q4_1",
        .digest = digest,
        .dtype = "f16",
        .block_tokens = MODEL_BLOCK_TOKENS,
        .deadline_ms = DEADLINE_MS,
        .store_on_flash = true,
        .spare = MODEL_SPARE,
    };
    char why[512];

    if (!prefix_cache_digest(engine->model_path, digest)) {
        fprintf(stderr, "engine: cannot read the model %s\n", engine->model_path);
        return false;
    }
    engine->cache = prefix_cache_open(model_context(engine->model), &options, why, sizeof(why));
    if (engine->cache == NULL)
        fprintf(stderr, "engine: %s\n", why);
    return engine->cache != NULL;
}

/* Keeps what became of the blocks beyond the next call. */
static void keep_blocks(struct engine *engine, struct prefix_cache_report *report)
{
    memcpy(engine->blocks, report->blocks, report->block_count * sizeof(*engine->blocks));
    report->blocks = engine->blocks;
}

/* Makes the KV of the prompt but for its last token. */
static bool run_prompt(struct engine *engine)
{
    uint32_t done = 0;

    if (engine->mode == MODE_LOAD || engine->mode == MODE_SERVE) {
        if (!prefix_cache_begin(engine->cache, MODEL_SEQUENCE, model_tokens(engine->model),
                                (uint32_t)engine->token_count, 0, &done))
            return false;
        prefix_cache_report(engine->cache, &engine->loaded);
        keep_blocks(engine, &engine->loaded);
    }
    return model_decode(engine->model, (int)done, engine->token_count - 1);
}

/* The user thinks: what will be asked for is told, and the prompt comes with a line. */
static bool wait_for_user(struct engine *engine)
{
    uint32_t hints = prefix_cache_prestage(engine->cache, model_tokens(engine->model),
                                           (uint32_t)engine->token_count, THINK_MS);
    int byte;

    printf("{\"hints\":%u}\n", hints);
    if (fflush(stdout) != 0)
        return false;
    do
        byte = getchar();
    while (byte != '\n' && byte != EOF);
    return byte == '\n';
}

/* A server answers its user first and stores afterwards: nobody waits for a store. */
static bool store_blocks(struct engine *engine)
{
    if (!prefix_cache_store(engine->cache, MODEL_SEQUENCE, model_tokens(engine->model),
                            (uint32_t)engine->token_count)) {
        fprintf(stderr, "engine: llama.cpp cannot save a block\n");
        return false;
    }
    prefix_cache_report(engine->cache, &engine->stored);
    if (engine->mode == MODE_STORE)
        keep_blocks(engine, &engine->stored);
    return true;
}

static bool run(struct engine *engine)
{
    engine->model = model_open(engine->model_path);
    if (engine->model == NULL || !read_prompt(engine))
        return false;
    if (engine->mode != MODE_NONE && !open_cache(engine))
        return false;
    if (engine->thinks && !wait_for_user(engine)) {
        fprintf(stderr, "engine: the user has gone\n");
        return false;
    }
    engine->begin_s = model_now();
    if (!run_prompt(engine) ||
        !model_generate(engine->model, engine->generate_count, &engine->output)) {
        fprintf(stderr, "engine: llama.cpp failed\n");
        return false;
    }
    return (engine->mode != MODE_STORE && engine->mode != MODE_SERVE) || store_blocks(engine);
}

static void print_string(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
    putchar('"');
}

static void print_block(const struct prefix_cache_block *block)
{
    static const char *const fates[] = {
        [PREFIX_CACHE_KEPT] = "kept",     [PREFIX_CACHE_LOADED] = "hit",
        [PREFIX_CACHE_COMPUTED] = "miss", [PREFIX_CACHE_LEFT] = "miss",
        [PREFIX_CACHE_STORED] = "stored", [PREFIX_CACHE_REFUSED] = "not_stored",
    };
    static const char *const sources[] = {
        [ICMS_SOURCE_NONE] = "none",
        [ICMS_SOURCE_DRAM] = "dram",
        [ICMS_SOURCE_LOCAL] = "local",
        [ICMS_SOURCE_POD] = "pod",
    };
    const char *reason = block->status == ICMS_OK || block->status == ICMS_MISS
                             ? icms_miss_name(block->reason)
                             : icms_err_name(block->status);

    printf("{\"key\":\""); /* run and digest, as icms get --hex takes them */
    for (int i = 0; i < ICMS_RUN_BYTES; i++)
        printf("%02x", block->key.bytes[i]);
    for (int i = 0; i < ICMS_DIGEST_BYTES; i++)
        printf("%02x", block->key.digest[i]);
    printf("\",\"status\":\"%s\",\"reason\":\"%s\",\"bytes\":%llu,\"source\":\"%s\"}",
           fates[block->fate], reason, (unsigned long long)block->bytes, sources[block->source]);
}

static void print_result(const struct engine *engine)
{
    const struct model_output *output = &engine->output;
    const struct prefix_cache_report *report =
        engine->mode == MODE_STORE ? &engine->stored : &engine->loaded;

    printf("{\"mode\":\"%s\",\"prompt_tokens\":%d,\"blocks\":%d,\"reused_blocks\":%u,"
           "\"reused_tokens\":%u,\"holes_computed\":%u,\"stored_blocks\":%u,\"bytes\":%llu,"
           "\"ttft_s\":%.6f,\"move_s\":%.6f,\"logit_sum\":\"%.9f\",\"tokens\":[",
           mode_names[engine->mode], engine->token_count,
           (engine->token_count - 1) / MODEL_BLOCK_TOKENS, engine->loaded.loaded,
           engine->loaded.loaded * MODEL_BLOCK_TOKENS, engine->loaded.computed,
           engine->stored.stored, (unsigned long long)report->bytes,
           output->first_s - engine->begin_s, report->tier_seconds, output->logit_sum);
    for (int i = 0; i < output->count; i++)
        printf("%s%d", i > 0 ? "," : "", (int)output->tokens[i]);
    printf("],\"text\":");
    print_string(output->text);
    printf(",\"block_results\":[");
    for (uint32_t i = 0; i < report->block_count; i++) {
        if (i > 0)
            putchar(',');
        print_block(&report->blocks[i]);
    }
    printf("]}\n");
}

static int usage(void)
{
    fprintf(
        stderr,
        "usage: engine --mode none|store|load|serve --model FILE --prompt FILE\n"
        "              [--tier WHERE --volume NAME [--think]] [--generate N] [--tokens-max N]\n");
    return 2;
}

static bool parse(struct engine *engine, int argc, char **argv)
{
    const char *mode = "";
    const struct options_row rows[] = {
        {"mode", .text = &mode},
        {"model", .text = &engine->model_path},
        {"prompt", .text = &engine->prompt_path},
        {"tier", .text = &engine->tier_path},
        {"volume", .text = &engine->volume_name},
        {"generate", .number = &engine->generate_count},
        {"tokens-max", .number = &engine->tokens_max},
        {"think", .flag = &engine->thinks},
        {NULL},
    };

    if (!options_parse(rows, argc, argv))
        return false;
    engine->mode = MODE_NONE;
    while (engine->mode < MODE_COUNT && strcmp(mode, mode_names[engine->mode]) != 0)
        engine->mode++;
    if (engine->thinks && engine->mode != MODE_LOAD && engine->mode != MODE_SERVE)
        return false;
    return engine->mode != MODE_COUNT && engine->model_path != NULL &&
           engine->prompt_path != NULL &&
           (engine->mode == MODE_NONE ||
            (engine->tier_path != NULL && engine->volume_name != NULL));
}

int main(int argc, char **argv)
{
    static struct engine engine = {.generate_count = 24, .tokens_max = MODEL_TOKENS_MAX};
    bool ok;

    if (!parse(&engine, argc, argv))
        return usage();
    ok = run(&engine);
    if (ok)
        print_result(&engine);
    prefix_cache_close(engine.cache);
    model_close(engine.model);
    return ok ? 0 : 1;
}
