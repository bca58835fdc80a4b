/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fault points that nobody armed: see fault.h. What arms them is fault_arm.c, which only tests
 * link.
 */
#include "base/fault.h"

fault_visitor_fn *fault_visitor;
