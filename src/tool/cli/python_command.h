/* Commands of the Python package: Python replaces this process. */
#ifndef PYTHON_COMMAND_H
#define PYTHON_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

/* Words of a command line for Python: {0} is empty. */
struct python_words {
    char **word;
    uint32_t n;
};

void python_add(struct python_words *, const char *word);
/* Adds OPTION=VALUE; nothing for NULL. */
void python_add_value(struct python_words *, const char *option, const char *value);
/* Adds OPTION=NUMBER; nothing for 0. */
void python_add_number(struct python_words *, const char *option, uint32_t number);

/* Replaces the process by `python3 -m epa2a WORDS` with the package beside this program. Python keeps the
 * streams and sets the exit code. Frees the words, and returns only after a failure: EPA_ERR_UNSUPPORTED
 * with the cause and the remedy. */
enum epa_status python_run(struct python_words *, struct epa_error *);

#endif
