/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Namespaces that change while the target runs (nvmf/target.h has the life of one).
 *
 * All of them are one immutable struct nvmft_spaces behind a pointer. A change is made on a control
 * thread, with its memory; on loop 0 the pointer is exchanged, and what each host may use is worked
 * out anew (registry.c), so from then on no command begins that the change forbids. Then the change
 * visits every loop, one after the other: it brings the weights of tenants, and when it is back no
 * turn of a loop still reads the struct of before, which goes with the change.
 *
 * A reader takes the bit of a host first (acquire), and the pointer after that: who sees that it
 * may use a namespace sees that namespace. Places of namespaces that are gone keep their tenant,
 * which commands that began before are counted by.
 */
#include <stdlib.h>

#include "base/bytes.h"
#include "base/check.h"
#include "nvmf/target/target_int.h"

struct nvmf_target_change {
    struct nvmft_spaces *spaces;        /* those that shall be; applied: those that were */
    struct nvmf_target_tenant *tenants; /* tenant_count of the target                    */
    struct nvmf_target *target;
    uint32_t at;         /* the loop that it visits                        */
    struct loop_msg msg; /* carries it                                     */
    void (*done)(void *arg);
    void *arg;
};

/* ---- making --------------------------------------------------------------------------------- */

icms_err nvmft_spaces_new(const struct nvmf_target_ns *namespaces, uint32_t count,
                          struct nvmft_spaces **out_spaces)
{
    struct nvmft_spaces *spaces = calloc(1, sizeof(*spaces));

    check(count <= LIMIT_VOLUMES);
    if (spaces == NULL)
        return ICMS_NO_MEMORY;
    spaces->count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct nvmf_target_ns *ns = &spaces->ns[i];

        *ns = namespaces[i];
        ns->host_nqn = NULL; /* they are in hosts */
        spaces->active += !ns->is_gone;
        if (nvmft_host_set_init(&spaces->hosts[i], namespaces[i].host_nqn,
                                ns->is_gone ? 0 : ns->host_count) != ICMS_OK) {
            nvmft_spaces_free(&spaces);
            return ICMS_NO_MEMORY;
        }
    }
    *out_spaces = spaces;
    return ICMS_OK;
}

void nvmft_spaces_free(struct nvmft_spaces **spaces)
{
    for (uint32_t i = 0; *spaces != NULL && i < (*spaces)->count; i++)
        nvmft_host_set_fini(&(*spaces)->hosts[i]);
    free(*spaces);
    *spaces = NULL;
}

icms_err nvmf_target_change_new(const struct nvmf_target *target,
                                const struct nvmf_target_ns *namespaces, uint32_t namespace_count,
                                const struct nvmf_target_tenant *tenants, struct err_why *why,
                                struct nvmf_target_change **out_change)
{
    struct nvmf_target_change *change = calloc(1, sizeof(*change));
    size_t bytes = target->opts.tenant_count * sizeof(*tenants);

    if (change != NULL)
        change->tenants = malloc(bytes);
    if (change == NULL || change->tenants == NULL ||
        nvmft_spaces_new(namespaces, namespace_count, &change->spaces) != ICMS_OK) {
        nvmf_target_change_free(&change);
        return err_set(why, ICMS_NO_MEMORY, "out of memory");
    }
    memcpy(change->tenants, tenants, bytes);
    for (uint32_t i = 0; i < namespace_count; i++) {
        check(namespaces[i].tenant < target->opts.tenant_count);
        check(namespaces[i].is_gone ||
              target->opts.ops->buffer_bytes(namespaces[i].value_bytes_max) <=
                  target->buffer_bytes_max);
    }
    *out_change = change;
    return ICMS_OK;
}

void nvmf_target_change_free(struct nvmf_target_change **change)
{
    if (*change == NULL)
        return;
    nvmft_spaces_free(&(*change)->spaces);
    free((*change)->tenants);
    free(*change);
    *change = NULL;
}

/* ---- applying ------------------------------------------------------------------------------- */

/* On the loop that it visits: the weights that its tenants have from now on. */
static void change_shard(const struct nvmf_target_change *change, struct nvmft_shard *shard)
{
    for (uint32_t i = 0; i < change->target->opts.tenant_count; i++)
        for (int class = 0; class < NVMFT_WAIT_COUNT; class ++)
            shard->buffers.tenants[i].turn[class].weight = change->tenants[i].weight;
}

static void change_visit(struct loop_msg *msg)
{
    struct nvmf_target_change *change = container_of(msg, struct nvmf_target_change, msg);
    struct nvmf_target *target = change->target;

    if (change->at == target->opts.loop_count) { /* on loop 0 again */
        change->done(change->arg);
        return;
    }
    change_shard(change, &target->shards[change->at]);
    change->at++;
    loop_send(target->opts.loops[change->at % target->opts.loop_count], &change->msg, change_visit);
}

void nvmf_target_change_start(struct nvmf_target *target, struct nvmf_target_change *change,
                              void (*done)(void *arg), void *arg)
{
    struct nvmft_spaces *was = atomic_load(&target->spaces);

    check(loop_is_mine(target->opts.loops[0]) && change->spaces->count >= was->count);
    for (uint32_t i = 0; i < was->count; i++)
        check(uuid_equal(&was->ns[i].volume, &change->spaces->ns[i].volume));
    change->target = target;
    change->done = done;
    change->arg = arg;
    change->at = 0;
    for (uint32_t i = 0; i < target->opts.tenant_count; i++)
        for (int class = 0; class < NVMF_TARGET_CLASSES; class ++) {
            atomic_store(&target->rates[i].bytes[class].per_s,
                         change->tenants[i].bytes_per_s[class]);
            atomic_store(&target->rates[i].ops[class].per_s, change->tenants[i].ops_per_s[class]);
        }
    atomic_store_explicit(&target->spaces, change->spaces, memory_order_release);
    change->spaces = was;
    nvmft_registry_spaces(target, was);
    loop_send(target->opts.loops[0], &change->msg, change_visit);
}

/* ---- what hosts are told -------------------------------------------------------------------- */

icms_err nvmft_spaces_log(struct nvmft_ctrl *ctrl, const struct nvme_log *log, void *out)
{
    uint32_t nsids[LIMIT_VOLUMES], count = 0;
    icms_err err;

    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
        atomic_fetch_or(&ctrl->listed.word[i], atomic_exchange(&ctrl->changed.word[i], 0));
    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        if (nvmft_ns_has(&ctrl->listed, i))
            nsids[count++] = i + 1;
    err = nvme_log_ns_changed_read(nsids, count, log->offset, out, (uint32_t)log->bytes);
    if (err != ICMS_OK || log->retain || log->offset + log->bytes < count * sizeof(nsids[0]))
        return err;
    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++)
        atomic_store(&ctrl->listed.word[i], 0);
    ctrl->is_ns_told = false;
    return ICMS_OK;
}

bool nvmft_spaces_news(const struct nvmft_ctrl *ctrl)
{
    return !ctrl->is_ns_told && (nvmft_ns_first(&ctrl->changed) < LIMIT_VOLUMES ||
                                 nvmft_ns_first(&ctrl->listed) < LIMIT_VOLUMES);
}

void nvmft_spaces_forget(struct nvmft_ctrl *ctrl)
{
    for (uint32_t i = 0; i < NVMFT_NS_WORDS; i++) {
        atomic_store(&ctrl->changed.word[i], 0);
        atomic_store(&ctrl->listed.word[i], 0);
    }
    atomic_store(&ctrl->ana_changes, 0);
    ctrl->is_ns_told = false;
}
