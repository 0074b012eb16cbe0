/* The command `config`. */
#ifndef CMD_CONFIG_H
#define CMD_CONFIG_H

#include "cli/cli.h"

int cmd_config(const struct cli *); /* show | check | schema */

/* Checks subcommand and options before the command runs. */
enum epa_status cmd_config_check(const struct cli *, struct epa_error *);

#endif
