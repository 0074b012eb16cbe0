/* `epa2a compare --run`: compares two experiments that run in turns. */
#ifndef COMPARE_TURNS_H
#define COMPARE_TURNS_H

#include "cli/cli.h"

int compare_turns(const struct cli *); /* compare --run */

#endif
