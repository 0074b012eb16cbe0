/* The command `plot`. */
#ifndef CMD_PLOT_H
#define CMD_PLOT_H

#include "cli/cli.h"

int cmd_plot(const struct cli *);

enum epa_status cmd_plot_check(const struct cli *, struct epa_error *);

#endif
