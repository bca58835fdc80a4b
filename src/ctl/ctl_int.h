/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ctl/ctl_int.h: private to the module: a page while it is made.
 */
#ifndef CTL_CTL_INT_H
#define CTL_CTL_INT_H

#include <stddef.h>

#include "ctl/ctl.h"

struct ctl_page {
    char *text;       /* owned; grows by doubling, up to LIMIT_HTTP_PAGE_BYTES   */
    size_t bytes;     /* used; the byte after them is zero                       */
    size_t bytes_max; /* room                                                    */
    bool full;        /* something did not fit: the page is not to be shown      */
};

/* Empties a page; keeps its memory. */
void ctl_page_clear(struct ctl_page *page);
void ctl_page_fini(struct ctl_page *page);

/* What is the same in every daemon: the process and the build. */
void ctl_process(struct ctl_page *page, const char *program, const char *version);

#endif
