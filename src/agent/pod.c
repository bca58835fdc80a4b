/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/pod.c: the set of enclosures that an agent uses, and how another one takes its place.
 *
 * Called by control threads, one call at a time; pod_take and what it calls run on the reactors.
 *
 * Life of an epoch: agent_pod_apply_start checks all of it, reads keys, makes the view and what is
 * needed for new associations (pod_plan_new), and changes nothing until that has succeeded ->
 * pod_commit -> on each reactor pod_take: the view is used from then on, associations of enclosures
 * that left, or with addresses that are not in it any more, are closed, new ones opened -> after
 * the last reactor pod_applied: the old view is freed, the caller is told.
 *
 * Life of a slot: free -> an enclosure's (pod_commit) -> it leaves (pod_commit) -> each reactor has
 * closed what it had of it (enclosure_left, member->reactors) -> free.
 *
 * Invariants: a reactor looks at one view in a turn, and keeps no pointer into it. Of an enclosure
 * and an address that stay nothing is closed. No slot changes hands while a command of its last
 * owner is in flight anywhere.
 */
#include "agent/agent_int.h"

#include <math.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

const char *agent_pod_state_name(enum agent_pod_state state)
{
    static const char *const names[] = {
        [AGENT_POD_UP] = "up",
        [AGENT_POD_JOINING] = "joining",
        [AGENT_POD_DRAINING] = "draining",
    };

    return names[state];
}

uint64_t agent_epoch(const struct agent *agent)
{
    return atomic_load_explicit(&agent->pod.epoch, memory_order_acquire);
}

void agent_map_refused_set(struct agent *agent, const char *sentence)
{
    pthread_mutex_lock(&agent->pod.lock);
    (void)snprintf(agent->pod.refused, sizeof(agent->pod.refused), "%s", sentence);
    pthread_mutex_unlock(&agent->pod.lock);
}

/* ---- what is possible ----------------------------------------------------------------------- */

/* Whether a place in a list of them is used. Port 0 is used: it is that of a name that is not
 * resolved, where nothing listens. */
static bool addr_is(const struct loop_addr *addr)
{
    return addr->host[0] != '\0';
}

/* The place of an address; count: it is not among them. */
static uint32_t addr_find(const struct loop_addr *addrs, uint32_t count,
                          const struct loop_addr *addr)
{
    uint32_t i = 0;

    while (i < count && !loop_addr_equal(&addrs[i], addr))
        i++;
    return i;
}

static icms_err pod_check_pair(const struct agent_enclosure_opts *a,
                               const struct agent_enclosure_opts *b, struct err_why *why)
{
    char text[UUID_TEXT_BYTES];

    if (strcmp(a->name, b->name) == 0)
        return err_set(why, ICMS_CONFIG, "two enclosures are named %s: rename one of them",
                       a->name);
    if (uuid_equal(&a->uuid, &b->uuid))
        return err_set(why, ICMS_CONFIG,
                       "enclosures %s and %s have the same UUID %s: each needs one of its own",
                       a->name, b->name, uuid_format(&a->uuid, text));
    for (uint32_t i = 0; i < b->addr_count; i++)
        if (addr_find(a->addrs, a->addr_count, &b->addrs[i]) < a->addr_count)
            return err_set(why, ICMS_CONFIG,
                           "enclosures %s and %s have the same address, port %u of %s", a->name,
                           b->name, b->addrs[i].port, b->addrs[i].host);
    return ICMS_OK;
}

static icms_err pod_check_addrs(const struct agent_enclosure_opts *enclosure, struct err_why *why)
{
    if (enclosure->addr_count < 1 || enclosure->addr_count > LIMIT_LINKS)
        return err_set(why, ICMS_CONFIG, "enclosure %s has %u addresses: 1 to %d are possible",
                       enclosure->name, enclosure->addr_count, LIMIT_LINKS);
    for (uint32_t i = 1; i < enclosure->addr_count; i++)
        if (addr_find(enclosure->addrs, i, &enclosure->addrs[i]) < i)
            return err_set(why, ICMS_CONFIG, "enclosure %s has an address twice: port %u of %s",
                           enclosure->name, enclosure->addrs[i].port, enclosure->addrs[i].host);
    return ICMS_OK;
}

/* What it has of the blocks that are placed anew. */
static double owner_weight(const struct agent_enclosure_opts *enclosure)
{
    return enclosure->state == AGENT_POD_DRAINING ? 0 : enclosure->weight;
}

/* What it had of them before. */
static double former_weight(const struct agent_enclosure_opts *enclosure)
{
    if (enclosure->state == AGENT_POD_JOINING)
        return 0;
    return enclosure->former_weight > 0 ? enclosure->former_weight : enclosure->weight;
}

icms_err agent_pod_check(const struct agent_enclosure_opts *enclosures, uint32_t count,
                         struct err_why *why)
{
    bool is_owned = count == 0;

    if (count > LIMIT_ENCLOSURES)
        return err_set(why, ICMS_LIMIT, "%u enclosures: %d are possible", count, LIMIT_ENCLOSURES);
    for (uint32_t i = 0; i < count; i++) {
        const struct agent_enclosure_opts *enclosure = &enclosures[i];
        icms_err addrs_err = pod_check_addrs(enclosure, why);

        if (addrs_err != ICMS_OK)
            return addrs_err;
        if (!(enclosure->weight >= 0) || isinf(enclosure->weight) ||
            !(enclosure->former_weight >= 0) || isinf(enclosure->former_weight))
            return err_set(why, ICMS_CONFIG, "enclosure %s: its weight is not a number from 0 up",
                           enclosure->name);
        for (uint32_t j = 0; j < i; j++) {
            icms_err err = pod_check_pair(&enclosures[j], enclosure, why);

            if (err != ICMS_OK)
                return err;
        }
        is_owned = is_owned || owner_weight(enclosure) > 0;
    }
    if (!is_owned)
        return err_set(why, ICMS_CONFIG,
                       "no enclosure would take blocks: all are draining, or have weight 0; add "
                       "one, or undrain one, first");
    return ICMS_OK;
}

/* Whether an enclosure is the same in all that the pod says of it. Its addresses may be others:
 * each agent resolves names itself. */
static bool enclosure_equal(const struct agent_enclosure_opts *a,
                            const struct agent_enclosure_opts *b)
{
    return strcmp(a->name, b->name) == 0 && uuid_equal(&a->uuid, &b->uuid) &&
           strcmp(a->nqn, b->nqn) == 0 && a->weight == b->weight &&
           a->former_weight == b->former_weight && a->state == b->state && a->require == b->require;
}

/* The slot of a member; LIMIT_ENCLOSURES: it is none. */
static uint32_t pod_find(const struct agent_pod *pod, const struct uuid *uuid)
{
    uint32_t i = 0;

    while (i < LIMIT_ENCLOSURES &&
           (!pod->members[i].is_member || !uuid_equal(&pod->members[i].opts.uuid, uuid)))
        i++;
    return i;
}

/* Whether the pod has these enclosures and no others. */
static bool pod_is(const struct agent_pod *pod, const struct agent_enclosure_opts *enclosures,
                   uint32_t count)
{
    if ((uint32_t)__builtin_popcountll(pod->view->members) != count)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = pod_find(pod, &enclosures[i].uuid);

        if (slot == LIMIT_ENCLOSURES || !enclosure_equal(&pod->members[slot].opts, &enclosures[i]))
            return false;
    }
    return true;
}

static bool volumes_equal(const struct agent *agent, const struct agent_identity *volumes)
{
    for (uint32_t i = 0; volumes != NULL && i < agent->volume_count; i++)
        if (!uuid_equal(&agent->pod.view->volumes[i].uuid, &volumes[i].uuid))
            return false;
    return true;
}

static icms_err pod_check_volumes(const struct agent *agent, const struct agent_identity *volumes,
                                  struct err_why *why)
{
    for (uint32_t i = 0; volumes != NULL && i < agent->volume_count; i++)
        for (uint32_t j = 0; j < i; j++)
            if (!uuid_is_nil(&volumes[i].uuid) && uuid_equal(&volumes[i].uuid, &volumes[j].uuid))
                return err_set(why, ICMS_CONFIG, "volumes %s and %s have the same UUID",
                               agent->volumes[j].spec.name, agent->volumes[i].spec.name);
    return ICMS_OK;
}

static icms_err pod_check_epoch(const struct agent *agent, uint64_t epoch,
                                const struct agent_enclosure_opts *enclosures, uint32_t count,
                                const struct agent_identity *volumes, struct err_why *why)
{
    const struct agent_pod *pod = &agent->pod;
    icms_err err;

    if (agent->local != NULL)
        return err_set(why, ICMS_INVALID, "this agent has a drive of its own and no enclosures");
    if (count == 0)
        return err_set(why, ICMS_CONFIG,
                       "no enclosure is left: without one every block is a miss; stop the agent "
                       "instead, or leave one");
    err = agent_pod_check(enclosures, count, why);
    if (err == ICMS_OK)
        err = pod_check_volumes(agent, volumes, why);
    if (err != ICMS_OK)
        return err;
    if (epoch < pod->view->epoch)
        return err_set(why, ICMS_INVALID, "epoch %llu is older than %llu, which is in use",
                       (unsigned long long)epoch, (unsigned long long)pod->view->epoch);
    if (epoch == pod->view->epoch && !pod_is(pod, enclosures, count))
        return err_set(why, ICMS_INVALID,
                       "epoch %llu is in use with other enclosures: each change needs a higher one",
                       (unsigned long long)epoch);
    if (epoch == pod->view->epoch && !volumes_equal(agent, volumes))
        return err_set(why, ICMS_INVALID,
                       "epoch %llu is in use with other volumes: each change needs a higher one",
                       (unsigned long long)epoch);
    return ICMS_OK;
}

/* ---- views ---------------------------------------------------------------------------------- */

static void view_free(struct agent_view **view_)
{
    struct agent_view *view = *view_;

    *view_ = NULL;
    if (view == NULL)
        return;
    place_map_free(&view->owners);
    place_map_free(&view->former);
    free(view);
}

/* What decides where a block lies, for the targets to compare: sums, so that the order of the lists
 * does not matter. */
static void view_settings(struct agent_view *view, const struct agent *agent,
                          const struct agent_enclosure_opts *enclosures, uint32_t count)
{
    uint64_t uuids = 0, weights = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct agent_enclosure_opts *enclosure = &enclosures[i];
        uint8_t text[sizeof(enclosure->uuid.bytes) + sizeof(le64)];
        double own = owner_weight(enclosure);
        uint64_t bits;
        le64 weight;

        memcpy(&bits, &own, sizeof(bits));
        weight = le64_of(bits);
        memcpy(text, enclosure->uuid.bytes, sizeof(enclosure->uuid.bytes));
        memcpy(text + sizeof(enclosure->uuid.bytes), &weight, sizeof(weight));
        uuids += hash64(text, sizeof(enclosure->uuid.bytes));
        weights += hash64(text, sizeof(text));
    }
    view->settings.enclosures = (uint32_t)(uuids ^ uuids >> 32);
    view->settings.weights = (uint32_t)(weights ^ weights >> 32);
    view->settings.epoch = (uint32_t)view->epoch;
    view->settings.pod = agent->pod.name[0] != '\0' ? pod_name_hash(agent->pod.name) : 0;
    for (uint32_t i = 0; i < agent->volume_count; i++)
        view->settings.run_blocks[i] = agent->volumes[i].spec.run_blocks;
}

/* Who has blocks, and who had them before those that join came, those that drain went, and weights
 * changed. */
static icms_err view_maps(struct agent_view *view, const struct agent_enclosure_opts *enclosures,
                          uint32_t count, struct err_why *why)
{
    struct place_member owners[LIMIT_ENCLOSURES] = {0}, former[LIMIT_ENCLOSURES] = {0};
    bool differ = false, is_former = false;
    icms_err err;

    for (uint32_t i = 0; i < count; i++) {
        const struct agent_enclosure_opts *enclosure = &enclosures[i];
        double before = former_weight(enclosure);

        owners[i] = (struct place_member){enclosure->uuid, owner_weight(enclosure)};
        former[i] = (struct place_member){enclosure->uuid, before};
        differ = differ || owners[i].weight != before;
        is_former = is_former || before > 0;
    }
    err = place_map_new(owners, count, why, &view->owners);
    if (err == ICMS_OK && differ && is_former)
        err = place_map_new(former, count, why, &view->former);
    return err;
}

static icms_err view_new(const struct agent *agent, uint64_t epoch,
                         const struct agent_enclosure_opts *enclosures, const uint8_t *slots,
                         uint32_t count, const struct agent_identity *volumes, struct err_why *why,
                         struct agent_view **out_view)
{
    struct agent_view *view = calloc(1, sizeof(*view));
    icms_err err;

    if (view == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a set of enclosures");
    view->epoch = epoch;
    for (uint32_t i = 0; i < agent->volume_count; i++)
        view->volumes[i] = volumes != NULL ? volumes[i] : agent->pod.volumes[i];
    for (uint32_t i = 0; i < count; i++) {
        view->numbers[i] = slots[i];
        view->members |= (uint64_t)1 << slots[i];
    }
    view_settings(view, agent, enclosures, count);
    err = count > 0 ? view_maps(view, enclosures, count, why) : ICMS_OK;
    if (err != ICMS_OK) {
        view_free(&view);
        return err;
    }
    *out_view = view;
    return ICMS_OK;
}

/* ---- plans ---------------------------------------------------------------------------------- */

/* What is made of a list before anything changes. */
struct pod_draft {
    const struct agent_enclosure_opts *enclosures;
    uint32_t count;
    const struct agent_identity *volumes;      /* NULL: as they are                      */
    bool is_first;                             /* at the start: keys have to be readable */
    uint8_t slots[LIMIT_ENCLOSURES];           /* by place in the list                   */
    struct agent_keys *keys[LIMIT_ENCLOSURES]; /* likewise; NULL: those that it has stay */
    struct loop_addr addrs[LIMIT_ENCLOSURES][LIMIT_LINKS]; /* likewise; as in agent_member    */
    uint8_t
        relinks[LIMIT_ENCLOSURES]; /* likewise; bit i: link i has another association, or none */
    struct agent_view *view;
    struct agent_plan *plan;
};

static void plan_free(struct agent_plan **plan_)
{
    struct agent_plan *plan = *plan_;

    *plan_ = NULL;
    for (uint32_t r = 0; plan != NULL && r < plan->part_count; r++)
        for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++)
            for (uint32_t l = 0; l < LIMIT_LINKS; l++)
                agent_association_free(&plan->parts[r].associations[i][l]);
    free(plan);
}

static void draft_fini(struct pod_draft *draft)
{
    for (uint32_t i = 0; i < draft->count; i++)
        agent_keys_rele(&draft->keys[i]);
    plan_free(&draft->plan);
    view_free(&draft->view);
}

static icms_err draft_slots(struct pod_draft *draft, const struct agent_pod *pod,
                            struct err_why *why)
{
    uint64_t used = 0;

    for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++)
        if (pod->members[i].is_member ||
            atomic_load_explicit(&pod->members[i].reactors, memory_order_acquire) != 0)
            used |= (uint64_t)1 << i;
    for (uint32_t i = 0; i < draft->count; i++) {
        uint32_t slot = pod_find(pod, &draft->enclosures[i].uuid);

        if (slot == LIMIT_ENCLOSURES && ~used == 0)
            return err_set(why, ICMS_LIMIT,
                           "enclosure %s: no place is free: %d are possible, with those that leave "
                           "in the same epoch, or left a moment ago; remove some in an epoch of "
                           "its own first",
                           draft->enclosures[i].name, LIMIT_ENCLOSURES);
        if (slot == LIMIT_ENCLOSURES)
            slot = (uint32_t)__builtin_ctzll(~used);
        used |= (uint64_t)1 << slot;
        draft->slots[i] = (uint8_t)slot;
    }
    return ICMS_OK;
}

/* Whether all associations with an enclosure that stays have to be others. */
static bool member_differs(const struct agent_member *member,
                           const struct agent_enclosure_opts *enclosure,
                           const struct agent_keys *keys)
{
    return strcmp(member->opts.nqn, enclosure->nqn) != 0 ||
           member->opts.require != enclosure->require ||
           atomic_load_explicit(&member->keys->hash, memory_order_relaxed) !=
               atomic_load_explicit(&keys->hash, memory_order_relaxed);
}

/* The files of one enclosure cannot be read, and the others are used all the same. It keeps the
 * keys that it has, or is not connected to: without them, or with fewer, it would be as if it
 * needed none. */
static icms_err draft_keys_unread(struct pod_draft *draft, uint32_t i,
                                  const struct agent_member *member, struct err_why *why)
{
    const struct agent_enclosure_opts *enclosure = &draft->enclosures[i];
    bool keeps = member->is_member && !member->keys->is_unread &&
                 strcmp(member->opts.nqn, enclosure->nqn) == 0 &&
                 member->opts.require == enclosure->require &&
                 agent_keys_fit(member->keys, enclosure);
    struct err_why cause = *why;

    if (cause.text[0] != '\0')
        (void)err_set(why, ICMS_OK, "enclosure %s: %s: %.400s", enclosure->name,
                      keeps ? "its keys stay as they were" : "it is not used", cause.text);
    return keeps ? ICMS_OK : agent_keys_unread(why, &draft->keys[i]);
}

/* why has the first sentence of those whose files cannot be read. */
static icms_err draft_keys(struct pod_draft *draft, const struct agent *agent, struct err_why *why)
{
    struct err_why first = {""};

    for (uint32_t i = 0; i < draft->count; i++) {
        const struct agent_member *member = &agent->pod.members[draft->slots[i]];
        const struct agent_enclosure_opts *enclosure = &draft->enclosures[i];
        struct err_why cause = {""};
        icms_err err = agent_keys_load(agent->opts.host_nqn, enclosure, &cause, &draft->keys[i]);

        if (err != ICMS_OK && draft->is_first)
            return err_set(why, err, "%s", cause.text);
        if (err != ICMS_OK) {
            err = draft_keys_unread(draft, i, member, &cause);
            if (err != ICMS_OK)
                return err_set(why, err, "%s", cause.text);
            if (first.text[0] == '\0')
                first = cause;
            if (draft->keys[i] == NULL)
                continue;
        }
        if (member->is_member && !member_differs(member, enclosure, draft->keys[i]))
            agent_keys_rele(&draft->keys[i]);
    }
    if (why != NULL)
        *why = first;
    return ICMS_OK;
}

/* Where nothing listens, for one that is not used. */
static const struct agent_enclosure_opts *draft_nowhere(uint32_t slot,
                                                        struct agent_enclosure_opts *scratch)
{
    scratch->addr_count = 1;
    scratch->addrs[0].port = 0;
    (void)snprintf(scratch->addrs[0].host, sizeof(scratch->addrs[0].host), "127.254.255.%u",
                   slot + 1);
    return scratch;
}

/* Which address each link of an enclosure has. One that stays keeps its place; a new one has a
 * place that was free, if there is one: its link does not wait until another one is closed. */
static void draft_addrs(struct pod_draft *draft, const struct agent *agent, uint32_t i)
{
    const struct agent_member *member = &agent->pod.members[draft->slots[i]];
    const struct agent_keys *keys = draft->keys[i] != NULL ? draft->keys[i] : member->keys;
    struct agent_enclosure_opts scratch;
    const struct agent_enclosure_opts *enclosure =
        keys->is_unread ? draft_nowhere(draft->slots[i], &scratch) : &draft->enclosures[i];
    static const struct loop_addr none;
    const struct loop_addr *before[LIMIT_LINKS];
    struct loop_addr *addrs = draft->addrs[i];

    for (uint32_t l = 0; l < LIMIT_LINKS; l++) {
        before[l] = member->is_member ? &member->addrs[l] : &none;
        addrs[l] = addr_is(before[l]) && addr_find(enclosure->addrs, enclosure->addr_count,
                                                   before[l]) < enclosure->addr_count
                       ? *before[l]
                       : none;
    }
    for (uint32_t a = 0; a < enclosure->addr_count; a++) {
        uint32_t at = 0;

        if (addr_find(addrs, LIMIT_LINKS, &enclosure->addrs[a]) < LIMIT_LINKS)
            continue;
        while (at < LIMIT_LINKS && (addr_is(&addrs[at]) || addr_is(before[at])))
            at++;
        for (uint32_t l = 0; at == LIMIT_LINKS && l < LIMIT_LINKS; l++)
            at = addr_is(&addrs[l]) ? at : l;
        addrs[at] = enclosure->addrs[a];
    }
    for (uint32_t l = 0; l < LIMIT_LINKS; l++)
        if (!loop_addr_equal(&addrs[l], before[l]) ||
            (draft->keys[i] != NULL && addr_is(&addrs[l])))
            draft->relinks[i] |= (uint8_t)(1u << l);
}

/* What reactors need of an enclosure that is new, or of its links that lead elsewhere. */
static icms_err draft_links(struct pod_draft *draft, struct agent *agent, uint32_t i,
                            struct err_why *why)
{
    uint32_t slot = draft->slots[i];
    const struct agent_member *member = &agent->pod.members[slot];
    struct agent_keys *keys = draft->keys[i] != NULL ? draft->keys[i] : member->keys;
    icms_err err = ICMS_OK;

    for (uint32_t r = 0; r < agent->reactor_count && err == ICMS_OK; r++) {
        struct agent_enclosure *enclosure = &agent->reactors[r].enclosures[slot];

        if (!member->is_member)
            err = agent_enclosure_make(enclosure, &agent->reactors[r], slot, why);
        for (uint32_t l = 0; l < LIMIT_LINKS && err == ICMS_OK; l++)
            if ((draft->relinks[i] >> l & 1) != 0 && addr_is(&draft->addrs[i][l]))
                err = agent_association_new(&enclosure->links[l], &draft->enclosures[i],
                                            &draft->addrs[i][l], keys, draft->view, why,
                                            &draft->plan->parts[r].associations[slot][l]);
    }
    return err;
}

static icms_err draft_plan(struct pod_draft *draft, struct agent *agent, struct err_why *why)
{
    struct agent_plan *plan =
        calloc(1, sizeof(*plan) + agent->reactor_count * sizeof(plan->parts[0]));
    icms_err err = ICMS_OK;

    if (plan == NULL)
        return err_set(why, ICMS_NO_MEMORY, "no memory for a set of enclosures");
    draft->plan = plan;
    plan->agent = agent;
    plan->part_count = agent->reactor_count;
    atomic_store_explicit(&plan->left, plan->part_count, memory_order_relaxed);
    for (uint32_t r = 0; r < plan->part_count; r++) {
        plan->parts[r].plan = plan;
        plan->parts[r].reactor = &agent->reactors[r];
    }
    for (uint32_t i = 0; i < draft->count && err == ICMS_OK; i++) {
        draft_addrs(draft, agent, i);
        plan->relinks[draft->slots[i]] = draft->relinks[i];
        err = draft_links(draft, agent, i, why);
    }
    return err;
}

static icms_err draft_make(struct pod_draft *draft, struct agent *agent, uint64_t epoch,
                           struct err_why *why)
{
    icms_err err = draft_slots(draft, &agent->pod, why);

    if (err == ICMS_OK)
        err = draft_keys(draft, agent, why);
    if (err == ICMS_OK)
        err = view_new(agent, epoch, draft->enclosures, draft->slots, draft->count, draft->volumes,
                       why, &draft->view);
    if (err == ICMS_OK)
        err = draft_plan(draft, agent, why);
    return err;
}

/* ---- taking it ------------------------------------------------------------------------------ */

/* It is what the pod is from now on; the draft is empty then. */
static struct agent_plan *pod_commit(struct agent *agent, struct pod_draft *draft)
{
    struct agent_pod *pod = &agent->pod;
    struct agent_plan *plan = draft->plan;

    pthread_mutex_lock(&pod->lock);
    plan_free(&pod->plan);
    pod->plan = plan;
    plan->view = draft->view;
    plan->old = pod->view;
    plan->leaves = (pod->view != NULL ? pod->view->members : 0) & ~draft->view->members;
    pod->view = draft->view;
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++)
        if ((plan->leaves >> i & 1) != 0) {
            pod->members[i].is_member = false;
            agent_keys_rele(&pod->members[i].keys);
            for (uint32_t l = 0; l < LIMIT_LINKS; l++)
                plan->relinks[i] |= (uint8_t)(addr_is(&pod->members[i].addrs[l]) << l);
        }
    for (uint32_t i = 0; i < draft->count; i++) {
        struct agent_member *member = &pod->members[draft->slots[i]];

        member->opts = draft->enclosures[i];
        member->opts.psk = member->opts.secret = member->opts.controller_secret = NULL;
        if (!member->is_member)
            atomic_store_explicit(&member->reactors, agent->reactor_count, memory_order_relaxed);
        member->is_member = true;
        memcpy(member->addrs, draft->addrs[i], sizeof(member->addrs));
        if (draft->keys[i] == NULL)
            continue;
        agent_keys_rele(&member->keys);
        member->keys = draft->keys[i];
    }
    memcpy(pod->volumes, pod->view->volumes, sizeof(pod->volumes));
    atomic_store_explicit(&pod->mask, pod->view->members, memory_order_release);
    pthread_mutex_unlock(&pod->lock);
    *draft = (struct pod_draft){0};
    return plan;
}

/* All reactors have it. On the loop of the last one. */
static void pod_applied(struct agent_plan *plan)
{
    struct agent_pod *pod = &plan->agent->pod;
    void (*done)(void *arg) = plan->done;
    void *arg = plan->arg;

    view_free(&plan->old);
    atomic_store_explicit(&pod->epoch, plan->view->epoch, memory_order_release);
    atomic_store_explicit(&pod->is_applying, false, memory_order_release);
    if (done != NULL)
        done(arg);
}

static void reactor_view_set(struct agent_reactor *reactor, const struct agent_view *view)
{
    uint32_t all = (uint32_t)__builtin_popcountll(view->members);

    reactor->view = view;
    reactor->view_ns = reactor_now_ns(reactor);
    slow_all_set(&reactor->slow_loads, all);
    slow_all_set(&reactor->slow_exists, all);
    slow_all_set(&reactor->slow_stores, all);
}

/* All enclosures look for the namespace of its UUID. */
static void reactor_volume_set(struct agent_reactor *reactor, uint32_t volume)
{
    for (uint64_t left = reactor->view->members; left != 0; left &= left - 1)
        agent_enclosure_volume_set(&reactor->enclosures[__builtin_ctzll(left)], volume);
}

static void pod_take(struct loop_msg *msg)
{
    struct agent_plan_part *part = container_of(msg, struct agent_plan_part, msg);
    struct agent_plan *plan = part->plan;
    struct agent_reactor *reactor = part->reactor;

    reactor_view_set(reactor, plan->view);
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++) {
        struct agent_enclosure *enclosure = &reactor->enclosures[i];

        if (plan->relinks[i] != 0)
            agent_enclosure_relink(enclosure, plan->relinks[i], part->associations[i],
                                   (plan->leaves >> i & 1) != 0);
        if ((plan->view->members >> i & 1) != 0)
            agent_enclosure_settings_set(enclosure, &plan->view->settings);
    }
    for (uint32_t i = 0; i < reactor->shard_count; i++) {
        agent_shard_view_changed(&reactor->shards[i], plan->leaves);
        if (agent_shard_identity_set(&reactor->shards[i], &plan->view->volumes[i].uuid))
            reactor_volume_set(reactor, i);
    }
    agent_enclosures_slow_release(reactor);
    if (atomic_fetch_sub_explicit(&plan->left, 1, memory_order_acq_rel) == 1)
        pod_applied(plan);
}

icms_err agent_pod_apply_start(struct agent *agent, uint64_t epoch,
                               const struct agent_enclosure_opts *enclosures, uint32_t count,
                               const struct agent_identity *volumes, struct err_why *why,
                               void (*done)(void *arg), void *arg)
{
    struct pod_draft draft = {.enclosures = enclosures, .count = count, .volumes = volumes};
    struct agent_plan *plan;
    icms_err err;

    if (atomic_exchange_explicit(&agent->pod.is_applying, true, memory_order_acq_rel))
        return err_set(why, ICMS_BUSY, "another set of enclosures is being taken: try again");
    err = pod_check_epoch(agent, epoch, enclosures, count, volumes, why);
    if (err != ICMS_OK)
        draft.count = 0;
    else
        err = draft_make(&draft, agent, epoch, why);
    if (err != ICMS_OK) {
        draft_fini(&draft);
        atomic_store_explicit(&agent->pod.is_applying, false, memory_order_release);
        return err;
    }
    plan = pod_commit(agent, &draft);
    plan->done = done;
    plan->arg = arg;
    for (uint32_t r = 0, parts = plan->part_count; r < parts; r++)
        loop_send(agent->reactors[r].loop, &plan->parts[r].msg, pod_take);
    return ICMS_OK;
}

static void pod_applied_post(void *arg)
{
    sem_post(arg);
}

icms_err agent_pod_apply(struct agent *agent, uint64_t epoch,
                         const struct agent_enclosure_opts *enclosures, uint32_t count,
                         const struct agent_identity *volumes, struct err_why *why)
{
    sem_t over;
    icms_err err;

    check(sem_init(&over, 0, 0) == 0);
    err = agent_pod_apply_start(agent, epoch, enclosures, count, volumes, why, pod_applied_post,
                                &over);
    while (err == ICMS_OK && sem_wait(&over) != 0)
        ;
    sem_destroy(&over);
    return err;
}

/* ---- life ----------------------------------------------------------------------------------- */

icms_err agent_pod_init(struct agent *agent, const struct agent_opts *opts, struct err_why *why)
{
    struct pod_draft draft = {
        .enclosures = opts->enclosures,
        .count = opts->enclosure_count,
        .is_first = true,
    };
    struct agent_plan *plan;
    icms_err err;

    if (opts->pod_name != NULL)
        (void)snprintf(agent->pod.name, sizeof(agent->pod.name), "%s", opts->pod_name);
    for (uint32_t i = 0; i < agent->volume_count; i++)
        agent->pod.volumes[i] =
            (struct agent_identity){agent->volumes[i].spec.uuid, agent->volumes[i].spec.generation};
    err = draft_make(&draft, agent, opts->epoch, why);
    if (err != ICMS_OK) {
        draft_fini(&draft);
        return err;
    }
    plan = pod_commit(agent, &draft);
    atomic_store_explicit(&agent->pod.epoch, opts->epoch, memory_order_release);
    for (uint32_t r = 0; r < agent->reactor_count; r++) {
        struct agent_reactor *reactor = &agent->reactors[r];

        reactor_view_set(reactor, plan->view);
        for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++)
            for (uint32_t l = 0; l < LIMIT_LINKS; l++) {
                if (plan->parts[r].associations[i][l].ctrl == NULL)
                    continue;
                reactor->enclosures[i].links[l].own = plan->parts[r].associations[i][l];
                plan->parts[r].associations[i][l] = (struct agent_association){0};
            }
    }
    return ICMS_OK;
}

void agent_pod_fini(struct agent *agent)
{
    struct agent_pod *pod = &agent->pod;

    if (pod->plan != NULL && atomic_load_explicit(&pod->is_applying, memory_order_acquire))
        view_free(&pod->plan->old);
    plan_free(&pod->plan);
    view_free(&pod->view);
    for (uint32_t i = 0; i < LIMIT_ENCLOSURES; i++)
        agent_keys_rele(&pod->members[i].keys);
}
