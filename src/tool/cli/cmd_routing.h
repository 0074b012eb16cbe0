/* The command `routing`. */
#ifndef CMD_ROUTING_H
#define CMD_ROUTING_H

#include "cli/cli.h"

int cmd_routing(const struct cli *); /* stats */

#endif
