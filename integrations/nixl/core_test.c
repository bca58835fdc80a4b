/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.c against libraries in the place of NIXL's, of layouts that are known and not.
 *
 * usage: core_test FOLDER of the libraries made from core_fake.c
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "nixl/nixl.h"

static const char *libraries;

/* Says how the check of a core ends that has this plugin in a folder below its own; NULL: none. */
static icms_err checked(const char *core, const char *plugin, const char *below, char why[512])
{
    char root[] = "/tmp/icms-core-XXXXXX", path[256], target[512], linked[512] = "", folder[256];
    const void *(*address)(void);
    void *handle;
    icms_err err;

    assert_non_null(mkdtemp(root));
    (void)snprintf(folder, sizeof(folder), "%s%s", root, below);
    if (below[0] != '\0')
        assert_int_equal(mkdir(folder, 0700), 0);
    if (plugin != NULL) {
        (void)snprintf(target, sizeof(target), "%s/libnixl_%s.so", libraries, plugin);
        (void)snprintf(linked, sizeof(linked), "%s/libplugin_POSIX.so", folder);
        assert_int_equal(symlink(target, linked), 0);
    }
    (void)snprintf(target, sizeof(target), "%s/libnixl_%s.so", libraries, core);
    (void)snprintf(path, sizeof(path), "%s/libnixl.so", root);
    assert_int_equal(symlink(target, path), 0);
    handle = dlopen(path, RTLD_NOW);
    if (handle == NULL)
        fail_msg("%s", dlerror());
    *(void **)&address = dlsym(handle, "fake_core");
    assert_non_null(address);
    why[0] = '\0';
    err = nixl_core_check(address(), why, 512);
    assert_int_equal(dlclose(handle), 0);
    assert_int_equal(unlink(path), 0);
    if (plugin != NULL)
        assert_int_equal(unlink(linked), 0);
    if (below[0] != '\0')
        assert_int_equal(rmdir(folder), 0);
    assert_int_equal(rmdir(root), 0);
    return err;
}

static void test_a_layout_that_is_known_is_taken(void **state)
{
    char why[512];

    assert_int_equal(checked("fake_core", "fake_table", "/plugins", why), ICMS_OK);
    assert_int_equal(checked("fake_core", "fake_table", "", why), ICMS_OK);
}

static void test_a_core_without_its_plugins_is_taken(void **state)
{
    char why[512];
    int here;

    assert_int_equal(checked("fake_core", NULL, "/plugins", why), ICMS_OK);
    assert_int_equal(nixl_core_check(&here, why, sizeof(why)), ICMS_OK);
}

static void refused(const char *core, const char *plugin, const char *words)
{
    char why[512];

    assert_int_equal(checked(core, plugin, "/plugins", why), ICMS_VERSION);
    if (strstr(why, words) == NULL || strstr(why, "/libnixl.so") == NULL ||
        strstr(why, "use NIXL 1.0 to 1.5") == NULL)
        fail_msg("'%s' without '%s'", why, words);
}

static void test_another_layout_is_refused_and_told(void **state)
{
    refused("fake_core", "fake_table_longer", "28 virtual functions, this plugin has 27");
    refused("fake_core", "fake_table_swapped", "it calls _ZNK15nixlPosixEngine8postXfer");
    refused("fake_core", "fake_table_argument", "it calls _ZNK15nixlPosixEngine8postXfer");
    refused("fake_core_old", "fake_table", "before 1.0.0");
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_layout_that_is_known_is_taken),
        cmocka_unit_test(test_a_core_without_its_plugins_is_taken),
        cmocka_unit_test(test_another_layout_is_refused_and_told),
    };

    if (argc != 2)
        return 2;
    libraries = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
