/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What core_test.c puts in the place of NIXL's libraries: a core (FAKE_CORE, FAKE_CORE_OLD), and
 * its plugin POSIX with a virtual table: as it is (FAKE_TABLE), with a function more
 * (FAKE_TABLE_LONGER), with two functions that changed places (FAKE_TABLE_SWAPPED), or with an
 * argument more (FAKE_TABLE_ARGUMENT).
 */
#include <stddef.h>

#define SHOWN __attribute__((visibility("default")))

#if defined(FAKE_CORE) || defined(FAKE_CORE_OLD)
SHOWN const void *fake_core(void);
SHOWN const void *fake_core(void)
{
    return (const void *)(size_t)fake_core;
}
#ifdef FAKE_CORE_OLD
SHOWN extern const int _ZNK9nixlAgent16createGpuXferReqERK12nixlXferReqHRPv;
const int _ZNK9nixlAgent16createGpuXferReqERK12nixlXferReqHRPv = 1;
#endif
#else

#define TEXT     "RKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define TRANSFER "ERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_" TEXT
#define HANDLE   "RP15nixlBackendReqHPK23nixlBackendOptionalArgs"
#define ENGINE   "_ZNK15nixlPosixEngine"
#ifdef FAKE_TABLE_ARGUMENT
#define MORE "b"
#else
#define MORE ""
#endif

/* Each has something of its own, so that no two become one. */
#define FUNCTION(name, symbol, number)                                                             \
    SHOWN int name(void) __asm__(symbol);                                                          \
    int name(void)                                                                                 \
    {                                                                                              \
        return number;                                                                             \
    }

FUNCTION(other, "_ZNK15nixlPosixEngine5otherEv", 1)
FUNCTION(register_memory,
         "_ZN15nixlPosixEngine11registerMemERK12nixlBlobDescRK10nixl_mem_tRP13nixlBackendMD", 2)
FUNCTION(prepare, ENGINE "8prepXfer" TRANSFER HANDLE, 3)
FUNCTION(post, ENGINE "8postXfer" TRANSFER HANDLE MORE, 4)
FUNCTION(check_transfer, ENGINE "9checkXferEP15nixlBackendReqH", 5)
FUNCTION(release, ENGINE "11releaseReqHEP15nixlBackendReqH", 6)
FUNCTION(query,
         ENGINE "8queryMemERK12nixlDescListI12nixlBlobDescERSt6vectorISt8optional"
                "ISt13unordered_mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEESD_"
                "St4hashISD_ESt8equal_toISD_ESaISt4pairIKSD_SD_EEEESaISN_EE",
         7)

#define TWO(f)  f, f
#define FOUR(f) TWO(f), TWO(f)

SHOWN extern int (*const _ZTV15nixlPosixEngine[])(void);
int (*const _ZTV15nixlPosixEngine[])(void) = {
    NULL,           NULL,    FOUR(other), TWO(other),  register_memory, FOUR(other),
#ifdef FAKE_TABLE_SWAPPED
    post,           prepare,
#else
    prepare,        post,
#endif
    check_transfer, release, FOUR(other), FOUR(other), TWO(other),      query,       other,
#ifdef FAKE_TABLE_LONGER
    other,
#endif
};
#endif
