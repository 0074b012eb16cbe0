/* Facts of results that do not depend on the run. */
#ifndef REPORT_RESULT_PARTS_H
#define REPORT_RESULT_PARTS_H

#include "result/machine_facts.h"

enum { RESULT_SCHEMA = 1 }; /* "schema" of a document */

/* Facts of this process, common to all its results. */
struct facts {
    const struct machine_facts *machine;
    const char *const *context; /* "NAME=TEXT" notes of the user */
    uint32_t n_context;
};

#endif
