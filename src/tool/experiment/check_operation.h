/* Checks of the options of operations. */
#ifndef EXPERIMENT_CHECK_OPERATION_H
#define EXPERIMENT_CHECK_OPERATION_H

#include "config/check.h"
#include "op/op.h"

struct operation_checks {
    enum epa_op op;
    /* Checks the relations between the operation's options and reports conflicts. */
    void (*check_options)(const struct config_check *);
    /* Checks the relations between options and the footprint of the algorithm. Optional. */
    void (*check_footprint)(const struct config_check *, const struct epa_footprint *);
};

/* Returns NULL for an unknown operation. */
const struct operation_checks *operation_checks_of(enum epa_op);

/* For struct op_advice: returns true if `value` is valid for `key` of a struct experiment whose
 * operation is known; otherwise writes the reason. */
bool experiment_takes(const void *experiment, const char *key, uint64_t value, char *why,
                      size_t room);

#endif
