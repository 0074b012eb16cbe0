/* `epa2a list configs`. */
#ifndef LIST_CONFIGS_H
#define LIST_CONFIGS_H

#include "cli/cli.h"

int list_configs(const struct cli *);

#endif
