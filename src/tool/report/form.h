/* Lines of other programs, read by forms. */
#ifndef REPORT_FORM_H
#define REPORT_FORM_H

#include <stdint.h>

#define FORM_BLANKS " \t\r"

enum {
    FORM_VALUES = 16, /* most named values of a form */
    FORM_NAME = 96,
    FORM_WORD = 64 /* longer than any known word */
};

/* Values of a line in the order of their names in the form. */
struct form_values {
    struct form_value {
        char name[FORM_NAME], word[FORM_WORD];
        double number; /* NaN: the value is the word */
    } value[FORM_VALUES];
    uint32_t n;
};

/* Matches a line with a form, which contains names in braces: blanks stand for any number of blanks, {}
 * for an ignored word, {NAME%s} for a word and {NAME} for a number (repeated NAME+: the sum;
 * repeated NAME: the product), a final * for any text. Returns NULL after a match; `out` has its
 * values. Otherwise returns the position of the mismatch, and *wanted is the expected text; NULL:
 * the line does not match even up to the first value. */
const char *form_match(const char *form, const char *line, struct form_values *out,
                       const char **wanted);

#endif
