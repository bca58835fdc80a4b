/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages without a server: see test_page.h.
 */
#include "ctl/test_page.h"

#include <stdlib.h>

#include "ctl/ctl_int.h"

struct ctl_page *ctl_page_new(void)
{
    return calloc(1, sizeof(struct ctl_page));
}

const char *ctl_page_text(const struct ctl_page *page)
{
    return page->bytes > 0 ? page->text : "";
}

void ctl_page_free(struct ctl_page **page)
{
    if (*page != NULL)
        ctl_page_fini(*page);
    free(*page);
    *page = NULL;
}
