/* Which plugins a result came from. */
#ifndef REPORT_PLUGINS_H
#define REPORT_PLUGINS_H

#include <jansson.h>

#include "config/experiment.h"

/* Name, file and a hash of the file's bytes, of all four. NULL: no memory. */
json_t *report_plugins(const struct experiment *);

#endif
