/* The command `completion`. */
#ifndef CMD_COMPLETION_H
#define CMD_COMPLETION_H

#include "cli/cli.h"

int cmd_completion(const struct cli *);

#endif
