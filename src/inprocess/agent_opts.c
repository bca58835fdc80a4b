/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/agent_opts.c: an agent as its configuration says; see agent_opts.h.
 */
#include "inprocess/agent_opts.h"

#include <string.h>

void agent_enclosure_opts_from_conf(const struct conf_enclosure *from,
                                    const struct loop_addr addrs[LIMIT_LINKS],
                                    struct agent_enclosure_opts *out_opts)
{
    static const enum agent_pod_state states[] = {
        [CONF_ENCLOSURE_UP] = AGENT_POD_UP,
        [CONF_ENCLOSURE_JOINING] = AGENT_POD_JOINING,
        [CONF_ENCLOSURE_DRAINING] =
            AGENT_POD_DRAINING, /* pod_map.c leaves those out that are out */
    };
    struct agent_enclosure_opts opts = {
        .uuid = from->uuid,
        .addr_count = from->address_count,
        .weight = from->weight,
        .former_weight = from->former_weight,
        .state = states[from->state],
        .psk = from->psk[0] != '\0' ? from->psk : NULL,
        .secret = from->secret[0] != '\0' ? from->secret : NULL,
        .controller_secret = from->controller_secret[0] != '\0' ? from->controller_secret : NULL,
        .require = from->require,
    };

    memcpy(opts.name, from->name, sizeof(opts.name));
    memcpy(opts.nqn, from->nqn, sizeof(opts.nqn));
    memcpy(opts.addrs, addrs, from->address_count * sizeof(opts.addrs[0]));
    *out_opts = opts;
}

icms_err agent_opts_from_conf(const struct conf_agent *conf,
                              struct agent_enclosure_opts *enclosures, struct err_why *why,
                              struct agent_opts *out_opts)
{
    struct agent_opts opts;

    agent_opts_init(&opts);
    memcpy(opts.name, conf->name, sizeof(opts.name));
    memcpy(opts.host_nqn, conf->host_nqn, sizeof(opts.host_nqn));
    opts.host_id = conf->host_id;
    opts.loops = conf->loops;
    opts.busy_poll = conf->busy_poll;
    opts.prefault = conf->prefault;
    opts.poll_us = conf->poll_us;
    opts.header_digest = conf->header_digest;
    opts.marks = conf_marks(&conf->dscp, &conf->priority);
    opts.data_digest = conf->data_digest;
    opts.exist_many = conf->exist_many;
    opts.queue_entries = conf->queue_entries;
    opts.connect_timeout_ms = conf->connect_timeout_ms;
    opts.keep_alive_ms = conf->keep_alive_ms;
    opts.silence_ms = conf->silence_ms;
    opts.probe_ms = conf->probe_ms;
    opts.load_deadline_ms = conf->load_deadline_ms;
    opts.store_deadline_ms = conf->store_deadline_ms;
    opts.memory_bytes = conf->memory_bytes;
    opts.store_backlog_bytes = conf->store_backlog_bytes;
    opts.client_bytes = conf->client_bytes;
    opts.user_clients_max = conf->user_clients_max;
    opts.local_path = conf->local_path[0] != 0 ? conf->local_path : NULL;
    opts.local_bytes = conf->local_bytes;
    opts.local_segment_bytes = conf->local_segment_bytes;
    opts.local_budget = conf->local_budget;
    opts.local_share = conf->local_exclusive_percent / 100;
    for (uint32_t i = 0; i < conf->enclosure_count; i++) {
        struct loop_addr addrs[LIMIT_LINKS];

        for (uint32_t k = 0; k < conf->enclosures[i].address_count; k++) {
            icms_err err = loop_addr_parse(conf->enclosures[i].address[k], why, &addrs[k]);

            if (err != ICMS_OK)
                return err;
        }
        agent_enclosure_opts_from_conf(&conf->enclosures[i], addrs, &enclosures[i]);
    }
    opts.enclosure_count = conf->enclosure_count;
    opts.enclosures = enclosures;
    opts.volume_count = conf->volume_count;
    opts.volumes = conf->volumes;
    *out_opts = opts;
    return ICMS_OK;
}
