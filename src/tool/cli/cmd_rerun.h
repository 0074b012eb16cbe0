/* The former command `rerun`. */
#ifndef CMD_RERUN_H
#define CMD_RERUN_H

#include "cli/cli.h"

int cmd_rerun(const struct cli *);

#endif
