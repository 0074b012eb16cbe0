/* The command `verify`. */
#ifndef CMD_VERIFY_H
#define CMD_VERIFY_H

#include "cli/cli.h"

int cmd_verify(const struct cli *);

#endif
