/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy/tier.h: what becomes of a block that the memory of a server evicts, where it has a drive
 * of its own beside the pod. The agent asks it, and `icms replay` does about a trace.
 *
 * Exclusive: a share of the runs lies on the drive instead of in the pod, so the two hold as much
 * as both together; what memory evicts is not written again. Inclusive (a share of 0): a block that
 * nobody read is in the pod alone: most blocks are never read, and the pod has it as
 * long as the others that were stored with it. One that was read is offered to the drive, whose
 * write budget decides (policy.h). If the drive has it, its reads in memory count there.
 */
#ifndef POLICY_TIER_H
#define POLICY_TIER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"

enum policy_evicted {
    POLICY_EVICTED_LEAVE, /* nothing                          */
    POLICY_EVICTED_TOUCH, /* counts as an access on the drive */
    POLICY_EVICTED_WRITE, /* is offered to the drive          */
};

/* was_read: by a load, which a load that brought it is. is_there: the drive has it. */
static inline enum policy_evicted policy_evicted_to(bool was_read, bool is_there, bool is_exclusive)
{
    if (!was_read)
        return POLICY_EVICTED_LEAVE;
    if (is_there)
        return POLICY_EVICTED_TOUCH;
    return is_exclusive ? POLICY_EVICTED_LEAVE : POLICY_EVICTED_WRITE;
}

/* Whether a run, named by a number, lies on the drive, which has such a share (0 .. 1) of them. The
 * pod places runs by other bits. */
static inline bool policy_is_own(uint64_t run, double share)
{
    return (double)(hash64_mix(run ^ 0x6f776e2064726976) >> 32) < share * 4294967296.0;
}

#endif
