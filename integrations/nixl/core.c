/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the NIXL that loads the plugin has the layout that abi.hpp was written for. Called by
 * plugin.cpp before anything else crosses between the two, on the thread that loads plugins.
 *
 * NIXL has no version number for that layout, and a call through a virtual table of another layout
 * crashes. But NIXL has plugins of its own, built from the same headers. The virtual table of one
 * of them, the reference, is compared with ours: the number of functions, and the place and
 * arguments of those that have a body of their own. A NIXL without that plugin is accepted
 * unchecked.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "nixl/nixl.h"

/* Exported by cores before 1.0.0 alone, which had another layout. */
#define OLD_SYMBOL "_ZNK9nixlAgent16createGpuXferReqERK12nixlXferReqHRPv"

#define REFERENCE       "libplugin_POSIX.so"
#define REFERENCE_TABLE "_ZTV15nixlPosixEngine"
#define TABLE_HEAD      2 /* in front of the functions: offset and type information */
#define TABLE_PLACES    27
#define SUPPORTED       "use NIXL 1.0 to 1.5, or an icms that was made for this one"

#define TEXT      "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define TRANSFER  "ERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_"
#define ARGUMENTS TRANSFER TEXT "RP15nixlBackendReqHPK23nixlBackendOptionalArgs"

/* Functions with a body of their own, which no compiler makes one with another. */
static const struct {
    size_t place;
    const char *function;
} places[] = {
    {6, "_ZN15nixlPosixEngine11registerMemERK12nixlBlobDescRK10nixl_mem_tRP13nixlBackendMD"},
    {11, "_ZNK15nixlPosixEngine8prepXfer" ARGUMENTS},
    {12, "_ZNK15nixlPosixEngine8postXfer" ARGUMENTS},
    {13, "_ZNK15nixlPosixEngine9checkXferEP15nixlBackendReqH"},
    {14, "_ZNK15nixlPosixEngine11releaseReqHEP15nixlBackendReqH"},
    {25, "_ZNK15nixlPosixEngine8queryMemERK12nixlDescListI12nixlBlobDescERSt6vectorISt8optional"
         "ISt13unordered_mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESD_St4hashISD_E"
         "St8equal_toISD_ESaISt4pairIKSD_SD_EEEESaISN_EE"},
};

/* The symbol of a function; "" when it has none. */
static const char *function_name(const void *function)
{
    Dl_info info;

    return dladdr(function, &info) != 0 && info.dli_sname != NULL ? info.dli_sname : "";
}

static icms_err table_check(const char *core, void *const *table, struct err_why *why)
{
    void *symbol = NULL;
    size_t found;
    Dl_info info;

    if (dladdr1(table, &info, &symbol, RTLD_DL_SYMENT) == 0 || symbol == NULL)
        return ICMS_OK;
    found = ((const ElfW(Sym) *)symbol)->st_size / sizeof(void *);
    if (found != TABLE_HEAD + TABLE_PLACES)
        return err_set(
            why, ICMS_VERSION,
            "cannot be loaded into %s: its engines have %zu virtual functions, this plugin "
            "has %d; " SUPPORTED,
            core, found > TABLE_HEAD ? found - TABLE_HEAD : 0, TABLE_PLACES);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        const char *name = function_name(table[TABLE_HEAD + places[i].place]);

        if (name[0] != '\0' && strcmp(name, places[i].function) != 0)
            return err_set(
                why, ICMS_VERSION,
                "cannot be loaded into %s: it calls %.80s where this plugin has %.80s; " SUPPORTED,
                core, name, places[i].function);
    }
    return ICMS_OK;
}

/* Checks the reference plugin in a folder; false when the folder has none. */
static bool reference_check(const char *core, const char *folder, const char *below,
                            struct err_why *why, icms_err *out_err)
{
    char path[4096];
    void *const *table;
    void *plugin;

    if ((size_t)snprintf(path, sizeof(path), "%s%s/" REFERENCE, folder, below) >= sizeof(path))
        return false;
    plugin = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (plugin == NULL)
        return false;
    table = dlsym(plugin, REFERENCE_TABLE);
    if (table != NULL)
        *out_err = table_check(core, table, why);
    (void)dlclose(plugin);
    return table != NULL;
}

static icms_err core_check(const void *address, struct err_why *why)
{
    icms_err err = ICMS_OK;
    char folder[4096];
    Dl_info info;
    void *core;
    char *end;
    bool old;

    if (dladdr(address, &info) == 0 || info.dli_fname == NULL)
        return ICMS_OK;
    core = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (core == NULL)
        return ICMS_OK;
    old = dlsym(core, OLD_SYMBOL) != NULL;
    (void)dlclose(core);
    if (old)
        return err_set(why, ICMS_VERSION,
                       "cannot be loaded into %s: it is a NIXL before 1.0.0; " SUPPORTED,
                       info.dli_fname);
    (void)snprintf(folder, sizeof(folder), "%s", info.dli_fname);
    end = strrchr(folder, '/');
    if (end == NULL)
        return ICMS_OK;
    *end = '\0';
    if (!reference_check(info.dli_fname, folder, "/plugins", why, &err))
        (void)reference_check(info.dli_fname, folder, "", why, &err);
    return err;
}

icms_err nixl_core_check(const void *address, char *why, size_t why_bytes)
{
    struct err_why text = {0};
    icms_err err = core_check(address, &text);

    if (err != ICMS_OK && why_bytes != 0)
        (void)snprintf(why, why_bytes, "%s", text.text);
    return err;
}
