/* Runs gnuplot on a script. */
#ifndef GNUPLOT_H
#define GNUPLOT_H

#include "cli/cli.h"

struct text;

/* Runs the gnuplot of PATH on a script, without the settings of the user; stores its output in
 * `out`. */
enum epa_status cli_draw(const struct text *script, struct text *out, struct epa_error *);

#endif
