/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/prestage_many.c: hints of an operator, as routers and gateways give them over HTTP.
 *
 * agent_prestage is called by any thread; the hints are taken on the reactors' loops.
 */
#include "agent/agent_int.h"
#include "agent/many.h"

const char *agent_hint_end_name(enum agent_hint_end end)
{
    static const char *const names[] = {
#define AGENT_HINT_END_XX(name, text) [AGENT_HINT_##name] = (text),
        AGENT_HINT_END_MAP(AGENT_HINT_END_XX)
#undef AGENT_HINT_END_XX
    };

    return (unsigned)end < AGENT_HINT_ENDS ? names[end] : "?";
}

static void hint_take(struct agent_many *many, struct agent_shard *shard, size_t i)
{
    (void)agent_hint_take(shard, &many->agent->users[0], &many->keys[i], &many->wish);
}

static void hint_take_back(struct agent_many *many, struct agent_shard *shard, size_t i)
{
    (void)agent_hint_cancel(shard, &many->agent->users[0], &many->keys[i]);
}

/* Whether they come from who gave no proof. */
static bool hints_of_guest(const struct agent_hints *hints)
{
    return hints->user != NULL && !hints->user->owner;
}

/* What is wrong with hints, beside their keys and volume. */
static icms_err hints_check(const struct agent *agent, const struct agent_hints *hints,
                            struct err_why *why)
{
    if (hints->priority > ICMS_PRIORITY_MAX)
        return err_set(why, ICMS_INVALID, "priority %u: 0 to %d are possible", hints->priority,
                       ICMS_PRIORITY_MAX);
    if (hints->deadline_ms == 0 || hints->deadline_ms > AGENT_DEADLINE_MAX_NS / 1000000)
        return err_set(why, ICMS_INVALID, "a deadline of %u ms: 1 to %llu are possible",
                       hints->deadline_ms, (unsigned long long)AGENT_DEADLINE_MAX_NS / 1000000);
    if (hints->pin_s > ICMS_PIN_SECONDS_MAX)
        return err_set(why, ICMS_INVALID, "a pin of %u seconds: %d at most", hints->pin_s,
                       ICMS_PIN_SECONDS_MAX);
    if (hints->pin_s != 0 && hints_of_guest(hints))
        return err_set(
            why, ICMS_AUTH,
            "whoever gives no proof pins nothing; send the token, or set one (http.token)");
    if (hints->priority != 0 && hints_of_guest(hints))
        return err_set(why, ICMS_AUTH,
                       "whoever gives no proof has no priority; send the token, or set one "
                       "(http.token)");
    if (hints->cancel && hints_of_guest(hints))
        return err_set(why, ICMS_AUTH,
                       "whoever gives no proof takes nothing back; send the token, or set one "
                       "(http.token)");
    if (hints->once && (hints->pin_s != 0 || hints->tier != ICMS_TIER_DRAM))
        return err_set(
            why, ICMS_INVALID,
            "once: blocks that are read once at most are neither pinned nor brought to a "
            "drive");
    if (!agent_hint_has_tier(agent, hints->tier))
        return err_set(
            why, ICMS_UNSUPPORTED,
            "this agent has no drive of its own beside the pod; ask for tier dram, or give "
            "it one (local:)");
    return ICMS_OK;
}

icms_err agent_prestage(struct agent *agent, const struct agent_hints *hints, struct err_why *why)
{
    struct agent_many *many;
    icms_err err = hints_check(agent, hints, why);

    if (err == ICMS_OK)
        err = agent_many_new(agent, hints->user, hints->volume, hints->keys, hints->count, why,
                             &many);
    if (err != ICMS_OK)
        return err;
    many->take = hints->cancel ? hint_take_back : hint_take;
    many->wish = (struct agent_wish){
        .need_ns = loop_env_now_ns(agent->env) + (uint64_t)hints->deadline_ms * 1000000,
        .pin_ns = (uint64_t)hints->pin_s * 1000000000,
        .priority = hints->priority,
        .tier = hints->tier,
        .once = hints->once,
        .guest = hints_of_guest(hints),
    };
    agent_many_send(many);
    return ICMS_OK;
}
