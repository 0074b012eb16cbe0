/* Names of the installed configurations: "small" is configs/small.yaml of the installation or of
 * the source tree. */
#ifndef CONFIG_NAME_H
#define CONFIG_NAME_H

#include <stdint.h>

#include <epa2a/status.h>

#include "base/text.h"

/* The configuration of run, bench and verify without a file. */
#define CONFIG_NAME_DEFAULT "small"

/* Names of all configurations, sorted, in the arena. */
uint32_t config_names(struct arena *, const char ***names);

/* The path of the file that `word` means, in the arena: `word` itself if such a file exists or a
 * path is given, else the configuration of that name, with or without ".yaml". EPA_ERR_CONFIG:
 * neither exists, and the nearest name is suggested. */
enum epa_status config_name_resolve(struct arena *, const char *word, const char **path,
                                    struct epa_error *);

#endif
