/* The command `doctor`. */
#ifndef CMD_DOCTOR_H
#define CMD_DOCTOR_H

#include "cli/cli.h"

int cmd_doctor(const struct cli *);

#endif
