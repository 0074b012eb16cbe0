/* The command `import`. */
#ifndef CMD_IMPORT_H
#define CMD_IMPORT_H

#include "cli/cli.h"

int cmd_import(const struct cli *);

#endif
