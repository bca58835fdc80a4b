/* SPDX-License-Identifier: Apache-2.0 */
/* cmd/icms_pod.h: what the files of icms pod share. One thread. */
#ifndef CMD_ICMS_POD_H
#define CMD_ICMS_POD_H

#include "conf/pod.h"
#include "icms_cli.h"

/* How long status and changes wait for daemons without --deadline; they are asked at the same
 * time. */
#define POD_STATUS_MS 2000

/* One call of the command. */
struct pod {
    struct cli *cli;
    const char *path;
    struct conf_pod *before, *after; /* of the file; status: before alone */
};

/* The enclosures and volumes of a map for --json. */
json_t *pod_enclosures_json(const struct conf_pod *map);
json_t *pod_volumes_json(const struct conf_pod *map);

/* Plans a change, shows it, writes it; returns the exit status. */
int pod_change(struct pod *pod, const struct conf_pod_change *asked);

/* add: whether the enclosure of this name, in pod->after, is where the map will say; it takes twice
 * --deadline at most. CONFIG and what a connection may end with, with a sentence; with --yes only
 * what its target says over HTTP counts. */
icms_err pod_add_look(const struct pod *pod, const char *name, struct err_why *why) ICMS_MUST_CHECK;

/* The subcommands; they return the exit status. */
int pod_status(struct pod *pod);
int pod_reload(struct pod *pod);

#endif
