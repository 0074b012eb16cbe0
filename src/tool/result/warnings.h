/* Warnings about the result of a run. */
#ifndef WARNINGS_H
#define WARNINGS_H

#include "result/result.h"

/* Fills the warnings of a run. */
void result_warn(struct run_figures *, const struct result *, const struct session *,
                 const struct machine_facts *);

#endif
