/* Lines of other programs, read by forms. */
#ifndef REPORT_FORM_H
#define REPORT_FORM_H

#include "base/json.h"

#define FORM_BLANKS " \t\r"

/* Matches a line with a form, the inverse of fill_add(): blanks stand for any number of blanks, {}
 * for an ignored word, {NAME%s} for a word and {NAME} for a number (repeated NAME+: the sum;
 * repeated NAME: the product), a final * for any text. Returns NULL after a match; `out` has its
 * values. Otherwise returns the position of the mismatch, and *wanted is the expected text; NULL:
 * the line does not match even up to the first value. */
const char *form_match(const char *form, const char *line, json_t *out, const char **wanted);

#endif
