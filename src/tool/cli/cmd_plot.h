/* The command `plot`. */
#ifndef CMD_PLOT_H
#define CMD_PLOT_H

#include <epa2a/plugin.h>

#include "cli/cli.h"

extern const struct epa_choice plot_kinds[]; /* for --kind */

int cmd_plot(const struct cli *);

enum epa_status cmd_plot_check(const struct cli *, struct epa_error *);

#endif
