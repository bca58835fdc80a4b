/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl/test_page.h: pages without a server, for tests.
 */
#ifndef CTL_TEST_PAGE_H
#define CTL_TEST_PAGE_H

#include "ctl/ctl.h"

/* An empty page; NULL: out of memory. *page may be NULL. */
struct ctl_page *ctl_page_new(void);
const char *ctl_page_text(const struct ctl_page *page);
void ctl_page_free(struct ctl_page **page);

#endif
