/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/server.c: the demo's model as a server of many prompts, for bench/bench_choice.py --llama.
 *
 * Each line of its standard input is a way and a prompt. It makes the first token of the answer and
 * prints one line of JSON. The ways:
 *   store    computes the prompt and gives its blocks to the agent of --stores
 *   compute  computes the prompt
 *   load     loads all that the agent of --loads has, and computes the rest
 *   choice   loads what the agent of --choices has, if that is faster than to compute it
 *
 * One thread. Each way but compute has a cache of its own on the one context, between whose calls
 * the spare sequence is empty. The cache of load is never told how long computing takes, so it
 * loads all that is there; that of choice is told it of every prompt.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "options.h"
#include "prefix_cache.h"

enum {
    DEADLINE_MS = 60000, /* of a load: all of them come on slow paths, too */
};

enum way {
    WAY_COMPUTE,
    WAY_STORE,
    WAY_LOAD,
    WAY_CHOICE,
    WAY_COUNT,
};

static const char *const way_names[WAY_COUNT] = {"compute", "store", "load", "choice"};

struct server {
    /* From the command line. */
    const char *model_path;
    const char *volume_name;
    const char *agents[WAY_COUNT]; /* of each way: unix:...; that of compute: NULL */
    int block_tokens;              /* tokens a block                               */
    int prompt_tokens;             /* of each prompt; the rest is cut              */

    struct model *model;
    struct prefix_cache *caches[WAY_COUNT]; /* likewise */
};

static bool open_caches(struct server *server)
{
    uint8_t digest[PREFIX_CACHE_DIGEST_BYTES];
    struct prefix_cache_options options = {
        .volume = server->volume_name,
        .tenant = "demo",
        .model = "SmolLM2-135M-Instruct Q4_1",
        .digest = digest,
        .dtype = "f16",
        .block_tokens = (uint32_t)server->block_tokens,
        .deadline_ms = DEADLINE_MS,
        .store_on_flash = true,
        .spare = MODEL_SPARE,
    };
    char why[512];

    if (!prefix_cache_digest(server->model_path, digest)) {
        fprintf(stderr, "server: cannot read the model %s\n", server->model_path);
        return false;
    }
    for (int way = WAY_STORE; way < WAY_COUNT; way++) {
        options.where = server->agents[way];
        server->caches[way] =
            prefix_cache_open(model_context(server->model), &options, why, sizeof(why));
        if (server->caches[way] == NULL) {
            fprintf(stderr, "server: %s: %s\n", options.where, why);
            return false;
        }
    }
    return true;
}

/* Computes tokens [from, to) of the prompt. */
static bool compute(struct server *server, uint32_t from, uint32_t to)
{
    double begin_s = model_now();

    if (!model_decode(server->model, (int)from, (int)to))
        return false;
    prefix_cache_computed(server->caches[WAY_CHOICE], to - from, model_now() - begin_s);
    return true;
}

/* The context has nothing of the prompt before, and gets this one. */
static bool make_prefix(struct server *server, enum way way, struct prefix_cache_report *out_report)
{
    struct prefix_cache *cache = server->caches[way];
    uint32_t count = (uint32_t)server->prompt_tokens, done = 0;

    if (way == WAY_LOAD || way == WAY_CHOICE) {
        if (!prefix_cache_begin(cache, MODEL_SEQUENCE, model_tokens(server->model), count, 0,
                                &done))
            return false;
        prefix_cache_report(cache, out_report);
    } else {
        llama_memory_seq_rm(llama_get_memory(model_context(server->model)), MODEL_SEQUENCE, -1, -1);
    }
    return compute(server, done, count - 1);
}

static void print_result(const struct prefix_cache_report *report, double seconds, double logit)
{
    uint32_t from_pod = 0;

    for (uint32_t i = 0; i < report->block_count; i++)
        from_pod += report->blocks[i].fate == PREFIX_CACHE_LOADED &&
                    report->blocks[i].source == ICMS_SOURCE_POD;
    printf("{\"seconds\":%.6f,\"loaded\":%u,\"from_pod\":%u,\"stored\":%u,\"logit\":%.6f}\n",
           seconds, report->loaded, from_pod, report->stored, logit);
}

static bool serve(struct server *server, enum way way, const char *text)
{
    struct prefix_cache_report report = {0};
    struct model_output output;
    double begin_s;
    int count = model_prompt(server->model, text, strlen(text), server->prompt_tokens);

    if (count != server->prompt_tokens) {
        fprintf(stderr, "server: a prompt has %d tokens, not %d: send a longer one\n", count,
                server->prompt_tokens);
        return false;
    }
    begin_s = model_now();
    if (!make_prefix(server, way, &report) || !model_generate(server->model, 1, &output)) {
        fprintf(stderr, "server: llama.cpp failed\n");
        return false;
    }
    if (way == WAY_STORE) {
        if (!prefix_cache_store(server->caches[way], MODEL_SEQUENCE, model_tokens(server->model),
                                (uint32_t)count - 1)) {
            fprintf(stderr, "server: llama.cpp cannot save a block\n");
            return false;
        }
        prefix_cache_report(server->caches[way], &report);
    }
    print_result(&report, output.first_s - begin_s, output.logit_sum);
    return fflush(stdout) == 0;
}

/* Cuts the line into its two parts. WAY_COUNT: it begins with no way. */
static enum way parse_line(char *line, char **out_text)
{
    char *end = strchr(line, ' ');
    enum way way = 0;

    line[strcspn(line, "\n")] = '\0';
    if (end == NULL)
        return WAY_COUNT;
    *end = '\0';
    *out_text = end + 1;
    while (way < WAY_COUNT && strcmp(line, way_names[way]) != 0)
        way++;
    return way;
}

static bool serve_all(struct server *server)
{
    char *line = NULL, *text = NULL;
    size_t room = 0;
    bool ok = true;

    while (ok && getline(&line, &room, stdin) > 0) {
        enum way way = parse_line(line, &text);

        if (way == WAY_COUNT)
            fprintf(stderr, "server: a line begins with none of store, compute, load, choice\n");
        ok = way != WAY_COUNT && serve(server, way, text);
    }
    free(line);
    return ok;
}

static int usage(void)
{
    fprintf(stderr, "usage: server --model FILE --volume NAME --stores WHERE --loads WHERE\n"
                    "              --choices WHERE --block-tokens N --tokens N\n");
    return 2;
}

static bool parse(struct server *server, int argc, char **argv)
{
    const struct options_row rows[] = {
        {"model", .text = &server->model_path},
        {"volume", .text = &server->volume_name},
        {"stores", .text = &server->agents[WAY_STORE]},
        {"loads", .text = &server->agents[WAY_LOAD]},
        {"choices", .text = &server->agents[WAY_CHOICE]},
        {"block-tokens", .number = &server->block_tokens},
        {"tokens", .number = &server->prompt_tokens},
        {NULL},
    };

    return options_parse(rows, argc, argv) && server->model_path != NULL &&
           server->volume_name != NULL && server->agents[WAY_STORE] != NULL &&
           server->agents[WAY_LOAD] != NULL && server->agents[WAY_CHOICE] != NULL &&
           server->block_tokens > 0 && server->prompt_tokens > server->block_tokens &&
           server->prompt_tokens <= MODEL_TOKENS_MAX - MODEL_BLOCK_TOKENS;
}

int main(int argc, char **argv)
{
    static struct server server;
    bool ok;

    if (!parse(&server, argc, argv))
        return usage();
    server.model = model_open(server.model_path);
    ok = server.model != NULL && open_caches(&server) && serve_all(&server);
    for (int way = 0; way < WAY_COUNT; way++)
        prefix_cache_close(server.caches[way]);
    model_close(server.model);
    return ok ? 0 : 1;
}
