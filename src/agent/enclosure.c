/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent/enclosure.c: one enclosure as this agent sees it: its links, health, probing. enclosure.h
 * has the picture, ask.c what is asked of it.
 *
 * On its reactor's loop. Every reactor has associations of its own with each enclosure, and a
 * verdict of its own on its health and on that of its links.
 *
 * Life of a link: agent_enclosure_begin, or agent_enclosure_relink -> CONNECTING -> UP <->
 * EXCLUDED, and UP <-> SLOW -> EXCLUDED; agent_enclosure_relink ends it from any of them: the
 * association is closed, and another one takes its place (CONNECTING), or none (the place is free).
 *
 * Life of the enclosure: CONNECTING until a link is up or all have failed; UP <-> EXCLUDED with the
 * first link that comes up and the last one that goes down, and UP <-> SLOW -> EXCLUDED. Health is
 * decided here, on the data path: a connection that is refused, reset or silent (nvmf/host counts
 * bytes, and asks a busy enclosure for a sign of life) ends its link at once; every operation in
 * flight there comes back and goes on with another link, or with the next enclosure. A link that is
 * EXCLUDED is connected to again every probe_ms, with jitter so that the agents of a pod do not
 * knock together, and UP when it has answered a probe: a network that loses large packets lets
 * connections come up again and again.
 *
 * Slow: base/slow.h has the rule. It is told of loads and exists that somebody waits for, each kind
 * beside its own, because an enclosure may be quick with one and late with the other. What this
 * agent itself has in flight there may take its time (slow_op.bytes), and what was in flight while
 * the reactor stood still says nothing. After a late one it looks at what is not answered, too
 * (enclosure_late). A slow enclosure keeps its associations and what is in flight; new loads and
 * stores go to the next one. It is probed with a command of the kind that was late, for the key
 * that was there last, so it does not come back before that is quick again. When fewer than half
 * of the enclosures are UP the slow ones are used again, and for a key that no other can be asked
 * for a slow one is (agent_op_pick): nothing better is left. The same rule compares the links of an
 * enclosure: a slow link has no new commands while another one is UP.
 *
 * Before that, the share of an enclosure is lowered (slow_share, at each heartbeat of the reactor):
 * the worst of what loads, exists and stores say. Of the slots that it owns, those above its share
 * have the next in order in its place (agent_op_pick). Stores only lower shares: a probe stores
 * nothing, so nobody could tell when they are quick again.
 *
 * An enclosure that lacks a volume, or hides it from this host, is passed over for that volume as
 * if it were excluded (shard->missing), and looked at again now and then. It has what one of its
 * links has.
 *
 * Invariant: bit `number` of reactor->excluded is clear exactly while UP, that of reactor->slow set
 * exactly while SLOW, and that of reactor->lowered only while UP. A link is UP or SLOW exactly
 * while its association is up and has answered its first probe.
 */
#include "agent/agent_int.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- health --------------------------------------------------------------------------------- */

static void enclosure_share_set(struct agent_enclosure *enclosure, uint32_t percent)
{
    uint64_t bit = (uint64_t)1 << enclosure->number;

    atomic_store_explicit(&enclosure->share_percent, percent, memory_order_relaxed);
    if (percent < 100)
        enclosure->reactor->lowered |= bit;
    else
        enclosure->reactor->lowered &= ~bit;
}

static void enclosure_state_set(struct agent_enclosure *enclosure, enum agent_enclosure_state state)
{
    uint64_t bit = (uint64_t)1 << enclosure->number;
    uint64_t excluded = atomic_load_explicit(&enclosure->reactor->excluded, memory_order_relaxed);

    atomic_store_explicit(&enclosure->state, state, memory_order_relaxed);
    if (state == AGENT_ENCLOSURE_UP)
        excluded &= ~bit;
    else
        excluded |= bit;
    if (state == AGENT_ENCLOSURE_SLOW)
        enclosure->reactor->slow |= bit;
    else
        enclosure->reactor->slow &= ~bit;
    enclosure_share_set(enclosure, 100);
    atomic_store_explicit(&enclosure->reactor->excluded, excluded, memory_order_release);
}

static void link_open(struct agent_link *link)
{
    struct agent_enclosure *enclosure = link->enclosure;
    uint64_t timeout_ns = (uint64_t)enclosure->agent->opts.connect_timeout_ms * 1000000;

    check(!link->is_open);
    link->is_open = true;
    nvmf_ctrl_open(link->own.ctrl, reactor_now_ns(enclosure->reactor) + timeout_ns);
}

icms_err agent_enclosure_link(struct agent_enclosure *enclosure, uint32_t volume, uint32_t but,
                              struct agent_link **out_link)
{
    struct agent_link *best = NULL;
    bool is_up = false;

    for (uint32_t i = 1; i <= LIMIT_LINKS; i++) {
        struct agent_link *link = &enclosure->links[(enclosure->link_last + i) % LIMIT_LINKS];
        bool is_slow = agent_link_state(link) == AGENT_ENCLOSURE_SLOW;

        if (!agent_link_is_up(link) || (but >> link->at & 1) != 0)
            continue;
        is_up = true;
        if (link->nsid[volume] == 0)
            continue;
        if (best == NULL || (agent_link_state(best) == AGENT_ENCLOSURE_SLOW && !is_slow) ||
            ((agent_link_state(best) == AGENT_ENCLOSURE_SLOW) == is_slow &&
             counter_get(&link->in_flight_bytes) < counter_get(&best->in_flight_bytes)))
            best = link;
    }
    if (best == NULL)
        return is_up ? ICMS_NO_VOLUME : ICMS_PEER_DOWN;
    enclosure->link_last = best->at;
    *out_link = best;
    return ICMS_OK;
}

static enum agent_enclosure_state enclosure_state(const struct agent_enclosure *enclosure)
{
    return (enum agent_enclosure_state)atomic_load_explicit(&enclosure->state,
                                                            memory_order_relaxed);
}

/* The next probe, or try, is due in probe_ms, give or take a quarter. */
static void enclosure_probe_arm(struct agent_enclosure *enclosure, struct loop_timer *timer)
{
    uint64_t probe_ns = (uint64_t)enclosure->agent->opts.probe_ms * 1000000;
    uint64_t jitter_ns = loop_random(enclosure->reactor->loop) % (probe_ns / 2 + 1);

    loop_timer_start(enclosure->reactor->loop, timer,
                     reactor_now_ns(enclosure->reactor) + probe_ns - probe_ns / 4 + jitter_ns);
}

/* ---- slow ----------------------------------------------------------------------------------- */

/* Enclosures (bits) that are UP. */
static uint64_t enclosures_in_use(const struct agent_reactor *reactor)
{
    return ~atomic_load_explicit(&reactor->excluded, memory_order_relaxed) & reactor->view->members;
}

static void enclosure_slow_begins(struct agent_enclosure *enclosure, struct slow *slow)
{
    bool is_load = slow == &enclosure->reactor->slow_loads;
    uint64_t limit_ns =
        slow_limit_ns(slow, enclosure->number, enclosures_in_use(enclosure->reactor), 0);
    char text[LIMIT_REASON_BYTES];

    (void)snprintf(text, sizeof(text),
                   "%s take longer than at the other enclosures: %llu ms, where more than %llu ms "
                   "are late",
                   is_load ? "loads" : "lookups",
                   (unsigned long long)(slow_late_ns(slow, enclosure->number) / 1000000),
                   (unsigned long long)(limit_ns / 1000000));
    agent_enclosure_text_set(enclosure, NULL, text);
    enclosure->slow_in = slow;
    counter_add(&enclosure->slow_total, 1);
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_SLOW);
    enclosure_probe_arm(enclosure, &enclosure->probe);
}

/* What was seen of it says nothing from now on. */
static void enclosure_slow_forget(struct agent_enclosure *enclosure)
{
    struct agent_reactor *reactor = enclosure->reactor;

    loop_timer_stop(reactor->loop, &enclosure->probe);
    loop_timer_stop(reactor->loop, &enclosure->late);
    slow_forget(&reactor->slow_loads, enclosure->number);
    slow_forget(&reactor->slow_exists, enclosure->number);
    slow_forget(&reactor->slow_stores, enclosure->number);
}

static void enclosure_slow_ends(struct agent_enclosure *enclosure)
{
    enclosure_slow_forget(enclosure);
    estimate_forget(&enclosure->estimate);
    /* Whoever took over meanwhile may have blocks of it. */
    atomic_store_explicit(&enclosure->included_ns, reactor_now_ns(enclosure->reactor),
                          memory_order_relaxed);
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_UP);
}

void agent_enclosure_share_look(struct agent_enclosure *enclosure)
{
    struct agent_reactor *reactor = enclosure->reactor;
    struct slow *const slows[] = {&reactor->slow_loads, &reactor->slow_exists,
                                  &reactor->slow_stores};
    uint32_t percent = 100;

    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_UP)
        return;
    for (size_t i = 0; i < sizeof(slows) / sizeof(slows[0]); i++)
        percent = (uint32_t)u64_min(
            percent, slow_share(slows[i], enclosure->number, enclosures_in_use(reactor),
                                reactor->stalled_ns, reactor_now_ns(reactor)));
    enclosure_share_set(enclosure, percent);
}

void agent_enclosure_passed(struct agent_enclosure *enclosure)
{
    atomic_store_explicit(&enclosure->included_ns, reactor_now_ns(enclosure->reactor),
                          memory_order_relaxed);
}

/* What is slow is better than nothing. */
void agent_enclosures_slow_release(struct agent_reactor *reactor)
{
    uint32_t up = (uint32_t)__builtin_popcountll(enclosures_in_use(reactor));
    uint32_t all = (uint32_t)__builtin_popcountll(reactor->view->members);

    for (uint64_t slow = reactor->slow; 2 * up < all && slow != 0; slow &= slow - 1)
        enclosure_slow_ends(&reactor->enclosures[__builtin_ctzll(slow)]);
}

/* What a probe will ask for: the last that was there, so that it costs what loads cost. */
static void enclosure_asked(struct agent_enclosure *enclosure, const struct agent_shard *shard,
                            const struct nvmf_req *req, bool is_load, bool is_there)
{
    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_UP ||
        (enclosure->asked[is_load].is_known && !is_there))
        return;
    enclosure->asked[is_load].key = req->key;
    enclosure->asked[is_load].volume = shard->number;
    enclosure->asked[is_load].is_known = true;
}

/* A command of the link was this late, where the other links were in time. */
static void link_slow_begins(struct agent_link *link)
{
    struct agent_enclosure *enclosure = link->enclosure;
    uint64_t limit_ns = slow_limit_ns(&enclosure->links_slow, link->at,
                                      agent_enclosure_links_in(enclosure, AGENT_ENCLOSURE_UP), 0);
    char text[LIMIT_REASON_BYTES];

    (void)snprintf(text, sizeof(text),
                   "commands take longer than by its other addresses: %llu ms, where more than "
                   "%llu ms are late",
                   (unsigned long long)(slow_late_ns(&enclosure->links_slow, link->at) / 1000000),
                   (unsigned long long)(limit_ns / 1000000));
    agent_enclosure_text_set(enclosure, link, text);
    counter_add(&link->slow_total, 1);
    agent_link_state_set(link, AGENT_ENCLOSURE_SLOW);
    enclosure_probe_arm(enclosure, &link->retry);
}

/* What is known of an enclosure's time for loads, or for exists. */
static struct slow *enclosure_slow(const struct agent_enclosure *enclosure, bool is_load)
{
    return is_load ? &enclosure->reactor->slow_loads : &enclosure->reactor->slow_exists;
}

/* Something was late there: what is not answered will be looked at. */
static void enclosure_late_arm(struct agent_enclosure *enclosure, const struct slow *slow)
{
    struct agent_reactor *reactor = enclosure->reactor;
    uint64_t look_ns = slow_look_ns(slow, enclosure->number, reactor_now_ns(reactor));

    if (look_ns != 0 && !loop_timer_armed(&enclosure->late))
        loop_timer_start(reactor->loop, &enclosure->late, look_ns);
}

static void enclosure_late(struct loop_timer *timer)
{
    struct agent_enclosure *enclosure = container_of(timer, struct agent_enclosure, late);
    struct agent_reactor *reactor = enclosure->reactor;

    (void)agent_reactor_stalled(reactor, 0); /* it may be late just now */
    for (int i = 0; i < 2 && enclosure_state(enclosure) == AGENT_ENCLOSURE_UP; i++) {
        struct slow *slow = enclosure_slow(enclosure, i == 0);

        if (slow_look(slow, enclosure->number, enclosures_in_use(reactor), reactor->stalled_ns,
                      reactor_now_ns(reactor)))
            enclosure_slow_begins(enclosure, slow);
        else
            enclosure_late_arm(enclosure, slow);
    }
}

void agent_enclosure_sent(struct agent_enclosure *enclosure, bool is_load, struct slow_op *asked)
{
    struct slow *slow = enclosure_slow(enclosure, is_load);

    slow_sent(slow, enclosure->number, asked);
    enclosure_late_arm(enclosure, slow);
}

/* How a command ended at the enclosure; false: it ended with the association, or here. */
static bool req_end(const struct nvmf_req *req, enum slow_end *out_end)
{
    if (req->err == ICMS_DEADLINE || req->err == ICMS_CANCELED) /* one NVMe status for both */
        *out_end = SLOW_MISSED;
    else if (req->err == ICMS_BUSY || req->err == ICMS_LIMIT || req->reason == ICMS_MISS_SHED)
        *out_end = SLOW_SHED;
    else if (req->err == ICMS_OK || req->err == ICMS_CORRUPT || req->status != 0)
        *out_end = SLOW_ANSWERED;
    else
        return false;
    return true;
}

static void link_ended(struct agent_link *link, bool is_load, enum slow_end end,
                       const struct slow_op *asked)
{
    struct agent_enclosure *enclosure = link->enclosure;
    struct agent_reactor *reactor = enclosure->reactor;
    struct slow *slow = enclosure_slow(enclosure, is_load);
    uint64_t now_ns = reactor_now_ns(reactor);

    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_UP ||
        agent_reactor_stalled(reactor, asked->sent_ns))
        return;
    if (agent_link_state(link) == AGENT_ENCLOSURE_UP &&
        slow_ended(&enclosure->links_slow, link->at,
                   agent_enclosure_links_in(enclosure, AGENT_ENCLOSURE_UP), end, asked, now_ns))
        link_slow_begins(link);
    if (slow_ended(slow, enclosure->number, enclosures_in_use(reactor), end, asked, now_ns))
        enclosure_slow_begins(enclosure, slow);
    else
        enclosure_late_arm(enclosure, slow);
}

void agent_link_ended(struct agent_link *link, const struct agent_shard *shard, bool is_load,
                      const struct nvmf_req *req, const struct slow_op *asked)
{
    enum slow_end end;

    enclosure_asked(link->enclosure, shard, req, is_load, req->err == ICMS_OK);
    if (req_end(req, &end))
        link_ended(link, is_load, end, asked);
}

void agent_link_missed(struct agent_link *link, const struct agent_shard *shard, bool is_load,
                       const struct nvmf_req *req, const struct slow_op *asked)
{
    enclosure_asked(link->enclosure, shard, req, is_load, false);
    link_ended(link, is_load, SLOW_MISSED, asked);
}

void agent_enclosure_store_sent(struct agent_enclosure *enclosure, struct slow_op *asked)
{
    slow_sent(&enclosure->reactor->slow_stores, enclosure->number, asked);
}

void agent_enclosure_store_ended(struct agent_enclosure *enclosure, const struct nvmf_req *req,
                                 const struct slow_op *asked)
{
    struct agent_reactor *reactor = enclosure->reactor;
    enum slow_end end;

    if (!req_end(req, &end) || enclosure_state(enclosure) != AGENT_ENCLOSURE_UP ||
        agent_reactor_stalled(reactor, asked->sent_ns))
        return;
    (void)slow_seen(&reactor->slow_stores, enclosure->number, enclosures_in_use(reactor), end,
                    asked, reactor_now_ns(reactor));
}

/* ---- probes --------------------------------------------------------------------------------- */

/* Whether the end of a probe is an answer of the enclosure. */
static bool probe_answered(const struct nvmf_req *req)
{
    return req->err != ICMS_DEADLINE && req->err != ICMS_CANCELED &&
           (req->status != 0 || req->err == ICMS_OK);
}

static void enclosure_probe_done(struct nvmf_req *req)
{
    struct agent_link *link = req->owner;
    struct agent_enclosure *enclosure = link->enclosure;
    struct agent_reactor *reactor = enclosure->reactor;

    link->probing = false;
    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_SLOW ||
        agent_reactor_stalled(reactor, link->probe_sent_ns))
        return;
    if (slow_probed(enclosure->slow_in, enclosure->number, enclosures_in_use(reactor),
                    probe_answered(req), AGENT_PROBE_BYTES, link->probe_sent_ns,
                    reactor_now_ns(reactor)))
        enclosure_slow_ends(enclosure);
}

static void link_probe_done(struct nvmf_req *req)
{
    struct agent_link *link = req->owner;
    struct agent_enclosure *enclosure = link->enclosure;
    struct agent_reactor *reactor = enclosure->reactor;

    link->probing = false;
    if (agent_link_state(link) != AGENT_ENCLOSURE_SLOW ||
        agent_reactor_stalled(reactor, link->probe_sent_ns) ||
        !slow_probed(&enclosure->links_slow, link->at,
                     agent_enclosure_links_in(enclosure, AGENT_ENCLOSURE_UP), probe_answered(req),
                     AGENT_PROBE_BYTES, link->probe_sent_ns, reactor_now_ns(reactor)))
        return;
    loop_timer_stop(reactor->loop, &link->retry);
    agent_link_state_set(link, AGENT_ENCLOSURE_UP);
}

/* Asks for what was there last; in a namespace that there is not, the answer says so. */
static void link_probe_send(struct agent_link *link, bool is_load,
                            void (*done)(struct nvmf_req *req))
{
    struct agent_enclosure *enclosure = link->enclosure;
    struct nvmf_req *req = &link->probe_req;

    if (link->probing)
        return;
    link->probe_sent_ns = reactor_now_ns(enclosure->reactor);
    *req = (struct nvmf_req){
        .nsid =
            enclosure->asked[is_load].is_known ? link->nsid[enclosure->asked[is_load].volume] : 0,
        .io_class = IO_CLASS_LOAD,
        .key = enclosure->asked[is_load].key,
        .deadline_ns = link->probe_sent_ns + AGENT_PROBE_DEADLINE_NS,
        .done = done,
        .owner = link,
    };
    if (is_load)
        req->data[0] = (struct iovec){enclosure->probe_memory, AGENT_PROBE_BYTES};
    link->probing = (is_load ? nvmf_retrieve : nvmf_exist)(link->own.ctrl, req) == ICMS_OK;
}

static void enclosure_probe(struct loop_timer *timer)
{
    struct agent_enclosure *enclosure = container_of(timer, struct agent_enclosure, probe);
    bool is_load = enclosure->slow_in == &enclosure->reactor->slow_loads;
    struct agent_link *link;

    counter_add(&enclosure->probes, 1);
    enclosure_probe_arm(enclosure, &enclosure->probe);
    if (agent_enclosure_link(enclosure, enclosure->asked[is_load].volume, 0, &link) != ICMS_OK)
        link = &enclosure->links[__builtin_ctz(
            agent_enclosure_links_up(enclosure))]; /* lost it meanwhile */
    link_probe_send(link, is_load, enclosure_probe_done);
}

static void links_judge(struct agent_enclosure *enclosure);
static void link_test(struct agent_link *link);

/* Is it back, or still slow? */
static void link_retry(struct loop_timer *timer)
{
    struct agent_link *link = container_of(timer, struct agent_link, retry);
    struct agent_enclosure *enclosure = link->enclosure;

    counter_add(&enclosure->probes, 1);
    if (agent_link_state(link) == AGENT_ENCLOSURE_SLOW) {
        enclosure_probe_arm(enclosure, &link->retry);
        link_probe_send(link, enclosure->asked[true].is_known, link_probe_done);
    } else if (agent_link_is_connected(link)) {
        link_test(link);
    } else {
        links_judge(enclosure);
        link_open(link);
    }
}

/* ---- links come and go ---------------------------------------------------------------------- */

static void link_auths_read(struct agent_link *link)
{
    struct agent_enclosure *enclosure = link->enclosure;
    const struct nvmf_ctrl_stats *stats = nvmf_ctrl_stats(link->own.ctrl);

    counter_add(&enclosure->auths, stats->auths - link->auths);
    counter_add(&enclosure->auths_refused, stats->auths_refused - link->auths_refused);
    link->auths = stats->auths;
    link->auths_refused = stats->auths_refused;
}

/* Whether the connections that are up now were asked to authenticate. */
static void link_auth_set(struct agent_link *link)
{
    bool is_proven = nvmf_ctrl_stats(link->own.ctrl)->auths > link->auths;
    bool is_mutual = link->own.keys->controller_secret != NULL;

    atomic_store_explicit(&link->auth,
                          !is_proven  ? AGENT_AUTH_NONE
                          : is_mutual ? AGENT_AUTH_MUTUAL
                                      : AGENT_AUTH_CHAP,
                          memory_order_relaxed);
}

/* Whether it leads to the enclosure; else out_known: the serial number that the enclosure has. */
static bool link_is_right(const struct agent_link *link, char out_known[NVMF_SERIAL_BYTES])
{
    const struct agent_association *own = &link->own;
    const char *serial = nvmf_ctrl_serial(own->ctrl);
    struct agent_pod *pod = &link->enclosure->agent->pod;
    struct agent_known *known = &pod->known[link->enclosure->number];

    pthread_mutex_lock(&pod->known_lock);
    if (known->identity != own->identity || strcmp(serial, own->serial) == 0) {
        known->identity = own->identity;
        (void)snprintf(known->serial, sizeof(known->serial), "%s", serial);
    }
    memcpy(out_known, known->serial, sizeof(known->serial));
    pthread_mutex_unlock(&pod->known_lock);
    return strcmp(serial, out_known) == 0;
}

/* The first of its links is up. */
static void enclosure_up(struct agent_enclosure *enclosure)
{
    uint64_t now_ns = reactor_now_ns(enclosure->reactor);
    uint64_t lately_ns = (uint64_t)enclosure->agent->opts.probe_ms * 1000000;

    /* Whoever took over meanwhile may have blocks of it. */
    if (enclosure_state(enclosure) == AGENT_ENCLOSURE_EXCLUDED || enclosure->was_relinked ||
        now_ns - enclosure->began_ns > lately_ns)
        atomic_store_explicit(&enclosure->included_ns, now_ns, memory_order_relaxed);
    enclosure->was_relinked = false;
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_UP);
    atomic_store_explicit(&enclosure->tried, true, memory_order_release);
}

/* None of its links is up any more. */
static void enclosure_down(struct agent_enclosure *enclosure)
{
    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_EXCLUDED)
        counter_add(&enclosure->exclusions, 1);
    enclosure_slow_forget(enclosure);
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_EXCLUDED);
    agent_enclosures_slow_release(enclosure->reactor);
    atomic_store_explicit(&enclosure->tried, true, memory_order_release);
}

static void link_use(struct agent_link *link);

/* Those that waited for a sign of life of one that is lost. */
static void links_waiting_use(const struct agent_link *lost)
{
    for (uint32_t i = 0; i < LIMIT_LINKS; i++) {
        struct agent_link *link = &lost->enclosure->links[i];

        if (link->other == lost && agent_link_is_connected(link))
            link_use(link);
    }
}

/* It is not used from now on, until it is connected to again; why: a sentence. */
static void link_lost(struct agent_link *link, const char *why)
{
    struct agent_enclosure *enclosure = link->enclosure;
    struct loop *loop = enclosure->reactor->loop;

    link_auths_read(link);
    agent_enclosure_text_set(enclosure, link, why);
    loop_timer_stop(loop, &link->look);
    loop_timer_stop(loop, &link->retry);
    slow_forget(&enclosure->links_slow, link->at);
    estimate_forget(&enclosure->estimate); /* with another number of links it is another server */
    if (agent_link_state(link) != AGENT_ENCLOSURE_EXCLUDED)
        counter_add(&link->exclusions, 1);
    agent_link_state_set(link, AGENT_ENCLOSURE_EXCLUDED);
    atomic_store_explicit(&link->is_misdirected, false, memory_order_relaxed);
    link->other = NULL;
    links_waiting_use(link);
    agent_enclosure_missing_set_all(enclosure);
    if (agent_enclosure_links_up(enclosure) == 0 &&
        (enclosure_state(enclosure) != AGENT_ENCLOSURE_CONNECTING ||
         agent_enclosure_links_in(enclosure, AGENT_ENCLOSURE_CONNECTING) == 0))
        enclosure_down(enclosure);
}

/* It leads elsewhere: known is the serial number of the enclosure. */
static void link_refuse(struct agent_link *link, const char known[NVMF_SERIAL_BYTES])
{
    char text[LIMIT_REASON_BYTES], here[LIMIT_ADDRESS_BYTES];

    (void)snprintf(text, sizeof(text),
                   "misdirected: %s leads to another enclosure: serial number %s, not %s; it is "
                   "not used: correct the addresses, or restart icms-agent if the enclosure was "
                   "exchanged",
                   loop_addr_format(&link->own.addr, here, sizeof(here)),
                   nvmf_ctrl_serial(link->own.ctrl), known);
    nvmf_ctrl_close(link->own.ctrl, ICMS_PEER_DOWN);
    link_lost(link, text);
    atomic_store_explicit(&link->is_misdirected, true, memory_order_relaxed);
}

/* Which one is right may be known by another link, or reactor, since they came up. */
static void links_judge(struct agent_enclosure *enclosure)
{
    char known[NVMF_SERIAL_BYTES];

    for (uint32_t left = agent_enclosure_links_up(enclosure); left != 0; left &= left - 1) {
        struct agent_link *link = &enclosure->links[__builtin_ctz(left)];

        if (agent_link_is_up(link) && !link_is_right(link, known))
            link_refuse(link, known);
    }
}

/* The first of the other links that are up with another process; NULL: none is. */
static struct agent_link *link_other(const struct agent_link *link)
{
    uint64_t own = nvmf_ctrl_instance(link->own.ctrl);

    for (uint32_t left = agent_enclosure_links_up(link->enclosure); left != 0; left &= left - 1) {
        struct agent_link *other = &link->enclosure->links[__builtin_ctz(left)];
        uint64_t instance = nvmf_ctrl_instance(other->own.ctrl);

        if (other != link && own != 0 && instance != 0 && instance != own)
            return other;
    }
    return NULL;
}

/* Both processes live. */
static void link_refuse_other(struct agent_link *link, const struct agent_link *other)
{
    char here[LIMIT_ADDRESS_BYTES], there[LIMIT_ADDRESS_BYTES];
    char text[LIMIT_REASON_BYTES];

    (void)snprintf(
        text, sizeof(text),
        "misdirected: another process with this UUID answers at %s than at %s; it is not "
        "used: stop one of the two icms-target, or give it a UUID and NQN of its own",
        loop_addr_format(&link->own.addr, here, sizeof(here)),
        loop_addr_format(&other->own.addr, there, sizeof(there)));
    nvmf_ctrl_close(link->own.ctrl, ICMS_PEER_DOWN);
    link_lost(link, text);
    atomic_store_explicit(&link->is_misdirected, true, memory_order_relaxed);
}

/* Whether another process is up: the link waits then until it is known whether that lives, or is
 * refused. */
static bool link_waits(struct agent_link *link)
{
    struct agent_link *asked = link->other, *other = link_other(link);

    link->other = other;
    if (other == NULL)
        return false;
    if (asked == other && nvmf_ctrl_heard(other->own.ctrl) != link->other_heard) {
        link_refuse_other(link, other);
        return true;
    }
    link->other_heard = nvmf_ctrl_heard(other->own.ctrl);
    nvmf_ctrl_ask(other->own.ctrl);
    enclosure_probe_arm(link->enclosure, &link->retry);
    return true;
}

static void link_use(struct agent_link *link)
{
    struct agent_enclosure *enclosure = link->enclosure;

    if (link_waits(link))
        return;
    loop_timer_stop(enclosure->reactor->loop, &link->retry);
    agent_link_state_set(link, AGENT_ENCLOSURE_UP);
    atomic_store_explicit(&link->is_misdirected, false, memory_order_relaxed);
    estimate_forget(&enclosure->estimate);
    agent_link_volumes_read(link);
    if (enclosure_state(enclosure) != AGENT_ENCLOSURE_UP &&
        enclosure_state(enclosure) != AGENT_ENCLOSURE_SLOW)
        enclosure_up(enclosure);
    links_judge(enclosure);
}

static void link_tested(struct nvmf_req *req)
{
    struct agent_link *link = req->owner;

    link->probing = false;
    if (!agent_link_is_connected(link) || agent_link_is_up(link))
        return;
    if (req->err == ICMS_OK || req->status != 0)
        link_use(link);
    else
        enclosure_probe_arm(link->enclosure, &link->retry);
}

/* It is used when it answers what operations will ask for. The first time that is not known. */
static void link_test(struct agent_link *link)
{
    struct agent_enclosure *enclosure = link->enclosure;
    bool is_load = enclosure->asked[true].is_known;

    if (!is_load && !enclosure->asked[false].is_known) {
        link_use(link);
        return;
    }
    link_probe_send(link, is_load, link_tested);
    if (!link->probing)
        enclosure_probe_arm(enclosure, &link->retry);
}

static void link_up(struct nvmf_ctrl *ctrl)
{
    struct agent_link *link = nvmf_ctrl_owner(ctrl);
    struct agent_enclosure *enclosure = link->enclosure;
    char known[NVMF_SERIAL_BYTES];

    if (!link_is_right(link, known)) {
        link_refuse(link, known);
        return;
    }
    link_auth_set(link);
    link_auths_read(link);
    atomic_store_explicit(&link->tls, nvmf_ctrl_tls(ctrl), memory_order_relaxed);
    atomic_store_explicit(&enclosure->exist_many,
                          enclosure->agent->opts.exist_many && nvmf_ctrl_has_exist_many(ctrl),
                          memory_order_relaxed);
    agent_link_volumes_read(link);
    link_test(link);
}

/* What other hosts of the enclosure have. Where that is not what this one has, they look for the
 * same block at different places. An epoch reaches one host after the other: what it changes is not
 * told before all had time to take it. That the target itself has a later one is told at once; it
 * is one peer's word, so nothing but a sentence follows. */
static void link_told(struct nvmf_ctrl *ctrl, uint8_t feature, uint32_t volume, uint32_t others)
{
    const struct agent_link *link = nvmf_ctrl_owner(ctrl);
    struct agent_enclosure *enclosure = link->enclosure;
    const struct agent_reactor *reactor = enclosure->reactor;
    const struct nvmf_settings *own = &reactor->view->settings;
    bool is_settled =
        reactor->view->epoch == 0 || reactor_now_ns(reactor) - reactor->view_ns > AGENT_SETTLE_NS;

    if (feature == NVME_FEATURE_ICMS_ENCLOSURES)
        atomic_store_explicit(&enclosure->enclosures_differ,
                              is_settled && others != own->enclosures, memory_order_relaxed);
    else if (feature == NVME_FEATURE_ICMS_EPOCH)
        atomic_store_explicit(&enclosure->epoch_there, others > own->epoch ? others : 0,
                              memory_order_relaxed);
    else if (feature == NVME_FEATURE_ICMS_WEIGHTS)
        atomic_store_explicit(&enclosure->weights_differ, is_settled && others != own->weights,
                              memory_order_relaxed);
    else
        atomic_store_explicit(&enclosure->run_blocks_others[volume],
                              others != own->run_blocks[volume] ? others : 0, memory_order_relaxed);
}

static void link_changed(struct nvmf_ctrl *ctrl)
{
    agent_link_volumes_read(nvmf_ctrl_owner(ctrl));
}

/* What ends it may have ended others, where nothing is in flight that would be missed: a rack, a
 * switch. They are asked before operations find out. */
static void link_silent(struct nvmf_ctrl *ctrl)
{
    const struct agent_link *silent = nvmf_ctrl_owner(ctrl);
    struct agent_reactor *reactor = silent->enclosure->reactor;

    for (uint64_t left = reactor->view->members; left != 0; left &= left - 1) {
        struct agent_enclosure *enclosure = &reactor->enclosures[__builtin_ctzll(left)];

        for (uint32_t i = 0; i < LIMIT_LINKS; i++)
            if (enclosure->links[i].own.ctrl != NULL)
                nvmf_ctrl_ask(enclosure->links[i].own.ctrl);
    }
}

static void link_down(struct nvmf_ctrl *ctrl, icms_err err, const char *why)
{
    link_lost(nvmf_ctrl_owner(ctrl), why);
}

static void link_relinked(struct agent_link *link);

/* Everything of the association is over. */
static void link_closed(struct nvmf_ctrl *ctrl)
{
    struct agent_link *link = nvmf_ctrl_owner(ctrl);

    link->is_open = false;
    if (link->is_relinking)
        link_relinked(link);
    else
        enclosure_probe_arm(link->enclosure, &link->retry);
}

static const struct nvmf_ctrl_ops link_ctrl_ops = {
    .up = link_up,
    .changed = link_changed,
    .told = link_told,
    .silent = link_silent,
    .down = link_down,
    .closed = link_closed,
};

/* ---- life ----------------------------------------------------------------------------------- */

icms_err agent_association_new(struct agent_link *link, const struct agent_enclosure_opts *opts,
                               const struct loop_addr *addr, struct agent_keys *keys,
                               const struct agent_view *view, struct err_why *why,
                               struct agent_association *out_association)
{
    struct agent_reactor *reactor = link->enclosure->reactor;
    const struct agent *agent = reactor->agent;
    const struct agent_opts *agent_opts = &agent->opts;
    struct nvmf_ctrl_opts ctrl_opts;
    struct uuid volumes[LIMIT_AGENT_VOLUMES];
    struct agent_association association = {
        .keys = keys,
        .addr = *addr,
        .identity = hash64_seed(opts->nqn, strlen(opts->nqn),
                                hash64(opts->uuid.bytes, sizeof(opts->uuid.bytes))) |
                    1};
    icms_err err;

    for (uint32_t i = 0; i < agent->volume_count; i++)
        volumes[i] = view->volumes[i].uuid;
    nvmf_ctrl_opts_init(&ctrl_opts);
    ctrl_opts.addr = *addr;
    ctrl_opts.subnqn = opts->nqn;
    ctrl_opts.hostnqn = agent_opts->host_nqn;
    ctrl_opts.host_id = agent_opts->host_id;
    ctrl_opts.header_digest = agent_opts->header_digest;
    ctrl_opts.marks = agent_opts->marks;
    ctrl_opts.data_digest = agent_opts->data_digest;
    ctrl_opts.queue_entries = agent_opts->queue_entries;
    ctrl_opts.shares = (struct nvmf_share_opts){
        .groups = agent->volume_count, .members = AGENT_MEMBERS, .weights = agent->weights};
    ctrl_opts.keep_alive_ns = (uint64_t)agent_opts->keep_alive_ms * 1000000;
    ctrl_opts.silence_ns = (uint64_t)agent_opts->silence_ms * 1000000;
    ctrl_opts.tls = keys->tls;
    ctrl_opts.require = keys->is_unread ? 0 : opts->require; /* it leads nowhere */
    ctrl_opts.auth_key = keys->secret;
    ctrl_opts.auth_controller_key = keys->controller_secret;
    ctrl_opts.volumes = volumes;
    ctrl_opts.volume_count = agent->volume_count;
    if (reactor->index == 0) /* one of them is enough */
        ctrl_opts.settings = &view->settings;
    ctrl_opts.ops = &link_ctrl_ops;
    ctrl_opts.owner = link;
    (void)uuid_serial(&opts->uuid, association.serial);
    err = nvmf_ctrl_new(reactor->loop, &ctrl_opts, why, &association.ctrl);
    if (err != ICMS_OK)
        return err;
    agent_keys_hold(keys);
    *out_association = association;
    return ICMS_OK;
}

void agent_association_free(struct agent_association *association)
{
    nvmf_ctrl_free(&association->ctrl);
    agent_keys_rele(&association->keys);
}

/* Gives the slot back when the enclosure leaves and nothing of it is open any more. */
static void enclosure_left(struct agent_enclosure *enclosure)
{
    for (uint32_t i = 0; i < LIMIT_LINKS; i++)
        if (enclosure->links[i].own.ctrl != NULL)
            return;
    if (!enclosure->is_leaving)
        return;
    enclosure->is_leaving = false;
    atomic_fetch_sub_explicit(&enclosure->agent->pod.members[enclosure->number].reactors, 1,
                              memory_order_release);
}

/* What it had is closed: the next association, or the end. */
static void link_relinked(struct agent_link *link)
{
    agent_association_free(&link->own);
    link->own = link->next;
    link->next = (struct agent_association){0};
    link->is_relinking = false;
    link->auths = link->auths_refused = 0;
    if (link->own.ctrl != NULL)
        link_open(link);
    else
        enclosure_left(link->enclosure);
}

static void link_relink(struct agent_link *link, struct agent_association *take)
{
    struct agent_enclosure *enclosure = link->enclosure;

    agent_association_free(&link->next); /* never opened: two came in a row */
    link->next = *take;
    *take = (struct agent_association){0};
    link->is_relinking = true;
    loop_timer_stop(enclosure->reactor->loop, &link->retry);
    loop_timer_stop(enclosure->reactor->loop, &link->look);
    slow_forget(&enclosure->links_slow, link->at);
    memset(link->nsid, 0, sizeof(link->nsid));
    link->other = NULL;
    agent_link_counters_reset(link);
    if (link->is_open)
        nvmf_ctrl_close(link->own.ctrl, ICMS_PEER_DOWN); /* then link_closed */
    else
        link_relinked(link);
}

/* Links that there will be when what leaves is closed. */
static void enclosure_links_count(struct agent_enclosure *enclosure)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < LIMIT_LINKS; i++) {
        const struct agent_link *link = &enclosure->links[i];

        count += (link->is_relinking ? link->next.ctrl : link->own.ctrl) != NULL;
    }
    slow_all_set(&enclosure->links_slow, count);
}

void agent_enclosure_relink(struct agent_enclosure *enclosure, uint32_t links,
                            struct agent_association take[LIMIT_LINKS], bool is_leaving)
{
    struct agent_reactor *reactor = enclosure->reactor;

    enclosure->is_leaving = is_leaving;
    estimate_forget(&enclosure->estimate); /* with other links it is another server */
    for (uint32_t left = links; left != 0; left &= left - 1)
        link_relink(&enclosure->links[__builtin_ctz(left)], &take[__builtin_ctz(left)]);
    enclosure_links_count(enclosure);
    agent_enclosure_missing_set_all(enclosure);
    if (agent_enclosure_links_up(enclosure) != 0)
        return;
    enclosure->was_relinked = true;
    enclosure->began_ns = reactor_now_ns(reactor);
    enclosure_slow_forget(enclosure);
    memset(enclosure->asked, 0, sizeof(enclosure->asked));
    enclosure_state_set(enclosure, AGENT_ENCLOSURE_CONNECTING);
}

void agent_enclosure_settings_set(struct agent_enclosure *enclosure,
                                  const struct nvmf_settings *settings)
{
    atomic_store_explicit(&enclosure->enclosures_differ, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->weights_differ, false, memory_order_relaxed);
    atomic_store_explicit(&enclosure->epoch_there, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < LIMIT_LINKS; i++) {
        const struct agent_link *link = &enclosure->links[i];

        if (link->own.ctrl != NULL)
            nvmf_ctrl_settings_set(link->own.ctrl, settings);
        if (link->next.ctrl != NULL)
            nvmf_ctrl_settings_set(link->next.ctrl, settings);
    }
}

icms_err agent_enclosure_make(struct agent_enclosure *enclosure, struct agent_reactor *reactor,
                              uint32_t number, struct err_why *why)
{
    if (!enclosure->is_made) {
        enclosure->probe_memory = malloc(AGENT_PROBE_BYTES);
        if (enclosure->probe_memory == NULL)
            return err_set(why, ICMS_NO_MEMORY, "no memory for a probe of an enclosure");
        enclosure->agent = reactor->agent;
        enclosure->reactor = reactor;
        enclosure->number = number;
        pthread_mutex_init(&enclosure->text_lock, NULL);
        loop_timer_init(&enclosure->probe, enclosure_probe);
        loop_timer_init(&enclosure->late, enclosure_late);
        slow_init(&enclosure->links_slow, LIMIT_LINKS);
        for (uint32_t i = 0; i < LIMIT_LINKS; i++) {
            struct agent_link *link = &enclosure->links[i];

            link->enclosure = enclosure;
            link->at = i;
            loop_timer_init(&link->retry, link_retry);
            loop_timer_init(&link->look, agent_link_look);
        }
        enclosure->is_made = true;
    }
    agent_enclosure_counters_reset(enclosure);
    return ICMS_OK;
}

void agent_enclosure_fini(struct agent_enclosure *enclosure)
{
    if (!enclosure->is_made)
        return;
    for (uint32_t i = 0; i < LIMIT_LINKS; i++) {
        agent_association_free(&enclosure->links[i].own);
        agent_association_free(&enclosure->links[i].next);
    }
    free(enclosure->probe_memory);
    pthread_mutex_destroy(&enclosure->text_lock);
}

void agent_enclosure_begin(struct agent_enclosure *enclosure)
{
    enclosure->began_ns = reactor_now_ns(enclosure->reactor);
    enclosure_links_count(enclosure);
    for (uint32_t i = 0; i < LIMIT_LINKS; i++)
        if (enclosure->links[i].own.ctrl != NULL)
            link_open(&enclosure->links[i]);
}
