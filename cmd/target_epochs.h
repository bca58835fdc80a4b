/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd/target_epochs.h: hosts that use another epoch of the pod map than this enclosure. For a
 * moment that is how a new epoch spreads; for longer one of both has an old file, such as a server
 * that was restarted with last week's, or refuses the new one. Said once. One thread.
 */
#ifndef CMD_TARGET_EPOCHS_H
#define CMD_TARGET_EPOCHS_H

#include "nvmf/target.h"

/* For less a new epoch is on its way. */
#define TARGET_EPOCHS_NS ((uint64_t)60 * 1000 * 1000 * 1000)

/* All zeros at the begin. */
struct target_epochs {
    uint32_t own;      /* epoch that is compared with                               */
    uint64_t since_ns; /* when hosts and enclosure had the same for the last time   */
    bool said;         /* since then                                                */
};

/* Compares hosts with the epoch that is in use here, not 0. A host that tells none is left out.
 * Returns how many differ when that is to be said now, with *out_host one of them; else 0. */
uint32_t target_epochs_look(struct target_epochs *epochs, uint32_t own,
                            const struct nvmf_target_connected *hosts, uint32_t count,
                            uint64_t now_ns, const struct nvmf_target_connected **out_host);

#endif
