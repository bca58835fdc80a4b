/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants of an enclosure: those that are listed, and one for each volume that names none of them.
 *
 * Called before the loops run; target_stats reads what is made here. Whose turn it is decides
 * nvmf/target (buffers.c).
 */
#include "target/target_int.h"

static uint32_t tenant_find(const struct target *target, const char *name)
{
    uint32_t i = 0;

    while (i < target->tenant_count && strcmp(target->tenants[i].name, name) != 0)
        i++;
    return i;
}

uint32_t target_tenant_of(struct target *target, const struct volume_spec *volume)
{
    const char *name = volume->tenant[0] != '\0' ? volume->tenant : volume->name;
    uint32_t i = tenant_find(target, name);

    if (i < target->tenant_count)
        return i;
    check(target->tenant_count < TARGET_TENANTS);
    target->tenants[i] = (struct tenant_spec){.weight = 1};
    memcpy(target->tenants[i].name, name, sizeof(target->tenants[i].name));
    target->tenant_count++;
    return i;
}

void target_tenants_nvmf(const struct target *target, struct nvmf_target_tenant *out)
{
    for (uint32_t i = 0; i < target->tenant_count; i++) {
        const struct tenant_spec *spec = &target->tenants[i];

        out[i] = (struct nvmf_target_tenant){
            .weight = spec->weight,
            .bytes_per_s = {[NVMF_TARGET_LOADS] = spec->load_bytes_per_s,
                            [NVMF_TARGET_STORES] = spec->store_bytes_per_s},
            .ops_per_s = {[NVMF_TARGET_LOADS] = spec->load_ops_per_s,
                          [NVMF_TARGET_STORES] = spec->store_ops_per_s},
        };
    }
}

void target_tenants_stats(const struct target *target, struct target_stats *out_stats)
{
    out_stats->tenant_count = target->tenant_count;
    for (uint32_t i = 0; i < target->tenant_count; i++) {
        out_stats->tenants[i].spec = &target->tenants[i];
        nvmf_target_tenant_stats(target->nvmf, i, &out_stats->tenants[i].nvmf);
    }
}
