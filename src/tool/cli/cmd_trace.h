/* The command `trace`. */
#ifndef CMD_TRACE_H
#define CMD_TRACE_H

#include "cli/cli.h"

int cmd_trace(const struct cli *);

enum epa_status cmd_trace_check(const struct cli *, struct epa_error *);

#endif
