#ifndef REPORT_HEADER_H
#define REPORT_HEADER_H

#include <stdio.h>

#include "report/result.h"

/* What ran and where, as comments. */
void report_header(FILE *, const struct result *);

#endif
