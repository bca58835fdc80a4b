/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/engine.c: a small inference engine that keeps its KV cache in the tier.
 *
 * It reads a prompt, computes or loads the KV of it, generates a few tokens greedily and prints
 * one line of JSON. demo/run.py starts it in one of three modes:
 *   none   computes everything: the reference
 *   store  computes everything and puts each whole block into the tier (server A)
 *   load   asks the tier for the longest prefix it holds, loads those blocks in order of position,
 *          a few ahead, recomputes each one that turns out to be a miss (server B)
 *
 * One thread. What loading promises: the tokens and logits are those of mode none, whatever the
 * tier answers.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "icms/icms.h"
#include "model.h"

enum {
    BLOCKS_MAX = MODEL_TOKENS_MAX / MODEL_BLOCK_TOKENS,
    PROMPT_BYTES_MAX = 1 << 20,
    DEADLINE_MS = 4000,        /* of a load: less than computing half of the prompt         */
    BLOCK_BYTES_MAX = 8 << 20, /* a volume's largest value in the demo                      */
    WINDOW = 2,                /* loads under way: enough to overlap loading with copying   */
};

enum mode {
    MODE_NONE,  /* no tier                  */
    MODE_STORE, /* compute and store        */
    MODE_LOAD,  /* load what is there       */
};

/* What became of a block. */
struct block {
    const char *status; /* "stored", "not_stored", "hit", "miss"              */
    const char *reason; /* of a miss; "none" otherwise                        */
    size_t bytes;       /* of the block, when it moved                        */
    bool over_network;  /* it came from an enclosure, not from memory         */
};

struct engine {
    /* From the command line. */
    enum mode mode;
    const char *mode_name;
    const char *model_path;
    const char *prompt_path;
    const char *tier_path; /* of the tier: unix:..., pod:..., dir:...                 */
    const char *volume_name;
    int generate_count; /* tokens to generate                                      */
    int tokens_max;     /* of the prompt; the rest is cut                          */

    struct model *model;
    struct icms *tier;                /* NULL in mode none                           */
    struct icms_volume *volume;       /* the same                                    */
    int token_count;                  /* of the prompt                               */
    int block_count;                  /* whole blocks before the last token          */
    int matched_count;                /* blocks the tier said it holds               */
    int reused_count;                 /* blocks that came and were used              */
    struct icms_key keys[BLOCKS_MAX]; /* of the whole blocks                         */
    struct block blocks[BLOCKS_MAX];  /* what became of them                         */

    /* Loads under way: block i has slot i % WINDOW until it is finished. */
    uint8_t *buf[WINDOW];                  /* BLOCK_BYTES_MAX each                    */
    struct icms_block gets[WINDOW];        /* what was asked, what came               */
    struct icms_request *requests[WINDOW]; /* NULL when none is under way             */

    size_t moved_bytes;         /* stored or loaded                        */
    double begin_s;             /* the prompt is known                     */
    double move_s;              /* that this took: no computing in it      */
    struct model_output output; /* the answer                              */
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
    /* The last token is always computed: its logits begin the answer. */
    engine->block_count = (engine->token_count - 1) / MODEL_BLOCK_TOKENS;
    return true;
}

/* Opens the tier and derives the keys: all that a block depends on goes into them. */
static bool open_tier(struct engine *engine)
{
    struct icms_layout layout = {
        .tenant = "demo",
        .model = "SmolLM2-135M-Instruct Q4_1",
        .weights = model_digest(engine->model),
        .weights_bytes = MODEL_DIGEST_BYTES,
        .dtype = "f16",
        .layout = "llama.cpp sequence state, llama-cpp-python 0.3.36",
        .block_tokens = MODEL_BLOCK_TOKENS,
        .ranks = {1, 1, 1, 1},
    };
    const int32_t *tokens = model_tokens(engine->model);
    struct icms_chain chain;
    char why[512];

    if (icms_open(engine->tier_path, NULL, why, sizeof(why), &engine->tier) != ICMS_OK ||
        icms_volume_open(engine->tier, engine->volume_name, why, sizeof(why), &engine->volume) !=
            ICMS_OK) {
        fprintf(stderr, "engine: %s\n", why);
        return false;
    }
    icms_chain_init(&chain, engine->volume, &layout);
    for (int i = 0; i < engine->block_count; i++) {
        icms_chain_next(&chain, tokens, MODEL_BLOCK_TOKENS * sizeof(*tokens), &engine->keys[i]);
        tokens += MODEL_BLOCK_TOKENS;
    }
    return true;
}

static bool run_none(struct engine *engine)
{
    return model_decode(engine->model, 0, engine->token_count - 1);
}

/* Server A answers its user first and stores afterwards: nobody waits for a store. */
static bool store_blocks(struct engine *engine)
{
    struct icms_request_options options;

    icms_request_options_init(&options);
    options.put_ack = ICMS_PUT_ON_FLASH;
    for (int i = 0; i < engine->block_count; i++) {
        struct icms_block put = {.key = engine->keys[i], .data = engine->buf[0]};
        struct block *block = &engine->blocks[i];
        double begin_s;

        put.bytes = model_block_save(engine->model, i, engine->buf[0], BLOCK_BYTES_MAX);
        if (put.bytes == 0) {
            fprintf(stderr, "engine: llama.cpp cannot save block %d\n", i);
            return false;
        }
        begin_s = model_now();
        if (icms_put(engine->volume, &put, 1, &options) == ICMS_OK) {
            block->bytes = put.bytes;
            engine->moved_bytes += put.bytes;
        } else {
            fprintf(stderr, "engine: block %d is not stored: %s\n", i, icms_err_text(put.status));
        }
        engine->move_s += model_now() - begin_s;
        block->status = put.status == ICMS_OK ? "stored" : "not_stored";
        block->reason = icms_miss_name(ICMS_MISS_NONE);
    }
    return true;
}

/* Asks for block i. A request that cannot be started is answered like a miss. */
static void load_start(struct engine *engine, int i)
{
    struct icms_request_options options;
    struct icms_block *get = &engine->gets[i % WINDOW];
    icms_err err;

    icms_request_options_init(&options);
    options.deadline_ms = DEADLINE_MS;
    *get = (struct icms_block){
        .key = engine->keys[i], .data = engine->buf[i % WINDOW], .bytes = BLOCK_BYTES_MAX};
    err = icms_get_start(engine->volume, get, 1, &options, &engine->requests[i % WINDOW]);
    if (err != ICMS_OK)
        get->status = err;
}

/* Waits for block i and puts it in its place; false when it has to be computed. */
static bool load_finish(struct engine *engine, int i)
{
    struct icms_block *get = &engine->gets[i % WINDOW];
    struct block *block = &engine->blocks[i];

    if (engine->requests[i % WINDOW] != NULL) {
        icms_err err = icms_request_end(&engine->requests[i % WINDOW]);

        /* The answer for the one block is also the answer for the batch. */
        if (err != ICMS_OK && get->status == ICMS_OK)
            get->status = err;
    }
    if (get->status == ICMS_OK && model_block_load(engine->model, i, get->data, get->bytes)) {
        block->status = "hit";
        block->reason = icms_miss_name(ICMS_MISS_NONE);
        block->bytes = get->bytes;
        block->over_network = get->source == ICMS_SOURCE_POD;
        engine->moved_bytes += get->bytes;
        engine->reused_count++;
        return true;
    }
    block->status = "miss";
    block->reason =
        get->status == ICMS_MISS ? icms_miss_name(get->reason) : icms_err_name(get->status);
    return false;
}

static bool run_load(struct engine *engine)
{
    double begin_s = model_now(), computing_s = 0;
    int started = 0;
    size_t matched = 0;

    if (engine->block_count > 0 &&
        icms_match(engine->volume, engine->keys, (size_t)engine->block_count, NULL, &matched) !=
            ICMS_OK)
        fprintf(stderr, "engine: the tier does not answer; computing everything\n");
    engine->matched_count = (int)matched;
    for (int i = 0; i < engine->matched_count; i++) {
        while (started < engine->matched_count && started < i + WINDOW)
            load_start(engine, started++);
        if (!load_finish(engine, i)) {
            double hole_s = model_now();

            if (!model_decode(engine->model, i * MODEL_BLOCK_TOKENS, (i + 1) * MODEL_BLOCK_TOKENS))
                return false;
            computing_s += model_now() - hole_s;
        }
    }
    engine->move_s = model_now() - begin_s - computing_s;
    return model_decode(engine->model, engine->matched_count * MODEL_BLOCK_TOKENS,
                        engine->token_count - 1);
}

static bool run(struct engine *engine)
{
    bool ok;

    engine->model = model_open(engine->model_path);
    if (engine->model == NULL || !read_prompt(engine))
        return false;
    for (int i = 0; i < WINDOW; i++) {
        engine->buf[i] = calloc(1, BLOCK_BYTES_MAX);
        if (engine->buf[i] == NULL)
            return false;
    }
    if (engine->mode != MODE_NONE && !open_tier(engine))
        return false;
    engine->begin_s = model_now();
    ok = engine->mode == MODE_LOAD ? run_load(engine) : run_none(engine);
    if (!ok || !model_generate(engine->model, engine->generate_count, &engine->output)) {
        fprintf(stderr, "engine: llama.cpp failed\n");
        return false;
    }
    return engine->mode != MODE_STORE || store_blocks(engine);
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

static void print_result(const struct engine *engine)
{
    const struct model_output *output = &engine->output;

    printf("{\"mode\":\"%s\",\"prompt_tokens\":%d,\"blocks\":%d,\"matched_blocks\":%d,"
           "\"reused_blocks\":%d,\"reused_tokens\":%d,\"bytes\":%zu,\"ttft_s\":%.6f,"
           "\"move_s\":%.6f,\"logit_sum\":\"%.9f\",\"tokens\":[",
           engine->mode_name, engine->token_count, engine->block_count, engine->matched_count,
           engine->reused_count, engine->reused_count * MODEL_BLOCK_TOKENS, engine->moved_bytes,
           output->first_s - engine->begin_s, engine->move_s, output->logit_sum);
    for (int i = 0; i < output->count; i++)
        printf("%s%d", i > 0 ? "," : "", (int)output->tokens[i]);
    printf("],\"text\":");
    print_string(output->text);
    printf(",\"block_results\":[");
    for (int i = 0; i < engine->block_count && engine->blocks[i].status != NULL; i++) {
        const uint8_t *key = engine->keys[i].bytes;

        printf("%s{\"key\":\"", i > 0 ? "," : "");
        for (int k = 0; k < ICMS_KEY_BYTES; k++)
            printf("%02x", key[k]);
        printf("\",\"status\":\"%s\",\"reason\":\"%s\",\"bytes\":%zu,\"over_network\":%s}",
               engine->blocks[i].status, engine->blocks[i].reason, engine->blocks[i].bytes,
               engine->blocks[i].over_network ? "true" : "false");
    }
    printf("]}\n");
}

static int usage(void)
{
    fprintf(stderr, "usage: engine --mode none|store|load --model FILE --prompt FILE\n"
                    "              [--tier WHERE --volume NAME] [--generate N] [--tokens-max N]\n");
    return 2;
}

static bool parse(struct engine *engine, int argc, char **argv)
{
    static const struct option options[] = {
        {"mode", required_argument, NULL, 'm'},       {"model", required_argument, NULL, 'f'},
        {"prompt", required_argument, NULL, 'p'},     {"tier", required_argument, NULL, 'u'},
        {"volume", required_argument, NULL, 'v'},     {"generate", required_argument, NULL, 'g'},
        {"tokens-max", required_argument, NULL, 't'}, {NULL, 0, NULL, 0},
    };
    static const char *const modes[] = {"none", "store", "load"};
    int option;

    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 'm':
            for (int i = 0; i < 3; i++) {
                if (strcmp(optarg, modes[i]) == 0) {
                    engine->mode = (enum mode)i;
                    engine->mode_name = modes[i];
                }
            }
            break;
        case 'f':
            engine->model_path = optarg;
            break;
        case 'p':
            engine->prompt_path = optarg;
            break;
        case 'u':
            engine->tier_path = optarg;
            break;
        case 'v':
            engine->volume_name = optarg;
            break;
        case 'g':
            engine->generate_count = atoi(optarg);
            break;
        case 't':
            engine->tokens_max = atoi(optarg);
            break;
        default:
            return false;
        }
    }
    return engine->mode_name != NULL && engine->model_path != NULL && engine->prompt_path != NULL &&
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
    icms_close(&engine.tier);
    model_close(engine.model);
    for (int i = 0; i < WINDOW; i++)
        free(engine.buf[i]);
    return ok ? 0 : 1;
}
