/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants of an enclosure: those that are listed, and one for each volume that names none of them.
 * A name keeps its number, so that counters stay those of the tenant.
 *
 * Called before the loops run, and by a change on the control thread; target_stats reads what is
 * made here. Whose turn it is decides nvmf/target (buffers.c).
 */
#include <stdio.h>
#include <stdlib.h>

#include "target/target_int.h"

/* The number of a name; makes it, with weight 1 and no limit. TARGET_TENANTS: there is no place. */
static uint32_t tenant_named(struct target_tenants *tenants, const char *name)
{
    uint32_t i = 0;

    while (i < tenants->count && strcmp(tenants->spec[i].name, name) != 0)
        i++;
    if (i < tenants->count || i == TARGET_TENANTS)
        return i;
    tenants->is_listed[i] = false;
    tenants->spec[i] = (struct tenant_spec){.weight = 1};
    snprintf(tenants->spec[i].name, sizeof(tenants->spec[i].name), "%s", name);
    tenants->count++;
    return i;
}

void target_tenants_list(const struct tenant_spec *listed, uint32_t count,
                         const struct target_tenants *was, struct target_tenants *out)
{
    out->count = 0;
    for (uint32_t i = 0; i < was->count; i++)
        (void)tenant_named(out, was->spec[i].name);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = tenant_named(out, listed[i].name);

        if (number == TARGET_TENANTS)
            return;
        out->spec[number] = listed[i];
        out->is_listed[number] = true;
    }
}

uint32_t target_tenant_of(struct target_tenants *tenants, const struct volume_spec *volume)
{
    return tenant_named(tenants, volume->tenant[0] != '\0' ? volume->tenant : volume->name);
}

struct nvmf_target_tenant *target_tenants_nvmf(const struct target_tenants *tenants)
{
    struct nvmf_target_tenant *out = calloc(TARGET_TENANTS, sizeof(*out));

    for (uint32_t i = 0; i < TARGET_TENANTS && out != NULL; i++) {
        static const struct tenant_spec spare = {.weight = 1};
        const struct tenant_spec *spec = i < tenants->count ? &tenants->spec[i] : &spare;

        out[i] = (struct nvmf_target_tenant){
            .weight = spec->weight,
            .bytes_per_s = {[NVMF_TARGET_LOADS] = spec->load_bytes_per_s,
                            [NVMF_TARGET_STORES] = spec->store_bytes_per_s},
            .ops_per_s = {[NVMF_TARGET_LOADS] = spec->load_ops_per_s,
                          [NVMF_TARGET_STORES] = spec->store_ops_per_s},
        };
    }
    return out;
}

void target_tenants_stats(const struct target *target, struct target_stats *out_stats)
{
    for (uint32_t i = 0; i < target->tenants.count; i++) {
        struct target_tenant_stats *out = &out_stats->tenants[out_stats->tenant_count];
        bool used = target->tenants.is_listed[i];

        for (uint32_t v = 0; v < target->volume_count && !used; v++)
            used = target->volumes[v].is_live && target->volumes[v].tenant == i;
        if (!used) /* its volumes are gone */
            continue;
        out->spec = target->tenants.spec[i];
        nvmf_target_tenant_stats(target->nvmf, i, &out->nvmf);
        out_stats->tenant_count++;
    }
}
