/* Checks of the options of moe. */
#ifndef EXPERIMENT_CHECK_MOE_H
#define EXPERIMENT_CHECK_MOE_H

#include "config/check.h"

void check_moe_options(const struct config_check *);
void check_moe_footprint(const struct config_check *, const struct epa_footprint *);

#endif
