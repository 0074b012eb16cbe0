/* Lines of the table that explain: comments, and all that stands above the rows. */
#ifndef REPORT_LINES_H
#define REPORT_LINES_H

#include "report/report.h"

enum { REPORT_WIDTH = 100 };

/* One comment, folded at blanks. Names come from files: nothing in them moves the cursor. */
EPA_PRINTF(2, 3)
void report_comment(FILE *, const char *fmt, ...);

/* A line for each row whose samples are enough to have a shape. */
void report_sparks(FILE *, const struct result *);

/* What ran and where. */
void report_header(FILE *, const struct result *);

#endif
