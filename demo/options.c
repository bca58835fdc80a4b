/* SPDX-License-Identifier: Apache-2.0 */
/*
 * demo/options.c: getopt_long() by a table.
 */
#include "options.h"

#include <getopt.h>
#include <limits.h>
#include <stdlib.h>

enum { ROWS_MAX = 16 };

static bool number_parse(const char *text, int *out_number)
{
    char *end = NULL;
    long number = strtol(text, &end, 10);

    if (end == text || *end != '\0' || number < 0 || number > INT_MAX)
        return false;
    *out_number = (int)number;
    return true;
}

bool options_parse(const struct options_row *rows, int argc, char **argv)
{
    struct option options[ROWS_MAX + 1] = {{NULL, 0, NULL, 0}};
    int which, result;

    for (int i = 0; i < ROWS_MAX && rows[i].name != NULL; i++)
        options[i] = (struct option){
            rows[i].name, rows[i].flag != NULL ? no_argument : required_argument, NULL, 0};
    while ((result = getopt_long(argc, argv, "", options, &which)) == 0) {
        const struct options_row *row = &rows[which];

        if (row->flag != NULL)
            *row->flag = true;
        else if (row->text != NULL)
            *row->text = optarg;
        else if (!number_parse(optarg, row->number))
            return false;
    }
    return result == -1 && optind == argc;
}
