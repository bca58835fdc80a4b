/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello.c: put a block, get it back, compare, and miss one.
 *
 *   cc hello.c -o hello $(pkg-config --cflags --libs libicms)
 *   ./hello                        in a directory, without any daemon
 *   ./hello unix:                  through the icms-agent of this machine
 */
#include <stdio.h>
#include <string.h>

#include <icms/icms.h>

int main(int argc, char **argv)
{
    const char *where = argc > 1 ? argv[1] : "dir:/tmp/icms-hello";
    char text[] = "a block of KV cache, as far as this example is concerned";
    char why[256], back[256];
    struct icms *icms = NULL;
    struct icms_volume *volume = NULL;
    struct icms_block put = {.data = text, .bytes = strlen(text)};
    struct icms_block get = {.data = back, .bytes = sizeof(back)};
    struct icms_block miss = {.data = back, .bytes = sizeof(back)};

    /* Whatever can go wrong with a start says so in a sentence. */
    if (icms_open(where, NULL, why, sizeof(why), &icms) != ICMS_OK ||
        icms_volume_open(icms, "kv", why, sizeof(why), &volume) != ICMS_OK) {
        fprintf(stderr, "hello: %s\n", why);
        icms_close(&icms);
        return 2;
    }

    /* An engine makes its keys with icms_chain_next; names will do here. */
    icms_key_from_name("hello", strlen("hello"), &put.key);
    icms_key_from_name("nobody", strlen("nobody"), &miss.key);
    get.key = put.key;

    if (icms_put(volume, &put, 1, NULL) != ICMS_OK)
        fprintf(stderr, "hello: not stored: %s\n", icms_err_text(put.status));

    /* A cache may forget: not being there is an answer, with a reason. */
    if (icms_get(volume, &get, 1, NULL) == ICMS_OK)
        printf("%llu bytes came back, %s\n", (unsigned long long)get.bytes,
               get.bytes == put.bytes && memcmp(back, text, get.bytes) == 0 ? "the same"
                                                                            : "different");
    else
        printf("missed: %s\n", icms_miss_name(get.reason));

    if (icms_get(volume, &miss, 1, NULL) == ICMS_MISS)
        printf("nobody: %s\n", icms_miss_name(miss.reason));

    icms_close(&icms);
    return get.status == ICMS_OK && miss.status == ICMS_MISS ? 0 : 1;
}
