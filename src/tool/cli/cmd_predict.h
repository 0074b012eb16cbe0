/* The command `predict`. */
#ifndef CMD_PREDICT_H
#define CMD_PREDICT_H

#include "cli/cli.h"

int cmd_predict(const struct cli *);

enum epa_status cmd_predict_check(const struct cli *, struct epa_error *);

#endif
