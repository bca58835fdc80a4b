/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy/tier.h: what becomes of a block that the memory of a server evicts, where it has a drive
 * of its own beside the pod. The agent asks it, and `icms replay` does about a trace.
 *
 * A block that nobody read is in the pod alone: most blocks are never read, and the pod has it as
 * long as the others that were stored with it. One that was read is offered to the drive, whose
 * write budget decides (policy.h). If the drive has it, its reads in memory count there.
 */
#ifndef POLICY_TIER_H
#define POLICY_TIER_H

#include <stdbool.h>

enum policy_evicted {
    POLICY_EVICTED_LEAVE, /* nothing                          */
    POLICY_EVICTED_TOUCH, /* counts as an access on the drive */
    POLICY_EVICTED_WRITE, /* is offered to the drive          */
};

/* was_read: by a load, which a load that brought it is. is_there: the drive has it. */
static inline enum policy_evicted policy_evicted_to(bool was_read, bool is_there)
{
    if (!was_read)
        return POLICY_EVICTED_LEAVE;
    return is_there ? POLICY_EVICTED_TOUCH : POLICY_EVICTED_WRITE;
}

#endif
