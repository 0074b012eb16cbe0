/* Top-level keys of a file that do not belong to the experiment. */
#ifndef EXPERIMENT_BATCH_KEYS_H
#define EXPERIMENT_BATCH_KEYS_H

#include <stdbool.h>
#include <stddef.h>

/* A top-level key of a file that does not belong to the experiment. */
struct batch_key {
    const char *name, *help; /* NULL ends the list */
};
extern const struct batch_key batch_keys[];
bool batch_is_key(const char *key);
/* The same for the first `bytes` of a text. */
bool batch_is_key_of(const char *text, size_t bytes);

#endif
