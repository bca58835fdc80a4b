/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the target says about itself: Identify, log pages, discovery.
 *
 * Called by admin.c on the admin queue's loop. Reads what does not change after start, namespaces
 * as they are in this turn, and the owner's count of used bytes. A namespace that a host may not
 * use looks absent to it, and NN is the same for everybody, so a stranger learns nothing from the
 * numbers.
 */
#include <stdio.h>

#include "base/check.h"
#include "base/hash.h"
#include "nvmf/target/target_int.h"

#define IDENTIFY_SEED_HIGH 0x69636d73u /* "icms" */
#define IDENTIFY_EXT                                                                               \
    (NVME_ICMS_EXT_EXIST_MANY | NVME_ICMS_EXT_TIMED | NVME_ICMS_EXT_STORE_DATA |                   \
     NVME_ICMS_EXT_RECORD | NVME_ICMS_EXT_SETTINGS | NVME_ICMS_EXT_EXPEDITE)
#define IDENTIFY_SEED_LOW 0x6e677569u /* "ngui" */

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
        .oaes = ctrl->discovery ? NVME_OAES_DISCOVERY : NVMFT_OAES,
        .async_events = NVMFT_AERS,
        .keep_alive_100ms = 1,
        .commands_max = (uint16_t)target->opts.queue_entries_max,
        .nsid_max = ctrl->discovery ? 0 : LIMIT_VOLUMES,
        .in_capsule_bytes = ctrl->discovery ? 0 : target->opts.in_capsule_bytes,
        .write_cache = !ctrl->discovery,
        .multi_ctrl = !ctrl->discovery,
        .ana_groups = ctrl->discovery ? 0 : NVMFT_ANA_GROUP,
        .icms_ext = ctrl->discovery ? 0 : IDENTIFY_EXT,
        .icms_instance = target->instance,
    };

    snprintf(identity.serial, sizeof(identity.serial), "%s", target->opts.serial);
    snprintf(identity.model, sizeof(identity.model), "%s", target->opts.model);
    snprintf(identity.firmware, sizeof(identity.firmware), "%s", target->opts.firmware);
    snprintf(identity.subnqn, sizeof(identity.subnqn), "%s",
             ctrl->discovery ? NVME_DISCOVERY : target->opts.nqn);
    nvme_ctrl_encode(&identity, page);
}

static uint64_t identify_used_bytes(struct nvmf_target *target, uint32_t i)
{
    if (target->opts.ops->used_bytes == NULL)
        return 0;
    return u64_min(target->opts.ops->used_bytes(target->opts.owner, i),
                   nvmft_ns(target, i)->size_bytes);
}

static void identify_ns(struct nvmf_target *target, uint32_t i, uint8_t *page)
{
    const struct nvmf_target_ns *ns = nvmft_ns(target, i);
    struct nvme_ns identity = {
        .size_bytes = ns->size_bytes,
        .used_bytes = identify_used_bytes(target, i),
        .shared = true,
        .ana_group = NVMFT_ANA_GROUP,
    };

    identify_nguid(target, ns, identity.nguid);
    nvme_ns_encode(&identity, page);
}

static void identify_kv_ns(struct nvmf_target *target, uint32_t i, uint8_t *page)
{
    const struct nvmf_target_ns *ns = nvmft_ns(target, i);
    struct nvme_kv_ns identity = {
        .size_bytes = ns->size_bytes,
        .used_bytes = identify_used_bytes(target, i),
        .value_bytes_max = ns->value_bytes_max,
        .key_bytes_max = LIMIT_KEY_BYTES,
        .shared = true,
        .ana_group = NVMFT_ANA_GROUP,
        .icms = true,
        .volume = ns->volume,
        .sealed = ns->sealed,
        .encrypted = ns->encrypted,
    };

    identify_nguid(target, ns, identity.nguid);
    nvme_kv_ns_encode(&identity, page);
}

static void identify_ns_ids(const struct nvmf_target *target, uint32_t i, uint8_t *page)
{
    struct nvme_ns_ids ids = {.has_nguid = true, .has_csi = true, .csi = NVME_CSI_KV};

    identify_nguid(target, nvmft_ns(target, i), ids.nguid);
    nvme_ns_ids_encode(&ids, page);
}

/* Those that its host may use; how many. */
static uint32_t ctrl_nsids(const struct nvmft_ctrl *ctrl, uint32_t out_nsids[LIMIT_VOLUMES])
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < LIMIT_VOLUMES; i++)
        if (nvmft_ns_has(&ctrl->allowed, i))
            out_nsids[count++] = i + 1;
    return count;
}

static void identify_list(const struct nvmft_ctrl *ctrl, uint32_t after, uint8_t *page)
{
    uint32_t nsids[LIMIT_VOLUMES];
    uint32_t count = ctrl_nsids(ctrl, nsids);

    nvme_ns_list_encode(nsids, count, after, page);
}

/* The pages that belong to one namespace. */
static uint16_t identify_one_ns(const struct nvmft_ctrl *ctrl, struct nvmf_target *target,
                                const struct nvme_identify *what, uint8_t *page)
{
    bool active = what->nsid >= 1 && nvmft_ns_has(&ctrl->allowed, what->nsid - 1);
    struct nvme_ns_common common = {.shared = true, .ready = true, .ana_group = NVMFT_ANA_GROUP};

    if (what->cns == NVME_CNS_NS) {
        if (what->nsid == 0 || (what->nsid > LIMIT_VOLUMES && what->nsid != NVME_NSID_ALL))
            return NVME_SC_NAMESPACE;
        if (active)
            identify_ns(target, what->nsid - 1, page);
        else
            memset(page, 0, NVME_PAGE_BYTES);
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
            identify_list(ctrl, what.nsid, out_page);
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

static bool addr_is_ipv6(const struct loop_addr *addr)
{
    return strchr(addr->host, ':') != NULL;
}

static bool addr_is_any(const struct loop_addr *addr)
{
    return addr->host[0] == '\0' || strcmp(addr->host, "0.0.0.0") == 0 ||
           strcmp(addr->host, "::") == 0;
}

/* Where a host reaches a portal. One that listens on all addresses is, for a host, at the address
 * that it connected to; false: that is none of the portal's family. */
static bool portal_addr(const struct nvmf_target *target, uint32_t i, const struct loop_addr *local,
                        struct loop_addr *out_addr)
{
    const struct nvmft_portal *portal = &target->portals[i];
    struct loop_addr addr = target->opts.portals[i].advertise;

    if (addr_is_any(&addr))
        memcpy(addr.host, portal->addr.host, sizeof(addr.host));
    if (addr.port == 0)
        addr.port = portal->addr.port;
    if (addr_is_any(&addr)) {
        if (local->host[0] == '\0' || addr_is_ipv6(&addr) != addr_is_ipv6(local))
            return false;
        memcpy(addr.host, local->host, sizeof(addr.host));
    }
    *out_addr = addr;
    return true;
}

/* The discovery log: for each portal the discovery service itself, and the subsystem. A host that
 * may use nothing in it learns only of the portal that it came through, and not of the subsystem.
 */
static icms_err log_discovery(const struct nvmft_qpair *qpair, const struct nvme_log *log,
                              void *out)
{
    const struct nvmf_target *target = qpair->shard->target;
    const struct nvmft_ctrl *ctrl = qpair->ctrl;
    struct nvme_disc_entry entries[2 * LIMIT_PORTALS];
    bool is_tls_required = (nvmft_keys_require(target->keys, ctrl->hostnqn) & REQUIRE_TLS) != 0;
    bool is_allowed = nvmft_ns_first(&ctrl->allowed) < LIMIT_VOLUMES;
    uint32_t count = 0;

    for (uint32_t i = 0; i < target->opts.portal_count; i++) {
        struct nvme_disc_entry entry = {
            .subtype = NVME_DISC_CURRENT,
            .port_id = (uint16_t)(i + 1),
            .admin_entries = NVMFT_ADMIN_ENTRIES,
            .flags = NVME_DISC_DUPLICATE | NVME_DISC_PERSISTENT,
            .subnqn = NVME_DISCOVERY,
        };
        struct loop_addr addr;

        if ((!is_allowed && qpair->portal != &target->portals[i]) ||
            !portal_addr(target, i, &qpair->conn->local, &addr))
            continue;
        entry.ipv6 = addr_is_ipv6(&addr);
        snprintf(entry.address, sizeof(entry.address), "%s", addr.host);
        snprintf(entry.service, sizeof(entry.service), "%u", addr.port);
        if (nvmft_keys_tls(target->keys) != NULL) {
            entry.tls = true;
            entry.treq = is_tls_required ? NVME_DISC_TLS_REQUIRED : NVME_DISC_TLS_POSSIBLE;
        }
        entries[count++] = entry;
        if (!is_allowed)
            continue;
        entry.subtype = NVME_DISC_NVM;
        entry.flags = 0;
        snprintf(entry.subnqn, sizeof(entry.subnqn), "%s", target->opts.nqn);
        entries[count++] = entry;
    }
    return nvme_log_discovery_read(1, entries, count, log->offset, out, (uint32_t)log->bytes);
}

/* Asymmetric access: there is no other state, and only what is in the group changes. */
static icms_err log_ana(const struct nvmft_ctrl *ctrl, const struct nvme_log *log, void *out)
{
    uint32_t nsids[LIMIT_VOLUMES];
    struct nvme_ana ana = {
        .changes = atomic_load(&ctrl->ana_changes),
        .group = NVMFT_ANA_GROUP,
        .state = NVME_ANA_OPTIMIZED,
        .nsids = nsids,
        .count_max = LIMIT_VOLUMES,
    };

    if ((log->specific & NVME_LOG_ANA_GROUPS) == 0)
        ana.count = ctrl_nsids(ctrl, nsids);
    return nvme_log_ana_read(&ana, log->offset, out, (uint32_t)log->bytes);
}

#define LOG_HOUR_NS ((uint64_t)3600 * 1000 * 1000 * 1000)

static uint8_t health_warnings(const struct nvmf_target_health *media)
{
    uint8_t warnings = 0;

    if (media->degraded)
        warnings |= NVME_HEALTH_DEGRADED;
    if (media->spare_percent < NVME_HEALTH_SPARE_THRESHOLD)
        warnings |= NVME_HEALTH_SPARE;
    return warnings;
}

static struct nvmf_target_health health_media(const struct nvmf_target *target)
{
    struct nvmf_target_health media = {.spare_percent = 100};

    if (target->opts.ops->health != NULL)
        target->opts.ops->health(target->opts.owner, &media);
    return media;
}

uint8_t nvmft_warnings(const struct nvmf_target *target)
{
    struct nvmf_target_health media = health_media(target);

    return health_warnings(&media);
}

/* SMART / health of all loops together, since the start. There is no temperature of an enclosure,
 * and the wear of its drives is theirs to tell, so both stay 0. */
static void log_health(const struct nvmf_target *target, struct nvme_health *out_health)
{
    struct nvmf_target_health media = health_media(target);

    *out_health = (struct nvme_health){
        .warnings = health_warnings(&media),
        .spare_percent = media.spare_percent,
        .power_on_hours =
            (loop_env_now_ns(loop_env(target->opts.loops[0])) - target->opened_ns) / LOG_HOUR_NS,
        .media_errors = media.media_errors,
    };
    for (uint32_t i = 0; i < target->opts.loop_count; i++) {
        const struct nvmft_counters *counters = &target->shards[i].counters;

        out_health->reads += counter_get(&counters->ops[NVMF_TARGET_RETRIEVE][ICMS_OK]);
        out_health->writes += counter_get(&counters->ops[NVMF_TARGET_STORE][ICMS_OK]);
        out_health->read_bytes += counter_get(&counters->bytes_out);
        out_health->written_bytes += counter_get(&counters->bytes_in);
    }
}

uint16_t nvmft_log(struct nvmft_qpair *qpair, const struct nvme_log *log, void *out)
{
    struct nvmf_target *target = qpair->shard->target;
    struct nvmft_ctrl *ctrl = qpair->ctrl;
    uint32_t bytes = (uint32_t)log->bytes;
    struct nvme_health health;
    icms_err err = ICMS_OK;

    check(log->bytes <= NVMFT_LOG_BYTES);
    if (ctrl->discovery) {
        if (log->page != NVME_LOG_DISCOVERY)
            return NVME_SC_LOG_PAGE;
        return log_discovery(qpair, log, out) == ICMS_OK ? NVME_SC_SUCCESS : NVME_SC_FIELD;
    }
    switch (log->page) {
    case NVME_LOG_SMART:
        log_health(target, &health);
        err = nvme_log_health_read(&health, log->offset, out, bytes);
        break;
    case NVME_LOG_ERROR:
    case NVME_LOG_FIRMWARE:
        err = nvme_log_quiet_read(log->page, target->opts.firmware, log->offset, out, bytes);
        break;
    case NVME_LOG_NS_CHANGED:
        err = nvmft_spaces_log(ctrl, log, out);
        break;
    case NVME_LOG_ANA:
        err = log_ana(ctrl, log, out);
        break;
    case NVME_LOG_EFFECTS:
        err = nvme_log_effects_read(log->csi, IDENTIFY_EXT, log->offset, out, bytes);
        break;
    default:
        return NVME_SC_LOG_PAGE;
    }
    return err == ICMS_OK ? NVME_SC_SUCCESS : NVME_SC_FIELD;
}
