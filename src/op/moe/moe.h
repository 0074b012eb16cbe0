/* Values that options of moe accept. */
#ifndef OP_MOE_H
#define OP_MOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct experiment;

/* Returns true if `value` is valid for `key` of the experiment; otherwise writes the reason. */
bool op_moe_takes(const struct experiment *, const char *key, uint64_t value, char *why,
                  size_t room);

#endif
