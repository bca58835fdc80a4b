/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that are read again: a host is told of when its keys are in use, not before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/check.h"
#include "crypt/key_text.h"
#include "crypt/secret.h"
#include "crypt/tls.h"
#include "nvmf/target/target_int.h"

static char host[] = "nqn.2026-01.io.icms:test-host", other[] = "nqn.2026-01.io.icms:other-host";

static bool is_refused; /* the settings of TLS cannot be made */

icms_err __real_crypt_tls_server_new(const struct crypt_tls_server_opts *opts, struct err_why *why,
                                     struct crypt_tls **out_tls);
icms_err __wrap_crypt_tls_server_new(const struct crypt_tls_server_opts *opts, struct err_why *why,
                                     struct crypt_tls **out_tls);
icms_err __wrap_crypt_tls_server_new(const struct crypt_tls_server_opts *opts, struct err_why *why,
                                     struct crypt_tls **out_tls)
{
    return is_refused ? ICMS_NO_MEMORY : __real_crypt_tls_server_new(opts, why, out_tls);
}

static char folder[64];
static char paths[2][LIMIT_PATH_BYTES];

static void key_write(int which)
{
    struct key_plain key = {.hash = KEY_HASH_SHA256, .bytes = 32};
    char text[KEY_TEXT_BYTES_MAX];
    size_t bytes;

    secret_random(key.key, key.bytes);
    bytes = key_text_make(KEY_TEXT_TLS, &key, text);
    (void)unlink(paths[which]);
    check(secret_write(paths[which], text, bytes, NULL) == ICMS_OK);
}

static uint32_t replaced, kept;

static void said(void *arg, const char *nqn, const char *why)
{
    assert_string_equal(nqn, arg);
    replaced += why == NULL;
    kept += why != NULL;
}

static void keys_are_replaced_when_they_are_used(void **state)
{
    struct nvmf_target_host hosts[2] = {{.require = 0}, {.require = 0}};
    struct nvmf_target_opts opts;
    struct nvmft_keys *keys = NULL;
    struct err_why why;

    for (int i = 0; i < 2; i++) {
        (void)snprintf(paths[i], sizeof(paths[i]), "%s/key%d", folder, i);
        key_write(i);
        (void)snprintf(hosts[i].nqn, sizeof(hosts[i].nqn), "%s", i == 0 ? host : other);
        hosts[i].psks = (const char(*)[LIMIT_PATH_BYTES])paths[i];
        hosts[i].psk_count = 1;
    }
    nvmf_target_opts_init(&opts);
    opts.nqn = "nqn.2026-01.io.icms:test";
    opts.hosts = hosts;
    opts.host_count = 2;
    assert_int_equal(nvmft_keys_new(&opts, &why, &keys), ICMS_OK);
    assert_int_equal(nvmft_keys_read_again(keys, &opts, said, host, &why), ICMS_OK);
    assert_int_equal(replaced + kept, 0);
    key_write(0);
    is_refused = true;
    assert_int_equal(nvmft_keys_read_again(keys, &opts, said, host, &why), ICMS_NO_MEMORY);
    assert_int_equal(replaced + kept, 0);
    is_refused = false;
    assert_int_equal(nvmft_keys_read_again(keys, &opts, said, host, &why), ICMS_OK);
    assert_int_equal(replaced, 1);
    key_write(1);
    assert_int_equal(nvmft_keys_read_again(keys, &opts, said, other, &why), ICMS_OK);
    assert_int_equal(replaced, 2);
    check(unlink(paths[1]) == 0);
    assert_int_equal(nvmft_keys_read_again(keys, &opts, said, other, &why), ICMS_OK);
    assert_int_equal(replaced, 2);
    assert_int_equal(kept, 1);
    nvmft_keys_free(&keys);
}

static int setup(void **state)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/icms-keys-XXXXXX");
    check(mkdtemp(folder) != NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)unlink(paths[0]);
    (void)unlink(paths[1]);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_replaced_when_they_are_used),
    };

    return cmocka_run_group_tests_name("nvmf target keys", tests, setup, teardown);
}
