/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conf/keys_int.h: how a row of a table of keys is written, for keys.c, keys_client.c and
 * keys_models.c.
 */
#ifndef CONF_KEYS_INT_H
#define CONF_KEYS_INT_H

#include <stddef.h>

#include "conf/conf_int.h"

#define KEYS(array) .keys = (array), .count = sizeof(array) / sizeof((array)[0])
#define AT(type, field)                                                                            \
    .offset = (uint32_t)offsetof(type, field), .size = (uint32_t)sizeof(((type *)0)->field)
#define LIST_AT(type, field, counter)                                                              \
    .offset = (uint32_t)offsetof(type, field), .size = (uint32_t)sizeof(((type *)0)->field[0]),    \
    .count_offset = (uint32_t)offsetof(type, counter)

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)

#endif
