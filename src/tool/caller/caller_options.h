/* The plugins and options of an experiment as text for epa2a.h. */
#ifndef CALLER_OPTIONS_H
#define CALLER_OPTIONS_H

#include "base/text.h"
#include "config/experiment.h"

/* "transport=shm, transport.x=1, backend=host, ..." */
void caller_comm_options(const struct experiment *, struct text *out);
/* "algorithm=ll_v2, algorithm.x=1, ..." */
void caller_algorithm_options(const struct experiment *, struct text *out);
/* Folders of these plugins, separated by ':'. */
void caller_plugin_path(const struct experiment *, struct text *out);

#endif
