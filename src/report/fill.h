/* Sentences with values of a JSON object, and text for terminals. */
#ifndef REPORT_FILL_H
#define REPORT_FILL_H

#include "base/json.h"
#include "base/text.h"

#define FORM_BLANKS " \t\r"

/* fill_add() adds `form` with the values of `of`, each escaped by `escape` (NULL: unchanged);
 * returns false, and adds nothing, if a value is unknown. The other function prints the text like
 * text_comment(). */
bool fill_add(struct text *out, const char *form, const json_t *of,
              void (*escape)(struct text *, const char *));
void fill_comment(FILE *, const char *form, const json_t *of);

/* Matches a line with a form, the inverse of fill_add(): blanks stand for any number of blanks, {}
 * for an ignored word, {NAME%s} for a word and {NAME} for a number (repeated NAME+: the sum;
 * repeated NAME: the product), a final * for any text. Returns NULL after a match; `out` has its
 * values. Otherwise returns the position of the mismatch, and *wanted is the expected text; NULL:
 * the line does not match even up to the first value. */
const char *form_match(const char *form, const char *line, json_t *out, const char **wanted);

/* Format text from files: for a terminal, and for Markdown without markup, on one line. */
void text_print_clean(FILE *, const char *text);
void text_add_markdown(struct text *, const char *);

/* Prints lines of 100 columns, folded at blanks: `lead` begins the first, `next` the others. */
void text_fold(FILE *, const char *lead, const char *next, const char *text);
/* Prints a comment of such lines, with "# " and "#   ", cleaned by text_clean(). */
__attribute__((format(printf, 2, 3))) void text_comment(FILE *, const char *fmt, ...);

#endif
