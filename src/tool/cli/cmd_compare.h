/* The command `compare`. */
#ifndef CMD_COMPARE_H
#define CMD_COMPARE_H

#include "cli/cli.h"

int cmd_compare(const struct cli *);

enum epa_status cmd_compare_check(const struct cli *, struct epa_error *);

#endif
