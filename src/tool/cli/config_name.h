/* Names of the installed configurations: "small" means configs/small.yaml of the installation or of
 * the source tree. */
#ifndef CONFIG_NAME_H
#define CONFIG_NAME_H

#include <stdint.h>

#include <epa2a/status.h>

#include "base/arena.h"

/* The configuration of run, bench and verify without a file. */
#define CONFIG_NAME_DEFAULT "small"

/* Returns the number of configurations and their names, sorted, in the arena. */
uint32_t config_names(struct arena *, const char ***names);

/* Resolves `word` to a path in the arena: `word` itself if the file exists or the word contains a
 * slash, else the configuration of that name, with or without ".yaml". EPA_ERR_CONFIG: neither
 * exists; the message suggests the nearest name. */
enum epa_status config_name_resolve(struct arena *, const char *word, const char **path,
                                    struct epa_error *);

#endif
