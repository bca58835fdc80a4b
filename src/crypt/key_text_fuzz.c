/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the text of a key: what passes is exactly what is made of the key. The first byte
 * chooses the form.
 */
#include <string.h>

#include "base/check.h"
#include "crypt/key_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct err_why why = {""};
    struct key_plain key;
    char text[KEY_TEXT_BYTES_MAX];
    const char *form;
    icms_err err;

    if (bytes == 0)
        return 0;
    form = data[0] == 'T' ? KEY_TEXT_TLS : KEY_TEXT_DHCHAP;
    err = key_text_parse(form, (const char *)data + 1, bytes - 1, &why, &key);
    check(err == ICMS_OK || (err == ICMS_CONFIG && why.text[0] != 0));
    if (err != ICMS_OK)
        return 0;
    check(key_text_make(form, &key, text) == bytes - 1);
    check(memcmp(text, data + 1, bytes - 1) == 0);
    return 0;
}
