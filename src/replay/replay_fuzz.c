/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a trace: read and replayed, or refused with a sentence that begins with the file's
 * name. The first byte chooses the format.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "replay/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct replay_setup setup = {
        .capacity_blocks = 64, .block_bytes = 4096, .segment_bytes = 64 << 10, .loops = 2};
    struct replay_trace trace;
    struct replay_result result;
    struct err_why why = {{0}};
    FILE *file;
    icms_err err;

    if (bytes < 2)
        return 0;
    file = fmemopen((void *)(uintptr_t)(data + 1), bytes - 1, "r");
    check(file != NULL);
    err = replay_trace_read(file, "fuzz", (data[0] & 1) == 0 ? REPLAY_MOONCAKE : REPLAY_QWEN, &why,
                            &trace);
    check(err == ICMS_OK || (err == ICMS_CONFIG && strncmp(why.text, "fuzz:", 5) == 0));
    if (err == ICMS_OK) {
        setup.kind = REPLAY_LRU;
        check(replay_run(&trace, &setup, &why, &result) == ICMS_OK);
        check(result.block_hits <= result.refs && result.token_hits <= result.tokens);
    }
    replay_trace_free(&trace);
    (void)fclose(file);
    return 0;
}
