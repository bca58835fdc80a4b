/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_epochs.c: see the header.
 */
#include "target_epochs.h"

static bool host_differs(const struct nvmf_target_connected *host, uint32_t own)
{
    return host->has_epoch && host->epoch_max != 0 &&
           (host->epoch_min != own || host->epoch_max != own);
}

uint32_t target_epochs_look(struct target_epochs *epochs, uint32_t own,
                            const struct nvmf_target_connected *hosts, uint32_t count,
                            uint64_t now_ns, const struct nvmf_target_connected **out_host)
{
    uint32_t differ = 0;

    for (uint32_t i = 0; i < count; i++)
        if (host_differs(&hosts[i], own)) {
            *out_host = &hosts[i];
            differ++;
        }
    if (differ == 0 || own != epochs->own)
        *epochs = (struct target_epochs){.own = own, .since_ns = now_ns};
    if (differ == 0 || epochs->said || now_ns - epochs->since_ns < TARGET_EPOCHS_NS)
        return 0;
    epochs->said = true;
    return differ;
}
