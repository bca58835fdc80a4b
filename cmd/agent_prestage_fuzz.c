/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the body of POST /v1/prestage: hints within their bounds, or refused with a
 * sentence.
 */
#include <stdlib.h>
#include <string.h>

#include "agent_prestage.h"
#include "base/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct err_why why = {""};
    char volume[LIMIT_NAME_BYTES];
    struct agent_hints hints = {0};
    char *body;
    icms_err err;

    if (bytes > LIMIT_HTTP_BODY_BYTES)
        return 0;
    body = malloc(bytes + 1); /* its end is watched */
    check(body != NULL);
    memcpy(body, data, bytes);
    err = agent_prestage_read(body, bytes, &why, volume, &hints);
    if (err == ICMS_OK) {
        check(memchr(volume, 0, sizeof(volume)) != NULL && hints.volume == volume);
        check(hints.count > 0 && hints.count <= bytes && hints.priority <= 3);
        check(hints.deadline_ms >= 1 && hints.deadline_ms <= 600000);
        for (size_t i = 0; i < hints.count; i++)
            check(hints.keys[i].length >= 1 && hints.keys[i].length <= LIMIT_KEY_BYTES);
        free((void *)(uintptr_t)hints.keys);
    } else {
        check(why.text[0] != '\0');
    }
    free(body);
    return 0;
}
