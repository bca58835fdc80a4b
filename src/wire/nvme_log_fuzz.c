/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzer of Get Log Page. Byte 0 chooses: the command, whose page is then read where it asks; the
 * header of the discovery log; an entry of it.
 */
#include <stdlib.h>

#include "base/check.h"
#include "wire/nvme_fabrics.h"
#include "wire/nvme_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void fuzz_command(const uint8_t *data, size_t bytes)
{
    static const struct nvme_disc_entry entries[2] = {
        {.subtype = NVME_DISC_NVM, .address = "10.0.2.2", .service = "4420", .subnqn = "nqn.a"},
        {.subtype = NVME_DISC_NVM, .address = "10.0.2.3", .service = "4420", .subnqn = "nqn.b"},
    };
    static const struct nvme_health health = {.reads = 5};
    struct nvme_sqe_wf sqe = {0};
    uint32_t nsids[2] = {1, 2};
    const struct nvme_ana ana = {
        .group = 1, .state = NVME_ANA_OPTIMIZED, .nsids = nsids, .count = 2, .count_max = 1024};
    struct nvme_log log;
    uint32_t count;
    uint8_t *out;

    memcpy(&sqe, data, u64_min(bytes, sizeof(sqe)));
    if (nvme_log_decode(&sqe, &log) != ICMS_OK)
        return;
    check(log.specific <= 0x7f);
    check(log.bytes >= 4 && log.bytes % 4 == 0 && log.offset % 4 == 0);
    count = (uint32_t)u64_min(log.bytes, 8192);
    out = malloc(count);
    check(out != NULL);
    (void)!nvme_log_quiet_read(log.page, "0.1", log.offset, out, count);
    (void)!nvme_log_health_read(&health, log.offset, out, count);
    (void)!nvme_log_effects_read(log.csi, log.nsid, log.offset, out, count);
    (void)!nvme_log_ns_changed_read(nsids, 2, log.offset, out, count);
    (void)!nvme_log_ana_read(&ana, log.offset, out, count);
    (void)!nvme_log_discovery_read(1, entries, 2, log.offset, out, count);
    free(out);
}

static void fuzz_entry(const uint8_t *data, size_t bytes)
{
    uint8_t page[NVME_DISC_ENTRY_BYTES] = {0};
    struct nvme_disc_entry entry, again;
    uint8_t back[NVME_DISC_ENTRY_BYTES];

    memcpy(page, data, u64_min(bytes, sizeof(page)));
    if (nvme_disc_entry_decode(page, sizeof(page), &entry) != ICMS_OK)
        return;
    check(nvme_nqn_valid(entry.subnqn, sizeof(entry.subnqn)));
    check(nvme_log_discovery_read(0, &entry, 1, NVME_DISC_HEADER_BYTES, back, sizeof(back)) ==
          ICMS_OK);
    check(nvme_disc_entry_decode(back, sizeof(back), &again) == ICMS_OK);
    check(strcmp(entry.address, again.address) == 0 && strcmp(entry.service, again.service) == 0);
    check(entry.flags == again.flags);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    uint64_t generation, count;

    if (bytes == 0)
        return 0;
    if (data[0] % 3 == 0)
        fuzz_command(data + 1, bytes - 1);
    else if (data[0] % 3 == 1)
        (void)!nvme_disc_header_decode(data + 1, bytes - 1, &generation, &count);
    else
        fuzz_entry(data + 1, bytes - 1);
    return 0;
}
