/* `epa2a list models`. */
#ifndef LIST_MODELS_H
#define LIST_MODELS_H

#include "cli/cli.h"

int list_models(const struct cli *);

#endif
