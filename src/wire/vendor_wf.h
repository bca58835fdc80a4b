/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire/vendor_wf.h: what icms puts into the vendor bytes of Identify. Private to wire.
 */
#ifndef WIRE_VENDOR_WF_H
#define WIRE_VENDOR_WF_H

#include <assert.h>

#include "base/bytes.h"

#define VENDOR_MAGIC   0x534d4349u /* "ICMS" */
#define VENDOR_VERSION 1

#define VENDOR_NS_SEALED    0x01 /* values of the namespace end in a trailer */
#define VENDOR_NS_ENCRYPTED 0x02 /* clients encrypt them                     */

/* Identify Controller, bytes 3072..4095. */
struct vendor_ctrl_wf {
    le32 magic;            /* @0  VENDOR_MAGIC                 */
    uint8_t version;       /* @4  VENDOR_VERSION               */
    uint8_t reserved5[3];  /* @5  0                            */
    le32 extensions;       /* @8  NVME_ICMS_EXT_*              */
    uint8_t reserved12[4]; /* @12 0                           */
    le64 instance;         /* @16 of the target's process; 0: not told */
    uint8_t reserved24[1000];
};
static_assert(sizeof(struct vendor_ctrl_wf) == 1024, "vendor bytes of a controller");

/* Identify Namespace (KV), bytes 3840..4095. */
struct vendor_ns_wf {
    le32 magic;           /* @0  VENDOR_MAGIC                 */
    uint8_t version;      /* @4  VENDOR_VERSION               */
    uint8_t flags;        /* @5  VENDOR_NS_*                  */
    uint8_t reserved6[2]; /* @6  0                            */
    uint8_t volume[16];   /* @8  UUID of the volume           */
    uint8_t reserved24[232];
};
static_assert(sizeof(struct vendor_ns_wf) == 256, "vendor bytes of a namespace");

#endif
