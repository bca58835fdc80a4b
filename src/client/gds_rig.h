/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client/gds_rig.h: blocks on an own drive, and none in memory, for tests of reads past the host:
 * the drive of a dir:, or one beside a pod of an enclosure that runs already. The GPU and its
 * libraries are fakes, the agent inside is the real one.
 */
#ifndef CLIENT_GDS_RIG_H
#define CLIENT_GDS_RIG_H

#include <stdatomic.h>

#include <icms/icms.h>

#include "device/fake_device.h"

#define BYTES   300000
#define BLOCKS  64
#define LANES   4 /* DEVICE_LANES */
#define WAIT_MS 20000
#define SLOW_US 30000
#define MIB     ((uint64_t)1 << 20)

extern const struct fake_device *gpu;
extern const char *enclosure, *nqn; /* of the pod: HOST:PORT; NULL: dir:           */
extern int gds_run;                 /* of a fixture: its blocks are not others'     */

struct fixture {
    char folder[64], where[96];
    void *context;
    struct icms *icms;
    struct icms_volume *volume;
    struct icms_memory *memory;
    uint64_t address;         /* of BLOCKS times BYTES */
    uint64_t next;            /* block that was not asked for yet */
    enum icms_source source;  /* of the last one that came */
    _Atomic int lines, slack; /* slack: timer slack of the thread that said the last one, in ns */
    char line[512];           /* of how the drive is read */
};

uint64_t now_ms(void);

/* Counts lines about cuFile. */
void on_log(void *arg, const char *line);

/* The bytes of a value, and a block. */
void fill(uint8_t *data, uint64_t number);
struct icms_block block_of(uint64_t number, void *data);
void *device_at(const struct fixture *f, uint64_t number);

/* The status of the handle has these words; a number of it. */
void status_has(const struct fixture *f, const char *words);
uint64_t status_of(const struct fixture *f, const char *name);

/* Fixtures of cmocka; the last one looks for leaks in the driver. In the small memory a block is
 * large: it is read past that each time. */
int gds_setup(void **state);
int gds_setup_small(void **state);
int gds_teardown(void **state);

#define CASE(test) cmocka_unit_test_setup_teardown(test, gds_setup, gds_teardown)

/* f->where, and its volume; keys: a list of keys, or NULL. */
void open_tier(struct fixture *f, const char *keys);

void register_memory(struct fixture *f);
void folder_remove(const struct fixture *f);

/* Memory of the GPU has this value; block `number` has its own, or none. */
void device_is_value(const struct fixture *f, uint64_t number, uint64_t value);
void device_is(const struct fixture *f, uint64_t number, bool filled);

/* A block that was not asked for yet, into the GPU. */
icms_err get_next(struct fixture *f, uint32_t deadline_ms, enum icms_miss *out_reason);

/* Until the GPU has counted so many. */
void wait_count(int what, int count);

/* Registers memory; the first read decides how the drive is read, which is said with these words.
 */
void choose(struct fixture *f, const char *words);
void choose_device(struct fixture *f);

/* Blocks from the next one on. */
void reads_pass_the_host(struct fixture *f, int count);
void reads_take_the_host(struct fixture *f, int count);

#endif
