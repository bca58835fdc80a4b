/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base/fault_arm.h: says what happens at fault points. For tests: programs that are installed do
 * not link it.
 *
 * A text arms places, comma separated: NAME:N:ACTION, where N is which visit (1 is the first) and
 * ACTION is one of
 *   kill        SIGKILL to this process        kill=PID   SIGKILL to another
 *   stop        SIGSTOP to this process        stop=PID   SIGSTOP to another
 *   fail        fault_hit returns true, once   fail+      from that visit on
 *   slow=US     from that visit on it takes so many microseconds, where fault_slow_us is asked
 * In place of N the path of a file, with a slash in front: the action is that of every visit while
 * the file is there.
 */
#ifndef BASE_FAULT_ARM_H
#define BASE_FAULT_ARM_H

#include "base/err.h"
#include "base/fault.h"

/* NULL or "" disarms. One thread at a time. A bad text is an error that says where. */
icms_err fault_arm(const char *text, struct err_why *why) ICMS_MUST_CHECK;

/* The same with the text of the environment variable ICMS_FAULT. */
icms_err fault_arm_environment(struct err_why *why) ICMS_MUST_CHECK;

#endif
