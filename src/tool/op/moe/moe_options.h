/* Checks of the options of moe. */
#ifndef OP_MOE_OPTIONS_H
#define OP_MOE_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config_check;
struct experiment;

void op_moe_check_options(const struct config_check *);

/* Returns true if `value` is valid for `key` of the experiment; otherwise writes the reason. */
bool op_moe_takes(const struct experiment *, const char *key, uint64_t value, char *why,
                  size_t room);

#endif
