/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of recovery: a drive whose segments hold anything at all, hashes in order.
 *
 * A drive with sealed and open segments of three volumes is made once; the input patches it:
 *   segment (1 byte), page (1), offset in the page in units of 4 bytes (2, little-endian),
 *   flags (1: MEND, 2: MEND_TAIL), length (1), so many bytes;  and again, to the end of the input.
 * With MEND the page's hash is made right afterwards, whatever the page claims to be, so that
 * the patch is believed; with MEND_TAIL that of the copy of a record's header at the page's end.
 * Whatever it was: the drive opens, answers, takes and reclaims blocks, opens again, and nothing
 * steps outside of its memory.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "loop/sim.h"
#include "store/layout.h"
#include "store/store_rig.h"
#include "store/store_verify.h"

#define SEGMENTS      18
#define SEGMENT_PAGES ((uint32_t)(RIG_SEGMENT_BYTES / STORE_PAGE_BYTES))
#define DRIVE_BYTES   (STORE_DATA_OFFSET + SEGMENTS * RIG_SEGMENT_BYTES)
#define KEYS          12
#define PATCHES_MAX   64
#define MEND          1
#define MEND_TAIL     2

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static uint8_t *template_drive;

static void fuzz_room(struct rig *rig)
{
    struct sim_opts opts;

    memset(rig, 0, sizeof(*rig));
    sim_opts_init(&opts, 1);
    rig_sim_init(rig, &opts);
    rig->opts.bytes = DRIVE_BYTES;
    rig->volume_count = 3;
    for (uint32_t i = 0; i < 3; i++)
        rig->uuid[i] = rig_uuid(i);
    rig->quota_bytes[1] = RIG_SEGMENT_BYTES;
}

static void fuzz_drive(struct rig *rig, bool out)
{
    uint64_t bytes = 0;
    uint8_t *medium = sim_file_medium(rig->node, rig->path, &bytes);

    check(medium != NULL && bytes == DRIVE_BYTES);
    if (out)
        memcpy(template_drive, medium, bytes);
    else
        memcpy(medium, template_drive, bytes);
}

static void fuzz_template(void)
{
    struct rig rig;

    if (template_drive != NULL)
        return;
    template_drive = malloc(DRIVE_BYTES);
    check(template_drive != NULL);
    fuzz_room(&rig);
    rig_format(&rig);
    rig_up(&rig);
    for (uint64_t i = 0; i < 3 * KEYS; i++)
        check(rig_put(&rig, (uint32_t)(i % 3), i / 3, i % 5 == 0 ? 100 : 9000, i, 0) == ICMS_OK);
    check(rig_delete(&rig, 0, 1) == ICMS_OK);
    check(rig_delete(&rig, 1, KEYS - 1) == ICMS_OK);
    rig_down(&rig);
    fuzz_drive(&rig, true);
    sim_free(&rig.sim);
}

/* ---- patches ----------------------------------------------------------------------------------
 */

static uint8_t *page_of(uint8_t *drive, uint32_t segment, uint32_t page)
{
    return drive + STORE_DATA_OFFSET + segment * RIG_SEGMENT_BYTES +
           (uint64_t)page * STORE_PAGE_BYTES;
}

/* As layout.c seeds it: changes there have to come here too, or nothing deep is reached any more,
 * which the check in fuzz_mend_works says. */
static uint64_t page_seed(const uint8_t *drive, uint32_t segment, uint32_t page)
{
    const struct store_super_df *super = (const struct store_super_df *)(const void *)drive;
    const struct store_header_df *header =
        (const struct store_header_df *)(const void *)(drive + STORE_DATA_OFFSET +
                                                       segment * RIG_SEGMENT_BYTES);

    if (page == 0 || page == SEGMENT_PAGES - 1)
        return hash64(super->drive, sizeof(super->drive)) ^ hash64_mix(segment);
    return hash64_mix(le64_get(header->life.nonce) ^ hash64_mix(page));
}

/* Both copies of the only sector that a dead map of so few pages has. */
static void fuzz_mend_map(uint8_t *drive, uint32_t segment)
{
    struct store_dead_df *map = (struct store_dead_df *)(void *)page_of(drive, segment, 1);
    uint64_t seed = page_seed(drive, segment, UINT32_MAX);

    for (int i = 0; i < 2; i++)
        map[i].hash = le64_of(hash64_seed(&map[i], sizeof(map[i]) - 8, seed));
}

static void fuzz_mend(uint8_t *drive, uint32_t segment, uint32_t page)
{
    uint8_t *memory = page_of(drive, segment, page);
    const le32 *magic = (const le32 *)(const void *)memory;
    size_t bytes = page == 0 || page == SEGMENT_PAGES - 1 || le32_get(*magic) == STORE_SUMMARY_MAGIC
                       ? STORE_PAGE_BYTES
                       : sizeof(struct store_record_df);
    le64 hash;

    if (page == 1) {
        fuzz_mend_map(drive, segment);
        return;
    }
    hash = le64_of(hash64_seed(memory, bytes - 8, page_seed(drive, segment, page)));

    memcpy(memory + bytes - 8, &hash, sizeof(hash));
}

static void fuzz_mend_tail(uint8_t *drive, uint32_t segment, uint32_t page)
{
    uint8_t *tail = page_of(drive, segment, page) + STORE_TAIL_OFFSET;
    const struct store_record_df *df = (const struct store_record_df *)(const void *)tail;
    uint32_t pages = store_record_pages(le32_get(df->value_bytes));
    uint64_t seed;
    le64 hash;

    if (page <= 1 || page == SEGMENT_PAGES - 1 || pages > page)
        return;
    seed = page_seed(drive, segment, page + 1 - pages);
    hash = le64_of(hash64_seed(tail, sizeof(*df) - 8, seed));
    memcpy(tail + sizeof(*df) - 8, &hash, sizeof(hash));
}

/* Mending a page that was not changed changes nothing. */
static void fuzz_mend_works(uint8_t *drive)
{
    static const uint32_t pages[] = {0, 1, 2, SEGMENT_PAGES - 2, SEGMENT_PAGES - 1};
    uint8_t before[STORE_PAGE_BYTES];

    for (int i = 0; i < 5; i++) {
        memcpy(before, page_of(drive, 0, pages[i]), sizeof(before));
        fuzz_mend(drive, 0, pages[i]);
        check(memcmp(before, page_of(drive, 0, pages[i]), sizeof(before)) == 0);
    }
    memcpy(before, page_of(drive, 0, 2), sizeof(before));
    fuzz_mend_tail(drive, 0, 2);
    check(memcmp(before, page_of(drive, 0, 2), sizeof(before)) == 0);
}

static void fuzz_patch(uint8_t *drive, const uint8_t *data, size_t bytes)
{
    uint8_t mend[PATCHES_MAX][3];
    uint32_t mends = 0;

    for (uint32_t n = 0; n < PATCHES_MAX && bytes >= 6; n++) {
        uint32_t segment = data[0] % SEGMENTS, page = data[1] % SEGMENT_PAGES;
        uint32_t offset = ((uint32_t)data[2] | (uint32_t)data[3] << 8) * 4 % STORE_PAGE_BYTES;
        uint32_t length = data[5];

        if (length > bytes - 6)
            length = (uint32_t)(bytes - 6);
        if (length > STORE_PAGE_BYTES - offset)
            length = STORE_PAGE_BYTES - offset;
        memcpy(page_of(drive, segment, page) + offset, data + 6, length);
        mend[mends][0] = (uint8_t)segment;
        mend[mends][1] = (uint8_t)page;
        mend[mends++][2] = data[4];
        data += 6 + length;
        bytes -= 6 + length;
    }
    for (uint32_t i = 0; i < mends; i++) {
        if ((mend[i][2] & MEND) != 0)
            fuzz_mend(drive, mend[i][0], mend[i][1]);
        if ((mend[i][2] & MEND_TAIL) != 0)
            fuzz_mend_tail(drive, mend[i][0], mend[i][1]);
    }
}

/* ---- use --------------------------------------------------------------------------------------
 */

/* The store may refuse what a hostile drive makes impossible, but it answers. */
static void fuzz_use(struct rig *rig)
{
    static struct store_position keys[64];
    struct store_position from = {0};
    struct err_why why;

    for (uint64_t k = 0; k < KEYS; k++) {
        for (uint32_t v = 0; v < 3; v++)
            (void)rig_get(rig, v, k, 1, 1, NULL);
    }
    for (uint64_t k = 0; k < 14; k++) {
        (void)rig_put(rig, (uint32_t)(k % 2), k, 30000, k, 0);
        if (k % 3 == 0)
            (void)rig_delete(rig, 2, k);
    }
    loop_stop(rig->loop);
    loop_join(rig->loop);
    (void)store_list(rig->store, 0, &from, &store_position_end, UINT32_MAX, keys, 64);
    (void)store_verify(rig->store, &why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct rig rig;
    uint64_t size;
    uint8_t *medium;

    fuzz_template();
    fuzz_room(&rig);
    rig_format(&rig);
    fuzz_drive(&rig, false);
    medium = sim_file_medium(rig.node, rig.path, &size);
    fuzz_mend_works(medium);
    fuzz_patch(medium, data, bytes);
    rig_up(&rig);
    fuzz_use(&rig);
    rig_restart(&rig);
    rig_down(&rig);
    sim_free(&rig.sim);
    return 0;
}
