/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inprocess/names.h: whether two addresses of a pod map, of which one is a DNS name, lead to one
 * place, as the resolver of this machine says now. Pure but for that; control threads.
 */
#ifndef INPROCESS_NAMES_H
#define INPROCESS_NAMES_H

#include "conf/pod.h"

/* Names that are not resolved within this time are not looked at. */
#define NAMES_WAIT_MS 3000

/* True with a sentence: an agent would not use one of the two. Blocking, for NAMES_WAIT_MS at most.
 */
bool names_meet(const struct conf_pod *pod, struct err_why *why);

#endif
