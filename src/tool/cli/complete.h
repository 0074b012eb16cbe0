/* Completion of a command line. */
#ifndef COMPLETE_H
#define COMPLETE_H

#include "cli/cli.h"

/* Runs `epa2a __complete WORD...`. The words are the arguments of epa2a up to the cursor; prints
 * candidates for the last word. */
int complete_main(int argc, char **argv);

#endif
