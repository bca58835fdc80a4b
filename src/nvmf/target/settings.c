/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings that hosts share: what each told, against what the others have (nvmf/target.h has the
 * life of a value).
 *
 * Called by admin commands, on any loop. One word a setting, replaced as a whole: of two hosts that
 * tell different values at the same time one is kept, and the other differs the next time.
 */
#include "nvmf/target/target_int.h"

#define SETTING_SECOND ((uint64_t)1000 * 1000 * 1000)

/* Keeps the value unless others told another one lately; returns what is kept. */
static uint32_t setting_keep(struct nvmft_setting *setting, uint32_t value, uint64_t now_ns)
{
    uint32_t now_s = (uint32_t)(now_ns / SETTING_SECOND) + 1;
    uint64_t kept = atomic_load_explicit(&setting->kept, memory_order_relaxed);
    int32_t age_s = (int32_t)(now_s - (uint32_t)kept); /* below 0: another loop's clock is ahead */

    if (kept != 0 && kept >> 32 != value &&
        age_s <= (int32_t)(NVMF_TARGET_SETTING_NS / SETTING_SECOND))
        return (uint32_t)(kept >> 32);
    atomic_store_explicit(&setting->kept, (uint64_t)value << 32 | now_s, memory_order_relaxed);
    return value;
}

/* A host that has other enclosures than it had, and than the others have, may be the first of all
 * that will have them; it differs if the others do not follow until what they told before is
 * forgotten. It gets that time once: neither another value nor going back and forth gives it more,
 * before the others have another value than they had then.
 */
static bool setting_is_new(struct nvmft_ctrl *ctrl, const struct nvme_feature *feature,
                           uint32_t kept, uint64_t now_ns)
{
    uint32_t i = feature->fid == NVME_FEATURE_ICMS_ENCLOSURES ? 0 : 1;

    if (feature->fid == NVME_FEATURE_ICMS_RUN_BLOCKS)
        return false;
    if (ctrl->has_told[i] && ctrl->told[i] != feature->value && kept != feature->value &&
        (ctrl->changed_ns[i] == 0 || ctrl->changed_from[i] != kept)) {
        ctrl->changed_ns[i] = now_ns;
        ctrl->changed_from[i] = kept;
    }
    ctrl->has_told[i] = true;
    ctrl->told[i] = feature->value;
    return ctrl->changed_ns[i] != 0 && now_ns - ctrl->changed_ns[i] <= 2 * NVMF_TARGET_SETTING_NS;
}

/* Counted and named once for each association. */
static void setting_differs(struct nvmft_ctrl *ctrl, struct nvmft_shard *shard,
                            const struct nvme_feature *feature, uint32_t kept)
{
    struct nvmf_target *target = ctrl->target;

    if (ctrl->differs)
        return;
    ctrl->differs = true;
    pthread_mutex_lock(&target->slow_lock);
    memcpy(target->differs.hostnqn, ctrl->hostnqn, sizeof(target->differs.hostnqn));
    target->differs.feature = feature->fid;
    target->differs.ns = feature->fid == NVME_FEATURE_ICMS_RUN_BLOCKS ? feature->nsid - 1 : 0;
    target->differs.value = feature->value;
    target->differs.kept = kept;
    pthread_mutex_unlock(&target->slow_lock);
    counter_add(&shard->counters.settings_differ, 1);
}

uint16_t nvmft_setting_tell(struct nvmft_ctrl *ctrl, struct nvmft_shard *shard,
                            const struct nvme_feature *feature, uint32_t *out_kept)
{
    struct nvmf_target *target = ctrl->target;
    struct nvmft_setting *setting =
        feature->fid == NVME_FEATURE_ICMS_ENCLOSURES ? &target->enclosures : &target->weights;
    uint64_t now_ns = loop_now_ns(shard->loop);

    if (feature->fid == NVME_FEATURE_ICMS_RUN_BLOCKS) {
        if (feature->nsid == 0 || feature->nsid == NVME_NSID_ALL ||
            !nvmft_ns_has(&ctrl->allowed, feature->nsid - 1))
            return NVME_SC_NAMESPACE;
        setting = &target->run_blocks[feature->nsid - 1];
    }
    *out_kept = setting_keep(setting, feature->value, now_ns);
    if (!setting_is_new(ctrl, feature, *out_kept, now_ns) && *out_kept != feature->value)
        setting_differs(ctrl, shard, feature, *out_kept);
    return NVME_SC_SUCCESS;
}

void nvmf_target_epoch_set(struct nvmf_target *target, uint32_t pod, uint32_t epoch)
{
    atomic_store(&target->map, (uint64_t)pod << 32 | epoch);
}

void nvmft_epoch_tell(struct nvmft_ctrl *ctrl, uint32_t epoch, uint32_t *out_epoch,
                      uint32_t *out_pod)
{
    uint64_t map = atomic_load(&ctrl->target->map);

    atomic_store(&ctrl->epoch, NVMFT_EPOCH_TOLD | epoch);
    *out_pod = (uint32_t)(map >> 32);
    *out_epoch = *out_pod != 0 ? (uint32_t)map : epoch;
}

void nvmf_target_differs(struct nvmf_target *target, struct nvmf_target_differs *out_differs)
{
    pthread_mutex_lock(&target->slow_lock);
    *out_differs = target->differs;
    pthread_mutex_unlock(&target->slow_lock);
}
