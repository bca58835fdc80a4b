/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/options.h: the command line of the demo's programs.
 */
#ifndef DEMO_OPTIONS_H
#define DEMO_OPTIONS_H

#include <stdbool.h>

/* --NAME TEXT, --NAME NUMBER or --NAME, by which of the three is not NULL. */
struct options_row {
    const char *name; /* NULL: the end                                         */
    const char **text;
    int *number; /* a whole one, 0 or more                                */
    bool *flag;
};

/* Takes the command line; what is not on it stays as it was. False: there is something else on it.
 */
bool options_parse(const struct options_row *rows, int argc, char **argv);

#endif
