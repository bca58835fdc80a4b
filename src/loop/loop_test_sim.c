/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rig of the simulation: one node, no faults.
 */
#include <stdlib.h>

#include "base/check.h"
#include "loop/loop_test.h"
#include "loop/sim.h"

#define UNTIL_EVENTS 3000000
#define IDLE_NS      30000000

struct rig_sim {
    struct rig rig;
    struct sim *sim;
};

static bool rig_sim_until(struct rig *rig, bool (*condition)(void *arg), void *arg)
{
    struct rig_sim *own = rig->own;

    for (int i = 0; i < UNTIL_EVENTS; i++) {
        if (condition(arg))
            return true;
        if (!sim_step(own->sim))
            return condition(arg);
    }
    return false;
}

static void rig_sim_idle(struct rig *rig)
{
    struct rig_sim *own = rig->own;

    (void)sim_run(own->sim, sim_now_ns(own->sim) + IDLE_NS);
}

int rig_sim_setup(void **state)
{
    struct rig_sim *own = calloc(1, sizeof(*own));
    struct sim_opts opts;

    check(own != NULL);
    sim_opts_init(&opts, 42);
    own->sim = sim_new(&opts);
    own->rig = (struct rig){.env = sim_node_env(sim_node_new(own->sim, "10.1.0.1")),
                            .host = "10.1.0.1",
                            .path = "/drive/0",
                            .own = own,
                            .until = rig_sim_until,
                            .idle = rig_sim_idle};
    *state = &own->rig;
    return 0;
}

int rig_sim_teardown(void **state)
{
    struct rig_sim *own = ((struct rig *)*state)->own;

    sim_free(&own->sim);
    free(own);
    return 0;
}
