/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the target says about itself: Identify, log pages, discovery.
 *
 * Called by admin.c on the admin queue's loop. Reads only what does not change after start, and
 * the owner's count of used bytes. A namespace that a host may not use looks absent to it, and NN
 * is the same for everybody, so a stranger learns nothing from the numbers.
 */
#include <stdio.h>

#include "base/check.h"
#include "base/hash.h"
#include "nvmf/target/target_int.h"

#define IDENTIFY_SEED_HIGH 0x69636d73u /* "icms" */
#define IDENTIFY_SEED_LOW  0x6e677569u /* "ngui" */

uint64_t nvmft_ns_allowed(const struct nvmf_target *target, const char *hostnqn)
{
    uint64_t allowed = 0;

    for (uint32_t i = 0; i < target->opts.namespace_count; i++) {
        const struct nvmf_target_ns *ns = &target->ns[i];
        bool found = ns->host_count == 0;

        for (uint32_t h = 0; h < ns->host_count && !found; h++)
            found = strcmp(ns->host_nqn[h], hostnqn) == 0;
        allowed |= (uint64_t)found << i;
    }
    return allowed;
}

/* One volume has a namespace in each enclosure, and hosts refuse one name for two of them. */
static void identify_nguid(const struct nvmf_target *target, const struct nvmf_target_ns *ns,
                           uint8_t out_nguid[16])
{
    struct uuid names[2] = {ns->volume, target->opts.enclosure};
    le64 high = le64_of(hash64_seed(names, sizeof(names), IDENTIFY_SEED_HIGH));
    le64 low = le64_of(hash64_seed(names, sizeof(names), IDENTIFY_SEED_LOW));

    memcpy(out_nguid, high.byte, 8);
    memcpy(out_nguid + 8, low.byte, 8);
}

static void identify_ctrl(const struct nvmft_ctrl *ctrl, const struct nvmf_target *target,
                          uint8_t *page)
{
    struct nvme_ctrl identity = {
        .type = ctrl->discovery ? NVME_CTRL_DISCOVERY : NVME_CTRL_IO,
        .cntlid = ctrl->cntlid,
        .version = NVME_VERSION_2_0,
        .oaes = ctrl->discovery ? NVME_OAES_DISCOVERY : NVME_OAES_NS_CHANGED,
        .async_events = NVMFT_AERS,
        .keep_alive_100ms = 1,
        .commands_max = (uint16_t)target->opts.queue_entries_max,
        .nsid_max = ctrl->discovery ? 0 : LIMIT_VOLUMES,
        .in_capsule_bytes = ctrl->discovery ? 0 : target->opts.in_capsule_bytes,
        .write_cache = !ctrl->discovery,
        .multi_ctrl = !ctrl->discovery,
        .icms_ext = ctrl->discovery
                        ? 0
                        : NVME_ICMS_EXT_EXIST_MANY | NVME_ICMS_EXT_TIMED | NVME_ICMS_EXT_STORE_DATA,
    };

    snprintf(identity.serial, sizeof(identity.serial), "%s", target->opts.serial);
    snprintf(identity.model, sizeof(identity.model), "%s", target->opts.model);
    snprintf(identity.firmware, sizeof(identity.firmware), "%s", target->opts.firmware);
    snprintf(identity.subnqn, sizeof(identity.subnqn), "%s",
             ctrl->discovery ? NVME_DISCOVERY : target->opts.nqn);
    nvme_ctrl_encode(&identity, page);
}

static void identify_kv_ns(struct nvmf_target *target, uint32_t i, uint8_t *page)
{
    const struct nvmf_target_ns *ns = &target->ns[i];
    struct nvme_kv_ns identity = {
        .size_bytes = ns->size_bytes,
        .value_bytes_max = ns->value_bytes_max,
        .key_bytes_max = LIMIT_KEY_BYTES,
        .shared = true,
        .icms = true,
        .volume = ns->volume,
        .sealed = ns->sealed,
    };

    if (target->opts.ops->used_bytes != NULL)
        identity.used_bytes =
            u64_min(target->opts.ops->used_bytes(target->opts.owner, i), ns->size_bytes);
    identify_nguid(target, ns, identity.nguid);
    nvme_kv_ns_encode(&identity, page);
}

static void identify_ns_ids(const struct nvmf_target *target, uint32_t i, uint8_t *page)
{
    struct nvme_ns_ids ids = {.has_nguid = true, .has_csi = true, .csi = NVME_CSI_KV};

    identify_nguid(target, &target->ns[i], ids.nguid);
    nvme_ns_ids_encode(&ids, page);
}

static void identify_list(const struct nvmft_ctrl *ctrl, const struct nvmf_target *target,
                          uint32_t after, uint8_t *page)
{
    uint32_t nsids[LIMIT_VOLUMES];
    uint32_t count = 0;

    for (uint32_t i = 0; i < target->opts.namespace_count; i++)
        if (ctrl->allowed >> i & 1)
            nsids[count++] = i + 1;
    nvme_ns_list_encode(nsids, count, after, page);
}

/* The pages that belong to one namespace. */
static uint16_t identify_one_ns(const struct nvmft_ctrl *ctrl, struct nvmf_target *target,
                                const struct nvme_identify *what, uint8_t *page)
{
    bool active = what->nsid >= 1 && what->nsid <= target->opts.namespace_count &&
                  (ctrl->allowed >> (what->nsid - 1) & 1) != 0;
    struct nvme_ns_common common = {.shared = true, .ready = true};

    if (what->cns == NVME_CNS_NS) {
        if (what->nsid == 0 || (what->nsid > LIMIT_VOLUMES && what->nsid != NVME_NSID_ALL))
            return NVME_SC_NAMESPACE;
        nvme_ns_encode(active ? target->ns[what->nsid - 1].size_bytes : 0, page);
        return NVME_SC_SUCCESS;
    }
    if (!active)
        return NVME_SC_NAMESPACE;
    if (what->cns == NVME_CNS_NS_IDS)
        identify_ns_ids(target, what->nsid - 1, page);
    else if (what->cns == NVME_CNS_NS_COMMON)
        nvme_ns_common_encode(&common, page);
    else if (what->csi == NVME_CSI_KV)
        identify_kv_ns(target, what->nsid - 1, page);
    else
        return NVME_SC_FIELD;
    return NVME_SC_SUCCESS;
}

uint16_t nvmft_identify(const struct nvmft_ctrl *ctrl, struct nvmf_target *target,
                        const struct nvme_sqe_wf *sqe, uint8_t out_page[NVME_PAGE_BYTES])
{
    struct nvme_identify what;

    nvme_identify_decode(sqe, &what);
    if (what.cns == NVME_CNS_CTRL) {
        identify_ctrl(ctrl, target, out_page);
        return NVME_SC_SUCCESS;
    }
    if (ctrl->discovery)
        return NVME_SC_FIELD;
    switch (what.cns) {
    case NVME_CNS_NS:
    case NVME_CNS_NS_IDS:
    case NVME_CNS_NS_COMMON:
    case NVME_CNS_NS_CSI:
        return identify_one_ns(ctrl, target, &what, out_page);
    case NVME_CNS_NS_ACTIVE:
    case NVME_CNS_NS_ACTIVE_CS:
        if (what.nsid >= NVME_NSID_ALL - 1)
            return NVME_SC_NAMESPACE;
        if (what.cns == NVME_CNS_NS_ACTIVE_CS && what.csi != NVME_CSI_KV)
            nvme_ns_list_encode(NULL, 0, 0, out_page);
        else
            identify_list(ctrl, target, what.nsid, out_page);
        return NVME_SC_SUCCESS;
    case NVME_CNS_CTRL_CSI:
        if (what.csi != NVME_CSI_NVM && what.csi != NVME_CSI_KV)
            return NVME_SC_FIELD;
        nvme_ctrl_csi_encode(what.csi, out_page);
        return NVME_SC_SUCCESS;
    case NVME_CNS_IO_SETS:
        nvme_io_sets_encode(out_page);
        return NVME_SC_SUCCESS;
    default:
        return NVME_SC_FIELD;
    }
}

/* The one entry of the discovery log: none for a host that may use nothing here. */
static void log_discovery(const struct nvmft_ctrl *ctrl, const struct nvmf_target *target,
                          const struct nvme_log *log, void *out)
{
    struct nvme_disc_entry entry = {
        .subtype = NVME_DISC_NVM,
        .port_id = 1,
        .admin_entries = NVMFT_ADMIN_ENTRIES,
    };
    struct loop_addr addr = target->opts.advertise;

    if (addr.host[0] == '\0')
        net_listener_addr(&target->listener, &addr);
    else if (addr.port == 0)
        addr.port = target->opts.listen.port;
    entry.ipv6 = strchr(addr.host, ':') != NULL;
    snprintf(entry.address, sizeof(entry.address), "%s", addr.host);
    snprintf(entry.service, sizeof(entry.service), "%u", addr.port);
    snprintf(entry.subnqn, sizeof(entry.subnqn), "%s", target->opts.nqn);
    nvme_log_discovery_read(1, &entry, ctrl->allowed != 0 ? 1 : 0, log->offset, out,
                            (uint32_t)log->bytes);
}

uint16_t nvmft_log(const struct nvmft_ctrl *ctrl, struct nvmf_target *target,
                   const struct nvme_log *log, void *out)
{
    uint32_t bytes = (uint32_t)log->bytes;
    icms_err err = ICMS_OK;

    check(log->bytes <= NVMFT_LOG_BYTES);
    if (ctrl->discovery) {
        if (log->page != NVME_LOG_DISCOVERY)
            return NVME_SC_LOG_PAGE;
        log_discovery(ctrl, target, log, out);
        return NVME_SC_SUCCESS;
    }
    switch (log->page) {
    case NVME_LOG_ERROR:
    case NVME_LOG_SMART:
    case NVME_LOG_FIRMWARE:
        err = nvme_log_quiet_read(log->page, target->opts.firmware, log->offset, out, bytes);
        break;
    case NVME_LOG_NS_CHANGED:
        nvme_log_ns_changed_read(NULL, 0, log->offset, out, bytes);
        break;
    case NVME_LOG_EFFECTS:
        err = nvme_log_effects_read(log->csi, NVME_ICMS_EXT_EXIST_MANY | NVME_ICMS_EXT_TIMED,
                                    log->offset, out, bytes);
        break;
    default:
        return NVME_SC_LOG_PAGE;
    }
    return err == ICMS_OK ? NVME_SC_SUCCESS : NVME_SC_FIELD;
}
