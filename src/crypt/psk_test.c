/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Contracts of pre-shared keys. The golden values were computed with Python's hashlib and hmac from
 * the text of the specification, and agree with libnvme 1.16.
 */
#include "wire/test_bytes.h"

#include "crypt/psk.h"

#define HOST "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"
#define SUB  "nqn.2026-01.io.icms:encl0"

struct golden {
    enum crypt_psk_kind kind;
    const char *head, *digest, *key;
};

struct golden_psk {
    const char *text;
    struct golden of[3];
};

/* The keys are the bytes 1, 2, 3, ... */
static const struct golden_psk golden[] = {
    {"NVMeTLSkey-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
     {{CRYPT_PSK_V1, "NVMe1R01 ", " KDiITXei9Qjm6fGo0UXEqrBkVifwgWxSjVp1hzCxWU4=",
       "5c3693d029d6180a2a37ed5d74484aea754a5c3c4963d448f25e58a29df95cca"},
      {CRYPT_PSK_V0, "NVMe0R01 ", "",
       "83df3e9cb132959e317533b143989205301d9d9e6e75a9cfc87376f03e6659db"},
      {CRYPT_PSK_LIBNVME, "NVMe1R01 ", " KDiITXei9Qjm6fGo0UXEqrBkVifwgWxSjVp1hzCxWU4=",
       "73239347209c31af5668bf14976761b47d8eeb5d0e2aea1d4ced1f68712299c8"}}},
    {"NVMeTLSkey-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
     {{CRYPT_PSK_V1, "NVMe1R01 ", " US54oahUkizB8VeLy8NJnIR8wuHS2o+etiowweKpIhc=",
       "f57c71095cdb67dd6488f054085efa732db48bfc2849a9dfa03cdc7eeec9d650"},
      {CRYPT_PSK_V0, "NVMe0R01 ", "",
       "84183e06e0a2c7e220d4d80b662cc510643c8b16c196b13def1cef262ac3669d"},
      {CRYPT_PSK_LIBNVME, "NVMe1R01 ", " A6Z1Qx9d4JSa7EAZzA8nkVxAFmMbo6RyJzhpuN7t2Z4=",
       "82bb9e45fe335ed2fe16686402b7bd030310dae038800b4c0612ad7dc2be4e32"}}},
    {"NVMeTLSkey-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
     {{CRYPT_PSK_V1, "NVMe1R02 ",
       " qGtcUy58yU3MplinizSrNqizhH85p75Ja2ZEKLK+1pwOKiTzcMzbgIV/ldKLGdYd",
       "45295a1057c4a576b3cce4f88d9ad90d73bd799efde336634278fc05848294951895fa4505ca0f204f75cfb4958"
       "8c"
       "21d"},
      {CRYPT_PSK_V0, "NVMe0R02 ", "",
       "5e2da66ab6a6a0bfec2880629e17fc0840d785ed64a3adf95f4565a0424428e9bbb1921a4fb68d6ddcced3644a3"
       "75"
       "258"},
      {CRYPT_PSK_LIBNVME, "NVMe1R02 ",
       " Ke8n/TTopka23bVuCNkUiHRXqlC8f9fZslzEzA0AAUZGZ1MxbYXelc5YhztimrOL",
       "a8669eafaa2e3bef12fee2bcdcf43952e9b58c9cb8e2500091c0d9fccaf55e8a6a201bfa95cf32545a3e81c65ce"
       "06"
       "2bd"}}},
    {"NVMeTLSkey-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
     {{CRYPT_PSK_V1, "NVMe1R02 ",
       " v9lbgRj28TNIwJrXwNP0WpJtK249tuDd2bUzrWrxtQKjsiO+YqdtMcX+R9/cdl7q",
       "998bb4fa9b64964e41b2f0568d2b6ffa154422ad8f2b0faf62b9e505c5c497960dd37e3140aaa15622bfd9ac47d"
       "57"
       "8f5"},
      {CRYPT_PSK_V0, "NVMe0R02 ", "",
       "4e264dbb6e039231e9b3d2aad9c3e126826195f9dd0e4082b0d7b328ee9d7daad0ab1d70a58f2cda8c443cd85d8"
       "11"
       "514"},
      {CRYPT_PSK_LIBNVME, "NVMe1R02 ",
       " v9lbgRj28TNIwJrXwNP0WpJtK249tuDd2bUzrWrxtQKjsiO+YqdtMcX+R9/cdl7q",
       "7827a2e335d65ee18272dd735d5a88ed7e2caa10712a17165457111f57c9ff0bdc25aa707e48356b1368a0b14bb"
       "fe"
       "baa"}}},
};

static icms_err parse(const char *text, struct key_plain *out_psk)
{
    return key_text_parse(KEY_TEXT_TLS, text, strlen(text), NULL, out_psk);
}

static void derives_golden_keys_and_identities(void **state)
{
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++) {
        struct key_plain psk;

        assert_int_equal(parse(golden[i].text, &psk), ICMS_OK);
        for (int k = 0; k < 3; k++) {
            const struct golden *want = &golden[i].of[k];
            char identity[CRYPT_PSK_IDENTITY_BYTES];
            struct crypt_tls_psk made;

            (void)snprintf(identity, sizeof(identity), "%s" HOST " " SUB "%s", want->head,
                           want->digest);
            assert_int_equal(crypt_psk_derive(&psk, want->kind, HOST, SUB, &made), ICMS_OK);
            assert_string_equal(made.identity, identity);
            assert_int_equal(made.bytes, strlen(want->key) / 2);
            test_bytes_are(made.key, want->key);
            crypt_tls_psk_wipe(&made);
            assert_string_equal(made.identity, "");
        }
    }
}

static void another_host_or_subsystem_has_another_key(void **state)
{
    struct crypt_tls_psk a, b;
    struct key_plain psk;

    assert_int_equal(parse(golden[1].text, &psk), ICMS_OK);
    assert_int_equal(crypt_psk_derive(&psk, CRYPT_PSK_V1, HOST, SUB, &a), ICMS_OK);
    assert_int_equal(crypt_psk_derive(&psk, CRYPT_PSK_V1, HOST "6", SUB, &b), ICMS_OK);
    assert_memory_not_equal(a.key, b.key, 32);
    assert_int_equal(crypt_psk_derive(&psk, CRYPT_PSK_V1, HOST, SUB "6", &b), ICMS_OK);
    assert_memory_not_equal(a.key, b.key, 32);
}

static void names_too_long_for_the_old_identity_are_refused(void **state)
{
    char host[LIMIT_NQN_BYTES], sub[LIMIT_NQN_BYTES];
    struct crypt_tls_psk made;
    struct key_plain psk;

    memset(host, 'h', sizeof(host));
    memset(sub, 's', sizeof(sub));
    host[LIMIT_NQN_BYTES - 1] = sub[LIMIT_NQN_BYTES - 1] = '\0';
    assert_int_equal(parse(golden[2].text, &psk), ICMS_OK);
    assert_int_equal(crypt_psk_derive(&psk, CRYPT_PSK_V0, host, sub, &made), ICMS_INVALID);
    assert_int_equal(crypt_psk_derive(&psk, CRYPT_PSK_V1, host, sub, &made), ICMS_OK);
    assert_int_equal(strlen(made.identity), CRYPT_PSK_IDENTITY_BYTES - 1);
    assert_int_equal(crypt_psk_derive(&psk, CRYPT_PSK_LIBNVME, host, sub, &made), ICMS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derives_golden_keys_and_identities),
        cmocka_unit_test(another_host_or_subsystem_has_another_key),
        cmocka_unit_test(names_too_long_for_the_old_identity_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
